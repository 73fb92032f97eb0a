"""A state on disk: one safetensors file whose header holds a JSON manifest of what it is the state of.

Nothing that is read is executed. A file is complete or absent, and it is only overwritten on request. Arrays are hashed
and written in pieces, so that a replay buffer of gigabytes on a device is never copied to the host as a whole.
"""

import hashlib
import json
import os
import reprlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from safetensors import SafetensorError, safe_open

from made.core import trees

FORMAT, VERSION = "made-bonus", 1
_KEY, _SEAL = "made", "seal"  # of the header's metadata; of the manifest's own checksum in it

_PIECE = 1 << 26  # bytes that are copied at once
# What safetensors calls each type, in the order in which it lays arrays out: the wider first, so that all are aligned.
_TYPES = {"uint64": "U64", "int64": "I64", "float64": "F64", "float32": "F32", "uint32": "U32", "int32": "I32"}
_TYPES |= {"bfloat16": "BF16", "float16": "F16", "uint16": "U16", "int16": "I16", "int8": "I8", "uint8": "U8"}
_TYPES |= {"bool": "BOOL"}

# What reading a damaged or hostile file may raise; a header can be nested deeper than Python follows.
_UNREADABLE = (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError)
_UNREADABLE += (RecursionError, MemoryError)
_MOST_LISTED = 8  # settings that differ, in one error

Arrays = dict[str, np.ndarray]


def made_version() -> str:
    """The version of this package."""
    return sys.modules["made"].__version__


def flat(tree: PyTree) -> Arrays:
    """A NumPy copy of every leaf under the path that leads to it; random keys as their data."""
    return {name: np.array(x, order="C") for name, x in leaves_in_place(tree).items()}


def leaves_in_place(tree: PyTree) -> dict[str, Any]:
    """The same without a copy: arrays on a device stay there until `save` writes them."""
    named = {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}
    return {name: trees.key_data(x if hasattr(x, "dtype") else np.asarray(x)) for name, x in named.items()}


def unflat(arrays: Mapping[str, np.ndarray], like: PyTree, free: int = 0) -> PyTree:
    """The tree of `like`'s structure. `free` leading axes may have any length: they hold what waits to be learned."""
    wanted = {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(like)}
    if different := sorted(set(wanted) ^ set(arrays)):
        raise ValueError(
            f"The file does not hold the same arrays as this bonus: {different[0]} is only in one of them."
        )
    return jax.tree.unflatten(
        jax.tree.structure(like), [_checked(arrays[name], x, name, free) for name, x in wanted.items()]
    )


def _checked(new: np.ndarray, like: Any, name: str, free: int) -> Any:
    """One array as the leaf that it replaces: on the host with NumPy's dtype, or on the device."""
    on_host = isinstance(like, np.ndarray | np.generic)
    data = like if on_host else jax.eval_shape(trees.key_data, like)
    if new.shape[free:] != data.shape or new.dtype != data.dtype:
        raise ValueError(
            f"The file holds {name} as {new.dtype}{list(new.shape)}, but this bonus has {data.dtype}"
            f"{list(data.shape)} there: it was saved by another bonus or another environment."
        )
    return new if on_host else trees.wrap_key_data(jnp.array(new), like)


def save(
    path: str | os.PathLike, arrays: Mapping[str, Any], manifest: Mapping[str, Any], overwrite: bool = False
) -> Path:
    """Write the arrays, of NumPy or of JAX, and what they are, so that the file is complete or absent."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise ValueError(f"{path} is there already: pass overwrite=True to replace it, or choose another name.")
    header = {**manifest, "sha256": _digest(arrays)}
    header |= {_SEAL: _sealed(header)}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            _write(file, arrays, {_KEY: json.dumps(header, sort_keys=True)})
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def _write(file: Any, arrays: Mapping[str, Any], metadata: dict[str, str]) -> None:
    """The file as safetensors lays it out: the length of the header, the header, then array after array."""
    ranks, end = list(_TYPES), 0
    for name, x in arrays.items():
        if str(x.dtype) not in _TYPES:
            raise ValueError(f"{name} is an array of {x.dtype}, which a safetensors file cannot hold.")
    names = sorted(arrays, key=lambda name: (ranks.index(str(arrays[name].dtype)), name))
    header: dict[str, Any] = {"__metadata__": metadata}
    for name in names:
        x, begin = arrays[name], end
        end += x.nbytes
        header[name] = {"dtype": _TYPES[str(x.dtype)], "shape": list(x.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        for piece in _pieces(arrays[name]):
            file.write(piece)


def _pieces(x: Any) -> Iterator[memoryview]:
    """The bytes of an array in order. A large one on a device is fetched a piece at a time, and none of it is kept."""
    parts: Any = [x]
    if isinstance(x, jax.Array) and x.nbytes > _PIECE:
        axis = next(i for i, n in enumerate(x.shape) if n > 1)
        n = x.shape[axis]
        rows = max(1, _PIECE * n // x.nbytes)
        parts = (jax.lax.dynamic_slice_in_dim(x, i, min(rows, n - i), axis) for i in range(0, n, rows))
    for part in parts:
        yield memoryview(np.ascontiguousarray(part).reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def load(path: str | os.PathLike, format: str = FORMAT) -> tuple[Arrays, dict[str, Any]]:
    """(arrays, manifest) of a file of that format; an error where it is another file or is damaged."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"There is no file {path}: give the name that was passed to save.")
    try:
        with safe_open(path, "numpy") as file:
            header = json.loads((file.metadata() or {}).get(_KEY, "{}"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dictionary
    except _UNREADABLE as error:
        raise ValueError(f"{path} is not a whole safetensors file: it is damaged, cut short or foreign.") from error
    if not isinstance(header, dict) or header.get("format") != format:
        raise ValueError(f"{path} was not written by made: it has no manifest of the format {format!r}.")
    if header.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {header.get('version')!r} of the format, written by made {header.get('made')}, and "
            f"this is made {made_version()}, which reads version {VERSION}."
        )
    seal = header.pop(_SEAL, None)  # files of before it was introduced have none
    if seal is not None and seal != _sealed(header):
        raise ValueError(f"The manifest of {path} is not the one that was written: the file is damaged.")
    if header.pop("sha256", None) != _digest(arrays):
        raise ValueError(f"The arrays of {path} are not those that were written: the file is damaged.")
    return arrays, header


def _sealed(header: Mapping[str, Any]) -> str:
    """A checksum of the manifest, the same before it is written and after it is read."""
    plain = json.loads(json.dumps(header))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _digest(arrays: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        for piece in _pieces(arrays[name]):
            digest.update(piece)
    return digest.hexdigest()


def check(found: Mapping[str, Any], wanted: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Raise an error that lists every setting in which the manifests differ.

    The versions of made may differ, and whether the first episode had begun.
    """
    different = []
    for name in (name for name in wanted if name not in ("made", "format", "version", "began")):
        different += _differences(found.get(name), json.loads(json.dumps(wanted[name])), name)
    if not different:
        return
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = 80
    listed = [f"{at} = {brief.repr(a)}, but here it is {brief.repr(b)}" for at, a, b in different[:_MOST_LISTED]]
    listed += [f"{len(different) - _MOST_LISTED} more"] if len(different) > _MOST_LISTED else []
    raise ValueError(f"{path} was saved with {'; '.join(listed)}: they must be equal.")


def _differences(a: Any, b: Any, name: str) -> list[tuple[str, Any, Any]]:
    """(path, there, here) of all that differs; of objects of two classes only the classes."""
    if a == b:
        return []
    if isinstance(a, dict) and isinstance(b, dict) and a.get("class") == b.get("class"):
        return [one for key in dict.fromkeys((*a, *b)) for one in _differences(a.get(key), b.get(key), f"{name}.{key}")]
    a, b = (x["class"] if isinstance(x, dict) and "class" in x else x for x in (a, b))
    return [(name, a, b)]
