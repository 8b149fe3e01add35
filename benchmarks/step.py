"""What does a step of `partly` cost beside one of plain cross-entropy? And what does q save?

What enters: inputs that are already on the device. What leaves, each as the median of several
rounds in which all variants take turns, so that a noisy machine is noisy for all of them:

    step    time of `take_step` with a backbone, in units of bce's: partly as it is by default on
            pretrained weights, where the averaged model is its teacher, and on random ones; taught
            by itself, with averaged weights and without; and how often a step makes the host wait
            for the GPU, by the profiler, less what that waits by itself
    q       the same with a linear layer on 256 features and 80, 374, 5,000, 100,000 labels, partly
            with a share q of the unknown entries, in units of partly with all of them

A line each on the terminal, and benchmarks/results/step.json, with an entry for each device.

    python benchmarks/step.py                           ResNet-50, or small:32 on a CPU
    python benchmarks/step.py --backbone resnet50 --size 448 --batch-size 64 --no-compile
    python benchmarks/step.py --labels                  nothing about q
    python benchmarks/step.py --quick                   some seconds, nothing is written
"""

import argparse
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kept import command, keep
from partly.config import Config
from partly.hiding import hide
from partly.labels import LabelTable
from partly.models import train_mode
from partly.training import State, start, take_step

RESULTS = Path(__file__).parent / "results" / "step.json"
LABELS = (80, 374, 5_000, 100_000)
FEATURES = 256
SELF = {"surprise": 0.0, "teacher": "self"}
PRETRAINED = {"surprise": 0.0, "teacher": "average"}
TRAINED = "batch norm trained"
VARIANTS: dict[str, dict[str, Any]] = {
    "bce": {"method": "bce"},
    "partly, as on pretrained weights": {"options": PRETRAINED},
    f"partly, as on pretrained weights, {TRAINED}": {"options": PRETRAINED, "batch_norm": "train"},
    "partly, as on random weights": {"batch_norm": "train"},
    "partly, teacher=self": {"options": SELF},
    f"partly, teacher=self, {TRAINED}": {"options": SELF, "batch_norm": "train"},
    "partly, teacher=self, ema=0": {"options": SELF, "ema": 0.0, "batch_norm": "train"},
}


def labels_of(images: int, labels: int) -> np.ndarray:
    """A table of which 60 % of the positives are known and no negative."""
    full = (np.random.default_rng(0).random((images, labels), np.float32) < 0.03).astype(np.int8)
    full[:, 0] = np.arange(images) % 2  # no label without a known positive
    return hide(full, "ppl", keep=0.6, seed=0)


def image_states(
    backbone: str, size: int, batch_size: int, device: str, compiled: bool
) -> dict[str, State]:
    """One training a variant, of the same network; its statistics count as pretrained."""
    labels = labels_of(batch_size, 80)
    table = LabelTable.from_dense(labels, paths=[f"{row}.jpg" for row in range(batch_size)])
    states = {}
    for name, choices in VARIANTS.items():
        if compiled and TRAINED in name:
            continue  # a minute each; they cost what the others do
        config = Config(
            backbone=backbone, weights="none", image_size=size, batch_size=batch_size,
            device=device, epochs=1000, compile=compiled, **choices,
        )  # fmt: skip
        states[name] = state = start(table, config.complete(table))
        state.origin = "weights that stand for pretrained ones"
        train_mode(state.model, keep_statistics=state.keeps_statistics)
    return states


def linear_states(labels: int, batch_size: int, device: str) -> dict[str, State]:
    """partly on features with several shares q."""
    features = np.random.default_rng(1).normal(size=(batch_size, FEATURES)).astype(np.float32)
    table = LabelTable.from_dense(labels_of(batch_size, labels), features=features)
    return {
        f"q={q}": start(
            table,
            Config(
                batch_size=batch_size, device=device, epochs=1000, options={"q": q}
            ).complete(table),
        )
        for q in (1.0, 0.5, 0.1)
    }  # fmt: skip


def measure(states: dict[str, State], inputs: torch.Tensor, rounds: int, steps: int) -> dict:
    """Seconds a step of each, and their ratio to the first."""
    rows = torch.arange(len(inputs))
    seconds: dict[str, list[float]] = {name: [] for name in states}
    for number in range(rounds + 1):
        for name, state in states.items():
            for _ in range(2):  # the first steps after another's are slower
                take_step(state, rows, inputs)
            _wait(state)
            began = time.perf_counter()
            for _ in range(steps):
                take_step(state, rows, inputs)
            _wait(state)
            if number:  # the first round warms up
                seconds[name].append((time.perf_counter() - began) / steps)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    first = next(iter(medians.values()))
    return {
        name: {
            "milliseconds": round(1000 * value, 3),
            "ratio": round(value / first, 3),
            "images_a_second": round(len(inputs) / value, 1),
        }
        for name, value in medians.items()
    }


def waits(state: State, inputs: torch.Tensor, steps: int = 5) -> int:
    """How often the host waits for the GPU in so many steps: the profiler itself does, once."""
    return counted_waits(state, inputs, steps) - counted_waits(state, inputs, 0)


def counted_waits(state: State, inputs: torch.Tensor, steps: int) -> int:
    """All waits that the profiler sees, those of its own too."""
    rows = torch.arange(len(inputs))
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    _wait(state)
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(steps):
            take_step(state, rows, inputs)
    names = [event.key for event in profile.key_averages() for _ in range(event.count)]
    waiting = ("Synchronize", "_local_scalar_dense", "aten::nonzero", "Memcpy DtoH")
    return sum(any(word in name for word in waiting) for name in names)


def _wait(state: State) -> None:
    if state.on_gpu:
        torch.cuda.synchronize(state.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", help="resnet50 on a GPU, small:32 on a CPU")
    parser.add_argument("--size", type=int, help="448 on a GPU, 48 on a CPU")
    parser.add_argument("--batch-size", type=int, help="128 on a GPU, 64 on a CPU")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--labels", type=int, nargs="*", default=LABELS)
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, help="the model; by default on a GPU"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="small; nothing is written")
    options = parser.parse_args()
    device, gpu = options.device, options.device != "cpu"
    small = options.quick or not gpu
    batch_size = options.batch_size or (64 if small else 128)
    compiled = not small if options.compile is None else options.compile
    backbone = options.backbone or ("small:32" if small else "resnet50")
    size = options.size or (48 if small else 448)
    if options.quick:
        options.rounds, options.steps, options.labels = 1, 2, LABELS[:2]
    states = image_states(backbone, size, batch_size, device, compiled)
    inputs = torch.randn(batch_size, 3, size, size, device=device)
    if gpu:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    found: dict[str, Any] = {"step": measure(states, inputs, options.rounds, options.steps)}
    show("step", found["step"])
    if gpu:
        for name, state in states.items():
            found["step"][name]["host_waits_in_5_steps"] = waits(state, inputs)
            print(f"{name}: the host waits {found['step'][name]['host_waits_in_5_steps']} times")
    del states
    found["q"] = {}
    for labels in options.labels:
        seen = torch.randn(batch_size, FEATURES, device=device)
        found["q"][labels] = measure(
            linear_states(labels, batch_size, device), seen, options.rounds, options.steps
        )
        show(f"{labels:,} labels", found["q"][labels])
    if options.quick:
        return
    machine = torch.cuda.get_device_name() if gpu else platform.machine()
    how = ", compiled" if compiled else ""
    entry = found | {
        "command": command(),
        "cores": os.cpu_count(),
        "torch": torch.__version__.split("+")[0],
        "rounds": options.rounds,
        "steps": options.steps,
    }
    keep(RESULTS, f"{machine}, {backbone}, {size} px, batch {batch_size}{how}", entry)


def show(title: str, measured: dict[str, Any]) -> None:
    for name, figures in measured.items():
        times = f"{figures['milliseconds']:9.2f} ms  {figures['ratio']:.3f}"
        print(f"{title}: {name:45} {times} {figures['images_a_second']:10,.0f} a second")


if __name__ == "__main__":
    main()
