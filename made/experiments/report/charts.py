"""Data of the page's interactive charts and of its trained agents: curves, maps of visits, videos, dreams."""

import csv
import itertools
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from made.experiments import plots
from made.experiments.paper import lock_probes
from made.experiments.paper import minigrid_setup as grids
from made.experiments.statistics import interval
from made.experiments.store import files
from made.experiments.store.table import Table
from made.tabular.families import Lock
from made.training import run_dir

SHOWN = ("made/gated", "rnd/gated", "gate", "made", "bebold", "rnd", "none")  # at first; the others on demand
ROWS = ("large reward, good", "large reward, dead", "small reward, good", "small reward, dead")
FORMS = {"vi": "Q never rises, as in He et al.", "vi-plain": "Q may rise again"}
_DIGITS = 4
_GIF, _PNG = (b"GIF87a", b"GIF89a"), b"\x89PNG\r\n\x1a\n"
Returns = Sequence[tuple[float, float]]  # (real, imagined) of windows of the replay


def learning_curves(table: Table) -> dict[str, Any]:
    """The returns of `minigrid`: a panel a task, a line a method.

    Time is a run's part of the wall-clock of its program, wall_s / lanes, spread evenly over the log intervals: many
    runs share one compiled program, and nothing finer is recorded.
    """
    panels = []
    for task in grids.tasks(table):
        lines = []
        for method in grids.methods(table, task):
            frames, returns = grids.returns(table, f"{task}/{method}")
            made_by = [run["provenance"] for run in table.runs(f"{task}/{method}")]
            seconds = np.mean([one.get("wall_s", np.nan) / max(one.get("lanes", 1), 1) for one in made_by])
            lines.append(line(method, frames, seconds * frames / frames[-1], returns, shown=method in SHOWN))
        panels.append({"name": task, "lines": lines})
    devices = dict.fromkeys(run["provenance"].get("device") for one in table.labels() for run in table.runs(one))
    where = ", ".join(str(device) for device in devices if device)
    note = (
        "Training return: interquartile mean over seeds with its 95% bootstrap interval. Time of a run is the "
        f"wall-clock of its batch divided by the runs in it, compilation included{f' ({where})' if where else ''}; "
        "small batches look slower."
    )
    return {"y": "episode return", "note": note, "panels": panels}


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
    places = [int(x(c, h)) for c in (0, 1) for x in (lock.good, lock.dead) for h in range(lock.H)]
    forms = []
    for form, text in FORMS.items():
        methods = []
        for method in (one for one in lock_probes.SHOWN if f"{form}/{one}" in table.labels()):
            median = np.median(lock_probes.maps(table, f"{form}/{method}"), axis=0)
            methods.append({"text": plots.name_of(method), "frames": [_rounded(counts[places]) for counts in median]})
        if methods:
            forms.append({"text": text, "methods": methods})
    about = {"rows": ROWS, "columns": lock.H, "steps": [int(step) for step in steps]}
    return {**about, "seeds": len(table.seeds("vi/bernstein")), "forms": forms}


class Agent(NamedTuple):
    """What a run of `made train` recorded; `line` is its curve, `videos`, `visits` and `dreams` are images by seed."""

    name: str
    command: str
    task: str
    bonus: str
    device: str
    line: Mapping[str, Any]
    videos: tuple[bytes, ...] = ()
    visits: tuple[bytes, ...] = ()
    dreams: tuple[bytes, ...] = ()  # Dreamer: what the model predicts
    returns: Returns = ()  # Dreamer: returns that the model predicts


def read_agent(folder: Path) -> Agent | None:
    """The run in a folder; None without one, or without a log record that has a return.

    Parts of `made run` have no options and are no agents. A run of an older layout is skipped with a warning.
    """
    try:
        run = json.loads((folder / "run.json").read_text("utf-8"))
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    except (OSError, ValueError):
        return None
    return _agent(folder, run, records)


def packed_agents(folder: Path) -> dict[Path, Agent | None]:
    """The runs in runs.csv.gz and runs.json of a folder, by the folders that have their videos and other files."""
    runs: dict[str, Any] = {}
    records: dict[str, list[dict[str, Any]]] = {}
    try:
        stored = files.read_packed(folder / "runs")
    except files.UNREADABLE:
        return {}
    for one in stored:
        runs[one.label] = {**one.run["description"], **one.run["provenance"]}
        for row in zip(*(column.tolist() for column in one.rows.values()), strict=True):
            metrics = {name: x for name, x in zip(one.rows, row, strict=True) if x == x}
            records.setdefault(one.label, []).append({"seed": one.seed, **metrics})
    return {folder / label: _agent(folder / label, run, records.get(label, [])) for label, run in runs.items()}


def _agent(folder: Path, run: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Agent | None:
    by_seed: dict[int, dict[int, tuple[float, float]]] = {}  # seed -> frames -> (seconds, return)
    try:
        command, session = str(run["command"]), run["sessions"][-1]
        for one in (one for one in records if one.get("return") is not None):
            by_seed.setdefault(one["seed"], {})[one["frames"]] = (one["seconds"], one["return"])
    except (LookupError, TypeError, AttributeError):
        return None
    try:
        run_dir.require_layout(run, folder / "run.json")
    except ValueError as error:
        warnings.warn(f"Left out of the report: {error}", stacklevel=2)
        return None
    frames = sorted(set.intersection(*map(set, by_seed.values()))) if by_seed else []
    if not frames or not isinstance(options := run.get("options"), dict):
        return None
    values = np.array([[seen[at] for at in frames] for seen in by_seed.values()], float)
    task, bonus = (str(options.get(name, "")) for name in ("env", "bonus"))
    text = "first-visit " * bool(options.get("first_visit")) + {"none": "no bonus"}.get(bonus, bonus)
    seconds, returns = values[:, :, 0].mean(axis=0), values[:, :, 1]
    drawn = line(bonus, np.array(frames), seconds, returns, text=f"{text} ({folder.name})")
    device = str(session.get("cpu") if session.get("device") == "cpu" else session.get("device"))
    cores = f", {session['cpu_cores']} cores" if session.get("device") == "cpu" and "cpu_cores" in session else ""
    videos, dreams = _images(folder, "video-seed*.gif", _GIF), _images(folder, "dream-seed*.gif", _GIF)
    visits = _images(folder, "visits-seed*.png", _PNG)
    return Agent(folder.name, command, task, text, device + cores, drawn, videos, visits, dreams, _returns(folder))


def _images(folder: Path, pattern: str, start: bytes | tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The files of that name that start like images of their kind."""
    return tuple(image for path in sorted(folder.glob(pattern)) if (image := path.read_bytes()).startswith(start))


def _returns(folder: Path) -> Returns:
    """The pairs in dreams.csv; none where the file has another form."""
    try:
        with open(folder / "dreams.csv", encoding="utf-8", newline="") as file:
            pairs = [(float(row["paid"]), float(row["imagined"])) for row in csv.DictReader(file)]
    except (OSError, ValueError, LookupError, TypeError):
        return ()
    return tuple(pair for pair in pairs if np.isfinite(pair).all())


def agent_curves(agents: Sequence[Agent]) -> dict[str, Any]:
    """The curves of all agents: a panel a task, and a color of its own for each run, also of runs of one bonus."""
    found = []
    for task in dict.fromkeys(agent.task for agent in agents):
        looks = itertools.cycle(itertools.product(("", "5 2"), plots.CYCLE))
        runs = zip((agent.line for agent in agents if agent.task == task), looks, strict=False)
        found.append({"name": task, "lines": [{**line, "dash": dash, "color": color} for line, (dash, color) in runs]})
    note = (
        "Return of the training episodes. Time: wall-clock of the run, whose seeds train in parallel. Interquartile "
        "mean over seeds with its 95% bootstrap interval; one seed has no interval."
    )
    return {"y": "episode return", "note": note, "panels": found}
