"""Every agent of the registry keeps the contract of `made.core.Agent`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import AGENTS, BONUSES, NoBonus, experience, leaves_are_arrays, run_of, shapes, small_lock

from made.agents import make_agent
from made.bonuses import make_bonus
from made.core import Agent, trees
from made.training.backends.compiled_envs import group_by_program, run_batch
from made.training.on_policy import evaluate, iterate

NAMES = AGENTS
LENGTH = {"iterations": 6, "every": 1}
LOCK = small_lock().sample_task(jax.random.key(0))  # drawn here, so that nobody traces the drawing


@pytest.fixture(scope="module")
def runs():
    """A run of each agent, started and iterated once, by two programs that all agents of one kind share."""
    begin, step = jax.jit(lambda run, key: run.start(key)), jax.jit(iterate)
    made = {}

    def get(name: str):
        if name not in made:
            run = trees.stack([run_of(make_agent(name), make_bonus("hoeffding"), **LENGTH)])
            run = jax.tree.map(
                lambda x: x[0], run
            )  # the same run with its numbers as arrays: settings are not baked in
            first = begin(run, jax.random.key(0))
            made[name] = run, step, first, *step(run, first)
        return made[name]

    return get


@pytest.fixture(scope="module")
def lanes():
    """Each agent as four lanes of one program: one seed twice, another seed, and another bonus."""
    made = {}

    def get(name: str):
        if name not in made:
            plain, other = (run_of(make_agent(name), make_bonus(b), **LENGTH) for b in ("hoeffding", "inverse"))
            assert group_by_program([plain, other]) == [[0, 1]]
            made[name] = run_batch([plain, plain, plain, other], [7, 7, 8, 3])
        return made[name]

    return get


@pytest.mark.parametrize("name", NAMES)
def test_state_is_arrays_of_a_stable_kind(name, runs):
    run, step, first, second, metrics = runs(name)
    assert isinstance(run.agent, Agent)
    third, _ = step(run, second)
    assert leaves_are_arrays(first.agent)
    assert shapes(first) == shapes(second) == shapes(third)
    assert all(jnp.shape(x) == () for x in metrics.values())


@pytest.mark.parametrize("name", NAMES)
def test_does_not_recompile_on_the_second_call_nor_for_other_numbers(name, runs):
    run, step, _, second, _ = runs(name)
    before = step._cache_size()
    hotter = eqx.tree_at(lambda r: (r.bonus_coef.value, r.bonus.power), run, (jnp.float32(0.3), jnp.float32(1.0)))
    step(hotter, second)
    assert step._cache_size() == before


def test_the_check_of_keys_raises_where_one_is_used_twice():
    """So the test below, which asserts nothing else, can fail."""
    twice = lambda key: jax.random.normal(key) + jax.random.uniform(key)  # noqa: E731
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        jax.jit(twice).lower(jax.random.key(0))
    jax.jit(twice).lower(jax.random.key(0))  # without the check nothing is raised


@pytest.mark.parametrize("name", NAMES)
def test_no_key_is_used_twice(name):
    """JAX raises KeyReuseError while the program is traced and lowered."""
    run = run_of(make_agent(name), make_bonus("made-tabular"))
    with jax.debug_key_reuse(True):
        jax.eval_shape(lambda key: iterate(run, run.start(key)), jax.random.key(0))
        jax.jit(lambda key: iterate(run, run.start(key))).lower(jax.random.key(0))


@pytest.mark.parametrize("name", NAMES)
def test_acts_within_the_action_space_and_keeps_its_carry(name, runs):
    run, _, _, state, _ = runs(name)
    spec = state.env.spec
    keys = jax.random.split(jax.random.key(1), 64)
    for explore in (True, False):
        carry, action, _ = jax.vmap(
            lambda k, explore=explore: run.agent.act(
                state.agent, run.agent.carry(spec), jnp.int32(0), (), k, explore=explore
            )
        )(keys)
        assert action.dtype == jnp.int32
        assert bool(((action >= 0) & (action < spec.action.n)).all())
        one = jax.tree.map(lambda x: x[0], carry)
        assert shapes(one) == shapes(run.agent.carry(spec))


@pytest.mark.parametrize("name", NAMES)
def test_two_runs_of_one_seed_are_equal_to_the_bit_and_two_seeds_are_not(name, lanes):
    a, b, c, _ = lanes(name)
    assert a.rows.keys() == b.rows.keys()
    for column in a.rows:
        assert np.array_equal(a.rows[column], b.rows[column], equal_nan=True)
    assert not np.array_equal(a.rows["return"], c.rows["return"], equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_lane_equals_the_same_run_alone(name, runs, lanes):
    """vmap over stacked runs gives each lane what it would have had by itself."""
    run, step, *_ = runs(name)
    run = eqx.tree_at(lambda r: r.bonus.power, run, jnp.float32(1.0))
    state, rows = run.start(jax.random.key(3)), []
    for _ in range(run.iterations):
        state, metrics = step(run, state)
        rows.append(metrics)
    for column in rows[0]:
        alone = np.array([row[column] for row in rows])
        assert np.allclose(alone, lanes(name)[3].rows[column], atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_learns_nothing_and_counts_each_episode_once(name, runs):
    run, _, _, state, _ = runs(name)
    scores = jax.jit(lambda run, state, key: evaluate(run, state, 16, key))(run, state, jax.random.key(5))
    assert float(scores["eval_episodes"]) == 16
    assert float(scores["eval_length"]) == 4
    assert -1 <= float(scores["eval_return"]) <= 1


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("uniform", "impala", "ppo")])
def test_refuses_an_environment_it_cannot_hold_in_a_table(name):
    from made.core import Space, Spec

    pixels = Spec(Space((84, 84, 3), jnp.uint8), Space((), jnp.int32, 4))
    with pytest.raises(ValueError, match="table over"):
        make_agent(name).init(jax.random.key(0), pixels)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bonus", BONUSES)
def test_every_pair_of_agent_and_bonus_runs(name, bonus):
    """Traced, not compiled: shapes and types fit; a planner that cannot give a bonus what it reads says so."""
    run = run_of(make_agent(name), make_bonus(bonus), LOCK)
    state = jax.eval_shape(lambda k: run.start(k), jax.random.key(0))
    beyond_the_grid = set(run.bonus.reads) - {"obs", "action", "value"}
    without_values = name in ("impala", "ppo") and "value" in run.bonus.reads  # they have no table of V_k to hand out
    if without_values or (beyond_the_grid and hasattr(run.agent, "sweeps")):
        with pytest.raises(ValueError, match="this batch has no"):
            jax.eval_shape(lambda s: iterate(run, s), state)
        return
    after, _ = jax.eval_shape(lambda s: iterate(run, s), state)
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_the_experience_used_here_has_the_true_successor():
    _, _, batch, _ = experience(NoBonus())
    ended = np.asarray(batch.terminated)
    assert ended.any() and (np.asarray(batch.next_obs)[ended] != 0).all()
