"""The learner of a control run: all seeds as lanes of one program, or a state a seed and the same programs in turn."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree, Shaped

from made.bonuses.replay_data import needs_new
from made.core import Spec, Transition
from made.training.backends import compiled_envs
from made.training.backends.control_programs import ControlPrograms
from made.training.control_config import ControlConfig
from made.training.off_policy import ReplayLearnerState
from made.training.sequence_learner import SequenceLearner

_JUDGED = 0x6A756467  # sets the keys of evaluations apart from those of training


class Leaves(NamedTuple):
    """A state as a plain list, as programs take it."""

    leaves: list[Array]


def cpu_device() -> Any:
    """The CPU device next to an accelerator. None if there is none, or if the CPU is the default device."""
    if jax.default_backend() == "cpu":
        return None
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return None


class DeviceMirror:
    """Copies of a list's arrays on another device, renewed when the arrays change."""

    def __init__(self, device: Any):
        self._device = device
        self._of: dict[int, Array] = {}
        self._copied: dict[int, Array] = {}

    def __call__(self, arrays: Sequence[Array], which: Sequence[int]) -> list[Any]:
        """Copies of the arrays with these indices, None for the others. No indices means all."""
        which = which or range(len(arrays))
        if list(which) != list(self._of) or any(arrays[i] is not x for i, x in self._of.items()):
            self._of = {i: arrays[i] for i in which}
            jax.block_until_ready(list(self._of.values()))  # releases the GIL, which copying may not
            self._copied = dict(zip(which, jax.device_put(list(self._of.values()), self._device), strict=True))
        return [self._copied.get(i) for i in range(len(arrays))]


class Exclusive:
    """Runs one call at a time over all threads, each until its result is ready.

    If the updates of all seeds run on the device together, they end together. Then all seeds act and the device is
    idle. One at a time, a seed acts while the next one learns.
    """

    def __init__(self):
        self._turn = threading.Lock()

    def __call__(self, call: Callable, *args: Any) -> Any:
        with self._turn:
            return jax.block_until_ready(call(*args))


class StepBuffer:
    """Steps of one seed, or of all as lanes, that are stored in the replay `many` at a time, in one call."""

    def __init__(self, many: int, axis: int):
        self.many, self._axis = many, axis
        self._steps: list[Transition] = []

    def add(self, step: Transition) -> None:
        """Add one step, leaves [1, N, ...], or [L, 1, N, ...] where the time axis is 1."""
        self._steps.append(step)

    def clear(self) -> None:
        """Drop all steps."""
        self._steps = []

    def stored(
        self, store: Callable[[list[Array], Transition], list[Array]], leaves: list[Array], all_steps: bool
    ) -> Any:
        """The leaves after full chunks are stored. With `all_steps` the remaining steps follow, one by one."""
        while len(self._steps) >= self.many:
            first, self._steps = self._steps[: self.many], self._steps[self.many :]
            leaves = store(leaves, jax.tree.map(lambda *x: np.concatenate(x, self._axis), *first))
        while all_steps and self._steps:
            leaves = store(leaves, self._steps.pop(0))
        return leaves


class ControlLearner:
    """Acts, stores, learns and adds up what is measured, for every seed.

    From states the seeds are lanes of one program; from pixels each has a state of its own, since convolutions with
    other weights in each lane are slow (`made.training.off_policy.programs`). An action takes two calls, `ask` and
    `learn`. `learn` stores, learns and adds up, and is not waited for until the next action. If many updates are due
    at once (`ControlConfig.due`), steps are stored many at a time and actions are chosen on the CPU. `at_phase` is best
    on a GPU; on a CPU one program of all kinds of updates takes less time to compile.
    """

    def __init__(self, run: ControlConfig, spec: Spec, seeds: Sequence[int], at_phase: bool | None = None):
        self.run, self.seeds, self.as_lanes = run, seeds, not run.task.pixels
        on_gpu = jax.default_backend() != "cpu"
        self.at_phase = run.agent.kinds > 1 and (on_gpu if at_phase is None else at_phase)
        self.one_by_one = run.task.pixels and not on_gpu  # see `_studied`
        self.learner = run.learner(spec)
        keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
        both = jax.vmap(jax.random.split)(keys)
        self._starts, self._acts = self._parts(both[:, 0]), self._parts(both[:, 1])
        self._judges = self._parts(jax.vmap(lambda key: jax.random.fold_in(key, _JUDGED))(keys))
        n = len(seeds) if self.as_lanes else None
        self.programs = ControlPrograms(run, self.learner, n, self.at_phase, self._starts[0])
        actor = cpu_device()
        self._waiting = [StepBuffer(self.run.at_once, int(self.as_lanes)) for _ in self._starts]
        self._copies: list[DeviceMirror] = []
        self._bursts = Exclusive()
        if self.run.at_once > 1 and actor is not None and not self.as_lanes:
            self._copies = [DeviceMirror(actor) for _ in self._starts]
            self._acts = jax.device_put(self._acts, actor)

    def _parts(self, x: Any) -> list[Any]:
        """What belongs to all seeds [L, ...], as one part or one a seed."""
        return [x] if self.as_lanes else [x[i] for i in range(len(self.seeds))]

    def like(self) -> tuple[ReplayLearnerState, ...]:
        """The shapes of the states."""
        return tuple(jax.eval_shape(self.programs.pure.start, key) for key in self._starts)

    def start(self) -> tuple[ReplayLearnerState, ...]:
        """Nothing seen yet."""
        return tuple(jax.tree.map(compiled_envs.strip_weak_type, self.programs.start(key)) for key in self._starts)

    def clear_waiting(self) -> None:
        """Drop the steps that an interrupted segment left waiting to be stored."""
        for one in self._waiting:
            one.clear()

    def carries(self, n: int) -> tuple[PyTree, ...]:
        """What is remembered in n environments of each seed where an episode begins."""
        if not isinstance(self.learner, SequenceLearner):
            return tuple(() for _ in self._starts)
        blank = self.learner.carries(n)
        if self.as_lanes:
            blank = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(self.seeds), *x.shape)), blank)
        return tuple(jax.tree.map(jnp.array, blank) for _ in self._starts)

    def ask(
        self,
        i: int,
        learner: ReplayLearnerState | Leaves,
        carry: PyTree,
        began: Bool[np.ndarray, " n"],
        obs: Shaped[np.ndarray, "n ..."],
        *when: int,
        explore: bool = True,
    ) -> tuple[PyTree, Array]:
        """(what is remembered then, actions) for what the environments of the i-th state show. Does not wait.

        `when` is the number of the action; for evaluations, which have keys of their own, also that of the step.
        """
        programs = self.programs
        act, keys = (programs.act, self._acts) if explore else (programs.best, self._judges)
        apart = lambda x: x.reshape(len(self.seeds), -1, *x.shape[1:]) if self.as_lanes else x  # noqa: E731
        fresh, agent = apart(began) if isinstance(self.learner, SequenceLearner) else (), self._agent(learner)
        if explore and self._copies:
            agent = self._copies[i](agent, act.touches.read)
        return programs.call(act, agent, carry, fresh, apart(obs), keys[i], *[np.int32(t) for t in when])

    def _agent(self, learner: ReplayLearnerState | Leaves) -> list[Array]:
        """The leaves of the agent, which come first in a state."""
        if isinstance(learner, Leaves):
            return learner.leaves[: self.programs.of_agent.num_leaves]
        return jax.tree.leaves(learner.agent)

    def learn(self, i: int, learners: list[Any], sums: list[Any], transitions: Transition, t: int) -> None:
        """Store the t-th step of the i-th state, and learn as often as is due then, maybe never.

        Does not wait, but for many updates at once where others could act meanwhile. It leaves the state as `Leaves`,
        which `row` puts together again.
        """
        step = jax.tree.map(lambda x: x[:, None, None] if self.as_lanes else x[:, None], transitions)  # of one stream
        leaves = learners[i].leaves if isinstance(learners[i], Leaves) else jax.tree.leaves(learners[i])
        leaves, sums[i] = self._taken(i, leaves, sums[i], step, t)
        learners[i] = Leaves(leaves)

    def _taken(
        self, i: int, leaves: list[Array], sums: Any, transitions: Transition, t: int
    ) -> tuple[list[Array], Any]:
        """The leaves and sums of the i-th state after this step."""
        programs, first, (updates, new) = self.programs, self.run.seed_steps, self.run.due(t)
        if updates:
            sums = programs.nothing(leaves, transitions) if sums is None else sums
        if updates == new == 1:
            return programs.update(t - first, leaves, sums, transitions, np.int32(t))
        self._waiting[i].add(transitions)
        leaves = self._stored(i, leaves, all_steps=bool(updates) or t == first)
        if updates:  # without parts that need them the new steps are not told, so that one program does for all
            leaves, sums = self._studied(leaves, sums, t, updates, new if needs_new(self.run.bonus) else 0)
        elif t == first:
            leaves = programs.call(programs.introduce, leaves, new_to_all(self.run))
        return leaves, sums

    def _studied(self, leaves: list[Array], sums: Any, t: int, updates: int, rows: int) -> tuple[list[Array], Any]:
        """Many updates: in one call, or from pixels on a CPU one a call, where convolutions within a loop are slow.

        On two cores an update on 40 pictures took 0.31 s in a loop and 0.04 s by itself.
        """
        programs = self.programs
        if self.one_by_one:
            for i in range(updates):
                leaves, sums = programs.call(programs.study_one, leaves, sums, np.int32(t), np.int32(i), updates, rows)
            return leaves, sums
        given = programs.study, leaves, sums, np.int32(t), updates, rows
        return self._bursts(programs.call, *given) if self._copies else programs.call(*given)

    def _stored(self, i: int, leaves: list[Array], all_steps: bool) -> list[Array]:
        """The leaves of the i-th state once steps that wait are in its replay: full chunks, or all of them."""
        programs, time = self.programs, int(self.as_lanes)

        def store(leaves: list[Array], steps: Transition) -> list[Array]:
            return programs.call(programs.store[steps.reward.shape[time]], leaves, steps)

        return self._waiting[i].stored(store, leaves, all_steps)

    def row(self, learners: list[Any], sums: list[Any], t: int) -> tuple[dict[str, Any], np.ndarray]:
        """What the updates of a row say of each seed, [L]: scalars, and where something was not finite."""
        for i, one in enumerate(learners):
            if isinstance(one, Leaves):
                learners[i] = self.programs.unflatten(self._stored(i, one.leaves, all_steps=True))
        if sums[0] is None:  # nothing was learnt yet
            return {}, np.full(len(self.seeds), compiled_envs.NO_FAILURE)
        rows = [self.programs.row(one, added, np.int32(t)) for one, added in zip(learners, sums, strict=True)]
        scalars, bad = jax.tree.map(lambda *x: np.stack(x).reshape(len(self.seeds)), *map(tuple, rows))
        if "bonus_strength" in scalars:  # episodes here are all of full length
            scalars["intrinsic_return"] = scalars["bonus_strength"]
        return scalars, bad


def to_numpy(actions: Array | np.ndarray) -> np.ndarray:
    """Actions [n, A] of all environments that were asked for, once they are there."""
    return np.asarray(actions).reshape(-1, actions.shape[-1])


def new_to_all(run: ControlConfig) -> int:
    """The first actions that the replay still holds when learning begins."""
    steps = getattr(run.replay, "steps", run.replay)
    return min(run.seed_steps, steps.room[0])
