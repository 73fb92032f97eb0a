"""The loop of `made train`: start or resume, then log intervals, evaluations and checkpoints.

After SIGTERM, which clusters send before they kill, a run stops at the end of a log interval, with a checkpoint. It
also stops when a loss, a reward or a parameter is not finite. The compiled program checks the loss in every update.
Returns and parameters are checked once per log record, before the record and any checkpoint are written.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from made.core.trial import TimeLimitReached
from made.training import checkpoint, run_dir, sharding
from made.training.backends import NO_FAILURE, Backend, TrainPlan, is_loss, raise_if_nan
from made.training.loggers import Line, Writer

LEARNS = ("agent", "bonus", "learners", "came")  # the fields of a state that hold parameters, or rewards on their way
_MOST_NAMED = 3  # quantities of a kind, in one error
SIGTERM_CODE = 128 + signal.SIGTERM  # the exit code of a shell for it
_terminating = threading.Event()
_deferred = threading.Event()  # the loop in the main thread checks `_terminating` itself


class Terminated(BaseException):
    """SIGTERM. The text, where there is one, says what was saved."""


@contextlib.contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """While the block runs, SIGTERM raises `Terminated` in the main thread; within `train` only the second one does."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return

    def handle(number: int, frame: object) -> None:
        again = _terminating.is_set()
        _terminating.set()
        if again or not _deferred.is_set():
            raise Terminated

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _terminating.clear()


def terminating() -> bool:
    """Whether the process received SIGTERM. Threads check this at the end of each log interval."""
    return _terminating.is_set()


class NaNCheck:
    """Checks a run after each log interval. What is not finite before the first one, such as a best score, may stay."""

    def __init__(self, plan: TrainPlan, state: PyTree, out: Path | None):
        self.plan, self.out = plan, out
        self._ignored = frozenset(non_finite_leaves(state))

    def check(self, bad: np.ndarray, scalars: Mapping[str, np.ndarray], state: PyTree, update: int) -> None:
        """Raise an error that names the update, the quantity and the last good checkpoint."""
        non_finite = [name for name in non_finite_leaves(state) if name not in self._ignored]
        rewards = np.zeros(len(self.plan.seeds), bool)
        if "return" in scalars and "episodes" in scalars:  # episodes ended and none of their returns was finite
            rewards = ~np.isfinite(scalars["return"]) & (scalars["episodes"] > 0)
        bad = np.where(rewards, np.minimum(bad, update), bad)
        if non_finite and (bad == NO_FAILURE).all():  # all seeds are one program: any of them will do
            bad = np.full_like(bad, update)
        lane = int(bad.argmin())
        wrong = [name for name, x in scalars.items() if np.ndim(x) and not np.isfinite(x[lane])]
        kinds = {  # rewards come before what was learned from them
            "a reward": ["return"] if rewards[lane] else [],
            "a bonus": [name for name in wrong if name == "bonus"],
            "a loss": [name for name in wrong if is_loss(name)],
            "parameters": non_finite,
        }
        named = [f"{kind} ({', '.join(names[:_MOST_NAMED])})" for kind, names in kinds.items() if names]
        kept = [] if self.out is None else checkpoint.files(self.out / run_dir.CHECKPOINTS)
        raise_if_nan(self.plan, bad, " and ".join(named) or "a loss", kept[-1] if kept else None)


def non_finite_leaves(state: PyTree) -> list[str]:
    """The paths of all leaves that learn and hold a NaN or an infinity."""
    parts = {name: getattr(state, name) for name in LEARNS if hasattr(state, name)}
    leaves = {
        jax.tree_util.keystr(path, simple=True, separator="."): x
        for path, x in jax.tree_util.tree_leaves_with_path(parts)
        if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
    }
    on_device = {name: x for name, x in leaves.items() if isinstance(x, jax.Array)}
    found = dict(zip(on_device, np.asarray(_not_finite([*on_device.values()])), strict=True)) if on_device else {}
    return [name for name, x in leaves.items() if (found[name] if name in found else not np.isfinite(x).all())]


@jax.jit
def _not_finite(arrays: Sequence[Array]) -> Bool[Array, " n"]:
    return jnp.stack([~jnp.isfinite(x).all() for x in arrays])


class TrainState(NamedTuple):
    """A run at the end of a log interval; `made.train` returns the last one."""

    state: Any  # a RunState, leaves [seeds, ...]; for other configurations what their `start` returns
    update: int  # updates done
    seconds: float  # of training, those before an interruption included


def restore_or_init(plan: TrainPlan, backend: Backend, out: Path) -> TrainState:
    """The newest complete checkpoint of the folder, or the start. Log records after it are dropped.

    The first process reads the folder and sends the others what it read.
    """
    found = sharding.on_first_process(lambda: _restored(plan, backend, out))
    if jax.process_count() > 1:
        update, seconds = found[1:] if found else (0, 0.0)
        update, seconds = (x.item() for x in sharding.broadcast((np.int32(update), np.float64(seconds))))
        if update:
            state = sharding.from_first_process(found.state if found else None, backend.like())
            found = TrainState(state, update, seconds)
    return TrainState(backend.init(), 0, 0.0) if found is None else found._replace(state=backend.put(found.state))


def _restored(plan: TrainPlan, backend: Backend, out: Path) -> TrainState | None:
    run_dir.remove_leftovers(out)
    folder, metrics = out / run_dir.CHECKPOINTS, out / run_dir.METRICS
    found = checkpoint.newest(folder)
    damaged = checkpoint.set_aside(folder, found)
    if found is None:
        if damaged and metrics.exists():  # the records will be measured again, but till then they are all there is
            metrics.replace(metrics.with_name(f"{metrics.name}.damaged"))
        run_dir.truncate_metrics(metrics, 0)
        return None
    run_dir.require_same_config(found.configuration, plan.configuration, found.path)
    run_dir.resume_metrics(metrics, found.path, found.update)
    return TrainState(checkpoint.restore(found, backend.like()), found.update, found.seconds)


def train(
    plan: TrainPlan,
    backend: Backend,
    train_state: TrainState,
    out: Path | None,
    writers: Sequence[Writer],
    show: Callable[..., None],
) -> TrainState:
    """Train from a state to the last update. `show` is called with each log record as lines, one a seed.

    Records are written before the checkpoint that covers them, so a kill loses none and doubles none. If the plan's
    time is up it saves and raises `TimeLimitReached`, and after SIGTERM `Terminated`. All processes gather the state.
    """
    saved, since, check = train_state.update, train_state.seconds, NaNCheck(plan, train_state.state, out)
    alone = jax.process_count() == 1  # one process cannot save what others hold, and its clock is not theirs

    def save() -> None:
        if (folder := out) is None:
            return
        state, update, seconds = train_state._replace(state=backend.fetch(train_state.state))

        def write() -> None:
            for writer in writers:
                writer.sync()
            (target := folder / run_dir.CHECKPOINTS).mkdir(exist_ok=True)
            checkpoint.save(target, state, plan.configuration, update, seconds, plan.keep)

        sharding.on_first_process(write)

    if in_main := alone and threading.current_thread() is threading.main_thread():
        _deferred.set()
    try:
        while train_state.update < plan.run.iterations:
            began, before = time.monotonic(), train_state.update
            train_state, lines = advance_interval(plan, backend, train_state, writers, check)
            show(lines)
            due = train_state.update // plan.checkpoint_every > before // plan.checkpoint_every
            due |= alone and train_state.seconds - since >= plan.checkpoint_seconds
            late = 2 * time.monotonic() - began > plan.until  # by the end of another interval like this one
            ends = alone and terminating()
            if ends or (plan.keep_end if train_state.update >= plan.run.iterations else due or late):
                save()
                saved, since = train_state.update, train_state.seconds
            if ends:
                each = plan.frames_per_update
                frames = f"{train_state.update * each:,} of {plan.run.iterations * each:,}"
                raise Terminated(f" at frame {frames}" + (f", with a checkpoint in {out}" if out else ""))
            if late and train_state.update < plan.run.iterations:
                raise TimeLimitReached(f"{train_state.update:,} of {plan.run.iterations:,} updates")
    except KeyboardInterrupt:
        # A state whose arrays a program has taken over in the middle of a log interval cannot be saved.
        donated = any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(train_state.state))
        if alone and train_state.update > saved and not donated:
            save()
        raise
    finally:
        if in_main:
            _deferred.clear()
    return train_state


def advance_interval(
    plan: TrainPlan, backend: Backend, train_state: TrainState, writers: Sequence[Writer], check: NaNCheck
) -> tuple[TrainState, list[Line]]:
    """The updates up to the end of the next log interval, and their log records, which are written."""
    started, every = time.monotonic(), plan.run.every
    n = min(every - train_state.update % every, plan.run.iterations - train_state.update)
    state, measured = backend.advance(train_state.state, n)
    scalars, bad = jax.tree.map(np.asarray, (measured.scalars, measured.bad))
    update = train_state.update + n
    check.check(bad, scalars, state, update)
    speed = n * plan.frames_per_update * len(plan.seeds) / (time.monotonic() - started)
    due = update // plan.evaluate_every > train_state.update // plan.evaluate_every
    if due or update == plan.run.iterations:
        scalars |= jax.tree.map(np.asarray, backend.evaluate(state))
    after = TrainState(state, update, train_state.seconds + time.monotonic() - started)
    place = {"update": update, "frames": update * plan.frames_per_update, "seconds": round(after.seconds, 3)}
    bonus_coef, lines = float(plan.run.bonus_coef(jnp.asarray(update))), list[Line]()
    for lane, seed in enumerate(plan.seeds):
        measured = {name: float(x[lane]) for name, x in scalars.items()}
        line = {"seed": seed, **place, **measured, "frames_per_second": speed}
        if "bonus" in scalars:  # of the mean episode
            line.setdefault("intrinsic_return", bonus_coef * line["bonus"] * line["length"])
        lines.append(line)
    for writer in writers:
        writer.write(lines)
    return after, lines
