"""A run on a task of DeepMind Control as one configuration: RAD from pixels or SAC from states, with a bonus."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx

from made.agents.rad import RAD, sac
from made.bonuses.control import control_bonus
from made.control import Control, make_control, rendering
from made.control.temperatures import temperature
from made.core import Bonus, Spec
from made.off_policy import Learner
from made.replay import Replay
from made.schedules import Schedule
from made.trial import Trial

# Apart from `made.agents.AGENTS`, whose agents all act in tables and grids: these choose numbers in [-1, 1].
CONTROL_AGENTS: dict[str, Callable[[], RAD]] = {"rad": RAD, "sac": sac}
SEED_STEPS, QUADRUPED_SEED_STEPS = 1000, 10_000


class ControlRun(Trial):
    """The whole configuration of a run on one control task. An iteration is one action of each seed's agent.

    The first `seed_steps` actions are random; from then on each is followed by one update on `batch` steps drawn from
    the replay. The defaults are those of the paper's release (Appendix B.4). It is stepped by the host
    (`made.training.pieces`), since its environments live in processes of their own.
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
    by_host: ClassVar[bool] = True

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

    def demand(self) -> None:
        if fitted(self).replay.stack != self.replay.stack:
            raise ValueError(f"replay.stack is {self.replay.stack} and the task stacks {self.task.stack}: set both.")
        if self.task.pixels:
            rendering.choose()  # a sentence where nothing can be drawn
        elif not rendering.installed():
            raise ValueError("Control tasks need dm_control, which is not here: pip install 'made-rl[control]'.")

    def start(self, key):
        raise ValueError(f"{self.task.task} is stepped in processes of its own, by made train and made run.")

    def advance(self, state):
        return self.start(state)


def control_run(env: str, agent: str, bonus: str, tau: Schedule | None = None) -> ControlRun:
    """The run of those names with the paper's settings, at the paper's temperature unless one is given."""
    task = make_control(env, pixels=agent == "rad")
    steps = QUADRUPED_SEED_STEPS if env.startswith("quadruped_") else SEED_STEPS
    schedule = temperature(env, bonus) if tau is None else tau
    pays = control_bonus(bonus, task.pixels)
    return fitted(ControlRun(task, CONTROL_AGENTS[agent](), pays, schedule, Replay(), seed_steps=steps))


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
