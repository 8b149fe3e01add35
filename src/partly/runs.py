"""A run's folder: what training leaves behind and others read.

config.json        every option, the labels, their hash, versions of what was used
metrics.jsonl      one line an epoch
audit.jsonl        one line an epoch: how good the pseudo-labels are, per label (studies only)
checkpoint.pt      everything needed to go on after a crash
rows-*.pt          the part of it that belongs to the images of one rank, where there are several
pseudo_labels-*    pseudo-labels on disk, and (.undo) how to get back to the checkpoint
model.safetensors  the weights of the chosen epoch
eye.safetensors    the frozen backbone in front of it, where only the head was trained
untuned.safetensors  the head before `--finish cft`
decisions.json     a threshold a label, what they were fitted for and on, what is expected of them,
                   and what makes probabilities true (`decisions.Calibration`)
thresholds.json    the thresholds alone, for other programs
skipped.csv        the images that were left out, and what is wrong with each
evaluation.json    every metric on the test part
diagnosis.json     curves, decisions and mistakes on the test part, as the report shows them
report.html        the same as a page
review.npz         probabilities of the images that were last reviewed
"""

import csv
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from partly import __version__, checkpoint, distributed, features, methods, models, unlabelled
from partly.config import Config
from partly.data import Look, open_inputs, split_into_chunks
from partly.decisions import AS_IT_IS, Calibration, Decisions
from partly.errors import ConfigError, DataError, PartlyError, RunError, raise_if
from partly.labels import LabelTable
from partly.metrics import row_blocks
from partly.sampled import average_precisions, top_labels
from partly.source import Source
from partly.texts import Texts

CONFIG, METRICS, AUDIT = "config.json", "metrics.jsonl", "audit.jsonl"
CHECKPOINT, WEIGHTS, EYE = "checkpoint.pt", "model.safetensors", "eye.safetensors"
UNTUNED = "untuned.safetensors"  # the head before its rows were tuned
SKIPPED = "skipped.csv"
THRESHOLDS, EVALUATION, REPORT = "thresholds.json", "evaluation.json", "report.html"
DECISIONS, DIAGNOSIS = "decisions.json", "diagnosis.json"
HALF = 0.5  # the threshold of every label where none was fitted
PATIENCE = 10.0  # seconds that a training waits for another one, or its workers, to end
TOGETHER = 2048  # images whose likeliest labels are looked for together
RESULTS = (CHECKPOINT, WEIGHTS, METRICS)  # a run with one of these has something to lose
# What a run writes after its config: where there is none, these are somebody's.
WRITTEN = (*RESULTS, AUDIT, UNTUNED, THRESHOLDS, DECISIONS, EVALUATION, DIAGNOSIS, REPORT, "rows-*")
SKIPPED_COLUMNS = ("id", "problem")


def choose_device(name: str = "auto") -> torch.device:
    """`auto` is the GPU where there is one; each rank has its own."""
    name = distributed.device_name(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise DataError(f"device '{name}' was asked for, but there is no GPU here; use cpu or auto")
    try:
        return torch.device(name)
    except RuntimeError:
        raise ConfigError(f"no device '{name}'; use auto, cpu or cuda") from None


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    own = {"python": platform.python_version(), "partly": __version__}
    return own | {name: version(name) for name in ("torch", "numpy", "timm")}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON Lines file, if it is there, up to a line that a crash cut off."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def keep_lines(path: Path, epochs: int) -> None:
    """Drop the records of epochs that a resumed run will write again."""
    if path.exists():
        kept = [record for record in read_lines(path) if record["epoch"] <= epochs]
        checkpoint.write_text(path, "".join(json.dumps(record) + "\n" for record in kept))


def begin(
    folder: Path,
    record: dict[str, Any],
    eye: torch.nn.Module | None,
    skipped: Mapping[str, str],
    epoch: int,
    *,
    fresh: bool,
) -> None:
    """Write down what a run is, before its first step or before it goes on from an epoch."""
    checkpoint.make_folder(folder)
    for lines in (METRICS, AUDIT):
        keep_lines(folder / lines, epoch - 1)
    if fresh:
        write_skipped(folder / SKIPPED, skipped)
        for stale in (EYE, UNTUNED):  # of a run that ended before it had anything to lose
            (folder / stale).unlink(missing_ok=True)
        if eye is not None:
            write_weights(folder, eye.state_dict(), EYE)
    checkpoint.write_json(folder / CONFIG, record)


def write_skipped(path: Path, skipped: Mapping[str, str]) -> None:
    """The ids of images that were left out, and what is wrong with each; no file for none."""
    if not skipped:
        path.unlink(missing_ok=True)
        return

    def write(place: Path) -> None:
        with place.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([SKIPPED_COLUMNS, *skipped.items()])

    checkpoint.write_atomically(path, write)


def read_skipped(folder: Path) -> dict[str, str]:
    """The images that a run left out."""
    if not (folder / SKIPPED).is_file():
        return {}
    with (folder / SKIPPED).open(encoding="utf-8", newline="") as file:
        return dict(list(csv.reader(file))[1:])


def write_weights(folder: Path, weights: Mapping[str, Tensor], name: str = WEIGHTS) -> None:
    """The weights of the chosen epoch, whole or not at all."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}

    def write(place: Path) -> None:
        place.write_bytes(save(tensors))

    checkpoint.write_atomically(folder / name, write)


def read_weights(folder: Path, name: str = WEIGHTS) -> dict[str, Tensor] | None:
    """The weights of the chosen epoch; None before there are any."""
    from safetensors.torch import load_file

    if not (folder / name).is_file():
        return None
    try:
        return load_file(folder / name)
    except Exception as error:
        raise RunError(f"cannot read {folder / name}: {error}") from None


class Prediction(NamedTuple):
    """Of one image: its decided labels, the likeliest first, and the probability of every label."""

    id: str
    labels: list[str]
    probabilities: dict[str, float]


@dataclass(frozen=True)
class Predictions:
    """What a model says of N images: ids [N], names [L], probabilities [N, L] and the thresholds
    [L] from which on a label is decided. Iterating gives one `Prediction` an image. left_out: the
    ids of images that cannot be read, and what is wrong with each, where they were skipped."""

    ids: Texts
    names: tuple[str, ...]
    probabilities: np.ndarray
    thresholds: np.ndarray
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def decided(self) -> np.ndarray:
        """Which labels each image is said to have: bool [N, L]."""
        return self.probabilities >= self.thresholds

    @property
    def labels(self) -> list[list[str]]:
        """Their names, the likeliest first."""
        return [self._labels_of(scores) for scores in self.probabilities]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> Prediction:
        scores = self.probabilities[row]
        values = dict(zip(self.names, scores.tolist(), strict=True))
        return Prediction(self.ids[row], self._labels_of(scores), values)

    def _labels_of(self, scores: np.ndarray) -> list[str]:
        """The names of an image's decided labels, the likeliest first."""
        found = np.flatnonzero(scores >= self.thresholds)
        return [self.names[column] for column in found[np.argsort(-scores[found], kind="stable")]]

    def __iter__(self) -> Iterator[Prediction]:
        return map(self.__getitem__, range(len(self)))


@dataclass
class Predictor:
    """A trained model with what is needed to use it.

    thresholds: [L], of the probabilities that it gives; None: ½ for each. calibration: through
    which the model's own probabilities go to become those. eye: the frozen backbone that turns
    images into the model's features, where only the head was trained.
    """

    model: models.Classifier
    method: methods.Method
    names: tuple[str, ...]
    config: dict[str, Any]
    device: torch.device
    thresholds: np.ndarray | None = None
    eye: torch.nn.Module | None = None
    calibration: Calibration = AS_IT_IS

    def logits(self, table: LabelTable) -> np.ndarray:
        """Logits [N, L] of a table's images or features."""
        with torch.inference_mode():
            blocks = [self.model(batch).float().cpu() for batch in self._batches(table)]
        return torch.cat(blocks).numpy()

    def top(self, table: LabelTable, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k likeliest labels of each image, as columns [N, k], and their probabilities.

        However many labels there are, their logits never exist all at once.
        """
        if not isinstance(k, Integral) or k < 1:
            raise ConfigError(f"k is a number of labels, 1 or more, not {k!r}")
        return self.top_of(self.seen(table), k)

    def seen(self, table: LabelTable) -> np.ndarray:
        """What the backbone sees [N, F]: all that the last layer needs."""
        with torch.inference_mode():
            blocks = [self.model.backbone(b).float().cpu() for b in self._batches(table)]
        return torch.cat(blocks).numpy()

    def top_of(self, seen: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """`top` of what was seen."""
        columns, best = [], []
        with torch.inference_mode():
            for rows in torch.from_numpy(seen).split(TOGETHER):
                found, logits = top_labels(rows.to(self.device), self.model.head, k)
                columns.append(found.cpu())
                best.append(logits.cpu())
        return torch.cat(columns).numpy(), self.to_probabilities(torch.cat(best))

    def average_precisions(self, seen: np.ndarray, table: LabelTable) -> np.ndarray:
        """AP of each label [L] by its known entries, a block of labels after the other; nan where
        no positive or no negative is known."""
        with torch.inference_mode():
            features = torch.from_numpy(seen).to(self.device)
            return average_precisions(features, self.model.head, table)

    def predict(self, images: Any, *, on_bad_image: str = "error") -> Predictions:
        """Probabilities and decided labels of images: a path of an image, a folder, a tar or a data
        set; a list of paths; PIL pictures; rows of features [N, F]; or a table. Of none: none.

            for image in partly.load("runs/first").predict("photos/"):
                print(image.id, image.labels)

        on_bad_image: error, or skip: look for images that cannot be read first, and leave them out;
        `left_out` of what comes back names them.
        """
        raise_if(Source("", on_bad_image=on_bad_image).problems(), ConfigError)
        skips = "skip" in (on_bad_image, getattr(images, "on_bad_image", None))
        left_out: dict[str, str] | None = {} if skips else None
        blocks = [np.zeros((0, len(self.names)), np.float32)]
        with unlabelled.asked(images, self.names, left_out) as table:
            if len(table):
                self.check(table)
                chunks = split_into_chunks(np.arange(len(table)), TOGETHER)
                blocks = [self.probabilities_of(seen) for seen in self.see_each(table, chunks)]
        scores = np.concatenate(blocks)
        return Predictions(table.ids, self.names, scores, self.limits, left_out or {})

    @property
    def limits(self) -> np.ndarray:
        """The probability [L] from which on a label is decided: its threshold, or ½."""
        return np.full(len(self.names), HALF) if self.thresholds is None else self.thresholds

    def check(self, table: LabelTable) -> None:
        """Raise an error if the model cannot look at these images or features."""
        wanted = self.config.get("features")
        given = None if table.features is None else table.features.shape[1]
        if given is None and self.eye is not None:
            return
        if wanted != given:
            raise DataError(
                f"the model looks at {_looks_at(wanted)}, but the data has {_looks_at(given)}"
            )

    def see_each(self, table: LabelTable, chunks: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """What the backbone sees [n, F] in each chunk of images; nothing is kept on the way."""
        self.check(table)
        on_pictures = table.features is None
        together = max(self.config["batch_size"], 256)
        if on_pictures:
            together = features.TOGETHER[self.device.type]
        parts = [split_into_chunks(chunk, together) for chunk in chunks]
        look, workers = look_of(self.config), self.config["workers"]
        inputs = open_inputs(table, self.device, look, workers=workers)
        batches = inputs.batches([part for chunk in parts for part in chunk])
        self.model.eval()
        for chunk in parts:
            seen = []
            for _ in chunk:
                _, batch = next(batches)
                with torch.inference_mode():
                    if self.eye is not None and on_pictures:
                        batch = features.glance(self.eye.eval(), batch).float()
                    seen.append(self.model.backbone(batch).float().cpu())
            yield torch.cat(seen).numpy()

    def logits_of(self, seen: np.ndarray) -> Tensor:
        """Logits [n, L] from what was seen."""
        with torch.inference_mode():
            return self.model.head(torch.from_numpy(seen).to(self.device)).float().cpu()

    def probabilities_of(self, seen: np.ndarray) -> np.ndarray:
        """P(label) [n, L] from what was seen."""
        return self.to_probabilities(self.logits_of(seen))

    def _batches(self, table: LabelTable) -> Iterator[Tensor]:
        """The inputs of the model, on its device."""
        look, workers = look_of(self.config), self.config["workers"]
        self.check(table)
        if self.eye is not None and table.features is None:
            table = features.with_features(table, self.eye, look, self.device, workers=workers)
        inputs = open_inputs(table, self.device, look, workers=workers)
        chunks = split_into_chunks(np.arange(len(table)), max(self.config["batch_size"], 256))
        self.model.eval()
        for _, batch in inputs.batches(chunks):
            yield batch

    def probabilities(self, table: LabelTable) -> np.ndarray:
        """P(label) [N, L] of a table's images or features."""
        return self.to_probabilities(torch.from_numpy(self.logits(table)))

    def to_probabilities(self, logits: Tensor) -> np.ndarray:
        """The probabilities that these logits of the model stand for."""
        if self.calibration.kind == "none":
            return self.raw_probabilities(logits)
        found = np.empty(logits.shape, np.float32)
        for rows in row_blocks(found):
            found[rows] = self._calibrated(logits[rows].double())
        return found

    def _calibrated(self, logits: Tensor) -> np.ndarray:
        """`to_probabilities` of logits in 64 bits: where p is close to 1, 32 hold few digits of
        1 - p. Logits of a σ are moved as they are, so that no two images become equal."""
        if self.calibration.kind == "temperature" and self.method.link is None:
            moved = self.calibration.slope * logits + self.calibration.shift
            return torch.sigmoid(moved).numpy()
        return self.calibration.apply(self.raw_probabilities(logits))

    def raw_probabilities(self, logits: Tensor) -> np.ndarray:
        """The same without the calibration."""
        return self.method.probability(logits, self.config["options"]).numpy()

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds names and weights, so that it opens elsewhere, with or without a GPU."""
        weights = {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}
        device = "cpu" if self.device.type == "cpu" else "auto"
        eye = None if self.eye is None else {k: v.cpu() for k, v in self.eye.state_dict().items()}
        return restore, (self.config, weights, self.thresholds, device, eye, self.calibration)


def _looks_at(features: int | None) -> str:
    return "images" if features is None else f"{features} features a row"


def restore(
    config: dict[str, Any],
    weights: Mapping[str, Tensor],
    thresholds: np.ndarray | None,
    device: str = "auto",
    eye_weights: Mapping[str, Tensor] | None = None,
    calibration: Calibration = AS_IT_IS,
) -> Predictor:
    """A trained model from what describes it."""
    chosen = choose_device(device)
    trained = "linear" if config.get("head_only") else config["backbone"]
    size = config["image_size"]
    model = models.build(trained, len(config["labels"]), config["features"], size=size)
    model.load_state_dict(weights)
    eye = None
    if eye_weights is not None:
        eye = models.build(config["backbone"], 1, size=size).backbone.to(chosen)
        eye.load_state_dict(eye_weights)
    method, names = methods.get(config["method"]), tuple(config["labels"])
    return Predictor(model.to(chosen), method, names, config, chosen, thresholds, eye, calibration)


def look_of(config: Mapping[str, Any]) -> Look:
    """How the images of a run are looked at."""
    named = {name: config.get(name) for name in ("resize", "augment", "normalise", "decode")}
    given = {name: value for name, value in named.items() if value is not None}
    return Look(size=config["image_size"], **given)


def load(folder: str | Path, device: str = "auto") -> Predictor:
    """The trained model of a run's folder.

    >>> from tempfile import TemporaryDirectory
    >>> from partly import train
    >>> features, labels = np.eye(2, dtype=np.float32), np.array([[1, 0], [0, 1]])
    >>> table = LabelTable.from_dense(labels, features=features)
    >>> with TemporaryDirectory() as run:
    ...     _ = train(table, Config(epochs=1, hold_out=0), run, quiet=True)
    ...     model = load(run)
    >>> model.names
    ('label 0', 'label 1')
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise RunError(f"{folder} is not a run: it has no {CONFIG}")
    weights = read_weights(folder)
    if weights is None or not checkpoint.read_json(folder / CONFIG).get("finished"):
        raise RunError(f"the run in {folder} is not finished: continue it with --resume")
    config = checkpoint.read_json(folder / CONFIG)
    try:
        thresholds, calibration = read_decisions(folder, config["labels"])
        return restore(config, weights, thresholds, device, read_weights(folder, EYE), calibration)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, PartlyError):
            raise
        raise RunError(f"the run in {folder} is damaged: {error!r}") from None


def read_decisions(folder: Path, names: Sequence[str]) -> tuple[np.ndarray | None, Calibration]:
    """Thresholds [L] and calibration of a run's folder, as far as there are any."""
    if (folder / DECISIONS).is_file():
        stored = checkpoint.read_json(folder / DECISIONS)
        thresholds = np.array([stored["labels"][name]["threshold"] for name in names])
        return thresholds, Calibration.from_json(stored["calibration"])
    if (folder / THRESHOLDS).is_file():  # as runs had it before
        alone = checkpoint.read_json(folder / THRESHOLDS)
        return np.array([alone[name] for name in names]), AS_IT_IS
    return None, AS_IT_IS


def read_wanted(folder: Path) -> tuple[str, str] | None:
    """The goal and the kind of calibration that a run's decisions were fitted for."""
    if not (folder / DECISIONS).is_file():
        return None
    stored = checkpoint.read_json(folder / DECISIONS)
    return stored["goal"], stored["calibration"]["kind"]


def read_refitted(
    folder: Path | None, names: Sequence[str]
) -> tuple[np.ndarray | None, Calibration] | None:
    """`read_decisions` where somebody has fitted them again after training; None otherwise."""
    if folder is None or not (folder / DECISIONS).is_file():
        return None
    refitted = checkpoint.read_json(folder / DECISIONS).get("refitted_on") is not None
    return read_decisions(folder, names) if refitted else None


def write_decisions(
    folder: Path,
    names: Sequence[str],
    decided: Decisions,
    refitted_on: str | None = None,
    *,
    on_test: bool = False,
) -> None:
    """All that was decided, in one file; a run that goes on keeps what was fitted again, on data of
    this name. on_test: on the very images that it is tested on. The copy of the thresholds is at no
    time another's."""
    (folder / THRESHOLDS).unlink(missing_ok=True)
    about = {"refitted_on": refitted_on, "on_test": on_test}
    checkpoint.write_json(folder / DECISIONS, decided.to_json(names) | about)
    chosen = dict(zip(names, decided.thresholds.tolist(), strict=True))
    checkpoint.write_json(folder / THRESHOLDS, chosen)


# --- a run that begins or goes on ---------------------------------------------------------------


def stored_config(folder: str | Path) -> dict[str, Any] | None:
    """What a run's folder says about itself; None where there is no run yet, nor anything that one
    would write over."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        _check_is_free(Path(folder))
        return None
    stored = checkpoint.read_json(path)
    if not (isinstance(stored, dict) and {"method", "labels"} <= stored.keys()):
        raise RunError(f"{path} is not that of a run: name another folder")
    return stored


def _check_is_free(folder: Path) -> None:
    """A folder without a run has nothing that one would write over. A list of skipped images may be
    there: that of a run which ended before it had a config."""
    left = [found.name for name in WRITTEN for found in folder.glob(name)]
    if (folder / SKIPPED).exists():
        first = ""
        with suppress(OSError), (folder / SKIPPED).open(encoding="utf-8", errors="replace") as file:
            first = file.readline().rstrip()
        left += [SKIPPED] * (first != ",".join(SKIPPED_COLUMNS))
    if left:
        raise RunError(
            f"{folder} holds {', '.join(left)}, which a run would write, and no {CONFIG} of a run "
            "that could go on: name another folder, or move them away"
        )


def open_folder(folder: Path | None, resume: bool, held: ExitStack) -> dict[str, Any]:
    """What the run in this folder says about itself, if it shall go on; nothing for a new one.

    Until `held` ends no other process trains in it.
    """
    if folder is None:
        return {}
    held.enter_context(_alone_in(folder))
    checkpoint.check_folder(folder)
    stored = stored_config(folder)
    if stored is not None and resume:
        return stored
    if stored is not None and any((folder / name).exists() for name in RESULTS):
        raise RunError(f"{folder} already holds a run: add --resume to go on, or name another")
    return {}


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """A folder that is made, and held; where nothing has begun in it, it is gone again."""
    new = not folder.exists()
    taken = f"{folder}: another process is training there: end it, or name another folder"
    with checkpoint.held(folder, taken, PATIENCE):
        try:
            yield
        finally:
            if new:
                with suppress(OSError):  # there is something in it
                    folder.rmdir()


def recall(stored: Mapping[str, Any], name: str) -> Any:
    """What a run wrote down when it began."""
    if name not in stored:
        raise RunError(
            f"the run was begun by another version of partly, without {name}: begin anew"
        )
    return stored[name]


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
        "versions": versions(),
    }


# What may change between a run and its continuation without changing its result.
FREE_ON_RESUME = ("versions", "device", "workers", "checkpoint_steps")
HASHES = {
    "label_hash": "the labels to train on",
    "inputs_hash": "the images or features",
    "validation_hash": "the labels to validate on",
}
DESCRIBED = ("images", "features", "labels", "label_counts")  # and covered by a hash


def taught(config: Mapping[str, Any]) -> np.ndarray | None:
    """Which labels [L] training knew anything of; None where the run does not say."""
    counts = config.get("label_counts")
    return None if counts is None else np.array(counts["positive"]) + counts["negative"] > 0


def check_same(folder: Path | None, began: dict[str, Any], record: dict[str, Any]) -> None:
    """A run can only go on with the choices and labels it began with."""
    usual = methods.get(record["method"]).options
    before, now = ({**r, "options": {**usual, **r.get("options", {})}} for r in (began, record))
    changed = [name for name in record if before.get(name) != now[name]]
    raise_if(
        (
            f"cannot resume {folder}: {HASHES[name]} have changed"
            if name in HASHES
            else f"cannot resume {folder}: {name} was {began.get(name)!r}, now {record[name]!r} "
            "(leave it out, or begin anew in another folder)"
            for name in changed
            if name not in (*FREE_ON_RESUME, *DESCRIBED)
        ),
        RunError,
    )
