"""Small data sets, what reading them says, and the command line from within a test.

`partly_here` runs a command in this process, which saves the seconds that importing torch takes;
`command` and `environment` start one for real.
"""

import contextlib
import csv
import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

from partly import cli
from partly.errors import PartlyError
from partly.labels import LabelTable
from partly.readers import read

COLOURS = ("red", "green", "blue")


class Answer(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str


def partly_here(*arguments: object) -> Answer:
    """`partly …` in this process. An exception that is not an exit fails the test."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["partly", *map(str, arguments)]),
        mock.patch.dict(os.environ, {"COLUMNS": "200"}),  # no message is broken into lines
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Answer(code, out.getvalue(), err.getvalue())


def partly_works(*arguments: object) -> Answer:
    """`partly_here`, of a command that must succeed."""
    answer = partly_here(*arguments)
    assert answer.code == 0, answer.err
    return answer


def refuses(path: Path, *sentences: str, **options: Any) -> PartlyError:
    """Reading fails with an error of ours that contains every one of these."""
    with pytest.raises(PartlyError) as caught:
        read(path, **options)
    missing = [sentence for sentence in sentences if sentence not in str(caught.value)]
    assert not missing, f"not in the message: {missing}\n{caught.value}"
    return caught.value


def message_of(path: Path, **options: Any) -> str:
    """What reading fails with."""
    return str(refuses(path, **options))


def said(table: LabelTable, pattern: str) -> bool:
    """Does one of a table's notes match?"""
    return any(re.search(pattern, note) for note in table.notes)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "partly", *map(str, arguments)]


def children_of(process: int) -> dict[int, bytes]:
    """The command line of each; one may end while it is looked at."""
    found = {}
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[int(child)] = Path(f"/proc/{child}/cmdline").read_bytes()
    return found


class Compiled:
    """In the place of a Triton kernel: it is compiled for what it is launched with, and not
    launched. It takes no GPU. A compiler wants what the interpreter does not: a variable of a loop
    keeps its shape."""

    KINDS: ClassVar = {
        torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16",
        torch.int8: "*i8", torch.uint8: "*u8", torch.int32: "*i32", torch.int64: "*i64",
    }  # fmt: skip

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.launches = kernel, 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.compile

    def compile(self, *given: Any, num_warps: int, enable_fp_fusion: bool, **named: Any) -> None:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        names = self.kernel.arg_names
        every = dict(zip(names[: len(given)], given, strict=True)) | named
        constants = {part.name for part in self.kernel.params if part.is_constexpr}
        fixed = {
            name: value
            for name, value in every.items()
            if name in constants or value is None or (type(value) is int and value == 1)
        }
        kinds = {int: "i32", float: "fp32"}
        signature = {
            name: "constexpr" if name in fixed
            else self.KINDS[value.dtype] if isinstance(value, torch.Tensor)
            else kinds[type(value)]
            for name, value in every.items()
        }  # fmt: skip
        source = ASTSource(self.kernel, signature, {(names.index(n),): v for n, v in fixed.items()})
        options = {"num_warps": num_warps, "enable_fp_fusion": enable_fp_fusion}
        triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        self.launches += 1


def passes_interpreted(file: str, chosen: str) -> None:
    """These tests of a file pass where Triton's interpreter runs kernels on the CPU: in a process
    of its own, for Triton decides at its import."""
    pytest.importorskip("triton")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", file, "-k", chosen],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout


def environment() -> dict[str, str]:
    """One thread, as in the tests' own process, and the sources of this checkout."""
    source = Path(__file__).parents[1] / "src"
    return os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def problem(
    images: int, labels: int = 4, features: int = 8, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Features [N, F] and labels [N, L] that a linear model can tell apart; a third is positive."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(images, features)).astype(np.float32)
    directions = np.random.default_rng(99).normal(size=(features, labels))
    directions /= np.linalg.norm(directions, axis=0)
    return rows, (rows @ directions > 0.45).astype(np.int8)


def feature_table(images: int = 400, labels: int = 4, seed: int = 0) -> LabelTable:
    rows, known = problem(images, labels, seed=seed)
    return LabelTable.from_dense(known, features=rows)


def write_npz(path: Path, train: int = 300, test: int = 200, **problem_size: int) -> Path:
    """An .npz of `problem`, with a test part unless that is 0."""
    rows, labels = problem(train + test, **problem_size)
    parts = {"X_train": rows[:train], "Y_train": labels[:train]}
    if test:
        parts |= {"X_test": rows[train:], "Y_test": labels[train:]}
    np.savez(path, **parts)
    return path


def write_pictures(folder: Path, count: int, size: int = 16, seed: int = 0) -> np.ndarray:
    """Noisy pictures 0000.png, … in which each of COLOURS is there or not: labels [N, 3]."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, (count, len(COLOURS)), dtype=np.int8)
    pixels = generator.integers(0, 90, (count, size, size, 3))
    pixels = pixels + labels.astype(np.int64)[:, None, None, :] * 150
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(pixels.astype(np.uint8)):
        Image.fromarray(picture).save(folder / f"{number:04d}.png")
    return labels


def write_manifest(
    file: Path, labels: np.ndarray, test: int = 0, names: Sequence[str] = COLOURS
) -> Path:
    """A manifest beside the pictures of `write_pictures`, the last `test` rows marked as such."""
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "split", *names])
        for number, row in enumerate(labels.tolist()):
            split = "test" if number >= len(labels) - test else "train"
            writer.writerow([f"{number:04d}.png", split, *("" if v < 0 else v for v in row)])
    return file


def picture_table(folder: Path, count: int = 60, size: int = 16) -> LabelTable:
    labels = write_pictures(folder, count, size)
    paths = np.array([str(folder / f"{number:04d}.png") for number in range(count)])
    return LabelTable.from_dense(labels, names=COLOURS, paths=paths)


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
