"""What people answered, in a journal beside the data.

What enters: answers, one cell (image, label) at a time. What leaves: a file to which lines are only
ever added, and a `LabelTable` with the answers in place. The data itself is never written to.

The journal of `data.csv` is `data.csv.answers.jsonl`, that of a folder `photos` is
`photos.answers.jsonl`. A line is one answer:

    {"image": "a.jpg", "label": "cat", "value": 1, "by": "anna", "at": "2026-01-31T12:00:00+00:00"}

value: 1 yes, 0 no, -1 looked at but cannot tell, null the answer before is taken back. by and at
may be missing. The last line about a cell counts. Several processes may add lines at once, and a
line that a crash cut off is passed over: it was never confirmed to anybody.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from partly.errors import ConfigError, DataError, first_few, raise_if
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN, LabelTable
from partly.readers.common import counted, index_in
from partly.texts import Texts

VALUES = (POSITIVE, NEGATIVE, UNKNOWN, None)


def now() -> str:
    """This moment, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def moment(text: str) -> str:
    """A time in the one form that tells one answer from another; ValueError if it is none.

    >>> moment("2026-01-31T13:00:00.5+01:00")
    '2026-01-31T12:00:00.500+00:00'
    """
    try:
        return datetime.fromisoformat(text).astimezone(UTC).isoformat(timespec="milliseconds")
    except OverflowError:  # in the first or the last hours that there are
        raise ValueError(f"no time: {text}") from None


@dataclass(frozen=True)
class Answer:
    """value: 1, 0, -1 (cannot tell) or None (taken back). by: who. at: when, as ISO 8601."""

    image: str
    label: str
    value: int | None
    by: str = ""
    at: str = field(default_factory=now)

    def is_older(self, other: "Answer") -> bool:
        """Was it given before the other? Not, where one of them does not say when."""
        try:
            return moment(self.at) < moment(other.at)
        except ValueError:
            return False


def journal_of(data: str | Path) -> Path:
    """Where the answers about a data set lie."""
    path = Path(data).resolve()
    return path.with_name(f"{path.name}.answers.jsonl")


def elsewhere(data: str | Path) -> list[str]:
    """Sentences on journals of the same data under another name: a folder, and a file in it."""
    path = Path(data).resolve()
    own = journal_of(path)
    inside = sorted(path.glob("*.answers.jsonl")) if path.is_dir() else []
    found = [file for file in inside if file.with_name(_data_of(file)).exists()]
    if path.is_file() and journal_of(path.parent).is_file():
        found.append(journal_of(path.parent))
    return [
        f"{file} holds answers about {file.with_name(_data_of(file))}, and they are not taken in: "
        f"name that as the data, or add its lines to {own.name}"
        for file in found
    ]


def _data_of(journal: Path) -> str:
    """The name of the data that a journal is beside."""
    return journal.name.removesuffix(".answers.jsonl")


@contextmanager
def held(journal: Path) -> Iterator[int]:
    """The journal, open, and locked so that nobody else adds to it meanwhile.

    When this ends, what was written is on the disk, in the file that has the journal's name.
    """
    try:
        place, new = _locked(journal)
        try:
            yield place
            os.fsync(place)
            if new:
                _sync(journal.parent)
            if not _is_at(place, journal):
                raise DataError(f"{journal} was replaced while answers were written: try again")
        finally:
            os.close(place)
    except OSError as error:
        raise DataError(f"cannot write the answers to {journal}: {error.strerror}") from None


def _locked(journal: Path) -> tuple[int, bool]:
    """The journal, open and locked, and whether nothing is in it yet."""
    while True:
        place = os.open(journal, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(place, fcntl.LOCK_EX)
            if _is_at(place, journal):
                return place, not os.fstat(place).st_size
        except BaseException:
            os.close(place)
            raise
        os.close(place)  # another file took its name while this one waited for the lock


def _is_at(place: int, journal: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(place), journal.stat())
    except FileNotFoundError:
        return False


def _sync(folder: Path) -> None:
    """A file's name is on the disk too."""
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def append(journal: Path, answers: Iterable[Answer]) -> None:
    """Add answers; when this returns they are on the disk."""
    given = list(answers)
    if given:
        with held(journal) as place:
            write(place, given)


def write(place: int, answers: Iterable[Answer]) -> None:
    """Add answers to a journal that is `held`."""
    lines = "".join(json.dumps(asdict(answer), ensure_ascii=False) + "\n" for answer in answers)
    size = os.fstat(place).st_size
    # A line that was cut off, by a crash or a full disk, must not swallow the next one.
    whole = size == 0 or os.pread(place, 1, size - 1) == b"\n"
    left = memoryview(("" if whole else "\n").encode() + lines.encode())
    while left:
        left = left[os.write(place, left) :]


def carry(data: str | Path, copy: str | Path, until: int | None = None) -> int:
    """Put the answers about a data set beside a copy of it too; returns how many there are.

    until: only the first so many bytes. Other answers that lie there already are an error: they may
    be all that there is of somebody's work.
    """
    target = journal_of(copy)
    given, there = read(journal_of(data), until), read(target)
    if given and given[: len(there)] != there:
        raise ConfigError(f"{target} holds answers that are not beside {data}: move it away")
    if given:
        target.parent.mkdir(parents=True, exist_ok=True)
        append(target, given[len(there) :])
    return len(given)


def size(journal: Path) -> int:
    """Bytes of a journal; 0 where there is none."""
    return journal.stat().st_size if journal.is_file() else 0


def read(journal: Path, until: int | None = None) -> list[Answer]:
    """All answers in the order they were given. until: only the first so many bytes."""
    if not journal.is_file():
        return []
    try:
        content = journal.read_bytes()[:until]
    except OSError as error:
        raise DataError(f"cannot read the answers in {journal}: {error.strerror}") from None
    found, strange = [], []
    for number, answer in parsed(content):
        if isinstance(answer, str):
            strange.append(f"{journal}, line {number}: {answer}")
        else:
            found.append(answer)
    raise_if(strange, DataError)
    return found


def parsed(content: bytes) -> Iterator[tuple[int, Answer | str]]:
    """The number of each line, and its answer or what is wrong with it."""
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # cut off by a crash: nobody was told that it is there
            continue
        yield number, _problem(record) or _answer(record)


def _answer(record: Mapping[str, Any]) -> Answer:
    value = None if record["value"] is None else int(record["value"])
    by, at = record.get("by", ""), record.get("at", "")
    return Answer(record["image"], record["label"], value, by, at)


def _problem(record: Any) -> str | None:
    if not isinstance(record, Mapping):
        return "an answer is an object with image, label and value"
    for name in ("image", "label"):
        if not is_text(record.get(name)):
            return f"an answer needs {name}, a text"
    for name in ("by", "at"):
        if not is_text(record.get(name, "")):
            return f"{name} is a text, not {json.dumps(record[name])}"
    if "value" not in record or record["value"] not in VALUES or isinstance(record["value"], bool):
        return f"value is 1, 0, -1 or null, not {json.dumps(record.get('value'))}"
    return None


def is_text(value: object) -> bool:
    """A text, and one that can be written: JSON can name halves of letters."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def latest(answers: Iterable[Answer]) -> dict[tuple[str, str], Answer]:
    """The answer that counts for each cell (image, label); none where it was taken back."""
    cells: dict[tuple[str, str], Answer] = {}
    for answer in answers:
        cells.pop((answer.image, answer.label), None)
        if answer.value is not None:
            cells[answer.image, answer.label] = answer
    return cells


def apply(table: LabelTable, answers: Iterable[Answer]) -> LabelTable:
    """The table with every answered cell as it was answered.

    A yes or no takes the place of what the data says; "cannot tell" makes a cell unknown. Answers
    about images or labels that are not there are left out, and a note says so.
    """
    cells = latest(answers)
    if not cells:
        return table
    images, columns = _places(table, cells)
    values = np.array([answer.value for answer in cells.values()], dtype=np.int64)
    here = (images >= 0) & (columns >= 0)
    asked = images[here] * len(table.names) + columns[here]
    kept = ~np.isin(_cells(table), asked)
    known = values[here] != UNKNOWN
    changed = LabelTable.from_entries(
        np.concatenate([table.rows[kept], images[here][known]]),
        np.concatenate([table.indices[kept], columns[here][known]]),
        np.concatenate([table.values[kept], values[here][known]]),
        ids=table.ids,
        names=table.names,
        paths=table.paths,
        features=table.features,
        splits=table.splits,
        notes=(*table.notes, *_notes(table, cells, here, int((~kept).sum()))),
    )
    return replace(changed, asked=_marks(table, changed), checked=True)


def _marks(table: LabelTable, changed: LabelTable) -> np.ndarray:
    """Which known entries of the changed table are known because people were asked about them.

    What the data says by itself stays part of the sample when somebody confirms or corrects it. But
    where it names positives alone, a no in place of one does not say that it names negatives.
    """
    drawn = table if table.asked is None else table.keep(~table.asked)
    one_sided = drawn.counts_by_label().negative == 0
    corrected = one_sided[changed.indices] & (changed.values == NEGATIVE)
    return np.asarray(corrected | ~np.isin(_cells(changed), _cells(drawn)))


def _cells(table: LabelTable) -> np.ndarray:
    """row·L + column of every known entry [K], ascending."""
    return np.asarray(table.rows * len(table.names) + table.indices)


def answered(table: LabelTable, answers: Iterable[Answer]) -> np.ndarray:
    """The cells row·L + column that somebody has answered, ascending, "cannot tell" among them."""
    images, columns = _places(table, latest(answers))
    here = (images >= 0) & (columns >= 0)
    return np.unique(images[here] * len(table.names) + columns[here])


def _places(
    table: LabelTable, cells: Mapping[tuple[str, str], Answer]
) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each cell (image, label), -1 where the table does not have it."""
    columns_of = {name: column for column, name in enumerate(table.names)}
    images = index_in(Texts.of([image for image, _ in cells]), table.ids)
    columns = np.array([columns_of.get(label, -1) for _, label in cells], dtype=np.int64)
    return images, columns


def _notes(
    table: LabelTable, cells: dict[tuple[str, str], Answer], here: np.ndarray, replaced: int
) -> list[str]:
    """What a user should know of the answers that were taken in."""
    notes = [
        f"{counted(int(here.sum()), 'answer')} taken in from the journal beside the data; "
        f"{replaced:,} in place of what the data says"
    ]
    lost = [
        f"{image} / {label}" for (image, label), found in zip(cells, here, strict=True) if not found
    ]
    if lost:
        notes.append(
            f"{counted(len(lost), 'answer')} about images or labels that the data does not have "
            f"left out: {first_few(lost)}"
        )
    return notes
