"""How many of the positives are known, where nothing else is?

What enters: a table with features, of some of whose labels only positives are known, and a way to
learn from a table. What leaves: a guess of their c₊, the chance that a positive is annotated, or
None where there is too little to learn from. Letters: N images, L labels.

P(annotated | x) = c₊·P(positive | x), which is c₊ where the image leaves no doubt, and less
elsewhere. So a model is asked about images it has not learnt from, how likely their known positives
were to be annotated. Where what it says of the surest tenth begins, c₊ is at least about that.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from partly.labels import LabelTable
from partly.propensity import ASSUMED_SHARE, only_positives
from partly.runs import Predictor

Array = npt.NDArray[np.floating[Any]]
ROWS, LABELS = 20_000, 500  # the most that are looked at
FEW = 100  # known positives, below which it is not tried


def guess_share(table: LabelTable, learn: Callable[[LabelTable], Predictor]) -> float | None:
    """c₊ of `table`, which has features; of the most frequent labels, and the same for all."""
    annotated = frequent_labels(table, LABELS)
    halves = np.array_split(np.arange(len(table)), 2)
    if min(int(annotated[half].sum()) for half in halves) < FEW / 2:
        return None
    parts = [
        LabelTable.from_dense(annotated[half], features=_features(table)[half]) for half in halves
    ]
    chances = np.concatenate(
        [learn(parts[1]).probabilities(parts[0]), learn(parts[0]).probabilities(parts[1])]
    )
    return share_of_sure(chances[annotated == 1])


def frequent_labels(table: LabelTable, most: int) -> npt.NDArray[np.int8]:
    """1 where a positive is known, else 0 [N, at most `most`]: of the labels of which only
    positives are known, those that have most of them. One alone has a column of 0 beside it."""
    one_sided = only_positives(table)
    positives = np.where(one_sided, table.counts_by_label().positive, 0)
    chosen = np.argsort(-positives, kind="stable")[: min(most, max(one_sided.sum(), 2))]
    place = np.full(len(table.names), -1)
    place[chosen] = np.arange(len(chosen))
    columns = place[table.indices]
    annotated = np.zeros((len(table), len(chosen)), np.int8)
    seen = (columns >= 0) & one_sided[table.indices]
    annotated[table.rows[seen], columns[seen]] = 1
    return annotated


def share_of_sure(chances: Array) -> float:
    """c₊, from the chance of each known positive to be annotated.

    What is said of the surest tenth, or where that is less than ½, which is what one would assume
    without it, the geometric mean of both: few are known, or few are beyond doubt.

    >>> share_of_sure(np.array([0.01] * 50 + [0.8] * 50))
    0.8
    >>> round(share_of_sure(np.array([0.01] * 50 + [0.08] * 50)), 3)
    0.2
    """
    sure = float(np.percentile(chances, 90))
    return min(sure, 1.0) if sure > ASSUMED_SHARE else math.sqrt(sure * ASSUMED_SHARE)


def _features(table: LabelTable) -> Array:
    assert table.features is not None
    return table.features
