"""What images add to positives alone: how many of the positives are known."""

from functools import partial

import numpy as np
import pytest

from builders import feature_table
from partly import Config, counting, hide, train
from partly.labels import LabelTable

PLAN = Config(epochs=10, hold_out=0.0, options={"teacher": "self", "focus": 0.0})
LEARN = partial(train, config=PLAN, quiet=True)


def unclear_table(images: int = 20_000) -> LabelTable:
    """Rare labels, some far likelier than others, but hardly one of them beyond doubt."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(images, 6)).astype(np.float32)
    logits = 1.5 * features[:, :4] - 4.5
    labels = generator.random(logits.shape) < 1 / (1 + np.exp(-logits))
    return LabelTable.from_dense(labels.astype(np.int8), features=features)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_clear_images_tell_the_share(share: float) -> None:
    table = hide(feature_table(3000), f"ppl:{share}")
    assert counting.guess_share(table, LEARN) == pytest.approx(share, rel=0.3)


@pytest.mark.parametrize(("table", "share"), [(feature_table(3000), 0.1), (unclear_table(), 0.5)])
def test_few_known_positives_or_unclear_images(table: LabelTable, share: float) -> None:
    """They cannot be told apart: the guess lies between what is said and a half."""
    found = counting.guess_share(hide(table, f"ppl:{share}"), LEARN)
    assert 0.15 < found < 0.4


def test_one_positive_of_each_image() -> None:
    full = feature_table(3000)
    share = 1 / full.counts_by_image().positive[full.counts_by_image().positive > 0].mean()
    assert counting.guess_share(hide(full, "spl"), LEARN) == pytest.approx(share, rel=0.35)


def test_too_few_positives_do_not_tell() -> None:
    def fail(table: LabelTable) -> None:
        raise AssertionError("learnt")

    table = hide(feature_table(3000), "ppl:0.02")
    assert 0 < (table.values == 1).sum() < counting.FEW
    assert counting.guess_share(table, fail) is None


def test_a_half_without_positives_does_not_tell() -> None:
    labels = np.full((400, 2), -1, np.int8)
    labels[:150] = 1
    table = LabelTable.from_dense(labels, features=np.zeros((400, 3), np.float32))
    assert counting.guess_share(table, LEARN) is None


def test_the_labels_with_most_positives_are_looked_at() -> None:
    labels = np.array([[1, -1, 1, -1], [-1, -1, 1, 1], [-1, -1, -1, 1]], dtype=np.int8)
    found = counting.frequent_labels(LabelTable.from_dense(labels), 2)
    assert found.tolist() == [[1, 0], [1, 1], [0, 1]]


def test_the_surest_tenth_counts() -> None:
    doubtful = np.zeros(79)
    assert counting.share_of_sure(np.append(doubtful, np.full(21, 0.6))) == pytest.approx(0.6)
    assert counting.share_of_sure(np.append(doubtful, np.full(21, 0.02))) == pytest.approx(0.1)
    assert counting.share_of_sure(np.full(10, 1.0)) == 1.0
