"""`python -m benchmarks.compare OTHER`: this checkout next to another one, side by side on this machine.

    git worktree add ../before COMMIT
    python -m benchmarks.compare ../before

Each checkout has a process of its own. They compile at the same time and are then timed in turn, never together. The
best of several calls counts; a ratio above 1 means that this checkout is faster.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("compare_worker.py")
REPEATS = 5
COMMANDS = {"import made": ("-c", "import made")}


class Checkout:
    """A process that times the programs of one checkout."""

    def __init__(self, root: Path, only: list[str]):
        if not (root / "made").is_dir() or not (root / "benchmarks").is_dir():
            raise ValueError(f"{root} is no checkout of made: it has no made/ and benchmarks/ in it.")
        self.root = root
        self.environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        self.environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        pipe: Any = subprocess.PIPE
        command = [sys.executable, str(WORKER), *only]
        self.process = subprocess.Popen(
            command, cwd=root, env=self.environment, stdin=pipe, stdout=pipe, text=True, bufsize=1
        )

    def answer(self) -> Any:
        """The next line of the process as data."""
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise ValueError(f"The process of {self.root} ended; its error is above.")
        return json.loads(line)

    def seconds(self, name: str) -> float:
        """Seconds of one call of a program, or of a command."""
        if name in COMMANDS:
            began = time.perf_counter()
            command = [sys.executable, *COMMANDS[name]]
            subprocess.run(command, cwd=self.root, env=self.environment, check=True, capture_output=True)
            return time.perf_counter() - began
        self.process.stdin.write(f"{name}\n")  # type: ignore[union-attr]
        return self.answer()

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()


def compare(other: Path, only: list[str], repeats: int = REPEATS) -> Iterator[dict[str, Any]]:
    """For each program: seconds of the other checkout and of this one, and their ratio."""
    both = [Checkout(root, only) for root in (other.resolve(), HERE)]
    try:
        names = [checkout.answer() for checkout in both]
        for name in [*(x for x in names[1] if x in names[0]), *(() if only else COMMANDS)]:
            best = [float("inf")] * 2
            for _ in range(repeats):
                for i, checkout in enumerate(both):
                    best[i] = min(best[i], checkout.seconds(name))
            yield {"name": name, "before_s": best[0], "after_s": best[1], "ratio": best[0] / best[1]}
    finally:
        for checkout in both:
            checkout.close()


def main(argv: list[str] | None = None) -> int:
    """Print a row of JSON for each program."""
    parser = argparse.ArgumentParser("python -m benchmarks.compare", description=__doc__)
    parser.add_argument("other", type=Path, help="the root of another checkout")
    parser.add_argument("--only", nargs="*", default=[], help="names of programs; all unless given")
    given = parser.parse_args(argv)
    try:
        for row in compare(given.other, given.only):
            print(json.dumps(row), flush=True)
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
