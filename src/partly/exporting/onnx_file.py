"""One .onnx file that needs neither Partly nor PyTorch.

What enters: a whole model, its description. What leaves: a file, and with it what the file answers:
it is opened again with onnxruntime, for a graph that was written need not run.
"""

import importlib.util
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from partly.errors import ConfigError
from partly.exporting.whole import Whole

NEEDED = ("onnx", "onnxruntime", "onnxscript")
OPSET = 18  # what PyTorch writes without converting, and onnxruntime reads since 1.14
LARGEST_FILE = 3 * 2**29  # bytes of weights: ONNX ends at 2 GiB, all included
OUTPUTS = ("probabilities", "logits")


def check_installed() -> None:
    """Everything that writes and runs such a file, or what to install."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"--format onnx needs {' and '.join(missing)}: pip install 'partly[export]'"
        )


def write(whole: Whole, example: np.ndarray, about: Mapping[str, Any], place: Path) -> None:
    """The graph with a free number of rows. What is known about it is JSON in its metadata.

    Weights too large for one file lie in a second one beside it, `NAME.data`.
    """
    program = _translated(whole, example)
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # the exporter writes its own files' paths in there
    for key, value in about.items():
        program.model.metadata_props[key] = json.dumps(value, ensure_ascii=False)
    weights = [*whole.parameters(), *whole.buffers()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights)
    program.save(str(place), external_data=size > LARGEST_FILE)


def _translated(whole: Whole, example: np.ndarray) -> Any:
    name = "pixels" if whole.looks_at_images else "features"
    rows = torch.from_numpy(example[:2])  # one row would be taken for a constant
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what torch will change in its own code
            return torch.onnx.export(
                whole,
                (rows,),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=[name],
                output_names=list(OUTPUTS),
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
    except Exception as error:  # what PyTorch cannot translate fails in many ways
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"this model cannot be written as ONNX: {reason[0]}; --format safetensors takes any"
        ) from None


def answers(place: Path, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(probabilities, logits) [N, L] of the file, asked about one row and then about the others."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(str(place), providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        parts = [session.run(list(OUTPUTS), {name: part}) for part in (inputs[:1], inputs[1:])]
    except Exception as error:  # onnxruntime's errors have no common class
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"onnxruntime does not run this model: {reason}; --format safetensors takes any"
        ) from None
    probabilities, logits = (np.concatenate(blocks) for blocks in zip(*parts, strict=True))
    return probabilities, logits
