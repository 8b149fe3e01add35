"""Thresholds and calibrations: right where labels are known, hardly worse where most are not."""

import json
import pickle
import re
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders import files_of, partly_here, partly_works, problem, write_npz
from partly import (
    PartialLabelClassifier,
    answers,
    checkpoint,
    decisions,
    hide,
    metrics,
    propensity,
    read,
    runs,
    workflow,
)
from partly.answers import Answer
from partly.decisions import AS_IT_IS, Calibration, Chances, Goal
from partly.errors import ConfigError, RunError
from partly.exporting.whole import Lines
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
    decided = scores >= decisions.best_threshold(goal, scores, expected, scores)
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
        shares = [share_of(scores, t, t + f, t + f) for t, f, _ in cuts]
        possible = [t for (t, _, _), share in zip(cuts, shares, strict=True) if share >= 0.6]
        assert true == pytest.approx(max(possible, default=0))
        assert true + false == 0 or share_of(scores, true, true + false, true + false) >= 0.6
    else:
        shares = [share_of(scores, t, t + f, t + m, of_all=True) for t, f, m in cuts]
        possible = [t + f for (t, f, _), s in zip(cuts, shares, strict=True) if s >= 0.7]
        assert true + false == pytest.approx(min(possible, default=len(scores)))


def share_of(
    scores: np.ndarray, true: float, decided: float, count: float, of_all: bool = False
) -> float:
    """What one can rely on of a cut, where the scores are what is believed."""
    if not decided:
        return 0.0
    highest = np.sort(scores)[-round(decided) :].sum()
    share = (true + 20 * highest / (scores.sum() if of_all else decided)) / (count + 20)
    return float(share - 0.5 * np.sqrt(max(share * (1 - share), 0) / (count + 20)))


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


@pytest.mark.parametrize("goal", ["precision:0.9", "recall:0.9"])
def test_a_floor_holds_label_by_label_where_few_images_are_there_to_fit_on(goal):
    """The best of many cuts is also the luckiest: of 500 images it promises more than it keeps."""
    kept, promised = [], []
    fresh, answers = draw_wide(20_000, seed=99)
    for seed in range(3):
        probabilities, labels = draw_wide(500, seed)
        fitted = decisions.fit(probabilities, labels, facts_of(labels), Goal.parse(goal))
        decided = fresh >= fitted.thresholds
        true = (decided & (answers == 1)).sum(axis=0)
        of_precision = goal.startswith("precision")
        kept.append(true / (decided if of_precision else answers).sum(axis=0))
        promised.append(fitted.precision if of_precision else fitted.recall)
    assert np.min(kept) > 0.84
    assert np.mean(np.array(kept) < 0.87) < 0.1
    assert np.mean(kept) > 0.9
    assert np.mean(promised) < np.mean(kept) + 0.005
    assert np.min(promised) >= 0.9


def draw_wide(images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`draw` of twelve labels that are easier to tell apart."""
    generator = np.random.default_rng(seed)
    truth = sigmoid(generator.normal(np.linspace(-1, -3, 12), 2.5, (images, 12)))
    return truth, (generator.random(truth.shape) < truth).astype(np.int8)


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


def test_a_label_that_nobody_answered_is_decided_for_no_image():
    """What the model says of it, that it is there or not, was never corrected by anything."""
    truth, labels = draw(2000)
    known = hide(labels, "pal:0.5")
    known[:, :3] = -1
    known[:, 2] = labels[:, 2]  # not before, but now
    taught = np.array([False, True, False, *[True] * (LABELS - 3)])
    for goal in ("f1", "recall:0.9", "cost:1:9"):
        fitted = decisions.fit(
            truth, known, facts_of(known), Goal.parse(goal), "isotonic", taught=taught
        )
        assert fitted.never.tolist() == [True, *[False] * (LABELS - 1)]
        assert not (truth[:, 0] >= fitted.thresholds[0]).any()
        assert np.isnan(fitted.recall[0])
        assert fitted.by_model.tolist() == [False, True, *[False] * (LABELS - 2)]
        assert fitted.unanswered.tolist() == fitted.never.tolist()
        _, few, nobody = sentences(fitted)[-3:]
        assert few == (
            "1 of them has fewer than 10 known positives, and goes by what the model believes: b"
        )
        assert nobody == (
            "1 of them is decided for no image, for nobody has answered anything about it in "
            "training: a"
        )


def sentences(fitted: decisions.Decisions) -> list[str]:
    return [*decisions.describe(fitted, "abcdef"[: len(fitted.thresholds)])]


@pytest.mark.parametrize("chosen", [slice(None), slice(0, 1), slice(4, None)])
def test_what_reaches_no_goal_is_told_with_a_reason(chosen):
    truth, labels = draw(2000)
    truth, labels = truth[:, chosen], labels[:, chosen]
    labels[truth.argmax(axis=0), np.arange(truth.shape[1])] = 0
    for goal, why, way_out in (
        ("precision:1", "no threshold reaches the goal", "try a lower goal"),
        ("cost:99:1", "no threshold costs less", "try a goal where a missed positive costs more"),
    ):
        fitted = decisions.fit(truth, labels, facts_of(labels), Goal.parse(goal))
        first, told, last = sentences(fitted)
        assert fitted.never.all()
        assert first.endswith("2,000 images: no label is decided for any image")
        count = len(fitted.thresholds)
        verb = "is" if count == 1 else "are"
        assert told.startswith(f"{count} of them {verb} decided for no image, for {why}: ")
        assert last == way_out


def test_a_precision_out_of_reach_is_decided_for_no_image():
    truth, labels = draw(2000)
    known, facts = known_of(labels, "pal:0.5")
    fitted = decisions.fit(truth / 2, known, facts, Goal.parse("precision:0.999"))
    assert fitted.never.any()
    assert not (truth >= fitted.thresholds)[:, fitted.never].any()
    assert np.isnan(fitted.precision[fitted.never]).all()
    assert (fitted.recall[fitted.never] == 0).all()


def test_never_is_never_where_a_model_is_entirely_sure():
    """The σ of a logit of 17 is 1 in float32."""
    sure = np.linspace(-20, 20, 2000, dtype=np.float32).repeat(LABELS).reshape(-1, LABELS)
    scores = 1 / (1 + np.exp(-sure))
    labels = np.random.default_rng(0).integers(0, 2, scores.shape).astype(np.int8)
    fitted = decisions.fit(scores, labels, facts_of(labels), Goal.parse("precision:0.9"))
    assert fitted.never.all()
    assert scores.max() == 1
    assert not (scores >= fitted.thresholds).any()
    assert not any(scores.max() >= threshold for threshold in fitted.thresholds.tolist())


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


def test_a_label_that_training_knew_nothing_of_does_not_calibrate_the_others():
    """Its c is 0: one known positive of it among the images held out is not ten million."""
    truth, labels = draw(4000)
    known = hide(labels, "pal:0.5")
    facts = facts_of(known)
    extra = np.full((len(known), 1), -1, np.int8)
    nothing = facts_of(np.hstack([known, extra]))
    assert nothing.positive[-1] == 0
    extra[7] = 1
    probabilities = np.hstack([sigmoid(2 * truth - 1), np.full((len(known), 1), 0.4)])
    for kind in ("temperature", "isotonic"):
        seven = decisions.fit(probabilities, np.hstack([known, extra]), nothing, calibrate=kind)
        six = decisions.fit(probabilities[:, :-1], known, facts, calibrate=kind)
        grid = np.linspace(0.01, 0.99, 99)
        found, expected = (fitted.calibration.apply(grid) for fitted in (seven, six))
        np.testing.assert_allclose(found, expected, atol=0.01)


def test_the_knots_of_an_isotonic_calibration_rise_where_a_model_is_entirely_sure():
    generator = np.random.default_rng(0)
    scores = generator.choice([0.0, 0.3, 1.0], (3000, LABELS)).astype(np.float32)
    labels = (generator.random(scores.shape) < 0.1 + 0.7 * scores).astype(np.int8)
    calibration = decisions.fit(scores, labels, facts_of(labels), calibrate="isotonic").calibration
    assert (np.diff(calibration.x) > 0).all()
    assert (calibration.x[0], calibration.x[-1]) == (0, 1)
    found = calibration.apply(np.array([0.0, 0.3, 1.0]))
    np.testing.assert_allclose(found, [0.1, 0.31, 0.8], atol=0.02)
    lines = Lines(calibration)(torch.tensor([0.0, 0.3, 1.0]))
    np.testing.assert_allclose(lines, found, atol=1e-6)


def test_fitting_needs_little_more_than_a_table_of_expected_labels():
    truth, labels = draw(200_000)
    truth, facts = truth.astype(np.float32), facts_of(labels)
    for kind in ("none", "isotonic"):
        tracemalloc.start()
        decisions.fit(truth, labels, facts, calibrate=kind)
        most = tracemalloc.get_traced_memory()[1] / truth.size
        tracemalloc.stop()
        assert most < 48


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
    assert full.source == facts_of(labels).source
    assert "every label is known" in full.source


# --- in a run ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_npz(tmp_path_factory.mktemp("data") / "data.npz", 1200, 300, labels=LABELS)


@pytest.fixture(scope="module")
def trained(data) -> Path:
    """A run with 1200 training images, about 120 of them held out, of which 60 % are known."""
    run = data.parent / "run"
    partly_works("train", data, "--out", run, "--hide", "pal:0.6", "--epochs", 3)
    return run


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_run_says_what_its_thresholds_were_fitted_on(trained):
    stored = checkpoint.read_json(trained / runs.DECISIONS)
    thresholds = checkpoint.read_json(trained / runs.THRESHOLDS)
    assert (stored["goal"], stored["calibration"]["kind"]) == ("f1", "none")
    assert stored["refitted_on"] is None
    assert 80 < stored["images"] < 160
    assert {name: line["threshold"] for name, line in stored["labels"].items()} == thresholds
    assert all(0.5 < line["precision"] <= 1 for line in stored["labels"].values())


def test_decide_fits_on_what_training_held_out_and_all_use_it(run, data):
    table = read(data)
    before = runs.load(run)
    said = partly_works("decide", run, data, "--goal", "recall:0.9", "--calibrate", "temperature")
    after = runs.load(run)
    stored = checkpoint.read_json(run / runs.DECISIONS)
    assert f"fitting on the {stored['images']} images that training held out" in said.out
    assert (stored["goal"], stored["refitted_on"]) == ("recall:0.9", "data.npz")
    assert after.calibration.kind == "temperature"
    calibrated = after.calibration.apply(before.probabilities(table))
    np.testing.assert_allclose(after.probabilities(table), calibrated, atol=1e-6)
    test = table.part("test")
    recall = ((after.probabilities(test) >= after.thresholds) & (test.dense() == 1)).sum()
    assert recall / (test.dense() == 1).sum() == pytest.approx(0.9, abs=0.06)
    evaluation = checkpoint.read_json(run / runs.EVALUATION)
    again = workflow.evaluate_run(run, data)["metrics"]
    assert evaluation["metrics"]["OF1_at_thresholds"] == again["OF1_at_thresholds"]
    assert "report: " in said.out


def test_a_finished_run_that_is_resumed_keeps_what_was_fitted_again(run, data):
    partly_works("decide", run, data, "--goal", "precision:0.8", "--calibrate", "isotonic")
    before = files_of(run)
    partly_works("train", data, "--out", run, "--resume")
    kept = (runs.THRESHOLDS, runs.DECISIONS, runs.EVALUATION)
    assert [name for name in kept if files_of(run)[name] != before[name]] == []
    partly_works("decide", run, data, "--calibrate", "none")
    assert runs.load(run).calibration.kind == "none"


def test_a_label_that_training_knew_nothing_of_is_predicted_nowhere(tmp_path):
    rows, labels = problem(600)
    labels[:, 0] = -1
    np.savez(tmp_path / "data.npz", X_train=rows, Y_train=labels, names=np.array([*"abcd"]))
    told = partly_works("train", tmp_path / "data.npz", "--out", tmp_path / "run", "--epochs", 1)
    again = partly_works("decide", tmp_path / "run", tmp_path / "data.npz", "--goal", "recall:0.9")
    assert "nobody has answered anything about it in training: a" in again.out
    assert checkpoint.read_json(tmp_path / "run" / runs.DECISIONS)["labels"]["a"]["unanswered"]
    decided = runs.load(tmp_path / "run").predict(rows).decided
    assert not decided[:, 0].any()
    assert decided[:, 1:].any(axis=0).all()
    assert "1 label is decided for no image" in (tmp_path / "run" / runs.REPORT).read_text()
    assert told.code == 0


def test_what_is_not_named_stays_as_it_was(run, data):
    """A new goal is no word against the calibration, nor the other way round."""
    said = partly_works("decide", run, data, "--calibrate", "temperature").out
    assert "as before: goal f1\n" in said
    calibration = runs.load(run).calibration
    said = partly_works("decide", run, data, "--goal", "recall:0.9").out
    assert "as before: calibration temperature\n" in said
    assert runs.load(run).calibration == calibration
    thresholds = runs.load(run).thresholds
    said = partly_works("decide", run, data).out
    assert "as before: goal recall:0.9, calibration temperature\n" in said
    np.testing.assert_array_equal(runs.load(run).thresholds, thresholds)
    partly_works("decide", run, data, "--goal", "f1", "--calibrate", "none")
    assert runs.read_wanted(run) == ("f1", "none")


@pytest.mark.parametrize("setting", ["pal:0.4", "ppl:0.4"])
def test_after_answers_the_same_images_give_the_same_thresholds(tmp_path, setting):
    """People are asked about what is hard: thresholds are not for that."""
    rows, labels = problem(800, LABELS)
    known = hide(labels, setting)
    data, run = tmp_path / "data.npz", tmp_path / "run"
    np.savez(data, X_train=rows, Y_train=known)
    partly_works("train", data, "--out", run, "--epochs", 1)
    before = runs.load(run).thresholds
    table = read(data)
    new = [
        Answer(table.ids[row], table.names[column], int(labels[row, column]))
        for row, column in np.argwhere(known == -1)[::4]
    ]
    answers.append(answers.journal_of(data), new)
    partly_works("decide", run, data)
    np.testing.assert_allclose(runs.load(run).thresholds, before, atol=1e-6)
    partly_works("train", data, "--out", tmp_path / "again", "--epochs", 1)
    fitted = runs.load(tmp_path / "again").thresholds
    partly_works("decide", tmp_path / "again", data)
    np.testing.assert_allclose(runs.load(tmp_path / "again").thresholds, fitted, atol=1e-6)


@pytest.mark.parametrize("after", ["thresholds.json", "decisions.json"])
def test_decisions_that_are_cut_off_are_those_before_or_those_after(run, data, monkeypatch, after):
    """Killed while they are written: never half of the one and half of the other, nor ½ for all."""
    before = runs.read_decisions(run, read(data).names)
    written = checkpoint.write_json

    def killed(path: Path, content: object) -> None:
        if path.name == after:
            raise KeyboardInterrupt
        written(path, content)

    with monkeypatch.context() as broken:
        broken.setattr(checkpoint, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            workflow.decide_run(
                run, data, goal="recall:0.9", calibrate="temperature", say=lambda _: None
            )
    thresholds, calibration = runs.read_decisions(run, read(data).names)
    if after == "decisions.json":
        np.testing.assert_array_equal(thresholds, before[0])
        assert calibration == before[1]
    else:
        assert calibration.kind == "temperature"
        assert (thresholds < before[0]).all()
    copy = run / runs.THRESHOLDS
    assert not copy.exists() or list(checkpoint.read_json(copy).values()) == thresholds.tolist()


def test_a_run_that_says_it_is_finished_has_its_thresholds(data, tmp_path, monkeypatch):
    seen = []
    written = checkpoint.write_json

    def look(path: Path, content: object) -> None:
        written(path, content)
        if path.name == runs.CONFIG and content.get("finished"):
            seen.append((path.parent / runs.DECISIONS).exists())

    monkeypatch.setattr(checkpoint, "write_json", look)
    partly_works("train", data, "--out", tmp_path / "run", "--epochs", 1)
    assert seen == [True]


def test_thresholds_of_a_run_without_decisions_are_read(run, data):
    fitted = runs.load(run).thresholds
    (run / runs.DECISIONS).unlink()
    np.testing.assert_array_equal(runs.load(run).thresholds, fitted)
    (run / runs.THRESHOLDS).unlink()
    assert runs.load(run).thresholds is None
    np.testing.assert_array_equal(runs.load(run).limits, np.full(LABELS, 0.5))


def test_what_is_measured_again_is_measured_on_the_device_that_was_named(run, data, monkeypatch):
    loaded = []
    load = runs.load
    monkeypatch.setattr(runs, "load", lambda *named: loaded.append(named) or load(*named))
    partly_works("decide", run, data, "--device", "cpu")
    assert loaded == [(run, "cpu")]


def test_thresholds_that_were_fitted_on_the_test_part_are_called_so(run, data):
    said = partly_works("decide", run, data, "--part", "test").out
    assert "these are the images of the test part" in said
    assert "fitted for the best F1 on these very images" in (run / runs.REPORT).read_text()
    said = partly_works("decide", run, data).out
    assert "these are the images of the test part" not in said
    assert "other images that it was not trained on" in (run / runs.REPORT).read_text()


def test_decide_on_other_images(run, tmp_path):
    rows, labels = problem(500, LABELS, seed=7)
    known = hide(labels, "ppl:0.5")
    names = [f"label {number}" for number in range(LABELS)]
    np.savez(tmp_path / "new.npz", X_train=rows, Y_train=known, names=names)
    positives = str(labels.sum(axis=1).mean())
    measured = checkpoint.read_json(run / runs.EVALUATION)["metrics"]
    said = partly_works("decide", run, tmp_path / "new.npz", "--expected-positives", positives).out
    assert "fitting on 500 images of the train part of new.npz" in said
    assert "only positives are known" in said
    assert "should some of its images have been trained on" in said
    metrics_now = checkpoint.read_json(run / runs.EVALUATION)["metrics"]
    assert metrics_now["OF1_at_thresholds"] is None  # its images are not in these data
    assert metrics_now["mAP"] > 0.8
    assert "has no CF1_at_thresholds, OF1_at_thresholds any more" in said
    assert metrics_now["OF1"] == measured["OF1"]
    assert metrics_now["calibration_error"] == measured["calibration_error"]
    assert (run / runs.DIAGNOSIS).exists()
    again = partly_works("decide", run, tmp_path / "new.npz", "--calibrate", "isotonic").out
    assert "CF1, OF1, calibration_error, curves and mistakes any more" in again
    assert checkpoint.read_json(run / runs.EVALUATION)["metrics"]["OF1"] is None
    assert not (run / runs.DIAGNOSIS).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--goal", "best", "--calibrate", "platt"],
            "calibrate is one of none.*\n.*no goal 'best'",
        ),
        (["--part", "validation"], "has no validation part: name one with --part"),
        (["--expected-positives", "0.1"], "the expectation is too low"),
    ],
)
def test_decide_says_what_is_wrong(run, tmp_path, data, arguments, message):
    before = files_of(run)
    answer = partly_here("decide", run, data, *arguments)
    assert answer.code == 2
    assert re.search(message, answer.err)
    assert files_of(run) == before


def test_images_that_were_all_trained_on_decide_nothing(data, tmp_path):
    run = tmp_path / "run"
    partly_works("train", data, "--out", run, "--epochs", 1, "--hold-out", 0)
    assert "was trained on all of these images" in partly_here("decide", run, data).err
    assert partly_here("decide", run, data, "--part", "test").code == 0


def test_labels_of_which_nothing_is_known_decide_nothing(run, tmp_path):
    rows, labels = problem(60, LABELS, seed=7)
    names = [f"label {number}" for number in range(LABELS)]
    np.savez(tmp_path / "new.npz", X_train=rows, Y_train=np.full_like(labels, -1), names=names)
    assert (
        "no label of these 60 images is known"
        in partly_here("decide", run, tmp_path / "new.npz").err
    )


def test_training_takes_a_goal_and_a_calibration(data, tmp_path):
    given = ["--epochs", 1, "--goal", "precision:0.9", "--calibrate", "isotonic"]
    partly_works("train", data, "--out", tmp_path / "run", *given)
    stored = checkpoint.read_json(tmp_path / "run" / runs.DECISIONS)
    assert (stored["goal"], stored["calibration"]["kind"]) == ("precision:0.9", "isotonic")
    assert runs.load(tmp_path / "run").calibration.kind == "isotonic"
    refused = partly_here("train", data, "--out", tmp_path / "no", *given, "--hold-out", 0)
    assert refused.code == 2
    for name in ("goal precision:0.9", "calibrate isotonic"):
        assert (
            f"{name} is fitted on images that are not trained on, and there are none" in refused.err
        )


def test_a_calibration_that_is_damaged_is_named(run):
    stored = checkpoint.read_json(run / runs.DECISIONS)
    checkpoint.write_json(run / runs.DECISIONS, stored | {"calibration": {"kind": "platt"}})
    with pytest.raises(RunError, match="is damaged"):
        runs.load(run)


def test_the_scikit_learn_face_decides_for_a_goal():
    rows, labels = problem(1500, LABELS)
    known = hide(labels, "pal:0.5")
    chosen = {"epochs": 3, "hold_out": 0.3, "random_state": 0, "goal": "recall:0.95"}
    model = PartialLabelClassifier(**chosen, calibrate="temperature").fit(rows, known)
    assert model.predictor_.calibration.kind == "temperature"
    fresh, answers = problem(1500, LABELS, seed=3)
    found = (model.predict(fresh) == 1) & (answers == 1)
    assert found.sum() / answers.sum() == pytest.approx(0.95, abs=0.03)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict_proba(fresh), model.predict_proba(fresh))
    with pytest.raises(ConfigError, match=r"goal recall:0\.95 is fitted on images that are not"):
        PartialLabelClassifier(goal="recall:0.95", epochs=1).fit(rows, known)
