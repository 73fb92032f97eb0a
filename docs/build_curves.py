"""Plot learning curves from recorded runs: docs/img/bonuses/NAME-curves.png and docs/img/tutorials/NAME.png.

    python docs/build_curves.py            # figures
    python docs/build_curves.py RUN...     # first add these run directories to the records in results/train

The runs are those of results/minigrid (the setting of each method was chosen on other seeds), results/dmc,
DoorKey-5x5 for bonuses that have no other run, and PPO on KeyCorridorS4R3.
"""

import csv
import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from made.experiments import plots

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "img"
TRAINED = {task: ROOT / "results" / "train" / f"{task.lower()}.json" for task in ("DoorKey", "KeyCorridor")}
FRAMES = 32 * 100  # per update on MiniGrid
SOLID, DASHED, DOTTED, MIXED = "-", (0, (4, 2)), (0, (1, 1.3)), (0, (5, 1.5, 1, 1.5))
NONE, MASK = ("none", "no bonus", "none", DOTTED), ("gate", "first-visit constant", "gate", MIXED)  # of every grid
ROOMS, KEYS, MAZE = "MultiRoom-N7-S8", "KeyCorridorS4R3", "ObstructedMaze-2Dlh"


def masked(name: str, text: str) -> list[tuple]:
    """A bonus with and without the first-visit mask, and the controls."""
    return [(name, text, name, SOLID), (f"{name}/gated", f"first-visit {text}", name, DASHED), MASK, NONE]


# page -> tasks, and for each curve: its label in the records, its text, the method whose color it has, its line
GRIDS = {
    "made": ((ROOMS, KEYS), masked("made", "MADE")),
    "rnd": ((ROOMS, KEYS), masked("rnd", "RND")),
    "icm": ((ROOMS, KEYS), masked("icm", "ICM")),
    "ride": ((ROOMS, KEYS), masked("ride", "RIDE")),
    "amigo": ((KEYS,), masked("amigo", "AMIGo")),
    "bebold": (
        (ROOMS, KEYS),
        [
            ("bebold/ungated", "BeBold without the mask", "bebold", SOLID),
            ("bebold", "BeBold", "bebold", DASHED),
            MASK,
            NONE,
        ],
    ),
    "first-visit": (
        (ROOMS, KEYS),
        [
            ("rnd/gated", "first-visit RND", "rnd", DASHED),
            ("made/gated", "first-visit MADE", "made", DASHED),
            MASK,
            NONE,
        ],
    ),
}
PENDULUM = "pendulum_swingup"
CONTROL = {  # page -> scale of the records, and its curves
    "re3": ("gpu", [("re3", "RE3, 0.25", "re3", SOLID), ("re3/printed", "RE3, 0.05", "re3", DOTTED)]),
    "made-released": ("small", [("made-released", "MADE as released", "bernstein", DASHED)]),
}
STEPS = "thousand environment steps"
ALWAYS = [("made", "MADE", "made", SOLID), ("none", "no bonus", "none", DOTTED)]


def columns(path: Path, x: str, y: str) -> dict[str, dict[int, list[tuple[float, float]]]]:
    """Label -> seed -> points."""
    found: dict = defaultdict(lambda: defaultdict(list))
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row[y] not in ("", "nan"):
                found[row["label"]][int(row["seed"])].append((float(row[x]), float(row[y])))
    return found


def curve(ax, runs: dict[int, list], text: str, method: str, line, scale: float) -> None:
    """The mean over seeds, with their range as a band."""
    shortest = min(map(len, runs.values()))
    points = np.array([rows[:shortest] for rows in runs.values()])
    x, y = points[0, :, 0] * scale, points[..., 1]
    color = plots.style_of(method).color
    ax.plot(x, y.mean(0), color=color, linestyle=line, label=text)
    ax.fill_between(x, y.min(0), y.max(0), color=color, alpha=0.15, linewidth=0)


def figure(name: str, panels: dict[str, list], found: dict, scale: float, x: str) -> Path:
    fig, axes = plots.figure(1, len(panels), width=4.6 if len(panels) == 1 else 5.8, height=2.5, sharey=True)
    for ax, (task, curves) in zip(axes[0], panels.items(), strict=True):
        for label, text, method, line in curves:
            if runs := found.get(f"{task}/{label}"):
                curve(ax, runs, text, method, line, scale)
        plots.title(ax, task, x=x, y="return" if ax is axes[0, 0] else "")
    plots.legend(fig, columns=2)
    path = FIGURES / f"{name}.png"
    fig.savefig(path, dpi=180)
    return path


def minigrid(found: dict) -> Path:
    """The page on MiniGrid: every recorded task, the methods that were run on all of them."""
    tasks = sorted({label.partition("/")[0] for label in found}, key=lambda task: (task[0] != "M", task))
    bonuses = [("made", "MADE"), ("rnd", "RND")]
    curves = [(f"{name}/gated", f"first-visit {text}", name, DASHED) for name, text in bonuses]
    curves += [(name, text, name, SOLID) for name, text in bonuses] + [
        ("bebold", "BeBold", "bebold", DASHED),
        MASK,
        NONE,
    ]
    fig, axes = plots.panels(tasks, 2, x="million frames", y="return", width=5.8, height=1.9, sharey=True)
    for ax, task in zip(axes, tasks, strict=True):
        for label, text, method, line in curves:
            curve(ax, found[f"{task}/{label}"], text, method, line, FRAMES / 1e6)
    plots.legend(fig, columns=3)
    path = FIGURES / "minigrid.png"
    fig.savefig(path, dpi=180)
    return path


def record(folder: Path) -> None:
    """Add the command, provenance and returns of a training run to the record, under the name of the folder."""
    about = json.loads((folder / "run.json").read_text("utf-8"))
    path = next(path for task, path in TRAINED.items() if about["options"]["env"].startswith(task))
    runs = json.loads(path.read_text("utf-8")) if path.exists() else {}
    returns: dict[str, list] = defaultdict(list)
    for row in map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines()):
        returns[str(row["seed"])].append([row["frames"], round(row["return"], 4)])
        seconds = row["seconds"]
    runs[folder.name] = {"command": about["command"], "made_by": about["sessions"][-1], "seconds": seconds}
    runs[folder.name]["returns"] = returns
    path.write_text(json.dumps(runs, sort_keys=True) + "\n", "utf-8")


CONSTANT = ("first-visit", *MASK[1:])
COLOR = {"e3b": "ride", "ngu": "rnd", "hashed": "amigo", "disagreement": "bebold"}  # methods with other figures


def trained(task: str, path: Path) -> dict:
    """The recorded training runs on a task."""
    runs = json.loads(path.read_text("utf-8"))
    return {f"{task}/{name}": {int(k): v for k, v in run["returns"].items()} for name, run in runs.items()}


def keycorridor() -> Path:
    """PPO on KeyCorridorS4R3, as the tutorial on grids trains it."""
    curves = [("made-counts", "first-visit MADE", "made", DASHED), ("rnd", "first-visit RND", "rnd", DASHED)]
    found = trained(KEYS, TRAINED["KeyCorridor"])
    return figure("tutorials/keycorridor", {KEYS: curves}, found, 1e-6, "million frames")


def doorkey() -> list[Path]:
    found = trained("DoorKey-5x5", TRAINED["DoorKey"])
    names = {
        "e3b": "E3B",
        "ngu": "NGU",
        "hashed": "first-visit hashed counts",
        "disagreement": "first-visit Disagreement",
    }
    return [
        figure(
            f"bonuses/{name}-curves",
            {"DoorKey-5x5": [(name, text, COLOR[name], DASHED if "first" in text else SOLID), CONSTANT, NONE]},
            found, 1e-3, "thousand frames",
        )
        for name, text in names.items()
        if f"DoorKey-5x5/{name}" in found
    ]  # fmt: skip


def main() -> list[Path]:
    grids = columns(ROOT / "results" / "minigrid" / "minigrid" / "gpu.csv.gz", "step", "return")
    paths = [
        figure(f"bonuses/{name}-curves", dict.fromkeys(tasks, curves), grids, FRAMES / 1e6, "million frames")
        for name, (tasks, curves) in GRIDS.items()
    ]
    paths.append(minigrid(grids))
    for name, (scale, curves) in CONTROL.items():
        runs = columns(ROOT / "results" / "dmc" / "dmc" / f"{scale}.csv.gz", "frames", "eval_return")
        paths.append(figure(f"bonuses/{name}-curves", {PENDULUM: curves + ALWAYS}, runs, 1e-3, STEPS))
    runs = columns(ROOT / "results" / "dmc" / "dmc" / "small.csv.gz", "frames", "eval_return")
    paths.append(figure("tutorials/pendulum", {PENDULUM: [("re3", "RE3", "re3", SOLID), *ALWAYS]}, runs, 1e-3, STEPS))
    return [*paths, *doorkey(), keycorridor()]


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        record(Path(folder))
    print(json.dumps([path.relative_to(ROOT).as_posix() for path in main()], indent=1))
