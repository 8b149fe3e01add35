"""The training loop.

What enters: a label table, a `Config` and, if it shall be kept, a folder. What leaves: a
`Predictor` (the trained model) and the folder's files (`runs.py`). Read `train` and
`_train` from top to bottom: they are the whole story; everything they call is below them or in a
room above.

    partly train data.csv --out run            start
    partly train data.csv --out run --resume   go on after a crash, to the same end
"""

import copy
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from partly import (
    checkpoint,
    counting,
    distributed,
    draws,
    judging,
    methods,
    mixing,
    models,
    processes,
    propensity,
    runs,
)
from partly.config import Config
from partly.data import FeatureInputs, missing_images, prepare, sent
from partly.errors import ConfigError, DataError, RunError, raise_if
from partly.labels import UNKNOWN, LabelTable, check_trainable
from partly.progress import Progress, silent, tell
from partly.sampled import Drawn, Packed, RowAdam
from partly.schedules import learning_rate_factor
from partly.starting import TEACHER, State, introduce, look_through, open_eye, start

Given = ParamSpec("Given")
Result = TypeVar("Result")
LINEAR_EPOCHS = 6  # of a linear start
LOOKED_AT = 4_000  # images, to guess how many of the positives are known


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
    known_share: float | None = None,
) -> runs.Predictor:
    """Train on `table` and return the model of the chosen epoch.

    validation: images whose labels are known, to choose the epoch. Without it a share
    (`config.hold_out`) of the training images is set aside and judged by its known labels only; a
    share of 0 keeps the last epoch.
    truth: the labels a study has hidden, for an audit of the pseudo-labels; never trained on.
    notes: what else `config.json` shall say, such as where the data came from.
    skipped: images that were left out, by id, with what is wrong with them.
    known_share: of the positives of a label of which no negative is known, how many are; guessed
    where the method depends on it and neither this nor the number of positives is given.

    >>> X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    >>> Y = np.where(X[:, :3] > 0, 1, 0)
    >>> Y[::2] = -1  # unknown
    >>> table = LabelTable.from_dense(Y, features=X)
    >>> model = train(table, Config(epochs=2), quiet=True)
    >>> model.logits(table).shape
    (60, 3)
    """
    if not isinstance(table, LabelTable):
        raise DataError(f"{type(table).__name__} is no table: give partly.read(DATA).part('train')")
    check_trainable(table)
    raise_if(config.problems(), ConfigError)
    distributed.begin(config.device)
    quiet = quiet or not distributed.is_first()
    raise_if(judging.finish_problems(table, validation, config), ConfigError)
    if table.paths is not None:
        raise_if(missing_images(table.paths), DataError)
    folder = None if out is None else Path(out)
    with ExitStack() as held:
        try:
            stored = distributed.same(partial(runs.open_folder, folder, resume, held))
        except RunError:
            if not resume:
                distributed.refuse()
            raise
        return _train(
            table, config, folder, stored, validation=validation, truth=truth, quiet=quiet,
            notes=notes, skipped=skipped, known_share=known_share,
        )  # fmt: skip


def _train(
    table: LabelTable,
    config: Config,
    folder: Path | None,
    stored: dict[str, Any],
    *,
    validation: LabelTable | None,
    truth: LabelTable | None,
    quiet: bool,
    notes: Mapping[str, Any] | None,
    skipped: Mapping[str, str] | None,
    known_share: float | None,
) -> runs.Predictor:
    """`train`, in a folder that nobody else writes into. stored: what this run wrote down when it
    began; nothing if it begins now."""
    own_folder = folder if distributed.is_first() else None  # one rank writes, all read
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
    record = runs.describe(table, config) | record
    record["validation_hash"] = None if validation is None else validation.content_hash
    if stored:
        runs.check_same(folder, stored, record)

    held_out = validation is None
    if held_out and config.hold_out > 0:
        table, validation, truth = judging.hold_out(table, truth, config)
    kept = folder / runs.CHECKPOINT if folder is not None and stored else None
    has_checkpoint = kept is not None and kept.exists()
    facts = {f"{what} ({name})": record[name] for name, what in runs.HASHES.items()}
    chosen = {n: value for n, value in asdict(config).items() if n not in ("device", "workers")}
    facts |= {**chosen, "out": str(folder), "a checkpoint is there": has_checkpoint}
    distributed.agree(facts, str(folder or ""))
    blind = str(record.get("origin", "")).startswith(models.RANDOM)  # features that say little
    if stored:
        known_share = runs.recall(stored, "guessed_share")
    may_guess = not (stored or blind or known_share is not None or config.head == "sampled")
    guess = partial(guess_known_share, table, config, quiet)
    state = start(
        table,
        config,
        fresh=not has_checkpoint,
        audited=truth is not None and config.head == "full",  # of all entries
        folder=folder,
        guess=guess if may_guess else lambda: known_share,
    )
    if not has_checkpoint:
        learn_before(state, quiet)
    state.eye, state.origin = eye, stored.get("origin") or record.get("origin") or state.origin
    record |= {"origin": state.origin, **state.found()}
    judge = judging.open_judge(validation, state, held_out=held_out)
    if folder is not None and kept is not None and has_checkpoint:
        state.load_from(kept)
        state.best_weights = runs.read_weights(folder)
        distributed.agree({"steps in the checkpoint": state.step}, str(folder))
    if own_folder is not None:
        runs.begin(own_folder, record, eye, skipped or {}, state.epoch, fresh=not stored)
    distributed.wait()  # until the folder is there
    save = partial(save_checkpoint, folder, state)
    if state.network is not None and not has_checkpoint:
        save()  # it took a training of its own

    alone = distributed.world() == 1  # ranks would have to agree on a step; they end at once
    noted = processes.sigterm_noted() if alone else nullcontext(lambda: False)
    with Progress(config.epochs * state.steps_per_epoch, state.step, quiet=quiet) as progress:
        for line in introduce(state, picks):
            progress.say(line)
        if judge is None:
            progress.say(judging.nothing_to_judge_by(len(table), config))
        if state.epoch > config.epochs:
            progress.say("every epoch of this run is done: there is nothing to train")
        else:  # while nothing is lost by an end
            prepare([state.training.table], config.look, workers=config.workers, say=progress.say)
        with noted as told_to_end:
            while state.epoch <= config.epochs:
                began, first = time.monotonic(), state.step_of_epoch
                models.train_mode(state.model, keep_statistics=state.keeps_statistics)
                for rows, inputs in state.batches():
                    loss = take_step(state, rows, inputs)
                    progress.step(loss)
                    every, last = config.checkpoint_steps, told_to_end()
                    if last or (every and state.step % every == 0):
                        save()
                    if last:
                        end_as_told(state, progress)
                metric = finish_epoch(state, time.monotonic() - began, first)
                if judge is not None:
                    judging.keep_if_good(state, metric, judge, own_folder)
                judging.audit_pseudo_labels(state, truth, own_folder, metric["epoch"])
                if own_folder is not None:
                    checkpoint.append_line(own_folder / runs.METRICS, metric)
                save()
                progress.epoch(metric, config.epochs)
                if told_to_end():
                    end_as_told(state, progress)
        if state.best_epoch:
            progress.say(
                f"epoch {state.best_epoch} is kept: the last that is not clearly below the best"
            )
    return judging.finish(state, record, judge, own_folder, silent if quiet else tell)


def end_as_told(state: State, progress: Progress) -> NoReturn:
    """By SIGTERM, after what there was to save."""
    steps = state.config.epochs * state.steps_per_epoch
    progress.say(f"told to end after step {state.step:,} of {steps:,}: --resume goes on with it")
    raise SystemExit(processes.TERMINATED)


# --- one step ------------------------------------------------------------------------------------


def take_step(state: State, rows: Tensor, inputs: Tensor) -> Tensor:
    """Forward, loss, backward, update; returns the loss without waiting for it.

    rows: of the whole batch. inputs: of this rank's part of it; a step that is recorded finds its
    own.
    """
    drawn = draw(state, rows.numpy())
    distributed.draw_apart(state.config.seed, state.step)
    set_learning_rates(state)
    state.step += 1
    if isinstance(drawn, Drawn):
        return learn(state, drawn, inputs)
    if state.recorder is None:
        return learn(state, drawn.open(), inputs)

    def work(line: Tensor) -> Tensor:
        assert isinstance(state.inputs, FeatureInputs)
        opened = drawn._replace(line=line).open()
        return learn(state, opened, state.inputs.features[opened.rows])

    return state.recorder(work, drawn.line, key=drawn[1:])


def draw(state: State, rows: np.ndarray) -> Drawn | Packed:
    """What a step is about: all labels of these images, or those that are drawn.

    Known labels are few: they are sent one by one, and put into their places there.
    """
    if state.sampled is not None:
        return state.sampled.draw(rows, state.epoch, state.step)
    places, values = (
        sent(torch.from_numpy(array), state.device) for array in state.training.table.cells(rows)
    )
    return Drawn(sent(torch.from_numpy(rows), state.device), None, places, values)


def learn(state: State, drawn: Drawn, inputs: Tensor) -> Tensor:
    """The part of a step that is the device's."""
    batch = make_batch(state, drawn)
    batch = replace(batch, teacher=ask_teacher(state, drawn.rows, inputs))
    batches: list[tuple[float | Tensor, methods.Batch]] = [(1.0, batch)]
    if state.config.mix != "none":
        inputs, batches = mix_batch(state, batch, inputs)
    with precision(state):
        seen = state.forward(inputs)
        logits = seen if state.sampled is None else state.sampled(seen)
    if state.sampled is None or distributed.world() > 1:
        logits = logits.float()  # the losses of drawn labels read half precision as it is
    logits = distributed.whole(logits, len(drawn.rows))
    losses = [(weight, state.step_loss(logits, batch)) for weight, batch in batches]
    loss = losses[0][1] if len(losses) == 1 else sum_of(losses)
    for optimiser in state.optimisers:
        optimiser.zero_grad(set_to_none=True)
    loss.backward()
    if state.sampled is not None:
        state.sampled.add_up_gradients()
    if state.config.clip:
        taken = [] if state.sampled is None else state.sampled.rows
        nn.utils.clip_grad_norm_([*state.model.parameters(), *taken], state.config.clip)
    for optimiser in state.optimisers:
        optimiser.step()
    state.loss_sum += loss.detach()
    if state.average is not None:
        move_average(state.average, state.model, state.config.ema or 0.0, state.step)
    return loss.detach()


def sum_of(losses: list[tuple[float | Tensor, Tensor]]) -> Tensor:
    """Of losses with their weights."""
    return torch.stack([weight * loss for weight, loss in losses]).sum()


@torch.no_grad()
def ask_teacher(state: State, rows: Tensor, inputs: Tensor) -> Tensor | None:
    """The logits of the averaged model or of the network, where the method learns from one."""
    teacher = {"average": state.average, "network": state.network}.get(state.training.teacher)
    if teacher is None:
        return None
    with precision(state):
        return distributed.whole(teacher(inputs).float(), len(rows))


def make_batch(state: State, drawn: Drawn) -> methods.Batch:
    """What a method needs to know of these images, of all labels or of those that are drawn."""
    rows, columns, places, values = drawn
    width = len(state.training.table.names) if columns is None else len(columns)
    # One more, behind the last: the place of what stands for none.
    cells = torch.full((len(rows) * width + 1,), UNKNOWN, dtype=torch.int8, device=state.device)
    cells[places] = values.to(torch.int8)
    batch = methods.Batch(rows, cells[:-1].view(len(rows), width), state.epoch)
    if state.sampled is None or columns is None:
        return batch
    state.sampled.take(columns)
    return replace(batch, columns=columns, chance=state.sampled.chance)


def mix_batch(
    state: State, batch: methods.Batch, inputs: Tensor
) -> tuple[Tensor, list[tuple[float | Tensor, methods.Batch]]]:
    """Mixed inputs, and the batches with their weights that the loss is the sum over."""
    config, rows, own = state.config, batch.rows, batch.labels
    mixture, targets = mixing.mix(config.mix, own, seed=config.seed, epoch=state.epoch, rows=rows)
    batches = [
        (weight, replace(batch, labels=mixed, mixture=mixture, own=own))
        for weight, mixed in targets
    ]
    everybodys = distributed.whole(inputs, len(rows))  # partners may be with another rank
    return distributed.own_slice(mixture.inputs(everybodys)), batches


def set_learning_rates(state: State) -> None:
    """Warm-up and cosine, for the model and for whatever a method trains beside it."""
    steps = state.config.epochs * state.steps_per_epoch
    warmup = state.config.warmup or 0.0
    factor = learning_rate_factor(state.step, steps, warmup, state.config.schedule or "cosine")
    for optimiser in state.optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["base_lr"] * factor
        if isinstance(optimiser, RowAdam):
            optimiser.set_pace()


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


def guess_known_share(table: LabelTable, config: Config, quiet: bool) -> float | None:
    """c₊ of the labels of which only positives are known: which share of them that is.

    None where there is no such label or too little to learn from, and where images would be looked
    at with random weights. config: complete.
    """
    table = table.drawn()  # without cells that somebody chose to ask about
    one_sided, on_images = propensity.only_positives(table), table.features is None
    known = int(table.counts_by_label().positive[one_sided].sum())
    if known < counting.FEW:
        return None
    if on_images and not config.fine_tuned(config.kind(table)):
        return None
    say = silent if quiet else tell
    rows = draws.order(config.seed, 0, len(table))[: LOOKED_AT if on_images else counting.ROWS]
    sample = table.take(rows)
    if on_images:
        say(f"looking at {len(rows):,} images, to guess how many of the positives are known")
        eye, origin = open_eye(config)
        if origin.startswith(models.RANDOM):
            return None
        sample = look_through(eye, config, sample, quiet=quiet)
    plan = Config(epochs=20, hold_out=0.0, seed=config.seed, device=config.device)
    plan = replace(plan, options={"teacher": "self", "focus": 0.0})
    share = counting.guess_share(sample, partial(train, config=plan, quiet=True))
    if share is None:
        return None
    return min(max(share, known / (0.9 * len(table) * one_sided.sum())), 1.0)


def learn_before(state: State, quiet: bool) -> None:
    """What is learnt before the first step: by the network that teaches, by the head alone."""
    say = silent if quiet else tell
    if state.network is not None:
        say(f"training a network ({TEACHER}) that will teach the linear layer")
        state.network.load_state_dict(train_teacher(state))
    if state.config.linear_start and state.training.table.features is None:
        say(f"linear start: {LINEAR_EPOCHS} epochs of the head alone")
        start_linearly(state, quiet)


# What an inner training does by itself, whatever the one around it has chosen.
PLAIN: Mapping[str, Any] = {
    "linear_start": False,
    "mix": "none",
    "hold_out": 0.0,
    "finish": "none",
    "goal": "f1",
    "calibrate": "none",
}


def train_teacher(state: State) -> dict[str, Tensor]:
    """The weights of a network that has learnt from the same labels, to teach a linear layer."""
    config = state.config
    plan = replace(config, **PLAIN, backbone=TEACHER, head_only=False)
    plan = replace(plan, options={**config.options, "teacher": "self"}, start="prior", ema=0.0)
    plan = replace(plan, learning_rate=2e-3, head_factor=1.0, warmup=0.0)
    plan = replace(plan, schedule="cosine", weight_decay=0.0, head_decay=0.0)
    return train_within(state, state.training.table, plan).state_dict()


def train_within(state: State, table: LabelTable, plan: Config) -> nn.Module:
    """A training within another one, which does not guess again what that has guessed."""
    share = propensity.ASSUMED_SHARE if state.guessed is None else state.guessed
    return train(table, plan, quiet=True, known_share=share).model


def start_linearly(state: State, quiet: bool) -> None:
    """Give the head what a linear layer learns on the frozen backbone's features."""
    config, backbone = state.config, copy.deepcopy(state.model.backbone)
    seen = look_through(backbone, config, state.training.table, quiet=quiet)
    plan = replace(config, **PLAIN, head_only=True, epochs=LINEAR_EPOCHS)
    plan = replace(plan, learning_rate=None, batch_size=None, warmup=None, head_factor=None)
    plan = replace(plan, weight_decay=None, head_decay=None)
    plan = replace(plan, schedule=None, ema=None, batch_norm=None)
    if "teacher" in methods.get(config.method).options:
        plan = replace(plan, options={**config.options, "teacher": "self"})
    linear = train_within(state, seen, plan)
    assert isinstance(linear, models.Classifier)
    models.take_head(state.model, linear)
    if state.average is not None:
        state.average.load_state_dict(state.model.state_dict())


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
        state.save(folder)
