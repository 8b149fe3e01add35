"""What the model believes of every cell, computed once and kept.

What enters: a run, a table of images. What leaves: the images that can be read, and the
probabilities [N, L] of their labels. They are kept in the run's folder for as long as neither the
weights, their calibration nor the image files change, so that the page is there at once the next
time.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from partly import checkpoint, runs, tars
from partly.data import split_into_chunks
from partly.decisions import Calibration
from partly.errors import ConfigError, RunError
from partly.labels import LabelTable
from partly.progress import Progress
from partly.readers.common import counted, index_in
from partly.source import Source
from partly.texts import Texts

KEPT = "review.npz"
TOGETHER = 512  # images after which the bar moves
MOST = 2**28  # cells that are held in memory

Say = Callable[[str], None]


def believed(
    run: Path,
    source: Source,
    table: LabelTable,
    labels: Sequence[str],
    *,
    device: str = "auto",
    say: Say = print,
) -> tuple[LabelTable, np.ndarray]:
    """The part of a table whose images can be read, with `labels` as its columns, and P(label)
    [N, L] of each."""
    if len(table) * len(labels) > MOST:
        raise ConfigError(
            f"{len(table):,} images × {len(labels):,} labels are more than the page holds: "
            "name those it shall be about with --label"
        )
    key = _key(run, source, table, labels)
    kept = _read(run / KEPT, key)
    if kept is None:
        kept = _compute(run, source, table, labels, device, say)
        try:
            checkpoint.write_atomically(run / KEPT, _writer(key, *kept))
        except RunError as error:  # somebody else's run: it can be looked at all the same
            say(f"the model will be asked anew the next time: {error}")
    elif len(kept[0]) < len(table):
        if source.on_bad_image == "error":
            source.usable(table, say)  # which names them
        say(f"{counted(len(table) - len(kept[0]), 'image')} that cannot be read left out")
    rows, probabilities = kept
    return table.take(rows).reorder(labels), probabilities


def _compute(
    run: Path, source: Source, table: LabelTable, labels: Sequence[str], device: str, say: Say
) -> tuple[np.ndarray, np.ndarray]:
    """The rows that can be read, and the probabilities of their labels."""
    usable, bad = source.usable(table, say)
    rows = np.ones(len(table), dtype=bool)
    rows[index_in(Texts.of(list(bad)), table.ids)] = False
    predictor = runs.load(run, device)
    columns = [predictor.names.index(name) for name in labels]
    say(f"asking the model about {counted(len(usable), 'image')}")
    chunks = split_into_chunks(np.arange(len(usable)), TOGETHER)
    blocks = []
    with Progress(len(chunks)) as progress:
        for chunk in chunks:
            blocks.append(predictor.probabilities(usable.take(chunk))[:, columns])
            progress.step()
    return np.flatnonzero(rows), np.concatenate(blocks).astype(np.float32)


def _key(run: Path, source: Source, table: LabelTable, labels: Sequence[str]) -> str:
    """Changes with whatever changes a probability: weights, calibration, images, labels."""
    digest = hashlib.sha256(b"partly review 1\0")
    for name in (runs.CONFIG, runs.WEIGHTS, runs.EYE):
        if (run / name).is_file():
            digest.update(hashlib.sha256((run / name).read_bytes()).digest())
    digest.update(repr((_calibration(run), source.verify, list(labels))).encode())
    files: dict[str, str] = {}
    for image, path in zip(table.ids, table.paths or (), strict=True):
        file = (tars.split_span(path) or (path,))[0]
        if file not in files:
            files[file] = _state(file)
        digest.update(f"{image}\0{path}\0{files[file]}\0".encode())
    return digest.hexdigest()


def _calibration(run: Path) -> Calibration:
    names = checkpoint.read_json(run / runs.CONFIG)["labels"]
    try:
        return runs.read_decisions(run, names)[1]
    except (KeyError, TypeError, ValueError):
        runs.load(run, "cpu")  # which says what is wrong with it
        raise


def _state(file: str) -> str:
    """Changes when a file is written to."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return "none"
    return f"{found.st_size} {found.st_mtime_ns}"


def _writer(key: str, rows: np.ndarray, probabilities: np.ndarray) -> Callable[[Path], None]:
    def write(place: Path) -> None:
        with place.open("wb") as file:
            np.savez(file, key=np.array(key), rows=rows, probabilities=probabilities)

    return write


def _read(path: Path, key: str) -> tuple[np.ndarray, np.ndarray] | None:
    """What was kept, if it is about the same model and images."""
    try:
        with np.load(path) as kept:
            return (kept["rows"], kept["probabilities"]) if str(kept["key"]) == key else None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):  # not there, or not whole
        return None
