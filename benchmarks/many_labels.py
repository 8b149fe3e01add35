"""What does a sampled head save where labels are very many, and what does it cost in accuracy?

What enters: drawn features of images with a few positives each, out of L labels whose frequency
falls as 1/rank. What leaves, for the full head and for shares q of it: the time of a step, the most
memory that a training took (allocated on a GPU; on a CPU resident, beyond what was before), and
precision among the best k of all labels on images that were not trained on, after the same number
of steps, with several seeds. Beside them a step as it is usually written: a linear layer,
cross-entropy, Adam, all of PyTorch, in float32.

`floor` is how many times as long a step takes as what it cannot do without, at the speed of a copy
and of a matrix product, both measured here. It is the larger of two times: of the bytes (features
are read; weights and both averages of the gradient, of each label that is computed, are read and
written) and of the operations (two products, forward and for the gradient of the weights).

    python benchmarks/many_labels.py                      5,000 labels on a CPU; on a GPU 100,000,
                                                          and 1,000,000 x 512 features
    python benchmarks/many_labels.py --quick              a few seconds, nothing is written

A step's time is that of a whole epoch over its steps: shuffling and drawing are in it.
"""

import argparse
import itertools
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import ceilings
import memory
from kept import command, keep
from partly import ranking, sampled, starting, training
from partly.config import Config
from partly.labels import LabelTable
from partly.sampled import top_labels

RESULTS = Path(__file__).parent / "results" / "many_labels.json"
POSITIVES = 5  # of an image, on average
K = 5
NOISE = 2.0  # beside directions of length 1
WARM, USUAL = 10, 30  # steps


def draw(images: int, labels: int, features: int, seed: int, device: str) -> LabelTable:
    """Each label has a direction; an image is the sum of its labels' directions, and noise."""
    fixed = torch.Generator(device).manual_seed(7)
    generator = torch.Generator(device).manual_seed(seed)
    directions = torch.randn(labels, features, generator=fixed, device=device) / features**0.5
    frequency = 1 / (torch.arange(labels, device=device) + 20.0)
    count = torch.poisson(
        torch.full((images,), POSITIVES - 1.0, device=device), generator=generator
    ).long()
    rows = torch.repeat_interleave(torch.arange(images, device=device), count + 1)
    chosen = torch.multinomial(frequency, len(rows), replacement=True, generator=generator)
    cells = torch.unique(rows * labels + chosen)
    rows, chosen = cells // labels, cells % labels
    seen = torch.randn(images, features, generator=generator, device=device)
    seen *= NOISE / features**0.5
    for part in torch.arange(len(rows), device=device).split(1 << 20):
        seen.index_add_(0, rows[part], directions[chosen[part]])
    return LabelTable.from_entries(
        rows.cpu().numpy(),
        chosen.cpu().numpy(),
        np.ones(len(rows), dtype=np.int8),
        ids=np.arange(images),
        names=[str(label) for label in range(labels)],
        features=seen.cpu().numpy(),
    )


def run(
    table: LabelTable, test: LabelTable, q: float, batch: int, epochs: int, seed: int, **more: Any
) -> dict[str, float]:
    """Train with a share q of the labels, or all of them; time, memory, precision."""
    config = Config(
        options={"q": q, "teacher": "self", "focus": 0.0},
        head="full" if q == 1 else "sampled",
        head_decay=0.0,
        batch_size=batch,
        epochs=epochs,
        expected_positives=1.001 * table.known / len(table),
        hold_out=0.0,
        seed=seed,
        **more,
    ).complete(table)
    device = config.device
    before = forget_peak(device)
    state = starting.start(table, config)
    seconds, labels = [], []
    while state.epoch <= epochs:
        began = time.perf_counter()
        first = state.step
        for rows, inputs in state.batches():
            if state.step == min(WARM, state.steps_per_epoch // 2):
                ceilings.wait(device)
                began, first = time.perf_counter(), state.step
            if state.sampled is not None:
                labels.append(state.sampled.ahead[state.step][1].labels)
            training.take_step(state, rows, inputs)
        ceilings.wait(device)
        seconds.append((time.perf_counter() - began) / (state.step - first))
        state.epoch += 1
    found = {
        "milliseconds": round(1000 * statistics.median(seconds), 3),
        "labels_a_step": round(statistics.mean(labels)) if labels else len(table.names),
        "steps": state.step,
    }
    found["gigabytes"] = gigabytes(device, before)
    found |= precision(state, table, test)
    if state.on_gpu:
        found["device_milliseconds"] = device_time(state)  # which trains on
    return found


def forget_peak(device: str) -> int:
    """From now on a new peak of memory counts. What there is now, if that is not part of it."""
    if device == "cpu":
        return memory.forget_peak()
    torch.cuda.reset_peak_memory_stats()
    return 0


def gigabytes(device: str, before: int) -> float:
    """The peak."""
    most = memory.resident("VmHWM") if device == "cpu" else torch.cuda.max_memory_allocated()
    return round((most - before) / 1e9, 3)


def device_time(state: starting.State, steps: int = 10) -> float:
    """Milliseconds of a step that the GPU works, whatever Python takes to tell it; without the
    drawing ahead of labels, with which an epoch begins."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    state.epoch, state.step = state.config.epochs, state.step - state.steps_per_epoch
    every = state.batches()  # of the last epoch again
    for rows, inputs in itertools.islice(every, 2):
        training.take_step(state, rows, inputs)
    batches = zip(range(steps), every, strict=False)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _, (rows, inputs) in batches:
            training.take_step(state, rows, inputs)
        torch.cuda.synchronize()
    kernels = (e for e in profiled.key_averages() if e.device_type == DeviceType.CUDA)
    total = sum(e.self_device_time_total for e in kernels if not e.is_user_annotation)
    return round(total / 1000 / steps, 3)


def usual(table: LabelTable, batch: int, device: str) -> dict[str, float]:
    """Milliseconds of a step of what PyTorch has, the features and labels being on the device, and
    gigabytes."""
    assert table.features is not None
    before = forget_peak(device)
    seen = torch.from_numpy(table.features[:batch]).to(device)
    targets = torch.from_numpy((table.dense(np.arange(batch)) == 1).astype(np.float32)).to(device)
    layer = torch.nn.Linear(seen.shape[1], len(table.names), device=device)
    optimiser = torch.optim.Adam(layer.parameters())
    for step in range(WARM + USUAL):
        if step == WARM:
            ceilings.wait(device)
            began = time.perf_counter()
        optimiser.zero_grad()
        binary_cross_entropy_with_logits(layer(seen), targets).backward()
        optimiser.step()
    ceilings.wait(device)
    return {
        "milliseconds": round(1000 * (time.perf_counter() - began) / USUAL, 3),
        "gigabytes": gigabytes(device, before),
    }


def floor(batch: int, labels: float, features: int, bandwidth: float, arithmetic: float) -> float:
    """Milliseconds of the least that a step does, of so many labels."""
    moved = 4 * batch * features + 3 * 2 * 4 * labels * features
    done = 2 * 2 * batch * labels * features
    return 1000 * max(moved / bandwidth, done / arithmetic)


@torch.inference_mode()
def precision(state: starting.State, table: LabelTable, test: LabelTable) -> dict[str, float]:
    """P@1, P@5 and the latter with rare labels counted for more, on the test images."""
    assert test.features is not None
    state.model.eval()
    head, tops = state.model.head, []
    for part in np.array_split(test.features, max(1, len(test) // 2048)):
        seen = state.model.backbone(torch.from_numpy(part).to(state.device))
        tops.append(top_labels(seen, head, K)[0].cpu().numpy())
    top, positives = np.concatenate(tops), ranking.entries(test, 1)
    plain = ranking.precision_at_k(top, positives)
    propensities = ranking.label_propensities(table.counts_by_label().positive, len(table))
    fair = ranking.propensity_scored_precision_at_k(top, positives, propensities)
    figures = {"P@1": plain[0], "P@5": plain[-1], "PSP@5": fair[-1]}
    return {name: round(100 * float(value), 2) for name, value in figures.items()}


def show(name: str, found: dict[str, Any]) -> None:
    print(f"{name:32} " + "  ".join(f"{key} {value}" for key, value in found.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--labels", type=int)
    parser.add_argument("--features", type=int)
    parser.add_argument("--images", type=int)
    parser.add_argument("--batch", type=int, nargs="*")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--q", type=float, nargs="*", help="1 0.01 on a GPU, 1 0.1 0.01 on a CPU")
    parser.add_argument(
        "--momentum", type=float, nargs="*", help="β₁ of the sampled head, beside ours; GPU: 0 0.9"
    )
    parser.add_argument("--quick", action="store_true", help="small; nothing is written")
    options = parser.parse_args()
    gpu, quick = options.device == "cuda", options.quick
    labels = options.labels or (100_000 if gpu else 600 if quick else 5_000)
    features = options.features or (512 if gpu else 64)
    images = options.images or (200_000 if gpu else 2_000 if quick else 20_000)
    batches = options.batch or ([1024, 4096] if gpu else [256])
    epochs, seeds = (2, 1) if quick else (options.epochs, options.seeds)
    shares, momenta = options.q, options.momentum
    if shares is None:
        shares = [1.0, 0.01] if gpu else [1.0, 0.1, 0.01]
    if momenta is None:
        momenta = [0.0, 0.9] if gpu and not quick else []
    table = draw(images, labels, features, 1, options.device)
    test = draw(images // 20, labels, features, 2, options.device)
    sizes = {"labels": labels, "features": features, "images": images, "positives": table.known}
    print(f"{labels:,} labels, {images:,} images of {features} features, {table.known:,} positives")
    speeds = ceilings.bandwidth(options.device), ceilings.arithmetic(options.device)
    found: dict[str, Any] = {}

    def note(name: str, batch: int, one: dict[str, float]) -> None:
        least = floor(batch, one.get("labels_a_step", len(table.names)), features, *speeds)
        found[name] = one | {"floor": round(one["milliseconds"] / least, 2)}
        show(name, found[name])

    for batch in batches:
        note(f"batch {batch}, usual", batch, usual(table, batch, options.device))
        sampled_ones = [(q, beta) for q in shares if q < 1 for beta in momenta]
        for q, beta in [*((q, None) for q in shares), *sampled_ones]:
            ours = sampled.BETAS
            sampled.BETAS = ours if beta is None else (beta, ours[1])
            every = [
                run(table, test, q, batch, epochs, s, device=options.device) for s in range(seeds)
            ]
            sampled.BETAS = ours
            name = f"batch {batch}, q {q:g}" + ("" if beta is None else f", β₁ {beta:g}")
            note(name, batch, summarise(every))
    if gpu and not quick and options.labels is None:
        table = draw(images, 1_000_000, 512, 1, options.device)
        test = draw(images // 20, 1_000_000, 512, 2, options.device)
        one = run(table, test, 0.01, 1024, 2, 0, device=options.device)
        note("1,000,000 labels, q 0.01, 2 epochs of seed 0", 1024, one)
    if quick:
        return
    machine = torch.cuda.get_device_name() if gpu else platform.machine()
    entry = {
        "command": command(),
        **sizes,
        "epochs": epochs,
        "seeds": seeds,
        "cores": os.cpu_count(),
        "torch": torch.__version__.split("+")[0],
        "copy_gigabytes_a_second": round(speeds[0] / 1e9, 1),
        "product_gigaflops": round(speeds[1] / 1e9),
        "found": found,
    }
    keep(RESULTS, f"{machine}, {labels:,} labels", entry)


def summarise(every: list[dict[str, float]]) -> dict[str, float]:
    """The mean over seeds, and the spread of what depends on them."""
    means = {name: round(statistics.mean(one[name] for one in every), 3) for name in every[0]}
    if len(every) > 1:
        spread = statistics.stdev(one["P@5"] for one in every)
        means["P@5 ±"] = round(spread, 3)
    return means


if __name__ == "__main__":
    main()
