"""What changes while training goes on: pure functions of progress.

What enters: how far training has come. What leaves: the weight d of the unknown part, the share q
of unknown labels that take part, the factor on the learning rate.
"""

import math
from typing import Literal

from partly.errors import ConfigError

Reading = Literal["text", "printed", "off"]


def attention(epoch: int, epochs: int, m: float = 3, reading: str = "text") -> float:
    """The paper's d, the weight of the unknown part; `epoch` counts from 1.

    text     exp((epoch + m)/epochs - 1): below 1 before epoch epochs - m, 1 there, above it after
    printed  exp((epoch + m)/epochs): the formula as printed, above 1 from the start
    off      1

    >>> attention(9, 12, m=3)
    1.0
    """
    for name, value in (("epoch", epoch), ("epochs", epochs), ("m", m)):
        if not hasattr(value, "__float__"):
            raise ConfigError(f"{name} is a number, not {value!r}")
    for value in (epoch, epochs):
        if not 1 <= value < math.inf:
            raise ConfigError(f"epochs count from 1, not {value}")
    if not abs(m) <= 100:
        raise ConfigError(f"m lies between -100 and 100, not at {m}")
    if reading == "off":
        return 1.0
    if reading not in ("text", "printed"):
        raise ConfigError(f"d is read as text, printed or off, not '{reading}'")
    return math.exp((epoch + m) / epochs - (1 if reading == "text" else 0))


def ramp(value: float | str, epoch: int, epochs: int, until: float = 1.0) -> float:
    """A constant, or `"start:end"`: linear from the first epoch to the last, or to the one that
    ends the share `until` of them, and `end` from there on.

    >>> [ramp("0.5:1", epoch, 5) for epoch in (1, 3, 5)]
    [0.5, 0.75, 1.0]
    >>> [ramp("2:0", epoch, 10, until=0.5) for epoch in (1, 3, 5, 10)]
    [2.0, 1.0, 0.0, 0.0]
    """
    try:
        start, _, end = str(value).partition(":")
        first, last = float(start), float(end or start)
    except ValueError:
        raise ConfigError(f"expected a number or start:end, got '{value}'") from None
    if until < 1 and epoch >= until * epochs:
        return last
    return first + (last - first) * (epoch - 1) / max(until * epochs - 1, 1)


def learning_rate_factor(
    step: int, steps: int, warmup: float = 0.05, schedule: str = "cosine"
) -> float:
    """The factor on the learning rate at `step` of `steps`: linear warm-up, then a half cosine.

    `warmup` is a share of all steps; schedule "constant" stays at 1 after the warm-up.
    """
    if schedule not in ("cosine", "constant"):
        raise ConfigError(f"the learning rate's schedule is cosine or constant, not '{schedule}'")
    warm_steps = warmup * steps
    if step < warm_steps:
        return (step + 1) / (warm_steps + 1)
    if schedule == "constant":
        return 1.0
    progress = (step - warm_steps) / max(steps - warm_steps, 1)
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
