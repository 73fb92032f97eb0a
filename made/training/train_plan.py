"""What `made train` is to do: the run, its seeds, and how often it is looked at."""

import math
from typing import Any, NamedTuple

from made.core.config import to_dict
from made.training.checkpoint import KEEP
from made.training.on_policy import RunConfig

# Defaults, in frames of each seed. A checkpoint with a replay is slow to write.
FRAMES = {"steps": "10M", "every": "50k", "eval_every": "500k", "checkpoint_every": "500k"}
CONTROL_FRAMES = {"steps": "500k", "every": "2k", "eval_every": "10k", "checkpoint_every": "50k"}  # and replay
CONTROL_KEEP = 2  # checkpoints
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}


class TrainPlan(NamedTuple):
    """A run, the seeds it is made with, and the updates between two evaluations and two checkpoints."""

    run: RunConfig
    seeds: tuple[int, ...]
    evaluate_every: int
    checkpoint_every: int
    episodes: int = 32  # of one evaluation, for each seed
    checkpoint_seconds: float = math.inf  # also after so long, where the pace is not known beforehand
    keep: int = KEEP  # checkpoints
    keep_end: bool = True  # a checkpoint of the end too, so that a longer run can go on from it
    until: float = math.inf  # of time.monotonic(): it stops with a checkpoint rather than begin a row that ends later

    @property
    def frames_per_update(self) -> int:
        """Steps of the environments that one update of one seed takes."""
        return self.run.n_envs * self.run.unroll

    @property
    def configuration(self) -> dict[str, Any]:
        """The whole run and its seeds as data, which `folder.configured` reads back."""
        return {**to_dict(self.run), "seeds": list(self.seeds)}


def default_frames(run: Any) -> dict[str, str]:
    """Frames of a run and between its log records, evaluations and checkpoints, where none are given."""
    return FRAMES if isinstance(run, RunConfig) else CONTROL_FRAMES


def parse_frames(text: str, option: str) -> int:
    """A number of frames as people write it.

    >>> parse_frames("40M", "--steps"), parse_frames("500k", "--steps"), parse_frames("1e6", "--steps")
    (40000000, 500000, 1000000)
    """
    plain = text.strip().replace("_", "").replace(",", "").lower()
    unit = _UNITS.get(plain[-1:], 1.0)
    try:
        value = float(plain[:-1] if plain[-1:] in _UNITS else plain) * unit
    except ValueError:
        value = float("nan")
    if not value >= 1 or value != int(min(value, 2**62)):
        raise ValueError(f"{option} takes a number of frames such as 40M, 500k or 1e6, not {text!r}.")
    return int(value)


def updates_for(frames: int, per_update: int) -> int:
    """How many updates take at least so many frames."""
    return -(-frames // per_update)
