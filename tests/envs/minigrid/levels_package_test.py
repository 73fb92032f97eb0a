"""Our levels against the package's: what they look like, whether they can be solved, and how long that takes.

The package's side is recorded (levels_record.py); a few of its levels are made anew to see that the record holds.
"""

import json
from functools import cache

import jax
import numpy as np
import pytest
from envs.minigrid.level_check import check_level
from envs.minigrid.levels_features import compare, compare_maps, from_row, from_text, histogram, maps, numbers
from envs.minigrid.levels_record import DATA, draw
from envs.minigrid.planner import returned, solve

from made.envs.minigrid import GRIDS, make_grid
from made.envs.minigrid.tile_codes import Level

TASKS = [task for task in GRIDS if "NoisyTV" not in task]  # the levels of that one are those of MultiRoom-N7-S4
N_OURS, N_SOLVED = 4000, 60
N_FRESH = {"MiniGrid-MultiRoom-N12-S10-v0": 8, "MiniGrid-MultiRoom-N10-S10-v0": 40}
COVERED = {f"MiniGrid-ObstructedMaze-{kind}-v0" for kind in ("2Dlhb", "1Q", "2Q", "2Q-RIDE", "Full")}

# One wrong alarm in a thousand runs over all the tests of this file together (Bonferroni).
N_TESTS = 30_000
THRESHOLD = 0.001 / N_TESTS


@cache
def ours(task: str) -> Level:
    maker = make_grid(task).maker
    levels = jax.jit(lambda key: maker.levels(key, N_OURS))(jax.random.key(20))
    return Level(*(np.asarray(leaf) for leaf in levels))


@cache
def recorded(task: str) -> dict:
    entry = json.loads((DATA / f"{task}.json").read_text())
    entry["numbers"] = {name: from_row(row) for name, row in entry["numbers"].items()}
    entry["maps"] = {name: from_text(text) for name, text in entry["maps"].items()}
    entry["plans"] = from_row(entry["plans"])
    return entry


@cache
def plans(task: str) -> list[list[int] | None]:
    return [solve(one(ours(task), i)) for i in range(N_SOLVED)]


def one(levels: Level, i: int) -> Level:
    return Level(*(leaf[i] for leaf in levels))


def p_values(task: str, levels: Level) -> dict[str, float]:
    """Of every number and every cell of every map: do these levels and the recorded ones agree?"""
    record, found, n = recorded(task), numbers(task, levels), len(levels.x)
    values = {name: compare(histogram(found.get(name, np.full(n, -9))), row) for name, row in record["numbers"].items()}
    values |= {name: compare(histogram(found[name]), {}) for name in found.keys() - record["numbers"].keys()}
    here, nothing = maps(task, levels), np.zeros(levels.grid[0].size)
    for name in here.keys() | record["maps"].keys():
        counts, theirs = here.get(name, nothing), record["maps"].get(name, nothing)
        cells = compare_maps(counts, n, theirs, record["levels"])
        values |= {f"{name} in cell {i}": p for i, p in enumerate(cells)}
    return values


@pytest.fixture(scope="module", autouse=True)
def tally():
    """Counts the tests made, so that the threshold is right for them."""
    counts: list[int] = []
    yield counts
    assert sum(counts) <= N_TESTS


def check(task: str, values: dict[str, float], tally: list[int]) -> None:
    """No p-value below the threshold."""
    tally.append(len(values))
    worst = sorted(values.items(), key=lambda item: item[1])[:5]
    print(f"{task}: {len(values)} tests, least p-values {[(name, float(f'{p:.2g}')) for name, p in worst]}")
    assert worst[0][1] > THRESHOLD, f"{task} differs from the package in {worst}"


@pytest.mark.parametrize("task", TASKS)
def test_levels_follow_the_package(task, tally):
    """Rooms, doors, colors, things and agent: every number of a level and every cell of the maps."""
    assert recorded(task)["levels"] >= 2000
    check(task, p_values(task, ours(task)), tally)


@pytest.mark.parametrize("task", TASKS)
def test_the_record_is_of_this_package(task, tally):
    """Fresh levels of the package that is installed look like the recorded ones."""
    check(task, p_values(task, draw(task, N_FRESH.get(task, 100), seed=99)), tally)


@pytest.mark.parametrize("task", TASKS)
def test_levels_can_be_solved(task):
    """All of them, in time; but for the -v0 mazes, where a ball may have been put down on a key, as in the package."""
    lost = numbers(task, ours(task)).get("locks without a key", np.zeros(N_OURS, int))
    for i, plan in enumerate(plans(task)):
        check_level(one(ours(task), i))
        if plan is None:
            assert task in COVERED and lost[i] > 0, f"level {i} of {task} has no solution"
        else:
            assert returned(plan, recorded(task)["max_steps"]) > 0
    assert task in COVERED or not lost.any()


@pytest.mark.parametrize("task", TASKS)
def test_plans_are_as_long_as_in_the_package(task, tally):
    """The planner needs as many steps for our levels as for the package's: so a scripted policy's return agrees."""
    lengths = histogram(np.array([-1 if plan is None else len(plan) for plan in plans(task)]))
    check(task, {"steps": compare(lengths, recorded(task)["plans"])}, tally)
