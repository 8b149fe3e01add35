"""c₊, c₋ and the priors: by hand, and on labels hidden from a known truth."""

import numpy as np
import pytest

from partly import answers
from partly.answers import Answer
from partly.errors import ConfigError
from partly.hiding import hide
from partly.labels import LabelTable
from partly.propensity import ASSUMED_SHARE, estimate


@pytest.fixture(scope="module")
def table() -> LabelTable:
    """4 images × 5 labels: 3 known positives, 5 known negatives, nothing on the last label."""
    return LabelTable.from_dense(
        [[1, 0, -1, 0, -1], [1, -1, -1, 0, -1], [-1, 1, -1, 0, -1], [-1, -1, 0, -1, -1]]
    )


def test_given_the_expected_positives(table: LabelTable) -> None:
    """One ratio for all labels, with which the priors add up; what is known of each is its own."""
    expected, labels = 1.6, table.dense()
    labels[2, 0] = 0  # no label of which only positives are known
    table = LabelTable.from_dense(labels)
    found = estimate(table, expected_positives=expected)
    two_sided = [1]  # one of the labels with both: its P : N is 1 : 1
    ratio = found.positive[two_sided] / found.negative[two_sided]
    counts = table.counts_by_label()
    priors = counts.positive / ratio / np.maximum(counts.positive / ratio + counts.negative, 1e-9)
    assert priors.sum() == pytest.approx(expected)
    share = priors * found.positive + (1 - priors) * found.negative
    assert share[1:4] == pytest.approx((counts.positive + counts.negative)[1:4] / 4)
    assert "1.6 positives an image were given" in found.source


def test_missing_at_random_where_negatives_are_known(table: LabelTable) -> None:
    found = estimate(table)
    # The known share of each label; ½ and 0 for the first, of which no negative is known.
    assert found.positive == pytest.approx([0.5, 2 / 4, 1 / 4, 3 / 4, 0])
    assert found.negative == pytest.approx([0.0, 2 / 4, 1 / 4, 3 / 4, 0])
    assert "missing at random" in found.source
    # (positives / c + mean) / (known / c + 1), the mean being 4 + 2 of 4 · 4.
    mean = 6 / 16
    expected = [(4 + mean) / 5, (2 + mean) / 5, mean / 5, mean / 5, mean]
    assert found.priors == pytest.approx(expected)
    assert found.expected_positives == pytest.approx(sum(expected))


def test_assumed_where_only_positives_are_known(table: LabelTable) -> None:
    found = estimate(table.keep(table.values == 1))
    assert (found.positive == ASSUMED_SHARE).all()
    assert (found.negative == 0).all()
    assert "50 % of them all, as is assumed" in found.source
    # (positives / c + mean) / (images + 1), the mean being 3 / ½ of 20; never above 0.99.
    assert found.priors == pytest.approx([(4 + 0.3) / 5, (2 + 0.3) / 5, 0.06, 0.06, 0.06])


@pytest.mark.parametrize(
    ("setting", "positive", "negative", "tell"),
    [
        ("fal", 1, 1, False),
        ("fal", 1, 1, True),
        ("pal:0.3", 0.3, 0.3, False),
        ("pal:0.3", 0.3, 0.3, True),
        ("ppl:0.6", 0.6, 0, True),
        ("ppl:0.5", 0.5, 0, False),
    ],
)
def test_close_to_the_truth(
    full_labels: np.ndarray, setting: str, positive: float, negative: float, tell: bool
) -> None:
    true_priors = full_labels.mean(axis=0)
    expected = float(true_priors.sum())
    hidden = hide(LabelTable.from_dense(full_labels), setting, seed=1)
    found = estimate(hidden, expected if tell else None)
    assert found.positive == pytest.approx(positive, rel=0.2)  # each label's own share
    assert found.negative == pytest.approx(negative, rel=0.2)
    assert found.positive.mean() == pytest.approx(positive, rel=0.05)
    assert found.negative.mean() == pytest.approx(negative, rel=0.05)
    assert found.expected_positives == pytest.approx(expected, rel=0.05)
    assert np.abs(found.priors - true_priors).max() < 0.04
    assert np.corrcoef(found.priors, true_priors)[0, 1] > 0.99


def test_single_positive(full_labels: np.ndarray) -> None:
    expected = float(full_labels.sum(axis=1).mean())
    found = estimate(hide(LabelTable.from_dense(full_labels), "spl"), expected)
    share = (full_labels == 1).any(axis=1).sum() / full_labels.sum()
    assert found.positive == pytest.approx(share)
    assert found.single
    assert not estimate(hide(LabelTable.from_dense(full_labels), "ppl:0.3"), expected).single
    assert found.expected_positives == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("expected", [0, -1, 5, 7.5, float("nan"), float("inf")])
def test_impossible_expected_positives(table: LabelTable, expected: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 5"):
        estimate(table, expected)


@pytest.mark.parametrize(
    "values",
    [
        [[-1, -1], [-1, -1]],
        [[0, 0], [0, -1]],
        [[1, 1], [1, 1]],
        [[1, -1], [1, -1]],
        [[1, -1], [0, -1]],
    ],
)
@pytest.mark.parametrize("expected", [None, 0.01, 1.99])
def test_priors_are_sane_whatever_is_known(values: list, expected: float | None) -> None:
    table = LabelTable.from_dense(values)
    if expected == 0.01 and (table.values == 1).any():
        with pytest.raises(ConfigError, match="the expectation is too low"):
            estimate(table, expected)
        return
    found = estimate(table, expected)
    assert ((found.priors > 0) & (found.priors < 1)).all()
    for chance in (found.positive, found.negative):
        assert ((chance >= 0) & (chance <= 1)).all()
    assert found.expected_positives == pytest.approx(found.priors.sum())


def test_labels_that_are_missing_not_at_random() -> None:
    """Each label is annotated at its own rate, positives three times as often as negatives."""
    generator = np.random.default_rng(0)
    full = (generator.random((40_000, 6)) < [0.3, 0.2, 0.1, 0.3, 0.2, 0.1]).astype(np.int8)
    chance = np.array([0.05, 0.05, 0.05, 0.3, 0.3, 0.3])
    known = generator.random(full.shape) < np.where(full == 1, 3 * chance, chance)
    table = LabelTable.from_dense(np.where(known, full, np.int8(-1)))
    found = estimate(table, expected_positives=float(full.sum(axis=1).mean()))
    assert found.positive == pytest.approx(3 * chance, rel=0.1)
    assert found.negative == pytest.approx(chance, rel=0.1)
    assert found.priors == pytest.approx(full.mean(axis=0), abs=0.02)
    assert "3 times as likely" in found.source


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("fal", "every label is known"),
        ("pal:0.3", "as in PAL"),
        ("ppl:0.6", "only positives are known"),
        ("spl", "as in SPL"),
    ],
)
def test_it_is_said_what_the_labels_resemble(
    full_labels: np.ndarray, setting: str, said: str
) -> None:
    assert said in estimate(hide(LabelTable.from_dense(full_labels), setting)).source


def test_labels_of_which_only_positives_are_known_among_others() -> None:
    generator = np.random.default_rng(0)
    full = (generator.random((20_000, 20)) < 0.1).astype(np.int8)
    known = generator.random(full.shape) < np.where(full == 1, 0.5, 0.3)
    known[:, :16] = generator.random((20_000, 16)) < 0.3
    known[:, 16:] &= full[:, 16:] == 1
    table = LabelTable.from_dense(np.where(known, full, np.int8(-1)))
    for expected in (None, float(full.sum(axis=1).mean())):
        found = estimate(table, expected)
        assert found.positive == pytest.approx([0.3] * 16 + [0.5] * 4, rel=0.1)
        assert found.negative == pytest.approx([0.3] * 16 + [0.0] * 4, rel=0.1)
        assert found.priors == pytest.approx(full.mean(axis=0), abs=0.02)
        assert "of 4 labels only positives" in found.source


def test_a_guess_counts_where_nothing_else_says_it():
    labels = np.array([[1, 1, 1], [0, -1, 1], [-1, 1, 1], [0, -1, 1]])  # of the last all is known
    facts = estimate(LabelTable.from_dense(labels), guessed_share=0.8)
    assert facts.positive[1] == pytest.approx(0.8)
    assert facts.negative[1] == 0
    assert facts.positive[2] == 1
    assert "of 1 label only positives, 80 % of them all, by a rough guess" in facts.source
    only = np.where(labels == 0, -1, labels)[:, :2]
    assert estimate(LabelTable.from_dense(only), guessed_share=0.8).positive.tolist() == [0.8, 0.8]
    told = estimate(LabelTable.from_dense(only), 1.5, guessed_share=0.8)
    assert told.positive.tolist() == [0.5, 0.5]  # 3 of 4·1.5


def test_a_given_number_reaches_the_labels_that_need_it():
    """Of two labels everything is known: what is missing of the number is of the others."""
    generator = np.random.default_rng(0)
    labels = (generator.random((2000, 4)) < 0.3).astype(np.int8)
    expected = labels.sum(axis=1).mean()
    hidden = generator.random((2000, 2)) < 0.25
    labels[:, 2:] = np.where((labels[:, 2:] == 1) & ~hidden, 1, -1)
    facts = estimate(LabelTable.from_dense(labels), expected)
    assert facts.positive == pytest.approx([1, 1, 0.75, 0.75], abs=0.03)
    assert facts.negative.tolist() == [1, 1, 0, 0]
    assert facts.expected_positives == pytest.approx(expected, rel=0.01)
    assert "% of them all, as 1.21 were given" in facts.source
    with pytest.raises(ConfigError, match="the expectation is too low"):
        estimate(LabelTable.from_dense(labels), 0.9)


def test_where_all_is_known_a_given_number_changes_nothing():
    labels = np.array([[1, 0], [0, 1], [0, 0]])
    facts = estimate(LabelTable.from_dense(labels), 1.5)
    assert facts.positive.tolist() == [1, 1]
    assert facts.negative.tolist() == [1, 1]
    assert "changes nothing" in facts.source


def asked_about(start: np.ndarray, truth: np.ndarray, cells: list[tuple[int, int]]) -> LabelTable:
    """A table in which people were asked about some cells."""
    names = [str(column) for column in range(truth.shape[1])]
    table = LabelTable.from_dense(start, names=names)
    given = [Answer(str(row), str(column), int(truth[row, column])) for row, column in cells]
    return answers.apply(table, given)


def test_what_people_were_asked_about_does_not_change_the_priors() -> None:
    truth = (np.random.default_rng(0).random((2000, 3)) < [0.1, 0.2, 0.5]).astype(np.int8)
    start = hide(truth, "pal:0.3", seed=0)
    positive = [(int(row), int(column)) for row, column in np.argwhere((truth == 1) & (start < 0))]
    before = estimate(LabelTable.from_dense(start))
    after = estimate(asked_about(start, truth, positive[:400]))
    np.testing.assert_allclose(after.priors, before.priors, rtol=0.01)
    np.testing.assert_allclose(after.positive, after.negative)  # unknown says nothing, as before
    assert "people were asked about 400 more" in after.source


def test_answers_to_data_of_positives_alone_are_a_few_negatives_not_a_sample() -> None:
    truth = (np.random.default_rng(0).random((2000, 3)) < [0.1, 0.2, 0.5]).astype(np.int8)
    start = hide(truth, "ppl:0.5", seed=0)
    unknown = [(int(row), int(column)) for row, column in np.argwhere(start < 0)]
    table = asked_about(start, truth, unknown[:60])
    after = estimate(table, expected_positives=0.8)
    np.testing.assert_allclose(after.priors, [0.1, 0.2, 0.5], atol=0.06)
    counts = table.counts_by_label()
    np.testing.assert_allclose(after.negative, counts.negative / (2000 * (1 - after.priors)))
    assert (after.negative < 0.03).all()
    assert after.positive == pytest.approx(counts.positive / (2000 * after.priors))


def test_where_all_that_is_known_was_asked_it_is_all_there_is_to_go_by() -> None:
    start = np.full((100, 2), -1, dtype=np.int8)
    truth = np.tile(np.array([[1, 0], [0, 1], [0, 0], [0, 0]], dtype=np.int8), (25, 1))
    cells = [(row, column) for row in range(40) for column in range(2)]
    table = asked_about(start, truth, cells)
    assert table.drawn().known == 80
    np.testing.assert_allclose(estimate(table).priors, 0.25, atol=0.01)


def test_the_order_of_the_labels_changes_nothing_about_what_was_asked() -> None:
    truth = (np.random.default_rng(0).random((3000, 3)) < [0.3, 0.1, 0.02]).astype(np.int8)
    start = hide(truth, "ppl:0.5", seed=0)
    unknown = [(int(row), int(column)) for row, column in np.argwhere(start < 0)]
    table = asked_about(start, truth, unknown[:60])
    before = estimate(table, expected_positives=0.42)
    turned = estimate(table.reorder(["2", "0", "1"]), expected_positives=0.42)
    np.testing.assert_allclose(turned.priors, before.priors[[2, 0, 1]])


def test_to_confirm_what_the_data_says_changes_nothing() -> None:
    truth = (np.random.default_rng(0).random((1000, 3)) < [0.1, 0.2, 0.5]).astype(np.int8)
    for setting in ("ppl:0.3", "pal:0.3"):
        start = hide(truth, setting, seed=0)
        known = [(int(row), int(column)) for row, column in np.argwhere(start >= 0)]
        before = estimate(LabelTable.from_dense(start))
        after = estimate(asked_about(start, truth, known[::2]))
        np.testing.assert_allclose(after.priors, before.priors)
        np.testing.assert_allclose(after.positive, before.positive)
        np.testing.assert_allclose(after.negative, before.negative)


def test_a_tick_that_was_wrong_does_not_make_negatives_known() -> None:
    """In data of positives alone: 1 of 16 known positives of a label turns out to be none."""
    start = np.full((400, 2), -1, dtype=np.int8)
    start[:16, 0] = start[16:32, 1] = 1
    truth = np.where(np.arange(400)[:, None] == 3, 0, start)
    before = estimate(LabelTable.from_dense(start))
    after = estimate(asked_about(start, truth, [(3, 0)]))
    assert after.priors[0] == pytest.approx(before.priors[0] * 15 / 16, rel=0.01)
    assert after.priors[1] == pytest.approx(before.priors[1], rel=0.01)


def test_what_is_put_right_in_a_sample_counts_as_it_was_put_right() -> None:
    truth = (np.random.default_rng(0).random((1000, 2)) < [0.1, 0.2]).astype(np.int8)
    right = hide(truth, "pal:0.5", seed=0)
    wrong = np.where((right == 1) & (np.arange(1000)[:, None] % 4 == 0), 0, right)
    cells = [(int(row), int(column)) for row, column in np.argwhere(wrong != right)]
    np.testing.assert_allclose(
        estimate(asked_about(wrong, right, cells)).priors,
        estimate(LabelTable.from_dense(right)).priors,
    )
