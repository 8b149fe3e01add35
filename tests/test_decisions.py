"""Thresholds and calibrations: right where labels are known, hardly worse where most are not."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partly import decisions, hide, metrics, propensity
from partly.decisions import AS_IT_IS, Calibration, Chances, Goal
from partly.errors import ConfigError
from partly.labels import LabelTable

LABELS = 6


def sigmoid(scores: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-scores))


def draw(images: int = 6000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """True probabilities [N, L], rarer from label to label, and labels drawn from them."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(np.linspace(-1, -3, LABELS), 1.5, (images, LABELS))
    truth = sigmoid(scores)
    return truth, (generator.random(truth.shape) < truth).astype(np.int8)


def facts_of(labels: np.ndarray, expected: float | None = None) -> propensity.Propensity:
    return propensity.estimate(LabelTable.from_dense(labels), expected)


def known_of(labels: np.ndarray, setting: str) -> tuple[np.ndarray, propensity.Propensity]:
    """What a setting leaves known, and how it went missing; the number of positives is told."""
    known = hide(labels, setting, seed=1)
    told = None if setting.startswith(("pal", "fal")) else float(labels.sum(axis=1).mean())
    return known, facts_of(known, told)


# --- goals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["f1", "precision:0.9", "recall:0.75", "cost:1:5", "cost:0.5:2"])
def test_a_goal_is_read_as_it_is_written(text):
    assert str(Goal.parse(f" {text.upper()} ")) == text


IMPOSSIBLE = "f2, f1:1, precision, precision:0, precision:1.1, recall:x, recall:nan, cost:1, "
IMPOSSIBLE += "cost:0:1, cost:1:inf, cost:1:2:3, "


@pytest.mark.parametrize("text", IMPOSSIBLE.split(", "))
def test_a_goal_that_makes_no_sense(text):
    with pytest.raises(ConfigError, match=r"write f1, precision:0\.9 or recall:0\.9"):
        Goal.parse(text)


columns = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def every_cut(scores: np.ndarray, expected: np.ndarray) -> list[tuple[float, float, float]]:
    """(true, false, missed) decisions of each cut, from none decided to all."""
    limits = [np.inf, *sorted(set(scores.tolist()), reverse=True)]
    rows = [scores >= limit for limit in limits]
    return [(expected[r].sum(), (1 - expected[r]).sum(), expected[~r].sum()) for r in rows]


def reached(goal: Goal, scores: np.ndarray, expected: np.ndarray) -> tuple[float, float, float]:
    decided = scores >= decisions.best_threshold(goal, scores, expected)
    true, false = expected[decided].sum(), (1 - expected[decided]).sum()
    return true, false, expected[~decided].sum()


@given(columns, st.sampled_from(["f1", "precision:0.6", "recall:0.7", "cost:1:3"]))
def test_no_cut_is_better(generator, text):
    scores = generator.integers(1, 9, 20) / 10
    expected = generator.random(20) * generator.integers(0, 2, 20)
    expected[0] = 0.5
    goal = Goal.parse(text)
    cuts = every_cut(scores, expected)
    true, false, missed = reached(goal, scores, expected)
    if goal.kind == "f1":
        best = max(2 * t / (2 * t + f + m) for t, f, m in cuts[1:])
        assert 2 * true / (2 * true + false + missed) == pytest.approx(best)
    elif goal.kind == "cost":
        assert false + 3 * missed == pytest.approx(min(f + 3 * m for _, f, m in cuts))
    elif goal.kind == "precision":
        possible = [t for t, f, _ in cuts if t + 1e-9 >= 0.6 * (t + f)]
        assert true == pytest.approx(max(possible))
        assert true + 1e-9 >= 0.6 * (true + false)
    else:
        possible = [t + f for t, f, m in cuts if t + 1e-9 >= 0.7 * (t + m)]
        assert true + false == pytest.approx(min(possible))


def test_with_all_labels_known_it_is_the_best_f1():
    truth, labels = draw()
    fitted = decisions.fit(truth, labels, facts_of(labels))
    np.testing.assert_allclose(fitted.thresholds, metrics.tune_thresholds(truth, labels))
    decided = truth >= fitted.thresholds
    true = (decided & (labels == 1)).sum(axis=0)
    np.testing.assert_allclose(fitted.precision, true / decided.sum(axis=0))
    np.testing.assert_allclose(fitted.recall, true / labels.sum(axis=0))
    assert fitted.images == len(truth)
    assert not fitted.never.any()


# --- what is unknown -----------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["pal:0.3", "ppl:0.3", "spl"])
def test_thresholds_of_few_known_labels_are_as_good_as_of_all(setting):
    truth, labels = draw()
    known, facts = known_of(labels, setting)
    fresh, answers = draw(seed=5)
    fitted = decisions.fit(truth, known, facts)
    full = metrics.f1_scores(fresh, answers, metrics.tune_thresholds(truth, labels))
    few = metrics.f1_scores(fresh, answers, fitted.thresholds)
    assert abs(few.CF1 - full.CF1) < 0.02
    assert abs(few.OF1 - full.OF1) < 0.02


@pytest.mark.parametrize("setting", ["pal:0.3", "ppl:0.3"])
@pytest.mark.parametrize("goal", ["precision:0.7", "recall:0.8"])
def test_a_floor_holds_on_new_images(setting, goal):
    """Known entries alone would say that every precision is 1 where only positives are known."""
    truth, labels = draw(12_000)
    known, facts = known_of(labels, setting)
    fitted = decisions.fit(truth, known, facts, Goal.parse(goal))
    fresh, answers = draw(12_000, seed=5)
    decided = fresh >= fitted.thresholds
    true = (decided & (answers == 1)).sum()
    found = {"precision": true / decided.sum(), "recall": true / answers.sum()}
    name, floor = goal.split(":")
    assert found[name] == pytest.approx(float(floor), abs=0.03)


def test_cheap_mistakes_are_made():
    truth, labels = draw()
    known, facts = known_of(labels, "pal:0.3")
    by_cost = [decisions.fit(truth, known, facts, Goal.parse(f"cost:{c}:1")) for c in (0.2, 1, 5)]
    cheap, even, dear = (np.median(fitted.thresholds) for fitted in by_cost)
    assert cheap == pytest.approx(1 / 6, abs=0.05)  # of true probabilities it is known
    assert even == pytest.approx(1 / 2, abs=0.1)
    assert dear > even


def test_an_unknown_entry_is_expected_to_be_what_bayes_says():
    chance = Chances(np.array([[0.75, 1.0]]), np.array([[0.5, 0.5]]))
    labels = np.array([[-1, -1], [1, 0]], np.int8)
    found = decisions.expected_labels(np.full((2, 2), 0.5), labels, chance)
    np.testing.assert_allclose(found, [[1 / 3, 0], [1, 0]])


def test_a_label_with_few_known_positives_goes_by_the_model():
    truth, labels = draw(2000)
    known = hide(labels, "pal:0.5")
    known[:, 0] = -1  # nothing is known of it
    few = np.flatnonzero(known[:, 1] == 1)[decisions.ENOUGH - 1 :]
    known[few, 1] = -1
    fitted = decisions.fit(truth, known, facts_of(known), calibrate="temperature")
    assert fitted.by_model.tolist() == [True, True, *[False] * (LABELS - 2)]
    assert fitted.positives[:2].tolist() == [0, decisions.ENOUGH - 1]
    # The best threshold of F1 is half of the F1 that it reaches.
    f1 = 2 / (1 / fitted.precision + 1 / fitted.recall)
    np.testing.assert_allclose(fitted.thresholds[:2], f1[:2] / 2, atol=0.02)


def test_a_precision_out_of_reach_is_decided_for_no_image():
    truth, labels = draw(2000)
    known, facts = known_of(labels, "pal:0.5")
    fitted = decisions.fit(truth / 2, known, facts, Goal.parse("precision:0.999"))
    assert fitted.never.any()
    assert not (truth >= fitted.thresholds)[:, fitted.never].any()
    assert np.isnan(fitted.precision[fitted.never]).all()
    assert (fitted.recall[fitted.never] == 0).all()


# --- calibration ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["temperature", "isotonic"])
@pytest.mark.parametrize("setting", ["fal", "pal:0.3", "ppl:0.3", "spl"])
def test_a_calibration_finds_true_probabilities_again(kind, setting):
    truth, labels = draw(20_000)
    wrong = sigmoid(0.6 * decisions.logits_of(truth) - 1)
    known, facts = known_of(labels, setting)
    calibration = decisions.fit(wrong, known, facts, calibrate=kind).calibration
    fresh, answers = draw(seed=5)
    fresh = sigmoid(0.6 * decisions.logits_of(fresh) - 1)
    before, after = (
        metrics.calibration_error(p, answers) for p in (fresh, calibration.apply(fresh))
    )
    assert before > 0.05
    assert after < 0.4 * before if setting == "spl" else 0.15 * before
    if kind == "temperature" and setting in ("fal", "pal:0.3"):
        assert calibration.slope == pytest.approx(1 / 0.6, rel=0.05)
        assert calibration.shift == pytest.approx(1 / 0.6, rel=0.1)


@pytest.mark.parametrize("kind", ["temperature", "isotonic"])
def test_a_calibration_keeps_the_order_and_survives_storing(kind):
    truth, labels = draw(3000)
    known, facts = known_of(labels, "pal:0.3")
    calibration = decisions.fit(sigmoid(3 * truth), known, facts, calibrate=kind).calibration
    again = Calibration.from_json(json.loads(json.dumps(calibration.to_json())))
    assert again == calibration
    grid = np.linspace(0, 1, 1001)
    assert (np.diff(calibration.apply(grid)) > 0).all()
    assert calibration.apply(grid.astype(np.float32)).dtype == np.float32
    assert ((calibration.apply(grid) >= 0) & (calibration.apply(grid) <= 1)).all()


def test_nothing_known_changes_nothing():
    truth, labels = draw(100)
    unknown = np.full_like(labels, -1)
    for kind in decisions.KINDS:
        fitted = decisions.fit(truth, unknown, facts_of(unknown), calibrate=kind)
        np.testing.assert_allclose(fitted.calibration.apply(truth), truth, atol=1e-6)
        assert fitted.by_model.all()
        assert np.isfinite(fitted.thresholds).all()


def test_a_calibration_that_is_not_there():
    truth, labels = draw(100)
    with pytest.raises(ConfigError, match="calibrate is one of none, temperature, isotonic"):
        decisions.fit(truth, labels, facts_of(labels), calibrate="platt")
    with pytest.raises(ValueError, match="no calibration 'platt'"):
        Calibration.from_json({"kind": "platt"})


def test_thresholds_are_of_calibrated_probabilities():
    truth, labels = draw()
    known, facts = known_of(labels, "pal:0.3")
    wrong = sigmoid(0.6 * decisions.logits_of(truth) - 1)
    plain = decisions.fit(wrong, known, facts)
    fitted = decisions.fit(wrong, known, facts, calibrate="temperature")
    assert plain.calibration == AS_IT_IS
    same = (wrong >= plain.thresholds) == (fitted.calibration.apply(wrong) >= fitted.thresholds)
    assert same.mean() > 0.999
    assert not np.allclose(plain.thresholds, fitted.thresholds, atol=0.05)


def test_other_images_are_expected_to_have_as_many_positives():
    _, labels = draw(4000)
    few = LabelTable.from_dense(hide(labels, "ppl:0.2"))
    told = float(labels.sum(axis=1).mean())
    facts = propensity.estimate_others(few, told)
    assert facts.positive[0] == pytest.approx(0.2, abs=0.02)
    assert propensity.estimate_others(few, 0.01).positive[0] == 1  # more are known than expected
    full = propensity.estimate_others(LabelTable.from_dense(labels), told)
    assert (full.positive == 1).all()
    assert (full.negative == 1).all()
    assert replace(full, source="") != full
