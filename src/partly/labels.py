"""The tri-state label table.

What enters: label values in a named convention, with the ids of the images and the names of the
labels. What leaves: a `LabelTable` that stores only the known entries (compressed sparse rows) and
hands out dense int8 blocks: 1 positive, 0 negative, -1 unknown.

Letters: N images, L labels, K known entries.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from partly.errors import ConfigError, DataError, LabelError, first_few, raise_if
from partly.texts import Texts, TextsLike, mapped

POSITIVE, NEGATIVE, UNKNOWN = 1, 0, -1

SPLITS = ("train", "validation", "test")

# What a number means. Other projects write -1 for negative and 0 for unknown, so a file's
# convention is always said, never guessed.
CONVENTIONS: Mapping[str, Mapping[float, int]] = {
    "partly": {1: POSITIVE, 0: NEGATIVE, -1: UNKNOWN},
    "nan": {1: POSITIVE, 0: NEGATIVE, -1: UNKNOWN},  # and NaN is unknown
    "signed": {1: POSITIVE, -1: NEGATIVE, 0: UNKNOWN},
}


class Counts(NamedTuple):
    """How many entries are positive, negative and unknown: one number a label, or one an image."""

    positive: np.ndarray
    negative: np.ndarray
    unknown: np.ndarray


def encode(
    values: Any,
    *,
    convention: str = "partly",
    ids: Sequence[object] | None = None,
    names: Sequence[str] | None = None,
) -> np.ndarray:
    """Label values [N, L] in a convention of `CONVENTIONS` -> int8 1 / 0 / -1.

    Booleans mean positive and negative in every convention. NaN is unknown in convention "nan" and
    an error elsewhere. Every other value is an error that names row and column.

    >>> encode([[1, -1], [0, 1]], convention="signed").tolist()
    [[1, 0], [-1, 1]]
    """
    if convention not in CONVENTIONS:
        raise ConfigError(
            f"unknown label convention '{convention}'; choose one of {', '.join(CONVENTIONS)}"
        )
    array = np.asarray(values)
    if array.ndim != 2:
        raise LabelError(f"labels must have two dimensions (images, labels), got {array.shape}")
    if array.dtype == bool:
        return array.astype(np.int8)
    try:
        if array.dtype.kind == "c":
            raise TypeError("they are complex")
        numbers = array if array.dtype.kind in "iuf" else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise LabelError(
            f"labels are not numbers ({error}); write 1 positive, 0 negative, -1 unknown"
        ) from None
    encoded = np.full(numbers.shape, UNKNOWN, dtype=np.int8)
    understood = np.isnan(numbers) if convention == "nan" and numbers.dtype.kind == "f" else None
    understood = np.zeros(numbers.shape, dtype=bool) if understood is None else understood
    for number, meaning in CONVENTIONS[convention].items():
        matches = numbers == number
        encoded[matches] = meaning
        understood |= matches
    raise_if(_strange_values(numbers, ~understood, convention, ids, names), LabelError)
    return encoded


def _strange_values(
    numbers: np.ndarray,
    strange: np.ndarray,
    convention: str,
    ids: Sequence[object] | None,
    names: Sequence[str] | None,
) -> Iterator[str]:
    cells = np.argwhere(strange)
    if not len(cells):
        return
    places = [
        f"row {row if ids is None else ids[row]}, "
        f"column {column if names is None else names[column]}: {numbers[row, column]}"
        for row, column in cells[:5]
    ]
    more = f" and {len(cells) - 5} more" if len(cells) > 5 else ""
    allowed = ", ".join(
        f"{number:g} = {_word(meaning)}" for number, meaning in CONVENTIONS[convention].items()
    )
    yield f"label values that mean nothing here ({allowed}): {'; '.join(places)}{more}"
    if np.isnan(numbers[strange].astype(np.float64)).any():
        yield 'NaN is accepted as unknown only with convention="nan"'


def _word(meaning: int) -> str:
    return {POSITIVE: "positive", NEGATIVE: "negative", UNKNOWN: "unknown"}[meaning]


@dataclass(frozen=True, eq=False)
class LabelTable:
    """N images with L labels each, most of them unknown.

    ids: [N] texts, unique. names: L strings, unique. indptr [N+1], indices [K] and values [K] are
    compressed sparse rows of the known entries, columns ascending within a row.
    paths: [N] image files, or features: [N, F] rows of numbers: what a model looks at.
    splits: [N] of "train", "validation", "test", where the data set comes with them.
    asked: [K] which known entries people were asked about, where some were: somebody chose those
    cells, so that they say nothing about how frequent a label is.
    notes: sentences on what a reader did that its user should know; not part of the content.

    >>> labels = np.array([[1, 0, -1], [-1, 1, -1]])
    >>> table = LabelTable.from_dense(labels, names=["cat", "dog", "owl"])
    >>> table.known, table.dense([1]).tolist()
    (3, [[-1, 1, -1]])
    >>> table.counts_by_label().positive.tolist()
    [1, 1, 0]
    """

    ids: Texts
    names: tuple[str, ...]
    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    paths: Texts | None = None
    features: np.ndarray | None = None
    splits: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    asked: np.ndarray | None = None
    checked: InitVar[bool] = False  # True: made from a table that passed its checks

    def __post_init__(self, checked: bool) -> None:
        object.__setattr__(self, "ids", Texts.of(self.ids))
        if self.paths is not None:
            object.__setattr__(self, "paths", Texts.of(self.paths))
        if not checked:
            raise_if(_table_problems(self), LabelError)

    @classmethod
    def from_dense(
        cls,
        values: Any,
        *,
        ids: TextsLike | None = None,
        names: Sequence[str] | None = None,
        convention: str = "partly",
        paths: TextsLike | None = None,
        features: np.ndarray | None = None,
        splits: np.ndarray | None = None,
        notes: Sequence[str] = (),
    ) -> "LabelTable":
        """A table from an [N, L] array. Missing ids and names become row and column numbers."""
        shape = np.shape(values)
        problems = [
            f"{len(given)} {what} for labels of shape {shape}"
            for what, given, axis in (("ids", ids, 0), ("names", names, 1))
            if given is not None and len(shape) == 2 and len(given) != shape[axis]
        ]
        raise_if(problems, LabelError)
        labels = encode(values, convention=convention, ids=ids, names=names)
        known = labels != UNKNOWN  # in order already: nothing to sort
        columns = np.broadcast_to(np.arange(labels.shape[1], dtype=np.int32), labels.shape)
        return cls(
            ids=Texts.of(np.arange(len(labels)) if ids is None else ids),
            names=_names(range(labels.shape[1]), "label ") if names is None else _names(names),
            indptr=np.concatenate([[0], np.cumsum(known.sum(axis=1, dtype=np.int64))]),
            indices=columns[known],
            values=labels[known],
            paths=None if paths is None else Texts.of(paths),
            features=None if features is None else np.asarray(features),
            splits=None if splits is None else np.asarray(splits),
            notes=tuple(notes),
        )

    @classmethod
    def from_entries(
        cls,
        rows: np.ndarray,
        columns: np.ndarray,
        values: np.ndarray,
        *,
        ids: TextsLike,
        names: Sequence[str],
        paths: TextsLike | None = None,
        features: np.ndarray | None = None,
        splits: np.ndarray | None = None,
        notes: Sequence[str] = (),
    ) -> "LabelTable":
        """A table from its known entries: row, column and value (1 or 0) of each, in any order."""
        rows, columns, values = _whole_numbers(rows), _whole_numbers(columns), np.asarray(values)
        raise_if(_entry_problems(rows, columns, values, len(ids), len(names)), LabelError)
        cells = sorted_cells(rows, columns, values, len(names))
        _refuse_contradictions(cells, ids, names)
        indptr = np.searchsorted(cells, np.arange(len(ids) + 1) * (2 * len(names)))
        return cls(
            ids=Texts.of(ids),
            names=_names(names),
            indptr=indptr,
            indices=_in_blocks(cells, lambda block: (block >> 1) % len(names), np.int32),
            values=_in_blocks(cells, lambda block: block & 1, np.int8),
            paths=None if paths is None else Texts.of(paths),
            features=None if features is None else np.asarray(features),
            splits=None if splits is None else np.asarray(splits),
            notes=tuple(notes),
        )

    @classmethod
    def without_labels(
        cls,
        names: Sequence[str],
        *,
        ids: TextsLike,
        paths: TextsLike | None = None,
        features: np.ndarray | None = None,
    ) -> "LabelTable":
        """A table in which every label is unknown: what a model is asked about."""
        none = np.zeros(0, dtype=np.int64)
        return cls.from_entries(
            none, none, none, ids=ids, names=names, paths=paths, features=features
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"LabelTable({len(self):,} images, {len(self.names):,} labels, {self.known:,} known)"

    @property
    def known(self) -> int:
        """How many entries are known (K)."""
        return len(self.values)

    @cached_property
    def rows(self) -> np.ndarray:
        """The row of every known entry [K]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.indptr))

    def dense(
        self, rows: np.ndarray | slice | None = None, columns: np.ndarray | None = None
    ) -> np.ndarray:
        """The int8 block [len(rows), L] of these rows, or of all; [len(rows), C] of some columns.

        columns [C]: ascending.
        """
        rows = np.arange(len(self))[slice(None) if rows is None else rows]
        width = len(self.names) if columns is None else len(columns)
        block = np.full((len(rows), width), UNKNOWN, dtype=np.int8)
        places, values = self.cells(rows, columns)
        block.reshape(-1)[places] = values
        return block

    def cells(
        self, rows: np.ndarray, columns: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The known entries of `dense(rows, columns)`: where they stand in it, read line by line,
        and their values."""
        positions, lengths = self._positions(rows)
        lines, found, values = (
            np.repeat(np.arange(len(rows)), lengths),
            self.indices[positions],
            self.values[positions],
        )
        if columns is None:
            return lines * len(self.names) + found, values
        places = np.searchsorted(columns, found)
        here = columns[np.minimum(places, len(columns) - 1)] == found
        return (lines * len(columns) + places)[here], values[here]

    def take(self, rows: np.ndarray) -> "LabelTable":
        """The table of these rows only, in this order."""
        rows = np.arange(len(self))[rows]
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
            return self._block(int(rows[0]), int(rows[-1]) + 1)
        positions, lengths = self._positions(rows)
        return replace(
            self,
            ids=self.ids[rows],
            indptr=np.concatenate([[0], np.cumsum(lengths)]),
            indices=self.indices[positions],
            values=self.values[positions],
            asked=None if self.asked is None else self.asked[positions],
            paths=None if self.paths is None else self.paths[rows],
            features=None if self.features is None else self.features[rows],
            splits=None if self.splits is None else self.splits[rows],
            checked=True,
        )

    def _block(self, first: int, end: int) -> "LabelTable":
        """Rows that follow each other: nothing but ids and paths is copied."""
        entries = slice(self.indptr[first], self.indptr[end])
        return replace(
            self,
            ids=self.ids[first:end],
            indptr=self.indptr[first : end + 1] - self.indptr[first],
            indices=self.indices[entries],
            values=self.values[entries],
            asked=None if self.asked is None else self.asked[entries],
            paths=None if self.paths is None else self.paths[first:end],
            features=None if self.features is None else self.features[first:end],
            splits=None if self.splits is None else self.splits[first:end],
            checked=True,
        )

    def keep(self, kept: np.ndarray) -> "LabelTable":
        """The table in which only the known entries marked in `kept` [K] are still known."""
        kept_per_row = np.bincount(self.rows[kept], minlength=len(self))
        return replace(
            self,
            indptr=np.concatenate([[0], np.cumsum(kept_per_row)]),
            indices=self.indices[kept],
            values=self.values[kept],
            asked=None if self.asked is None else self.asked[kept],
            checked=True,
        )

    def drawn(self) -> "LabelTable":
        """The table without what people were asked about, but for labels of which no positive is
        known otherwise: there that is all that is known."""
        if self.asked is None:
            return self
        otherwise = self.indices[~self.asked & (self.values == POSITIVE)]
        known_otherwise = np.bincount(otherwise, minlength=len(self.names)) > 0
        drawn = ~self.asked | ~known_otherwise[self.indices]
        return replace(self.keep(drawn), asked=None, checked=True)

    def part(self, split: str) -> "LabelTable | None":
        """The rows of one split; None when there are none. A table without splits is all train."""
        if self.splits is None:
            return self if split == "train" else None
        rows = np.flatnonzero(self.splits == split)
        return self.take(rows) if len(rows) else None

    def reorder(self, names: Sequence[str], source: str = "this table") -> "LabelTable":
        """The same labels with columns in the order of `names`; other columns are dropped."""
        column_of = {name: column for column, name in enumerate(self.names)}
        missing = [name for name in names if name not in column_of]
        if missing:
            raise LabelError(
                f"{source} has no column for {len(missing)} of {len(names)} labels: "
                f"{first_few(missing)}; it has {first_few(self.names)}"
            )
        if tuple(names) == self.names:
            return self
        new_column = np.full(len(self.names), -1, dtype=np.int64)
        for column, name in enumerate(names):
            new_column[column_of[name]] = column
        kept = self.keep(new_column[self.indices] >= 0)
        columns = new_column[kept.indices]
        order = np.argsort(kept.rows * len(names) + columns, kind="stable")
        return replace(
            kept,
            names=_names(names),
            indices=columns[order].astype(np.int32),
            values=kept.values[order],
            asked=None if kept.asked is None else kept.asked[order],
        )

    def mapped(self) -> "LabelTable":
        """The same table in memory-mapped files, shared by whatever processes are forked."""
        return replace(
            self,
            ids=self.ids.mapped(),
            paths=None if self.paths is None else self.paths.mapped(),
            indptr=mapped(self.indptr),
            indices=mapped(self.indices),
            values=mapped(self.values),
            asked=None if self.asked is None else mapped(self.asked),
            features=None if self.features is None else mapped(self.features),
            splits=None if self.splits is None else mapped(self.splits),
            checked=True,
        )

    @property
    def size(self) -> int:
        """Bytes in memory, or in its mapped files."""
        arrays = [self.indptr, self.indices, self.values, self.asked, self.features, self.splits]
        texts = [
            part
            for text in (self.ids, self.paths)
            if text is not None
            for part in (text.data, text.offsets)
        ]
        return sum(array.nbytes for array in [*arrays, *texts] if array is not None)

    def counts_by_label(self) -> Counts:
        """Positive, negative and unknown images of each label [L]."""
        positive = np.bincount(self.indices[self.values == POSITIVE], minlength=len(self.names))
        known = np.bincount(self.indices, minlength=len(self.names))
        return Counts(positive, known - positive, len(self) - known)

    def counts_by_image(self) -> Counts:
        """Positive, negative and unknown labels of each image [N]."""
        positives_before = np.zeros(self.known + 1, dtype=np.int64)
        np.cumsum(self.values == POSITIVE, out=positives_before[1:])
        positive, known = np.diff(positives_before[self.indptr]), np.diff(self.indptr)
        return Counts(positive, known - positive, len(self.names) - known)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of ids, names and known entries; not of what the images look like."""
        digest = hashlib.sha256(b"partly label table 1\0")
        for texts in (Texts.of(self.names), self.ids):
            _digest_texts(digest, texts)
            digest.update(b"\0\0")
        for numbers, kind in ((self.indptr, "<i8"), (self.indices, "<i4"), (self.values, "<i1")):
            digest.update(np.ascontiguousarray(numbers, dtype=kind).data)
        return digest.hexdigest()

    @cached_property
    def inputs_hash(self) -> str:
        """SHA-256 of the features, or of the images' names, wherever their folder lies."""
        digest = hashlib.sha256(b"partly inputs 1\0")
        if self.features is not None:
            digest.update(f"{self.features.dtype.str}{self.features.shape}".encode())
            digest.update(np.ascontiguousarray(self.features).data)
        if self.paths is not None:
            _digest_texts(digest, self.paths, after_last="/")
        return digest.hexdigest()

    def _positions(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the known entries of `rows` stand in `indices`, and how many each row has."""
        starts = self.indptr[rows]
        lengths = self.indptr[rows + 1] - starts
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        return np.repeat(starts - ends + lengths, lengths) + np.arange(total), lengths


def _names(names: Iterable[object], before: str = "") -> tuple[str, ...]:
    return tuple(f"{before}{name}" for name in names)


def _digest_texts(digest: Any, texts: Texts, after_last: str | None = None) -> None:
    """The texts, or what follows the last `after_last` in each, with a zero between each two."""
    from pyarrow import compute

    between = b""
    for block in texts.blocks():
        if after_last is not None:
            pattern = f"(?s)^.*{after_last}"
            block = Texts.of(compute.replace_substring_regex(block.arrow(), pattern, ""))
        digest.update(between + block.joined("", "\0").data.tobytes()[:-1])
        between = b"\0"


def _whole_numbers(places: Any) -> np.ndarray:
    """An array of integers of the width they come in: at Open Images' size, bytes count."""
    places = np.asarray(places)
    return places if places.dtype.kind in "iu" else places.astype(np.int64)


def sorted_cells(
    rows: np.ndarray, columns: np.ndarray, values: np.ndarray, labels: int
) -> np.ndarray:
    """(row · L + column) · 2 + value of every entry, ascending, each of them once.

    One number an entry, so that sorting needs no second array of places.
    """
    cells = rows.astype(np.int64)
    cells *= labels
    cells += columns
    cells *= 2
    cells += values.astype(np.int8, copy=False)
    if (cells[1:] < cells[:-1]).any():
        cells.sort()
    again = cells[1:] == cells[:-1]
    return cells[np.concatenate([[True], ~again])] if again.any() else cells


def _refuse_contradictions(cells: np.ndarray, ids: TextsLike, names: Sequence[str]) -> None:
    """`sorted_cells` with a cell that is both positive and negative are an error."""
    both = np.flatnonzero((cells[1:] ^ cells[:-1]) == 1)  # these differ in nothing but the value
    if not len(both):
        return
    places = [divmod(int(cell) >> 1, len(names)) for cell in cells[both[:5]]]
    listed = [f"row {ids[row]}, column {names[column]}" for row, column in places]
    more = f" and {len(both) - 5} more" if len(both) > 5 else ""
    raise LabelError(
        f"{len(both)} entries are given as positive and as negative: {', '.join(listed)}{more}; "
        "keep one of each"
    )


def _in_blocks(
    numbers: np.ndarray, work: Callable[[np.ndarray], np.ndarray], dtype: type
) -> np.ndarray:
    """`work` on all numbers, into a narrower type, without a wide copy of all of them."""
    done: np.ndarray = np.empty(len(numbers), dtype=dtype)
    for first in range(0, len(numbers), 2**20):
        block = slice(first, first + 2**20)
        done[block] = work(numbers[block])
    return done


def _entry_problems(
    rows: np.ndarray, columns: np.ndarray, values: np.ndarray, count: int, labels: int
) -> Iterator[str]:
    if not len(rows) == len(columns) == len(values):
        yield f"{len(rows)} rows, {len(columns)} columns, {len(values)} values: not one of each"
        return
    for what, places, limit in (("row", rows, count), ("column", columns, labels)):
        if len(places) and (places.min() < 0 or places.max() >= limit):
            outside = np.flatnonzero((places < 0) | (places >= limit))
            yield f"{what} {places[outside[0]]} of entry {outside[0]} is not in 0 … {limit - 1}"
    strange = np.flatnonzero((values != POSITIVE) & (values != NEGATIVE))
    if len(strange):
        entry = strange[0]
        yield (
            f"a known label is 1 or 0, but {len(strange)} are not: row {rows[entry]}, "
            f"column {columns[entry]} is {values[entry]}"
        )


def _table_problems(table: LabelTable) -> Iterator[str]:
    """Everything that is wrong, so that a user mends it in one go."""
    count = len(table.ids)
    entries = len(table.indices), len(table.values)
    if len(table.indptr) != count + 1 or entries != (table.indptr[-1], table.indptr[-1]):
        yield f"indptr, indices and values do not describe {count} rows; use from_entries"
    if table.asked is not None and len(table.asked) != len(table.values):
        yield f"{len(table.asked)} marks of asked entries for {len(table.values)} known ones"
    for what, texts in (("image id", table.ids), ("label name", Texts.of(table.names))):
        if not len(texts):
            yield f"there is no {what}: the table is empty"
            continue
        again = texts.repeated()
        if len(again):
            yield f"{len(again)} {what}s occur more than once: {first_few(sorted(again))}"
        empty = np.flatnonzero(np.diff(texts.offsets) == 0)
        if len(empty):
            yield f"{what} number {empty[0]} is empty"
    for what, column in (("paths", table.paths), ("splits", table.splits)):
        if column is not None and len(column) != count:
            yield f"{len(column)} {what} for {count} images"
    if table.splits is not None:
        known = np.zeros(len(table.splits), dtype=bool)
        for split in SPLITS:
            known |= table.splits == split
        if not known.all():
            strange = sorted(set(table.splits[~known].tolist()))
            found = first_few([repr(split) for split in strange])
            yield f"a split is one of {', '.join(SPLITS)}, not {found}"
    yield from _feature_problems(table)


def _feature_problems(table: LabelTable) -> Iterator[str]:
    features = table.features
    if features is None:
        return
    if features.ndim != 2 or len(features) != len(table.ids):
        yield f"features of shape {features.shape} for {len(table.ids)} images: not one row each"
        return
    if features.dtype.kind not in "biuf":
        yield f"features are not numbers but {features.dtype}"
        return
    sums = features.sum(axis=1, dtype=np.float64)
    broken = np.flatnonzero(~np.isfinite(sums))
    if len(broken):
        ids = [str(name) for name in table.ids[broken]]
        yield f"features of {len(broken)} images are not finite: {first_few(ids)}"


def check_trainable(table: LabelTable) -> None:
    """Raise one error with everything that keeps a model from learning from this table."""
    problems = []
    if len(table.names) < 2:
        problems.append(
            f"only one label ('{table.names[0]}'): a multi-label data set has two or more columns"
        )
    if table.known == 0:
        problems.append("every label is unknown: there is nothing to learn from")
    elif not (table.values == POSITIVE).any():
        problems.append("no label is known to be positive: there is nothing to look for")
    if table.paths is None and table.features is None:
        problems.append("the table has neither image paths nor features")
    raise_if(problems, DataError)
