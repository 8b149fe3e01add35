"""An .npz with X_train, Y_train, X_test, Y_test: a data set of feature rows.

Labels are two-dimensional: 1, 0, -1, or what the convention says. Optional: X_validation and
Y_validation, names (or label_names), ids_train and so on. A uint8 label matrix with fewer columns
than names is read as bit-packed (`np.packbits` along the labels).

For very many labels, E_train and so on in place of Y_train: a line a known entry with its row, its
column and 1 or 0; two columns are known positives alone. Give names as well: without them there are
as many labels as the largest column says.

Options: convention, what a number means: partly, 1 positive, 0 negative, -1 unknown; nan, the same,
and NaN is unknown; signed, 1 positive, -1 negative, 0 unknown (or not ticked).
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from partly.errors import DataError, LabelError, raise_if
from partly.labels import CONVENTIONS, SPLITS, LabelTable, encode
from partly.readers.common import choose

Arrays = dict[str, np.ndarray]


def recognises(path: Path) -> bool:
    return path.suffix.lower() == ".npz" and path.is_file()


def read(path: Path, convention: str = "partly") -> LabelTable:
    """Every part that is there, one below the other, with its split's name."""
    choose(convention, "convention", tuple(CONVENTIONS))
    arrays = _load(path)
    listed = any(f"E_{split}" in arrays for split in SPLITS)
    letter = "E" if listed else "Y"
    parts = [split for split in SPLITS if {f"X_{split}", f"{letter}_{split}"} <= arrays.keys()]
    if not parts:
        found = ", ".join(arrays) or "nothing"
        raise DataError(f"{path} has no X_train and Y_train; it has {found}")
    names = next((arrays[key] for key in ("names", "label_names") if key in arrays), None)
    if listed and convention != "partly":
        raise DataError(f"{path} lists known entries, 1 or 0: there is no convention {convention}")
    lonely = [split for split in SPLITS if split not in parts]
    raise_if(
        (
            f"{path} has {letter}_{split} and no X_{split}: there are labels of no rows"
            for split in lonely
            if f"{letter}_{split}" in arrays
        ),
        DataError,
    )
    notes = tuple(
        f"X_{split} has no {letter}_{split} beside it and is left out"
        for split in lonely
        if f"X_{split}" in arrays
    )
    if listed:
        return replace(_from_entries(arrays, parts, names), notes=notes, checked=True)
    raise_if(_shape_problems(arrays, parts, names), DataError)
    words = None if names is None else [str(name) for name in names]
    blocks, problems = [], []
    for split in parts:
        try:
            labels = _unpacked(arrays[f"Y_{split}"], words)
            blocks.append(encode(labels, convention=convention, names=words))
        except LabelError as error:
            problems += [f"Y_{split}: {problem}" for problem in error.problems]
    raise_if(problems, LabelError)
    sizes = [len(block) for block in blocks]
    return LabelTable.from_dense(
        np.concatenate(blocks),
        ids=np.concatenate([_ids(split, arrays) for split in parts]),
        names=words,
        features=np.concatenate([arrays[f"X_{split}"] for split in parts]),
        splits=np.repeat(parts, sizes),
        notes=notes,
    )


def _from_entries(arrays: Arrays, parts: list[str], names: np.ndarray | None) -> LabelTable:
    """The same from lists of known entries."""
    raise_if(_entry_problems(arrays, parts, names), DataError)
    sizes = [len(arrays[f"X_{split}"]) for split in parts]
    entries = [arrays[f"E_{split}"].astype(np.int64) for split in parts]
    starts = np.cumsum([0, *sizes])
    rows = np.concatenate([e[:, 0] + start for e, start in zip(entries, starts, strict=False)])
    columns = np.concatenate([e[:, 1] for e in entries])
    values = [e[:, 2] if e.shape[1] == 3 else np.ones(len(e), np.int64) for e in entries]
    count = len(names) if names is not None else 1 + int(columns.max(initial=0))
    return LabelTable.from_entries(
        rows,
        columns,
        np.concatenate(values),
        ids=np.concatenate([_ids(split, arrays) for split in parts]),
        names=[str(name) for name in (np.arange(count) if names is None else names)],
        features=np.concatenate([arrays[f"X_{split}"] for split in parts]),
        splits=np.repeat(parts, sizes),
    )


def _entry_problems(arrays: Arrays, parts: list[str], names: np.ndarray | None) -> Iterator[str]:
    if names is not None and names.ndim != 1:
        yield f"label names have shape {names.shape}, not one dimension"
    yield from _feature_problems(arrays, parts)
    if dense := [split for split in SPLITS if f"Y_{split}" in arrays]:
        yield f"Y_{dense[0]} stands beside a list of entries: give E for all parts, or Y"
    for split in parts:
        features, entries = arrays[f"X_{split}"], arrays[f"E_{split}"]
        if entries.ndim != 2 or entries.shape[1] not in (2, 3) or entries.dtype.kind not in "iu":
            yield (
                f"E_{split} is {entries.dtype} of shape {entries.shape}: give whole numbers, a "
                "line an entry, with row, column and perhaps 1 or 0"
            )
        elif len(entries) and not 0 <= entries[:, 0].min() <= entries[:, 0].max() < len(features):
            yield f"E_{split} has rows outside 0 … {len(features) - 1}, the rows of X_{split}"


def _load(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # a damaged file fails in many ways, all of them the file's
        raise DataError(f"cannot read {path} as .npz: {error}") from None


def _unpacked(labels: np.ndarray, names: np.ndarray | list[str] | None) -> np.ndarray:
    """Labels packed eight to a byte are told by their width."""
    if names is not None and labels.dtype == np.uint8 and labels.ndim == 2:
        width = labels.shape[1]
        if width != len(names) and width == -(-len(names) // 8):
            return np.unpackbits(labels, axis=1)[:, : len(names)]
    return labels


def _shape_problems(arrays: Arrays, parts: list[str], names: np.ndarray | None) -> Iterator[str]:
    if names is not None and names.ndim != 1:
        yield f"label names have shape {names.shape}, not one dimension"
        return
    tables = {f"Y_{split}": _unpacked(arrays[f"Y_{split}"], names) for split in parts}
    yield from _width_problems("labels", tables)
    yield from _feature_problems(arrays, parts)
    for split in parts:
        features, labels = arrays[f"X_{split}"], tables[f"Y_{split}"]
        if features.ndim != 2 or labels.ndim != 2:
            continue
        if len(labels) != len(features):
            yield f"Y_{split} has {len(labels)} rows, X_{split} has {len(features)}"
        if names is not None and labels.shape[1] != len(names):
            yield f"Y_{split} has {labels.shape[1]} columns for {len(names)} names"


def _feature_problems(arrays: Arrays, parts: list[str]) -> Iterator[str]:
    """What is wrong with features and ids, however labels are given."""
    yield from _width_problems("features", {f"X_{split}": arrays[f"X_{split}"] for split in parts})
    for split in parts:
        features, own = arrays[f"X_{split}"], arrays.get(f"ids_{split}")
        if features.dtype.kind not in "biuf":
            yield f"X_{split} is not numbers but {features.dtype}"
        if own is not None and features.ndim == 2 and own.shape != features.shape[:1]:
            yield f"ids_{split} has shape {own.shape} for {len(features)} rows of X_{split}"


def _width_problems(kind: str, tables: Arrays) -> Iterator[str]:
    widths: dict[int, str] = {}
    for name, table in tables.items():
        if table.ndim != 2:
            yield f"{name} has shape {table.shape}, not two dimensions"
        else:
            widths.setdefault(table.shape[1], name)
    if len(widths) > 1:
        listed = ", ".join(f"{name} {width}" for width, name in widths.items())
        yield f"the parts have different numbers of {kind}: {listed}"


def _ids(split: str, arrays: Arrays) -> np.ndarray:
    own = arrays.get(f"ids_{split}")
    if own is not None:
        return own.astype(str)
    return np.array([f"{split}-{row}" for row in range(len(arrays[f"X_{split}"]))])


def read_features(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(ids, features) of every row, labelled or not: of X, or of all parts one below the other."""
    arrays = _load(path)
    parts = [split for split in SPLITS if f"X_{split}" in arrays]
    if not parts and "X" in arrays:
        arrays, parts = {"X_row": arrays["X"]}, ["row"]
    if not parts or len({arrays[f"X_{split}"].shape[1:] for split in parts}) > 1:
        raise DataError(f"{path} has no X, or its parts X_train, X_test differ in width")
    ids = np.concatenate([_ids(split, arrays) for split in parts])
    return ids, np.concatenate([arrays[f"X_{split}"] for split in parts])
