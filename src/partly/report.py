"""The page of a run.

What enters: a run's folder (`runs.py`), from which whatever it holds by now is shown. What leaves:
its `report.html`. The same files give the same bytes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from partly import checkpoint, runs
from partly.errors import RunError
from partly.pages import options, render
from partly.plots import BLUE, MUTED, ORANGE, numbers, plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = Mapping[str, Any]

# What a run's page shows in a section of its own, not among the options.
TRAINED_ON = ("data", "setting", "images", "features", "labels", "label_counts", "label_hash")
MOST_ROWS = 2000  # of the table of labels: those with the most known positives


def run_report(folder: Path) -> Path:
    """Write `report.html` into a run's folder, from whatever the folder holds by now."""
    folder = Path(folder)
    if not (folder / runs.CONFIG).is_file():
        raise RunError(f"{folder} is not a run: it has no {runs.CONFIG}")
    config = checkpoint.read_json(folder / runs.CONFIG)
    evaluation = _read_if_there(folder / runs.EVALUATION)
    result = evaluation.get("metrics", {})
    thresholds = _read_if_there(folder / runs.THRESHOLDS)
    history = runs.read_lines(folder / runs.METRICS)
    audit = [line for line in runs.read_lines(folder / runs.AUDIT) if line["hidden_entries"]]
    kept = _kept_epoch(history)
    page = render(
        "run.html",
        title=folder.resolve().name,
        config=config,
        result=result,
        images=evaluation.get("images"),
        done=len(history),
        kept=kept,
        curves=_learning_curves(history, kept),
        label_plot=_label_plot(config.get("label_counts"), result),
        label_rows=_label_rows(config, result, thresholds),
        audit=audit[-1] if audit else None,
        audit_curves=_audit_curves(audit),
        options=options(config, without=(*TRAINED_ON, "versions")),
        versions=options(config["versions"]),
    )
    checkpoint.write_text(folder / runs.REPORT, page)
    return folder / runs.REPORT


def _read_if_there(path: Path) -> dict[str, Any]:
    return checkpoint.read_json(path) if path.is_file() else {}


def _kept_epoch(history: Sequence[Record]) -> Record | None:
    """The record of the epoch that was kept; without a score to choose by it has no criterion."""
    kept = [line for line in history if line.get("kept")]
    if kept:
        return kept[-1]
    return {**history[-1], "criterion": None} if history else None


def _learning_curves(history: Sequence[Record], kept: Record | None) -> list[Markup]:
    if kept is None:
        return []
    loss = _curves("Training loss", history, {"loss": "loss"}, kept["epoch"], scale=1)
    if not kept["criterion"]:
        return [loss]
    title, lines = f"Validation: {kept['criterion']}", {"score": "validation_score"}
    return [loss, _curves(title, history, lines, kept["epoch"])]


def _audit_curves(audit: Sequence[Record]) -> list[Markup]:
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


def _label_plot(counts: Record | None, result: Record) -> Markup | None:
    """AP of each label against the number of its known positives."""
    from matplotlib.ticker import MaxNLocator

    values = 100 * np.array(result.get("AP", []), dtype=float)
    scored = np.isfinite(values)
    if not counts or not scored.any():
        return None
    positives, values = np.array(counts["positive"])[scored], values[scored]
    text = (
        f"{len(values)} labels with {min(positives):,} to {max(positives):,} known positives; "
        f"their AP runs from {min(values):.1f} to {max(values):.1f}."
    )

    def paint(axes: "Axes") -> None:
        axes.scatter(positives, values, s=26, color=BLUE, alpha=0.65, linewidths=0)
        if max(positives) > 20 * max(min(positives), 1):
            axes.set_xscale("symlog", linthresh=1)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set(xlabel="known positives in training", ylabel="AP", ylim=(0, 102))

    return plot("AP of each label by its known positives", text, paint)


def _label_rows(config: Record, result: Record, thresholds: Record) -> list[dict[str, Any]]:
    """One row a label, of what is known about it; no rows if nothing is."""
    columns = {"AP": result["AP"]} if "AP" in result else {}
    columns |= config.get("label_counts", {})
    if thresholds:
        columns["threshold"] = [thresholds.get(name) for name in config["labels"]]
    if not columns:
        return []
    shown = list(range(len(config["labels"])))
    if len(shown) > MOST_ROWS:  # a page of a million rows opens nowhere
        positive = columns.get("positive", shown)
        shown = sorted(shown, key=lambda place: -positive[place])[:MOST_ROWS]
    return [
        {"name": config["labels"][place]} | {key: column[place] for key, column in columns.items()}
        for place in shown
    ]
