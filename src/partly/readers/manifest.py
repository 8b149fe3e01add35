"""A CSV or Parquet file with one row an image and one column a label.

Columns: `path` (or `image`, `file`, `filename`) relative to the file, optional `id` and `split`
(train, validation, test), and every other column is a label: 1 positive, 0 negative, empty or -1
unknown (or what the convention says). true and false are understood as 1 and 0.
"""

from pathlib import Path
from typing import Any

import numpy as np

from partly.errors import DataError, LabelError, first_few, raise_if
from partly.labels import CONVENTIONS, NEGATIVE, POSITIVE, UNKNOWN, LabelTable
from partly.readers.common import choose, read_columns

PATH_COLUMNS = ("path", "image", "file", "filename")


def recognises(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".parquet") or (path / "manifest.csv").is_file()


def read(path: Path, convention: str = "partly") -> LabelTable:
    """The manifest's label table."""
    file, columns, path_column = _open(path)
    names = [name for name in columns if name not in (path_column, "id", "split")]
    if not names:
        raise DataError(f"{file} has no label column beside {path_column}")
    relative = _texts(columns[path_column])
    problems = _path_problems(file, relative)
    if not len(relative):
        raise DataError(problems)
    labels = np.full((len(relative), len(names)), UNKNOWN, dtype=np.int8)
    for column, name in enumerate(names):
        values, strange = _label_column(columns[name], _words(convention))
        labels[:, column] = values
        if strange:
            row = next(iter(strange))
            problems.append(
                f"{_place(file, row)}, column {name}: '{strange[row]}' is not a label "
                f"(1, 0, or empty for unknown); {len(strange)} cells of this column are not"
            )
    try:
        table = LabelTable.from_dense(
            labels,
            ids=_texts(columns["id"]) if "id" in columns else relative,
            names=names,
            paths=np.array([str(file.parent / name) for name in relative]),
            splits=_texts(columns["split"]) if "split" in columns else None,
        )
    except LabelError as error:
        problems += error.problems
    raise_if(problems, DataError)
    return table


def read_paths(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(ids, paths) of every image of a manifest, labelled or not."""
    file, columns, path_column = _open(path)
    relative = _texts(columns[path_column])
    raise_if(_path_problems(file, relative), DataError)
    ids = _texts(columns["id"]) if "id" in columns else relative
    return ids, np.array([str(file.parent / name) for name in relative])


def _open(path: Path) -> tuple[Path, dict[str, Any], str]:
    """The file, its columns, and which of them holds the images' paths."""
    file = path / "manifest.csv" if path.is_dir() else path
    columns = read_columns(file)
    for name in PATH_COLUMNS:
        if name in columns:
            return file, columns, name
    raise DataError(
        f"{file} has no column with image paths: name one of its columns "
        f"{', '.join(PATH_COLUMNS)} (it has {first_few(list(columns))})"
    )


def _words(convention: str) -> dict[str, int]:
    """What the text of a cell means."""
    meaning = CONVENTIONS[choose(convention, "convention", tuple(CONVENTIONS))]
    words = {"": UNKNOWN, "true": POSITIVE, "false": NEGATIVE}
    for number in (1, 0, -1):
        words[str(number)] = words[f"{number}.0"] = meaning[number]
    return words | ({"nan": UNKNOWN} if convention == "nan" else {})


def _path_problems(file: Path, relative: np.ndarray) -> list[str]:
    if not len(relative):
        return [f"{file} has a header but no image"]
    empty = [_place(file, int(row)) for row in np.flatnonzero(relative == "")[:5]]
    return [f"no image path in {first_few(empty)}"] if empty else []


def _place(file: Path, row: int) -> str:
    """Where a row stands: the line of a CSV (blank lines counted), the row of a Parquet file."""
    if file.suffix.lower() == ".parquet":
        return f"{file}, row {row}"
    lines = file.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    filled = [number for number, line in enumerate(lines, start=1) if line.strip()]
    return f"{file}, line {filled[row + 1] if row + 1 < len(filled) else row + 2}"


def _texts(column: Any) -> np.ndarray:
    return np.array(["" if text is None else str(text) for text in column.to_pylist()], dtype=str)


def _label_column(column: Any, words: dict[str, int]) -> tuple[np.ndarray, dict[int, str]]:
    """The labels of a column, and by row the cells that are none."""
    cells, where = np.unique(np.char.lower(np.char.strip(_texts(column))), return_inverse=True)
    known = np.array(
        [cell in words for cell in cells], dtype=bool
    )  # distinct cells are few: looked up once
    values = np.array([words.get(cell, UNKNOWN) for cell in cells], dtype=np.int8)[where]
    return values, {int(row): str(cells[where[row]]) for row in np.flatnonzero(~known[where])}
