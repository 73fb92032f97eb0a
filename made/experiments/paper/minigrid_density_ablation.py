"""How MADE depends on its recent density on MiniGrid: the window, what is counted, and a VAE in place of counts."""

from typing import Any

from made.bonuses import VAE, HashedRecentCounts, Standardized
from made.bonuses.combinators import Calibrated
from made.bonuses.densities.recent_counts import SuccessorDensity
from made.core import Bonus
from made.core.trial import Trial
from made.experiments import plots
from made.experiments.paper import minigrid_setup as shared
from made.experiments.paper.minigrid_methods import Family
from made.experiments.store.store import Scale
from made.experiments.store.table import Table
from made.experiments.types import Experiment, PaperFigure, rng
from made.training.on_policy import RunConfig

WINDOWS = (1_000, 10_000, 100_000)
DEFAULT = 10_000
ROWS = {"smoke": 2, "small": 3, "gpu": 35, "paper": 440}
TASKS = {"smoke": "MultiRoom-N2-S4", "small": "MultiRoom-N4-S5"}


def counts(window: int, arrived: float = 0.0) -> Standardized:
    """Counts of (o, a), or of o', over a window; all windows have one capacity, so that they are lanes."""
    return Standardized(SuccessorDensity(HashedRecentCounts(window, capacity=max(WINDOWS)), arrived))


def variants(first_visit: bool, scale: Scale) -> dict[str, Bonus]:
    """Every form of the recent density, behind the gate or not."""
    point: dict[str, Any] = {"power": 0.5, "gate": float(first_visit)}
    found: dict[str, Bonus] = {f"(o, a), {w // 1000}k": Family(**point, recent=counts(w)) for w in WINDOWS}
    found["o', 10k"] = Family(**point, recent=counts(DEFAULT, 1.0))
    found["(o, a) alone, 10k"] = Family(**point, novelty=0.0, recent=counts(DEFAULT))
    if scale != Scale.SMOKE:  # two more programs to compile
        found["VAE, 10k"] = Family(**point, recent=Standardized(VAE(DEFAULT, capacity=DEFAULT)))
        found["released"] = shared.released(float(first_visit))
    return found


def trials(scale: Scale) -> dict[str, Trial]:
    name = scale.value if scale.value in ROWS else "small"
    task, found = TASKS.get(name, "MultiRoom-N7-S8"), {}
    for first_visit, method in ((True, "made/gated"), (False, "made")):
        settings = shared.chosen(task, method, scale)
        run = shared.run_of(task, method, scale, ROWS[name], **settings)
        for variant, bonus in variants(first_visit, scale).items():
            set_to = Calibrated(bonus, strength=settings["strength"], warmup=300)
            found[f"{'gated' if first_visit else 'ungated'}/{variant}"] = with_bonus(run, set_to)
    return found


def with_bonus(run: RunConfig, bonus: Bonus) -> RunConfig:
    """The same run with another bonus."""
    settings = {
        name: getattr(run, name)
        for name in ("n_envs", "unroll", "iterations", "every", "resets_per_update", "pool_per_env")
    }
    return RunConfig(run.env, run.agent, bonus, **settings)


def draw(table: Table) -> list[PaperFigure]:
    fig, axes = plots.figure(1, 2, height=2.8, sharey=True)
    for ax, part in zip(axes[0], ("gated", "ungated"), strict=True):
        for i, one in enumerate(label for label in table.labels() if label.startswith(f"{part}/")):
            shared.band(ax, table, one, plots.CYCLE[i % len(plots.CYCLE)], one.split("/", 1)[1])
        plots.step_axis(ax)
        plots.title(ax, f"MADE, {part}", x="frames", y="return" if part == "gated" else "")
    plots.legend(fig)
    seeds = min(len(table.seeds(one)) for one in table.labels())
    text = (
        "MADE with other recent densities: counts of (o, a) over three windows, counts of o', that factor without RND, "
        f"the VAE, and the released bonus. Mean return of {seeds} seeds, the band from the least to the largest."
    )
    return [PaperFigure("minigrid_density", fig, plots.caption(fig, text))]


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    rows = [[*one.split("/", 1), *shared.outcome(table, one, rng())] for one in table.labels()]
    return [("MADE with other densities", ["gate", "density", "frames to solve", "return at the end"], rows)]


EXPERIMENT = Experiment(
    name="minigrid_density",
    figure="fig:minigrid_result",
    title="MADE's window and density on MiniGrid",
    about=(
        "The recent density of MADE changed one part at a time, at the strength and learning rate that the search chose "
        "for MADE and for gated MADE with counts of (o, a) over 10,000 pairs."
    ),
    trials=trials,
    seeds=lambda scale: range(1 if scale == Scale.SMOKE else 2 if scale == Scale.SMALL else 3),
    claims=(),
    draw=draw,
    tables=tables,
    columns=(
        "return",
        "length",
        "bonus",
        "bonus_strength",
        "entropy",
        "factor/log_std",
        "factor/raw_log_std",
        "pool_reused",
    ),
    in_demo=False,
)
