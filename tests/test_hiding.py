"""Hiding labels: the definition of every setting, the draws, and the published split."""

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.stats import chisquare

from partly.errors import ConfigError
from partly.hiding import REFERENCE_SEED, Setting, describe, hide
from partly.labels import LabelTable

ALL = ("fal", "pal:0.3", "ppl:0.6", "spl", "spl-reference")
PATTERN = (np.arange(48).reshape(6, 8) * 7 % 11 % 3).astype(np.int8) - 1


def any_labels() -> st.SearchStrategy[np.ndarray]:
    shapes = array_shapes(min_dims=2, max_dims=2, max_side=7)
    return arrays(np.int8, shapes, elements=st.integers(-1, 1))


def assert_share(kept: np.ndarray, expected: float) -> None:
    """The share of true entries lies within five standard deviations of `expected`."""
    spread = np.sqrt(expected * (1 - expected) / kept.size)
    assert abs(kept.mean() - expected) < 5 * spread


# What each setting keeps


@given(any_labels(), st.sampled_from(ALL), st.integers(-(2**40), 2**40))
def test_whatever_the_labels(labels: np.ndarray, setting: str, seed: int) -> None:
    seed = abs(seed) % 2**32 if setting == "spl-reference" else seed
    before, table = labels.copy(), LabelTable.from_dense(labels)
    hidden = hide(labels, setting, seed=seed)
    assert (labels == before).all()
    assert hidden.dtype == np.int8
    assert ((hidden == labels) | (hidden == -1)).all()
    assert (hide(table, setting, seed=seed).dense() == hidden).all()
    assert (table.dense() == before).all()
    if setting != "fal" and not setting.startswith("pal"):
        assert (hidden != 0).all()
    if setting.startswith("spl"):
        assert ((hidden == 1).sum(axis=1) == (labels == 1).any(axis=1)).all()


def test_fal_keeps_everything(full_labels: np.ndarray) -> None:
    assert (hide(full_labels, "fal") == full_labels).all()


@pytest.mark.parametrize("keep", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("seed", [0, 1])
def test_pal_keeps_positives_and_negatives_alike(
    full_labels: np.ndarray, keep: float, seed: int
) -> None:
    known = hide(full_labels, "pal", keep=keep, seed=seed) != -1
    for part in (known, known[full_labels == 1], known[full_labels == 0], known[:50], known[:, :1]):
        assert_share(part, keep)
    for axis in (0, 1):  # no image and no label is favoured
        kept = known.sum(axis=axis)
        spread = np.sqrt(known.shape[axis] * keep * (1 - keep))
        assert 0.75 < kept.std() / spread < 1.25


@pytest.mark.parametrize("keep", [0.2, 0.6])
def test_ppl_keeps_a_share_of_the_positives_only(full_labels: np.ndarray, keep: float) -> None:
    hidden = hide(full_labels, "ppl", keep=keep, seed=3)
    assert_share(hidden[full_labels == 1] == 1, keep)
    assert (hidden[full_labels == 0] == -1).all()


def test_everything_is_kept_at_share_1(full_labels: np.ndarray) -> None:
    assert (hide(full_labels, "pal", keep=1) == full_labels).all()
    assert (hide(full_labels, "ppl:1") == np.where(full_labels == 1, 1, -1)).all()


@pytest.mark.parametrize("setting", ["spl", "spl-reference"])
def test_spl_chooses_among_the_positives_evenly(setting: str) -> None:
    labels = np.tile(np.array([0, 1, -1, 1, 0, 1, 1], dtype=np.int8), (4000, 1))
    chosen = (hide(labels, setting, seed=5) == 1).sum(axis=0)
    assert chosen[[0, 2, 4]].sum() == 0
    assert chisquare(chosen[[1, 3, 5, 6]]).pvalue > 1e-3


def test_describe_counts_images_without_positives() -> None:
    full = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [-1, -1, -1, -1]])
    hidden = hide(LabelTable.from_dense(full), "spl")
    assert describe(hidden) == (
        "4 images × 4 labels: 2 known positives, 0 known negatives, 87.5 % unknown; "
        "2 images have no known positive, 2 no known label at all; "
        "3 labels have no known positive: label 0, label 2, label 3"
    )
    assert "2 images have no known positive, 1 no known label" in describe(
        LabelTable.from_dense(full)
    )


# The draws


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("pal:0.5", "?0?0???1 ?1??0?0? 1?10???0 ?0?1?10? 0???0?1? ?010?0?0"),
        ("ppl:0.5", "???????1 ?1?????? 1?1????? ???1?1?? ??????1? ??1?????"),
        ("spl", "???????1 ?1?????? 1??????? ???1???? ??????1? ??1?????"),
        ("spl-reference", "?????1?? ?1?????? ????1??? ???????1 ??????1? ??1?????"),
    ],
)
def test_the_same_everywhere(setting: str, expected: str) -> None:
    """Literal results: a platform or a version that draws otherwise fails here."""
    rows = hide(PATTERN, setting, seed=7)
    assert " ".join("".join("?01"[value + 1] for value in row) for row in rows) == expected


def test_the_same_everywhere_at_length() -> None:
    labels = (np.arange(500 * 30).reshape(500, 30) ** 2 % 17 % 2).astype(np.int8)
    hashes = [hide(LabelTable.from_dense(labels), s, seed=2**33).content_hash for s in ALL[1:4]]
    assert [text[:16] for text in hashes] == [
        "0defecad9ecb357d",
        "7a30962c4ac8a91f",
        "71684a55b3002e44",
    ]


@pytest.mark.parametrize("setting", ALL[1:])
def test_seeds_differ_and_repeat(full_labels: np.ndarray, setting: str) -> None:
    one, again, other = (hide(full_labels, setting, seed=seed) for seed in (0, 0, 1))
    assert (one == again).all()
    assert (one != other).any(axis=0)[:10].all()


@pytest.mark.parametrize("setting", ["pal:0.3", "ppl:0.6"])
def test_a_draw_depends_on_its_own_cell_only(full_labels: np.ndarray, setting: str) -> None:
    whole = hide(full_labels, setting, seed=4)
    assert (hide(full_labels[:70], setting, seed=4) == whole[:70]).all()
    assert (hide(full_labels[:, :9], setting, seed=4) == whole[:, :9]).all()
    forgotten = np.arange(full_labels.size).reshape(full_labels.shape) % 3 == 0
    partly_known = np.where(forgotten, np.int8(-1), full_labels)
    assert (hide(partly_known, setting, seed=4) == np.where(forgotten, -1, whole)).all()


def test_spl_of_a_row_depends_on_that_row_only(full_labels: np.ndarray) -> None:
    changed = full_labels.copy()
    changed[10] = 1 - changed[10]
    same = np.arange(len(changed)) != 10
    assert (hide(changed, "spl")[same] == hide(full_labels, "spl")[same]).all()


# The reference split


def reference_single(labels: np.ndarray, ids: Sequence[Any], seed: int) -> np.ndarray:
    """One positive an image, written from its description alone."""
    generator = np.random.RandomState(seed)
    observed = np.full_like(labels, -1)
    for row in sorted(range(len(ids)), key=lambda row: str(ids[row])):
        present = [column for column, value in enumerate(labels[row]) if value == 1]
        absent = [column for column, value in enumerate(labels[row]) if value == 0]
        generator.shuffle(present)
        generator.shuffle(absent)
        observed[row, present[:1]] = 1
    return observed


@pytest.mark.parametrize("seed", [0, REFERENCE_SEED])
def test_spl_reference_draws_as_the_reference_does(full_labels: np.ndarray, seed: int) -> None:
    labels = full_labels[:400]
    ids = np.random.default_rng(1).permutation(2000)[:400]  # "1000" comes before "7"
    table = LabelTable.from_dense(labels, ids=ids)
    expected = reference_single(labels, ids.tolist(), seed)
    assert (hide(table, "spl-reference", seed=seed).dense() == expected).all()


def test_spl_reference_on_coco(coco_features: Any) -> None:
    with np.load(coco_features) as file:
        ids, packed = file["ids_train"], file["Y_train"]
    # The generator walks through the ids in their order as strings: the first 60 suffice.
    first = np.argsort(ids.astype(str))[:60][::-1]
    labels = np.unpackbits(packed[first], axis=1)[:, :80]
    table = LabelTable.from_dense(labels, ids=ids[first])
    hidden = hide(table, "spl-reference", seed=REFERENCE_SEED)
    single = dict(zip(hidden.ids[hidden.rows].tolist(), hidden.indices.tolist(), strict=True))
    assert len(single) == 60
    assert (single["100012"], single["100014"], single["100020"]) == (0, 14, 0)


# Settings as text


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("pal:0.3", Setting("pal", 0.3)),
        (" PAL_0.3 ", Setting("pal", 0.3)),
        ("ppl:1", Setting("ppl", 1.0)),
        ("ppl:1e-3", Setting("ppl", 0.001)),
        ("FAL", Setting("fal")),
        ("spl", Setting("spl")),
        ("spl-reference", Setting("spl-reference")),
    ],
)
def test_parse(text: str, setting: Setting) -> None:
    assert Setting.parse(text) == setting
    assert Setting.parse(str(setting)) == setting


@given(st.floats(0, 1, exclude_min=True), st.sampled_from(["pal", "ppl"]))
def test_a_setting_survives_its_text(keep: float, name: str) -> None:
    assert Setting.parse(str(Setting(name, keep))) == Setting(name, keep)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "unknown setting ''"),
        ("pul:0.3", "choose one of fal, pal, ppl, spl, spl-reference"),
        ("pal", "needs the share to keep"),
        ("ppl:", "needs the share to keep"),
        ("spl:0.3", "takes no share"),
        ("fal_1", "takes no share"),
        ("pal:0", r"in \(0, 1\], not 0"),
        ("pal:1.01", r"in \(0, 1\], not 1.01"),
        ("pal:-0.5", r"in \(0, 1\]"),
        ("pal:nan", r"in \(0, 1\]"),
        ("pal:some", "pal:some"),
        ("pal:0.3:0.4", "pal:0.3:0.4"),
    ],
)
def test_parse_refuses(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Setting.parse(text)


def test_hide_refuses_what_parse_refuses() -> None:
    for setting, keep in (("pal", 1.5), ("spl", 0.5), ("some", 0.5), ("pal", None)):
        with pytest.raises(ConfigError):
            hide(PATTERN, setting, keep=keep)


# Scale


@pytest.mark.parametrize("setting", ["pal:0.3", "ppl:0.6", "spl"])
def test_a_large_table_is_never_made_dense(setting: str) -> None:
    images, labels, known = 200_000, 600, 3
    rows = np.repeat(np.arange(images), known)
    columns = (rows * 7 + np.tile([0, 200, 400], images)) % labels
    table = LabelTable.from_entries(
        rows, columns, np.tile([1, 0, 1], images), ids=np.arange(images), names=range(labels)
    )
    tracemalloc.start()
    hidden = hide(table, setting)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0 < hidden.known < table.known
    assert peak < images * labels / 3
