"""`made.train`: train a configuration on one or many seeds, as the command `made train` does."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from made.envs.host_env import Hosted
from made.training import run_dir, sharding, train_loop
from made.training.backends import Backend, TrainPlan, compiled_envs, control_tasks, host_envs
from made.training.control_config import ControlConfig
from made.training.loggers import JSONL, Line, Meter, Writer
from made.training.off_policy import ReplayRun
from made.training.on_policy import RunConfig
from made.training.paths import require_dir
from made.training.train_loop import TrainState

# Defaults, in frames of each seed. A checkpoint with a replay is slow to write.
FRAMES = {"steps": "10M", "every": "50k", "eval_every": "500k", "checkpoint_every": "500k"}
CONTROL_FRAMES = {"steps": "500k", "every": "2k", "eval_every": "10k", "checkpoint_every": "50k"}  # and replay
CONTROL_KEEP = 2  # checkpoints
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}


class Session(NamedTuple):
    """How a run is recorded and reported."""

    command: str  # for people, in run.json
    options: Mapping[str, Any] | None = None  # those of `made train`, in run.json
    loggers: Callable[[int], Iterable[Writer]] = lambda frames: ()  # frames so far -> writers besides metrics.jsonl
    progress: bool = True  # on stderr
    on_lines: Callable[[Sequence[Line]], None] = lambda lines: None  # called with each log record, without `progress`
    report: Callable[[str], None] = lambda text: None  # is called with one line at a time
    steps: int | None = None  # frames that were requested, before they are rounded up


def train(
    config: RunConfig | ReplayRun | ControlConfig,
    *,
    seeds: int | Sequence[int] = 1,
    steps: int | str | None = None,
    out: str | os.PathLike | None = None,
    eval_every: int | str | None = None,
    checkpoint_every: int | str | None = None,
    devices: int = 1,
    loggers: Sequence[Writer] = (),
    progress: bool = False,
) -> TrainState:
    """Train a configuration on one or many seeds.

        config = made.RunConfig(made.make("DoorKey-5x5"), made.IMPALA(), made.make_bonus("made"), n_envs=32, unroll=100)
        result = made.train(config, seeds=4, steps=1_000_000, out="runs/doorkey")

    The command `made train` calls this code, so a folder of the command and one of this function are the same. Call it
    again with the same configuration and folder to resume; a larger `steps` trains longer.

    Args:
        config: A `RunConfig` in a compiled or Gymnasium environment, a `ReplayRun` or a `ControlConfig`.
        seeds: A number of seeds, 0 to N-1, or the seeds themselves. They run in parallel.
        steps: Frames of each seed, as 1_000_000 or "1M", rounded up to whole updates. Default: `config.iterations`.
        out: The folder of the run: run.json, metrics.jsonl and checkpoints. None writes nothing.
        eval_every: Frames between two evaluations. Default: 500k, and 10k for control tasks and replay.
        checkpoint_every: Frames between two checkpoints. Default: 500k, and 50k for control tasks and replay.
        devices: Spread seeds, then environments over this many devices.
        loggers: More writers of the metrics, as those of `made.training.loggers`. They are closed at the end.
        progress: Show the progress on stderr.

    Returns:
        A `TrainState`: `state`, with leaves [seeds, ...], of the type that `config.start` returns; `update`, the number
        of updates done; `seconds` of training.

    Raises:
        ValueError: An argument is not valid, or `out` holds another run.
        FloatingPointError: A loss, a reward or a parameter is not finite.
    """
    plan = plan_of(config, seeds, steps, eval_every, checkpoint_every)
    folder = None if out is None else Path(out)
    return run_plan(plan, folder, devices, Session("made.train", loggers=lambda frames: loggers, progress=progress))


def plan_of(
    config: Any,
    seeds: int | Sequence[int] = 1,
    steps: int | str | None = None,
    eval_every: int | str | None = None,
    checkpoint_every: int | str | None = None,
    option: Callable[[str], str] = str,
) -> TrainPlan:
    """The validated arguments of `train`. `option` is how errors call an argument."""
    if not isinstance(config, RunConfig | ReplayRun | ControlConfig):
        raise ValueError(f"train takes a RunConfig, ReplayRun or ControlConfig, got {type(config).__name__}.")
    numbers = _seeds(seeds)
    if isinstance(config, ControlConfig):
        config = config.resolved()
    elif not (isinstance(config.env, Hosted) or config.env.spec.horizon):
        raise ValueError(
            f"train evaluates whole episodes, and {type(config.env).__name__} has no time limit: set spec.horizon."
        )

    def updates(frames: int | str | None, name: str) -> int:
        return updates_for(config, default_frames(config)[name] if frames is None else frames, option(name))

    if steps is not None:
        config = dataclasses.replace(config, iterations=updates(steps, "steps"))
    plan = TrainPlan(config, numbers, updates(eval_every, "eval_every"), updates(checkpoint_every, "checkpoint_every"))  # type: ignore[arg-type]
    return plan if isinstance(config, RunConfig) else plan._replace(episodes=config.episodes, keep=CONTROL_KEEP)


def default_frames(run: Any) -> dict[str, str]:
    """Frames of a run and between its log records, evaluations and checkpoints, where none are given."""
    return FRAMES if isinstance(run, RunConfig) else CONTROL_FRAMES


def updates_for(run: Any, frames: int | str, option: str) -> int:
    """How many updates of a run take at least so many frames."""
    return -(-parse_frames(str(frames), option) // (run.n_envs * run.unroll))


def parse_frames(text: str, option: str) -> int:
    """A number of frames as people write it.

    >>> parse_frames("40M", "--steps"), parse_frames("500k", "--steps"), parse_frames("1e6", "--steps")
    (40000000, 500000, 1000000)
    """
    plain = text.strip().replace("_", "").replace(",", "").lower()
    unit = _UNITS.get(plain[-1:], 1.0)
    try:
        value = float(plain[:-1] if plain[-1:] in _UNITS else plain) * unit
    except ValueError:
        value = float("nan")
    if not value >= 1 or value != int(min(value, 2**62)):
        raise ValueError(f"{option} takes a number of frames such as 40M, 500k or 1e6, not {text!r}.")
    return int(value)


def _seeds(given: int | Sequence[int]) -> tuple[int, ...]:
    try:
        numbers = tuple(range(given)) if isinstance(given, int) else tuple(map(int, given))
    except (TypeError, ValueError):
        raise ValueError(f"seeds takes a number of seeds or a sequence of integers, got {given!r}.") from None
    if not numbers:
        raise ValueError(f"seeds must be at least 1, got {given!r}.")
    if len(set(numbers)) < len(numbers) or not all(0 <= seed < 2**32 for seed in numbers):  # seeds are uint32
        raise ValueError(f"seeds must differ and lie between 0 and {2**32 - 1}, got {given!r}.")
    return numbers


def run_plan(plan: TrainPlan, out: Path | None, devices: int | None, session: Session) -> TrainState:
    """Train a plan to its last update: from the newest checkpoint of its folder, or from the start.

    Of several processes (`made.training.sharding.join_processes`) only the first uses the folder.
    """
    with contextlib.ExitStack() as stack:
        if out is not None:  # before a minute of compiling
            sharding.on_first_process(lambda: require_dir(out, "--out"))
            sharding.on_first_process(lambda: run_dir.read_run(out, plan.configuration))
        backend = stack.enter_context(contextlib.closing(_backend(plan, devices, session.report)))
        if out is None:
            run, train_state = None, TrainState(backend.init(), 0, 0.0)
        else:
            sharding.on_first_process(lambda: stack.enter_context(run_dir.lock_run_dir(out)))
            run = sharding.on_first_process(lambda: run_dir.read_run(out, plan.configuration))
            train_state = train_loop.restore_or_init(plan, backend, out)
        if train_state.update < plan.run.iterations:
            train_state = _train_session(plan, backend, train_state, out, run, session)
        elif jax.process_index() == 0:
            session.report(f"{out} holds this run, finished; a larger --steps goes on with it.")
        return train_state._replace(state=backend.fetch(train_state.state))


def _train_session(
    plan: TrainPlan, backend: Backend, started: TrainState, out: Path | None, run: Any, session: Session
) -> TrainState:
    """Train from a state to the last update, with metrics, checkpoints and progress."""
    if jax.process_index() > 0:
        return train_loop.train(plan, backend, started, out, [], lambda lines: None)
    each = plan.frames_per_update
    frames, last = started.update * each, plan.run.iterations * each
    if session.steps is not None and session.steps != last:
        session.report(f"an update takes {each:,} frames, so {session.steps:,} steps are rounded up to {last:,}.")
    if started.update:
        session.report(f"going on with {out} from frame {frames:,}.")
    writers: list[Writer] = []
    try:
        if out is not None:
            run_dir.record_session(plan, out, run, session.command, started.update, session.options)
            writers.append(JSONL(out / run_dir.METRICS))
        writers += session.loggers(frames)
        if not session.progress:
            return train_loop.train(plan, backend, started, out, writers, session.on_lines)
        with Meter(last, "frames", "made train", frames, len(plan.seeds)).shown() as meter:
            return train_loop.train(plan, backend, started, out, writers, meter.row)
    finally:
        for writer in writers:
            writer.close()


def _backend(plan: TrainPlan, devices: int | None, report: Callable[[str], None]) -> Backend:
    """The backend of a plan. Reports the compilation only once everything is validated."""
    i, processes = jax.process_index(), jax.process_count()
    who = f"host {i} of {processes}: " * (processes > 1)
    compiling = f"{who}compiling for {len(plan.seeds)} seed{'s' * (len(plan.seeds) > 1)} ..."
    on_host = isinstance(plan.run, ControlConfig) or isinstance(plan.run.env, Hosted)
    if on_host and processes > 1:
        raise ValueError("--hosts is for environments that are compiled, and this one is stepped on the host.")
    if on_host:
        prepare = control_tasks.ControlBackend if isinstance(plan.run, ControlConfig) else host_envs.HostBackend
        backend: Backend = prepare(plan, devices or 1)
        report(compiling)
        return backend
    if devices is None:
        devices = jax.device_count() if processes > 1 else 1
    return compiled_envs.CompiledBackend(plan, devices, lambda: report(compiling))
