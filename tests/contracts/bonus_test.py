"""Every bonus of the registry, and every combinator, keeps the contract of `made.core.Bonus`, on every kind of
observation and action. A new entry is tested by being there.

Compiling is nearly all the cost. So on each source of experience all bonuses ride together in one `Sum`, whose parts
are then looked at one by one; and on the lock each bonus is compiled once more by itself, as two lanes.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import BONUSES, CASES, SMALL, SOURCES, N, T, collected, leaves_are_arrays, shapes

from made.bonuses import NoBonus, Sum
from made.bonuses.episodic import with_trace
from made.core import Bonus, Transition, require_fields, state_action_grid, trees
from made.training.host.bonus import HostBonus

NAMES = list(CASES)
TABLES = [name for name in NAMES if name in ("hoeffding", "inverse", "bernstein", "made-tabular", "made-geometric")]
OF = [n for n in NAMES if CASES[n]().reads]
ONLY_LOCK = {*TABLES, "bebold", "made-counts"}  # BeBold is NovelD with another number, and MADE is seen with its VAE
PAIRS = [(name, source) for source in SOURCES for name in NAMES if source == "lock" or name not in ONLY_LOCK]


@pytest.fixture(scope="module", autouse=True)
def compiled_fast():
    """Programs that run once need no optimising."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


class Group(NamedTuple):
    """All bonuses that can read a source, on the same experience; tuples have one entry a bonus."""

    names: list[str]
    bonus: Sum
    env: Any
    before: tuple
    after: tuple
    metrics: dict
    batch: Transition
    paid: np.ndarray  # [bonuses, T, N]
    hosted: Transition  # the same experience, taken in step by step from NumPy
    hosted_paid: np.ndarray
    hosted_sum: np.ndarray
    value: Any


@functools.cache
def group(source: str) -> Group:
    names = [name for name, where in PAIRS if where == source]
    bonus = Sum(tuple(CASES[name]() for name in names))
    env, before, batch, streams = collected(bonus, SOURCES[source](), T, 0)
    value = jnp.linspace(0.0, 1.0, env.spec.obs.n) if source == "lock" else None
    after, metrics = jax.jit(bonus.update)(before, batch, jax.random.key(2))
    parts = jax.jit(functools.partial(paid_by_each, bonus))
    host = HostBonus(bonus, env.spec, N)
    host.state = before
    hosted = driven(host, batch, streams)
    host.state = after
    seen = parts(after, hosted, value)
    return Group(
        names, bonus, env, before, after, metrics, batch, np.asarray(parts(after, batch, value)), hosted,
        np.asarray(seen), np.asarray(host.reward(hosted, value=value)), value,
    )  # fmt: skip


def paid_by_each(bonus: Sum, states, batch, value):
    each = enumerate(zip(bonus.bonuses, states, strict=True))
    return jnp.stack([b.reward(own, with_trace(batch, i), value=value) for i, (b, own) in each])


def driven(host: HostBonus, batch: Transition, streams) -> Transition:
    """The same steps as a training loop of one's own would hand them over."""
    plain = jax.tree.map(np.asarray, (*batch[:6], batch.obs, streams.obs))
    at = lambda tree, t: jax.tree.map(lambda x: x[t], tree)  # noqa: E731
    host.reset(at(plain[0], 0))
    seen = []
    for t in range(T):
        following = at(plain[6], t + 1) if t + 1 < T else plain[7]
        seen.append(host.step(*(at(x, t) for x in plain[:6]), following))
    return jax.tree.map(lambda *x: jnp.stack(x), *seen)


class Alone(NamedTuple):
    """One bonus on the lock, out of the group, with a compiled reward."""

    bonus: Bonus
    i: int
    env: Any
    state: Any
    batch: Transition
    value: Any
    reward: Any


@functools.cache
def alone(name: str) -> Alone:
    all_ = group("lock")
    i = all_.names.index(name)
    bonus, value = all_.bonus.bonuses[i], all_.value
    reward = jax.jit(lambda state, batch: bonus.reward(state, batch, value=value))
    return Alone(bonus, i, all_.env, all_.before[i], with_trace(all_.batch, i), value, reward)


@functools.cache
def lanes(name: str):
    """Two lanes of one bonus, updated twice by one program: states after one and two updates, metrics, traces."""
    one, traced = alone(name), []

    @jax.jit
    def update(states, batches, keys):
        traced.append(1)
        return jax.vmap(one.bonus.update)(states, batches, keys)

    turned = jax.tree.map(lambda x: x[:, ::-1], one.batch)  # another batch of the same shape
    k_mine = jax.random.split(jax.random.key(2), len(group("lock").names))[one.i]  # the key it had in the sum
    keys, batches = jnp.stack([k_mine, jax.random.key(3)]), trees.stack([one.batch, turned])
    once, metrics = update(trees.stack([one.state, one.state]), batches, keys)
    twice, _ = update(once, batches, keys)
    return once, twice, metrics, traced


@pytest.mark.parametrize("name", NAMES)
def test_is_a_frozen_module_that_declares_what_it_reads(name):
    bonus = CASES[name]()
    assert isinstance(bonus, Bonus)
    assert set(bonus.reads) <= {*Transition._fields, "value"}
    with pytest.raises(AttributeError):
        bonus.reads = ()


@pytest.mark.parametrize("name", NAMES)
def test_state_is_arrays_of_a_stable_kind_and_is_not_compiled_twice(name):
    state = alone(name).state
    once, twice, metrics, traced = lanes(name)
    assert leaves_are_arrays(state)
    assert shapes(trees.stack([state, state])) == shapes(once) == shapes(twice)
    assert len(traced) == 1
    assert all(x.shape == (2,) for x in metrics.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_lane_equals_the_same_bonus_by_itself(name):
    one = alone(name)
    paid = one.reward(trees.index(lanes(name)[0], 0), one.batch)
    assert np.allclose(paid, group("lock").paid[one.i], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_reward_changes_nothing_and_accepts_one_step_a_flat_batch_and_the_grid(name):
    bonus, _, env, _, batch, _, reward = alone(name)
    state = trees.index(lanes(name)[0], 0)
    kept = jax.tree.map(np.array, state)
    whole = np.asarray(reward(state, batch))
    assert whole.shape == (T, N) and np.isfinite(whole).all()
    assert np.allclose(reward(state, jax.tree.map(lambda x: x[2, 1], batch)), whole[2, 1], atol=1e-5)
    assert np.allclose(reward(state, trees.flatten_leading(batch, 2)), whole.reshape(-1), atol=1e-5)
    if set(bonus.reads) <= {"obs", "action", "value"}:
        s, a = env.spec.obs.n, env.spec.action.n
        grid = np.asarray(reward(state, state_action_grid(s, a)))
        assert grid.shape == (s, a)
        assert np.allclose(grid[batch.obs, batch.action], whole, atol=1e-5)
    assert all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(kept), jax.tree.leaves(state), strict=True))


@pytest.mark.parametrize(("name", "source"), PAIRS)
def test_pays_finite_numbers_on_every_source_and_the_same_from_numpy(name, source):
    all_ = group(source)
    i = all_.names.index(name)
    paid, hosted = all_.paid[i], all_.hosted_paid[i]
    assert paid.shape == (T, N) and np.isfinite(paid).all() and np.isfinite(hosted).all()
    assert leaves_are_arrays(all_.before[i]) and shapes(all_.before[i]) == shapes(all_.after[i])
    compiled, by_hand = with_trace(all_.batch, i), with_trace(all_.hosted, i)
    assert shapes((compiled.note, compiled.next_note)) == shapes((by_hand.note, by_hand.next_note))
    if all_.bonus.bonuses[i].memory.goal(all_.env.spec) is None:  # goals are drawn, so they differ
        assert np.allclose(paid, hosted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("source", SOURCES)
def test_all_together_are_the_sum_of_each_also_from_numpy(source):
    all_ = group(source)
    assert np.allclose(all_.hosted_sum, all_.hosted_paid.sum(0), atol=1e-4, rtol=1e-4)
    assert all(jnp.shape(x) == () and bool(jnp.isfinite(x)) for x in all_.metrics.values())


@pytest.mark.parametrize("source", SOURCES)
def test_sources_end_episodes_inside_a_rollout_and_keep_the_true_successor(source):
    """The settings are worth nothing if no episode ends in them."""
    batch = group(source).batch
    ends = np.asarray(batch.terminated | batch.truncated)
    assert ends[:-1].any() and not ends.all()
    after, following = jax.tree.leaves(batch.next_obs)[0], jax.tree.leaves(batch.obs)[0]
    assert np.array_equal(after[:-1][~ends[:-1]], following[1:][~ends[:-1]])
    assert not np.array_equal(after[:-1][ends[:-1]], following[1:][ends[:-1]])


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("source", [s for s in SOURCES if s != "lock"])
def test_tables_refuse_what_does_not_fit_in_them(name, source):
    with pytest.raises(ValueError, match="keeps a table"):
        CASES[name]().init(jax.random.key(0), SOURCES[source]().spec)


@pytest.mark.parametrize("name", OF)
def test_refuses_a_batch_that_lacks_what_it_reads(name):
    bonus, batch = alone(name).bonus, alone(name).batch
    field = bonus.reads[0]
    with pytest.raises(ValueError, match=f"no {field}"):
        require_fields(bonus, batch._replace(**{field: ()}) if field != "value" else batch, None)


@pytest.mark.parametrize("name", TABLES)
def test_pays_less_for_what_was_seen_more(name):
    """The optimism of every count bonus, claim 16's first half: the most visited pair is paid less than a new one."""
    bonus, _, env, state, batch, value, _ = alone(name)
    update = jax.jit(bonus.update)
    for i in range(20):
        state, _ = update(state, batch, jax.random.key(i))
    grid = state_action_grid(env.spec.obs.n, env.spec.action.n)
    paid = np.asarray(bonus.reward(state, grid, value=jnp.zeros_like(value)))
    visits = np.zeros(paid.shape)
    np.add.at(visits, (np.asarray(batch.obs), np.asarray(batch.action)), 1)
    assert paid.flat[visits.argmax()] < 0.5 * paid[visits == 0].min()


def test_the_small_settings_stand_for_registry_entries():
    assert set(SMALL) <= set(BONUSES) and {"none", "first-visit"} <= set(CASES)
    assert isinstance(CASES["none"](), NoBonus) and eqx.tree_equal(CASES["bebold"]().alpha, 1.0)
