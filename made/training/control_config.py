"""A run on a task of DeepMind Control: RAD or Dreamer from pixels, SAC from states, with a bonus."""

import dataclasses
from operator import attrgetter
from typing import ClassVar

import equinox as eqx
import jax

from made.agents.dreamer.agent import Dreamer
from made.agents.dreamer.network import SIDE
from made.agents.registry import make_agent, setting_of
from made.agents.sac import RAD
from made.bonuses.re3 import RE3
from made.bonuses.registry import RE3_MEMORY, list_bonuses, make_bonus
from made.bonuses.replay_data import needs_new
from made.core import Bonus, Spec
from made.core.config import COUNT, COUNT_OR_NONE, check_numbers
from made.core.schedules import Constant, Exponential, Schedule
from made.core.trial import Trial
from made.envs.control import Control, make_control, rendering
from made.training.off_policy import ReplayLearner
from made.training.replay import ReplayBuffer, SequenceBuffer

SEED_STEPS, QUADRUPED_SEED_STEPS = 1000, 10_000
PREFILL, TRAIN_EVERY = 5000, 1000  # of Dreamer v1, in steps of the environment
# Bonus coefficients: the defaults (Appendix B.4, and RE3's own scripts).
# MADE, RND and ICM as the paper tuned them on each task. RE3 as its authors start it; the paper took 0.05 everywhere.
BONUS_COEFS: dict[str, dict[str, float]] = {
    "cartpole_swingup_sparse": {"made": 0.05, "rnd": 10.0, "icm": 0.1, "re3": 0.05},
    "cheetah_run_sparse": {"made": 0.05, "rnd": 0.1, "icm": 1.0, "re3": 0.05},
    "walker_run_sparse": {"made": 0.05, "rnd": 0.05, "icm": 0.1, "re3": 0.05},
    "hopper_hop": {"made": 0.5, "rnd": 0.05, "icm": 0.1, "re3": 0.05},
    "pendulum_swingup": {"made": 0.5, "rnd": 0.1, "icm": 0.1, "re3": 0.25},
    "quadruped_run": {"made": 0.001, "rnd": 0.05, "icm": 0.1, "re3": 0.05},
}
USUAL = {"made": 0.05, "rnd": 0.05, "icm": 0.1, "re3": 0.05}  # on other tasks: what most of those six have
DECAY = {"walker_run_sparse": 2.5e-5}  # of RE3, at each update
USUAL_DECAY = 1e-5
# With Dreamer: MADE as the paper tuned it on each task; RE3 0.1 everywhere; RND, which the paper does not run, as RE3.
DREAMER = {
    "cartpole_swingup_sparse": 0.5,
    "cheetah_run_sparse": 0.5,
    "walker_run_sparse": 0.01,
    "hopper_hop": 0.5,
    "pendulum_swingup": 0.01,
    "quadruped_run": 0.0005,
}
DREAMER_USUAL = {"made": 0.5, "re3": 0.1, "rnd": 0.1}
# Bonuses that take the coefficient of another.
SCALED_AS = {"made-released": "made", "rnd-at-made": "made", "cover-at-made": "made", "re3-released": "re3"}


class ControlConfig(Trial):
    """The whole configuration of a run on one control task. An iteration is one action of each seed's agent.

    The first `seed_steps` actions are random; from then on each is followed by one update on `batch` steps drawn from
    the replay. The defaults are those of the paper's release (Appendix B.4). It is stepped by the host
    (`made.experiments.resumable`), since its environments live in processes of their own.
    """

    task: Control
    agent: RAD
    bonus: Bonus
    bonus_coef: Schedule
    replay: ReplayBuffer
    batch: int = eqx.field(static=True, default=512)
    seed_steps: int = eqx.field(static=True, default=SEED_STEPS)
    episodes: int = eqx.field(static=True, default=10)  # of one evaluation, by the mean action
    iterations: int = eqx.field(static=True, default=1000)
    every: int = eqx.field(static=True, default=10)
    on_host: ClassVar[bool] = True
    n_envs: ClassVar[int] = 1  # of each seed
    pretrain: ClassVar[int] = 0  # updates after the random actions
    train_every: ClassVar[int] = 1  # actions between updates, whose steps are stored together
    updates: ClassVar[int] = 1  # after so many actions
    # Under the names that other runs have. Frames are steps of the environment everywhere.
    env = property(attrgetter("task"))
    unroll = property(attrgetter("task.repeat"))

    def __check_init__(self):
        check_numbers(self, {COUNT: ("batch", "seed_steps", "episodes", "iterations", "every")})

    @property
    def held_seed_steps(self) -> int:
        """The random actions that the replay still holds at the first update."""
        return min(self.seed_steps, self.replay.capacity)

    @property
    def first_update(self) -> int:
        """The action that is the first to be followed by an update."""
        return self.seed_steps + (0 if self.pretrain else self.train_every)

    def due(self, t: int) -> tuple[int, int]:
        """(updates that follow the t-th action, actions that are new to them)."""
        since = t - self.seed_steps
        if since <= 0:
            return (self.pretrain, self.held_seed_steps) if since == 0 else (0, 0)
        return (self.updates, self.train_every) if since % self.train_every == 0 else (0, 0)

    def learner(self, spec: Spec) -> ReplayLearner:
        """The learner for a task with that spec."""
        return ReplayLearner(spec, self.agent, self.bonus, self.bonus_coef, self.replay, self.batch)

    def resolved(self) -> "ControlConfig":
        """The run once all its settings are known: they must fit each other; what follows from others is set.

        The replay stacks frames as the task does. RE3 finds its neighbors in the whole replay, unless it was given a
        capacity.
        """
        task, layout, n = self.task, self.agent.layout, self.replay.capacity
        if (layout.encoder == "pixels") != task.pixels:
            raise ValueError(
                f"The agent reads {layout.encoder} and task.pixels is {task.pixels}: --agent rad is for pixels and "
                "--agent sac for states."
            )
        if task.pixels and layout.crop > task.size:
            raise ValueError(
                f"The agent looks at crops of {layout.crop} pixels a side and a frame has task.size={task.size}: add "
                f"--set agent.layout.crop={max(1, task.size * 84 // 100)}, or less."
            )
        if self.replay.streams != 1:
            raise ValueError(f"Each seed has one environment: replay.streams must be 1, got {self.replay.streams}.")
        replay = dataclasses.replace(self.replay, stack=task.stack if task.pixels else 1)
        bonus = _with_re3_capacity(
            self.bonus, n, "the replay", "replay.capacity", f"replay.capacity={n}", 1, RE3_MEMORY
        )
        return dataclasses.replace(self, replay=replay, bonus=bonus)

    def demand(self) -> None:
        if self.iterations <= self.first_update:  # the last action is followed by none
            steps = (self.first_update + 1) * self.unroll
            raise ValueError(
                f"{self.iterations * self.unroll} steps are {self.iterations} actions, and with "
                f"seed_steps={self.seed_steps} at random the first update would follow action {self.first_update}: "
                f"nothing would be learned. Take at least {steps} steps, or a smaller --set seed_steps=..."
            )
        if self.resolved().replay != self.replay:  # of RAD and SAC
            raise ValueError(f"replay.stack is {self.replay.stack} and the task stacks {self.task.stack}: set both.")
        if self.task.pixels:
            rendering.choose()  # an error where nothing can be rendered
        else:
            rendering.demand_known()

    def start(self, key):
        raise ValueError(f"{self.task.task} is stepped in processes of its own, by made train and made run.")

    def advance(self, state):
        return self.start(state)


class DreamerConfig(ControlConfig):
    """The same with Dreamer, which acts by what it remembers and learns from `batch` windows of a replay of sequences.

    After `seed_steps` actions at random it learns `pretrain` times, then `updates` times after every `train_every`
    actions, in one compiled call. The defaults are those of Dreamer v1 at repeat 2: 5000 steps of the environment at
    random, and 100 updates for every 1000 of them.
    """

    agent: Dreamer  # type: ignore[assignment]
    replay: SequenceBuffer  # type: ignore[assignment]
    batch: int = eqx.field(static=True, default=50)
    seed_steps: int = eqx.field(static=True, default=PREFILL // 2)
    pretrain: int = eqx.field(static=True, default=100)
    train_every: int = eqx.field(static=True, default=TRAIN_EVERY // 2)
    updates: int = eqx.field(static=True, default=100)

    def __check_init__(self):
        check_numbers(self, {COUNT: ("train_every", "updates"), COUNT_OR_NONE: ("pretrain",)})

    def resolved(self) -> "DreamerConfig":
        """The same for Dreamer, where RE3 finds its neighbors in the batch."""
        task, steps, length, n = self.task, self.replay.steps, self.replay.length, self.batch * self.replay.length
        if task.pixels and (task.size, task.stack) != (SIDE, 1):
            raise ValueError(
                f"Dreamer reads one frame of {SIDE} x {SIDE} pixels and remembers the others, got "
                f"task.size={task.size} and task.stack={task.stack}: leave them as they are."
            )
        if (steps.streams, steps.stack) != (1, 1):
            raise ValueError(
                f"Each seed has one environment and its frames are kept singly: replay.steps.streams and "
                f"replay.steps.stack must be 1, got {steps.streams} and {steps.stack}."
            )
        if self.seed_steps < length:
            raise ValueError(
                f"A first window takes replay.length={length} actions, and seed_steps={self.seed_steps} are "
                "taken at random: raise seed_steps, or draw shorter windows."
            )
        uneven = self.train_every % self.updates or (self.pretrain and self.seed_steps % self.pretrain)
        if uneven and needs_new(self.bonus):
            raise ValueError(
                f"A part of this bonus takes in every step once, and train_every={self.train_every} cannot be shared "
                f"out over updates={self.updates}, or seed_steps={self.seed_steps} over pretrain={self.pretrain}: take "
                "numbers of updates that divide the numbers of actions."
            )
        windows = f"batch={self.batch} windows of replay.length={length}, {n} in all"
        return dataclasses.replace(self, bonus=_with_re3_capacity(self.bonus, n, "a batch", "batch", windows, length))


def control_config(env: str, agent: str, bonus: str, bonus_coef: Schedule | None = None) -> ControlConfig:
    """The run of those names with the paper's settings, at the paper's bonus coefficient unless one is given.

    Dreamer reads single frames of 64 x 64, as v1 and the paper's release.
    """
    who = make_agent(agent)
    setting, pixels = setting_of(who), not isinstance(who, RAD) or who.layout.encoder == "pixels"
    if setting == "on_policy":
        raise ValueError(
            f"{agent} does not act in control tasks: take rad or dreamer, from pixels, or sac, from states."
        )
    intrinsic = make_bonus(bonus, setting, pixels=pixels)  # type: ignore[arg-type]
    if bonus_coef is None and bonus not in list_bonuses(installed=False):
        raise ValueError(
            f"No bonus coefficient is known for {bonus} on control tasks: pass one, such as --bonus-coef 0.05."
        )
    coef = bonus_coef_for(env, bonus, setting) if bonus_coef is None else bonus_coef
    if isinstance(who, Dreamer):
        task = make_control(env, size=SIDE, stack=1)
        paces = {"seed_steps": PREFILL // task.repeat, "train_every": TRAIN_EVERY // task.repeat}
        return DreamerConfig(task, who, intrinsic, coef, SequenceBuffer(), **paces).resolved()
    task = make_control(env, pixels=pixels)
    seed_steps = QUADRUPED_SEED_STEPS if env.startswith("quadruped_") else SEED_STEPS
    return ControlConfig(task, who, intrinsic, coef, ReplayBuffer(), seed_steps=seed_steps).resolved()  # type: ignore[arg-type]


def _with_re3_capacity(
    bonus: Bonus, n: int, among: str, path: str, held: str, per: int = 1, default: int | None = None
) -> Bonus:
    """A bonus in which RE3 remembers n steps, wherever it stands, unless its capacity differs from `default`.

    The error for too few steps says how many `held` are, and sets `path`, a number of `per` steps each.
    """
    is_re3 = lambda x: isinstance(x, RE3)  # noqa: E731
    for at, part in jax.tree_util.tree_leaves_with_path(bonus, is_leaf=is_re3):
        if is_re3(part) and part.k >= n:
            fewer = f", or --set bonus{jax.tree_util.keystr(at)}.k={n - 1} or less" * (n > 1)
            raise ValueError(
                f"RE3 looks for its k-th neighbor among the steps of {among}, and k={part.k} needs more of them than "
                f"{held}: add --set {path}={part.k // per + 1} or more{fewer}."
            )
    resized = lambda x: dataclasses.replace(x, capacity=n) if is_re3(x) and default in (None, x.capacity) else x  # noqa: E731
    return jax.tree.map(resized, bonus, is_leaf=is_re3)


def bonus_coef_for(task: str, bonus: str, setting: str = "off_policy") -> Schedule:
    """tau_k for a task and a bonus by name, with RAD and SAC or with Dreamer; 0 without a bonus.

    With RAD and SAC, that of RE3 decays, tau (1 - rho)^k.

    >>> bonus_coef_for("pendulum_swingup", "made").value, bonus_coef_for("walker_run_sparse", "re3").rho
    (0.5, 2.5e-05)
    >>> [bonus_coef_for(*names, "dreamer").value for names in (("pendulum_swingup", "made"), ("hopper_hop", "re3"))]
    [0.01, 0.1]
    """
    name = SCALED_AS.get(bonus, bonus)
    if setting == "dreamer":
        usual = DREAMER_USUAL.get(name, 0.0)
        return Constant(DREAMER.get(task, usual) if name == "made" else usual)
    value = BONUS_COEFS.get(task, USUAL).get(name, 0.0)
    return Exponential(value, DECAY.get(task, USUAL_DECAY)) if name == "re3" else Constant(value)
