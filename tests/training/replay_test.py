"""The replay against a naive one that keeps both stacks of every step: equal steps for equal numbers."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import quick
from hypothesis import given, settings
from hypothesis import strategies as st

from made.core import EpisodeNote, Space, Spec, Transition
from made.training import memory
from made.training.replay import ReplayBuffer

ACTION = Space((1,), jnp.float32, None, -1.0, 1.0)
CASES = {  # roomy, wrapping; episodes too short for its frames; two streams of one step each time
    "stack": ReplayBuffer(12, stack=3, shortest=4),
    "crowded": ReplayBuffer(9, stack=3, shortest=100),
    "streams": ReplayBuffer(14, stack=2, streams=2, shortest=3),
    "vectors": ReplayBuffer(7, shortest=2),
}


def spec_of(replay: ReplayBuffer) -> Spec:
    return Spec({"image": Space((2, 2, 2 * replay.stack), jnp.uint8), "place": Space((3,), jnp.float32)}, ACTION)


_COMPILED = {}


def compiled(name: str):
    """(replay, push, read every step it holds), once for each case."""
    if name not in _COMPILED:
        replay = CASES[name]
        everything = jnp.arange(replay.capacity)
        read = quick(lambda state: replay.read(state, *replay.numbered(state, everything)))
        _COMPILED[name] = replay, quick(replay.add), read
    return _COMPILED[name]


class Naive:
    """One stream of episodes, and everything that a step shows, whole. Frames are numbered as they are first shown."""

    def __init__(self, replay: ReplayBuffer, lengths: list[int], seed: int):
        self.rng, self.stack, self.lengths = np.random.default_rng(seed), replay.stack, deque(lengths)
        self.steps, self.frames, self.left = [], 0, 0

    def frame(self) -> dict:
        self.frames += 1
        return {"image": self.rng.integers(0, 256, (2, 2, 2)).astype(np.uint8), "place": self.rng.normal(size=3)}

    def seen(self) -> dict:
        image = np.concatenate([frame["image"] for frame in self.shown], -1)
        return {"image": image, "place": self.shown[-1]["place"].astype(np.float32)}

    def step(self) -> Transition:
        if self.left == 0:
            self.lengths.rotate(-1)
            self.left, first = self.lengths[0], self.frame()
            self.shown, self.oldest = deque([first] * self.stack, maxlen=self.stack), self.frames - 1
        before = self.seen()
        needs = max(self.oldest, self.frames - self.stack)  # the oldest frame of this step's stack
        self.shown.append(self.frame())
        self.left -= 1
        ends = self.left == 0, bool(self.rng.integers(2))
        action, reward = self.rng.normal(size=1).astype(np.float32), np.float32(self.rng.normal())
        step = Transition(before, action, reward, self.seen(), np.bool_(all(ends)), np.bool_(ends[0] and not ends[1]))
        self.steps.append((needs, step))
        return step

    def held(self, replay: ReplayBuffer) -> list[Transition]:
        """The steps that can be drawn, latest first."""
        c, f = replay.room
        return [step for needs, step in reversed(self.steps) if needs >= self.frames - f][:c]


def stacked(steps: list[Transition]) -> Transition:
    return jax.tree.map(lambda *xs: np.stack(xs), *steps)


def equal(one, other) -> bool:
    one, other = (jax.tree.leaves(jax.tree.map(np.asarray, x)) for x in (one, other))
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def filled(name: str, lengths: list[int], n: int, seed: int = 0):
    """(replay, naive streams, state) after n steps."""
    replay, push, _ = compiled(name)
    streams = [Naive(replay, lengths[i:] + lengths[:i], seed + i) for i in range(replay.streams)]
    state = replay.init(spec_of(replay))
    for _ in range(n):
        step = stacked([stream.step() for stream in streams])
        state = push(state, step)
    return replay, streams, state


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(list(CASES)), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 40))
def test_equal_steps_for_equal_numbers(name, lengths, n):
    replay, streams, state = filled(name, lengths, n)
    held = [stream.held(replay) for stream in streams]
    truth = stacked([step for steps in held for step in steps])
    size = int(replay.size(state))
    assert size == sum(map(len, held)) > 0
    assert equal(jax.tree.map(lambda x: x[:size], compiled(name)[2](state)), truth)


def test_every_step_of_the_capacity_is_held_where_episodes_are_long_enough():
    replay, _, state = filled("stack", [4, 4], 60)
    assert int(replay.size(state)) == replay.capacity
    crowded, streams, state = filled("crowded", [1], 60)
    assert int(crowded.size(state)) == len(streams[0].held(crowded)) == 7 < crowded.capacity  # two frames a step


def test_draws_are_even_and_a_window_is_the_latest():
    replay, streams, state = filled("streams", [5, 2], 31)
    rewards = lambda window: [float(s.reward) for x in streams for s in x.held(replay)[:window]]  # noqa: E731
    draw = quick(
        lambda state, window: (replay.sample(state, 4000, jax.random.key(0), window)[0], replay.size(state, window))
    )
    for window, of_each in ((1000, 7), (6, 3), (1, 1)):
        truth = rewards(of_each)
        drawn, size = jax.tree.map(np.asarray, draw(state, window))
        counts = np.array([(drawn.reward == reward).sum() for reward in truth])
        assert counts.sum() == 4000 and size == len(truth) == 2 * of_each
        spread = np.sqrt(4000 / len(truth))
        assert (np.abs(counts - 4000 / len(truth)) < 4 * spread).all()


def test_the_latest_come_oldest_first():
    replay, streams, state = filled("streams", [3, 4], 9)
    wanted = [[stream.held(replay)[2 - t] for stream in streams] for t in range(3)]
    assert equal(quick(lambda state: replay.latest(state, 3))(state), stacked([stacked(row) for row in wanted]))


def test_images_may_come_as_their_last_frames_alone():
    replay, push, _ = compiled("stack")
    naive, one, other = Naive(replay, [3, 5], 0), *(replay.init(spec_of(replay)) for _ in range(2))
    for _ in range(15):
        step = stacked([naive.step()])
        alone = [{**obs, "image": obs["image"][..., -2:]} for obs in (step.obs, step.next_obs)]
        one, other = push(one, step), push(other, step._replace(obs=alone[0], next_obs=alone[1]))
    assert equal(one, other) and int(replay.size(one)) == 12


def test_notes_of_a_bonus_are_kept_beside_a_step():
    replay, spec = ReplayBuffer(4), Spec(Space((2,), jnp.float32), ACTION)
    state = replay.init(spec, (EpisodeNote(trace=np.int32(0)), EpisodeNote(trace=np.zeros(2, np.float32))))
    push = quick(replay.add)
    for i in range(6):
        notes = EpisodeNote(trace=np.array([i], np.int32)), EpisodeNote(trace=np.full((1, 2), i, np.float32))
        blank = np.zeros((1, 2), np.float32), np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
        state = push(state, Transition(*blank, blank[0], np.zeros(1, bool), np.zeros(1, bool), *notes))
    read = quick(lambda state: replay.read(state, *replay.numbered(state, jnp.arange(4))))(state)
    assert read.note.trace.tolist() == [5, 4, 3, 2] and read.next_note.trace[:, 1].tolist() == [5, 4, 3, 2]


def test_a_step_is_written_in_place():
    """A copy of three gigabytes at each step would cost more than learning. Compiled at full size, never allocated."""
    replay, pixels = ReplayBuffer(100_000, stack=3), Spec(Space((100, 100, 9), jnp.uint8), ACTION)
    state = jax.eval_shape(lambda: replay._blank(pixels, (EpisodeNote(), EpisodeNote())))
    obs, number, off = np.zeros((1, 100, 100, 9), np.uint8), np.zeros(1, np.float32), np.zeros(1, bool)
    step = Transition(obs, number[:, None], number, obs, off, off)
    needs = jax.jit(replay.add, donate_argnums=0).lower(state, step).compile().memory_analysis()
    assert needs.temp_size_in_bytes < 1e6 < 3e9 < needs.alias_size_in_bytes


def test_its_size_is_known_before_and_a_naive_one_takes_six_times_as_much(monkeypatch):
    pixels = Spec(Space((100, 100, 9), jnp.uint8), ACTION)
    assert 3.0e9 < ReplayBuffer(100_000, stack=3).size_of(pixels) < 3.5e9
    small = CASES["streams"]
    held = sum(x.nbytes for x in jax.tree.leaves(small.init(spec_of(small))))
    assert small.size_of(spec_of(small)) == held
    monkeypatch.setattr(memory, "free", lambda: 2**31)
    with pytest.raises(ValueError, match=r"needs 2\.9 GiB .* 2\.0 GiB are free .*--set replay\.capacity=.*--seeds"):
        ReplayBuffer(100_000, stack=3).init(pixels)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="capacity=1 and streams=2"):
        ReplayBuffer(1, streams=2)
    with pytest.raises(ValueError, match=r"stack=2 needs images .* \(8, 8, 3\)"):
        ReplayBuffer(10, stack=2).init(Spec(Space((8, 8, 3), jnp.uint8), ACTION))
