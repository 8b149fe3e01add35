"""Features: what a frozen backbone sees in each image, computed once.

What enters: a table of images, a backbone with its weights, a `Look`. What leaves: the same table
with features [N, F] in place of paths, on which a linear layer trains in seconds. Features are kept
by the content of the image and of the weights, so that they are found again whatever the files are
called, and an extraction that was interrupted goes on where it stopped.
"""

import hashlib
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from partly import checkpoint, images, pixels
from partly.data import ImageInputs, Look, split_into_chunks
from partly.errors import DataError, RunError
from partly.labels import LabelTable
from partly.processes import keep_memory
from partly.progress import Progress
from partly.texts import Texts

BLOCK = 2048  # images after which what was computed is kept
DIGEST = 16  # bytes of an image's hash
TOGETHER = {"cpu": 16, "cuda": 256}  # images: what a CPU's cache holds
LARGEST = 65504.0  # that float16 can hold


def cache_folder() -> Path:
    """Where features are kept: in `$XDG_CACHE_HOME/partly`, in general `~/.cache/partly`."""
    return pixels.cache_folder("features")


def with_features(
    table: LabelTable,
    backbone: nn.Module,
    look: Look,
    device: torch.device,
    *,
    workers: int = 0,
    folder: Path | None = None,
    quiet: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> LabelTable:
    """The table with what the backbone sees in each image; its augmentation is not used."""
    assert table.paths is not None
    kept = Kept((folder or cache_folder()) / key_of(backbone, look))
    digests = content_digests(table.paths)
    missing = np.flatnonzero(~kept.has(digests))
    if len(missing):
        say(f"computing features of {len(missing):,} of {len(table):,} images")
        _extract(table.paths, missing, digests, backbone, look, device, workers, kept, quiet)
    return replace(table, paths=None, features=kept.get(digests), checked=True)


def key_of(backbone: nn.Module, look: Look) -> str:
    """Changes with whatever changes a feature: the weights, the size, the statistics."""
    seen = {k: v for k, v in asdict(look).items() if k not in ("augment", "decode")}
    described = f"partly features 1 {sorted(seen.items())} {backbone}"  # its layers, all of them
    digest = hashlib.sha256(described.encode())
    for name, tensor in backbone.state_dict().items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
    return digest.hexdigest()[:32]


def content_digests(paths: Texts) -> np.ndarray:
    """[N] of 16 bytes: the hash of each image file; an error names all that cannot be read."""
    problems: dict[int, str] = {}

    def digest(row: int) -> bytes:
        try:
            return hashlib.blake2b(images.read(paths[row]), digest_size=DIGEST).digest()
        except images.ImageProblem as problem:
            problems[row] = str(problem)
            return bytes(DIGEST)

    with ThreadPoolExecutor() as pool:  # reading and hashing wait for no one
        digests = b"".join(pool.map(digest, range(len(paths)), chunksize=256))
    if problems:
        raise DataError(list(images.describe_problems(paths, problems)))
    return np.frombuffer(digests, dtype=f"V{DIGEST}")


class Kept:
    """Features on disk: files of (digests [n], features [n, F]), never changed once written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        blocks = [_read_block(file) for file in sorted(folder.glob("*.npz"))]
        found = [block for block in blocks if block is not None]
        self.digests = np.concatenate([digests for digests, _ in found] or [_NONE])
        self.features = [features for _, features in found]

    def has(self, digests: np.ndarray) -> np.ndarray:
        return self._places(digests) >= 0

    def get(self, digests: np.ndarray) -> np.ndarray:
        """[N, F] float16; all of them must be there."""
        places = self._places(digests)
        assert (places >= 0).all()
        return np.concatenate(self.features)[places]

    def add(self, digests: np.ndarray, features: np.ndarray) -> None:
        """Keep a block, whole or not at all."""
        self.digests = np.concatenate([self.digests, digests])
        self.features.append(features)

        def write(place: Path) -> None:
            with place.open("wb") as file:
                np.savez(file, digests=digests, features=features)

        with suppress(RunError):  # where nothing can be written, nothing is kept for the next time
            checkpoint.make_folder(self.folder)
            checkpoint.write_atomically(self.folder / f"{uuid.uuid4().hex}.npz", write)

    def _places(self, digests: np.ndarray) -> np.ndarray:
        if not len(self.digests):
            return np.full(len(digests), -1)
        known, wanted = _integers(self.digests), _integers(digests)
        order = np.argsort(known, kind="stable")
        found = np.searchsorted(known, wanted, sorter=order).clip(max=len(known) - 1)
        return np.where(known[order[found]] == wanted, order[found], -1)


_NONE = np.zeros(0, dtype=f"V{DIGEST}")


def _integers(digests: np.ndarray) -> np.ndarray:
    """The first eight bytes: among a billion images two share them once in 37 collections."""
    return digests.view(np.uint64).reshape(-1, DIGEST // 8)[:, 0]


def _read_block(file: Path) -> tuple[np.ndarray, np.ndarray] | None:
    try:
        with np.load(file, allow_pickle=False) as block:
            return block["digests"], block["features"]
    except Exception:  # damaged: it is computed again
        return None


@torch.inference_mode()
def glance(backbone: Any, batch: torch.Tensor) -> torch.Tensor:
    """What the backbone sees in each image of a batch, as it is kept: [B, F] float16."""
    device = batch.device.type
    batch = batch.contiguous(memory_format=torch.channels_last)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return backbone(batch).float().clamp(-LARGEST, LARGEST).half()


@torch.inference_mode()
def _extract(
    paths: Texts,
    rows: np.ndarray,
    digests: np.ndarray,
    backbone: Any,
    look: Look,
    device: torch.device,
    workers: int,
    kept: Kept,
    quiet: bool,
) -> None:
    """Compute the features of these rows and keep them block by block."""
    if device.type == "cpu":
        keep_memory()
    _, first = np.unique(_integers(digests[rows]), return_index=True)
    rows = rows[np.sort(first)]  # the same picture twice is computed once
    backbone = backbone.to(device, memory_format=torch.channels_last).eval()
    inputs = ImageInputs(paths, device, look, workers=workers)
    size = TOGETHER[device.type]
    with Progress(-(-len(rows) // size), quiet=quiet) as progress:
        for block in split_into_chunks(rows, BLOCK):
            chunks = split_into_chunks(block, size)
            seen = []
            for _, batch in inputs.batches(chunks):
                seen.append(glance(backbone, batch).cpu().numpy())
                progress.step()
            kept.add(digests[block], np.concatenate(seen))
