"""Plots: SVG that is part of a page.

What enters: a title, a text for those who cannot see, and a function that paints. What leaves: a
figure in the page's colours, for light, dark and paper. The same input gives the same bytes.
"""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, which colour-blind readers can tell apart. On the page each colour is a
# variable (base.html), so that it can be lighter in the dark.
PALETTE = {"ink": "#1f2a37", "muted": "#66727f", "line": "#d5dbe1"}
PALETTE |= {"blue": "#0072b2", "orange": "#d55e00", "green": "#009e73"}
INK, MUTED, LINE, BLUE, ORANGE, GREEN = PALETTE.values()
LONGEST_NAME = 28  # letters in a plot
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
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
}


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


def shortened(name: str) -> str:
    """A name that leaves a plot its room."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def numbers(records: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """One value of each record; nan where there is none."""
    return np.array([record.get(key) for record in records], dtype=float)


def _for_page(svg: str) -> str:
    """Matplotlib's file as part of a page: no addresses, no name twice, the page's colours."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' xmlns(:\w+)?="[^"]*"', "", opening)
    rest = re.sub(r'<g id="[^"]*"', "<g", rest)
    for name, code in PALETTE.items():
        rest = re.sub(f"(fill|stroke): {code}", rf"\1: var(--{name}, {code})", rest)
    return f"{opening}>{rest}"
