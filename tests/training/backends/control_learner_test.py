"""The learner of control runs: parts of a state, steps that wait to be stored, parameters that are copied."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from made.core import Transition
from made.training.backends.control_learner import ControlLearner, Part, cpu_device


def step(i, seeds=()):
    numbers = np.full((*seeds, 1, 1), float(i))
    return Transition(numbers, numbers, numbers, numbers, numbers, numbers)


def waiting(many, vectorized=False):
    """(a learner that stores so many steps at a time, the rewards of each call that stores)"""
    learner, calls = ControlLearner.__new__(ControlLearner), []
    learner.run, learner.vectorized = SimpleNamespace(train_every=many), vectorized  # type: ignore[assignment]
    learner._waiting, learner._replay = [[]], Part([1], None)
    store = lambda replay, steps: [calls.append(np.squeeze(steps.reward).tolist()) or replay[0] + 1]  # noqa: E731
    learner._storing = {1: store, many: store}  # type: ignore[dict-item]
    return learner, calls


def test_full_chunks_are_stored_together_and_the_rest_one_by_one_in_their_order():
    learner, calls = waiting(3)
    learner._waiting[0] = [step(i) for i in range(8)]
    leaves = learner._stored(0, [5, 0], all_steps=False)  # type: ignore[list-item]
    assert calls == [[0, 1, 2], [3, 4, 5]] and leaves == [5, 2]
    assert learner._stored(0, leaves, all_steps=False) == leaves and len(calls) == 2
    assert learner._stored(0, leaves, all_steps=True) == [5, 4] and calls[2:] == [6, 7]
    assert learner._waiting == [[]]


def test_steps_of_several_seeds_are_joined_along_time():
    learner, calls = waiting(2, vectorized=True)
    learner._waiting[0] = [step(i, seeds=(2,)) for i in range(2)]
    learner._stored(0, [5, 0], all_steps=False)  # type: ignore[list-item]
    assert calls == [[[0, 1], [0, 1]]]


def test_the_acting_device_gets_new_parameters_after_updates_alone():
    learner = ControlLearner.__new__(ControlLearner)
    learner.vectorized, learner.actor, learner._copied = False, jax.devices()[0], [None]
    learner._params, learner._keys = Part([1], None), {True: [None], False: [None]}
    learner._acting = {explore: lambda params, *_: params[0] for explore in (True, False)}  # type: ignore[assignment]
    act = lambda x, explore=True: float(learner.act(0, [0, jnp.float32(x)], (), 0, 0, explore=explore))  # type: ignore  # noqa: E731
    assert [act(1), act(2), act(3, explore=False)] == [1, 1, 3], "the copy of the first"
    learner._copied = [None]
    assert act(2) == 2


def test_a_part_is_picked_by_its_place_in_the_state():
    part = Part.of({"a": 2, "b": [0]})
    assert part.pick(["x", "y", "z"]) == ["z", "x"]  # type: ignore[comparison-overlap, arg-type]
    assert jax.tree.unflatten(part.tree, part.pick(["x", "y", "z"])) == {"a": "z", "b": ["x"]}  # type: ignore[arg-type]


def test_on_a_cpu_the_agent_acts_where_it_learns():
    assert cpu_device() is None
