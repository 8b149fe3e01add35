"""Rows that a kernel moves are those that plain operations move.

The kernel runs in Triton's interpreter, on the CPU, in a process of its own; as it is where there
is a GPU.
"""

import os
from unittest import mock

import pytest
import torch

from builders import Compiled, passes_interpreted
from partly import sampled
from partly.errors import PartlyWarning
from partly.losses import fused

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
LABELS, DRAWN = 40, 9


def test_where_the_kernel_cannot_be_made_plain_operations_move_the_rows() -> None:
    """As the losses do."""

    class OnGpu(torch.Tensor):
        is_cuda = True

    weights = torch.ones(3, 2).as_subclass(OnGpu)
    tables = weights, torch.zeros(3, 2), torch.zeros(3, 2)
    given = torch.tensor([1]), torch.ones(1, 2), None, torch.tensor(0.5)
    broken = mock.Mock(move_rows=mock.Mock(side_effect=RuntimeError("no compiler for you")))
    with (
        mock.patch.object(sampled, "import_module", return_value=broken),
        mock.patch.object(fused, "has_triton", return_value=True),
        mock.patch.object(fused, "_given_up", set()),
    ):
        with pytest.warns(PartlyWarning, match="'triton' cannot compute move_rows here: no"):
            sampled.move(*tables, *given)
        assert not fused.works("triton", "move_rows")
        assert (weights[1] < 1).all()
        sampled.move(*tables, *given)
    assert broken.move_rows.call_count == 1


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("pull", [None, torch.ones(2)])
def test_the_kernel_can_be_compiled(pull: torch.Tensor | None) -> None:
    pytest.importorskip("triton")
    from partly import row_kernels

    kernel = Compiled(row_kernels._move_kernel)
    with mock.patch.object(row_kernels, "_move_kernel", kernel):
        for shape in ((40,), (40, 512)):
            tables = [torch.zeros(shape) for _ in range(3)]
            given = torch.arange(2), torch.zeros(2, *shape[1:]), pull, torch.tensor(0.1)
            row_kernels.move_rows(*tables, *given, betas=sampled.BETAS, epsilon=sampled.EPSILON)
    assert kernel.launches == 2


def test_rows_in_the_interpreter() -> None:
    passes_interpreted(__file__, "as_plain")


@pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="no GPU")
@pytest.mark.parametrize("shape", [(), (1,), (7,), (512,), (1500,)])
@pytest.mark.parametrize("pulled", [False, True])
def test_as_plain_operations(
    shape: tuple[int, ...], pulled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from partly import row_kernels

    monkeypatch.setattr(row_kernels, "WIDEST", 128)
    device = "cpu" if INTERPRETED else "cuda"
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(device)

    weights, mean, square = (normal(LABELS, *shape) for _ in range(3))
    tables = weights, mean, square.square()
    columns = torch.randperm(LABELS, generator=generator)[:DRAWN].to(device)
    gradient, pull = normal(DRAWN, *shape), normal(DRAWN).square() if pulled else None
    given = columns, gradient, pull, torch.tensor(0.01, device=device)
    expected, found = ([table.clone() for table in tables] for _ in range(2))
    choices = {"betas": sampled.BETAS, "epsilon": sampled.EPSILON}
    sampled.move_rows(*expected, *given, **choices)
    row_kernels.move_rows(*found, *given, **choices)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=5e-6)
    still = torch.ones(LABELS, dtype=torch.bool)
    still[columns.cpu()] = False
    assert torch.equal(found[0].cpu()[still], weights.cpu()[still])
    assert not torch.equal(found[0], weights)
