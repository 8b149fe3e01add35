"""Two jobs: questions to ask people about a data set, and taking their answers.

What enters: a run and a data set, or a data set and a file that was filled in. What leaves: a file
of questions, or lines in the journal of answers beside the data. Each function is a command of
`cli.py`, and can be called from Python as it is.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from partly import answers, checkpoint, forms, runs, suggest
from partly.errors import ConfigError, DataError, first_few, raise_if
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN, LabelTable
from partly.readers.common import counted
from partly.source import Source
from partly.suggest import Question

Say = Callable[[str], None]
Cells = Mapping[tuple[str, str], answers.Answer]  # by image and label, what stands
SAID = {POSITIVE: "yes", NEGATIVE: "no", UNKNOWN: "cannot tell"}


def suggest_run(
    run: str | Path,
    data: str | Path | Source,
    out: str | Path,
    *,
    budget: int,
    suspects: int = 0,
    opening: float = suggest.OPENING,
    part: str = "train",
    format: str | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    say: Say = print,
) -> list[Question]:
    """Write the questions that a run's model would ask next about a part of a data set.

    budget: how many, `suspects` of them at most about known labels that look wrong. opening: what
    it costs to open an image, in answers. What people have answered is not asked again.
    root: the folder that Label Studio will serve images from, else the one that the data lies in.
    """
    source, file = Source.of(data), Path(out)
    written_as = forms.format_of(file, format)
    raise_if(_budget_problems(budget, suspects), ConfigError)
    checkpoint.check_folder(file.parent)
    predictor = runs.load(run, device)
    whole = source.read()
    raise_if(_would_be_lost(file, whole, source), DataError)
    table = whole.part(part)
    if table is None:
        raise DataError(f"{source.path} has no part '{part}' (train, validation or test)")
    table, _ = source.usable(table.reorder(predictor.names, str(source.path)), say)
    known = set(predictor.names)
    dropped = [name for name in whole.names if name not in known]
    if dropped:
        say(f"the run does not know, and will not ask about: {first_few(dropped)}")
    journal = answers.read(answers.journal_of(source.path)) if source.use_answers else []
    asked = answers.answered(table, journal)

    def probabilities(rows: np.ndarray) -> np.ndarray:
        return predictor.probabilities(table.take(rows))

    found: list[Question] = []
    if suspects:
        found = suggest.suspects(probabilities, table, budget=suspects, leave_out=asked)
    if budget > len(found):
        found = found + suggest.questions(
            probabilities, table, budget=budget - len(found), opening=opening, leave_out=asked
        )
    if not found:
        raise DataError(_nothing_to_ask(table, asked, suspects))
    checkpoint.make_folder(file.parent)
    root = Path(source.path).resolve().parent if root is None else Path(root)
    by = f"partly {Path(run).resolve().name}"
    written = forms.write(file, table, _image_by_image(found), written_as, root, by)
    say(f"{_described(found)} -> {' and '.join(map(str, written))}")
    return found


def _budget_problems(budget: int, suspects: int) -> list[str]:
    problems = [] if budget >= 1 else [f"a budget is 1 question or more, not {budget}"]
    if not 0 <= suspects <= max(budget, 1):
        problems.append(f"suspects are 0 to {budget} of the budget, not {suspects}")
    return problems


def _would_be_lost(file: Path, table: LabelTable, source: Source) -> Iterator[str]:
    """A sentence if writing the file would destroy answers that the journal does not have, or a
    file that is not understood as questions."""
    if not file.exists():
        return
    try:
        found, _ = forms.read(file, table)
    except DataError as error:
        yield f"{file} is there already: name another file with --out ({error.problems[0]})"
        return
    before = answers.latest(answers.read(answers.journal_of(source.path)))
    new = [a for a in found if not (_is_known(before, a) or _is_late(before, a))]
    if new:
        yield (
            f"{file} is there already, with {counted(len(new), 'answer')} not taken in yet: take "
            f"them in with `partly answers {source.path} {file}`, or name another file with --out"
        )


def _nothing_to_ask(table: LabelTable, asked: np.ndarray, suspects: int) -> str:
    unknown = len(table) * len(table.names) - table.known
    why = (
        f"all {table.known:,} labels are known"
        if not unknown
        else f"the {unknown:,} unknown labels have been looked at, and nobody could tell"
    )
    more = ", and no known one looks wrong" if suspects else "; --suspects N asks about known ones"
    return f"there is nothing to ask: {why}{more}"


def _image_by_image(found: list[Question]) -> list[Question]:
    """All questions about an image at the place of its first one."""
    first: dict[int, int] = {}
    for place, question in enumerate(found):
        first.setdefault(question.row, place)
    return sorted(found, key=lambda question: first[question.row])


def _described(found: list[Question]) -> str:
    images = len({question.row for question in found})
    known = sum(question.known != UNKNOWN for question in found)
    wrong = f", {known:,} of them about known labels that look wrong" if known else ""
    return f"{counted(len(found), 'question')} about {counted(images, 'image')}{wrong}"


def take_answers(
    data: str | Path | Source, file: str | Path, *, by: str = "", say: Say = print
) -> int:
    """Add what a filled-in file says to the journal beside the data; returns how many answers.

    by: who answered. What the journal says already is not written again, nor is what it says
    something later about.
    """
    source = Source.of(data)
    table, journal = source.read(), answers.journal_of(source.path)
    found, empty = forms.read(Path(file), table, by)
    before = answers.latest(answers.read(journal))
    changed = [answer for answer in found if not _is_known(before, answer)]
    new = [answer for answer in changed if not _is_late(before, answer)]
    answers.append(journal, new)
    for sentence in answers.elsewhere(source.path):
        say(sentence)
    say(f"{_counted_values(new)} taken from {file} into {journal}")
    if len(changed) < len(found):
        say(f"{counted(len(found) - len(changed), 'answer')} it had already")
    if len(new) < len(changed):
        late = counted(len(changed) - len(new), "answer")
        say(f"{late} left out: later ones about the same labels stand there")
    if empty:
        say(f"{counted(empty, 'question')} not answered yet")
    return len(new)


def _is_known(before: Cells, answer: answers.Answer) -> bool:
    """Does the journal say so already?"""
    standing = before.get((answer.image, answer.label))
    return standing is not None and standing.value == answer.value


def _is_late(before: Cells, answer: answers.Answer) -> bool:
    """Was something else answered since?"""
    standing = before.get((answer.image, answer.label))
    return standing is not None and answer.is_older(standing)


def describe_answers(data: str | Path | Source, say: Say = print) -> None:
    """Say what the journal beside a data set holds."""
    source = Source.of(data)
    if not Path(source.path).exists():
        raise DataError(f"no data at {source.path}")
    for sentence in answers.elsewhere(source.path):
        say(sentence)
    journal = answers.journal_of(source.path)
    given = answers.read(journal)
    if not given:
        say(f"no answers yet: {journal} is not there or empty")
        return
    counting = list(answers.latest(given).values())
    say(f"{journal}: {_counted_values(counting)}")
    if len(given) > len(counting):
        say(f"{counted(len(given) - len(counting), 'earlier answer')} changed or taken back")
    people = Counter(answer.by or "somebody" for answer in counting).most_common()
    say(f"by {', '.join(f'{who} {count:,}' for who, count in people)}")
    times = sorted(answer.at for answer in counting if answer.at)
    if times:
        say(f"from {times[0]} to {times[-1]}")
    labels = Counter(answer.label for answer in counting).most_common()
    say(f"about {first_few([f'{label} {count:,}' for label, count in labels])}")


def _counted_values(found: list[answers.Answer]) -> str:
    """`5 answers (3 yes, 2 no)`."""
    values = Counter(answer.value for answer in found)
    parts = [f"{values[value]:,} {word}" for value, word in SAID.items() if values[value]]
    listed = f" ({', '.join(parts)})" if parts else ""
    return counted(len(found), "answer") + listed
