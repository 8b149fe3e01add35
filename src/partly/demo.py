"""The demonstration: draw pictures, hide most labels, train, compare, report.

What enters: a folder and a setting. What leaves: the pictures, a table of results and a report, in
a few minutes on two cores. Whatever comes out is shown.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from partly import checkpoint, experiments, runs
from partly.comparison_report import comparison_report
from partly.config import Config
from partly.drawing import draw_dataset
from partly.hiding import Setting
from partly.pages import data_address
from partly.readers import read

SETTING = "ppl:0.4"  # of the positives 40 % stay known, of the negatives none
METHODS = ("bce", "partly", "an", "ll-r")
CONFIG = Config(
    backbone="small", image_size=48, epochs=10, batch_size=32, learning_rate=5e-3, warmup=0.2
)
TRAIN, TEST, SIZE = 4000, 1500, 48
PICTURES = 24  # shown in the report


def run_demo(
    out: str | Path,
    *,
    setting: str = SETTING,
    seed: int = 0,
    command: str = "",
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Draw, hide, train, compare, report; returns the results."""
    out, setting = Path(out), str(Setting.parse(setting))
    checkpoint.make_folder(out)
    say(f"drawing {TRAIN + TEST:,} pictures into {out / 'data'}")
    manifest = draw_dataset(out / "data", train=TRAIN, test=TEST, size=SIZE, seed=seed)
    results = experiments.compare(
        manifest,
        out / f"{setting.replace(':', '-')}-seed-{seed}",
        methods=METHODS,
        settings=[setting],
        seeds=[seed],
        config=CONFIG,
        command=command,
        say=say,
    )
    results["title"] = "Partly on pictures drawn by code"
    table = read(manifest)
    assert table.paths is not None
    results["pictures"] = [data_address(Image.open(path)) for path in table.paths[:PICTURES]]
    checkpoint.write_json(out / experiments.RESULTS, results)  # for `partly report`
    report = comparison_report(results, out / runs.REPORT)
    say(f"\ntest mAP; bce alone has seen every label, the others only what {setting} leaves:\n")
    say(experiments.to_markdown(results))
    say(f"report: {report}")
    return results
