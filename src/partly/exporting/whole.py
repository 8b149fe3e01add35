"""A trained model with everything around it, as one module.

What enters: a `Predictor`. What leaves: a module from what a user has, pixels of 0 to 255 or
feature rows, to what a user wants: probabilities, and the logits they were made of. And images to
try it on.
"""

from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from partly import drawing, runs
from partly.data import ImageInputs, split_into_chunks
from partly.decisions import CLOSEST, Calibration
from partly.errors import DataError
from partly.features import LARGEST
from partly.labels import LabelTable
from partly.models import Standardise

TRIED = 16  # inputs that an exported model is tried on


class Normalise(nn.Module):
    """Pixels of 0 to 255 as the backbone wants them."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: tuple[float, ...], deviation: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation).view(1, 3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels.float() / 255 - self.mean) / self.deviation


class Rounded(nn.Module):
    """A frozen backbone as `predict` knows it: its features are kept in 16 bits."""

    def __init__(self, eye: nn.Module) -> None:
        super().__init__()
        self.eye = eye

    def forward(self, pictures: Tensor) -> Tensor:
        return self.eye(pictures).clamp(-LARGEST, LARGEST).half().float()


class Lines(nn.Module):
    """An isotonic calibration: straight lines between knots, as `np.interp` draws them.

    ONNX has no search in a sorted list, so the knot to the left is found by halving.
    """

    x: Tensor
    y: Tensor

    def __init__(self, calibration: Calibration) -> None:
        super().__init__()
        self.register_buffer("x", torch.tensor(calibration.x, dtype=torch.float64))
        self.register_buffer("y", torch.tensor(calibration.y, dtype=torch.float64))

    def forward(self, probabilities: Tensor) -> Tensor:
        wanted, last = probabilities.double(), len(self.x) - 2
        left = torch.zeros_like(wanted, dtype=torch.int64)
        for power in reversed(range(last.bit_length())):
            further = (left + 2**power).clamp(max=last)
            left = torch.where(self.x[further] <= wanted, further, left)
        share = (wanted - self.x[left]) / (self.x[left + 1] - self.x[left])
        return torch.lerp(self.y[left], self.y[left + 1], share).float()


class Whole(nn.Module):
    """uint8 pixels [B, 3, S, S], or feature rows [B, F], -> probabilities, logits [B, L]."""

    def __init__(self, predictor: runs.Predictor) -> None:
        super().__init__()
        self.prepare: nn.Module = nn.Identity()
        if predictor.config["features"] is None or predictor.eye is not None:
            self.prepare = Normalise(*runs.look_of(predictor.config).statistics())
        self.eye = nn.Identity() if predictor.eye is None else Rounded(predictor.eye)
        self.model = predictor.model
        self.method, self.options = predictor.method, predictor.config["options"]
        self.calibration = predictor.calibration
        self.lines = Lines(self.calibration) if self.calibration.kind == "isotonic" else None
        self.eval()

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(self.eye(self.prepare(inputs)))
        return self.calibrated(logits), logits

    def calibrated(self, logits: Tensor) -> Tensor:
        """What `Predictor.to_probabilities` says, in operations that a graph can hold."""
        if self.calibration.kind == "none":
            return self.method.probability(logits, self.options)
        if self.lines is None and self.method.link is None:
            return torch.sigmoid(self.calibration.slope * logits + self.calibration.shift)
        probabilities = self.method.probability(logits.double(), self.options)
        if self.lines is not None:
            return self.lines(probabilities)
        moved = self.calibration.slope * torch.logit(probabilities, CLOSEST)
        return torch.sigmoid(moved + self.calibration.shift).float()

    @property
    def looks_at_images(self) -> bool:
        return isinstance(self.prepare, Normalise)


def drawn_images(predictor: runs.Predictor) -> list[Image.Image] | np.ndarray:
    """What a model can be tried on where nothing is given: pictures drawn by code, or feature rows
    that are spread as those it was trained on."""
    if Whole(predictor).looks_at_images:
        return [drawing.draw_picture(0, number)[0] for number in range(TRIED)]
    spread = next(m for m in predictor.model.modules() if isinstance(m, Standardise))
    noise = np.random.default_rng(0).standard_normal((TRIED, len(spread.mean)), dtype=np.float32)
    return noise * spread.deviation.cpu().numpy() + spread.mean.cpu().numpy()


def given_inputs(predictor: runs.Predictor, table: LabelTable) -> np.ndarray:
    """What the whole model takes of a table's images or features, decoded and resized as ever."""
    if not Whole(predictor).looks_at_images:
        wanted = predictor.config["features"]
        if table.features is None or table.features.shape[1] != wanted:
            raise DataError(f"the model looks at {wanted} features a row, and these are others")
        return table.features.astype(np.float32)
    if table.paths is None:
        raise DataError("the model looks at images, and these are feature rows")
    look = replace(runs.look_of(predictor.config), normalise="none", decode="cpu")
    inputs = ImageInputs(table.paths, torch.device("cpu"), look)
    chunks = split_into_chunks(np.arange(len(table)), TRIED)
    pixels = torch.cat([batch for _, batch in inputs.batches(chunks)])
    return (pixels * 255).round().to(torch.uint8).contiguous().numpy()
