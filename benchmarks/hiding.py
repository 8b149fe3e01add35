"""How long it takes to hide labels at the size of Open Images.

What enters: a size. What leaves: seconds and peak memory of `partly.hide` for each setting, beside
a floor measured in the same run: one uniform number a known label from NumPy's generator and one
boolean mask of the same arrays. A line each on the terminal, and benchmarks/results/hiding.json,
with an entry for each size.

    python benchmarks/hiding.py
    python benchmarks/hiding.py --images 56500
    python benchmarks/hiding.py --quick         a second, nothing is written
"""

import argparse
import os
import platform
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kept import command, keep
from memory import resident
from partly.hiding import hide
from partly.labels import LabelTable

SETTINGS = ("pal:0.3", "ppl:0.6", "spl")
RESULTS = Path(__file__).parent / "results" / "hiding.json"
MEBIBYTE = 2**20


def make_table(images: int, labels: int, known: int) -> LabelTable:
    """`known` entries an image, one in each of `known` blocks of columns, half of them positive."""
    generator = np.random.default_rng(0)
    width = labels // known
    blocks = np.tile(np.arange(known) * width, images)
    return LabelTable.from_entries(
        np.repeat(np.arange(images), known),
        blocks + generator.integers(width, size=images * known),
        generator.integers(2, size=images * known, dtype=np.int8),
        ids=np.char.mod("%d", np.arange(images)),
        names=[f"label {column}" for column in range(labels)],
    )


def floor(table: LabelTable) -> tuple[np.ndarray, np.ndarray]:
    """The least that any hiding does: draw a number for every known label, copy what stays."""
    kept = np.random.default_rng(0).random(table.known) < 0.3
    return table.indices[kept], table.values[kept]


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """The fastest of `repeats` runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_memory(work: Callable[[], Any]) -> float:
    """MiB that `work` allocates at its highest, its result included."""
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / MEBIBYTE


def measure(table: LabelTable, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds, ratio to the floor and peak MiB of each setting."""
    # A fresh table each time, so that nothing it has cached is left out of the account.
    work: dict[str, Callable[[], Any]] = {"floor": lambda: floor(table)}
    for setting in SETTINGS:
        work[setting] = lambda setting=setting: hide(replace(table, checked=True), setting)
    times = {name: seconds(do, repeats) for name, do in work.items()}
    return {
        name: {
            "seconds": round(times[name], 3),
            "ratio_to_floor": round(times[name] / times["floor"], 2),
            "peak_mib": round(peak_memory(do), 1),
        }
        for name, do in work.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, default=5_650_000)
    parser.add_argument("--labels", type=int, default=600)
    parser.add_argument("--known", type=int, default=5, help="known labels an image")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="20,000 images; nothing is written")
    options = parser.parse_args()
    if options.quick:
        options.images = 20_000

    start = time.perf_counter()
    table = make_table(options.images, options.labels, options.known)
    built = time.perf_counter() - start
    print(f"{table}, made in {built:.1f} s")
    measured = measure(table, options.repeats)
    for name, numbers in measured.items():
        print(
            f"{name:8} {numbers['seconds']:7.3f} s  {numbers['ratio_to_floor']:6.2f} × floor  "
            f"peak {numbers['peak_mib']:8.1f} MiB"
        )
    process = resident("VmHWM") / MEBIBYTE
    dense = options.images * options.labels / MEBIBYTE
    print(f"peak of the whole process {process:.0f} MiB; dense labels would take {dense:.0f} MiB")

    if options.quick:
        return
    result = {
        "command": command(),
        "images": options.images,
        "labels": options.labels,
        "known": table.known,
        "repeats": options.repeats,
        "seconds_to_make_table": round(built, 1),
        "settings": measured,
        "process_peak_mib": round(process),
        "dense_mib": round(dense),
        "machine": {
            "cores": os.cpu_count(),
            "architecture": platform.machine(),
            "system": platform.system(),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
    }
    keep(RESULTS, f"{options.images} images, {options.labels} labels", result)


if __name__ == "__main__":
    main()
