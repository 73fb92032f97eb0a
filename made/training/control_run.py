"""What `made train` is to do on a task of DeepMind Control: RAD from pixels or SAC from states, with a bonus."""

import dataclasses
from collections.abc import Callable

import equinox as eqx

from made.agents import AGENTS
from made.agents.rad import RAD, sac
from made.bonuses.control import control_bonus
from made.control import CONTROL, Control, make_control
from made.control.sparse import SPARSE
from made.control.temperatures import temperature
from made.core import Bonus, Spec
from made.describe import suggest
from made.off_policy import Learner
from made.replay import Replay
from made.schedules import Constant, Schedule
from made.training.plan import environment, settled
from made.trial import Trial

# Apart from `made.agents.AGENTS`, whose agents all act in tables and grids: these choose numbers in [-1, 1].
CONTROL_AGENTS: dict[str, Callable[[], RAD]] = {"rad": RAD, "sac": sac}
SEED_STEPS, QUADRUPED_SEED_STEPS = 1000, 10_000
# Frames where the command does not say; a checkpoint holds the replay, so that it is long to write.
FRAMES = {"steps": "500k", "every": "2k", "eval": "10k", "check": "50k"}
KEEP = 2  # checkpoints


class ControlRun(Trial):
    """The whole configuration of a run on one control task. An iteration is one action of each seed's agent.

    The first `seed_steps` actions are random; from then on each is followed by one update on `batch` steps drawn from
    the replay. The defaults are those of the paper's release (Appendix B.4).
    """

    task: Control
    agent: RAD
    bonus: Bonus
    tau: Schedule
    replay: Replay
    batch: int = eqx.field(static=True, default=512)
    seed_steps: int = eqx.field(static=True, default=SEED_STEPS)
    episodes: int = eqx.field(static=True, default=10)  # of one evaluation, by the mean action
    iterations: int = eqx.field(static=True, default=1000)
    every: int = eqx.field(static=True, default=10)

    def __check_init__(self):
        for name in ("batch", "seed_steps", "episodes", "iterations", "every"):
            if getattr(self, name) < 1:
                raise ValueError(f"A control run takes {name} of at least 1, got {getattr(self, name)}.")

    @property
    def env(self) -> Control:
        """The task, as other runs call it."""
        return self.task

    @property
    def n_envs(self) -> int:
        """Each seed has one environment."""
        return 1

    @property
    def unroll(self) -> int:
        """Steps of the environment in one iteration, so that frames are counted as everywhere."""
        return self.task.repeat

    def learner(self, spec: Spec) -> Learner:
        """What learns, for a task that looks like this."""
        return Learner(spec, self.agent, self.bonus, self.tau, self.replay, self.batch)

    def start(self, key):
        raise ValueError(f"{self.task.task} is stepped in processes of its own: it can be trained by made train alone.")

    def advance(self, state):
        return self.start(state)


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
    task = make_control(env, pixels=agent == "rad")
    schedule = temperature(env, bonus) if tau is None else Constant(tau)
    steps = QUADRUPED_SEED_STEPS if env.startswith("quadruped_") else SEED_STEPS
    pays = control_bonus(bonus, task.pixels)
    run = ControlRun(task, CONTROL_AGENTS[agent](), pays, schedule, Replay(), seed_steps=steps)
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


def fitted(run: ControlRun) -> ControlRun:
    """The run once all its settings are known: they must fit each other; the replay stacks frames as the task does."""
    task, layout = run.task, run.agent.layout
    if (layout.encoder == "pixels") != task.pixels:
        raise ValueError(
            f"The agent reads {layout.encoder} and task.pixels is {task.pixels}: --agent rad is for pixels and "
            "--agent sac for states."
        )
    if task.pixels and layout.crop > task.size:
        raise ValueError(
            f"The agent looks at crops of {layout.crop} pixels a side and a picture has task.size={task.size}: add "
            f"--set agent.layout.crop={max(1, task.size * 84 // 100)}, or less."
        )
    if run.replay.streams != 1:
        raise ValueError(f"Each seed has one environment: replay.streams must be 1, got {run.replay.streams}.")
    return dataclasses.replace(run, replay=dataclasses.replace(run.replay, stack=task.stack if task.pixels else 1))
