"""Whole jobs: train, evaluate, predict, check, on feature rows and on pictures."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builders import (
    COLOURS,
    files_of,
    partly_works,
    problem,
    write_manifest,
    write_npz,
    write_pictures,
)
from partly import checkpoint, runs, workflow
from partly.errors import ConfigError, DataError, LabelError, RunError
from partly.hiding import hide
from partly.readers import read
from partly.training import Config

NAMES = ("ant", "bee", "cat", "dog")
CONFIGS = {
    "features": Config(epochs=4, hold_out=0.3),
    "pictures": Config(
        epochs=12,
        hold_out=0.4,
        backbone="small:8",
        image_size=16,
        batch_size=16,
        learning_rate=0.01,
    ),
}


def write_named(path: Path, names: tuple[str, ...] = NAMES, **more: np.ndarray) -> Path:
    """An .npz whose label columns come in this order; a name that is not in NAMES is all 0."""
    rows, labels = problem(400)
    columns = [labels[:, NAMES.index(n)] if n in NAMES else labels[:, 0] * 0 for n in names]
    chosen = np.stack(columns, axis=1)
    parts = {"X_train": rows[:250], "Y_train": chosen[:250], "X_test": rows[250:]}
    np.savez(path, Y_test=chosen[250:], names=np.array(names), **parts | more)
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Data of both kinds and a run on each; `labels.npy` are the pictures'."""
    home = tmp_path_factory.mktemp("home")
    write_named(home / "features.npz")
    labels = write_pictures(home / "images", 200)
    np.save(home / "labels.npy", labels)
    write_manifest(home / "images" / "pictures.csv", labels, test=60)
    for kind, config in CONFIGS.items():
        workflow.train_run(data_of(home, kind), home / kind, config, quiet=True, say=lambda _: None)
    return home


def data_of(home: Path, kind: str) -> Path:
    return home / {"features": "features.npz", "pictures": "images/pictures.csv"}[kind]


def other_columns(home: Path, kind: str, names: tuple[str, ...], file: str) -> Path:
    """The same images with other label columns; an unknown name is all 0."""
    if kind == "features":
        return write_named(home / file, names)
    labels = np.load(home / "labels.npy")
    columns = [labels[:, COLOURS.index(n)] if n in COLOURS else labels[:, 0] * 0 for n in names]
    return write_manifest(home / "images" / file, np.stack(columns, 1), test=60, names=names)


def scores_of(file: Path) -> tuple[list[str], list[str], np.ndarray]:
    """Header, ids and probabilities of what `predict_run` wrote."""
    with file.open(newline="") as stream:
        header, *lines = csv.reader(stream)
    return header, [line[0] for line in lines], np.array([line[1:] for line in lines], dtype=float)


@pytest.mark.parametrize("kind", CONFIGS)
class TestBothKinds:
    def test_a_run_is_complete(self, home, kind):
        expected = {runs.CONFIG, runs.METRICS, runs.CHECKPOINT, runs.WEIGHTS, runs.REPORT}
        expected |= {runs.THRESHOLDS, runs.DECISIONS, runs.EVALUATION, runs.DIAGNOSIS}
        assert set(files_of(home / kind)) == expected
        config = json.loads((home / kind / runs.CONFIG).read_text())
        assert (config["data"], config["setting"]) == (data_of(home, kind).name, None)
        assert config["labels"] == list(read(data_of(home, kind)).names)

    def test_evaluation_is_what_training_said(self, home, kind):
        said = json.loads((home / kind / runs.EVALUATION).read_text())
        del said["metrics"]["mAP_by_frequency"]  # known to the training only
        again = workflow.evaluate_run(home / kind, data_of(home, kind))
        assert json.loads(json.dumps(again)) == said
        assert again["metrics"]["mAP"] > 0.75
        assert f"mAP {100 * again['metrics']['mAP']:.2f}" in workflow.summary(again)

    def test_parts_are_evaluated_by_name(self, home, kind):
        sizes = {"features": (250, 150), "pictures": (140, 60)}[kind]
        for part, size in zip(("train", "test"), sizes, strict=True):
            answer = workflow.evaluate_run(home / kind, data_of(home, kind), part=part)
            assert answer["images"] == size
        with pytest.raises(DataError, match="has no part 'validation'"):
            workflow.evaluate_run(home / kind, data_of(home, kind), part="validation")

    def test_the_order_of_columns_does_not_matter(self, home, kind):
        names = read(data_of(home, kind)).names
        mixed = (names[-1], "zebra", *names[:-1])
        ending = data_of(home, kind).suffix
        turned = other_columns(home, kind, mixed, f"turned{ending}")
        first = workflow.evaluate_run(home / kind, data_of(home, kind))
        second = workflow.evaluate_run(home / kind, turned)
        assert second == first  # the hash, too: it is of the columns that count
        assert workflow.predict_run(home / kind, turned, home / "turned.csv") > first["images"]
        assert scores_of(home / "turned.csv")[0] == ["id", *names]

    def test_a_missing_column_is_named(self, home, kind):
        names = read(data_of(home, kind)).names
        ending = data_of(home, kind).suffix
        short = other_columns(home, kind, (*names[:1], *names[2:]), f"short{ending}")
        with pytest.raises(LabelError, match=f"has no column for 1 of .* labels: {names[1]}"):
            workflow.evaluate_run(home / kind, short)

    def test_predictions_are_the_probabilities_of_every_image(self, home, kind):
        count = workflow.predict_run(home / kind, data_of(home, kind), home / "new" / "scores.csv")
        header, ids, scores = scores_of(home / "new" / "scores.csv")
        table = read(data_of(home, kind))
        assert header == ["id", *table.names]
        assert ids == table.ids.tolist()
        assert len(ids) == count
        expected = runs.load(home / kind).probabilities(table)
        np.testing.assert_allclose(scores, expected, rtol=1e-5)

    def test_data_of_the_other_kind_is_refused(self, home, kind):
        other = {"features": "pictures", "pictures": "features"}[kind]
        with pytest.raises(DataError, match=r"the model looks at .*but the data has"):
            workflow.predict_run(home / kind, data_of(home, other), home / "never.csv")
        assert not (home / "never.csv").exists()


def test_a_folder_of_images_and_one_image(home, tmp_path):
    picture = home / "images" / "0199.png"
    (tmp_path / "deep" / "er").mkdir(parents=True)
    Image.open(picture).save(tmp_path / "deep" / "er" / "same.BMP")
    Image.open(picture).save(tmp_path / "a.png")
    (tmp_path / "notes.txt").write_text("not a picture")
    assert workflow.predict_run(home / "pictures", tmp_path, tmp_path / "all.csv") == 2
    assert workflow.predict_run(home / "pictures", picture, tmp_path / "one.csv") == 1
    header, ids, scores = scores_of(tmp_path / "all.csv")
    assert header == ["id", *COLOURS]
    assert ids == ["a.png", "deep/er/same.BMP"]
    _, (name,), (alone,) = scores_of(tmp_path / "one.csv")
    assert name == "0199.png"
    np.testing.assert_allclose(scores, [alone, alone], rtol=1e-4)
    np.testing.assert_array_equal(alone > 0.5, np.load(home / "labels.npy")[199])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "no images in"),
        ({"a.png": b"broken"}, r"this is no image, or of an unknown kind: .*a\.png"),
    ],
)
def test_a_folder_that_cannot_be_predicted(home, tmp_path, content, message):
    (tmp_path / "images").mkdir()
    for name, data in content.items():
        (tmp_path / "images" / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        workflow.predict_run(home / "pictures", tmp_path / "images", tmp_path / "scores.csv")
    assert not (tmp_path / "scores.csv").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (runs.CONFIG, None, "is not a run: it has no config.json"),
        (runs.CONFIG, b"{", "cannot read .*config.json"),
        (runs.WEIGHTS, None, "is not finished: continue it with --resume"),
        (runs.WEIGHTS, b"broken", "cannot read .*model.safetensors"),
    ],
)
def test_a_run_that_cannot_be_loaded(home, tmp_path, file, content, message):
    run = tmp_path / "run"
    run.mkdir()
    for name, data in files_of(home / "features").items():
        (run / name).write_bytes(data)
    (run / file).unlink() if content is None else (run / file).write_bytes(content)
    with pytest.raises(RunError, match=message):
        workflow.evaluate_run(run, home / "features.npz")


def test_hidden_labels_are_a_study(home, tmp_path):
    said: list[str] = []
    workflow.train_run(home / "features.npz", tmp_path / "run", CONFIGS["features"],
                       setting="PAL_0.4", quiet=True, say=said.append)  # fmt: skip
    known = hide(read(home / "features.npz").part("train"), "pal:0.4")
    config = json.loads((tmp_path / "run" / runs.CONFIG).read_text())
    assert (config["setting"], config["label_hash"]) == ("pal:0.4", known.content_hash)
    assert len(runs.read_lines(tmp_path / "run" / runs.AUDIT)) == 4
    positives = int(known.counts_by_label().positive.sum())
    assert f"{positives} known positives" in said[0]
    assert said[-1] == f"report: {tmp_path / 'run' / runs.REPORT}"


def test_a_validation_part_chooses_the_epoch(tmp_path):
    rows, labels = problem(100, seed=3)
    data = write_named(tmp_path / "data.npz", X_validation=rows, Y_validation=labels)
    workflow.train_run(data, tmp_path / "run", Config(epochs=2), quiet=True, say=lambda _: None)
    lines = runs.read_lines(tmp_path / "run" / runs.METRICS)
    assert all("validation_score" in line for line in lines)
    config = json.loads((tmp_path / "run" / runs.CONFIG).read_text())
    assert config["images"] == 250  # none is set aside


def test_without_a_test_part_nothing_is_evaluated(tmp_path):
    data = write_npz(tmp_path / "data.npz", 100, 0)
    assert workflow.train_run(data, tmp_path / "run", Config(epochs=1), quiet=True) is None
    assert not (tmp_path / "run" / runs.EVALUATION).exists()
    assert (tmp_path / "run" / runs.REPORT).exists()


def test_a_data_set_without_training_images(home, tmp_path):
    labels = np.load(home / "labels.npy")
    data = write_manifest(home / "images" / "test.csv", labels, test=len(labels))
    with pytest.raises(DataError, match="none is marked 'train'"):
        workflow.train_run(data, tmp_path / "run", CONFIGS["pictures"])
    assert not (tmp_path / "run").exists()


def test_check_counts_every_label(home, tmp_path):
    said: list[str] = []
    findings = workflow.check_run(home / "features.npz", tmp_path / "page", say=said.append)
    table = read(home / "features.npz")
    assert table.content_hash[:12] in said[0]
    counts = table.counts_by_label()
    assert {
        label["name"]: [label["positive"], label["negative"], label["unknown"]]
        for label in findings["label_counts"]
    } == {
        name: [counts.positive[j], counts.negative[j], counts.unknown[j]]
        for j, name in enumerate(NAMES)
    }
    assert findings["problems"] == []
    assert said[-1] == f"page: {tmp_path / 'page' / 'check.html'}"
    assert "features.npz" in (tmp_path / "page" / "check.html").read_text()


@pytest.mark.parametrize(
    ("pairs", "options"),
    [
        ([], {}),
        (["gamma=0.1", " d = printed "], {"gamma": 0.1, "d": "printed"}),
        (["q=0.2:1", "name=a=b", "x=-1e-3"], {"q": "0.2:1", "name": "a=b", "x": -0.001}),
    ],
)
def test_options_are_numbers_where_they_can_be(pairs: list[str], options: dict[str, Any]):
    assert workflow.parse_options(pairs) == options


def test_an_option_needs_a_value():
    with pytest.raises(ConfigError, match="name=value, not 'gamma'"):
        workflow.parse_options(["d=off", "gamma"])


def test_a_summary_says_why_it_has_no_map():
    coverage = {"labels": 500, "labels_scored": 0, "left_out": {}}
    measured = {"mAP": None, "P@1": 0.7788, "coverage": coverage}
    evaluation = {"images": 800, "part": "test", "trained_on": False, "metrics": measured}
    said = "800 images: P@1 77.88 (no mAP: of no label both positives and negatives are known)"
    assert workflow.summary(evaluation) == said


def test_images_it_was_trained_on_are_said_to_be(tmp_path):
    rows, labels = problem(200)
    np.savez(tmp_path / "all.npz", X_train=rows, Y_train=labels)
    workflow.train_run(tmp_path / "all.npz", tmp_path / "run", Config(epochs=1), say=lambda _: None)
    evaluation = workflow.evaluate_run(tmp_path / "run", tmp_path / "all.npz", part="train")
    assert "these are the images it was trained on" in workflow.summary(evaluation)


@pytest.mark.parametrize("name", ["X", "X_test"])
def test_rows_without_labels_can_be_predicted(home, tmp_path, name):
    rows, _ = problem(400)
    np.savez(tmp_path / "new.npz", **{name: rows[:7]})
    assert workflow.predict_run(home / "features", tmp_path / "new.npz", tmp_path / "s.csv") == 7


def test_images_without_labels_can_be_predicted(home, tmp_path):
    (tmp_path / "new.csv").write_text(f"path\n{home / 'images' / '0003.png'}\n")
    assert workflow.predict_run(home / "pictures", tmp_path / "new.csv", tmp_path / "s.csv") == 1
    assert len((tmp_path / "s.csv").read_text().splitlines()) == 2


def test_a_reference_is_given_what_the_others_do_not_see(tmp_path):
    rows, labels = problem(200)
    np.savez(tmp_path / "all.npz", X_train=rows, Y_train=labels)
    said: list[str] = []
    config = Config(method="bce", epochs=1)
    workflow.train_run(
        tmp_path / "all.npz", tmp_path / "run", config, setting="spl", say=said.append
    )
    assert said[0] == "bce is a reference: it is given the labels that spl would hide"
    assert checkpoint.read_json(tmp_path / "run" / runs.CONFIG)["label_counts"]["unknown"][0] == 0


@pytest.mark.parametrize(
    ("labels", "problem_"),
    [("1,0", "there is no such file"), ("0,0", "no label is known to be positive")],
)
def test_check_says_what_is_wrong(tmp_path, labels, problem_):
    (tmp_path / "data.csv").write_text(f"path,cat,dog\nnowhere.png,{labels}\n")
    findings = workflow.check_run(tmp_path / "data.csv", say=lambda line: None)
    assert any(problem_ in problem for problem in findings["problems"])


def test_numbers_of_options_keep_their_kind():
    assert workflow.parse_options(["likely=3", "gamma=0.5", "d=text"]) == {
        "likely": 3,
        "gamma": 0.5,
        "d": "text",
    }


def test_a_pack_is_a_data_set_like_any_other(home, tmp_path):
    """Packed, checked, trained on and predicted from, by the command line alone."""
    data = data_of(home, "pictures")
    said = partly_works("pack", data, "--out", tmp_path / "packed", "--size", 0).out
    assert "200 images in 1 tar file" in said
    assert "0 images left out" in said
    found = json.loads(partly_works("check", tmp_path / "packed", "--json").out)
    assert (found["images"], found["problems"]) == (200, [])
    assert found["content_hash"] == read(data).content_hash
    evaluation = workflow.evaluate_run(home / "pictures", tmp_path / "packed")
    assert evaluation == workflow.evaluate_run(home / "pictures", data)
    scores = tmp_path / "scores.csv"
    assert workflow.predict_run(home / "pictures", tmp_path / "packed", scores) == 200
    tar = tmp_path / "packed" / "images-00000.tar"
    assert workflow.predict_run(home / "pictures", tar, tmp_path / "members.csv") == 200


def test_ticks_that_leave_no_blank_are_told_of_a_convention_with_blanks(tmp_path):
    path = tmp_path / "ticks.csv"
    write_pictures(tmp_path, 30)
    labels = np.random.default_rng(0).integers(0, 2, (30, 3))
    write_manifest(path, labels)
    quick = ("--backbone", "small:8", "--image-size", 16, "--epochs", 1)
    hint = "if 0 means 'not ticked'"
    assert hint in partly_works("check", path).out
    assert hint in partly_works("train", path, "--out", tmp_path / "a", *quick).out
    signed = ("--convention", "signed")
    assert hint not in partly_works("check", path, *signed).out
    assert hint not in partly_works("train", path, "--out", tmp_path / "b", *quick, *signed).out
    study = ("--hide", "pal:0.5")
    assert hint not in partly_works("train", path, "--out", tmp_path / "c", *quick, *study).out


def test_where_no_negative_is_known_the_first_labels_of_images_count(tmp_path):
    """AP would be 100 whatever the model says."""
    rows, labels = problem(400)
    known = np.where(labels == 1, 1, -1)
    parts = {"X_train": rows[:250], "X_test": rows[250:], "Y_train": known[:250]}
    measured = {}
    for kind, test in (("positives", known), ("both", labels)):
        np.savez(tmp_path / f"{kind}.npz", **parts, Y_test=test[250:])
        out = partly_works("train", tmp_path / f"{kind}.npz", "--out", tmp_path / kind)
        measured[kind] = checkpoint.read_json(tmp_path / kind / runs.EVALUATION)["metrics"]
        assert ("P@1" in out.out) == (kind == "positives")
        assert ("mAP" in out.out.split("images:")[1].split("(")[0]) == (kind == "both")
    probabilities = runs.load(tmp_path / "positives").probabilities(
        read(tmp_path / "positives.npz").part("test")
    )
    best = labels[250:][np.arange(150), probabilities.argmax(axis=1)]
    assert measured["positives"]["P@1"] == pytest.approx(best.mean())
    assert "P@1" not in measured["both"]
    config = checkpoint.read_json(tmp_path / "positives" / runs.CONFIG)
    del config["label_counts"]  # without them nobody knows how likely a label is to be missed
    checkpoint.write_json(tmp_path / "positives" / runs.CONFIG, config)
    again = partly_works("evaluate", tmp_path / "positives", tmp_path / "positives.npz")
    assert "P@1" in again.out


@pytest.mark.parametrize("head", ["full", "sampled"])
def test_a_test_part_of_which_nothing_is_known_says_nothing(tmp_path, head):
    rows, labels = problem(400)
    parts = {"X_train": rows[:250], "Y_train": labels[:250], "X_test": rows[250:]}
    np.savez(tmp_path / "data.npz", **parts, Y_test=np.full((150, 4), -1))
    more = ["--head", head, "--set", "q=0.5", "--epochs", 1]
    partly_works("train", tmp_path / "data.npz", "--out", tmp_path / "run", *more)
    assert "NaN" not in (tmp_path / "run" / runs.EVALUATION).read_text()
    measured = checkpoint.read_json(tmp_path / "run" / runs.EVALUATION)["metrics"]
    assert measured["mAP"] is None
    assert "P@1" not in measured
