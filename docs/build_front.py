"""Draw the picture of the README and write its tables, all from recorded runs.

    python docs/build_front.py

Picture: where 32 episodes went on one fresh level of MultiRoom-N6, after four million frames without a bonus and with
MADE, and the returns while they learnt. Tables: the verdicts of results/report/report.json, and the speeds of
results/*/two_cores.json and h200.json. In README.md what lies between `<!-- NAME -->` and `<!-- /NAME -->` is replaced.
"""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from made.experiments.report.model import kind_of

ROOT = Path(__file__).resolve().parents[1]
AGENTS = ROOT / "results" / "report" / "agents"
PICTURE = ROOT / "docs" / "img" / "front.png"
CELL, CROP = 32, (1, 2, 25, 25)  # pixels of a cell, and the cells shown: left, top, right, bottom
STEPS = 4_000_000  # of the runs that are shown
SHOWN = {"no bonus": "MultiRoom-N6-none", "MADE": "MultiRoom-N6-made-counts"}
VERDICTS = {"yes": "holds", "no": "**does not hold**", "unknown": "cannot tell yet", "unrun": "not run yet"}


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
        plots.title(ax, f"{title}: where 32 episodes went")
    ax = axes[0, 2]
    curves = {"MADE": ROOT / "results" / "train" / "MultiRoom-N6", "no bonus": AGENTS / SHOWN["no bonus"]}
    for (title, folder), look in zip(curves.items(), map(plots.style_of, ("made", "none")), strict=True):
        found = returns(folder / "metrics.jsonl")
        for seed, points in found.items():
            label = f"{title}, {len(found)} seed{'s' * (len(found) > 1)}" if seed == 0 else None
            ax.plot(*zip(*points, strict=True), color=look.colour, linestyle=look.line, label=label)
    plots.title(ax, "return on new levels", x="million frames")
    ax.legend(loc="upper left", fontsize=7)
    fig.savefig(PICTURE, dpi=160)


def claims() -> str:
    """Every claim that was judged, with its verdict."""
    sections = json.loads((ROOT / "results" / "report" / "report.json").read_text("utf-8"))["sections"]
    rows = {}
    for one in (one for section in sections for one in section["claims"]):
        number, text = re.fullmatch(r"Claim (\d+): (.*?)\.?", one["claim"], re.S).groups()  # type: ignore[union-attr]
        if one["observed"]:
            rows[int(number)] = (text, one["where"], kind_of(one))
    kinds = Counter(kind for *_, kind in rows.values())
    said = f"{kinds['yes']} hold, {kinds['no']} do not, {kinds['unknown']} cannot be told yet, "
    said += f"{kinds['unrun']} were not run yet"
    text = f"{len(rows)} claims are judged from recorded runs: {said}.\n\n"
    text += "| | the paper says | where | verdict |\n|---|---|---|---|\n"
    for number, (claim, where, kind) in sorted(rows.items()):
        text += f"| {number} | {claim} | {where} | {VERDICTS[kind]} |\n"
    return text


def measures(path: str) -> dict[str, dict]:
    return {row["name"]: row for row in json.loads((ROOT / "results" / path).read_text("utf-8"))["measures"]}


def short(value: float) -> str:
    """1234567 -> 1.2M, 28548 -> 29k, 5.86 -> 5.9."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.2g}{letter}" if value < 10 * size else f"{value / size:.0f}{letter}"
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def speeds() -> str:
    """Ours beside theirs on two cores, then what one H200 does."""
    text = "| two cores | made | beside | ratio |\n|---|---|---|---|\n"
    for row in measures("grids/two_cores.json").values():
        what, _, beside = row["name"].partition(", against ")
        if beside:
            ours, theirs = (f"{short(row[of])} {row['unit']}" for of in ("value", "baseline"))
            text += f"| {what} | {ours} | {beside}: {theirs} | {row['ratio']:,.0f}x |\n"
    rows = [row for name, row in measures("bonuses/two_cores.json").items() if "parameters, against RLeXplore" in name]
    ours, theirs, ratio = ([f(row[of] for row in rows) for f in (min, max)] for of in ("value", "baseline", "ratio"))
    text += f"| {len(rows)} bonuses, reward and update | {ours[0]:.0f} to {ours[1]:.0f} ms "
    text += f"| RLeXplore's: {theirs[0]:.0f} to {theirs[1]:.0f} ms | {ratio[0]:.1f}x to {ratio[1]:.1f}x |\n"
    for what, row in measures("train/two_cores.json").items():
        if what.startswith("training, small"):
            text += f"| IMPALA with MADE, training | {short(row['value'])} {row['unit']} | | |\n"
    rows = json.loads((ROOT / "results" / "grids" / "h200.json").read_text("utf-8"))["rows"]
    # More environments were tried only in a form of wide levels that was left.
    kept = lambda sizes: [x["steps_per_s"] for n, x in sizes.items() if int(n) <= 131_072]  # noqa: E731
    best = [max(kept(row["sizes"])) for row in rows]
    trained = measures("train/h200.json")["training, mid network, 72 lanes, MADE on"]["value"]
    grids = f"{min(best) / 1e6:.0f} to {max(best) / 1e6:.0f} million times a second"
    text += f"\nOn one H200 the grids step {grids}, and 72 runs of IMPALA with MADE, side by side, "
    return f"{text}train at {short(trained)} frames a second.\n"


def write(page: Path, parts: dict[str, str]) -> None:
    text = page.read_text("utf-8")
    for name, part in parts.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
        if not pattern.search(text):
            raise ValueError(f"{page.name} has no place for {name}: it needs <!-- {name} --> and <!-- /{name} -->.")
        text = pattern.sub(lambda m, part=part: f"{m[1]}\n{part}\n{m[2]}", text)
    page.write_text(text, "utf-8")


if __name__ == "__main__":
    picture()
    write(ROOT / "README.md", {"claims": claims(), "speeds": speeds()})
