"""Compiled programs of a long list of arrays, which are handed those alone that they read or change.

To hand an array to a program and to take one back costs the host microseconds, however small it is. Dreamer's state
with MADE has three hundred: to store one step of the environment took 1.7 ms beside an H200 while all of them went to
and fro (results/dreamer/h200.json, "second").
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

Options = dict[str, Any] | None  # of the compiler


class Touched(NamedTuple):
    """Which arrays of a list a program gives back changed, and which others it reads, by index."""

    changed: list[int]
    read: list[int]


def touched(call: Callable, arrays: Sequence[Array], *given: Any, changes: bool = False) -> Touched:
    """What `call(arrays, *given)` touches; with `changes` it gives back the whole list.

    >>> touched(lambda x: [x[0], x[1] + x[2], x[2], x[3]], [jax.numpy.ones(2)] * 4, changes=True)
    Touched(changed=[1], read=[2])
    """
    traced = jax.make_jaxpr(lambda arrays: call(arrays, *given))(list(arrays)).jaxpr
    ins, outs = traced.invars, traced.outvars
    same = {i for i, pair in enumerate(zip(ins, outs, strict=True)) if pair[0] is pair[1]} if changes else set()
    used = {id(x) for step in traced.eqns for x in step.invars} | {id(x) for i, x in enumerate(outs) if i not in same}
    changed = [i for i in range(len(ins)) if i not in same] if changes else []
    return Touched(changed, [i for i, x in enumerate(ins) if id(x) in used and i not in changed])


class Reading:
    """call(arrays, *given), compiled when it is first called. Arrays that it does not read are None within it."""

    def __init__(self, call: Callable, options: Options = None):
        self._call, self.touches, self._n = call, Touched([], []), 0
        self._program = jax.jit(self._spread, compiler_options=options)

    def __call__(self, arrays: Sequence[Array], *given: Any) -> Any:
        if not self._n:
            self._n, self.touches = len(arrays), touched(self._call, arrays, *given)
        return self._program([arrays[i] for i in self.touches.read], *given)

    def _spread(self, read: list[Array], *given: Any) -> Any:
        return self._call(_filled(self._n, self.touches.read, read), *given)


class Changing:
    """call(arrays, *given) -> arrays, of which it changes some; those are donated, all others are left as they are."""

    def __init__(self, call: Callable, options: Options = None):
        self._call, self.touches, self._n = call, Touched([], []), 0
        self._program = jax.jit(self._spread, compiler_options=options, donate_argnums=0)

    def __call__(self, arrays: Sequence[Array], *given: Any) -> list[Array]:
        if not self._n:
            self._n, self.touches = len(arrays), touched(self._call, arrays, *given, changes=True)
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
