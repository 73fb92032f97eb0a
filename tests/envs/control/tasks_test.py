"""Names and settings of control tasks."""

import jax.numpy as jnp
import pytest

from made.core import Space
from made.envs.control import CONTROL, Control, make_control
from made.envs.control.tasks import check_name, suite_names

SUITE = {
    f"{domain}_{task}": (domain, task) for domain, task in [("cheetah", "run"), ("humanoid", "run"), ("dog", "run")]
}
SUITE["humanoid_CMU_stand"] = ("humanoid_CMU", "stand")


def test_the_papers_tasks_have_the_settings_of_its_release():
    settings = {
        name: (c.task, c.repeat, c.camera, c.size, c.stack, c.pixels, c.low_res_shadows) for name, c in CONTROL.items()
    }
    plain = (2, 0, 100, 3, True, False)
    names = ["pendulum_swingup", "cartpole_swingup_sparse", "cheetah_run_sparse", "walker_run_sparse", "hopper_hop"]
    quadruped = {"quadruped_run": ("quadruped_run", 4, 2, *plain[2:])}
    assert settings == {**{name: (name, *plain) for name in names}, **quadruped}


def test_settings_can_be_changed_and_others_of_a_domain_share_its_camera(suite):
    assert make_control("quadruped_walk", size=64) == Control("quadruped_walk", repeat=4, camera=2, size=64)
    assert make_control("walker_walk_sparse") == Control("walker_walk_sparse")
    assert make_control("cartpole_balance", pixels=False).pixels is False
    with pytest.raises(ValueError, match=r"no setting 'repeats'\. Did you mean 'repeat'"):
        make_control("hopper_hop", repeats=4)


def test_a_spec_says_what_an_agent_may_know():
    spec = make_control("quadruped_run").spec(actions=12)
    assert spec.obs == Space((100, 100, 9), jnp.dtype("uint8"), None, 0.0, 255.0)
    assert spec.action == Space((12,), jnp.float32, None, -1.0, 1.0) and spec.horizon == 250
    assert Control("hopper_hop", pixels=False).spec(4, 15).obs == Space((15,), jnp.float32)
    assert Control("hopper_hop", size=32, stack=1).frame == (32, 32, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repeat": 3}, "repeat=3 does not divide an episode of 1000 steps.*such as 1, 2, 4"),
        ({"repeat": 0}, "at least 1 as repeat, got 0"),
        ({"size": 0}, "at least 1 as size"),
        ({"stack": -1}, "at least 1 as stack"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_control("hopper_hop", **settings)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chetah_run_sparse", "no control task 'chetah_run_sparse'. Did you mean 'cheetah_run_sparse'"),
        ("xyz", "no control task 'xyz'. It has: pendulum_swingup, .*walker_walk_sparse, .*dog_run"),
        ("cheetah_jump", "cheetah has no task 'jump'. It has: cheetah_run, cheetah_run_sparse"),
        ("humanoid_CMU_jump", "humanoid_CMU has no task 'jump'. It has: humanoid_CMU_stand."),
    ],
)
def test_unknown_names_are_answered_with_near_ones(name, message):
    with pytest.raises(ValueError, match=message):
        check_name(name, SUITE)


def test_every_task_of_the_installed_suite_has_a_name(suite):
    assert len(suite_names()) == len(suite.ALL_TASKS) and suite_names()["ball_in_cup_catch"] == ("ball_in_cup", "catch")
    for name in (*CONTROL, "walker_walk_sparse", *SUITE):
        check_name(name, suite_names())
    with pytest.raises(ValueError, match="Did you mean 'finger_spin'"):
        make_control("fingers_pin")
