"""Plot the figures of docs/reliability.md, and print its table of checks.

    python docs/build_reliability.py [RECORDS] [IMAGES]

Records are written by `MADE_RELIABILITY_RESULTS=DIR pytest -m reliability -n 0`.
"""

import io
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from made.core import safe_files

ROOT = Path(__file__).resolve().parents[1]
COLORS = {  # what a kill interrupted: color and marker
    "before the run began": ("#8a8f98", "o"),
    "before it went on": ("#8a8f98", "s"),
    "before the first checkpoint": ("#2a6fbb", "^"),
    "between two checkpoints": ("#1b9e77", "D"),
    "while a file was written": ("#d1495b", "X"),
    "before the first stored run": ("#2a6fbb", "v"),
    "between two stored runs": ("#1b9e77", "P"),
}


def draw(records: Path, to: Path) -> list[Path]:
    """Every figure whose record is there, as PNG."""
    drawers: dict[str, Callable[[Mapping[str, Any]], Any]] = {"kills": kills, "soak": soak}
    there = {name: records / f"{name}.json" for name in drawers if (records / f"{name}.json").is_file()}
    if not there:
        raise ValueError(
            f"{records} holds no kills.json or soak.json. Write them: "
            f"MADE_RELIABILITY_RESULTS={records} pytest -m reliability"
        )
    to.mkdir(parents=True, exist_ok=True)
    written = []
    for name, path in there.items():
        figure = drawers[name](json.loads(path.read_text("utf-8")))
        figure.savefig(held := io.BytesIO(), dpi=150, metadata={"Software": "made"})
        written.append(safe_files.write_atomic(to / f"{name}.png", held.getvalue()))
    return written


def table(records: Path) -> str:
    """What is recorded as a Markdown table: a row for each check, its outcome and its numbers."""
    rows = ["| check | what was tried | outcome | numbers | time |", "|---|---|---|---|---|"]
    for path in sorted(records.glob("*.json")):
        found = json.loads(path.read_text("utf-8"))
        seconds = found.get("provenance", {}).get("wall_s", 0)
        outcome = "passed" if found["passed"] else "FAILED"
        rows.append(f"| {path.stem} | {found['what']} | {outcome} | {_numbers(found)} | {seconds / 60:.0f} min |")
    return "\n".join(rows)


def _numbers(found: Mapping[str, Any]) -> str:
    """The numbers of a record, those of its parts too, in words."""
    parts: list[str] = []
    for key, x in found.items():
        if type(x) in (int, float):
            parts.append(f"{key.replace('_', ' ')} {x:,}")
        elif key.startswith("by_"):
            parts.append(", ".join(f"{name} {n}" for name, n in x.items()))
        elif key == "scenes":
            parts += [f"{len(x)} scenes", ", ".join(dict.fromkeys(one["scene"] for one in x))]
    return "; ".join(parts)


def _axes(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def kills(record: Mapping[str, Any]) -> Any:
    """Each kill by when it came in the life of a process, a row for each kind of run, marked by what it met."""
    each = [dict(zip(record["columns"], one, strict=True)) for one in record["each"]]
    cases = sorted({kill["case"] for kill in each})
    figure, axes = _axes(8, 0.42 * len(cases) + 1.9)
    draw = np.random.default_rng(0)  # sets kills of one moment apart
    for phase, (color, mark) in COLORS.items():
        some = [kill for kill in each if kill["phase"] == phase]
        if some:
            heights = [cases.index(kill["case"]) + draw.uniform(-0.25, 0.25) for kill in some]
            shares = [kill["share"] for kill in some]
            label = f"{phase.replace('went on', 'resumed')} ({len(some)})"
            axes.scatter(shares, heights, s=26, c=color, marker=mark, label=label, alpha=0.85, linewidths=0)
    axes.set_yticks(range(len(cases)), cases)
    axes.set_xlabel("kill time / duration of an uninterrupted run")
    verdict = "all resumed, bitwise identical" if record["passed"] else f"{len(record['differ'])} differ"
    axes.set_title(f"{record['kills']} kills in {record['trials']} runs: {verdict}", loc="left", fontsize=11)
    axes.set_xlim(left=0)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def soak(record: Mapping[str, Any]) -> Any:
    """Resident memory of a training over time, with the line that its growth is read from."""
    seconds, mib = (np.array([row[i] for row in record["samples"]]) for i in (0, 1))
    figure, axes = _axes(8, 3.2)
    axes.plot(seconds / 60, mib, color="#2a6fbb", linewidth=1.2, label="resident memory")
    later = seconds >= seconds[-1] / 3
    slope = record["slope_mib_per_hour"] / 3600
    line = mib[later].mean() + slope * (seconds[later] - seconds[later].mean())
    axes.plot(seconds[later] / 60, line, "--", color="#d1495b", linewidth=1.2, label="line after the warm-up")
    axes.set_ylim(0, 1.15 * mib.max())
    axes.set_xlabel("minutes since the first row")
    axes.set_ylabel("MiB")
    growth = f"{record['growth_mib']:+.1f} MiB over the last two thirds, {record['rows_written']:,} rows written"
    axes.set_title(f"A training of {seconds[-1] / 60:.0f} minutes: {growth}", loc="left", fontsize=11)
    axes.legend(frameon=False, loc="lower right", fontsize=8)
    return figure


if __name__ == "__main__":
    folders = [Path(word) for word in sys.argv[1:]]
    records = folders[0] if folders else ROOT / "results" / "reliability"
    for image in draw(records, folders[1] if len(folders) > 1 else ROOT / "docs" / "img" / "reliability"):
        print(image)
    print(table(records))
