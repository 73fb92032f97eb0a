"""What the control experiments share: tasks, methods, bonus coefficients, budgets, and how a curve is read.

All lengths and axes are in steps of the environment: actions times repeat. What is drawn and judged is the evaluation
at the end of each row: episodes of 1000 steps by the mean action, ten of them at scales `small` and `paper`, five at
`gpu`, where they come twice as often on Pendulum.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from made.bonuses.densities.vae import VAE
from made.bonuses.re3 import RE3
from made.bonuses.release import ReleasedRND, ReleasedVAE
from made.bonuses.rnd import RND
from made.experiments.resumable import progress_text
from made.experiments.statistics import CensoredTimes, time_to_threshold
from made.experiments.store import Scale
from made.experiments.store.table import Table
from made.experiments.types import read_settings
from made.training.control_config import ControlConfig, bonus_coef_for, control_config

# The six tasks, and what RAD+RE3 has after 500K steps in its authors' own data: mean of 5 seeds.
PUBLISHED_RE3 = {
    "pendulum_swingup": 854,
    "cartpole_swingup_sparse": 790,
    "cheetah_run_sparse": 602,
    "walker_run_sparse": 417,
    "hopper_hop": 225,
    "quadruped_run": 390,
}
TASKS = tuple(PUBLISHED_RE3)
LEVEL = 0.8  # a task is reached at this share of that return
PAPER_STEPS = 500_000
PRINTED_RE3 = 0.05  # the paper's coefficient of RE3 on every task; its authors' scripts have 0.25 on pendulum_swingup
LAST = 3  # evaluations that make up the return at the end

METHODS = ("none", "icm", "rnd", "re3", "re3/printed", "re3-released", "made", "made-released", "rnd-at-made")
METHODS += ("cover-at-made",)
TUNED = ("icm", "rnd", "re3", "made", "made-released", "rnd-at-made", "cover-at-made")  # what has a bonus coefficient
CHOSEN = Path(__file__).with_name("control_search_results.json")  # what `dmc_search` chose, by scale, task and method
COLUMNS = ("frames", "return", "eval_return", "bonus", "bonus_strength", "intrinsic_return", "entropy", "alpha")
COLUMNS += ("critic_loss", "value", "factor/level", "factor/mean", "factor/log_std", "frames_per_second")
LOOKS = {"none": "rad", "made-released": "made/as released", "re3-released": "re3/as released"}
LOOKS |= {"rnd-at-made": "rnd/at the released MADE's scale", "cover-at-made": "rnd/at MADE's scale"}
LOOKS |= {f"tuned/{method}": LOOKS.get(method, method) for method in TUNED}


class Budget(NamedTuple):
    """How long a task is tried, in steps of the environment, and what is tried on it."""

    report: int
    search: int
    every: int = 10_000  # between two evaluations
    methods: tuple[str, ...] = METHODS
    searched: tuple[str, ...] = TUNED
    windows: tuple[str, ...] = ("1k", "10k", "100k", "all")  # of Figure 9; none: not part of it
    windowed: tuple[str, ...] = ("made",)  # the forms of MADE whose window is changed


class Setting(NamedTuple):
    """What a scale changes of the release's settings."""

    agent: str  # rad: from pixels, sac: from states
    seeds: int
    bonus_coefs: tuple[float, ...]  # that each method is tried at in the search
    run: dict[str, Any] = {}  # fields of the run  # noqa: RUF012
    layout: dict[str, Any] = {}  # sizes of the agent's networks  # noqa: RUF012
    capacity: int = 100_000  # steps that the replay, and RE3's memory, hold
    task: dict[str, Any] = {}  # noqa: RUF012
    width: int = 0  # of the networks of a bonus; 0: the release's


SMALL = ("none", "rnd", "re3", "re3-released", "made", "made-released", "rnd-at-made", "cover-at-made")
ON_A_GPU = ("none", "rnd", "re3", "re3/printed", "re3-released", "made", "made-released", "cover-at-made")
FEWEST = ("none", "re3", "made")
BUDGETS: dict[str, dict[str, Budget]] = {
    "smoke": {"pendulum_swingup": Budget(4_000, 4_000, 2_000, ("none",), ("rnd",), ("all",))},
    "small": {"pendulum_swingup": Budget(30_000, 30_000, 2_000, SMALL, ("rnd", "re3", "made", "made-released"))},
    "gpu": {  # by `python -m benchmarks.control` half an hour of an H200 for the three seeds of a task, Pendulum's an hour
        "pendulum_swingup": Budget(100_000, 50_000, 5_000, ON_A_GPU),
        "cartpole_swingup_sparse": Budget(100_000, 50_000, methods=FEWEST, windows=()),
        "hopper_hop": Budget(100_000, 50_000, methods=FEWEST),
    },
    "paper": {task: Budget(PAPER_STEPS, PAPER_STEPS, windowed=("made", "made-released")) for task in TASKS},
}
UNION = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0)  # of what the paper says was searched, for one method or another
SETTINGS = {
    "smoke": Setting(
        "sac", 1, (0.1,), {"batch": 8, "seed_steps": 6, "episodes": 1}, {"width": 8, "depth": 1}, 64, {"repeat": 100}, 8
    ),
    "small": Setting("sac", 5, (0.01, 0.1, 1.0, 10.0, 100.0), {"batch": 128}, capacity=15_000, width=64),
    "gpu": Setting(
        "rad", 3, (0.01, 0.05, 0.25, 1.25), {"episodes": 5}, {"precision": "bfloat16"}, task={"low_res_shadows": True}
    ),
    "paper": Setting("rad", 5, UNION),
}


def named(scale: Scale) -> str:
    """The scale whose budget and setting are used."""
    return scale.value if scale.value in BUDGETS else "small"


def run_of(
    task: str, method: str, scale: Scale, steps: int, every: int, bonus_coef: float | None = None
) -> ControlConfig:
    """One configuration: RAD or SAC with a bonus, at the task's bonus coefficient for it unless another is given."""
    setting, bonus = SETTINGS[named(scale)], method.removesuffix("/printed")
    bonus_coef = PRINTED_RE3 if method == "re3/printed" else bonus_coef
    coef = bonus_coef_for(task, bonus)
    coef = coef if bonus_coef is None else dataclasses.replace(coef, value=bonus_coef)
    run = control_config(task, setting.agent, bonus, coef)
    control = dataclasses.replace(run.task, **setting.task)
    agent = dataclasses.replace(run.agent, layout=dataclasses.replace(run.agent.layout, **setting.layout))
    capacity = min(setting.capacity, steps // control.repeat)  # what is never filled need not be held
    return dataclasses.replace(
        run,
        task=control,
        agent=agent,
        bonus=sized(run.bonus, capacity, setting.width),
        replay=dataclasses.replace(run.replay, capacity=capacity),
        iterations=steps // control.repeat,
        every=every // control.repeat,
        **setting.run,
    )


def sized(bonus: Any, capacity: int, width: int) -> Any:
    """The bonus with a memory as long as the replay, and where a width is given with small networks, for two cores."""
    small: dict[type, dict[str, int]] = {
        ReleasedRND: {"width": 2 * width, "hidden": width, "features": width // 2},
        ReleasedVAE: {"width": width, "latent": width // 2},
        RND: {"width": width, "embedding": width // 2},
        VAE: {"width": width, "latent": width // 2},
    }

    def size(part: Any) -> Any:
        if isinstance(part, RE3):
            return dataclasses.replace(part, capacity=capacity)
        sizes = next((each for kind, each in small.items() if isinstance(part, kind)), {}) if width else {}
        return dataclasses.replace(part, **sizes) if sizes else part

    return jax.tree.map(size, bonus, is_leaf=lambda x: isinstance(x, (RE3, *small)))


def chosen(task: str, scale: Scale) -> dict[str, float]:
    """The bonus coefficient that the search of this scale chose for each method; empty where there was none."""
    return read_settings(CHOSEN).get(named(scale), {}).get(task, {})


def evaluations(table: Table, label: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps of the environment [R], mean return of the evaluations [seeds, R])."""
    steps, curves = table.curves(label, "eval_return")
    return steps * table.runs(label)[0]["description"]["task"]["repeat"], curves


def average(table: Table, label: str) -> np.ndarray:
    """The mean over all evaluations, a number a seed: the area under the curve over its length."""
    return evaluations(table, label)[1].mean(axis=1)


def final(table: Table, label: str, before: float = 0.0) -> np.ndarray:
    """The mean of the last three evaluations, a number a seed; or of those a share of the run before them."""
    curves = evaluations(table, label)[1]
    return curves[:, : curves.shape[1] - int(before * curves.shape[1])][:, -LAST:].mean(axis=1)


def is_partial(table: Table, label: str) -> bool:
    """Whether the runs of a label are not whole: they are drawn as far as they go."""
    return "begun" in table.runs(label)[0]


def circles(table: Table, labels: Iterable[str]) -> str:
    """The sentence of a caption on runs that are not whole; empty where all are."""
    return " A circle ends runs that are not whole." * any(is_partial(table, one) for one in labels)


def length(table: Table, label: str) -> str:
    """Steps of the environment that the runs of a label have; where they are not whole also those they were to have."""
    if is_partial(table, label):
        return progress_text(table.runs(label)[0])
    return f"{int(evaluations(table, label)[0][-1]):,}"


def threshold(task: str) -> float:
    """0.8 of what RAD+RE3's own data have at 500K steps."""
    return LEVEL * PUBLISHED_RE3[task]


def to_reach(table: Table, label: str) -> CensoredTimes:
    """Steps until an evaluation is at the task's threshold, a number a seed; censored where that never happens."""
    return time_to_threshold(*evaluations(table, label), threshold(table.tags(label)["task"]))


def budget(table: Table, task: str) -> int:
    """The steps that a task was tried for: the shortest of its runs."""
    return min(int(evaluations(table, one)[0][-1]) for one in table.select(task=task))


def methods(table: Table, task: str) -> list[str]:
    """The methods that were recorded on a task, in the order of the tables above, those tuned last."""
    have = table.tag("method", task=task)
    return [name for name in (*METHODS, *(f"tuned/{one}" for one in TUNED)) if name in have]


def model_based(table: Table) -> bool:
    """Whether the runs are Dreamer's."""
    agent = table.runs(table.labels()[0])[0]["description"].get("agent", {})
    return agent.get("class") == "Dreamer"


def from_pixels(table: Table) -> bool:
    """Whether all runs saw pictures."""
    return all(table.runs(label)[0]["description"]["task"]["pixels"] for label in table.labels())


def look(method: str) -> str:
    """The name under which `made.experiments.plots` has a method's color; tuned ones, in a figure of their own, the same."""
    return LOOKS.get(method, method)
