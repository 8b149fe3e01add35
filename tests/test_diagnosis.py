"""What a run's report shows of a test part: every figure again, computed the slow way."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import precision_recall_curve

from builders import picture_table
from partly import diagnosis, metrics
from partly.diagnosis import MISTAKES, OF_ONE_LABEL, confident_mistakes, diagnose, precision_recall
from partly.labels import LabelTable


def draw(
    images: int = 300, labels: int = 5, seed: int = 0, unknown: float = 0.3
) -> tuple[np.ndarray, LabelTable]:
    """Probabilities with ties and a table with unknown labels; the last label is never positive."""
    generator = np.random.default_rng(seed)
    values = (generator.random((images, labels)) < 0.3).astype(np.int8)
    values[:, -1] = 0
    probabilities = (0.6 * generator.random((images, labels)) + 0.4 * values).round(2)
    values[generator.random((images, labels)) < unknown] = -1
    return probabilities.astype(np.float32), LabelTable.from_dense(values)


def look(probabilities: np.ndarray, table: LabelTable, **how: np.ndarray) -> diagnosis.Record:
    precisions = metrics.average_precision(probabilities, table.dense()).tolist()
    return diagnose(probabilities, table, precisions, **how)


# --- precision and recall ------------------------------------------------------------------------


@pytest.mark.parametrize("points", [3, 40, 10_000])
def test_every_point_of_a_curve_is_one_of_the_exact_curve(points):
    probabilities, table = draw()
    labels = table.dense()
    found = precision_recall(probabilities, labels, points)
    known = labels >= 0
    exact = precision_recall_curve(labels[known], probabilities[known])
    steps = dict(
        zip(exact[2].tolist(), zip(exact[0][:-1], exact[1][:-1], strict=True), strict=True)
    )
    for cut, precision, recall in zip(*found.values(), strict=True):
        assert (precision, recall) == pytest.approx(steps[cut])
    positives = np.unique(probabilities[labels == 1])
    assert len(found["threshold"]) <= min(points, len(positives))
    if points == 10_000:  # then no step of the recall is left out
        assert found["threshold"] == positives[::-1].tolist()


def test_recall_rises_by_equal_steps_to_the_end():
    generator = np.random.default_rng(1)
    scores = generator.random((5000, 1))
    labels = (generator.random((5000, 1)) < 0.4).astype(np.int8)
    recall = np.array(precision_recall(scores, labels, 51)["recall"])
    assert recall[-1] == 1
    assert np.abs(np.diff(recall) - 1 / 50).max() < 2 / (labels == 1).sum()


def test_no_positive_no_curve():
    nothing = {"threshold": [], "precision": [], "recall": []}
    assert precision_recall(np.full((4, 1), 0.5), np.zeros((4, 1), np.int8)) == nothing


def test_curves_are_of_the_best_the_median_and_the_worst_label():
    probabilities, table = draw(labels=8)
    probabilities[:, 2] = np.maximum(table.dense()[:, 2], 0)  # all right
    probabilities[:, 5] = 1 - np.maximum(table.dense()[:, 5], 0)  # all wrong
    found = look(probabilities, table)["curves"]
    precisions = metrics.average_precision(probabilities, table.dense())
    assert [curve["name"] for curve in found] == ["all labels", "best", "median", "worst"]
    assert [curve["label"] for curve in found[1:]][::2] == [2, 5]
    median = np.argsort(-precisions[:7])[3]  # the last label has no positive
    assert (found[2]["label"], found[2]["AP"]) == (median, precisions[median])
    own = precision_recall(probabilities[:, [median]], table.dense()[:, [median]])
    assert {key: found[2][key] for key in own} == own


def test_a_label_with_few_positives_is_not_the_best_where_others_have_enough():
    probabilities, table = draw(labels=6)
    labels = table.dense()
    labels[:, 0] = 0
    labels[7, 0], probabilities[7, 0] = 1, 1.0  # its one positive comes first
    found = look(probabilities, LabelTable.from_dense(labels))["curves"]
    assert 0 not in [curve["label"] for curve in found[1:]]


@pytest.mark.parametrize("value", [0, 1])
def test_where_all_that_is_known_is_alike_no_precision_can_be_told(value):
    probabilities, table = draw(unknown=0)
    labels = np.where(table.dense() == value, np.int8(value), np.int8(-1))
    found = look(probabilities, LabelTable.from_dense(labels))
    assert found["curves"] == []
    assert set(found["decisions"]["precision"]) == {None}
    assert set(found["decisions"]["F1"]) == {None}


# --- decisions and calibration -------------------------------------------------------------------


def test_decisions_of_each_label():
    probabilities, table = draw()
    labels = table.dense()
    thresholds = np.array([0.31, 0.5, 0.999, 0.2, 0.3])
    found = look(probabilities, table, thresholds=thresholds)
    decisions = found["decisions"]
    assert found["tuned"]
    assert decisions["threshold"] == thresholds.tolist()
    for label, limit in enumerate(thresholds):
        known = labels[:, label] >= 0
        called, true = probabilities[:, label].astype(float) >= limit, labels[:, label] == 1
        hits, predicted, positives = (called & true).sum(), (called & known).sum(), true.sum()
        assert decisions["predicted"][label] == called.sum()
        assert decisions["positives"][label] == positives
        expected = [None, None, None]
        if label < 4:
            expected = [hits / predicted, hits / positives, 2 * hits / (predicted + positives)]
        got = [decisions[name][label] for name in ("precision", "recall", "F1")]
        assert got == pytest.approx(expected)
    decided = probabilities.astype(float) >= thresholds
    assert found["false_positives"] == (decided & (labels == 0)).sum()
    assert found["false_negatives"] == (~decided & (labels == 1)).sum()
    assert found["known_negatives"] == (labels == 0).sum()


def test_without_thresholds_half_decides():
    probabilities, table = draw()
    found = look(probabilities, table)
    assert not found["tuned"]
    assert found["decisions"] == look(probabilities, table, thresholds=np.full(5, 0.5))["decisions"]


def test_a_label_that_nobody_is_given_has_no_precision():
    probabilities, table = draw()
    decisions = look(probabilities, table, thresholds=np.full(5, 1.1))["decisions"]
    assert decisions["precision"] == [None] * 5
    assert decisions["recall"] == [0.0] * 4 + [None]
    assert decisions["F1"] == [0.0] * 4 + [None]


def test_bins_of_the_reliability_make_the_calibration_error():
    probabilities, table = draw()
    labels = table.dense()
    found = look(probabilities, table)["reliability"]
    known = labels >= 0
    values, answers = probabilities[known].astype(float), labels[known]
    bins = np.minimum((values * 15 + 1e-9).astype(int), 14)
    for number in range(15):
        own = bins == number
        assert found["entries"][number] == own.sum()
        assert found["positives"][number] == answers[own].sum()
        assert found["expected"][number] == pytest.approx(values[own].sum())
    gaps = np.abs(np.array(found["expected"]) - found["positives"])
    error = metrics.calibration_error(probabilities, labels)
    assert gaps.sum() / known.sum() == pytest.approx(error)


# --- mistakes ------------------------------------------------------------------------------------


def by_hand(probabilities: np.ndarray, labels: np.ndarray, limits: np.ndarray, kind: str) -> list:
    """All mistakes, the surest first, then those beyond a label's share struck out."""
    called, value, sign = (True, 0, -1) if kind == "false_positives" else (False, 1, 1)
    wrong = np.argwhere(((probabilities.astype(float) >= limits) == called) & (labels == value))
    ordered = sorted(wrong.tolist(), key=lambda cell: (sign * probabilities[tuple(cell)], *cell))
    kept: list[tuple[int, int]] = []
    for row, column in ordered:
        if sum(other == column for _, other in kept) < OF_ONE_LABEL:
            kept.append((row, column))
    return kept[:MISTAKES]


@pytest.mark.parametrize("kind", ["false_positives", "false_negatives"])
def test_the_most_confident_mistakes(kind):
    probabilities, table = draw(labels=9)
    limits = np.random.default_rng(4).uniform(0.2, 0.8, 9)
    found = confident_mistakes(probabilities, table.dense(), limits)[kind]
    assert found == by_hand(probabilities, table.dense(), limits, kind)
    assert len(found) == MISTAKES


def test_a_threshold_is_not_rounded_to_the_scores():
    just_above = np.nextafter(np.float64(np.float32(0.1)), 1)
    labels = np.array([[0], [1]], np.int8)
    found = confident_mistakes(np.full((2, 1), 0.1, np.float32), labels, np.array([just_above]))
    assert found == {"false_positives": [], "false_negatives": [(1, 0)]}


def test_what_is_said_of_a_mistake():
    values = np.array([[0, 1, 1, 1, 1, 1, 1, -1]], np.int8)
    table = LabelTable.from_dense(values, ids=["an image"])
    probabilities = np.array([[0.9, 0.1, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]])
    found = look(probabilities, table)["mistakes"]
    (positive,), (negative,) = found["false_positives"], found["false_negatives"]
    shared = {"id": "an image", "picture": None}
    also = {"also": [1, 2, 3, 4], "more": 2}
    assert positive == {**shared, **also, "label": 0, "probability": 0.9}
    also = {"also": [2, 3, 4, 5], "more": 1}
    assert negative == {**shared, **also, "label": 1, "probability": 0.1}


def test_mistakes_are_shown_unless_an_image_cannot_be_read(tmp_path: Path):
    table = picture_table(tmp_path / "pictures", 4, size=500)
    (tmp_path / "pictures" / "0002.png").write_bytes(b"no picture")
    probabilities = 1 - table.dense().astype(float)  # all wrong
    found = look(probabilities, table)["mistakes"]
    mistakes = found["false_positives"] + found["false_negatives"]
    assert {m["id"] for m in mistakes if m["picture"] is None} == {"2"}
    shown = [m["picture"] for m in mistakes if m["picture"]]
    for address in shown:
        content = base64.b64decode(address.removeprefix("data:image/jpeg;base64,"))
        assert Image.open(io.BytesIO(content)).size == (200, 200)


def test_the_record_stays_small():
    probabilities, table = draw(images=2000, labels=1500, unknown=0.9)
    found = look(probabilities, table)
    assert len(json.dumps(found)) < 300 * 1500
