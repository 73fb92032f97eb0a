"""A check of levels: what the dynamics, which check nothing, can play."""

import numpy as np

from made.envs.minigrid.tile_codes import KNOWN, NO_TARGET, OPAQUE_FROM, STANDABLE_BELOW, WALL, Level, name


def check_level(level: Level) -> None:
    """Refuse one level, given by hand, that the dynamics cannot play; they themselves check nothing."""
    grid = np.asarray(level.grid)
    if grid.ndim != 2 or min(grid.shape) < 3 or max(grid.shape) > 127 or not np.issubdtype(grid.dtype, np.integer):
        raise ValueError(
            f"A grid is rows and columns of codes, 3 to 127 of each, and this one has shape {grid.shape} and type "
            f"{grid.dtype}; check_level takes one level, without leading axes."
        )
    height, width = grid.shape
    bad = [(x, y) for y, x in np.argwhere((grid < 0) | (grid > 255) | ~KNOWN[grid & 255])]
    if bad:
        x, y = bad[0]
        raise ValueError(
            f"The cell in column {x}, row {y} holds {grid[y, x]}, which is the code of nothing; build codes from the "
            "names in made.envs.minigrid.tile_codes, such as KEY + RED."
        )
    x, y, direction, target = (int(v) for v in (level.x, level.y, level.direction, level.target))
    if not (0 <= x < width and 0 <= y < height and 0 <= direction < 4):
        raise ValueError(
            f"The agent's column, row and direction are {x}, {y}, {direction}; they must be inside {width} columns and "
            f"{height} rows, and 0 to 3 (right, down, left, up)."
        )
    if grid[y, x] >= STANDABLE_BELOW:
        raise ValueError(f"The agent cannot start in column {x}, row {y}: there is a {name(int(grid[y, x]))}.")
    if target != NO_TARGET and not (STANDABLE_BELOW <= target < OPAQUE_FROM and KNOWN[target]):
        raise ValueError(
            f"The target is {target}, {name(target)}; it must be a key, a ball or a box, or NO_TARGET for a level that "
            "is won at its goal."
        )
    edge = _leak(grid, x, y)
    if edge:
        raise ValueError(
            f"The agent can reach the edge of the grid at column {edge[0]}, row {edge[1]}, and would walk off it: "
            "close the outer wall."
        )


def _leak(grid: np.ndarray, x: int, y: int) -> tuple[int, int] | None:
    """A cell of the edge to which no wall bars the way (doors and objects can be moved), or None."""
    height, width = grid.shape
    seen, waiting = {(x, y)}, [(x, y)]
    while waiting:
        x, y = waiting.pop()
        if x in (0, width - 1) or y in (0, height - 1):
            return x, y
        for cell in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
            if cell not in seen and grid[cell[1], cell[0]] != WALL:
                seen.add(cell)
                waiting.append(cell)
    return None
