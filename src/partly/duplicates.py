"""Images, or rows of features, that are there more than once.

What enters: a table and the hashes of its images' files. What leaves: groups of rows that are byte
for byte the same, what that leaks from one part into another, and where their labels contradict
each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partly.images import Inspection
from partly.labels import SPLITS, LabelTable
from partly.readers.common import counted

Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class Duplicates:
    """Rows of the table that are equal."""

    groups: list[np.ndarray]  # each has two rows or more, ascending
    contradictions: list[tuple[int, int, int]]  # row where positive, row where negative, column

    @classmethod
    def of(cls, table: LabelTable, look: Inspection | None) -> "Duplicates | None":
        """By the bytes of the features if there are any, else of the files; None without both."""
        rows = np.arange(len(table))
        if table.features is not None:
            keys = row_keys(table.features)
        elif look is not None:
            keys = look.digests
            # A file that cannot be used is reported already; empty ones are all equal.
            rows = np.setdiff1d(rows, np.fromiter(look.problems, np.int64))
        else:
            return None
        groups = equal_rows(keys, rows)
        return cls(groups, contradictions(table, groups))

    def across(self, parts: np.ndarray) -> list[tuple[str, str, Pairs]]:
        """(part, other, [(row, equal row of the other)]) of what stands in two parts."""
        found = []
        for place, other in ((2, 0), (1, 0), (2, 1)):
            pairs: Pairs = []
            for rows in self.groups:
                part = parts[rows]
                if (part == place).any() and (part == other).any():
                    equal = int(rows[part == other][0])
                    pairs += [(int(row), equal) for row in rows[part == place]]
            if pairs:
                found.append((SPLITS[place], SPLITS[other], pairs))
        return found

    def within(self, parts: np.ndarray) -> dict[str, list[np.ndarray]]:
        """{part: groups} of what stands in one part only, and does not contradict itself."""
        contradicted = {row for found in self.contradictions for row in found[:2]}
        found: dict[str, list[np.ndarray]] = {}
        for rows in self.groups:
            part = parts[rows]
            if (part == part[0]).all() and not contradicted.intersection(rows.tolist()):
                found.setdefault(SPLITS[part[0]], []).append(rows)
        return found

    def warnings(self, table: LabelTable, parts: np.ndarray) -> Iterator[str]:
        """A sentence on each pair of parts that share images, and on each part with some twice."""
        what = "image" if table.features is None else "row"
        for part, other, pairs in self.across(parts):
            named = [f"{table.ids[a]} (= {table.ids[b]})" for a, b in pairs[:5]]
            verb = "is" if len(pairs) == 1 else "are"
            yield (
                f"{counted(len(pairs), what)} of {part} {verb} byte for byte in {other} as well, "
                f"so that {part} does not measure what is new: {some_of(named, len(pairs))}"
            )
        for part, groups in self.within(parts).items():
            named = [" = ".join(names_of(table, rows)) for rows in groups[:5]]
            extra = sum(len(rows) - 1 for rows in groups)
            yield (
                f"{counted(extra, what)} of {part} {'is' if extra == 1 else 'are'} there more than "
                f"once, byte for byte: {some_of(named, len(groups), '; ')}"
            )
        yield from self.contradicting(table, parts)

    def contradicting(self, table: LabelTable, parts: np.ndarray) -> Iterator[str]:
        """A sentence if equal images have labels that cannot both be right."""
        if not self.contradictions:
            return
        named = [
            f"{table.ids[yes]} ({SPLITS[parts[yes]]}) has '{table.names[column]}', "
            f"{table.ids[no]} ({SPLITS[parts[no]]}) has not"
            for yes, no, column in self.contradictions[:3]
        ]
        what = "images" if table.features is None else "rows of features"
        count = len(self.contradictions)
        yield (
            f"{what} that are byte for byte the same contradict each other in "
            f"{counted(count, 'label')}: {some_of(named, count, '; ')}"
        )


def equal_rows(keys: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """Groups of `rows` with equal keys [N, 2], in the order of their first rows."""
    order = rows[np.lexsort((rows, keys[rows, 1], keys[rows, 0]))]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (keys[order[1:]] != keys[order[:-1]]).any(axis=1)
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(order))
    found = [order[starts[k] : ends[k]] for k in np.flatnonzero(ends - starts > 1)]
    return sorted(found, key=lambda group: int(group[0]))


def row_keys(features: np.ndarray) -> np.ndarray:
    """uint64 [N, 2] that depend on the bytes of a row alone: two sums with random factors."""
    width = features.shape[1] * features.itemsize
    words = -(-width // 8)
    factors = np.random.default_rng(0).integers(0, 2**63, (2, words), dtype=np.uint64) * 2 + 1
    keys = np.zeros((len(features), 2), dtype=np.uint64)
    size = max(1, 2**24 // max(width, 1))
    for first in range(0, len(features), size):
        block = np.ascontiguousarray(features[first : first + size])
        filled = np.zeros((len(block), 8 * words), dtype=np.uint8)
        filled[:, :width] = block.view(np.uint8).reshape(len(block), width)
        numbers = filled.view(np.uint64)
        numbers ^= numbers >> np.uint64(29)  # the low bits of floats are often 0
        for column in (0, 1):
            keys[first : first + size, column] = (numbers * factors[column]).sum(axis=1)
    return keys


def contradictions(table: LabelTable, groups: Sequence[np.ndarray]) -> list[tuple[int, int, int]]:
    """(row where positive, row where negative, column) of each label on which a group disagrees."""
    if not groups:
        return []
    rows = np.concatenate(groups)
    group = np.repeat(np.arange(len(groups)), [len(part) for part in groups])
    known = np.diff(table.indptr)[rows]
    entries = np.concatenate(
        [np.arange(table.indptr[row], table.indptr[row + 1]) for row in rows.tolist()]
    )
    cells = np.repeat(group, known) * len(table.names) + table.indices[entries]
    of_row, values = np.repeat(rows, known), table.values[entries]
    order = np.lexsort((of_row, -values, cells))  # of each cell the positives first
    cells, of_row, values = cells[order], of_row[order], values[order]
    change = np.flatnonzero((cells[1:] == cells[:-1]) & (values[1:] != values[:-1]))
    return [(int(of_row[k]), int(of_row[k + 1]), int(cells[k] % len(table.names))) for k in change]


def names_of(table: LabelTable, rows: Any) -> list[str]:
    """The ids of these rows."""
    return [table.ids[int(row)] for row in rows]


def some_of(named: Sequence[str], count: int, between: str = ", ") -> str:
    """The first few of `count`, and how many more there are."""
    shown = between.join(named)
    return shown if count <= len(named) else f"{shown} and {count - len(named):,} more"
