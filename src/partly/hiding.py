"""The paper's settings: which labels stay known.

What enters: labels (a `LabelTable` or an int8 array) and a seed. What leaves: the same with most
labels hidden, drawn once, before training. A draw depends on (seed, row, column) alone, so arrays
and tables, dense and sparse, give the same result on every platform.

    FAL    everything stays known
    PAL_r  every known entry stays with probability r
    PPL_r  every positive stays with probability r, all negatives go
    SPL    one random positive an image stays, everything else goes
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from partly import draws
from partly.errors import ConfigError, first_few
from partly.labels import NEGATIVE, POSITIVE, LabelTable

Labels = TypeVar("Labels", np.ndarray, LabelTable)

SETTINGS = ("fal", "pal", "ppl", "spl", "spl-reference")
REFERENCE_SEED = 1200  # the seed of the reference implementation of single positive labels


@dataclass(frozen=True)
class Setting:
    """What to hide. `str(setting)` is what the command line takes: `pal:0.3`."""

    name: str
    keep: float | None = None

    def __post_init__(self) -> None:
        if self.name not in SETTINGS:
            raise ConfigError(f"unknown setting '{self.name}'; choose one of {', '.join(SETTINGS)}")
        if (self.name in ("pal", "ppl")) != (self.keep is not None):
            need = "needs the share to keep" if self.keep is None else "takes no share"
            raise ConfigError(f"setting '{self.name}' {need}; write pal:0.3, ppl:0.6, fal or spl")
        if self.keep is not None and not 0 < self.keep <= 1:
            raise ConfigError(f"the share of labels to keep is in (0, 1], not {self.keep}")

    def __str__(self) -> str:
        return self.name if self.keep is None else f"{self.name}:{float(self.keep)!r}"

    @classmethod
    def parse(cls, text: str) -> "Setting":
        """`pal:0.3`, `pal_0.3`, `spl` and so on."""
        name, _, share = text.strip().lower().replace("_", ":").partition(":")
        try:
            return cls(name, float(share) if share else None)
        except ValueError as error:
            raise ConfigError(f"cannot read setting '{text}': {error}") from None


def hide(labels: Labels, setting: str, keep: float | None = None, seed: int = 0) -> Labels:
    """Draw which labels stay known; a new array (int8) or table, the input is not changed.

    setting: "fal" keeps all labels, "pal" the share `keep` of them, "ppl" that share of the
    positives and no negative, "spl" one positive an image; "pal:0.3" says both in one. Labels that
    are unknown already stay so. "spl-reference" draws as the reference code does (seed 1200).

    >>> full = np.array([[1, 0, 1], [0, 0, 1]], dtype=np.int8)
    >>> hide(full, "spl", seed=1).tolist()
    [[1, -1, -1], [-1, -1, 1]]
    >>> hide(full, "pal:0.5").tolist() == hide(full, "pal", keep=0.5).tolist()
    True
    """
    if keep is not None and ":" in setting:
        raise ConfigError(f"the share to keep is given twice: in '{setting}' and as keep={keep}")
    chosen = Setting.parse(setting) if keep is None else Setting(setting.lower(), keep)
    if isinstance(labels, LabelTable):
        return labels.keep(_kept(labels, chosen, seed))
    table = LabelTable.from_dense(labels)
    return table.keep(_kept(table, chosen, seed)).dense()


def _kept(table: LabelTable, setting: Setting, seed: int) -> np.ndarray:
    """Which of the table's known entries stay known [K]."""
    positive = table.values == POSITIVE
    if setting.name == "fal":
        return np.ones(table.known, dtype=bool)
    if setting.name == "spl-reference":
        return _single_as_reference(table, seed)
    if setting.name == "spl":
        return _single(table, positive, seed)
    draw = draws.uniform(seed, draws.HIDE, 0, table.rows, table.indices.astype(np.int64))
    kept = draw < setting.keep
    return kept & positive if setting.name == "ppl" else kept


def _single(table: LabelTable, positive: np.ndarray, seed: int) -> np.ndarray:
    """The positive with the smallest draw of each row."""
    kept = np.zeros(table.known, dtype=bool)
    entries = np.flatnonzero(positive)
    if not len(entries):
        return kept
    rows = table.rows[entries]
    draw = draws.bits(seed, draws.HIDE, 0, rows, table.indices[entries].astype(np.int64))
    starts = np.flatnonzero(np.diff(rows, prepend=-1))  # rows ascend: each is one run of entries
    smallest = np.minimum.reduceat(draw, starts)
    kept[entries[draw == np.repeat(smallest, np.diff(starts, append=len(rows)))]] = True
    return kept


def _single_as_reference(table: LabelTable, seed: int) -> np.ndarray:
    """One positive a row, drawn as the reference code of single positive learning draws it.

    Rows in the order of their ids as strings; for each, NumPy's legacy generator shuffles the
    positives, of which the first stays, and then the negatives, whose shuffle only moves the
    generator on. Published numbers use seed 1200 (`REFERENCE_SEED`).
    """
    if not 0 <= seed < 2**32:
        raise ConfigError(f"the reference's generator takes a seed from 0 to 2³²-1, not {seed}")
    generator = np.random.RandomState(seed)
    kept = np.zeros(table.known, dtype=bool)
    for row in np.argsort(np.asarray(table.ids), kind="stable"):
        entries = np.arange(table.indptr[row], table.indptr[row + 1])
        values = table.values[entries]
        positives, negatives = entries[values == POSITIVE], entries[values == NEGATIVE]
        generator.shuffle(positives)
        generator.shuffle(negatives)
        kept[positives[:1]] = True
    return kept


def describe(table: LabelTable) -> str:
    """One sentence on what is known, with the images that have nothing to say counted."""
    by_image = table.counts_by_image()
    without_positive = int((by_image.positive == 0).sum())
    without_any = int((by_image.unknown == len(table.names)).sum())
    positives = int(by_image.positive.sum())
    cells = len(table) * len(table.names)
    found = table.counts_by_label().positive
    empty = [name for name, count in zip(table.names, found, strict=True) if not count]
    many = "label has" if len(empty) == 1 else "labels have"
    nobody = f"; {len(empty):,} {many} no known positive: {first_few(empty)}" if empty else ""
    return (
        f"{len(table):,} images × {len(table.names):,} labels: {positives:,} known positives, "
        f"{table.known - positives:,} known negatives, "
        f"{100 * (cells - table.known) / max(cells, 1):.1f} % unknown; "
        f"{without_positive:,} images have no known positive, {without_any:,} no known label at all"
        f"{nobody}"
    )
