"""Windows of a replay against a naive one that keeps every step in a list, and a run that learns from them."""

from operator import attrgetter
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import TINY, Walk, leaves_are_arrays, quick, rnd, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

from made.agents.dreamer.agent import Dreamer
from made.agents.dreamer.network import Layout
from made.bonuses import MADE, RE3, VAE, ConstantBonus, FirstVisit, NoBonus, Standardized
from made.bonuses.registry import list_bonuses, make_bonus
from made.bonuses.replay_data import DRAWS, FromBatch
from made.core import Agent, Density, LearnsFrom, ReplayContext, Space, Spec, Transition, trees
from made.core.schedules import Constant
from made.nets.fit import Fit
from made.training import memory
from made.training.off_policy import ReplayLearner, ReplayRun
from made.training.on_policy import RunConfig, evaluate
from made.training.replay import ReplayBuffer, SequenceBuffer

SPEC = Spec(Space((2,), jnp.float32), Space((1,), jnp.float32, None, -1.0, 1.0), horizon=6)
CASES = {
    "whole": SequenceBuffer(ReplayBuffer(17, shortest=2), 3),
    "crossing": SequenceBuffer(ReplayBuffer(17, shortest=2), 3, whole=False),
    "streams": SequenceBuffer(ReplayBuffer(24, streams=2, shortest=2), 4),
}
_COMPILED = {}


def compiled(name: str):
    """(push, how many windows, all windows), once for each case."""
    if name not in _COMPILED:
        one = CASES[name]
        every = jnp.arange(one.steps.capacity)
        read = quick(lambda state: (one.size(state), one.take(state, every)))
        _COMPILED[name] = quick(one.add), read
    return _COMPILED[name]


class Naive:
    """One stream of episodes of those lengths, every step of it in a list with the number of its episode."""

    def __init__(self, lengths: list[int], seed: int):
        self.rng, self.lengths, self.episode, self.left = np.random.default_rng(seed), lengths, -1, 0
        self.steps: list[tuple[int, Transition]] = []

    def step(self) -> Transition:
        real = lambda *shape: self.rng.normal(size=shape).astype(np.float32)  # noqa: E731
        if not self.left:
            self.episode += 1
            self.left, self.obs = self.lengths[self.episode % len(self.lengths)], real(2)
        before, self.obs, self.left = self.obs, real(2), self.left - 1
        over, by_task = self.left == 0, self.rng.random() < 0.5
        step = Transition(before, real(1), real(), self.obs, np.bool_(over and by_task), np.bool_(over and not by_task))
        self.steps.append((self.episode, step))
        return step

    def windows(self, held: int, length: int, whole: bool) -> list[list[Transition]]:
        """All windows among the last `held` steps."""
        last = self.steps[len(self.steps) - held :]
        every = [last[i : i + length] for i in range(len(last) - length + 1)]
        within = [window for window in every if len({episode for episode, _ in window}) == 1]
        return [[step for _, step in window] for window in (within if whole else every)]


def stacked(steps):
    return jax.tree.map(lambda *xs: np.stack(xs), *steps)


def told(window) -> bytes:
    """A window as something that can be looked up."""
    return b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(window))


def filled(name: str, lengths: list[int], n: int):
    one, (push, _) = CASES[name], compiled(name)
    streams = [Naive(lengths[i:] + lengths[:i], i) for i in range(one.steps.streams)]
    state = one.init(SPEC)
    for _ in range(n):
        step = stacked([stream.step() for stream in streams])
        state = push(state, step)
    return one, streams, state


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(list(CASES)), st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(4, 50))
def test_the_windows_are_those_of_a_list(name, lengths, n):
    one, streams, state = filled(name, lengths, n)
    held = np.asarray(state.steps.taken - state.steps.first)
    wanted = [w for s, k in zip(streams, held, strict=True) for w in s.windows(int(k), one.length, one.whole)]
    if not wanted:  # no episode is long enough: then any window
        wanted = [w for s, k in zip(streams, held, strict=True) for w in s.windows(int(k), one.length, False)]
    size, windows = jax.device_get(compiled(name)[1](state))
    assert int(size) == len(wanted) > 0
    every = [told(jax.tree.map(lambda x, i=i: x[:, i], windows)) for i in range(int(size))]
    assert sorted(every) == sorted(told(stacked(window)) for window in wanted)


def test_draws_are_even_and_whole_ones_stay_within_an_episode():
    one, streams, state = filled("whole", [5, 2, 4], 40)
    windows = streams[0].windows(int(state.steps.taken - state.steps.first[0]), 3, True)
    drawn, _ = quick(lambda state, key: one.sample(state, 3000, key))(state, jax.random.key(0))
    assert drawn.obs.shape == (3, 3000, 2) and not np.asarray(drawn.terminated | drawn.truncated)[:-1].any()
    counts = np.array([(np.asarray(drawn.reward)[0] == window[0].reward).sum() for window in windows])
    assert counts.sum() == 3000 and (np.abs(counts - 3000 / len(counts)) < 4 * np.sqrt(3000 / len(counts))).all()
    recent = one.steps.sample(state.steps, 200, jax.random.key(1), 2)[0].reward
    assert set(np.asarray(recent)[0].tolist()) == {float(s.reward) for _, s in streams[0].steps[-2:]}


def test_its_size_is_known_and_what_cannot_be_is_refused(monkeypatch):
    one = CASES["streams"]
    assert one.size_of(SPEC) == sum(x.nbytes for x in jax.tree.leaves(one.init(SPEC)))
    with pytest.raises(ValueError, match="length=9 and 8 steps a stream"):
        SequenceBuffer(ReplayBuffer(16, streams=2), 9)
    monkeypatch.setattr(memory, "free", lambda: 2**30)
    pixels = SPEC._replace(obs=Space((64, 64, 3), jnp.uint8))
    with pytest.raises(ValueError, match=r"needs 2\.9 GiB .* 1\.0 GiB are free .*--set replay\.steps\.capacity"):
        SequenceBuffer().init(pixels)


# Learning


class Listener(Agent):
    """Learns one number, the mean of what it was paid so far, and tells what it was handed."""

    def init(self, key, spec):
        return {"paid": jnp.zeros(()), "k": jnp.zeros((), jnp.int32)}

    def carry(self, spec):
        return jnp.zeros((), jnp.int32)

    def act(self, state, carry, obs, goal, key, *, explore=True):
        return carry + 1, jax.random.randint(key, (), 0, 2), {"thought": carry}

    def update(self, state, batch, reward_fn, key):
        reward = reward_fn(batch)
        after = {"paid": state["paid"] + (reward.mean() - state["paid"]) / (state["k"] + 1), "k": state["k"] + 1}
        return after, {"rows": jnp.asarray(batch.reward.shape[0]), "mean": batch.reward.mean(), "paid": reward.mean()}


def small_made() -> MADE:
    return MADE(rnd(), Standardized(VAE(20, capacity=20, latent=2, width=8, fit=Fit(1e-3, batch=8))))


class Noted(Density):
    """Adds up the rewards of what it is handed to learn from; all is equally likely."""

    learns_from: ClassVar[LearnsFrom] = "recent"
    window: int = 9

    def init(self, key, spec):
        return jnp.zeros(())

    def log_density(self, state, batch):
        return jnp.zeros_like(batch.reward) + state

    def update(self, state, batch, key):
        return state + 0.01 * batch.reward.sum(), {}


class FirstSeen(ConstantBonus):
    """A bonus that must be shown each new step once."""

    learns_from: ClassVar[LearnsFrom] = "new"


def test_one_call_stores_draws_windows_updates_the_bonus_and_learns_from_what_it_pays():
    bonus = MADE(FirstSeen(), Noted())
    learner = ReplayLearner(SPEC, Listener(), bonus, Constant(0.1), CASES["whole"], 6)
    stream = Naive([5, 2, 4], 0)
    came = lambda n: jax.tree.map(lambda x: x[:, None], stacked([stream.step() for _ in range(n)]))  # noqa: E731
    stored = lambda state, steps: state._replace(replay=learner.store(state.replay, steps))  # noqa: E731
    state = quick(stored)(quick(learner.start)(jax.random.key(0)), came(12))
    more = jax.tree.map(jnp.asarray, came(4))
    after, metrics = quick(lambda state: learner.advance(state, more, 2))(state)

    @quick
    def by_hand(replay, agent, bonus, key, fresh):
        key, k_draw, k_learn = jax.random.split(key, 3)
        k_batch, k_recent = jax.random.split(k_draw)
        recent, _ = learner.replay.steps.sample(replay.steps, DRAWS, k_recent, 9)
        batch = learner.replay.sample(replay, 6, k_batch)[0]._replace(extras=ReplayContext(fresh, recent))
        k_bonus, k_agent = jax.random.split(k_learn)
        bonus, _ = learner.bonus.update(bonus, batch, k_bonus)
        pays = lambda b: b.reward + 0.1 * learner.bonus.reward(bonus, b)  # noqa: E731
        agent, told = learner.agent.update(agent, batch, pays, k_agent)
        return agent, bonus, key, told["paid"]

    push = compiled("whole")[0]
    replay, agent, bonus, key, paid = state.replay, state.agent, state.bonus, state.key, []
    for t in range(4):
        replay = push(replay, trees.index(more, t))
    for k in range(2):
        agent, bonus, key, one = by_hand(replay, agent, bonus, key, jax.tree.map(lambda x, k=k: x[2 * k :][:2], more))
        paid.append(one)
    for one, other in ((after.agent, agent), (after.bonus, bonus), (after.replay, replay)):
        pairs = zip(*map(jax.tree.leaves, (one, other)), strict=True)
        assert all(np.allclose(a, b, atol=1e-5) for a, b in pairs)
    assert np.isclose(metrics["paid"], np.mean(paid)) and float(metrics["rows"]) == 3 and int(after.k) == 2
    apart, same = quick(lambda state: learner.study(stored(state, more), 2, 4))(state)
    assert all(
        np.allclose(a, b, atol=1e-5) for a, b in zip(*map(jax.tree.leaves, (after.bonus, apart.bonus)), strict=True)
    )
    assert np.isclose(same["paid"], metrics["paid"]) and int(apart.replay.steps.taken) == 16
    one, told = quick(lambda state: stored(state, more))(state), []
    for i in range(2):  # one a call
        one, metrics_of = quick(lambda state, i: learner.study(state, 2, 4, i))(one, i)
        told.append(float(metrics_of["paid"]))
    pairs = zip(*map(jax.tree.leaves, ((apart.agent, apart.bonus), (one.agent, one.bonus))), strict=True)
    assert all(np.allclose(a, b, atol=1e-5) for a, b in pairs) and np.isclose(np.mean(told), same["paid"])
    for call in (lambda: learner.study(state, 2), lambda: learner.study(state, 2, i=0)):
        with pytest.raises(ValueError, match="takes in every step once: say how many are new"):
            call()
    assert float(metrics["paid"]) > float(metrics["mean"])


def test_neighbours_of_re3_are_the_batch_itself():
    """As in the authors' Dreamer: the k-th nearest other of the same batch, whatever came before."""
    bonus = FromBatch(RE3(**TINY, k=2, capacity=12, on="next_obs"))
    update = quick(bonus.update)
    batches = [
        stacked([stacked([Naive([9], 7 * t + b + s).step() for b in range(4)]) for t in range(3)]) for s in (0, 50)
    ]
    state = bonus.init(jax.random.key(0), SPEC)
    for batch in batches:
        state, _ = update(state, batch, jax.random.key(1))
    points = np.asarray(jax.vmap(state.encoder)(batches[1].next_obs.reshape(12, 2)))
    far = np.sort(np.linalg.norm(points[:, None] - points, axis=-1), -1)[:, 2]
    assert np.allclose(quick(bonus.reward)(state, batches[1]).reshape(-1), far, atol=1e-4)
    chosen = make_bonus("re3", "dreamer", steps=100)
    assert (chosen.bonus.bonus.k, chosen.bonus.bonus.capacity, chosen.bonus.bonus.on) == (50, 100, "next_obs")
    with pytest.raises(ValueError, match="Did you mean 'made-released'"):
        make_bonus("made-release", "dreamer")


_RND = {"learning_rate": 6e-4, "clip": 100.0, "steps": 1, "batch": 0}  # one step on the whole batch
_VAE = {"learning_rate": 1e-3, "clip": 100.0, "steps": 4, "batch": 128}
_RELEASED = {
    "cover": "OrthogonalRND",
    "cover.fit": _RND,
    "recent.normaliser": "none",
    "recent.density.window": 1000,
    "recent.density": "ReleasedVAE",
    "recent.density.fit": _VAE,
}
AS_RELEASED = {
    "none": {"": "NoBonus"},
    "rnd": {"": "Normalized", "bonus": "ReleasedRND", "bonus.fit": _RND},
    "re3": {
        "": "Normalized",
        "bonus": "FromBatch",
        "bonus.bonus": "RE3",
        "bonus.bonus.embedding": 50,
        "bonus.bonus.k": 50,
        "bonus.bonus.capacity": 2500,
        "bonus.bonus.on": "next_obs",
        "bonus.bonus.log": False,
        "bonus.bonus.released": True,
    },
    "re3-released": {
        "": "Re3ReleaseNormalized",
        "bonus": "FromBatch",
        "bonus.bonus": "RE3",
        "bonus.bonus.k": 50,
        "bonus.bonus.capacity": 2500,
    },
    "made": {
        "": "MADE",
        "cover": "Normalized",
        "cover.bonus": "ReleasedRND",
        "cover.bonus.fit": _RND,
        "recent": "Standardized",
        "recent.density.window": 1000,
        "recent.density": "VAE",
    },
    "made-released": {"": "MADE", **_RELEASED},
    "cover-at-made": {
        "": "CoverAtMadeScale",
        "bonus": "MADE",
        "bonus.cover.bonus": "ReleasedRND",
        "bonus.recent": "Standardized",
    },
    "rnd-at-made": {"": "CoverAtMadeScale", "bonus": "MADE", **{f"bonus.{path}": x for path, x in _RELEASED.items()}},
}


@pytest.mark.parametrize("name", list_bonuses("dreamer", installed=False))
def test_every_bonus_for_dreamer_has_the_settings_of_the_release(name):
    """A name stands for the class of a part, a dictionary for some of its fields."""
    bonus = make_bonus(name, "dreamer")
    for path, wanted in AS_RELEASED[name].items():
        part = attrgetter(path)(bonus) if path else bonus
        if isinstance(wanted, dict):
            assert {field: getattr(part, field) for field in wanted} == wanted, path
        else:
            assert wanted in (type(part).__name__, part), path


@pytest.mark.parametrize(
    "name", [n for n in list_bonuses("dreamer", installed=False) if n not in ("none", "rnd")]
)  # part of the others
def test_every_bonus_fits_dreamer_on_pixels(name):
    """Traced at full size, not compiled: states keep their kind, and no frame of the replay is stored again."""
    pixels = Spec(Space((64, 64, 3), jnp.uint8), SPEC.action, horizon=500)
    learner = ReplayLearner(
        pixels, Dreamer(), make_bonus(name, "dreamer"), Constant(0.1), SequenceBuffer(ReplayBuffer(1000))
    )
    state = jax.eval_shape(learner.start, jax.random.key(0))
    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct((5, 1, *x.shape), x.dtype), Naive([9], 0).step())
    image = jax.ShapeDtypeStruct((5, 1, 64, 64, 3), jnp.uint8)
    row = row._replace(obs=image, next_obs=image)
    after, metrics = jax.eval_shape(learner.advance, state, row)
    kinds = lambda tree: (jax.tree.structure(tree), [(x.shape, x.dtype) for x in jax.tree.leaves(tree)])  # noqa: E731
    assert kinds(after) == kinds(state) and all(x.shape == () for x in metrics.values())
    assert sum(x.size for x in jax.tree.leaves(state.bonus) if x.dtype == jnp.uint8) <= DRAWS * 64 * 64 * 3


def trial_of(agent, bonus=None, **more) -> ReplayRun:
    run = RunConfig(Walk(), agent, bonus or NoBonus(), Constant(0.5), n_envs=2, unroll=6, iterations=2, every=1)
    given = {"batch": 4, "updates": 3, "prefill": 10, **more}
    return ReplayRun(run, SequenceBuffer(ReplayBuffer(40, streams=2, shortest=2), 5, whole=False), **given)


def test_a_run_fills_its_replay_at_random_and_then_learns():
    """With a bonus that writes notes, which are stored beside the steps."""
    trial = trial_of(Listener(), FirstVisit())
    state = quick(trial.start)(jax.random.key(0))
    assert int(state.replay.steps.taken) == 10 and leaves_are_arrays(state)
    after, metrics = quick(trial.advance)(state)
    assert shapes(after) == shapes(state) and int(after.replay.steps.taken) == 16 and int(after.run.k) == 3
    assert np.isclose(metrics["paid"], metrics["mean"] + 0.5 * metrics["bonus"], rtol=1e-4) and metrics["bonus"] > 0
    assert np.array_equal(after.run.streams.carry, after.run.streams.length % 7)  # carried on, blank where one begins
    score = quick(lambda state: evaluate(trial.run, state.run, 8, jax.random.key(1)))(after)
    assert float(score["eval_episodes"]) == 8
    for wrong, words in (({"updates": 4}, "updates=4"), ({"prefill": 4}, "prefill=4")):
        with pytest.raises(ValueError, match=words):
            trial_of(Listener(), **wrong).start(jax.random.key(0))
    with pytest.raises(ValueError, match="give the replay's steps streams=2"):
        ReplayRun(trial.run, SequenceBuffer(ReplayBuffer(40), 5), updates=3).start(jax.random.key(0))


def test_dreamer_runs_in_compiled_environments_without_using_a_key_twice():
    """Traced, not compiled, with a bonus that learns from what is recent."""
    layout = Layout(stoch=2, deter=4, hidden=4, units=4, reward=1, ends=1, value=1, actor=1)
    trial = trial_of(Dreamer(layout, horizon=3, ends=True), small_made())
    state = jax.eval_shape(trial.start, jax.random.key(0))
    with jax.debug_key_reuse(True):
        after, metrics = jax.jit(lambda key: trial.advance(trial.start(key))).lower(jax.random.key(0)).out_info
    assert jax.tree.structure(after) == jax.tree.structure(state) and "model_loss" in metrics and "return" in metrics
    acted = jax.eval_shape(
        lambda agent: trial.learner(Walk()).act(
            agent, trial.learner(Walk()).carries(3), jnp.ones(3, bool), jnp.zeros(3, jnp.int32), jax.random.key(0)
        ),
        state.run.agent,
    )
    assert acted[1].shape == (3,) and acted[0][0].deter.shape == (3, 4)
