"""Partly trains multi-label classifiers from partly labelled data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from partly.labels import NEGATIVE, POSITIVE, UNKNOWN

__version__ = "0.1.0"

if TYPE_CHECKING:
    from partly import losses, methods
    from partly.classifier import PartialLabelClassifier
    from partly.config import Config
    from partly.hiding import hide
    from partly.labels import LabelTable
    from partly.metrics import average_precision, mean_average_precision
    from partly.readers import read
    from partly.runs import load
    from partly.training import train

# Loaded when first asked for, so that `import partly` and `partly --help` do not wait for torch.
_HOMES = {
    "Config": "partly.config",
    "LabelTable": "partly.labels",
    "PartialLabelClassifier": "partly.classifier",
    "average_precision": "partly.metrics",
    "hide": "partly.hiding",
    "load": "partly.runs",
    "mean_average_precision": "partly.metrics",
    "read": "partly.readers",
    "train": "partly.training",
}
_ROOMS = ("losses", "methods")

__all__ = [
    "NEGATIVE",
    "POSITIVE",
    "UNKNOWN",
    "Config",
    "LabelTable",
    "PartialLabelClassifier",
    "average_precision",
    "hide",
    "load",
    "losses",
    "mean_average_precision",
    "methods",
    "read",
    "train",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"partly.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'partly' has no attribute '{name}'")
