"""The embedded data set: reproducible, long-tailed, co-occurring, and written with care."""

import csv
import json
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image, ImageDraw

from partly import drawing
from partly.errors import ConfigError, DataError

PICTURES = 4000


@cache
def many_labels() -> np.ndarray:
    """int8 [N, L]; labels alone, since they do not depend on the pixels."""
    labels = np.zeros((PICTURES, len(drawing.LABEL_NAMES)), dtype=np.int8)
    for index in range(PICTURES):
        labels[index, drawing.choose_labels(Random(f"0/{index}"))[1]] = 1
    return labels


def pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture).astype(int)


def test_a_picture_is_a_function_of_seed_and_index() -> None:
    alone, labels = drawing.draw_picture(3, 5)
    for index in range(5):
        drawing.draw_picture(3, index)
    again, labels_again = drawing.draw_picture(3, 5)
    assert np.array_equal(pixels(alone), pixels(again))
    assert np.array_equal(labels, labels_again)


def test_other_seeds_and_indices_give_other_pictures() -> None:
    first = pixels(drawing.draw_picture(0, 1)[0])
    for seed, index in ((0, 2), (1, 1), (1, 0), (0, 11)):
        assert not np.array_equal(first, pixels(drawing.draw_picture(seed, index)[0]))


def test_picture_and_labels_have_the_promised_form() -> None:
    picture, labels = drawing.draw_picture(0, 0, size=48)
    assert picture.size == (48, 48)
    assert picture.mode == "RGB"
    assert labels.dtype == np.int8
    assert labels.shape == (len(drawing.LABEL_NAMES),)
    assert set(np.unique(labels)) == {0, 1}


def test_size_changes_neither_the_labels_nor_the_scene() -> None:
    small, labels = drawing.draw_picture(0, 9, size=32)
    large, labels_of_large = drawing.draw_picture(0, 9, size=64)
    assert np.array_equal(labels, labels_of_large)
    assert abs(pixels(small) - pixels(large.reduce(2))).mean() < 4


def test_labels_of_pictures_are_the_chosen_labels() -> None:
    for index in range(20):
        assert np.array_equal(drawing.draw_picture(0, index, size=16)[1], many_labels()[index])


def test_frequencies_fall_from_head_to_tail() -> None:
    frequency = many_labels().mean(axis=0)
    assert 0.25 < frequency[0] < 0.35
    assert 0.004 < frequency[-6:].mean() < 0.02
    assert frequency[:3].mean() > 15 * frequency[-3:].mean()
    groups = frequency.reshape(-1, 4).mean(axis=1)
    assert (np.diff(groups) < 0).all()
    assert many_labels().sum(axis=0).min() >= 15


def test_each_picture_holds_two_to_five_things() -> None:
    counts = many_labels().sum(axis=1)
    assert counts.min() == drawing.FEWEST
    assert counts.max() == drawing.MOST
    assert 2.8 < counts.mean() < 3.5


def test_labels_of_one_scene_occur_together() -> None:
    labels = many_labels().astype(float)
    frequency = labels.mean(axis=0)
    lift = (labels.T @ labels / PICTURES) / np.outer(frequency, frequency)
    position = {name: label for label, name in enumerate(drawing.LABEL_NAMES)}
    for first, second in (("fish", "boat"), ("star", "moon"), ("tree", "mushroom")):
        assert lift[position[first], position[second]] > 1.3, (first, second)
    assert lift[position["boat"], position["moon"]] < 0.8


def test_every_home_is_a_scene_with_a_ground() -> None:
    assert set(drawing.SCENES) == set(drawing.GROUNDS)
    homes = {scene for thing in drawing.THINGS.values() for scene in thing.scenes}
    assert homes == set(drawing.SCENES)
    for chances in drawing.CHANCES.values():
        assert 0 < min(chances) < max(chances) < 1


def alone(name: str, seed: int = 0) -> np.ndarray:
    picture = Image.new("RGB", (128, 128), "white")
    pen = drawing.Pen(ImageDraw.Draw(picture), 64, 64, 0.5)
    drawing.draw_thing(Random(seed), pen, name)
    return pixels(picture)


@pytest.mark.parametrize("name", drawing.LABEL_NAMES)
def test_each_thing_shows_and_stays_in_its_place(name: str) -> None:
    changed = (alone(name) != 255).any(axis=2)
    assert changed.mean() > 0.04
    rows, columns = np.nonzero(changed)
    assert np.hypot(rows - 64, columns - 64).max() < 70  # radius 50, corners and stretch added


def test_no_two_things_look_the_same() -> None:
    drawn = [alone(name) for name in drawing.LABEL_NAMES]
    for label, first in enumerate(drawn):
        for second in drawn[:label]:
            assert (first != second).any(axis=2).mean() > 0.04


def test_a_thing_comes_in_many_colours() -> None:
    colours = {tuple(alone("heart", seed)[64, 64]) for seed in range(20)}
    assert len(colours) > 10


def test_contact_sheet_shows_the_first_pictures() -> None:
    sheet = drawing.contact_sheet(seed=1, rows=2, columns=3, size=32)
    assert sheet.size == (3 * 34 - 2, 2 * 34 - 2)
    fifth = sheet.crop((34, 34, 66, 66))
    assert np.array_equal(pixels(fifth), pixels(drawing.draw_picture(1, 4, 32)[0]))


def test_manifest_holds_what_draw_picture_gives(tmp_path: Path) -> None:
    manifest = drawing.draw_dataset(tmp_path / "new" / "data", train=5, test=2, size=32, seed=4)
    with manifest.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    assert header == ["path", "split", *drawing.LABEL_NAMES]
    assert [row[1] for row in rows] == ["train"] * 5 + ["test"] * 2
    for index, row in enumerate(rows):
        picture, labels = drawing.draw_picture(4, index, 32)
        with Image.open(manifest.parent / row[0]) as stored:
            assert np.array_equal(pixels(stored), pixels(picture))
        assert [int(value) for value in row[2:]] == labels.tolist()


def test_a_finished_data_set_is_not_drawn_again(tmp_path: Path) -> None:
    drawing.draw_dataset(tmp_path, train=3, test=1, size=16)
    picture = tmp_path / "images" / "000000.png"
    picture.write_bytes(b"touched")
    drawing.draw_dataset(tmp_path, train=3, test=1, size=16)
    assert picture.read_bytes() == b"touched"


def test_an_unfinished_data_set_is_drawn_again(tmp_path: Path) -> None:
    manifest = drawing.draw_dataset(tmp_path, train=3, test=1, size=16)
    content = manifest.read_bytes()
    manifest.unlink()
    (tmp_path / "images" / "000002.png").write_bytes(b"half a pic")
    drawing.draw_dataset(tmp_path, train=3, test=1, size=16)
    assert manifest.read_bytes() == content
    with Image.open(tmp_path / "images" / "000002.png") as stored:
        assert stored.size == (16, 16)


def test_other_parameters_replace_the_pictures(tmp_path: Path) -> None:
    drawing.draw_dataset(tmp_path, train=4, test=2, size=16)
    manifest = drawing.draw_dataset(tmp_path, train=2, test=1, size=16, seed=1)
    assert len(manifest.read_text().splitlines()) == 1 + 3
    assert len(list((tmp_path / "images").iterdir())) == 3
    assert json.loads((tmp_path / "dataset.json").read_text())["seed"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dataset.json",
        "images",
        "manifest.csv",
    ]


@pytest.mark.parametrize("name", ["manifest.csv", "dataset.json", "images"])
def test_what_somebody_else_made_is_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('["mine"]')
    with pytest.raises(DataError, match=name):
        drawing.draw_dataset(tmp_path, train=1, test=1, size=16)
    assert (tmp_path / name).read_text() == '["mine"]'


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"cannot be written to .*file/data: Not a directory"):
        drawing.draw_dataset(tmp_path / "file" / "data", train=1, test=1, size=16)


def test_all_wrong_numbers_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        drawing.draw_dataset(tmp_path, train=-1, test=1, size=4, seed=-2)
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigError, match="index"):
        drawing.draw_picture(0, -1)
