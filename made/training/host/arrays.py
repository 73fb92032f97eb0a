"""Arrays at the edge: NumPy, JAX and PyTorch in, the same kind out.

PyTorch is imported only once a tensor has come in, so nobody pays for it who does not use it.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree


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
