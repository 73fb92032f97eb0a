"""The command `made`: finds the command that the words ask for, runs it, and tells in one line what went wrong."""

import contextlib
import io
import os
import re
import sys
from typing import Annotated, Union

import tyro

from made import saving
from made.commands.looking import Bench, Doctor, List, Map, Play
from made.commands.studies import Check, Demo, Figure, Report, Run
from made.selftest.command import SelfTest
from made.sweeping.cache import use_compilation_cache
from made.sweeping.command import Sweep
from made.training.command import Train
from made.training.transfer import Transfer

COMMANDS = (Demo, List, Run, Sweep, Train, Transfer, Figure, Check, Report, Map, Bench, Doctor, SelfTest, Play)


def parse(words: list[str]):
    """The command that the words ask for; a mistake is told in one line and ends with exit code 2."""
    names = [command.__name__.lower() for command in COMMANDS]
    if words and not words[0].startswith("-") and words[0] not in names:
        from made.describe import suggest

        raise ValueError(f"There is no command {words[0]!r}.{suggest(words[0], names)}")
    union = Union[tuple(Annotated[c, tyro.conf.subcommand(c.__name__.lower())] for c in COMMANDS)]  # noqa: UP007
    heard = io.StringIO()
    try:
        with contextlib.redirect_stderr(heard):
            return tyro.cli(union, prog="made", args=words, config=(tyro.conf.FlagCreatePairsOff,))  # type: ignore[arg-type]
    except SystemExit as stop:
        if stop.code:
            raise ValueError(f"{_in_one_line(heard.getvalue())} See: made {words[0] if words else ''} --help") from None
        raise


def _in_one_line(box: str) -> str:
    """The gist of tyro's boxed message: its first sentences, and the nearest option where it names one."""
    lines = [" ".join(re.sub(r"[^\x20-\x7e]", " ", line).split()) for line in box.splitlines()]
    lines = [line for line in lines if line]
    if wrong := re.search(r"Error parsing (\S+):.*?from \['(.*?)'\]", " ".join(lines)):
        return f"{wrong[1]} cannot be {wrong[2]!r}."
    gist = " ".join(lines[1:3] if lines[0].startswith(("Required", "Parsing")) else lines[1:2])
    near = re.search(r"meant: (--[a-z-]+)", " ".join(lines))
    return f"{gist}." + (f" Did you mean {near[1]}?" if near else "")


OVERVIEW = """made: exploration by maximising deviation from explored regions.

  made demo                      two minutes: Figures 3 to 6, Algorithm 1, verdicts on claims 1 to 17
  made list                      what there is
  made run lock --scale small    one experiment, larger; then: made check lock, made figure lock
  made sweep lock --on pool      the same on every core; also on a Ray cluster or through SLURM
  made train --env DoorKey-5x5   an agent with a bonus; the same command goes on after an interruption
  made doctor                    what is missing on this machine, and the fix

Every command explains itself with --help."""

FULL = "The disk is full: what was stored before is whole, and with more room the same command goes on."


def main(words: list[str] | None = None) -> int:
    """Entry point of the command line."""
    words = sys.argv[1:] if words is None else words
    if not words:
        print(OVERVIEW)
        return 0
    try:
        command = parse(words)
        use_compilation_cache()
        with saving.room(lambda: FULL):
            return command.main()
    except ValueError as error:
        print(f"made: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("made: interrupted; what is stored stays, and the same command goes on from there.", file=sys.stderr)
        os._exit(130)  # threads may still be inside compiled code
    except BrokenPipeError:
        return 0
    except OSError as error:
        print(f"made: {' '.join(str(error).split())}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
