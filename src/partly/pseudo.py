"""Pseudo-labels: what is believed about the unknown labels.

What enters: the model's logits of a batch. What leaves: targets ỹ in [0, 1] for its unknown
entries; `stores` keep them from one visit of an image to the next. Letters: N images, L labels,
B in a batch.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partly.labels import POSITIVE, UNKNOWN, LabelTable
from partly.ranking import streamed_average_precision
from partly.stores import PseudoLabels

__all__ = [
    "PseudoLabels",
    "audit",
    "chance_of_single",
    "hidden",
    "posterior",
    "sample_tilt",
    "tilt",
]

TILT = 0.5  # of a sample's, that is taken off: see `sampled`
SMALLEST = 1e-6  # a weight or a share of entries below this counts as this: its logarithm is finite


def posterior(
    logits: Tensor,
    *,
    c_positive: Tensor | float,
    c_negative: Tensor | float,
    alpha: Tensor | float = 1.0,
    beta: Tensor | float = 1.0,
    weight_known: float = 1.0,
    weight_unknown: float = 1.0,
) -> Tensor:
    """The probability that an unknown entry is positive, from a model that was fitted with it.

    Such a model is tilted by the loss's weights and by the annotation itself:

        logit ŷ = logit π + log(α/β) + log[(c₊w_k + (1-c₊)w_u) / (c₋w_k + (1-c₋)w_u)]
        logit ỹ = logit π + log[(1-c₊) / (1-c₋)]

    with π = P(y = 1 | x), c₊ and c₋ the chance that a positive, a negative is annotated (one for
    all, one a label [L], or one an entry [B, L]), w_k and w_u the weight of one known, one unknown
    entry. The first tilt is taken off, the second put on.
    """

    balance = _positive_number(alpha / beta, logits.device)
    tilted = partial(tilt, c_positive, c_negative, device=logits.device)
    off = torch.log(balance) + tilted(weight_known, weight_unknown)
    return torch.sigmoid(logits.detach().float() - off + tilted(0.0, 1.0))


def tilt(
    c_positive: Tensor | float,
    c_negative: Tensor | float,
    weight_known: float,
    weight_unknown: Tensor | float,
    device: torch.device,
) -> Tensor:
    """log[(c₊w_k + (1-c₊)w_u) / (c₋w_k + (1-c₋)w_u)]: of what annotation and weights leave of
    positives, over what they leave of negatives."""
    above, below = (
        _positive_number(c * weight_known + (1 - c) * weight_unknown, device)
        for c in (c_positive, c_negative)
    )
    return torch.log(above / below)


def sample_tilt(
    c_positive: Tensor | float, c_negative: Tensor | float, chance: Tensor, weight: float
) -> Tensor:
    """What the loss adds to the logits of labels that are drawn: see `sampled`.

    chance: of an unknown entry of each label [L] to be there; known ones always are. weight: that
    of an unknown entry.
    """
    tilted = partial(tilt, c_positive, c_negative, 1.0, device=chance.device)
    return TILT * (tilted(weight * chance) - tilted(weight))


def _positive_number(value: Tensor | float, device: torch.device) -> Tensor:
    if not isinstance(value, Tensor):  # made on the device: sent there, it would be waited for
        value = torch.full((), value, device=device)
    return value.to(device, torch.float32).clamp(SMALLEST)


def chance_of_single(
    logits: Tensor,
    labels: Tensor,
    c_positive: Tensor,
    total: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Tensor:
    """c₊ of each image [B, 1] where one positive of each is known: the more it has, the smaller.

    An image of m expected positives has 1/m, all of them scaled so that the mean over positives is
    c₊, as it is over the whole table. total: adds up over ranks, where each has images of its own.
    """
    return chance_by_count(
        expected_count(torch.sigmoid(logits.detach().float()), labels), c_positive, total
    )


def expected_count(probabilities: Tensor, labels: Tensor) -> Tensor:
    """How many positives are expected of each image [B, 1]."""
    unknown = labels == UNKNOWN
    expected = torch.where(unknown, probabilities.float(), (labels == POSITIVE).float())
    return expected.sum(dim=1, keepdim=True)


def chance_by_count(
    count: Tensor, c_positive: Tensor, total: Callable[[Tensor], Tensor] = lambda sums: sums
) -> Tensor:
    """`chance_of_single` of images with so many expected positives [B, 1]."""
    chance = 1 / count.clamp(min=1)
    above, below = total(torch.stack([(chance * count).sum(), count.sum()]))
    mean = above / below.clamp(min=SMALLEST)
    return (chance / mean.clamp(min=SMALLEST) * c_positive.mean()).clamp(max=0.98)


def hidden(known: LabelTable, truth: LabelTable, rows: np.ndarray) -> np.ndarray:
    """What a study has hidden of these images [B, L]: the truth of what is unknown in `known`."""
    return np.where(known.dense(rows) == UNKNOWN, truth.dense(rows), np.int8(UNKNOWN))


def audit(
    blocks: Iterable[tuple[np.ndarray, np.ndarray]], folder: Path | None = None
) -> dict[str, Any]:
    """How good pseudo-labels are where a study has hidden the truth.

    blocks: pseudo-labels [B, L] and what was `hidden` of the same images, a part of all after the
    other. Memory is that of a part; files in `folder` take 5 bytes a hidden entry meanwhile, as
    `ranking.streamed_average_precision` says. Per label and overall: average precision, mean
    absolute error, mean pseudo-label and true share of positives.

    >>> audit([(np.array([[0.9], [0.6]]), np.array([[1], [0]]))])["mean_absolute_error"]
    0.35
    """
    sums = np.zeros((4, 1))  # of each label: entries, errors, pseudo-labels, positives

    def counted() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        nonlocal sums
        for values, answers in blocks:
            where = answers != UNKNOWN
            parts = (where, np.abs(values - answers), values, answers)
            sums = sums + np.array([part.sum(0, np.float64, where=where) for part in parts])
            yield values, answers

    precision = streamed_average_precision(counted(), folder)
    entries = sums[0].sum()
    if not entries:
        return {"hidden_entries": 0}
    scored = np.isfinite(precision)
    _, error, believed, share = sums / np.maximum(sums[0], 1)
    overall = [float(each.sum() / entries) for each in sums]
    return {
        "hidden_entries": int(entries),
        "mAP": float(precision[scored].mean()) if scored.any() else None,
        "mean_absolute_error": overall[1],
        "mean_pseudo_label": overall[2],
        "share_positive": overall[3],
        "by_label": {
            "average_precision": [float(v) if np.isfinite(v) else None for v in precision],
            "mean_absolute_error": error.tolist(),
            "mean_pseudo_label": believed.tolist(),
            "share_positive": share.tolist(),
        },
    }
