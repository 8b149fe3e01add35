"""How much memory a process has, as the system counts it."""

import ctypes
import gc
import re
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(what: str) -> int:
    """Resident bytes of this process: now (VmRSS) or at their peak (VmHWM).

    Not `ru_maxrss`: a process starts with that of the one that started it.
    """
    return 1024 * int(re.findall(rf"^{what}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)[0])


def forget_peak() -> int:
    """From now on a new peak counts. What there is now, when all that is free is given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    RESET.write_text("5")
    return resident("VmRSS")
