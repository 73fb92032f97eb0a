"""Agents at work: the folders of `made train`, with their videos, maps of visits, dreams and curves."""

import io
import json
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from made.experiments import plots
from made.experiments.report import curves, html_parts, training_curves
from made.experiments.store import packed
from made.experiments.store.store import UNREADABLE
from made.training import checkpoint_file

_VIDEO, _VISITS = "video-seed*.gif", "visits-seed*.png"
_GIF, _PNG = (b"GIF87a", b"GIF89a"), b"\x89PNG\r\n\x1a\n"


class Agent(NamedTuple):
    """What a run of `made train` left behind; `line` is its curve, `videos` and `visits` are images by seed."""

    name: str
    command: str
    task: str
    bonus: str
    device: str
    line: Mapping[str, Any]
    videos: tuple[bytes, ...] = ()
    visits: tuple[bytes, ...] = ()
    dreams: tuple[bytes, ...] = ()  # videos by seed
    returns: training_curves.Returns = ()  # as its model expects them


def read(folder: Path) -> Agent | None:
    """The run in a folder; None where there is none, or not one row with a return.

    Parts of `made run` are no agents: they have no options. A run of an older layout is named in a warning.
    """
    try:
        run = json.loads((folder / "run.json").read_text("utf-8"))
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    except (OSError, ValueError):
        return None
    return _agent(folder, run, lines)


def packed_in(folder: Path) -> dict[Path, Agent]:
    """The runs in runs.csv.gz and runs.json of a folder, by the folders that have their videos and other files."""
    runs: dict[str, Any] = {}
    lines: dict[str, list[dict[str, Any]]] = {}
    try:
        records = packed.read(folder / "runs")
    except UNREADABLE:
        return {}
    for record in records:
        runs[record.label] = {**record.run["description"], **record.run["provenance"]}
        for row in zip(*(column.tolist() for column in record.rows.values()), strict=True):
            line = {name: x for name, x in zip(record.rows, row, strict=True) if x == x}
            lines.setdefault(record.label, []).append({"seed": record.seed, **line})
    found = {folder / label: _agent(folder / label, run, lines.get(label, [])) for label, run in runs.items()}
    return {at: agent for at, agent in found.items() if agent is not None}


def _agent(folder: Path, run: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> Agent | None:
    try:
        command, session = str(run["command"]), run["sessions"][-1]
        seen = _curve(lines)
    except (ValueError, LookupError, TypeError):
        return None
    try:
        checkpoint_file.demand_layout(run, folder / "run.json")
    except ValueError as error:
        warnings.warn(f"Left out of the report: {error}", stacklevel=2)
        return None
    if seen is None or not isinstance(options := run.get("options"), dict):
        return None
    task, bonus = (str(options.get(name, "")) for name in ("env", "bonus"))
    text = {"none": "no bonus"}.get(bonus, bonus) + " behind the gate" * bool(options.get("first_visit"))
    line = curves.line(bonus, *seen, text=f"{text} ({folder.name})")
    device = str(session.get("cpu") if session.get("device") == "cpu" else session.get("device"))
    cores = f", {session['cpu_cores']} cores" if session.get("device") == "cpu" and "cpu_cores" in session else ""
    videos, visits = _images(folder, _VIDEO, _GIF), _images(folder, _VISITS, _PNG)
    dreams = _images(folder, training_curves.FILM, _GIF), training_curves.returns(folder)
    return Agent(folder.name, command, task, text, device + cores, line, videos, visits, *dreams)


def _images(folder: Path, pattern: str, begin: bytes | tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The files of that name which begin as images of their kind do."""
    return tuple(image for path in sorted(folder.glob(pattern)) if (image := path.read_bytes()).startswith(begin))


def _curve(lines: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(frames [R], seconds [R], returns [seeds, R]) of the rows that every seed has; None without any."""
    by_seed: dict[int, dict[int, tuple[float, float]]] = {}
    for line in lines:
        if line.get("return") is not None:
            by_seed.setdefault(line["seed"], {})[line["frames"]] = (line["seconds"], line["return"])
    rows = sorted(set.intersection(*map(set, by_seed.values()))) if by_seed else []
    if not rows:
        return None
    values = np.array([[seen[frames] for frames in rows] for seen in by_seed.values()], float)
    return np.array(rows), values[:, :, 0].mean(axis=0), values[:, :, 1]


def panels(agents: Sequence[Agent]) -> dict[str, Any]:
    """The curves of all agents, a panel a task."""
    tasks = dict.fromkeys(agent.task for agent in agents)
    found = [{"name": t, "lines": _distinct_lines([agent for agent in agents if agent.task == t])} for t in tasks]
    note = (
        "Return of the training episodes. Time: the clock of the run, all its seeds side by side. Interquartile mean "
        "over seeds with its 95% bootstrap interval, where there are several."
    )
    return {"y": "return", "note": note, "panels": found}


def _distinct_lines(agents: Sequence[Agent]) -> list[dict[str, Any]]:
    """Their lines, each in a colour of its own: runs of one bonus would all have the look of the bonus."""
    looks = [
        {"colour": plots.CYCLE[i % len(plots.CYCLE)], "dash": "" if i < len(plots.CYCLE) else "5 2"}
        for i in range(len(agents))
    ]
    return [{**agent.line, **look} for agent, look in zip(agents, looks, strict=True)]


def shown(agents: Sequence[Agent], name: str) -> str:
    """Videos and maps of all agents, then their curves and commands."""
    pictures = "".join(
        _pictures(agent) for agent in agents if agent.videos or agent.visits or agent.dreams or agent.returns
    )
    rows = [(agent.name, agent.task, agent.bonus, agent.line["seeds"], agent.device, agent.command) for agent in agents]
    head = ("run", "task", "bonus", "seeds", "machine", "command")
    listed = html_parts.details("The commands", html_parts.table(head, rows, "Runs of made train"))
    gallery = f'<div class="agents">{pictures}</div>' if pictures else ""
    return f"{gallery}{curves.controls(panels(agents), name)}{listed}"


def _pictures(agent: Agent) -> str:
    who = f"{agent.task}, {agent.bonus}"
    parts = []
    if agent.videos:
        words = "One episode, acting greedily; below, what the bonus pays at each step"
        parts.append(_video(agent.videos[0], f"An episode of the trained agent: {who}", words))
    if agent.visits:
        alt = f"Map of visits: where 32 episodes went on one fresh level, {who}"
        image = f'<img src="{html_parts.source(agent.visits[0])}" alt="{escape(alt)}">'
        parts.append(f"<figure>{image}<figcaption>Where 32 episodes went on one fresh level</figcaption></figure>")
    if agent.dreams:
        parts.append(_video(agent.dreams[0], f"{training_curves.ALT}: {who}", training_curves.ALT))
    if agent.returns:
        words = "Returns of windows of the replay: what the model imagines after five observations, and what was paid"
        drawn = training_curves.scatter(agent.returns, who)
        parts.append(f"<figure>{drawn}<figcaption>{words}</figcaption></figure>")
    return f'<article><h3>{escape(agent.bonus)}</h3><p class="soft">{escape(agent.task)}</p>{"".join(parts)}</article>'


def _video(gif: bytes, alt: str, words: str) -> str:
    """The first picture of a video, and a button that plays it: nothing moves unasked."""
    image = f'<img src="{still(gif)}" data-video="{html_parts.source(gif, "gif")}" alt="{escape(alt)}">'
    told = f'Play<span class="unseen">: {escape(alt)}</span>'
    button = f'<button type="button" class="video" aria-pressed="false" hidden>{told}</button>'
    return f"<figure>{image}<figcaption>{button} {words}</figcaption></figure>"


def still(gif: bytes) -> str:
    """The first picture of a video."""
    from PIL import Image

    held = io.BytesIO()
    Image.open(io.BytesIO(gif)).convert("RGB").save(held, "PNG", optimize=True)
    return html_parts.source(held.getvalue())
