"""Is the loader what limits training? Images a second of the loader, of the step, and of both.

What enters: a number of photographs of 640 × 480 pixels, made here, with about as many bytes as
those of COCO. What leaves: images/s at 448 px of

    peer        a plain loop: PIL in a DataLoader's workers, ToTensor, flip, Normalize, collate
    cpu, gpu    partly.data.ImageInputs, decoding on the CPU or on the GPU
    step        `take_step` on a batch that is already on the device: ResNet-50, bfloat16 on a GPU
    step + …    training with each of the three

and their ratios. A line each on the terminal, and benchmarks/results/loading.json, in which every
device has its own entry.

    python benchmarks/loading.py
    python benchmarks/loading.py --images 3072 --workers 12 --gpu-workers 6 --batch-size 64
    python benchmarks/loading.py --quick        half a minute, nothing is written
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from kept import keep
from partly.config import Config
from partly.data import ImageInputs, Look, split_into_chunks
from partly.labels import LabelTable
from partly.texts import Texts
from partly.training import start, take_step

SIZE, LABELS = 448, 80
LONGEST = 100_000  # images of one measurement
WARM = {"cuda": 12, "cpu": 1}  # batches that do not count
RESULTS = Path(__file__).parent / "results" / "loading.json"


def write_photograph(folder: Path, number: int) -> str:
    """Soft shapes and fine grain: about 0.4 bytes a pixel, as in a photograph of good quality."""
    generator = np.random.default_rng(number)
    shapes = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    soft = np.asarray(shapes.resize((640, 480), Image.Resampling.BICUBIC), dtype=np.int16)
    grain = generator.normal(0, 9, (480, 640, 1)).astype(np.int16)
    path = folder / f"{number:06d}.jpg"
    Image.fromarray((soft + grain).clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return str(path)


class PeerDataset(torch.utils.data.Dataset):
    """What the peers' loaders do: a list of paths, a tensor of floats from each worker."""

    def __init__(self, paths: list[str]) -> None:
        from torchvision import transforms

        self.paths = paths
        self.transform = transforms.Compose(
            [
                transforms.Resize((SIZE, SIZE)),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[int, torch.Tensor]:
        with Image.open(self.paths[row]) as image:
            return row, self.transform(image.convert("RGB"))


def endless(count: int) -> list[int]:
    """More images than any measurement takes, so that workers start once."""
    generator = np.random.default_rng(0)
    return [int(row) for _ in range(-(-LONGEST // count)) for row in generator.permutation(count)]


def peer_batches(
    paths: list[str], batch_size: int, workers: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    loader = torch.utils.data.DataLoader(
        PeerDataset(paths), batch_size, sampler=endless(len(paths)), num_workers=workers,
        pin_memory=device.type == "cuda",
    )  # fmt: skip
    for rows, inputs in loader:
        yield rows, inputs.to(device, non_blocking=True)


def our_batches(
    paths: list[str], batch_size: int, workers: int, device: torch.device, decode: str
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    inputs = ImageInputs(Texts.of(paths), device, Look(SIZE, decode=decode), workers=workers)
    if inputs.explanation:
        raise SystemExit(inputs.explanation)
    chunks = split_into_chunks(np.array(endless(len(paths))), batch_size)
    return inputs.batches(chunks, 1)


def rate(batches: Iterable[Any], device: torch.device, limit: float, work: Any = None) -> float:
    """Images a second, for `limit` seconds after the first batches."""
    count, began = 0, 0.0
    for number, (rows, inputs) in enumerate(batches):
        if work is not None:
            work(rows, inputs)
        if number == WARM[device.type]:
            _wait(device)
            count, began = 0, time.perf_counter()
        elif number > WARM[device.type]:
            count += len(rows)
            if time.perf_counter() - began > limit:
                break
    _wait(device)
    return count / (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(
    paths: list[str], options: argparse.Namespace, device: torch.device
) -> dict[str, float]:
    labels = np.random.default_rng(0).integers(0, 2, (len(paths), LABELS))
    table = LabelTable.from_dense(labels, paths=paths)
    config = Config(
        method="ign", backbone=options.backbone, weights="none", image_size=SIZE,
        batch_size=options.batch_size, device=str(device),
    )  # fmt: skip
    state = start(table, config.complete(table))
    state.model.train()
    step = partial(take_step, state)
    loaders = {
        "peer": partial(peer_batches, paths, options.batch_size, options.workers, device),
        "cpu": partial(our_batches, paths, options.batch_size, options.workers, device, "cpu"),
    }
    if device.type == "cuda":
        loaders["gpu"] = partial(
            our_batches, paths, options.batch_size, options.gpu_workers, device, "gpu"
        )
    rows, inputs = next(iter(loaders["cpu"]()))
    resident = ((rows, inputs) for _ in range(10**6))
    found = {"step": rate(resident, device, options.seconds, step)}
    for name, batches in loaders.items():
        found[name] = rate(batches(), device, options.seconds)
        found[f"step + {name}"] = rate(batches(), device, options.seconds, step)
        print({key: round(value, 1) for key, value in found.items()}, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--gpu-workers", type=int, default=4, help="that only read the bytes")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="small; nothing is written")
    options = parser.parse_args()
    if options.quick:
        options.images, options.batch_size, options.seconds = 32, 4, 0.5
        options.workers, options.backbone = min(options.workers, 2), "small:32"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        with ProcessPoolExecutor() as pool:
            write = partial(write_photograph, Path(folder))
            paths = list(pool.map(write, range(options.images), chunksize=16))
        bytes_each = sum(os.path.getsize(path) for path in paths) / len(paths)
        found = measure(paths, options, device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    ratios = {
        "loader / peer": found["cpu"] / found["peer"],
        "loader / step": max(found["cpu"], found.get("gpu", 0)) / found["step"],
        "both / step": max(found["step + cpu"], found.get("step + gpu", 0)) / found["step"],
        "both / both with peer": found["step + cpu"] / found["step + peer"],
    }
    entry = {
        "command": f"python benchmarks/loading.py --images {options.images} "
        f"--workers {options.workers} --gpu-workers {options.gpu_workers} "
        f"--batch-size {options.batch_size} "
        f"--seconds {options.seconds:g}",
        "device": name,
        "cores": len(os.sched_getaffinity(0)),
        "backbone": options.backbone,
        "bytes_an_image": round(bytes_each),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "images_a_second": {key: round(value, 1) for key, value in found.items()},
        "ratios": {key: round(value, 2) for key, value in ratios.items()},
    }
    print(json.dumps(entry, indent=2))
    if options.quick:
        return
    keep(options.out, name, entry)


if __name__ == "__main__":
    main()
