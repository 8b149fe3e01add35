"""Losses in one pass: loss, gradient and fresh pseudo-labels are computed together.

What enters and leaves is what the functions of the same name in `partly.losses` take and give, to
rounding; `partly` is the loss of the method of that name. Those functions write every intermediate
result to memory and read it back; here each number is read once and written once (read twice where
a number of the whole batch comes first). Letters: B images, L labels.

backend says who computes:

    triton    kernels for NVIDIA GPUs
    compiled  torch.compile, which needs a C++ compiler and some seconds at first use
    plain     the functions of `partly.losses` with PyTorch's own gradients
    auto      triton on a GPU; on a CPU compiled from 2^20 entries on; where that cannot be, plain

The gradient is ready before anybody asks for it. It is handed out once: a second `backward` through
the same loss is refused, and so is a gradient of the gradient. Half precision is computed in
float32; float64 stays what it is, but not with triton.
"""

import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from numbers import Real
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from partly.errors import ConfigError, PartlyError, PartlyWarning, raise_if
from partly.losses import entropy, focusing, paper
from partly.losses.common import (
    as_chance,
    attend,
    check_logits,
    check_pseudo,
    one_a_label,
    unpack,
    within,
    working,
)
from partly.losses.fused.common import DTYPES, Answer, pack
from partly.pseudo import posterior, sample_tilt
from partly.schedules import attention

__all__ = ["asl", "bce", "paper_loss", "partly"]

Backend = Literal["auto", "triton", "compiled", "plain"]
Reduced = Literal["mean", "sum"]
Computed = tuple[Tensor, Tensor | None]  # the loss, pseudo-labels

BACKENDS = ("auto", "triton", "compiled", "plain")
REDUCTIONS = ("mean", "sum")
UNKNOWNS = ("negative", "ignore")
TARGETS = ("posterior", "prediction")
SHARES = ("all", "known", "off")
READINGS = ("text", "printed", "off")
MODULES = {"triton": "kernels", "compiled": "closed"}
NEEDED = ("labels", "pseudo")
NUMBERS = (float, int)  # beside tensors; to ask for those takes longer
WORTH_COMPILING = 1 << 20  # entries: some hundred steps then save as long as compiling takes
# A gradient is mostly multiplied by 1. From so many entries on, a kernel that looks first is worth
# it; with fewer, to launch one of ours takes Python longer than the GPU takes to multiply.
WORTH_A_LOOK = 1 << 23

# What computing plainly would not help.
UNHELPED = (PartlyError, torch.cuda.OutOfMemoryError, MemoryError)

_given_up: set[tuple[str, str]] = set()  # backends, and what they could not compute here


def bce(
    logits: Tensor, labels: Tensor, *, reduction: Reduced = "mean", backend: Backend = "auto"
) -> Tensor:
    """`losses.bce`: -log p on positives, -log(1-p) on negatives, nothing on unknown entries.

    >>> bce(torch.zeros(1, 2), torch.tensor([[1, 0]])).item()  # log 2
    0.6931471824645996
    """
    _check(logits, {"labels": labels}, {"reduction": (reduction, REDUCTIONS)})
    found = _compute("bce", backend, logits, (labels,), {"reduction": reduction})
    if found is None:
        return entropy.bce(logits, labels, reduction=reduction)
    return found[0]


def asl(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma_positive: float = 0.0,
    gamma_negative: float = 4.0,
    clip: float = 0.05,
    unknown: str = "negative",
    reduction: Reduced = "mean",
    backend: Backend = "auto",
) -> Tensor:
    """`losses.asl`: -(1-p)^γ₊ log p and -p_m^γ₋ log(1-p_m), p_m = max(p - clip, 0)."""
    words = {"reduction": (reduction, REDUCTIONS), "unknown": (unknown, UNKNOWNS)}
    _check(logits, {"labels": labels}, words)
    options: dict[str, Any] = {
        "gamma_positive": within("gamma_positive", gamma_positive),
        "gamma_negative": within("gamma_negative", gamma_negative),
        "clip": within("clip", clip, 0, 1),
        "unknown": unknown,
        "reduction": reduction,
    }
    found = _compute("asl", backend, logits, (labels,), options)
    return focusing.asl(logits, labels, **options) if found is None else found[0]


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
    store: str = "float32",
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """`losses.paper_loss`, and the pseudo-labels for the next visit: the predictions σ(x) [B, L].

    `pseudo` may be float32, float16 or uint8 in steps of 1/255, as `PseudoLabels` keeps them;
    `store` says what the new ones are. Where a prediction is not a number, the old one stays.
    """
    weight = attention(epoch, epochs, m, d)
    words = {"p": (p, READINGS), "share": (share, SHARES), "store": (store, tuple(DTYPES))}
    _check(logits, {"labels": labels, "pseudo": pseudo, "picked": picked}, words)
    check_pseudo(pseudo)
    picked = None if picked is None else picked.bool()
    gamma = within("gamma", gamma, 0, 1)
    options = {"gamma": gamma, "p": p, "share": share, "store": store}
    found = _compute("paper_loss", backend, logits, (labels, pseudo, picked, weight), options)
    if found is not None and found[1] is not None:
        return found[0], found[1]
    x = working(logits)
    old, belief = unpack(pseudo.detach(), x.dtype), torch.sigmoid(x.detach())
    loss = paper.paper_loss(
        logits, labels, old, epoch=epoch, epochs=epochs, gamma=gamma, m=m, picked=picked,
        d=d, p=p, share=share,
    )  # fmt: skip
    return loss, pack(torch.where(torch.isfinite(belief), belief, old), store)


def partly(
    logits: Tensor,
    labels: Tensor,
    *,
    c_positive: ArrayLike | Tensor,
    c_negative: ArrayLike | Tensor = 0.0,
    teacher: Tensor | None = None,
    targets: str = "posterior",
    focus: Tensor | float = 0.0,
    weight: float = 1.0,
    q: float = 1.0,
    picked: Tensor | None = None,
    share: str = "off",
    gamma: float = 0.05,
    chance: Tensor | None = None,
    factor: float = 1.0,
    emphasis: Tensor | None = None,
    store: str | None = "float32",
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor | None]:
    """The loss of the method `partly`, and its pseudo-labels [B, L] (None for store=None).

    `losses.consistent` against the posterior of `teacher`, or of the logits themselves, times the
    attention (σ + 0.003)^focus, which is 1 on the mean. c₊ and c₋: `pseudo.posterior`, one number,
    one a label [L], an image [B, 1] or an entry [B, L]. targets="prediction" learns from σ as it
    is. focus: one number or one a label. weight: of an unknown entry; where they are `picked` with
    a chance of q, those stand for all of them. chance [L]: of each label to be among these, where
    they are drawn: the loss sees logits with the tilt of `pseudo.sample_tilt`. factor: of the loss.
    emphasis [B, L]: a factor of each entry. Only the logits have a gradient.
    """
    words = {"targets": (targets, TARGETS), "share": (share, SHARES)}
    if store is not None:
        words["store"] = (store, tuple(DTYPES))
    tables = {"labels": labels, "teacher": teacher, "picked": picked, "emphasis": emphasis}
    _check(logits, tables, words)
    if teacher is not None:
        check_logits(teacher, "teacher")
    c_positive = as_chance("c_positive", c_positive, logits)
    c_negative = as_chance("c_negative", c_negative, logits)
    sharpness = _focus(focus, logits)
    chance = None if chance is None else one_a_label("chance", chance, logits)
    picked = None if picked is None else picked.bool()
    weight, q, gamma = within("weight", weight), within("q", q, 0, 1), within("gamma", gamma, 0, 1)
    own, factor = weight / q if q else 0.0, within("factor", factor, -1e6)
    options: dict[str, Any] = {"targets": targets, "share": share, "gamma": gamma, "store": store}
    inputs = (
        labels, teacher, picked, c_positive, c_negative, sharpness, chance, emphasis,
        weight, own, factor,
    )  # fmt: skip
    found = _compute("partly", backend, logits, inputs, options)
    if found is not None:
        return found
    still = [v.detach() if isinstance(v, Tensor) else v for v in inputs]
    return _partly_plainly(logits, still, **options)


def _partly_plainly(
    logits: Tensor, inputs: list[Any], *, targets: str, share: str, gamma: float, store: str | None
) -> Computed:
    """What the kernels compute, of the same inputs, one operation after another."""
    labels, teacher, picked, c_positive, c_negative, focus, chance, emphasis, *numbers = inputs
    trust, weight, factor = numbers
    alpha, beta = paper.balance(labels, gamma, share)
    believed = working(logits.detach() if teacher is None else teacher)
    belief = expected = torch.sigmoid(believed)
    if targets == "posterior":
        belief = posterior(
            believed, c_positive=c_positive, c_negative=c_negative, alpha=alpha, beta=beta,
            weight_unknown=trust,
        )  # fmt: skip
    x = logits
    if chance is not None:
        x = working(logits) + sample_tilt(c_positive, c_negative, chance, trust)
    terms = entropy.consistent(
        x, labels, belief, weight=weight, picked=picked, alpha=alpha, beta=beta, reduction="none"
    )
    if focus is not None:
        terms = terms * attend(expected, focus)
    if emphasis is not None:
        terms = terms * emphasis
    return factor * terms.mean(), None if store is None else pack(belief, store)


# Who computes


def _compute(
    name: str, backend: str, logits: Tensor, inputs: tuple[Any, ...], options: dict[str, Any]
) -> Computed | None:
    """Loss and pseudo-labels, or None where the plain function is to compute them."""
    chosen = _choose(backend, name, logits)
    if chosen == "plain":
        return None
    try:
        loss, gradient, pseudo = _answer(chosen, name, logits, inputs, options)
    except UNHELPED:
        raise
    except Exception as error:
        if backend != "auto":
            problem = _cannot(chosen, name, error)
            raise ConfigError(f"{problem}\ntake backend='plain'") from error
        give_up(chosen, name, error)
        return None
    if logits.requires_grad and torch.is_grad_enabled():
        loss = _WithGradient.apply(logits, (loss, gradient))
    return loss, pseudo


def works(backend: str, name: str) -> bool:
    """Whether a backend is there, and has not failed to compute this before."""
    there = has_triton() if backend == "triton" else has_compiler()
    return there and (backend, name) not in _given_up


def give_up(backend: str, name: str, error: Exception) -> None:
    """From now on what a backend could not compute is computed plainly. That is said once."""
    _given_up.add((backend, name))
    problem = _cannot(backend, name, error)
    warnings.warn(f"{problem}\nbackend 'plain' does, slowly", PartlyWarning, stacklevel=5)


def _cannot(backend: str, name: str, error: Exception) -> str:
    return f"backend '{backend}' cannot compute {name} here: {error}"


def _choose(backend: str, name: str, logits: Tensor) -> str:
    if backend not in BACKENDS:
        raise ConfigError(f"backend is one of {', '.join(BACKENDS)}, not '{backend}'")
    if backend == "plain" or logits.numel() == 0:
        return "plain"
    if backend == "triton":
        raise_if(_against_triton(logits), ConfigError)
    if backend != "auto":
        return backend
    if logits.is_cuda:
        return "triton" if works("triton", name) and not _against_triton(logits) else "plain"
    large = logits.device.type == "cpu" and logits.numel() >= WORTH_COMPILING
    return "compiled" if large and works("compiled", name) else "plain"


def _against_triton(logits: Tensor) -> list[str]:
    """Why triton cannot compute this."""
    if not has_triton():
        return ["backend 'triton' needs the package triton, which is not installed"]
    problems = []
    if logits.dtype == torch.float64:
        problems.append("backend 'triton' computes in float32: for float64 take 'plain'")
    if not logits.is_cuda and not _module("triton").INTERPRETED:
        problems.append(f"backend 'triton' needs tensors on a GPU, not on '{logits.device}'")
    return problems


@cache
def has_triton() -> bool:
    """Whether kernels can be had."""
    return find_spec("triton") is not None


@cache
def has_compiler() -> bool:
    """Whether torch.compile finds what it needs."""
    compilers = (os.environ.get("CXX"), "g++", "clang++", "cl")
    return any(name is not None and shutil.which(name) for name in compilers)


@cache
def _module(backend: str) -> ModuleType:
    """Imported where it is used: triton and the compiler take a second or more."""
    return import_module(f"{__name__}.{MODULES[backend]}")


def _answer(
    backend: str, name: str, logits: Tensor, inputs: tuple[Any, ...], options: dict[str, Any]
) -> Answer:
    function, labels = getattr(_module(backend), name), inputs[0]
    if labels.dtype == torch.bool:  # a kernel would read -1, beyond a table's edge, as true
        inputs = (labels.view(torch.int8), *inputs[1:])
    ready = [
        value if value is None or isinstance(value, NUMBERS) else value.contiguous()
        for value in (logits, *inputs)
    ]
    answer: Answer = _on_device_of(logits, function, ready, options)
    return answer


def _on_device_of(
    tensor: Tensor, function: Callable[..., Any], given: list[Any], named: dict[str, Any]
) -> Any:
    """Kernels run on the current device. To ask which that is takes time, to set it more."""
    if not tensor.is_cuda or _one_gpu() or tensor.device.index == torch.cuda.current_device():
        return function(*given, **named)
    with torch.cuda.device(tensor.device):
        return function(*given, **named)


@cache
def _one_gpu() -> bool:
    return torch.cuda.device_count() == 1


class _WithGradient(torch.autograd.Function):
    """A loss whose gradient is there already; going backward only hands it out."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, found: tuple[Tensor, Tensor]) -> Tensor:
        loss, ctx.gradient = found
        ctx.dtype = logits.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None or torch.is_grad_enabled():
            raise PartlyError(
                "the gradient of a fused loss is handed out once and has no gradient of its own: "
                "compute the loss again, or take backend='plain'"
            )
        gradient = _scaled(gradient, slope)
        return gradient if gradient.dtype == ctx.dtype else gradient.to(ctx.dtype), None


def _scaled(gradient: Tensor, slope: Tensor) -> Tensor:
    """The gradient times what follows the loss, mostly 1. A GPU's 1 is seen by the GPU alone: to
    ask for it would make the host wait."""
    if not gradient.is_cuda:
        return gradient if slope == 1 else gradient.mul_(slope)
    if gradient.numel() < WORTH_A_LOOK:
        return gradient.mul_(slope)
    scaled: Tensor = _on_device_of(gradient, _module("triton").scale_, [gradient, slope], {})
    return scaled


def _focus(value: ArrayLike | Tensor, logits: Tensor) -> Tensor | float | None:
    """One number, or one a label; None where it is 0, and all entries count alike."""
    if isinstance(value, (float, int, Real)):  # to ask for Real takes long: not first
        return within("focus", value) or None
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0:
        value = torch.as_tensor(value).expand(logits.shape[-1:])
    return one_a_label("focus", value, logits, "one number, or a tensor of one number a label")


def _check(
    logits: Tensor,
    tables: Mapping[str, Tensor | None],
    words: Mapping[str, tuple[str, tuple[str, ...]]],
) -> None:
    """All that is wrong with tensors and options, at once."""
    check_logits(logits)
    shape, device, problems = logits.shape, logits.device, []
    if len(shape) != 2:
        problems.append(f"logits have shape {tuple(shape)}: give [images, labels]")
    for name, table in tables.items():
        if table is None and name not in NEEDED:
            continue
        if not isinstance(table, Tensor):
            kind = type(table).__name__
            problems.append(f"{name} is a tensor, not {kind}: torch.as_tensor({name})")
        elif table.shape != shape:
            problems.append(
                f"logits have shape {tuple(shape)}, {name} {tuple(table.shape)}: "
                "give both [images, labels]"
            )
        elif table.device != device:
            problems.append(f"logits are on {device}, {name} on {table.device}: give both on one")
    for name, (value, allowed) in words.items():
        if value not in allowed:
            problems.append(f"{name} is one of {', '.join(allowed)}, not '{value}'")
    raise_if(problems, ConfigError)
