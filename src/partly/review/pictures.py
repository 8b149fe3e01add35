"""An image of the data set as a browser is sent it.

What enters: the row of an image. What leaves: an upright JPEG no larger than asked for, or
`ImageProblem`. Whatever the file was, what is sent was written here; and there is no other way in
than a row's number.
"""

import io
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache, partial

from PIL import Image

from partly import images
from partly.processes import cores
from partly.texts import Texts

SIDES = {"image": 1600, "thumb": 256}  # the longer side, in pixels
KEPT = {"image": 48, "thumb": 4096}  # how many are remembered: some 30 and 60 MB
QUALITY = 88
LARGE = 20_000_000  # pixels: decoding takes some 16 bytes for each

Pictures = Callable[[str, int], bytes]


def pictures_of(paths: Texts) -> Pictures:
    """A function of `image` or `thumb` and a row."""
    # Decoding takes memory: not twenty images at once, and of large ones not two.
    busy, alone = threading.Semaphore(cores()), threading.Lock()

    def encode(side: int, row: int) -> bytes:
        with busy:
            content = images.read(paths[row])
            width, height = images.size(content)
            with alone if width * height > LARGE else nullcontext():
                return _jpeg(content, side)

    kept = {size: lru_cache(KEPT[size])(partial(encode, side)) for size, side in SIDES.items()}
    return lambda size, row: kept[size](row)


def _jpeg(content: bytes, side: int) -> bytes:
    picture = images.decode(content, target=side)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    written = io.BytesIO()
    picture.save(written, "JPEG", quality=QUALITY)
    return written.getvalue()
