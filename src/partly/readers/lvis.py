"""LVIS v1: `lvis_v1_train.json`, `lvis_v1_val.json`, and the images of COCO 2017.

The path is the folder with these files, one that has them in `annotations/`, or one of the files. A
label is positive where an image has an annotation of it or lists it as not exhaustively annotated,
negative where the image lists it as verified absent (neg_category_ids), unknown everywhere else.
Val is the test set: the labels of the official test images are not public. Images of both parts
lie in `train2017/` and `val2017/` (folders or tars).

Options: images=FOLDER with train2017 and val2017, if it is not that of the files or the one above.
"""

import re
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from partly.errors import DataError, first_few, raise_if
from partly.labels import NEGATIVE, POSITIVE, LabelTable
from partly.readers.coco import (
    Boxes,
    Part,
    column_in,
    read_boxes,
    split_notes,
    splits_of,
    unique_ids,
)
from partly.readers.common import chosen_folder, counted, image_folder, index_of, locate_in
from partly.texts import Texts

_FILE = re.compile(r"^lvis_v1(?:\.0)?_(train|val)\.json$")
_FOLDER = re.compile(r"([^/]+)/([^/]+)$")  # the last two pieces of an image's address


class Entries(NamedTuple):
    """Known labels of a part: rows, columns and values."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray


def recognises(path: Path) -> bool:
    return bool(_files(path))


def read(path: Path, *, images: str | None = None) -> LabelTable:
    """Every image, train and val one below the other; what nobody looked for is unknown."""
    parts = [
        Part(file, file.stem, "train" if "train" in file.stem else "test") for file in _files(path)
    ]
    if not parts:
        raise DataError(f"{path} has no lvis_v1_train.json or lvis_v1_val.json")
    problems: list[str] = []
    entries, ids, relative, notes = [], [], [], []
    first: tuple[str, ...] = ()
    above = 0
    for part in parts:
        boxes = read_boxes(part.file, problems)
        first = first or boxes.names
        columns = column_in(first, boxes.names, parts[0].file, part.file, problems)
        known, overruled = _entries(boxes, columns, len(first), part.file, problems)
        if overruled:
            notes.append(
                f"{part.name}: {counted(overruled, 'label')} both annotated and listed as absent: "
                "positive"
            )
        entries.append(known._replace(rows=known.rows + above))
        relative += _addresses(boxes.images, part.file, problems)
        ids.append(boxes.ids)
        above += len(boxes.ids)
    raise_if(problems, DataError)
    rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
    return LabelTable.from_entries(
        rows,
        columns,
        values,
        ids=unique_ids(ids, [part.name for part in parts], notes),
        names=first,
        paths=_paths(_root(path, parts[0].file, images), relative),
        splits=splits_of(parts, [len(own) for own in ids]),
        notes=[*split_notes(parts), *notes],
    )


def _files(path: Path) -> list[Path]:
    """train before val."""
    if path.is_file():
        return [path] if path.name.startswith("lvis_v1") and path.suffix == ".json" else []
    for folder in (path, path / "annotations"):
        files = [file for file in sorted(folder.glob("lvis_v1*.json")) if _FILE.match(file.name)]
        if files:
            return files
    return []


# Labels


def _entries(
    boxes: Boxes, columns: np.ndarray, width: int, file: Path, problems: list[str]
) -> tuple[Entries, int]:
    """The known labels, and how many of them were said to be absent as well."""
    kept = (boxes.rows >= 0) & (boxes.columns >= 0)
    keys = {POSITIVE: [boxes.rows[kept] * width + columns[boxes.columns[kept]]], NEGATIVE: []}
    lists = {"not_exhaustive_category_ids": POSITIVE, "neg_category_ids": NEGATIVE}
    for key, value in lists.items():
        rows, places = _listed(boxes, key, file, problems)
        keys[value].append(rows * width + columns[places])
    positive, negative = (np.unique(np.concatenate(keys[value])) for value in (POSITIVE, NEGATIVE))
    absent = np.setdiff1d(negative, positive, assume_unique=True)
    both = np.concatenate([positive, absent])
    values = np.repeat(np.array([POSITIVE, NEGATIVE], np.int8), [len(positive), len(absent)])
    return Entries(both // width, both % width, values), len(negative) - len(absent)


def _listed(
    boxes: Boxes, key: str, file: Path, problems: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """(row, category's place) of every category that an image lists under a key."""
    none = np.zeros(0, dtype=np.int64)
    lists: list[Any] = [image.get(key) for image in boxes.images]
    without = [row for row, numbers in enumerate(lists) if not _are_numbers(numbers)]
    if without:
        shown = first_few([boxes.images[row].get("id") for row in without])
        problems.append(
            f"{file}: {counted(len(without), 'image')} without a list of whole numbers {key}: "
            f"{shown}"
        )
        return none, none
    rows = np.repeat(np.arange(len(lists)), [len(numbers) for numbers in lists])
    numbers = np.fromiter(chain.from_iterable(lists), dtype=np.int64)
    places = index_of(numbers, boxes.categories)
    unknown = np.unique(numbers[places < 0])
    if len(unknown):
        problems.append(
            f"{file}: {key} names categories that are not in it: {first_few(unknown.tolist())}"
        )
        return none, none
    return rows, places


def _are_numbers(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(
        type(number) is int and abs(number) < 2**62 for number in numbers
    )


# Images


def _addresses(
    images: list[dict[str, Any]], file: Path, problems: list[str]
) -> list[tuple[str, str]]:
    """(folder, name) of each image: a val image of LVIS may lie in COCO's train2017."""
    found = [_FOLDER.search(str(image.get("coco_url") or "")) for image in images]
    without = [image.get("id") for image, match in zip(images, found, strict=True) if not match]
    if without:
        problems.append(
            f"{file}: {counted(len(without), 'image')} without a coco_url that ends in "
            f"train2017/….jpg or val2017/….jpg: {first_few(without)}"
        )
    return [(match[1], match[2]) for match in found if match]


def _root(path: Path, file: Path, images: str | None) -> Path:
    if images is not None:
        return chosen_folder(images)
    folder = path if path.is_dir() else file.parent
    places = (folder, folder.parent, folder / "images", folder.parent / "images")
    return image_folder(places, "train2017", "val2017").parent


def _paths(root: Path, addresses: list[tuple[str, str]]) -> Texts:
    folders, which = np.unique([folder for folder, _ in addresses], return_inverse=True)
    names = Texts.of([name for _, name in addresses])
    return locate_in([root / str(folder) for folder in folders], which, names)
