"""What a grid is made of: one byte a cell, the tables that explain it, and the types that levels and states have.

A code is `8 * kind + color`. The kinds are numbered so that what the dynamics ask of a cell is a comparison:

    kind   0      1     2     3      4          5    6     7    8 .. 13           14           15           16
    what   empty  goal  lava  floor  open door  key  ball  box  box with a key    closed door  locked door  wall
           `----- the agent may stand on it --'  `--- it can be picked up ---'    `-- nothing is seen through it --'

A box with a key has one kind for each color of the key inside. Code 0 is the empty cell.

A `Level` holds its grid as rows and columns. A `GridState` holds it packed: one flat array, each row followed by a
margin of walls and the whole framed by some more, so that every 7x7 view is seven plain slices and reads walls beyond
the edge, as the package does. Flat because compilers vectorize one long axis and not two short ones.
"""

import abc
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, UInt8, UInt32

COLORS = ("red", "green", "blue", "purple", "yellow", "grey")  # in the order of MiniGrid's color indices
RED, GREEN, BLUE, PURPLE, YELLOW, GREY = range(6)
RIGHT, DOWN, LEFT, UP = range(4)
STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # (dx, dy) of each

EMPTY = 0
GOAL = 8 * 1 + GREEN
LAVA = 8 * 2 + RED
FLOOR = 8 * 3  # + color, as every name below that is not a whole code
OPEN = 8 * 4
KEY = 8 * 5
BALL = 8 * 6
BOX = 8 * 7
KEYBOX = 8 * 8  # + 8 * the key's color + the box's color
CLOSED = 8 * 14
LOCKED = 8 * 15
WALL = 8 * 16 + GREY
NO_TARGET = 255  # the target of a level that is won by reaching its goal

STANDABLE_BELOW = KEY  # code < this: the agent may stand on it
OPAQUE_FROM = CLOSED  # code >= this: nothing is seen through it, and nothing picks it up

KINDS = (
    *("empty", "goal", "lava", "floor", "open door", "key", "ball", "box"),
    *(f"box with a {color} key" for color in COLORS),
    *("closed door", "locked door", "wall"),
)
_TYPES = (1, 8, 9, 3, 4, 5, 6, 7, 7, 7, 7, 7, 7, 7, 4, 4, 2)  # MiniGrid's object index of each kind
_ONLY = {0: RED, 1: GREEN, 2: RED, 16: GREY}  # the color of a kind that comes in one only

_CODES = [8 * kind + color for kind in range(len(KINDS)) for color in range(6) if _ONLY.get(kind, color) == color]
KNOWN = np.isin(np.arange(256), _CODES)  # which bytes are the code of something


def _encoding() -> np.ndarray:
    table = np.zeros((256, 3), np.uint8)
    for code in np.flatnonzero(KNOWN):
        kind = code // 8
        table[code] = _TYPES[kind], code % 8, max(kind - 13, 0) if kind < 16 else 0
    return table


ENCODING = _encoding()  # [256, 3] MiniGrid's (object, color, state) of each code; zeros for the others


def name(code: int) -> str:
    """The thing a code stands for, in words.

    >>> name(KEYBOX + 8 * RED + GREY)
    'grey box with a red key'
    """
    if not 0 <= code < 256 or not KNOWN[code]:
        return f"nothing ({code} is no code)"
    kind = code // 8
    return KINDS[kind] if kind in _ONLY else f"{COLORS[code % 8]} {KINDS[kind]}"


class Level(NamedTuple):
    """A task before its first step; leaves may have leading axes."""

    grid: UInt8[Array, "*n H W"]  # row y, column x
    x: Int[Array, "*n"]
    y: Int[Array, "*n"]
    direction: Int[Array, "*n"]  # RIGHT, DOWN, LEFT or UP
    target: UInt8[Array, "*n"]  # the code of what must be picked up to win, or NO_TARGET where the goal must be reached


class GridState(NamedTuple):
    """One environment between two steps."""

    grid: UInt8[Array, "*n C"]  # packed: `unpack` gives rows and columns
    x: Int[Array, "*n"]
    y: Int[Array, "*n"]
    direction: Int[Array, "*n"]
    carrying: UInt8[Array, "*n"]  # the code of what is in hand; EMPTY for nothing
    target: UInt8[Array, "*n"]
    steps: Int[Array, "*n"]
    hash: UInt32[Array, "*n 2"]  # the grid's part of `dynamics.state_hash`, kept up to date step by step


VIEW = 7  # the side of what the agent sees
MARGIN = VIEW - 2  # cells beyond the edge that a view from next to the wall can reach
LEAD = 8  # walls before the first row


def stride(width: int) -> int:
    """How far apart two rows of a packed grid are."""
    return width + MARGIN + -(width + MARGIN) % 8


def packed_size(height: int, width: int) -> int:
    """The number of bytes of a packed grid."""
    size = LEAD + height * stride(width) + LEAD
    return size + -size % 32


def pack(grid: UInt8[Array, "*n H W"]) -> UInt8[Array, "*n C"]:
    """Rows and columns to the flat array of a GridState."""
    *lead, height, width = grid.shape
    still = [(0, 0)] * len(lead)
    rows = jnp.pad(grid, [*still, (0, 0), (0, stride(width) - width)], constant_values=WALL)
    flat = rows.reshape(*lead, height * stride(width))
    after = packed_size(height, width) - LEAD - flat.shape[-1]
    return jnp.pad(flat, [*still, (LEAD, after)], constant_values=WALL)


def unpack(packed: UInt8[Array | np.ndarray, "*n C"], height: int, width: int) -> UInt8[Array | np.ndarray, "*n H W"]:
    """The flat array of a GridState to rows and columns."""
    rows = packed[..., LEAD : LEAD + height * stride(width)]
    return rows.reshape(*packed.shape[:-1], height, stride(width))[..., :width]


class Maker(eqx.Module):
    """Draws the levels of one task.

    `width`, `height`, `max_steps` and `see_through` must be static, since they decide what is compiled.
    """

    width: eqx.AbstractVar[int]
    height: eqx.AbstractVar[int]
    max_steps: eqx.AbstractVar[int]
    see_through: ClassVar[bool] = False  # True where the package lets the agent see through walls: the Empty rooms only

    @abc.abstractmethod
    def levels(self, key: Key[Array, ""], n: int) -> Level:
        """n levels, leaves [n, ...], each from the distribution of the package's generator."""
