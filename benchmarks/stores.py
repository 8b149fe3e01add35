"""What does it cost to keep the pseudo-labels of millions of images, on disk or sparse?

What enters: a number of images and labels. Batches are rows drawn at random. What leaves:

    memory      bytes of the file, and resident memory at its peak while many batches pass, beyond
                what the process had before, in a process of its own: anonymous (what must be there)
                and of files (what the system takes back when others need it)
    batches     milliseconds of `get` and `update` of one batch together, the median of rounds in
                which all stores take turns and pause in between, as for a training. `copy`: as many
                bytes from one array to another, twice: what the pseudo-labels themselves need.
                `loss`: cross-entropy of as many entries and its gradient, as PyTorch has it: what a
                step does at least. `disk`: after a checkpoint, when what is overwritten goes to the
                journal
    checkpoint  seconds to write what many batches have changed to the disk and to begin a new
                journal; again, when nothing has changed; and to undo a journal. Rows a second
                without a pause: what the disk itself can take
    cold        milliseconds of `get` when nothing of the file is in memory
    sparse      the same for a label space of which the table cannot exist: all labels of a batch,
                and some columns of it, beside copying the values that come in
    step        milliseconds of a whole step of the paper's loss, with pseudo-labels that are kept
                nowhere, in memory, on disk and sparse: ResNet-50 at 448 px on a GPU, a small
                network at 48 px on a CPU. `cold`: on disk, after the system was asked to keep
                nothing of the file in memory

A line each on the terminal, and benchmarks/results/stores.json, with an entry for each device.

    python benchmarks/stores.py
    python benchmarks/stores.py --quick          a few seconds, nothing is written
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from kept import command, keep
from partly import models
from partly.losses import fused
from partly.stores import DiskPseudoLabels, PseudoLabels, SparsePseudoLabels

RESULTS = Path(__file__).parent / "results" / "stores.json"
BATCHES = 128, 1024
LAST = torch.channels_last
PAUSE = 0.02  # seconds between batches, in which a training would compute
FULL = {"images": 5_650_000, "labels": 600, "many": 100_000, "slots": 16}
FULL |= {"passed": 2_000_000, "changed": 500_000}  # rows
QUICK = {"images": 50_000, "labels": 600, "many": 10_000, "slots": 16}
QUICK |= {"passed": 20_000, "changed": 10_000}


def resident() -> dict[str, int]:
    """Bytes of this process in memory, anonymous and of files."""
    status = Path("/proc/self/status").read_text()
    found = dict(re.findall(r"^Rss(Anon|File):\s+(\d+) kB", status, re.MULTILINE))
    return {name: 1024 * int(kibibytes) for name, kibibytes in found.items()}


def seconds(work: Callable[[], Any], device: str = "cpu") -> float:
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


class Draw:
    """Batches of random rows, with values, on the device."""

    def __init__(self, images: int, labels: int, device: str) -> None:
        self.images, self.device = images, device
        self.generator = torch.Generator().manual_seed(0)
        self.values = torch.rand(max(BATCHES), labels, generator=self.generator).to(device)

    def rows(self, count: int) -> Tensor:
        return torch.randint(self.images, (count,), generator=self.generator).to(self.device)


def in_use(store: PseudoLabels, draw: Draw, passed: int) -> dict[str, int]:
    """The largest resident memory while so many rows are asked for and overwritten."""
    peak = resident()
    for _ in range(-(-passed // max(BATCHES))):
        rows = draw.rows(max(BATCHES))
        store.get(rows)
        store.update(rows, draw.values)
        peak = {name: max(bytes_, peak[name]) for name, bytes_ in resident().items()}
    return peak


def measure_memory(size: dict[str, int], folder: Path, kind: str) -> dict[str, Any]:
    """In a process of its own."""
    labels = size["many"] if kind == "sparse" else size["labels"]
    draw = Draw(size["images"], labels if kind == "disk" else 64, "cpu")
    small: PseudoLabels = DiskPseudoLabels(2 * max(BATCHES), draw.values.shape[1], dtype="uint8")
    in_use(small, Draw(small.images, draw.values.shape[1], "cpu"), 1)  # what everything needs
    before = resident()
    if kind == "disk":
        store = DiskPseudoLabels(size["images"], labels, folder=folder, dtype="uint8")
        made = seconds(lambda: store.get(draw.rows(1)))
        store.mark(0)
        peak = in_use(store, draw, size["passed"])
        found: dict[str, Any] = {"create_seconds": round(made, 2)}
        found["file_bytes"] = sum(path.stat().st_size for path in folder.glob("*.rows"))
        found["journal_bytes"] = sum(path.stat().st_size for path in folder.glob("*.undo"))
        found["rows_passed"] = size["passed"]
    else:
        sparse = SparsePseudoLabels(size["images"], labels, slots=size["slots"], dtype="uint8")
        tables = (sparse.columns, sparse.values.zero_())
        peak = resident()
        found = {"table_bytes": sum(table.nbytes for table in tables)}
    for name in ("Anon", "File"):
        found[f"resident_{name.lower()}_bytes"] = max(peak[name] - before[name], 0)
    return found


def rounds_of(
    variants: dict[str, Callable[[Tensor], Any]], draw: Draw, count: int, rounds: int
) -> dict[str, float]:
    """Milliseconds of each, the median of rounds in which all take turns."""
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, work in variants.items():
            rows = draw.rows(count)
            taken[name].append(seconds(lambda work=work, rows=rows: work(rows), draw.device))
            time.sleep(PAUSE)
    return {name: round(1e3 * statistics.median(times[2:]), 4) for name, times in taken.items()}


def used(store: PseudoLabels, values: Tensor, columns: Tensor | None = None) -> Callable[..., None]:
    def use(rows: Tensor) -> None:
        store.get(rows, columns)
        store.update(rows, values, columns=columns)

    return use


def copied(values: Tensor, size: int) -> Callable[[Tensor], None]:
    """As many bytes there and back."""
    source = np.zeros(values.numel() * size, np.uint8)
    target = np.ones_like(source)

    def copy(_: Tensor) -> None:
        np.copyto(target, source)
        np.copyto(source, target)

    return copy


def loss_of(values: Tensor) -> Callable[[Tensor], None]:
    """Cross-entropy of as many entries and its gradient."""
    logits, targets = torch.logit(values, eps=1e-6).requires_grad_(), values.round()

    def compute(_: Tensor) -> None:
        binary_cross_entropy_with_logits(logits, targets).backward()
        logits.grad = None

    return compute


def measure_batches(size: dict[str, int], folder: Path, device: str, rounds: int) -> dict[str, Any]:
    """`get` and `update` of a batch, by every store of a table that fits into memory too."""
    images, labels = size["images"], size["labels"]
    draw, found = Draw(images, labels, device), {}
    memory = PseudoLabels(images, labels, dtype="uint8", device=device)
    disk = DiskPseudoLabels(images, labels, folder=folder, dtype="uint8", device=device)
    disk.mark(0)
    for store in (memory, disk):  # whatever is slow the first time
        for _ in range(5):
            used(store, draw.values)(draw.rows(max(BATCHES)))
    for count in BATCHES:
        values = draw.values[:count]
        variants = {
            "copy": copied(values, 1),
            "loss": loss_of(values),
            "memory": used(memory, values),
            "disk": used(disk, values),
        }
        times = rounds_of(variants, draw, count, rounds)
        units = ("copy", "loss", "memory")
        ratios = {name: round(times["disk"] / times[name], 2) for name in units}
        found[str(count)] = {"milliseconds": times, "disk_to": ratios}
    return found


def measure_checkpoint(size: dict[str, int], folder: Path) -> dict[str, Any]:
    """Marking, marking again, undoing, and reading a file of which nothing is in memory."""
    images, labels = size["images"], size["labels"]
    draw = Draw(images, labels, "cpu")

    def make() -> DiskPseudoLabels:
        return DiskPseudoLabels(images, labels, folder=folder, name="marked", dtype="uint8")

    store, again, cold = make(), make(), make()
    store.mark(0)
    changed = size["changed"]
    taken = seconds(lambda: in_use(store, draw, changed))
    found: dict[str, Any] = {"rows_changed": changed, "rows_a_second": round(changed / taken)}
    found["mark_seconds"] = round(seconds(lambda: store.mark(1)), 3)
    found["mark_again_seconds"] = round(seconds(lambda: store.mark(1)), 4)
    store.settle()
    record = store.mark(1)
    in_use(store, draw, changed)
    found["journal_bytes"] = sum(path.stat().st_size for path in folder.glob("marked*.undo"))
    found["undo_seconds"] = round(seconds(lambda: again.return_to(record)), 2)
    record = again.mark(2)
    store.file = again.file = None  # what is mapped stays in memory
    forget(folder)
    cold.return_to(record)
    times = [seconds(lambda: cold.get(draw.rows(BATCHES[0]))) for _ in range(5)]
    found["cold_get_milliseconds"] = round(1e3 * statistics.median(times), 2)
    return found


def measure_sparse(size: dict[str, int], device: str, rounds: int) -> dict[str, Any]:
    images, labels, count = size["images"], size["many"], BATCHES[0]
    store = SparsePseudoLabels(
        images, labels, slots=size["slots"], start=0.001, dtype="uint8", device=device
    )
    draw, found = Draw(images, labels, device), {}
    some = torch.arange(0, labels, 50, device=device)
    for name, columns in (("all labels", None), (f"{len(some):,} columns", some)):
        # Few labels of an image are likely.
        values = draw.values[:count] if columns is None else draw.values[:count, columns]
        variants = {"copy": copied(values, 4), "sparse": used(store, values**200, columns)}
        times = rounds_of(variants, draw, count, max(rounds // 4, 4))
        found[name] = {"batch": count, "milliseconds": times}
        found[name]["to_copy"] = round(times["sparse"] / times["copy"], 2)
    return found


def measure_step(size: dict[str, int], folder: Path, device: str, rounds: int) -> dict[str, Any]:
    """A training step that asks for pseudo-labels and overwrites them, images and all."""
    images, labels, count = size["images"], size["labels"], BATCHES[0]
    gpu = device == "cuda"
    backbone, pixels = ("resnet50", 448) if gpu else ("small:32", 48)
    draw = Draw(images, labels, device)
    model = models.build(backbone, labels, size=pixels).to(device, memory_format=LAST)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(count, 3, pixels, pixels, device=device).to(memory_format=LAST)
    known = torch.rand(count, labels, generator=draw.generator).to(device)
    table = torch.where(known < 0.01, (known < 0.005).to(torch.int8), -1)
    of_all: dict[str, Any] = {"dtype": "uint8", "device": device}
    disk = DiskPseudoLabels(images, labels, folder=folder, name="step", **of_all)
    disk.mark(0)
    kept: dict[str, PseudoLabels | None] = {
        "nowhere": None,
        "memory": PseudoLabels(images, labels, **of_all),
        "disk": disk,
        "sparse": SparsePseudoLabels(images, labels, slots=size["slots"], start=0.01, **of_all),
    }

    def step(store: PseudoLabels | None) -> Callable[[Tensor], None]:
        def take(rows: Tensor) -> None:
            with torch.autocast(device, dtype=torch.bfloat16, enabled=gpu):
                logits = model(inputs).float()
            pseudo = draw.values[:count] if store is None else store.get(rows)
            loss, fresh = fused.paper_loss(logits, table, pseudo, epoch=1, epochs=9)
            if store is not None:
                store.update(rows, fresh)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

        return take

    times = rounds_of({name: step(store) for name, store in kept.items()}, draw, count, rounds)
    forget(folder)
    times |= rounds_of({"cold": step(disk)}, draw, count, 12)
    over = {name: round(taken / times["nowhere"], 3) for name, taken in times.items()}
    about = {"backbone": backbone, "pixels": pixels, "batch": count}
    return about | {"milliseconds": times, "to_nowhere": over}


def forget(folder: Path) -> None:
    """Ask the system to keep nothing of the files in memory."""
    for path in folder.glob("*.rows"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def alone(part: str, options: argparse.Namespace) -> Any:
    """One part of the measurement in a process of its own, with a folder that goes afterwards."""
    command = [sys.executable, __file__, "--part", part, "--rounds", str(options.rounds)]
    command += ["--device", options.device, *(["--quick"] if options.quick else [])]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        said = subprocess.run(
            [*command, "--folder", folder], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    found = json.loads(said)
    print(f"{part}: {json.dumps(found)}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="50,000 images; nothing is written")
    parser.add_argument("--folder", help="for temporary files, 7 GB of them")
    parser.add_argument("--only", nargs="*", help="some of the parts, in place of all")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    size, folder = QUICK if options.quick else FULL, Path(options.folder or ".")
    device, rounds = options.device, 20 if options.quick else options.rounds
    parts: dict[str, Callable[[], Any]] = {
        "memory of disk": lambda: measure_memory(size, folder, "disk"),
        "memory of sparse": lambda: measure_memory(size, folder, "sparse"),
        "batches": lambda: measure_batches(size, folder, device, rounds),
        "checkpoint": lambda: measure_checkpoint(size, folder),
        "sparse": lambda: measure_sparse(size, device, rounds),
        "step": lambda: measure_step(size, folder, device, max(rounds // 8, 6)),
    }
    if options.part:
        print(json.dumps(parts[options.part]()))
        return
    found: dict[str, Any] = {"command": command(), "size": size}
    for part in options.only or parts:
        found[part] = alone(part, options)
    if options.quick:
        return
    found["machine"] = {
        "cores": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__.split("+")[0],
        "numpy": np.__version__,
    }
    machine = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    keep(RESULTS, machine, found)


if __name__ == "__main__":
    main()
