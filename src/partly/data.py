"""Images and feature rows -> batches of tensors.

What enters: a label table (its paths or features) and chunks of row numbers. What leaves: for each
chunk its rows and its inputs, on the device. The random choices of an image come from
(seed, epoch, row), so the batches are the same with 0 or 8 workers.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from partly import draws, images, tars
from partly.errors import DataError, first_few, raise_if
from partly.labels import LabelTable
from partly.texts import Texts

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)

Chunks = Sequence[np.ndarray]


class Inputs(Protocol):
    """Where a model's inputs come from."""

    def batches(self, chunks: Chunks, epoch: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows [B], inputs) of each chunk; `epoch` draws the augmentation, None is without."""
        ...


def split_into_chunks(rows: np.ndarray, size: int) -> Chunks:
    """Chunks of nearly equal size, at most `size`: no last image alone in front of a batch norm."""
    return np.array_split(rows, max(1, -(-len(rows) // size)))


class FeatureInputs:
    """Rows of a feature matrix, held on the device."""

    def __init__(self, features: np.ndarray, device: torch.device) -> None:
        self.features = torch.tensor(features, dtype=torch.float32, device=device)

    def batches(self, chunks: Chunks, epoch: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        for chunk in chunks:
            rows = torch.from_numpy(chunk).to(self.features.device)
            yield rows, self.features[rows]


class ImageInputs:
    """Image files: stretched to size × size, flipped with probability ½, ImageNet statistics."""

    def __init__(
        self,
        paths: Texts,
        device: torch.device,
        *,
        size: int = 448,
        seed: int = 0,
        workers: int = 0,
    ) -> None:
        self.paths, self.device = paths, device
        self.size, self.seed, self.workers = size, seed, workers
        self.mean = torch.tensor(IMAGENET_MEAN, device=device).view(3, 1, 1)
        self.deviation = torch.tensor(IMAGENET_DEVIATION, device=device).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> np.ndarray | DataError:
        """The picture as uint8 [size, size, 3], or what is wrong with it.

        An error raised in a worker process would arrive wrapped in its traceback.
        """
        try:
            picture = images.load(self.paths[int(row)], self.size)
        except images.ImageProblem as problem:
            return DataError(f"cannot read image {self.paths[int(row)]}: {problem}")
        if picture.size != (self.size, self.size):
            picture = picture.resize((self.size, self.size), Image.Resampling.BILINEAR)
        return np.asarray(picture)

    def batches(self, chunks: Chunks, epoch: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        loader: torch.utils.data.DataLoader = torch.utils.data.DataLoader(
            self,  # type: ignore[arg-type]  # it has __len__ and __getitem__
            batch_sampler=[chunk.tolist() for chunk in chunks],
            collate_fn=_stack,
            num_workers=self.workers,
            generator=torch.Generator(),  # or each epoch would take a draw from the model's own
            multiprocessing_context="fork" if self.workers else None,
            pin_memory=self.device.type == "cuda",
        )
        for chunk, pictures in zip(chunks, loader, strict=True):
            if isinstance(pictures, DataError):
                raise pictures
            rows = torch.from_numpy(chunk).to(self.device, non_blocking=True)
            yield rows, self._normalise(pictures.to(self.device, non_blocking=True), rows, epoch)

    def _normalise(self, pictures: Tensor, rows: Tensor, epoch: int | None) -> Tensor:
        inputs = pictures.permute(0, 3, 1, 2).float().div_(255)
        inputs = (inputs - self.mean) / self.deviation
        if epoch is None:
            return inputs
        draw = draws.uniform(self.seed, draws.FLIP, epoch, rows, torch.zeros_like(rows[:1]))
        return torch.where((draw < 0.5).view(-1, 1, 1, 1), inputs.flip(-1), inputs)


def _stack(pictures: list[np.ndarray | DataError]) -> Tensor | DataError:
    """A batch of uint8 pictures, or everything that is wrong with its files."""
    wrong = [picture for picture in pictures if isinstance(picture, DataError)]
    if wrong:
        return DataError([problem for error in wrong for problem in error.problems])
    return torch.from_numpy(np.stack(pictures))  # type: ignore[arg-type]


def missing_images(paths: Texts) -> Iterator[str]:
    """A sentence if some of these files are not there."""
    missing = [path for path in paths if not tars.exists(path)]
    if missing:
        yield f"{len(missing)} of {len(paths)} images are missing: {first_few(missing)}"


def open_inputs(
    table: LabelTable, device: torch.device, *, size: int = 448, seed: int = 0, workers: int = 0
) -> Inputs:
    """The inputs of a table: its features where it has them, its images otherwise."""
    if table.features is not None:
        return FeatureInputs(table.features, device)
    if table.paths is None:
        raise DataError("the table has neither image paths nor features")
    raise_if(missing_images(table.paths), DataError)
    return ImageInputs(table.paths, device, size=size, seed=seed, workers=workers)
