"""The identities of Section 3 on random MDPs: Eqs. (4) to (7), the mixture, Proposition 1, as recorded numbers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from made.core.config import AT_LEAST_ZERO, POSITIVE, SHARE, check_numbers
from made.core.trial import Trial
from made.experiments import plots
from made.experiments.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Claim, Effect, Experiment, PaperFigure, Verdict, choose
from made.tabular import objective as maths
from made.tabular.algorithm1 import Constants, Mixture
from made.tabular.families import Garnet
from made.tabular.solve import occupancy

EXACT = 1e-9  # float64: what counts as equal
POLICIES = 5


class Identities(Trial):
    """One iteration draws an MDP and policies and measures every identity on them; everything in float64."""

    family: Garnet
    lam: float = 0.1
    tau: float = 0.5
    eta: float = 0.1
    iterations: int = eqx.field(static=True, default=20)
    every: int = eqx.field(static=True, default=1)
    float64 = True

    def __check_init__(self):
        check_numbers(self, {POSITIVE: ("lam",), AT_LEAST_ZERO: ("tau",), SHARE: ("eta",)})

    def start(self, key):
        return key

    def advance(self, key):
        key, k_mdp, k_policies, k_points = jax.random.split(key, 4)
        mdp = self.family.draw(k_mdp)
        shape = (POLICIES, mdp.n_states, mdp.n_actions)
        policies = jax.nn.softmax(2 * jax.random.normal(k_policies, shape))
        densities = jax.vmap(lambda policy: occupancy(mdp, policy))(policies)
        points = jax.random.dirichlet(k_points, jnp.full(shape[1] * shape[2], 0.3), (64,)).reshape((64, *shape[1:]))
        cover = maths.policy_cover(densities)
        mixture, weights = self._mixture(densities)
        found = self._rewards(mdp, mixture.density, cover) | self._maximiser(mdp, cover, points)
        return key, found | weights | self._regularity(mdp, cover, points)

    def _rewards(self, mdp, d, cover):
        """Claims 1 and 3: r_k by autodiff against Eq. (6); linear and Shannon regularisers."""
        by_gradient = maths.reward_by_gradient(mdp, lambda d: maths.L_made(mdp, d, cover, self.tau, 0.0), d)
        closed = maths.reward_made(mdp, d, cover, self.tau, 0.0)
        bonus = 1 / jnp.sqrt(cover)
        linear = jax.grad(lambda d: maths.linear_regulariser(d, bonus))(d)
        shannon = jax.grad(maths.shannon_entropy)(d)
        return {
            "eq6_error": (jnp.abs(by_gradient - closed) / jnp.abs(closed)).max(),
            "linear_error": jnp.abs(linear - bonus).max(),
            "shannon_error": jnp.ptp(shannon + jnp.log(d)),  # equal up to one additive constant
        }

    def _maximiser(self, mdp, cover, points):
        """Claim 2: at d ~ 1/rho the slope of R is the same everywhere, no other point of the simplex is higher."""
        best = maths.unconstrained_maximiser(cover)
        slope = jax.grad(lambda d: maths.R(d, cover))(best)
        others = jax.vmap(lambda d: maths.R(d, cover))(points)
        state = best.sum(-1)
        flow = (1 - mdp.gamma) * mdp.rho + mdp.gamma * jnp.einsum("sa,sap->p", best, mdp.P)
        return {
            "slope_spread": jnp.ptp(slope) / slope.mean(),
            "excess_elsewhere": jnp.maximum(others.max() - maths.R(best, cover), 0.0),
            "flow_violation": 0.5 * jnp.abs(flow - state).sum(),
        }

    def _mixture(self, densities):
        """Claim 4: the printed weights sum to one and give the same density as the recursion."""
        mixture = Mixture.start(densities[0], POLICIES)
        for d in densities[1:]:
            mixture = mixture.add(d, self.eta)
        ages = jnp.arange(POLICIES - 1, -1, -1.0)
        printed = jnp.where(jnp.arange(POLICIES) == 0, (1 - self.eta) ** ages, self.eta * (1 - self.eta) ** ages)
        weighted = jnp.einsum("k,ksa->sa", printed, densities)
        return mixture, {
            "weight_sum_error": jnp.abs(printed.sum() - 1),
            "weight_error": jnp.abs(printed - mixture.weights).max(),
            "density_error": jnp.abs(weighted - mixture.density).max(),
        }

    def _regularity(self, mdp, cover, points):
        """Claim 5: curvature, value and slope of L_lambda at many points, as shares of Proposition 1's constants."""
        objective = lambda d: maths.L_made(mdp, d, cover, self.tau, self.lam)  # noqa: E731
        shape = cover.shape
        flat = lambda x: objective(x.reshape(shape))  # noqa: E731
        curvature = jax.vmap(lambda d: jnp.diagonal(jax.hessian(flat)(d.reshape(-1))))(points[:8])
        values, slopes = jax.vmap(objective)(points), jax.vmap(jax.grad(objective))(points)
        right = Constants.corrected(mdp.n_states, mdp.n_actions, mdp.gamma, self.lam, self.tau)
        printed = Constants.printed(mdp.n_states, mdp.n_actions, mdp.gamma, self.lam, self.tau)
        return {
            "curvature_max": curvature.max(),
            "beta_share": jnp.abs(curvature).max() / right.beta,
            "B_share": values.max() / right.B,
            "gradient_share": jnp.abs(slopes).max() / right.gradient,
            "printed_gradient_share": jnp.abs(slopes).max() / printed.gradient,
        }


def trials(scale: Scale) -> dict[str, Trial]:
    family = Garnet(S=6, A=3, branching=3, gamma=0.9)
    n = choose(scale, smoke=4, demo=20, paper=100)
    return {Label(lam=lam): Identities(family, lam=lam, iterations=n) for lam in (1.0, 0.1, 0.01, 0.0001)}


def _worst(table: Table, metric: str, largest: bool = True) -> float:
    values = np.concatenate([table.curves(one, metric)[1].ravel() for one in table.labels()])
    return float(values.max() if largest else values.min())


def _equal(table: Table, metrics: dict[str, str], *more: Effect) -> Verdict:
    worst = {name: _worst(table, metric) for name, metric in metrics.items()}
    n = sum(table.curves(one, next(iter(metrics.values())))[1].size for one in table.labels())
    effects = (Effect(name, x, unit=f"largest error over {n} random MDPs") for name, x in worst.items())
    return Verdict(max(worst.values()) <= EXACT, (*effects, *more))


def eq6_is_the_gradient(table: Table) -> Verdict:
    return _equal(table, {"relative error of Eq. (6)": "eq6_error"})


def maximiser(table: Table) -> Verdict:
    violation = _worst(table, "flow_violation", largest=False)
    flow = Effect("", violation, unit="least violation of the flow (no policy has that density)")
    return _equal(
        table, {"spread of the gradient at 1/rho": "slope_spread", "higher value elsewhere": "excess_elsewhere"}, flow
    )


def popular_bonuses(table: Table) -> Verdict:
    return _equal(
        table, {"linear gives the count bonus": "linear_error", "Shannon gives -log d + constant": "shannon_error"}
    )


def mixture_weights(table: Table) -> Verdict:
    metrics = {"sum of weights": "weight_sum_error", "weights": "weight_error", "density": "density_error"}
    return _equal(table, metrics)


def regularity(table: Table) -> Verdict:
    """Claim 5 with the corrected constants; the printed bound on the gradient is shown with them."""
    concave = _worst(table, "curvature_max")
    shares = {name: _worst(table, f"{name}_share") for name in ("beta", "B", "gradient")}
    effects = (
        Effect("", concave, unit="largest curvature (negative: concave)"),
        *(Effect(name, x, unit="largest value over the corrected constant") for name, x in shares.items()),
        Effect("gradient", _worst(table, "printed_gradient_share"), unit="largest value over the printed bound"),
    )
    return Verdict(concave < 0 and max(shares.values()) <= 1 + EXACT, effects)


def draw(table: Table) -> list[PaperFigure]:
    """Left: errors of the identities. Right: Proposition 1's quantities as shares of their constants, over lambda."""
    fig, axes = plots.figure(1, 2, height=2.6)
    errors = {"Eq. (6)": "eq6_error", "linear": "linear_error", "Shannon": "shannon_error", "d ~ 1/rho": "slope_spread",
              "weights": "weight_error", "mixture density": "density_error"}  # fmt: skip
    ax = axes[0, 0]
    for i, metric in enumerate(errors.values()):
        values = np.concatenate([table.curves(one, metric)[1].ravel() for one in table.labels()])
        ax.plot(np.maximum(values, 1e-18), np.full(values.size, i), "|", color="black", markersize=7)
    ax.axvline(EXACT, color="black", linestyle=":", linewidth=0.8)
    ax.set(yticks=range(len(errors)), yticklabels=list(errors), xlim=(1e-18, 1e-6))
    ax.invert_yaxis()
    plots.log_axis(ax)
    plots.title(ax, "Identities", x="error (dotted: what counts as equal)")
    ax = axes[0, 1]
    lams = table.tag("lam")
    shares = {"smoothness / beta": ("beta_share", "o-"), "value / B": ("B_share", "s-"), "slope / corrected bound": ("gradient_share", "^-"),
              "slope / printed bound": ("printed_gradient_share", "v--")}  # fmt: skip
    for (text, (metric, mark)), look in zip(shares.items(), ("hoeffding", "bernstein", "made", "inverse"), strict=True):
        top = [table.curves(one, metric)[1].max() for one in table.labels()]
        ax.plot(lams, top, mark, label=text, color=plots.style_of(look).color)
    ax.axhline(1, color="black", linestyle=":", linewidth=0.8)
    for which in "xy":
        plots.log_axis(ax, which)
    plots.title(ax, "Proposition 1", x="lambda", y="largest share")
    with plots.style():
        ax.legend(loc="lower right")
    n = sum(table.curves(one, "eq6_error")[1].size for one in table.labels())
    return [
        PaperFigure(
            "objective",
            fig,
            plots.caption(fig, f"Identities of Section 3 on {n} random MDPs in float64, every draw shown."),
        )
    ]


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    rows = [
        [metric, f"{_worst(table, metric, False):.3g}", f"{_worst(table, metric):.3g}"] for metric in table.metrics()
    ]
    return [("Every measured quantity over all draws", ["quantity", "smallest", "largest"], rows)]


EXPERIMENT = Experiment(
    name="objective",
    figure="eq:bonus_design",
    title="The objective and its gradient",
    about="Equations (4) to (7), the policy mixture and Proposition 1, measured on random MDPs rather than taken on trust.",
    trials=trials,
    seeds=lambda scale: range(choose(scale, smoke=2, demo=10, paper=20)),
    claims=(
        Claim(1, "eq6-is-the-gradient", "Eq. (6) is (1 - gamma) times the gradient of L_k at d_mix", "Eqs. (5), (6)", eq6_is_the_gradient),
        Claim(2, "maximiser", "The maximizer of the regularizer is d ~ 1/rho_cov", "Sec. 3.2", maximiser),
        Claim(3, "popular-bonuses", "A linear regularizer gives count bonuses, Shannon entropy gives -log d", "Sec. 3.2", popular_bonuses),
        Claim(4, "mixture-weights", "The mixture weights sum to one and d_mix follows the recursion", "Sec. 3.2, App. A", mixture_weights),
        Claim(5, "regularity", "L_lambda is concave, smooth and bounded", "Proposition 1", regularity),
    ),
    draw=draw,
    tables=tables,
)  # fmt: skip
