"""Work in other processes, which end with the one that started them, and in this one.

What enters: a function and its items. What leaves: its results, in order, a few ahead of whoever
takes them, or as they come. A process that is killed is a sentence, not a traceback.
"""

import ctypes
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import cache
from typing import TypeVar

from partly.errors import PartlyError, RunError

Item = TypeVar("Item")
Result = TypeVar("Result")

TERMINATED = 128 + signal.SIGTERM  # the exit code that a shell gives to SIGTERM
AT_ONCE = 1.0  # seconds within which several SIGTERM are one, sent by several ways
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
) -> Generator[Result, None, None]:
    """`work` on each item in forked processes; with fewer than two workers, here."""
    if workers < 2:
        yield from map(work, items)
        return
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, context, initializer=follow_parent)
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


def as_they_come(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
    begin: Callable[[], None] | None = None,
) -> Generator[tuple[Item, Result], None, None]:
    """(item, what `work` makes of it) in the order in which they are done, in processes that import
    everything anew, for a forked one must not inherit torch's threads.

    However this ends, by an error, Ctrl-C, SIGTERM or a caller who closes it, they end at once.
    """
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(begin,))
    with pool, _sigterm_unwinds():
        try:
            with _signals_wait():
                futures = {pool.submit(work, item): item for item in items}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise PartlyError(
                "a training process died: too little memory, or a script that compares without "
                "`if __name__ == '__main__':` (each process imports it again); try jobs=1"
            ) from None
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()  # leaving the pool would wait for what they are at
            raise


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Ctrl-C and SIGTERM are answered after this: between a process's start and its place in a list
    they would leave it behind. Processes started in here do not hear Ctrl-C, while they import too.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {n: signal.signal(n, lambda number, frame: came.append(number)) for n in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """In here SIGTERM is an exception, as Ctrl-C is, unless whoever calls answers it already."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit_as_terminated)
    try:
        yield
    finally:
        _obey_sigterm()


@contextmanager
def sigterm_noted() -> Iterator[Callable[[], bool]]:
    """In here SIGTERM, unless it comes again later, is left to whoever asks whether it came: a
    process that has something to save first. One of several is to end at once, and does."""
    came: list[float] = []
    answered = False
    here = (
        threading.current_thread() is threading.main_thread()
        and not multiprocessing.parent_process()
    )
    if not here or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield lambda: False
        return

    def note(number: int, frame: object) -> None:
        came.append(time.monotonic())
        if came[-1] - came[0] > AT_ONCE:
            _obey_sigterm()
            signal.raise_signal(signal.SIGTERM)

    def has_come() -> bool:
        nonlocal answered
        answered = bool(came)
        return answered

    signal.signal(signal.SIGTERM, note)
    try:
        yield has_come
    finally:
        _obey_sigterm()
        if came and not answered:  # nobody has asked since
            signal.raise_signal(signal.SIGTERM)


def _obey_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def obey_parent_only() -> None:
    """SIGTERM ends this process only where its parent says so. Where a whole group of processes is
    asked to end, the parent may want a little more of this one, to end in good order; and without a
    parent it ends anyway. (Not on a Mac, where nobody learns who has sent a signal.)"""
    if not hasattr(signal, "sigwaitinfo"):
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_by_parent, daemon=True).start()


def _end_by_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def _exit_as_terminated(number: int, frame: object) -> None:
    raise SystemExit(TERMINATED)


def _begin(begin: Callable[[], None] | None) -> None:
    if begin is not None:
        begin()
    follow_parent()


def follow_parent() -> None:
    """No life after the parent's, however that ends; Ctrl-C is the parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _obey_sigterm()  # whatever the parent, of which this is a copy, makes of it
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
