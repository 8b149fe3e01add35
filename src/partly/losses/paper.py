"""The paper's loss, equation by equation, with both readings wherever text and formula disagree.

What enters: logits [B, L], labels [B, L], pseudo-labels ỹ [B, L], the mask of picked unknown
entries. What leaves: a 0-dim tensor. Letters: B images, L labels, ŷ = σ(logits).
docs/paper.md maps every symbol.
"""

import torch
from torch import Tensor

from partly.errors import ConfigError
from partly.losses.common import (
    check_pseudo,
    check_shapes,
    masks,
    minus_log,
    unpack,
    within,
    working,
)
from partly.schedules import attention

TRIVIAL = 0.1  # an image whose predictions all lie below this is one the model says "no" to


def balance(
    labels: Tensor, gamma: float = 0.05, share: str = "all"
) -> tuple[Tensor | float, Tensor | float]:
    """α and β: β = max(P/T, γ), α = 1 - β, P the batch's known positives.

    all    T = B·L
    known  T = known entries: in PPL and SPL then β = 1 and α = 0, nothing is learnt from a positive
    off    α = β = 1

    >>> balance(torch.tensor([[1, 0, -1, -1]]))
    (tensor(0.7500), tensor(0.2500))
    """
    if share == "off":
        return 1.0, 1.0
    positive, _, unknown = masks(labels)
    if share == "all":
        total: Tensor | int = labels.numel()
    elif share == "known":
        total = (~unknown).sum().clamp(min=1)
    else:
        raise ConfigError(f"T counts all or known entries (or off), not '{share}'")
    beta = (positive.sum() / total).clamp(min=within("gamma", gamma, 0, 1))
    return 1 - beta, beta


def penalty(logits: Tensor, reading: str = "text") -> Tensor:
    """p [B], which doubles an image's loss.

    text     2 where every prediction is below 0.1, else 1
    printed  1 + |sign(Σ max(ŷ - 0.1, 0))|: 2 where any prediction is above 0.1
    off      1

    >>> penalty(torch.tensor([[-9.0, -9.0], [9.0, -9.0]]))
    tensor([2., 1.])
    """
    highest = torch.sigmoid(working(logits).detach()).amax(dim=-1)
    if reading == "text":
        doubled = highest < TRIVIAL
    elif reading == "printed":
        doubled = highest > TRIVIAL
    elif reading == "off":
        doubled = torch.zeros_like(highest, dtype=torch.bool)
    else:
        raise ConfigError(f"p is read as text, printed or off, not '{reading}'")
    return 1 + doubled.to(highest.dtype)


def paper_loss(
    logits: Tensor,
    labels: Tensor,
    pseudo: Tensor,
    *,
    epoch: int,
    epochs: int,
    gamma: float = 0.05,
    m: float = 3,
    picked: Tensor | None = None,
    d: str = "text",
    p: str = "text",
    share: str = "all",
) -> Tensor:
    """The paper's final equation: the mean over images of

        p · [ mean over known entries + d · mean over picked unknown entries ]
        of -(α t log ŷ + β (1-t) log(1-ŷ)),   t the label or the pseudo-label.

    `epoch` counts from 1. `picked=None` takes every unknown entry (q = 100 %). A part without
    entries contributes 0. No gradient flows through p, α, β or ỹ. Each of d, p and share has two
    readings and "off", which removes it for the ablation.

    >>> one = torch.zeros(1, 2)
    >>> paper_loss(one, torch.tensor([[1, 0]]), one, epoch=1, epochs=9, share="off").item()  # log 2
    0.6931471824645996
    """
    x = working(logits)
    positive, _, unknown = masks(labels)
    check_pseudo(pseudo)
    for name, table in (("labels", labels), ("pseudo", pseudo), ("picked", picked)):
        if table is not None:
            check_shapes(logits, table, name)
    targets = torch.where(unknown, unpack(pseudo.detach(), x.dtype), positive.to(x.dtype))
    alpha, beta = balance(labels, gamma, share)
    terms = alpha * targets * minus_log(x) + beta * (1 - targets) * minus_log(-x)
    known_part = _mean_where(terms, ~unknown)
    unknown_part = _mean_where(terms, unknown if picked is None else unknown & picked.bool())
    weight = attention(epoch, epochs, m, d)
    return (penalty(x, p) * (known_part + weight * unknown_part)).mean()


def _mean_where(terms: Tensor, where: Tensor) -> Tensor:
    """The mean over each image's chosen entries [B]; 0 for an image without any."""
    return torch.where(where, terms, 0.0).sum(dim=-1) / where.sum(dim=-1).clamp(min=1)
