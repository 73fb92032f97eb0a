"""Videos of a trained agent with the bonus of each step, maps of its visits, and what Dreamer's model predicts."""

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from made.agents.dreamer.agent import Dreamer
from made.agents.dreamer.world_model import open_loop, predicted_rewards
from made.core import Transition, safe_files, trees
from made.envs.minigrid import Grid
from made.envs.minigrid.render import draw, visit_map
from made.envs.minigrid.tile_codes import GridState
from made.training import sharding
from made.training.backends import TrainPlan
from made.training.backends.control_tasks import learner_of
from made.training.control_config import DreamerConfig
from made.training.off_policy import ReplayLearnerState, ReplayRun
from made.training.on_policy import RunConfig, RunState
from made.training.rollout import advance, reset_slots

PLAYED = 32  # episodes of a map of visits
DRAWN = 4  # seeds at most that have a video
SIZE = 20  # pixels a cell
_STRIP, _GROUND, _PAST, _NOW = 40, (32, 32, 32), (200, 120, 20), (255, 230, 120)
_APART = 0x66696C6D  # sets the keys of videos apart from those of training and evaluation

# Dreamer: a video of what its model predicts, and the returns that it expects.
SEEN = 5  # observations that the model gets before it predicts from actions alone
WINDOWS = 16  # whose returns are compared
HEIGHT = 128  # pixels of a video, at least
MOMENTS = 5  # frames that a stored run keeps of a video: the first, the last observed one, and some predicted ones
RETURNS = "dreams.csv"
_DREAMS_APART = 0x6472656D  # sets the keys of these samples apart from those of training


class RecordedEpisode(NamedTuple):
    """Episodes on one level, leaves [T, N, ...]; steps after an episode's end are not `on`."""

    first: GridState  # [N, ...]
    states: GridState  # after each step
    bonus: Float[Array, "T N"]
    on: Bool[Array, "T N"]


def record_episode(run: RunConfig, state: RunState, n: int, key: Key[Array, ""], explore: bool) -> RecordedEpisode:
    """n episodes on one fresh level, learning nothing."""
    k_level, *k_steps = jax.random.split(key, 1 + int(run.env.spec.horizon or run.unroll))
    parts = (state.env, run.agent, run.bonus, state.agent, state.bonus)
    one = reset_slots(state.env, run.agent, run.bonus, state.bonus, 1, k_level)
    streams = jax.tree.map(lambda x: jnp.repeat(x, n, axis=0), one)

    def step(carry, key):
        streams, on = carry
        keys = jax.random.split(key, (n, 3))
        following, seen, ended = jax.vmap(lambda s, k: advance(*parts, s, s, k, explore))(streams, keys)
        after = jax.vmap(state.env.step)(streams.env, seen.action, keys[:, 1])[0]
        return (following, on & ~ended.done), (after, seen, on)

    _, (states, batch, on) = jax.lax.scan(step, (streams, jnp.ones(n, bool)), jnp.stack(k_steps))
    return RecordedEpisode(streams.env, states, bonus_values(run, state, batch), on)


def bonus_values(run: RunConfig, state: RunState, batch: Transition) -> Float[Array, "*b"]:
    """The bonus of each step, times the bonus coefficient; zero where it only speaks to planners."""
    if not run.bonus.reads or "value" in run.bonus.reads:
        return jnp.zeros(batch.reward.shape)
    return run.bonus_coef(state.k) * run.bonus.reward(state.bonus, batch)


def record_videos(plan: TrainPlan, states: RunState, out: Path) -> list[Path]:
    """A video and a map of visits for each of the first seeds of a grid, and Dreamer's predictions anywhere."""
    run, written = plan.run, []
    predicted = record_dreams(plan, states, out)
    if not isinstance(run.env, Grid):
        return predicted
    quick = sharding.options(0)  # each runs a few times only
    greedy = jax.jit(lambda state, key: record_episode(run, state, 1, key, False), compiler_options=quick)
    explore = jax.jit(lambda state, key: record_episode(run, state, PLAYED, key, True), compiler_options=quick)
    for lane, seed in enumerate(plan.seeds[:DRAWN]):
        state = jax.device_put(trees.index(states, lane), jax.devices()[0])
        key = jax.random.fold_in(jax.random.key(seed), _APART)
        video = frames(run.env, jax.device_get(greedy(state, key)))
        written.append(save_video(video, out / f"video-seed{seed}.gif"))
        written.append(save_map(run.env, jax.device_get(explore(state, key)), out / f"visits-seed{seed}.png"))
    return [*written, *predicted]


def frames(grid: Grid, played: RecordedEpisode) -> list[np.ndarray]:
    """The frames of the first episode, with the bonus of every step so far as bars below."""
    length = int(played.on[:, 0].sum())
    reward = np.asarray(played.bonus)[:length, 0]
    later = jax.tree.map(lambda x: x[:, 0], played.states)
    states = [trees.index(played.first, 0), *(trees.index(later, t) for t in range(length))]
    images = [draw(grid, state, SIZE) for state in states]
    return [np.concatenate([image, strip(reward, t, image.shape[1])]) for t, image in enumerate(images)]


def strip(reward: np.ndarray, t: int, width: int) -> np.ndarray:
    """The bonus of the first t steps as bars, the last one bright; the scale is the episode's largest."""
    image = np.full((_STRIP, width, 3), _GROUND, np.uint8)
    top = max(float(reward.max(initial=0.0)), 1e-12)
    edges = np.linspace(0, width, len(reward) + 1).round().astype(int)
    for i in range(t):
        height = round((_STRIP - 4) * max(float(reward[i]), 0.0) / top)
        image[_STRIP - height :, edges[i] : max(edges[i + 1], edges[i] + 1)] = _NOW if i == t - 1 else _PAST
    return image


def save_video(frames: Sequence[np.ndarray], path: Path) -> Path:
    """Frames as an animated GIF."""
    from PIL import Image

    first, *others = map(Image.fromarray, frames)
    durations = [120] * len(others) + [1000]
    first.save(held := io.BytesIO(), "GIF", save_all=True, append_images=others, duration=durations, loop=0)
    return safe_files.write_atomic(path, held.getvalue())


def visits(grid: Grid, played: RecordedEpisode) -> np.ndarray:
    """How many steps ended on each cell, [height, width], over all episodes."""
    counts = np.zeros((grid.maker.height, grid.maker.width), int)
    np.add.at(counts, (played.states.y[played.on], played.states.x[played.on]), 1)
    return counts


def save_map(grid: Grid, played: RecordedEpisode, path: Path) -> Path:
    """The map of visits on one level."""
    from PIL import Image

    image = visit_map(grid, trees.index(played.first, 0), visits(grid, played))
    Image.fromarray(image).save(held := io.BytesIO(), "PNG")
    return safe_files.write_atomic(path, held.getvalue())


class Prediction(NamedTuple):
    """Returns of windows of the replay buffer after the first observations."""

    real: Float[Array, " n"]
    paid: Float[Array, " n"]  # with the bonus, which is what the model learns to expect
    imagined: Float[Array, " n"]


def record_dreams(plan: TrainPlan, state: Any, out: Path) -> list[Path]:
    """Dreamer's predictions: a video for each of the first seeds that observes images, and the returns of all seeds."""
    if not has_model(plan.run):
        return []
    written, rows = [], []
    for seed, frames, returns in _predictions(plan, state):
        rows += [(seed, i, *map(float, one)) for i, one in enumerate(zip(*returns, strict=True))]
        if frames is not None and seed in plan.seeds[:DRAWN]:
            times = max(1, -(-HEIGHT // frames.shape[1]))  # small images get larger pixels
            enlarged = np.repeat(np.repeat(frames, times, axis=1), times, axis=2)
            written.append(save_video(list(enlarged), out / f"dream-seed{seed}.gif"))
    csv.writer(held := io.StringIO(newline="")).writerows([("seed", "window", *Prediction._fields), *rows])
    return [*written, safe_files.write_atomic(out / RETURNS, held.getvalue())]


def kept(plan: TrainPlan, state: Any, at: int) -> dict[int, dict[str, np.ndarray]]:
    """Dreamer's predictions that a stored run keeps of each seed, as snapshots [1, ...] at that step; else nothing.

    The returns of windows, and of the first seed some moments of a video, truth and model: [1, MOMENTS, h, 2w, 3].
    If the device has no memory left for them, the rest is stored.
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
    """Whether the agent learns a model."""
    return isinstance(run, DreamerConfig | ReplayRun) and isinstance(run.agent, Dreamer)


def _predictions(plan: TrainPlan, state: Any) -> Iterator[tuple[int, np.ndarray | None, Prediction]]:
    """(seed, video, returns) of each seed."""
    run: Any = plan.run
    program = jax.jit(lambda known, key: predict(run, known, key), compiler_options=sharding.options(0))
    for seed, known in zip(plan.seeds, seeds_of(run, state, len(plan.seeds)), strict=True):
        yield seed, *jax.device_get(program(known, jax.random.fold_in(jax.random.key(seed), _DREAMS_APART)))


def moments(frames: np.ndarray) -> np.ndarray:
    """Truth and model at a few moments of a video [T, h, 3w, 3]."""
    first = min(SEEN, len(frames)) - 1
    later = np.linspace(first, len(frames) - 1, MOMENTS - 1).round().astype(int)
    return frames[[0, *later], :, : 2 * frames.shape[2] // 3]


def seeds_of(run: DreamerConfig | ReplayRun, state: Any, n: int) -> Iterator[ReplayLearnerState]:
    """The state of each seed, in compiled environments and on control tasks."""
    for lane in range(n):
        if isinstance(run, ReplayRun):
            one = trees.index(state, lane)
            yield ReplayLearnerState(one.agent, one.bonus, one.replay, one.run.k, one.run.key)
        else:
            yield learner_of(state, lane, n, run.task.pixels)


def predict(
    run: DreamerConfig | ReplayRun, known: ReplayLearnerState, key: Key[Array, ""]
) -> tuple[Array | None, Prediction]:
    """(a video of one window, the returns of several), from what the replay holds; None where there is no image.

    The window is one within an episode, where any that was drawn is.
    """
    k_draw, k_video, k_tell = jax.random.split(key, 3)
    drawn, _ = run.replay.sample(known.replay, WINDOWS, k_draw)
    ends = (drawn.terminated | drawn.truncated)[:-1].sum(0)
    drawn = jax.tree.map(lambda x: x[:, jnp.argsort(ends)], drawn)
    world, seen = known.agent.world, min(SEEN, run.replay.length)
    drawable = any(len(leaf.shape) == 3 for leaf in world.decoder.leaves)
    frames = open_loop(world, drawn, k_video, seen) if drawable else None
    both = drawn.reward + bonus_values(run, known, drawn)  # type: ignore[arg-type]
    imagined = predicted_rewards(world, drawn, k_tell, seen)
    return frames, Prediction(drawn.reward[seen - 1 :].sum(0), both[seen - 1 :].sum(0), imagined.sum(0))
