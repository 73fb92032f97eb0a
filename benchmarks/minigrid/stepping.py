"""100 steps of 32 MiniGrid environments under random actions, and how long a bonus takes over them.

A bonus is driven through `HostBonus`, as in anybody's loop.
"""

import time
from collections.abc import Callable

import gymnasium
import jax
import numpy as np

from made.adapters import gymnasium as grids
from made.core import Bonus, NoMemory, Transition
from made.core.trees import index, stack
from made.envs.host_env import true_successor
from made.training.host.bonus import HostBonus

TASK, N, T = grids.PREFIX + "MiniGrid-KeyCorridorS3R3-v0", 32, 100
SHOWS, HORIZON = ("image", "direction", "hash"), 270
REPEATS = 5


def driven(bonus: Bonus | str) -> HostBonus:
    """The bonus as it is driven from outside, over N environments."""
    envs = gymnasium.make_vec(TASK, 1, shows=SHOWS)
    return HostBonus(bonus, envs.single_observation_space, envs.single_action_space, N, horizon=HORIZON)


def walk(host: HostBonus) -> Transition:
    """Random actions in the grid, with the notes of the bonus, leaves [T, N, ...]."""
    envs = gymnasium.make_vec(TASK, host.n_envs, shows=SHOWS)
    rng, seen = np.random.default_rng(0), []
    obs, _ = envs.reset(seed=0)
    host.reset(obs)
    for _ in range(T):
        action = rng.integers(0, 7, host.n_envs)
        after, reward, terminated, truncated, info = envs.step(action)
        successor = true_successor(after, info, terminated | truncated)
        seen.append(host.observe(obs, action, reward, successor, terminated, truncated, after))
        obs = after
    return stack(seen)


def seconds(bonus: Bonus) -> float | None:
    """Seconds of reward and update; None for a bonus that does not read grids, or reads what only a planner has."""
    if "value" in bonus.reads:
        return None
    try:
        host = driven(bonus)
    except ValueError:
        return None
    return learning(host, walk(host))


def learning(host: HostBonus, batch: Transition) -> float:
    """Seconds of reward and update of a batch."""

    def once() -> None:
        host.reward(batch)
        host.update(batch)

    return best(once, host)


def in_turn(*bonuses: Bonus, rounds: int = 5) -> list[float]:
    """Seconds of reward and update of each, the best of rounds in which they take turns.

    A machine may be a third faster in one minute than in the next: what is compared should share its minutes.
    """
    hosts = [driven(bonus) for bonus in bonuses]
    batches = [walk(host) for host in hosts]
    found = [[learning(*pair) for pair in zip(hosts, batches, strict=True)] for _ in range(rounds)]
    return [min(each) for each in zip(*found, strict=True)]


def remembering(host: HostBonus, batch: Transition) -> float:
    """Seconds of watching every step of a batch, one call a step; 0 for a bonus that keeps nothing of an episode."""
    if isinstance(host.bonus.memory, NoMemory):
        return 0.0
    steps = [jax.tree.map(np.asarray, index(batch, t)) for t in range(len(batch.reward))]

    def once() -> None:
        for x in steps:
            host.observe(x.obs, x.action, x.reward, x.next_obs, x.terminated, x.truncated, x.next_obs)

    return best(once, host)


def best(call: Callable[[], None], host: HostBonus) -> float:
    """Seconds of the fastest of several calls, compiled before."""
    found = float("inf")
    for i in range(REPEATS + 1):
        began = time.perf_counter()
        call()
        jax.block_until_ready((host.state, host.memory))
        found = min(found, time.perf_counter() - began) if i else found
    return found
