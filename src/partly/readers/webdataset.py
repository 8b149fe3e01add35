"""Shards of WebDataset: train-000000.tar, val-000000.tar, … with an image and its labels a sample.

A sample is what has the same name up to its first dot: an image (.jpg, .png, …) and its labels, in
`.json` as {"labels": ["cat", "dog"]} (known positives), {"labels": {"cat": 1, "dog": 0, "bird":
null}} or {"positive": […], "negative": […]}, or in `.cls` as whole numbers (known positives).
Shards lie in one folder or in subfolders, whose names or their own say the split; one shard alone
will do. A shard's images are read where they lie.

Options: labels=KEY of the labels in the JSON; names=FILE with one label a line, in the order of the
numbers, otherwise the labels are those that occur.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tarfile import BLOCKSIZE
from typing import Any

import numpy as np

from partly import tars
from partly.errors import DataError, first_few, raise_if
from partly.images import SUFFIXES
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN, LabelTable
from partly.readers.common import counted, read_names, split_in, split_problems
from partly.texts import Texts, concatenated

GLANCE = 256  # members by which a shard is recognised
MOST_OF_A_HEADER = 3 * BLOCKSIZE  # with the exact time, as the library's own writer gives it
SHOWN = 20  # problems of one kind that are named
IMAGES = tuple(suffix[1:] for suffix in SUFFIXES)  # an earlier one is preferred
_KEY = re.compile(r"((?:.*/)?[^/.]+)\.([^/]*)", re.DOTALL)

_LABELS = {"json", "cls"}
_DOTS = "the name of an image goes on after its first dot, where the name of a sample ends"


def recognises(path: Path) -> bool:
    shards = _shards(path)
    return bool(shards) and _looks_like_samples(tars.file_names(shards[0], GLANCE))


def read(path: Path, labels: str = "labels", names: str | Path | None = None) -> LabelTable:
    """All samples of all shards; only headers and labels are read."""
    shards = _shards(path)
    if not shards:
        raise DataError(f"{path} holds no shard (*.tar)")
    folder = path if path.is_dir() else path.parent
    columns = _Columns(None if names is None else read_names(names, beside=folder))
    parts: list[_Part] = []
    problems: list[str] = []
    for shard in shards:
        try:
            part = _read_shard(shard, labels, columns)
            parts.append(part)
            problems += part.problems()
        except DataError as error:
            problems += error.problems
    splits = [_split_of(shard, path) for shard in shards]
    problems += split_problems(shards, splits)
    if not problems and not any(len(part.keys) for part in parts):
        problems.append(f"{path} holds no sample: no image with a name before its first dot")
    raise_if(problems, DataError)
    counts = [len(part.keys) for part in parts]
    rows = [
        part.rows + first
        for part, first in zip(parts, np.cumsum([0, *counts[:-1]]).tolist(), strict=True)
    ]
    order, words = columns.in_order()
    numbers = np.concatenate([part.columns for part in parts])
    return LabelTable.from_entries(
        np.concatenate(rows),
        order[numbers] if len(numbers) else numbers,
        np.concatenate([part.values for part in parts]),
        ids=_ids(path, parts),
        names=words,
        paths=concatenated(part.paths for part in parts),
        splits=None if splits[0] is None else np.repeat(np.array(splits, dtype=str), counts),
        notes=tuple(_notes(parts, sum(counts))),
    )


def _shards(path: Path) -> list[Path]:
    """A shard, or those of a folder and its subfolders, in order."""
    if path.is_file():
        return [path] if path.suffix == ".tar" else []
    return sorted(path.glob("*.tar")) + sorted(path.glob("*/*.tar"))


def _looks_like_samples(names: Sequence[str]) -> bool:
    """Is there an image whose labels have the same name?"""
    kinds: dict[str, set[str]] = {}
    for name in names:
        match = _KEY.fullmatch(name)
        if match:
            kinds.setdefault(match[1], set()).add(match[2].lower())
    return any(_LABELS & found and {*IMAGES} & found for found in kinds.values())


def _split_of(shard: Path, root: Path) -> str | None:
    """What the name of the shard says, or else that of its folder within the data set."""
    inside = shard.parent != root and shard != root
    return split_in(shard.stem, shard.parent.name if inside else "")


class _Columns:
    """The columns of labels: those of a list, or whatever occurs, sorted in the end."""

    def __init__(self, names: list[str] | None) -> None:
        self.names = names
        self.numbers: dict[str, int] = {name: place for place, name in enumerate(names or [])}

    def of(self, label: Any) -> int:
        """The number of a label's column; `ValueError` if it can have none."""
        if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
            raise ValueError(f"{label!r} is not the name or the number of a label")
        if self.names is None:
            return self.numbers.setdefault(str(label), len(self.numbers))
        if isinstance(label, int):
            if not 0 <= label < len(self.names):
                raise ValueError(f"label number {label} is not in 0 … {len(self.names) - 1}")
            return label
        if label not in self.numbers:
            raise ValueError(f"label '{label}' is not among the names")
        return self.numbers[label]

    def in_order(self) -> tuple[np.ndarray, list[str]]:
        """The final column of each number so far, and the labels: numbers by size, then words."""
        if self.names is not None:
            return np.arange(len(self.names)), self.names
        words = sorted(self.numbers, key=lambda word: (*_number(word), word))
        final = np.empty(len(words), np.int64)
        final[[self.numbers[word] for word in words]] = np.arange(len(words))
        return final, words


def _number(word: str) -> tuple[bool, int]:
    whole = re.fullmatch("-?[0-9]{1,18}", word) is not None
    return not whole, int(word) if whole else 0


class _Part:
    """What one shard holds."""

    def __init__(self, shard: Path, keys: list[str], paths: Texts) -> None:
        self.shard, self.keys, self.paths = shard, keys, paths
        self.rows = self.columns = self.values = np.zeros(0, np.int64)
        self.faults: dict[str, list[str]] = {}  # what is wrong, and the keys of the samples
        self.several = self.unlabelled = 0

    def problems(self) -> Iterator[str]:
        for what, keys in list(self.faults.items())[:SHOWN]:
            samples = "sample" if len(keys) == 1 else "samples"
            yield f"{self.shard}: {what}: {samples} {first_few(keys)}"
        if len(self.faults) > SHOWN:
            yield f"{self.shard}: and {len(self.faults) - SHOWN} other problems"


def _read_shard(shard: Path, labels: str, columns: _Columns) -> _Part:
    members, starts, sizes = tars.index(shard)
    samples, again = _group([*members, *_repeated(shard, starts, sizes)])
    images = {key: _image_of(kinds) for key, kinds in samples.items()}
    keys = [key for key, image in images.items() if image is not None]
    places = np.array([images[key] for key in keys], np.int64)
    part = _Part(shard, keys, tars.span_paths(shard, starts[places], sizes[places]))
    part.several = sum(len({*IMAGES} & samples[key].keys()) > 1 for key in keys)
    for key, kind in again:
        part.faults.setdefault(f"its .{kind} occurs more than once", []).append(key)
    for key, kinds in samples.items():
        if images[key] is None and _LABELS & kinds.keys():
            part.faults.setdefault("there are labels without an image", []).append(key)
        elif images[key] is None and any(kind.endswith(SUFFIXES) for kind in kinds):
            part.faults.setdefault(_DOTS, []).append(key)
    _read_labels(part, samples, starts, sizes, labels, columns)
    return part


def _read_labels(
    part: _Part,
    samples: dict[str, dict[str, int]],
    starts: np.ndarray,
    sizes: np.ndarray,
    key_of_labels: str,
    columns: _Columns,
) -> None:
    """The entries of a shard: of each sample its JSON, or else its numbers."""
    counts, numbers, values = np.zeros(len(part.keys), np.int64), [], []
    kinds = ["json" if "json" in samples[key] else "cls" for key in part.keys]
    having = [row for row, key in enumerate(part.keys) if _LABELS & samples[key].keys()]
    places = np.array([samples[part.keys[row]][kinds[row]] for row in having], np.int64)
    contents = tars.read_spans(part.shard, starts[places], sizes[places])
    for row, content in zip(having, contents, strict=True):
        key = part.keys[row]
        try:
            entries = _from_json(key_of_labels, content) if kinds[row] == "json" else None
            if entries is None and "cls" in samples[key]:
                place = samples[key]["cls"]
                entries = _from_numbers(
                    *tars.read_spans(part.shard, starts[[place]], sizes[[place]])
                )
            if entries is None:
                raise ValueError(f"its .json has no '{key_of_labels}', 'positive' or 'negative'")
            found = [columns.of(label) for label, _ in entries]
        except ValueError as error:
            part.faults.setdefault(str(error), []).append(key)
            continue
        counts[row] = len(found)
        numbers += found
        values += [value for _, value in entries]
    given = np.array(values, np.int8)
    known = given != UNKNOWN
    part.rows = np.repeat(np.arange(len(counts)), counts)[known]
    part.columns, part.values = np.array(numbers, np.int64)[known], given[known]
    part.unlabelled = len(counts) - len(np.unique(part.rows))


def _group(members: Sequence[str]) -> tuple[dict[str, dict[str, int]], list[tuple[str, str]]]:
    """By key and kind, the number of each member; and the key and kind of what is there again.

    What has no kind, or no key, is no sample.
    """
    samples: dict[str, dict[str, int]] = {}
    again = []
    for place, name in enumerate(members):
        match = _KEY.fullmatch(name)
        if match:
            key, kind = match[1], match[2].lower()
            if samples.setdefault(key, {}).setdefault(kind, place) != place:
                again.append((key, kind))
    return samples, again


def _repeated(shard: Path, starts: np.ndarray, sizes: np.ndarray) -> Texts:
    """The names of several members each, of which the index has the last.

    The others leave gaps between members, larger than a header: only then are names read again.
    """
    order = np.argsort(starts)
    ends = starts[order] + -(-sizes[order] // BLOCKSIZE) * BLOCKSIZE
    gaps = starts[order] - np.append(0, ends[:-1])
    if not len(gaps) or gaps.min() == gaps.max() <= MOST_OF_A_HEADER:
        return Texts.of([])
    return Texts.of(tars.file_names(shard, sys.maxsize)).repeated()


def _image_of(kinds: dict[str, int]) -> int | None:
    """The member that is the image: `jpg` rather than `png`; `seg.png` never is."""
    return next((kinds[kind] for kind in IMAGES if kind in kinds), None)


def _from_json(key: str, content: bytes) -> list[tuple[Any, int]] | None:
    """(label, value) of each label that is mentioned; None if labels are not."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("its .json is not valid JSON") from None
    if not isinstance(found, dict):
        raise ValueError('its .json is not an object such as {"labels": ["cat"]}')
    sides = {key: POSITIVE, "positive": POSITIVE, "negative": NEGATIVE}
    entries: list[tuple[Any, int]] = []
    for side, value in sides.items():
        labels = found.get(side)
        if isinstance(labels, dict):
            entries += [(label, _value(label, given)) for label, given in labels.items()]
        elif isinstance(labels, list):
            entries += [(label, value) for label in labels]
        elif labels is not None:
            raise ValueError(f"'{side}' in its .json is neither a list nor an object")
    return entries if sides.keys() & found.keys() else None


def _value(label: str, given: Any) -> int:
    if given is None:
        return UNKNOWN
    if isinstance(given, int | float) and given in (POSITIVE, NEGATIVE, UNKNOWN):
        return int(given)
    raise ValueError(f"label '{label}' is {given!r}, not 1, 0 or null")


def _from_numbers(content: bytes) -> list[tuple[Any, int]]:
    """Whole numbers with spaces, commas or line ends between."""
    words = content.replace(b",", b" ").split()
    strange = [word for word in words if not word.isdigit()]
    if strange:
        raise ValueError(f"'{strange[0][:20].decode(errors='replace')}' in its .cls is no number")
    return [(int(word), POSITIVE) for word in words]


def _ids(root: Path, parts: Sequence[_Part]) -> Texts:
    """The keys; with the shard before them where different shards have the same."""
    ids = [Texts.of(part.keys) for part in parts]
    if not len(concatenated(ids).repeated()):
        return concatenated(ids)
    shards = [part.shard.relative_to(root).with_suffix("") for part in parts]
    return concatenated(
        keys.joined(f"{shard.as_posix()}/") for keys, shard in zip(ids, shards, strict=True)
    )


def _notes(parts: Sequence[_Part], count: int) -> Iterator[str]:
    unlabelled = sum(part.unlabelled for part in parts)
    if unlabelled:
        yield f"{unlabelled:,} of {counted(count, 'sample')} have no known label"
    several = sum(part.several for part in parts)
    if several:
        yield (
            f"{counted(several, 'sample')} have several images: the first of "
            f"{', '.join(IMAGES)} is taken"
        )
