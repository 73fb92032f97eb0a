"""What `made train` does on a task of DeepMind Control: RAD or Dreamer from pixels, SAC from states, with a bonus."""

from made.agents.registry import make_agent, setting_of
from made.cli import build_dreamer
from made.core.schedules import Constant
from made.envs.control import CONTROL
from made.envs.control.tasks import SPARSE
from made.training.control_config import ControlConfig, DreamerConfig, control_config, resolve
from made.training.sequence_learner import ReplayRun
from made.training.train_plan import apply_settings, check_bonus_options, environment

__all__ = ["ControlConfig", "DreamerConfig", "asked", "build"]


def asked(env: str, agent: str) -> bool:
    """Whether those names ask for a control run, or for Dreamer anywhere."""
    return env in CONTROL or env in SPARSE or _setting(agent) != "on_policy"


def build(
    env: str,
    agent: str,
    bonus: str,
    first_visit: bool,
    bonus_coef: float | None,
    strength: float | None,
    settings: tuple[str, ...],
) -> ControlConfig | ReplayRun:
    """The run of those names with its `path=value` settings, its length still to be given."""
    check_bonus_options(bonus, first_visit, bonus_coef, strength)
    if _setting(agent) == "dreamer" and (
        _elsewhere(env) or env[:1].isupper()
    ):  # as those of grids are, misspelt ones too
        return build_dreamer.build(env, agent, bonus, first_visit, bonus_coef, strength, settings)
    _demand_agent(env, agent)
    if first_visit or strength is not None:
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
    return resolve(run)


def _demand_agent(env: str, agent: str) -> None:
    """Refuse an agent that does not fit the task, and say which does."""
    if setting_of(make_agent(agent)) == "on_policy":
        raise ValueError(
            f"{agent} chooses among a few actions, and those of {env} are numbers in [-1, 1]: take --agent rad or "
            "--agent dreamer, from pixels, or --agent sac, from states."
        )
    if _elsewhere(env):
        raise ValueError(
            f"{agent} acts in tasks of DeepMind Control, such as pendulum_swingup, and {env} is none: take one of them "
            "or another agent, such as --agent impala."
        )


def _setting(agent: str) -> str:
    """What an agent of that name learns from; a name that stands for none is refused later."""
    try:
        return setting_of(make_agent(agent))
    except ValueError:
        return "on_policy"


def _elsewhere(env: str) -> bool:
    try:
        return environment(env) is not None
    except ValueError:
        return False
