"""Write learning curves with their provenance to one JSON file, and plot them."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from made.core import safe_files
from made.experiments import plots
from made.training.provenance import provenance

Rows = Sequence[Sequence[float]]  # of one seed: (steps, mean return, success rate, CPU seconds)
COLUMNS = ("steps", "return", "successes", "cpu_s")


def record(path: str | os.PathLike, runs: Mapping[str, Mapping[int, Rows]], began: float, **settings: Any) -> Path:
    """Write the curves of each bonus and seed with settings, command, commit and device."""
    path = Path(path)
    made_by = provenance(began, time.time() - began)
    curves = {
        name: {
            str(seed): [[int(n), *(round(float(x), 4) for x in rest)] for n, *rest in rows]
            for seed, rows in seeds.items()
        }
        for name, seeds in runs.items()
    }
    lines = json.dumps({**settings, "made_by": made_by, "columns": COLUMNS, "curves": curves}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    return safe_files.write_atomic(path, _one_row_a_line(lines) + "\n")


def _one_row_a_line(text: str) -> str:
    """Put the innermost lists of indented JSON on one line each."""
    out, inner = [], []
    for line in text.splitlines():
        opened = line.rstrip().endswith("[")
        if inner and (line.strip() in ("]", "],")):
            out.append(inner[0] + " ".join(x.strip() for x in inner[1:]) + line.strip())
            inner = []
        elif opened:
            out += inner
            inner = [line]
        elif inner:
            inner.append(line)
        else:
            out.append(line)
    return "\n".join([*out, *inner])


def draw(files: Sequence[str | os.PathLike], path: str | os.PathLike) -> Path:
    """Plot mean return over steps, one panel per task: the mean over seeds, and each seed as a thin line."""
    read = [json.loads(Path(file).read_text("utf-8")) for file in files]
    if not read:
        raise ValueError("No recorded curves to plot: run the example with --out first.")
    panels: dict[str, dict[str, dict[str, Rows]]] = {}
    for one in read:
        for name, seeds in one["curves"].items():
            panels.setdefault(one["task"], {}).setdefault(name, {}).update(seeds)
    fig, axes = plots.figure(1, len(panels), width=max(plots.COLUMN * len(panels), 4.6), height=2.9, sharey=True)
    for ax, (task, bonuses) in zip(axes[0], panels.items(), strict=True):
        for name, seeds in bonuses.items():
            look = plots.style_of(name)
            several = [np.array(rows) for rows in seeds.values()]
            shortest = min(map(len, several))
            for rows in several:
                ax.plot(rows[:, 0], rows[:, 1], color=look.color, alpha=0.35, linewidth=0.7)
            mean = np.mean([rows[:shortest, 1] for rows in several], axis=0)
            ax.plot(several[0][:shortest, 0], mean, color=look.color, linestyle=look.line, label=look.text)
        counts = sorted({len(seeds) for seeds in bonuses.values()})
        label = f"{' or '.join(map(str, counts))} seed{'s' * (counts != [1])}"
        plots.title(ax, f"{task}, {label}", x="environment steps", y="mean return of 200 episodes")
        plots.step_axis(ax)
    plots.legend(fig, columns=3)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return safe_files.write_atomic(path, plots.png(fig))
