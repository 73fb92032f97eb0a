"""Algorithm 1 as a training loop: roll out, estimate the densities, form r_k, plan on it."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree

from made.bonuses.combinators import bonus_strength
from made.core import Agent, Bonus, Environment, Metrics, Transition, require_fields
from made.core.schedules import Constant, Schedule
from made.core.trial import Trial
from made.envs.host_env import Hosted
from made.training.probes import Probe, ProbeContext
from made.training.rollout import (
    EnvSlot,
    EpisodeEnds,
    ResetPool,
    RolloutResult,
    first_episodes,
    refill_pool,
    reset_slots,
    rollout,
)


class RunConfig(Trial):
    """The configuration of a training run. Configurations that differ only in numbers can run as one batch.

    Args:
        env: Environment, compiled or of Gymnasium.
        agent: Agent, which learns from the reward plus the bonus.
        bonus: Exploration bonus; `NoBonus()` for none.
        bonus_coef: Schedule of the bonus coefficient.
        n_envs: Number of environments that run in parallel.
        unroll: Steps of each environment in one iteration.
        iterations: Number of iterations, each a rollout and an update.
        every: Iterations between two log records.
        resets_per_update: Episodes prepared for each rollout. None prepares one for every step.
        pool_per_env: Prepared episodes of each environment, if `resets_per_update` is set.
        probes: What else is measured, such as `Coverage`.
    """

    env: Environment
    agent: Agent
    bonus: Bonus
    bonus_coef: Schedule = Constant(1.0)
    n_envs: int = eqx.field(static=True, default=1)
    unroll: int = eqx.field(static=True, default=16)
    iterations: int = eqx.field(static=True, default=1000)
    every: int = eqx.field(static=True, default=10)
    resets_per_update: int | None = eqx.field(static=True, default=None)
    pool_per_env: int = eqx.field(static=True, default=1)
    probes: tuple[Probe, ...] = ()

    def __check_init__(self):
        for name in ("n_envs", "unroll", "iterations", "every", "pool_per_env"):
            if getattr(self, name) < 1:
                raise ValueError(f"RunConfig.{name} must be at least 1, got {getattr(self, name)}.")
        resets = self.resets_per_update
        if resets is not None and (resets < 1 or resets != int(resets)):
            raise ValueError(
                "RunConfig.resets_per_update must be a whole number of at least 1, or None for one at every step; "
                f"got {resets}."
            )

    def start(self, key: Key[Array, ""]) -> "RunState":
        """Line 2 of Algorithm 1: no experience yet. Environments that are stepped on the host have no slots."""
        k_env, k_agent, k_bonus, k_streams, _, k_probes, k_next = jax.random.split(key, 7)
        env = self.env.sample_task(k_env)
        spec = env.spec._replace(goal=self.bonus.memory.goal(env.spec))
        agent, bonus = self.agent.init(k_agent, spec), self.bonus.init(k_bonus, spec)
        n, streams, reserve = self.n_envs, (), None
        if not isinstance(env, Hosted):  # slots and pool in one call: a generator of levels is slow to compile
            pooled = 0 if self.resets_per_update is None else self.pool_per_env * n
            streams = reset_slots(env, self.agent, self.bonus, bonus, n + pooled, k_streams)
            if pooled:
                streams, waiting = (jax.tree.map(lambda x, at=at: x[at], streams) for at in (slice(n), slice(n, None)))
                reserve = ResetPool(waiting, jnp.zeros(pooled, bool))
        probe_keys = jax.random.split(k_probes, len(self.probes)) if self.probes else ()
        probe_states = tuple(probe.init(k, spec) for probe, k in zip(self.probes, probe_keys, strict=True))
        return RunState(env, agent, bonus, streams, reserve, probe_states, jnp.zeros((), jnp.int32), k_next)  # type: ignore[arg-type]

    def advance(self, state: "RunState") -> tuple["RunState", Metrics]:
        return iterate(self, state)

    def snapshot(self, state: "RunState") -> dict[str, Array]:
        scene, found = ProbeContext(self.agent, state.agent, self.bonus_coef(state.k)), {}
        for probe, seen in zip(self.probes, state.probe_states, strict=True):
            found |= probe.read(seen, scene)
        return found


class RunState(NamedTuple):
    """Everything of a run that changes, and the environment with its sampled task."""

    env: Environment
    agent: PyTree
    bonus: PyTree
    streams: EnvSlot
    reserve: ResetPool | None
    probe_states: tuple[PyTree, ...]
    k: Int[Array, ""]  # iterations done
    key: Key[Array, ""]


def learn(
    agent: Agent,
    bonus: Bonus,
    bonus_coef: Schedule,
    states: tuple[PyTree, PyTree],
    batch: Transition,
    k: Int[Array, ""],
    key: Key[Array, ""],
    horizon: int,
) -> tuple[PyTree, PyTree, Metrics]:
    """Lines 4 to 6 of Algorithm 1, in that order, for rollouts and batches [T, N, ...] of a replay buffer alike.

    update the density estimates; r_k = r + tau_k bonus, Eq. (5); plan on r_k.
    The bonus is updated first, so its counts include the visit that it rewards. `states` are those of the agent and of
    the bonus, k counts from 1, and `horizon` is for the metric `bonus_strength`. Returns both states, and metrics.
    """
    k_bonus, k_agent = jax.random.split(key)
    bonus_state, of_bonus = bonus.update(states[1], batch, k_bonus)
    if bonus.reads and "value" not in bonus.reads:  # else it is the same everywhere, or needs a planner
        mean = bonus.reward(bonus_state, batch).mean()
        of_bonus = {**of_bonus, "bonus": mean}
        of_bonus["bonus_strength"] = jnp.asarray(bonus_strength(bonus_coef(k), mean, horizon))

    def reward_fn(batch: Transition, *, value: Array | None = None) -> Array:
        require_fields(bonus, batch, value)
        return batch.reward + bonus_coef(k) * bonus.reward(bonus_state, batch, value=value)

    agent_state, of_agent = agent.update(states[0], batch, reward_fn, k_agent)
    return agent_state, bonus_state, {**of_bonus, **of_agent}


def iterate(run: RunConfig, state: RunState) -> tuple[RunState, Metrics]:
    """One iteration k: pure, so it may be jitted, scanned over k and vmapped over runs."""
    key, k_roll, k_learn, k_fresh = jax.random.split(state.key, 4)
    rolled = collect(run, state, k_roll)
    after, metrics = improve(run, state, rolled.batch, k_learn)
    return renew_slots(run, after, rolled, key, k_fresh), {**episode_metrics(rolled.ended), **metrics}


def collect(run: RunConfig, state: RunState, key: Key[Array, ""]) -> RolloutResult:
    """The rollout of one iteration."""
    parts = (state.env, run.agent, run.bonus, state.agent, state.bonus)
    return rollout(*parts, state.streams, run.unroll, key, reserve=state.reserve)


def improve(run: RunConfig, state: RunState, batch: Transition, key: Key[Array, ""]) -> tuple[RunState, Metrics]:
    """Learn from the rollout of one iteration, wherever it was collected."""
    k, horizon = state.k + 1, run.env.spec.horizon or run.unroll
    parts = (run.agent, run.bonus, run.bonus_coef, (state.agent, state.bonus))
    agent, bonus, metrics = learn(*parts, batch, k, key, horizon)
    return update_probes(run, state._replace(agent=agent, bonus=bonus, k=k), batch), metrics


def update_probes(run: RunConfig, state: RunState, batch: Transition) -> RunState:
    """The state with its probes updated from the batch of iteration `state.k`."""
    each = zip(run.probes, state.probe_states, strict=True)
    return state._replace(probe_states=tuple(probe.update(seen, batch, state.k) for probe, seen in each))


def renew_slots(run: RunConfig, state: RunState, rolled: RolloutResult, key: Array, k_reset: Array) -> RunState:
    """The state with the slots that a rollout left. Used entries of the reset pool are replaced."""
    reserve = rolled.reserve
    if reserve is not None and run.resets_per_update is not None:
        parts = (state.env, run.agent, run.bonus, state.bonus)
        reserve = refill_pool(reserve, reset_slots(*parts, run.resets_per_update, k_reset))
    return state._replace(streams=rolled.streams, reserve=reserve, key=key)


def episode_metrics(ended: EpisodeEnds) -> Metrics:
    """Mean return and length of the episodes that ended; NaN where none did."""
    episodes = ended.done.sum()
    mean = lambda x: jnp.where(episodes > 0, (x * ended.done).sum() / jnp.maximum(episodes, 1), jnp.nan)  # noqa: E731
    return {
        "return": mean(ended.total),
        "length": mean(ended.length),
        "episodes": episodes.astype(float),
        "pool_reused": ended.pool_reused.sum().astype(float),
    }


def evaluate(run: RunConfig, state: RunState, episodes: int, key: Key[Array, ""], steps: int | None = None) -> Metrics:
    """Mean return over new episodes, acting without exploration and learning nothing.

    One environment for each episode, with `steps` steps; the default is the horizon of the environment.
    """
    steps = steps or run.env.spec.horizon
    if steps is None:
        raise ValueError("This environment has no horizon: say how many steps an evaluation may take, steps=...")
    parts = (state.env, run.agent, run.bonus, state.agent, state.bonus)
    ends = episode_metrics(first_episodes(*parts, episodes, steps, key))
    return {"eval_return": ends["return"], "eval_length": ends["length"], "eval_episodes": ends["episodes"]}
