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
    fully_known,
    image_folder,
    index_in,
    locate,
    read_lines,
    read_texts,
)
from partly.texts import Texts, concatenated

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
    listed = [_first_words(read_texts(folder / name)) for name in PARTS.values()]
    ids = concatenated(listed)
    labelled, positive = _labels(file, len(names))
    places = index_in(ids, labelled)
    raise_if(_missing(file, ids, places), DataError)
    unused = len(labelled) - len(np.unique(places))
    notes = [f"{counted(unused, 'image')} of {LABELS} in no part: left out"] if unused else []
    root = folder.parent if folder.name == FOLDER else folder
    usual = image_folder([root], "ready_chinese_food")
    return fully_known(
        positive[places],
        ids=ids,
        names=names,
        paths=locate(usual if images is None else chosen_folder(images), ids),
        splits=np.repeat(list(PARTS), [len(part) for part in listed]),
        notes=notes,
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

    _, first = next(read_lines(file), (0, ""))
    width = len(first.split(" ")) - 1
    if width != labels:
        raise DataError(f"{file} has {width} labels a line for {labels} names of {NAMES}")
    kinds = {"image": arrow.string()} | {str(column): arrow.int8() for column in range(labels)}
    try:
        table = csv.read_csv(
            file,
            read_options=csv.ReadOptions(column_names=list(kinds)),
            parse_options=csv.ParseOptions(delimiter=" ", quote_char=False),
            convert_options=csv.ConvertOptions(column_types=kinds, null_values=[]),
        )
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"cannot read {file}: {error}") from None
    values = np.stack([table[column].to_numpy() for column in range(1, labels + 1)], axis=1)
    strange = np.argwhere((values < -1) | (values > 1))
    if len(strange):
        row, column = strange[0]
        raise LabelError(
            f"{file}, {table['image'][int(row)]}: label {column} is {values[row, column]}, not 1, "
            "-1 or 0"
        )
    return _first_words(Texts.of(table["image"])), (values == 1).view(np.int8)
