"""From a run to files that work elsewhere.

What enters: a run's folder. What leaves: an .onnx file, or a folder of safetensors with a card, or
one in the layout of the Hugging Face hub. Each carries its preprocessing, labels and thresholds. It
is read again before it takes its place, and must answer as the run's model does.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partly import checkpoint, runs, unlabelled
from partly.decisions import Calibration
from partly.errors import ConfigError, RunError
from partly.exporting import card, hub, onnx_file
from partly.exporting.card import CARD, PAGE, Card
from partly.exporting.whole import Whole, drawn_images, given_inputs
from partly.labels import LabelTable
from partly.source import Source

__all__ = ["FORMATS", "export_run", "load"]

Say = Callable[[str], None]
Answer = tuple[np.ndarray, np.ndarray]  # probabilities, logits [N, L]
Answers = Callable[[np.ndarray], Answer]  # of inputs, as what was written gives them

FORMATS = {"onnx": "model.onnx", "safetensors": "safetensors", "huggingface": "huggingface"}
LARGEST_DIFFERENCE = 1e-4  # of a probability from PyTorch's
# With a frozen backbone: of 16 bits that its features are rounded to, the last may be another.
LARGEST_ROUNDED = 1e-3
LARGEST_OF_LOGITS = 1e-3  # of the largest one: where probabilities are 0 and 1 they hide a mistake
TRIED = 64  # of the images that are given
EYE = "eye."  # in front of the names of a frozen backbone's weights


def export_run(
    run: str | Path,
    format: str = "onnx",
    out: str | Path | None = None,
    *,
    images: str | Path | Source | None = None,
    say: Say = print,
) -> Path:
    """Write a run's model in a form that works elsewhere; returns where it is.

    format: onnx (a file), safetensors or huggingface (folders). out: in the run's folder if None.
    images: images or features on which what was written is compared with the run's model; otherwise
    pictures drawn by code, or feature rows like those it was trained on.
    """
    if format not in FORMATS:
        raise ConfigError(f"format is one of {', '.join(FORMATS)}, not '{format}'")
    if format == "onnx":
        onnx_file.check_installed()
    place = Path(run) / FORMATS[format] if out is None else Path(out)
    place = place if place.name else place.resolve()  # `.` has a name as well
    _check_free(place, alone=format == "onnx")
    checkpoint.check_folder(place.parent)
    predictor = runs.load(run, "cpu")
    about = card.describe(predictor, Path(run))
    with _tried_on(predictor, images, say) as table:
        inputs, expected = given_inputs(predictor, table), _expected(predictor, table)
    checkpoint.make_folder(place.parent)
    with _aside(place) as written:
        answers, notes = WRITERS[format](predictor, about, inputs, written)
        largest = _compare(expected, answers(inputs), rounded=predictor.eye is not None)
        _move(written, place)
    for note in notes:
        say(note)
    tried = f"{len(inputs)} {_kind(about, drawn=images is None)}"
    say(f"{place}: on {tried} no probability differs from PyTorch's by more than {largest:.1g}")
    return place


def _kind(about: Card, drawn: bool) -> str:
    images = about["input"]["kind"] == "images"
    if not drawn:
        return "given images" if images else "given feature rows"
    return "pictures drawn by code" if images else "random feature rows"


def _check_free(place: Path, *, alone: bool) -> None:
    """Nothing that exists is replaced, but for an empty folder by a folder."""
    empty = not alone and place.is_dir() and not any(place.iterdir())
    if place.exists() and not empty:
        raise RunError(f"{place} is there already: remove it, or name another with --out")


@contextmanager
def _tried_on(
    predictor: runs.Predictor, images: str | Path | Source | None, say: Say
) -> Iterator[LabelTable]:
    """What it is tried on: the first of the images or features, those that can be read."""
    if images is None:
        with unlabelled.asked(drawn_images(predictor), predictor.names) as table:
            yield table
        return
    source = replace(Source.of(images), on_bad_image="skip")
    table = unlabelled.of_source(source, predictor.names)
    yield source.usable(table.take(np.arange(min(TRIED, len(table)))), say)[0]


def _expected(predictor: runs.Predictor, table: LabelTable) -> Answer:
    """What the run says of these images, on the way that `partly predict` takes."""
    (seen,) = predictor.see_each(table, [np.arange(len(table))])
    logits = predictor.logits_of(seen)
    return predictor.to_probabilities(logits), logits.numpy()


def _compare(expected: Answer, found: Answer, *, rounded: bool) -> float:
    """The largest difference of a probability, or an error where that is too large."""
    largest = np.abs(found[0] - expected[0]).max()
    of_logits = np.abs(found[1] - expected[1]).max() / max(1, np.abs(expected[1]).max())
    limit = LARGEST_ROUNDED if rounded else LARGEST_DIFFERENCE
    if not (largest <= limit and of_logits <= LARGEST_OF_LOGITS):  # nan is no agreement either
        raise RunError(
            f"what was written does not answer as the run's model does: probabilities differ by "
            f"{largest:.1e}, where {limit:.0e} is allowed, and logits by {of_logits:.1e} of the "
            f"largest, where {LARGEST_OF_LOGITS:.0e} is; it was not kept"
        )
    return float(largest)


# --- files that are whole or not there -----------------------------------------------------------


@contextmanager
def _aside(place: Path) -> Iterator[Path]:
    """A path of the same name in a folder of its own beside `place`. What stays there is removed,
    what a killed process left as well."""
    folder = place.with_name(f".{place.name}.partial")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir()
        yield folder / place.name
    except OSError as error:
        raise RunError(f"cannot write {place}: {checkpoint.reason(error)}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(written: Path, place: Path) -> None:
    """All that was written takes its place, last of all what refers to the rest."""
    for file in written.parent.rglob("*"):
        if file.is_file():
            with file.open("rb") as content:
                os.fsync(content.fileno())
    entries = sorted(written.parent.iterdir(), key=lambda entry: entry == written)
    for entry in entries:
        _check_free(place.with_name(entry.name), alone=entry.is_file())
    for entry in entries:
        entry.replace(place.with_name(entry.name))


# --- formats -------------------------------------------------------------------------------------


def _write_onnx(
    predictor: runs.Predictor, about: Card, inputs: np.ndarray, place: Path
) -> tuple[Answers, list[str]]:
    onnx_file.write(Whole(predictor), inputs, about, place)
    return partial(onnx_file.answers, place), []


def _write_safetensors(
    predictor: runs.Predictor, about: Card, inputs: np.ndarray, place: Path
) -> tuple[Answers, list[str]]:
    _write_folder(place, _own_weights(predictor), about, card.page(about, card.partly_usage(about)))
    return partial(_ask, place), []


def _write_huggingface(
    predictor: runs.Predictor, about: Card, inputs: np.ndarray, place: Path
) -> tuple[Answers, list[str]]:
    notes = []
    try:
        model: Any = hub.timm_model(predictor)
        about = about | {"layout": "timm"}
        weights, usage = model.state_dict(), card.TIMM_USAGE
        answers: Answers = partial(_ask_timm, predictor, place)
    except hub.NotLikeTimm as why:
        notes = [f"{why}: timm and transformers cannot load this folder, partly.exporting.load can"]
        usage = card.OWN_USAGE.format(why=why) + card.partly_usage(about)
        model, weights, answers = None, _own_weights(predictor), partial(_ask, place)
    _write_folder(place, weights, about, card.page(about, usage, hub.header(about, model)))
    checkpoint.write_json(place / hub.CONFIG, hub.config_of(about, model))
    if about["input"]["kind"] == "images":
        checkpoint.write_json(place / hub.PREPROCESSOR, hub.preprocessor_of(about))
    return answers, notes


WRITERS = {
    "onnx": _write_onnx,
    "safetensors": _write_safetensors,
    "huggingface": _write_huggingface,
}


def _write_folder(place: Path, weights: Mapping[str, Tensor], about: Card, page: str) -> None:
    place.mkdir()
    runs.write_weights(place, weights)
    checkpoint.write_json(place / CARD, about)
    checkpoint.write_text(place / PAGE, page)


def _own_weights(predictor: runs.Predictor) -> dict[str, Tensor]:
    """All weights under the names that Partly gives them."""
    eye = {} if predictor.eye is None else predictor.eye.state_dict()
    return predictor.model.state_dict() | {f"{EYE}{name}": v for name, v in eye.items()}


def load(folder: str | Path, device: str = "auto") -> runs.Predictor:
    """The model of an exported folder, as `partly.runs.load` gives that of a run."""
    folder = Path(folder)
    if not (folder / CARD).is_file():
        raise RunError(f"{folder} is no exported model: it has no {CARD}")
    about, weights = checkpoint.read_json(folder / CARD), runs.read_weights(folder)
    if weights is None:
        raise RunError(f"{folder} is no exported model: it has no {runs.WEIGHTS}")
    if about.get("layout") != "partly":
        raise RunError(
            f"{folder} is in timm's layout: timm.create_model('local-dir:{folder}', "
            "pretrained=True) opens it"
        )
    eye = {name.removeprefix(EYE): v for name, v in weights.items() if name.startswith(EYE)}
    model = {name: tensor for name, tensor in weights.items() if not name.startswith(EYE)}
    try:
        thresholds = np.array(about["thresholds"]) if about["thresholds_fitted"] else None
        config = about["config"] | {"labels": about["labels"]}
        calibration = Calibration.from_json(about["calibration"])
        return runs.restore(config, model, thresholds, device, eye or None, calibration)
    except (KeyError, TypeError, RuntimeError) as error:
        raise RunError(f"the model in {folder} is damaged: {error!r}") from None


def _ask(folder: Path, inputs: np.ndarray) -> Answer:
    """What an exported folder answers."""
    with torch.inference_mode():
        probabilities, logits = Whole(load(folder, "cpu"))(torch.from_numpy(inputs))
    return probabilities.numpy(), logits.numpy()


def _ask_timm(predictor: runs.Predictor, folder: Path, inputs: np.ndarray) -> Answer:
    """What timm's model of a folder answers."""
    with torch.inference_mode():
        logits = hub.read_timm(folder)(Whole(predictor).prepare(torch.from_numpy(inputs)))
    calibration = predictor.calibration
    before = (logits - calibration.shift) / calibration.slope
    return torch.sigmoid(logits).numpy(), before.numpy()
