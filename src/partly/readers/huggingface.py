"""A data set of Hugging Face's `datasets`, saved with save_to_disk: dataset_dict.json, *.arrow.

A folder a split (or one split alone), each with state.json, dataset_info.json and Arrow files.
Images that were saved along are read from where they lie in the Arrow file; others from their path.
Labels: a column with a list of class labels (or of words) an image; or several columns, one a
label: 1, 0, and null, NaN or -1 for unknown.

Options: image=COLUMN of the images; labels=COLUMN with the lists, or COLUMN,COLUMN,… of one label
each (both are found by their types, where they are not named); absent=negative or unknown, what a
label is that an image's list does not have.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from partly.errors import ConfigError, DataError, first_few, raise_if
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN, LabelTable
from partly.readers.common import (
    choose,
    counted,
    read_json,
    split_in,
    split_problems,
    stands_in,
)
from partly.tars import span_paths
from partly.texts import Texts, concatenated

ABSENT = ("negative", "unknown")
NUMBERS = ("bool", "int8", "uint8", "float16", "float32", "float64")  # of a column that is a label
ID_COLUMNS = ("id", "image_id")
MOST_CLASSES = 100_000  # that have numbers only: one wrong number makes as many as it says
END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream of Arrow

Features = dict[str, Any]


def recognises(path: Path) -> bool:
    if (path / "dataset_dict.json").is_file():
        return True
    return (path / "state.json").is_file() and (path / "dataset_info.json").is_file()


def read(
    path: Path,
    image: str | None = None,
    labels: str | Sequence[str] | None = None,
    absent: str = "negative",
) -> LabelTable:
    """All splits, one below the other."""
    choose(absent, "absent", ABSENT)
    folders = _folders(path)
    features = _features(folders[0])
    raise_if(_feature_problems(folders, features), DataError)
    image = _image_column(path, features, image)
    columns = _label_columns(path, features, image, labels)
    wanted = [image, *columns, *(name for name in ID_COLUMNS if name in features)]
    parts = [_read_split(folder, image, wanted) for folder in folders]
    splits = [_split_of(path, folder) for folder in folders]
    problems = [problem for part in parts for problem in part.problems]
    listed = path / "dataset_dict.json"
    strange = split_problems(folders, splits, needed=len(folders) > 1)
    problems += [f"{listed}: {problem}" for problem in strange]
    raise_if(problems, DataError)
    counts = [part.count for part in parts]
    given: dict[str, Any] = {
        "ids": _ids(parts),
        "paths": concatenated(part.paths for part in parts),
        "splits": None if splits[0] is None else np.repeat(np.array(splits, dtype=str), counts),
    }
    if _is_list(features[columns[0]]):
        return _from_lists(parts, columns[0], features[columns[0]], absent, given)
    return _from_columns(parts, columns, features, given)


# --- Folders and features -----------------------------------------------------------------------


def _folders(path: Path) -> list[Path]:
    """The folder of each split, in the order of the data set."""
    if not (path / "dataset_dict.json").is_file():
        return [path]
    file = path / "dataset_dict.json"
    names = read_json(file, kind=dict).get("splits")
    if not names or not _are(str, names):
        raise DataError(f"{file} names no split: it has no list of splits")
    return [path / name for name in names]


def _are(kind: type, items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, kind) for item in items)


def _split_of(root: Path, folder: Path) -> str | None:
    """What the folder's name says; of a split alone, what its state says."""
    alone = folder == root
    state = read_json(folder / "state.json", kind=dict) if alone else {}
    return split_in(str(state.get("_split") or "") if alone else folder.name)


def _features(folder: Path) -> Features:
    """The columns of a split with their types."""
    if not (folder / "dataset_info.json").is_file():
        raise DataError(f"{folder} has no dataset_info.json: it was not saved with save_to_disk")
    features = read_json(folder / "dataset_info.json", kind=dict).get("features") or {}
    if not isinstance(features, dict):
        raise DataError(f"{folder / 'dataset_info.json'}: features is not an object {{…}}")
    return features


def _feature_problems(folders: Sequence[Path], features: Features) -> Iterator[str]:
    """The numbers of class labels mean nothing where the names differ."""
    for folder in folders[1:]:
        other = _features(folder)
        if other != features:
            differing = sorted(
                name
                for name in other.keys() | features.keys()
                if other.get(name) != features.get(name)
            )
            yield (
                f"{folder} and {folders[0]} differ in the type of {first_few(differing)}; "
                "cast the splits to the same features and save them again"
            )


def _is_list(feature: Any) -> bool:
    return isinstance(feature, list) or _type(feature) in ("Sequence", "List", "LargeList")


def _type(feature: Any) -> str:
    return str(feature.get("_type", "")) if isinstance(feature, dict) else ""


def _item(feature: Any) -> Any:
    """What a list is a list of."""
    return next(iter(feature), None) if isinstance(feature, list) else feature.get("feature")


def _class_names(feature: Any) -> list[str]:
    names = feature.get("names")
    return list(map(str, names)) if isinstance(names, list) else []


def _is_label_list(feature: Any) -> bool:
    if not _is_list(feature):
        return False
    return _type(_item(feature)) == "ClassLabel" or _is_text(_item(feature))


def _is_text(feature: Any) -> bool:
    return _type(feature) == "Value" and feature.get("dtype") in ("string", "large_string")


def _is_label(feature: Any, integers: bool = False) -> bool:
    """Can this column be one label: yes, no, or unknown? Wide integers are, where one says so."""
    if _type(feature) == "ClassLabel":
        return len(_class_names(feature)) == 2
    kind = str(feature.get("dtype")) if _type(feature) == "Value" else ""
    return kind in NUMBERS or (integers and "int" in kind)


def _image_column(path: Path, features: Features, image: str | None) -> str:
    found = [name for name, feature in features.items() if _type(feature) == "Image"]
    if image is not None:
        if image not in found:
            raise ConfigError(
                f"image={image}: {path} has no such column of images; it has "
                f"{first_few(found) or 'none'}"
            )
        return image
    if len(found) != 1:
        raise DataError(
            f"{path} has {'no column' if not found else 'several columns'} of images"
            + (f" ({first_few(found)}): choose one with image=" if found else "; it has ")
            + ("" if found else first_few(list(features), 20))
        )
    return found[0]


def _label_columns(
    path: Path, features: Features, image: str, labels: str | Sequence[str] | None
) -> list[str]:
    """One column of lists, or the columns of one label each."""
    if labels is not None:
        whole = isinstance(labels, str) and labels in features
        words = [labels] if whole else labels.split(",") if isinstance(labels, str) else labels
        chosen = [str(word).strip() for word in words]
        raise_if(_choice_problems(path, features, chosen), ConfigError)
        return chosen
    lists = [name for name, feature in features.items() if _is_label_list(feature)]
    named = [name for name in lists if _type(_item(features[name])) == "ClassLabel"]
    single = [name for name, feature in features.items() if _is_label(feature)]
    for found in (named, lists if not single else []):
        if len(found) > 1:
            raise DataError(
                f"{path} has several columns of label lists ({first_few(found)}): choose one with "
                "labels="
            )
        if found:
            return found
    if not single:
        others = [name for name in features if name != image]
        raise DataError(
            f"{path} has no column that is a list of class labels, or a label by its type "
            f"({', '.join(NUMBERS)}, or a class label of two); name them with labels=; it has "
            f"{first_few(others, 20)}"
        )
    return single


def _choice_problems(path: Path, features: Features, chosen: Sequence[str]) -> Iterator[str]:
    missing = [name for name in chosen if name not in features]
    if missing:
        yield (
            f"labels: {path} has no column {first_few(missing)}; it has "
            f"{first_few(list(features), 20)}"
        )
    lists = [name for name in chosen if name in features and _is_list(features[name])]
    if lists and len(chosen) > 1:
        yield f"labels: {first_few(lists)} is a list of labels; name it alone"
    for name in chosen:
        feature = features.get(name, {})
        if name in features and not (_is_label_list(feature) or _is_label(feature, integers=True)):
            yield (
                f"labels: column {name} of {path} is neither a list of class labels or words, nor "
                "one label that is there or not"
            )


# --- Arrow files --------------------------------------------------------------------------------


@dataclass
class _Split:
    """The columns of a split that matter, and where its images are."""

    folder: Path
    table: Any  # a pyarrow table
    paths: Texts
    names: Texts  # of the image files as they were when they were saved; empty where unknown
    problems: list[str]

    @property
    def count(self) -> int:
        return len(self.paths)


def _read_split(folder: Path, image: str, wanted: Sequence[str]) -> _Split:
    import pyarrow as arrow

    state = read_json(folder / "state.json", kind=dict)
    if state.get("_indices_data_files"):
        raise DataError(
            f"{folder} was saved as a selection of rows by an old version of datasets: load it, "
            "call flatten_indices(), and save it again"
        )
    entries = state.get("_data_files")
    listed = [entry.get("filename") for entry in entries] if _are(dict, entries) else []
    if not listed or not _are(str, listed):
        raise DataError(f"{folder / 'state.json'} names no data file: it has no list of them")
    files = [folder / name for name in listed]
    tables, paths, names, row = [], [], [], 0
    problems: list[str] = []
    for file in files:
        for batch, spans, known in _batches(file, image):
            problems += _image_problems(folder, spans, row)
            tables.append(batch.select([name for name in wanted if name != image]))
            paths.append(spans)
            names.append(known)
            row += len(batch)
    if not row:
        raise DataError(f"{folder} holds no image")
    table = arrow.Table.from_batches(tables)
    return _Split(folder, table, concatenated(paths), concatenated(names), problems)


def _batches(file: Path, image: str) -> Iterator[tuple[Any, Texts, Texts]]:
    """Each batch of a file, the paths of its images, and what they were called before."""
    import pyarrow as arrow

    try:
        mapped = arrow.memory_map(str(file))
        everything = mapped.read_buffer()  # a view of the file: nothing is copied
        if everything[-8:].to_pybytes() != END:
            raise DataError(f"{file} is cut off: its end is not there; copy it again")
        with arrow.ipc.open_stream(everything) as stream:
            for batch in stream:
                yield batch, *_images(file, everything, batch.column(image))
    except (OSError, KeyError, arrow.ArrowException) as error:
        raise DataError(f"cannot read {file}: {error}") from None


def _images(file: Path, everything: Any, column: Any) -> tuple[Texts, Texts]:
    """The spans of the images in the file, or their paths; and their names where these are known.

    The bytes of an uncompressed Arrow file are where the array in memory points to.
    """
    import pyarrow as arrow
    from pyarrow import compute

    content, path = column.field("bytes"), column.field("path")
    wide = arrow.types.is_large_binary(content.type)
    _, offsets, data = content.buffers()
    ends = np.zeros(len(content) + 1, np.int64)
    if data is not None and data.size:
        first = data.address - everything.address
        if not 0 <= first <= everything.size - data.size:
            raise DataError(f"{file} is compressed: save it again without compression")
        ends = np.frombuffer(offsets, np.int64 if wide else np.int32).astype(np.int64)
        ends = first + ends[content.offset : content.offset + len(content) + 1]
    names = compute.fill_null(path.cast(arrow.large_string()), "")
    spans = span_paths(file, ends[:-1], np.diff(ends)).arrow()
    there, inside = column.is_valid(), content.is_valid()
    paths = compute.if_else(inside, spans, _beside(file.parent, Texts.of(names)).arrow())
    nothing = arrow.scalar("", arrow.large_string())
    return Texts.of(compute.if_else(there, paths, nothing)), Texts.of(names)


def _beside(folder: Path, names: Texts) -> Texts:
    """Relative paths are relative to the folder; no name stays none."""
    from pyarrow import compute

    absolute = compute.match_substring_regex(names.arrow(), "^(/|$|[a-z0-9]+://)")
    return Texts.of(
        compute.if_else(absolute, names.arrow(), names.joined(f"{folder}{os.sep}").arrow())
    )


def _image_problems(folder: Path, paths: Texts, first: int) -> Iterator[str]:
    from pyarrow import compute

    empty = np.flatnonzero(np.diff(paths.offsets) == 0)
    if len(empty):
        rows = (empty[:20] + first).tolist()
        yield f"{folder}: {len(empty)} rows have no image: row {first_few(rows)}"
    remote = compute.match_substring_regex(paths.arrow(), "^[a-z0-9]+://").to_numpy(False)
    if remote.any():
        example = paths[int(np.flatnonzero(remote)[0])]
        yield (
            f"{folder}: {int(remote.sum())} images are only addresses, such as {example}: load the "
            "data set and save it with its images"
        )


def _ids(parts: Sequence[_Split]) -> Texts:
    """A column of ids, or the names of the images, if they tell them apart; else row numbers."""
    import pyarrow as arrow

    candidates = [
        [Texts.of(part.table[name]) for part in parts]
        for name in ID_COLUMNS
        if name in parts[0].table.column_names
        and all(_is_plain(part.table.schema.field(name).type) for part in parts)
    ]
    candidates.append([part.names for part in parts])
    for candidate in candidates:
        for before in ("", "/"):  # two splits may count from 0
            ids = concatenated(
                texts.joined(part.folder.name + before if before else "")
                for part, texts in zip(parts, candidate, strict=True)
            )
            given = concatenated(candidate)
            if (np.diff(given.offsets) > 0).all() and not len(ids.repeated()):
                return ids
    numbers = [arrow.array(np.arange(part.count)).cast(arrow.large_string()) for part in parts]
    single = len(parts) == 1
    return concatenated(
        Texts.of(rows).joined("" if single else f"{part.folder.name}-")
        for part, rows in zip(parts, numbers, strict=True)
    )


def _is_plain(kind: Any) -> bool:
    """A type of ids: whole numbers or texts."""
    import pyarrow as arrow

    texts = arrow.types.is_string(kind) or arrow.types.is_large_string(kind)
    return texts or arrow.types.is_integer(kind)


# --- Labels -------------------------------------------------------------------------------------


def _from_lists(
    parts: Sequence[_Split], name: str, feature: Any, absent: str, given: dict[str, Any]
) -> LabelTable:
    """One column lists the positive labels of each image."""
    import pyarrow as arrow
    from pyarrow import compute

    column = arrow.concat_tables([part.table.select([name]) for part in parts])[name]
    column = column.combine_chunks()
    rows = compute.list_parent_indices(column).to_numpy().astype(np.int64)
    labels = compute.list_flatten(column)
    names, numbers = _numbered(labels, feature)
    wrong = np.flatnonzero((numbers < 0) | (numbers >= len(names)))
    if len(wrong):
        places = [_place(parts, int(row)) for row in rows[wrong[:20]]]
        raise DataError(
            f"column {name}: {len(wrong)} labels are empty or not in 0 … {len(names) - 1}: "
            f"{first_few(places)}"
        )
    listed = column.is_valid().to_numpy(False)
    notes = []
    if absent == "negative":
        indptr = np.concatenate([[0], np.cumsum(listed * np.int64(len(names)))])
        indices = np.tile(np.arange(len(names), dtype=np.int32), int(listed.sum()))
        values = np.zeros(len(indices), np.int8)
        values[indptr[rows] + numbers] = POSITIVE
        notes.append(
            f"labels that are not listed in column {name} are read as negative; absent=unknown "
            "leaves them unknown"
        )
    else:
        cells = np.unique(rows * len(names) + numbers)
        counts = np.bincount(cells // len(names), minlength=len(column))
        indptr = np.concatenate([[0], np.cumsum(counts)])
        indices = (cells % len(names)).astype(np.int32)
        values = np.ones(len(cells), np.int8)
    empty = len(listed) - int(listed.sum())
    if empty:
        notes.append(f"{counted(empty, 'image')} without a list in column {name}: all unknown")
    return LabelTable(
        names=tuple(names),
        indptr=indptr,
        indices=indices,
        values=values,
        notes=tuple(notes),
        **given,
    )


def _numbered(labels: Any, feature: Any) -> tuple[list[str], np.ndarray]:
    """The names of the labels, and the number of each of these; -1 for none."""
    import pyarrow as arrow

    if _type(_item(feature)) == "ClassLabel":
        numbers = labels.cast(arrow.int64()).fill_null(-1).to_numpy()
        own = _class_names(_item(feature))
        count = int(numbers.max(initial=-1)) + 1
        if not own and count > MOST_CLASSES:
            raise DataError(
                f"a label has the number {count - 1}, and dataset_info.json has no names of class "
                f"labels; without them, numbers up to {MOST_CLASSES - 1} are read"
            )
        return own or [str(number) for number in range(count)], numbers
    words = labels.dictionary_encode()
    names = [str(word) for word in words.dictionary.to_pylist()]
    order = np.argsort(np.argsort(np.array(names, dtype=object)))
    numbers = words.indices.fill_null(-1).to_numpy().astype(np.int64)
    return sorted(names), np.where(numbers < 0, -1, np.append(order, -1)[numbers])


def _from_columns(
    parts: Sequence[_Split], names: Sequence[str], features: Features, given: dict[str, Any]
) -> LabelTable:
    """One column a label."""
    import pyarrow as arrow
    from pyarrow import compute

    table = arrow.concat_tables([part.table.select(list(names)) for part in parts])
    labels = np.full((len(table), len(names)), UNKNOWN, dtype=np.int8)
    problems = []
    for place, name in enumerate(names):
        numbers = compute.fill_null(table[name].cast(arrow.float64()), UNKNOWN).to_numpy()
        numbers = np.where(np.isnan(numbers), UNKNOWN, numbers)
        strange = np.flatnonzero(~np.isin(numbers, (POSITIVE, NEGATIVE, UNKNOWN)))
        if len(strange):
            problems.append(
                f"column {name}: {numbers[strange[0]]:g} in {_place(parts, int(strange[0]))} is "
                f"not a label (1, 0, and null or -1 for unknown); {len(strange)} rows are not; if "
                "the column is no label, name those that are with labels="
            )
        else:
            labels[:, place] = numbers
    raise_if(problems, DataError)
    pairs = {tuple(own) for name in names if (own := _class_names(features[name]))}
    notes = [f"of the two classes {no} and {yes}, {yes} is the label" for no, yes in sorted(pairs)]
    return LabelTable.from_dense(labels, names=names, notes=notes, **given)


def _place(parts: Sequence[_Split], row: int) -> str:
    """Where a row of all splits stands."""
    folder, own = stands_in([part.folder for part in parts], [part.count for part in parts], row)
    return f"{folder.name}, row {own}"
