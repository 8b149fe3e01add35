"""A CSV or Parquet file: one row an image and one column a label, or one row a label of an image.

Wide: a column `path` (or `image`, `file`, `filename`) relative to the file, optional `id` and
`split` (train, validation, test), all of them in any case, and every other column is a label: 1
positive, 0 negative, empty or -1 unknown (or what the convention says). true and false are
understood as 1 and 0.

Long: the path column, `label` and `value`, optional `id` and `split`, and no other column. A row
with an empty label is an image of which nothing is known. Without `value` each row is a known
positive: `path,label` with texts such as cat in the column label.

In both forms rows of one image (one id, or one path where there are no ids) are put together; it is
an error if they contradict each other. A folder may hold the file as manifest.csv or
manifest.parquet.

Options: convention, what a number means: partly, 1 positive, 0 negative, -1 unknown; nan, the same,
and a cell nan is unknown; signed, 1 positive, -1 negative, 0 unknown (or not ticked).
ignore=width,height: columns that are no labels.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from partly.errors import DataError, LabelError, first_few, raise_if
from partly.labels import CONVENTIONS, NEGATIVE, POSITIVE, SPLITS, UNKNOWN, LabelTable
from partly.readers.columns import (
    FEW,
    Coded,
    code,
    contradicted_entries,
    contradictions,
    empty_cells,
    more,
    opposed,
    places_of,
    read_repetitive,
)
from partly.readers.common import SPLIT_WORDS, choose, counted
from partly.texts import Texts

PATH_COLUMNS = ("path", "image", "file", "filename")
FILES = ("manifest.csv", "manifest.parquet")
LONG = ("label", "value")
ADVICE = "keep one row of each"

Words = dict[str, int]


class Images(NamedTuple):
    """The images of a manifest: the image of each row of the file [R], then what each of them is.

    firsts: the row that names an image first.
    """

    of_row: np.ndarray
    firsts: np.ndarray
    ids: Texts
    paths: Texts
    splits: np.ndarray | None

    def of_table(self) -> dict[str, Any]:
        """What a label table holds of them."""
        return {"ids": self.ids, "paths": self.paths, "splits": self.splits}


def recognises(path: Path) -> bool:
    if path.is_dir():
        return any((path / name).is_file() for name in FILES)
    return path.suffix.lower() in (".csv", ".parquet")


def read(path: Path, convention: str = "partly", ignore: str | None = None) -> LabelTable:
    """The manifest's label table."""
    words = _words(convention)
    file, columns, path_column = _open(path)
    ignored = [name.strip() for name in (ignore or "").split(",") if name.strip()]
    absent = [name for name in ignored if name not in columns]
    if absent:
        raise DataError(f"{file} has no column {', '.join(absent)} to ignore")
    names = [n for n in columns if n not in (path_column, "id", "split", *ignored)]
    if not names:
        raise DataError(f"{file} has no label column beside {path_column}")
    others = [name for name in names if name not in LONG]
    if others and len(names) == len(others) + len(LONG):
        raise DataError(f"{file}: the long form has no other column: {first_few(others)}")
    images, problems = _images(file, columns, path_column)
    chosen = {name: columns.pop(name) for name in names}
    if names == ["label"] and _are_names(chosen["label"], words):
        return _read_long(file, chosen, images, words, problems)
    form = _read_wide if others or len(names) < len(LONG) else _read_long
    return form(file, chosen, images, words, problems)


def _are_names(column: Any, words: Words) -> bool:
    """Whether the cells of a column are names of labels: none of them is a label's value."""
    texts = [text.lower() for text in code(column).texts if text]
    return bool(texts) and not any(text in words for text in texts)


def read_paths(path: Path) -> tuple[Texts, Texts]:
    """(ids, paths) of every image of a manifest, labelled or not."""
    file, columns, path_column = _open(path)
    images, problems = _images(file, columns, path_column)
    raise_if(problems, DataError)
    return images.ids, images.paths


def _open(path: Path) -> tuple[Path, dict[str, Any], str]:
    """The file, its columns, and which of them holds the images' paths."""
    file = path
    if path.is_dir():
        file = next((path / name for name in FILES if (path / name).is_file()), path / FILES[0])
    columns = read_repetitive(file)
    found = [_called(columns, *names) for names in (PATH_COLUMNS, ("id",), ("split",))]
    if found[0] is None:
        raise DataError(
            f"{file} has no column with image paths: name one of its columns "
            f"{', '.join(PATH_COLUMNS)} (it has {first_few(list(columns))}){_separated(columns)}"
        )
    columns = {name.lower() if name in found else name: columns[name] for name in columns}
    return file, columns, found[0].lower()


def _separated(columns: Iterable[str]) -> str:
    """What to do about a file that a spreadsheet saved with another separator than the comma."""
    found = {";": "semicolons", "\t": "tabs"}
    header = "".join(columns)
    words = [word for mark, word in found.items() if mark in header]
    return f"; its cells are separated by {words[0]}: save it with commas" if words else ""


def _called(columns: Iterable[str], *names: str) -> str | None:
    """The column of the first of these names, or else of one that differs only in its case."""
    for written in (str, str.lower):
        for name in names:
            for column in columns:
                if written(column) == name:
                    return column
    return None


def _words(convention: str) -> Words:
    """What the text of a cell means."""
    meaning = CONVENTIONS[choose(convention, "convention", tuple(CONVENTIONS))]
    words = {"": UNKNOWN, "true": POSITIVE, "false": NEGATIVE}
    for number in (1, 0, -1):
        words[str(number)] = words[f"{number}.0"] = meaning[number]
    return words | ({"nan": UNKNOWN} if convention == "nan" else {})


# Images


def _images(file: Path, columns: dict[str, Any], path_column: str) -> tuple[Images, list[str]]:
    """The images that the rows are about, and everything that is wrong with them."""
    paths = code(columns.pop(path_column))
    if not len(paths.codes):
        raise DataError(f"{file} has a header but no image")
    keys = code(columns.pop("id")) if "id" in columns else paths
    problems = [*empty_cells(file, paths, "image path"), *_no_paths(file, paths)]
    if keys is not paths:
        problems += empty_cells(file, keys, "image id")
        problems += _differing(file, keys, paths, "path")
    splits = None
    if "split" in columns:
        cells = _understood(code(columns.pop("split")))
        problems += _strange_splits(file, cells)
        problems += _differing(file, keys, cells, "split")
        splits = np.array(cells.texts)[cells.codes[keys.firsts]]
    own = paths.texts if keys is paths else paths.texts[paths.codes[keys.firsts]]
    return Images(keys.codes, keys.firsts, keys.texts, _beside(file, own), splits), problems


def _no_paths(file: Path, cells: Coded) -> Iterator[str]:
    """Sentences on what can be no path on this system."""
    from pyarrow import compute

    texts = cells.texts.arrow()
    for odd, advice in (
        (compute.match_substring(texts, "://"), "is an address: get the images first"),
        (compute.starts_with(texts, "~/"), "begins with ~: write the whole path"),
        (compute.match_substring(texts, "\\"), f"has \\: write {os.sep} between folders"),
    ):
        found = np.flatnonzero(odd)
        if len(found) and not (os.sep == "\\" and "\\" in advice):
            row = int(cells.firsts[found[0]])
            place = places_of(file, [row])[row]
            yield f"{file}, {place}: the path {cells.texts[found[0]]} {advice}"


def _beside(file: Path, relative: Texts) -> Texts:
    """Paths as the manifest gives them -> paths as they are from here."""
    import pyarrow as arrow
    from pyarrow import compute

    if file.parent == Path():
        return relative
    folder = str(file.parent).rstrip("/") + "/"
    absolute = compute.starts_with(relative.arrow(), "/")
    if not compute.any(absolute).as_py():
        return relative.joined(folder)
    folders = compute.if_else(absolute, "", folder).cast(arrow.large_string())
    nothing = arrow.scalar("", arrow.large_string())
    return Texts.of(compute.binary_join_element_wise(folders, relative.arrow(), nothing))


def _understood(cells: Coded) -> Coded:
    """Splits under the names we give them; a word that is none stays as it is."""
    words = [SPLIT_WORDS.get(word.lower(), word) for word in cells.texts]
    names = list(dict.fromkeys(words))
    number = np.array([names.index(word) for word in words], dtype=np.int32)
    firsts = cells.firsts[[words.index(name) for name in names]]
    return Coded(number[cells.codes], Texts.of(names), firsts)


def _strange_splits(file: Path, cells: Coded) -> Iterator[str]:
    strange = [number for number, word in enumerate(cells.texts) if word not in SPLITS]
    if strange:
        places = places_of(file, cells.firsts[strange[:FEW]].tolist())
        found = [
            f"'{cells.texts[number]}' ({places[int(cells.firsts[number])]})"
            for number in strange[:FEW]
        ]
        listed = ", ".join(found) + more(len(strange))
        yield f"{file}: a split is one of {', '.join(SPLITS)}, not {listed}"


def _differing(file: Path, keys: Coded, cells: Coded, what: str) -> Iterator[str]:
    """A sentence if an image has one path or split in one row and another in another."""
    rows = np.flatnonzero(cells.codes != cells.codes[keys.firsts][keys.codes])
    if not len(rows):
        return
    images, where = np.unique(keys.codes[rows], return_index=True)
    pairs = list(zip(keys.firsts[images[:FEW]].tolist(), rows[where[:FEW]].tolist(), strict=True))
    places = places_of(file, [row for pair in pairs for row in pair])
    shown = [
        f"{keys.texts[keys.codes[one]]} ("
        + ", ".join(f"{places[row]}: {cells.texts[cells.codes[row]]}" for row in (one, other))
        + ")"
        for one, other in pairs
    ]
    occur = "occurs" if len(images) == 1 else "occur"
    yield (
        f"{file}: {counted(len(images), 'image')} {occur} more than once, each time with another "
        f"{what}: {', '.join(shown)}{more(len(images))}"
    )


# Labels


def _meanings(file: Path, name: str, cells: Coded, words: Words, problems: list[str]) -> np.ndarray:
    """The label that each distinct cell of a column stands for."""
    texts = [text.lower() for text in cells.texts]
    strange = [number for number, text in enumerate(texts) if text not in words]
    if strange:
        count = int(np.isin(cells.codes, strange).sum())
        row = int(cells.firsts[strange[0]])
        are = "is not" if count == 1 else "are not"
        problems.append(
            f"{file}, {places_of(file, [row])[row]}, column {name}: '{cells.texts[strange[0]]}' is "
            f"not a label (1, 0, or empty for unknown); {counted(count, 'cell')} of this column "
            f"{are}{_all_of(cells, strange)}"
        )
    return np.array([words.get(text, UNKNOWN) for text in texts], dtype=np.int8)


def _all_of(cells: Coded, strange: Sequence[int]) -> str:
    """The texts that are to be replaced, where there are several."""
    return f": {first_few([cells.texts[number] for number in strange])}" * (len(strange) > 1)


def _read_wide(
    file: Path, columns: dict[str, Any], images: Images, words: Words, problems: list[str]
) -> LabelTable:
    """One row an image, one column a label."""
    names = list(columns)
    labels = np.empty((len(images.of_row), len(names)), dtype=np.int8)
    for number, name in enumerate(names):
        cells = code(columns.pop(name))
        labels[:, number] = _meanings(file, name, cells, words, problems)[cells.codes]
    extra, notes = len(labels) - len(images.ids), []
    contradictions: list[str] = []
    if extra:
        labels, contradictions = _merged(file, labels, images, names)
        notes = [
            f"{counted(extra, 'row')} of images that an earlier row is about: merged with that row"
        ]
    problems += [
        f"{file}: label name number {number} is empty: a column has no name in the header"
        for number, name in enumerate(names)
        if not name
    ]
    raise_if(problems + contradictions, DataError if problems else LabelError)
    return LabelTable.from_dense(labels, names=names, notes=notes, **images.of_table())


def _merged(
    file: Path, labels: np.ndarray, images: Images, names: list[str]
) -> tuple[np.ndarray, list[str]]:
    """The labels of each image [N, L] from those of each row, and where rows do not agree."""
    repeated = np.bincount(images.of_row, minlength=len(images.ids)) > 1
    rows = np.flatnonzero(repeated[images.of_row])
    rows = rows[np.argsort(images.of_row[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(images.of_row[rows], prepend=-1))
    groups = labels[rows]
    highest = np.maximum.reduceat(groups, starts, axis=0)  # unknown is below both
    groups[groups == UNKNOWN] = POSITIVE
    negative = np.minimum.reduceat(groups, starts, axis=0) == NEGATIVE
    both = np.argwhere(negative & (highest == POSITIVE))
    merged = labels[images.firsts]
    merged[images.of_row[rows[starts]]] = highest
    ends = np.append(starts[1:], len(rows))
    pairs = []
    for group, column in both[:FEW]:
        own = rows[starts[group] : ends[group]]
        pair = [int(own[labels[own, column] == value][0]) for value in (POSITIVE, NEGATIVE)]
        pairs.append((images.ids[int(images.of_row[own[0]])], names[column], *pair))
    return merged, list(contradictions(file, pairs, len(both), ADVICE))


def _read_long(
    file: Path, columns: dict[str, Any], images: Images, words: Words, problems: list[str]
) -> LabelTable:
    """One row a label of an image; each a known positive where no column says its value."""
    labels = code(columns.pop("label"))
    named = np.diff(labels.texts.offsets) > 0
    notes = []
    if "value" in columns:
        cells = code(columns.pop("value"))
        values = _meanings(file, "value", cells, words, problems)[cells.codes]
        del cells
    else:
        values = np.where(named, POSITIVE, UNKNOWN).astype(np.int8)[labels.codes]
        notes.append(f"{file} has no column value: each row is a known positive")
    column_of = np.where(named, np.cumsum(named, dtype=np.int32) - 1, np.int32(-1))
    known = values != UNKNOWN
    if not named.all():
        nameless = np.flatnonzero(known & (column_of[labels.codes] < 0))
        if len(nameless):
            places = ", ".join(places_of(file, nameless[:FEW].tolist()).values())
            problems.append(f"a value but no label in {file}, {places}{more(len(nameless))}")
        if not named.any():
            problems.append(f"{file} names no label: its column label is empty")
    raise_if(problems, DataError)
    names = labels.texts[named].tolist()
    given = slice(None) if known.all() else np.flatnonzero(known)
    entries = images.of_row[given], column_of[labels.codes[given]], values[given]
    del labels, known, values
    try:
        table = LabelTable.from_entries(*entries, names=names, **images.of_table())
    except LabelError:
        raise_if(_contradicted(file, images, names, given, *entries), LabelError)
        raise
    again = len(entries[0]) - table.known
    if again:
        rows = counted(again, "row")
        notes.append(f"{rows} with a label that an earlier row gives: merged with that row")
    return replace(table, notes=tuple(notes), checked=True)


def _contradicted(
    file: Path,
    images: Images,
    names: list[str],
    given: slice | np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
) -> Iterator[str]:
    """Which rows of a long manifest say yes and no to the same."""
    lines = np.arange(len(images.of_row))[given]
    yes, no = opposed(
        contradicted_entries(rows, columns, values, len(names)), rows, columns, values
    )
    pairs = [
        (images.ids[rows[one]], names[columns[one]], int(lines[one]), int(lines[other]))
        for one, other in zip(yes[:FEW], no[:FEW], strict=True)
    ]
    return contradictions(file, pairs, len(yes), ADVICE)
