"""Plot the figure of the README and write its table of speeds, from recorded runs.

    python docs/build_front.py

Figure: visits of 32 episodes on one new level of MultiRoom-N6 after four million frames, without a bonus and with
MADE, and the learning curves. Speeds: results/*/two_cores.json and h200.json; they replace what lies between
`<!-- speeds -->` and `<!-- /speeds -->` in README.md.
"""

import json
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
AGENTS = ROOT / "results" / "report" / "agents"
PICTURE = ROOT / "docs" / "img" / "front.png"
CELL, CROP = 32, (1, 2, 25, 25)  # pixels of a cell, and the cells shown: left, top, right, bottom
STEPS = 4_000_000  # of the runs that are shown
SHOWN = {"no bonus": "MultiRoom-N6-none", "first-visit MADE": "MultiRoom-N6-made-counts"}
RLEXPLORE = "[RLeXplore](https://github.com/RLE-Foundation/RLeXplore)"
COMPARED = {  # what the table has: the measure, and the library it is compared with
    "KeyCorridorS3R3, against minigrid": "[MiniGrid](https://github.com/Farama-Foundation/Minigrid)",
    "KeyCorridorS3R3, against envpool": "[EnvPool](https://github.com/sail-sg/envpool)",
    "KeyCorridorS3R3, against navix": "[NAVIX](https://github.com/epignatelli/navix)",
    "Empty-8x8, against xminigrid's MiniGrid-Empty-8x8": "[XLand-MiniGrid](https://github.com/dunnolab/xland-minigrid)",
}


def returns(path: Path) -> dict[int, list[tuple[float, float]]]:
    """Seed -> (frames in millions, mean return) of each row of full length: the last is the mean of few episodes."""
    found: dict[int, list[tuple[float, float]]] = {}
    for row in map(json.loads, path.read_text("utf-8").splitlines()):
        if row.get("return") is not None and row["frames"] < STEPS:
            found.setdefault(row["seed"], []).append((row["frames"] / 1e6, row["return"]))
    return found


def visits(name: str) -> np.ndarray:
    """The map of visits that `made train` drew, without the empty margin of the grid."""
    image = Image.open(AGENTS / name / "visits-seed0.png").convert("RGB")
    return np.asarray(image.crop(tuple(CELL * n for n in CROP)))  # type: ignore[arg-type]


def picture() -> None:
    from made.experiments import plots

    fig, axes = plots.figure(1, 3, height=2.55)
    for ax, (title, name) in zip(axes[0], SHOWN.items(), strict=False):
        ax.imshow(visits(name), interpolation="antialiased")
        ax.axis("off")
        ax.set_anchor("N")
        plots.title(ax, f"visits, {title}")
    ax = axes[0, 2]
    curves = {"first-visit MADE": ROOT / "results" / "train" / "MultiRoom-N6", "no bonus": AGENTS / SHOWN["no bonus"]}
    for (title, folder), look in zip(curves.items(), map(plots.style_of, ("made", "none")), strict=True):
        found = returns(folder / "metrics.jsonl")
        for seed, points in found.items():
            label = f"{title}, {len(found)} seed{'s' * (len(found) > 1)}" if seed == 0 else None
            ax.plot(*zip(*points, strict=True), color=look.color, linestyle=look.line, label=label)
    plots.title(ax, "return on new levels", x="million frames")
    ax.set_ylim(top=0.8)  # room for the legend
    ax.legend(loc="upper left", fontsize=7)
    fig.savefig(PICTURE, dpi=160)


def measures(path: str) -> dict[str, dict]:
    return {row["name"]: row for row in json.loads((ROOT / "results" / path).read_text("utf-8"))["measures"]}


def short(value: float) -> str:
    """1234567 -> 1.2M, 28548 -> 29k, 5.86 -> 5.9."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.2g}{letter}" if value < 10 * size else f"{value / size:.0f}{letter}"
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def speeds() -> str:
    """Six rows of two CPU cores, then a sentence on one H200."""
    text = "| two CPU cores | made | compared with | ratio |\n|---|---|---|---|\n"
    grids = measures("grids/two_cores.json")
    for name, library in COMPARED.items():
        row = grids[name]
        ours, theirs = (f"{short(row[of])} {row['unit']}" for of in ("value", "baseline"))
        text += f"| {name.partition(',')[0]} | {ours} | {library}: {theirs} | {row['ratio']:,.0f}x |\n"
    rows = [row for name, row in measures("bonuses/two_cores.json").items() if "parameters, against RLeXplore" in name]
    ours, theirs, ratio = ([f(row[of] for row in rows) for f in (min, max)] for of in ("value", "baseline", "ratio"))
    text += f"| {len(rows)} bonuses | {ours[0]:.0f} to {ours[1]:.0f} ms | {RLEXPLORE}: "
    text += f"{theirs[0]:.0f} to {theirs[1]:.0f} ms | {ratio[0]:.1f}x to {ratio[1]:.1f}x |\n"
    for what, row in measures("train/two_cores.json").items():
        if what.startswith("training, small"):
            text += f"| training IMPALA with MADE | {short(row['value'])} {row['unit']} | | |\n"
    rows = json.loads((ROOT / "results" / "grids" / "h200.json").read_text("utf-8"))["rows"]
    # Larger sizes were measured with another layout of the levels.
    kept = lambda sizes: [x["steps_per_s"] for n, x in sizes.items() if int(n) <= 131_072]  # noqa: E731
    best = [max(kept(row["sizes"])) for row in rows]
    trained = measures("train/h200.json")["training, mid network, 72 lanes, MADE on"]["value"]
    text += f"\nOne H200: {min(best) / 1e6:.0f}M to {max(best) / 1e6:.0f}M grid steps/s, "
    return f"{text}and {short(trained)} frames/s for 72 runs of IMPALA with MADE in parallel.\n"


def write(page: Path, table: str) -> None:
    start, end = "<!-- speeds -->\n", "<!-- /speeds -->"
    head, rest = page.read_text("utf-8").split(start)
    page.write_text(f"{head}{start}\n{table}{end}{rest.split(end)[1]}", "utf-8")


if __name__ == "__main__":
    picture()
    write(ROOT / "README.md", speeds())
