"""What searches chose: files beside the experiments, by scale, task and method, which `made choose` writes."""

import json
from pathlib import Path
from typing import Any

from made.core import safe_files
from made.experiments.store.store import Scale
from made.experiments.store.table import Table
from made.experiments.types import Search

Settings = dict[str, dict[str, Any]]  # of a method, by task and method


def read(file: Path) -> dict[str, Settings]:
    """All that was chosen, by scale; nothing where no search was taken over yet."""
    return json.loads(file.read_text("utf-8")) if file.exists() else {}


def take(search: Search, table: Table, scale: Scale, replace: bool = False) -> Settings:
    """Write what a search chose where experiments read it, and give it back; all else in that file stays.

    A setting that stands there already is kept, and one that differs refused, unless it is to be replaced: what was
    run with it would no longer belong to the experiment.
    """
    found, file, name = search.choose(table), search.file(), search.scale(scale)
    kept = read(file)
    old = kept.get(name, {})
    other = [
        f"{task}/{method} {old[task][method]} in place of {setting}"
        for task, of in found.items()
        for method, setting in of.items()
        if old.get(task, {}).get(method, setting) != setting
    ]
    if other and not replace:
        raise ValueError(
            f"{file.name} has other settings at scale {name}: {', '.join(other)}. "
            "With --replace they are written over, and runs that were made with them no longer count."
        )
    merged = {task: {**old.get(task, {}), **found.get(task, {})} for task in (*old, *found)}
    safe_files.write_atomic(file, json.dumps({**kept, name: merged}, indent=1) + "\n")
    return found
