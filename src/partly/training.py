"""The training loop.

What enters: a label table, a `Config` and, if it shall be kept, a folder. What leaves: a
`Predictor` (the trained model) and the folder's files (`runs.py`). Read `train` from top to bottom:
it is the whole story; everything it calls is below it or in a room above.

    partly train data.csv --out run            start
    partly train data.csv --out run --resume   go on after a crash, to the same end
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from partly import (
    category,
    checkpoint,
    draws,
    features,
    methods,
    metrics,
    mixing,
    models,
    propensity,
    pseudo,
    runs,
)
from partly.config import Config
from partly.data import Inputs, missing_images, open_inputs, split_into_chunks
from partly.errors import ConfigError, DataError, RunError, raise_if
from partly.labels import LabelTable, check_trainable
from partly.processes import keep_memory
from partly.progress import Progress, tell
from partly.schedules import learning_rate_factor

Given = ParamSpec("Given")
Result = TypeVar("Result")
LINEAR_EPOCHS = 6  # of a linear start
TEACHER = "mlp:768"  # the network that teaches a linear layer on features
UNTUNED = "untuned.safetensors"  # in a run's folder: the head before its rows were tuned
SMALLEST_HOLD_OUT = 50  # fewer images than this choose an epoch by luck


def _silent(line: str) -> None:
    """Say nothing."""


def keeps_random_state(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Training seeds torch; the caller's own draws go on as if nothing had happened."""

    @wraps(function)
    def wrapped(*arguments: Given.args, **named: Given.kwargs) -> Result:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            return function(*arguments, **named)

    return wrapped


@keeps_random_state
def train(
    table: LabelTable,
    config: Config,
    out: str | Path | None = None,
    *,
    validation: LabelTable | None = None,
    truth: LabelTable | None = None,
    resume: bool = False,
    quiet: bool = False,
    notes: Mapping[str, Any] | None = None,
    skipped: Mapping[str, str] | None = None,
) -> runs.Predictor:
    """Train on `table` and return the model of the chosen epoch.

    validation: images whose labels are known, to choose the epoch. Without it a share
    (`config.hold_out`) of the training images is set aside and judged by its known labels only; a
    share of 0 keeps the last epoch.
    truth: the labels a study has hidden, for an audit of the pseudo-labels; never trained on.
    notes: what else `config.json` shall say, such as where the data came from.
    skipped: images that were left out, by id, with what is wrong with them.
    """
    check_trainable(table)
    raise_if(config.problems(), ConfigError)
    raise_if(finish_problems(table, validation, config), ConfigError)
    if table.paths is not None:
        raise_if(missing_images(table.paths), DataError)
    folder = None if out is None else Path(out)
    stored = open_folder(folder, resume)  # what this run wrote down when it began
    backbone = config.kind(table)
    if config.weights == "auto" and config.fine_tuned(backbone):  # other choices depend on it
        there = stored.get("weights") or models.settle(backbone, "auto", config.image_size)[0]
        config = replace(config, weights=there)
    picks, config = config.picks(table), config.complete(table)
    record = {"inputs_hash": table.inputs_hash, **(notes or {})}
    eye = None
    if config.head_only and table.features is None:
        eye, record["origin"] = open_eye(config, folder if stored else None, stored.get("origin"))
        see = partial(look_through, eye, config, quiet=quiet)
        table, validation = see(table), validation and see(validation)
    record = describe(table, config) | record
    record["validation_hash"] = None if validation is None else validation.content_hash
    if stored:
        check_same(folder, stored, record)

    if validation is None and config.hold_out > 0:
        table, validation, truth = hold_out(table, truth, config)
    kept = folder / runs.CHECKPOINT if folder is not None and stored else None
    has_checkpoint = kept is not None and kept.exists()
    state = start(table, config, quiet, fresh=not has_checkpoint, audited=truth is not None)
    state.eye, state.origin = eye, stored.get("origin") or record.get("origin") or state.origin
    record["origin"] = state.origin
    judge = open_judge(validation, state)
    if folder is not None:
        if kept is not None and has_checkpoint:
            state.load_from(kept)
            state.best_weights = runs.read_weights(folder)
        runs.begin(folder, record, eye, skipped or {}, state.epoch, fresh=not stored)
    save = partial(save_checkpoint, folder, state)
    if state.network is not None and not has_checkpoint:
        save()  # it took a training of its own

    with Progress(config.epochs * state.steps_per_epoch, state.step, quiet=quiet) as progress:
        for line in introduce(state, picks, judge is not None):
            progress.say(line)
        while state.epoch <= config.epochs:
            began, first = time.monotonic(), state.step_of_epoch
            models.train_mode(state.model, keep_statistics=state.keeps_statistics)
            for rows, inputs in state.batches():
                loss = take_step(state, rows, inputs)
                progress.step(loss)
                if config.checkpoint_steps and state.step % config.checkpoint_steps == 0:
                    save()
            metric = finish_epoch(state, time.monotonic() - began, first)
            if judge is not None:
                keep_if_best(state, metric, judge, folder)
            if folder is not None:
                checkpoint.append_line(folder / runs.METRICS, metric)
                audit_pseudo_labels(state, truth, folder, metric["epoch"])
            save()
            progress.epoch(metric, config.epochs)
        if state.best_epoch:
            progress.say(f"epoch {state.best_epoch} is kept")
    return finish(state, record, judge, folder, _silent if quiet else tell)


# --- one step ------------------------------------------------------------------------------------


@dataclass
class State:
    """Everything that changes while training, and so everything a checkpoint holds."""

    config: Config
    training: methods.Training
    step_loss: methods.Step
    model: models.Classifier
    average: models.Classifier | None  # the exponential moving average of the weights
    network: nn.Module | None  # that teaches, where the method wants one
    optimisers: list[torch.optim.Optimizer]
    inputs: Inputs
    device: torch.device
    steps_per_epoch: int
    origin: str = ""  # where the backbone's weights come from
    eye: nn.Module | None = None  # the frozen backbone in front, where only the head is trained
    epoch: int = 1  # the epoch that runs or comes next
    step: int = 0  # steps taken in all
    loss_sum: Tensor = field(default_factory=lambda: torch.zeros(()))
    best_score: float = -1.0
    best_epoch: int = 0
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

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """What is left of this epoch: its order is a function of (seed, epoch)."""
        assert self.config.batch_size is not None
        rows = draws.order(self.config.seed, self.epoch, len(self.training.table))
        chunks = split_into_chunks(rows, self.config.batch_size)
        return self.inputs.batches(chunks[self.step_of_epoch :], self.epoch)

    def dump(self) -> dict[str, Any]:
        """The state as tensors and plain values."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "loss_sum": self.loss_sum,
            "best_score": self.best_score,
            "best_epoch": self.best_epoch,
            "model": self.model.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "network": None if self.network is None else self.network.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "stores": {name: store.state_dict() for name, store in self.training.stores.items()},
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self.device) if self.on_gpu else None,
        }

    def load_from(self, path: Path) -> None:
        """Go on from a checkpoint."""
        saved = checkpoint.load(path, self.device)
        try:
            self.load(saved)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise RunError(f"checkpoint {path} does not fit this run: {error!r}") from None

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `dump`."""
        for name in ("epoch", "step", "loss_sum", "best_score", "best_epoch"):
            setattr(self, name, saved[name])
        self.model.load_state_dict(saved["model"])
        if self.average is not None:
            self.average.load_state_dict(saved["average"])
        if self.network is not None:
            self.network.load_state_dict(saved["network"])
        for optimiser, content in zip(self.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(content)
        for name, store in self.training.stores.items():
            store.load_state_dict(saved["stores"][name])
        torch.set_rng_state(saved["random"].cpu())
        if self.on_gpu and saved["random_cuda"] is not None:  # None: the run began on a CPU
            torch.cuda.set_rng_state(saved["random_cuda"].cpu(), self.device)


def take_step(state: State, rows: Tensor, inputs: Tensor) -> Tensor:
    """Forward, loss, backward, update; returns the loss without waiting for it."""
    labels = _sent(torch.from_numpy(state.training.table.dense(rows.numpy())), state)
    rows = _sent(rows, state)
    set_learning_rates(state)
    teacher = ask_teacher(state, inputs)
    if state.config.mix == "none":
        batches = [(1.0, methods.Batch(rows, labels, state.epoch, teacher=teacher))]
    else:
        inputs, batches = mix_batch(state, rows, inputs, labels, teacher)
    with precision(state):
        logits = state.model(inputs).float()
    losses = (weight * state.step_loss(logits, batch) for weight, batch in batches)
    loss = sum(losses, start=logits.new_zeros(()))
    for optimiser in state.optimisers:
        optimiser.zero_grad(set_to_none=True)
    loss.backward()
    if state.config.clip:
        nn.utils.clip_grad_norm_(state.model.parameters(), state.config.clip)
    for optimiser in state.optimisers:
        optimiser.step()
    state.step += 1
    state.loss_sum += loss.detach()
    if state.average is not None:
        move_average(state.average, state.model, state.config.ema or 0.0, state.step)
    return loss.detach()


@torch.no_grad()
def ask_teacher(state: State, inputs: Tensor) -> Tensor | None:
    """The logits of the averaged model or of the network, where the method learns from one."""
    teacher = {"average": state.average, "network": state.network}.get(state.training.teacher)
    if teacher is None:
        return None
    with precision(state):
        return teacher(inputs).float()


def _sent(tensor: Tensor, state: State) -> Tensor:
    """On the device, without waiting for what it is still busy with."""
    if not state.on_gpu:
        return tensor
    return tensor.pin_memory().to(state.device, non_blocking=True)


def mix_batch(
    state: State, rows: Tensor, inputs: Tensor, labels: Tensor, teacher: Tensor | None
) -> tuple[Tensor, Any]:
    """Mixed inputs, and the batches with their weights that the loss is the sum over."""
    config = state.config
    mixture, targets = mixing.mix(
        config.mix, labels, seed=config.seed, epoch=state.epoch, rows=rows
    )
    batches = [
        (weight, methods.Batch(rows, mixed, state.epoch, mixture, labels, teacher))
        for weight, mixed in targets
    ]
    return mixture.inputs(inputs), batches


def set_learning_rates(state: State) -> None:
    """Warm-up and cosine, for the model and for whatever a method trains beside it."""
    steps = state.config.epochs * state.steps_per_epoch
    warmup = state.config.warmup or 0.0
    factor = learning_rate_factor(state.step, steps, warmup, state.config.schedule or "cosine")
    for optimiser in state.optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["base_lr"] * factor


def precision(state: State) -> AbstractContextManager[Any]:
    """Mixed precision in bfloat16, where it is asked for or comes for free."""
    amp, kind = state.config.amp, state.device.type
    if amp == "on" or (amp == "auto" and kind == "cuda" and torch.cuda.is_bf16_supported()):
        return torch.autocast(kind, dtype=torch.bfloat16)
    return nullcontext()


@torch.no_grad()
def move_average(average: nn.Module, model: nn.Module, decay: float, step: int) -> None:
    """average ← decay·average + (1-decay)·weights, faster at first; buffers are copied."""
    pull = 1 - min(decay, (1 + step) / (10 + step))
    # All tensors in one call each: hundreds of small ones would cost more than the step itself.
    torch._foreach_lerp_([*average.parameters()], [*model.parameters()], pull)
    if buffers := [*average.buffers()]:
        torch._foreach_copy_(buffers, [*model.buffers()])


# --- before and after ----------------------------------------------------------------------------


def open_folder(folder: Path | None, resume: bool) -> dict[str, Any]:
    """What the run in this folder says about itself, if it shall go on; nothing for a new one."""
    if folder is None:
        return {}
    if resume and (folder / runs.CONFIG).exists():
        return checkpoint.read_json(folder / runs.CONFIG)
    if any((folder / name).exists() for name in runs.RESULTS):
        raise RunError(f"{folder} already holds a run: add --resume to go on, or name another")
    return {}


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
    """The table with what the frozen backbone sees in each image."""
    say = _silent if quiet else tell
    device, workers = runs.choose_device(config.device), config.workers
    return features.with_features(
        table, eye, config.look, device, workers=workers, quiet=quiet, say=say
    )


def start_linearly(state: State, table: LabelTable, quiet: bool) -> None:
    """Give the head what a linear layer learns on the frozen backbone's features."""
    config = state.config
    if not quiet:
        tell(f"linear start: {LINEAR_EPOCHS} epochs of the head alone")
    seen = look_through(copy.deepcopy(state.model.backbone), config, table, quiet=quiet)
    plan = replace(config, head_only=True, linear_start=False, mix="none", hold_out=0.0)
    plan = replace(plan, learning_rate=None, batch_size=None, warmup=None, head_factor=None)
    plan = replace(plan, epochs=LINEAR_EPOCHS, finish="none")
    plan = replace(plan, weight_decay=None, schedule=None, ema=None, batch_norm=None)
    if "teacher" in methods.get(config.method).options:
        plan = replace(plan, options={**config.options, "teacher": "self"})
    linear = train(seen, plan, quiet=True).model
    assert isinstance(linear, models.Classifier)
    models.take_head(state.model, linear)


def train_teacher(table: LabelTable, config: Config, *, fresh: bool) -> nn.Module:
    """A network of one hidden layer that has learnt from the same labels, to teach a linear one."""
    options = {**config.options, "teacher": "self"}
    plan = replace(config, backbone=TEACHER, head_only=False, options=options, finish="none")
    plan = replace(plan, learning_rate=2e-3, head_factor=1.0, ema=0.0, hold_out=0.0)
    plan = replace(plan, schedule="cosine", weight_decay=0.0, warmup=0.0, start="prior")
    # Where a checkpoint follows it holds the weights.
    model = train(table, plan, quiet=True).model if fresh else start(table, plan).model
    return model.eval().requires_grad_(False)


def start(
    table: LabelTable,
    config: Config,
    quiet: bool = True,
    *,
    fresh: bool = True,
    audited: bool = False,
) -> State:
    """Model, optimisers, inputs and the method's step, all from the seed.

    fresh: False where a checkpoint follows, and what it holds need not be made. audited: whether
    pseudo-labels are kept to be compared with the truth.
    """
    assert config.trained is not None
    assert config.batch_size is not None
    device = runs.choose_device(config.device)
    if device.type == "cpu":
        keep_memory()
    torch.manual_seed(config.seed)
    facts = propensity.estimate(table, config.expected_positives)
    training = methods.Training(
        table, facts, config.epochs, config.seed, device, config.kind(table), bool(config.ema),
        audited,
    )  # fmt: skip
    method = methods.get(config.method)
    method.rehearse(training, config.options)
    step_loss = method.start(training, config.options)
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
    if device.type == "cuda" and width is None:
        model = model.to(memory_format=torch.channels_last)
    inputs = open_inputs(table, device, config.look, seed=config.seed, workers=config.workers)
    network = None
    if training.teacher == "network":
        if fresh and not quiet:
            tell(f"training a network ({TEACHER}) that will teach the linear layer")
        network = train_teacher(table, config, fresh=fresh).to(device)
        torch.manual_seed(config.seed)
    state = State(
        config=config,
        training=training,
        step_loss=step_loss,
        model=model,
        average=copy.deepcopy(model).eval().requires_grad_(False) if config.ema else None,
        network=network,
        optimisers=make_optimisers(model, training.estimates, config),
        inputs=inputs,
        device=device,
        steps_per_epoch=len(split_into_chunks(np.arange(len(table)), config.batch_size)),
        loss_sum=torch.zeros((), device=device),
        origin=origin,
    )
    if config.linear_start and width is None and fresh:
        start_linearly(state, table, quiet)
        if state.average is not None:
            state.average.load_state_dict(state.model.state_dict())
    return state


def introduce(state: State, picks: list[methods.Pick], judged: bool) -> Iterator[str]:
    """What is about to happen, for a person who has to decide whether to wait for it."""
    config, table = state.config, state.training.table
    yield f"{config.method} on {len(table):,} images, {len(table.names):,} labels"
    yield state.training.propensity.source
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
    if not judged:
        yield "no images to choose an epoch by: the last one is kept"


def make_optimisers(
    model: models.Classifier, estimates: nn.Embedding | None, config: Config
) -> list[torch.optim.Optimizer]:
    """One for the model; a second, 10 times as fast, for ROLE's estimates where there are any."""
    rate = config.learning_rate
    assert rate is not None
    decay = config.weight_decay or 0.0
    groups = [
        {"params": chosen, "base_lr": rate * factor, "weight_decay": decay if is_weight else 0.0}
        for part, factor in ((model.backbone, 1.0), (model.head, config.head_factor or 1.0))
        for is_weight in (True, False)  # a bias or a scale has nothing to gain from being small
        if (chosen := [p for p in part.parameters() if (p.ndim > 1) == is_weight])
    ]
    optimiser: torch.optim.Optimizer
    if config.optimiser == "sgd":
        optimiser = torch.optim.SGD(groups, lr=rate, momentum=0.9)
    else:
        adam = torch.optim.AdamW if config.optimiser == "adamw" else torch.optim.Adam
        optimiser = adam(groups, lr=rate, fused=True)
    if estimates is None:
        return [optimiser]
    own = [{"params": list(estimates.parameters()), "base_lr": 10 * rate}]
    return [optimiser, torch.optim.SparseAdam(own, lr=10 * rate)]


def hold_out(
    table: LabelTable, truth: LabelTable | None, config: Config
) -> tuple[LabelTable, LabelTable | None, LabelTable | None]:
    """(train, validation, truth of train). Too few images to judge by stay in the training set."""
    rows, aside = np.arange(len(table)), drawn_aside(len(table), config)
    if not aside.any():
        return table, None, truth
    kept_truth = None if truth is None else truth.take(rows[~aside])
    return table.take(rows[~aside]), table.take(rows[aside]), kept_truth


def drawn_aside(images: int, config: Config) -> np.ndarray:
    """Which images [N] are held out; none where they would be too few to judge by."""
    rows, column = np.arange(images), np.zeros(1, dtype=np.int64)
    aside = draws.uniform(config.seed, draws.HOLD_OUT, 0, rows, column) < config.hold_out
    return aside if aside.sum() >= SMALLEST_HOLD_OUT else np.zeros_like(aside)


@dataclass
class Judge:
    """Scores an epoch on held-out images, by their known labels only."""

    predictor: runs.Predictor
    table: LabelTable
    labels: np.ndarray

    def logits(self) -> np.ndarray:
        return self.predictor.logits(self.table)


def open_judge(validation: LabelTable | None, state: State) -> Judge | None:
    """None where there is nothing to judge by: then the last epoch is kept."""
    if validation is None:
        return None
    table = validation.reorder(state.training.table.names, "the validation part")
    return Judge(predictor(state, describe(table, state.config)), table, table.dense())


def keep_if_best(state: State, metric: dict[str, Any], judge: Judge, folder: Path | None) -> None:
    """Score this epoch and, if it is the best so far, keep its weights."""
    score, criterion = metrics.select_score(judge.logits(), judge.labels)
    metric["validation_score"] = score if np.isfinite(score) else None
    metric["criterion"] = criterion
    if score >= state.best_score:  # which nan is not; of equal epochs the later has learnt more
        state.best_score, state.best_epoch = score, metric["epoch"]
        state.best_weights = copy.deepcopy(state.judged.state_dict())
        if folder is not None:
            runs.write_weights(folder, state.best_weights)


def finish_epoch(state: State, seconds: float, first: int) -> dict[str, Any]:
    """The epoch's record; `first` is the step it was entered at, above 0 after a crash."""
    loss = float(state.loss_sum) / state.steps_per_epoch
    if not np.isfinite(loss):
        raise RunError(
            f"the loss is not finite in epoch {state.epoch}: lower the learning rate "
            f"(it is {state.config.learning_rate:g}) or clip the gradient"
        )
    share = 1 - first / state.steps_per_epoch
    metric = {
        "epoch": state.epoch,
        "loss": loss,
        "learning_rate": state.optimisers[0].param_groups[0]["lr"],
        "images_per_second": share * len(state.training.table) / max(seconds, 1e-9),
    }
    state.epoch += 1
    state.loss_sum.zero_()
    return metric


def save_checkpoint(folder: Path | None, state: State) -> None:
    """Everything needed to go on, whole or not at all."""
    if folder is not None:
        checkpoint.save(folder / runs.CHECKPOINT, state.dump())


def audit_pseudo_labels(state: State, truth: LabelTable | None, folder: Path, epoch: int) -> None:
    """Write down how good the pseudo-labels are, where a study knows the truth."""
    store = state.training.stores.get("pseudo_labels")
    if truth is None or not isinstance(store, pseudo.PseudoLabels):
        return
    table = state.training.table
    values = store.get(torch.arange(len(table), device=state.device)).cpu().numpy()
    record = {"epoch": epoch, **pseudo.audit(values, table, truth)}
    checkpoint.append_line(folder / runs.AUDIT, record)


def finish_problems(
    table: LabelTable, validation: LabelTable | None, config: Config
) -> Iterator[str]:
    """Why these data or this method cannot be finished as the user wants it."""
    if config.finish == "none":
        return
    if validation is None and not drawn_aside(len(table), config).any():
        yield (
            f"finish {config.finish} keeps what ranks other images better, and there are none: "
            f"mark a validation part, or hold out {SMALLEST_HOLD_OUT} images or more (hold_out is "
            f"{config.hold_out:g} of {len(table):,})"
        )
    if methods.get(config.method).link is not None:
        yield (
            f"finish {config.finish} fits by cross-entropy, and {config.method} reads "
            "probabilities from its logits in another way: choose another method or finish none"
        )


def finish(
    state: State,
    record: dict[str, Any],
    judge: Judge | None,
    folder: Path | None,
    say: Callable[[str], None] = _silent,
) -> runs.Predictor:
    """Put the chosen weights in place, fit thresholds, write what is left to write."""
    if state.best_weights is not None:
        state.judged.load_state_dict(state.best_weights)
    if state.config.finish == "cft" and judge is not None:
        tune_rows(state, judge, folder, say)
    result = predictor(state, record)
    if judge is not None:
        probabilities = result.to_probabilities(torch.from_numpy(judge.logits()))
        result.thresholds = metrics.tune_thresholds(probabilities, judge.labels)
    if folder is not None:
        runs.write_weights(folder, state.judged.state_dict())
        checkpoint.write_json(folder / runs.CONFIG, record | {"finished": True})
        if result.thresholds is not None:
            chosen = dict(zip(result.names, result.thresholds.tolist(), strict=True))
            checkpoint.write_json(folder / runs.THRESHOLDS, chosen)
    return result


def tune_rows(state: State, judge: Judge, folder: Path | None, say: Callable[[str], None]) -> None:
    """Category-wise fine-tuning of the chosen weights, on what their backbone sees."""
    table, head = state.training.table, state.judged.head
    if folder is not None:  # a run that stopped in here begins with the same rows again
        before = runs.read_weights(folder, UNTUNED)
        if before is None:
            runs.write_weights(folder, head.state_dict(), UNTUNED)
        else:
            head.load_state_dict(before)
    labels = table.dense()
    if not (category.has_both(labels) & category.has_both(judge.labels)).any():
        say("cft left the model as it is: no label has known positives and negatives to judge by")
        return
    look, workers = state.config.look, state.config.workers
    others = open_inputs(judge.table, state.device, look, workers=workers)
    tuned = category.fine_tune(
        features_seen(state, state.inputs, len(table)),
        labels,
        head.weight.detach(),
        head.bias.detach(),
        features_seen(state, others, len(judge.table)),
        judge.labels,
    )
    head.load_state_dict({"weight": tuned.weight, "bias": tuned.bias})
    count = f"{tuned.changed.sum():,} of {len(table.names):,} labels"
    say(f"cft improved the ranking of {count} on the images it is judged by")


@torch.inference_mode()
def features_seen(state: State, inputs: Inputs, images: int) -> Tensor:
    """What the chosen backbone sees in each image [N, F], without augmentation."""
    chunks = split_into_chunks(np.arange(images), max(state.config.batch_size or 0, 256))
    backbone = state.judged.eval().backbone
    return torch.cat([backbone(batch).float() for _, batch in inputs.batches(chunks)])


def predictor(state: State, record: dict[str, Any]) -> runs.Predictor:
    """The weights under training, ready for use."""
    names = state.training.table.names
    return runs.Predictor(state.judged, state.method, names, record, state.device, eye=state.eye)


def describe(table: LabelTable, config: Config) -> dict[str, Any]:
    """What `config.json` holds."""
    return {
        **asdict(config),
        "images": len(table),
        "features": None if table.features is None else table.features.shape[1],
        "labels": list(table.names),
        "label_hash": table.content_hash,
        "inputs_hash": table.inputs_hash,
        "label_counts": {
            kind: numbers.tolist() for kind, numbers in table.counts_by_label()._asdict().items()
        },
        "versions": runs.versions(),
    }


# What may change between a run and its continuation without changing its result.
FREE_ON_RESUME = ("versions", "device", "workers", "checkpoint_steps")
HASHES = {
    "label_hash": "the labels to train on",
    "inputs_hash": "the images or features",
    "validation_hash": "the labels to validate on",
}
DESCRIBED = ("images", "features", "labels", "label_counts")  # and covered by a hash


def check_same(folder: Path | None, began: dict[str, Any], record: dict[str, Any]) -> None:
    """A run can only go on with the choices and labels it began with."""
    changed = [name for name in record if began.get(name) != record[name]]
    raise_if(
        (
            f"cannot resume {folder}: {HASHES[name]} have changed"
            if name in HASHES
            else f"cannot resume {folder}: {name} was {began.get(name)!r}, now {record[name]!r}"
            for name in changed
            if name not in (*FREE_ON_RESUME, *DESCRIBED)
        ),
        RunError,
    )
