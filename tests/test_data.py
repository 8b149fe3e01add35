"""Images and feature rows become batches."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from builders import write_pictures
from partly import images
from partly.data import (
    IMAGENET_DEVIATION,
    IMAGENET_MEAN,
    FeatureInputs,
    ImageInputs,
    Look,
    _Encoded,
    _Pictures,
    cut_out,
    decode_on_gpu,
    missing_images,
    open_inputs,
    split_into_chunks,
)
from partly.errors import DataError, RunError
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
    (batch,) = inputs_of(ImageInputs([str(tmp_path / "wide.png")], CPU, Look(size=8)))
    stretched = np.asarray(original.resize((8, 8), Image.Resampling.BILINEAR)) / 255
    expected = (stretched - IMAGENET_MEAN) / IMAGENET_DEVIATION
    np.testing.assert_allclose(batch, expected.transpose(2, 0, 1), atol=1e-6)


def test_flips_follow_from_seed_epoch_and_image(pictures):
    plain = inputs_of(ImageInputs(pictures, CPU, Look(size=12)))

    def flipped(seed: int, epoch: int) -> np.ndarray:
        batch = inputs_of(ImageInputs(pictures, CPU, Look(size=12), seed=seed), epoch)
        turned = (batch == plain[..., ::-1]).all(axis=(1, 2, 3))
        assert (turned ^ (batch == plain).all(axis=(1, 2, 3))).all()  # flipped or as it was
        return turned

    draws = {(seed, epoch): flipped(seed, epoch) for seed in (0, 1) for epoch in (1, 2, 3)}
    share = np.mean(list(draws.values()))
    assert 0.4 < share < 0.6  # 384 throws: four deviations are 0.1
    assert len({draw.tobytes() for draw in draws.values()}) == len(draws)
    assert (flipped(0, 1) == draws[0, 1]).all()


@pytest.mark.parametrize("augment", ["paper", "strong", "crop", "randaugment", "cutout,flip"])
@pytest.mark.parametrize("epoch", [None, 2])
def test_batches_do_not_depend_on_workers_or_on_chunks(pictures, epoch, augment):
    look = Look(size=12, augment=augment)
    before = torch.get_rng_state()
    whole = inputs_of(ImageInputs(pictures, CPU, look), epoch)
    assert (torch.get_rng_state() == before).all()  # the model's own draws go on untouched
    order = np.random.default_rng(0).permutation(len(pictures))
    for workers in (0, 2):
        inputs = ImageInputs(pictures, CPU, look, workers=workers)
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
    ((_, batch),) = ImageInputs([str(path)], CPU, Look(size=16, normalise="none")).batches(
        [np.arange(1)]
    )
    picture = (batch[0].permute(1, 2, 0).numpy() * 255).round()
    expected = np.arange(0, 256, 16) if mode != "1" else np.repeat([0, 255], 8)
    assert picture.shape == (16, 16, 3)
    np.testing.assert_allclose(picture, np.tile(expected[:, None], (16, 1, 3)), atol=2)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("content", [b"", b"not a picture", None])
def test_a_broken_file_is_named(tmp_path, pictures, content, workers):
    broken = tmp_path / "broken.png"
    broken.write_bytes(Path(pictures[0]).read_bytes()[:200] if content is None else content)
    inputs = ImageInputs([pictures[0], str(broken)], CPU, Look(size=12), workers=workers)
    with pytest.raises(DataError, match=f"^cannot read image {broken}") as caught:
        list(inputs.batches([np.arange(2)]))
    assert "Traceback" not in str(caught.value)


def test_missing_files_are_counted_in_one_error(pictures):
    paths = np.array([*pictures[:3], *(f"/nowhere/{number}.png" for number in range(7))])
    table = LabelTable.from_dense(np.ones((10, 2)), paths=paths)
    assert list(missing_images(table.paths)) == [
        "7 of 10 images are missing: /nowhere/0.png, /nowhere/1.png, /nowhere/2.png, "
        "/nowhere/3.png, /nowhere/4.png and 2 more"
    ]


def test_what_a_table_offers_decides_its_inputs(pictures):
    labels = np.ones((2, 2))
    with_features = LabelTable.from_dense(labels, features=np.zeros((2, 3)))
    with_images = LabelTable.from_dense(labels, paths=np.array(pictures[:2]))
    assert isinstance(open_inputs(with_features, CPU), FeatureInputs)
    opened = open_inputs(with_images, CPU, Look(size=10), seed=3, workers=1)
    assert isinstance(opened, ImageInputs)
    assert (opened.look.size, opened.seed, opened.workers) == (10, 3, 1)
    with pytest.raises(DataError, match="neither image paths nor features"):
        open_inputs(LabelTable.from_dense(labels), CPU)


def test_an_image_draws_the_same_wherever_it_stands(pictures):
    """Draws follow the image, not its row."""
    look = Look(size=12, augment="strong")
    ids = [f"image {number}" for number in range(len(pictures))]
    keys = LabelTable.from_dense(np.ones((len(pictures), 2)), ids=ids).ids.keys()
    forward = inputs_of(ImageInputs(pictures, CPU, look, keys=keys), 3)
    backward = inputs_of(ImageInputs(pictures[::-1], CPU, look, keys=keys[::-1].copy()), 3)
    np.testing.assert_array_equal(forward, backward[::-1])


@pytest.mark.parametrize("step", ["crop", "flip", "randaugment", "cutout"])
def test_every_step_of_an_augmentation_changes_pictures_in_training_only(pictures, step):
    plain = inputs_of(ImageInputs(pictures, CPU, Look(size=12, augment="none")), 1)
    inputs = ImageInputs(pictures, CPU, Look(size=12, augment=step))
    epochs = [inputs_of(inputs, epoch) for epoch in (1, 2)]
    changed = (epochs[0] != plain).any(axis=(1, 2, 3))
    assert changed.mean() > (0.3 if step == "flip" else 0.6)
    assert (epochs[0] != epochs[1]).any()
    np.testing.assert_array_equal(inputs_of(inputs, None), plain)


def test_a_cut_out_square_is_the_mean_colour():
    inputs = torch.ones(2, 3, 8, 8)
    cut = cut_out(inputs, torch.tensor([[0.5, 0.5], [0.0, 0.0]]))
    assert (cut == 0).sum(dim=(1, 2, 3)).tolist() == [3 * 9, 3 * 4]  # half the side; a corner
    assert (cut[0, :, 3:6, 3:6] == 0).all()


def test_the_middle_is_cropped(tmp_path):
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 255
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    look = Look(size=10, resize="crop", normalise="none")
    assert (inputs_of(ImageInputs([str(tmp_path / "wide.png")], CPU, look)) == 1).all()


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(tmp_path):
    """The shortcut is taken, and what comes out is nearly the same picture."""
    gradient = np.linspace(0, 255, 1024, dtype=np.uint8)
    Image.fromarray(np.tile(gradient, (1024, 1))).convert("RGB").save(tmp_path / "large.jpg")
    content = (tmp_path / "large.jpg").read_bytes()
    assert images.decode(content, 120).size == (128, 128)
    assert images.decode(content, 448).size == (512, 512)
    assert images.decode(content).size == (1024, 1024)
    look = Look(size=64, normalise="none")
    (batch,) = inputs_of(ImageInputs([str(tmp_path / "large.jpg")], CPU, look))
    expected = Image.open(tmp_path / "large.jpg").resize((64, 64), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(batch.transpose(1, 2, 0) * 255, np.asarray(expected), atol=3)


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"resize": "squeeze"}, "resize is one of stretch, crop"),
        ({"decode": "tpu"}, "decode is one of cpu, gpu, once"),
        ({"augment": "flip,blur"}, "augment is one of none, paper, strong"),
        ({"normalise": "0.5,0.5/1,1"}, "three means and three deviations"),
        ({"normalise": "0,0,0/1,1,0"}, "three means and three deviations"),
    ],
)
def test_a_look_that_makes_no_sense(choice, sentence):
    (problem,) = Look(**choice).problems()
    assert sentence in problem


def test_without_a_gpu_the_cpu_decodes_and_says_so(pictures):
    inputs = ImageInputs(pictures, CPU, Look(size=12, decode="gpu"))
    assert inputs.explanation == "JPEG is decoded by the CPU: the model runs on cpu, not on a GPU"
    np.testing.assert_array_equal(
        inputs_of(inputs, 1), inputs_of(ImageInputs(pictures, CPU, Look(size=12)), 1)
    )


def test_what_a_gpu_is_sent_becomes_the_same_pictures(tmp_path):
    """The path of `decode="gpu"`, with a CPU in the GPU's place: JPEG, PNG, CMYK, turned, grey."""
    photo = Image.fromarray(np.tile(np.arange(0, 240, 4, dtype=np.uint8), (40, 1))).convert("RGB")
    turned = Image.Exif()
    turned[0x0112] = 6
    photo.save(tmp_path / "0.jpg", quality=95)
    photo.save(tmp_path / "1.png")
    photo.convert("CMYK").save(tmp_path / "2.jpg", quality=95)
    photo.save(tmp_path / "3.jpg", exif=turned, quality=95)
    photo.convert("L").save(tmp_path / "4.jpg", quality=95)
    paths = [str(tmp_path / name) for name in ("0.jpg", "1.png", "2.jpg", "3.jpg", "4.jpg")]
    for look in (Look(size=20), Look(size=20, resize="crop"), Look(size=20, augment="crop")):
        inputs = ImageInputs(paths, CPU, look)
        for rows in ([0, 1, 2, 3, 4], [1, 2]):  # the second without a JPEG for the GPU
            worker = _Encoded(inputs.paths, inputs.keys, look, 0, 1)
            batch = worker.stack([worker[row] for row in rows])
            sent = decode_on_gpu(batch, look, CPU).float().numpy()
            plain = _Pictures(inputs.paths, inputs.keys, look, 0, 1)
            expected = np.stack([plain[row] for row in rows])
            np.testing.assert_allclose(sent, expected, atol=6)


def test_a_jpeg_that_is_cut_off_is_never_sent_to_a_gpu(tmp_path):
    Image.effect_noise((64, 64), 80).convert("RGB").save(tmp_path / "a.jpg")
    (tmp_path / "a.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:900])
    inputs = ImageInputs([str(tmp_path / "a.jpg")], CPU, Look(size=20))
    found = _Encoded(inputs.paths, inputs.keys, inputs.look, 0, 1)[0]
    assert isinstance(found, DataError)
    assert "truncated" in str(found)


def test_a_worker_that_is_killed_is_a_sentence(pictures, monkeypatch):
    monkeypatch.setattr(images, "load", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RunError, match="a process that reads images was killed"):
        list(ImageInputs(pictures, CPU, Look(size=12), workers=1).batches([np.arange(4)]))
