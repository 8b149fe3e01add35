"""After an epoch, and after the last.

What enters: a `State` and images that are not trained on. What leaves: which epoch is kept, how
good its pseudo-labels are, and the finished `Predictor`.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partly import (
    category,
    checkpoint,
    decisions,
    distributed,
    draws,
    methods,
    metrics,
    propensity,
    pseudo,
    ranking,
    runs,
)
from partly.config import Config
from partly.data import Inputs, open_inputs, split_into_chunks
from partly.labels import POSITIVE, LabelTable
from partly.progress import silent
from partly.starting import State
from partly.stores import PseudoLabels

FIRST = 5  # labels of an image that are looked at, where there are very many
AUDITED = 1 << 22  # pseudo-labels that are looked at together
SMALLEST_HOLD_OUT = 50  # fewer images than this choose an epoch by luck


def hold_out(
    table: LabelTable, truth: LabelTable | None, config: Config
) -> tuple[LabelTable, LabelTable | None, LabelTable | None]:
    """(train, validation, truth of train). Too few images to judge by stay in the training set.

    What people were asked about was chosen for being hard: it is not judged by.
    """
    rows, aside = np.arange(len(table)), drawn_aside(len(table), config)
    if not aside.any():
        return table, None, truth
    kept_truth = None if truth is None else truth.take(rows[~aside])
    return table.take(rows[~aside]), table.take(rows[aside]).drawn(), kept_truth


def drawn_aside(images: int, config: Config) -> np.ndarray:
    """Which images [N] are held out; none where they would be too few to judge by."""
    aside = _drawn(images, config)
    return aside if aside.sum() >= SMALLEST_HOLD_OUT else np.zeros_like(aside)


def _drawn(images: int, config: Config) -> np.ndarray:
    """Which images [N] are drawn to be held out, few as they may be."""
    rows, column = np.arange(images), np.zeros(1, dtype=np.int64)
    return draws.uniform(config.seed, draws.HOLD_OUT, 0, rows, column) < config.hold_out


def nothing_to_judge_by(images: int, config: Config) -> str:
    """What it means for a run that no image is held out, and the way out."""
    means = "the last epoch is kept and no thresholds are fitted"
    if not config.hold_out:
        return f"no images to choose an epoch by: {means}"
    few = int(_drawn(images, config).sum())
    return (
        f"{few:,} of {images:,} images would be held out, fewer than {SMALLEST_HOLD_OUT}: all are "
        f"trained on, {means}; {large_enough(images, config)}"
    )


def large_enough(images: int, config: Config) -> str:
    """What to choose so that there are images to judge by."""
    shares = (0.05 * step for step in range(1, 11))
    enough = (s for s in shares if drawn_aside(images, replace(config, hold_out=s)).any())
    share = next(enough, None)
    instead = "" if share is None else f"--hold-out {share:.2g}, or "
    return f"{instead}mark a validation part"


@dataclass
class Judge:
    """Scores an epoch on held-out images, by their known labels only.

    table: all of the images. own: those that this rank looks at, and their labels [n, L]: no rank
    holds the logits or the labels of all. Where a head is sampled even they would be too many:
    then labels is None, and what counts is the labels that come first. facts: how their labels
    went missing.
    """

    predictor: runs.Predictor
    table: LabelTable
    own: LabelTable
    labels: np.ndarray | None
    facts: propensity.Propensity

    def logits(self) -> np.ndarray:
        """Of this rank's images [n, L]; none where ranks are more than images."""
        if not len(self.own) and self.labels is not None:
            return np.zeros(self.labels.shape, np.float32)
        return self.predictor.logits(self.own)


def open_judge(validation: LabelTable | None, state: State, *, held_out: bool) -> Judge | None:
    """None where there is nothing to judge by: then the last epoch is kept.

    held_out: whether the images are a part of those trained on, and labels went missing alike.
    """
    if validation is None:
        return None
    table = validation.reorder(state.training.table.names, "the validation part")
    own = table.take(distributed.own_part(np.arange(len(table))))
    labels = own.dense() if state.sampled is None else None
    facts = state.training.propensity
    asked, told = state.training.table.asked is not None, state.config.expected_positives
    if held_out and asked:  # the images held out are without what people were asked about
        others = state.training.table.drawn()
        facts = propensity.estimate(others, told, guessed_share=state.guessed)
    elif not held_out:
        facts = propensity.estimate_others(
            table, facts.expected_positives, guessed_share=state.guessed
        )
    return Judge(predictor(state, runs.describe(table, state.config)), table, own, labels, facts)


def scores(judge: Judge) -> tuple[np.ndarray, str]:
    """How good the weights are now on all images, a number a label [L], and by what criterion;
    where labels are very many, a number an image [N]."""
    if judge.labels is not None:
        return ranking.sharded_select_scores(judge.logits(), judge.labels)
    table, judged_by = judge.table, judge.predictor
    top = distributed.in_parts(len(table), lambda own: judged_by.top(table.take(own), FIRST)[0])
    hits = ranking.among(top, ranking.entries(judge.table, POSITIVE))
    return hits.mean(axis=1), f"known positives among the first {FIRST} labels"


def decide(
    judge: Judge | None, result: runs.Predictor, config: Config
) -> decisions.Decisions | None:
    """Thresholds and a calibration; None where there are no images, or very many labels."""
    if judge is None or judge.labels is None:
        return None
    probabilities = result.raw_probabilities(torch.from_numpy(judge.logits()))
    goal = decisions.Goal.parse(config.goal)
    taught = runs.taught(result.config)
    return decisions.fit(probabilities, judge.labels, judge.facts, goal, config.calibrate, taught)


def keep_if_good(state: State, metric: dict[str, Any], judge: Judge, folder: Path | None) -> None:
    """Score this epoch and keep its weights, unless it is clearly worse than the best so far.

    On few images the best of many epochs is a matter of chance, and the later has learnt more.
    """
    values, criterion = scores(judge)
    score = float(np.nanmean(values)) if np.isfinite(values).any() else math.nan
    metric["validation_score"] = score if np.isfinite(score) else None
    metric["criterion"] = criterion
    if not np.isfinite(score):
        return
    best = state.best_scores
    metric["kept"] = best is None or not metrics.clearly_below(values, best.cpu().numpy())
    if metric["kept"]:
        state.best_epoch = metric["epoch"]
        state.best_weights = copy.deepcopy(state.judged.state_dict())
        if folder is not None:
            runs.write_weights(folder, state.best_weights)
    if best is None or score >= float(np.nanmean(best.cpu().numpy())):
        state.best_scores = torch.from_numpy(values)


def audit_pseudo_labels(
    state: State, truth: LabelTable | None, folder: Path | None, epoch: int
) -> None:
    """Write down how good the pseudo-labels are, where a study knows the truth: of all entries, so
    not where a head computes some of them only."""
    store = state.training.stores.get("pseudo_labels")
    if truth is None or not isinstance(store, PseudoLabels) or state.sampled is not None:
        return
    if folder is None and distributed.world() == 1:
        return
    table = state.training.table
    together = max(1, AUDITED // len(table.names))
    parts = np.split(np.arange(len(table)), range(together, len(table), together))

    def believed(rows: np.ndarray) -> np.ndarray:  # of which each rank keeps some
        return store.get(torch.from_numpy(rows).to(state.device)).cpu().numpy()

    if folder is None:
        for rows in parts:
            believed(rows)
        return
    blocks = ((believed(rows), pseudo.hidden(table, truth, rows)) for rows in parts)
    checkpoint.append_line(folder / runs.AUDIT, {"epoch": epoch, **pseudo.audit(blocks, folder)})


def finish_problems(
    table: LabelTable, validation: LabelTable | None, config: Config
) -> Iterator[str]:
    """Why these data or this method cannot be finished as the user wants it."""
    none_aside = validation is None and not drawn_aside(len(table), config).any()
    wanted = {"goal": config.goal != "f1", "calibrate": config.calibrate != "none"}
    for name in (name for name, chosen in wanted.items() if chosen):
        value = getattr(config, name)
        if config.head == "sampled":
            yield f"{name} {value} is for labels that can all be looked at: use head full"
        elif none_aside:
            yield (
                f"{name} {value} is fitted on images that are not trained on, and there are none: "
                f"mark a validation part, or hold out {SMALLEST_HOLD_OUT} images or more (hold_out "
                f"is {config.hold_out:g} of {len(table):,})"
            )
    if config.finish == "none":
        return
    if none_aside:
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
    say: Callable[[str], None] = silent,
) -> runs.Predictor:
    """Put the chosen weights in place, fit thresholds, write what is left to write."""
    if state.best_weights is not None:
        state.judged.load_state_dict(state.best_weights)
    if state.config.finish == "cft" and judge is not None:
        tune_rows(state, judge, folder, say)
    result = predictor(state, record)
    chosen = distributed.same(lambda: runs.read_refitted(folder, result.names))
    decided = decide(judge, result, state.config) if chosen is None else None
    if decided is not None:
        chosen = decided.thresholds, decided.calibration
    if chosen is not None:
        result.thresholds, result.calibration = chosen
    if folder is not None:
        runs.write_weights(folder, state.judged.state_dict())
        if decided is not None:
            runs.write_decisions(folder, result.names, decided)
        # Last of all: what says that it is finished can be used as it is.
        checkpoint.write_json(folder / runs.CONFIG, record | {"finished": True})
    return result


def tune_rows(state: State, judge: Judge, folder: Path | None, say: Callable[[str], None]) -> None:
    """Category-wise fine-tuning of the chosen weights, on what their backbone sees."""
    table, head = state.training.table, state.judged.head
    # A run that stopped in here begins with the same rows again, on every rank.
    before = distributed.same(
        lambda: None if folder is None else runs.read_weights(folder, runs.UNTUNED)
    )
    if before is not None:
        head.load_state_dict(before)
    elif folder is not None:
        runs.write_weights(folder, head.state_dict(), runs.UNTUNED)
    labels, answers = table.dense(), judge.table.dense()
    if not (category.has_both(labels) & category.has_both(answers)).any():
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
        answers,
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
