"""Several ranks: real processes, which agree with one, and go on when some are killed."""

import copy
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from timm.layers import BatchNormAct2d

import ranks
from builders import (
    children_of,
    environment,
    picture_table,
    write_manifest,
    write_npz,
    write_pictures,
)
from partly import checkpoint, distributed, runs
from partly.distributed import Shard

PATIENCE = 300  # seconds until a slow machine is taken for a hung one
TESTS = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as open_socket:
        open_socket.bind(("127.0.0.1", 0))
        return open_socket.getsockname()[1]


def torchrun(count: int, *command: object, **more: object) -> list[str]:
    """The command line of `count` ranks on this machine."""
    options = {"nproc-per-node": count, "master-addr": "127.0.0.1", "master-port": free_port()}
    flags = [f"--{name}={value}" for name, value in {**options, **more}.items()]
    return [sys.executable, "-m", "torch.distributed.run", *flags, *map(str, command)]


def start(command: list[str]) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    own = environment() | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.Popen(
        command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def works(command: list[str]) -> str:
    process = start(command)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    return said


def told(said: str) -> list[str]:
    """What partly found wrong; torchrun says it again, below its own traceback."""
    return [line for line in said.splitlines() if line.startswith("partly: ")]


# --- agreement -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    picture_table(folder / "pictures", 90)
    return folder


@pytest.fixture(scope="module")
def alone(folder) -> dict[str, Any]:
    return ranks.finish(folder, "alone")


# Two ranks that say they are on different machines may share a GPU, and talk by its own means.
by_nccl = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(
    scope="module",
    params=[(2,), (4,), *(pytest.param((n, "apart"), marks=by_nccl) for n in (2, 4))],
)
def together(request, folder) -> dict[str, Any]:
    count, *apart = request.param
    name = "-".join(["of", str(count), *apart])
    works(torchrun(count, TESTS / "ranks.py", folder, name, *apart))
    ended = torch.load(folder / f"{name}.pt")
    assert ended["met"] == f"{count} ranks, which meet by {'nccl' if apart else 'gloo'}"
    return ended


@pytest.mark.parametrize("case", ranks.CASES)
def test_ranks_agree_with_one(case, alone, together):
    """Losses of every step, the gradient of the second, weights, what is remembered of each image,
    and the thresholds."""
    one, many = alone[case], together[case]
    torch.testing.assert_close(many["losses"], one["losses"], rtol=1e-6, atol=1e-6)
    gradient, pictures = one["gradient"], ranks.CASES[case][0] == "pictures"
    # Single precision adds up in another order, most of all in the batch norms of a network.
    allowed = (3e-6 if pictures else 1e-6) * float(gradient.norm())
    assert (many["gradient"] - gradient).norm() <= allowed <= 1e-6
    # Adam divides by small numbers: the last digit of a gradient is more of a weight.
    torch.testing.assert_close(many["weights"], one["weights"], rtol=1e-4, atol=2e-5)
    assert many["rows"].keys() == one["rows"].keys()
    for name, rows in one["rows"].items():
        torch.testing.assert_close(many["rows"][name].float(), rows.float(), rtol=1e-3, atol=5e-3)
    torch.testing.assert_close(many["thresholds"], one["thresholds"], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(many["few"], one["few"], rtol=1e-4, atol=1e-4)
    assert bool(one["audit"]) == (
        "pseudo_labels" in " ".join(one["rows"]) and "sampled" not in case
    )
    for audit, other in zip(one["audit"], many["audit"], strict=True):
        assert audit["hidden_entries"] == other["hidden_entries"] > 0
        for name in ("mAP", "mean_absolute_error", "mean_pseudo_label"):
            assert audit[name] == pytest.approx(other[name], abs=5e-3)


@pytest.mark.parametrize(
    ("case", "criterion"),
    [
        ("partly", "mAP of known labels"),
        ("single", "AUROC of known positives against unknown"),
        ("few aside", "mAP of known labels"),
        ("worse", "mAP of known labels"),
    ],
)
def test_ranks_judge_an_epoch_as_one_does(case, criterion, alone, together):
    """The same epochs are kept, by the same score of images each of which one rank looks at."""
    one, many = alone[case]["judged"], together[case]["judged"]
    assert [line["kept"] for line in many] == [line["kept"] for line in one]
    assert one[-1]["kept"] == (case != "worse")
    for line, other in zip(one, many, strict=True):
        assert line["criterion"] == other["criterion"] == criterion
        assert other["validation_score"] == pytest.approx(line["validation_score"], abs=1e-9)
    thresholds = [ended[case]["thresholds"] for ended in (together, alone)]
    torch.testing.assert_close(*thresholds, rtol=1e-5, atol=1e-5)


# --- crashes -------------------------------------------------------------------------------------

EPOCHS = 6
METHOD = ["--method", "paper", "--hide", "ppl:0.6", "--epochs", EPOCHS, "--batch-size", 16]
METHOD += ["--amp", "off"]  # on a GPU: what is half as precise says little of what was lost


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_npz(tmp_path_factory.mktemp("data") / "data.npz", 600, 60)


def training_of(data: Path, run: Path) -> list[object]:
    return ["-m", "partly", "train", data, "--out", run, *METHOD, "--checkpoint-steps", 5]


def end_of(run: Path) -> dict[str, Any]:
    """The weights, what is remembered of every image, and the lines of all epochs."""
    saved, rows = checkpoint.load(run / runs.CHECKPOINT), ranks.remembered(run)
    lines = [(line["epoch"], line["loss"]) for line in runs.read_lines(run / runs.METRICS)]
    return {"weights": runs.read_weights(run), "rows": rows, "lines": lines, "step": saved["step"]}


def assert_same_end(run: Path, other: Path) -> None:
    """To a millionth: every epoch's loss, the weights, and what is measured. What is remembered of
    each image is kept in half precision, whose last digit may fall to the other side for a few."""
    one, two = end_of(run), end_of(other)
    assert one["step"] == two["step"]
    assert [epoch for epoch, _ in one["lines"]] == [*range(1, EPOCHS + 1)]
    losses = [[loss for _, loss in end["lines"]] for end in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    torch.testing.assert_close(one["weights"], two["weights"], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(one["rows"], two["rows"], rtol=1e-3, atol=1e-3)
    for name, rows in one["rows"].items():
        assert (rows.float() - two["rows"][name].float()).abs().mean() < 1e-6
    measured, before = (checkpoint.read_json(path / runs.EVALUATION) for path in (run, other))
    assert measured["images"] == before["images"]
    assert measured["metrics"]["AP"] == pytest.approx(before["metrics"]["AP"], abs=1e-6)


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    works([sys.executable, *map(str, training_of(data, run))])
    return run


def wait_for(condition: Any, process: subprocess.Popen[str]) -> None:
    began = time.monotonic()
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.02)


def step_of(run: Path) -> int:
    """Of the last checkpoint; 0 before the first."""
    path = run / runs.CHECKPOINT
    return checkpoint.load(path)["step"] if path.exists() else 0


def trained(run: Path, epochs: int) -> bool:
    return len(runs.read_lines(run / runs.METRICS)) >= epochs


def workers(agent: int) -> list[int]:
    """The ranks that an agent of torchrun has started."""
    return [child for child, line in children_of(agent).items() if b"partly" in line]


def kill_all(process: subprocess.Popen[str]) -> None:
    for child in workers(process.pid):
        os.kill(child, signal.SIGKILL)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_started_again(victim, data, undisturbed, tmp_path):
    """At whatever step it dies, and whatever it is writing."""
    run = tmp_path / "run"
    last = end_of(undisturbed)["step"]
    doomed = random.randint(1, last // 2)
    print(f"killed once step {doomed} of {last} is in the checkpoint")
    process = start(torchrun(2, *training_of(data, run), **{"max-restarts": 2}))
    wait_for(lambda: step_of(run) >= doomed, process)
    time.sleep(random.uniform(0, 0.02))
    os.kill(workers(process.pid)[victim], signal.SIGKILL)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert "goes on after step" in said, said  # so it died before it was done, and all began again
    assert said.count(f"epoch {EPOCHS}/{EPOCHS} ") == 1
    assert_same_end(run, undisturbed)


def test_ranks_that_are_started_again_do_not_take_over_another_run(data, undisturbed):
    before = {path: path.read_bytes() for path in undisturbed.iterdir()}
    process = start(torchrun(2, *training_of(data, undisturbed), **{"max-restarts": 1}))
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert len([line for line in told(said) if "already holds a run" in line]) == 2  # each time
    assert {path: path.read_bytes() for path in undisturbed.iterdir()} == before


def only_second(folder: Path, option: list[str]) -> Path:
    """A script that is `partly`, with an option more on the second rank."""
    script = folder / "one.py"
    script.write_text(
        "import os, sys\nfrom partly.cli import main\n"
        f"sys.argv += {option} if os.environ['RANK'] == '1' else []\nmain()\n"
    )
    return script


def test_where_one_rank_is_asked_to_go_on_all_do(data, tmp_path):
    """As where a machine comes in the place of another."""
    run, command = tmp_path / "run", training_of(data, tmp_path / "run")[2:]
    for _ in range(2):  # there is no run yet; then it is done
        works(torchrun(2, only_second(tmp_path, ["--resume"]), *command))
        assert trained(run, EPOCHS)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        (["--lr", "0.3"], "learning_rate: 0.3 on rank 1"),
        (["--epochs", "2"], "epochs: 2 on rank 1"),
        (["--hide", "ppl:0.5"], "hide: 'ppl:0.5' on rank 1"),
        (["--verify", "off"], "'verify': 'off'"),
    ],
)
def test_ranks_with_other_choices_are_refused(option, name, data, tmp_path):
    """As where one machine has another command than the other."""
    command = training_of(data, tmp_path / "run")[2:]
    process = start(torchrun(2, only_second(tmp_path, option), *command))
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert name in said
    assert len([line for line in told(said) if "all ranks have to see the same" in line]) == 1
    assert not (tmp_path / "run" / runs.METRICS).exists()


def test_more_ranks_than_images_in_a_batch(tmp_path):
    data = tmp_path / "photos"
    labels = write_pictures(data, 14)
    manifest = write_manifest(data / "data.csv", labels)
    given = ["--backbone", "small:4", "--image-size", 16, "--batch-size", 2, "--epochs", 1]
    command = ["-m", "partly", "train", manifest, "--hold-out", 0, *given]
    works([sys.executable, *map(str, [*command, "--out", tmp_path / "one"])])
    works(torchrun(3, *command, "--out", tmp_path / "three"))
    one, three = (runs.read_lines(tmp_path / run / runs.METRICS) for run in ("one", "three"))
    assert three[0]["loss"] == pytest.approx(one[0]["loss"], rel=1e-3)


def test_what_is_wrong_is_said_once(tmp_path):
    data = tmp_path / "photos"
    manifest = write_manifest(data / "data.csv", write_pictures(data, 14))
    (data / "0003.png").write_bytes(b"no picture")
    command = ["-m", "partly", "train", manifest, "--out", tmp_path / "run"]
    for more, words in (([], "0003.png"), (["--lr", -1], "learning_rate")):
        process = start(torchrun(2, *command, "--backbone", "small:4", *more))
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode != 0
        lines = told(said)
        assert len(lines) == len(set(lines))
        assert any(words in line for line in lines)
        assert words in said.split("Root Cause")[1]  # by torchrun, below its own traceback


LONG_WORK = """
import os, time
from datetime import timedelta
from partly import distributed

distributed.PATIENCE = timedelta(seconds=2)
distributed.begin("cpu")
print("made", distributed.same(lambda: time.sleep(4) or 7), flush=True)

def work(rows):
    if distributed.rank() == 1:
        os._exit(3)
    return rows

try:
    distributed.in_parts(10, work)
except RuntimeError as error:
    print("noticed", distributed.is_lost(error), flush=True)
"""


def test_ranks_wait_for_one_that_works_and_not_for_one_that_died(tmp_path):
    (tmp_path / "work.py").write_text(LONG_WORK)
    there = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    both = [
        subprocess.Popen(  # not by torchrun, which would end the one that is left
            [sys.executable, tmp_path / "work.py"], stdout=subprocess.PIPE, text=True,
            env=environment() | there | {"RANK": rank, "LOCAL_RANK": rank, "PYTHONPATH": path},
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    said = [process.communicate(timeout=PATIENCE)[0] for process in both]
    assert said[0].split("\n")[:2] == ["made 7", "noticed True"]
    assert said[1].startswith("made 7")
    assert both[1].returncode == 3


def test_batch_norms_of_all_ranks_are_not_compiled():
    """Ranks whose parts differ in size would compile them anew at different times."""
    assert distributed._Shared.forward._torchdynamo_disable


def test_two_ranks_go_on_as_four(data, undisturbed, tmp_path):
    run = tmp_path / "run"
    process = start(torchrun(2, *training_of(data, run)))
    wait_for(lambda: trained(run, 2), process)
    kill_all(process)
    names = checkpoint.load(run / runs.CHECKPOINT)["shards"]
    assert len(names) == 2
    halves = [checkpoint.load(run / name) for name in names]
    values = torch.cat([half["rows"]["pseudo_labels.values"] for half in halves])
    cuts = [len(values) * quarter // 4 for quarter in range(5)]
    for first, stop in itertools.pairwise(cuts):
        _, rows = checkpoint.load_sharded(
            run / runs.CHECKPOINT, torch.device("cpu"), Shard(first, stop)
        )
        assert torch.equal(rows["pseudo_labels.values"], values[first:stop])
    works(torchrun(4, *training_of(data, run), "--resume"))
    assert len(checkpoint.load(run / runs.CHECKPOINT)["shards"]) == 4
    assert len([*run.glob("rows-*.pt")]) == 4  # what is old is gone
    assert_same_end(run, undisturbed)


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        (2, 3, ["--method", "role"]),
        (3, 1, ["--pseudo-labels", "sparse:3"]),
    ],
)
def test_what_is_remembered_goes_to_other_ranks(before, after, more, data, tmp_path):
    """ROLE's estimates with their moments, and what a sparse store has kept."""
    for name in ("whole", "cut"):
        command = [*training_of(data, tmp_path / name), *more]
        if name == "whole":
            works([sys.executable, *map(str, command)])
            continue
        process = start(torchrun(before, *command))
        wait_for(lambda: trained(tmp_path / "cut", 2), process)
        kill_all(process)
        works(torchrun(after, *command, "--resume"))
    assert_same_end(tmp_path / "cut", tmp_path / "whole")


def test_two_ranks_go_on_as_four_with_files(data, undisturbed, tmp_path):
    """Pseudo-labels on disk: the files of two ranks, undone, become those of four."""
    run = tmp_path / "run"
    command = [*training_of(data, run), "--pseudo-labels", "disk"]
    process = start(torchrun(2, *command))
    wait_for(lambda: trained(run, 2), process)
    kill_all(process)
    assert len([*run.glob("*-of-2.rows")]) == 2
    works(torchrun(4, *command, "--resume"))
    assert sorted(path.name for path in run.glob("*-of-*")) == [
        f"pseudo_labels-{rank}-of-4.rows" for rank in range(4)
    ]
    assert_same_end(run, undisturbed)


def test_ranks_are_given_what_each_has_made(alone, together):
    assert alone["gathered"].shape == (23, 3)
    assert torch.equal(together["gathered"], alone["gathered"])


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [(["a", "b", "c"], "nccl"), (["a", "b", "a"], "gloo"), (["a", "b", ""], "gloo")],
)
def test_nccl_is_for_ranks_with_a_gpu_each(gpus, backend):
    """All ranks say the same, whoever comes last: also where each sees one GPU and calls it 0."""
    store = torch.distributed.HashStore()
    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(lambda own: distributed._backend(store, own, 3, gpus[own]), range(3)))
    assert said == [backend] * 3


def test_a_norm_with_an_activation_inside_keeps_it():
    torch.manual_seed(0)
    norm, inputs = BatchNormAct2d(4), torch.randn(6, 4, 3, 3)
    shared = copy.deepcopy(norm)
    distributed.synchronise_batch_norms(torch.nn.Sequential(shared))
    with mock.patch.object(distributed._Sum, "apply", side_effect=lambda values: values):
        found, expected = shared(inputs), norm(inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (found >= 0).all()
    torch.testing.assert_close(shared.running_var, norm.running_var)


def test_what_a_model_draws_differs_between_ranks_and_comes_again():
    def drawn(rank, step):
        with mock.patch.multiple(distributed, world=lambda: 2, rank=lambda: rank):
            distributed.draw_apart(0, step)
        return torch.rand(1).item()

    with torch.random.fork_rng():
        assert len({drawn(rank, step) for rank in (0, 1) for step in (1, 2)}) == 4
        assert drawn(1, 2) == drawn(1, 2)


def test_a_checkpoint_names_what_all_ranks_have_written(tmp_path):
    done = []
    with (
        mock.patch.multiple(distributed, world=lambda: 2, rank=lambda: 0, is_first=lambda: True),
        mock.patch.object(distributed, "wait", side_effect=lambda: done.append("wait")),
        mock.patch.object(checkpoint, "save", side_effect=lambda path, _: done.append(path.name)),
    ):
        own = {"values": torch.zeros(4)}
        checkpoint.save_sharded(tmp_path / "checkpoint.pt", {"step": 5}, own, Shard(0, 4))
    assert done == ["rows-5-0-of-2.pt", "wait", "checkpoint.pt", "wait"]


def test_rows_of_another_number_of_ranks_are_not_overwritten(tmp_path):
    """A run of two ranks goes on with four, and is killed between its files at the same step."""
    path, rows = tmp_path / "checkpoint.pt", torch.arange(8.0)

    def save(rank, world, stops=False):
        shard = Shard(8 * rank // world, 8 * (rank + 1) // world)
        own = {"values": rows[shard.first : shard.stop]}
        waits = [None, KeyboardInterrupt if stops else None, None]
        with (
            mock.patch.multiple(distributed, world=lambda: world, rank=lambda: rank),
            mock.patch.object(distributed, "is_first", return_value=rank == 0),
            mock.patch.object(distributed, "wait", side_effect=waits[1:] if stops else waits),
        ):
            checkpoint.save_sharded(path, {"step": 5}, own, shard)

    for rank in (1, 0):
        save(rank, 2)
    for rank in (1, 2, 3, 0):
        with pytest.raises(KeyboardInterrupt):
            save(rank, 4, stops=True)
    _, found = checkpoint.load_sharded(path, torch.device("cpu"), Shard(0, 8))
    assert torch.equal(found["values"], rows)
    save(0, 1)  # one rank alone has all of it in one file
    _, found = checkpoint.load_sharded(path, torch.device("cpu"), Shard(0, 8))
    assert torch.equal(found["values"], rows)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
