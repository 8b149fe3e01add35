"""How long does exact mAP take beside scikit-learn and torchmetrics, and in how much memory?

What enters: a size. Scores are float32 probabilities; 1 to 3 % of each label's entries are
positive; once all labels are known and once half of them. What leaves, for each:

    seconds     of `metrics.average_precision` (the median of several), of scikit-learn and of
                torchmetrics. The peers take some labels at a time, and ours all of them after each
                of these parts, so that a noisy machine is noisy for all
    ratio       the peers' seconds to ours; and of the seconds that processors spent, all together,
                which other work on the machine does not change: it says nothing of threads
    floor       seconds in units of those that reading the table once takes, at the speed of a copy
    difference  the largest of any label's AP to scikit-learn's
    MiB         resident memory at its peak beyond what it was with the table in memory, each in a
                process of its own; `streamed` reads the table from files instead

Then, where there is a GPU: seconds, floor and memory with the table on it, and the largest
difference to what ours finds on the CPU.

A line each on the terminal, and benchmarks/results/metrics.json, with an entry for each size and
device. torchmetrics takes minutes at the default size.

    python benchmarks/metrics.py
    python benchmarks/metrics.py --images 12544
    python benchmarks/metrics.py --device cuda  the GPU alone
    python benchmarks/metrics.py --quick        half a minute, nothing is written
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn.metrics
import torch
from torchmetrics.functional.classification import multilabel_average_precision

import ceilings
from kept import command, keep
from memory import resident
from partly import metrics, ranking

RESULTS = Path(__file__).parent / "results" / "metrics.json"
SETTINGS = {"all known": 0.0, "half unknown": 0.5}
SHARDS = 16
TOP = {"images": 200_000, "labels": 3_000_000, "positives": 30, "k": 5}  # a huge label space
Array = np.ndarray


def make_table(images: int, labels: int, unknown: float) -> tuple[Array, Array]:
    """Scores float32 and labels int8 [N, L], drawn a few rows at a time: no peak of their own."""
    generator = np.random.default_rng(0)
    scores, truth = np.empty((images, labels), np.float32), np.empty((images, labels), np.int8)
    frequency = np.linspace(0.01, 0.03, labels, dtype=np.float32)
    for first in range(0, images, 1024):
        rows = slice(first, first + 1024)
        shape = truth[rows].shape
        positive = generator.random(shape, np.float32) < frequency
        logits = generator.standard_normal(shape, np.float32) + 2 * positive - 4
        scores[rows] = 1 / (1 + np.exp(-logits))
        truth[rows] = np.where(generator.random(shape, np.float32) < unknown, -1, positive)
    return scores, truth


def by_scikit_learn(scores: Array, labels: Array) -> Array:
    reference = sklearn.metrics.average_precision_score
    if (labels >= 0).all():
        return reference(labels, scores, average=None)
    known = labels >= 0
    columns = zip(scores.T, labels.T, known.T, strict=True)
    return np.array([reference(truth[mask], column[mask]) for column, truth, mask in columns])


def by_torchmetrics(scores: Array, labels: Array) -> Array:
    ignored = None if (labels >= 0).all() else -1
    found = multilabel_average_precision(
        torch.from_numpy(scores),
        torch.from_numpy(labels).long(),
        num_labels=labels.shape[1],
        average=None,
        ignore_index=ignored,
    )
    return found.numpy()


class Timed(NamedTuple):
    seconds: float
    of_processors: float
    found: Array


def timed(work: Callable[..., Array], *arguments: Any) -> Timed:
    began, began_to_count = time.perf_counter(), time.process_time()
    found = work(*arguments)
    return Timed(time.perf_counter() - began, time.process_time() - began_to_count, found)


def compare(scores: Array, labels: Array, parts: int) -> dict[str, Any]:
    """Seconds, ratios and differences of ours and the peers."""
    peers = {"scikit-learn": by_scikit_learn, "torchmetrics": by_torchmetrics}
    runs: dict[str, list[Timed]] = {name: [] for name in peers}
    ours: list[Timed] = []
    metrics.average_precision(scores, labels)  # the first is slower
    for edges in pairwise(np.linspace(0, labels.shape[1], parts + 1).astype(int)):
        # Copies: of a part of an array scikit-learn would make a new copy for each label.
        part = [np.ascontiguousarray(table[:, slice(*edges)]) for table in (scores, labels)]
        for name, peer in peers.items():
            runs[name].append(timed(peer, *part))
            ours.append(timed(metrics.average_precision, scores, labels))
    own, exact = ours[-1].found, np.concatenate([run.found for run in runs["scikit-learn"]])
    median = statistics.median(run.seconds for run in ours)
    of_processors = statistics.median(run.of_processors for run in ours)
    result: dict[str, Any] = {
        "seconds": round(median, 3),
        "slowest": round(max(run.seconds for run in ours), 3),
        "seconds of processors": round(of_processors, 3),
        "mAP": float(np.nanmean(own)),
        "difference to scikit-learn": float(np.nanmax(np.abs(own - exact))),
    }
    for name, parts_of_peer in runs.items():
        found = np.concatenate([run.found for run in parts_of_peer])
        seconds = sum(run.seconds for run in parts_of_peer)
        counted = sum(run.of_processors for run in parts_of_peer)
        result[name] = {
            "seconds": round(seconds, 1),
            "seconds of processors": round(counted, 1),
            "ratio": round(seconds / median, 1),
            "ratio of processors": round(counted / of_processors, 1),
            "difference to scikit-learn": float(np.nanmax(np.abs(found - exact))),
        }
    return result


def on_gpu(scores: Array, labels: Array) -> dict[str, Any]:
    """Seconds with the table on the GPU, and MiB there beyond it."""
    table, truth = torch.from_numpy(scores).cuda(), torch.from_numpy(labels).cuda()
    gap = metrics.average_precision(table, truth) - metrics.average_precision(scores, labels)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    seconds = [timed(metrics.average_precision, table, truth).seconds for _ in range(9)]
    return {
        "seconds": round(statistics.median(seconds), 4),
        "MiB": round((torch.cuda.max_memory_allocated() - before) / 2**20),
        "difference to the CPU": float(np.nanmax(np.abs(gap))),
    }


def shards(folder: str) -> Any:
    for number in range(SHARDS):
        yield tuple(
            np.load(f"{folder}/{name}{number}.npy", mmap_mode="r") for name in ("scores", "labels")
        )


def first_labels() -> tuple[Array, ranking.Entries]:
    """The first labels of many images, every other one of them positive."""
    generator = np.random.default_rng(0)
    positives = TOP["labels"] // TOP["positives"] * np.arange(TOP["positives"])
    own = positives + generator.integers(TOP["labels"] // TOP["positives"], size=(TOP["images"], 1))
    top = own[:, : TOP["k"]] + np.arange(TOP["k"]) % 2
    entries = ranking.Entries(np.arange(TOP["images"] + 1) * TOP["positives"], own.ravel())
    return top, entries


def measure_alone(name: str, images: int, labels: int, unknown: float, folder: str) -> None:
    """One way in this process alone: its seconds and its peak of memory, as JSON."""
    if name == "streamed":
        work, arguments = ranking.streamed_average_precision, (shards(folder), folder)
    elif name == "precision_at_k":
        work, arguments = ranking.precision_at_k, first_labels()
    else:
        work = {"ours": metrics.average_precision, "scikit-learn": by_scikit_learn}[name]
        arguments = make_table(images, labels, unknown)
    before = resident("VmRSS") / 2**20
    seconds = timed(work, *arguments).seconds
    print(
        json.dumps({"seconds": round(seconds, 2), "MiB": round(resident("VmHWM") / 2**20 - before)})
    )


def alone(name: str, options: argparse.Namespace, unknown: float, folder: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--alone", name, "--unknown", str(unknown)]
    command += ["--images", str(options.images), "--labels", str(options.labels)]
    done = subprocess.run([*command, "--folder", folder], check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout))


def measure(device: str, options: argparse.Namespace, unknown: float) -> dict[str, Any]:
    scores, labels = make_table(options.images, options.labels, unknown)
    reading = (scores.nbytes + labels.nbytes) / ceilings.bandwidth(device)
    if device == "cuda":
        found = on_gpu(scores, labels)
        return found | {"floor": round(found["seconds"] / reading, 1)}
    found = compare(scores, labels, options.parts)
    found["floor"] = round(found["seconds"] / reading, 1)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for number, rows in enumerate(np.array_split(np.arange(options.images), SHARDS)):
            np.save(f"{folder}/scores{number}.npy", scores[rows[0] : rows[-1] + 1])
            np.save(f"{folder}/labels{number}.npy", labels[rows[0] : rows[-1] + 1])
        streamed = ranking.streamed_average_precision(shards(folder), folder)
        gap = np.nanmax(np.abs(streamed - metrics.average_precision(scores, labels)))
        found["table MiB"] = round((scores.nbytes + labels.nbytes) / 2**20)
        del scores, labels
        found["alone"] = {
            name: alone(name, options, unknown, folder)
            for name in ("ours", "scikit-learn", "streamed")
        }
    found["alone"]["streamed"]["difference to ours"] = float(gap)
    return found


def show(title: str, found: dict[str, Any]) -> None:
    if "alone" not in found:
        print(f"{title}: {found}")
        return
    print(
        f"{title}: {found['seconds']:.2f} s (slowest {found['slowest']:.2f}), "
        f"{found['floor']:.0f} × the floor, "
        f"largest difference to scikit-learn {found['difference to scikit-learn']:.1e}"
    )
    for name in ("scikit-learn", "torchmetrics"):
        peer = found[name]
        ratios = f"{peer['ratio']:6.1f} × ours; of processors {peer['ratio of processors']:.1f} ×"
        print(f"    {name:14} {peer['seconds']:8.1f} s  {ratios}")
    for name, figures in found["alone"].items():
        beyond = f"{figures['MiB']} MiB beyond a table of {found['table MiB']}"
        print(f"    {name:14} alone {figures['seconds']:8.2f} s, {beyond}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=125_436)
    parser.add_argument("--labels", type=int, default=600)
    parser.add_argument("--parts", type=int, default=6, help="in which the peers take the labels")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="one of those that there are")
    parser.add_argument("--quick", action="store_true", help="small; nothing is written")
    parser.add_argument("--folder", help="for temporary files")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--unknown", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        measure_alone(
            options.alone, options.images, options.labels, options.unknown, options.folder
        )
        return
    if options.quick:
        options.images, options.labels = 20_000, 60
    there = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in [options.device] if options.device else there:
        measure_on(device, options)


def measure_on(device: str, options: argparse.Namespace) -> None:
    """Everything, and keep it."""
    found: dict[str, Any] = {}
    for title, unknown in SETTINGS.items():
        found[title] = measure(device, options, unknown)
        show(title, found[title])
    gpu = device == "cuda"
    if not gpu:
        found["precision_at_k"] = TOP | alone("precision_at_k", options, 0.0, ".")
        print(f"precision_at_k: {found['precision_at_k']}")
    if options.quick:
        return
    found["command"] = command()
    found["machine"] = {
        "cores": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "architecture": platform.machine(),
        "torch threads": torch.get_num_threads(),
        **{name: version(name) for name in ("numpy", "scikit-learn", "torch", "torchmetrics")},
    }
    where = f", {torch.cuda.get_device_name()}" if gpu else ""
    keep(options.out, f"{options.images} images, {options.labels} labels{where}", found)


if __name__ == "__main__":
    main()
