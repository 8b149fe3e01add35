"""What is asked next, what looks wrong, and what comes back."""

from itertools import pairwise

import numpy as np
import pytest

from partly import suggest
from partly.errors import PartlyError
from partly.labels import LabelTable
from partly.suggest import Question


def cells(found: list[Question]) -> list[tuple[int, int]]:
    return [(question.row, question.column) for question in found]


def some_problem(images: int = 50, labels: int = 7) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    known = generator.choice([1, 0, -1], (images, labels), p=[0.1, 0.2, 0.7]).astype(np.int8)
    return generator.random((images, labels)), known


@pytest.mark.parametrize("opening", [0.0, 1.0, 5.0])
def test_only_unknown_cells_are_asked_about_each_once(opening: float) -> None:
    probabilities, known = some_problem()
    found = suggest.questions(probabilities, known, budget=40, opening=opening)
    assert len(set(cells(found))) == len(found) == 40
    assert all(known[cell] == -1 for cell in cells(found))
    assert all(question.known == -1 and question.gain > 0 for question in found)
    assert [q.probability for q in found] == [probabilities[cell] for cell in cells(found)]


def test_the_questions_of_an_image_stand_together_best_first() -> None:
    found = suggest.questions(*some_problem(), budget=60)
    rows = [question.row for question in found]
    assert len(set(rows)) == 1 + sum(a != b for a, b in pairwise(rows))
    for row in set(rows):
        gains = [question.gain for question in found if question.row == row]
        assert gains == sorted(gains, reverse=True)


def test_what_is_doubtful_comes_before_what_is_clear() -> None:
    probabilities = np.array([[0.01, 0.5], [0.99, 0.8], [0.001, 0.3]])
    found = suggest.questions(probabilities, np.full((3, 2), -1), budget=2, opening=0)
    assert cells(found) == [(0, 1), (2, 1)]


def test_a_label_with_few_known_positives_comes_first() -> None:
    known = np.full((40, 2), -1)
    known[:20, 0] = 1
    found = suggest.questions(np.full((40, 2), 0.4), known, budget=10, opening=0)
    assert {question.column for question in found} == {1}


def test_a_label_that_is_asked_about_often_needs_it_less() -> None:
    found = suggest.questions(np.full((40, 2), 0.4), np.full((40, 2), -1), budget=20, opening=0)
    assert sum(question.column for question in found) == 10


def test_the_dearer_an_image_is_to_open_the_fewer_are_opened() -> None:
    probabilities, known = some_problem(200)
    opened = [
        len({q.row for q in suggest.questions(probabilities, known, budget=100, opening=opening)})
        for opening in (0, 1, 4)
    ]
    assert opened[0] > opened[1] > opened[2] >= 100 / 7


def test_probabilities_said_block_by_block_ask_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities, known = some_problem(200)
    whole = suggest.questions(probabilities, known, budget=30)
    monkeypatch.setattr(suggest, "ROWS", 7)
    asked = []

    def of_rows(rows: np.ndarray) -> np.ndarray:
        asked.extend(rows.tolist())
        return probabilities[rows]

    table = LabelTable.from_dense(known)
    assert suggest.questions(of_rows, table, budget=30) == whole
    assert asked == list(range(200))  # and of no row twice: a network would look again
    monkeypatch.setattr(suggest, "SPARE", 1)  # what is kept is thrown out again and again
    few = suggest.questions(of_rows, table, budget=30, opening=0)
    assert len(few) == 30


def test_fewer_unknown_cells_than_the_budget_are_all_asked() -> None:
    probabilities, known = some_problem()
    assert len(suggest.questions(probabilities, known, budget=10_000)) == (known == -1).sum()
    assert suggest.questions(probabilities, np.zeros_like(known), budget=5) == []


def test_suspects_are_known_cells_the_model_would_decide_otherwise_worst_first() -> None:
    probabilities = np.array([[0.9, 0.2], [0.001, 0.7], [0.5, 0.99]])
    known = np.array([[0, -1], [1, 1], [0, 0]])
    found = suggest.suspects(probabilities, known, budget=10)
    assert cells(found) == [(1, 0), (2, 1), (0, 0)]
    assert [question.known for question in found] == [1, 0, 0]
    assert cells(suggest.suspects(probabilities, known, budget=1)) == [(1, 0)]


def test_a_wrong_no_is_not_hidden_by_many_an_improbable_yes() -> None:
    probabilities = np.array([[0.001], [0.002], [0.003], [0.9], [0.8], [0.1]])
    known = np.array([[1], [1], [1], [0], [0], [0]])
    found = suggest.suspects(probabilities, known, budget=4)
    assert [question.row for question in found] == [0, 3, 1, 4]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"budget": 0}, "a budget is 1 answer or more, not 0"),
        ({"budget": 5, "opening": -1}, "costs 0 or more answers, not -1"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, float], sentence: str) -> None:
    with pytest.raises(PartlyError, match=sentence):
        suggest.questions(*some_problem(), **arguments)  # type: ignore[arg-type]


def test_probabilities_of_another_table_are_refused() -> None:
    probabilities, known = some_problem()
    with pytest.raises(PartlyError, match=r"shape \(50, 6\) for labels of shape \(50, 7\)"):
        suggest.questions(probabilities[:, :6], known, budget=5)
    probabilities[3, 2] = np.nan
    with pytest.raises(PartlyError, match="not finite"):
        suggest.suspects(probabilities, known, budget=5)
