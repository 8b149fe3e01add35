"""The data of the examples: two handwritten digits in a picture; labels say which of ten are there.

Real digits (scikit-learn's), joined by code. Of the training pictures 40 % of the positive labels
are ticked and nothing else is known, as when people tag what they notice.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

import partly

KEEP = 0.4  # of the positive labels
DIGITS_A_PICTURE = 1.9  # two, but sometimes twice the same


def draw(count: int, seed: int, digits: np.ndarray, classes: np.ndarray) -> tuple[Tensor, Tensor]:
    """Pictures [count, 1, 8, 16] of two digits side by side, and full labels [count, 10]."""
    pairs = np.random.default_rng(seed).integers(0, len(digits), (count, 2))
    pictures = np.concatenate([digits[pairs[:, 0]], digits[pairs[:, 1]]], axis=2)[:, None]
    labels = np.zeros((count, 10), dtype=np.int8)
    np.put_along_axis(labels, classes[pairs], 1, axis=1)
    return torch.from_numpy(pictures.astype(np.float32) / 16), torch.from_numpy(labels)


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training pictures, their partly known labels (1, -1), test pictures, their full labels."""
    digits = load_digits()
    half = len(digits.images) // 2  # no handwriting of the test pictures is trained on
    pictures, labels = draw(2000, 0, digits.images[:half], digits.target[:half])
    test, test_labels = draw(1000, 1, digits.images[half:], digits.target[half:])
    known = partly.hide(labels.numpy(), "ppl", keep=KEEP, seed=0)
    return pictures, torch.from_numpy(known), test, test_labels


def share_ticked(labels: Tensor) -> float:
    """How much of the positives is ticked, from how many a picture has: what one can know of it."""
    return float((labels == 1).sum()) / (len(labels) * DIGITS_A_PICTURE)


def report(name: str, logits: Tensor, labels: Tensor) -> None:
    """Print how well logits [N, 10] rank and decide: mAP, and F1 at a probability of ½."""
    ranked = partly.mean_average_precision(logits.numpy(), labels.numpy())
    said, true = logits > 0, labels == 1
    f1 = 2 * (said & true).sum() / (said.sum() + true.sum())
    print(f"{name}: mAP {ranked:.3f}, F1 {f1:.3f}")
