"""The compiled calls of a host loop, and the arrays that go in and out: NumPy, JAX or PyTorch.

Arrays are checked against the spec. PyTorch is imported only after a tensor has come in.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from made.bonuses.combinators import Lanes
from made.core import Agent, Bonus, EpisodeNote, Space, Spec, Transition, trees


class CompiledCalls(NamedTuple):
    """Each takes the bonus's state first, and returns whatever changes."""

    reset: Callable  # (state, key, obs) -> memory, note, key
    begin: Callable  # (state, memory, note, key, obs, where) -> memory, note, key
    observe: Callable  # (state, memory, note, key, step, reset_obs) -> step, memory, note, key
    reward: Callable  # (state, batch, value) -> bonus, how many entries hold NaN or infinity
    update: Callable  # (state, batch, key) -> state, metrics, key
    non_finite: Callable  # (batch) -> which entries hold NaN or infinity


def _compiled_once(build: Callable[..., Any]) -> Callable[..., Any]:
    """`build(thing, spec, n)`, once for equal arguments. What holds arrays has no hash and is built each time."""
    specs: dict[str, Spec] = {}  # by their text, since dictionaries have no hash
    shared = functools.lru_cache(maxsize=32)(lambda thing, text, n: build(thing, specs[text], n))

    @functools.wraps(build)
    def get(thing: Any, spec: Spec, n: int) -> Any:
        specs[repr(spec)] = spec
        try:
            return shared(thing, repr(spec), n)
        except TypeError:
            return build(thing, spec, n)

    return get


def repeated(tree: PyTree, n: int) -> PyTree:
    """The same for each of n environments: leaves [n, ...]."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *jnp.shape(x))), tree)


@_compiled_once
def calls(bonus: Bonus, spec: Spec, n: int) -> CompiledCalls:
    """The calls of one bonus over n environments, compiled once for equal bonuses."""
    blank = repeated(bonus.memory.blank(spec), n)

    def remember(state, memory, obs, key, note: EpisodeNote | None = None) -> tuple[PyTree, EpisodeNote]:
        """Update the memories; an observation that is NaN or infinite leaves them as they are."""
        keys = jax.random.split(key, n)
        seen = jax.vmap(bonus.memory.remember, (None, 0, 0, 0))(state, memory, jax.tree.map(_zeroed, obs), keys)
        return trees.select(_non_finite(obs, n), (memory, seen[1] if note is None else note), seen)

    def reset(state, key, obs):
        key, k_begin = jax.random.split(key)
        return *remember(state, blank, obs, k_begin), key

    def begin(state, memory, note, key, obs, where):
        key, k_begin = jax.random.split(key)
        return *trees.select(where, remember(state, blank, obs, k_begin), (memory, note)), key

    def observe(state, memory, note, key, step: Transition, reset_obs):
        key, k_step, k_begin = jax.random.split(key, 3)
        seen = remember(state, memory, step.next_obs, k_step, note)
        fresh = remember(state, blank, reset_obs, k_begin)
        following = trees.select(step.terminated | step.truncated, fresh, seen)
        return step._replace(note=note, next_note=seen[1]), *following, key

    def reward(state, batch: Transition, value):
        bad = bad_steps(batch)
        clean = jax.tree.map(_zeroed, batch)
        return jnp.where(bad, 0.0, bonus.reward(state, clean, value=value)), bad.sum(dtype=jnp.int32)

    def update(state, batch: Transition, key):
        key, k_update = jax.random.split(key)
        return *bonus.update(state, batch, k_update), key

    def bad_steps(batch: Transition) -> Bool[Array, "*b"]:
        return _non_finite((batch.obs, batch.action, batch.next_obs), *batch.reward.shape)

    return CompiledCalls(*map(jax.jit, (reset, begin, observe, reward, update, bad_steps)))


@_compiled_once
def decisions(agent: Agent, spec: Spec, n: int) -> Callable:
    """The decisions of an agent in n environments, compiled once for equal agents.

        (state, key, carry, began, obs, goal, explore) -> key, carry, actions, extras

    Where an episode has just begun, the recurrent state is that of `agent.carry`.
    """

    def decide(state, key, carry, began, obs, goal, explore: bool):
        key, k_act = jax.random.split(key)
        carry = trees.select(began, repeated(agent.carry(spec), n), carry)
        one = lambda c, o, g, k: agent.act(state, c, o, g, k, explore=explore)  # noqa: E731
        return key, *jax.vmap(one)(carry, obs, goal, jax.random.split(k_act, n))

    return jax.jit(decide, static_argnames="explore")


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def _zeroed(x: Array) -> Array:
    return jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x)) if _is_float(x) else x


def _non_finite(seen: PyTree, *batch: int) -> Bool[Array, "*b"]:
    """Where a leaf holds NaN or infinity, by the leading axes of that shape."""
    bad = jnp.zeros(batch, bool)
    for x in filter(_is_float, jax.tree.leaves(seen)):
        bad = bad | ~jnp.isfinite(x).all(axis=tuple(range(len(batch), x.ndim)))
    return bad


def without(bad: np.ndarray, batch: Transition) -> Transition:
    """The other transitions of a batch [T, N, ...], in order, as [M, 1, ...]; `extras` holds their environments."""
    good = np.flatnonzero(~bad.reshape(-1))
    lanes = np.asarray(batch.extras.lane)[good] if isinstance(batch.extras, Lanes) else good % bad.shape[1]
    left = jax.tree.map(lambda x: np.asarray(x).reshape((-1, *x.shape[2:]))[good][:, None], batch._replace(extras=()))
    return left._replace(extras=Lanes(lanes.astype(np.int32)))  # type: ignore[arg-type]


# Arrays


def is_tensor(x: Any) -> bool:
    """Whether it is a PyTorch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def tensor_in(tree: PyTree) -> Any:
    """The first PyTorch tensor of a tree, or None."""
    return next(filter(is_tensor, jax.tree.leaves(tree)), None)


def to_jax(x: Any, dtype: Any = None) -> jax.Array:
    """An array of any of the three kinds as JAX's. A tensor on a device that JAX has is read in place, by DLPack."""
    if not is_tensor(x):
        return jnp.asarray(x, dtype)
    x = x.detach()
    home = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    narrow = str(x.dtype) not in ("torch.int64", "torch.float64", "torch.bool")  # JAX carries 32 bits, and no bools
    if x.device.type == home and narrow and x.is_contiguous():
        return jnp.asarray(jax.dlpack.from_dlpack(x), dtype)
    return jnp.asarray(x.cpu().numpy(), dtype)


def to_numpy(x: Any) -> np.ndarray:
    """The same as NumPy's, without a copy where it lies on the CPU."""
    return x.detach().cpu().numpy() if is_tensor(x) else np.asarray(x)


def as_kind(x: jax.Array, like: Any) -> Any:
    """A result as NumPy, or as a tensor on the device of the tensor `like`."""
    if like is None:
        return np.asarray(x)
    import torch

    return torch.from_dlpack(x).to(like.device)


def is_space(x: Any) -> bool:
    """For walks over trees of Spaces, which are tuples themselves."""
    return isinstance(x, Space)


def copy_checked(given: PyTree, space: PyTree, n: int, what: str) -> PyTree:
    """A checked copy, one entry an environment, in the dtypes of the space."""
    if isinstance(space, dict):
        if not isinstance(given, dict) or set(given) != set(space):
            has = sorted(given) if isinstance(given, dict) else f"a {type(given).__name__}"
            raise ValueError(f"The {what} must have the parts {sorted(space)}, but this has {has}.")
        return {name: copy_checked(given[name], inner, n, what) for name, inner in space.items()}
    x, dtype, wanted = to_numpy(given), np.dtype(space.dtype), (n, *space.shape)
    if x.shape != wanted:
        if x.shape[1:] == space.shape and x.ndim:
            raise ValueError(f"The {what} are those of {len(x)} environments, but this bonus was made for {n}.")
        raise ValueError(f"The {what} have the shape {x.shape}, but {n} environments of this spec give {wanted}.")
    if _is_float(x) and not _is_float(space) and not np.isfinite(x).all():
        raise ValueError(f"The {what} hold NaN or infinity, which {dtype} cannot carry: fix the environment.")
    if space.n is not None and x.size and not (x.min() >= 0 and x.max() < space.n):
        raise ValueError(f"The {what} go from {x.min()} to {x.max()}, but the spec allows 0 to {space.n - 1}.")
    _check_range(x, dtype, what)
    return np.array(x, dtype)


def _check_range(x: np.ndarray, dtype: Any, what: str) -> None:
    """Raise an error for numbers that an integer type would cut off: JAX carries 32 bits of 64."""
    if x.dtype in (dtype, bool) or not x.size or not np.issubdtype(dtype, np.integer):
        return
    limits = np.iinfo(dtype)
    if x.min() < limits.min or x.max() > limits.max:
        fix = " JAX carries 32 bits: split each number in two, with a wrapper that returns obs.view(np.uint32)."
        raise ValueError(
            f"The {what} go from {x.min()} to {x.max()}, but {dtype} holds only {limits.min} to {limits.max}."
            f"{fix if dtype.itemsize == 4 else ' Give the space a wider dtype.'}"
        )


def check_batch(batch: Any, call: str, axes: int | None = None) -> None:
    """Raise an error for what is not a Transition, or has another number of leading axes."""
    if not isinstance(batch, Transition):
        fix = "join the steps with made.core.trees.stack(steps)" if isinstance(batch, list | tuple) else "build one"
        raise ValueError(f"HostBonus.{call} takes a Transition, not a {type(batch).__name__}: {fix}.")
    shape = np.shape(batch.reward)
    if axes is not None and len(shape) != axes:
        fix = "pass made.core.trees.stack([step])" if len(shape) == 1 else "give the rewards, and all else, these axes"
        raise ValueError(
            f"HostBonus.{call} takes steps of all environments with leading axes [T, N], but the rewards have the "
            f"shape {shape}: {fix}."
        )


def flags(given: Any, n: int, what: str) -> np.ndarray:
    """One truth value an environment, as NumPy."""
    x = np.array(to_numpy(given), bool)
    if x.shape != (n,):
        raise ValueError(f"{what} has the shape {x.shape}, but this bonus was made for {n} environments.")
    return x


def batch_of(batch: Transition, spec: Spec) -> Transition:
    """A batch of any kind of array as JAX's, in the dtypes of the spec, read in place where that is allowed."""
    if all(isinstance(x, jax.Array) for x in jax.tree.leaves(batch)):
        return batch

    def cast(spaces: PyTree, tree: PyTree, what: str) -> PyTree:
        def leaf(space: Space, x: Any) -> jax.Array:
            if not isinstance(x, jax.Array) and not _is_float(space):
                _check_range(to_numpy(x), np.dtype(space.dtype), what)
            return to_jax(x, space.dtype)

        return jax.tree.map(leaf, spaces, tree, is_leaf=is_space) if jax.tree.leaves(tree) else tree

    parts = {"obs": cast(spec.obs, batch.obs, "observations"), "next_obs": cast(spec.obs, batch.next_obs, "successors")}
    parts["action"] = cast(spec.action, batch.action, "actions")
    rest = {name: jax.tree.map(to_jax, getattr(batch, name)) for name in batch._fields if name not in parts}
    return Transition(**parts, **rest)
