"""Category-wise fine-tuning: the rows of a layer by themselves, and at the end of a training."""

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from builders import feature_table, partly_here, partly_works, picture_table, write_npz
from partly import category, checkpoint, judging, metrics, runs, training
from partly.config import Config
from partly.errors import ConfigError
from partly.hiding import hide
from partly.labels import LabelTable
from partly.metrics import average_precision
from partly.training import train

CFT = Config(method="an", epochs=3, batch_size=64, finish="cft", hold_out=0.3)


def some_head(labels: int = 4, seed: int = 0) -> dict[str, Any]:
    """Noisy data to tune on and to judge by, and a head that is far from its best."""
    generator = np.random.default_rng(seed)
    direction = generator.normal(size=(6, labels))

    def part(images: int) -> tuple[Tensor, np.ndarray]:
        features = generator.normal(size=(images, 6))
        scores = features @ direction + generator.normal(size=(images, labels))
        return torch.from_numpy(features).float(), (scores > 1).astype(np.int8)

    features, full = part(300)
    validation_features, validation_full = part(200)
    start = generator.normal(size=(labels, 6))
    return {
        "features": features,
        "labels": hide(full, "pal:0.5", seed=1),
        "weight": torch.from_numpy(start).float(),
        "bias": torch.zeros(labels),
        "validation_features": validation_features,
        "validation_labels": hide(validation_full, "pal:0.5", seed=2),
    }


def precision_of(weight: Tensor, bias: Tensor, given: dict[str, Any]) -> np.ndarray:
    scores = given["validation_features"] @ weight.T + bias
    return average_precision(scores.numpy(), given["validation_labels"])


# --- the rows ------------------------------------------------------------------------------------


def test_a_row_changes_only_where_it_ranks_better() -> None:
    given = some_head()
    # One label is as good as it gets; it must stay.
    perfect = torch.linspace(-1, 1, 200)
    given["validation_features"][:, 0] = perfect
    given["validation_labels"][:, 3] = perfect > 0
    given["weight"][3], given["weight"][3, 0] = 0.0, 1.0
    before = precision_of(given["weight"], given["bias"], given)
    kept = given["weight"].clone()
    tuned = category.fine_tune(**given)
    after = precision_of(tuned.weight, tuned.bias, given)
    assert tuned.changed.tolist() == [True, True, True, False]
    assert (after[:3] > before[:3]).all()
    assert tuned.weight[3].equal(kept[3])
    assert given["weight"].equal(kept)  # what enters is not written to


def test_the_best_row_on_the_way_stays() -> None:
    given = some_head()
    whole = category.fine_tune(**given, rates=[0.1], steps=30, every=10)
    labels = torch.from_numpy(given["labels"])
    way = category.descend(
        given["features"], labels, given["weight"], given["bias"], rate=0.1, steps=30, every=10
    )
    seen = [precision_of(weight, bias, given) for weight, bias in way]
    assert len(seen) == 3
    best = np.max([precision_of(given["weight"], given["bias"], given), *seen], axis=0)
    assert precision_of(whole.weight, whole.bias, given) == pytest.approx(best)


def test_each_label_is_tuned_as_if_it_were_alone() -> None:
    given = some_head()
    together = category.fine_tune(**given)
    alone = given | {
        "labels": given["labels"][:, 1:2],
        "weight": given["weight"][1:2],
        "bias": given["bias"][1:2],
        "validation_labels": given["validation_labels"][:, 1:2],
    }
    found = category.fine_tune(**alone)
    torch.testing.assert_close(found.weight[0], together.weight[1], atol=1e-5, rtol=1e-4)


def test_images_that_say_nothing_pull_nowhere() -> None:
    given = some_head()
    labels = torch.from_numpy(given["labels"])
    labels[:50] = -1
    first = category.gradient(given["features"], labels, given["weight"], given["bias"])
    given["features"][:50] = 100.0
    again = category.gradient(given["features"], labels, given["weight"], given["bias"])
    torch.testing.assert_close(first, again)


@pytest.mark.parametrize("block", [7, 1000])
def test_the_gradient_is_that_of_the_mean_over_known_entries(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(category, "BLOCK", block)
    given = some_head()
    labels = torch.from_numpy(given["labels"])
    weight, bias = (given[name].clone().requires_grad_() for name in ("weight", "bias"))
    logits = given["features"] @ weight.T + bias
    known = labels >= 0
    terms = nn.functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none")
    ((terms * known).sum(dim=0) / known.sum(dim=0)).sum().backward()
    found = category.gradient(given["features"], labels, given["weight"], given["bias"])
    torch.testing.assert_close(found, (weight.grad, bias.grad))


def test_the_scale_of_the_features_does_not_matter() -> None:
    given = some_head()
    usual = category.fine_tune(**given)
    scale, shift = torch.tensor([1e-3, 1e3, 1.0, 1e-2, 10.0, 1.0]), torch.arange(6.0)
    for name in ("features", "validation_features"):
        given[name] = given[name] * scale + shift * scale
    given["weight"] = given["weight"] / scale
    given["bias"] = given["bias"] - given["weight"] @ (shift * scale)
    found = category.fine_tune(**given)
    assert found.changed.tolist() == usual.changed.tolist()
    torch.testing.assert_close(found.weight * scale, usual.weight, atol=1e-3, rtol=1e-3)


def test_a_constant_feature_does_no_harm() -> None:
    given = some_head()
    for name in ("features", "validation_features"):
        given[name][:, 5] = 0.0
    tuned = category.fine_tune(**given)
    assert tuned.changed.any()
    assert torch.isfinite(tuned.weight).all()


@pytest.mark.parametrize("part", ["labels", "validation_labels"])
@pytest.mark.parametrize("missing", [0, 1])
def test_a_label_that_cannot_be_judged_stays(part: str, missing: int) -> None:
    given = some_head()
    column = given[part][:, 2]
    column[column == missing] = -1
    tuned = category.fine_tune(**given)
    assert tuned.changed.tolist() == [True, True, False, True]
    assert tuned.weight[2].equal(given["weight"][2])
    given[part][given[part] == missing] = -1
    assert not category.fine_tune(**given).changed.any()


# --- the end of a training -----------------------------------------------------------------------


def part_after(table: LabelTable, config: Config) -> tuple[runs.Predictor, np.ndarray]:
    """A trained model, and the AP of each label on the images that were held out."""
    _, aside, _ = judging.hold_out(table, None, config)
    assert aside is not None
    predictor = train(table, config, quiet=True)
    return predictor, average_precision(predictor.logits(aside), aside.dense())


@pytest.mark.parametrize("choices", [{}, {"backbone": "mlp:16"}, {"ema": 0.9}])
def test_labels_rank_better_after_it(choices: dict[str, Any]) -> None:
    table = hide(feature_table(400, seed=3), "pal:0.4")
    config = replace(CFT, **choices)
    plain, before = part_after(table, replace(config, finish="none"))
    tuned, after = part_after(table, config)
    changed = (tuned.model.head.weight != plain.model.head.weight).any(dim=1).numpy()
    assert changed.any()
    assert (after[changed] > before[changed]).all()
    assert (after[~changed] == before[~changed]).all()


@pytest.mark.parametrize("choices", [{}, {"head_only": True}, {"linear_start": True}])
def test_it_works_on_pictures(tmp_path, choices: dict[str, Any]) -> None:
    table = hide(picture_table(tmp_path, 200), "pal:0.5")
    config = replace(CFT, backbone="small:4", image_size=16, batch_size=32, epochs=1, **choices)
    plain, before = part_after(table, replace(config, finish="none"))
    tuned, after = part_after(table, config)
    assert not tuned.model.head.weight.equal(plain.model.head.weight)
    own, other = (p.model.backbone.state_dict() for p in (tuned, plain))
    assert all(own[name].equal(other[name]) for name in own)
    assert (after >= before).all()
    assert after.mean() > before.mean()


def test_a_teacher_is_not_tuned() -> None:
    table = hide(feature_table(200), "pal:0.5")
    config = replace(CFT, method="partly", epochs=1).complete(table)
    state = training.start(table, config)
    with mock.patch.object(category, "fine_tune") as tune:
        training.train_teacher(state)
    assert not tune.called


def test_thresholds_are_tuned_after_it() -> None:
    table, validation = hide(feature_table(200), "pal:0.4"), feature_table(100, seed=1)
    config = replace(CFT, hold_out=0.0)
    predictor = train(table, config, validation=validation, quiet=True)
    probabilities = predictor.probabilities(validation)
    expected = metrics.tune_thresholds(probabilities, validation.dense())
    assert predictor.thresholds == pytest.approx(expected)


@pytest.mark.parametrize("falls", [True, False])
def test_a_run_that_goes_on_is_not_tuned_twice(tmp_path, falls: bool) -> None:
    """It fell after its rows were tuned and written, or it was finished already."""
    noisy = some_head()  # a second tuning would find something better still
    table = LabelTable.from_dense(noisy["labels"], features=noisy["features"].numpy())
    whole = train(table, CFT, tmp_path / "whole", quiet=True).model.state_dict()
    run = tmp_path / "run"
    if not falls:
        train(table, CFT, run, quiet=True)
    else:
        write = checkpoint.write_json

        def fall(path: Any, content: dict[str, Any]) -> None:
            if content.get("finished"):
                raise InterruptedError
            write(path, content)

        with (
            mock.patch.object(checkpoint, "write_json", fall),
            pytest.raises(InterruptedError),
        ):
            train(table, CFT, run, quiet=True)
        assert (run / runs.UNTUNED).is_file()
    again = train(table, CFT, run, resume=True, quiet=True).model.state_dict()
    assert all(whole[name].equal(again[name]) for name in whole)
    stored = runs.load(run).model.state_dict()
    assert all(whole[name].equal(stored[name]) for name in whole)


def test_where_only_positives_are_known_the_model_stays(capsys) -> None:
    table = hide(feature_table(300), "spl")
    plain = train(table, replace(CFT, finish="none"), quiet=True).model.state_dict()
    tuned = train(table, CFT).model.state_dict()
    assert all(plain[name].equal(tuned[name]) for name in plain)
    assert "cft left the model as it is: no label has known" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("images", "choices", "complaint"),
    [
        (300, {"hold_out": 0.0}, "there are none: mark a validation part, or hold out 50"),
        (100, {"hold_out": 0.1}, r"hold_out is 0\.1 of 100"),
        (300, {"method": "spa"}, "spa reads probabilities from its logits in another way"),
        (300, {"finish": "cftt"}, "finish is one of none, cft, not 'cftt'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_computed(
    tmp_path, images: int, choices: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        train(feature_table(images), replace(CFT, **choices), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_the_command_line_takes_it(tmp_path) -> None:
    data, run = write_npz(tmp_path / "data.npz", train=600), tmp_path / "run"
    command = ["train", data, "--out", run, "--hide", "pal:0.4", "--epochs", 2, "--finish"]
    answer = partly_here(*command, "nonsense")
    assert answer.code == 2
    assert "finish is one of none, cft" in answer.err
    answer = partly_works(*command, "cft")
    assert "cft improved the ranking of" in answer.err
    assert checkpoint.read_json(run / runs.CONFIG)["finish"] == "cft"
