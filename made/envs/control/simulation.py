"""One control task with its physics, clock and random numbers: what the Gymnasium side and the workers share."""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8

from made.core import Spec
from made.envs.control import rendering
from made.envs.control.tasks import EPISODE, SPARSE, Control, check_name, load_sparse, suite_names

UNBOUNDED = 1e9  # MuJoCo writes 1e10 where an actuator has no limits
QUICK_SHADOW = 512  # texels along a side, of 2048
Arrays = dict[str, np.ndarray]

# Of MuJoCo's model, what tasks of the suite write into when an episode begins: targets, terrain, gains.
CHANGED = (
    *("body_pos", "body_quat", "dof_damping", "geom_pos", "geom_rgba", "geom_size", "hfield_data", "light_pos"),
    *("site_pos", "site_rgba", "site_size", "wrap_prm"),
)


class StepResult(NamedTuple):
    """What came of one action."""

    reward: float  # summed over the repeated steps
    terminated: bool  # dm_control's discount is 0
    truncated: bool  # the clock, or an end with a discount above 0


class Simulation:
    """Steps a task of dm_control as its `Environment` does, but looks at the outcome once for each action.

    Two simulations of one seed are equal to the bit. Actions are in [-1, 1] and rescaled to the actuators' bounds; what
    lies outside is taken to the nearest bound, as MuJoCo itself does.
    """

    def __init__(self, control: Control, seed: int = 0):
        check_name(control.task, suite_names())
        self.control = control
        with _without_warnings():
            env = load(control.task, seed)
        self._physics, self._task = env.physics, env.task
        self._sub_steps = round(env.control_timestep() / self._physics.timestep())
        self._middle, self._half = _bounds(control, env.action_spec())
        self._camera: Any = None
        if control.pixels:
            self._settle_drawing()
        self.reset()
        self.spec: Spec = control.spec(len(self._half), 0 if control.pixels else len(self.seen))

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode; a seed restarts the stream of random numbers that episodes begin from."""
        if seed is not None:
            self._task.random.seed(seed)
        with self._physics.reset_context():
            self._task.initialize_episode(self._physics)
        self.steps, self.total, self.over = 0, 0.0, False
        self._look()

    def step(self, action: np.ndarray) -> StepResult:
        """Hold one action for `repeat` steps, or to the end of the episode."""
        if self.over:
            raise ValueError(f"The episode of {self.control.task} is over: call reset before the next step.")
        force = self._middle + self._half * np.clip(self._checked(action), -1, 1)
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
        self._look()
        return StepResult(reward, self.over and ending == 0, self.over and ending != 0)

    def _checked(self, action: np.ndarray) -> np.ndarray:
        given = np.asarray(action, np.float64)
        if given.shape != self._half.shape or not np.isfinite(given).all():
            raise ValueError(
                f"{self.control.task} takes {len(self._half)} finite numbers in [-1, 1] as an action, not {action!r}."
            )
        return given

    def _look(self) -> None:
        self.seen: np.ndarray = self.frame() if self.control.pixels else self.state()

    def frame(self) -> UInt8[np.ndarray, "h w 3"]:
        """The picture of this moment, drawn now. `seen` holds it already where the task is shown from pixels."""
        self._settle_drawing()
        return np.array(self._camera.render(), order="C")  # the camera draws the next one into the same memory

    def state(self) -> Float32[np.ndarray, " d"]:
        """The suite's observation as one vector, its parts in the suite's order."""
        parts = self._task.get_observation(self._physics).values()
        return np.concatenate([np.ravel(part) for part in parts]).astype(np.float32)

    def _settle_drawing(self) -> None:
        """A camera and a frame buffer no larger than the picture, which changes no pixel and is faster; made once."""
        if self._camera is not None:
            return
        from dm_control.mujoco import Camera
        from mujoco import FatalError  # type: ignore[attr-defined]

        control, model = self.control, self._physics.model
        if os.environ.get("MUJOCO_GL", "") in ("", *rendering.OFF):
            rendering.choose()  # raises a sentence where nothing works
        if not -1 <= control.camera < model.ncam:
            raise ValueError(
                f"{control.task} has the cameras 0 to {model.ncam - 1}, and -1 that is free; not {control.camera}."
            )
        model.vis.global_.offwidth = model.vis.global_.offheight = control.size
        if control.low_res_shadows:
            model.vis.quality.shadowsize = QUICK_SHADOW
        try:
            self._camera = Camera(self._physics, control.size, control.size, control.camera)
        except (RuntimeError, AttributeError, OSError, FatalError) as error:
            raise ValueError(f"{control.task} cannot be rendered: {error}. {rendering.advice()}") from error

    def save(self) -> Arrays:
        """All that changes, as arrays: `load` on another simulation of the same task goes on with the same bits."""
        return {
            **save_physics(self._physics, self._task.random),
            "steps": np.asarray(self.steps, np.int64),
            "total": np.asarray(self.total, np.float64),
            "over": np.asarray(self.over),
            "seen": np.array(self.seen),
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` gave."""
        check_saved(arrays, self.save(), self.control.task)
        load_physics(self._physics, self._task.random, arrays)
        self.steps, self.total = int(arrays["steps"]), float(arrays["total"])
        self.over, self.seen = bool(arrays["over"]), np.array(arrays["seen"])

    def close(self) -> None:
        """Free the physics and the renderer's memory."""
        self._camera = None
        self._physics.free()


def load(name: str, seed: int) -> Any:
    """A task as dm_control's own environment: the suite's, or one of `made.envs.control.tasks`."""
    from dm_control import suite

    if name in SPARSE:
        return load_sparse(name, seed, EPISODE)
    domain, task = suite_names()[name]
    return suite.load(domain, task, task_kwargs={"random": seed})


def _bounds(control: Control, spec: Any) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half width of the actuators' ranges, so that a in [-1, 1] stands for middle + half a."""
    low, high = np.asarray(spec.minimum, np.float64), np.asarray(spec.maximum, np.float64)
    if max(np.abs(low).max(), np.abs(high).max()) > UNBOUNDED:
        raise ValueError(
            f"{control.task} has actuators without bounds, which [-1, 1] cannot stand for: use another task."
        )
    return (low + high) / 2, (high - low) / 2


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """MuJoCo tells at each load what is deprecated in the suite's own files, which is not ours to mend."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def save_physics(physics: Any, random: np.random.RandomState) -> Arrays:
    """The integrator's whole state, the sensors, what a task changed in the model, and its random numbers.

    MuJoCo's mjSTATE_INTEGRATION holds time, positions, velocities, activations, the controls and the warm start of the
    solver. Sensors of forces and accelerations were read before the last integration, so no state gives them back.
    """
    from mujoco import mjtState  # type: ignore[attr-defined]

    _, words, at, has_spare, spare = random.get_state(legacy=True)  # 624 words, a place in them, a Gaussian number kept
    return {
        "physics": physics.get_state(int(mjtState.mjSTATE_INTEGRATION)),
        "sensors": np.array(physics.data.sensordata),
        **{f"model/{name}": np.array(getattr(physics.model, name)) for name in CHANGED},
        "random/words": np.array(words),
        "random/at": np.asarray(at, np.int64),
        "random/has_spare": np.asarray(has_spare, np.int64),
        "random/spare": np.asarray(spare, np.float64),
    }


def load_physics(physics: Any, random: np.random.RandomState, arrays: Mapping[str, np.ndarray]) -> None:
    """Take over what `save_physics` gave for the same task."""
    from mujoco import mj_step1, mjr_uploadHField, mjtState  # type: ignore[attr-defined]

    same_terrain = np.array_equal(physics.model.hfield_data, arrays["model/hfield_data"])
    for name in CHANGED:
        getattr(physics.model, name)[...] = arrays[f"model/{name}"]
    physics.set_state(arrays["physics"], int(mjtState.mjSTATE_INTEGRATION))
    mj_step1(physics.model.ptr, physics.data.ptr)  # what follows from positions and velocities
    physics.data.sensordata[:] = arrays["sensors"]
    if not same_terrain:  # only in tasks that draw a terrain for each episode: the renderer has a copy of its own
        with physics.contexts.gl.make_current() as gl:
            gl.call(mjr_uploadHField, physics.model.ptr, physics.contexts.mujoco.ptr, 0)
    spare = int(arrays["random/has_spare"]), float(arrays["random/spare"])
    random.set_state(("MT19937", arrays["random/words"], int(arrays["random/at"]), *spare))


def check_saved(arrays: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], who: str) -> None:
    """Refuse arrays that were saved from another task or with other settings."""
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
