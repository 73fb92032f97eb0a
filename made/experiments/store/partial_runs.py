"""Runs that were begun and are not whole, as `made run` keeps them in `.unfinished` of a store.

They can be drawn and told as far as they go. Nothing is judged by them: a curve that was cut says nothing of its end.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from made.experiments.store.store import UNREADABLE, Store
from made.experiments.store.table import Record, Table, checked
from made.training.provenance import over_pieces

EVALUATION = "eval_return"  # what each row ends with
PLACE = ("seed", "update", "seconds")  # where a row stands; all else in it was measured


def partial_runs(store: Store, experiment: str, ids: Mapping[str, str], descriptions: Mapping[str, Any]) -> Table:
    """Of each label the run that got furthest, by its run-id, with the rows that all of its seeds have.

    `run` of a record also has `begun`: the steps that are there and those that were to be made. Nothing is written, so
    another process may be at work on them.
    """
    records: list[Record] = []
    for label, run_id in ids.items():
        folders = store.partial_runs(experiment, run_id)
        found = [one for folder in folders if (one := _read(folder, label, descriptions[label]))]
        records += max(found, key=lambda one: (one[0].run["begun"]["steps"], len(one)), default=[])
    return Table(records)


def columns(lines: Iterable[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Rows of one seed of metrics.jsonl as columns; NaN where nothing was measured. "step" counts iterations."""
    mine = list(lines)
    names = dict.fromkeys(name for line in mine for name in line if name not in PLACE)
    number = lambda x: np.nan if x is None else x  # noqa: E731
    found = {name: np.array([number(line.get(name)) for line in mine], np.float64) for name in names}
    return {"step": np.array([line["update"] for line in mine]), **found}


def progress_text(run: Mapping[str, Any]) -> str:
    """The steps that a run of `begun` has.

    >>> progress_text({"begun": {"steps": 60_000, "of": 100_000}})
    '60,000 of 100,000'
    """
    return f"{run['begun']['steps']:,} of {run['begun']['of']:,}"


def _read(folder: Path, label: str, description: Mapping[str, Any]) -> list[Record]:
    """A record a seed; none where the folder holds no row of all seeds, or cannot be read."""
    try:
        run = json.loads((folder / "run.json").read_text("utf-8"))
        by_seed = _by_seed((folder / "metrics.jsonl").read_text("utf-8", errors="replace"))
        seeds = sorted({int(seed) for seed in run["configuration"]["seeds"]})
        updates = sorted(set.intersection(*(set(by_seed.get(seed, ())) for seed in seeds)))
        if not updates:
            return []
        rows = {seed: [by_seed[seed][update] for update in updates] for seed in seeds}
        seconds = float(rows[seeds[0]][-1]["seconds"])
        about = {
            "description": description,
            "provenance": _made_by(run["sessions"], seconds, len(seeds)),
            "begun": {"steps": int(updates[-1] * run["frames_per_update"]), "of": int(run["steps"])},
        }
        return [Record(label, seed, checked(columns(rows[seed])), run=about) for seed in seeds]
    except UNREADABLE:
        return []


def _by_seed(text: str) -> dict[int, dict[int, Mapping[str, Any]]]:
    """seed -> update -> row, of the rows that end with an evaluation.

    A last line that is still being written, or that a kill cut short, is none.
    """
    found: dict[int, dict[int, Mapping[str, Any]]] = {}
    for line in map(json.loads, text.split("\n")[:-1]):
        if (value := line.get(EVALUATION)) is not None and math.isfinite(value):
            found.setdefault(line["seed"], {})[line["update"]] = line
    return found


def _made_by(sessions: Sequence[Mapping[str, Any]], seconds: float, lanes: int) -> dict[str, Any]:
    """The provenance so far: the machine of the last piece, the start of the first."""
    plain = {name: x for name, x in sessions[-1].items() if isinstance(x, str | int | float | None)}
    plain.pop("from_update", None)
    whole = {**plain, **over_pieces(sessions), "wall_s": seconds, "lanes": lanes}
    return {**whole, "started": str(sessions[0]["started"])} if "started" in sessions[0] else whole
