"""Labels saved: how few labels one method needs to do as well as another with more.

What enters: the results of a comparison. What leaves: for PAL and for PPL, mAP by the share of
labels that is known, and with which share the best method reaches what each other method reaches.
That share lies on the straight line between two that were measured, never beyond them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, stdev
from typing import NamedTuple

from partly.experiments import Results
from partly.hiding import Setting

KINDS = {"pal": "labels", "ppl": "positives"}  # what the share of a setting is a share of


@dataclass(frozen=True)
class Curve:
    """mAP of a method: `scores`, a list a share, each with one score a seed, seeds in order.

    A reference has seen all labels, whatever the setting: it has one share, 1.
    """

    method: str
    shares: list[float]
    scores: list[list[float]]
    reference: bool = False

    @property
    def means(self) -> list[float]:
        return [mean(scores) for scores in self.scores]

    @property
    def deviations(self) -> list[float]:
        return [stdev(scores) if len(scores) > 1 else 0.0 for scores in self.scores]

    def of_seeds(self) -> list[list[float]]:
        """The scores of each seed, a list in the order of the shares."""
        return [list(scores) for scores in zip(*self.scores, strict=True)]


class Needed(NamedTuple):
    """The share of labels with which a level is reached: None where no measured share reaches it.

    at_most: the smallest share that was measured is above the level already.
    """

    share: float | None
    at_most: bool = False


@dataclass(frozen=True)
class Saving:
    """What the best method needs for what another reaches with `share`."""

    other: Curve
    share: float
    needed: Needed  # by the means over seeds
    by_seed: list[Needed]

    @property
    def with_labels(self) -> str:
        """How many labels the other has seen."""
        return "full labels" if self.other.reference else percent(self.share)


@dataclass(frozen=True)
class Savings:
    """kind: pal or ppl. curves: of every method, the best first. savings: of all the others."""

    kind: str
    curves: list[Curve]
    savings: list[Saving]

    @property
    def best(self) -> Curve:
        return self.curves[0]


def savings_of(results: Results) -> list[Savings]:
    """What can be said of each kind of setting; nothing of one with fewer than two shares, nor of
    an ablation."""
    if results.get("whole"):
        return []
    return [found for kind in KINDS if (found := _savings(results, kind)) is not None]


def needed(shares: Sequence[float], scores: Sequence[float], level: float) -> Needed:
    """The smallest share, ascending, at which scores reach a level, on the lines between them.

    >>> round(needed([0.3, 0.6, 0.9], [0.5, 0.6, 0.65], 0.55).share, 3)
    0.45
    """
    if scores[0] >= level:
        return Needed(shares[0], at_most=True)
    for (near, low), (far, high) in pairwise(zip(shares, scores, strict=True)):
        if high >= level:
            return Needed(near + (far - near) * (level - low) / (high - low))
    return Needed(None)


def sentence(saving: Saving, best: Curve, kind: str) -> str:
    """`partly needs 34 % of the labels for what an reaches with 60 %`, with what the seeds say."""
    what, other = KINDS[kind], saving.other
    level = f"{100 * other.means[other.shares.index(saving.share)]:.1f}"
    reached = f"{other.method} reaches with {saving.with_labels} ({level})"
    if saving.needed.share is None:
        top = f"{100 * max(best.means):.1f}"
        return f"{best.method} does not reach what {reached}: it comes to {top}."
    share = f"{percent(saving.needed.share)} of the {what}"
    if saving.needed.at_most:
        return f"{best.method} with {share}, the least measured, is not below what {reached}."
    seeds = _seeds_in_words(saving.by_seed)
    return f"{best.method} needs {share} for what {reached}{seeds}."


def percent(share: float) -> str:
    """0.345 as `34 %`; below a tenth with a digit more."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def range_of(by_seed: Iterable[Needed]) -> str:
    """`31 to 38 %`, what single seeds need; empty for a single seed, where one needs more than was
    measured, and where the least measured is enough for all."""
    seeds = list(by_seed)
    known = [found.share for found in seeds if found.share is not None]
    if len(seeds) < 2 or len(known) < len(seeds) or all(found.at_most for found in seeds):
        return ""
    least, most = percent(min(known)), percent(max(known))
    return least if least == most else f"{least.removesuffix(' %')} to {most}"


def _seeds_in_words(by_seed: Sequence[Needed]) -> str:
    if len(by_seed) < 2:
        return ""
    spread = range_of(by_seed)
    if spread:
        return f"; over {len(by_seed)} seeds {spread}"
    reached = sum(found.share is not None for found in by_seed)
    return f"; {reached} of {len(by_seed)} seeds reach it"


def _savings(results: Results, kind: str) -> Savings | None:
    curves = [_curve(results, row, kind) for row in results["methods"]]
    able = [c for c in curves if len(c.shares) > 1]
    if not able:
        return None
    most = max(len(curve.shares) for curve in able)
    whole = [curve for curve in able if len(curve.shares) == most]
    best = max(whole, key=lambda curve: mean(curve.means))
    others = [curve for curve in curves if curve is not best and curve.shares]
    others.sort(key=lambda curve: (curve.reference, -mean(curve.means)))
    return Savings(
        kind,
        [best, *others],
        [_saving(best, other, place) for other in others for place in range(len(other.shares))],
    )


def _saving(best: Curve, other: Curve, place: int) -> Saving:
    levels = other.scores[place]
    seeds = best.of_seeds()
    pairs = zip(seeds, levels, strict=True) if len(seeds) == len(levels) else ()
    return Saving(
        other,
        other.shares[place],
        needed(best.shares, best.means, other.means[place]),
        [needed(best.shares, scores, level) for scores, level in pairs],
    )


def _curve(results: Results, row: dict[str, object], kind: str) -> Curve:
    """The shares of which every seed came to an end, ascending."""
    method, reference = str(row["name"]), bool(row["reference"])
    settings = ["fal"] if reference else results["settings"]
    found: dict[float, list[float]] = {}
    for setting in settings:
        share = 1.0 if reference else _share(setting, kind)
        runs = [r for r in results["runs"] if (r["method"], r["setting"]) == (method, setting)]
        scores = [run["mAP"] for run in sorted(runs, key=lambda run: run["seed"])]
        if share is not None and len(scores) == len(results["seeds"]) and None not in scores:
            found[share] = scores
    shares = sorted(found)
    return Curve(method, shares, [found[share] for share in shares], reference)


def _share(setting: str, kind: str) -> float | None:
    """The share of labels that a setting leaves known; None for one of another kind.

    Where all labels are known none is missing at random: FAL is PAL_1. It is not PPL_1, in which
    no negative is known.
    """
    parsed = Setting.parse(setting)
    if parsed.name == "fal" and kind == "pal":
        return 1.0
    return parsed.keep if parsed.name == kind else None
