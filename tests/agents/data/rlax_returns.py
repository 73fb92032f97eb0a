"""Writes rlax_returns.npz: V-trace, GAE and lambda-returns of rlax on random data.

Run by an interpreter that has rlax (0.1.9). rlax imports distrax, which does not import with JAX 0.10; none of these
functions uses it, so a stub in `sys.modules` will do.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import rlax  # type: ignore

rng, length, cases = np.random.default_rng(0), 12, []
for case in range(6):
    log_ratio, reward, value = rng.normal(size=(3, length)).astype(np.float32)
    discount = np.float32(0.95 * (rng.random(length) > 0.2))
    bootstrap, rho = np.float32(rng.normal()), [1.0, 2.0][case % 2]
    following = np.append(value[1:], bootstrap)
    given = [jnp.asarray(x) for x in (value, following, reward, discount, np.exp(log_ratio))]
    out = rlax.vtrace_td_error_and_advantage(*given, clip_rho_threshold=rho)
    lam, values = [0.0, 0.7, 0.95, 1.0, 0.5, 0.9][case], np.append(value, bootstrap)
    gae = rlax.truncated_generalized_advantage_estimation(given[2], given[3], lam, jnp.asarray(values))
    returns = rlax.lambda_returns(given[2], given[3], given[1], lam)
    case = {"log_ratio": log_ratio, "reward": reward, "discount": discount, "value": value, "bootstrap": bootstrap}
    case |= {"rho": rho, "errors": np.asarray(out.errors), "advantage": np.asarray(out.pg_advantage)}
    cases.append({**case, "lam": lam, "gae": np.asarray(gae), "lambda_returns": np.asarray(returns)})
stacked = {name: np.stack([case[name] for case in cases]).astype(np.float32) for name in cases[0]}
np.savez(Path(__file__).with_name("rlax_returns.npz"), allow_pickle=False, **stacked)
