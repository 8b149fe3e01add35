"""What does each part of `partly` do, and what did the ideas do that it does not use?

What enters: a data set with full labels, of which a fifth of the training images is set aside (no
test image is looked at). What leaves: mAP and calibration error on those, of `partly` as it is and
of variants that differ in one thing, in several settings and seeds. A line each on the terminal,
and benchmarks/results/method-NAME.json, from which docs/method.md has its figures; what is there is
not trained again.

    python benchmarks/method.py coco_features.npz --epochs 12 --batch-size 1024
    python benchmarks/method.py coco_mini --read annotations=annotations_more --epochs 3 --jobs 12
    python benchmarks/method.py drawn --epochs 10 --backbone small:16 --image-size 48 --lr 5e-3
"""

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from partly import checkpoint, methods, metrics
from partly.arena import set_aside
from partly.config import Config
from partly.experiments import (
    Trial,
    in_parallel,
    machine,
    open_study,
    part_of,
    read_study,
    train_trial,
    with_progress,
)
from partly.runs import versions
from partly.source import Source
from partly.workflow import parse_options

RESULTS = Path(__file__).parent / "results"
SHARE = 0.2  # of the training images, to judge by
SETTINGS = "pal:0.3,ppl:0.6,spl"
PARTLY = "partly"  # in place of a value: the one that it picks
AVERAGED = {"ema": 0.99, "schedule": "constant"}
Choices = dict[str, Any]
Variants = dict[str, tuple[str, Choices]]

# A method, and what differs from its defaults: options of the method, or fields of the Config.
BOTH: Variants = {
    "partly": ("partly", {}),
    "no posterior: the prediction itself": ("partly", {"targets": "prediction", "teacher": "self"}),
    "half the weight on the unknown part": ("partly", {"weight": 0.5, "teacher": "self"}),
    "the unknown part's weight from 0 to 1": ("partly", {"weight": "0:1", "teacher": "self"}),
    "α and β": ("partly", {"share": "all", "teacher": "self"}),
    "half of the unknown part, q = 0.5": ("partly", {"q": 0.5, "teacher": "self"}),
    "a tenth of it, q = 0.1": ("partly", {"q": 0.1, "teacher": "self"}),
    "ign": ("ign", {}),
    "an": ("an", {}),
    "ll-r": ("ll-r", {}),
}
LINEAR: Variants = {
    "no teacher": ("partly", {"teacher": "self"}),
    "no focus": ("partly", {"focus": 0.0}),
    "no prior on the weights": ("partly", {"head_decay": 0.0}),
    "neither teacher nor focus": ("partly", {"teacher": "self", "focus": 0.0}),
    "the likelihood alone": ("partly", {"teacher": "self", "focus": 0.0, "head_decay": 0.0}),
    "the averaged model as teacher": ("partly", {"teacher": "average", **AVERAGED}),
    "averaged weights, no teacher": ("partly", {"teacher": "self", **AVERAGED}),
    "ign with partly's prior": ("ign", {"head_decay": PARTLY}),
    "an with partly's prior": ("an", {"head_decay": PARTLY}),
    "ll-r with partly's prior": ("ll-r", {"head_decay": PARTLY}),
}
KEPT = {"batch_norm": "keep"}
ALL_PICKS = {**KEPT, **AVERAGED, "head_decay": PARTLY}
IMAGES: Variants = {
    "no teacher": ("partly", {"teacher": "self"}),
    "no focus": ("partly", {"focus": 0.0}),
    "no prior on the head": ("partly", {"head_decay": 0.0}),
    "no surprise": ("partly", {"surprise": 0.0}),
    "surprise, twice as much": ("partly", {"surprise": "2:0"}),
    "surprise to the end, twice as much": ("partly", {"surprise": 2.0}),
    "no averaged weights": ("partly", {"ema": 0.0, "schedule": "cosine"}),
    "averaged weights, but a cosine": ("partly", {"schedule": "cosine"}),
    "batch norm trained": ("partly", {"batch_norm": "train"}),
    "linear start": ("partly", {"linear_start": True}),
    "LogicMix": ("partly", {"mix": "logicmix"}),
    "MixUp-PME": ("partly", {"mix": "mixup-pme"}),
    "random parts of pictures": ("partly", {"augment": "crop,flip", "decode": "cpu"}),
    "head no faster than the backbone": ("partly", {"head_factor": 1.0}),
    **{f"{name}, batch norm kept": (name, KEPT) for name in ("ign", "em", "hill", "ll-r")},
    **{f"{name} with partly's picks": (name, ALL_PICKS) for name in ("ign", "em", "hill", "ll-r")},
}


def run(source: Source, config: Config, trial: Trial) -> Choices:
    """One training, judged on the images set aside."""
    rest, aside = set_aside(part_of(read_study(source, config), "train"), SHARE)
    training = dict(trial.training)
    if training.get("head_decay") == PARTLY:
        training["head_decay"] = replace(config, method="partly").complete(rest).head_decay
    own = replace(trial, training=(*training.items(),))
    record, probabilities = train_trial(rest, aside, config, own)
    if probabilities is None:
        return record
    labels = aside.dense()
    return record | {
        "mAP": metrics.mean_average_precision(probabilities, labels),
        "calibration_error": metrics.calibration_error(probabilities, labels),
    }


def trials_of(variants: Variants, settings: list[str], seeds: int) -> list[Trial]:
    """Every variant in every setting, and full-label cross-entropy once a seed."""
    trials = [Trial("bce on full labels", "bce", "fal", seed) for seed in range(seeds)]
    for row, (name, choices) in variants.items():
        options, training = methods.get(name).split(choices)
        trials += [
            Trial(row, name, setting, seed, (*options.items(),), (*training.items(),))
            for setting in settings
            for seed in range(seeds)
        ]
    return trials


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--read", action="append", default=[])
    parser.add_argument("--settings", default=SETTINGS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--backbone")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--image-size", type=int, default=160)
    parser.add_argument("--only", action="append", default=[], help="a variant; repeatable")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--name", help="of the results [of the data]")
    given = parser.parse_args()
    source = Source(given.data, options=parse_options(given.read), verify="quick")
    config = Config(
        epochs=given.epochs, batch_size=given.batch_size, backbone=given.backbone,
        learning_rate=given.lr,
        weights=given.weights, image_size=given.image_size, decode="once", hold_out=0.0,
        device=given.device,
    )  # fmt: skip
    source, config, table = open_study(source, config, print)
    variants = BOTH | (LINEAR if table.features is not None else IMAGES)
    if given.only:
        variants = {name: variants[name] for name in given.only}
    path = RESULTS / f"method-{given.name or given.data.stem}.json"
    found = json.loads(path.read_text()) if path.exists() else {"runs": []}
    kept = {(run["method"], run["setting"], run["seed"]): run for run in found["runs"]}
    trials = trials_of(variants, given.settings.split(","), given.seeds)
    left = [trial for trial in trials if (trial.row, trial.setting, trial.seed) not in kept]
    finished = in_parallel(left, partial(run, source, config), config.device, given.jobs)
    for trial, record in with_progress(finished, len(left), print):
        kept[trial.row, trial.setting, trial.seed] = record
        found = {
            "data": given.data.name,
            "config": {
                name: getattr(config, name)
                for name in ("epochs", "batch_size", "learning_rate", "backbone", "image_size")
            },
            "machine": machine(),
            "versions": versions(),
            "runs": list(kept.values()),
        }
        RESULTS.mkdir(exist_ok=True)
        checkpoint.write_json(path, found)
    show(list(kept.values()))
    print(f"written to {path}")


def show(records: list[Choices]) -> None:
    """A line a variant: mAP and calibration error of each setting, means over seeds, in points."""
    cells: dict[str, dict[str, list[Choices]]] = {}
    for record in records:
        if record["mAP"] is not None:
            cells.setdefault(record["method"], {}).setdefault(record["setting"], []).append(record)
    for row, settings in cells.items():
        texts = (
            f"{setting} {100 * mean(r['mAP'] for r in found):.2f} "
            f"({100 * mean(r['calibration_error'] for r in found):.2f})"
            for setting, found in settings.items()
        )
        print(f"{row:42} {'  '.join(texts)}")


if __name__ == "__main__":
    main()
