"""The answers as this process knows them, in step with the journal on disk.

What enters: what people answer here, and whatever other processes add to the journal. What leaves:
the answer that counts for each cell, what came since a moment, and lines on the disk.

A moment is a place in the file, so it means the same to every process that serves the same data,
and after a restart.
"""

import os
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from partly import answers
from partly.answers import Answer

LONGEST_NAME = 80  # characters of who answered

Cell = tuple[str, str]  # image, label


class Wish(NamedTuple):
    """What somebody pressed. undoes: the time of the answer that is taken back. seen: that of the
    answer which stood there, as far as they knew."""

    answer: Answer
    undoes: str | None = None
    seen: str | None = None


class Ledger:
    """The journal of `path`, as far as it is about these images and labels."""

    def __init__(self, path: Path, images: Iterable[str], labels: Sequence[str]) -> None:
        self.path = path
        self.images, self.labels = frozenset(images), frozenset(labels)
        self.given: Counter[int | None] = Counter()  # by this process, by value
        self._lock = threading.RLock()
        self._begin()

    def _begin(self) -> None:
        self.place, self._file = 0, -1  # up to where the file was read, and its inode
        self.lines: list[tuple[int, Answer]] = []  # where each line ends
        self._cells: dict[Cell, list[Answer]] = {}  # the last is the one that counts
        self._marks: set[tuple[Cell, str, str, int | None]] = set()
        self._by: Counter[str] = Counter()

    def follow(self) -> int:
        """Read what others have added; returns the place up to which is read."""
        with self._lock:
            if self.path.is_file():
                with self.path.open("rb") as file:
                    self._read_on(file.fileno())
            return self.place

    def _read_on(self, place: int) -> None:
        state = os.fstat(place)
        if state.st_ino != self._file or state.st_size < self.place:  # it was put there anew
            self._begin()
            self._file = state.st_ino
        new = os.pread(place, state.st_size - self.place, self.place)
        for line in new.split(b"\n")[:-1]:  # what follows the last line break is not whole yet
            end = self.place + len(line) + 1
            for _, answer in answers.parsed(line):
                if isinstance(answer, Answer):
                    self._take(answer, end)
            self.place = end

    def _take(self, answer: Answer, end: int) -> None:
        cell = (answer.image, answer.label)
        if answer.image not in self.images or answer.label not in self.labels:
            return
        before = self._cells.get(cell, [])
        if before:
            self._by[before[-1].by] -= 1
        if answer.value is None:
            self._cells.pop(cell, None)
        else:
            self._cells[cell] = [*before, answer]
            self._by[answer.by] += 1
        self._marks.add(_mark(answer))
        self.lines.append((end, answer))

    def add(self, wishes: Iterable[Wish]) -> list[str | None]:
        """Write these down; when this returns they are on the disk.

        Each is None, or why it was not taken. One that came before, for its sender never heard so,
        is not written twice.
        """
        outcomes = []
        with self._lock, answers.held(self.path) as place:
            for wish in wishes:
                self._read_on(place)
                lines, refused = self._lines(wish)
                if lines:
                    answers.write(place, lines)
                    self.given[wish.answer.value] += 1
                outcomes.append(refused)
            self._read_on(place)
        return outcomes

    def _lines(self, wish: Wish) -> tuple[list[Answer], str | None]:
        """What to write for a wish, or why it cannot be had."""
        answer = wish.answer
        if answer.image not in self.images or answer.label not in self.labels:
            return [], f"the data has no image '{answer.image}' with a label '{answer.label}'"
        if _mark(answer) in self._marks:
            return [], None
        so_far = self._cells.get((answer.image, answer.label), [])
        if answer.value is not None:
            # One that comes late does not displace what was said after it by somebody who knew
            # nothing of it. The last line counts, so that is said again.
            late = so_far and so_far[-1].at != wish.seen and answer.is_older(so_far[-1])
            return [answer, so_far[-1]] if late else [answer], None
        if not so_far or (so_far[-1].by, so_far[-1].at) != (answer.by, wish.undoes):
            return [], "it was answered again since, so there is nothing to undo"
        # Taken back is taken back whole: what stood there before is said again.
        return [answer, *so_far[:-1]], None

    def answer(self, image: str, label: str) -> Answer | None:
        """The answer that counts for a cell."""
        with self._lock:
            so_far = self._cells.get((image, label))
            return so_far[-1] if so_far else None

    def answered(self) -> dict[Cell, Answer]:
        """The answer that counts for each cell that has one."""
        with self._lock:
            return {cell: so_far[-1] for cell, so_far in self._cells.items()}

    def since(self, place: int) -> list[Answer]:
        """The lines behind a place in the journal."""
        with self._lock:
            first = bisect_right(self.lines, place, key=itemgetter(0))
            return [answer for _, answer in self.lines[first:]]

    def people(self) -> dict[str, int]:
        """How many cells stand as each person answered them."""
        with self._lock:
            return {name: count for name, count in self._by.most_common() if count > 0}


def _mark(answer: Answer) -> tuple[Cell, str, str, int | None]:
    return (answer.image, answer.label), answer.by, answer.at, answer.value
