"""A data set as a user names it: bad images are named or left out, never replaced."""

import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from builders import environment, partly_here, partly_works, write_manifest, write_pictures
from partly import checkpoint, runs, workflow
from partly.errors import ConfigError, DataError
from partly.source import Source

QUICK = ("--backbone", "small:8", "--image-size", 16, "--epochs", 2, "--hold-out", 0)


@pytest.fixture
def data(tmp_path) -> Path:
    """80 pictures, 20 of them for testing; in each part one is empty and one is cut off."""
    manifest = write_manifest(tmp_path / "data.csv", write_pictures(tmp_path, 80), test=20)
    for empty in ("0003.png", "0063.png"):
        (tmp_path / empty).write_bytes(b"")
    for cut in ("0011.png", "0071.png"):
        (tmp_path / cut).write_bytes((tmp_path / cut).read_bytes()[:300])
    return manifest


BAD = ["0003.png", "0011.png", "0063.png", "0071.png"]


def test_all_bad_images_are_named_before_training_starts(data, tmp_path):
    answer = partly_here("train", data, "--out", tmp_path / "run", *QUICK)
    assert answer.code == 2
    assert all(answer.err.count(name) == 1 for name in BAD)
    assert "4 images of 80 cannot be used: mend them, or leave them out" in answer.err
    assert "Traceback" not in answer.err
    assert not (tmp_path / "run").exists()


def test_skipped_images_are_counted_listed_and_not_measured(data, tmp_path):
    run = tmp_path / "run"
    answer = partly_works("train", data, "--out", run, *QUICK, "--on-bad-image", "skip")
    assert "4 images of 80 left out" in answer.out
    with (run / runs.SKIPPED).open(newline="") as file:
        listed = list(csv.DictReader(file))
    assert [line["id"] for line in listed] == BAD
    assert listed[0]["problem"] == "the file is empty"
    assert checkpoint.read_json(run / runs.CONFIG)["images"] == 58
    assert checkpoint.read_json(run / runs.EVALUATION)["images"] == 18
    evaluation = workflow.evaluate_run(
        run, Source(data, on_bad_image="skip"), say=lambda line: None
    )
    assert evaluation["images"] == 18
    assert sorted(evaluation["left_out"]) == BAD[2:]
    # What was said to training need not be said again.
    assert "2 images of 20 left out" in partly_works("evaluate", run, data).out
    told = ("--on-bad-image", "error")
    assert "cannot be used" in partly_here("evaluate", run, data, *told).err


def test_a_resumed_run_leaves_out_the_same_images(data, tmp_path):
    run = tmp_path / "run"
    partly_works("train", data, "--out", run, *QUICK, "--on-bad-image", "skip")
    os.unlink(tmp_path / "0003.png")  # whatever has become of it, it stays out
    answer = partly_works("train", data, "--out", run, "--resume", "--on-bad-image", "skip")
    assert "report" in answer.out


def test_prediction_leaves_out_what_it_cannot_read_only_if_told(data, tmp_path):
    run = tmp_path / "run"
    partly_works("train", data, "--out", run, *QUICK, "--on-bad-image", "skip")
    refused = partly_here("predict", run, tmp_path, "--out", tmp_path / "a.csv")
    assert refused.code == 2
    assert not (tmp_path / "a.csv").exists()
    told = ("--on-bad-image", "skip")
    answer = partly_works("predict", run, tmp_path, "--out", tmp_path / "b.csv", *told)
    assert "76 images ->" in answer.out
    assert len((tmp_path / "b.csv.skipped.csv").read_text().splitlines()) == 5


def test_a_comparison_leaves_out_bad_images_in_every_process(data, tmp_path):
    answer = partly_works(
        "compare", data, "--out", tmp_path / "out", "--methods", "ign,an", "--settings", "fal",
        "--seeds", 1, "--jobs", 2, "--on-bad-image", "skip", *QUICK[:-2],
    )  # fmt: skip
    assert "4 images of 80 left out" in answer.out
    results = checkpoint.read_json(tmp_path / "out" / "results.json")
    assert results["left_out"] == BAD
    known = [run["evaluation"]["coverage"]["known_entries"] for run in results["runs"]]
    assert known == [3 * 18] * 2


def test_looking_can_be_quick_or_left_out(data):
    quick = dict(Source(data, verify="quick", on_bad_image="skip").open()[1])
    assert "0003.png" in quick
    assert Source(data, verify="off").open()[1] == {}


def test_nothing_is_left(tmp_path):
    manifest = write_manifest(tmp_path / "data.csv", write_pictures(tmp_path, 3))
    for number in range(3):
        (tmp_path / f"{number:04d}.png").unlink()
    with pytest.raises(DataError, match="no image is left"):
        Source(manifest, on_bad_image="skip").open()


def test_choices_that_make_no_sense(data):
    with pytest.raises(ConfigError) as caught:
        Source(data, on_bad_image="replace", verify="twice").open()
    assert len(caught.value.problems) == 2


def test_options_of_the_format_reach_the_reader(tmp_path):
    path = tmp_path / "signed.csv"
    path.write_text("path,cat,dog\na.png,1,-1\nb.png,0,1\n")
    table = Source(path, options={"convention": "signed"}).read()
    assert table.dense().tolist() == [[1, 0], [-1, 1]]
    answer = partly_here("check", path, "--read", "colour=red", "--verify", "off")
    assert answer.code == 2
    assert "no option colour" in answer.err


def test_a_run_goes_on_reading_its_data_as_it_began(tmp_path):
    labels = write_pictures(tmp_path, 30)
    data = write_manifest(tmp_path / "data.csv", labels * 2 - 1)  # 1 and -1, which is negative
    data.write_text(data.read_text().replace(",,", ",-1,").replace(",\n", ",-1\n"))
    run = tmp_path / "run"
    partly_works("train", data, "--out", run, *QUICK, "--convention", "signed")
    answer = partly_here("train", data, "--out", run, "--resume", "--epochs", 2)
    assert answer.code == 0, answer.err


def test_a_fresh_start_forgets_what_an_earlier_one_left_out(data, tmp_path):
    run = tmp_path / "run"
    partly_works("train", data, "--out", run, *QUICK, "--on-bad-image", "skip")
    for name in runs.RESULTS:  # killed before there was anything to lose
        (run / name).unlink()
    for name in BAD:
        (tmp_path / name).write_bytes((tmp_path / "0000.png").read_bytes())
    partly_works("train", data, "--out", run, *QUICK)
    assert not (run / runs.SKIPPED).exists()
    assert checkpoint.read_json(run / runs.CONFIG)["images"] == 60


def test_processes_that_look_at_images_end_with_the_one_that_started_them(tmp_path):
    """After a kill -9 nobody is left."""
    write_manifest(tmp_path / "data.csv", write_pictures(tmp_path, 40))
    script = (
        "import os, time\n"
        "from partly import images\n"
        "from partly.texts import Texts\n"
        "images.BLOCK = 8\n"
        "slow = images.inspect\n"
        "def inspect(*given):\n"
        f"    open({str(tmp_path / 'pids')!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        "    time.sleep(1)\n"
        "    return slow(*given)\n"
        "images.inspect = inspect\n"
        f"folder = {str(tmp_path)!r}\n"
        "paths = Texts.of([os.path.join(folder, f'{n:04d}.png') for n in range(40)])\n"
        "images.find_problems(paths, workers=2)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], env=environment())
    pids = tmp_path / "pids"
    waits_until(lambda: pids.exists() and len(set(pids.read_text().split())) == 2)
    process.kill()
    process.wait()
    waits_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.read_text().split()))


def waits_until(holds: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
