"""Learning from sequences: `made.training.off_policy` on windows of a replay buffer, and a compiled run of it."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from made.agents.uniform import Uniform
from made.bonuses.replay_data import DRAWS, needs_new, recent_window, under_replay
from made.core import Agent, Bonus, Environment, Metrics, ReplayContext, Transition, trees
from made.core.schedules import Schedule
from made.core.trial import Trial
from made.training.off_policy import Draws, Fresh, ReplayLearner, ReplayLearnerState
from made.training.on_policy import RunConfig, RunState, episode_metrics, start
from made.training.rollout import refill_pool, reset_slots, rollout
from made.training.sequence_buffer import SequenceBuffer, SequenceBufferState


class SequenceLearner(ReplayLearner):
    """A learner whose batches are `batch` windows of a replay of sequences, leaves [T, B, ...].

    learner = SequenceLearner(spec, Dreamer(), make_bonus("made", "dreamer"), Constant(0.5), SequenceBuffer())
    """

    replay: SequenceBuffer = SequenceBuffer()  # type: ignore[assignment]
    batch: int = eqx.field(static=True, default=50)

    @property
    def _paying(self) -> Bonus:
        return under_replay(self.bonus)

    def _places(self, replay: SequenceBufferState, rows: int) -> None:  # type: ignore[override]
        """Nothing is kept beside a replay of sequences, so nobody asks where its steps stand."""

    def _draw(self, replay: SequenceBufferState, key: Key[Array, ""]) -> Draws:  # type: ignore[override]
        k_batch, k_recent = jax.random.split(key)
        batch, window = self.replay.sample(replay, self.batch, k_batch), recent_window(self.bonus)
        recent = None if window is None else self.replay.recent(replay, DRAWS, k_recent, window)
        return batch, recent, None

    def _with(self, drawn: Draws, fresh: Fresh) -> Transition:
        batch, recent, _ = drawn
        return batch._replace(extras=ReplayContext(fresh[0], batch if recent is None else recent))

    def study(self, state: ReplayLearnerState, updates: int, rows: int = 0) -> tuple[ReplayLearnerState, Metrics]:
        """Learn `updates` times from what is stored; the metrics are means.

        Each update takes its share of the last `rows` steps as fresh, so `updates` must divide them. None are needed
        where no part of the bonus takes in every step once (`needs_new`).
        """
        replay: SequenceBufferState = state.replay  # type: ignore[assignment]
        shares = self._shares(replay, updates, rows)
        step = lambda state, fresh: self._study(state, replay, fresh)  # noqa: E731
        state, metrics = jax.lax.scan(step, state._replace(replay=None), shares, updates)
        return state._replace(replay=replay), jax.tree.map(lambda x: jnp.nanmean(x, 0), metrics)  # type: ignore[arg-type]

    def study_one(
        self, state: ReplayLearnerState, i: Int[Array, ""] | int, updates: int, rows: int = 0
    ) -> tuple[ReplayLearnerState, Metrics]:
        """The i-th, from 0 on, of the updates that `study` makes: one a call where they are better not in a loop."""
        replay: SequenceBufferState = state.replay  # type: ignore[assignment]
        shares = self._shares(replay, updates, rows)
        state, metrics = self._study(state._replace(replay=None), replay, jax.tree.map(lambda x: x[i], shares))
        return state._replace(replay=replay), metrics

    def _shares(self, replay: SequenceBufferState, updates: int, rows: int) -> Transition | None:
        """The last `rows` steps, shared out over so many updates."""
        if not rows and needs_new(self.bonus):
            raise ValueError("A part of this bonus takes in every step once: say how many are new, rows=...")
        return split_over_updates(self.replay.latest(replay, rows), updates) if rows else None

    def _study(
        self, state: ReplayLearnerState, replay: SequenceBufferState, fresh: Transition | None
    ) -> tuple[ReplayLearnerState, Metrics]:
        key, k_draw, k_learn = jax.random.split(state.key, 3)
        drawn = self._draw(replay, k_draw)
        return self._learn(state._replace(key=key), drawn, (drawn[0] if fresh is None else fresh, None), k_learn)

    def decide(
        self,
        agent: PyTree,
        carry: PyTree,
        began: Bool[Array, " N"],
        obs: PyTree,
        key: Key[Array, ""],
        explore: bool = True,
    ) -> tuple[PyTree, Array]:
        """(carries, actions) for observations [N, ...]; where an episode has just begun the carry is blank."""
        n = began.shape[0]
        carry = trees.select(began, self.carries(n), carry)
        act = lambda carry, obs, key: self.agent.act(agent, carry, obs, (), key, explore=explore)[:2]  # noqa: E731
        return jax.vmap(act)(carry, obs, jax.random.split(key, n))

    def carries(self, n: int) -> PyTree:
        """The recurrent states of n environments at the start of an episode."""
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), self.agent.carry(self.spec))


def split_over_updates(transitions: Transition, updates: int) -> Transition:
    """Steps [T, ...] as shares of so many updates, [updates, T / updates, ...]."""
    rows = transitions.reward.shape[0]
    if rows % updates:
        raise ValueError(
            f"{rows} new steps cannot be shared out over {updates} updates: take a number of updates that divides the "
            "number of steps."
        )
    return jax.tree.map(lambda x: x.reshape(updates, rows // updates, *x.shape[1:]), transitions)


class ReplayRunState(NamedTuple):
    """Everything of a run that changes; `run.k` counts updates and `k` iterations."""

    run: RunState
    replay: SequenceBufferState
    k: Int[Array, ""]

    @property
    def env(self) -> Environment:
        """The environment as it was settled, and below what acts in it, as the state of any other run has them."""
        return self.run.env

    @property
    def agent(self) -> PyTree:
        return self.run.agent

    @property
    def bonus(self) -> PyTree:
        return self.run.bonus


class ReplayRun(Trial):
    """A run in compiled environments whose agent learns from a replay of sequences.

    One iteration takes `run.unroll` steps of each of `run.n_envs` environments and then learns `updates` times from
    `batch` windows each; `updates` must divide `run.unroll`. Before the first, `prefill` steps of each environment are
    taken at random. Dreamer v1 has 100 updates after 500 steps of one environment, and 2500 steps at random. The
    length of a run is told here, not by its `run`.

    run = RunConfig(grid, Dreamer(ends=True), RND(), n_envs=8, unroll=100)
    trial = ReplayRun(run, SequenceBuffer(ReplayBuffer(20_000, streams=8)))
    """

    run: RunConfig
    replay: SequenceBuffer = SequenceBuffer()
    batch: int = eqx.field(static=True, default=50)
    updates: int = eqx.field(static=True, default=100)
    prefill: int = eqx.field(static=True, default=2500)
    iterations: int = eqx.field(static=True, default=1000)
    every: int = eqx.field(static=True, default=10)
    episodes: int = eqx.field(static=True, default=32)  # of one evaluation

    def __check_init__(self):
        for name in ("batch", "updates", "iterations", "every", "episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"A run of Dreamer takes {name} of at least 1, got {getattr(self, name)}.")

    def fits(self) -> None:
        """Refuse settings that do not fit each other, once all are known."""
        run, streams = self.run, self.replay.steps.streams
        if streams != run.n_envs:
            raise ValueError(
                f"The replay keeps {streams} streams and the run has {run.n_envs} environments: give the replay's "
                f"steps streams={run.n_envs}."
            )
        if run.unroll % self.updates:
            raise ValueError(
                f"Each of updates={self.updates} updates takes its share of run.unroll={run.unroll} new steps: take a "
                "number of updates that divides the number of steps."
            )
        if self.prefill < self.replay.length:
            raise ValueError(
                f"A first window takes {self.replay.length} steps of an environment, and prefill={self.prefill} are "
                "taken at random: raise prefill, or draw shorter windows."
            )

    @property
    def env(self) -> Environment:
        """What other runs have as fields of their own, here and below."""
        return self.run.env

    @property
    def agent(self) -> Agent:
        return self.run.agent

    @property
    def bonus(self) -> Bonus:
        return self.run.bonus

    @property
    def bonus_coef(self) -> Schedule:
        return self.run.bonus_coef

    @property
    def n_envs(self) -> int:
        return self.run.n_envs

    @property
    def unroll(self) -> int:
        return self.run.unroll

    def learner(self, env: Environment) -> SequenceLearner:
        """The learner of this run."""
        spec = env.spec._replace(goal=self.run.bonus.memory.goal(env.spec))
        return SequenceLearner(spec, self.run.agent, self.run.bonus, self.run.bonus_coef, self.replay, self.batch)

    def start(self, key: Key[Array, ""]) -> ReplayRunState:
        self.fits()
        k_run, k_random, k_roll = jax.random.split(key, 3)
        state = start(dataclasses.replace(self.run, bonus=under_replay(self.run.bonus)), k_run)
        note = trees.index(state.streams.note, 0)
        replay = self.replay.init(state.env.spec, (note, note))
        random = RandomPolicy(self.run.agent)
        rolled = rollout(
            state.env, random, self.run.bonus, random.init(k_random, state.env.spec), state.bonus, state.streams,
            self.prefill, k_roll, reserve=state.reserve,
        )  # fmt: skip
        replay = jax.lax.scan(lambda held, step: (self.replay.push(held, step), None), replay, rolled.batch)[0]
        state = state._replace(streams=rolled.streams, reserve=rolled.reserve)
        return ReplayRunState(state, replay, jnp.zeros((), jnp.int32))

    def advance(self, state: ReplayRunState) -> tuple[ReplayRunState, Metrics]:
        run, before = self.run, state.run
        key, k_roll, k_learn, k_fresh = jax.random.split(before.key, 4)
        parts = (before.env, run.agent, run.bonus)
        rolled = rollout(*parts, before.agent, before.bonus, before.streams, run.unroll, k_roll, reserve=before.reserve)
        known = ReplayLearnerState(before.agent, before.bonus, state.replay, before.k, k_learn)  # type: ignore[arg-type]
        known, metrics = self.learner(before.env).advance(known, rolled.batch._replace(extras=()), self.updates)
        reserve = rolled.reserve
        if reserve is not None and run.resets_per_update is not None:
            reserve = refill_pool(reserve, reset_slots(*parts, known.bonus, run.resets_per_update, k_fresh))
        probe_states = tuple(
            w.update(seen, rolled.batch, known.k) for w, seen in zip(run.probes, before.probe_states, strict=True)
        )
        whole = RunState(before.env, known.agent, known.bonus, rolled.streams, reserve, probe_states, known.k, key)
        after = ReplayRunState(whole, known.replay, state.k + 1)  # type: ignore[arg-type]
        return after, {**episode_metrics(rolled.ended), **metrics}

    def snapshot(self, state: ReplayRunState) -> dict[str, Array]:
        return self.run.snapshot(state.run)


class RandomPolicy(Agent):
    """Acts at random in the place of another agent, whose recurrent state it leaves alone."""

    agent: Agent

    def init(self, key, spec):
        return Uniform().init(key, spec)

    def carry(self, spec):
        return self.agent.carry(spec)

    def act(self, state, carry, obs, goal, key, *, explore=True):
        return Uniform().act(state, carry, obs, goal, key)

    def update(self, state, batch, reward_fn, key):
        return state, {}
