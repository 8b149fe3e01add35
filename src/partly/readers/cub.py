"""CUB-200-2011: `images.txt`, `train_test_split.txt`, `attributes/image_attribute_labels.txt`.

The path is CUB_200_2011, or a folder around it; the images lie in its `images/`. The labels are the
312 attributes, all of them known; `attributes.txt`, which names them, lies in the folder, in
`attributes/` or beside.

Options: certainty=0, 1, 2, 3 or 4: a label given with less certainty than this is unknown. 1 is
"not visible", 2 "guessing", 3 "probably", 4 "definitely": 2 makes unknown what was not visible, 0
nothing.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from partly.errors import ConfigError, DataError, LabelError, first_few, raise_if
from partly.labels import LabelTable
from partly.readers.columns import contradicted_entries
from partly.readers.common import counted, index_of, locate, read_lines
from partly.readers.paper import differences
from partly.texts import Texts

_LABELS = Path("attributes") / "image_attribute_labels.txt"
_FIELDS = ("image", "attribute", "present", "certainty")


def recognises(path: Path) -> bool:
    return _folder(path) is not None


def read(path: Path, *, certainty: int = 0) -> LabelTable:
    """Every image of both parts."""
    if str(certainty) not in ("0", "1", "2", "3", "4"):
        raise ConfigError(f"certainty is a number from 0 to 4, not '{certainty}'")
    folder = _folder(path)
    if folder is None:
        raise DataError(f"{path} has no images.txt with {_LABELS} beside it")
    problems: list[str] = []
    images = _read_named(folder / "images.txt", problems)
    parts = _read_named(folder / "train_test_split.txt", problems)
    attributes = _read_named(_attributes_file(folder), problems)
    problems += _split_problems(folder / "train_test_split.txt", images, parts)
    raise_if(problems, DataError)
    numbers = np.array(list(images), dtype=np.int64)
    entries, irregular = _read_labels(folder / _LABELS)
    rows = index_of(entries["image"], numbers)
    columns = index_of(entries["attribute"], np.array(list(attributes), dtype=np.int64))
    raise_if(_label_problems(folder / _LABELS, entries, rows, columns), DataError)
    sure = entries["certainty"] >= int(certainty)
    raise_if(_contradictions(folder / _LABELS, entries, rows, columns, sure), LabelError)
    table = LabelTable.from_entries(
        rows[sure],
        columns[sure],
        entries["present"][sure],
        ids=numbers,
        names=list(attributes.values()),
        paths=locate(folder / "images", Texts.of(list(images.values()))),
        splits=np.array(["train" if parts[number] == "1" else "test" for number in images]),
    )
    notes = _notes(table, int((~sure).sum()), irregular, int(certainty))
    return replace(table, notes=tuple(notes), checked=True)


def _notes(table: LabelTable, unsure: int, irregular: int, certainty: int) -> Iterator[str]:
    if irregular:
        lines = counted(irregular, "line")
        yield f"{lines} with more than the usual five fields: their first four were read"
    if certainty:
        yield f"{counted(unsure, 'label')} with a certainty below {certainty}: unknown"
    never = len(table) * len(table.names) - table.known - unsure
    if never > 0:
        yield f"{counted(never, 'label')} not in the file: unknown"
    yield from differences("cub", table)
    if certainty:
        yield "the paper's counts are those of all labels, however certain (certainty=0)"


# Files


def _folder(path: Path) -> Path | None:
    """The folder may lie in one of the same name."""
    for folder in (path, path / "CUB_200_2011", path / "CUB_200_2011" / "CUB_200_2011"):
        if (folder / "images.txt").is_file() and (folder / _LABELS).is_file():
            return folder
    return None


def _attributes_file(folder: Path) -> Path:
    places = (folder, folder / "attributes", folder.parent)
    for place in places:
        if (place / "attributes.txt").is_file():
            return place / "attributes.txt"
    raise DataError(
        f"no attributes.txt with the names of the attributes in {first_few(places)}; in the "
        "official archive it lies beside the folder CUB_200_2011"
    )


def _read_named(file: Path, problems: list[str]) -> dict[int, str]:
    """A file of lines `number text`."""
    found: dict[int, str] = {}
    strange = []
    for line_number, line in read_lines(file):
        number, *text = line.split(maxsplit=1)
        if not number.isdecimal() or not text or int(number) in found:
            strange.append(f"line {line_number} '{line}'")
            continue
        found[int(number)] = text[0]
    if strange:
        problems.append(
            f"{file}: {counted(len(strange), 'line')} not of a new number and a text: "
            f"{first_few(strange, 3)}"
        )
    return found


def _split_problems(file: Path, images: dict[int, str], parts: dict[int, str]) -> Iterator[str]:
    differing = sorted(images.keys() ^ parts.keys())
    if differing:
        yield f"{file} and images.txt list different images: {first_few(differing)}"
    strange = [number for number, word in parts.items() if word not in ("0", "1")]
    if strange:
        yield f"{file}: images with neither 1 (training) nor 0 (test): {first_few(strange)}"


# Millions of lines


def _read_labels(file: Path) -> tuple[dict[str, np.ndarray], int]:
    """The first four fields of every line as columns, and how many lines had not five.

    Some lines of the official file have more; they are told from the others as pyarrow reads.
    """
    import pyarrow as arrow
    from pyarrow import csv

    others: list[str] = []

    def keep(row: Any) -> str:
        if row.text.strip():
            others.append(row.text)
        return "skip"

    types = dict.fromkeys(_FIELDS, arrow.int32())
    try:
        table = csv.read_csv(
            file,
            # A thread could hold `keep` beyond the interpreter's end, which aborts the process.
            csv.ReadOptions(column_names=[*_FIELDS, "time"], use_threads=False),
            csv.ParseOptions(delimiter=" ", quote_char=False, invalid_row_handler=keep),
            csv.ConvertOptions(column_types=types, include_columns=_FIELDS),
        )
        fast = [table[name].to_numpy() for name in _FIELDS]
        slow = np.array([line.split()[:4] for line in others], dtype=np.int32).reshape(-1, 4)
    except (OSError, ValueError, OverflowError, arrow.ArrowException) as error:
        problem = _line_problem(file) or f"cannot read {file}: {error}"
        raise DataError(problem) from None
    columns = [np.concatenate([a, b]) for a, b in zip(fast, slow.T, strict=True)]
    irregular = sum(len(line.split()) != 5 for line in others)  # others have only more spaces
    return dict(zip(_FIELDS, columns, strict=True)), irregular


def _line_problem(file: Path) -> str | None:
    """Only when something is wrong: line by line, to say where."""
    strange = [
        f"line {number} '{line}'" for number, line in read_lines(file) if not _is_right(line)
    ]
    if not strange:
        return None
    what = "not of image, attribute, present and certainty, all of them whole numbers"
    return f"{file}: {counted(len(strange), 'line')} {what}: {first_few(strange, 3)}"


def _is_right(line: str) -> bool:
    fields = line.split()[:4]
    return len(fields) == 4 and all(field.isdecimal() and len(field) < 10 for field in fields)


def _label_problems(
    file: Path, entries: dict[str, np.ndarray], rows: np.ndarray, columns: np.ndarray
) -> Iterator[str]:
    present = entries["present"]
    checks = (
        ("image", rows < 0, "that images.txt does not list"),
        ("attribute", columns < 0, "that attributes.txt does not list"),
        ("present", (present != 0) & (present != 1), "that is neither 1 nor 0"),
    )
    for field, wrong, what in checks:
        if wrong.any():
            values = first_few(np.unique(entries[field][wrong]).tolist())
            count = counted(int(wrong.sum()), "line")
            place = _FIELDS.index(field)
            lines = _lines_with(file, slice(place, place + 1), entries[field][wrong][:, None])
            yield f"{file}: {count} with a number under {field} {what}: {values} (line {lines})"


def _contradictions(
    file: Path,
    entries: dict[str, np.ndarray],
    rows: np.ndarray,
    columns: np.ndarray,
    sure: np.ndarray,
) -> Iterator[str]:
    labels = int(columns.max(initial=0)) + 1
    both = contradicted_entries(rows[sure], columns[sure], entries["present"][sure], labels)
    if len(both):
        pairs = np.stack([entries["image"][sure][both], entries["attribute"][sure][both]], axis=1)
        image, attribute = pairs[0].tolist()
        count = counted(len(np.unique(pairs, axis=0)), "label")
        yield (
            f"{file}: {count} both 1 and 0, such as attribute {attribute} of image {image}: line "
            f"{_lines_with(file, slice(0, 2), pairs[:1])}"
        )


def _lines_with(file: Path, fields: slice, numbers: np.ndarray) -> str:
    """The lines with one of these rows of numbers in these fields: read again to say where."""
    wanted = set(map(tuple, numbers.tolist()))
    found = (
        number
        for number, line in read_lines(file)
        if tuple(map(int, line.split()[:4][fields])) in wanted
    )
    return first_few(list(found))
