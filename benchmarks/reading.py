"""How long it takes, and how much memory, to read labels at the size of Open Images.

What enters: sizes. What leaves: three comparisons, each side in a process of its own, a few lines
each on the terminal, and benchmarks/results/reading.json.

large    A label file of Open Images' size, sorted by image and shuffled: `partly.read` beside a
         floor, plain `pyarrow.csv.read_csv` of the same file; and the same labels as a manifest in
         long form.
peer     A file small enough for mlcpl to read in reasonable time: `partly.read` beside mlcpl's
         reader. `pip install mlcpl` gets it; without it this part is left out.
loading  Memory of a process and its 4 loader workers over 3 epochs, with the paths and labels of
         as many images as Open Images has: a mapped table and `partly.data.ImageInputs` beside a
         plain DataLoader over a Python list of (path, labels). Shared pages are counted once (PSS).

    python benchmarks/reading.py
    python benchmarks/reading.py --quick        a minute, nothing is written
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as arrow
from pyarrow import csv

from memory import resident

RESULTS = Path(__file__).parent / "results" / "reading.json"
GIBIBYTE = 2**30
DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
PARTS = ("large", "peer", "loading")
HEADER = ("ImageID", "Source", "LabelName", "Confidence")
EPOCHS, BATCH, SIDE = 3, 64, 32
MODULI = (600, 7, 11)  # an image's number modulo these: its positive labels


class Sizes(NamedTuple):
    """How much of everything. Each image has rows / images labels."""

    images: int = 5_650_000
    rows: int = 28_250_000
    labels: int = 600
    peer_rows: int = 1_000_000
    pictures: int = 2_000
    batches: int = 1_000  # of an epoch: enough to touch images all over the table


SMALL = Sizes(images=20_000, rows=100_000, peer_rows=20_000, pictures=50, batches=20)


# Files to read


def texts(characters: np.ndarray) -> arrow.Array:
    """uint8 [N, width] -> N texts of that width."""
    count, width = characters.shape
    offsets = np.arange(count + 1, dtype=np.int32) * width
    buffers = [None, arrow.py_buffer(offsets), arrow.py_buffer(np.ascontiguousarray(characters))]
    return arrow.Array.from_buffers(arrow.string(), count, buffers)


def image_ids(count: int) -> arrow.Array:
    """Distinct ids of 16 hexadecimal digits, sorted."""
    gaps = np.random.default_rng(0).integers(1, 2**63 // count, count, dtype=np.int64)
    numbers = np.cumsum(gaps)
    places = np.arange(60, -1, -4, dtype=np.int64)
    return texts(DIGITS[np.concatenate([numbers[:, None] >> p & 15 for p in places], axis=1)])


def label_names(count: int) -> list[str]:
    """Names such as /m/0abc12."""
    return [f"/m/0{number * 7919 % 60_466_176:05x}" for number in range(1, count + 1)]


def write_large(folder: Path, sizes: Sizes, shuffled: bool) -> Path:
    """The files of V4 and later: class descriptions, and the labels of one part. -> label file"""
    folder.mkdir()
    names = label_names(sizes.labels)
    lines = [f"{name},Thing {number}\n" for number, name in enumerate(names)]
    (folder / "class-descriptions-boxable.csv").write_text("".join(lines))
    file = folder / "train-annotations-human-imagelabels-boxable.csv"
    write_rows(file, sizes, sizes.rows, shuffled, HEADER)
    return file


def write_for_peer(folder: Path, sizes: Sizes) -> Path:
    """The files of V3, which mlcpl reads as they are. -> folder"""
    (folder / "train").mkdir(parents=True)
    (folder / "classes-trainable.txt").write_text("\n".join(label_names(sizes.labels)) + "\n")
    file = folder / "train" / "annotations-human.csv"
    write_rows(file, sizes, sizes.peer_rows, False, HEADER)
    return folder


def write_rows(
    file: Path, sizes: Sizes, rows: int, shuffled: bool, header: tuple[str, ...], prefix: str = ""
) -> None:
    """Distinct labels of each image, half of them positive, in the order of ids or in none."""
    per_image = sizes.rows // sizes.images
    images = rows // per_image
    generator = np.random.default_rng(1)
    ids, names = image_ids(images), arrow.array(label_names(sizes.labels))
    if prefix:
        ids = arrow.compute.binary_join_element_wise(prefix, ids, ".jpg", "")
    order = generator.permutation(rows) if shuffled else None
    width = sizes.labels // per_image
    columns = generator.integers(width, size=rows, dtype=np.int16)
    values = generator.integers(2, size=rows, dtype=np.int8)
    options = csv.WriteOptions(quoting_style="none")
    schema = arrow.schema([(name, arrow.string()) for name in header])
    with csv.CSVWriter(file, schema, write_options=options) as writer:
        for first in range(0, rows, 2**20):
            places = np.arange(first, min(first + 2**20, rows))
            places = places if order is None else order[places]
            block = {
                "ImageID": ids.take(arrow.array(places // per_image)),
                "LabelName": names.take(arrow.array(columns[places] + places % per_image * width)),
                "Confidence": arrow.array(values[places]).cast(arrow.string()),
                "Source": arrow.array(["verification"] * len(places)),
            }
            block |= {
                "image": block["ImageID"],
                "label": block["LabelName"],
                "value": block["Confidence"],
            }
            writer.write_batch(arrow.record_batch([block[name] for name in header], schema))


# Work, each in a process of its own


def read_with_partly(path: str, **options: Any) -> str:
    import partly

    return repr(partly.read(path, **options))


def read_with_pyarrow(path: str) -> str:
    table = csv.read_csv(path)
    return f"{table.num_rows:,} rows"


def read_with_mlcpl(path: str) -> str:
    from mlcpl.datasets import Open_Images_V3

    with tempfile.TemporaryDirectory() as cache:
        data = Open_Images_V3(path, use_cache=False, cache_dir=cache, check_images=False)
    return f"{len(data):,} images"


def load_with_partly(folder: str, images: int, batches: int, workers: int) -> Iterator[None]:
    """A mapped table, as `partly.read` leaves one of this size; its labels batch by batch."""
    import torch

    from partly.data import ImageInputs, Look
    from partly.labels import LabelTable
    from partly.texts import Texts

    files = picture_files(folder)
    numbers = np.arange(images)
    table = LabelTable.from_entries(
        np.repeat(numbers, 3),
        np.stack([numbers % modulus for modulus in MODULI], axis=1).ravel(),
        np.ones(3 * images, dtype=np.int8),
        ids=image_ids(images),
        names=label_names(MODULI[0]),
        paths=Texts.of(arrow.array(files).take(arrow.array(numbers % len(files)))),
    ).mapped()
    assert table.paths is not None
    inputs = ImageInputs(table.paths, torch.device("cpu"), Look(size=SIDE), workers=workers)
    for epoch in range(EPOCHS):
        chunks = np.array_split(rows_of_epoch(images, batches, epoch), batches)
        for rows, _ in zip(chunks, inputs.batches(chunks, epoch), strict=True):
            torch.from_numpy(table.dense(rows))
            yield


def load_plainly(folder: str, images: int, batches: int, workers: int) -> Iterator[None]:
    """What others do: a Python list of (path, labels), PIL and a DataLoader."""
    import torch
    from PIL import Image

    files = picture_files(folder)
    # Each record has a string of its own, as it has after reading a file.
    halves = [(file[:-9], file[-9:]) for file in files]
    records = []
    for number in range(images):
        folder_of, name = halves[number % len(halves)]
        records.append((folder_of + name, [number % modulus for modulus in MODULI]))

    class Pictures(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(records)

        def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
            path, positive = records[row]
            labels = torch.zeros(MODULI[0])
            labels[positive] = 1
            picture = Image.open(path).convert("RGB").resize((SIDE, SIDE))
            return torch.from_numpy(np.array(picture)), labels

    for epoch in range(EPOCHS):
        rows = rows_of_epoch(images, batches, epoch).tolist()
        for _ in torch.utils.data.DataLoader(
            Pictures(), batch_size=BATCH, sampler=rows, num_workers=workers
        ):
            yield


def picture_files(folder: str) -> list[str]:
    return sorted(str(file) for file in Path(folder).glob("*.jpg"))


def rows_of_epoch(images: int, batches: int, epoch: int) -> np.ndarray:
    return np.random.default_rng(epoch).integers(images, size=batches * BATCH)


def memory_of_loading(loading: Iterator[None], batches: int) -> list[float]:
    """GiB of this process and its workers, shared pages once, near the end of each epoch."""
    look_at = {epoch * batches + batches * 4 // 5 for epoch in range(EPOCHS)}
    return [
        round(proportional_memory() / GIBIBYTE, 3)
        for step, _ in enumerate(loading)
        if step in look_at
    ]


def proportional_memory() -> int:
    """PSS in bytes of this process and its children."""
    own = os.getpid()
    children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    total = 0
    for process in (own, *children):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024


WORK = {
    "partly": read_with_partly,
    "pyarrow": read_with_pyarrow,
    "mlcpl": read_with_mlcpl,
}
LOADING = {"partly": load_with_partly, "plain": load_plainly}


def work(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """What a process started by `measure` does and finds."""
    if name.startswith("load "):
        loading = LOADING[name.removeprefix("load ")](**options)
        return {"gib_by_epoch": memory_of_loading(loading, options["batches"])}
    if name == "mlcpl":
        import mlcpl.datasets  # noqa: F401  # it brings torch, which is no part of reading
    else:
        import partly.readers  # noqa: F401
    before = resident("VmHWM") / GIBIBYTE
    start = time.perf_counter()
    found = WORK[name](**options)
    seconds = time.perf_counter() - start
    return {
        "found": found,
        "seconds": round(seconds, 2),
        "peak_gib": round(resident("VmHWM") / GIBIBYTE, 3),
        "peak_gib_above_import": round(resident("VmHWM") / GIBIBYTE - before, 3),
    }


def measure(name: str, **options: Any) -> dict[str, Any]:
    """`work` in a fresh process."""
    given = json.dumps({"name": name, "options": options})
    command = [sys.executable, __file__, "--work", given]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


# The three parts


def measure_large(sizes: Sizes, folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for order in ("sorted", "shuffled"):
        file = write_large(folder / order, sizes, order == "shuffled")
        floor = measure("pyarrow", path=str(file))
        ours = measure("partly", path=str(file.parent))
        results[order] = compared(f"large, {order}", ours, floor, "pyarrow")
        results[order]["file_gib"] = round(file.stat().st_size / GIBIBYTE, 2)
        file.unlink()
    file = folder / "manifest.csv"
    write_rows(file, sizes, sizes.rows, False, ("image", "label", "value"), "train/")
    floor, ours = measure("pyarrow", path=str(file)), measure("partly", path=str(file))
    results["long manifest"] = compared("large, long manifest", ours, floor, "pyarrow")
    file.unlink()
    return results


def measure_peer(sizes: Sizes, folder: Path) -> dict[str, Any] | None:
    if importlib.util.find_spec("mlcpl") is None:
        print(
            "peer: mlcpl is not installed, so there is no comparison; `pip install mlcpl` gets it"
        )
        return None
    data = write_for_peer(folder / "peer", sizes)
    theirs = measure("mlcpl", path=str(data))
    ours = measure("partly", path=str(data), classes="classes-trainable.txt")
    return compared(f"peer, {sizes.peer_rows:,} rows", ours, theirs, "mlcpl")


def compared(title: str, ours: dict[str, Any], other: dict[str, Any], name: str) -> dict[str, Any]:
    print(f"{title}: {ours['found']}")
    for who, numbers in (("partly", ours), (name, other)):
        print(
            f"  {who:8} {numbers['seconds']:8.2f} s   peak {numbers['peak_gib']:6.2f} GiB, "
            f"{numbers['peak_gib_above_import']:.2f} above import"
        )
    ratios = {
        f"ratio_of_{what}": round(ours[what] / max(other[what], 0.01), 3)
        for what in ("seconds", "peak_gib_above_import")
    }
    print(f"  ratio    {'   '.join(map(str, ratios.values()))}", flush=True)
    return {"partly": ours, name: other, **ratios}


def measure_loading(sizes: Sizes, folder: Path) -> dict[str, Any]:
    from PIL import Image

    pictures = folder / "pictures"
    pictures.mkdir()
    generator = np.random.default_rng(0)
    for number in range(sizes.pictures):
        pixels = generator.integers(256, size=(48, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(pictures / f"{number:06d}.jpg")
    results: dict[str, Any] = {"images": sizes.images, "images_an_epoch": sizes.batches * BATCH}
    for who in LOADING:
        for workers in (0, 4):
            found = measure(
                f"load {who}",
                folder=str(pictures),
                images=sizes.images,
                batches=sizes.batches,
                workers=workers,
            )
            results[f"{who}, {workers} workers"] = found
            shown = "  ".join(f"{gib:.2f}" for gib in found["gib_by_epoch"])
            print(f"loading, {who}, {workers} workers: GiB by epoch {shown}", flush=True)
    return results


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": model,
        "threads": arrow.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    found = {}
    for name in ("partly", "numpy", "pyarrow", "torch", "pillow", "pandas", "mlcpl"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small; nothing is written")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps(work(**options.work)))
        return

    sizes = SMALL if options.quick else Sizes()
    parts = {"large": measure_large, "peer": measure_peer, "loading": measure_loading}
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts:
            results[part] = parts[part](sizes, Path(folder))
    if options.quick:
        return
    result = {
        "command": " ".join(["python", f"benchmarks/{Path(__file__).name}", *sys.argv[1:]]),
        "sizes": sizes._asdict(),
        "results": results,
        "machine": machine(),
        "versions": versions(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
