"""How many answers are saved by asking about the right cells?

What enters: features with full labels. What leaves: benchmarks/results/suggest.json: mAP and
calibration error on the test part after each of five rounds of questions, for several ways to
choose them. Of a part of the training images 10 % of the labels are known at first (PAL_0.1); the
hidden ones answer. Each round trains anew on all that is known by then. What each way and seed came
to is kept in local/suggest and not done again. docs/suggest.md and its plot are made from it all.

    python benchmarks/suggest.py coco_features.npz
    python benchmarks/suggest.py --page            # the tables and the plot alone
"""

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from page import MARKED, ROOT, Panel, draw, table
from partly import Config, LabelTable, checkpoint, hide, metrics, read, runs, suggest, train
from partly.experiments import machine

RESULTS, KEPT = ROOT / "benchmarks" / "results" / "suggest.json", ROOT / "local" / "suggest"
PAGE, PLOT = ROOT / "docs" / "suggest.md", ROOT / "docs" / "plots" / "suggest.svg"
START, ROUNDS, MANY = "pal:0.1", 5, 20
Json = dict[str, Any]
Choose = Callable[[np.ndarray, np.ndarray, int, np.random.Generator], np.ndarray]


# --- ways to choose: probabilities and labels [N, L], how many, a generator -> cells --------------


def at_random(p: np.ndarray, known: np.ndarray, budget: int, random: Any) -> np.ndarray:
    return random.permutation(np.flatnonzero(known < 0))[:budget]


def many_at_random(p: np.ndarray, known: np.ndarray, budget: int, random: Any) -> np.ndarray:
    return at_random(p, known, MANY * budget, random)


def whole_images(p: np.ndarray, known: np.ndarray, budget: int, random: Any) -> np.ndarray:
    """All unknown labels of images that are drawn at random."""
    rows = random.permutation(len(known))
    cells = rows[:, None] * known.shape[1] + np.arange(known.shape[1])
    return cells[known[rows] < 0][:budget]


def most_uncertain(p: np.ndarray, known: np.ndarray, budget: int, random: Any) -> np.ndarray:
    doubt = np.where(known < 0, p * (1 - p), -1.0).reshape(-1)
    return np.argpartition(-doubt, budget)[:budget]


def suggested(opening: float) -> Choose:
    def choose(p: np.ndarray, known: np.ndarray, budget: int, random: Any) -> np.ndarray:
        found = suggest.questions(p, known, budget=budget, opening=opening)
        return np.array([question.row * known.shape[1] + question.column for question in found])

    return choose


WAYS: dict[str, Choose] = {
    "random": at_random,
    "whole images": whole_images,
    "uncertain": most_uncertain,
    "suggest": suggested(1.0),
    "suggest, opening 0": suggested(0.0),
    "suggest, opening 4": suggested(4.0),
    "suggest, as if drawn": suggested(1.0),
    f"random, {MANY} times as many": many_at_random,
}


# --- one way, one seed ----------------------------------------------------------------------------


def simulate(way: str, seed: int, pool: LabelTable, test: LabelTable, plan: Json) -> Json:
    """Five rounds of questions."""
    config = Config(epochs=plan["epochs"], hold_out=0.0, seed=seed, options={"teacher": "self"})
    random = np.random.default_rng(seed)
    truth, known = pool.dense(), hide(pool, START, seed=seed).dense()
    drawn = known >= 0
    rounds = [{"answers": 0, "images": 0, "positives": 0}]
    predictor = learn(pool, known, drawn, way, config)
    rounds[0] |= judge(predictor, test)
    for _ in range(ROUNDS):
        cells = WAYS[way](predictor.probabilities(pool), known, plan["budget"], random)
        assert (known.reshape(-1)[cells] < 0).all()
        known.reshape(-1)[cells] = truth.reshape(-1)[cells]
        predictor = learn(pool, known, drawn, way, config)
        before = rounds[-1]
        asked = {
            "answers": before["answers"] + len(cells),
            "images": before["images"] + len(np.unique(cells // known.shape[1])),
            "positives": before["positives"] + int((truth.reshape(-1)[cells] == 1).sum()),
        }
        rounds.append(asked | judge(predictor, test))
    full = replace(config, options={})  # what `partly` does by itself: a network teaches the layer
    return {
        "way": way,
        "seed": seed,
        "rounds": rounds,
        "taught": judge(learn(pool, known, drawn, way, full), test),
    }


def learn(
    pool: LabelTable, known: np.ndarray, drawn: np.ndarray, way: str, config: Config
) -> runs.Predictor:
    """Train on what is known, the answers marked as such where they were not drawn at random."""
    marked = LabelTable.from_dense(known, names=pool.names, features=pool.features)
    if (way.startswith("suggest") and "drawn" not in way) or way == "uncertain":
        marked = replace(marked, asked=~drawn[known >= 0])
    return train(marked, config, quiet=True)


def judge(predictor: runs.Predictor, test: LabelTable) -> Json:
    probabilities, labels = predictor.probabilities(test), test.dense()
    return {
        "mAP": metrics.mean_average_precision(probabilities, labels),
        "calibration_error": metrics.calibration_error(probabilities, labels),
    }


# --- all of them, and what they say ---------------------------------------------------------------


def run(data: Path, plan: Json) -> list[Json]:
    whole = read(data)
    full, test = whole.part("train"), whole.part("test")
    records = []
    for seed in range(plan["seeds"]):
        rows = np.random.default_rng(1000 + seed).permutation(len(full))[: plan["images"]]
        pool = full.take(np.sort(rows))
        for way in WAYS:
            settings = [str(plan[name]) for name in ("images", "budget", "epochs")]
            kept = KEPT / f"{way}-{seed}-{'-'.join(settings)}.json".replace(" ", "-")
            if not kept.is_file():
                checkpoint.make_folder(KEPT)
                checkpoint.write_json(kept, simulate(way, seed, pool, test, plan))
            records.append(json.loads(kept.read_text()))
            figures = " ".join(f"{100 * r['mAP']:.2f}" for r in records[-1]["rounds"])
            print(f"{way:24} {seed}  {figures}", flush=True)
    return records


def mean_of(records: list[Json], way: str, figure: str) -> list[float]:
    """A figure after each round, mean over the seeds."""
    own = [record["rounds"] for record in records if record["way"] == way]
    return [mean(entry[figure] for entry in entries) for entries in zip(*own, strict=True)]


def answers_for(records: list[Json], way: str, wanted: float) -> float | None:
    """How many answers it takes to reach an mAP, along straight lines between rounds."""
    scores, answers = (mean_of(records, way, name) for name in ("mAP", "answers"))
    return float(np.interp(wanted, scores, answers)) if scores[-1] >= wanted else None


def costs(records: list[Json], way: str) -> list[int]:
    """Answers and opened images after each round, of equal price."""
    both = (mean_of(records, way, name) for name in ("answers", "images"))
    return [round(answers + images) for answers, images in zip(*both, strict=True)]


def write_page(found: Json) -> None:
    """The plot, and the tables of docs/suggest.md."""
    records, ways = found["runs"], [way for way in WAYS if "times" not in way]
    shown = [way for way in ways if "drawn" not in way]
    scores = {way: [100 * v for v in mean_of(records, way, "mAP")] for way in WAYS}
    answers = {way: [round(v) for v in mean_of(records, way, "answers")] for way in WAYS}
    by_answers = {w: dict(zip(answers[w], scores[w], strict=True)) for w in shown}
    by_cost = {way: dict(zip(costs(records, way), scores[way], strict=True)) for way in shown}
    error = {
        way: dict(
            zip(
                answers[way],
                [100 * v for v in mean_of(records, way, "calibration_error")],
                strict=True,
            )
        )
        for way in ("random", "suggest", "suggest, as if drawn")
    }
    panels = [
        Panel("What answers are worth", "answers", "mAP", by_answers, plain=True),
        Panel("What time is worth", "answers and opened images", "mAP", by_cost, plain=True),
        Panel("Calibration", "answers", "calibration error, points", error, plain=True),
    ]
    PLOT.parent.mkdir(exist_ok=True)
    draw(panels, PLOT)
    tables = {
        "rounds": rounds_table(found),
        "saved": saved_table(found),
        "machine": machine_lines(found),
    }
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKED.sub(partial(anew, tables), page), encoding="utf-8")


def anew(tables: dict[str, list[str]], found: re.Match[str]) -> str:
    """What stands between two markers of the page."""
    lines = "\n".join(tables[found[2]]).strip()
    return f"{found[1]}{lines}\n{found[3]}"


def rounds_table(found: Json) -> list[str]:
    records = found["runs"]
    head = ["mAP (calibration error) after round", *map(str, range(ROUNDS + 1)), "taught"]
    rows = []
    for way in WAYS:
        figures = zip(
            mean_of(records, way, "mAP"), mean_of(records, way, "calibration_error"), strict=True
        )
        last = [record["taught"] for record in records if record["way"] == way]
        taught = tuple(mean(entry[name] for entry in last) for name in ("mAP", "calibration_error"))
        cells = (f"{100 * score:.2f} ({100 * error:.2f})" for score, error in (*figures, taught))
        rows.append([way, *cells])
    return table(head, rows)


def saved_table(found: Json) -> list[str]:
    """Answers that `suggest` and random asking need for the same mAP."""
    records, many = found["runs"], f"random, {MANY} times as many"
    rows = []
    for number, wanted in enumerate(mean_of(records, "suggest", "mAP")[1:], start=1):
        few = [answers_for(records, way, wanted) for way in ("suggest", "suggest, opening 0")]
        needed = answers_for(records, "random", wanted) or answers_for(records, many, wanted)
        cells = ["more" if count is None else f"{count:,.0f}" for count in (*few, needed)]
        factor = "" if needed is None or not few[0] else f"{needed / few[0]:.0f} ×"
        rows.append([f"{100 * wanted:.1f}, round {number}", *cells, factor])
    return table(["mAP", "suggest", "suggest, opening 0", "random", "saved"], rows)


def machine_lines(found: Json) -> list[str]:
    """What made the figures."""
    options = ("images", "budget", "epochs", "seeds")
    settings = " ".join(f"--{name} {found[name]}" for name in options)
    versions = ", ".join(f"{name} {found['versions'][name]}" for name in ("torch", "numpy", "timm"))
    command = f"`python benchmarks/suggest.py {found['data']} {settings}`"
    source = "[data](../benchmarks/results/suggest.json)"
    return [f"{command}: {found['machine']}, {versions} ({source})."]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--images", type=int, default=16_000, help="of the training part")
    parser.add_argument("--budget", type=int, default=6_400, help="answers a round")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--page", action="store_true", help="the tables and the plot alone")
    given = parser.parse_args()
    if not given.page:
        plan = {name: getattr(given, name) for name in ("images", "budget", "epochs", "seeds")}
        records = run(given.data, plan)
        found = {"data": given.data.name, **plan, "machine": machine(), "versions": runs.versions()}
        checkpoint.write_json(RESULTS, found | {"start": START, "runs": records})
    write_page(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
