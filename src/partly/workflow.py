"""Whole jobs: from a data set on disk to a run's folder, and from a run's folder to answers.

What enters: paths and a `Config`. What leaves: files. Each function is a command of `cli.py`, and
can be called from Python as it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from partly import (
    answers,
    checkpoint,
    decisions,
    diagnosis,
    distributed,
    judging,
    methods,
    metrics,
    models,
    predicting,
    propensity,
    ranking,
    runs,
    unlabelled,
)
from partly.config import Config
from partly.errors import ConfigError, DataError, raise_if
from partly.hiding import Setting, describe, hide
from partly.labels import NEGATIVE, POSITIVE, LabelTable
from partly.missing import NO_BLANKS
from partly.readers.common import counted, index_in
from partly.report import run_report
from partly.source import Source
from partly.texts import Texts
from partly.training import train

Say = Callable[[str], None]
AT_THRESHOLDS = ("CF1_at_thresholds", "OF1_at_thresholds")  # they change with thresholds
OF_PROBABILITIES = ("CF1", "OF1", "calibration_error")  # and these with a calibration
KNOWN = "known labels"  # among which P@k looks where negatives are known
ALL = "all"  # the part of a data set that is not divided
LARGEST_TABLE = 2**31  # probabilities that are written out one by one


def train_run(
    data: str | Path | Source,
    out: str | Path,
    config: Config,
    *,
    setting: str | None = None,
    resume: bool = False,
    quiet: bool = False,
    say: Say = print,
) -> dict[str, Any] | None:
    """Read, hide if asked to, train, evaluate on the test part if there is one, report.

    Where torchrun has started several ranks they train together, and the first writes. One that
    was started again because some died goes on from the last checkpoint.
    """
    distributed.begin(config.device)  # before anything is found wrong: one rank says it
    raise_if(config.problems(), ConfigError)
    hidden = _early(config, setting, Path(out))
    resume = distributed.goes_on(resume)
    source = Source.of(data)
    # What decides which way a rank goes; all other choices are compared when they are complete.
    read = {name: getattr(source, name) for name in ("format", "verify", "on_bad_image")}
    plain = {n: v for n, v in source.options.items() if isinstance(v, str | float | int)}
    read |= {name: repr(value) for name, value in plain.items()}
    distributed.agree({"hide": setting, "read": read, "head_only": config.head_only}, str(out))
    stored = distributed.same(lambda: runs.stored_config(out)) if resume else None
    if resume and stored is None:
        say(f"there is no run in {out} yet: it begins now, with the options that are given")
    elif stored is not None:
        source = _resumed(source, Path(out), stored)
    answered = answers.size(answers.journal_of(source.path)) if source.use_answers else 0
    if source.answers_until is None:  # those that come while it trains are the next run's
        source = replace(source, answers_until=distributed.same(lambda: answered))
    table, bad = source.open(say)
    if table.features is not None and (config.head_only or config.linear_start):
        raise ConfigError(f"{source.path} has features: there is no backbone in front of the head")
    full = table.part("train")
    if full is None:
        raise DataError(f"{source.path} has no images to train on: none is marked 'train'")
    known = full if hidden is None else hide(full, str(hidden), seed=config.seed)
    if hidden is not None and methods.get(config.method).reference:
        say(f"{config.method} is a reference: it is given the labels that {hidden} would hide")
        known = full
    say(describe(known))
    if hidden is None and known.known == len(known) * len(known.names):
        say(NO_BLANKS)
    predictor = train(
        known,
        config,
        out,
        validation=table.part("validation"),
        truth=None if hidden is None else full,
        resume=resume,
        quiet=quiet,
        notes={
            "data": source.name,
            "format": source.format,
            "read": dict(source.options),
            "answers": source.answers_until,
            "setting": None if hidden is None else str(hidden),
        },
        skipped=bad,
    )
    test = table.part("test")
    evaluation = None
    if test is not None:
        counts = known.counts_by_label().positive
        evaluation = _evaluate(predictor, test, "test", counts, Path(out))
        evaluation |= {"left_out": bad} if bad else {}
        say(summary(evaluation))
    if distributed.is_first():
        if evaluation is not None:
            checkpoint.write_json(Path(out) / runs.EVALUATION, evaluation)
        say(f"report: {run_report(Path(out))}")
    distributed.wait()
    return evaluation


def _early(config: Config, setting: str | None, out: Path) -> Setting | None:
    """The setting; and an error, before hours of looking at images, if a choice cannot be."""
    if config.backbone is not None:
        models.check_name(config.backbone)
    runs.choose_device(config.device)
    checkpoint.check_folder(out)
    runs.stored_config(out)
    return None if setting is None else Setting.parse(setting)


def _resumed(source: Source, out: Path, stored: Mapping[str, Any]) -> Source:
    """A run that goes on reads its data as before; the images it left out stay out."""
    return replace(
        source,
        format=source.format or stored.get("format"),
        options={**stored.get("read", {}), **source.options},
        verify="off",
        leave_out=tuple(runs.read_skipped(out)),
        use_answers=bool(stored.get("answers")),
        answers_until=stored.get("answers", 0),
    )


def _evaluate(
    predictor: runs.Predictor,
    table: LabelTable,
    part: str,
    train_positives: np.ndarray | None = None,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Every metric; into `folder`, where one is given, goes what the report draws besides."""
    table = table.reorder(predictor.names, "the data to evaluate on")
    many = predictor.config.get("head") == "sampled"
    look = predictor.seen if many else predictor.probabilities
    seen = distributed.on_first(len(table), lambda own: look(table.take(own)))

    def measure() -> dict[str, Any]:
        assert seen is not None
        if many:
            return _measure_many(predictor, table, seen)
        found = metrics.evaluate(
            seen, table.dense(), train_positives=train_positives, thresholds=predictor.thresholds
        )
        if table.known and (table.values == POSITIVE).all():  # then AP says nothing
            best = torch.from_numpy(seen).topk(min(judging.FIRST, seen.shape[1]), dim=1).indices
            found |= _among_the_first(predictor, table, best.numpy())
        if folder is not None:
            drawn = diagnosis.diagnose(seen, table, found["AP"], thresholds=predictor.thresholds)
            checkpoint.write_json(folder / runs.DIAGNOSIS, drawn)
        return found

    measured = distributed.same(measure)  # by the first rank, which alone has it all
    trained_on = table.inputs_hash == predictor.config.get("inputs_hash")
    return {
        "images": len(table),
        "part": part,
        "label_hash": table.content_hash,
        "trained_on": trained_on,  # then the figures say nothing about new images
        "metrics": measured,
    }


def _measure_many(predictor: runs.Predictor, table: LabelTable, seen: np.ndarray) -> dict[str, Any]:
    """What can be measured without a matrix of all images and labels."""
    top, _ = predictor.top_of(seen, judging.FIRST)
    precisions = predictor.average_precisions(seen, table)
    scored = np.isfinite(precisions)
    return {
        "mAP": float(precisions[scored].mean()) if scored.any() else None,
        "labels_scored": int(scored.sum()),
        **(_among_the_first(predictor, table, top) if table.known else {}),
        "coverage": {"labels": len(scored), "labels_scored": int(scored.sum()), "left_out": {}},
    }


def _among_the_first(
    predictor: runs.Predictor, table: LabelTable, top: np.ndarray
) -> dict[str, Any]:
    """P@k and PSP@k, where rare labels count for more, of the first labels [N, k] of each image."""
    positives, negatives = (ranking.entries(table, value) for value in (POSITIVE, NEGATIVE))
    given = negatives if len(negatives.indices) else None  # else what is not known is negative
    named = {"P": ranking.precision_at_k(top, positives, given)}
    config = predictor.config
    counts, images = config.get("label_counts"), config.get("images", 0)
    if counts and images >= ranking.FEWEST:  # to tell how likely a label is to be missed
        shares = ranking.label_propensities(np.array(counts["positive"]), images)
        named["PSP"] = ranking.propensity_scored_precision_at_k(top, positives, shares)
    found = {f"{name}@{k}": v[k - 1] for name, v in named.items() for k in (1, 3, 5) if k <= len(v)}
    values = {name: float(value) if np.isfinite(value) else None for name, value in found.items()}
    return {**values, "P_among": "all labels" if given is None else KNOWN}


def evaluate_run(
    run: str | Path,
    data: str | Path | Source,
    *,
    part: str | None = None,
    device: str = "auto",
    say: Say = print,
) -> dict[str, Any]:
    """Every metric of a run's model on a data set: its test part, or all of it, and then it is said
    to be all, where the data is not divided into parts."""
    source = Source.of(data)
    predictor = runs.load(run, device)
    table = source.read()
    wanted = part or ("test" if table.splits is not None else "train")
    chosen = table.part(wanted)
    if chosen is None:
        raise DataError(f"{source.path} has no part '{wanted}' (train, validation or test)")
    chosen, bad = source.usable(chosen, say)
    name = ALL if table.splits is None else wanted
    return _evaluate(predictor, chosen, name) | ({"left_out": bad} if bad else {})


def summary(evaluation: dict[str, Any]) -> str:
    """The figures one looks at first, and what keeps them from meaning what they seem to."""
    measured = evaluation["metrics"]
    coverage, warning = measured["coverage"], metrics.without_negatives(measured["coverage"])
    one_sided = len(coverage["left_out"].get("no known negative", []))
    no_precision = measured["mAP"] is None or one_sided == coverage["labels_scored"]
    headline = ("mAP", "AUROC", "CF1", "OF1", "P@1", "P@5", "PSP@5")[no_precision:]
    shown = [name for name in headline if measured.get(name) is not None]
    figures = [f"{name} {100 * measured[name]:.2f}" for name in shown]
    if measured.get("CF1_at_thresholds") is not None:
        tuned = (f"{100 * measured[f'{name}_at_thresholds']:.2f}" for name in ("CF1", "OF1"))
        figures.append(f"at the run's thresholds {' and '.join(tuned)}")
    scored = f"{coverage['labels_scored']} of {coverage['labels']} labels scored"
    if no_precision:
        scored = "no mAP: of no label both positives and negatives are known"
    return (
        f"{evaluation['images']:,} images: "
        + (f"{', '.join(figures)} ({scored})" if figures else scored)
        + ("; it marks no test part, so that all of it is measured" * (evaluation["part"] == ALL))
        + ("; these are the images it was trained on" * evaluation["trained_on"])
        + f"; P@k is among {KNOWN} alone" * (measured.get("P_among") == KNOWN)
        + f"; {warning}" * bool(warning)
    )


def decide_run(
    run: str | Path,
    data: str | Path | Source,
    *,
    goal: str | None = None,
    calibrate: str | None = None,
    part: str | None = None,
    expected_positives: float | None = None,
    device: str = "auto",
    say: Say = print,
) -> decisions.Decisions:
    """Fit a run's thresholds and calibration again, on images that it was not trained on.

    goal, calibrate: None is as they were fitted before. part: of the data; None is the validation
    part or, without one, what training held out. expected_positives: an image, where only positives
    are known; None is as in training.
    """
    folder, source = Path(run), Source.of(data)
    predictor = runs.load(run, device)
    if predictor.config.get("head") == "sampled":
        raise ConfigError(f"{run} has very many labels (--head sampled): it has no thresholds")
    goal, calibrate = _wanted(folder, goal, calibrate, say)
    table = source.read().reorder(predictor.names, str(source.path))
    chosen, known_alike = _to_decide_by(predictor.config, table, part, source, say)
    if not chosen.known:
        count = counted(len(chosen), "image")
        raise DataError(f"no label of these {count} is known: there is nothing to go by")
    facts = _missing_from(known_alike, chosen, predictor.config, expected_positives)
    say(facts.source)
    probabilities = predictor.raw_probabilities(torch.from_numpy(predictor.logits(chosen)))
    decided = decisions.fit(
        probabilities,
        chosen.dense(),
        facts,
        decisions.Goal.parse(goal),
        calibrate,
        runs.taught(predictor.config),
    )
    test = table.part("test")
    on_test = test is not None and chosen.inputs_hash == test.inputs_hash
    runs.write_decisions(folder, predictor.names, decided, source.name, on_test=on_test)
    for line in decisions.describe(decided, predictor.names):
        say(line)
    if on_test:
        say("these are the images of the test part: what is measured on them from now on flatters")
    same = decided.calibration == predictor.calibration
    predictor.thresholds, predictor.calibration = decided.thresholds, decided.calibration
    _measure_again(folder, predictor, table, source, same, say)
    return decided


def _wanted(folder: Path, goal: str | None, calibrate: str | None, say: Say) -> tuple[str, str]:
    """The goal and the kind of calibration: as given or, what is not, as they are in the run."""
    before = runs.read_wanted(folder) or ("f1", "none")
    wanted = (goal or before[0], calibrate or before[1])
    raise_if(Config(goal=wanted[0], calibrate=wanted[1]).problems(), ConfigError)
    pairs = (("goal", goal, before[0]), ("calibration", calibrate, before[1]))
    kept = [f"{name} {stored}" for name, given, stored in pairs if given is None]
    if kept:
        say(f"as before: {', '.join(kept)}")
    return wanted


def _to_decide_by(
    config: Mapping[str, Any], table: LabelTable, part: str | None, source: Source, say: Say
) -> tuple[LabelTable, LabelTable | None]:
    """The images to fit on; and, if they are those that training held out, the others: labels went
    missing from both alike. What people were asked about was chosen, and is not gone by."""
    wanted = part or ("train" if table.part("validation") is None else "validation")
    chosen = table.part(wanted)
    if chosen is None:
        raise DataError(
            f"{source.path} has no {part or 'validation'} part: name one with --part (train, "
            "validation or test)"
        )
    chosen, _ = source.usable(chosen, say)
    if chosen.inputs_hash != config.get("inputs_hash"):
        say(f"fitting on {counted(len(chosen), 'image')} of the {wanted} part of {source.name}")
        if wanted == "train":
            say(
                "this is not the table that the run was trained on; should some of its images have "
                "been trained on, thresholds follow what the model is too sure of"
            )
        return chosen, None
    setting = config.get("setting")
    if setting is not None and not methods.get(config["method"]).reference:
        chosen = hide(chosen, setting, seed=config["seed"])
    plan = Config(seed=config["seed"], hold_out=config["hold_out"])
    aside = judging.drawn_aside(len(chosen), plan)
    if config.get("validation_hash") is not None or not aside.any():
        raise DataError(
            "the run was trained on all of these images, and is too sure of them: mark a "
            f"validation part in {source.path}, name other data, or train again with a --hold-out "
            f"that sets {judging.SMALLEST_HOLD_OUT} images or more aside"
        )
    say(f"fitting on the {counted(int(aside.sum()), 'image')} that training held out")
    held_out, rest = (chosen.take(np.flatnonzero(rows)).drawn() for rows in (aside, ~aside))
    return held_out, rest


def _missing_from(
    known_alike: LabelTable | None,
    chosen: LabelTable,
    config: Mapping[str, Any],
    expected_positives: float | None,
) -> propensity.Propensity:
    """How labels went missing from the chosen images."""
    guessed = config.get("guessed_share")
    if expected_positives is not None:
        return propensity.estimate(
            chosen if known_alike is None else known_alike, expected_positives
        )
    if known_alike is not None:
        told = config["expected_positives"]
        return propensity.estimate(known_alike, told, guessed_share=guessed)
    return propensity.estimate_others(
        chosen, config.get("positives_an_image"), guessed_share=guessed
    )


def _measure_again(
    folder: Path,
    predictor: runs.Predictor,
    table: LabelTable,
    source: Source,
    same_calibration: bool,
    say: Say,
) -> None:
    """What is measured at thresholds is no longer true, unless the test part is here again."""
    path, test = folder / runs.EVALUATION, table.part("test")
    if path.is_file():
        evaluation = checkpoint.read_json(path)
        if test is not None and test.content_hash == evaluation.get("label_hash"):
            counts = np.array(predictor.config["label_counts"]["positive"])
            evaluation |= _evaluate(predictor, test, "test", counts, folder)
            say(summary(evaluation))
        else:
            changed = AT_THRESHOLDS + (() if same_calibration else OF_PROBABILITIES)
            evaluation["metrics"] |= dict.fromkeys(changed)
            if not same_calibration:
                (folder / runs.DIAGNOSIS).unlink(missing_ok=True)
            dropped = ", ".join(changed) + ", curves and mistakes" * (not same_calibration)
            say(
                f"the test part that the run was measured on is not in {source.name}: the run has "
                f"no {dropped} any more; `partly decide` with that data measures them again"
            )
        checkpoint.write_json(path, evaluation)
    say(f"report: {run_report(folder)}")


def predict_run(
    run: str | Path,
    images: str | Path | Source,
    out: str | Path,
    *,
    top: int | None = None,
    labels: bool = False,
    resume: bool = False,
    device: str = "auto",
    quiet: bool = True,
    say: Say = print,
) -> int:
    """Write a CSV, .jsonl or .parquet of probabilities: of each image those of all labels, or with
    `top` those of the likeliest; and the labels that are decided, in a CSV where `labels` asks for
    them. Returns the number of images.

    resume: go on with a file that was not finished.
    """
    predictor, source, out = runs.load(run, device), Source.of(images), Path(out)
    raise_if(source.problems(), ConfigError)
    checkpoint.check_folder(out.parent)
    form = predicting.form_of(predictor, out, top, labels)
    asked = unlabelled.of_source(source, predictor.names)
    stored = predicting.begun(out) if resume else None
    table, bad = source.usable(asked, say) if stored is None else _without(asked, stored["bad"])
    if top is None and len(table) * len(predictor.names) > LARGEST_TABLE:
        raise ConfigError(
            f"{len(table):,} images × {len(predictor.names):,} labels are more than one table "
            "holds: ask for the likeliest with --top, such as --top 5"
        )
    predictor.check(table)
    if labels and predictor.thresholds is None:
        say(f"the run has no thresholds: a label is present from a probability of {runs.HALF} on")
    checkpoint.make_folder(out.parent)
    plan = predicting.describe(Path(run), table, form)
    predicting.begin(out, plan | {"bad": bad}, resume=resume)
    predicting.write(predictor, table, out, form, quiet)
    listed = out.with_name(f"{out.name}.{runs.SKIPPED}")
    runs.write_skipped(listed, bad)
    if bad:
        say(f"they are listed in {listed}")
    return len(table)


def _without(table: LabelTable, bad: dict[str, str]) -> tuple[LabelTable, dict[str, str]]:
    """The table without the images that were found to be bad before."""
    if not bad:
        return table, bad
    left_out = index_in(table.ids, Texts.of(list(bad))) >= 0
    return table.take(np.flatnonzero(~left_out)), bad


def check_run(
    data: str | Path | Source, out: str | Path | None = None, say: Say = print
) -> dict[str, Any]:
    """Look at a data set before anyone trains on it; with `out`, write a page into that folder.

    Returns everything that was found; its "problems" are what must be mended.
    """
    from partly import check_page, checking

    source = Source.of(data)
    if out is not None:
        checkpoint.check_folder(Path(out))
    table = source.read()
    findings = {"data": source.name} | checking.check(table, verify=source.verify)
    for line in checking.summary_lines(findings):
        say(line)
    if out is not None:
        checkpoint.make_folder(Path(out))
        say(f"page: {check_page.write(findings, table, Path(out) / 'check.html')}")
    return findings


def pack_run(
    data: str | Path | Source,
    out: str | Path,
    *,
    size: int | None = 512,
    quality: int = 90,
    workers: int | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """Turn a data set into tar files and a Parquet table, its images resized once."""
    from partly.packing import pack

    source = Source.of(data)
    checkpoint.check_folder(Path(out))
    table = replace(source, use_answers=False).read()
    if source.use_answers and answers.carry(source.path, out, source.answers_until):
        say(f"what people answered goes beside the pack too: {answers.journal_of(out)}")
    how = source.on_bad_image
    packed = pack(
        table, Path(out), size=size, quality=quality, workers=workers, on_bad_image=how, say=say
    )
    say(
        f"{counted(packed['images'], 'image')} in {counted(packed['shards'], 'tar file')}, "
        f"{packed['bytes_before'] / 1e6:,.1f} -> {packed['bytes_after'] / 1e6:,.1f} MB; "
        f"{counted(len(packed['skipped']), 'image')} left out: {out}"
    )
    return packed


def parse_options(pairs: list[str]) -> dict[str, Any]:
    """`["gamma=0.1", "d=printed"]` -> numbers where they are numbers, text otherwise."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign:
            raise ConfigError(f"an option is name=value, not '{pair}'")
        options[name.strip()] = _number(text.strip())
    return options


def _number(text: str) -> int | float | str:
    if len(text) > 1 and text.isdigit() and text.startswith("0"):
        return text  # 007 is a name
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
