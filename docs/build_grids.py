"""Write docs/grids.md: a level of every grid task, its numbers, and a video of a solved KeyCorridor.

    python docs/build_grids.py         # images and page
    python docs/build_grids.py --page  # the page alone

Numbers come from the recorded runs in results/grids; images are rendered from the tasks.
"""

import json
import re
import sys
from pathlib import Path

import jax
import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from envs.minigrid.planner import solve

from made.envs.minigrid import GRIDS, Grid, make_grid, render
from made.envs.minigrid.tile_codes import GridState, Level

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "img" / "grids"
SEED = 4
LOOKS = ("made", "rnd", "noveld", "ride", "icm", "re3")  # methods whose color each task has
FILM = "MiniGrid-KeyCorridorS3R3-v0"

HEAD = """# MiniGrid tasks

The 41 tasks below are [MiniGrid](https://github.com/Farama-Foundation/Minigrid) and its
[RIDE](https://arxiv.org/abs/2002.12292) variants as pure JAX. Observations, rewards and episode
ends equal those of the `minigrid` package step for step, and levels have the same distribution.

```python
import gymnasium
import jax

import made.adapters.gymnasium  # registers the tasks made/...

grid = made.make("MultiRoom-N6")  # or the full id; reset and step are pure
state, obs = grid.reset(jax.random.key(0))
envs = gymnasium.make_vec("made/MiniGrid-MultiRoom-N6-v0", num_envs=64)
```

`made play MultiRoom-N6` plays a task in the terminal. `made train --env MultiRoom-N6` trains on it.

![A solved level of KeyCorridorS3R3]({video})

*KeyCorridorS3R3, solved by the planner of the tests: fetch the key, open the locked door, pick up
the ball. The lit cells are the agent's view.*

## Observations, actions and rewards

| | |
|---|---|
| actions | 0 left, 1 right, 2 forward, 3 pick up, 4 drop, 5 toggle, 6 done |
| reward | 1 - 0.9 t / T for success at step t of at most T, else 0 |
| `image` | the agent's view, uint8 [7, 7, 3]: object, color and state of each cell |
| `direction` | 0 right, 1 down, 2 left, 3 up |
| `full` | the whole grid with the agent, uint8 [width, height, 3] |
| `hash` | 64 bits of the full state, uint32 [2], for bonuses that count states |

`made.make("MultiRoom-N6", shows=("image", "hash"))` selects parts; the default is `image`. Success
terminates an episode, the time limit truncates it.

## Equality with the package

- **Steps.** The tests play more than 100,000 steps in parallel with the package, without a
  difference.
- **Levels.** {tests:,} tests compare {ours:,} of our levels with {theirs:,} of the package per task
  (rooms, doors, colors, objects, agent, each cell). No p-value is below {threshold:.0e}, the threshold
  for that many tests; the smallest is {least:.0e}.
- **Solvability.** A planner solves 1,000 levels of each task, except {covered} levels of some -v0
  mazes in which a ball lies on a key, as in the package.

Below each level: columns x rows, the time limit, and for the paper's tasks the best speed on one
H200, new levels included. Each id starts with `MiniGrid-`.
"""
FAMILIES = ("Empty", "DoorKey", "FourRooms", "MultiRoom", "KeyCorridor", "ObstructedMaze")


def state_of(grid: Grid, level: Level) -> GridState:
    return grid.start(level)[0]


def first_level(grid: Grid, seed: int = SEED) -> Level:
    return jax.tree.map(lambda x: np.asarray(x[0]), grid.maker.levels(jax.random.key(seed), 1))


def picture(task: str) -> Path:
    grid = make_grid(task)
    size = max(4, 160 // max(grid.maker.width, grid.maker.height))
    path = PICTURES / f"{task}.png"
    state = jax.tree.map(lambda x: x[0], grid.reset_many(jax.random.key(SEED), 1)[0])
    image = Image.fromarray(render.draw(grid, state, size, highlight=False))
    image.quantize(64).save(path, optimize=True)
    return path


def solved_video() -> Path:
    grid = make_grid(FILM)
    level = first_level(grid)
    plan = solve(level)
    assert plan is not None
    state, states, step = state_of(grid, level), [], jax.jit(grid.step)
    for action in plan:
        states.append(state)
        state, out = step(state, np.int32(action), jax.random.key(0))
    assert float(out.reward) > 0, "the plan did not win"
    frames = [Image.fromarray(render.draw(grid, state, 24)) for state in (*states, state)]
    shown = [200] * len(states) + [1000]
    frames[0].save(PICTURES / "solved.gif", save_all=True, append_images=frames[1:], duration=shown, loop=0)
    return PICTURES / "solved.gif"


LARGEST = 131_072  # environments; larger numbers were measured only with an older representation of levels


def speeds() -> dict[str, float]:
    rows = json.loads((ROOT / "results" / "grids" / "h200.json").read_text())["rows"]
    within = lambda sizes: [x["steps_per_s"] for n, x in sizes.items() if int(n) <= LARGEST]  # noqa: E731
    return {f"MiniGrid-{row['task']}-v0": max(within(row["sizes"])) for row in rows}


def growth() -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Steps per second by the number of environments: where -> task -> points, from the recorded benchmarks."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {"two cores": {}, "one H200": {}}
    for row in json.loads((ROOT / "results" / "grids" / "two_cores.json").read_text())["measures"]:
        if match := re.match(r"growth: (\S+), (\d+) x (\d+) environments", row["name"]):
            task, workers, n = match[1], int(match[2]), int(match[3])
            found["two cores"].setdefault(task, []).append((workers * n, row["value"]))
    for row in json.loads((ROOT / "results" / "grids" / "h200.json").read_text())["rows"]:
        points = [(int(n), x["steps_per_s"]) for n, x in row["sizes"].items()]
        if row["task"] in ("MultiRoom-N6", "MultiRoom-N12-S10", "KeyCorridorS3R3", "ObstructedMaze-Full"):
            found["one H200"][row["task"]] = points
    return found


def growth_plot() -> Path:
    from made.experiments import plots

    fig, axes = plots.figure(1, 2, height=2.6)
    for ax, (where, tasks) in zip(axes.reshape(-1), growth().items(), strict=True):
        for (task, points), look in zip(tasks.items(), map(plots.style_of, LOOKS), strict=False):
            ax.plot(*zip(*points, strict=True), color=look.color, linestyle=look.line, marker=look.marker, label=task)
        plots.log_axis(ax)
        plots.log_axis(ax, "y")
        plots.title(ax, where, x="environments", y="steps/s")
        sizes = sorted({n for points in tasks.values() for n, _ in points})
        ax.set_xticks(sizes, [f"{n:,}" for n in sizes], fontsize=6)
        ax.set_xticks([], minor=True)
        ax.set_ylim(0.35 * ax.get_ylim()[0])
        ax.legend(fontsize=6, loc="lower right")
    path = PICTURES / "growth.png"
    fig.savefig(path, dpi=110)
    return path


def gallery(family: str, fast: dict[str, float]) -> str:
    """The tasks of a family: a level each, with size, time limit and speed."""
    entries = []
    for task in (task for task in GRIDS if task.startswith(f"MiniGrid-{family}")):
        grid = make_grid(task)
        name, speed = task.removeprefix("MiniGrid-"), f", {fast[task] / 1e6:.0f}M steps/s" if task in fast else ""
        path = (PICTURES / f"{task}.png").relative_to(ROOT / "docs")
        size = f"{grid.maker.width} x {grid.maker.height}, {grid.maker.max_steps} steps{speed}"
        entries.append(f"![A level of {task}]({path})<br>`{name}`<br>{size}\n")
    return "\n".join([f"\n## {family}\n", '<div class="gallery levels" markdown>\n', *entries, "</div>\n"])


def page() -> None:
    record = json.loads((ROOT / "results" / "grids" / "levels.json").read_text())
    levels, fast, first = {row["task"]: row for row in record["rows"]}, speeds(), record["rows"][0]
    assert not any(row["unsolved_otherwise"] for row in levels.values()), "the page says that there are none"
    text = HEAD.format(
        video=(PICTURES / "solved.gif").relative_to(ROOT / "docs"),
        covered=sum(row["unsolved_with_a_covered_key"] for row in levels.values()),
        ours=first["levels_ours"],
        theirs=first["levels_package"],
        tests=record["tests"],
        threshold=record["threshold"],
        least=min(row["least_p"]["p"] for row in levels.values()),
    )
    text += "".join(gallery(family, fast) for family in FAMILIES)
    shown = (PICTURES / "growth.png").relative_to(ROOT / "docs")
    text += f"\n## Speed\n\n![Steps per second by the number of environments]({shown})\n\n"
    text += "*Random actions, new levels included. On two cores, two programs run in parallel.*\n"
    (ROOT / "docs" / "grids.md").write_text(text)


def main(pictures: bool) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    if pictures:
        for task in GRIDS:
            picture(task)
        solved_video()
        growth_plot()
    page()


if __name__ == "__main__":
    main("--page" not in sys.argv)
