"""The label table: encoding, storage, order, counts, hash, and everything it refuses."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from partly.errors import ConfigError, DataError, LabelError
from partly.labels import CONVENTIONS, LabelTable, check_trainable, encode

NAN = float("nan")
DENSE = np.array([[1, -1, 0], [-1, -1, -1], [0, 1, 1], [-1, 0, -1]], dtype=np.int8)


def any_labels(max_side: int = 7) -> st.SearchStrategy[np.ndarray]:
    shapes = array_shapes(min_dims=2, max_dims=2, max_side=max_side)
    return arrays(np.int8, shapes, elements=st.integers(-1, 1))


def table(values: Any = DENSE, **more: Any) -> LabelTable:
    return LabelTable.from_dense(values, **more)


def full_table_of_everything() -> LabelTable:
    return table(
        ids=["a", "b", "c", "d"],
        names=["cat", "dog", "cow"],
        paths=np.array(["a.jpg", "b.jpg", "c.jpg", "d.jpg"]),
        features=np.arange(8.0).reshape(4, 2),
        splits=np.array(["train", "test", "train", "validation"]),
    )


# Encoding


@pytest.mark.parametrize(
    ("convention", "values", "expected"),
    [
        ("partly", [[1, 0, -1]], [[1, 0, -1]]),
        ("partly", [[1.0, 0.0, -1.0]], [[1, 0, -1]]),
        ("partly", np.array([[1, 0]], dtype=np.uint8), [[1, 0]]),
        ("partly", np.array([[1, False]], dtype=object), [[1, 0]]),
        ("signed", [[1, -1, 0]], [[1, 0, -1]]),
        ("nan", [[1, 0, -1, NAN]], [[1, 0, -1, -1]]),
        ("nan", np.array([[1, None]], dtype=object), [[1, -1]]),
        *((convention, [[True, False]], [[1, 0]]) for convention in CONVENTIONS),
    ],
)
def test_encode(convention: str, values: Any, expected: list) -> None:
    encoded = encode(values, convention=convention)
    assert encoded.dtype == np.int8
    assert encoded.tolist() == expected


@given(any_labels(), st.sampled_from(sorted(CONVENTIONS)))
def test_encode_undoes_every_convention(labels: np.ndarray, convention: str) -> None:
    number = {meaning: value for value, meaning in CONVENTIONS[convention].items()}
    written = np.vectorize(number.__getitem__, otypes=[np.float64])(labels)
    assert (encode(written, convention=convention) == labels).all()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float32", object])
def test_a_label_of_2_is_named_by_row_and_column(dtype: Any) -> None:
    values = np.array([[0, 1], [1, 0], [0, 2]]).astype(dtype)
    with pytest.raises(LabelError, match="row 2, column 1: 2"):
        encode(values)
    with pytest.raises(LabelError, match=r"row c\.jpg, column dog: 2"):
        encode(values, ids=["a.jpg", "b.jpg", "c.jpg"], names=["cat", "dog"])


@pytest.mark.parametrize("value", [2, 0.5, -2, 255, float("inf"), NAN])
@pytest.mark.parametrize("convention", ["partly", "signed"])
def test_every_other_number_is_refused(value: float, convention: str) -> None:
    with pytest.raises(LabelError, match="row 0, column 1"):
        encode([[1, value]], convention=convention)


def test_nan_is_refused_with_a_way_out() -> None:
    with pytest.raises(LabelError, match='only with convention="nan"'):
        encode([[1, NAN]])


def test_many_strange_cells_are_reported_at_once() -> None:
    values = np.zeros((9, 2))
    values[1:8, 1] = 7
    with pytest.raises(LabelError, match="and 2 more") as caught:
        encode(values)
    assert [f"row {row}, column 1" in str(caught.value) for row in range(9)] == [
        1 <= row <= 5 for row in range(9)
    ]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([["yes", "no"]], "labels are not numbers"),
        ([1, 0, -1], "two dimensions"),
        (np.zeros((1, 2, 3)), "two dimensions"),
        (np.array([[1j, 0]]), "label"),
    ],
)
def test_what_is_not_a_matrix_of_numbers_is_refused(values: Any, sentence: str) -> None:
    with pytest.raises(LabelError, match=sentence):
        encode(values)


def test_an_unknown_convention_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="partly, nan, signed"):
        encode([[1]], convention="mlcpl")


# Storage


@given(any_labels())
def test_dense_round_trip(labels: np.ndarray) -> None:
    made = table(labels)
    assert made.dense().dtype == np.int8
    assert (made.dense() == labels).all()
    assert made.known == (labels != -1).sum()
    assert len(made) == len(labels)


@given(any_labels(), st.randoms(use_true_random=False))
def test_entries_come_in_any_order_and_more_than_once(labels: np.ndarray, random: Any) -> None:
    cells = np.argwhere(labels != -1).tolist() * 2
    random.shuffle(cells)
    rows, columns = np.array(cells, dtype=np.int64).reshape(-1, 2).T
    straight = table(labels)
    shuffled = LabelTable.from_entries(
        rows, columns, labels[rows, columns], ids=straight.ids, names=straight.names
    )
    assert (shuffled.dense() == labels).all()
    assert shuffled.known == straight.known
    assert shuffled.content_hash == straight.content_hash


def test_contradictions_are_named() -> None:
    with pytest.raises(LabelError, match="row b, column dog") as caught:
        LabelTable.from_entries(
            [1, 0, 1, 1], [1, 0, 1, 0], [1, 1, 0, 0], ids=["a", "b"], names=["cat", "dog"]
        )
    assert "1 entries are given as positive and as negative" in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "columns", "values", "sentences"),
    [
        ([0, 2], [0, 1], [1, 0], ["row 2 of entry 1 is not in 0 … 1"]),
        ([0, -1], [0, 1], [1, 0], ["row -1 of entry 1"]),
        ([0], [3], [1], ["column 3 of entry 0 is not in 0 … 1"]),
        ([0, 1], [0, 1], [1, -1], ["row 1, column 1 is -1"]),
        ([0], [0], [0.5], ["row 0, column 0 is 0.5"]),
        ([0, 1], [0], [1], ["2 rows, 1 columns, 1 values"]),
        ([5], [5], [5], ["row 5", "column 5", "is 5"]),
    ],
)
def test_entries_that_cannot_be(
    rows: list, columns: list, values: list, sentences: list[str]
) -> None:
    with pytest.raises(LabelError) as caught:
        LabelTable.from_entries(rows, columns, values, ids=["a", "b"], names=["cat", "dog"])
    assert len(caught.value.problems) == len(sentences)
    assert all(sentence in str(caught.value) for sentence in sentences)


def test_without_labels() -> None:
    asked = LabelTable.without_labels(["cat", "dog"], ids=[7, 8, 9], features=np.zeros((3, 1)))
    assert asked.names == ("cat", "dog")
    assert asked.ids.tolist() == ["7", "8", "9"]
    assert asked.dense().tolist() == [[-1, -1]] * 3


@given(any_labels(), st.data())
def test_blocks_and_rows_are_those_of_the_dense_array(labels: np.ndarray, data: Any) -> None:
    made = table(labels)
    some_rows = st.lists(st.integers(0, len(labels) - 1), unique=True)
    rows = np.array(data.draw(some_rows), dtype=np.int64)
    mask = np.isin(np.arange(len(labels)), rows)
    for chosen in (rows, mask, slice(1, None, 2)):
        assert (made.dense(chosen) == labels[chosen]).all()
        taken = made.take(chosen)
        assert (taken.dense() == labels[chosen]).all()
        assert taken.ids.tolist() == made.ids[chosen].tolist()


@given(any_labels(), st.data())
def test_keep_only_forgets(labels: np.ndarray, data: Any) -> None:
    made = table(labels)
    kept = data.draw(arrays(bool, made.known))
    expected = labels.copy()
    expected[tuple(np.argwhere(labels != -1)[~kept].T)] = -1
    assert (made.keep(kept).dense() == expected).all()
    assert (made.dense() == labels).all()


def test_rows_take_everything_along() -> None:
    taken = full_table_of_everything().take(np.array([2, 1]))
    assert taken.ids.tolist() == ["c", "b"]
    assert taken.paths is not None
    assert taken.paths.tolist() == ["c.jpg", "b.jpg"]
    assert taken.features is not None
    assert taken.features.tolist() == [[4, 5], [2, 3]]
    assert taken.splits is not None
    assert taken.splits.tolist() == ["train", "test"]
    assert taken.dense().tolist() == DENSE[[2, 1]].tolist()


@pytest.mark.parametrize(
    ("split", "ids"), [("train", ["a", "c"]), ("validation", ["d"]), ("test", ["b"])]
)
def test_part(split: str, ids: list[str]) -> None:
    part = full_table_of_everything().part(split)
    assert part is not None
    assert part.ids.tolist() == ids


def test_part_of_a_table_without_that_split() -> None:
    unsplit = table()
    assert unsplit.part("train") is unsplit
    assert unsplit.part("test") is None
    assert table(splits=np.full(4, "train")).part("test") is None


def test_reorder_moves_labels_with_their_names() -> None:
    whole = full_table_of_everything()
    moved = whole.reorder(["cow", "cat"])
    assert moved.names == ("cow", "cat")
    assert moved.dense().tolist() == DENSE[:, [2, 0]].tolist()
    assert moved.splits is whole.splits
    assert whole.reorder(whole.names) is whole


def test_reorder_names_missing_labels_and_the_source() -> None:
    with pytest.raises(LabelError, match=r"test\.csv has no column for 2 of 3 labels: owl, bat"):
        full_table_of_everything().reorder(["owl", "cat", "bat"], source="test.csv")


@given(any_labels())
def test_counts(labels: np.ndarray) -> None:
    made = table(labels)
    for axis, counts in ((0, made.counts_by_label()), (1, made.counts_by_image())):
        for value, count in zip((1, 0, -1), counts, strict=True):
            assert count.tolist() == (labels == value).sum(axis=axis).tolist()


# Hash


def test_hash_is_the_same_for_ever() -> None:
    literal = "93a830f80bea17abb1ed4fe0ed4221ae3e5c83b5259906bb7475bb0c8aa30085"
    assert full_table_of_everything().content_hash == literal


def test_hash_is_that_of_the_documented_bytes() -> None:
    text = b"partly label table 1\0" + b"cat\0dog\0cow\0\0" + b"a\0b\0c\0d\0\0"
    numbers = (
        np.array([0, 2, 2, 5, 6], "<i8").tobytes()
        + np.array([0, 2, 0, 1, 2, 1], "<i4").tobytes()
        + bytes([1, 0, 0, 1, 1, 0])
    )
    expected = hashlib.sha256(text + numbers).hexdigest()
    assert full_table_of_everything().content_hash == expected


def test_hash_changes_with_whatever_changes() -> None:
    def changed(row: int, column: int, value: int) -> np.ndarray:
        values = DENSE.copy()
        values[row, column] = value
        return values

    ids, names = ["a", "b", "c", "d"], ["cat", "dog", "cow"]
    hashes = [
        made.content_hash
        for made in (
            table(ids=ids, names=names),
            table(ids=["a", "b", "c", "e"], names=names),
            table(ids=["b", "a", "c", "d"], names=names),
            table(ids=ids, names=["cat", "dog", "owl"]),
            table(ids=ids, names=["dog", "cat", "cow"]),
            table(ids=ids, names=["ca", "tdog", "cow"]),
            table(changed(0, 0, 0), ids=ids, names=names),
            table(changed(0, 0, -1), ids=ids, names=names),
            table(changed(1, 1, 1), ids=ids, names=names),
            table(DENSE[::-1], ids=ids, names=names),
        )
    ]
    assert len(set(hashes)) == len(hashes)


@given(any_labels(3), any_labels(3))
def test_hash_tells_label_matrices_apart(one: np.ndarray, other: np.ndarray) -> None:
    same = one.shape == other.shape and bool((one == other).all())
    assert (table(one).content_hash == table(other).content_hash) == same


def test_hash_does_not_see_memory_layout() -> None:
    wide = np.full((4, 6), 9, dtype=np.int64)
    wide[:, ::2] = DENSE
    kept = table(np.concatenate([DENSE, DENSE])).take(np.arange(4))
    layouts = [DENSE, np.asfortranarray(DENSE), wide[:, ::2], DENSE.astype(float), DENSE.tolist()]
    assert {table(values).content_hash for values in layouts} == {kept.content_hash}
    entries = {
        "indptr": kept.indptr.astype(np.int32),
        "indices": np.repeat(kept.indices, 2)[::2],
        "values": kept.values.astype(np.int64),
    }
    rebuilt = LabelTable(ids=kept.ids, names=kept.names, **entries)
    assert rebuilt.content_hash == kept.content_hash


# What a table refuses


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"ids": ["a", "b", "a", "c"]}, "1 image ids occur more than once: a"),
        ({"ids": [1, "1", 2, 3]}, "1 image ids occur more than once: 1"),
        ({"ids": ["a", "", "b", "c"]}, "image id number 1 is empty"),
        ({"names": ["cat", "cat", "dog"]}, "1 label names occur more than once: cat"),
        ({"names": ["cat", "", "dog"]}, "label name number 1 is empty"),
        ({"paths": np.array(["a.jpg"])}, "1 paths for 4 images"),
        ({"splits": np.array(["train"] * 5)}, "5 splits for 4 images"),
        ({"splits": np.array(["train", "val", "test", "test"])}, "not 'val'"),
        ({"features": np.zeros((3, 2))}, "features of shape"),
        ({"features": np.zeros(4)}, "features of shape"),
        ({"features": np.array([[0], [NAN], [0], [np.inf]])}, "of 2 images are not finite: 1, 3"),
        ({"features": np.array([[1, 1], [2, 2], [np.inf, -np.inf], [3, 3]])}, "not finite: 2"),
        ({"features": np.array([["a"]] * 4)}, "features"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_table_refuses(more: dict, sentence: str) -> None:
    with pytest.raises(LabelError, match=sentence) as caught:
        table(**more)
    assert len(caught.value.problems) == 1


# The last row and column hold no known label, so nothing but the count can tell.
@pytest.mark.parametrize(
    "more",
    [
        {"ids": ["a", "b", "c"]},
        {"ids": ["a", "b", "c", "d", "e"]},
        {"names": ["cat", "dog"]},
        {"names": ["cat", "dog", "cow", "owl"]},
    ],
)
def test_one_id_a_row_and_one_name_a_column(more: dict) -> None:
    values = np.array([[1, 0, -1], [0, 1, -1], [0, 0, -1], [-1, -1, -1]])
    with pytest.raises(LabelError, match=r"ids|names"):
        table(values, **more)


def test_strange_values_beyond_the_given_ids_are_still_a_label_error() -> None:
    with pytest.raises(LabelError):
        table([[1, 0], [0, 2]], ids=["a"])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_an_empty_table_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(LabelError, match="the table is empty"):
        table(np.zeros(shape))


def test_all_faults_come_in_one_error() -> None:
    with pytest.raises(LabelError) as caught:
        table(
            ids=["a", "a", "", "b"],
            names=["cat", "cat", "dog"],
            paths=np.array(["a.jpg"]),
            features=np.array([[0], [NAN], [0], [0]]),
            splits=np.array(["train", "tset", "test"]),
        )
    assert len(caught.value.problems) == 7


@pytest.mark.parametrize(
    ("values", "sentences"),
    [
        ([[1], [0]], ["only one label ('label 0')"]),
        ([[-1, -1], [-1, -1]], ["every label is unknown"]),
        ([[0, -1], [-1, 0]], ["no label is known to be positive"]),
        ([[-1], [-1]], ["only one label", "every label is unknown"]),
    ],
)
def test_check_trainable_says_what_is_missing(values: list, sentences: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        check_trainable(table(values, features=np.zeros((2, 1))))
    assert len(caught.value.problems) == len(sentences)
    assert all(sentence in str(caught.value) for sentence in sentences)


def test_check_trainable_wants_something_to_look_at() -> None:
    with pytest.raises(DataError, match="neither image paths nor features"):
        check_trainable(table())
    check_trainable(table(features=np.zeros((4, 1))))
    check_trainable(table(paths=np.array(["a", "b", "c", "d"])))


def test_what_people_were_asked_about_stays_marked_and_can_be_left_out() -> None:
    made = table()
    asked = np.array([False, False, True, True, True, False])
    marked = replace(made, asked=asked)
    rows, columns = made.rows[asked], made.indices[asked]
    cells = {(int(row), int(column)) for row, column in zip(rows, columns, strict=True)}

    def asked_in(some: LabelTable, rows: list[int]) -> set[tuple[int, int]]:
        assert some.asked is not None
        places = zip(some.rows[some.asked], some.indices[some.asked], strict=True)
        return {(rows[row], int(column)) for row, column in places}

    assert asked_in(marked.take(np.array([3, 0, 2])), [3, 0, 2]) == {c for c in cells if c[0] != 1}
    assert asked_in(marked.take(np.array([1, 2])), [1, 2]) == {c for c in cells if c[0] in (1, 2)}
    assert asked_in(marked.keep(marked.values == 1), [0, 1, 2, 3]) == {
        cell for cell in cells if DENSE[cell] == 1
    }
    turned = marked.reorder([made.names[2], made.names[0]])
    assert asked_in(turned, [0, 1, 2, 3]) == {
        (row, {2: 0, 0: 1}[column]) for row, column in cells if column != 1
    }
    # Of the last two labels no other positive is known: there, all that is known stays.
    assert marked.drawn().dense().tolist() == [[1, -1, 0], [-1, -1, -1], [-1, 1, 1], [-1, 0, -1]]
    assert made.drawn() is made
    with pytest.raises(LabelError, match="1 marks of asked entries"):
        replace(made, asked=asked[:1])
