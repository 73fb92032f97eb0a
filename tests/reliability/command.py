"""`made selftest`: run the checks, say what came of each, and keep a record."""

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from made.cli.train import Flag

Check = Callable[[Path], dict[str, Any]]


def checks(long: bool = False) -> dict[str, Check]:
    """All checks by name, in their short or their full form."""
    from tests.reliability import cli_fuzz, damage, full_disk, kill_and_resume, kill_matrix, memory_growth, worker_loss

    files: tuple[Any, ...] = (damage, full_disk, kill_and_resume, kill_matrix, cli_fuzz, memory_growth, worker_loss)
    short = {name: check for file in files for name, check in file.CHECKS.items()}
    full = {name: check for file in files for name, check in getattr(file, "LONG", {}).items()}
    return {**short, **full} if long else short


def __getattr__(name: str) -> Any:
    """`CHECKS` and `LONG` are gathered when they are asked for: the command line does not wait for them."""
    if name in ("CHECKS", "LONG"):
        return checks(long=name == "LONG")
    raise AttributeError(f"tests.reliability.command has no {name!r}.")


@dataclasses.dataclass
class SelfTest:
    """Kill, damage, fill up, fuzz and watch: whether runs survive it on this machine. A few minutes; --long an hour."""

    long: Flag = False  # the full numbers: 100 kills, 10,000 fuzzed calls, a soak of half an hour
    only: str | None = None  # one check by its name
    out: Path | None = None  # write a record of each check into this folder
    json: Flag = False
    figures: Path | None = None  # run nothing: draw what is recorded in --out into this folder

    def main(self) -> int:
        if self.figures is not None:
            return self._draw(self.figures)
        from made.training.paths import require_dir

        pass

        known = checks(self.long)
        if self.only is not None and self.only not in known:
            from made.core.config import suggest

            raise ValueError(f"There is no check {self.only!r}.{suggest(self.only, list(known))}")
        if self.out is not None:
            require_dir(self.out, "--out")  # before minutes of checks
        found = {name: self._run(name, known[name]) for name in ([self.only] if self.only else known)}
        if self.json:
            print(json.dumps(found, indent=1))
        return int(not all(one["passed"] for one in found.values()))

    def _run(self, name: str, check: Any) -> dict[str, Any]:
        from made.training.provenance import provenance

        if not self.json:
            print(f"made: {name} ...", file=sys.stderr, flush=True)
        started = time.time()
        with tempfile.TemporaryDirectory(prefix="made-selftest-") as folder:
            found = check(Path(folder) / name)
        took = time.time() - started
        record = {**found, "long": self.long, "provenance": provenance(started, took)}
        if self.out is not None:
            write(self.out / f"{name}.json", record)
        if not self.json:
            print(told(name, found, took))
        return record

    def _draw(self, to: Path) -> int:
        from tests.reliability import figures

        for path in figures.draw(self.out or Path("results/reliability"), to):
            print(f"drawn: {path}")
        print(figures.table(self.out or Path("results/reliability")))
        return 0


def write(path: Path, record: dict[str, Any]) -> None:
    """A record on disk, whole or not at all."""
    from made.core.safe_files import write_atomic

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(record, indent=1) + "\n")


def told(name: str, found: dict[str, Any], seconds: float) -> str:
    """One line of a check: its verdict, what it did, its numbers; below it what was wrong.

    >>> told("damage", {"passed": True, "what": "damaged files", "damages": 81, "wrong": []}, 12.3)
    'passed   damage: damaged files (damages 81; 12 s)'
    """
    numbers = [f"{key} {x:,}" for key, x in found.items() if isinstance(x, int | float) and not isinstance(x, bool)]
    wrong = [str(x) for key in ("wrong", "differ") for x in found.get(key, ())]
    wrong += [f"{one['scene']}: {one}" for one in found.get("scenes", ()) if not one["passed"]]
    verdict = "passed" if found["passed"] else "FAILED"
    head = f"{verdict:8} {name}: {found['what']} ({', '.join(numbers)}; {seconds:.0f} s)".replace("(; ", "(")
    return "\n".join([head, *(f"{'':9}{one}" for one in wrong[:20])])
