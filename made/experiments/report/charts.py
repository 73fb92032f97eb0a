"""Data of the page's interactive charts: learning curves and visit maps. `assets` has the scripts that draw them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from made.experiments import plots
from made.experiments.paper import lock_probes
from made.experiments.paper import minigrid_setup as grids
from made.experiments.statistics import interval
from made.experiments.store.table import Table
from made.tabular.families import Lock

SHOWN = ("made/gated", "rnd/gated", "gate", "made", "bebold", "rnd", "none")  # at first; the others on demand
ROWS = ("large reward, good", "large reward, dead", "small reward, good", "small reward, dead")
FORMS = {"vi": "Q never rises, as in He et al.", "vi-plain": "Q may rise again"}
_DIGITS = 4


def learning_curves(table: Table) -> dict[str, Any]:
    """The returns of `minigrid`: a panel a task, a line a method.

    Time is a run's part of the wall-clock of its program, wall_s / lanes, spread evenly over the log intervals: many
    runs share one compiled program, and nothing finer is recorded.
    """
    panels = [
        {"name": task, "lines": [_method_line(table, task, method) for method in grids.methods(table, task)]}
        for task in grids.tasks(table)
    ]
    devices = dict.fromkeys(run["provenance"].get("device") for one in table.labels() for run in table.runs(one))
    where = ", ".join(str(device) for device in devices if device)
    note = (
        "Training return: interquartile mean over seeds with its 95% bootstrap interval. Time of a run is the "
        f"wall-clock of its batch divided by the runs in it, compilation included{f' ({where})' if where else ''}; "
        "small batches look slower."
    )
    return {"y": "episode return", "note": note, "panels": panels}


def _method_line(table: Table, task: str, method: str) -> dict[str, Any]:
    label = f"{task}/{method}"
    frames, returns = grids.returns(table, label)
    clocks = [
        run["provenance"].get("wall_s", np.nan) / max(run["provenance"].get("lanes", 1), 1) for run in table.runs(label)
    ]
    seconds = np.mean(clocks) * frames / frames[-1]
    return line(method, frames, seconds, returns, shown=method in SHOWN)


def line(
    method: str, frames: np.ndarray, seconds: np.ndarray, values: np.ndarray, *, text: str = "", shown: bool = True
) -> dict[str, Any]:
    """One curve: values [seeds, R] as their interquartile mean and interval, in the style of the method."""
    look = plots.style_of(method)
    middle, low, high = (_rounded(np.asarray(x)) for x in interval(values, "iqm", np.random.default_rng(0))[:3])
    dash = "" if look.line == "-" else " ".join(f"{x:g}" for x in look.line[1])
    about = {"text": text or look.text, "color": look.color, "dash": dash, "shown": shown, "seeds": len(values)}
    axes = {"frames": [int(x) for x in frames], "seconds": _rounded(seconds)}
    return {**about, **axes, "middle": middle, "low": low, "high": high}


def _rounded(values: ArrayLike) -> list[float | None]:
    """Floats in a few digits; None for NaN."""
    return [float(f"{x:.{_DIGITS}g}") if np.isfinite(x) else None for x in np.asarray(values, float)]


def visit_maps(table: Table) -> dict[str, Any]:
    """Figure 5 as data: median visits over seeds, for each form of value iteration and bonus a map [4, H] a window."""
    steps, visits = table.arrays("vi/bernstein", "visits")
    lock = Lock(H=(visits.shape[2] - 2) // 4)
    places = np.array([[int(x(c, h)) for h in range(lock.H)] for c in (0, 1) for x in (lock.good, lock.dead)])
    forms: list[Mapping[str, Any]] = []
    for form, text in FORMS.items():
        methods = [m for m in lock_probes.SHOWN if f"{form}/{m}" in table.labels()]
        if methods:
            forms.append({"text": text, "methods": [_method_map(table, form, m, places) for m in methods]})
    about = {"rows": ROWS, "columns": lock.H, "steps": [int(step) for step in steps]}
    return {**about, "seeds": len(table.seeds("vi/bernstein")), "forms": forms}


def _method_map(table: Table, form: str, method: str, places: np.ndarray) -> dict[str, Any]:
    median = np.median(lock_probes.maps(table, f"{form}/{method}"), axis=0)
    frames = [[float(f"{x:.4g}") for x in counts[places].ravel()] for counts in median]
    return {"text": plots.style_of(method).text, "frames": frames}
