"""Draw where each bonus is high: docs/img/bonuses/NAME.png, and the numbers in results/bonus_maps.json.

    python docs/build_bonuses.py [NAME ...]

A random walk starts every episode in the same corner of one level of FourRooms. It visits the first room often and the
last room rarely. After 40 updates the map shows the mean bonus for entering each cell, next to the visits of the cell.
"""

import json
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from made.agents import Uniform
from made.bonuses import AMIGo, list_bonuses, make_bonus
from made.envs.minigrid import FourRooms, Grid, Level, Maker
from made.envs.minigrid.tile_codes import EMPTY, GOAL, NO_TARGET, WALL
from made.experiments import plots
from made.experiments.paper.density import rank_correlation
from made.training.provenance import provenance
from made.training.rollout import ResetPool, refill_pool, reset_slots, rollout

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "img" / "bonuses"
RECORD = ROOT / "results" / "bonus_maps.json"
AGENT = 10  # MiniGrid's number for the agent in a full view
FORWARD, STEPS = 0.7, 300  # probability of a step forward; steps of an episode
N, T, UPDATES, SHOWN = 32, 64, 40, 10  # environments, steps, updates, and how many of the last are averaged
SKIPPED = ("none", "hoeffding", "inverse", "bernstein", "made-tabular", "made-geometric")  # tables over states


class OneLevel(Maker):
    """FourRooms with its walls, doors and start in the same place every time."""

    width: int = eqx.field(static=True, default=19)
    height: int = eqx.field(static=True, default=19)
    max_steps: int = eqx.field(static=True, default=STEPS)

    def levels(self, key, n):
        grid = jax.tree.map(lambda x: x[0], FourRooms().levels(jax.random.key(0), 1)).grid
        grid = jnp.where(grid == GOAL, jnp.uint8(EMPTY), grid).at[17, 17].set(GOAL)
        one = Level(grid, jnp.int32(1), jnp.int32(1), jnp.int32(0), jnp.uint8(NO_TARGET))
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), one)


class Walk(Uniform):
    """A step forward with probability FORWARD, else a turn to either side."""

    def init(self, key, spec):
        turn, unused = (1 - FORWARD) / 2, jnp.zeros(spec.action.n - 3)
        return {"logits": jnp.log(jnp.concatenate([jnp.array([turn, turn, FORWARD]), unused]))}


def maps(name: str) -> tuple[np.ndarray, np.ndarray]:
    """(visits over all updates, mean bonus over the last ones) of each cell, [rows, columns]."""
    env, agent = Grid(OneLevel(), shows=("image", "full", "hash")), Walk()
    bonus = AMIGo(view="full") if name == "amigo" else make_bonus(name)
    spec = env.spec._replace(goal=bonus.memory.goal(env.spec))
    state, agent_state = bonus.init(jax.random.key(0), spec), agent.init(jax.random.key(1), spec)
    streams, waiting = (reset_slots(env, agent, bonus, state, N, jax.random.key(i)) for i in (2, 3))
    reserve = ResetPool(waiting, jnp.zeros(N, bool))

    @jax.jit
    def advance(state, streams, reserve, key):
        k_roll, k_update, k_fresh = jax.random.split(key, 3)
        rolled = rollout(env, agent, bonus, agent_state, state, streams, T, k_roll, reserve=reserve)
        reserve = refill_pool(rolled.reserve, reset_slots(env, agent, bonus, state, N, k_fresh))
        state, _ = bonus.update(state, rolled.batch, k_update)
        cell = jnp.argmax((rolled.batch.next_obs["full"][..., 0] == AGENT).reshape(T, N, -1), -1)
        return state, rolled.streams, reserve, cell, bonus.reward(state, rolled.batch)

    visits, total, times = (np.zeros(19 * 19) for _ in range(3))
    for k in range(UPDATES):
        state, streams, reserve, cell, reward = advance(state, streams, reserve, jax.random.key(10 + k))
        np.add.at(visits, np.asarray(cell), 1)
        if k >= UPDATES - SHOWN:
            np.add.at(times, np.asarray(cell), 1)
            np.add.at(total, np.asarray(cell), np.asarray(reward))
    mean = np.where(times > 0, total / np.maximum(times, 1), np.nan)
    return visits.reshape(19, 19).T, mean.reshape(19, 19).T  # a full view has columns first


def draw(name: str, visits: np.ndarray, bonus: np.ndarray) -> None:
    walls = np.asarray(OneLevel().levels(jax.random.key(0), 1).grid[0]) == WALL
    fig, axes = plots.figure(1, 2, height=2.4)
    axes = np.atleast_1d(axes).reshape(-1)
    for ax, values, title in (
        (axes[0], np.log10(np.maximum(visits, 1)), "visits (log10)"),
        (axes[1], bonus, "mean bonus"),
    ):
        shown = np.ma.masked_where(walls | (visits == 0) | np.isnan(values), values)
        ax.set_facecolor("white")
        ax.imshow(np.where(walls, 0.55, np.nan), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        image = ax.imshow(shown, cmap="viridis", interpolation="nearest")
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)
        fig.colorbar(image, ax=ax, shrink=0.85)
        plots.title(ax, title)
    fig.savefig(PICTURES / f"{name}.png", dpi=120)


def main(names: list[str]) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in names:
        began = time.time()
        visits, bonus = maps(name)
        known = ~np.isnan(bonus)
        pairs = (jnp.asarray(x[known]) for x in (visits, bonus))
        ranked = rank_correlation(*pairs, among=jnp.ones(known.sum(), bool))
        record[name] = {
            "what": f"FourRooms, random walk; mean of the last {SHOWN} of {UPDATES} updates of {N} x {T} steps",
            "rank_correlation_of_bonus_with_visits": float(ranked),
            "cells_reached": int((visits > 0).sum()),
            "mean_bonus": float(np.nanmean(bonus)),
            "made_by": provenance(began, time.time() - began),
        }
        draw(name, visits, bonus)
        print(name, record[name]["rank_correlation_of_bonus_with_visits"], flush=True)
        RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:] or [name for name in list_bonuses("on_policy") if name not in SKIPPED])
