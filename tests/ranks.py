"""What the ranks of test_distributed.py do: train every case, and write down how it ended.

torchrun --nproc-per-node 2 tests/ranks.py FOLDER NAME [apart]

apart: each rank says that it is on a machine of its own, so that NCCL lets them share a GPU.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from builders import feature_table, picture_table
from partly import checkpoint, distributed, judging, runs, training
from partly.config import Config
from partly.hiding import hide
from partly.labels import LabelTable
from partly.starting import State

FEATURES = Config(epochs=2, batch_size=64, hold_out=0.0, expected_positives=1.6, amp="off")
PICTURES = Config(
    backbone="small:4", image_size=16, epochs=1, batch_size=16, hold_out=0.1, amp="off"
)
CASES: dict[str, tuple[str, str, Config]] = {
    "partly": ("features", "pal:0.4", replace(FEATURES, hold_out=0.2)),
    "single": ("features", "spl", replace(FEATURES, hold_out=0.2)),
    "network": ("features", "ppl:0.6", replace(FEATURES, epochs=1)),
    "paper": ("features", "ppl:0.6", replace(FEATURES, method="paper")),
    "disk": ("features", "ppl:0.6", replace(FEATURES, method="paper", pseudo_labels="disk")),
    "sparse": ("features", "ppl:0.6", replace(FEATURES, method="paper", pseudo_labels="sparse:3")),
    "ll-cp": ("features", "ppl:0.6", replace(FEATURES, method="ll-cp")),
    "ll-r": ("features", "pal:0.4", replace(FEATURES, method="ll-r")),
    "csl": ("features", "ppl:0.6", replace(FEATURES, method="csl")),
    "role": ("features", "spl", replace(FEATURES, method="role")),
    "few aside": ("features", "pal:0.4", replace(FEATURES, method="an")),
    "worse": ("features", "pal:0.4", replace(FEATURES, method="ign", epochs=3, start="plain")),
    "clipped": ("features", "pal:0.4", replace(FEATURES, method="ign", clip=0.01)),
    "pictures": ("pictures", "pal:0.4", PICTURES),
    "average": ("pictures", "ppl:0.6", replace(PICTURES, options={"teacher": "average"})),
    "sampled": (
        "features",
        "ppl:0.6",
        replace(FEATURES, head="sampled", options={"q": 0.3}, hold_out=0.2),
    ),
    "sampled pictures": (
        "pictures",
        "pal:0.4",
        replace(PICTURES, head="sampled", options={"q": 0.3}, clip=0.01),
    ),
    "mixup": ("pictures", "pal:0.4", replace(PICTURES, mix="mixup-pme")),
    "logicmix": ("pictures", "pal:0.4", replace(PICTURES, mix="logicmix")),
}
ASIDE = {"few aside": 3, "worse": 60}  # images of a validation part


def tables(folder: Path) -> dict[str, LabelTable]:
    """The same on every rank; pictures are there already."""
    return {"features": feature_table(400), "pictures": picture_table(folder, 90)}


def upside_down(images: int) -> LabelTable:
    """By these labels the first epoch is the best."""
    straight = feature_table(images, seed=1)
    return LabelTable.from_dense(1 - straight.dense(), features=straight.features)


def remembered(run: Path) -> dict[str, torch.Tensor]:
    """What the checkpoint of a finished run holds of each image, or says where it is."""
    everything = distributed.Shard(0, sys.maxsize)
    saved, rows = checkpoint.load_sharded(run / runs.CHECKPOINT, torch.device("cpu"), everything)
    for name, facts in saved["files"].items():
        files = [run / f"{name}-{rank}-of-{facts['ranks']}.rows" for rank in range(facts["ranks"])]
        values = np.concatenate([np.fromfile(file, facts["dtype"]) for file in files])
        rows[f"{name}.values"] = torch.from_numpy(values.reshape(-1, facts["labels"]))
    columns = rows.pop("pseudo_labels.columns", None)
    if columns is not None:  # in which order they are kept is a matter of the last digit
        kept = rows.pop("pseudo_labels.values")
        dense = torch.zeros(len(kept), int(columns.max()) + 2, dtype=kept.dtype)
        rows["pseudo_labels.kept"] = dense.scatter(1, columns.long() + 1, kept)[:, 1:]
    return rows


def probabilities_of_few(predictor: runs.Predictor, table: LabelTable) -> np.ndarray:
    """Of 3 images, which are not one a rank of 4."""
    return distributed.in_parts(3, lambda rows: predictor.probabilities(table.take(rows)))


def gathered() -> torch.Tensor:
    """What is known of 23 rows, of which each rank makes some: to the first alone, and to all."""

    def make(rows: np.ndarray) -> np.ndarray:
        return np.stack([rows, rows**2, -rows], axis=1)

    with mock.patch.object(distributed, "BLOCK", 24):  # several rounds
        found, by_all = distributed.on_first(23, make), distributed.in_parts(23, make)
        assert distributed.in_parts(0, make).shape == (0, 3)
    assert (found is None) == (not distributed.is_first())
    assert found is None or np.array_equal(found, by_all)
    assert np.array_equal(by_all, make(np.arange(23)))
    return torch.from_numpy(by_all)


def gradient_of(state: State) -> torch.Tensor:
    """Of all weights, and of the rows of a sampled head, as the last step has left it."""
    drawn = [] if state.sampled is None else state.sampled.rows
    every = [weights.grad for weights in (*state.model.parameters(), *drawn)]
    return torch.cat([gradient.flatten() for gradient in every if gradient is not None])


def finish(folder: Path, name: str) -> dict[str, Any]:
    """Of every case: losses, a gradient, weights, what was remembered of each image, how it was
    judged."""
    torch.backends.cudnn.allow_tf32 = False  # on a GPU: nothing is to be compared to three digits
    judging.AUDITED = 300  # entries, so that an audit has several parts
    data, ended = tables(folder / "pictures"), {}
    for case, (kind, setting, config) in CASES.items():
        known = hide(data[kind], setting, seed=1)
        aside = upside_down(ASIDE[case]) if case in ASIDE else None
        seen: list[float] = []
        gradients: list[torch.Tensor] = []
        step = training.take_step

        def noted(
            state: State, *given: Any, step: Any = step, seen: Any = seen, every: Any = gradients
        ) -> Any:
            loss = step(state, *given)
            seen.append(float(loss))
            every.append(gradient_of(state))
            return loss

        training.take_step = noted
        try:
            run = folder / f"{name}-{case}"
            predictor = training.train(
                known, config, run, truth=data[kind], validation=aside, quiet=True
            )
        finally:
            training.take_step = step
        rows = remembered(run)
        fitted = predictor.thresholds
        ended[case] = {
            "losses": torch.tensor(seen),
            "gradient": gradients[1],  # that of the first step ends at a layer that begins at 0
            "weights": predictor.model.state_dict(),
            "rows": rows,
            "thresholds": torch.tensor([] if fitted is None else fitted),
            "few": torch.from_numpy(probabilities_of_few(predictor, known)),
            "judged": runs.read_lines(run / runs.METRICS),
            "audit": runs.read_lines(run / runs.AUDIT),
        }
    met = distributed.described() if distributed.world() > 1 else ""
    return ended | {"gathered": gathered(), "met": met}


if __name__ == "__main__":
    torch.set_num_threads(1)
    out, name = Path(sys.argv[1]), sys.argv[2]
    if sys.argv[3:] == ["apart"]:
        os.environ["NCCL_HOSTID"] = os.environ["RANK"]
    ended = finish(out, name)
    if distributed.is_first():
        torch.save(ended, out / f"{name}.pt")
    distributed.wait()
    distributed.leave(0)
