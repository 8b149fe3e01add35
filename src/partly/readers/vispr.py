"""VISPR: {train,val,test}2017/ with one JSON file an image, 68 attributes of privacy.

A file has `id`, `image_path` and `labels`, the attributes that the image has; it has none of the
others. The names of the attributes come from `attributes.tsv`, or from the files where it is
missing. The images lie as `image_path` says, in `images/train2017/`, or beside their annotations.

Options: images=FOLDER, what `images/` stands for.
"""

import csv
import re
from collections.abc import Iterator
from itertools import islice
from os import scandir
from pathlib import Path
from typing import Any

import numpy as np

from partly.errors import DataError, first_few, raise_if
from partly.labels import LabelTable
from partly.readers.common import (
    chosen_folder,
    counted,
    find,
    first_of_each,
    fully_known,
    locate,
    read_json,
)
from partly.texts import Texts

SHOWN = 20  # problems that are named
PARTS = {"train": "train2017", "validation": "val2017", "test": "test2017"}


def recognises(path: Path) -> bool:
    return path.is_dir() and any(_has_json(folder) for folder in _folders(path).values())


def read(path: Path, *, images: str | None = None) -> LabelTable:
    """All parts that are there, one below the other."""
    folders = {part: folder for part, folder in _folders(path).items() if _has_json(folder)}
    if not folders:
        raise DataError(f"{path} has no folder {', '.join(PARTS.values())} with annotations")
    root = next(iter(folders.values())).parent
    files = {
        part: sorted(file for file in folder.iterdir() if file.suffix.lower() == ".json")
        for part, folder in folders.items()
    }
    ids: list[str] = []
    image_names: list[str] = []
    rows: list[int] = []
    found: list[str] = []
    problems: list[str] = []
    for file in (file for listed in files.values() for file in listed):
        try:
            annotation = _annotation(file)
        except DataError as error:
            problems += error.problems
            continue
        rows += [len(ids)] * len(annotation["labels"])
        found += annotation["labels"]
        ids.append(str(annotation.get("id", file.stem)))
        image_names.append(annotation["image_path"])
    if len(problems) > SHOWN:
        problems[SHOWN:] = [f"and {len(problems) - SHOWN:,} more files that cannot be used"]
    raise_if(problems, DataError)
    names, notes = _names(root, found)
    positive = np.zeros((len(ids), len(names)), dtype=np.int8)
    column_of = {name: column for column, name in enumerate(names)}
    positive[rows, [column_of[label] for label in found]] = 1
    splits = np.repeat(list(files), [len(listed) for listed in files.values()])
    every = [str(file) for listed in files.values() for file in listed]
    kept, more = first_of_each(Texts.of(ids), [positive, splits], every.__getitem__)
    return fully_known(
        positive[kept],
        ids=Texts.of(ids)[kept],
        names=names,
        paths=_paths(root, Texts.of(image_names)[kept], images),
        splits=splits[kept],
        notes=[*notes, *more],
    )


def _folders(path: Path) -> dict[str, Path]:
    found = {part: find(path, name) for part, name in PARTS.items()}
    return {part: folder for part, folder in found.items() if folder is not None}


def _has_json(folder: Path) -> bool:
    """Annotations, not only images as in COCO's folders of the same names. A look at the first
    entries tells: where both lie together, half of them are annotations."""
    if not folder.is_dir():
        return False
    with scandir(folder) as entries:
        return any(entry.name.lower().endswith(".json") for entry in islice(entries, 1000))


def _annotation(file: Path) -> dict[str, Any]:
    annotation = read_json(file, kind=dict)
    if not {"image_path", "labels"} <= annotation.keys():
        raise DataError(f"{file}: an annotation has image_path and labels")
    labels = annotation["labels"]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise DataError(f"{file}: labels is a list of attributes such as a4_gender")
    if not isinstance(annotation["image_path"], str):
        raise DataError(f"{file}: image_path is a text")
    return annotation


def _names(root: Path, found: list[str]) -> tuple[list[str], list[str]]:
    """The attributes in the order of attributes.tsv, or of their numbers."""
    occurring = set(found)
    file = root / "attributes.tsv"
    if not file.is_file():
        names = sorted(occurring, key=_number)
        return names, [f"no attributes.tsv: {counted(len(names), 'label')} that occur are read"]
    names = list(_listed(file))
    strange = sorted(occurring - set(names), key=_number)
    if strange:
        raise DataError(f"labels that are not in {file}: {first_few(strange)}")
    return names, []


def _listed(file: Path) -> Iterator[str]:
    """The attributes that have a number; attributes.tsv also lists some that were given up."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {file}: {error}") from None
    if not rows or not {"idx", "attribute_id"} <= rows[0].keys():
        raise DataError(f"{file} has no columns idx and attribute_id")
    numbered = [row for row in rows if (row["idx"] or "").strip().isdigit()]
    for row in sorted(numbered, key=lambda row: int(row["idx"])):
        yield row["attribute_id"].strip()


def _number(label: str) -> tuple[int, str]:
    """a9_… before a10_…"""
    digits = re.search(r"\d+", label)
    return int(digits[0]) if digits else -1, label


def _paths(root: Path, names: Texts, images: str | None) -> Texts:
    from pyarrow import compute

    inner = Texts.of(compute.replace_substring_regex(names.arrow(), r"^/?images/", ""))
    if images is not None:
        return locate(chosen_folder(images), inner)
    folder = root / "images"
    beside = not folder.is_dir() and not (root / "images.tar").is_file()
    return locate(root if beside else folder, inner)
