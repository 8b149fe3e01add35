"""Fixtures that several test files use."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import hypothesis
import numpy as np
import pytest
import torch

from partly.labels import LabelTable

torch.set_num_threads(1)  # results and timings must not depend on how busy the machine is
hypothesis.settings.register_profile("partly", deadline=None)
hypothesis.settings.load_profile("partly")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # so a shell begins what is to be behind it,
    signal.signal(signal.SIGINT, signal.default_int_handler)  # and what tests start would be deaf


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Features are kept in a folder of the tests, not in the user's."""
    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}):
        yield


@pytest.fixture(scope="session")
def full_labels() -> np.ndarray:
    """Fully known labels [3000, 40] shaped like real ones: few positives, rare and common labels,
    one label nobody has, images without any."""
    generator = np.random.default_rng(0)
    frequency = 0.4 / np.arange(1, 41)
    frequency[-1] = 0
    return (generator.random((3000, 40)) < frequency).astype(np.int8)


@pytest.fixture(scope="session")
def full_table(full_labels: np.ndarray) -> LabelTable:
    return LabelTable.from_dense(full_labels)


@pytest.fixture(scope="session")
def coco_features() -> Path:
    """The real COCO labels, where they lie beside the checkout."""
    path = Path(__file__).parents[2] / "shared" / "data" / "coco_features.npz"
    if not path.is_file():
        pytest.skip("no COCO features beside the checkout")
    return path
