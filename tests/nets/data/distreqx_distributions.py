"""Writes distreqx_distributions.npz: log-probabilities, entropies and divergences of distreqx on random parameters.

Run by an interpreter that has distreqx (0.0.3).
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from distreqx import bijectors, distributions  # type: ignore

rng = np.random.default_rng(0)
mean, std, logits = rng.normal(size=(8, 3)), rng.uniform(0.1, 1.5, size=(8, 3)), rng.normal(size=(8, 3))
chosen, action = rng.integers(3, size=8), np.tanh(mean + std * rng.normal(size=(8, 3)))
data = {"mean": mean, "std": std, "logits": logits, "action": action}
data = {name: np.float32(x) for name, x in data.items()} | {"chosen": np.int32(chosen)}


def one(mean, std, logits, action, chosen):
    normal, standard = distributions.Normal(mean, std), distributions.Normal(jnp.zeros(3), jnp.ones(3))
    tanh = distributions.Transformed(distributions.Independent(normal), bijectors.Block(bijectors.Tanh(), 1))
    categorical = distributions.Categorical(logits=logits)
    return {
        "tanh_normal_log_prob": tanh.log_prob(action),
        "normal_log_prob": normal.log_prob(action).sum(),
        "normal_entropy": normal.entropy().sum(),
        "normal_kl": normal.kl_divergence(standard).sum(),
        "categorical_log_prob": categorical.log_prob(chosen),
        "categorical_entropy": categorical.entropy(),
    }


data |= {name: np.asarray(x) for name, x in jax.vmap(one)(**{k: jnp.asarray(x) for k, x in data.items()}).items()}
np.savez(Path(__file__).with_name("distreqx_distributions.npz"), allow_pickle=False, **data)
