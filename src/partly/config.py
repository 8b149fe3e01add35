"""The choices of a training.

What enters: what a user chose, and the data. What leaves: a complete, checked `Config`, every field
of which is written into the run's folder.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from partly import decisions, methods, models, stores
from partly.data import Look
from partly.errors import PartlyError
from partly.labels import LabelTable
from partly.mixing import MIXES

OPEN_TEXTS = ("backbone", "normalise", "schedule", "batch_norm")  # text that may be left open
WHOLE, ANY = (int, np.integer), (int, float, np.integer, np.floating)


def _above_0(value: Any) -> bool:
    return value > 0


def _from_0(value: Any) -> bool:
    return 0 <= value < 2**63


def _share(value: Any) -> bool:
    return 0 <= value < 1


# What the fields of a Config may be; a field whose default is None may stay None.
NUMBERS = (
    (("epochs", "batch_size", "image_size"), WHOLE, _above_0, "a whole number above 0"),
    (("learning_rate", "head_factor"), ANY, _above_0, "a number above 0"),
    (("clip", "weight_decay", "head_decay"), ANY, _from_0, "a number of 0 or more"),
    (("workers", "checkpoint_steps"), WHOLE, _from_0, "a whole number of 0 or more"),
    (("seed",), WHOLE, _from_0, "a whole number of 0 or more, below 2^63"),
    (("warmup", "ema", "hold_out"), ANY, _share, "a number in [0, 1)"),
)
WORDS = {
    "optimiser": ("adam", "adamw", "sgd"),
    "schedule": ("cosine", "constant"),
    "amp": ("auto", "on", "off"),
    "start": ("prior", "plain"),
    "batch_norm": ("train", "keep"),
    "mix": MIXES,
    "finish": ("none", "cft"),
    "head": ("full", "sampled"),
    "calibrate": decisions.KINDS,
}
# What a method may choose (`Method.picks`) where the user does not, and what holds otherwise.
USUAL: Mapping[str, Any] = {
    "weight_decay": 0.0,
    "schedule": "cosine",
    "ema": 0.0,
    "batch_norm": "train",
}


@dataclass(frozen=True)
class Config:
    """Every choice of a training. What is None is chosen from the data and written down.

    >>> list(Config(epochs=0).problems())
    ['epochs must be a whole number above 0, not 0']
    """

    method: str = "partly"
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method
    epochs: int = 12
    batch_size: int | None = None  # None: about 32 steps an epoch, 32–1024 rows or 8–64 images
    learning_rate: float | None = None  # None: 1e-2 if linear, 1e-4 if fine-tuned, else 1e-3
    head_factor: float | None = None  # the head's rate, × learning_rate; None: 10 if fine-tuned
    optimiser: str = "adam"
    weight_decay: float | None = None  # of weights, not biases; None: 0
    head_decay: float | None = None  # of the head alone; None: as the method picks, else the same
    warmup: float | None = None  # share of all steps; None: 0 for a linear model, else 0.05
    schedule: str | None = None  # cosine or constant; None: as the method picks, else cosine
    clip: float = 0.0  # largest norm of the gradient; 0 is off
    ema: float | None = None  # decay of the average of weights, 0 is off; None: as the method picks
    batch_norm: str | None = None  # train, or keep the statistics of pretrained weights; None: same
    compile: bool = False  # torch.compile: faster steps after a minute of preparation
    amp: str = "auto"  # auto: bfloat16 on a GPU that has it; on, off
    backbone: str | None = None  # None: linear on features, resnet50 on images
    weights: str = "auto"  # a file, auto, pretrained or none: see models.load_pretrained
    head: str = "full"  # or sampled: a step computes and changes a share q of the labels
    head_only: bool = False  # the backbone stays as it is, and is asked once about each image
    linear_start: bool = False  # train the head alone first, as head_only does
    image_size: int = 448
    resize: str = "stretch"  # how an image gets that size, and so on: see data.Look
    augment: str = "paper"
    normalise: str | None = None  # None: as the backbone's weights want it
    decode: str = "cpu"
    mix: str = "none"  # logicmix or mixup-pme: see mixing
    standardise: bool = True  # scale each feature by its mean and deviation
    start: str = "prior"  # the head begins at the class priors, or at random: plain
    expected_positives: float | None = None  # per image, where the user knows it
    pseudo_labels: str = "memory"  # where a method keeps those it has: see `stores`
    finish: str = "none"  # cft: tune each label's row of the head alone, at the end: see category
    hold_out: float = 0.1  # of the training images, to choose an epoch without a validation split
    goal: str = "f1"  # what thresholds are best for: see `decisions.Goal`
    calibrate: str = "none"  # temperature or isotonic: makes probabilities true, on images held out
    checkpoint_steps: int = 0  # also write a checkpoint every so many steps; 0: after each epoch
    seed: int = 0
    workers: int = 0
    device: str = "auto"

    def problems(self) -> Iterator[str]:
        """Everything that is wrong with these choices."""
        wrong = list(self._wrong_kinds())
        yield from wrong
        if wrong:
            return  # the questions below need text where text belongs
        try:
            methods.get(self.method).check(self.options)
        except PartlyError as error:
            yield from error.problems
        for names, kind, fits, wanted in NUMBERS:
            for name in names:
                value = getattr(self, name)
                left_open = value is None and getattr(Config, name) is None
                if not left_open and not (isinstance(value, kind) and fits(value)):
                    yield f"{name} must be {wanted}, not {value!r}"
        for name, allowed in WORDS.items():
            value = getattr(self, name)
            if value not in allowed and not (value is None and getattr(Config, name) is None):
                yield f"{name} is one of {', '.join(allowed)}, not '{value}'"
        try:
            decisions.Goal.parse(self.goal)
        except PartlyError as error:
            yield from error.problems
        yield from stores.problems(self.pseudo_labels)
        yield from self.look.problems()
        if self.head_only and self.linear_start:
            yield "head_only never trains the backbone: there is nothing for linear_start to start"
        if self.head_only and self.mix != "none":
            yield "head_only looks at each image by itself: it cannot mix them"

        known = {methods.plain_name(name) for name in methods.available()}
        if self.head == "sampled" and methods.plain_name(self.method) in known:
            yield from self._against_sampling()

    def _against_sampling(self) -> Iterator[str]:
        """Why a head cannot be sampled with these choices."""
        usual = methods.get(self.method).options.get("q", 1)
        if not all(0 < end < 1 for end in _ends(self.options.get("q", usual))):
            able = [name for name in methods.available() if "q" in methods.get(name).options]
            yield (
                "head sampled computes a share q of the labels a step: set q between 0 and 1, such "
                f"as q=0.01, with one of the methods {', '.join(able)}"
            )
        unfit = {"optimiser": "adam", "mix": "none", "finish": "none", "linear_start": False}
        for name, value in unfit.items():
            if getattr(self, name) != value:
                yield f"head sampled goes with {name} {value}, not with {getattr(self, name)}"
        if self.pseudo_labels == "disk":
            yield "head sampled changes a few entries of a row, and disk writes all: choose sparse"
        if self.ema:
            yield "head sampled keeps no average of the weights: leave ema open or set it to 0"

    def _wrong_kinds(self) -> Iterator[str]:
        """Choices that are not even of the right kind, as a recipe or a script may hold them."""
        for field_ in fields(self):
            value, default = getattr(self, field_.name), field_.default
            if isinstance(default, bool) and not isinstance(value, bool):
                yield f"{field_.name} must be true or false, not {value!r}"
            text = isinstance(default, str) or field_.name in OPEN_TEXTS
            if text and not (isinstance(value, str) or (value is None and default is None)):
                yield f"{field_.name} must be text, not {value!r}"
        if not isinstance(self.options, Mapping):
            yield f"options must be names and values, not {self.options!r}"

    @property
    def look(self) -> Look:
        """How images are looked at."""
        return Look(
            size=self.image_size,
            resize=self.resize,
            augment=self.augment,
            normalise=self.normalise or "imagenet",
            decode=self.decode,
        )

    @property
    def trained(self) -> str | None:
        """The backbone of what is trained: with head_only, a linear layer on features."""
        return "linear" if self.head_only else self.backbone

    def picks(self, table: LabelTable) -> list[methods.Pick]:
        """What the method chooses for these data where the user did not."""
        picks = methods.get(self.method).picks(table, self.kind(table), self)
        return [pick for pick in picks if getattr(self, pick.name) is None]

    def kind(self, table: LabelTable) -> str:
        """Of the model that is trained: linear, mlp, or the name of a backbone."""
        usual = "linear" if table.features is not None or self.head_only else "resnet50"
        return (self.trained or usual).partition(":")[0]

    def fine_tuned(self, backbone: str) -> bool:
        """Whether training goes on from pretrained weights, if there are any."""
        own = self.head_only or models.is_own(backbone)
        return not own and self.weights != "none"

    def complete(self, table: LabelTable) -> "Config":
        """The same with every None filled in: by the method's picks, the kind of data, or usage."""
        backbone = self.backbone or ("linear" if table.features is not None else "resnet50")
        linear = self.kind(table) == "linear"
        on_features, tuned = table.features is not None or linear, self.fine_tuned(backbone)
        usual = {name: value for name, value in USUAL.items() if getattr(self, name) is None}
        picked = usual | {pick.name: pick.value for pick in self.picks(table)}
        if self.head_decay is None:
            picked.setdefault("head_decay", picked.get("weight_decay", self.weight_decay))
        return replace(
            self,
            **picked,
            backbone=backbone,
            normalise=self.normalise
            or (None if table.features is not None else models.normalisation(backbone)),
            batch_size=self.batch_size
            or usual_batch_size(len(table), *((32, 1024) if on_features else (8, 64))),
            learning_rate=self.learning_rate or (1e-2 if linear else 1e-4 if tuned else 1e-3),
            head_factor=self.head_factor or (10.0 if tuned else 1.0),
            warmup=(0.0 if linear else 0.05) if self.warmup is None else self.warmup,
        )


def _ends(ramp: Any) -> list[float]:
    """Both ends of start:end, or a number; nan for what is neither."""
    try:
        return [float(end) for end in str(ramp).split(":")]
    except ValueError:
        return [math.nan]


def usual_batch_size(images: int, smallest: int, largest: int) -> int:
    """A power of two that leaves 32 steps an epoch, within bounds: small data needs its steps."""
    return max(smallest, min(largest, 2 ** (images // 32).bit_length() // 2))
