"""MiniGrid compiled: the package's tasks under its own ids, state for state, as environments that run inside JAX.

>>> sorted(make_grid("MiniGrid-KeyCorridorS3R3-v0").spec.obs)
['image']
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from made.core.config import suggest
from made.envs.minigrid.env import Grid as Grid
from made.envs.minigrid.multiroom import MultiRoom as MultiRoom
from made.envs.minigrid.room_tasks import DoorKey as DoorKey
from made.envs.minigrid.room_tasks import Empty as Empty
from made.envs.minigrid.room_tasks import FourRooms as FourRooms
from made.envs.minigrid.room_tasks import KeyCorridor as KeyCorridor
from made.envs.minigrid.room_tasks import Maze as Maze
from made.envs.minigrid.room_tasks import TwoRooms as TwoRooms
from made.envs.minigrid.tile_codes import Level as Level
from made.envs.minigrid.tile_codes import Maker as Maker


def _task(maker: Callable[..., Maker], *sizes: Any, noisy_tv: bool = False, **kinds: Any) -> Callable[..., Grid]:
    return lambda **options: Grid(maker(*sizes, **kinds), **{"noisy_tv": noisy_tv, **options})


_plain = partial(_task, Maze, hidden=False, blocked=False)
_hidden = partial(_task, Maze, blocked=False)
_fixed = partial(_task, Maze, keys_last=True)

# Each entry takes the options of `Grid`. An id means what the package means by it, so MultiRoom-N4-S5-v0 has six rooms.
# RIDE's fork adds the ids marked so, and differs in two that it shares with the package: its MultiRoom-N4-S5-v0 has
# four rooms, which is -v1 here, and its ObstructedMaze-2Q-v0 starts in the middle, which is -2Q-RIDE-v0 here.
GRIDS: dict[str, Callable[..., Grid]] = {
    **{f"MiniGrid-Empty-{n}x{n}-v0": _task(Empty, n) for n in (5, 6, 8, 16)},
    **{f"MiniGrid-Empty-Random-{n}x{n}-v0": _task(Empty, n, scattered=True) for n in (5, 6)},
    **{f"MiniGrid-DoorKey-{n}x{n}-v0": _task(DoorKey, n) for n in (5, 6, 8, 16)},
    "MiniGrid-FourRooms-v0": _task(FourRooms),
    "MiniGrid-MultiRoom-N2-S4-v0": _task(MultiRoom, 2, 4),
    "MiniGrid-MultiRoom-N4-S5-v0": _task(MultiRoom, 6, 5),
    "MiniGrid-MultiRoom-N4-S5-v1": _task(MultiRoom, 4, 5),
    "MiniGrid-MultiRoom-N6-v0": _task(MultiRoom, 6, 10),
    "MiniGrid-MultiRoom-N7-S4-v0": _task(MultiRoom, 7, 4),  # RIDE
    "MiniGrid-MultiRoomNoisyTV-N7-S4-v0": _task(MultiRoom, 7, 4, noisy_tv=True),  # RIDE
    "MiniGrid-MultiRoom-N7-S8-v0": _task(MultiRoom, 7, 8),  # RIDE
    "MiniGrid-MultiRoom-N10-S4-v0": _task(MultiRoom, 10, 4),  # RIDE
    "MiniGrid-MultiRoom-N10-S10-v0": _task(MultiRoom, 10, 10),  # RIDE
    "MiniGrid-MultiRoom-N12-S10-v0": _task(MultiRoom, 12, 10),  # RIDE
    **{f"MiniGrid-KeyCorridorS3R{rows}-v0": _task(KeyCorridor, 3, rows) for rows in (1, 2, 3)},
    **{f"MiniGrid-KeyCorridorS{size}R3-v0": _task(KeyCorridor, size, 3) for size in (4, 5, 6)},
    "MiniGrid-ObstructedMaze-1Dl-v0": _task(TwoRooms),
    "MiniGrid-ObstructedMaze-1Dlh-v0": _task(TwoRooms, hidden=True),
    "MiniGrid-ObstructedMaze-1Dlhb-v0": _task(TwoRooms, hidden=True, blocked=True),
    "MiniGrid-ObstructedMaze-2Dl-v0": _plain(1, 4, (2, 1)),
    "MiniGrid-ObstructedMaze-2Dlh-v0": _hidden(1, 4, (2, 1)),
    "MiniGrid-ObstructedMaze-2Dlhb-v0": _task(Maze, 1, 4, (2, 1)),
    "MiniGrid-ObstructedMaze-2Dlhb-v1": _fixed(1, 4, (2, 1)),
    "MiniGrid-ObstructedMaze-1Q-v0": _task(Maze, 1, 5),
    "MiniGrid-ObstructedMaze-1Q-v1": _fixed(1, 5),
    "MiniGrid-ObstructedMaze-2Q-v0": _task(Maze, 2, 11, (2, 1)),
    "MiniGrid-ObstructedMaze-2Q-v1": _fixed(2, 11, (2, 1)),
    "MiniGrid-ObstructedMaze-2Q-RIDE-v0": _task(Maze, 2, 11),  # RIDE
    "MiniGrid-ObstructedMaze-Full-v0": _task(Maze),
    "MiniGrid-ObstructedMaze-Full-v1": _fixed(),
}


def grid_ids() -> dict[str, str]:
    """Every name of a grid on the command line, short or full, with its id.

    >>> [name for name, id in grid_ids().items() if id == "MiniGrid-MultiRoom-N6-v0"]
    ['MultiRoom-N6', 'MultiRoom-N6-v0', 'MiniGrid-MultiRoom-N6-v0']
    """
    short = {id.removeprefix("MiniGrid-").removesuffix("-v0"): id for id in GRIDS}
    short |= {id.removeprefix("MiniGrid-"): id for id in GRIDS}
    return short | {id: id for id in GRIDS}


def make_grid(task: str, **options: Any) -> Grid:
    """The environment of this name, such as "MiniGrid-MultiRoom-N7-S8-v0"; `options` are those of `Grid`."""
    ids = grid_ids()
    if task not in ids:
        raise ValueError(f"There is no grid {task!r}.{suggest(task, list(ids))}")
    return GRIDS[ids[task]](**options)
