"""Packing: the same labels, smaller images, the same bytes every time, whatever is killed."""

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from PIL import Image
from pyarrow import parquet

from builders import environment, files_of, picture_table, write_manifest, write_pictures
from partly import answers, images, packing, tars
from partly.answers import Answer
from partly.errors import ConfigError, DataError, PartlyError, RunError
from partly.labels import LabelTable
from partly.packing import member_names, pack
from partly.readers import read, recognise
from partly.source import Source
from partly.texts import Texts
from partly.workflow import pack_run


def quiet(text: str) -> None:
    pass


def packed(table: LabelTable, out: Path, **options: Any) -> dict[str, Any]:
    return pack(table, out, **{"workers": 1, "say": quiet, **options})


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture with something in it at every scale."""
    small = np.random.default_rng(seed).integers(0, 255, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def table_of(folder: Path, pictures: dict[str, Image.Image | bytes], **saving: Any) -> LabelTable:
    folder.mkdir(exist_ok=True)
    for name, picture in pictures.items():
        if isinstance(picture, bytes):
            (folder / name).write_bytes(picture)
        else:
            picture.save(folder / name, **saving.get(name, {}))
    labels = np.random.default_rng(0).integers(-1, 2, (len(pictures), 4))
    paths = [str(folder / name) for name in pictures]
    return LabelTable.from_dense(
        labels, ids=list(pictures), names=["a", "b", "ç", "d"], paths=paths
    )


def stored(out: Path) -> dict[str, Image.Image]:
    """By id, the picture as it lies in the pack."""
    table = read(out)
    return {
        name: Image.open(io.BytesIO(tars.read_bytes(path)))
        for name, path in zip(table.ids, table.paths, strict=True)
    }


def test_labels_come_back_as_they_were(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    table = picture_table(tmp_path / "pictures", 50)
    table = LabelTable.from_dense(
        generator.integers(-1, 2, (50, 7)) * (generator.random((50, 1)) > 0.2),  # some rows full
        ids=[f"Bild {number}/ü" for number in range(50)],
        names=[f"label {column}" for column in range(7)],
        paths=table.paths,
        splits=generator.choice(["train", "validation", "test"], 50),
    )
    result = packed(table, tmp_path / "out")
    assert recognise(tmp_path / "out") == "packed"
    for place in (tmp_path / "out", tmp_path / "out" / "labels.parquet"):
        again = read(place)
        assert again.content_hash == table.content_hash
        assert again.names == table.names
        assert again.splits.tolist() == table.splits.tolist()
        assert again.notes == ()
    assert (result["images"], result["shards"], result["skipped"]) == (50, 1, {})
    assert sorted(os.listdir(tmp_path / "out")) == ["images-00000.tar", "labels.parquet"]


@pytest.mark.parametrize("value", [1, 0, -1])
def test_tables_of_one_value(tmp_path: Path, value: int) -> None:
    table = picture_table(tmp_path / "pictures", 5)
    table = LabelTable.from_dense(np.full((5, 3), value), paths=table.paths)
    packed(table, tmp_path / "out")
    again = read(tmp_path / "out")
    assert again.content_hash == table.content_hash
    assert again.splits is None


def test_a_table_larger_than_a_block_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "ROWS", 7)
    table = picture_table(tmp_path / "pictures", 50)
    packed(table, tmp_path / "out", shard_bytes=8000)
    again = read(tmp_path / "out")
    assert again.content_hash == table.content_hash
    for row in range(50):
        assert images.problem(again.paths[row]) is None


def test_what_becomes_of_an_image(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    pictures = {
        "large.jpg": noise(300, 200),
        "tall.png": noise(100, 333),
        "small.jpg": noise(60, 40),
        "exact.jpg": noise(64, 90),
        "grey.jpg": noise(50, 50).convert("L"),
        "small.png": noise(30, 20),
        "cmyk.jpg": noise(30, 20).convert("CMYK"),
        "turned.jpg": noise(60, 40),
        "turned large.jpg": noise(300, 200),
        "clear.png": noise(30, 20).convert("RGBA"),
        "moving.gif": noise(40, 30),
    }
    saving = {"turned.jpg": {"exif": turned}, "turned large.jpg": {"exif": turned}}
    table = table_of(tmp_path / "pictures", pictures, **saving)
    result = packed(table, tmp_path / "out", size=64)
    found = stored(tmp_path / "out")
    assert {name: picture.size for name, picture in found.items()} == {
        "large.jpg": (96, 64), "tall.png": (64, 213), "small.jpg": (60, 40),
        "exact.jpg": (64, 90), "grey.jpg": (50, 50), "small.png": (30, 20),
        "cmyk.jpg": (30, 20), "turned.jpg": (40, 60), "turned large.jpg": (64, 96),
        "clear.png": (30, 20), "moving.gif": (40, 30),
    }  # fmt: skip
    again = read(tmp_path / "out")
    for name, path in zip(again.ids, again.paths, strict=True):
        same = tars.read_bytes(path) == (tmp_path / "pictures" / name).read_bytes()
        assert same == (name in ("small.jpg", "exact.jpg", "grey.jpg")), name
        assert found[name].format == "JPEG"
        assert found[name].getexif().get(0x0112, 1) == 1
        before = images.load(str(tmp_path / "pictures" / name))
        difference = np.subtract(
            np.asarray(before.resize((16, 16), Image.Resampling.BOX), dtype=int),
            np.asarray(images.load(path).resize((16, 16), Image.Resampling.BOX), dtype=int),
        )
        assert np.abs(difference).mean() < 12, f"{name} does not look like itself"
    sizes = [(tmp_path / "pictures" / name).stat().st_size for name in pictures]
    assert result["bytes_before"] == sum(sizes)
    assert result["bytes_after"] == sum(len(tars.read_bytes(path)) for path in again.paths)


def test_no_size_copies_every_byte(tmp_path: Path) -> None:
    pictures = {"a.jpg": noise(900, 700), "b.png": noise(30, 20), "c.webp": noise(30, 20)}
    pictures |= {"d.tif": noise(30, 20), "e.gif": noise(30, 20)}
    table = table_of(tmp_path / "pictures", pictures)
    result = packed(table, tmp_path / "out", size=None)
    again = read(tmp_path / "out")
    for name, path in zip(again.ids, again.paths, strict=True):
        assert tars.read_bytes(path) == (tmp_path / "pictures" / name).read_bytes()
    assert result["bytes_before"] == result["bytes_after"]
    with tarfile.open(tmp_path / "out" / "images-00000.tar") as tar:
        assert tar.getnames() == ["a.jpg", "b.png", "c.webp", "d.tif", "e.gif"]


def test_quality(tmp_path: Path) -> None:
    table = table_of(tmp_path / "pictures", {"a.png": noise(200, 200)})
    sizes = [
        packed(table, tmp_path / f"{quality}", quality=quality)["bytes_after"]
        for quality in (30, 90)
    ]
    assert sizes[0] < sizes[1]


def test_the_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    table = picture_table(tmp_path / "pictures", 100, size=40)
    for workers in (0, 1, 2, 3, None):
        packed(table, tmp_path / f"{workers}", size=32, workers=workers, shard_bytes=40_000)
    first = files_of(tmp_path / "0")
    assert len(first) > 3, "several shards"
    for workers in (1, 2, 3, None):
        assert files_of(tmp_path / f"{workers}") == first


def test_shards(tmp_path: Path) -> None:
    table = picture_table(tmp_path / "pictures", 40, size=40)
    result = packed(table, tmp_path / "out", shard_bytes=20_000)
    shards = sorted((tmp_path / "out").glob("*.tar"))
    assert len(shards) == result["shards"] > 2
    assert [shard.name for shard in shards][:2] == ["images-00000.tar", "images-00001.tar"]
    assert all(shard.stat().st_size <= 20_000 for shard in shards)
    names = []
    for shard in shards:
        listing = subprocess.run(["tar", "-tf", shard], capture_output=True, text=True, check=True)
        assert listing.stderr == ""
        names += listing.stdout.split()
        assert len(tars.index(shard)[0]) == len(listing.stdout.split())
    assert names == [f"{number}.jpg" for number in range(40)]
    each = packed(table, tmp_path / "each", shard_bytes=1)
    assert each["shards"] == 40, "an image larger than a shard has one to itself"
    assert read(tmp_path / "each").content_hash == table.content_hash


def test_a_pack_can_be_packed_again(tmp_path: Path) -> None:
    table = picture_table(tmp_path / "pictures", 20, size=40)
    packed(table, tmp_path / "one")
    packed(read(tmp_path / "one"), tmp_path / "two", workers=2)
    assert read(tmp_path / "two").content_hash == table.content_hash
    assert files_of(tmp_path / "two").keys() == files_of(tmp_path / "one").keys()


def test_a_pack_moves(tmp_path: Path) -> None:
    packed(picture_table(tmp_path / "pictures", 5), tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "moved")
    assert all(tars.exists(path) for path in read(tmp_path / "moved").paths)


def test_member_names() -> None:
    ids = ["a/b c.JPG", "a/b c", "A_b_c.png", "ü", "日", "x.tar.gz", "../../etc", ".jpg", "y" * 300]
    ids += ["y" * 299 + "z", "7", "plain"]
    names = member_names(Texts.of(ids)).tolist()
    assert len({name.lower() for name in names}) == len(ids)
    assert all(name.isascii() and len(name) < 95 and "/" not in name for name in names)
    assert names[-2:] == ["7", "plain"]
    assert names[5] == "x_tar_gz"
    assert not any(set(name) & set(". ") for name in names)


# What goes wrong


def with_bad_ones(folder: Path) -> LabelTable:
    table = picture_table(folder, 40, size=20)
    (folder / "0003.png").write_bytes(b"no image")
    (folder / "0017.png").unlink()
    content = (folder / "0030.png").read_bytes()
    (folder / "0030.png").write_bytes(content[: len(content) // 2])
    (folder / "0038.png").write_bytes(b"")
    return table


@pytest.mark.parametrize("size", [16, 512, None])
@pytest.mark.parametrize("workers", [1, 2])
def test_all_bad_images_are_reported_at_once(
    tmp_path: Path, workers: int, size: int | None
) -> None:
    table = with_bad_ones(tmp_path / "pictures")
    with pytest.raises(DataError) as caught:
        packed(table, tmp_path / "out", workers=workers, size=size)
    for sentence in (
        "0003.png",
        "0017.png",
        "0030.png",
        "0038.png",
        "--on-bad-image skip",
        "empty",
    ):
        assert sentence in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_bad_images_are_left_out_where_one_says_so(tmp_path: Path) -> None:
    table = with_bad_ones(tmp_path / "pictures")
    result = packed(table, tmp_path / "out", on_bad_image="skip", workers=2, shard_bytes=5000)
    assert list(result["skipped"]) == ["3", "17", "30", "38"]
    assert result["skipped"]["17"] == "there is no such file"
    assert result["images"] == 36
    again = read(tmp_path / "out")
    kept = np.delete(np.arange(40), [3, 17, 30, 38])
    assert again.content_hash == table.take(kept).content_hash
    assert [images.problem(path) for path in again.paths] == [None] * 36
    assert again.notes == ("4 bad images left out of the pack: 3, 17, 30, 38",)


def test_nothing_but_bad_images(tmp_path: Path) -> None:
    table = picture_table(tmp_path / "pictures", 3)
    for file in (tmp_path / "pictures").iterdir():
        file.write_bytes(b"?")
    with pytest.raises(DataError, match="cannot use 3 images"):
        packed(table, tmp_path / "out", on_bad_image="skip")
    assert not (tmp_path / "out").exists()


def test_a_damaged_jpeg_is_not_copied(tmp_path: Path) -> None:
    stream = io.BytesIO()
    noise(100, 100).save(stream, "JPEG")
    cut = stream.getvalue()[:-400]
    table = table_of(tmp_path / "pictures", {"good.jpg": noise(9, 9), "cut.jpg": cut})
    for size in (512, 20, None):
        with pytest.raises(DataError, match=r"truncated.*cut\.jpg"):
            packed(table, tmp_path / "out", size=size)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"size": 0}, "size is the shorter side"),
        ({"quality": 0}, "quality is a JPEG's"),
        ({"shard_bytes": 0}, "shard_bytes"),
        ({"workers": -1}, "workers"),
        ({"on_bad_image": "drop"}, "on_bad_image is one of error, skip, not 'drop'"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict, sentence: str) -> None:
    table = picture_table(tmp_path / "pictures", 3)
    with pytest.raises(ConfigError, match=sentence):
        packed(table, tmp_path / "out", **options)
    with pytest.raises(ConfigError) as caught:
        packed(table, tmp_path / "out", **{"size": -1, "quality": 101, **options})
    assert len(caught.value.problems) >= 2
    assert not (tmp_path / "out").exists()


def test_features_have_nothing_to_pack(tmp_path: Path) -> None:
    table = LabelTable.from_dense([[1, 0]], features=np.ones((1, 3)))
    with pytest.raises(ConfigError, match="rows of features and no images"):
        packed(table, tmp_path / "out")


def test_what_is_there_already_stays(tmp_path: Path) -> None:
    table = picture_table(tmp_path / "pictures", 3)
    packed(table, tmp_path / "out")
    before = files_of(tmp_path / "out")
    for other in (table, table.take(np.arange(2))):
        with pytest.raises(ConfigError, match=r"already holds labels\.parquet"):
            packed(other, tmp_path / "out")
    assert files_of(tmp_path / "out") == before
    with pytest.raises(ConfigError, match=r"is not empty \(it holds 0000\.png\)"):
        packed(table, tmp_path / "pictures")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        packed(table, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert packed(table, tmp_path / "empty")["images"] == 3
    assert packed(table, tmp_path / "new" / "deep")["images"] == 3


def test_a_full_disk_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    table = picture_table(tmp_path / "pictures", 40)
    monkeypatch.setattr(packing._Shards, "add", full)
    with pytest.raises(RunError, match=r"cannot write .*out: No space left"):
        packed(table, tmp_path / "out", workers=2)
    assert not (tmp_path / "out").exists()


def die(*arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = picture_table(tmp_path / "pictures", 40)
    monkeypatch.setattr(packing, "_prepare_block", die)
    with pytest.raises(RunError, match="one of 2 processes was killed"):
        packed(table, tmp_path / "out", workers=2)
    assert not (tmp_path / "out").exists()


# Killed

SCRIPT = """
import os, sys, time
from pathlib import Path
from partly import packing
from partly.readers import read

where, folder = sys.argv[1], Path(sys.argv[2])

def stop(*arguments):
    print("here", flush=True)
    time.sleep(60)

count = 0
def later(function, calls):
    def wrapped(*arguments, **named):
        global count
        count += 1
        return stop() if count == calls else function(*arguments, **named)
    return wrapped

if where == "images":
    packing._Shards.add = later(packing._Shards.add, 40)
elif where == "labels":
    packing._write_labels = stop
elif where == "moves":
    Path.replace = later(Path.replace, 3)  # the labels, the first tar, and then
packing.pack(read(folder / "pictures" / "data.csv"), folder / "out", size=16, workers=2,
             shard_bytes=20_000)
"""


@pytest.mark.parametrize("where", ["images", "labels", "moves"])
def test_killed_and_called_again(tmp_path: Path, where: str) -> None:
    table = picture_table(tmp_path / "pictures", 60, size=20)
    lines = [f"{number:04d}.png,1,{number % 2}" for number in range(60)]
    (tmp_path / "pictures" / "data.csv").write_text("\n".join(["path,a,b", *lines]) + "\n")
    table = read(tmp_path / "pictures" / "data.csv")
    options: dict[str, Any] = {"size": 16, "shard_bytes": 20_000}
    expected = packed(table, tmp_path / "whole", **options)
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, where, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "here\n"
            workers = children(process.pid)
            with pytest.raises(RunError, match="another process is packing"):
                packed(table, tmp_path / "out", **options)
        finally:
            process.kill()
    assert (tmp_path / "out" / ".unfinished").is_dir()
    with pytest.raises(DataError, match="unfinished: run `partly pack` again"):
        read(tmp_path / "out")
    until = time.monotonic() + 10
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < until, "the workers live on"
        time.sleep(0.02)
    assert packed(table, tmp_path / "out", **options) == expected
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path / "out")) == sorted(os.listdir(tmp_path / "whole"))


def children(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(word) for word in text.split()]


def test_what_was_complete_but_for_its_moves_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = picture_table(tmp_path / "pictures", 6)
    packed(table, tmp_path / "out")
    (tmp_path / "out" / ".unfinished").mkdir()
    for name in ("labels.parquet", "images-00000.tar"):
        (tmp_path / "out" / name).rename(tmp_path / "out" / ".unfinished" / name)
    with pytest.raises(ConfigError, match=r"already holds labels\.parquet"):
        packed(table.take(np.arange(3)), tmp_path / "out")
    assert read(tmp_path / "out").content_hash == table.content_hash


# Reading


def rewritten(out: Path, **columns: Any) -> Path:
    table = parquet.read_table(out / "labels.parquet")
    for name, cells in columns.items():
        place = table.schema.get_field_index(name)
        field = table.schema.field(name)
        table = table.set_column(place, field, arrow.array(cells, field.type))
    parquet.write_table(table, out / "labels.parquet")
    return out


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"positive": [[0], [3]]}, "not in 0 … 2"),
        ({"positive": [[0], [-1]]}, "not in 0 … 2"),
        ({"positive": [[0], [2, 1]]}, "do not ascend"),
        ({"positive": [[0], [1]], "negative": [[], [1]]}, "in both lists"),
        ({"id": ["x", "x"]}, "more than once: x"),
    ],
)
def test_labels_that_somebody_changed(tmp_path: Path, columns: dict, sentence: str) -> None:
    table = picture_table(tmp_path / "pictures", 2)
    packed(table, tmp_path / "out")
    columns = {"negative": [[], []], **columns}
    with pytest.raises(PartlyError, match=rf"labels\.parquet is damaged: .*{sentence}"):
        read(rewritten(tmp_path / "out", **columns))


def test_a_pack_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "VERSION", 99)
    packed(picture_table(tmp_path / "pictures", 2), tmp_path / "out")
    with pytest.raises(DataError, match="pack of version 99"):
        read(tmp_path / "out")


def test_an_ordinary_manifest_called_labels(tmp_path: Path) -> None:
    parquet.write_table(arrow.table({"path": ["a"], "cat": [1]}), tmp_path / "labels.parquet")
    assert recognise(tmp_path / "labels.parquet") == "manifest"
    with pytest.raises(DataError, match="not written by `partly pack`"):
        read(tmp_path / "labels.parquet", format="packed")


def test_what_people_answered_stays_an_answer(tmp_path: Path) -> None:
    """In a pack as beside the data: marked, so that it is not taken for a sample."""
    labels = write_pictures(tmp_path, 4)
    labels[1:] = -1
    write_manifest(tmp_path / "data.csv", labels)
    first = read(tmp_path / "data.csv")
    given = [Answer(first.ids[2], first.names[0], 1), Answer(first.ids[2], first.names[0], 0)]
    answers.append(answers.journal_of(tmp_path / "data.csv"), given)
    out = tmp_path / "new" / "packed"
    pack_run(tmp_path / "data.csv", out, workers=0, say=quiet)
    assert read(out).dense()[2].tolist() == [-1, -1, -1]
    before, after = Source(tmp_path / "data.csv").read(), Source(out).read()
    np.testing.assert_array_equal(after.dense(), before.dense())
    assert after.asked is not None
    np.testing.assert_array_equal(after.asked, before.asked)
    assert after.asked.sum() == 1


def test_answers_of_another_pack_are_not_mixed_with_these(tmp_path: Path) -> None:
    write_manifest(tmp_path / "data.csv", write_pictures(tmp_path, 2))
    for name, value in (("data.csv", 1), ("packed", 0)):
        answers.append(answers.journal_of(tmp_path / name), [Answer("0000.png", "red", value)])
    with pytest.raises(ConfigError, match=r"packed\.answers\.jsonl holds answers that are not"):
        pack_run(tmp_path / "data.csv", tmp_path / "packed", workers=0, say=quiet)
    assert not (tmp_path / "packed").exists()
