"""Exact ranking metrics of what one array in memory does not hold.

What enters: scores [N, L] and labels [N, L] (1 positive, 0 negative, -1 unknown) that lie on a GPU,
come block after block, or are spread over ranks; or, for huge label spaces, each image's k labels
with the highest scores [N, k] and its labels as compressed sparse rows.
What leaves: float64 arrays, [L] as from `metrics.average_precision`, or [k].
Letters: N images, L labels, W ranks.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from partly import distributed, metrics
from partly.errors import DataError, LabelError, PartlyError, RunError, first_few, raise_if
from partly.labels import LabelTable
from partly.metrics import Array, FloatArray

ON_DEVICE = 2**22  # entries of the columns that a device sorts together, in some 70 bytes each
PIECE = 2**22  # entries of the images whose scores are written together
NARROW = ("bfloat16", "float16", "float32")  # scores that float32 holds
FEWEST = 3  # training images, for a label's chance to be missed
IMAGES = 2**16  # of which the labels with the highest scores are looked up together

Measure = Callable[[Any, Any], FloatArray]  # of each column of scores and labels [N, L] by itself
# By the names that `metrics.select_scores` gives them.
CRITERIA: dict[str, Measure] = {
    "mAP of known labels": metrics.average_precision,
    "AUROC of known positives against unknown": metrics.positives_above_unknown,
}


# On a device -------------------------------------------------------------------------------------


def average_precision_on_device(scores: Tensor, labels: Any) -> FloatArray:
    """`metrics.average_precision` of scores [N, L], computed where they lie.

    labels: [N, L], anywhere; the columns that are being sorted follow the scores.

    >>> average_precision_on_device(torch.tensor([[0.9], [0.8], [0.7]]), [[1], [0], [1]]).round(4)
    array([0.8333])
    """
    if isinstance(labels, Tensor):
        truth: Array | Tensor = labels
        fine = truth.shape == scores.shape and _are_labels(labels)
    else:
        truth, faults = metrics.read_labels(labels)
        fine = truth.shape == tuple(scores.shape) and not faults
    if not (fine and scores.ndim == 2 and _is_finite(scores)):
        metrics.checked(scores, labels)  # says what is wrong
    images, count = scores.shape
    result = np.full(count, np.nan)
    width = max(1, ON_DEVICE // max(1, images))
    for first in range(0, count if images else 0, width):
        columns = slice(first, min(first + width, count))
        block = _columns(scores.detach(), columns, scores.dtype, scores.device)
        answers = _columns(truth, columns, torch.int8, scores.device)
        result[columns] = _by_row(block, answers).cpu().numpy()
    return result


def _is_finite(scores: Tensor) -> bool:
    return all(bool(torch.isfinite(rows).all()) for rows in _row_blocks(scores))


def _are_labels(labels: Tensor) -> bool:
    if labels.dtype == torch.bool:
        return True
    # Not ==, by which an unsigned 255 is -1.
    allowed = torch.tensor([1, 0, -1], device=labels.device)
    return all(bool(torch.isin(rows, allowed).all()) for rows in _row_blocks(labels))


def _row_blocks(table: Tensor) -> Sequence[Tensor]:
    return table.split(max(1, ON_DEVICE // max(1, table[:1].numel()))) if table.numel() else ()


def _by_row(scores: Tensor, labels: Tensor) -> Tensor:
    """Average precision [L] of scores and labels [L, N]."""
    scores = scores.byte() if scores.dtype == torch.bool else scores
    ordered, order = torch.sort(scores, dim=1)
    labels = labels.gather(1, order)
    first = torch.searchsorted(ordered, ordered)  # of the entries that tie with this one
    positive, known = labels == 1, labels >= 0
    precision = _from(first, positive).double() / _from(first, known)
    counted = torch.where(positive, precision, 0.0)
    return counted.sum(dim=1) / positive.sum(dim=1)


def _from(first: Tensor, counted: Tensor) -> Tensor:
    """How many entries [L, N] are counted from the place `first` on."""
    before = counted.cumsum(dim=1) - counted.long()
    return counted.sum(dim=1, keepdim=True) - before.gather(1, first)


# Block after block -------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """The known entries of some images on disk, label after label."""

    scores: Path
    labels: Path
    kind: np.dtype[Any]
    starts: Array  # of each label's entries [L + 1]


def streamed_average_precision(
    blocks: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]], folder: str | Path | None = None
) -> FloatArray:
    """`metrics.average_precision` of scores and labels that come in blocks of images, [n, L] each.

    A block can be a memory-mapped array of any length, or a batch of a loop:

        streamed_average_precision((model(images), labels) for images, labels in loader)

    The known scores are written to a temporary file, label by label, in the type they have, and
    read back a few labels at a time. Memory is that of a few copies of 4 million entries, then of
    `metrics.BLOCK` entries a thread, or 8 labels; the file has 5 bytes a known float32 entry. It
    lies in `folder`, by default where the system keeps temporary files: name a folder on a disk
    where that is memory.

    >>> streamed_average_precision([([[0.9], [0.8]], [[1], [0]]), ([[0.7]], [[1]])]).round(4)
    array([0.8333])
    """
    try:
        place = tempfile.TemporaryDirectory(prefix="partly-", dir=folder)
    except OSError as error:
        raise _disk_error(error) from error
    with place as name:
        numbered = enumerate(_pieces(blocks))
        return _of_pieces([_write(*piece, Path(name, str(number))) for number, piece in numbered])


def _disk_error(error: OSError) -> RunError:
    wanted = "name a folder with room for 5 bytes a known entry"
    return RunError(f"scores cannot be kept on disk ({error}): {wanted}")


def _pieces(
    blocks: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]],
) -> Iterator[tuple[Array, Array]]:
    """The blocks, checked, cut and joined to pieces of about PIECE entries: copies."""
    waiting: list[tuple[Array, Array]] = []
    entries, count = 0, -1
    for number, block in enumerate(blocks):
        if not isinstance(block, tuple | list) or len(block) != 2:
            raise DataError(f"block {number} is no pair of scores and labels, [n, L] each")
        scores, labels = _checked_block(number, *block)
        if count not in (-1, labels.shape[1]):
            raise DataError(
                f"block {number} has {labels.shape[1]} labels and those before it {count}: "
                "give all blocks the same columns"
            )
        count = labels.shape[1]
        height = max(1, PIECE // max(1, count))
        for first in range(0, max(1, len(labels)), height):
            rows = slice(first, first + height)
            # Copies: whoever yields the blocks may use the same array for the next.
            waiting.append((np.array(scores[rows]), labels[rows].astype(np.int8)))
            entries += waiting[-1][1].size
            if entries >= PIECE:
                yield _joined(waiting)
                waiting, entries = [], 0
    if count < 0:
        raise DataError("there is no block of scores: give one or more")
    if waiting:
        yield _joined(waiting)


def _checked_block(
    number: int, scores: npt.ArrayLike, labels: npt.ArrayLike
) -> tuple[Array, Array]:
    try:
        return metrics.checked(scores, labels)
    except PartlyError as error:
        raise type(error)([f"block {number}: {problem}" for problem in error.problems]) from None


def _joined(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    return (
        parts[0]
        if len(parts) == 1
        else (
            np.concatenate([scores for scores, _ in parts]),
            np.concatenate([labels for _, labels in parts]),
        )
    )


def _write(scores: Array, labels: Array, path: Path) -> _Piece:
    everything, kind = slice(0, labels.shape[1]), metrics.kind_to_sort(scores)
    by_label = metrics.columns_of(labels, everything, np.int8)
    known = by_label >= 0
    piece = _Piece(
        path.with_suffix(".scores"),
        path.with_suffix(".labels"),
        kind,
        np.concatenate([[0], np.cumsum(np.count_nonzero(known, axis=1))]),
    )
    try:
        metrics.columns_of(scores, everything, kind)[known].tofile(piece.scores)
        by_label[known].tofile(piece.labels)
    except OSError as error:
        raise _disk_error(error) from error
    return piece


def _of_pieces(pieces: Sequence[_Piece]) -> FloatArray:
    longest = np.sum([np.diff(piece.starts) for piece in pieces], axis=0).max(initial=0)

    def pairs_of(columns: slice) -> metrics.Pairs:
        scores = [_read(piece.scores, piece.kind, piece.starts, columns) for piece in pieces]
        labels = [_read(piece.labels, np.int8, piece.starts, columns) for piece in pieces]
        for place in range(columns.stop - columns.start):
            yield (
                np.concatenate([parts[place] for parts in scores]),
                np.concatenate([parts[place] for parts in labels]),
            )

    return metrics.by_column(
        metrics.column_average_precision,
        pairs_of,
        len(pieces[0].starts) - 1,
        metrics.width_of_block(int(longest)),
    )


def _read(path: Path, kind: npt.DTypeLike, starts: Array, columns: slice) -> list[Array]:
    """What a piece's file holds of each of these labels."""
    wanted = starts[columns.start : columns.stop + 1]
    size = np.dtype(kind).itemsize
    block = np.fromfile(path, kind, count=wanted[-1] - wanted[0], offset=wanted[0] * size)
    return np.split(block, wanted[1:-1] - wanted[0])


# Over ranks --------------------------------------------------------------------------------------


class _Shard(NamedTuple):
    """What the other ranks must know of one rank's images."""

    images: int
    labels: int
    narrow: bool  # float32 holds its scores
    problems: list[str]


def sharded(
    measure: Measure,
    scores: Any,
    labels: Any,
    group: dist.ProcessGroup | None = None,
    *,
    kind: torch.dtype = torch.int8,
) -> FloatArray:
    """`measure` [L] of all ranks' images, on every rank: `metrics.tune_thresholds`, for example.

    measure: of scores and labels, whatever columns [N, l] of them it is given, a number a column.
    scores, labels: [n, L], this rank's own images, none or more; each image on one rank only (a
    sampler that repeats images to fill up a batch counts them twice).
    kind: of the labels; torch.float32 for expected ones, which may be any number.

    Nothing is gathered whole. The ranks exchange columns, a block at a time, so that each gets all
    N images of its share of the labels; they hold N·L/W entries or fewer at a time and send every
    entry once. Scores travel as float32, or as float64 if a rank has any that float32 does not
    hold. Without a process group this rank is the only one.
    """
    if _alone():
        return measure(scores, labels)
    device = _device(group)
    table, truth, shards = _meet(scores, labels, group, kind)
    precision = torch.float32 if all(shard.narrow for shard in shards) else torch.float64
    images, count = [shard.images for shard in shards], shards[0].labels
    result = torch.zeros(count, dtype=torch.float64, device=device)
    for shares in _shares(count, len(shards), sum(images)):
        own = shares[dist.get_rank(group)]
        span, widths = slice(shares[0].start, shares[-1].stop), [len(share) for share in shares]
        block = _exchange(_columns(table, span, precision, device), widths, images, group)
        answers = _exchange(_columns(truth, span, kind, device), widths, images, group)
        result[own.start : own.stop] = _of_share(measure, block, answers)
    dist.all_reduce(result, group=group)  # each label has one rank that adds to nought
    return np.asarray(result.cpu().numpy())


def sharded_average_precision(
    scores: Any, labels: Any, group: dist.ProcessGroup | None = None
) -> FloatArray:
    """`metrics.average_precision` [L] of all ranks' images, on every rank; see `sharded`."""
    return sharded(metrics.average_precision, scores, labels, group)


def sharded_select_scores(
    scores: Any, labels: Any, group: dist.ProcessGroup | None = None
) -> tuple[FloatArray, str]:
    """`metrics.select_scores` of all ranks' images, on every rank; see `sharded`."""
    if _alone():
        return metrics.select_scores(scores, labels)
    _, truth, _ = _meet(scores, labels, group)
    known = torch.zeros(2, truth.shape[1], dtype=torch.uint8, device=_device(group))
    together = max(1, metrics.BLOCK // max(1, len(truth)))
    for first in range(0, truth.shape[1], together):
        span = slice(first, min(first + together, truth.shape[1]))
        own = _columns(truth, span, torch.int8, known.device)
        for place, value in enumerate((1, 0)):
            known[place, span] = (own == value).any(dim=1).byte()
    dist.all_reduce(known, dist.ReduceOp.MAX, group=group)
    # Which criterion it is, and which labels it can score, follows from which of them have a
    # positive and which a negative anywhere. Three images say it, of the last nothing is known.
    summary = np.where(known.cpu().numpy() > 0, [[1], [0]], -1)
    summary = np.concatenate([summary, np.full_like(summary[:1], -1)])
    scored, criterion = metrics.select_scores(np.zeros(summary.shape), summary)
    values = sharded(CRITERIA[criterion], scores, labels, group)
    values[np.isnan(scored)] = np.nan
    return values, criterion


def _alone() -> bool:
    """Whether there is no other rank; an error where there are some who have not met."""
    if dist.is_initialized():
        return False
    if distributed.launched():
        raise PartlyError(
            "torchrun has started several ranks, and they have not met: call "
            "torch.distributed.init_process_group first"
        )
    return True


def _device(group: dist.ProcessGroup | None) -> torch.device:
    """Where the tensors lie that these ranks send each other."""
    on_gpu = "nccl" in str(dist.get_backend(group))
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def _meet(
    scores: Any,
    labels: Any,
    group: dist.ProcessGroup | None,
    kind: torch.dtype = torch.int8,
) -> tuple[Array | Tensor, Array | Tensor, list[_Shard]]:
    """This rank's scores and labels, and what all ranks have; the faults of one are told by all.

    A rank that stopped alone would leave the others waiting for it.
    """
    table: Array | Tensor = np.empty((0, 0))
    truth: Array | Tensor = table
    problems: list[str] = []
    try:
        expected = kind != torch.int8  # and then made by partly itself
        table, truth = (scores, labels) if expected else _checked_shard(scores, labels)
    except PartlyError as error:
        problems = error.problems
    narrow = not table.shape[0] or str(table.dtype).rpartition(".")[2] in NARROW
    shard = _Shard(table.shape[0], table.shape[1], narrow, problems)
    shards: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(shards, shard, group=group)
    told = [f"rank {r}: {problem}" for r, shard in enumerate(shards) for problem in shard.problems]
    counts = [shard.labels for shard in shards]
    if not told and len(set(counts)) > 1:
        told = [f"the ranks score {first_few(counts)} labels: give all of them the same columns"]
    raise_if(told, DataError)
    return table, truth, shards


def _checked_shard(scores: Any, labels: Any) -> tuple[Array | Tensor, Array | Tensor]:
    """Tensors on a GPU stay there; anything else becomes arrays."""
    if not (isinstance(scores, Tensor) and isinstance(labels, Tensor) and scores.is_cuda):
        return metrics.checked(scores, labels)
    alike = scores.ndim == 2 and scores.shape == labels.shape
    if not (alike and _is_finite(scores) and _are_labels(labels)):
        metrics.checked(scores, labels)  # says what is wrong
    return scores.detach(), labels


def _shares(count: int, ranks: int, images: int) -> list[list[range]]:
    """Which labels each rank takes in each round, so that all have about as many to do."""
    rounds = max(1, -(-count // (metrics.width_of_block(images) * ranks)))
    edges = np.linspace(0, count, rounds * ranks + 1).astype(int).tolist()
    shares = [range(*edge) for edge in pairwise(edges)]
    return [shares[first : first + ranks] for first in range(0, len(shares), ranks)]


def _columns(
    table: Array | Tensor, columns: slice, kind: torch.dtype, device: torch.device
) -> Tensor:
    """These columns [width, n] of a table [n, L]."""
    if isinstance(table, Tensor):
        return table[:, columns].to(device).to(kind).T.contiguous()
    kinds = {torch.float32: np.float32, torch.float64: np.float64, torch.int8: np.int8}
    return torch.from_numpy(metrics.columns_of(table, columns, kinds[kind])).to(device)


def _exchange(
    columns: Tensor, widths: list[int], images: list[int], group: dist.ProcessGroup | None
) -> Tensor:
    """The columns of this rank's share [width, N], for those of all shares [sum of widths, n]."""
    rank = dist.get_rank(group)
    sizes = [widths[rank] * number for number in images]
    received = columns.new_empty(sum(sizes))
    sent = [width * images[rank] for width in widths]
    dist.all_to_all_single(received, columns.flatten(), sizes, sent, group=group)
    parts = zip(received.split(sizes), images, strict=True)
    return torch.cat([part.view(widths[rank], number) for part, number in parts], dim=1)


def _of_share(measure: Measure, scores: Tensor, labels: Tensor) -> Tensor:
    """`measure` [L] of scores and labels [L, N], where they lie."""
    # As many threads as torch has: ranks on one machine divide its cores between them.
    threads = 1 if scores.is_cuda else torch.get_num_threads()
    parts = (table.T.tensor_split(threads, dim=1) for table in (scores, labels))
    with ThreadPoolExecutor(threads) as pool:
        return torch.from_numpy(np.concatenate(list(pool.map(measure, *parts))))


# Huge label spaces -------------------------------------------------------------------------------


class Entries(NamedTuple):
    """Some labels of each of N images, as compressed sparse rows.

    The labels of image i are indices[indptr[i] : indptr[i + 1]]. SciPy's CSR matrices have the same
    names and do as well; `entries` makes them of a table.
    """

    indptr: Array
    indices: Array


def entries(table: LabelTable, value: int) -> Entries:
    """The labels of each image that have this value: 1, its positives, or 0, its negatives."""
    marked = np.concatenate([[0], np.cumsum(table.values == value)])
    return Entries(marked[table.indptr], table.indices[table.values == value])


def precision_at_k(
    top: npt.ArrayLike, positives: Entries, negatives: Entries | None = None
) -> FloatArray:
    """P@1 … P@k [k]: the share of positives among each image's first labels, mean over images.

    top: [N, k], each image's labels by falling score, the first k. Labels that are not among the
    positives count as negative; with `negatives` these are the known ones and all others are
    unknown, which leaves them out: the share is one of the known labels among the first, and an
    image without any is left out of the mean. nan where no image is left.

    >>> precision_at_k([[2, 0], [1, 0]], Entries(np.array([0, 2, 3]), np.array([0, 2, 0])))
    array([0.5 , 0.75])
    """
    first = _checked_top(top, positives, negatives)
    shares, counted = np.zeros(first.shape[1]), np.zeros(first.shape[1])
    for part in _looked_up(first, positives, negatives):
        seen = np.cumsum(part.known, axis=1)
        shares += (np.cumsum(part.hits, axis=1) / np.maximum(seen, 1)).sum(axis=0)
        counted += np.count_nonzero(seen, axis=0)
    return _divide(shares, counted)


def label_propensities(
    train_positives: npt.ArrayLike, images: int, *, a: float = 0.55, b: float = 1.5
) -> FloatArray:
    """How likely a label [L] is given where it is true, of Jain, Prabhu and Varma (KDD 2016).

    p = 1 / (1 + C · exp(-a · log(train_positives + b))) with C = (log images - 1) · (b + 1)^a.
    The extreme classification repository uses a = 0.5, b = 0.4 for Wikipedia, a = 0.6, b = 2.6 for
    Amazon and the defaults for all else.

    >>> label_propensities([0, 10, 1000], 10_000).round(3)
    array([0.084, 0.22 , 0.767])
    """
    counts = np.asarray(train_positives)
    problems = []
    if counts.ndim != 1 or counts.dtype.kind not in "iuf":
        problems.append(f"train_positives must be counts [L], not {counts.dtype} {counts.shape}")
    elif not np.all((counts >= 0) & (counts <= images)):
        problems.append(f"train_positives must lie between 0 and the number of images, {images}")
    if images < FEWEST:
        problems.append(f"propensities need {FEWEST} training images or more, not {images}")
    raise_if(problems, DataError)
    scale = (np.log(images) - 1) * (b + 1) ** a
    return np.asarray(1 / (1 + scale * (counts + b) ** -a), np.float64)


def propensity_scored_precision_at_k(
    top: npt.ArrayLike,
    positives: Entries,
    propensities: npt.ArrayLike,
    negatives: Entries | None = None,
) -> FloatArray:
    """PSP@1 … PSP@k [k]: precision in which a rare label counts more, of what could be attained.

    PSP@k = Σ over images and their first k labels of y/p, divided by the same sum for the best k
    labels of each image. `top`, `positives` and `negatives` as in `precision_at_k`; of an image
    with j known labels among its first k the best j are taken. nan where nothing can be attained.

    >>> positives = Entries(np.array([0, 2]), np.array([0, 2]))
    >>> propensity_scored_precision_at_k([[0, 1]], positives, [0.5, 0.5, 0.25]).round(3)
    array([0.5  , 0.333])
    """
    first = _checked_top(top, positives, negatives)
    weights = 1 / _checked_propensities(propensities, first, positives)
    gained, best = np.zeros(first.shape[1]), np.zeros(first.shape[1])
    for part in _looked_up(first, positives, negatives):
        gained += np.cumsum(part.hits * weights[part.top], axis=1).sum(axis=0)
        attained = _best_sums(part.positives, weights, first.shape[1])
        best += np.take_along_axis(attained, np.cumsum(part.known, axis=1), axis=1).sum(axis=0)
    return _divide(gained, best)


class _Part(NamedTuple):
    """Some images: their first labels [n, k], which are positive, which known, all positives."""

    top: Array
    hits: Array
    known: Array
    positives: Entries


def _looked_up(top: Array, positives: Entries, negatives: Entries | None) -> Iterator[_Part]:
    for start in range(0, len(top), IMAGES):
        rows = slice(start, min(start + IMAGES, len(top)))
        own = _take(positives, rows)
        hits = among(top[rows], own)
        known = (
            np.ones_like(hits)
            if negatives is None
            else hits | among(top[rows], _take(negatives, rows))
        )
        yield _Part(top[rows], hits, known, own)


def _take(entries: Entries, rows: slice) -> Entries:
    indptr = np.asarray(entries.indptr[rows.start : rows.stop + 1]).astype(np.int64)
    own = np.asarray(entries.indices[indptr[0] : indptr[-1]])
    return Entries(indptr - indptr[0], own.astype(np.int64))


def _rows(entries: Entries) -> Array:
    """The image of each entry."""
    return np.repeat(np.arange(len(entries.indptr) - 1), np.diff(entries.indptr))


def among(top: Array, entries: Entries) -> Array:
    """Which labels [n, k] are among the entries of their image."""
    if not len(entries.indices):
        return np.zeros(top.shape, bool)
    width = 1 + max(int(top.max(initial=0)), int(entries.indices.max()))
    held = np.sort(_rows(entries) * width + entries.indices)
    if (held[1:] == held[:-1]).any():
        raise LabelError("an image has the same label twice: sum up duplicates first")
    asked = np.arange(len(top))[:, None] * width + top
    found = held[np.minimum(np.searchsorted(held, asked), held.size - 1)]
    return np.asarray(found == asked)


def _best_sums(positives: Entries, weights: Array, k: int) -> FloatArray:
    """The largest sum [n, k + 1] of the weights of j positives of each image, j from 0 to k."""
    rows, gains = _rows(positives), weights[positives.indices]
    order = np.lexsort((-gains, rows))
    place = np.arange(len(rows)) - positives.indptr[rows]
    best = np.zeros((len(positives.indptr) - 1, k + 1))
    kept = place < k
    best[rows[kept], place[kept] + 1] = gains[order][kept]
    return np.cumsum(best, axis=1)


def _divide(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    nothing = np.full_like(numerator, np.nan)
    return np.divide(numerator, denominator, out=nothing, where=denominator > 0)


def _checked_top(top: npt.ArrayLike, positives: Entries, negatives: Entries | None) -> Array:
    """`top` as int64, or an error that lists all that is wrong with it and with the entries."""
    try:
        first = np.asarray(top)
    except ValueError as error:
        raise DataError(f"top must be whole numbers of shape [N, k]: {error}") from None
    if first.ndim != 2 or first.dtype.kind not in "iu":
        raise DataError(
            f"top must be whole numbers of shape [N, k], not {first.dtype} of shape {first.shape}"
        )
    problems = []
    if first.size and first.min() < 0:
        problems.append("top must hold numbers of labels, from 0 on")
    in_order = np.sort(first, axis=1)
    twice = np.flatnonzero((in_order[:, 1:] == in_order[:, :-1]).any(axis=1))
    if len(twice):
        problems.append(f"top names a label twice in the rows {first_few(twice.tolist())}")
    faults = _faults("positives", positives, len(first))
    faults += _faults("negatives", negatives, len(first)) if negatives is not None else []
    raise_if(problems + faults, DataError if problems else LabelError)
    return first.astype(np.int64)


def _faults(name: str, entries: Any, images: int) -> list[str]:
    from scipy.sparse import issparse

    if issparse(entries):
        if entries.format != "csr":
            return [f"{name} are compressed by {entries.format}, not by rows: give .tocsr()"]
        if not (entries.data > 0).all():
            return [f"{name} have values that are not above 0: give (matrix > 0)"]
    if not (hasattr(entries, "indptr") and hasattr(entries, "indices")):
        kind = type(entries).__name__
        return [f"{name} are ranking.entries(table, value), or have indptr and indices, not {kind}"]
    indptr, indices = np.asarray(entries.indptr), np.asarray(entries.indices)
    if indptr.dtype.kind not in "iu" or (len(indices) and indices.dtype.kind not in "iu"):
        return [f"{name} must be whole numbers, not {indptr.dtype} and {indices.dtype}"]
    if indptr.shape != (images + 1,):
        return [f"{name} have rows for {len(indptr) - 1} images and top has {images}"]
    rises = (indptr[1:] >= indptr[:-1]).all()  # a difference of unsigned numbers is never negative
    if indptr[0] != 0 or indptr[-1] != len(indices) or not rises:
        return [f"{name} are no compressed sparse rows: indptr must rise from 0 to {len(indices)}"]
    if len(indices) and indices.min() < 0:
        return [f"{name} must hold numbers of labels, from 0 on"]
    return []


def _checked_propensities(
    propensities: npt.ArrayLike, top: Array, positives: Entries
) -> FloatArray:
    chances = np.asarray(propensities, np.float64)
    needed = 1 + int(max(top.max(initial=-1), np.max(positives.indices, initial=-1)))
    problems = []
    if chances.ndim != 1 or len(chances) < needed:
        problems.append(f"propensities have shape {chances.shape} and labels go up to {needed - 1}")
    if not np.all((chances > 0) & (chances <= 1)):
        problems.append("propensities must lie above 0 and not above 1")
    raise_if(problems, DataError)
    return chances
