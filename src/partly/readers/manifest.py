"""A CSV or Parquet file with one row an image and one column a label.

Columns: `path` (or `image`, `file`, `filename`) relative to the file, optional `id` and `split`
(train, validation, test), and every other column is a label: 1 positive, 0 negative, empty or -1
unknown. true and false are understood as 1 and 0.
"""

from csv import reader as text_reader
from pathlib import Path
from typing import Any

import numpy as np

from partly.errors import DataError, first_few, raise_if
from partly.labels import UNKNOWN, LabelTable

PATH_COLUMNS = ("path", "image", "file", "filename")
WORDS = {"1": 1, "0": 0, "-1": -1, "": -1, "1.0": 1, "0.0": 0, "-1.0": -1, "true": 1, "false": 0}


def recognises(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".parquet") or (path / "manifest.csv").is_file()


def read(path: Path) -> LabelTable:
    """The manifest's label table."""
    file = path / "manifest.csv" if path.is_dir() else path
    columns = _columns(file)
    path_column = next((name for name in PATH_COLUMNS if name in columns), None)
    if path_column is None:
        raise DataError(
            f"{file} has no column with image paths: name one of its columns "
            f"{', '.join(PATH_COLUMNS)} (it has {first_few(list(columns))})"
        )
    names = [name for name in columns if name not in (path_column, "id", "split")]
    if not names:
        raise DataError(f"{file} has no label column beside {path_column}")
    relative = _texts(columns[path_column])
    empty = [str(row + 2) for row in np.flatnonzero(relative == "")]
    problems = [f"{file}: no image path in line {first_few(empty)}"] if empty else []
    if not len(relative):
        problems.append(f"{file} has a header but no image")
    labels = np.full((len(relative), len(names)), UNKNOWN, dtype=np.int8)
    for column, name in enumerate(names):
        try:
            labels[:, column] = _label_column(columns[name], file, name)
        except DataError as error:
            problems += error.problems
    raise_if(problems, DataError)
    return LabelTable.from_dense(
        labels,
        ids=_texts(columns["id"]) if "id" in columns else relative,
        names=names,
        paths=np.array([str(file.parent / name) for name in relative]),
        splits=_texts(columns["split"]) if "split" in columns else None,
    )


def _columns(file: Path) -> dict[str, Any]:
    """The file's columns, as pyarrow arrays; CSV cells stay text, so that nothing is guessed."""
    import pyarrow as arrow
    from pyarrow import csv, parquet

    try:
        if file.suffix.lower() == ".parquet":
            table = parquet.read_table(file)
        else:
            with file.open(encoding="utf-8-sig", newline="") as stream:
                header = next(text_reader(stream), [])
            convert = csv.ConvertOptions(column_types=dict.fromkeys(header, arrow.string()))
            table = csv.read_csv(file, convert_options=convert)
    except (OSError, UnicodeDecodeError, arrow.ArrowInvalid) as error:
        raise DataError(f"cannot read {file}: {error}") from None
    repeated = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if repeated:
        raise DataError(f"{file} has columns of the same name: {first_few(repeated)}")
    return dict(zip(table.column_names, table.columns, strict=True))


def _texts(column: Any) -> np.ndarray:
    return np.array(["" if text is None else str(text) for text in column.to_pylist()], dtype=str)


def _label_column(column: Any, file: Path, name: str) -> np.ndarray:
    """Distinct cells are few, so the words are looked up once each."""
    cells, where = np.unique(np.char.lower(np.char.strip(_texts(column))), return_inverse=True)
    values = np.array([WORDS.get(cell, 99) for cell in cells], dtype=np.int8)[where]
    strange = np.flatnonzero(values == 99)
    if len(strange):
        row = strange[0]
        raise DataError(
            f"{file}, line {row + 2}, column {name}: '{cells[where[row]]}' is not a label "
            f"(1, 0, or empty for unknown); {len(strange)} cells of this column are not"
        )
    return values
