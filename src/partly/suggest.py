"""Which labels to ask a person about next, and which known ones look wrong.

What enters: a model's probabilities and the labels as they are known. What leaves: `Question`s,
each about one cell (image, label), in the order to ask them.

An answer is worth what it adds to what is known of its label. The model's doubt about a cell, the
entropy of its probability p, says how much there is to learn from it; the more of that a label has
already, in known positives and in questions that are asked before this one, the less another answer
adds. That is what decides between labels: it fills each of them up to the same level.

Whoever looks at an image may as well answer several questions about it. Opening one costs as much
as `opening` answers, and images are chosen by what all their answers add over what all of it costs.

Letters: N images, L labels, Q candidates: the unknown cells that may be asked about.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from partly.errors import ConfigError, DataError, raise_if
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN, LabelTable

# [N, L], or a function that says them of some rows: then they never exist all at once.
Probabilities = np.ndarray | Callable[[np.ndarray], np.ndarray]

ROWS = 4096  # that are looked at together, unless they have
CELLS = 2**24  # of them
OPENING = 1.0  # what it costs to open an image, in answers
IMAGINED = (
    5.0  # known positives that every label begins with: even without any, the first adds so much
)
SPARE = 50  # candidates that are kept for each question that may be asked
SURE = 1e-6  # no probability is closer to 0 or 1


class Question(NamedTuple):
    """One cell to ask about.

    row, column: of the table. probability: the model's. known: -1 for an unknown cell, 1 or 0 for a
    known one that looks wrong. gain: what the answer is worth, beside other questions' answers.
    """

    row: int
    column: int
    probability: float
    known: int
    gain: float


class Cells(NamedTuple):
    """Some cells [Q] of a table: where, how likely, and what they are worth."""

    rows: np.ndarray
    columns: np.ndarray
    probabilities: np.ndarray
    values: np.ndarray  # what is known of them
    worth: np.ndarray

    def take(self, chosen: np.ndarray) -> "Cells":
        return Cells(*(part[chosen] for part in self))

    def best(self, count: int) -> "Cells":
        """Of the known yes, the known no and the unknown cells those that are worth most, at most
        `count` of each."""
        kinds = (np.flatnonzero(self.values == kind) for kind in (POSITIVE, NEGATIVE, UNKNOWN))
        kept = [kind[np.argsort(-self.worth[kind], kind="stable")[:count]] for kind in kinds]
        return self.take(np.concatenate(kept))

    def questions(self) -> list[Question]:
        columns = (part.tolist() for part in self)
        return [Question(*cell) for cell in zip(*columns, strict=True)]


def questions(
    probabilities: Probabilities,
    labels: LabelTable | np.ndarray,
    *,
    budget: int,
    opening: float = OPENING,
    leave_out: np.ndarray | None = None,
) -> list[Question]:
    """The unknown cells to ask about next, at most `budget`: the best images first, the questions
    of one image together.

    labels: a table, or [N, L] of 1, 0 and -1. opening: what it costs to open an image, in answers;
    0 chooses each cell for itself. leave_out: cells row·L + column that are not asked about.
    """
    table = _checked(probabilities, labels, budget)
    if opening < 0:
        raise ConfigError(f"opening an image costs 0 or more answers, not {opening:g}")
    level = table.counts_by_label().positive + IMAGINED
    found = _best_cells(
        probabilities,
        table,
        budget * SPARE,
        lambda p, known: np.where(known == UNKNOWN, doubt(p) / level, 0.0),
        leave_out,
    )
    found = found._replace(worth=doubt(found.probabilities) * prices(found, level, budget))
    return _by_image(found, budget, opening).questions()


def suspects(
    probabilities: Probabilities,
    labels: LabelTable | np.ndarray,
    *,
    budget: int,
    leave_out: np.ndarray | None = None,
) -> list[Question]:
    """The known cells that look wrong, at most `budget`: the worst yes and the worst no in turn.

    A model finds many a true yes improbable: in one list they would hide every wrong no.
    gain: minus the logarithm of the probability that the model gives to what is known.
    """
    table = _checked(probabilities, labels, budget)
    found = _best_cells(probabilities, table, budget, surprise, leave_out)
    found = found.take(found.worth > -np.log(0.5))  # what the model would decide otherwise
    found = found.take(np.lexsort((found.columns, found.rows, -found.worth)))
    turns = np.zeros(len(found.rows), dtype=np.int64)
    for kind in (POSITIVE, NEGATIVE):
        turns[found.values == kind] = np.arange((found.values == kind).sum())
    return found.take(np.argsort(turns, kind="stable")[:budget]).questions()


def doubt(p: np.ndarray) -> np.ndarray:
    """Entropy of a yes or no that is yes with probability p."""
    p = np.clip(p, SURE, 1 - SURE)
    return -p * np.log(p) - (1 - p) * np.log(1 - p)


def surprise(p: np.ndarray, known: np.ndarray) -> np.ndarray:
    """-log of the probability of what is known; 0 where nothing is."""
    p = np.clip(np.where(known == POSITIVE, p, 1 - p), SURE, 1.0)
    return np.where(known == UNKNOWN, 0.0, -np.log(p))


def prices(found: Cells, level: np.ndarray, budget: int) -> np.ndarray:
    """What a unit of doubt is worth in each candidate's label [Q], once `budget` cells are asked.

    level [L]: what is known of the labels. Cells are asked in the order of doubt/(level + the doubt
    of those of its label that were asked before).
    """
    amount = doubt(found.probabilities)
    order = np.lexsort((-amount, found.columns))
    columns, amount = found.columns[order], amount[order]
    before = np.cumsum(amount) - amount
    starts = np.searchsorted(columns, np.arange(len(level)))
    before -= before[np.minimum(starts, len(before) - 1)][columns] if len(before) else 0
    value = amount / (level[columns] + before)
    asked = np.argsort(-value, kind="stable")[:budget]
    filled = level + np.bincount(columns[asked], weights=amount[asked], minlength=len(level))
    return 1 / filled[found.columns]


def _by_image(found: Cells, budget: int, opening: float) -> Cells:
    """The images with the most worth an answer's cost, with so many of their cells as pay off.

    An image's best k cells are worth a sum at the cost `opening` + k. The least worth per cost that
    an image, and each cell of an opened one, must have is lowered until `budget` cells are found.
    """
    found = found.take(np.lexsort((found.columns, -found.worth, found.rows)))
    low, high = 0.0, float(found.worth.max(initial=0.0))
    for _ in range(50):
        rate = (low + high) / 2
        low, high = (low, rate) if _pays(found, rate, opening).sum() < budget else (rate, high)
    chosen = found.take(_pays(found, low, opening))
    images, inverse = np.unique(chosen.rows, return_inverse=True)
    cells = np.bincount(inverse, minlength=len(images))
    total = np.bincount(inverse, weights=chosen.worth, minlength=len(images))
    order = np.lexsort(
        (chosen.columns, -chosen.worth, inverse, -(total / (opening + cells))[inverse])
    )
    return chosen.take(order[:budget])


def _pays(found: Cells, rate: float, opening: float) -> np.ndarray:
    """Which cells [Q] are asked if an answer costs `rate`, and to open an image `opening` of it."""
    surplus = np.maximum(found.worth - rate, 0.0)
    by_row = np.bincount(found.rows, weights=surplus) if len(found.rows) else np.zeros(0)
    return (surplus > 0) & (by_row[found.rows] >= rate * opening)


def _best_cells(
    probabilities: Probabilities,
    table: LabelTable,
    count: int,
    worth: Callable[[np.ndarray, np.ndarray], np.ndarray],
    leave_out: np.ndarray | None,
) -> Cells:
    """The `count` cells of each kind that are worth most, of those worth anything, in memory for
    a few times as many."""
    kept: list[Cells] = []
    labels = len(table.names)
    left_out = np.zeros(0, np.int64) if leave_out is None else np.sort(leave_out)
    for rows in _blocks(len(table), max(1, min(ROWS, CELLS // labels))):
        p, known = _of_rows(probabilities, rows), table.dense(rows)
        value = worth(p, known)
        ends = np.searchsorted(left_out, [rows[0] * labels, (rows[-1] + 1) * labels])
        value.reshape(-1)[left_out[slice(*ends)] - rows[0] * labels] = 0
        lines, columns = np.nonzero(value > 0)
        kept.append(
            Cells(
                rows[lines],
                columns,
                p[lines, columns].astype(np.float64),
                known[lines, columns],
                value[lines, columns],
            ).best(count)
        )
        if sum(len(cells.rows) for cells in kept) > 4 * count:
            kept = [_joined(kept).best(count)]
    return _joined(kept).best(count)


def _joined(parts: list[Cells]) -> Cells:
    return Cells(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _blocks(count: int, size: int) -> Iterator[np.ndarray]:
    for first in range(0, count, size):
        yield np.arange(first, min(first + size, count))


def _of_rows(probabilities: Probabilities, rows: np.ndarray) -> np.ndarray:
    found = probabilities(rows) if callable(probabilities) else probabilities[rows]
    if not np.isfinite(found).all():
        raise DataError(f"probabilities of rows {rows[0]} to {rows[-1]} are not finite")
    return found


def _checked(
    probabilities: Probabilities, labels: LabelTable | np.ndarray, budget: int
) -> LabelTable:
    table = labels if isinstance(labels, LabelTable) else LabelTable.from_dense(labels)
    wanted = (len(table), len(table.names))
    problems = [f"a budget is 1 answer or more, not {budget}"] if budget < 1 else []
    if not callable(probabilities) and probabilities.shape != wanted:
        problems.append(
            f"probabilities of shape {probabilities.shape} for labels of shape {wanted}"
        )
    raise_if(problems, ConfigError)
    return table
