"""How labels went missing: what the known ones say about the unknown ones.

What enters: a label table and, where the user knows it, the expected number of positives an image.
What leaves: c₊ and c₋ (the chance that a positive, a negative is annotated) and the class priors,
with a sentence on where they come from. Letters: N images, L labels, k expected positives an image.
"""

from dataclasses import dataclass

import numpy as np

from partly.errors import ConfigError
from partly.labels import LabelTable

# Positives alone do not tell how many of them are missing: every c₊ explains them equally well.
ASSUMED_SHARE = 0.5


@dataclass(frozen=True)
class Propensity:
    """positive, negative: c₊ and c₋. priors [L]: P(label). expected_positives: k = Σ priors."""

    positive: float
    negative: float
    priors: np.ndarray
    expected_positives: float
    source: str


def estimate(table: LabelTable, expected_positives: float | None = None) -> Propensity:
    """c₊, c₋, k and the priors of `table`.

    - k given: c₊ = known positives / (N·k), c₋ = known negatives / (N·(L-k)).
    - negatives known, k not given: labels are taken to be missing at random, c₊ = c₋ = known share.
    - only positives known, k not given: c₊ = ½ is assumed, and said.
    """
    counts = table.counts_by_label()
    images, labels = len(table), len(table.names)
    positives, negatives = int(counts.positive.sum()), int(counts.negative.sum())
    if expected_positives is not None:
        if not 0 < expected_positives < labels:
            raise ConfigError(
                f"expected positives an image must lie between 0 and {labels}, "
                f"not {expected_positives}"
            )
        if positives > 1.05 * images * expected_positives:  # a sample may have a few more
            raise ConfigError(
                f"{expected_positives:g} positives an image are expected, but "
                f"{positives / images:.2f} are known: the expectation is too low"
            )
        c_positive = positives / (images * expected_positives)
        c_negative = negatives / (images * (labels - expected_positives))
        source = f"{expected_positives:g} positives an image were given"
    elif negatives:
        c_positive = c_negative = (positives + negatives) / (images * labels)
        source = "labels are taken to be missing at random, positives and negatives alike"
    else:
        c_positive, c_negative = ASSUMED_SHARE, 0.0
        source = (
            f"only positives are known, so it is assumed that {100 * ASSUMED_SHARE:.0f} % of them "
            "are (say better with --expected-positives, their number an image)"
        )
    c_positive, c_negative = min(c_positive, 1.0), min(c_negative, 1.0)
    seen_positive = counts.positive / max(c_positive, 1e-9)
    seen_negative = counts.negative / c_negative if c_negative else images - seen_positive
    mean_prior = seen_positive.sum() / max((seen_positive + seen_negative).sum(), 1e-9)
    # One imagined image of average taste keeps a label without known entries off 0.
    priors = (seen_positive + mean_prior) / (np.maximum(seen_positive + seen_negative, 0) + 1)
    priors = np.clip(priors, 1e-6, 0.99)
    return Propensity(c_positive, c_negative, priors, float(priors.sum()), source)
