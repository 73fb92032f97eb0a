"""Schedules: a bonus coefficient tau_k as a function of the iteration k = 1, 2, ..."""

import abc

import jax.numpy as jnp
from jaxtyping import Array, Float

from made.core.config import AT_LEAST_ZERO, SHARE, Configuration, setting


class Schedule(Configuration):
    """A number for each iteration, made of numbers that are not negative."""

    @abc.abstractmethod
    def __call__(self, k: Array) -> Float[Array, ""]: ...


class Constant(Schedule):
    """tau_k = value: the deep experiments of Section 5."""

    value: float = setting(1.0, AT_LEAST_ZERO)

    def __call__(self, k: Array) -> Float[Array, ""]:
        return jnp.asarray(self.value, float)


class Power(Schedule):
    """tau_k = value / k^c: Theorem 1 (c = 2 in its proof) and the chain (value = 0.1, c = 1/2, Appendix B.2)."""

    value: float = setting(1.0, AT_LEAST_ZERO)
    c: float = setting(0.5, AT_LEAST_ZERO)

    def __call__(self, k: Array) -> Float[Array, ""]:
        return self.value / jnp.asarray(k, float) ** self.c


class Exponential(Schedule):
    """tau_k = value (1 - rho)^k: the decay of RE3."""

    value: float = setting(1.0, AT_LEAST_ZERO)
    rho: float = setting(1e-5, SHARE)

    def __call__(self, k: Array) -> Float[Array, ""]:
        return self.value * (1 - self.rho) ** jnp.asarray(k, float)
