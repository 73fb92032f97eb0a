"""What the control experiments share: tasks, methods, bonus coefficients, budgets, and how a curve is read.

All lengths and axes are in steps of the environment: actions times repeat. What is drawn and judged is the evaluation
at the end of each row: episodes of 1000 steps by the mean action, ten of them at scales `small` and `paper`, five at
`gpu`, where they come twice as often on Pendulum.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from made.bonuses.densities.vae import VAE
from made.bonuses.re3 import RE3
from made.bonuses.release import ReleasedRND, ReleasedVAE
from made.bonuses.rnd import RND
from made.core.config import override
from made.experiments import plots
from made.experiments.resumable import progress_text
from made.experiments.statistics import CensoredTimes, time_to_threshold
from made.experiments.store import Scale
from made.experiments.store.table import Table
from made.experiments.types import read_settings
from made.training.control_config import ControlConfig, DreamerConfig, control_config

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
DREAMER_RE3 = dict(zip(TASKS, (783, 689, 607, 401, 291, 341), strict=True))  # the same of Dreamer+RE3
LEVEL = 0.8  # a task is reached at this share of what RAD+RE3 has
PAPER_STEPS = 500_000
PRINTED_RE3 = 0.05  # the paper's coefficient of RE3 on every task; its authors' scripts have 0.25 on pendulum_swingup
WINDOWS = {"1k": 1_000, "10k": 10_000, "100k": 100_000}  # actions; "all" is what the replay holds
LAST = 3  # evaluations that make up the return at the end

METHODS = ("none", "icm", "rnd", "re3", "re3/printed", "re3-released", "made", "made-released", "rnd-at-made")
METHODS += ("cover-at-made",)
TUNED = ("icm", "rnd", "re3", "made", "made-released", "rnd-at-made", "cover-at-made")  # what has a bonus coefficient
CHOSEN = Path(__file__).with_name("control_search_results.json")  # what `dmc_search` chose, by scale, task and method
COLUMNS = ("frames", "return", "eval_return", "bonus", "bonus_strength", "intrinsic_return", "entropy", "factor/level")
COLUMNS += ("factor/mean", "factor/log_std", "frames_per_second")
COLUMNS += ("alpha", "critic_loss", "value")  # of SAC; the rest is Dreamer's
COLUMNS += ("model_loss", "actor_loss", "value_loss", "model/kl", "model/image", "model/reward", "dream/reward")
COLUMNS += ("dream/value",)
LOOKS = {"made-released": "made/as released", "re3-released": "re3/as released"}
LOOKS |= {"rnd-at-made": "rnd/at the released MADE's scale", "cover-at-made": "rnd/at MADE's scale"}
LOOKS |= {f"tuned/{method}": LOOKS.get(method, method) for method in TUNED}


class Budget(NamedTuple):
    """How long a task is tried, in steps of the environment, and what is tried on it."""

    steps: int
    every: int = 10_000  # between two evaluations
    methods: tuple[str, ...] = METHODS
    search: int = PAPER_STEPS  # how long in the search
    searched: tuple[str, ...] = TUNED
    windows: tuple[str, ...] = ("1k", "10k", "100k", "all")  # of Figure 9; none: not part of it
    windowed: tuple[str, ...] = ("made",)  # the forms of MADE whose window is changed


class Setting(NamedTuple):
    """What a scale changes of the settings of RAD's release, or of Dreamer v1."""

    agent: str  # from pixels rad or dreamer, from states sac or dreamer
    seeds: int
    bonus_coefs: tuple[float, ...] = ()  # that each method is tried at in the search
    changes: str = ""  # path=value, separated by spaces
    width: int = 0  # of the networks of a bonus; 0: the release's


SMALL = ("none", "rnd", "re3", "re3-released", "made", "made-released", "rnd-at-made", "cover-at-made")
ON_A_GPU = ("none", "rnd", "re3", "re3/printed", "re3-released", "made", "made-released", "cover-at-made")
FEWEST = ("none", "re3", "made")
WITH_DREAMER = ("none", "re3", "made", "made-released", "rnd-at-made")
BUDGETS: dict[str, dict[str, Budget]] = {
    "smoke": {"pendulum_swingup": Budget(4_000, 2_000, ("none",), 4_000, ("rnd",), ("all",))},
    "small": {"pendulum_swingup": Budget(30_000, 2_000, SMALL, 30_000, ("rnd", "re3", "made", "made-released"))},
    "gpu": {  # by `python -m benchmarks.control` half an hour of an H200 for the three seeds of a task, Pendulum's an hour
        "pendulum_swingup": Budget(100_000, 5_000, ON_A_GPU, 50_000),
        "cartpole_swingup_sparse": Budget(100_000, 10_000, FEWEST, 50_000, windows=()),
        "hopper_hop": Budget(100_000, 10_000, FEWEST, 50_000),
    },
    "paper": {task: Budget(PAPER_STEPS, windowed=("made", "made-released")) for task in TASKS},
}
DREAMER_BUDGETS: dict[str, dict[str, Budget]] = {
    "smoke": {"pendulum_swingup": Budget(4_000, 2_000, ("none",))},
    "small": {"pendulum_swingup": Budget(30_000, 3_000, WITH_DREAMER)},
    "gpu": {
        "pendulum_swingup": Budget(50_000, 5_000, WITH_DREAMER),
        "hopper_hop": Budget(30_000, 5_000, WITH_DREAMER),
        "cheetah_run_sparse": Budget(200_000, 10_000, WITH_DREAMER),
    },
    "paper": {task: Budget(PAPER_STEPS, methods=WITH_DREAMER) for task in TASKS},
}
UNION = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0)  # of what the paper says was searched, for one method or another


def _layout(**sizes: int) -> str:
    return " ".join(f"agent.layout.{name}={n}" for name, n in sizes.items())


SETTINGS = {
    "smoke": Setting("sac", 1, (0.1,), f"task.repeat=100 {_layout(width=8, depth=1)} replay.capacity=64 batch=8 seed_steps=6 episodes=1", 8),
    "small": Setting("sac", 5, (0.01, 0.1, 1.0, 10.0, 100.0), "replay.capacity=15000 batch=128", 64),
    "gpu": Setting("rad", 3, (0.01, 0.05, 0.25, 1.25), "task.low_res_shadows=True agent.layout.precision=bfloat16 episodes=5"),
    "paper": Setting("rad", 5, UNION),
}  # fmt: skip
_STATES = "task.pixels=False replay.steps.capacity=15000"
DREAMER_SETTINGS = {
    "smoke": Setting(
        *("dreamer", 1, ()),
        f"{_STATES} {_layout(stoch=2, deter=4, hidden=4, units=4, reward=1, value=1, actor=1)} task.repeat=100 "
        "replay.length=4 agent.horizon=2 batch=2 seed_steps=10 pretrain=1 train_every=10 updates=1 episodes=1",
        64,
    ),
    "small": Setting(  # four times as many updates as in v1, for steps are few; three floats carry less nats than a frame
        *("dreamer", 3, ()),
        f"{_STATES} {_layout(stoch=10, deter=64, hidden=64, units=64, reward=2, value=2, actor=2)} replay.length=20 "
        "batch=16 train_every=125 agent.free_nats=0.5 agent.kl_scale=0.1 agent.actor_rate=3e-4 agent.value_rate=3e-4",
        64,
    ),
    "gpu": Setting("dreamer", 3, (), "agent.layout.precision=bfloat16"),
    "paper": Setting("dreamer", 5),
}
RE3_BATCH = 2500  # steps of a batch of Dreamer v1, among which RE3 looks for the k-th neighbor


def named(scale: Scale) -> str:
    """The scale whose budget and setting are used."""
    return scale.value if scale.value in BUDGETS else "small"


def run_of(
    task: str, method: str, setting: Setting, steps: int, every: int, bonus_coef: float | None = None
) -> ControlConfig:
    """One configuration: an agent with a bonus, at the task's bonus coefficient for it unless another is given."""
    run = control_config(task, setting.agent, method.removesuffix("/printed"))
    bonus_coef = PRINTED_RE3 if method == "re3/printed" else bonus_coef
    coef = "" if bonus_coef is None else f"bonus_coef.value={bonus_coef}"
    for path, value in (change.split("=") for change in f"{setting.changes} {coef}".split()):
        run = override(run, path, value)
    repeat, near = run.task.repeat, 1.0
    if isinstance(run, DreamerConfig):
        near = run.batch * run.replay.length / RE3_BATCH
    else:  # what is never filled need not be held
        run = override(run, "replay.capacity", str(min(run.replay.capacity, steps // repeat)))
    bonus = sized(run.bonus, setting.width, near) if setting.width else run.bonus
    return dataclasses.replace(run, bonus=bonus, iterations=steps // repeat, every=every // repeat).resolved()


def sized(bonus: Any, width: int, near: float) -> Any:
    """The bonus with small networks, for two cores, and RE3 with a neighbor as near among that fraction of the steps."""

    def size(part: Any) -> Any:
        match part:
            case RE3():
                return dataclasses.replace(part, k=max(1, round(part.k * near)))
            case RND():
                return dataclasses.replace(part, width=width, embedding=width // 2)
            case ReleasedRND():
                return dataclasses.replace(part, width=2 * width, hidden=width, features=width // 2)
            case VAE() | ReleasedVAE():
                return dataclasses.replace(part, width=width, latent=width // 2)
        return part

    return jax.tree.map(size, bonus, is_leaf=lambda x: isinstance(x, RE3 | RND | ReleasedRND | VAE | ReleasedVAE))


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


def length(table: Table, label: str) -> str:
    """Steps of the environment that the runs of a label have; where they are not whole also those they were to have."""
    if is_partial(table, label):
        return progress_text(table.runs(label)[0])
    return f"{int(evaluations(table, label)[0][-1]):,}"


def threshold(task: str) -> float:
    """0.8 of what RAD+RE3's own data have at 500K steps."""
    return LEVEL * PUBLISHED_RE3[task]


def to_reach(table: Table, label: str, level: float | None = None) -> CensoredTimes:
    """Steps until an evaluation is at a level, the task's threshold unless given; censored where that never happens."""
    level = threshold(table.tags(label)["task"]) if level is None else level
    return time_to_threshold(*evaluations(table, label), level)


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


def look(method: str, baseline: str = "none") -> plots.Style:
    """The look of a method, the same where its coefficient is tuned; `baseline` names that of no bonus."""
    return plots.style_of(baseline if method == "none" else LOOKS.get(method, method))
