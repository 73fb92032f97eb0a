"""The tabular agents against plain NumPy loops of the same algorithms, and what they find on the lock."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import experience

from benchmarks.tabular.lock_speed import replay_error
from made.agents import ModelPPO, QLearning, ValueIteration
from made.agents.tabular import epsilon_greedy
from made.bonuses import Count
from made.tabular.families import Lock
from made.tabular.solve import horizon_optimum

BATCHES, STEPS = 3, 8


@pytest.fixture(scope="module")
def record():
    env, _, batch, _ = experience(Count(), steps=BATCHES * STEPS)
    parts = [jax.tree.map(lambda x, i=i: x[i * STEPS : (i + 1) * STEPS], batch) for i in range(BATCHES)]
    rows = [[tuple(np.asarray(x)[t, n].item() for x in (p.obs, p.action, p.reward, p.next_obs, p.terminated))
             for t in range(STEPS) for n in range(p.reward.shape[1])] for p in parts]  # fmt: skip
    return env.spec, parts, rows


def bonus_table(s, a):
    """Any fixed bonus will do: agents see r_k only through reward_fn."""
    return np.linspace(0, 0.3, s * a).reshape(s, a)


def reward_fn(table):
    return lambda batch, *, value=None: batch.reward + jnp.asarray(table)[batch.obs, batch.action]


def trained(agent, record):
    spec, parts, _ = record
    fn = reward_fn(bonus_table(spec.obs.n, spec.action.n))
    state = agent.init(jax.random.key(0), spec)
    update = jax.jit(lambda state, part, key: agent.update(state, part, fn, key)[0])
    for i, part in enumerate(parts):
        state = update(state, part, jax.random.key(i))
    return state


def empirical(rows, s, a):
    n, n3, r = np.zeros((s, a)), np.zeros((s, a, s)), np.zeros((s, a))
    for x, u, paid, y, over in rows:
        n[x, u] += 1
        n3[x, u, y] += not over
        r[x, u] += paid
    m = np.maximum(n, 1)
    return n3 / m[..., None], r / m, n > 0


@pytest.mark.parametrize("monotone", [0.0, 1.0])
def test_value_iteration_is_the_loop(record, monotone):
    agent = ValueIteration(gamma=0.9, sweeps=5, monotone=monotone)
    spec, _, rows = record
    s, a = spec.obs.n, spec.action.n
    q, seen = np.ones((s, a)), []
    for part in rows:
        seen += part
        P, r, tried = empirical(seen, s, a)
        for _ in range(5):
            new = np.where(tried, np.minimum(r + bonus_table(s, a) + 0.9 * P @ q.max(-1), 1), 1)
            q = np.minimum(new, q) if monotone else new
    assert np.allclose(trained(agent, record).q, q, atol=1e-5)


def test_model_ppo_is_the_loop(record):
    agent = ModelPPO(alpha=0.7, gamma=0.95, sweeps=4)
    spec, _, rows = record
    s, a = spec.obs.n, spec.action.n
    q, policy, seen = np.ones((s, a)), np.full((s, a), 1 / a), []
    for part in rows:
        seen += part
        P, r, tried = empirical(seen, s, a)
        for _ in range(4):
            q = np.where(tried, np.minimum(r + bonus_table(s, a) + 0.95 * P @ (policy * q).sum(-1), 1), 1)
        policy = policy * np.exp(0.7 * q)
        policy /= policy.sum(-1, keepdims=True)
    state = trained(agent, record)
    assert np.allclose(jax.nn.softmax(state.logits), policy, atol=1e-5)
    assert np.allclose(agent.values(state), (policy * q).sum(-1), atol=1e-5)


def test_q_learning_is_the_loop_in_the_order_of_experience(record):
    agent = QLearning(horizon=4.0, gamma=0.97)
    spec, _, rows = record
    s, a = spec.obs.n, spec.action.n
    q, n = np.ones((s, a)), np.zeros((s, a))
    for x, u, paid, y, over in (row for part in rows for row in part):
        n[x, u] += 1
        alpha = 5 / (4 + n[x, u])
        v = 0 if over else min(1, q[y].max())
        q[x, u] += alpha * (paid + bonus_table(s, a)[x, u] + 0.97 * v - q[x, u])
    state = trained(agent, record)
    assert np.allclose(state.q, q, atol=1e-5) and np.array_equal(state.visits, n)


def test_the_whole_loop_equals_the_numpy_benchmark():
    """Environment, bonus and agent together, replayed by the NumPy loop of `python -m benchmarks.tabular`."""
    assert replay_error(episodes=60) < 1e-5


def test_epsilon_greedy_breaks_ties_evenly_and_wanders_as_often_as_told():
    keys = jax.random.split(jax.random.key(0), 20_000)
    q = jnp.array([0.0, 1.0, 1.0])
    greedy = np.bincount(jax.vmap(lambda k: epsilon_greedy(q, 0.0, k))(keys), minlength=3) / 20_000
    wander = np.bincount(jax.vmap(lambda k: epsilon_greedy(q, 0.3, k))(keys), minlength=3) / 20_000
    assert np.allclose(greedy, [0, 0.5, 0.5], atol=0.02)
    assert np.allclose(wander, [0.1, 0.45, 0.45], atol=0.02)


def test_without_a_bonus_a_known_model_is_solved_exactly():
    """Feed every transition of a deterministic lock once: value iteration finds the optimal return."""
    mdp = Lock(H=3, p=0.0).draw()
    s, a = np.meshgrid(np.arange(mdp.n_states - 1), np.arange(2), indexing="ij")
    nexts = np.asarray(mdp.P).argmax(-1)[: mdp.n_states - 1]
    from made.core import Space, Spec, Transition

    spec = Spec(Space((), jnp.int32, mdp.n_states), Space((), jnp.int32, 2))
    over = np.asarray(mdp.absorbing)[nexts]
    batch = Transition(*map(jnp.asarray, (s, a, np.asarray(mdp.r)[:-1], nexts, over, over & False)))
    agent = ValueIteration(gamma=1.0, sweeps=10, monotone=0.0)
    state, _ = agent.update(
        agent.init(jax.random.key(0), spec), batch, lambda b, value=None: b.reward, jax.random.key(1)
    )
    assert np.isclose(state.q[0].max(), horizon_optimum(mdp, 4)[0], atol=1e-6)
