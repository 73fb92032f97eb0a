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

from made import signals
from made.results.provenance import provenance
from made.run import Run, RunState
from made.training import checkpoint, devices, folder, lanes, memory
from made.training.guard import Guard, demand_finite
from made.training.plan import Plan
from made.training.writers import Line, Writer
from made.trial import OutOfTime

__all__ = ["Programs", "Stand", "demand_finite", "prepare", "stand_of", "train"]


class Programs(NamedTuple):
    """What runs on the devices, compiled or about to be."""

    runs: Run  # the run, once for each seed
    seeds: Array
    like: RunState  # shapes of the state
    begin: Callable  # (runs, seeds) -> the state before the first update
    advance: Callable  # (runs, state, updates) -> the state after them, and the row they make
    examine: Callable
    place: Callable[[RunState], RunState]


class Stand(NamedTuple):
    """Where a run stands: always at the end of a row that has been written."""

    state: RunState
    update: int
    seconds: float  # of training so far, those before an interruption included


def prepare(plan: Plan, count: int = 1, compiling: Callable[[], None] = lambda: None) -> Programs:
    """Compile for that many devices; refuses a run that does not fit into their memory before anything is run.

    `compiling` hears when that begins, after all that can be refused before it.
    """
    mesh = devices.mesh_of(count, len(plan.seeds), plan.run.n_envs)
    runs, seeds = lanes.repeated(plan.run, len(plan.seeds)), jnp.asarray(plan.seeds, jnp.uint32)
    like = jax.eval_shape(lanes.begin, runs, seeds)
    free = memory.free(count)
    state = 2 * memory.size_of(like) // count  # before an update and after it; known without compiling
    memory.demand(state, free, len(plan.seeds), exact=False)
    compiling()
    advance = devices.compile_advance(runs, like, mesh)
    memory.demand(memory.needed(advance), free, len(plan.seeds))
    where = None if mesh is None else devices.places(like, mesh)
    put = lambda state: devices.place(state, mesh, where)  # noqa: E731
    runs, seeds = devices.place(runs, mesh), devices.place(seeds, mesh)
    begin = jax.jit(lanes.begin, compiler_options=devices.options(0))
    return Programs(runs, seeds, like, begin, advance, devices.examiner(plan.episodes, mesh), put)


def stand_of(plan: Plan, programs: Programs, out: Path) -> Stand:
    """The newest whole checkpoint of the folder, or the start. Rows that come after it are dropped."""
    folder.tidy(out)
    found = checkpoint.newest(out / folder.CHECKPOINTS)
    damaged = checkpoint.set_aside(out / folder.CHECKPOINTS, found)
    if found is None:
        if damaged:  # the rows will be measured again, but till then they are all there is
            folder.set_aside(out / folder.METRICS)
        folder.cut_back(out / folder.METRICS, 0)
        return Stand(programs.place(programs.begin(programs.runs, programs.seeds)), 0, 0.0)
    folder.demand_same(found.manifest["configuration"], plan.configuration, found.path)
    folder.cut_back(out / folder.METRICS, found.update)
    folder.warn_of_lost_rows(out / folder.METRICS, found.path, found.update)
    state = checkpoint.restore(found, programs.like)
    return Stand(programs.place(state), found.update, found.seconds)


def save(plan: Plan, stand: Stand, out: Path, writers: Sequence[Writer]) -> None:
    """A checkpoint of where the run stands, after all its rows."""
    for writer in writers:
        writer.sync()
    target = out / folder.CHECKPOINTS
    target.mkdir(exist_ok=True)
    checkpoint.save(target, stand.state, plan.configuration, stand.update, stand.seconds, plan.keep)


def train(
    plan: Plan,
    programs: Programs,
    stand: Stand,
    out: Path,
    writers: Sequence[Writer],
    show: Callable[..., None],
    keep: Callable[..., None] = save,
) -> Stand:
    """Go on from where it stands to the last update. `show` hears each row as lines, one a seed; `keep` saves.

    Rows are written before the checkpoint that covers them, so a kill at any moment loses none and doubles none. Where
    the plan's time is up it saves and raises `OutOfTime`, and after SIGTERM `made.signals.Terminated`.
    """
    saved, since, guard = stand.update, stand.seconds, Guard(plan, stand.state, out)
    alone = jax.process_count() == 1  # one process cannot save what others hold, and they may not have heard
    try:
        with signals.deferred() if alone else contextlib.nullcontext():
            while stand.update < plan.run.iterations:
                began, before = time.monotonic(), stand.update
                stand, lines = row(plan, programs, stand, writers, guard)
                show(lines)
                due = stand.update // plan.checkpoint_every > before // plan.checkpoint_every
                due |= stand.seconds - since >= plan.checkpoint_seconds
                late = 2 * time.monotonic() - began > plan.until  # by the end of another row like this one
                ends = alone and signals.asked()
                if ends or (plan.keep_end if stand.update >= plan.run.iterations else due or late):
                    keep(plan, stand, out, writers)
                    saved, since = stand.update, stand.seconds
                if ends:
                    each = plan.frames_per_update
                    frames = f"{stand.update * each:,} of {plan.run.iterations * each:,}"
                    raise signals.Terminated(f" at frame {frames}, with a checkpoint in {out}")
                if late and stand.update < plan.run.iterations:
                    raise OutOfTime(f"{stand.update:,} of {plan.run.iterations:,} updates")
    except KeyboardInterrupt:
        if alone and stand.update > saved and not is_spent(stand.state):
            keep(plan, stand, out, writers)
        raise
    return stand


def is_spent(state: PyTree) -> bool:
    """Whether a program has taken over arrays of this state, in the middle of a row, so that it cannot be saved."""
    return any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(state))


def row(
    plan: Plan, programs: Programs, stand: Stand, writers: Sequence[Writer], guard: Guard
) -> tuple[Stand, list[Line]]:
    """The updates up to the end of the next row, written down."""
    started, every = time.monotonic(), plan.run.every
    n = min(every - stand.update % every, plan.run.iterations - stand.update)
    state, measured = programs.advance(programs.runs, stand.state, jnp.int32(n))
    scalars, bad = jax.tree.map(np.asarray, (measured.scalars, measured.bad))
    guard.look(bad, scalars, state, stand.update + n)
    update, speed = stand.update + n, n * plan.frames_per_update * len(plan.seeds) / (time.monotonic() - started)
    due = update // plan.evaluate_every > stand.update // plan.evaluate_every
    if due or update == plan.run.iterations:
        scalars |= jax.tree.map(np.asarray, programs.examine(programs.runs, state, programs.seeds))
    after = Stand(state, update, stand.seconds + time.monotonic() - started)
    lines = lines_of(plan, {**scalars, "frames_per_second": np.full(len(plan.seeds), speed)}, after)
    for writer in writers:
        writer.write(lines)
    return after, lines


def lines_of(plan: Plan, scalars: dict[str, np.ndarray], stand: Stand) -> list[Line]:
    """One line a seed: where it stands, then what was measured since the row before."""
    lines: list[Line] = []
    update, tau = stand.update, float(plan.run.tau(jnp.asarray(stand.update)))
    for lane, seed in enumerate(plan.seeds):
        measured = {name: float(x[lane]) for name, x in scalars.items()}
        if "bonus" in measured:  # what the mean episode earned of it
            measured.setdefault("intrinsic_return", tau * measured["bonus"] * measured["length"])
        place: Line = {"seed": seed, "update": update, "frames": update * plan.frames_per_update}
        place["seconds"] = round(stand.seconds, 3)
        lines.append({**place, **measured})
    return lines


def note_session(
    plan: Plan,
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
    folder.write_run(
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
