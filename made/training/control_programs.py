"""The compiled programs of a control run: an action, a step that is stored, an update, a row of what was measured.

A state comes as a plain list of its arrays: to take the tree of one apart and put it together at each call would take
longer than all else that is done between two updates.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from made.dreaming import SequenceLearner
from made.off_policy import Learner, LearnerState, functions
from made.training import devices, lanes
from made.training.control_run import ControlRun
from made.training.narrow import Changing, Reading
from made.training.quiet import compiling


class ControlPrograms:
    """Programs for the state of one seed, or for those of `n` seeds as lanes, leaves [n, ...].

    `timed` has a program for each kind of update that an agent makes in turn (`Agent.timed`). With `on_host` replays
    stay there, and an update is given what was drawn from them. They may be called from several threads.
    """

    def __init__(self, run: ControlRun, learner: Learner, n: int | None, timed: bool, on_host: bool, key: Array):
        self.run, self.learner, self.n, self.timed, self.on_host = run, learner, n, timed, on_host
        self.pure = functions(learner, n is not None, on_host)
        shape = jax.eval_shape(self.pure.start, key)
        self.tree, self.of_agent = jax.tree.structure(shape), jax.tree.structure(shape.agent)
        self._update = self.pure.improve if on_host else self.pure.advance
        self._many: Any = jax.vmap if n is not None else lambda fn, _: fn
        self._kinds: list[Callable] = []  # of updates, where each has a program
        self._compiling, self._ready = threading.Lock(), set()
        self._measured: tuple[str, ...] | None = None  # the names of what an update measures, once it was traced
        compiled = functools.partial(jax.jit, compiler_options=devices.options(1))
        self.start = compiled(self.pure.start)
        self.act, self.best = (Reading(self._acting(explore), devices.options(1)) for explore in (True, False))
        storing = lambda: Changing(self._on_leaves(self.pure.store), devices.options(1))  # noqa: E731
        self.store = {steps: storing() for steps in (1, run.at_once)}
        self.introduce = compiled(self._on_leaves(self.pure.introduce), static_argnums=1, donate_argnums=0)
        self.meet = compiled(self._on_leaves(self.pure.meet), donate_argnums=0)
        self._learn = compiled(self._learning, static_argnums=4, donate_argnums=(0, 1))
        self.study = compiled(self._studying, static_argnums=(3, 4), donate_argnums=(0, 1))
        self.study_one = compiled(self._studying_one, static_argnums=(4, 5), donate_argnums=(0, 1))
        self.row = jax.jit(self._many(self._row_of, (0, 0, None)), compiler_options=devices.options(0))

    def call(self, program: Callable, *given: Any) -> Any:
        """One of them. Threads that call it for the first time, which compiles it, do so one after the other."""
        which = program, *[x for x in given if isinstance(x, int)]  # what it is compiled for
        if which in self._ready:
            return program(*given)
        with self._compiling:
            if which not in self._ready:  # no other thread was first
                with compiling():
                    found = program(*given)
                self._ready.add(which)
                return found
        return program(*given)

    def update(self, k: int, *given: Any) -> tuple[list[Array], lanes.Sums]:
        """The k-th update, of (leaves, sums, what came or was drawn, t), by the program of its kind.

        Those are compiled side by side when the first is asked for.
        """
        if not self.timed:
            return self.call(self._learn, *given, None)
        if not self._kinds:
            with self._compiling:
                if not self._kinds:  # no other thread was first
                    lowered = [self._learn.lower(*given, k) for k in range(self.run.agent.kinds)]
                    with compiling():
                        self._kinds = devices.compiled(lowered)
        return self._kinds[k % len(self._kinds)](*given)

    def nothing(self, leaves: list[Array], *given: Any) -> lanes.Sums:
        """Sums of zero, in arrays of their own, to be donated."""
        if self._measured is None:
            self._measured = tuple(jax.eval_shape(self._update, self.whole(leaves), *given)[1])
        shape = () if self.n is None else (self.n,)
        return jax.tree.map(lambda x: jnp.array(jnp.broadcast_to(x, shape)), lanes.nothing(self._measured))

    def whole(self, leaves: list[Array]) -> LearnerState:
        """The state of those leaves."""
        return jax.tree.unflatten(self.tree, leaves)

    def _acting(self, explore: bool) -> Callable:
        """An action of an agent that comes as leaves, from the key of its seed and the number of the action."""
        decide = deciding(self.learner, explore)

        def act(leaves: list[Array], carry: PyTree, began: Any, obs: Array, key: Array, *when: Array) -> Any:
            for number in when:
                key = self._many(jax.random.fold_in, (0, None))(key, number)
            return self._many(decide, 0)(jax.tree.unflatten(self.of_agent, leaves), carry, began, obs, key)

        return act

    def _on_leaves(self, call: Any) -> Any:
        """A call that changes a state, for the list of its arrays; those that are None stay None."""
        return lambda leaves, *more: self.tree.flatten_up_to(call(self.whole(leaves), *more))

    def _learning(
        self, leaves: list[Array], sums: lanes.Sums, given: tuple, t: Array, kind: int | None
    ) -> tuple[list[Array], lanes.Sums]:
        update = self._update
        if kind is not None:
            pure = functions(self.learner.kinds[kind], self.n is not None)
            update = pure.improve if self.on_host else pure.advance
        state, measured = update(self.whole(leaves), *given)
        return self._added(state, sums, measured, t)

    def _studying(
        self, leaves: list[Array], sums: lanes.Sums, t: Array, updates: int, rows: int
    ) -> tuple[list[Array], lanes.Sums]:
        study = self._many(lambda state: self.learner.study(state, updates, rows), 0)  # type: ignore[attr-defined]
        state, measured = study(self.whole(leaves))
        return self._added(state, sums, measured, t)

    def _studying_one(
        self, leaves: list[Array], sums: lanes.Sums, t: Array, i: Array, updates: int, rows: int
    ) -> tuple[list[Array], lanes.Sums]:
        state, measured = self.learner.study_one(self.whole(leaves), i, updates, rows)  # type: ignore[attr-defined]
        return self._added(state, sums, measured, t)

    def _added(self, state: LearnerState, sums: lanes.Sums, measured: Any, t: Array) -> tuple[list[Array], lanes.Sums]:
        return jax.tree.leaves(state), self._many(lanes.added, (0, 0, None))(sums, measured, t)

    def _row_of(self, state: LearnerState, sums: lanes.Sums, t: Any) -> lanes.Row:
        return lanes.row_of(self.run, state._replace(k=t), sums)  # type: ignore[arg-type]


def deciding(learner: Learner, explore: bool) -> Callable:
    """(agent, carry, began, obs, key) -> (carry, actions) of one seed; who remembers nothing has nothing to carry."""
    if isinstance(learner, SequenceLearner):
        return functools.partial(learner.decide, explore=explore)
    return lambda agent, carry, began, obs, key: (carry, learner.act(agent, obs, key, explore=explore))
