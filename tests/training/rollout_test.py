"""Experience: true successors, fresh starts, returns; and the same through Gymnasium."""

from typing import NamedTuple

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import N, small_lock
from gymnasium.vector import AutoresetMode

from made.agents import QLearning, Uniform
from made.bonuses import MADE, NoBonus
from made.core import EpisodeNote
from made.core.schedules import Constant
from made.core.trial import Trial
from made.envs.tabular import RandomTabular, Tabular
from made.tabular.families import Lock
from made.training.backends import compiled_envs
from made.training.backends.compiled_envs import run_batch
from made.training.host.bonus import HostBonus, HostEnvironment, HostRollout, space_of, true_successor
from made.training.on_policy import learn
from made.training.rollout import EnvSlot, ResetPool, refill_pool, reset_slots, rollout

T = 22


@pytest.fixture(scope="module")
def rolled():
    """The same walk with a start for every step, and with one episode in waiting for each environment."""
    env = small_lock().sample_task(jax.random.key(0))
    agent, bonus = Uniform(), NoBonus()
    state = agent.init(jax.random.key(1), env.spec)
    streams = reset_slots(env, agent, bonus, (), N, jax.random.key(2))
    waiting = ResetPool(reset_slots(env, agent, bonus, (), N, jax.random.key(4)), jnp.zeros(N, bool))
    go = lambda reserve: rollout(env, agent, bonus, state, (), streams, T, jax.random.key(3), reserve=reserve)  # noqa: E731
    three = reset_slots(env, agent, bonus, (), 3 * N, jax.random.key(4))
    three = ResetPool(three._replace(length=100 * jnp.arange(3 * N)), jnp.zeros(3 * N, bool))
    return env, {"every": go(None), "waiting": go(waiting), "three": go(three)}


def test_the_successor_is_the_true_one_and_the_next_observation_a_fresh_start(rolled):
    env, outcomes = rolled
    _, batch, ended, _ = outcomes["every"]
    P = np.asarray(env.mdp.P)
    probability = P[np.asarray(batch.obs), np.asarray(batch.action), np.asarray(batch.next_obs)]
    assert (probability > 0).all()  # every successor can follow, at ends as well
    done = np.asarray(ended.done)
    assert np.array_equal(done, np.asarray(batch.terminated | batch.truncated))
    assert np.array_equal(np.asarray(batch.obs)[1:][~done[:-1]], np.asarray(batch.next_obs)[:-1][~done[:-1]])
    assert (np.asarray(batch.obs)[1:][done[:-1]] == 0).all()
    assert done.sum() == N * (T // 4)  # an episode of this lock has exactly four steps


def test_returns_and_lengths_are_those_of_whole_episodes(rolled):
    _, outcomes = rolled
    _, batch, ended, _ = outcomes["every"]
    rewards = np.asarray(batch.reward)
    for t, n in zip(*np.nonzero(np.asarray(ended.done)), strict=True):
        assert ended.length[t, n] == 4
        assert np.isclose(ended.total[t, n], rewards[t - 3 : t + 1, n].sum())


def test_an_episode_in_waiting_is_used_once_and_then_counted_as_replayed(rolled):
    _, outcomes = rolled
    _, batch, ended, reserve = outcomes["waiting"]
    assert (np.asarray(batch.obs)[4::4] == 0).all() and bool(reserve.used.all())
    done, replayed = np.asarray(ended.done), np.asarray(ended.pool_reused)
    first = done & (np.cumsum(done, 0) == 1)
    assert np.array_equal(replayed, done & ~first)
    assert outcomes["every"].reserve is None and not np.asarray(outcomes["every"].ended.pool_reused).any()


def test_an_environment_takes_its_own_episodes_in_waiting_one_after_another(rolled):
    ended = rolled[1]["three"].ended
    for n in range(N):
        lengths = np.asarray(ended.length)[np.asarray(ended.done)[:, n], n]
        slots = [n, n + N, n + 2 * N, n]  # then the first again
        assert lengths.tolist() == [4, *(4 + 100 * slot for slot in slots)]
        assert np.asarray(ended.pool_reused)[:, n].nonzero()[0].tolist() == [15, 19]


@pytest.mark.parametrize("k", [1, 2, 5])
def test_refill_replaces_used_episodes_as_far_as_fresh_ones_go(k):
    def stream(values):
        zeros = jnp.zeros(len(values))
        return EnvSlot((), jnp.asarray(values), EpisodeNote(), (), (), zeros, zeros.astype(int))

    used = jnp.array([True, False, True, True])
    after = refill_pool(ResetPool(stream([0, 1, 2, 3]), used), stream([10, 11, 12, 13, 14][:k]))
    expected = [10, 1, 11 if k > 1 else 2, 12 if k > 2 else 3]
    assert np.asarray(after.start.obs).tolist() == expected
    assert np.asarray(after.used).tolist() == [False, False, k < 2, k < 3]


def test_a_fixed_mdp_is_sampled_with_its_own_probabilities():
    env = Tabular(Lock(H=1, p=0.3).draw(), horizon=2)
    keys = jax.random.split(jax.random.key(0), 20_000)
    landed = jax.vmap(lambda k: env.step((jnp.int32(0), jnp.int32(0)), jnp.int32(0), k)[1].obs)(keys)
    dead = np.mean(np.asarray(landed) == int(Lock(H=1).dead(0, 0)))
    assert abs(dead - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 20_000)


def test_an_episode_without_an_end_is_truncated_at_the_horizon():
    env = RandomTabular(Lock(H=6), horizon=3).sample_task(jax.random.key(0))
    state, _ = env.reset(jax.random.key(1))
    for t in range(3):
        state, step = env.step(state, jnp.int32(0), jax.random.key(t))
    assert bool(step.truncated) and not bool(step.terminated)
    with pytest.raises(ValueError, match="at least 1"):
        RandomTabular(Lock(H=6), horizon=0)


@pytest.fixture(scope="module")
def cliff():
    return lambda mode=AutoresetMode.SAME_STEP: gym.make_vec(
        "CliffWalking-v1", N, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, max_episode_steps=9
    )


def test_the_same_learner_runs_on_gymnasium(cliff):
    env = HostEnvironment(cliff())
    bonus, agent = MADE.tabular(50), QLearning(horizon=9.0)
    coef = Constant(1.0)
    host = HostBonus(bonus, env.spec, N)
    source = HostRollout(env, agent, host, seed=1)
    state = agent.init(jax.random.key(0), env.spec)
    step = jax.jit(lambda states, batch, k, key: learn(agent, bonus, coef, states, batch, k, key, T))
    for k in (1, 2):
        batch = source.collect(state, T)
        before = np.asarray(host.state.cover).sum()
        state, host.state, metrics = step((state, host.state), batch, jnp.int32(k), jax.random.key(k))
        assert np.asarray(host.state.cover).sum() == before + N * T
    assert batch.obs.shape == (T, N) and bool(batch.truncated.any())
    assert all(np.isfinite(float(x)) for x in metrics.values())
    assert len(source.returns) >= N and max(source.returns) < 0


def test_gymnasium_successors_at_the_end_are_final_observations(cliff):
    env = HostEnvironment(cliff())
    source = HostRollout(env, Uniform(), HostBonus(NoBonus(), env.spec, N), seed=0)
    batch = source.collect(Uniform().init(jax.random.key(0), env.spec), T)
    done = np.asarray(batch.truncated | batch.terminated)[:-1]
    assert done.any()
    assert np.array_equal(np.asarray(batch.obs)[1:][~done], np.asarray(batch.next_obs)[:-1][~done])
    assert (np.asarray(batch.obs)[1:][done] == 36).all()  # CliffWalking starts in state 36


def test_next_step_autoreset_is_refused_with_the_fix(cliff):
    with pytest.raises(ValueError, match="SAME_STEP"):
        HostEnvironment(cliff(AutoresetMode.NEXT_STEP))
    with pytest.raises(ValueError, match="final_obs"):
        true_successor(np.zeros(2), {}, np.array([True, False]))


def test_the_host_shell_says_what_is_missing():
    spec = small_lock().spec
    host = HostBonus(NoBonus(), spec, 2)
    step = (np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2), np.array([True, False]), np.zeros(2, bool))
    with pytest.raises(ValueError, match="before reset"):
        host.step(*step)
    host.reset(np.zeros(2))
    with pytest.raises(ValueError, match="reset_obs"):
        host.step(*step)


def test_gymnasium_spaces_become_specs():
    spaces = gym.spaces
    seen = space_of(spaces.Dict({"image": spaces.Box(0, 255, (7, 7, 3), np.uint8), "way": spaces.Discrete(4)}))
    assert seen["image"].shape == (7, 7, 3) and seen["image"].dtype == np.uint8 and seen["way"].n == 4
    assert space_of(spaces.Box(-1, 1, (2,))).low == -1 and space_of(spaces.Box(-np.inf, 1, (2,))).low is None
    for bad in (spaces.Text(3), spaces.Discrete(3, start=1)):
        with pytest.raises(ValueError, match=r"not supported|starts at 1"):
            space_of(bad)


EPISODES, RETURNS = (1, 9, 0, 0, 5, 5), (1.0, 0.0, np.nan, np.nan, 0.5, 0.2)  # of six updates, three to an interval
LOSSES = (1.0, 2.0, 6.0, 0.0, 0.0, 3.0)


class ScriptState(NamedTuple):
    agent: jax.Array
    k: jax.Array


class Script(Trial):
    """Measures what the lists above say: most episodes of the first interval fail, in its second update."""

    iterations: int = eqx.field(static=True, default=6)
    every: int = eqx.field(static=True, default=3)
    counts_episodes: bool = eqx.field(static=True, default=True)

    def start(self, key):
        del key
        return ScriptState(jnp.zeros(()), jnp.zeros((), jnp.int32))

    def advance(self, state):
        episodes, mean, loss = (jnp.asarray(x, jnp.float32)[state.k] for x in (EPISODES, RETURNS, LOSSES))
        metrics = {"return": mean, "length": 10 * mean, "loss": loss}
        count = {"episodes": episodes} if self.counts_episodes else {}
        return ScriptState(state.agent, state.k + 1), metrics | count


def in_training(script: Script) -> dict[str, np.ndarray]:
    """The rows that `made train` writes."""
    runs, rows = compiled_envs.replicate(script, 1), []
    state = compiled_envs.begin(runs, jnp.zeros(1, jnp.uint32))
    for _ in range(2):
        state, row = compiled_envs.advance(runs, state, jnp.int32(script.every))
        rows.append(row.scalars)
    return {name: np.array([float(row[name][0]) for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("rows", [lambda: run_batch([Script()], [0])[0].rows, lambda: in_training(Script())])
def test_an_interval_weights_episode_means_by_episodes_and_nothing_else(rows):
    rows = rows()
    assert np.allclose(rows["return"], [1 / 10, 3.5 / 10]), "not the means of the updates, 1/2 and 0.35"
    assert np.allclose(rows["length"], [10 / 10, 35 / 10])
    assert np.allclose(rows["loss"], [3.0, 1.0])


def test_episode_means_without_a_count_are_plain_means():
    rows = run_batch([Script(counts_episodes=False)], [0])[0].rows
    assert np.allclose(rows["return"], [0.5, 0.35])


def test_an_interval_in_which_no_episode_ended_has_no_return():
    rows = run_batch([Script(every=1)], [0])[0].rows
    assert np.isnan(rows["return"]).tolist() == np.isnan(RETURNS).tolist()
