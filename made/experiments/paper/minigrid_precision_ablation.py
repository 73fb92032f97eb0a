"""Whether IMPALA learns as well with products in bfloat16 as in float32, with RIDE's network and first-visit MADE."""

import dataclasses

from made.agents.impala.agent import IMPALA
from made.agents.impala.network import LAYOUTS, Layout
from made.experiments import plots
from made.experiments.paper import minigrid_setup as shared
from made.experiments.store.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Experiment, PaperFigure, rng
from made.training.on_policy import RunConfig

PRECISIONS = ("float32", "bfloat16")
METHOD = "made/gated"
ROWS = {"smoke": 2, "small": 5, "gpu": 25, "paper": 440}
TASKS = {"smoke": "MultiRoom-N2-S4", "small": "MultiRoom-N4-S5"}
NETWORKS = {"smoke": shared.TINY, "small": LAYOUTS["small"]}


def trials(scale: Scale) -> dict[str, RunConfig]:
    """Both precisions at the learning rates of the search: a network this large may want the smaller one."""
    name = scale.value if scale.value in ROWS else "small"
    task, layout = TASKS.get(name, "MultiRoom-N7-S8"), NETWORKS.get(name, LAYOUTS["ride"])
    settings = shared.chosen(task, METHOD, scale)
    run, found = shared.run_of(task, METHOD, scale, ROWS[name], **settings), {}
    for precision in PRECISIONS:
        of: Layout = dataclasses.replace(layout, precision=precision)
        for rate in shared.RATES:
            found[Label(precision=precision, lr=rate)] = dataclasses.replace(run, agent=IMPALA(of, learning_rate=rate))
    return found


def draw(table: Table) -> list[PaperFigure]:
    fig, axes = plots.figure(1, len(shared.RATES), height=2.4, sharey=True)
    for i, (ax, rate) in enumerate(zip(axes[0], shared.RATES, strict=True)):
        for colour, precision in zip(plots.CYCLE, PRECISIONS, strict=False):
            shared.band(ax, table, f"{precision}/lr={rate:g}", colour, precision)
        plots.step_axis(ax)
        plots.title(ax, f"learning rate {rate:g}", x="frames", y="" if i else "return")
    plots.legend(fig)
    seeds = min(len(table.seeds(one)) for one in table.labels())
    text = (
        "IMPALA with first-visit MADE, products in float32 and in bfloat16. "
        f"Mean return of {seeds} seeds, the band from the least to the largest."
    )
    return [PaperFigure("minigrid_precision", fig, plots.caption(fig, text))]


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    rows = [[*map(str, one.tags.values()), *shared.outcome(table, one, rng())] for one in table.select()]
    return [
        ("Products in two precisions", ["precision", "learning rate", "frames to solve", "return at the end"], rows)
    ]


EXPERIMENT = Experiment(
    name="minigrid_precision",
    figure="fig:minigrid_result",
    title="float32 and bfloat16 on MiniGrid",
    about=(
        "RIDE's network (LSTM 1024 x 2) with first-visit MADE at the strength that the search chose, at both learning rates; "
        "the parameters stay float32, their products are computed in float32 or in bfloat16."
    ),
    trials=trials,  # type: ignore[arg-type]
    seeds=lambda scale: range(1 if scale == Scale.SMOKE else 2 if scale == Scale.SMALL else 3),
    claims=(),
    draw=draw,
    tables=tables,
    columns=("return", "length", "bonus", "bonus_strength", "entropy", "loss", "gradient_norm"),
    in_demo=False,
)
