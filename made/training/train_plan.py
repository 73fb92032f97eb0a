"""What `made train` is to do: the run, its seeds, and how often it is looked at."""

import dataclasses
import math
from typing import Any, NamedTuple

from made.agents import make_agent
from made.bonuses import make_bonus
from made.bonuses.combinators import Calibrated, FirstVisit
from made.core import Bonus, Environment
from made.core.config import override, to_dict
from made.core.schedules import Constant
from made.envs.minigrid import Grid, grid_ids
from made.envs.registry import make
from made.training.checkpoint import KEEP
from made.training.on_policy import RunConfig
from made.training.probes import Coverage

SPARES = 4  # levels in waiting for each environment of a grid: an episode of 25 steps is seldom begun twice
BONUS_COEF = 0.01  # default without --strength
# Defaults, in frames of each seed. A checkpoint with a replay is slow to write.
FRAMES = {"steps": "10M", "every": "50k", "eval": "500k", "check": "500k"}
CONTROL_FRAMES = {"steps": "500k", "every": "2k", "eval": "10k", "check": "50k"}  # control tasks and replay
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


def environment(name: str) -> Environment:
    """A grid by its MiniGrid id, in full or as in KeyCorridorS4R3, a tabular task, or one of another library.

    A grid shows the hash of its full state beside the agent's view, for the bonuses and the measures that count. The
    same grid in Farama's package is gym:KeyCorridorS4R3, in EnvPool envpool:KeyCorridorS4R3.
    """
    if name in grid_ids():
        return make(name, shows=("image", "hash"))
    found = make(name)
    if not isinstance(found, Environment):
        raise ValueError(f"{name} is a control task, which agents such as impala do not act in: take --agent sac.")
    return found


def check_bonus_options(bonus: str, first_visit: bool, bonus_coef: float | None, strength: float | None) -> None:
    """Validate the options of a bonus: its coefficient, its strength, and none of either without a bonus."""
    if bonus_coef is not None and not 0 <= bonus_coef < math.inf:
        raise ValueError(f"--bonus-coef must be a number of at least 0, got {bonus_coef:g}.")
    if strength is not None and not 0 < strength < math.inf:
        raise ValueError(f"--strength must be a number above 0, got {strength:g}.")
    if bonus == "none" and (first_visit or strength is not None):
        raise ValueError("--bonus none gives no reward: leave --first-visit and --strength out.")


def build_run(
    env: str,
    agent: str,
    bonus: str,
    first_visit: bool,
    bonus_coef: float | None,
    strength: float | None,
    settings: tuple[str, ...],
) -> RunConfig:
    """The run of those names with its `path=value` settings, its length still to be given."""
    check_bonus_options(bonus, first_visit, bonus_coef, strength)
    task, who, pays = environment(env), make_agent(agent), make_bonus(bonus)
    pays = FirstVisit(pays) if first_visit else pays
    if strength is not None:
        pays = Calibrated(pays, strength)
    if bonus_coef is None:  # a strength is reached at coefficient 1
        bonus_coef = BONUS_COEF if strength is None else 1.0
    run = RunConfig(
        task, who, pays, Constant(bonus_coef), n_envs=32, unroll=100, pool_per_env=SPARES, probes=(Coverage(),)
    )
    run = apply_settings(run, settings)
    if run.resets_per_update is None and isinstance(
        run.env, Grid
    ):  # levels are costly: as many as can be waiting, no more
        run = dataclasses.replace(run, resets_per_update=run.pool_per_env * run.n_envs)
    return run


def apply_settings(run: Any, settings: tuple[str, ...]) -> Any:
    """A run with its `path=value` settings; a place for another bonus, such as Dreamer's curiosity, takes its name."""
    kinds = {Bonus: make_bonus}
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path:
            raise ValueError(f"--set takes path=value, such as agent.learning_rate=3e-4, not {setting!r}.")
        if path in ("iterations", "every"):
            raise ValueError(f"{path} is given by --{'steps' if path == 'iterations' else 'every'}, not by --set.")
        run = override(run, path, value, kinds=kinds)
    return run
