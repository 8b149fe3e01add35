"""Whole jobs: from a data set on disk to a run's folder, and from a run's folder to answers.

What enters: paths and a `Config`. What leaves: files. Each function is a command of `cli.py`, and
can be called from Python as it is.
"""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from partly import checkpoint, methods, metrics, runs
from partly.config import Config
from partly.data import missing_images
from partly.errors import ConfigError, DataError, raise_if
from partly.hiding import Setting, describe, hide
from partly.labels import LabelTable, check_trainable
from partly.readers import arrays, manifest, read
from partly.report import run_report
from partly.training import train

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")

Say = Callable[[str], None]


def train_run(
    data: str | Path,
    out: str | Path,
    config: Config,
    *,
    setting: str | None = None,
    convention: str = "partly",
    resume: bool = False,
    quiet: bool = False,
    say: Say = print,
) -> dict[str, Any] | None:
    """Read, hide if asked to, train, evaluate on the test part if there is one, report."""
    raise_if(config.problems(), ConfigError)
    table = read(data, convention=convention)
    full = table.part("train")
    if full is None:
        raise DataError(f"{data} has no images to train on: none is marked 'train'")
    hidden = None if setting is None else Setting.parse(setting)
    known = full if hidden is None else hide(full, str(hidden), seed=config.seed)
    if hidden is not None and methods.get(config.method).reference:
        say(f"{config.method} is a reference: it is given the labels that {hidden} would hide")
        known = full
    say(describe(known))
    predictor = train(
        known,
        config,
        out,
        validation=table.part("validation"),
        truth=None if hidden is None else full,
        resume=resume,
        quiet=quiet,
        notes={"data": Path(data).name, "setting": None if hidden is None else str(hidden)},
    )
    test = table.part("test")
    evaluation = None
    if test is not None:
        evaluation = _evaluate(predictor, test, known)
        checkpoint.write_json(Path(out) / runs.EVALUATION, evaluation)
        say(summary(evaluation))
    say(f"report: {run_report(Path(out))}")
    return evaluation


def stored_config(out: str | Path) -> dict[str, Any] | None:
    """What a run's folder says about itself; None where there is no run yet."""
    path = Path(out) / runs.CONFIG
    return checkpoint.read_json(path) if path.is_file() else None


def _evaluate(
    predictor: runs.Predictor, table: LabelTable, known: LabelTable | None = None
) -> dict[str, Any]:
    table = table.reorder(predictor.names, "the data to evaluate on")
    measured = metrics.evaluate(
        predictor.probabilities(table),
        table.dense(),
        train_positives=None if known is None else known.counts_by_label().positive,
        thresholds=predictor.thresholds,
    )
    trained_on = table.content_hash == predictor.config["label_hash"]
    return {
        "images": len(table),
        "label_hash": table.content_hash,
        "trained_on": trained_on,  # then the figures say nothing about new images
        "metrics": measured,
    }


def evaluate_run(
    run: str | Path,
    data: str | Path,
    *,
    part: str | None = None,
    convention: str = "partly",
    device: str = "auto",
) -> dict[str, Any]:
    """Every metric of a run's model on a data set: its test part, or all of it without parts."""
    table = read(data, convention=convention)
    wanted = part or ("test" if table.splits is not None else "train")
    chosen = table.part(wanted)
    if chosen is None:
        raise DataError(f"{data} has no part '{wanted}'")
    return _evaluate(runs.load(run, device), chosen)


def summary(evaluation: dict[str, Any]) -> str:
    """The figures one looks at first."""
    measured = evaluation["metrics"]
    shown = [name for name in ("mAP", "AUROC", "CF1", "OF1") if measured[name] is not None]
    figures = [f"{name} {100 * measured[name]:.2f}" for name in shown]
    coverage = measured["coverage"]
    return (
        f"{evaluation['images']:,} images: {', '.join(figures)} "
        f"({coverage['labels_scored']} of {coverage['labels']} labels scored)"
        + ("; these are the images it was trained on" if evaluation["trained_on"] else "")
    )


def predict_run(
    run: str | Path, images: str | Path, out: str | Path, *, device: str = "auto"
) -> int:
    """Write a CSV of probabilities: a line an image, a column a label. Returns the lines."""
    predictor = runs.load(run, device)
    table = _to_predict(Path(images), predictor.names)
    probabilities = predictor.probabilities(table)

    def write(place: Path) -> None:
        with place.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["id", *predictor.names])
            for name, scores in zip(table.ids, probabilities, strict=True):
                writer.writerow([name, *(f"{score:.6g}" for score in scores)])

    checkpoint.make_folder(Path(out).parent)
    checkpoint.write_atomically(Path(out), write)
    return len(table)


def _to_predict(path: Path, names: tuple[str, ...]) -> LabelTable:
    """Every image of a data set, labelled or not, of a folder, or one image."""
    if not path.exists():
        raise DataError(f"no data at {path}")
    if path.is_dir() and not (path / "manifest.csv").is_file():
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
        if not found:
            raise DataError(f"no images in {path} (looked for {', '.join(IMAGE_SUFFIXES)})")
        return _unlabelled(found, path, names)
    if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
        return _unlabelled([path], path.parent, names)
    if path.suffix.lower() == ".npz":
        ids, features = arrays.read_features(path)
        return LabelTable.without_labels(names, ids=ids, features=features)
    if not manifest.recognises(path):
        raise DataError(f"{path} is no image, no folder, no manifest and no .npz")
    ids, paths = manifest.read_paths(path)
    return LabelTable.without_labels(names, ids=ids, paths=paths)


def _unlabelled(files: list[Path], root: Path, names: tuple[str, ...]) -> LabelTable:
    return LabelTable.without_labels(
        names,
        ids=[file.relative_to(root).as_posix() for file in files],
        paths=np.array([str(file) for file in files]),
    )


def check_data(data: str | Path, convention: str = "partly") -> Iterator[str]:
    """What is in a data set: a line a part, a line a label; an error with all that is wrong."""
    table = read(data, convention=convention)
    yield f"{table!r}, hash {table.content_hash[:12]}"
    for split in ("train", "validation", "test"):
        part = table.part(split)
        if part is not None:
            yield f"{split}: {describe(part)}"
    counts = table.counts_by_label()
    width = max(len(name) for name in table.names)
    yield f"{'label':<{width}}  positive  negative   unknown"
    for row in np.argsort(-counts.positive, kind="stable"):
        numbers = "".join(f"{column[row]:>10,}" for column in counts)
        yield f"{table.names[row]:<{width}}{numbers}"
    raise_if(_data_problems(table), DataError)


def _data_problems(table: LabelTable) -> Iterator[str]:
    train_part = table.part("train")
    if train_part is None:
        yield "no image is marked 'train'"
    else:
        try:
            check_trainable(train_part)
        except DataError as error:
            yield from error.problems
    if table.paths is not None:
        yield from missing_images(table.paths)


def parse_options(pairs: list[str]) -> dict[str, Any]:
    """`["gamma=0.1", "d=printed"]` -> numbers where they are numbers, text otherwise."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign:
            raise ConfigError(f"an option of a method is name=value, not '{pair}'")
        options[name.strip()] = _number(text.strip())
    return options


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
