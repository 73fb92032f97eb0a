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
        closed, bonus = maths.reward_made(mdp, d, cover, self.tau, 0.0), 1 / jnp.sqrt(cover)
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
        flow = (1 - mdp.gamma) * mdp.rho + mdp.gamma * jnp.einsum("sa,sap->p", best, mdp.P)
        return {
            "slope_spread": jnp.ptp(slope) / slope.mean(),
            "excess_elsewhere": jnp.maximum(others.max() - maths.R(best, cover), 0.0),
            "flow_violation": 0.5 * jnp.abs(flow - best.sum(-1)).sum(),
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
        flat = lambda x: objective(x.reshape(cover.shape))  # noqa: E731
        curvature = jax.vmap(lambda d: jnp.diagonal(jax.hessian(flat)(d.reshape(-1))))(points[:8])
        values, slopes = jax.vmap(objective)(points), jax.vmap(jax.grad(objective))(points)
        given = (mdp.n_states, mdp.n_actions, mdp.gamma, self.lam, self.tau)
        right, printed = Constants.corrected(*given), Constants.printed(*given)
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


def _draws(table: Table, metric: str) -> np.ndarray:
    """A quantity on all random MDPs."""
    return np.concatenate([table.curves(one, metric)[1].ravel() for one in table.labels()])


def _equal(table: Table, metrics: dict[str, str], *more: Effect) -> Verdict:
    errors = {name: _draws(table, metric) for name, metric in metrics.items()}
    unit = f"largest error over {next(iter(errors.values())).size} random MDPs"
    effects = [Effect(name, float(x.max()), unit=unit) for name, x in errors.items()]
    return Verdict(max(x.value for x in effects) <= EXACT, (*effects, *more))


def eq6_is_the_gradient(table: Table) -> Verdict:
    return _equal(table, {"relative error of Eq. (6)": "eq6_error"})


def maximiser(table: Table) -> Verdict:
    violation = float(_draws(table, "flow_violation").min())
    flow = Effect("", violation, unit="least violation of the flow (no policy has that density)")
    metrics = {"spread of the gradient at 1/rho": "slope_spread", "higher value elsewhere": "excess_elsewhere"}
    return _equal(table, metrics, flow)


def popular_bonuses(table: Table) -> Verdict:
    metrics = {"linear gives the count bonus": "linear_error", "Shannon gives -log d + constant": "shannon_error"}
    return _equal(table, metrics)


def mixture_weights(table: Table) -> Verdict:
    metrics = {"sum of weights": "weight_sum_error", "weights": "weight_error", "density": "density_error"}
    return _equal(table, metrics)


def regularity(table: Table) -> Verdict:
    """Claim 5 with the corrected constants; the printed bound on the gradient is shown with them."""
    names = {"beta": "beta_share", "B": "B_share", "gradient": "gradient_share", "": "curvature_max"}
    shares = {name: float(_draws(table, metric).max()) for name, metric in names.items()}
    concave = shares.pop("")
    printed = float(_draws(table, "printed_gradient_share").max())
    effects = (
        Effect("", concave, unit="largest curvature (negative: concave)"),
        *(Effect(name, x, unit="largest value over the corrected constant") for name, x in shares.items()),
        Effect("gradient", printed, unit="largest value over the printed bound"),
    )
    return Verdict(concave < 0 and max(shares.values()) <= 1 + EXACT, effects)


def draw(table: Table) -> list[PaperFigure]:
    """Left: errors of the identities. Right: Proposition 1's quantities as shares of their constants, over lambda."""
    fig, ((left, right),) = plots.figure(1, 2, height=2.6)
    errors = {"Eq. (6)": "eq6_error", "linear": "linear_error", "Shannon": "shannon_error", "d ~ 1/rho": "slope_spread",
              "weights": "weight_error", "mixture density": "density_error"}  # fmt: skip
    for i, metric in enumerate(errors.values()):
        values = _draws(table, metric)
        left.plot(np.maximum(values, 1e-18), np.full(values.size, i), "|", color="black", markersize=7)
    left.axvline(EXACT, color="black", linestyle=":", linewidth=0.8)
    left.set(yticks=range(len(errors)), yticklabels=list(errors), xlim=(1e-18, 1e-6))
    left.invert_yaxis()
    plots.log_axis(left)
    plots.title(left, "Identities", x="error (dotted: what counts as equal)")
    shares = {
        "smoothness / beta": ("beta_share", "o-", "hoeffding"),
        "value / B": ("B_share", "s-", "bernstein"),
        "slope / corrected bound": ("gradient_share", "^-", "made"),
        "slope / printed bound": ("printed_gradient_share", "v--", "inverse"),
    }
    for text, (metric, mark, look) in shares.items():
        top = [table.curves(one, metric)[1].max() for one in table.labels()]
        right.plot(table.tag("lam"), top, mark, label=text, color=plots.style_of(look).color)
    right.axhline(1, color="black", linestyle=":", linewidth=0.8)
    for which in "xy":
        plots.log_axis(right, which)
    plots.title(right, "Proposition 1", x="lambda", y="largest share")
    with plots.style():
        right.legend(loc="lower right")
    n = _draws(table, "eq6_error").size
    text = f"Identities of Section 3 on {n} random MDPs in float64, every draw shown."
    return [PaperFigure("objective", fig, plots.caption(fig, text))]


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    draws = {metric: _draws(table, metric) for metric in table.metrics()}
    rows = [[metric, f"{x.min():.3g}", f"{x.max():.3g}"] for metric, x in draws.items()]
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
