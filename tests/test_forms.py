"""Questions on paper, as it were: what is written, what comes back, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partly import forms
from partly.answers import Answer
from partly.errors import PartlyError
from partly.labels import LabelTable
from partly.suggest import Question

NAMES = ["cat", "dog", "a, b"]
LABELS = np.array([[1, -1, -1], [1, 0, -1], [1, -1, -1]])
ASKED = [
    Question(2, 1, 0.45, -1, 3.0),
    Question(2, 2, 0.02, -1, 1.0),
    Question(0, 1, 0.97, -1, 2.0),
    Question(1, 0, 0.01, 1, 4.0),
]


@pytest.fixture
def table(tmp_path: Path) -> LabelTable:
    """Three pictures, one of them with a name that an address has to quote."""
    paths = [tmp_path / "photos" / name for name in ("a.jpg", "b.jpg", "ü #1.jpg")]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(b"a picture")
    return LabelTable.from_dense(
        LABELS, ids=[path.name for path in paths], names=NAMES, paths=[str(p) for p in paths]
    )


def written(table: LabelTable, file: Path, format: str) -> Path:
    forms.write(file, table, ASKED, format, file.parent, "partly first")
    return file


def tasks_of(file: Path) -> list[dict[str, Any]]:
    return list(json.loads(file.read_text()))


def annotation(present: list[str], unclear: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """As Label Studio exports it."""
    ticks = {"present": present, "unclear": unclear or []}
    result = [
        {"from_name": name, "to_name": "image", "type": "choices", "value": {"choices": ticked}}
        for name, ticked in ticks.items()
        if ticked
    ]
    return {"result": result, "was_cancelled": False, **more}


def without_time(answers: list[Answer]) -> list[tuple[str, str, int | None, str]]:
    return [(a.image, a.label, a.value, a.by) for a in answers]


def refusal(file: Path, table: LabelTable) -> list[str]:
    with pytest.raises(PartlyError) as caught:
        forms.read(file, table)
    return caught.value.problems


def test_a_line_a_question_with_room_for_the_answer(table: LabelTable, tmp_path: Path) -> None:
    lines = written(table, tmp_path / "ask.csv", "csv").read_text().splitlines()
    assert lines[0] == "image,path,label,probability,why,known,value"
    assert lines[1].split(",")[2:] == ["dog", "0.45", "uncertain", "", ""]
    assert '"a, b",0.02,rare label,,' in lines[2]
    assert lines[3].endswith("dog,0.97,likely,,")
    assert lines[4].endswith('cat,0.01,"known as yes, looks like no",1,')


def test_a_question_asked_along_with_others_says_so(table: LabelTable) -> None:
    assert forms.why(Question(0, 0, 0.02, -1, 1.0), np.array([9, 1, 0])) == "same image"


def test_what_is_filled_in_comes_back(table: LabelTable, tmp_path: Path) -> None:
    file = written(table, tmp_path / "ask.csv", "csv")
    lines = file.read_text().splitlines()
    file.write_text(
        "\n".join([lines[0], f"{lines[1]}1", lines[2], f"{lines[3]} No ", f"{lines[4]}?"])
    )
    answers, empty = forms.read(file, table, by="anna")
    assert without_time(answers) == [
        ("ü #1.jpg", "dog", 1, "anna"),
        ("a.jpg", "dog", 0, "anna"),
        ("b.jpg", "cat", -1, "anna"),
    ]
    assert empty == 1


def test_a_spreadsheet_may_save_it_with_semicolons_and_other_columns(
    table: LabelTable, tmp_path: Path
) -> None:
    file = tmp_path / "saved.csv"
    file.write_text(
        "\ufeffImage;note;Label;Value\r\na.jpg;hm;a, b;1.0\r\n;;;\r\n", encoding="utf-8"
    )
    answers, empty = forms.read(file, table)
    assert without_time(answers) == [("a.jpg", "a, b", 1, "")]
    assert empty == 0


def test_everything_that_is_wrong_with_a_csv_is_said_at_once(
    table: LabelTable, tmp_path: Path
) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("image,label,value\nnobody,cat,1\na.jpg,cow,0\na.jpg,cat,maybe\nb.jpg\n")
    problems = refusal(file, table)
    assert [problem.partition("line ")[2] for problem in problems] == [
        "4: 'maybe' says nothing here; write 1 (yes), 0 (no), -1 (cannot tell) or leave it empty",
        "5: only 1 cells",
        "2: the data has no image 'nobody'",
        "3: the data has no label 'cow'",
    ]


def test_many_problems_are_cut_short(table: LabelTable, tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("image,label,value\n" + "nobody,cat,1\n" * 30)
    problems = refusal(file, table)
    assert len(problems) == 21
    assert problems[-1] == "… and 10 more; nothing was taken"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("ask.csv", "", "no column image, label, value"),
        ("ask.csv", "path,value\n", "no column image, label"),
        ("ask.txt", "image", "neither a .csv nor a .json"),
        ("ask.json", "{", "cannot read"),
        ("ask.json", "{}", "not a list"),
        ("ask.json", '[{"image": "a.jpg", "present": "cat"}]', "not as JSON-MIN"),
        ("ask.json", '[{"data": {"image": "x"}}]', "no id and labels"),
        ("ask.json", '[{"data": {"id": "a.jpg", "labels": ["cat"]}}]', "not a list of"),
        ("ask.json", '[{"data": {"id": "a", "labels": []}, "annotations": [1]}]', "objects"),
    ],
)
def test_files_that_say_nothing(
    table: LabelTable, tmp_path: Path, name: str, content: str, sentence: str
) -> None:
    (tmp_path / name).write_text(content)
    assert sentence in refusal(tmp_path / name, table)[0]
    assert "no answers at" in refusal(tmp_path / "nothing.csv", table)[0]


def test_a_csv_in_another_encoding_is_refused(table: LabelTable, tmp_path: Path) -> None:
    (tmp_path / "ask.csv").write_bytes("image,label,value\nü,cat,1\n".encode("latin-1"))
    assert "save it as CSV in UTF-8" in refusal(tmp_path / "ask.csv", table)[0]


def test_label_studio_is_given_a_task_an_image(table: LabelTable, tmp_path: Path) -> None:
    file = tmp_path / "ask.json"
    files = forms.write(file, table, ASKED, "labelstudio", tmp_path, "partly first")
    tasks = tasks_of(file)
    assert [task["data"]["id"] for task in tasks] == ["ü #1.jpg", "a.jpg", "b.jpg"]
    assert tasks[0]["data"]["image"] == "/data/local-files/?d=photos/%C3%BC%20%231.jpg"
    assert tasks[0]["data"]["labels"] == [{"value": "dog"}, {"value": "a, b"}]
    assert tasks[0]["data"]["why"] == ["uncertain", "rare label"]
    assert tasks[0]["predictions"][0]["result"] == []  # nothing of it is likely
    (ticked,) = tasks[1]["predictions"][0]["result"]
    assert ticked["value"] == {"choices": ["dog"]}
    layout = files[1].read_text()
    assert files[1] == tmp_path / "ask.xml"
    # What the tasks and the answers call things is what the configuration calls them.
    assert all(f'name="{name}"' in layout for name in ("present", "unclear", ticked["to_name"]))
    assert all(f'value="${name}"' in layout for name in ("image", "labels"))


def test_what_label_studio_exports_comes_back(table: LabelTable, tmp_path: Path) -> None:
    file = written(table, tmp_path / "ask.json", "labelstudio")
    first, second, third = tasks_of(file)
    first["annotations"] = [
        annotation(["dog"], updated_at="2026-02-01", completed_by=7),
        annotation(["dog"], ["a, b"], updated_at="2026-01-01", completed_by={"email": "b@c.d"}),
    ]
    second["annotations"] = [annotation([], completed_by=7)]
    third["annotations"] = [annotation(["cat"], was_cancelled=True)]
    file.write_text(json.dumps([first, second, third]))
    answers, empty = forms.read(file, table)
    assert without_time(answers) == [  # in the order in which they were given: the last one counts
        ("ü #1.jpg", "dog", 1, "b@c.d"),
        ("ü #1.jpg", "a, b", -1, "b@c.d"),
        ("ü #1.jpg", "dog", 1, "7"),
        ("ü #1.jpg", "a, b", 0, "7"),
        ("a.jpg", "dog", 0, "7"),
    ]
    assert answers[0].at == "2026-01-01"
    assert empty == 1  # what was skipped


def test_what_nobody_asked_about_is_refused(table: LabelTable, tmp_path: Path) -> None:
    file = written(table, tmp_path / "ask.json", "labelstudio")
    tasks = tasks_of(file)
    tasks[0]["annotations"] = [annotation(["cat"])]
    tasks[1]["data"]["id"] = "nobody"
    tasks[1]["annotations"] = [annotation(["dog"])]
    file.write_text(json.dumps(tasks))
    assert [problem.partition("task ")[2] for problem in refusal(file, table)] == [
        "1: cat was not asked about",
        "2: the data has no image 'nobody'",
    ]


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ({"result": ["x"]}, "not a list of objects"),
        ({"result": 5}, "not a list of objects"),
        ({"result": [{"from_name": "present", "value": ["b"]}]}, "a value in its result"),
        ({"result": [{"from_name": "present", "value": {"choices": None}}]}, "a value in its"),
        ({"result": [{"from_name": "present", "value": {"choices": [["b"]]}}]}, "a value in its"),
        ({"result": [{"from_name": "present", "value": {"choices": "dog"}}]}, "a value in its"),
    ],
)
def test_ticks_of_odd_shape_are_named(
    table: LabelTable, tmp_path: Path, part: dict[str, Any], sentence: str
) -> None:
    file = written(table, tmp_path / "ask.json", "labelstudio")
    tasks = tasks_of(file)
    tasks[0]["annotations"] = [part]
    tasks[1]["data"]["labels"] = [{"value": ["b"]}]
    file.write_text(json.dumps(tasks))
    first, second = refusal(file, table)
    assert "task 1: " in first
    assert sentence in first
    assert "task 2: its labels are not a list of" in second


@pytest.mark.parametrize("odd", ["\u2028", "\x85", "\f", "\n", "\r\n"])
def test_a_label_with_an_odd_line_break_comes_back(tmp_path: Path, odd: str) -> None:
    odd_one = LabelTable.from_dense([[1, -1]], ids=["a"], names=[f"cat{odd}dog", "owl"])
    file = tmp_path / "ask.csv"
    forms.write(file, odd_one, [Question(0, 0, 0.5, -1, 1.0)], "csv", tmp_path, "")
    file.write_bytes(file.read_bytes().rstrip(b"\n") + b"1\n")
    (answer,), empty = forms.read(file, odd_one)
    assert (answer.label, answer.value, empty) == (f"cat{odd}dog", 1, 0)


def test_label_studio_cannot_show_what_lies_elsewhere(table: LabelTable, tmp_path: Path) -> None:
    with pytest.raises(PartlyError, match=r"3 images .* no files? below .* --root"):
        forms.write(tmp_path / "x.json", table, ASKED, "labelstudio", tmp_path / "empty", "")
    features = LabelTable.from_dense(LABELS, features=np.zeros((3, 2)))
    with pytest.raises(PartlyError, match=r"rows of features: write a \.csv"):
        forms.write(tmp_path / "x.json", features, ASKED, "labelstudio", tmp_path, "")
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("name", "format", "found"),
    [("a.csv", None, "csv"), ("a.JSON", None, "labelstudio"), ("a.txt", "csv", "csv")],
)
def test_the_suffix_says_the_format(name: str, format: str | None, found: str) -> None:
    assert forms.format_of(Path(name), format) == found


@pytest.mark.parametrize(("name", "format"), [("a.txt", None), ("a.csv", "xml")])
def test_a_format_that_nobody_knows(name: str, format: str | None) -> None:
    with pytest.raises(PartlyError, match=r"ends neither|one of csv, labelstudio"):
        forms.format_of(Path(name), format)
