"""`python -m benchmarks.tabular`: the goals of the tabular studies, measured."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from benchmarks.common import Measure, device
from benchmarks.tabular import numpy_lock
from made.bonuses import MADE
from made.experiments.paper.lock_returns import WINDOW, Setting, algorithms, lock_run
from made.tabular.algorithm1 import Algorithm1
from made.tabular.families import Garnet
from made.training.backends.compiled_envs import run_batch
from made.training.on_policy import RunConfig, iterate

LOCK = Setting(10, 0.1, 1500)
SEEDS = 20
NUMPY_SEEDS = 3  # the loop's speed does not depend on the seed; these are enough to compare returns as well


def measures() -> Iterator[Measure]:
    """Every measure, the cheap ones first."""
    yield from lock()
    yield from algorithm_1()
    yield from demo()


def lock_trial() -> RunConfig:
    """Value iteration with MADE on the lock, as the study runs it."""
    agent = algorithms(LOCK)["vi"]
    return lock_run(LOCK, agent, MADE.tabular(WINDOW), every=15, probes=())


def lock() -> Iterator[Measure]:
    """Episodes a second against the NumPy loop and, where installed, rlberry's UCBVI; and that both agree."""
    trials, where = [lock_trial()] * SEEDS, device()
    ours = max(_episodes_per_second(trials) for _ in range(4))
    theirs, returns = _numpy_loop()
    name = f"lock, value iteration with MADE, H={LOCK.H}, {LOCK.episodes} episodes, {SEEDS} seeds"
    yield Measure(
        f"{name}: against a NumPy loop", ours, "episodes/s", theirs, ours / theirs, "50x", ours >= 50 * theirs, where
    )
    error = replay_error()
    yield Measure(
        "largest difference in Q to the NumPy loop on the same transitions",
        error,
        "",
        None,
        None,
        "1e-4",
        error < 1e-4,
        where,
    )
    compiled = np.array([record.rows["return"].mean() for record in run_batch(trials, range(SEEDS))])
    spread = np.hypot(compiled.std(ddof=1) / SEEDS**0.5, returns.std(ddof=1) / len(returns) ** 0.5)
    apart = float(abs(compiled.mean() - returns.mean()) / spread)
    yield Measure(
        "average return, compiled",
        float(compiled.mean()),
        "",
        float(returns.mean()),
        None,
        "within 3 standard errors",
        apart < 3,
        where,
    )
    yield _rlberry(ours, where)


def _episodes_per_second(trials: list[RunConfig]) -> float:
    """Both cores: half of the lanes on each. The first call compiles; the best of several counts."""
    from concurrent.futures import ThreadPoolExecutor

    workers = min(2, os.cpu_count() or 1)
    share = -(-len(trials) // workers)
    parts = [(trials[i : i + share], range(i, min(i + share, len(trials)))) for i in range(0, len(trials), share)]
    for part in parts:
        run_batch(*part)
    with ThreadPoolExecutor(workers) as pool:
        began = time.perf_counter()
        list(pool.map(lambda part: run_batch(*part), parts))
        wall = time.perf_counter() - began
    return len(trials) * trials[0].iterations / wall


def _explorer(trial: RunConfig) -> numpy_lock.Explorer:
    spec = trial.env.spec
    agent = trial.agent
    return numpy_lock.Explorer(spec.obs.n, spec.action.n, WINDOW, agent.gamma, agent.sweeps)  # type: ignore[attr-defined]


def _numpy_loop() -> tuple[float, np.ndarray]:
    """Episodes a second of the loop and the average return of each of its seeds."""
    trial, returns = lock_trial(), []
    began = time.perf_counter()
    for seed in range(NUMPY_SEEDS):
        mdp = trial.env.family.draw(jax.random.key(seed))  # type: ignore[attr-defined]
        P, r, rho = (np.asarray(x, np.float64) for x in (mdp.P, mdp.r, mdp.rho))
        P = P / P.sum(-1, keepdims=True)
        rng = np.random.default_rng(seed)
        absorbing = np.asarray(mdp.absorbing)
        out = numpy_lock.explore(P, r, rho, absorbing, trial.unroll, LOCK.episodes, _explorer(trial), rng)
        returns.append(out.mean())
    return NUMPY_SEEDS * LOCK.episodes / (time.perf_counter() - began), np.array(returns)


def replay_error(episodes: int = 300) -> float:
    """Run the compiled study, hand its very transitions to the NumPy loop, and compare Q after every episode."""
    from made.training.rollout import rollout

    trial = lock_trial()

    def one(state, _):
        k_roll = jax.random.split(state.key, 4)[1]  # as `iterate` does
        inputs = (state.env, trial.agent, trial.bonus, state.agent, state.bonus, state.streams, trial.unroll, k_roll)
        batch = rollout(*inputs).batch
        state, _ = iterate(trial, state)
        return state, ((batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminated), state.agent.q)

    run = jax.jit(lambda key: jax.lax.scan(one, trial.start(key), None, episodes)[1])
    transitions, q = jax.tree.map(np.asarray, run(jax.random.key(0)))
    flat = [x[:, :, 0] for x in transitions]
    return float(np.abs(numpy_lock.replay(flat, _explorer(trial)) - q).max())


def _rlberry(ours: float, where: str) -> Measure:
    """rlberry's UCBVI on the same lock, by the interpreter that MADE_RLBERRY_PYTHON names, or by this one."""
    name = "lock: against rlberry's UCBVI, one seed"
    python = os.environ.get("MADE_RLBERRY_PYTHON", sys.executable)
    mdp = lock_trial().env.family.draw(jax.random.key(0))  # type: ignore[attr-defined]
    P = np.asarray(mdp.P, np.float64)
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/P.npy", P / P.sum(-1, keepdims=True))
        np.save(f"{folder}/r.npy", np.asarray(mdp.r, np.float64))
        script = str(Path(__file__).with_name("rlberry_lock.py"))
        words = [python, script, folder, str(LOCK.H + 1), str(LOCK.episodes)]
        done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        hint = f"{name} (not measured: no rlberry here; MADE_RLBERRY_PYTHON names an interpreter that has it)"
        return Measure(hint, ours, "episodes/s", None, None, "", None, where)
    theirs = float(done.stdout.split()[-1])
    return Measure(name, ours, "episodes/s", theirs, ours / theirs, "", None, where)


def algorithm_1(iterations: int = 20) -> Iterator[Measure]:
    """Seconds an iteration of Algorithm 1 on Garnet MDPs of growing size, 4 actions, float64."""
    where, before = device(), None
    with jax.enable_x64(True):
        for size in (100, 300, 1000):
            mdp = Garnet(S=size, A=4, branching=5, gamma=0.95).draw(jax.random.key(0))
            solver = Algorithm1(eta=0.05, lam=1 / (4 * size))
            solve = jax.jit(lambda key, mdp=mdp, solver=solver: solver.solve(mdp, iterations, key)[1].J)
            jax.block_until_ready(solve(jax.random.key(0)))
            began = time.perf_counter()
            jax.block_until_ready(solve(jax.random.key(1)))
            taken = (time.perf_counter() - began) / iterations
            growth = (
                "" if before is None else f", grown like S^{np.log(taken / before[1]) / np.log(size / before[0]):.1f}"
            )
            yield Measure(f"Algorithm 1, S={size}, A=4{growth}", taken, "s/iteration", None, None, "", None, where)
            before = size, taken


def demo() -> Iterator[Measure]:
    """`made demo` from nothing, cold and with its programs cached, and the most memory it held."""
    where = device()
    with tempfile.TemporaryDirectory() as folder:
        cold, _ = _demo(Path(folder), "cold")
        warm, _ = _demo(Path(folder), "warm")
    yield Measure(
        "made demo, nothing compiled before", cold, "s", 120.0, 120 / cold, "at most 120 s", cold <= 120, where
    )
    yield Measure("made demo, compiled before", warm, "s", 60.0, 60 / warm, "at most 60 s", warm <= 60, where)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    yield Measure("made demo, most memory held", peak, "GB", 2.0, 2 / peak, "under 2 GB", peak < 2, where)


def _demo(folder: Path, name: str) -> tuple[float, str]:
    """Seconds of one demo in a process of its own, with the compilation cache inside `folder`."""
    words = [
        sys.executable,
        "-m",
        "made.cli.main",
        "demo",
        "--out",
        str(folder / name),
        "--report",
        str(folder / f"{name}-report"),
    ]
    began = time.perf_counter()
    done = subprocess.run(
        words, env={**os.environ, "MADE_CACHE": str(folder / "cache")}, capture_output=True, text=True
    )
    taken = time.perf_counter() - began
    if done.returncode:
        raise ValueError(f"made demo failed with exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return taken, done.stdout
