"""Is one method better than another, or only on these test images? A paired bootstrap.

What enters: rankings (what a model's scores say about the order of the images, label by label) and
labels [N, L] with 1 positive, 0 negative, -1 unknown. What leaves: the mAP in each of R replicates,
in which every image counts as often as it was drawn, and from two methods' replicates the interval
of their difference. Letters: N images, L labels, R replicates.

Replicate r is the same draw of images for every method and seed: what makes a draw hard for one
makes it hard for the other, and so the difference varies far less than either mAP. Only the images
vary: how much trainings differ is the standard deviation over seeds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from partly.errors import ConfigError, DataError

Array = npt.NDArray[Any]
REPLICATES = 1000
BLOCK = 64  # replicates at once: their weights stay in the processor's cache


def rank(scores: npt.ArrayLike) -> Array:
    """The order of scores [N, L] in each column, the higher the better, ties alike: small integers.

    Every metric of rankings gives the same for these ranks as for the scores, to the last bit.

    >>> rank([[0.9], [0.1], [0.9], [0.3]]).ravel().tolist()
    [2, 0, 2, 1]
    """
    values = np.asarray(scores)
    small = np.uint16 if len(values) <= np.iinfo(np.uint16).max else np.uint32
    ranks = np.empty(values.shape, small)
    for column in range(values.shape[1]):
        ranks[:, column] = np.unique(values[:, column], return_inverse=True)[1]
    return ranks


def draw_images(images: int, replicates: int, seed: int = 0) -> Array:
    """How often each image is drawn [N, R], float32: N draws with replacement a replicate."""
    generator = np.random.default_rng(seed)
    weights = np.empty((images, replicates), np.float32)
    for replicate in range(replicates):
        drawn = generator.integers(0, images, images)
        weights[:, replicate] = np.bincount(drawn, minlength=images)
    return weights


def weighted_average_precision(ranks: Array, labels: Array, weights: Array) -> Array:
    """AP [L, R] of a ranking [N, L], with image i counted weights[i, r] times in replicate r.

    AP = 1/W · Σ over known positives i of wᵢ · (weight of positives ranked ≥ i) / (weight of known
    entries ranked ≥ i), W the weight of all positives: `metrics.average_precision` where all
    weights are 1. nan for a label without a known positive in a replicate.
    """
    blocks = [
        _in_block(ranks, labels, np.ascontiguousarray(weights[:, first : first + BLOCK]))
        for first in range(0, weights.shape[1], BLOCK)
    ]
    return np.concatenate(blocks, axis=1)


def _in_block(ranks: Array, labels: Array, weights: Array) -> Array:
    pairs = zip(ranks.T, labels.T, strict=True)
    return np.stack([_of_label(*pair, weights) for pair in pairs])


def _of_label(ranks: Array, labels: Array, weights: Array) -> Array:
    """AP [R] of one label. Sums are taken only between neighbouring ranks that positives hold."""
    positives, known = np.flatnonzero(labels == 1), np.flatnonzero(labels >= 0)
    if not len(positives):
        return np.full(weights.shape[1], np.nan)
    positives = positives[np.argsort(ranks[positives], kind="stable")[::-1]]
    known = known[np.argsort(ranks[known], kind="stable")[::-1]]
    held = np.flatnonzero(np.diff(ranks[positives].astype(np.int64), prepend=-1))
    cuts = ranks[positives[held]]
    ends = np.searchsorted(-ranks[known].astype(np.int64), -cuts.astype(np.int64), side="right")
    hits = np.add.reduceat(weights[positives], held, axis=0)
    seen = np.add.reduceat(weights[known[: ends[-1]]], np.append(0, ends[:-1]), axis=0)
    above = np.cumsum(hits, axis=0, dtype=np.float64)
    # Where nothing was drawn at or above a cut, nothing was drawn at it: 0 of 1 is 0.
    precision = above / np.maximum(np.cumsum(seen, axis=0, dtype=np.float64), 1)
    total = np.where(above[-1] > 0, above[-1], np.nan)
    return (hits * precision).sum(axis=0) / total


def replicate_scores(
    rankings: Sequence[Array], labels: Array, *, replicates: int = REPLICATES, seed: int = 0
) -> Array:
    """mAP [R + 1], the mean over rankings (a method's seeds): as it is, then in each replicate.

    Labels without a known positive in a replicate are left out of it, for every ranking alike.
    """
    if not rankings:
        raise DataError("a bootstrap needs a ranking or more")
    wrong = {ranks.shape for ranks in rankings} - {labels.shape}
    if wrong:
        raise DataError(f"rankings have the shapes {wrong}, labels {labels.shape}: give all alike")
    if replicates < 1:
        raise ConfigError(f"a bootstrap needs a replicate or more, not {replicates}")
    weights = np.ones((len(labels), replicates + 1), np.float32)
    weights[:, 1:] = draw_images(len(labels), replicates, seed)
    means = [_mean(weighted_average_precision(ranks, labels, weights)) for ranks in rankings]
    return np.asarray(np.mean(means, axis=0))


def _mean(precisions: Array) -> Array:
    """mAP [R] over the labels that have one; nan where none has."""
    scored = ~np.isnan(precisions)
    count = scored.sum(axis=0)
    sums = np.where(scored, precisions, 0.0).sum(axis=0)
    return np.asarray(np.divide(sums, count, out=np.full(len(count), np.nan), where=count > 0))


def difference(first: Array, second: Array) -> dict[str, Any]:
    """First less second, of two results of `replicate_scores`, with its interval of 95 %.

    p_not_better: the share of replicates in which the first is not ahead, never below 1/(R + 1).
    verdict: better or worse where the interval leaves 0 out, otherwise level.

    >>> labels = np.tile(np.array([[1], [0]], dtype=np.int8), (10, 1))
    >>> good, bad = (replicate_scores([rank(s)], labels) for s in (labels, -labels))
    >>> found = difference(good, bad)
    >>> round(found["difference"], 2), found["verdict"]
    (0.5, 'better')
    """
    gaps = first[1:] - second[1:]
    gaps = gaps[~np.isnan(gaps)]
    if not len(gaps):
        raise DataError("no replicate has a known positive: nothing can be scored")
    low, high = np.percentile(gaps, [2.5, 97.5])
    return {
        "difference": float(first[0] - second[0]),
        "low": float(low),
        "high": float(high),
        "p_not_better": float((1 + np.sum(gaps <= 0)) / (1 + len(gaps))),
        "replicates": len(gaps),
        "verdict": "better" if low > 0 else "worse" if high < 0 else "level",
    }
