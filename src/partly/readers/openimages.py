"""Open Images V3 to V7: verified image labels, class descriptions, image lists.

Label files are CSVs with ImageID, LabelName and Confidence, one a part:
train-annotations-human-imagelabels.csv and its kin with -boxable, with validation or test, with
oidv6- or oidv7- before the name, or train/annotations-human.csv; in the folder or a subfolder.
Confidence 1 is a verified positive, 0 a verified negative, any other leaves the label unknown.
Files of labels that a machine made are never used.

The labels are those of class-descriptions-boxable.csv where it is there, else those of the class
descriptions, else those of the label files; `classes` names a file or lists others. Where the label
set is boxable, a -boxable label file is read instead of the full one. An image list, such as
train-images-boxable-with-rotation.csv, says which images there are; without one they are those of
the label file. Images are <ImageID>.jpg in train/ or train.tar (or train_0 … train_f), in
validation and in test, below the folder or below `images`. conflicts: whether a label that is
verified both as present and as absent is an "error" or "unknown".
"""

from collections import Counter
from collections.abc import Sequence
from csv import reader as text_reader
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from partly.errors import ConfigError, DataError, LabelError, first_few, raise_if
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN, LabelTable
from partly.readers.columns import code, contradicted_entries, places_of, read_repetitive
from partly.readers.common import choose, counted, locate, locate_in_tar
from partly.readers.paper import differences
from partly.texts import Texts, concatenated

PARTS = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}
VERSIONS = ("oidv7-", "oidv6-", "")  # the newest first
LABEL_FILE = "-annotations-human-imagelabels"
CONFLICTS = ("error", "unknown")
DIGITS = "0123456789abcdef"


class Part(NamedTuple):
    """The files of a split: all label files that were found, and the lists of its images."""

    split: str
    word: str
    full: list[Path]
    boxable: list[Path]

    def chosen(self, boxable: bool) -> Path:
        """The label file to read: one only, so that nothing counts twice."""
        return ([*self.boxable, *self.full] if boxable else [*self.full, *self.boxable])[0]

    def image_list(self, boxable: bool) -> Path | None:
        """The file that lists the images, beside the label file."""
        folder = self.chosen(boxable).parent
        found = sorted(folder.glob(f"*{self.word}-images*.csv")) + [
            file for file in (folder / "images.csv",) if file.is_file()
        ]
        found.sort(key=lambda file: ("boxable" in file.name) != boxable)  # stable: by name then
        return found[0] if found else None


class Entries(NamedTuple):
    """What a label file says: row, column and value of each known label; the images' ids."""

    ids: Texts
    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray


def recognises(path: Path) -> bool:
    return path.is_dir() and bool(_find_parts(path))


def read(
    path: Path,
    classes: str | Path | Sequence[str] | None = None,
    images: str | Path | None = None,
    conflicts: str = "error",
) -> LabelTable:
    """The label table of all parts that are there."""
    choose(conflicts, "conflicts", CONFLICTS)
    parts = _find_parts(path)
    if not parts:
        raise DataError(f"{path} holds no label file such as train{LABEL_FILE}.csv")
    displayed, boxable_labels = _descriptions(path)
    labels = _selected(path, classes, displayed, boxable_labels, parts)
    boxable = bool(boxable_labels) and boxable_labels.issuperset(labels)
    read: list[Entries] = []
    notes: list[str] = []
    problems: list[str] = []
    for part in parts:
        try:
            read.append(_read_part(part, boxable, labels, notes))
        except DataError as error:
            problems += error.problems
    raise_if(problems, DataError)
    paths = [
        _locate(path, images, part, part.chosen(boxable).parent, entries.ids)
        for part, entries in zip(parts, read, strict=True)
    ]
    splits = np.repeat([part.split for part in parts], [len(entries.ids) for entries in read])
    entries = _joined(read)
    read.clear()
    names = _names(labels, displayed)
    entries = _without_conflicts(entries, names, conflicts, notes)
    table = LabelTable.from_entries(
        entries.rows,
        entries.columns,
        entries.values,
        ids=entries.ids,
        names=names,
        paths=concatenated(paths),
        splits=splits,
    )
    again = len(entries.rows) - table.known
    if again:
        notes.append(f"{counted(again, 'row')} with a label that an earlier row gives: merged")
    return replace(table, notes=(*notes, *differences("openimages", table)), checked=True)


# Files


def _folders(root: Path) -> list[Path]:
    """The folder and its subfolders, which for V3 are named by the month."""
    return [root, *sorted(entry for entry in root.iterdir() if entry.is_dir())]


def _find_parts(root: Path) -> list[Part]:
    """The parts that have a label file."""
    folders, parts = _folders(root), []  # names are tried: a folder may hold millions of images
    for split, words in PARTS.items():
        for word in words:
            places = [place for folder in folders for place in (folder, folder / word)]
            stems = [f"{version}{word}{LABEL_FILE}" for version in VERSIONS]
            full = _existing(places, [f"{stem}.csv" for stem in stems])
            full += _existing([folder / word for folder in folders], ["annotations-human.csv"])
            boxable = _existing(places, [f"{stem}-boxable.csv" for stem in stems])
            if full or boxable:
                parts.append(Part(split, word, full, boxable))
                break
    return parts


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


def _read_part(part: Part, boxable: bool, labels: list[str], notes: list[str]) -> Entries:
    """The known labels of a part."""
    file = part.chosen(boxable)
    unread = [other.name for other in (*part.full, *part.boxable) if other != file]
    if unread:
        notes.append(f"{part.split}: labels from {file.name}; not read: {first_few(unread)}")
    cells = read_repetitive(file, ["ImageID", "LabelName", "Confidence"])
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
    ids, rows = image.texts, image.codes
    listed = part.image_list(boxable)
    if listed is not None:
        ids = code(read_repetitive(listed, ["ImageID"])["ImageID"]).texts
        rows = _index_in(image.texts, ids)[image.codes]
    del image
    for places, what in (
        (values, "with a confidence that is neither 1 nor 0"),
        (columns, "of labels that are not in the label set"),
        (rows, f"of images that are not in {listed.name if listed else file.name}"),
    ):
        left_out = int((places < 0).sum())
        if left_out:
            share = f"{counted(left_out, 'row')} of {len(values):,}"
            notes.append(f"{part.split}: {share} left out, {what}")
    kept = (values >= 0) & (columns >= 0) & (rows >= 0)
    if not kept.all():
        rows, columns, values = rows[kept], columns[kept], values[kept]
    unlabelled = len(ids) - int(np.count_nonzero(np.bincount(rows, minlength=len(ids))))
    if unlabelled:
        notes.append(f"{part.split}: nothing is known of {counted(unlabelled, 'image')}")
    return Entries(ids, rows, columns, values)


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


def _index_in(texts: Texts, among: Texts) -> np.ndarray:
    """The place of each text among others, -1 where it has none."""
    from pyarrow import compute

    places = compute.index_in(texts.arrow(), value_set=among.arrow())
    return places.fill_null(-1).to_numpy()


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


def _without_conflicts(
    entries: Entries, names: list[str], conflicts: str, notes: list[str]
) -> Entries:
    """The entries but for cells that are verified as positive and as negative."""
    places = contradicted_entries(entries.rows, entries.columns, entries.values, len(names))
    if not len(places):
        return entries
    cells = np.unique(np.stack([entries.rows[places], entries.columns[places]]), axis=1).T
    count = counted(len(cells), "label")
    if conflicts == "error":
        shown = first_few(
            [f"image {entries.ids[row]}, label {names[column]}" for row, column in cells]
        )
        raise LabelError(
            f"{count} verified both as positive and as negative: {shown}; "
            'conflicts="unknown" makes them unknown'
        )
    notes.append(f"{count} verified both as positive and as negative: unknown")
    kept = np.ones(len(entries.rows), dtype=bool)
    kept[places] = False
    return Entries(entries.ids, entries.rows[kept], entries.columns[kept], entries.values[kept])


# Images


def _locate(
    root: Path, images: str | Path | None, part: Part, labels_in: Path, ids: Texts
) -> Texts:
    """The paths of a part's images: a folder, a tar, or sixteen of them by the id's first digit."""
    names = ids.joined("", ".jpg")
    bases = [root, root / "images"] if images is None else [Path(images)]
    words = PARTS[part.split]
    folders = [base / word for base in bases for word in words]
    folders += [folder / "data" for folder in folders]
    if images is None and labels_in.name in words:
        folders.append(labels_in)
    for folder in folders:
        if folder.is_dir() and (folder / names[0]).is_file():
            return locate(folder, names)
    for folder in folders:
        tar = folder.with_name(folder.name + ".tar")
        if tar.is_file():
            return locate_in_tar(tar, names)
        if any(_shard(folder, digit) for digit in DIGITS):
            return _locate_in_shards(folder, ids, names)
    there = [folder for folder in folders if folder.is_dir()]
    return locate([*there, *folders][0], names)


def _shard(folder: Path, digit: str) -> bool:
    place = folder.with_name(f"{folder.name}_{digit}")
    return place.is_dir() or place.with_name(place.name + ".tar").is_file()


def _locate_in_shards(folder: Path, ids: Texts, names: Texts) -> Texts:
    first = ids.data[ids.offsets[:-1]]
    order, found = [], []
    for digit in np.unique(first):
        rows = np.flatnonzero(first == digit)
        order.append(rows)
        found.append(locate(folder.with_name(f"{folder.name}_{chr(digit)}"), names[rows]))
    return concatenated(found)[np.argsort(np.concatenate(order))]
