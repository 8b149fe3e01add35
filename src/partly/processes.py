"""Work in other processes, which end with the one that started them, and in this one.

What enters: a function and its items. What leaves: its results, in order, a few ahead of whoever
takes them. A process that is killed is a sentence, not a traceback.
"""

import ctypes
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import cache
from typing import TypeVar

from partly.errors import RunError

Item = TypeVar("Item")
Result = TypeVar("Result")

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
    begin: Callable[[], None] | None = None,
) -> Generator[Result, None, None]:
    """`work` on each item in forked processes; with fewer than two workers, here.

    begin: called first in each process.
    """
    if workers < 2:
        yield from map(work, items)
        return
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(begin,))
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise RunError(
            f"one of {workers} processes was killed, perhaps for want of memory: use fewer"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(begin: Callable[[], None] | None) -> None:
    if begin is not None:
        begin()
    follow_parent()


def follow_parent() -> None:
    """No life after the parent's, however that ends; Ctrl-C is the parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


@cache
def keep_memory() -> None:
    """Let the C library keep the large blocks that are freed, for the next step needs them again.

    By default it returns them to the system, which fills them with zeros each time: a network on
    two cores spends a third of its time on that. Where there is no glibc nothing changes.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for parameter in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            library.mallopt(parameter, 2**30)
