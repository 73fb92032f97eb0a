"""Algorithm 1 as a training loop: roll out, estimate the densities, form r_k, plan on it."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree

from made.bonuses.strength import bonus_strength
from made.core import Agent, Bonus, Environment, Metrics, Transition, demand
from made.rollout import Ended, Reserve, Stream, begin, refill, rollout
from made.schedules import Constant, Schedule
from made.trial import Trial
from made.watch import Scene, Watch


class Run(Trial):
    """The whole configuration of a training run. Numbers are leaves, so a stack of Runs is a batch of lanes."""

    env: Environment
    agent: Agent
    bonus: Bonus
    tau: Schedule = Constant(1.0)
    n_envs: int = eqx.field(static=True, default=1)
    unroll: int = eqx.field(static=True, default=16)  # steps of each environment in one iteration
    iterations: int = eqx.field(static=True, default=1000)
    every: int = eqx.field(static=True, default=10)
    starts: int | None = eqx.field(static=True, default=None)  # episodes prepared per rollout; None: one for every step
    spares: int = eqx.field(static=True, default=1)  # episodes in waiting for each environment, where `starts` is set
    watches: tuple[Watch, ...] = ()

    def __check_init__(self):
        for name in ("n_envs", "unroll", "iterations", "every", "spares"):
            if getattr(self, name) < 1:
                raise ValueError(f"Run.{name} must be at least 1, got {getattr(self, name)}.")
        if self.starts is not None and (self.starts < 1 or self.starts != int(self.starts)):
            raise ValueError(
                f"Run.starts must be a whole number of at least 1, or None for one at every step; got {self.starts}."
            )

    def start(self, key: Key[Array, ""]) -> "RunState":
        return start(self, key)

    def advance(self, state: "RunState") -> tuple["RunState", Metrics]:
        return iterate(self, state)

    def snapshot(self, state: "RunState") -> dict[str, Array]:
        scene = Scene(self.agent, state.agent, self.tau(state.k))
        read = [watch.read(seen, scene) for watch, seen in zip(self.watches, state.watched, strict=True)]
        return {name: value for one in read for name, value in one.items()}


class RunState(NamedTuple):
    """Everything of a run that changes, and the environment as it was settled for this run."""

    env: Environment
    agent: PyTree
    bonus: PyTree
    streams: Stream
    reserve: Reserve | None
    watched: tuple[PyTree, ...]
    k: Int[Array, ""]  # iterations done
    key: Key[Array, ""]


def start(run: Run, key: Key[Array, ""]) -> RunState:
    """Line 2 of Algorithm 1: nothing seen yet."""
    k_env, k_agent, k_bonus, k_streams, _, k_watch, k_next = jax.random.split(key, 7)
    env = run.env.settle(k_env)
    spec = env.spec._replace(goal=run.bonus.memory.goal(env.spec))
    agent, bonus = run.agent.init(k_agent, spec), run.bonus.init(k_bonus, spec)
    n, reserve = run.n_envs, None
    if run.starts is None:
        streams = begin(env, run.agent, run.bonus, bonus, n, k_streams)
    else:  # the first and those in waiting in one go: a generator of levels is long to compile
        both = begin(env, run.agent, run.bonus, bonus, (1 + run.spares) * n, k_streams)
        streams, waiting = (jax.tree.map(lambda x, part=part: x[part], both) for part in (slice(n), slice(n, None)))
        reserve = Reserve(waiting, jnp.zeros(run.spares * n, bool))
    watch_keys = jax.random.split(k_watch, len(run.watches)) if run.watches else ()
    watched = tuple(watch.init(k, spec) for watch, k in zip(run.watches, watch_keys, strict=True))
    return RunState(env, agent, bonus, streams, reserve, watched, jnp.zeros((), jnp.int32), k_next)


def learn(
    run: Run, agent: PyTree, bonus: PyTree, batch: Transition, k: Int[Array, ""], key: Key[Array, ""]
) -> tuple[PyTree, PyTree, Metrics]:
    """Lines 4 to 6 of Algorithm 1, in that order, for compiled and host experience alike.

    update the density estimates; r_k = r + tau_k bonus, Eq. (5); plan on r_k.
    The bonus is updated first, so its counts include the visit they pay for.
    """
    k_bonus, k_agent = jax.random.split(key)
    bonus, of_bonus = run.bonus.update(bonus, batch, k_bonus)
    if run.bonus.reads and "value" not in run.bonus.reads:  # else it pays the same everywhere, or needs a planner
        paid = run.bonus.reward(bonus, batch).mean()
        strength = bonus_strength(run.tau(k), paid, run.env.spec.horizon or run.unroll)
        of_bonus = {**of_bonus, "bonus": paid, "bonus_strength": jnp.asarray(strength)}

    def reward_fn(batch: Transition, *, value: Array | None = None) -> Array:
        demand(run.bonus, batch, value)
        return batch.reward + run.tau(k) * run.bonus.reward(bonus, batch, value=value)

    agent, of_agent = run.agent.update(agent, batch, reward_fn, k_agent)
    return agent, bonus, {**of_bonus, **of_agent}


def iterate(run: Run, state: RunState) -> tuple[RunState, Metrics]:
    """One iteration k: pure, so it may be jitted, scanned over k and vmapped over lanes."""
    key, k_roll, k_learn, k_fresh = jax.random.split(state.key, 4)
    k, parts = state.k + 1, (state.env, run.agent, run.bonus)
    rolled = rollout(*parts, state.agent, state.bonus, state.streams, run.unroll, k_roll, reserve=state.reserve)
    agent, bonus, metrics = learn(run, state.agent, state.bonus, rolled.batch, k, k_learn)
    reserve = rolled.reserve
    if reserve is not None and run.starts is not None:
        reserve = refill(reserve, begin(*parts, bonus, run.starts, k_fresh))
    watched = tuple(watch.update(seen, rolled.batch, k) for watch, seen in zip(run.watches, state.watched, strict=True))
    after = RunState(state.env, agent, bonus, rolled.streams, reserve, watched, k, key)
    return after, {**episode_metrics(rolled.ended), **metrics}


def episode_metrics(ended: Ended) -> Metrics:
    """Mean return and length of the episodes that ended; NaN where none did."""
    episodes = ended.done.sum()
    mean = lambda x: jnp.where(episodes > 0, (x * ended.done).sum() / jnp.maximum(episodes, 1), jnp.nan)  # noqa: E731
    return {
        "return": mean(ended.total),
        "length": mean(ended.length),
        "episodes": episodes.astype(float),
        "replayed": ended.replayed.sum().astype(float),
    }


def evaluate(run: Run, state: RunState, episodes: int, key: Key[Array, ""], steps: int | None = None) -> Metrics:
    """Mean return over fresh episodes, acting without exploration and learning nothing.

    One environment for each episode, `steps` long: the horizon of the environment unless said otherwise.
    """
    steps = steps or run.env.spec.horizon
    if steps is None:
        raise ValueError("This environment has no horizon: say how many steps an evaluation may take, steps=...")
    k_start, k_roll = jax.random.split(key)
    parts = (state.env, run.agent, run.bonus)
    streams = begin(*parts, state.bonus, episodes, k_start)
    spare = Reserve(streams, jnp.ones(episodes, bool))  # what comes after the first episode does not count
    ended = rollout(*parts, state.agent, state.bonus, streams, steps, k_roll, reserve=spare, explore=False).ended
    first = ended.done & (jnp.cumsum(ended.done, axis=0) == 1)
    ends = episode_metrics(ended._replace(done=first))
    return {"eval_return": ends["return"], "eval_length": ends["length"], "eval_episodes": ends["episodes"]}
