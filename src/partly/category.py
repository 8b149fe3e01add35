"""Category-wise fine-tuning (CFT): after training, each label's row of the last layer by itself.

What enters: what the backbone sees in the images to train on and to judge by, their labels, and the
weight and bias of the last layer. What leaves: the same layer, with a row replaced wherever a few
steps on the label's known entries alone rank the other images better. The rows share nothing, so
all labels go on at once.

Letters: N images, F features of an image, L labels.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from partly.data import split_into_chunks
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN
from partly.metrics import average_precision

RATES = (1e-4, 1e-3, 1e-2)  # of Adam, from a touch to a long way
STEPS, EVERY = 50, 10  # steps at each rate; after every so many the rows are judged
SMALLEST = 1e-12  # deviation of a feature that is no constant
BLOCK = 65536  # images whose scores are held at once


class Tuned(NamedTuple):
    """weight [L, F], bias [L], and which of the rows are new [L]."""

    weight: Tensor
    bias: Tensor
    changed: np.ndarray


@torch.no_grad()
def fine_tune(
    features: Tensor,
    labels: np.ndarray,
    weight: Tensor,
    bias: Tensor,
    validation_features: Tensor,
    validation_labels: np.ndarray,
    *,
    rates: Sequence[float] = RATES,
    steps: int = STEPS,
    every: int = EVERY,
) -> Tuned:
    """Tune the rows of a linear layer, each on the known entries of its label.

    features [N, F], labels [N, L] int8 1 / 0 / -1, and the same of the images to judge by. Each row
    descends the mean cross-entropy of its known entries, from where it is and with each rate anew.
    Of all rows on the way the one with the highest average precision on the validation labels
    stays: the first, unless another is better. A label that lacks a known positive or a known
    negative, here or there, stays as it is: nothing can judge it.
    """
    able = has_both(labels) & has_both(validation_labels)
    columns = np.flatnonzero(able)
    tuned = Tuned(weight.clone(), bias.clone(), np.zeros(len(able), dtype=bool))
    if not len(columns):
        return tuned
    wanted = torch.from_numpy(labels[:, columns]).to(features.device)
    answers = validation_labels[:, columns]

    def judged(weight: Tensor, bias: Tensor) -> np.ndarray:
        return average_precision((validation_features @ weight.T + bias).cpu().numpy(), answers)

    first = weight[columns], bias[columns]
    best = judged(*first)
    for rate in rates:
        for rows, biases in descend(features, wanted, *first, rate=rate, steps=steps, every=every):
            precision = judged(rows, biases)
            better = np.flatnonzero(precision > best)
            best[better] = precision[better]
            tuned.weight[columns[better]] = rows[better]
            tuned.bias[columns[better]] = biases[better]
            tuned.changed[columns[better]] = True
    return tuned


def has_both(labels: np.ndarray) -> np.ndarray:
    """Which labels [L] have a known positive and a known negative."""
    return (labels == POSITIVE).any(axis=0) & (labels == NEGATIVE).any(axis=0)


def descend(
    features: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    rate: float,
    steps: int,
    every: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Steps of Adam over all images; yields (weight, bias) after every so many.

    Adam takes each number for itself, so no row feels the others. A step is one of the weights that
    standardised features would have: a rate means the same whatever a backbone's scale is.
    """
    deviation, mean = torch.std_mean(features, dim=0, correction=0)
    deviation = torch.where(deviation > SMALLEST, deviation, 1.0)
    scaled, offset = weight * deviation, bias + weight @ mean
    optimiser = torch.optim.Adam([scaled, offset], lr=rate)
    for step in range(1, steps + 1):
        of_weight, of_bias = gradient(features, labels, weight, bias)
        scaled.grad, offset.grad = (of_weight - of_bias[:, None] * mean) / deviation, of_bias
        optimiser.step()
        weight = scaled / deviation
        bias = offset - weight @ mean
        if step % every == 0:
            yield weight, bias


def gradient(
    features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Of the mean cross-entropy over each label's known entries, block by block of images."""
    known = (labels != UNKNOWN).sum(dim=0).clamp(min=1)
    of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(bias)
    for rows in split_into_chunks(np.arange(len(features)), BLOCK):
        block = slice(int(rows[0]), int(rows[-1]) + 1)
        scores = torch.sigmoid(features[block] @ weight.T + bias)
        missed = torch.where(labels[block] == UNKNOWN, 0.0, scores - labels[block])
        of_weight += missed.T @ features[block]
        of_bias += missed.sum(dim=0)
    return of_weight / known[:, None], of_bias / known
