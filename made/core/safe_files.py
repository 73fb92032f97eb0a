"""Write files safely: atomically, never through a symbolic link, and with a clear error when the disk is full."""

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_NEVER = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)  # follow a link, change an end of line
_FLAGS = {"x": os.O_WRONLY | os.O_EXCL, "a": os.O_WRONLY | os.O_APPEND}  # of `opened`
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room, no more of the user's share, no larger file


class DiskFull(OSError):
    """There is no room to write; what had been written before is whole."""

    def __str__(self) -> str:
        return str(self.strerror)


@contextlib.contextmanager
def disk_full_message(says: Callable[[], str]) -> Iterator[None]:
    """Where the disk fills up in this block, `says` is asked for the sentence that the user reads."""
    try:
        yield
    except DiskFull:
        raise
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFull(error.errno, says()) from error


def opened(path: Path, mode: str) -> BinaryIO:
    """Open a file for writing, in bytes: "x" makes a new one, "a" goes on with what is there.

    All files of this package are opened here, or by `replace` and `save`, which put new ones in their place. A
    symbolic link is refused: what it leads to may be anybody's.
    """
    try:
        handle = os.open(path, _FLAGS[mode] | os.O_CREAT | _NEVER, 0o666)
    except OSError:
        if not os.path.islink(path) or mode == "x":
            raise
        told = "which is never written through: remove it, or choose another place"
        raise ValueError(f"{path} is a symbolic link, {told}.") from None
    return os.fdopen(handle, f"{mode}b", buffering=0)  # type: ignore[return-value]


def create(path: Path, content: str | bytes) -> BinaryIO:
    """A new file with that content, still open; nothing may be there under its name."""
    left = memoryview(content.encode() if isinstance(content, str) else content)
    file = opened(path, "x")
    try:
        while left:  # a nearly full disk takes a part of it first
            left = left[file.write(left) or 0 :]
    except BaseException:
        file.close()
        raise
    return file


def write_atomic(path: Path, content: str | bytes) -> Path:
    """Put a file in the place of another, so that a kill leaves the old one or the new one; a link is replaced too."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        with create(temporary, content) as file:
            os.fsync(file.fileno())
        return temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
