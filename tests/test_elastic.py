"""Two machines, played by two agents of torchrun here: one is lost with all its ranks.

They meet by TCP on the addresses 127.0.0.1 and 127.0.0.2 of this machine, and ranks are found in
/proc: where a system has neither, as macOS, there is nothing to test.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from builders import partly_here, write_npz
from partly import checkpoint, distributed, runs
from test_distributed import (
    EPOCHS,
    PATIENCE,
    assert_same_end,
    end_of,
    free_port,
    start,
    torchrun,
    trained,
    training_of,
    wait_for,
    workers,
    works,
)

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
on_linux = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")
# A machine that has not been heard of for 5 s is dead; those that are left wait 5 s for others.
CONF = "keep_alive_interval=1,keep_alive_max_attempt=5,last_call_timeout=5"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    # 61 images to test with, of which no number of ranks is a divisor
    return write_npz(tmp_path_factory.mktemp("data") / "data.npz", 600, 61)


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    works([sys.executable, *map(str, training_of(data, run))])
    return run


def kill(agent: subprocess.Popen[str]) -> None:
    """Of a machine that loses its power nothing is left."""
    if agent.poll() is None:
        for process in (agent.pid, *workers(agent.pid)):
            os.kill(process, signal.SIGKILL)
        agent.communicate()


@pytest.fixture
def machine(monkeypatch):
    """Starts an agent of torchrun; the first hosts what they meet by. None outlives the test."""
    agents: list[subprocess.Popen[str]] = []
    endpoint = f"127.0.0.1:{free_port()}"

    def begin(number: int, nodes: str, ranks: int, *command: object) -> subprocess.Popen[str]:
        options = {
            "nnodes": nodes,
            "nproc-per-node": ranks,
            "rdzv-backend": "c10d",
            "rdzv-endpoint": endpoint,
            "rdzv-id": "test",
            "rdzv-conf": f"{CONF},is_host={number == 1}",
            "local-addr": f"127.0.0.{number}",
            "max-restarts": 3,
        }
        flags = [f"--{name}={value}" for name, value in options.items()]
        monkeypatch.setenv("NCCL_HOSTID", str(number))
        agents.append(
            start([sys.executable, "-m", "torch.distributed.run", *flags, *map(str, command)])
        )
        return agents[-1]

    yield begin
    for agent in agents:
        kill(agent)


def checkpoint_of(run: Path) -> tuple[int, int]:
    """The step of the last checkpoint, and how many ranks have written it."""
    path = run / runs.CHECKPOINT
    if not path.exists():
        return 0, 0
    saved = checkpoint.load(path)
    return saved["step"], len(saved["shards"]) if saved["shards"] else 1


def amid(run: Path, steps: int, ranks: int) -> bool:
    """Whether the first epoch is over, and so many ranks are amid the next."""
    if not trained(run, 1):
        return False
    step, shards = checkpoint_of(run)
    return step > steps // EPOCHS and shards == ranks


def finished(agent: subprocess.Popen[str]) -> str:
    said, _ = agent.communicate(timeout=PATIENCE)
    assert agent.returncode == 0, said
    return said


def assert_went_on(said: str, ranks: int) -> None:
    """The first machine, with so many ranks, has told the first epoch once: it has not begun anew.

    Where there is a GPU, a rank a machine has it, as NCCL sees it.
    """
    backend = "nccl" if ranks == 1 and torch.cuda.is_available() else "gloo"
    assert f"{2 * ranks} ranks, which meet by {backend}" in said
    assert "another rank is gone" in said
    assert said.count(f"epoch 1/{EPOCHS} ") == 1
    assert said.count(f"epoch {EPOCHS}/{EPOCHS} ") == 1


@on_linux
@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=on_gpu)])
def test_a_lost_machine_leaves_the_other_to_go_on(ranks, data, undisturbed, machine, tmp_path):
    run = tmp_path / "run"
    job = ["1:2", ranks, *training_of(data, run)]
    first, second = machine(1, *job), machine(2, *job)
    steps = end_of(undisturbed)["step"]
    wait_for(lambda: amid(run, steps, 2 * ranks), first)
    kill(second)
    reached, shards = checkpoint_of(run)
    assert (reached < steps, shards) == (True, 2 * ranks)
    assert_went_on(finished(first), ranks)
    assert checkpoint_of(run) == (steps, ranks)
    assert_same_end(run, undisturbed)


@on_linux
def test_a_machine_that_comes_back_is_waited_for(data, undisturbed, machine, tmp_path, monkeypatch):
    """torchrun has started its rank for the first time, and the other's for the second."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    run = tmp_path / "run"
    job = ["2", 1, *training_of(data, run)]
    first, second = machine(1, *job), machine(2, *job)
    steps = end_of(undisturbed)["step"]
    wait_for(lambda: amid(run, steps, ranks=2), first)
    kill(second)
    assert checkpoint_of(run) < (steps, 0)
    again = machine(2, *job)
    assert_went_on(finished(first), ranks=1)
    finished(again)
    assert checkpoint_of(run) == (steps, 2)
    assert_same_end(run, undisturbed)


# --- the end of a rank ---------------------------------------------------------------------------

PARTING = """
import sys, time, torch, torch.distributed as dist
from partly import distributed

distributed.begin("cpu")
print("all said", end="")
if sys.argv[1] == "fine":
    distributed.leave(0)
elif distributed.rank() == 1:
    dist.all_reduce(torch.ones(1), async_op=True)  # which the other never answers
    distributed.leave(7)
time.sleep(600)  # torchrun ends it before
"""


@pytest.mark.parametrize("end", ["fine", "failed"])
def test_a_rank_that_failed_does_not_wait_for_the_others(end, tmp_path):
    script = tmp_path / "parting.py"
    script.write_text(PARTING)
    process = start(torchrun(2, script, end))
    said, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode == 0) == (end == "fine"), said
    assert "all said" in said
    assert ("(exitcode: 7)" in said) == (end == "failed"), said


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--version"], 0), (["evaluate", "nowhere", "nothing"], 2)]
)
def test_a_command_parts_from_the_other_ranks(arguments, code, monkeypatch):
    parted = []
    monkeypatch.setattr(distributed, "leave", parted.append)
    assert partly_here(*arguments).code == code
    assert not parted
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert partly_here(*arguments).code == code
    assert parted == [code]
