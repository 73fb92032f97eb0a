"""The learner of a control run: all seeds as lanes of one program, or a state a seed and the same programs in turn."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from made import trees
from made.core import Spec, Transition
from made.off_policy import LearnerState, functions
from made.training import devices, lanes
from made.training.control_run import ControlRun


class Leaves(NamedTuple):
    """A state as a plain list. To take the tree of one apart and put it together at each call would take longer than
    all else that is done between two updates.
    """

    leaves: list[Array]


Learners = Sequence[LearnerState | Leaves]


class Learning:
    """Acts, stores, learns and adds up what is measured, for every seed.

    From states the seeds are lanes of one program; from pixels each has a state of its own, since convolutions with
    other weights in each lane are slow (`made.off_policy.programs`). An action takes two calls: `act`, and one that
    stores, learns and adds up, which nobody waits for until the next action.
    """

    def __init__(self, run: ControlRun, spec: Spec, seeds: Sequence[int]):
        self.run, self.seeds, self.as_lanes = run, seeds, not run.task.pixels
        self.learner = run.learner(spec)
        self.pure = functions(self.learner, self.as_lanes)
        both = jax.vmap(lambda seed: jax.random.split(jax.random.key(seed)))(jnp.asarray(seeds, jnp.uint32))
        self._starts, self._acts = self._parts(both[:, 0]), self._parts(both[:, 1])
        shape = jax.eval_shape(self.pure.start, self._starts[0])
        self._tree, self._of_agent = jax.tree.structure(shape), jax.tree.structure(shape.agent)
        self._many: Any = jax.vmap if self.as_lanes else lambda fn, _: fn
        compiled = functools.partial(jax.jit, compiler_options=devices.options(1))
        self._measured: tuple[str, ...] | None = None  # the names of what an update measures, once it was traced
        self._start = compiled(self.pure.start)
        self._act, self._best = (compiled(self._acting(call)) for call in (self.pure.act, self.pure.best))
        self._store = compiled(self._on_leaves(self.pure.store), donate_argnums=0)
        self._introduce = compiled(self._on_leaves(self.pure.introduce), static_argnums=1, donate_argnums=0)
        self._learn = compiled(self._learning, donate_argnums=(0, 1))
        self._row = jax.jit(self._many(self._row_of, (0, 0, None)), compiler_options=devices.options(0))

    def _parts(self, x: Any) -> list[Any]:
        """What belongs to all seeds [L, ...], as one part or one a seed."""
        return [x] if self.as_lanes else [x[i] for i in range(len(self.seeds))]

    def _acting(self, call: Any) -> Any:
        """An action of an agent that comes as leaves, from the key of its seed and the number of the action."""

        def act(leaves: list[Array], obs: Array, key: Array, t: Array) -> Array:
            at = self._many(jax.random.fold_in, (0, None))(key, t)
            return call(jax.tree.unflatten(self._of_agent, leaves), obs, at)

        return act

    def _on_leaves(self, call: Any) -> Any:
        return lambda leaves, *more: jax.tree.leaves(call(jax.tree.unflatten(self._tree, leaves), *more))

    def _learning(self, leaves: list[Array], sums: lanes.Sums, came: Transition, t: Array) -> tuple[Any, lanes.Sums]:
        state, measured = self.pure.advance(jax.tree.unflatten(self._tree, leaves), came)
        return jax.tree.leaves(state), self._many(lanes.added, (0, 0, None))(sums, measured, t)

    def like(self) -> tuple[LearnerState, ...]:
        """The shapes of the states."""
        return tuple(jax.eval_shape(self.pure.start, key) for key in self._starts)

    def start(self) -> tuple[LearnerState, ...]:
        """Nothing seen yet."""
        return tuple(jax.tree.map(lanes.strong, self._start(key)) for key in self._starts)

    def act(self, learners: Learners, obs: Shaped[np.ndarray, "L*n ..."], t: int, explore: bool = True) -> np.ndarray:
        """Actions for what n environments of each seed show, those of the first seed first."""
        call, now = self._act if explore else self._best, np.int32(t)
        each = self._parts(obs.reshape(len(self.seeds), -1, *obs.shape[1:]))
        agents = [self._agent(one) for one in learners]
        found = [call(agent, seen, key, now) for agent, seen, key in zip(agents, each, self._acts, strict=True)]
        return np.concatenate([np.asarray(x).reshape(-1, x.shape[-1]) for x in found])

    def _agent(self, learner: LearnerState | Leaves) -> list[Array]:
        """The leaves of the agent, which come first in a state."""
        if isinstance(learner, Leaves):
            return learner.leaves[: self._of_agent.num_leaves]
        return jax.tree.leaves(learner.agent)

    def take(self, learners: list[Any], sums: list[Any], came: Transition, t: int) -> None:
        """Store the t-th step, leaves [L, ...], and learn from it; at first they are only stored. Does not wait.

        It leaves the states as `Leaves`, which `row` puts together again.
        """
        first = self.run.seed_steps
        shaped = jax.tree.map(lambda x: x[:, None, None], came)  # of each seed one step of one stream
        for i, each in enumerate(self._split(shaped)):
            leaves = learners[i].leaves if isinstance(learners[i], Leaves) else jax.tree.leaves(learners[i])
            if t > first:
                sums[i] = self._nothing(leaves, each) if sums[i] is None else sums[i]
                leaves, sums[i] = self._learn(leaves, sums[i], each, np.int32(t))
            else:
                leaves = self._store(leaves, each)
            if t == first:
                leaves = self._introduce(leaves, min(first, self.run.replay.room[0]))
            learners[i] = Leaves(leaves)

    def _split(self, came: Transition) -> list[Transition]:
        return [came] if self.as_lanes else [trees.index(came, i) for i in range(len(self.seeds))]

    def _nothing(self, leaves: list[Array], came: Transition) -> lanes.Sums:
        """Sums of zero, in arrays of their own, to be donated."""
        if self._measured is None:
            state = jax.tree.unflatten(self._tree, leaves)
            self._measured = tuple(jax.eval_shape(self.pure.advance, state, came)[1])
        shape = (len(self.seeds),) if self.as_lanes else ()
        return jax.tree.map(lambda x: jnp.array(jnp.broadcast_to(x, shape)), lanes.nothing(self._measured))

    def _row_of(self, state: LearnerState, sums: lanes.Sums, t: Any) -> lanes.Row:
        return lanes.row_of(self.run, state._replace(k=t), sums)  # type: ignore[arg-type]

    def row(self, learners: list[Any], sums: list[Any], t: int) -> tuple[dict[str, Any], np.ndarray]:
        """What the updates of a row say of each seed, [L]: scalars, and where something was not finite."""
        for i, one in enumerate(learners):
            learners[i] = jax.tree.unflatten(self._tree, one.leaves) if isinstance(one, Leaves) else one
        if sums[0] is None:  # nothing was learnt yet
            return {}, np.full(len(self.seeds), lanes.GOOD)
        rows = [self._row(one, added, np.int32(t)) for one, added in zip(learners, sums, strict=True)]
        scalars, bad = jax.tree.map(lambda *x: np.stack(x).reshape(len(self.seeds)), *map(tuple, rows))
        if "bonus_strength" in scalars:  # episodes here are all of full length
            scalars["intrinsic_return"] = scalars["bonus_strength"]
        return scalars, bad
