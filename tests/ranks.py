"""What the ranks of test_distributed.py do: train every case, and write down how it ended.

torchrun --nproc-per-node 2 tests/ranks.py FOLDER NAME
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from builders import feature_table, picture_table
from partly import checkpoint, distributed, training
from partly.config import Config
from partly.hiding import hide
from partly.labels import LabelTable

FEATURES = Config(epochs=2, batch_size=64, hold_out=0.0, expected_positives=1.6)
PICTURES = Config(backbone="small:4", image_size=16, epochs=1, batch_size=16, hold_out=0.1)
CASES: dict[str, tuple[str, str, Config]] = {
    "partly": ("features", "pal:0.4", replace(FEATURES, hold_out=0.2)),
    "single": ("features", "spl", FEATURES),
    "network": ("features", "ppl:0.6", replace(FEATURES, epochs=1)),
    "paper": ("features", "ppl:0.6", replace(FEATURES, method="paper")),
    "ll-cp": ("features", "ppl:0.6", replace(FEATURES, method="ll-cp")),
    "ll-r": ("features", "pal:0.4", replace(FEATURES, method="ll-r")),
    "csl": ("features", "ppl:0.6", replace(FEATURES, method="csl")),
    "role": ("features", "spl", replace(FEATURES, method="role")),
    "clipped": ("features", "pal:0.4", replace(FEATURES, method="ign", clip=0.01)),
    "pictures": ("pictures", "pal:0.4", PICTURES),
    "average": ("pictures", "ppl:0.6", replace(PICTURES, options={"teacher": "average"})),
    "logicmix": ("pictures", "pal:0.4", replace(PICTURES, mix="logicmix")),
}


def tables(folder: Path) -> dict[str, LabelTable]:
    """The same on every rank; pictures are there already."""
    return {"features": feature_table(400), "pictures": picture_table(folder, 90)}


def finish(folder: Path, name: str) -> dict[str, Any]:
    """Losses, weights, and what was remembered of each image, of every case."""
    data, ended = tables(folder / "pictures"), {}
    for case, (kind, setting, config) in CASES.items():
        known = hide(data[kind], setting, seed=1)
        seen: list[float] = []
        step = training.take_step

        def noted(*given: Any, step: Any = step, seen: list[float] = seen) -> Any:
            loss = step(*given)
            seen.append(float(loss))
            return loss

        training.take_step = noted
        try:
            run = folder / f"{name}-{case}"
            predictor = training.train(known, config, run, truth=data[kind], quiet=True)
        finally:
            training.take_step = step
        _, rows = checkpoint.load_sharded(
            run / "checkpoint.pt", torch.device("cpu"), distributed.Shard(0, len(known))
        )
        fitted = predictor.thresholds
        ended[case] = {
            "losses": torch.tensor(seen),
            "weights": predictor.model.state_dict(),
            "rows": rows,
            "thresholds": torch.tensor([] if fitted is None else fitted),
        }
    return ended


if __name__ == "__main__":
    torch.set_num_threads(1)
    out, name = Path(sys.argv[1]), sys.argv[2]
    ended = finish(out, name)
    if distributed.is_first():
        torch.save(ended, out / f"{name}.pt")
    distributed.wait()
    distributed.end()
