"""What do ranks cost? The same global batch on 1, 2 and 4 ranks of one machine, by gloo on its CPU.

What enters: inputs that are already in memory. What leaves, for a linear layer on 256 features with
80 and with 5,000 labels, for the latter with a pseudo-label of every entry of 50,000 images, of
which each rank keeps its share, and for a small network on pictures of 48 pixels, whose batch norms
take the statistics of the whole batch or keep those they have:

    milliseconds   of a step, in the fastest of all blocks of steps: ranks wait for each other, so
                   other work on the machine slows them more than one alone. The median is kept
                   too. All numbers of ranks take turns, each time in new processes
    ratio          to one rank with as many threads as there are ranks or, where those are fewer,
                   cores; or with fewer threads, where that is faster. The floor is 1: nothing would
                   be done twice, and sending would take no time
    bytes          of a step that are handed over for all ranks to know or to add up, as they are
                   counted where it happens: logits gathered, gradients, all else (statistics of
                   batch norms, pseudo-labels that another rank keeps)
    MiB            resident memory of a rank at its peak while it keeps pseudo-labels, the largest
                   of all; before it made them, with its table in memory; and of them alone

A line each on the terminal, and benchmarks/results/ranks.json, with an entry for each machine.

    python benchmarks/ranks.py
    python benchmarks/ranks.py --quick          under a minute, nothing is written
"""

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from kept import command, keep
from memory import resident
from partly import distributed
from partly.config import Config
from partly.labels import LabelTable
from partly.models import train_mode
from partly.training import start, take_step

RESULTS = Path(__file__).parent / "results" / "ranks.json"
RANKS = 1, 2, 4
FEATURES, SIZE, POSITIVES = 256, 48, 3


class Case(NamedTuple):
    labels: int
    images: int = 0  # of the table; 0: as many as a batch has
    method: str = "partly"
    backbone: str | None = None  # of images; None: a linear layer on features
    kept: bool = False  # whether batch norms are, as those of pretrained weights are


CASES = {  # the one whose memory is measured first, in a process that has done nothing else
    "linear, 5,000 labels, pseudo-labels kept": Case(5_000, 50_000, "paper"),
    "linear, 5,000 labels": Case(5_000),
    "linear, 80 labels": Case(80),
    "small:32 at 48 px, 80 labels": Case(80, backbone="small:32"),
    "small:32 at 48 px, 80 labels, batch norms kept": Case(80, backbone="small:32", kept=True),
}


# What a rank does


def make_table(case: Case, batch: int) -> LabelTable:
    """A few known positives an image, nothing else known; the same on every rank."""
    generator = np.random.default_rng(0)
    images = case.images or batch
    width = case.labels // POSITIVES
    columns = generator.integers(width, size=(images, POSITIVES)) + width * np.arange(POSITIVES)
    if case.backbone is None:
        seen = {"features": generator.normal(size=(images, FEATURES)).astype(np.float32)}
    else:
        seen = {"paths": [f"{row}.jpg" for row in range(images)]}
    return LabelTable.from_entries(
        np.repeat(np.arange(images), POSITIVES), columns.ravel(),
        np.ones(columns.size, dtype=np.int8), ids=[str(row) for row in range(images)],
        names=[str(label) for label in range(case.labels)], **seen,
    )  # fmt: skip


def inputs_of(table: LabelTable, rows: np.ndarray) -> torch.Tensor:
    """Of this rank's part of a batch."""
    own = distributed.own_part(rows)
    if table.features is not None:
        return torch.from_numpy(table.features[own])
    whole = torch.randn(len(rows), 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    part = distributed.own_part(np.arange(len(rows)))
    return whole[part].contiguous(memory_format=torch.channels_last)


def count_bytes() -> Counter[str]:
    """What is handed over from now on, by this rank."""
    counted: Counter[str] = Counter()
    gather, reduce, add_up = dist.all_gather, dist.all_reduce, distributed._add_up

    def note_gathered(parts: list[torch.Tensor], part: torch.Tensor, **more: Any) -> Any:
        counted["logits"] += sum(each.nbytes for each in parts)
        return gather(parts, part, **more)

    def note_reduced(values: torch.Tensor, **more: Any) -> Any:
        counted["reduced"] += values.nbytes
        return reduce(values, **more)

    def note_gradient(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        counted["gradients"] += bucket.buffer().nbytes
        return add_up(state, bucket)

    dist.all_gather, dist.all_reduce, distributed._add_up = (
        note_gathered, note_reduced, note_gradient,
    )  # fmt: skip
    return counted


def work(case: Case, counted: Counter[str], options: argparse.Namespace) -> dict[str, Any]:
    """Blocks of steps; what one step took, sent and needed."""
    table = make_table(case, options.batch)
    config = Config(
        method=case.method, backbone=case.backbone, weights="none", image_size=SIZE,
        batch_size=options.batch, device="cpu", epochs=1000,
    )  # fmt: skip
    before = resident("VmRSS") / 2**20
    state = start(table, config.complete(table))
    train_mode(state.model, keep_statistics=case.kept)
    order = np.random.default_rng(1)
    milliseconds = []
    for block in range(options.blocks + 1):  # the first warms up
        batches = [order.permutation(len(table))[: options.batch] for _ in range(options.steps)]
        inputs = [inputs_of(table, rows) for rows in batches]
        counted.clear()
        distributed.wait()
        began = time.perf_counter()
        for rows, seen in zip(batches, inputs, strict=True):
            take_step(state, torch.from_numpy(rows), seen)
        distributed.wait()
        if block:
            milliseconds.append(1000 * (time.perf_counter() - began) / options.steps)
    others = counted["reduced"] - counted["gradients"]
    found: dict[str, Any] = {
        "milliseconds": milliseconds,
        "logits_bytes": counted["logits"] // options.steps,
        "gradients_bytes": counted["gradients"] // options.steps,
        "others_bytes": others // options.steps,
    }
    if state.training.stores:
        kept = [t for s in state.training.stores.values() for t in s.state_dict().values()]
        found["peak_mib"], found["before_mib"] = resident("VmHWM") / 2**20, before
        found["kept_mib"] = sum(tensor.nbytes for tensor in kept) / 2**20
    return found


def work_on_all(options: argparse.Namespace) -> None:
    """One rank, with all cases one after another; what it finds goes to a file."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    distributed.begin("cpu")
    counted = count_bytes()
    found = {name: work(case, counted, options) for name, case in CASES.items()}
    (options.work / f"{distributed.rank()}.json").write_text(json.dumps(found))
    distributed.wait()
    distributed.leave(0)


# What starts them


def launch(ranks: int, threads: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What each rank has found, in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [__file__, "--work", folder, "--batch", str(options.batch)]
        command += ["--blocks", str(options.blocks), "--steps", str(options.steps)]
        if ranks > 1:
            flags = [f"--nproc-per-node={ranks}", f"--master-port={free_port()}"]
            flags += ["--master-addr=127.0.0.1"]
            command = ["-m", "torch.distributed.run", *flags, *command]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{ranks} ranks failed:\n{done.stderr}")
        return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def measure(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Of every case: a row for one rank with each number of threads, and one for several ranks."""
    cores = len(os.sched_getaffinity(0))
    alone = sorted({min(ranks, cores) for ranks in options.ranks})
    ways = [(1, threads) for threads in alone]
    ways += [(ranks, 1) for ranks in options.ranks if ranks > 1]
    rounds = [{way: launch(*way, options) for way in ways} for _ in range(options.rounds)]
    cases: dict[str, list[dict[str, Any]]] = {}
    for name in CASES:
        times = {
            way: [t for found in rounds for t in found[way][0][name]["milliseconds"]]
            for way in ways
        }
        cases[name] = [
            summary(ranks, threads, times, [found[name] for found in rounds[-1][ranks, threads]])
            for ranks, threads in ways
        ]
    return cases


def summary(
    ranks: int, threads: int, times: dict[tuple[int, int], list[float]], found: list[dict[str, Any]]
) -> dict[str, Any]:
    """found: what each rank has found in the last round; only times differ between rounds."""
    taken = min(times[ranks, threads])
    floor = min(min(times[way]) for way in times if way[0] == 1 and way[1] <= ranks * threads)
    row = {"ranks": ranks, "threads": threads, "milliseconds": round(taken, 3)}
    row["ratio"] = round(taken / floor, 3)
    row["median_milliseconds"] = round(statistics.median(times[ranks, threads]), 3)
    first = {key: value for key, value in found[0].items() if key.endswith("_bytes")}
    memory = {
        key: round(max(rank[key] for rank in found), 1) for key in found[0] if key.endswith("_mib")
    }
    return row | first | memory


def show(cases: dict[str, list[dict[str, Any]]]) -> None:
    for name, rows in cases.items():
        print(name)
        for row in rows:
            print("   ", "  ".join(f"{key} {value}" for key, value in row.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="images of a step, of all ranks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=5, help="of steps, in each round")
    parser.add_argument("--steps", type=int, default=10, help="of a block")
    parser.add_argument("--quick", action="store_true", help="few steps; nothing is written")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work_on_all(options)
        return
    if options.quick:
        options.rounds, options.blocks, options.steps, options.ranks = 1, 1, 2, (1, 2)
    cases = measure(options)
    show(cases)
    if options.quick:
        return
    entry = {
        "command": command(),
        "batch": options.batch,
        "rounds": options.rounds,
        "blocks": options.blocks,
        "steps": options.steps,
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(load, 1) for load in os.getloadavg()],
        "torch": torch.__version__.split("+")[0],
        "cases": cases,
    }
    keep(RESULTS, platform.machine(), entry)


if __name__ == "__main__":
    main()
