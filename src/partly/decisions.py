"""From probabilities and partly known labels to decisions.

What enters: probabilities [N, L] of images that were not trained on, their labels [N, L] (1, 0,
-1), and how labels went missing (`propensity`). What leaves: a `Calibration`, a threshold for each
label, and on what each was fitted: `Decisions`, which a run's folder keeps. Letters: N images, n of
them with this rank, L labels.

Known entries alone are biased where labels are not missing at random: where only positives are
known every precision is 1. So every entry counts by its expected label: 1 or 0 where it is known,
P(positive | x, unknown) where it is not. With p calibrated, c₊ and c₋ the chances that a positive,
a negative is annotated, that is (1 - c₊)p / [(1 - c₊)p + (1 - c₋)(1 - p)].
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.isotonic import isotonic_regression

from partly import distributed, metrics, ranking
from partly.errors import ConfigError, first_few
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN
from partly.propensity import Propensity
from partly.pseudo import chance_by_count, expected_count

FloatArray = NDArray[np.float64]
Column = NDArray[Any]

KINDS = ("none", "temperature", "isotonic")  # of calibration
ENOUGH = 10  # known positives of a label, below which what the model believes is better than they
# The threshold of a label that is decided for no image: above 1, for float32 as well, in which a
# sure model's probabilities are 1.
NEVER = float(np.nextafter(np.float32(1), np.float32(2)))
BELIEVED = 20  # entries that what the model believes counts as, where a floor is to be kept
CAUTION = 0.5  # standard deviations that a share is taken to be lower, there
CLOSEST = 1e-7  # to 0 and 1 that a probability comes: its logit is finite
LARGEST_FIT = 2**23  # entries on which two numbers are fitted: more would say the same
CELLS = np.linspace(-14, 14, 1401)  # of logits: what lies in one is calibrated alike
RISING = 1e-3  # of the slope 1 that a calibration has at least: ties are left to rounding


# --- what is wanted ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """What a threshold is best for.

    f1: the largest F1. precision: as many positives as can be found while the share of true ones
    among them is at least `floor`. recall: as few false ones while the share of positives that is
    found is at least `floor`. cost: the smallest sum where a false positive costs `false_positive`
    and a missed one `false_negative`. `str(goal)` is what the command line takes.
    """

    kind: str = "f1"
    floor: float = 0.0
    false_positive: float = 1.0
    false_negative: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "Goal":
        """`f1`, `precision:0.9`, `recall:0.9` or `cost:1:5`.

        >>> Goal.parse("cost:1:5").false_negative
        5.0
        """
        kind, *words = text.strip().lower().split(":")
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            numbers = [np.nan]
        if kind == "f1" and not numbers:
            return cls()
        if kind in ("precision", "recall") and len(numbers) == 1 and 0 < numbers[0] <= 1:
            return cls(kind, floor=numbers[0])
        if kind == "cost" and len(numbers) == 2 and all(0 < n < np.inf for n in numbers):
            return cls(kind, false_positive=numbers[0], false_negative=numbers[1])
        raise ConfigError(
            f"no goal '{text}': write f1, precision:0.9 or recall:0.9 (a floor above 0, up to 1), "
            "or cost:1:5 (of a false positive, of a missed one)"
        )

    @property
    def has_floor(self) -> bool:
        """Is a share to be at least so large?"""
        return self.kind in ("precision", "recall")

    def __str__(self) -> str:
        if self.kind == "cost":
            return f"cost:{self.false_positive:g}:{self.false_negative:g}"
        return self.kind if self.kind == "f1" else f"{self.kind}:{self.floor:g}"


# --- calibration ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """A rising function that makes a model's probabilities true, the same for all labels.

    temperature: p -> σ(slope · logit p + shift). isotonic: straight lines between the knots
    (x, y), of which the first is at x = 0 and the last at x = 1. none: p -> p.
    """

    kind: str = "none"
    slope: float = 1.0
    shift: float = 0.0
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()

    def apply(self, probabilities: Column) -> Column:
        """The true probabilities, in the type and shape of those that enter.

        >>> Calibration("temperature", slope=2.0).apply(np.array([0.5, 0.8])).round(3)
        array([0.5  , 0.941])
        """
        if self.kind == "temperature":
            scores = self.slope * logits_of(probabilities) + self.shift
            return _sigmoid(scores).astype(probabilities.dtype)
        if self.kind == "isotonic":
            return np.interp(probabilities, self.x, self.y).astype(probabilities.dtype)
        return probabilities

    def to_json(self) -> dict[str, Any]:
        """What a run's folder holds of it."""
        if self.kind == "isotonic":
            return {"kind": self.kind, "x": list(self.x), "y": list(self.y)}
        return {"kind": self.kind, "slope": self.slope, "shift": self.shift}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Calibration":
        """The reverse of `to_json`."""
        if stored["kind"] not in KINDS:
            raise ValueError(f"no calibration '{stored['kind']}'")
        if stored["kind"] == "isotonic":
            return cls("isotonic", x=tuple(stored["x"]), y=tuple(stored["y"]))
        return cls(stored["kind"], slope=float(stored["slope"]), shift=float(stored["shift"]))


AS_IT_IS = Calibration()


def logits_of(probabilities: Column) -> FloatArray:
    """log p/(1-p), finite."""
    p = np.clip(np.asarray(probabilities, np.float64), CLOSEST, 1 - CLOSEST)
    return np.asarray(np.log(p) - np.log1p(-p))


def _sigmoid(scores: FloatArray) -> FloatArray:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * scores)))


@dataclass(frozen=True)
class Chances:
    """c₊ and c₋ of the entries of these rows: [1, L], or [n, 1] where c₊ is that of an image."""

    positive: Column
    negative: Column

    def of(self, rows: slice) -> "Chances":
        """Those of some of the rows."""
        return Chances(*(c if len(c) == 1 else c[rows] for c in (self.positive, self.negative)))


def chances(probabilities: Column, labels: Column, facts: Propensity) -> Chances:
    """How likely an entry of these images was annotated, were it positive, were it negative.

    Where one positive of each image is known, the more an image has the smaller is c₊.
    """
    positive, negative = facts.positive[None], facts.negative[None]
    if facts.single:
        counts = [
            expected_count(torch.from_numpy(probabilities[rows]), torch.from_numpy(labels[rows]))
            for rows in metrics.row_blocks(labels)
        ]
        count = torch.cat([torch.zeros(0, 1), *counts])
        mean = torch.from_numpy(facts.positive)
        positive = chance_by_count(count, mean, distributed.total).numpy()
    return Chances(positive, negative)


def expected_labels(probabilities: Column, labels: Column, chance: Chances) -> Column:
    """The expected label of each entry [n, L]: itself if known, else P(positive | x, unknown).

    >>> half = Chances(np.array([[0.5]]), np.array([[0.0]]))
    >>> expected_labels(np.array([[0.5], [0.5]]), np.array([[1], [-1]]), half).round(3).tolist()
    [[1.0], [0.333]]
    """
    hidden = (1 - chance.positive) * probabilities
    total = hidden + (1 - chance.negative) * (1 - probabilities)
    believed = np.divide(hidden, total, out=np.zeros_like(total), where=total > 0)
    return np.where(labels == UNKNOWN, believed, labels)


def fit_calibration(
    kind: str, probabilities: Column, labels: Column, chance: Chances
) -> Calibration:
    """The calibration of this kind, of the images of all ranks."""
    if kind not in KINDS:
        raise ConfigError(f"calibrate is one of {', '.join(KINDS)}, not '{kind}'")
    fit = {"temperature": fit_temperature, "isotonic": fit_isotonic}.get(kind)
    return AS_IT_IS if fit is None else fit(probabilities, labels, chance)


def fit_temperature(probabilities: Column, labels: Column, chance: Chances) -> Calibration:
    """Slope and shift by the likelihood of what was annotated, and of what was not:

        known positive -log p, known negative -log(1-p), unknown -log[(1-c₊)p + (1-c₋)(1-p)]

    Fisher's scoring, with steps that are halved until they help. A prior of deviation 1 around
    slope 1 and shift 0 stands in where little is known.
    """
    entries = float(distributed.total(torch.tensor(labels.size, dtype=torch.float64)))
    apart = max(1, round(entries / LARGEST_FIT))
    # The same rows on however many ranks.
    every = slice(-distributed.before(len(labels)) % apart, None, apart)
    scores = np.empty(probabilities[every].shape)
    for rows in metrics.row_blocks(scores):
        scores[rows] = logits_of(probabilities[every][rows])
    known, own = labels[every], chance.of(every)
    place = np.array([1.0, 0.0])
    loss, step = _look(place, scores, known, own)
    for _ in range(50):
        size = 1.0
        while size > 1e-3:
            tried = place + size * step
            found, following = _look(tried, scores, known, own) if tried[0] > 0 else (np.inf, step)
            if found <= loss:
                break
            size /= 2
        else:
            break
        gained, place, loss, step = loss - found, tried, found, following
        if gained < 1e-6:
            break
    return Calibration("temperature", slope=float(place[0]), shift=float(place[1]))


def _look(
    place: FloatArray, scores: FloatArray, labels: Column, chance: Chances
) -> tuple[float, FloatArray]:
    """At this slope and shift: what is lost, and the step that Fisher's information suggests."""
    sums = np.zeros(6)
    for rows in metrics.row_blocks(scores):
        x, known, own = scores[rows], labels[rows], chance.of(rows)
        p = _sigmoid(place[0] * x + place[1])
        spread, apart = p * (1 - p), own.positive - own.negative
        unseen = np.maximum((1 - own.positive) * p + (1 - own.negative) * (1 - p), CLOSEST)
        of_known = np.where(known == POSITIVE, p, 1 - p)
        loss = -np.log(np.maximum(np.where(known == UNKNOWN, unseen, of_known), 1e-30))
        pull = expected_labels(p, known, own) - p
        sure = own.positive * (1 - p) + own.negative * p + spread * apart**2 / unseen
        weight = spread * sure
        parts = (loss, pull * x, pull, weight * x * x, weight * x, weight)
        sums += [part.sum() for part in parts]
    lost, *rest = distributed.total(torch.from_numpy(sums)).numpy()
    away = place - [1.0, 0.0]
    gradient = np.array(rest[:2]) - away
    information = np.array([rest[2:4], rest[3:5]]) + np.eye(2)
    return float(lost + away @ away / 2), np.asarray(
        np.linalg.solve(information, gradient), np.float64
    )


def fit_isotonic(probabilities: Column, labels: Column, chance: Chances) -> Calibration:
    """The rising function that fits best: shares of positives among images of like probability.

    A known entry stands for 1/c of its kind; where training knew none of a label, and c is 0, for
    nothing. Where no negative of a label is known, all of its entries are counted, of which the
    known positives stand for the positives.
    """
    sums = np.zeros((3, len(CELLS) + 1))  # of each cell: positives, entries, probabilities
    for rows in metrics.row_blocks(probabilities):
        p, known, own = np.asarray(probabilities[rows], np.float64), labels[rows], chance.of(rows)
        positive = np.where(known == POSITIVE, _stands_for(own.positive), 0)
        negative = np.where(known == NEGATIVE, _stands_for(own.negative), 0)
        one_sided = (own.negative == 0) & (own.positive > 0)
        weight = np.where(one_sided, 1.0, positive + negative)
        cells = np.digitize(logits_of(p), CELLS).ravel()
        for line, values in zip(sums, (positive, weight, weight * p), strict=True):
            line += np.bincount(cells, values.ravel(), len(line))
    positives, entries, believed = distributed.total(torch.from_numpy(sums)).numpy()
    seen = entries > 0
    if not seen.any():
        return AS_IT_IS
    shares = isotonic_regression(
        positives[seen] / entries[seen], sample_weight=entries[seen], y_min=0, y_max=1
    )
    starts = np.flatnonzero(np.diff(shares, prepend=-1))  # of what became one value
    middles = np.add.reduceat(believed[seen], starts) / np.add.reduceat(entries[seen], starts)
    x, y = _with_ends(middles, shares[starts])
    y = (1 - RISING) * y + RISING * x
    return Calibration("isotonic", x=tuple(x.tolist()), y=tuple(y.tolist()))


def _stands_for(chance: Column) -> FloatArray:
    """How many entries of its kind a known one stands for: 1/c."""
    return np.divide(1.0, chance, out=np.zeros(chance.shape), where=chance > 0)


def _with_ends(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rising knots from 0 to 1. One that lies there, where a model is sure, is the end itself."""
    between = (x > 0) & (x < 1)
    low, high = y[x <= 0][:1], y[x >= 1][:1]
    low, high = (low if len(low) else np.zeros(1)), (high if len(high) else np.ones(1))
    return np.concatenate([[0], x[between], [1]]), np.concatenate([low, y[between], high])


# --- thresholds ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cuts:
    """Where a column of scores can be cut: the `threshold` of each cut from the highest down, how
    many are at or above it, how many of these are expected to be positive; and of all entries."""

    threshold: FloatArray
    seen: FloatArray
    hits: FloatArray
    positives: float


def cuts_of(scores: Column, expected: Column) -> Cuts:
    """The cuts of one label: midway between neighbouring distinct scores, 0 below the lowest."""
    order = np.argsort(-scores, kind="stable")
    ordered, hits = scores[order], np.cumsum(expected[order], dtype=np.float64)
    last = np.flatnonzero(np.append(ordered[1:] < ordered[:-1], [True] * (len(ordered) > 0)))
    upper = ordered[last].astype(np.float64)
    lower = np.append(upper[1:], 0.0)
    middle = (upper + lower) / 2
    # Between two adjacent floats the middle rounds to one of them; the lower must stay out.
    threshold = np.where(middle > lower, middle, upper)
    seen = np.asarray(last, np.float64) + 1
    return Cuts(threshold, seen, hits[last], float(hits[-1]) if len(hits) else 0.0)


def best_cut(goal: Goal, cuts: Cuts, believed: FloatArray) -> int:
    """Which cut is the best for the goal; of equal ones the highest. -1: none, decide for no image.

    believed: how many of those at or above each cut are positive, to go by the model. -1 is where
    no cut has the precision that is asked for, or where any positive decision costs more than it
    saves.
    """
    if not len(cuts.seen):
        return -1
    if goal.kind == "f1":
        return int(np.argmax(2 * cuts.hits / (cuts.seen + cuts.positives)))
    if goal.kind == "cost":
        saved = goal.false_negative * cuts.hits - goal.false_positive * (cuts.seen - cuts.hits)
        return int(np.argmax(saved)) if saved.max() > 0 else -1
    if goal.kind == "precision":
        shares = cautious_share(cuts.hits, cuts.seen, believed / cuts.seen)
        enough = np.flatnonzero(shares >= goal.floor)
        return int(enough[-1]) if len(enough) else -1
    of_all = believed / max(believed[-1], CLOSEST)
    shares = cautious_share(cuts.hits, np.full(len(of_all), cuts.positives), of_all)
    enough = np.flatnonzero(shares >= goal.floor)
    return int(enough[0]) if len(enough) else len(shares) - 1


def cautious_share(hits: FloatArray, seen: FloatArray, believed: FloatArray) -> FloatArray:
    """hits / seen, as one can rely on it where the best of many such shares was picked, and by few
    images luck decides which: drawn towards the share that the model believes, which chance
    moves less, and lowered by a part of its standard deviation.

    >>> cautious_share(np.array([9.0, 900.0]), np.array([10.0, 1000.0]), np.full(2, 0.8)).round(3)
    array([0.799, 0.893])
    """
    count = seen + BELIEVED
    share = (hits + BELIEVED * believed) / count
    lower = share - CAUTION * np.sqrt(np.clip(share * (1 - share), 0, None) / count)
    return np.asarray(lower)


def best_threshold(goal: Goal, scores: Column, expected: Column, believed: Column) -> float:
    """The best threshold of one label, for the expected labels [N] of its scores [N], and what the
    model believes of them [N]."""
    cuts = cuts_of(scores, expected)
    best = best_cut(goal, cuts, cuts_of(scores, believed).hits if goal.has_floor else cuts.hits)
    return NEVER if best < 0 else float(cuts.threshold[best])


def best_thresholds(
    goal: Goal, believe: Callable[[Column], Column], scores: Any, expected: Any
) -> FloatArray:
    """`best_threshold` of each column of [N, l], wherever they lie. believe: scores -> what the
    model believes."""
    tables = [t.cpu().numpy() if isinstance(t, torch.Tensor) else t for t in (scores, expected)]
    width, labels = metrics.width_of_block(len(tables[0])), tables[0].shape[1]
    found: list[float] = []
    for first in range(0, labels, width):
        block = slice(first, min(first + width, labels))
        pairs = zip(*(metrics.columns_of(t, block, t.dtype) for t in tables), strict=True)
        found += [best_threshold(goal, s, labels, believe(s)) for s, labels in pairs]
    return np.array(found)


@dataclass(frozen=True)
class Decisions:
    """A threshold for each label [L] and how it came about.

    precision, recall [L]: what is expected of each, with caution where the goal is a floor; nan
    where nothing is decided, or there is nothing to find. positives, negatives [L]: how many known
    ones it was fitted on. by_model [L]: where these were too few, and only what the model believes
    was looked at.
    """

    goal: Goal
    calibration: Calibration
    thresholds: FloatArray
    precision: FloatArray
    recall: FloatArray
    positives: Column
    negatives: Column
    by_model: Column
    unanswered: Column
    images: int

    @property
    def never(self) -> Column:
        """Which labels [L] are decided for none of these images."""
        return np.isnan(self.precision)

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """What `decisions.json` holds."""
        numbers = {
            "threshold": self.thresholds,
            "precision": self.precision,
            "recall": self.recall,
            "known_positives": self.positives,
            "known_negatives": self.negatives,
            "by_model": self.by_model,
            "unanswered": self.unanswered,
        }
        columns = [[None if v != v else v for v in column.tolist()] for column in numbers.values()]
        lines = zip(names, *columns, strict=True)
        return {
            "goal": str(self.goal),
            "calibration": self.calibration.to_json(),
            "images": self.images,
            "labels": {name: dict(zip(numbers, line, strict=True)) for name, *line in lines},
        }


def fit(
    probabilities: Column,
    labels: Column,
    facts: Propensity,
    goal: Goal | None = None,
    calibrate: str = "none",
    taught: Column | None = None,
) -> Decisions:
    """Thresholds for a goal (F1 if None), and a calibration, by the images of all ranks.

    probabilities, labels: [n, L], of this rank's images, not calibrated. facts: how their labels
    went missing. taught [L]: of which labels training knew anything; None: of all.
    """
    goal = goal or Goal()
    positives, negatives = (_sums(labels == value) for value in (POSITIVE, NEGATIVE))
    chance = chances(probabilities, labels, facts)
    if not (positives.any() or negatives.any()):  # then nothing says how labels go missing
        chance = Chances(*np.zeros((2, 1, 1)))
    usual = fit_temperature(probabilities, labels, chance)
    calibration = fit_calibration(calibrate, probabilities, labels, chance)
    few = positives < ENOUGH
    unanswered = np.zeros_like(few) if taught is None else few & ~taught
    by_model = few & ~unanswered
    expected, scores = np.empty(labels.shape, np.float32), probabilities
    if calibrate != "none":
        scores = np.empty_like(probabilities)
    for rows in metrics.row_blocks(labels):
        p = probabilities[rows]
        believed = usual.apply(p)
        expected[rows] = expected_labels(believed, labels[rows], chance.of(rows))
        expected[rows, few] = believed[:, few]
        if scores is not probabilities:
            scores[rows] = calibration.apply(p)
    believe = usual.apply if calibrate == "none" else np.asarray  # what is calibrated is believed
    thresholds = ranking.sharded(
        partial(best_thresholds, goal, believe), scores, expected, kind=torch.float32
    )
    thresholds[unanswered] = NEVER
    precision, recall = _promised(goal, scores, expected, thresholds, believe)
    recall[unanswered] = np.nan
    return Decisions(
        goal, calibration, thresholds, precision, recall,
        positives, negatives, by_model, unanswered, int(_sums(np.ones((len(labels), 1)))[0]),
    )  # fmt: skip


def _promised(
    goal: Goal,
    scores: Column,
    expected: Column,
    thresholds: FloatArray,
    believe: Callable[[Column], Column],
) -> tuple[FloatArray, FloatArray]:
    """Precision and recall [L] that are expected at the thresholds."""
    sums = np.zeros((5, len(thresholds)))
    for rows in metrics.row_blocks(scores):
        decided, own, believed = scores[rows] >= thresholds, expected[rows], believe(scores[rows])
        parts = (decided, decided * own, own, decided * believed, believed)
        sums += [part.sum(axis=0, dtype=np.float64) for part in parts]
    seen, hits, true, believed_hits, all_believed = distributed.total(
        torch.from_numpy(sums)
    ).numpy()
    with np.errstate(invalid="ignore"):
        if not goal.has_floor:
            return hits / seen, hits / true
        found = cautious_share(hits, true, believed_hits / np.maximum(all_believed, CLOSEST))
        return (
            cautious_share(hits, seen, believed_hits / seen),
            np.where(true > 0, found, np.nan),
        )


def _sums(table: Column) -> Column:
    """Of the columns of [n, L], over all ranks."""
    kind = np.float64 if table.dtype.kind == "f" else np.int64
    return distributed.total(torch.from_numpy(table.sum(axis=0, dtype=kind))).numpy()


def describe(decided: Decisions, names: Sequence[str]) -> Iterator[str]:
    """What was decided, in sentences."""
    calibration = decided.calibration
    if calibration.kind == "temperature":
        yield f"calibration: slope {calibration.slope:.3g}, shift {calibration.shift:.3g}"
    elif calibration.kind == "isotonic":
        yield f"calibration: straight lines between {len(calibration.x)} points"
    expected = (
        f"precision {_mean(decided.precision)} and recall {_mean(decided.recall)} are expected, "
        "the means of labels"
    )
    unreached, all_of_them = decided.never & ~decided.unanswered, decided.never.all()
    yield (
        f"thresholds for {decided.goal} of {len(names):,} labels, by {decided.images:,} images: "
        + ("no label is decided for any image" if all_of_them else expected)
    )
    has_few = f"fewer than {ENOUGH} known positives, and {{}} by what the model believes"
    kinds = (
        (decided.by_model, f"has {has_few.format('goes')}", f"have {has_few.format('go')}"),
        (decided.unanswered, *_never("nobody has answered anything about {} in training")),
        (unreached, *_never(WHY_NEVER.get(decided.goal.kind, "no threshold reaches the goal"))),
    )
    for which, one, many in kinds:
        if which.any():
            listed = first_few([name for name, is_so in zip(names, which, strict=True) if is_so])
            yield f"{which.sum():,} of them {one if which.sum() == 1 else many}: {listed}"
    if all_of_them and unreached.any():
        yield WAY_OUT.get(decided.goal.kind, "try a lower goal")


WHY_NEVER = {"cost": "no threshold costs less"}
WAY_OUT = {"cost": "try a goal where a missed positive costs more"}


def _never(why: str) -> tuple[str, str]:
    """That a label, that labels are decided for no image."""
    one, many = why.format("it"), why.format("them")
    return f"is decided for no image, for {one}", f"are decided for no image, for {many}"


def _mean(shares: FloatArray) -> str:
    counted = shares[np.isfinite(shares)]
    return f"{100 * counted.mean():.1f}" if len(counted) else "–"
