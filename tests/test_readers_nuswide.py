"""NUS-WIDE: the official ground truth and the CSV release, with the oddities of their files."""

from pathlib import Path

import numpy as np
import pytest

from builders import message_of
from partly.errors import ConfigError, DataError
from partly.hiding import hide
from partly.readers import read, recognise
from partly.readers.paper import differences

CONCEPTS = ("airport", "clouds", "sky")
LABELS = {
    "Train": np.array([[0, 1, 1], [0, 0, 0], [1, 0, 1], [0, 0, 1]]),
    "Test": np.array([[0, 0, 0], [0, 1, 0]]),
}
IMAGES = {
    "Train": ["actor\\0001_21.jpg", "actor\\0002_17.jpg", "zoo\\0001_5.jpg", "café\\0009_8.jpg"],
    "Test": ["actor\\0003_3.jpg", "zoo\\0002_6.jpg"],
}


def official(root: Path, concepts: str = "Concepts81.txt", truth: str = "Groundtruth") -> Path:
    """Lists with Windows line ends and backslashes, labels with spaces and a blank last line."""
    folder = root / truth / "TrainTestLabels"
    folder.mkdir(parents=True)
    (root / "ImageList").mkdir()
    (root / concepts).parent.mkdir(exist_ok=True)
    (root / concepts).write_text("\r\n".join(CONCEPTS) + "\r\n\r\n")
    for part, labels in LABELS.items():
        lines = "".join(f"{name}\r\n" for name in IMAGES[part])
        (root / "ImageList" / f"{part}Imagelist.txt").write_text(lines, encoding="utf-8")
        for column, concept in enumerate(CONCEPTS):
            values = "".join(f"{value} \r\n" for value in labels[:, column])
            (folder / f"Labels_{concept}_{part}.txt").write_text(values + "\r\n")
    return root


def release(root: Path, rows: str | None = None, name: str = "nus_wid_data.csv") -> Path:
    root.mkdir(exist_ok=True)
    rows = rows or (
        "images/0001_21.jpg,\"['clouds', 'sky']\",train\n"
        "images/0002_17.jpg,[],train\n"
        "\n"
        "images/0001_5.jpg,\"['sky', 'airport']\",train\n"
        "images/0003_3.jpg,\"['clouds', 'sky']\",val\n"
    )
    (root / name).write_text("\ufefffilename,label,split_name\n" + rows, encoding="utf-8")
    return root / name


@pytest.mark.parametrize("concepts", ["Concepts81.txt", "ConceptsList/Concepts81.txt"])
@pytest.mark.parametrize("truth", ["Groundtruth", "GroundTruth"])
def test_official(tmp_path: Path, concepts: str, truth: str) -> None:
    root = official(tmp_path, concepts, truth)
    assert recognise(root) == "nuswide"
    table = read(root)
    assert table.names == CONCEPTS
    assert (table.dense() == np.concatenate(list(LABELS.values()))).all()
    assert table.splits.tolist() == ["train"] * 4 + ["test"] * 2
    assert table.ids[0] == "actor/0001_21.jpg"
    assert table.ids[3] == "café/0009_8.jpg"


def test_official_without_a_list_of_concepts(tmp_path: Path) -> None:
    (official(tmp_path) / "Concepts81.txt").unlink()
    assert read(tmp_path).names == CONCEPTS


def test_official_inside_a_folder_of_its_own(tmp_path: Path) -> None:
    official(tmp_path / "NUS-WIDE")
    (tmp_path / "__MACOSX").mkdir()
    assert recognise(tmp_path) == "nuswide"
    assert len(read(tmp_path)) == 6


def test_concepts_stand_in_the_order_of_their_list(tmp_path: Path) -> None:
    (official(tmp_path) / "Concepts81.txt").write_text("sky\nairport\nclouds\n")
    table = read(tmp_path)
    assert table.names == ("sky", "airport", "clouds")
    assert (table.dense()[:4] == LABELS["Train"][:, [2, 0, 1]]).all()


def test_images_in_folders_or_all_together(tmp_path: Path) -> None:
    root = official(tmp_path)
    assert read(root).paths[0] == str(root / "Flickr/actor/0001_21.jpg")  # the usual place
    (root / "images").mkdir()
    (root / "images/0002_17.jpg").touch()  # not the first: some can no longer be downloaded
    assert read(root).paths[0] == str(root / "images/0001_21.jpg")
    (root / "images/0002_17.jpg").unlink()
    (root / "images/zoo").mkdir()
    assert read(root).paths[2] == str(root / "images/zoo/0001_5.jpg")
    (root / "Flickr/zoo").mkdir(parents=True)
    assert read(root).paths[2] == str(root / "Flickr/zoo/0001_5.jpg")
    (root / "elsewhere").mkdir()
    (root / "elsewhere/0001_5.jpg").touch()
    assert read(root, images=str(root / "elsewhere")).paths[0] == str(
        root / "elsewhere/0001_21.jpg"
    )
    with pytest.raises(ConfigError, match="nowhere"):
        read(root, images=str(root / "nowhere"))


def test_images_without_a_label(tmp_path: Path) -> None:
    root = official(tmp_path)
    kept, dropped = read(root), read(root, empty="drop")
    assert any("2 images without any label" in note and "SPL" in note for note in kept.notes)
    assert any("2 images without any label left out" in note for note in dropped.notes)
    assert dropped.ids.tolist() == [
        "actor/0001_21.jpg", "zoo/0001_5.jpg", "café/0009_8.jpg", "zoo/0002_6.jpg",
    ]  # fmt: skip
    assert (dropped.counts_by_image().positive > 0).all()
    single = hide(kept, "spl")  # what the note says
    assert single.counts_by_image().positive.tolist() == [1, 0, 1, 1, 0, 1]
    assert single.known == 4
    with pytest.raises(ConfigError, match="empty is one of keep, drop"):
        read(root, empty="no")


def test_notes_compare_with_the_paper(tmp_path: Path) -> None:
    table = read(official(tmp_path))
    notes = " ".join(table.notes)
    assert "126,034" in notes
    assert differences("nuswide", table)[0] in notes
    assert "161,789" in notes


@pytest.mark.parametrize(
    "content", ["0\n1\n2\n0\n", "0\n1\n-1\n0\n", "0\n1\n10\n0\n", "0\n1\nx\n0\n"]
)
def test_a_label_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    file = official(tmp_path) / "Groundtruth/TrainTestLabels/Labels_clouds_Train.txt"
    file.write_text(content)
    assert f"{file}, line 3: a label is 0 or 1" in message_of(tmp_path)


def test_all_problems_of_the_label_files_at_once(tmp_path: Path) -> None:
    folder = official(tmp_path) / "Groundtruth/TrainTestLabels"
    (folder / "Labels_clouds_Train.txt").write_text("0\n1\n0\n")
    (folder / "Labels_sky_Test.txt").unlink()
    message = message_of(tmp_path)
    assert "Labels_clouds_Train.txt has 3 labels for 4 images of" in message
    assert "Labels_sky_Test.txt" in message


def test_a_missing_image_list(tmp_path: Path) -> None:
    (official(tmp_path) / "ImageList/TestImagelist.txt").unlink()
    assert "there is no" in message_of(tmp_path)
    assert "TestImagelist.txt" in message_of(tmp_path)


@pytest.mark.parametrize("as_folder", [False, True])
def test_csv(tmp_path: Path, as_folder: bool) -> None:
    file = release(tmp_path)
    path = tmp_path if as_folder else file
    assert recognise(path) == "nuswide"
    table = read(path)
    assert table.names == CONCEPTS
    assert table.dense().tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 1], [0, 1, 1]]
    assert table.splits.tolist() == ["train", "train", "train", "test"]
    assert table.paths[3] == str(tmp_path / "images/0003_3.jpg")
    assert any("val is read as test" in note for note in table.notes)
    assert len(read(path, empty="drop")) == 3


def test_csv_with_the_official_list_of_concepts(tmp_path: Path) -> None:
    file = release(tmp_path)
    (tmp_path / "Concepts81.txt").write_text("zebra\nsky\nclouds\nairport\n")
    table = read(file)
    assert table.names == ("zebra", "sky", "clouds", "airport")
    assert table.dense()[0].tolist() == [0, 1, 1, 0]
    (tmp_path / "Concepts81.txt").write_text("sky\nclouds\n")
    assert "not in Concepts81.txt: airport" in message_of(file)


def test_csv_with_three_parts(tmp_path: Path) -> None:
    rows = "a.jpg,['sky'],train\nb.jpg,['sky'],val\nc.jpg,[],test\n"
    assert read(release(tmp_path, rows)).splits.tolist() == ["train", "validation", "test"]


def test_csv_with_images_elsewhere(tmp_path: Path) -> None:
    file = release(tmp_path / "labels")
    images = tmp_path / "photos/images"
    images.mkdir(parents=True)
    (images / "0002_17.jpg").touch()
    for given in (tmp_path / "photos", images):
        assert read(file, images=str(given)).paths[0] == str(images / "0001_21.jpg")


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("a.jpg,[],train\nb.jpg,sky,train\n", "line 3, column label: 'sky' is not like"),
        ("a.jpg,[1],train\n", "line 2, column label: '[1]'"),
        ("a.jpg,\"['sky'\",train\n", "line 2, column label"),
        ("a.jpg,\"__import__('os').abort()\",train\n", "line 2, column label"),  # never evaluated
        ("a.jpg,['sky'],holdout\n", "line 2, column split_name: 'holdout'"),
        (",['sky'],train\n", "line 2, column filename: '' is not like images/"),
    ],
)
def test_csv_refuses(tmp_path: Path, rows: str, sentence: str) -> None:
    assert sentence in message_of(release(tmp_path, rows))


def test_csv_with_an_image_twice(tmp_path: Path) -> None:
    rows = "a.jpg,['sky'],train\n\nb.jpg,[],train\na.jpg,['sky'],train\n"
    table = read(release(tmp_path, rows))
    assert table.ids.tolist() == ["a.jpg", "b.jpg"]
    assert table.dense().tolist() == [[1], [0]]
    assert any("1 row of images that were there before: merged" in note for note in table.notes)
    for other in ("a.jpg,[],train\n", "a.jpg,['sky'],val\n"):
        file = release(tmp_path, rows + other)
        sentence = f"a.jpg occurs more than once, and not with the same labels and split: {file}, "
        assert f"{sentence}line 2, {file}, line 5, {file}, line 6" in message_of(file)


def test_a_label_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = official(tmp_path) / "Groundtruth/TrainTestLabels/Labels_sky_Train.txt"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert read(tmp_path).dense()[:4, 2].tolist() == [1, 0, 1, 1]


def test_another_csv_is_not_taken_for_it(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("filename,label,value\na.jpg,sky,1\n")
    assert recognise(file) == "manifest"
    (tmp_path / "Groundtruth").mkdir()
    with pytest.raises(DataError):
        recognise(tmp_path)
