"""`made selftest`: what the toolkit promises about hard times, tried on this machine.

A file here has `CHECKS`, from a name to a check: a function that takes a folder to work in and returns plain data with
`passed`, `what` and numbers. `LONG` has the full-length form of those that have one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

Check = Callable[[Path], dict[str, Any]]


def checks(long: bool = False) -> dict[str, Check]:
    """All checks by name, in their short or their full form."""
    from made.selftest import damage, disk, fuzz, kills, matrix, soak, sweeps

    files: tuple[Any, ...] = (damage, disk, kills, matrix, fuzz, soak, sweeps)
    short = {name: check for file in files for name, check in file.CHECKS.items()}
    full = {name: check for file in files for name, check in getattr(file, "LONG", {}).items()}
    return {**short, **full} if long else short


def __getattr__(name: str) -> Any:
    """`CHECKS` and `LONG` are gathered when they are asked for: the command line does not wait for them."""
    if name in ("CHECKS", "LONG"):
        return checks(long=name == "LONG")
    raise AttributeError(f"made.selftest has no {name!r}.")
