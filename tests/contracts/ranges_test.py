"""Every number that `--set` can reach has a range: -1 is refused by whatever it makes no sense for."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from made.agents import list_agents
from made.bonuses import list_bonuses
from made.describe import override
from made.experiments import experiments
from made.results.store import Scale
from made.tasks import list_envs
from made.training.plan import build_run

# What may be any number: rewards, values, and weights whose sign is part of the method.
FREE = {"Lock.big", "Lock.small", "Flat.pay", "FirstReward.least", "FirstReward.most"}
FREE |= {f"{agent}.initial" for agent in ("ModelPPO", "QLearning", "ValueIteration")}
FREE |= {"Maze.visited"}  # which is there for the number of steps, and that has a range
FREE |= {f"{of}.symbols" for of in ("VAE", "Factorised", "ReleasedVAE", "OrthogonalRND")}  # follow from the task
FREE |= {f"PolicyGradient.w_{of}" for of in ("re", "e", "made")}
TABLES = ("hoeffding", "inverse", "bernstein", "made-tabular", "made-geometric")
GRIDS = ("MultiRoom-N6", "KeyCorridorS4R3", "ObstructedMaze-2Dlh", "ObstructedMaze-Full", "FourRooms", "Empty-5x5")


def numbers(thing: Any, at: str = "", of: str = "") -> Iterator[tuple[str, str]]:
    """(path, class and field) of every number of a configuration."""
    if dataclasses.is_dataclass(thing):
        for name in (field.name for field in dataclasses.fields(thing) if field.init):
            yield from numbers(getattr(thing, name), f"{at}{name}.", f"{type(thing).__name__}.{name}")
    elif isinstance(thing, tuple):
        for i, part in enumerate(thing):
            yield from numbers(part, f"{at}{i}.", of)
    elif isinstance(thing, int | float) and not isinstance(thing, bool):
        yield at[:-1], of


def taken(thing: Any, value: str) -> set[str]:
    """The fields, as class and name, that take that value."""
    found = set()
    for path, field in numbers(thing):
        try:
            override(thing, path, value)
        except ValueError:
            continue
        found.add(field)
    return found


def run_of(env: str, agent: str, bonus: str, strength: float | None = None):
    return build_run(env, agent, bonus, False, None, strength, ())


def unchecked(thing: Any) -> list[str]:
    """What takes -1, and would run to the end with it. Lengths are looked at when it is known what is recorded."""
    return sorted(field for field in taken(thing, "-1") - FREE if not field.endswith((".iterations", ".every")))


ADVICE = "give it a range with made.describe.check_numbers, or a place in FREE"


@pytest.mark.parametrize("name", list_bonuses("on_policy", installed=False))
def test_numbers_of_bonuses(name):
    where = ("lock", "q-learning") if name in TABLES else ("DoorKey-5x5", "uniform")
    assert not unchecked(run_of(*where, name)), ADVICE


def test_numbers_of_a_bonus_of_some_strength():
    assert not unchecked(run_of("DoorKey-5x5", "uniform", "first-visit", 0.4)), ADVICE


@pytest.mark.parametrize("name", list_agents("on_policy"))
def test_numbers_of_agents(name):
    assert not unchecked(run_of("lock", name, "none")), ADVICE


@pytest.mark.parametrize("name", [*list_envs("tabular"), *GRIDS])
def test_numbers_of_tasks(name):
    assert not unchecked(run_of(name, "uniform", "none")), ADVICE


@pytest.mark.parametrize("name", [name for name in experiments() if not name.startswith("dmc")])
def test_numbers_of_experiments(name):
    trials = experiments()[name].trials(Scale.SMOKE)
    assert not sorted({field for trial in trials.values() for field in unchecked(trial)}), ADVICE
