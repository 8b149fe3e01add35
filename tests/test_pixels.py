"""Pictures that are decoded once are the same pictures, and are found again by whoever may."""

import multiprocessing
import os
import shutil
import signal
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builders import picture_table
from partly import data, images, pixels, tars
from partly.config import Config
from partly.data import ImageInputs, Look, prepare, split_into_chunks
from partly.errors import DataError
from partly.texts import Texts
from partly.training import train

CPU = torch.device("cpu")
ONCE = Look(size=12, decode="once")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "partly" / "pixels"


@pytest.fixture
def table(tmp_path):
    return picture_table(tmp_path / "pictures", 40)


def batches_of(paths, look: Look, epoch: int | None, workers: int = 0) -> np.ndarray:
    """All inputs, in batches of rows that are not in order."""
    order = np.random.default_rng(0).permutation(len(paths))
    inputs = ImageInputs(paths, CPU, look, workers=workers)
    batches = inputs.batches(split_into_chunks(order, 7), epoch)
    return torch.cat([batch for _, batch in batches]).numpy()


def said_in_preparing(table, look: Look = ONCE, workers: int = 1) -> list[str]:
    said: list[str] = []
    prepare([table, None], look, workers=workers, say=said.append)
    return said


def never_decode(*_):
    raise AssertionError("an image is decoded again")


def kept_files(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file() and path.name != ".lock")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("resize", ["stretch", "crop"])
def test_batches_are_those_of_the_cpu_bit_for_bit(table, monkeypatch, resize, workers):
    monkeypatch.setattr(pixels, "BLOCK", 5 * 3 * 12**2)  # several blocks, so that order matters
    monkeypatch.setattr(pixels, "FILE", 11 * 3 * 12**2)  # and several files
    augment = "flip,cutout"
    expected = {
        epoch: batches_of(table.paths, Look(size=12, resize=resize, augment=augment), epoch)
        for epoch in (1, 2, None)
    }
    once = Look(size=12, resize=resize, augment=augment, decode="once")
    batches_of(table.paths, once, 1, workers)
    monkeypatch.setattr(images, "load", never_decode)
    for epoch, batches in expected.items():
        np.testing.assert_array_equal(batches_of(table.paths, once, epoch), batches)


def test_what_is_new_is_decoded_and_the_rest_is_found(table, tmp_path, cache):
    first = table.take(np.arange(30))
    assert said_in_preparing(first) == [
        f"decoding 30 images once: 13.0 kB in {cache / '12-stretch'}"
    ]
    assert said_in_preparing(first) == []
    assert said_in_preparing(table.take(np.array([7, 7, 3]))) == []
    assert said_in_preparing(table.take(np.array([35, 2, 35, 31])))[0].startswith("decoding 2 ")
    assert said_in_preparing(table)[0].startswith("decoding 8 ")
    assert said_in_preparing(table, Look(size=10, decode="once"))[0].startswith("decoding 40 ")
    assert said_in_preparing(table, Look(size=9)) == []
    expected = batches_of(table.paths, Look(size=12), 1)
    np.testing.assert_array_equal(batches_of(table.paths, ONCE, 1), expected)


def test_a_changed_file_is_decoded_again(table, tmp_path):
    """Also where the new one has the size and the time of the old one."""
    prepare([table], ONCE)
    changed = Path(table.paths[3])
    before = changed.stat()
    content = changed.read_bytes()
    other = Path(table.paths[4]).read_bytes().ljust(len(content), b"\0")[: len(content)]
    changed.write_bytes(other)
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changed.stat().st_mtime_ns == before.st_mtime_ns
    assert said_in_preparing(table)[0].startswith("decoding 1 ")
    expected = batches_of(table.paths, Look(size=12), 1)
    np.testing.assert_array_equal(batches_of(table.paths, ONCE, 1), expected)


def test_another_decoder_decodes_again(table, monkeypatch):
    prepare([table], ONCE)
    monkeypatch.setattr(pixels.PIL, "__version__", "1.1.7")
    assert said_in_preparing(table)[0].startswith("decoding 40 ")


def test_images_in_a_tar(table, tmp_path, monkeypatch):
    with tarfile.open(tmp_path / "pictures.tar", "w") as tar:
        for path in table.paths:
            tar.add(path, Path(path).name)
    _, starts, sizes = tars.index(tmp_path / "pictures.tar")
    spans = tars.span_paths(tmp_path / "pictures.tar", starts, sizes)
    expected = batches_of(table.paths, Look(size=12, augment="none"), None)
    batches_of(spans, ONCE, 1)
    monkeypatch.setattr(images, "load", never_decode)
    np.testing.assert_array_equal(batches_of(spans, ONCE, None), expected)


@pytest.mark.parametrize("workers", [1, 2])
def test_images_that_cannot_be_read_are_named_as_ever(table, cache, workers):
    Path(table.paths[5]).write_bytes(b"")
    Path(table.paths[9]).unlink()
    with pytest.raises(DataError) as caught:
        batches_of(table.paths, ONCE, 1, workers)
    assert str(caught.value).splitlines() == [
        f"cannot read image {table.paths[5]}: the file is empty",
        f"cannot read image {table.paths[9]}: there is no such file",
    ]
    assert kept_files(cache) == []


def test_what_was_decoded_before_an_interruption_stays(table, cache, monkeypatch):
    monkeypatch.setattr(pixels, "FILE", 10 * 3 * 12**2)
    good = Path(table.paths[25]).read_bytes()
    Path(table.paths[25]).write_bytes(b"")
    with pytest.raises(DataError):
        prepare([table], ONCE, workers=1)
    assert len(kept_files(cache)) == 2
    Path(table.paths[25]).write_bytes(good)
    assert said_in_preparing(table)[0].startswith("decoding 20 ")


def test_a_file_that_is_cut_off_is_made_again(table, cache):
    prepare([table], ONCE)
    (kept,) = kept_files(cache)
    os.truncate(kept, kept.stat().st_size - 1)
    assert said_in_preparing(table)[0].startswith("decoding 40 ")
    assert kept_files(cache) == [kept]


def test_predictions_keep_nothing(table, cache):
    """Images that nobody trains on may never come again; their pictures are the same."""
    expected = batches_of(table.paths, Look(size=12), None)
    np.testing.assert_array_equal(batches_of(table.paths, ONCE, None), expected)
    assert kept_files(cache) == []


def test_without_room_nothing_is_begun(table, cache, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 9000))
    with pytest.raises(DataError, match=r"needs 17\.3 kB for 40 images at 12 px") as caught:
        prepare([table], ONCE)
    assert f"the disk of {cache / '12-stretch'} has 9.0 kB left" in str(caught.value)
    assert "XDG_CACHE_HOME" in str(caught.value)
    assert kept_files(cache) == []


def test_a_training_says_where_its_pictures_are(table, cache):
    explanation = ImageInputs(table.paths, CPU, ONCE).explanation
    assert explanation == (
        f"each image is decoded once and kept at 12 px: 17.3 kB in {cache / '12-stretch'}"
    )


def test_a_training_can_be_ended_while_its_pictures_are_decoded(table, cache, monkeypatch):
    """There is nothing yet that it would have to save first."""
    decode, seen = data._decoded_once, []

    def noted(*given: Any) -> Any:
        seen.append(signal.getsignal(signal.SIGTERM))
        return decode(*given)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(data, "_decoded_once", noted)
    monkeypatch.setattr(data, "cores", lambda: 1)  # in this process
    plan = Config(backbone="small:8", image_size=12, epochs=1, hold_out=0.0, decode="once")
    train(table, plan, quiet=True)
    assert seen
    assert set(seen) == {before}


@pytest.mark.parametrize("augment", ["strong", "crop", "flip,randaugment"])
def test_steps_that_make_another_picture_each_epoch_are_refused(augment):
    (problem,) = Look(decode="once", augment=augment).problems()
    assert problem.startswith("decode once keeps one picture an image")
    assert list(Look(decode="once", augment="flip,cutout").problems()) == []


def _prepare_and_tell(table, start, answers) -> None:
    start.wait()
    answers.put(said_in_preparing(table))


def test_of_several_processes_one_decodes(table, cache):
    context = multiprocessing.get_context("fork")
    start, answers = context.Barrier(3), context.Queue()
    others = [
        context.Process(target=_prepare_and_tell, args=(table, start, answers)) for _ in range(3)
    ]
    for process in others:
        process.start()
    said = [answers.get(timeout=30) for _ in others]
    for process in others:
        process.join()
    decoding = [line for lines in said for line in lines if line.startswith("decoding")]
    assert len(decoding) == 1
    assert len(kept_files(cache)) == 1


def _hold(folder: Path, ready) -> None:
    with pixels._alone(folder, print):
        ready.set()
        signal.pause()


def test_the_lock_of_a_killed_process_holds_nobody_up(table, cache):
    folder = cache / "12-stretch"
    folder.mkdir(parents=True)
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(folder, ready))
    holder.start()
    assert ready.wait(30)
    holder.kill()
    holder.join()
    (folder / ".some.pixels.partial").write_bytes(b"half of it")
    assert said_in_preparing(table)[0].startswith("decoding 40 ")
    assert [path.suffix for path in kept_files(cache)] == [".pixels"]


def test_a_training_ends_with_the_same_weights(table):
    plain = Config(backbone="small:8", image_size=12, epochs=2, batch_size=16, hold_out=0.0)
    weights = [
        train(table, config, quiet=True).model.state_dict()
        for config in (plain, Config(**{**vars(plain), "decode": "once"}))
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_identities_of_nothing():
    assert len(pixels.identities(Texts.of([]))) == 0
