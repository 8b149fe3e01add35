"""One image: bytes -> pixels, or a sentence on what is wrong with it.

What enters: the path of an image file or of a span of a tar. What leaves: an upright RGB picture of
eight bits, from whatever a JPEG, PNG, GIF, TIFF or WebP holds.
"""

import io
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
from PIL import Image, ImageOps

from partly.errors import first_few
from partly.tars import exists, read_bytes
from partly.texts import Texts

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
LARGEST = 120_000_000  # pixels; more is a bomb or a mistake
BLOCK = 256  # images that one process looks at before it asks for more
VERIFY = ("full", "quick", "off")
_JPEG, _JPEG_END = b"\xff\xd8", b"\xff\xd9"


class ImageProblem(ValueError):
    """What is wrong with an image, without its name."""


def decode(content: bytes, target: int = 0) -> Image.Image:
    """An upright RGB picture; of an animation its first frame.

    target: the size the picture is going to have. A JPEG at least twice as large is decoded at ½, ¼
    or ⅛ of its size, which costs a fraction.
    """
    if not content:
        raise ImageProblem("the file is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image: Image.Image = Image.open(io.BytesIO(content))
        width, height = image.size
        if width * height > LARGEST:
            raise ImageProblem(f"{width} × {height} pixels are more than {LARGEST:,}")
        if target and image.format == "JPEG":
            image.draft("RGB", (target, target))
        image = ImageOps.exif_transpose(_to_eight_bits(image))
        return _without_alpha(image).convert("RGB")
    except ImageProblem:
        raise
    except Image.UnidentifiedImageError:
        raise ImageProblem("this is no image, or of an unknown kind") from None
    except Exception as error:  # a damaged file fails in many ways, all of them the file's
        raise ImageProblem(str(error) or type(error).__name__) from None


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Pillow cuts 16-bit grey off at 255 instead of scaling it."""
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image).astype(np.int64)
    if image.mode != "I" or values.max() > 255:  # "I" may hold 8 bits as well
        values >>= 8
    eight = Image.fromarray(values.clip(0, 255).astype(np.uint8))
    eight.info, eight._exif = image.info, image.getexif()
    return eight


def _without_alpha(image: Image.Image) -> Image.Image:
    """Transparent pixels are white: what they hide is often garbage, and never meant to be seen."""
    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)


def load(path: str, target: int = 0) -> Image.Image:
    """The picture of a file or span; `ImageProblem` on whatever is wrong with it."""
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        raise ImageProblem("there is no such file") from None
    except OSError as error:
        raise ImageProblem(error.strerror or str(error)) from None
    return decode(content, target)


def problem(path: str, how: str = "full") -> str | None:
    """What is wrong with an image, in a few words; None if nothing is.

    full: decode it, at an eighth of its size if it is a JPEG. quick: its header, and that a JPEG
    has an end; damage in the middle goes unseen.
    """
    try:
        if how == "full":
            load(path, target=1)
        else:
            _glance(path)
    except ImageProblem as found:
        return str(found)
    return None


def _glance(path: str) -> None:
    """Header and end; no pixel is decoded."""
    if not exists(path):
        raise ImageProblem("there is no such file")
    try:
        content = read_bytes(path)
        if not content:
            raise ImageProblem("the file is empty")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            width, height = Image.open(io.BytesIO(content)).size
    except ImageProblem:
        raise
    except Exception:
        raise ImageProblem("this is no image, or of an unknown kind") from None
    if width * height > LARGEST:
        raise ImageProblem(f"{width} × {height} pixels are more than {LARGEST:,}")
    if content.startswith(_JPEG) and _JPEG_END not in content[-1024:]:
        raise ImageProblem("the file is truncated")


def find_problems(paths: Texts, how: str = "full", workers: int | None = None) -> dict[int, str]:
    """By row, what is wrong with each bad image of these."""
    firsts = range(0, len(paths), BLOCK)
    blocks = (paths[first : first + BLOCK] for first in firsts)
    workers = min(workers or len(os.sched_getaffinity(0)), len(firsts))
    look = partial(_problems_of, how)
    if workers < 2:
        found = list(map(look, blocks))
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
            found = list(pool.map(look, blocks))
    return {
        first + place: what
        for first, part in zip(firsts, found, strict=True)
        for place, what in part
    }


def _problems_of(how: str, paths: Texts) -> list[tuple[int, str]]:
    found = ((place, problem(path, how)) for place, path in enumerate(paths))
    return [(place, what) for place, what in found if what is not None]


def describe_problems(paths: Texts, problems: dict[int, str], limit: int = 5) -> Iterator[str]:
    """A sentence a kind of problem, naming the first few images that have it."""
    kinds: dict[str, list[int]] = {}
    for row, what in problems.items():
        kinds.setdefault(what, []).append(row)
    for what, rows in kinds.items():
        named = first_few([paths[row] for row in rows], limit)
        count = "1 image" if len(rows) == 1 else f"{len(rows)} images"
        yield f"cannot use {count}: {what}: {named}"
