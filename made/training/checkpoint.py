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

from jaxtyping import PyTree

from made.training import checkpoint_file

FORMAT = "made-training"
KEEP = 3  # resuming needs one; the others are for a damaged disk and for looking back


class Checkpoint(NamedTuple):
    """A checkpoint as it was read."""

    path: Path
    arrays: checkpoint_file.Arrays
    configuration: dict[str, Any]  # of the run
    update: int  # updates done
    seconds: float  # of training


def save(
    folder: Path, state: PyTree, configuration: Mapping[str, Any], update: int, seconds: float, keep: int = KEEP
) -> None:
    """Write the state after that many updates, and remove all but the newest `keep`."""
    manifest = {
        "format": FORMAT,
        "version": checkpoint_file.VERSION,
        "configuration": dict(configuration),
        "update": update,
        "seconds": round(seconds, 3),
    }
    arrays = checkpoint_file.leaves_in_place(state)
    checkpoint_file.save(folder / f"{update:09d}.safetensors", arrays, manifest, overwrite=True)
    if os.name == "posix":  # where folders can be synced, so that the rename itself outlasts a power cut
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    for old in files(folder)[:-keep]:
        old.unlink(missing_ok=True)


def files(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    return sorted(path for path in folder.glob("*.safetensors") if path.stem.isdigit())


def newest(folder: Path) -> Checkpoint | None:
    """The newest complete checkpoint; a warning names each damaged one that is skipped."""
    found = files(folder)
    for i, path in reversed([*enumerate(found)]):
        try:
            return read(path)
        except ValueError as error:
            then = "Going on from the checkpoint before it." if i else "There is none before it."
            warnings.warn(f"{error} {then}", stacklevel=2)
    return None


def read(path: Path) -> Checkpoint:
    """One checkpoint; an error where it is damaged, foreign, or of another update than its name says."""
    arrays, manifest = checkpoint_file.load(path, FORMAT)
    found = Checkpoint(path, arrays, *(manifest.get(name) for name in ("configuration", "update", "seconds")))  # type: ignore[arg-type]
    known = isinstance(found.configuration, dict) and isinstance(found.seconds, int | float)
    if not known or type(found.update) is not int or found.update != int(path.stem):
        raise ValueError(f"The manifest of {path} does not say of which run and update it is: the file is damaged.")
    return found


def set_aside(folder: Path, used: Checkpoint | None) -> bool:
    """Rename checkpoints newer than the one used, which are damaged, to NAME.damaged; whether there were any."""
    damaged = [path for path in files(folder) if used is None or path.name > used.path.name]
    for path in damaged:
        path.replace(path.with_name(f"{path.name}.damaged"))
    return bool(damaged)


def restore(checkpoint: Checkpoint, shapes: PyTree) -> PyTree:
    """The state of a checkpoint, given its shapes."""
    try:
        return checkpoint_file.unflat(checkpoint.arrays, shapes)
    except ValueError as error:
        raise ValueError(
            f"{checkpoint.path} was written by another version of the code, whose state had other arrays: resume with "
            "that version, or give another folder with --out."
        ) from error
