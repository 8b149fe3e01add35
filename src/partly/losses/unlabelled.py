"""Losses that reason about the unknown labels: expected counts, estimates, entropy, large losses.

Letters: B images, L labels, x logits, p = σ(x), k expected positives an image. Cards:
docs/losses.md.
"""

import math

import torch
from torch import Tensor

from partly.errors import ConfigError
from partly.losses.common import (
    Reduction,
    by_label,
    check_shapes,
    cross_entropy,
    largest,
    masks,
    minus_log,
    reduce,
    within,
    working,
)

LARGE_LOSS_RATES = {"r": 0.005, "ct": 0.002, "cp": 0.001}


def _count_penalty(probabilities: Tensor, expected_positives: float) -> Tensor:
    """((mean over images of Σp - k)/L)²."""
    labels = probabilities.shape[-1]
    within("expected_positives", expected_positives)
    return ((probabilities.sum(dim=-1).mean() - expected_positives) / labels) ** 2


def epr(logits: Tensor, labels: Tensor, *, expected_positives: float) -> Tensor:
    """Expected positive regularisation: -log p on positives, and k positives an image.

    >>> x, labels = torch.zeros(1, 3), torch.tensor([[1, 0, -1]])
    >>> round(epr(x, labels, expected_positives=1.5).item(), 4)  # Σp = 1.5: log 2 / 3 is left
    0.231
    """
    x = working(logits)
    return by_label(labels, minus_log(x), 0.0, 0.0) + _count_penalty(
        torch.sigmoid(x), expected_positives
    )


def role(logits: Tensor, labels: Tensor, estimates: Tensor, *, expected_positives: float) -> Tensor:
    """Regularised online label estimation: the model and N×L estimates θ teach each other.

    ½[A(p; ŷ fixed) + A(ŷ; p fixed)] with ŷ = σ(θ) and
    A(a; b) = mean BCE(a, b) + mean -log a on positives + ((mean Σa - k)/L)².
    `estimates` [B, L] are the rows of θ of this batch, trained beside the model.

    >>> x, labels, estimates = torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), torch.zeros(1, 3)
    >>> round(role(x, labels, estimates, expected_positives=1.5).item(), 4)
    0.9242
    """
    x, theta = working(logits), working(estimates, "estimates")
    check_shapes(logits, labels)
    check_shapes(logits, estimates, "estimates")

    def agreement(learner: Tensor, teacher: Tensor) -> Tensor:
        return (
            cross_entropy(learner, torch.sigmoid(teacher).detach()).mean()
            + by_label(labels, minus_log(learner), 0.0, 0.0)
            + _count_penalty(torch.sigmoid(learner), expected_positives)
        )

    return 0.5 * (agreement(x, theta) + agreement(theta, x))


def em(
    logits: Tensor, labels: Tensor, *, weight: float = 0.1, reduction: Reduction = "mean"
) -> Tensor:
    """Entropy maximisation: -weight·H(p) on unknown entries, BCE on known ones.

    >>> em(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), reduction="none")
    tensor([[ 0.6931,  0.6931, -0.0693]])
    """
    x, weight = working(logits), within("weight", weight)
    entropy = torch.sigmoid(x) * minus_log(x) + torch.sigmoid(-x) * minus_log(-x)
    return by_label(labels, minus_log(x), minus_log(-x), -weight * entropy, reduction)


def large_losses(logits: Tensor, labels: Tensor, count: int) -> Tensor:
    """Mask of the `count` unknown entries whose loss as assumed negatives is largest.

    >>> large_losses(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[1, -1, -1]]), count=1)
    tensor([[False,  True, False]])
    """
    check_shapes(logits, labels)
    _, _, unknown = masks(labels)
    return largest(working(logits).detach(), unknown, count)  # the loss grows with the logit


def ll(
    logits: Tensor,
    labels: Tensor,
    *,
    epoch: int,
    variant: str = "r",
    rate: float | None = None,
    flipped: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Large loss matters: unknown labels are negatives, but the largest losses are not believed.

    From epoch 2 the k largest losses among the unknown are dropped ("r", k = ⌈B·L·Δ·(epoch-1)⌉),
    counted as positives for this step ("ct", the same k), or counted as positives for good ("cp"):
    those are the entries of the mask `flipped`, which the caller extends by
    `large_losses(…, ⌈B·L·Δ⌉)` each step. Δ = 0.5 %, 0.2 %, 0.1 %.

    >>> x, labels = torch.tensor([[2.0, 2.0, 2.0]]), torch.tensor([[1, 0, -1]])
    >>> ll(x, labels, epoch=1, reduction="none")
    tensor([[0.1269, 2.1269, 2.1269]])
    >>> ll(x, labels, epoch=2, variant="ct", reduction="none")
    tensor([[0.1269, 2.1269, 0.1269]])
    """
    if variant not in LARGE_LOSS_RATES:
        raise ConfigError(f"the variant of ll is one of r, ct, cp, not '{variant}'")
    check_shapes(logits, labels)
    if flipped is not None:
        check_shapes(logits, flipped, "flipped")
    x = working(logits)
    positive, _, unknown = masks(labels)
    delta = LARGE_LOSS_RATES[variant] if rate is None else within("rate", rate, 0, 1)
    dropped = torch.zeros_like(positive)
    if variant == "cp":
        positive = positive if flipped is None else positive | (flipped.bool() & unknown)
    elif epoch > 1:
        chosen = large_losses(x, labels, math.ceil(x.numel() * delta * (epoch - 1)))
        positive, dropped = (positive, chosen) if variant == "r" else (positive | chosen, dropped)
    terms = torch.where(positive, minus_log(x), minus_log(-x))
    return reduce(torch.where(dropped, 0.0, terms), reduction)
