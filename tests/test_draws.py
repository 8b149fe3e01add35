"""Random numbers as a function of (seed, purpose, epoch, row, column)."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from partly import draws

PURPOSES = (draws.HIDE, draws.ORDER, draws.PICK, draws.FLIP, draws.HOLD_OUT, draws.START)
ROWS, COLUMNS = np.arange(500, dtype=np.int64)[:, None], np.arange(200, dtype=np.int64)


def grid(seed: int = 0, purpose: int = draws.PICK, epoch: int = 1) -> np.ndarray:
    return draws.uniform(seed, purpose, epoch, ROWS, COLUMNS)


@given(
    st.integers(-(2**70), 2**70),
    st.sampled_from(PURPOSES),
    st.integers(0, 10**6),
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5),
    st.lists(st.integers(0, 2**31), min_size=1, max_size=5),
)
def test_numpy_and_torch_agree_bit_for_bit(
    seed: int, purpose: int, epoch: int, rows: list[int], columns: list[int]
) -> None:
    places = np.array(rows, dtype=np.int64)[:, None], np.array(columns, dtype=np.int64)
    tensors = [torch.from_numpy(place) for place in places]
    bits = draws.bits(seed, purpose, epoch, *places)
    assert bits.dtype == np.int64
    assert (bits >= 0).all()
    assert bits.tolist() == draws.bits(seed, purpose, epoch, *tensors).tolist()
    uniform = draws.uniform(seed, purpose, epoch, *places)
    assert ((uniform >= 0) & (uniform < 1)).all()
    assert (uniform == uniform.astype(np.float32)).all()
    assert uniform.tolist() == draws.uniform(seed, purpose, epoch, *tensors).tolist()


def test_the_same_everywhere() -> None:
    rows, columns = np.array([[0], [1], [82_080]]), np.array([0, 79])
    literal = [
        [6878718426364478356, 8903203631567339030],
        [4037386343767086689, 470323075664013845],
        [8758706090433880565, 5453424964450167524],
    ]
    assert draws.bits(1200, draws.HIDE, 3, rows, columns).tolist() == literal
    assert draws.order(7, 2, 8).tolist() == [2, 6, 3, 4, 5, 7, 1, 0]


def test_uniform() -> None:
    numbers = grid()
    counts, _ = np.histogram(numbers, bins=64, range=(0, 1))
    assert chisquare(counts).pvalue > 1e-3
    for axis in (0, 1):  # within every row and every column, too
        size = numbers.shape[axis]
        assert abs(numbers.mean(axis=axis) - 0.5).max() < 5 / np.sqrt(12 * size)


@pytest.mark.parametrize(
    "other",
    [
        grid(seed=1),
        grid(seed=2**32),
        grid(seed=-1),
        grid(epoch=2),
        grid(epoch=0),
        np.roll(grid(), 1, axis=0),
        np.roll(grid(), 1, axis=1),
        grid()[::-1],
        *(grid(purpose=purpose) for purpose in PURPOSES if purpose != draws.PICK),
    ],
)
def test_other_counters_give_unrelated_numbers(other: np.ndarray) -> None:
    numbers = grid()
    correlation = np.corrcoef(numbers.ravel(), other.ravel())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(numbers.size)
    assert (numbers == other).mean() < 1e-3


def test_seed_purpose_and_epoch_do_not_stand_in_for_each_other() -> None:
    parts = [(a, b, c) for a in range(4) for b in range(4) for c in range(4)]
    first = {int(draws.bits(*part, ROWS[:1], COLUMNS[:1])[0, 0]) for part in parts}
    assert len(first) == len(parts)


def test_a_number_does_not_depend_on_its_batch() -> None:
    whole = grid()
    shuffled = np.random.default_rng(0).permutation(len(ROWS))
    for rows in (shuffled, shuffled[:3], np.array([7])):
        part = draws.uniform(0, draws.PICK, 1, rows[:, None], COLUMNS[::-1])
        assert (part == whole[rows][:, ::-1]).all()
    single = draws.uniform(0, draws.PICK, 1, np.array([9]), np.array([4]))
    assert single.tolist() == [whole[9, 4]]


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_order_is_a_permutation(count: int) -> None:
    assert sorted(draws.order(3, 1, count)) == list(range(count))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_finds_the_same_order() -> None:
    assert np.array_equal(draws.order(3, 1, 100_000, "cuda"), draws.order(3, 1, 100_000))


def test_order_is_new_every_epoch_and_with_every_seed() -> None:
    orders = [draws.order(seed, epoch, 50).tolist() for seed in range(3) for epoch in range(3)]
    assert all(one != other for one, other in pairwise(sorted(orders)))
    first = np.bincount([draws.order(0, epoch, 8)[0] for epoch in range(800)], minlength=8)
    assert chisquare(first).pvalue > 1e-3
