"""The page of a comparison.

What enters: the results of a comparison or an ablation (`experiments.py`). What leaves: one HTML
file with the paper's tables, plots and everything needed to do it again.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, product, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from partly import checkpoint, savings
from partly.errors import first_few
from partly.experiments import Results, caution, format_cell, label, ranks, summarise
from partly.metrics import mean_by_frequency
from partly.pages import options, points, render
from partly.plots import BLUE, GREEN, INK, LINE, MUTED, ORANGE, numbers, plot, rows_plot
from partly.savings import Curve, Savings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = Mapping[str, Any]
Places = Mapping[tuple[str, str], int]
Looks = Mapping[str, tuple[str, str]]

GROUPS = {"head": (BLUE, "o"), "middle": (GREEN, "^"), "tail": (ORANGE, "s")}
# Lines of methods, the best first: told apart by colour and by dash and mark.
LOOKS = ((ORANGE, "o-"), (BLUE, "s-"), (GREEN, "^-"), (INK, "D-"), (BLUE, "v--"), (GREEN, "P--"))
DETAILS = {
    "AUROC": "AUROC",
    "CF1": "CF1 at 0.5",
    "OF1": "OF1 at 0.5",
    "CF1_at_thresholds": "CF1, tuned",
    "OF1_at_thresholds": "OF1, tuned",
    "calibration_error": "Calibration error",
}


def comparison_report(results: Results, path: Path) -> Path:
    """Write the page of a comparison. Addresses of pictures, where the results have some, are shown
    as examples of the data."""
    places, path = ranks(results), Path(path)
    rows = sorted(results["methods"], key=lambda method: not method["reference"])

    def plots(draw: Callable[..., Markup | None]) -> list[Markup]:
        drawn = (draw(results, setting, places) for setting in results["settings"])
        return [plot for plot in drawn if plot is not None]

    page = render(
        "comparison.html",
        title=results["title"],
        results=results,
        rows=rows,
        cells={(cell["method"], cell["setting"]): cell for cell in summarise(results)},
        places=places,
        tiles=_tiles(results, places),
        score_plots=plots(_score_plot),
        frequency_plots=plots(_frequency_plot) if results.get("train_positives") else [],
        details=_details(results, [row["name"] for row in rows]),
        caution=caution(results),
        saved=_saved(savings.savings_of(results)),
        pictures=results.get("pictures", []),
        options=options(results["config"], without=("method", "seed")),
        versions=options(results["versions"]),
    )
    checkpoint.write_text(path, page)
    return path


def _runs(results: Results, method: str, setting: str) -> list[Record]:
    """Runs of one cell of the table that came to an end. A reference stands in every setting."""
    references = {row["name"] for row in results["methods"] if row["reference"]}
    return [
        run
        for run in results["runs"]
        if run["method"] == method
        and run["evaluation"] is not None
        and (method in references or run["setting"] == setting)
    ]


def _tiles(results: Results, places: Places) -> list[tuple[str, str, str]]:
    """(what, who, how good) of each setting: the best methods, or the whole one of an ablation."""
    tiles = []
    for setting in results["settings"]:
        cells = _cells(results, setting)
        whole = results.get("whole")
        names = [whole] if whole else [n for n in cells if places.get((n, setting)) == 1][::-1]
        if names and names[0] in cells:
            what = f"{'Whole' if whole else 'Best'} in {label(setting)}"
            tiles.append((what, first_few(names, 3), format_cell(cells[names[0]])))
    return tiles


def _precisions(results: Results, method: str, setting: str) -> np.ndarray:
    """AP [L] of a method in points, the mean over seeds; nan where a label was not scored."""
    found = [run["AP"] for run in _runs(results, method, setting)]
    return 100 * np.array(found, dtype=float).reshape(-1, len(results["labels"])).mean(axis=0)


def _cells(results: Results, setting: str) -> dict[str, Record]:
    """{method: cell of the table} of a setting, the best last: plots count from the bottom."""
    scored = (cell for cell in summarise(results) if cell["mean"] is not None)
    cells = [cell for cell in scored if cell["setting"] == setting]
    return {cell["method"]: cell for cell in sorted(cells, key=lambda cell: cell["mean"])}


def _score_plot(results: Results, setting: str, places: Places) -> Markup | None:
    """mAP of every method: mean, deviation and single seeds."""
    cells = _cells(results, setting)
    if not cells:
        return None
    references = {row["name"] for row in results["methods"] if row["reference"]}
    every = 100 * numbers(results["runs"], "mAP")
    low, high = np.nanmin(every), np.nanmax(every)
    margin = max(0.05 * (high - low), 0.5)
    text = "; ".join(f"{name} {format_cell(cell)}" for name, cell in reversed(cells.items()))

    def paint(axes: "Axes", height: int, name: str) -> None:
        cell, reference = cells[name], name in references
        best = places.get((name, setting)) == 1
        colour = MUTED if reference else ORANGE if best else BLUE
        scores = 100 * numbers(_runs(results, name, setting), "mAP")
        axes.plot(scores, [height] * len(scores), "o", color=colour, ms=4, mew=0, alpha=0.45)
        middle, deviation = 100 * cell["mean"], 100 * (cell["deviation"] or 0)
        shape = "D" if reference else "o"
        axes.errorbar(middle, height, xerr=deviation, fmt=shape, color=colour, ms=5.5)
        axes.set_xlim(low - margin, high + margin)  # the same in every setting

    return rows_plot(label(setting), f"mAP in {label(setting)}: {text}.", list(cells), paint)


def _frequency_plot(results: Results, setting: str, places: Places) -> Markup | None:
    """What the others gain or lose against the best, or the whole, on frequent and rare labels."""
    cells = _cells(results, setting)
    firsts = [name for name in cells if places.get((name, setting)) == 1]
    best = results.get("whole") or (firsts[-1] if firsts else None)
    names = [name for name in cells if name != best]
    if best is None or not names:
        return None
    level = _precisions(results, best, setting)
    differences = {name: _precisions(results, name, setting) - level for name in names}
    positives = results["train_positives"]
    gains = {name: mean_by_frequency(differences[name], positives) for name in names}
    parts = (f"{n} " + ", ".join(f"{g} {v:+.1f}" for g, v in gains[n].items()) for n in names[::-1])

    def paint(axes: "Axes", height: int, name: str) -> None:
        for group, (colour, marker) in GROUPS.items():
            text = group if height == 0 else None
            axes.plot(gains[name][group], height, marker, color=colour, markersize=5, label=text)
        if height == 0:
            axes.axvline(0, color=MUTED, linewidth=1)
            axes.figure.legend(loc="outside lower center", ncols=3)

    title = f"{label(setting)}: mAP relative to {best}"
    return rows_plot(title, f"{title}: {'; '.join(parts)}.", names, paint)


# --- labels saved --------------------------------------------------------------------------------


def _saved(kinds: Sequence[Savings]) -> list[dict[str, Any]]:
    """What the page says of each kind of setting. A method looks the same in all plots."""
    names = dict.fromkeys(
        curve.method for found in kinds for curve in found.curves if not curve.reference
    )
    # More than have a look of their own are drawn in grey, below the others.
    looks = dict(zip(names, chain(LOOKS, repeat((LINE, "-"))), strict=False))
    return [_saved_of(found, looks) for found in kinds]


def _saved_of(found: Savings, looks: Looks) -> dict[str, Any]:
    """Plot, sentences, and a row a method."""
    by_share = sorted(found.savings, key=lambda saving: (saving.share, saving.other.reference))
    rows: dict[str, dict[str, tuple[str, str]]] = {}
    for saving in found.savings:
        cell = _in_few_words(saving.needed), savings.range_of(saving.by_seed)
        rows.setdefault(saving.other.method, {})[saving.with_labels] = cell
    last = {saving.other.method: saving for saving in found.savings}  # of each, the largest share
    return {
        "kind": found.kind.upper(),
        "what": savings.KINDS[found.kind],
        "best": found.best.method,
        "plot": _share_plot(found, looks),
        "sentences": [savings.sentence(saving, found.best, found.kind) for saving in last.values()],
        "columns": list(dict.fromkeys(saving.with_labels for saving in by_share)),
        "rows": rows,
    }


def _in_few_words(needed: savings.Needed) -> str:
    if needed.share is None:
        return "not reached"
    return f"{'≤ ' if needed.at_most else ''}{savings.percent(needed.share)}"


def _share_plot(found: Savings, looks: Looks) -> Markup:
    """mAP by the share of labels, a line a method; references, which saw all labels, are level."""
    lines = [curve for curve in found.curves if not curve.reference]
    levels = [curve for curve in found.curves if curve.reference]
    texts = [f"{curve.method} {_scores_in_words(curve)}" for curve in found.curves]

    def paint(axes: "Axes") -> None:
        for curve in lines:
            colour, dash = looks[curve.method]
            axes.errorbar(
                100 * np.array(curve.shares),
                100 * np.array(curve.means),
                yerr=100 * np.array(curve.deviations),
                fmt=dash,
                color=colour,
                markersize=4.5,
                linewidth=1.5,
                zorder=1 if colour == LINE else 3,
                label=None if colour == LINE else curve.method,
            )
        for curve, dash in zip(levels, ("--", ":"), strict=False):
            name = f"{curve.method}, full labels"
            axes.axhline(100 * curve.means[0], color=MUTED, linestyle=dash, label=name)
        axes.figure.legend(loc="outside lower left", ncols=2)
        axes.set(xlabel=f"% of the {savings.KINDS[found.kind]} known", ylabel="mAP")

    title = f"{found.kind.upper()}: mAP by the share of {savings.KINDS[found.kind]} that is known"
    return plot(title, f"{title}: {'; '.join(texts)}.", paint, height=3.6)


def _scores_in_words(curve: Curve) -> str:
    if curve.reference:
        return f"{points(curve.means[0])} with full labels"
    pairs = zip(curve.shares, curve.means, strict=True)
    return ", ".join(f"{points(score)} at {savings.percent(share)}" for share, score in pairs)


# --- other metrics -------------------------------------------------------------------------------


def _details(results: Results, methods: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """{setting: {method: {metric: mean over seeds}}} of the other metrics."""
    found = [run["evaluation"] for run in results["runs"] if run["evaluation"] is not None]
    shown = [key for key in DETAILS if any(evaluation.get(key) is not None for evaluation in found)]
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for setting, method in product(results["settings"], methods):
        own = [run["evaluation"] for run in _runs(results, method, setting)]
        if own and shown:
            means = {DETAILS[key]: _mean(numbers(own, key)) for key in shown}
            rows.setdefault(setting, {})[method] = means
    return rows


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan
