"""Learning from a replay as pure functions: store what came in, draw, learn, as one compiled call.

Algorithm 1 is the same as on-policy (`made.run.learn`): the bonus is updated, r_k = r + tau_k b is formed, the agent
plans on it. Only the batch differs: it is drawn from a replay, and paid by the bonus as it is now.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree

from made import trees
from made.bonuses.replayed import DRAWS, Replayed, window_of
from made.core import Agent, Bonus, Environment, Metrics, Spec, Transition
from made.replay import Drawn, Replay, ReplayState, assemble
from made.run import Run, learn
from made.schedules import Constant, Schedule


class Outside(Environment):
    """An environment that is stepped elsewhere, on the host: only what it looks like is known here."""

    spec: Spec = eqx.field(static=True)

    def reset(self, key):
        raise ValueError("This environment is stepped outside compiled code: reset it where it lives.")

    def step(self, state, action, key):
        raise ValueError("This environment is stepped outside compiled code: step it where it lives.")


class LearnerState(NamedTuple):
    """All that changes in learning. Its arrays are handed over (donated) at each call: keep the returned state."""

    agent: PyTree
    bonus: PyTree
    replay: ReplayState | None  # None where a `HostReplay` keeps the steps
    k: Int[Array, ""]  # updates done
    key: Key[Array, ""]


class Learner(eqx.Module):
    """An agent that learns from a replay, its bonus (made by `fed`), the temperature, and how much is drawn.

    learner = Learner(spec, RAD(), control_bonus("made", pixels=True), Constant(0.05), Replay(100_000, stack=3))
    """

    spec: Spec = eqx.field(static=True)
    agent: Agent
    bonus: Bonus
    tau: Schedule = Constant(1.0)
    replay: Replay = Replay()
    batch: int = eqx.field(static=True, default=512)

    def __check_init__(self):
        if self.batch < 1:
            raise ValueError(f"Learner draws batch >= 1 steps for an update, got batch={self.batch}.")

    def start(self, key: Key[Array, ""], on_host: bool = False) -> LearnerState:
        """Nothing seen yet. With `on_host` the replay is kept outside, and `improve` is handed what is drawn."""
        k_agent, k_bonus, k_next = jax.random.split(key, 3)
        replay = None if on_host else self.replay.init(self.spec)
        agent, bonus = self.agent.init(k_agent, self.spec), self.bonus.init(k_bonus, self.spec)
        return LearnerState(agent, bonus, replay, jnp.zeros((), jnp.int32), k_next)

    def store(self, state: LearnerState, came: Transition) -> LearnerState:
        """Keep what came in, leaves [T, N, ...], and learn nothing: the steps at random before learning begins."""
        replay, push = _on_device(state), self.replay.push
        if came.reward.shape[0] == 1:
            return state._replace(replay=push(replay, trees.index(came, 0)))
        return state._replace(replay=jax.lax.scan(lambda replay, step: (push(replay, step), None), replay, came)[0])

    def introduce(self, state: LearnerState, rows: int) -> LearnerState:
        """Show the bonus the last `rows` steps that were stored, as fresh ones: once, when learning begins."""
        key, k_draw, k_bonus = jax.random.split(state.key, 3)
        replay = _on_device(state)
        batch = self._with(self._draw(replay, k_draw), self.replay.latest(replay, rows))
        return state._replace(bonus=self.bonus.update(state.bonus, batch, k_bonus)[0], key=key)

    def advance(self, state: LearnerState, came: Transition, updates: int = 1) -> tuple[LearnerState, Metrics]:
        """Store what came in, leaves [T, N, ...], then learn `updates` times; the metrics are means.

        All T steps are stored first. Each update takes its share of them as fresh, so `updates` must divide T.
        """
        state = self.store(state, came)
        replay = _on_device(state)  # read alone from here on, so it stays out of what the loop carries

        def update(state: LearnerState, fresh: Transition) -> tuple[LearnerState, Metrics]:
            key, k_draw, k_learn = jax.random.split(state.key, 3)
            return self._learn(state._replace(key=key), self._draw(replay, k_draw), fresh, k_learn)

        state, metrics = _in_turn(update, state._replace(replay=None), came, updates)
        return state._replace(replay=replay), metrics

    def improve(
        self, state: LearnerState, drawn: tuple[Drawn, Drawn | None], fresh: Transition
    ) -> tuple[LearnerState, Metrics]:
        """One update from what a `HostReplay` drew: `batch` steps, and `DRAWS` recent ones where the bonus asks."""
        key, k_learn = jax.random.split(state.key)
        batch, recent = (part and assemble(part, self.replay.stack) for part in drawn)
        return self._learn(state._replace(key=key), (batch, recent), fresh, k_learn)  # type: ignore[arg-type]

    def _draw(self, replay: ReplayState, key: Key[Array, ""]) -> tuple[Transition, Transition | None]:
        """(a batch of the whole replay, recent steps where the bonus learns from them)."""
        k_batch, k_recent = jax.random.split(key)
        batch, window = self.replay.sample(replay, self.batch, k_batch), window_of(self.bonus)
        return batch, None if window is None else self.replay.sample(replay, DRAWS, k_recent, window)

    def _with(self, drawn: tuple[Transition, Transition | None], fresh: Transition) -> Transition:
        batch, recent = (part and jax.tree.map(lambda x: x[None], part) for part in drawn)  # [1, B], as a rollout's
        return batch._replace(extras=Replayed(fresh, batch if recent is None else recent))  # type: ignore[union-attr]

    def _learn(
        self, state: LearnerState, drawn: tuple[Transition, Transition | None], fresh: Transition, key: Key[Array, ""]
    ) -> tuple[LearnerState, Metrics]:
        run = Run(Outside(self.spec), self.agent, self.bonus, self.tau)
        agent, bonus, metrics = learn(run, state.agent, state.bonus, self._with(drawn, fresh), state.k + 1, key)
        return state._replace(agent=agent, bonus=bonus, k=state.k + 1), metrics

    def act(self, agent: PyTree, obs: PyTree, key: Key[Array, ""], explore: bool = True) -> Array:
        """Actions for observations [N, ...]."""
        n = jax.tree.leaves(obs)[0].shape[0]
        act = lambda obs, key: self.agent.act(agent, (), obs, (), key, explore=explore)[1]  # noqa: E731
        return jax.vmap(act)(obs, jax.random.split(key, n))


def _on_device(state: LearnerState) -> ReplayState:
    if state.replay is None:
        raise ValueError("This learner's replay is on the host: push into the HostReplay, then call `improve`.")
    return state.replay


def _in_turn(update: Callable, state: Any, came: Transition, updates: int) -> tuple[Any, Metrics]:
    """That many updates, each with its share of what came in."""
    rows = came.reward.shape[0]
    if updates < 1 or rows % updates:
        raise ValueError(
            f"{rows} new steps cannot be shared out over {updates} updates: take a number of updates that divides the "
            "number of steps."
        )
    if updates == 1:
        return update(state, came)
    shares = jax.tree.map(lambda x: x.reshape(updates, rows // updates, *x.shape[1:]), came)
    state, metrics = jax.lax.scan(update, state, shares)
    return state, jax.tree.map(lambda x: jnp.nanmean(x, 0), metrics)


class Programs(NamedTuple):
    """The compiled calls of a learner. Whatever takes a state takes it over: its arrays are used again."""

    start: Callable  # (key) -> state
    store: Callable  # (state, came) -> state
    introduce: Callable  # (state, rows) -> state
    advance: Callable  # (state, came, updates) -> state, metrics
    act: Callable  # (agent state, obs, key) -> actions
    best: Callable  # the same without exploration


def programs(learner: Learner, lanes: bool = False, level: int | None = None) -> Programs:
    """The calls of one seed, or of many as lanes of one program, all leaves with one more axis in front.

    Lanes suit vectors. Convolutions with other weights in each lane become grouped ones, which are slow: with pixels
    let each seed have a state of its own and call the same programs in turn. `level` is how hard the compiler tries.
    """
    many = jax.vmap if lanes else lambda fn: fn
    options: dict[str, Any] = {} if level is None else {"xla_backend_optimization_level": level}
    compiled = functools.partial(jax.jit, compiler_options=options or None)

    def introduce(state, rows):
        return many(lambda state: learner.introduce(state, rows))(state)

    def advance(state, came, updates=1):
        return many(lambda state, came: learner.advance(state, came, updates))(state, came)

    return Programs(
        compiled(many(learner.start)),
        compiled(many(learner.store), donate_argnums=0),
        compiled(introduce, static_argnums=1, donate_argnums=0),
        compiled(advance, static_argnums=2, donate_argnums=0),
        compiled(many(learner.act)),
        compiled(many(lambda agent, obs, key: learner.act(agent, obs, key, explore=False))),
    )
