"""A configuration as plain data: described, hashed, overridden."""

import json

import jax.numpy as jnp
import pytest

from made.agents import ValueIteration
from made.bonuses import MADE, Count
from made.describe import describe, override, run_id, suggest
from made.run import Run
from made.schedules import Power
from made.tabular.env import RandomTabular
from made.tabular.zoo import Lock
from made.watch import FirstReward


def a_run() -> Run:
    watches = (FirstReward("big", 0.5),)
    return Run(
        RandomTabular(Lock(H=3), horizon=4), ValueIteration(), MADE.tabular(50), Power(1.0, 0.5), watches=watches
    )


def test_a_description_is_json_and_names_every_setting():
    data = json.loads(json.dumps(describe(a_run())))
    assert data["bonus"] == {
        "class": "MADE",
        "cover": {"class": "Count", "power": 0.5, "v_max": 1.0, "memory": {"class": "NoMemory"}},
        "recent": {"class": "RecentCounts", "window": 50, "capacity": 50},
    }
    assert data["env"]["family"]["H"] == 3
    assert describe(jnp.arange(3))["array"] == [3]


def test_equal_settings_have_one_id_and_any_change_another():
    run = a_run()
    changed = [
        override(run, path, value)
        for path, value in (
            ("bonus.recent.window", "20"),
            ("tau.c", "1"),
            ("env.family.p", "0.3"),
            ("watches.0.least", "0.9"),
        )
    ]
    assert run_id(run) == run_id(a_run())
    assert len({run_id(one) for one in (run, *changed)}) == 5


def test_override_keeps_the_kind_of_value():
    run = override(a_run(), "tau.tau", "2")
    assert run.tau.tau == 2.0 and type(run.tau.tau) is float
    assert override(a_run(), "starts", "3").starts == 3
    assert override(override(a_run(), "starts", "3"), "starts", "4").starts == 4
    assert override(a_run(), "env.shuffled", "false").env.shuffled is False


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("bonus.recent.windw", "5", "RecentCounts has no field 'windw'. Did you mean 'window'"),
        ("zzz", "5", "Run has no field 'zzz'. It has: env, agent"),
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
        override(a_run(), "tau.tau", "__import__('os').getpid()")


def test_count_is_a_frozen_configuration():
    with pytest.raises(AttributeError):
        Count().power = 1.0
