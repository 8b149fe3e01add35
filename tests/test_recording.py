"""What is recorded does what it would have done.

Recordings need a GPU; when one is made and which is replayed does not.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from partly import recording, starting, training
from partly.errors import PartlyWarning
from partly.recording import Recorder
from test_sampled import config, many_labels

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


class Told:
    """Stands for a recording: what replays it tells the work again."""

    def __init__(self, work: Callable[..., Tensor], places: list[Tensor], answer: Tensor) -> None:
        self.work, self.places, self.answer = work, places, answer

    def replay(self) -> None:
        self.answer.copy_(self.work(*self.places))


class OnCpu(Recorder):
    """A recorder that needs no GPU, and may fail to record."""

    fails: RuntimeError | None = None

    def _record(self, work: Callable[..., Tensor], given: tuple[Tensor, ...]) -> Any:
        if self.fails is not None:
            raise self.fails
        places = [tensor.clone() for tensor in given]
        answer = torch.zeros_like(work(*places))
        return Told(work, places, answer), places, answer


def test_what_comes_again_is_recorded_with_what_it_is_given() -> None:
    recorder = OnCpu()
    for number in range(8):
        for size in (2, 3):
            values = torch.arange(size) + number
            for factor in (1, 10):  # what the work depends on beside the tensors
                found = recorder(lambda v, by=factor: v * by, values, key=factor)
                assert torch.equal(found, values * factor)
    assert len(recorder.recorded) == 4
    assert recorder.replayed == 4 * (8 - recording.BEFORE)


def test_shapes_beyond_the_most_go_on_as_ever() -> None:
    recorder = OnCpu()
    for _ in range(recording.BEFORE + 1):
        for size in range(1, recording.MOST + 4):
            assert torch.equal(recorder(torch.neg, torch.ones(size)), -torch.ones(size))
    assert len(recorder.recorded) == recorder.replayed == recording.MOST


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("not today\nreally"), "not today"),
        (RuntimeError(), r"RuntimeError\(\)"),
        (torch.cuda.OutOfMemoryError("no room"), "no room"),  # the step itself may fit
    ],
)
def test_after_one_failure_nothing_is_recorded(error: RuntimeError, reason: str) -> None:
    recorder = OnCpu()
    recorder.fails = error
    for _ in range(recording.BEFORE):
        recorder(torch.neg, torch.ones(2))
    with pytest.warns(PartlyWarning, match=f"goes on as ever: {reason}$"):
        assert recorder(torch.neg, torch.ones(2)).sum() == -2
    recorder.fails = None
    for size in (2, 3, 3, 3, 3):  # neither this shape nor another
        assert recorder(torch.neg, torch.ones(size)).sum() == -size
    assert not recorder.recorded


@needs_gpu
def test_what_is_replayed_is_what_is_told() -> None:
    total, recorder = torch.zeros((), device="cuda"), Recorder()

    def work(values: Tensor, factor: Tensor) -> Tensor:
        total.add_(values.sum())
        return (values * factor).sum()

    expected = 0.0
    for number in range(12):
        size = 3 + number % 2
        values = torch.arange(size, device="cuda") + number
        found = recorder(work, values, torch.tensor(2.0, device="cuda"))
        assert found.item() == 2 * values.sum().item()
        expected += values.sum().item()
    assert total.item() == expected
    assert recorder.replayed == 12 - 2 * recording.BEFORE


@needs_gpu
def test_what_cannot_be_recorded_goes_on_as_ever() -> None:
    recorder = Recorder()

    def asks(values: Tensor) -> Tensor:
        return values * values.sum().item()

    values, stream = torch.ones(3, device="cuda"), torch.cuda.current_stream()
    for _ in range(recording.BEFORE):
        assert recorder(asks, values).sum() == 9
    with pytest.warns(PartlyWarning, match="cannot be recorded"):
        assert recorder(asks, values).sum() == 9
    assert recorder(asks, values).sum() == 9
    assert recorder.replayed == 0
    assert torch.cuda.current_stream() == stream


@needs_gpu
def test_one_recorder_after_another_keeps_no_more_memory() -> None:
    values, kept = torch.ones(256, 256, device="cuda"), []
    for _ in range(4):
        recorder = Recorder()
        for _ in range(recording.BEFORE + 2):
            recorder(torch.mm, values, values)
        assert recorder.replayed == 2
        del recorder
        kept.append(torch.cuda.memory_allocated())
    assert kept == kept[:1] * 4


@needs_gpu
def test_a_gpu_draws_what_a_cpu_draws() -> None:
    table, found = many_labels(), {}
    for device in ("cpu", "cuda"):
        state = starting.start(table, config(device=device).complete(table))
        packed = []
        for state.epoch in (1, 2):
            for rows, _ in state.batches():
                packed.append(state.sampled.draw(rows.numpy(), state.epoch, state.step))
                state.step += 1
        found[device] = [[part.cpu() for part in one.open()] for one in packed]
    for here, there in zip(*found.values(), strict=True):
        torch.testing.assert_close(there, here, rtol=0, atol=0)


@needs_gpu
@pytest.mark.parametrize("more", [{}, {"clip": 0.001}, {"head_decay": 1e-6}])
def test_a_recorded_training_is_one_that_is_not(more: dict[str, float]) -> None:
    found = {}
    for recorded in (True, False):
        table = many_labels()
        state = starting.start(table, config(device="cuda", **more).complete(table))
        assert isinstance(state.recorder, Recorder)
        recorder = state.recorder
        if not recorded:
            state.recorder = None
        losses = []
        for state.epoch in range(1, 5):
            for rows, inputs in state.batches():
                losses.append(training.take_step(state, rows, inputs).item())
        assert (recorder.replayed > 20) == recorded
        found[recorded] = losses, state.loss_sum.item(), state.model.head.weight.cpu().numpy()
    np.testing.assert_allclose(found[True][0], found[False][0], rtol=1e-4)
    np.testing.assert_allclose(found[True][1], found[False][1], rtol=1e-4)
    np.testing.assert_allclose(found[True][2], found[False][2], atol=2e-3)


@pytest.mark.parametrize(
    ("options", "steady"),
    [
        ({}, True),
        ({"weight": 0.5}, True),
        ({"weight": "0:1"}, False),
        ({"q": "0.1:0.2"}, False),
        ({"surprise": "1:0"}, False),
    ],
)
def test_what_a_step_does_is_known_to_change(options: dict[str, object], steady: bool) -> None:
    given = {"q": 0.05, "teacher": "self", "focus": 0.0, **options}
    table = many_labels()
    state = starting.start(table, config(options=given).complete(table))
    assert state.training.steady == steady


@needs_gpu
@pytest.mark.parametrize(
    "more",
    [
        {"options": {"q": 0.05, "weight": "0:1", "teacher": "self", "focus": 0.0}},
        {"method": "paper", "options": {"q": 0.05}},
        {"backbone": "mlp:8"},
        {"head": "full", "options": {"teacher": "self"}},
    ],
)
def test_what_changes_from_epoch_to_epoch_is_not_recorded(more: dict[str, object]) -> None:
    table = many_labels()
    assert starting.start(table, config(device="cuda", **more).complete(table)).recorder is None
