"""Whole jobs: from a data set on disk to a run's folder, and from a run's folder to answers.

What enters: paths and a `Config`. What leaves: files. Each function is a command of `cli.py`, and
can be called from Python as it is.
"""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from partly import checkpoint, metrics, runs
from partly.errors import ConfigError, DataError
from partly.hiding import Setting, describe, hide
from partly.labels import LabelTable
from partly.readers import read
from partly.report import run_report
from partly.training import Config, train

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")

Say = Callable[[str], None]


def train_run(
    data: str | Path,
    out: str | Path,
    config: Config,
    *,
    setting: str | None = None,
    resume: bool = False,
    quiet: bool = False,
    say: Say = print,
) -> dict[str, Any] | None:
    """Read, hide if asked to, train, evaluate on the test part if there is one, report."""
    table = read(data)
    full = table.part("train")
    if full is None:
        raise DataError(f"{data} has no images to train on: none is marked 'train'")
    hidden = None if setting is None else Setting.parse(setting)
    known = full if hidden is None else hide(full, str(hidden), seed=config.seed)
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
    return {"images": len(table), "label_hash": table.content_hash, "metrics": measured}


def evaluate_run(
    run: str | Path, data: str | Path, *, part: str | None = None, device: str = "auto"
) -> dict[str, Any]:
    """Every metric of a run's model on a data set: its test part, or all of it without parts."""
    table = read(data)
    wanted = part or ("test" if table.splits is not None else "train")
    chosen = table.part(wanted)
    if chosen is None:
        raise DataError(f"{data} has no part '{wanted}'")
    return _evaluate(runs.load(run, device), chosen)


def summary(evaluation: dict[str, Any]) -> str:
    """The figures one looks at first."""
    measured = evaluation["metrics"]
    shown = [("mAP", "mAP"), ("AUROC", "AUROC"), ("CF1", "CF1"), ("OF1", "OF1")]
    figures = [f"{name} {100 * measured[key]:.2f}" for name, key in shown if measured.get(key)]
    coverage = measured["coverage"]
    return (
        f"{evaluation['images']:,} images: {', '.join(figures)} "
        f"({coverage['labels_scored']} of {coverage['labels']} labels scored)"
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
    """A data set's images (its test part, if it has parts), a folder's, or one image."""
    if path.is_dir() and not (path / "manifest.csv").is_file():
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
        if not found:
            raise DataError(f"no images in {path} (looked for {', '.join(IMAGE_SUFFIXES)})")
        return _unlabelled(found, path, names)
    if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
        return _unlabelled([path], path.parent, names)
    table = read(path)
    return table.part("test") or table


def _unlabelled(files: list[Path], root: Path, names: tuple[str, ...]) -> LabelTable:
    return LabelTable.without_labels(
        names,
        ids=[file.relative_to(root).as_posix() for file in files],
        paths=np.array([str(file) for file in files]),
    )


def check_data(data: str | Path) -> Iterator[str]:
    """What is in a data set: a line a part, then a line a label."""
    table = read(data)
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


def parse_options(pairs: list[str]) -> dict[str, Any]:
    """`["gamma=0.1", "d=printed"]` -> numbers where they are numbers, text otherwise."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign:
            raise ConfigError(f"an option of a method is name=value, not '{pair}'")
        try:
            options[name.strip()] = float(text)
        except ValueError:
            options[name.strip()] = text.strip()
    return options
