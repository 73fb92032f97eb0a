"""The learner of a control run: all seeds as lanes of one program, or a state a seed and the same programs in turn.

Where the replays do not fit on the device they stay on the host (`made.training.shelf`), and each update is handed
what is drawn there.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree, Shaped

from made.core import Spec, Transition
from made.dreaming import SequenceLearner, takes_fresh
from made.off_policy import Learner, LearnerState, functions
from made.training import devices, lanes
from made.training.control_run import ControlRun
from made.training.shelf import Shelf

_JUDGED = 0x6A756467  # sets the keys of evaluations apart from those of training


class Leaves(NamedTuple):
    """A state as a plain list. To take the tree of one apart and put it together at each call would take longer than
    all else that is done between two updates.
    """

    leaves: list[Array]


Learners = Sequence[LearnerState | Leaves]
Carries = Sequence[PyTree]  # what agents remember of their episodes; () where they remember nothing


class Learning:
    """Acts, stores, learns and adds up what is measured, for every seed.

    From states the seeds are lanes of one program; from pixels each has a state of its own, since convolutions with
    other weights in each lane are slow (`made.off_policy.programs`). An action takes two calls: `ask`, and one that
    stores, learns and adds up, which nobody waits for until the next action. Where updates come many at a time
    (`ControlRun.due`), steps are only stored in between. `timed` has a program for each kind of update that an agent
    makes in turn (`Agent.timed`), as is best on a GPU; on a CPU one program takes less time to compile. With `on_host`
    the replays of the states are in NumPy: between `opened` and `closed` they stand apart, on shelves.
    """

    def __init__(
        self, run: ControlRun, spec: Spec, seeds: Sequence[int], timed: bool | None = None, on_host: bool = False
    ):
        self.run, self.seeds, self.as_lanes, self.on_host = run, seeds, not run.task.pixels, on_host
        on_gpu = jax.default_backend() != "cpu"
        self.timed = run.agent.kinds > 1 and (on_gpu if timed is None else timed)
        self.learner = run.learner(spec)
        self.pure = functions(self.learner, self.as_lanes, on_host)
        keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
        both = jax.vmap(jax.random.split)(keys)
        self._starts, self._acts = self._parts(both[:, 0]), self._parts(both[:, 1])
        self._judges = self._parts(jax.vmap(lambda key: jax.random.fold_in(key, _JUDGED))(keys))
        shape = jax.eval_shape(self.pure.start, self._starts[0])
        self._shelves = [Shelf(self.learner, part, self.as_lanes) for part in self._seeds()] if on_host else []
        self._update = self.pure.improve if on_host else self.pure.advance
        self._tree, self._of_agent = jax.tree.structure(shape), jax.tree.structure(shape.agent)
        self._many: Any = jax.vmap if self.as_lanes else lambda fn, _: fn
        compiled = functools.partial(jax.jit, compiler_options=devices.options(1))
        self._kinds: list[Callable] = []  # a program for each kind of update, where they have their own
        self._compiling, self._ready = threading.Lock(), set()  # seeds may be in threads of their own
        self._measured: tuple[str, ...] | None = None  # the names of what an update measures, once it was traced
        self._start = compiled(self.pure.start)
        self._act, self._best = (compiled(self._acting(explore)) for explore in (True, False))
        self._store = compiled(self._on_leaves(self.pure.store), donate_argnums=0)
        self._introduce = compiled(self._on_leaves(self.pure.introduce), static_argnums=1, donate_argnums=0)
        self._meet = compiled(self._on_leaves(self.pure.meet), donate_argnums=0)
        self._learn = compiled(self._learning, static_argnums=4, donate_argnums=(0, 1))
        self._study = compiled(self._studying, static_argnums=(3, 4), donate_argnums=(0, 1))
        self._row = jax.jit(self._many(self._row_of, (0, 0, None)), compiler_options=devices.options(0))

    def _parts(self, x: Any) -> list[Any]:
        """What belongs to all seeds [L, ...], as one part or one a seed."""
        return [x] if self.as_lanes else [x[i] for i in range(len(self.seeds))]

    def _seeds(self) -> list[Sequence[int]]:
        return [self.seeds] if self.as_lanes else [[seed] for seed in self.seeds]

    def _acting(self, explore: bool) -> Callable:
        """An action of an agent that comes as leaves, from the key of its seed and the number of the action."""
        decide = deciding(self.learner, explore)

        def act(leaves: list[Array], carry: PyTree, began: Any, obs: Array, key: Array, *when: Array) -> Any:
            for number in when:
                key = self._many(jax.random.fold_in, (0, None))(key, number)
            return self._many(decide, 0)(jax.tree.unflatten(self._of_agent, leaves), carry, began, obs, key)

        return act

    def _on_leaves(self, call: Any) -> Any:
        return lambda leaves, *more: jax.tree.leaves(call(jax.tree.unflatten(self._tree, leaves), *more))

    def _learning(
        self, leaves: list[Array], sums: lanes.Sums, given: tuple, t: Array, kind: int | None
    ) -> tuple[Any, lanes.Sums]:
        update = self._update
        if kind is not None:
            pure = functions(self.learner.kinds[kind], self.as_lanes)
            update = pure.improve if self.on_host else pure.advance
        state, measured = update(jax.tree.unflatten(self._tree, leaves), *given)
        return jax.tree.leaves(state), self._many(lanes.added, (0, 0, None))(sums, measured, t)

    def _studying(self, leaves: list[Array], sums: lanes.Sums, t: Array, updates: int, rows: int) -> tuple[Any, Any]:
        study = self._many(lambda state: self.learner.study(state, updates, rows), 0)  # type: ignore[attr-defined]
        state, measured = study(jax.tree.unflatten(self._tree, leaves))
        return jax.tree.leaves(state), self._many(lanes.added, (0, 0, None))(sums, measured, t)

    def like(self) -> tuple[LearnerState, ...]:
        """The shapes of the states; replays on the host as arrays that take no room."""
        states = tuple(jax.eval_shape(self.pure.start, key) for key in self._starts)
        if not self.on_host:
            return states
        no_room = lambda shape, dtype: np.broadcast_to(np.zeros((), dtype), shape)  # noqa: E731
        return tuple(one._replace(replay=x.blank(no_room)) for x, one in zip(self._shelves, states, strict=True))

    def start(self) -> tuple[LearnerState, ...]:
        """Nothing seen yet."""
        states = tuple(jax.tree.map(lanes.strong, self._start(key)) for key in self._starts)
        if not self.on_host:
            return states
        return tuple(one._replace(replay=x.blank()) for x, one in zip(self._shelves, states, strict=True))

    def placed(self, learners: Sequence[LearnerState]) -> tuple[LearnerState, ...]:
        """On the device, all but replays that are kept on the host."""
        if not self.on_host:
            return jax.device_put(tuple(learners))
        return tuple(jax.device_put(_apart(one))._replace(replay=one.replay) for one in learners)

    def opened(self, learners: Sequence[LearnerState]) -> list[Any]:
        """The states for `learn`, their replays on the host put on shelves.

        Those are changed in place. So one array of a state that was opened is deleted: nobody can save it or go on from
        it, as with a state whose arrays were donated.
        """
        if not self.on_host:
            return list(learners)
        opened = []
        for shelf, one in zip(self._shelves, learners, strict=True):
            shelf.open(one.replay)
            opened.append(_apart(one)._replace(k=jnp.copy(one.k)))
            one.k.delete()
        return opened

    def closed(self, learners: Sequence[LearnerState]) -> tuple[LearnerState, ...]:
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
        learner: LearnerState | Leaves,
        carry: PyTree,
        began: Bool[np.ndarray, " n"],
        obs: Shaped[np.ndarray, "n ..."],
        *when: int,
        explore: bool = True,
    ) -> tuple[PyTree, Array]:
        """(what is remembered then, actions) for what the environments of the i-th state show. Does not wait.

        `when` is the number of the action; for evaluations, which have keys of their own, also that of the step.
        """
        call, keys = (self._act, self._acts) if explore else (self._best, self._judges)
        apart = lambda x: x.reshape(len(self.seeds), -1, *x.shape[1:]) if self.as_lanes else x  # noqa: E731
        fresh = apart(began) if isinstance(self.learner, SequenceLearner) else ()
        return self._call(call, self._agent(learner), carry, fresh, apart(obs), keys[i], *[np.int32(t) for t in when])

    def _call(self, program: Callable, *given: Any) -> Any:
        """One program. Threads that call it for the first time, which compiles it, do so one after the other."""
        which = program, *[x for x in given if isinstance(x, int)]  # what it is compiled for
        if which in self._ready:
            return program(*given)
        with self._compiling:
            found = program(*given)
            self._ready.add(which)
        return found

    def _agent(self, learner: LearnerState | Leaves) -> list[Array]:
        """The leaves of the agent, which come first in a state."""
        if isinstance(learner, Leaves):
            return learner.leaves[: self._of_agent.num_leaves]
        return jax.tree.leaves(learner.agent)

    def learn(self, i: int, learners: list[Any], sums: list[Any], came: Transition, t: int) -> None:
        """Store the t-th step of the i-th state, and learn as often as is due then, maybe never. Does not wait.

        It leaves the state as `Leaves`, which `row` puts together again.
        """
        take = self._taken_on_host if self.on_host else self._taken
        step = jax.tree.map(lambda x: x[:, None, None] if self.as_lanes else x[:, None], came)  # of one stream
        leaves = learners[i].leaves if isinstance(learners[i], Leaves) else jax.tree.leaves(learners[i])
        leaves, sums[i] = take(i, leaves, sums[i], step, t)
        learners[i] = Leaves(leaves)
        if self.on_host and self.run.due(t + 1)[0]:
            self._shelves[i].look_ahead(t + 1)  # while the device is busy

    def _taken(self, i: int, leaves: list[Array], sums: Any, came: Transition, t: int) -> tuple[list[Array], Any]:
        """A step of the i-th state, whose replay is on the device."""
        first, (updates, new) = self.run.seed_steps, self.run.due(t)
        if updates:
            sums = self._nothing(leaves, came) if sums is None else sums
        if updates == new == 1:
            return self._learnt(t - first, leaves, sums, (came,), np.int32(t))
        leaves = self._call(self._store, leaves, came)
        if updates:  # without parts that need them the new steps are not told, so that one program does for all
            rows = new if takes_fresh(self.run.bonus) else 0
            leaves, sums = self._call(self._study, leaves, sums, np.int32(t), updates, rows)
        elif t == first:
            leaves = self._call(self._introduce, leaves, new_to_all(self.run))
        return leaves, sums

    def _taken_on_host(
        self, i: int, leaves: list[Array], sums: Any, came: Transition, t: int
    ) -> tuple[list[Array], Any]:
        """The same where it is on the host: an update is handed what was drawn before its step came in."""
        shelf, first = self._shelves[i], self.run.seed_steps
        if not self.run.due(t)[0]:
            shelf.push(came)
            shown = shelf.shown(t, new_to_all(self.run)) if t == first else None
            return (leaves if shown is None else self._call(self._meet, leaves, *shown)), sums
        given = shelf.drawn(t), came, shelf.push(came)
        sums = self._nothing(leaves, *given) if sums is None else sums
        return self._learnt(t - first, leaves, sums, given, np.int32(t))

    def _learnt(self, k: int, *given: Any) -> tuple[Any, lanes.Sums]:
        """The k-th update by the program of its kind; all are compiled side by side when the first is asked for."""
        if not self.timed:
            return self._call(self._learn, *given, None)
        with self._compiling:
            if not self._kinds:
                self._kinds = devices.compiled(self._learn.lower(*given, k) for k in range(self.run.agent.kinds))
        return self._kinds[k % len(self._kinds)](*given)

    def _nothing(self, leaves: list[Array], *given: Any) -> lanes.Sums:
        """Sums of zero, in arrays of their own, to be donated."""
        if self._measured is None:
            state = jax.tree.unflatten(self._tree, leaves)
            self._measured = tuple(jax.eval_shape(self._update, state, *given)[1])
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


def told(actions: Array | np.ndarray) -> np.ndarray:
    """Actions [n, A] of all environments that were asked for, once they are there."""
    return np.asarray(actions).reshape(-1, actions.shape[-1])


def _apart(state: LearnerState) -> LearnerState:
    return state._replace(replay=None)


def deciding(learner: Learner, explore: bool) -> Callable:
    """(agent, carry, began, obs, key) -> (carry, actions) of one seed; who remembers nothing has nothing to carry."""
    if isinstance(learner, SequenceLearner):
        return functools.partial(learner.decide, explore=explore)
    return lambda agent, carry, began, obs, key: (carry, learner.act(agent, obs, key, explore=explore))


def new_to_all(run: ControlRun) -> int:
    """The first actions that the replay still holds when learning begins."""
    steps = getattr(run.replay, "steps", run.replay)
    return min(run.seed_steps, steps.room[0])
