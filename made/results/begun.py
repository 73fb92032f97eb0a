"""Runs that were begun and are not whole, as `made run` keeps them in `.unfinished` of a store.

They can be drawn and told as far as they go. Nothing is judged by them: a curve that was cut says nothing of its end.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from made.results.store import Store
from made.results.table import Record, Table, checked

PLACE = ("seed", "update", "seconds")  # where a row stands; all else in it was measured
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


def begun(store: Store, experiment: str, run_ids: Mapping[str, str]) -> Table:
    """Of each label the run that got furthest, by its run-id, with the rows that all of its seeds have.

    `run` of a record also has `begun`: the steps that are there and those that were to be made. Nothing is written, so
    another process may be at work on them.
    """
    records: list[Record] = []
    for label, run_id in run_ids.items():
        folders = sorted(store.root.glob(f".unfinished/{experiment}/{run_id}-s*"))
        found = [one for folder in folders if (one := _read(folder, label))]
        records += max(found, key=lambda one: (one[0].run["begun"]["steps"], len(one)), default=[])
    return Table(records)


def columns(lines: Iterable[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Rows of one seed of metrics.jsonl as columns; NaN where nothing was measured. "step" counts iterations."""
    mine = list(lines)
    names = dict.fromkeys(name for line in mine for name in line if name not in PLACE)
    number = lambda x: np.nan if x is None else x  # noqa: E731
    found = {name: np.array([number(line.get(name)) for line in mine], np.float64) for name in names}
    return {"step": np.array([line["update"] for line in mine]), **found}


def told(run: Mapping[str, Any]) -> str:
    """How far a run of `begun` is.

    >>> told({"begun": {"steps": 60_000, "of": 100_000}})
    '60,000 of 100,000 steps'
    """
    return f"{run['begun']['steps']:,} of {run['begun']['of']:,} steps"


def _read(folder: Path, label: str) -> list[Record]:
    """A record a seed; none where the folder holds no row of all seeds, or cannot be read."""
    try:
        run = json.loads((folder / "run.json").read_text("utf-8"))
        by_seed = _by_seed(_lines((folder / "metrics.jsonl").read_text("utf-8", errors="replace")))
        seeds = run["configuration"]["seeds"]
        updates = sorted(set.intersection(*(set(by_seed.get(seed, ())) for seed in seeds)))
        if not updates:
            return []
        about = {
            "description": run["configuration"],
            "provenance": run["sessions"][-1],
            "begun": {"steps": int(updates[-1] * run["frames_per_update"]), "of": int(run["steps"])},
        }
        rows = [checked(columns(by_seed[seed][update] for update in updates)) for seed in seeds]
        return [Record(label, seed, each, run=about) for seed, each in zip(seeds, rows, strict=True)]
    except _UNREADABLE:
        return []


def _lines(text: str) -> list[Mapping[str, Any]]:
    """The rows of metrics.jsonl without a last one that is still being written, or that a kill cut short."""
    whole = text.split("\n")[:-1]
    return [json.loads(line) for line in whole]


def _by_seed(lines: Sequence[Mapping[str, Any]]) -> dict[int, dict[int, Mapping[str, Any]]]:
    """seed -> update -> row."""
    found: dict[int, dict[int, Mapping[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["seed"], {})[line["update"]] = line
    return found
