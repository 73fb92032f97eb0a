"""V-trace against the definition, written as a loop, and against rlax."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.agents.vtrace import vtrace

RLAX = Path(__file__).parent / "data" / "rlax_vtrace.npz"


def by_hand(log_ratio, reward, discount, value, bootstrap, rho=1.0, c=1.0, rho_gradient=1.0, trace=1.0):
    """The sums of Section 4.1 of the paper, term by term."""
    length, ratio = len(reward), np.exp(log_ratio)
    values = np.append(value, bootstrap)
    deltas = [min(rho, ratio[t]) * (reward[t] + discount[t] * values[t + 1] - values[t]) for t in range(length)]
    targets = []
    for start in range(length):
        target, weight = values[start], 1.0
        for t in range(start, length):
            target += weight * deltas[t]
            weight *= discount[t] * trace * min(c, ratio[t])
        targets.append(target)
    ahead = [*targets[1:], bootstrap]
    gains = [min(rho_gradient, ratio[t]) * (reward[t] + discount[t] * ahead[t] - values[t]) for t in range(length)]
    return np.array(targets), np.array(gains)


def stream(seed: int, length: int = 9):
    rng = np.random.default_rng(seed)
    log_ratio, reward, value = rng.normal(size=(3, length))
    discount = 0.9 * (rng.random(length) > 0.25)  # some episodes end on the way
    return [np.float32(x) for x in (log_ratio, reward, discount, value, rng.normal())]


@pytest.mark.parametrize("clips", [{}, {"rho": 2.0, "c": 0.5, "rho_gradient": 1.5, "trace": 0.9}])
def test_equals_the_sums_of_the_paper(clips):
    for seed in range(5):
        ours = vtrace(*map(jnp.asarray, stream(seed)), **clips)
        for mine, wanted in zip(ours, by_hand(*stream(seed), **clips), strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=2e-5, atol=2e-6)


def test_on_policy_without_ends_it_is_the_discounted_return():
    _, reward, _, value, bootstrap = stream(3)
    discount = np.full(9, 0.9, np.float32)
    wanted = sum(0.9**t * reward[t] for t in range(9)) + 0.9**9 * bootstrap
    ours = vtrace(*map(jnp.asarray, (np.zeros(9, np.float32), reward, discount, value, bootstrap)))
    np.testing.assert_allclose(ours.target[0], wanted, rtol=1e-5)


def test_nothing_flows_back_over_the_end_of_an_episode():
    parts = [jnp.asarray(x) for x in stream(0)]
    parts[2] = parts[2].at[4].set(0.0)
    before, after = vtrace(*parts), vtrace(parts[0], parts[1].at[5:].add(7.0), *parts[2:])
    for mine, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(mine[:5], other[:5])
        assert (mine[5:] != other[5:]).any()


def test_streams_side_by_side_are_each_their_own():
    many = [jnp.stack(x, -1) for x in zip(*(stream(seed) for seed in range(3)), strict=True)]
    together = vtrace(*many)
    for i in range(3):
        for whole, alone in zip(together, vtrace(*map(jnp.asarray, stream(i))), strict=True):
            np.testing.assert_allclose(whole[:, i], alone, rtol=1e-6)


def test_equals_rlax():
    """What rlax.vtrace_td_error_and_advantage gave for these numbers; data/rlax_vtrace.py made the file."""
    stored = np.load(RLAX, allow_pickle=False)
    for case in range(stored["reward"].shape[0]):
        given = [jnp.asarray(stored[name][case]) for name in ("log_ratio", "reward", "discount", "value")]
        ours = vtrace(*given, jnp.asarray(stored["bootstrap"][case]), rho=float(stored["rho"][case]))
        ours = jax.tree.map(np.asarray, ours)
        np.testing.assert_allclose(ours.target - given[3], stored["errors"][case], rtol=2e-5, atol=3e-6)
        np.testing.assert_allclose(ours.advantage, stored["advantage"][case], rtol=2e-5, atol=3e-6)
