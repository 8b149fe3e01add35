"""CheXpert: train.csv and valid.csv (and test.csv) with 14 findings.

A finding is 1.0 positive, 0.0 negative, empty unknown, -1.0 uncertain. The column Path starts with
the name of the release, such as `CheXpert-v1.0-small/train/…`; the folder may be called otherwise.
Where there is a `test.csv` or `test_labels.csv`, valid is the validation part; else it is the test
part, as the 234 images on which results are reported. One of the files alone is read as well.

Options: uncertain=unknown, positive or negative; view=all, frontal or lateral.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from partly.errors import DataError, raise_if
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN, LabelTable
from partly.readers.columns import (
    Coded,
    code,
    places_of,
    read_repetitive,
)
from partly.readers.common import choose, counted, find, first_of_each, has_columns, stands_in
from partly.texts import Texts, concatenated

FINDINGS = (
    "No Finding", "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion",
    "Edema", "Consolidation", "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion",
    "Pleural Other", "Fracture", "Support Devices",
)  # fmt: skip
FILES = {
    "train": ("train.csv",),
    "validation": ("valid.csv",),
    "test": ("test.csv", "test_labels.csv"),
}
UNCERTAIN = {"unknown": UNKNOWN, "positive": POSITIVE, "negative": NEGATIVE}
COLUMNS = ("Path", *FINDINGS)
VIEW_COLUMN = "Frontal/Lateral"


class Part(NamedTuple):
    """What one file holds: int8 labels [N, 14], and how many of them are uncertain."""

    names: Texts
    paths: Texts
    labels: np.ndarray
    rows: np.ndarray  # of the file
    uncertain: int
    left_out: int


def recognises(path: Path) -> bool:
    if path.is_dir():
        return any(has_columns(file, COLUMNS) for file in _files(path).values())
    return path.suffix.lower() == ".csv" and has_columns(path, COLUMNS)


def read(path: Path, *, uncertain: str = "unknown", view: str = "all") -> LabelTable:
    """All parts that are there, one below the other."""
    choose(uncertain, "uncertain", tuple(UNCERTAIN))
    choose(view, "view", ("all", "frontal", "lateral"))
    files = _files(path)
    if not files:
        raise DataError(f"{path} has no train.csv, valid.csv or test.csv")
    notes = []
    if "validation" in files and "test" not in files:
        files["test"] = files.pop("validation")
        notes.append(f"{files['test'].name} is read as the test part: there is no test.csv")
    parts, problems = [], []
    for file in files.values():
        try:
            parts.append(_read_part(file, UNCERTAIN[uncertain], view))
        except DataError as error:
            problems += error.problems
    raise_if(problems, DataError)
    counts = [len(part.labels) for part in parts]
    labels, splits = np.concatenate([part.labels for part in parts]), np.repeat(list(files), counts)
    ids, rows = concatenated(part.names for part in parts), np.concatenate([p.rows for p in parts])

    def where(row: int) -> str:
        file, _ = stands_in(list(files.values()), counts, row)
        return f"{file}, {places_of(file, [rows[row]])[rows[row]]}"

    kept, more = first_of_each(ids, [labels, splits], where)
    return LabelTable.from_dense(
        labels[kept],
        ids=ids[kept],
        names=FINDINGS,
        paths=concatenated(part.paths for part in parts)[kept],
        splits=splits[kept],
        notes=[*notes, *_notes(parts, uncertain, view), *more],
    )


def _notes(parts: list[Part], uncertain: str, view: str) -> Iterator[str]:
    doubtful = sum(part.uncertain for part in parts)
    if doubtful:
        yield f"{counted(doubtful, 'uncertain label')} (-1) read as {uncertain}"
    left_out = sum(part.left_out for part in parts)
    if left_out:
        yield f"{counted(left_out, 'image')} left out: view={view}"


def _files(path: Path) -> dict[str, Path]:
    """By part, the files that are there. A file alone is the part that its name says, or train."""
    if path.is_file():
        named = [part for part, names in FILES.items() if path.name.lower() in names]
        return {named[0] if named else "train": path}
    found = {part: find(path, *names) for part, names in FILES.items()}
    return {part: file for part, file in found.items() if file is not None}


def _read_part(file: Path, uncertain: int, view: str) -> Part:
    wanted = [*COLUMNS, VIEW_COLUMN] if has_columns(file, [VIEW_COLUMN]) else COLUMNS
    cells = {name: code(column) for name, column in read_repetitive(file, wanted).items()}
    names = cells["Path"].texts[cells["Path"].codes]
    if not len(names):
        raise DataError(f"{file} has a header but no image")
    meaning = {"": UNKNOWN, "nan": UNKNOWN}
    for number, value in ((1, POSITIVE), (0, NEGATIVE), (-1, uncertain)):
        meaning[str(number)] = meaning[f"{number}.0"] = value
    wrong = (_strange(file, name, cells[name], meaning) for name in FINDINGS)
    raise_if(chain(_nameless(file, cells["Path"]), *wrong), DataError)
    kept = _kept(cells, view)
    labels = np.stack([_lookup(cells[name], meaning) for name in FINDINGS], axis=1)
    doubtful = {"-1": 1, "-1.0": 1}
    return Part(
        _without_release(names)[kept],
        _paths(file, names)[kept],
        labels[kept],
        np.flatnonzero(kept),
        sum(int(_lookup(cells[name], doubtful, 0)[kept].sum()) for name in FINDINGS),
        int((~kept).sum()),
    )


def _lookup(cells: Coded, meaning: Mapping[str, int], other: int = UNKNOWN) -> np.ndarray:
    """What each cell means: few cells differ, so that few are looked up."""
    return np.array([meaning.get(text, other) for text in cells.texts], np.int8)[cells.codes]


def _nameless(file: Path, cells: Coded) -> Iterator[str]:
    empty = np.flatnonzero(np.diff(cells.texts.offsets) == 0)
    if len(empty):
        first = int(cells.firsts[empty[0]])
        count = counted(int((cells.codes == empty[0]).sum()), "row")
        yield f"{file}, {places_of(file, [first])[first]}: the Path is empty; {count} without one"


def _strange(file: Path, name: str, cells: Coded, meaning: Mapping[str, int]) -> Iterator[str]:
    strange = [number for number, text in enumerate(cells.texts) if text not in meaning]
    if strange:
        first = int(cells.firsts[strange[0]])
        yield (
            f"{file}, {places_of(file, [first])[first]}, column {name}: "
            f"'{cells.texts[strange[0]]}' is not a label (1, 0, -1 or empty); "
            f"{counted(int(np.isin(cells.codes, strange).sum()), 'such cell')} in this column"
        )


def _kept(cells: Mapping[str, Coded], view: str) -> np.ndarray:
    """The images of a view, by its column, or by the name where there is none."""
    from pyarrow import compute

    pattern, column = ("", cells["Path"])
    if view != "all":
        by_column = VIEW_COLUMN in cells
        pattern = f"^{view}$" if by_column else rf"_{view}\.[^/]*$"
        column = cells[VIEW_COLUMN if by_column else "Path"]
    texts = column.texts.arrow()
    seen = compute.match_substring_regex(texts, pattern=pattern, ignore_case=True)
    return np.asarray(seen, dtype=bool)[column.codes]


def _without_release(names: Texts) -> Texts:
    """The same ids for every size in which the images are released."""
    from pyarrow import compute

    return Texts.of(compute.replace_substring_regex(names.arrow(), r"^CheXpert-v[^/]*/", ""))


def _paths(file: Path, names: Texts) -> Texts:
    """Wherever the first image lies: beside the file or one folder up, under its full path or
    without the folders at its start, whose names may have changed."""
    from pyarrow import compute

    first = names[0].split("/")
    places = [
        (base, skipped)
        for base in (file.parent, file.parent.parent)
        for skipped in range(len(first))
        if base.joinpath(*first[skipped:]).is_file()
    ]
    by_default = (file.parent, int(first[0].startswith("CheXpert")))
    base, skipped = places[0] if places else by_default
    shorter = compute.replace_substring_regex(names.arrow(), rf"^(?:[^/]*/){{{skipped}}}", "")
    return Texts.of(shorter).joined(f"{base}/")
