"""The arena's page: tables in Markdown.

What enters: arena.json, or the results of one data set. What leaves: a page with a summary, or the
table of that data set; both are pure functions of the JSON.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import mean

from partly import experiments
from partly.experiments import Results, label
from partly.protocol import Table

REFERENCE = "bce"  # full labels: what the others could reach at most, or nearly

EXPLANATION = """\
Every method tried the same number of choices of hyper-parameters (or all there are, where there are
fewer), the defaults among them, so the row of `partly` is a searched one, too: training
knobs, the same values for all, and options of its own. A knob that is not searched has for all
methods the protocol's value, or where that leaves it open what the method picks for itself
(`config` of each in the JSON): so on images `partly` alone averages its weights, and where they
were pretrained learns from that average what the unknown labels may be, at a third more time a
step. The mean number of positives an image is told to those that depend on it, `partly`, `epr`,
`role` and `csl`. On 5,000 feature rows or more `partly` trains a network first, which teaches the
linear layer: that takes ten times as long as a baseline. A choice was trained on the training
images less those set aside, labels hidden at random, and judged by mAP on those set aside at the
last epoch; their labels were all shown, to every method alike. The best choice was trained on the
whole training part with every seed. The test part was used for nothing but the figures below, with
one exception: the best baseline of a setting is the one with the highest test mAP, which favours
it. Intervals of 95 % are from a paired bootstrap over the test images; they do not cover how
trainings differ, which the standard deviations over seeds show. Bold: better, the interval lies
above 0. Italic: worse. Otherwise level. Of many such cells one in twenty is not level by chance.
"""
KINDS = {"best baseline": "the best baseline", "full labels": f"{REFERENCE} on full labels"}


def to_markdown(arena: Results) -> str:
    """The arena as a page: a summary, then one table a data set. A pure function of arena.json."""
    settings = list(dict.fromkeys(s for results in arena["data"] for s in results["settings"]))
    lines = [f"## {arena['title']}", "", EXPLANATION]
    for kind, heading in KINDS.items():
        rows = [(results, found) for results in arena["data"] if (found := _against(results, kind))]
        if not rows:
            continue
        ours = ", ".join(dict.fromkeys(results["ours"] for results, _ in rows))
        told = Counter(cell["verdict"] for _, found in rows for cell in found.values())
        counted = ", ".join(f"{word} in {told[word]}" for word in ("better", "level", "worse"))
        lines += [
            f"### {ours} less {heading}",
            "",
            f"mAP in points, with its interval: {counted} of {told.total()} cells.",
            "",
            _row("data", map(label, settings)),
            "|---|" + "---|" * len(settings),
            *(
                _row(results["name"], (_difference(found.get(s), kind) for s in settings))
                for results, found in rows
            ),
            "",
        ]
    lines += _calibration(arena["data"], settings)
    return "\n".join([*lines, *(data_markdown(results) for results in arena["data"])])


def _calibration(data: Sequence[Results], settings: Sequence[str]) -> list[str]:
    """A table of how far probabilities are from what they say: ours, and the reference's."""

    def error(results: Results, method: str, setting: str) -> str:
        found = [
            run["calibration_error"]
            for run in results["runs"]
            if (run["method"], run["setting"]) == (method, setting) and run["mAP"] is not None
        ]
        return f"{100 * mean(found):.1f}" if found else "–"

    named = {method["name"] for results in data for method in results["methods"]}
    columns = [(None, setting) for setting in settings] + [(REFERENCE, "fal")] * (
        REFERENCE in named
    )
    rows = [
        _row(results["name"], (error(results, m or results["ours"], s) for m, s in columns))
        for results in data
    ]
    heads = [label(s) if m is None else f"{m}, full labels" for m, s in columns]
    other = f", and of {REFERENCE} on full labels, whose choice was searched for too"
    return [
        "### Calibration",
        "",
        "Expected calibration error on the test part in points, mean over seeds: of ours in each "
        f"setting{other * (REFERENCE in named)}. 15 bins of equal width, all entries together.",
        "",
        _row("data", heads),
        "|---|" + "---|" * len(heads),
        *rows,
        "",
    ]


def data_markdown(results: Results) -> str:
    """The table of one data set: methods × settings, and what ours is ahead by."""
    images, config = results["images"], results["config"]
    tried = max(map(len, results["candidates"].values()))
    spent = sum(results["seconds"].values())
    lines = [
        f"### {results['name']}",
        "",
        f"{images['train']:,} training images ({images['set aside']:,} of them set aside for the "
        f"search), {images['test']:,} test images, {results['labels']:,} labels"
        f"{'' if results['full_labels'] else ', not all of them known'}. {config['backbone']}, "
        f"{config['epochs']} epochs, choices a method and setting: {tried}, seeds: "
        f"{len(results['seeds'])}; {spent / 60:.0f} minutes of training ({results['machine']}). "
        "mAP in points, mean ± standard deviation over seeds; the best method of a setting is "
        f"bold, the second underlined.{_shortcuts(results)}",
        "",
        experiments.to_markdown(results).rstrip(),
    ]
    for kind in KINDS:
        found = _against(results, kind)
        if found:
            name = f"{results['ours']} − {kind if kind == 'best baseline' else REFERENCE}"
            lines.append(_row(name, (_difference(found.get(s), kind) for s in results["settings"])))
    return "\n".join([*lines, ""])


def _shortcuts(results: Results) -> str:
    """What was not searched or not trained, in words."""
    text = ""
    if results["folds"] > 1:
        text += (
            f" A choice was judged by the mean over {results['folds']} draws of images set aside."
        )
    borrowed = {s: place for s, place in results["searched_in"].items() if s != place}
    if borrowed:
        taken = (f"{label(s)} takes the choice of {label(place)}" for s, place in borrowed.items())
        text += f" Not every setting was searched: {', '.join(taken)}."
    baselines = [
        m for m in results["methods"] if not m["reference"] and m["name"] != results["ours"]
    ]
    if results["finalists"] is not None and len(baselines) > results["finalists"]:
        text += (
            f" Of the baselines only the {results['finalists']} best of a setting in the search "
            "were trained with every seed; the others are a dash."
        )
    return text


def _row(name: str, cells: Iterable[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"


def _against(results: Results, kind: str) -> dict[str, Table]:
    """The differences of a kind, by setting."""
    return {found["setting"]: found for found in results["differences"] if found["against"] == kind}


def _difference(found: Table | None, kind: str) -> str:
    """`+1.2 [0.8, 1.6] ll-r`, in points; bold where better, italic where worse."""
    if found is None:
        return "–"
    middle, low, high = (round(100 * found[key], 1) + 0.0 for key in ("difference", "low", "high"))
    text = f"{middle:+.1f} [{low:.1f}, {high:.1f}]"
    text = {"better": f"**{text}**", "worse": f"*{text}*"}.get(found["verdict"], text)
    return f"{text} {found['method']}" if kind == "best baseline" else text
