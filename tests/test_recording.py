"""What is recorded does what it would have done. All of it needs a GPU."""

import numpy as np
import pytest
import torch
from torch import Tensor

from partly import recording, starting, training
from partly.errors import PartlyWarning
from partly.recording import Recorder
from test_sampled import config, many_labels

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


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

    values = torch.ones(3, device="cuda")
    for _ in range(recording.BEFORE):
        assert recorder(asks, values).sum() == 9
    with pytest.warns(PartlyWarning, match="cannot be recorded"):
        assert recorder(asks, values).sum() == 9
    assert recorder(asks, values).sum() == 9
    assert recorder.replayed == 0


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
