"""Predictions: in memory and in files, of whatever holds images, stopped and gone on with."""

import csv
import json
import os
import signal
import subprocess
import tarfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image

import partly
from builders import (
    COLOURS,
    command,
    environment,
    partly_here,
    partly_works,
    problem,
    write_manifest,
    write_pictures,
)
from partly import predicting, runs
from partly.errors import ConfigError, DataError
from partly.source import Source

NAMES = ("ant", "bee", "cat", "dog")
IMAGES = 700  # of features to predict, in pieces of 256


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A run on features with features.npz to predict, and one on pictures/."""
    home = tmp_path_factory.mktemp("home")
    rows, labels = problem(600)
    np.savez(home / "train.npz", X_train=rows, Y_train=labels, names=np.array(NAMES))
    np.savez(home / "features.npz", X=problem(IMAGES, seed=3)[0])
    partly_works("train", home / "train.npz", "--out", home / "run", "--epochs", 2)
    write_manifest(home / "pictures" / "data.csv", write_pictures(home / "pictures", 120))
    more = ["--backbone", "small:4", "--image-size", 16, "--epochs", 2, "--hold-out", 0.5]
    partly_works("train", home / "pictures" / "data.csv", "--out", home / "seen", *more)
    (home / "pictures" / "data.csv").unlink()
    return home


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(predicting, "ENTRIES", 4 * 256)


def table_of(file: Path) -> tuple[list[str], list[list[str]]]:
    with file.open(newline="") as stream:
        header, *lines = csv.reader(stream)
    return header, lines


def test_every_form_says_the_same(home, tmp_path):
    files = [tmp_path / f"scores{ending}" for ending in predicting.WRITERS]
    for file in files:
        partly_works("predict", home / "run", home / "features.npz", "--labels", "--out", file)
    expected = partly.load(home / "run").predict(home / "features.npz")
    header, lines = table_of(files[0])
    assert header == ["id", *NAMES, "labels"]
    assert len(lines) == IMAGES
    scores = np.array([line[1:5] for line in lines], dtype=float)
    np.testing.assert_allclose(scores, expected.probabilities, rtol=1e-5)
    assert [[*filter(None, line[5].split(";"))] for line in lines] == expected.labels
    records = [json.loads(line) for line in files[1].read_text().splitlines()]
    assert [record["labels"] for record in records] == expected.labels
    assert [[*record["scores"].values()] for record in records] == scores.tolist()
    stored = parquet.read_table(files[2]).to_pydict()
    assert [*stored] == ["id", "labels", *NAMES]
    assert stored["labels"] == expected.labels
    assert stored["id"] == [line[0] for line in lines] == expected.ids.tolist()
    np.testing.assert_allclose(stored["dog"], scores[:, 3], rtol=1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {file.name for file in files}


def test_decisions_without_thresholds_are_told(home, tmp_path):
    partly_works(
        "train", home / "train.npz", "--out", tmp_path / "run", "--epochs", 1, "--hold-out", 0
    )
    given = ["predict", tmp_path / "run", home / "features.npz", "--out", tmp_path / "out.csv"]
    assert "has no thresholds: a label is present from a probability of 0.5 on" in (
        partly_works(*given, "--labels").out
    )
    assert "no thresholds" not in partly_works(*given).out


def test_the_likeliest_labels_in_every_form(home, tmp_path):
    predictor = partly.load(home / "run")
    expected = predictor.predict(home / "features.npz")
    best = np.argsort(-expected.probabilities, axis=1, kind="stable")[:, :2]
    decided = np.take_along_axis(expected.decided, best, axis=1)
    given = ["predict", home / "run", home / "features.npz", "--top", 2, "--labels", "--out"]
    for ending in predicting.WRITERS:
        partly_works(*given, tmp_path / f"first{ending}")
    header, lines = table_of(tmp_path / "first.csv")
    assert header == ["id", "label", "probability", "decided"]
    assert [line[1] for line in lines] == [NAMES[column] for column in best.ravel()]
    assert [line[3] == "1" for line in lines] == decided.ravel().tolist()
    stored = parquet.read_table(tmp_path / "first.parquet").to_pydict()
    assert [*stored] == header
    assert stored["id"][:3] == [lines[0][0], lines[1][0], lines[2][0]]
    assert stored["decided"] == decided.ravel().tolist()
    first = json.loads((tmp_path / "first.jsonl").read_text().splitlines()[0])
    assert [*first["scores"]] == [line[1] for line in lines[:2]]


def test_more_labels_than_there_are(home, tmp_path):
    for ending in predicting.WRITERS:
        out = tmp_path / f"all{ending}"
        partly_works("predict", home / "run", home / "features.npz", "--top", 9, "--out", out)
    assert parquet.read_table(tmp_path / "all.parquet").num_rows == len(NAMES) * IMAGES
    assert len(table_of(tmp_path / "all.csv")[1]) == len(NAMES) * IMAGES


def test_python_takes_whatever_holds_images(home):
    predictor = partly.load(home / "seen")
    files = sorted((home / "pictures").glob("*.png"))
    expected = predictor.predict(home / "pictures")
    opened = [Image.open(file) for file in files]
    for form in (files, [str(file) for file in files], opened):
        found = predictor.predict(form)
        np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-6)
    one = predictor.predict(opened[0])[0]
    assert one.id == "0"
    assert [*one.probabilities] == [*COLOURS]
    assert one.labels == expected[0].labels
    assert one.labels == sorted(one.labels, key=lambda name: -one.probabilities[name])
    assert (expected.decided == (expected.probabilities >= predictor.thresholds)).all()
    assert len(expected) == len([*expected]) == 120


def test_decided_labels_do_not_need_every_probability_by_name():
    labels = 50_000
    scores = np.zeros((3, labels), np.float32)
    scores[1, [7, 9, 40_000]] = 0.6, 0.9, 0.6
    names = tuple(f"label {number}" for number in range(labels))
    ids = partly.LabelTable.without_labels(names, ids=range(3), features=np.zeros((3, 1))).ids
    found = runs.Predictions(ids, names, scores, np.full(labels, 0.5))
    tracemalloc.start()
    assert found.labels == [[], ["label 9", "label 7", "label 40000"], []]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 * labels  # a number for each would take more
    assert found[1].labels == found.labels[1]


def test_of_no_images_nothing_is_said(home):
    rows = np.zeros((0, 12))
    for kind, none in (("run", rows), ("run", torch.tensor(rows)), ("run", []), ("seen", ())):
        found = partly.load(home / kind).predict(none)
        assert (len(found), [*found], found.labels) == (0, [], [])
        assert found.probabilities.shape == (0, len(found.names))
        assert found.decided.shape == found.probabilities.shape


def test_python_leaves_out_what_it_cannot_read_only_if_told(home, tmp_path):
    predictor = partly.load(home / "seen")
    write_pictures(tmp_path, 5)
    files = sorted(tmp_path.glob("*.png"))
    expected = predictor.predict(files).probabilities[[0, 1, 2, 4]]
    files[3].write_bytes(whole := files[3].read_bytes()[:-40])
    opened = [Image.open(file) for file in files]
    for images, bad in ((files, str(files[3])), (tmp_path, files[3].name), (opened, "3")):
        with pytest.raises(DataError, match="3"):
            predictor.predict(images)
        found = predictor.predict(images, on_bad_image="skip")
        np.testing.assert_allclose(found.probabilities, expected, atol=1e-6)
        assert len(found.ids) == 4
        assert bad not in found.ids.tolist()
        assert [*found.left_out] == [bad]
        assert "truncated" in found.left_out[bad]
    assert len(predictor.predict(Source(tmp_path, on_bad_image="skip"))) == 4
    assert files[3].read_bytes() == whole
    only = predictor.predict([files[3]], on_bad_image="skip")
    assert (len(only), len(only.left_out)) == (0, 1)
    with pytest.raises(ConfigError, match="on_bad_image is one of error, skip, not 'ignore'"):
        predictor.predict(files, on_bad_image="ignore")


def test_a_picture_is_turned_as_its_camera_was_held(home, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (16, 24, 3), dtype=np.uint8)
    turned = Image.fromarray(pixels).getexif()
    turned[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=turned)
    predictor = partly.load(home / "seen")
    by_path = predictor.predict(tmp_path / "turned.png").probabilities
    by_picture = predictor.predict(Image.open(tmp_path / "turned.png")).probabilities
    np.testing.assert_allclose(by_picture, by_path, atol=1e-6)


def test_rows_of_features_are_images_too(home):
    import torch

    predictor, rows = partly.load(home / "run"), problem(9, seed=3)[0]
    found = predictor.predict(rows)
    assert found.ids.tolist() == [str(number) for number in range(9)]
    np.testing.assert_array_equal(predictor.predict(torch.from_numpy(rows)).decided, found.decided)


@pytest.mark.parametrize("images", [[1, "a"], np.zeros(3), np.zeros((2, 5)), None, "nowhere"])
def test_what_holds_no_images_is_refused(home, images):
    with pytest.raises(DataError, match=r"predict takes|the model looks at|no data at"):
        partly.load(home / "run").predict(images)


@pytest.mark.parametrize(
    ("out", "more", "message"),
    [
        ("scores.txt", [], "its ending is one of .csv, .jsonl, .parquet"),
        ("scores", [], "its ending is one of"),
        ("scores.csv", ["--top", 0], "Invalid value for '--top'"),
    ],
)
def test_a_file_that_cannot_be_written(home, tmp_path, out, more, message):
    given = ["predict", home / "run", home / "features.npz", "--out", tmp_path / out, *more]
    answer = partly_here(*given)
    assert answer.code == 2
    assert message in answer.err
    assert not [*tmp_path.iterdir()]


def test_names_that_a_file_cannot_hold(home):
    predictor = partly.load(home / "run")
    predictor.names = ("id", "a;b", "cat", "dog")
    for name, labels in (("s.csv", True), ("s.parquet", False)):
        with pytest.raises(ConfigError, match="a label is called 'id'"):
            predicting.form_of(predictor, Path(name), labels=labels)
    with pytest.raises(ConfigError, match="label 'a;b' has a ; in it"):
        predicting.form_of(predictor, Path("s.csv"), labels=True)
    assert predicting.form_of(predictor, Path("s.jsonl")).suffix == ".jsonl"
    assert predicting.form_of(predictor, Path("s.csv")).suffix == ".csv"


# --- stopped -------------------------------------------------------------------------------------

# Dies by its own hand in front of the n-th piece.
DIES = """
import os, signal, sys
from partly import cli, predicting

predicting.ENTRIES = 4 * 256
left = int(sys.argv.pop(1))
write = predicting.checkpoint.write_atomically

def dying(path, fill):
    global left
    left -= path.parent.name.endswith(".parts") and path.name != predicting.PLAN
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, fill)

predicting.checkpoint.write_atomically = dying
cli.main()
"""


@pytest.mark.parametrize("ending", predicting.WRITERS)
def test_a_killed_prediction_ends_as_if_nothing_had_happened(home, tmp_path, ending):
    whole, stopped = tmp_path / f"whole{ending}", tmp_path / f"stopped{ending}"
    given = ["predict", home / "run", home / "features.npz", "--labels", "--out"]
    partly_works(*given, whole)
    script = [command()[0], "-c", DIES, "2", *map(str, given), str(stopped), "--resume"]
    ended = subprocess.run(script, env=environment(), capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not stopped.exists()
    assert len([*predicting.parts_of(stopped).glob(f"0*{ending}")]) == 2
    said = partly_works(*given, stopped, "--resume")
    assert "512 of 700 images are there already" in said.err
    assert stopped.read_bytes() == whole.read_bytes()
    assert not predicting.parts_of(stopped).exists()


def test_killed_at_any_moment(home, tmp_path, monkeypatch):
    """From outside, on pictures one of which is bad: it is looked for only once."""
    monkeypatch.undo()  # the size of a piece is the other process's
    folder = tmp_path / "many"
    write_pictures(folder, 1500, size=24)
    (folder / "0700.png").write_bytes(b"broken")
    given = ["predict", home / "seen", folder, "--on-bad-image", "skip", "--out"]
    partly_works(*given, tmp_path / "whole.csv")
    stopped = tmp_path / "stopped.csv"
    process = subprocess.Popen(command(*given, stopped), env=environment())
    deadline = time.monotonic() + 120
    while not [*predicting.parts_of(stopped).glob("0*.csv")]:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL
    said = partly_works(*given, stopped, "--resume")
    assert "1,499 images" in said.out
    assert stopped.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    for name in ("whole", "stopped"):
        assert (tmp_path / f"{name}.csv.skipped.csv").read_text().count("0700.png") == 1


def test_it_goes_on_with_the_same_only(home, tmp_path):
    out = tmp_path / "scores.csv"
    given = ["predict", home / "run", home / "features.npz", "--out", out]
    script = [command()[0], "-c", DIES, "1", *map(str, given)]
    subprocess.run(script, env=environment(), capture_output=True, check=False)
    assert predicting.begun(out) is not None
    for more, changed in (["--labels"], "--labels"), (["--top", "1"], "--top"):
        answer = partly_here(*given, *more, "--resume")
        assert answer.code == 2
        assert f"cannot go on with {out}: {changed} changed since it was begun" in answer.err
    other = problem(IMAGES, seed=4)[0]
    np.savez(tmp_path / "other.npz", X=other)
    answer = partly_here(*given[:2], tmp_path / "other.npz", *given[3:], "--resume")
    assert "the images changed since it was begun" in answer.err
    partly_works(*given, "--labels")  # without --resume it begins anew
    assert table_of(out)[0][-1] == "labels"
    assert predicting.begun(out) is None


@pytest.mark.parametrize("in_a_tar", [False, True], ids=["files", "tar"])
def test_pictures_that_were_replaced_are_not_mixed_with_the_old_ones(home, tmp_path, in_a_tar):
    folder, out = tmp_path / "new", tmp_path / "scores.csv"
    write_pictures(folder, 20)
    images = pack(folder) if in_a_tar else folder
    given = ["predict", home / "seen", images, "--out", out]
    stopped = [command()[0], "-c", DIES, "0", *map(str, given)]
    subprocess.run(stopped, env=environment(), capture_output=True, check=False)
    assert predicting.begun(out) is not None
    os.utime(folder / "0007.png", (0, 0))  # the same size, another time
    if in_a_tar:
        pack(folder)
    answer = partly_here(*given, "--resume")
    assert answer.code == 2
    assert "the images changed since it was begun" in answer.err


def pack(folder: Path) -> Path:
    """The pictures of a folder in a tar, written now."""
    tar = folder.with_suffix(".tar")
    with tarfile.open(tar, "w") as file:
        file.add(folder, ".")
    return tar


def test_a_list_of_bad_images_goes_when_they_are_mended(home, tmp_path):
    folder, out = tmp_path / "new", tmp_path / "scores.csv"
    write_pictures(folder, 5)
    whole = (folder / "0003.png").read_bytes()
    (folder / "0003.png").write_bytes(b"broken")
    given = ["predict", home / "seen", folder, "--on-bad-image", "skip", "--out", out]
    partly_works(*given)
    assert "0003.png" in (tmp_path / "scores.csv.skipped.csv").read_text()
    partly_works(*given[:-1], tmp_path / "scores.jsonl")
    assert "0003.png" in (tmp_path / "scores.jsonl.skipped.csv").read_text()
    (folder / "0003.png").write_bytes(whole)
    partly_works(*given)
    assert (tmp_path / "scores.jsonl.skipped.csv").exists()  # of another file
    assert len(table_of(out)[1]) == 5
    assert not (tmp_path / "scores.csv.skipped.csv").exists()


def test_a_head_on_frozen_eyes_predicts_without_a_cache(home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    labels = write_pictures(tmp_path / "pictures", 60, size=32)
    data = write_manifest(tmp_path / "pictures" / "data.csv", labels)
    more = ["--backbone", "resnet18", "--weights", "none", "--head-only", "--image-size", 32]
    partly_works("train", data, "--out", tmp_path / "run", "--epochs", 1, *more)
    kept = len([*(tmp_path / "cache").rglob("*.npz")])
    write_pictures(tmp_path / "new", 20, size=32, seed=5)
    predictor = runs.load(tmp_path / "run")
    found = predictor.predict(tmp_path / "new")
    assert len([*(tmp_path / "cache").rglob("*.npz")]) == kept
    files = sorted((tmp_path / "new").glob("*.png"))
    table = partly.LabelTable.without_labels(
        COLOURS, ids=[file.name for file in files], paths=np.array([str(file) for file in files])
    )
    np.testing.assert_allclose(found.probabilities, predictor.probabilities(table), atol=1e-4)
