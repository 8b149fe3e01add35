"""COCO 2014 or 2017: `annotations/instances_{train,val}2014.json`, `train2014/`, `val2014/`.

The path is the folder that holds these, or one instances_*.json. A label is positive where an image
has a box of it and negative everywhere else. The official test images have no labels, so val is the
test set. The folders of images may lie in `images/`, and may be tars (`train2014.tar`).

Options: year=2014 or 2017, where both lie there; empty=drop leaves out the images without any box,
empty=keep keeps them, all their labels negative; crowd=keep or drop, the boxes around crowds of
objects (iscrowd); annotations=NAME of the folder with the JSON files, otherwise `annotations`, or
the only one whose name begins so.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from partly.errors import ConfigError, DataError, first_few, raise_if
from partly.labels import POSITIVE, LabelTable
from partly.readers.common import (
    choose,
    counted,
    image_folder,
    index_of,
    locate,
    read_json,
)
from partly.readers.paper import differences
from partly.texts import Texts, concatenated

OUTLINES = ("segmentation", "bbox", "counts")
MISSING = -(2**62)  # where an entry has no whole number
_FILE = re.compile(r"^instances_(train|val)(\d{4})\.json$", re.IGNORECASE)


class Part(NamedTuple):
    """A JSON file, what its images' folder is called, and what it is used for."""

    file: Path
    name: str
    split: str | None


@dataclass(frozen=True)
class Boxes:
    """A JSON file: its images, and of each annotation the image's row and the label's column."""

    images: list[dict[str, Any]]
    ids: np.ndarray
    categories: np.ndarray
    names: tuple[str, ...]
    rows: np.ndarray
    columns: np.ndarray
    crowd: np.ndarray


class Block(NamedTuple):
    """Of one part: labels [N, L], ids and file names of its images, and what was done to it."""

    labels: np.ndarray
    ids: np.ndarray
    files: np.ndarray
    notes: list[str]


def recognises(path: Path) -> bool:
    if path.is_dir():
        return bool(_folders(path))
    return path.name.startswith("instances_") and path.suffix.lower() == ".json"


def read(
    path: Path,
    *,
    year: int | None = None,
    empty: str = "drop",
    crowd: str = "keep",
    annotations: str | None = None,
) -> LabelTable:
    """Every image, train and val one below the other; all labels known."""
    choose(empty, "empty", ("drop", "keep"))
    choose(crowd, "crowd", ("keep", "drop"))
    parts = _parts(path, annotations, year)
    problems: list[str] = []
    blocks: list[Block] = []
    names: tuple[str, ...] = ()
    for part in parts:
        boxes = read_boxes(part.file, problems)
        names = names or boxes.names
        columns = column_in(names, boxes.names, parts[0].file, part.file, problems)
        blocks.append(_block(part, boxes, columns, len(names), empty, crowd, problems))
    raise_if(problems, DataError)
    sizes = [len(block.ids) for block in blocks]
    if not sum(sizes):
        raise DataError(f"{path} has no image with a box")
    notes = [
        *_folder_notes(path, annotations),
        *split_notes(parts),
        *(note for block in blocks for note in block.notes),
    ]
    table = LabelTable.from_dense(
        np.concatenate([block.labels for block in blocks]),
        ids=unique_ids([block.ids for block in blocks], [part.name for part in parts], notes),
        names=names,
        paths=concatenated(
            _paths(part, block.files) for part, block in zip(parts, blocks, strict=True)
        ),
        splits=splits_of(parts, sizes),
        notes=notes,
    )
    return replace(table, notes=(*table.notes, *_compared(table, parts, empty)), checked=True)


def _block(
    part: Part,
    boxes: Boxes,
    columns: np.ndarray,
    width: int,
    empty: str,
    crowd: str,
    problems: list[str],
) -> Block:
    """A part's labels and images; columns: of each of its categories, of `width`."""
    files, notes = _file_names(boxes.images, part.file, problems), []
    labels = np.zeros((len(boxes.ids), width), dtype=np.int8)
    used = (boxes.rows >= 0) & (boxes.columns >= 0)
    if crowd == "drop":
        dropped = counted(int(boxes.crowd.sum()), "box", "boxes")
        notes.append(f"{part.name}: {dropped} around crowds left out")
        used &= ~boxes.crowd
    labels[boxes.rows[used], columns[boxes.columns[used]]] = POSITIVE
    kept = labels.max(axis=1) == POSITIVE
    if not kept.all():
        without = counted(int((~kept).sum()), "image") + " without a box"
        done = "left out (empty=keep keeps them)" if empty == "drop" else "kept, all negative"
        notes.append(f"{part.name}: {without} {done}")
    if empty == "keep":
        kept = np.ones(len(kept), dtype=bool)
    return Block(labels[kept], boxes.ids[kept], files[kept], notes)


def _compared(table: LabelTable, parts: Sequence[Part], empty: str) -> Iterator[str]:
    """Is this what the paper counts?"""
    years = {match[2] for part in parts if (match := _FILE.match(part.file.name))}
    if not years:
        return
    yield from differences("coco", table)
    if years != {"2014"}:
        yield "its counts are those of 2014"
    if empty == "keep":
        yield (
            "the paper counts images with a box only (empty=drop): of 82,783 training images and "
            "40,504 test images 82,081 and 40,137"
        )


# Files


def _folder_notes(path: Path, annotations: str | None) -> Iterator[str]:
    others = _folders(path)[1:] if path.is_dir() and annotations is None else []
    if others:
        yield f"not read: {first_few([other.name for other in others])} (annotations=NAME does)"


def _folders(path: Path) -> list[Path]:
    """The folder itself and those in it that hold annotations."""
    places = [path, *sorted(path.glob("annotations*/"))]
    return [place for place in places if _files(place)]


def _files(folder: Path) -> dict[tuple[str, str], Path]:
    """By year and part, the files of a folder."""
    return {
        (match[2], match[1].lower()): file
        for file in sorted(folder.glob("instances_*"))
        if (match := _FILE.match(file.name))
    }


def _folder(path: Path, annotations: str | None) -> Path:
    if annotations is not None:
        return path / annotations
    folders = _folders(path)
    usual = [place for place in folders if place in (path, path / "annotations")]
    if len(folders) > 1 and not usual:
        names = [place.name for place in folders]
        raise ConfigError(f"{path} has {first_few(names)}: choose with annotations={names[0]}")
    return (usual or folders or [path / "annotations"])[0]


def _parts(path: Path, annotations: str | None, year: int | None) -> list[Part]:
    if path.is_file():
        name = path.stem.removeprefix("instances_")
        split = {"tra": "train", "val": "test", "tes": "test"}.get(name[:3])
        return [Part(path, name, split)]
    folder = _folder(path, annotations)
    found = _files(folder)
    if not found:
        raise DataError(f"{folder} has no instances_train2014.json or the like")
    years = sorted({year for year, _ in found})
    if year is None and len(years) > 1:
        raise ConfigError(f"{folder} holds COCO {' and '.join(years)}: choose with year={years[0]}")
    wanted = years[0] if year is None else choose(str(year), "year", years)
    splits = {"train": "train", "val": "test"}
    return [
        Part(found[wanted, part], part + wanted, split)
        for part, split in splits.items()
        if (wanted, part) in found
    ]


def _paths(part: Part, names: np.ndarray) -> Texts:
    beside = part.file.parent
    places = (beside.parent, beside.parent / "images", beside, beside / "images")
    return locate(image_folder(places, part.name), Texts.of(names))


def _file_names(images: list[dict[str, Any]], file: Path, problems: list[str]) -> np.ndarray:
    names = [image.get("file_name") or "" for image in images]
    nameless = [image.get("id") for image, name in zip(images, names, strict=True) if not name]
    if nameless:
        problems.append(
            f"{file}: {counted(len(nameless), 'image')} without file_name: {first_few(nameless)}"
        )
    return np.array(names, dtype=str)


# What COCO and LVIS files have in common


def read_boxes(file: Path, problems: list[str]) -> Boxes:
    """A file in COCO's form. What is wrong with its entries is added to `problems`."""
    content = read_json(file, without=OUTLINES)
    lists: list[Any] = [content.get(key) if isinstance(content, dict) else None for key in _LISTS]
    strange = [key for key, entries in zip(_LISTS, lists, strict=True) if not _is_list(entries)]
    if strange:
        raise DataError(f"{file} has no list of {', '.join(strange)}: it is not in COCO's form")
    images, annotations, categories = lists
    empty = [what for what in ("images", "categories") if not content[what]]
    raise_if((f"{file} has no {what}" for what in empty), DataError)
    ids = integers(images, "id", "image", file, problems)
    numbers = integers(categories, "id", "category", file, problems)
    by_number = np.argsort(numbers, kind="stable")
    names = tuple(str(categories[place].get("name") or "") for place in by_number)
    for what, own in (("images", ids), ("categories", numbers)):
        values, counts = np.unique(own[own != MISSING], return_counts=True)
        if (counts > 1).any():
            again = first_few(values[counts > 1].tolist())
            problems.append(f"{file}: ids of {what} that occur more than once: {again}")
    rows = places_in(ids, annotations, "image_id", file, problems)
    columns = places_in(numbers[by_number], annotations, "category_id", file, problems)
    crowd = np.array([entry.get("iscrowd", 0) == 1 for entry in annotations], dtype=np.bool_)
    return Boxes(images, ids, numbers[by_number], names, rows, columns, crowd)


_LISTS = ("images", "annotations", "categories")


def _is_list(entries: Any) -> bool:
    return isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)


def integers(
    entries: list[dict[str, Any]], key: str, what: str, file: Path, problems: list[str]
) -> np.ndarray:
    """int64: the number that each entry has under a key; `MISSING` where it has none."""
    values = [entry.get(key) for entry in entries]
    kept = [value if type(value) is int and abs(value) < 2**62 else MISSING for value in values]
    numbers = np.array(kept, dtype=np.int64)
    without = np.flatnonzero(numbers == MISSING)
    if len(without):
        shown = first_few([f"number {place} has {values[place]!r}" for place in without[:3]])
        count = counted(len(without), f"{what} entry", f"{what} entries")
        problems.append(f"{file}: {count} without a whole number as {key}: {shown}")
    return numbers


def places_in(
    among: np.ndarray, entries: list[dict[str, Any]], key: str, file: Path, problems: list[str]
) -> np.ndarray:
    """The place of each annotation's image or category, -1 where there is none."""
    numbers = integers(entries, key, "annotation", file, problems)
    places = index_of(numbers, among)
    unknown = np.flatnonzero((places < 0) & (numbers != MISSING))
    if len(unknown):
        shown = first_few(np.unique(numbers[unknown]).tolist())
        problems.append(
            f"{file}: {counted(len(unknown), 'annotation')} whose {key} is not in the file: {shown}"
        )
    return places


def column_in(
    names: Sequence[str], own: Sequence[str], first: Path, file: Path, problems: list[str]
) -> np.ndarray:
    """The column of each of a file's own labels, by name: two files may differ in their order."""
    differing = sorted(set(names) ^ set(own))
    if differing:
        problems.append(
            f"{first} and {file} have different categories: only one of them has "
            f"{first_few(differing)}"
        )
    place = {name: column for column, name in enumerate(names)}
    return np.array([place.get(name, -1) for name in own], dtype=np.int64)


def unique_ids(ids: Sequence[np.ndarray], names: Sequence[str], notes: list[str]) -> np.ndarray:
    """The images' ids as texts, with the part's name before each where two parts share one."""
    every = np.concatenate(ids)
    if len(np.unique(every)) == len(every):
        return every.astype(str)
    notes.append(f"{' and '.join(names)} share image ids: each id begins with the part's name")
    return np.concatenate(
        [np.char.add(f"{name}-", own.astype(str)) for name, own in zip(names, ids, strict=True)]
    )


def splits_of(parts: Sequence[Part], sizes: Sequence[int]) -> np.ndarray | None:
    if parts[0].split is None:
        return None
    return np.repeat([str(part.split) for part in parts], sizes)


def split_notes(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        if part.split == "test":
            yield f"{part.name} is the test set: the official test images have no public labels"
