"""What is to be known about a model, for programs and for people.

What enters: a `Predictor`, what was measured of it. What leaves: a card, plain values that fit into
JSON and that travel with the weights; and a page that says the same.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from partly import checkpoint, runs
from partly.readers.common import counted

Card = dict[str, Any]

CARD, PAGE = "card.json", "README.md"
LISTED = 200  # labels that the page names
# Of evaluation.json, with the words of the page.
MEASURED = {
    "mAP": "mAP",
    "AUROC": "AUROC",
    "CF1": "CF1 at ½",
    "OF1": "OF1 at ½",
    "CF1_at_thresholds": "CF1 at the thresholds",
    "OF1_at_thresholds": "OF1 at the thresholds",
    "calibration_error": "calibration error",
    "P@1": "P@1",
    "P@5": "P@5",
    "PSP@5": "PSP@5",
}
# Of config.json, what is said in another place of the card, and what names folders of this machine.
LEFT_OUT = ("labels", "label_counts", "versions", "validation_hash", "inputs_hash", "read")


def describe(predictor: runs.Predictor, run: Path) -> Card:
    """The card of a run's model."""
    config, fitted = predictor.config, _fitted(run)
    return {
        "layout": "partly",
        "labels": list(predictor.names),
        "thresholds": np.asarray(predictor.limits, dtype=float).tolist(),
        "thresholds_fitted": predictor.thresholds is not None,
        "goal": fitted.get("goal"),
        "refitted_on": fitted.get("refitted_on"),
        "calibration": predictor.calibration.to_json(),
        "input": _input(predictor),
        "method": config["method"],
        "options": dict(config["options"]),
        "trained_on": {
            "data": config.get("data"),
            "setting": config.get("setting"),
            "images": config["images"],
            "label_hash": config["label_hash"],
            "known": {kind: sum(numbers) for kind, numbers in config["label_counts"].items()},
        },
        "measured": _measured(run),
        "versions": config["versions"],
        "config": _without_paths({k: v for k, v in config.items() if k not in LEFT_OUT}),
    }


def _fitted(run: Path) -> Card:
    """How the thresholds came about; nothing where it was not written down."""
    if not (run / runs.DECISIONS).is_file():
        return {}
    return dict(checkpoint.read_json(run / runs.DECISIONS))


def _input(predictor: runs.Predictor) -> Card:
    """What the model looks at, and how that is made of a file."""
    config = predictor.config
    if config["features"] is not None and predictor.eye is None:
        return {"kind": "features", "features": config["features"]}
    look = runs.look_of(config)
    mean, deviation = look.statistics()
    return {
        "kind": "images",
        "size": look.size,
        "resize": look.resize,
        "interpolation": "bilinear",
        "colours": "RGB",
        "mean": list(mean),
        "deviation": list(deviation),
    }


def _measured(run: Path) -> Card | None:
    """The first figures of evaluation.json; None where nothing was measured."""
    if not (run / runs.EVALUATION).is_file():
        return None
    evaluation = checkpoint.read_json(run / runs.EVALUATION)
    figures = {name: evaluation["metrics"].get(name) for name in MEASURED}
    return {"images": evaluation["images"], "trained_on": evaluation["trained_on"]} | {
        name: value for name, value in figures.items() if value is not None
    }


def _without_paths(config: Card) -> Card:
    """A card goes to others, whom the folders of this machine do not concern."""
    return config | {"weights": Path(str(config["weights"])).name}


def page(card: Card, usage: str, header: str = "") -> str:
    """The model card: Markdown, with a YAML header where one is given."""
    return "\n".join([header + "# " + _title(card), "", *_lines(card), usage.rstrip(), ""])


def _title(card: Card) -> str:
    data = card["trained_on"]["data"]
    return f"{counted(len(card['labels']), 'label')}" + (f" of {_plain(data)}" if data else "")


def _lines(card: Card) -> Iterator[str]:
    trained, config, seen = card["trained_on"], card["config"], card["input"]
    known = trained["known"]
    images = seen["kind"] == "images"
    yield (
        f"A multi-label classifier of {'images' if images else 'feature rows'}, trained with "
        f"Partly {card['versions']['partly']} from partly "
        "labelled data."
    )
    yield ""
    yield f"- **Network**: `{config['backbone']}`" + (
        ", frozen, and a linear layer on its features" if config.get("head_only") else ""
    )
    yield f"- **Input**: {_input_in_words(seen)}"
    yield f"- **Method**: `{card['method']}`, {counted(config['epochs'], 'epoch')}"
    yield (
        f"- **Trained on**: {trained['images']:,} {'images' if images else 'rows'}, "
        f"{known['positive']:,} known positives, {known['negative']:,} known negatives, "
        f"{known['unknown']:,} unknown"
        + (f" (setting {trained['setting']})" if trained["setting"] else "")
        + f"; hash of the labels `{trained['label_hash']}`"
    )
    yield f"- **Measured**: {_measured_in_words(card['measured'])}"
    yield f"- **Thresholds**: {_thresholds_in_words(card)}"
    yield f"- **Calibration**: {card['calibration']['kind']}"
    yield f"- **Everything else**: `{CARD}`"
    yield ""
    yield "| label | threshold |"
    yield "|---|---|"
    for name, threshold in list(zip(card["labels"], card["thresholds"], strict=True))[:LISTED]:
        yield f"| {_plain(name)} | {threshold:.3f} |"
    left = len(card["labels"]) - LISTED
    if left > 0:
        yield f"\n{counted(left, 'label')} more in `{CARD}`."
    yield ""


def _input_in_words(seen: Mapping[str, Any]) -> str:
    if seen["kind"] == "features":
        return f"{seen['features']} features a row"
    how = {"stretch": "stretched to", "crop": "the middle square, at"}[seen["resize"]]
    return f"RGB pictures, {how} {seen['size']} × {seen['size']} pixels"


def _thresholds_in_words(card: Card) -> str:
    if not card["thresholds_fitted"]:
        return f"{runs.HALF} for every label, for none were fitted"
    again = card["refitted_on"]
    fitted_on = f"again after training, on {_plain(again)}" if again else "on images held out"
    return f"one a label, fitted {fitted_on}" + (f" (goal {card['goal']})" if card["goal"] else "")


def _measured_in_words(measured: Card | None) -> str:
    if measured is None:
        return "nothing, for the data had no test part"
    shown = {n: v for n, v in measured.items() if n not in ("images", "trained_on")}
    figures = ", ".join(f"{MEASURED[name]} {100 * value:.2f}" for name, value in shown.items())
    seen = ", which it was trained on" if measured["trained_on"] else ""
    return f"{figures} on {measured['images']:,} test images{seen}"


def _plain(name: str) -> str:
    """Text that stays text in a cell of a Markdown table."""
    escaped = "".join(f"\\{letter}" if letter in "\\`*_{}[]<>|#" else letter for letter in name)
    return " ".join(escaped.split())


# --- how to use it, in the words of the page -----------------------------------------------------

PARTLY_USAGE = """\
## Use

```python
import numpy as np
from partly import LabelTable, exporting

model = exporting.load(".")  # this folder
table = LabelTable.without_labels(model.names, ids=["first"], {given})
print(dict(zip(model.names, model.probabilities(table)[0])))
```
"""
GIVEN = {
    "images": 'paths=["photo.jpg"]',
    "features": "features=np.zeros((1, {features}), np.float32)",
}
OWN_USAGE = """\
timm and transformers cannot load this folder, for {why}. Partly can; and a model that is exported
with `--format onnx` needs neither.

"""
TIMM_USAGE = """\
## Use

```python
import json, timm, torch
from PIL import Image

model = timm.create_model("local-dir:.", pretrained=True).eval()  # this folder
look = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
about = json.load(open("card.json", encoding="utf-8"))
with torch.inference_mode():
    logits = model(look(Image.open("photo.jpg").convert("RGB"))[None])[0]
for label, probability, threshold in zip(about["labels"], logits.sigmoid(), about["thresholds"]):
    print(label, f"{probability:.3f}", "yes" if probability >= threshold else "no")
```

transformers opens the folder too: `pipeline("image-classification", model=".", top_k=None)`.
"""


def partly_usage(card: Card) -> str:
    """How Partly opens a folder."""
    return PARTLY_USAGE.format(given=GIVEN[card["input"]["kind"]].format(**card["input"]))
