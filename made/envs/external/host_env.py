"""Tasks that live outside compiled code, by name: "gym:..." is Gymnasium's, "envpool:..." is EnvPool's MiniGrid.

A `Hosted` task has a Spec like any environment, so that a `RunConfig` can be made of it; it is stepped through a vector
environment on the host, by `made.training.host.bonus.HostRollout`.
"""

import functools

import equinox as eqx

from made.core import Environment, Spec
from made.core.extras import install
from made.envs.external.spaces import HostEnvironment
from made.envs.minigrid import GRIDS

SOURCES = ("gym", "envpool")


class Hosted(Environment):
    """A task of another library."""

    source: str = eqx.field(static=True)  # one of SOURCES
    task: str = eqx.field(static=True)  # its id there

    @property
    def spec(self) -> Spec:  # type: ignore[override]
        return _spec(self.source, self.task)

    def vector(self, n: int) -> HostEnvironment:
        """n of them side by side."""
        if self.source == "envpool":
            from made.envs.external.envpool_grids import EnvPoolGrids

            venv = EnvPoolGrids(self.task, n)
            horizon = venv.max_steps
        else:
            venv, horizon = _gym(self.task, n)
        env = HostEnvironment(venv)
        env.spec = env.spec._replace(horizon=horizon)
        return env

    def reset(self, key):
        raise ValueError(f"{self.source}:{self.task} cannot be compiled: step what `vector` returns with HostRollout.")

    def step(self, state, action, key):
        return self.reset(key)


@functools.cache
def _spec(source: str, task: str) -> Spec:
    env = Hosted(source, task).vector(1)
    env.venv.close()
    sizes = getattr(env.venv.single_action_space, "nvec", None)
    if sizes is not None and sizes.min() != sizes.max():
        raise ValueError(
            f"{source}:{task} has MultiDiscrete actions of unequal sizes {sizes.tolist()}; agents choose among equally "
            "many values for each entry. Wrap the environment so that all entries have one size."
        )
    return env.spec


def _gym(task: str, n: int):
    """(the vector environment, the clock that ends its episodes or None) of a Gymnasium id."""
    import gymnasium
    from gymnasium.vector import AutoresetMode

    if task.startswith("MiniGrid-"):
        from made.envs.external.farama import package_envs

        try:
            venv = package_envs(task, n)
        except ImportError:
            raise ValueError(f"gym:{task} needs the minigrid package: {install('grid')}.") from None
        return venv, int(venv.envs[0].unwrapped.max_steps)  # type: ignore[attr-defined]
    try:
        same = {"autoreset_mode": AutoresetMode.SAME_STEP}
        venv = gymnasium.make_vec(task, n, "sync", vector_kwargs=same)
    except (gymnasium.error.Error, ImportError) as error:
        raise ValueError(f"Gymnasium cannot make {task!r}: {error}") from error
    return venv, venv.envs[0].spec.max_episode_steps  # type: ignore[attr-defined]


def hosted(name: str) -> Hosted | None:
    """The task that a name such as gym:MultiRoom-N6 or gym:CartPole-v1 asks for; None for a name without a source.

    Tasks that are compiled here may go by their short name.
    """
    source, colon, task = name.partition(":")
    if not colon or source not in SOURCES:
        return None
    full = task if task.startswith("MiniGrid-") else f"MiniGrid-{task}"
    return Hosted(source, next((id for id in (full, f"{full}-v0") if id in GRIDS), task))
