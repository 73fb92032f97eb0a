"""Everything that has a name, with one line about it."""

import dataclasses
import inspect
from typing import Any

from made.core import Bonus, Density

SCALES = {
    "smoke": "seconds: does it run at all",
    "demo": "two minutes on two cores: small, cut to fit",
    "small": "minutes on two cores",
    "gpu": "minutes to hours on one accelerator, in pieces that go on",
    "paper": "the paper's budget",
}


def first_line(thing: Any) -> str:
    """The first line of a class's docstring."""
    return (inspect.getdoc(thing) or "").split("\n")[0]


def made_of(thing: Any) -> str:
    """The class of a bonus or a density, and those of the bonuses and densities within it."""
    parts = (getattr(thing, field.name) for field in dataclasses.fields(thing))
    within = ", ".join(made_of(part) for part in parts if isinstance(part, Bonus | Density))
    return type(thing).__name__ + (f"({within})" if within else "")


def line(thing: Any, maker: Any = None) -> str:
    """What an object is, in the words of its maker where that has some, and what it was made with."""
    fields = {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing)}
    said = [f"{name}={value}" for name, value in fields.items() if isinstance(value, int | float)]
    said += [f"{name}={made_of(value)}" for name, value in fields.items() if isinstance(value, Bonus | Density)]
    named = first_line(maker) if inspect.isfunction(maker) else ""
    return (named or first_line(type(thing))) + (f" [{', '.join(said)}]" if said else "")


def _control(name: str) -> str:
    """What a task of DeepMind Control is, read without the suite."""
    from made.control import make_control
    from made.control.sparse import SPARSE

    task = make_control(name)
    ours = SPARSE.get(name)
    less = f": {ours.domain} {ours.task}, rewards below {ours.least:g} left out" if ours else ""
    return f"DeepMind Control{less} [repeat={task.repeat}, camera={task.camera}]"


def _installed() -> dict[str, str]:
    """What installed packages bring, told without importing them."""
    from made import plugins

    return {
        point.name: f"{group.removeprefix('made.')} of another package [{point.value}]"
        for group in ("made.bonuses", "made.agents", "made.envs")
        for point in plugins.entry_points(group)
    }


def everything() -> dict[str, dict[str, str]]:
    """Kind -> name -> one line."""
    from made.agents import registry as agents
    from made.bench import BENCHES
    from made.bonuses import registry as bonuses
    from made.experiments import experiments
    from made.grids import GRIDS
    from made.tasks import list_envs, make

    return {
        "experiments": {name: f"{e.title} ({e.figure})" for name, e in experiments().items()},
        "bonuses": {
            name: line(bonuses.make_bonus(name)) for name in bonuses.list_bonuses("on_policy", installed=False)
        },
        "control-bonuses": {
            name: line(bonuses.make_bonus(name, "off_policy"))
            for name in bonuses.list_bonuses("off_policy", installed=False)
        },
        "agents": {
            name: line(agents.make_agent(name), agents.maker(name)) for name in agents.list_agents(installed=False)
        },
        "tasks": {name: line(getattr(make(name), "family", make(name))) for name in list_envs("tabular")},
        "grids": {name: line(make().maker) for name, make in GRIDS.items()},
        "control": {name: _control(name) for name in list_envs("control")},
        "installed": _installed(),
        "benchmarks": {name: first_line(measure) for name, measure in BENCHES.items()},
        "scales": SCALES,
    }
