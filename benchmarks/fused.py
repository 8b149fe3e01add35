"""How close do the fused losses come to the time that moving their bytes takes?

What enters: logits and labels that are already on the device, some labels unknown. What leaves,
each as the median of several rounds in which all variants take turns, each beside those that it is
compared with, so that a noisy machine is noisy for all of them: the time of value and gradient
together,

    floor   in units of the bytes that must be moved over the bandwidth of a copy, measured here.
            Each table counts once, and once more where a number of the whole batch or image must be
            known before a gradient can be written (labels for α and β, beliefs for the attention)
    eager   in units of the same loss as it is usually written, operation by operation
    bce     in units of PyTorch's cross-entropy

On a GPU the floor is compared with what the GPU itself takes: a recorded graph of the same work is
replayed, so that Python does not keep it waiting. All other times are those that a caller sees.

Before anything is measured all variants are compared with the plain losses. A line each on the
terminal, and benchmarks/results/fused.json, with an entry for each device.

    python benchmarks/fused.py
    python benchmarks/fused.py --quick          a few seconds, nothing is written
"""

import argparse
import math
import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ceilings import bandwidth, timed
from kept import command, keep
from partly import losses
from partly.losses import fused

RESULTS = Path(__file__).parent / "results" / "fused.json"
SHAPES = ((256, 80), (2048, 1000))
LARGE = (2048, 65_536)  # on a GPU
QUICK = ((16, 80), (64, 500))
FOCUS = 0.25
CLIP, GAMMA = 0.05, 4.0
TURN = 0.02  # seconds, before another variant takes its turn


class Data(NamedTuple):
    logits: Tensor
    labels: Tensor
    targets: Tensor  # labels as the usual losses take them: 1.0 positive, else 0.0
    known: Tensor  # 1.0 where a label is known
    pseudo: Tensor
    teacher: Tensor
    chance: Tensor  # c₊ of each label


class Variant(NamedTuple):
    """compute: data -> loss. size: bytes an entry. eager: the variant that it is compared with."""

    compute: Callable[[Data], Tensor]
    size: int
    eager: str = ""


def make_data(shape: tuple[int, int], device: str) -> Data:
    """A third of the labels known, 3 % of all positive."""
    generator = torch.Generator(device).manual_seed(0)

    def uniform(*size: int) -> Tensor:
        return torch.rand(size or shape, generator=generator, device=device)

    positive, known = uniform() < 0.03, uniform() < 0.33
    labels = torch.where(known, positive.to(torch.int8), -1)
    return Data(
        logits=(8 * uniform() - 6).requires_grad_(),
        labels=labels,
        targets=(labels == 1).float(),
        known=known.float(),
        pseudo=uniform().half(),
        teacher=8 * uniform() - 6,
        chance=0.5 * uniform(shape[1]),
    )


def eager_bce(data: Data) -> Tensor:
    """Cross-entropy as PyTorch has it, unknown entries masked."""
    return binary_cross_entropy_with_logits(data.logits, data.targets, weight=data.known)


def eager_asl(data: Data, smallest: float = 1e-8) -> Tensor:
    """The asymmetric loss as its paper writes it, one operation after another: probabilities of
    both sides, the negative one shifted and cut off, logarithms, and a focusing weight without a
    gradient."""
    targets, opposite = data.targets, 1 - data.targets
    positive = torch.sigmoid(data.logits)
    negative = (1 - positive + CLIP).clamp(max=1)
    entropy = targets * torch.log(positive.clamp(min=smallest))
    entropy = entropy + opposite * torch.log(negative.clamp(min=smallest))
    with torch.no_grad():
        right = positive * targets + negative * opposite
        exponent = 0 * targets + GAMMA * opposite
        weight = torch.pow(1 - right, exponent)
    return -(entropy * weight).mean()


def make_variants(backend: str, compiled: bool) -> dict[str, Variant]:
    """Every loss, as it is usually written and fused. 4 bytes a logit or gradient, 1 a label, 2 a
    pseudo-label."""

    def paper(backend: str) -> Callable[[Data], Tensor]:
        settings: dict[str, Any] = {"epoch": 2, "epochs": 9, "store": "float16"}
        return lambda data: fused.paper_loss(
            data.logits, data.labels, data.pseudo, **settings, backend=backend
        )[0]

    def partly(backend: str, taught: bool = False, **settings: Any) -> Callable[[Data], Tensor]:
        return lambda data: fused.partly(
            data.logits,
            data.labels,
            c_positive=data.chance,
            c_negative=0.0,
            teacher=data.teacher if taught else None,
            **settings,
            backend=backend,
        )[0]

    def bce(data: Data) -> Tensor:
        return fused.bce(data.logits, data.labels, backend=backend)

    def asl(data: Data) -> Tensor:
        return fused.asl(data.logits, data.labels, backend=backend)

    attentive = {"focus": FOCUS, "store": "float16"}
    found = {
        "eager bce": Variant(eager_bce, 16),
        "plain bce": Variant(lambda data: losses.bce(data.logits, data.labels), 9, "eager bce"),
        "fused bce": Variant(bce, 9, "eager bce"),
        "eager asl": Variant(eager_asl, 12),
        "plain asl": Variant(lambda data: losses.asl(data.logits, data.labels), 9, "eager asl"),
        "fused asl": Variant(asl, 9, "eager asl"),
        "plain paper": Variant(paper("plain"), 14),
        "fused paper": Variant(paper(backend), 14, "plain paper"),
        "plain partly": Variant(partly("plain", store=None), 9),
        "fused partly": Variant(partly(backend, store=None), 9, "plain partly"),
        "plain partly, focus": Variant(partly("plain", **attentive), 15),
        "fused partly, focus": Variant(partly(backend, **attentive), 15, "plain partly, focus"),
        "plain partly, teacher": Variant(partly("plain", True, **attentive), 19),
        "fused partly, teacher": Variant(
            partly(backend, True, **attentive), 19, "plain partly, teacher"
        ),
    }
    if compiled:
        function = torch.compile(eager_bce, dynamic=False)
        found["compiled bce"] = Variant(function, 16, "eager bce")
    return found


def value_and_gradient(variant: Variant, data: Data) -> tuple[Tensor, Tensor]:
    loss = variant.compute(data)
    return loss, torch.autograd.grad(loss, data.logits)[0]


def compare(variants: dict[str, Variant], shape: tuple[int, int], device: str) -> None:
    """Nothing that is wrong is measured."""
    data = make_data(shape, device)
    for name, variant in variants.items():
        if not variant.eager:
            continue
        loss, gradient = value_and_gradient(variant, data)
        expected, slope = value_and_gradient(variants[variant.eager], data)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6, msg=f"{name}: {{}}".format)
        largest = slope.abs().max().item()
        torch.testing.assert_close(
            gradient, slope, rtol=1e-4, atol=1e-5 * largest, msg=f"{name}: {{}}".format
        )


def measure(
    variants: dict[str, Variant], shape: tuple[int, int], device: str, rounds: int, speed: float
) -> dict[str, dict[str, float]]:
    """Milliseconds of each; its ratio to the floor, and to the usual way and cross-entropy, which
    take a turn right after it, or before: what a machine does beside changes all the time."""
    data = make_data(shape, device)
    entries = data.logits.numel()
    works = {
        name: lambda variant=variant: value_and_gradient(variant, data)
        for name, variant in variants.items()
    }
    steps = {}
    for name, work in works.items():
        timed(work, 3, device)
        steps[name] = max(3, min(500, int(TURN / timed(work, 2, device))))

    def take_turn(name: str) -> float:
        works[name]()  # the first step after another's is slower
        return timed(works[name], steps[name], device)

    seconds: dict[str, list[float]] = {name: [] for name in variants}
    ratios: dict[str, dict[str, list[float]]] = {name: {} for name in variants}
    for number in range(rounds):
        for name, variant in variants.items():
            peers = {"eager": variant.eager or name, "bce": "eager bce"}
            turns = dict.fromkeys([name, *peers.values()])
            taken = {each: take_turn(each) for each in list(turns)[:: -1 if number % 2 else 1]}
            seconds[name].append(taken[name])
            for kind, peer in peers.items():
                if peer != name:
                    ratios[name].setdefault(kind, []).append(taken[name] / taken[peer])
    found = {}
    for name, variant in variants.items():
        taken = statistics.median(seconds[name])
        figures = {
            "milliseconds": round(1000 * taken, 4),
            "floor": round(taken / (variant.size * entries / speed), 2),
            **{kind: round(statistics.median(those), 3) for kind, those in ratios[name].items()},
        }
        if device == "cuda":
            alone = recorded(variant, data, rounds)
            figures["device_milliseconds"] = round(1000 * alone, 4)
            figures["floor"] = round(alone / (variant.size * entries / speed), 2)
        found[name] = figures
    return found


def recorded(variant: Variant, data: Data, rounds: int) -> float:
    """Seconds that a GPU takes for value and gradient, when nobody keeps it waiting."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            value_and_gradient(variant, data)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value_and_gradient(variant, data)
    return statistics.median(timed(graph.replay, 20, "cuda") for _ in range(rounds))


def show(shape: tuple[int, int], measured: dict[str, dict[str, float]]) -> None:
    print(f"{shape[0]} × {shape[1]:,}: {'':24} ms, ms of the device alone, × floor, × eager, × bce")
    for name, figures in measured.items():
        ratios = " ".join(f"{figures.get(kind, math.nan):8.3f}" for kind in ("eager", "bce"))
        alone = figures.get("device_milliseconds", figures["milliseconds"])
        times = f"{figures['milliseconds']:8.3f} {alone:8.3f} {figures['floor']:8.2f}"
        print(f"  {name:30} {times} {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backend", choices=["triton", "compiled", "plain"])
    parser.add_argument("--rounds", type=int, help="15 on a GPU, 9 on a CPU")
    parser.add_argument("--quick", action="store_true", help="small shapes; nothing is written")
    options = parser.parse_args()
    device = options.device
    backend = options.backend or ("triton" if device == "cuda" else "compiled")
    shapes = QUICK if options.quick else SHAPES + ((LARGE,) if device == "cuda" else ())
    rounds = 2 if options.quick else options.rounds or (15 if device == "cuda" else 9)
    variants = make_variants(backend, compiled=backend != "plain")
    for shape in ((33, 70), (70, 1001), *shapes[2:]):
        compare(variants, shape, device)
    speed = bandwidth(device, rounds)
    print(f"{backend}, copy {speed / 1e9:,.0f} GB/s")
    found: dict[str, Any] = {}
    for shape in shapes:
        found[f"{shape[0]}x{shape[1]}"] = measured = measure(variants, shape, device, rounds, speed)
        show(shape, measured)
    if options.quick:
        return
    machine = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    entry = {
        "command": command(),
        "copy_gigabytes_a_second": round(speed / 1e9, 1),
        "shapes": found,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__.split("+")[0],
        "rounds": rounds,
    }
    keep(RESULTS, f"{machine}, {backend}", entry)


if __name__ == "__main__":
    main()
