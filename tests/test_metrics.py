"""Metrics against scikit-learn, torchmetrics, plain loops and examples worked by hand."""

import json
import math
import subprocess
import sys
import tracemalloc
import warnings

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torchmetrics.functional import classification as torch_reference

from partly import metrics
from partly.errors import ConfigError, DataError, LabelError

nan = math.nan


@pytest.fixture(autouse=True)
def _no_numpy_warnings():
    """An empty mean or a division by zero must be handled, not hidden in a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def draw(seed=0, rows=200, columns=8, unknown=0.4, levels=None):
    """Probabilities and labels; few `levels` make many ties."""
    generator = np.random.default_rng(seed)
    if levels is None:
        probabilities = generator.random((rows, columns))
    else:
        probabilities = generator.integers(0, levels + 1, (rows, columns)) / levels
    labels = (generator.random((rows, columns)) < 0.3).astype(np.int8)
    labels[generator.random((rows, columns)) < unknown] = -1
    return probabilities, labels


def by_reference(reference, scores, labels):
    """A scikit-learn metric on each column, its unknown entries cut out."""
    columns = []
    for column, truth in zip(np.asarray(scores).T, np.asarray(labels).T, strict=True):
        known = truth >= 0
        columns.append(reference(truth[known], column[known].astype(np.float64)))
    return np.array(columns)


RANKING = [
    (metrics.average_precision, sklearn.metrics.average_precision_score),
    (metrics.area_under_roc, sklearn.metrics.roc_auc_score),
]


@pytest.mark.parametrize(("ours", "reference"), RANKING)
@pytest.mark.parametrize("unknown", [0.0, 0.6])
@pytest.mark.parametrize("levels", [None, 20, 3, 1])
def test_ranking_metrics_equal_scikit_learn(ours, reference, unknown, levels):
    scores, labels = draw(unknown=unknown, levels=levels)
    expected = by_reference(reference, scores, labels)
    np.testing.assert_allclose(ours(scores, labels), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize(("ours", "reference"), RANKING)
@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.longdouble, np.int16, np.uint8, np.bool_]
)
def test_every_dtype_of_scores_is_exact(ours, reference, dtype):
    scores, labels = draw(levels=50)
    scores = (scores * (1 if dtype == np.bool_ else 50)).astype(dtype)
    expected = by_reference(reference, scores, labels)
    np.testing.assert_allclose(ours(scores, labels), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float16, np.float64])
def test_every_dtype_of_labels_counts_alike(dtype):
    probabilities, labels = draw(unknown=0.0 if dtype == np.bool_ else 0.4)
    other = labels.astype(dtype)
    assert metrics.evaluate(probabilities, other) == metrics.evaluate(probabilities, labels)
    for name in ("f1_score", "log_loss"):
        np.testing.assert_array_equal(
            metrics.binary_metric(name, probabilities, other),
            metrics.binary_metric(name, probabilities, labels),
        )


def spread_in_many_ways(count=20_000):
    """Columns of scores that are hard to divide into cells, by name."""
    generator = np.random.default_rng(1)
    normal = generator.standard_normal(count)
    crowded = 1 / (1 + np.exp(8 - 3 * normal))
    with_outliers = normal.copy()
    with_outliers[:2] = -1e30, 1e30
    return {
        "logits": normal,
        "probabilities": 1 / (1 + np.exp(-normal)),
        "crowded at 0": crowded,
        "crowded, many exactly 0": np.where(crowded < 1e-3, 0, crowded),
        "outliers": with_outliers,
        "heavy tails": generator.standard_t(1, count),
        "levels": np.round(normal, 1),
        "signed zeros": np.where(normal < 0, -0.0, 0.0),
        "mostly one value": np.where(normal > 3, normal, 0.25),
        "one value": np.full(count, 0.5),
        "denormal": normal * 1e-44,
        "as large as can be": np.clip(normal, -1, 1) * 3.4e38,
        "two clusters": np.where(normal > 0, 1e6, 0) + 1e-3 * normal,
    }


def rare(count=20_000, unknown=0.0):
    generator = np.random.default_rng(2)
    labels = (generator.random(count) < 0.02).astype(np.int8)
    labels[generator.random(count) < unknown] = -1
    return labels


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("unknown", [0.0, 0.1])
def test_long_columns_are_exact_however_their_scores_are_spread(unknown, dtype):
    scores = np.stack(list(spread_in_many_ways().values()), axis=1).astype(dtype)
    labels = np.repeat(rare(unknown=unknown)[:, None], scores.shape[1], axis=1)
    for ours, reference in RANKING:
        expected = by_reference(reference, scores, labels)
        np.testing.assert_allclose(ours(scores, labels), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", spread_in_many_ways(10))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_counting_by_cells_is_counting(name, dtype):
    values = spread_in_many_ways()[name].astype(dtype)
    cuts = np.sort(values[rare() == 1])
    near, far = metrics._near(values, cuts)
    for side, count in (("left", metrics._at_or_above), ("right", metrics._above)):
        expected = values.size - np.searchsorted(np.sort(values), cuts, side=side)
        np.testing.assert_array_equal(count(near, cuts) + far, expected)
    assert near.size < 2000 or name not in {"logits", "probabilities", "crowded at 0", "outliers"}


def test_cuts_below_all_values_are_cuts():
    """Of roots only what is not negative has one."""
    values = np.random.default_rng(0).random(40_000, np.float32)
    cuts = np.float32([-3.0, -0.5, 0.25])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        near, far = metrics._near(values, cuts)
    found = near.size - np.searchsorted(near, cuts) + far
    np.testing.assert_array_equal(found, [(values >= cut).sum() for cut in cuts])


@pytest.mark.parametrize("name", spread_in_many_ways(10))
def test_a_larger_value_never_has_a_smaller_cell(name):
    values = np.sort(spread_in_many_ways()[name].astype(np.float32))
    cells_of = metrics._cells(values, values[-1:])
    if cells_of is not None:
        cells = cells_of(values)
        assert (np.diff(cells.astype(int)) >= 0).all()
        np.testing.assert_array_equal(cells_of(values[7:]), cells[7:])
    assert (cells_of is None) == (
        name in {"signed zeros", "mostly one value", "one value", "denormal", "as large as can be"}
    )


def small_blocks(monkeypatch, threads=3):
    """So many threads, and blocks and tiles that end in the middle of everything."""
    for name, value in (("BLOCK", 1), ("NARROWEST", 3), ("ROWS", 40), ("TILE", 7)):
        monkeypatch.setattr(metrics, name, value)
    monkeypatch.setattr(metrics, "cores", lambda: threads)


@pytest.mark.parametrize("threads", [1, 3])
def test_nothing_depends_on_blocks_and_threads(threads, monkeypatch):
    probabilities, labels = draw(levels=30)
    functions = (
        metrics.average_precision,
        metrics.area_under_roc,
        metrics.positives_above_unknown,
        metrics.tune_thresholds,
    )
    expected = [function(probabilities, labels) for function in functions]
    report, f1 = metrics.evaluate(probabilities, labels), metrics.f1_scores(probabilities, labels)
    small_blocks(monkeypatch, threads)
    for function, values in zip(functions, expected, strict=True):
        np.testing.assert_array_equal(function(probabilities, labels), values)
    again = metrics.evaluate(probabilities, labels)
    assert again.pop("calibration_error") == pytest.approx(report.pop("calibration_error"), 1e-12)
    assert again == report
    assert metrics.f1_scores(probabilities, labels) == f1


def test_an_error_in_a_thread_is_an_error(monkeypatch):
    small_blocks(monkeypatch)

    def measure(column, labels):
        raise DataError("not this one")

    with pytest.raises(DataError, match="not this one"):
        metrics._per_label(measure, *draw())


def test_arrays_in_any_order_on_disk_or_of_other_bytes_count_alike(tmp_path):
    scores, labels = draw(levels=30)
    expected = metrics.average_precision(scores, labels)
    np.save(tmp_path / "scores.npy", scores)
    np.save(tmp_path / "labels.npy", labels)
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("scores", "labels")]
    for table, truth in (
        mapped,
        (np.asfortranarray(scores), labels),
        (scores.astype(">f8"), labels.astype(">i2")),
        (np.repeat(scores, 2, axis=0)[::2], np.repeat(labels, 2, axis=1)[:, ::2]),
    ):
        np.testing.assert_array_equal(metrics.average_precision(table, truth), expected)


def peak(function, *arguments) -> int:
    """Bytes allocated at the highest."""
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_that_of_a_block(monkeypatch):
    generator = np.random.default_rng(0)
    probabilities = generator.random((2048, 1024), np.float32)
    labels = (generator.random(probabilities.shape) < 0.02).astype(np.int8)
    monkeypatch.setattr(metrics, "BLOCK", 2**15)
    monkeypatch.setattr(metrics, "ROWS", 2**14)
    monkeypatch.setattr(metrics, "cores", lambda: 1)
    for function in (
        metrics.average_precision,
        metrics.select_scores,
        metrics.evaluate,
        metrics.tune_thresholds,
    ):
        assert peak(function, probabilities, labels) < labels.nbytes / 2


def test_float64_scores_closer_than_float32_can_tell_are_not_tied():
    scores = [[1.0 + 1e-12], [1.0], [1.0 - 1e-12]]
    assert metrics.average_precision(scores, [[1], [0], [0]]) == [1.0]
    assert metrics.average_precision(scores, [[0], [0], [1]]) == pytest.approx([1 / 3])
    assert metrics.area_under_roc(scores, [[0], [1], [0]]) == [0.5]
    whole = [[2**60 + 1], [2**60], [2**60 - 1]]  # nor can float64 tell these
    assert metrics.average_precision(whole, [[1], [0], [0]]) == [1.0]


def test_minus_zero_ties_with_zero():
    assert metrics.average_precision([[0.0], [-0.0]], [[0], [1]]) == [0.5]
    assert metrics.area_under_roc([[0.0], [-0.0]], [[0], [1]]) == [0.5]


def test_equal_scores_give_the_share_of_positives_and_half():
    labels = [[1], [0], [0], [1], [0], [-1]]
    np.testing.assert_allclose(metrics.average_precision(np.ones((6, 1)), labels), [0.4])
    np.testing.assert_allclose(metrics.area_under_roc(np.ones((6, 1)), labels), [0.5])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_fully_known_labels_equal_torchmetrics(dtype):
    scores, labels = draw(unknown=0.0, levels=256)  # exact in float16 and never outside [0, 1]
    scores, truth = torch.from_numpy(scores).to(dtype), torch.from_numpy(labels).long()
    options = {"num_labels": scores.shape[1], "average": None}
    precisions = torch_reference.multilabel_average_precision(scores, truth, **options)
    areas = torch_reference.multilabel_auroc(scores, truth, **options)
    np.testing.assert_allclose(metrics.average_precision(scores, truth), precisions, atol=1e-3)
    np.testing.assert_allclose(metrics.area_under_roc(scores, truth), areas, atol=1e-3)


def test_torchmetrics_agree_closely_in_double_precision():
    scores, labels = draw(unknown=0.0)
    truth = torch.from_numpy(labels).long()
    options = {"num_labels": scores.shape[1]}
    expected = torch_reference.multilabel_average_precision(
        torch.from_numpy(scores), truth, **options
    )
    assert metrics.mean_average_precision(scores, labels) == pytest.approx(float(expected), 1e-5)


def test_labels_that_cannot_be_scored_are_nan_and_left_out_of_means():
    labels = np.array([[1, 0, -1, 1, 1], [0, 0, -1, 1, -1], [-1, 0, -1, -1, 0]])
    scores = np.array([[0.1, 0.5, 0.5, 0.5, 0.9], [0.2, 0.4, 0.4, 0.4, 0.4], [0.3] * 5])
    np.testing.assert_array_equal(
        metrics.average_precision(scores, labels), [0.5, nan, nan, 1.0, 1.0]
    )
    np.testing.assert_array_equal(metrics.area_under_roc(scores, labels), [0, nan, nan, nan, 1])
    assert metrics.mean_average_precision(scores, labels) == pytest.approx(2.5 / 3)
    assert math.isnan(metrics.mean_average_precision(scores[:, 1:3], labels[:, 1:3]))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty_input_has_no_score_and_no_crash(shape):
    scores, labels = np.zeros(shape), np.zeros(shape, np.int8)
    for function in (
        metrics.average_precision,
        metrics.area_under_roc,
        metrics.positives_above_unknown,
    ):
        values = function(scores, labels)
        assert values.shape == shape[1:]
        assert values.dtype == np.float64
        assert np.isnan(values).all()
    np.testing.assert_array_equal(metrics.tune_thresholds(scores, labels), [0.5] * shape[1])
    result = metrics.evaluate(scores, labels, train_positives=[0] * shape[1], thresholds=0.3)
    assert result["mAP"] is None
    assert result["coverage"]["known_entries"] == 0
    assert (result["coverage"]["share_known"] is None) == (0 in shape)
    json.dumps(result, allow_nan=False)


tables = hnp.arrays(
    np.int8, st.tuples(st.integers(1, 12), st.integers(1, 3)), elements=st.sampled_from([-1, 0, 1])
)


@st.composite
def scored_tables(draw_value):
    labels = draw_value(tables)
    scores = draw_value(hnp.arrays(np.int64, labels.shape, elements=st.integers(-4, 4)))
    return scores.astype(np.float64), labels, draw_value(st.permutations(range(len(labels))))


@settings(max_examples=60, deadline=None)
@given(scored_tables())
def test_order_of_rows_and_scale_of_scores_do_not_matter(table):
    scores, labels, order = table
    for function in (
        metrics.average_precision,
        metrics.area_under_roc,
        metrics.positives_above_unknown,
    ):
        expected = function(scores, labels)
        shuffled = function(scores[order], labels[order])
        np.testing.assert_allclose(shuffled, expected, atol=1e-12)
        np.testing.assert_array_equal(function(scores**3 * 5 + 2, labels), expected)
        assert np.all(np.isnan(expected) | ((expected >= 0) & (expected <= 1)))
    # What an unknown entry scores must not matter, however extreme it is.
    disturbed = np.where(labels < 0, 1e6, scores)
    for function in (metrics.average_precision, metrics.area_under_roc):
        np.testing.assert_array_equal(function(disturbed, labels), function(scores, labels))


@settings(max_examples=60, deadline=None)
@given(scored_tables())
def test_turning_scores_round_turns_auroc_round(table):
    scores, labels, _ = table
    total = metrics.area_under_roc(scores, labels) + metrics.area_under_roc(-scores, labels)
    assert np.all(np.isnan(total) | (np.abs(total - 1) < 1e-12))


def test_unknown_entries_never_matter_to_thresholded_metrics():
    probabilities, labels = draw()
    disturbed = np.where(labels < 0, 1 - probabilities, probabilities)
    assert metrics.f1_scores(disturbed, labels) == metrics.f1_scores(probabilities, labels)
    np.testing.assert_array_equal(
        metrics.tune_thresholds(disturbed, labels), metrics.tune_thresholds(probabilities, labels)
    )
    assert metrics.calibration_error(disturbed, labels) == metrics.calibration_error(
        probabilities, labels
    )
    assert metrics.evaluate(disturbed, labels) == metrics.evaluate(probabilities, labels)


# Label 0: predicted rows 0 1 2, positives rows 0 3 -> precision 1/3, recall 1/2.
# Label 1: predicted row 0, positives rows 0 1, row 3 unknown -> precision 1, recall 1/2.
# Label 2: no known positive, predicted row 0 -> only in the overall figures.
# Label 3: nothing predicted, one positive -> precision 0, recall 0.
HAND_PROBABILITIES = np.array(
    [[0.9, 0.9, 0.7, 0.1], [0.5, 0.4, 0.1, 0.1], [0.8, 0.1, 0.2, 0.1], [0.4, 0.9, 0.9, 0.1]]
)
HAND_LABELS = np.array([[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, -1], [1, -1, -1, 0]])


def test_f1_worked_by_hand():
    scores = metrics.f1_scores(HAND_PROBABILITIES, HAND_LABELS)
    precision, recall = (1 / 3 + 1 + 0) / 3, (1 / 2 + 1 / 2 + 0) / 3
    overall_precision, overall_recall = 2 / 5, 2 / 5
    assert scores == pytest.approx(
        (
            precision,
            recall,
            2 * precision * recall / (precision + recall),
            overall_precision,
            overall_recall,
            0.4,
        )
    )
    assert scores._fields == ("CP", "CR", "CF1", "OP", "OR", "OF1")
    assert all(type(score) is float for score in scores)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_f1_equals_scikit_learn(dtype):
    probabilities, labels = draw(unknown=0.0, levels=4)
    thresholds = np.array([0.25, 0.5, 0.75, 1.0, 0.3, 0.6, 0.1, 0.5])
    decided = probabilities >= thresholds
    scores = metrics.f1_scores(probabilities.astype(dtype), labels, thresholds)
    for average, precision, recall in (
        ("macro", scores.CP, scores.CR),
        ("micro", scores.OP, scores.OR),
    ):
        expected = sklearn.metrics.precision_recall_fscore_support(
            labels, decided, average=average, zero_division=0
        )
        assert (precision, recall) == pytest.approx(expected[:2])
    overall_f1 = scores.OF1
    assert overall_f1 == pytest.approx(sklearn.metrics.f1_score(labels, decided, average="micro"))


def test_f1_of_micro_averages_with_unknown_entries_equals_scikit_learn():
    probabilities, labels = draw(levels=10)
    known = labels >= 0
    truth, decided = labels[known], probabilities[known] >= 0.7
    expected = sklearn.metrics.precision_recall_fscore_support(truth, decided, average="binary")
    assert metrics.f1_scores(probabilities, labels, 0.7)[3:] == pytest.approx(expected[:3])


def test_one_threshold_and_a_row_of_it_decide_alike():
    # As float32, 0.7 lies below 0.7: a lone threshold must not be rounded to meet it.
    probabilities, labels = np.array([[0.7], [0.8]], np.float32), [[0], [1]]
    assert metrics.f1_scores(probabilities, labels, 0.7).OP == 1.0
    assert metrics.f1_scores(probabilities, labels, [0.7]).OP == 1.0


def test_f1_where_nothing_is_predicted_or_positive():
    assert metrics.f1_scores([[0.1], [0.2]], [[1], [0]]) == (0,) * 6
    without_positive = metrics.f1_scores([[0.9], [0.2]], [[0], [-1]])
    np.testing.assert_array_equal(without_positive, [nan, nan, nan, 0.0, nan, nan])


def best_f1_by_trying(column, truth):
    known = truth >= 0
    cuts = np.unique(column[known])
    return max(
        sklearn.metrics.f1_score(truth[known], column[known] >= cut, zero_division=0)
        for cut in cuts
    )


@pytest.mark.parametrize("levels", [None, 6])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_tuned_thresholds_reach_the_best_f1(levels, dtype):
    probabilities, labels = draw(rows=40, levels=levels)
    probabilities = probabilities.astype(dtype)
    thresholds = metrics.tune_thresholds(probabilities, labels)
    for index, threshold in enumerate(thresholds):
        column, truth = probabilities[:, [index]], labels[:, [index]]
        best = best_f1_by_trying(column[:, 0], truth[:, 0])
        reached = metrics.f1_scores(column, truth, threshold).OF1
        assert reached == pytest.approx(best)
        distinct = np.unique(column[truth >= 0]).astype(np.float64)
        assert threshold in (distinct + np.append(0, distinct[:-1])) / 2


def test_tuned_thresholds_at_the_edges():
    cases = [
        ([0.9, 0.2, 0.1], [1, 1, -1], 0.5),  # no known negative
        ([0.9, 0.2, 0.1], [0, 0, -1], 0.5),  # no known positive
        ([0.9, 0.2, 0.1], [-1, -1, -1], 0.5),
        ([0.3, 0.3, 0.3], [1, 0, 1], 0.15),  # one value: between it and 0
        ([0.0, 0.0, 0.0], [1, 0, 1], 0.0),
        ([0.8, 0.6, 0.4], [1, 0, 0], 0.7),
        ([0.8, 0.6, 0.4], [0, 0, 1], 0.2),  # all predicted
        ([1.0, 0.75, 0.5], [1, 0, 0], 0.875),
    ]
    for column, truth, expected in cases:
        found = metrics.tune_thresholds(np.array([column]).T, np.array([truth]).T)
        np.testing.assert_allclose(found, [expected], rtol=1e-15)
    # No float lies between the two, and the lower one must not be predicted.
    adjacent = np.nextafter(0.25, 1)
    assert metrics.tune_thresholds([[adjacent], [0.25]], [[1], [0]]) == [adjacent]
    # In float64 there is room between two adjacent numbers of float32.
    lower, upper = np.float32(0.25), np.nextafter(np.float32(0.25), np.float32(1))
    middle = (float(lower) + float(upper)) / 2
    assert metrics.tune_thresholds(np.array([[upper], [lower]]), [[1], [0]]) == [middle]
    # F1 is 2/3 with the first alone and 2/3 with all four: the higher cut wins.
    tie = metrics.tune_thresholds([[0.8], [0.6], [0.4], [0.2]], [[1], [0], [0], [1]])
    np.testing.assert_allclose(tie, [0.7])


def calibration_by_loop(probabilities, labels, bins):
    values, truth = probabilities[labels >= 0], labels[labels >= 0]
    total = 0.0
    for index in range(bins):
        low, high = index / bins, (index + 1) / bins
        inside = (values >= low) & ((values < high) | ((index == bins - 1) & (values == 1)))
        if inside.any():
            gap = abs(values[inside].mean() - truth[inside].mean())
            total += inside.sum() / values.size * gap
    return total


@pytest.mark.parametrize("bins", [1, 2, 15, 100])
@pytest.mark.parametrize("levels", [None, 4])
def test_calibration_equals_a_plain_loop(bins, levels):
    probabilities, labels = draw(levels=levels)
    expected = calibration_by_loop(probabilities, labels, bins)
    assert metrics.calibration_error(probabilities, labels, bins) == pytest.approx(expected, 1e-12)


def test_calibration_equals_torchmetrics():
    probabilities, labels = draw(unknown=0.0)
    flat, truth = torch.from_numpy(probabilities.ravel()), torch.from_numpy(labels.ravel())
    expected = torch_reference.binary_calibration_error(flat, truth.long(), n_bins=15)
    assert metrics.calibration_error(probabilities, labels) == pytest.approx(float(expected), 1e-5)


def test_calibration_of_certain_and_right_is_zero_and_of_nothing_is_nan():
    assert metrics.calibration_error([[1.0, 0.0]], [[1, 0]]) == 0
    assert metrics.calibration_error([[1.0, 0.0]], [[0, 1]]) == 1
    assert math.isnan(metrics.calibration_error([[1.0, 0.0]], [[-1, -1]]))
    # 1 shares the last bin with 0.95: |1 - 0.05| / 2.
    assert metrics.calibration_error([[1.0, 0.95]], [[0, 1]]) == pytest.approx(0.475)


def test_frequency_groups_split_in_thirds_and_keep_the_order_of_equals():
    groups = metrics.frequency_groups(np.array([3, 50, 3, 9, 9, 0, 200], np.uint8))
    assert list(groups) == ["head", "middle", "tail"]
    assert [group.tolist() for group in groups.values()] == [[6, 1, 3], [4, 0], [2, 5]]
    assert metrics.mean_by_frequency([0.1, 0.5, 0.3, nan, 0.2, nan, 1.0], [7] * 7) == (
        pytest.approx({"head": 0.3, "middle": 0.2, "tail": 1.0})
    )
    means = metrics.mean_by_frequency([0.5, nan], [9, 1])
    assert means["head"] == 0.5
    assert math.isnan(means["middle"])
    assert math.isnan(means["tail"])


SCORE_METRICS = ["roc_auc_score", "average_precision_score", "brier_score_loss", "log_loss"]
DECISION_METRICS = [
    "f1_score",
    "matthews_corrcoef",
    "balanced_accuracy_score",
    "jaccard_score",
    "cohen_kappa_score",
]


@pytest.mark.parametrize("name", SCORE_METRICS + DECISION_METRICS)
def test_any_binary_metric_of_scikit_learn(name):
    probabilities, labels = draw()
    labels[:, 0], labels[:, 1], labels[:, 2] = 0, -1, 1
    thresholds = np.linspace(0.3, 0.7, labels.shape[1])
    values = probabilities if name in SCORE_METRICS else probabilities >= thresholds
    expected = by_reference(getattr(sklearn.metrics, name), values[:, 3:], labels[:, 3:])
    found = metrics.binary_metric(name, probabilities, labels, thresholds)
    np.testing.assert_array_equal(found[:3], [nan] * 3)
    np.testing.assert_allclose(found[3:], expected, rtol=1e-12)


def test_binary_metric_of_half_precision_computes_in_double():
    probabilities, labels = draw()
    halves = probabilities.astype(np.float16)
    expected = by_reference(sklearn.metrics.brier_score_loss, halves, labels)
    found = metrics.binary_metric("brier_score_loss", halves, labels)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_old_scikit_learn_probability_metrics_still_get_probabilities(monkeypatch):
    def log_loss(y_true, y_pred):  # the signature before scikit-learn 1.9
        return float(np.sum(y_pred))

    monkeypatch.setattr(sklearn.metrics, "log_loss", log_loss)
    assert metrics.binary_metric("log_loss", [[0.25], [0.5]], [[1], [0]]) == [0.75]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("f1_scor", "scikit-learn has no binary metric 'f1_scor': did you mean f1_score"),
        ("mean_squared_error", "has no binary metric 'mean_squared_error'"),
        ("zzz", "has no binary metric 'zzz': f1_score is one, for example"),
        ("roc_curve", "roc_curve does not give one number a label"),
        ("confusion_matrix", "confusion_matrix does not give one number a label"),
        ("fbeta_score", r"fbeta_score does not give one number a label \(.*beta"),
        ("ndcg_score", "ndcg_score does not give one number a label"),
        ("classification_report", "does not give one number a label"),
    ],
)
def test_metric_names_that_cannot_be_used(name, message):
    with pytest.raises(ConfigError, match=message):
        metrics.binary_metric(name, [[0.9], [0.1]], [[1], [0]])


def test_scores_that_a_binary_metric_refuses():
    with pytest.raises(DataError, match="brier_score_loss cannot use these scores"):
        metrics.binary_metric("brier_score_loss", [[9.0], [0.1]], [[1], [0]])


def test_coverage_gives_each_label_one_reason():
    labels = np.array([[1, 1, 0, -1], [0, -1, 0, -1]])
    assert metrics.coverage(labels) == metrics.Coverage(
        labels=4,
        labels_scored=2,
        left_out={
            "no known label": [3],
            "no known positive": [2],
            "no known negative": [1],
        },
        known_entries=5,
        share_known=5 / 8,
    )


def test_evaluate_gathers_the_other_functions_and_is_ready_for_json():
    probabilities, labels = draw(columns=7)
    labels[:, 0] = 0
    labels[:, 1] = np.where(labels[:, 1] == 0, -1, labels[:, 1])
    thresholds, positives = metrics.tune_thresholds(probabilities, labels), np.arange(7)
    plain = metrics.evaluate(probabilities, labels)
    full = metrics.evaluate(probabilities, labels, train_positives=positives, thresholds=thresholds)
    precisions = metrics.average_precision(probabilities, labels)
    at_half = metrics.f1_scores(probabilities, labels)
    tuned = metrics.f1_scores(probabilities, labels, thresholds)
    assert set(full) - set(plain) == {
        "mAP_by_frequency",
        "CF1_at_thresholds",
        "OF1_at_thresholds",
    }
    assert {key: full[key] for key in plain} == plain
    assert json.loads(json.dumps(full, allow_nan=False)) == full
    assert full["AP"] == [None, *precisions[1:]]
    assert full["mAP"] == metrics.mean_average_precision(probabilities, labels)
    assert full["AUROC"] == np.nanmean(metrics.area_under_roc(probabilities, labels))
    assert (full["CF1"], full["OF1"]) == (at_half.CF1, at_half.OF1)
    assert (full["CF1_at_thresholds"], full["OF1_at_thresholds"]) == (tuned.CF1, tuned.OF1)
    assert full["CF1_at_thresholds"] != full["CF1"]
    assert full["calibration_error"] == metrics.calibration_error(probabilities, labels)
    assert full["mAP_by_frequency"] == metrics.mean_by_frequency(precisions, positives)
    assert full["labels_scored"] == 6
    assert full["coverage"]["left_out"]["no known positive"] == [0]
    assert full["coverage"]["left_out"]["no known negative"] == [1]


def test_positives_above_unknown_is_monotone_in_the_true_auroc():
    # Unknown entries = a copy of the known positives + all negatives: π/2 + (1 - π)·AUROC, exactly.
    generator = np.random.default_rng(3)
    positives, negatives = generator.normal(1, 1, 30), generator.normal(0, 1, 90)
    full_scores = np.concatenate([positives, negatives])[:, None]
    true_area = metrics.area_under_roc(full_scores, np.repeat([1, 0], [30, 90])[:, None])[0]
    scores = np.concatenate([positives, positives, negatives])[:, None]
    labels = np.repeat([1, -1], [30, 120])[:, None]
    share = 30 / 120
    assert metrics.positives_above_unknown(scores, labels)[0] == pytest.approx(
        share / 2 + (1 - share) * true_area
    )
    np.testing.assert_array_equal(
        metrics.positives_above_unknown(np.ones((2, 3)), [[1, 0, -1], [1, -1, -1]]), [nan] * 3
    )
    # A known negative is no unknown entry, and no positive either.
    assert metrics.positives_above_unknown([[0.5], [0.9], [0.1]], [[1], [0], [-1]]) == [1.0]


def selected(scores, labels) -> tuple[float, str]:
    values, criterion = metrics.select_scores(scores, labels)
    return np.nanmean(values), criterion


def test_the_criterion_follows_the_known_negatives():
    generator = np.random.default_rng(5)
    scores = generator.random((30, 4))
    labels = np.where(generator.random((30, 4)) < 0.3, 1, -1)
    above = metrics.positives_above_unknown(scores, labels).mean()
    assert selected(scores, labels) == (
        pytest.approx(above),
        "AUROC of known positives against unknown",
    )
    labels[0] = [0, -1, -1, -1]  # one of four labels has a known negative: still too few
    assert selected(scores, labels)[1].startswith("AUROC")
    labels[0] = [0, 0, -1, -1]  # half of them
    expected = metrics.mean_average_precision(scores[:, :2], labels[:, :2])  # of the others it is 1
    assert selected(scores, labels) == (expected, "mAP of known labels")
    # Labels without a known positive have no say: negatives there do not count.
    labels[0] = [0, -1, -1, -1]
    padded = np.hstack([labels, np.zeros((30, 9), int)])
    widened = np.hstack([scores, np.zeros((30, 9))])
    assert selected(widened, padded)[1].startswith("AUROC")
    values, name = metrics.select_scores([[0.5]], [[-1]])
    assert np.isnan(values).all()
    assert name == "mAP of known labels"


@pytest.mark.parametrize(
    ("scores", "labels", "error", "messages"),
    [
        ([[0.1]], [[1, 0]], DataError, ["scores have shape (1, 1) but labels (1, 2)"]),
        (
            np.zeros((3, 2)),
            np.zeros((0, 2)),
            DataError,
            ["scores have shape (3, 2) but labels (0, 2)"],
        ),
        (
            [0.1, 0.2],
            [[1]],
            DataError,
            ["scores must be numbers of shape [N, L], not float64 of shape (2,)"],
        ),
        (
            [["a"]],
            [[1]],
            DataError,
            ["scores must be numbers of shape [N, L], not <U1 of shape (1, 1)"],
        ),
        (
            [[0.1]],
            [1],
            LabelError,
            ["labels must be numbers of shape [N, L], not int64 of shape (1,)"],
        ),
        (
            [[nan, 0], [0, math.inf]],
            [[1, 0], [0, 1]],
            DataError,
            ["scores must be finite: at [row, column] [0, 0], [1, 1]"],
        ),
        (
            [[0, 0], [0, 0]],
            [[1, 2], [-3, 2]],
            LabelError,
            ["labels must be 1, 0 or -1, not -3, 2: at [row, column] [0, 1], [1, 0], [1, 1]"],
        ),
        (
            [[0.0]],
            [[nan]],
            LabelError,
            ["labels must be 1, 0 or -1, not nan: at [row, column] [0, 0]"],
        ),
        (
            [[-math.inf], [0.0]],
            np.array([[255]], np.uint8),
            DataError,
            [
                "scores have shape (2, 1) but labels (1, 1)",
                "scores must be finite: at [row, column] [0, 0]",
                "labels must be 1, 0 or -1, not 255: at [row, column] [0, 0]",
            ],
        ),
        (
            np.full((10, 1), nan),
            [[1]] * 10,
            DataError,
            [
                "scores must be finite: "
                "at [row, column] [0, 0], [1, 0], [2, 0], [3, 0], [4, 0] and 5 more"
            ],
        ),
    ],
)
@pytest.mark.parametrize("rows", [1, metrics.ROWS])
def test_every_fault_of_the_input_is_told_at_once(
    scores, labels, error, messages, rows, monkeypatch
):
    monkeypatch.setattr(metrics, "ROWS", rows)
    for function in (
        metrics.average_precision,
        metrics.mean_average_precision,
        metrics.area_under_roc,
        metrics.positives_above_unknown,
        metrics.select_scores,
        lambda scores, labels: metrics.binary_metric("f1_score", scores, labels),
    ):
        with pytest.raises(error) as caught:
            function(scores, labels)
        assert caught.value.problems == messages


PROBABILITY_FUNCTIONS = [
    metrics.f1_scores,
    metrics.tune_thresholds,
    metrics.calibration_error,
    metrics.evaluate,
]


@pytest.mark.parametrize("function", PROBABILITY_FUNCTIONS)
def test_probabilities_outside_zero_to_one_are_refused(function):
    with pytest.raises(DataError) as caught:
        function([[1.5, math.inf], [-2.0, 0.5]], [[1, 0], [0, 7]])
    assert caught.value.problems == [
        "probabilities must be finite: at [row, column] [0, 1]",
        "probabilities must lie between 0 and 1: at [row, column] [0, 0], [1, 0]",
        "labels must be 1, 0 or -1, not 7: at [row, column] [1, 1]",
    ]


def test_tensors_count_like_arrays():
    scores, labels = draw(levels=128)  # exact in every type
    expected = metrics.evaluate(scores, labels)
    tensor, truth = torch.from_numpy(scores), torch.from_numpy(labels)
    for variant in (tensor.bfloat16(), tensor.half(), tensor.clone().requires_grad_()):
        assert metrics.evaluate(variant, truth) == expected
    assert metrics.mean_average_precision(tensor.T.contiguous().T, truth) == expected["mAP"]


def test_what_numpy_cannot_read_is_explained():
    labels = torch.ones(2, 1)
    with pytest.raises(DataError, match="scores cannot become a NumPy array, pass one"):
        metrics.average_precision(torch.ones(2, 1).to_sparse(), labels)
    with pytest.raises(LabelError, match="labels cannot become a NumPy array"):
        metrics.coverage([[1, 0], [1]])


@pytest.mark.parametrize("thresholds", [[0.5, 0.5], [[0.5]], nan, [math.inf]])
def test_thresholds_of_a_wrong_shape_are_refused(thresholds):
    with pytest.raises(ConfigError, match="thresholds must be one finite number or 1 of them"):
        metrics.f1_scores([[0.5]], [[1]], thresholds)


def test_thresholds_that_are_no_numbers_are_refused():
    with pytest.raises(ConfigError, match="thresholds must be numbers"):
        metrics.binary_metric("f1_score", [[0.5]], [[1]], "high")


@pytest.mark.parametrize("bins", [0, -1, 2.5])
def test_bins_must_be_a_positive_whole_number(bins):
    with pytest.raises(ConfigError, match=f"bins must be a whole number of at least 1, not {bins}"):
        metrics.calibration_error([[0.5]], [[1]], bins)


@pytest.mark.parametrize(
    ("values", "positives", "message"),
    [
        ([0.5], [-1], "positives must be counts: finite and not negative"),
        ([0.5], [nan], "positives must be counts: finite and not negative"),
        ([0.5], [[1]], r"positives must be numbers of shape \[L\], not int64 of shape \(1, 1\)"),
        ([0.5, 1], [1], "2 values but 1 positives: give one of each a label"),
        ("a", [1], r"values must be numbers of shape \[L\]"),
    ],
)
def test_frequency_faults_are_told(values, positives, message):
    with pytest.raises(DataError, match=message):
        metrics.mean_by_frequency(values, positives)


def test_the_inputs_are_not_changed():
    probabilities, labels = draw()
    before = probabilities.copy(), labels.copy()
    metrics.evaluate(probabilities, labels, train_positives=np.arange(8), thresholds=0.4)
    metrics.select_scores(probabilities, labels)
    np.testing.assert_array_equal(probabilities, before[0])
    np.testing.assert_array_equal(labels, before[1])


def test_importing_metrics_brings_neither_torch_nor_scikit_learn():
    # Loaded from its file: the package's own front door may import what it likes.
    code = (
        "import sys, types\n"
        "package = types.ModuleType('partly'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['partly'] = package\n"
        "import partly.metrics\n"
        "assert not {'torch', 'sklearn'} & set(sys.modules)\n"
    )
    folder = metrics.__file__.rpartition("/")[0]
    subprocess.run([sys.executable, "-c", code, folder], check=True)
