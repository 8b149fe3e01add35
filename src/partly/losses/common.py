"""What all losses share: masks, stable terms, reductions.

Letters: B images in the batch, L labels. Logits [B, L] enter, never probabilities; labels [B, L]
are 1 positive, 0 negative, -1 unknown.
"""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import logsigmoid

from partly.errors import ConfigError
from partly.labels import NEGATIVE, POSITIVE

Reduction = Literal["mean", "sum", "none"]


def check_logits(logits: Tensor, name: str = "logits") -> None:
    """They are a tensor of real numbers."""
    if not (isinstance(logits, Tensor) and logits.is_floating_point()):
        kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise ConfigError(f"{name}: a tensor of real numbers [images, labels], not {kind}")


def within(name: str, value: Any, least: float = 0.0, most: float = 1e6) -> Any:
    """An option that is a number between these. Tensors are taken as they are, unseen."""
    if type(value) is float and least <= value <= most:  # mostly, and asking is quicker
        return value
    if isinstance(value, Tensor):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name} is a number, not '{value}'") from None
    if not least <= number <= most:
        raise ConfigError(f"{name} lies between {least:g} and {most:g}, not at {value}")
    return number


def working(logits: Tensor, name: str = "logits") -> Tensor:
    """Half precision is computed in float32; float32 and float64 stay what they are."""
    check_logits(logits, name)
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def check_pseudo(pseudo: Tensor) -> None:
    """They are as `PseudoLabels` keeps them, or a model says them."""
    if not isinstance(pseudo, Tensor):
        kind = type(pseudo).__name__
        raise ConfigError(f"pseudo is a tensor, not {kind}: torch.as_tensor(pseudo)")
    if pseudo.dtype != torch.uint8 and not pseudo.is_floating_point():
        kinds = "probabilities (.float() makes them), or uint8 in steps of 1/255"
        raise ConfigError(f"pseudo: a tensor of {kinds}, not of {pseudo.dtype}")


def unpack(pseudo: Tensor, dtype: torch.dtype) -> Tensor:
    """Pseudo-labels as numbers in [0, 1], however they are kept."""
    check_pseudo(pseudo)
    return pseudo.to(dtype) / 255 if pseudo.dtype == torch.uint8 else pseudo.to(dtype)


def beside(logits: Tensor, value: Tensor) -> Tensor:
    """A few numbers as they are computed with beside these logits."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if value.dtype == dtype and value.device == logits.device:  # mostly, and asking is quicker
        return value
    return value.to(device=logits.device, dtype=dtype)


def masks(labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where labels are positive, negative and unknown."""
    if not isinstance(labels, Tensor):
        kind = type(labels).__name__
        raise ConfigError(f"labels are a tensor, not {kind}: torch.as_tensor(labels)")
    positive, negative = labels == POSITIVE, labels == NEGATIVE
    return positive, negative, ~(positive | negative)


def check_shapes(logits: Tensor, labels: Tensor, name: str = "labels") -> None:
    """Logits and labels must be of one shape: broadcasting would hide a mistake."""
    if not isinstance(labels, Tensor):
        kind = type(labels).__name__
        raise ConfigError(f"{name} is a tensor, not {kind}: torch.as_tensor({name})")
    if logits.shape != labels.shape:
        raise ConfigError(
            f"logits have shape {tuple(logits.shape)}, {name} {tuple(labels.shape)}: "
            "give both [images, labels]"
        )


def as_chance(name: str, chance: ArrayLike | Tensor, logits: Tensor) -> Tensor | float:
    """c₊ or c₋ beside these logits: one number, one a label [L], an image [B, 1] or an entry.

    Numbers and arrays must lie between 0 and 1. A tensor is taken as it is: whoever looks at its
    values waits for the GPU.
    """
    if isinstance(chance, float) and 0 <= chance <= 1:
        return chance
    if not isinstance(chance, Tensor):
        try:
            values = np.asarray("" if chance is None else chance, dtype=np.float64)
        except (TypeError, ValueError):
            raise ConfigError(f"{name} is a chance, or one a label, not {chance!r}") from None
        outside = values[~((values >= 0) & (values <= 1))]
        if outside.size:
            raise ConfigError(f"{name} is a chance between 0 and 1, not {outside.flat[0]:g}")
        if not values.ndim:
            return float(values)
        chance = torch.from_numpy(values)
    layout_of(chance, logits.shape, name)
    return beside(logits, chance)


def one_a_label(
    name: str,
    value: ArrayLike | Tensor,
    logits: Tensor,
    wanted: str = "a tensor of one number a label",
) -> Tensor:
    """Beside these logits."""
    try:
        given = value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"{name} is {wanted}, not {value!r}") from None
    if given.shape != logits.shape[-1:]:
        expected = f"one number a label [{logits.shape[-1]}]"
        raise ConfigError(f"{name}: expected {expected}, not shape {tuple(given.shape)}")
    return beside(logits, given)


def layout_of(value: Tensor | float, shape: torch.Size, name: str = "the value") -> str:
    """Whether there is one number for all entries, one a label [L], an image [B, 1] or an entry."""
    if not isinstance(value, Tensor):
        return "number"
    if value.ndim == 1 and shape and value.shape[0] == shape[-1]:  # mostly, and asking is quicker
        return "label"
    images, labels = shape if len(shape) == 2 else (1, shape[-1] if shape else 1)
    own = (1,) * (2 - value.ndim) + tuple(value.shape)
    layouts = {(1, 1): "one", (1, labels): "label", (images, 1): "image", (images, labels): "entry"}
    if own not in layouts:
        raise ConfigError(
            f"{name}: expected one number, one a label [{labels}], one an image [{images}, 1] or "
            f"one an entry [{images}, {labels}], not shape {tuple(value.shape)}"
        )
    return layouts[own]


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
