"""Methods: a loss, what it remembers of each image, and its schedules, under one name.

What enters: a `Training` (what a method may know of the data and the budget) and options. What
leaves: a step, (logits, batch) -> loss. A method is one function that makes its step; a loss whose
arguments speak for themselves becomes a method by one call of `from_loss`. Whatever is registered
here appears on the command line, in comparisons and in the documents by itself.

Letters: N images, L labels, B images of a batch.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from partly import draws, losses, stores
from partly.distributed import Shard, is_lost
from partly.errors import ConfigError, PartlyError
from partly.labels import NEGATIVE, POSITIVE, UNKNOWN, LabelTable
from partly.losses import fused
from partly.losses.common import attend, within
from partly.metrics import row_blocks
from partly.mixing import Mixture
from partly.propensity import Propensity
from partly.pseudo import chance_of_single, posterior, sample_tilt
from partly.schedules import ramp
from partly.stores import PseudoLabels, SparsePseudoLabels


@dataclass(frozen=True)
class Batch:
    """rows [B]: which images of the table. labels [B, L]: int8 1 / 0 / -1. epoch counts from 1.

    mixture: what the images are mixed from, where they are, and then own [B, L]: the labels each
    row has by itself. teacher: logits [B, L] of another model, of the images unmixed, where the
    method asked for one.

    columns [C]: where a step is about some of the labels only. Then everything here is [B, C], and
    chance [L] is that of an unknown entry to be there (`sampled`).
    """

    rows: Tensor
    labels: Tensor
    epoch: int
    mixture: Mixture | None = None
    own: Tensor | None = None
    teacher: Tensor | None = None
    columns: Tensor | None = None
    chance: Tensor | None = None

    def recall(self, store: PseudoLabels) -> Tensor:
        """What was believed of these images [B, L]; of a mixed one, what follows from its parts."""
        return self.of_mixed(store.get(self.rows, self.columns))

    def of_mixed(self, beliefs: Tensor) -> Tensor:
        """What is believed of the images as they are mixed, from beliefs of each alone [B, L]."""
        if self.mixture is None or self.own is None:
            return beliefs
        return self.mixture.beliefs(beliefs, self.own)

    def of_mixed_alone(self, beliefs: Tensor) -> Tensor:
        """The same as if no label were known: what the images alone make one believe."""
        return replace(self, own=torch.full_like(self.labels, UNKNOWN)).of_mixed(beliefs)

    def of_labels(self, values: Tensor) -> Tensor:
        """What there is for each label [L], of those that the step is about."""
        return values if self.columns is None else values[self.columns]

    def remember(self, store: PseudoLabels, values: Tensor, which: Tensor | None = None) -> None:
        """Keep what was seen; a mixed image says nothing about a single one. Nobody asks what is
        believed of a known entry: where there is no room for all, there is none for it."""
        if isinstance(store, SparsePseudoLabels):
            unknown = self.labels == UNKNOWN
            which = unknown if which is None else which & unknown
        if self.mixture is not None:
            untouched = self.mixture.untouched.expand_as(values)
            which = untouched if which is None else which & untouched
        store.update(self.rows, values, which, self.columns)


Step = Callable[[Tensor, Batch], Tensor]


class Store(Protocol):
    """Something a method remembers; the checkpoint keeps it."""

    def state_dict(self) -> dict[str, Any]: ...


@dataclass
class Training:
    """What a method may know, and where it registers what it remembers."""

    table: LabelTable
    propensity: Propensity
    epochs: int
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    kind: str = "linear"  # of model: linear or mlp on features, else the name of a backbone
    fine_tuned: bool = False  # whether the backbone has learnt elsewhere before
    sampled: bool = False  # whether a step is about some of the labels only
    averaged: bool = False  # whether an average of the model's weights is kept
    audited: bool = (
        False  # whether pseudo-labels are to be remembered, to compare them with a truth
    )
    keep: str = "memory"  # where pseudo-labels are: see `stores`
    folder: Path | None = None  # of the run, where it has one
    stores: dict[str, Store] = field(default_factory=dict)
    estimates: nn.Embedding | None = None  # trained beside the model, with its own learning rate
    teacher: str = "self"  # or whose logits the step asks for: the "average", or a "network"
    focus: float = 0.0  # how much likelier entries weigh more, where they do
    steady: bool = False  # whether a step of drawn labels does the same in each epoch
    notes: list[str] = field(default_factory=list)  # what the method has decided, in sentences

    @cached_property
    def priors(self) -> Tensor:
        return torch.as_tensor(self.propensity.priors, dtype=torch.float32, device=self.device)

    @property
    def expected_positives(self) -> float:
        return self.propensity.expected_positives

    def pseudo_labels(
        self, name: str = "pseudo_labels", start: float | np.ndarray | None = None, **settings: Any
    ) -> PseudoLabels:
        """A new store of pseudo-labels, kept with the checkpoint.

        start: what is believed at first and, in a sparse store, of all that is not kept. None: ½,
        as in the paper; in a sparse store the class priors.
        """
        if start is None:
            start = self.propensity.priors if stores.is_sparse(self.keep) else 0.5
        store = stores.open_store(
            self.keep,
            len(self.table),
            len(self.table.names),
            folder=self.folder,
            name=name,
            start=start,
            device=self.device,
            **settings,
        )
        self.stores[name] = store
        return store

    def pick(self, batch: Batch, q: float) -> Tensor | None:
        """The share q of the entries, drawn anew for each image and epoch; None means all, or that
        the step is about a share already."""
        if q >= 1 or batch.columns is not None:
            return None
        columns = torch.arange(batch.labels.shape[1], device=batch.rows.device)
        draw = draws.uniform(self.seed, draws.PICK, batch.epoch, batch.rows[:, None], columns)
        return draw < q


class Pick(NamedTuple):
    """What a method chooses where the user did not: a field of the `Config`, its value and why."""

    name: str
    value: Any
    why: str


def _no_picks(table: LabelTable, kind: str, config: Any) -> Iterable[Pick]:
    return ()


@dataclass(frozen=True)
class Method:
    """link: logits -> P(label), σ if None; it takes the loss's options. reference: in a study it is
    given the labels that were hidden from the others. parts: what an ablation can remove, with the
    options, or fields of the `Config`, that remove it. picks: what it chooses of the `Config` where
    the user does not, given the table, the kind of model and the user's `Config`. search: values of
    its options that a search for the best may try."""

    name: str
    summary: str
    make: Callable[..., Step]
    options: Mapping[str, Any]
    link: Callable[..., Tensor] | None = None
    reference: bool = False
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    picks: Callable[[LabelTable, str, Any], Iterable[Pick]] = _no_picks
    search: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    needs_expected_positives: bool = False

    def start(self, training: Training, options: Mapping[str, Any] | None = None) -> Step:
        """The step of one training, with these options in place of the defaults."""
        return self.make(training, **self.check(options or {}))

    def rehearse(self, training: Training, options: Mapping[str, Any]) -> None:
        """Step through a few epochs with one image: an impossible option fails before it costs."""
        one = replace(
            training, table=training.table.take(np.arange(1)), stores={}, estimates=None, notes=[]
        )
        one = replace(one, folder=None)  # what is rehearsed leaves nothing there
        labels = torch.from_numpy(one.table.dense()).to(one.device)
        row = torch.zeros(1, dtype=torch.int64, device=one.device)
        try:
            step = self.start(one, options)
            logits = torch.zeros(labels.shape, device=one.device)
            for epoch in sorted({1, min(2, one.epochs), one.epochs}):
                step(logits, Batch(row, labels, epoch))
            self.probability(logits, options)
        except PartlyError:
            raise
        except Exception as error:
            if is_lost(error):  # another rank, not the options
                raise
            given = ", ".join(f"{name}={value}" for name, value in options.items())
            raise ConfigError(f"method '{self.name}' cannot work with {given}: {error}") from None

    def probability(self, logits: Tensor, options: Mapping[str, Any]) -> Tensor:
        """What the logits of a model trained with these options stand for."""
        return torch.sigmoid(logits) if self.link is None else self.link(logits, **options)

    def split(self, choices: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(options, fields of the `Config`) of choices that may be either."""
        options = {name: value for name, value in choices.items() if name in self.options}
        return options, {name: value for name, value in choices.items() if name not in options}

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options, or an error that names every unknown one."""
        unknown = [name for name in options if name not in self.options]
        if unknown:
            known = ", ".join(f"{name}={value}" for name, value in self.options.items())
            raise ConfigError(
                f"method '{self.name}' has no option {', '.join(unknown)}; it has {known or 'none'}"
            )
        return dict(options)


_REGISTRY: dict[str, Method] = {}


def available() -> list[str]:
    """The names `--method` takes.

    >>> "paper" in available() and "partly" in available()
    True
    """
    return list(_REGISTRY)


def plain_name(name: str) -> str:
    """How names are compared: hyphens and underscores are the same."""
    return name.strip().lower().replace("-", "_")


def get(name: str) -> Method:
    """The method of this name, however it is spelt."""
    for known in _REGISTRY.values():
        if plain_name(known.name) == plain_name(name):
            return known
    close = get_close_matches(name, _REGISTRY, n=1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    raise ConfigError(f"no method '{name}'{hint}; available: {', '.join(_REGISTRY)}")


def to_markdown() -> str:
    """The page docs/methods.md: every registered method, its options and its removable parts."""
    lines = [
        "# Methods",
        "",
        "What `--method` takes, written by `partly methods --markdown`. An option is set with",
        "`--set name=value`. A reference is trained on full labels in a comparison. Parts are what",
        "`partly ablate` removes one by one. The losses have cards in [losses.md](losses.md).",
        "",
        "| method | | options | parts |",
        "|---|---|---|---|",
    ]
    for known in _REGISTRY.values():
        options = ", ".join(f"`{name}={value}`" for name, value in known.options.items())
        summary = known.summary + (" (reference)" if known.reference else "")
        lines.append(f"| `{known.name}` | {summary} | {options} | {', '.join(known.parts)} |")
    return "\n".join(lines) + "\n"


def method(name: str, summary: str, **more: Any) -> Callable[[Callable[..., Step]], Any]:
    """Register the function that makes a method's step; its keyword arguments are the options."""

    def register(make: Callable[..., Step]) -> Callable[..., Step]:
        options = _keywords(make)
        _REGISTRY[name] = Method(name, summary, make, options, **more)
        return make

    return register


def from_loss(name: str, summary: str, loss: Callable[..., Tensor], **more: Any) -> None:
    """Register a loss. What training knows is filled into its arguments, the rest are options."""
    keywords = _keywords(loss)
    filled = [word for word in ("epoch", "expected_positives", "priors") if word in keywords]
    fixed = loss.keywords if isinstance(loss, partial) else {}
    taken = {*filled, *fixed, "reduction", "flipped", "backend"}
    options = {word: value for word, value in keywords.items() if word not in taken}

    def make(training: Training, **chosen: Any) -> Step:
        def step(logits: Tensor, batch: Batch) -> Tensor:
            facts = {w: batch.epoch if w == "epoch" else getattr(training, w) for w in filled}
            return loss(logits, batch.labels, **facts, **chosen)

        return step

    counts = bool({"expected_positives", "priors"} & {*filled})
    _REGISTRY[name] = Method(name, summary, make, options, needs_expected_positives=counts, **more)


def _keywords(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


# --- the default, and the paper -------------------------------------------------------------------

TARGETS = ("posterior", "prediction")
TEACHERS = ("auto", "self", "average", "network")
ONES = ("1", "1.0")
STRONGEST_PRIOR = 120.0  # on the weights of a linear layer
SURPRISE = "1:0"  # how much more the unexpected weighs at first, where there are features to learn
CALM = 0.8  # the share of the epochs after which all weighs alike again
FOCUS = 0.25  # how much more likely entries weigh, as a power of what is believed of them
GAMMA = 0.05  # of the paper's α and β
MANY = 5000  # images: enough for a network to teach a linear layer, and for a c₊ of each image


def _partly_picks(table: LabelTable, kind: str, config: Any) -> Iterator[Pick]:
    images, entries = len(table), len(table) * len(table.names)
    free = config.weight_decay is None and config.optimiser != "adamw"  # whose decay is no prior
    if free and (kind == "linear" or config.fine_tuned(kind)):
        features = math.inf if table.features is None else table.features.shape[1]
        strength = min(STRONGEST_PRIOR, 1.5 * math.sqrt(images), (features / 16) ** 2)
        yield Pick(
            "head_decay",
            2 * strength / entries,  # the loss is a mean over entries, the gradient of |W|² is 2W
            f"a prior on the head, {strength:.2g}·|W|² beside the likelihood of all entries, "
            "for labels with few known positives",
        )
    if kind in ("linear", "mlp"):
        return
    if config.head == "full" and (config.ema is None or config.ema > 0):
        yield Pick("ema", 0.99, "an average of steps generalises better than the last one")
        yield Pick("schedule", "constant", "steps of one size, for it is their average that counts")
    if config.fine_tuned(kind):
        yield Pick("batch_norm", "keep", "the statistics that came with the weights are as good")


@method(
    "partly",
    "the default: the likelihood of what was observed, by posterior pseudo-labels",
    picks=_partly_picks,
    needs_expected_positives=True,
    parts={
        "posterior": {"targets": "prediction"},
        "teacher": {"teacher": "self"},
        "focus": {"focus": 0.0},
        "surprise": {"surprise": 0.0},
        "averaged weights": {"ema": 0.0, "schedule": "cosine"},
        "kept batch norm": {"batch_norm": "train"},
        "weight prior": {"head_decay": 0.0},
    },
)
def _partly(
    training: Training,
    *,
    teacher: str = "auto",
    targets: str = "posterior",
    focus: float = FOCUS,
    surprise: float | str = "auto",
    weight: float | str = 1.0,
    q: float | str = 1.0,
    share: str = "off",
    gamma: float = GAMMA,
) -> Step:
    for name, value, allowed in (("targets", targets, TARGETS), ("teacher", teacher, TEACHERS)):
        if value not in allowed:
            raise ConfigError(f"{name} is one of {', '.join(allowed)}, not '{value}'")
    sharpness = within("focus", focus, 0, 10)
    surprising = choose_surprise(training, surprise)
    _check_ramp("weight", weight, 0, 1e6)
    _check_ramp("q", q, 0, 1)
    if share == "off" and gamma != GAMMA:
        training.notes.append("gamma changes nothing without share=known or share=all")
    plain = (str(weight), str(q), share) in ((one, two, "off") for one in ONES for two in ONES)
    training.steady = not training.audited and all(
        ":" not in str(number) for number in (weight, q, surprising)
    )
    training.teacher = choose_teacher(training, teacher, plain)
    known, labels = training.propensity, len(training.table.names)
    by_image = known.single and len(training.table) >= MANY and not training.sampled
    if by_image:
        training.notes.append("partly takes c₊ to be smaller where an image has more positives")
    if training.teacher == "network":
        _attend_to(training, sharpness, "the network believes")
        return _learn_from_network(training, sharpness)
    c_positive, c_negative = (
        torch.as_tensor(c, dtype=torch.float32, device=training.device)
        for c in (known.positive, known.negative)
    )
    # What a model believes of itself is worth attention only where negatives, too, correct it, and
    # where it has no features to learn: then what seems clear at first must not be left in peace.
    correctable = torch.as_tensor(known.negative > 0, device=training.device)
    correctable &= training.kind == "linear"
    own_focus, attentive = sharpness * correctable, bool(correctable.any()) and sharpness > 0
    if training.teacher == "average":
        _attend_to(training, sharpness, "the average believes")
    elif attentive:
        _attend_to(training, sharpness, "the layer itself believes")
    if training.teacher == "self" and not correctable.any() and focus != FOCUS:
        training.notes.append(
            "focus changes nothing here: there is no teacher, and what a model believes of itself "
            "is attended to in a linear layer with known negatives only"
        )
    audited = training.pseudo_labels(start=known.priors) if training.audited else None

    def step(logits: Tensor, batch: Batch) -> Tensor:
        trust = ramp(weight, batch.epoch, training.epochs)
        taken = 1.0 if batch.columns is not None else ramp(q, batch.epoch, training.epochs)
        taught = batch.teacher is not None
        believed = batch.teacher if batch.teacher is not None else logits.detach()
        positive, negative = batch.of_labels(c_positive), batch.of_labels(c_negative)
        if by_image:
            seen = batch.own if taught and batch.own is not None else batch.labels
            positive = chance_of_single(believed, seen, positive)
        chances: dict[str, Any] = {"c_positive": positive, "c_negative": negative}
        chance = None if batch.chance is None else batch.of_labels(batch.chance)
        emphasis = None
        if power := ramp(surprising, batch.epoch, training.epochs, CALM):
            x = logits
            if chance is not None:
                x = logits + sample_tilt(**chances, chance=chance, weight=trust)
            emphasis = losses.surprise(x, batch.labels, **chances) ** power
        if taught and batch.mixture is not None:
            return of_mixed(logits, believed, batch, chances, trust, taken, emphasis)
        loss, pseudo = fused.partly(
            logits,
            batch.labels,
            **chances,
            teacher=believed if taught else None,
            targets=targets,
            focus=sharpness if taught else batch.of_labels(own_focus) if attentive else 0.0,
            weight=trust,
            q=taken,  # a sample stands for the whole unknown part
            picked=training.pick(batch, taken),
            share=share,
            gamma=gamma,
            chance=chance,
            factor=batch.labels.shape[1] / labels,  # a mean over all labels, drawn or not
            emphasis=emphasis,
            store=None if audited is None else "float32",
        )
        if audited is not None and pseudo is not None:
            batch.remember(audited, pseudo)
        return loss

    def of_mixed(
        logits: Tensor,
        believed: Tensor,
        batch: Batch,
        chances: dict[str, Any],
        trust: float,
        taken: float,
        emphasis: Tensor | None,
    ) -> Tensor:
        """What is believed of each image alone is put together, where images are mixed."""
        alpha, beta = losses.balance(batch.labels, gamma, share)
        pseudo = torch.sigmoid(believed)
        if targets == "posterior":
            balanced = chances | {"alpha": alpha, "beta": beta, "weight_unknown": trust}
            pseudo = posterior(believed, **balanced)
        if audited is not None:
            batch.remember(audited, pseudo)
        entries = losses.consistent(
            logits,
            batch.labels,
            batch.of_mixed(pseudo),
            weight=trust / taken if taken else 0.0,
            picked=training.pick(batch, taken),
            alpha=alpha,
            beta=beta,
            reduction="none",
        )
        entries = entries * attend(batch.of_mixed_alone(torch.sigmoid(believed)), sharpness)
        return (entries if emphasis is None else entries * emphasis).mean()

    return step


def _check_ramp(name: str, value: float | str, least: float, most: float) -> None:
    """A number, or start:end, both within bounds."""
    for part in str(value).split(":"):
        within(name, part, least, most)


def _attend_to(training: Training, focus: float, believed: str) -> None:
    if focus:
        training.focus = focus
        training.notes.append(
            f"focus {focus:g}: an entry weighs more the likelier {believed} it to be positive"
        )


def _learn_from_network(training: Training, focus: float) -> Step:
    """The step of a linear layer that learns a network's probabilities, of all entries alike: the
    network has seen the labels, and smooths them. Entries that may be positive weigh more."""
    audited = training.pseudo_labels() if training.audited else None

    def step(logits: Tensor, batch: Batch) -> Tensor:
        teacher = logits.detach() if batch.teacher is None else batch.teacher
        nothing = torch.full_like(batch.labels, UNKNOWN)
        if audited is not None:
            batch.remember(audited, torch.sigmoid(teacher))
        if batch.mixture is not None:
            told = batch.of_mixed_alone(torch.sigmoid(teacher))
            return losses.consistent(logits, nothing, told, weight=attend(told, focus))
        loss, _ = fused.partly(
            logits,
            nothing,
            c_positive=0.0,
            teacher=teacher,
            targets="prediction",
            focus=focus,
            store=None,
        )
        return loss

    return step


def choose_surprise(training: Training, wanted: float | str) -> float | str:
    """The power of the surprise that entries weigh by, as a ramp.

    A network that begins with random weights soon finds that "no" is mostly right, and then learns
    slowly from the few entries that tell it otherwise: at first those count more. In the end all
    count alike, so that what it says are probabilities.
    """
    if wanted == "auto":
        from_nothing = training.kind not in ("linear", "mlp") and not training.fine_tuned
        wanted = SURPRISE if from_nothing else 0.0
    _check_ramp("surprise", wanted, 0, 10)
    if str(wanted) == SURPRISE and ramp(wanted, 1, training.epochs, CALM):
        training.notes.append(
            f"surprise {wanted}: what the network did not expect weighs more at first, and no "
            f"longer after {CALM:.0%} of the epochs; the loss, then on another scale, jumps there"
        )
    return wanted


def choose_teacher(training: Training, wanted: str, plain: bool) -> str:
    """Whose prediction the pseudo-labels of `partly` come from, for this model and these data.

    plain: known and unknown entries weigh alike, all of them, and so do positives and negatives. A
    network whose loss is tilted would have to be set upright before it could teach.
    """
    images, labels = len(training.table), len(training.table.names)
    if wanted == "auto":
        wanted = "self"
        if training.kind == "linear" and plain and images >= MANY:
            wanted = "network"
            training.notes.append(
                "a network of one hidden layer teaches the linear one "
                f"(there are {MANY:,} images or more)"
            )
        elif training.kind == "linear" and images >= MANY:
            training.notes.append("no network teaches: that goes with weight=1, q=1 and share=off")
        elif training.averaged and training.fine_tuned and training.table.known < images * labels:
            wanted = "average"
            training.notes.append(
                "the average of the weights says what the unknown labels may be, for about a third "
                "more time (teacher=self does without)"
            )
    if wanted == "average" and not training.averaged:
        raise ConfigError("teacher=average needs averaged weights: set ema above 0")
    if wanted == "network" and training.kind != "linear":
        raise ConfigError("teacher=network teaches a linear layer on features, nothing else")
    if wanted == "network" and not plain:
        raise ConfigError("teacher=network goes with weight=1, q=1 and share=off only")
    return wanted


@method(
    "paper",
    "the paper, read literally: it collapses where labels are many and rare (docs/paper.md)",
    parts={
        "α and β": {"share": "off"},
        "d": {"d": "off"},
        "p": {"p": "off"},
        "q": {"q": 1.0},
    },
)
def _paper(
    training: Training,
    *,
    gamma: float = 0.05,
    m: float = 3,
    q: float | str = "0.2:1",
    d: str = "text",
    p: str = "text",
    share: str = "all",
    store: str = "float16",
) -> Step:
    _check_ramp("q", q, 0, 1)
    pseudo = training.pseudo_labels(dtype=store)

    def step(logits: Tensor, batch: Batch) -> Tensor:
        loss, fresh = fused.paper_loss(
            logits,
            batch.labels,
            batch.recall(pseudo),
            epoch=batch.epoch,
            epochs=training.epochs,
            gamma=gamma,
            m=m,
            picked=training.pick(batch, ramp(q, batch.epoch, training.epochs)),
            d=d,
            p=p,
            share=share,
        )
        batch.remember(pseudo, fresh)
        return loss

    return step


# --- baselines ----------------------------------------------------------------------------------

SURE = 0.999  # a belief of this or more is a label, as is its opposite

# What is searched: the published value, and what its authors or later work tried around it.
SMOOTHING = {"epsilon": (0.05, 0.1, 0.2)}

from_loss("bce", "cross-entropy on full labels", fused.bce, reference=True)
from_loss(
    "bce_ls",
    "the same with label smoothing",
    losses.bce_ls,
    reference=True,
    search=SMOOTHING,
)
from_loss("ign", "ignore unknown labels", losses.ign)
from_loss("an", "assume that unknown labels are negative", losses.an)
from_loss("an_ls", "assume negative, with label smoothing", losses.an_ls, search=SMOOTHING)
from_loss("wan", "assume negative, at a weight of 1/(L-1)", losses.wan)
from_loss("epr", "known positives and the expected number of positives", losses.epr)
from_loss("focal", "focal loss, unknown = negative", losses.focal, search={"gamma": (1.0, 2.0)})
from_loss(
    "asl",
    "asymmetric loss, unknown = negative",
    fused.asl,
    search={"gamma_negative": (2.0, 4.0), "clip": (0.0, 0.05)},
)
from_loss(
    "em",
    "entropy maximisation on unknown labels",
    losses.em,
    search={"weight": (0.05, 0.1, 0.2)},
)
from_loss(
    "hill",
    "Hill loss: distrusts confident negatives",
    losses.hill,
    search={"margin": (0.0, 1.0), "gamma": (1.0, 2.0)},
)
from_loss(
    "splc",
    "self-paced correction of unknown labels",
    losses.splc,
    search={"threshold": (0.5, 0.6, 0.7)},
)
from_loss(
    "ll-r",
    "large losses of unknown labels are rejected",
    partial(losses.ll, variant="r"),
    search={"rate": (0.0025, None, 0.01)},  # None: the published 0.005
)
from_loss(
    "ll-ct",
    "large losses are flipped for the step",
    partial(losses.ll, variant="ct"),
    search={"rate": (0.001, None, 0.004)},  # None: the published 0.002
)
from_loss("partial_bce", "known labels, weighed by their share", losses.partial_bce)
from_loss(
    "csl",
    "class-aware selective asymmetric loss",
    losses.csl,
    search={"gamma_unknown": (2.0, 4.0), "likely": (1, 5)},
)
from_loss(
    "spa",
    "strictly proper asymmetric loss on known labels",
    losses.spa,
    link=losses.spa_probability,
    search={"slope_negative": (1.0, 3.0), "shift_negative": (0.0, 1.0)},
)


def _remembers_all(training: Training, name: str) -> None:
    """What is decided for good cannot be kept for some entries only."""
    if stores.is_sparse(training.keep):
        raise ConfigError(f"{name} remembers what it decides of every entry: not sparse, but disk")


@method("ll-cp", "large losses are flipped for good", search={"rate": (0.0005, 0.001, 0.002)})
def _ll_cp(training: Training, *, rate: float = 0.001) -> Step:
    _remembers_all(training, "ll-cp")
    rate = within("rate", rate, 0, 1)
    flipped = training.pseudo_labels("flipped", start=0.0, dtype="uint8")

    def step(logits: Tensor, batch: Batch) -> Tensor:
        if batch.epoch > 1:
            left = torch.where(batch.recall(flipped) == 1, POSITIVE, batch.labels)
            chosen = losses.large_losses(logits, left, math.ceil(logits.numel() * rate))
            batch.remember(flipped, torch.ones_like(logits), chosen)
        now = (batch.recall(flipped) == 1) & (batch.labels == UNKNOWN)
        return losses.ll(logits, batch.labels, epoch=batch.epoch, variant="cp", flipped=now)

    return step


@method(
    "curriculum",
    "known labels first; unknown ones that the model is sure of become labels",
    search={"positive": (1.0, 2.0, 4.0), "negative": (2.0, 4.0)},
)
def _curriculum(
    training: Training, *, every: int = 2, positive: float = 2.0, negative: float = 2.0
) -> Step:
    if not isinstance(every, int) or every < 1:
        raise ConfigError(f"labels are decided every 1, 2, … epochs, not every {every}")
    positive, negative = (
        within(name, value, -1e6)
        for name, value in (("positive", positive), ("negative", negative))
    )
    if positive < -negative:
        raise ConfigError(
            f"a logit cannot be above {positive:g} for a positive and below {-negative:g} for a "
            "negative without being both: raise positive or negative"
        )
    _remembers_all(training, "curriculum")
    decided = training.pseudo_labels(start=0.5, dtype="uint8")  # ½: still unknown

    def step(logits: Tensor, batch: Batch) -> Tensor:
        # A mixed image has such a label only where its parts leave no doubt.
        believed = batch.recall(decided)
        sure = torch.full_like(batch.labels, UNKNOWN)
        sure[believed > SURE], sure[believed < 1 - SURE] = POSITIVE, NEGATIVE
        labels = torch.where(batch.labels == UNKNOWN, sure, batch.labels)
        if batch.epoch % every == 0:  # for the epochs to come; each image is seen once in this one
            hard = torch.full(logits.shape, 0.5, device=logits.device)
            hard[logits > positive], hard[logits < -negative] = 1.0, 0.0
            batch.remember(decided, hard)
        return losses.ign(logits, labels)

    return step


@method(
    "role",
    "regularised online label estimation: N×L estimates trained beside the model",
    needs_expected_positives=True,
)
def _role(training: Training) -> Step:
    if training.keep != "memory":
        raise ConfigError(
            "role trains 12 bytes an entry of the table, split over the ranks, in memory: "
            f"pseudo_labels {training.keep} is not for it"
        )
    shard = Shard.of(len(training.table))
    estimates = role_estimates(training.table, training.seed, shard).to(training.device)
    training.estimates = training.stores["estimates"] = estimates

    def step(logits: Tensor, batch: Batch) -> Tensor:
        return losses.role(
            logits,
            batch.labels,
            shard.complete(estimates(shard.places(batch.rows)), batch.rows),
            expected_positives=training.expected_positives,
        )

    return step


def role_estimates(table: LabelTable, seed: int, shard: Shard) -> nn.Embedding:
    """θ of the shard's rows [n, L]: σ(θ) starts uniform in [0.4, 0.6] where unknown, at 0.995 and
    0.005 where known."""
    rows = np.arange(shard.first, shard.stop + shard.spare) % max(len(table), 1)
    columns = np.arange(len(table.names))
    start = torch.empty(len(rows), len(columns))
    for part in row_blocks(start.numpy()):
        draw = draws.uniform(seed, draws.START, 0, rows[part, None], columns)
        labels = table.dense(rows[part])
        draw = np.select([labels == POSITIVE, labels == NEGATIVE], [0.995, 0.005], 0.4 + 0.2 * draw)
        start[part] = torch.logit(torch.from_numpy(draw).float())
    # Sparse gradients: a step touches the rows of its batch, not all N.
    return nn.Embedding.from_pretrained(start, freeze=False, sparse=True)
