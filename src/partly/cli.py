"""The command line: a thin layer over `workflow`, `experiments` and `demo`.

Heavy imports happen inside the commands, so that `partly --help` answers at once.
"""

import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from partly import __version__
from partly.errors import PartlyError

INTERRUPTED = 130  # the exit code that typer gives to Ctrl-C

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
    try:
        app(prog_name="partly")
    except PartlyError as error:
        for problem in error.problems:
            print(f"partly: {problem}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print("partly: interrupted; what was finished is kept", file=sys.stderr)
        raise


HIDING = (
    "which labels stay known: pal:0.3 (30 % of all), ppl:0.3 (30 % of the positives, no negative), "
    "spl (one positive an image), fal (all)"
)


@app.callback()
def version(
    show: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if show:
        print(f"partly {__version__}")
        raise typer.Exit


# Options that several commands share. None means: the default of `config.Config`.
Data = Annotated[Path, typer.Argument(help="a .csv or .parquet manifest, a folder, or an .npz")]
Run = Annotated[Path, typer.Argument(help="the folder of a run")]
Epochs = Annotated[int | None, typer.Option(help="passes over the data [12]")]
BatchSize = Annotated[
    int | None,
    typer.Option(help="[about 32 steps an epoch: 32 to 1024 rows, 8 to 64 images]"),
]
LearningRate = Annotated[
    float | None, typer.Option("--lr", help="[1e-2 for a linear model, else 1e-3]")
]
HeadFactor = Annotated[float | None, typer.Option(help="learning rate of the head, × --lr [1]")]
Optimiser = Annotated[str | None, typer.Option(help="adam, adamw or sgd [adam]")]
WeightDecay = Annotated[float | None, typer.Option(help="[0]")]
Warmup = Annotated[float | None, typer.Option(help="share of steps [0 if linear, else 0.05]")]
Schedule = Annotated[str | None, typer.Option(help="cosine or constant [cosine]")]
Clip = Annotated[float | None, typer.Option(help="largest gradient norm, 0 is off [0]")]
Ema = Annotated[float | None, typer.Option(help="decay of averaged weights, 0 is off [0]")]
Amp = Annotated[str | None, typer.Option(help="bfloat16: auto, on or off [auto]")]
Backbone = Annotated[
    str | None,
    typer.Option(help="linear, mlp:768, small, or a timm name [linear on features, resnet50]"),
]
Weights = Annotated[str | None, typer.Option(help="file with the backbone's weights")]
ImageSize = Annotated[int | None, typer.Option(help="images are stretched to this square [448]")]
Standardise = Annotated[
    bool | None, typer.Option("--standardise/--no-standardise", help="scale the features [yes]")
]
Start = Annotated[str | None, typer.Option(help="head starts at class priors or plain [prior]")]
ExpectedPositives = Annotated[
    float | None, typer.Option(help="positives an image, if you know [estimated from the labels]")
]
Seed = Annotated[int | None, typer.Option(help="everything drawn at random follows from it [0]")]
Workers = Annotated[int | None, typer.Option(help="processes that read images [0]")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda [auto]")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="an option of the method, name=value; repeatable")
]
Convention = Annotated[
    str, typer.Option(help="numbers in the file: partly (1, 0, -1), nan, or signed (1, -1, 0)")
]
Seeds = Annotated[int, typer.Option(help="trainings of each, seeds 0, 1, …")]
Jobs = Annotated[int | None, typer.Option(help="trainings at once [one a core]")]


def _config(stored: dict[str, Any] | None = None, **given: Any) -> Any:
    """A `Config` of what was given, then of what a run has stored, then of its defaults."""
    from partly.config import Config
    from partly.workflow import parse_options

    chosen = {field.name: stored[field.name] for field in fields(Config)} if stored else {}
    if given["options"]:
        chosen["options"] = parse_options(given["options"])
    del given["options"]
    return Config(**chosen | {name: value for name, value in given.items() if value is not None})


def _command() -> str:
    return shlex.join(["partly", *sys.argv[1:]])


def _show(results: dict[str, Any], out: Path) -> None:
    """The table of a comparison, and its page."""
    from partly.experiments import to_markdown
    from partly.report import comparison_report

    _say(to_markdown(results))
    _say(f"report: {comparison_report(results, out / 'report.html')}")


def _say(text: str) -> None:
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
def check(data: Data, convention: Convention = "partly") -> None:
    """Say what is in a data set and what is wrong with it.

    Example: `partly check data.csv`
    """
    from partly.workflow import check_data

    for line in check_data(data, convention):
        _say(line)


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
    data: Data,
    out: Annotated[Path, typer.Option(help="folder of the run")],
    method: Annotated[str | None, typer.Option(help="see `partly methods` [partly]")] = None,
    hide: Annotated[str | None, typer.Option(help=f"a study: {HIDING}")] = None,
    convention: Convention = "partly",
    resume: Annotated[bool, typer.Option("--resume", help="go on where it stopped")] = False,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    head_factor: HeadFactor = None,
    optimiser: Optimiser = None,
    weight_decay: WeightDecay = None,
    warmup: Warmup = None,
    schedule: Schedule = None,
    clip: Clip = None,
    ema: Ema = None,
    amp: Amp = None,
    backbone: Backbone = None,
    weights: Weights = None,
    image_size: ImageSize = None,
    standardise: Standardise = None,
    start: Start = None,
    expected_positives: ExpectedPositives = None,
    hold_out: Annotated[
        float | None,
        typer.Option(help="share of images to choose the epoch by, 0 keeps the last [0.1]"),
    ] = None,
    checkpoint_steps: Annotated[
        int | None, typer.Option(help="checkpoint every so many steps [each epoch]")
    ] = None,
    seed: Seed = None,
    workers: Workers = None,
    device: Device = None,
    set_: Set = None,
) -> None:
    """Train a model and keep everything about it in a folder.

    With --resume, options that are not given again are the run's own.

    Example: `partly train data.csv --out runs/first --backbone resnet50 --epochs 10`
    """
    from partly.workflow import stored_config, train_run

    stored = stored_config(out) if resume else None
    config = _config(
        stored, method=method, epochs=epochs, batch_size=batch_size, learning_rate=lr,
        head_factor=head_factor, optimiser=optimiser, weight_decay=weight_decay, warmup=warmup,
        schedule=schedule, clip=clip, ema=ema, amp=amp, backbone=backbone, weights=weights,
        image_size=image_size, standardise=standardise, start=start,
        expected_positives=expected_positives, hold_out=hold_out,
        checkpoint_steps=checkpoint_steps, seed=seed, workers=workers, device=device, options=set_,
    )  # fmt: skip
    setting = hide or (stored or {}).get("setting")
    train_run(data, out, config, setting=setting, convention=convention, resume=resume, say=_say)


@app.command()
def evaluate(
    run: Run,
    data: Data,
    part: Annotated[str | None, typer.Option(help="train, validation or test [test]")] = None,
    convention: Convention = "partly",
    json_: Annotated[bool, typer.Option("--json", help="print every metric as JSON")] = False,
    device: Device = None,
) -> None:
    """Measure a run's model on a data set.

    Example: `partly evaluate runs/first data.csv --json`
    """
    import json

    from partly.workflow import evaluate_run, summary

    evaluation = evaluate_run(run, data, part=part, convention=convention, device=device or "auto")
    _say(json.dumps(evaluation, indent=2) if json_ else summary(evaluation))


@app.command()
def predict(
    run: Run,
    images: Annotated[Path, typer.Argument(help="an image, a folder of images, or a data set")],
    out: Annotated[Path, typer.Option(help="CSV to write")] = Path("scores.csv"),
    device: Device = None,
) -> None:
    """Write the probability of every label for every image.

    Example: `partly predict runs/first photos/ --out scores.csv`
    """
    from partly.workflow import predict_run

    count = predict_run(run, images, out, device=device or "auto")
    _say(f"{count:,} images -> {out}")


@app.command()
def compare(
    data: Data,
    out: Annotated[Path, typer.Option(help="folder of the comparison")] = Path("runs/compare"),
    methods: Annotated[
        str | None, typer.Option(help="comma-separated; see `partly methods` [all]")
    ] = None,
    settings: Annotated[
        str | None, typer.Option(help="comma-separated, e.g. fal,pal:0.3,spl [the paper's eight]")
    ] = None,
    convention: Convention = "partly",
    seeds: Seeds = 3,
    jobs: Jobs = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    head_factor: HeadFactor = None,
    optimiser: Optimiser = None,
    weight_decay: WeightDecay = None,
    warmup: Warmup = None,
    schedule: Schedule = None,
    ema: Ema = None,
    backbone: Backbone = None,
    weights: Weights = None,
    image_size: ImageSize = None,
    standardise: Standardise = None,
    start: Start = None,
    expected_positives: ExpectedPositives = None,
    workers: Workers = None,
    device: Device = None,
) -> None:
    """Train methods × settings × seeds with equal budgets: the paper's tables.

    The data's training labels should be full; each setting hides some of them: fal none, pal:0.3
    all but 30 %, ppl:0.3 all negatives and all but 30 % of the positives, spl all but one positive
    an image. All methods in the paper's eight settings with three seeds are 462 trainings. A
    comparison that was interrupted goes on where it stopped.

    Example: `partly compare data.npz --methods partly,an,ign --settings pal:0.3,spl --seeds 3`
    """
    from partly import experiments

    config = _config(
        epochs=epochs, batch_size=batch_size, learning_rate=lr, head_factor=head_factor,
        optimiser=optimiser, weight_decay=weight_decay, warmup=warmup, schedule=schedule, ema=ema,
        backbone=backbone, weights=weights, image_size=image_size, standardise=standardise,
        start=start, expected_positives=expected_positives, workers=workers, device=device,
        options=None,
    )  # fmt: skip
    results = experiments.compare(
        data,
        out,
        methods=methods.split(",") if methods else None,
        settings=settings.split(",") if settings else experiments.PAPER_SETTINGS,
        seeds=seeds,
        config=config,
        convention=convention,
        jobs=jobs,
        command=_command(),
        say=_say,
    )
    _show(results, out)


@app.command()
def ablate(
    data: Data,
    out: Annotated[Path, typer.Option(help="folder of the ablation")] = Path("runs/ablate"),
    method: Annotated[str, typer.Option(help="a method that has parts: paper or partly")] = "paper",
    settings: Annotated[str, typer.Option(help="comma-separated")] = "pal:0.6,ppl:0.6",
    convention: Convention = "partly",
    seeds: Seeds = 3,
    jobs: Jobs = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    backbone: Backbone = None,
    weights: Weights = None,
    image_size: ImageSize = None,
    standardise: Standardise = None,
    start: Start = None,
    expected_positives: ExpectedPositives = None,
    workers: Workers = None,
    device: Device = None,
) -> None:
    """Train a method whole and without each of its parts: the paper's ablation.

    Example: `partly ablate data.npz --settings pal:0.6,ppl:0.6`
    """
    from partly import experiments

    config = _config(
        epochs=epochs, batch_size=batch_size, learning_rate=lr, backbone=backbone, weights=weights,
        image_size=image_size, standardise=standardise, start=start,
        expected_positives=expected_positives, workers=workers, device=device, options=None,
    )  # fmt: skip
    results = experiments.ablate(
        data,
        out,
        method=method,
        settings=settings.split(","),
        seeds=seeds,
        config=config,
        convention=convention,
        jobs=jobs,
        command=_command(),
        say=_say,
    )
    _show(results, out)
