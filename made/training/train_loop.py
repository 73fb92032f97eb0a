"""The loop of `made train`: start or go on, then rows, evaluations and checkpoints until the last update."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from made.core.trial import TimeLimitReached
from made.training import checkpoint, memory, run_dir, sharding, signals
from made.training.backends import compiled_envs
from made.training.loggers import Line, Writer
from made.training.nan_check import NaNCheck
from made.training.on_policy import RunConfig, RunState
from made.training.provenance import provenance
from made.training.train_plan import TrainPlan


class Backend(NamedTuple):
    """What runs on the devices, compiled or about to be."""

    runs: RunConfig  # the run, once for each seed
    seeds: Array
    like: RunState  # shapes of the state
    begin: Callable  # (runs, seeds) -> the state before the first update
    advance: Callable  # (runs, state, updates) -> the state after them, and the row they make
    examine: Callable
    place: Callable[[RunState], RunState]


class TrainState(NamedTuple):
    """A run at the end of a log interval; `made.train` returns the last one."""

    state: RunState  # leaves [seeds, ...]; for other configurations what their `start` returns
    update: int  # updates done
    seconds: float  # of training, those before an interruption included


def prepare(plan: TrainPlan, count: int = 1, compiling: Callable[[], None] = lambda: None) -> Backend:
    """Compile for that many devices; refuses a run that does not fit into their memory before anything is run.

    `compiling` hears when that begins, after all that can be refused before it.
    """
    mesh = sharding.mesh_of(count, len(plan.seeds), plan.run.n_envs)
    runs, seeds = compiled_envs.replicate(plan.run, len(plan.seeds)), jnp.asarray(plan.seeds, jnp.uint32)
    like = jax.eval_shape(compiled_envs.begin, runs, seeds)
    free = memory.free(count)
    state = 2 * memory.size_of(like) // count  # before an update and after it; known without compiling
    memory.demand(state, free, len(plan.seeds), exact=False)
    compiling()
    advance = sharding.compile_advance(runs, like, mesh)
    memory.demand(memory.needed(advance), free, len(plan.seeds))
    where = None if mesh is None else sharding.places(like, mesh)
    put = lambda state: sharding.place(state, mesh, where)  # noqa: E731
    runs, seeds = sharding.place(runs, mesh), sharding.place(seeds, mesh)
    begin = jax.jit(compiled_envs.begin, compiler_options=sharding.options(0))
    return Backend(runs, seeds, like, begin, advance, sharding.examiner(plan.episodes, mesh), put)


def restore_or_init(plan: TrainPlan, programs: Backend, out: Path) -> TrainState:
    """The newest whole checkpoint of the folder, or the start. Rows that come after it are dropped."""
    run_dir.remove_leftovers(out)
    found = checkpoint.newest(out / run_dir.CHECKPOINTS)
    damaged = checkpoint.set_aside(out / run_dir.CHECKPOINTS, found)
    if found is None:
        if damaged:  # the rows will be measured again, but till then they are all there is
            run_dir.set_aside(out / run_dir.METRICS)
        run_dir.truncate_metrics(out / run_dir.METRICS, 0)
        return TrainState(programs.place(programs.begin(programs.runs, programs.seeds)), 0, 0.0)
    run_dir.require_same_config(found.manifest["configuration"], plan.configuration, found.path)
    run_dir.truncate_metrics(out / run_dir.METRICS, found.update)
    run_dir.warn_of_lost_rows(out / run_dir.METRICS, found.path, found.update)
    state = checkpoint.restore(found, programs.like)
    return TrainState(programs.place(state), found.update, found.seconds)


def save(plan: TrainPlan, train_state: TrainState, out: Path, writers: Sequence[Writer]) -> None:
    """A checkpoint of where the run stands, after all its rows."""
    for writer in writers:
        writer.sync()
    target = out / run_dir.CHECKPOINTS
    target.mkdir(exist_ok=True)
    checkpoint.save(target, train_state.state, plan.configuration, train_state.update, train_state.seconds, plan.keep)


def train(
    plan: TrainPlan,
    programs: Backend,
    train_state: TrainState,
    out: Path | None,
    writers: Sequence[Writer],
    show: Callable[..., None],
    keep: Callable[..., None] = save,
) -> TrainState:
    """Train from a state to the last update. `show` is called with each row as lines, one a seed; `keep` saves.

    Rows are written before the checkpoint that covers them, so a kill at any moment loses none and doubles none. Where
    the plan's time is up it saves and raises `TimeLimitReached`, and after SIGTERM `made.training.signals.Terminated`.
    """
    saved, since, guard = train_state.update, train_state.seconds, NaNCheck(plan, train_state.state, out)
    if out is None:
        keep = lambda *parts: None  # noqa: E731
    alone = jax.process_count() == 1  # one process cannot save what others hold, and they may not have heard
    try:
        with signals.deferred() if alone else contextlib.nullcontext():
            while train_state.update < plan.run.iterations:
                began, before = time.monotonic(), train_state.update
                train_state, lines = advance_interval(plan, programs, train_state, writers, guard)
                show(lines)
                due = train_state.update // plan.checkpoint_every > before // plan.checkpoint_every
                due |= train_state.seconds - since >= plan.checkpoint_seconds
                late = 2 * time.monotonic() - began > plan.until  # by the end of another row like this one
                ends = alone and signals.asked()
                if ends or (plan.keep_end if train_state.update >= plan.run.iterations else due or late):
                    keep(plan, train_state, out, writers)
                    saved, since = train_state.update, train_state.seconds
                if ends:
                    each = plan.frames_per_update
                    frames = f"{train_state.update * each:,} of {plan.run.iterations * each:,}"
                    raise signals.Terminated(f" at frame {frames}" + (f", with a checkpoint in {out}" if out else ""))
                if late and train_state.update < plan.run.iterations:
                    raise TimeLimitReached(f"{train_state.update:,} of {plan.run.iterations:,} updates")
    except KeyboardInterrupt:
        if alone and train_state.update > saved and not is_donated(train_state.state):
            keep(plan, train_state, out, writers)
        raise
    return train_state


def is_donated(state: PyTree) -> bool:
    """Whether a program has taken over arrays of this state, in the middle of a row, so that it cannot be saved."""
    return any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(state))


def advance_interval(
    plan: TrainPlan, programs: Backend, train_state: TrainState, writers: Sequence[Writer], guard: NaNCheck
) -> tuple[TrainState, list[Line]]:
    """The updates up to the end of the next row, written down."""
    started, every = time.monotonic(), plan.run.every
    n = min(every - train_state.update % every, plan.run.iterations - train_state.update)
    state, measured = programs.advance(programs.runs, train_state.state, jnp.int32(n))
    scalars, bad = jax.tree.map(np.asarray, (measured.scalars, measured.bad))
    guard.look(bad, scalars, state, train_state.update + n)
    update, speed = train_state.update + n, n * plan.frames_per_update * len(plan.seeds) / (time.monotonic() - started)
    due = update // plan.evaluate_every > train_state.update // plan.evaluate_every
    if due or update == plan.run.iterations:
        scalars |= jax.tree.map(np.asarray, programs.examine(programs.runs, state, programs.seeds))
    after = TrainState(state, update, train_state.seconds + time.monotonic() - started)
    lines = log_records(plan, {**scalars, "frames_per_second": np.full(len(plan.seeds), speed)}, after)
    for writer in writers:
        writer.write(lines)
    return after, lines


def log_records(plan: TrainPlan, scalars: dict[str, np.ndarray], train_state: TrainState) -> list[Line]:
    """One line a seed: where it stands, then what was measured since the row before."""
    lines: list[Line] = []
    update, bonus_coef = train_state.update, float(plan.run.bonus_coef(jnp.asarray(train_state.update)))
    for lane, seed in enumerate(plan.seeds):
        measured = {name: float(x[lane]) for name, x in scalars.items()}
        if "bonus" in measured:  # what the mean episode earned of it
            measured.setdefault("intrinsic_return", bonus_coef * measured["bonus"] * measured["length"])
        place: Line = {"seed": seed, "update": update, "frames": update * plan.frames_per_update}
        place["seconds"] = round(train_state.seconds, 3)
        lines.append({**place, **measured})
    return lines


def record_session(
    plan: TrainPlan,
    out: Path,
    run: dict[str, Any] | None,
    command: str,
    update: int,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Write into run.json what is run, and by which code and machine each part of it.

    `command` is for people. `options` are those of `made train`, None for a part of `made run`.
    """
    about = provenance(time.time(), 0.0, len(plan.seeds))
    del about["wall_s"]  # metrics.jsonl has the time of every row
    before = run["sessions"] if run else []
    run_dir.write_run(
        out,
        {
            "command": command,
            "options": options,
            "steps": plan.run.iterations * plan.frames_per_update,
            "frames_per_update": plan.frames_per_update,
            "configuration": plan.configuration,
            "sessions": [*before, {"from_update": update, **about}],
        },
    )
