"""Learning curves as plain data: what the page draws against frames or against time."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from made.experiments import plots
from made.experiments.paper import minigrid_setup as grids
from made.experiments.report import html_parts
from made.experiments.statistics import interval
from made.experiments.store.table import Table

SHOWN = ("made", "made/gated", "bebold", "rnd", "ride", "icm", "amigo", "none")  # at first; the controls on demand
_DIGITS = 4


def of(table: Table) -> dict[str, Any]:
    """The returns of `minigrid`: a panel a task, a line a method.

    Time is a run's share of the clock of its program, wall_s / lanes, spread evenly over the rows: many runs go side
    by side in one compiled program, and nothing finer is recorded.
    """
    panels = []
    for task in grids.tasks(table):
        lines = [_line(table, task, method) for method in grids.methods(table, task)]
        panels.append({"name": task, "lines": lines})
    devices = dict.fromkeys(run["provenance"].get("device") for one in table.labels() for run in table.runs(one))
    told = ", ".join(str(device) for device in devices if device)
    note = (
        "Interquartile mean over seeds with its 95% bootstrap interval. Time: the run's share of its program's "
        f"wall-clock, compiling included{f', on {told}' if told else ''}; the fewer share one, the dearer each."
    )
    return {"y": "return", "note": note, "panels": panels}


def _line(table: Table, task: str, method: str) -> dict[str, Any]:
    label = f"{task}/{method}"
    frames, returns = grids.returns(table, label)
    runs = table.runs(label)
    clocks = [run["provenance"].get("wall_s", np.nan) / max(run["provenance"].get("lanes", 1), 1) for run in runs]
    return line(method, frames, np.mean(clocks) * frames / frames[-1], returns, shown=method in SHOWN)


def line(
    method: str,
    frames: np.ndarray,
    seconds: np.ndarray,
    values: np.ndarray,
    *,
    text: str = "",
    shown: bool = True,
) -> dict[str, Any]:
    """One curve: values [seeds, R] as their interquartile mean and interval, in the look of the method."""
    look = plots.style_of(method)
    middle, low, high = (np.asarray(x, float) for x in interval(values, "iqm", np.random.default_rng(0))[:3])
    dash = "" if look.line == "-" else " ".join(f"{x:g}" for x in look.line[1])
    return {
        "text": text or look.text,
        "colour": look.colour,
        "dash": dash,
        "shown": shown,
        "seeds": len(values),
        "frames": [int(x) for x in frames],
        "seconds": rounded(seconds),
        "middle": rounded(middle),
        "low": rounded(low),
        "high": rounded(high),
    }


def rounded(values: np.ndarray | Sequence[float]) -> list[float | None]:
    """Numbers in a few digits; None where there is none."""
    return [float(f"{x:.{_DIGITS}g}") if np.isfinite(x) else None for x in np.asarray(values, float)]


def controls(given: Mapping[str, Any], name: str) -> str:
    """The place of a chart in the page with its controls; scripts fill it."""
    options = "".join(f'<option value="{i}">{escape(one["name"])}</option>' for i, one in enumerate(given["panels"]))
    return (
        f'<div class="curves widget" data-from="{name}" hidden><div class="row">'
        f'<label for="{name}-task">Task</label><select id="{name}-task" class="task">{options}</select>'
        '<fieldset class="switch"><legend>Horizontal axis</legend>'
        f'<label><input type="radio" name="{name}-x" value="frames" checked><span>frames</span></label>'
        f'<label><input type="radio" name="{name}-x" value="seconds"><span>time</span></label></fieldset></div>'
        '<div class="chart"></div>'
        '<fieldset class="legend"><legend>Methods</legend><div class="items"></div></fieldset>'
        f'<p class="note">{escape(str(given["note"]))}</p>'
        f'<details><summary>The numbers at the end of each curve</summary><div class="numbers"></div></details></div>'
        f"<noscript><p>The chart needs JavaScript; the figure shows the same.</p></noscript>"
        f"{html_parts.data(given, name)}"
    )
