"""The data sets as the paper counts them (its Table II).

What enters: a table just read. What leaves: a sentence that says whether it is the paper's data, so
that nobody compares with the paper's results by mistake.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from partly.labels import NEGATIVE, POSITIVE, LabelTable


class Row(NamedTuple):
    """A line of Table II: images, labels, and known labels of a training image on average."""

    train: int
    test: int
    positives: float
    negatives: float
    labels: int


TABLE_II = {
    "coco": Row(82_081, 40_137, 2.9, 77.1, 80),
    "nuswide": Row(126_034, 84_226, 1.9, 78.1, 80),
    "cub": Row(5_994, 5_794, 31.3, 280.7, 312),
    "openimages": Row(5_655_108, 125_436, 2.4, 2.6, 600),
}


def differences(name: str, table: LabelTable) -> tuple[str, ...]:
    """One sentence: the counts are the paper's, or which of them are not."""
    found = list(_differing(TABLE_II[name], count(table)))
    if not found:
        return ("as in the paper's Table II: images, labels, and known labels per image",)
    listed = ", ".join(f"{paper} {what} (here {here})" for what, paper, here in found)
    return (f"the paper's Table II has {listed}",)


def count(table: LabelTable) -> Row:
    """A table in the terms of Table II; means are rounded as the paper rounds them."""
    splits = np.full(len(table), "train") if table.splits is None else table.splits
    train = splits == "train"
    size = int(train.sum())
    known = table.values[np.repeat(train, np.diff(table.indptr))]  # no copy of ids and paths
    positives, negatives = (
        round(int((known == value).sum()) / max(size, 1), 1) for value in (POSITIVE, NEGATIVE)
    )
    return Row(size, int((splits == "test").sum()), positives, negatives, len(table.names))


def _differing(paper: Row, here: Row) -> Iterator[tuple[str, str, str]]:
    """(what, the paper's number, the number here) where they are not the same."""
    words = {
        "train": "training images",
        "test": "test images",
        "labels": "labels",
        "positives": "positives per training image",
        "negatives": "negatives per training image",
    }
    for field, what in words.items():
        theirs, ours = getattr(paper, field), getattr(here, field)
        if theirs != ours:
            yield what, f"{theirs:,}", f"{ours:,}"
