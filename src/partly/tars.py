"""Images inside other files, without unpacking them.

What enters: a tar file. What leaves: where each of its members lies, so that any of them is one
read away. A member is written as a path, `images.tar[1536:22016]`: a file and the bytes within it.
Such a path stands in label tables and manifests wherever the path of an image can.
"""

import os
import re
import tarfile
from functools import lru_cache
from pathlib import Path

import numpy as np

from partly.errors import DataError
from partly.texts import Texts

_SPAN = re.compile(r"^(.+)\[(\d+):(\d+)\]$", re.DOTALL)


def split_span(path: str) -> tuple[str, int, int] | None:
    """(file, first byte, end) of a path into a file; None for the path of a whole file.

    >>> split_span("photos.tar[512:2048]"), split_span("photos/a.jpg")
    (('photos.tar', 512, 2048), None)
    """
    match = _SPAN.match(path) if path.endswith("]") else None
    if match is None or os.path.isfile(path):
        return None
    return match[1], int(match[2]), int(match[3])


def span_paths(file: str | Path, starts: np.ndarray, sizes: np.ndarray) -> Texts:
    """The paths of these spans of a file."""
    ends = np.asarray(starts) + np.asarray(sizes)
    return Texts.of([f"{file}[{a}:{b}]" for a, b in zip(starts, ends.tolist(), strict=True)])


def read_bytes(path: str) -> bytes:
    """The content of a file, or of a span of one."""
    span = split_span(path)
    if span is None:
        with open(path, "rb") as file:
            return file.read()
    name, first, end = span
    content = os.pread(_descriptor(name, os.getpid()), end - first, first)
    if len(content) < end - first:
        raise OSError(f"{name} ends before byte {end}")
    return content


def exists(path: str) -> bool:
    """Is there such a file, and is it long enough for the span?"""
    span = split_span(path)
    if span is None:
        return os.path.isfile(path)
    return os.path.isfile(span[0]) and os.path.getsize(span[0]) >= span[2]


@lru_cache(maxsize=256)
def _descriptor(name: str, process: int) -> int:
    """An open tar stays open: one descriptor a file and process."""
    return os.open(name, os.O_RDONLY)


def index(tar: Path) -> tuple[Texts, np.ndarray, np.ndarray]:
    """(names, first bytes, sizes) of the files in a tar; kept beside it for the next time."""
    kept = tar.with_name(tar.name + ".index.parquet")
    state = os.stat(tar)
    stamp = f"{state.st_size} {state.st_mtime_ns}".encode()
    return _read_index(kept, stamp) or _write_index(kept, stamp, *_scan(tar))


def _scan(tar: Path) -> tuple[Texts, np.ndarray, np.ndarray]:
    names, starts, sizes = [], [], []
    try:
        with tarfile.open(tar, "r:") as file:  # "r:": not compressed, or there are no spans
            for member in file:
                if member.isfile():
                    names.append(member.name)
                    starts.append(member.offset_data)
                    sizes.append(member.size)
                file.members = []  # type: ignore[attr-defined]  # or it keeps them all
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"cannot read {tar} as an uncompressed tar: {error}") from None
    return Texts.of(names), np.array(starts, np.int64), np.array(sizes, np.int64)


def _read_index(kept: Path, stamp: bytes) -> tuple[Texts, np.ndarray, np.ndarray] | None:
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(kept)
        if (table.schema.metadata or {}).get(b"of") != stamp:
            return None
        names, starts, sizes = table.columns
        return Texts.of(names), starts.to_numpy(), sizes.to_numpy()
    except (OSError, ValueError, arrow.ArrowException):
        return None


def _write_index(
    kept: Path, stamp: bytes, names: Texts, starts: np.ndarray, sizes: np.ndarray
) -> tuple[Texts, np.ndarray, np.ndarray]:
    import pyarrow as arrow
    from pyarrow import parquet

    columns = {"name": names.arrow(), "first": starts, "size": sizes}
    table = arrow.table(columns).replace_schema_metadata({"of": stamp})
    partial = kept.with_name(f"{kept.name}.{os.getpid()}")
    try:
        parquet.write_table(table, partial)
        partial.replace(kept)
    except OSError:  # a folder one may not write to: the index is made again next time
        partial.unlink(missing_ok=True)
    return names, starts, sizes
