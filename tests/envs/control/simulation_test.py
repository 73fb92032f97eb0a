"""Stepping against dm_control's own environment; clocks, repeats, bounds, pictures, going on from what was saved."""

import numpy as np
import pytest

from made.envs.control import make_control
from made.envs.control.gym_env import Simulation, load


def small(name: str, **settings) -> Simulation:
    seed = settings.pop("seed", 0)
    return Simulation(make_control(name, **{"size": 24, "low_res_shadows": True, **settings}), seed)


def actions(simulation: Simulation, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (steps, *simulation.spec.action.shape))


def flat(timestep) -> np.ndarray:
    return np.concatenate([np.ravel(x) for x in timestep.observation.values()]).astype(np.float32)


@pytest.mark.parametrize(("name", "repeat"), [("pendulum_swingup", 5), ("hopper_hop", 10), ("cheetah_run_sparse", 20)])
def test_an_episode_is_that_of_dm_control_with_rewards_summed(suite, name, repeat):
    ours, theirs = small(name, pixels=False, repeat=repeat, seed=3), load(name, 3)
    bounds = theirs.action_spec()
    first, outcome, steps = theirs.reset(), None, 0
    assert np.array_equal(ours.seen, flat(first))
    for action in actions(ours, 1000 // repeat):
        assert outcome is None or not outcome.truncated
        outcome, reward = ours.step(action), 0.0
        for _ in range(repeat):
            timestep = theirs.step(np.clip(action, bounds.minimum, bounds.maximum))
            reward, steps = reward + timestep.reward, steps + 1
        assert outcome.reward == reward and np.array_equal(ours.seen, flat(timestep))
    assert timestep.last() and steps == 1000 and outcome.truncated and not outcome.terminated and ours.over
    with pytest.raises(ValueError, match=f"episode of {name} is over: call reset"):
        ours.step(action)


@pytest.mark.parametrize(("discount", "terminated"), [(0.0, True), (1.0, False), (0.5, False)])
def test_only_a_discount_of_zero_is_terminal_and_cuts_the_repeat(suite, monkeypatch, discount, terminated):
    simulation = small("cartpole_swingup_sparse", pixels=False, repeat=4)
    ends = iter([None] * 5 + [discount])  # at the second step of the second action
    monkeypatch.setattr(simulation._task, "get_termination", lambda physics: next(ends))
    still = np.zeros(1)
    assert simulation.step(still)[1:] == (False, False)
    assert simulation.step(still)[1:] == (terminated, not terminated)
    assert simulation.steps == 6 and simulation.over


def test_actions_are_rescaled_to_each_actuators_bounds(suite):
    simulation = small("quadruped_run", pixels=False, repeat=1)
    spec = load("quadruped_run", 0).action_spec()
    assert spec.maximum.max() == pytest.approx(1.1), "the case where [-1, 1] is not the range"
    for action, aim in ((1.0, spec.maximum), (-1.0, spec.minimum), (3.0, spec.maximum)):
        simulation.step(np.full(12, action))
        assert simulation._physics.control() == pytest.approx(aim)
    simulation.step(np.zeros(12))
    assert simulation._physics.control() == pytest.approx((spec.maximum + spec.minimum) / 2)


@pytest.mark.parametrize("action", [np.zeros(3), np.full(6, np.nan), 0.0])
def test_actions_of_another_kind_are_refused(suite, action):
    with pytest.raises(ValueError, match="cheetah_run takes 6 finite numbers"):
        small("cheetah_run", pixels=False).step(action)


def test_what_cannot_be_simulated_is_refused(drawn):
    with pytest.raises(ValueError, match="lqr_lqr_2_1 has actuators without bounds"):
        small("lqr_lqr_2_1")
    with pytest.raises(ValueError, match="cheetah_run has the cameras 0 to 1, and -1 that is free; not 7"):
        small("cheetah_run", camera=7)


def test_one_seed_gives_one_stream_of_episodes(suite):
    a, b, c = (small("reacher_easy", pixels=False, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(a.seen, b.seen) and not np.array_equal(a.seen, c.seen)
    a.reset(), b.reset()
    assert np.array_equal(a.seen, b.seen)
    c.reset(1), a.reset(1)
    assert np.array_equal(a.seen, c.seen)


def test_a_picture_is_dm_controls_own_at_the_papers_settings(drawn):
    simulation = Simulation(make_control("walker_run_sparse"), 0)
    simulation.step(np.ones(6))
    picture = simulation.seen
    reference = load("walker_run_sparse", 0)
    reference.reset()
    reference.step(np.ones(6)), reference.step(np.ones(6))
    assert picture.shape == (100, 100, 3) and picture.dtype == np.uint8 and picture.std() > 10
    assert np.array_equal(picture, reference.physics.render(100, 100, camera_id=0))
    assert not np.array_equal(picture, reference.physics.render(100, 100, camera_id=1))
    quick = Simulation(make_control("walker_run_sparse", low_res_shadows=True), 0)
    quick.step(np.ones(6))
    assert 0 < (quick.seen != picture).any(-1).mean() < 0.01  # the edges of shadows


def test_cameras_show_different_pictures_and_old_ones_stay(drawn):
    first, other = small("quadruped_run"), small("quadruped_run", camera=0)
    assert not np.array_equal(first.seen, other.seen)
    kept, copy = first.seen, first.seen.copy()
    first.step(np.ones(12))
    assert np.array_equal(kept, copy) and not np.array_equal(first.seen, kept)


# A model that is written into at each reset, a height field, touch sensors, RK4, and Gaussian numbers kept for later.
@pytest.mark.parametrize("name", ["finger_turn_hard", "quadruped_run", "hopper_hop", "cartpole_swingup_sparse"])
def test_a_restored_simulation_goes_on_to_the_bit_with_its_pictures(drawn, name):
    first, second = small(name, repeat=2, seed=1), small(name, repeat=2, seed=9)
    moves = actions(first, 12)
    for move in moves[:4]:
        first.step(move)
    second.step(-moves[0])
    saved = first.save()
    second.load(saved)
    assert np.array_equal(second.state(), first.state()) and np.array_equal(second.frame(), first.seen)
    for simulation_step in range(4, 12):
        if simulation_step == 8:
            first.reset(), second.reset()
            assert np.array_equal(first.seen, second.seen)
        assert first.step(moves[simulation_step]) == second.step(moves[simulation_step])
        assert np.array_equal(first.seen, second.seen) and np.array_equal(first.state(), second.state())
    assert (first.steps, first.total) == (second.steps, second.total) == (8, first.total)
    again = first.save()
    assert {n: (x.shape, x.dtype) for n, x in again.items()} == {n: (x.shape, x.dtype) for n, x in saved.items()}


def test_an_episode_that_is_over_is_restored_as_over(suite):
    first, second = (small("pendulum_swingup", pixels=False, repeat=500) for _ in range(2))
    for _ in range(2):
        first.step(np.ones(1))
    second.load(first.save())
    assert second.over and second.total == first.total and second.steps == 1000


def test_what_was_saved_elsewhere_is_refused(suite):
    simulation = small("pendulum_swingup", pixels=False)
    with pytest.raises(ValueError, match=r"does not fit pendulum_swingup: physics is float64\[.*Make the task with"):
        simulation.load(small("hopper_hop", pixels=False).save())
    with pytest.raises(ValueError, match="does not fit pendulum_swingup: total is only in one"):
        simulation.load({name: x for name, x in simulation.save().items() if name != "total"})
