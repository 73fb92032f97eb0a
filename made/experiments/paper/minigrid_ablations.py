"""Ablations on MiniGrid: what MADE's recent density counts, and float32 against bfloat16."""

import dataclasses
import itertools
from typing import Any

from made.agents.impala import IMPALA
from made.agents.policy_net import LAYOUTS, Layout
from made.bonuses import VAE, HashedRecentCounts, Standardized
from made.bonuses.combinators import Calibrated
from made.bonuses.densities.recent_counts import SuccessorDensity
from made.core import Bonus
from made.core.trial import Trial
from made.experiments import plots
from made.experiments.paper import minigrid_setup as shared
from made.experiments.paper.minigrid_methods import Family
from made.experiments.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Experiment, PaperFigure, rng
from made.training.on_policy import RunConfig

WINDOWS = (1_000, 10_000, 100_000)
DEFAULT = 10_000
ROWS = {"smoke": 2, "small": 3, "gpu": 35, "paper": 440}
PRECISION_ROWS = {"smoke": 2, "small": 5, "gpu": 25, "paper": 440}
NETWORKS = {"smoke": shared.TINY, "small": LAYOUTS["small"]}
MASKS = {"gated": "first-visit MADE", "ungated": "MADE"}  # by label
TASKS = {"smoke": "MultiRoom-N2-S4", "small": "MultiRoom-N4-S5"}


def counts(window: int, arrived: float = 0.0) -> Standardized:
    """Counts of (o, a), or of o', over a window; all windows have one capacity, so that they are lanes."""
    return Standardized(SuccessorDensity(HashedRecentCounts(window, capacity=max(WINDOWS)), arrived))


def variants(first_visit: bool, scale: Scale) -> dict[str, Bonus]:
    """Every form of the recent density, with and without the first-visit mask."""
    point: dict[str, Any] = {"power": 0.5, "gate": float(first_visit)}
    found: dict[str, Bonus] = {f"(o, a), {w // 1000}k": Family(**point, recent=counts(w)) for w in WINDOWS}
    found["o', 10k"] = Family(**point, recent=counts(DEFAULT, 1.0))
    found["(o, a) alone, 10k"] = Family(**point, novelty=0.0, recent=counts(DEFAULT))
    if scale != Scale.SMOKE:  # two more programs to compile
        found["VAE, 10k"] = Family(**point, recent=Standardized(VAE(DEFAULT, capacity=DEFAULT)))
        found["released"] = shared.released(float(first_visit))
    return found


def density_trials(scale: Scale) -> dict[str, Trial]:
    name = scale.value if scale.value in ROWS else "small"
    task, found = TASKS.get(name, "MultiRoom-N7-S8"), {}
    for first_visit, method in ((True, "made/gated"), (False, "made")):
        settings = shared.chosen(task, method, scale)
        run = shared.run_of(task, method, scale, ROWS[name], **settings)
        for variant, bonus in variants(first_visit, scale).items():
            set_to = Calibrated(bonus, strength=settings["strength"], warmup=300)
            label = Label(gate="gated" if first_visit else "ungated", density=variant)
            found[label] = dataclasses.replace(run, bonus=set_to)
    return found


def _draw(table: Table, name: str, panels: dict[str, list[Label]], tag: str, text: str) -> list[PaperFigure]:
    """A panel with a band for each label, named by one of its tags."""
    fig, axes = plots.panels(len(panels), height=2.8, sharey=True)
    for ax, (title, labels) in zip(axes, panels.items(), strict=True):
        for one, color in zip(labels, itertools.cycle(plots.CYCLE), strict=False):
            plots.range_band(ax, *shared.returns(table, one), plots.Style(one.tags[tag], color))
        plots.step_axis(ax)
        plots.title(ax, title, x="frames", y="return" if plots.leftmost(ax) else "")
    plots.legend(fig)
    text += f" Mean return of {min(table.seed_counts())} seeds, the band from the least to the largest."
    return [PaperFigure(name, fig, plots.caption(fig, text))]


def density_draw(table: Table) -> list[PaperFigure]:
    text = (
        "MADE with other recent densities: counts of (o, a) over three windows, counts of o', that factor without RND, "
        "the VAE, and the released bonus."
    )
    panels = {name: table.select(gate=gate) for gate, name in MASKS.items()}
    return _draw(table, "minigrid_density", panels, "density", text)


def density_tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    rows = [
        [MASKS[one.tags["gate"]], one.tags["density"], *shared.outcome(table, one, rng())] for one in table.select()
    ]
    return [("MADE with other densities", ["method", "density", "frames to solve", "return at the end"], rows)]


DENSITY = Experiment(
    name="minigrid_density",
    figure="fig:minigrid_result",
    title="MADE's window and density on MiniGrid",
    about=(
        "The recent density of MADE changed one part at a time, at the strength and learning rate that the search chose "
        "for MADE and for first-visit MADE with counts of (o, a) over 10,000 pairs."
    ),
    trials=density_trials,
    seeds=lambda scale: range(1 if scale == Scale.SMOKE else 2 if scale == Scale.SMALL else 3),
    claims=(),
    draw=density_draw,
    tables=density_tables,
    columns=(*shared.COLUMNS, "factor/raw_log_std"),
    in_demo=False,
)


def precision_trials(scale: Scale) -> dict[str, RunConfig]:
    """Both precisions at the learning rates of the search: a network this large may want the smaller one."""
    name = scale.value if scale.value in PRECISION_ROWS else "small"
    task, layout = TASKS.get(name, "MultiRoom-N7-S8"), NETWORKS.get(name, LAYOUTS["ride"])
    settings = shared.chosen(task, "made/gated", scale)
    run, found = shared.run_of(task, "made/gated", scale, PRECISION_ROWS[name], **settings), {}
    for precision in ("float32", "bfloat16"):
        of: Layout = dataclasses.replace(layout, precision=precision)
        for rate in shared.RATES:
            found[Label(precision=precision, lr=rate)] = dataclasses.replace(run, agent=IMPALA(of, learning_rate=rate))
    return found


def precision_draw(table: Table) -> list[PaperFigure]:
    text = "IMPALA with first-visit MADE, matmuls in float32 and in bfloat16."
    panels = {f"learning rate {rate:g}": table.select(lr=rate) for rate in shared.RATES}
    return _draw(table, "minigrid_precision", panels, "precision", text)


def precision_tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    rows = [[*map(str, one.tags.values()), *shared.outcome(table, one, rng())] for one in table.select()]
    return [
        ("Products in two precisions", ["precision", "learning rate", "frames to solve", "return at the end"], rows)
    ]


PRECISION = Experiment(
    name="minigrid_precision",
    figure="fig:minigrid_result",
    title="float32 and bfloat16 on MiniGrid",
    about=(
        "RIDE's network (LSTM 1024 x 2) with first-visit MADE at the strength that the search chose, at both learning rates; "
        "the parameters stay float32, their products are computed in float32 or in bfloat16."
    ),
    trials=precision_trials,  # type: ignore[arg-type]
    seeds=lambda scale: range(1 if scale == Scale.SMOKE else 2 if scale == Scale.SMALL else 3),
    claims=(),
    draw=precision_draw,
    tables=precision_tables,
    columns=("return", "length", "bonus", "bonus_strength", "entropy", "loss", "gradient_norm"),
    in_demo=False,
)
