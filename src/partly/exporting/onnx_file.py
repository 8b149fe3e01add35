"""One .onnx file that needs neither Partly nor PyTorch.

What enters: a whole model, its description. What leaves: a file, and with it what the file answers:
it is opened again with onnxruntime, for a graph that was written need not run.
"""

import importlib.util
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    """The graph. What PyTorch cannot translate as it is, it may when it is in pieces."""
    rows = torch.from_numpy(example[:2])  # one row would be taken for a constant
    free = ({0: torch.export.Dim("batch")},)
    named: dict[str, Any] = {
        "input_names": ["pixels" if whole.looks_at_images else "features"],
        "output_names": list(OUTPUTS),
        "opset_version": OPSET,
        "dynamo": True,
        "verbose": False,
    }
    with _quiet():
        try:
            return torch.onnx.export(whole, (rows,), dynamic_shapes=free, **named)
        except Exception as error:
            problem = _innermost(error)
        try:
            pieces = torch.export.export(whole, (rows,), dynamic_shapes=free).run_decompositions()
            return torch.onnx.export(pieces, **named)
        except Exception:  # what PyTorch cannot translate fails in many ways; the first says most
            pass
    raise ConfigError(
        f"this model cannot be written as ONNX: {problem}; --format safetensors takes any"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch and onnxscript say of their own code."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _innermost(error: BaseException) -> str:
    """The first line of what began it: what is raised last speaks of steps and of reports."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def answers(place: Path, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(probabilities, logits) [N, L] of the file, asked about one row and then about the others."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(str(place), providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        parts = [session.run(list(OUTPUTS), {name: part}) for part in (inputs[:1], inputs[1:])]
    except Exception as error:  # onnxruntime's errors have no common class
        raise ConfigError(
            f"onnxruntime does not run this model: {_innermost(error)}; --format safetensors takes "
            "any"
        ) from None
    probabilities, logits = (np.concatenate(blocks) for blocks in zip(*parts, strict=True))
    return probabilities, logits
