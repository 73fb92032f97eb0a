"""Every number that `--set` can reach has a range: -1 is refused by whatever it makes no sense for."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from contracts.settings import COMBINED

from made.agents import list_agents, make_agent
from made.bonuses import RND, VAE, Count, list_bonuses, make_bonus
from made.cli.build import build
from made.core.config import override
from made.envs.registry import list_envs
from made.experiments import experiments
from made.experiments.store import Scale
from made.nets.fit import Fit

# What may be any number: rewards, values, and weights whose sign is part of the method.
FREE = {"Lock.big", "Lock.small", "ConstantBonus.pay", "FirstReward.least", "FirstReward.most"}
FREE |= {f"{agent}.initial" for agent in ("ModelPPO", "QLearning", "ValueIteration")}
FREE |= {"Maze.visited"}  # which is there for the number of steps, and that has a range
FREE |= {f"{of}.symbols" for of in ("VAE", "Factorized", "ReleasedVAE", "OrthogonalRND")}  # follow from the task
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
    return build(env, agent, bonus, strength=strength)


def unchecked(thing: Any) -> list[str]:
    """What takes -1, and would run to the end with it. Lengths are looked at when it is known what is recorded."""
    return sorted(field for field in taken(thing, "-1") - FREE if not field.endswith((".iterations", ".every")))


def replaced(thing: Any, path: list[str], value: Any) -> Any:
    """A copy with another value at that path, made by the constructors that users call."""
    if not path:
        return value
    if isinstance(thing, tuple):
        at = int(path[0])
        return (*thing[:at], replaced(thing[at], path[1:], value), *thing[at + 1 :])
    return dataclasses.replace(thing, **{path[0]: replaced(getattr(thing, path[0]), path[1:], value)})


def untyped(thing: Any) -> list[str]:
    """The fields for numbers that take what is none, or that fail with anything but a clear ValueError."""
    found = set()
    for path, field in numbers(thing):
        for value in ("a", None, [1], True, float("nan")):
            try:
                replaced(thing, path.split("."), value)
            except ValueError as error:
                if field.split(".")[1] not in str(error):
                    found.add(f"{field}: {error}")
            else:
                found.add(f"{field} takes {value!r}")
    return sorted(found)


ADVICE = "give it a range with made.core.config.setting or check_numbers, or a place in FREE"


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


@pytest.mark.parametrize("name", [*list_bonuses("on_policy", installed=False), *COMBINED])
def test_bonuses_refuse_what_is_no_number(name):
    assert not untyped(COMBINED[name]() if name in COMBINED else make_bonus(name)), ADVICE


@pytest.mark.parametrize("make", [functools.partial(make_agent, name) for name in list_agents(installed=False)])
def test_agents_refuse_what_is_no_number(make):
    assert not untyped(make()), ADVICE


def test_a_number_that_is_none_is_refused_in_words():
    with pytest.raises(ValueError, match="RND takes a whole number as embedding, got 'a': 128 is usual"):
        RND(embedding="a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"RND takes a whole number as embedding, got 1\.5"):
        RND(embedding=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Count takes a number as power, got nan"):
        Count(power=float("nan"))


def test_traced_and_stacked_numbers_pass():
    powers = jax.numpy.array([0.5, 1.0])
    stacked = jax.vmap(lambda power: Count(power=power))(powers)
    assert stacked.power.tolist() == [0.5, 1.0]
    assert float(jax.jit(lambda rate: RND(fit=Fit(rate)).fit.learning_rate)(0.25)) == 0.25
    assert jax.eval_shape(lambda window: VAE(window=window).window, 3).shape == ()
    assert dataclasses.replace(stacked, v_max=np.float32(2)).v_max == 2 and Count(power=1).power == 1
