"""The fused losses in closed form, value and gradient side by side, for torch.compile.

What enters: logits [B, L], labels and whatever else a loss reads. What leaves: loss, gradient and
pseudo-labels. The compiler makes one loop of each function; the numbers that change from epoch to
epoch enter as tensors, so that it does so once.
"""

from collections.abc import Callable
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from partly.losses.common import RARE, unpack, working
from partly.losses.fused.common import Answer, pack
from partly.losses.paper import penalty
from partly.pseudo import SMALLEST, sample_tilt, tilt

Number = Tensor | float


def bce(logits: Tensor, labels: Tensor, *, reduction: str) -> Answer:
    return _run(_bce, logits, labels, reduction=reduction)


def asl(logits: Tensor, labels: Tensor, **options: Any) -> Answer:
    return _run(_asl, logits, labels, **options)


def paper_loss(
    logits: Tensor,
    labels: Tensor,
    pseudo: Tensor,
    picked: Tensor | None,
    weight: float,
    **options: Any,
) -> Answer:
    return _run(_paper_loss, logits, labels, pseudo, picked, weight, **options)


def partly(
    logits: Tensor,
    labels: Tensor,
    teacher: Tensor | None,
    picked: Tensor | None,
    c_positive: Tensor | float,
    c_negative: Tensor | float,
    focus: Tensor | float | None,
    chance: Tensor | None,
    emphasis: Tensor | None,
    trust: float,
    weight: float,
    factor: float,
    **options: Any,
) -> Answer:
    # Before the loop: within it, what is one number a label would be computed for every entry.
    tilted = partial(tilt, c_positive, c_negative, device=logits.device)
    off = tilted(0.0, 1.0) - tilted(1.0, trust)  # where α = β: see `pseudo.posterior`
    shift = None if chance is None else sample_tilt(c_positive, c_negative, chance, trust)
    return _run(
        _partly, logits, labels, teacher, picked, off, focus, shift, emphasis, weight, factor,
        **options,
    )  # fmt: skip


def _run(loss: Callable[..., Answer], *inputs: Any, **options: Any) -> Answer:
    tensors = [
        torch.tensor(value, dtype=torch.float64)
        if isinstance(value, float | int)
        else value.detach()
        if isinstance(value, Tensor)
        else value
        for value in inputs
    ]
    with torch.no_grad():
        kinds = tuple(None if value is None else (value.dtype, value.ndim) for value in tensors)
        return _compiled(loss, tuple(options.items()), kinds)(*tensors)


@cache
def _compiled(
    loss: Callable[..., Answer], options: tuple[tuple[str, Any], ...], kinds: tuple[Any, ...]
) -> Callable[..., Answer]:
    """The function for these options and kinds of inputs: both are compiled into it."""
    settings = dict(options)

    def run(*inputs: Any) -> Answer:
        return loss(*inputs, **settings)

    # The compiler counts versions by code object and gives up at the ninth: each has its own.
    own = FunctionType(run.__code__.replace(), run.__globals__, "run", None, run.__closure__)
    return torch.compile(own, dynamic=True)


# What is compiled


def _bce(logits: Tensor, labels: Tensor, *, reduction: str) -> Answer:
    x = working(logits)
    positive, known = _masks(labels, x)
    x = torch.where(positive, -x, x)
    log, probability, _ = _sides(x)
    slope = torch.where(positive, -probability, probability)
    return _reduced(logits, x.clamp(min=0) + log, slope, known, reduction)


def _asl(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma_positive: float,
    gamma_negative: float,
    clip: float,
    unknown: str,
    reduction: str,
) -> Answer:
    x = working(logits)
    positive, known = _masks(labels, x)
    log, probability, opposite = _sides(x)
    focus = opposite**gamma_positive
    value, slope = focus * ((-x).clamp(min=0) + log), -focus * opposite
    focus = (probability - clip).clamp(min=0) ** gamma_negative
    left = opposite + clip
    if clip == 0:
        value = torch.where(positive, value, focus * (x.clamp(min=0) + log))
        slope = torch.where(positive, slope, focus * probability)
    else:
        pull = torch.where(left <= 1, focus * probability * opposite / left, 0.0)
        value = torch.where(positive, value, -focus * torch.log(left.clamp(max=1)))
        slope = torch.where(positive, slope, pull)
    counted = known if unknown == "ignore" else torch.ones_like(known)
    return _reduced(logits, value, slope, counted, reduction)


def _paper_loss(
    logits: Tensor,
    labels: Tensor,
    pseudo: Tensor,
    picked: Tensor | None,
    weight: Tensor,
    *,
    gamma: float,
    p: str,
    share: str,
    store: str,
) -> Answer:
    x = working(logits)
    positive, known = _masks(labels, x)
    old = unpack(pseudo, x.dtype)
    chosen = ~known if picked is None else ~known & picked
    alpha, beta = _balance(positive, known, gamma, share)
    doubled = penalty(x.amax(dim=-1, keepdim=True), p)[:, None] / len(x)  # σ rises: one is enough
    known_weight = doubled / known.to(x.dtype).sum(dim=-1, keepdim=True).clamp(min=1)
    unknown_weight = weight * doubled / chosen.to(x.dtype).sum(dim=-1, keepdim=True).clamp(min=1)
    target = torch.where(known, positive.to(x.dtype), old)
    value, slope = _entropy(x, target, alpha, beta)
    part = torch.where(known, known_weight, torch.where(chosen, unknown_weight, 0.0))
    belief = torch.sigmoid(x)
    fresh = pack(torch.where(torch.isfinite(belief), belief, old), store)
    return _summed(x, part * value), (part * slope).to(_kept(logits)), fresh


def _partly(
    logits: Tensor,
    labels: Tensor,
    teacher: Tensor | None,
    picked: Tensor | None,
    off: Tensor,
    focus: Tensor | None,
    shift: Tensor | None,
    emphasis: Tensor | None,
    weight: Tensor,
    factor: Tensor,
    *,
    targets: str,
    share: str,
    gamma: float,
    store: str | None,
) -> Answer:
    x = working(logits)
    positive, known = _masks(labels, x)
    believed = x if teacher is None else working(teacher)
    if shift is not None:
        x = x + shift.to(x.dtype)
    alpha, beta = _balance(positive, known, gamma, share)
    expected = torch.sigmoid(believed)
    belief = expected
    if targets == "posterior":
        tilted = believed.float() + off
        if share != "off":
            tilted = tilted - torch.log(torch.clamp(alpha / beta, min=SMALLEST))
        belief = torch.sigmoid(tilted)
    target = torch.where(known, positive.to(x.dtype), belief.to(x.dtype))
    value, slope = _entropy(x, target, alpha, beta)
    part = torch.where(known, 1.0, weight.to(x.dtype))
    if picked is not None:
        part = torch.where(known | picked, part, 0.0)
    if focus is not None:
        attention = torch.exp(focus * torch.log(expected + RARE))  # quicker than a power
        part = part * attention / attention.mean()
    if emphasis is not None:
        part = part * emphasis.to(x.dtype)
    part = part * (factor.to(x.dtype) / x.numel())
    fresh = None if store is None else pack(belief, store)
    return _summed(x, part * value), (part * slope).to(_kept(logits)), fresh


def _masks(labels: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Where labels are positive and where they are known. Bytes are compared one by one; numbers
    of the logits' size are not, which makes the whole loop eight times faster."""
    as_numbers = labels.to(x.dtype)
    positive = as_numbers == 1
    return positive, positive | (as_numbers == 0)


def _sides(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log(1 + e^-|x|), σ(x) and σ(-x)."""
    small = torch.exp(-x.abs())
    high = 1 / (1 + small)
    low = small * high
    right = x >= 0
    return torch.log1p(small), torch.where(right, high, low), torch.where(right, low, high)


def _entropy(x: Tensor, target: Tensor, alpha: Number, beta: Number) -> tuple[Tensor, Tensor]:
    """-(α t log p + β (1-t) log(1-p)) and its slope in x."""
    log, probability, opposite = _sides(x)
    yes, no = alpha * target, beta * (1 - target)
    value = yes * ((-x).clamp(min=0) + log) + no * (x.clamp(min=0) + log)
    return value, no * probability - yes * opposite


def _balance(positive: Tensor, known: Tensor, gamma: float, share: str) -> tuple[Any, Any]:
    """`losses.balance` from masks."""
    if share == "off":
        return 1.0, 1.0
    # Counted as numbers, which is quicker than as booleans.
    total = _count(known).clamp(min=1) if share == "known" else known.numel()
    beta = (_count(positive) / total).float().clamp(min=gamma)
    return 1 - beta, beta


def _count(where: Tensor) -> Tensor:
    return where.float().sum(dtype=torch.float64)


def _reduced(
    logits: Tensor, value: Tensor, slope: Tensor, counted: Tensor, reduction: str
) -> Answer:
    scale = 1 / value.numel() if reduction == "mean" else 1.0
    loss = _summed(value, torch.where(counted, value, 0.0)) * scale
    return loss, (torch.where(counted, slope, 0.0) * scale).to(_kept(logits)), None


def _summed(x: Tensor, terms: Tensor) -> Tensor:
    return terms.sum(dtype=torch.float64).to(x.dtype)


def _kept(logits: Tensor) -> torch.dtype:
    """A gradient in float16 would vanish before the loss scaler reaches it."""
    return torch.float32 if logits.dtype == torch.float16 else logits.dtype
