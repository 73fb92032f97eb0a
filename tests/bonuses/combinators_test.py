"""Bonuses made of bonuses, each against what it is made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bonuses.by_hand import discrete, episodes, stream
from contracts.settings import CONTROLLABLE, Drift, N, Walk, collected, experience, quick, rnd

from made.bonuses import (
    E3B,
    MADE,
    AMIGo,
    Bernstein,
    Clipped,
    ConstantBonus,
    Count,
    FirstVisit,
    HashedCount,
    NoBonus,
    Normalized,
    Scaled,
    Sum,
)
from made.core import NoMemory, running_stats


def test_scaled_and_clipped():
    _, state, batch, _ = experience(rnd(), Drift())
    paid = np.asarray(quick(rnd().reward)(state, batch))
    low, high = np.quantile(paid, [0.3, 0.7])
    assert np.allclose(Scaled(rnd(), 3.0).reward(state, batch), 3 * paid)
    assert np.allclose(Clipped(rnd(), low, high).reward(state, batch), np.clip(paid, low, high))
    with pytest.raises(ValueError, match="low=2"):
        Clipped(rnd(), 2.0, 1.0)


def test_normalised_divides_by_the_deviation_of_everything_paid_so_far():
    bonus = Normalized(rnd())
    _, state, batch, _ = experience(bonus, Drift())
    assert np.allclose(bonus.reward(state, batch), rnd().reward(state.inner, batch))  # nothing paid yet
    paid, update = [], quick(bonus.update)
    for part in (batch, jax.tree.map(lambda x: x[:3], batch), batch):
        state, _ = update(state, part, jax.random.key(0))
        paid.append(np.asarray(rnd().reward(state.inner, part)).reshape(-1))
    expected = rnd().reward(state.inner, batch) / np.concatenate(paid).std()
    assert np.allclose(bonus.reward(state, batch), expected, rtol=1e-4)


def test_normalised_by_the_return_follows_discounted_sums_past_the_ends_of_episodes():
    inner = HashedCount(bits=8)
    bonus = Normalized(inner, of="return", gamma=0.9, n_envs=N)
    _, state, batch, _ = experience(bonus, Drift())
    total, sums = np.zeros(N), []
    for _ in range(2):
        state, _ = bonus.update(state, batch, jax.random.key(0))
        for row in np.asarray(inner.reward(state.inner, batch)):
            total = 0.9 * total + row
            sums.append(total)
    expected = inner.reward(state.inner, batch) / np.std(sums)
    assert np.allclose(bonus.reward(state, batch), expected, rtol=1e-4)
    with pytest.raises(ValueError, match="batch of 1"):
        bonus.update(state, jax.tree.map(lambda x: x[:, :1], batch), jax.random.key(0))


def test_normalised_leaves_what_does_not_vary_as_it_is():
    bonus = Normalized(ConstantBonus(0.3))
    state = bonus.init(jax.random.key(0), discrete())
    state, _ = bonus.update(state, stream(np.zeros(1000, int)), jax.random.key(0))
    assert np.allclose(bonus.reward(state, stream([0])), 0.3)
    assert np.allclose(running_stats.scale(running_stats.merge(running_stats.empty(), jnp.array([1.0, 3.0]))), 1.0)
    assert np.allclose(running_stats.scale(running_stats.merge(running_stats.empty(), jnp.array([0.0, 6.0]))), 3.0)


@pytest.mark.parametrize("wrong", [{"of": "return"}, {"n_envs": 4}])
def test_normalised_refuses_settings_that_do_not_fit(wrong):
    with pytest.raises(ValueError, match="n_envs >= 1"):
        Normalized(rnd(), **wrong)
    with pytest.raises(ValueError, match="Normalized takes 'reward' or 'return' as of, got 'mean'"):
        Normalized(rnd(), of="mean")
    with pytest.raises(ValueError, match="Bernstein"):
        Normalized(Bernstein())


@pytest.mark.parametrize(
    "inner", [rnd, lambda: E3B(CONTROLLABLE), lambda: MADE(E3B(CONTROLLABLE), MADE.tabular(20).recent)]
)
def test_first_visit_gates_any_bonus_by_the_true_successor(inner):
    bonus = FirstVisit(inner())
    _, state, batch, _ = collected(bonus, Walk(), 12, 0)
    own = batch._replace(
        note=batch.note._replace(trace=batch.note.trace[1]),
        next_note=batch.next_note._replace(trace=batch.next_note.trace[1]),
    )
    paid, whole = quick(bonus.reward)(state, batch), quick(inner().reward)(state, own)
    first_visit = 0
    for n, times in episodes(batch):
        seen = {int(batch.obs[times[0], n])}
        for t in times:
            after = int(batch.next_obs[t, n])
            assert np.isclose(paid[t, n], 0 if after in seen else whole[t, n], atol=1e-6)
            first_visit += after in seen
            seen.add(after)
    assert first_visit > 5


def test_the_gate_alone_pays_one_for_each_new_place_of_an_episode():
    bonus = FirstVisit()
    _, state, batch, _ = collected(bonus, Walk(), 12, 0)
    paid = np.asarray(bonus.reward(state, batch))
    for n, times in episodes(batch):
        new = {int(x) for x in np.asarray(batch.next_obs[times[0] : times[-1] + 1, n])} - {int(batch.obs[times[0], n])}
        assert paid[list(times), n].sum() == len(new)


def test_sum_gives_each_part_its_own_state_and_notes():
    parts = (Count(), Scaled(FirstVisit(), 0.5), Normalized(E3B(CONTROLLABLE)))
    bonus = Sum(parts)
    _, state, batch, _ = collected(bonus, Walk(), 12, 0)
    after, metrics = quick(bonus.update)(state, batch, jax.random.key(0))
    traces = batch.next_note.trace
    expected = (
        Count().reward(after[0], batch)
        + 0.5 * (traces[1][0] == 1)
        + np.asarray(traces[2]) / np.asarray(traces[2]).std()
    )
    assert np.allclose(bonus.reward(after, batch), expected, rtol=1e-4)
    assert "2/inverse/loss" in metrics and set(bonus.reads) == {"obs", "action", "next_note"}


def test_sums_of_bonuses_without_memory_have_none_and_two_goals_are_refused():
    assert isinstance(Sum((Count(), Normalized(rnd()))).memory, NoMemory)
    with pytest.raises(ValueError, match="2 of these bonuses show goals"):
        Sum((AMIGo(), AMIGo())).memory.goal(discrete())
    with pytest.raises(ValueError, match="one bonus or more"):
        Sum(())
    assert Sum((NoBonus(), ConstantBonus(2.0))).reward(((), ()), stream([0])).item() == 2.0
