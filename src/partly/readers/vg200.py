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
    locate_in,
    read_json,
    read_lists,
)
from partly.texts import Texts

LABELS = 200
INDEX = "vg_category_200_labels_index.json"
FOLDERS = ("VG_100K", "VG_100K_2")
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
    ids, splits, notes = read_lists(lists)
    rows, columns, unused = _positives(index, ids)
    called, more = label_names(names, LABELS)
    notes += more
    if unused:
        notes.append(f"{counted(unused, 'image')} of {index.name} in neither list: left out")
    shared: dict[str, Any] = {
        "ids": ids,
        "names": called,
        "paths": locate_images(
            chosen_folder(images) if images else index.parent, ids, named=bool(images)
        ),
        "splits": splits,
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
    content = read_json(index, kind=dict)
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


def _problems(index: Path, content: dict[str, Any]) -> Iterator[str]:
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


# Images of Visual Genome


def locate_images(root: Path, names: Texts, named: bool) -> Texts:
    """Each image in the one of the two folders, or tars, that has it; in the first if none has.

    Where neither has any, the images lie in `root` itself if it has some, or if the user named it.
    """
    folders = [root / name for name in FOLDERS]
    first, second = (_are_in(folder, names) for folder in folders)
    if not first.any() and not second.any() and (named or _are_in(root, names).any()):
        return locate(root, names)
    return locate_in(folders, (second & ~first).astype(np.int64), names)


def _are_in(folder: Path, names: Texts) -> np.ndarray:
    """Which images lie in a folder, or in the tar in its place."""
    from pyarrow import compute

    if folder.is_dir():
        return index_in(names, Texts.of(os.listdir(folder))) >= 0
    return compute.ends_with(locate(folder, names).arrow(), "]").to_numpy(zero_copy_only=False)
