"""The journal of answers: what is written is there, what is there is taken in."""

import json
import multiprocessing
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from builders import partly_works, write_manifest, write_pictures
from partly import answers
from partly.answers import Answer
from partly.errors import DataError
from partly.labels import LabelTable
from partly.source import Source


def table() -> LabelTable:
    return LabelTable.from_dense(
        np.array([[1, -1, 0], [-1, -1, -1], [0, 1, -1]]), ids=["a", "b", "c"], names=["x", "y", "z"]
    )


def test_the_last_answer_about_a_cell_counts(tmp_path: Path) -> None:
    journal = tmp_path / "data.answers.jsonl"
    answers.append(journal, [Answer("a", "y", 1), Answer("b", "x", 0)])
    answers.append(journal, [Answer("a", "y", 0), Answer("b", "x", None), Answer("c", "x", 1)])
    answers.append(journal, [Answer("a", "x", -1)])
    found = answers.apply(table(), answers.read(journal))
    np.testing.assert_array_equal(found.dense(), [[-1, 0, 0], [-1, -1, -1], [1, 1, -1]])
    assert "3 answers taken in" in found.notes[0]
    assert "2 in place of what the data says" in found.notes[0]


def test_answers_about_what_is_not_there_are_left_out_and_said(tmp_path: Path) -> None:
    found = answers.apply(table(), [Answer("nobody", "x", 1), Answer("a", "w", 1)])
    np.testing.assert_array_equal(found.dense(), table().dense())
    assert "nobody / x, a / w" in found.notes[-1]


def test_a_line_that_a_crash_cut_off_costs_only_itself(tmp_path: Path) -> None:
    journal = tmp_path / "data.answers.jsonl"
    answers.append(journal, [Answer("a", "y", 1)])
    with journal.open("a") as file:
        file.write('{"image": "b", "lab')
    answers.append(journal, [Answer("c", "z", 0)])
    assert [(a.image, a.value) for a in answers.read(journal)] == [("a", 1), ("c", 0)]


def test_strange_lines_are_named_all_at_once(tmp_path: Path) -> None:
    journal = tmp_path / "data.answers.jsonl"
    fine = {"image": "a", "label": "x", "value": 1}
    parts = [{"value": 2}, {"image": 7}, {"by": ["x"]}, {"at": 5}, {"value": False}]
    lines = [*(fine | part for part in parts), {"label": "x", "value": 1}, [1]]
    lines.append(fine | {"by": "\ud800"})  # half a letter
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError) as caught:
        answers.read(journal)
    assert [problem.partition(", ")[2].partition(":")[0] for problem in caught.value.problems] == [
        f"line {number}" for number in range(1, 9)
    ]


def test_a_line_without_a_time_reads_the_same_every_time(tmp_path: Path) -> None:
    journal = tmp_path / "data.answers.jsonl"
    journal.write_text('{"image": "a", "label": "x", "value": 1.0}\n')
    assert answers.read(journal) == [Answer("a", "x", 1, "", "")]


def test_what_is_older_is_told_by_the_moment_not_by_how_it_is_written() -> None:
    noon = Answer("a", "x", 1, at="2026-01-31T12:00:00Z")
    assert Answer("a", "x", 0, at="2026-01-31T12:30:00.000+01:00").is_older(noon)
    assert not noon.is_older(noon)
    for nothing in ("", "yesterday"):
        assert not Answer("a", "x", 0, at=nothing).is_older(noon)
        assert not noon.is_older(Answer("a", "x", 0, at=nothing))


def test_a_journal_that_is_replaced_while_somebody_waits_is_looked_for_anew(tmp_path: Path) -> None:
    journal = tmp_path / "data.answers.jsonl"
    answers.append(journal, [Answer("a", "y", 1)])
    copy = tmp_path / "copy"
    copy.write_bytes(journal.read_bytes())
    adding = threading.Thread(target=answers.append, args=(journal, [Answer("b", "y", 1)]))

    def replace_it() -> None:
        with answers.held(journal):
            adding.start()
            time.sleep(0.2)  # it has opened the old file, and waits for the lock
            copy.replace(journal)

    with pytest.raises(DataError, match="was replaced"):
        replace_it()
    adding.join()
    assert [answer.image for answer in answers.read(journal)] == ["a", "b"]


def test_only_the_beginning_of_a_journal_can_be_read(tmp_path: Path) -> None:
    journal = tmp_path / "data.answers.jsonl"
    answers.append(journal, [Answer("a", "y", 1)])
    until = answers.size(journal)
    answers.append(journal, [Answer("b", "y", 1)])
    assert len(answers.read(journal, until)) == 1


def add_many(journal: Path, who: str) -> None:
    for number in range(200):
        answers.append(journal, [Answer(f"{who}{number}", "é" * 50, 1, by=who)])


def test_two_processes_lose_no_answer(tmp_path: Path) -> None:
    journal = tmp_path / "data.answers.jsonl"
    context = multiprocessing.get_context("spawn")
    people = [context.Process(target=add_many, args=(journal, who)) for who in "pq"]
    for person in people:
        person.start()
    for person in people:
        person.join()
    assert len({answer.image for answer in answers.read(journal)}) == 400


def test_a_source_takes_the_answers_beside_it_in(tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    features = np.arange(6.0).reshape(3, 2)
    np.savez(
        data, X_train=features, Y_train=table().dense(), X_test=features, Y_test=table().dense()
    )
    first = Source(data).read()
    image, label = str(first.ids[1]), first.names[0]
    answers.append(answers.journal_of(data), [Answer(image, label, 1)])
    assert Source(data).read().dense()[1, 0] == 1
    assert Source(data, use_answers=False).read().dense()[1, 0] == -1
    assert Source(data, answers_until=0).read().dense()[1, 0] == -1


def test_answers_about_the_same_data_under_another_name_are_told(tmp_path: Path) -> None:
    folder, file = tmp_path / "fold", tmp_path / "fold" / "manifest.csv"
    write_manifest(file, write_pictures(folder, 3))
    (folder / "old.csv.answers.jsonl").write_text("")  # beside data that is gone
    assert not any("not taken in" in note for note in Source(folder).read().notes)
    answers.append(answers.journal_of(folder), [Answer("0000.png", "red", 1)])
    (note,) = (note for note in Source(file).read().notes if "not taken in" in note)
    assert note.startswith(f"{folder}.answers.jsonl holds answers about {folder}, and they are not")
    answers.append(answers.journal_of(file), [Answer("0000.png", "red", 1)])
    (note,) = (note for note in Source(folder).read().notes if "not taken in" in note)
    assert "add its lines to fold.answers.jsonl" in note
    assert "manifest.csv.answers.jsonl holds" in partly_works("answers", folder).out
