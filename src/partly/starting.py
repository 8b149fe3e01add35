"""Before the first step.

What enters: a label table and a complete `Config`. What leaves: a `State`, everything that changes
while training; and what a person is told before it begins.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from partly import (
    checkpoint,
    distributed,
    draws,
    features,
    methods,
    models,
    propensity,
    runs,
    stores,
)
from partly.config import Config
from partly.data import Chunks, Inputs, open_inputs, split_into_chunks
from partly.distributed import Shard
from partly.errors import ConfigError, RunError
from partly.labels import LabelTable
from partly.losses import fused
from partly.processes import keep_memory
from partly.progress import silent, tell
from partly.recording import Recorder
from partly.sampled import RowAdam, SampledHead

MOMENTS = ("exp_avg", "exp_avg_sq")  # what SparseAdam remembers
TEACHER = "mlp:768"  # the network that teaches a linear layer on features


@dataclass
class State:
    """Everything that changes while training; a checkpoint holds what does not follow from it."""

    config: Config
    training: methods.Training
    step_loss: methods.Step
    model: models.Classifier
    forward: nn.Module  # the same (its backbone, if the head is sampled), gradients added up
    average: models.Classifier | None  # the exponential moving average of the weights
    network: nn.Module | None  # that teaches, where the method wants one
    sampled: SampledHead | None  # where a step is about some of the labels only
    recorder: Recorder | None  # where steps are recorded
    optimisers: list[torch.optim.Optimizer]
    inputs: Inputs
    device: torch.device
    steps_per_epoch: int
    origin: str = ""  # where the backbone's weights come from
    guessed: float | None = None  # c₊ of labels of which only positives are known
    eye: nn.Module | None = None  # the frozen backbone in front, where only the head is trained
    orders: dict[int, Chunks] = field(default_factory=dict)  # of this epoch and the next
    epoch: int = 1  # the epoch that runs or comes next
    step: int = 0  # steps taken in all
    loss_sum: Tensor = field(default_factory=lambda: torch.zeros(()))
    best_scores: Tensor | None = None  # of each label [L], in the epoch that was best so far
    best_epoch: int = 0  # the one that is kept
    best_weights: dict[str, Tensor] | None = None  # also in the folder, so not in the checkpoint

    @property
    def method(self) -> methods.Method:
        return methods.get(self.config.method)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def judged(self) -> models.Classifier:
        """The weights that are evaluated and kept."""
        return self.model if self.average is None else self.average

    @property
    def keeps_statistics(self) -> bool:
        """Whether batch norms keep what pretrained weights brought; random ones brought nothing."""
        return self.config.batch_norm == "keep" and not self.origin.startswith(models.RANDOM)

    @property
    def step_of_epoch(self) -> int:
        """Steps of this epoch that are done."""
        return self.step - (self.epoch - 1) * self.steps_per_epoch

    def chunks(self, epoch: int) -> Chunks:
        """The rows of an epoch's batches, whose order is a function of (seed, epoch)."""
        assert self.config.batch_size is not None
        if epoch not in self.orders:
            rows = draws.order(self.config.seed, epoch, len(self.training.table), str(self.device))
            self.orders = {of: chunks for of, chunks in self.orders.items() if of >= self.epoch}
            self.orders[epoch] = split_into_chunks(rows, self.config.batch_size)
        return self.orders[epoch]

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """What is left of this epoch: the rows of each batch [B], and the inputs of this rank's
        part of it."""
        first, chunks = self.step, self.chunks(self.epoch)[self.step_of_epoch :]
        batches: Iterable[tuple[Tensor, Tensor]]
        if self.recorder is not None:  # a recorded step looks its features up itself
            batches = [(torch.empty(0), torch.empty(0))] * len(chunks)
        else:
            parts = [distributed.own_part(chunk) for chunk in chunks]
            batches = self.inputs.batches(parts, self.epoch)
        for number, (chunk, (_, inputs)) in enumerate(zip(chunks, batches, strict=True)):
            self.look_ahead(first + number)
            yield torch.from_numpy(chunk), inputs

    def look_ahead(self, step: int) -> None:
        """Have the labels of steps that come drawn, where labels are drawn and it is time to."""
        head = self.sampled
        if head is None or (due := head.due(step)) is None:
            return
        before, place = divmod(due, self.steps_per_epoch)
        if before < self.config.epochs:
            with head.beside():
                chunks = self.chunks(before + 1)[place:]
                chunks = chunks[: head.steps_ahead(len(chunks[0]), before + 1)]
                head.look_ahead(chunks, before + 1, due)

    def found(self) -> dict[str, Any]:
        """What was settled for these data beyond the `Config`, for `config.json`; None where the
        method does not ask."""
        counts, taught = self.method.needs_expected_positives, "teacher" in self.method.options
        return {
            "teacher": self.training.teacher if taught else None,
            "focus": self.training.focus if "focus" in self.method.options else None,
            "guessed_share": self.guessed,
            "positives_an_image": self.training.expected_positives if counts else None,
        }

    def dump(self) -> dict[str, Any]:
        """The state as tensors and plain values."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "loss_sum": self.loss_sum,
            "best_scores": self.best_scores,
            "best_epoch": self.best_epoch,
            "model": self.model.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "network": None if self.network is None else self.network.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.of_model],
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self.device) if self.on_gpu else None,
        }

    @property
    def of_model(self) -> list[torch.optim.Optimizer]:
        """The optimisers without that of ROLE's estimates, whose moments are rows of images."""
        return self.optimisers if self.training.estimates is None else self.optimisers[:-1]

    @property
    def shard(self) -> Shard:
        """The images of which this rank keeps what is remembered."""
        return Shard.of(len(self.training.table))

    def rows(self) -> dict[str, Tensor]:
        """What is remembered of each image of this rank: tensors of a row an image."""
        every = self.training.stores.items()
        kept = {f"{n}.{k}": t for n, store in every for k, t in store.state_dict().items()}
        for parameter in self.estimated:
            moments = self.optimisers[1].state[parameter]
            kept |= {f"moments.{name}": moments[name] for name in MOMENTS}
        return {name: tensor[: len(self.shard)] for name, tensor in kept.items()}

    @property
    def on_disk(self) -> dict[str, stores.DiskPseudoLabels]:
        """What is remembered in files of its own: a checkpoint only says where."""
        kept = self.training.stores.items()
        return {name: s for name, s in kept if isinstance(s, stores.DiskPseudoLabels)}

    @property
    def estimated(self) -> list[nn.Parameter]:
        """ROLE's estimates, with something for the optimiser to remember of each."""
        if self.training.estimates is None:
            return []
        (parameter,) = self.training.estimates.parameters()
        moments = self.optimisers[1].state[parameter]
        if not moments:  # as the optimiser itself begins
            moments |= {"step": 0, **{name: torch.zeros_like(parameter) for name in MOMENTS}}
        return [parameter]

    def save(self, folder: Path) -> None:
        """A checkpoint: what all ranks share, and what each remembers of its images."""
        content = self.dump()
        content["steps"] = [self.optimisers[1].state[p]["step"] for p in self.estimated]
        content["files"] = {name: store.mark(self.step) for name, store in self.on_disk.items()}
        if self.on_disk:
            distributed.wait()  # until all have marked: then it may be written
        checkpoint.save_sharded(folder / runs.CHECKPOINT, content, self.rows(), self.shard)
        for store in self.on_disk.values():
            store.settle()

    def load_from(self, path: Path) -> None:
        """Go on from a checkpoint."""
        saved, rows = checkpoint.load_sharded(path, self.device, self.shard)
        try:
            self.load(saved, rows)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise RunError(f"checkpoint {path} does not fit this run: {error!r}") from None
        for name, store in self.on_disk.items():
            store.return_to(saved.get("files", {}).get(name))

    def load(self, saved: dict[str, Any], rows: dict[str, Tensor]) -> None:
        """The reverse of `dump` and `rows`."""
        for name in ("epoch", "step", "best_scores", "best_epoch"):
            setattr(self, name, saved[name])
        self.loss_sum.copy_(saved["loss_sum"])
        self.model.load_state_dict(saved["model"])
        if self.average is not None:
            self.average.load_state_dict(saved["average"])
        if self.network is not None:
            self.network.load_state_dict(saved["network"])
        for optimiser, content in zip(self.of_model, saved["optimisers"], strict=True):
            # A copy: on a CPU the optimiser would go on in the checkpoint's file.
            optimiser.load_state_dict(content if self.on_gpu else copy.deepcopy(content))
        for name, tensor in self.rows().items():
            if rows[name].dtype != tensor.dtype:
                raise RunError(f"{name} is stored as {rows[name].dtype}, not as {tensor.dtype}")
            tensor.copy_(rows[name])
        for parameter, step in zip(self.estimated, saved["steps"], strict=True):
            self.optimisers[1].state[parameter]["step"] = step
        torch.set_rng_state(saved["random"].cpu())
        if self.on_gpu and saved["random_cuda"] is not None:  # None: the run began on a CPU
            torch.cuda.set_rng_state(saved["random_cuda"].cpu(), self.device)


def start(
    table: LabelTable,
    config: Config,
    *,
    fresh: bool = True,
    audited: bool = False,
    folder: Path | None = None,
    guess: Callable[[], float | None] = lambda: None,
) -> State:
    """Model, optimisers, inputs and the method's step, all from the seed.

    fresh: False where a checkpoint follows, and what it holds need not be made. audited: whether
    pseudo-labels are kept to be compared with the truth. folder: of the run. guess: the share of
    positives that is known, asked where the method depends on it and nobody said.
    """
    assert config.trained is not None
    assert config.batch_size is not None
    device = runs.choose_device(config.device)
    if device.type == "cpu":
        keep_memory()
    torch.manual_seed(config.seed)
    facts = propensity.estimate(table, config.expected_positives)
    training = methods.Training(
        table,
        facts,
        config.epochs,
        config.seed,
        device,
        kind=config.kind(table),
        fine_tuned=config.fine_tuned(config.kind(table)),
        sampled=config.head == "sampled",
        averaged=bool(config.ema),
        audited=audited,
        keep=config.pseudo_labels,
        folder=folder,
    )
    method = methods.get(config.method)
    method.rehearse(training, config.options)
    guessed = None
    if config.expected_positives is None and method.needs_expected_positives:
        guessed = guess()
        facts = propensity.estimate(table, guessed_share=guessed)
        training = replace(training, propensity=facts)
    step_loss = method.start(training, config.options)
    kept = any(isinstance(store, stores.PseudoLabels) for store in training.stores.values())
    if config.pseudo_labels != "memory" and not kept:
        training.notes.append(
            f"{config.method} keeps no pseudo-labels: pseudo_labels {config.pseudo_labels} changes "
            "nothing"
        )
    if config.mix != "none" and training.estimates is not None:
        raise ConfigError(
            f"{config.method} learns the labels of each image, which a mixed image has none of: "
            "use another method or mix none"
        )
    width = None if table.features is None else table.features.shape[1]
    model = models.build(config.trained, len(table.names), width, size=config.image_size)
    origin = models.RANDOM
    if width is None and fresh:
        origin = models.load_pretrained(model, config.trained, config.weights, config.image_size)
    models.prepare(
        model,
        features=table.features if config.standardise else None,
        priors=facts.priors if config.start == "prior" else None,
    )
    model = model.to(device)
    if width is None:  # faster, on a GPU and on a CPU
        model = model.to(memory_format=torch.channels_last)
    inputs = open_inputs(table, device, config.look, seed=config.seed, workers=config.workers)
    sampled = None
    if config.head == "sampled":
        q = config.options.get("q", method.options["q"])
        sampled = SampledHead(model.head, table, q=q, epochs=config.epochs, seed=config.seed)
        drawn = sampled.expected(min(config.batch_size, len(table)))
        if drawn > len(table.names) / 2:
            training.notes.append(
                f"about {drawn:,.0f} of {len(table.names):,} labels are known in a batch or drawn: "
                "head sampled saves little here"
            )
    # A linear layer leaves a GPU little to do in a step, and Python much to tell it.
    told = training.steady and training.kind == "linear" and device.type == "cuda"
    recorded = told and sampled is not None and distributed.world() == 1
    network = None
    if training.teacher == "network":  # what it knows comes later: `training.learn_before`
        network = models.build(TEACHER, len(table.names), width).to(device)
    average = copy.deepcopy(model).eval().requires_grad_(False) if config.ema else None
    stepped: nn.Module = model if sampled is None else model.backbone
    if config.compile and not fused.has_compiler():
        raise ConfigError("compile needs a C++ compiler, such as g++: install one, or leave it out")
    if config.compile:  # in place: weights keep their names
        for module in (stepped, average):
            if module is not None:
                module.compile()
    return State(
        config=config,
        training=training,
        step_loss=step_loss,
        model=model,
        forward=distributed.wrap(stepped, device),
        average=average,
        network=network and network.eval().requires_grad_(False),
        sampled=sampled,
        recorder=Recorder() if recorded else None,
        optimisers=make_optimisers(model, training.estimates, config, sampled),
        inputs=inputs,
        device=device,
        steps_per_epoch=len(split_into_chunks(np.arange(len(table)), config.batch_size)),
        loss_sum=torch.zeros((), device=device),
        origin=origin,
        guessed=guessed,
    )


def make_optimisers(
    model: models.Classifier,
    estimates: nn.Embedding | None,
    config: Config,
    sampled: SampledHead | None = None,
) -> list[torch.optim.Optimizer]:
    """One for the model, or for its backbone and its sampled head each; a last one, 10 times as
    fast, for ROLE's estimates where there are any."""
    rate = config.learning_rate
    assert rate is not None

    def groups(part: nn.Module, factor: float, decay: float) -> list[dict[str, Any]]:
        return [
            {"params": chosen, "base_lr": factor * rate, "weight_decay": decay if matrix else 0.0}
            for matrix in (True, False)  # a bias or a scale has nothing to gain from being small
            if (chosen := [p for p in part.parameters() if (p.ndim > 1) == matrix])
        ]

    def optimiser(of: list[dict[str, Any]]) -> torch.optim.Optimizer:
        if config.optimiser == "sgd":
            return torch.optim.SGD(of, lr=rate, momentum=0.9)
        adam = torch.optim.AdamW if config.optimiser == "adamw" else torch.optim.Adam
        # The loss is a mean over labels: of very many, each gradient is as small as the usual 1e-8.
        smallest = min(1e-8, 1e-5 / model.head.out_features)
        return adam(of, lr=rate, eps=smallest, fused=True)

    backbone = groups(model.backbone, 1.0, config.weight_decay or 0.0)
    head = groups(model.head, config.head_factor or 1.0, config.head_decay or 0.0)
    if sampled is not None:
        return [*([optimiser(backbone)] if backbone else []), RowAdam(head, sampled, rate)]
    if estimates is None:
        return [optimiser(backbone + head)]
    own = [{"params": list(estimates.parameters()), "base_lr": 10 * rate}]
    return [optimiser(backbone + head), torch.optim.SparseAdam(own, lr=10 * rate)]


def open_eye(
    config: Config, folder: Path | None = None, origin: str | None = None
) -> tuple[nn.Module, str]:
    """The frozen backbone of a head-only training, and where its weights come from.

    folder, origin: of a run that goes on, and keeps what it began with.
    """
    assert config.backbone is not None
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        model = models.build(config.backbone, 1, size=config.image_size)
    stored = None if folder is None else runs.read_weights(folder, runs.EYE)
    if stored is None:
        weights, size = config.weights, config.image_size
        return model.backbone, models.load_pretrained(model, config.backbone, weights, size)
    model.backbone.load_state_dict(stored)
    return model.backbone, origin or "the run's own weights"


def look_through(
    eye: nn.Module,
    config: Config,
    table: LabelTable,
    *,
    quiet: bool = True,
) -> LabelTable:
    """The table with what the frozen backbone sees in each image, each rank looking at a part."""
    say = silent if quiet else tell
    device, workers = runs.choose_device(config.device), config.workers

    def look(rows: np.ndarray) -> np.ndarray:
        part = features.with_features(
            table.take(rows), eye, config.look, device, workers=workers, quiet=quiet, say=say
        )
        assert part.features is not None
        return part.features

    seen = distributed.in_parts(len(table), look)
    return replace(table, paths=None, features=seen, checked=True)


def introduce(state: State, picks: list[methods.Pick]) -> Iterator[str]:
    """What is about to happen, for a person who has to decide whether to wait for it."""
    config, table = state.config, state.training.table
    yield f"{config.method} on {len(table):,} images, {len(table.names):,} labels"
    if distributed.world() > 1:
        yield distributed.described()
    if state.step and state.epoch <= config.epochs:
        yield f"goes on after step {state.step:,} of {config.epochs * state.steps_per_epoch:,}"
    source = state.training.propensity.source
    yield source if state.method.needs_expected_positives else source.partition(":")[0]
    for pick in picks:
        value = getattr(config, pick.name)
        shown = f"{value:.3g}" if isinstance(value, float) else value
        yield f"{config.method} picks {pick.name} {shown}: {pick.why}"
    yield from state.training.notes
    if state.eye is not None:
        yield f"on features of {config.backbone} from {state.origin}, {config.image_size} px"
    if table.features is None:
        goes_on = "the checkpoint, which began from " if state.step else ""
        yield (
            f"{config.backbone} from {goes_on}{state.origin}, {config.image_size} px, "
            f"on {state.device}"
        )
        if state.origin.startswith(models.RANDOM) and config.backbone == "resnet50":
            yield (
                "from random weights it needs far more images, epochs and --lr 1e-3: name "
                "--weights, a smaller --backbone (small), or tf_efficientnet_lite0 with "
                "partly[weights]"
            )
        explanation = getattr(state.inputs, "explanation", None)
        if explanation:
            yield explanation
