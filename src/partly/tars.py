"""Images inside other files, without unpacking them.

What enters: a tar file. What leaves: where each of its members lies, so that any of them is one
read away. A member is written as a path, `images.tar[1536:22016]`: a file and the bytes within it.
Such a path stands in label tables and manifests wherever the path of an image can.
"""

import os
import posixpath
import re
import secrets
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from partly.errors import DataError, first_few
from partly.texts import Texts

Index = tuple[Texts, np.ndarray, np.ndarray]  # names, first bytes, sizes

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_SPAN = re.compile(r"^(.+)\[(\d+):(\d+)\]$", re.DOTALL)
_VERSION = 2  # of what the index says; another one is made again
_LINKS = 40  # links that lead to links; more is a circle


def split_span(path: str) -> tuple[str, int, int] | None:
    """(file, first byte, end) of a path into a file; None for the path of a whole file.

    >>> split_span("photos.tar[512:2048]"), split_span("photos/a.jpg")
    (('photos.tar', 512, 2048), None)
    """
    match = _SPAN.match(path) if path.endswith("]") else None
    if match is None or (not os.path.isfile(match[1]) and os.path.isfile(path)):
        return None
    return match[1], int(match[2]), int(match[3])


def file_of(path: str) -> str:
    """The file that a path names, or that it leads into."""
    span = split_span(path)
    return path if span is None else span[0]


def span_paths(file: str | Path, starts: np.ndarray, sizes: np.ndarray) -> Texts:
    """The paths of these spans of a file."""
    import pyarrow as arrow
    from pyarrow import compute

    first = np.asarray(starts, np.int64)
    numbers = [
        arrow.array(part).cast(arrow.large_string()) for part in (first, first + np.asarray(sizes))
    ]
    before, between, after, nothing = (
        arrow.scalar(text, arrow.large_string()) for text in (f"{file}[", ":", "]", "")
    )
    parts = (before, numbers[0], between, numbers[1], after, nothing)
    return Texts.of(compute.binary_join_element_wise(*parts))


def read_bytes(path: str) -> bytes:
    """The content of a file, or of a span of one."""
    span = split_span(path)
    if span is None:
        with open(path, "rb") as file:
            return file.read()
    name, first, end = span
    return _read(name, _open(name), first, end)


def read_spans(file: str | Path, starts: np.ndarray, sizes: np.ndarray) -> Iterator[bytes]:
    """The content of each of these spans of a file."""
    name = str(file)
    opened = _open(name)
    for first, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        yield _read(name, opened, first, first + size)


def exists(path: str) -> bool:
    """Is there such a file, and is it long enough for the span?"""
    span = split_span(path)
    if span is None:
        return os.path.isfile(path)
    return os.path.isfile(span[0]) and os.path.getsize(span[0]) >= span[2]


class _Opened:
    """A descriptor that is closed when nobody holds it any more, in whatever thread that is."""

    def __init__(self, name: str) -> None:
        self.descriptor = os.open(name, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


def _open(name: str) -> _Opened:
    """An open file stays open; one that has been replaced since is opened again."""
    state = os.stat(name)
    return _opened(name, state.st_dev, state.st_ino, os.getpid())


@lru_cache(maxsize=256)
def _opened(name: str, device: int, node: int, process: int) -> _Opened:
    return _Opened(name)


def _read(name: str, opened: _Opened, first: int, end: int) -> bytes:
    content = os.pread(opened.descriptor, end - first, first)
    if len(content) < end - first:
        raise OSError(f"{name} ends before byte {end}")
    return content


def index(tar: Path) -> Index:
    """(names, first bytes, sizes) of the files in a tar; kept beside it for the next time.

    Of several members of one name the last counts, as it does when tar unpacks them. A link is
    where the file lies that it leads to.
    """
    kept = tar.with_name(tar.name + ".index.parquet")
    try:
        state = os.stat(tar)
    except OSError as error:
        raise DataError(f"cannot read {tar}: {error.strerror}") from None
    stamp = f"{_VERSION} {state.st_size} {state.st_mtime_ns}".encode()
    found = _read_index(kept, stamp)
    if found is None:
        found = _scan(tar)
        _write_index(kept, stamp, found)
    return found


def file_names(tar: Path, limit: int) -> list[str]:
    """The names of the first files of a tar; none if it cannot be read."""
    names: list[str] = []
    with suppress(tarfile.TarError, OSError), tarfile.open(tar, "r:") as file:
        while len(names) < limit and (member := file.next()) is not None:
            if member.isfile():
                names.append(_plain_name(member.name))
    return names


def _scan(tar: Path) -> Index:
    """Header by header: nothing of the files themselves is read."""
    places: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}
    sparse: dict[str, None] = {}
    try:
        with tarfile.open(tar, "r:") as file:  # "r:": not compressed, or there are no spans
            while (member := file.next()) is not None:
                file.members = []  # type: ignore[attr-defined]  # or it keeps them all
                name = _plain_name(member.name)
                for earlier in (places, links, sparse):
                    earlier.pop(name, None)
                if member.issparse():
                    sparse[name] = None
                elif member.isfile():
                    places[name] = member.offset_data, member.size
                elif member.islnk():
                    links[name] = _plain_name(member.linkname)
                elif member.issym():
                    beside = posixpath.join(posixpath.dirname(name), member.linkname)
                    links[name] = _plain_name(beside)
            _check_end(tar, file.offset, len(places))
    except (tarfile.TarError, OSError) as error:
        raise DataError(_why_unreadable(tar, error)) from None
    if sparse:
        raise DataError(
            f"{tar} holds {first_few(list(sparse))} with holes (as a sparse file), so that it "
            "cannot be read in one piece; pack it again without --sparse"
        )
    for name in links:
        target = _target(name, links)
        if target in places:
            places[name] = places[target]
    numbers = np.array(list(places.values()), np.int64).reshape(-1, 2)
    return Texts.of(list(places)), numbers[:, 0].copy(), numbers[:, 1].copy()


def _plain_name(name: str) -> str:
    """The name as tar would unpack it: `./a.jpg` and `/a.jpg` are `a.jpg`."""
    if not name.isascii() and any("\udc80" <= letter <= "\udcff" for letter in name):
        # Not UTF-8. Latin-1 is what old programs wrote, and it keeps different names different.
        name = name.encode("utf-8", "surrogateescape").decode("latin-1")
    return posixpath.normpath(name).lstrip("/")


def _target(name: str, links: dict[str, str]) -> str:
    """Where a link leads to in the end."""
    for _ in range(_LINKS):
        if name not in links:
            break
        name = links[name]
    return name


def _check_end(tar: Path, end: int, count: int) -> None:
    """A listing that stops for any other reason than the mark of the end is not the whole."""
    with tar.open("rb") as file:
        file.seek(end)
        block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise DataError(
            f"{tar} is cut off: it stops at byte {end + len(block)}, after {count} files, without "
            "the mark of its end; copy or download it again"
        )
    if any(block):
        raise DataError(
            f"{tar} is damaged: there is no tar header at byte {end}, after {count} files; "
            "copy or download it again"
        )


def _why_unreadable(tar: Path, error: Exception) -> str:
    with suppress(OSError), tar.open("rb") as file:
        start = file.read(8)
        for magic, name in _MAGIC.items():
            if start.startswith(magic):
                return (
                    f"{tar} is compressed ({name}), so that no image can be read from the middle "
                    "of it: uncompress it, or unpack it into a folder"
                )
    if "unexpected end of data" in str(error):
        return f"{tar} is cut off in the middle of a file; copy or download it again"
    return f"cannot read {tar} as a tar: {error}"


def _read_index(kept: Path, stamp: bytes) -> Index | None:
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        with kept.open("rb") as file:
            if (parquet.read_schema(file).metadata or {}).get(b"of") != stamp:
                return None
            names, starts, sizes = parquet.read_table(file).columns
        return Texts.of(names), starts.to_numpy(), sizes.to_numpy()
    except (OSError, ValueError, arrow.ArrowException):
        return None


def _write_index(kept: Path, stamp: bytes, found: Index) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    columns = {"name": found[0].arrow(), "first": found[1], "size": found[2]}
    table = arrow.table(columns).replace_schema_metadata({"of": stamp})
    # A name of its own: several processes may be at it, and the last one to finish is as good.
    partial = kept.with_name(f".{kept.name}.{secrets.token_hex(8)}")
    try:
        with partial.open("wb") as file:
            parquet.write_table(table, file)
        partial.replace(kept)
    except OSError:  # a folder one may not write to: the index is made again next time
        with suppress(OSError):
            partial.unlink(missing_ok=True)
