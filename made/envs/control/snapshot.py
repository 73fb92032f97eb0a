"""All that decides how an episode goes on, as arrays, so that a restored one goes on with the same bits."""

from collections.abc import Mapping
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]

# Of MuJoCo's model, what tasks of the suite write into when an episode begins: targets, terrain, gains.
CHANGED = (
    "body_pos",
    "body_quat",
    "dof_damping",
    "geom_pos",
    "geom_rgba",
    "geom_size",
    "hfield_data",
    "light_pos",
    "site_pos",
    "site_rgba",
    "site_size",
    "wrap_prm",
)


def taken(physics: Any, random: np.random.RandomState) -> Arrays:
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


def restore(physics: Any, random: np.random.RandomState, arrays: Mapping[str, np.ndarray]) -> None:
    """Take over what `taken` gave for the same task."""
    from mujoco import mj_step1, mjtState  # type: ignore[attr-defined]

    same_terrain = np.array_equal(physics.model.hfield_data, arrays["model/hfield_data"])
    for name in CHANGED:
        getattr(physics.model, name)[...] = arrays[f"model/{name}"]
    physics.set_state(arrays["physics"], int(mjtState.mjSTATE_INTEGRATION))
    mj_step1(physics.model.ptr, physics.data.ptr)  # what follows from positions and velocities
    physics.data.sensordata[:] = arrays["sensors"]
    if not same_terrain:  # only in tasks that draw a terrain, and with it a renderer, for each episode
        _upload_terrain(physics)
    spare = int(arrays["random/has_spare"]), float(arrays["random/spare"])
    random.set_state(("MT19937", arrays["random/words"], int(arrays["random/at"]), *spare))


def _upload_terrain(physics: Any) -> None:
    """The renderer has its own copy of height fields."""
    from mujoco import mjr_uploadHField  # type: ignore[attr-defined]

    with physics.contexts.gl.make_current() as gl:
        gl.call(mjr_uploadHField, physics.model.ptr, physics.contexts.mujoco.ptr, 0)


def check(arrays: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], who: str) -> None:
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
