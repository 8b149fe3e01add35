"""How labels seem to go missing, and which of the paper's settings that resembles.

What enters: the known entries of the training images, counted by image and by label. What leaves: a
name, the sentence that says it, and the evidence. True labels are not known, so this is a likeness,
not a proof.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

ALMOST_ALL = 0.95  # this share of images makes a pattern a rule
FEW_PATTERNS = 10  # more ways in which labels are known together are no blocks
PLAUSIBLE_SHARE, PLAUSIBLE_POSITIVES = 0.2, 20  # of the labels positive, and positives an image
ONE_POSITIVE = 0.999
NO_BLANKS = (
    "nothing is unknown; if 0 means 'not ticked', not 'no', say --convention signed: 0 is unknown"
)

NAMES = {
    "none": "nothing is known",
    "fal": "FAL: every label is known",
    "pal": "PAL: labels of all kinds are missing at random",
    "ppl": "PPL: some positives are known, no negative is",
    "spl": "SPL: one positive an image is known, nothing else",
    "by label": "whole labels are missing: the same ones in nearly all images",
    "by image": "whole images are missing: an image has all of its labels or none",
    "by block": "labels are missing in blocks, as where several data sets were joined",
    "verified": "verified labels: a few were picked for each image and answered with yes or no",
    "fixed number": "about the same number of labels is known of each image",
    "other": "none of the paper's settings",
}


@dataclass(frozen=True)
class Known:
    """Known entries of N images and L labels."""

    by_image: np.ndarray  # [N] known labels of each image
    positive_by_image: np.ndarray  # [N] of which positive
    by_label: np.ndarray  # [L] images in which a label is known
    positive_by_label: np.ndarray  # [L] of which positive
    patterns: np.ndarray  # [N] a number that says which labels of an image are known

    @property
    def images(self) -> int:
        return len(self.by_image)

    @property
    def labels(self) -> int:
        return len(self.by_label)


def resemblance(known: Known) -> dict[str, Any]:
    """`resembles` (one of NAMES), `sentence`, `setting` (for `hide`), `rate`, `evidence`."""
    figures = statistics(known)
    name = _name(figures)
    rate = figures["share_known"] if name in ("fal", "pal") else None
    return {
        "resembles": name,
        "sentence": NAMES[name],
        "setting": f"pal:{rate:.3g}" if name == "pal" else name if name in ("fal", "spl") else None,
        "rate": rate,
        "evidence": _evidence(name, figures, known),
        "statistics": figures,
    }


def statistics(known: Known) -> dict[str, Any]:
    """The figures that tell the ways apart."""
    images, labels = known.images, known.labels
    entries, positives = int(known.by_image.sum()), int(known.positive_by_image.sum())
    rate = entries / max(images * labels, 1)
    of_labels = known.by_label / max(images, 1)
    chance = rate * (1 - rate)
    one, none = (float((known.positive_by_image == n).mean()) if images else 0.0 for n in (1, 0))
    _, sizes = np.unique(known.patterns, return_counts=True)
    covered = np.cumsum(np.sort(sizes)[::-1]) / max(images, 1)
    return {
        "images": images,
        "labels": labels,
        "known": entries,
        "positive": positives,
        "share_known": rate,
        "share_positive": positives / entries if entries else None,
        "implied_positives": labels * positives / entries if entries else None,
        "images_with_one_positive": one,
        "images_without_positive": none,
        "images_with_more": max(0.0, 1 - one - none),
        "images_complete": float((known.by_image == labels).mean()) if images else 0.0,
        "images_without_label": float((known.by_image == 0).mean()) if images else 0.0,
        "labels_complete": int((known.by_label == images).sum()),
        "labels_without_image": int((known.by_label == 0).sum()),
        "label_rates": [float(of_labels.min()), float(of_labels.max())],
        # 1 where labels are missing at random, 0 where each image has the same number
        "image_dispersion": float(known.by_image.var() / (labels * chance)) if chance else None,
        # how far the labels' rates lie apart, beyond what chance does
        "label_spread": float(max(of_labels.var() - chance / max(images, 1), 0) ** 0.5),
        "patterns": int(1 + np.searchsorted(covered, ALMOST_ALL)) if images else 0,
    }


def _name(figures: dict[str, Any]) -> str:
    if not figures["known"]:
        return "none"
    if figures["share_known"] == 1:
        return "fal"
    if figures["positive"] == figures["known"]:
        return "spl" if _single(figures) else "ppl"
    if not figures["positive"]:
        return "other"
    by_image, by_label = _random_by_image(figures), _random_by_label(figures)
    if by_image and by_label and not _implausible(figures, 5):
        return "pal"
    if figures["patterns"] <= FEW_PATTERNS:
        if figures["patterns"] == 1:
            return "by label"
        extremes = figures["images_complete"] + figures["images_without_label"]
        return "by image" if extremes >= ALMOST_ALL else "by block"
    if _implausible(figures):
        return "verified"
    return "fixed number" if by_label and figures["image_dispersion"] < 0.5 else "other"


def _single(figures: dict[str, Any]) -> bool:
    """One positive an image, although chance would have left some images with more."""
    none = figures["images_without_positive"]
    expected = figures["images"] * (1 - none + none * math.log(none)) if none else math.inf
    by_chance = none > 0.5 and expected < 5
    return not by_chance and figures["images_with_one_positive"] >= ONE_POSITIVE * (1 - none)


def _random_by_image(figures: dict[str, Any]) -> bool:
    tolerance = 0.3 + 3 * (2 / max(figures["images"] - 1, 1)) ** 0.5
    return bool(abs(figures["image_dispersion"] - 1) < tolerance)


def _random_by_label(figures: dict[str, Any]) -> bool:
    rate = figures["share_known"]
    noise = (rate * (1 - rate) / max(figures["images"], 1)) ** 0.5
    return bool(figures["label_spread"] < max(0.1 * min(rate, 1 - rate), 1.5 * noise))


def _implausible(figures: dict[str, Any], times: int = 1) -> bool:
    """So many of the known are positive that they cannot be a random sample of all labels."""
    return bool(
        figures["share_positive"] > PLAUSIBLE_SHARE
        and figures["implied_positives"] > times * PLAUSIBLE_POSITIVES
    )


def _evidence(name: str, figures: dict[str, Any], known: Known) -> list[str]:
    if name == "none":
        return []
    sentences = [
        f"{_percent(figures['share_known'])} of {figures['images']:,} × {figures['labels']:,} "
        f"labels are known; {_percent(figures['share_positive'])} of the known are positive"
    ]
    if name in ("ppl", "spl"):
        return sentences + _evidence_of_positives(name, figures, known)
    if name == "fal":
        return [*sentences, NO_BLANKS]
    if figures["image_dispersion"] is None:
        return sentences
    low, high = figures["label_rates"]
    spread = "no more apart than" if _random_by_label(figures) else "further apart than"
    sentences.append(
        f"a label is known in {_percent(low)} to {_percent(high)} of the images: {spread} "
        "chance would have it"
    )
    sentences.append(
        f"the number of known labels an image varies {figures['image_dispersion']:.2f} times as "
        "much as at random"
    )
    if name == "verified":
        sentences.append(
            f"were the known labels a random sample, an image would have about "
            f"{figures['implied_positives']:.0f} of {figures['labels']:,} labels"
        )
    if name == "by label":
        sentences.append(
            f"{figures['labels_complete']:,} labels are known in every image, "
            f"{figures['labels_without_image']:,} in none"
        )
    if name == "by image":
        sentences.append(
            f"{_percent(figures['images_complete'])} of the images are complete, "
            f"{_percent(figures['images_without_label'])} have no known label"
        )
    if name == "by block":
        sentences.append(
            f"{figures['patterns']} sets of labels, known together, cover "
            f"{_percent(ALMOST_ALL)} of the images"
        )
    return sentences


def _evidence_of_positives(name: str, figures: dict[str, Any], known: Known) -> list[str]:
    sentences = [
        f"{_percent(figures['images_with_one_positive'])} of the images have exactly one known "
        f"positive, {_percent(figures['images_with_more'])} more, "
        f"{_percent(figures['images_without_positive'])} none"
    ]
    if name == "ppl":
        sentences.append(
            f"the share of positives that is known cannot be told from positives alone "
            f"({known.positive_by_image.mean():.2f} are known an image)"
        )
        sentences.append(
            "if these lists of positives are complete, every other label is negative (FAL): "
            "then say so in the file"
        )
    return sentences


def _percent(share: float | None) -> str:
    if share is None:
        return "–"
    decimals = 0 if share in (0, 1) else 2 if min(share, 1 - share) < 0.01 else 1
    return f"{100 * share:.{decimals}f} %"
