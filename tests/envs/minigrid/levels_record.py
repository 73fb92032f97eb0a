"""Record what the package's levels look like, for the tests: histograms and maps, as JSON in tests/grids/data.

    python tests/envs/minigrid/levels_record.py [TASK ...]

The package takes 0.2 to 120 ms a level, ours some microseconds, so its side of the comparison is kept.
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from envs.minigrid import oracle
from envs.minigrid.levels_features import histogram, maps, numbers, stack, to_row, to_text
from envs.minigrid.planner import solve
from minigrid.envs.obstructedmaze import ObstructedMaze_Full

from made.envs.minigrid.tile_codes import Level

DATA = Path(__file__).parent / "data"
LEVELS = 4000
PLANS = 1000


def package(task: str):
    """The package's environment of a task; RIDE's 2Q differs from the package's in the room it starts in."""
    if task == "MiniGrid-ObstructedMaze-2Q-RIDE-v0":
        return ObstructedMaze_Full(agent_room=(1, 1), num_quarters=2, num_rooms_visited=11)
    return oracle.make(task)


def draw(task: str, n: int, seed: int = 0) -> Level:
    """n levels of the package, one after another from one seed."""
    env = package(task)
    env.reset(seed=seed)
    levels = []
    for _ in range(n):
        levels.append(oracle.level_of(env))
        env.reset()
    return stack(levels)


def record(task: str, levels: Level, max_steps: int) -> dict:
    plans = [solve(Level(*(leaf[i] for leaf in levels))) for i in range(min(PLANS, len(levels.x)))]
    lengths = np.array([-1 if plan is None else len(plan) for plan in plans])
    return {
        "levels": len(levels.x),
        "max_steps": max_steps,
        "numbers": {name: to_row(histogram(values)) for name, values in numbers(task, levels).items()},
        "maps": {name: to_text(counts) for name, counts in maps(task, levels).items()},
        "plans": to_row(histogram(lengths)),
    }


if __name__ == "__main__":
    from made.envs.minigrid import GRIDS

    DATA.mkdir(exist_ok=True)
    for task in sys.argv[1:] or [name for name in GRIDS if "Noisy" not in name]:
        entry = record(task, draw(task, LEVELS), package(task).max_steps)
        (DATA / f"{task}.json").write_text(json.dumps(entry, separators=(",", ":")))
        print(task, (DATA / f"{task}.json").stat().st_size, flush=True)
