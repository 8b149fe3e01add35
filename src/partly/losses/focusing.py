"""Losses that look harder at some entries: focal, asymmetric, Hill, selective, strictly proper.

Letters: B images, L labels, x logits, p = σ(x). Means are over B·L. Cards: docs/losses.md.
"""

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from partly.errors import ConfigError
from partly.losses.common import (
    Reduction,
    by_label,
    check_shapes,
    largest,
    masks,
    minus_log,
    one_a_label,
    power,
    reduce,
    within,
    working,
)


def _unknown_term(unknown: str, negative: Tensor) -> Tensor | float:
    if unknown not in ("negative", "ignore"):
        raise ConfigError(f"unknown labels are counted as 'negative' or 'ignore', not '{unknown}'")
    return negative if unknown == "negative" else 0.0


def focal(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 2.0,
    unknown: str = "negative",
    reduction: Reduction = "mean",
) -> Tensor:
    """-(1-p)^γ log p on positives, -p^γ log(1-p) on negatives; γ = 0 is BCE.

    >>> focal(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), reduction="none")
    tensor([[0.1733, 0.1733, 0.1733]])
    """
    x, gamma = working(logits), within("gamma", gamma)
    positive = power(-x, gamma) * minus_log(x)
    negative = power(x, gamma) * minus_log(-x)
    return by_label(labels, positive, negative, _unknown_term(unknown, negative), reduction)


def _shifted_negative(x: Tensor, gamma: float, clip: float) -> Tensor:
    """-p_m^γ log(1 - p_m), p_m = max(p - clip, 0); the weight carries no gradient."""
    weight = (torch.sigmoid(x).detach() - clip).clamp(min=0) ** gamma
    if clip == 0:
        return weight * minus_log(-x)
    return -weight * torch.log((torch.sigmoid(-x) + clip).clamp(max=1))


def asl(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma_positive: float = 0.0,
    gamma_negative: float = 4.0,
    clip: float = 0.05,
    unknown: str = "negative",
    reduction: Reduction = "mean",
) -> Tensor:
    """Asymmetric loss: -(1-p)^γ₊ log p and -p_m^γ₋ log(1-p_m), p_m = max(p - clip, 0).

    The focusing weights carry no gradient. γ = 0 and clip = 0 is BCE.

    >>> asl(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), reduction="none")
    tensor([[0.6931, 0.0245, 0.0245]])
    """
    gamma_positive = within("gamma_positive", gamma_positive)
    gamma_negative = within("gamma_negative", gamma_negative)
    x, clip = working(logits), within("clip", clip, 0, 1)
    positive = torch.sigmoid(-x).detach() ** gamma_positive * minus_log(x)
    negative = _shifted_negative(x, gamma_negative, clip)
    return by_label(labels, positive, negative, _unknown_term(unknown, negative), reduction)


def csl(
    logits: Tensor,
    labels: Tensor,
    *,
    priors: ArrayLike | Tensor | None = None,
    gamma_positive: float = 0.0,
    gamma_negative: float = 1.0,
    gamma_unknown: float = 4.0,
    clip: float = 0.0,
    prior_threshold: float = 0.5,
    likely: int = 5,
    reduction: Reduction = "mean",
) -> Tensor:
    """Class-aware selective loss (partial ASL): unknown entries are negatives focused by γ_u.

    Left out are the unknown entries of classes whose prior exceeds `prior_threshold` and the
    `likely`·B unknown entries of the batch with the highest probability.

    >>> csl(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), likely=0, reduction="none")
    tensor([[0.6931, 0.3466, 0.0433]])
    """
    check_shapes(logits, labels)
    gamma_positive = within("gamma_positive", gamma_positive)
    gamma_negative = within("gamma_negative", gamma_negative)
    gamma_unknown = within("gamma_unknown", gamma_unknown)
    x, clip = working(logits), within("clip", clip, 0, 1)
    _, _, unknown = masks(labels)
    kept = ~largest(x.detach(), unknown, int(within("likely", likely) * len(x)))
    if priors is not None:
        kept = kept & (one_a_label("priors", priors, x) <= prior_threshold)
    positive = torch.sigmoid(-x).detach() ** gamma_positive * minus_log(x)
    negative = _shifted_negative(x, gamma_negative, clip)
    assumed = torch.where(kept, _shifted_negative(x, gamma_unknown, clip), 0.0)
    return by_label(labels, positive, negative, assumed, reduction)


def hill(
    logits: Tensor,
    labels: Tensor,
    *,
    margin: float = 1.0,
    gamma: float = 2.0,
    turning: float = 1.5,
    reduction: Reduction = "mean",
) -> Tensor:
    """Positive -(1-p')^γ log p', p' = σ(x - margin); negative and unknown (turning - p)·p².

    >>> hill(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), reduction="none")
    tensor([[0.7019, 0.2500, 0.2500]])
    """
    x, gamma = working(logits), within("gamma", gamma)
    margin, turning = within("margin", margin, -1e6), within("turning", turning, -1e6)
    p = torch.sigmoid(x)
    positive = power(margin - x, gamma) * minus_log(x - margin)
    negative = (turning - p) * p**2
    return by_label(labels, positive, negative, negative, reduction)


def splc(
    logits: Tensor,
    labels: Tensor,
    *,
    epoch: int,
    margin: float = 1.0,
    gamma: float = 2.0,
    threshold: float = 0.6,
    reduction: Reduction = "mean",
) -> Tensor:
    """Self-paced loss correction: from epoch 2 an unknown entry with p > threshold is a positive.

    Focal terms with γ; the margin is taken from the logits of known positives.

    >>> x = torch.ones(1, 3)  # p = 0.73
    >>> splc(x, torch.tensor([[1, 0, -1]]), epoch=2, reduction="none")
    tensor([[0.1733, 0.7019, 0.0227]])
    """
    check_shapes(logits, labels)
    x, gamma = working(logits), within("gamma", gamma)
    threshold, margin = within("threshold", threshold, 0, 1), within("margin", margin, -1e6)
    known_positive, _, unknown = masks(labels)
    corrected = unknown & (torch.sigmoid(x.detach()) > threshold) if epoch > 1 else None
    x = torch.where(known_positive, x - margin, x)
    positive = power(-x, gamma) * minus_log(x)
    negative = power(x, gamma) * minus_log(-x)
    counted = known_positive if corrected is None else known_positive | corrected
    return reduce(torch.where(counted, positive, negative), reduction)


def spa(
    logits: Tensor,
    labels: Tensor,
    *,
    slope_positive: float = 1.0,
    shift_positive: float = 0.0,
    scale_positive: float = 1.0,
    slope_negative: float = 3.0,
    shift_negative: float = 1.0,
    scale_negative: float = 5.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Strictly proper asymmetric loss, known entries only; `spa_probability` is its link.

    Positive -log σ(k₊(x-b₊))/ζ₊, negative -log σ(-k₋(x-b₋))/ζ₋.

    >>> spa(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), reduction="none")
    tensor([[0.6931, 0.0097, 0.0000]])
    """
    x = working(logits)
    _check_link(slope_positive, shift_positive, scale_positive, "positive")
    _check_link(slope_negative, shift_negative, scale_negative, "negative")
    positive = minus_log(slope_positive * (x - shift_positive)) / scale_positive
    negative = minus_log(-slope_negative * (x - shift_negative)) / scale_negative
    return by_label(labels, positive, negative, 0.0, reduction)


def _check_link(slope: float, shift: float, scale: float, side: str) -> None:
    """Of one side of `spa`. A slope or a scale of 0 or below would make a loss of no minimum."""
    within(f"slope_{side}", slope, 1e-6)
    within(f"shift_{side}", shift, -1e6)
    within(f"scale_{side}", scale, 1e-6)


def spa_probability(
    logits: Tensor,
    *,
    slope_positive: float = 1.0,
    shift_positive: float = 0.0,
    scale_positive: float = 1.0,
    slope_negative: float = 3.0,
    shift_negative: float = 1.0,
    scale_negative: float = 5.0,
) -> Tensor:
    """The probability that a logit trained with `spa` stands for.

    1/(1 + k₊ζ₋σ(-k₊(x-b₊)) / (k₋ζ₊σ(k₋(x-b₋)))), computed as σ of the log of that ratio.

    >>> spa_probability(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.0020, 0.0538, 0.5273])
    """
    x = working(logits)
    _check_link(slope_positive, shift_positive, scale_positive, "positive")
    _check_link(slope_negative, shift_negative, scale_negative, "negative")
    log_ratio = minus_log(slope_negative * (x - shift_negative)) - minus_log(
        -slope_positive * (x - shift_positive)
    )
    constants = (slope_positive * scale_negative) / (slope_negative * scale_positive)
    return torch.sigmoid(-(log_ratio + torch.log(torch.tensor(constants, dtype=x.dtype))))
