"""A data set as a user names it -> a table whose images can all be read.

What enters: a path, how to read it, and what to do about bad images. What leaves: a `LabelTable`
without a single image that cannot be decoded: they are found here, before training starts, and
either named all at once or left out, counted and listed. None is ever replaced.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from partly import answers, distributed, images
from partly.errors import ConfigError, DataError, raise_if
from partly.labels import LabelTable
from partly.readers import read
from partly.readers.common import counted, index_in
from partly.texts import Texts

MANY = 20_000  # images that take long enough to look at to say so
LISTED = 5  # of a kind that a sentence names
ON_BAD_IMAGE = ("error", "skip")

Say = Callable[[str], None]


def _silent(line: str) -> None:
    pass


@dataclass(frozen=True)
class Source:
    """format and options: see `partly.read`. on_bad_image: error, or skip. verify: full (decode
    every image), quick (its header and end), off. leave_out: ids of images known to be bad.
    use_answers: whether what people answered (`answers`) is taken in, and answers_until: only the
    first so many bytes of it, for a run that goes on with what it began with."""

    path: str | Path
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    on_bad_image: str = "error"
    verify: str = "full"
    leave_out: tuple[str, ...] = ()
    use_answers: bool = True
    answers_until: int | None = None

    @classmethod
    def of(cls, data: "str | Path | Source") -> "Source":
        return data if isinstance(data, Source) else cls(data)

    @property
    def name(self) -> str:
        return Path(self.path).resolve().name

    def problems(self) -> list[str]:
        """Everything that is wrong with these choices."""
        choices = (
            ("on_bad_image", self.on_bad_image, ON_BAD_IMAGE),
            ("verify", self.verify, images.VERIFY),
        )
        strange = not isinstance(self.options, Mapping)
        wrong = [f"options are names and values, not {self.options!r}"] if strange else []
        return wrong + [
            f"{name} is one of {', '.join(allowed)}, not '{value}'"
            for name, value, allowed in choices
            if value not in allowed
        ]

    def read(self) -> LabelTable:
        """The table as it is, its images not looked at."""
        raise_if(self.problems(), ConfigError)
        table = read(self.path, self.format, **self.options)
        if self.use_answers:
            journal = answers.journal_of(self.path)
            table = answers.apply(table, answers.read(journal, self.answers_until))
            notes = (*table.notes, *answers.elsewhere(self.path))
            table = replace(table, notes=notes, checked=True)
        if not self.leave_out:
            return table
        bad = index_in(table.ids, Texts.of(list(self.leave_out))) >= 0
        return table.take(np.flatnonzero(~bad))

    def open(self, say: Say = _silent) -> tuple[LabelTable, dict[str, str]]:
        """The table without its bad images, and what is wrong with each of those, by id."""
        table = self.read()
        for note in table.notes:
            say(note)
        return self.usable(table, say)

    def usable(self, table: LabelTable, say: Say = _silent) -> tuple[LabelTable, dict[str, str]]:
        """The part of a table whose images can be read, and what is wrong with the others."""
        if table.paths is None or self.verify == "off":
            return table, {}
        if len(table) > MANY:
            say(f"looking at {len(table):,} images ({self.verify}); --verify quick takes less")
        paths = table.paths
        bad = distributed.same(lambda: images.find_problems(paths, self.verify))
        if not bad:
            return table, {}
        sentences = list(images.describe_problems(paths, bad))
        if self.on_bad_image == "error":
            count = f"{counted(len(bad), 'image')} of {len(table):,} cannot be used"
            hint = "mend them, or leave them out with --on-bad-image skip"
            full = "; `partly check DATA --json` lists them" if len(bad) > LISTED else ""
            raise DataError([*sentences, f"{count}: {hint}{full}"])
        if len(bad) == len(table):
            raise DataError([*sentences, "no image is left"])
        for sentence in sentences:
            say(sentence)
        say(f"{counted(len(bad), 'image')} of {len(table):,} left out")
        good = np.ones(len(table), dtype=bool)
        good[list(bad)] = False
        return table.take(np.flatnonzero(good)), {table.ids[row]: what for row, what in bad.items()}
