"""A data set of many image files -> a few tars and one Parquet file, resized once.

What enters: a label table with image paths. What leaves: a folder with `images-00000.tar`, … and
`labels.parquet`, which `partly.read` reads back to the same table. All images are looked at, and
the bad ones reported at once. The bytes do not depend on the number of processes. A `kill -9`
leaves nothing that looks finished and is not: everything is written into `UNFINISHED` within the
folder and moved out of it at the end, the labels last.
"""

import io
import json
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image

from partly import checkpoint, images, tars
from partly.errors import ConfigError, DataError, RunError, raise_if
from partly.labels import NEGATIVE, POSITIVE, LabelTable
from partly.processes import cores, in_order
from partly.readers.packed import LABELS, METADATA, UNFINISHED, VERSION, read_content
from partly.texts import Texts, concatenated

POLICIES = ("error", "skip")
BLOCK = 16  # images that one process prepares before it hands them over
ROWS = 2**16  # of the table that are written at once
NAME_LENGTH = 80  # of a member, without number and suffix: the oldest header has room for 100
SAY_EVERY = 10.0  # seconds

_SUFFIXES = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif"}


class Stored(NamedTuple):
    """An image as it goes into the tar, or what is wrong with it."""

    content: bytes = b""
    suffix: str = ""
    bytes_before: int = 0
    problem: str | None = None


def pack(
    table: LabelTable,
    out: Path,
    *,
    size: int | None = 512,
    quality: int = 90,
    shard_bytes: int = 2**30,
    workers: int | None = None,
    on_bad_image: str = "error",
    say: Callable[[str], object] = print,
) -> dict[str, Any]:
    """Write the images of a table into tars, and its labels beside them.

    size: an image whose shorter side is larger gets this shorter side; None copies every file as it
    is. quality: of the JPEGs that are written. shard_bytes: a tar is at most this large, unless one
    image is. on_bad_image: "error" stops after all images were looked at, "skip" leaves them out.

    Returns images, bytes_before, bytes_after, shards, and skipped: by id, what is wrong with it.
    """
    out = Path(out)
    raise_if(
        _request_problems(table, size, quality, shard_bytes, workers, on_bad_image), ConfigError
    )
    request = {
        "labels": table.content_hash,
        "inputs": table.inputs_hash,
        "size": size,
        "quality": quality,
        "shard_bytes": shard_bytes,
        "on_bad_image": on_bad_image,
    }
    existed = out.is_dir()
    with _working_folder(out) as folder:
        finished = _finish(out, folder)
        if finished is not None and finished["request"] == request:
            return _result(finished)  # all that was missing were the last moves
        _refuse_what_is_there(out)
        try:
            _clear(folder)
            work = partial(_prepare_block, size, quality)
            shards = _Shards(folder, shard_bytes)
            with closing(shards):
                problems = _write_images(table, shards, work, workers, on_bad_image, say)
            content = _content(table, shards, problems, request)
            _write_labels(folder / LABELS, table, shards, problems, content)
            _finish(out, folder)
            return _result(content)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if not existed:
                with suppress(OSError):
                    out.rmdir()
            if isinstance(error, OSError):
                raise RunError(f"cannot write {out}: {error.strerror or error}") from None
            raise


def _request_problems(
    table: LabelTable,
    size: int | None,
    quality: int,
    shard_bytes: int,
    workers: int | None,
    on_bad_image: str,
) -> Iterator[str]:
    if table.paths is None:
        what = "rows of features" if table.features is not None else "labels"
        yield f"this data set has {what} and no images: there is nothing to pack"
    if size is not None and size < 1:
        yield f"size is the shorter side in pixels, at least 1, not {size}; none keeps every file"
    if not 1 <= quality <= 100:
        yield f"quality is a JPEG's, from 1 to 100, not {quality}"
    if shard_bytes < 1:
        yield f"shard_bytes is at least 1, not {shard_bytes}"
    if workers is not None and workers < 0:
        yield f"workers is the number of processes, not {workers}"
    if on_bad_image not in POLICIES:
        yield f"on_bad_image is one of {', '.join(POLICIES)}, not '{on_bad_image}'"


# --- The folder -------------------------------------------------------------------------------


@contextmanager
def _working_folder(out: Path) -> Iterator[Path]:
    """The folder for what is unfinished, held by this process alone."""
    if (out / LABELS).exists():
        _refuse_what_is_there(out)
    folder = out / UNFINISHED
    if out.exists() and not folder.exists():
        _refuse_what_is_there(out)
    with checkpoint.held(folder, f"another process is packing into {out} at this moment"):
        yield folder


def _refuse_what_is_there(out: Path) -> None:
    """A pack is never replaced, nor mixed with files of somebody else."""
    if not out.is_dir():
        raise ConfigError(f"{out} is a file: choose a folder")
    if (out / LABELS).exists():
        raise ConfigError(f"{out} already holds {LABELS}: choose another folder, or remove it")
    others = [file.name for file in out.iterdir() if file.name != UNFINISHED]
    if others:
        raise ConfigError(f"{out} is not empty (it holds {min(others)}): choose another folder")


def _clear(folder: Path) -> None:
    """Remove what a killed process has left."""
    for file in folder.iterdir():
        file.unlink()


def _finish(out: Path, folder: Path) -> dict[str, Any] | None:
    """Move a complete pack to where it belongs, the labels last; None if it is not complete.

    Each step can be the last one of a killed process: the next call goes on from there.
    """
    content = read_content(folder / LABELS)
    if content is None:
        return None
    for tar in sorted(folder.glob("*.tar")):
        tar.replace(out / tar.name)
    _sync(out)
    (folder / LABELS).replace(out / LABELS)
    _sync(out)
    shutil.rmtree(folder, ignore_errors=True)
    return content


def _sync(path: Path) -> None:
    """What was written or moved is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- The images -------------------------------------------------------------------------------


@dataclass
class _Shards:
    """One tar after another, and where in them each image lies."""

    folder: Path
    limit: int
    count: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    tar: BinaryIO | None = None
    places: list[np.ndarray] = field(default_factory=list)  # each [B, 3]: tar, first byte, size

    def add(self, name: str, image: Stored) -> tuple[int, int, int]:
        """(tar, first byte, size) of an image that has been written."""
        header = tarfile.TarInfo(f"{name}.{image.suffix}")
        header.size = len(image.content)  # time, owner and group stay 0: the same bytes every time
        room = -len(image.content) % tarfile.BLOCKSIZE
        needed = tarfile.BLOCKSIZE + header.size + room
        if self.tar is None or (
            self.tar.tell() and self.tar.tell() + needed + 2 * tarfile.BLOCKSIZE > self.limit
        ):
            self.close()
            self.tar = (self.folder / shard_name(self.count)).open("wb")
            self.count += 1
        self.tar.write(header.tobuf(tarfile.USTAR_FORMAT))
        first = self.tar.tell()
        self.tar.write(image.content)
        self.tar.write(bytes(room))
        self.bytes_before += image.bytes_before
        self.bytes_after += header.size
        return self.count - 1, first, header.size

    def close(self) -> None:
        if self.tar is not None:
            self.tar.write(bytes(2 * tarfile.BLOCKSIZE))  # the mark of the end
            self.tar.flush()
            os.fsync(self.tar.fileno())
            self.tar.close()
            self.tar = None


def shard_name(number: int) -> str:
    return f"images-{number:05d}.tar"


def _write_images(
    table: LabelTable,
    shards: _Shards,
    work: Callable[[Texts], list[Stored]],
    workers: int | None,
    on_bad_image: str,
    say: Callable[[str], object],
) -> dict[int, str]:
    """Every image into the tars, in order; by row, what is wrong with the ones left out."""
    assert table.paths is not None
    names, row, problems = member_names(table.ids), 0, {}
    told = time.monotonic()
    count = min(cores() if workers is None else workers, -(-len(table) // BLOCK))
    with closing(in_order(work, table.paths.blocks(BLOCK), count)) as blocks:
        for block in blocks:
            places = []
            for name, image in zip(names[row : row + len(block)], block, strict=True):
                if image.problem is not None:
                    problems[row] = image.problem
                elif not problems or on_bad_image == "skip":  # the rest is only looked at
                    places.append(shards.add(name, image))
                row += 1
            shards.places.append(np.array(places, np.int64).reshape(-1, 3))
            if time.monotonic() - told > SAY_EVERY:
                told = time.monotonic()
                say(f"{row:,} of {len(table):,} images packed")
    if problems and (on_bad_image == "error" or len(problems) == len(table)):
        found = list(images.describe_problems(table.paths, problems))
        advice = f"mend them, or leave these {len(problems):,} out with --on-bad-image skip"
        raise DataError([*found, advice] if len(problems) < len(table) else found)
    return problems


def _prepare_block(size: int | None, quality: int, paths: Texts) -> list[Stored]:
    return [prepare(path, size, quality) for path in paths]


def prepare(path: str, size: int | None, quality: int) -> Stored:
    """An image as a pack stores it; only what is copied keeps the bytes of its file."""
    record = images.inspect(path, "quick")
    if record.problem is not None:
        return Stored(problem=record.problem)
    try:
        content = tars.read_bytes(path)
        shorter = min(record.width, record.height)
        plain = record.format == "JPEG" and record.mode in ("RGB", "L") and record.orientation == 1
        if size is None or (plain and shorter <= size):
            images.decode(content, target=1)  # or damage would be found in training
            suffix = _SUFFIXES.get(record.format, record.format.lower())
            return Stored(content, suffix, len(content))
        # Twice the size is left to the resampling: what the decoder does before is rougher.
        picture = images.decode(content, target=2 * size)
        if shorter > size:
            longer = max(size, round(size * max(record.width, record.height) / shorter))
            upright = picture.height > picture.width
            picture = picture.resize(
                (size, longer) if upright else (longer, size), Image.Resampling.BICUBIC
            )
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=quality)
        return Stored(stream.getvalue(), "jpg", len(content))
    except images.ImageProblem as problem:
        return Stored(problem=str(problem))
    except OSError as error:  # it was there a moment ago, or is too long for a JPEG
        return Stored(problem=error.strerror or str(error))


def member_names(ids: Texts) -> Texts:
    """A short name in plain letters for each id, without suffix; no two are the same."""
    import pyarrow as arrow
    from pyarrow import compute

    endings = "|".join(suffix[1:] for suffix in images.SUFFIXES)
    names = compute.replace_substring_regex(ids.arrow(), rf"(?i)(.)\.({endings})$", r"\1")
    names = compute.replace_substring_regex(names, "[^0-9A-Za-z_-]+", "_")  # dots: see WebDataset
    short = Texts.of(compute.utf8_slice_codeunits(names, 0, NAME_LENGTH))
    lower = Texts.of(compute.ascii_lower(short.arrow()))  # for file systems without capitals
    keys, alone = lower.keys(), np.ones(len(lower), dtype=bool)
    order = np.argsort(keys)
    same = keys[order][1:] == keys[order][:-1]
    alone[order[1:][same]] = alone[order[:-1][same]] = False
    numbers = arrow.array(np.arange(len(short))).cast(arrow.large_string())
    numbered = compute.binary_join_element_wise(
        short.arrow(), numbers, arrow.scalar("~", arrow.large_string())
    )
    return Texts.of(compute.if_else(arrow.array(alone), short.arrow(), numbered))


# --- The labels -------------------------------------------------------------------------------


def _content(
    table: LabelTable, shards: _Shards, problems: dict[int, str], request: dict[str, Any]
) -> dict[str, Any]:
    """What `labels.parquet` says of the pack as a whole."""
    return {
        "version": VERSION,
        "names": list(table.names),
        "images": len(table) - len(problems),
        "bytes_before": shards.bytes_before,
        "bytes_after": shards.bytes_after,
        "shards": shards.count,
        "skipped": {table.ids[row]: what for row, what in problems.items()},
        "request": request,
    }


def _result(content: dict[str, Any]) -> dict[str, Any]:
    wanted = ("images", "bytes_before", "bytes_after", "shards", "skipped")
    return {key: content[key] for key in wanted}


def _write_labels(
    file: Path,
    table: LabelTable,
    shards: _Shards,
    problems: dict[int, str],
    content: dict[str, Any],
) -> None:
    """Whole or not at all, as everything hangs on it."""
    import pyarrow as arrow
    from pyarrow import parquet

    if problems:
        table = table.take(np.delete(np.arange(len(table)), list(problems)))
    text = arrow.string()
    numbers = arrow.list_(arrow.int32())
    fields = [("id", text), ("path", text), ("positive", numbers), ("negative", numbers)]
    if table.splits is not None:
        fields.insert(1, ("split", text))
    schema = arrow.schema(fields, {METADATA: json.dumps(content, ensure_ascii=False)})
    places, temporary = np.concatenate(shards.places), file.with_name(f".{LABELS}")
    with parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for first in range(0, len(table), ROWS):
            block = table.take(np.arange(first, min(first + ROWS, len(table))))
            columns = {
                "id": block.ids.arrow().cast(text),
                "path": _relative_paths(places[first : first + ROWS]).arrow().cast(text),
                "positive": _lists(block, POSITIVE),
                "negative": _lists(block, NEGATIVE),
            }
            if block.splits is not None:
                columns["split"] = arrow.array(block.splits.astype(str), text)
            writer.write_table(arrow.table([columns[name] for name in schema.names], schema=schema))
    _sync(temporary)
    temporary.replace(file)


def _relative_paths(places: np.ndarray) -> Texts:
    """The spans of images [B, 3] of which the tars ascend."""
    numbers, firsts = np.unique(places[:, 0], return_index=True)
    ends: Sequence[int] = [*firsts[1:].tolist(), len(places)]
    return concatenated(
        tars.span_paths(shard_name(number), places[first:end, 1], places[first:end, 2])
        for number, first, end in zip(numbers.tolist(), firsts.tolist(), ends, strict=True)
    )


def _lists(table: LabelTable, value: int) -> Any:
    """The labels of this value of each row, as a column of lists."""
    import pyarrow as arrow

    chosen = table.values == value
    ends = np.concatenate([[0], np.cumsum(chosen)])[table.indptr]
    return arrow.ListArray.from_arrays(
        ends.astype(np.int32), table.indices[chosen].astype(np.int32)
    )
