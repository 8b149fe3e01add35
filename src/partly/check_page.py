"""The page of a data check: one HTML file with everything in it.

What enters: the findings of `checking.check` and the table they are about. What leaves: a page with
its plots and small pictures inside.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from partly import checkpoint, images
from partly.checking import Findings
from partly.labels import POSITIVE, LabelTable
from partly.pages import data_address, render
from partly.plots import BLUE, LINE, ORANGE, plot, rows_plot, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS = 15  # labels in a plot
EXAMPLES = 12  # labels at each end of the frequencies that are shown with pictures
STRIP = 4  # pictures in a row
GROUPS = 12  # of duplicates shown
ROWS = 2_000  # of the table of labels at each end of the frequencies: a browser shows no million
THUMBNAIL = 96  # pixels

Picture = dict[str, str]


def write(findings: Findings, table: LabelTable, path: Path) -> Path:
    """Write the page; `findings["data"]`, where there is one, is its title."""
    path = Path(path)
    labels = sorted(findings["label_counts"], key=lambda label: -label["positive"])
    gallery = Gallery(table)
    page = render(
        "check.html",
        title=findings.get("data") or "Data set",
        found=findings,
        labels=labels if len(labels) <= 2 * ROWS else labels[:ROWS] + labels[-ROWS:],
        left_out=max(0, len(labels) - 2 * ROWS),
        plots=[_tail_plot(labels), _per_image_plot(findings["per_image"]), *_bar_plots(labels)],
        heat=_heat(findings["co_occurrence"]),
        examples=list(gallery.of_labels(labels)),
        kinds=list(gallery.of_kinds(findings["image_kinds"])),
        salvaged=gallery.show([bad["row"] for bad in findings["bad_images"]["listed"][:40]]),
        duplicates=[
            pictures
            for rows in findings["duplicates"]["rows"][:GROUPS]
            if (pictures := gallery.show(rows[:STRIP]))
        ],
    )
    checkpoint.make_folder(path.parent)
    checkpoint.write_text(path, page)
    return path


class Gallery:
    """Small pictures of a table's images; none where it has features."""

    def __init__(self, table: LabelTable) -> None:
        self.table = table
        self.paths = table.paths if table.features is None else None

    def show(self, rows: list[int], limit: int = 2 * STRIP) -> list[Picture]:
        """The first of these images that can be decoded."""
        found: list[Picture] = []
        for row in rows if self.paths is not None else ():
            assert self.paths is not None
            try:
                picture = images.load(self.paths[row], THUMBNAIL)
            except images.ImageProblem:
                continue
            found.append({"name": self.table.ids[row], "address": data_address(picture, THUMBNAIL)})
            if len(found) == limit:
                break
        return found

    def of_labels(self, labels: list[Findings]) -> Iterator[dict[str, Any]]:
        """Examples of the most frequent and the rarest labels."""
        if self.paths is None:
            return
        some = [label for label in labels if label["positive"]]
        shown = some if len(some) <= 2 * EXAMPLES else some[:EXAMPLES] + some[-EXAMPLES:]
        entries = np.flatnonzero(self.table.values == POSITIVE)
        columns = self.table.indices[entries]
        for label in shown:
            own = entries[columns == self.table.names.index(label["name"])]
            spread = np.linspace(0, len(own) - 1, min(len(own), 3 * STRIP)).astype(np.int64)
            # The first few of them all over the table; the others stand in for bad ones.
            chosen = own[np.concatenate([spread[::3], spread[1::3], spread[2::3]])]
            rows = np.searchsorted(self.table.indptr, chosen, side="right") - 1
            pictures = self.show(rows.tolist(), STRIP)
            if pictures:
                yield {"name": label["name"], "count": label["positive"], "pictures": pictures}

    def of_kinds(self, kinds: Findings) -> Iterator[dict[str, Any]]:
        """Examples of every unusual kind."""
        for name, kind in kinds.items():
            pictures = self.show(kind["rows"], STRIP)
            if pictures:
                yield {"name": name, "count": kind["count"], "pictures": pictures}


def _heat(together: Findings) -> list[dict[str, Any]]:
    """Rows of the heat map: of a label's images, the share with another label, in percent."""
    names, counts = together["labels"], together["together"]
    if len(names) < 2:
        return []
    return [
        {
            "name": name,
            "cells": [
                {
                    "name": other,
                    "own": row == column,
                    "together": counts[row][column],
                    "tone": round(100 * (counts[row][column] / max(counts[row][row], 1)) ** 0.5),
                    "share": round(100 * counts[row][column] / max(counts[row][row], 1)),
                }
                for column, other in enumerate(names)
            ],
        }
        for row, name in enumerate(names)
    ]


def _tail_plot(labels: list[Findings]) -> Markup:
    positives = np.array([label["positive"] for label in labels])
    text = (
        f"{len(labels):,} labels, the most frequent first: from {positives[0]:,} known positives "
        f"down to {positives[-1]:,}."
    )

    def paint(axes: "Axes") -> None:
        # Where the number changes: of a million labels most have as many as their neighbours.
        begins = np.flatnonzero(np.diff(positives, prepend=-1))
        edges, heights = [*begins + 0.5, len(positives) + 0.5], positives[[*begins, -1]]
        axes.fill_between(edges, heights, step="post", color=BLUE, linewidth=0, alpha=0.75)
        if positives[0] > 20 * max(positives[-1], 1):
            axes.set_yscale("symlog", linthresh=1)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set(xlabel="rank of the label", ylim=(0, None), xlim=(0.5, len(positives) + 0.5))

    return plot("Known positives of each label", text, paint)


def _per_image_plot(per_image: Findings) -> Markup:
    from matplotlib.ticker import MaxNLocator

    counts = np.array(per_image["positives"])
    limit = 40  # bars; the last one stands for the rest
    shown = np.append(counts[:limit], counts[limit:].sum()) if len(counts) > limit + 1 else counts
    more = len(shown) < len(counts)
    text = (
        f"{counts[0]:,} training images have no known positive; on average an image has "
        f"{per_image['mean_positives']:.2f}, at most {len(counts) - 1:,}."
    )

    def paint(axes: "Axes") -> None:
        axes.bar(range(len(shown)), shown, color=BLUE, width=0.85)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.grid(axis="x", visible=False)
        last = f" (the last bar: {limit} and more)" if more else ""
        axes.set(xlabel=f"known positives of an image{last}", ylabel="images")

    return plot("Known positives an image", text, paint)


def _bar_plots(labels: list[Findings]) -> Iterator[Markup]:
    """What is known of the labels at both ends."""
    if len(labels) <= BARS:
        yield _bars(labels, "labels")
        return
    yield _bars(labels[:BARS], "most frequent labels")
    yield _bars(labels[max(BARS, len(labels) - BARS) :], "rarest labels")


def _bars(labels: list[Findings], what: str) -> Markup:
    """Positive, negative and unknown shares of each label."""
    shown = labels[::-1]  # plots count from the bottom
    shares = {
        kind: np.array([100 * label[kind] / _images(label) for label in shown])
        for kind in ("positive", "negative", "unknown")
    }
    names = [shortened(label["name"]) for label in shown]
    top = shown[-1]
    text = (
        f"The {len(shown)} {what}; '{top['name']}' is positive in "
        f"{shares['positive'][-1]:.1f} %, negative in {shares['negative'][-1]:.1f} % and "
        f"unknown in {shares['unknown'][-1]:.1f} % of the images."
    )
    colours = {"positive": BLUE, "negative": ORANGE, "unknown": LINE}

    def paint(axes: "Axes", height: int, name: str) -> None:
        left = 0.0
        for kind, colour in colours.items():
            share, text = shares[kind][height], kind if height == 0 else None
            axes.barh(height, share, left=left, color=colour, height=0.72, label=text)
            left += share
        if height == 0:
            axes.set_xlim(0, 100)
            axes.set_xlabel("% of the images")
            axes.figure.legend(loc="outside lower center", ncols=3)

    return rows_plot(f"What is known of the {what}", text, names, paint)


def _images(label: Findings) -> int:
    return int(label["positive"] + label["negative"] + label["unknown"])
