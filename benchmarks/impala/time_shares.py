"""Where the time of an update goes: environment, acting, bonus, learning, each timed by a program of its own."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks.common import best_of
from made.agents import Uniform
from made.bonuses import NoBonus
from made.core import Agent, Bonus
from made.training.on_policy import RunConfig, RunState, improve
from made.training.rollout import reset_slots, rollout


def shares(lanes: RunConfig) -> Callable[[], dict[str, float]]:
    """Compile what is to be timed for these lanes; the call that is given back times it."""
    seeds = jnp.arange(jax.tree.leaves(lanes)[0].shape[0], dtype=jnp.uint32)
    first = compiled(lambda run, seed: run.start(jax.random.key(seed)), lanes, seeds)
    state = first.out_info
    collect = compiled(_batch, lanes, state)
    batch, idle = collect.out_info, Uniform()
    rolled = {
        "environment": compiled(_walk(idle, NoBonus()), lanes, state),
        "acting": compiled(_walk(lanes.agent, NoBonus()), lanes, state),
        "remembering": compiled(_walk(lanes.agent, lanes.bonus), lanes, state),
    }
    learnt = {"bonus": compiled(_bonus_only, lanes, state, batch), "both": compiled(_learn, lanes, state, batch)}

    def measured() -> dict[str, float]:
        state = first(lanes, seeds)
        batch = collect(lanes, state)
        took = {name: best_of(lambda one=one: one(lanes, state)) for name, one in rolled.items()}
        took |= {name: best_of(lambda one=one: one(lanes, state, batch)) for name, one in learnt.items()}
        return split(took)

    return measured


def split(took: dict[str, float]) -> dict[str, float]:
    """The share of each part, from seconds of programs that do ever more: what one adds is its part's own."""
    parts = {
        "environment": took["environment"],
        "acting": took["acting"] - took["environment"],
        "bonus": took["remembering"] - took["acting"] + took["bonus"],
        "learning": took["both"] - took["bonus"],
    }
    parts = {name: max(x, 0.0) for name, x in parts.items()}
    return {name: x / sum(parts.values()) for name, x in parts.items()}


def compiled(fn: Callable, *args):
    """The program of one call over all lanes."""
    return jax.jit(jax.vmap(fn)).lower(*args).compile()


def _walk(agent: Agent, bonus: Bonus) -> Callable:
    """A rollout with that agent and bonus in place of the run's own; levels are drawn within it."""

    def walk(run: RunConfig, state: RunState) -> jax.Array:
        own = type(agent) is type(run.agent)
        acting = state.agent if own else agent.init(state.key, run.env.spec)
        paid = state.bonus if type(bonus) is type(run.bonus) else ()
        streams = reset_slots(run.env, run.agent if own else agent, bonus, paid, run.n_envs, state.key)
        parts = (run.env, run.agent if own else agent, bonus, acting, paid, streams)
        spare = state.reserve._replace(start=streams, used=jnp.zeros(run.n_envs, bool))  # type: ignore[union-attr]
        rolled = rollout(*parts, run.unroll, state.key, reserve=spare)
        return jax.tree.reduce(lambda total, x: total + x.astype(float).sum(), rolled.batch[:5], jnp.zeros(()))

    return walk


def _batch(run: RunConfig, state: RunState):
    parts = (run.env, run.agent, run.bonus, state.agent, state.bonus, state.streams)
    return rollout(*parts, run.unroll, state.key, reserve=state.reserve).batch


def _bonus_only(run: RunConfig, state: RunState, batch) -> tuple:
    after, _ = run.bonus.update(state.bonus, batch, state.key)
    return after, run.bonus.reward(after, batch)


def _learn(run: RunConfig, state: RunState, batch) -> tuple:
    return improve(run, state, batch, state.key)
