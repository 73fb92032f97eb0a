"""The learner of a control run: all seeds as lanes of one program, or a state a seed and the same programs in turn.

Replay buffers that do not fit on the device stay on the host (`made.training.backends.host_replay`). Each update then
gets the batch that was sampled there.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree, Shaped

from made.bonuses.replay_data import needs_new
from made.core import Spec, Transition
from made.training.backends import compiled_envs
from made.training.backends.control_programs import ControlPrograms
from made.training.backends.host_replay import DeviceMirror, Exclusive, HostReplay, StepBuffer, cpu_device
from made.training.control_config import ControlConfig
from made.training.off_policy import ReplayLearnerState
from made.training.sequence_learner import SequenceLearner

_JUDGED = 0x6A756467  # sets the keys of evaluations apart from those of training


class Leaves(NamedTuple):
    """A state as a plain list, as programs take it."""

    leaves: list[Array]


class ControlLearner:
    """Acts, stores, learns and adds up what is measured, for every seed.

    From states the seeds are lanes of one program; from pixels each has a state of its own, since convolutions with
    other weights in each lane are slow (`made.training.off_policy`). An action takes two calls: `ask`, and `learn`,
    which stores the step, updates, and accumulates metrics without blocking. Where many updates follow one action
    (`ControlConfig.due`), steps are stored together, and actions are computed on the CPU
    (`made.training.backends.host_replay`). `timed` is best on a GPU; on a CPU one program for all kinds of updates
    compiles faster. With `on_host` the replay buffers are NumPy arrays, apart from the states between `opened` and
    `closed`.
    """

    def __init__(
        self, run: ControlConfig, spec: Spec, seeds: Sequence[int], at_phase: bool | None = None, on_host: bool = False
    ):
        self.run, self.seeds, self.as_lanes, self.on_host = run, seeds, not run.task.pixels, on_host
        on_gpu = jax.default_backend() != "cpu"
        self.at_phase = run.agent.kinds > 1 and (on_gpu if at_phase is None else at_phase)
        self.one_by_one = run.task.pixels and not on_gpu  # see `_studied`
        self.learner = run.learner(spec)
        keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
        both = jax.vmap(jax.random.split)(keys)
        self._starts, self._acts = self._parts(both[:, 0]), self._parts(both[:, 1])
        self._judges = self._parts(jax.vmap(lambda key: jax.random.fold_in(key, _JUDGED))(keys))
        self._shelves = [HostReplay(self.learner, part, self.as_lanes) for part in self._seeds()] if on_host else []
        n = len(seeds) if self.as_lanes else None
        self.programs = ControlPrograms(run, self.learner, n, self.at_phase, on_host, self._starts[0])
        self._keep_on_host()

    def _keep_on_host(self) -> None:
        """What is kept on the host where updates come many at once."""
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

    def _seeds(self) -> list[Sequence[int]]:
        return [self.seeds] if self.as_lanes else [[seed] for seed in self.seeds]

    def like(self) -> tuple[ReplayLearnerState, ...]:
        """The shapes of the states; replays on the host as arrays that take no room."""
        states = tuple(jax.eval_shape(self.programs.pure.start, key) for key in self._starts)
        if not self.on_host:
            return states
        no_room = lambda shape, dtype: np.broadcast_to(np.zeros((), dtype), shape)  # noqa: E731
        return tuple(one._replace(replay=x.blank(no_room)) for x, one in zip(self._shelves, states, strict=True))

    def start(self) -> tuple[ReplayLearnerState, ...]:
        """Nothing seen yet."""
        states = tuple(jax.tree.map(compiled_envs.strip_weak_type, self.programs.start(key)) for key in self._starts)
        if not self.on_host:
            return states
        return tuple(one._replace(replay=x.blank()) for x, one in zip(self._shelves, states, strict=True))

    def placed(self, learners: Sequence[ReplayLearnerState]) -> tuple[ReplayLearnerState, ...]:
        """On the device, all but replays that are kept on the host."""
        if not self.on_host:
            return jax.device_put(tuple(learners))
        return tuple(jax.device_put(_apart(one))._replace(replay=one.replay) for one in learners)

    def opened(self, learners: Sequence[ReplayLearnerState]) -> list[Any]:
        """The states for `learn`, and nothing waits to be stored in them; replays on the host are put on shelves.

        Those are changed in place. So one array of a state that was opened is deleted: nobody can save it or go on from
        it, as with a state whose arrays were donated.
        """
        for one in self._waiting:
            one.forget()  # what a stretch that was interrupted left
        if not self.on_host:
            return list(learners)
        opened = []
        for shelf, one in zip(self._shelves, learners, strict=True):
            shelf.open(one.replay)
            opened.append(_apart(one)._replace(k=jnp.copy(one.k)))
            one.k.delete()
        return opened

    def closed(self, learners: Sequence[ReplayLearnerState]) -> tuple[ReplayLearnerState, ...]:
        """The states after `row`, whole again."""
        if not self.on_host:
            return tuple(learners)
        return tuple(one._replace(replay=x.held) for x, one in zip(self._shelves, learners, strict=True))

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
        take = self._taken_on_host if self.on_host else self._taken
        step = jax.tree.map(lambda x: x[:, None, None] if self.as_lanes else x[:, None], transitions)  # of one stream
        leaves = learners[i].leaves if isinstance(learners[i], Leaves) else jax.tree.leaves(learners[i])
        leaves, sums[i] = take(i, leaves, sums[i], step, t)
        learners[i] = Leaves(leaves)
        if self.on_host and self.run.due(t + 1)[0]:
            self._shelves[i].look_ahead(t + 1)  # while the device is busy

    def _taken(
        self, i: int, leaves: list[Array], sums: Any, transitions: Transition, t: int
    ) -> tuple[list[Array], Any]:
        """A step of the i-th state, whose replay is on the device."""
        programs, first, (updates, new) = self.programs, self.run.seed_steps, self.run.due(t)
        if updates:
            sums = programs.nothing(leaves, transitions) if sums is None else sums
        if updates == new == 1:
            return programs.update(t - first, leaves, sums, (transitions,), np.int32(t))
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
        """The leaves of the i-th state once steps that wait are in its replay: whole stretches, or all of them."""
        programs, time = self.programs, int(self.as_lanes)

        def store(leaves: list[Array], steps: Transition) -> list[Array]:
            return programs.call(programs.store[steps.reward.shape[time]], leaves, steps)

        return self._waiting[i].stored(store, leaves, all_steps)

    def _taken_on_host(
        self, i: int, leaves: list[Array], sums: Any, transitions: Transition, t: int
    ) -> tuple[list[Array], Any]:
        """The same where it is on the host: an update is handed what was drawn before its step came in."""
        shelf, programs, first = self._shelves[i], self.programs, self.run.seed_steps
        if not self.run.due(t)[0]:
            shelf.push(transitions)
            shown = shelf.shown(t, new_to_all(self.run)) if t == first else None
            return (leaves if shown is None else programs.call(programs.meet, leaves, *shown)), sums
        given = shelf.drawn(t), transitions, shelf.push(transitions)
        sums = programs.nothing(leaves, *given) if sums is None else sums
        return programs.update(t - first, leaves, sums, given, np.int32(t))

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


def _apart(state: ReplayLearnerState) -> ReplayLearnerState:
    return state._replace(replay=None)


def new_to_all(run: ControlConfig) -> int:
    """The first actions that the replay still holds when learning begins."""
    steps = getattr(run.replay, "steps", run.replay)
    return min(run.seed_steps, steps.room[0])
