"""The same actions in the package and here, step by step, on every task of every family.

The package's episodes are recorded first and then replayed here in one compiled program for each size of grid.
"""

from collections import Counter
from functools import cache

import equinox as eqx
import jax
import numpy as np
import pytest
from envs.minigrid import oracle
from envs.minigrid.oracle import grid_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from made.envs.minigrid import dynamics, tile_codes
from made.envs.minigrid.env import Grid

STEPS = 2_700  # a task, at least; 39 tasks make more than 100,000
LENGTH, EPISODES = 50, 20  # of one recording, recordings in one replay


def replayed(grid: Grid, starts, actions):
    """[B] states and [B, T] actions -> what every step gave, [B, T, ...]."""

    def step(state, action):
        following, step = grid.step(state, action, jax.random.key(0))
        return following, (following, step, dynamics.grid_hash(following.grid))

    return jax.vmap(lambda state, row: jax.lax.scan(step, state, row)[1])(starts, actions)


replay = eqx.filter_jit(replayed)


def mismatches(grid: Grid, records: list[oracle.Record], replay=replay) -> dict[str, int]:
    """How many steps differ, by what differs in them."""
    told = oracle.Record(*jax.tree.map(lambda *x: np.stack(x), *records))
    states, step, scratch = jax.device_get(replay(grid, told.start, told.action.astype(np.int32)))
    cells = tile_codes.ENCODING[np.asarray(tile_codes.unpack(states.grid, grid.maker.height, grid.maker.width))]
    pose = np.stack([states.x, states.y, states.direction, states.carrying], -1).astype(np.int32)
    differs = {
        "image": _any(step.obs["image"] != told.image),
        "cells": _any(np.swapaxes(cells, 2, 3) != told.cells),
        "pose": _any(pose != told.pose),
        "reward": ~np.isclose(step.reward, told.reward, rtol=0, atol=1e-6),
        "terminated": step.terminated != told.terminated,
        "truncated": step.truncated != told.truncated,
        "hash": _any(scratch != states.hash),
    }
    return {what: int((where & told.played).sum()) for what, where in differs.items()}


def _any(x: np.ndarray) -> np.ndarray:
    return x.reshape(*x.shape[:2], -1).any(-1)


def recordings(env, rng: np.random.Generator):
    """Recordings without end: a random walk through one of a few levels, then three scenes made of it."""
    levels = []
    for _ in range(5):
        env.reset(seed=int(rng.integers(2**31)))
        levels.append(oracle.level_of(env))
    while True:
        level = levels[rng.integers(len(levels))]
        oracle.load(env, level)
        yield oracle.play(env, lambda env: rng.integers(7), LENGTH)
        for _ in range(3):
            changed, hand, steps = oracle.scene(level, rng, env.max_steps)
            oracle.load(env, changed, hand, steps)
            yield oracle.play(env, oracle.purposeful(rng), LENGTH)


def events(record: oracle.Record) -> dict[str, int]:
    """How often a recording did what a random walk hardly ever does."""
    action, ahead, hand = (x[record.played] for x in (record.action, record.ahead, record.hand))
    reward, ended = record.reward[record.played], record.terminated[record.played]
    toggle, pick, drop = (action == deed for deed in (dynamics.TOGGLE, dynamics.PICK_UP, dynamics.DROP))
    locked, fits = (
        (ahead >= tile_codes.LOCKED) & (ahead < tile_codes.LOCKED + 6),
        ahead - tile_codes.LOCKED + tile_codes.KEY == hand,
    )
    happened = {
        "unlocked": toggle & locked & fits,
        "tried the wrong key": toggle & locked & ~fits & (hand >= tile_codes.KEY) & (hand < tile_codes.BALL),
        "opened a door": toggle & (ahead >= tile_codes.CLOSED) & (ahead < tile_codes.LOCKED),
        "shut a door": toggle & (ahead >= tile_codes.OPEN) & (ahead < tile_codes.KEY),
        "opened a box with a key": toggle & (ahead >= tile_codes.KEYBOX) & (ahead < tile_codes.CLOSED),
        "opened an empty box": toggle & (ahead >= tile_codes.BOX) & (ahead < tile_codes.KEYBOX),
        "took something": pick & (ahead >= tile_codes.KEY) & (ahead < tile_codes.CLOSED) & (hand == tile_codes.EMPTY),
        "had its hands full": pick
        & (ahead >= tile_codes.KEY)
        & (ahead < tile_codes.CLOSED)
        & (hand != tile_codes.EMPTY),
        "put something down": drop & (ahead == tile_codes.EMPTY) & (hand != tile_codes.EMPTY),
        "found no room to put it": drop & (ahead != tile_codes.EMPTY) & (hand != tile_codes.EMPTY),
        "walked into lava": ended & (reward == 0),
        "reached the goal": ended & (reward > 0) & (action == dynamics.FORWARD),
        "took the target": ended & (reward > 0) & pick,
        "ran out of time": record.truncated[record.played],
    }
    return {what: int(where.sum()) for what, where in happened.items()}


@cache
def audit(task: str) -> tuple[int, Counter, Counter]:
    """Play a task: (steps, mismatches of each sort, events)."""
    env, rng = oracle.make(task), np.random.default_rng(sum(map(ord, task)))
    grid, made, steps, wrong, met = grid_for(env), recordings(env, rng), 0, Counter(), Counter()
    while steps < STEPS:
        records = [next(made) for _ in range(EPISODES)]
        wrong.update(mismatches(grid, records))
        for record in records:
            steps += int(record.played.sum())
            met.update(events(record))
    return steps, wrong, met


@pytest.mark.parametrize("task", oracle.IDS)
def test_every_step_equals_the_packages(task):
    steps, wrong, _ = audit(task)
    assert steps >= STEPS
    assert not wrong.total(), f"{dict(wrong)} of {steps} steps"


def test_more_than_a_hundred_thousand_steps_are_asked_for():
    assert STEPS * len(oracle.IDS) >= 100_000


def test_the_scenes_do_what_random_walks_do_not():
    tasks = ("KeyCorridorS3R3", "KeyCorridorS3R2", "ObstructedMaze-1Dlhb", "DoorKey-6x6")
    met = sum((audit(f"MiniGrid-{task}-v0")[2] for task in tasks), Counter())
    assert min(met.values()) >= 5, dict(met)
    assert len(met) == 14


@cache
def fixed(task: str):
    env = oracle.make(task)
    env.reset(seed=7)
    return env, oracle.level_of(env), grid_for(env)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    task=st.sampled_from(
        ["MiniGrid-DoorKey-6x6-v0", "MiniGrid-KeyCorridorS3R2-v0", "MiniGrid-ObstructedMaze-1Dlhb-v0"]
    ),
    actions=st.lists(st.integers(0, 6), min_size=1, max_size=LENGTH),
    seed=st.integers(0, 1000),
)
def test_any_string_of_actions_ends_the_same(task, actions, seed):
    env, level, grid = fixed(task)
    changed, hand, steps = oracle.scene(level, np.random.default_rng(seed), env.max_steps)
    oracle.load(env, changed, hand, steps)
    script = iter(actions + [dynamics.DONE] * LENGTH)
    record = oracle.play(env, lambda env: next(script), LENGTH)
    assert not any(mismatches(grid, [record] * EPISODES).values())


def test_a_wrong_rule_is_noticed(monkeypatch):
    env = oracle.make("MiniGrid-DoorKey-8x8-v0")
    made, grid = recordings(env, np.random.default_rng(0)), grid_for(env)
    records = [next(made) for _ in range(EPISODES)]
    wrong = dynamics._SHADOWS.copy()
    wrong[8 << 7 : 9 << 7] ^= 8  # rows lit in the middle alone, such as the agent's own
    monkeypatch.setattr(dynamics, "_SHADOWS", wrong)
    found = mismatches(grid, records, eqx.filter_jit(lambda *given: replayed(*given)))  # traced anew
    assert found["image"] > 0 and found["pose"] == 0
