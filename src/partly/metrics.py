"""How good scores are, judged on known labels only.

What enters: scores or probabilities [N, L] and labels [N, L] (1 positive, 0 negative, -1 unknown)
as NumPy arrays, memory-mapped ones, tensors or anything `np.asarray` takes. N images, L labels.
What leaves: float64 arrays [L], plain floats and small records. An unknown entry never counts, and
what cannot be computed is nan, never 0: a label nobody could score must not lower a mean.

Beyond what enters, memory is that of a block of columns for each thread, or of a few rows: nothing
else has the size of the table. What does not fit into memory, or lies on several ranks: `ranking`.
"""

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from partly.errors import ConfigError, DataError, LabelError, first_few, raise_if
from partly.processes import cores

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]
ColumnMeasure = Callable[[Array, Array], float]
Pairs = Iterable[tuple[Array, Array]]  # the scores and the labels of one column after another

BLOCK = 2**22  # entries of a block of columns; fewer than NARROWEST columns would waste reading
NARROWEST = 8
ROWS = 2**18  # entries of the rows that are looked at together: these stay in the cache
TILE = 512  # rows that are turned into columns together
THREADS = 8  # at most: each holds a block
CELLS = 2**16  # NumPy sorts numbers of 16 bits in time that is linear
FEW = 2**14  # values below this are sorted as they are
SHOWN = 5  # wrong entries that a message names
SAMPLE = 1024  # values that show how all of them are spread

# Before scikit-learn 1.9 these called their probabilities `y_pred`, as if they were decisions.
METRICS_OF_PROBABILITIES = {"log_loss", "d2_log_loss_score"}


class Decided(NamedTuple):
    """What thresholds decide: counts of each label [L]. `given` counts unknown entries too, the
    others known ones alone."""

    positives: npt.NDArray[np.int64]
    negatives: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]  # known entries that are called positive
    hits: npt.NDArray[np.int64]  # known positives that are
    given: npt.NDArray[np.int64]  # all images that get the label


class Reliability(NamedTuple):
    """Known entries by their probability, in bins of equal width: a number each [bins]."""

    entries: npt.NDArray[np.int64]
    positives: npt.NDArray[np.int64]
    expected: FloatArray  # the sum of the probabilities: as many positives as they promise


class F1Scores(NamedTuple):
    """Precision, recall and F1: C averages over classes (labels), O counts overall."""

    CP: float
    CR: float
    CF1: float
    OP: float
    OR: float
    OF1: float


@dataclass(frozen=True)
class Coverage:
    """What the metrics could see. `left_out` maps a reason to the indices of its labels."""

    labels: int
    labels_scored: int
    left_out: dict[str, list[int]]
    known_entries: int
    share_known: float


def average_precision(scores: npt.ArrayLike, labels: npt.ArrayLike) -> FloatArray:
    """Non-interpolated average precision [L] of scores [N, L] on the known labels [N, L].

    AP = 1/P · Σ over known positives i of (positives scored ≥ sᵢ) / (known entries scored ≥ sᵢ),
    the sum that scikit-learn computes, ties included. nan for a label with no known positive.
    Scores on a GPU are sorted there, a block of columns at a time.

    >>> average_precision([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], [[1, 0], [0, -1], [1, 0]]).round(4)
    array([0.8333,    nan])
    """
    if getattr(scores, "is_cuda", False):
        from partly import ranking  # needs torch, which is there if a tensor is

        return ranking.average_precision_on_device(cast(Any, scores), labels)
    return _per_label(column_average_precision, *checked(scores, labels))


def mean_average_precision(scores: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean AP over the labels that have a known positive; nan if none has.

    >>> mean_average_precision([[0.9, 0.1], [0.8, 0.2]], [[1, 0], [0, 0]])
    1.0
    """
    return _mean(average_precision(scores, labels))


def area_under_roc(scores: npt.ArrayLike, labels: npt.ArrayLike) -> FloatArray:
    """Area under the ROC curve [L] of scores [N, L] on the known labels [N, L].

    AUROC = chance that a known positive scores above a known negative, a tie counting half.
    nan for a label without a known positive or without a known negative.

    >>> area_under_roc([[0.9], [0.5], [0.5], [0.1]], [[1], [1], [0], [-1]])
    array([0.75])
    """
    return _positives_above(0, scores, labels)


def positives_above_unknown(scores: npt.ArrayLike, labels: npt.ArrayLike) -> FloatArray:
    """AUROC [L] of the known positives against the UNKNOWN entries; nan if either is missing.

    The criterion for choosing an epoch when only positives are known. Where labels are missing
    completely at random, a share π of the unknown entries are positives that score like the known
    ones, so its expectation is π/2 + (1 - π) · AUROC: a monotone function of the true AUROC.

    >>> positives_above_unknown([[0.9], [0.5], [0.1]], [[-1], [1], [-1]])
    array([0.5])
    """
    return _positives_above(-1, scores, labels)


def select_scores(scores: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[FloatArray, str]:
    """The criterion for the best epoch, of each label [L], and what it is called.

    AP of the known labels, when at least half of the labels with a known positive also have a known
    negative. Otherwise AP would be 1 for most labels, whatever the model says, and
    `positives_above_unknown` takes its place. nan for a label that cannot be scored, or whose AP
    would be 1.
    """
    scores, labels = checked(scores, labels)
    seen = coverage(labels)
    useless = seen.left_out["no known negative"]
    if 2 * len(useless) <= seen.labels_scored:
        values = average_precision(scores, labels)
        values[useless] = np.nan
        return values, "mAP of known labels"
    return positives_above_unknown(scores, labels), "AUROC of known positives against unknown"


def clearly_below(values: FloatArray, others: FloatArray) -> bool:
    """Whether values [L] of the labels are below others on the mean, by more than twice the
    standard error of that mean; where one label alone can be compared, whether it is below.

    >>> clearly_below(np.array([0.5, 0.7, 0.6]), np.array([0.6, 0.8, 0.7]))
    True
    >>> clearly_below(np.array([0.5, 0.9, 0.6]), np.array([0.6, 0.8, 0.7]))
    False
    """
    lost = (others - values)[np.isfinite(others - values)]
    if len(lost) < 2:
        return bool((lost > 0).any())
    return bool(lost.mean() > 2 * lost.std(ddof=1) / math.sqrt(len(lost)))


def f1_scores(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, thresholds: npt.ArrayLike = 0.5
) -> F1Scores:
    """Precision, recall and F1 over the known entries of [N, L]; `thresholds` a float or [L].

    An entry is predicted positive when its probability ≥ the threshold. CP and CR are means over
    the labels with a known positive (precision is 0 where nothing is predicted), OP and OR pool
    all known entries. By the convention of the multi-label literature
    CF1 = 2 · CP · CR / (CP + CR), the harmonic mean of means and not the mean of the labels' F1;
    OF1 likewise. nan where there is no known positive.

    >>> f1_scores([[0.9, 0.8], [0.7, 0.1]], [[1, 1], [0, 1]])[:3]
    (0.75, 0.75, 0.75)
    """
    positives, _, predicted, hits, _ = decided(probabilities, labels, thresholds)
    scored = positives > 0
    class_precision = _mean(_ratio(hits, predicted, empty=0.0)[scored])
    class_recall = _mean(_ratio(hits, positives, empty=math.nan)[scored])
    overall_precision = float(_ratio(hits.sum(), predicted.sum(), empty=0.0))
    overall_recall = float(_ratio(hits.sum(), positives.sum(), empty=math.nan))
    class_f1 = _harmonic_mean(class_precision, class_recall)
    overall = overall_precision, overall_recall, _harmonic_mean(overall_precision, overall_recall)
    return F1Scores(class_precision, class_recall, class_f1, *overall)


def decided(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, thresholds: npt.ArrayLike = 0.5
) -> Decided:
    """How often an entry of [N, L] is predicted positive: its probability ≥ the threshold, a float
    or [L].

    >>> decided([[0.9, 0.8], [0.7, 0.1]], [[1, 1], [0, -1]]).predicted.tolist()
    [2, 1]
    """
    probabilities, labels = checked(probabilities, labels, of_probabilities=True)
    limits = _limits(thresholds, labels.shape[1])
    counts = np.zeros((5, labels.shape[1]), np.int64)
    for rows in row_blocks(labels):
        called = probabilities[rows] >= limits
        positive, negative = labels[rows] == 1, labels[rows] == 0
        kinds = (positive, negative, called & (positive | negative), called & positive, called)
        counts += [kind.sum(axis=0) for kind in kinds]
    return Decided(*counts)


def tune_thresholds(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> FloatArray:
    """The threshold [L] with the best F1 on the known entries of probabilities [N, L].

    Thresholds lie midway between neighbouring distinct known probabilities (0 is the neighbour
    below the lowest); of equally good ones the highest wins. 0.5 for a label without a known
    positive or without a known negative.

    >>> tune_thresholds([[0.75], [0.5], [0.25]], [[1], [1], [0]])
    array([0.375])
    """
    return _per_label(_best_threshold, *checked(probabilities, labels, of_probabilities=True))


def calibration_error(probabilities: npt.ArrayLike, labels: npt.ArrayLike, bins: int = 15) -> float:
    """Expected calibration error over all known entries of [N, L]; nan if nothing is known.

    ECE = Σ over bins of (entries in bin / entries) · |mean probability - share of positives|,
    with equal-width bins [k/bins, (k+1)/bins) on the probability of the positive class.

    >>> calibration_error([[0.75, 0.75], [0.75, 0.75]], [[1, 1], [0, 0]])
    0.25
    """
    entries, positives, expected = reliability(probabilities, labels, bins)
    return float(_ratio(np.abs(expected - positives).sum(), entries.sum(), empty=math.nan))


def reliability(probabilities: npt.ArrayLike, labels: npt.ArrayLike, bins: int = 15) -> Reliability:
    """What probabilities [N, L] promise and what is known, in the bins of `calibration_error`.

    >>> reliability([[0.75, 0.75], [0.75, 0.25]], [[1, 1], [0, -1]], bins=2)[1:]
    (array([0, 2]), array([0.  , 2.25]))
    """
    if not isinstance(bins, int | np.integer) or bins < 1:
        raise ConfigError(f"bins must be a whole number of at least 1, not {bins!r}")
    probabilities, labels = checked(probabilities, labels, of_probabilities=True)
    edges = np.linspace(0, 1, bins + 1)[1:-1]
    entries, positives = np.zeros((2, bins), np.int64)
    expected = np.zeros(bins)
    for rows in row_blocks(labels):
        known = labels[rows] >= 0
        values, answers = probabilities[rows][known].astype(np.float64), labels[rows][known]
        places = np.digitize(values, edges)
        entries += np.bincount(places, minlength=bins)
        positives += np.bincount(places[answers == 1], minlength=bins)
        expected += np.bincount(places, weights=values, minlength=bins)
    return Reliability(entries, positives, expected)


def binary_metric(
    name: str, scores: npt.ArrayLike, labels: npt.ArrayLike, thresholds: npt.ArrayLike = 0.5
) -> FloatArray:
    """Any binary metric of scikit-learn, by its function's name, [L] over the known entries.

    A metric of scores or probabilities gets `scores` [N, L]; a metric of decisions gets
    scores ≥ thresholds (a float or [L]). nan unless the label has both a known positive and a
    known negative.

    >>> binary_metric("matthews_corrcoef", [[0.9], [0.2], [0.1]], [[1], [0], [-1]])
    array([1.])
    """
    metric, takes_scores = _binary_metric_function(name)
    scores, labels = checked(scores, labels)
    # float64: scikit-learn would compute, and clip, in the precision it is given.
    values = (
        scores.astype(np.float64)
        if takes_scores
        else scores >= _limits(thresholds, labels.shape[1])
    )

    def measure(column: Array, column_labels: Array) -> float:
        known = column_labels >= 0
        if np.unique(column_labels[known]).size < 2:
            return math.nan
        return float(metric(column_labels[known], column[known]))

    try:
        return _per_label(measure, values, labels, threads=1)  # plain Python: no use in threads
    except ValueError as error:
        raise DataError(f"{name} cannot use these scores: {error}") from error


def frequency_groups(positives: npt.ArrayLike) -> dict[str, npt.NDArray[np.intp]]:
    """Label indices in thirds by number of training positives [L]: head (most), middle, tail.

    The order is stable; where L is not divisible by three the head, then the middle, is larger.

    >>> frequency_groups([5, 90, 20])
    {'head': array([1]), 'middle': array([2]), 'tail': array([0])}
    """
    counts, problems = _read(positives, "positives", dimensions=1)
    if not problems and not np.all(np.isfinite(counts) & (counts >= 0)):
        problems = ["positives must be counts: finite and not negative"]
    raise_if(problems, DataError)
    order = np.argsort(-counts.astype(np.float64), kind="stable")
    return dict(zip(("head", "middle", "tail"), np.array_split(order, 3), strict=True))


def mean_by_frequency(values: npt.ArrayLike, positives: npt.ArrayLike) -> dict[str, float]:
    """Mean of `values` [L] in each of the `frequency_groups` of positives [L]; nan is skipped.

    >>> mean_by_frequency([0.5, 1.0, float("nan")], [5, 90, 20])
    {'head': 1.0, 'middle': nan, 'tail': 0.5}
    """
    groups = frequency_groups(positives)
    numbers, problems = _read(values, "values", dimensions=1)
    length = sum(map(len, groups.values()))
    if not problems and len(numbers) != length:
        problems = [f"{len(numbers)} values but {length} positives: give one of each a label"]
    raise_if(problems, DataError)
    return {name: _mean(numbers[indices]) for name, indices in groups.items()}


def without_negatives(seen: Mapping[str, Any]) -> str:
    """What to say of a coverage where no negative of some labels is known: there every decision is
    right, and an mAP of 100 means nothing. Empty where there are none."""
    count = len(seen["left_out"].get("no known negative", []))
    if not count:
        return ""
    return (
        f"{count:,} {'label' if count == 1 else 'labels'} without a known negative: AP 100 and "
        "precision 100 whatever the model says, so that CF1 and OF1 only say how many positives "
        "are found"
    )


def coverage(labels: npt.ArrayLike) -> Coverage:
    """How many labels [N, L] can be scored, which are left out, and why.

    A label is left out of AP for "no known label" or "no known positive". Those under "no known
    negative" are scored, but have no AUROC. A label stands under one reason only.

    >>> coverage([[1, 0, -1], [0, -1, -1]]).left_out["no known positive"]
    [1]
    """
    table, problems = read_labels(labels)
    raise_if(problems, LabelError)
    has_positive, has_negative = np.zeros((2, table.shape[1]), bool)
    known = 0
    for rows in row_blocks(table):
        has_positive |= (table[rows] == 1).any(axis=0)
        has_negative |= (table[rows] == 0).any(axis=0)
        known += int(np.count_nonzero(table[rows] >= 0))
    reasons = {
        "no known label": ~has_positive & ~has_negative,
        "no known positive": ~has_positive & has_negative,
        "no known negative": has_positive & ~has_negative,
    }
    return Coverage(
        labels=table.shape[1],
        labels_scored=int(has_positive.sum()),
        left_out={reason: np.flatnonzero(which).tolist() for reason, which in reasons.items()},
        known_entries=known,
        share_known=float(_ratio(known, table.size, empty=math.nan)),
    )


def evaluate(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    train_positives: npt.ArrayLike | None = None,
    thresholds: npt.ArrayLike | None = None,
) -> dict[str, Any]:
    """Every figure of a report from probabilities and labels [N, L], ready for JSON (nan: None).

    CF1 and OF1 are taken at 0.5; with `thresholds` (a float or [L]) `CF1_at_thresholds` and
    `OF1_at_thresholds` join them, with `train_positives` [L] `mAP_by_frequency` does.

    >>> evaluate([[0.9, 0.2], [0.1, 0.3]], [[1, 0], [0, 0]])["AP"]
    [1.0, None]
    """
    probabilities, labels = checked(probabilities, labels, of_probabilities=True)
    precisions, seen = average_precision(probabilities, labels), coverage(labels)
    at_half = f1_scores(probabilities, labels)
    result: dict[str, Any] = {
        "mAP": _mean(precisions),
        "labels_scored": seen.labels_scored,
        "AP": precisions.tolist(),
        "AUROC": _mean(area_under_roc(probabilities, labels)),
        "CF1": at_half.CF1,
        "OF1": at_half.OF1,
        "calibration_error": calibration_error(probabilities, labels),
        "coverage": asdict(seen),
    }
    if train_positives is not None:
        result["mAP_by_frequency"] = mean_by_frequency(precisions, train_positives)
    if thresholds is not None:
        at_given = f1_scores(probabilities, labels, thresholds)
        result |= {"CF1_at_thresholds": at_given.CF1, "OF1_at_thresholds": at_given.OF1}
    return {key: _without_nan(value) for key, value in result.items()}


def column_average_precision(column: Array, labels: Array) -> float:
    """Average precision of the scores [N] of one label, given its labels [N]."""
    positives = _positives(column, labels)
    if not positives.size:
        return math.nan
    # Positives that tie share one precision, so that their order is not needed.
    precisions = _at_or_above(positives, positives) / _seen(_known(column, labels), positives)
    return float(precisions.mean())


def width_of_block(images: int) -> int:
    """How many columns of so many images are held at once."""
    return max(NARROWEST, BLOCK // max(1, images))


def by_column(
    measure: ColumnMeasure,
    pairs_of: Callable[[slice], Pairs],
    labels: int,
    width: int,
    threads: int | None = None,
) -> FloatArray:
    """`measure` of each of so many labels [L], in threads that take `width` columns at a time."""
    result = np.empty(labels)

    def fill(columns: slice) -> None:
        for place, pair in enumerate(pairs_of(columns), columns.start):
            result[place] = measure(*pair)

    blocks = [slice(first, min(first + width, labels)) for first in range(0, labels, width)]
    workers = min(threads or min(cores(), THREADS), len(blocks))
    if workers < 2:
        list(map(fill, blocks))
    else:
        with ThreadPoolExecutor(workers) as pool:  # sorting and copying leave Python to the others
            list(pool.map(fill, blocks))
    return result


def columns_of(table: Array, columns: slice, kind: npt.DTypeLike) -> Array:
    """A copy [width, N] of these columns of a table [N, L], each of them contiguous.

    In tiles, because memory is read by the line, and a line holds the neighbours in a row.
    """
    block = np.empty((columns.stop - columns.start, len(table)), kind)
    for first in range(0, len(table), TILE):
        block[:, first : first + TILE] = table[first : first + TILE, columns].T
    return block


def kind_to_sort(values: Array) -> np.dtype[Any]:
    """The type in which these scores are sorted: their own, unless that is slow."""
    return np.dtype(np.float32) if values.dtype == np.float16 else values.dtype.newbyteorder("=")


def _per_label(
    measure: ColumnMeasure, values: Array, labels: Array, threads: int | None = None
) -> FloatArray:
    def pairs_of(columns: slice) -> Pairs:
        scores = columns_of(values, columns, kind_to_sort(values))
        return zip(scores, columns_of(labels, columns, np.int8), strict=True)

    return by_column(measure, pairs_of, labels.shape[1], width_of_block(len(labels)), threads)


def _positives(column: Array, labels: Array) -> Array:
    return np.sort(np.compress(labels == 1, column))


def _known(column: Array, labels: Array) -> Array:
    return column if labels.min(initial=0) >= 0 else np.compress(labels >= 0, column)


def _seen(known: Array, positives: Array) -> Array:
    """How many known entries score at or above each of the ascending `positives`."""
    near, far = _near(known, positives)
    return _at_or_above(near, positives) + far


def _at_or_above(ordered: Array, cuts: Array) -> Array:
    return ordered.size - np.searchsorted(ordered, cuts, side="left")


def _above(ordered: Array, cuts: Array) -> Array:
    return ordered.size - np.searchsorted(ordered, cuts, side="right")


def _near(values: Array, cuts: Array) -> tuple[Array, Array]:
    """The values near one of the ascending `cuts`, sorted; and how many others lie above each cut.

    The range of the values is divided into cells. Near are those in a cell with a cut: these alone
    must be compared with it, and so these alone are sorted by value. The others count by their
    cell, a small integer, which is three times as fast as sorting all values on some processors
    and about as fast on others. Whatever the cells are, the counts are exact.
    """
    cells_of = _cells(values, cuts) if 8 * cuts.size < values.size else None
    if cells_of is None:
        return np.sort(values), np.zeros(cuts.size, np.int64)
    cells, cells_with_cut = cells_of(values), cells_of(cuts)
    has_cut = np.zeros(CELLS, bool)
    has_cut[cells_with_cut] = True
    near = np.sort(np.compress(has_cut.take(cells), values))
    everything = _above(np.sort(cells, kind="stable"), cells_with_cut)
    return near, everything - _above(cells_of(near), cells_with_cut)


def _cells(values: Array, cuts: Array) -> Callable[[Array], Array] | None:
    """A function from numbers to cells that never falls; None where plain sorting is better.

    Cells are equally wide between the values at 1 % and 99 % of a sample, of the fourth root where
    no value is negative: probabilities crowd at 0. Subtracting, multiplying, roots and cutting off
    round a larger number to no smaller one, so the order of two cells is that of their values.
    """
    if values.size < FEW or values.dtype not in (np.float32, np.float64):
        return None
    of_root = min(values.min(), cuts.min(initial=0)) >= 0

    def spread(numbers: Array) -> Array:
        return np.asarray(np.sqrt(np.sqrt(numbers))) if of_root else numbers

    sample = np.sort(spread(values[:: values.size // SAMPLE]))
    low, high = sample[SAMPLE // 100], sample[-SAMPLE // 100]
    with np.errstate(over="ignore", divide="ignore"):
        scale = (CELLS - 1) / (high - low)
    if not 0 < scale < math.inf:
        return None

    def cells_of(numbers: Array) -> Array:
        with np.errstate(over="ignore"):
            places = (spread(numbers) - low) * scale
        return np.clip(places, 0, CELLS - 1, out=places).astype(np.uint16)

    return cells_of


def _best_threshold(column: Array, labels: Array) -> float:
    positives, known = _positives(column, labels), _known(column, labels)
    if not 0 < positives.size < known.size:
        return 0.5
    # Between two positives F1 only falls, so the best threshold ends just below one of them.
    hits, seen = _at_or_above(positives, positives), _seen(known, positives)
    f1 = 2 * hits / (seen + positives.size)
    best = positives[positives.size - 1 - np.argmax(f1[::-1])]
    upper, lower = float(best), float(np.max(known, initial=0, where=known < best))
    middle = (lower + upper) / 2
    # Between two adjacent floats the middle rounds to one of them; the lower must stay out.
    return middle if middle > lower else upper


def _positives_above(other: int, scores: npt.ArrayLike, labels: npt.ArrayLike) -> FloatArray:
    def measure(column: Array, column_labels: Array) -> float:
        upper = _positives(column, column_labels)
        lower = np.compress(column_labels == other, column)
        near, far = _near(lower, upper)
        lost = (_at_or_above(near, upper) + _above(near, upper) + 2 * far).sum()
        pairs = upper.size * lower.size
        return float(_ratio(2 * pairs - lost, 2 * pairs, empty=math.nan))

    return _per_label(measure, *checked(scores, labels))


def _ratio(numerator: npt.ArrayLike, denominator: npt.ArrayLike, empty: float) -> FloatArray:
    top, bottom = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    return np.divide(top, bottom, out=np.full_like(bottom, empty), where=bottom > 0)


def _mean(values: Array) -> float:
    counted = values[~np.isnan(values)]
    return float(counted.mean()) if counted.size else math.nan


def _harmonic_mean(first: float, second: float) -> float:
    return 0.0 if first + second == 0 else 2 * first * second / (first + second)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _limits(thresholds: npt.ArrayLike, count: int) -> FloatArray:
    """One threshold a label [count]."""
    try:
        limits = np.asarray(thresholds, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"thresholds must be numbers ({error})") from error
    if limits.shape not in {(), (count,)} or not np.isfinite(limits).all():
        needed = f"one finite number or {count} of them, one a label"
        raise ConfigError(f"thresholds must be {needed}; their shape is {limits.shape}")
    # A whole row of float64: against a lone number NumPy would round the threshold to float32.
    return np.broadcast_to(limits, (count,))


def _binary_metric_function(name: str) -> tuple[Callable[..., Any], bool]:
    """The scikit-learn function, and whether it takes scores rather than decisions."""
    import sklearn.metrics

    takes_scores: dict[str, bool] = {}
    for candidate, function in inspect.getmembers(sklearn.metrics, inspect.isfunction):
        inputs = set(inspect.signature(function).parameters)
        of_scores = bool(inputs & {"y_score", "y_proba", "y_prob", "pred_decision"})
        of_decisions = bool(inputs & {"y_pred", "y2"})
        if "regression" not in function.__module__ and (of_scores or of_decisions):
            takes_scores[candidate] = of_scores or candidate in METRICS_OF_PROBABILITIES
    if name not in takes_scores:
        close = difflib.get_close_matches(str(name), takes_scores)
        hint = f"did you mean {first_few(close)}?" if close else "f1_score is one, for example"
        raise ConfigError(f"scikit-learn has no binary metric {name!r}: {hint}")
    metric = getattr(sklearn.metrics, name)
    try:
        # Curves, matrices and metrics of whole rankings show only when they are called.
        float(metric(np.array([0, 1, 1]), np.array([0, 1, 0])))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} does not give one number a label ({error})") from error
    return metric, takes_scores[name]


def _read(values: npt.ArrayLike, name: str, dimensions: int = 2) -> tuple[Array, list[str]]:
    """`values` as an array of numbers, or an empty one and what is wrong with it."""
    empty = np.empty((0,) * dimensions)
    try:
        array = np.asarray(_on_host(values))
    except (TypeError, ValueError, RuntimeError) as error:
        return empty, [f"{name} cannot become a NumPy array, pass one instead ({error})"]
    if array.ndim != dimensions or array.dtype.kind not in "fiub":
        shape = "[N, L]" if dimensions == 2 else "[L]"
        found = f"{array.dtype} of shape {array.shape}"
        return empty, [f"{name} must be numbers of shape {shape}, not {found}"]
    return array, []


def _on_host(values: Any) -> Any:
    """A tensor as one that NumPy reads, with the same values; anything else as it is."""
    if not hasattr(values, "detach"):
        return values
    tensor = values.detach().cpu()
    return tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor


def read_labels(labels: npt.ArrayLike) -> tuple[Array, list[str]]:
    """Labels as an array [N, L], and what is wrong with them."""
    table, problems = _read(labels, "labels")
    places, values = _find(table, lambda rows: (rows != 1) & (rows != 0) & (rows != -1))
    if places:
        found = first_few(np.unique(np.concatenate(values)).tolist())
        problems = [f"labels must be 1, 0 or -1, not {found}: {places}"]
    return table, problems


def row_blocks(table: Array) -> Iterator[slice]:
    """The rows of a table [N, L], some at a time."""
    height = max(1, ROWS // max(1, table.shape[1]))
    return (slice(first, first + height) for first in range(0, len(table), height))


def _find(table: Array, wrong: Callable[[Array], Array]) -> tuple[str, list[Array]]:
    """Where a table has wrong entries, in words that are empty if nowhere, and these entries."""
    places: list[list[int]] = []
    values: list[Array] = []
    count = 0
    for rows in row_blocks(table):
        marked = wrong(table[rows])
        if marked.any():
            count += int(np.count_nonzero(marked))
            values.append(np.unique(table[rows][marked]))
            if len(places) < SHOWN:
                places += np.add(np.argwhere(marked)[:SHOWN], [rows.start, 0]).tolist()
    if not count:
        return "", []
    more = f" and {count - SHOWN} more" if count > SHOWN else ""
    return f"at [row, column] {first_few(places[:SHOWN])}{more}", values


def checked(
    scores: npt.ArrayLike, labels: npt.ArrayLike, *, of_probabilities: bool = False
) -> tuple[Array, Array]:
    """Both as arrays [N, L], or an error that lists all that is wrong with either."""
    name = "probabilities" if of_probabilities else "scores"
    values, problems = _read(scores, name)
    table, label_problems = read_labels(labels)
    labels_readable = table.size > 0 or not label_problems
    if not problems and labels_readable and values.shape != table.shape:
        problems.append(f"{name} have shape {values.shape} but labels {table.shape}")
    if places := _find(values, lambda rows: ~np.isfinite(rows))[0]:
        problems.append(f"{name} must be finite: {places}")
    if of_probabilities and (places := _find(values, _outside)[0]):
        problems.append(f"{name} must lie between 0 and 1: {places}")
    raise_if(problems + label_problems, DataError if problems else LabelError)
    return values, table


def _outside(probabilities: Array) -> Array:
    return np.isfinite(probabilities) & ((probabilities < 0) | (probabilities > 1))
