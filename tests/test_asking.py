"""From a run to questions, from answers to the journal and into the next training."""

import csv
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from builders import partly_here, partly_works, write_manifest, write_npz, write_pictures
from partly import answers
from partly.labels import LabelTable
from partly.readers import read
from partly.source import Source

TRAIN = ("--epochs", 2, "--backbone", "small:8", "--image-size", 16, "--weights", "none")


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures, half of whose labels are known, and a run."""
    folder = tmp_path_factory.mktemp("studio")
    labels = write_pictures(folder, 40)
    hidden = np.random.default_rng(0).random(labels.shape) < 0.5
    write_manifest(folder / "data.csv", np.where(hidden, -1, labels), test=8)
    partly_works("train", folder / "data.csv", "--out", folder / "run", *TRAIN)
    return folder


@pytest.fixture
def data(studio: Path) -> Path:
    """The data, with nobody's answers."""
    answers.journal_of(studio / "data.csv").unlink(missing_ok=True)
    return studio / "data.csv"


def lines_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def fill_in(file: Path, value: str) -> None:
    """Everybody's answer to everything."""
    lines = lines_of(file)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, lines[0])
        writer.writeheader()
        writer.writerows(line | {"value": value} for line in lines)


def refused(*arguments: object) -> str:
    answer = partly_here(*arguments)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    return answer.err


def test_questions_are_asked_answered_and_learnt_from(data: Path, tmp_path: Path) -> None:
    run, file = data.parent / "run", tmp_path / "new" / "ask.csv"
    said = partly_works("suggest", run, data, "--budget", 9, "--suspects", 2, "--out", file)
    lines = lines_of(file)
    assert "9 questions about" in said.out
    assert len({(line["image"], line["label"]) for line in lines}) == len(lines) == 9
    assert sum(line["known"] != "" for line in lines) <= 2
    table = read(data)
    assert not set(table.ids[table.splits == "test"]) & {line["image"] for line in lines}

    fill_in(file, "yes")
    taken = partly_works("answers", data, file, "--by", "anna")
    assert "9 answers (9 yes) taken" in taken.out
    assert "9 answers it had already" in partly_works("answers", data, file).out
    held = partly_works("answers", data).out
    assert "9 answers (9 yes)" in held
    assert "by anna 9" in held
    after = Source(data).read()
    for line in lines:
        row, column = after.ids.tolist().index(line["image"]), after.names.index(line["label"])
        assert after.dense()[row, column] == 1
    assert after.asked is not None
    assert after.asked.sum() == sum(line["known"] == "" for line in lines)
    trained = partly_works("train", data, "--out", tmp_path / "second", *TRAIN)
    assert "9 answers taken in" in trained.out


def test_what_was_answered_before_does_not_displace_what_was_answered_since(
    data: Path, tmp_path: Path
) -> None:
    file, journal = tmp_path / "ask.json", answers.journal_of(data)
    image, label = str(read(data).ids[0]), read(data).names[0]
    ticked = {"from_name": "present", "value": {"choices": [label]}}
    given = [
        {"result": [ticked], "updated_at": "2026-01-31T12:00:00Z", "completed_by": 1},
        {"result": [], "updated_at": "2026-01-31T13:00:00Z", "completed_by": 2},
    ]
    task = {"data": {"id": image, "labels": [{"value": label}]}, "annotations": given}
    file.write_text(json.dumps([task]))
    assert "2 answers (1 yes, 1 no) taken" in partly_works("answers", data, file).out
    again = partly_works("answers", data, file).out  # the first of them is not news
    assert "1 answer it had already" in again
    assert "1 answer left out: later ones" in again
    assert [answer.value for answer in answers.read(journal)] == [1, 0]


def test_nobody_is_asked_twice(data: Path, tmp_path: Path) -> None:
    run, file = data.parent / "run", tmp_path / "ask.csv"
    everything = ("suggest", run, data, "--budget", 500, "--out", file)
    partly_works(*everything)
    train = read(data).part("train")
    assert train is not None
    assert len(lines_of(file)) == len(train) * 3 - train.known
    fill_in(file, "?")
    assert "cannot tell) taken" in partly_works("answers", data, file).out
    assert "have been looked at, and nobody could tell" in refused(*everything)


def test_answers_that_nobody_took_in_are_not_written_over(data: Path, tmp_path: Path) -> None:
    run, file = data.parent / "run", tmp_path / "ask.csv"
    ask = ("suggest", run, data, "--budget", 6, "--out", file)
    partly_works(*ask)
    partly_works(*ask)  # nobody has answered anything
    fill_in(file, "1")
    filled = file.read_bytes()
    said = refused(*ask)
    assert "is there already, with 6 answers not taken in yet" in said
    assert f"partly answers {data} {file}" in said
    assert file.read_bytes() == filled
    partly_works("answers", data, file)
    partly_works(*ask)
    assert {line["value"] for line in lines_of(file)} == {""}
    assert "is there already: name another" in refused("suggest", run, data, "--out", data)


def test_what_looks_wrong_is_asked_among_what_is_unknown(data: Path, tmp_path: Path) -> None:
    run, file = data.parent / "run", tmp_path / "ask.csv"
    partly_works("suggest", run, data, "--budget", 500, "--suspects", 500, "--out", file)
    lines = lines_of(file)
    images = [line["image"] for line in lines]
    blocks = 1 + sum(one != other for one, other in pairwise(images))
    assert blocks == len(set(images))  # one look an image
    assert {line["known"] for line in lines} == {"", "0", "1"}


def test_label_studio_there_and_back(data: Path, tmp_path: Path) -> None:
    run, file = data.parent / "run", tmp_path / "ask.json"
    partly_works("suggest", run, data, "--budget", 6, "--out", file)
    tasks = json.loads(file.read_text())
    for task in tasks:
        picture = task["data"]["image"].removeprefix("/data/local-files/?d=")
        assert (data.parent / picture).is_file()
        ticked = {
            "from_name": "present",
            "value": {"choices": [task["data"]["labels"][0]["value"]]},
        }
        task["annotations"] = [{"result": [ticked], "completed_by": 3}]
    file.write_text(json.dumps(tasks))
    said = partly_works("answers", data, file).out
    assert f"6 answers ({len(tasks)} yes, {6 - len(tasks)} no) taken" in said


def test_features_are_asked_about_too(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "data.npz", 120, 20)
    arrays = dict(np.load(data))
    arrays["Y_train"] = np.where(np.arange(120)[:, None] % 2, -1, arrays["Y_train"])
    np.savez(data, **arrays)
    partly_works("train", data, "--out", tmp_path / "run", "--epochs", 1)
    file = tmp_path / "ask.csv"
    partly_works("suggest", tmp_path / "run", data, "--budget", 20, "--out", file)
    assert len(lines_of(file)) == 20
    assert lines_of(file)[0]["path"] == ""
    assert "rows of features" in refused(
        "suggest", tmp_path / "run", data, "--out", tmp_path / "ask.json"
    )


def test_bad_choices_are_named(data: Path, tmp_path: Path) -> None:
    run, out = data.parent / "run", ("--out", tmp_path / "ask.csv")
    both = refused("suggest", run, data, "--budget", 0, "--suspects", -1, *out)
    assert "a budget is 1 question or more, not 0" in both
    assert "suspects are 0 to 0 of the budget, not -1" in both
    assert "suspects are 0 to 5" in refused(
        "suggest", run, data, "--budget", 5, "--suspects", 6, *out
    )
    assert "ends neither with .csv" in refused("suggest", run, data, "--out", tmp_path / "a.txt")
    assert "no part 'validation'" in refused("suggest", run, data, "--part", "validation", *out)
    assert "is not a run" in refused("suggest", tmp_path, data, *out)
    assert "no data at" in refused("suggest", run, tmp_path / "none.csv", *out)
    assert "costs 0 or more answers" in refused("suggest", run, data, "--opening", -1, *out)
    assert not (tmp_path / "ask.csv").exists()


def test_data_with_other_labels(data: Path, tmp_path: Path) -> None:
    run, file = data.parent / "run", tmp_path / "ask.csv"
    labels = np.full((40, 2), -1, dtype=np.int8)
    other = write_manifest(data.parent / "other.csv", labels, names=["red", "pink"])
    assert "has no column for 2 of 3 labels: green, blue" in refused(
        "suggest", run, other, "--out", file
    )
    more = np.full((40, 4), -1, dtype=np.int8)
    wider = write_manifest(data.parent / "wider.csv", more, names=["pink", "red", "green", "blue"])
    said = partly_works("suggest", run, wider, "--budget", 10, "--out", file)
    assert "will not ask about: pink" in said.out
    assert {line["label"] for line in lines_of(file)} <= {"red", "green", "blue"}


def test_where_everything_is_known(data: Path, tmp_path: Path) -> None:
    run, file = data.parent / "run", tmp_path / "ask.csv"
    full = write_manifest(data.parent / "full.csv", np.ones((40, 3), dtype=np.int8))
    assert "all 120 labels are known; --suspects N asks" in refused(
        "suggest", run, full, "--out", file
    )


def test_a_journal_that_is_empty_or_about_no_data(data: Path, tmp_path: Path) -> None:
    assert "no answers yet" in partly_works("answers", data).out
    assert "no data at" in refused("answers", tmp_path / "none.csv")
    assert "no answers at" in refused("answers", data, tmp_path / "none.csv")
    answers.append(
        answers.journal_of(data),
        [answers.Answer("0001.png", "red", 1), answers.Answer("0001.png", "red", None)],
    )
    said = partly_works("answers", data).out
    assert "0 answers" in said
    assert "2 earlier answers changed or taken back" in said


def test_few_answers_do_not_spoil_data_of_positives_alone() -> None:
    """Those who answer say no as well; a label with hundreds of ticks and two of them is not
    positive nearly everywhere."""
    from partly.config import Config
    from partly.training import train

    generator = np.random.default_rng(0)
    features = generator.normal(size=(1000, 6)).astype(np.float32)
    truth = (features[:, :3] > 1).astype(np.int8)
    ticked = np.where((truth == 1) & (generator.random(truth.shape) < 0.5), 1, -1)
    table = LabelTable.from_dense(ticked, features=features)
    unknown = np.argwhere((ticked < 0) & (truth == 0))[:40]
    given = [answers.Answer(str(row), table.names[column], 0) for row, column in unknown]
    config = Config(epochs=5, hold_out=0.0, expected_positives=truth.sum() / 1000)
    means = [
        train(some, config, quiet=True).probabilities(table).mean()
        for some in (table, answers.apply(table, given))
    ]
    assert means[1] == pytest.approx(means[0], abs=0.05)
    assert means[0] == pytest.approx(truth.mean(), abs=0.08)
