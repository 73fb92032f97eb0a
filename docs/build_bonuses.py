"""Draw what each bonus pays where: docs/img/bonuses/NAME.png, and the numbers in results/bonus_maps.json.

    python docs/build_bonuses.py [NAME ...]

A random walker starts every episode in the same corner of one level of FourRooms, so it knows one room well and the
others hardly. After 40 updates the map shows what arriving in each cell is paid, beside how often it was visited.
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
N, T, UPDATES, SHOWN = 32, 64, 40, 10  # environments, steps, updates, and how many of the last are averaged
SKIPPED = ("none", "hoeffding", "inverse", "bernstein", "made-tabular", "made-geometric")  # tables over states


class OneLevel(Maker):
    """FourRooms with its walls, doors and start in the same place every time."""

    width: int = eqx.field(static=True, default=19)
    height: int = eqx.field(static=True, default=19)
    max_steps: int = eqx.field(static=True, default=100)

    def levels(self, key, n):
        grid = jax.tree.map(lambda x: x[0], FourRooms().levels(jax.random.key(0), 1)).grid
        grid = jnp.where(grid == GOAL, jnp.uint8(EMPTY), grid).at[17, 17].set(GOAL)
        one = Level(grid, jnp.int32(1), jnp.int32(1), jnp.int32(0), jnp.uint8(NO_TARGET))
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), one)


def maps(name: str) -> tuple[np.ndarray, np.ndarray]:
    """(visits over all updates, mean pay over the last ones) of each cell, [rows, columns]."""
    env, agent = Grid(OneLevel(), shows=("image", "full", "hash")), Uniform()
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

    visits, paid, times = (np.zeros(19 * 19) for _ in range(3))
    for k in range(UPDATES):
        state, streams, reserve, cell, pay = advance(state, streams, reserve, jax.random.key(10 + k))
        np.add.at(visits, np.asarray(cell), 1)
        if k >= UPDATES - SHOWN:
            np.add.at(times, np.asarray(cell), 1)
            np.add.at(paid, np.asarray(cell), np.asarray(pay))
    mean = np.where(times > 0, paid / np.maximum(times, 1), np.nan)
    return visits.reshape(19, 19).T, mean.reshape(19, 19).T  # a full view has columns first


def draw(name: str, visits: np.ndarray, paid: np.ndarray) -> None:
    walls = np.asarray(OneLevel().levels(jax.random.key(0), 1).grid[0]) == WALL
    fig, axes = plots.figure(1, 2, height=2.4)
    axes = np.atleast_1d(axes).reshape(-1)
    for ax, values, title in (
        (axes[0], np.log10(np.maximum(visits, 1)), "visits, log10"),
        (axes[1], paid, "paid on arrival"),
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
    fig.savefig(PICTURES / f"{name}.png", dpi=90)


def main(names: list[str]) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in names:
        began = time.time()
        visits, paid = maps(name)
        known = ~np.isnan(paid)
        pairs = (jnp.asarray(x[known]) for x in (visits, paid))
        ranked = rank_correlation(*pairs, among=jnp.ones(known.sum(), bool))
        record[name] = {
            "what": "FourRooms, one level, uniform actions; mean pay of the last 10 of 40 updates of 32 x 64 steps",
            "rank_correlation_of_pay_with_visits": float(ranked),
            "cells_reached": int((visits > 0).sum()),
            "mean_pay": float(np.nanmean(paid)),
            "made_by": provenance(began, time.time() - began),
        }
        draw(name, visits, paid)
        print(name, record[name]["rank_correlation_of_pay_with_visits"], flush=True)
        RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:] or [name for name in list_bonuses("on_policy") if name not in SKIPPED])
