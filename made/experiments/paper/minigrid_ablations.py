"""Ablations on MiniGrid: what MADE's recent density counts, and float32 against bfloat16."""

import dataclasses
import itertools
from typing import Any

from made.agents.impala import IMPALA
from made.agents.policy_net import LAYOUTS
from made.bonuses import VAE, HashedRecentCounts, Standardized
from made.bonuses.combinators import Calibrated
from made.bonuses.densities.recent_counts import SuccessorDensity
from made.core import Bonus
from made.core.trial import Trial
from made.experiments import plots
from made.experiments.paper import minigrid_setup as shared
from made.experiments.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Experiment, PaperFigure, choose

WINDOWS = (1_000, 10_000, 100_000)
DEFAULT = 10_000
MASKS = {"gated": "first-visit MADE", "ungated": "MADE"}  # by label


def task_of(scale: Scale) -> str:
    return choose(scale, smoke="MultiRoom-N2-S4", demo="MultiRoom-N4-S5", gpu="MultiRoom-N7-S8")


def counts(window: int, arrived: float = 0.0) -> Standardized:
    """Counts of (o, a), or of o', over a window; all windows have one capacity, so that they are one program."""
    return Standardized(SuccessorDensity(HashedRecentCounts(window, capacity=max(WINDOWS)), arrived))


def variants(gate: float, scale: Scale) -> dict[str, Bonus]:
    """Every form of the recent density, with and without the first-visit mask."""
    point: dict[str, Any] = {"power": 0.5, "gate": gate}
    found: dict[str, Bonus] = {f"(o, a), {w // 1000}k": shared.Family(**point, recent=counts(w)) for w in WINDOWS}
    found["o', 10k"] = shared.Family(**point, recent=counts(DEFAULT, 1.0))
    found["(o, a) alone, 10k"] = shared.Family(**point, novelty=0.0, recent=counts(DEFAULT))
    if scale != Scale.SMOKE:  # two more programs to compile
        found["VAE, 10k"] = shared.Family(**point, recent=Standardized(VAE(DEFAULT, capacity=DEFAULT)))
        found["released"] = shared.released(gate)
    return found


def density_trials(scale: Scale) -> dict[str, Trial]:
    rows, found = choose(scale, smoke=2, demo=3, gpu=35, paper=440), {}
    for mask, gate, method in (("gated", 1.0, "made/gated"), ("ungated", 0.0, "made")):
        settings = shared.chosen(task_of(scale), method, scale)
        run = shared.run_of(task_of(scale), method, scale, rows, **settings)
        for variant, bonus in variants(gate, scale).items():
            set_to = Calibrated(bonus, strength=settings["strength"], warmup=300)
            found[Label(gate=mask, density=variant)] = dataclasses.replace(run, bonus=set_to)
    return found


def _draw(table: Table, name: str, panels: dict[str, list[Label]], tag: str, text: str) -> list[PaperFigure]:
    """A panel with a band for each label, named by one of its tags."""
    fig, axes = plots.panels(panels, x="frames", y="return", height=2.8, sharey=True)
    for ax, labels in zip(axes, panels.values(), strict=True):
        for one, color in zip(labels, itertools.cycle(plots.CYCLE), strict=False):
            plots.range_band(ax, *shared.returns(table, one), plots.Style(one.tags[tag], color))
        plots.step_axis(ax)
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
    rows = [[MASKS[one.tags["gate"]], one.tags["density"], *shared.outcome(table, one)] for one in table.select()]
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
    seeds=lambda scale: range(choose(scale, smoke=1, demo=3, small=2, gpu=3)),
    claims=(),
    draw=density_draw,
    tables=density_tables,
    columns=(*shared.COLUMNS, "factor/raw_log_std"),
    in_demo=False,
)


def precision_trials(scale: Scale) -> dict[str, Trial]:
    """Both precisions at the learning rates of the search: a network this large may want the smaller one."""
    settings = shared.chosen(task_of(scale), "made/gated", scale)
    rows = choose(scale, smoke=2, demo=5, gpu=25, paper=440)
    layout = choose(scale, smoke=shared.TINY, demo=LAYOUTS["small"], gpu=LAYOUTS["ride"])
    run, found = shared.run_of(task_of(scale), "made/gated", scale, rows, **settings), {}
    for precision in ("float32", "bfloat16"):
        of = dataclasses.replace(layout, precision=precision)
        for rate in shared.RATES:
            found[Label(precision=precision, lr=rate)] = dataclasses.replace(run, agent=IMPALA(of, learning_rate=rate))
    return found


def precision_draw(table: Table) -> list[PaperFigure]:
    text = "IMPALA with first-visit MADE, matmuls in float32 and in bfloat16."
    panels = {f"learning rate {rate:g}": table.select(lr=rate) for rate in shared.RATES}
    return _draw(table, "minigrid_precision", panels, "precision", text)


def precision_tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    rows = [[*map(str, one.tags.values()), *shared.outcome(table, one)] for one in table.select()]
    header = ["precision", "learning rate", "frames to solve", "return at the end"]
    return [("Products in two precisions", header, rows)]


PRECISION = DENSITY._replace(
    name="minigrid_precision",
    title="float32 and bfloat16 on MiniGrid",
    about=(
        "RIDE's network (LSTM 1024 x 2) with first-visit MADE at the strength that the search chose, at both learning rates; "
        "the parameters stay float32, their products are computed in float32 or in bfloat16."
    ),
    trials=precision_trials,
    draw=precision_draw,
    tables=precision_tables,
    columns=("return", "length", "bonus", "bonus_strength", "entropy", "loss", "gradient_norm"),
)
