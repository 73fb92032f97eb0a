"""The compiled programs of a control run: an action, a step that is stored, an update, a row of what was measured.

A state comes as a plain list of its arrays: to take the tree of one apart and put it together at each call would take
longer than all else that is done between two updates.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from made.core import Transition
from made.training import sharding
from made.training.backends import compiled_envs
from made.training.compile_cache import compile_lock
from made.training.control_config import ControlConfig
from made.training.off_policy import ReplayLearner, ReplayLearnerState, functions
from made.training.sequence_learner import SequenceLearner


class ControlPrograms:
    """Programs for the state of one seed, or for those of `n` seeds as lanes, leaves [n, ...].

    `at_phase` has a program for each kind of update that an agent makes in turn (`Agent.at_phase`). They may be
    called from several threads.
    """

    def __init__(self, run: ControlConfig, learner: ReplayLearner, n: int | None, at_phase: bool, key: Array):
        self.run, self.learner, self.n, self.at_phase = run, learner, n, at_phase
        self.pure = functions(learner, n is not None)
        shape = jax.eval_shape(self.pure.start, key)
        self.tree, self.of_agent = jax.tree.structure(shape), jax.tree.structure(shape.agent)
        self._many: Any = jax.vmap if n is not None else lambda fn, _: fn
        self._kinds: list[Callable] = []  # of updates, where each has a program
        self._compiling, self._ready = threading.Lock(), set()
        self._measured: tuple[str, ...] | None = None  # the names of what an update measures, once it was traced
        compiled = functools.partial(jax.jit, compiler_options=sharding.options(1))
        self.start = compiled(self.pure.start)
        self.act, self.best = (ReadOnlyProgram(self._acting(explore), sharding.options(1)) for explore in (True, False))
        storing = lambda: UpdatingProgram(self._on_leaves(self.pure.store), sharding.options(1))  # noqa: E731
        self.store = {steps: storing() for steps in (1, run.at_once)}
        self.introduce = compiled(self._on_leaves(self.pure.introduce), static_argnums=1, donate_argnums=0)
        self._learn = compiled(self._learning, static_argnums=4, donate_argnums=(0, 1))
        self.study = compiled(self._studying, static_argnums=(3, 4), donate_argnums=(0, 1))
        self.study_one = compiled(self._studying_one, static_argnums=(4, 5), donate_argnums=(0, 1))
        self.row = jax.jit(self._many(self._row_of, (0, 0, None)), compiler_options=sharding.options(0))

    def call(self, program: Callable, *given: Any) -> Any:
        """One of them. Threads that call it for the first time, which compiles it, do so one after the other."""
        which = program, *[x for x in given if isinstance(x, int)]  # what it is compiled for
        if which in self._ready:
            return program(*given)
        with self._compiling:
            if which not in self._ready:  # no other thread was first
                with compile_lock():
                    found = program(*given)
                self._ready.add(which)
                return found
        return program(*given)

    def update(self, k: int, *given: Any) -> tuple[list[Array], compiled_envs.MetricSums]:
        """The k-th update, of (leaves, sums, step, t), by the program of its kind.

        Those are compiled side by side when the first is asked for.
        """
        if not self.at_phase:
            return self.call(self._learn, *given, None)
        if not self._kinds:
            with self._compiling:
                if not self._kinds:  # no other thread was first
                    lowered = [self._learn.lower(*given, k) for k in range(self.run.agent.kinds)]
                    with compile_lock():
                        self._kinds = sharding.compiled(lowered)
        return self._kinds[k % len(self._kinds)](*given)

    def nothing(self, leaves: list[Array], transitions: Transition) -> compiled_envs.MetricSums:
        """Sums of zero, in arrays of their own, to be donated."""
        if self._measured is None:
            self._measured = tuple(jax.eval_shape(self.pure.advance, self.unflatten(leaves), transitions)[1])
        shape = () if self.n is None else (self.n,)
        return jax.tree.map(lambda x: jnp.array(jnp.broadcast_to(x, shape)), compiled_envs.zeros(self._measured))

    def unflatten(self, leaves: list[Array]) -> ReplayLearnerState:
        """The state of those leaves."""
        return jax.tree.unflatten(self.tree, leaves)

    def _acting(self, explore: bool) -> Callable:
        """An action of an agent that comes as leaves, from the key of its seed and the number of the action."""
        decide = action_program(self.learner, explore)

        def act(leaves: list[Array], carry: PyTree, began: Any, obs: Array, key: Array, *when: Array) -> Any:
            for number in when:
                key = self._many(jax.random.fold_in, (0, None))(key, number)
            return self._many(decide, 0)(jax.tree.unflatten(self.of_agent, leaves), carry, began, obs, key)

        return act

    def _on_leaves(self, call: Any) -> Any:
        """A call that changes a state, for the list of its arrays; those that are None stay None."""
        return lambda leaves, *more: self.tree.flatten_up_to(call(self.unflatten(leaves), *more))

    def _learning(
        self, leaves: list[Array], sums: compiled_envs.MetricSums, transitions: Transition, t: Array, kind: int | None
    ) -> tuple[list[Array], compiled_envs.MetricSums]:
        pure = self.pure if kind is None else functions(self.learner.kinds[kind], self.n is not None)
        state, measured = pure.advance(self.unflatten(leaves), transitions)
        return self._added(state, sums, measured, t)

    def _studying(
        self, leaves: list[Array], sums: compiled_envs.MetricSums, t: Array, updates: int, rows: int
    ) -> tuple[list[Array], compiled_envs.MetricSums]:
        study = self._many(lambda state: self.learner.study(state, updates, rows), 0)  # type: ignore[attr-defined]
        state, measured = study(self.unflatten(leaves))
        return self._added(state, sums, measured, t)

    def _studying_one(
        self, leaves: list[Array], sums: compiled_envs.MetricSums, t: Array, i: Array, updates: int, rows: int
    ) -> tuple[list[Array], compiled_envs.MetricSums]:
        state, measured = self.learner.study_one(self.unflatten(leaves), i, updates, rows)  # type: ignore[attr-defined]
        return self._added(state, sums, measured, t)

    def _added(
        self, state: ReplayLearnerState, sums: compiled_envs.MetricSums, measured: Any, t: Array
    ) -> tuple[list[Array], compiled_envs.MetricSums]:
        return jax.tree.leaves(state), self._many(compiled_envs.accumulate, (0, 0, None))(sums, measured, t)

    def _row_of(self, state: ReplayLearnerState, sums: compiled_envs.MetricSums, t: Any) -> compiled_envs.LogRecord:
        return compiled_envs.row_of(self.run, state._replace(k=t), sums)  # type: ignore[arg-type]


def action_program(learner: ReplayLearner, explore: bool) -> Callable:
    """(agent, carry, began, obs, key) -> (carry, actions) of one seed; who remembers nothing has nothing to carry."""
    if isinstance(learner, SequenceLearner):
        return functools.partial(learner.decide, explore=explore)
    return lambda agent, carry, began, obs, key: (carry, learner.act(agent, obs, key, explore=explore))


Options = dict[str, Any] | None  # of the compiler


class TouchedLeaves(NamedTuple):
    """Which arrays of a list a program gives back changed, and which others it reads, by index."""

    changed: list[int]
    read: list[int]


def touched_leaves(call: Callable, arrays: Sequence[Array], *given: Any, changes: bool = False) -> TouchedLeaves:
    """What `call(arrays, *given)` touches; with `changes` it gives back the whole list.

    >>> touched_leaves(lambda x: [x[0], x[1] + x[2], x[2], x[3]], [jax.numpy.ones(2)] * 4, changes=True)
    TouchedLeaves(changed=[1], read=[2])
    """
    traced = jax.make_jaxpr(lambda arrays: call(arrays, *given))(list(arrays)).jaxpr
    ins, outs = traced.invars, traced.outvars
    same = {i for i, pair in enumerate(zip(ins, outs, strict=True)) if pair[0] is pair[1]} if changes else set()
    used = {id(x) for step in traced.eqns for x in step.invars} | {id(x) for i, x in enumerate(outs) if i not in same}
    changed = [i for i in range(len(ins)) if i not in same] if changes else []
    return TouchedLeaves(changed, [i for i, x in enumerate(ins) if id(x) in used and i not in changed])


class ReadOnlyProgram:
    """call(arrays, *given), compiled when it is first called. Arrays that it does not read are None within it."""

    def __init__(self, call: Callable, options: Options = None):
        self._call, self.touches, self._n = call, TouchedLeaves([], []), 0
        self._program = jax.jit(self._spread, compiler_options=options)

    def __call__(self, arrays: Sequence[Array], *given: Any) -> Any:
        if not self._n:
            self._n, self.touches = len(arrays), touched_leaves(self._call, arrays, *given)
        return self._program([arrays[i] for i in self.touches.read], *given)

    def _spread(self, read: list[Array], *given: Any) -> Any:
        return self._call(_filled(self._n, self.touches.read, read), *given)


class UpdatingProgram:
    """call(arrays, *given) -> arrays, of which it changes some; those are donated, all others are left as they are."""

    def __init__(self, call: Callable, options: Options = None):
        self._call, self.touches, self._n = call, TouchedLeaves([], []), 0
        self._program = jax.jit(self._spread, compiler_options=options, donate_argnums=0)

    def __call__(self, arrays: Sequence[Array], *given: Any) -> list[Array]:
        if not self._n:
            self._n, self.touches = len(arrays), touched_leaves(self._call, arrays, *given, changes=True)
        changed, read = ([arrays[i] for i in each] for each in self.touches)
        after = list(arrays)
        for i, x in zip(self.touches.changed, self._program(changed, read, *given), strict=True):
            after[i] = x
        return after

    def _spread(self, changed: list[Array], read: list[Array], *given: Any) -> list[Array]:
        places = [*self.touches.changed, *self.touches.read]
        held = _filled(self._n, places, [*changed, *read])
        whole = self._call(list(held), *given)
        if any(whole[i] is not x for i, x in enumerate(held) if i not in self.touches.changed):
            raise ValueError("A program changes other arrays than when it was first called: make one for each use.")
        return [whole[i] for i in self.touches.changed]


def _filled(n: int, places: Sequence[int], arrays: Sequence[Array]) -> list[Any]:
    whole: list[Any] = [None] * n
    for i, x in zip(places, arrays, strict=True):
        whole[i] = x
    return whole
