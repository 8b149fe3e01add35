"""The review page's server: answers that stay, questions that fit, and a door that keeps shut.

What a browser does with it is tested in `test_review_page.py`.
"""

import asyncio
import contextlib
import errno
import io
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from PIL import Image

from builders import partly_here, partly_works, picture_table, write_manifest, write_pictures
from partly import answers, runs
from partly.answers import Answer, moment
from partly.errors import DataError, RunError
from partly.labels import LabelTable
from partly.review import beliefs, choosing, guard, pictures
from partly.review.choosing import Subject
from partly.review.ledger import Ledger, Wish
from partly.review.presence import FORGOTTEN, looking
from partly.source import Source
from partly.suggest import Question

fastapi = pytest.importorskip("fastapi", reason="the review page needs partly[review]")
import uvicorn  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402

from partly.review.app import application  # noqa: E402

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NASTY = "<script>alert(1)</script>"


def at(second: float) -> str:
    return moment((NOON + timedelta(seconds=second)).isoformat())


def yes(image: str, label: str = "x", by: str = "anna", second: float = 0) -> Wish:
    return Wish(Answer(image, label, 1, by, at(second)))


def no(image: str, label: str = "x", by: str = "anna", second: float = 0) -> Wish:
    return Wish(Answer(image, label, 0, by, at(second)))


def undo(wish: Wish, second: float) -> Wish:
    done = wish.answer
    return Wish(Answer(done.image, done.label, None, done.by, at(second)), done.at)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "data.csv.answers.jsonl"


def ledger_of(journal: Path) -> Ledger:
    return Ledger(journal, ["a", "b", "c"], ["x", "y"])


def standing(ledger: Ledger) -> dict[tuple[str, str], int | None]:
    return {cell: answer.value for cell, answer in ledger.answered().items()}


# --- the ledger ----------------------------------------------------------------------------------


def test_what_is_added_is_in_the_file_and_in_other_ledgers(journal):
    one, other = ledger_of(journal), ledger_of(journal)
    assert one.add([yes("a"), no("b", by="bob")]) == [None, None]
    assert [answer.image for answer in answers.read(journal)] == ["a", "b"]
    assert other.follow() == journal.stat().st_size
    assert standing(other) == {("a", "x"): 1, ("b", "x"): 0}
    assert other.people() == {"anna": 1, "bob": 1}


def test_an_answer_that_is_sent_again_is_written_once(journal):
    assert ledger_of(journal).add([yes("a"), yes("a")]) == [None, None]
    assert ledger_of(journal).add([yes("a")]) == [None]  # after a restart as well
    assert len(answers.read(journal)) == 1


def test_an_answer_that_comes_again_late_does_not_undo_a_newer_one(journal):
    ledger = ledger_of(journal)
    ledger.add([yes("a"), no("a", by="bob", second=1), yes("a")])
    assert standing(ledger) == {("a", "x"): 0}


def test_an_answer_that_was_held_up_does_not_displace_a_later_one(journal):
    ledger = ledger_of(journal)
    ledger.add([no("a", by="bob", second=5)])
    assert ledger.add([yes("a", second=1)]) == [None]
    assert ledger.answer("a", "x") == Answer("a", "x", 0, "bob", at(5))
    assert answers.latest(answers.read(journal)) == ledger.answered()
    assert [answer.by for answer in answers.read(journal)] == ["bob", "anna", "bob"]
    assert ledger.add([yes("a", second=1)]) == [None]  # sent again: it is there already
    assert len(answers.read(journal)) == 3
    assert ledger.people() == {"bob": 1}
    assert ledger.add([undo(no("a", by="bob", second=5), 6)]) == [None]
    assert standing(ledger) == {("a", "x"): 1}


def test_who_saw_an_answer_can_change_it_though_their_clock_is_slow(journal):
    ledger = ledger_of(journal)
    ledger.add([no("a", by="bob", second=5)])
    ledger.add([yes("a", second=1)._replace(seen=at(5))])
    assert standing(ledger) == {("a", "x"): 1}
    ledger.add([no("a", by="bob", second=0)._replace(seen=at(-1))])
    assert standing(ledger) == {("a", "x"): 1}


def test_an_answer_without_a_time_can_be_changed(journal):
    journal.write_text('{"image": "a", "label": "x", "value": 1}\n')
    ledger = ledger_of(journal)
    ledger.add([no("a")])
    assert standing(ledger) == {("a", "x"): 0}


def test_a_line_of_strange_kinds_does_not_get_in_the_way(journal):
    lines = [{"by": ["x"]}, {"at": 5}, {"by": None}, {"value": True}, {"label": ["x"]}]
    strange = [{"image": "a", "label": "x", "value": 1} | line for line in lines]
    journal.write_text("".join(json.dumps(line) + "\n" for line in strange) + "[" * 100_000 + "\n")
    ledger = ledger_of(journal)
    assert ledger.add([no("a")]) == [None]
    size = journal.stat().st_size
    assert ledger.add([no("a")]) == [None]
    assert journal.stat().st_size == size
    assert standing(ledger) == standing(ledger_of_file(journal)) == {("a", "x"): 0}


def test_undo_restores_what_stood_before(journal):
    ledger = ledger_of(journal)
    ledger.add([yes("a", by="bob"), no("a", second=1), yes("a", second=2)])
    assert ledger.add([undo(yes("a", second=2), 3)]) == [None]
    assert standing(ledger) == {("a", "x"): 0}
    assert ledger.add([undo(no("a", second=1), 4)]) == [None]
    assert ledger.answer("a", "x") == Answer("a", "x", 1, "bob", at(0))
    assert answers.latest(answers.read(journal)) == ledger.answered()
    assert ledger.add([undo(no("a", second=1), 4)]) == [None]  # sent again: it is done
    assert ledger.add([undo(yes("a", by="bob"), 5)]) == [None]
    assert standing(ledger) == {}


def test_undo_does_not_take_back_what_somebody_else_said_since(journal):
    ledger = ledger_of(journal)
    ledger.add([yes("a"), no("a", by="bob", second=1)])
    (refused,) = ledger.add([undo(yes("a"), 2)])
    assert refused is not None
    assert "answered again since" in refused
    assert ledger.answer("a", "x") == Answer("a", "x", 0, "bob", at(1))


def test_answers_about_what_is_not_there_are_refused_and_the_others_taken(journal):
    first, second, third = ledger_of(journal).add([yes("z"), yes("a", "w"), yes("a")])
    assert "no image 'z'" in (first or "")
    assert "label 'w'" in (second or "")
    assert third is None
    assert len(answers.read(journal)) == 1


def test_a_line_that_was_cut_off_costs_only_itself(journal):
    ledger = ledger_of(journal)
    ledger.add([yes("a")])
    with journal.open("a") as file:
        file.write('{"image": "b", "label": "x", "val')
    ledger.follow()
    ledger.add([yes("c")])
    assert standing(ledger) == {("a", "x"): 1, ("c", "x"): 1}
    assert standing(ledger) == standing(ledger_of_file(journal))


def ledger_of_file(journal: Path) -> Ledger:
    ledger = ledger_of(journal)
    ledger.follow()
    return ledger


def test_a_journal_that_was_put_there_anew_is_read_anew(journal):
    ledger = ledger_of(journal)
    ledger.add([yes("a"), yes("b")])
    before = ledger.follow()
    journal.unlink()
    answers.append(journal, [Answer("c", "x", 0)])
    assert ledger.follow() < before
    assert standing(ledger) == {("c", "x"): 0}


def test_since_is_a_place_in_the_file_and_means_the_same_to_every_process(journal):
    ledger = ledger_of(journal)
    ledger.add([yes("a")])
    place = ledger.follow()
    ledger.add([yes("b"), no("c")])
    other = ledger_of_file(journal)
    assert [answer.image for answer in other.since(place)] == ["b", "c"]
    assert other.since(other.follow()) == []
    assert len(other.since(0)) == 3


def test_several_ledgers_at_once_lose_nothing(journal):
    images = [f"{who}{number}" for who in "pqr" for number in range(40)]

    def work(who: str) -> None:
        ledger = Ledger(journal, images, ["x"])
        for number in range(40):
            wish = yes(f"{who}{number}", by=who, second=number)
            assert ledger.add([wish]) == [None]
            if number % 4 == 0:
                assert ledger.add([undo(wish, number + 0.5)]) == [None]

    threads = [threading.Thread(target=work, args=(who,)) for who in "pqr"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers.latest(answers.read(journal))) == 3 * 30


presses = some.lists(
    some.tuples(
        some.integers(0, 1),
        some.sampled_from("ab"),
        some.sampled_from(["anna", "bob"]),
        some.sampled_from([1, 0, -1, None]),
    ),
    max_size=25,
)


@given(presses)
def test_whatever_is_pressed_the_journal_says_what_the_ledgers_say(tmp_path_factory, pressed):
    journal = tmp_path_factory.mktemp("journal") / "j"
    ledgers = [ledger_of(journal), ledger_of(journal)]  # two servers
    for second, (which, image, by, value) in enumerate(pressed):
        ledger = ledgers[which]
        ledger.follow()
        last = ledger.answer(image, "x")
        if value is not None:
            ledger.add([Wish(Answer(image, "x", value, by, at(second)))])
            assert ledger.answer(image, "x") == Answer(image, "x", value, by, at(second))
        elif last is not None:
            ledger.add([undo(Wish(last), second)])
            assert ledger.answer(image, "x") != last
    for ledger in ledgers:
        ledger.follow()
        assert ledger.answered() == answers.latest(answers.read(journal))
        assert sum(ledger.people().values()) == len(ledger.answered())


# --- what is asked -------------------------------------------------------------------------------


def subject_of(tmp_path: Path, budget: int = 6) -> Subject:
    """Six pictures with a probability for each label, a known positive that looks wrong among
    them, one label with a nasty name."""
    table = picture_table(tmp_path / "images", 6)
    data = np.full((6, 3), -1, dtype=np.int8)
    data[0] = [1, 0, -1]
    table = LabelTable.from_dense(
        data, ids=[f"{n}.png" for n in range(6)], names=["red", NASTY, "blue"], paths=table.paths
    )
    probabilities = np.array(
        [[0.02, 0.1, 0.5], [0.9, 0.5, 0.3], [0.6, 0.2, 0.45], [0.1, 0.7, 0.8], [0.3, 0.4, 0.55],
         [0.5, 0.05, 0.95]], dtype=np.float32,
    )  # fmt: skip
    ledger = Ledger(tmp_path / "data.csv.answers.jsonl", table.ids, table.names)
    return Subject("data.csv", table, probabilities, table.dense(), ledger, budget=budget)


def cells_of(asked: list[Question]) -> set[tuple[int, int]]:
    return {(one.row, one.column) for one in asked}


def answer_all(subject: Subject, asked: list[Question], value: int = 1) -> None:
    subject.ledger.add(
        [Wish(Answer(*subject.cell(one.row, one.column), value, "anna", at(1))) for one in asked]
    )


def test_questions_stay_until_all_are_answered_and_then_are_others(tmp_path):
    subject = subject_of(tmp_path)
    first = choosing.queue(subject, "questions")
    assert len(first) == 6
    assert all(subject.data[one.row, one.column] == -1 for one in first)
    answer_all(subject, first[:5])
    assert choosing.queue(subject, "questions") == first
    answer_all(subject, first[5:], value=-1)  # "cannot tell" is an answer too
    second = choosing.queue(subject, "questions")
    assert len(second) == 6
    assert not cells_of(first) & cells_of(second)


def test_questions_of_an_image_stand_together(tmp_path):
    asked = choosing.queue(subject_of(tmp_path, budget=12), "questions")
    rows = [one.row for one in asked]
    changes = sum(a != b for a, b in zip(rows[1:], rows, strict=False))
    assert changes == len(set(rows)) - 1


def test_questions_can_be_about_one_label(tmp_path):
    asked = choosing.queue(subject_of(tmp_path), "questions", 1)
    assert {one.column for one in asked} == {1}
    assert cells_of(asked) == {(row, 1) for row in range(1, 6)}


def test_a_known_label_that_looks_wrong_is_asked_about_until_somebody_answers(tmp_path):
    subject = subject_of(tmp_path)
    (suspect,) = choosing.queue(subject, "suspects")
    assert (suspect.row, suspect.column, suspect.known) == (0, 0, 1)
    answer_all(subject, [suspect])
    assert choosing.queue(subject, "suspects") == []


def test_a_gallery_walks_a_label_from_one_end_to_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(choosing, "TILES", 2)
    subject = subject_of(tmp_path)
    first, left = choosing.gallery(subject, 0, order="likely", show="open")
    assert (first, left) == ([1, 2], 3)  # row 0 is known
    subject.ledger.add([yes("1.png", "red"), yes("2.png", "red")])
    second, left = choosing.gallery(subject, 0, order="likely", show="open", after=2)
    assert (second, left) == ([5, 4], 1)
    assert choosing.gallery(subject, 0, order="likely", show="open")[0] == [5, 4]
    assert choosing.gallery(subject, 0, order="unlikely", show="yes")[0] == [0, 2]
    assert choosing.gallery(subject, 0, order="unsure", show="all")[0] == [5, 2]
    assert choosing.gallery(subject, 1, order="likely", show="no") == ([0], 0)


def test_what_others_look_at_is_known_and_soon_forgotten():
    now = 0.0
    look = looking(lambda: now)
    assert look("one", 3) == []
    assert look("other", None) == [3]
    assert look("other", 5) == [3]
    assert look("one", 4) == [5]
    now = FORGOTTEN + 1
    assert look("other", None) == []


# --- the door ------------------------------------------------------------------------------------

HERE = guard.door_of("127.0.0.1", None)
THERE = guard.door_of("0.0.0.0", "a-token-of-some-length")._replace(open=frozenset(["/"]))
WRITING = {
    "host": "127.0.0.1:8765",
    "x-partly": "review",
    "content-type": "application/json",
    "content-length": "2",
}


def status(door: guard.Door, method: str, path: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    refused = guard.refusal(door, method, path, {"host": "127.0.0.1:8765"} | named)
    return 200 if refused is None else refused[0]


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8765", True),
        ("localhost:9999", True),  # forwarded to another port
        ("LOCALHOST", True),
        ("[::1]:8765", True),
        ("evil.example", False),
        ("evil.example:8765", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("192.168.0.7:8765", False),
        ("", False),
        ("[::1", False),
    ],
)
def test_a_name_that_is_not_ours_is_refused(host, allowed):
    assert (status(HERE, "GET", "/api/start", host=host) == 200) is allowed


def test_elsewhere_addresses_are_ours_and_foreign_names_are_not():
    bearer = "Bearer a-token-of-some-length"
    for host, expected in (("192.168.0.7:8765", 200), ("evil.example", 403)):
        assert status(THERE, "GET", "/api/start", host=host, authorization=bearer) == expected
    named = guard.door_of("0.0.0.0", "a-token-of-some-length", ["photos.example"])
    assert status(named, "GET", "/x", host="photos.example", authorization=bearer) == 200


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:8765"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"x-partly": ""}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-length": ""}, 411),
        ({"content-length": "-1"}, 411),
        ({"content-length": str(2**20 + 1)}, 413),
        ({"transfer-encoding": "chunked"}, 411),
        ({"transfer-encoding": ""}, 411),
    ],
)
def test_a_foreign_page_cannot_write(changed, expected):
    refused = guard.refusal(HERE, "POST", "/api/answers", WRITING | changed)
    assert (200 if refused is None else refused[0]) == expected


def test_other_ways_to_ask_are_refused():
    assert status(HERE, "DELETE", "/api/answers") == 405
    assert status(HERE, "GET", "/image/0", sec_fetch_site="cross-site") == 403
    assert status(HERE, "GET", "/", sec_fetch_site="cross-site") == 200  # a link to the page


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 401),
        ({"authorization": "Bearer a-token-of-some-length"}, 200),
        ({"authorization": "Bearer a-token-of-some-lengtg"}, 401),
        ({"authorization": "a-token-of-some-length"}, 401),
        ({"cookie": f"x=1; partly-review={guard.secret_of('a-token-of-some-length')}"}, 200),
        ({"cookie": "partly-review=a-token-of-some-length"}, 401),
        ({"cookie": f"other={guard.secret_of('a-token-of-some-length')}"}, 401),
        ({"cookie": "partly-review=\udcff"}, 401),
    ],
)
def test_elsewhere_a_token_is_needed(headers, expected):
    assert status(THERE, "GET", "/image/0", **headers) == expected
    assert status(THERE, "GET", "/") == 200


def test_a_token_is_made_where_other_machines_reach_the_page():
    made = {guard.door_of("0.0.0.0", None).token for _ in range(2)}
    assert len(made) == 2
    assert all(token and len(token) >= 32 for token in made)
    assert guard.door_of("127.0.0.1", None).token is None
    assert guard.door_of("::1", None).token is None
    assert guard.door_of("192.168.0.7", None).token is not None


# --- the server ----------------------------------------------------------------------------------


def client_of(subject: Subject, door: guard.Door = HERE, by: str = "anna") -> TestClient:
    assert subject.table.paths is not None
    app = application(subject, pictures.pictures_of(subject.table.paths), door, by)
    return TestClient(app, base_url="http://127.0.0.1:8765", headers={"x-partly": "review"})


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return subject_of(tmp_path)


@pytest.fixture
def client(subject: Subject) -> TestClient:
    return client_of(subject)


def sent(image: str = "1.png", label: str = NASTY, **changed: Any) -> dict[str, Any]:
    answer = {"image": image, "label": label, "value": 1, "by": "anna", "at": at(0)}
    return {"answers": [answer | changed]}


def test_the_page_says_over_what_it_answers(subject, client):
    subject.ledger.add([no("1.png", NASTY, by="bob", second=5)])
    late = client.post("/api/answers", json=sent()).json()["outcomes"][0]
    assert (late["problem"], late["now"]["by"]) == (None, "bob")
    knowing = client.post("/api/answers", json=sent(at=at(1), seen=at(5))).json()["outcomes"][0]
    assert (knowing["problem"], knowing["now"]["by"]) == (None, "anna")


def test_the_first_and_the_last_hours_are_no_times(client):
    for when in ("0001-01-01T00:00+05:00", "9999-12-31T23:59-05:00"):
        (outcome,) = client.post("/api/answers", json=sent(at=when)).json()["outcomes"]
        assert "no time" in outcome["problem"]


def test_an_answer_goes_to_the_journal_and_comes_back(subject, client):
    start = client.get("/api/start").json()
    assert start["labels"] == ["red", NASTY, "blue"]
    reply = client.post("/api/answers", json=sent()).json()
    assert reply["outcomes"][0]["problem"] is None
    assert reply["people"] == {"anna": 1}
    (written,) = answers.read(subject.ledger.path)
    assert (written.image, written.label, written.value) == ("1.png", NASTY, 1)
    news = client.get("/api/answers", params={"since": start["place"]}).json()
    assert [answer["value"] for answer in news["answers"]] == [1]
    assert not news["anew"]
    assert client.get("/api/answers", params={"since": 10**9}).json()["anew"]


def test_questions_come_with_what_is_known_of_them(client):
    client.post("/api/answers", json=sent("4.png", "blue", value=-1))
    (image,) = [
        one
        for one in client.get("/api/queue", params={"kind": "suspects"}).json()["images"]
        if one["image"] == "0.png"
    ]
    assert image["questions"][0] | {"probability": 0.02} == {
        "row": 0, "image": "0.png", "label": "red", "probability": 0.02, "known": 1, "answer": None,
    }  # fmt: skip
    tiles = client.get("/api/gallery", params={"column": 2, "show": "all"}).json()["tiles"]
    assert [tile["row"] for tile in tiles] == [5, 3, 4, 0, 2, 1]
    assert tiles[2]["answer"]["value"] == -1


@pytest.mark.parametrize(
    "changed",
    [
        {"value": 2},
        {"value": "1"},
        {"at": "yesterday"},
        {"at": "2" * 1000},
        {"at": "0001-01-01T00:00:00+23:00"},
        {"by": "x" * 81},
        {"image": 3},
        {"image": None},
    ],
)
def test_strange_answers_are_refused_and_nothing_is_written(subject, client, changed):
    (outcome,) = client.post("/api/answers", json=sent(**changed)).json()["outcomes"]
    assert outcome["problem"].startswith(f"{next(iter(changed))}: ")
    assert not subject.ledger.path.exists()


def test_a_strange_answer_does_not_keep_those_behind_it(subject, client):
    client.post("/api/answers", json=sent("2.png"))
    body = {"answers": [*sent()["answers"], *sent("2.png", by="x" * 81)["answers"]]}
    body["answers"] += sent("3.png")["answers"]
    first, second, third = client.post("/api/answers", json=body).json()["outcomes"]
    assert second["problem"] == "by: String should have at most 80 characters"
    assert second["now"]["by"] == "anna"  # what stands there still
    assert (first["problem"], third["problem"]) == (None, None)
    assert [answer.image for answer in answers.read(subject.ledger.path)] == [
        "2.png", "1.png", "3.png",
    ]  # fmt: skip


@pytest.mark.parametrize("body", [{}, {"answers": 1}, {"answers": [1]}, []])
def test_what_is_no_list_of_answers_is_refused(client, body):
    reply = client.post("/api/answers", json=body)
    assert reply.status_code == 422
    assert "answers" in reply.json()["problem"] or "body" in reply.json()["problem"]


def test_a_truth_value_never_gets_into_the_journal(subject, client):
    client.post("/api/answers", json=sent(value=True))
    answers.read(subject.ledger.path)  # it would refuse the line


def test_a_text_that_is_no_text_is_refused(subject, client):
    body = json.dumps(sent(by="\ud800"))
    reply = client.post("/api/answers", content=body, headers={"content-type": "application/json"})
    assert reply.json()["outcomes"][0]["problem"].startswith("by: ")
    assert not subject.ledger.path.exists()


def test_a_full_disk_confirms_nothing(subject, client, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(answers.os, "write", full)
    reply = client.post("/api/answers", json=sent())
    assert reply.status_code == 503
    assert "No space left" in reply.json()["problem"]
    monkeypatch.undo()
    assert client.post("/api/answers", json=sent()).json()["outcomes"][0]["problem"] is None
    assert len(answers.read(subject.ledger.path)) == 1


def test_pictures_are_upright_and_no_larger_than_asked_for(tmp_path):
    subject = subject_of(tmp_path)
    turned = Image.new("RGB", (3000, 1000), "white")
    exif = turned.getexif()
    exif[0x0112] = 6  # the camera was held upright
    turned.save(subject.table.paths[0], "JPEG", exif=exif)
    client = client_of(subject)
    for address, size in (("/image/0", (533, 1600)), ("/thumb/0", (85, 256))):
        reply = client.get(address)
        assert reply.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(reply.content)).size == size
    assert Image.open(io.BytesIO(client.get("/image/1").content)).size == (16, 16)


def test_of_large_images_one_is_decoded_at_a_time_and_small_ones_meanwhile(tmp_path, monkeypatch):
    subject = subject_of(tmp_path)
    assert subject.table.paths is not None
    for row in (0, 1):
        Image.new("RGB", (40, 40)).save(subject.table.paths[row])
    monkeypatch.setattr(pictures, "cores", lambda: 3)
    monkeypatch.setattr(pictures, "LARGE", 1000)
    decode, go_on = pictures.images.decode, threading.Event()
    now: list[int] = []  # the pixels of what has begun

    def slow(content: bytes, target: int = 0) -> Image.Image:
        picture = decode(content, target)
        now.append(picture.width * picture.height)
        if len(now) < 2:
            assert go_on.wait(20)
        return picture

    monkeypatch.setattr(pictures.images, "decode", slow)
    show = pictures.pictures_of(subject.table.paths)
    threads = [threading.Thread(target=show, args=("image", row)) for row in (0, 1)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while not now and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)  # in which the other could begin
    show("image", 2)
    begun = list(now)
    go_on.set()
    for thread in threads:
        thread.join()
    assert begun == [1600, 256]
    assert now == [1600, 256, 1600]


def test_an_image_that_broke_is_a_sentence(tmp_path):
    subject = subject_of(tmp_path)
    Path(subject.table.paths[2]).write_bytes(b"")
    Path(subject.table.paths[3]).unlink()
    client = client_of(subject)
    assert client.get("/image/2").json() == {"problem": "2.png: the file is empty"}
    assert client.get("/thumb/3").json() == {"problem": "3.png: there is no such file"}


@pytest.mark.parametrize(
    "path",
    [
        "/image/..",
        "/image/../../etc/passwd",
        "/image/%2e%2e/%2e%2e/etc/passwd",
        "/image/..%2f..%2fetc%2fpasswd",
        "/image//etc/passwd",
        "/image/%2fetc%2fpasswd",
        "/image/0/../../../data.csv",
        "/image/0%00.png",
        "/image/-1",
        "/image/6",
        "/image/1e0",
        "/image/99999999999999999999",
        "/review.css/../../app.py",
        "/page/review.js",
        "/%2e%2e/app.py",
        "/../data.csv.answers.jsonl",
        "/docs",
        "/openapi.json",
        "//etc/passwd",
    ],
)
def test_nothing_but_rows_and_the_page_can_be_read(subject, path):
    assert subject.table.paths is not None
    app = application(subject, pictures.pictures_of(subject.table.paths), HERE)
    assert status_of(app, path) in (404, 422)
    assert status_of(app, "/image/5") == 200


@contextlib.contextmanager
def listening(app: Any) -> Iterator[tuple[str, int]]:
    """Where a real server answers for the application."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        yield place.getsockname()
        server.should_exit = True
        thread.join(timeout=20)


def test_a_body_in_pieces_is_not_read_whatever_length_it_claims(subject):
    app = application(subject, pictures.pictures_of(subject.table.paths), HERE)
    head = (
        "POST /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Partly: review\r\n"
        "Content-Type: application/json\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with listening(app) as place, socket.create_connection(place, timeout=20) as line:
        line.sendall(head.encode() + b"10\r\n" + b" " * 16 + b"\r\n")  # and more would follow
        assert line.recv(1000).startswith(b"HTTP/1.1 411 ")


def test_no_more_is_read_than_the_largest_body(subject):
    app = application(subject, pictures.pictures_of(subject.table.paths), HERE)
    pieces, replies = 0, []

    async def receive() -> dict[str, Any]:
        nonlocal pieces
        pieces += 1
        return {"type": "http.request", "body": b" " * 2**18, "more_body": pieces < 1000}

    async def send(message: dict[str, Any]) -> None:
        replies.append(message)

    headers = [(name.encode(), value.encode()) for name, value in WRITING.items()]
    scope = {"type": "http", "method": "POST", "path": "/api/login", "headers": headers}
    asyncio.run(app(scope | {"query_string": b""}, receive, send))
    assert pieces == 5
    assert replies[0]["status"] == 400


def status_of(app: Any, path: str) -> int:
    """The status of a request whose path no client has tidied up before."""
    messages: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "method": "GET",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    asyncio.run(app(scope, receive, send))
    return int(messages[0]["status"])


def test_every_reply_forbids_foreign_code_and_frames(client):
    for path in ("/", "/api/start", "/image/0", "/nowhere"):
        headers = client.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
    assert "onclick" not in client.get("/").text
    refused = client.get("/", headers={"host": "evil.example"})
    assert refused.status_code == 403
    assert refused.headers["x-frame-options"] == "DENY"


def test_the_token_becomes_a_cookie_that_does_not_tell_it(subject):
    door = guard.door_of("0.0.0.0", "a-token-of-some-length")
    client = client_of(subject, door)
    assert client.get("/").status_code == 200
    assert client.get("/api/start").status_code == 401
    assert client.post("/api/answers", json=sent()).status_code == 401
    assert client.post("/api/login", json={"token": "wrong"}).status_code == 401
    reply = client.post("/api/login", json={"token": "a-token-of-some-length"})
    cookie = reply.headers["set-cookie"]
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    assert "a-token-of-some-length" not in cookie
    assert client.get("/api/start").status_code == 200
    assert client.get("/image/0").status_code == 200


# --- what the model believes ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """photos/data.csv, three quarters of its labels blank, and a run on it."""
    home = tmp_path_factory.mktemp("home")
    labels = write_pictures(home / "photos", 30)
    labels[np.random.default_rng(0).random(labels.shape) < 0.75] = -1
    write_manifest(home / "photos" / "data.csv", labels, test=6)
    options = ["--backbone", "small", "--image-size", 16, "--epochs", 1]
    partly_works("train", home / "photos" / "data.csv", "--out", home / "run", *options)
    return home


def believe(home: Path, said: list[str]) -> tuple[LabelTable, np.ndarray]:
    source = Source(home / "photos" / "data.csv", on_bad_image="skip")
    table = source.read()
    return beliefs.believed(home / "run", source, table, table.names[:2], say=said.append)


def test_the_model_is_asked_once_and_again_when_an_image_changes(home):
    said: list[str] = []
    table, first = believe(home, said)
    assert table.names == ("red", "green")
    assert first.shape == (30, 2)
    expected = runs.load(home / "run").probabilities(Source(home / "photos" / "data.csv").read())
    np.testing.assert_allclose(first, expected[:, :2], atol=1e-6)
    assert said[-1] == "asking the model about 30 images"
    said.clear()
    np.testing.assert_array_equal(believe(home, said)[1], first)
    assert said == []

    place = home / "photos" / "0003.png"
    content = place.read_bytes()
    try:
        place.write_bytes(b"broken")
        table, probabilities = believe(home, said)
        assert (len(table), len(probabilities)) == (29, 29)
        assert "0003.png" not in table.ids.tolist()
        assert any("unknown kind" in line for line in said)
        said.clear()
        assert len(believe(home, said)[0]) == 29
        assert said == ["1 image that cannot be read left out"]
        strict = Source(home / "photos" / "data.csv", on_bad_image="error")
        with pytest.raises(DataError, match="1 image of 30 cannot be used"):
            beliefs.believed(home / "run", strict, strict.read(), table.names)
        (home / "run" / beliefs.KEPT).write_bytes(b"PK\x03\x04 cut off")
        assert len(believe(home, said)[0]) == 29
    finally:
        place.write_bytes(content)


def test_the_model_is_asked_again_when_it_is_calibrated_and_not_for_other_thresholds(home):
    data, said = home / "photos" / "data.csv", list[str]()
    believe(home, said)
    decide = ["decide", home / "run", data, "--part", "test"]
    partly_works(*decide, "--goal", "recall:0.9")
    said.clear()
    before = believe(home, said)[1]
    assert said == []
    partly_works(*decide, "--calibrate", "isotonic")
    after = believe(home, said)[1]
    assert said == ["asking the model about 30 images"]
    assert np.abs(after - before).max() > 0.01
    expected = runs.load(home / "run").probabilities(Source(data).read())
    np.testing.assert_allclose(after, expected[:, :2], atol=1e-6)


def test_decisions_that_are_damaged_are_named(home, tmp_path):
    run, source = tmp_path / "run", Source(home / "photos" / "data.csv")
    shutil.copytree(home / "run", run)
    (run / runs.DECISIONS).write_text('{"labels": []}')
    (run / runs.THRESHOLDS).write_text("{}")
    with pytest.raises(RunError, match="is damaged"):
        beliefs.believed(run, source, source.read(), ["red"])


# --- the command ---------------------------------------------------------------------------------


def test_a_run_that_cannot_be_written_to_can_be_looked_at(home, monkeypatch):
    def forbidden(*_: object) -> None:
        raise RunError("cannot write review.npz: Permission denied")

    (home / "run" / beliefs.KEPT).unlink(missing_ok=True)
    monkeypatch.setattr(beliefs.checkpoint, "write_atomically", forbidden)
    said: list[str] = []
    assert len(believe(home, said)[1]) == 30
    assert "asked anew the next time: cannot write" in said[-1]


def refused(*arguments: object) -> str:
    answer = partly_here("review", *arguments, "--no-open", "--port", 0)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    return answer.err


def test_without_fastapi_one_sentence_says_what_to_install(home):
    with mock.patch.dict(sys.modules, {"fastapi": None}):
        err = refused(home / "run", home / "photos" / "data.csv")
    assert err == "partly: the review page needs FastAPI: pip install 'partly[review]'\n"


def test_features_are_nothing_to_look_at(home, tmp_path):
    rows, labels = np.zeros((4, 2)), np.zeros((4, 3), dtype=np.int8)
    np.savez(tmp_path / "data.npz", X_train=rows, Y_train=labels, X_test=rows, Y_test=labels)
    assert "there is nothing to look at" in refused(home / "run", tmp_path / "data.npz")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--label", "purple"], "has no label purple; it has red, green, blue"),
        (["--part", "validation"], "has no part 'validation'; --part all takes every image"),
        (["--part", "some"], "--part is one of train, validation, test, all, not 'some'"),
        (["--budget", 0], "--budget is a number of questions, 1 or more, not 0"),
        (["--by", "x" * 81], "--by is a name of up to 80 characters, not of 81"),
        (["--token", "short"], "use 16 characters or more"),
        (["--host", "no.such.host.invalid"], "cannot listen at no.such.host.invalid"),
    ],
)
def test_what_cannot_be_is_named(home, options, sentence):
    assert sentence in refused(home / "run", home / "photos" / "data.csv", *options)


def test_a_folder_that_is_no_run_and_data_that_is_not_there_are_named(home, tmp_path):
    assert "is not a run" in refused(tmp_path, home / "photos" / "data.csv")
    assert "nowhere.csv" in refused(home / "run", tmp_path / "nowhere.csv")


def test_a_port_in_use_is_named_before_any_work_is_done(home):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = partly_here("review", home / "run", home / "photos" / "data.csv", "--port", port)
    assert answer.code == 2
    assert f"cannot listen at 127.0.0.1, port {port}" in answer.err
    assert "--port 0 takes one that is free" in answer.err
    assert "has not sent yet it sends to the port it was answered at" in answer.err
    assert "asking the model" not in answer.out


def test_strange_lines_in_the_journal_are_named_before_the_page_opens(home):
    journal = answers.journal_of(home / "photos" / "data.csv")
    journal.write_text('{"image": "0000.png", "label": "red", "value": 7}\n')
    try:
        assert "line 1: value is 1, 0, -1 or null" in refused(
            home / "run", home / "photos" / "data.csv"
        )
    finally:
        journal.unlink()


def test_the_journal_cannot_be_written_is_said(tmp_path):
    ledger = ledger_of(tmp_path / "no-such-folder" / "journal")
    with pytest.raises(DataError, match="cannot write the answers"):
        ledger.add([yes("a")])
