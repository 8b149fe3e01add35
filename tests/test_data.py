"""Images and feature rows become batches."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from builders import write_pictures
from partly.data import (
    IMAGENET_DEVIATION,
    IMAGENET_MEAN,
    FeatureInputs,
    ImageInputs,
    open_inputs,
    split_into_chunks,
)
from partly.errors import DataError
from partly.labels import LabelTable

CPU = torch.device("cpu")


def inputs_of(inputs: ImageInputs | FeatureInputs, epoch: int | None = None) -> np.ndarray:
    """All inputs, in one batch."""
    rows = np.arange(len(inputs.paths))
    ((_, batch),) = inputs.batches([rows], epoch)
    return batch.numpy()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("pictures")
    write_pictures(folder, 64, size=12)
    return sorted(str(path) for path in folder.iterdir())


@pytest.mark.parametrize(
    ("rows", "size", "sizes"),
    [
        (10, 4, [4, 3, 3]),
        (9, 8, [5, 4]),  # not 8 and 1
        (8, 8, [8]),
        (3, 100, [3]),
        (5, 1, [1] * 5),
        (0, 4, [0]),
    ],
)
def test_chunks_are_nearly_equal_and_keep_the_order(rows, size, sizes):
    chunks = split_into_chunks(np.arange(rows)[::-1], size)
    assert [len(chunk) for chunk in chunks] == sizes
    assert np.concatenate(chunks).tolist() == list(range(rows))[::-1]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int32])
def test_feature_rows_come_as_asked(kind):
    features = np.arange(20).reshape(10, 2).astype(kind)
    chunks = [np.array([3, 1]), np.array([9])]
    batches = list(FeatureInputs(features, CPU).batches(chunks, epoch=1))
    assert [rows.tolist() for rows, _ in batches] == [[3, 1], [9]]
    assert [batch.tolist() for _, batch in batches] == [[[6, 7], [2, 3]], [[18, 19]]]
    assert batches[0][1].dtype == torch.float32


def test_a_picture_is_stretched_and_normalised(tmp_path):
    original = Image.effect_noise((40, 20), 80).convert("RGB")
    original.save(tmp_path / "wide.png")
    (batch,) = inputs_of(ImageInputs([str(tmp_path / "wide.png")], CPU, size=8))
    stretched = np.asarray(original.resize((8, 8), Image.Resampling.BILINEAR)) / 255
    expected = (stretched - IMAGENET_MEAN) / IMAGENET_DEVIATION
    np.testing.assert_allclose(batch, expected.transpose(2, 0, 1), atol=1e-6)


def test_flips_follow_from_seed_epoch_and_row(pictures):
    plain = inputs_of(ImageInputs(pictures, CPU, size=12))

    def flipped(seed: int, epoch: int) -> np.ndarray:
        batch = inputs_of(ImageInputs(pictures, CPU, size=12, seed=seed), epoch)
        turned = (batch == plain[..., ::-1]).all(axis=(1, 2, 3))
        assert (turned ^ (batch == plain).all(axis=(1, 2, 3))).all()  # flipped or as it was
        return turned

    draws = {(seed, epoch): flipped(seed, epoch) for seed in (0, 1) for epoch in (1, 2, 3)}
    share = np.mean(list(draws.values()))
    assert 0.4 < share < 0.6  # 384 throws: four deviations are 0.1
    assert len({draw.tobytes() for draw in draws.values()}) == len(draws)
    assert (flipped(0, 1) == draws[0, 1]).all()


@pytest.mark.parametrize("epoch", [None, 2])
def test_batches_do_not_depend_on_workers_or_on_chunks(pictures, epoch):
    whole = inputs_of(ImageInputs(pictures, CPU, size=12), epoch)
    order = np.random.default_rng(0).permutation(len(pictures))
    for workers in (0, 2):
        inputs = ImageInputs(pictures, CPU, size=12, workers=workers)
        for rows, batch in inputs.batches(split_into_chunks(order, 10), epoch):
            np.testing.assert_array_equal(batch.numpy(), whole[rows.numpy()])


def make_picture(mode: str) -> Image.Image:
    """A grey ramp from black to nearly white in this mode."""
    ramp = np.tile(np.arange(0, 256, 16, dtype=np.uint8), (16, 1))
    if mode == "I;16":
        return Image.fromarray(ramp.astype(np.uint16) * 256)
    if mode == "P":
        return Image.fromarray(ramp).convert("P", palette=Image.Palette.ADAPTIVE)
    if mode == "1":
        return Image.fromarray(ramp > 127)
    return Image.fromarray(ramp).convert("RGB").convert(mode)


@pytest.mark.parametrize(
    ("mode", "ending"),
    [
        ("RGB", "png"),
        ("L", "png"),
        ("LA", "png"),
        ("P", "png"),
        ("P", "gif"),
        ("1", "png"),
        ("RGBA", "png"),
        ("CMYK", "tif"),
        ("I;16", "png"),
        ("I;16", "tif"),
    ],
)
def test_every_kind_of_picture_becomes_rgb(tmp_path, mode, ending):
    path = tmp_path / f"ramp.{ending}"
    make_picture(mode).save(path)
    picture = ImageInputs([str(path)], CPU, size=16)[0]
    expected = np.arange(0, 256, 16) if mode != "1" else np.repeat([0, 255], 8)
    assert picture.shape == (16, 16, 3)
    assert picture.dtype == np.uint8
    np.testing.assert_allclose(picture, np.tile(expected[:, None], (16, 1, 3)), atol=2)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("content", [b"", b"not a picture", None])
def test_a_broken_file_is_named(tmp_path, pictures, content, workers):
    broken = tmp_path / "broken.png"
    broken.write_bytes(Path(pictures[0]).read_bytes()[:200] if content is None else content)
    inputs = ImageInputs([pictures[0], str(broken)], CPU, size=12, workers=workers)
    with pytest.raises(DataError, match=f"^cannot read image {broken}") as caught:
        list(inputs.batches([np.arange(2)]))
    assert "Traceback" not in str(caught.value)


def test_missing_files_are_counted_in_one_error(pictures):
    paths = np.array([*pictures[:3], *(f"/nowhere/{number}.png" for number in range(7))])
    table = LabelTable.from_dense(np.ones((10, 2)), paths=paths)
    with pytest.raises(DataError) as caught:
        open_inputs(table, CPU)
    assert caught.value.problems == [
        "7 of 10 images are missing: /nowhere/0.png, /nowhere/1.png, /nowhere/2.png, "
        "/nowhere/3.png, /nowhere/4.png and 2 more"
    ]


def test_what_a_table_offers_decides_its_inputs(pictures):
    labels = np.ones((2, 2))
    with_features = LabelTable.from_dense(labels, features=np.zeros((2, 3)))
    with_images = LabelTable.from_dense(labels, paths=np.array(pictures[:2]))
    assert isinstance(open_inputs(with_features, CPU), FeatureInputs)
    opened = open_inputs(with_images, CPU, size=10, seed=3, workers=1)
    assert isinstance(opened, ImageInputs)
    assert (opened.size, opened.seed, opened.workers) == (10, 3, 1)
    with pytest.raises(DataError, match="neither image paths nor features"):
        open_inputs(LabelTable.from_dense(labels), CPU)
