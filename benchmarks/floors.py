"""Is a floor of precision or recall kept on new images, where few images are there to fit on?

What enters: nothing; labels are drawn from known probabilities. What leaves: of 20 labels and five
draws, what `decisions.fit` promised and what 40,000 new images say, as a table, and
benchmarks/results/floors.json.

    python benchmarks/floors.py
"""

from pathlib import Path

import numpy as np

from partly import LabelTable, propensity
from partly.checkpoint import write_json
from partly.decisions import Goal, fit
from partly.experiments import machine

RESULTS = Path(__file__).parent / "results" / "floors.json"
LABELS, SEEDS, NEW = 20, 5, 40_000
GOALS, IMAGES = ("precision:0.9", "recall:0.9"), (300, 600, 2000, 8000)
CLEARLY = 0.05  # below the floor


def draw(images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """True probabilities [N, L], of which labels get rarer, and labels that follow them."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(np.linspace(-1, -3, LABELS), 2.5, (images, LABELS))
    truth = 1 / (1 + np.exp(-scores))
    return truth, (generator.random(truth.shape) < truth).astype(np.int8)


def measure(goal: Goal, images: int) -> dict[str, float]:
    """Promised and kept, in points."""
    fresh, answers = draw(NEW, SEEDS)
    promised, kept = [], []
    for seed in range(SEEDS):
        truth, labels = draw(images, seed)
        facts = propensity.estimate(LabelTable.from_dense(labels))
        fitted = fit(truth, labels, facts, goal)
        decided = fresh >= fitted.thresholds
        hits = (decided & (answers == 1)).sum(axis=0)
        of_precision = goal.kind == "precision"
        promised.append(fitted.precision if of_precision else fitted.recall)
        with np.errstate(invalid="ignore"):
            kept.append(hits / (decided if of_precision else answers).sum(axis=0))
    found, said = np.array(kept), np.array(promised)
    decided_for = np.isfinite(found)
    found, said = found[decided_for], said[decided_for]
    return {
        "promised": 100 * said.mean(),
        "kept": 100 * found.mean(),
        "clearly below": 100 * (found < goal.floor - CLEARLY).mean(),
        "worst": 100 * found.min(),
        "never": 100 * (~decided_for).mean(),
    }


def main() -> None:
    rows = []
    print("| goal, images | promised | kept | labels below 85 | worst | decided for none |")
    print("|---|---|---|---|---|---|")
    for text in GOALS:
        for images in IMAGES:
            found = {name: round(v, 1) for name, v in measure(Goal.parse(text), images).items()}
            rows.append({"goal": text, "images": images, **found})
            figures = [f"{value:.1f}" for value in found.values()]
            print(f"| `{text}`, {images:,} | {' | '.join(figures)} |", flush=True)
    write_json(RESULTS, {"machine": machine(), "seeds": SEEDS, "labels": LABELS, "rows": rows})


if __name__ == "__main__":
    main()
