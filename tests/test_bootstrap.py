"""The paired bootstrap, against counting by hand and against scikit-learn."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from partly import bootstrap
from partly.bootstrap import (
    difference,
    draw_images,
    rank,
    replicate_scores,
    weighted_average_precision,
)
from partly.errors import ConfigError, DataError
from partly.metrics import average_precision, mean_average_precision


def scene(images: int = 60, labels: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores with many ties and labels with unknown entries; the last label has no positive."""
    generator = np.random.default_rng(seed)
    truth = (generator.random((images, labels)) < 0.2).astype(np.int8)
    truth[generator.random((images, labels)) < 0.1] = -1
    truth[:, -1] = np.minimum(truth[:, -1], 0)
    scores = generator.normal(size=(images, labels)) + truth
    return scores.round(1), truth


def paired_difference(
    first: Any, second: Any, labels: np.ndarray, replicates: int
) -> dict[str, Any]:
    """Of two methods, each with a ranking a seed."""
    both = [replicate_scores(ranks, labels, replicates=replicates) for ranks in (first, second)]
    return difference(*both)


@pytest.mark.parametrize("seed", range(5))
def test_weights_of_one_are_the_metric(seed):
    scores, labels = scene(seed=seed)
    found = weighted_average_precision(rank(scores), labels, np.ones((len(labels), 1), np.float32))
    np.testing.assert_allclose(found[:, 0], average_precision(scores, labels), rtol=1e-12)
    assert np.isnan(found[-1, 0])


@pytest.mark.parametrize("seed", range(3))
def test_a_weight_is_an_image_that_comes_several_times(seed):
    scores, labels = scene(seed=seed)
    weights = draw_images(len(labels), 70, seed)  # more than one block of them
    found = weighted_average_precision(rank(scores), labels, weights)
    for replicate, column in enumerate(weights.T.astype(int)):
        repeated = np.repeat(np.arange(len(labels)), column)
        naive = average_precision(scores[repeated], labels[repeated])
        np.testing.assert_allclose(found[:, replicate], naive, rtol=1e-12)


def test_weights_as_scikit_learn_takes_them():
    scores, labels = scene(images=200)
    weights = np.random.default_rng(1).integers(1, 9, (200, 3)).astype(np.float32)
    found = weighted_average_precision(rank(scores), labels, weights)
    for label in range(labels.shape[1] - 1):
        known = labels[:, label] >= 0
        for replicate in range(3):
            expected = average_precision_score(
                labels[known, label],
                scores[known, label],
                sample_weight=weights[known, replicate],
            )
            assert found[label, replicate] == pytest.approx(expected, abs=1e-9)


def test_a_label_whose_positives_were_not_drawn_is_left_out():
    labels = np.array([[1, 1], [0, 0], [0, 1]], dtype=np.int8)
    weights = np.array([[0], [1], [2]], np.float32)
    found = weighted_average_precision(rank([[3, 1], [2, 2], [1, 3]]), labels, weights)
    assert np.isnan(found[0, 0])
    assert found[1, 0] == 1


def test_every_replicate_draws_as_many_images_as_there_are():
    weights = draw_images(50, 200, seed=3)
    assert (weights.sum(axis=0) == 50).all()
    assert len({column.tobytes() for column in weights.T}) == 200
    assert weights.mean(axis=1) == pytest.approx(np.ones(50), abs=0.4)
    assert (draw_images(50, 200, seed=3) == weights).all()
    assert (draw_images(50, 200, seed=4) != weights).any()


def test_ranks_keep_order_and_ties_in_a_small_type():
    scores, labels = scene()
    ranks = rank(scores)
    assert ranks.dtype == np.uint16
    assert (np.sign(ranks[:, None].astype(int) - ranks) == np.sign(scores[:, None] - scores)).all()
    np.testing.assert_array_equal(
        average_precision(ranks, labels), average_precision(scores, labels)
    )


def test_ranks_of_many_images_do_not_wrap():
    scores = np.arange(70_000, dtype=np.float64)[:, None]
    assert rank(scores).dtype == np.uint32
    assert (rank(scores) == scores).all()
    assert rank(scores[:65_535]).max() == 65_534


def test_a_difference_is_that_of_the_means_over_seeds():
    good, labels = scene(seed=0)
    noise = np.random.default_rng(9)
    first = [good + noise.normal(size=good.shape) * 0.1 for _ in range(3)]
    second = [good + noise.normal(size=good.shape) * 3 for _ in range(2)]
    found = paired_difference([*map(rank, first)], [*map(rank, second)], labels, replicates=200)
    means = [
        np.mean([mean_average_precision(s, labels) for s in group]) for group in (first, second)
    ]
    assert found["difference"] == pytest.approx(means[0] - means[1], abs=1e-12)
    weights = draw_images(len(labels), 200)
    gaps = []
    for column in weights.T.astype(int):
        rows = np.repeat(np.arange(len(labels)), column)
        one, other = (
            np.mean([mean_average_precision(scores[rows], labels[rows]) for scores in group])
            for group in (first, second)
        )
        gaps.append(one - other)
    low, high = np.percentile(gaps, [2.5, 97.5])
    assert (found["low"], found["high"]) == pytest.approx((low, high), abs=1e-12)
    assert found["p_not_better"] == (1 + np.sum(np.array(gaps) <= 0)) / 201
    assert found["low"] < found["difference"] < found["high"]


def test_the_same_ranking_is_level_with_itself_in_every_replicate():
    scores, labels = scene()
    found = paired_difference([rank(scores)], [rank(2 * scores)], labels, replicates=50)
    assert (found["difference"], found["low"], found["high"]) == (0, 0, 0)
    assert (found["verdict"], found["p_not_better"]) == ("level", 1)


def test_verdicts_turn_with_the_sides():
    labels = (np.random.default_rng(0).random((300, 4)) < 0.3).astype(np.int8)
    noise = np.random.default_rng(1).normal(size=labels.shape)
    good, bad = [rank(2 * labels + noise)], [rank(noise)]
    assert paired_difference(good, bad, labels, replicates=100)["verdict"] == "better"
    turned = paired_difference(bad, good, labels, replicates=100)
    assert turned["verdict"] == "worse"
    assert turned["high"] < 0
    assert turned["p_not_better"] == 1


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    """Two rankings equally good in truth; 200 test sets, each judged by its own bootstrap."""
    generator, covered = np.random.default_rng(0), 0
    for _ in range(200):
        labels = (generator.random((150, 3)) < 0.3).astype(np.int8)
        pair = [[rank(labels + generator.normal(size=labels.shape))] for _ in range(2)]
        found = paired_difference(*pair, labels, replicates=100)
        covered += found["low"] <= 0 <= found["high"]
    assert 0.88 <= covered / 200 <= 0.99


def test_blocks_change_nothing(monkeypatch):
    scores, labels = scene()
    whole = replicate_scores([rank(scores)], labels, replicates=30)
    monkeypatch.setattr(bootstrap, "BLOCK", 7)
    np.testing.assert_array_equal(replicate_scores([rank(scores)], labels, replicates=30), whole)


def test_what_cannot_be_compared():
    scores, labels = scene()
    with pytest.raises(DataError, match="a ranking or more"):
        replicate_scores([], labels)
    with pytest.raises(DataError, match="give all alike"):
        replicate_scores([rank(scores[1:])], labels)
    with pytest.raises(ConfigError, match="a replicate or more, not 0"):
        replicate_scores([rank(scores)], labels, replicates=0)
    nothing = replicate_scores([rank(scores)], np.zeros_like(labels), replicates=5)
    with pytest.raises(DataError, match="nothing can be scored"):
        difference(nothing, nothing)
