"""Pseudo-labels: the posterior update, the collapse it prevents, the audit."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from partly.labels import LabelTable
from partly.pseudo import PseudoLabels, audit, chance_of_single, hidden, posterior

# The posterior


PI = torch.tensor([0.001, 0.03, 0.2, 0.5, 0.9], dtype=torch.float64)
SITUATIONS = pytest.mark.parametrize(
    ("c_positive", "c_negative"),
    [(0.3, 0.3), (0.6, 0.0), (0.35, 0.0), (0.5, 0.2), (0.1, 0.7), (0.0, 0.5), (0.999, 0.5)],
)


def chance_unknown_is_positive(pi: Tensor, c_positive: float, c_negative: float) -> Tensor:
    """P(y = 1 | unknown), by Bayes."""
    return pi * (1 - c_positive) / (pi * (1 - c_positive) + (1 - pi) * (1 - c_negative))


def fitted_logits(
    pi: Tensor,
    believed: Tensor,
    *,
    c_positive: float,
    c_negative: float,
    ratio: float = 1.0,
    weight_known: float = 1.0,
    weight_unknown: float = 1.0,
) -> Tensor:
    """Where the weighted cross-entropy of infinitely many images alike is smallest."""
    unknown = pi * (1 - c_positive) + (1 - pi) * (1 - c_negative)
    for_positive = weight_known * c_positive * pi + weight_unknown * unknown * believed
    for_negative = weight_known * c_negative * (1 - pi) + weight_unknown * unknown * (1 - believed)
    return torch.log(ratio * for_positive / for_negative)


@SITUATIONS
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.95, 0.05), (0.6, 0.4)])
@pytest.mark.parametrize(("weight_known", "weight_unknown"), [(1, 1), (1, 0.1), (0.5, 2)])
def test_posterior_is_self_consistent(
    c_positive: float,
    c_negative: float,
    alpha: float,
    beta: float,
    weight_known: float,
    weight_unknown: float,
) -> None:
    """A model fitted with the right pseudo-labels gives the right pseudo-labels back; its logits
    are those of the formula in docs/paper.md."""
    situation = {
        "c_positive": c_positive,
        "c_negative": c_negative,
        "weight_known": weight_known,
        "weight_unknown": weight_unknown,
    }
    truth = chance_unknown_is_positive(PI, c_positive, c_negative)
    logits = fitted_logits(PI, truth, ratio=alpha / beta, **situation)
    tilt = (c_positive * weight_known + (1 - c_positive) * weight_unknown) / (
        c_negative * weight_known + (1 - c_negative) * weight_unknown
    )
    formula = torch.logit(PI) + np.log(alpha / beta) + np.log(tilt)
    assert torch.allclose(logits, formula)
    for a, b in ((alpha, beta), (torch.tensor(alpha), torch.tensor(beta))):
        believed = posterior(logits.requires_grad_(), alpha=a, beta=b, **situation)
        assert torch.allclose(believed.double(), truth, rtol=1e-4)
        assert not believed.requires_grad


def test_in_pal_only_the_imbalance_goes() -> None:
    logits = torch.linspace(-5, 5, 7)
    same = {"c_positive": 0.3, "c_negative": 0.3, "weight_unknown": 0.2}
    assert torch.allclose(posterior(logits, **same), torch.sigmoid(logits))
    tilted = posterior(logits + np.log(19), alpha=0.95, beta=0.05, **same)
    assert torch.allclose(tilted, torch.sigmoid(logits), rtol=1e-5)


@pytest.mark.parametrize("c_positive", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("c_negative", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("weight_unknown", [0.0, 1.0])
def test_posterior_is_a_probability_at_every_extreme(
    c_positive: float, c_negative: float, weight_unknown: float
) -> None:
    """No positive annotated, all of them, a part of no weight: a schedule may start there."""
    believed = posterior(
        torch.tensor([-1e4, 0.0, 1e4]),
        c_positive=c_positive,
        c_negative=c_negative,
        weight_unknown=weight_unknown,
    )
    assert torch.isfinite(believed).all()
    assert (believed.diff() >= 0).all()


@pytest.mark.parametrize(("c_positive", "c_negative"), [(0.3, 0.3), (0.6, 0.0), (0.35, 0.0)])
def test_the_literal_update_collapses_and_the_posterior_does_not(
    c_positive: float, c_negative: float
) -> None:
    """The paper's tilt (β = 0.05) fed back as the next target, 60 visits of perfect fitting."""
    situation = {"c_positive": c_positive, "c_negative": c_negative}
    truth = chance_unknown_is_positive(PI, c_positive, c_negative)
    rows = torch.tensor([0])
    for update in ("prediction", "posterior"):
        store = PseudoLabels(1, len(PI), start=0.5 * np.ones(len(PI)))
        for _ in range(60):
            logits = fitted_logits(PI, store.get(rows)[0].double(), ratio=19.0, **situation)
            fresh = torch.sigmoid(logits)
            if update == "posterior":
                fresh = posterior(logits, alpha=0.95, beta=0.05, **situation)
            store.update(rows, fresh[None].clamp(max=0.9995))  # float16 ends at 1, log at 0
        believed = store.get(rows)[0].double()
        if update == "prediction":
            assert (believed[1:] > 0.9).all()
        else:
            assert torch.allclose(believed, truth, atol=0.02)


# The audit


def audited(values: np.ndarray, known: LabelTable, truth: LabelTable, size: int) -> dict[str, Any]:
    """Of a whole table of pseudo-labels, so many images at a time."""
    parts = np.split(np.arange(len(known)), range(size, len(known), size))
    return audit((values[rows], hidden(known, truth, rows)) for rows in parts)


@pytest.mark.parametrize("size", [1, 2, 100])
def test_audit_by_hand(size: int) -> None:
    truth = LabelTable.from_dense([[1, 0, 1], [0, 1, -1], [1, 1, 1]])
    known = LabelTable.from_dense([[1, -1, -1], [-1, -1, -1], [-1, 1, -1]])
    values = np.array([[0.5, 0.2, 0.6], [0.9, 0.8, 0.5], [0.6, 0.5, 0.8]])
    # Hidden: column 0 rows 1, 2 (0, 1: ranked wrongly), column 1 rows 0, 1 (0, 1: rightly),
    # column 2 rows 0, 2 (both positive).
    result = audited(values, known, truth, size)
    by_label = result["by_label"]
    assert result["hidden_entries"] == 6
    assert by_label["average_precision"] == pytest.approx([0.5, 1, 1])
    assert result["mAP"] == pytest.approx(2.5 / 3)
    assert by_label["mean_absolute_error"] == pytest.approx([0.65, 0.2, 0.3])
    assert result["mean_absolute_error"] == pytest.approx((0.9 + 0.4 + 0.2 + 0.2 + 0.4 + 0.2) / 6)
    assert by_label["mean_pseudo_label"] == pytest.approx([0.75, 0.5, 0.7])
    assert result["mean_pseudo_label"] == pytest.approx(3.9 / 6)
    assert by_label["share_positive"] == pytest.approx([0.5, 0.5, 1])
    assert result["share_positive"] == pytest.approx(4 / 6)


def test_audit_where_nothing_is_hidden_or_no_positive_is() -> None:
    truth = LabelTable.from_dense([[1, 0], [0, 0]])
    assert audited(np.zeros((2, 2)), truth, truth, 9) == {"hidden_entries": 0}
    result = audited(np.zeros((2, 2)), LabelTable.from_dense([[1, 0], [-1, -1]]), truth, 9)
    assert result["hidden_entries"] == 2
    assert result["mAP"] is None
    assert result["by_label"]["average_precision"] == [None, None]


def test_the_more_positives_an_image_has_the_smaller_the_chance_of_each() -> None:
    labels = torch.tensor([[1, -1, -1], [1, -1, -1]])
    logits = torch.tensor([[9.0, -9, -9], [9.0, 9, 9]])  # about one positive, and three
    chance = chance_of_single(logits, labels, torch.full((3,), 0.5))
    # In proportion 1 : 1/3, and 2 of 4 positives are known.
    assert chance.flatten().tolist() == pytest.approx([0.98, 1 / 3], abs=1e-2)
    alike = chance_of_single(torch.zeros(2, 3), labels, torch.full((3,), 0.4))
    assert alike.flatten().tolist() == pytest.approx([0.4, 0.4])


def test_a_chance_of_its_own_for_each_label_and_entry() -> None:
    logits = torch.tensor([[0.3, -1.2]])
    by_label = posterior(
        logits, c_positive=torch.tensor([0.2, 0.7]), c_negative=torch.tensor([0.0, 0.3])
    )
    for column, (above, below) in enumerate([(0.2, 0.0), (0.7, 0.3)]):
        alone = posterior(logits[:, column], c_positive=above, c_negative=below)
        assert by_label[:, column].item() == pytest.approx(alone.item())
