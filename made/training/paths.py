"""Checks of output paths: a place that cannot be written to is an error before any work is done for it."""

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from made.core import safe_files

FORMAT = 1
MARKER = "made-store.json"

# Errors of the system where nothing can ever be written. A full disk is not one of them.
_NO_PLACE = (errno.EEXIST, errno.ENOTDIR, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)


def make_dir(path: Path, option: str) -> Path:
    """Make a folder to write into; the error names the option that gave it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise
        if os.path.exists(path):  # which no lack of permission stops
            raise ValueError(f"{path} is a file, not a folder: give another one with {option}.") from None
        raise ValueError(f"{path} cannot be made: give another folder with {option}.") from None
    if not os.access(path, os.W_OK | os.X_OK):  # without writing: other processes may read the folder
        raise ValueError(f"{path} may not be written into: give another folder with {option}.")
    return path


def require_dir(path: Path, option: str) -> None:
    """Raise the errors of `make_dir` without leaving a folder behind."""
    with _remove_new_dirs(path):
        make_dir(path, option)


def require_file(path: Path, option: str) -> None:
    """Raise an error for a file that cannot be written, without leaving one behind."""
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder, not a file: give another one with {option}.")
    if os.path.exists(path) and not os.path.isfile(path):  # a device or a pipe
        raise ValueError(f"{path} is no plain file: give another one with {option}.")
    probe = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")  # as `safe_files.write_atomic` writes it
    with _remove_new_dirs(path.parent):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            safe_files.opened(probe, "x").close()
        except OSError as error:
            if error.errno not in _NO_PLACE:
                raise
            raise ValueError(f"{path} cannot be written: give another file with {option}.") from None
        probe.unlink()


@contextlib.contextmanager
def _remove_new_dirs(path: Path) -> Iterator[None]:
    """Remove the empty folders that the block makes on the way to a path."""
    new = [one for one in (path, *path.parents) if not os.path.exists(one)]
    try:
        yield
    finally:
        for one in new:
            with contextlib.suppress(OSError):
                one.rmdir()


def demand_store(root: Path) -> None:
    """Raise an error for a folder that holds something else, or a store of a later format."""
    if root.exists() and not root.is_dir():
        raise ValueError(f"{root} is a file, not a folder of results: give another folder with --out.")
    try:
        text = (root / MARKER).read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):  # the latter below a file
        names = sorted(os.listdir(root)) if root.exists() else []
        if held := [name for name in names if not name.startswith(f".{MARKER}")]:
            some = ", ".join(held[:3]) + (", ..." if len(held) > 3 else "")
            advice = "give another folder with --out, or an empty one"
            raise ValueError(f"{root} holds {some} but no results of made: {advice}.") from None
        return
    found = re.search(r'"format": *(\d+)', text)
    if not found:
        raise ValueError(f"{root / MARKER} is damaged: restore it, or give another folder with --out.")
    if int(found[1]) > FORMAT:
        raise ValueError(f"{root} has format {found[1]} but this made reads up to {FORMAT}: update made.")


def remove_empty(folder: Path) -> None:
    """Remove a folder and the two above it, as long as they are empty."""
    with contextlib.suppress(OSError):  # others are at work there
        for one in (folder, *folder.parents[:2]):
            one.rmdir()
