"""Control tasks as Gymnasium environments, from pixels or from states.

from made.envs.control.gym_env import ControlEnv
env = ControlEnv("cheetah_run_sparse")              # 100 x 100, three frames, action repeat 2
env = ControlEnv("walker_run", pixels=False)        # the state as one vector
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from jaxtyping import UInt8

from made.core import Spec
from made.envs.control.simulation import Arrays, Simulation, check_saved
from made.envs.control.tasks import Control, make_control


class ControlEnv(gymnasium.Env):
    """A control task by name, or by its settings.

    `terminated` is dm_control's discount of 0, which few tasks have; the end of the clock is `truncated`. The
    observation is the stack [size, size, 3 stack] of bytes, newest last; `frame` is its newest picture alone, and with
    `stack=1` the two are the same. `info` of an episode's last step holds its return.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 50}

    def __init__(self, task: str | Control, seed: int = 0, render_mode: str | None = None, **changes: int | bool):
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is None or 'rgb_array', not {render_mode!r}.")
        if isinstance(task, Control) and changes:
            raise ValueError(f"Settings given twice, in {task} and as {changes}: change them in the first.")
        self.control = make_control(task, **changes) if isinstance(task, str) else task
        self.render_mode = render_mode
        self.simulation = Simulation(self.control, seed)
        self.made_spec: Spec = self.simulation.spec  # in the project's terms; `spec` is Gymnasium's own
        obs, action = self.made_spec.obs, self.made_spec.action
        low, high = (0, 255) if self.control.pixels else (-np.inf, np.inf)
        self.observation_space = gymnasium.spaces.Box(low, high, obs.shape, np.dtype(obs.dtype).type)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, action.shape, np.float32)
        self._obs = self.control.first_obs(self.simulation.seen)

    @property
    def frame(self) -> UInt8[np.ndarray, "h w 3"]:
        """The newest picture."""
        return self.simulation.seen if self.control.pixels else self.simulation.frame()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.simulation.reset(seed)
        self._obs = self.control.first_obs(self.simulation.seen)
        return self._obs, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        outcome = self.simulation.step(action)
        self._obs = self.control.next_obs(self._obs, self.simulation.seen)
        info = {"return": self.simulation.total} if self.simulation.over else {}
        return self._obs, outcome.reward, outcome.terminated, outcome.truncated, info

    def render(self) -> np.ndarray | None:
        """The newest picture, where `render_mode` asks for it."""
        return self.frame if self.render_mode == "rgb_array" else None

    def save(self) -> Arrays:
        """All that changes, as arrays."""
        return {**self.simulation.save(), "obs": np.array(self._obs)}

    def load(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Take over what `save` gave; returns the observation of that moment."""
        check_saved(arrays, self.save(), self.control.task)
        self.simulation.load({name: x for name, x in arrays.items() if name != "obs"})
        self._obs = np.array(arrays["obs"])
        return self._obs

    def close(self) -> None:
        self.simulation.close()
