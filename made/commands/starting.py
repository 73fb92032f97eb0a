"""The first minutes: what is trained where nothing is said, and a shell that completes what is typed."""

import dataclasses
import subprocess
import sys
from typing import Annotated, Literal

import tyro

# Two minutes on two cores, and it learns: the run of results/train/MultiRoom-N6.
FIRST_TRAINING = (
    "--env MultiRoom-N6 --bonus made-counts --gated --strength 0.4 --steps 4M --set agent.learning_rate=6e-4"
)
PLACES = {  # where each shell looks for completions of its user
    "bash": "~/.local/share/bash-completion/completions/made",
    "zsh": "~/.zfunc/_made   (with fpath+=~/.zfunc before compinit in ~/.zshrc)",
    "fish": "~/.config/fish/completions/made.fish",
}


@dataclasses.dataclass
class Completion:
    """Print what lets the shell complete commands and options, and say where to put it."""

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]

    def main(self) -> int:
        asked = [sys.executable, "-m", "made", "--tyro-print-completion", self.shell]
        script = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        print(script, end="")
        print(f"made: to keep it: made completion {self.shell} > {PLACES[self.shell]}", file=sys.stderr)
        return 0


def spelled_out(words: list[str]) -> list[str]:
    """The words of a command; where they are `train` and nothing else, with the options of a first run.

    >>> spelled_out(["train"])[:3], spelled_out(["list"])
    (['train', '--env', 'MultiRoom-N6'], ['list'])
    """
    return ["train", *FIRST_TRAINING.split()] if words == ["train"] else words
