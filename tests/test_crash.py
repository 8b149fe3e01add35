"""`kill -9`, and what `--resume` makes of it: the end of a run that was never disturbed."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from builders import (
    command,
    environment,
    files_of,
    partly_here,
    partly_works,
    write_manifest,
    write_npz,
    write_pictures,
)
from partly import processes, runs, training
from partly.errors import RunError

PATIENCE = 120  # seconds until a slow machine is taken for a hung one
EPOCHS = 5

FEATURES = ["--epochs", EPOCHS, "--batch-size", 32, "--hide", "pal:0.4"]
CASES = {
    "partly": [*FEATURES, "--ema", 0.9, "--backbone", "mlp:16"],
    "role": [*FEATURES, "--method", "role"],
    "ll-cp": [*FEATURES, "--method", "ll-cp", "--set", "rate=0.01"],
    "disk": [*FEATURES, "--method", "paper", "--pseudo-labels", "disk"],
    "pictures": ["--epochs", EPOCHS, "--batch-size", 8, "--backbone", "small:4"],
}
CASES["pictures"] += ["--image-size", 16, "--hide", "ppl:0.6", "--hold-out", 0.2]

Moment = Callable[[Path], bool]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """features.npz, and a manifest of pictures."""
    folder = tmp_path_factory.mktemp("data")
    write_npz(folder / "features.npz", 1500, 200, labels=6)
    labels = write_pictures(folder / "pictures", 640, size=16)
    write_manifest(folder / "pictures" / "pictures.csv", labels, test=60)
    return folder


@pytest.fixture(scope="module")
def undisturbed(folder) -> Iterator[Callable[[str], Path]]:
    """The finished run of a case, trained once, in one go, in this process."""

    def run(case: str) -> Path:
        out = folder / f"undisturbed {case}"
        if not out.exists():
            partly_works("train", data_of(case, folder), "--out", out, *CASES[case])
        return out

    return run


def data_of(case: str, folder: Path) -> Path:
    return folder / ("pictures/pictures.csv" if case == "pictures" else "features.npz")


def lines(run: Path) -> list[dict[str, Any]]:
    return runs.read_lines(run / runs.METRICS)


def after(epochs: int, checkpoints: int = 0) -> Moment:
    """So many epochs are done, and so many checkpoints have been written since."""
    seen: set[int] = set()

    def reached(run: Path) -> bool:
        if len(lines(run)) < epochs or not (run / runs.CHECKPOINT).exists():
            return False
        seen.add((run / runs.CHECKPOINT).stat().st_mtime_ns)
        return len(seen) > checkpoints

    return reached


def amid(epochs: int, changes: int) -> Moment:
    """So many epochs are done, and as many batches of rows have been overwritten since the last
    checkpoint."""

    def reached(run: Path) -> bool:
        try:
            journal = max((path.stat().st_size for path in run.glob("*.undo")), default=0)
        except FileNotFoundError:  # a checkpoint came between
            return False
        return len(lines(run)) >= epochs and journal > changes * 32 * 6

    return reached


def kill_at(
    moment: Moment, run: Path, *arguments: object, by: int = signal.SIGKILL, all_of_it: bool = False
) -> int:
    """Start `partly`, wait for the moment, kill -9, or by another signal, it alone or with its
    workers; how it ended."""
    with (run.parent / "output.txt").open("ab") as output:
        process = subprocess.Popen(
            command(*arguments), env=environment(), stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    try:
        while not moment(run):
            in_time = process.poll() is None and time.monotonic() < deadline
            assert in_time, f"never came so far:\n{(run.parent / 'output.txt').read_text()}"
            time.sleep(0.001)
        (os.killpg if all_of_it else os.kill)(process.pid, by)
        process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert len(lines(run)) < EPOCHS
    return process.returncode


def plain(value: Any) -> Any:
    """A checkpoint as something that `==` compares bit by bit."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def result(run: Path) -> dict[str, Any]:
    """Everything about a run that a crash must not change."""
    saved = torch.load(run / runs.CHECKPOINT, weights_only=True)
    return {
        "files": sorted(path.name for path in run.iterdir()),
        "weights": (run / runs.WEIGHTS).read_bytes(),
        "rows on disk": {path.name: path.read_bytes() for path in run.glob("*.rows")},
        "metrics": [{**line, "images_per_second": None} for line in lines(run)],
        "audit": runs.read_lines(run / runs.AUDIT),
        "thresholds": json.loads((run / runs.THRESHOLDS).read_text()),
        "evaluation": json.loads((run / runs.EVALUATION).read_text()),
        **{f"checkpoint: {name}": plain(value) for name, value in saved.items()},
    }


def assert_same_end(run: Path, other: Path) -> None:
    mine, theirs = result(run), result(other)
    assert [name for name in theirs if mine[name] != theirs[name]] == []


@pytest.mark.parametrize(
    ("case", "moments"),
    [
        ("partly", [after(1, 7), after(3, 2)]),
        ("role", [after(2, 5)]),
        ("ll-cp", [after(3)]),
        ("pictures", [after(1, 11)]),
    ],
)
def test_a_killed_run_ends_as_if_nothing_had_happened(folder, tmp_path, undisturbed, case, moments):
    run = tmp_path / "run"
    arguments = ["train", data_of(case, folder), "--out", run, "--resume", *CASES[case]]
    for moment in moments:
        died = kill_at(moment, run, *arguments, "--checkpoint-steps", 1)
        assert died == -signal.SIGKILL
    assert not (run / runs.EVALUATION).exists()
    partly_works(*arguments)
    assert len(lines(run)) == EPOCHS
    assert_same_end(run, undisturbed(case))
    kept = result(run)["checkpoint: rows"]
    store = {"role": "estimates.weight", "ll-cp": "flipped.values"}
    assert next(iter(kept)) == store.get(case, "pseudo_labels.values")
    assert bool(result(run)["audit"]) == (case in ("partly", "pictures"))


def test_rows_on_disk_are_those_of_the_checkpoint(folder, tmp_path, undisturbed):
    """Killed between checkpoints, which come each epoch, and then every few steps."""
    run = tmp_path / "run"
    arguments = ["train", data_of("disk", folder), "--out", run, "--resume", *CASES["disk"]]
    for moment, steps in ((amid(1, 2), 0), (amid(2, 4), 7)):
        died = kill_at(moment, run, *arguments, "--checkpoint-steps", steps)
        assert died == -signal.SIGKILL
    partly_works(*arguments)
    assert_same_end(run, undisturbed("disk"))
    assert [*result(run)["rows on disk"]] == ["pseudo_labels-0-of-1.rows"]
    assert not result(run)["checkpoint: rows"]


def test_a_run_that_is_asked_to_end_keeps_what_it_has(folder, tmp_path, undisturbed):
    """By SIGTERM, as clusters do it: the checkpoint is of the step that was just taken."""
    run = tmp_path / "run"
    arguments = ["train", data_of("disk", folder), "--out", run, "--resume", *CASES["disk"]]
    assert kill_at(amid(1, 2), run, *arguments, by=signal.SIGTERM) == 128 + signal.SIGTERM
    said = (tmp_path / "output.txt").read_text()
    assert "partly: interrupted; what was finished is kept" in said
    saved = torch.load(run / runs.CHECKPOINT, weights_only=True)
    steps = torch.load(undisturbed("disk") / runs.CHECKPOINT, weights_only=True)["step"] // EPOCHS
    assert saved["step"] > steps
    assert f"told to end after step {saved['step']} of {EPOCHS * steps}: --resume goes on" in said
    partly_works(*arguments)
    assert_same_end(run, undisturbed("disk"))


def test_a_run_whose_workers_are_asked_to_end_too_keeps_what_it_has(folder, tmp_path, undisturbed):
    """As `timeout` does it, and SLURM: the step it is in may want another batch of them."""
    run = tmp_path / "run"
    arguments = ["train", data_of("pictures", folder), "--out", run, "--resume", *CASES["pictures"]]
    arguments += ["--workers", 2]
    some = ["--checkpoint-steps", 3]
    ended = kill_at(after(1, 5), run, *arguments, *some, by=signal.SIGTERM, all_of_it=True)
    said = (tmp_path / "output.txt").read_text()
    assert ended == 128 + signal.SIGTERM, said
    assert "partly: interrupted; what was finished is kept" in said
    assert "Traceback" not in said
    partly_works(*arguments)
    assert_same_end(run, undisturbed("pictures"))


def test_two_trainings_do_not_write_into_one_folder(folder, tmp_path, monkeypatch, undisturbed):
    """The second is refused, and the first, which stands still meanwhile, does not notice."""
    monkeypatch.setattr(runs, "PATIENCE", 0.1)
    run = tmp_path / "run"
    arguments = ["train", data_of("ll-cp", folder), "--out", run, *CASES["ll-cp"]]
    with (tmp_path / "output.txt").open("wb") as output:
        first = subprocess.Popen(
            command(*arguments), env=environment(), stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while not after(1)(run):
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        first.send_signal(signal.SIGSTOP)
        before = files_of(run)
        answer = partly_here(*arguments, "--resume")
        assert files_of(run) == before
        first.send_signal(signal.SIGCONT)
        assert first.wait(PATIENCE) == 0
    finally:
        first.kill()
        first.wait()
    assert answer.code == 2
    assert f"partly: {run}: another process is training there: end it, or name" in answer.err
    assert_same_end(run, undisturbed("ll-cp"))


def test_a_folder_in_which_nothing_began_is_gone_again(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "start", mock.Mock(side_effect=RunError("no")))
    for there in (False, True):
        answer = partly_here("train", folder / "features.npz", "--out", tmp_path / "run")
        assert answer.code == 2
        assert (tmp_path / "run").exists() == there
        (tmp_path / "run").mkdir(exist_ok=True)


ASKED_TO_END = """
import os, signal, sys, time
from partly import processes

processes.AT_ONCE = 0.2
with processes.sigterm_noted() as has_come:
    assert not has_come()
    for number in range(int(sys.argv[1])):
        time.sleep(float(sys.argv[3]) if number else 0)
        os.kill(os.getpid(), signal.SIGTERM)
    print("went on", has_come() if sys.argv[2] == "asks" else "")
    if sys.argv[2] == "asks":
        os.kill(os.getpid(), signal.SIGTERM)
print("to the end")
"""


@pytest.mark.parametrize(
    ("times", "does", "apart", "said", "code"),
    [
        (1, "asks", 0, "went on True\nto the end\n", 0),
        (1, "does not", 0, "went on \n", -signal.SIGTERM),  # the wish is not forgotten
        (2, "asks", 0, "went on True\nto the end\n", 0),  # torchrun hands it on, and so on
        (2, "asks", 0.5, "", -signal.SIGTERM),
        (0, "does not", 0, "went on \nto the end\n", 0),
    ],
)
def test_a_wish_to_end_is_answered_or_obeyed(times, does, apart, said, code):
    script = [sys.executable, "-u", "-c", ASKED_TO_END, str(times), does, str(apart)]
    ended = subprocess.run(script, env=environment(), capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.returncode) == (said, code), ended.stderr


def test_a_helper_ends_where_its_parent_says_so_and_not_where_all_are_told_to(tmp_path):
    def help_out() -> None:
        processes.obey_parent_only()
        (tmp_path / "ready").touch()
        time.sleep(60)

    child = multiprocessing.get_context("fork").Process(target=help_out)
    child.start()
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    subprocess.run(["sh", "-c", f"kill -TERM {child.pid}"], check=True)  # by somebody else
    child.join(0.5)
    assert child.is_alive()
    child.terminate()
    child.join(PATIENCE)
    assert child.exitcode == 0


LOSES_WORKERS = """
import contextlib, multiprocessing, os, signal, time
from partly.processes import in_order, sigterm_noted

def numbers():
    yield from range(8)
    time.sleep(1)  # by then all wait for more, one of them for all
    for child in multiprocessing.active_children()[1:]:
        with contextlib.suppress(ProcessLookupError):  # the first is missed already
            os.kill(child.pid, signal.SIGKILL)
    time.sleep(1)
    yield 8

with sigterm_noted():
    list(in_order(str, numbers(), 8))
"""


def test_the_others_end_where_processes_of_several_are_killed():
    """Whatever the one that started them makes of a SIGTERM."""
    script = [sys.executable, "-c", LOSES_WORKERS]
    ended = subprocess.run(
        script, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert "one of 8 processes was killed" in ended.stderr


# Dies by its own hand just before the n-th time that this file would take its place.
DIES_WRITING = """
import os, signal, sys
from partly import cli

name, left = sys.argv.pop(1), int(sys.argv.pop(1))
move = os.replace

def replace(source, target, **more):
    global left
    left -= os.path.basename(target) == name
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return move(source, target, **more)

os.replace = replace
cli.main()
"""


@pytest.mark.parametrize(
    ("case", "file", "time"),
    [
        ("ll-cp", runs.CONFIG, 1),
        ("ll-cp", runs.CHECKPOINT, 1),
        ("ll-cp", runs.CHECKPOINT, 60),
        ("ll-cp", runs.WEIGHTS, 2),
        ("disk", runs.CHECKPOINT, 60),
    ],
)
def test_a_run_killed_while_it_writes(folder, tmp_path, undisturbed, case, file, time):
    run = tmp_path / "run"
    arguments = ["train", data_of(case, folder), "--out", run, *CASES[case]]
    script = [sys.executable, "-c", DIES_WRITING, file, str(time), *map(str, arguments)]
    ended = subprocess.run(
        [*script, "--checkpoint-steps", "1"], env=environment(), capture_output=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not (run / runs.EVALUATION).exists()
    partly_works(*arguments, "--resume")
    assert_same_end(run, undisturbed(case))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--lr", 0.5], "cannot resume .*: learning_rate was 0.01, now 0.5"),
        (["--seed", 1], "cannot resume .*: seed was 0, now 1"),
        (["--hide", "pal:0.5"], "cannot resume .*: setting was 'pal:0.4', now 'pal:0.5'"),
        (["--set", "rate=0.02"], "cannot resume .*: options was .*0.01.*, now .*0.02"),
    ],
)
def test_a_run_goes_on_with_its_own_choices_only(folder, undisturbed, more, message):
    run = undisturbed("ll-cp")
    before = files_of(run)
    answer = partly_here(
        "train", data_of("ll-cp", folder), "--out", run, *CASES["ll-cp"], "--resume", *more
    )
    assert answer.code == 2
    assert re.search(f"^partly: {message}", answer.err, re.MULTILINE)
    assert files_of(run) == before


@pytest.mark.parametrize("case", ["partly", "ll-cp", "disk"])
def test_a_finished_run_that_is_resumed_stays_as_it_is(folder, undisturbed, case):
    run = undisturbed(case)
    before = files_of(run)
    # Options need not be given again: the run knows them.
    partly_works("train", data_of(case, folder), "--out", run, "--resume")
    now = files_of(run)
    assert [name for name in before | now if before.get(name) != now.get(name)] == []


def test_a_default_that_is_spelt_out_changes_nothing(folder, tmp_path, undisturbed):
    run = tmp_path / "run"
    shutil.copytree(undisturbed("partly"), run)
    before = files_of(run)
    given = [*CASES["partly"], "--set", "targets=posterior"]
    partly_works("train", data_of("partly", folder), "--out", run, "--resume", *given)
    assert files_of(run)[runs.WEIGHTS] == before[runs.WEIGHTS]


@pytest.mark.parametrize("more", [[], ["--resume"]], ids=["", "resumed"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("skipped.csv", "holds skipped.csv, which a run would write"),
        ("decisions.json", "holds decisions.json, which a run would write"),
        ("model.safetensors", "and no config.json of a run that could go on"),
        ("untuned.safetensors", "holds untuned.safetensors, which"),
        ("rows-1.pt", "holds rows-1.pt, which"),
        ("config.json", "config.json is not that of a run: name another folder"),
    ],
)
def test_what_is_not_of_a_run_stays_as_it_is(folder, tmp_path, name, message, more):
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_text('{"mine": 1}')
    answer = partly_here("train", data_of("ll-cp", folder), "--out", run, *CASES["ll-cp"], *more)
    assert answer.code == 2
    assert message in answer.err
    assert {path.name: path.read_text() for path in run.iterdir()} == {name: '{"mine": 1}'}


def test_a_run_is_not_overwritten(folder, undisturbed):
    run = undisturbed("ll-cp")
    before = files_of(run)
    answer = partly_here("train", data_of("ll-cp", folder), "--out", run, *CASES["ll-cp"])
    assert answer.code == 2
    assert f"partly: {run} already holds a run: add --resume" in answer.err
    assert files_of(run) == before
