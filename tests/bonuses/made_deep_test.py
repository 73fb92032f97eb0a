"""Deep MADE and the released one: claim 16 on a tiny problem, the authors' normaliser, the collapse of their VAE."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bonuses.programs import fed, quick, read

from made.bonuses.densities.recent_counts import HashedRecentCounts, Standardized
from made.bonuses.densities.vae import VAE
from made.bonuses.made import MADE
from made.bonuses.release import (
    FactorNormalized,
    OrthogonalRND,
    ReleasedRND,
    ReleasedVAE,
    made_released,
    running_variance,
    update_variance,
)
from made.bonuses.rnd import RND
from made.core import Space, Spec, Transition
from made.nets.fit import Fit

TABLE = Spec(Space((), jnp.int32, 4), Space((), jnp.int32, 2))
VECTOR = Spec(Space((3,), jnp.float32), Space((1,), jnp.float32))
IMAGE = Spec(Space((17, 20, 6), jnp.uint8), Space((2,), jnp.float32))


def step(obs, action=None) -> Transition:
    obs = jnp.asarray(obs)
    zeros = jnp.zeros(obs.shape[:2])
    action = zeros.astype(jnp.int32) if action is None else jnp.asarray(action)
    return Transition(obs, action, zeros, obs, zeros > 0, zeros > 0)


def small_vae(**more) -> VAE:
    return VAE(40, capacity=40, latent=2, width=8, fit=Fit(1e-2, steps=40, batch=32), fresh=0, **more)


def deep(**more) -> MADE:
    return MADE(RND(embedding=4, width=8, fit=Fit(3e-3, steps=40)), Standardized(small_vae(**more)))


EVERY = step(np.arange(4)[:, None])  # one transition from every state


@pytest.fixture(scope="module")
def after():
    """Deep MADE once it has seen all four states, then state 0 often, then state 1 often and state 0 no more."""
    bonus = deep()
    mixed, first, then = (step(np.broadcast_to(x, (20, 2))) for x in (np.arange(20)[:, None] % 4, 0, 1))
    stages = [fed(bonus, TABLE, b)[0] for b in ([mixed], [mixed] + [first] * 4)]
    state, metrics = fed(bonus, TABLE, [mixed] + [first] * 4 + [then] * 4)
    return bonus, [*stages, state], metrics


def test_deep_made_falls_with_visits_and_favours_what_was_visited_long_ago(after):
    """Claim 16. State 0 and state 1 are visited equally often in the end, state 0 longer ago."""
    bonus, stages, _ = after
    paid = [np.asarray(read(bonus, state, EVERY))[:, 0] for state in stages]
    assert paid[1][0] < 0.5 * paid[0][0]  # falls with visits
    assert paid[1][0] < paid[1][[1, 2, 3]].min()  # and below what was visited less
    covers = [np.asarray(read(bonus.cover, state.cover, EVERY))[:, 0] for state in stages]
    factor = [b / c for b, c in zip(paid, covers, strict=True)]
    assert factor[2][0] > 1.3 * factor[2][1]  # at equal visits, long ago pays more than recent
    assert factor[2][0] > factor[1][0]  # and it rose while state 0 was away


def test_deep_made_is_cover_times_the_clipped_factor_and_a_pure_read(after):
    bonus, stages, _ = after
    state = stages[-1]
    before = jax.tree.map(np.array, state)
    paid = read(bonus, state, EVERY)
    raw = read(bonus.recent.density, state.recent.inner, EVERY)
    seen = state.recent.moments
    z = (raw - seen.mean) / np.maximum(np.sqrt(seen.squares / seen.count), 0.1)
    cover = read(bonus.cover, state.cover, EVERY)
    assert np.allclose(paid, cover * np.exp(-0.5 * np.clip(z, -3, 3)), rtol=1e-5)
    assert np.array_equal(paid, read(bonus, state, EVERY))
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (before, state)), strict=True))


def test_deep_made_tells_how_its_parts_fare(after):
    _, _, metrics = after
    vae = {f"vae/{name}" for name in ("loss", "kl", "reconstruction", "active", "collapsed")}
    factor = {f"factor/{name}" for name in ("log_std", "raw_log_std", "clipped")}
    assert set(metrics) == {"rnd/loss"} | vae | factor
    assert all(jnp.shape(x) == () and np.isfinite(x) for x in metrics.values())
    assert 0 <= metrics["factor/log_std"] <= 1.5 and metrics["factor/clipped"] < 0.2  # the last batch is of one state
    assert metrics["factor/raw_log_std"] > 0


def test_the_named_forms_have_the_published_parts():
    plain, counts, theirs = MADE.deep(), MADE.hashed(500), made_released()
    assert isinstance(plain.cover, RND) and isinstance(plain.recent.density, VAE)
    assert plain.recent.density.window == plain.recent.density.capacity == 10_000
    assert isinstance(counts.recent.density, HashedRecentCounts) and counts.recent.density.window == 500
    assert isinstance(theirs.cover, OrthogonalRND) and theirs.recent.normaliser == "released"
    assert theirs.recent.density.window == 10_000 and theirs.recent.density.latent == 128
    assert set(plain.reads) == {"obs", "action", "next_obs"} == set(theirs.reads)


def observed(deviation, updates, normaliser):
    """The running deviation after many batches of one fixed spread."""
    batch = jnp.asarray(1.05 + deviation * np.tile([-1.0, 1.0], 256) * np.sqrt(511 / 512))
    take = jax.jit(lambda stats, _: (update_variance(stats, batch, normaliser), None))
    stats, _ = jax.lax.scan(take, running_variance(), None, updates)
    return float(np.sqrt(stats.variance))


def test_the_released_deviation_is_inflated_by_one_over_the_number_of_batches():
    """The slip in the authors' running statistics: sqrt(variance + 1/n), to first order in 1/n."""
    for updates in (10, 100, 1000, 10_000):
        for deviation in (0.001, 0.04, 0.5):
            n = updates
            found = observed(deviation, n, "released")
            assert np.isclose(found, np.sqrt(deviation**2 + 1 / n - 1 / n**2), rtol=1e-3)
            assert np.isclose(found, np.sqrt(deviation**2 + 1 / n), rtol=0.06)
            assert np.isclose(observed(deviation, n, "correct"), deviation, rtol=2e-2, atol=1e-4 * (n < 1000) + 2e-4)
    readings = [observed(0.001, n, "released") for n in (10, 100, 1000, 10_000)]
    assert np.allclose(readings, [0.30, 0.10, 0.032, 0.010], atol=0.001)  # the bonus grows as this falls


def test_running_statistics_start_as_released_and_take_the_unbiased_variance():
    batch = jnp.array([1.0, 2.0, 4.0])
    stats = update_variance(running_variance(), batch, "released")
    assert np.isclose(stats.variance, (1e-4 + 7 / 3 * 3 + (7 / 3) ** 2 * 3e-4 / 3.0001) / 3.0001, rtol=1e-5)
    assert np.isclose(stats.mean, 7 / 3 + 3 / 3.0001)
    assert np.isclose(update_variance(running_variance(), batch, "correct").mean, 7 / 3, rtol=1e-4)
    with pytest.raises(ValueError, match="'realeased'"):
        FactorNormalized(ReleasedVAE(), "realeased")


def test_the_released_networks_start_orthogonal_all_but_the_target_of_the_plainer_form():
    """Orthogonal, no bias; only the random encoder and the VAE keep framework defaults."""

    def is_orthogonal(layer) -> bool:
        w, bias = np.asarray(layer.weight, np.float64), np.asarray(layer.bias)
        small = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
        return np.allclose(small, np.eye(len(small)), atol=1e-4) and not bias.any()

    for kind in (OrthogonalRND, ReleasedRND):
        state = kind(width=8, hidden=6, features=4).init(jax.random.key(0), TABLE)
        assert all(map(is_orthogonal, state.predictor.params.layers)) and len(state.predictor.params.layers) == 4
        assert all(is_orthogonal(layer) == (kind is OrthogonalRND) for layer in state.target.layers)
        assert not is_orthogonal(state.encoder.dense) and len(state.target.layers) == 2


def test_no_pair_is_paid_infinity_by_the_released_vae():
    """The logarithm of the posterior's variance stays within [-14, 4] and the loss of a pair ends at 160."""
    density, batch = (
        ReleasedVAE(80, capacity=80, latent=4, width=16),
        step(np.zeros((3, 1), int), np.zeros((3, 1), int)),
    )
    state = density.init(jax.random.key(0), TABLE)
    for bias, (low, high) in ((-1e3, (26.0, 27.0)), (10.0, (4 * 24.8, 159.9)), (1e3, (4 * 24.8, 159.9))):
        # Four latents: each is charged (e^x - 1 - x) / 2, 6.5 nats at -14 and 24.8 at 4, and what its mean is.
        wide = lambda net, bias=bias: eqx.tree_at(lambda n: n.log_variance.bias, net, jnp.full(4, bias))  # noqa: E731
        found = -density.log_density(
            state._replace(learned=state.learned._replace(params=wide(state.learned.params))), batch
        )
        assert ((found > low) & (found < high)).all(), (bias, found)
    far = eqx.tree_at(lambda n: n.mean.bias, state.learned.params, jnp.full(4, 1e3))
    assert np.allclose(density.log_density(state._replace(learned=state.learned._replace(params=far)), batch), -160.0)


RELEASED_RND = ReleasedRND(Fit(2e-4, batch=16), width=8, hidden=8, features=4)


def released(normaliser="released", window=80, fit=Fit(5e-3, steps=300, batch=64)) -> MADE:
    density = ReleasedVAE(window, capacity=window, latent=4, width=16, fit=fit)
    return made_released(normaliser, cover=RELEASED_RND, density=density)


@pytest.fixture(scope="module")
def collapsed():
    """The released bonus after training on pairs that are all equally likely."""
    rng = np.random.default_rng(0)
    batch = step(rng.integers(0, 4, (20, 4)), rng.integers(0, 2, (20, 4)))
    return batch, released(), *fed(released(), TABLE, [batch] * 3)


def test_the_released_vae_collapses_and_its_density_is_the_distance_from_the_mean(collapsed):
    """Posterior collapse is the optimum of that loss: nothing of the pair passes through the latent."""
    batch, bonus, state, metrics = collapsed
    assert metrics["vae/collapsed"] == 1 and metrics["vae/active"] == 0 and metrics["vae/kl"] < 0.01
    one_hot = np.concatenate([np.eye(4)[batch.obs], np.eye(2)[batch.action]], -1)
    distance = ((one_hot - one_hot.reshape(-1, 6).mean(0)) ** 2).mean(-1)
    raw = np.asarray(read(bonus.recent.density, state.recent.inner, batch))
    assert np.allclose(-raw, distance, atol=0.02)


def test_a_summed_likelihood_does_not_collapse_on_the_same_pairs(collapsed):
    density = VAE(80, capacity=80, latent=4, width=16, fit=Fit(5e-3, steps=300, batch=64), fresh=0)
    _, metrics = fed(density, TABLE, [collapsed[0]] * 3)
    assert metrics["vae/collapsed"] == 0 and metrics["vae/kl"] > 0.1


def test_the_released_bonus_is_rnd_times_the_factor_over_its_deviation(collapsed):
    batch, bonus, state, metrics = collapsed
    error = read(bonus.cover, state.cover, batch)
    factor = np.exp(-0.5 * read(bonus.recent.density, state.recent.inner, batch))
    divisor = np.sqrt(state.recent.stats.variance)
    assert np.allclose(read(bonus, state, batch), error * factor / divisor, rtol=1e-4)
    assert np.allclose(read(released("none"), state, batch), error * factor, rtol=1e-4)
    assert set(metrics) >= {"factor/mean", "factor/log_std", "factor/divisor", "vae/collapsed", "rnd/loss"}
    assert np.isclose(metrics["factor/divisor"], divisor)
    assert metrics["factor/log_std"] < 0.05  # nearly a constant: what is left is RND


def test_released_made_on_frames_and_actions():
    """The convolutional form: the last frame of the next observation for RND, frame and action planes for the VAE."""
    rng = np.random.default_rng(0)
    frames, action = rng.integers(0, 255, (2, 2, 17, 20, 6)), rng.uniform(-1, 1, (2, 2, 2))
    batch = step(frames.astype(np.uint8), action.astype(np.float32))
    bonus = released(window=8, fit=Fit(1e-3, batch=4))
    state, metrics = fed(bonus, IMAGE, [batch])
    network = state.recent.inner.learned.params
    planes = np.asarray(network.inputs(network.outline.keep(batch.obs[0, 1], batch.action[0, 1]), ((), ())))
    assert planes.shape == (17, 20, 5) and np.allclose(planes[..., :3], frames[0, 1, ..., 3:] / 255)
    assert (planes[..., 3:] == np.asarray(batch.action[0, 1])).all()
    older = batch._replace(next_obs=batch.next_obs.at[..., :3].set(0))  # of two frames RND sees the last
    newer = batch._replace(next_obs=batch.next_obs.at[..., 3:].set(0))
    paid = [np.asarray(read(bonus, state, one)) for one in (batch, older, newer)]
    assert np.isfinite(metrics["vae/loss"]) and np.allclose(paid[0], paid[1]) and not np.allclose(paid[0], paid[2])


def test_the_pairs_that_statistics_were_made_of_are_not_read_again_to_be_paid():
    """A batch from a replay, [1, B]: one program, in which the compiler finds that both readings are the same."""
    density, batch = (
        released(window=8, fit=Fit(1e-3, batch=4)).recent,
        step(np.zeros((1, 6, 17, 20, 6), np.uint8), np.zeros((1, 6, 2))),
    )
    state = jax.eval_shape(lambda key: density.init(key, IMAGE), jax.random.key(0))

    def learn(state, batch, key):
        return density.update(state, batch, key)[0]

    def learn_and_pay(state, batch, key):
        after = learn(state, batch, key)
        return after, density.log_density(after, batch)

    programs = [quick(call).lower(state, batch, jax.random.key(0)).compile() for call in (learn, learn_and_pay)]
    counts = [program.as_text().count(" convolution(") for program in programs]
    assert counts[0] == counts[1] > 0


def test_extreme_observations_pay_finite_bonuses():
    bonus, far = released(fit=Fit(1e-3, batch=16)), np.full((6, 2, 3), 1e30, np.float32)
    usual = step(np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32), np.zeros((6, 2, 1), np.float32))
    extreme = step(far, np.full((6, 2, 1), -1e30, np.float32))
    state, metrics = fed(bonus, VECTOR, [usual, extreme, usual])
    assert all(np.isfinite(read(bonus, state, one)).all() for one in (usual, extreme))
    assert all(np.isfinite(x) for x in metrics.values())
