"""NUS-WIDE: the official ground truth, or the CSV release nus_wid_data.csv.

Official: `Groundtruth/TrainTestLabels/Labels_<concept>_{Train,Test}.txt` (one 0 or 1 a line),
`ImageList/{Train,Test}Imagelist.txt` and `Concepts81.txt`; the images lie in `Flickr/<folder>/` or
all together in `images/`. CSV: filename, label (`['clouds', 'sky']`), split_name; images relative
to the file. Every label is known in both.

Options: empty=keep or drop, what happens to images without any label; images=FOLDER, where the
images lie if not beside the labels.
"""

import ast
import os
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from partly.errors import DataError, first_few, raise_if
from partly.labels import LabelTable
from partly.readers.columns import Coded, code, places_of, read_repetitive
from partly.readers.common import (
    SPLIT_WORDS,
    choose,
    chosen_folder,
    counted,
    find,
    first_of_each,
    fully_known,
    has_columns,
    image_folder,
    locate,
    read_lines,
    read_texts,
)
from partly.readers.paper import differences
from partly.texts import Texts, concatenated

CSV = "nus_wid_data.csv"
CSV_COLUMNS = ("filename", "label", "split_name")
LABEL_FOLDERS = [f"{word}/TrainTestLabels" for word in ("Groundtruth", "GroundTruth")]
CONCEPTS = ("Concepts81.txt", "ConceptsList/Concepts81.txt")
PARTS = {"train": "Train", "test": "Test"}
ABOUT_THE_PAPER = (
    "NUS-WIDE's own lists have 161,789 training and 107,859 test images and 81 concepts; the paper "
    "counts 210,260 images and 80 labels, and does not say which images and which label it left out"
)


def recognises(path: Path) -> bool:
    if path.is_dir():
        return find(path, CSV, *LABEL_FOLDERS) is not None
    return path.suffix.lower() == ".csv" and has_columns(path, CSV_COLUMNS)


def read(path: Path, *, empty: str = "keep", images: str | None = None) -> LabelTable:
    """Both parts, one below the other."""
    choose(empty, "empty", ("keep", "drop"))
    folder = find(path, *LABEL_FOLDERS) if path.is_dir() else None
    if folder is not None:
        table = _read_official(folder.parents[1], folder, images)
    else:
        file = find(path, CSV) if path.is_dir() else path
        if file is None:
            raise DataError(f"{path} has neither {LABEL_FOLDERS[0]} nor {CSV}")
        table = _read_csv(file, images)
    return _with_notes(table, empty)


def _with_notes(table: LabelTable, empty: str) -> LabelTable:
    labelled = table.counts_by_image().positive > 0
    without = int((~labelled).sum())
    notes = list(table.notes)
    if without and empty == "drop":
        table = table.take(labelled)
        notes.append(
            f"{counted(without, 'image')} without any label left out (empty=keep reads them)"
        )
    elif without:
        notes.append(
            f"{counted(without, 'image')} without any label: all labels of theirs are negative, so "
            "that SPL and PPL leave nothing of them known (empty=drop leaves them out)"
        )
    notes += [*differences("nuswide", table), ABOUT_THE_PAPER]
    return replace(table, notes=tuple(notes), checked=True)


# The official ground truth


def _read_official(root: Path, folder: Path, images: str | None) -> LabelTable:
    concepts = _concepts(root) or _concepts_by_file(folder)
    lists = {split: root / "ImageList" / f"{word}Imagelist.txt" for split, word in PARTS.items()}
    problems = [f"there is no {file}" for file in lists.values() if not file.is_file()]
    raise_if(problems, DataError)
    names = {split: _forward(read_texts(file)) for split, file in lists.items()}
    blocks = []
    for split, word in PARTS.items():
        block = np.zeros((len(names[split]), len(concepts)), dtype=np.int8)
        for column, concept in enumerate(concepts):
            file = folder / f"Labels_{concept}_{word}.txt"
            try:
                block[:, column] = _label_file(file, len(block), lists[split])
            except DataError as error:
                problems += error.problems
        blocks.append(block)
    raise_if(problems, DataError)
    ids = concatenated(names.values())
    usual = image_folder([root], "Flickr", "images", "flickr", "Images")
    return fully_known(
        np.concatenate(blocks),
        ids=ids,
        names=concepts,
        paths=_paths(usual if images is None else chosen_folder(images), ids),
        splits=np.repeat(list(names), [len(block) for block in blocks]),
    )


def _concepts(root: Path) -> list[str]:
    file = find(root, *CONCEPTS)
    return [] if file is None else [text for _, text in read_lines(file)]


def _concepts_by_file(folder: Path) -> list[str]:
    """Where the list of concepts is missing, the label files name them."""
    files = sorted(folder.glob("Labels_*_Train.txt"))
    if not files:
        raise DataError(f"{folder} has no file Labels_<concept>_Train.txt")
    return [file.name.removeprefix("Labels_").removesuffix("_Train.txt") for file in files]


def _label_file(file: Path, count: int, listed: Path) -> np.ndarray:
    """The 0 and 1 of a file, one for each image of the list."""
    try:
        content = np.frombuffer(file.read_bytes().removeprefix(BOM_UTF8), dtype=np.uint8)
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None
    digit = (content == ord("0")) | (content == ord("1"))
    blank = (content == ord("\n")) | (content == ord("\r")) | (content == ord(" "))
    strange = ~blank & ~digit
    strange[1:] |= digit[1:] & digit[:-1]  # 10 and 11 are no labels either
    if strange.any():
        place = int(strange.argmax())
        line = int((content[:place] == ord("\n")).sum()) + 1
        raise DataError(f"{file}, line {line}: a label is 0 or 1, alone on its line")
    if digit.sum() != count:
        raise DataError(f"{file} has {digit.sum():,} labels for {count:,} images of {listed}")
    return content[digit] - ord("0")


def _forward(names: Texts) -> Texts:
    """The lists were written on Windows: `actor\\0001_2124494179.jpg`."""
    from pyarrow import compute

    return Texts.of(compute.replace_substring(names.arrow(), "\\", "/"))


def _paths(folder: Path, names: Texts) -> Texts:
    """In subfolders, as they are listed, or all together in one folder."""
    from pyarrow import compute

    if _is_flat(folder):
        names = Texts.of(compute.replace_substring_regex(names.arrow(), r"^.*/", ""))
    return locate(folder, names)


def _is_flat(folder: Path) -> bool:
    """Is this a folder of images, not of folders? A look at its first entries tells."""
    if not folder.is_dir():
        return False
    with os.scandir(folder) as entries:
        first = list(islice(entries, 100))
    images = [entry for entry in first if entry.name.lower().endswith(".jpg")]
    return bool(images) and not any(entry.is_dir() for entry in first)


# The CSV release


def _read_csv(file: Path, images: str | None) -> LabelTable:
    columns = read_repetitive(file, CSV_COLUMNS)
    names = code(columns["filename"])
    nameless = np.flatnonzero(np.diff(names.texts.offsets) == 0).tolist()
    raise_if(_strange_cells(file, "filename", names, nameless, "images/0001_21.jpg"), DataError)
    splits, notes = _csv_splits(file, code(columns["split_name"]))
    positive, concepts = _csv_labels(file, code(columns["label"]), _concepts(file.parent))
    ids = _forward(names.texts[names.codes])
    kept, more = first_of_each(
        ids, [positive, splits], lambda row: f"{file}, {places_of(file, [row])[row]}"
    )
    ids = ids[kept]
    return fully_known(
        positive[kept],
        ids=ids,
        names=concepts,
        paths=_paths(file.parent if images is None else chosen_folder(images), ids),
        splits=splits[kept],
        notes=[*notes, *more],
    )


def _csv_splits(file: Path, cells: Coded) -> tuple[np.ndarray, list[str]]:
    words = [text.lower() for text in cells.texts]
    strange = [number for number, word in enumerate(words) if word not in SPLIT_WORDS]
    raise_if(_strange_cells(file, "split_name", cells, strange, "train or val"), DataError)
    parts = [SPLIT_WORDS[word] for word in words]
    notes = []
    if "validation" in parts and "test" not in parts:
        parts = ["test" if part == "validation" else part for part in parts]
        notes = ["the part that the file calls val is read as test: there is no other to test on"]
    return np.array(parts, dtype=str)[cells.codes], notes


def _csv_labels(
    file: Path, cells: Coded, concepts: Sequence[str]
) -> tuple[np.ndarray, Sequence[str]]:
    """Positives [N, L] and the names of the labels: of Concepts81.txt, or those that occur."""
    lists = [_label_list(text) for text in cells.texts]  # few: many images have the same labels
    strange = [number for number, labels in enumerate(lists) if labels is None]
    raise_if(_strange_cells(file, "label", cells, strange, "['clouds', 'sky']"), DataError)
    found = sorted(set(chain.from_iterable(labels or () for labels in lists)))
    names = concepts or found
    missing = sorted(set(found) - set(names))
    if missing:
        raise DataError(f"{file} has labels that are not in Concepts81.txt: {first_few(missing)}")
    column_of = {name: number for number, name in enumerate(names)}
    distinct = np.zeros((len(lists), len(names)), dtype=np.int8)
    for row, labels in enumerate(lists):
        distinct[row, [column_of[label] for label in labels or ()]] = 1
    return distinct[cells.codes], names


def _strange_cells(
    file: Path, column: str, cells: Coded, strange: Sequence[int], example: str
) -> Iterator[str]:
    if not strange:
        return
    places = places_of(file, cells.firsts[list(strange[:5])])
    for number in strange[:5]:
        where = places[int(cells.firsts[number])]
        yield f"{file}, {where}, column {column}: '{cells.texts[number]}' is not like {example}"
    if len(strange) > 5:
        yield f"{file}, column {column}: {len(strange) - 5} other texts are not"


def _label_list(text: str) -> list[str] | None:
    """`['clouds', 'sky']` as a list; None if it is something else. Nothing is evaluated."""
    if not text:
        return []
    try:
        labels = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    listed = isinstance(labels, list | tuple) and all(isinstance(label, str) for label in labels)
    return [label.strip() for label in labels if label.strip()] if listed else None
