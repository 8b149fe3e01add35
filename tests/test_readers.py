"""Readers: a path enters, a label table leaves, or one error that says everything."""

import functools
import io
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import csv, parquet

from builders import refuses, said
from partly.errors import ConfigError, DataError, LabelError, PartlyError
from partly.labels import CONVENTIONS, LabelTable
from partly.readers import FORMATS, describe, manifest, options_of, read, recognise

NAN = float("nan")


# Arrays


@pytest.fixture
def npz(tmp_path: Path) -> Callable[..., Path]:
    """Writes a data set of 5 + 3 rows and 10 labels in which some arrays are replaced; None
    leaves an array out."""

    def write(**replaced: Any) -> Path:
        generator = np.random.default_rng(0)
        arrays = {
            "X_train": generator.normal(size=(5, 4)).astype(np.float16),
            "Y_train": generator.integers(-1, 2, size=(5, 10)).astype(np.int8),
            "X_test": generator.normal(size=(3, 4)).astype(np.float16),
            "Y_test": generator.integers(0, 2, size=(3, 10)).astype(np.int8),
        }
        arrays = {k: v for k, v in {**arrays, **replaced}.items() if v is not None}
        np.savez(tmp_path / "data.npz", **arrays)
        return tmp_path / "data.npz"

    return write


def test_npz(npz: Callable[..., Path]) -> None:
    path = npz()
    table, arrays = read(str(path)), np.load(path)
    assert len(table) == 8
    assert table.names == tuple(f"label {column}" for column in range(10))
    assert len(set(table.ids)) == 8
    for split in ("train", "test"):
        part = table.part(split)
        assert part is not None
        assert (part.dense() == arrays[f"Y_{split}"]).all()
        assert (part.features == arrays[f"X_{split}"]).all()
    assert table.part("validation") is None


@pytest.mark.parametrize("key", ["names", "label_names"])
def test_npz_bit_packed_with_names(npz: Callable[..., Path], key: str) -> None:
    labels = np.random.default_rng(1).integers(0, 2, size=(5, 10)).astype(np.uint8)
    names = np.array([f"thing {column}" for column in range(10)])
    table = read(
        npz(Y_train=np.packbits(labels, axis=1), Y_test=np.ones((3, 10), np.uint8), **{key: names})
    )
    assert table.names == tuple(names)
    assert (table.dense()[:5] == labels).all()
    assert (table.dense()[5:] == 1).all()


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.uint8, bool])
def test_npz_labels_of_any_kind(npz: Callable[..., Path], dtype: Any) -> None:
    labels = np.arange(50).reshape(5, 10) % 3 == 0
    assert (read(npz(Y_train=labels.astype(dtype))).dense()[:5] == labels).all()


def test_npz_validation_and_ids(npz: Callable[..., Path]) -> None:
    table = read(
        npz(
            X_validation=np.ones((2, 4)),
            Y_validation=np.full((2, 10), -1),
            ids_train=np.array([9, 25, 30, 100012, 5]),
            ids_test=np.array(["a", "b", "c"]),
        )
    )
    parts = {split: table.part(split) for split in ("train", "validation", "test")}
    assert [len(part) for part in parts.values()] == [5, 2, 3]
    assert parts["train"].ids.tolist() == ["9", "25", "30", "100012", "5"]
    assert parts["test"].ids.tolist() == ["a", "b", "c"]
    assert parts["validation"].known == 0


@pytest.mark.parametrize("letter", ["Y", "E"])
def test_npz_of_half_a_part(npz: Callable[..., Path], letter: str) -> None:
    """Rows without labels are left out and said; labels without rows are a mistake."""
    entries = {"Y_train": None, "Y_test": None, "E_train": np.array([[0, 7]])}
    given = entries if letter == "E" else {"Y_test": None}
    table = read(npz(**given))
    assert table.notes == (f"X_test has no {letter}_test beside it and is left out",)
    assert len(table) == 5
    labels = np.array([[0, 1]]) if letter == "E" else np.ones((3, 10), int)
    given = {**given, "X_test": None, f"{letter}_test": labels}
    refuses(npz(**given), f"has {letter}_test and no X_test: there are labels of no rows")


def test_npz_of_entries(npz: Callable[..., Path]) -> None:
    entries = np.array([[0, 7, 1], [4, 2, 0], [0, 3, 1]])
    path = npz(Y_train=None, Y_test=None, E_train=entries, E_test=np.array([[2, 9]]))
    table = read(path)
    expected = np.full((8, 10), -1)
    expected[[0, 4, 0, 7], [7, 2, 3, 9]] = [1, 0, 1, 1]
    assert (table.dense() == expected).all()
    assert table.splits.tolist() == ["train"] * 5 + ["test"] * 3
    named = npz(Y_train=None, Y_test=None, E_train=entries, names=np.array(list("abcdefghijkl")))
    assert read(named).names == tuple("abcdefghijkl")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"E_train": np.zeros((2, 4), int)}, "E_train is int64 of shape (2, 4)"),
        ({"E_train": np.zeros((2, 2))}, "E_train is float64"),
        ({"E_train": np.array([[5, 0]])}, "E_train has rows outside 0 … 4"),
        ({"E_train": np.array([[0, 0]]), "Y_test": np.zeros((3, 10))}, "Y_test stands beside"),
        ({"E_train": np.array([[0, 0, 2]])}, "a known label is 1 or 0"),
        (
            {
                "E_train": np.array([[0, 0]]),
                "E_test": np.array([[0, 0]]),
                "X_test": np.ones((3, 9)),
            },
            "the parts have different numbers of features: X_train 4, X_test 9",
        ),
        ({"E_train": np.array([[0, 0]]), "ids_train": np.array(["a"])}, "ids_train has shape (1,)"),
    ],
)
def test_npz_of_entries_refuses(npz: Callable[..., Path], given: dict, sentence: str) -> None:
    refuses(npz(**({"Y_train": None, "Y_test": None} | given)), sentence)


def test_npz_with_one_part_only(npz: Callable[..., Path]) -> None:
    assert len(read(npz(X_test=None, Y_test=None))) == 5
    assert read(npz(X_train=None, Y_train=None)).splits.tolist() == ["test"] * 3


@pytest.mark.parametrize(
    ("replaced", "sentences"),
    [
        ({"X_train": None, "X_test": None}, ["no X_train and Y_train", "Y_train, Y_test"]),
        ({"Y_test": np.zeros((3, 9))}, ["different numbers of labels", "9", "10"]),
        ({"Y_train": np.zeros((4, 10))}, ["Y_train has 4 rows, X_train has 5"]),
        ({"Y_train": np.zeros(5)}, ["Y_train", "(5,)"]),
        ({"X_test": np.zeros((3, 5))}, ["different numbers of features: X_train 4, X_test 5"]),
        ({"X_train": np.zeros((5, 2, 2))}, ["not two dimensions", "(5, 2, 2)"]),
        ({"names": np.array(["a", "b", "c"])}, ["10 columns for 3 names"]),
        ({"names": np.array(["same"] * 10)}, ["label names occur more than once: same"]),
        ({"ids_train": np.array([1, 2, 3, 4, 4])}, ["image ids occur more than once: 4"]),
        ({"ids_train": np.arange(4), "ids_test": np.arange(4, 8)}, ["ids_train"]),
        ({"X_test": np.array([[0, 0, 0, NAN]] * 3)}, ["not finite", "test-0"]),
        ({"X_train": np.full((5, 4), "text")}, ["X_train"]),
        ({"X_train": np.zeros(())}, ["X_train"]),
        ({"names": np.array("cat")}, ["names"]),
        ({"Y_train": np.full((5, 10), "x")}, ["labels are not numbers"]),
        ({"Y_train": np.array([[{}] * 10] * 5)}, ["cannot read"]),
    ],
)
def test_npz_refuses(npz: Callable[..., Path], replaced: dict, sentences: list[str]) -> None:
    refuses(npz(**replaced), *sentences)


@pytest.mark.parametrize("dtype", [np.int8, np.float32])
def test_npz_names_the_cell_of_a_label_2(npz: Callable[..., Path], dtype: Any) -> None:
    labels, names = np.zeros((3, 10), dtype), np.array([f"thing {j}" for j in range(10)])
    labels[1, 7] = 2
    refuses(npz(Y_test=labels), "Y_test: label values", "row 1, column 7: 2")
    refuses(npz(Y_test=labels, names=names), "Y_test: label values", "row 1, column thing 7: 2")


def test_npz_nan_is_not_a_label(npz: Callable[..., Path]) -> None:
    labels = np.zeros((5, 10))
    labels[4, 0] = NAN
    refuses(npz(Y_train=labels), "Y_train: ", "row 4, column 0", "NaN")


def test_npz_reports_the_labels_of_all_parts_at_once(npz: Callable[..., Path]) -> None:
    replaced = {"Y_train": np.full((5, 10), 2.0), "Y_test": np.full((3, 10), 3.0)}
    refuses(npz(**replaced), "Y_train", "Y_test")


def an_npy(path: Path) -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


def with_broken_compression(path: Path) -> bytes:
    content = bytearray(path.read_bytes())
    name_and_extra = int.from_bytes(content[26:28], "little") + int.from_bytes(
        content[28:30], "little"
    )
    content[30 + name_and_extra] ^= 0xFF  # the first compressed byte
    return bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: b"",
        lambda path: b"no zip at all",
        lambda path: path.read_bytes()[:300],
        lambda path: path.read_bytes()[:-300],
        an_npy,
        with_broken_compression,
    ],
)
def test_what_is_no_npz(tmp_path: Path, damage: Callable[[Path], bytes]) -> None:
    path = tmp_path / "broken.npz"
    features = np.random.default_rng(0).normal(size=(50, 40))
    np.savez_compressed(path, X_train=features, Y_train=np.ones((50, 3)))
    path.write_bytes(damage(path))
    refuses(path, f"cannot read {path}")


def test_npz_reads_the_shared_coco_features(coco_features: Path) -> None:
    table = read(coco_features)
    train, test = table.part("train"), table.part("test")
    assert (len(train), len(test), len(table.names)) == (82_081, 17_592, 80)
    assert train.names[0] == "person"
    assert train.known == 82_081 * 80
    assert train.counts_by_image().positive.min() == 1
    assert train.features.shape == (82_081, 256)


# Manifests


def as_csv(folder: Path, columns: dict[str, list]) -> Path:
    def cell(value: object) -> str:
        text = "" if value is None else str(value)
        return f'"{text}"' if "," in text else text

    lines = [columns.keys(), *zip(*columns.values(), strict=True)]
    text = "\n".join(",".join(map(cell, line)) for line in lines) + "\n"
    (folder / "data.csv").write_text(text, encoding="utf-8")
    return folder / "data.csv"


def as_parquet(folder: Path, columns: dict[str, list]) -> Path:
    parquet.write_table(arrow.table(columns), folder / "data.parquet")
    return folder / "data.parquet"


BOTH = pytest.mark.parametrize("write", [as_csv, as_parquet])


@BOTH
@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([1, 0, -1, None], [1, 0, -1, -1]),
        ([1.0, 0.0, -1.0, None], [1, 0, -1, -1]),
        ([True, False, None, True], [1, 0, -1, 1]),
        (["1", "0", "-1", ""], [1, 0, -1, -1]),
        ([" 1", "0 ", "  ", " true "], [1, 0, -1, 1]),
        (["TRUE", "False", "true", "false"], [1, 0, 1, 0]),
        ([None, None, None, None], [-1, -1, -1, -1]),
    ],
)
def test_what_a_cell_means(
    tmp_path: Path, write: Callable[..., Path], cells: list, expected: list[int]
) -> None:
    paths = [f"{letter}.jpg" for letter in "abcd"]
    table = read(write(tmp_path, {"path": paths, "cat": cells, "dog": [1, 1, 0, 0]}))
    assert table.names == ("cat", "dog")
    assert table.dense().tolist() == [list(row) for row in zip(expected, [1, 1, 0, 0], strict=True)]
    assert table.ids.tolist() == paths
    assert table.paths.tolist() == [str(tmp_path / path) for path in paths]
    assert table.splits is None


@BOTH
@pytest.mark.parametrize("path_column", ["path", "image", "file", "filename"])
def test_manifest_with_ids_and_splits(
    tmp_path: Path, write: Callable[..., Path], path_column: str
) -> None:
    columns = {
        "cat": [1, 0, None],
        "split": ["train", "test", "validation"],
        path_column: ["pictures/a, b.jpg", "/elsewhere/ä.png", "c.jpg"],
        "id": [7, 30, 200],
        "dog, or wolf": [0, 1, 1],
    }
    table = read(write(tmp_path, columns))
    assert table.names == ("cat", "dog, or wolf")
    assert table.ids.tolist() == ["7", "30", "200"]
    assert table.splits.tolist() == ["train", "test", "validation"]
    assert table.paths[0] == str(tmp_path / "pictures/a, b.jpg")
    assert table.paths[1] == "/elsewhere/ä.png"
    assert table.dense().tolist() == [[1, 0], [0, 1], [-1, 1]]


def written(folder: Path, text: str | bytes, name: str = "data.csv") -> Path:
    content = text.encode() if isinstance(text, str) else text
    (folder / name).write_bytes(content)
    return folder / name


def same_labels(one: LabelTable, other: LabelTable) -> bool:
    return one.content_hash == other.content_hash


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffpath,cat,dog\na.jpg,1,\nb.jpg,0,true\n",
        "path,cat,dog\r\na.jpg,1,\r\nb.jpg,0,true\r\n",
        "path,cat,dog\na.jpg,1,\nb.jpg,0,true",
        '"path","cat","dog"\n"a.jpg","1",""\n"b.jpg","0","true"\n',
        "path,cat,dog\na.jpg, 1 , \nb.jpg, 0, TRUE\n\n",
    ],
)
def test_csv_as_programs_write_it(tmp_path: Path, text: str) -> None:
    plain = written(tmp_path, "path,cat,dog\na.jpg,1,-1\nb.jpg,0,1\n", "plain.csv")
    assert same_labels(read(written(tmp_path, text)), read(plain))


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_csv_ids_stay_as_they_are_written(tmp_path: Path, mark: str) -> None:
    text = f"{mark}id,path,cat,dog\n007,1.0,1,0\n1e3,2020-01-01,0,1\n"
    table = read(written(tmp_path, text))
    assert table.ids.tolist() == ["007", "1e3"]
    assert table.paths.tolist() == [str(tmp_path / "1.0"), str(tmp_path / "2020-01-01")]


def test_a_folder_with_a_manifest(tmp_path: Path) -> None:
    written(tmp_path, "path,cat,dog\na.jpg,1,0\n", "manifest.csv")
    table = read(tmp_path)
    assert table.paths.tolist() == [str(tmp_path / "a.jpg")]
    assert same_labels(table, read(tmp_path / "manifest.csv"))


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("name,cat\na,1\n", ["no column with image paths", "path, image, file, filename", "cat"]),
        ("path,id\na,1\n", ["no label column"]),
        ("path,cat,dog,cat\na,1,0,1\n", ["columns of the same name: cat"]),
        ("path,cat,dog\na,1,0\nb,maybe,1\n", ["line 3, column cat: 'maybe'"]),
        ("path,cat,dog\na,1,0\nb,1,2\n", ["line 3, column dog: '2'"]),
        ("path,cat,dog\na,1,0\n\nb,maybe,1\n", ["line 4, column cat: 'maybe'"]),
        ("path,cat,dog\na,1,0\nb,maybe,yes\n", ["1 cell of this column is not"]),
        (
            "path,cat,dog\na,1,0\n\na,1,1\n",
            ["1 label is given", "image a, label dog: positive in line 4, negative in line 2"],
        ),
        (
            "path,id,cat,dog\na,7,1,0\nb,7,1,1\n",
            ["1 image occurs more than once", "another path: 7 (line 2: a, line 3: b)"],
        ),
        (
            "path,split,cat,dog\na,train,1,0\nb,test,1,0\na,Val,1,0\n",
            ["1 image occurs more than once", "split: a (line 2: train, line 4: validation)"],
        ),
        ("path,split,cat,dog\na,tset,1,0\n", ["train, validation, test, not 'tset' (line 2)"]),
        ("path,split,cat,dog\na,,1,0\n", ["train, validation, test, not '' (line 2)"]),
        ("path,cat,dog\na,1,0\n,1,1\n", ["no image path in", "line 3"]),
        ("path,cat,\na,1,0\n", ["label name number 1 is empty"]),
        ("path,cat\na,yes\nb,NA\nc,no\nd,NA\n", ["4 cells of this column are not: yes, NA, no"]),
        ("path,cat,dog\n", ["header but no image"]),
        ("path,cat,dog\na,1\n", ["3 columns, but line 2 has 2 cells (a,1)"]),
        ("path,cat,dog\n\na,1,0\nb,1,0,\nc,1\n", ["line 4 has 4 cells", "line 5 has 2 cells"]),
        ("path,id,cat,dog\na,,1,0\n", ["no image id in", "line 2"]),
        ("", ["cannot read"]),
        ("path,cat,dog\nä,1,0\n".encode("latin-1"), ["cannot read", "save it as CSV in UTF-8"]),
        # so far that the header's buffer does not hold it
        ("path,cat\n{}ä,1\n".format("a,1\n" * 9000).encode("latin-1"), ["save it as CSV in UTF-8"]),
        ("path;cat;dog\na;1;0\n", ["no column with image paths", "path;cat;dog"]),
        ("path;cat;dog\na;1;0\n", ["separated by semicolons: save it with commas"]),
        ("path\tcat\na\t1\n", ["separated by tabs: save it with commas"]),
    ],
)
def test_csv_refuses(tmp_path: Path, text: str | bytes, sentences: list[str]) -> None:
    path = written(tmp_path, text)
    refuses(path, *sentences, str(path))


def test_no_function_of_ours_is_left_with_a_thread_of_pyarrow(tmp_path, monkeypatch) -> None:
    """One that still holds it when the interpreter ends aborts the process: now and then only, so
    that what is looked at is who is given one."""
    read_csv, alone = csv.read_csv, []

    def spy(*arguments: Any, **named: Any) -> Any:
        given = [*arguments, *named.values()]
        if any(getattr(one, "invalid_row_handler", None) for one in given):
            alone.append(any(getattr(one, "use_threads", True) is False for one in given))
        return read_csv(*arguments, **named)

    monkeypatch.setattr(csv, "read_csv", spy)
    for text in ("path,cat,dog\n", "path;cat;dog\n", "path,cat,dog\na,1,0\n"):
        with suppress(PartlyError):
            read(written(tmp_path, text))
    assert not alone
    refuses(written(tmp_path, "path,cat,dog\na,1,0\n   \nb,1\n"), "line 4 has 2 cells")
    assert alone == [True]


def test_csv_reports_everything_at_once(tmp_path: Path) -> None:
    lines = ["path,split,cat,dog", "a,train,maybe,1", "a,tset,1,yes", ",test,0,no"]
    refuses(
        written(tmp_path, "\n".join(lines) + "\n"),
        "line 2, column cat: 'maybe'",
        "line 3, column dog: 'yes'",
        "2 cells of this column",
        "no image path in",
        "data.csv, line 4",
        "another split: a (line 2: train, line 3: tset)",
        "not 'tset'",
    )


def test_parquet_refuses(tmp_path: Path) -> None:
    columns = {"path": ["a", "b"], "cat": ["1", "maybe"], "dog": [0.5, 1.0]}
    refuses(as_parquet(tmp_path, columns), "data.parquet", "column cat: 'maybe'", "dog: '0.5'")
    refuses(as_parquet(tmp_path, {"cat": [1]}), "no column with image paths")
    refuses(written(tmp_path, b"PAR1 no", "data.parquet"), "cannot read")


@BOTH
def test_rows_of_one_image_are_put_together(tmp_path: Path, write: Callable[..., Path]) -> None:
    columns = {
        "path": ["a", "b", "a", "c", "a", "b"],
        "split": ["train", "val", "TRAIN", "Testing", "training", "valid"],
        "cat": [1, 0, None, None, 1, None],
        "dog": [None, None, 0, None, None, None],
    }
    table = read(write(tmp_path, columns))
    assert table.ids.tolist() == ["a", "b", "c"]
    assert table.splits.tolist() == ["train", "validation", "test"]
    assert table.dense().tolist() == [[1, 0], [0, -1], [-1, -1]]
    assert table.notes == ("3 rows of images that an earlier row is about: merged with that row",)


def test_rows_of_one_image_with_ids(tmp_path: Path) -> None:
    text = "id,path,cat,dog\n1,a,1,\n2,a,0,\n1,a,,0\n"
    table = read(written(tmp_path, text))
    assert table.ids.tolist() == ["1", "2"]
    assert table.paths.tolist() == [str(tmp_path / "a")] * 2
    assert table.dense().tolist() == [[1, 0], [0, -1]]
    assert "1 row of" in table.notes[0]


def test_all_contradictions_of_a_wide_manifest_are_counted(tmp_path: Path) -> None:
    rows = [f"{image},{value},1" for value in (1, 0) for image in "abcdefg"]
    error = refuses(
        written(tmp_path, "\n".join(["path,cat,dog", *rows]) + "\n"),
        "7 labels are given as positive and as negative",
        "image a, label cat: positive in line 2, negative in line 9",
        "and 2 more",
    )
    assert isinstance(error, LabelError)


LONG = {
    "image": ["b.jpg", "a.jpg", "b.jpg", "c.jpg", "a.jpg", "b.jpg"],
    "label": ["dog", "cat", "cat", "", "owl", "cat"],
    "value": [1, 0, 1, None, None, 1],
}


@BOTH
def test_the_long_form(tmp_path: Path, write: Callable[..., Path]) -> None:
    table = read(write(tmp_path, LONG))
    assert table.names == ("dog", "cat", "owl")
    assert table.ids.tolist() == ["b.jpg", "a.jpg", "c.jpg"]
    assert table.paths.tolist() == [str(tmp_path / name) for name in table.ids]
    assert table.dense().tolist() == [[1, 1, -1], [-1, 0, -1], [-1, -1, -1]]
    assert table.splits is None
    assert table.notes == ("1 row with a label that an earlier row gives: merged with that row",)


@BOTH
def test_the_long_form_says_the_same_as_the_wide(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    labels = np.random.default_rng(0).integers(-1, 2, size=(40, 6))
    names, paths = [f"thing {j}" for j in range(6)], [f"ä {i}.jpg" for i in range(40)]
    splits = ["train", "validation", "test", "train"] * 10
    ids = [f"{i:03d}" for i in range(40)]
    wide = {"path": paths, "id": ids, "split": splits}
    wide |= {name: labels[:, j].tolist() for j, name in enumerate(names)}
    cells = [(i, j) for i in range(40) for j in range(6)]
    long = {
        "value": [int(labels[cell]) for cell in cells],
        "filename": [paths[i] for i, _ in cells],
        "split": [splits[i] for i, _ in cells],
        "label": [names[j] for _, j in cells],
        "id": [ids[i] for i, _ in cells],
    }
    one = read(write(tmp_path, wide))
    other = read(write(tmp_path, long))
    assert same_labels(one, other)
    assert one.splits.tolist() == other.splits.tolist() == splits
    assert one.paths.tolist() == other.paths.tolist()
    assert other.notes == ()


def test_the_long_form_as_programs_write_it(tmp_path: Path) -> None:
    text = (
        "\ufeffimage, label ,value\r\n"
        "\r\n"
        " a.jpg,café , 1\r\n"
        "   \r\n"
        '"a.jpg","dog, or wolf","FALSE"\r\n'
        "b.jpg, café,-1\r\n"
        "\r\n"
    )
    table = read(written(tmp_path, text))
    assert table.names == ("café", "dog, or wolf")
    assert table.ids.tolist() == ["a.jpg", "b.jpg"]
    assert table.dense().tolist() == [[1, 0], [-1, -1]]
    signed = read(tmp_path / "data.csv", convention="signed")
    assert signed.dense().tolist() == [[1, 0], [0, -1]]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (
            "image,label,value\na,cat,1\n\nb,cat,1\na,cat,\na,cat,0\n",
            ["1 label is given", "image a, label cat: positive in line 2, negative in line 6"],
        ),
        ("image,label,value\na,cat,maybe\n", ["line 2, column value: 'maybe' is not a label"]),
        ("image,label,value\na,cat,1\n\na,,1\n", ["a value but no label in", "line 4"]),
        ("image,label,value\na,,\n", ["names no label"]),
        ("image,label,value\n", ["header but no image"]),
        ("image,label,value\n,cat,1\n", ["no image path in", "line 2"]),
        (
            "image,split,label,value\na,train,cat,1\na,test,dog,1\n",
            ["1 image occurs", "split: a (line 2: train, line 3: test)"],
        ),
        (
            "image,id,label,value\na,7,cat,1\nb,7,dog,1\n",
            ["1 image occurs", "path: 7 (line 2: a, line 3: b)"],
        ),
    ],
)
def test_the_long_form_refuses(tmp_path: Path, text: str, sentences: list[str]) -> None:
    path = written(tmp_path, text)
    refuses(path, *sentences, str(path))


def test_a_list_of_images_and_labels_is_of_known_positives(tmp_path: Path) -> None:
    table = read(
        written(tmp_path, "path,label\na.jpg,cat\na.jpg,dog\nb.jpg,cat\nc.jpg,\na.jpg,cat\n")
    )
    assert table.names == ("cat", "dog")
    assert table.dense().tolist() == [[1, 1], [1, -1], [-1, -1]]
    assert said(table, "no column value: each row is a known positive")
    assert said(table, "1 row with a label that an earlier row gives")


def test_a_column_called_label_may_hold_values(tmp_path: Path) -> None:
    table = read(written(tmp_path, "path,label\na.jpg,1\nb.jpg,0\nc.jpg,\n"))
    assert table.names == ("label",)
    assert table.dense().tolist() == [[1], [0], [-1]]
    refuses(written(tmp_path, "path,label\na.jpg,1\nb.jpg,maybe\n"), "'maybe' is not a label")


def test_contradictions_of_a_long_parquet_name_its_rows(tmp_path: Path) -> None:
    columns = {"image": ["a", "a"], "label": ["cat", "cat"], "value": [0.0, 1.0]}
    error = refuses(as_parquet(tmp_path, columns), "positive in row 1, negative in row 0")
    assert isinstance(error, LabelError)


def test_more_columns_than_the_long_form_has(tmp_path: Path) -> None:
    path = written(tmp_path, "path,label,value,source\na,cat,1,crowd\n")
    refuses(path, f"{path}: the long form has no other column: source")
    table = read(written(tmp_path, "path,label,cat\na,1,0\n"))
    assert table.names == ("label", "cat")


@pytest.mark.parametrize("header", ["Path,ID,Split", "IMAGE,Id,SPLIT", "FileName,id,split"])
def test_the_case_of_headers(tmp_path: Path, header: str) -> None:
    table = read(written(tmp_path, f"{header},Cat,dog\na.jpg,7,test,1,0\n"))
    assert table.names == ("Cat", "dog")
    assert table.ids.tolist() == ["7"]
    assert table.splits.tolist() == ["test"]
    assert table.paths.tolist() == [str(tmp_path / "a.jpg")]


def test_a_label_may_be_called_like_a_column_in_another_case(tmp_path: Path) -> None:
    table = read(written(tmp_path, "Image,path,id,ID\n1,a.jpg,7,0\n"))
    assert table.names == ("Image", "ID")
    assert table.dense().tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("https://example.org/a.jpg", "is an address"),
        ("~/a.jpg", "write the whole path"),
        pytest.param(
            "images\\a.jpg", "between folders", marks=pytest.mark.skipif(os.sep != "/", reason="")
        ),
    ],
)
def test_what_can_be_no_path(tmp_path: Path, cell: str, sentence: str) -> None:
    path = written(tmp_path, f"path,cat,dog\na.jpg,1,0\n\n{cell},1,0\n")
    refuses(path, f"{path}, line 4: the path {cell}", sentence)


def test_a_folder_with_a_parquet_manifest(tmp_path: Path) -> None:
    parquet.write_table(arrow.table(LONG), tmp_path / "manifest.parquet")
    assert len(read(tmp_path)) == 3


def test_parquet_with_categories_of_pandas(tmp_path: Path) -> None:
    """Categories come sorted, some of them unused, and codes are as narrow as they can be."""
    images = arrow.DictionaryArray.from_arrays(
        arrow.array([2, 0, 2, None], arrow.int8()), ["a.jpg", "unused.jpg", "b.jpg"]
    )
    columns = {"path": images, "cat": [1, 0, 1, 1], "dog": [None, 1, 0, 1]}
    parquet.write_table(arrow.table(columns), tmp_path / "data.parquet")
    refuses(tmp_path / "data.parquet", "no image path in", "row 3")
    parquet.write_table(arrow.table(columns).slice(0, 3), tmp_path / "data.parquet")
    table = read(tmp_path / "data.parquet")
    assert table.ids.tolist() == ["b.jpg", "a.jpg"]
    assert table.dense().tolist() == [[1, 0], [0, 1]]


def test_lines_are_counted_where_a_cell_has_several(tmp_path: Path) -> None:
    text = 'path,cat,dog\n"a\nb",1,0\nc,maybe,1\n'
    refuses(written(tmp_path, text), "line 4, column cat: 'maybe'")


@pytest.mark.parametrize(
    "text", ["path,cat,dog\na,1,0\na,,1\n", "path,label,value\na,cat,1\na,,\n"]
)
def test_each_image_of_a_manifest_is_predicted_once(tmp_path: Path, text: str) -> None:
    ids, paths = manifest.read_paths(written(tmp_path, text))
    assert ids.tolist() == ["a"]
    assert paths.tolist() == [str(tmp_path / "a")]


def test_paths_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "path,cat,dog\na,1,0\n/b,1,0\n")
    monkeypatch.chdir(tmp_path)
    assert read("data.csv").paths.tolist() == ["a", "/b"]


# Any path


def test_nothing_there(tmp_path: Path) -> None:
    for name in ("data.csv", "data.npz", "folder"):
        with pytest.raises(DataError, match=f"no data at .*{name}"):
            read(tmp_path / name)


def test_no_known_format(tmp_path: Path) -> None:
    for path in (tmp_path, written(tmp_path, "path,cat\n", "data.xlsx")):
        refuses(path, str(path), "no known format", "manifest", "npz")


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    path = written(tmp_path, "path,cat,dog\na,1,0\n", "labels.txt")
    assert read(path, format="manifest").names == ("cat", "dog")
    with pytest.raises(ConfigError, match=r"unknown format 'csv'; choose one of .*manifest"):
        read(path, format="csv")
    with pytest.raises(DataError, match="cannot read"):
        read(path, format="npz")
    np.savez(tmp_path / "data.npz", X_train=np.ones((2, 3)))
    sentences = (
        "data.npz is not JSON in UTF-8 (invalid",
        "is the format right?",
    )
    refuses(tmp_path / "data.npz", *sentences, format="coco")


@pytest.mark.parametrize(
    ("convention", "expected"),
    [("signed", [[1, 0], [-1, 1]]), ("partly", [[1, -1], [0, 1]])],
)
def test_the_convention_is_said_and_not_guessed(
    tmp_path: Path, convention: str, expected: list
) -> None:
    np.savez(tmp_path / "a.npz", X_train=np.ones((2, 1)), Y_train=np.array([[1, -1], [0, 1]]))
    (tmp_path / "a.csv").write_text("path,cat,dog\na,1,-1\nb,0,1\n")
    for name in ("a.npz", "a.csv"):
        table = read(tmp_path / name, convention=convention)
        assert table.dense().tolist() == expected


def test_nan_is_unknown_where_that_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X_train=np.ones((1, 1)), Y_train=np.array([[1, NAN]]))
    assert read(tmp_path / "a.npz", convention="nan").dense().tolist() == [[1, -1]]
    with pytest.raises(PartlyError, match="NaN is accepted"):
        read(tmp_path / "a.npz")
    with pytest.raises(PartlyError, match="convention is one of partly, nan, signed, not 'nun'"):
        read(tmp_path / "a.npz", convention="nun")


# Options


@pytest.mark.parametrize("name", FORMATS)
def test_a_number_is_text_where_text_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """`--read images=2017` comes as a number, and so does `--read year=2014`."""
    got: dict[str, Any] = {}

    @functools.wraps(FORMATS[name].read)
    def notice(path: Path, **options: Any) -> LabelTable:
        got.update(options)
        return LabelTable.from_dense([[1, 0]])

    monkeypatch.setattr(FORMATS[name], "read", notice)
    defaults = options_of(name)
    read(tmp_path, format=name, **dict.fromkeys(defaults, 2017))
    numbers = {"year", "certainty"} | ({"labels"} if name == "lists" else set())
    assert got == {option: 2017 if option in numbers else "2017" for option in defaults}


@pytest.mark.parametrize("name", FORMATS)
def test_every_option_is_described(name: str) -> None:
    text, defaults = describe(name), options_of(name)
    assert text.count("Defaults: ") == bool(defaults)
    for option, value in defaults.items():
        shown = "" if value is None else value
        assert f"{option}={shown}" in text.split("Defaults: ")[1]
        described = text.split("Options: ")[1].split("Defaults: ")[0]
        assert re.search(rf"\b{option}\b", described), f"{name} does not say what {option} is"


@pytest.mark.parametrize("name", ["manifest", "npz"])
def test_every_convention_is_described(name: str) -> None:
    described = describe(name).split("Options: ")[1]
    assert all(f"{convention}, " in described for convention in CONVENTIONS)


def test_two_data_sets_in_one_folder(tmp_path: Path) -> None:
    annotations = tmp_path / "annotations"
    annotations.mkdir()
    (annotations / "instances_train2017.json").write_text("{}")
    written(tmp_path, "path,cat,dog\na,1,0\n", "manifest.csv")
    assert recognise(tmp_path) == "coco"  # a manifest gives way
    (annotations / "lvis_v1_train.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds coco and lvis: choose with --format"):
        recognise(tmp_path)
    assert recognise(annotations / "lvis_v1_train.json") == "lvis"
    (tmp_path / "dataset_dict.json").write_text("{}")
    assert recognise(tmp_path) == "huggingface"  # of this nobody can doubt


def test_columns_that_are_no_labels_are_ignored(tmp_path: Path) -> None:
    file = written(tmp_path, "path,width,cat,note\na.jpg,640,1,hello\nb.jpg,480,0,\n")
    table = read(file, ignore="width, note")
    assert table.names == ("cat",)
    assert table.dense().tolist() == [[1], [0]]
    with pytest.raises(PartlyError, match="no column height to ignore"):
        read(file, ignore="height")


def test_images_without_labels_are_told_from_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    with pytest.raises(PartlyError, match="holds images but no labels"):
        read(tmp_path)
