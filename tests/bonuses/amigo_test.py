"""AMIGo: goals reach the policy, are kept until reached, pay as the formula says, and the teacher learns from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bonuses.by_hand import discrete, episodes
from contracts.settings import Drift, collected, quick, small_lock

from made.bonuses import AMIGo, amigo
from made.bonuses.amigo import Pursuit, goal_space, is_reached
from made.core import EpisodeNote, Space, Transition
from made.envs.minigrid import Empty, Grid
from made.nets.fit import Fit

WIDE = AMIGo(width=8, bits=2, target=2.0, fit=Fit(1e-2))


def by_value(state, goal, seen, obs):
    return int(obs) == goal


def by_region(state, goal, seen, obs):
    pursuit = Pursuit(jnp.asarray(goal), *[jnp.zeros(())] * 3)
    return bool(is_reached(state.teacher.params.goals, state.planes, pursuit, jnp.asarray(obs)))


def by_cell(state, goal, seen, obs):
    high = obs["full"].shape[1]
    return (obs["full"][goal // high, goal % high] != seen["full"][goal // high, goal % high]).any()


def full_grid():
    return Grid(Empty(5, max_steps=8), shows=("full", "hash"))


@pytest.mark.parametrize(
    ("source", "reached_by", "goals"), [(small_lock, by_value, 14), (Drift, by_region, 4), (full_grid, by_cell, 25)]
)
def test_a_goal_is_kept_until_reached_and_pays_by_the_steps_it_took(source, reached_by, goals):
    env, state, batch, _ = collected(WIDE, source(), 48, 1)
    assert WIDE.memory.goal(env.spec) == Space((), jnp.int32, goals)
    paid, plain = np.asarray(quick(WIDE.reward)(state, batch)), jax.tree.map(np.asarray, batch)
    at = lambda tree, t, n: jax.tree.map(lambda x: x[t, n], tree)  # noqa: E731
    hits = 0
    for n, times in episodes(batch):
        goal, seen, t_goal = int(plain.note.goal[times[0], n]), at(plain.obs, times[0], n), 0
        for t in times:
            assert int(plain.note.goal[t, n]) == goal  # what the policy saw when it acted
            t_goal += 1
            reached = reached_by(state, goal, seen, at(plain.next_obs, t, n))
            assert np.isclose(paid[t, n], (1 - 0.9 * t_goal / env.spec.horizon) if reached else 0, atol=1e-6)
            if reached:
                hits += 1
                goal, seen, t_goal = int(plain.next_note.goal[t, n]), at(plain.next_obs, t, n), 0
    assert hits > 0 and (paid == 0).any()


def outcomes(reached, took, done=None, reward=None) -> Transition:
    """A batch [M, 1] of pursuits in the spec of four states, all of goal 0 set in state 0."""
    reached, took = np.array(reached, bool)[:, None], np.array(took)[:, None]
    zero = jnp.zeros(reached.shape, jnp.int32)
    done = jnp.zeros(reached.shape, bool) if done is None else jnp.asarray(done, bool)[:, None]
    pay = jnp.zeros(reached.shape) if reward is None else jnp.asarray(reward, float)[:, None]
    note = EpisodeNote(zero, Pursuit(zero, zero, jnp.asarray(took, jnp.int32), jnp.asarray(reached)))
    return Transition(zero, zero, pay, zero, done, done & False, note, note)


def test_the_teacher_earns_alpha_for_goals_that_took_long_and_pays_beta_for_others():
    state = WIDE.init(jax.random.key(0), discrete(4))
    batch = outcomes([1, 1, 0, 0, 0], [3, 1, 2, 4, 4], done=[0, 0, 0, 1, 1], reward=[0, 0, 0, 0, 0.9])
    _, over, good, earned = WIDE._outcomes(state, batch)
    assert np.array_equal(over, [1, 1, 0, 1, 1]) and np.array_equal(good, [1, 0, 0, 0, 0])
    assert np.allclose(np.asarray(earned)[[0, 1, 3, 4]], [0.7, -0.3, -0.3, 1.0])
    _, metrics = quick(WIDE.update)(state, batch, jax.random.key(0))
    assert np.isclose(metrics["amigo/paid"], (0.7 - 0.3 - 0.3 + 1.0) / 4)
    logits, worth = state.teacher.params(jnp.zeros((), jnp.int32))
    logs = np.log(np.exp(logits) / np.exp(logits).sum())
    gains = np.array([0.7, -0.3, -0.3, 1.0]) - float(worth)
    loss = np.mean(-gains * logs[0] + 0.5 * gains**2) + 0.01 * (np.exp(logs) * logs).sum()
    assert np.isclose(metrics["amigo/loss"], loss, rtol=1e-4)


def test_the_teacher_learns_to_set_goals_that_take_long():
    """Goal 1 is always reached late, the others at once."""
    state, update = WIDE.init(jax.random.key(0), discrete(4)), quick(WIDE.update)
    goal = jnp.arange(4).reshape(4, 1)
    batch = outcomes([1] * 4, [1, 9, 1, 1])
    note = batch.note._replace(goal=goal, trace=batch.note.trace._replace(goal=goal))
    for i in range(80):
        state, _ = update(state, batch._replace(next_note=note), jax.random.key(i))
    logits, _ = state.teacher.params(jnp.zeros((), jnp.int32))
    assert int(np.argmax(logits)) == 1 and float(jax.nn.softmax(logits)[1]) > 0.7


def test_without_an_outcome_nothing_is_learned():
    state = WIDE.init(jax.random.key(0), discrete(4))
    after, _ = quick(WIDE.update)(state, outcomes([0, 0], [1, 2]), jax.random.key(0))
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (state, after)), strict=True))


def test_the_threshold_rises_after_enough_goals_in_a_row():
    bonus = AMIGo(width=8, target=2.0, patience=4.0, furthest=3.0)
    state, update = bonus.init(jax.random.key(0), discrete(4)), quick(bonus.update)
    told = []
    for took in ([5, 5, 5, 1], [5, 5, 5, 5], [5, 5, 5, 5], [5, 5, 5, 5]):
        state, _ = update(state, outcomes([1] * 4, took), jax.random.key(0))
        told.append((float(state.target), float(state.streak)))
    assert told == [(2.0, 0.0), (3.0, 0.0), (3.0, 4.0), (3.0, 8.0)]
    half, _ = update(
        state._replace(target=jnp.asarray(2.0), streak=jnp.asarray(3.0)),
        outcomes([1, 0, 1, 0], [5] * 4),
        jax.random.key(0),
    )
    assert float(half.target) == 3.0  # what was not decided neither breaks a row nor counts


def test_goals_follow_from_what_is_observed():
    image = Space((5, 4, 3), jnp.uint8)
    assert goal_space({"full": image}, "full", 6)[:2] == ("cells", 20)
    assert goal_space(Space((3,), jnp.int32, 5), "", 6)[:2] == ("regions", 64)
    with pytest.raises(ValueError, match="name one of 'full', 'direction'"):
        goal_space({"full": image, "direction": Space((), jnp.int32, 4)}, "", 6)
    with pytest.raises(ValueError, match="from 1 to 16 as bits, got 20"):
        AMIGo(bits=20)


def test_the_loss_on_outcomes_alone_has_the_gradient_of_the_sum_over_all_items(monkeypatch):
    monkeypatch.setattr(amigo, "BLOCK", 3)
    teacher = WIDE.init(jax.random.key(0), discrete(4)).teacher.params
    weight = jnp.array([0.0, 0.5, 0.0, 0.1, 0.2, 0.0, 0.2, 0.3])
    items = jnp.arange(8) % 4, weight

    def loss(teacher, items):
        logits, value = jax.vmap(teacher)(items[0])
        return jnp.sum(items[1] * (logits.max(-1) + value) ** 2), {"value": jnp.sum(items[1] * value)}

    both = [
        jax.value_and_grad(f, has_aux=True)(teacher)
        for f in (lambda x: loss(x, items), lambda x: amigo._sum_over_outcomes(loss, x, items, weight > 0))
    ]
    for one, other in zip(*map(jax.tree.leaves, both), strict=True):
        assert np.allclose(one, other, rtol=1e-5, atol=1e-7)
