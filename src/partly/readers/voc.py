"""PASCAL VOC 2007 or 2012: `VOC2007/ImageSets/Main/<class>_trainval.txt`, `JPEGImages/`.

The path is VOC2007 itself, the VOCdevkit around it, or the folder around that. 1 is positive, -1
negative, 0 difficult. Where there are test files, trainval is the training set and test the test
set; where there are none (VOC 2012), train is the training set and val the test set.

Options: year=2007 or 2012, where both lie there; difficult=unknown, positive or negative: what the
label of an object is that is hard to recognise.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from partly.errors import ConfigError, DataError, first_few, raise_if
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN, LabelTable
from partly.readers.common import (
    choose,
    counted,
    index_in,
    line_number,
    locate,
    read_texts,
)
from partly.texts import Texts, concatenated

_FILE = re.compile(r"^(.+)_(train|val|trainval|test)\.txt$")
_HARD = 2  # a label of a difficult object, until it is known what that means
_MEANING = np.array([NEGATIVE, _HARD, POSITIVE], np.int8)  # of -1, 0 and 1
_DIFFICULT = {"unknown": UNKNOWN, "positive": POSITIVE, "negative": NEGATIVE}
_LINE = r"^(?P<image>\S+)\s+(?P<label>\+?1|-1|0)$"


class Part(NamedTuple):
    """One image set: labels [N, L] of the images `ids`."""

    ids: Texts
    labels: np.ndarray
    difficult: int


def recognises(path: Path) -> bool:
    return path.is_dir() and bool(_years(path))


def read(path: Path, *, year: int | None = None, difficult: str = "unknown") -> LabelTable:
    """Every image of the training and the test set."""
    choose(difficult, "difficult", tuple(_DIFFICULT))
    folder = _folder(path, year)
    files = _class_files(folder)
    sets = _sets(files)
    problems: list[str] = []
    names = sorted({name for part in sets for name in files[part]})
    for part in sets:
        missing = [name for name in names if name not in files[part]]
        if missing:
            problems.append(f"{_main(folder)} has no {part} file of {first_few(missing)}")
    raise_if(problems, DataError)
    parts = [_read_part(files[part], names, _DIFFICULT[difficult], problems) for part in sets]
    raise_if(problems, DataError)
    ids = concatenated(part.ids for part in parts)
    return LabelTable.from_dense(
        np.concatenate([part.labels for part in parts]),
        ids=ids,
        names=names,
        paths=locate(folder / "JPEGImages", ids.joined("", ".jpg")),
        splits=np.repeat(list(sets.values()), [len(part.ids) for part in parts]),
        notes=[*_set_notes(sets), *_difficult_notes(parts, difficult)],
    )


def _set_notes(sets: dict[str, str]) -> Iterator[str]:
    if sets.get("val") == "test":
        yield "there are no labels of test images: train is the training set, val the test set"
    elif "test" not in sets.values():
        yield f"there are only the images of {' and '.join(sets)}: there is no test set"


def _difficult_notes(parts: list[Part], difficult: str) -> Iterator[str]:
    count = sum(part.difficult for part in parts)
    if count:
        yield f"{counted(count, 'label')} of difficult objects: {difficult}"


# Folders and files


def _main(folder: Path) -> Path:
    return folder / "ImageSets" / "Main"


def _years(path: Path) -> dict[str, Path]:
    """By year, the folders that lie here."""
    folders = [path, *path.glob("VOC20[0-9][0-9]"), *path.glob("VOCdevkit/VOC20[0-9][0-9]")]
    return {
        folder.name.removeprefix("VOC"): folder
        for folder in folders
        if _main(folder).is_dir()
        and any(_FILE.match(file.name) for file in _main(folder).iterdir())
    }


def _folder(path: Path, year: int | None) -> Path:
    years = _years(path)
    if not years:
        raise DataError(f"{path} has no ImageSets/Main with files such as cat_trainval.txt")
    if year is None and len(years) > 1:
        found = sorted(years)
        raise ConfigError(f"{path} holds VOC {' and '.join(found)}: choose with year={found[0]}")
    only = next(iter(years))
    if year is None or not only.isdecimal():  # a folder of another name, of whatever year
        return years[only]
    return years[choose(str(year), "year", [*years])]


def _class_files(folder: Path) -> dict[str, dict[str, Path]]:
    """By image set and class, the files."""
    found: dict[str, dict[str, Path]] = {}
    for file in sorted(_main(folder).iterdir()):
        match = _FILE.match(file.name)
        if match:
            found.setdefault(match[2], {})[match[1]] = file
    if not found:
        raise DataError(f"{_main(folder)} has no files such as cat_trainval.txt")
    return found


def _sets(found: dict[str, dict[str, Path]]) -> dict[str, str]:
    """The image sets that are read, and what each of them is used for."""
    training = ["trainval"] if "trainval" in found else ["train", "val"]
    if "test" in found:
        wanted = dict.fromkeys(training, "train") | {"test": "test"}
    elif {"train", "val"} <= found.keys():
        wanted = {"train": "train", "val": "test"}
    else:
        wanted = dict.fromkeys(training, "train")
    return {part: split for part, split in wanted.items() if part in found}


def _read_part(
    files: dict[str, Path], names: list[str], difficult: int, problems: list[str]
) -> Part:
    """The classes of one image set, put together by the images' names."""
    ids: Texts | None = None
    columns = []
    for name in names:
        images, values = _read_file(files[name], problems)
        ids = images if ids is None else ids
        places = index_in(ids, images)
        missing, more = ids[places < 0], images[index_in(images, ids) < 0]
        if len(missing) or len(more):
            problems.append(
                f"{files[name]} and {files[names[0]].name} list different images: "
                f"{first_few(sorted([*missing, *more]))}"
            )
            continue
        columns.append(values[places])
    if ids is None or len(columns) < len(names):
        return Part(Texts.of([]), np.zeros((0, 0), np.int8), 0)
    labels = np.stack(columns, axis=1)
    hard = labels == _HARD
    labels[hard] = difficult
    return Part(ids, labels, int(hard.sum()))


def _read_file(file: Path, problems: list[str]) -> tuple[Texts, np.ndarray]:
    """The images of a file and their labels; there may be any number of spaces between them."""
    import pyarrow as arrow
    from pyarrow import compute

    lines = read_texts(file)
    fields = compute.extract_regex(lines.arrow(), _LINE)
    right = fields.is_valid().to_numpy(zero_copy_only=False)
    images = Texts.of(fields.field("image"))
    first = index_in(images, images) == np.arange(len(images))  # of several lines of an image
    strange = np.flatnonzero(~right | ~first)
    if len(strange):
        shown = [f"line {line_number(file, int(n))} '{lines[int(n)]}'" for n in strange[:3]]
        more = f" and {len(strange) - 3} more" if len(strange) > 3 else ""
        problems.append(
            f"{file}: {counted(len(strange), 'line')} not of an image named once and 1, 0 or -1: "
            f"{', '.join(shown)}{more}"
        )
    good = right & first
    written = compute.replace_substring(fields.field("label"), "+", "").filter(arrow.array(good))
    return images[good], _MEANING[written.cast(arrow.int8()).to_numpy() + 1]
