"""A folder that `partly pack` wrote: labels.parquet beside images-00000.tar, images-00001.tar, ….

Columns of `labels.parquet`: id, split where there is one, path (a span of a tar, relative to the
folder), positive and negative: lists of the numbers of labels. The names of the labels stand in the
file's metadata, which is how it is told from a manifest.

Options: none.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from partly.errors import DataError, first_few
from partly.labels import LabelTable
from partly.readers.common import counted
from partly.texts import Texts

VERSION = 1
LABELS = "labels.parquet"
UNFINISHED = ".unfinished"  # a folder: what is in it is not a pack yet
METADATA = b"partly.pack"  # the key under which the schema's metadata describe a pack

Entries = tuple[np.ndarray, np.ndarray, np.ndarray]  # known entries per row, columns, values


def recognises(path: Path) -> bool:
    return read_content(_file(path)) is not None or (path / UNFINISHED).is_dir()


def read(path: Path) -> LabelTable:
    """The table as it was packed, but for the images that were left out."""
    import pyarrow as arrow
    from pyarrow import parquet

    file = _file(path)
    content = read_content(file)
    if content is None:
        if (path / UNFINISHED).is_dir():
            raise DataError(f"the pack in {path} is unfinished: run `partly pack` again")
        raise DataError(f"{file} was not written by `partly pack`")
    if content.get("version") != VERSION:
        raise DataError(
            f"{file} is a pack of version {content.get('version')}, and this is Partly for version "
            f"{VERSION}: pack the data again, or use the Partly that wrote it"
        )
    texts, entries = [], []
    try:
        for batch in parquet.ParquetFile(file).iter_batches():
            entries.append(_entries(batch["positive"], batch["negative"], len(content["names"])))
            texts.append(batch.drop_columns(["positive", "negative"]))
        table = arrow.Table.from_batches(texts)
        counts, indices, values = map(np.concatenate, zip(*entries, strict=True))
        return LabelTable(
            ids=Texts.of(table["id"]),
            names=tuple(content["names"]),
            indptr=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]),
            indices=indices,
            values=values,
            paths=Texts.of(table["path"]).joined(str(file.parent) + os.sep),
            splits=_splits(table["split"]) if "split" in table.column_names else None,
            notes=tuple(_notes(content)),
        )
    except (OSError, KeyError, TypeError, ValueError, arrow.ArrowException) as error:
        raise DataError(f"{file} is damaged: {error}") from None


def read_content(file: Path) -> dict[str, Any] | None:
    """What a pack's `labels.parquet` says of it as a whole; None if this is no such file."""
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        with file.open("rb") as stream:
            metadata = parquet.read_schema(stream).metadata or {}
        content = json.loads(metadata[METADATA]) if METADATA in metadata else None
        return content if isinstance(content, dict) else None
    except (OSError, ValueError, arrow.ArrowException):
        return None


def _file(path: Path) -> Path:
    return path / LABELS if path.is_dir() else path


def _entries(positive: Any, negative: Any, labels: int) -> Entries:
    """The known entries of a block of rows, columns ascending: two sorted lists become one."""
    sides = [_cells(column, labels) for column in (positive, negative)]
    (positive_cells, positive_counts), (negative_cells, negative_counts) = sides
    cells = np.empty(len(positive_cells) + len(negative_cells), np.int64)
    values = np.zeros(len(cells), np.int8)
    places = np.arange(len(positive_cells)) + np.searchsorted(negative_cells, positive_cells)
    values[places] = 1
    cells[values == 1], cells[values == 0] = positive_cells, negative_cells
    if (cells[1:] <= cells[:-1]).any():
        raise ValueError("the numbers of a row's labels do not ascend, or one is in both lists")
    return positive_counts + negative_counts, (cells % labels).astype(np.int32), values


def _cells(column: Any, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """row · L + label of every entry of a column of lists, and how many each row has."""
    offsets, numbers = column.offsets.to_numpy(), column.values.to_numpy()
    numbers = numbers[offsets[0] : offsets[-1]]
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= labels):
        raise ValueError(f"the number of a label is not in 0 … {labels - 1}")
    counts = np.diff(offsets).astype(np.int64)
    return np.repeat(np.arange(len(counts)) * labels, counts) + numbers, counts


def _splits(column: Any) -> np.ndarray:
    """Few words, each of them made once."""
    words = column.combine_chunks().dictionary_encode()
    return np.array(words.dictionary.to_pylist(), dtype=str)[words.indices.to_numpy()]


def _notes(content: dict[str, Any]) -> Iterator[str]:
    skipped = list(content["skipped"])
    if skipped:
        yield f"{counted(len(skipped), 'bad image')} left out of the pack: {first_few(skipped)}"
