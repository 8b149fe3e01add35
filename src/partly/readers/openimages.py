"""Open Images V3 to V7: verified image labels, class descriptions, image lists.

Label files are CSVs with ImageID, LabelName and Confidence, one a part:
train-annotations-human-imagelabels.csv and its kin with -boxable, with validation or test, with
oidv6- or oidv7- before the name, or train/annotations-human.csv; in the folder or a subfolder.
Confidence 1 is a verified positive, 0 a verified negative, any other leaves the label unknown.
Files of labels that a machine made are never used.

The labels are those of class-descriptions-boxable.csv where it is there, else those of the class
descriptions, else those of the label files. An image list, such as
train-images-boxable-with-rotation.csv, says which images there are; without one they are those of
the label file. Images are <ImageID>.jpg in train/ or train.tar (or train_0 … train_f), in
validation and in test. A label file alone is the part that its name or its folder's says, or train.

Options: classes=FILE, or in Python a list, the labels to read; images=FOLDER, where train,
validation and test lie, if not below the data; conflicts=error or unknown, what becomes of a label
that is verified both as present and as absent; labels, which label files are read: full, those of
all classes; boxable, those with -boxable in their name; auto, the boxable ones where all labels to
read are boxable.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from csv import reader as text_reader
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from partly.errors import (
    ConfigError,
    DataError,
    LabelError,
    PartlyError,
    first_few,
    raise_if,
)
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN, LabelTable
from partly.readers.columns import (
    FEW,
    code,
    contradicted_entries,
    contradictions,
    empty_cells,
    more,
    opposed,
    places_of,
    read_repetitive,
)
from partly.readers.common import (
    SPLIT_WORDS,
    choose,
    chosen_folder,
    counted,
    has_columns,
    index_in,
    locate,
    locate_in,
    locate_in_tar,
)
from partly.readers.paper import differences
from partly.texts import Texts, concatenated

PARTS = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}
VERSIONS = ("oidv7-", "oidv6-", "")  # the newest first
LABEL_FILE = "-annotations-human-imagelabels"
COLUMNS = ("ImageID", "LabelName", "Confidence")
CONFLICTS = ("error", "unknown")
LABELS = ("auto", "full", "boxable")
DIGITS = "0123456789abcdef"
ABOUT_THE_PAPER = (
    "5,655,108, the paper's training images, are those with a verified label of any class, so of "
    "the full label file (labels=full); which version and which 600 labels it took it does not say"
)


class Part(NamedTuple):
    """The label files of a split that were found, in the order in which they are preferred."""

    split: str
    full: list[Path]
    boxable: list[Path]

    def chosen(self, boxable: bool) -> Path:
        """The label file to read: one only, so that nothing counts twice."""
        return ([*self.boxable, *self.full] if boxable else [*self.full, *self.boxable])[0]

    def image_lists(self, file: Path) -> list[Path]:
        """The files beside a label file that list its images, the one to read first.

        A list of boxable images is none for the full labels: most images would be missing.
        """
        boxable = "boxable" in file.name
        words = PARTS[self.split]
        found = [other for word in words for other in file.parent.glob(f"*{word}-images*.csv")]
        found += _existing([file.parent], ["images.csv"])
        found.sort(key=lambda other: (("boxable" in other.name) != boxable, _age(other), other))
        return [other for other in found if boxable or "boxable" not in other.name]


class Entries(NamedTuple):
    """What a label file says: row, column and value of each known label; the images' ids."""

    ids: Texts
    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray


def recognises(path: Path) -> bool:
    if path.is_dir():
        return bool(_find_parts(path))
    return path.suffix.lower() == ".csv" and has_columns(path, COLUMNS)


def read(
    path: Path,
    classes: str | Path | Sequence[str] | None = None,
    images: str | Path | None = None,
    conflicts: str = "error",
    labels: str = "auto",
) -> LabelTable:
    """The label table of all parts that are there."""
    choose(conflicts, "conflicts", CONFLICTS)
    choose(labels, "labels", LABELS)
    root = path if path.is_dir() else path.parent
    parts = _of_kind(path, _find_parts(path) if path.is_dir() else [_part_of(path)], labels)
    bases = [root, root / "images"] if images is None else [chosen_folder(images)]
    displayed, boxable_labels = _descriptions(root)
    selected = _selected(root, classes, displayed, boxable_labels, parts)
    boxable = bool(boxable_labels) and boxable_labels.issuperset(selected)
    names = _names(selected, displayed)
    files = {part.split: part.chosen(boxable) for part in parts}
    read: list[Entries] = []
    notes: list[str] = []
    problems: list[str] = []
    kind: type[PartlyError] = LabelError
    for part in parts:
        try:
            entries = _read_part(part, files[part.split], selected, names, conflicts, notes)
            read.append(entries)
        except (DataError, LabelError) as error:
            problems, kind = [*problems, *error.problems], type(error)
    raise_if(problems, kind)
    paths = [
        _locate(bases, part.split, files[part.split], entries.ids)
        for part, entries in zip(parts, read, strict=True)
    ]
    splits = np.repeat([part.split for part in parts], [len(entries.ids) for entries in read])
    entries = _joined(read)
    read.clear()
    try:
        table = LabelTable.from_entries(
            entries.rows,
            entries.columns,
            entries.values,
            ids=entries.ids,
            names=names,
            paths=concatenated(paths),
            splits=splits,
        )
    except LabelError:
        raise_if(_in_several_parts(entries.ids, splits, files), LabelError)
        raise
    again = len(entries.rows) - table.known
    if again:
        notes.append(f"{counted(again, 'row')} with a label that an earlier row gives: merged")
    notes += [*differences("openimages", table), ABOUT_THE_PAPER]
    return replace(table, notes=tuple(notes), checked=True)


def _in_several_parts(ids: Texts, splits: np.ndarray, files: dict[str, Path]) -> Iterator[str]:
    again = ids.repeated()
    shown = []
    for image in list(again)[:FEW]:
        rows = np.flatnonzero(index_in(ids, Texts.of([image])) >= 0)
        shown.append(f"{image} ({', '.join(files[split].name for split in splits[rows])})")
    if shown:
        yield (
            f"{next(iter(files.values())).parent}: {counted(len(again), 'image')} in more than one "
            f"part: {', '.join(shown)}{more(len(again))}"
        )


# Files


def _folders(root: Path) -> list[Path]:
    """The folder and its subfolders, which for V3 are named by the month."""
    return [root, *sorted(entry for entry in root.iterdir() if entry.is_dir())]


def _find_parts(root: Path) -> list[Part]:
    """The parts that have a label file."""
    folders, parts = _folders(root), []  # names are tried: a folder may hold millions of images
    for split, words in PARTS.items():
        below = [folder / word for folder in folders for word in words]
        stems = [f"{version}{word}{LABEL_FILE}" for version in VERSIONS for word in words]
        full = _existing([*folders, *below], [f"{stem}.csv" for stem in stems])
        full += _existing(below, ["annotations-human.csv"])
        boxable = _existing([*folders, *below], [f"{stem}-boxable.csv" for stem in stems])
        if full or boxable:
            parts.append(Part(split, full, boxable))
    return parts


def _part_of(file: Path) -> Part:
    """A label file alone."""
    if "machine" in file.name:
        raise DataError(f"{file} has labels that a machine made: give a file of verified ones")
    if has_columns(file, ["XMin"]):
        raise DataError(f"{file} has boxes: give a file such as train{LABEL_FILE}.csv")
    words = [file.parent.name.lower(), *re.split(r"[^a-z]+", file.name.lower())]
    split = next((SPLIT_WORDS[word] for word in reversed(words) if word in SPLIT_WORDS), "train")
    return Part(split, [], [file]) if "boxable" in file.name else Part(split, [file], [])


def _of_kind(path: Path, parts: list[Part], labels: str) -> list[Part]:
    """The parts with nothing but the label files that the option `labels` asks for."""
    if not parts:
        raise DataError(f"{path} holds no label file such as train{LABEL_FILE}.csv")
    if labels == "auto":
        return parts
    missing = [part for part in parts if not getattr(part, labels)]
    ending = "-boxable.csv" if labels == "boxable" else ".csv"
    problems = [
        f"labels={labels}, but {path} has no {part.split}{LABEL_FILE}{ending}, only "
        f"{part.chosen(labels == 'boxable').name}"
        for part in missing
    ]
    raise_if(problems, DataError)
    if labels == "full":
        return [part._replace(boxable=[]) for part in parts]
    return [part._replace(full=[]) for part in parts]


def _age(file: Path) -> int:
    """0 for the newest version."""
    return next(age for age, version in enumerate(VERSIONS) if file.name.startswith(version))


def _existing(folders: list[Path], names: list[str]) -> list[Path]:
    return [folder / name for name in names for folder in folders if (folder / name).is_file()]


# Labels


def _descriptions(root: Path) -> tuple[dict[str, str], set[str]]:
    """Name by label of all class descriptions that are there, and the labels of the boxable."""
    folders = _folders(root)
    files = {
        kind: _existing(folders, [f"{version}class-descriptions{kind}.csv" for version in VERSIONS])
        for kind in ("", "-boxable")
    }
    displayed: dict[str, str] = {}
    for file in [*files["-boxable"], *files[""]]:
        displayed = read_classes(file) | displayed
    boxable = set(read_classes(files["-boxable"][0])) if files["-boxable"] else set()
    return displayed, boxable


def read_classes(file: Path) -> dict[str, str]:
    """The labels of a file of class descriptions, or of a list with one label a line, named."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            lines = [cells for cells in text_reader(stream) if cells and cells[0].strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}: {error}") from None
    if lines and lines[0][0].strip() == "LabelName":
        del lines[0]
    if not lines:
        raise DataError(f"{file} names no label")
    return {cells[0].strip(): cells[min(1, len(cells) - 1)].strip() for cells in lines}


def _selected(
    root: Path,
    classes: str | Path | Sequence[str] | None,
    displayed: dict[str, str],
    boxable: set[str],
    parts: list[Part],
) -> list[str]:
    """The labels to read, as the label files call them, in the order of their source."""
    if classes is None:
        if boxable or displayed:
            return [label for label in displayed if label in boxable or not boxable]
        return sorted({label for part in parts for label in _labels_in(part.chosen(False))})
    if isinstance(classes, str | Path):
        file = next((f for f in (Path(classes), root / classes) if f.is_file()), None)
        if file is None:
            raise ConfigError(f"classes: there is no file {classes}, here or in {root}")
        described = read_classes(file)
        displayed.update(
            {
                label: name
                for label, name in described.items()
                if displayed.get(label, label) == label
            }
        )
        return list(described)
    return _as_labels([str(label) for label in classes], displayed, parts)


def _as_labels(wanted: list[str], displayed: dict[str, str], parts: list[Part]) -> list[str]:
    """Labels by what a user calls them: /m/01yrx, or Cat."""
    known = displayed or dict.fromkeys(
        label for part in parts for label in _labels_in(part.chosen(False))
    )
    by_name: dict[str, list[str]] = {}
    for label, name in displayed.items():
        by_name.setdefault(name, []).append(label)
    found = [[label] if label in known else by_name.get(label, []) for label in wanted]
    missing = [label for label, labels in zip(wanted, found, strict=True) if not labels]
    shared = [
        f"{label} ({', '.join(labels)})"
        for label, labels in zip(wanted, found, strict=True)
        if len(labels) > 1
    ]
    problems = []
    if missing:
        problems.append(
            f"classes: {counted(len(missing), 'label')} not known: {first_few(missing)}"
        )
    if shared:
        problems.append(f"classes: say which of the labels of this name: {first_few(shared)}")
    raise_if(problems, ConfigError)
    return list(dict.fromkeys(labels[0] for labels in found))


def _labels_in(file: Path) -> list[str]:
    return code(read_repetitive(file, ["LabelName"])["LabelName"]).texts.tolist()


def _names(labels: list[str], displayed: dict[str, str]) -> list[str]:
    """The names to show: the label itself stands behind a name that another label has too."""
    shown = [displayed.get(label) or label for label in labels]
    count = Counter(shown)
    return [
        name if count[name] == 1 else f"{name} ({label})"
        for name, label in zip(shown, labels, strict=True)
    ]


# Entries


def _read_part(
    part: Part, file: Path, labels: list[str], names: list[str], conflicts: str, notes: list[str]
) -> Entries:
    """The known labels of a part."""
    lists = part.image_lists(file)
    unread = [other.name for other in (*part.full, *part.boxable) if other != file]
    unread += [other.name for other in lists[1:]]
    if unread:
        images = f", images from {lists[0].name}" if lists else ""
        notes.append(
            f"{part.split}: labels from {file.name}{images}; not read: {first_few(unread)}"
        )
    cells = read_repetitive(file, COLUMNS)
    confidence = code(cells.pop("Confidence"))
    if not len(confidence.codes):
        raise DataError(f"{file} has a header but no label")
    values = _meanings(file, confidence.texts, confidence.firsts)[confidence.codes]
    del confidence
    label = code(cells.pop("LabelName"))
    column_of = dict(zip(labels, range(len(labels)), strict=True))
    columns = np.array([column_of.get(text, -1) for text in label.texts], np.int32)[label.codes]
    del label
    image = code(cells.pop("ImageID"))
    raise_if(empty_cells(file, image, "ImageID"), DataError)
    ids, rows = image.texts, image.codes
    if lists:
        listed = code(read_repetitive(lists[0], ["ImageID"])["ImageID"])
        raise_if(empty_cells(lists[0], listed, "ImageID"), DataError)
        ids = listed.texts
        rows = index_in(image.texts, ids).astype(np.int32)[image.codes]
        del listed
    del image
    for places, what in (
        (values, "with a confidence that is neither 1 nor 0"),
        (columns, "of labels that are not in the label set"),
        (rows, f"of images that are not in {lists[0].name if lists else file.name}"),
    ):
        left_out = int((places < 0).sum())
        if left_out:
            share = f"{counted(left_out, 'row')} of {len(values):,}"
            notes.append(f"{part.split}: {share} left out, {what}")
    kept = (values >= 0) & (columns >= 0) & (rows >= 0)
    if not kept.all():
        rows, columns, values = rows[kept], columns[kept], values[kept]
    entries = Entries(ids, rows, columns, values)
    both = contradicted_entries(rows, columns, values, len(names))
    if len(both):
        yes, no = opposed(both, rows, columns, values)
        if conflicts == "error":
            raise_if(_conflicts(file, entries, names, np.flatnonzero(kept), yes, no), LabelError)
        count = counted(len(yes), "label")
        notes.append(f"{part.split}: {count} verified both as positive and as negative: unknown")
        entries = Entries(ids, *(np.delete(array, both) for array in (rows, columns, values)))
    known = np.bincount(entries.rows, minlength=len(ids))
    unlabelled = len(ids) - int(np.count_nonzero(known))
    if unlabelled:
        notes.append(f"{part.split}: nothing is known of {counted(unlabelled, 'image')}")
    return entries


def _conflicts(
    file: Path,
    entries: Entries,
    names: list[str],
    lines: np.ndarray,
    yes: np.ndarray,
    no: np.ndarray,
) -> Iterator[str]:
    """lines: the row of the file that each entry comes from. yes, no: entries that are opposed."""
    pairs = [
        (entries.ids[entries.rows[one]], names[entries.columns[one]], *map(int, lines[[one, two]]))
        for one, two in zip(yes[:FEW], no[:FEW], strict=True)
    ]
    return contradictions(file, pairs, len(yes), 'conflicts="unknown" makes them unknown')


def _meanings(file: Path, texts: Texts, firsts: np.ndarray) -> np.ndarray:
    """The label that each distinct confidence stands for."""
    meanings, strange = [], []
    for number, text in enumerate(texts):
        try:
            meanings.append({1.0: POSITIVE, 0.0: NEGATIVE}.get(float(text), UNKNOWN))
        except ValueError:
            strange.append(number)
            meanings.append(UNKNOWN)
    if strange:
        places = places_of(file, firsts[strange[:5]].tolist())
        found = [f"'{texts[number]}' in {places[int(firsts[number])]}" for number in strange[:5]]
        raise DataError(f"{file}: a Confidence is a number, not {', '.join(found)}")
    return np.array(meanings, dtype=np.int8)


def _joined(parts: list[Entries]) -> Entries:
    """The entries of all parts, one below the other."""
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(len(part.ids) for part in parts)]).astype(np.int32)
    return Entries(
        concatenated(part.ids for part in parts),
        np.concatenate([part.rows + first for part, first in zip(parts, before[:-1], strict=True)]),
        np.concatenate([part.columns for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


# Images


def _locate(bases: list[Path], split: str, file: Path, ids: Texts) -> Texts:
    """The paths of a part's images: a folder, a tar, or sixteen of them by the id's first digit."""
    names = ids.joined("", ".jpg")
    words = PARTS[split]
    folders = [base for base in bases if base.name in words]
    folders += [base / word for base in bases for word in words]
    folders += [folder / "data" for folder in folders]
    if file.parent.name in words:
        folders.append(file.parent)
    for folder in folders:
        if folder.is_dir() and (folder / names[0]).is_file():
            return locate(folder, names)
    for folder in folders:
        tar = folder.with_name(folder.name + ".tar")
        if tar.is_file():
            return locate_in_tar(tar, names)
        if any(_shard(folder, digit) for digit in DIGITS):
            digits, which = np.unique(ids.data[ids.offsets[:-1]], return_inverse=True)
            shards = [folder.with_name(f"{folder.name}_{chr(digit)}") for digit in digits]
            return locate_in(shards, which, names)
    there = [folder for folder in folders if folder.is_dir()]
    return locate([*there, *folders][0], names)


def _shard(folder: Path, digit: str) -> bool:
    place = folder.with_name(f"{folder.name}_{digit}")
    return place.is_dir() or place.with_name(place.name + ".tar").is_file()
