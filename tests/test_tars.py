"""Images inside tars: where members lie, whatever wrote them, and what is refused."""

import gzip
import io
import multiprocessing
import os
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet

from builders import write_pictures
from partly import tars
from partly.data import ImageInputs, Look
from partly.errors import DataError
from partly.readers.common import locate, locate_in_tar
from partly.texts import Texts

Members = dict[str, bytes] | list[tuple[str, bytes]]


def write_tar(path: Path, members: Members, format: int = tarfile.GNU_FORMAT) -> Path:
    pairs = list(members.items()) if isinstance(members, dict) else members
    with tarfile.open(path, "w", format=format) as tar:
        for name, content in pairs:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return path


def contents(tar: Path) -> dict[str, bytes]:
    """Every member as its span reads."""
    names, starts, sizes = tars.index(tar)
    paths = tars.span_paths(tar, starts, sizes)
    return {name: tars.read_bytes(path) for name, path in zip(names, paths, strict=True)}


MEMBERS = {
    "a.jpg": b"first",
    "folder/b.jpg": b"second" * 400,
    "folder/empty.jpg": b"",
    "Ünïcode/日本.jpg": b"third",
    "long/" * 60 + "name.jpg": b"fourth",
}


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_spans_hold_what_the_members_hold(tmp_path: Path, format: int) -> None:
    tar = write_tar(tmp_path / "images.tar", MEMBERS, format)
    assert contents(tar) == MEMBERS
    assert contents(tar) == MEMBERS  # by the index that is kept now
    assert parquet.read_table(tmp_path / "images.tar.index.parquet").num_rows == len(MEMBERS)


def test_a_tar_that_tar_itself_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    for name, content in MEMBERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    subprocess.run(["tar", "-cf", tmp_path / "dotted.tar", "-C", folder, "."], check=True)
    subprocess.run(["tar", "-cPf", tmp_path / "rooted.tar", folder], check=True)
    assert contents(tmp_path / "dotted.tar") == MEMBERS
    rooted = {f"{folder}/{name}".lstrip("/"): content for name, content in MEMBERS.items()}
    assert contents(tmp_path / "rooted.tar") == rooted


def test_links_lead_to_what_they_lead_to(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.jpg").write_bytes(b"content")
    os.link(folder / "a.jpg", folder / "hard.jpg")
    (folder / "deep" / "soft.jpg").symlink_to("../a.jpg")
    (folder / "again.jpg").symlink_to("deep/soft.jpg")
    (folder / "outside.jpg").symlink_to("/nowhere/x.jpg")
    (folder / "circle.jpg").symlink_to("circle.jpg")
    subprocess.run(["tar", "-cf", tmp_path / "t.tar", "-C", tmp_path, "pictures"], check=True)
    names = ("a.jpg", "hard.jpg", "deep/soft.jpg", "again.jpg")
    assert contents(tmp_path / "t.tar") == {f"pictures/{name}": b"content" for name in names}


def test_of_two_members_of_a_name_the_last_counts(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "t.tar", [("a", b"old"), ("b", b"other"), ("./a", b"new")])
    assert contents(tar) == {"a": b"new", "b": b"other"}


def test_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "t.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as t:
        for name in ("ä.jpg", "ö.jpg"):
            t.addfile(tarfile.TarInfo(name))
    assert contents(tmp_path / "t.tar") == {"ä.jpg": b"", "ö.jpg": b""}


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "holes.jpg").open("wb") as file:
        file.seek(10_000_000)
        file.write(b"end")
    command = ["tar", "--sparse", "-cf", tmp_path / "t.tar", "-C", tmp_path, "holes.jpg"]
    subprocess.run(command, check=True)
    assert (tmp_path / "t.tar").stat().st_size < 1_000_000, "this tar made no sparse member"
    with pytest.raises(DataError, match=r"holes\.jpg with holes .* without --sparse"):
        tars.index(tmp_path / "t.tar")


def damaged(content: bytes) -> bytes:
    """One letter of the second header is another."""
    return content[:1024] + b"?" + content[1025:]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (gzip.compress, r"compressed \(gzip\).*uncompress it"),
        (lambda content: b"\x28\xb5\x2f\xfd" + content, r"compressed \(zstd\)"),
        (lambda content: content[:1300], "cut off"),  # within a header
        (lambda content: content[:1540], "cut off in the middle of a file"),
        (lambda content: content[:1024], "cut off: it stops at byte 1024, after 1 files"),
        (lambda content: content[:2048], "cut off"),  # after a whole file: no mark of the end
        (damaged, "damaged: there is no tar header at byte 1024, after 1 files"),
        (lambda content: b"", "cannot read .* as a tar"),
        (lambda content: b"no tar at all" * 100, "cannot read .* as a tar"),
    ],
)
def test_what_is_no_whole_tar(
    tmp_path: Path, damage: Callable[[bytes], bytes], sentence: str
) -> None:
    tar = write_tar(tmp_path / "t.tar", {"a": b"1" * 100, "b": b"2" * 100})
    tar.write_bytes(damage(tar.read_bytes()))
    with pytest.raises(DataError, match=sentence) as caught:
        tars.index(tar)
    assert str(tar) in str(caught.value)
    assert os.listdir(tmp_path) == ["t.tar"], "no index is kept of it"


def test_no_such_tar(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*none\.tar: No such file"):
        tars.index(tmp_path / "none.tar")


def test_an_index_is_of_one_state_of_the_tar(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "t.tar", {"a": b"1"})
    assert list(contents(tar)) == ["a"]
    time.sleep(0.01)
    replaced = write_tar(tmp_path / "new.tar", {"b": b"2"})
    assert replaced.stat().st_size == tar.stat().st_size
    replaced.replace(tar)
    assert contents(tar) == {"b": b"2"}


@pytest.mark.parametrize("content", [b"", b"PAR1 no", b"PAR1" * 100])
def test_a_broken_index_is_made_again(tmp_path: Path, content: bytes) -> None:
    tar = write_tar(tmp_path / "t.tar", MEMBERS)
    kept = tmp_path / "t.tar.index.parquet"
    kept.write_bytes(content)
    assert contents(tar) == MEMBERS
    assert kept.read_bytes() != content


def test_an_index_that_cannot_be_kept_is_done_without(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / ("t" * 245 + ".tar"), MEMBERS)  # the index's name is too long
    assert contents(tar) == MEMBERS
    assert os.listdir(tmp_path) == [tar.name]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_one_may_not_write_to(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "t.tar", MEMBERS)
    tmp_path.chmod(0o500)
    try:
        assert contents(tar) == MEMBERS
    finally:
        tmp_path.chmod(0o700)


def index_once(tar: Path, gate: object) -> None:
    gate.wait()  # type: ignore[attr-defined]
    assert len(tars.index(tar)[0]) == 500


def test_several_processes_index_a_tar_at_once(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "t.tar", {f"{number}.jpg": b"x" for number in range(500)})
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(6)
    processes = [context.Process(target=index_once, args=(tar, gate)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 6
    assert sorted(os.listdir(tmp_path)) == ["t.tar", "t.tar.index.parquet"]
    assert len(contents(tar)) == 500


def test_many_members_take_seconds(tmp_path: Path) -> None:
    count, block = 20_000, bytes(512)
    with (tmp_path / "t.tar").open("wb") as file:
        for number in range(count):
            header = tarfile.TarInfo(f"{number:08d}.jpg")
            header.size = 8
            file.write(header.tobuf(tarfile.USTAR_FORMAT) + b"%08d" % number + block[8:])
        file.write(block * 2)
    began = time.process_time()
    names, starts, sizes = tars.index(tmp_path / "t.tar")
    assert time.process_time() - began < 5
    assert len(names) == count
    assert tars.read_bytes(tars.span_paths(tmp_path / "t.tar", starts, sizes)[777]) == b"00000777"


# Paths


def test_a_file_whose_name_looks_like_a_span(tmp_path: Path) -> None:
    (tmp_path / "odd[1:3]").write_bytes(b"whole")
    assert tars.split_span(str(tmp_path / "odd[1:3]")) is None
    assert tars.read_bytes(str(tmp_path / "odd[1:3]")) == b"whole"
    (tmp_path / "file").write_bytes(b"0123456789")
    assert tars.read_bytes(str(tmp_path / "file[1:3]")) == b"12"


def test_which_spans_exist(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert tars.exists(str(tmp_path / "file[9:10]"))
    assert not tars.exists(str(tmp_path / "file[9:11]"))
    assert not tars.exists(str(tmp_path / "none[0:1]"))
    with pytest.raises(OSError, match="ends before byte 11"):
        tars.read_bytes(str(tmp_path / "file[9:11]"))
    with pytest.raises(FileNotFoundError):
        tars.read_bytes(str(tmp_path / "none[0:1]"))


def test_many_tars_do_not_use_up_the_descriptors(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / f"{number}").write_bytes(b"%03d" % number)
    before = len(os.listdir("/proc/self/fd"))
    for number in [*range(400), *range(400)]:
        assert tars.read_bytes(str(tmp_path / f"{number}[1:3]")) == (b"%03d" % number)[1:]
    assert len(os.listdir("/proc/self/fd")) - before <= 256


# A tar in place of a folder


NAMES = Texts.of(["COCO_1.jpg", "COCO_2.jpg", "none.jpg"])


@pytest.mark.parametrize("inside", ["", "train2014/", "./", "./train2014/", "data/coco/train2014/"])
def test_locate_with_a_tar_in_place_of_the_folder(tmp_path: Path, inside: str) -> None:
    members = {f"{inside}COCO_2.jpg": b"two", f"{inside}COCO_1.jpg": b"one", "README": b"?"}
    tar = write_tar(tmp_path / "train2014.tar", members)
    paths = locate(tmp_path / "train2014", NAMES)
    assert [tars.read_bytes(path) for path in paths[:2]] == [b"one", b"two"]
    assert not tars.exists(paths[2])
    assert paths[2] == f"{tar}/none.jpg"
    assert locate_in_tar(tar, NAMES).tolist() == paths.tolist()


def test_a_folder_goes_before_its_tar(tmp_path: Path) -> None:
    write_tar(tmp_path / "train2014.tar", {"COCO_1.jpg": b"one"})
    (tmp_path / "train2014").mkdir()
    assert locate(tmp_path / "train2014", NAMES)[0] == str(tmp_path / "train2014" / "COCO_1.jpg")


def test_a_folder_in_several_tars(tmp_path: Path) -> None:
    write_tar(tmp_path / "train_0.tar", {"train_0/COCO_1.jpg": b"one"})
    write_tar(tmp_path / "train_f.tar", {"train_f/COCO_2.jpg": b"two"})
    write_tar(tmp_path / "train2014.tar", {"none.jpg": b"of something else"})
    paths = locate(tmp_path / "train", NAMES)
    assert [tars.read_bytes(path) for path in paths[:2]] == [b"one", b"two"]
    assert not tars.exists(paths[2])


def test_names_with_folders(tmp_path: Path) -> None:
    members = {"images/001.A/x.jpg": b"A", "images/002.B/x.jpg": b"B"}
    names = Texts.of(["002.B/x.jpg", "001.A/x.jpg"])
    paths = locate_in_tar(write_tar(tmp_path / "images.tar", members), names)
    assert [tars.read_bytes(path) for path in paths] == [b"B", b"A"]
    flat = write_tar(tmp_path / "flat.tar", {"1.jpg": b"1", "2.jpg": b"2"})
    paths = locate_in_tar(flat, Texts.of(["b/2.jpg", "a/1.jpg"]))
    assert [tars.read_bytes(path) for path in paths] == [b"2", b"1"]


def test_a_name_that_fits_two_members_is_refused(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "t.tar", {"train/x.jpg": b"1", "val/x.jpg": b"2"})
    with pytest.raises(DataError, match=r"several files in different folders .*: x\.jpg"):
        locate_in_tar(tar, Texts.of(["x.jpg"]))
    own = write_tar(tmp_path / "val.tar", {"train/x.jpg": b"1", "val/x.jpg": b"2"})
    assert tars.read_bytes(locate_in_tar(own, Texts.of(["x.jpg"]))[0]) == b"2"


def test_nothing_of_this_in_the_tar(tmp_path: Path) -> None:
    for members in ({}, {"a": b""}):
        tar = write_tar(tmp_path / "t.tar", members)
        assert locate(tmp_path / "t", NAMES)[1] == f"{tar}/COCO_2.jpg"
        assert len(locate(tmp_path / "t", NAMES[:0])) == 0


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz", ".tar.xz"])
def test_a_compressed_tar_in_place_of_the_folder(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"val2014{suffix}").write_bytes(b"")
    with pytest.raises(DataError, match=f"val2014{suffix} is compressed"):
        locate(tmp_path / "val2014", NAMES)


def test_images_from_a_tar_are_those_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "train2014"
    write_pictures(folder, 12, size=40)
    names = Texts.of(sorted(os.listdir(folder)))
    from_folder = locate(folder, names)
    subprocess.run(["tar", "-cf", f"{folder}.tar", "-C", tmp_path, "train2014"], check=True)
    folder.rename(tmp_path / "elsewhere")
    from_tar = locate(folder, names)
    (tmp_path / "elsewhere").rename(folder)
    assert ".tar[" in from_tar[0]
    assert ".tar[" not in from_folder[0]
    for workers in (0, 2):
        (rows, ours), (_, theirs) = (
            first_batch(paths, workers) for paths in (from_tar, from_folder)
        )
        assert rows.tolist() == list(range(12))
        assert ours.shape == (12, 3, 32, 32)
        assert torch.equal(ours, theirs)


def first_batch(paths: Texts, workers: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = ImageInputs(paths, torch.device("cpu"), Look(size=32), workers=workers)
    return next(inputs.batches([np.arange(len(paths))]))
