"""Work that a GPU does again and again, recorded once and replayed (CUDA graphs).

What enters: a function that launches work on a GPU, and its tensors. What leaves: the tensor it
returns. A step of many small kernels takes Python longer to tell than the GPU to do; a recording is
told in one word. What is recorded must be the same each time but for what its tensors hold: it asks
the GPU nothing, and keeps what it changes where it is.
"""

import threading
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from partly.errors import PartlyWarning

BEFORE = 2  # times that a shape is seen to, before it is recorded: what is made once is made then
MOST = 16  # shapes that are recorded


class Recorder:
    """Replays work whose key has come before, with tensors of the same shapes."""

    def __init__(self) -> None:
        self.seen: Counter[Any] = Counter()
        self.recorded: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]] = {}
        self.replayed = 0
        self.failed = False
        self.pool: Any = None

    def __call__(self, work: Callable[..., Tensor], *given: Tensor, key: Any = None) -> Tensor:
        """work(*given). What it returns is overwritten by the next call.

        key: whatever the work depends on beside the tensors.
        """
        shapes = (key, *((tensor.shape, tensor.dtype) for tensor in given))
        if shapes not in self.recorded:
            self.seen[shapes] += 1
            full = len(self.recorded) == MOST
            if self.failed or full or self.seen[shapes] <= BEFORE:
                return work(*given)
            reason = None
            try:
                self.recorded[shapes] = self._record(work, given)
            except RuntimeError as error:
                reason = (str(error) or repr(error)).splitlines()[0]
                self._give_up(isinstance(error, torch.cuda.OutOfMemoryError))
            if reason is not None:  # and what the failed one held is given back
                told = f"a step cannot be recorded, and goes on as ever: {reason}"
                warnings.warn(told, PartlyWarning, stacklevel=2)
                return work(*given)
        graph, places, answer = self.recorded[shapes]
        for place, tensor in zip(places, given, strict=True):
            place.copy_(tensor)
        graph.replay()
        self.replayed += 1
        return answer

    def _give_up(self, short: bool) -> None:
        """Nothing is recorded any more, whatever its shape: what one failure leaves behind is
        enough. Where memory was short, recordings give theirs back."""
        self.failed = True
        if short:
            self.recorded.clear()
            self.pool = None

    def _record(
        self, work: Callable[..., Tensor], given: tuple[Tensor, ...]
    ) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]:
        """Nothing is done yet: only its replay does it. Recordings share their memory."""
        places = [tensor.clone() for tensor in given]
        graph, device = torch.cuda.CUDAGraph(), places[0].device
        # Other threads may go on with what they do.
        how: dict[str, Any] = {"pool": self.pool, "capture_error_mode": "thread_local"}
        # Around it, the stream that is current: some versions of torch stay in the recording's
        # where that fails.
        current = torch.cuda.stream(torch.cuda.current_stream(device))
        with current, torch.cuda.graph(graph, stream=_aside(device, threading.get_ident()), **how):
            answer = work(*places)
        self.pool = graph.pool()
        return graph, places, answer


@cache
def _aside(device: torch.device, thread: int) -> torch.cuda.Stream:
    """Where this thread records, always: memory is shared within a stream, and matrix products keep
    some tens of MB of each that they have seen, for good."""
    return torch.cuda.Stream(device)
