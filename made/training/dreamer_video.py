"""What Dreamer's model makes of what happened: a video that it is left to continue, and the returns it expects."""

import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from made.agents.dreamer.agent import Dreamer, DreamerState
from made.agents.dreamer.world_model import open_loop, predicted_rewards
from made.core import Transition, safe_files, trees
from made.training import sharding, video
from made.training.backends.control_tasks import learner_of
from made.training.control_config import DreamerConfig
from made.training.sequence_learner import ReplayRun
from made.training.train_plan import TrainPlan

SEEN = 5  # observations that the model is shown before it is told actions alone
WINDOWS = 16  # that returns are compared on
HEIGHT = 128  # pixels of a video, at least
MOMENTS = 5  # of a video that a stored run keeps: the first, the last that was seen, and some of those foretold
RETURNS = "dreams.csv"
_APART = 0x6472656D  # sets the keys of these draws apart from those of training


class DreamContext(NamedTuple):
    """One seed of a run of Dreamer, as it stands."""

    agent: DreamerState
    bonus: PyTree
    replay: PyTree
    k: Array  # updates


class Prediction(NamedTuple):
    """Windows of the replay: what was earned after the first observations, what was paid for, what was expected."""

    real: Float[Array, " n"]
    paid: Float[Array, " n"]  # with the bonus, which is what the model learns to expect
    imagined: Float[Array, " n"]


def record_dreams(plan: TrainPlan, state: Any, out: Path) -> list[Path]:
    """A video for each of the first seeds, where there is something to see, and the returns of all; else nothing."""
    if not has_model(plan.run):
        return []
    written, rows = [], []
    for seed, frames, returns in _predictions(plan, state):
        rows += [(seed, i, *map(float, one)) for i, one in enumerate(zip(*returns, strict=True))]
        if frames is not None and seed in plan.seeds[: video.DRAWN]:
            written.append(video.save_video(enlarged(frames), out / f"dream-seed{seed}.gif"))
    csv.writer(held := io.StringIO(newline="")).writerows([("seed", "window", *Prediction._fields), *rows])
    return [*written, safe_files.write_atomic(out / RETURNS, held.getvalue())]


def kept(plan: TrainPlan, state: Any, at: int) -> dict[int, dict[str, np.ndarray]]:
    """What a stored run keeps of each seed, as snapshots [1, ...] at that step; nothing where nobody dreams.

    The returns of windows, and of the first seed some moments of a video, truth and model: [1, MOMENTS, h, 2w, 3].
    A device that has no room for it left keeps nobody from storing the rest.
    """
    found: dict[int, dict[str, np.ndarray]] = {}
    if not has_model(plan.run):
        return found
    try:
        for seed, frames, returns in _predictions(plan, state):
            paid, imagined = (np.asarray(x)[None] for x in (returns.paid, returns.imagined))
            found[seed] = {"step": np.array([at]), "dream/paid": paid, "dream/imagined": imagined}
            if frames is not None and seed == plan.seeds[0]:
                found[seed]["dream/film"] = moments(frames)[None]
    except RuntimeError as error:  # the device's
        print(f"made: no dreams are kept: {str(error).splitlines()[0]}", file=sys.stderr)
    return found


def has_model(run: Any) -> bool:
    """Whether there is a model that can be asked."""
    return isinstance(run, DreamerConfig | ReplayRun) and isinstance(run.agent, Dreamer)


def _predictions(plan: TrainPlan, state: Any) -> Iterator[tuple[int, np.ndarray | None, Prediction]]:
    """(seed, video, returns) of each."""
    run: Any = plan.run
    told = jax.jit(lambda known, key: predict(run, known, key), compiler_options=sharding.options(0))
    for seed, known in zip(plan.seeds, seeds_of(run, state, len(plan.seeds)), strict=True):
        yield seed, *jax.device_get(told(known, jax.random.fold_in(jax.random.key(seed), _APART)))


def moments(frames: np.ndarray) -> np.ndarray:
    """Truth and model at a few moments of a video [T, h, 3w, 3]."""
    first = min(SEEN, len(frames)) - 1
    later = np.linspace(first, len(frames) - 1, MOMENTS - 1).round().astype(int)
    return frames[[0, *later], :, : 2 * frames.shape[2] // 3]


def seeds_of(run: DreamerConfig | ReplayRun, state: Any, n: int) -> Iterator[DreamContext]:
    """Each seed by itself, whether it is a lane or has a state of its own."""
    for lane in range(n):
        if isinstance(run, ReplayRun):
            one = trees.index(state, lane)
            yield DreamContext(one.agent, one.bonus, one.replay, one.run.k)
        else:
            one = learner_of(state, lane, n, run.task.pixels)
            yield DreamContext(one.agent, one.bonus, one.replay, one.k)


def predict(
    run: DreamerConfig | ReplayRun, known: DreamContext, key: Key[Array, ""]
) -> tuple[Array | None, Prediction]:
    """(a video of one window, the returns of several), from what the replay holds; None where there is no image.

    The window is one within an episode, where any that was drawn is.
    """
    k_draw, k_video, k_tell = jax.random.split(key, 3)
    drawn = run.replay.sample(known.replay, WINDOWS, k_draw)
    ends = (drawn.terminated | drawn.truncated)[:-1].sum(0)
    drawn = jax.tree.map(lambda x: x[:, jnp.argsort(ends)], drawn)
    world, seen = known.agent.world, min(SEEN, run.replay.length)
    drawable = any(len(leaf.shape) == 3 for leaf in world.decoder.leaves)
    frames = open_loop(world, drawn, k_video, seen) if drawable else None
    return frames, returns_of(run, known, drawn, k_tell, seen)


def returns_of(run: Any, known: DreamContext, drawn: Transition, key: Key[Array, ""], seen: int) -> Prediction:
    """The sums of the rewards after the first `seen` observations of each window."""
    paid = drawn.reward + video.bonus_values(run, known, drawn)  # type: ignore[arg-type]
    imagined = predicted_rewards(known.agent.world, drawn, key, seen)
    return Prediction(drawn.reward[seen - 1 :].sum(0), paid[seen - 1 :].sum(0), imagined.sum(0))


def enlarged(frames: np.ndarray) -> list[np.ndarray]:
    """Pictures [T, h, w, 3], small ones with larger pixels."""
    times = max(1, -(-HEIGHT // frames.shape[1]))
    return list(np.repeat(np.repeat(frames, times, axis=1), times, axis=2))
