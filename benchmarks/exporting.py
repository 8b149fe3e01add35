"""How near does an exported model come to `partly predict`, and what do other decoders change?

What enters: a finished run on images, and a folder of images. The run is exported as ONNX and asked
about each image, decoded and resized as the snippet of docs/export.md does, and in other ways. What
leaves: by how much probabilities differ, as a table, and benchmarks/results/exporting.json.

    python benchmarks/exporting.py RUN IMAGES
    python benchmarks/exporting.py RUN IMAGES --images 20
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from PIL.Image import Resampling

from partly import LabelTable, exporting, runs
from partly.checkpoint import write_json
from partly.experiments import machine
from partly.exporting import onnx_file
from partly.images import SUFFIXES

RESULTS = Path(__file__).parent / "results" / "exporting.json"
TOGETHER = 50  # images


def decoded(path: Path, draft: int) -> Image.Image:
    """Upright and RGB. draft: the size a JPEG may be decoded for; 0 decodes all of it."""
    picture = Image.open(path)
    if draft:
        picture.draft("RGB", (draft, draft))
    return ImageOps.exif_transpose(picture).convert("RGB")


def resized(how: Resampling, size: int, draft: bool = True) -> Callable[[Path], np.ndarray]:
    """A way from a file to uint8 [3, S, S], with Pillow."""
    return lambda path: np.asarray(decoded(path, size * draft).resize((size, size), how)).transpose(
        2, 0, 1
    )


def without_antialiasing(size: int) -> Callable[[Path], np.ndarray]:
    """Bilinear between the four nearest pixels, as OpenCV and GPUs do it."""

    def make(path: Path) -> np.ndarray:
        pixels = torch.from_numpy(np.array(decoded(path, size))).permute(2, 0, 1)[None].float()
        small = torch.nn.functional.interpolate(pixels, (size, size), mode="bilinear")
        return small[0].round().clamp(0, 255).byte().numpy()

    return make


def ask(file: Path, paths: list[Path], make: Callable[[Path], np.ndarray]) -> np.ndarray:
    """The probabilities of these images."""
    blocks = [paths[first : first + TOGETHER] for first in range(0, len(paths), TOGETHER)]
    batches = (np.stack([make(path) for path in block]) for block in blocks)
    return np.concatenate([onnx_file.answers(file, batch)[0] for batch in batches])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    paths = sorted(p for p in arguments.folder.rglob("*") if p.suffix.lower() in SUFFIXES)
    paths = paths[: arguments.images]
    predictor = runs.load(arguments.run, "cpu")
    size = predictor.config["image_size"]
    texts = [str(path) for path in paths]
    table = LabelTable.without_labels(predictor.names, ids=texts, paths=np.array(texts))
    ways = {
        "as the snippet": resized(Resampling.BILINEAR, size),
        "a JPEG decoded whole": resized(Resampling.BILINEAR, size, draft=False),
        "bicubic": resized(Resampling.BICUBIC, size),
        "Lanczos": resized(Resampling.LANCZOS, size),
        "bilinear without antialiasing": without_antialiasing(size),
        "nearest pixel": resized(Resampling.NEAREST, size),
    }
    expected, found = predictor.probabilities(table), {}
    print("| | mean | 99 of 100 are below | largest |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        file = exporting.export_run(arguments.run, "onnx", Path(folder) / "a.onnx", say=str)
        for name, make in ways.items():
            away = np.abs(ask(file, paths, make) - expected)
            numbers = (away.mean(), np.quantile(away, 0.99), away.max())
            found[name] = [float(f"{number:.2g}") for number in numbers]
            print(f"| {name} | " + " | ".join(f"{number:.2g}" for number in numbers) + " |")
    described = {name: predictor.config[name] for name in ("backbone", "head_only", "image_size")}
    stored = {"images": len(paths), **described, "differences": found, "machine": machine()}
    write_json(arguments.out, stored)


if __name__ == "__main__":
    main()
