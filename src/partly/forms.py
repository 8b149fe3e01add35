"""Questions as a file that people fill in, and their answers back.

What enters: a table and the questions about it, or a file that was filled in. What leaves: a CSV
with a line a question, or tasks for Label Studio with the labelling configuration beside them; or
the answers, of which none is about an image or label that the data does not have.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import log
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from partly import checkpoint
from partly.answers import Answer, is_text, now
from partly.errors import ConfigError, DataError, first_few, raise_if
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN, LabelTable
from partly.readers.common import counted, index_in, read_json
from partly.suggest import Question, doubt
from partly.texts import Texts

FORMATS = ("csv", "labelstudio")
COLUMNS = ("image", "path", "label", "probability", "why", "known", "value")
NEEDED = ("image", "label", "value")
# What people write. An empty cell is a question that nobody has answered yet.
WORDS = {
    "1": POSITIVE, "1.0": POSITIVE, "yes": POSITIVE, "y": POSITIVE, "true": POSITIVE,
    "0": NEGATIVE, "0.0": NEGATIVE, "no": NEGATIVE, "n": NEGATIVE, "false": NEGATIVE,
    "-1": UNKNOWN, "-1.0": UNKNOWN, "?": UNKNOWN, "cannot tell": UNKNOWN,
}  # fmt: skip
SERVED = "/data/local-files/?d="  # where Label Studio serves files below its document root
PRESENT, UNCLEAR = "present", "unclear"  # what is ticked there
# The choices of a task are its own: only the labels that are asked about.
LABELLING = f"""<View>
  <Image name="image" value="$image" zoom="true"/>
  <Header value="Tick what is there. What stays unticked is not there."/>
  <Choices name="{PRESENT}" toName="image" choice="multiple" showInline="true" value="$labels"/>
  <Header value="Tick here what nobody can tell."/>
  <Choices name="{UNCLEAR}" toName="image" choice="multiple" showInline="true" value="$labels"/>
</View>
"""


class Filled(NamedTuple):
    """What a file holds: an answer, and where it stands; or None, where nobody has answered."""

    place: str
    answer: Answer | None


# --- questions ------------------------------------------------------------------------------------


def why(question: Question, positives: np.ndarray) -> str:
    """The reason for a question, in a few words. positives [L]: known ones of each label."""
    if question.known == POSITIVE:
        return "known as yes, looks like no"
    if question.known == NEGATIVE:
        return "known as no, looks like yes"
    if float(doubt(np.array(question.probability))) >= log(2) / 2:
        return "uncertain"
    if question.probability > 0.5:
        return "likely"
    return "rare label" if positives[question.column] <= np.median(positives) else "same image"


def write(
    path: Path, table: LabelTable, questions: Sequence[Question], format: str, root: Path, by: str
) -> list[Path]:
    """Write the questions, and return the files. root: the folder that Label Studio will serve
    images from. by: what the probabilities come from."""
    if format == "csv":
        checkpoint.write_text(path, _csv(table, questions))
        return [path]
    tasks = _tasks(table, questions, root, by)
    layout = path.with_suffix(".xml")
    checkpoint.write_json(path, tasks)
    checkpoint.write_text(layout, LABELLING)
    return [path, layout]


def format_of(path: Path, format: str | None = None) -> str:
    """The format of a file that is to be written: as it is asked for, or by its suffix."""
    if format is not None and format not in FORMATS:
        raise ConfigError(f"a format is one of {', '.join(FORMATS)}, not '{format}'")
    named = {".csv": "csv", ".json": "labelstudio"}.get(path.suffix.lower())
    if format is None and named is None:
        raise ConfigError(
            f"{path} ends neither with .csv nor with .json (Label Studio): name it so, or say --as"
        )
    return format or named or ""


def _csv(table: LabelTable, questions: Sequence[Question]) -> str:
    """A line a question, with an empty cell for the answer."""
    positives = table.counts_by_label().positive
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for question in questions:
        path = "" if table.paths is None else table.paths[question.row]
        known = "" if question.known == UNKNOWN else question.known
        cells = (table.ids[question.row], path, table.names[question.column])
        reason = why(question, positives)
        writer.writerow([*cells, f"{question.probability:.3g}", reason, known, ""])
    return file.getvalue()


def _tasks(
    table: LabelTable, questions: Sequence[Question], root: Path, by: str
) -> list[dict[str, Any]]:
    """A task an image, with its own choices; what the model believes is ticked already."""
    addresses = dict(_addresses(table, sorted({q.row for q in questions}), root))
    positives = table.counts_by_label().positive
    tasks = []
    for row, asked in groupby(questions, lambda question: question.row):
        own = list(asked)
        names = [table.names[question.column] for question in own]
        likely = [n for n, question in zip(names, own, strict=True) if question.probability >= 0.5]
        ticked = {
            "from_name": PRESENT,
            "to_name": "image",
            "type": "choices",
            "value": {"choices": likely},
        }
        mean = sum(max(q.probability, 1 - q.probability) for q in own) / len(own)
        data = {
            "image": addresses[row],
            "id": table.ids[row],
            "labels": [{"value": name} for name in names],
            "why": [why(question, positives) for question in own],
            "probabilities": [round(question.probability, 4) for question in own],
        }
        result = [ticked] if likely else []
        prediction = {"model_version": by, "score": round(mean, 4), "result": result}
        tasks.append({"data": data, "predictions": [prediction]})
    return tasks


def _addresses(table: LabelTable, rows: Sequence[int], root: Path) -> Iterator[tuple[int, str]]:
    """Where Label Studio finds each image."""
    if table.paths is None:
        raise DataError("Label Studio shows images, and these are rows of features: write a .csv")
    outside = []
    for row in rows:
        path = Path(table.paths[row])
        try:
            place = path.resolve().relative_to(root.resolve())
        except ValueError:
            outside.append(str(path))
            continue
        if not path.is_file():
            outside.append(str(path))
        yield row, SERVED + quote(place.as_posix())
    if outside:
        raise DataError(
            f"{counted(len(outside), 'image')} that Label Studio cannot show, no files below "
            f"{root}: {first_few(outside)}; name the folder with --root, or write a .csv"
        )


# --- answers --------------------------------------------------------------------------------------


def read(path: Path, table: LabelTable, by: str = "") -> tuple[list[Answer], int]:
    """The answers of a file, and how many questions in it have none yet.

    A row about an image or label that the table does not have, or with a value that says nothing,
    is an error, and all of them are named at once. by: who answered, where the file does not say.
    """
    if not path.is_file():
        raise DataError(f"no answers at {path}: it is a filled-in .csv, or a .json of Label Studio")
    kinds = {".csv": _read_csv, ".json": _read_tasks}
    if path.suffix.lower() not in kinds:
        raise DataError(f"{path} is neither a .csv nor a .json that Label Studio has exported")
    problems: list[str] = []
    found = list(kinds[path.suffix.lower()](path, by, problems))
    answers = [line.answer for line in found if line.answer is not None]
    places = [line.place for line in found if line.answer is not None]
    problems += _strangers(answers, places, table)
    raise_if(_shortened(problems), DataError)
    return answers, len(found) - len(answers)


def _strangers(
    answers: Sequence[Answer], places: Sequence[str], table: LabelTable
) -> Iterator[str]:
    """What is said of images and labels that nobody knows."""
    images = index_in(Texts.of([answer.image for answer in answers]), table.ids)
    labels = set(table.names)
    for answer, place, image in zip(answers, places, images, strict=True):
        if image < 0:
            yield f"{place}: the data has no image '{answer.image}'"
        if answer.label not in labels:
            yield f"{place}: the data has no label '{answer.label}'"


def _shortened(problems: list[str], limit: int = 20) -> list[str]:
    more = len(problems) - limit
    return problems if more <= 0 else [*problems[:limit], f"… and {more:,} more; nothing was taken"]


def _read_csv(path: Path, by: str, problems: list[str]) -> Iterator[Filled]:
    """The lines of a CSV, separated as a spreadsheet saves them, by commas or by semicolons."""
    try:
        text = path.read_bytes().decode("utf-8-sig")  # line breaks within a name stay as they are
        first = text.partition("\n")[0]
        between = max(",;\t", key=first.count)
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=between)
        header = [name.strip().lower() for name in next(lines, [])]
        rows = [(lines.line_num, cells) for cells in lines if any(map(str.strip, cells))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}; save it as CSV in UTF-8") from None
    missing = [name for name in NEEDED if name not in header]
    if missing:
        raise DataError(
            f"{path} has no column {', '.join(missing)}: the file that `partly suggest` wrote has "
            f"{', '.join(COLUMNS)}"
        )
    places = [header.index(name) for name in NEEDED]
    for number, cells in rows:
        place = f"{path}, line {number}"
        if len(cells) <= max(places):
            problems.append(f"{place}: only {len(cells)} cells")
            continue
        image, label, text = (cells[place] for place in places)
        word = text.strip().lower()
        if word and word not in WORDS:
            problems.append(
                f"{place}: '{text}' says nothing here; write 1 (yes), 0 (no), -1 (cannot tell) or "
                "leave it empty"
            )
            continue
        yield Filled(place, Answer(image, label, WORDS[word], by) if word else None)


def _read_tasks(path: Path, by: str, problems: list[str]) -> Iterator[Filled]:
    """The tasks of a JSON export."""
    tasks = read_json(path, kind=list)
    for number, task in enumerate(tasks, start=1):
        place = f"{path}, task {number}"
        problem = _task_problem(task)
        if problem:
            problems.append(f"{place}: {problem}")
            continue
        image, names = task["data"]["id"], [choice["value"] for choice in task["data"]["labels"]]
        given = [a for a in task.get("annotations") or [] if not a.get("was_cancelled")]
        for annotation in sorted(given, key=lambda a: str(a.get("updated_at", ""))):
            strange = [t for t in _ticked(annotation, None) if t not in names]
            if strange:
                problems.append(f"{place}: {first_few(strange)} was not asked about")
            for answer in _answers_of(annotation, image, names, by):
                yield Filled(place, answer)
        if not given:
            yield from (Filled(place, None) for _ in names)


def _task_problem(task: Any) -> str | None:
    """What keeps a task from being understood."""
    data = task.get("data") if isinstance(task, Mapping) else None
    if not isinstance(data, Mapping):
        return "it has no data: export from Label Studio as JSON, not as JSON-MIN"
    labels = data.get("labels")
    if not is_text(data.get("id")) or not isinstance(labels, list):
        return "its data has no id and labels, which `partly suggest` writes into each task"
    if not all(isinstance(choice, Mapping) and is_text(choice.get("value")) for choice in labels):
        return 'its labels are not a list of {"value": name}'
    annotations = task.get("annotations") or []
    if not isinstance(annotations, list) or not all(isinstance(a, Mapping) for a in annotations):
        return "its annotations are not a list of objects"
    return next(filter(None, map(_annotation_problem, annotations)), None)


def _annotation_problem(annotation: Mapping[str, Any]) -> str | None:
    """What keeps one person's ticks from being understood."""
    result = annotation.get("result") or []
    if not isinstance(result, list) or not all(isinstance(part, Mapping) for part in result):
        return "the result of an annotation is not a list of objects"
    for part in result:
        value = part.get("value") or {}
        ticked = value.get("choices", []) if isinstance(value, Mapping) else None
        if not isinstance(ticked, list) or not all(map(is_text, ticked)):
            return 'a value in its result is not {"choices": [name, …]}'
    return None


def _answers_of(
    annotation: Mapping[str, Any], image: str, names: Sequence[str], by: str
) -> Iterator[Answer]:
    """What one person said of a task: yes where it is ticked, no where it is not."""
    present, unclear = (set(_ticked(annotation, name)) for name in (PRESENT, UNCLEAR))
    person = annotation.get("completed_by", by)
    who = str(person.get("email", by) if isinstance(person, Mapping) else person)
    when = str(annotation.get("updated_at") or now())
    for name in names:
        value = UNKNOWN if name in unclear else POSITIVE if name in present else NEGATIVE
        yield Answer(image, name, value, by or who, when)


def _ticked(annotation: Mapping[str, Any], name: str | None) -> Iterator[str]:
    """The choices that are ticked under a name, or under any."""
    for part in annotation.get("result") or []:
        if name in (None, part.get("from_name")):
            yield from (part.get("value") or {}).get("choices", [])
