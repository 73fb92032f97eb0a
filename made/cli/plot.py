"""`made plot`: learning curves of training runs, overlaid; `made train` draws those of its own run with it."""

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from made.core.config import suggest
from made.experiments import plots

METRICS = "metrics.jsonl"
POSITIONS = ("seed", "update", "frames", "seconds")  # columns that say where a record belongs
MOST_RUNS = len(plots.CYCLE)


@dataclasses.dataclass
class Plot:
    """Draw the learning curves of training runs, one line a run: the mean over seeds, shaded to the extremes."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]  # run directories of `made train`
    metric: str = "return"  # a column of metrics.jsonl, such as return, eval_return, coverage or entropy
    out: Path = Path("curves.png")  # the figure; an SVG of the same name is written next to it

    def main(self) -> int:
        written = draw_curves(self.runs, self.metric, self.out)
        print(f"drawn: {written[0]}, {written[1]}")
        return 0


def draw_curves(runs: Sequence[Path], metric: str, out: Path) -> tuple[Path, Path]:
    """Draw a metric of runs over frames; returns the paths of the PNG and the SVG.

    Raises ValueError if a folder has no records, or none has the metric.
    """
    if not runs or len(runs) > MOST_RUNS:
        raise ValueError(f"made plot takes 1 to {MOST_RUNS} run directories, got {len(runs)}.")
    if out.suffix not in ("", ".png", ".svg"):
        raise ValueError(f"--out takes a name that ends in .png or .svg, not {out.name!r}.")
    read = {run: _columns(run, metric) for run in runs}
    fig, axes = plots.figure(width=plots.COLUMN if len(runs) == 1 else plots.PAGE * 0.75, height=2.6)
    short = [run.resolve().name for run in runs]
    names = {run: name if short.count(name) == 1 else str(run) for run, name in zip(runs, short, strict=True)}
    with plots.style():
        for color, (run, (frames, values)) in zip(plots.CYCLE, read.items(), strict=False):
            seeds = values.shape[0]
            look = plots.Style(f"{names[run]} ({seeds} seed{'s' * (seeds > 1)})", color)
            middle = np.nanmean(values, 0)
            plots.band(axes[0, 0], frames, middle, np.nanmin(values, 0), np.nanmax(values, 0), look)
        axes[0, 0].margins(x=0.01)
    plots.title(axes[0, 0], x="environment frames of each seed", y=metric.replace("_", " "))
    plots.step_axis(axes[0, 0])
    plots.legend(fig, columns=1)
    return plots.save(fig, out.with_suffix(""))


def _columns(run: Path, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """(frames [T], values [seeds, T]) of the records of a run that have the metric."""
    records = _records(run / METRICS)
    by_frame: dict[int, dict[int, float]] = defaultdict(dict)
    for record in records:
        value = record.get(metric)
        if isinstance(value, int | float) and math.isfinite(value):
            by_frame[int(record["frames"])][int(record["seed"])] = float(value)
    if not by_frame:
        has = sorted({name for record in records for name in record} - set(POSITIONS))
        if metric in has:
            raise ValueError(f"{run} has no finite value of {metric} yet: no episode has ended.")
        raise ValueError(f"{run} has no metric {metric!r}.{suggest(metric, has)}")
    frames, seeds = sorted(by_frame), sorted({seed for found in by_frame.values() for seed in found})
    values = np.array([[by_frame[frame].get(seed, np.nan) for frame in frames] for seed in seeds])
    return np.array(frames), values


def _records(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}: name a folder that `made train` wrote, with --out or not.")
    found = []
    for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
        try:
            record = json.loads(line)
            record["frames"], record["seed"] = int(record["frames"]), int(record["seed"])
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
            raise ValueError(f"{path}, line {number}, is no log record: the file is damaged.") from None
        found.append(record)
    if not found:
        raise ValueError(f"{path} has no log records yet.")
    return found
