"""What all losses share: masks, stable terms, reductions.

Letters: B images in the batch, L labels. Logits [B, L] enter, never probabilities; labels [B, L]
are 1 positive, 0 negative, -1 unknown.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from partly.errors import ConfigError
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN

Reduction = Literal["mean", "sum", "none"]


def working(logits: Tensor) -> Tensor:
    """Half precision is computed in float32; float32 and float64 stay what they are."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def masks(labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where labels are positive, negative and unknown."""
    return labels == POSITIVE, labels == NEGATIVE, labels == UNKNOWN


def check_shapes(logits: Tensor, labels: Tensor) -> None:
    """Logits and labels must be of one shape: broadcasting would hide a mistake."""
    if logits.shape != labels.shape:
        raise ConfigError(
            f"logits have shape {tuple(logits.shape)}, labels {tuple(labels.shape)}: "
            "give both [images, labels]"
        )


def minus_log(logits: Tensor) -> Tensor:
    """-log σ(x), finite for every finite x. `minus_log(-x)` is -log(1 - σ(x))."""
    return -logsigmoid(logits)


def power(logits: Tensor, exponent: float) -> Tensor:
    """σ(x)^exponent with a gradient that stays finite where σ(x) is 0."""
    return torch.exp(-exponent * minus_log(logits))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """-t log σ(x) - (1-t) log(1-σ(x)) with soft targets t."""
    return targets * minus_log(logits) + (1 - targets) * minus_log(-logits)


def reduce(terms: Tensor, reduction: Reduction) -> Tensor:
    """`mean` divides by B·L, known or not: a divisor that is the same on 1 rank and on N."""
    if reduction == "none":
        return terms
    if reduction == "sum":
        return terms.sum()
    if reduction == "mean":
        return terms.mean()
    raise ConfigError(f"reduction is mean, sum or none, not '{reduction}'")


def by_label(
    labels: Tensor,
    positive: Tensor | float,
    negative: Tensor | float,
    unknown: Tensor | float,
    reduction: Reduction = "mean",
) -> Tensor:
    """The term of each entry by what is known of its label, reduced.

    A number in place of a tensor has no gradient: 0.0 for `unknown` promises that unknown entries
    neither count nor pull.
    """
    is_positive, is_negative, _ = masks(labels)
    if isinstance(positive, Tensor):
        check_shapes(positive, labels)
    return reduce(
        torch.where(is_positive, positive, torch.where(is_negative, negative, unknown)), reduction
    )


def largest(values: Tensor, among: Tensor, count: int) -> Tensor:
    """Mask of the `count` largest values of the batch where `among` is true."""
    candidates = torch.where(among, values, -torch.inf).flatten()
    top = candidates.topk(min(count, candidates.numel())).indices
    chosen = torch.zeros_like(candidates, dtype=torch.bool)
    chosen[top] = True
    return chosen.view_as(among) & among


RARE = 0.003  # a probability below which entries count nearly alike


def attend(expected: Tensor, focus: Tensor | float) -> Tensor:
    """How much an entry counts [B, L], 1 on average: the more, the likelier it is positive.

    It depends on the image alone, not on its label, so what is learnt is as well calibrated as with
    equal weights; but the many entries that everybody knows to be negative leave the rest in peace.
    focus: one for all, or one a label [L].
    """
    attention = (expected + RARE) ** focus
    return attention / attention.mean()
