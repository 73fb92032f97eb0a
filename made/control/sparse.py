"""Tasks of our own on the suite's: the same bodies and rewards, but nothing is paid below a threshold.

The paper's release carries a changed copy of dm_control for these. Here the suite's task is wrapped, and the package
stays as it is installed.
"""

from typing import Any, NamedTuple


class Sparse(NamedTuple):
    """A task of the suite, and the least reward that is paid."""

    domain: str
    task: str
    least: float


# cheetah: dense r = clip(speed / 10, 0, 1), so that nothing is paid below a speed of 2.5.
# walker: dense r = stand (5 move + 1) / 6; the threshold is on that whole product.
SPARSE: dict[str, Sparse] = {
    "cheetah_run_sparse": Sparse("cheetah", "run", 0.25),
    "walker_run_sparse": Sparse("walker", "run", 0.25),
    "walker_walk_sparse": Sparse("walker", "walk", 0.7),
}


class Thresholded:
    """A task of the suite that pays r where r >= least and 0 elsewhere; all else is the wrapped task's."""

    def __init__(self, task: Any, least: float):
        self._task, self.least = task, least

    def get_reward(self, physics: Any) -> float:
        reward = self._task.get_reward(physics)
        return reward if reward >= self.least else 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def load_sparse(name: str, seed: int, steps: int) -> Any:
    """One of SPARSE as an environment of dm_control, with episodes of so many steps."""
    from dm_control import suite
    from dm_control.rl.control import Environment

    chosen = SPARSE[name]
    dense = suite.load(chosen.domain, chosen.task, task_kwargs={"random": seed})
    step = dense.control_timestep()
    task = Thresholded(dense.task, chosen.least)
    return Environment(dense.physics, task, time_limit=steps * step, control_timestep=step)
