"""The plots of a run's page.

What enters: the records that a run's folder holds. What leaves: figures with their texts; none
where there is nothing to draw.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from partly.pages import points
from partly.plots import BLUE, GREEN, MUTED, ORANGE, numbers, plot, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = Mapping[str, Any]

MOST_POINTS = 1000  # of a plot with a point a label: more would only weigh
RECALLS = (0.1, 0.5, 0.9)  # at which the text of a curve gives its precision
TYPICAL = {"best": (GREEN, "-"), "median": (BLUE, "--"), "worst": (ORANGE, "-.")}


def learning_curves(history: Sequence[Record], kept: Record | None) -> list[Markup]:
    if kept is None:
        return []
    loss = _curves("Training loss", history, {"loss": "loss"}, kept["epoch"], scale=1)
    if not kept["criterion"]:
        return [loss]
    title, lines = f"Validation: {kept['criterion']}", {"score": "validation_score"}
    return [loss, _curves(title, history, lines, kept["epoch"])]


def audit_curves(audit: Sequence[Record]) -> list[Markup]:
    """What the pseudo-labels were worth, epoch by epoch."""
    means = {"mean pseudo-label": "mean_pseudo_label", "true share": "share_positive"}
    plots = {
        "mAP of the pseudo-labels": {"mAP": "mAP"},
        "Mean absolute error": {"error": "mean_absolute_error"},
        "Mean pseudo-label and true share of positives": means,
    }
    return [_curves(title, audit, lines) for title, lines in plots.items()] if audit else []


def _curves(
    title: str,
    history: Sequence[Record],
    lines: Mapping[str, str],
    kept: int | None = None,
    scale: float = 100,
) -> Markup:
    """One or two lines {name: key of the records} over epochs, told apart by colour and dash."""
    from matplotlib.ticker import MaxNLocator

    epochs = [record["epoch"] for record in history]
    series = {name: scale * numbers(history, key) for name, key in lines.items()}
    ends = (f"{name} from {values[0]:.4g} to {values[-1]:.4g}" for name, values in series.items())
    text = f"By epoch: {', '.join(ends)}." + (f" Epoch {kept} was kept." if kept else "")

    def paint(axes: "Axes") -> None:
        looks = ((BLUE, ".-"), (ORANGE, ".--"))
        for (name, values), (colour, dash) in zip(series.items(), looks, strict=False):
            axes.plot(epochs, values, dash, color=colour, label=name if len(series) > 1 else None)
        if kept is not None:
            axes.axvline(kept, color=MUTED, linestyle=":", label=f"epoch {kept} was kept")
        if len(axes.lines) > 1:
            axes.legend()
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return plot(title, text, paint)


def label_plot(counts: Record | None, result: Record) -> Markup | None:
    """AP of each label against the number of its known positives."""
    from matplotlib.ticker import MaxNLocator

    values = 100 * np.array(result.get("AP", []), dtype=float)
    one_sided = result.get("coverage", {}).get("left_out", {}).get("no known negative", [])
    values[one_sided] = np.nan  # 100, whatever the model says
    scored = np.isfinite(values)
    if not counts or not scored.any():
        return None
    positives, values = np.array(counts["positive"])[scored], values[scored]
    text = (
        f"{len(values)} labels with {min(positives):,} to {max(positives):,} known positives; "
        f"their AP runs from {min(values):.1f} to {max(values):.1f}."
    )
    # Of very many labels some are drawn, from the rarest to the most frequent.
    drawn = np.argsort(positives, kind="stable")
    if len(drawn) > MOST_POINTS:
        drawn = drawn[np.linspace(0, len(drawn) - 1, MOST_POINTS).round().astype(int)]
        text += f" {MOST_POINTS:,} of them are drawn."

    def paint(axes: "Axes") -> None:
        axes.scatter(positives[drawn], values[drawn], s=26, color=BLUE, alpha=0.65, linewidths=0)
        if max(positives) > 20 * max(min(positives), 1):
            axes.set_xscale("symlog", linthresh=1)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set(xlabel="known positives in training", ylabel="AP", ylim=(0, 102))

    return plot("AP of each label by its known positives", text, paint)


def precision_recall_plots(diagnosis: Record, names: Sequence[str]) -> list[Markup]:
    """All labels together with what the thresholds choose, then labels from best to worst."""
    curves = diagnosis.get("curves", [])
    if not curves:
        return []
    whole, *typical = curves
    plots = [_overall_curve(whole, diagnosis)]
    return [*plots, _typical_curves(typical, names)] if typical else plots


def _overall_curve(whole: Record, diagnosis: Record) -> Markup:
    hits = diagnosis["known_positives"] - diagnosis["false_negatives"]
    called = hits + diagnosis["false_positives"]
    precision, recall = hits / max(called, 1), hits / diagnosis["known_positives"]
    how = "at the thresholds" if diagnosis["tuned"] else "at 0.5"
    chosen = f"{how}: precision {points(precision)}, recall {points(recall)}" if called else ""

    def paint(axes: "Axes") -> None:
        axes.plot(*_in_points(whole), color=BLUE, linewidth=1.8)
        if called:
            axes.plot(100 * recall, 100 * precision, "o", color=ORANGE, label=chosen)
            axes.figure.legend(loc="outside lower left")
        _square(axes, "recall", "precision")

    text = f"All labels: {_precisions_in_words(whole)}." + (
        f" {chosen.capitalize()}." * bool(called)
    )
    return plot("All labels together", text, paint, height=3.7)


def _typical_curves(curves: Sequence[Record], names: Sequence[str]) -> Markup:
    texts = [
        f"{curve['name']}, {names[curve['label']]}, AP {points(curve['AP'])}: "
        f"{_precisions_in_words(curve)}"
        for curve in curves
    ]

    def paint(axes: "Axes") -> None:
        for curve in curves:
            colour, dash = TYPICAL[curve["name"]]
            name = f"{curve['name']}: {shortened(names[curve['label']])}, {points(curve['AP'])}"
            axes.plot(*_in_points(curve), dash, color=colour, linewidth=1.6, label=name)
        axes.figure.legend(loc="outside lower left", ncols=1)
        _square(axes, "recall", "precision")

    title = "Labels with the best, the median and the worst AP"
    return plot(title, f"{'; '.join(texts)}.", paint, height=3.7)


def _in_points(curve: Record) -> tuple[np.ndarray, np.ndarray]:
    """Recall and precision, from where nothing is called positive."""
    recall, precision = 100 * np.array(curve["recall"]), 100 * np.array(curve["precision"])
    return np.append(0, recall), np.append(precision[0], precision)


def _precisions_in_words(curve: Record) -> str:
    recall, precision = np.array(curve["recall"]), curve["precision"]
    found = [(goal, precision[int(np.argmax(recall >= goal))]) for goal in RECALLS]
    return "precision " + ", ".join(
        f"{points(value)} at recall {100 * goal:.0f}" for goal, value in found
    )


def _square(axes: "Axes", across: str, up: str) -> None:
    axes.set(xlabel=across, ylabel=up, xlim=(0, 101), ylim=(0, 103))


def calibration_plots(diagnosis: Record) -> list[Markup]:
    """What probabilities promise against what is known, and how many entries say so."""
    found = diagnosis.get("reliability")
    if not found or not diagnosis["known_negatives"] or not diagnosis["known_positives"]:
        return []
    bins = list(zip(*found.values(), strict=True))
    return [_reliability_plot(bins), _counts_plot(bins)]


def _reliability_plot(bins: Sequence[tuple[int, int, float]]) -> Markup:
    """Bins of (entries, positives, sum of probabilities)."""
    rows = [(n, expected / n, positives / n) for n, positives, expected in bins if n]
    promised, true = (100 * np.array([row[place] for row in rows]) for place in (1, 2))
    limits = 100 * np.array([_interval(share, n) for n, _, share in rows]).T
    texts = (f"{points(p)} % promised, {points(t)} % positive of {n:,}" for n, p, t in rows)

    def paint(axes: "Axes") -> None:
        axes.plot([0, 100], [0, 100], "--", color=MUTED, linewidth=1, label="perfect")
        errors = np.abs(limits - true)
        axes.errorbar(promised, true, yerr=errors, fmt="o-", color=BLUE, ms=4.5, linewidth=1.2)
        axes.legend(loc="upper left")
        _square(axes, "mean probability (%)", "known positives (%)")

    title = "What is positive of what is promised"
    return plot(title, f"{title}: {'; '.join(texts)}.", paint, height=3.1)


def _interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's interval of 95 % for a share that was seen in so many."""
    z = 1.96
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    half /= 1 + z * z / count
    return min(middle - half, share), max(middle + half, share)


def _counts_plot(bins: Sequence[tuple[int, int, float]]) -> Markup:
    counts = [entries for entries, _, _ in bins]
    width = 100 / len(bins)

    def paint(axes: "Axes") -> None:
        axes.bar(width * (np.arange(len(bins)) + 0.5), counts, width * 0.86, color=BLUE)
        axes.set_yscale("log", nonpositive="clip")
        for place, count in enumerate(counts):
            if count:
                middle = width * (place + 0.5)
                axes.text(middle, count, _short(count), ha="center", va="bottom", fontsize=7)
        axes.grid(axis="x", visible=False)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set(xlabel="probability (%)", ylabel="known entries", xlim=(0, 100))
        axes.set_ylim(0.7, 2.2 * max(counts))

    listed = ", ".join(f"{count:,}" for count in counts)
    text = f"Known entries in {len(bins)} equal steps of probability from 0 to 100 %: {listed}."
    return plot("How many known entries have such a probability", text, paint, height=3.1)


def _short(count: int) -> str:
    """1234567 as `1.2M`."""
    for size, letter in ((10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.{0 if count >= 10 * size else 1}f}{letter}"
    return str(count)
