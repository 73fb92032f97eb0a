"""Checkpoints of a run: training resumes from the newest complete one.

A checkpoint is one safetensors file. It is written under another name, synced and renamed
(`made.training.checkpoint_file`), so a kill at any moment leaves it complete or absent. Its header names the run, the
seeds and the update.
"""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from made.core import trees
from made.training import checkpoint_file

FORMAT = "made-training"
KEEP = 3  # one is enough to go on from; the others are for a damaged disk and for looking back


class Checkpoint(NamedTuple):
    """A checkpoint as it was read."""

    path: Path
    arrays: checkpoint_file.Arrays
    manifest: dict[str, Any]

    @property
    def update(self) -> int:
        """How many updates had been done."""
        return int(self.manifest["update"])

    @property
    def seconds(self) -> float:
        """How long they had taken."""
        return float(self.manifest["seconds"])


def save(
    folder: Path, state: PyTree, configuration: Mapping[str, Any], update: int, seconds: float, keep: int = KEEP
) -> Path:
    """Write the state after that many updates, and remove all but the newest `keep`."""
    path = folder / f"{update:09d}.safetensors"
    manifest = {
        "format": FORMAT,
        "version": checkpoint_file.VERSION,
        "configuration": dict(configuration),
        "update": update,
        "seconds": round(seconds, 3),
    }
    checkpoint_file.save(path, checkpoint_file.leaves_in_place(state), manifest, overwrite=True)
    _sync(folder)
    for old in files(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def files(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    return sorted(path for path in folder.glob("*.safetensors") if path.stem.isdigit())


def newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are named in a warning and passed over."""
    found = files(folder)
    for i, path in reversed([*enumerate(found)]):
        try:
            return read(path)
        except ValueError as error:
            then = "Going on from the checkpoint before it." if i else "There is none before it."
            warnings.warn(f"{error} {then}", stacklevel=2)
    return None


def read(path: Path) -> Checkpoint:
    """One checkpoint; a sentence where it is damaged, foreign, or of another update than its name says."""
    found = Checkpoint(path, *checkpoint_file.load(path, FORMAT))
    told = found.manifest
    known = isinstance(told.get("configuration"), dict) and isinstance(told.get("seconds"), int | float)
    if not known or type(told.get("update")) is not int or told["update"] != int(path.stem):
        raise ValueError(f"The manifest of {path} does not say of which run and update it is: the file is damaged.")
    return found


def set_aside(folder: Path, used: Checkpoint | None) -> list[Path]:
    """Rename the damaged ones, those that are newer than the one used, so that they do not count among the newest.

    Nothing is removed: whoever wants to look into them finds them under NAME.damaged.
    """
    damaged = [path for path in files(folder) if used is None or path.name > used.path.name]
    return [path.replace(path.with_name(f"{path.name}.damaged")) for path in damaged]


def restore(checkpoint: Checkpoint, shapes: PyTree) -> PyTree:
    """The state as the program takes it, given its shapes."""
    key = jax.random.key(0)  # stands for random keys, whose shape does not say their kind
    like = jax.tree.map(lambda x: jnp.broadcast_to(key, x.shape) if trees.is_key(x) else x, shapes)
    try:
        return checkpoint_file.unflat(checkpoint.arrays, like)
    except ValueError as error:
        raise ValueError(
            f"{checkpoint.path} was written by another version of the code, whose state had other arrays: resume with "
            "that version, or give another folder with --out."
        ) from error


def _sync(folder: Path) -> None:
    """Make the rename itself outlast a power cut, where folders can be synced."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
