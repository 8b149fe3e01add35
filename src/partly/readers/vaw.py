"""VAW: `train_part1.json`, `train_part2.json` (or `train.json`), `val.json`, `test.json`.

The path is the folder with these files, or the one around their `data/`. Each object has attributes
that were seen (positive_attributes) and that were verified to be absent (negative_attributes); all
others are unknown. Their names come from `attribute_index.json`, else from the objects. Images are
those of Visual Genome, `<image>.jpg` in `VG_100K/` and `VG_100K_2/` (folders or tars).

Options: unit=image or object, what a row is. Of an image, an attribute is positive if any of its
objects has it, and negative if it is verified absent from one and no other has it; an object has
the path of the whole image. images=FOLDER with VG_100K and VG_100K_2, or with the images, if it is
none of those around.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from partly.errors import DataError, first_few, raise_if
from partly.labels import NEGATIVE, POSITIVE, LabelTable
from partly.readers.common import (
    choose,
    chosen_folder,
    counted,
    image_folder,
    index_in,
    read_json,
)
from partly.readers.vg200 import FOLDERS, locate_images
from partly.texts import Texts

PARTS = {
    "train_part1.json": "train",
    "train_part2.json": "train",
    "train.json": "train",
    "val.json": "validation",
    "test.json": "test",
}
_KEYS = {"positive_attributes": POSITIVE, "negative_attributes": NEGATIVE}

Objects = list[dict[str, Any]]


def recognises(path: Path) -> bool:
    folder = _folder(path)
    return folder is not None and any(_has_objects(folder / file) for file in PARTS)


def read(path: Path, *, unit: str = "image", images: str | None = None) -> LabelTable:
    """The parts that are there, one below the other."""
    choose(unit, "unit", ("image", "object"))
    folder = _folder(path)
    if folder is None:
        raise DataError(f"{path} has no train_part1.json, train.json, val.json or test.json")
    objects, splits = _objects(folder)
    names = _names(folder, objects)
    pictures = Texts.of([str(found["image_id"]) for found in objects])
    instances = Texts.of([str(found["instance_id"]) for found in objects])
    coded = (pictures if unit == "image" else instances).arrow().dictionary_encode()
    ids, rows = Texts.of(coded.dictionary), coded.indices.to_numpy().astype(np.int64)
    first = np.unique(rows, return_index=True)[1]  # the first object of each row
    raise_if(_id_problems(rows, splits, splits[first], ids, unit), DataError)
    keys = {value: np.unique(_keys(objects, key, rows, names)) for key, value in _KEYS.items()}
    absent = np.setdiff1d(keys[NEGATIVE], keys[POSITIVE], assume_unique=True)
    known = np.concatenate([keys[POSITIVE], absent])
    values = np.repeat(np.array(list(keys), np.int8), [len(keys[POSITIVE]), len(absent)])
    return LabelTable.from_entries(
        known // len(names),
        known % len(names),
        values,
        ids=ids,
        names=names,
        paths=locate_images(
            _root(folder, images), pictures[first].joined("", ".jpg"), named=images is not None
        ),
        splits=splits[first],
        notes=_notes(unit, len(objects), len(ids), len(keys[NEGATIVE]) - len(absent)),
    )


def _notes(unit: str, objects: int, rows: int, overruled: int) -> list[str]:
    notes = []
    if unit == "image":
        notes.append(
            f"{counted(objects, 'object')} of {counted(rows, 'image')}: the labels of an image are "
            "those of its objects (unit=object keeps them apart)"
        )
    if overruled:
        which = "of one object and not of another" if unit == "image" else "and not of one object"
        notes.append(f"{counted(overruled, 'label')} {which}: positive")
    return notes


# Objects


def _folder(path: Path) -> Path | None:
    places = (path, path / "data")
    return next((p for p in places if any((p / file).is_file() for file in PARTS)), None)


def _has_objects(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        start = stream.read(4096)
    return b'"instance_id"' in start or b'"positive_attributes"' in start


def _objects(folder: Path) -> tuple[Objects, np.ndarray]:
    """Every object, and the split of each."""
    objects: Objects = []
    splits, sizes = [], []
    problems: list[str] = []
    for file, split in PARTS.items():
        if not (folder / file).is_file():
            continue
        outlines = ("instance_polygon", "instance_bbox")
        try:
            content = read_json(folder / file, without=outlines, kind=list)
        except DataError as error:
            problems += error.problems
            continue
        problems += _object_problems(folder / file, content)
        objects += content
        splits.append(split)
        sizes.append(len(content))
    raise_if(problems, DataError)
    if not objects:
        raise DataError(f"{folder} has no objects")
    return objects, np.repeat(splits, sizes)


def _object_problems(file: Path, content: list[Any]) -> Iterator[str]:
    for key in ("image_id", "instance_id"):
        yield from _without(file, content, key, _is_id)
    for key in _KEYS:
        yield from _without(file, content, key, _are_words)


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str) and value != ""


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _without(file: Path, objects: list[Any], key: str, is_right: Any) -> Iterator[str]:
    bad = [
        place
        for place, found in enumerate(objects)
        if not isinstance(found, dict) or not is_right(found.get(key))
    ]
    if bad:
        yield (
            f"{file}: {counted(len(bad), 'object')} without a proper {key}: number "
            f"{first_few(bad)} of the list"
        )


def _id_problems(
    rows: np.ndarray, splits: np.ndarray, own: np.ndarray, ids: Texts, unit: str
) -> Iterator[str]:
    again = np.unique(rows[splits != own[rows]])
    if len(again):
        shown = first_few([ids[row] for row in again[:5]])
        yield f"{counted(len(again), unit)} in more than one part, such as {shown}"
    counts = np.bincount(rows)
    if unit == "object" and counts.max() > 1:
        shown = first_few([ids[row] for row in np.flatnonzero(counts > 1)[:5]])
        yield f"{int((counts > 1).sum()):,} instance_ids occur more than once: {shown}"


# Attributes


def _names(folder: Path, objects: Objects) -> list[str]:
    """attribute_index.json says which attributes there are and in which order."""
    used = set(chain.from_iterable(found[key] for found in objects for key in _KEYS))
    file = folder / "attribute_index.json"
    if not file.is_file():
        return sorted(used)
    index = read_json(file, kind=dict)
    if not all(isinstance(place, int) for place in index.values()):
        raise DataError(f"{file} does not give each attribute a number")
    strange = sorted(used - index.keys())
    if strange:
        raise DataError(
            f"{file} lacks {counted(len(strange), 'attribute')} that objects have: "
            f"{first_few(strange)}"
        )
    return sorted(index, key=index.__getitem__)


def _keys(objects: Objects, key: str, rows: np.ndarray, names: list[str]) -> np.ndarray:
    """row · L + column of each attribute that an object has under a key."""
    lists = [found[key] for found in objects]
    columns = index_in(Texts.of(list(chain.from_iterable(lists))), Texts.of(names))
    return np.repeat(rows, [len(words) for words in lists]) * len(names) + columns


# Images


def _root(folder: Path, images: str | None) -> Path:
    if images is not None:
        return chosen_folder(images)
    places = (folder, folder.parent, folder / "images", folder.parent / "images")
    return image_folder(places, *FOLDERS).parent
