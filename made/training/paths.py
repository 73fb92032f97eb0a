"""Where results are to go: a place that cannot be written to is refused in a sentence, before work is done for it."""

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

# What the system answers where nothing can be written, whatever is done about it; a full disk is told elsewhere.
_NO_PLACE = (errno.EEXIST, errno.ENOTDIR, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)


def make_dir(path: Path, option: str) -> Path:
    """A folder to write into, made if it is not there; the option that named it is told where it cannot be one."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise
        if os.path.exists(path):  # which no lack of permission stops
            raise ValueError(f"{path} is a file, not a folder: give another one with {option}.") from None
        raise ValueError(f"{path} cannot be made: give another folder with {option}.") from None
    if not os.access(path, os.W_OK | os.X_OK):  # asked rather than tried: others may be looking at what is in it
        raise ValueError(f"{path} may not be written into: give another folder with {option}.")
    return path


def require_dir(path: Path, option: str) -> None:
    """Refuse what `made_folder` would, and leave nothing behind: what is asked for may yet be refused otherwise."""
    with _as_it_was(path):
        make_dir(path, option)


def require_file(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, or that is none, and leave nothing behind."""
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder, not a file: give another one with {option}.")
    if os.path.exists(path) and not os.path.isfile(path):  # a device or a pipe: a record is put in its place
        raise ValueError(f"{path} is no plain file: give another one with {option}.")
    probe = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")  # as `safe_files.write_atomic` writes it
    with _as_it_was(path.parent):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            safe_files.opened(probe, "x").close()
        except OSError as error:
            if error.errno not in _NO_PLACE:
                raise
            raise ValueError(f"{path} cannot be written: give another file with {option}.") from None
        probe.unlink()


def demand_store(root: Path) -> None:
    """Refuse a folder that holds something else, or a store of a later format."""
    if root.exists() and not root.is_dir():
        raise ValueError(f"{root} is a file, not a folder of results: give another folder with --out.")
    try:
        text = (root / MARKER).read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):  # the latter below a file, where nothing is either
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


@contextlib.contextmanager
def _as_it_was(path: Path) -> Iterator[None]:
    """Folders that the block makes on the way to a path are removed again; others, and what is in them, stay."""
    new = [one for one in (path, *path.parents) if not os.path.exists(one)]
    try:
        yield
    finally:
        for one in new:
            with contextlib.suppress(OSError):
                one.rmdir()
