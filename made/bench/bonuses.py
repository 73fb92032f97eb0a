"""`made bench bonuses`: what a bonus costs, reward and update of one batch, beside RLeXplore and beside RND.

The batch is 100 steps of 32 MiniGrid environments under random actions. A bonus is driven through `HostBonus`, as in
anybody's loop. Beside RLeXplore it makes as many gradient steps on as many samples as RLeXplore does; on its own it
runs with its own settings.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from made.adapters import gymnasium as grids
from made.bench import Measure
from made.bench.machine import device
from made.bonuses import BONUSES, MADE
from made.core import Bonus, Space, Spec, Transition
from made.host import HostBonus
from made.learning import Fit
from made.trees import stack
from made.vectors import true_successor

TASK, N, T = grids.PREFIX + "MiniGrid-KeyCorridorS3R3-v0", 32, 100
REPEATS = 5
THEIRS = Fit(learning_rate=1e-3, steps=13, batch=256)  # RLeXplore: all 3,200 samples in batches of 256
BOTH = {"rnd": "RND", "re3": "RE3", "icm": "ICM", "e3b": "E3B", "ride": "RIDE", "ngu": "PseudoCounts"}
BOTH |= {"disagreement": "Disagreement"}
IMAGES = 512, (84, 84, 9)  # a batch of the pixel agents


def measures(names: tuple[str, ...] | None = None) -> Iterator[Measure]:
    """Every bonus of the registry that reads grids, MADE against RND, RLeXplore's side by side, and pixels."""
    where, taken = device(), {}
    chosen = {name: BONUSES[name] for name in names or BONUSES}
    for name, make in chosen.items():
        found = seconds(make())
        if found is not None:
            taken[name] = found
            yield Measure(
                f"{name}, reward and update of {N} x {T} steps", 1e3 * found, "ms", None, None, "", None, where
            )
    if {"made", "rnd"} <= set(taken):
        ratio, goal = taken["made"] / taken["rnd"], "at most twice RND"
        yield Measure(
            "made, against rnd", 1e3 * taken["made"], "ms", 1e3 * taken["rnd"], 1 / ratio, goal, ratio <= 2, where
        )
    yield from beside({name: chosen[name]() for name in BOTH if name in taken}, where)
    yield from pixels([name for name in ("rnd", "made") if name in taken], where)


def walk(host: HostBonus) -> Transition:
    """Random actions in the grid, with the notes of the bonus, leaves [T, N, ...]."""
    envs = gymnasium.make_vec(TASK, host.n_envs, shows=("image", "direction", "hash"))
    rng, seen = np.random.default_rng(0), []
    obs, _ = envs.reset(seed=0)
    host.reset(obs)
    for _ in range(T):
        action = rng.integers(0, 7, host.n_envs)
        after, reward, terminated, truncated, info = envs.step(action)
        successor = true_successor(after, info, terminated | truncated)
        seen.append(host.observe(obs, action, reward, successor, terminated, truncated, after))
        obs = after
    return stack(seen)


def seconds(bonus: Bonus) -> float | None:
    """Seconds of reward and update; None for a bonus that does not read grids, or reads what only a planner has."""
    if "value" in bonus.reads:
        return None
    try:
        host = HostBonus(bonus, *_spaces(), N, horizon=270)
    except ValueError:
        return None
    return timed(host, walk(host))


def timed(host: HostBonus, batch: Transition) -> float:
    """The best of several calls, compiled before."""
    best = float("inf")
    for i in range(REPEATS + 1):
        began = time.perf_counter()
        host.reward(batch)
        host.update(batch)
        jax.block_until_ready(host.state)
        best = min(best, time.perf_counter() - began) if i else best
    return best


def with_fit(thing: Any, fit: Fit) -> Any:
    """The same configuration with every learner in it set to `fit`."""
    if isinstance(thing, Fit):
        return fit
    if isinstance(thing, tuple):
        return tuple(with_fit(x, fit) for x in thing)
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        return thing
    own = {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing) if f.init}
    new = {name: with_fit(x, fit) for name, x in own.items()}
    changed = {name: x for name, x in new.items() if x is not own[name]}
    return dataclasses.replace(thing, **changed) if changed else thing


def beside(bonuses: dict[str, Bonus], where: str) -> Iterator[Measure]:
    """The bonuses both have, RLeXplore's by the interpreter that MADE_RLEXPLORE_PYTHON names."""
    theirs = rlexplore() if bonuses else {}
    hint = "" if theirs else " (not measured: MADE_RLEXPLORE_PYTHON names an interpreter that has rllte-core)"
    for name, bonus in bonuses.items():
        ours, other = seconds(with_fit(bonus, THEIRS)), theirs.get(BOTH[name])
        if ours is None:
            continue
        told, taken = f"{name}, 13 gradient steps, against RLeXplore's {BOTH[name]}{hint}", 1e3 * ours
        if not isinstance(other, float):
            failed = f", which failed with {other}"[:120] if other else ""
            yield Measure(told + failed, taken, "ms", None, None, "3x", None, where)
        else:
            yield Measure(told, taken, "ms", 1e3 * other, other / ours, "3x", other >= 3 * ours, where)


def rlexplore() -> dict[str, Any]:
    """Seconds of each of RLeXplore's bonuses on the same steps; nothing where it is not installed."""
    host = HostBonus("none", *_spaces(), N)
    batch = walk(host)
    steps = {name: np.asarray(getattr(batch, name)) for name in ("action", "reward", "terminated", "truncated")}
    steps |= {name: np.asarray(getattr(batch, name)["image"]) for name in ("obs", "next_obs")}
    python = os.environ.get("MADE_RLEXPLORE_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/steps.npz", allow_pickle=False, **steps)
        script = str(Path(__file__).with_name("rlexplore_bonuses.py"))
        done = subprocess.run([python, script, folder, "2"], capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


def _spaces() -> tuple[gymnasium.Space, gymnasium.Space]:
    envs = gymnasium.make_vec(TASK, 1, shows=("image", "direction", "hash"))
    return envs.single_observation_space, envs.single_action_space


def pixels(names: list[str], where: str) -> Iterator[Measure]:
    """512 images of 84 x 84 x 9, as the pixel agents draw from replay. On a CPU a call takes minutes: left out."""
    if jax.default_backend() == "cpu":
        return
    size, shape = IMAGES
    spec = Spec(Space(shape, jnp.uint8), Space((6,), jnp.float32, None, -1.0, 1.0))
    k_now, k_next, k_act = jax.random.split(jax.random.key(0), 3)
    images = [jax.random.randint(k, (1, size, *shape), 0, 256, jnp.uint8) for k in (k_now, k_next)]
    off, action = jnp.zeros((1, size), bool), jax.random.uniform(k_act, (1, size, 6), minval=-1.0)
    batch = Transition(images[0], action, jnp.zeros((1, size)), images[1], off, off)
    for name in names:
        bonus = MADE.deep(window=2 * size) if name == "made" else BONUSES[name]()
        taken = 1e3 * timed(HostBonus(bonus, spec, size), batch)
        told = f"{name}, reward and update of {size} images of {' x '.join(map(str, shape))}"
        yield Measure(told, taken, "ms", None, None, "", None, where)
