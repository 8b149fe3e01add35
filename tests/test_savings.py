"""Labels saved: lines between what was measured, and not a word beyond them."""

from typing import Any

import numpy as np
import pytest

from partly.savings import Needed, Savings, needed, percent, range_of, savings_of, sentence


def results_of(scores: dict[str, dict[str, list[float | None]]], **more: Any) -> dict[str, Any]:
    """Results with these mAPs: {method: {setting: one a seed}}; `bce` is the reference."""
    settings = list(dict.fromkeys(s for method in scores.values() for s in method))
    runs = [
        {"method": method, "setting": setting, "seed": seed, "mAP": score}
        for method, found in scores.items()
        for setting, values in found.items()
        for seed, score in reversed(list(enumerate(values)))  # in any order
    ]
    return {
        "methods": [{"name": name, "reference": name == "bce"} for name in scores],
        "settings": settings,
        "seeds": list(range(max(len(v) for found in scores.values() for v in found.values()))),
        "runs": runs,
        **more,
    }


GOOD = {"pal:0.3": [0.50, 0.52], "pal:0.6": [0.60, 0.62], "pal:0.9": [0.64, 0.66]}
POOR = {"pal:0.3": [0.30, 0.30], "pal:0.6": [0.45, 0.45], "pal:0.9": [0.56, 0.56]}


def only(scores: dict[str, dict[str, list[float | None]]], **more: Any) -> Savings:
    (found,) = savings_of(results_of(scores, **more))
    return found


def test_a_share_lies_where_the_line_crosses_the_level():
    shares, scores = [0.1, 0.4, 0.5, 1.0], [0.2, 0.5, 0.4, 0.7]
    for level in np.linspace(0.2001, 0.7, 40):
        found = needed(shares, scores, level)
        assert not found.at_most
        assert np.interp(found.share, shares, scores) == pytest.approx(level)
        below = np.linspace(0.1, found.share - 1e-6, 200)
        assert (np.interp(below, shares, scores) < level).all()  # the first crossing


def test_nothing_is_said_beyond_what_was_measured():
    assert needed([0.3, 0.6], [0.5, 0.6], 0.6001) == Needed(None)
    assert needed([0.3, 0.6], [0.5, 0.6], 0.4) == Needed(0.3, at_most=True)
    assert needed([0.3, 0.6], [0.5, 0.6], 0.5) == Needed(0.3, at_most=True)
    assert needed([0.3, 0.6], [0.5, 0.6], 0.6) == Needed(0.6)


def test_what_the_best_method_needs():
    found = only({"poor": POOR, "good": GOOD})
    assert found.best.method == "good"
    assert [(s.other.method, s.share, s.needed.at_most) for s in found.savings] == [
        ("poor", 0.3, True),
        ("poor", 0.6, True),
        ("poor", 0.9, False),
    ]
    last = found.savings[-1]
    assert last.needed.share == pytest.approx(0.3 + 0.3 * (0.56 - 0.51) / 0.10)
    assert [seed.share for seed in last.by_seed] == pytest.approx([0.48, 0.42])
    assert sentence(last, found.best, "pal") == (
        "good needs 45 % of the labels for what poor reaches with 90 % (56.0); over 2 seeds 42 to "
        "48 %."
    )
    assert sentence(found.savings[0], found.best, "pal") == (
        "good with 30 % of the labels, the least measured, is not below what poor reaches with "
        "30 % (30.0)."
    )


def test_what_is_not_reached_is_said():
    found = only({"bce": {"fal": [0.7, 0.7]}, "good": GOOD})
    (against,) = found.savings
    assert sentence(against, found.best, "pal") == (
        "good does not reach what bce reaches with full labels (70.0): it comes to 65.0."
    )
    found = only({"bce": {"fal": [0.65, 0.65]}, "good": GOOD})
    assert sentence(found.savings[0], found.best, "pal").endswith("; 1 of 2 seeds reach it.")


def test_one_seed_has_no_range():
    one = {name: values[:1] for name, values in GOOD.items()}
    poor = {name: values[:1] for name, values in POOR.items()}
    found = only({"poor": poor, "good": one})
    last = found.savings[-1]
    assert sentence(last, found.best, "pal").endswith("with 90 % (56.0).")
    assert found.best.deviations == [0.0, 0.0, 0.0]


def test_fal_is_all_labels_of_pal_and_not_of_ppl():
    scores = {"pal:0.3": [0.5], "fal": [0.7], "ppl:0.3": [0.4], "ppl:0.6": [0.5], "spl": [0.3]}
    pal, ppl = savings_of(results_of({"good": scores}))
    assert (pal.kind, pal.best.shares) == ("pal", [0.3, 1.0])
    assert (ppl.kind, ppl.best.shares) == ("ppl", [0.3, 0.6])
    assert pal.savings == ppl.savings == []


def test_a_share_of_which_a_seed_diverged_or_is_missing_does_not_count():
    broken = {"pal:0.3": [0.9, None], "pal:0.6": [0.5, 0.5], "pal:0.9": [0.55]}
    found = only({"broken": broken, "good": GOOD})
    curve = next(curve for curve in found.curves if curve.method == "broken")
    assert curve.shares == [0.6]
    assert [saving.share for saving in found.savings] == [0.6]


def test_a_method_with_fewer_shares_is_not_the_best():
    high = {"pal:0.6": [0.9, 0.9], "pal:0.9": [0.9, 0.9]}
    found = only({"high": high, "good": GOOD})
    assert found.best.method == "good"
    assert all(saving.needed.share is None for saving in found.savings)


@pytest.mark.parametrize(
    "results",
    [
        results_of({"good": {"pal:0.3": [0.5]}, "poor": {"pal:0.3": [0.4]}}),
        results_of({"good": {"spl": [0.5], "fal": [0.6]}}),
        results_of({"good": GOOD}, whole="good"),  # an ablation
        results_of({"good": GOOD}) | {"runs": []},
    ],
)
def test_where_there_is_nothing_to_say_nothing_is_said(results):
    assert savings_of(results) == []


def test_in_words():
    assert [percent(share) for share in (0.3, 1.0, 0.345, 0.05, 0.0123)] == [
        "30 %", "100 %", "34 %", "5 %", "1.2 %"
    ]  # fmt: skip
    assert range_of([Needed(0.3, True), Needed(0.34)]) == "30 to 34 %"
    assert range_of([Needed(0.341), Needed(0.342)]) == "34 %"
    assert range_of([Needed(0.3, True), Needed(0.3, True)]) == ""
    assert range_of([Needed(0.3), Needed(None)]) == ""
