"""What changes while training goes on."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partly.errors import ConfigError
from partly.schedules import attention, learning_rate_factor, ramp


@given(st.integers(4, 200), st.integers(0, 3))
def test_attention_as_the_text_says(epochs: int, m: int) -> None:
    weights = [attention(epoch, epochs, m) for epoch in range(1, epochs + 1)]
    assert all(weight < 1 for weight in weights[: epochs - m - 1])
    assert weights[epochs - m - 1] == 1
    assert all(weight > 1 for weight in weights[epochs - m :])
    assert all(one < other for one, other in pairwise(weights))


@pytest.mark.parametrize(("epoch", "epochs", "m"), [(1, 12, 3), (9, 12, 3), (12, 12, 0), (5, 7, 2)])
def test_attention_by_hand(epoch: int, epochs: int, m: int) -> None:
    printed = math.exp((epoch + m) / epochs)
    assert attention(epoch, epochs, m, "printed") == pytest.approx(printed)
    assert attention(epoch, epochs, m, "text") == pytest.approx(printed / math.e)
    assert attention(epoch, epochs, m, "off") == 1
    assert attention(epoch, epochs, m, "printed") > 1


def test_attention_defaults_and_errors() -> None:
    assert attention(2, 10) == attention(2, 10, 3, "text")
    with pytest.raises(ConfigError, match="text, printed or off, not 'formula'"):
        attention(1, 10, reading="formula")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0.2:1", [0.2, 0.4, 0.6, 0.8, 1.0]),
        ("1:0", [1.0, 0.75, 0.5, 0.25, 0.0]),
        (0.3, [0.3] * 5),
        ("0.3", [0.3] * 5),
        (1, [1.0] * 5),
    ],
)
def test_ramp(value: float | str, expected: list[float]) -> None:
    assert [ramp(value, epoch, 5) for epoch in range(1, 6)] == pytest.approx(expected)


def test_ramp_of_a_single_epoch_starts() -> None:
    assert ramp("0.2:1", 1, 1) == 0.2


@pytest.mark.parametrize("value", ["", "half", "0.1:b", ":1", "0:1:2"])
def test_ramp_refuses(value: str) -> None:
    with pytest.raises(ConfigError, match=f"got '{value}'"):
        ramp(value, 1, 5)


@given(st.integers(10, 500), st.floats(0, 0.9), st.sampled_from(["cosine", "constant"]))
def test_learning_rate_shape(steps: int, warmup: float, schedule: str) -> None:
    factors = [learning_rate_factor(step, steps, warmup, schedule) for step in range(steps + 1)]
    warm = math.ceil(warmup * steps)
    assert all(0 < factor <= 1 for factor in factors[:warm])
    assert all(one < other for one, other in pairwise(factors[:warm]))
    after = factors[warm:]
    if schedule == "constant":
        assert set(after) <= {1.0}
    else:
        assert all(one >= other for one, other in pairwise(after))
        assert factors[-1] == pytest.approx(0, abs=1e-12)
        assert all(factor > 0 for factor in factors[:-1])


def test_learning_rate_by_hand() -> None:
    assert [learning_rate_factor(step, 20, 0.2) for step in (0, 1, 3, 4)] == pytest.approx(
        [0.2, 0.4, 0.8, 1.0]
    )
    assert learning_rate_factor(12, 20, 0.2) == pytest.approx(0.5)
    assert learning_rate_factor(25, 20, 0.2) == pytest.approx(0)
    assert learning_rate_factor(0, 20, 0) == 1
    with pytest.raises(ConfigError, match="cosine or constant, not 'step'"):
        learning_rate_factor(0, 10, schedule="step")
