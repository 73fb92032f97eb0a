"""The configuration that the options of `made train` ask for."""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from made.agents.dreamer.agent import Dreamer
from made.agents.dreamer.network import Layout
from made.agents.registry import make_agent, setting_of
from made.bonuses import make_bonus
from made.bonuses.combinators import Calibrated, FirstVisit
from made.core import Bonus, Environment
from made.core.config import override
from made.core.schedules import Constant
from made.envs.control import CONTROL
from made.envs.control.tasks import SPARSE
from made.envs.host_env import Hosted
from made.envs.minigrid import Grid, grid_ids
from made.envs.registry import make
from made.training.control_config import ControlConfig, control_config
from made.training.off_policy import ReplayRun
from made.training.on_policy import RunConfig
from made.training.probes import Coverage
from made.training.replay import ReplayBuffer, SequenceBuffer

POOL = 4  # prepared levels for each environment of a grid: an episode of 25 steps seldom reuses one
BONUS_COEF = 0.01  # default without --strength
# Dreamer on grids. The bonus is small because imagination adds up many steps of it.
DREAMER_BONUS_COEF, DREAMER_STEPS, DREAMER_WINDOW, DREAMER_EPISODE = 0.005, 200_000, 16, 10


def build(
    env: str,
    agent: str,
    bonus: str,
    first_visit: bool = False,
    bonus_coef: float | None = None,
    strength: float | None = None,
    settings: Sequence[str] = (),
) -> RunConfig | ReplayRun | ControlConfig:
    """The configuration that these options of `made train` name. Its length is still to be set."""
    if bonus_coef is not None and not 0 <= bonus_coef < math.inf:
        raise ValueError(f"--bonus-coef must be a number of at least 0, got {bonus_coef:g}.")
    if strength is not None and not 0 < strength < math.inf:
        raise ValueError(f"--strength must be a number above 0, got {strength:g}.")
    if bonus == "none" and (first_visit or strength is not None):
        raise ValueError("--bonus none gives no reward: leave --first-visit and --strength out.")
    setting = "on_policy"
    with contextlib.suppress(ValueError):  # an unknown name raises an error below
        setting = setting_of(make_agent(agent))
    if setting == "dreamer" and (_is_elsewhere(env) or env[:1].isupper()):  # misspelt grids too
        if strength is not None:
            raise ValueError("--strength is for agents that learn from rollouts: give Dreamer a --bonus-coef.")
        return _dreamer_run(env, agent, _bonus(bonus, first_visit), bonus_coef, settings)
    if setting != "on_policy" or env in CONTROL or env in SPARSE:
        return _control_run(env, agent, bonus, bonus_coef, settings, first_visit or strength is not None)
    task, who, intrinsic = environment(env), make_agent(agent), _bonus(bonus, first_visit)
    if strength is not None:
        intrinsic = Calibrated(intrinsic, strength)
    if bonus_coef is None:  # a strength is reached at coefficient 1
        bonus_coef = BONUS_COEF if strength is None else 1.0
    run = RunConfig(
        task, who, intrinsic, Constant(bonus_coef), n_envs=32, unroll=100, pool_per_env=POOL, probes=(Coverage(),)
    )
    return _with_pool(apply_settings(run, settings))


def environment(name: str) -> Environment:
    """A grid by its MiniGrid id, in full or as in KeyCorridorS4R3, a tabular task, or one of another library.

    A grid shows the hash of its full state next to the agent's view, for the bonuses and the measures that count. The
    same grid in Farama's package is gym:KeyCorridorS4R3, in EnvPool envpool:KeyCorridorS4R3.
    """
    if name in grid_ids():
        return make(name, shows=("image", "hash"))
    found = make(name)
    if not isinstance(found, Environment):
        raise ValueError(f"{name} is a control task, which agents such as impala do not act in: take --agent sac.")
    return found


def apply_settings(run: Any, settings: Sequence[str]) -> Any:
    """A run with its `path=value` settings; a field for another bonus, such as Dreamer's curiosity, takes its name."""
    kinds = {Bonus: make_bonus}
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path:
            raise ValueError(f"--set takes path=value, such as agent.learning_rate=3e-4, not {setting!r}.")
        if path in ("iterations", "every"):
            raise ValueError(f"{path} is given by --{'steps' if path == 'iterations' else 'every'}, not by --set.")
        run = override(run, path, value, kinds=kinds)
    return run


def _bonus(name: str, first_visit: bool) -> Bonus:
    return FirstVisit(make_bonus(name)) if first_visit else make_bonus(name)


def _with_pool(run: RunConfig) -> RunConfig:
    """Levels of grids are costly to generate: replace as many as the pool holds, no more."""
    if run.resets_per_update is not None or not isinstance(run.env, Grid):
        return run
    return dataclasses.replace(run, resets_per_update=run.pool_per_env * run.n_envs)


def _control_run(
    env: str, agent: str, bonus: str, bonus_coef: float | None, settings: Sequence[str], rollouts: bool
) -> ControlConfig:
    """RAD or Dreamer from pixels, SAC from states, on a task of DeepMind Control. `rollouts`: with options of those."""
    if setting_of(make_agent(agent)) == "on_policy":
        raise ValueError(
            f"{agent} chooses among a few actions, and those of {env} are numbers in [-1, 1]: take --agent rad or "
            "--agent dreamer, from pixels, or --agent sac, from states."
        )
    if _is_elsewhere(env):
        raise ValueError(
            f"{agent} acts in tasks of DeepMind Control, such as pendulum_swingup, and {env} is none: take one of them "
            "or another agent, such as --agent impala."
        )
    if rollouts:
        raise ValueError(
            "--first-visit and --strength are for rollouts of grids and tables: leave them out on control tasks."
        )
    run = control_config(env, agent, bonus, None if bonus_coef is None else Constant(bonus_coef))
    run = apply_settings(run, settings)
    if run.task.task != env:  # its bonus coefficient, repeat and camera would be those of the other
        raise ValueError(f"The task is {env} and task.task={run.task.task}: name it by --env alone.")
    stack = run.task.stack if run.task.pixels else 1
    if any(one.startswith("replay.stack=") for one in settings) and run.replay.stack != stack:
        raise ValueError(
            f"replay.stack={run.replay.stack} for a task that stacks {stack}: set task.stack, which the replay follows."
        )
    return run.resolved()


def _dreamer_run(
    env: str, agent: str, intrinsic: Bonus, bonus_coef: float | None, settings: Sequence[str]
) -> ReplayRun:
    """Dreamer in a compiled environment, a grid or a table, sized for two cores.

    It has a head for the ends of episodes and, for discrete actions, likelihood ratios. Eight environments take 50
    steps each, then there are 50 updates on 8 windows of 16 steps: one every 8 steps, where control tasks have one
    every 5 actions. Fewer and larger ones learn less in the same time: a reward that is rare takes many steps of the
    reward head. The entropy is rewarded, or the actor settles on one action before it knows any.
    """
    task = environment(env)
    if isinstance(task, Hosted):
        raise ValueError(f"Dreamer learns in compiled environments and on control tasks; {env} is hosted elsewhere.")
    small, who = Layout(deter=64, hidden=64, units=64), make_agent(agent)
    if agent == "dreamer":
        who = Dreamer(small, 10, actor_rate=3e-4, value_rate=3e-4, entropy=1e-3, reinforce=1.0, ends=True)
    schedule = Constant(DREAMER_BONUS_COEF if bonus_coef is None else bonus_coef)
    run = RunConfig(task, who, intrinsic, schedule, n_envs=8, unroll=50, pool_per_env=POOL, probes=(Coverage(),))
    buffer = ReplayBuffer(DREAMER_STEPS, streams=8, shortest=DREAMER_EPISODE)
    replay = SequenceBuffer(buffer, DREAMER_WINDOW, whole=False)
    trial = apply_settings(ReplayRun(run, replay, batch=8, updates=50, prefill=250), settings)
    steps = dataclasses.replace(trial.replay.steps, streams=trial.run.n_envs)
    trial = dataclasses.replace(trial, run=_with_pool(trial.run), replay=dataclasses.replace(trial.replay, steps=steps))
    trial.fits()
    return trial


def _is_elsewhere(env: str) -> bool:
    """Whether a name stands for an environment that is no control task."""
    try:
        return environment(env) is not None
    except ValueError:
        return False
