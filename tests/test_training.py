"""The training loop: what it learns, what it keeps, what it refuses."""

import copy
import re
import tempfile
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from builders import feature_table, files_of, picture_table
from partly import checkpoint, judging, models, pseudo, runs, training
from partly.config import usual_batch_size
from partly.errors import ConfigError, DataError, RunError
from partly.experiments import is_full
from partly.hiding import hide
from partly.labels import LabelTable
from partly.losses import fused
from partly.metrics import mean_average_precision
from partly.schedules import learning_rate_factor
from partly.training import Config, train

PICTURES = Config(backbone="small:4", image_size=16, batch_size=16, epochs=6, learning_rate=1e-2)
QUICK = Config(epochs=3, batch_size=64)


def opened(table: LabelTable, config: Config = QUICK, **choices: Any) -> training.State:
    """A training that is about to take its first step."""
    return training.start(table, replace(config, **choices).complete(table))


def weights_after(table: LabelTable, config: Config = QUICK, **choices: Any) -> torch.Tensor:
    """All weights and buffers of a trained model in one row."""
    config = replace(config, hold_out=0.0, **choices)
    return flat(train(table, config, quiet=True).model.state_dict().values())


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def train_with_a_fall(stop: int, *arguments: Any, **named: Any) -> runs.Predictor:
    """Train, fall before this step, go on."""
    take_step = training.take_step

    def stumble(state: training.State, *batch: torch.Tensor) -> torch.Tensor:
        if state.step == stop:
            raise InterruptedError
        return take_step(state, *batch)

    with (
        mock.patch.object(training, "take_step", stumble),
        pytest.raises(InterruptedError),
    ):
        train(*arguments, **named)
    return train(*arguments, **named, resume=True)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> LabelTable:
    return picture_table(tmp_path_factory.mktemp("pictures"), 160)


# --- learning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", ["linear", "mlp:32"])
@pytest.mark.parametrize(("method", "setting"), [("partly", "pal:0.3"), ("an", "fal")])
def test_learns_from_features(method, setting, backbone):
    known, test = hide(feature_table(600), setting), feature_table(400, seed=1)
    config = Config(method=method, epochs=15, backbone=backbone, learning_rate=1e-2)
    predictor = train(known, config, quiet=True)
    assert mean_average_precision(predictor.probabilities(test), test.dense()) > 0.9  # chance: 0.33


def test_learns_from_pictures(pictures):
    predictor = train(pictures.take(np.arange(100)), replace(PICTURES, method="ign"), quiet=True)
    test = pictures.take(np.arange(100, 160))
    assert mean_average_precision(predictor.probabilities(test), test.dense()) > 0.9  # chance: 0.5


@pytest.mark.parametrize("backbone", ["linear", "mlp:16"])
def test_the_first_prediction_is_the_prior(backbone):
    state = opened(hide(feature_table(), "pal:0.5"), backbone=backbone)
    _, inputs = next(state.batches())
    first = torch.sigmoid(state.model(inputs)).detach().numpy()
    priors = state.training.propensity.priors
    np.testing.assert_allclose(first, np.tile(priors, (len(first), 1)), rtol=1e-4)
    assert 0.25 < priors.mean() < 0.42
    plain = opened(feature_table(), backbone=backbone, start="plain")
    assert plain.model(inputs).std(dim=0).min() > 0.01


@pytest.mark.parametrize("looks_at", ["features", "pictures"])
def test_the_average_follows_the_weights(looks_at, pictures):
    if looks_at == "features":
        state = opened(feature_table(), ema=0.5, backbone="mlp:8")
    else:
        state = opened(pictures, PICTURES, ema=0.5)
    average = flat(state.average.parameters())
    for step, (rows, inputs) in enumerate(state.batches(), start=1):
        training.take_step(state, rows, inputs)
        weights, decay = flat(state.model.parameters()), min(0.5, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * weights
        torch.testing.assert_close(flat(state.average.parameters()), average, atol=1e-6, rtol=0)
        assert not torch.equal(average, weights)
        assert torch.equal(flat(state.average.buffers()), flat(state.model.buffers()))
    assert state.judged is state.average


def test_the_average_is_what_is_kept(tmp_path):
    config = replace(QUICK, ema=0.9, schedule="constant", hold_out=0.0)
    predictor = train(feature_table(), config, tmp_path / "run", quiet=True)
    saved = checkpoint.load(tmp_path / "run" / runs.CHECKPOINT)
    kept = runs.read_weights(tmp_path / "run")
    assert all(torch.equal(kept[name], tensor) for name, tensor in saved["average"].items())
    assert not torch.equal(kept["head.weight"], saved["model"]["head.weight"])
    assert torch.equal(predictor.model.head.weight, kept["head.weight"])


@pytest.mark.parametrize("clip", [0.0, 1e-3])
def test_clipping_bounds_the_step(clip):
    state = opened(feature_table(), clip=clip, optimiser="sgd", learning_rate=1.0)
    before = flat(state.model.parameters())
    training.take_step(state, *next(state.batches()))
    moved = float((flat(state.model.parameters()) - before).norm())
    assert moved == pytest.approx(1e-3, rel=1e-3) if clip else moved > 0.05


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_learning_rates_follow_the_schedule(schedule):
    state = opened(
        feature_table(),
        method="role",
        backbone="mlp:4",
        learning_rate=0.002,
        head_factor=5.0,
        warmup=0.25,
        schedule=schedule,
    )
    steps, seen = 3 * state.steps_per_epoch, []
    for state.epoch in (1, 2, 3):
        for rows, inputs in state.batches():
            training.take_step(state, rows, inputs)
            seen.append([g["lr"] for opt in state.optimisers for g in opt.param_groups])
    factors = [learning_rate_factor(step, steps, 0.25, schedule) for step in range(steps)]
    # The backbone's weights and biases, the head's, and ROLE's estimates.
    np.testing.assert_allclose(seen, np.outer(factors, [0.002, 0.002, 0.01, 0.01, 0.02]))
    assert isinstance(state.optimisers[1], torch.optim.SparseAdam)
    assert factors[0] < 0.3
    assert (factors[-1] < 0.1) == (schedule == "cosine")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)],
)
def test_every_optimiser_learns_and_decays(tmp_path, name, kind):
    state = opened(feature_table(), optimiser=name, weight_decay=0.1, head_decay=0.1)
    assert type(state.optimisers[0]) is kind
    for group in state.optimisers[0].param_groups:  # a bias does not decay
        assert {group["weight_decay"]} == {0.1 if p.ndim > 1 else 0.0 for p in group["params"]}
    table, config = feature_table(), replace(QUICK, optimiser=name, learning_rate=0.03)
    train(table, config, tmp_path / "run", quiet=True)
    losses = [line["loss"] for line in runs.read_lines(tmp_path / "run" / runs.METRICS)]
    assert losses[2] < losses[0]
    plain, decayed = (
        train(table, replace(config, weight_decay=decay), quiet=True).model.head.weight.norm()
        for decay in (0.0, 1.0)
    )
    assert decayed < plain


def test_the_head_decays_by_itself():
    state = opened(feature_table(), backbone="mlp:4", weight_decay=0.1, head_decay=0.2)
    decays = {
        id(weight): group["weight_decay"]
        for group in state.optimisers[0].param_groups
        for weight in group["params"]
        if weight.ndim > 1
    }
    assert {decays[id(p)] for p in state.model.backbone.parameters() if p.ndim > 1} == {0.1}
    assert decays[id(state.model.head.weight)] == 0.2


def test_bfloat16_on_a_cpu(pictures):
    full, mixed = (weights_after(pictures, PICTURES, epochs=2, amp=amp) for amp in ("off", "on"))
    assert not torch.equal(full, mixed)
    assert torch.isfinite(mixed).all()
    table = feature_table(600)
    predictor = train(table, Config(amp="on", epochs=15, batch_size=64), quiet=True)
    assert predictor.model.head.weight.dtype == torch.float32
    assert mean_average_precision(predictor.probabilities(table), table.dense()) > 0.9


# --- the same again ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["partly", "paper", "role"])
def test_a_seed_decides_everything(method):
    table = hide(feature_table(), "pal:0.5")
    choices = {"method": method, "backbone": "mlp:8"}
    first = weights_after(table, **choices)
    torch.rand(3)  # whatever was drawn elsewhere
    assert torch.equal(first, weights_after(table, **choices))
    assert not torch.equal(first, weights_after(table, **choices, seed=1))


def test_workers_do_not_change_the_result(pictures):
    none, two = (weights_after(pictures, PICTURES, epochs=2, workers=count) for count in (0, 2))
    assert torch.equal(none, two)


@pytest.mark.parametrize("stop", [4, 7])
def test_a_stopped_training_draws_the_same_numbers_when_it_goes_on(
    tmp_path, monkeypatch, pictures, stop
):
    """Dropout in a network on pictures: the random state must be what it would have been."""

    def build(*_: Any, **more: Any) -> Any:
        backbone = nn.Sequential(training.models.small_network(4), nn.Dropout(0.5))
        return training.models.Classifier(backbone, 32, 3)

    monkeypatch.setattr(training.models, "build", build)
    config = replace(PICTURES, epochs=2, batch_size=32, checkpoint_steps=1)  # 5 steps an epoch
    whole = train(pictures, config, tmp_path / "whole", quiet=True).model.state_dict()
    fallen = train_with_a_fall(stop, pictures, config, tmp_path / "run", quiet=True)
    again = fallen.model.state_dict()
    assert all(torch.equal(whole[name], tensor) for name, tensor in again.items())


# --- choosing an epoch ---------------------------------------------------------------------------


def test_too_few_images_are_not_held_out():
    table = feature_table(300)
    kept, validation, truth = judging.hold_out(hide(table, "spl"), table, Config())
    assert (len(kept), validation) == (300, None)
    assert truth is table


def test_too_few_images_to_hold_out_are_told_with_the_way_out():
    said = judging.nothing_to_judge_by(239, Config(hold_out=0.1))
    assert "of 239 images would be held out, fewer than 50: all are trained on" in said
    assert "no thresholds are fitted" in said
    share = float(said.partition("--hold-out ")[2].partition(",")[0])
    assert judging.drawn_aside(239, Config(hold_out=share)).sum() >= 50
    assert not judging.drawn_aside(239, Config(hold_out=share - 0.05)).any()
    assert "--hold-out" not in judging.nothing_to_judge_by(30, Config(hold_out=0.1))
    assert "would be" not in judging.nothing_to_judge_by(239, Config(hold_out=0))


def test_held_out_images_are_a_tenth_and_follow_from_the_seed():
    table = feature_table(2000)
    known = hide(table, "pal:0.5")
    parts = {seed: judging.hold_out(known, table, Config(seed=seed)) for seed in (0, 1)}
    for kept, validation, truth in parts.values():
        assert sorted([*kept.ids, *validation.ids]) == sorted(table.ids)
        assert truth.ids.tolist() == kept.ids.tolist()
        assert (truth.dense() == table.dense()[np.asarray(kept.ids).astype(int)]).all()
        assert 150 < len(validation) < 250
        assert (validation.dense() == known.dense()[np.asarray(validation.ids).astype(int)]).all()
    assert parts[0][1].ids.tolist() != parts[1][1].ids.tolist()
    again = judging.hold_out(known, None, Config(seed=0))
    assert again[0].ids.tolist() == parts[0][0].ids.tolist()
    assert again[2] is None


@pytest.mark.parametrize(("ema", "fall"), [(0.0, None), (0.5, None), (0.5, 16)])
def test_what_comes_after_the_best_epoch_is_not_kept(tmp_path, ema, fall):
    """Validation labels turned upside down: the more is learnt, the worse. The first is best."""
    table, turned = feature_table(400), feature_table(200, seed=1)
    turned = LabelTable.from_dense(1 - turned.dense(), features=turned.features)
    config = Config(method="an", epochs=4, batch_size=64, schedule="constant", ema=ema,
                    start="plain")  # fmt: skip
    begin = train if fall is None else partial(train_with_a_fall, fall)
    predictor = begin(table, config, tmp_path / "run", validation=turned, quiet=True)
    lines = runs.read_lines(tmp_path / "run" / runs.METRICS)
    scores = [line["validation_score"] for line in lines]
    assert np.argmax(scores) == 0
    assert {line["criterion"] for line in lines} == {"mAP of known labels"}
    first = replace(config, epochs=1, hold_out=0.0)  # no judge: the last epoch
    train(table, first, tmp_path / "first", quiet=True)
    chosen, expected = ((tmp_path / run / runs.WEIGHTS).read_bytes() for run in ("run", "first"))
    assert chosen == expected
    assert mean_average_precision(predictor.logits(turned), turned.dense()) == scores[0]


def test_a_later_epoch_is_kept_unless_it_is_clearly_worse():
    state, nobody = opened(feature_table()), mock.Mock()
    nan = np.nan
    course = [
        ([0.5, 0.6, 0.7, nan], 1),
        ([0.6, 0.7, 0.9, nan], 2),  # the best
        ([0.5, 0.8, 0.8, nan], 3),  # one label better, two worse: not clearly
        ([0.4, 0.5, 0.7, nan], 3),  # all of them worse
        ([nan, nan, nan, nan], 3),
        ([0.61, 0.69, 0.9, nan], 6),
    ]
    for epoch, (values, kept) in enumerate(course, start=1):
        found = (np.array(values), "mAP of known labels")
        with mock.patch.object(judging.metrics, "select_scores", return_value=found):
            metric = {"epoch": epoch}
            judging.keep_if_good(state, metric, nobody, None)
        assert state.best_epoch == kept
        assert metric["validation_score"] == (
            None if np.isnan(values).all() else pytest.approx(np.nanmean(values))
        )
    assert state.best_scores[2] == 0.9


def test_without_a_judge_the_last_epoch_is_kept(tmp_path):
    train(feature_table(), replace(QUICK, hold_out=0.0), tmp_path, quiet=True)
    saved = checkpoint.load(tmp_path / runs.CHECKPOINT)["model"]
    kept = runs.read_weights(tmp_path)
    assert all(torch.equal(kept[name], tensor) for name, tensor in saved.items())
    assert "validation_score" not in runs.read_lines(tmp_path / runs.METRICS)[0]
    assert not (tmp_path / runs.THRESHOLDS).exists()


@pytest.mark.parametrize("setting", ["ppl:0.5", "spl"])
def test_positives_alone_are_judged_against_the_unknown(tmp_path, setting):
    train(hide(feature_table(1000), setting), QUICK, tmp_path, quiet=True)
    lines = runs.read_lines(tmp_path / runs.METRICS)
    assert {line["criterion"] for line in lines} == {"AUROC of known positives against unknown"}
    assert lines[-1]["validation_score"] > 0.7


def test_validation_columns_are_put_in_order_and_must_be_there(tmp_path):
    table = feature_table(600)
    names = table.names
    validation = feature_table(200, seed=1)
    swapped = validation.reorder(names[::-1])
    for name, part in (("straight", validation), ("swapped", swapped)):
        train(table, QUICK, tmp_path / name, validation=part, quiet=True)
    straight, swapped_too = (
        [line["validation_score"] for line in runs.read_lines(tmp_path / name / runs.METRICS)]
        for name in ("straight", "swapped")
    )
    assert straight == swapped_too
    with pytest.raises(ValueError, match=r"validation part has no column for 1 of 4.*label 2"):
        train(table, QUICK, validation=validation.reorder([*names[:2], names[3]]), quiet=True)


# --- refusals ------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_ends_with_advice(tmp_path):
    config = replace(QUICK, learning_rate=1e20, optimiser="sgd", backbone="mlp:8")
    with pytest.raises(RunError, match=r"not finite in epoch \d: lower the learning rate .*1e\+20"):
        train(feature_table(), config, tmp_path, quiet=True)
    assert not (tmp_path / runs.WEIGHTS).exists()


def test_every_problem_of_a_config_is_named_at_once():
    config = Config(method="partyl", epochs=0, learning_rate=-1.0, ema=1.0, warmup=-0.1,
                    optimiser="lion", schedule="linear", amp="yes", start="zero")  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        train(feature_table(), config)
    problems = caught.value.problems
    assert "did you mean 'partly'" in problems[0]
    expected = ["epochs", "learning rate", "warmup", "ema", "optimiser", "schedule", "amp", "start"]
    named = [re.split(" must| is one", problem)[0].replace("_", " ") for problem in problems[1:]]
    assert named == expected
    assert list(Config().problems()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"image_size": 0},
        {"head_factor": 0.0},
        {"hold_out": 1.0},
        {"learning_rate": float("nan")},
        {"clip": -1.0},
        {"weight_decay": -0.1},
        {"head_decay": -0.1},
        {"workers": -1},
        {"device": "toaster"},
    ],
)
def test_a_value_that_makes_no_sense(wrong):
    (name,) = wrong
    with pytest.raises((ConfigError, DataError), match=name.replace("_", ".")):
        train(feature_table(60), replace(QUICK, **wrong), quiet=True)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("partly", {"momentum": "much"}),
        ("partly", {"momentum": 1.0}),
        ("partly", {"start": "anywhere"}),
        ("partly", {"update": "never"}),
        ("partly", {"weight": "heavy"}),
        ("partly", {"share": "some"}),
        ("partly", {"store": "int4"}),
        ("paper", {"d": "loud"}),
        ("asl", {"gamma_negative": "large"}),
        ("an", {"gamma": 1.0}),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_before_anything_is_written(
    tmp_path, method, options
):
    with pytest.raises(ConfigError):
        train(
            feature_table(60),
            replace(QUICK, method=method, options=options),
            tmp_path / "run",
            quiet=True,
        )
    assert not (tmp_path / "run").exists()


LABELS = feature_table(60).dense()


@pytest.mark.parametrize(
    ("labels", "messages"),
    [
        (LABELS[:, :1], ["only one label"]),
        (np.full_like(LABELS, -1), ["every label is unknown"]),
        (np.where(LABELS == 1, -1, LABELS), ["no label is known to be positive"]),
        (np.full_like(LABELS[:, :1], -1), ["only one label", "every label is unknown"]),
    ],
)
def test_labels_that_teach_nothing(tmp_path, labels, messages):
    table = LabelTable.from_dense(labels, features=feature_table(60).features)
    with pytest.raises(DataError) as caught:
        train(table, QUICK, tmp_path / "run")
    assert len(caught.value.problems) == len(messages)
    for message, problem in zip(messages, caught.value.problems, strict=True):
        assert message in problem
    assert not (tmp_path / "run").exists()


# --- the folder ----------------------------------------------------------------------------------


@pytest.mark.parametrize("held_out", [0.0, 0.2])
def test_pseudo_labels_are_audited_each_epoch(tmp_path, held_out, monkeypatch):
    """With files in the run's folder: others may lie in memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    full = feature_table(400)
    known = hide(full, "pal:0.4")
    config = replace(QUICK, hold_out=held_out)
    train(known, config, tmp_path, truth=full, quiet=True)
    lines = runs.read_lines(tmp_path / runs.AUDIT)
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert {len(column) for column in line["by_label"].values()} == {4}
        assert all(0 <= value <= 1 for column in line["by_label"].values() for value in column)
    if held_out:
        known, _, full = judging.hold_out(known, full, config)
    saved = checkpoint.load(tmp_path / runs.CHECKPOINT)
    values = saved["rows"]["pseudo_labels.values"].float().numpy()
    answers = pseudo.hidden(known, full, np.arange(len(known)))
    assert lines[-1] == {"epoch": 3, **pseudo.audit([(values, answers)], tmp_path)}
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert lines[-1]["mAP"] > lines[0]["share_positive"] + 0.2


def test_the_truth_is_never_trained_on(tmp_path):
    full = feature_table()
    known = hide(full, "pal:0.4")
    upside_down = LabelTable.from_dense(1 - full.dense(), features=full.features)
    for name, truth in (("truth", full), ("lie", upside_down), ("none", None)):
        train(known, QUICK, tmp_path / name, truth=truth, quiet=True)
    weights = [(tmp_path / name / runs.WEIGHTS).read_bytes() for name in ("truth", "lie", "none")]
    assert weights[0] == weights[1] == weights[2]
    assert not (tmp_path / "none" / runs.AUDIT).exists()


def test_config_json_says_everything(tmp_path):
    table = hide(feature_table(), "pal:0.5")
    config = Config(epochs=2, options={"weight": 0.5})
    train(table, config, tmp_path, quiet=True, notes={"data": "here.npz"})
    record = checkpoint.read_json(tmp_path / runs.CONFIG)
    size = usual_batch_size(400, 32, 1024)
    chosen = {"backbone": "linear", "batch_size": size, "learning_rate": 0.01, "warmup": 0.0}
    chosen |= {pick.name: pick.value for pick in config.picks(table)}
    chosen |= {"schedule": "cosine", "ema": 0.0, "batch_norm": "train", "head_factor": 1.0}
    chosen |= {"weight_decay": 0.0}
    assert {name: record[name] for name in asdict(config)} == asdict(config) | chosen
    counts = table.counts_by_label()
    assert record["label_hash"] == table.content_hash
    assert record["labels"] == list(table.names)
    assert (record["images"], record["features"], record["data"]) == (400, 8, "here.npz")
    assert record["label_counts"]["positive"] == counts.positive.tolist()
    assert record["label_counts"]["negative"] == counts.negative.tolist()
    assert record["label_counts"]["unknown"] == counts.unknown.tolist()
    assert {"python", "partly", "torch", "numpy", "timm"} <= set(record["versions"])
    assert record["versions"]["torch"] == torch.__version__.split("+")[0]


def test_what_is_not_given_follows_from_the_data(pictures):
    on_features, on_images = (Config().complete(table) for table in (feature_table(), pictures))
    assert (on_features.backbone, on_features.learning_rate) == ("linear", 1e-2)
    assert (on_images.backbone, on_images.learning_rate) == ("resnet50", 1e-4)
    assert (on_features.head_factor, on_images.head_factor) == (1.0, 10.0)
    scratch = Config(weights="none").complete(pictures), Config(backbone="small").complete(pictures)
    assert {(config.learning_rate, config.head_factor) for config in scratch} == {(1e-3, 1.0)}
    assert (on_features.warmup, on_images.warmup) == (0.0, 0.05)
    assert (on_features.normalise, on_images.normalise) == (None, "imagenet")
    lite = Config(backbone="tf_efficientnet_lite0").complete(pictures)
    assert lite.look.statistics() == ((127 / 255,) * 3, (128 / 255,) * 3)
    given = Config(
        backbone="small",
        head_factor=2.0,
        batch_size=3,
        learning_rate=0.5,
        warmup=0.0,
        normalise="half",
        weight_decay=0.1,
        head_decay=0.2,
        schedule="cosine",
        ema=0.5,
        batch_norm="train",
    )
    assert given.complete(pictures) == given


def test_a_method_picks_only_what_is_left_open(pictures):
    table = feature_table()
    usual = Config(method="ign").complete(table)
    assert (usual.weight_decay, usual.ema, usual.schedule) == (0.0, 0.0, "cosine")
    picked = Config().complete(table)
    assert 0 < picked.head_decay == Config().picks(table)[0].value
    assert picked.weight_decay == 0
    for given in (Config(weight_decay=0.1), Config(method="ign", weight_decay=0.1)):
        assert given.picks(table) == []
        assert given.complete(table).head_decay == 0.1  # of all weights, so of the head's too
    assert Config(head_decay=0.0).complete(table).head_decay == 0
    on_images = Config().complete(pictures)
    assert (on_images.ema, on_images.schedule, on_images.batch_norm) == (0.99, "constant", "keep")
    assert Config(ema=0.5).complete(pictures).ema == 0.5


def test_picks_heed_what_the_user_chose(pictures):
    plain = Config(ema=0.0).complete(pictures)  # no average: then steps must become smaller
    assert (plain.ema, plain.schedule) == (0.0, "cosine")
    assert Config(optimiser="adamw").complete(feature_table()).head_decay == 0  # it is no prior
    assert Config().complete(pictures).head_decay > 0
    for scratch in (Config(weights="none"), Config(backbone="small")):
        complete = scratch.complete(pictures)
        assert (complete.batch_norm, complete.head_decay) == ("train", 0)  # nothing came with them


def test_a_network_without_buffers_is_averaged():
    average, model = nn.Linear(2, 2), nn.Linear(2, 2)
    training.move_average(average, model, 0.5, 100)
    assert not [*model.buffers()]
    before = average.weight.clone()
    training.move_average(average, model, 0.5, 100)
    torch.testing.assert_close(average.weight, (before + model.weight) / 2)


def test_a_network_teaches_and_resumes_to_the_same_end(tmp_path):
    """As a run that is killed right after its teacher: only the checkpoint of step 0 is there."""
    table = hide(feature_table(300), "pal:0.4")
    config = replace(QUICK, options={"teacher": "network"}, hold_out=0.0)
    whole = train(table, config, tmp_path / "whole", quiet=True)
    assert whole.model.backbone.mean.shape == (8,)  # what is kept is linear
    state = training.start(table, config.complete(table))
    training.learn_before(state, quiet=True)
    with (
        mock.patch.object(training, "start", return_value=state),
        mock.patch.object(training, "learn_before"),
        mock.patch.object(training, "take_step", side_effect=RuntimeError("killed")),
        pytest.raises(RuntimeError, match="killed"),
    ):
        train(table, config, tmp_path / "killed", quiet=True)
    with mock.patch.object(training, "train", side_effect=AssertionError("taught again")):
        resumed = train(table, config, tmp_path / "killed", resume=True, quiet=True)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor)


# How many positives are there?


def no_guess(*_: Any) -> float | None:
    raise AssertionError("guessed")


@pytest.mark.parametrize("share", [0.7, 0.9])
def test_how_many_positives_there_are_is_guessed(share, tmp_path, capsys):
    full = feature_table(2000)
    expected = full.counts_by_image().positive.mean()
    table, config = hide(full, f"ppl:{share}"), replace(QUICK, epochs=1)
    train(table, config, tmp_path / "run")
    record = checkpoint.read_json(tmp_path / "run" / runs.CONFIG)
    assert record["expected_positives"] is None  # nobody said it
    assert record["guessed_share"] == pytest.approx(share, rel=0.3)  # ½: 40 or 80 % off
    assert record["positives_an_image"] == pytest.approx(expected, rel=0.3)
    assert record["teacher"] == "self"
    assert "by a rough guess (--expected-positives" in capsys.readouterr().err
    with mock.patch.object(training, "guess_known_share", no_guess):
        train(table, config, tmp_path / "run", resume=True, quiet=True)
    told = replace(config, expected_positives=1.5)
    with pytest.raises(RunError, match="expected_positives"):  # and it is not taken for a flag
        train(table, told, tmp_path / "run", resume=True, quiet=True)


def mixed_table(share: float, one_sided: int = 2) -> LabelTable:
    """Of some labels a share of the positives is known and nothing else; of the others, all."""
    full = feature_table(2000)
    labels = full.dense()
    labels[:, :one_sided] = hide(full, f"ppl:{share}").dense()[:, :one_sided]
    return LabelTable.from_dense(labels, features=full.features)


@pytest.mark.parametrize("one_sided", [1, 2])
def test_a_known_negative_elsewhere_does_not_stop_the_guess(one_sided, capsys):
    config = replace(QUICK, epochs=1)
    found = train(mixed_table(0.8, one_sided), config).config["guessed_share"]
    assert found == pytest.approx(0.8, rel=0.2)
    assert f"{one_sided} label" in (said := capsys.readouterr().err)
    assert f"only positives, {100 * found:.0f} % of them all, by a rough guess" in said


def test_what_is_guessed_is_guessed_once():
    """A label that everything is known of is nothing to guess by, though all of it is positive."""
    table = mixed_table(0.8)
    labels = table.dense()
    labels[:, -1] = 1
    table = LabelTable.from_dense(labels, features=table.features)
    with mock.patch.object(
        training, "guess_known_share", side_effect=training.guess_known_share
    ) as guess:
        train(table, replace(QUICK, epochs=1, options={"teacher": "network"}), quiet=True)
    # Here, and in the guess's own two trainings, whose tables are full: there it ends.
    assert len(guess.call_args_list) == 3
    assert all(is_full(call.args[0]) for call in guess.call_args_list[1:])


def test_a_run_of_an_older_version_is_not_taken_up(tmp_path):
    table, config = feature_table(40), replace(QUICK, epochs=1)
    train(table, config, tmp_path, quiet=True)
    record = checkpoint.read_json(tmp_path / runs.CONFIG)
    del record["guessed_share"]
    checkpoint.write_json(tmp_path / runs.CONFIG, record)
    with pytest.raises(RunError, match="another version"):
        train(table, config, tmp_path, resume=True, quiet=True)


def test_an_option_without_effect_is_said(capsys):
    table, config = hide(feature_table(40), "ppl:0.5"), replace(QUICK, epochs=1)
    train(table, replace(config, options={"focus": 2.0}))
    assert "focus changes nothing here" in capsys.readouterr().err
    train(table, config)
    assert "focus" not in capsys.readouterr().err
    train(hide(feature_table(40), "pal:0.5"), replace(config, options={"focus": 0.0}))
    assert "focus" not in capsys.readouterr().err  # for there it takes something away


def test_a_finished_run_says_that_it_is(tmp_path, capsys):
    table, config = feature_table(40), replace(QUICK, epochs=1)
    train(table, config, tmp_path, quiet=True)
    train(table, config, tmp_path, resume=True)
    assert "there is nothing to train" in capsys.readouterr().err


def test_what_is_assumed_is_said_where_it_matters(capsys):
    table, config = hide(feature_table(40), "ppl:0.5"), replace(QUICK, epochs=1)
    train(table, config)
    assert "50 % of them all, as is assumed" in capsys.readouterr().err
    train(table, replace(config, expected_positives=1.6))
    assert "% of 1.6, as was given" in capsys.readouterr().err
    train(table, replace(config, method="an"))
    said = capsys.readouterr().err
    assert "only positives are known, " in said
    assert "assumed" not in said


def test_nothing_is_guessed_that_is_told_or_needless():
    config, full = replace(QUICK, epochs=1), feature_table()
    with mock.patch.object(training, "guess_known_share", no_guess):
        train(hide(full, "ppl:0.5"), replace(config, expected_positives=2.0), quiet=True)
        train(hide(full, "ppl:0.5"), replace(config, method="an"), quiet=True)
        with pytest.raises(ConfigError, match="targets"):  # before it costs
            train(hide(full, "ppl:0.5"), replace(config, options={"targets": "x"}), quiet=True)


def test_where_there_is_nothing_to_guess_by(pictures):
    assert training.guess_known_share(hide(feature_table(), "pal:0.5"), QUICK, True) is None
    assert training.guess_known_share(hide(feature_table(40), "ppl:0.5"), QUICK, True) is None
    scratch = replace(PICTURES, weights="none")
    assert training.guess_known_share(hide(pictures, "ppl:0.9"), scratch, True) is None


def test_random_weights_see_nothing_to_guess_by(pictures, tmp_path):
    config = Config(backbone="test_resnet", weights="none", image_size=16, epochs=1)
    table = hide(pictures, "ppl:0.9")
    with mock.patch.object(training.counting, "guess_share", no_guess):
        train(table, replace(config, head_only=True), tmp_path, quiet=True)
        train(table, replace(config, linear_start=True), quiet=True)
    assert checkpoint.read_json(tmp_path / runs.CONFIG)["guessed_share"] is None


def test_of_images_it_is_guessed_by_what_the_weights_see(pictures, some_weights):
    config = Config(backbone="test_resnet", weights=str(some_weights), image_size=16)
    table, seen = hide(pictures, "ppl:0.9"), []

    def note(sample, learn):
        seen.append(sample)
        return 0.5

    with mock.patch.object(training.counting, "guess_share", note):
        found = training.guess_known_share(table, config.complete(table), True)
    assert found == 0.5
    assert len(seen[0]) == len(table)
    assert seen[0].features.std() > 0


def test_a_linear_start_before_an_averaged_teacher(pictures):
    config = replace(PICTURES, epochs=1, linear_start=True, options={"teacher": "average"})
    assert train(pictures, config, quiet=True).names == pictures.names


def test_a_prior_weighs_less_the_more_is_known():
    def decay(images):
        return Config().complete(feature_table(images)).head_decay

    assert decay(800) == pytest.approx(decay(400) / 2)


def test_what_was_picked_is_said(capsys):
    train(feature_table(), QUICK)
    assert "partly picks head_decay" in capsys.readouterr().err


def test_the_teacher_is_the_average_of_the_weights():
    state = opened(feature_table(), backbone="mlp:4", ema=0.9, options={"teacher": "average"})
    rows, inputs = next(state.batches())
    training.take_step(state, rows, inputs)
    told = training.ask_teacher(state, rows, inputs)
    torch.testing.assert_close(told, state.average(inputs))
    assert not torch.equal(told, state.model(inputs))
    assert not state.average.training
    assert training.ask_teacher(opened(feature_table(), ema=0.0), rows, inputs) is None


def test_statistics_that_came_with_the_weights_are_kept():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 1), torch.nn.BatchNorm2d(2))
    before = copy.deepcopy(model.state_dict())
    models.train_mode(model, keep_statistics=True)
    assert model.training
    model(torch.randn(4, 3, 5, 5))
    assert torch.equal(model[1].running_mean, before["1.running_mean"])
    models.train_mode(model)
    model(torch.randn(4, 3, 5, 5))
    assert not torch.equal(model[1].running_mean, before["1.running_mean"])


def test_random_weights_have_no_statistics_to_keep(pictures):
    state = opened(pictures, PICTURES, batch_norm="keep")
    assert not state.keeps_statistics
    state.origin = "the weights in a file"
    assert state.keeps_statistics


@pytest.fixture
def some_weights(tmp_path) -> Path:
    """Of a small network, as if it had learnt elsewhere: its batch norms have statistics."""
    model = models.build("test_resnet", 4, size=16)
    for number, (name, tensor) in enumerate(model.backbone.named_buffers()):
        if name.endswith("running_mean"):
            tensor.fill_(0.001 * number)
    torch.save(model.backbone.state_dict(), tmp_path / "weights.pth")
    return tmp_path / "weights.pth"


def test_fine_tuning_goes_on_and_predicts_as_it_did(tmp_path, pictures, some_weights):
    """All that the method picks for pretrained weights, through a crash and into the predictor."""
    config = Config(backbone="test_resnet", weights=str(some_weights), image_size=16, epochs=2)
    config = replace(config, batch_size=16, checkpoint_steps=3)
    table = hide(pictures, "pal:0.5")
    whole = train(table, config, tmp_path / "whole", quiet=True)
    record = checkpoint.read_json(tmp_path / "whole" / runs.CONFIG)
    assert (record["batch_norm"], record["ema"], record["schedule"]) == ("keep", 0.99, "constant")
    assert record["head_decay"] > 0 == record["weight_decay"]
    given, kept = torch.load(some_weights), whole.model.backbone.state_dict()
    statistics = [name for name in given if "running" in name]
    assert statistics
    assert all(torch.equal(kept[name], given[name]) for name in statistics)

    take, taken = training.take_step, []

    def die(state, rows, inputs):
        if state.step == 7:
            raise RuntimeError("killed")
        taken.append(state.training.teacher)
        return take(state, rows, inputs)

    with mock.patch.object(training, "take_step", die), pytest.raises(RuntimeError, match="killed"):
        train(table, config, tmp_path / "killed", quiet=True)
    assert set(taken) == {"average"}
    resumed = train(table, config, tmp_path / "killed", resume=True, quiet=True)
    loaded = runs.load(tmp_path / "killed", "cpu")
    for other in (resumed, loaded):
        np.testing.assert_array_equal(other.probabilities(table), whole.probabilities(table))


@pytest.mark.parametrize("largest", [64, 1024])
def test_batches_grow_with_the_data(largest):
    sizes = [usual_batch_size(images, 16, largest) for images in range(1, 200_000, 777)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == largest
    assert all(size & (size - 1) == 0 for size in sizes)
    assert all(
        images / size >= 30 or size == sizes[0]
        for images, size in zip(range(1, 200_000, 777), sizes, strict=True)
    )


def test_a_loaded_run_predicts_as_it_did(tmp_path):
    table = feature_table(1000)
    predictor = train(table, QUICK, tmp_path, quiet=True)
    loaded = runs.load(tmp_path, "cpu")
    np.testing.assert_array_equal(loaded.probabilities(table), predictor.probabilities(table))
    np.testing.assert_array_equal(loaded.thresholds, predictor.thresholds)
    assert (loaded.names, loaded.method.name) == (table.names, "partly")
    narrow = LabelTable.from_dense(table.dense(), features=table.features[:, :5])
    with pytest.raises(DataError, match=r"looks at 8 features a row.*the data has 5 features"):
        loaded.logits(narrow)


@pytest.mark.parametrize("broken", ["cut off", "of something else"])
def test_a_broken_checkpoint_stops_a_resume(tmp_path, broken):
    table = feature_table()
    train(table, QUICK, tmp_path, quiet=True)
    path = tmp_path / runs.CHECKPOINT
    if broken == "cut off":
        path.write_bytes(path.read_bytes()[:500])
    else:
        torch.save({"epoch": 2}, path)
    before = files_of(tmp_path)
    with pytest.raises(RunError, match=r"checkpoint\.pt"):
        train(table, QUICK, tmp_path, quiet=True, resume=True)
    assert files_of(tmp_path) == before


def test_missing_pictures_are_named_before_anything_is_written(tmp_path, pictures):
    paths = np.array([*pictures.paths[:-2], "/nowhere/a.png", "/nowhere/b.png"])
    table = LabelTable.from_dense(pictures.dense(), names=pictures.names, paths=paths)
    with pytest.raises(DataError, match=r"2 of 160 images are missing: /nowhere/a\.png"):
        train(table, PICTURES, tmp_path / "run", quiet=True)
    assert not Path(tmp_path / "run").exists()


@pytest.mark.skipif(not fused.has_compiler(), reason="no C++ compiler")
def test_a_compiled_model_learns_the_same(tmp_path):
    table = feature_table(200)
    ends = [
        train(table, replace(QUICK, compile=compiled, epochs=1), quiet=True)
        for compiled in (False, True)
    ]
    one, other = (end.model.state_dict() for end in ends)
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.allclose(tensor, other[name], atol=1e-4)


def test_without_a_compiler_it_says_so(monkeypatch):
    monkeypatch.setattr(fused, "has_compiler", lambda: False)
    with pytest.raises(ConfigError, match=r"compile needs a C\+\+ compiler"):
        train(feature_table(200), replace(QUICK, compile=True), quiet=True)


def test_a_folder_that_cannot_be_written_is_said_before_any_work(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with (
        mock.patch.object(training, "learn_before", side_effect=AssertionError),
        pytest.raises(RunError, match=r"cannot create folder .*run: Not a directory"),
    ):
        train(feature_table(), QUICK, tmp_path / "file" / "run", quiet=True)
