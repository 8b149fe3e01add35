"""Files that are either whole or not there."""

import multiprocessing
import pickle
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from partly import checkpoint, runs
from partly.errors import RunError

CPU = torch.device("cpu")
STATE = {"weights": torch.arange(50_000.0), "epoch": 3, "nested": [{"none": None, "x": 0.1}]}


class Malice:
    """Unpickling this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


TORCH = "[enforce fail at inline_container.cc:746] . "


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (KeyError("x"), ""),
        (OSError(28, "No space left on device"), "No space left on device"),
        (RuntimeError(TORCH + "unexpected pos 64 vs 0"), "the disk may be full"),
        (RuntimeError(TORCH + "open file failed with strerror: Not allowed"), "Not allowed"),
    ],
)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, error, why):
    path = tmp_path / "file.txt"
    checkpoint.write_text(path, "old")

    def fail(place: Path) -> None:
        place.write_text("ne")
        raise error

    with pytest.raises((KeyError, RunError)) as caught:
        checkpoint.write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    if not isinstance(error, KeyError):
        assert str(caught.value) == f"cannot write {path}: {why}"


def test_a_folder_is_held_by_one_process_and_not_by_those_it_has_forked(tmp_path):
    folder, context = tmp_path / "deep" / "folder", multiprocessing.get_context("fork")
    with checkpoint.held(folder, "is held"):
        child = context.Process(target=time.sleep, args=(60,))
        child.start()
        with (
            pytest.raises(RunError, match="is held"),
            checkpoint.held(folder, "is held"),
        ):
            pass
    try:
        with checkpoint.held(folder, "is held", patience=30):  # until it runs, not until it ends
            assert child.is_alive()
    finally:
        child.kill()
        child.join()


def test_a_folder_that_is_removed_by_who_held_it_is_made_again(tmp_path):
    """Whoever waits for a lock may get that of a folder which is no more."""
    folder, entered = tmp_path / "folder", threading.Event()

    def second() -> None:
        with checkpoint.held(folder, "too late", patience=60):
            assert folder.is_dir()
            with pytest.raises(RunError, match="two"), checkpoint.held(folder, "two"):
                pass
            entered.set()

    thread = threading.Thread(target=second)
    with checkpoint.held(folder, "no"):
        thread.start()
        time.sleep(0.3)
        folder.rmdir()
    thread.join(60)
    assert entered.is_set()


WRITERS = {
    "text": lambda folder: checkpoint.write_text(folder / "text", "x" * 200_000),
    "json": lambda folder: checkpoint.write_json(folder / "json", ["x" * 200_000]),
    "checkpoint": lambda folder: checkpoint.save(folder / runs.CHECKPOINT, STATE),
    "weights": lambda folder: runs.write_weights(folder, {"weights": STATE["weights"]}),
    "line": lambda folder: checkpoint.append_line(folder / "lines", {"epoch": "x" * 200_000}),
}


@pytest.mark.parametrize("where", ["below a file", "no folder", "disk full"])
@pytest.mark.parametrize("writer", WRITERS)
def test_what_cannot_be_written_is_an_error_of_ours(tmp_path, writer, where):
    file = tmp_path / "file"
    file.write_text("a file")
    folder = {"below a file": file, "no folder": tmp_path / "none", "disk full": tmp_path}[where]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if where == "disk full":  # as near as a test comes: no file may grow beyond this
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(RunError, match="cannot write"):
            WRITERS[writer](folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir() if path.name != "lines"] == ["file"]


@pytest.mark.parametrize("below", ["file", "file/folder"])
def test_a_folder_that_cannot_be_made(tmp_path, below):
    (tmp_path / "file").write_text("a file")
    with pytest.raises(RunError, match=f"cannot create folder .*{below}"):
        checkpoint.make_folder(tmp_path / below)


def test_json_comes_back_as_it_went(tmp_path):
    content = {"α": [1, 0.1, None, True], "": "Grüße\n", "big": 2**60, "small": 5e-324}
    checkpoint.write_json(tmp_path / "x.json", content)
    assert checkpoint.read_json(tmp_path / "x.json") == content
    (tmp_path / "x.json").write_text('{"a": ')
    for name in ("x.json", "missing.json"):
        with pytest.raises(RunError, match=f"cannot read .*{name}"):
            checkpoint.read_json(tmp_path / name)


def test_a_state_comes_back_as_it_went(tmp_path):
    checkpoint.save(tmp_path / "x.pt", STATE)
    again = checkpoint.load(tmp_path / "x.pt")
    assert torch.equal(again.pop("weights"), STATE["weights"])
    assert again == {"epoch": 3, "nested": [{"none": None, "x": 0.1}]}


@pytest.mark.parametrize("kind", ["empty", "text", "cut off", "bytes flipped", "pickle"])
def test_a_broken_checkpoint_is_an_error_and_runs_nothing(tmp_path, kind):
    path, trap = tmp_path / "x.pt", tmp_path / "trap"
    torch.save(STATE, path)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "text": b"hello",
            "cut off": whole[: len(whole) // 2],
            "bytes flipped": bytes(byte ^ 0x55 for byte in whole),
            "pickle": pickle.dumps(Malice(trap), protocol=2),
        }[kind]
    )
    with pytest.raises(RunError, match=r"cannot read checkpoint .*x\.pt: it may be damaged"):
        checkpoint.load(path)
    assert not trap.exists()


def test_lines_up_to_where_a_crash_cut_them_off(tmp_path):
    path = tmp_path / "lines.jsonl"
    assert runs.read_lines(path) == []
    for epoch in (1, 2, 3):
        checkpoint.append_line(path, {"epoch": epoch, "loss": 0.1 * epoch})
    with path.open("a") as file:
        file.write('{"epoch": 4, "lo')
    assert [line["epoch"] for line in runs.read_lines(path)] == [1, 2, 3]
    runs.keep_lines(path, 2)
    assert path.read_text() == '{"epoch": 1, "loss": 0.1}\n{"epoch": 2, "loss": 0.2}\n'
