"""Learning from a replay buffer as pure functions, and a compiled run that does so (Dreamer on grids and tables).

Algorithm 1 is the same as on-policy (`made.training.on_policy.learn`): update the bonus, form r_k = r + tau_k b, update
the agent. Only the batch differs: it is sampled from the buffer, and its bonus is computed by the current bonus.
"""

import dataclasses
from operator import attrgetter
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree

from made.agents.uniform import Uniform
from made.bonuses.replay_data import DRAWS, LastFrame, needs_new, recent_window, settle
from made.core import Agent, Bonus, Environment, Metrics, ReplayContext, Spec, Transition, trees
from made.core.config import COUNT, check_numbers
from made.core.schedules import Constant, Schedule
from made.core.trial import Trial
from made.training.on_policy import (
    RunConfig,
    RunState,
    collect,
    episode_metrics,
    learn,
    renew_slots,
    update_probes,
)
from made.training.replay import ReplayBuffer, SequenceBuffer, SequenceBufferState, single_steps

Fresh = tuple[Transition, Array | None]  # new steps [T, N, ...], and their indices in the replay


class ReplayLearnerState(NamedTuple):
    """All that changes in learning."""

    agent: PyTree
    bonus: PyTree
    replay: Any  # of a ReplayBuffer or a SequenceBuffer
    k: Int[Array, ""]  # updates done
    key: Key[Array, ""]


Updated = tuple[ReplayLearnerState, Metrics]


class ReplayLearner(eqx.Module):
    """An agent that learns from a replay, its bonus, the bonus coefficient, and how much is sampled.

    A batch is `batch` steps of a `ReplayBuffer`, leaves [1, B, ...], or `batch` windows of a `SequenceBuffer`, leaves
    [T, B, ...].

    learner = ReplayLearner(spec, RAD(), make_bonus("made", "off_policy", pixels=True), Constant(0.05),
                            ReplayBuffer(100_000, stack=3))
    learner = ReplayLearner(spec, Dreamer(), make_bonus("made", "dreamer"), Constant(0.5), SequenceBuffer(), batch=50)
    """

    spec: Spec = eqx.field(static=True)
    agent: Agent
    bonus: Bonus
    bonus_coef: Schedule = Constant(1.0)
    replay: ReplayBuffer | SequenceBuffer = ReplayBuffer()
    batch: int = eqx.field(static=True, default=512)

    def __check_init__(self):
        check_numbers(self, {COUNT: ("batch",)})

    @property
    def kinds(self) -> list["ReplayLearner"]:
        """The same learner for each kind of update in turn; the k-th update, from 1 on, is of kind k % len(kinds)."""
        return [dataclasses.replace(self, agent=self.agent.at_phase(k)) for k in range(self.agent.kinds)]

    def start(self, key: Key[Array, ""], replay: bool = True) -> ReplayLearnerState:
        """The state before any experience; without a replay, None is in its place, to measure the rest."""
        k_agent, k_bonus, k_next = jax.random.split(key, 3)
        agent, bonus = self.agent.init(k_agent, self.spec), self._settled_bonus.init(k_bonus, self.spec)
        held = self.replay.init(self.spec) if replay else None
        return ReplayLearnerState(agent, bonus, held, jnp.zeros((), jnp.int32), k_next)

    @property
    def _settled_bonus(self) -> Bonus:
        """The bonus with room for what it is given, and with cached features where steps have indices."""
        if isinstance(self.replay, ReplayBuffer) and self.replay.streams == 1:
            return settle(self.bonus, self.replay.room[0])
        return settle(self.bonus)

    def store(self, replay: Any, steps: Transition) -> Any:
        """The replay with new steps, leaves [T, N, ...]."""
        add: Any = self.replay.add
        if steps.reward.shape[0] == 1:
            return add(replay, trees.index(steps, 0))
        return jax.lax.scan(lambda replay, step: (add(replay, step), None), replay, steps)[0]

    def introduce(self, state: ReplayLearnerState, rows: int) -> ReplayLearnerState:
        """Show the bonus the last `rows` steps that were stored, as new ones: once, when learning begins.

        These should be all that are stored, or the bonus would be evaluated on steps that it was never shown.
        """
        key, k_draw, k_bonus = jax.random.split(state.key, 3)
        batch = self.sample(state.replay, k_draw, self._new(state.replay, rows))
        bonus, _ = self._settled_bonus.update(state.bonus, batch, k_bonus)
        return state._replace(bonus=bonus, key=key)

    def advance(self, state: ReplayLearnerState, steps: Transition, updates: int = 1) -> Updated:
        """Store new steps, leaves [T, N, ...], then learn `updates` times; the metrics are means.

        All T steps are stored first. Each update takes an equal part of them as new, so `updates` must divide T.
        """
        replay = self.store(state.replay, steps)
        state, new = state._replace(replay=replay), self._new(replay, len(steps.reward), steps)
        return self.update(state, new) if updates == 1 else self._scan(state, split_over_updates(new, updates), updates)

    def study(self, state: ReplayLearnerState, updates: int, rows: int = 0, i: Any = None) -> Updated:
        """Learn `updates` times from what is stored; the metrics are means.

        Each update takes an equal part of the last `rows` steps as new, so `updates` must divide them. None are needed
        if no part of the bonus takes in every step once (`needs_new`). With `i`, make the i-th update alone, from 0
        on, for devices on which a loop is slow.
        """
        if not rows and needs_new(self.bonus):
            raise ValueError("A part of this bonus takes in every step once: say how many are new, rows=...")
        new = split_over_updates(self._new(state.replay, rows), updates) if rows else None
        return self._scan(state, new, updates) if i is None else self.update(state, jax.tree.map(lambda x: x[i], new))

    def _new(self, replay: Any, rows: int, steps: Transition | None = None) -> Fresh:
        """The last `rows` steps, unless they are given, and their indices where each batch has them."""
        buffer, held = single_steps(self.replay, replay)
        indices = buffer.indices(held, rows) if buffer is self.replay else None
        return buffer.latest(held, rows) if steps is None else steps, indices

    def _scan(self, state: ReplayLearnerState, new: Fresh | None, updates: int) -> Updated:
        """So many updates, each with its part of the new steps."""
        replay = state.replay  # only read, so the loop does not carry it

        def body(state: ReplayLearnerState, new: Fresh | None) -> Updated:
            state, metrics = self.update(state._replace(replay=replay), new)
            return state._replace(replay=None), metrics

        state, metrics = jax.lax.scan(body, state._replace(replay=None), new, updates)
        return state._replace(replay=replay), jax.tree.map(lambda x: jnp.nanmean(x, 0), metrics)

    def update(self, state: ReplayLearnerState, new: Fresh | None = None) -> Updated:
        """One update on a batch of the replay. Without `new` steps the batch takes their place."""
        key, k_draw, k_learn = jax.random.split(state.key, 3)
        batch, k = self.sample(state.replay, k_draw, new), state.k + 1
        parts = (self.agent, self._settled_bonus, self.bonus_coef, (state.agent, state.bonus))
        agent, bonus, metrics = learn(*parts, batch, k, k_learn, self.spec.horizon or 1)
        return state._replace(agent=agent, bonus=bonus, k=k, key=key), metrics

    def sample(self, replay: Any, key: Key[Array, ""], new: Fresh | None = None) -> Transition:
        """A batch of the whole replay; its `extras` are the other steps that the bonus may learn from."""
        k_batch, k_recent = jax.random.split(key)
        batch, at = self.replay.sample(replay, self.batch, k_batch)
        recent, window = batch, recent_window(self.bonus)
        if window is not None:
            buffer, held = single_steps(self.replay, replay)
            recent, _ = buffer.sample(held, DRAWS, k_recent, window, 1 if isinstance(self.bonus, LastFrame) else None)
        return batch._replace(extras=ReplayContext((new or (batch,))[0], recent, at, new[1] if new else None))

    def act(
        self, params: PyTree, carry: PyTree, began: Array, obs: PyTree, key: Key[Array, ""], explore: bool = True
    ) -> tuple[PyTree, Array]:
        """(carries, actions) for observations [N, ...]. The carry is blank where an episode has just begun.

        `params` are `agent.acting_params` of the agent's state.
        """
        n = jax.tree.leaves(obs)[0].shape[0]
        carry = trees.select(began, self.carries(n), carry)
        act = lambda carry, obs, key: self.agent.act(params, carry, obs, (), key, explore=explore)[:2]  # noqa: E731
        return jax.vmap(act)(carry, obs, jax.random.split(key, n))

    def carries(self, n: int) -> PyTree:
        """The recurrent states of n environments at the start of an episode."""
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), self.agent.carry(self.spec))


def split_over_updates(new: Fresh, updates: int) -> Fresh:
    """New steps [T, ...] in equal parts, [updates, T / updates, ...]."""
    rows = new[0].reward.shape[0]
    if updates < 1 or rows % updates:
        raise ValueError(
            f"{rows} new steps cannot be shared out over {updates} updates: take a number of updates that divides the "
            "number of steps."
        )
    return jax.tree.map(lambda x: x.reshape(updates, rows // updates, *x.shape[1:]), new)


class ReplayRunState(NamedTuple):
    """Everything of a run that changes; `run.k` counts updates and `k` iterations."""

    run: RunState
    replay: SequenceBufferState
    k: Int[Array, ""]

    # Under the names that states of other runs have.
    env = property(attrgetter("run.env"))
    agent = property(attrgetter("run.agent"))
    bonus = property(attrgetter("run.bonus"))


class ReplayRun(Trial):
    """A run in compiled environments whose agent learns from a replay of sequences.

    One iteration takes `run.unroll` steps of each of `run.n_envs` environments and then learns `updates` times from
    `batch` windows each; `updates` must divide `run.unroll`. Before the first, `prefill` steps of each environment are
    taken at random. Dreamer v1 has 100 updates after 500 steps of one environment, and 2500 steps at random. The
    length of a run is set here, not by its `run`.

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
    # Under the names that other runs have.
    env = property(attrgetter("run.env"))
    agent = property(attrgetter("run.agent"))
    bonus = property(attrgetter("run.bonus"))
    bonus_coef = property(attrgetter("run.bonus_coef"))
    n_envs = property(attrgetter("run.n_envs"))
    unroll = property(attrgetter("run.unroll"))

    def __check_init__(self):
        check_numbers(self, {COUNT: ("batch", "updates", "iterations", "every", "episodes")})

    def fits(self) -> None:
        """Raise ValueError for settings that do not fit each other, once all are known."""
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

    def learner(self, env: Environment) -> ReplayLearner:
        """The learner of this run."""
        spec = env.spec._replace(goal=self.bonus.memory.goal(env.spec))
        return ReplayLearner(spec, self.agent, self.bonus, self.bonus_coef, self.replay, self.batch)

    def start(self, key: Key[Array, ""]) -> ReplayRunState:
        self.fits()
        k_run, k_random, k_roll = jax.random.split(key, 3)
        state = dataclasses.replace(self.run, bonus=settle(self.run.bonus)).start(k_run)
        note = trees.index(state.streams.note, 0)
        replay = self.replay.init(state.env.spec, (note, note))
        prefill = dataclasses.replace(self.run, agent=RandomPolicy(self.run.agent), unroll=self.prefill)
        random = prefill.agent.init(k_random, state.env.spec)
        rolled = collect(prefill, state._replace(agent=random), k_roll)
        replay = self.learner(state.env).store(replay, rolled.batch)
        state = state._replace(streams=rolled.streams, reserve=rolled.reserve)
        return ReplayRunState(state, replay, jnp.zeros((), jnp.int32))

    def advance(self, state: ReplayRunState) -> tuple[ReplayRunState, Metrics]:
        run, before = self.run, state.run
        key, k_roll, k_learn, k_fresh = jax.random.split(before.key, 4)
        rolled = collect(run, before, k_roll)
        known = ReplayLearnerState(before.agent, before.bonus, state.replay, before.k, k_learn)
        known, metrics = self.learner(before.env).advance(known, rolled.batch._replace(extras=()), self.updates)
        after = before._replace(agent=known.agent, bonus=known.bonus, k=known.k)
        after = renew_slots(run, update_probes(run, after, rolled.batch), rolled, key, k_fresh)
        return ReplayRunState(after, known.replay, state.k + 1), {**episode_metrics(rolled.ended), **metrics}  # type: ignore[arg-type]

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
