"""The command line: parse a command, run it, and report errors in one line."""

import contextlib
import dataclasses
import io
import itertools
import os
import re
import shlex
import sys
import traceback
import warnings
from typing import Annotated, Any, Literal, Union

import tyro

import made
from made.cli.experiments import Check, Choose, Demo, Evidence, Export, Figure, Report, Run
from made.cli.info import Doctor, List, Map, Play
from made.cli.train import Plot, Train, Transfer
from made.core import safe_files
from made.core.config import suggest
from made.core.trial import RunsFailed
from made.training import train_loop
from made.training.sharding import use_compilation_cache

# Two minutes on two cores, and it learns: the run of results/train/MultiRoom-N6.
FIRST_TRAINING = (
    "--env MultiRoom-N6 --bonus made-counts --first-visit --strength 0.4 --steps 4M --set agent.learning_rate=6e-4"
)
PLACES = {  # where each shell looks for completions of its user
    "bash": "~/.local/share/bash-completion/completions/made",
    "zsh": "~/.zfunc/_made   (with fpath+=~/.zfunc before compinit in ~/.zshrc)",
    "fish": "~/.config/fish/completions/made.fish",
}


@dataclasses.dataclass
class Completion:
    """Print shell completions and say where to put them."""

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]

    def main(self) -> int:
        with contextlib.suppress(SystemExit):
            parse(["--tyro-print-completion", self.shell])
        print(f"made: to install: made completion {self.shell} > {PLACES[self.shell]}", file=sys.stderr)
        return 0


COMMANDS = (
    *(Demo, List, Run, Train, Transfer, Figure, Check, Evidence, Report, Export, Map, Doctor),
    *(Plot, Choose, Play, Completion),
)
RESUMED = ("demo", "run", "train")  # the same command resumes
# What tyro adds below a mistake.
AFTERWARDS = ("For full helptext", "Argument helptext", "Perhaps you meant", "Got errors")


def parse(words: list[str]):
    """The command that the words ask for; a mistake is told in one line and ends with exit code 2."""
    names = [command.__name__.lower() for command in COMMANDS]
    if words and not words[0].startswith("-") and words[0] not in names:
        raise ValueError(f"There is no command {words[0]!r}.{suggest(words[0], names)} See: made --help")
    union = Union[tuple(Annotated[c, tyro.conf.subcommand(c.__name__.lower())] for c in COMMANDS)]  # noqa: UP007
    heard = io.StringIO()
    try:
        with contextlib.redirect_stderr(heard):
            full = ["train", *FIRST_TRAINING.split()] if words == ["train"] else words
            return tyro.cli(union, prog="made", args=full, config=(tyro.conf.FlagCreatePairsOff,))  # type: ignore[arg-type]
    except SystemExit as stop:
        if stop.code:
            raise ValueError(f"{_in_one_line(heard.getvalue())} See: made {words[0] if words else ''} --help") from None
        raise


def _in_one_line(box: str) -> str:
    """The gist of tyro's boxed message: its first sentences, and the nearest option where it names one."""
    lines = [" ".join(re.sub(r"[^\x20-\x7e]", " ", line).split()) for line in box.splitlines()]
    lines = [line for line in lines if line.strip("-")]  # without rules, which are dashes where only ASCII is shown
    if wrong := re.search(r"Error parsing (\S+):.*?from \['(.*?)'\]", " ".join(lines)):
        return f"{wrong[1]} cannot be {wrong[2]!r}."
    if lines[0].startswith("Required"):
        meaning = " ".join(lines[3:]).partition(" (required)")[0]
        return f"{lines[1]} {lines[2]} ({meaning}). `made list` names what there is."
    told = itertools.takewhile(lambda line: not line.startswith(AFTERWARDS), lines[1:])
    gist = " ".join(told).rstrip(".")
    near = re.search(r"meant: (--[a-z-]+)", " ".join(lines))
    return f"{gist}." + (f" Did you mean {near[1]}?" if near else "")


OVERVIEW = """made: exploration bonuses for reinforcement learning, in JAX.

start
  made demo                      reproduce Figures 3 to 6 and check claims 1 to 17, in two minutes
  made list                      list experiments, bonuses, agents and tasks
  made doctor                    check this installation
  made completion bash           print shell completions; also zsh and fish

train
  made train                     train IMPALA with MADE on MultiRoom-N6, in two minutes
  made train --env DoorKey-5x5   train an agent with a bonus; run again to resume
  made transfer DIR              compare a policy in another implementation of its task
  made play DoorKey-5x5          play a grid task by hand

experiments
  made run lock --scale small    run an experiment of the paper; run again to resume
  made run lock --on processes   run it on several processes, Ray or SLURM
  made choose dmc_search         use the best settings of a search
  made export                    pack recorded runs into a few files

inspect
  made check lock                check the paper's claims on recorded runs
  made evidence                  list the runs that undecided claims still need
  made figure lock               plot recorded runs
  made plot                      plot learning curves of training runs
  made report                    write every claim and figure into one page
  made map eq:bonus_design       find the code of an equation, theorem or figure

Run any command with --help for its options."""

FAILED = (
    "The device failed: out of memory, or a library error, see above. Progress is saved; run the same command to "
    "resume from the last checkpoint."
)
FULL = "The disk is full. Progress is saved; free some space and run the same command to resume."


def _warned(message: Warning | str, category: type[Warning], *where: Any) -> None:
    """A warning to the user as a line of the command, without its place in the code; others as they are."""
    if not issubclass(category, UserWarning):
        return _PLAINLY(message, category, *where)
    print(f"made: {' '.join(str(message).split())}", file=sys.stderr, flush=True)


_PLAINLY = warnings.showwarning


def main(words: list[str] | None = None) -> int:
    """Entry point of the command line."""
    words = sys.argv[1:] if words is None else words
    try:
        if not words or words in (["-h"], ["--help"]):
            print(OVERVIEW, flush=True)
            return 0
        if words == ["--version"]:
            print(f"made {made.__version__}", flush=True)
            return 0
        command = parse(words)
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # where --bonus mymodule:MyBonus may stand, as with python -m made
        if words == ["train"]:
            print(f"made: with no options this is: made train {FIRST_TRAINING}", file=sys.stderr)
        use_compilation_cache()
        with train_loop.raise_on_sigterm(), safe_files.disk_full_message(lambda: FULL), warnings.catch_warnings():
            warnings.showwarning = _warned
            return command.main()
    except ValueError as error:
        print(f"made: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("made: Interrupted. Progress is saved; run the same command to resume.", file=sys.stderr)
        os._exit(130)  # threads may still be inside compiled code
    except train_loop.Terminated as stop:
        sys.stdout.flush()
        said = str(stop) or "; progress is saved"
        again = f" To resume: {shlex.join(['made', *words])}" if words[0] in RESUMED else ""
        print(f"made: stopped by SIGTERM{said}.{again}", file=sys.stderr, flush=True)
        os._exit(train_loop.SIGTERM_CODE)  # threads may still be inside compiled code
    except BrokenPipeError:  # whoever read has enough; what is still to be written goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, RunsFailed) as error:
        print(f"made: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        if type(error).__name__ != "JaxRuntimeError":  # by its name: jax may not be imported
            raise
        traceback.print_exc()
        print(f"made: {FAILED}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
