"""Every bonus of the registry keeps the contract of `made.core.Bonus`. A new entry is tested by being there."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import BONUSES, N, T, experience, leaves_are_arrays, shapes, small_lock

from made.bonuses.count import NoBonus
from made.core import Bonus
from made.host import HostBonus
from made.watch import state_action_grid

NAMES = list(BONUSES)


@pytest.fixture(scope="module")
def cases():
    """One program a bonus, shared by all tests: update twice, rewards after, on [T, N]."""
    made = {}

    def case(name: str):
        if name not in made:
            bonus = BONUSES[name]()
            env, state, batch, streams = experience(bonus)
            value = jnp.linspace(0.0, 1.0, env.spec.obs.n)
            update = eqx.filter_jit(bonus.update)
            reward = eqx.filter_jit(lambda state, batch: bonus.reward(state, batch, value=value))
            after, metrics = update(state, batch, jax.random.key(2))
            made[name] = bonus, env, state, after, batch, streams, value, update, reward, metrics
        return made[name]

    return case


@pytest.mark.parametrize("name", NAMES)
def test_is_a_frozen_module_that_declares_what_it_reads(name):
    bonus = BONUSES[name]()
    assert isinstance(bonus, Bonus)
    assert set(bonus.reads) <= {*experience(NoBonus())[2]._fields, "value"}
    with pytest.raises(AttributeError):
        bonus.reads = ()


@pytest.mark.parametrize("name", NAMES)
def test_state_is_arrays_of_a_stable_kind(name, cases):
    _, _, state, after, batch, _, _, update, _, _ = cases(name)
    again, _ = update(after, batch, jax.random.key(3))
    assert leaves_are_arrays(state)
    assert shapes(state) == shapes(after) == shapes(again)


@pytest.mark.parametrize("name", NAMES)
def test_reward_is_finite_and_changes_nothing(name, cases):
    _, _, _, after, batch, _, _, _, reward, metrics = cases(name)
    before = jax.tree.map(np.array, after)
    paid = reward(after, batch)
    assert paid.shape == (T, N)
    assert bool(jnp.isfinite(paid).all())
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))
    assert np.array_equal(paid, reward(after, batch))
    assert all(jnp.shape(x) == () for x in metrics.values())


@pytest.mark.parametrize("name", NAMES)
def test_reward_accepts_one_step_a_flat_batch_and_the_grid(name, cases):
    bonus, env, _, after, batch, _, value, _, _, _ = cases(name)
    whole = np.asarray(bonus.reward(after, batch, value=value))
    one = bonus.reward(after, jax.tree.map(lambda x: x[2, 1], batch), value=value)
    flat = bonus.reward(after, jax.tree.map(lambda x: x.reshape(T * N, *x.shape[2:]), batch), value=value)
    assert np.allclose(one, whole[2, 1], atol=1e-6)
    assert np.allclose(flat, whole.reshape(-1), atol=1e-6)
    if set(bonus.reads) <= {"obs", "action", "value"}:
        s, a = env.spec.obs.n, env.spec.action.n
        grid = np.asarray(bonus.reward(after, state_action_grid(s, a), value=value))
        assert grid.shape == (s, a)
        assert np.allclose(grid[batch.obs, batch.action], whole, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_does_not_recompile_on_the_second_call(name):
    bonus = BONUSES[name]()
    _, state, batch, _ = experience(bonus)
    traces = []

    @jax.jit
    def update(state, batch, key):
        traces.append(1)
        return bonus.update(state, batch, key)[0]

    state = update(state, batch, jax.random.key(0))
    update(state, batch, jax.random.key(1))
    assert len(traces) == 1


@pytest.mark.parametrize("name", NAMES)
def test_vmap_over_states_equals_a_loop(name, cases):
    bonus, _, state, _, batch, _, value, update, _, _ = cases(name)
    halves = [jax.tree.map(lambda x, i=i: x[i * (T // 2) : (i + 1) * (T // 2)], batch) for i in (0, 1)]
    states = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    keys = jax.random.split(jax.random.key(4), 2)
    both = jax.vmap(lambda s, b, k: bonus.update(s, b, k)[0])(
        states, jax.tree.map(lambda *x: jnp.stack(x), *halves), keys
    )
    for i, half in enumerate(halves):
        alone = update(state, half, keys[i])[0]
        paid = bonus.reward(jax.tree.map(lambda x, i=i: x[i], both), half, value=value)
        assert np.allclose(paid, bonus.reward(alone, half, value=value), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_numpy_through_the_host_shell_equals_the_compiled_loop(name, cases):
    bonus, env, state, _, batch, streams, value, _, reward, _ = cases(name)
    host = HostBonus(bonus, env.spec, N)
    host.state = state
    host.reset(np.asarray(batch.obs[0]))
    seen = []
    for t in range(T):
        after = np.asarray(batch.obs[t + 1] if t + 1 < T else streams.obs)
        fields = (np.asarray(x[t]) for x in batch[:6])
        seen.append(host.step(*fields, after))
    together = jax.tree.map(lambda *x: jnp.stack(x), *seen)
    assert shapes(together.note) == shapes(batch.note) and shapes(together.next_note) == shapes(batch.next_note)
    host.update(together)
    updated, _ = bonus.update(state, batch, jax.random.key(9))
    assert np.allclose(host.reward(together, value=value), reward(updated, batch), atol=1e-6)


@pytest.mark.parametrize("name", [n for n in NAMES if BONUSES[n]().reads])
def test_refuses_a_batch_that_lacks_what_it_reads(name):
    from made.core import demand

    bonus = BONUSES[name]()
    _, _, batch, _ = experience(bonus)
    field = bonus.reads[0]
    with pytest.raises(ValueError, match=f"no {field}"):
        demand(bonus, batch._replace(**{field: ()}) if field != "value" else batch, None)


@pytest.mark.parametrize(
    "name", [n for n in NAMES if {*BONUSES[n]().reads} <= {"obs", "action", "value"} and n != "none"]
)
def test_pays_less_for_what_was_seen_more(name, cases):
    """The optimism of every count bonus, claim 16's first half: the most visited pair is paid less than a new one."""
    bonus, env, state, _, batch, _, value, update, _, _ = cases(name)
    for i in range(20):
        state, _ = update(state, batch, jax.random.key(i))
    grid = state_action_grid(env.spec.obs.n, env.spec.action.n)
    paid = np.asarray(bonus.reward(state, grid, value=jnp.zeros_like(value)))
    visits = np.zeros(paid.shape)
    np.add.at(visits, (np.asarray(batch.obs), np.asarray(batch.action)), 1)
    assert paid.flat[visits.argmax()] < 0.5 * paid[visits == 0].min()


def test_small_lock_ends_episodes_inside_a_rollout():
    """The settings above are worth nothing if no episode ends in them."""
    _, _, batch, _ = experience(NoBonus(), small_lock())
    ends = np.asarray(batch.terminated | batch.truncated)
    assert ends[:-1].any()
    assert not np.array_equal(batch.next_obs[:-1][ends[:-1]], batch.obs[1:][ends[:-1]])
