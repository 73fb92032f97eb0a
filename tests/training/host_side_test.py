"""Steps that wait to be stored, and arrays that are copied when they change."""

import jax
import jax.numpy as jnp
import numpy as np

from made.core import Transition
from made.training.host_side import Copies, Waiting, processor


def step(i, lanes=()):
    numbers = np.full((*lanes, 1, 1), float(i))
    return Transition(numbers, numbers, numbers, numbers, numbers, numbers)


def stored(waiting, whole):
    """The rewards of each call that stores."""
    calls = []
    keep = lambda leaves, steps: [*leaves, calls.append(np.squeeze(steps.reward).tolist())]  # noqa: E731
    assert len(waiting.stored(keep, [], whole)) == len(calls)
    return calls


def test_whole_stretches_are_stored_together_and_the_rest_one_by_one_in_their_order():
    waiting = Waiting(3, axis=0)
    for i in range(8):
        waiting.add(step(i))
    assert stored(waiting, whole=False) == [[0, 1, 2], [3, 4, 5]]
    assert stored(waiting, whole=False) == []
    assert stored(waiting, whole=True) == [6, 7]
    waiting.add(step(9))
    waiting.forget()
    assert stored(waiting, whole=True) == []


def test_lanes_are_put_together_along_time():
    waiting = Waiting(2, axis=1)
    for i in range(2):
        waiting.add(step(i, lanes=(2,)))
    assert stored(waiting, whole=False) == [[[0, 1], [0, 1]]]


def test_arrays_are_copied_when_they_are_others_and_only_those_named():
    copies, arrays = Copies(jax.devices()[0]), [jnp.full(2, float(i)) for i in range(3)]
    first = copies(arrays, [0, 2])
    assert first[1] is None and [float(first[i][0]) for i in (0, 2)] == [0.0, 2.0]
    again = copies([arrays[0], jnp.zeros(2), arrays[2]], [0, 2])
    assert all(x is y for x, y in zip(first, again, strict=True)), "the second is not read"
    changed = copies([arrays[0], arrays[1], jnp.full(2, 9.0)], [0, 2])
    assert float(changed[2][0]) == 9.0
    assert [float(x[0]) for x in copies(arrays, [])] == [0.0, 1.0, 2.0]


def test_on_a_cpu_the_agent_acts_where_it_learns():
    assert processor() is None
