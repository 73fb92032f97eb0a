"""Images with MiniGrid's look: a state, and a map of where an agent has been.

A tile is drawn at three times its size, shape over shape, and averaged down, as the package does it, so that a picture
here equals the package's `env.render()`.
"""

from collections.abc import Callable, Sequence
from functools import cache

import jax
import numpy as np

from made.envs.minigrid import dynamics, tile_codes
from made.envs.minigrid.env import Grid
from made.envs.minigrid.tile_codes import VIEW, GridState

Number = int | float
TILE = 32  # pixels a cell
_FINER = 3  # how much finer a tile is drawn than shown
_RGB = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (112, 39, 195), (255, 255, 0), (100, 100, 100))
_BLACK, _LINE, _ORANGE = (0, 0, 0), (100, 100, 100), (255, 128, 0)


class _Canvas:
    """A square tile in the making; coordinates run from 0 to 1, y downwards."""

    def __init__(self, pixels: int):
        self.paint = np.zeros((pixels, pixels, 3), np.uint8)
        self.y, self.x = (np.mgrid[:pixels, :pixels] + 0.5) / pixels

    def rectangle(self, left: Number, right: Number, top: Number, bottom: Number, color: Sequence[Number]) -> None:
        self.paint[(self.x >= left) & (self.x <= right) & (self.y >= top) & (self.y <= bottom)] = color

    def circle(self, x: float, y: float, radius: float, color: Sequence[Number]) -> None:
        self.paint[(self.x - x) * (self.x - x) + (self.y - y) * (self.y - y) <= radius * radius] = color

    def line(self, x0: float, y0: float, x1: float, y1: float, radius: float, color: Sequence[Number]) -> None:
        start, end = np.array([x0, y0], np.float32), np.array([x1, y1], np.float32)
        length = np.linalg.norm(end - start)
        along = (end - start) / length
        points = np.stack([self.x, self.y], -1)
        nearest = start + np.clip((points - start) @ along, 0, length)[..., None] * along
        self.paint[np.linalg.norm(points - nearest, axis=-1) <= radius] = color

    def agent(self, direction: int) -> None:
        """The red triangle."""
        turn = -0.5 * np.pi * direction
        x, y = self.x - 0.5, self.y - 0.5
        points = np.stack([0.5 + x * np.cos(turn) - y * np.sin(turn), 0.5 + y * np.cos(turn) + x * np.sin(turn)], -1)
        a, b, c = (np.array(corner, np.float32) for corner in ((0.12, 0.19), (0.87, 0.50), (0.12, 0.81)))
        across, along, out = c - a, b - a, points - a
        scale = 1 / (across @ across * (along @ along) - (across @ along) ** 2)
        u = ((along @ along) * (out @ across) - (across @ along) * (out @ along)) * scale
        v = ((across @ across) * (out @ along) - (across @ along) * (out @ across)) * scale
        self.paint[(u >= 0) & (v >= 0) & (u + v < 1)] = _RGB[tile_codes.RED]


_FULL = (0, 1, 0, 1, 1)
# What each kind looks like: rectangles (left, right, top, bottom, shade) and circles (x, y, radius, shade), where the
# shade multiplies the color.
_SHAPES: dict[int, list[tuple[Number, ...]]] = {
    tile_codes.GOAL - tile_codes.GOAL % 8: [_FULL],
    tile_codes.WALL - tile_codes.WALL % 8: [_FULL],
    tile_codes.FLOOR: [(0.031, 1, 0.031, 1, 0.5)],
    tile_codes.OPEN: [(0.88, 1, 0, 1, 1), (0.92, 0.96, 0.04, 0.96, 0)],
    tile_codes.CLOSED: [
        *((edge, 1 - edge, edge, 1 - edge, shade) for edge, shade in ((0, 1), (0.04, 0), (0.08, 1), (0.12, 0))),
        (0.75, 0.50, 0.08, 1),
    ],
    tile_codes.LOCKED: [_FULL, (0.06, 0.94, 0.06, 0.94, 0.45), (0.52, 0.75, 0.50, 0.56, 1)],
    tile_codes.KEY: [
        *((0.50, 0.63, 0.31, 0.88, 1), (0.38, 0.50, 0.59, 0.66, 1), (0.38, 0.50, 0.81, 0.88, 1)),
        *((0.56, 0.28, 0.190, 1), (0.56, 0.28, 0.064, 0)),
    ],
    tile_codes.BALL: [(0.5, 0.5, 0.31, 1)],
    tile_codes.BOX: [(0.12, 0.88, 0.12, 0.88, 1), (0.18, 0.82, 0.18, 0.82, 0), (0.16, 0.84, 0.47, 0.53, 1)],
}


def _thing(canvas: _Canvas, code: int) -> None:
    kind = tile_codes.BOX if tile_codes.BOX <= code < tile_codes.CLOSED else code - code % 8
    for *where, shade in _SHAPES.get(kind, ()):
        shape: Callable[..., None] = canvas.circle if len(where) == 3 else canvas.rectangle
        shape(*where, [shade * part for part in _RGB[code % 8]])
    if code == tile_codes.LAVA:
        canvas.rectangle(0, 1, 0, 1, _ORANGE)
        for low in (0.3, 0.5, 0.7):
            for left, up, down in ((0.1, 0, 0.1), (0.3, 0.1, 0), (0.5, 0, 0.1), (0.7, 0.1, 0)):
                canvas.line(left, low + up, left + 0.2, low + down, 0.03, _BLACK)


@cache
def tile(code: int, agent: int | None = None, lit: bool = False, size: int = TILE) -> np.ndarray:
    """One cell, uint8 [size, size, 3]: what lies there, where the agent looks if it is there, whether it is seen."""
    canvas = _Canvas(size * _FINER)
    canvas.rectangle(0, 0.031, 0, 1, _LINE)
    canvas.rectangle(0, 1, 0, 0.031, _LINE)
    _thing(canvas, code)
    if agent is not None:
        canvas.agent(agent)
    paint = canvas.paint
    if lit:
        paint = (paint + 0.3 * (255 - paint)).clip(0, 255).astype(np.uint8)
    shown = paint.reshape(size, _FINER, size, _FINER, 3).mean(3).mean(1).astype(np.uint8)
    shown.flags.writeable = False  # it is kept, and given again
    return shown


def draw(grid: Grid, state: GridState, size: int = TILE, highlight: bool = True) -> np.ndarray:
    """A state as the package renders it, uint8 [height * size, width * size, 3]; what the agent sees is lighter."""
    state = jax.device_get(state)
    cells = np.asarray(tile_codes.unpack(state.grid, grid.maker.height, grid.maker.width))
    seen = seen_cells(grid, state) if highlight else np.zeros(cells.shape, bool)
    rows = []
    for y, row in enumerate(cells):
        agents = [int(state.direction) if (x, y) == (state.x, state.y) else None for x in range(len(row))]
        tiles = [tile(int(c), agent, bool(lit), size) for c, agent, lit in zip(row, agents, seen[y], strict=True)]
        rows.append(np.concatenate(tiles, axis=1))
    return np.concatenate(rows, axis=0)


_lit = jax.jit(lambda state, stride: dynamics.lit(dynamics.window(state, stride)), static_argnums=1)


def seen_cells(grid: Grid, state: GridState) -> np.ndarray:
    """Which cells of the grid the agent sees, [row][column]."""
    height, width = grid.maker.height, grid.maker.width
    seen = np.zeros((height, width), bool)
    lit = np.ones((VIEW, VIEW), bool) if grid.maker.see_through else np.asarray(_lit(state, tile_codes.stride(width)))
    ahead = np.array(tile_codes.STEPS[int(state.direction)])
    right = np.array([-ahead[1], ahead[0]])
    for column, row in np.argwhere(lit):
        x, y = np.array([state.x, state.y]) + ahead * (VIEW - 1 - row) + right * (column - VIEW // 2)
        if 0 <= x < width and 0 <= y < height:
            seen[y, x] = True
    return seen


def visit_map(grid: Grid, state: GridState, visits: np.ndarray, size: int = TILE) -> np.ndarray:
    """A state with its cells tinted by how often they were visited, `visits` [height, width].

    The tint runs from yellow to red with log(1 + visits); a cell that was never visited keeps its looks.
    """
    shape, counts = (grid.maker.height, grid.maker.width), np.asarray(visits, float)
    if counts.shape != shape or (counts < 0).any():
        raise ValueError(f"visits must count each of the {shape[0]} rows and {shape[1]} columns, not {counts.shape}.")
    heat = np.log1p(counts) / max(np.log1p(counts.max()), 1e-9)
    tint = np.stack([np.full(shape, 255.0), 230 * (1 - heat), np.zeros(shape)], -1)
    weight = np.where(counts > 0, 0.35 + 0.45 * heat, 0.0)[..., None]
    large = [np.repeat(np.repeat(part, size, 0), size, 1) for part in (tint, weight)]
    picture = draw(grid, state, size, highlight=False)
    return (picture * (1 - large[1]) + large[0] * large[1]).astype(np.uint8)
