"""One image: bytes -> pixels, or a sentence on what is wrong with it.

What enters: the path of an image file or of a span of a tar. What leaves: an upright RGB picture of
eight bits, from whatever a JPEG, PNG, GIF, TIFF or WebP holds; or, of many images, what each of
them is and what is wrong with it.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from partly.errors import first_few
from partly.processes import cores, in_order
from partly.tars import read_bytes
from partly.texts import Texts

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
LARGEST = 120_000_000  # pixels; more is a bomb or a mistake
NARROW = 4  # times as long as wide: stretched to a square, little of it is left
TINY = 32  # pixels of the shorter side
BLOCK = 256  # images that one process looks at before it asks for more
VERIFY = ("full", "quick", "off")

EMPTY = "the file is empty"
TRUNCATED = "the file is truncated"
DAMAGED = "the file is damaged"
UNKNOWN_KIND = "this is no image, or of an unknown kind"
TOO_LARGE = f"it has more than {LARGEST:,} pixels"

_ORIENTATION = 0x0112  # the EXIF tag that says how the camera was held
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Markers of a JPEG. Within the data of a scan, FF is followed by 00 or is a marker.
_MARKER = re.compile(rb"\xff+([^\x00\xff])", re.DOTALL)
_RESTARTS, _END, _SCAN, _INTERVAL = range(0xD0, 0xD8), 0xD9, 0xDA, 0xDD
_AFTER_A_SCAN = (0xC4, 0xDB, 0xDC, _INTERVAL, _SCAN, 0xFE)  # tables, lines, interval, scan, comment
_WITHOUT_LENGTH = (0x01, 0xD8, *_RESTARTS)


class ImageProblem(ValueError):
    """What is wrong with an image, without its name."""


def decode(content: bytes, target: int = 0) -> Image.Image:
    """An upright RGB picture; of an animation its first frame.

    target: the size the picture is going to have. A JPEG at least twice as large is decoded at ½, ¼
    or ⅛ of its size, which costs a fraction.
    """
    return _pixels(_open(content), target)


def _open(content: bytes) -> Image.Image:
    """An image of which only the header is read."""
    if not content:
        raise ImageProblem(EMPTY)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image: Image.Image = Image.open(io.BytesIO(content))
    except Image.DecompressionBombError:
        raise ImageProblem(TOO_LARGE) from None
    except Image.UnidentifiedImageError:
        raise ImageProblem(UNKNOWN_KIND) from None
    except Exception as error:
        raise ImageProblem(_in_words(error)) from None
    width, height = image.size
    if width * height > LARGEST:
        raise ImageProblem(TOO_LARGE)
    return image


def upright(image: Image.Image) -> Image.Image:
    """A picture that is open already, as `decode` would have made it."""
    return _pixels(image)


def _pixels(image: Image.Image, target: int = 0) -> Image.Image:
    try:
        if target and image.format == "JPEG":
            image.draft("RGB", (target, target))
        image.load()  # the orientation may stand behind the pixels
        turn = _TURNS.get(_orientation(image))
        image = _without_alpha(_to_eight_bits(image)).convert("RGB")
        return image if turn is None else image.transpose(turn)
    except ImageProblem:
        raise
    except Exception as error:  # a damaged file fails in many ways, all of them the file's
        raise ImageProblem(_in_words(error)) from None


def _in_words(error: Exception) -> str:
    """The same words for the same fault, whatever the byte, so that faults can be counted."""
    text = str(error) or type(error).__name__
    if "truncated" in text.lower():
        return TRUNCATED
    return DAMAGED if "data stream" in text else f"it cannot be decoded ({text})"


def _orientation(image: Image.Image) -> int:
    """1 to 8; 1 is upright, also where nothing is said or what is said cannot be read."""
    try:
        found = Image.Image.getexif(image).get(_ORIENTATION, 1)  # that of a PNG decodes it
    except Exception:
        return 1
    return found if found in _TURNS else 1


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Pillow cuts 16-bit grey off at 255 instead of scaling it."""
    if image.mode == "F":
        raise ImageProblem("its pixels are floating-point numbers; save it with 8 bits a channel")
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ImageProblem("its pixels have more than 16 bits; save it with 8 bits a channel")
    shift = 8 if image.mode != "I" or values.max() > 255 else 0  # "I" may hold 8 bits as well
    eight = Image.fromarray((values >> shift).astype(np.uint8))
    hidden = image.info.get("transparency")
    if hidden is not None:
        eight.putalpha(Image.fromarray(np.where(values == hidden, 0, 255).astype(np.uint8)))
    return eight


def _without_alpha(image: Image.Image) -> Image.Image:
    """Transparent pixels are white: what they hide is often garbage, and never meant to be seen."""
    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)


def load(path: str, target: int = 0) -> Image.Image:
    """The picture of a file or span; `ImageProblem` on whatever is wrong with it."""
    return decode(read(path), target)


def size(content: bytes) -> tuple[int, int]:
    """Width and height as the header says them, of which nothing is decoded."""
    return _open(content).size


def is_plain_jpeg(content: bytes) -> bool:
    """A whole JPEG of which every decoder makes the same picture: no other colours, no turn."""
    if not content.startswith(b"\xff\xd8") or _jpeg_fault(content) is not None:
        return False
    image = _open(content)
    coloured = image.mode in ("RGB", "L") and image.info.get("adobe_transform") != 0
    return image.format == "JPEG" and coloured and _orientation(image) == 1


def read(path: str) -> bytes:
    """The content of a file or span; `ImageProblem` where there is none."""
    try:
        return read_bytes(path)
    except FileNotFoundError:
        raise ImageProblem("there is no such file") from None
    except IsADirectoryError:
        raise ImageProblem("this is a folder") from None
    except OSError as error:
        raise ImageProblem(error.strerror or str(error)) from None
    except (ValueError, OverflowError) as error:  # a path with a zero byte, a span beyond all size
        raise ImageProblem(str(error)) from None


class Record(NamedTuple):
    """What an image is. Where it has a problem the rest may be empty."""

    problem: str | None
    digest: bytes = b""  # BLAKE2b of the file, 16 bytes: equal files have equal ones
    width: int = 0
    height: int = 0
    format: str = ""
    mode: str = ""
    orientation: int = 1  # EXIF: 1 is upright
    animated: bool = False
    sixteen_bits: bool = False


def _is_narrow(width: int, height: int) -> bool:
    return max(width, height) > NARROW * min(width, height)


# Kinds of images that are read rightly but that a user should know of.
KINDS: dict[str, Callable[[Record], bool]] = {
    "animated": lambda image: image.animated,
    "rotated": lambda image: image.orientation != 1,
    "CMYK": lambda image: image.mode == "CMYK",
    "16 bits": lambda image: image.sixteen_bits,
    "palette": lambda image: image.mode in ("P", "PA") and image.format != "GIF",
    "narrow": lambda image: _is_narrow(image.width, image.height),
    "tiny": lambda image: 0 < min(image.width, image.height) < TINY,
}


def inspect(path: str, how: str = "full") -> Record:
    """What an image is and what is wrong with it; its bytes are read once.

    full: decode it, at an eighth of its size if it is a JPEG. quick: its header, and that a JPEG
    has its markers in order and an end; no pixel is decoded. Damage to a JPEG that still reads as
    code goes unseen in both: its decoder makes a picture of it and says nothing.
    """
    try:
        content = read(path)
    except ImageProblem as found:
        return Record(str(found))
    digest = blake2b(content, digest_size=16).digest()
    try:
        image = _open(content)
        record = _describe(image, digest)
        fault = _jpeg_fault(content)
        if fault is not None:
            raise ImageProblem(fault)
        if how == "full":
            image = image if image.format == "JPEG" else _open(content)  # `_describe` moves it
            _pixels(image, target=1)
            record = record._replace(orientation=_orientation(image))
    except ImageProblem as found:
        return Record(str(found), digest)
    return record


def _describe(image: Image.Image, digest: bytes) -> Record:
    return Record(
        problem=None,
        digest=digest,
        width=image.width,
        height=image.height,
        format=image.format or "",
        mode=image.mode,
        orientation=_orientation(image),
        animated=_is_animated(image),
        sixteen_bits=image.mode.startswith("I;16") or bool(_SIXTEEN.search(str(_tiles(image)))),
    )


def _is_animated(image: Any) -> bool:
    try:  # it looks for a second frame, which may be damaged
        return image.format != "MPO" and bool(getattr(image, "is_animated", False))
    except Exception:
        return False  # (an MPO holds a preview, or the picture of the other eye)


_SIXTEEN = re.compile(r";16[BLN]")


def _tiles(image: Any) -> Any:
    """How the file's pixels are stored; not every kind of image says."""
    return getattr(image, "tile", ())


def _jpeg_fault(content: bytes) -> str | None:
    """What the markers of a JPEG give away: a file cut off, or foreign bytes within a scan.

    The decoder of JPEGs goes on after most faults with grey or garbage, and does not say so.
    """
    if not content.startswith(b"\xff\xd8"):
        return None
    place, interval, restart, in_scan = 2, 0, 0, False
    while match := _MARKER.search(content, place):
        marker, place = match[1][0], match.end()
        if marker == _END:
            return None
        if marker in _RESTARTS and in_scan:
            if not interval or marker != _RESTARTS[restart % 8]:
                return DAMAGED
            restart += 1
        elif in_scan and marker not in _AFTER_A_SCAN:
            return DAMAGED
        elif marker not in _WITHOUT_LENGTH:
            if marker == _INTERVAL:
                interval = int.from_bytes(content[place + 2 : place + 4], "big")
            place += int.from_bytes(content[place : place + 2], "big")
            in_scan, restart = in_scan or marker == _SCAN, 0
    return TRUNCATED


def problem(path: str, how: str = "full") -> str | None:
    """What is wrong with an image, in a few words; None if nothing is. how: see `inspect`."""
    return inspect(path, how).problem


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found in N images."""

    problems: dict[int, str]  # by row
    kinds: np.ndarray  # uint8 [N]: a bit each of KINDS
    sizes: np.ndarray  # int32 [N, 2]: width and height, 0 where unknown
    digests: np.ndarray  # uint64 [N, 2]: 0 where the file could not be read

    def of_kind(self, name: str) -> np.ndarray:
        """The rows of one of KINDS."""
        return np.flatnonzero(self.kinds & (1 << list(KINDS).index(name)))


def inspect_all(paths: Texts, how: str = "full", workers: int | None = None) -> Inspection:
    """`inspect` of every image, in as many processes as there are cores."""
    blocks = paths.blocks(BLOCK) if len(paths) else iter([paths])
    count = min(workers or cores(), -(-len(paths) // BLOCK))
    parts = list(in_order(partial(_inspect_block, how), blocks, count))
    problems = {
        BLOCK * number + place: what
        for number, part in enumerate(parts)
        for place, what in part.problems.items()
    }
    return Inspection(
        problems,
        np.concatenate([part.kinds for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.digests for part in parts]),
    )


def _inspect_block(how: str, paths: Texts) -> Inspection:
    records = [inspect(path, how) for path in paths]
    kinds = [sum(1 << bit for bit, fits in enumerate(KINDS.values()) if fits(r)) for r in records]
    digests = b"".join(record.digest.ljust(16, b"\0") for record in records)
    return Inspection(
        {place: r.problem for place, r in enumerate(records) if r.problem is not None},
        np.array(kinds, np.uint8),
        np.array([(record.width, record.height) for record in records], np.int32).reshape(-1, 2),
        np.frombuffer(digests, np.uint64).reshape(-1, 2),
    )


def find_problems(paths: Texts, how: str = "full", workers: int | None = None) -> dict[int, str]:
    """By row, what is wrong with each bad image of these."""
    return inspect_all(paths, how, workers).problems


def describe_problems(paths: Texts, problems: dict[int, str], limit: int = 5) -> Iterator[str]:
    """A sentence a kind of problem, naming the first few images that have it."""
    kinds: dict[str, list[int]] = {}
    for row, what in problems.items():
        kinds.setdefault(what, []).append(row)
    for what, rows in kinds.items():
        named = first_few([paths[row] for row in rows], limit)
        count = "1 image" if len(rows) == 1 else f"{len(rows):,} images"
        yield f"cannot use {count}: {what}: {named}"
