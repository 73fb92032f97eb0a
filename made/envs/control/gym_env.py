"""A control task in this process: its simulation, and the same as a Gymnasium environment, from pixels or states.

from made.envs.control.gym_env import ControlEnv
env = ControlEnv("cheetah_run_sparse")              # 100 x 100, three frames, action repeat 2
env = ControlEnv("walker_run", pixels=False)        # the state as one vector
"""

import logging
import os
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from jaxtyping import Float32, UInt8

from made.core import Spec
from made.envs.control import rendering
from made.envs.control.tasks import EPISODE, SPARSE, Control, Thresholded, check_name, make_control, suite_names

UNBOUNDED = 1e9  # MuJoCo writes 1e10 where an actuator has no limits
LOW_RES_SHADOW = 512  # texels along a side, of 2048
Arrays = dict[str, np.ndarray]

# Of MuJoCo's model, what tasks of the suite write into when an episode begins: targets, terrain, gains.
CHANGED = (
    *("body_pos", "body_quat", "dof_damping", "geom_pos", "geom_rgba", "geom_size", "hfield_data", "light_pos"),
    *("site_pos", "site_rgba", "site_size", "wrap_prm"),
)


class StepResult(NamedTuple):
    """The result of one action."""

    reward: float  # summed over the repeated steps
    terminated: bool  # dm_control's discount is 0
    truncated: bool  # the time limit, or an end with a discount above 0


class Simulation:
    """Steps a task of dm_control as its `Environment` does, but observes the result once for each action.

    Two simulations of one seed are bit-identical. Actions are in [-1, 1] and rescaled to the actuators' bounds; values
    outside are clipped, as in MuJoCo itself.
    """

    def __init__(self, control: Control, seed: int = 0):
        check_name(control.task, suite_names())
        self.control = control
        env = load(control.task, seed)
        self._physics, self._task = env.physics, env.task
        self._sub_steps = round(env.control_timestep() / self._physics.timestep())
        bounds = env.action_spec()
        low, high = np.asarray(bounds.minimum, np.float64), np.asarray(bounds.maximum, np.float64)
        if max(np.abs(low).max(), np.abs(high).max()) > UNBOUNDED:
            raise ValueError(
                f"{control.task} has actuators without bounds, which [-1, 1] cannot stand for: use another task."
            )
        self._middle, self._half = (low + high) / 2, (high - low) / 2
        self._camera: Any = self._make_camera() if control.pixels else None  # before a task uses a renderer
        self.reset()
        self.spec: Spec = control.spec(len(self._half), 0 if control.pixels else len(self.seen))

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode; a seed restarts the random numbers of the task."""
        if seed is not None:
            self._task.random.seed(seed)
        with self._physics.reset_context():
            self._task.initialize_episode(self._physics)
        self.steps, self.total, self.over = 0, 0.0, False
        self._observe()

    def step(self, action: np.ndarray) -> StepResult:
        """Hold one action for `repeat` steps, or to the end of the episode."""
        if self.over:
            raise ValueError(f"The episode of {self.control.task} is over: call reset before the next step.")
        given = np.asarray(action, np.float64)
        if given.shape != self._half.shape or not np.isfinite(given).all():
            raise ValueError(
                f"{self.control.task} takes {len(self._half)} finite numbers in [-1, 1] as an action, not {action!r}."
            )
        force = self._middle + self._half * np.clip(given, -1, 1)
        reward, ending = 0.0, None
        for _ in range(self.control.repeat):
            self._task.before_step(force, self._physics)
            self._physics.step(self._sub_steps)
            self._task.after_step(self._physics)
            reward += float(self._task.get_reward(self._physics))
            self.steps += 1
            ending = 1.0 if self.steps >= EPISODE else self._task.get_termination(self._physics)
            if ending is not None:
                break
        self.over = ending is not None
        self.total += reward
        self._observe()
        return StepResult(reward, self.over and ending == 0, self.over and ending != 0)

    def _observe(self) -> None:
        self.seen: np.ndarray = self.frame() if self.control.pixels else self.state()

    def frame(self) -> UInt8[np.ndarray, "h w 3"]:
        """The frame of the current state, rendered now. From pixels, `seen` holds it already."""
        if self._camera is None:
            self._camera = self._make_camera()
        return np.array(self._camera.render(), order="C")  # the camera renders the next one into the same memory

    def state(self) -> Float32[np.ndarray, " d"]:
        """The suite's observation as one vector, its parts in the suite's order."""
        parts = self._task.get_observation(self._physics).values()
        return np.concatenate([np.ravel(part) for part in parts]).astype(np.float32)

    def _make_camera(self) -> Any:
        """A camera with a frame buffer no larger than the frame, which changes no pixel and is faster."""
        from dm_control.mujoco import Camera
        from mujoco import FatalError  # type: ignore[attr-defined]

        control, model = self.control, self._physics.model
        if os.environ.get("MUJOCO_GL", "") in ("", *rendering.OFF):
            rendering.choose()  # raises an error where nothing works
        if not -1 <= control.camera < model.ncam:
            raise ValueError(
                f"{control.task} has the cameras 0 to {model.ncam - 1}, and -1 that is free; not {control.camera}."
            )
        model.vis.global_.offwidth = model.vis.global_.offheight = control.size
        if control.low_res_shadows:
            model.vis.quality.shadowsize = LOW_RES_SHADOW
        try:
            return Camera(self._physics, control.size, control.size, control.camera)
        except (RuntimeError, AttributeError, OSError, FatalError) as error:
            raise ValueError(f"{control.task} cannot be rendered: {error}. {rendering.advice()}") from error

    def save(self) -> Arrays:
        """All that changes, as arrays: `load` on another simulation of the same task resumes to the bit.

        MuJoCo's mjSTATE_INTEGRATION holds time, positions, velocities, activations, the controls and the warm start of
        the solver. Sensors of forces and accelerations were read before the last integration, so no state restores
        them. A task may also have changed the model.
        """
        from mujoco import mjtState  # type: ignore[attr-defined]

        physics = self._physics
        _, words, at, has_spare, spare = self._task.random.get_state(legacy=True)  # the spare is a Gaussian number
        return {
            "physics": physics.get_state(int(mjtState.mjSTATE_INTEGRATION)),
            "sensors": np.array(physics.data.sensordata),
            **{f"model/{name}": np.array(getattr(physics.model, name)) for name in CHANGED},
            "random/words": np.array(words),
            "random/at": np.asarray(at, np.int64),
            "random/has_spare": np.asarray(has_spare, np.int64),
            "random/spare": np.asarray(spare, np.float64),
            "steps": np.asarray(self.steps, np.int64),
            "total": np.asarray(self.total, np.float64),
            "over": np.asarray(self.over),
            "seen": np.array(self.seen),
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Resume from what `save` returned for the same task."""
        from mujoco import mj_step1, mjr_uploadHField, mjtState  # type: ignore[attr-defined]

        check_saved(arrays, self.save(), self.control.task)
        physics = self._physics
        same_terrain = np.array_equal(physics.model.hfield_data, arrays["model/hfield_data"])
        for name in CHANGED:
            getattr(physics.model, name)[...] = arrays[f"model/{name}"]
        physics.set_state(arrays["physics"], int(mjtState.mjSTATE_INTEGRATION))
        mj_step1(physics.model.ptr, physics.data.ptr)  # what follows from positions and velocities
        physics.data.sensordata[:] = arrays["sensors"]
        if not same_terrain:  # only in tasks that sample a terrain for each episode: the renderer has its own copy
            with physics.contexts.gl.make_current() as gl:
                gl.call(mjr_uploadHField, physics.model.ptr, physics.contexts.mujoco.ptr, 0)
        spare = int(arrays["random/has_spare"]), float(arrays["random/spare"])
        self._task.random.set_state(("MT19937", arrays["random/words"], int(arrays["random/at"]), *spare))
        self.steps, self.total = int(arrays["steps"]), float(arrays["total"])
        self.over, self.seen = bool(arrays["over"]), np.array(arrays["seen"])

    def close(self) -> None:
        """Free the physics and the renderer's memory."""
        self._camera = None
        self._physics.free()


def load(name: str, seed: int) -> Any:
    """A task as an environment of dm_control: the suite's, or one of `made.envs.control.tasks.SPARSE`."""
    from dm_control import suite
    from dm_control.rl.control import Environment

    domain, task = SPARSE[name][:2] if name in SPARSE else suite_names()[name]
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)  # MuJoCo warns at each load of what is deprecated in the suite's own files
    try:
        env = suite.load(domain, task, task_kwargs={"random": seed})
    finally:
        logger.setLevel(level)
    if name not in SPARSE:
        return env
    step, sparse = env.control_timestep(), Thresholded(env.task, SPARSE[name].least)
    return Environment(env.physics, sparse, time_limit=EPISODE * step, control_timestep=step)


def check_saved(arrays: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], who: str) -> None:
    """Raise ValueError for arrays that were saved from another task or with other settings."""
    odd = sorted(set(arrays) ^ set(wanted))
    if odd:
        raise ValueError(f"What was saved does not fit {who}: {odd[0]} is only in one of the two.")
    for name, now in wanted.items():
        saved = np.asarray(arrays[name])
        if saved.shape != now.shape or saved.dtype != now.dtype:
            raise ValueError(
                f"What was saved does not fit {who}: {name} is {saved.dtype}{list(saved.shape)} there and "
                f"{now.dtype}{list(now.shape)} here. Make the task with the settings it was saved with."
            )


class ControlEnv(gymnasium.Env):
    """A control task by name, or by its settings.

    `terminated` is dm_control's discount of 0, which few tasks have; the time limit is `truncated`. The
    observation is the stack [size, size, 3 stack] of bytes, newest last; `frame` is its newest frame alone, and with
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
        """The newest frame."""
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
        """The newest frame, where `render_mode` asks for it."""
        return self.frame if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.simulation.close()
