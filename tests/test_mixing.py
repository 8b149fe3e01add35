"""Mixed images: what they look like, what is known of them, what a method remembers."""

import numpy as np
import pytest
import torch

from partly import losses, mixing
from partly.labels import UNKNOWN
from partly.methods import Batch
from partly.pseudo import PseudoLabels

ROWS = torch.arange(100, 164)


def labels_of(seed: int = 0, shape: tuple[int, int] = (64, 9)) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(-1, 2, shape).astype(np.int8))


def mixed(kind: str, labels: torch.Tensor, seed: int = 0, epoch: int = 1):
    return mixing.mix(kind, labels, seed=seed, epoch=epoch, rows=ROWS[: len(labels)])


def batch_that(kind: str, labels: torch.Tensor, is_mixed: bool):
    """The first draw of MixUp-PME that mixes its batch, or that does not."""
    for epoch in range(1, 50):
        mixture, targets = mixed(kind, labels, epoch=epoch)
        if bool(mixture.untouched.all()) != is_mixed:
            return mixture, targets
    raise AssertionError("no such batch in 50 epochs")


def test_logicmix_follows_its_rule_entry_by_entry():
    labels = labels_of()
    mixture, ((weight, combined),) = mixed("logicmix", labels)
    assert weight == 1.0
    for image in range(len(labels)):
        parts = [int(mixture.parts[k, image]) for k in range(3) if mixture.shares[k, image] > 0]
        assert parts[0] == image
        assert len(set(parts)) == len(parts)
        for label in range(labels.shape[1]):
            known = [int(labels[part, label]) for part in parts]
            expected = 1 if 1 in known else 0 if set(known) == {0} else -1
            assert combined[image, label] == expected
    counts = (mixture.shares > 0).sum(dim=0).tolist()
    assert {1, 2, 3} == set(counts)
    assert 0.3 < np.mean(np.array(counts) == 1) < 0.7


def test_logicmix_is_the_mean_of_its_parts():
    inputs = torch.randn(64, 3, 4, 4)
    mixture, _ = mixed("logicmix", labels_of())
    for image, result in enumerate(mixture.inputs(inputs)):
        parts = [int(mixture.parts[k, image]) for k in range(3) if mixture.shares[k, image] > 0]
        torch.testing.assert_close(result, inputs[parts].mean(dim=0))


def test_logicmix_makes_known_labels_out_of_few():
    """Three images with a positive each: any mixture of two knows two positives."""
    labels = torch.full((64, 64), UNKNOWN, dtype=torch.int8)
    labels.fill_diagonal_(1)
    mixture, ((_, combined),) = mixed("logicmix", labels)
    parts = (mixture.shares > 0).sum(dim=0)
    assert (combined == 1).sum(dim=1).tolist() == parts.tolist()


def test_mixup_pme_is_bce_on_mixed_targets_where_the_first_label_is_known():
    labels = labels_of(1)
    logits = torch.randn(labels.shape, dtype=torch.float64)
    mixture, targets = batch_that("mixup-pme", labels, is_mixed=True)
    loss = sum(weight * losses.ign(logits, hard) for weight, hard in targets)

    share = float(mixture.shares[0, 0])
    assert 0.5 <= share < 1
    first = labels.double()
    second = labels[mixture.parts[1]].double()
    second[second == UNKNOWN] = 0.5
    target = share * first + (1 - share) * second
    terms = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    expected = torch.where(labels == UNKNOWN, 0.0, terms).mean()
    torch.testing.assert_close(loss, expected)


def test_mixup_pme_mixes_half_of_the_batches():
    labels = labels_of()
    states = [bool(mixed("mixup-pme", labels, epoch=e)[0].untouched.all()) for e in range(60)]
    assert 15 < sum(states) < 45
    mixture, ((weight, same),) = batch_that("mixup-pme", labels, is_mixed=False)
    inputs = torch.randn(64, 5)
    assert weight == 1.0
    assert (same == labels).all()
    torch.testing.assert_close(mixture.inputs(inputs), inputs)


@pytest.mark.parametrize("kind", ["logicmix", "mixup-pme"])
def test_what_is_mixed_follows_from_seed_epoch_and_row(kind):
    labels = labels_of()
    one = mixed(kind, labels)[0]
    assert (one.parts == mixed(kind, labels)[0].parts).all()
    assert (one.parts != mixed(kind, labels, seed=1)[0].parts).any()
    assert (one.parts != mixed(kind, labels, epoch=2)[0].parts).any()


@pytest.mark.parametrize("kind", ["logicmix", "mixup-pme"])
def test_a_batch_of_one_image_stays_what_it_is(kind):
    inputs, labels = torch.randn(1, 3), labels_of(shape=(1, 4))
    for epoch in range(1, 10):
        mixture, targets = mixed(kind, labels, epoch=epoch)
        assert (targets[0][1] == labels).all()
        torch.testing.assert_close(mixture.inputs(inputs), inputs)


def test_beliefs_about_a_mixture_follow_from_its_parts():
    """An unknown label of a LogicMix holds unless all parts lack it."""
    labels = labels_of()
    store = PseudoLabels(200, 9)
    store.update(ROWS, torch.rand(64, 9))
    mixture, ((_, combined),) = mixed("logicmix", labels)
    batch = Batch(ROWS, combined, 1, mixture, labels)
    recalled = batch.recall(store)
    own = torch.where(labels == UNKNOWN, store.get(ROWS), labels.float())
    for image in range(64):
        parts = [int(mixture.parts[k, image]) for k in range(3) if mixture.shares[k, image] > 0]
        expected = store.get(ROWS)[image] if len(parts) == 1 else 1 - (1 - own[parts]).prod(dim=0)
        torch.testing.assert_close(recalled[image], expected)


def test_a_mixed_image_is_not_remembered():
    labels = labels_of()
    store = PseudoLabels(200, 9, start=0.25)
    mixture, ((_, combined),) = mixed("logicmix", labels)
    batch = Batch(ROWS, combined, 1, mixture, labels)
    batch.remember(store, torch.ones(64, 9))
    alone = mixture.untouched[:, 0]
    assert 0 < alone.sum() < 64
    assert (store.get(ROWS)[alone] == 1).all()
    assert (store.get(ROWS)[~alone] == 0.25).all()
