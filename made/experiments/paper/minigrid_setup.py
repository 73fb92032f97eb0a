"""What the MiniGrid experiments share: tasks, methods, budgets, and when a task counts as solved.

Bonuses are compared at equal strength. A prototype had shown that the coefficient, the learning rate and the first-visit mask each
matter more than the name of the bonus, so every method is tried at the same strengths (bonus coefficient x mean bonus x time limit)
(`Calibrated` sets them) and the same learning rates on seeds of its own (`minigrid_search`), and reported at what did
best there on others (`minigrid`).

Compiling a training program takes as long as a million frames, and a grid of nine methods would be nine programs. But
these methods share their parts (RND, counts of the recent window, the first visit of an episode) and differ in which of
them they multiply. In `Family` and `Impact` the exponents are numbers, so that methods are runs of one program.
"""

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from made.agents.impala import IMPALA
from made.agents.policy_net import LAYOUTS, Layout
from made.bonuses.amigo import AMIGo
from made.bonuses.combinators import Calibrated, FirstVisit
from made.bonuses.densities.recent_counts import HashedRecentCounts, Standardized
from made.bonuses.episodic import VisitCounts
from made.bonuses.made import MADE
from made.bonuses.release import ReleasedRND, made_released
from made.bonuses.ride import RIDE
from made.bonuses.rnd import RND
from made.core import Bonus, Density, EpisodeMemory, NoMemory, trees
from made.core.config import AT_LEAST_ZERO, SHARE, check_numbers
from made.envs.minigrid import make_grid
from made.experiments.statistics import CensoredTimes, time_to_threshold
from made.experiments.store import Scale
from made.experiments.store.table import Table
from made.experiments.types import read_settings, rng
from made.training.on_policy import RunConfig

ALL_TASKS = 12  # of BeBold's list, which Figure 7 most likely shows
N_ENVS, UNROLL = 32, 100  # the paper's batch
EVERY = 64  # updates between two rows: 0.2 million frames
SOLVED = 0.5  # mean return over the episodes of a row
STRENGTHS, RATES = (0.2, 0.4, 0.8, 1.2), (3e-4, 6e-4)
DEFAULT = {"strength": 0.4, "learning_rate": 6e-4}  # for a task that was not searched
CHOSEN = Path(__file__).with_name("minigrid_search_results.json")  # what `minigrid_search` chose, by task and method
WINDOW = 10_000  # pairs of the recent density


class Family(MADE):
    """Novelty, its gain, the recent density and the gate, each switched on or off by a number.

        b(s, a, s') = max(n(s') - alpha n(s), 0)^novelty * d(s, a)^-power * (1 - gate 1[N_e(s') > 1])

    with n from `cover` (RND) and log d from `recent`, centred and scaled. Its points are the bonuses themselves:

        RND           novelty 1                        BeBold    novelty 1, alpha 1, gate 1
        MADE          novelty 1, power 1/2             NovelD    novelty 1, alpha 1/2, gate 1
        the gate      gate 1                           "gated" any of them with gate 1

    Each learns all that MADE does. `FAMILY` has them by name, and tests hold each against the class of its own (RND,
    NovelD, MADE, FirstVisit).
    """

    novelty: float = 1.0
    alpha: float = 0.0
    power: float = 0.0
    gate: float = 0.0
    cover: Bonus = RND()
    recent: Density = Standardized(HashedRecentCounts(WINDOW, capacity=WINDOW))
    memory: EpisodeMemory = VisitCounts()

    def __check_init__(self):
        check_numbers(self, {AT_LEAST_ZERO: ("novelty", "alpha", "power"), SHARE: ("gate",)})
        if not isinstance(self.cover.memory, NoMemory):
            raise ValueError(
                f"Family asks its cover about s and about s', but {type(self.cover).__name__} keeps an episodic "
                "memory, which knows s' alone. Give it a cover without one: RND, HashedCount."
            )

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return "obs", "action", "next_obs", "next_note"

    def reward(self, state, batch, *, value=None):
        at = lambda obs: self.cover.reward(state.cover, batch._replace(obs=obs, next_obs=obs), value=value)  # noqa: E731
        gained = jnp.maximum(at(batch.next_obs) - self.alpha * at(batch.obs), 0.0)
        factor = jnp.exp(-self.power * self.recent.log_density(state.recent, batch))
        kept = jnp.where(batch.next_note.trace == 1, 1.0, 1.0 - self.gate)
        return jnp.where(self.novelty > 0, gained, 1.0) * factor * kept


class Impact(RIDE):
    """The error of ICM's forward model, or how far a step moves its embedding, over visits, behind a gate or not.

        b(s, a, s') = || phi(s') - [moved phi(s) + (1 - moved) f(phi(s), a)] ||_2
                      * N_e(s')^-visits * (1 - gate 1[N_e(s') > 1])

        ICM    moved 0                          RIDE    moved 1, visits 1/2
        "gated" either of them with gate 1, RIDE with visits 0

    `IMPACT` has them by name. Tests hold ICM and RIDE against the classes of their own.
    """

    moved: float = 0.0
    visits: float = 0.0
    gate: float = 0.0
    reads: ClassVar[tuple[str, ...]] = ("obs", "action", "next_obs", "next_note")

    def __check_init__(self):
        check_numbers(self, {SHARE: ("moved", "gate"), AT_LEAST_ZERO: ("visits",)})

    def reward(self, state, batch, *, value=None):
        nets = state.params

        def gap(obs, action, after) -> Float[Array, ""]:
            here = nets.embedding(obs)
            aim = self.moved * here + (1.0 - self.moved) * nets.forward(here, action)
            return jnp.linalg.norm(nets.embedding(after) - aim)

        paid = trees.over_leading(gap, batch.reward.ndim)(batch.obs, batch.action, batch.next_obs)
        count: Array = batch.next_note.trace.astype(paid.dtype)
        return paid * count**-self.visits * jnp.where(count == 1, 1.0, 1.0 - self.gate)


def released(gate: float) -> Family:
    """The bonus that the authors' code computes, with or without the first-visit mask; at a strength of its own, so on no scale."""
    theirs = made_released(cover=ReleasedRND())
    return Family(power=0.5, gate=gate, cover=theirs.cover, recent=theirs.recent)


FAMILY = {
    "none": Family(),
    "rnd": Family(),
    "rnd/gated": Family(gate=1.0),
    "gate": Family(novelty=0.0, gate=1.0),
    "bebold": Family(alpha=1.0, gate=1.0),
    "bebold/ungated": Family(alpha=1.0),
    "made": Family(power=0.5),
    "made/gated": Family(power=0.5, gate=1.0),
    "made/on bebold": Family(alpha=1.0, power=0.5, gate=1.0),
}
IMPACT = {
    "ride": Impact(moved=1.0, visits=0.5),
    "ride/gated": Impact(moved=1.0, gate=1.0),
    "icm": Impact(),
    "icm/gated": Impact(gate=1.0),
}
METHODS: dict[str, Bonus] = {  # as they are called in figures
    **FAMILY,
    **IMPACT,
    "amigo": AMIGo(view="full"),
    "amigo/gated": FirstVisit(AMIGo(view="full")),
    "made-released": released(gate=0.0),
    "made-released/gated": released(gate=1.0),
}
PRINTED = {  # methods with the settings that the paper prints: a coefficient, not a strength
    "printed/rnd": "rnd",
    "printed/bebold": "bebold",
    "printed/made": "made",
    "printed/made gated": "made/gated",
}
ALL = (*METHODS, *PRINTED)
ON_RND = (*FAMILY, *PRINTED)
LATER = ("none", "rnd", "rnd/gated", "gate", "bebold", "made", "made/gated", "ride")


class Budget(NamedTuple):
    """Rows of `every` updates: how long a task is tried; and what is tried on it."""

    search: int
    report: int
    methods: tuple[str, ...] = ALL
    rates: tuple[float, ...] = RATES
    unsearched: tuple[str, ...] = ()  # reported too, at settings from HARDER or NEAREST
    longer: tuple[tuple[str, int], ...] = ()  # methods with rows of their own: the paper's 90 million frames


BUDGETS: dict[str, dict[str, Budget]] = {
    "smoke": {"MultiRoom-N2-S4": Budget(2, 2, LATER[:-1])},  # one program
    "small": {"MultiRoom-N4-S5": Budget(2, 5, LATER[:-1], RATES[-1:])},  # ten minutes on two cores, each of the two
    "gpu": {  # on the first two whatever solved a task did so sooner at the larger rate: the others have that one
        "MultiRoom-N7-S8": Budget(25, 45, (*ON_RND, *IMPACT), unsearched=("amigo",)),
        "KeyCorridorS4R3": Budget(30, 52, (*ON_RND, *IMPACT, "amigo", "amigo/gated")),
        "MultiRoom-N12-S10": Budget(20, 35, LATER, RATES[-1:], unsearched=("icm", "amigo")),
        "KeyCorridorS5R3": Budget(35, 64, LATER, RATES[-1:], unsearched=("icm", "amigo")),
        "ObstructedMaze-2Dlh": Budget(35, 64, (*LATER, "amigo"), RATES[-1:], unsearched=("icm",)),
        "MultiRoom-N6": Budget(0, 48, (), unsearched=(*LATER, "icm", "amigo")),
        "KeyCorridorS3R3": Budget(0, 48, (), unsearched=(*LATER, "icm")),
        "KeyCorridorS6R3": Budget(0, 144, (), unsearched=(*LATER, "icm")),
        "ObstructedMaze-2Dlhb": Budget(0, 64, (), unsearched=LATER, longer=(("made", 440), ("made/gated", 440))),
        "ObstructedMaze-1Q": Budget(0, 48, (), unsearched=LATER),
        "ObstructedMaze-2Q": Budget(0, 32, (), unsearched=LATER),
        "ObstructedMaze-Full": Budget(0, 136, (), unsearched=LATER),
    },
    "paper": {
        **{f"MultiRoom-{name}": Budget(100, 440) for name in ("N6", "N7-S8", "N12-S10")},
        **{f"KeyCorridorS{size}R3": Budget(100, 440) for size in (3, 4, 5, 6)},
        **{f"ObstructedMaze-{name}": Budget(100, 440) for name in ("2Dlh", "2Dlhb", "1Q", "2Q", "Full")},
    },
}
NEAREST = {  # whose search a method takes its setting from where it was not searched on the task itself
    "MultiRoom-N6": "MultiRoom-N7-S8",
    "MultiRoom-N12-S10": "MultiRoom-N7-S8",
    "MultiRoom-N7-S8": "KeyCorridorS4R3",
    "KeyCorridorS3R3": "KeyCorridorS4R3",
    "KeyCorridorS5R3": "KeyCorridorS4R3",
    "ObstructedMaze-2Dlh": "KeyCorridorS4R3",
}
# Tasks harder than any that was searched. Trials with two seeds, not recorded, of the four first-visit bonuses solved
# KeyCorridorS6R3 soonest at strength 0.8 (of 0.4 and 0.8), and ObstructedMaze-Full with a constant alone, at strength
# 1.6 and the smaller rate (of 0.8 and 1.6, two rates). All methods have that one setting; the mazes with blocked doors
# have that of ObstructedMaze-Full.
HARDER = {
    "KeyCorridorS6R3": {"strength": 0.8, "learning_rate": 6e-4},
    **{f"ObstructedMaze-{name}": {"strength": 1.6, "learning_rate": 3e-4} for name in ("2Dlhb", "1Q", "2Q", "Full")},
}
NAMES = {"MultiRoom-N4-S5": "MiniGrid-MultiRoom-N4-S5-v1"}  # v0 has six rooms
SHOWS = {"amigo": ("full",), "amigo/gated": ("full", "hash")}  # the hash is for counting alone
LAYOUT = {"small": LAYOUTS["small"], "gpu": LAYOUTS["mid"], "paper": LAYOUTS["ride"]}
COLUMNS = ("return", "length", "bonus", "bonus_strength", "entropy", "factor/log_std", "pool_reused")
TINY = Layout((4,), (2,), (16,), memory="")  # for scales that only ask whether it runs


def budgets(scale: Scale) -> dict[str, Budget]:
    """The tasks of a scale and how long each is tried."""
    return BUDGETS[scale.value] if scale.value in BUDGETS else BUDGETS["small"]


def run_of(task: str, method: str, scale: Scale, rows: int, *, strength: float, learning_rate: float) -> RunConfig:
    """One configuration: IMPALA with the paper's batch, and a bonus set to a strength.

    AMIGo's policy and teacher see the whole grid, as in its authors' code; all others the agent's view.
    The paper's printed settings are a coefficient of 0.1, a learning rate of 1e-4 and RMSProp's epsilon of 0.01.
    """
    env = make_grid(NAMES.get(task, f"MiniGrid-{task}-v0"), shows=SHOWS.get(method, ("image", "hash")))
    layout = LAYOUT.get(scale.value, TINY)
    if method in PRINTED:
        bonus = Calibrated(METHODS[PRINTED[method]], strength=0.1, warmup=0)
        agent = IMPALA(layout, learning_rate=1e-4, epsilon=0.01)
    else:
        bonus = Calibrated(METHODS[method], strength=0.0 if method == "none" else strength, warmup=300)
        agent = IMPALA(layout, learning_rate=learning_rate)
    size: dict[str, Any] = {"n_envs": N_ENVS, "unroll": UNROLL, "iterations": rows * EVERY, "every": EVERY}
    size |= {"resets_per_update": 64, "pool_per_env": 4}
    if scale == Scale.SMOKE:  # does it run at all: a batch of 4 x 50 steps
        size |= {"n_envs": 4, "unroll": 50, "iterations": rows, "every": 1, "resets_per_update": 8, "pool_per_env": 2}
    return RunConfig(env, agent, bonus, **size)


def chosen(task: str, method: str, scale: Scale) -> dict[str, float]:
    """The strength and learning rate that the search of this scale chose.

    Where there was none: at scale gpu that of HARDER or of the task in NEAREST, at others the default.
    """
    found = read_settings(CHOSEN).get(scale.value, {}).get(task, {})
    if method in found or scale != Scale.GPU:
        return found.get(method, DEFAULT)
    if task in HARDER:
        return HARDER[task]
    return chosen(NEAREST[task], method, scale) if task in NEAREST else DEFAULT


def returns(table: Table, label: str) -> tuple[np.ndarray, np.ndarray]:
    """(frames [R], mean returns [seeds, R]); a row in which no episode ended repeats the one before."""
    steps, curves = table.curves(label, "return")
    latest = np.maximum.accumulate(np.where(np.isnan(curves), 0, np.arange(len(steps))), axis=1)
    return steps * N_ENVS * UNROLL, np.nan_to_num(np.take_along_axis(curves, latest, axis=1))


def to_solve(table: Table, label: str) -> CensoredTimes:
    """Frames until a row's mean return is above one half, a number a seed; censored where that never happens.

    Methods of a task are compared over the frames that all of them had.
    """
    at, curves = returns(table, label)
    common = at <= budget(table, table.tags(label).get("task"))
    return time_to_threshold(at[common], curves[:, common], SOLVED)


def budget(table: Table, task: str | None) -> float:
    """The frames that all methods of a task were tried for; None: of an experiment on one task."""
    return float(min(returns(table, label)[0][-1] for label in table.select(task=task)))


def final(table: Table, label: str) -> np.ndarray:
    """The mean return over the last million frames, a number a seed."""
    return returns(table, label)[1][:, -5:].mean(axis=1)


def tasks(table: Table, *needed: str) -> list[str]:
    """The tasks that were recorded, with all the methods that are needed."""
    return [task for task in table.tag("task") if {*needed} <= {*methods(table, task)}]


def methods(table: Table, task: str) -> list[str]:
    """The methods that were recorded on a task, in the order of the tables above."""
    have = table.tag("method", task=task)
    return [name for name in ALL if name in have]


def outcome(table: Table, label: str) -> list[str]:
    """What a row of a table says of it: frames to solve, and the return at the end with its range."""
    ends = final(table, label)
    return [to_solve(table, label).say(rng()), f"{ends.mean():.2f} ({ends.min():.2f} to {ends.max():.2f})"]
