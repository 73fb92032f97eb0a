"""Learning from a replay buffer as pure functions: store new transitions, sample, learn, in one compiled call.

Algorithm 1 is the same as on-policy (`made.training.on_policy.learn`): update the bonus, form r_k = r + tau_k b, update
the agent. Only the batch differs: it is sampled from the buffer, and its bonus is computed by the current bonus.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree

from made.bonuses.replay_data import DRAWS, LastFrame, recent_window, under_replay, with_feature_cache
from made.core import Agent, Bonus, Environment, Metrics, ReplayContext, Spec, Transition, trees
from made.core.schedules import Constant, Schedule
from made.training.on_policy import RunConfig, learn
from made.training.replay import ReplayBuffer, ReplayBufferState, stack_frames

# A batch, recent steps, where those of the batch stand.
Draws = tuple[Transition, Transition | None, Array | None]
Fresh = tuple[Transition, Array | None]  # steps that came in, and where they stand


class ExternalEnv(Environment):
    """An environment that is stepped elsewhere, on the host: only what it looks like is known here."""

    spec: Spec = eqx.field(static=True)

    def reset(self, key):
        raise ValueError("This environment is stepped outside compiled code: reset it where it lives.")

    def step(self, state, action, key):
        raise ValueError("This environment is stepped outside compiled code: step it where it lives.")


class ReplayLearnerState(NamedTuple):
    """All that changes in learning. Its arrays are handed over (donated) at each call: keep the returned state."""

    agent: PyTree
    bonus: PyTree
    replay: ReplayBufferState
    k: Int[Array, ""]  # updates done
    key: Key[Array, ""]


class ReplayLearner(eqx.Module):
    """An agent that learns from a replay, its bonus, the bonus coefficient, and how much is drawn.

    bonus = make_bonus("made", "off_policy", pixels=True)
    learner = Learner(spec, RAD(), bonus, Constant(0.05), Replay(100_000, stack=3))
    """

    spec: Spec = eqx.field(static=True)
    agent: Agent
    bonus: Bonus
    bonus_coef: Schedule = Constant(1.0)
    replay: ReplayBuffer = ReplayBuffer()
    batch: int = eqx.field(static=True, default=512)

    def __check_init__(self):
        if self.batch < 1:
            raise ValueError(f"ReplayLearner draws batch >= 1 steps for an update, got batch={self.batch}.")

    @property
    def kinds(self) -> list["ReplayLearner"]:
        """The same learner for each kind of update in turn; the k-th update, from 1 on, is of kind k % len(kinds)."""
        return [dataclasses.replace(self, agent=self.agent.at_phase(k)) for k in range(self.agent.kinds)]

    def start(self, key: Key[Array, ""]) -> ReplayLearnerState:
        """Nothing seen yet."""
        return self.start_without_replay(key)._replace(replay=self.replay.init(self.spec))

    def start_without_replay(self, key: Key[Array, ""]) -> ReplayLearnerState:
        """The same with None as the replay, to measure the rest."""
        k_agent, k_bonus, k_next = jax.random.split(key, 3)
        agent, bonus = self.agent.init(k_agent, self.spec), self._paying.init(k_bonus, self.spec)
        return ReplayLearnerState(agent, bonus, None, jnp.zeros((), jnp.int32), k_next)  # type: ignore[arg-type]

    @property
    def _paying(self) -> Bonus:
        """The bonus, with what it can keep beside the replay rather than make anew from what is drawn."""
        bonus = under_replay(self.bonus)
        return with_feature_cache(bonus, self.replay.room[0]) if self.replay.streams == 1 else bonus

    def store(self, state: ReplayLearnerState, transitions: Transition) -> ReplayLearnerState:
        """Keep what came in, leaves [T, N, ...], and learn nothing: the steps at random before learning begins."""
        replay, push = state.replay, self.replay.push
        if transitions.reward.shape[0] == 1:
            return state._replace(replay=push(replay, trees.index(transitions, 0)))
        return state._replace(
            replay=jax.lax.scan(lambda replay, step: (push(replay, step), None), replay, transitions)[0]
        )

    def introduce(self, state: ReplayLearnerState, rows: int) -> ReplayLearnerState:
        """Show the bonus the last `rows` steps that were stored, as fresh ones: once, when learning begins.

        These should be all that are held, lest the bonus be asked for the pay of steps that it was never shown.
        """
        key, k_draw, k_bonus = jax.random.split(state.key, 3)
        replay = state.replay
        fresh = self.replay.latest(replay, rows), self._places(replay, rows)
        batch = self._with(self._draw(replay, k_draw), fresh)
        return state._replace(bonus=self._paying.update(state.bonus, batch, k_bonus)[0], key=key)

    def advance(
        self, state: ReplayLearnerState, transitions: Transition, updates: int = 1
    ) -> tuple[ReplayLearnerState, Metrics]:
        """Store what came in, leaves [T, N, ...], then learn `updates` times; the metrics are means.

        All T steps are stored first. Each update takes its share of them as fresh, so `updates` must divide T.
        """
        state = self.store(state, transitions)
        replay = state.replay  # read alone from here on, so it stays out of what the loop carries

        def update(state: ReplayLearnerState, fresh: Fresh) -> tuple[ReplayLearnerState, Metrics]:
            key, k_draw, k_learn = jax.random.split(state.key, 3)
            return self._learn(state._replace(key=key), self._draw(replay, k_draw), fresh, k_learn)

        fresh = transitions, self._places(replay, transitions.reward.shape[0])
        state, metrics = _in_turn(update, state._replace(replay=None), fresh, updates)
        return state._replace(replay=replay), metrics

    def _draw(self, replay: ReplayBufferState, key: Key[Array, ""]) -> Draws:
        """A batch of the whole replay, and recent steps where the bonus learns from them: one frame each suffices it
        where it looks at the last one alone.
        """
        k_batch, k_recent = jax.random.split(key)
        places, window, recent = self.replay.draw(replay, self.batch, k_batch), recent_window(self.bonus), None
        batch = stack_frames(self.replay.read(replay, *places), self.replay.stack)
        if window is not None:
            recent = self.replay.draw(replay, DRAWS, k_recent, window)
            recent = stack_frames(self.replay.read(replay, *recent, self._looks_back), self._looks_back)
        return batch, recent, places[1] % self.replay.room[0]

    @property
    def _looks_back(self) -> int:
        """Frames of an observation that the bonus looks at."""
        return 1 if isinstance(self.bonus, LastFrame) else self.replay.stack

    def _places(self, replay: ReplayBufferState, rows: int) -> Int[Array, "rows N"]:
        """Where the last `rows` steps of each stream stand."""
        number = replay.taken - rows + jnp.arange(rows, dtype=jnp.int32)
        return jnp.broadcast_to(number[:, None] % self.replay.room[0], (rows, self.replay.streams))

    def _with(self, drawn: Draws, fresh: Fresh) -> Transition:
        batch, recent, at = jax.tree.map(lambda x: x[None], drawn)  # [1, B], as a rollout's
        return batch._replace(extras=ReplayContext(fresh[0], batch if recent is None else recent, at, fresh[1]))

    def _learn(
        self, state: ReplayLearnerState, drawn: Draws, fresh: Fresh, key: Key[Array, ""]
    ) -> tuple[ReplayLearnerState, Metrics]:
        run = RunConfig(ExternalEnv(self.spec), self.agent, self._paying, self.bonus_coef)
        agent, bonus, metrics = learn(run, state.agent, state.bonus, self._with(drawn, fresh), state.k + 1, key)
        return state._replace(agent=agent, bonus=bonus, k=state.k + 1), metrics

    def act(self, agent: PyTree, obs: PyTree, key: Key[Array, ""], explore: bool = True) -> Array:
        """Actions for observations [N, ...]."""
        n = jax.tree.leaves(obs)[0].shape[0]
        act = lambda obs, key: self.agent.act(agent, (), obs, (), key, explore=explore)[1]  # noqa: E731
        return jax.vmap(act)(obs, jax.random.split(key, n))


def _in_turn(update: Callable, state: Any, transitions: Fresh, updates: int) -> tuple[Any, Metrics]:
    """That many updates, each with its share of what came in."""
    rows = transitions[0].reward.shape[0]
    if updates < 1 or rows % updates:
        raise ValueError(
            f"{rows} new steps cannot be shared out over {updates} updates: take a number of updates that divides the "
            "number of steps."
        )
    if updates == 1:
        return update(state, transitions)
    shares = jax.tree.map(lambda x: x.reshape(updates, rows // updates, *x.shape[1:]), transitions)
    state, metrics = jax.lax.scan(update, state, shares)
    return state, jax.tree.map(lambda x: jnp.nanmean(x, 0), metrics)


class CompiledLearner(NamedTuple):
    """The compiled calls of a learner. Whatever takes a state takes it over: its arrays are used again."""

    start: Callable  # (key) -> state
    store: Callable  # (state, came) -> state
    introduce: Callable  # (state, rows) -> state
    advance: Callable  # (state, came, updates) -> state, metrics
    act: Callable  # (agent state, obs, key) -> actions
    best: Callable  # the same without exploration


def programs(learner: ReplayLearner, lanes: bool = False, level: int | None = None) -> CompiledLearner:
    """The calls of one seed, or of many as lanes of one program, all leaves with one more axis in front.

    Lanes suit vectors. Convolutions with other weights in each lane become grouped ones, which are slow: with pixels
    let each seed have a state of its own and call the same programs in turn. `level` is how hard the compiler tries.
    """
    options: dict[str, Any] = {} if level is None else {"xla_backend_optimization_level": level}
    compiled, pure = functools.partial(jax.jit, compiler_options=options or None), functions(learner, lanes)
    return CompiledLearner(
        compiled(pure.start),
        compiled(pure.store, donate_argnums=0),
        compiled(pure.introduce, static_argnums=1, donate_argnums=0),
        compiled(pure.advance, static_argnums=2, donate_argnums=0),
        compiled(pure.act),
        compiled(pure.best),
    )


def functions(learner: ReplayLearner, lanes: bool = False) -> CompiledLearner:
    """The same calls, not compiled: for whoever compiles something around them."""
    many = jax.vmap if lanes else lambda fn: fn

    def introduce(state, rows):
        return many(lambda state: learner.introduce(state, rows))(state)

    def advance(state, transitions, updates=1):
        return many(lambda state, transitions: learner.advance(state, transitions, updates))(state, transitions)

    def best(agent, obs, key):
        return learner.act(agent, obs, key, explore=False)

    return CompiledLearner(many(learner.start), many(learner.store), introduce, advance, many(learner.act), many(best))
