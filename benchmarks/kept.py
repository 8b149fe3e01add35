"""What a benchmark found -> its file in benchmarks/results.

What enters: a file, a name (the machine, the sizes) and what was found. What leaves: the file, with
this entry in the place of one of the same name and all others as they were.
"""

import json
import sys
from pathlib import Path
from typing import Any


def command() -> str:
    """How this benchmark was started."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def keep(results: Path, name: str, found: dict[str, Any]) -> None:
    every = json.loads(results.read_text()) if results.is_file() else {}
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(every | {name: found}, indent=2) + "\n")
    print(f"written to {results}")
