"""Who is looking at which image just now, so that two people are not asked the same thing.

What enters: what each open page says it shows, every second or so. What leaves: the rows that other
pages show. It is a courtesy, kept in memory and soon forgotten: no answer depends on it.
"""

import threading
import time
from collections.abc import Callable

FORGOTTEN = 6.0  # seconds after which a page that says nothing more is gone

# (a page's own name, the row it shows) -> rows that others show
Looking = Callable[[str, int | None], list[int]]


def looking(clock: Callable[[], float] = time.monotonic) -> Looking:
    """A function that remembers what pages show."""
    shown: dict[str, tuple[int, float]] = {}
    lock = threading.Lock()

    def look(tab: str, row: int | None) -> list[int]:
        with lock:
            now = clock()
            for name in [name for name, (_, when) in shown.items() if now - when > FORGOTTEN]:
                del shown[name]
            if row is not None:
                shown[tab] = row, now
            return sorted({other for name, (other, _) in shown.items() if name != tab})

    return look
