# mypy: disable-error-code="no-untyped-def"
# (what enters a kernel is a pointer, a number or a block: nothing that Python has a type for)
"""`sampled.move_rows` in one pass, as a Triton kernel for NVIDIA GPUs.

What enters and leaves is what that function takes and changes; each number of a row is read once
and written once. With TRITON_INTERPRET=1 set before this module is imported it runs on the CPU,
slowly.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 1024  # numbers of a row that a program moves


@triton.jit
def _move_kernel(
    weights,
    mean,
    square,
    columns,
    gradient,
    pull,
    pace,
    width,
    keep_mean,
    keep_square,
    epsilon,
    WIDTH: tl.constexpr,
):
    place = tl.program_id(0)
    number = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = number < width
    row = tl.load(columns + place).to(tl.int64) * width + number
    weight = tl.load(weights + row, mask=inside, other=0.0)
    own = place.to(tl.int64) * width + number
    slope = tl.load(gradient + own, mask=inside, other=0.0).to(tl.float32)
    if pull is not None:
        slope += weight * tl.load(pull + place)
    first = tl.load(mean + row, mask=inside, other=0.0)
    first = first * keep_mean + (1 - keep_mean) * slope
    second = tl.load(square + row, mask=inside, other=0.0)
    second = second * keep_square + (1 - keep_square) * slope * slope
    weight -= tl.load(pace) * first / (tl.sqrt(second) + epsilon)
    tl.store(mean + row, first, mask=inside)
    tl.store(square + row, second, mask=inside)
    tl.store(weights + row, weight, mask=inside)


def move_rows(
    weights: Tensor,
    mean: Tensor,
    square: Tensor,
    columns: Tensor,
    gradient: Tensor,
    pull: Tensor | None,
    pace: Tensor,
    *,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    count, width = len(columns), weights[0].numel()
    block = min(triton.next_power_of_2(width), WIDEST)
    with torch.cuda.device_of(weights):
        _move_kernel[(count, triton.cdiv(width, block))](
            weights, mean, square, columns, gradient.contiguous(), pull, pace, width, *betas,
            epsilon, WIDTH=block, num_warps=max(1, min(4, block // 128)), enable_fp_fusion=True,
        )  # fmt: skip
