"""All states of a control run at once, as a run with one thread goes through them."""

import jax
import numpy as np

from made.training.backends.control_learner import ControlLearner, to_numpy


def act(learning: ControlLearner, learners, carries, began, obs, *when: int, explore: bool = True):
    """(what is remembered then, actions) of all states, those of the first seed first."""
    each = zip(
        map(jax.tree.leaves, learners), carries, *(np.split(x, len(learners)) for x in (began, obs)), strict=True
    )
    found = [learning.act(i, *given, *when, explore=explore) for i, given in enumerate(each)]
    return tuple(carry for carry, _ in found), np.concatenate([to_numpy(x) for _, x in found])


def take(learning: ControlLearner, learners, sums, came, t: int) -> None:
    """Store the t-th step of all states, leaves [L, ...], and learn from it."""
    for i in range(len(learners)):
        mine = slice(None) if learning.vectorized else slice(i, i + 1)
        step = jax.tree.map(lambda x, mine=mine: x[mine], came)
        learners[i], sums[i] = learning.learn(i, learners[i], sums[i], step, t)
