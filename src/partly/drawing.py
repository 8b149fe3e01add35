"""The embedded data set: small scenes drawn by code, for `partly demo` and for tests.

What enters: a seed, a picture's index and a size in pixels.
What leaves: the picture and which of L = 36 things are in it; or a folder of pictures with a
manifest. A picture is a pure function of (seed, index): it does not depend on how many are drawn,
and its labels do not depend on its size.

The order of `THINGS` is the order of frequency, from more than a quarter of the pictures to about
one in a hundred. A thing shows up mostly in its home scenes, so labels co-occur. Place, size, turn,
stretch, colours and clutter say nothing about the labels.
"""

import csv
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from partly.errors import ConfigError, DataError, raise_if

Point = tuple[float, float]
Colour = tuple[int, int, int]

FORMAT = 1  # raise it when the pixels or labels of a seed change, so that old folders are redrawn
SUPERSAMPLING = 4  # drawn this many times larger, then averaged: smooth edges
SMALLEST_SIZE = 16

MOST_FREQUENT, LEAST_FREQUENT = 0.27, 0.01  # share of the pictures; in between, a geometric fall
FEWEST, MOST = 2, 5  # things in one picture
AT_HOME = 0.75  # share of a thing's appearances that fall into its home scenes
BORROWED = 0.15  # share of the pictures with a background drawn without regard to the scene
RADIUS = (0.17, 0.26)  # of a thing, as a share of the picture


def colours(codes: str) -> tuple[Colour, ...]:
    return tuple((red, green, blue) for red, green, blue in map(bytes.fromhex, codes.split()))


PAPER, NIGHT = colours("fffdf8 26223c")
PALETTE = colours("e24a47 f0803c f2b830 6cac48 229684 3a8cce 5c58be 9e54b2 e26494 966242")
WATER = PALETTE[5]
DAYS = (  # the top of the sky, its lower end, the ground
    colours("c4e2f4 f0f7f6 bedeb2"),
    colours("fae2c8 fef4e4 deccac"),
    colours("d6d2f0 f6eef8 b8cce2"),
    colours("c8ece2 f4faec e2deaa"),
    colours("f8d2d6 fef0e8 c6ced2"),
    colours("e2e6ec fafafa ced6c4"),
)
NIGHTS = (
    colours("181c3a 3a3a68 1e3042"),
    colours("281838 5c3a62 2a2240"),
    colours("102836 2c5862 163234"),
)


# --- Parts: what things are made of ---------------------------------------------------------------


class Part(NamedTuple):
    """A filled outline, or a line where `width` is not 0; y points downwards, 0 is the centre."""

    ink: int
    points: Sequence[Point]
    width: float = 0


# The inks: a thing's colour and two shades of it, a second colour, and two that never change.
MAIN, DARK, LIGHT, ACCENT, WHITE, BLACK = range(6)


def arc(x: float, y: float, radius: float, start: int, end: int, count: int = 13) -> list[Point]:
    """`count` points from angle `start` to `end` in degrees: 0 is right, 90 is down."""
    angles = np.radians(np.linspace(start, end, count)).tolist()
    return [(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles]


def spikes(count: int, inner: float, outer: float) -> list[Point]:
    """The outline of a star, first spike upwards."""
    turns = arc(0, 0, 1, -90, 270, 2 * count + 1)[:-1]
    radii = [outer, inner] * count
    return [(radius * x, radius * y) for radius, (x, y) in zip(radii, turns, strict=True)]


def shape(ink: int, *points: Point) -> Part:
    return Part(ink, points)


def box(ink: int, left: float, top: float, right: float, bottom: float) -> Part:
    return shape(ink, (left, top), (right, top), (right, bottom), (left, bottom))


def disc(ink: int, x: float, y: float, width: float, height: float = 0) -> Part:
    """`width` and `height` are half axes; without a height it is round."""
    circle = arc(0, 0, 1, 0, 345, 24)
    return Part(ink, [(x + width * a, y + (height or width) * b) for a, b in circle])


def line(ink: int, width: float, *points: Point) -> Part:
    return Part(ink, points, width)


def both(*parts: Part) -> list[Part]:
    """The parts and their mirror images."""
    mirrored = [Part(ink, [(-x, y) for x, y in points], width) for ink, points, width in parts]
    return [*parts, *mirrored]


# --- The things ----------------------------------------------------------------------------------


class Thing(NamedTuple):
    """What carries one label: the scenes where it is at home, and its parts from back to front."""

    scenes: tuple[str, ...]
    parts: Sequence[Part]


def thing(scenes: str, *parts: Part) -> Thing:
    return Thing(tuple(scenes.split()), parts)


SCENES = ("sea", "garden", "night", "town", "sky", "table")
# In hundredths of a thing's radius; from the most to the least frequent thing.
# Set by hand: one argument a line would triple the table.
# fmt: off
THINGS: dict[str, Thing] = {
    "cloud": thing("sky sea", disc(MAIN, -55, 15, 40), disc(MAIN, -10, -20, 50),
        disc(MAIN, 45, 0, 42), disc(MAIN, 70, 25, 30), box(MAIN, -55, 0, 70, 55),
        line(LIGHT, 10, *arc(-10, -20, 34, 190, 280))),
    "tree": thing("garden town", box(ACCENT, -14, 30, 14, 100), *both(disc(MAIN, 35, 0, 45)),
        disc(MAIN, 0, -45, 55), disc(LIGHT, 15, -50, 12)),
    "star": thing("night table", shape(MAIN, *spikes(5, 45, 100)),
        shape(LIGHT, *spikes(5, 22, 50))),
    "house": thing("town night", box(ACCENT, 35, -85, 58, -20), box(MAIN, -70, -15, 70, 90),
        shape(DARK, (-95, -10), (0, -95), (95, -10)), box(ACCENT, -45, 30, -5, 90),
        box(LIGHT, 15, 20, 52, 57)),
    "flower": thing("garden table", line(DARK, 13, (0, -20), (6, 50), (0, 100)),
        disc(DARK, 28, 62, 26, 13),
        *(disc(MAIN, x, y, 27) for x, y in arc(0, -35, 38, -90, 198, 5)), disc(ACCENT, 0, -35, 22)),
    "fish": thing("sea table", shape(DARK, (40, 0), (100, -50), (85, 0), (100, 50)),
        shape(DARK, (-20, -30), (25, -75), (35, -20)), disc(MAIN, -15, 0, 75, 46),
        line(ACCENT, 12, *arc(-75, 0, 62, -36, 36)), disc(WHITE, -55, -10, 13),
        disc(BLACK, -57, -10, 7)),
    "sun": thing("sky sea", shape(MAIN, *spikes(10, 62, 100)), disc(ACCENT, 0, 0, 52),
        disc(WHITE, -15, -15, 14)),
    "cup": thing("table", line(MAIN, 15, *arc(50, 20, 34, -80, 80)),
        shape(MAIN, (-75, -25), (55, -25), (40, 80), (-60, 80)), disc(DARK, -10, -25, 65, 16),
        line(LIGHT, 10, (-35, -50), (-25, -65), (-35, -80), (-25, -95)),
        line(LIGHT, 10, (10, -50), (20, -65), (10, -80), (20, -95))),
    "boat": thing("sea", line(DARK, 10, (0, -95), (0, 40)),
        shape(ACCENT, (10, -85), (10, 25), (80, 25)),
        shape(LIGHT, (-10, -60), (-10, 25), (-65, 25)),
        shape(MAIN, (-100, 38), (100, 38), (60, 85), (-65, 85))),
    "moon": thing("night", shape(MAIN, *arc(25, 0, 100, 60, 300, 25), *arc(100, 0, 90, 254, 106)),
        disc(DARK, -42, 20, 11), disc(DARK, -30, -38, 8)),
    "car": thing("town", shape(MAIN, (-55, 0), (-35, -55), (35, -55), (60, 0)),
        shape(LIGHT, (-38, -2), (-25, -40), (-2, -40), (-2, -2)),
        shape(LIGHT, (10, -2), (10, -40), (28, -40), (43, -2)), box(MAIN, -100, -5, 100, 40),
        *both(disc(BLACK, 52, 42, 27), disc(ACCENT, 52, 42, 12))),
    "balloon": thing("sky town", line(DARK, 7, (0, 40), (12, 60), (-8, 80), (6, 105)),
        disc(MAIN, 0, -35, 55, 66), shape(MAIN, (0, 25), (16, 45), (-16, 45)),
        disc(LIGHT, -20, -60, 11, 17)),
    "apple": thing("table garden", *both(disc(MAIN, 32, 20, 52, 66)),
        line(DARK, 12, (0, -35), (8, -80)), disc(ACCENT, 38, -70, 28, 15),
        disc(LIGHT, -45, 0, 10, 17)),
    "bird": thing("sky garden", line(ACCENT, 8, (-5, 50), (-5, 90)),
        line(ACCENT, 8, (20, 50), (20, 90)), shape(DARK, (40, 10), (100, -20), (90, 30)),
        disc(MAIN, 5, 15, 62, 45), disc(MAIN, -45, -30, 36),
        shape(ACCENT, (-72, -42), (-105, -22), (-72, -15)),
        shape(DARK, (-25, 5), (55, 0), (20, 42)), disc(BLACK, -52, -36, 8)),
    "heart": thing("table night", *both(disc(MAIN, 45, -35, 50)),
        shape(MAIN, (-89, -11), (0, -50), (89, -11), (0, 95)),
        line(LIGHT, 12, *arc(-45, -35, 30, 170, 260))),
    "flag": thing("town sea", line(DARK, 13, (-70, -90), (-70, 100)),
        shape(MAIN, (-65, -85), (-20, -100), (30, -75), (90, -90),
            (90, 0), (30, 15), (-20, -10), (-65, 5)),
        line(ACCENT, 22, (-50, -40), (-20, -55), (30, -30), (75, -42))),
    "mushroom": thing("garden", shape(LIGHT, (-20, 0), (20, 0), (32, 90), (-32, 90)),
        shape(MAIN, (-95, 10), *arc(0, 0, 92, 180, 360), (95, 10)), disc(ACCENT, -45, -30, 16),
        disc(ACCENT, 10, -60, 15), disc(ACCENT, 50, -20, 17)),
    "lightning": thing("night sky",
        shape(MAIN, (15, -100), (-55, 12), (-8, 12), (-30, 100), (58, -18), (10, -18), (55, -100))),
    "umbrella": thing("town sea", line(DARK, 11, (0, -20), (0, 75), *arc(17, 75, 17, 180, 20, 6)),
        shape(MAIN, *arc(0, 8, 94, 180, 360),
            *arc(63, 8, 31, 0, -180), *arc(0, 8, 31, 0, -180), *arc(-63, 8, 31, 0, -180)),
        shape(ACCENT, (0, -86), *arc(0, 8, 31, 0, -180))),
    "bottle": thing("table sea", box(MAIN, -16, -75, 16, -30),
        shape(MAIN, (-16, -40), (16, -40), (42, -10), (42, 100), (-42, 100), (-42, -10)),
        box(ACCENT, -21, -100, 21, -72), box(LIGHT, -42, 20, 42, 65)),
    "butterfly": thing("garden sky",
        *both(disc(MAIN, 50, -35, 44, 48), disc(ACCENT, 42, 42, 35, 38)),
        *both(disc(LIGHT, 52, -38, 19), line(DARK, 7, (0, -50), (25, -98))),
        disc(DARK, 0, 5, 12, 70)),
    "kite": thing("sky", line(DARK, 7, (0, 30), (20, 55), (0, 75), (25, 105)),
        shape(MAIN, (0, -100), (62, -30), (0, 45), (-62, -30)),
        shape(ACCENT, (0, -100), (62, -30), (0, -30)), shape(ACCENT, (0, 45), (-62, -30), (0, -30)),
        shape(MAIN, (-15, 60), (-10, 90), (30, 60), (25, 90))),
    "candle": thing("night table", box(MAIN, -26, -25, 26, 80),
        line(LIGHT, 12, (-10, -10), (-10, 30)),
        shape(DARK, (-60, 75), (60, 75), (42, 100), (-42, 100)),
        shape(ACCENT, (0, -105), *arc(0, -55, 22, -20, 200))),
    "leaf": thing("garden", shape(MAIN, *arc(-70, -10, 114, -52, 52), *arc(70, -10, 114, 128, 232)),
        line(DARK, 9, (0, -70), (0, 105)), line(DARK, 6, (-24, -57), (0, -35), (24, -57)),
        line(DARK, 6, (-30, -22), (0, 5), (30, -22)), line(DARK, 6, (-24, 23), (0, 45), (24, 23))),
    "lighthouse": thing("sea night", shape(MAIN, (-24, -50), (24, -50), (42, 100), (-42, 100)),
        shape(LIGHT, (-29, -10), (29, -10), (33, 22), (-33, 22)),
        shape(LIGHT, (-37, 55), (37, 55), (40, 85), (-40, 85)), box(ACCENT, -20, -80, 20, -50),
        shape(DARK, (-32, -76), (0, -105), (32, -76)), line(DARK, 10, (-34, -48), (34, -48))),
    "bell": thing("town night", disc(DARK, 0, 72, 22), disc(DARK, 0, -80, 16),
        shape(MAIN, (-85, 65), (-55, 30), *arc(0, -20, 50, 180, 360), (55, 30), (85, 65)),
        line(ACCENT, 14, (-48, 25), (48, 25))),
    "rocket": thing("night sky", shape(ACCENT, (-25, 50), (25, 50), (0, 110)),
        shape(DARK, (-20, 0), (-65, 70), (65, 70), (20, 0)),
        shape(MAIN, *arc(-85, 0, 122, -46, 34), *arc(85, 0, 122, 146, 226)),
        disc(LIGHT, 0, -25, 17)),
    "key": thing("table town", line(MAIN, 20, *arc(0, -58, 33, 0, 360, 17)),
        line(MAIN, 19, (0, -20), (0, 95)), line(MAIN, 18, (0, 55), (36, 55)),
        line(MAIN, 18, (0, 88), (36, 88))),
    "snail": thing("garden", line(ACCENT, 28, (85, 75), (-55, 75), (-75, 30), (-72, 10)),
        line(ACCENT, 7, (-74, 10), (-95, -35)), line(ACCENT, 7, (-74, 10), (-60, -35)),
        disc(MAIN, 20, 5, 62), line(DARK, 10, *arc(20, 5, 40, 60, 330), *arc(15, 5, 20, -20, 200))),
    "anchor": thing("sea", line(MAIN, 14, *arc(0, -75, 18, 0, 360)),
        line(MAIN, 17, (0, -55), (0, 90)), line(MAIN, 15, (-40, -30), (40, -30)),
        line(MAIN, 17, *arc(0, 15, 75, 10, 170)),
        *both(shape(MAIN, (100, 38), (70, -5), (48, 40)))),
    "gift": thing("table", *both(line(ACCENT, 13, *arc(-25, -60, 22, 60, 390))),
        box(MAIN, -70, -10, 70, 90), box(DARK, -82, -38, 82, -5), box(ACCENT, -14, -38, 14, 90)),
    "ladder": thing("town garden", *both(line(MAIN, 15, (38, -95), (46, 95))),
        *(line(DARK, 13, (-40, y), (40, y)) for y in (-65, -22, 22, 65))),
    "crown": thing("night",
        shape(MAIN, (-90, -50), (-42, 0), (0, -75), (42, 0), (90, -50), (70, 70), (-70, 70)),
        box(DARK, -70, 45, 70, 72), *both(disc(ACCENT, 90, -50, 14)), disc(ACCENT, 0, -75, 14)),
    "hourglass": thing("table", shape(LIGHT, (-55, -85), (55, -85), (-55, 85), (55, 85)),
        shape(ACCENT, (-30, -45), (30, -45), (0, 0)), shape(ACCENT, (-50, 85), (50, 85), (0, 35)),
        line(MAIN, 20, (-60, -88), (60, -88)), line(MAIN, 20, (-60, 88), (60, 88))),
    "cactus": thing("town garden", line(MAIN, 36, (0, -75), (0, 50)),
        line(MAIN, 22, (0, 20), (-55, 20), (-55, -30)), line(MAIN, 22, (0, 0), (55, 0), (55, -50)),
        shape(ACCENT, (-50, 45), (50, 45), (36, 100), (-36, 100))),
    "diamond": thing("night sea",
        shape(MAIN, (-55, -65), (55, -65), (98, -15), (0, 95), (-98, -15)),
        shape(LIGHT, (-30, -15), (0, -65), (30, -15)), shape(DARK, (30, -15), (98, -15), (0, 95)),
        shape(LIGHT, (-30, -15), (-98, -15), (0, 95))),
}
# fmt: on
LABEL_NAMES: tuple[str, ...] = tuple(THINGS)


# --- One picture ---------------------------------------------------------------------------------


class Pen:
    """Puts parts on the canvas: `unit` pixels large at (x, y), turned, stretched and mirrored."""

    def __init__(self, canvas: ImageDraw.ImageDraw, x: float, y: float, unit: float) -> None:
        self.canvas, self.x, self.y, self.unit = canvas, x, y, unit
        self.across, self.down = (unit, 0.0), (0.0, unit)

    def turn(self, degrees: float, stretch: float = 1, mirrored: bool = False) -> None:
        cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        width, height = self.unit * (-stretch if mirrored else stretch), self.unit / stretch
        self.across, self.down = (width * cosine, width * sine), (-height * sine, height * cosine)

    def draw(self, part: Part, colour: Colour) -> None:
        (a, b), (c, d) = self.across, self.down
        placed = [(self.x + a * x + c * y, self.y + b * x + d * y) for x, y in part.points]
        if not part.width:
            self.canvas.polygon(placed, fill=colour)
            return
        thickness = max(1, round(part.width * self.unit))
        self.canvas.line(placed, fill=colour, width=thickness, joint="curve")
        half = thickness / 2
        for x, y in (placed[0], placed[-1]):  # round ends
            self.canvas.ellipse((x - half, y - half, x + half, y + half), fill=colour)


def mix(first: Colour, second: Colour, share: float) -> Colour:
    """`share` of the second colour in the first."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def vary(random: Random, colour: Colour) -> Colour:
    return mix(colour, random.choice((PAPER, NIGHT)), random.uniform(0, 0.22))


def chances(scene: str) -> list[float]:
    """The chance of each label in a scene; averaged over the scenes, a geometric long tail."""
    fall = (LEAST_FREQUENT / MOST_FREQUENT) ** (1 / (len(THINGS) - 1))
    found = []
    for rank, (scenes, _) in enumerate(THINGS.values()):
        at_home, elsewhere = AT_HOME / len(scenes), (1 - AT_HOME) / (len(SCENES) - len(scenes))
        share = at_home if scene in scenes else elsewhere
        found.append(MOST_FREQUENT * fall**rank * share * len(SCENES))
    return found


CHANCES = {scene: chances(scene) for scene in SCENES}


def choose_labels(random: Random) -> tuple[str, list[int]]:
    """A scene and the labels in it, drawn again until there are neither too few nor too many."""
    while True:
        scene = random.choice(SCENES)
        chosen = [label for label, chance in enumerate(CHANCES[scene]) if random.random() < chance]
        if FEWEST <= len(chosen) <= MOST:
            return scene, chosen


def choose_places(random: Random, count: int) -> list[tuple[float, float, float]]:
    """Centre and radius of each thing as shares of the picture; they may touch, rarely cover."""
    placed: list[tuple[float, float, float]] = []

    def room(place: Point) -> float:
        gaps = [math.dist(place, (x, y)) - radius - other for x, y, other in placed]
        return min([*gaps, 0.02])  # beyond a small gap, more room is no better: first come

    for _ in range(count):
        radius = random.uniform(*RADIUS) * (1 - 0.07 * (count - FEWEST))
        low, high = radius * 0.9, 1 - radius * 0.9
        tries = [(random.uniform(low, high), random.uniform(low, high)) for _ in range(12)]
        placed.append((*max(tries, key=room), radius))
    return placed


def draw_thing(random: Random, pen: Pen, name: str) -> None:
    """Turned and coloured by chance, so that neither tells what it is."""
    pen.turn(random.gauss(0, 12), random.uniform(0.88, 1.14), random.random() < 0.5)
    main, accent = (vary(random, colour) for colour in random.sample(PALETTE, 2))
    inks = (main, mix(main, NIGHT, 0.5), mix(main, PAPER, 0.62), accent, PAPER, NIGHT)
    for part in THINGS[name].parts:
        pen.draw(part, inks[part.ink])


SCRAPS = (
    disc(MAIN, 0, 0, 0.6),
    line(MAIN, 0.4, (-1.3, 0), (1.3, 0)),
    line(MAIN, 0.4, *arc(0, 0, 1, 0, 200)),
    shape(MAIN, (-0.9, -0.6), (1, 0), (-0.3, 0.8)),
)


def draw_clutter(random: Random, canvas: ImageDraw.ImageDraw, side: int) -> None:
    """Small scraps without a label, in the things' colours."""
    for _ in range(random.randrange(3, 9)):
        x, y, unit = random.random(), random.random(), random.uniform(0.02, 0.06)
        pen = Pen(canvas, x * side, y * side, unit * side)
        pen.turn(random.uniform(0, 360))
        pen.draw(random.choice(SCRAPS), vary(random, random.choice(PALETTE)))


def draw_background(random: Random, scene: str, side: int) -> Image.Image:
    """A sky that fades towards the horizon, and the scene's ground below it."""
    if random.random() < BORROWED:
        scene = random.choice(SCENES)
    top, bottom, ground = random.choice(NIGHTS if scene == "night" else DAYS)
    fade = Image.new("RGB", (1, 2), top)
    fade.putpixel((0, 1), bottom)
    picture = fade.resize((side, side), Image.Resampling.BILINEAR)
    pen = Pen(ImageDraw.Draw(picture), 0, 0, side)  # the unit is the whole picture
    GROUNDS[scene](pen, ground, random.uniform(0.5, 0.8), random.uniform(0, math.tau))
    return picture


def ridge(height: float, swing: float, waves: float, phase: float) -> Part:
    """The area below a wavy line."""
    steps = [step / 24 for step in range(25)]
    crest = [(x, height + swing * math.sin(waves * math.tau * x + phase)) for x in steps]
    return shape(MAIN, *crest, (1, 1), (0, 1))


def draw_waves(pen: Pen, ground: Colour, horizon: float, phase: float) -> None:
    for row in range(4):
        crests = ridge(horizon + 0.13 * row, 0.012, 4, phase + 2 * row)
        pen.draw(crests, mix(ground, WATER, 0.15 + 0.07 * row))


def draw_hills(pen: Pen, ground: Colour, horizon: float, phase: float) -> None:
    pen.draw(ridge(horizon - 0.08, 0.06, 1.1, phase), mix(ground, PAPER, 0.3))
    pen.draw(ridge(horizon + 0.06, 0.05, 0.8, phase + 2), ground)


def draw_night(pen: Pen, ground: Colour, horizon: float, phase: float) -> None:
    for step in range(1, 12):
        speck = disc(MAIN, (phase * step) % 1, (phase * step**2) % horizon, 0.007)
        pen.draw(speck, mix(ground, PAPER, 0.5))
    pen.draw(ridge(horizon + 0.08, 0.05, 1.3, phase), ground)


def draw_roofs(pen: Pen, ground: Colour, horizon: float, phase: float) -> None:
    for step in range(7):
        top = horizon - 0.04 + 0.1 * math.sin(phase + 2.4 * step)
        front = box(MAIN, step / 7, top, (step + 1) / 7, 1)
        pen.draw(front, mix(ground, PAPER, 0.25 + 0.2 * (step % 2)))
    pen.draw(box(MAIN, 0, horizon + 0.14, 1, 1), ground)


def draw_haze(pen: Pen, ground: Colour, horizon: float, phase: float) -> None:
    for step in range(3):
        x, y = (phase + 0.37 * step) % 1, horizon - 0.25 + 0.2 * step
        pen.draw(disc(MAIN, x, y, 0.32, 0.06), mix(ground, PAPER, 0.6))


def draw_cloth(pen: Pen, ground: Colour, horizon: float, phase: float) -> None:
    pen.draw(box(MAIN, 0, horizon, 1, 1), ground)
    for step in range(-1, 5):
        left = (step + phase / math.tau) / 5
        pen.draw(box(MAIN, left, horizon, left + 0.1, 1), mix(ground, PAPER, 0.35))
    pen.draw(box(MAIN, 0, horizon, 1, horizon + 0.02), mix(ground, NIGHT, 0.12))


GROUNDS: dict[str, Callable[[Pen, Colour, float, float], None]] = {
    "sea": draw_waves,
    "garden": draw_hills,
    "night": draw_night,
    "town": draw_roofs,
    "sky": draw_haze,
    "table": draw_cloth,
}


def draw_picture(seed: int, index: int, size: int = 64) -> tuple[Image.Image, np.ndarray]:
    """Picture number `index` of `seed`, and its labels: int8 [L], 1 where the thing is in it.

    >>> picture, labels = draw_picture(seed=0, index=7)
    >>> picture.size, labels.shape
    ((64, 64), (36,))
    """
    check_numbers(size, seed=seed, index=index)
    random = Random(f"{seed}/{index}")
    scene, chosen = choose_labels(random)
    side = size * SUPERSAMPLING
    picture = draw_background(random, scene, side)
    canvas = ImageDraw.Draw(picture)
    draw_clutter(random, canvas, side)
    random.shuffle(chosen)  # which thing covers which is chance, not frequency
    for label, (x, y, radius) in zip(chosen, choose_places(random, len(chosen)), strict=True):
        pen = Pen(canvas, x * side, y * side, radius * side / 100)
        draw_thing(random, pen, LABEL_NAMES[label])
    labels = np.zeros(len(LABEL_NAMES), dtype=np.int8)
    labels[chosen] = 1
    return picture.reduce(SUPERSAMPLING), labels


# --- Many pictures -------------------------------------------------------------------------------


def check_numbers(size: int, **counts: int) -> None:
    problems = [f"{name} is {n}; it must be 0 or more." for name, n in counts.items() if n < 0]
    if size < SMALLEST_SIZE:
        problems.append(f"size is {size}; it must be {SMALLEST_SIZE} pixels or more.")
    raise_if(problems, ConfigError)


def contact_sheet(seed: int, rows: int, columns: int, size: int) -> Image.Image:
    """The first `rows * columns` pictures of `seed` side by side, a thin gap between them."""
    check_numbers(size, seed=seed, rows=rows, columns=columns)
    step = size + max(2, size // 16)
    sheet = Image.new("RGB", (columns * step - step + size, rows * step - step + size), "white")
    for index in range(rows * columns):
        row, column = divmod(index, columns)
        sheet.paste(draw_picture(seed, index, size)[0], (column * step, row * step))
    return sheet


def draw_dataset(folder: Path, *, train: int, test: int, size: int = 64, seed: int = 0) -> Path:
    """Write `images/000000.png` … and `manifest.csv` into `folder`; return the manifest's path.

    A finished data set with the same parameters, which `dataset.json` keeps, is left as it is.
    The manifest is written last: where there is one, the pictures are complete.
    """
    check_numbers(size, train=train, test=test, seed=seed)
    folder = Path(folder)
    manifest = folder / "manifest.csv"
    wanted = {"drawn_by": "partly", "format": FORMAT, "train": train, "test": test}
    wanted |= {"size": size, "seed": seed}
    try:
        if read_parameters(folder) == wanted and manifest.is_file():
            return manifest
        clear(folder)
        (folder / "dataset.json").write_text(json.dumps(wanted, indent=2) + "\n")
        write_pictures(folder, ["train"] * train + ["test"] * test, size, seed)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"The drawn data set cannot be written to {folder}: {reason}.") from error
    return manifest


def read_parameters(folder: Path) -> dict[str, object]:
    """What an earlier call wrote into `dataset.json`; nothing where it is missing or foreign."""
    try:
        found = json.loads((folder / "dataset.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("drawn_by") == "partly" else {}


def clear(folder: Path) -> None:
    """Make room for new pictures: remove what Partly drew there before, refuse what it did not."""
    parts = [folder / name for name in ("manifest.csv", "dataset.json", "images")]
    foreign = [part.name for part in parts if part.exists()]
    if foreign and not read_parameters(folder):
        names = ", ".join(foreign)
        raise DataError(f"{folder} holds {names} not drawn by Partly; name another folder.")
    parts[0].unlink(missing_ok=True)  # first of all: without it the rest counts as unfinished
    parts[2].mkdir(parents=True, exist_ok=True)
    for picture in parts[2].glob("[0-9]" * 6 + ".png"):
        picture.unlink()


def write_pictures(folder: Path, splits: Sequence[str], size: int, seed: int) -> None:
    unfinished = folder / "manifest.csv.unfinished"
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "split", *LABEL_NAMES])
        for index, split in enumerate(splits):
            picture, labels = draw_picture(seed, index, size)
            path = f"images/{index:06d}.png"
            picture.save(folder / path)  # PNG: lossless, and at this size as small as JPEG
            writer.writerow([path, split, *labels.tolist()])
    unfinished.replace(folder / "manifest.csv")
