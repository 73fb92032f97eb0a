"""What `made train` is to do on a task of DeepMind Control: RAD from pixels or SAC from states, with a bonus."""

from made.agents import AGENTS
from made.control import CONTROL
from made.control.sparse import SPARSE
from made.control_run import CONTROL_AGENTS, ControlRun, control_run, fitted
from made.describe import suggest
from made.schedules import Constant
from made.training.plan import environment, settled

# Frames where the command does not say; a checkpoint holds the replay, so that it is long to write.
FRAMES = {"steps": "500k", "every": "2k", "eval": "10k", "check": "50k"}
KEEP = 2  # checkpoints


def asked(env: str, agent: str) -> bool:
    """Whether those names ask for a control run."""
    return agent in CONTROL_AGENTS or env in CONTROL or env in SPARSE


def build(
    env: str,
    agent: str,
    bonus: str,
    gated: bool,
    tau: float | None,
    strength: float | None,
    settings: tuple[str, ...],
) -> ControlRun:
    """The run of those names with its `path=value` settings, its length still to be given."""
    _demand_agent(env, agent)
    if gated or strength is not None:
        raise ValueError(
            "--gated and --strength are for rollouts of grids and tables: leave them out on control tasks."
        )
    run = control_run(env, agent, bonus, None if tau is None else Constant(tau))
    return fitted(settled(run, settings))


def _demand_agent(env: str, agent: str) -> None:
    """Refuse an agent that does not fit the task, and say which does."""
    if agent not in CONTROL_AGENTS:
        if agent not in AGENTS:
            raise ValueError(f"There is no agent {agent!r}.{suggest(agent, [*CONTROL_AGENTS, *AGENTS])}")
        raise ValueError(
            f"{agent} chooses among a few actions, and those of {env} are numbers in [-1, 1]: take --agent rad, from "
            "pixels, or --agent sac, from states."
        )
    if _elsewhere(env):
        raise ValueError(
            f"{agent} acts in tasks of DeepMind Control, such as pendulum_swingup, and {env} is none: take one of them "
            "or another agent, such as --agent impala."
        )


def _elsewhere(env: str) -> bool:
    try:
        return environment(env) is not None
    except ValueError:
        return False
