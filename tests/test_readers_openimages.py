"""Open Images: the files of V3 to V7 as they are published, and what can be wrong with them."""

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import refuses
from partly.errors import ConfigError, DataError, LabelError
from partly.readers import read, recognise

HEADER = "ImageID,Source,LabelName,Confidence"
CAT, DOG, FOX, OWL = "/m/01yrx", "/m/0bt9lr", "/m/0306r", "/m/09d5_"
IDS = ("000002b66c9c498e", "000002b97e5471a0", "a000045257f66b9e", "f00009be2a7b7a8c")


def write_labels(file: Path, *rows: str, end: str = "\n") -> Path:
    """A label file; a row is "image label confidence", the image by its number in IDS."""
    lines = [HEADER]
    for row in rows:
        image, label, confidence = row.split()
        lines.append(f"{IDS[int(image)]},verification,{label},{confidence}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes((end.join(lines) + end).encode())
    return file


def write_classes(file: Path, header: bool = False, **names: str) -> Path:
    """A file of class descriptions in which these names come beside the labels."""
    labels = {"cat": CAT, "dog": DOG, "fox": FOX, "owl": OWL}
    lines = ["LabelName,DisplayName"] if header else []
    lines += [f"{labels[short]},{name}" for short, name in names.items()]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def labels_of(table: Any) -> dict[str, dict[str, int]]:
    """By image and by label what is known."""
    rows, dense = table.ids.tolist(), table.dense()
    return {
        image: {n: int(v) for n, v in zip(table.names, dense[row], strict=True) if v >= 0}
        for row, image in enumerate(rows)
    }


@pytest.fixture
def v4(tmp_path: Path) -> Path:
    """All three parts of V4 to V6 with boxable labels, an image list, and files of no concern."""
    write_classes(tmp_path / "class-descriptions-boxable.csv", cat="Cat", dog="Dog", fox="Café")
    write_classes(tmp_path / "class-descriptions.csv", owl="Owl", cat="Cat", dog="Dog", fox="Café")
    boxable = "-annotations-human-imagelabels-boxable.csv"
    write_labels(tmp_path / f"train{boxable}", f"1 {DOG} 0", f"0 {CAT} 1", f"1 {FOX} 1", end="\r\n")
    write_labels(tmp_path / f"validation{boxable}", f"2 {CAT} 0", f"2 {DOG} 1.0")
    write_labels(tmp_path / f"test{boxable}", f"3 {FOX} 0")
    write_labels(tmp_path / "train-annotations-machine-imagelabels.csv", f"0 {DOG} 1")
    (tmp_path / "train-annotations-bbox.csv").write_text("ImageID,Source,LabelName\n")
    return tmp_path


def test_all_parts(v4: Path) -> None:
    assert recognise(v4) == "openimages"
    table = read(v4)
    assert table.names == ("Cat", "Dog", "Café")
    assert labels_of(table) == {
        IDS[1]: {"Dog": 0, "Café": 1},
        IDS[0]: {"Cat": 1},
        IDS[2]: {"Cat": 0, "Dog": 1},
        IDS[3]: {"Café": 0},
    }
    assert table.splits.tolist() == ["train", "train", "validation", "test"]
    splits = ("train", "train", "validation", "test")
    assert table.paths.tolist() == [
        str(v4 / split / f"{image}.jpg") for split, image in zip(splits, table.ids, strict=True)
    ]
    assert len(table.notes) == 2
    assert "Table II" in table.notes[0]
    assert "5,655,108" in table.notes[1]


@pytest.mark.parametrize(
    ("files", "split"),
    [
        (["train-annotations-human-imagelabels.csv"], "train"),
        (["train-annotations-human-imagelabels-boxable.csv"], "train"),
        (["annotations/test-annotations-human-imagelabels-boxable.csv"], "test"),
        (["oidv6-train-annotations-human-imagelabels.csv"], "train"),
        (["oidv7-val-annotations-human-imagelabels.csv"], "validation"),
        (["oidv7-test-annotations-human-imagelabels.csv"], "test"),
        (["train/annotations-human.csv"], "train"),
        (["2017_11/validation/annotations-human.csv", "2017_11/images.csv"], "validation"),
        (["2018_04/train/train-annotations-human-imagelabels-boxable.csv"], "train"),
    ],
)
def test_where_the_label_file_lies(tmp_path: Path, files: list[str], split: str) -> None:
    for file in files:
        write_labels(tmp_path / file, f"0 {CAT} 1", f"1 {DOG} 0")
    table = read(tmp_path)
    assert table.names == (CAT, DOG)
    assert table.ids.tolist() == list(IDS[:2])
    assert table.splits.tolist() == [split] * 2


@pytest.mark.parametrize(
    "file", ["train-annotations-machine-imagelabels.csv", "train/annotations-machine.csv"]
)
def test_labels_of_a_machine_are_never_read(tmp_path: Path, file: str) -> None:
    write_labels(tmp_path / file, f"0 {CAT} 1")
    refuses(tmp_path, "no known format")
    refuses(tmp_path, "holds no label file", format="openimages")


def test_other_confidences_are_unknown(tmp_path: Path) -> None:
    file = tmp_path / "train-annotations-human-imagelabels.csv"
    write_labels(file, f"0 {CAT} 1", f"0 {DOG} 0.7", f"1 {DOG} 0", f"1 {CAT} 0.3", f"2 {CAT} 0.9")
    table = read(tmp_path)
    assert labels_of(table) == {IDS[0]: {CAT: 1}, IDS[1]: {DOG: 0}, IDS[2]: {}}
    assert "train: 3 rows of 5 left out, with a confidence that is neither 1 nor 0" in table.notes
    assert "train: nothing is known of 1 image" in table.notes


def test_an_image_list_says_which_images_there_are(v4: Path) -> None:
    lines = ["ImageID,Subset,OriginalURL,Title", f'{IDS[3]},train,https://a,"b, c"']
    lines += [f"{IDS[0]},train,,"]
    (v4 / "train-images-with-labels-with-rotation.csv").write_text(f"ImageID\n{IDS[2]}\n")
    (v4 / "train-images-boxable-with-rotation.csv").write_text("\n".join(lines) + "\n")
    (v4 / "test-annotations-human-imagelabels-boxable.csv").unlink()
    table = read(v4)
    train = table.part("train")
    assert labels_of(train) == {IDS[3]: {}, IDS[0]: {"Cat": 1}}
    left_out = "of images that are not in train-images-boxable-with-rotation.csv"
    assert f"train: 2 rows of 3 left out, {left_out}" in table.notes


def test_v3_lists_its_images_in_images_csv(tmp_path: Path) -> None:
    write_labels(tmp_path / "2017_11/train/annotations-human.csv", f"1 {CAT} 1", f"1 {DOG} 0")
    (tmp_path / "2017_11/train/images.csv").write_text(
        "ImageID,Subset\n" + "".join(f"{image},train\n" for image in IDS)
    )
    write_classes(tmp_path / "2017_11/class-descriptions.csv", dog="Dog", cat="Cat")
    table = read(tmp_path)
    assert table.ids.tolist() == list(IDS)
    assert table.names == ("Dog", "Cat")
    assert table.known == 2
    assert table.paths[0] == str(tmp_path / "2017_11" / "train" / f"{IDS[0]}.jpg")


# Labels


def test_the_boxable_file_is_read_instead_of_the_full_one(v4: Path) -> None:
    full = write_labels(
        v4 / "train-annotations-human-imagelabels.csv", f"0 {CAT} 0", f"0 {OWL} 1", f"1 {OWL} 0"
    )
    table = read(v4).part("train")
    assert labels_of(table)[IDS[0]] == {"Cat": 1}
    assert any(full.name in note and "not read" in note for note in table.notes)
    everything = read(v4, classes="class-descriptions.csv").part("train")
    assert everything.names == ("Owl", "Cat", "Dog", "Café")
    assert labels_of(everything) == {IDS[0]: {"Cat": 0, "Owl": 1}, IDS[1]: {"Owl": 0}}


def test_the_full_label_file_when_asked_for(v4: Path) -> None:
    """As for the paper's counts: images of all classes, labels of the boxable ones."""
    options = {"labels": "full", "classes": "class-descriptions-boxable.csv"}
    full = "-annotations-human-imagelabels.csv"
    write_labels(v4 / f"train{full}", f"0 {CAT} 0", f"0 {OWL} 1", f"1 {OWL} 0")
    missing = [f"has no {split}{full}, only {split}-" for split in ("validation", "test")]
    refuses(v4, *missing, **options)
    for split, image in (("validation", 2), ("test", 3)):
        write_labels(v4 / f"{split}{full}", f"{image} {DOG} 1")
    (v4 / "train-images-boxable-with-rotation.csv").write_text(f"ImageID\n{IDS[0]}\n")
    table = read(v4, **options)
    assert table.names == ("Cat", "Dog", "Café")
    assert labels_of(table.part("train")) == {IDS[0]: {"Cat": 0}, IDS[1]: {}}
    assert labels_of(read(v4, labels="boxable").part("train")) == {IDS[0]: {"Cat": 1}}
    (v4 / "class-descriptions-boxable.csv").unlink()
    refuses(v4, "there is no file class-descriptions-boxable.csv", **options)
    refuses(v4, "labels is one of auto, full, boxable", labels="all")


def test_v7_pairs_val_with_validation(tmp_path: Path) -> None:
    ending = "-annotations-human-imagelabels.csv"
    write_labels(tmp_path / f"oidv7-val{ending}", f"0 {CAT} 1", f"1 {CAT} 0")
    write_labels(tmp_path / f"validation{ending}", f"2 {CAT} 1")
    listed = "\n".join(["ImageID,Subset", f"{IDS[1]},validation", f"{IDS[3]},validation"])
    (tmp_path / "validation-images-with-rotation.csv").write_text(listed)
    table = read(tmp_path)
    assert labels_of(table) == {IDS[1]: {CAT: 0}, IDS[3]: {}}
    assert (
        f"validation: labels from oidv7-val{ending}, images from "
        f"validation-images-with-rotation.csv; not read: validation{ending}"
    ) in table.notes


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("oidv7-val-annotations-human-imagelabels.csv", "validation"),
        ("test-annotations-human-imagelabels-boxable.csv", "test"),
        ("test/annotations-human.csv", "test"),
        ("labels.csv", "train"),
    ],
)
def test_a_label_file_alone(tmp_path: Path, name: str, split: str) -> None:
    file = write_labels(tmp_path / name, f"0 {CAT} 1", f"1 {DOG} 0")
    write_labels(file.parent / "train-annotations-human-imagelabels.csv", f"2 {FOX} 1")
    assert recognise(file) == "openimages"
    table = read(file)
    assert labels_of(table) == {IDS[0]: {CAT: 1}, IDS[1]: {DOG: 0}}
    assert table.splits.tolist() == [split] * 2


def test_other_files_of_open_images_alone(tmp_path: Path) -> None:
    machine = tmp_path / "train-annotations-machine-imagelabels.csv"
    refuses(write_labels(machine, f"0 {CAT} 0.9"), "labels that a machine made")
    boxes = tmp_path / "train-annotations-bbox.csv"
    boxes.write_text(f"{HEADER},XMin,XMax,YMin,YMax\n{IDS[0]},xclick,{CAT},1,0,1,0,1\n")
    refuses(boxes, "has boxes")


def test_labels_that_are_not_in_the_set_are_left_out(v4: Path) -> None:
    table = read(v4, classes=["Dog", CAT])
    assert table.names == ("Dog", "Cat")
    assert labels_of(table)[IDS[1]] == {"Dog": 0}
    assert "train: 1 row of 3 left out, of labels that are not in the label set" in table.notes


def test_classes_from_a_list_in_a_file(v4: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("elsewhere") / "classes-trainable.txt"
    file.write_text(f"{FOX}\n{OWL}\n\n")
    assert read(v4, classes=file).names == ("Café", "Owl")
    assert read(v4, classes=str(file)).names == ("Café", "Owl")


def test_classes_that_are_not_there(v4: Path) -> None:
    error = refuses(v4, "1 label not known: Unicorn", classes=["Cat", "Unicorn"])
    assert isinstance(error, ConfigError)
    refuses(v4, "there is no file classes.txt", classes="classes.txt")


def test_a_name_that_two_labels_share(tmp_path: Path) -> None:
    write_classes(
        tmp_path / "oidv7-class-descriptions.csv", header=True, cat="Bat", dog="Bat", owl="Owl"
    )
    write_labels(tmp_path / "oidv7-train-annotations-human-imagelabels.csv", f"0 {DOG} 1")
    assert read(tmp_path).names == (f"Bat ({CAT})", f"Bat ({DOG})", "Owl")
    assert read(tmp_path, classes=[DOG, OWL]).names == ("Bat", "Owl")
    refuses(tmp_path, "say which", f"Bat ({CAT}, {DOG})", classes=["Bat", "Owl"])


def test_rows_that_agree_are_merged(tmp_path: Path) -> None:
    file = tmp_path / "train-annotations-human-imagelabels.csv"
    write_labels(file, f"0 {CAT} 1", f"0 {DOG} 0", f"0 {CAT} 1.0", f"1 {DOG} 0", f"0 {DOG} 0")
    table = read(tmp_path)
    assert labels_of(table) == {IDS[0]: {CAT: 1, DOG: 0}, IDS[1]: {DOG: 0}}
    assert "2 rows with a label that an earlier row gives: merged" in table.notes


def test_rows_that_contradict_each_other(tmp_path: Path) -> None:
    file = tmp_path / "train-annotations-human-imagelabels.csv"
    write_labels(
        file, f"0 {CAT} 1", f"1 {CAT} 1", f"0 {CAT} 0", f"0 {DOG} 1", f"0 {CAT} 1", f"1 {DOG} 0"
    )
    found = f"image {IDS[0]}, label {CAT}: positive in line 2, negative in line 4"
    error = refuses(tmp_path, f"{file}: 1 label is given", found, "conflicts=")
    assert isinstance(error, LabelError)
    table = read(tmp_path, conflicts="unknown")
    assert labels_of(table) == {IDS[0]: {DOG: 1}, IDS[1]: {CAT: 1, DOG: 0}}
    assert "train: 1 label verified both as positive and as negative: unknown" in table.notes
    refuses(tmp_path, "conflicts is one of error, unknown", conflicts="ignore")


# What is wrong with a file


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("ImageID,LabelName\na,b\n", ["has no column Confidence"]),
        (f"{HEADER}\n", ["header but no label"]),
        (f"{HEADER}\n\na,v,/m/1,1\nb,v,/m/1,high\n", ["a Confidence is a number", "line 4"]),
        (f"{HEADER}\na,v,/m/1,1\nb,v,/m/1\n", ["4 columns, but line 3 has 3 cells"]),
        ("", ["has no column"]),
    ],
)
def test_label_files_that_cannot_be_read(tmp_path: Path, text: str, sentences: list[str]) -> None:
    file = tmp_path / "train-annotations-human-imagelabels.csv"
    file.write_text(text)
    error = refuses(tmp_path, *sentences, str(file), classes=write_classes(tmp_path / "c", cat="a"))
    assert isinstance(error, DataError)


def test_the_problems_of_all_parts_come_at_once(v4: Path) -> None:
    for split in ("train", "test"):
        file = v4 / f"{split}-annotations-human-imagelabels-boxable.csv"
        file.write_text("ImageID,LabelName\na,b\n")
    assert len(refuses(v4, "train-annotations", "test-annotations").problems) == 2


def test_an_image_in_two_parts(v4: Path) -> None:
    file = write_labels(v4 / "test-annotations-human-imagelabels-boxable.csv", f"0 {FOX} 0")
    files = f"({file.name.replace('test', 'train')}, {file.name})"
    refuses(v4, f"1 image in more than one part: {IDS[0]} {files}")


def test_conflicts_are_found_where_rows_are_left_out(v4: Path) -> None:
    """The lines are those of the file, although other rows of it are not read."""
    for split in ("train", "test"):
        file = v4 / f"{split}-annotations-human-imagelabels-boxable.csv"
        rows = [f"0 {OWL} 1", f"0 {CAT} 0.5", f"0 {CAT} 0", f"0 {OWL} 0", f"0 {CAT} 1"]
        write_labels(file, *rows)
    error = refuses(v4, "label Cat: positive in line 6, negative in line 4")
    assert isinstance(error, LabelError)
    assert len(error.problems) == 2


def test_an_empty_image_id(tmp_path: Path) -> None:
    file = tmp_path / "train-annotations-human-imagelabels.csv"
    file.write_text(f"{HEADER}\n{IDS[0]},v,{CAT},1\n,v,{CAT},1\n")
    refuses(tmp_path, f"no ImageID in {file}, line 3")


# Images


@pytest.mark.parametrize("folder", ["train", "images/train", "train/data"])
def test_image_folders(v4: Path, folder: str) -> None:
    (v4 / folder).mkdir(parents=True)
    (v4 / folder / f"{IDS[1]}.jpg").write_bytes(b"")
    assert read(v4).paths[0] == str(v4 / folder / f"{IDS[1]}.jpg")


def test_images_elsewhere(v4: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    images = tmp_path_factory.mktemp("images")
    assert read(v4, images=images).paths[3] == str(images / "test" / f"{IDS[3]}.jpg")
    error = refuses(v4, "there is no such folder", images=images / "nowhere")
    assert isinstance(error, ConfigError)
    refuses(v4, "images=2017: there is no such folder", images=2017)


def write_tar(tar: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(tar, "w") as file:
        for name, content in members.items():
            source = tar.with_suffix(".part")
            source.write_bytes(content)
            file.add(source, name)
            source.unlink()


def content_of(path: str) -> bytes:
    file, span = path[:-1].rsplit("[", 1)
    first, end = map(int, span.split(":"))
    return Path(file).read_bytes()[first:end]


def test_images_in_a_tar(v4: Path) -> None:
    members = {f"train/{image}.jpg": image.encode() for image in IDS[:2]}
    write_tar(v4 / "train.tar", members)
    table = read(v4).part("train")
    assert [content_of(path) for path in table.paths] == [image.encode() for image in table.ids]


def test_images_in_sixteen_shards(tmp_path: Path) -> None:
    rows = [f"{image} {CAT} {image % 2}" for image in (3, 1, 2, 0)]
    write_labels(tmp_path / "train-annotations-human-imagelabels.csv", *rows)
    (tmp_path / "train_0").mkdir()
    write_tar(tmp_path / "train_a.tar", {f"train_a/{IDS[2]}.jpg": b"a picture"})
    paths = read(tmp_path).paths.tolist()
    assert paths[0] == str(tmp_path / "train_f" / f"{IDS[3]}.jpg")
    assert paths[1] == str(tmp_path / "train_0" / f"{IDS[1]}.jpg")
    assert paths[3] == str(tmp_path / "train_0" / f"{IDS[0]}.jpg")
    assert content_of(paths[2]) == b"a picture"


def test_the_order_of_rows_changes_nothing_but_the_order_of_images(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    ids = [f"{number:016x}" for number in generator.integers(2**62, size=50)]
    cells = [(i, j) for i in range(50) for j in range(20) if generator.random() < 0.3]
    lines = [f"{ids[i]},crowd,/m/{j:02d},{(i * j) % 2}" for i, j in cells]
    found = []
    for name in ("straight", "mixed"):
        folder = tmp_path / name
        folder.mkdir()
        text = "\n".join([HEADER, *lines]) + "\n"
        (folder / "train-annotations-human-imagelabels.csv").write_text(text)
        found.append(labels_of(read(folder)))
        generator.shuffle(lines)
    assert found[0] == found[1]
    assert found[0][ids[cells[0][0]]][f"/m/{cells[0][1]:02d}"] == (cells[0][0] * cells[0][1]) % 2
