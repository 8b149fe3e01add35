"""Export: every form answers as the run does, carries what is needed, and is whole or not there."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import timm
import torch
from PIL import Image

from builders import (
    COLOURS,
    files_of,
    partly_here,
    partly_works,
    write_manifest,
    write_npz,
    write_pictures,
)
from partly import LabelTable, exporting, runs, unlabelled, workflow
from partly.decisions import Calibration
from partly.drawing import draw_picture
from partly.errors import ConfigError, DataError, RunError
from partly.exporting import card, hub, onnx_file, whole
from partly.training import Config

DOCS = Path(__file__).parents[1] / "docs" / "export.md"
SMALL: dict[str, Any] = {
    "epochs": 1,
    "hold_out": 0.0,
    "batch_size": 16,
    "learning_rate": 0.01,
    "image_size": 32,
}
CONFIGS = {
    "features": Config(epochs=2, hold_out=0.3),
    "own": Config(**SMALL | {"hold_out": 0.5, "epochs": 3}, backbone="small:8"),
    "spa": Config(**SMALL, method="spa", options={"shift_negative": 0.5}, backbone="small:8"),
    "timm": Config(**SMALL, backbone="test_resnet", weights="none", resize="crop"),
    "vision": Config(**SMALL, backbone="test_vit", weights="none"),
    "frozen": Config(**SMALL, backbone="test_efficientnet", weights="none", head_only=True),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A run of each kind, and photographs as users have them."""
    home = tmp_path_factory.mktemp("home")
    write_npz(home / "features.npz")
    labels = write_pictures(home / "images", 120, size=32)
    data = write_manifest(home / "images" / "pictures.csv", labels, test=20)
    for kind, config in CONFIGS.items():
        source = home / "features.npz" if kind == "features" else data
        workflow.train_run(source, home / kind, config, quiet=True, say=lambda _: None)
    write_photographs(home / "photos")
    return home


def write_photographs(folder: Path) -> None:
    """A JPEG more than twice as large as the model's pictures, one that EXIF turns, and a PNG."""
    folder.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    draw_picture(1, 0, size=150)[0].resize((200, 120)).save(folder / "first.jpg", quality=90)
    draw_picture(1, 1, size=64)[0].resize((50, 70)).save(folder / "turned.jpg", exif=exif)
    draw_picture(1, 2, size=64)[0].save(folder / "second.png")


@pytest.fixture(scope="module")
def onnx_files(home) -> dict[str, Path]:
    """The .onnx file of some of them."""
    kinds = ("features", "spa", "frozen")
    return {
        kind: exporting.export_run(home / kind, "onnx", home / f"{kind}.onnx", say=lambda _: None)
        for kind in kinds
    }


def table_of(predictor: runs.Predictor, files: list[Path]) -> LabelTable:
    names = [file.name for file in files]
    paths = np.array([str(file) for file in files])
    return LabelTable.without_labels(predictor.names, ids=names, paths=paths)


def drawn_inputs(predictor: runs.Predictor) -> np.ndarray:
    with unlabelled.asked(whole.drawn_images(predictor), predictor.names) as table:
        return whole.given_inputs(predictor, table)


def photographs(home: Path) -> list[Path]:
    return sorted((home / "photos").iterdir())


def predicted(home: Path, kind: str) -> np.ndarray:
    predictor = runs.load(home / kind, "cpu")
    return predictor.probabilities(table_of(predictor, photographs(home)))


def metadata_of(file: Path) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    found = session.get_modelmeta().custom_metadata_map
    return {name: json.loads(text) for name, text in found.items()}


def snippets(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


# --- ONNX ----------------------------------------------------------------------------------------


def test_the_snippet_of_the_page_says_what_predict_says(home, onnx_files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(onnx_files["spa"], "model.onnx")
    (snippet,) = snippets(DOCS.read_text(encoding="utf-8"))
    files = photographs(home)
    code = snippet.replace('["first.jpg", "second.png"]', repr([str(file) for file in files]))
    assert code != snippet
    assert not re.search(r"import (torch|partly)|from (torch|partly)", code)
    scope: dict[str, Any] = {}
    exec(code, scope)
    partly_works("predict", home / "spa", home / "photos", "--out", "scores.csv")
    lines = [line.split(",") for line in Path("scores.csv").read_text().splitlines()]
    assert [line[0] for line in lines[1:]] == [file.name for file in files]
    expected = np.array([[float(number) for number in line[1:4]] for line in lines[1:]])
    np.testing.assert_allclose(scope["probabilities"], expected, atol=1e-4)
    assert np.ptp(expected, axis=0).min() > 1e-3  # the files differ, or nothing was compared
    assert scope["decided"].keys() == {str(file) for file in files}


def test_features_go_in_as_they_were_trained_on(home, onnx_files):
    features = np.load(home / "features.npz")["X_test"]
    predictor = runs.load(home / "features", "cpu")
    rows = LabelTable.without_labels(predictor.names, ids=range(len(features)), features=features)
    session = onnxruntime.InferenceSession(str(onnx_files["features"]))
    for count in (1, 7, len(features)):  # the number of rows is free
        (found,) = session.run(["probabilities"], {"features": features[:count]})
        np.testing.assert_allclose(found, predictor.probabilities(rows)[:count], atol=1e-5)


def test_a_frozen_backbone_and_its_head_are_one_graph(home, onnx_files):
    pixels = whole.given_inputs(
        predictor := runs.load(home / "frozen", "cpu"), table_of(predictor, photographs(home))
    )
    found, _ = onnx_file.answers(onnx_files["frozen"], pixels)
    np.testing.assert_allclose(found, predicted(home, "frozen"), atol=1e-4)


def test_the_metadata_say_what_the_model_is(home, onnx_files):
    about = metadata_of(onnx_files["spa"])
    assert about["labels"] == list(COLOURS)
    assert about["thresholds"] == [0.5] * 3
    assert not about["thresholds_fitted"]
    assert about["method"] == "spa"
    assert about["options"] == {"shift_negative": 0.5}
    assert about["input"]["size"] == 32
    assert about["input"]["mean"] == [0.485, 0.456, 0.406]
    config = json.loads((home / "spa" / runs.CONFIG).read_text())
    assert about["trained_on"]["label_hash"] == config["label_hash"]
    assert about["versions"] == config["versions"]


def test_fitted_thresholds_travel(home, onnx_files):
    about = metadata_of(onnx_files["features"])
    stored = json.loads((home / "features" / runs.THRESHOLDS).read_text())
    assert dict(zip(about["labels"], about["thresholds"], strict=True)) == stored
    assert about["thresholds_fitted"]


def test_no_path_of_this_machine_is_in_the_file(home, onnx_files):
    content = onnx_files["frozen"].read_bytes()
    for path in (str(home), "site-packages", str(Path(exporting.__file__).parents[1])):
        assert path.encode() not in content


def test_large_weights_lie_in_a_second_file(home, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "LARGEST_FILE", 100)
    file = exporting.export_run(home / "features", "onnx", tmp_path / "a.onnx", say=lambda _: None)
    assert sorted(files_of(tmp_path)) == ["a.onnx", "a.onnx.data"]
    inputs = drawn_inputs(predictor := runs.load(home / "features", "cpu"))
    with torch.inference_mode():
        expected, _ = whole.Whole(predictor)(torch.from_numpy(inputs))
    np.testing.assert_allclose(onnx_file.answers(file, inputs)[0], expected, atol=1e-5)


def test_a_model_that_torch_cannot_translate_is_refused_in_a_sentence(home, tmp_path, monkeypatch):
    def untranslatable(self, inputs):
        return inputs, torch.linalg.eigvals(inputs.float().mean((1,)).T @ inputs.float().mean((1,)))

    monkeypatch.setattr(whole.Whole, "forward", untranslatable)
    with pytest.raises(ConfigError, match=r"cannot be written as ONNX: .+--format safetensors"):
        exporting.export_run(home / "own", "onnx", tmp_path / "a.onnx")
    assert not files_of(tmp_path)


def test_missing_packages_are_named(home, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "NEEDED", ("onnx", "onyx_runtime_9"))
    with pytest.raises(ConfigError, match=r"needs onyx_runtime_9: pip install 'partly\[export\]'"):
        exporting.export_run(home / "features", "onnx", tmp_path / "a.onnx")


TEMPERATURE = Calibration("temperature", slope=0.6, shift=-0.4)
ISOTONIC = Calibration("isotonic", x=(0.0, 0.2, 0.21, 0.7, 1.0), y=(0.0, 0.1, 0.4, 0.45, 1.0))


@pytest.mark.parametrize("calibration", [TEMPERATURE, ISOTONIC], ids=lambda c: c.kind)
@pytest.mark.parametrize("kind", ["features", "spa"])
def test_calibrated_probabilities_are_those_of_predict(home, kind, calibration):
    predictor = runs.load(home / kind, "cpu")
    predictor.calibration = calibration
    logits = torch.linspace(-30, 30, 3 * 2000).view(-1, 3)
    logits = torch.cat([logits, torch.linspace(-3, 3, 3 * 2000).view(-1, 3)])
    found = whole.Whole(predictor).calibrated(logits)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, predictor.to_probabilities(logits), atol=1e-4)


@pytest.mark.parametrize("calibration", [TEMPERATURE, ISOTONIC], ids=lambda c: c.kind)
def test_a_calibrated_run_is_exported_with_its_calibration(home, tmp_path, calibration):
    run = shutil.copytree(home / "features", tmp_path / "run")
    stored = json.loads((run / runs.DECISIONS).read_text())
    stored["calibration"] = calibration.to_json()
    (run / runs.DECISIONS).write_text(json.dumps(stored))
    file = exporting.export_run(run, "onnx", tmp_path / "a.onnx", say=lambda _: None)
    features = np.load(home / "features.npz")["X_test"]
    predictor = runs.load(run, "cpu")
    rows = LabelTable.without_labels(predictor.names, ids=range(len(features)), features=features)
    expected = predictor.probabilities(rows)
    found, _ = onnx_file.answers(file, features)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.abs(runs.load(home / "features", "cpu").probabilities(rows) - expected).max() > 0.05
    assert metadata_of(file)["calibration"] == calibration.to_json()
    folder = exporting.export_run(run, "safetensors", tmp_path / "b", say=lambda _: None)
    assert np.array_equal(exporting.load(folder, "cpu").probabilities(rows), expected)


OVERCONFIDENT = Calibration("temperature", slope=0.25, shift=-3.5)
STEEP = Calibration("isotonic", x=(0.0, 1e-6, 1 - 1e-6, 1.0), y=(0.0, 0.3, 0.7, 1.0))


@pytest.mark.parametrize("calibration", [OVERCONFIDENT, STEEP], ids=lambda c: c.kind)
@pytest.mark.parametrize("kind", ["features", "spa"])
def test_a_model_that_is_too_sure_is_exported_as_it_predicts(home, tmp_path, kind, calibration):
    """Where 32 bits hold few digits of 1 - p, or none."""
    predictor = runs.load(home / kind, "cpu")
    predictor.calibration = calibration
    logits = torch.linspace(-40, 40, 3 * 5000).view(-1, 3)
    expected = predictor.to_probabilities(logits)
    found = whole.Whole(predictor).calibrated(logits)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    graph = tmp_path / "calibrated.onnx"
    module = Calibrated(whole.Whole(predictor)).eval()
    torch.onnx.export(
        *(module, (logits[:4],), graph),
        dynamic_shapes=({0: torch.export.Dim("rows")},),
        dynamo=True,
    )
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: logits.numpy()})
    np.testing.assert_allclose(found, expected, atol=1e-6)


class Calibrated(torch.nn.Module):
    """The end of a whole model."""

    def __init__(self, everything: whole.Whole) -> None:
        super().__init__()
        self.everything = everything

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return self.everything.calibrated(logits)


def test_a_temperature_keeps_the_ranking_of_what_is_nearly_sure(home):
    predictor = runs.load(home / "features", "cpu")
    predictor.calibration = OVERCONFIDENT
    logits = torch.linspace(-40, 40, 2001).view(-1, 1)
    assert (np.diff(predictor.to_probabilities(logits), axis=0) > 0).all()


def test_the_knot_to_the_left_is_found_however_many_there_are():
    for count in (2, 3, 4, 5, 16, 17, 100):
        knots = np.linspace(0, 1, count)
        calibration = Calibration("isotonic", x=tuple(knots), y=tuple(knots**2))
        asked = np.concatenate([knots, np.random.default_rng(count).random(200)]).astype("float32")
        found = whole.Lines(calibration)(torch.from_numpy(asked))
        np.testing.assert_allclose(found, calibration.apply(asked), atol=1e-7)


# --- safetensors, and what timm knows ------------------------------------------------------------


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_folder_opens_without_the_run(home, tmp_path, kind):
    folder = exporting.export_run(
        home / kind, "safetensors", tmp_path / "model", say=lambda _: None
    )
    assert sorted(files_of(folder)) == ["README.md", "card.json", "model.safetensors"]
    before, after = runs.load(home / kind, "cpu"), exporting.load(folder, "cpu")
    inputs = torch.from_numpy(drawn_inputs(before))
    with torch.inference_mode():
        pairs = zip(whole.Whole(before)(inputs), whole.Whole(after)(inputs), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
    assert after.names == before.names
    assert np.array_equal(after.thresholds, before.thresholds)


@pytest.mark.parametrize("kind", ["timm", "vision", "frozen"])
def test_timm_opens_the_folder_and_says_the_same(home, tmp_path, kind):
    folder = exporting.export_run(
        home / kind, "huggingface", tmp_path / "model", say=lambda _: None
    )
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    look = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    files = [home / "images" / f"{number:04d}.png" for number in range(8)]
    files.append(home / "photos" / "second.png")
    with torch.inference_mode():
        found = model(torch.stack([look(Image.open(file)) for file in files])).sigmoid()
    predictor = runs.load(home / kind, "cpu")
    expected = predictor.probabilities(table_of(predictor, files))
    np.testing.assert_allclose(found, expected, atol=5e-4 if kind == "frozen" else 1e-5)


@pytest.mark.parametrize("kind", ["timm", "frozen"])
def test_a_temperature_goes_into_the_last_layer(home, kind):
    predictor = runs.load(home / kind, "cpu")
    inputs = torch.from_numpy(drawn_inputs(predictor))
    predictor.calibration = TEMPERATURE
    everything = whole.Whole(predictor)
    with torch.inference_mode():
        expected, _ = everything(inputs)
        found = hub.timm_model(predictor)(everything.prepare(inputs)).sigmoid()
    # A frozen backbone's features are rounded to 16 bits, but not in timm's model.
    np.testing.assert_allclose(found, expected, atol=5e-4 if kind == "frozen" else 1e-5)


def test_the_config_names_the_labels_as_the_hub_does(home, tmp_path):
    folder = exporting.export_run(home / "timm", "huggingface", tmp_path / "model")
    config = json.loads((folder / hub.CONFIG).read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert config["id2label"] == {"0": "red", "1": "green", "2": "blue"}
    assert config["label2id"] == {"red": 0, "green": 1, "blue": 2}
    assert config["architecture"] == "test_resnet"
    processor = json.loads((folder / hub.PREPROCESSOR).read_text())
    assert processor["size"] == {"shortest_edge": 32}
    assert processor["image_mean"] == config["pretrained_cfg"]["mean"]
    header = (folder / card.PAGE).read_text().split("---\n")[1]
    assert 'library_name: "timm"' in header


@pytest.mark.parametrize("kind", ["own", "spa"])
def test_what_timm_cannot_load_is_said_and_opens_with_partly(home, tmp_path, kind):
    answer = partly_works("export", home / kind, "--format", "huggingface", "--out", tmp_path / "m")
    why = "the network small:8 is Partly's own"
    assert why in answer.out
    assert why in (tmp_path / "m" / card.PAGE).read_text()
    assert json.loads((tmp_path / "m" / hub.CONFIG).read_text())["id2label"]["2"] == "blue"
    predictor = exporting.load(tmp_path / "m", "cpu")
    found = predictor.probabilities(table_of(predictor, photographs(home)))
    assert np.array_equal(found, predicted(home, kind))


def test_timm_gets_no_model_whose_logits_mean_something_else(home):
    predictor = runs.load(home / "timm", "cpu")
    predictor.method = runs.load(home / "spa", "cpu").method
    with pytest.raises(hub.NotLikeTimm, match="spa makes probabilities"):
        hub.timm_model(predictor)
    predictor = runs.load(home / "timm", "cpu")
    predictor.calibration = ISOTONIC
    with pytest.raises(hub.NotLikeTimm, match="isotonic calibration stands between"):
        hub.timm_model(predictor)


def test_partly_does_not_open_a_folder_of_timm(home, tmp_path):
    folder = exporting.export_run(home / "timm", "huggingface", tmp_path / "model")
    with pytest.raises(RunError, match=r"timm\.create_model"):
        exporting.load(folder)


@pytest.mark.parametrize("kind", ["own", "features"])
def test_the_page_runs_where_the_model_lies(home, tmp_path, monkeypatch, kind):
    folder = exporting.export_run(home / kind, "safetensors", tmp_path / "model")
    shutil.copy(home / "photos" / "first.jpg", folder / "photo.jpg")
    monkeypatch.chdir(folder)
    (snippet,) = snippets((folder / card.PAGE).read_text())
    exec(snippet, {})


def test_the_page_for_timm_runs_too(home, tmp_path, monkeypatch, capsys):
    folder = exporting.export_run(home / "frozen", "huggingface", tmp_path / "model")
    shutil.copy(home / "photos" / "first.jpg", folder / "photo.jpg")
    monkeypatch.chdir(folder)
    capsys.readouterr()
    (snippet,) = snippets((folder / card.PAGE).read_text())
    exec(snippet, {})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(COLOURS)


def test_the_page_keeps_strange_names_in_their_cells_and_most_of_many_out():
    about = described(["a|b", "two\nlines", *(f"label {number}" for number in range(300))])
    page = card.page(about, "")
    assert r"| a\|b | 0.500 |" in page
    assert "| two lines | 0.500 |" in page
    assert "label 197 " in page
    assert "label 198 " not in page
    assert "102 labels more" in page


def described(names: list[str]) -> dict[str, Any]:
    """The card of a model that was never trained."""
    table = LabelTable.from_dense(np.zeros((1, len(names)), np.int8), names=names)
    config = Config(backbone="small:8", image_size=32).complete(
        LabelTable.without_labels(names, ids=["a"], paths=np.array(["a.jpg"]))
    )
    record = runs.describe(table, config) | {"weights": "/home/me/weights.safetensors"}
    weights = runs.models.build("small:8", len(names), size=32).state_dict()
    return card.describe(runs.restore(record, weights, None, "cpu"), Path("nowhere"))


def test_a_card_names_no_folder_of_this_machine(home, tmp_path):
    assert described(["a"])["config"]["weights"] == "weights.safetensors"
    run = shutil.copytree(home / "features", tmp_path / "run")
    config = json.loads((run / runs.CONFIG).read_text())
    config["read"] = {"images": "/srv/private/photos"}
    (run / runs.CONFIG).write_text(json.dumps(config))
    for format in exporting.FORMATS:
        exporting.export_run(run, format, tmp_path / "to" / format, say=lambda _: None)
    written = files_of(tmp_path / "to")
    assert len(written) > 5
    assert [name for name, content in written.items() if b"/srv/private" in content] == []


def test_the_page_says_at_which_thresholds_it_was_measured(home, tmp_path):
    run = shutil.copytree(home / "features", tmp_path / "run")
    measured = json.loads((run / runs.EVALUATION).read_text())["metrics"]
    page = card.page(about := card.describe(runs.load(run, "cpu"), run), "")
    assert f"CF1 at ½ {100 * measured['CF1']:.2f}" in page
    assert f"OF1 at the thresholds {100 * measured['OF1_at_thresholds']:.2f}" in page
    assert about["measured"]["calibration_error"] == measured["calibration_error"]
    assert f"calibration error {100 * measured['calibration_error']:.2f}" in page


def test_the_page_says_on_what_thresholds_were_fitted(home, tmp_path):
    run = shutil.copytree(home / "features", tmp_path / "run")
    page = card.page(card.describe(runs.load(run, "cpu"), run), "")
    assert "- **Thresholds**: one a label, fitted on images held out (goal f1)" in page
    partly_works("decide", run, home / "features.npz", "--part", "test", "--goal", "recall:0.9")
    page = card.page(card.describe(runs.load(run, "cpu"), run), "")
    assert "one a label, fitted again after training, on features.npz (goal recall:0.9)" in page


@pytest.mark.parametrize("format", ["onnx", "safetensors"])
def test_what_is_written_is_compared_with_the_run(home, tmp_path, monkeypatch, format):
    """Not with the module that was written: what is wrong there would be wrong on both sides."""
    whole_way = whole.Whole.calibrated
    monkeypatch.setattr(whole.Whole, "calibrated", lambda *given: 0.5 * whole_way(*given))
    with pytest.raises(RunError, match="does not answer as the run's model does"):
        exporting.export_run(home / "own", format, tmp_path / "model")


def test_pictures_are_prepared_as_the_run_does_it(home, tmp_path, monkeypatch):
    inverted = whole.Normalise.forward
    monkeypatch.setattr(whole.Normalise, "forward", lambda self, x: inverted(self, 255 - x))
    with pytest.raises(RunError, match="does not answer as the run's model does"):
        exporting.export_run(home / "own", "safetensors", tmp_path / "model")


# --- what can go wrong ---------------------------------------------------------------------------


def test_an_unknown_format_is_named(home):
    answer = partly_here("export", home / "own", "--format", "torchscript")
    assert answer.code == 2
    assert answer.err == (
        "partly: format is one of onnx, safetensors, huggingface, not 'torchscript'\n"
    )


def test_a_run_that_is_not_finished_is_not_exported(home, tmp_path):
    shutil.copytree(home / "own", tmp_path / "run")
    (tmp_path / "run" / runs.WEIGHTS).unlink()
    answer = partly_here("export", tmp_path / "run", "--format", "safetensors")
    assert answer.code == 2
    assert "not finished" in answer.err
    answer = partly_here("export", tmp_path, "--format", "safetensors")
    assert "is not a run" in answer.err


@pytest.mark.parametrize("format", exporting.FORMATS)
def test_nothing_that_exists_is_overwritten(home, tmp_path, format):
    place = tmp_path / "mine"
    place.mkdir()
    (place / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="is there already: remove it, or name another"):
        exporting.export_run(home / "own", format, place)
    assert files_of(tmp_path) == {"mine/letter.txt": b"dear"}


def test_it_lies_in_the_runs_folder_unless_said_otherwise(home, tmp_path):
    shutil.copytree(home / "own", tmp_path / "run")
    partly_works("export", tmp_path / "run", "--format", "safetensors")
    assert (tmp_path / "run" / "safetensors" / "card.json").is_file()
    assert (
        "is there already" in partly_here("export", tmp_path / "run", "--format", "safetensors").err
    )


def test_a_second_file_overwrites_nothing_either(home, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "LARGEST_FILE", 100)
    (tmp_path / "a.onnx.data").write_text("dear")
    with pytest.raises(RunError, match=r"a\.onnx\.data is there already"):
        exporting.export_run(home / "features", "onnx", tmp_path / "a.onnx")
    assert files_of(tmp_path) == {"a.onnx.data": b"dear"}


def test_an_empty_folder_is_filled_but_takes_no_files_name(home, tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(RunError, match="is there already"):
        exporting.export_run(home / "features", "onnx", tmp_path / "mine")
    exporting.export_run(home / "own", "safetensors", tmp_path / "mine")
    assert (tmp_path / "mine" / card.CARD).is_file()


@pytest.mark.parametrize("format", exporting.FORMATS)
def test_what_answers_otherwise_is_not_kept(home, tmp_path, monkeypatch, format):
    def write(predictor, about, inputs, place):
        place.write_text("broken")
        labels = len(predictor.names)
        return lambda rows: (np.zeros((len(rows), labels)), np.zeros((len(rows), labels))), []

    monkeypatch.setitem(exporting.WRITERS, format, write)
    with pytest.raises(RunError, match=r"does not answer as the run's model does.*not kept"):
        exporting.export_run(home / "own", format, tmp_path / "model")
    assert not files_of(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_export_left_is_cleared_away(home, tmp_path):
    left = tmp_path / ".model.partial"
    left.mkdir()
    (left / "model.safetensors").write_text("half")
    exporting.export_run(home / "own", "safetensors", tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_it_is_tried_on_the_images_that_are_given(home, tmp_path):
    answer = partly_works(
        *("export", home / "own", "--format", "safetensors", "--out", tmp_path / "model"),
        *("--images", home / "photos"),
    )
    assert "on 3 given images no probability differs" in answer.out
    mixed = shutil.copytree(home / "photos", tmp_path / "mixed")
    (mixed / "empty.jpg").touch()
    answer = partly_works(
        *("export", home / "own", "--format", "safetensors", "--out", tmp_path / "other"),
        *("--images", mixed),
    )
    assert "the file is empty" in answer.out
    assert "on 3 given images" in answer.out
    features = exporting.export_run(
        *(home / "features", "safetensors", tmp_path / "rows"),
        images=home / "features.npz",
        say=lambda _: None,
    )
    assert features.is_dir()


def test_images_that_the_model_cannot_look_at_are_named(home, tmp_path):
    with pytest.raises(DataError, match="looks at images, and these are feature rows"):
        exporting.export_run(
            home / "own", "safetensors", tmp_path / "m", images=home / "features.npz"
        )
    with pytest.raises(DataError, match="looks at 8 features a row"):
        exporting.export_run(
            home / "features", "safetensors", tmp_path / "m", images=home / "photos"
        )
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images in"):
        exporting.export_run(home / "own", "safetensors", tmp_path / "m", images=tmp_path / "empty")
    assert not (tmp_path / "m").exists()


def test_a_damaged_folder_is_a_sentence(home, tmp_path):
    folder = exporting.export_run(home / "own", "safetensors", tmp_path / "model")
    (folder / runs.WEIGHTS).write_bytes(b"")
    with pytest.raises(RunError, match="cannot read"):
        exporting.load(folder)
    (folder / runs.WEIGHTS).unlink()
    with pytest.raises(RunError, match=r"has no model\.safetensors"):
        exporting.load(folder)
    with pytest.raises(RunError, match=r"has no card\.json"):
        exporting.load(tmp_path)
