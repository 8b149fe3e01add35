"""Are thresholds and calibrations that were fitted on few known labels as good as on all?

What enters: a file of features with full labels. A tenth of its training images is set aside to fit
on; of the others and of these most labels are hidden, and a linear layer learns from the others.
What leaves: CF1 and OF1 on the test images at thresholds fitted on all labels of the images set
aside, on the known ones by `decisions.fit`, and on the known ones alone; the calibration error
before and after; as tables, and benchmarks/results/decisions.json.

    python benchmarks/decisions.py coco_features.npz
"""

import argparse
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from partly import Config, LabelTable, hide, metrics, propensity, read, train
from partly.checkpoint import write_json
from partly.decisions import KINDS, fit
from partly.experiments import label, machine

RESULTS = Path(__file__).parent / "results" / "decisions.json"
SETTINGS = ("pal:0.3", "ppl:0.3", "spl")
METHODS = ("partly", "an")  # one whose probabilities mean something, and one whose do not


def measure(
    table: LabelTable, test: LabelTable, method: str, setting: str, told: bool, seed: int
) -> dict[str, float]:
    """Figures on the test images, in points."""
    order = np.random.default_rng(seed).permutation(len(table))
    aside, rest = (table.take(np.sort(p)) for p in np.split(order, [len(order) // 10]))
    count = float(rest.counts_by_image().positive.mean()) if told else None
    config = Config(
        method=method,
        options={"teacher": "self"} if method == "partly" else {},
        epochs=12,
        hold_out=0.0,
        seed=seed,
        expected_positives=count,
    )
    predictor = train(hide(rest, setting, seed=seed), config, quiet=True)
    known, answers = hide(aside, setting, seed=seed), test.dense()
    beliefs, probabilities = (
        predictor.raw_probabilities(torch.from_numpy(predictor.logits(part)))
        for part in (aside, test)
    )
    expected = count or predictor.config["positives_an_image"]
    facts = propensity.estimate_others(known, expected)
    full = propensity.estimate(aside)
    ways = {
        "all labels": fit(beliefs, aside.dense(), full).thresholds,
        "known and believed": fit(beliefs, known.dense(), facts).thresholds,
        "known alone": metrics.tune_thresholds(beliefs, known.dense()),
        "one half": np.full(len(table.names), 0.5),
    }
    found: dict[str, float] = {}
    for way, thresholds in ways.items():
        scores = metrics.f1_scores(probabilities, answers, thresholds)
        found |= {f"{way}, CF1": 100 * scores.CF1, f"{way}, OF1": 100 * scores.OF1}
    for kind in KINDS:
        calibration = fit(beliefs, known.dense(), facts, calibrate=kind).calibration
        error = metrics.calibration_error(calibration.apply(probabilities), answers)
        found[f"{kind}, error"] = 100 * error
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed, 8,000 images")
    arguments = parser.parse_args()
    whole = read(arguments.data)
    table, test = whole.part("train"), whole.part("test")
    if arguments.quick:
        table, arguments.seeds = table.take(np.arange(8000)), 1
    rows: list[dict[str, Any]] = []
    print("| | CF1, OF1: all labels | known and believed | known alone | at ½ | error | t. | i. |")
    print("|---|---|---|---|---|---|---|---|")
    for method in METHODS:
        for setting in SETTINGS:
            for told in (False, True) if setting != "pal:0.3" else (False,):
                if method != "partly" and setting != "pal:0.3" and not told:
                    continue  # it does not ask, so nobody guesses
                seeds = range(arguments.seeds)
                found = [measure(table, test, method, setting, told, seed) for seed in seeds]
                means = {name: round(mean(run[name] for run in found), 3) for name in found[0]}
                rows.append({"method": method, "setting": setting, "told": told, **means})
                scores = [
                    f"{means[f'{way}, CF1']:.1f}, {means[f'{way}, OF1']:.1f}"
                    for way in ("all labels", "known and believed", "known alone", "one half")
                ]
                errors = [f"{means[f'{kind}, error']:.2f}" for kind in KINDS]
                name = f"`{method}`, {label(setting)}" + (", told" if told else "")
                print(f"| {name} | {' | '.join([*scores, *errors])} |", flush=True)
                if not arguments.quick:
                    content = {"machine": machine(), "seeds": arguments.seeds, "rows": rows}
                    write_json(RESULTS, content)


if __name__ == "__main__":
    main()
