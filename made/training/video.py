"""What a trained agent does, drawn: a video of one episode with the bonus below it, and a map of where it goes."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from made.core import Transition, safe_files, trees
from made.envs.minigrid import Grid
from made.envs.minigrid.render import draw, visit_map
from made.envs.minigrid.tile_codes import GridState
from made.training import sharding
from made.training.on_policy import RunConfig, RunState
from made.training.rollout import advance, reset_slots
from made.training.train_plan import TrainPlan

PLAYED = 32  # episodes that a map of visits is of
DRAWN = 4  # seeds at most that are drawn
SIZE = 20  # pixels a cell
_STRIP, _GROUND, _PAST, _NOW = 40, (32, 32, 32), (200, 120, 20), (255, 230, 120)
_APART = 0x66696C6D  # sets the keys of videos apart from those of training and evaluation


class RecordedEpisode(NamedTuple):
    """Episodes side by side on one level, leaves [T, N, ...]; steps after an episode's end are not `on`."""

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
    """A video and a map of visits for each of the first seeds of a grid, and what Dreamer dreams anywhere."""
    from made.training import dreamer_video  # which draws with what is here

    run, dreamt = plan.run, dreamer_video.record_dreams(plan, states, out)
    if not isinstance(run.env, Grid):
        return dreamt
    quick = sharding.options(0)  # each runs a few times only
    shows = jax.jit(lambda state, key: record_episode(run, state, 1, key, False), compiler_options=quick)
    walks = jax.jit(lambda state, key: record_episode(run, state, PLAYED, key, True), compiler_options=quick)
    written = []
    for lane, seed in enumerate(plan.seeds[:DRAWN]):
        state = jax.device_put(trees.index(states, lane), jax.devices()[0])
        key = jax.random.fold_in(jax.random.key(seed), _APART)
        video = frames(run.env, jax.device_get(shows(state, key)))
        written.append(save_video(video, out / f"video-seed{seed}.gif"))
        written.append(save_map(run.env, jax.device_get(walks(state, key)), out / f"visits-seed{seed}.png"))
    return [*written, *dreamt]


def frames(grid: Grid, played: RecordedEpisode) -> list[np.ndarray]:
    """The first episode as pictures, the bonus of every step so far as bars below."""
    length = int(played.on[:, 0].sum())
    reward = np.asarray(played.bonus)[:length, 0]
    shown = [trees.index(played.first, 0), *(_at(played.states, t) for t in range(length))]
    pictures = [draw(grid, state, SIZE) for state in shown]
    width = pictures[0].shape[1]
    return [np.concatenate([picture, strip(reward, t, width)]) for t, picture in enumerate(pictures)]


def _at(states: GridState, t: int) -> Any:
    return jax.tree.map(lambda x: x[t, 0], states)


def strip(reward: np.ndarray, t: int, width: int) -> np.ndarray:
    """The bonus of the first t steps as bars, the last one bright; the scale is the episode's largest."""
    picture = np.full((_STRIP, width, 3), _GROUND, np.uint8)
    top = max(float(reward.max(initial=0.0)), 1e-12)
    edges = np.linspace(0, width, len(reward) + 1).round().astype(int)
    for i in range(t):
        height = round((_STRIP - 4) * max(float(reward[i]), 0.0) / top)
        colour = _NOW if i == t - 1 else _PAST
        picture[_STRIP - height :, edges[i] : max(edges[i + 1], edges[i] + 1)] = colour
    return picture


def save_video(pictures: Sequence[np.ndarray], path: Path) -> Path:
    """Pictures as an animated GIF."""
    from PIL import Image

    images = [Image.fromarray(picture) for picture in pictures]
    shown = [120] * (len(images) - 1) + [1000]
    images[0].save(held := io.BytesIO(), "GIF", save_all=True, append_images=images[1:], duration=shown, loop=0)
    return safe_files.write_atomic(path, held.getvalue())


def visits(grid: Grid, played: RecordedEpisode) -> np.ndarray:
    """How often each cell was stepped on or stayed on, [height, width], over all episodes played."""
    counts = np.zeros((grid.maker.height, grid.maker.width), int)
    np.add.at(counts, (played.states.y[played.on], played.states.x[played.on]), 1)
    return counts


def save_map(grid: Grid, played: RecordedEpisode, path: Path) -> Path:
    """Where the agent went on one level."""
    from PIL import Image

    drawn = visit_map(grid, trees.index(played.first, 0), visits(grid, played))
    Image.fromarray(drawn).save(held := io.BytesIO(), "PNG")
    return safe_files.write_atomic(path, held.getvalue())
