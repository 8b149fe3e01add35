"""A text file with a line an image, name.jpg,3 17 42: the numbers of its known positives.

Everything else is unknown, so that no negative is known. A list may be empty.

Options: names=FILE, one label name a line; labels=N, how many labels there are, else as many as the
largest number says (up to 100,000); images=FOLDER, where the images lie, else beside the file.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from partly.errors import ConfigError, DataError, raise_if
from partly.labels import LabelTable
from partly.readers.common import (
    chosen_folder,
    counted,
    label_names,
    line_number,
    locate,
    read_lines,
    read_texts,
)
from partly.texts import Texts

MOST = 100_000  # labels that one number can make
LINE = re.compile(r"[^,]+\.(jpe?g|png|webp|bmp|gif|tiff?)\s*,[\d\s]*", re.IGNORECASE)


def recognises(path: Path) -> bool:
    if path.suffix.lower() not in (".txt", ".csv") or not path.is_file():
        return False
    try:
        _, first = next(read_lines(path), (0, ""))
    except DataError:
        return False
    return LINE.fullmatch(first) is not None


def read(
    path: Path,
    *,
    names: str | None = None,
    labels: int | None = None,
    images: str | None = None,
) -> LabelTable:
    """One row a line, in the order of the file."""
    image_names, rows, numbers = _parse(path)
    count = _count(path, rows, numbers, labels, names)
    called, notes = label_names(names, count)
    if names is None and labels is None:
        notes.append(f"{count} labels, as the largest number in the file says (labels=N sets it)")
    without = len(image_names) - len(np.unique(rows))
    if without:
        notes.append(f"{counted(without, 'image')} without a known label")
    return LabelTable.from_entries(
        rows,
        numbers,
        np.ones(len(rows), dtype=np.int8),
        ids=image_names,
        names=called,
        paths=locate(path.parent if images is None else chosen_folder(images), image_names),
        notes=["only positives are known", *notes],
    )


def _parse(file: Path) -> tuple[Texts, np.ndarray, np.ndarray]:
    """The images, and row and number of each of their labels."""
    import pyarrow as arrow
    from pyarrow import compute

    lines = read_texts(file)
    if not len(lines):
        raise DataError(f"{file} has no line")
    pattern = r"^(?P<image>.*\S)\s*,(?P<numbers>[\d\s]*)$"
    parts = compute.extract_regex(lines.arrow(), pattern=pattern)
    raise_if(_strange_lines(file, lines, ~_filled(parts)), DataError)
    images, numbers = (parts.field(name) for name in ("image", "numbers"))
    words = compute.utf8_split_whitespace(compute.utf8_trim_whitespace(numbers))
    rows, flat = compute.list_parent_indices(words), words.flatten()
    there = compute.not_equal(flat, "")
    try:
        values = flat.filter(there).cast(arrow.int64()).to_numpy()
    except arrow.ArrowInvalid as error:
        raise DataError(f"{file}: {error}") from None
    return Texts.of(images), rows.filter(there).to_numpy().astype(np.int64), values


def _filled(column: Any) -> np.ndarray:
    return np.asarray(column.is_valid(), dtype=bool)


def _strange_lines(file: Path, lines: Texts, strange: np.ndarray) -> Iterator[str]:
    places = np.flatnonzero(strange)
    for place in places[:5].tolist():
        yield (
            f"{file}, line {line_number(file, place)}: '{lines[place]}' is not an image, a comma "
            "and numbers"
        )
    if len(places) > 5:
        yield f"{file}: {len(places) - 5:,} more lines are not"


def _count(
    file: Path, rows: np.ndarray, numbers: np.ndarray, labels: int | None, names: str | None
) -> int:
    """How many labels there are: as said, as named, or as the largest number needs."""
    needed = int(numbers.max(initial=-1)) + 1
    named = None if names is None else sum(1 for _ in read_lines(Path(names)))
    if labels is not None and (isinstance(labels, bool) or not str(labels).isdigit()):
        raise ConfigError(f"labels is a number of labels, not {labels}")
    if labels is not None and named is not None and int(labels) != named:
        raise ConfigError(f"labels={labels}, but {names} has {named} names")
    said = named if labels is None else int(labels)
    if said is None and not needed:
        raise DataError(f"{file} has no label at all; labels=N says how many there are")
    if said is not None and needed > said:
        outside = int(np.flatnonzero(numbers >= said)[0])
        line = line_number(file, int(rows[outside]))
        raise DataError(
            f"{file}, line {line}: there is no label {numbers[outside]}, the {said} labels are "
            f"0 … {said - 1}"
        )
    if said is None and needed > MOST:
        line = line_number(file, int(rows[numbers.argmax()]))
        raise DataError(
            f"{file}, line {line}: the number {needed - 1} would make {needed:,} labels; mend the "
            "line, or say how many labels there are: labels=N"
        )
    return needed if said is None else said
