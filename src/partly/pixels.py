"""Pixels: each image decoded and resized once, then read from a file.

What enters: paths of images, the size they are going to have, a function that decodes them. What
leaves: `Pixels`, the pictures of all of them in memory-mapped files, which other trainings and
other processes find again. An image is found by where it lies and by the state of its file, so that
one table's pictures serve any part of it, and only what is new is decoded.
"""

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import PIL
import PIL.features
import torch
from torch import Tensor

from partly import checkpoint, tars
from partly.errors import DataError
from partly.processes import in_order
from partly.texts import Texts

FILE = 2**30  # bytes of a file: what an interruption may cost
BLOCK = 2**22  # bytes of pictures that a process makes before it asks for more
PATIENCE = 10.0  # seconds between two lines about how far it is

Decode = Callable[[Texts], "np.ndarray | DataError"]  # uint8 [n, S, S, 3], or what is wrong
Say = Callable[[str], None]


def cache_folder(kind: str) -> Path:
    """Where what was computed is kept: `$XDG_CACHE_HOME/partly/kind`, else below `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "partly" / kind


@dataclass(frozen=True)
class Pixels:
    """The pictures of N images: that of a row is `blocks[files[row]][places[row]]`."""

    blocks: list[np.ndarray]  # uint8 [n, S, S, 3] each, mapped
    files: np.ndarray  # [N]
    places: np.ndarray  # [N]
    missing: np.ndarray  # rows that are in no file
    size: int

    def gather(self, rows: np.ndarray, *, pinned: bool = False) -> Tensor:
        """uint8 [B, S, S, 3] of these rows, in memory that a GPU can copy from if `pinned`."""
        shape = (len(rows), self.size, self.size, 3)
        pictures = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)
        array = pictures.numpy()
        for place, row in enumerate(rows):  # each is copied once; an index array would copy twice
            array[place] = self.blocks[self.files[row]][self.places[row]]
        return pictures


def folder_of(size: int, resize: str) -> Path:
    """Where pictures of this size lie."""
    return cache_folder("pixels") / f"{size}-{resize}"


def describe(count: int, size: int, resize: str) -> str:
    """One line on what is kept, and where."""
    taken = in_bytes(count * _bytes_of(size))
    return f"each image is decoded once and kept at {size} px: {taken} in {folder_of(size, resize)}"


def find(paths: Texts, size: int, resize: str) -> Pixels:
    """What is kept of these images."""
    return _find(identities(paths), folder_of(size, resize), size)


def keep(paths: Texts, size: int, resize: str, decode: Decode, workers: int, say: Say) -> Pixels:
    """The pictures of all these images; those that are not kept yet are decoded now."""
    folder, wanted = folder_of(size, resize), identities(paths)
    found = _find(wanted, folder, size)
    if not len(found.missing):
        return found
    checkpoint.make_folder(folder)
    with _alone(folder, say):
        found = _find(wanted, folder, size)  # another process may have made them meanwhile
        for left in folder.glob(".*.partial"):  # by a process that was killed
            left.unlink()
        if len(found.missing):
            _check_room(folder, len(found.missing), size)
            _make(paths, wanted, found.missing, folder, size, decode, workers, say)
    return _find(wanted, folder, size)


def identities(paths: Texts) -> np.ndarray:
    """uint64 [N]: changes with whatever could change an image's pixels.

    It is taken from the path, and from the size and the times of the file, not from its content:
    to read every file again before each training is what this module saves. The time of the last
    change of state (ctime) is among them because no program can set it back, as unpacking a tar
    does with that of the content. Another decoder may decode otherwise, so its version is too.
    """
    made_by = f"partly pixels 1 {PIL.__version__} {PIL.features.version('libjpeg_turbo')}".encode()
    digests = b"".join(blake2b(made_by + _state(path), digest_size=8).digest() for path in paths)
    return np.frombuffer(digests, np.uint64)


def _state(path: str) -> bytes:
    span = tars.split_span(path)
    try:
        state = os.stat(path if span is None else span[0])
    except (OSError, ValueError):
        return secrets.token_bytes(16)  # not there: never found, so that decoding says why
    name = os.fsencode(os.path.abspath(path))
    return name + f"\0{state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}".encode()


def _find(wanted: np.ndarray, folder: Path, size: int) -> Pixels:
    opened = [_open(file, size) for file in sorted(folder.glob("*.pixels"))]
    kept = [pair for pair in opened if pair is not None]
    known = np.concatenate([known for known, _ in kept] or [np.zeros(0, np.uint64)])
    lengths = [len(known) for known, _ in kept]
    starts = np.cumsum([0, *lengths])
    if not len(known):
        nowhere = np.full(len(wanted), -1)
        return Pixels([], nowhere, nowhere, np.arange(len(wanted)), size)
    order = np.argsort(known, kind="stable")
    nearest = np.searchsorted(known, wanted, sorter=order).clip(max=len(known) - 1)
    rows = order[nearest]
    files = np.searchsorted(starts, rows, side="right") - 1
    missing = np.flatnonzero(known[rows] != wanted)
    return Pixels([block for _, block in kept], files, rows - starts[files], missing, size)


def _open(path: Path, size: int) -> tuple[np.ndarray, np.ndarray] | None:
    """(identities [n], pixels [n, S, S, 3]) of a file; None if it is damaged, to be made again."""
    try:
        with path.open("rb") as file:
            known = np.load(file, allow_pickle=False)
            shape = (len(known), size, size, 3)
            return known, np.asarray(np.memmap(file, np.uint8, "r", file.tell(), shape))
    except (OSError, ValueError, EOFError):
        return None


def _make(
    paths: Texts,
    wanted: np.ndarray,
    missing: np.ndarray,
    folder: Path,
    size: int,
    decode: Decode,
    workers: int,
    say: Say,
) -> None:
    """Decode these rows in several processes, into files that are whole or not there."""
    _, first = np.unique(wanted[missing], return_index=True)
    rows = missing[np.sort(first)]  # the same file twice is decoded once
    files = [_split(part, BLOCK, size) for part in _split(rows, FILE, size)]
    chunks = (paths[chunk] for file in files for chunk in file)
    count = min(workers, sum(map(len, files)))
    say(f"decoding {len(rows):,} images once: {in_bytes(len(rows) * _bytes_of(size))} in {folder}")
    with closing(_reported(in_order(decode, chunks, count), len(rows), say)) as blocks:
        for file in files:
            known = wanted[np.concatenate(file)]
            # Its name follows from its content: a damaged one is replaced.
            name = blake2b(known.tobytes(), digest_size=16).hexdigest()
            write = _writer(known, blocks, len(file))
            checkpoint.write_atomically(folder / f"{name}.pixels", write)


def _writer(known: np.ndarray, blocks: Iterator[np.ndarray], count: int) -> Callable[[Path], None]:
    def write(place: Path) -> None:
        with place.open("wb") as file:
            np.save(file, known)
            for _ in range(count):
                file.write(next(blocks).data)

    return write


def _reported(
    blocks: Iterator["np.ndarray | DataError"], total: int, say: Say
) -> Generator[np.ndarray, None, None]:
    """The blocks; now and then a line on how far they are, and an error is raised."""
    done, said = 0, time.monotonic()
    for block in blocks:
        if isinstance(block, DataError):
            raise block
        done += len(block)
        if time.monotonic() - said > PATIENCE:
            said = time.monotonic()
            say(f"decoded {done:,} of {total:,} images")
        yield block


def _split(rows: np.ndarray, limit: int, size: int) -> list[np.ndarray]:
    """Runs of rows whose pictures take at most `limit` bytes."""
    step = max(1, limit // _bytes_of(size))
    return [rows[first : first + step] for first in range(0, len(rows), step)]


@contextmanager
def _alone(folder: Path, say: Say) -> Iterator[None]:
    """One process at a time; a lock of the system's ends with its holder, however that ends."""
    try:
        with (folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another process is decoding images: this one waits to use them too")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise DataError(f"cannot keep pixels in {folder}: {error.strerror}; {_ELSEWHERE}") from None


_ELSEWHERE = "set XDG_CACHE_HOME to a folder on another disk, or use decode cpu"


def _check_room(folder: Path, count: int, size: int) -> None:
    needed, free = count * _bytes_of(size), shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"decode once needs {in_bytes(needed)} for {count:,} images at {size} px, and the disk "
            f"of {folder} has {in_bytes(free)} left: make room, choose smaller images, {_ELSEWHERE}"
        )


def _bytes_of(size: int) -> int:
    return 3 * size**2


def in_bytes(count: int) -> str:
    """A number of bytes for a person to read.

    >>> in_bytes(153_600_000), in_bytes(49_400_000_000), in_bytes(432)
    ('153.6 MB', '49.4 GB', '0.4 kB')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count / 1000:,.1f} kB"
