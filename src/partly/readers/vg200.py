"""VG-200: vg_category_200_labels_index.json with train_list_500.txt and test_list_500.txt.

The 200 most frequent labels of Visual Genome: the JSON has the numbers of an image's labels, the
lists its part. The images lie in `VG_100K/` and, if they are not all together, `VG_100K_2/`.

Options: absent=negative or unknown, what a label is that the image does not have (the annotators of
Visual Genome did not look for every label); names=FILE, one label name a line; images=FOLDER, which
holds `VG_100K/` and `VG_100K_2/`, or the images themselves.
"""

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from partly.errors import DataError, first_few, raise_if
from partly.labels import LabelTable
from partly.readers.common import (
    choose,
    chosen_folder,
    counted,
    find,
    fully_known,
    index_in,
    label_names,
    locate,
    read_json,
    read_texts,
)
from partly.texts import Texts, concatenated

LABELS = 200
INDEX = "vg_category_200_labels_index.json"
LISTS = {"train": "train_list_500.txt", "test": "test_list_500.txt"}


def recognises(path: Path) -> bool:
    return path.is_dir() and find(path, INDEX) is not None


def read(
    path: Path, *, absent: str = "negative", names: str | None = None, images: str | None = None
) -> LabelTable:
    """Both parts, one below the other."""
    choose(absent, "absent", ("negative", "unknown"))
    index = find(path, INDEX)
    if index is None:
        raise DataError(f"{path} has no {INDEX}")
    lists = {split: index.parent / name for split, name in LISTS.items()}
    raise_if([f"there is no {file}" for file in lists.values() if not file.is_file()], DataError)
    listed = [read_texts(file) for file in lists.values()]
    ids = concatenated(listed)
    rows, columns, unused = _positives(index, ids)
    called, notes = label_names(names, LABELS)
    if unused:
        notes.append(f"{counted(unused, 'image')} of {index.name} in neither list: left out")
    shared: dict[str, Any] = {
        "ids": ids,
        "names": called,
        "paths": _paths(index.parent if images is None else chosen_folder(images), ids),
        "splits": np.repeat(list(lists), [len(part) for part in listed]),
    }
    if absent == "unknown":
        notes.append("only positives are known (absent=unknown)")
        ones = np.ones(len(rows), dtype=np.int8)
        return LabelTable.from_entries(rows, columns, ones, notes=notes, **shared)
    notes.append("a label that Visual Genome does not give an image is read as negative")
    positive = np.zeros((len(ids), LABELS), dtype=np.int8)
    positive[rows, columns] = 1
    return fully_known(positive, notes=notes, **shared)


def _positives(index: Path, ids: Texts) -> tuple[np.ndarray, np.ndarray, int]:
    """Row and column of every positive, and how many images of the index are in no list."""
    content = read_json(index)
    raise_if(_problems(index, content), DataError)
    annotated = Texts.of(list(content))
    places = index_in(ids, annotated)
    missing = np.flatnonzero(places < 0)
    if len(missing):
        few = first_few([ids[row] for row in missing[:6]])
        raise DataError(f"{index} has no labels for {counted(len(missing), 'listed image')}: {few}")
    lengths = np.fromiter(map(len, content.values()), dtype=np.int64, count=len(content))
    numbers = np.fromiter(chain.from_iterable(content.values()), np.int64, int(lengths.sum()))
    row_of = np.full(len(content), -1, dtype=np.int64)
    row_of[places] = np.arange(len(ids))
    rows = np.repeat(row_of, lengths)
    used = rows >= 0
    return rows[used], numbers[used], int((row_of < 0).sum())


def _problems(index: Path, content: Any) -> Iterator[str]:
    if not isinstance(content, dict):
        yield f"{index} is no JSON object of images and their labels"
        return
    allowed = set(range(LABELS))
    strange = [
        image
        for image, numbers in content.items()
        if not isinstance(numbers, list) or not allowed.issuperset(map(_whole, numbers))
    ]
    if strange:
        yield f"{index}: labels are numbers from 0 to {LABELS - 1}, not so for {first_few(strange)}"


def _whole(number: Any) -> int:
    """-1 for what is no whole number: nested lists and texts among them."""
    return number if type(number) is int else -1


def _paths(root: Path, names: Texts) -> Texts:
    """In VG_100K, or VG_100K_2 if it is there."""
    import pyarrow as arrow
    from pyarrow import compute

    first, second = root / "VG_100K", root / "VG_100K_2"
    if not second.is_dir():
        inside = first.is_dir() or first.with_name("VG_100K.tar").is_file()
        alone = not inside and (root / names[0]).is_file()
        return locate(root if alone else first, names)
    there = Texts.of(os.listdir(second))
    in_second = arrow.array(index_in(names, there) >= 0)
    paths = compute.if_else(in_second, locate(second, names).arrow(), locate(first, names).arrow())
    return Texts.of(paths)
