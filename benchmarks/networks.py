"""Which of timm's networks can be exported?

What enters: names of networks. Each is built with random weights, as the model of a run on images,
and exported as ONNX and as a folder for timm. What leaves: a line for each, what became of it, and
benchmarks/results/networks.json. Weights of chance are enough: what may fail is the graph.

    python benchmarks/networks.py
    python benchmarks/networks.py resnet18 vit_tiny_patch16_224
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from partly import Config, LabelTable, exporting, models, runs
from partly.checkpoint import read_json, write_json
from partly.errors import PartlyError
from partly.experiments import machine
from partly.exporting.card import CARD

RESULTS = Path(__file__).parent / "results" / "networks.json"
LABELS = ("cat", "dog", "bird")
SIZES = {"inception_v3": 224}  # the side of its images, where 64 is too small for a network
NETWORKS = (
    "resnet18", "resnet50", "resnetv2_50", "densenet121", "inception_v3", "regnety_002",
    "mobilenetv3_small_100", "ghostnet_100", "tf_efficientnet_lite0", "tf_efficientnetv2_b0",
    "dm_nfnet_f0", "convnext_atto", "mobilevit_xxs", "efficientvit_b0", "levit_128s",
    "coatnet_nano_rw_224", "xcit_nano_12_p16_224", "vit_tiny_patch16_224",
    "vit_small_patch14_dinov2", "deit_tiny_distilled_patch16_224", "eva02_tiny_patch14_224",
    "beit_base_patch16_224", "swin_tiny_patch4_window7_224", "hiera_tiny_224",
)  # fmt: skip


def write_run(name: str, folder: Path) -> None:
    """A run's folder with random weights, as far as an export reads it."""
    images = LabelTable.without_labels(LABELS, ids=["a"], paths=np.array(["a.jpg"]))
    chosen = Config(backbone=name, image_size=SIZES.get(name, 64), weights="none")
    config = chosen.complete(images)
    model = models.build(name, len(LABELS), size=config.image_size)
    folder.mkdir()
    runs.write_weights(folder, model.state_dict())
    write_json(folder / runs.CONFIG, runs.describe(images, config) | {"finished": True})


def tried(name: str, folder: Path) -> dict[str, Any]:
    """What became of one network: of its ONNX file, and who opens its folder."""
    began, said = time.perf_counter(), list[str]()
    write_run(name, folder / "run")
    try:
        exporting.export_run(folder / "run", "onnx", folder / "a.onnx", say=said.append)
        onnx = said[-1].partition(": ")[2]
    except PartlyError as error:
        onnx = str(error)
    exporting.export_run(folder / "run", "huggingface", folder / "hub", say=str)
    layout = read_json(folder / "hub" / CARD)["layout"]
    return {"onnx": onnx, "folder": layout, "seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = {}
    for name in arguments.networks:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = tried(name, Path(folder))
        print(name, json.dumps(found[name]), flush=True)
    write_json(arguments.out, {"networks": found, "machine": machine()})


if __name__ == "__main__":
    main()
