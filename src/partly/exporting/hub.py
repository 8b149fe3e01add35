"""A folder in the layout that timm, transformers and the Hugging Face hub know.

What enters: a `Predictor`, its card. What leaves: the files of a folder; and, of one that timm
loads, the model as timm makes it of these files.
"""

import json
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from partly import models, runs
from partly.exporting.card import Card

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
TASK = "multi_label_classification"
BILINEAR = 2  # Pillow's number


class NotLikeTimm(Exception):
    """Why timm has no model that says the same."""


def timm_model(predictor: runs.Predictor) -> nn.Module:
    """The same network as timm builds it, the σ of its logits the run's probabilities.

    A temperature goes into the last layer, and so does the scale of a frozen backbone's features.
    Where that cannot be, `NotLikeTimm` says why.
    """
    name, size = predictor.config["backbone"], predictor.config["image_size"]
    if models.is_own(name):
        raise NotLikeTimm(f"the network {name} is Partly's own")
    if predictor.method.link is not None:
        raise NotLikeTimm(f"{predictor.method.name} makes probabilities of logits in its own way")
    if predictor.calibration.kind == "isotonic":
        raise NotLikeTimm("an isotonic calibration stands between its logits and probabilities")
    trained, labels = predictor.model, len(predictor.names)
    if predictor.eye is not None:
        joined = models.Classifier(predictor.eye, trained.head.in_features, labels)
        models.take_head(joined, trained)
        trained = joined
    model: Any = timm.create_model(name, num_classes=labels, **models.sized_for(name, size))
    last = model.get_classifier()
    if not isinstance(last, nn.Linear) or last.weight.shape != trained.head.weight.shape:
        raise NotLikeTimm(f"timm's {name} does not end in a linear layer of its features")
    missing, unexpected = model.load_state_dict(trained.backbone.state_dict(), strict=False)
    own = {id(parameter) for parameter in last.parameters()}
    if unexpected or {n for n, p in model.named_parameters() if id(p) in own} != set(missing):
        raise NotLikeTimm(f"timm's {name} has other layers when it ends in logits")
    with torch.no_grad():
        slope, shift = predictor.calibration.slope, predictor.calibration.shift
        last.weight.copy_(slope * trained.head.weight)
        last.bias.copy_(slope * trained.head.bias + shift)
    return model.eval()


def config_of(card: Card, model: Any | None) -> dict[str, Any]:
    """config.json. model: the one of `timm_model`, if there is one."""
    names = card["labels"]
    common = {
        "problem_type": TASK,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    if model is None:
        return {"model_type": "partly", "backbone": card["config"]["backbone"], **common}
    described, seen = model.pretrained_cfg, card["input"]
    size = [3, seen["size"], seen["size"]]
    fixed = bool(described.get("fixed_input_size"))
    return {
        "architecture": described["architecture"],
        "num_classes": len(names),
        "num_features": model.num_features,
        "label_names": names,
        **({"model_args": {"img_size": seen["size"]}} if fixed else {}),
        "pretrained_cfg": {
            "custom_load": False,
            "input_size": size,
            "fixed_input_size": fixed,
            "interpolation": seen["interpolation"],
            "crop_pct": 1.0,
            "crop_mode": "squash" if seen["resize"] == "stretch" else "center",
            "mean": seen["mean"],
            "std": seen["deviation"],
            "num_classes": len(names),
            "first_conv": described.get("first_conv"),
            "classifier": described.get("classifier"),
        },
        **common,
    }


def preprocessor_of(card: Card) -> dict[str, Any]:
    """preprocessor_config.json: how transformers makes the model's input of a picture."""
    seen = card["input"]
    square = {"height": seen["size"], "width": seen["size"]}
    cropped = seen["resize"] == "crop"
    return {
        "image_processor_type": "CLIPImageProcessor" if cropped else "ViTImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": seen["size"]} if cropped else square,
        "resample": BILINEAR,
        **({"do_center_crop": True, "crop_size": square} if cropped else {}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": seen["mean"],
        "image_std": seen["deviation"],
    }


def read_timm(folder: Path) -> nn.Module:
    """The model that timm makes of a folder."""
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


def header(card: Card, model: Any | None) -> str:
    """The YAML that the hub reads at the top of a README."""
    images = card["input"]["kind"] == "images"
    lines = {
        "library_name": "partly" if model is None else "timm",
        **({"pipeline_tag": "image-classification"} if images else {}),
        "tags": ["multi-label-classification", "partial-labels", "partly"],
    }
    # JSON of one line is YAML: no name in it can break the header.
    return "---\n" + "".join(f"{key}: {json.dumps(v)}\n" for key, v in lines.items()) + "---\n\n"
