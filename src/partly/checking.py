"""A look at a data set before anyone trains on it.

What enters: a `LabelTable`. What leaves: findings, a plain dict that JSON can hold, and the lines
that sum it up on a terminal. Nothing is changed, and nothing is drawn at random.

    images, labels, known, positive, negative, content_hash
    inputs         "images", "features" or "none"
    verify         how closely the images were looked at: full, quick, off
    problems       sentences: what must be mended
    warnings       sentences: what deserves a look
    notes          sentences: what the reader, or this check, did
    splits         {split: images, positive, negative, unknown, without_label, without_positive}
    label_counts   [{name, positive, negative, unknown, positive_in: {split: n}}]
    missing        how labels seem to go missing (see `missing.py`): resembles, setting, evidence
    imbalance      positives a label in training: quantiles, ratio, shares
    per_image      positives an image in training: histogram, mean
    co_occurrence  labels, together [[n]]: the most frequent; pairs: the strongest
    image_sizes    smallest, median, largest (width, height)
    image_kinds    {kind: {count, rows, examples}}: unusual, but read rightly
    bad_images     {count, listed: [{id, path, problem}]}
    duplicates     searched, groups (lists of ids), across, contradictions
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partly import images
from partly.duplicates import Duplicates, names_of, some_of
from partly.errors import ConfigError
from partly.images import Inspection
from partly.labels import POSITIVE, SPLITS, LabelTable
from partly.missing import Known, resemblance
from partly.readers.common import counted

Findings = dict[str, Any]

SMALL_PART = 30  # images; a figure measured on fewer means little
FEW_POSITIVES = 10
NEARLY_ALL = 0.99
TOGETHER = 5  # images; a pair of labels seen together less often is chance
HEAT_MAP = 30  # labels
PAIRS = 12
MANY_LABELS, LABELS_OF_MANY = 5000, 1000  # of so many labels only the most frequent are paired
PRODUCTS = 5 * 10**8  # of pairs within images; beyond, every so-manieth image is counted
LISTED = 1000  # of bad images and duplicates
ROWS = 2**18  # of a block

KINDS = {
    "animated": "animated or of several pages: only the first picture is used",
    "rotated": "turned by an EXIF orientation, and read upright",
    "CMYK": "in CMYK, the colours of print, and converted to RGB",
    "16 bits": "of 16 bits a channel, and scaled to 8",
    "palette": "of a palette, and converted to RGB",
    "narrow": f"more than {images.NARROW} times as long as wide: stretched to a square, little is "
    "left to see",
    "tiny": f"less than {images.TINY} pixels wide or high",
}


def check(table: LabelTable, *, verify: str = "full", workers: int | None = None) -> Findings:
    """Everything worth knowing about a data set; the keys are in the module's docstring.

    verify: "full" decodes every image, "quick" reads headers and ends, "off" opens none; then
    duplicates are not looked for either. workers: processes that read images; one a core if None.
    """
    if verify not in images.VERIFY:
        raise ConfigError(f"verify is one of {', '.join(images.VERIFY)}, not '{verify}'")
    counts = Counted.of(table)
    sample = table.drawn()  # what people were asked about does not say how labels go missing
    drawn = counts if sample is table else Counted.of(sample)
    look = None
    if table.paths is not None and verify != "off":
        look = images.inspect_all(table.paths, verify, workers)
    twice = None if verify == "off" else Duplicates.of(table, look)
    together = _co_occurrence(table, counts)
    notes = [*table.notes, *_notes(table, verify, together, look)]
    return {
        **_sizes(table, counts),
        "verify": verify,
        "problems": list(_problems(table, counts, look)),
        "warnings": [
            *_label_warnings(table, counts, drawn, together),
            *_part_warnings(table, counts),
            *([] if twice is None else twice.warnings(table, counts.parts)),
            *_kind_warnings(table, look),
        ],
        "notes": notes,
        "splits": _splits(counts),
        "label_counts": _label_counts(table, counts),
        "missing": resemblance(_known(sample, drawn)),
        "imbalance": _imbalance(counts),
        "per_image": _per_image(counts),
        "co_occurrence": together.summary(table),
        "image_sizes": _image_sizes(look),
        "image_kinds": _image_kinds(table, look),
        "bad_images": _bad_images(table, look),
        "duplicates": _duplicates(table, counts, twice),
    }


# --- counting ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """A table's entries, counted once. S parts, N images, L labels."""

    parts: np.ndarray  # int8 [N], places in SPLITS
    images: np.ndarray  # [S]
    positive: np.ndarray  # [S, L]
    negative: np.ndarray  # [S, L]
    positive_by_image: np.ndarray  # [N]
    known_by_image: np.ndarray  # [N]

    @classmethod
    def of(cls, table: LabelTable) -> "Counted":
        parts = np.zeros(len(table), dtype=np.int8)
        for place, split in enumerate(SPLITS) if table.splits is not None else ():
            parts[table.splits == split] = place
        by_image = table.counts_by_image()
        labels, known = len(table.names), np.diff(table.indptr)
        counts = np.zeros(2 * len(SPLITS) * labels, dtype=np.int64)
        for first in range(0, len(table), ROWS):
            rows = slice(first, first + ROWS)
            entries = slice(table.indptr[first], table.indptr[min(first + ROWS, len(table))])
            part = np.repeat(parts[rows].astype(np.int64), known[rows])
            cells = (2 * part + table.values[entries]) * labels + table.indices[entries]
            counts += np.bincount(cells, minlength=len(counts))
        negative, positive = counts.reshape(len(SPLITS), 2, labels).transpose(1, 0, 2)
        in_parts = np.bincount(parts, minlength=len(SPLITS))
        return cls(parts, in_parts, positive, negative, by_image.positive, known)

    @property
    def training(self) -> np.ndarray:
        """[N] which images there are to learn from; all where none is marked."""
        return self.parts == 0 if self.images[0] else np.ones(len(self.parts), dtype=bool)

    @property
    def to_learn(self) -> tuple[np.ndarray, np.ndarray]:
        """Positives [L] and negatives [L] of the training images."""
        if self.images[0]:
            return self.positive[0], self.negative[0]
        return self.positive.sum(axis=0), self.negative.sum(axis=0)


def _sizes(table: LabelTable, counts: Counted) -> Findings:
    kind = "none" if table.paths is None else "images"
    positive = int(counts.positive.sum())
    return {
        "images": len(table),
        "labels": len(table.names),
        "known": table.known,
        "positive": positive,
        "negative": table.known - positive,
        "content_hash": table.content_hash,
        "inputs": kind if table.features is None else "features",
        "features": None if table.features is None else table.features.shape[1],
    }


def _splits(counts: Counted) -> Findings:
    found = {}
    for place, split in enumerate(SPLITS):
        size = int(counts.images[place])
        if not size:
            continue
        inside = counts.parts == place
        positive, negative = int(counts.positive[place].sum()), int(counts.negative[place].sum())
        found[split] = {
            "images": size,
            "positive": positive,
            "negative": negative,
            "unknown": size * counts.positive.shape[1] - positive - negative,
            "without_label": int((counts.known_by_image[inside] == 0).sum()),
            "without_positive": int((counts.positive_by_image[inside] == 0).sum()),
        }
    return found


def _label_counts(table: LabelTable, counts: Counted) -> list[Findings]:
    positive, negative = counts.positive.sum(axis=0), counts.negative.sum(axis=0)
    parts = [place for place in range(len(SPLITS)) if counts.images[place]]
    columns = zip(table.names, positive.tolist(), negative.tolist(), strict=True)
    in_parts = counts.positive.tolist()
    return [
        {
            "name": name,
            "positive": yes,
            "negative": no,
            "unknown": len(table) - yes - no,
            "positive_in": {SPLITS[place]: in_parts[place][column] for place in parts},
        }
        for column, (name, yes, no) in enumerate(columns)
    ]


def _known(table: LabelTable, counts: Counted) -> Known:
    inside = counts.training
    positive, negative = counts.to_learn
    return Known(
        by_image=counts.known_by_image[inside],
        positive_by_image=counts.positive_by_image[inside],
        by_label=positive + negative,
        positive_by_label=positive,
        patterns=_patterns(table)[inside],
    )


def _patterns(table: LabelTable) -> np.ndarray:
    """[N] a number for the set of labels that is known of an image."""
    numbers = np.random.default_rng(0).integers(0, 2**64, len(table.names), dtype=np.uint64)
    found = np.zeros(len(table), dtype=np.uint64)
    for first in range(0, len(table), ROWS):
        bounds = table.indptr[first : first + ROWS + 1]
        sums = np.zeros(bounds[-1] - bounds[0] + 1, dtype=np.uint64)
        np.cumsum(numbers[table.indices[bounds[0] : bounds[-1]]], out=sums[1:])
        found[first : first + ROWS] = np.diff(sums[bounds - bounds[0]])  # wraps, as it should
    return found


def _imbalance(counts: Counted) -> Findings:
    positive, negative = counts.to_learn
    some = positive[positive > 0]
    known = positive + negative
    share = positive / np.maximum(known, 1)
    quantiles = np.quantile(positive, [0, 0.25, 0.5, 0.75, 1]) if len(positive) else np.zeros(5)
    names = ("least", "lower_quarter", "median", "upper_quarter", "most")
    return {
        **dict(zip(names, quantiles.tolist(), strict=True)),
        "ratio": float(some.max() / some.min()) if len(some) else None,
        "share_positive": float(positive.sum() / known.sum()) if known.sum() else None,
        "labels_without_positive": int((positive == 0).sum()),
        "labels_with_few": int(((positive > 0) & (positive < FEW_POSITIVES)).sum()),
        "labels_under_one_percent": int(((share < 0.01) & (negative > 0)).sum()),
    }


def _per_image(counts: Counted) -> Findings:
    positives = counts.positive_by_image[counts.training]
    return {
        "positives": np.bincount(positives).tolist(),
        "mean_positives": float(positives.mean()),
        "mean_known": float(counts.known_by_image[counts.training].mean()),
    }


# --- labels together -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Together:
    """How often the most frequent labels are positive in the same training image."""

    columns: np.ndarray  # [M] of the table, the most frequent first
    counts: np.ndarray  # [M, M]; the diagonal is a label's own count
    images: int  # so many were counted
    step: int  # every so-manieth image was

    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Places of pairs seen together often enough to mean something, and how often."""
        first, second = np.nonzero(np.triu(self.counts >= TOGETHER, 1))
        return first, second, self.counts[first, second]

    def twins(self) -> list[tuple[int, int, int]]:
        """(column, column, images) of labels that are positive in exactly the same images."""
        first, second, both = self.pairs()
        own = np.diagonal(self.counts)
        same = np.flatnonzero((both == own[first]) & (both == own[second]))
        return [
            (int(self.columns[first[k]]), int(self.columns[second[k]]), int(both[k])) for k in same
        ]

    def summary(self, table: LabelTable) -> Findings:
        shown = min(HEAT_MAP, len(self.columns))
        return {
            "images": self.images,
            "labels": [table.names[column] for column in self.columns[:shown]],
            "together": self.counts[:shown, :shown].tolist(),
            "pairs": self._strongest(table),
        }

    def _strongest(self, table: LabelTable) -> list[Findings]:
        """Pairs by Jaccard, the share of the images with either label that have both."""
        first, second, both = self.pairs()
        own = np.diagonal(self.counts).astype(np.float64)
        jaccard = both / (own[first] + own[second] - both)
        lift = both * self.images / (own[first] * own[second])
        best = np.lexsort((second, first, -jaccard))[:PAIRS]
        return [
            {
                "first": table.names[self.columns[first[k]]],
                "second": table.names[self.columns[second[k]]],
                "together": int(both[k]),
                "jaccard": float(jaccard[k]),
                "lift": float(lift[k]),
            }
            for k in best
        ]


def _co_occurrence(table: LabelTable, counts: Counted) -> Together:
    """Positives of the same image, counted by a sparse product."""
    from scipy.sparse import csr_array

    positive, _ = counts.to_learn
    columns = np.argsort(-positive, kind="stable")
    columns = columns[positive[columns] > 0]
    if len(table.names) > MANY_LABELS:
        columns = columns[:LABELS_OF_MANY]
    step = 1 + int((counts.positive_by_image.astype(np.float64) ** 2).sum() // PRODUCTS)
    chosen = counts.training & (np.arange(len(table)) % step == 0)
    place = np.full(len(table.names), -1, dtype=np.int32)
    place[columns] = np.arange(len(columns), dtype=np.int32)
    found = np.zeros((len(columns), len(columns)), dtype=np.int64)
    for first in range(0, len(table), ROWS):  # a block fits into the processor's cache
        bounds = table.indptr[first : first + ROWS + 1]
        entries = slice(bounds[0], bounds[-1])
        column = place[table.indices[entries]]
        kept = (table.values[entries] == POSITIVE) & (column >= 0)
        kept &= np.repeat(chosen[first : first + ROWS], np.diff(bounds))
        before = np.concatenate([[0], np.cumsum(kept, dtype=np.int32)])
        column = column[kept]
        matrix = csr_array(
            (np.ones(len(column), dtype=np.int32), column, before[bounds - bounds[0]]),
            shape=(len(bounds) - 1, len(columns)),
        )
        found += (matrix.T @ matrix).toarray()
    return Together(columns, found, int(chosen.sum()), step)


# --- what is wrong -------------------------------------------------------------------------------


def _problems(table: LabelTable, counts: Counted, look: Inspection | None) -> Iterator[str]:
    if not counts.images[0]:
        yield "no image is marked 'train': there is nothing to learn from"
    elif not (counts.positive[0].sum() + counts.negative[0].sum()):
        yield "every label of the training images is unknown: there is nothing to learn from"
    elif not counts.positive[0].sum():
        yield "no label is known to be positive in a training image: there is nothing to look for"
    if len(table.names) < 2:
        yield f"only one label ('{table.names[0]}'): a multi-label data set has two or more"
    if table.paths is None and table.features is None:
        yield "the table has neither image paths nor features: there is nothing to look at"
    if look is not None and table.paths is not None:
        yield from images.describe_problems(table.paths, look.problems)


def _label_warnings(
    table: LabelTable, counts: Counted, drawn: Counted, together: Together
) -> Iterator[str]:
    """Each label that deserves a look; one that cannot be learnt is not told twice. drawn: the
    counts without what people were asked about."""
    positive, negative = counts.to_learn
    known = counts.positive.sum(axis=0) + counts.negative.sum(axis=0)
    anywhere = counts.positive.sum(axis=0)
    share = positive / np.maximum(positive + negative, 1)
    answered = bool(drawn.to_learn[1].any())  # else of no label, as in PPL and SPL
    constant = (negative == 0) & (positive > 1) & answered
    kinds = {
        "unknown in every image: nothing to learn, nothing to score": known == 0,
        "never positive: nothing to learn, nothing to score": (known > 0) & (anywhere == 0),
        "positive outside training only, and cannot be learnt": (positive == 0) & (anywhere > 0),
        "positive in a single training image": positive == 1,
        f"positive in fewer than {FEW_POSITIVES} training images": (positive > 1)
        & (positive < FEW_POSITIVES)
        & ~constant,
        "positive wherever known in training, without a single negative": constant,
        "positive in more than 99 % of what is known in training, which says little": (
            (share > NEARLY_ALL) & (negative > 0)
        ),
    }
    for what, chosen in kinds.items():
        columns = np.flatnonzero(chosen)
        if len(columns):
            yield f"{_labels(table, columns)} {what}"
    for place in (2, 1):
        columns = np.flatnonzero((positive > 0) & (counts.positive[place] == 0))
        if counts.positive[place].any() and len(columns):
            yield (
                f"{_labels(table, columns)} without a known positive in {SPLITS[place]}, and "
                "cannot be scored there"
            )
    yield from _twins(table, together)
    yield from _like_names(table.names)


def _labels(table: LabelTable, columns: np.ndarray) -> str:
    """`1 label ('cat') is`, `3 labels ('cat', 'dog', 'cow') are`."""
    named = some_of([f"'{table.names[column]}'" for column in columns[:5]], len(columns))
    return f"{counted(len(columns), 'label')} ({named}) {'is' if len(columns) == 1 else 'are'}"


def _twins(table: LabelTable, together: Together) -> Iterator[str]:
    twins = together.twins()
    named = [f"'{table.names[a]}' and '{table.names[b]}' ({n:,} images)" for a, b, n in twins[:5]]
    if twins:
        verb = "is" if len(twins) == 1 else "are"
        yield (
            f"{counted(len(twins), 'pair')} of labels {verb} positive "
            f"in exactly the same training images: {some_of(named, len(twins), '; ')}"
        )


def _like_names(names: Sequence[str]) -> Iterator[str]:
    """Names that differ only by what the eye passes over."""
    alike: dict[str, list[str]] = {}
    for name in names:
        plain = unicodedata.normalize("NFKC", name).casefold()
        plain = "".join(" " if letter in "_-" else letter for letter in plain)
        alike.setdefault("".join(plain.split()), []).append(name)
    groups = [" and ".join(f"'{name}'" for name in group) for group in alike.values() if group[1:]]
    if groups:
        yield (
            "label names differ by nothing but case, spaces or hyphens, and may be one label: "
            f"{some_of(groups[:5], len(groups), '; ')}"
        )


def _part_warnings(table: LabelTable, counts: Counted) -> Iterator[str]:
    for place, split in enumerate(SPLITS):
        size = int(counts.images[place])
        if 0 < size < SMALL_PART:
            yield f"{split} has only {counted(size, 'image')}: figures will be chance"
        known = counts.positive[place].sum() + counts.negative[place].sum()
        if place and size and not known:
            yield f"no label is known in {split}: nothing can be measured there"
        elif place and size and not counts.negative[place].any():
            yield f"no negative is known in {split}: every ranking is perfect there, at mAP 100"
    empty = np.flatnonzero(counts.known_by_image == 0)
    if len(empty):
        verb = "has" if len(empty) == 1 else "have"
        named = some_of(names_of(table, empty[:5]), len(empty))
        yield f"{counted(len(empty), 'image')} {verb} no known label: {named}"


def _kind_warnings(table: LabelTable, look: Inspection | None) -> Iterator[str]:
    for kind, what in KINDS.items() if look is not None else ():
        rows = look.of_kind(kind)  # type: ignore[union-attr]
        if len(rows):
            verb = "is" if len(rows) == 1 else "are"
            named = some_of(names_of(table, rows[:5]), len(rows))
            yield f"{counted(len(rows), 'image')} {verb} {what}: {named}"


def _notes(
    table: LabelTable, verify: str, together: Together, look: Inspection | None
) -> Iterator[str]:
    if look is not None and look.problems:
        count = counted(len(look.problems), "image")
        yield f"{count} cannot be used: mend them, or train without them: --on-bad-image skip"
    if verify == "off" and table.paths is not None:
        yield "the images were not opened: neither faults nor duplicates were looked for"
    elif verify == "off" and table.features is not None:
        yield "duplicates were not looked for"
    elif verify == "quick" and table.paths is not None:
        yield "of the images only headers and ends were read: damage in between goes unseen"
    if len(table.names) > MANY_LABELS:
        yield f"co-occurrence: of the {LABELS_OF_MANY:,} most frequent labels only"
    if together.step > 1:
        yield f"co-occurrence: counted in 1 of {together.step} images"


# --- images --------------------------------------------------------------------------------------


def _duplicates(table: LabelTable, counts: Counted, twice: Duplicates | None) -> Findings:
    if twice is None:
        return {
            "searched": False,
            "count": 0,
            "groups": [],
            "rows": [],
            "across": [],
            "contradictions": [],
        }
    across = twice.across(counts.parts)
    return {
        "searched": True,
        "count": len(twice.groups),
        "groups": [names_of(table, rows) for rows in twice.groups[:LISTED]],
        "rows": [rows.tolist() for rows in twice.groups[:LISTED]],
        "across": [{"part": a, "other": b, "images": len(pairs)} for a, b, pairs in across],
        "contradictions": [
            {"positive": table.ids[yes], "negative": table.ids[no], "label": table.names[column]}
            for yes, no, column in twice.contradictions[:LISTED]
        ],
    }


def _image_sizes(look: Inspection | None) -> Findings | None:
    sizes = None if look is None else look.sizes[look.sizes.min(axis=1) > 0]
    if sizes is None or not len(sizes):
        return None
    by_pixels = sizes[np.argsort(sizes.astype(np.int64).prod(axis=1), kind="stable")]
    places = {"smallest": 0, "median": len(sizes) // 2, "largest": -1}
    return {name: by_pixels[place].tolist() for name, place in places.items()}


def _image_kinds(table: LabelTable, look: Inspection | None) -> Findings:
    found = {}
    for kind in KINDS if look is not None else ():
        rows = look.of_kind(kind)  # type: ignore[union-attr]
        if len(rows):
            few = rows[:6]
            found[kind] = {
                "count": len(rows),
                "rows": few.tolist(),
                "examples": names_of(table, few),
            }
    return found


def _bad_images(table: LabelTable, look: Inspection | None) -> Findings:
    problems = {} if look is None else look.problems
    assert table.paths is not None or not problems
    listed = [
        {"id": table.ids[row], "path": table.paths[row], "problem": what, "row": row}  # type: ignore[index]
        for row, what in list(problems.items())[:LISTED]
    ]
    return {"count": len(problems), "listed": listed}


# --- the terminal --------------------------------------------------------------------------------


def summary_lines(findings: Findings) -> Iterator[str]:
    """What one wants to see first: about forty lines, however many labels there are."""
    yield f"{findings['images']:,} images, {findings['labels']:,} labels; {_inputs(findings)}"
    yield from _split_lines(findings)
    missing = findings["missing"]
    setting = f" ({missing['setting']})" if missing["setting"] else ""
    yield f"resembles  {missing['sentence']}{setting}"
    for sentence in missing["evidence"]:
        yield f"           {sentence}"
    imbalance = findings["imbalance"]
    ratio = "–" if imbalance["ratio"] is None else f"{imbalance['ratio']:,.0f} : 1"
    yield (
        f"imbalance  most : least frequent label {ratio}; median {imbalance['median']:,.0f} "
        f"positives a label; {findings['per_image']['mean_positives']:.2f} an image"
    )
    for pair in findings["co_occurrence"]["pairs"][:3]:
        yield (
            f"together   {pair['first']} + {pair['second']}: {pair['together']:,} images, "
            f"{100 * pair['jaccard']:.0f} % of those with either"
        )
    yield from _label_lines(findings["label_counts"])
    for kind in ("notes", "warnings", "problems"):
        for sentence in findings[kind]:
            yield f"{kind[:-1] + ':':<9} {sentence}"
    yield (
        f"{counted(len(findings['problems']), 'problem')}, "
        f"{counted(len(findings['warnings']), 'warning')}"
    )


def _inputs(findings: Findings) -> str:
    hashed = f"label hash {findings['content_hash'][:12]}"
    if findings["inputs"] == "features":
        return f"{findings['features']:,} features each; {hashed}"
    sizes = findings["image_sizes"]
    size = "" if sizes is None else "median {} × {} pixels; ".format(*sizes["median"])
    return f"{size}images verified: {findings['verify']}; {hashed}"


def _split_lines(findings: Findings) -> Iterator[str]:
    heads = ("images", "positive", "negative", "unknown", "no label")
    yield f"{'part':<10}" + "".join(f"{head:>16}" for head in heads)
    for split, part in findings["splits"].items():
        keys = ("images", "positive", "negative", "unknown", "without_label")
        yield f"{split:<10}" + "".join(f"{part[key]:>16,}" for key in keys)


def _label_lines(counts: list[Findings], limit: int = 10) -> Iterator[str]:
    """The most and the least frequent labels."""
    ordered = sorted(counts, key=lambda label: -label["positive"])
    shown = ordered if len(ordered) <= 2 * limit else [*ordered[:limit], *ordered[-limit:]]
    width = min(40, max(len(label["name"]) for label in shown))
    yield f"{'label':<{width}}" + "".join(
        f"{head:>12}" for head in ("positive", "negative", "unknown")
    )
    for place, label in enumerate(shown):
        if place == limit and len(shown) < len(ordered):
            yield f"… {len(ordered) - len(shown):,} more"
        name = label["name"]
        name = name if len(name) <= width else name[: width - 1] + "…"
        numbers = (label[key] for key in ("positive", "negative", "unknown"))
        yield f"{name:<{width}}" + "".join(f"{number:>12,}" for number in numbers)
