"""The learner of a control run: compiled programs that act, store, learn and sum up metrics, for every seed.

Between two log records the state of a seed is a list of its arrays, in the order of `jax.tree.leaves`. Flattening the
state at each call would take Python 0.3 ms, a tenth of RAD's update on a GPU. Each program gets the arrays that it
needs: an action those that the agent acts by, a stored step those of the replay.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from made.bonuses.replay_data import needs_new
from made.core import Spec, Transition
from made.training import memory, sharding
from made.training.backends import compiled_envs
from made.training.backends.compiled_envs import MetricSums
from made.training.control_config import ControlConfig, DreamerConfig
from made.training.off_policy import ReplayLearnerState
from made.training.sharding import compile_lock

_JUDGED = 0x6A756467  # sets the keys of evaluations apart from those of training
_compiling = threading.Lock()

Leaves = list[Array]
Updated = tuple[Leaves, MetricSums]
States = tuple[ReplayLearnerState, ...]  # one of all seeds, or one a seed


class CompiledOnce:
    """A jitted function. Threads that call it for the first time compile it one after the other."""

    def __init__(self, call: Callable, **options: Any):
        self.program = jax.jit(call, compiler_options=sharding.options(1), **options)
        self._ready: set[tuple[int, ...]] = set()

    def __call__(self, *given: Any) -> Any:
        which = tuple(x for x in given if isinstance(x, int))  # static arguments
        if which not in self._ready:
            with _compiling:
                if which not in self._ready:  # no other thread was first
                    with compile_lock():
                        found = self.program(*given)
                    self._ready.add(which)
                    return found
        return self.program(*given)


class Part(NamedTuple):
    """A part of a state: the indices of its arrays in the list of all, and its structure."""

    at: list[int]
    tree: Any

    @classmethod
    def of(cls, indices: PyTree) -> "Part":
        """The part whose leaves are these indices."""
        return cls(*jax.tree.flatten(indices))

    def pick(self, leaves: Leaves) -> Leaves:
        """The arrays of this part."""
        return [leaves[i] for i in self.at]


def cpu_device() -> Any:
    """The CPU device next to an accelerator. None if there is none, or if the CPU is the default device."""
    if jax.default_backend() == "cpu":
        return None
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return None


class ControlLearner:
    """Acts, stores, learns and sums up metrics, for every seed.

    From states, one program is vectorized over all seeds. From pixels, each seed has a state of its own, since
    convolutions with other weights for each seed become grouped ones, which are slow. An action takes two calls, `act`
    and `learn`; neither waits for its result.

    If many updates are due at once (`ControlConfig.due`), steps are stored many at a time, actions are chosen on the
    CPU with a copy of the parameters, and one seed learns at a time: if the updates of all seeds ran together they
    would end together, and the device would be idle while all act.

    `at_phase` compiles a program for each kind of update that an agent makes in turn (`Agent.at_phase`). This is best
    on a GPU; on a CPU one program of all kinds takes less time to compile.
    """

    def __init__(self, run: ControlConfig, spec: Spec, seeds: Sequence[int], at_phase: bool | None = None):
        self.run, self.seeds, self.vectorized = run, seeds, not run.task.pixels
        on_gpu = jax.default_backend() != "cpu"
        self.at_phase = run.agent.kinds > 1 and (on_gpu if at_phase is None else at_phase)
        self.one_by_one = run.task.pixels and not on_gpu  # see `_study`
        self.learner = run.learner(spec)
        keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
        both = jax.vmap(jax.random.split)(keys)
        self._start_keys, act_keys = self._parts(both[:, 0]), self._parts(both[:, 1])
        eval_keys = self._parts(jax.vmap(lambda key: jax.random.fold_in(key, _JUDGED))(keys))
        self._keys = {True: act_keys, False: eval_keys}
        many: Any = jax.vmap if self.vectorized else lambda fn, _=0: fn
        self._many, self._start = many, CompiledOnce(many(self.learner.start))
        leaves, self.tree = jax.tree.flatten(self.like()[0])
        indices = jax.tree.unflatten(self.tree, range(len(leaves)))
        self._params, self._replay = Part.of(run.agent.acting_params(indices.agent)), Part.of(indices.replay)
        self._acting = {explore: CompiledOnce(functools.partial(self._act, explore)) for explore in (True, False)}
        self._storing = {steps: CompiledOnce(self._store, donate_argnums=0) for steps in (1, run.train_every)}
        self._introducing = CompiledOnce(self._introduce, static_argnums=1, donate_argnums=0)
        self._updating = CompiledOnce(self._update, static_argnums=4, donate_argnums=(0, 1))
        self._phases: list[Callable] = []  # the same for each kind of update
        self._studying = CompiledOnce(self._study, static_argnums=(4, 5), donate_argnums=(0, 1))
        given: Any = run
        row = lambda state, sums, t: compiled_envs.row_of(given, state._replace(k=t), sums)  # noqa: E731
        self._row = jax.jit(many(row, (0, 0, None)), compiler_options=sharding.options(0))
        self._waiting: list[list[Transition]] = [[] for _ in self._start_keys]  # steps that are not stored yet
        self._copied: list[Any] = [None for _ in self._start_keys]  # parameters on the device that acts
        self._metrics: tuple[str, ...] | None = None  # the names of what an update measures, once it was traced
        self._burst = threading.Lock()
        self.actor = cpu_device() if run.train_every > 1 and not self.vectorized else None
        if self.actor is not None:
            self._keys[True] = jax.device_put(act_keys, self.actor)

    def _parts(self, x: Any) -> list[Any]:
        """What belongs to all seeds [L, ...], as one part or one a seed."""
        return [x] if self.vectorized else [x[i] for i in range(len(self.seeds))]

    def like(self) -> States:
        """The shapes of the states."""
        return tuple(jax.eval_shape(self._many(self.learner.start), key) for key in self._start_keys)

    def start(self) -> States:
        """Nothing seen yet."""
        return tuple(jax.tree.map(compiled_envs.strip_weak_type, self._start(key)) for key in self._start_keys)

    def open(self, learners: Sequence[ReplayLearnerState]) -> list[Leaves]:
        """The arrays of states from which training continues."""
        self._waiting, self._copied = [[] for _ in learners], [None for _ in learners]
        return [jax.tree.leaves(one) for one in learners]

    def close(self, learners: list[Leaves], sums: list[Any], t: int) -> tuple[States, dict[str, Any], np.ndarray]:
        """The states at the end of a log interval, its metrics [L], and where something was not finite [L]."""
        states = [jax.tree.unflatten(self.tree, self._stored(i, one, all_steps=True)) for i, one in enumerate(learners)]
        if sums[0] is None:  # nothing was learned yet
            return tuple(states), {}, np.full(len(self.seeds), compiled_envs.NO_FAILURE)
        rows = [self._row(one, added, np.int32(t)) for one, added in zip(states, sums, strict=True)]
        scalars, bad = jax.tree.map(lambda *x: np.stack(x).reshape(len(self.seeds)), *map(tuple, rows))
        if "bonus_strength" in scalars:  # episodes here are all of full length
            scalars["intrinsic_return"] = scalars["bonus_strength"]
        return tuple(states), scalars, bad

    def carries(self, n: int) -> tuple[PyTree, ...]:
        """The recurrent states of n environments of each seed at the start of an episode."""
        blank = self.learner.carries(n)
        if self.vectorized:
            blank = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(self.seeds), *x.shape)), blank)
        return tuple(jax.tree.map(jnp.array, blank) for _ in self._start_keys)

    def act(
        self, i: int, leaves: Leaves, carry: Any, began: np.ndarray, obs: np.ndarray, *when: int, explore: bool = True
    ) -> tuple[PyTree, Array]:
        """(carry, actions) for what the environments of the i-th state show.

        `when` is the number of the action; for evaluations, which have keys of their own, also that of the step.
        """
        params = self._params.pick(leaves)
        if explore and self.actor is not None:
            if self._copied[i] is None:
                jax.block_until_ready(params)  # releases the GIL, which copying may not
                self._copied[i] = jax.device_put(params, self.actor)
            params = self._copied[i]
        if self.vectorized:
            began, obs = (x.reshape(len(self.seeds), -1, *x.shape[1:]) for x in (began, obs))
        return self._acting[explore](params, carry, began, obs, self._keys[explore][i], *map(np.int32, when))

    def learn(self, i: int, leaves: Leaves, sums: MetricSums | None, step: Transition, t: int) -> tuple[Leaves, Any]:
        """(arrays, sums) of the i-th state once its t-th step is stored and all updates that are due are made."""
        step = jax.tree.map(lambda x: x[:, None, None] if self.vectorized else x[:, None], step)  # of one stream
        (updates, new), first = self.run.due(t), self.run.seed_steps
        if updates and sums is None:
            sums = self._zeros(leaves, step)
        if updates == new == 1:
            given = leaves, sums, step, np.int32(t)
            return self._phase(t - first, given)(*given) if self.at_phase else self._updating(*given, None)
        self._waiting[i].append(step)
        leaves = self._stored(i, leaves, all_steps=bool(updates) or t == first)
        if updates:  # the number of new steps is 0 where no part needs them, so that one program does for all
            leaves, sums = self._studied(leaves, sums, t, updates, new if needs_new(self.run.bonus) else 0)
            self._copied[i] = None
        elif t == first:
            leaves = self._introducing(leaves, self.run.held_seed_steps)
        return leaves, sums

    def _stored(self, i: int, leaves: Leaves, all_steps: bool) -> Leaves:
        """The arrays once steps that wait are in the replay: full chunks, or all of them."""
        waiting, many = self._waiting[i], self.run.train_every
        while len(waiting) >= many or (all_steps and waiting):
            n = many if len(waiting) >= many else 1
            steps = jax.tree.map(lambda *x: np.concatenate(x, int(self.vectorized)), *waiting[:n])
            del waiting[:n]
            leaves = list(leaves)
            for at, x in zip(self._replay.at, self._storing[n](self._replay.pick(leaves), steps), strict=True):
                leaves[at] = x
        return leaves

    def _studied(self, leaves: Leaves, sums: Any, t: int, updates: int, rows: int) -> tuple[Leaves, Any]:
        """Many updates: in one call, or from pixels on a CPU one a call, where convolutions within a loop are slow.

        On two cores an update on 40 images took 0.31 s in a loop and 0.04 s by itself.
        """
        if self.one_by_one:
            for i in range(updates):
                leaves, sums = self._studying(leaves, sums, np.int32(t), np.int32(i), updates, rows)
            return leaves, sums
        given = leaves, sums, np.int32(t), None, updates, rows
        if self.actor is None:
            return self._studying(*given)
        with self._burst:
            return jax.block_until_ready(self._studying(*given))

    def _phase(self, k: int, given: Sequence[Any]) -> Callable:
        """The program of the k-th update, by its kind. They are compiled in parallel when the first is needed."""
        if not self._phases:
            with _compiling:
                if not self._phases:  # no other thread was first
                    kinds = range(self.run.agent.kinds)
                    lowered = [self._updating.program.lower(*given, kind) for kind in kinds]
                    with compile_lock():
                        self._phases = sharding.compiled(lowered)
        return self._phases[k % len(self._phases)]

    def _zeros(self, leaves: Leaves, step: Transition) -> MetricSums:
        """Sums of zero, in arrays of their own, to be donated."""
        if self._metrics is None:
            state = jax.tree.unflatten(self.tree, leaves)
            self._metrics = tuple(jax.eval_shape(self._many(self.learner.advance), state, step)[1])
        shape = (len(self.seeds),) if self.vectorized else ()
        return jax.tree.map(lambda x: jnp.array(jnp.broadcast_to(x, shape)), compiled_envs.zeros(self._metrics))

    # What follows is compiled.

    def _act(
        self, explore: bool, params: Leaves, carry: PyTree, began: Array, obs: Array, key: Array, *when: Array
    ) -> tuple[PyTree, Array]:
        for number in when:
            key = self._many(jax.random.fold_in, (0, None))(key, number)
        act = functools.partial(self.learner.act, explore=explore)
        return self._many(act)(jax.tree.unflatten(self._params.tree, params), carry, began, obs, key)

    def _store(self, replay: Leaves, steps: Transition) -> Leaves:
        return jax.tree.leaves(self._many(self.learner.store)(jax.tree.unflatten(self._replay.tree, replay), steps))

    def _introduce(self, leaves: Leaves, rows: int) -> Leaves:
        introduce = lambda state: self.learner.introduce(state, rows)  # noqa: E731
        return jax.tree.leaves(self._many(introduce)(jax.tree.unflatten(self.tree, leaves)))

    def _update(self, leaves: Leaves, sums: MetricSums, step: Transition, t: Array, kind: int | None) -> Updated:
        learner = self.learner if kind is None else self.learner.kinds[kind]
        return self._learned(learner.advance, leaves, sums, t, step)

    def _study(self, leaves: Leaves, sums: MetricSums, t: Array, i: Array | None, updates: int, rows: int) -> Updated:
        """All of so many updates, or the i-th of them."""
        return self._learned(lambda state: self.learner.study(state, updates, rows, i), leaves, sums, t)

    def _learned(self, update: Callable, leaves: Leaves, sums: MetricSums, t: Array, *given: Any) -> Updated:
        state, measured = self._many(update)(jax.tree.unflatten(self.tree, leaves), *given)
        return jax.tree.leaves(state), self._many(compiled_envs.accumulate, (0, 0, None))(sums, measured, t)


def to_numpy(actions: Array | np.ndarray) -> np.ndarray:
    """Actions [n, A] of all environments that were asked for, once they are there."""
    return np.asarray(actions).reshape(-1, actions.shape[-1])


def memory_outside_replay(run: ControlConfig, spec: Spec) -> int:
    """Bytes that a seed needs on the device without its replay: networks, optimizers, and the bonus's buffers."""
    return memory.size_of(jax.eval_shape(lambda key: run.learner(spec).start(key, replay=False), jax.random.key(0)))


def require_memory(run: ControlConfig, size: int, seeds: int, rest: int = 0) -> None:
    """Raise an error for replays of `size` bytes a seed that do not fit, with `rest` bytes of each seed's other state.

    They must fit on the device, and their copies in main memory while a checkpoint is written.
    """
    copies = 2 + (jax.default_backend() == "cpu")  # on a CPU the state itself is there too
    total = seeds * (size + rest)
    for needed, free, where in (
        (total, memory.free(), "on the device"),
        (copies * total, memory.free_on_host(), "on the host, for a checkpoint is a copy"),
    ):
        if free is None or needed <= free:
            continue
        dreams = isinstance(run, DreamerConfig)  # its frames have one size
        fewer = "train fewer --seeds or " * (seeds > 1)
        smaller = " or --set task.size=..." * (run.task.pixels and not dreams)
        raise ValueError(
            f"A replay of {run.replay.capacity:,} steps needs {memory.in_words(size)}"
            f"{f', and the networks and bonus {memory.in_words(rest)},' * (rest > 0)} for each of {seeds} "
            f"seed{'s' * (seeds > 1)}; {memory.in_words(needed)} are needed {where}, and {memory.in_words(free)} are "
            f"free: {fewer}set a smaller --set replay{'.steps' * dreams}.capacity=...{smaller}."
        )
