"""Runs of `made train` for the report: their videos, maps of visits, dreams of the model, and learning curves."""

import csv
import itertools
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from made.experiments import plots
from made.experiments.report import charts
from made.experiments.store import packed
from made.experiments.store.files import UNREADABLE
from made.training import run_dir

_GIF, _PNG = (b"GIF87a", b"GIF89a"), b"\x89PNG\r\n\x1a\n"
Returns = Sequence[tuple[float, float]]  # (real, imagined) of windows of the replay


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


def read(folder: Path) -> Agent | None:
    """The run in a folder; None without one, or without a log record that has a return.

    Parts of `made run` have no options and are no agents. A run of an older layout is skipped with a warning.
    """
    try:
        run = json.loads((folder / "run.json").read_text("utf-8"))
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    except (OSError, ValueError):
        return None
    return _agent(folder, run, records)


def packed_in(folder: Path) -> dict[Path, Agent]:
    """The runs in runs.csv.gz and runs.json of a folder, by the folders that have their videos and other files."""
    runs: dict[str, Any] = {}
    records: dict[str, list[dict[str, Any]]] = {}
    try:
        stored = packed.read(folder / "runs")
    except UNREADABLE:
        return {}
    for one in stored:
        runs[one.label] = {**one.run["description"], **one.run["provenance"]}
        for row in zip(*(column.tolist() for column in one.rows.values()), strict=True):
            metrics = {name: x for name, x in zip(one.rows, row, strict=True) if x == x}
            records.setdefault(one.label, []).append({"seed": one.seed, **metrics})
    found = {folder / label: _agent(folder / label, run, records.get(label, [])) for label, run in runs.items()}
    return {at: agent for at, agent in found.items() if agent is not None}


def _agent(folder: Path, run: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Agent | None:
    try:
        command, session, curve = str(run["command"]), run["sessions"][-1], _curve(records)
    except (ValueError, LookupError, TypeError):
        return None
    try:
        run_dir.require_layout(run, folder / "run.json")
    except ValueError as error:
        warnings.warn(f"Left out of the report: {error}", stacklevel=2)
        return None
    if curve is None or not isinstance(options := run.get("options"), dict):
        return None
    task, bonus = (str(options.get(name, "")) for name in ("env", "bonus"))
    text = "first-visit " * bool(options.get("first_visit")) + {"none": "no bonus"}.get(bonus, bonus)
    line = charts.line(bonus, *curve, text=f"{text} ({folder.name})")
    device = str(session.get("cpu") if session.get("device") == "cpu" else session.get("device"))
    cores = f", {session['cpu_cores']} cores" if session.get("device") == "cpu" and "cpu_cores" in session else ""
    videos, dreams = _images(folder, "video-seed*.gif", _GIF), _images(folder, "dream-seed*.gif", _GIF)
    visits = _images(folder, "visits-seed*.png", _PNG)
    return Agent(folder.name, command, task, text, device + cores, line, videos, visits, dreams, _returns(folder))


def _images(folder: Path, pattern: str, start: bytes | tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The files of that name that start like images of their kind."""
    return tuple(image for path in sorted(folder.glob(pattern)) if (image := path.read_bytes()).startswith(start))


def _returns(folder: Path) -> Returns:
    """The pairs in dreams.csv; none where the file has another form."""
    try:
        with open(folder / "dreams.csv", encoding="utf-8", newline="") as file:
            pairs = [(float(row["paid"]), float(row["imagined"])) for row in csv.DictReader(file)]
    except (OSError, ValueError, LookupError, TypeError):
        pairs = []
    return tuple(pair for pair in pairs if np.isfinite(pair).all())


def _curve(records: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(frames [R], seconds [R], returns [seeds, R]) of the records that every seed has; None without any."""
    by_seed: dict[int, dict[int, tuple[float, float]]] = {}
    for one in records:
        if one.get("return") is not None:
            by_seed.setdefault(one["seed"], {})[one["frames"]] = (one["seconds"], one["return"])
    frames = sorted(set.intersection(*map(set, by_seed.values()))) if by_seed else []
    if not frames:
        return None
    values = np.array([[seen[at] for at in frames] for seen in by_seed.values()], float)
    return np.array(frames), values[:, :, 0].mean(axis=0), values[:, :, 1]


def panels(agents: Sequence[Agent]) -> dict[str, Any]:
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
