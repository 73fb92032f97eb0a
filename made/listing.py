"""Everything that has a name, with one line about it."""

import dataclasses
import inspect
from typing import Any

SCALES = {
    "smoke": "seconds: does it run at all",
    "demo": "two minutes on two cores: small, cut to fit",
    "small": "minutes on two cores",
    "gpu": "pieces of ten minutes on one accelerator",
    "paper": "the paper's budget",
}


def first_line(thing: Any) -> str:
    """The first line of a class's docstring."""
    return (inspect.getdoc(thing) or "").split("\n")[0]


def line(thing: Any) -> str:
    """What an object is, and the numbers it was made with."""
    numbers = {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing)}
    said = ", ".join(f"{name}={value}" for name, value in numbers.items() if isinstance(value, int | float))
    return first_line(type(thing)) + (f" [{said}]" if said else "")


def everything() -> dict[str, dict[str, str]]:
    """Kind -> name -> one line."""
    from made.agents import AGENTS
    from made.bench import BENCHES
    from made.bonuses import BONUSES
    from made.experiments import experiments
    from made.grids import GRIDS
    from made.tasks import TASKS

    return {
        "experiments": {name: f"{e.title} ({e.figure})" for name, e in experiments().items()},
        "bonuses": {name: line(make()) for name, make in BONUSES.items()},
        "agents": {name: line(make()) for name, make in AGENTS.items()},
        "tasks": {name: line(getattr(make(), "family", make())) for name, make in TASKS.items()},
        "grids": {name: line(make().maker) for name, make in GRIDS.items()},
        "benchmarks": {name: first_line(measure) for name, measure in BENCHES.items()},
        "scales": SCALES,
    }
