"""A configuration as plain data: described, hashed, overridden."""

import importlib.metadata
import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.agents import ValueIteration, list_agents, make_agent
from made.bonuses import MADE, RND, Clipped, Count, FirstVisit, Scaled, Sum, list_bonuses, make_bonus
from made.cli.train import Train
from made.core.config import config_id, from_dict, override, suggest, to_dict
from made.core.schedules import Constant, Exponential, Power
from made.envs.host_env import SOURCES, Hosted
from made.envs.minigrid import MultiRoom
from made.envs.registry import list_envs, make
from made.envs.tabular import RandomTabular, Tabular
from made.experiments import experiments
from made.experiments.store import Scale
from made.tabular.families import Garnet, Lock
from made.training.control_config import control_config
from made.training.on_policy import RunConfig
from made.training.probes import Coverage, FirstReward, LastVisit, VisitMap


def a_run() -> RunConfig:
    probes = (FirstReward("big", 0.5),)
    return RunConfig(
        RandomTabular(Lock(H=3), horizon=4), ValueIteration(), MADE.tabular(50), Power(1.0, 0.5), probes=probes
    )


def test_a_description_is_json_and_names_every_setting():
    data = json.loads(json.dumps(to_dict(a_run())))
    assert data["bonus"] == {
        "class": "MADE",
        "cover": {"class": "Count", "power": 0.5, "v_max": 1.0, "memory": {"class": "NoMemory"}},
        "recent": {"class": "RecentCounts", "window": 50, "capacity": 50},
    }
    assert data["env"]["family"]["H"] == 3


# Read back


def registered() -> dict[str, object]:
    """Everything that has a name, with its defaults."""
    found: dict[str, object] = {f"agent {name}": make_agent(name) for name in list_agents(installed=False)}
    found |= {f"environment {name}": make(name) for name in list_envs()}
    for setting in ("on_policy", "off_policy", "dreamer"):
        for name in list_bonuses(setting, installed=False):
            found[f"bonus {name}, {setting}"] = make_bonus(name, setting)
    for name in list_bonuses("off_policy", installed=False):
        found[f"bonus {name}, from pixels"] = make_bonus(name, "off_policy", pixels=True)
    found |= {f"schedule {type(x).__name__}": x for x in (Constant(0.3), Power(), Exponential(0.1, 1e-3))}
    found |= {f"elsewhere {x}": Hosted(x, "CartPole-v1") for x in SOURCES}
    found |= {f"probe {type(x).__name__}": x for x in (FirstReward("big", 0.5), Coverage(7), VisitMap(), LastVisit())}
    return found | {
        "mixed bonus": Sum((Scaled(Count(), 0.5), Clipped(RND(), 0.0, 1.0))),
        "control run": control_config("hopper_hop", "rad", "made"),
        "Dreamer run": control_config("pendulum_swingup", "dreamer", "re3"),
        "Dreamer in a grid": Train("Empty-5x5", "dreamer", "rnd", first_visit=True).plan().run,
        "gated and calibrated": Train("DoorKey-5x5", strength=0.3, first_visit=True).plan().run,
        "tabular MDP": Tabular(Garnet(S=4).draw(jax.random.key(1)), 9),
    }


REGISTERED = registered()


def assert_equal(one, other):
    assert to_dict(one) == to_dict(other)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert all(
        np.array_equal(x, y) and jnp.result_type(x) == jnp.result_type(y)
        for x, y in zip(*map(jax.tree.leaves, (one, other)), strict=True)
    )


def written(thing):
    return json.loads(json.dumps(to_dict(thing)))


@pytest.mark.parametrize("name", REGISTERED)
def test_every_registered_object_is_read_back_equal(name):
    assert_equal(from_dict(written(REGISTERED[name])), REGISTERED[name])


@pytest.mark.parametrize("name", experiments())
def test_the_trials_of_every_experiment_are_read_back_equal(name):
    trials = {}
    for scale in Scale:
        for trial in experiments()[name].trials(scale).values():  # one of those that differ in numbers alone
            trials[re.sub(r"-?\d[\d.e+-]*", "0", json.dumps(to_dict(trial)))] = trial
    assert trials
    for trial in trials.values():
        assert_equal(from_dict(written(trial)), trial)


def test_arrays_are_stored_with_their_type_and_content():
    data = to_dict(jnp.arange(3))
    assert data["array"] == [3] and data["dtype"] == "int32"
    wide = np.array([0.1, np.nan, -np.inf])
    for array in (jnp.arange(6.0).reshape(2, 3), jnp.array([True, False]), wide, jnp.ones(2, jnp.bfloat16)):
        found = from_dict(written(array))
        assert found.dtype == array.dtype and np.asarray(found).tobytes() == np.asarray(array).tobytes()


class Mine(Count):
    """A bonus of a user's own."""

    slope: float = 2.0


class Wrapped(Count):
    act: object = jnp.tanh


def test_a_class_from_elsewhere_is_stored_with_its_module():
    data = written(FirstVisit(Mine(slope=3.0)))
    assert data["class"] == "FirstVisit" and data["bonus"]["class"] == f"{__name__}:Mine"
    assert_equal(from_dict(data), FirstVisit(Mine(slope=3.0)))


def test_no_module_is_imported_that_is_not_allowed(tmp_path, monkeypatch):
    package = tmp_path / "theirs"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("from made.bonuses import Count\nclass Theirs(Count):\n    more: int = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    data = {**to_dict(Count()), "class": "theirs.part:Theirs", "more": 3}
    for allow in ((), ("their",), ("theirs.other",)):
        with pytest.raises(ValueError, match=r"bonus is a theirs.part:Theirs.*allow=\['theirs.part'\].*--allow theirs"):
            from_dict({**to_dict(FirstVisit(Count())), "bonus": data}, allow)
    assert "theirs" not in sys.modules
    assert from_dict(data, ["theirs"]).more == 3
    assert from_dict(data).more == 3, "it is imported now"
    del sys.modules["theirs.part"], sys.modules["theirs"]
    entry = importlib.metadata.EntryPoint("theirs", "theirs.part:Theirs", "made.bonuses")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] if group == "made.bonuses" else [])
    assert from_dict(data).more == 3, "a plug-in is installed"
    del sys.modules["theirs.part"], sys.modules["theirs"]  # for the tests that follow in this process


COUNT = {"class": "Count", "power": 0.5, "v_max": 1.0, "memory": {"class": "NoMemory"}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({**COUNT, "class": "Cuont"}, "the configuration: there is no class 'Cuont'. Did you mean 'Count'"),
        ({**COUNT, "class": "Transfer"}, "no class 'Transfer'"),
        ({**COUNT, "class": "Layout"}, "no class 'Layout'"),
        ({**COUNT, "class": 3}, "no class 3"),
        ({**COUNT, "class": "Zzzzzzz"}, "no class 'Zzzzzzz'. It was written by another version of made: use that"),
        ({**COUNT, "class": "os:system"}, "no class 'os:system'. Only an equinox.Module can be read"),
        ({**COUNT, "class": "os:path.nothing"}, "no class 'os:path.nothing'"),
        ({**COUNT, "class": "pathlib:Path"}, "no class 'pathlib:Path'"),
        ({**COUNT, "memory": {"class": "antigravity:X"}}, "memory is a antigravity:X, and no module is imported"),
        ({**COUNT, "powr": 1}, "the configuration, a Count, has an unknown field, 'powr'. It was written by another"),
        ({**to_dict(FirstVisit()), "bonus": {"class": "Count", "power": 1.0}}, "Count, lacks the field 'v_max'"),
        ({**COUNT, "power": -1.0}, "at least 0 as power, got -1.0"),
        ({**COUNT, "power": "0.5"}, "power takes a float, not '0.5'"),
        ({**to_dict(MultiRoom(4)), "width": 7}, "width is now 25, not 7"),
        ({**to_dict(jnp.arange(3)), "base64": "AAAA"}, "no array that made wrote"),
        ({**to_dict(jnp.arange(3)), "dtype": "object"}, "no array that made wrote"),
        (to_dict(Wrapped()), "act is a function, .*: make it a class"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_back_is_refused_with_what_to_do(data, message):
    with pytest.raises(ValueError, match=message):
        from_dict(json.loads(json.dumps(data)))


def test_equal_settings_have_one_id_and_any_change_another():
    run = a_run()
    changed = [
        override(run, path, value)
        for path, value in (
            ("bonus.recent.window", "20"),
            ("bonus_coef.c", "1"),
            ("env.family.p", "0.3"),
            ("probes.0.least", "0.9"),
        )
    ]
    assert config_id(run) == config_id(a_run())
    assert len({config_id(one) for one in (run, *changed)}) == 5


def test_override_keeps_the_kind_of_value():
    run = override(a_run(), "bonus_coef.value", "2")
    assert run.bonus_coef.value == 2.0 and type(run.bonus_coef.value) is float
    assert override(a_run(), "resets_per_update", "3").resets_per_update == 3
    assert override(override(a_run(), "resets_per_update", "3"), "resets_per_update", "4").resets_per_update == 4
    assert override(a_run(), "env.shuffled", "false").env.shuffled is False


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("bonus.recent.windw", "5", "RecentCounts has no field 'windw'. Did you mean 'window'"),
        ("zzz", "5", "RunConfig has no field 'zzz'. It has: env, agent"),
        ("agent.gamma", "much", "agent.gamma is 0.99 and takes a number, not 'much'"),
        ("agent.gamma", "1" + 400 * "0", "agent.gamma is 0.99 and takes a number, not '1000"),
        ("agent.gamma", "1.5", "ValueIteration takes a number from 0 to 1 as gamma, got 1.5: 0.99 is usual."),
        ("agent.sweeps", "0", "ValueIteration takes a whole number of at least 1 as sweeps, got 0: 12 is usual."),
        ("n_envs", "1.5", "n_envs is 1 and takes a whole number, not '1.5'"),
        ("env.shuffled", "3", "takes true or false"),
        ("n_envs.more", "3", "leads into 1, which has no fields"),
        ("bonus.recent.window", "500", "choose 1 <= window <= capacity"),
        ("unroll", "0", "unroll must be at least 1"),
    ],
)
def test_a_wrong_override_says_what_was_given_and_what_is_accepted(path, value, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        override(a_run(), path, value)


def test_of_very_many_names_it_says_which_command_has_them():
    many = [f"eq:{i}" for i in range(200)]
    assert suggest("zzz", many).endswith("...; `made list` has them.")
    assert suggest("zzz", many, "made map").endswith("...; `made map` has them.")
    assert suggest("eq:1999", many, "made map") == " Did you mean 'eq:199'?"


def test_text_in_an_override_is_never_executed():
    with pytest.raises(ValueError, match="takes a number"):
        override(a_run(), "bonus_coef.value", "__import__('os').getpid()")


def test_count_is_a_frozen_configuration():
    with pytest.raises(AttributeError):
        Count().power = 1.0
