"""A step tells a GPU what to do, and asks it nothing: to wait for an answer would leave it idle."""

from typing import Any

import pytest
import torch

from builders import feature_table
from partly import starting, training
from partly.config import Config
from partly.hiding import hide
from partly.labels import LabelTable

IMAGES, LABELS, SIZE = 64, 8, 32


def picture_labels() -> LabelTable:
    known = hide(feature_table(IMAGES, LABELS), "ppl:0.6")
    return LabelTable.from_dense(known.dense(), paths=[f"{row}.jpg" for row in range(IMAGES)])


def choices(backbone: str | None, **more: Any) -> Config:
    given = {"batch_size": 16, "epochs": 50, "hold_out": 0.0, "weights": "none"}
    given |= {"device": "cuda", "image_size": SIZE, "backbone": backbone}
    return Config(**(given | more))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(
    "config",
    [
        choices("small:8", method="bce"),
        choices("small:8"),
        choices("small:8", options={"teacher": "self", "surprise": 0.0}),
        choices("small:8", options={"teacher": "average"}),
        choices("small:8", method="paper"),
        choices("small:8", method="asl", clip=1.0),
        choices("linear", head="sampled", options={"q": 0.3, "teacher": "self"}),
        choices("linear", method="paper", pseudo_labels="sparse:3"),
    ],
    ids=str,
)
def test_a_step_does_not_wait_for_the_gpu(config: Config) -> None:
    on_pictures = config.backbone == "small:8"
    table = picture_labels() if on_pictures else hide(feature_table(IMAGES, LABELS), "ppl:0.6")
    state = starting.start(table, config.complete(table))
    pictures = torch.randn(16, 3, SIZE, SIZE, device="cuda")
    steps = 0
    for state.epoch in (1, 2, 3):
        batches = (
            ((torch.arange(16) + first, pictures) for first in range(0, IMAGES, 16))
            if on_pictures
            else state.batches()
        )
        for rows, inputs in batches:
            torch.cuda.synchronize()
            if state.epoch == 3:  # by then all is made that is made once
                torch.cuda.set_sync_debug_mode("error")
            try:
                training.take_step(state, rows, inputs)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            steps += 1
    assert steps == 12
