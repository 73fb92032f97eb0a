"""Learning from a replay: what each part of a bonus learns from, and one compiled call against its parts by hand."""

import functools
from types import SimpleNamespace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import TINY, quick, rnd

from made.agents.sac import RAD, Layout
from made.bonuses import MADE, RE3, VAE, ConstantBonus, FirstVisit, HashedCount, Normalized, Scaled, Standardized, Sum
from made.bonuses.made import CoverAtMadeScale
from made.bonuses.re3 import distances
from made.bonuses.registry import list_bonuses, make_bonus
from made.bonuses.release import Re3ReleaseNormalized
from made.bonuses.replay_data import DRAWS, FromBatch, LastFrame, needs_new, recent_window, settle
from made.core import (
    Agent,
    Bonus,
    Density,
    EpisodeMemory,
    EpisodeNote,
    LearnsFrom,
    NoMemory,
    ReplayContext,
    Space,
    Spec,
    Transition,
    ring_buffer,
    trees,
)
from made.core.schedules import Constant
from made.training.off_policy import ReplayLearner
from made.training.replay import ReplayBuffer

STATE = Spec(Space((3,), jnp.float32), Space((2,), jnp.float32, None, -1.0, 1.0), horizon=5)
PIXELS = STATE._replace(obs=Space((100, 100, 9), jnp.uint8))
SAC = RAD(Layout(encoder="state", width=6))
BONUS = Sum((rnd(), RE3(**TINY, capacity=40)))  # one that learns from the batch, one that takes in every step


class Witness(Agent):
    """An agent that keeps what it was given to learn from, and compiles in no time."""

    def init(self, key, spec):
        return {"paid": jnp.zeros(()), "drawn": jnp.zeros(16), "noise": jnp.zeros(()), "k": jnp.zeros((), jnp.int32)}

    def act(self, state, carry, obs, goal, key, *, explore=True):
        return carry, jnp.tanh(jax.random.normal(key, (2,))) if explore else jnp.tanh(obs[:2]), ()

    def update(self, state, batch, reward_fn, key):
        k = state["k"] + 1
        paid = reward_fn(batch).mean()
        kept = {"paid": paid, "drawn": batch.reward.reshape(-1), "noise": jax.random.normal(key), "k": k}
        return kept, {"reward": paid, "odd": jnp.where(k % 2 == 1, k, jnp.nan)}


LEARNER = ReplayLearner(STATE, Witness(), BONUS, Constant(0.1), ReplayBuffer(40), batch=16)


class Tally(Density):
    """A density that is told by sums of what it was fed: where that came from is plain to see."""

    def init(self, key, spec):
        return jnp.zeros(())

    def log_density(self, state, batch):
        return batch.obs[..., 0]

    def update(self, state, batch, key):
        return state + batch.reward.sum(), {}


def steps(n: int, seed: int = 0) -> Transition:
    """n steps of episodes of five, leaves [n, 1, ...]."""
    rng = np.random.default_rng(seed)
    real = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    path = real(n + n // 5 + 1, 1, 3)
    at = np.arange(n) + np.arange(n) // 5  # the frame before each step: six to an episode
    off, ends = np.zeros((n, 1), bool), (np.arange(n) % 5 == 4)[:, None]
    return Transition(path[at], np.tanh(real(n, 1, 2)), real(n, 1), path[at + 1], off, ends)


def close(one, other) -> bool:
    numbers = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x, float)  # noqa: E731
    pairs = zip(*map(jax.tree.leaves, (one, other)), strict=True)
    return all(np.allclose(numbers(a), numbers(b), atol=1e-5, equal_nan=True) for a, b in pairs)


@functools.cache
def calls():
    return compiled(LEARNER)


def compiled(learner):
    """The calls of a learner, compiled; a state that is given away is used up."""
    fast = {"compiler_options": {"xla_backend_optimization_level": 0}}

    def act(params, obs, key, explore=True):
        return learner.act(params, (), jnp.zeros(len(obs), bool), obs, key, explore)[1]

    return SimpleNamespace(
        start=jax.jit(learner.start, **fast),
        store=jax.jit(lambda state, steps: state._replace(replay=learner.store(state.replay, steps)), **fast),
        introduce=jax.jit(learner.introduce, static_argnums=1, **fast),
        advance=jax.jit(learner.advance, static_argnums=2, donate_argnums=0, **fast),
        act=jax.jit(act, static_argnums=3, **fast),
    )


@functools.cache
def _begun(seed: int):
    state = calls().store(calls().start(jax.random.key(seed)), steps(30, seed))
    return calls().introduce(state, 30)


def begun(seed: int = 0):
    """A state that has stored 30 steps and been introduced to them; a copy, for it is donated."""
    return jax.tree.map(lambda x: x.copy(), _begun(seed))


def test_one_call_stores_draws_updates_the_bonus_and_learns_from_what_it_pays():
    came = steps(1, seed=1)
    after, metrics = calls().advance(begun(), came)

    def by_hand(state):
        key, k_draw, k_learn = jax.random.split(state.key, 3)
        replay = LEARNER.replay.add(state.replay, trees.index(came, 0))
        batch, _ = LEARNER.replay.sample(replay, 16, jax.random.split(k_draw)[0])
        batch = batch._replace(extras=ReplayContext(came, batch))
        k_bonus, k_agent = jax.random.split(k_learn)
        bonus, _ = BONUS.update(state.bonus, batch, k_bonus)
        paid = lambda b: b.reward + 0.1 * BONUS.reward(bonus, b)  # noqa: E731
        agent, _ = LEARNER.agent.update(state.agent, batch, paid, k_agent)
        return state._replace(agent=agent, bonus=bonus, replay=replay, k=state.k + 1, key=key)

    wanted = quick(by_hand)(begun())
    assert close(after, wanted) and len(set(after.agent["drawn"].tolist())) > 4
    assert np.isclose(metrics["reward"], wanted.agent["paid"], rtol=1e-4) and float(metrics["bonus"]) > 0
    assert np.isclose(metrics["bonus_strength"], 0.1 * metrics["bonus"] * 5, rtol=1e-4)  # of an episode of 5 steps


def test_no_key_is_used_twice():
    learner = ReplayLearner(STATE, SAC, BONUS, Constant(0.1), ReplayBuffer(40), batch=16)
    with jax.debug_key_reuse(True):
        jax.jit(lambda key: learner.advance(learner.start(key), steps(2), 2)).lower(jax.random.key(0))
        jax.jit(lambda key: learner.introduce(learner.start(key), 1)).lower(jax.random.key(0))


def test_several_updates_in_one_call_share_out_what_came_in():
    assert int(begun().bonus[1].ring.written) == 30  # the steps before learning began are neighbours too
    after, metrics = calls().advance(begun(), steps(6, seed=2), 3)
    ring = after.bonus[1].ring
    assert int(after.k) == 3 and int(ring.written) == int(after.replay.taken) == 36
    features = quick(jax.vmap(after.bonus[1].encoder))(steps(6, seed=2).obs[:, 0])
    assert np.allclose(ring.items[30:36], features, atol=1e-5)  # each once, in order
    assert float(metrics["odd"]) == 2  # the mean of 1 and 3: what an update has no number for does not count
    with pytest.raises(ValueError, match="5 new steps cannot be shared out over 2"):
        LEARNER.advance(after, steps(5), 2)


def test_acting_explores_or_not():
    obs, key, state = jnp.ones((4, 3)), jax.random.key(5), begun()
    actions, best = calls().act(state.agent, obs, key), calls().act(state.agent, obs, key, False)
    assert np.allclose(best, np.tanh(1)) and (np.ptp(actions, axis=0) > 0).all()  # one observation four times over
    assert actions.shape == best.shape == (4, 2)


class TallyNew(Tally):
    """The same, of each new step once."""

    learns_from: ClassVar[LearnsFrom] = "new"


class TallyRecent(Tally):
    """The same, of recent steps; `update` is the inherited one."""

    learns_from: ClassVar[LearnsFrom] = "recent"
    window: int = 4


class Counting(Bonus):
    """A user's own counting bonus: how many steps it was shown, and the sum of their rewards."""

    learns_from: ClassVar[LearnsFrom] = "new"
    reads: ClassVar[tuple[str, ...]] = ("obs",)
    memory: EpisodeMemory = NoMemory()

    def init(self, key, spec):
        return {"steps": jnp.zeros(()), "sum": jnp.zeros(())}

    def reward(self, state, batch, *, value=None):
        return jnp.ones_like(batch.reward)

    def update(self, state, batch, key):
        return {"steps": state["steps"] + batch.reward.size, "sum": state["sum"] + batch.reward.sum()}, {}


def test_each_part_of_a_bonus_learns_from_what_its_class_names():
    batch, recent, new = steps(8, seed=1), steps(6, seed=2), steps(2, seed=3)
    replayed, key, zero = batch._replace(extras=ReplayContext(new, recent)), jax.random.key(0), jnp.zeros(())
    for part, source in ((Tally(), batch), (TallyNew(), new), (TallyRecent(), recent)):
        assert np.isclose(part.update(zero, replayed, key)[0], source.reward.sum())
        assert np.isclose(part.update(zero, batch, key)[0], batch.reward.sum())  # a rollout is all three
    nested = MADE(Normalized(Sum((FirstVisit(Counting()), FromBatch(Counting())))), Standardized(TallyRecent()))

    def noted(x):  # as such a bonus writes it: visits beside what is inside
        note = EpisodeNote(trace=((jnp.ones(x.reward.shape), ()), ()))
        return jax.tree.map(jnp.asarray, x._replace(note=note, next_note=note))

    whole = noted(batch)._replace(extras=ReplayContext(noted(new), noted(recent)))
    state, _ = quick(nested.update)(nested.init(key, STATE), whole, key)
    assert [float(x["steps"]) for x in state.cover.inner] == [2, 8], (
        "of a counter and one that is told to take the batch"
    )
    assert np.isclose(state.cover.inner[0]["sum"], new.reward.sum())
    assert np.isclose(state.recent.inner, recent.reward.sum())


def test_what_is_inside_a_part_that_learns_from_new_steps_gets_those():
    class Once(Scaled):
        learns_from: ClassVar[LearnsFrom] = "new"

    bonus, key, new = Once(MADE(Counting(), TallyRecent())), jax.random.key(0), steps(2, seed=3)
    state, _ = bonus.update(bonus.init(key, STATE), steps(8)._replace(extras=ReplayContext(new, steps(6))), key)
    assert float(state.cover["steps"]) == 2 and np.isclose(state.recent, new.reward.sum())
    assert needs_new(bonus) and recent_window(bonus) is None and settle(bonus) == bonus


def test_which_steps_a_bonus_asks_a_replay_for():
    assert [needs_new(x) for x in (rnd(), RE3(**TINY), HashedCount(), Normalized(Counting()), FromBatch(RE3()))] == [
        *(False, True, True, True, False)
    ]
    deep = MADE.deep(window=700)
    assert recent_window(deep) == 700 and recent_window(MADE.hashed()) is None and needs_new(MADE.hashed())
    assert settle(deep).recent.density.capacity == DRAWS  # type: ignore[attr-defined]
    assert settle(MADE.hashed()) == MADE.hashed(), "counts of a window keep it themselves"
    with pytest.raises(ValueError, match="one part that learns from recent steps, got 2"):
        recent_window(MADE(MADE(rnd(), VAE()), VAE()))

    class NoWindow(Tally):
        learns_from: ClassVar[LearnsFrom] = "recent"

    with pytest.raises(ValueError, match="NoWindow learns from recent steps, so it needs a field `window`"):
        recent_window(MADE(rnd(), NoWindow()))
    with pytest.raises(ValueError, match="'batch', 'new' or 'recent', not 'fresh'"):
        type("Wrong", (Tally,), {"learns_from": "fresh"})


def test_a_counting_bonus_of_ones_own_takes_in_each_step_once():
    """Nothing but its class says so; the networks of the agent are those of SAC."""
    learner = ReplayLearner(STATE, SAC, Normalized(Counting()), Constant(0.1), ReplayBuffer(40), batch=16)
    calls = compiled(learner)
    state = calls.introduce(calls.store(calls.start(jax.random.key(0)), steps(30)), 30)
    state, metrics = calls.advance(state, steps(6, seed=2), 3)
    assert float(state.bonus.inner["steps"]) == 36 and np.isfinite(metrics["bonus"])
    assert np.isclose(state.bonus.inner["sum"], steps(30).reward.sum() + steps(6, seed=2).reward.sum(), rtol=1e-4)


@pytest.mark.parametrize("name", list_bonuses("off_policy", installed=False))
@pytest.mark.parametrize("pixels", [False, True], ids=["state", "pixels"])
def test_every_bonus_of_control_fits_a_learner(name, pixels):
    """Traced at full size, not compiled."""
    spec, agent, replay = (PIXELS, RAD(), ReplayBuffer(1000, stack=3)) if pixels else (STATE, SAC, ReplayBuffer(1000))
    learner = ReplayLearner(spec, agent, make_bonus(name, "off_policy", pixels=pixels), Constant(0.05), replay)
    state = jax.eval_shape(learner.start, jax.random.key(0))
    came = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), steps(1))
    obs = jax.ShapeDtypeStruct((1, 1, *spec.obs.shape), spec.obs.dtype)
    after, metrics = jax.eval_shape(learner.advance, state, came._replace(obs=obs, next_obs=obs))
    shapes = lambda tree: (jax.tree.structure(tree), [(x.shape, x.dtype) for x in jax.tree.leaves(tree)])  # noqa: E731
    assert shapes(after) == shapes(state) and all(x.shape == () for x in metrics.values())
    held = sum(x.size for x in jax.tree.leaves(state.bonus) if x.dtype == jnp.uint8)
    assert held <= DRAWS * 100 * 100 * 3  # no frame of the replay is stored a second time


def test_recent_steps_are_drawn_from_the_window_that_the_density_names():
    learner = ReplayLearner(STATE, SAC, MADE(rnd(), Standardized(TallyRecent())), replay=ReplayBuffer(40), batch=16)
    replay = begun().replay
    batch = quick(learner.sample)(replay, jax.random.key(0))
    recent = batch.extras.recent
    latest = steps(30).reward[-4:, 0]
    assert recent.reward.shape == (1, DRAWS) and set(recent.reward[0].tolist()) == set(latest.tolist())
    assert not set(batch.reward[0].tolist()) <= set(latest.tolist())


class Echo(ConstantBonus):
    """A bonus that tells what it was shown."""

    def init(self, key, spec):
        return jnp.zeros(spec.obs.shape)

    def reward(self, state, batch, *, value=None):
        return batch.next_obs.sum((-3, -2, -1)).astype(float)

    def update(self, state, batch, key):
        return (batch.obs, batch.extras.new.obs, batch.extras.recent.next_obs), {}


def test_a_bonus_of_the_last_frame_reads_three_channels():
    bonus, spec = LastFrame(Echo()), Spec(Space((7, 7, 6), jnp.uint8), STATE.action)
    assert bonus.init(jax.random.key(0), spec).shape == (7, 7, 3)
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 1, 7, 7, 6)).astype(np.uint8)
    batch = steps(4)._replace(obs=images[0], next_obs=images[1])
    assert np.array_equal(bonus.reward((), batch), images[1][..., 3:].sum((2, 3, 4)))
    shown, _ = bonus.update((), batch._replace(extras=ReplayContext(batch, batch)), jax.random.key(0))
    for found, image in zip(shown, images[[0, 0, 1]], strict=True):
        assert np.array_equal(found, image[..., 3:])
    with pytest.raises(ValueError, match="leave it out"):
        bonus.init(jax.random.key(0), STATE)


class First(ConstantBonus):
    """Pays the first number of what is seen next."""

    def reward(self, state, batch, *, value=None):
        return batch.next_obs[..., 0]


def test_the_control_pays_the_cover_as_much_as_made_would_pay_in_all():
    """The factor is large where the cover is, so its mean would not do."""
    batch, key = steps(20), jax.random.key(0)
    first = np.linspace(0.5, 6.0, 20).reshape(20, 1)
    batch = batch._replace(obs=-first[..., None] * np.ones(3), next_obs=first[..., None] * np.ones(3))
    control = CoverAtMadeScale(MADE(First(), Tally()))
    state, told = control.update(control.init(key, STATE), batch, key)
    paid, wanted = np.asarray(control.reward(state, batch)), first * np.exp(0.5 * first)
    assert np.isclose(paid.mean(), wanted.mean(), rtol=1e-5) and np.allclose(paid / first, paid[0] / first[0])
    assert wanted.mean() > 1.3 * first.mean() * np.exp(0.5 * first).mean()
    assert np.isclose(told["factor/level"], wanted.mean() / first.mean(), rtol=1e-5)
    assert np.isclose(state.made.recent, batch.reward.sum(), rtol=1e-5), "the density learns on"


def test_re3_as_released_is_divided_by_a_deviation_that_falls_with_its_updates():
    """sqrt(variance + 1/n) after n updates: what varies little is paid little at first."""
    batch, key = steps(20), jax.random.key(0)
    first = 3 + 0.02 * np.random.default_rng(0).normal(size=(20, 1))
    batch = batch._replace(next_obs=first[..., None] * np.ones(3))
    bonus = Re3ReleaseNormalized(First())
    state, update, told = bonus.init(key, STATE), quick(bonus.update), {}
    for n in range(1, 201):
        state, told = update(state, batch, key)
        if n in (50, 200):
            wanted = np.sqrt(first.var(ddof=1) + 1 / n - 1 / n**2)
            assert np.isclose(told["bonus_deviation"], wanted, rtol=1e-2)
            assert np.allclose(bonus.reward(state, batch), first / told["bonus_deviation"], rtol=1e-5)
    assert told["bonus_deviation"] > 3 * first.std(), "still inflated"
    for pixels in (False, True):
        ours, theirs = (make_bonus(name, "off_policy", pixels=pixels) for name in ("re3", "re3-released"))
        ours, theirs = (x.bonus if pixels else x for x in (ours, theirs))  # type: ignore[attr-defined]
        assert theirs.bonus == ours.bonus and type(theirs) is Re3ReleaseNormalized  # type: ignore[attr-defined]


@pytest.mark.parametrize(("n", "held", "block"), [(23, 23, 5), (23, 17, 8), (23, 3, 23), (16, 16, 4), (23, 0, 5)])
def test_neighbours_are_found_block_by_block(n, held, block):
    """Blocks that do not divide the ring, more than one that is not full, fewer points than neighbours asked for."""
    rng = np.random.default_rng(n + held)
    points, queries = rng.normal(size=(n, 4)).astype(np.float32), rng.normal(size=(9, 4)).astype(np.float32)
    ring = ring_buffer.Ring(jnp.asarray(points), jnp.int32(held))
    found = quick(lambda ring, queries: distances(ring, queries, 3, block))(ring, queries)
    far = np.sort(np.linalg.norm(points[None, :held] - queries[:, None], axis=-1), -1)
    wanted = far[:, min(3, held - 1)] if held else np.zeros(9)
    assert np.allclose(found, wanted, atol=1e-5)


def test_neighbours_may_be_found_by_the_encoder_of_the_release():
    bonus = RE3(embedding=5, capacity=30, released=True)
    batch, key = steps(12), jax.random.key(0)
    state = quick(lambda b: bonus.update(bonus.init(key, STATE), b, key)[0])(batch)
    points = np.stack([state.encoder(obs) for obs in batch.obs[:, 0]])
    assert (np.abs(points) < 1).all()  # tanh
    far = np.sort(np.linalg.norm(points[None] - points[:, None], axis=-1), -1)[:, 3]
    assert np.allclose(quick(bonus.reward)(state, batch)[:, 0], far, atol=1e-5)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="at least 1 as batch, got 0"):
        ReplayLearner(STATE, SAC, BONUS, batch=0)
    with pytest.raises(ValueError, match="Did you mean 'made-released'"):
        make_bonus("made-release", "off_policy")
    with pytest.raises(ValueError, match="block=3"):
        RE3(k=3, block=3)
