"""Features kept beside a replay: the same pay and the same learning as from images that are encoded anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import quick

from made.bonuses import RE3, Normalized, make_bonus
from made.bonuses.densities.vae import AutoEncoder
from made.bonuses.embedding import RandomEncoder
from made.bonuses.release import ReleasedNetwork, ReleasedRND
from made.bonuses.replay_data import CachedRE3, CachedRND, FromBatch, LastFrame, encoded, settle
from made.core import ImageSpace, ReplayContext, Space, Spec, Transition
from made.nets.fit import Fit

STEPS, SPEC = 12, Spec(ImageSpace((15, 15, 3), jnp.uint8), Space((2,), jnp.float32, None, -1.0, 1.0))
RND = ReleasedRND(Fit(learning_rate=1e-2), width=16, hidden=8, features=3)
PAIRS = {  # kept, and made anew
    "rnd": (settle(CachedRND(RND), STEPS), RND),
    "re3": (settle(RE3(16, capacity=40, released=True), STEPS), RE3(16, capacity=12, released=True)),
}


def steps(n: int, seed: int) -> Transition:
    """Squares of some color, side and place: random bytes all look alike to a random encoder."""
    rng, (row, column) = np.random.default_rng(seed), np.mgrid[:15, :15][..., None]

    def image():
        color, side = 255 * rng.integers(0, 2, (n, 1, 1, 1, 3)), rng.integers(1, 16, (n, 1, 1, 1, 1))
        top, left = rng.integers(0, 8, (2, n, 1, 1, 1, 1))
        within = (row >= top) & (row < top + side) & (column >= left) & (column < left + side)
        return (color * within).astype(np.uint8)

    off = np.zeros((n, 1), bool)
    return Transition(image(), np.zeros((n, 1, 2), np.float32), np.zeros((n, 1), np.float32), image(), off, off)


def drawn(held: Transition, fresh: Transition, new: list[int], at: list[int]) -> Transition:
    """A batch [1, B] of those that are held, as a learner hands it over."""
    batch = jax.tree.map(lambda x: x[at, 0][None], held)
    return batch._replace(extras=ReplayContext(fresh, batch, jnp.asarray(at)[None], jnp.asarray(new)[:, None]))


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_looked_up_pays_and_teaches_as_what_is_encoded(name):
    kept, anew = PAIRS[name]
    key, first, then = jax.random.key(0), steps(10, 0), steps(4, 1)
    places = [10, 11, 0, 1]  # the replay begins anew at its first place
    held = jax.tree.map(lambda x, y: np.concatenate([y[2:], x[2:], y[:2]]), first, then)
    batches = [drawn(first, first, list(range(10)), [3, 0, 9]), drawn(held, then, places, [0, 1, 5, 11, 11])]
    update, paid = (quick(getattr(kept, method)) for method in ("update", "reward"))
    states = [quick(lambda key, one=one: one.init(key, SPEC))(key) for one in (kept, anew)]
    for batch in batches:
        blind = batch._replace(obs=0 * batch.obs, next_obs=0 * batch.next_obs)  # what was drawn is not looked at
        states[0], told = update(states[0], blind, key)
        states[1], same = quick(anew.update)(states[1], batch, key)
        assert np.allclose(paid(states[0], blind), quick(anew.reward)(states[1], batch), rtol=2e-3, atol=1e-3)
        assert all(np.allclose(told[x], same[x], rtol=1e-2) for x in same)
    assert np.ptp(paid(states[0], batches[1])) > 0.01  # more than what is forgiven above
    flat = batches[1]._replace(extras=batches[1].extras._replace(at=None))
    assert np.allclose(paid(states[0], batches[1]), quick(kept.reward)(states[0], flat), rtol=1e-2, atol=2e-3)


def test_steps_that_were_never_shown_are_not_taken_for_something():
    kept, alone, first = PAIRS["rnd"][0], CachedRND(RND), steps(2, 0)
    replayed = drawn(first, first, [0, 1], [1])

    def paid(key):
        state, bare = kept.init(key, SPEC), alone.init(key, SPEC)
        return kept.reward(state, replayed), kept.reward(state, first), alone.reward(bare, replayed), bare.features

    unknown, rollout, encoded_anew, features = quick(paid)(jax.random.key(0))
    assert np.isnan(unknown).all() and np.isfinite(rollout).all() and np.isfinite(encoded_anew).all()
    assert features.shape == (0, 16)  # nobody has told it of a replay


@pytest.mark.parametrize("name", ["rnd", "re3", "made", "made-released"])
def test_small_pictures_are_pixels_and_no_symbols(name):
    spec = SPEC._replace(obs=Space((24, 24, 9), jnp.uint8))
    state = jax.eval_shape(lambda key: make_bonus(name, "off_policy", pixels=True).init(key, spec), jax.random.key(0))
    known = (RandomEncoder, ReleasedNetwork, AutoEncoder)
    parts = [x for x in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, known)) if isinstance(x, known)]
    assert parts and all(part.outline.leaves[0].kind == "bytes" for part in parts)
    assert all(part.convolutions is not None for part in parts if isinstance(part, RandomEncoder))


def test_many_images_are_encoded_some_at_a_time():
    state = quick(lambda key: RND.init(key, SPEC))(jax.random.key(0))
    images = steps(300, 0).obs
    found, last = quick(lambda x: (encoded(state.encoder, x), encoded(state.encoder, x[-3:])))(images)
    assert found.shape == (300, 16) and np.allclose(found[-3:], last, atol=1e-5)
    assert np.ptp(found, axis=0).max() > 0.1  # by what they show


def test_a_learner_settles_what_can_be_kept():
    made = settle(make_bonus("made", "off_policy", pixels=True), 70)
    assert isinstance(made, LastFrame) and made.bonus.cover.bonus.steps == 70  # type: ignore[attr-defined]
    for name in ("re3", "re3-released"):
        re3 = settle(make_bonus(name, "off_policy", pixels=True), 70).bonus.bonus  # type: ignore[attr-defined]
        assert isinstance(re3, CachedRE3) and re3.bonus.capacity == 70
        assert settle(Normalized(FromBatch(RE3(capacity=90))), 70) == Normalized(FromBatch(RE3(capacity=90)))
    assert settle(Normalized(RE3(capacity=60)), 70) == Normalized(RE3(capacity=60)), "no room for the whole replay"
    assert settle(make_bonus("rnd", "off_policy"), 70) == make_bonus("rnd", "off_policy")
