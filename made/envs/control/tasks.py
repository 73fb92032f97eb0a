"""What a control task is, by name, and how it is shown and stepped."""

import dataclasses
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from made.core import Space, Spec
from made.core.config import COUNT, check_numbers, suggest
from made.core.plugins import install
from made.envs.control import rendering


class Sparse(NamedTuple):
    """A task of the suite, and the threshold of its reward."""

    domain: str
    task: str
    least: float


# cheetah: dense r = clip(speed / 10, 0, 1), so the reward is 0 below a speed of 2.5.
# walker: dense r = stand (5 move + 1) / 6; the threshold is on that whole product.
SPARSE: dict[str, Sparse] = {
    "cheetah_run_sparse": Sparse("cheetah", "run", 0.25),
    "walker_run_sparse": Sparse("walker", "run", 0.25),
    "walker_walk_sparse": Sparse("walker", "walk", 0.7),
}


class Thresholded:
    """A task of the suite whose reward is r where r >= least and else 0; all else is the wrapped task's."""

    def __init__(self, task: Any, least: float):
        self._task, self.least = task, least

    def get_reward(self, physics: Any) -> float:
        reward = self._task.get_reward(physics)
        return reward if reward >= self.least else 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


EPISODE = 1000  # environment steps: dm_control's time limit in every task that has one
COLORS = 3


class Control(eqx.Module):
    """A task of the DeepMind Control suite, or one of `made.envs.control.tasks`, with its settings.

    An action is held for `repeat` steps, whose rewards are summed. A frame has `size` by `size` pixels and an
    observation the last `stack` of them, newest last. The defaults are those of the paper's release (Appendix B.4).
    `pixels=False` shows the state as one vector. `low_res_shadows=True` renders a coarser shadow map: twice as fast
    without a GPU, and few pixels differ.

    >>> Control("cheetah_run").spec(actions=6).obs.shape
    (100, 100, 9)
    """

    task: str = eqx.field(static=True)
    repeat: int = eqx.field(static=True, default=2)
    camera: int = eqx.field(static=True, default=0)
    size: int = eqx.field(static=True, default=100)
    stack: int = eqx.field(static=True, default=3)
    pixels: bool = eqx.field(static=True, default=True)
    low_res_shadows: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        check_numbers(self, {COUNT: ("repeat", "size", "stack")})
        if EPISODE % self.repeat:
            whole = ", ".join(str(n) for n in (1, 2, 4, 5, 8, 10))
            raise ValueError(
                f"{self.task}: repeat={self.repeat} does not divide an episode of {EPISODE} steps, so its last action "
                f"would be cut short. Use a divisor, such as {whole}."
            )

    @property
    def horizon(self) -> int:
        """Actions in one episode."""
        return EPISODE // self.repeat

    @property
    def frame(self) -> tuple[int, int, int]:
        """The shape of one frame."""
        return (self.size, self.size, COLORS)

    def first_obs(self, frame: np.ndarray) -> np.ndarray:
        """The observation at the start of an episode: its first frame, repeated. A state is returned as it is."""
        return np.concatenate([frame] * self.stack, axis=-1) if self.pixels else frame

    def next_obs(self, obs: np.ndarray, frame: np.ndarray) -> np.ndarray:
        """The observation after one more frame, which replaces the oldest. A state is returned as it is."""
        return np.concatenate([obs[..., COLORS:], frame], axis=-1) if self.pixels else frame

    def spec(self, actions: int, numbers: int = 0) -> Spec:
        """What an agent may know: `actions` entries in [-1, 1], and frames or a state of so many numbers."""
        shape = (self.size, self.size, COLORS * self.stack)
        obs = Space(shape, jnp.dtype("uint8"), None, 0.0, 255.0) if self.pixels else Space((numbers,), jnp.float32)
        return Spec(obs, Space((actions,), jnp.float32, None, -1.0, 1.0), horizon=self.horizon)


# The six tasks of Figure 8 with the settings of the scripts that the paper's release starts from, and one easier.
CONTROL: dict[str, Control] = {
    "pendulum_swingup": Control("pendulum_swingup"),
    "cartpole_swingup_sparse": Control("cartpole_swingup_sparse"),
    "cheetah_run_sparse": Control("cheetah_run_sparse"),
    "walker_run_sparse": Control("walker_run_sparse"),
    "hopper_hop": Control("hopper_hop"),
    "quadruped_run": Control("quadruped_run", repeat=4, camera=2),
}


def make_control(name: str, **changes: Any) -> Control:
    """The settings of a task by its name, domain_task, with any of them changed.

    Tasks that are not the paper's take the defaults, and all of the quadruped's its camera and repeat.
    """
    if name not in CONTROL and name not in SPARSE:
        check_name(name, suite_names())
    known = CONTROL["quadruped_run"] if name.startswith("quadruped_") else CONTROL.get(name, Control(name))
    fields = [field.name for field in dataclasses.fields(Control) if field.name != "task"]
    for field in changes:
        if field not in fields:
            raise ValueError(f"A control task has no setting {field!r}.{suggest(field, fields)}")
    return dataclasses.replace(known, task=name, **changes)


@functools.cache
def suite_names() -> dict[str, tuple[str, str]]:
    """(domain, task) of everything in the installed suite, by our name for it."""
    if not rendering.installed():
        raise ValueError(f"Control tasks need dm_control, which is not here: {install('control')}.")
    rendering.prepare()
    try:
        from dm_control.suite import ALL_TASKS
    except (ImportError, AttributeError, RuntimeError) as error:  # of a renderer that MUJOCO_GL asks for in vain
        raise ValueError(f"dm_control cannot be imported: {error}. {rendering.advice()}") from error
    return {f"{domain}_{task}": (domain, task) for domain, task in ALL_TASKS}


def check_name(name: str, suite: dict[str, tuple[str, str]]) -> None:
    """Raise ValueError for a name that is neither the suite's nor ours; for a known domain, list its tasks."""
    if name in suite or name in SPARSE:
        return
    domains = sorted({domain for domain, _ in suite.values()}, key=len, reverse=True)  # humanoid_CMU before humanoid
    domain = next((domain for domain in domains if name.startswith(f"{domain}_")), None)
    every = [*CONTROL, *(one for one in (*SPARSE, *suite) if one not in CONTROL)]
    if domain is None:
        raise ValueError(f"There is no control task {name!r}.{suggest(name, every)}")
    tasks = ", ".join(sorted(one for one in every if one.startswith(f"{domain}_")))
    raise ValueError(f"{domain} has no task {name[len(domain) + 1 :]!r}. It has: {tasks}.")
