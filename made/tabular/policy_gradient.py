"""Policy gradients on a known MDP: Appendix C's lemmas, the simplex projection, and the four methods of Section 4.2.

The methods take their gradients by autodiff through the linear solve for d^pi, which decides between the two forms of
each lemma kept here. Gradients with respect to theta = pi are compared on the simplex tangent (`tangent`): the lemmas
drop or add a constant in each state, which neither the projection nor the policy sees.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from made.core.config import AT_LEAST_ZERO, check_numbers
from made.tabular.mdp import MDP, check_policy, concrete
from made.tabular.solve import action_value, expected_return, occupancy, policy_value

Policy = Float[Array, "S A"]
Scalar = Float[Array, ""]


def log_barrier(policy: Policy) -> Scalar:
    """RE(pi) = sum_{s,a} log pi(a | s), the relative entropy of Appendix B.2.

    Agarwal et al. (2019), Eq. (12), divide it by S A, which the paper drops: at equal tau it is S A times stronger.
    """
    return jnp.sum(jnp.log(policy))


def policy_entropy(mdp: MDP, policy: Policy) -> Scalar:
    """R(pi) = - E_{(s,a) ~ d^pi} log pi(a | s), Lemma 1 (lemma:policy_entropy_gradient)."""
    return -jnp.sum(occupancy(mdp, policy) * jnp.log(policy))


def density_root(mdp: MDP, policy: Policy) -> Scalar:
    """R(pi) = sum_{s,a} sqrt(d^pi(s, a)), MADE's regulariser on the chain; Lemma 2 (lemma:MADE_gradient).

    Pairs that are never visited add nothing, to the value or to the gradient.
    """
    d = occupancy(mdp, policy)
    return jnp.sum(jnp.where(d > 0, jnp.sqrt(jnp.where(d > 0, d, 1)), 0))


def entropy_gradient(mdp: MDP, policy: Policy, *, printed: bool = False) -> Policy:
    """Lemma 1 as it should read: E_d[ grad log pi * (1 - gamma)^{-1} <d_{s,a}, -log pi> ].

    As printed, with its bracket closed where its proof has it, around both terms, -log pi is added to the inner
    product, which counts t = 0 twice, since d_{s,a} starts there. Read to the letter, the lemma adds the scalar
    -E_d log pi to a vector instead, which on the simplex tangent is nothing.
    """
    return _lemma(mdp, policy, -jnp.log(policy), printed)


def made_gradient(mdp: MDP, policy: Policy, *, printed: bool = False) -> Policy:
    """Lemma 2 as it should read: (1/2) E_d[ grad log pi * (1 - gamma)^{-1} <d_{s,a}, 1 / sqrt(d)> ].

    As printed, 1 / sqrt(d) is added to the inner product, which counts t = 0 twice, since d_{s,a} starts there.
    """
    return _lemma(mdp, policy, occupancy(mdp, policy) ** -0.5, printed) / 2


def _lemma(mdp: MDP, policy: Policy, f: Policy, printed: bool) -> Policy:
    """E_d[ grad log pi * (1 - gamma)^{-1} <d_{s,a}, f> ] for theta = pi, where grad log pi(a | s) is 1 / pi at (s, a).

    The inner product is the action value of pi when f is the reward; as printed, f is added to it.
    """
    rewarded = mdp.with_reward(f)
    weight = action_value(rewarded, policy_value(rewarded, policy))
    return occupancy(mdp, policy) / policy * (weight + f if printed else weight)


def tangent(gradient: Float[Array, "*b A"]) -> Float[Array, "*b A"]:
    """The part of a gradient along the simplex of each state: its entries less their mean over actions."""
    return gradient - jnp.mean(gradient, -1, keepdims=True)


def project_simplex(theta: Float[Array, "*b A"], floor: Scalar | float = 0.0) -> Float[Array, "*b A"]:
    """The nearest point, in Euclidean distance, of {x : sum x = 1, x >= floor}, for each row.

    x = floor + max(theta - floor - t, 0) with t such that x sums to one, found exactly by sorting.
    """
    A = theta.shape[-1]
    if (known := concrete(floor)) is not None and not ((known >= 0) & (A * known <= 1)).all():
        raise ValueError(f"floor is {floor}, but {A} actions leave room for one between 0 and {1 / A:g}.")

    def project(y: Float[Array, "A"]) -> Float[Array, "A"]:
        ranked = -jnp.sort(-y)
        excess = (jnp.cumsum(ranked) - (1 - A * floor)) / jnp.arange(1, A + 1, dtype=y.dtype)
        above = jnp.maximum(jnp.sum(ranked > excess), 1)  # how many entries stay above the floor
        return floor + jnp.maximum(y - excess[above - 1], 0)

    return jnp.vectorize(project, signature="(a)->(a)")(theta - floor)


class PolicyGradient(eqx.Module):
    """Gradient ascent on J(pi) + tau_k (w_re RE + w_e E / (1 - gamma) + w_made sum sqrt(d)), Appendix B.2.

    tau_k = tau / sqrt(k). The weights are leaves, so that all methods are lanes of one compiled program;
    `PolicyGradient.named` gives those of the paper. Under "simplex", pi = theta and each step is projected onto
    {theta >= floor}; under "softmax", theta are logits and the floor is not used.

    Differs from the paper: MADE's sum enters with a plus; Appendix B.2 prints a minus, against Eqs. (1) and (4), which
    "pg+made printed" has. The "tabular softmax parameterization" there is the simplex of Figure 6. eta, floor and the
    start are not given. Use float64: on the chain d falls below the smallest float32.

    >>> from made.tabular.mdp import uniform_policy
    >>> from made.tabular.families import Chain
    >>> chain = Chain(H=3).draw()
    >>> method = PolicyGradient.named("pg+made", eta=10.0, parameterisation="softmax")
    >>> policy, returns = method.ascend(chain, uniform_policy(chain), 20)
    >>> bool(returns[-1] > 10 * returns[0])
    True
    """

    eta: float = 0.1
    tau: float = 0.1
    floor: float = 1e-8
    w_re: float = 0.0
    w_e: float = 0.0
    w_made: float = 0.0
    parameterisation: str = eqx.field(static=True, default="simplex")

    def __check_init__(self):
        if self.parameterisation not in ("simplex", "softmax"):
            raise ValueError(f"parameterisation is {self.parameterisation!r}; it can be 'simplex' or 'softmax'.")
        check_numbers(self, {AT_LEAST_ZERO: ("eta", "tau", "floor")})
        floor, used = concrete(self.floor), [concrete(w) for w in (self.w_re, self.w_e, self.w_made)]
        blows_up = any(w is not None and (w != 0).any() for w in used)
        if self.parameterisation == "simplex" and floor is not None and (floor == 0).any() and blows_up:
            raise ValueError("floor is 0, where the gradient is infinite: give one above 0, such as 1e-8.")

    @classmethod
    def named(cls, method: str, **settings) -> "PolicyGradient":
        """The method of Section 4.2 by its name in the paper's figure, with any other field set by name."""
        if method not in METHODS:
            raise ValueError(f"There is no method {method!r}; there are: {', '.join(METHODS)}.")
        return cls(**dict(zip(("w_re", "w_e", "w_made"), METHODS[method], strict=True)), **settings)

    def init(self, mdp: MDP, policy: Policy) -> Policy:
        """The parameters theta of a starting policy."""
        policy = project_simplex(check_policy(mdp, policy), self.floor)
        return policy if self.parameterisation == "simplex" else jnp.log(policy)

    def policy(self, theta: Policy) -> Policy:
        """pi_theta."""
        return theta if self.parameterisation == "simplex" else jax.nn.softmax(theta, -1)

    def objective(self, mdp: MDP, theta: Policy, k: Int[Array, ""] | int) -> Scalar:
        """L(pi_theta) at gradient step k = 1, 2, ..."""
        policy = self.policy(theta)

        def seen(weight: Scalar | float) -> Policy:  # at weight 0 the slope may be infinite, and 0 * inf is not 0
            return jnp.where(weight != 0, policy, 1 / policy.shape[-1])

        bonus = (
            self.w_re * log_barrier(seen(self.w_re))
            + self.w_e * policy_entropy(mdp, seen(self.w_e)) / (1 - mdp.gamma)
            + self.w_made * density_root(mdp, seen(self.w_made))
        )
        return expected_return(mdp, policy) + self.tau / jnp.sqrt(jnp.asarray(k, theta.dtype)) * bonus

    def update(self, mdp: MDP, theta: Policy, k: Int[Array, ""] | int) -> Policy:
        """One ascent step with the exact gradient, projected where theta is the policy itself."""
        theta = theta + self.eta * jax.grad(self.objective, argnums=1)(mdp, theta, k)
        return project_simplex(theta, self.floor) if self.parameterisation == "simplex" else theta

    def ascend(self, mdp: MDP, policy: Policy, steps: int) -> tuple[Policy, Float[Array, "steps"]]:
        """The policy after so many steps, and J(pi) after each."""

        def body(theta: Policy, k: Int[Array, ""]) -> tuple[Policy, Scalar]:
            theta = self.update(mdp, theta, k)
            return theta, expected_return(mdp, self.policy(theta))

        theta, returns = jax.lax.scan(body, self.init(mdp, policy), jnp.arange(1, steps + 1))
        return self.policy(theta), returns


METHODS = {  # weights of RE, E and MADE
    "pg": (0.0, 0.0, 0.0),
    "pg+re": (1.0, 0.0, 0.0),
    "pg+e": (0.0, 1.0, 0.0),
    "pg+made": (0.0, 0.0, 1.0),
    "pg+made printed": (0.0, 0.0, -1.0),
}
