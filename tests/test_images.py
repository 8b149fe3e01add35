"""Images: every kind is decoded rightly, and every fault is found and named."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from partly import images, tars
from partly.drawing import draw_picture
from partly.images import DAMAGED, EMPTY, TOO_LARGE, TRUNCATED, UNKNOWN_KIND
from partly.texts import Texts

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def encoded(picture: Image.Image, format: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, format=format, **options)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, bits: int, colour: int, rows: bytes, *chunks: bytes) -> bytes:
    """A PNG put together by hand: `rows` are its lines, each with a filter byte before it."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + data + chunk(b"IEND", b"")


BOMB = png(60_000, 60_000, 1, 0, bytes(100))


def drawn(size: int = 128) -> Image.Image:
    return draw_picture(0, 1, size)[0]


def halves(left: object, right: object, mode: str = "RGB", size: int = 64) -> Image.Image:
    picture = Image.new(mode, (size, size), left)
    picture.paste(right, (size // 2, 0, size, size))
    return picture


def near(picture: Image.Image, place: tuple[int, int], colour: tuple[int, int, int]) -> bool:
    """JPEG moves a colour a little."""
    assert picture.mode == "RGB"
    found = picture.getpixel(place)
    return max(abs(a - b) for a, b in zip(found, colour, strict=True)) <= 3


def sides(picture: Image.Image) -> tuple[tuple[int, ...], tuple[int, ...]]:
    assert picture.mode == "RGB"
    return picture.getpixel((4, 32)), picture.getpixel((60, 32))


# --- what is decoded -----------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "JPEG", "WEBP"])
def test_plain_pictures(format):
    content = encoded(halves(RED, BLUE), format, **({"lossless": True} if format == "WEBP" else {}))
    picture = images.decode(content)
    assert near(picture, (4, 32), (254, 0, 0) if format == "JPEG" else RED)
    assert near(picture, (60, 32), BLUE)


@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_cmyk(format):
    """Pillow writes a JPEG of four inks as Adobe does: inverted, with a marker that says so."""
    content = encoded(halves((0, 255, 255, 0), (255, 255, 0, 0), "CMYK"), format)
    assert (b"Adobe" in content) == (format == "JPEG")
    picture = images.decode(content)
    assert near(picture, (4, 32), RED)
    assert near(picture, (60, 32), BLUE)


def test_grey_of_sixteen_bits_is_scaled_and_not_cut_off():
    values = np.zeros((64, 64), np.uint16)
    values[:, :32], values[:, 32:] = 0x4000, 0xC000
    for format in ("PNG", "TIFF"):
        found = sides(images.decode(encoded(Image.fromarray(values), format)))
        assert found == ((0x40,) * 3, (0xC0,) * 3)


def test_colours_of_sixteen_bits():
    line = b"\0" + struct.pack(">3H", 0xFF00, 0x8000, 0) * 40
    assert images.decode(png(40, 40, 16, 2, line * 40)).getpixel((9, 9)) == (255, 128, 0)


def test_a_transparent_value_of_sixteen_bits():
    line = b"\0" + struct.pack(">2H", 0x1234, 0x9000) * 20
    content = png(40, 40, 16, 0, line * 40, chunk(b"tRNS", struct.pack(">H", 0x1234)))
    picture = images.decode(content)
    assert picture.getpixel((0, 3)) == WHITE
    assert picture.getpixel((1, 3)) == (0x90,) * 3


@pytest.mark.parametrize("values", [np.full((8, 8), 0.5, np.float32), np.full((8, 8), 70_000)])
def test_pixels_that_do_not_fit_into_eight_bits_are_refused(values):
    content = encoded(Image.fromarray(values.astype(values.dtype.str.replace("i8", "i4"))), "TIFF")
    with pytest.raises(images.ImageProblem, match="save it with 8 bits"):
        images.decode(content)


def test_palette_with_and_without_transparency():
    picture = halves(0, 1, "P")
    picture.putpalette([*RED, *BLUE])
    assert sides(images.decode(encoded(picture))) == (RED, BLUE)
    assert sides(images.decode(encoded(picture, transparency=1))) == (RED, WHITE)


@pytest.mark.parametrize(
    ("mode", "left", "right", "expected"),
    [
        ("RGBA", (255, 0, 0, 255), (9, 9, 9, 0), (RED, WHITE)),
        ("LA", (100, 255), (0, 0), ((100,) * 3, WHITE)),
        ("RGBA", (0, 0, 255, 255), (0, 0, 0, 128), (BLUE, (127,) * 3)),
        ("1", 0, 1, ((0,) * 3, WHITE)),
        ("L", 7, 200, ((7,) * 3, (200,) * 3)),
    ],
)
def test_alpha_is_laid_on_white(mode, left, right, expected):
    assert sides(images.decode(encoded(halves(left, right, mode)))) == expected


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_upright(orientation, format):
    """The corners of a picture as the camera saw it, stored as each orientation stores it."""
    corners = {(0, 0): RED, (1, 0): BLUE, (0, 1): (0, 255, 0), (1, 1): WHITE}
    upright = Image.new("RGB", (96, 48))
    for (right, low), colour in corners.items():
        upright.paste(colour, (48 * right, 24 * low, 48 * right + 48, 24 * low + 24))
    turned = np.asarray(upright)
    stored = {
        1: turned,
        2: turned[:, ::-1],
        3: turned[::-1, ::-1],
        4: turned[::-1],
        5: turned.transpose(1, 0, 2),
        6: turned.transpose(1, 0, 2)[::-1],
        7: turned.transpose(1, 0, 2)[::-1, ::-1],
        8: turned.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    quality = {"quality": 95, "subsampling": 0} if format == "JPEG" else {}
    content = encoded(Image.fromarray(stored.copy()), format, exif=exif, **quality)
    picture = images.decode(content)
    assert picture.size == (96, 48)
    for (right, low), colour in corners.items():
        assert near(picture, (24 + 48 * right, 12 + 24 * low), colour)


def test_a_picture_with_a_broken_exif_is_a_picture():
    content = encoded(drawn(), "JPEG", exif=b"Exif\0\0nothing of the kind")
    assert images.decode(content).size == (128, 128)


def test_of_an_animation_the_first_frame():
    frames = [halves(RED, BLUE), halves(WHITE, WHITE)]
    content = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert sides(images.decode(content)) == (RED, BLUE)


def test_a_large_jpeg_is_decoded_at_a_fraction():
    picture = images.decode(encoded(halves(RED, BLUE, size=512), "JPEG"), target=64)
    assert picture.size == (64, 64)
    assert near(picture, (4, 32), (254, 0, 0))


def test_which_jpegs_need_no_care():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert images.is_plain_jpeg(encoded(drawn(), "JPEG"))
    assert images.is_plain_jpeg(encoded(drawn().convert("L"), "JPEG"))
    assert not images.is_plain_jpeg(encoded(drawn(), "PNG"))
    assert not images.is_plain_jpeg(encoded(drawn().convert("CMYK"), "JPEG"))
    assert not images.is_plain_jpeg(encoded(drawn(), "JPEG", exif=exif))


# --- what is wrong -------------------------------------------------------------------------------


JPEG = encoded(drawn(), "JPEG", quality=90)
HALF = len(JPEG) // 2
PNG, GIF = encoded(drawn()), encoded(drawn(), "GIF")


def without_restarts(marker: int) -> bytes:
    """A marker in the middle of the data, where there is none."""
    return JPEG[:HALF] + bytes([0xFF, marker]) + JPEG[HALF + 2 :]


# The content of a file, what a quick look finds and what a full one does.
FAULTS = {
    "empty": (b"", EMPTY, EMPTY),
    "text": (b"<html>404 not found</html>", UNKNOWN_KIND, UNKNOWN_KIND),
    "half a JPEG": (JPEG[:HALF], TRUNCATED, TRUNCATED),
    "a JPEG less its end": (JPEG[:-2], TRUNCATED, TRUNCATED),
    "half a JPEG, then zeros": (JPEG[:HALF] + bytes(HALF), TRUNCATED, TRUNCATED),
    "ones in a JPEG": (JPEG[:HALF] + b"\xff" * 300 + JPEG[HALF + 300 :], DAMAGED, DAMAGED),
    "foreign bytes in a JPEG": (without_restarts(0xE0), DAMAGED, DAMAGED),
    "a restart in a JPEG without": (without_restarts(0xD3), DAMAGED, DAMAGED),
    "half a PNG": (PNG[: len(PNG) // 2], None, TRUNCATED),
    "zeros in a PNG": (PNG[:2000] + bytes(99) + PNG[2099:], None, DAMAGED),
    "half a GIF": (GIF[: len(GIF) // 2], None, TRUNCATED),
    "a bomb": (BOMB, TOO_LARGE, TOO_LARGE),
    "somewhat large": (png(12_000, 11_000, 1, 0, bytes(100)), TOO_LARGE, TOO_LARGE),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_found(name, tmp_path):
    content, quick, full = FAULTS[name]
    path = tmp_path / "picture.jpg"
    path.write_bytes(content)
    assert images.problem(str(path), "full") == full
    assert images.problem(str(path), "quick") == quick


def test_files_that_are_not_there_or_no_files(tmp_path, monkeypatch):
    (tmp_path / "folder.jpg").mkdir()
    for how in ("full", "quick"):
        assert images.problem(str(tmp_path / "no.jpg"), how) == "there is no such file"
        assert images.problem(str(tmp_path / "folder.jpg"), how) == "this is a folder"
        assert "null byte" in str(images.problem("a\0.jpg", how))

    def refuse(path: str) -> bytes:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(images, "read_bytes", refuse)
    assert images.problem("secret.jpg") == "Permission denied"


def restarting() -> bytes:
    """A JPEG with restart markers, more than eight of them."""
    return encoded(drawn(256), "JPEG", restart_marker_blocks=4)


def test_sound_jpegs_of_every_make_are_sound(tmp_path):
    exif = Image.Exif()
    exif[0x010F] = "a maker"
    thumbnail = encoded(drawn(16), "JPEG")
    assert restarting().count(b"\xff\xd7") > 1
    for number, content in enumerate(
        (
            JPEG,
            encoded(drawn(), "JPEG", progressive=True),
            encoded(drawn(), "JPEG", optimize=True, exif=exif, comment=b"\xff\xd9" + thumbnail),
            encoded(drawn().convert("L"), "JPEG"),
            encoded(drawn().convert("CMYK"), "JPEG"),
            restarting(),
            JPEG + b"\xff\xda a film of the same moment" * 999,  # after the end anything may follow
            JPEG[:-2] + b"\xff\xff" + JPEG[-2:],
        )
    ):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(content)
        assert images.problem(str(path), "full") is None, number
        assert images.problem(str(path), "quick") is None, number


def test_a_restart_out_of_order(tmp_path):
    path = tmp_path / "picture.jpg"
    path.write_bytes(restarting().replace(b"\xff\xd3", b"\xff\xd4", 1))
    assert images.problem(str(path), "quick") == DAMAGED


# --- what an image is ----------------------------------------------------------------------------


def write_kinds(folder: Path) -> dict[str, Path]:
    """An image of each of `images.KINDS`, and a plain one."""
    exif = Image.Exif()
    exif[0x0112] = 3
    palette = drawn().convert("P")
    contents = {
        "animated": encoded(drawn(), "GIF", save_all=True, append_images=[drawn().rotate(90)]),
        "rotated": encoded(drawn(), "JPEG", exif=exif),
        "CMYK": encoded(drawn().convert("CMYK"), "JPEG"),
        "16 bits": encoded(Image.fromarray(np.full((64, 64), 40_000, np.uint16))),
        "palette": encoded(palette),
        "narrow": encoded(drawn().resize((300, 60)), "JPEG"),
        "tiny": encoded(drawn().resize((20, 30))),
        "plain": encoded(drawn(), "JPEG"),
    }
    for name, content in contents.items():
        (folder / f"{name}.img").write_bytes(content)
    return {name: folder / f"{name}.img" for name in contents}


def test_kinds_are_told_apart(tmp_path):
    paths = write_kinds(tmp_path)
    for how in ("full", "quick"):
        found = images.inspect_all(Texts.of([str(path) for path in paths.values()]), how)
        assert found.problems == {}
        for row, name in enumerate(list(paths)[:-1]):
            assert found.of_kind(name).tolist() == [row], name
        assert found.kinds[-1] == 0
        assert found.sizes.tolist()[5:] == [[300, 60], [20, 30], [128, 128]]


def test_an_animation_that_ends_early_still_has_its_first_frame(tmp_path):
    path = write_kinds(tmp_path)["animated"]
    content = path.read_bytes()
    for share in (0.6, 0.8, 0.99):
        path.write_bytes(content[: int(share * len(content))])
        assert images.problem(str(path)) is None
        assert images.problem(str(path), "quick") is None


def test_a_record_of_one_image(tmp_path):
    path = write_kinds(tmp_path)["rotated"]
    record = images.inspect(str(path))
    assert (record.problem, record.width, record.height) == (None, 128, 128)
    assert (record.format, record.mode, record.orientation) == ("JPEG", "RGB", 3)
    copy = tmp_path / "copy.png"
    copy.write_bytes(path.read_bytes())
    assert images.inspect(str(copy)).digest == record.digest
    copy.write_bytes(path.read_bytes() + b"\0")
    assert images.inspect(str(copy)).digest != record.digest
    assert images.inspect(str(tmp_path / "no")).digest == b""


def test_many_images_in_processes_as_in_one(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "BLOCK", 4)
    paths = []
    for number in range(23):
        path = tmp_path / f"{number:02d}.jpg"
        path.write_bytes(JPEG[: HALF if number % 5 == 3 else None] + bytes([number]))
        paths.append(str(path))
    alone, together = (images.inspect_all(Texts.of(paths), "full", n) for n in (1, 3))
    assert together.problems == alone.problems == dict.fromkeys((3, 8, 13, 18), TRUNCATED)
    assert images.find_problems(Texts.of(paths), "quick", 2) == alone.problems
    assert (together.digests == alone.digests).all()
    assert len(np.unique(alone.digests, axis=0)) == 23
    assert images.find_problems(Texts.of([])) == {}


def test_spans_of_a_larger_file(tmp_path):
    file = tmp_path / "all.tar"
    file.write_bytes(JPEG + JPEG[:HALF] + JPEG)
    starts = np.array([0, len(JPEG), len(JPEG) + HALF])
    paths = tars.span_paths(file, starts, np.array([len(JPEG), HALF, len(JPEG)]))
    found = images.inspect_all(paths)
    assert found.problems == {1: TRUNCATED}
    assert (found.digests[0] == found.digests[2]).all()


def test_problems_are_told_once_a_kind():
    paths = Texts.of([f"{number}.jpg" for number in range(9)])
    problems = {0: EMPTY, 2: TRUNCATED, 3: EMPTY, 8: EMPTY}
    assert list(images.describe_problems(paths, problems, limit=2)) == [
        "cannot use 3 images: the file is empty: 0.jpg, 3.jpg and 1 more",
        "cannot use 1 image: the file is truncated: 2.jpg",
    ]
