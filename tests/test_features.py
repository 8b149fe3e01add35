"""Features of a frozen backbone: computed once, found again, trained on."""

import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from builders import picture_table, write_manifest, write_npz, write_pictures
from partly import experiments, features, judging, models, runs, training, workflow
from partly.config import Config
from partly.data import Look
from partly.errors import ConfigError, DataError
from partly.texts import Texts
from partly.training import train

CPU = torch.device("cpu")
LOOK = Look(size=16)
HEAD = Config(
    backbone="small:8", image_size=16, head_only=True, epochs=20, hold_out=0.0, batch_size=16
)


@pytest.fixture
def table(tmp_path):
    return picture_table(tmp_path / "pictures", 40)


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return models.build("small:8", 1).backbone


def seen(table, backbone, folder: Path, look: Look = LOOK) -> tuple[np.ndarray, list[str]]:
    """The features, and what was said."""
    said: list[str] = []
    found = features.with_features(table, backbone, look, CPU, folder=folder, say=said.append)
    assert found.paths is None
    return found.features, said


def test_features_are_what_the_backbone_says(table, backbone, tmp_path):
    found, said = seen(table, backbone, tmp_path / "cache")
    assert said == ["computing features of 40 of 40 images"]
    model = runs.open_inputs(table, CPU, LOOK)
    ((_, inputs),) = model.batches([np.arange(40)])
    with torch.inference_mode():
        expected = backbone.eval()(inputs)
    np.testing.assert_allclose(found, expected.numpy(), rtol=2e-3, atol=1e-3)


def test_the_second_time_nothing_is_computed(table, backbone, tmp_path):
    first, _ = seen(table, backbone, tmp_path / "cache")
    again, said = seen(table.take(np.arange(39, -1, -1)), backbone, tmp_path / "cache")
    assert said == []
    np.testing.assert_array_equal(again, first[::-1])


def test_an_image_is_known_by_its_content(table, backbone, tmp_path):
    """Renamed files are found again, a changed one is computed anew, a copy is computed once."""
    first, _ = seen(table, backbone, tmp_path / "cache")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for row, path in enumerate(table.paths):
        os.rename(path, folder / f"{row}.renamed.png")
    (folder / "3.renamed.png").write_bytes((folder / "5.renamed.png").read_bytes())
    write_pictures(tmp_path / "new", 1, seed=9)
    os.rename(tmp_path / "new" / "0000.png", folder / "7.renamed.png")
    moved = replace(table, paths=Texts.of([str(folder / f"{n}.renamed.png") for n in range(40)]))
    again, said = seen(moved, backbone, tmp_path / "cache")
    assert said == ["computing features of 1 of 40 images"]
    np.testing.assert_array_equal(again[3], first[5])
    same = [row for row in range(40) if row not in (3, 7)]
    np.testing.assert_array_equal(again[same], first[same])
    assert (again[7] != first[7]).any()


def test_other_weights_or_another_size_are_other_features(table, backbone, tmp_path):
    seen(table, backbone, tmp_path / "cache")
    torch.manual_seed(1)
    other = models.build("small:8", 1).backbone
    for eye, look in ((other, LOOK), (backbone, Look(size=12)), (backbone, Look(16, "crop"))):
        assert len(seen(table, eye, tmp_path / "cache", look)[1]) == 1
    assert seen(table, backbone, tmp_path / "cache", Look(16, augment="strong"))[1] == []


def test_what_was_computed_before_an_interruption_is_kept(table, backbone, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "BLOCK", 10)
    broken = Path(table.paths[35])
    content = broken.read_bytes()
    digests = features.content_digests(table.paths)
    monkeypatch.setattr(features, "content_digests", lambda paths: digests)
    broken.write_bytes(content[:100])
    with pytest.raises(DataError, match=f"cannot read image {broken}"):
        seen(table, backbone, tmp_path / "cache")
    broken.write_bytes(content)
    assert seen(table, backbone, tmp_path / "cache")[1] == ["computing features of 10 of 40 images"]


def test_a_damaged_cache_is_computed_again(table, backbone, tmp_path):
    first, _ = seen(table, backbone, tmp_path / "cache")
    (block,) = (tmp_path / "cache").rglob("*.npz")
    block.write_bytes(block.read_bytes()[:500])
    again, said = seen(table, backbone, tmp_path / "cache")
    assert len(said) == 1
    np.testing.assert_array_equal(again, first)


def test_files_that_cannot_be_read_are_all_named(table, backbone, tmp_path):
    missing = table.paths.tolist()[:2]
    for path in missing:
        os.unlink(path)
    with pytest.raises(DataError) as caught:
        seen(table, backbone, tmp_path / "cache")
    assert all(path in str(caught.value) for path in missing)


# --- training on them ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Pictures and a run of a head alone."""
    home = tmp_path_factory.mktemp("home")
    write_manifest(home / "data.csv", write_pictures(home, 120), test=40)
    workflow.train_run(home / "data.csv", home / "run", HEAD, quiet=True, say=lambda _: None)
    return home


def test_a_head_alone_learns_and_its_run_looks_at_images(home):
    evaluation = workflow.evaluate_run(home / "run", home / "data.csv")
    assert evaluation["metrics"]["mAP"] > 0.9
    stored = runs.stored_config(home / "run")
    assert (stored["backbone"], stored["head_only"], stored["features"]) == ("small:8", True, 64)
    predictor = runs.load(home / "run")
    copy = pickle.loads(pickle.dumps(predictor))
    test = workflow.Source(home / "data.csv").read().part("test")
    np.testing.assert_array_equal(copy.logits(test), predictor.logits(test))
    assert workflow.predict_run(home / "run", home / "0003.png", home / "one.csv") == 1


def test_a_comparison_of_heads_is_the_same_as_training_them(home, tmp_path):
    results = experiments.compare(
        home / "data.csv", tmp_path / "out", methods=["ign"], settings=["fal"], seeds=1,
        config=HEAD, jobs=1, say=lambda _: None,
    )  # fmt: skip
    workflow.train_run(
        home / "data.csv", tmp_path / "run", replace(HEAD, method="ign"), quiet=True,
        say=lambda _: None,
    )  # fmt: skip
    alone = workflow.evaluate_run(tmp_path / "run", home / "data.csv")
    assert results["runs"][0]["mAP"] == pytest.approx(alone["metrics"]["mAP"], abs=1e-6)


def test_a_linear_start_gives_the_head_what_the_linear_layer_learnt(tmp_path):
    """Before the first step the network says what the linear model on its features says."""
    table = picture_table(tmp_path / "pictures", 60)
    labels = table.dense()

    def right(linear_start: bool) -> float:
        plan = replace(HEAD, head_only=False, linear_start=linear_start, learning_rate=1e-3)
        state = training.start(table, plan.complete(table))
        training.learn_before(state, quiet=True)
        logits = judging.predictor(state, runs.describe(table, state.config)).logits(table)
        return float(((logits > 0) == labels).mean())

    assert right(True) > 0.8 > 0.7 > right(False)


def test_a_linear_start_is_trained_on_from(tmp_path):
    table = picture_table(tmp_path / "pictures", 60)
    plan = replace(HEAD, head_only=False, linear_start=True, epochs=2, warmup=0.0)
    ends = [train(table, replace(plan, linear_start=start), quiet=True) for start in (True, False)]
    assert (ends[0].logits(table) != ends[1].logits(table)).any()


def test_a_linear_start_folds_the_scale_of_the_features():
    features_, labels = torch.randn(20, 5) * 7 + 3, 4
    linear = models.build("linear", labels, 5)
    models.prepare(linear, features_.numpy(), None)
    model = models.Classifier(torch.nn.Identity(), 5, labels)
    models.take_head(model, linear)
    torch.testing.assert_close(model(features_), linear(features_), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"linear_start": True}, "nothing for linear_start to start"),
        ({"mix": "logicmix"}, "cannot mix"),
    ],
)
def test_choices_that_contradict_a_head_alone(choices, sentence):
    (found,) = replace(HEAD, **choices).problems()
    assert sentence in found


def test_a_run_that_goes_on_keeps_the_eye_it_began_with(home, tmp_path, monkeypatch):
    """Weights that are no longer to be had must not be replaced by others."""
    run = tmp_path / "run"
    monkeypatch.setattr(models, "load_pretrained", lambda *_: "weights of yesterday")
    plan = replace(HEAD, epochs=3)
    workflow.train_run(home / "data.csv", run, plan, quiet=True, say=lambda _: None)
    kept = (run / runs.EYE).read_bytes()
    (run / runs.EVALUATION).unlink()

    def gone(model, *_):
        torch.nn.init.normal_(next(model.parameters()))
        return "other weights"

    monkeypatch.setattr(models, "load_pretrained", gone)
    workflow.train_run(home / "data.csv", run, plan, resume=True, quiet=True, say=lambda _: None)
    assert (run / runs.EYE).read_bytes() == kept
    assert runs.stored_config(run)["origin"] == "weights of yesterday"
    assert workflow.evaluate_run(run, home / "data.csv")["images"] == 40


def test_two_networks_with_equal_weights_have_features_of_their_own(table, tmp_path):
    """The layers count, not their tensors alone."""
    torch.manual_seed(0)
    one = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), models.TopMean())
    two = torch.nn.Sequential(one[0], torch.nn.Identity(), models.TopMean())
    assert features.key_of(one, LOOK) != features.key_of(two, LOOK)


def test_a_folder_that_cannot_be_written_to_keeps_nothing_and_goes_on(table, backbone, tmp_path):
    (tmp_path / "file").write_text("in the way")
    found, said = seen(table, backbone, tmp_path / "file" / "cache")
    assert len(said) == 1
    assert found.shape == (40, 64)


@pytest.mark.parametrize("choice", [{"head_only": True}, {"linear_start": True}])
def test_features_have_no_backbone_in_front(tmp_path, choice):
    data = write_npz(tmp_path / "data.npz")
    with pytest.raises(ConfigError, match="there is no backbone in front of the head"):
        workflow.train_run(data, tmp_path / "run", Config(**choice), say=lambda _: None)
