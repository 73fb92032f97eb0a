"""Densities by counting, against deques and marginals recomputed in plain Python, and the standardising wrapper."""

from collections import Counter, deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bonuses.programs import fed

from made.bonuses.combinators import bonus_strength
from made.bonuses.count import Count
from made.bonuses.densities.recent_counts import Factorized, HashedRecentCounts, RecentCounts, Standardized
from made.bonuses.made import MADE
from made.core import Density, Space, Spec, Transition, state_action_grid

TABLE = Spec(Space((), jnp.int32, 6), Space((), jnp.int32, 3))
GRID = Spec({"image": Space((7, 7, 3), jnp.uint8), "hash": Space((2,), jnp.uint32)}, Space((), jnp.int32, 7))
WINDOW = 25


def step(obs, action) -> Transition:
    """Transitions [T, N] of what a density looks at."""
    action = jnp.asarray(action)
    zeros = jnp.zeros(action.shape)
    return Transition(obs, action, zeros, obs, zeros > 0, zeros > 0)


def walk(seed=0, batches=5, shape=(4, 3)) -> list[Transition]:
    """Batches of skewed pairs, so that counts differ."""
    rng = np.random.default_rng(seed)
    draw = lambda n: jnp.asarray(np.minimum(rng.geometric(0.4, shape) - 1, n - 1).astype(np.int32))  # noqa: E731
    return [step(draw(6), draw(3)) for _ in range(batches)]


def pairs(batches) -> list[tuple[int, int]]:
    return [(int(s), int(a)) for b in batches for s, a in zip(b.obs.ravel(), b.action.ravel(), strict=True)]


def test_hashed_counts_are_those_of_a_deque_of_the_last_pairs():
    batches = walk()
    density = HashedRecentCounts(WINDOW, capacity=40)
    state, _ = fed(density, TABLE, batches)
    true = Counter(deque(pairs(batches), maxlen=WINDOW))
    logs = density.log_density(state, state_action_grid(6, 3))
    expected = [[np.log(max(true[s, a], 1)) for a in range(3)] for s in range(6)]
    assert np.allclose(logs, expected, atol=1e-6) and len(true) < len(
        Counter(pairs(batches))
    )  # something was forgotten
    assert state.counts.sum() == WINDOW


def test_a_batch_longer_than_the_window_leaves_its_tail():
    density = HashedRecentCounts(7, capacity=7)
    batches = walk(batches=2)
    state, _ = fed(density, TABLE, batches)
    true = Counter(pairs(batches)[-7:])
    logs = np.asarray(density.log_density(state, state_action_grid(6, 3)))
    assert all(np.isclose(np.exp(logs[s, a]), max(true[s, a], 1)) for s in range(6) for a in range(3))


def test_made_of_hashed_counts_is_one_over_the_root_of_visits_times_recent_visits():
    """Appendix B.1: the same bonus with a hash in place of the table."""
    batches, grid = walk(), state_action_grid(6, 3)
    bonus, table = (MADE(Count(), recent(WINDOW, WINDOW)) for recent in (HashedRecentCounts, RecentCounts))
    paid = bonus.reward(fed(bonus, TABLE, batches)[0], grid)
    n, b = Counter(pairs(batches)), Counter(pairs(batches)[-WINDOW:])
    expected = [[1 / np.sqrt(max(n[s, a], 1) * max(b[s, a], 1)) for a in range(3)] for s in range(6)]
    assert np.allclose(paid, expected, rtol=1e-6)
    assert np.allclose(paid, table.reward(fed(table, TABLE, batches)[0], grid), rtol=1e-6)


def grids(n=4, seed=1):
    rng = np.random.default_rng(seed)
    kinds = np.stack([rng.integers(0, k, (n, 7, 7)) for k in (11, 6, 4)], -1).astype(np.uint8)
    return jnp.asarray(kinds)


def test_hashed_counts_read_the_view_that_is_named():
    images, hashes = grids(), jnp.arange(8, dtype=jnp.uint32).reshape(4, 2)
    obs = {"image": images[jnp.array([0, 0, 1])][:, None], "hash": hashes[jnp.array([0, 1, 2])][:, None]}
    batch = step(obs, jnp.zeros((3, 1), jnp.int32))
    for view, counts in {"": [2, 2, 1], "image": [2, 2, 1], "hash": [1, 1, 1]}.items():
        density = HashedRecentCounts(10, capacity=10, view=view)
        state, _ = fed(density, GRID, [batch])
        assert np.allclose(jnp.exp(density.log_density(state, batch))[:, 0], counts)
    with pytest.raises(ValueError, match="'full'"):
        HashedRecentCounts(view="full").init(jax.random.key(0), GRID)


def test_continuous_actions_cannot_be_counted():
    with pytest.raises(ValueError, match="continuous"):
        HashedRecentCounts().init(jax.random.key(0), Spec(TABLE.obs, Space((2,), jnp.float32)))
    with pytest.raises(ValueError, match="window=0"):
        HashedRecentCounts(window=0)
    with pytest.raises(ValueError, match="from 1 to 30 as bits, got 40"):
        HashedRecentCounts(bits=40)


def test_factorised_is_the_product_of_the_marginals_of_the_window():
    batches = walk()
    density = Factorized(WINDOW, alpha=0.5, capacity=30)
    state, _ = fed(density, TABLE, batches)
    recent = np.array(pairs(batches)[-WINDOW:])
    s, a = np.bincount(recent[:, 0], minlength=6), np.bincount(recent[:, 1], minlength=3)
    p_s, p_a = (s + 0.5) / (WINDOW + 3), (a + 0.5) / (WINDOW + 1.5)
    expected = np.log(p_s)[:, None] + np.log(p_a)
    assert np.allclose(density.log_density(state, state_action_grid(6, 3)), expected, atol=1e-5)
    assert np.isclose(np.exp(expected).sum(), 1)


def test_factorised_counts_every_channel_of_a_symbolic_grid():
    batch = step(
        {"image": grids(6).reshape(3, 2, 7, 7, 3), "hash": jnp.zeros((3, 2, 2), jnp.uint32)}, jnp.ones((3, 2), int)
    )
    density = Factorized(50, capacity=50)
    state, _ = fed(density, GRID, [batch])
    seen, log_d = np.asarray(batch.obs["image"]).reshape(6, 49, 3), np.log(6.5 / (6 + 3.5))
    for cell in range(49):
        for channel, values in enumerate((11, 6, 4)):
            n = (seen[:, cell, channel] == seen[0, cell, channel]).sum()
            log_d += np.log((n + 0.5) / (6 + 0.5 * values))
    assert np.isclose(density.log_density(state, batch)[0, 0], log_d, rtol=1e-5)


def test_factorised_refuses_what_is_not_discrete():
    with pytest.raises(ValueError, match="numbers"):
        Factorized().init(jax.random.key(0), Spec(Space((4,), jnp.float32), TABLE.action))
    with pytest.raises(ValueError, match="window=9"):
        Factorized(window=9, capacity=8)


class Given(Density):
    """A density that is told: the observation is its logarithm."""

    def init(self, key, spec):
        return ()

    def log_density(self, state, batch):
        return batch.obs

    def update(self, state, batch, key):
        return state, {"inner": jnp.zeros(())}


def test_standardised_is_the_clipped_z_score_of_a_log_density():
    raw = jnp.asarray(np.random.default_rng(0).normal(-300, 40, (8, 5)))
    density = Standardized(Given(), scale=2.0, clip=1.5)
    state, metrics = fed(density, TABLE, [step(raw, jnp.zeros((8, 5), int))])
    z = (np.asarray(raw) - np.mean(raw)) / np.std(raw)
    assert np.allclose(
        density.log_density(state, step(raw, jnp.zeros((8, 5), int))), 2 * np.clip(z, -1.5, 1.5), atol=1e-4
    )
    assert np.isclose(metrics["factor/clipped"], (abs(z) > 1.5).mean()) and "inner" in metrics
    assert np.isclose(metrics["factor/log_std"], np.clip(z, -1.5, 1.5).std(), atol=1e-4)
    assert np.isclose(metrics["factor/raw_log_std"], np.std(raw) / 2, rtol=1e-4)


def test_standardised_forgets_at_the_pace_of_its_memory():
    """A density that learns drifts: old logarithms must not widen the deviation for ever."""
    batches = [step(jnp.full((10, 10), x) + jnp.linspace(-1, 1, 100).reshape(10, 10), jnp.zeros((10, 10), int)) for x in
               [-1000.0] * 3 + [0.0] * 40]  # fmt: skip
    short, long = (fed(Standardized(Given(), memory=m), TABLE, batches)[0] for m in (200.0, 1e9))
    assert abs(short.moments.mean) < 1 and np.sqrt(short.moments.squares / short.moments.count) < 2
    assert np.sqrt(long.moments.squares / long.moments.count) > 100


@pytest.mark.parametrize("extreme", [-1e30, 1e30])
def test_no_factor_overflows(extreme):
    batch = step(jnp.array([[0.0, extreme, 1.0]]), jnp.zeros((1, 3), int))
    density = Standardized(Given())
    state, _ = fed(density, TABLE, [step(jnp.ones((1, 3)), jnp.zeros((1, 3), int))])
    factor = jnp.exp(-0.5 * density.log_density(state, batch))
    assert np.isfinite(factor).all() and factor.max() <= np.exp(1.5) + 1e-5 and factor.min() >= np.exp(-1.5) - 1e-5
    before = density.log_density(density.init(jax.random.key(0), TABLE), batch)
    assert not before.any()  # before any experience every pair is alike


def test_standardised_takes_positive_numbers():
    with pytest.raises(ValueError, match="as clip, got 0"):
        Standardized(Given(), clip=0.0)


def test_the_strength_of_a_bonus_is_what_an_episode_earns():
    assert bonus_strength(0.02, 0.5, 140) == pytest.approx(1.4)
    with pytest.raises(ValueError, match="horizon=0"):
        bonus_strength(0.1, 1.0, 0)


def test_standardised_looks_at_a_fourth_of_a_batch_but_never_at_too_few_pairs():
    density, looked_at = Standardized(Given()), {100: 100, 512: 128, 1024: 256, 3200: 512}
    blank = density.init(jax.random.key(0), TABLE)
    for size, expected in looked_at.items():
        state, _ = density.update(blank, step(jnp.zeros((size, 1)), jnp.zeros((size, 1), int)), jax.random.key(0))
        assert state.moments.count == expected
