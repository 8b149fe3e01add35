"""Losses built of plain binary cross-entropy: they differ in what an unknown label counts as.

Letters: B images, L labels, x logits, p = σ(x). Means are over B·L. Cards: docs/losses.md.
"""

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from partly.errors import ConfigError
from partly.losses.common import (
    Reduction,
    as_chance,
    by_label,
    check_pseudo,
    check_shapes,
    cross_entropy,
    masks,
    minus_log,
    unpack,
    within,
    working,
)


def bce(logits: Tensor, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """-log p on positives, -log(1-p) on negatives. Unknown entries count for nothing.

    >>> bce(torch.zeros(1, 2), torch.tensor([[1, 0]])).item()  # log 2
    0.6931471824645996
    """
    right = _minus_log_of_label(logits, labels)
    return by_label(labels, right, right, 0.0, reduction)


def _minus_log_of_label(logits: Tensor, labels: Tensor) -> Tensor:
    """-log p where a label is positive, -log(1-p) elsewhere: one logarithm an entry."""
    x, (positive, _, _) = working(logits), masks(labels)
    check_shapes(logits, labels)
    return minus_log(torch.where(positive, x, -x))


def ign(logits: Tensor, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Ignore: `bce` by the name it has where labels are missing. The divisor stays B·L.

    >>> ign(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), reduction="none")
    tensor([[0.6931, 0.6931, 0.0000]])
    """
    return bce(logits, labels, reduction=reduction)


def an(logits: Tensor, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Assume negative: an unknown label counts as a negative one.

    >>> an(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), reduction="none")
    tensor([[0.6931, 0.6931, 0.6931]])
    """
    right = _minus_log_of_label(logits, labels)
    return by_label(labels, right, right, right, reduction)


def wan(
    logits: Tensor,
    labels: Tensor,
    *,
    weight: float | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Weak assume negative: an assumed negative weighs 1/(L-1), or `weight`.

    >>> wan(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), reduction="none")
    tensor([[0.6931, 0.6931, 0.3466]])
    """
    right = _minus_log_of_label(logits, labels)
    share = 1 / max(logits.shape[-1] - 1, 1) if weight is None else within("weight", weight)
    return by_label(labels, right, right, share * right, reduction)


def _smoothed(x: Tensor, epsilon: float, convention: str) -> tuple[Tensor, Tensor]:
    if convention not in ("full", "half"):
        raise ConfigError(f"label smoothing is 'full' or 'half', not '{convention}'")
    epsilon = within("epsilon", epsilon, 0, 1)
    off = epsilon if convention == "full" else epsilon / 2
    positive, negative = torch.full_like(x, 1 - off), torch.full_like(x, off)
    return cross_entropy(x, positive), cross_entropy(x, negative)


def bce_ls(
    logits: Tensor,
    labels: Tensor,
    *,
    epsilon: float = 0.1,
    convention: str = "full",
    reduction: Reduction = "mean",
) -> Tensor:
    """Label smoothing: targets 1-ε and ε (convention "full") or 1-ε/2 and ε/2 ("half").

    >>> bce_ls(torch.tensor([[9.0, -9.0, 0.0]]), torch.tensor([[1, 0, -1]]), reduction="none")
    tensor([[0.9001, 0.9001, 0.0000]])
    """
    positive, negative = _smoothed(working(logits), epsilon, convention)
    return by_label(labels, positive, negative, 0.0, reduction)


def an_ls(
    logits: Tensor,
    labels: Tensor,
    *,
    epsilon: float = 0.1,
    convention: str = "full",
    reduction: Reduction = "mean",
) -> Tensor:
    """`bce_ls` with unknown labels counted as negative.

    >>> an_ls(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), reduction="none")
    tensor([[0.6931, 0.6931, 0.6931]])
    """
    positive, negative = _smoothed(working(logits), epsilon, convention)
    return by_label(labels, positive, negative, negative, reduction)


def partial_bce(
    logits: Tensor,
    labels: Tensor,
    *,
    slope: float = -4.45,
    offset: float = 5.45,
    reduction: Reduction = "mean",
) -> Tensor:
    """Known entries times g(ρ) = slope·ρ + offset, ρ the known share of the image.

    >>> partial_bce(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), reduction="none")
    tensor([[1.7213, 1.7213, 0.0000]])
    """
    x = working(logits)
    known_share = (~masks(labels)[2]).to(x.dtype).mean(dim=-1, keepdim=True)
    weight = slope * known_share + offset
    return by_label(labels, weight * minus_log(x), weight * minus_log(-x), 0.0, reduction)


def observed(
    logits: Tensor,
    labels: Tensor,
    *,
    c_positive: ArrayLike | Tensor,
    c_negative: ArrayLike | Tensor = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """The likelihood of what was observed: that an entry is unknown is an observation, too.

    c₊ and c₋ are the chance that a positive, a negative is annotated: one for all or one a label
    [L]. An unknown entry has -log[(1-c₊) p + (1-c₋) (1-p)]: nothing to learn from where c₊ = c₋
    (then it is `ign`), a mild "no" where only positives are annotated, `an` where all of them are.
    Its gradient is that of cross-entropy against the posterior P(y = 1 | unknown), which is what
    `partly` computes.

    >>> observed(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), c_positive=0.5, reduction="none")
    tensor([[0.6931, 0.6931, 0.2877]])
    """
    x = working(logits)
    c_positive = as_chance("c_positive", c_positive, logits)
    c_negative = as_chance("c_negative", c_negative, logits)

    def log_left(chance: Tensor | float) -> Tensor:
        """log(1 - c), finite where everything is annotated."""
        left = 1 - torch.as_tensor(chance, dtype=x.dtype, device=x.device)
        return torch.log(left.clamp(min=torch.finfo(x.dtype).tiny))

    unknown = -torch.logaddexp(
        log_left(c_positive) - minus_log(x), log_left(c_negative) - minus_log(-x)
    )
    return by_label(labels, minus_log(x), minus_log(-x), unknown, reduction)


@torch.no_grad()
def surprise(
    logits: Tensor,
    labels: Tensor,
    *,
    c_positive: ArrayLike | Tensor,
    c_negative: ArrayLike | Tensor = 0.0,
) -> Tensor:
    """How little of what was observed the model expected [B, L]: 1 - P(observed), between 0 and 1.

    1-p of a known positive, p of a known negative. That an entry is unknown is measured by the most
    that its chance can be, max(1-c₊, 1-c₋): c₊ p where only positives are annotated.

    >>> surprise(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), c_positive=0.5)
    tensor([[0.5000, 0.5000, 0.2500]])
    """
    terms = observed(logits, labels, c_positive=c_positive, c_negative=c_negative, reduction="none")
    left = (
        1 - torch.as_tensor(as_chance(name, chance, terms), dtype=terms.dtype, device=terms.device)
        for name, chance in (("c_positive", c_positive), ("c_negative", c_negative))
    )
    most = torch.maximum(*left).clamp(min=torch.finfo(terms.dtype).tiny)
    return (1 - torch.exp(-terms) / torch.where(masks(labels)[2], most, 1.0)).clamp(0, 1)


def consistent(
    logits: Tensor,
    labels: Tensor,
    pseudo: Tensor,
    *,
    weight: Tensor | float = 1.0,
    picked: Tensor | None = None,
    alpha: Tensor | float = 1.0,
    beta: Tensor | float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross-entropy against the label where it is known and the pseudo-label where it is not.

    -(α t log p + β (1-t) log(1-p)); an unknown entry weighs `weight` times a known one, or nothing
    where `picked` is false. It is what the method `partly` minimises; no gradient through `pseudo`.

    >>> x, labels, pseudo = torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), torch.full((1, 3), 0.9)
    >>> consistent(x, labels, pseudo, weight=0.5, reduction="none")
    tensor([[0.6931, 0.6931, 0.3466]])
    """
    x, weight = working(logits), within("weight", weight)
    check_pseudo(pseudo)
    for name, table in (("labels", labels), ("pseudo", pseudo), ("picked", picked)):
        if table is not None:
            check_shapes(logits, table, name)
    # Chosen before it is multiplied, so that whatever stands at a known entry leaves no trace.
    targets = torch.where(masks(labels)[2], unpack(pseudo.detach(), x.dtype), 0.0)
    soft = alpha * targets * minus_log(x) + beta * (1 - targets) * minus_log(-x)
    if picked is not None:
        soft = torch.where(picked.bool(), soft, 0.0)
    return by_label(labels, alpha * minus_log(x), beta * minus_log(-x), weight * soft, reduction)
