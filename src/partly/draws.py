"""Random numbers as a pure function of where they are used.

What enters: a seed and counters (epoch, image row, label column, purpose), as NumPy int64 arrays or
torch int64 tensors. What leaves: a uniform number for each, the same on every platform, whatever
the order, the batch, the number of workers or of ranks.
"""

from typing import Any

import numpy as np

Integers = Any  # np.ndarray or torch.Tensor of int64; the arithmetic is the same

# The finaliser of SplitMix64 (Steele, Lea, Flood 2014), written in signed 64-bit arithmetic so that
# one function serves NumPy and torch: both wrap on overflow, neither has a logical right shift.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64

# One number a purpose, so that two uses of the same seed and row never share their draws.
HIDE, ORDER, PICK, FLIP, HOLD_OUT, START, AUGMENT, CUTOUT, MIX, RANK = range(1, 11)


def _shift_right(bits: Integers, shift: int) -> Integers:
    return (bits >> shift) & (2 ** (64 - shift) - 1)


def _mix(bits: Integers) -> Integers:
    bits = (bits ^ _shift_right(bits, 30)) * _MIX_1
    bits = (bits ^ _shift_right(bits, 27)) * _MIX_2
    return bits ^ _shift_right(bits, 31)


def _wrap(number: int) -> int:
    """A Python integer as the signed 64-bit number with the same low bits."""
    return (number + 2**63) % 2**64 - 2**63


def bits(seed: int, purpose: int, epoch: int, rows: Integers, columns: Integers) -> Integers:
    """63 random bits as int64 for each (row, column), which broadcast against each other."""
    state = 0
    for part in (seed, purpose, epoch):
        state = int(_mix(np.array([_wrap(state + part * _GOLDEN + _GOLDEN)]))[0])
    mixed = _mix(rows * _GOLDEN + state)
    return _shift_right(_mix(mixed + columns * _MIX_1), 1)


def uniform(seed: int, purpose: int, epoch: int, rows: Integers, columns: Integers) -> Integers:
    """A number in [0, 1) for each (row, column): a multiple of 2⁻²⁴, so exact in float32 as well.

    >>> uniform(0, HIDE, 0, np.arange(2), np.array([0])).round(4).tolist()
    [0.9004, 0.9465]
    """
    return _shift_right(bits(seed, purpose, epoch, rows, columns), 39) * 2.0**-24


def seed_of(seed: int, purpose: int, epoch: int, key: int) -> int:
    """A seed for the generator of a library, for what one image draws in one epoch."""
    return int(bits(seed, purpose, epoch, np.array([key], np.int64), np.zeros(1, np.int64))[0])


def order(seed: int, epoch: int, count: int, device: str = "cpu") -> np.ndarray:
    """A permutation of `count` rows for one epoch; a GPU finds the same one, sooner."""
    rows: Integers = np.arange(count, dtype=np.int64)
    column: Integers = np.zeros(1, np.int64)
    if not device.startswith("cuda"):
        return np.argsort(bits(seed, ORDER, epoch, rows, column), kind="stable")
    import torch

    rows, column = (torch.from_numpy(array).to(device) for array in (rows, column))
    return bits(seed, ORDER, epoch, rows, column).argsort(stable=True).cpu().numpy()
