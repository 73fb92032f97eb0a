"""Steps that wait to be stored, arrays that are copied when they change, and calls that wait for each other."""

import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from made.core import Transition
from made.training.backends.control_learner import DeviceMirror, Exclusive, StepBuffer, cpu_device


def step(i, lanes=()):
    numbers = np.full((*lanes, 1, 1), float(i))
    return Transition(numbers, numbers, numbers, numbers, numbers, numbers)


def stored(waiting, all_steps):
    """The rewards of each call that stores."""
    calls = []
    keep = lambda leaves, steps: [*leaves, calls.append(np.squeeze(steps.reward).tolist())]  # noqa: E731
    assert len(waiting.stored(keep, [], all_steps)) == len(calls)
    return calls


def test_whole_stretches_are_stored_together_and_the_rest_one_by_one_in_their_order():
    waiting = StepBuffer(3, axis=0)
    for i in range(8):
        waiting.add(step(i))
    assert stored(waiting, all_steps=False) == [[0, 1, 2], [3, 4, 5]]
    assert stored(waiting, all_steps=False) == []
    assert stored(waiting, all_steps=True) == [6, 7]
    waiting.add(step(9))
    waiting.clear()
    assert stored(waiting, all_steps=True) == []


def test_lanes_are_put_together_along_time():
    waiting = StepBuffer(2, axis=1)
    for i in range(2):
        waiting.add(step(i, lanes=(2,)))
    assert stored(waiting, all_steps=False) == [[[0, 1], [0, 1]]]


def test_arrays_are_copied_when_they_are_others_and_only_those_named():
    copies, arrays = DeviceMirror(jax.devices()[0]), [jnp.full(2, float(i)) for i in range(3)]
    first = copies(arrays, [0, 2])
    assert first[1] is None and [float(first[i][0]) for i in (0, 2)] == [0.0, 2.0]
    again = copies([arrays[0], jnp.zeros(2), arrays[2]], [0, 2])
    assert all(x is y for x, y in zip(first, again, strict=True)), "the second is not read"
    changed = copies([arrays[0], arrays[1], jnp.full(2, 9.0)], [0, 2])
    assert float(changed[2][0]) == 9.0
    assert [float(x[0]) for x in copies(arrays, [])] == [0.0, 1.0, 2.0]


def test_calls_from_threads_wait_for_what_the_one_before_gives():
    at, bursts = [], Exclusive()

    class Answer:
        def __init__(self, i):
            at.append(("called", i))
            self.i = i

        def block_until_ready(self):
            time.sleep(0.002)
            at.append(("there", self.i))

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda i: bursts(Answer, i), range(12)))
    assert [answer.i for answer in answers] == list(range(12))
    assert at[::2] == [("called", i) for _, i in at[::2]] and at[1::2] == [("there", i) for _, i in at[::2]]


def test_on_a_cpu_the_agent_acts_where_it_learns():
    assert cpu_device() is None
