"""What a model does well and badly on images it has not seen.

What enters: probabilities [N, L] and the table of these images. What leaves: a small record for
JSON, with all that the page of a run draws of them: precision-recall curves, calibration, what the
thresholds decide, the most confident mistakes. Letters: N images, L labels.

Only known labels count. However many images and labels there are, the record stays small but for a
few numbers a label.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from partly import images, metrics
from partly.labels import NEGATIVE, POSITIVE, LabelTable
from partly.pages import data_address
from partly.runs import HALF

POINTS = 101  # of a curve
ENOUGH = 10  # known positives of a label whose curve is worth a look
MISTAKES = 12  # of each kind
OF_ONE_LABEL = 3  # of them: a label that is often wrong must not hide the others
ALSO = 4  # other labels that are named beside a mistake
THUMBNAIL = 200  # pixels, the longer side

Record = dict[str, Any]


def diagnose(
    probabilities: np.ndarray,
    table: LabelTable,
    precisions: Sequence[float | None],
    *,
    thresholds: np.ndarray | None = None,
) -> Record:
    """The whole record. precisions [L]: AP of each label. thresholds [L]: without them, 0.5."""
    labels = table.dense()
    limits = np.full(labels.shape[1], HALF) if thresholds is None else thresholds
    counts = metrics.decided(probabilities, labels, limits)
    return {
        "known_positives": int(counts.positives.sum()),
        "known_negatives": int(counts.negatives.sum()),
        "curves": _curves(probabilities, labels, counts, np.array(precisions, dtype=float)),
        "reliability": {
            name: values.tolist()
            for name, values in metrics.reliability(probabilities, labels)._asdict().items()
        },
        "tuned": thresholds is not None,
        "decisions": {"threshold": limits.tolist(), **_decisions(counts)},
        "false_positives": int((counts.predicted - counts.hits).sum()),
        "false_negatives": int((counts.positives - counts.hits).sum()),
        "mistakes": {
            kind: [_described(*found, probabilities, table) for found in mistakes]
            for kind, mistakes in confident_mistakes(probabilities, labels, limits).items()
        },
    }


def precision_recall(
    probabilities: np.ndarray, labels: np.ndarray, points: int = POINTS
) -> dict[str, list[float]]:
    """Precision and recall over the known entries of [N, L], at thresholds between which recall
    rises by equal steps; each point is exact. Empty lists where no positive is known.

    >>> found = precision_recall(np.array([[0.9], [0.8], [0.7]]), np.array([[1], [0], [1]]))
    >>> found["precision"][0], found["recall"]
    (1.0, [0.5, 1.0])
    """
    positives = np.sort(probabilities[labels == POSITIVE])
    places = np.linspace(len(positives) - 1, 0, min(points, len(positives))).round().astype(int)
    cuts = np.unique(positives[places])  # ascending
    seen = np.zeros(len(cuts) + 1, np.int64)
    for rows in metrics.row_blocks(labels):
        known = probabilities[rows][labels[rows] >= 0]
        # By how many cuts each entry lies at or above.
        seen += np.bincount(np.searchsorted(cuts, known, side="right"), minlength=len(seen))
    called = np.cumsum(seen[::-1])[:-1]  # at or above each cut, the highest first
    hits = len(positives) - np.searchsorted(positives, cuts[::-1], side="left")
    return {
        "threshold": cuts[::-1].tolist(),
        "precision": (hits / np.maximum(called, 1)).tolist(),
        "recall": (hits / max(len(positives), 1)).tolist(),
    }


def _curves(
    probabilities: np.ndarray, labels: np.ndarray, counts: metrics.Decided, precisions: np.ndarray
) -> list[Record]:
    """All labels together, then the best, the median and the worst; none where no negative is
    known, for then every precision is 1."""
    if not counts.positives.any() or not counts.negatives.any():
        return []
    curves: list[Record] = [{"name": "all labels", **precision_recall(probabilities, labels)}]
    for rank, label in _typical(counts, precisions).items():
        column = slice(label, label + 1)
        found = precision_recall(probabilities[:, column], labels[:, column])
        curves.append({"name": rank, "label": label, "AP": float(precisions[label]), **found})
    return curves


def _typical(counts: metrics.Decided, precisions: np.ndarray) -> dict[str, int]:
    """The labels with the best, the median and the worst AP, of those that can be judged well if
    these are three or more."""
    able = np.isfinite(precisions) & (counts.negatives > 0)
    well = able & (counts.positives >= ENOUGH)
    chosen = np.flatnonzero(well if well.sum() >= 3 else able)
    order = chosen[np.argsort(-precisions[chosen], kind="stable")]
    if len(order) < 3:
        return {}
    return {"best": int(order[0]), "median": int(order[len(order) // 2]), "worst": int(order[-1])}


def _decisions(counts: metrics.Decided) -> dict[str, list[float | None]]:
    """Precision, recall and F1 of each label; None where the known labels do not tell."""
    both = (counts.positives > 0) & (counts.negatives > 0)

    def share(above: np.ndarray, below: np.ndarray, where: np.ndarray) -> list[float | None]:
        told = where & (below > 0)
        return [float(a / b) if t else None for a, b, t in zip(above, below, told, strict=True)]

    return {
        "precision": share(counts.hits, counts.predicted, both),
        "recall": share(counts.hits, counts.positives, counts.positives > 0),
        "F1": share(2 * counts.hits, counts.predicted + counts.positives, both),
        "predicted": counts.given.tolist(),
        "positives": counts.positives.tolist(),
    }


# --- mistakes ------------------------------------------------------------------------------------

Mistake = tuple[int, int]  # the row and the column of an entry


def confident_mistakes(
    probabilities: np.ndarray, labels: np.ndarray, thresholds: np.ndarray
) -> dict[str, list[Mistake]]:
    """Known negatives that are called positive with the highest probability, and known positives
    that are missed with the lowest; a few a label, so that one label does not hide the others."""
    found: dict[str, list[tuple[float, int, int]]] = {"false_positives": [], "false_negatives": []}
    for column, scores, answers in _columns(probabilities, labels):
        called = scores >= thresholds[column : column + 1]  # a lone number would be rounded
        for kind, wrong, sign in (
            ("false_positives", called & (answers == NEGATIVE), -1),
            ("false_negatives", ~called & (answers == POSITIVE), 1),
        ):
            rows = np.flatnonzero(wrong)
            worst = rows[np.argsort(sign * scores[rows], kind="stable")[:OF_ONE_LABEL]]
            found[kind] += [(sign * float(scores[row]), int(row), column) for row in worst]
    return {
        kind: [(row, column) for _, row, column in sorted(wrong)[:MISTAKES]]
        for kind, wrong in found.items()
    }


def _columns(
    probabilities: np.ndarray, labels: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Each label with its column of both, copied a block of labels at a time."""
    width = metrics.width_of_block(len(labels))
    for first in range(0, labels.shape[1], width):
        block = slice(first, min(first + width, labels.shape[1]))
        scores = metrics.columns_of(probabilities, block, metrics.kind_to_sort(probabilities))
        answers = metrics.columns_of(labels, block, np.int8)
        yield from zip(range(first, block.stop), scores, answers, strict=True)


def _described(row: int, column: int, probabilities: np.ndarray, table: LabelTable) -> Record:
    """What the page says of a mistake."""
    entries = slice(table.indptr[row], table.indptr[row + 1])
    known = table.indices[entries][table.values[entries] == POSITIVE]
    others = known[known != column]
    return {
        "id": table.ids[row],
        "label": column,
        "probability": float(probabilities[row, column]),
        "also": others[:ALSO].tolist(),
        "more": max(len(others) - ALSO, 0),
        "picture": _thumbnail(table, row),
    }


def _thumbnail(table: LabelTable, row: int) -> str | None:
    """A small picture of an image; None where there are features or it cannot be decoded."""
    if table.paths is None or table.features is not None:
        return None
    try:
        return data_address(images.load(table.paths[row], THUMBNAIL), THUMBNAIL)
    except images.ImageProblem:
        return None
