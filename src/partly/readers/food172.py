"""Vireo Food-172: SplitAndIngreLabel/ with 353 ingredients, images in ready_chinese_food/.

`IngreLabel.txt` has a line an image, `/1/4_41.jpg -1 1 …`: 1 if the ingredient is there, -1 or 0 if
not. `TR.txt`, `VAL.txt` and `TE.txt` list the parts, `IngredientList.txt` the names.

Options: images=FOLDER, where the images lie.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from partly.errors import DataError, LabelError, first_few, raise_if
from partly.labels import LabelTable
from partly.readers.common import (
    chosen_folder,
    counted,
    find,
    first_of_each,
    fully_known,
    image_folder,
    index_in,
    line_place,
    locate,
    read_lines,
    read_lists,
    read_texts,
)
from partly.texts import Texts

FOLDER = "SplitAndIngreLabel"
LABELS = "IngreLabel.txt"
NAMES = "IngredientList.txt"
PARTS = {"train": "TR.txt", "validation": "VAL.txt", "test": "TE.txt"}


def recognises(path: Path) -> bool:
    return path.is_dir() and find(path, f"{FOLDER}/{LABELS}", LABELS) is not None


def read(path: Path, *, images: str | None = None) -> LabelTable:
    """All three parts, one below the other."""
    file = find(path, f"{FOLDER}/{LABELS}", LABELS)
    if file is None:
        raise DataError(f"{path} has no {FOLDER}/{LABELS}")
    folder = file.parent
    wanted = [folder / name for name in (*PARTS.values(), NAMES)]
    raise_if([f"there is no {other}" for other in wanted if not other.is_file()], DataError)
    names = [text for _, text in read_lines(folder / NAMES)]
    lists = {split: folder / name for split, name in PARTS.items()}
    ids, splits, notes = read_lists(lists, _first_words)
    labelled, positive = _labels(file, len(names))
    same = first_of_each(labelled, [positive], lambda row: line_place(file, row))[1]
    places = index_in(ids, labelled)  # of several lines that say the same, the first
    raise_if(_missing(file, ids, places), DataError)
    unused = int((index_in(labelled, ids) < 0).sum())
    notes += [f"{counted(unused, 'image')} of {LABELS} in no part: left out"] if unused else []
    root = folder.parent if folder.name == FOLDER else folder
    usual = image_folder([root], "ready_chinese_food")
    return fully_known(
        positive[places],
        ids=ids,
        names=names,
        paths=locate(usual if images is None else chosen_folder(images), ids),
        splits=splits,
        notes=[*notes, *same],
    )


def _missing(file: Path, ids: Texts, places: np.ndarray) -> Iterator[str]:
    missing = np.flatnonzero(places < 0)
    if len(missing):
        few = first_few([ids[row] for row in missing[:6]])
        yield f"{file} has no labels for {counted(len(missing), 'listed image')}: {few}"


def _first_words(lines: Texts) -> Texts:
    """`/1/4_41.jpg …` as `1/4_41.jpg`."""
    from pyarrow import compute

    return Texts.of(compute.replace_substring_regex(lines.arrow(), r"^/*(\S+).*$", r"\1"))


def _labels(file: Path, labels: int) -> tuple[Texts, np.ndarray]:
    """The images of IngreLabel.txt, and positives [N, L]."""
    import pyarrow as arrow
    from pyarrow import csv

    lines = read_texts(file)
    width = len(lines[0].split(" ")) - 1 if len(lines) else 0
    if width != labels:
        raise DataError(f"{file} has {width} labels a line for {labels} names of {NAMES}")
    kinds = {"image": arrow.string()} | {str(column): arrow.int8() for column in range(labels)}
    try:
        table = csv.read_csv(
            arrow.py_buffer(lines.joined("", "\n").data),
            read_options=csv.ReadOptions(column_names=list(kinds)),
            parse_options=csv.ParseOptions(delimiter=" ", quote_char=False),
            convert_options=csv.ConvertOptions(column_types=kinds, null_values=[]),
        )
    except arrow.ArrowException as error:
        raise_if(_strange_lines(file, labels), LabelError)
        raise DataError(f"cannot read {file}: {error}") from None
    values = np.stack([table[column].to_numpy() for column in range(1, labels + 1)], axis=1)
    if values.min() < -1 or values.max() > 1:
        raise_if(_strange_lines(file, labels), LabelError)
    return _first_words(Texts.of(table["image"])), (values == 1).view(np.int8)


def _strange_lines(file: Path, labels: int) -> Iterator[str]:
    """Only when something is wrong: line by line, to say where."""
    strange = [
        f"line {number} ({line[:40]})"
        for number, line in read_lines(file)
        if len(words := line.split(" ")) != labels + 1 or not {"1", "-1", "0"}.issuperset(words[1:])
    ]
    if strange:
        yield (
            f"{file}: {counted(len(strange), 'line')} not of an image and {labels} labels that are "
            f"1, -1 or 0, one space between them: {first_few(strange)}"
        )
