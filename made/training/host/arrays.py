"""Arrays of a host loop: NumPy, JAX and PyTorch in, checked against the spec; the same kind out.

PyTorch is imported only after a tensor has come in.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from made.core import Space, Spec, Transition

BAD = (
    "An observation or action is NaN or infinite, and learning from it would spoil the bonus for good: fix the "
    "environment, or pass on_bad='report' to pay nothing for such steps and count them."
)


def is_tensor(x: Any) -> bool:
    """Is it a PyTorch tensor?"""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def tensor_in(tree: PyTree) -> Any:
    """The first PyTorch tensor of a tree, or None."""
    return next((x for x in jax.tree.leaves(tree) if is_tensor(x)), None)


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

    if x.dtype == jnp.bool_:
        return torch.from_numpy(np.array(x)).to(like.device)
    return torch.from_dlpack(x).to(like.device)


def is_space(x: Any) -> bool:
    """For walks over trees of Spaces, which are tuples themselves."""
    return isinstance(x, Space)


def carried(spec: Spec) -> Spec:
    """The same in the dtypes that JAX carries: 32 bits for 64, unless it was told to carry more."""
    narrow = lambda space: space._replace(dtype=jax.dtypes.canonicalize_dtype(space.dtype))  # noqa: E731
    return spec._replace(obs=jax.tree.map(narrow, spec.obs, is_leaf=is_space), action=narrow(spec.action))


def copy_checked(given: PyTree, space: PyTree, n: int, what: str) -> PyTree:
    """A checked copy, one entry an environment, in the dtypes of the space."""
    if not isinstance(space, dict):
        return _kept_leaf(given, space, n, what)
    if not isinstance(given, dict) or set(given) != set(space):
        has = sorted(given) if isinstance(given, dict) else f"a {type(given).__name__}"
        raise ValueError(f"The {what} must have the parts {sorted(space)}, but this has {has}.")
    return {name: copy_checked(given[name], inner, n, what) for name, inner in space.items()}


def _kept_leaf(given: Any, space: Space, n: int, what: str) -> np.ndarray:
    x, dtype = to_numpy(given), np.dtype(space.dtype)
    if x.shape != (n, *space.shape):
        wanted = (n, *space.shape)
        if x.shape[1:] == space.shape and x.ndim:
            raise ValueError(f"The {what} are those of {len(x)} environments, but this bonus was made for {n}.")
        raise ValueError(f"The {what} have the shape {x.shape}, but {n} environments of this spec give {wanted}.")
    if np.issubdtype(x.dtype, np.floating) and not np.issubdtype(dtype, np.floating) and not np.isfinite(x).all():
        raise ValueError(f"The {what} hold NaN or infinity, which {dtype} cannot carry: fix the environment.")
    if space.n is not None and x.size and not (x.min() >= 0 and x.max() < space.n):
        raise ValueError(f"The {what} go from {x.min()} to {x.max()}, but the spec allows 0 to {space.n - 1}.")
    _check_range(x, dtype, what)
    return np.array(x, dtype)


def _check_range(x: np.ndarray, dtype: Any, what: str) -> None:
    """Refuse numbers that an integer type would cut off: JAX carries 32 bits of 64."""
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
    """Refuse what is not a Transition, or does not lead with so many axes."""
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


def flags(given: Any, n: int, what: str) -> Any:
    """One truth value an environment, as NumPy."""
    x = np.array(to_numpy(given), bool)
    if x.shape != (n,):
        raise ValueError(f"{what} has the shape {x.shape}, but this bonus was made for {n} environments.")
    return x


def finite(tree: PyTree) -> bool:
    """Is every number of the floating leaves finite?"""
    return all(np.isfinite(x).all() for x in jax.tree.leaves(tree) if np.issubdtype(x.dtype, np.floating))


def batch_of(batch: Transition, spec: Spec) -> Transition:
    """A batch of any kind of array as JAX's, in the dtypes of the spec, read in place where that is allowed."""
    if all(isinstance(x, jax.Array) for x in jax.tree.leaves(batch)):
        return batch

    def cast(spaces: PyTree, x: PyTree, what: str) -> PyTree:
        if not jax.tree.leaves(x):
            return x
        return jax.tree.map(lambda space, y: _cast(y, space.dtype, what), spaces, x, is_leaf=is_space)

    parts = {"obs": cast(spec.obs, batch.obs, "observations"), "next_obs": cast(spec.obs, batch.next_obs, "successors")}
    parts["action"] = cast(spec.action, batch.action, "actions")
    rest = {name: jax.tree.map(to_jax, getattr(batch, name)) for name in batch._fields if name not in parts}
    return Transition(**parts, **rest)


def _cast(x: Any, dtype: Any, what: str) -> jax.Array:
    if not isinstance(x, jax.Array) and np.issubdtype(dtype, np.integer):
        _check_range(to_numpy(x), np.dtype(dtype), what)
    return to_jax(x, dtype)
