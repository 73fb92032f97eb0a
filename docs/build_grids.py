"""Write docs/grids.md: every grid task as a picture with its numbers, and a video of a solved KeyCorridor.

    python docs/build_grids.py

Numbers come from the recorded runs in results/grids; pictures are drawn from the tasks themselves.
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
LOOKS = ("made", "rnd", "noveld", "ride", "icm", "re3")  # whose colour each task borrows
FILM = "MiniGrid-KeyCorridorS3R3-v0"

HEAD = """# The grid tasks

MiniGrid's tasks as pure JAX, state for state those of the `minigrid` package: the same observation, reward and end
after every action (no difference in the 100,000 and more steps that the tests play side by side), and levels from the
same distribution. `made.make(id)` gives the environment, `gymnasium.make("made/" + id)` the same for other people's
code, `made play id` a walk in the terminal. This page is written by `python docs/build_grids.py`.

![A solved level of KeyCorridorS3R3]({video})

*A level of {task}, solved by the planner of the tests: it fetches the key, opens the locked door, puts the key down
and picks up the ball. The lit cells are what the agent sees.*

## What the columns say

- **size**: columns x rows; **steps**: after how many an episode is cut; **bytes**: the state of one environment.
- **solved**: levels that the planner solves, of {solved:,}. In some -v0 mazes a ball may lie on a key, as in the
  package: {covered} such levels were met. All levels that could not be solved are of that kind.
- **planner**: its mean number of steps, here / in the package.
- **least p**: the smallest p-value among the tests that compare {ours:,} of our levels with {theirs:,} of the
  package's (rooms, doors, colours, objects, agent, each cell). With {tests:,} tests over all tasks a value below
  {threshold:.0e} would be an alarm.
- **H200**: the best number of steps a second on one H200, fresh levels included (docs/benchmarks.md).

| | task | size | steps | bytes | solved | planner | least p | H200 |
|---|---|---|---|---|---|---|---|---|
"""


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


LARGEST = 131_072  # environments: more were tried only in a form of wide levels that was left


def speeds() -> dict[str, float]:
    rows = json.loads((ROOT / "results" / "grids" / "h200.json").read_text())["rows"]
    kept = lambda sizes: [x["steps_per_s"] for n, x in sizes.items() if int(n) <= LARGEST]  # noqa: E731
    return {f"MiniGrid-{row['task']}-v0": max(kept(row["sizes"])) for row in rows}


def growth() -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Steps a second by the number of environments: where -> task -> points, from the recorded benchmarks."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {"two cores": {}, "one H200": {}}
    for row in json.loads((ROOT / "results" / "grids" / "two_cores.json").read_text())["measures"]:
        if told := re.match(r"growth: (\S+), (\d+) x (\d+) environments", row["name"]):
            task, workers, n = told[1], int(told[2]), int(told[3])
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
            ax.plot(*zip(*points, strict=True), color=look.colour, linestyle=look.line, marker=look.marker, label=task)
        plots.log_axis(ax)
        plots.log_axis(ax, "y")
        plots.title(ax, where, x="environments", y="steps a second")
        sizes = sorted({n for points in tasks.values() for n, _ in points})
        ax.set_xticks(sizes, [f"{n:,}" for n in sizes], fontsize=6)
        ax.set_xticks([], minor=True)
        ax.set_ylim(0.35 * ax.get_ylim()[0])
        ax.legend(fontsize=6, loc="lower right")
    path = PICTURES / "growth.png"
    fig.savefig(path, dpi=110)
    return path


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    record = json.loads((ROOT / "results" / "grids" / "levels.json").read_text())
    levels, fast = {row["task"]: row for row in record["rows"]}, speeds()
    some = record["rows"][0]
    assert not any(row["unsolved_otherwise"] for row in levels.values()), "the page says that there are none"
    text = HEAD.format(
        video=solved_video().relative_to(ROOT / "docs"),
        task=FILM,
        solved=1000,
        covered=sum(row["unsolved_with_a_covered_key"] for row in levels.values()),
        ours=some["levels_ours"],
        theirs=some["levels_package"],
        tests=record["tests"],
        threshold=record["threshold"],
    )
    for task in GRIDS:
        grid, of = make_grid(task), levels.get(task.replace("NoisyTV", ""))
        state = jax.eval_shape(lambda grid=grid: grid.reset(jax.random.key(0))[0])
        held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
        shown = picture(task).relative_to(ROOT / "docs")
        cells = [
            f"![{task}]({shown})",
            f"`{task}`",
            f"{grid.maker.width} x {grid.maker.height}",
            str(grid.maker.max_steps),
        ]
        cells += [str(held), f"{of['solved']:,}", f"{of['planner_steps']:.1f} / {of['planner_steps_package']:.1f}"]
        cells += [f"{of['least_p']['p']:.1e}", f"{fast[task] / 1e6:.0f}M" if task in fast else ""]
        text += "| " + " | ".join(cells) + " |\n"
    shown = growth_plot().relative_to(ROOT / "docs")
    text += f"\n## Growth\n\n![Steps a second by the number of environments]({shown})\n\n"
    text += "*Random actions, fresh levels included; on two cores two programs run side by side.*\n"
    (ROOT / "docs" / "grids.md").write_text(text)


if __name__ == "__main__":
    main()
