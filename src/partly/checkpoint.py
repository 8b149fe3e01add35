"""Files that are either whole or not there.

What enters: bytes, JSON or a training's state. What leaves: a file that a `kill -9` at any moment
leaves in its old or its new form, and that is read back without running anything inside it.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

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
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        raise RunError(f"cannot write {path}: {_reason(error)}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
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
        raise RunError(f"cannot read {path}: {_reason(error)}") from None


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """One line of JSON at the end of a file."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {path}: {_reason(error)}") from None


def save(path: Path, state: dict[str, Any]) -> None:
    """A training's state: tensors and plain Python values."""
    write_atomically(path, lambda place: torch.save(state, place))


def load(path: Path, device: torch.device) -> dict[str, Any]:
    """The state of `save`. Only tensors and plain values are read: no code of the file runs."""
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise RunError(f"cannot read checkpoint {path}: {_reason(error)}") from None


def make_folder(path: Path) -> None:
    """Create a folder that can be written to, or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot create folder {path}: {_reason(error)}") from None
    if not os.access(path, os.W_OK):
        raise RunError(f"cannot write into folder {path}: permission denied")
