"""What a machine can do at most: the floors of the other benchmarks are made of it.

What enters: a device. What leaves: how many bytes a second it copies, and how many operations a
second it does in a matrix product. Measured in the run whose figures are compared with them.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

Work = Callable[[], Any]


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(work: Work, steps: int, device: str) -> float:
    """Seconds of one step."""
    wait(device)
    began = time.perf_counter()
    for _ in range(steps):
        work()
    wait(device)
    return (time.perf_counter() - began) / steps


def bandwidth(device: str, rounds: int = 5) -> float:
    """Bytes a second, read and written, of a copy that no cache holds."""
    source = torch.rand(1 << (28 if device == "cuda" else 25), device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _usual(lambda: target.copy_(source), device, rounds)


def arithmetic(device: str, rounds: int = 5) -> float:
    """Operations a second of a product of large matrices: bfloat16 on a GPU, float32 on a CPU."""
    gpu = device == "cuda"
    side, kind = (8192, torch.bfloat16) if gpu else (2048, torch.float32)
    one, other = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
    target = torch.empty_like(one)
    return 2 * side**3 / _usual(lambda: torch.mm(one, other, out=target), device, rounds)


def _usual(work: Work, device: str, rounds: int) -> float:
    """The median of its seconds; the first round warms up."""
    return statistics.median([timed(work, 3, device) for _ in range(rounds + 1)][1:])
