"""Options that several commands share, and the boxes that `--help` sorts them into.

None means: the default of `config.Config`.
"""

from pathlib import Path
from typing import Annotated

import typer

# The boxes that `--help` sorts options into.
DATA = "Data"
MODEL = "Model"
LEARNING = "Learning"
IMAGES = "Images"
LABELS = "Method and labels"
MACHINE = "Machine"
SERVER = "Server"

Data = Annotated[
    Path, typer.Argument(help="a manifest, a folder, an .npz or what else `partly formats` lists")
]
Format = Annotated[
    str | None,
    typer.Option(
        help="force a format of `partly formats` [it is recognised]", rich_help_panel=DATA
    ),
]
Read = Annotated[
    list[str] | None,
    typer.Option(
        "--read", help="an option of the format, name=value; repeatable", rich_help_panel=DATA
    ),
]
OnBadImage = Annotated[
    str | None,
    typer.Option(
        help="error: name all bad images and stop; skip: leave them out [error]",
        rich_help_panel=DATA,
    ),
]
Verify = Annotated[
    str | None,
    typer.Option(
        help="look for bad images: full (decode all), quick (header and end), off [full]",
        rich_help_panel=DATA,
    ),
]
RecipeFile = Annotated[
    Path | None,
    typer.Option(
        "--recipe", help="a .toml with choices; what is given here wins", rich_help_panel=DATA
    ),
]
Run = Annotated[Path, typer.Argument(help="the folder of a run")]
Epochs = Annotated[
    int | None, typer.Option(help="passes over the data [12]", rich_help_panel=LEARNING)
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        help="[about 32 steps an epoch: 32 to 1024 rows, 8 to 64 images]", rich_help_panel=LEARNING
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--lr", help="[1e-2 if linear, 1e-4 if fine-tuned, else 1e-3]", rich_help_panel=LEARNING
    ),
]
HeadFactor = Annotated[
    float | None,
    typer.Option(
        help="learning rate of the head, × --lr [10 if fine-tuned, else 1]",
        rich_help_panel=LEARNING,
    ),
]
Optimiser = Annotated[
    str | None, typer.Option(help="adam, adamw or sgd [adam]", rich_help_panel=LEARNING)
]
WeightDecay = Annotated[
    float | None,
    typer.Option(
        help="of all weights, not of biases; the head's may differ [0]", rich_help_panel=LEARNING
    ),
]
HeadDecay = Annotated[
    float | None,
    typer.Option(
        help="weight decay of the head [as the method picks, else the same]",
        rich_help_panel=LEARNING,
    ),
]
Warmup = Annotated[
    float | None,
    typer.Option(help="share of steps [0 if linear, else 0.05]", rich_help_panel=LEARNING),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        help="cosine or constant [as the method picks, else cosine]", rich_help_panel=LEARNING
    ),
]
Clip = Annotated[
    float | None, typer.Option(help="largest gradient norm, 0 is off [0]", rich_help_panel=LEARNING)
]
Ema = Annotated[
    float | None,
    typer.Option(
        help="decay of averaged weights, 0 is off [as the method picks]", rich_help_panel=LEARNING
    ),
]
BatchNorm = Annotated[
    str | None,
    typer.Option(
        help="train, or keep the statistics of pretrained weights [as the method picks]",
        rich_help_panel=LEARNING,
    ),
]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="torch.compile the model: faster steps after a minute or two of preparation [no]",
        rich_help_panel=MACHINE,
    ),
]
Amp = Annotated[
    str | None, typer.Option(help="bfloat16: auto, on or off [auto]", rich_help_panel=MACHINE)
]
Backbone = Annotated[
    str | None,
    typer.Option(
        help="linear, mlp:768, small, or a timm name [linear on features, resnet50]",
        rich_help_panel=MODEL,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="a file (safetensors or a plain state dict), pretrained (of partly[weights] or timm's "
        "hub), none, or auto: pretrained where there are any [auto]",
        rich_help_panel=MODEL,
    ),
]
Head = Annotated[
    str | None,
    typer.Option(
        help="full, or sampled: for very many labels, a step computes and changes those that are "
        "known in its batch and a share q of the others (--set q=0.01) [full]",
        rich_help_panel=MODEL,
    ),
]
HeadOnly = Annotated[
    bool | None,
    typer.Option(
        "--head-only",
        help="keep the backbone as it is; its features are computed once",
        rich_help_panel=MODEL,
    ),
]
LinearStart = Annotated[
    bool | None,
    typer.Option(
        "--linear-start", help="train the head alone before all of it", rich_help_panel=MODEL
    ),
]
Resize = Annotated[
    str | None, typer.Option(help="stretch, or crop the middle [stretch]", rich_help_panel=IMAGES)
]
Augment = Annotated[
    str | None,
    typer.Option(
        help="paper (flip), strong (crop, flip, randaugment, cutout), none, or steps with commas "
        "[paper]",
        rich_help_panel=IMAGES,
    ),
]
Normalise = Annotated[
    str | None,
    typer.Option(
        help="imagenet, half, none, or m,m,m/d,d,d [as the backbone's weights want it]",
        rich_help_panel=IMAGES,
    ),
]
Decode = Annotated[
    str | None,
    typer.Option(
        help="cpu; gpu: JPEG is decoded there; once: pixels are kept on disk [cpu]",
        rich_help_panel=IMAGES,
    ),
]
Mix = Annotated[
    str | None, typer.Option(help="none, logicmix or mixup-pme [none]", rich_help_panel=IMAGES)
]
Finish = Annotated[
    str | None,
    typer.Option(
        help="none, or cft: tune each label's row of the head alone at the end [none]",
        rich_help_panel=MODEL,
    ),
]
GOAL = (
    "what thresholds are best for: f1, precision:0.9 (find as many as can be while 90 % are "
    "right), recall:0.9, or cost:1:5 (of a false positive, of a missed one)"
)
CALIBRATE = (
    "make probabilities true, on images that are not trained on: temperature, isotonic or none"
)
GoalOption = Annotated[
    str | None, typer.Option("--goal", help=f"{GOAL} [f1]", rich_help_panel=LABELS)
]
Calibrate = Annotated[str | None, typer.Option(help=f"{CALIBRATE} [none]", rich_help_panel=LABELS)]
GoalAgain = Annotated[
    str | None, typer.Option("--goal", help=f"{GOAL} [as before]", rich_help_panel=LABELS)
]
CalibrateAgain = Annotated[
    str | None,
    typer.Option("--calibrate", help=f"{CALIBRATE} [as before]", rich_help_panel=LABELS),
]
KeptIn = Annotated[
    str | None,
    typer.Option(
        help="where pseudo-labels that a method remembers are kept: memory; disk: a file in the "
        "run's folder; sparse or sparse:16: the 64 or 16 entries of an image that say most "
        "[memory]",
        rich_help_panel=LABELS,
    ),
]
ImageSize = Annotated[
    int | None, typer.Option(help="images become this square [448]", rich_help_panel=IMAGES)
]
Standardise = Annotated[
    bool | None,
    typer.Option(
        "--standardise/--no-standardise", help="scale the features [yes]", rich_help_panel=MODEL
    ),
]
Start = Annotated[
    str | None,
    typer.Option(help="head starts at class priors or plain [prior]", rich_help_panel=MODEL),
]
ExpectedPositives = Annotated[
    float | None,
    typer.Option(
        help="positives an image, if you know [estimated from the labels]", rich_help_panel=LABELS
    ),
]
Seed = Annotated[int | None, typer.Option(help="everything drawn at random follows from it [0]")]
Workers = Annotated[
    int | None, typer.Option(help="processes that read images [0]", rich_help_panel=MACHINE)
]
Device = Annotated[
    str | None, typer.Option(help="auto, cpu or cuda [auto]", rich_help_panel=MACHINE)
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="an option of the method, name=value; repeatable", rich_help_panel=LABELS
    ),
]
Convention = Annotated[
    str | None,
    typer.Option(
        help="numbers in the file: partly (1 yes, 0 no, -1 unknown), nan, or signed (1 yes, -1 no, "
        "0 unknown or not ticked) [partly]",
        rich_help_panel=DATA,
    ),
]
Seeds = Annotated[int | None, typer.Option(help="trainings of each, seeds 0, 1, … [3]")]
Jobs = Annotated[
    int | None, typer.Option(help="trainings at once [one a core]", rich_help_panel=MACHINE)
]
ProtocolFile = Annotated[
    Path | None,
    typer.Option(
        "--protocol", help="a .toml with a whole arena, as protocols/arena.toml; DATA is its folder"
    ),
]
Only = Annotated[
    list[str] | None, typer.Option("--only", help="a data set of the protocol; repeatable [all]")
]
