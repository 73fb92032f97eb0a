"""Tabular bonuses (Appendix B.1) against their formulas on recorded experience, hashed counts against a dictionary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bonuses.by_hand import discrete, steps, stream
from contracts.settings import Drift, Lamp, experience, small_grid, small_lock

from made.bonuses import MADE, Bernstein, Count, GeometricMixture, HashedCount, RecentCounts
from made.core import Transition, state_action_grid

WINDOW = 30
BATCHES, STEPS = 4, 8


@pytest.fixture(scope="module")
def record():
    """Four batches [8, 3] of a random walk in a lock, in order, and the sizes of its tables."""
    env, _, batch, _ = experience(Count(), steps=BATCHES * STEPS)
    parts = [jax.tree.map(lambda x, i=i: x[i * STEPS : (i + 1) * STEPS], batch) for i in range(BATCHES)]
    return parts, env.spec.obs.n, env.spec.action.n


def fed(bonus, record):
    parts, s, a = record
    from made.core import Space, Spec

    state = bonus.init(jax.random.key(0), Spec(Space((), jnp.int32, s), Space((), jnp.int32, a)))
    update = jax.jit(bonus.update)
    for i, part in enumerate(parts):
        state, _ = update(state, part, jax.random.key(i))
    return state


def pairs(record):
    """All pairs in the order of experience: time first, then environment."""
    parts, _, _ = record
    return np.concatenate([np.stack([p.obs, p.action], -1).reshape(-1, 2) for p in parts])


def counts(rows, record):
    _, s, a = record
    n = np.zeros((s, a))
    np.add.at(n, (rows[:, 0], rows[:, 1]), 1)
    return n


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_count_is_a_power_of_the_visits(record, power):
    bonus = Count(power=power, v_max=2.0)
    paid = bonus.reward(fed(bonus, record), state_action_grid(*record[1:]))
    assert np.allclose(paid, 2.0 / np.maximum(counts(pairs(record), record), 1) ** power, rtol=1e-6)


def test_made_is_one_over_the_root_of_visits_times_recent_visits(record):
    bonus = MADE.tabular(WINDOW)
    paid = bonus.reward(fed(bonus, record), state_action_grid(*record[1:]))
    n, b = counts(pairs(record), record), counts(pairs(record)[-WINDOW:], record)
    assert (n != b).any() and (b[n > 0] == 0).any()  # the window forgets, or the test shows nothing
    assert np.allclose(paid, 1 / np.sqrt(np.maximum(n, 1) * np.maximum(b, 1)), rtol=1e-6)


def test_made_with_a_window_that_holds_everything_is_one_over_n(record):
    """The key algebra: MADE lies between 1/N (everything in the window) and Hoeffding (nothing in it)."""
    grid = state_action_grid(*record[1:])
    everything, nothing = MADE.tabular(10_000), MADE.tabular(1)
    n = np.maximum(counts(pairs(record), record), 1)
    assert np.allclose(everything.reward(fed(everything, record), grid), 1 / n, rtol=1e-6)
    assert np.allclose(nothing.reward(fed(nothing, record), grid), 1 / np.sqrt(n), rtol=1e-6)


def test_windows_are_lanes_a_shorter_one_inside_a_larger_room(record):
    grid = state_action_grid(*record[1:])
    exact, roomy = MADE.tabular(WINDOW), MADE.tabular(WINDOW, capacity=500)
    assert np.array_equal(exact.reward(fed(exact, record), grid), roomy.reward(fed(roomy, record), grid))


def test_the_geometric_mixture_has_the_printed_weights(record):
    """d_mix = sum_i w_i d_i with w = ((1-eta)^{k-1}, (1-eta)^{k-2} eta, ..., eta), Section 3.2."""
    eta, (parts, s, a) = 0.2, record
    state = fed(GeometricMixture(eta), record)
    k = len(parts)
    weights = np.array([(1 - eta) ** (k - 1)] + [eta * (1 - eta) ** (k - 1 - i) for i in range(1, k)])
    each = np.stack([counts(np.stack([p.obs, p.action], -1).reshape(-1, 2), record) / p.reward.size for p in parts])
    d = np.einsum("k,ksa->sa", weights, each)
    assert np.allclose(state.d, d, atol=1e-6) and np.isclose(state.d.sum(), 1, atol=1e-6)
    effective = parts[0].reward.size / (weights**2).sum()
    logs = GeometricMixture(eta).log_density(state, state_action_grid(s, a))
    assert np.allclose(logs, np.log(np.maximum(d * effective, 1)), atol=1e-5)


def test_a_mixture_of_one_batch_is_its_counts(record):
    parts, s, a = record
    density = GeometricMixture(0.3)
    one = parts[:1], s, a
    logs = density.log_density(fed(density, one), state_action_grid(s, a))
    assert np.allclose(np.exp(logs), np.maximum(counts(pairs(one), one), 1), rtol=1e-5)


def test_bernstein_is_the_empirical_variance_and_the_count(record):
    parts, s, a = record
    value = np.linspace(-1, 1, s) ** 2
    state = fed(Bernstein(), record)
    paid = Bernstein().reward(state, state_action_grid(s, a), value=jnp.asarray(value))
    rows = [np.stack([x.reshape(-1) for x in (p.obs, p.action, p.next_obs, p.terminated)], -1) for p in parts]
    rows = np.concatenate(rows)
    for i in range(s):
        for j in range(a):
            mine = rows[(rows[:, 0] == i) & (rows[:, 1] == j)]
            n = max(len(mine), 1)
            after = np.where(mine[:, 3], 0.0, value[mine[:, 2]]) if len(mine) else np.zeros(1)
            assert np.isclose(paid[i, j], np.sqrt(after.var() / n) + 1 / n, atol=1e-5)


def test_bernstein_without_values_says_so(record):
    with pytest.raises(ValueError, match="value=V_k"):
        Bernstein().reward(fed(Bernstein(), record), state_action_grid(*record[1:]))


def test_the_bonus_recovers_for_pairs_visited_long_ago():
    """Claim 16 on a synthetic stream: two pairs visited equally often, one of them long ago."""
    from made.core import Space, Spec

    bonus = MADE.tabular(20)
    state = bonus.init(jax.random.key(0), Spec(Space((), jnp.int32, 3), Space((), jnp.int32, 1)))
    stream = np.repeat([0, 1], 20)[:, None]  # state 0 twenty times, then state 1 twenty times
    zeros = jnp.zeros(stream.shape)
    batch = Transition(jnp.asarray(stream), zeros.astype(int), zeros, jnp.asarray(stream), zeros > 0, zeros > 0)
    state, _ = bonus.update(state, batch, jax.random.key(1))
    old, recent, new = bonus.reward(state, state_action_grid(3, 1))[:, 0]
    assert new == 1 and old == pytest.approx(1 / np.sqrt(20)) and recent == pytest.approx(1 / 20)


def test_a_window_beyond_its_room_is_refused():
    with pytest.raises(ValueError, match="window=50"):
        RecentCounts(window=50, capacity=20)
    with pytest.raises(ValueError, match="window=0"):
        RecentCounts(window=0)


def key_by_content(obs):
    obs = obs["hash"] if isinstance(obs, dict) else obs  # the full state where there is one
    return np.asarray(obs).tobytes()


@pytest.mark.parametrize("source", [small_lock, small_grid, Drift, Lamp])
def test_exact_counts_are_those_of_a_dictionary(source):
    bonus = HashedCount(power=1.0)
    _, state, batch, _ = experience(bonus, source())
    visits = {}
    for _ in range(2):
        state, metrics = bonus.update(state, batch, jax.random.key(0))
        for _, _, step in steps(batch):
            visits[key_by_content(step.next_obs)] = visits.get(key_by_content(step.next_obs), 0) + 1
    paid = bonus.reward(state, batch)
    for t, n, step in steps(batch):
        assert np.isclose(paid[t, n], 1 / visits[key_by_content(step.next_obs)])
    assert np.isclose(float(metrics["hashed/used"]) * 2**20, len(visits))


def test_similar_observations_share_a_slot_and_others_do_not():
    bonus = HashedCount(kind="similar", bits=12, on="obs", power=0.5)
    _, state, batch, _ = experience(bonus, Drift())
    state, _ = bonus.update(state, batch, jax.random.key(0))
    slots = {}
    for _, _, step in steps(batch):
        code = tuple((np.asarray(state.planes) @ step.obs > 0).tolist())
        slots[code] = slots.get(code, 0) + 1
    assert 1 < len(slots) < batch.reward.size
    paid = bonus.reward(state, batch)
    for t, n, step in steps(batch):
        assert np.isclose(paid[t, n], slots[tuple((np.asarray(state.planes) @ step.obs > 0).tolist())] ** -0.5)
    longer = batch._replace(obs=2 * batch.obs)  # SimHash tells directions apart, not lengths
    assert np.array_equal(bonus.reward(state, longer), paid)


def test_what_was_never_seen_is_paid_as_if_seen_once():
    bonus = HashedCount()
    state = bonus.init(jax.random.key(0), discrete())
    batch = stream(jnp.arange(3))
    assert np.array_equal(bonus.reward(state, batch), np.ones((3, 1)))


@pytest.mark.parametrize("wrong", [{"kind": "fuzzy"}, {"bits": 0}, {"bits": 31}, {"on": "reward"}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        HashedCount(**wrong)
