"""How labels went missing: what the known ones say about the unknown ones.

What enters: a label table and, where the user knows it, the expected number of positives an image.
What leaves: c₊ and c₋ of each label (the chance that a positive, a negative is annotated) and the
class priors, with a sentence on where they come from. Letters: N images, L labels, k expected
positives an image, ρ = c₊/c₋.
"""

from dataclasses import dataclass

import numpy as np

from partly.errors import ConfigError
from partly.labels import Counts, LabelTable

# Positives alone do not tell how many of them are missing: see `counting` for what images add.
ASSUMED_SHARE = 0.5
LARGEST_RATIO = 50.0  # of c₊ to c₋, or of c₋ to c₊
MOSTLY = 0.5  # of the images have a known positive, or it is not one of each


@dataclass(frozen=True)
class Propensity:
    """positive, negative [L]: c₊ and c₋. priors [L]: P(label). expected_positives: k = Σ priors.

    single: one positive of each image is known, whatever the number it has. Then c₊ is a mean: the
    more positives an image has, the smaller the chance of each to be the known one.
    """

    positive: np.ndarray
    negative: np.ndarray
    priors: np.ndarray
    expected_positives: float
    single: bool
    source: str


def estimate(
    table: LabelTable,
    expected_positives: float | None = None,
    *,
    guessed_share: float | None = None,
) -> Propensity:
    """c₊, c₋, k and the priors of `table`. guessed_share: c₊ where nothing else says it, else ½.

    - negatives known: how much is known of a label is its own, ρ is the same for all of them: the
      one that makes the priors add up to k or, where k is not given, 1 (missing at random).
    - some labels with known negatives, of others only positives known: ρ = 1 for those, and the
      others have one c₊, with which the priors add up to k or, k not given, the guess.
    - only positives known: c₊ = known positives / (N·k) or, k not given, the guess; it is said.
    - people were asked about cells that somebody chose: the others say what the priors are. Where
      only positives are known of those, c₊ and c₋ follow from the priors and all that is known.
    """
    if table.asked is not None and table.asked.any():
        drawn = estimate(table.drawn(), expected_positives, guessed_share=guessed_share)
        return _after_asking(drawn, table)
    counts = table.counts_by_label()
    images, labels = len(table), len(table.names)
    positives = int(counts.positive.sum())
    if expected_positives is not None:
        _check(expected_positives, positives, images, labels)
    share = ASSUMED_SHARE if guessed_share is None else guessed_share
    one_sided = only_positives(table)
    full = table.known == images * labels
    if counts.negative.any() or full:
        ratio = 1.0
        if expected_positives is not None and one_sided.any():
            share = _share_of_rest(counts, images, one_sided, expected_positives)
        elif expected_positives is not None and not full:
            ratio = solve_ratio(counts, expected_positives)
        c_positive, c_negative = from_ratio(counts, images, ratio)
        c_positive[one_sided], c_negative[one_sided] = share, 0.0
    else:
        ratio = np.inf
        known = positives / (images * expected_positives) if expected_positives else share
        c_positive, c_negative = np.full(labels, min(known, 1.0)), np.zeros(labels)
    single = not counts.negative.any() and is_single(table)
    if expected_positives is not None:
        guessed_share = None
    source = _describe(table, expected_positives, guessed_share, ratio, single, one_sided, share)
    priors = _priors(counts, images, c_positive, c_negative)
    return Propensity(c_positive, c_negative, priors, float(priors.sum()), single, source)


def estimate_others(
    table: LabelTable, expected_positives: float | None, *, guessed_share: float | None = None
) -> Propensity:
    """`estimate` of other images than those trained on, which may be known to another share.

    expected_positives: as training took it to be. Only where no negative is known is it needed;
    there may be more of them here. guessed_share: what else is known of it.
    """
    counts = table.drawn().counts_by_label()
    full = table.known == len(table) * len(table.names)
    if expected_positives is None or full or counts.negative.any():
        return estimate(table, guessed_share=guessed_share)
    return estimate(table, max(expected_positives, counts.positive.sum() / len(table)))


def _after_asking(drawn: Propensity, table: LabelTable) -> Propensity:
    """What holds of a table in which people were asked about some cells. drawn: of the others.

    Where negatives were known before, an unknown entry says as much as it did: asking depends on
    the image, and the model sees that.
    """
    assert table.asked is not None
    counts, images = table.counts_by_label(), len(table)
    priors = np.clip(drawn.priors, counts.positive / images, 0.99)
    one_sided = drawn.negative == 0
    c_positive = np.minimum(counts.positive / (images * priors), 1.0)
    c_negative = np.minimum(counts.negative / (images * (1 - priors)), 1.0)
    return Propensity(
        np.where(one_sided, c_positive, drawn.positive),
        np.where(one_sided, c_negative, drawn.negative),
        priors,
        float(priors.sum()),
        False if counts.negative.any() else drawn.single,
        f"{drawn.source}; people were asked about {int(table.asked.sum()):,} more, which say "
        "nothing about how frequent a label is",
    )


def only_positives(table: LabelTable) -> np.ndarray:
    """Which labels [L] have known positives, no known negative, and entries that are not known."""
    counts = table.counts_by_label()
    return (counts.negative == 0) & (counts.positive > 0) & (counts.positive < len(table))


def _describe(
    table: LabelTable,
    expected: float | None,
    guessed: float | None,
    ratio: float,
    single: bool,
    one_sided: np.ndarray,
    one_sided_share: float,
) -> str:
    """What these labels resemble, and what is assumed of those that are not known."""
    share = table.known / (len(table) * len(table.names))
    given = "" if expected is None else f"; {expected:.3g} positives an image were given"
    assumed = (
        f"{100 * ASSUMED_SHARE:.0f} % of them all, as is assumed"
        if guessed is None
        else f"{100 * guessed:.0f} % of them all, by a rough guess"
    )
    if share == 1:
        useless = "; the number of positives that was given changes nothing" if expected else ""
        return f"every label is known{useless}"
    if np.isfinite(ratio):
        like = f"positives and negatives are known, {100 * share:.2g} % of all labels"
        if one_sided.any():
            labels = "1 label" if one_sided.sum() == 1 else f"{one_sided.sum()} labels"
            if expected is not None:
                assumed = f"{100 * one_sided_share:.0f} % of them all, as {expected:.3g} were given"
            return (
                f"{like}; of {labels} only positives, {assumed}, the same share for each; those of "
                "the others are taken to be missing at random"
            )
        like += " (as in PAL)"
        if expected is None:
            return f"{like}; they are taken to be missing at random, positives and negatives alike"
        if abs(ratio - 1) > 0.1:
            given += f": a positive is {ratio:.2g} times as likely to be known as a negative"
        return like + given
    known = table.known / len(table)
    like = (
        "one positive of each image is known (as in SPL)"
        if single
        else f"only positives are known, {known:.2g} an image"
    )
    better = "--expected-positives, the number an image really has, makes its probabilities better"
    if expected is None:
        return f"{like}: {assumed} ({better})"
    return f"{like}: {100 * min(known / expected, 1):.0f} % of {expected:.3g}, as was given"


def _check(expected_positives: float, positives: int, images: int, labels: int) -> None:
    if not 0 < expected_positives < labels:
        raise ConfigError(
            f"expected positives an image must lie between 0 and {labels}, not {expected_positives}"
        )
    if positives > 1.05 * images * expected_positives:  # a sample may have a few more
        raise ConfigError(
            f"{expected_positives:g} positives an image are expected, but "
            f"{positives / images:.2f} are known: the expectation is too low"
        )


def from_ratio(counts: Counts, images: int, ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """c₊ and c₋ [L] of labels whose known share is what it is, where ρ = c₊/c₋.

    With prior π: share = π·c₊ + (1-π)·c₋, and P/ρ : N is π : 1-π.
    """
    positive, negative = counts.positive / ratio, counts.negative
    prior = positive / np.maximum(positive + negative, 1e-9)
    share = (counts.positive + counts.negative) / images
    c_negative = share / (ratio * prior + 1 - prior)
    return np.minimum(ratio * c_negative, 1.0), np.minimum(c_negative, 1.0)


def _share_of_rest(
    counts: Counts, images: int, one_sided: np.ndarray, expected_positives: float
) -> float:
    """c₊ of the labels of which only positives are known: so that, with what the others have where
    they are missing at random, k positives an image are expected."""
    known = counts.positive + counts.negative
    others = (counts.positive / np.maximum(known, 1))[~one_sided].sum()
    seen = counts.positive[one_sided].sum() / images
    if expected_positives < 0.95 * (others + seen):  # a sample may have a few more
        raise ConfigError(
            f"{expected_positives:g} positives an image are expected, but labels with known "
            f"negatives have {others:.2f} of them and {seen:.2f} more are known: the expectation "
            "is too low"
        )
    return float(min(seen / max(expected_positives - others, seen), 1.0))


def solve_ratio(counts: Counts, expected_positives: float) -> float:
    """The ρ with which the priors add up to k, by bisection."""
    positives, negatives = counts.positive, counts.negative
    low, high = 1 / LARGEST_RATIO, LARGEST_RATIO
    for _ in range(60):
        middle = (low * high) ** 0.5
        seen = positives / middle
        expected = (seen / np.maximum(seen + negatives, 1e-9)).sum()
        low, high = (middle, high) if expected > expected_positives else (low, middle)
    return (low * high) ** 0.5


def is_single(table: LabelTable) -> bool:
    """Whether an image has one known positive and never more, some perhaps having none."""
    positives = table.counts_by_image().positive
    return bool(positives.max(initial=0) == 1 and positives.mean() >= MOSTLY)


def _priors(
    counts: Counts, images: int, c_positive: np.ndarray, c_negative: np.ndarray
) -> np.ndarray:
    """P(label) [L], from what would be known if all were."""
    positive = counts.positive / np.maximum(c_positive, 1e-9)
    negative = counts.negative / np.maximum(c_negative, 1e-9)
    negative = np.where(c_negative > 0, negative, np.maximum(images - positive, 0))
    if c_negative.any():
        negative[(counts.positive == 0) & (counts.negative == 0)] = 0  # nothing is known of it
    mean = positive.sum() / max((positive + negative).sum(), 1e-9)
    # One imagined image of average taste keeps a label without known entries off 0.
    return np.clip((positive + mean) / (positive + negative + 1), 1e-6, 0.99)
