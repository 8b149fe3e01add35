"""Models: a backbone and one linear layer.

What enters: the name of a backbone and what it looks at. What leaves: an `nn.Module` from inputs to
logits [B, L], its last bias at the class priors.
"""

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from partly.errors import ConfigError, DataError, first_few


class Classifier(nn.Module):
    """A backbone and the head that turns its features into logits."""

    def __init__(self, backbone: nn.Module, features: int, labels: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(features, labels)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.backbone(inputs))


class Standardise(nn.Module):
    """(x - mean) / deviation of each feature, taken from the training data and saved with it."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("deviation", torch.ones(features))

    def fit(self, features: np.ndarray) -> None:
        spread = np.asarray(features.std(axis=0, dtype=np.float64))
        spread[spread < 1e-12] = 1.0  # a constant feature stays constant, not infinite
        self.mean.copy_(torch.from_numpy(features.mean(axis=0, dtype=np.float64)))
        self.deviation.copy_(torch.from_numpy(spread))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs - self.mean) / self.deviation


class TopMean(nn.Module):
    """The mean of each channel's strongest places: a thing counts wherever in the picture it is."""

    def __init__(self, places: int = 4) -> None:
        super().__init__()
        self.places = places

    def forward(self, maps: Tensor) -> Tensor:
        flat = maps.flatten(2)
        return flat.topk(min(self.places, flat.shape[2]), dim=2).values.mean(dim=2)


def small_network(width: int = 32) -> nn.Sequential:
    """Four convolutions, three of them separable, for small pictures on a CPU; 8·width features."""

    def convolution(channels: int, wider: int, **shape: int) -> list[nn.Module]:
        layer = nn.Conv2d(channels, wider, bias=False, **shape)  # type: ignore[arg-type]
        return [layer, nn.BatchNorm2d(wider), nn.ReLU(inplace=True)]

    def separable(channels: int) -> list[nn.Module]:
        deep = convolution(channels, channels, kernel_size=3, padding=1, groups=channels)
        return [*deep, *convolution(channels, 2 * channels, kernel_size=1)]

    return nn.Sequential(
        *convolution(3, width, kernel_size=4, stride=2, padding=1),
        *separable(width),
        nn.MaxPool2d(2),
        *separable(2 * width),
        nn.MaxPool2d(2),
        *separable(4 * width),
        TopMean(),
    )


def hidden_layer(features: int, hidden: int) -> nn.Sequential:
    """Standardised features, one hidden layer, dropout ½."""
    return nn.Sequential(
        Standardise(features), nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(0.5)
    )


def build(backbone: str, labels: int, features: int | None = None) -> Classifier:
    """The model for L labels.

    On features: `linear`, or `mlp:768` with a hidden layer. On images: `small`, or any timm name.
    """
    kind, colon, size = backbone.partition(":")
    sized = kind in ("mlp", "small") and size.isdigit() and int(size) > 0
    if colon and not sized:
        raise ConfigError(f"no backbone '{backbone}'; write linear, mlp:768 or small:32")
    on_features = kind in ("linear", "mlp")
    if on_features != (features is not None):
        wanted = "feature rows" if on_features else "images"
        given = "images" if features is None else "feature rows"
        raise ConfigError(f"backbone '{backbone}' looks at {wanted}, but the data has {given}")
    if features is not None and kind == "linear":
        return Classifier(Standardise(features), features, labels)
    if features is not None:
        hidden = int(size or 768)
        return Classifier(hidden_layer(features, hidden), hidden, labels)
    if kind == "small":
        width = int(size or 32)
        return Classifier(small_network(width), 8 * width, labels)
    return _from_timm(backbone, labels)


def _from_timm(name: str, labels: int) -> Classifier:
    import timm

    if not timm.is_model(name):
        close = get_close_matches(name, ("linear", "mlp", "small")) or timm.list_models(f"*{name}*")
        hint = f"; close names: {first_few(close)}" if close else ""
        raise ConfigError(f"no backbone '{name}' in timm{hint}, and it is not linear, mlp or small")
    backbone: Any = timm.create_model(name, num_classes=0)
    with torch.no_grad():
        backbone.eval()
        size = backbone.default_cfg.get("input_size", (3, 224, 224))
        features = backbone(torch.zeros(1, *size)).shape[-1]
    return Classifier(backbone.train(), features, labels)


def load_weights(model: Classifier, path: str | Path) -> int:
    """Read backbone weights from a safetensors file or a plain state dict; how many fitted.

    Tensors of another name or shape (an ImageNet head) stay out. Weights for less than nine tenths
    of the backbone are an error: they are another's.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"no weights at {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DataError(f"cannot read weights from {path}: {error}") from None
    if isinstance(state, dict):
        state = state.get("state_dict", state)
    if not isinstance(state, dict):
        raise DataError(f"{path} holds no weights by name, but a {type(state).__name__}")
    own = model.backbone.state_dict()
    named = {_without_prefix(name): tensor for name, tensor in state.items()}
    fitting = {
        name: tensor
        for name, tensor in named.items()
        if name in own and getattr(tensor, "shape", None) == own[name].shape
    }
    wanted = {name for name, tensor in own.items() if tensor.ndim}  # counters fit anything
    found = len(wanted & fitting.keys())
    if found < 0.9 * len(wanted):
        raise DataError(
            f"{path} fits {found or 'none'} of the backbone's {len(wanted)} weights: "
            "are they of another backbone?"
        )
    model.backbone.load_state_dict(fitting, strict=False)
    return len(fitting)


def _without_prefix(name: Any) -> str:
    """The name as the backbone knows it, whether a run, a wrapper or timm wrote the file."""
    return str(name).removeprefix("module.").removeprefix("backbone.")


def prepare(model: Classifier, features: np.ndarray | None, priors: np.ndarray | None) -> None:
    """Start at what is known before training: the features' scale, and the class priors.

    With priors the head predicts them for every image; without, it keeps its random start.
    """
    if features is not None:
        for module in model.modules():
            if isinstance(module, Standardise):
                module.fit(features)
    if priors is not None:
        with torch.no_grad():
            model.head.weight.zero_()
            model.head.bias.copy_(torch.logit(torch.from_numpy(priors)))
