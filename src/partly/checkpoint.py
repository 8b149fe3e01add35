"""Files that are either whole or not there.

What enters: bytes, JSON or a training's state. What leaves: a file that a `kill -9` at any moment
leaves in its old or its new form, and that is read back without running anything inside it.
"""

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from partly import distributed
from partly.distributed import Shard
from partly.errors import RunError


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """`write` fills a temporary file beside `path`, which then takes its place in one move."""
    # One name a file: what a killed process leaves behind, the next write takes along.
    temporary = path.with_name(f".{path.name}.partial")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # the latter is torch's, of whatever went wrong
        _, strerror, why = reason(error).partition("strerror: ")
        if not strerror:
            full = "inline_container" in reason(error)
            why = "the disk may be full" if full else reason(error)
        raise RunError(f"cannot write {path}: {why}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def reason(error: Exception) -> str:
    """What went wrong, in the system's words."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""

    def write(place: Path) -> None:
        place.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def write_json(path: Path, content: Any) -> None:
    """A JSON file, whole or not at all."""
    text = json.dumps(content, indent=2, ensure_ascii=False, default=_plain)
    write_text(path, text + "\n")


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    return value.item() if hasattr(value, "item") else str(value)


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {reason(error)}") from None


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """One line of JSON at the end of a file."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {path}: {reason(error)}") from None


def save(path: Path, state: dict[str, Any]) -> None:
    """A training's state: tensors and plain Python values."""
    write_atomically(path, lambda place: torch.save(state, place))


def load(path: Path) -> dict[str, Any]:
    """The state of `save`. Only tensors and plain values are read: no code of the file runs. What
    nobody looks at stays on the disk."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        raise RunError(f"cannot read checkpoint {path}: {reason(error)}") from None
    except MemoryError:
        raise
    except Exception as error:  # whatever torch makes of such a file
        why = reason(error).splitlines()[0]
        raise RunError(f"cannot read checkpoint {path}: it may be damaged ({why})") from None


def save_sharded(
    path: Path, state: dict[str, Any], rows: dict[str, torch.Tensor], shard: Shard
) -> None:
    """`save` for several ranks. rows: tensors of a row an image, of the images of this rank.

    With one rank all is in one file. Otherwise each has its rows in a file beside it; when all are
    written, the first rank writes `path`, which names them: the checkpoint is there or is not.
    """
    step, world = state["step"], distributed.world()
    names = None
    if world > 1 and rows:
        # Also told apart by how many they are: those that `path` names still are not overwritten.
        names = [f"rows-{step}-{rank}-of-{world}.pt" for rank in range(world)]
        own = path.with_name(names[distributed.rank()])
        save(own, {"first": shard.first, "rows": rows})
        distributed.wait()
    if distributed.is_first():
        save(path, state | {"rows": None if names else rows, "shards": names})
        # Also what a rank had begun to write that was killed.
        for old in (*path.parent.glob("rows-*.pt"), *path.parent.glob(".rows-*.pt.partial")):
            if old.name not in (names or ()):
                old.unlink(missing_ok=True)
    distributed.wait()


def load_sharded(
    path: Path, device: torch.device, shard: Shard
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The state of `save_sharded`, and the rows of this rank, however many wrote them."""
    state = load(path)
    if not {"rows", "shards"} <= state.keys():
        raise RunError(
            f"checkpoint {path} does not fit this run: it is of something else, or of another "
            "version of partly"
        )
    names, all_rows = state["shards"], state.pop("rows")
    parts = (
        [{"first": 0, "rows": all_rows}]
        if names is None
        else (load(path.with_name(name)) for name in names)
    )
    found: dict[str, list[torch.Tensor]] = {}
    for part in parts:
        for name, tensor in part["rows"].items():
            begin, end = (max(edge - part["first"], 0) for edge in (shard.first, shard.stop))
            own = tensor[begin:end].to(device, copy=True)  # without the rest of the file
            found.setdefault(name, []).append(own)
    return state, {name: torch.cat(tensors) for name, tensors in found.items()}


def check_folder(path: Path) -> None:
    """Say before any work that a folder cannot be made, or not be written to. Nothing is left."""
    try:
        there = next(p for p in (path, *path.absolute().parents) if p.exists() or p.is_symlink())
        with tempfile.TemporaryDirectory(prefix=".partly-", dir=there):
            pass
    except OSError as error:
        what = "write into" if path.is_dir() else "create"
        raise RunError(f"cannot {what} folder {path}: {reason(error)}") from None


def make_folder(path: Path) -> None:
    """Create a folder that can be written to, or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot create folder {path}: {reason(error)}") from None
    if not os.access(path, os.W_OK):
        raise RunError(f"cannot write into folder {path}: permission denied")


@contextmanager
def held(folder: Path, problem: str, patience: float = 0.0) -> Iterator[None]:
    """A folder, made if need be, that this process has to itself; an error that says `problem`
    where another has it for so many seconds. The lock is the system's and ends with its holder."""
    until = time.monotonic() + patience
    while True:
        make_folder(folder)
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # whoever had it has removed it
            continue
        except OSError as error:
            raise RunError(f"cannot read folder {folder}: {reason(error)}") from None
        _locks.add(lock)
        try:
            if not _locked(lock):
                if time.monotonic() >= until:
                    raise RunError(problem)
                time.sleep(0.1)
            elif _is_still(lock, folder):
                yield
                return
        finally:
            if lock in _locks:  # not so in a process that was forked meanwhile
                _locks.discard(lock)
                os.close(lock)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _is_still(descriptor: int, folder: Path) -> bool:
    """Not so where whoever had it has removed it, and it may have been made anew."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    return False


_locks: set[int] = set()  # descriptors of this process


def _let_go() -> None:
    """A lock would last as long as any process that was forked by its holder."""
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_let_go)
