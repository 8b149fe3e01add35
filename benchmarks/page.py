"""What everything costs, on one page.

What enters: benchmarks/results/*.json, as the other benchmarks have written them, and the prose of
docs/performance.md. What leaves: that page, with what stands between its markers made anew from the
files alone, and its plots, docs/plots/*.svg.

    python benchmarks/page.py
"""

import argparse
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "performance.md"
MARKED = re.compile(r"(<!-- (\w+): benchmarks/\w+.py -->\n).*?(<!-- end -->)", re.DOTALL)
LOSSES = ("bce", "asl", "paper", "partly", "partly, focus", "partly, teacher")
AIM = 1.3  # × floor, of a fused loss on a GPU
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
Json = dict[str, Any]
Rows = Iterable[Iterable[str]]


class Panel(NamedTuple):
    """One of the axes of a plot: by name a line, or bars, of y by x."""

    title: str
    x: str
    y: str
    series: dict[str, dict[Any, float]]
    bars: bool = False
    logarithmic: bool = False
    plain: bool = False  # neither axis logarithmic, its ticks round numbers


# --- words, tables, plots ------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Three digits that say something."""
    if value is None:
        return "–"
    digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def table(head: Iterable[str], rows: Rows) -> list[str]:
    head = list(head)
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [*(f"| {' | '.join(cells)} |" for cells in lines), ""]


def source(machine: str, entry: Json, seeds: str) -> list[str]:
    """The line below a table: where its figures come from."""
    about = entry.get("machine", entry)
    told = [f"{about['cores']} cores"]
    told += [f"load {about['load'][0]:g}"] if "load" in about else []
    told += [f"torch {found['torch']}" for found in (entry, about) if "torch" in found][:1]
    return [f"`{entry['command']}`: {machine} ({', '.join(told)}), {seeds}.", ""]


def picture(name: str, panels: list[Panel]) -> list[str]:
    """The plot, and the same in words for those who do not see it."""
    words = "; ".join(
        f"{panel.title}, {panel.y}: "
        + ". ".join(
            f"{series + ': ' if len(panel.series) > 1 else ''}"
            + ", ".join(f"{_tick(x)} {number(y)}" for x, y in points.items())
            for series, points in panel.series.items()
        )
        for panel in panels
    )
    return [f"![{' '.join(words.split())}](plots/{name}.svg)", ""]


def _tick(x: Any) -> str:
    return f"{x:,}" if isinstance(x, int) else str(x)


def draw(panels: list[Panel], path: Path) -> None:
    """The same bytes from the same figures and the same matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    settings = {"svg.hashsalt": "partly", "svg.fonttype": "none", "font.size": 8}
    settings |= {"axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(max(7.0, 4.0 * len(panels)), 3.8), layout="constrained")
        for axes, panel in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            (draw_bars if panel.bars else draw_lines)(axes, panel)
            axes.set_title(panel.title, fontsize=9)
            if len(panel.series) > 1:
                axes.legend(fontsize=7)
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def draw_bars(axes: Any, panel: Panel) -> None:
    names = list(next(iter(panel.series.values())))
    height = 0.8 / len(panel.series)
    for place, (series, points) in enumerate(panel.series.items()):
        at = [index + height * (place - (len(panel.series) - 1) / 2) for index in range(len(names))]
        bars = axes.barh(at, list(points.values()), height, label=series, color=COLOURS[place])
        axes.bar_label(bars, [number(value) for value in points.values()], padding=2, fontsize=7)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel=panel.y, xscale="log" if panel.logarithmic else "linear")
    axes.margins(x=0.2)


def draw_lines(axes: Any, panel: Panel) -> None:
    for (series, points), colour in zip(panel.series.items(), COLOURS, strict=False):
        axes.plot(list(points), list(points.values()), marker="o", color=colour, label=series)
    axes.set(xlabel=panel.x, ylabel=panel.y, yscale="linear" if panel.plain else "log")
    if panel.plain:
        axes.xaxis.set_major_formatter("{x:,.0f}")
    elif panel.logarithmic:
        axes.set_xscale("log")
    else:
        axes.set_xticks(list(points))


# --- losses --------------------------------------------------------------------------------------


def largest(entry: Json) -> str:
    """The shape with most entries."""
    return max(entry["shapes"], key=lambda shape: math.prod(map(int, shape.split("x"))))


def shown(shape: str) -> str:
    return " × ".join(f"{int(side):,}" for side in shape.split("x"))


def is_gpu(machine: str) -> bool:
    return machine.startswith("NVIDIA")


def fused(results: Json) -> list[str]:
    lines = picture("losses", plot_losses(results))
    for key, entry in results["fused"].items():
        shapes, machine = list(entry["shapes"]), key.split(", ")[0]
        found = entry["shapes"][largest(entry)]
        smallest = entry["shapes"][shapes[0]]
        head = ["", f"ms at {shown(largest(entry))}", "× floor"]
        head.append(f"× PyTorch's bce at {shown(shapes[0])}")
        rows = [
            [
                loss,
                number(figures.get("device_milliseconds", figures["milliseconds"])),
                number(figures["floor"]),
                number(smallest[f"fused {loss}"]["bce"]),
                *(number(entry["shapes"][shape][f"fused {loss}"]["eager"]) for shape in shapes),
            ]
            for loss in LOSSES
            for figures in [found[f"fused {loss}"]]
        ]
        missed = {row[0]: row[2] for row in rows if float(row[2]) > AIM}
        speed = number(entry["copy_gigabytes_a_second"])
        lines += [f"**{key}**: a copy moves {speed} GB/s."]
        if is_gpu(machine) and missed:
            named = ", ".join(f"{loss} is {ratio} × the floor" for loss, ratio in missed.items())
            lines[-1] += f" The aim of {AIM} × the floor is missed once or more: {named}."
        if "compiled bce" in found:
            ratio = number(found["compiled bce"]["floor"])
            lines[-1] += f" PyTorch's masked bce by torch.compile: {ratio} × its floor."
        seeds = f"seed 0, medians of {entry['rounds']} rounds, {entry['threads']} threads"
        lines += ["", *table([*head, *(f"× usual at {shown(shape)}" for shape in shapes)], rows)]
        lines += source(machine, entry, seeds)
    return lines


def plot_losses(results: Json) -> list[Panel]:
    usual = {loss: f"{'eager' if loss in ('bce', 'asl') else 'plain'} {loss}" for loss in LOSSES}
    return [
        Panel(
            f"{key}, {shown(largest(entry))}",
            "loss",
            "times the floor",
            {
                "usual": {loss: found[name]["floor"] for loss, name in usual.items()},
                "fused": {loss: found[f"fused {loss}"]["floor"] for loss in LOSSES},
            },
            bars=True,
            logarithmic=True,
        )
        for key, entry in results["fused"].items()
        for found in [entry["shapes"][largest(entry)]]
    ]


# --- a step, labels, q ---------------------------------------------------------------------------


def waits(found: Json) -> str:
    """How often the host waits for a GPU."""
    count = found.get("host_waits_in_5_steps")
    return "–" if count is None else str(count) if count else "none"


STEP = ("milliseconds", "ratio", "images_a_second")


def step(results: Json) -> list[str]:
    lines = picture("step", plot_step(results))
    for key, entry in results["step"].items():
        rows = (
            [name, *(number(found[key]) for key in STEP), waits(found)]
            for name, found in entry["step"].items()
        )
        lines += [f"**{key}**", ""]
        lines += table(["", "ms", "× bce", "images/s", "host waits in 5 steps"], rows)
        seeds = f"seed 0, medians of {entry['rounds']} rounds of {entry['steps']} steps"
        lines += source(key.split(", ")[0], entry, seeds)
    return lines


def plot_step(results: Json) -> list[Panel]:
    return [
        Panel(
            "\n".join(wrap(key, 32)),
            "",
            "images/s",
            {
                "": {
                    name: found["images_a_second"]
                    for name, found in entry["step"].items()
                    if "norm" not in name
                }
            },
            bars=True,
        )
        for key, entry in results["step"].items()
    ]


def entries_of_q(results: Json) -> list[tuple[str, Json]]:
    return [(key, entry) for key, entry in results["step"].items() if entry["q"]]


def q(results: Json) -> list[str]:
    lines = picture("labels", plot_labels(results))
    for key, entry in entries_of_q(results):
        rows = (
            [
                f"{int(count):,}",
                number(found["q=1.0"]["milliseconds"]),
                *(number(found[f"q={share}"]["ratio"]) for share in (0.5, 0.1)),
            ]
            for count, found in entry["q"].items()
        )
        lines += table(["labels", "ms with q = 1", "q = 0.5: × that", "q = 0.1: × that"], rows)
        seeds = f"seed 0, medians of {entry['rounds']} rounds of {entry['steps']} steps"
        lines += source(key.split(", ")[0], entry, seeds)
    return lines


def plot_labels(results: Json) -> list[Panel]:
    panels = []
    for key, entry in entries_of_q(results):
        series = {
            name: {int(count): one[name]["milliseconds"] for count, one in entry["q"].items()}
            for name in ("q=1.0", "q=0.5", "q=0.1")
        }
        title = f"{key.split(', ')[0]}, all logits, some entries"
        panels.append(Panel(title, "labels", "ms a step", series, logarithmic=True))
    for machine, entry in results["many_labels"].items():
        taken = {name: found["milliseconds"] for name, found in entry["found"].items()}
        title = f"{machine}, one layer"
        panels.append(Panel(title, "", "ms a step", {"": taken}, bars=True))
    return panels


def many_labels(results: Json) -> list[str]:
    lines = []
    for machine, entry in results["many_labels"].items():
        figures = ["labels a step", "GB", "P@1", "P@5", "PSP@5"]
        head = ["", "ms a step", "of the GPU alone", "× floor", "usual: × that"]
        head += ["full head: × that", *figures]
        keys = ("labels_a_step", "gigabytes", "P@1", "P@5", "PSP@5")
        found = entry["found"]
        rows = (
            [
                name,
                number(one["milliseconds"]),
                number(one.get("device_milliseconds")),
                number(one.get("floor")),
                times_as_fast(name, "usual", found),
                times_as_fast(name, "q 1", found),
                *(number(one.get(key)) for key in keys),
            ]
            for name, one in found.items()
        )
        sizes = (
            f"{entry['features']} features, {entry['images']:,} images, {entry['epochs']} epochs"
        )
        lines += [f"**{machine}** × {sizes}", "", *table(head, rows)]
        where = machine.split(", ")[0]
        lines += source(where, entry, seeds_of(entry["seeds"]))
    return lines


def times_as_fast(name: str, other: str, found: Json) -> str:
    """How many times as long another step takes with batches of the same size."""
    longer = found.get(f"{name.split(',')[0]}, {other}", {}).get("milliseconds")
    return number(longer and longer / found[name]["milliseconds"])


def seeds_of(count: int) -> str:
    return "seed 0" if count == 1 else f"mean of seeds 0 to {count - 1}"


# --- metrics -------------------------------------------------------------------------------------

PEERS = ("scikit-learn", "torchmetrics")
KNOWN = ("all known", "half unknown")


def metrics(results: Json) -> list[str]:
    lines = picture("metrics", plot_metrics(results))
    gap = "greatest difference of an AP to"
    head = ["", "s", "× floor", *(f"{peer}: × that" for peer in PEERS), "alone, s", "MiB"]
    head += [f"{gap} scikit-learn's", "of torchmetrics's"]
    on_cpu, on_gpu = by_device(results["metrics"])
    for name, entry in on_cpu:
        rows = (
            [
                labels,
                number(found["seconds"]),
                number(found.get("floor")),
                *(number(found[peer]["ratio"]) for peer in PEERS),
                number(found["alone"]["ours"]["seconds"]),
                number(found["alone"]["ours"]["MiB"]),
                f"{found['difference to scikit-learn']:.0e}",
                f"{found['torchmetrics']['difference to scikit-learn']:.0e}",
            ]
            for labels in KNOWN
            for found in [entry[labels]]
        )
        lines += [f"**{images_of(name):,} images**, 600 labels", "", *table(head, rows)]
        kind = entry["machine"]["architecture"]
        lines += source(kind, entry, "seed 0")
    for name, entry in on_gpu:
        rows = (
            [
                labels,
                *(number(found[key]) for key in ("seconds", "floor", "MiB")),
                f"{found['difference to the CPU']:.0e}",
            ]
            for labels in KNOWN
            for found in [entry[labels]]
        )
        machine = name.split(", ")[2]
        lines += [f"**{images_of(name):,} images**, 600 labels, on an {machine}", ""]
        lines += table(["", "s", "× floor", "MiB", f"{gap} the CPU's"], rows)
        lines += source(machine, entry, "seed 0")
    return lines


def by_device(entries: Json) -> tuple[list[tuple[str, Json]], list[tuple[str, Json]]]:
    """Those of a CPU, and those of a GPU."""
    every = in_order(entries)
    on_gpu = [(name, entry) for name, entry in every if "NVIDIA" in name]
    return [one for one in every if one not in on_gpu], on_gpu


def in_order(entries: Json) -> list[tuple[str, Json]]:
    """Those of most images first."""
    return sorted(entries.items(), key=lambda item: -images_of(item[0]))


def images_of(name: str) -> int:
    return int(name.split()[0])


def plot_metrics(results: Json) -> list[Panel]:
    ours: dict[Any, float] = {}
    peers: dict[str, dict[Any, float]] = {peer: {} for peer in PEERS}
    for name, entry in reversed(by_device(results["metrics"])[0]):
        found = entry["all known"]
        ours[images_of(name)] = found["seconds"]
        for peer in PEERS:
            peers[peer][images_of(name)] = found["seconds"] * found[peer]["ratio"]
    title = "mAP of 600 labels, all known, 2 cores"
    return [Panel(title, "images", "seconds", {"partly": ours, **peers}, logarithmic=True)]


# --- ranks, stores -------------------------------------------------------------------------------


def ranks(results: Json) -> list[str]:
    lines = picture("ranks", plot_ranks(results))
    head = [
        "",
        "ranks",
        "threads each",
        "ms",
        "× one rank",
        "MB sent a step",
        "MiB of pseudo-labels",
    ]
    for machine, entry in results["ranks"].items():
        rows = (
            [
                case if place == 0 else "",
                str(found["ranks"]),
                str(found["threads"]),
                number(found["milliseconds"]),
                number(found["ratio"]),
                number(sent(found)),
                number(found.get("kept_mib")),
            ]
            for case, every in entry["cases"].items()
            for place, found in enumerate(every)
        )
        lines += table(head, rows)
        blocks = entry["rounds"] * entry["blocks"]
        told = f"seed 0, fastest of {blocks} blocks of {entry['steps']} steps"
        lines += source(machine, entry, told)
    return lines


def sent(found: Json) -> float:
    """Megabytes that are handed over in a step."""
    kinds = ("logits_bytes", "gradients_bytes", "others_bytes")
    return float(sum(found[kind] for kind in kinds) / 1e6)


def plot_ranks(results: Json) -> list[Panel]:
    panels = []
    for machine, entry in results["ranks"].items():
        series = {}
        for case, every in entry["cases"].items():
            fewest = {one["ranks"]: one["ratio"] for one in reversed(every)}
            series[case] = dict(sorted(fewest.items()))
        title = f"{machine}, {entry['cores']} cores, batch {entry['batch']}"
        panels.append(Panel(title, "ranks", "× one rank", series))
    return panels


def stores(results: Json) -> list[str]:
    lines = []
    for machine, entry in results["stores"].items():
        size = entry["size"]
        shape = f"{size['images']:,} images × {size['labels']:,} labels"
        lines += [f"**{machine}**: {shape} (sparse: × {size['many']:,})", ""]
        if "memory of disk" in entry:
            rows = [
                ["disk: file", number(entry["memory of disk"]["file_bytes"] / 1e9)],
                ["disk: memory of the process beyond it", gigabytes(entry, "disk")],
                [f"sparse, {size['slots']} an image: memory", gigabytes(entry, "sparse")],
            ]
            lines += table(["", "GB, measured"], rows)
        if "batches" in entry:
            kinds = ("copy", "loss", "memory", "disk")
            head = ["batch", *(f"{kind}, ms" for kind in kinds), "disk: × loss"]
            every = entry["batches"].items()
            lines += table(
                head,
                (
                    [batch, *map(number, [*one["milliseconds"].values(), one["disk_to"]["loss"]])]
                    for batch, one in every
                ),
            )
        if "step" in entry:
            found = entry["step"]
            shape = f"{found['backbone']}, {found['pixels']} px, {found['batch']} images"
            rows = [
                [kind, number(taken), number(found["to_nowhere"][kind])]
                for kind, taken in found["milliseconds"].items()
            ]
            lines += table([f"a step of {shape}, kept …", "ms", "× nowhere"], rows)
        lines += source(machine, entry, "seed 0")
    return lines


def gigabytes(entry: Json, kind: str) -> str:
    return number(entry[f"memory of {kind}"]["resident_anon_bytes"] / 1e9)


# --- data ----------------------------------------------------------------------------------------


def reading(results: Json) -> list[str]:
    entry = results["reading"]
    sizes, found = entry["sizes"], entry["results"]
    rows = [
        [
            f"Open Images, {sizes['rows']:,} rows, {name}",
            number(one["partly"]["seconds"]),
            number(one["partly"]["peak_gib"]),
            f"pyarrow's CSV reader alone: {number(1 / one['ratio_of_seconds'])} × the time, "
            f"{number(1 / one['ratio_of_peak_gib_above_import'])} × the memory",
        ]
        for name, one in found["large"].items()
    ]
    peer = found["peer"]
    rows.append(
        [
            f"Open Images, {sizes['peer_rows']:,} rows",
            number(peer["partly"]["seconds"]),
            number(peer["partly"]["peak_gib"]),
            f"mlcpl: {number(1 / peer['ratio_of_seconds'])} × the time, "
            f"{number(1 / peer['ratio_of_peak_gib_above_import'])} × the memory",
        ]
    )
    about = {**entry, "cores": entry["machine"]["cores"], "torch": entry["versions"]["torch"]}
    del about["machine"]
    lines = table(["", "s", "peak GiB", "beside it"], rows)
    return lines + source(entry["machine"]["processor"], about, "seed 0")


def loading(results: Json) -> list[str]:
    lines = []
    names = {
        "step": "the step alone",
        "cpu": "the loader alone",
        "gpu": "the loader, decoding on the GPU",
    }
    names |= {
        "step + cpu": "both",
        "step + gpu": "both, decoding on the GPU",
        "peer": "a plain DataLoader alone",
        "step + peer": "both, with a plain DataLoader",
    }
    for device, entry in results["loading"].items():
        speed = entry["images_a_second"]
        rows = (
            [words, number(speed[name]), number(speed[name] / speed["step"])]
            for name, words in names.items()
            if name in speed
        )
        lines += [
            f"**{device}**, {entry['backbone']}",
            "",
            *table(["", "images/s", "× the step"], rows),
        ]
        about = {**entry, "torch": entry["versions"]["torch"].split("+")[0]}
        lines += source(device, about, "seed 0")
    return lines


def hiding(results: Json) -> list[str]:
    lines = picture("hiding", plot_hiding(results))
    name, entry = in_order(results["hiding"])[0]
    rows = (
        [setting, *map(number, (one["seconds"], one["ratio_to_floor"], one["peak_mib"]))]
        for setting, one in entry["settings"].items()
    )
    shape = f"{images_of(name):,} images** × {entry['labels']} labels"
    lines += [f"**{shape}, {entry['known']:,} known", ""]
    lines += table(["", "s", "× the floor", "peak MiB"], rows)
    kind = entry["machine"]["architecture"]
    return lines + source(kind, entry, f"median of {entry['repeats']}, seed 0")


def plot_hiding(results: Json) -> list[Panel]:
    series: dict[str, dict[Any, float]] = {}
    for name, entry in reversed(in_order(results["hiding"])):
        for setting, found in entry["settings"].items():
            series.setdefault(setting, {})[images_of(name)] = found["seconds"]
    return [Panel("Hiding labels, 5 known an image", "images", "seconds", series, logarithmic=True)]


# --- the page ------------------------------------------------------------------------------------

SECTIONS = (fused, step, q, many_labels, metrics, ranks, stores, reading, loading, hiding)
PLOTS = {
    "losses": plot_losses,
    "step": plot_step,
    "labels": plot_labels,
    "metrics": plot_metrics,
    "ranks": plot_ranks,
    "hiding": plot_hiding,
}


def read_results(folder: Path = RESULTS) -> Json:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def filled(page: str, results: Json) -> str:
    """The page with what stands between its markers made anew."""
    sections = {section.__name__: section for section in SECTIONS}

    def anew(found: re.Match[str]) -> str:
        lines = "\n".join(sections[found[2]](results)).strip()
        return f"{found[1]}{lines}\n{found[3]}"

    return MARKED.sub(anew, page)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    results = read_results()
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    for name, panels in PLOTS.items():
        draw(panels(results), PAGE.parent / "plots" / f"{name}.svg")
    print(f"written to {PAGE}")


if __name__ == "__main__":
    main()
