"""Pseudo-labels: what is believed about the unknown labels.

What enters: the model's logits of a batch. What leaves: targets ỹ in [0, 1] for its unknown
entries, kept from one visit of an image to the next. Letters: N images, L labels, B in a batch.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from partly.distributed import Shard
from partly.errors import ConfigError, RunError
from partly.labels import POSITIVE, UNKNOWN, LabelTable
from partly.metrics import average_precision

SMALLEST = 1e-6  # a weight or a share of entries below this counts as this: its logarithm is finite


class PseudoLabels:
    """A store of N×L pseudo-labels in one or two bytes each.

    start: one number (the paper: 0.5) or one a label (class priors).
    dtype: "float16", or "uint8": steps of 1/255.
    """

    def __init__(
        self,
        images: int,
        labels: int,
        *,
        start: float | np.ndarray = 0.5,
        dtype: str = "float16",
        device: torch.device | str = "cpu",
    ) -> None:
        if dtype not in ("float16", "uint8"):
            raise ConfigError(f"pseudo-labels are stored as float16 or uint8, not '{dtype}'")
        first = torch.as_tensor(start, dtype=torch.float32).expand(labels)
        if not ((first >= 0) & (first <= 1)).all():
            raise ConfigError(f"pseudo-labels start in [0, 1], not at {start}")
        self.scale = 255 if dtype == "uint8" else 1
        self.shard = Shard.of(images)
        kept = len(self.shard) + self.shard.spare
        self.values = self._pack(first.to(device)).expand(kept, labels).clone()

    def get(self, rows: Tensor) -> Tensor:
        """ỹ of these images, float32 [B, L], whichever rank keeps them."""
        found = self.values[self.shard.places(rows)]
        return self.shard.complete(found, rows).float() / self.scale

    def update(self, rows: Tensor, values: Tensor, which: Tensor | None = None) -> None:
        """ỹ ← values, where `which` [B, L] is true (everywhere if None).

        A value that is not finite is left out: a diverged step must not spoil the store.
        """
        places, new = self.shard.places(rows), values.detach().float()
        fresh = torch.isfinite(new) if which is None else torch.isfinite(new) & which
        self.values[places] = torch.where(fresh, self._pack(new), self.values[places])

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the rows of this rank."""
        return {"values": self.values[: len(self.shard)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the values of a checkpoint."""
        if state["values"].dtype != self.values.dtype:
            raise RunError(f"stored as {state['values'].dtype}, not as {self.values.dtype}")
        self.values[: len(self.shard)].copy_(state["values"])

    def _pack(self, values: Tensor) -> Tensor:
        if self.scale == 1:
            return values.half()
        return (values * self.scale).round().to(torch.uint8)


def posterior(
    logits: Tensor,
    *,
    c_positive: Tensor | float,
    c_negative: Tensor | float,
    alpha: Tensor | float = 1.0,
    beta: Tensor | float = 1.0,
    weight_known: float = 1.0,
    weight_unknown: float = 1.0,
) -> Tensor:
    """The probability that an unknown entry is positive, from a model that was fitted with it.

    Such a model is tilted by the loss's weights and by the annotation itself:

        logit ŷ = logit π + log(α/β) + log[(c₊w_k + (1-c₊)w_u) / (c₋w_k + (1-c₋)w_u)]
        logit ỹ = logit π + log[(1-c₊) / (1-c₋)]

    with π = P(y = 1 | x), c₊ and c₋ the chance that a positive, a negative is annotated (one for
    all, one a label [L], or one an entry [B, L]), w_k and w_u the weight of one known, one unknown
    entry. The first tilt is taken off, the second put on.
    """

    def positive_number(value: Tensor | float) -> Tensor:
        if not isinstance(value, Tensor):  # made on the device: sent there, it would be waited for
            value = torch.full((), value, device=logits.device)
        return value.to(logits.device, torch.float32).clamp(SMALLEST)

    def log_ratio(weight_known: float, weight_unknown: float) -> Tensor:
        """log of what annotation and weights leave of positives, over what of negatives."""
        above, below = (
            positive_number(c * weight_known + (1 - c) * weight_unknown)
            for c in (c_positive, c_negative)
        )
        return torch.log(above / below)

    tilt = torch.log(positive_number(alpha / beta)) + log_ratio(weight_known, weight_unknown)
    return torch.sigmoid(logits.detach().float() - tilt + log_ratio(0.0, 1.0))


def chance_of_single(logits: Tensor, labels: Tensor, c_positive: Tensor) -> Tensor:
    """c₊ of each image [B, 1] where one positive of each is known: the more it has, the smaller.

    An image of m expected positives has 1/m, all of them scaled so that the mean over positives is
    c₊, as it is over the whole table.
    """
    unknown = labels == UNKNOWN
    probabilities = torch.sigmoid(logits.detach().float())
    expected = torch.where(unknown, probabilities, (labels == POSITIVE).float())
    count = expected.sum(dim=1, keepdim=True)
    chance = 1 / count.clamp(min=1)
    mean = (chance * count).sum() / count.sum().clamp(min=SMALLEST)
    return (chance / mean.clamp(min=SMALLEST) * c_positive.mean()).clamp(max=0.98)


def audit(values: np.ndarray, known: LabelTable, truth: LabelTable) -> dict[str, Any]:
    """How good pseudo-labels [N, L] are where a study has hidden the truth.

    Per label and overall, over entries unknown in `known` but known in `truth`: average precision,
    mean absolute error, mean pseudo-label and true share of positives.
    """
    answers = np.where(known.dense() == UNKNOWN, truth.dense(), np.int8(UNKNOWN))
    hidden = answers != UNKNOWN
    if not hidden.any():
        return {"hidden_entries": 0}
    counts = np.maximum(hidden.sum(axis=0), 1)
    error = np.where(hidden, np.abs(values - answers), 0).sum(axis=0) / counts
    believed = np.where(hidden, values, 0).sum(axis=0) / counts
    true_share = (answers == 1).sum(axis=0) / counts
    precision = average_precision(values, answers)
    scored = np.isfinite(precision)
    return {
        "hidden_entries": int(hidden.sum()),
        "mAP": float(precision[scored].mean()) if scored.any() else None,
        "mean_absolute_error": float(np.abs(values - answers)[hidden].mean()),
        "mean_pseudo_label": float(values[hidden].mean()),
        "share_positive": float((answers[hidden] == 1).mean()),
        "by_label": {
            "average_precision": [float(v) if np.isfinite(v) else None for v in precision],
            "mean_absolute_error": error.tolist(),
            "mean_pseudo_label": believed.tolist(),
            "share_positive": true_share.tolist(),
        },
    }
