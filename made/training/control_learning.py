"""The learner of a control run: all seeds as lanes of one program, or a state a seed and the same programs in turn."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from made import trees
from made.core import Metrics, Spec, Transition
from made.off_policy import LearnerState, programs
from made.training import devices, lanes
from made.training.control_run import ControlRun

Learners = Sequence[LearnerState]


class Learning:
    """Acts, stores, learns and adds up what is measured, for every seed.

    From states the seeds are lanes of one program; from pixels each has a state of its own, since convolutions with
    other weights in each lane are slow (`made.off_policy.programs`).
    """

    def __init__(self, run: ControlRun, spec: Spec, seeds: Sequence[int]):
        self.run, self.seeds, self.as_lanes = run, seeds, not run.task.pixels
        self.learner = run.learner(spec)
        self.calls = programs(self.learner, self.as_lanes, devices.options(1).get("xla_backend_optimization_level"))
        both = jax.vmap(lambda seed: jax.random.split(jax.random.key(seed)))(jnp.asarray(seeds, jnp.uint32))
        self._starts, self._acts = self._parts(both[:, 0]), self._parts(both[:, 1])
        many: Any = jax.vmap if self.as_lanes else lambda fn, _: fn
        quick: dict[str, Any] = devices.options(0)
        self._at = jax.jit(many(jax.random.fold_in, (0, None)), compiler_options=quick)
        self._added = jax.jit(many(lanes.added, (0, 0, None)), donate_argnums=0, compiler_options=quick)
        self._row = jax.jit(many(self._row_of, (0, 0, None)), compiler_options=quick)

    def _parts(self, x: Any) -> list[Any]:
        """What belongs to all seeds [L, ...], as one part or one a seed."""
        return [x] if self.as_lanes else [x[i] for i in range(len(self.seeds))]

    def like(self) -> tuple[LearnerState, ...]:
        """The shapes of the states."""
        return tuple(jax.eval_shape(self.calls.start, key) for key in self._starts)

    def start(self) -> tuple[LearnerState, ...]:
        """Nothing seen yet."""
        return tuple(jax.tree.map(lanes.strong, self.calls.start(key)) for key in self._starts)

    def act(self, learners: Learners, obs: Shaped[np.ndarray, "L*n ..."], t: int, explore: bool = True) -> np.ndarray:
        """Actions for what n environments of each seed show, those of the first seed first."""
        call = self.calls.act if explore else self.calls.best
        each = self._parts(obs.reshape(len(self.seeds), -1, *obs.shape[1:]))
        keys = [self._at(key, t) for key in self._acts]
        found = [call(one.agent, seen, key) for one, seen, key in zip(learners, each, keys, strict=True)]
        return np.concatenate([np.asarray(x).reshape(-1, x.shape[-1]) for x in found])

    def take(self, learners: list[LearnerState], sums: list[Any], came: Transition, t: int) -> None:
        """Store the t-th step, leaves [L, ...], and learn from it; at first they are only stored. Does not wait."""
        first = self.run.seed_steps
        shaped = jax.tree.map(lambda x: x[:, None, None], came)  # of each seed one step of one stream
        for i, each in enumerate(self._split(shaped)):
            if t <= first:
                learners[i] = self.calls.store(learners[i], each)
                if t == first:
                    learners[i] = self.calls.introduce(learners[i], min(first, self.run.replay.room[0]))
                continue
            learners[i], measured = self.calls.advance(learners[i], each)
            sums[i] = self._added(self._nothing(measured) if sums[i] is None else sums[i], measured, np.int32(t))

    def _split(self, came: Transition) -> list[Transition]:
        return [came] if self.as_lanes else [trees.index(came, i) for i in range(len(self.seeds))]

    def _nothing(self, measured: Metrics) -> lanes.Sums:
        shape = (len(self.seeds),) if self.as_lanes else ()
        zero = lambda x: jnp.array(jnp.broadcast_to(x, shape))  # noqa: E731, arrays of their own, to be donated
        return jax.tree.map(zero, lanes.nothing(measured))

    def _row_of(self, state: LearnerState, sums: lanes.Sums, t: Any) -> lanes.Row:
        return lanes.row_of(self.run, state._replace(k=t), sums)  # type: ignore[arg-type]

    def row(self, learners: Learners, sums: list[Any], t: int) -> tuple[dict[str, Any], np.ndarray]:
        """What the updates of a row say of each seed, [L]: scalars, and where something was not finite."""
        if sums[0] is None:  # nothing was learnt yet
            return {}, np.full(len(self.seeds), lanes.GOOD)
        rows = [self._row(one, added, np.int32(t)) for one, added in zip(learners, sums, strict=True)]
        scalars, bad = jax.tree.map(lambda *x: np.stack(x).reshape(len(self.seeds)), *map(tuple, rows))
        if "bonus_strength" in scalars:  # episodes here are all of full length
            scalars["intrinsic_return"] = scalars["bonus_strength"]
        return scalars, bad
