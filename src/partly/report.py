"""The page of a run.

What enters: a run's folder (`runs.py`), from which whatever it holds by now is shown. What leaves:
its `report.html`. The same files give the same bytes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partly import checkpoint, run_plots, runs
from partly.comparison_report import comparison_report
from partly.decisions import Goal
from partly.errors import RunError
from partly.experiments import RESULTS
from partly.pages import options, render

Record = Mapping[str, Any]

# What a run's page shows in a section of its own, not among the options.
TRAINED_ON = ("data", "setting", "images", "features", "labels", "label_counts", "label_hash")
OF_A_RUN = ("method", "images", "features", "labels", "label_hash", "epochs", "versions")
OF_A_COMPARISON = (
    *("title", "data", "label_hash", "labels", "methods", "settings", "seeds", "runs"),
    *("config", "versions", "machine"),
)
MOST_ROWS = 1000  # of a table of labels: those with the most known positives
AUDITED = 10  # labels at each end of the audit


def report(folder: str | Path) -> Path:
    """Write the page of a run or of a comparison again, from what its folder holds."""
    folder = Path(folder)
    if (folder / runs.CONFIG).is_file():
        return run_report(folder)
    if (folder / RESULTS).is_file():
        results = _read(folder / RESULTS, "comparison", OF_A_COMPARISON)
        return comparison_report(results, folder / runs.REPORT)
    if (folder / "arena.md").is_file():
        raise RunError(f"{folder} is an arena: its tables are {folder / 'arena.md'}")
    raise RunError(
        f"{folder} is neither a run nor a comparison: it has no {runs.CONFIG} and no {RESULTS}"
    )


def run_report(folder: Path) -> Path:
    """Write `report.html` into a run's folder, from whatever the folder holds by now."""
    folder = Path(folder)
    if not (folder / runs.CONFIG).is_file():
        raise RunError(f"{folder} is not a run: it has no {runs.CONFIG}")
    config = _read(folder / runs.CONFIG, "run", OF_A_RUN)
    evaluation = _read_if_there(folder / runs.EVALUATION)
    result = evaluation.get("metrics", {})
    diagnosis = _read_if_there(folder / runs.DIAGNOSIS)
    fitted = _read_if_there(folder / runs.DECISIONS)
    history = runs.read_lines(folder / runs.METRICS)
    audit = [line for line in runs.read_lines(folder / runs.AUDIT) if line["hidden_entries"]]
    kept = _kept_epoch(history)
    page = render(
        "run.html",
        title=folder.resolve().name,
        config=config,
        result=result,
        images=evaluation.get("images"),
        diagnosis=diagnosis,
        precision_recall=run_plots.precision_recall_plots(diagnosis, config["labels"]),
        calibration=run_plots.calibration_plots(diagnosis),
        fitted=fitted,
        goal=_goal_in_words(fitted["goal"]) if fitted else None,
        refitted=_refitted(fitted, diagnosis, config["labels"]),
        decisions=_rows(config, diagnosis.get("decisions") or _expected(fitted, config["labels"])),
        done=len(history),
        kept=kept,
        curves=run_plots.learning_curves(history, kept),
        label_plot=run_plots.label_plot(config.get("label_counts"), result),
        label_rows=_label_rows(config, result),
        audit=audit[-1] if audit else None,
        audit_curves=run_plots.audit_curves(audit),
        audit_rows=_audit_rows(audit[-1], config["labels"]) if audit else {},
        options=options(config, without=(*TRAINED_ON, "versions")),
        versions=options(config["versions"]),
    )
    checkpoint.write_text(folder / runs.REPORT, page)
    return folder / runs.REPORT


def _read(path: Path, what: str, needed: Sequence[str]) -> dict[str, Any]:
    content = checkpoint.read_json(path)
    missing = [key for key in needed if not isinstance(content, dict) or key not in content]
    if missing:
        raise RunError(f"{path} holds no {what}: it has no {', '.join(missing)}")
    return content


def _read_if_there(path: Path) -> dict[str, Any]:
    return checkpoint.read_json(path) if path.is_file() else {}


def _kept_epoch(history: Sequence[Record]) -> Record | None:
    """The record of the epoch that was kept; without a score to choose by it has no criterion."""
    kept = [line for line in history if line.get("kept")]
    if kept:
        return kept[-1]
    return {**history[-1], "criterion": None} if history else None


def _goal_in_words(text: str) -> str:
    """What thresholds were fitted for."""
    goal = Goal.parse(text)
    if goal.kind == "cost":
        costs = f"{goal.false_positive:g} for a false positive, {goal.false_negative:g} for a miss"
        return f"the lowest cost ({costs})"
    if goal.kind == "f1":
        return "the best F1"
    return f"a {goal.kind} of {100 * goal.floor:g} % or more"


def _refitted(fitted: Record, diagnosis: Record, names: Sequence[str]) -> bool:
    """Whether thresholds are others by now than those the test part was measured with."""
    if not fitted or not diagnosis:
        return False
    return bool(_column(fitted, "threshold", names) != diagnosis["decisions"]["threshold"])


def _expected(fitted: Record, names: Sequence[str]) -> dict[str, list[Any]]:
    """What the thresholds promise, where no test part says what they keep."""
    shown = ("threshold", "precision", "recall", "known_positives") if fitted else ()
    return {key: _column(fitted, key, names) for key in shown}


def _column(fitted: Record, key: str, names: Sequence[str]) -> list[Any]:
    return [fitted["labels"].get(name, {}).get(key) for name in names]


def _label_rows(config: Record, result: Record) -> list[dict[str, Any]]:
    """What is known of each label."""
    columns = {"AP": result["AP"]} if "AP" in result else {}
    return _rows(config, columns | config.get("label_counts", {}))


def _rows(config: Record, columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """One row a label, of columns with a number each; no rows if there are no columns."""
    names: list[str] = config["labels"]
    shown = list(range(len(names)))
    if not columns:
        return []
    if len(shown) > MOST_ROWS:  # a page of a million rows opens nowhere
        positive = config.get("label_counts", columns).get("positive", shown)
        shown = sorted(shown, key=lambda place: -positive[place])[:MOST_ROWS]
    return [
        {"name": names[place]} | {key: column[place] for key, column in columns.items()}
        for place in shown
    ]


def _audit_rows(audit: Record, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """{heading: rows}: the labels whose pseudo-labels rank best and worst; all, if they are few."""
    columns = audit.get("by_label", {})
    rows = [
        {"name": name, **dict(zip(columns, values, strict=True))}
        for name, *values in zip(names, *columns.values(), strict=True)
        if columns
    ]
    scored = [row for row in rows if row["average_precision"] is not None]
    scored.sort(key=lambda row: -row["average_precision"])
    if len(scored) <= 2 * AUDITED:
        return {"Every label that can be scored": scored} if scored else {}
    return {
        f"The {AUDITED} best": scored[:AUDITED],
        f"The {AUDITED} worst of {len(scored):,}": scored[-AUDITED:],
    }
