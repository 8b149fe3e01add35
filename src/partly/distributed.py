"""Ranks: one training in several processes, on one machine or on many.

What enters: what `torchrun` puts into the environment. What leaves: which part of a batch is this
rank's, the logits of the whole batch from those of its parts, sums over ranks, and the shard of
N rows that this rank keeps.

    torchrun --nproc-per-node 8 -m partly train DATA --out RUN

A step sees the same batch on 1 rank and on N. Each rank computes the logits of its own images;
they are gathered, and every rank takes the loss of the whole batch: whatever a loss counts, sorts
or divides by is that of the batch. Without torchrun there is one rank, and nothing here costs
anything. Letters: W ranks, B images of a batch, L labels.
"""

import hashlib
import inspect
import math
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from partly import draws
from partly.errors import PartlyError, RunError, ToldElsewhere

Result = TypeVar("Result")
BLOCK = 1 << 24  # numbers that are sent at the same time, where not all are kept by all
PATIENCE = timedelta(minutes=30)  # until a rank that does not answer is taken for dead
REFUSED = "partly was refused"
LONG = timedelta(days=1)  # the same where one works and the others wait for it

_board: dist.Store | None = None  # where ranks that have met leave each other notes
_jobs: dist.Store | None = None  # the same for a whole job, of which ranks may be started again
_patient: Any = None  # all ranks, who may wait LONG for each other


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


def world() -> int:
    """How many ranks there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """The number of this one, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_first() -> bool:
    """Whether this rank speaks and writes for all; known before they have met."""
    if dist.is_initialized():
        return dist.get_rank() == 0
    return _number("RANK", 0) == 0 or not launched()


def launched() -> bool:
    """Whether torchrun has started several ranks."""
    return _number("WORLD_SIZE", 1) > 1


def goes_on(asked: bool) -> bool:
    """Whether any rank was asked to go on with what is there, or torchrun has started ranks again
    because some died; every rank is told the same.

    Those of a machine that has just come, in the place of a dead one, are there for the first time.
    Where the first ranks were refused there is nothing to go on with.
    """
    refused = _jobs is not None and _jobs.check([REFUSED])
    restarted = _number("TORCHELASTIC_RESTART_COUNT", 0) > 0 and not refused
    again: list[Any] = [asked or restarted]
    if world() > 1:
        own, again = again[0], [None] * world()
        dist.all_gather_object(again, own)
    return any(again)


def refuse() -> None:
    """Nothing has begun, and an error follows: ranks that are started again are to have it too."""
    if _jobs is not None:
        _jobs.set(REFUSED, "yes")


def has_the_word(problem: str) -> bool:
    """Whether this rank is the first that says it: one sentence is enough. Before ranks have met,
    the first of each machine speaks."""
    if _board is None:
        return _number("LOCAL_RANK", 0) == 0 or not launched()
    # Python's own hash is another one on each rank.
    name = hashlib.sha256(problem.encode()).hexdigest()
    try:
        return _board.add(f"said {name}", 1) == 1
    except RuntimeError:  # who kept the board has said it and is gone
        return False


def device_name(name: str) -> str:
    """The device of this rank: each has a GPU of its own where there are GPUs."""
    if launched() and torch.cuda.is_available() and name in ("auto", "cuda"):
        return f"cuda:{_number('LOCAL_RANK', 0) % torch.cuda.device_count()}"
    return name


def begin(device: str) -> None:
    """Meet the other ranks, where there are others. It does nothing the second time.

    NCCL is for ranks with a GPU each; those that share one meet by gloo, which is slow.
    """
    global _board, _jobs, _patient
    if not launched() or dist.is_initialized():
        return
    name = device_name(str(device))
    if name.startswith("cuda"):
        torch.cuda.set_device(name)
    try:
        _jobs, own, count = next(iter(dist.rendezvous("env://", timeout=PATIENCE)))
        # Ranks that are started again find what the dead ones left: they must not call those.
        store = _board = dist.PrefixStore(_name_of_meeting(_jobs, own, count), _jobs)
        backend = _backend(store, own, count, _gpu(name))
        dist.init_process_group(backend, store=store, rank=own, world_size=count, timeout=PATIENCE)
        _patient = dist.new_group(backend="gloo", timeout=LONG)
    except (RuntimeError, ValueError) as error:
        raise RunError(f"the ranks did not meet: {str(error).splitlines()[0]}") from None


def _gpu(name: str) -> str:
    """What tells this rank's GPU from all others, of other machines too; nothing on a CPU.

    NCCL's own name of the machine is part of it, where somebody has given it one: for NCCL a GPU is
    another one there.
    """
    if not name.startswith("cuda"):
        return ""
    index = torch.cuda.current_device()
    seen = f"{socket.gethostname()} {os.environ.get('CUDA_VISIBLE_DEVICES')} {index}"
    own = getattr(torch.cuda.get_device_properties(index), "uuid", seen)
    return f"{os.environ.get('NCCL_HOSTID', '')} {own}"


def _backend(store: dist.Store, own: int, count: int, gpu: str) -> str:
    """NCCL, where every rank has a GPU of its own. The first looks, and says it to all."""
    store.set(f"gpu-{own}", gpu)
    if own == 0:
        gpus = {store.get(f"gpu-{other}").decode() for other in range(count)}
        store.set("backend", "nccl" if len(gpus) == count and "" not in gpus else "gloo")
    return str(store.get("backend").decode())


def _name_of_meeting(store: dist.Store, own: int, count: int) -> str:
    """A name that the ranks which are alive agree on, and that no dead one has known.

    torchrun gives them none: how often ranks were started differs between machines of which one
    came later. Each other rank asks with a name of its own, which nobody has used before; the first
    answers whatever is asked, the questions of the dead too, until as many have thanked.
    """
    name = uuid.uuid4().hex
    if own > 0:
        store.set(f"question-{own}", name)
        name = store.get(f"answer-{name}").decode()  # waits for it
        store.add(f"thanks-{name}", 1)
        return name
    began = time.monotonic()
    while store.add(f"thanks-{name}", 0) < count - 1:
        if time.monotonic() - began > PATIENCE.total_seconds():
            raise RuntimeError(f"of {count} not all came within {PATIENCE}")
        for other in range(1, count):
            if store.check([f"question-{other}"]):
                store.set(f"answer-{store.get(f'question-{other}').decode()}", name)
        time.sleep(0.01)
    return name


def described() -> str:
    """How many ranks there are, and how they meet."""
    return f"{world()} ranks, which meet by {dist.get_backend()}"


def is_lost(error: BaseException) -> bool:
    """Whether this is how the end of another rank is noticed."""
    return launched() and (isinstance(error, dist.DistError) or "gloo" in str(error).lower())


def end() -> None:
    """Part from the other ranks, all of which come here."""
    if dist.is_initialized():
        dist.destroy_process_group()  # all of them


def leave(code: int) -> None:
    """Part from the other ranks and end this process with an exit code. Alone, it does nothing."""
    if not dist.is_initialized():
        return
    if code == 0:  # one that failed would wait for what it has begun with others, who wait for it
        end()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by the interpreter's own end, at which a thread of gloo may still be there: that aborts,
    # and torchrun takes the whole run for failed.
    os._exit(code)


def _on_gpu() -> bool:
    """Whether what the ranks send each other lies on GPUs."""
    return "nccl" in str(dist.get_backend())


def same(make: Callable[[], Result]) -> Result:
    """What the first rank makes, on every rank; an error of the first is an error of all.

    The others raise `ToldElsewhere`: one sentence is enough.
    """
    if world() == 1:
        return make()
    answer: list[Any] = [None, None]
    if rank() == 0:
        try:
            answer = [make(), None]
        except PartlyError as error:
            answer = [None, error]
    dist.broadcast_object_list(answer, src=0, group=_patient)
    made, problem = answer
    if problem is not None:
        raise problem if rank() == 0 else ToldElsewhere(problem.problems)
    return made


def agree(facts: Mapping[str, Any], place: str) -> None:
    """An error on every rank where they do not have the same facts."""
    if world() == 1:
        return
    every: list[Any] = [None] * world()
    dist.all_gather_object(every, dict(facts))
    problems = []
    for name in facts:
        values = [one[name] for one in every]
        odd = [(number, value) for number, value in enumerate(values) if value != values[0]]
        if odd:
            number, value = odd[0]
            problems.append(f"{name}: {value!r} on rank {number}, {values[0]!r} on rank 0")
    if problems:
        raise RunError(
            [*problems, f"all ranks have to see the same options, data, packages, folder {place}"]
        )


def wait() -> None:
    """Until every rank is here."""
    if world() > 1:
        # Named, or NCCL warns that it has had to guess.
        dist.barrier(device_ids=[torch.cuda.current_device()] if _on_gpu() else None)


# --- a batch -------------------------------------------------------------------------------------


def own_part(rows: np.ndarray) -> np.ndarray:
    """The rows of a batch that this rank looks at: parts of nearly equal size, in order."""
    return rows if world() == 1 else np.array_split(rows, world())[rank()]


def _sizes(count: int) -> list[int]:
    """How many rows of a batch each rank has."""
    return [len(part) for part in np.array_split(np.arange(count), world())]


def whole(part: Tensor, count: int) -> Tensor:
    """The batch [B, ...] of `count` rows, from the part of each rank.

    Its gradient is that of this rank's part: every rank has the same loss of the whole batch, and
    the gradients of the weights are added up.
    """
    return part if world() == 1 else _Whole.apply(part, count)


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, part: Tensor, count: int) -> Tensor:
        sizes = _sizes(count)
        context.begin, context.size = sum(sizes[: rank()]), sizes[rank()]
        padded = part.new_zeros(max(sizes), *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([held[:size] for held, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[context.begin : context.begin + context.size], None


def draw_apart(seed: int, step: int) -> None:
    """Let what the model itself draws in a step, such as dropout, differ between ranks; one that
    goes on after a crash draws the same again."""
    if world() > 1:
        torch.manual_seed(draws.seed_of(seed, draws.RANK, step, rank()))


def own_slice(batch: Tensor) -> Tensor:
    """The reverse of `whole`, for what has no gradient."""
    if world() == 1:
        return batch
    sizes = _sizes(len(batch))
    begin = sum(sizes[: rank()])
    return batch[begin : begin + sizes[rank()]]


def in_parts(count: int, work: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """work(rows) of all rows, each rank doing a part of them; the whole is known to all."""
    mine = _own_work(count, work)
    if world() == 1:
        return mine
    every = np.empty((count, *mine.shape[1:]), mine.dtype)
    _gather(count, mine, every)
    return every


def on_first(count: int, work: Callable[[np.ndarray], np.ndarray]) -> np.ndarray | None:
    """The same, but the whole is known to the first rank alone; the others answer None."""
    mine = _own_work(count, work)
    if world() == 1:
        return mine
    every = np.empty((count, *mine.shape[1:]), mine.dtype) if is_first() else None
    _gather(count, mine, every)
    return every


def _gather(count: int, mine: np.ndarray, every: np.ndarray | None) -> None:
    """Put what each rank has of `count` rows into `every`, where a rank has room for it. It is sent
    block by block: at no time is much of it on a GPU, or held by a rank without that room."""
    sizes = _sizes(count)
    starts = np.cumsum([0, *sizes[:-1]])
    length = max(1, BLOCK // (world() * max(1, math.prod(mine.shape[1:]))))
    length = min(length, max(1, *sizes))
    for begin in range(0, max(sizes), length):
        own = torch.from_numpy(mine[begin : begin + length])
        block = own.new_zeros(length, *own.shape[1:], device=_place())
        block[: len(own)] = own
        parts = [torch.empty_like(block) for _ in sizes]
        dist.all_gather(parts, block)
        if every is None:
            continue
        for start, size, part in zip(starts, sizes, parts, strict=True):
            held = part[: max(0, size - begin)].cpu().numpy()
            every[start + begin : start + begin + len(held)] = held


def _own_work(count: int, work: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """work(rows) of this rank's part of all rows."""
    rows = own_part(np.arange(count))
    if world() == 1:
        return work(rows)
    # Where ranks are more than rows, those without any learn from the first what rows look like.
    found = work(rows) if len(rows) or rank() == 0 else None
    if _patient is not None:
        dist.barrier(group=_patient)
    shape = same(lambda: None if found is None else found[:0])
    if found is not None:
        return found
    assert shape is not None
    return shape


def _place() -> str:
    """Where what the ranks send each other lies."""
    return "cuda" if _on_gpu() else "cpu"


# --- the model -----------------------------------------------------------------------------------


def wrap(model: nn.Module, device: torch.device) -> nn.Module:
    """The model whose gradients are added up over ranks, while others are still computed; its batch
    norms, in place, are taken over the whole batch. With one rank, the model itself."""
    if world() == 1 or not any(weight.requires_grad for weight in model.parameters()):
        return model
    synchronise_batch_norms(model)
    devices = [device] if device.type == "cuda" else None
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    choices: dict[str, Any] = {buffers: False}  # batch norms are the same on all ranks
    wrapped = DistributedDataParallel(
        model, device_ids=devices, gradient_as_bucket_view=True, **choices
    )
    wrapped.register_comm_hook(None, _add_up)
    return wrapped


def _add_up(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """By itself it would take the mean; but each rank's gradient is a part of the whole."""
    sending = dist.all_reduce(bucket.buffer(), async_op=True)
    return sending.get_future().then(lambda done: done.value()[0])


def add_up(values: Tensor) -> Tensor:
    """The sum over ranks, in place."""
    if world() > 1:
        dist.all_reduce(values)
    return values


def before(count: int) -> int:
    """How many rows the ranks before this one have, of which this one has `count`."""
    counts = torch.zeros(world(), dtype=torch.float64)
    counts[rank()] = count
    return int(total(counts)[: rank()].sum())


def total(values: Tensor) -> Tensor:
    """The sum over ranks of a few numbers in main memory."""
    if world() == 1:
        return values
    return add_up(values.to(_place(), copy=True)).cpu()


class _Sum(torch.autograd.Function):
    """The sum over ranks. What it goes into differs between ranks, so its gradients add up too."""

    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        values = values.clone()
        dist.all_reduce(values)
        return values

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


def synchronise_batch_norms(model: nn.Module) -> None:
    """Batch norms take mean and variance over the batch of all ranks, in place.

    Only their class changes; weights and names stay as they are. torch has such a module for GPUs
    alone.
    """
    for module in model.modules():
        kind = type(module)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, _Shared):
            module.__class__ = type(f"Shared{kind.__name__}", (_Shared, kind), {})


class _Shared(nn.modules.batchnorm._BatchNorm):
    """In front of a batch norm's class: in training its statistics are those of all ranks."""

    @torch.compiler.disable  # ranks whose parts differ in size would compile at different times
    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training:
            return super().forward(inputs)
        x, shape = inputs.float(), (1, -1, *[1] * (inputs.ndim - 2))
        dims = [0, *range(2, inputs.ndim)]
        count = x.new_tensor([x.numel() / x.shape[1]])
        total, count = _Sum.apply(x.sum(dims)), _Sum.apply(count)
        mean = total / count
        off = x - mean.view(shape)
        variance = _Sum.apply((off * off).sum(dims)) / count
        if self.track_running_stats and self.running_mean is not None:
            self._remember(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        normal = off * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        normal = normal.to(inputs.dtype)
        for name in ("drop", "act"):  # timm's norms have an activation inside
            if isinstance(getattr(self, name, None), nn.Module):
                normal = getattr(self, name)(normal)
        return normal

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """The running statistics, as a batch norm keeps them."""
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked += 1
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


# --- rows that are kept by one rank each ---------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """Which of N rows this rank keeps: those from `first` to before `stop`."""

    first: int
    stop: int

    @classmethod
    def of(cls, rows: int) -> "Shard":
        """An equal share of them."""
        return cls(rows * rank() // world(), rows * (rank() + 1) // world())

    def __len__(self) -> int:
        return self.stop - self.first

    @property
    def spare(self) -> int:
        """Rows that have to be there for `places`: one for those of other ranks, if there are."""
        return 1 if world() > 1 else 0

    def places(self, rows: Tensor) -> Tensor:
        """Where rows lie in the shard; those of other ranks all in its spare last place."""
        if world() == 1:
            return rows
        return torch.where(self.mine(rows), rows - self.first, len(self))

    def mine(self, rows: Tensor) -> Tensor:
        """Which of the rows this rank keeps."""
        return (rows >= self.first) & (rows < self.stop)

    def complete(self, found: Tensor, rows: Tensor) -> Tensor:
        """What each rank found [B, ...] of the rows, put together from those that keep them."""
        if world() == 1:
            return found
        return _Together.apply(found * self.mine(rows).view(-1, *[1] * (found.ndim - 1)))


class _Together(_Sum):
    """The sum over ranks of what goes into the same loss on each: its gradient is everybody's."""

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient
