"""Images and feature rows -> batches of tensors.

What enters: a label table (its paths or features) and chunks of row numbers. What leaves: for each
chunk its rows and its inputs, on the device. The random choices of an image come from
(seed, epoch, image id), so the batches are the same with 0 or 8 workers.

Workers decode (or only read, where the GPU decodes) and crop; what is cheap for a whole batch at
once, to flip, to cut out and to normalise, happens on the device. With `decode="once"` pictures are
read from files of `pixels`, and there are no workers.
"""

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, Queue
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from partly import draws, images, pixels, tars
from partly.errors import ConfigError, DataError, PartlyWarning, RunError, first_few
from partly.labels import LabelTable
from partly.processes import cores, obey_parent_only
from partly.texts import Texts

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)
NORMALISATIONS = {
    "imagenet": (IMAGENET_MEAN, IMAGENET_DEVIATION),
    "half": ((0.5,) * 3, (0.5,) * 3),
    "none": ((0.0,) * 3, (1.0,) * 3),
}
RESIZES = ("stretch", "crop")
STEPS = ("crop", "flip", "randaugment", "cutout")  # of an augmentation
DRAWN_BY_TORCH = {"crop", "randaugment"}  # torchvision's, from torch's own generator
RECIPES = {"none": (), "paper": ("flip",), "strong": STEPS}
DECODERS = ("cpu", "gpu", "once")
CROP_AREA = (0.5, 1.0)  # a smaller part of a picture loses the small things that are labelled
CUTOUT = 0.5  # side of the square that is cut out, in sides of the picture

Chunks = Sequence[np.ndarray]


class Inputs(Protocol):
    """Where a model's inputs come from."""

    def batches(self, chunks: Chunks, epoch: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows [B], inputs) of each chunk; `epoch` draws the augmentation, None is without.

        The inputs are on the device. The rows are not: whoever looks them up need not wait for it.
        """
        ...


@dataclass(frozen=True)
class Look:
    """How a model looks at a picture; the defaults are the paper's.

    resize: "stretch" to size × size, or "crop": the shorter side to size, then the middle.
    augment: "paper" (flipped with probability ½), "strong" (a random part, flipped, RandAugment, a
    square cut out), "none", or steps of one's own such as "crop,flip".
    normalise: a name of `NORMALISATIONS`, or means and deviations: "0.5,0.5,0.5/0.5,0.5,0.5".
    decode: "gpu" sends JPEG bytes to the GPU and decodes them there. "once" keeps each picture on
    disk at its final size when it is first trained on, and reads it from there ever after.
    """

    size: int = 448
    resize: str = "stretch"
    augment: str = "paper"
    normalise: str = "imagenet"
    decode: str = "cpu"

    def problems(self) -> Iterator[str]:
        """Everything that is wrong with these choices."""
        for name, allowed in (("resize", RESIZES), ("decode", DECODERS)):
            if getattr(self, name) not in allowed:
                yield f"{name} is one of {', '.join(allowed)}, not '{getattr(self, name)}'"
        unknown = [step for step in self.steps if step not in STEPS]
        if unknown:
            yield (
                f"augment is one of {', '.join(RECIPES)}, or of {', '.join(STEPS)} with commas "
                f"between, not '{self.augment}'"
            )
        drawn = [step for step in self.steps if step in DRAWN_BY_TORCH]
        if self.decode == "once" and drawn:
            yield (
                f"decode once keeps one picture an image, and augment {' and '.join(drawn)} make "
                "another each epoch: augment with flip or cutout, or use decode cpu"
            )
        try:
            self.statistics()
        except ConfigError as error:
            yield from error.problems

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps of the augmentation."""
        if self.augment in RECIPES:
            return RECIPES[self.augment]
        return tuple(step.strip() for step in self.augment.split(","))

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation of each colour, of pixels in [0, 1]."""
        if self.normalise in NORMALISATIONS:
            return NORMALISATIONS[self.normalise]
        try:
            mean, deviation = (
                tuple(float(number) for number in part.split(","))
                for part in self.normalise.split("/")
            )
            if len(mean) == len(deviation) == 3 and min(deviation) > 0:
                return mean, deviation
        except ValueError:
            pass
        raise ConfigError(
            f"normalise is one of {', '.join(NORMALISATIONS)}, or three means and three deviations "
            f"such as 0.5,0.5,0.5/0.5,0.5,0.5, not '{self.normalise}'"
        )


def split_into_chunks(rows: np.ndarray, size: int) -> Chunks:
    """Chunks of nearly equal size, at most `size`: no last image alone in front of a batch norm."""
    return np.array_split(rows, max(1, -(-len(rows) // size)))


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device, without waiting for what it is still busy with."""
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


class FeatureInputs:
    """Rows of a feature matrix, held on the device."""

    def __init__(self, features: np.ndarray, device: torch.device) -> None:
        self.features = torch.tensor(features, dtype=torch.float32, device=device)

    def batches(self, chunks: Chunks, epoch: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        if not len(chunks):
            return
        every = sent(torch.from_numpy(np.concatenate(chunks)), self.features.device)
        for chunk, rows in zip(chunks, every.split([*map(len, chunks)]), strict=True):
            yield torch.from_numpy(chunk), self.features[rows]


class ImageInputs:
    """Image files, or spans of tars, as a `Look` says."""

    def __init__(
        self,
        paths: Texts,
        device: torch.device,
        look: Look = Look(),  # it is frozen
        *,
        keys: np.ndarray | None = None,
        seed: int = 0,
        workers: int = 0,
    ) -> None:
        """keys: [N] numbers of the images that draws follow; from their paths if None."""
        self.paths, self.device, self.look = Texts.of(paths), device, look
        self.keys = self.paths.keys() if keys is None else keys
        self.seed, self.workers = seed, workers
        self.explanation = _why_not_on_gpu(device) if look.decode == "gpu" else None
        self.on_gpu = look.decode == "gpu" and self.explanation is None
        self.kept: pixels.Pixels | None = None
        if look.decode == "once":
            self.explanation = pixels.describe(len(self.paths), look.size, look.resize)
        mean, deviation = look.statistics()
        # A line of a picture [S, 3], not a pixel: a CPU takes whole lines in half the time.
        self.mean = torch.tensor(mean, device=device).repeat(look.size, 1)
        self.deviation = torch.tensor(deviation, device=device).repeat(look.size, 1)

    def __len__(self) -> int:
        return len(self.paths)

    def batches(self, chunks: Chunks, epoch: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        # Those two steps borrow torch's generator, which a second thread must not.
        drawn = epoch is not None and DRAWN_BY_TORCH & {*self.look.steps}
        kept = None if drawn else self._find_kept(training=epoch is not None)
        made = self._make(chunks, epoch) if kept is None else self._gather(kept, chunks, epoch)
        borrows = drawn and (self.on_gpu or not self.workers)
        return made if self.device.type == "cpu" or borrows else ahead(made, self.device)

    def _find_kept(self, training: bool) -> pixels.Pixels | None:
        """The pictures on disk, made now if they are for training; None where some are not there.

        Predictions for new images use what is kept and keep nothing: they may never come again.
        """
        if self.look.decode != "once":
            return None
        if training and (self.kept is None or len(self.kept.missing)):
            self.kept = _keep(self.paths, self.look, self.workers)
        elif self.kept is None:
            self.kept = pixels.find(self.paths, self.look.size, self.look.resize)
        return None if len(self.kept.missing) else self.kept

    def _gather(
        self, kept: pixels.Pixels, chunks: Chunks, epoch: int | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for chunk in chunks:
            batch = kept.gather(chunk, pinned=self.device.type == "cuda")
            inputs = self._finish(batch.to(self.device, non_blocking=True), chunk, epoch)
            yield torch.from_numpy(chunk), inputs

    def _make(self, chunks: Chunks, epoch: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        chunks, every = [chunk for chunk in chunks if len(chunk)], chunks
        kind = _Encoded if self.on_gpu else _Pictures
        pictures = kind(self.paths, self.keys, self.look, self.seed, epoch)
        loader: torch.utils.data.DataLoader = torch.utils.data.DataLoader(
            pictures,  # type: ignore[arg-type]  # it has __len__ and __getitem__
            batch_sampler=chunks,  # type: ignore[arg-type]  # numbers are numbers
            collate_fn=pictures.stack,
            num_workers=self.workers,
            worker_init_fn=lambda number: obey_parent_only(),
            generator=torch.Generator(),  # or each epoch would take a draw from the model's own
            multiprocessing_context="fork" if self.workers else None,
            prefetch_factor=4 if self.workers else None,
            pin_memory=self.device.type == "cuda" and not self.on_gpu,
        )
        batches = _watched(loader)
        for chunk in every:
            if not len(chunk):  # a rank without a part of a small batch
                size, nothing = self.look.size, torch.empty(0, dtype=torch.uint8)
                yield (
                    torch.from_numpy(chunk),
                    self._finish(nothing.view(0, size, size, 3).to(self.device), chunk, epoch),
                )
                continue
            batch = next(batches)
            if isinstance(batch, DataError):
                raise batch
            if self.on_gpu:
                batch = self._decoded(batch, chunk)
            inputs = self._finish(batch.to(self.device, non_blocking=True), chunk, epoch)
            yield torch.from_numpy(chunk), inputs

    def _decoded(self, batch: "Encoded", chunk: np.ndarray) -> Tensor:
        try:
            return decode_on_gpu(batch, self.look, self.device)
        except images.ImageProblem as problem:
            named = first_few([self.paths[row] for row in chunk], len(chunk))
            raise DataError(f"cannot read one of these images: {problem}: {named}") from None

    def _finish(self, pictures: Tensor, chunk: np.ndarray, epoch: int | None) -> Tensor:
        """uint8 [B, S, S, 3] -> normalised [B, 3, S, S], flipped and cut where it is drawn."""
        keys = torch.from_numpy(self.keys[chunk]).to(self.device)
        if epoch is not None and "flip" in self.look.steps:  # while a pixel is still a byte
            draw = draws.uniform(self.seed, draws.FLIP, epoch, keys, keys.new_zeros(1))
            pictures = torch.where((draw < 0.5).view(-1, 1, 1, 1), pictures.flip(2), pictures)
        inputs = pictures.float().div_(255).sub_(self.mean).div_(self.deviation)
        inputs = inputs.permute(0, 3, 1, 2)
        if epoch is not None and "cutout" in self.look.steps:
            columns = torch.arange(2, device=self.device)
            centre = draws.uniform(self.seed, draws.CUTOUT, epoch, keys[:, None], columns)
            inputs = cut_out(inputs, centre)
        return inputs


def _watched(loader: Iterable[Any]) -> Iterator[Any]:
    """The loader's batches; a worker that was killed is a sentence."""
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise RunError(
            "a process that reads images was killed, perhaps for want of memory: fewer --workers"
        ) from None


class _Pictures:
    """What a worker does where the CPU decodes: the picture as uint8 [size, size, 3]."""

    def __init__(
        self, paths: Texts, keys: np.ndarray, look: Look, seed: int, epoch: int | None
    ) -> None:
        self.paths, self.keys, self.look = paths, keys, look
        self.seed, self.epoch = seed, epoch

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> Any:
        """The picture, or what is wrong with it: an error raised here would come as a traceback."""
        try:
            return self.make(row)
        except images.ImageProblem as problem:
            return DataError(f"cannot read image {self.paths[row]}: {problem}")

    def make(self, row: int) -> np.ndarray:
        steps = () if self.epoch is None else self.look.steps
        size = self.look.size
        zoom = 1.5 if "crop" in steps or self.look.resize == "crop" else 1
        picture = images.load(self.paths[row], int(size * zoom))
        if not DRAWN_BY_TORCH & {*steps}:
            return np.asarray(_resized(picture, self.look))
        with torch.random.fork_rng(devices=[]):  # torchvision draws from torch's own generator
            torch.default_generator.manual_seed(self.seed_of(row))  # the CPU's alone
            box = random_part(picture.size) if "crop" in steps else None
            picture = _resized(picture, self.look, box)
            return np.asarray(_randaugment(picture) if "randaugment" in steps else picture)

    def seed_of(self, row: int) -> int:
        """What this image draws from in this epoch."""
        return draws.seed_of(self.seed, draws.AUGMENT, self.epoch or 0, self.keys[row])

    @staticmethod
    def stack(pictures: list[np.ndarray | DataError]) -> Tensor | DataError:
        """A batch of uint8 pictures, or everything that is wrong with its files."""
        return _problems(pictures) or torch.from_numpy(np.stack(pictures))  # type: ignore[arg-type]


class Encoded(NamedTuple):
    """A batch for the GPU to decode: everything in one tensor, for each has its price to send.

    content: uint8, one item after another, JPEG bytes or pixels. sizes: bytes of each. shapes:
    (height, width) of pixels, None for a JPEG. seeds: what an image is augmented from, if it is.
    """

    content: Tensor
    sizes: list[int]
    shapes: list[tuple[int, int] | None]
    seeds: list[int | None]


class _Encoded(_Pictures):
    """What a worker does where the GPU decodes: (bytes or pixels, shape of pixels, seed)."""

    def make(self, row: int) -> Any:
        content = images.read(self.paths[row])
        seed = None
        if self.epoch is not None and DRAWN_BY_TORCH & {*self.look.steps}:
            seed = self.seed_of(row)
        if images.is_plain_jpeg(content):
            return np.frombuffer(content, np.uint8), None, seed
        pixels = np.asarray(images.decode(content))  # what a GPU does not read, or not alike
        return pixels.ravel(), pixels.shape[:2], seed

    @staticmethod
    def stack(pictures: list[Any]) -> Any:
        wrong = _problems(pictures)
        if wrong is not None:
            return wrong
        contents, shapes, seeds = zip(*pictures, strict=True)
        joined = torch.from_numpy(np.concatenate(contents))
        return Encoded(joined, [len(content) for content in contents], [*shapes], [*seeds])


def _problems(items: list[Any]) -> DataError | None:
    wrong = [item for item in items if isinstance(item, DataError)]
    return DataError([problem for error in wrong for problem in error.problems]) if wrong else None


def _resized(picture: Image.Image, look: Look, box: Any = None) -> Image.Image:
    """The picture, or the part of it in `box` (left, top, right, bottom), at its final size."""
    size = (look.size, look.size)
    if box is None and look.resize == "crop":
        box = middle(picture.size)
    if picture.size == size and box is None:
        return picture
    return picture.resize(size, Image.Resampling.BILINEAR, box=box)


def middle(size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The largest square in the middle."""
    side = min(size)
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    return left, top, left + side, top + side


def random_part(size: tuple[int, int]) -> tuple[int, int, int, int]:
    """A random part of a picture, as torchvision's RandomResizedCrop draws it."""
    from torchvision.transforms import RandomResizedCrop

    blank = torch.empty(1, size[1], size[0], device="meta")
    top, left, height, width = RandomResizedCrop.get_params(blank, [*CROP_AREA], [3 / 4, 4 / 3])
    return left, top, left + width, top + height


def _randaugment(picture: Any) -> Any:
    from torchvision.transforms import RandAugment

    return RandAugment()(picture)


def cut_out(inputs: Tensor, centre: Tensor) -> Tensor:
    """A square of each picture becomes the mean colour. centre [B, 2] in [0, 1)."""
    height, width = inputs.shape[-2:]
    rows = torch.arange(height, device=inputs.device) / height
    columns = torch.arange(width, device=inputs.device) / width
    inside_rows = (rows - centre[:, :1]).abs() < CUTOUT / 2
    inside_columns = (columns - centre[:, 1:]).abs() < CUTOUT / 2
    inside = inside_rows[:, None, :, None] & inside_columns[:, None, None, :]
    return inputs.masked_fill(inside, 0)


# --- decoding on the GPU -------------------------------------------------------------------------


def _why_not_on_gpu(device: torch.device) -> str | None:
    """None where the GPU can decode JPEG; otherwise the one line that says why the CPU does."""
    if device.type != "cuda":
        return f"JPEG is decoded by the CPU: the model runs on {device}, not on a GPU"
    try:
        from torchvision.io import decode_jpeg

        decode_jpeg(torch.frombuffer(bytearray(_tiny_jpeg()), dtype=torch.uint8), device=device)
    except Exception as error:
        return f"JPEG is decoded by the CPU: the GPU refuses ({str(error).splitlines()[0]})"
    return None


def _tiny_jpeg() -> bytes:
    import io

    stream = io.BytesIO()
    Image.new("RGB", (16, 16)).save(stream, "JPEG")
    return stream.getvalue()


def decode_on_gpu(batch: Encoded, look: Look, device: torch.device) -> Tensor:
    """JPEG bytes, or the pixels of other pictures -> uint8 [B, S, S, 3], on the GPU."""
    from torchvision.io import ImageReadMode, decode_jpeg

    items = batch.content.split(batch.sizes)
    encoded = [item for item, shape in zip(items, batch.shapes, strict=True) if shape is None]
    try:
        on_device = decode_jpeg(encoded, mode=ImageReadMode.RGB, device=device) if encoded else []
        decoded = iter(on_device)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:  # one that the GPU cannot read
        reason = str(error).splitlines()[0]
        said = f"the CPU decodes a batch that the GPU cannot: {reason}"
        warnings.warn(said, PartlyWarning, stacklevel=2)
        decoded = (_pixels(images.decode(item.numpy().tobytes()), device) for item in encoded)
    pictures = [
        next(decoded) if shape is None else item.to(device).view(*shape, 3).permute(2, 0, 1)
        for item, shape in zip(items, batch.shapes, strict=True)
    ]
    resized = [_resized_on_gpu(*pair, look) for pair in zip(pictures, batch.seeds, strict=True)]
    return torch.stack(resized).permute(0, 2, 3, 1)


def _pixels(picture: Image.Image, device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(picture)).to(device).permute(2, 0, 1)


def _resized_on_gpu(pixels: Tensor, seed: int | None, look: Look) -> Tensor:
    """uint8 [3, H, W] -> [3, S, S]; with a seed, augmented as it says."""
    from torchvision.transforms.functional import resize

    size = (pixels.shape[2], pixels.shape[1])
    if seed is None:
        box = middle(size) if look.resize == "crop" else (0, 0, *size)
        left, top, right, bottom = box
        return resize(pixels[:, top:bottom, left:right], [look.size] * 2, antialias=True)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        left, top, right, bottom = random_part(size) if "crop" in look.steps else (0, 0, *size)
        picture = resize(pixels[:, top:bottom, left:right], [look.size] * 2, antialias=True)
        return _randaugment(picture) if "randaugment" in look.steps else picture


def ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """The same batches, each made on a stream of its own while the GPU works on the one before."""
    made: Queue[Any] = Queue(maxsize=2)
    stopped = threading.Event()
    stream = torch.cuda.Stream(device)

    def work() -> None:
        try:
            with torch.cuda.stream(stream):
                for batch in batches:
                    made.put((batch, stream.record_event()))
                    if stopped.is_set():
                        return
            made.put(None)
        except BaseException as error:  # it is raised again where the batches are used
            made.put(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            (rows, inputs), ready = item
            current = torch.cuda.current_stream(device)
            current.wait_event(ready)
            inputs.record_stream(current)  # or its memory could be given away too early
            yield rows, inputs
    finally:
        stopped.set()
        while thread.is_alive():  # it may wait for room
            with suppress(Empty):
                made.get(timeout=0.1)


# --- opening -------------------------------------------------------------------------------------


def prepare(
    tables: Iterable[LabelTable | None],
    look: Look,
    *,
    workers: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Decode now what `decode="once"` asks for, so that trainings on any part of it begin at once.

    workers: processes, one a core if 0. Tables of features, and other ways to decode, need nothing.
    """
    if look.decode != "once":
        return
    for table in tables:
        if table is not None and table.features is None and table.paths is not None:
            _keep(table.paths, look, workers, say)


def _keep(
    paths: Texts, look: Look, workers: int, say: Callable[[str], None] = lambda line: None
) -> pixels.Pixels:
    decode = partial(_decoded_once, replace(look, augment="none"))
    return pixels.keep(paths, look.size, look.resize, decode, workers or cores(), say)


def _decoded_once(look: Look, paths: Texts) -> np.ndarray | DataError:
    """uint8 [n, S, S, 3], made as a worker makes them, or everything that is wrong with them."""
    pictures = _Pictures(paths, np.zeros(0, np.int64), look, 0, None)
    made = [pictures[row] for row in range(len(paths))]
    return _problems(made) or np.stack(made)


def missing_images(paths: Texts) -> Iterator[str]:
    """A sentence if some of these files are not there."""
    missing = [path for path in paths if not tars.exists(path)]
    if missing:
        yield f"{len(missing)} of {len(paths)} images are missing: {first_few(missing)}"


def open_inputs(
    table: LabelTable,
    device: torch.device,
    look: Look = Look(),  # it is frozen
    *,
    seed: int = 0,
    workers: int = 0,
) -> Inputs:
    """The inputs of a table: its features where it has them, its images otherwise."""
    if table.features is not None:
        return FeatureInputs(table.features, device)
    if table.paths is None:
        raise DataError("the table has neither image paths nor features")
    keys = table.ids.keys()
    return ImageInputs(table.paths, device, look, keys=keys, seed=seed, workers=workers)
