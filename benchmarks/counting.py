"""What is lost where nobody says how many positives an image has?

What enters: files of features with full labels. Of the training part 20,000 rows at most are taken,
a fifth of them to judge by; of the others only positives are left known, of which training is told
the true number an image, is told nothing and guesses it (`training.guess_known_share`), or is told
what it would assume without a guess, that half of them are known. What leaves: mAP and expected
calibration error, means over seeds, as a table, and benchmarks/results/counting.json.

    python benchmarks/counting.py coco_features.npz tabular/yeast.npz tabular/scene.npz
"""

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from partly import Config, LabelTable, hide, metrics, read, train
from partly.checkpoint import write_json
from partly.experiments import label, machine
from partly.training import guess_known_share

RESULTS = Path(__file__).parent / "results" / "counting.json"
SETTINGS = ("ppl:0.3", "ppl:0.6", "ppl:0.9", "spl")
ROWS = 20_000


def measure(table: LabelTable, setting: str, seed: int) -> dict[str, float]:
    """mAP, calibration error and positives an image for each way to know their number."""
    order = np.random.default_rng(seed).permutation(len(table))[:ROWS]
    aside, rest = (table.take(part) for part in np.split(order, [len(order) // 5]))
    known = hide(rest, setting, seed=seed)
    config = Config(epochs=12 if len(rest) >= 5000 else 30, hold_out=0.0, seed=seed)
    count = float(rest.counts_by_image().positive.mean())
    seen = float(known.counts_by_image().positive.mean())
    share = guess_known_share(known, config, quiet=True)
    numbers = {
        "told": count,
        "guessed": None if share is None else seen / share,
        "half": min(2 * seen, 0.9 * len(table.names)),
    }
    found: dict[str, float] = {}
    for way, number in numbers.items():
        if number is None:
            continue
        own = replace(config, expected_positives=number)
        probabilities = train(known, own, quiet=True).probabilities(aside)
        found[f"{way}, positives"] = number
        found[f"{way}, mAP"] = 100 * metrics.mean_average_precision(probabilities, aside.dense())
        found[f"{way}, error"] = 100 * metrics.calibration_error(probabilities, aside.dense())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| | positives an image | guessed | mAP (error): told | guessed | half assumed |")
    print("|---|---|---|---|---|---|")
    for path in arguments.data:
        table = read(path).part("train")
        for setting in SETTINGS:
            found = [measure(table, setting, seed) for seed in range(arguments.seeds)]
            names = [name for name in found[0] if all(name in run for run in found)]
            means = {name: round(mean(run[name] for run in found), 3) for name in names}
            rows.append({"data": path.stem, "setting": setting, **means})
            scores = (
                f"{means[f'{way}, mAP']:.1f} ({means[f'{way}, error']:.1f})"
                if f"{way}, mAP" in means
                else "–"
                for way in ("told", "guessed", "half")
            )
            guess = means.get("guessed, positives")
            counts = (f"{means['told, positives']:.2f}", "–" if guess is None else f"{guess:.2f}")
            cells = " | ".join([*counts, *scores])
            print(f"| {path.stem}, {label(setting)} | {cells} |", flush=True)
            write_json(RESULTS, {"machine": machine(), "seeds": arguments.seeds, "rows": rows})


if __name__ == "__main__":
    main()
