"""What several readers need: files into columns, words into splits, images into places."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from csv import Error as csv_error
from csv import reader as text_reader
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from partly import tars
from partly.errors import ConfigError, DataError, first_few, raise_if
from partly.labels import LabelTable
from partly.texts import Texts, TextsLike, concatenated

# How data sets call their parts.
SPLIT_WORDS = {
    "train": "train", "training": "train", "trainval": "train",
    "validation": "validation", "val": "validation", "valid": "validation", "dev": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip


def choose(value: Any, option: str, allowed: Sequence[str]) -> str:
    """The value of a reader's option, or an error that lists what it can be."""
    if value in allowed:
        return str(value)
    close = get_close_matches(str(value), allowed, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ConfigError(f"{option} is one of {', '.join(allowed)}, not '{value}'{hint}")


def counted(count: int, what: str, plural: str | None = None) -> str:
    """`1 image`, `1,200 images`."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def read_json(file: Path, without: Sequence[str] = (), kind: type = object) -> Any:
    """The content of a JSON file. kind: what it must be, a dict or a list.

    without: keys whose lists of numbers, such as outlines, become 0 before anything is parsed: most
    of the bytes of a large file, and several times as much memory.
    """
    content = _parsed(file, without)
    if not isinstance(content, kind):
        wanted = "an object {…}" if kind is dict else "a list […]"
        raise DataError(f"the JSON in {file} is not {wanted}, as it should be")
    return content


def _parsed(file: Path, without: Sequence[str]) -> Any:
    try:
        content = file.read_bytes()
        if without:
            keys = "|".join(map(re.escape, without)).encode()
            numbers = rb'"(' + keys + rb')"\s*:\s*\[[\[\]\d\s.,eE+-]*\]'
            with suppress(ValueError):  # a broken file is parsed again, to say where it is broken
                return json.loads(re.sub(numbers, rb'"\1":0', content))
        return json.loads(content)
    except UnicodeDecodeError as error:
        wrong = f"{error.reason} at byte {error.start:,}"
        raise DataError(f"{file} is not JSON in UTF-8 ({wrong}): is the format right?") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read {file}: {error}") from None


def read_lines(file: Path) -> Iterator[tuple[int, str]]:
    """(number, text) of each line that is not blank, whatever ends it."""
    try:
        with file.open(encoding="utf-8-sig") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line.strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}: {error}") from None


def read_texts(file: Path) -> Texts:
    """The lines of a file that are not blank, without what surrounds them: many and fast."""
    import pyarrow as arrow
    from pyarrow import compute

    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}: {error}") from None
    column = compute.utf8_trim_whitespace(arrow.array(lines, arrow.large_string()))
    return Texts.of(column.filter(compute.not_equal(column, "")))


def line_number(file: Path, place: int) -> int:
    """The number of the line that `read_texts` gives at this place: blank ones are counted."""
    return next(islice(read_lines(file), place, None))[0]


def line_place(file: Path, place: int) -> str:
    """`list.txt, line 7`, of what `read_texts` gives at this place."""
    return f"{file}, line {line_number(file, place)}"


def read_header(file: Path) -> list[str]:
    """The cells of a CSV's first line that is not blank."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            return next((cells for cells in text_reader(stream) if filled(cells)), [])
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {file}: {error}; save it as CSV in UTF-8") from None
    except (OSError, csv_error) as error:
        raise DataError(f"cannot read {file}: {error}") from None


def filled(cells: list[str]) -> bool:
    """Does a line of a CSV say anything?"""
    return len(cells) > 1 or bool(cells and cells[0].strip())


def has_columns(file: Path, names: Iterable[str]) -> bool:
    """Is this a CSV whose header has all these columns? Cheap, and False for what is no text."""
    try:
        return set(names) <= {name.strip() for name in read_header(file)}
    except DataError:
        return False


def find(folder: Path, *candidates: str) -> Path | None:
    """The first of these names that lies in the folder, or in its only subfolder."""
    for name in candidates:
        if (folder / name).exists():
            return folder / name
    if not folder.is_dir():
        return None
    with os.scandir(folder) as entries:
        own = (entry.path for entry in entries if entry.is_dir() and entry.name != "__MACOSX")
        subfolders = list(islice(own, 2))
    if len(subfolders) != 1:
        return None
    inside = (Path(subfolders[0]) / name for name in candidates)
    return next((path for path in inside if path.exists()), None)


def chosen_folder(images: str | Path) -> Path:
    """The folder of images that the user names; `photos.tar` stands for `photos`."""
    folder = Path(images)
    folder = folder.with_suffix("") if folder.suffix == ".tar" else folder
    if not folder.is_dir() and not _tars_of(folder):
        raise ConfigError(f"images={images}: there is no such folder, and no such .tar")
    return folder


def fully_known(
    positive: np.ndarray,
    *,
    ids: TextsLike,
    names: Sequence[str],
    paths: TextsLike | None = None,
    splits: np.ndarray | None = None,
    notes: Sequence[str] = (),
) -> LabelTable:
    """The table of a data set in which every label of every image is known.

    positive: [N, L], not 0 where the image has the label. Nothing but the table's own arrays is
    made, which matters for 10⁷ entries and more.
    """
    count, labels = positive.shape
    return LabelTable(
        ids=Texts.of(ids),
        names=tuple(names),
        indptr=np.arange(count + 1, dtype=np.int64) * labels,
        indices=np.tile(np.arange(labels, dtype=np.int32), count),
        values=(positive != 0).view(np.int8).ravel(),
        paths=None if paths is None else Texts.of(paths),
        splits=splits,
        notes=tuple(notes),
    )


def read_names(file: str | Path, beside: Path | None = None) -> list[str]:
    """The names of labels, one a line. beside: a folder in which the file may lie as well."""
    if beside is not None and not Path(file).is_file():
        file = beside / file
    names = [text for _, text in read_lines(Path(file))]
    again = Texts.of(names).repeated().tolist()
    if again:
        raise DataError(f"{file} has labels more than once: {first_few(again)}")
    return names


def label_names(file: str | Path | None, count: int) -> tuple[list[str], list[str]]:
    """`count` names of labels, one a line of the file, or numbered; and a note if numbered."""
    if file is None:
        hint = "names=FILE gives them names, one a line"
        return [f"label {j}" for j in range(count)], [f"the labels have numbers only: {hint}"]
    names = read_names(file)
    if len(names) != count:
        raise DataError(f"{file} has {len(names)} names for {count} labels")
    return names, []


def image_folder(places: Iterable[Path], *names: str) -> Path:
    """The first folder (or tar) of one of these names in one of these places; else what the first
    would be, so that a message about a missing image names it."""
    folders = [place / name for place in places for name in names]
    there = (folder for folder in folders if folder.is_dir() or _tars_of(folder))
    return next(there, folders[0])


def _tars_of(folder: Path) -> list[Path]:
    """`photos.tar` in place of `photos`, or its parts: `photos_0.tar`, `photos_1.tar`, …"""
    if folder.with_name(folder.name + ".tar").is_file():
        return [folder.with_name(folder.name + ".tar")]
    part = re.compile(re.escape(folder.name) + r"[-_.][0-9a-f]{1,6}\.tar")
    beside = folder.parent.iterdir() if folder.parent.is_dir() else ()
    return sorted(file for file in beside if part.fullmatch(file.name) and file.is_file())


def locate(folder: Path, names: Texts) -> Texts:
    """The paths of images of a folder; of `folder.tar`, or its parts, where that is what there is.

    No image is opened, and none is looked for: what is missing is found before training.
    """
    if folder.is_dir():
        return names.joined(str(folder) + os.sep)
    instead = _tars_of(folder)
    compressed = [folder.with_name(folder.name + suffix) for suffix in tars.COMPRESSED]
    for file in compressed:
        if not instead and file.is_file():
            raise DataError(
                f"there is no folder {folder}, and {file.name} is compressed, so that no image can "
                "be read from the middle of it: uncompress it, or unpack it"
            )
    place = instead[0] if len(instead) == 1 else folder  # what a message on a missing image names
    absent = names.joined(str(place) + os.sep)
    return _first_of(absent, [_rows_in_tar(tar, names) for tar in instead])


def locate_in_tar(tar: Path, names: Texts) -> Texts:
    """The spans of these members, found by name or by the end of their name."""
    return _first_of(names.joined(f"{tar}{os.sep}"), [_rows_in_tar(tar, names)])


def locate_in(folders: Sequence[Path], which: np.ndarray, names: Texts) -> Texts:
    """The paths of images in several folders: `which` [N] is the number of each one's folder."""
    used = np.unique(which)
    paths = concatenated(locate(folders[n], names[np.flatnonzero(which == n)]) for n in used)
    return paths[np.argsort(np.argsort(which, kind="stable"))]


def _first_of(paths: Texts, found: Sequence[tuple[np.ndarray, Texts]]) -> Texts:
    """These paths, and in the rows that were found in a tar the spans of it."""
    for rows, spans in reversed(found):
        if len(rows):
            places = np.arange(len(paths))
            places[rows] = len(paths) + np.arange(len(rows))
            paths = concatenated([paths, spans])[places]
    return paths


def _rows_in_tar(tar: Path, names: Texts) -> tuple[np.ndarray, Texts]:
    """Which of these names are in a tar, and their spans of it."""
    members, starts, sizes = tars.index(tar)
    places = _places_of(tar, names, members)
    rows = np.flatnonzero(places >= 0)
    return rows, tars.span_paths(tar, starts[places[rows]], sizes[places[rows]])


def _places_of(tar: Path, names: Texts, members: Texts) -> np.ndarray:
    """The member of each name, -1 where there is none.

    Folders may stand before a name in the tar, first of all the tar's own, or else the fewest; or
    the tar may have no folders although the names do.
    """
    own = names.joined(tar.name.removesuffix(".tar") + "/")
    places = np.where((exact := index_in(names, members)) < 0, index_in(own, members), exact)
    shorter, named = members, np.diff(names.offsets) > 0
    while (places < 0).any():
        shorter = _without(shorter, r"^[^/]*/|^[^/]*$")  # the first folder; a bare name is done
        if not len(shorter.data):
            break
        again = index_in(names, shorter)
        new = np.flatnonzero((places < 0) & (again >= 0) & named)
        repeated = shorter.repeated()
        several = new[index_in(names[new], repeated) >= 0] if len(repeated) else new[:0]
        if len(several):
            raise DataError(
                f"{tar} has several files in different folders for one name: "
                f"{first_few(names[several[:20]].tolist())}"
            )
        places[new] = again[new]
    missing = np.flatnonzero(places < 0)
    bare = _without(names, r"^.*/")
    if len(missing) and not len(bare.repeated()):
        places[missing] = index_in(bare[missing], members)
    return places


def _without(texts: Texts, pattern: str) -> Texts:
    """The texts without what a pattern matches."""
    from pyarrow import compute

    return Texts.of(
        compute.replace_substring_regex(
            texts.arrow(), pattern=pattern, replacement="", max_replacements=1
        )
    )


def split_in(*names: str) -> str | None:
    """The part of the data that a word of these names says, of the first that says one."""
    words = (word for name in names for word in re.findall("[a-z]+", name.lower()))
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), None)


def split_problems(
    places: Sequence[Path], splits: Sequence[str | None], needed: bool = False
) -> Iterator[str]:
    """Which files or folders do not say what part they are, if others do, or if it is needed."""
    without = [place.name for place, split in zip(places, splits, strict=True) if split is None]
    if without and (needed or len(without) < len(places)):
        yield (
            f"{first_few(without)}: the name says no split (train, val, test); rename these, or "
            "keep them elsewhere"
        )


def stands_in(files: Sequence[Path], counts: Sequence[int], row: int) -> tuple[Path, int]:
    """The file of a row, and its place in it, where the rows of several files were put together."""
    part = int(np.searchsorted(np.cumsum(counts), row, side="right"))
    return files[part], row - sum(counts[:part])


def first_of_each(
    ids: Texts, facts: Sequence[np.ndarray], where: Callable[[int], str]
) -> tuple[np.ndarray, list[str]]:
    """Which rows to keep where ids occur more than once, and a note on those that are left out.

    facts: what rows of one id must agree in, each [N, …]. where: the file and the line of a row,
    for the error if they do not.
    """
    kept, again = np.ones(len(ids), dtype=bool), ids.repeated()
    if not len(again):
        return kept, []
    number = index_in(ids, again)
    rows = np.flatnonzero(number >= 0)
    number = number[rows]
    first = rows[np.unique(number, return_index=True)[1]][number]
    differs = [(fact[rows] != fact[first]).reshape(len(rows), -1).any(axis=1) for fact in facts]
    wrong = np.unique(number[np.any(differs, axis=0)]).tolist()
    problems = [
        f"{again[one]} occurs more than once, and not with the same labels and split: "
        f"{first_few([where(int(row)) for row in rows[number == one][:5]])}"
        for one in wrong[:5]
    ]
    if len(wrong) > 5:
        problems.append(f"and {counted(len(wrong) - 5, 'other image')} likewise")
    raise_if(problems, DataError)
    kept[rows[rows != first]] = False
    return kept, [f"{counted(int((~kept).sum()), 'row')} of images that were there before: merged"]


def read_lists(
    lists: Mapping[str, Path], ids_of: Callable[[Texts], Texts] = lambda lines: lines
) -> tuple[Texts, np.ndarray, list[str]]:
    """The images of lists by split, one a line: ids, splits, and a note where lines agree.

    ids_of: what of the lines are the ids.
    """
    files, listed = list(lists.values()), [ids_of(read_texts(file)) for file in lists.values()]
    counts = [len(part) for part in listed]
    ids, splits = concatenated(listed), np.repeat(list(lists), counts)
    kept, notes = first_of_each(
        ids, [splits], lambda row: line_place(*stands_in(files, counts, row))
    )
    return ids[kept], splits[kept], notes


def index_of(numbers: np.ndarray, among: np.ndarray) -> np.ndarray:
    """The place of each whole number among others, -1 where it has none.

    >>> index_of(np.array([7, 5, 9]), among=np.array([5, 7])).tolist()
    [1, 0, -1]
    """
    if not len(among):
        return np.full(len(numbers), -1)
    order = np.argsort(among, kind="stable")
    found = order[np.searchsorted(among[order], numbers).clip(max=len(among) - 1)]
    return np.where(among[found] == numbers, found, -1)


def index_in(names: Texts, among: Texts) -> np.ndarray:
    """The place of each name among others, -1 where it has none."""
    from pyarrow import compute

    places = compute.index_in(names.arrow(), value_set=among.arrow())
    return places.fill_null(-1).to_numpy().astype(np.int64)
