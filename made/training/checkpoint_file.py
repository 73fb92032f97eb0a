"""A state on disk: one safetensors file whose header holds a JSON manifest of what it is the state of.

Nothing that is read is executed. A file is written whole under another name and then renamed, and it is never
overwritten unless that is asked for. Arrays are hashed and written piece by piece, so that a replay of gigabytes on a
device needs no room for itself on the host.
"""

import hashlib
import importlib.metadata
import json
import os
import reprlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from safetensors import SafetensorError, safe_open

from made.core import Space, Spec, trees
from made.core.config import to_dict

FORMAT, VERSION = "made-bonus", 1
RUN_FORMAT = 2  # of a training run's run.json: 2 has the whole configuration and the options
_KEY, _SEAL = "made", "seal"  # of the header's metadata; of the manifest's own checksum in it

_PIECE = 1 << 26  # bytes that are on their way at once
# What safetensors calls each type, in the order in which it lays arrays out: the wider first, so that all are aligned.
_TYPES = {"uint64": "U64", "int64": "I64", "float64": "F64", "float32": "F32", "uint32": "U32", "int32": "I32"}
_TYPES |= {"bfloat16": "BF16", "float16": "F16", "uint16": "U16", "int16": "I16", "int8": "I8", "uint8": "U8"}
_TYPES |= {"bool": "BOOL"}

# What reading a damaged or hostile file may raise; a header can be nested deeper than Python follows.
_UNREADABLE = (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError)
_UNREADABLE += (RecursionError, MemoryError)
_TOLD = 8  # settings that differ, in one sentence

Arrays = dict[str, np.ndarray]


def manifest_of(bonus: Any, spec: Spec, n_envs: int, **more: Any) -> dict[str, Any]:
    """What a state belongs to, as plain data; `more` is for whoever keeps something beside the bonus."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "made": _made(),
        "bonus": to_dict(bonus),
        "spec": _plain(spec),
        "n_envs": n_envs,
        **more,
    }


def _made() -> str:
    try:
        return importlib.metadata.version("made-rl")
    except importlib.metadata.PackageNotFoundError:  # a copy of the sources that was never installed
        return "unknown"


def _plain(spec: Any) -> Any:
    if isinstance(spec, Space):
        return {**spec._asdict(), "shape": list(spec.shape), "dtype": np.dtype(spec.dtype).name}
    if isinstance(spec, Spec):
        return {name: _plain(x) for name, x in spec._asdict().items()}
    if isinstance(spec, dict):
        return {name: _plain(x) for name, x in spec.items()}
    return [_plain(x) for x in spec] if isinstance(spec, tuple | list) else spec


def flat(tree: PyTree) -> Arrays:
    """Every leaf as NumPy under the path that leads to it. Random keys go as their numbers."""
    return {jax.tree_util.keystr(path): _numbers(x) for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def leaves_in_place(tree: PyTree) -> dict[str, Any]:
    """The same without a copy: what is on a device stays there, to be written by `save` before anything changes."""
    named = {jax.tree_util.keystr(path): _array(x) for path, x in jax.tree_util.tree_leaves_with_path(tree)}
    return {name: jax.random.key_data(x) if trees.is_key(x) else x for name, x in named.items()}


def _array(x: Any) -> Any:
    return x if hasattr(x, "dtype") else np.asarray(x)


def _numbers(x: Any) -> np.ndarray:
    x = _array(x)
    return np.array(jax.random.key_data(x) if trees.is_key(x) else x, order="C")


def unflat(arrays: Mapping[str, np.ndarray], like: PyTree, free: int = 0) -> PyTree:
    """The tree of `like`'s structure. `free` leading axes may have any length: they hold what waits to be learned."""
    wanted = jax.tree_util.tree_leaves_with_path(like)
    names = [jax.tree_util.keystr(path) for path, _ in wanted]
    if set(names) != set(arrays):
        odd = sorted(set(names) ^ set(arrays))[0]
        raise ValueError(f"The file does not hold the same arrays as this bonus: {odd} is only in one of them.")
    return jax.tree.unflatten(
        jax.tree.structure(like),
        [_fitting(arrays[name], old, name, free) for name, (_, old) in zip(names, wanted, strict=True)],
    )


def _fitting(new: np.ndarray, old: Any, name: str, free: int) -> Any:
    """One array as the leaf it stands for: NumPy's stay NumPy's, at whatever width."""
    on_host = isinstance(old, np.ndarray | np.generic)
    was = old if on_host else jax.eval_shape(lambda x: jax.random.key_data(x) if trees.is_key(x) else x, old)
    if new.shape[free:] != was.shape or new.dtype != was.dtype:
        raise ValueError(
            f"The file holds {name} as {new.dtype}{list(new.shape)}, but this bonus has {was.dtype}"
            f"{list(was.shape)} there: it was saved by another bonus or another environment."
        )
    if on_host:
        return new
    return (
        jax.random.wrap_key_data(jnp.array(new), impl=jax.random.key_impl(old)) if trees.is_key(old) else jnp.array(new)
    )


def save(
    path: str | os.PathLike, arrays: Mapping[str, Any], manifest: Mapping[str, Any], overwrite: bool = False
) -> Path:
    """Write the arrays, of NumPy or of JAX, and what they are; whole or not at all."""
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
        os.replace(name, path) if overwrite else _place(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def _write(file: Any, arrays: Mapping[str, Any], metadata: dict[str, str]) -> None:
    """The file as safetensors lays it out: the length of the header, the header, then array after array."""
    ranks, names, end = list(_TYPES), list(arrays), 0
    odd = [name for name in names if str(arrays[name].dtype) not in _TYPES]
    if odd:
        raise ValueError(f"{odd[0]} is an array of {arrays[odd[0]].dtype}, which a safetensors file cannot hold.")
    names.sort(key=lambda name: (ranks.index(str(arrays[name].dtype)), name))
    header: dict[str, Any] = {"__metadata__": metadata}
    for name in names:
        begin, end = end, end + arrays[name].nbytes
        kind, shape = _TYPES[str(arrays[name].dtype)], list(arrays[name].shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    told = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    told += b" " * (-len(told) % 8)
    file.write(len(told).to_bytes(8, "little") + told)
    for name in names:
        for piece in _pieces(arrays[name]):
            file.write(piece)


def _pieces(x: Any) -> Iterator[memoryview]:
    """The bytes of an array in order. A large one on a device is fetched a piece at a time, and none of it is kept."""
    if not isinstance(x, jax.Array) or x.nbytes <= _PIECE:
        yield _bytes(np.asarray(x))
        return
    axis = next(i for i, n in enumerate(x.shape) if n > 1)
    rows = max(1, _PIECE * x.shape[axis] // x.nbytes)
    for begin in range(0, x.shape[axis], rows):
        some = jax.lax.dynamic_slice_in_dim(x, begin, min(rows, x.shape[axis] - begin), axis)
        yield _bytes(np.asarray(some))


def _bytes(x: np.ndarray) -> memoryview:
    return memoryview(np.ascontiguousarray(x).reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _place(name: str, path: Path) -> None:
    """Rename without overwriting, should another process have written the file meanwhile."""
    try:
        os.link(name, path)
    except FileExistsError as error:
        raise ValueError(f"{path} was written by somebody else meanwhile: choose another name.") from error
    os.unlink(name)


def load(path: str | os.PathLike, format: str = FORMAT) -> tuple[Arrays, dict[str, Any]]:
    """(arrays, manifest) of a file of that format; a sentence where it is none of ours or is damaged."""
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
            f"this is made {_made()}, which reads version {VERSION}."
        )
    seal = header.pop(_SEAL, None)  # files of before it was introduced have none
    if seal is not None and seal != _sealed(header):
        raise ValueError(f"The manifest of {path} is not the one that was written: the file is damaged.")
    if header.pop("sha256", None) != _digest(arrays):
        raise ValueError(f"The arrays of {path} are not those that were written: the file is damaged.")
    return arrays, header


def _sealed(header: Mapping[str, Any]) -> str:
    """A checksum of the manifest, that of the arrays included; the same before it is written and after it is read."""
    plain = json.loads(json.dumps(header))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _digest(arrays: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        for piece in _pieces(arrays[name]):
            digest.update(piece)
    return digest.hexdigest()


def demand_layout(run: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Refuse the run.json of a training run that was written in another layout."""
    if run.get("format") != RUN_FORMAT:
        commit = next((str(x["commit"]) for x in run["sessions"] if isinstance(x, dict) and x.get("commit")), "unknown")
        raise ValueError(
            f"{path} has layout {run.get('format')} and this version of made reads layout {RUN_FORMAT}: train again "
            f"in another folder, or use the version it was made with, commit {commit}."
        )


def check(found: Mapping[str, Any], wanted: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Refuse a file of another bonus, environment or number of environments; the versions of made may differ.

    The sentence lists every setting that differs.
    """
    odd = []
    for name in (name for name in wanted if name not in ("made", "format", "version")):
        odd += _differences(json.loads(json.dumps(found.get(name))), json.loads(json.dumps(wanted[name])), name)
    if not odd:
        return
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = 80
    told = [f"{where} = {brief.repr(one)}, but here it is {brief.repr(other)}" for where, one, other in odd[:_TOLD]]
    told += [f"{len(odd) - _TOLD} more"] if len(odd) > _TOLD else []
    raise ValueError(f"{path} was saved with {'; '.join(told)}: they must be equal.")


def _differences(a: Any, b: Any, name: str) -> list[tuple[str, Any, Any]]:
    """(path, there, here) of all that differs; of objects of two classes only the classes."""
    if a == b:
        return []
    if isinstance(a, dict) and isinstance(b, dict) and a.get("class") == b.get("class"):
        return [one for key in dict.fromkeys((*a, *b)) for one in _differences(a.get(key), b.get(key), f"{name}.{key}")]
    kind = lambda x: x["class"] if isinstance(x, dict) and "class" in x else x  # noqa: E731
    return [(name, kind(a), kind(b))]
