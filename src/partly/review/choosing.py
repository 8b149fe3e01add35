"""Which cells to show next.

What enters: probabilities, what the data says, the answers so far. What leaves: questions, an
image's together; known cells that look wrong; a label's images from one end to the other.

Letters: N images, L labels.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from partly.labels import NEGATIVE, POSITIVE, UNKNOWN, LabelTable
from partly.review.ledger import Ledger
from partly.suggest import Question, questions, suspects

Kind = Literal["questions", "suspects"]
Order = Literal["likely", "unlikely", "unsure"]
Shown = Literal["open", "yes", "no", "all"]
TILES = 48  # of a gallery that are sent at once


@dataclass
class Subject:
    """What is looked at. data: what the data itself says [N, L]; budget: questions at a time."""

    name: str
    table: LabelTable
    probabilities: np.ndarray
    data: np.ndarray
    ledger: Ledger
    budget: int = 500
    queues: dict[tuple[Kind, int | None], list[Question]] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.table.names

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of each image."""
        return {image: row for row, image in enumerate(self.table.ids)}

    def cell(self, row: int, column: int) -> tuple[str, str]:
        return self.table.ids[row], self.labels[column]


def queue(subject: Subject, kind: Kind, column: int | None = None) -> list[Question]:
    """The questions of a kind, about one label or all of them.

    They stay the same until all are answered, so that whoever comes back finds his place; then new
    ones are chosen, with what was answered taken in.
    """
    with subject.lock:
        asked = subject.queues.get((kind, column), [])
        answered = subject.ledger.answered()
        if all(subject.cell(one.row, one.column) in answered for one in asked):
            asked = _choose(subject, kind, column)
            subject.queues[kind, column] = asked
        return asked


def _choose(subject: Subject, kind: Kind, column: int | None) -> list[Question]:
    columns = np.arange(len(subject.labels)) if column is None else np.array([column])
    known, answered = _known(subject, columns)
    choose = suspects if kind == "suspects" else questions
    cells = np.flatnonzero(answered)  # what a person has looked at is not asked again
    chosen = choose(
        subject.probabilities[:, columns], known, budget=subject.budget, leave_out=cells
    )
    return _by_image([one._replace(column=int(columns[one.column])) for one in chosen])


def _known(subject: Subject, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the data and people say [N, columns], and which cells people have answered."""
    known = subject.data[:, columns].copy()
    answered = np.zeros(known.shape, dtype=bool)
    for row, column, value in _answers(subject, columns):
        known[row, column], answered[row, column] = value, True
    return known, answered


def _answers(subject: Subject, columns: np.ndarray) -> list[tuple[int, int, int]]:
    """Row, place among `columns` and value of every answered cell."""
    place_of = {subject.labels[column]: place for place, column in enumerate(columns.tolist())}
    rows = subject.rows
    return [
        (rows[image], place_of[label], int(answer.value))
        for (image, label), answer in subject.ledger.answered().items()
        if label in place_of and answer.value is not None
    ]


def _by_image(chosen: Sequence[Question]) -> list[Question]:
    """Those of one image together, in the order in which the images come up."""
    images: dict[int, list[Question]] = {}
    for one in chosen:
        images.setdefault(one.row, []).append(one)
    return [one for image in images.values() for one in image]


def gallery(
    subject: Subject, column: int, *, order: Order, show: Shown, after: int | None = None
) -> tuple[list[int], int]:
    """The next rows of a label's images behind the row `after`, and how many are left then.

    The order does not change as answers come in: no image is passed over or shown twice.
    """
    scores = subject.probabilities[:, column]
    rank = {"likely": -scores, "unlikely": scores, "unsure": np.abs(scores - 0.5)}[order]
    ranked = np.argsort(rank, kind="stable")
    if after is not None:
        ranked = ranked[np.flatnonzero(ranked == after)[0] + 1 :]
    shown = ranked[_shown(subject, column, show)[ranked]]
    return shown[:TILES].tolist(), max(0, len(shown) - TILES)


def _shown(subject: Subject, column: int, show: Shown) -> np.ndarray:
    """Which rows a gallery shows [N]. Open is what neither the data nor a person has said."""
    known, answered = (part[:, 0] for part in _known(subject, np.array([column])))
    if show == "open":
        return (known == UNKNOWN) & ~answered
    if show == "all":
        return np.ones(len(known), dtype=bool)
    return known == (POSITIVE if show == "yes" else NEGATIVE)
