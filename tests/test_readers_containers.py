"""Data sets whose images lie inside other files: WebDataset shards, folders of `datasets`."""

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from PIL import Image

from builders import picture_table, refuses
from partly import images, packing, tars
from partly.errors import ConfigError
from partly.labels import LabelTable
from partly.readers import read, recognise


def picture(number: int, format: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), (number, 2 * number, 40)).save(stream, format)
    return stream.getvalue()


def held(table: LabelTable) -> list[bytes]:
    """What the images of a table hold, each of them one that can be decoded."""
    assert table.paths is not None
    assert [images.problem(path) for path in table.paths] == [None] * len(table)
    return [tars.read_bytes(path) for path in table.paths]


# WebDataset


def shard(path: Path, members: dict[str, bytes | str | dict | list]) -> Path:
    """A shard as the library's writer lays it out: an owner, a time, the samples in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            if isinstance(content, dict | list):
                content = json.dumps(content)
            data = content.encode() if isinstance(content, str) else content
            header = tarfile.TarInfo(name)
            header.size, header.mtime, header.mode = len(data), 1_700_000_000, 0o444
            header.uname = header.gname = "bigdata"
            tar.addfile(header, io.BytesIO(data))
    return path


def test_webdataset_with_lists(tmp_path: Path) -> None:
    shard(
        tmp_path / "train-000000.tar",
        {
            "000000.jpg": picture(1),
            "000000.json": {"labels": ["cat", "dog"], "caption": "two", "width": 8},
            "000001.json": {"labels": ["Vögel"]},  # the labels may come first
            "000001.jpg": picture(2),
            "000001.txt": "a caption",
            "README": "no sample",
        },
    )
    shard(
        tmp_path / "train-000001.tar",
        {"x/000002.png": picture(3, "PNG"), "x/000002.json": '{"labels": []}'},
    )
    shard(
        tmp_path / "val-000000.tar",
        {"000003.jpeg": picture(4), "000003.json": {"labels": ["dog", "dog"]}},
    )
    assert recognise(tmp_path) == "webdataset"
    table = read(tmp_path)
    assert table.names == ("Vögel", "cat", "dog")
    assert table.ids.tolist() == ["000000", "000001", "x/000002", "000003"]
    assert table.dense().tolist() == [[-1, 1, 1], [1, -1, -1], [-1, -1, -1], [-1, -1, 1]]
    assert table.splits.tolist() == ["train"] * 3 + ["validation"]
    assert held(table) == [picture(1), picture(2), picture(3, "PNG"), picture(4)]
    assert table.notes == ("1 of 4 samples have no known label",)


def test_webdataset_with_values_and_sides(tmp_path: Path) -> None:
    members = {
        "a.jpg": picture(1), "a.json": {"labels": {"cat": 1, "dog": 0, "bird": None, "cow": -1}},
        "b.jpg": picture(2), "b.json": {"labels": {"cat": True, "dog": False, "bird": 1.0}},
        "c.jpg": picture(3), "c.json": {"positive": ["dog"], "negative": ["cat", "bird"]},
        "d.jpg": picture(4), "d.json": {"labels": ["dog"], "negative": ["cat"]},
        "e.jpg": picture(5), "e.json": {"labels": None},
    }  # fmt: skip
    table = read(shard(tmp_path / "data.tar", members))
    assert table.names == ("bird", "cat", "cow", "dog")
    assert table.dense().tolist() == [
        [-1, 1, -1, 0], [1, 1, -1, 0], [0, 0, -1, 1], [-1, 0, -1, 1], [-1, -1, -1, -1],
    ]  # fmt: skip
    assert table.splits is None


def test_webdataset_with_numbers(tmp_path: Path) -> None:
    members = {
        "a.cls": "3", "a.jpg": picture(1), "b.cls": "10, 2\n", "b.jpg": picture(2),
        "c.cls": "0 2 10", "c.jpg": picture(3), "d.JPG": picture(4), "d.cls": "",
    }  # fmt: skip
    table = read(shard(tmp_path / "data.tar", members))
    assert table.names == ("0", "2", "3", "10")
    unknown = -1
    assert table.dense().tolist() == [
        [unknown, unknown, 1, unknown], [unknown, 1, unknown, 1], [1, 1, unknown, 1], [unknown] * 4,
    ]  # fmt: skip


def test_webdataset_with_a_file_of_names(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_bytes("\ufeffzebra\r\ncat\r\n\r\ndög\r\n".encode())
    members = {
        "a.jpg": picture(1), "a.cls": "0 2", "b.jpg": picture(2), "b.json": {"labels": ["cat", 2]},
        "c.jpg": picture(3), "c.json": {"caption": "no labels here"}, "c.cls": "1",
    }  # fmt: skip
    shard(tmp_path / "data-0.tar", members)
    for names in ("classes.txt", tmp_path / "classes.txt"):
        table = read(tmp_path, names=names)
        assert table.names == ("zebra", "cat", "dög")
        assert table.dense().tolist() == [[1, -1, 1], [-1, 1, 1], [-1, 1, -1]]
    shard(
        tmp_path / "data-1.tar",
        {"d.jpg": picture(1), "d.cls": "3", "e.jpg": picture(1), "e.json": {"labels": ["Cat"]}},
    )
    refuses(
        tmp_path,
        "label number 3 is not in 0 … 2: sample d",
        "'Cat' is not among the names",
        names="classes.txt",
    )
    refuses(tmp_path, "cannot read", "none.txt", names="none.txt")
    (tmp_path / "classes.txt").write_text("cat\ncat\n")
    refuses(tmp_path, "more than once: cat", names="classes.txt")


def test_webdataset_with_another_key(tmp_path: Path) -> None:
    members = {"a.jpg": picture(1), "a.json": {"labels": 7, "tags": ["x", "y"]}}
    path = shard(tmp_path / "data.tar", members)
    assert read(path, labels="tags").names == ("x", "y")
    refuses(path, "'labels' in its .json is neither a list nor an object: sample a")


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (("train/000.tar", "val/000.tar", "test/000.tar"), ["train", "validation", "test"]),
        (("coco-train2014-0.tar", "coco-val2014-0.tar"), ["train", "validation"]),
        (("imagenet_TRAIN_{0}.tar", "x.dev.tar"), ["validation", "train"]),
        (("0.tar", "1.tar"), None),
        (("part/000.tar", "rest/000.tar"), None),
    ],
)
def test_webdataset_splits(tmp_path: Path, files: Sequence[str], splits: list | None) -> None:
    for number, name in enumerate(files):
        shard(tmp_path / name, {"a.jpg": picture(number), "a.json": {"labels": ["x", "y"]}})
    table = read(tmp_path)
    assert sorted(table.splits.tolist() if splits else []) == sorted(splits or [])
    for path, split in zip(table.paths, table.splits if splits else [], strict=False):
        word = {"train": "train", "validation": "val|dev", "test": "test"}[split]
        assert any(part in path.removeprefix(str(tmp_path)).lower() for part in word.split("|"))
    assert len(set(table.ids)) == len(files), "the same key in several shards"
    assert all(name.endswith("/a") for name in table.ids)


def test_webdataset_with_some_splits_only(tmp_path: Path) -> None:
    for name in ("train-0.tar", "more-0.tar"):
        shard(tmp_path / name, {"a.jpg": picture(1), "a.json": {"labels": ["x", "y"]}})
    refuses(tmp_path, "more-0.tar: the name says no split")


def test_webdataset_says_everything_that_is_wrong_at_once(tmp_path: Path) -> None:
    good = {"good.jpg": picture(1), "good.json": {"labels": ["cat"]}}
    wrong = {
        "alone.json": {"labels": ["cat"]},
        "broken.jpg": picture(1), "broken.json": "{\"labels\": [",
        "broken2.jpg": picture(1), "broken2.json": b"\xff\xfe\x00",
        "list.jpg": picture(1), "list.json": ["cat"],
        "other.jpg": picture(1), "other.json": {"label": ["cat"]},
        "maybe.jpg": picture(1), "maybe.json": {"labels": {"cat": 0.5}},
        "nested.jpg": picture(1), "nested.json": {"labels": [["cat"]]},
        "word.jpg": picture(1), "word.cls": "cat",
        "dots.v2.jpg": picture(1), "dots.v2.json": {"labels": []},
    }  # fmt: skip
    shard(tmp_path / "a.tar", {**good, **wrong})
    shard(tmp_path / "b.tar", {"beta.json": {"labels": ["cat"]}})
    (tmp_path / "c.tar").write_bytes(b"\x1f\x8b" + bytes(600))
    error = refuses(
        tmp_path,
        "a.tar: there are labels without an image: sample alone",
        "a.tar: its .json is not valid JSON: samples broken, broken2",
        "its .json is not an object such as {\"labels\": [\"cat\"]}: sample list",
        "its .json has no 'labels', 'positive' or 'negative': sample other",
        "label 'cat' is 0.5, not 1, 0 or null: sample maybe",
        "['cat'] is not the name or the number of a label: sample nested",
        "'cat' in its .cls is no number: sample word",
        "an image goes on after its first dot, where the name of a sample ends: sample dots",
        "b.tar: there are labels without an image: sample beta",
        "c.tar is compressed (gzip)",
    )  # fmt: skip
    assert len(error.problems) == 10


def test_webdataset_with_a_sample_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, content in (
            ("a.jpg", picture(1)), ("a.json", b'{"labels": ["x"]}'), ("b.jpg", picture(2)),
            ("b.json", b'{"labels": ["y"]}'), ("a.jpg", picture(3)), ("a.json", b'{"labels": []}'),
            ("b.JPG", picture(4)),
        ):  # fmt: skip
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    error = refuses(
        path,
        "a.tar: its .jpg occurs more than once: samples b, a",
        "a.tar: its .json occurs more than once: sample a",
    )
    assert len(error.problems) == 2


def test_webdataset_contradictions_and_choices(tmp_path: Path) -> None:
    sides = {"positive": ["x", "y"], "negative": ["x"]}
    refuses(
        shard(tmp_path / "a.tar", {"s.jpg": picture(1), "s.json": sides}),
        "given as positive and as negative: row s, column x",
    )
    members = {"s.png": picture(1, "PNG"), "s.jpg": picture(2), "s.seg.png": picture(3, "PNG")}
    table = read(shard(tmp_path / "b.tar", {**members, "s.json": {"labels": ["x", "y"]}}))
    assert held(table) == [picture(2)]
    assert "1 sample have several images: the first of jpg, jpeg, png" in table.notes[0]


def test_webdataset_reads_labels_and_no_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shard(tmp_path / "a.tar", {"s.jpg": bytes(5_000_000), "s.json": {"labels": ["x", "y"]}})
    read_spans, sizes = tars.read_spans, []

    def counted(file: Path, starts: np.ndarray, lengths: np.ndarray) -> Any:
        sizes.extend(lengths.tolist())
        return read_spans(file, starts, lengths)

    monkeypatch.setattr(tars, "read_spans", counted)
    assert len(read(path)) == 1
    assert sizes == [len(json.dumps({"labels": ["x", "y"]}))]


def test_what_is_no_webdataset(tmp_path: Path) -> None:
    shard(tmp_path / "images.tar", {"a.jpg": picture(1), "b.jpg": picture(2)})
    refuses(tmp_path, "no known format")
    refuses(tmp_path / "images.tar", "holds images but no labels")
    (tmp_path / "empty").mkdir()
    refuses(tmp_path / "empty", "holds no shard", format="webdataset")
    shard(tmp_path / "empty" / "a.tar", {"README": "nothing"})
    refuses(tmp_path / "empty", "holds no sample", format="webdataset")
    refuses(tmp_path / "images.tar", "there is no label name", format="webdataset")


def test_a_pack_of_a_webdataset(tmp_path: Path) -> None:
    members = {
        "a.jpg": picture(1),
        "a.json": {"labels": ["x", "y"]},
        "b.jpg": picture(2),
        "b.cls": "7",
    }
    table = read(shard(tmp_path / "train-0.tar", members))
    packing.pack(table, tmp_path / "out", workers=1)
    again = read(tmp_path / "out")
    assert again.content_hash == table.content_hash
    assert again.splits.tolist() == ["train", "train"]
    assert held(again) == held(table)


# Folders of `datasets`, with the files and the fields that version 5.2 writes


CLASS_LABELS = {
    "feature": {"names": ["cat", "dog", "bird"], "_type": "ClassLabel"},
    "_type": "List",
}
IMAGE = arrow.struct({"bytes": arrow.binary(), "path": arrow.string()})


def save(
    folder: Path,
    columns: dict[str, tuple[Any, arrow.DataType, list]],
    *,
    files: int = 1,
    batch: int = 2,
    split: str | None = None,
) -> Path:
    """A split as save_to_disk leaves it. columns: by name, feature, type and values."""
    folder.mkdir(parents=True, exist_ok=True)
    table = arrow.table({name: arrow.array(v, kind) for name, (_, kind, v) in columns.items()})
    features = {name: feature for name, (feature, _, _) in columns.items()}
    info = json.dumps({"info": {"features": features}})
    table = table.replace_schema_metadata({"huggingface": info})
    names = [f"data-{number:05d}-of-{files:05d}.arrow" for number in range(files)]
    for name, rows in zip(names, np.array_split(np.arange(len(table)), files), strict=True):
        with (
            arrow.OSFile(str(folder / name), "wb") as file,
            arrow.ipc.new_stream(file, table.schema) as stream,
        ):
            stream.write_table(table.take(rows), max_chunksize=batch)
    state = {
        "_data_files": [{"filename": name} for name in names], "_fingerprint": "8a7c667434e061d3",
        "_format_columns": None, "_format_kwargs": {}, "_format_type": None,
        "_output_all_columns": False, "_split": split,
    }  # fmt: skip
    (folder / "state.json").write_text(json.dumps(state, indent=2))
    described = {
        "citation": "",
        "description": "",
        "features": features,
        "homepage": "",
        "license": "",
    }
    (folder / "dataset_info.json").write_text(json.dumps(described, indent=2))
    return folder


def embedded(numbers: Sequence[int], name: str | None = "{:03d}.jpg") -> tuple:
    cells = [{"bytes": picture(n), "path": name and name.format(n)} for n in numbers]
    return {"_type": "Image"}, IMAGE, cells


def listed(lists: list, feature: Any = CLASS_LABELS) -> tuple:
    return feature, arrow.list_(arrow.int64()), lists


def value(dtype: str, values: list, kind: arrow.DataType | None = None) -> tuple:
    return {"dtype": dtype, "_type": "Value"}, kind or arrow.type_for_alias(dtype), values


LISTS = [[0], [1, 2], [], [0, 1, 2], None, [2, 2]]
NEGATIVE = [[1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1], [-1, -1, -1], [0, 0, 1]]
UNKNOWN = [[1, -1, -1], [-1, 1, 1], [-1, -1, -1], [1, 1, 1], [-1, -1, -1], [-1, -1, 1]]


@pytest.mark.parametrize("files", [1, 3])
def test_huggingface_one_split(tmp_path: Path, files: int) -> None:
    columns = {
        "image": embedded(range(6)),
        "labels": listed(LISTS),
        "width": value("int64", [8] * 6),
    }
    path = save(tmp_path / "data", columns, files=files)
    assert recognise(path) == "huggingface"
    table = read(path)
    assert table.names == ("cat", "dog", "bird")
    assert table.ids.tolist() == [f"{number:03d}.jpg" for number in range(6)]
    assert table.dense().tolist() == NEGATIVE
    assert table.splits is None
    assert held(table) == [picture(number) for number in range(6)]
    assert all(".arrow[" in path for path in table.paths)
    assert "not listed in column labels are read as negative; absent=unknown" in table.notes[0]
    assert table.notes[1:] == ("1 image without a list in column labels: all unknown",)
    unknown = read(path, absent="unknown")
    assert unknown.dense().tolist() == UNKNOWN
    assert len(unknown.notes) == 1
    refuses(path, "absent is one of negative, unknown, not 'none'", absent="none")


def test_huggingface_splits(tmp_path: Path) -> None:
    names = ["train", "validation", "test"]
    for first, name in enumerate(names):
        columns = {"image": embedded([2 * first, 2 * first + 1]), "labels": listed([[first], []])}
        save(tmp_path / name, columns)
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": names}))
    assert recognise(tmp_path) == "huggingface"
    table = read(tmp_path)
    assert table.splits.tolist() == [name for name in names for _ in range(2)]
    assert held(table) == [picture(number) for number in range(6)]
    assert table.dense()[[0, 2, 4]].tolist() == np.eye(3).astype(int).tolist()
    assert read(tmp_path / "test").ids.tolist() == ["004.jpg", "005.jpg"]
    assert read(
        save(tmp_path / "alone", {"image": embedded([1]), "labels": listed([[0]])}, split="val")
    ).splits.tolist() == ["validation"]


def test_huggingface_one_column_a_label(tmp_path: Path) -> None:
    columns = {
        "image": embedded(range(5)),
        "cat": (
            {"names": ["no", "yes"], "_type": "ClassLabel"},
            arrow.int64(),
            [1, 0, None, -1, 1],
        ),
        "dog": value("bool", [True, False, None, True, False], arrow.bool_()),
        "bird": value("int8", [1, 0, -1, None, 1]),
        "fish": value("float32", [1.0, 0.0, None, float("nan"), -1.0]),
        "caption": value("string", ["x"] * 5),
        "height": value("int64", [6] * 5),
        "cow": value("int64", [1, 0, -1, None, 0]),
    }
    path = save(tmp_path / "data", columns)
    table = read(path)
    assert table.names == ("cat", "dog", "bird", "fish")
    assert table.dense().tolist() == [
        [1, 1, 1, 1], [0, 0, 0, 0], [-1, -1, -1, -1], [-1, 1, -1, -1], [1, 0, 1, -1],
    ]  # fmt: skip
    assert table.notes == ("of the two classes no and yes, yes is the label",)
    for labels in ("cow, dog", ["cow", "dog"]):
        chosen = read(path, labels=labels)
        assert chosen.names == ("cow", "dog")
        assert chosen.dense().tolist() == [[1, 1], [0, 0], [-1, -1], [-1, 1], [0, 0]]
    refuses(
        path,
        "column height: 6 in data, row 0 is not a label",
        "5 rows are not",
        labels="height,dog",
    )
    with pytest.raises(ConfigError) as caught:
        read(path, labels="caption,donkey")
    assert "no column donkey; it has image, cat, dog" in str(caught.value)
    assert "column caption of" in str(caught.value)
    refuses(path, "image=dog", "no such column of images; it has image", image="dog")


def test_huggingface_words_and_older_layouts(tmp_path: Path) -> None:
    words = {"feature": {"dtype": "string", "_type": "Value"}, "_type": "List"}
    tags = (words, arrow.list_(arrow.string()), [["b", "ä"], None, ["a", "b"], []])
    path = save(tmp_path / "words", {"image": embedded(range(4)), "tags": tags})
    assert read(path).names == ("a", "b", "ä")
    assert read(path).dense().tolist() == [[0, 1, 1], [-1] * 3, [1, 1, 0], [0] * 3]
    older = {"feature": CLASS_LABELS["feature"], "length": -1, "id": None, "_type": "Sequence"}
    for number, feature in enumerate((older, [CLASS_LABELS["feature"]])):
        columns = {"image": embedded(range(6)), "labels": listed(LISTS, feature)}
        assert read(save(tmp_path / f"older {number}", columns)).dense().tolist() == NEGATIVE
    large = (CLASS_LABELS | {"_type": "LargeList"}, arrow.large_list(arrow.int64()), LISTS)
    wide = (
        {"_type": "Image"},
        arrow.struct({"bytes": arrow.large_binary(), "path": arrow.large_string()}),
        embedded(range(6))[2],
    )
    table = read(save(tmp_path / "large", {"picture": wide, "labels": large}))
    assert table.dense().tolist() == NEGATIVE
    assert held(table) == [picture(number) for number in range(6)]


def test_huggingface_images_by_path(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.jpg").write_bytes(picture(9))
    path = tmp_path / "data"
    cells = [
        {"bytes": None, "path": str(tmp_path / "elsewhere.jpg")},
        {"bytes": picture(2), "path": "inside.jpg"},
        {"bytes": None, "path": "beside.jpg"},
    ]
    save(path, {"image": ({"_type": "Image"}, IMAGE, cells), "labels": listed([[0], [1], [2]])})
    (path / "beside.jpg").write_bytes(picture(3))
    assert held(read(path)) == [picture(9), picture(2), picture(3)]


def test_huggingface_ids(tmp_path: Path) -> None:
    labels = listed([[0], [1]])
    for name in ("train", "test"):
        save(tmp_path / "same" / name, {"image": embedded([1, 2]), "labels": labels})
        save(tmp_path / "nameless" / name, {"image": embedded([1, 2], None), "labels": labels})
        columns = {
            "image": embedded([1, 2]),
            "image_id": value("int64", [70, 30]),
            "labels": labels,
        }
        save(tmp_path / "numbered" / name, columns)
    for name in ("same", "nameless", "numbered"):
        (tmp_path / name / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert read(tmp_path / "same").ids.tolist()[1:3] == ["train/002.jpg", "test/001.jpg"]
    assert read(tmp_path / "nameless").ids.tolist() == ["train-0", "train-1", "test-0", "test-1"]
    assert read(tmp_path / "nameless" / "test").ids.tolist() == ["0", "1"]
    assert read(tmp_path / "numbered").ids.tolist()[1:3] == ["train/30", "test/70"]
    assert read(tmp_path / "numbered" / "train").ids.tolist() == ["70", "30"]


def test_huggingface_refuses(tmp_path: Path) -> None:
    image, labels = embedded(range(2)), listed([[0], [1]])
    none = ({"_type": "Image"}, IMAGE, [None, {"bytes": None, "path": "https://example.org/a.jpg"}])
    refuses(
        save(tmp_path / "none", {"image": none, "labels": labels}),
        "1 rows have no image: row 0", "1 images are only addresses, such as https://example.org/a.jpg",
    )  # fmt: skip
    refuses(
        save(tmp_path / "outside", {"image": image, "labels": listed([[0], [3, -1]])}),
        "column labels: 2 labels",
        "not in 0 … 2: outside, row 1",
    )
    refuses(
        save(tmp_path / "text", {"image": image, "caption": value("string", ["a", "b"])}),
        "no column that is a list of class labels",
        "labels=",
        "caption",
    )
    refuses(save(tmp_path / "blind", {"labels": labels}), "has no column of images; it has labels")
    two = {"left": image, "right": embedded([3, 4]), "labels": labels}
    refuses(
        save(tmp_path / "two", two),
        "several columns of images (left, right): choose one with image=",
    )
    assert held(read(tmp_path / "two", image="right")) == [picture(3), picture(4)]
    refuses(
        save(tmp_path / "lists", {"image": image, "a": labels, "b": labels}),
        "several columns of label lists (a, b)",
    )
    assert read(tmp_path / "lists", labels="b").known == 6
    refuses(tmp_path / "lists", "is a list of labels; name it alone", labels="a,b")
    refuses(
        save(tmp_path / "empty", {"image": embedded([]), "labels": listed([])}), "holds no image"
    )


def test_huggingface_damaged_files(tmp_path: Path) -> None:
    columns = {"image": embedded(range(6)), "labels": listed(LISTS)}
    path = save(tmp_path / "data", columns)
    file = path / "data-00000-of-00001.arrow"
    whole = file.read_bytes()
    for content, sentence in (
        (whole[:-8], "cut off"),
        (whole[: len(whole) // 2], "cut off"),
        (b"", "cut off"),
        (b"no arrow" * 9, "cut off"),
    ):
        file.write_bytes(content)
        refuses(path, str(file), sentence)
    file.unlink()
    refuses(path, f"cannot read {file}")
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(
        json.dumps(state | {"_indices_data_files": [{"filename": "indices.arrow"}]})
    )
    refuses(path, "flatten_indices()")
    (path / "state.json").write_text("{")
    refuses(path, "cannot read", "state.json")


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("dataset_dict.json", [], "is not an object"),
        ("dataset_dict.json", {"splits": [1]}, "names no split"),
        ("train/state.json", [], "is not an object"),
        ("train/state.json", {"_data_files": ["x"]}, "names no data file"),
        ("train/state.json", {"_data_files": [{"filename": None}]}, "names no data file"),
        ("train/dataset_info.json", [], "is not an object"),
        ("train/dataset_info.json", {"features": ["image"]}, "features is not an object"),
        ("train/dataset_info.json", {"features": {"image": 5, "a": []}}, "no column of images"),
    ],
)  # fmt: skip
def test_huggingface_files_of_another_kind(
    tmp_path: Path, file: str, content: Any, sentence: str
) -> None:
    save(tmp_path / "train", {"image": embedded([1]), "labels": listed([[0]])})
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    (tmp_path / file).write_text(json.dumps(content))
    refuses(tmp_path, str(tmp_path / file) if "column" not in sentence else "", sentence)


def test_huggingface_numbers_without_names(tmp_path: Path) -> None:
    nameless = {"feature": {"_type": "ClassLabel"}, "_type": "List"}
    columns = {"image": embedded([1, 2]), "labels": listed([[3], [0, 2]], nameless)}
    assert read(save(tmp_path / "few", columns)).names == ("0", "1", "2", "3")
    columns["labels"] = listed([[10**12], [0]], nameless)
    refuses(save(tmp_path / "many", columns), "a label has the number 1000000000000", "no names")


def test_huggingface_compressed_batches_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "data", {"image": embedded(range(6)), "labels": listed(LISTS)})
    file = path / "data-00000-of-00001.arrow"
    table = arrow.ipc.open_stream(file.read_bytes()).read_all()
    options = arrow.ipc.IpcWriteOptions(compression="zstd")
    with (
        arrow.OSFile(str(file), "wb") as stream,
        arrow.ipc.new_stream(stream, table.schema, options=options) as writer,
    ):
        writer.write_table(table)
    refuses(path, f"{file} is compressed")


def test_huggingface_splits_that_do_not_fit(tmp_path: Path) -> None:
    other = {"feature": {"names": ["dog", "cat", "bird"], "_type": "ClassLabel"}, "_type": "List"}
    save(tmp_path / "train", {"image": embedded([1]), "labels": listed([[0]])})
    save(tmp_path / "test", {"image": embedded([2]), "labels": listed([[0]], other)})
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    refuses(tmp_path, "differ in the type of labels")
    save(tmp_path / "unsupervised", {"image": embedded([2]), "labels": listed([[0]])})
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "unsupervised"]}')
    refuses(tmp_path, "dataset_dict.json: unsupervised: the name says no split")
    (tmp_path / "train").rename(tmp_path / "mine")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["mine", "unsupervised"]}')
    refuses(tmp_path, "dataset_dict.json: mine, unsupervised: the name says no split")
    (tmp_path / "mine").rename(tmp_path / "train")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "gone"]}')
    refuses(tmp_path, "gone has no dataset_info.json")
    (tmp_path / "dataset_dict.json").write_text('{"splits": []}')
    refuses(tmp_path, "names no split")


def test_huggingface_as_the_library_itself_saves_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = picture_table(tmp_path / "pictures", 7)
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "labels": datasets.Sequence(datasets.ClassLabel(names=["cat", "dog", "bird"])),
            "seen": datasets.Value("bool"),
        }
    )
    lists = [*LISTS, [1]]
    rows = {
        "image": table.paths.tolist(),
        "labels": lists,
        "seen": [True, None, False] * 2 + [True],
    }
    saved = datasets.Dataset.from_dict(rows, features=features)
    saved.save_to_disk(tmp_path / "one", num_shards=3)
    chosen = saved.filter(lambda row: row["seen"] is not None)
    parts = {"train": chosen.select([3, 0]), "validation": chosen.select([1])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "several")
    one, several = read(tmp_path / "one"), read(tmp_path / "several")
    content = [Path(path).read_bytes() for path in table.paths]
    assert held(one) == content
    assert one.dense().tolist() == [*NEGATIVE, [0, 1, 0]]
    assert held(several) == [content[row] for row in (5, 0, 2)]
    assert several.dense().tolist() == [NEGATIVE[row] for row in (5, 0, 2)]
    assert several.splits.tolist() == ["train", "train", "validation"]
    seen = read(tmp_path / "one", labels="seen").dense()
    assert seen.ravel().tolist() == [1, -1, 0, 1, -1, 0, 1]
