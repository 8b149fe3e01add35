"""Reports: one HTML file that needs nothing else, neither a network nor further files.

What enters: a run's folder (`runs.py`) or the results of a comparison (`experiments.py`).
What leaves: a page with its style, plots (SVG) and pictures inside, for light and dark, a phone and
paper. The same input gives the same bytes.
"""

import base64
import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from partly import checkpoint, runs
from partly.errors import RunError, first_few
from partly.experiments import Results, format_cell, label, ranks, summarise
from partly.metrics import mean_by_frequency

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from PIL.Image import Image

Record = Mapping[str, Any]
Places = Mapping[tuple[str, str], int]

# Okabe and Ito's palette, which colour-blind readers can tell apart. On the page each colour is a
# variable (base.html), so that it can be lighter in the dark.
PALETTE = {"ink": "#1f2a37", "muted": "#66727f", "line": "#d5dbe1"}
PALETTE |= {"blue": "#0072b2", "orange": "#d55e00", "green": "#009e73"}
INK, MUTED, LINE, BLUE, ORANGE, GREEN = PALETTE.values()
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and takes the page's font
    "text.parse_math": False,  # a label may be called "$5 or $10"
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
}
GROUPS = {"head": (BLUE, "o"), "middle": (GREEN, "^"), "tail": (ORANGE, "s")}
DETAILS = {
    "AUROC": "AUROC",
    "CF1": "CF1 at 0.5",
    "OF1": "OF1 at 0.5",
    "CF1_at_thresholds": "CF1, tuned",
    "OF1_at_thresholds": "OF1, tuned",
    "calibration_error": "Calibration error",
}
# What a run's page shows in a section of its own, not among the options.
TRAINED_ON = ("data", "setting", "images", "features", "labels", "label_counts", "label_hash")
MOST_ROWS = 2000  # of the table of labels: those with the most known positives
PICTURE_SIZE = 320  # pixels, the longer side


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
        options=_options(config, without=(*TRAINED_ON, "versions")),
        versions=_options(config["versions"]),
    )
    checkpoint.write_text(folder / runs.REPORT, page)
    return folder / runs.REPORT


def comparison_report(results: Results, path: Path, *, pictures: "Sequence[Image]" = ()) -> Path:
    """Write the page of a comparison; `pictures` are shown as examples of the data."""
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
        pictures=[data_address(picture) for picture in pictures],
        options=_options(results["config"], without=("method", "seed")),
        versions=_options(results["versions"]),
    )
    checkpoint.write_text(path, page)
    return path


# --- the page ------------------------------------------------------------------------------------


def render(template: str, **content: Any) -> str:
    """A page of `templates/`, filled in; what stands in `content` can never become markup."""
    templates = PackageLoader("partly")
    page = Environment(loader=templates, autoescape=True, undefined=StrictUndefined)
    page.trim_blocks = page.lstrip_blocks = True
    page.filters |= {"points": points, "setting": label, "cell": format_cell, "few": first_few}
    return page.get_template(template).render(content)


def points(share: float | None) -> str:
    """0.587 as `58.7`; a dash for what could not be computed."""
    return "–" if share is None or math.isnan(share) else f"{100 * share:.1f}"


def _numbers(records: Sequence[Record], key: str) -> np.ndarray:
    return np.array([record.get(key) for record in records], dtype=float)  # None becomes nan


def _read_if_there(path: Path) -> dict[str, Any]:
    return checkpoint.read_json(path) if path.is_file() else {}


def _options(options: Record, without: Sequence[str] = ()) -> list[tuple[str, str]]:
    return [
        (name.replace("_", " "), _in_words(value))
        for name, value in options.items()
        if name not in without
    ]


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_in_words(item)}" for name, item in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not set" if value is None else str(value)


def data_address(picture: "Image", size: int = PICTURE_SIZE) -> str:
    """An address that is the whole picture, at most `size` pixels long."""
    small, file = picture.convert("RGB"), io.BytesIO()
    small.thumbnail((size, size))
    small.save(file, format="JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def plot(
    title: str, description: str, paint: "Callable[[Axes], object]", height: float = 2.7
) -> Markup:
    """What `paint` draws, under a title, with a text for those who cannot see it."""
    import matplotlib
    from matplotlib.figure import Figure

    file = io.StringIO()
    # The salt makes the names inside an SVG the same each time, and unlike those of other plots.
    style = STYLE | {"svg.hashsalt": title + description}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the browser has fonts for it
        figure = Figure(figsize=(4.6, height), layout="constrained")
        axes = figure.add_subplot()
        axes.tick_params(length=0)
        paint(axes)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return Markup(
        '<figure><figcaption>{}</figcaption><div role="img" aria-label="{}">{}</div></figure>'
    ).format(title, description, Markup(_for_page(file.getvalue())))


def _for_page(svg: str) -> str:
    """Matplotlib's file as part of a page: no addresses, no name twice, the page's colours."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' xmlns(:\w+)?="[^"]*"', "", opening)
    rest = re.sub(r'<g id="[^"]*"', "<g", rest)
    for name, code in PALETTE.items():
        rest = re.sub(f"(fill|stroke): {code}", rf"\1: var(--{name}, {code})", rest)
    return f"{opening}>{rest}"


# --- a run ---------------------------------------------------------------------------------------


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
    series = {name: scale * _numbers(history, key) for name, key in lines.items()}
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


# --- a comparison --------------------------------------------------------------------------------


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


def rows_plot(title: str, text: str, names: Sequence[str], paint: Callable[..., None]) -> Markup:
    """A plot with a row a method; `paint` gets the axes and, row by row, its height and name."""

    def paint_rows(axes: "Axes") -> None:
        for height, name in enumerate(names):
            paint(axes, height, name)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.locator_params(axis="x", nbins=7)

    return plot(title, text, paint_rows, height=0.9 + 0.2 * len(names))


def _score_plot(results: Results, setting: str, places: Places) -> Markup | None:
    """mAP of every method: mean, deviation and single seeds."""
    cells = _cells(results, setting)
    if not cells:
        return None
    references = {row["name"] for row in results["methods"] if row["reference"]}
    every = 100 * _numbers(results["runs"], "mAP")
    low, high = np.nanmin(every), np.nanmax(every)
    margin = max(0.05 * (high - low), 0.5)
    text = "; ".join(f"{name} {format_cell(cell)}" for name, cell in reversed(cells.items()))

    def paint(axes: "Axes", height: int, name: str) -> None:
        cell, reference = cells[name], name in references
        best = places.get((name, setting)) == 1
        colour = MUTED if reference else ORANGE if best else BLUE
        scores = 100 * _numbers(_runs(results, name, setting), "mAP")
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


def _details(results: Results, methods: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """{setting: {method: {metric: mean over seeds}}} of the other metrics."""
    found = [run["evaluation"] for run in results["runs"] if run["evaluation"] is not None]
    shown = [key for key in DETAILS if any(evaluation.get(key) is not None for evaluation in found)]
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for setting, method in product(results["settings"], methods):
        own = [run["evaluation"] for run in _runs(results, method, setting)]
        if own and shown:
            means = {DETAILS[key]: _mean(_numbers(own, key)) for key in shown}
            rows.setdefault(setting, {})[method] = means
    return rows


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan
