"""Five short runs with fixed seeds, reduced to digests: `python tests/golden/runs.py` prints or records them.

A digest does not depend on names or on the order of fields, so it survives renaming. Bits depend on the CPU and on the
versions of jax and jaxlib, so the recorded file names them, and rounded sums are stored beside the bits.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

RECORDED = Path(__file__).with_name("digests.json")


def digest(tree: Any) -> dict[str, Any]:
    """SHA-256 over the sorted contents of all leaves, with their number and the sum of their absolute values."""
    leaves = [np.asarray(jax.random.key_data(x) if _is_key(x) else x) for x in jax.tree.leaves(tree)]
    each = sorted(hashlib.sha256(f"{x.dtype}{x.shape}".encode() + x.tobytes()).hexdigest() for x in leaves)
    size = sum(float(np.abs(x.astype(np.float64)).sum()) for x in leaves if x.dtype.kind == "f")
    return {"sha256": hashlib.sha256("".join(each).encode()).hexdigest(), "leaves": len(each), "sum": size}


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def environment() -> dict[str, str]:
    """What the bits of a run depend on besides the code."""
    import jaxlib

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    cpu = next((line for line in lines if line.startswith("model name")), "")
    return {
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cpu": cpu.partition(":")[2].strip(),
    }


def _compiled(run: Any) -> dict[str, Any]:
    state = jax.jit(run.start)(jax.random.key(3))
    advance = jax.jit(lambda state: jax.lax.fori_loop(0, run.iterations, lambda _, s: run.advance(s)[0], state))
    state = advance(state)
    return digest((state.agent, state.bonus, state.key))


def lock() -> dict[str, Any]:
    """The bidirectional lock with value iteration and tabular MADE."""
    from made import MADE, RunConfig, ValueIteration, make

    return _compiled(RunConfig(make("lock"), ValueIteration(), MADE.tabular(window=100), unroll=11, iterations=50))


def grid() -> dict[str, Any]:
    """DoorKey with IMPALA (LSTM) and MADE at first visits."""
    from made import MADE, FirstVisit, RunConfig, make
    from made.agents.impala import IMPALA
    from made.agents.policy_net import Layout

    agent = IMPALA(Layout(channels=(4, 4), strides=(2, 2), dense=(16,), width=16))
    return _compiled(
        RunConfig(make("MiniGrid-DoorKey-5x5-v0"), agent, FirstVisit(MADE.hashed()), n_envs=4, unroll=10, iterations=6)
    )


def _control(agent: str, settings: tuple[str, ...], small: Callable[[Any], Any]) -> dict[str, Any]:
    from made.cli.build import build
    from made.training import train_loop
    from made.training.backends import TrainPlan, control_tasks

    run = small(build("pendulum_swingup", agent, "made", False, 0.1, None, settings))
    plan = TrainPlan(run, (0, 1), evaluate_every=30, checkpoint_every=30, episodes=1)
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(control_tasks.ControlBackend(plan)) as backend:
        state = train_loop.restore_or_init(plan, backend, Path(folder))
        state = train_loop.train(plan, backend, state, Path(folder), [], lambda lines: None)
        return digest(state.state)


def sac() -> dict[str, Any]:
    """SAC from states of Pendulum with MADE."""
    settings = ("task.repeat=100", "seed_steps=6", "batch=8", "replay.capacity=64")

    def small(run):
        layout = dataclasses.replace(run.agent.layout, width=6, depth=1)
        return dataclasses.replace(run, agent=dataclasses.replace(run.agent, layout=layout), iterations=20, every=10)

    return _control("sac", settings, small)


def dreamer() -> dict[str, Any]:
    """Dreamer from states of Pendulum with MADE."""
    from made.agents.dreamer.network import Layout

    layout = Layout(stoch=2, deter=4, hidden=4, units=4, depth=2, reward=1, ends=1, value=1, actor=1)
    settings = ("task.repeat=100", "task.pixels=false", "replay.length=4", "seed_steps=8", "batch=2", "pretrain=2")
    settings += ("train_every=8", "updates=2", "replay.steps.capacity=64", "agent.horizon=2")
    small = lambda run: dataclasses.replace(  # noqa: E731
        run, agent=dataclasses.replace(run.agent, layout=layout), iterations=20, every=10
    )
    return _control("dreamer", settings, small)


def host() -> dict[str, Any]:
    """`HostBonus` from NumPy: the rewards of ten steps of four environments."""
    import gymnasium as gym

    from made import MADE, HostBonus
    from made.core import trees

    rng = np.random.default_rng(0)
    space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    bonus = HostBonus(MADE.deep(), space, gym.spaces.Discrete(2), n_envs=4, seed=0)
    obs, rewards = rng.uniform(-1, 1, (4, 3)).astype(np.float32), []
    bonus.reset(obs)
    for _ in range(10):
        after = rng.uniform(-1, 1, (4, 3)).astype(np.float32)
        step = bonus.observe(obs, rng.integers(0, 2, 4), np.zeros(4), after, np.zeros(4, bool), np.zeros(4, bool))
        rewards.append(np.asarray(bonus.reward(trees.stack([step]))))
        bonus.update(trees.stack([step]))
        obs = after
    return digest(rewards)


RUNS = {"lock": lock, "grid": grid, "sac": sac, "dreamer": dreamer, "host": host}

if __name__ == "__main__":
    found = {name: run() for name, run in RUNS.items() if not sys.argv[2:] or name in sys.argv[2:]}
    if sys.argv[1:2] == ["record"]:
        RECORDED.write_text(json.dumps({"environment": environment(), "runs": found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    recorded = json.loads(RECORDED.read_text())["runs"] if RECORDED.exists() else {}
    print({name: recorded.get(name) == one for name, one in found.items()})
