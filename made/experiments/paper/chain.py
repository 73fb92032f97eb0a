"""Figure 6: four policy gradients on the chain MDP that makes gradients vanish (Section 4.2, Appendix B.2)."""

import itertools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from made.core.config import COUNT, SHARE, check_numbers
from made.core.trial import Trial
from made.experiments import plots
from made.experiments.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Claim, Effect, Experiment, PaperFigure, Verdict, choose
from made.tabular.families import Chain
from made.tabular.policy_gradient import PolicyGradient
from made.tabular.solve import expected_return, policy_iteration

METHODS = ("pg", "pg+e", "pg+re", "pg+made")
STARTS = {"uniform": 0.25, "timid": 0.1}  # probability of a_1 at the start; below 1/4 gradients provably vanish
REACHED, SLOW = 0.95, 4  # what counts as solved, and how many times the fastest method's steps as slow


class Ascent(Trial):
    """Exact gradient ascent on the chain from a start that takes a_1 with probability `first`."""

    method: PolicyGradient
    first: float = 0.25
    H: int = eqx.field(static=True, default=8)
    iterations: int = eqx.field(static=True, default=6000)
    every: int = eqx.field(static=True, default=10)
    float64 = True

    def __check_init__(self):
        check_numbers(self, {SHARE: ("first",), COUNT: ("H",)})

    def _mdp(self):
        return Chain(H=self.H).draw()

    def start(self, key) -> tuple[Float[Array, "S A"], Int[Array, ""]]:
        mdp = self._mdp()
        rest = (1 - self.first) / (mdp.n_actions - 1)
        policy = jnp.full((mdp.n_states, mdp.n_actions), rest).at[:, 0].set(self.first)
        return self.method.init(mdp, policy), jnp.zeros((), jnp.int32)

    def advance(self, state):
        theta, k = state
        return (self.method.update(self._mdp(), theta, k + 1), k + 1), {}

    def snapshot(self, state):
        """J(pi) as a share of V*(s_0)."""
        mdp = self._mdp()
        best = mdp.rho @ policy_iteration(mdp).v
        return {"share": expected_return(mdp, self.method.policy(state[0])) / best}


def trials(scale: Scale) -> dict[str, Trial]:
    length = {"iterations": choose(scale, smoke=60, demo=3000, small=6000, paper=20000)}
    length["every"] = choose(scale, smoke=10, demo=5, paper=20)
    wide = {"simplex": (0.03, 0.1, 0.3, 1.0, 3.0), "softmax": (0.3, 1.0, 3.0, 10.0, 30.0)}  # the paper names none
    step_sizes = choose(scale, smoke={"simplex": (0.3,), "softmax": (10.0,)}, demo=wide)
    runs: dict[str, Trial] = {}
    for form, eta in ((form, eta) for form, sizes in step_sizes.items() for eta in sizes):
        for start, name in itertools.product(STARTS, (*METHODS, "pg+made printed")):
            method = PolicyGradient.named(name, eta=eta, parameterisation=form)
            label = Label(parameterisation=form, start=start, eta=eta, method=name)
            runs[label] = Ascent(method, STARTS[start], **length)
    return runs


def steps_to(table: Table, one: str, share: float = REACHED) -> float:
    """The first recorded step with J at least that share of V*; infinite if there is none."""
    steps, curves = table.curves(one, "share")
    return next((float(step) for step, x in zip(steps, curves[0], strict=True) if x >= share), np.inf)


def at_end(table: Table, one: str) -> float:
    """J as a share of V*: the lowest value of the last tenth of the run, so that a run that bounces is not called solved."""
    curve = table.curves(one, "share")[1][0]
    return float(curve[-max(1, len(curve) // 10) :].min())


def times(table: Table) -> dict[Label, dict[str, float]]:
    """The steps of each method in each recorded setting: parameterisation, start and step size."""
    settings = dict.fromkeys(one.without("method") for one in table.select())
    return {one: {m: steps_to(table, f"{one}/{m}") for m in METHODS} for one in settings}


def judged(table: Table, holds: bool, *effects: Effect) -> Verdict:
    """The verdict on curves of a hundred points at least."""
    return Verdict(holds if len(table.curves(table.labels()[0], "share")[0]) >= 100 else None, effects)


UNIT = f"steps to {REACHED:.0%} of V*"


def plain_is_slow(table: Table) -> Verdict:
    """Claim 13: in most settings plain PG needs at least four times the steps of the fastest method, or never gets there."""
    slow, effects = [], []
    for setting, steps in times(table).items():
        plain, fastest = steps["pg"], min(steps.values())
        slow.append(plain >= SLOW * fastest or plain == np.inf)
        effects += [Effect(f"{setting} PG", plain, unit=UNIT), Effect("fastest", fastest, unit=UNIT)]
    count = Effect("", sum(slow), unit=f"settings of {len(slow)} in which PG is slow")
    return judged(table, sum(slow) > len(slow) / 2, count, *effects)


def made_is_best(table: Table) -> Verdict:
    """Claim 14: MADE reaches 95% of V* before PG+E and PG+RE and is there at the end, in every setting."""
    first, effects, ends = [], [], []
    for setting, steps in times(table).items():
        first.append(steps["pg+made"] < min(steps["pg+e"], steps["pg+re"]))
        effects += [Effect(f"{setting}/{m}", steps[m], unit=UNIT) for m in METHODS[1:]]
        ends.append(Effect(setting, at_end(table, f"{setting}/pg+made"), unit="MADE at the end, J/V*"))
    counts = {f"first to {REACHED:.0%} of V*": first, "there at the end": [x.value >= REACHED for x in ends]}
    found = [Effect(name, sum(x), unit=f"settings of {len(x)} in which MADE is") for name, x in counts.items()]
    return judged(table, all(map(all, counts.values())), *found, *effects, *ends)


def entropy_helps(table: Table) -> Verdict:
    """Claim 15: E and RE each reach 95% of V* before plain PG does, in every setting."""
    unit = f"fraction of settings in which it reaches {REACHED:.0%} of V* before PG"
    effects = []
    for method, start in ((method, start) for method in ("pg+e", "pg+re") for start in STARTS):
        won = [x[method] < x["pg"] for one, x in times(table).items() if one.tags["start"] == start]
        effects.append(Effect(f"{method}, {start} start", float(np.mean(won)), unit=unit))
    return judged(table, all(x.value == 1 for x in effects), *effects)


def draw(table: Table) -> list[PaperFigure]:
    rows = list(dict.fromkeys(one.without("eta", "method") for one in table.select()))
    sizes = [[one.without("method") for one in table.select(**row.tags, method=METHODS[0])] for row in rows]
    fig, axes = plots.figure(len(rows), max(map(len, sizes)), height=1.6, sharey=True)
    for row, line, drawn in zip(rows, sizes, axes, strict=True):
        for ax, setting in zip(drawn, line, strict=False):
            for method in METHODS:
                steps, curves = table.curves(f"{setting}/{method}", "share")
                look = plots.style_of(method)
                behind = {"linewidth": 0.7, "zorder": 1} if method == "pg+made" else {"linewidth": 1.3}  # it may bounce
                ax.plot(steps, curves[0], color=look.color, linestyle=look.line, label=look.text, **behind)
            plots.log_axis(ax)
            left = f"{row.tags['parameterisation']}\n{row.tags['start']} start" if setting is line[0] else ""
            below = "gradient steps" if row == rows[-1] else ""
            plots.title(ax, f"step size {setting.tags['eta']:g}", x=below, y=left)
    plots.legend(fig)
    text = (
        "Chain MDP, H=8: J as a share of V* under exact gradients, tau_k = 0.1/sqrt(k). The timid start takes a_1 with "
        "probability 0.1. Deterministic: one run each, no interval."
    )
    return [PaperFigure("chain", fig, plots.caption(fig, text))]


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    rows = []
    for one in table.labels():
        steps = (steps_to(table, one, share) for share in (0.5, REACHED))
        reached = (f"{n:.0f}" if np.isfinite(n) else "never" for n in steps)
        rows.append([one, *reached, f"{at_end(table, one):.3f}"])
    header = ["run", "steps to 50% of V*", "steps to 95% of V*", "lowest J/V* in the last tenth"]
    return [("All runs; the printed MADE objective has a minus sign", header, rows)]


EXPERIMENT = Experiment(
    name="chain",
    figure="fig:chain_MDP",
    title="Policy gradients on the chain",
    about=(
        "Exact gradient ascent with four objectives: plain, policy entropy, relative entropy (log barrier) and MADE's "
        "sum sqrt(d). Step size and start are not in the paper and decide much, so both are varied; a run is judged by its end."
    ),
    trials=trials,
    seeds=lambda scale: range(1),
    claims=(
        Claim(13, "plain-is-slow", "Vanilla policy gradient converges very slowly on the chain", "Fig. 6, Sec. 4.2", plain_is_slow),
        Claim(14, "made-is-best", "MADE outperforms the entropy regularizers, quickly reaching a globally optimal policy", "Fig. 6, Sec. 4.2", made_is_best),
        Claim(15, "entropy-helps", "Entropy and relative entropy regularization improve on vanilla policy gradient", "Fig. 6, Sec. 4.2", entropy_helps),
    ),
    draw=draw,
    tables=tables,
)  # fmt: skip
