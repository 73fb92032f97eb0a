"""RND, NovelD and BeBold against their formulas in NumPy; RND pays less for what was seen more."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bonuses.by_hand import discrete, embedded, episodes, steps, stream
from contracts.settings import Drift, Lamp, Walk, collected, experience, quick, rnd, small_grid, small_lock

from made.bonuses import RIDE, RND, Count, HashedCount, Normalized, NovelD, make_bonus
from made.core.config import to_dict
from made.nets.fit import Fit


@pytest.mark.parametrize(
    ("source", "on"), [(small_lock, "next_obs"), (small_grid, "obs"), (Drift, "obs"), (Lamp, "next_obs")]
)
def test_pays_the_norm_of_the_gap_between_the_two_networks(source, on):
    bonus = rnd(on=on)
    _, state, batch, _ = experience(bonus, source())
    paid, squared = (quick(b.reward)(state, batch) for b in (bonus, rnd(on=on, squared=True)))
    for t, n, step in list(steps(batch))[:8]:
        obs = getattr(step, on)
        obs = obs["image"] if isinstance(obs, dict) else obs
        gap = embedded(state.target, obs) - embedded(state.predictor.params, obs)
        assert np.isclose(paid[t, n], np.linalg.norm(gap), rtol=1e-4)
        assert np.isclose(squared[t, n], (gap**2).sum(), rtol=1e-4)


def test_learns_the_mean_squared_gap_and_leaves_the_target_alone():
    bonus = rnd()
    _, state, batch, _ = experience(bonus, Drift())
    after, metrics = quick(bonus.update)(state, batch, jax.random.key(1))
    nets = state.target, state.predictor.params
    gaps = [embedded(nets[0], step.next_obs) - embedded(nets[1], step.next_obs) for _, _, step in steps(batch)]
    assert np.isclose(metrics["rnd/loss"], np.mean(np.square(gaps)), rtol=1e-4)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (state.target, after.target)), strict=True))


def test_the_error_falls_with_visits_and_orders_states_by_them():
    """State s is visited 4^s times a batch, s = 0..3, and state 4 never. Means over eight pairs of networks."""
    bonus = RND(embedding=16, width=64, fit=Fit(3e-4, steps=20))
    states = jax.vmap(lambda key: bonus.init(key, discrete(5)))(jax.random.split(jax.random.key(0), 8))
    batch, everywhere = stream(np.repeat(np.arange(4), 4 ** np.arange(4))), stream(np.arange(5))
    update = quick(jax.vmap(lambda s, k: bonus.update(s, batch, k)[0]))
    reward = quick(jax.vmap(lambda s: bonus.reward(s, everywhere)))
    rows = [reward(states)]
    for i in range(6):
        states = update(states, jax.random.split(jax.random.key(i), 8))
        rows.append(reward(states))
    share = (np.array(rows)[..., 0] / np.array(rows)[0, ..., 0]).mean(1)  # of the error at first: [times, states]
    assert (np.diff(share[:, :4], axis=0) < 0).all()
    assert (np.diff(share[-1, :4]) < 0).all()  # the more visits, the less is left
    assert share[-1, 3] < 0.1 and share[-1, 4] > 1.5 * share[-1, 0]


def test_normalising_whitens_by_the_moments_of_everything_seen():
    plain, white = rnd(on="obs"), rnd(on="obs", normalize=True)
    _, state, batch, _ = experience(white, Drift())
    for part in (batch, jax.tree.map(lambda x: x[:3], batch)):
        state, _ = quick(white.update)(state, part, jax.random.key(0))
    everything = np.concatenate([batch.obs.reshape(-1, 2), batch.obs[:3].reshape(-1, 2)])
    scaled = (np.asarray(batch.obs) - everything.mean(0)) / everything.std(0)
    assert np.abs(scaled).max() < 5
    expected = quick(plain.reward)(state._replace(seen=((),)), batch._replace(obs=jnp.asarray(scaled)))
    reward = quick(white.reward)
    assert np.allclose(reward(state, batch), expected, rtol=1e-3)
    far = batch._replace(obs=batch.obs + 1e6)
    assert np.allclose(reward(state, far), reward(state, far._replace(obs=far.obs * 2)), rtol=1e-5)


def test_normalising_leaves_what_never_varied_and_what_is_discrete_alone():
    bonus = rnd(normalize=True)
    state = bonus.init(jax.random.key(0), discrete())
    assert state.seen == ((),)
    _, state, batch, _ = experience(bonus, Lamp())
    dull = jax.tree.map(lambda x: jnp.full_like(x, 20) if x.ndim == 5 else x, batch)
    state, _ = quick(bonus.update)(state, dull, jax.random.key(0))
    assert float(jnp.abs(quick(bonus.reward)(state, dull)).max()) < 1e-3  # every pixel is its mean: nothing goes in


def test_the_copy_is_as_deep_as_asked():
    for hidden, deeper in ((1, 2), (0, 0)):
        state = rnd(hidden=hidden, deeper=deeper).init(jax.random.key(0), discrete())
        assert len(state.target.head.layers) == 1 + hidden
        assert len(state.predictor.params.head.layers) == 1 + hidden + deeper


def test_a_wrong_end_of_the_transition_is_refused():
    with pytest.raises(ValueError, match="RND takes 'obs' or 'next_obs' as on, got 'action'"):
        RND(on="action")


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_pays_the_gain_in_novelty_at_first_visits_only(alpha):
    bonus = NovelD(rnd(), alpha=alpha)
    _, state, batch, _ = collected(bonus, Walk(), 12, 0)
    paid = np.asarray(quick(bonus.reward)(state, batch))

    def novelty(obs):
        return np.linalg.norm(embedded(state.target, obs) - embedded(state.predictor.params, obs))

    held_back = 0
    for n, times in episodes(batch):
        seen = {int(batch.obs[times[0], n])}
        for t in times:
            here, there = int(batch.obs[t, n]), int(batch.next_obs[t, n])
            gain = max(novelty(there) - alpha * novelty(here), 0)
            assert np.isclose(paid[t, n], gain if there not in seen else 0, rtol=1e-4, atol=1e-6)
            held_back += gain > 0 and there in seen
            seen.add(there)
    assert (paid > 0).any() and held_back > 0


def test_it_does_not_matter_at_which_end_the_novelty_looks():
    make = lambda on: NovelD(HashedCount(bits=8, on=on, power=1.0))  # noqa: E731
    _, state, batch, _ = collected(make("next_obs"), Walk(), 12, 0)
    state, _ = quick(make("next_obs").update)(state, batch, jax.random.key(0))
    a, b = (quick(make(on).reward)(state, batch) for on in ("obs", "next_obs"))
    assert np.array_equal(a, b)
    assert "action" in NovelD(Count()).reads and "action" not in make("obs").reads


def test_a_novelty_with_an_episodic_memory_is_refused_and_a_normalised_one_is_not():
    with pytest.raises(ValueError, match="RIDE keeps an episodic memory"):
        NovelD(RIDE())
    assert NovelD(Normalized(rnd())).reads == ("obs", "next_obs", "next_note")
    assert [to_dict(make_bonus(name))["alpha"] for name in ("noveld", "bebold")] == [0.5, 1.0]
