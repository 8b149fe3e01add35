"""Texts in two flat arrays: whatever is done to them, they are the list they came from."""

import pickle
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partly.texts import Texts, concatenated

WORDS = ["cat.jpg", "", "ä/ö.png", "cat.jpg", "a long name with spaces.jpeg", "\0", "日本"]


def any_words() -> st.SearchStrategy[list[str]]:
    return st.lists(st.text(st.characters(codec="utf-8"), max_size=80), max_size=12)


def key(word: str) -> int:
    """Sum over bytes of (byte + 1) · multiplier^(1 + place mod 64) · (place + 1), in 64 bits."""
    total = sum(
        (byte + 1) * pow(0x9E3779B97F4A7C15, place % 64 + 1) * (place + 1)
        for place, byte in enumerate(word.encode())
    )
    return (total + 2**63) % 2**64 - 2**63


@given(any_words())
def test_a_list_there_and_back(words: list[str]) -> None:
    texts = Texts.of(words)
    assert len(texts) == len(words)
    assert texts.tolist() == list(texts) == words
    assert [texts[row] for row in range(-len(words), 0)] == words
    assert Texts.of(arrow.chunked_array([words[:2], words[2:]], arrow.string())).tolist() == words
    assert pickle.loads(pickle.dumps(texts)).tolist() == words
    assert texts.mapped().tolist() == words


@given(any_words(), st.data())
def test_parts_are_those_of_the_list(words: list[str], data: Any) -> None:
    texts = Texts.of(words)
    chosen = data.draw(st.slices(len(words)))
    assert texts[chosen].tolist() == words[chosen]
    assert texts[chosen].keys().tolist() == [key(word) for word in words[chosen]]
    rows = data.draw(st.lists(st.integers(0, len(words) - 1))) if words else []
    assert texts[np.array(rows, dtype=np.int64)].tolist() == [words[row] for row in rows]


@pytest.mark.parametrize("chosen", [slice(5, 2), slice(90, 99), slice(0, 0)])
def test_a_slice_may_be_empty(chosen: slice) -> None:
    assert Texts.of(WORDS)[chosen].tolist() == []


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_blocks(size: int) -> None:
    blocks = [block.tolist() for block in Texts.of(WORDS).blocks(size)]
    assert sum(blocks, []) == WORDS  # noqa: RUF017
    assert {len(block) for block in blocks[:-1]} <= {size}
    assert list(Texts.of([]).blocks()) == []


@given(any_words())
def test_keys_depend_on_the_text_alone(words: list[str]) -> None:
    assert Texts.of(words).keys().tolist() == [key(word) for word in words]


def test_keys_of_texts_of_one_length() -> None:
    words = [f"{number:016x}" for number in range(70_000)]  # more than a block
    keys = Texts.of(words).keys()
    assert keys.dtype == np.int64
    assert keys[[0, 65_535, 65_536, 69_999]].tolist() == [
        key(words[row]) for row in (0, 65_535, 65_536, 69_999)
    ]
    assert len(np.unique(keys)) == len(words)


@given(any_words())
def test_repeated(words: list[str]) -> None:
    expected = {word for word in words if words.count(word) > 1}
    repeated = Texts.of(words).repeated().tolist()
    assert set(repeated) == expected
    assert len(repeated) == len(expected)


def test_texts_with_the_same_key_are_not_taken_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Texts, "keys", lambda self: np.zeros(len(self), dtype=np.int64))
    assert Texts.of(["a", "b", "c"]).repeated().tolist() == []
    assert Texts.of(["a", "b", "a"]).repeated().tolist() == ["a"]


def test_joined_and_concatenated() -> None:
    joined = Texts.of(WORDS).joined("folder/", "!")
    assert joined.tolist() == [f"folder/{word}!" for word in WORDS]
    assert concatenated([Texts.of(WORDS), joined[2:4]]).tolist() == WORDS + joined[2:4].tolist()


def test_comparison_is_element_by_element() -> None:
    texts = Texts.of(["a", "b", "a"])
    assert (texts == "a").tolist() == [True, False, True]
    assert (texts != ["a", "a", "a"]).tolist() == [False, True, False]
