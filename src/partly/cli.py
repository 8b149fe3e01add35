"""The command line: a thin layer over `workflow`, `experiments` and `demo`.

Heavy imports happen inside the commands, so that `partly --help` answers at once.
"""

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from partly import __version__, options
from partly.errors import ConfigError, PartlyError, ToldElsewhere, raise_if

INTERRUPTED = (130, 143)  # the exit codes of Ctrl-C and, where a command answers it, of SIGTERM
SHARED = "train"  # the command that several ranks do together

app = typer.Typer(
    help="Train multi-label classifiers from partly labelled data.",
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run a command. Bad input ends with one clear message and exit code 2, never a traceback."""
    code = _run()
    if _several():
        from partly import distributed

        distributed.leave(code)
    sys.exit(code)


def _several() -> bool:
    """Whether torchrun has started several; without it nothing of that is imported."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def _has_the_word(problem: str) -> bool:
    """What several ranks find wrong one of them says."""
    if not _several():
        return True
    from partly import distributed

    return distributed.has_the_word(problem)


def _tell(problems: Sequence[str]) -> None:
    """In one piece, for several ranks may be writing; what all of them find, in one order."""
    if _has_the_word("\n".join(["all of", *problems])):
        told = [f"partly: {problem}\n" for problem in problems if _has_the_word(problem)]
        sys.stderr.write("".join(told))
    if place := os.environ.get("TORCHELASTIC_ERROR_FILE"):  # torchrun shows the first as the cause
        second = int(time.time()) - 1  # those that miss this rank may end in the same one
        facts = {"message": "; ".join(problems), "timestamp": second}
        with suppress(OSError):
            Path(place).write_text(json.dumps(facts), encoding="utf-8")


def _run() -> int:
    """The exit code of a command."""
    try:
        app(prog_name="partly")
    except ToldElsewhere:
        return 2
    except PartlyError as error:
        _tell(error.problems)
        return 2
    except RuntimeError as error:
        from partly import distributed

        if not distributed.is_lost(error):
            raise
        print(
            "partly: another rank is gone; with torchrun --max-restarts all go on from the last "
            "checkpoint by themselves, otherwise start them again with --resume",
            file=sys.stderr,
        )
        return 1
    except SystemExit as end:
        if end.code in INTERRUPTED:
            print("partly: interrupted; what was finished is kept", file=sys.stderr)
        return int(end.code or 0)
    return 0


HIDING = (
    "which labels stay known: pal:0.3 (30 % of all), ppl:0.3 (30 % of the positives, no negative), "
    "spl (one positive an image), fal (all)"
)


@app.callback()
def version(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if show:
        print(f"partly {__version__}")
        raise typer.Exit
    if context.invoked_subcommand not in (None, SHARED):
        _refuse_ranks(context.invoked_subcommand)


def _refuse_ranks(command: str) -> None:
    """Ranks of torchrun would all do the same work, and write the same files."""
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return
    how = ", with --jobs for how many trainings at once" * (command in ("compare", "ablate"))
    raise ConfigError(f"{command} is work for one process: start it without torchrun{how}")


def _recipe(path: Path | None) -> Any:
    """The recipe, or one that chooses nothing."""
    from partly.recipe import Recipe

    return Recipe() if path is None else Recipe.read(path)


def _config(arguments: dict[str, Any], recipe: Any, stored: dict[str, Any] | None = None) -> Any:
    """A `Config` of a command's arguments, then of the recipe, then of what a run has stored."""
    from partly.config import Config
    from partly.workflow import parse_options

    given = {name: value for name, value in arguments.items() if value is not None}
    given["learning_rate"] = given.pop("lr", None)
    given["options"] = parse_options(given["set_"]) if "set_" in given else None
    names = [field.name for field in fields(Config)]
    chosen = {name: stored[name] for name in names if name in stored} if stored else {}
    chosen |= recipe.training
    return Config(**chosen | {n: given[n] for n in names if given.get(n) is not None})


def _source(data: Path, arguments: dict[str, Any], recipe: Any = None) -> Any:
    """Where the data lies, how it is read and what to do about bad images."""
    from partly.source import Source
    from partly.workflow import parse_options

    chosen = dict(recipe.data) if recipe else {}
    options = chosen.get("options", {}) | parse_options(arguments.get("read") or [])
    if arguments.get("convention") is not None:
        options["convention"] = arguments["convention"]
    names = ("format", "on_bad_image", "verify")
    given = {name: arguments[name] for name in names if arguments.get(name) is not None}
    if {"run", "data"} <= arguments.keys() and _left_out(arguments["run"]):
        given.setdefault(
            "on_bad_image", "skip"
        )  # said once, of data; new images are another matter
    return Source(data, **chosen | given | {"options": options})


def _left_out(run: Path) -> bool:
    """Whether training on these data was told to leave out bad images, and had to."""
    from partly.runs import read_skipped

    return bool(read_skipped(run))


def _command() -> str:
    return shlex.join(["partly", *sys.argv[1:]])


def _show(results: dict[str, Any], out: Path) -> None:
    """The table of a comparison, and its page."""
    from partly.comparison_report import comparison_report
    from partly.experiments import caution, to_markdown

    _say(to_markdown(results))
    if warning := caution(results):
        _say(f"of the test part {warning}")
    _say(f"report: {comparison_report(results, out / 'report.html')}")


def _say(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":  # one of several processes speaks for all
        print(text, flush=True)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for data, runs and report")] = Path("runs/demo"),
    hide: Annotated[str, typer.Option(help=HIDING)] = "ppl:0.4",
    seed: Annotated[int, typer.Option(help="of the pictures, the hiding and the training")] = 0,
) -> None:
    """Draw a data set, hide most labels, train four methods, write a report.

    Example: `partly demo --hide spl`
    """
    from partly.demo import run_demo

    run_demo(out, setting=hide, seed=seed, command=_command(), say=_say)


@app.command()
def check(
    data: options.Data,
    out: Annotated[Path | None, typer.Option(help="folder for check.html, a page")] = None,
    json_: Annotated[bool, typer.Option("--json", help="print all that was found as JSON")] = False,
    format: options.Format = None,
    read: options.Read = None,
    convention: options.Convention = None,
    verify: options.Verify = None,
) -> None:
    """Say what is in a data set and what is wrong with it, before anyone trains on it.

    Sizes, label counts, how labels seem to go missing, imbalance, co-occurrence, constant labels,
    unreadable images, duplicates across parts. Exit code 2 if something must be mended.

    Example: `partly check data.csv --out runs/check`
    """
    arguments = locals()
    import json

    from partly.workflow import check_run

    source = _source(data, arguments)
    findings = check_run(source, out, say=(lambda line: None) if json_ else _say)
    if json_:
        _say(json.dumps(findings, indent=2, ensure_ascii=False))
    if findings["problems"]:
        raise typer.Exit(2)


@app.command()
def formats(
    name: Annotated[str | None, typer.Argument(help="all about one of them")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="as a page, docs/formats.md")
    ] = False,
) -> None:
    """List the formats that data can be in, and their options.

    Example: `partly formats coco`
    """
    from partly.readers import FORMATS, defaults_of, describe, options_of, summary, to_markdown

    if markdown:
        print(to_markdown(), end="")
        return
    if name is not None:
        _say(describe(name))
        return
    for known in FORMATS:
        _say(f"{known:<12} {summary(known)}")
        if options_of(known):
            _say(f"{'':<12} --read {defaults_of(known)}")


@app.command()
def pack(
    data: options.Data,
    out: Annotated[Path, typer.Option(help="folder for the tar files and labels.parquet")],
    size: Annotated[int, typer.Option(help="shorter side of a larger image; 0 keeps all")] = 512,
    quality: Annotated[int, typer.Option(help="of the JPEG files that are written")] = 90,
    format: options.Format = None,
    read: options.Read = None,
    convention: options.Convention = None,
    on_bad_image: options.OnBadImage = None,
    workers: Annotated[int | None, typer.Option(help="processes [one a core]")] = None,
) -> None:
    """Turn a data set into tar files and a Parquet table, its images resized once.

    What comes out is a data set like any other: `partly train FOLDER`. Reading from a few large
    files is much faster than from many small ones.

    Example: `partly pack data.csv --out packed --size 512`
    """
    arguments = locals()
    from partly.workflow import pack_run

    source = _source(data, arguments)
    pack_run(source, out, size=size or None, quality=quality, workers=workers, say=_say)


@app.command()
def methods(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="as a page, docs/methods.md")
    ] = False,
) -> None:
    """List the methods and their options.

    Example: `partly methods`
    """
    from partly.methods import available, get, to_markdown

    if markdown:
        print(to_markdown(), end="")
        return
    for name in available():
        method = get(name)
        _say(f"{name:<12} {method.summary}")
        if method.options:
            listed = "  ".join(f"{key}={value}" for key, value in method.options.items())
            _say(f"{'':<12} {listed}")


@app.command()
def train(
    data: options.Data,
    out: Annotated[Path, typer.Option(help="folder of the run")],
    method: Annotated[str | None, typer.Option(help="see `partly methods` [partly]")] = None,
    hide: Annotated[str | None, typer.Option(help=f"a study: {HIDING}")] = None,
    recipe: options.RecipeFile = None,
    format: options.Format = None,
    read: options.Read = None,
    convention: options.Convention = None,
    on_bad_image: options.OnBadImage = None,
    verify: options.Verify = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on where it stopped")] = False,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.LearningRate = None,
    head_factor: options.HeadFactor = None,
    optimiser: options.Optimiser = None,
    weight_decay: options.WeightDecay = None,
    head_decay: options.HeadDecay = None,
    warmup: options.Warmup = None,
    schedule: options.Schedule = None,
    clip: options.Clip = None,
    ema: options.Ema = None,
    batch_norm: options.BatchNorm = None,
    compile: options.Compile = None,
    amp: options.Amp = None,
    backbone: options.Backbone = None,
    weights: options.Weights = None,
    head: options.Head = None,
    head_only: options.HeadOnly = None,
    linear_start: options.LinearStart = None,
    image_size: options.ImageSize = None,
    resize: options.Resize = None,
    augment: options.Augment = None,
    normalise: options.Normalise = None,
    decode: options.Decode = None,
    mix: options.Mix = None,
    standardise: options.Standardise = None,
    start: options.Start = None,
    expected_positives: options.ExpectedPositives = None,
    pseudo_labels: options.KeptIn = None,
    finish: options.Finish = None,
    goal: options.GoalOption = None,
    calibrate: options.Calibrate = None,
    hold_out: Annotated[
        float | None,
        typer.Option(
            help="share of images to choose the epoch by, 0 keeps the last [0.1]",
            rich_help_panel=options.LEARNING,
        ),
    ] = None,
    checkpoint_steps: Annotated[
        int | None,
        typer.Option(
            help="checkpoint every so many steps [each epoch]", rich_help_panel=options.MACHINE
        ),
    ] = None,
    seed: options.Seed = None,
    workers: options.Workers = None,
    device: options.Device = None,
    set_: options.Set = None,
) -> None:
    """Train a model and keep everything about it in a folder.

    With --resume, options that are not given again are the run's own.

    Example: `partly train data.csv --out runs/first --backbone resnet50 --epochs 10`
    """
    arguments = locals()
    from partly.runs import stored_config
    from partly.workflow import train_run

    stored = stored_config(out) if resume else None
    chosen = _recipe(recipe)
    config = _config(arguments, chosen, stored)
    setting = hide or (stored or {}).get("setting")
    source = _source(data, arguments, chosen)
    train_run(source, out, config, setting=setting, resume=resume, say=_say)


@app.command()
def evaluate(
    run: options.Run,
    data: options.Data,
    part: Annotated[str | None, typer.Option(help="train, validation or test [test]")] = None,
    format: options.Format = None,
    read: options.Read = None,
    convention: options.Convention = None,
    on_bad_image: options.OnBadImage = None,
    verify: options.Verify = None,
    json_: Annotated[bool, typer.Option("--json", help="print every metric as JSON")] = False,
    device: options.Device = None,
) -> None:
    """Measure a run's model on a data set.

    Example: `partly evaluate runs/first data.csv --json`
    """
    arguments = locals()
    import json

    from partly.workflow import evaluate_run, summary

    source = _source(data, arguments)
    quiet = (lambda line: None) if json_ else _say
    evaluation = evaluate_run(run, source, part=part, device=device or "auto", say=quiet)
    _say(json.dumps(evaluation, indent=2) if json_ else summary(evaluation))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="the folder of a run, a comparison or a demo")],
) -> None:
    """Write report.html again, from what a folder holds: of a run that still trains, for example.

    `train`, `compare` and `ablate` write it by themselves at their end.

    Example: `partly report runs/first`
    """
    from partly.report import report as write_report

    _say(f"report: {write_report(folder)}")


@app.command()
def decide(
    run: options.Run,
    data: options.Data,
    goal: options.GoalAgain = None,
    calibrate: options.CalibrateAgain = None,
    part: Annotated[
        str | None,
        typer.Option(
            help="train, validation or test [validation, or the images training held out]",
            rich_help_panel=options.DATA,
        ),
    ] = None,
    expected_positives: options.ExpectedPositives = None,
    format: options.Format = None,
    read: options.Read = None,
    convention: options.Convention = None,
    on_bad_image: options.OnBadImage = None,
    verify: options.Verify = None,
    device: options.Device = None,
) -> None:
    """Choose anew from which probability a label counts as present, without training again.

    Each label gets the threshold that is best for --goal. It is fitted on images that the model
    was not trained on, by the labels that are known, and by what is believed of those that are
    not. A goal or a calibration that is not given stays as it was. `partly predict`, `evaluate`
    and `export` use what was fitted last.

    Example: `partly decide runs/first data.csv --goal precision:0.9 --calibrate temperature`
    """
    arguments = locals()
    from partly.workflow import decide_run

    decide_run(
        run,
        _source(data, arguments),
        goal=goal,
        calibrate=calibrate,
        part=part,
        expected_positives=expected_positives,
        device=device or "auto",
        say=_say,
    )


@app.command()
def predict(
    run: options.Run,
    images: Annotated[
        Path, typer.Argument(help="an image, a folder or tar of images, or a data set")
    ],
    out: Annotated[Path, typer.Option(help="file to write: .csv, .jsonl or .parquet")] = Path(
        "scores.csv"
    ),
    top: Annotated[
        int | None,
        typer.Option(min=1, help="only the likeliest labels: a line each, id, label, probability"),
    ] = None,
    labels: Annotated[
        bool,
        typer.Option(
            "--labels",
            help="in a CSV, too: a column with the labels that are decided, joined by ;",
        ),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with a file that was not finished")
    ] = False,
    format: options.Format = None,
    read: options.Read = None,
    on_bad_image: options.OnBadImage = None,
    verify: options.Verify = None,
    device: options.Device = None,
) -> None:
    """Write the probability of every label for every image, and which labels are decided.

    A CSV has a line an image, with its id and a column a label; .jsonl and .parquet also say the
    decided labels, those at or above the run's thresholds (`partly decide` fits them). It is
    written in pieces: what was stopped goes on with --resume, to the same end.

    Example: `partly predict runs/first photos/ --out scores.csv`
    """
    arguments = locals()
    from partly.workflow import predict_run

    count = predict_run(
        run,
        _source(images, arguments),
        out,
        top=top,
        labels=labels,
        resume=resume,
        device=device or "auto",
        quiet=False,
        say=_say,
    )
    _say(f"{'1 image' if count == 1 else f'{count:,} images'} -> {out}")


@app.command()
def export(
    run: options.Run,
    format: Annotated[
        str,
        typer.Option(
            help="onnx: one file, for onnxruntime; safetensors: a folder with a JSON card; "
            "huggingface: a folder that timm and the hub know"
        ),
    ] = "onnx",
    out: Annotated[
        Path | None, typer.Option(help="the file or folder to write [in the run's folder]")
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(help="images or features to try it on [pictures drawn by code]"),
    ] = None,
) -> None:
    """Write a run's model in a form that works elsewhere, and check that it answers as the run.

    Preprocessing, labels and thresholds go with it. An .onnx file takes pixels and gives
    probabilities without Partly or PyTorch; docs/export.md shows how.

    Example: `partly export runs/first --format onnx --out first.onnx --images photos/`
    """
    from partly.exporting import export_run

    export_run(run, format, out, images=images, say=_say)


@app.command()
def suggest(
    run: options.Run,
    data: options.Data,
    budget: Annotated[int, typer.Option(help="how many questions")] = 500,
    out: Annotated[Path, typer.Option(help=".csv, or .json for Label Studio")] = Path("ask.csv"),
    suspects: Annotated[
        int, typer.Option(help="so many of them, at most, about known labels that look wrong")
    ] = 0,
    opening: Annotated[
        float,
        typer.Option(
            help="what it costs to open an image, in answers: the more, the more questions are "
            "asked about one image"
        ),
    ] = 1.0,
    part: Annotated[str, typer.Option(help="train, validation or test")] = "train",
    as_: Annotated[
        str | None, typer.Option("--as", help="csv or labelstudio [by the suffix of --out]")
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(help="folder that Label Studio serves images from [the one DATA lies in]"),
    ] = None,
    format: options.Format = None,
    read: options.Read = None,
    convention: options.Convention = None,
    on_bad_image: options.OnBadImage = None,
    verify: options.Verify = None,
    device: options.Device = None,
) -> None:
    """Write which unknown labels to ask a person about next: those that teach the model most.

    Fill in the column `value` (1 yes, 0 no, -1 cannot tell), or label in Label Studio and export as
    JSON; `partly answers DATA FILE` takes it in, and `partly train DATA` learns from it.

    Example: `partly suggest runs/first data.csv --budget 500 --suspects 50 --out ask.csv`
    """
    arguments = locals()
    from partly.asking import suggest_run

    suggest_run(
        run,
        _source(data, arguments),
        out,
        budget=budget,
        suspects=suspects,
        opening=opening,
        part=part,
        format=as_,
        root=root,
        device=device or "auto",
        say=_say,
    )


@app.command()
def answers(
    data: options.Data,
    file: Annotated[
        Path | None, typer.Argument(help="a filled-in .csv, or a .json that Label Studio exported")
    ] = None,
    by: Annotated[str, typer.Option(help="who answered")] = "",
    format: options.Format = None,
    read: options.Read = None,
    convention: options.Convention = None,
) -> None:
    """Take people's answers into the journal beside the data; without a file, say what it holds.

    The data itself is never written to. The last answer about a cell counts.

    Example: `partly answers data.csv ask.csv --by anna`
    """
    arguments = locals()
    from partly.asking import describe_answers, take_answers

    source = _source(data, arguments)
    if file is None:
        describe_answers(source, say=_say)
    else:
        take_answers(source, file, by=by, say=_say)


@app.command()
def compare(
    data: options.Data,
    out: Annotated[Path, typer.Option(help="folder of the comparison")] = Path("runs/compare"),
    methods: Annotated[
        str | None, typer.Option(help="comma-separated; see `partly methods` [all]")
    ] = None,
    settings: Annotated[
        str | None, typer.Option(help="comma-separated, e.g. fal,pal:0.3,spl [the paper's eight]")
    ] = None,
    protocol: options.ProtocolFile = None,
    only: options.Only = None,
    recipe: options.RecipeFile = None,
    format: options.Format = None,
    read: options.Read = None,
    convention: options.Convention = None,
    on_bad_image: options.OnBadImage = None,
    verify: options.Verify = None,
    seeds: options.Seeds = None,
    jobs: options.Jobs = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.LearningRate = None,
    head_factor: options.HeadFactor = None,
    optimiser: options.Optimiser = None,
    weight_decay: options.WeightDecay = None,
    head_decay: options.HeadDecay = None,
    warmup: options.Warmup = None,
    schedule: options.Schedule = None,
    ema: options.Ema = None,
    batch_norm: options.BatchNorm = None,
    backbone: options.Backbone = None,
    weights: options.Weights = None,
    head_only: options.HeadOnly = None,
    linear_start: options.LinearStart = None,
    image_size: options.ImageSize = None,
    resize: options.Resize = None,
    augment: options.Augment = None,
    normalise: options.Normalise = None,
    decode: options.Decode = None,
    mix: options.Mix = None,
    standardise: options.Standardise = None,
    start: options.Start = None,
    expected_positives: options.ExpectedPositives = None,
    workers: options.Workers = None,
    device: options.Device = None,
) -> None:
    """Train methods × settings × seeds with equal budgets: the paper's tables.

    The data's training labels should be full; each setting hides some of them: fal none, pal:0.3
    all but 30 %, ppl:0.3 all negatives and all but 30 % of the positives, spl all but one positive
    an image. All methods in the paper's eight settings with three seeds are 486 trainings. A
    comparison that was interrupted goes on where it stopped.

    With --protocol a file says everything: several data sets below DATA, an equal search of
    hyper-parameters for every method on images set aside from training, then trainings with several
    seeds, and intervals of the differences on the test images. --only, --methods, --settings and
    --seeds take a part of it, and what is done is not done again; a table is of the part that was
    asked for last, so that a part is better kept in an --out of its own. There the tables are
    arena.md, for people, and arena.json.

    Example: `partly compare data.npz --methods partly,an,ign --settings pal:0.3,spl --seeds 3`

    Example: `partly compare FOLDER --protocol protocols/arena.toml --only scene --out runs/arena`
    """
    arguments = locals()
    if protocol is not None:
        _compare_by_protocol(data, out, protocol, arguments)
        return
    from partly import experiments

    if only:
        raise ConfigError("--only names data sets of a --protocol, and none is given")
    chosen = _recipe(recipe)
    config = _config(arguments, chosen)
    source = _source(data, arguments, chosen)
    results = experiments.compare(
        source,
        out,
        methods=methods.split(",") if methods else chosen.study.get("methods"),
        settings=settings.split(",")
        if settings
        else chosen.study.get("settings", experiments.PAPER_SETTINGS),
        seeds=chosen.study.get("seeds", 3) if seeds is None else seeds,
        config=config,
        jobs=jobs,
        command=_command(),
        say=_say,
    )
    _show(results, out)


# What can be said beside a protocol; all else is the protocol's to say.
BESIDE_A_PROTOCOL = {"data", "out", "protocol", "only", "methods", "settings", "seeds", "jobs"}
BESIDE_A_PROTOCOL |= {"workers", "device"}


def _compare_by_protocol(data: Path, out: Path, path: Path, arguments: dict[str, Any]) -> None:
    from partly.arena import run_protocol, to_markdown
    from partly.protocol import Protocol

    given = {name: value for name, value in arguments.items() if value is not None}
    raise_if(
        (
            f"--{name.replace('_', '-')} is the protocol's to say: write it into {path}"
            for name in given
            if name not in BESIDE_A_PROTOCOL
        ),
        ConfigError,
    )
    if data.is_file():
        raise ConfigError(
            f"{data} is a file: with --protocol, DATA is the folder that the data sets named in "
            f"{path} lie in"
        )
    protocol = Protocol.read(
        path,
        data,
        only=given.get("only", []),
        methods=given["methods"].split(",") if "methods" in given else None,
        settings=given["settings"].split(",") if "settings" in given else None,
        seeds=given.get("seeds"),
        training={name: given[name] for name in ("workers", "device") if name in given},
    )
    arena = run_protocol(protocol, out, jobs=given.get("jobs"), command=_command(), say=_say)
    _say(to_markdown(arena))
    _say(f"results: {out / 'arena.md'} and {out / 'arena.json'}")


@app.command()
def ablate(
    data: options.Data,
    out: Annotated[Path, typer.Option(help="folder of the ablation")] = Path("runs/ablate"),
    method: Annotated[str, typer.Option(help="a method that has parts: paper or partly")] = "paper",
    settings: Annotated[str | None, typer.Option(help="comma-separated [pal:0.6,ppl:0.6]")] = None,
    recipe: options.RecipeFile = None,
    format: options.Format = None,
    read: options.Read = None,
    convention: options.Convention = None,
    on_bad_image: options.OnBadImage = None,
    verify: options.Verify = None,
    seeds: options.Seeds = None,
    jobs: options.Jobs = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.LearningRate = None,
    backbone: options.Backbone = None,
    weights: options.Weights = None,
    head_only: options.HeadOnly = None,
    linear_start: options.LinearStart = None,
    image_size: options.ImageSize = None,
    resize: options.Resize = None,
    augment: options.Augment = None,
    normalise: options.Normalise = None,
    decode: options.Decode = None,
    mix: options.Mix = None,
    standardise: options.Standardise = None,
    start: options.Start = None,
    expected_positives: options.ExpectedPositives = None,
    workers: options.Workers = None,
    device: options.Device = None,
) -> None:
    """Train a method whole and without each of its parts: the paper's ablation.

    Example: `partly ablate data.npz --settings pal:0.6,ppl:0.6`
    """
    arguments = locals()
    from partly import experiments

    chosen = _recipe(recipe)
    config = _config(arguments, chosen)
    source = _source(data, arguments, chosen)
    results = experiments.ablate(
        source,
        out,
        method=method,
        settings=settings.split(",")
        if settings
        else chosen.study.get("settings", experiments.ABLATION_SETTINGS),
        seeds=chosen.study.get("seeds", 3) if seeds is None else seeds,
        config=config,
        jobs=jobs,
        command=_command(),
        say=_say,
    )
    _show(results, out)


@app.command()
def review(
    run: options.Run,
    data: options.Data,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="only this label; repeatable [all]")
    ] = None,
    part: Annotated[str, typer.Option(help="train, validation, test or all")] = "train",
    budget: Annotated[int, typer.Option(help="questions that are chosen at a time")] = 500,
    by: Annotated[
        str | None, typer.Option(help="name written beside answers [your login; the page asks]")
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="where to listen; 0.0.0.0 for other machines", rich_help_panel=options.SERVER
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="0 takes one that is free", rich_help_panel=options.SERVER)
    ] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="PARTLY_TOKEN",
            help="what whoever opens the page must know [made and printed where other machines "
            "can reach it]",
            rich_help_panel=options.SERVER,
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            help="a further host name under which the page is reached; repeatable",
            rich_help_panel=options.SERVER,
        ),
    ] = None,
    open_: Annotated[
        bool | None,
        typer.Option(
            "--open/--no-open",
            help="open it in the browser [where there is a screen]",
            rich_help_panel=options.SERVER,
        ),
    ] = None,
    format: options.Format = None,
    read: options.Read = None,
    convention: options.Convention = None,
    on_bad_image: Annotated[
        str, typer.Option(help="error, or skip: leave them out", rich_help_panel=options.DATA)
    ] = "skip",
    verify: options.Verify = None,
    device: options.Device = None,
) -> None:
    """Open a local page on which people answer what the model asks.

    Yes, no or cannot tell, by key, mouse or finger: first what would help the model most; then
    known labels that look wrong, and a gallery of each label. Every answer is written at once to
    a journal beside the data, which `partly train` takes in; the data itself is not touched.

    Example: `partly review runs/first data.csv --label boat --label moon`
    """
    arguments = locals()
    from partly.review.serving import review_run

    review_run(
        run,
        _source(data, arguments),
        labels=label or [],
        part=part,
        budget=budget,
        by=by,
        host=host,
        port=port,
        token=token,
        names=name or [],
        open_browser=open_,
        device=device or "auto",
        say=_say,
    )
