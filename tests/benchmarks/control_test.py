"""`python -m benchmarks.control`: a full replay can be learned from, and the rows follow from the timings."""

import jax
import numpy as np
import pytest
from contracts.settings import quick

from benchmarks.control import control_training, update_time
from benchmarks.control.control_training import Stretch
from benchmarks.control.update_time import Sizes, came, filled, pixel_learner, search, state_learner, update_seconds

TINY = Sizes(batch=4, steps=1200, side=24, crop=20, width=8, updates=2, actions=5)


def test_a_full_replay_holds_whole_episodes_that_can_be_drawn():
    learner = state_learner("none", TINY)
    replay = quick(lambda: filled(learner, jax.random.key(0)).replay)()
    assert int(replay.taken) == 1200 and int(learner.replay.size(replay)) > 1190
    every = learner.replay.numbered(replay, np.arange(int(learner.replay.size(replay))))
    drawn = learner.replay.read(replay, *every)
    assert (drawn.obs.any(1) & drawn.next_obs.any(1)).all()  # none that was never written
    stacks = pixel_learner("re3", "bfloat16", TINY)
    state = jax.eval_shape(lambda: filled(stacks, jax.random.key(0)))
    assert state.replay.frames.shape == (1, stacks.replay.room[1], 24, 24, 3)
    assert came(stacks).obs.shape == (1, 1, 24, 24, 3)
    assert jax.tree.structure(state) == jax.tree.structure(jax.eval_shape(stacks.start, jax.random.key(0)))


def test_updates_and_the_search_are_timed_at_small_sizes():
    assert 0 < update_seconds(state_learner("none", TINY), 2, 1) < 10
    seconds, megabytes = search(TINY._replace(batch=64, steps=20_000))
    assert 0 < seconds < 10 and megabytes < 0.5 * 4e-6 * 64 * 20_000  # not a matrix of all distances


def test_an_accelerators_rows_are_set_beside_their_goals(monkeypatch):
    timed = {("made", "float32"): 0.009, ("made", "bfloat16"): 0.004}
    monkeypatch.setattr(
        control_training, "pixel_learner", lambda bonus, precision="float32", sizes=TINY: (bonus, precision)
    )
    monkeypatch.setattr(control_training, "update_seconds", lambda learner, n: timed.get(learner, 0.003))
    monkeypatch.setattr(control_training, "memory", lambda where, sizes: None)
    monkeypatch.setattr(control_training, "search", lambda sizes: (0.001, 3.0))
    monkeypatch.setattr(control_training, "stretch", lambda run, seeds, n: Stretch(0.003 * seeds, {"updates": 0.9}))
    rows = [
        row
        for row in control_training.on_accelerator(
            "here", Sizes(), dict.fromkeys(("float32", "bfloat16"), ("made", "none"))
        )
        if row
    ]
    met = {row.name: (row.value, row.met) for row in rows}
    of = lambda *words: next(x for name, x in met.items() if all(word in name for word in words))  # noqa: E731
    assert of("made", "in float32") == (9.0, False) and of("made", "in bfloat16") == (4.0, True)
    assert of("none", "in bfloat16") == (3.0, None) and of("among 100,000 points of 50 numbers") == (1.0, True)
    assert of("memory")[1] and of("1 seed:", "500,000 steps") == (pytest.approx(12.5), True)
    assert of("3 seeds side by side", "500,000") == (pytest.approx(37.5), None) and of("updates, alone")[0] == 90


def test_a_step_takes_a_sixth_of_the_memory_of_the_release():
    row = control_training.memory("here", Sizes())
    assert row.baseline == 180_000 and row.ratio == pytest.approx(5.9, abs=0.1)


def test_where_nothing_can_be_drawn_the_row_says_so(monkeypatch):
    def refuse():
        raise ValueError("nothing draws here")

    monkeypatch.setattr(control_training.rendering, "choose", refuse)
    (row,) = control_training.training("here", "rad", 1, TINY, 30.0)
    assert "nothing draws here" in row.name and np.isnan(row.value) and row.met is None
    run = control_training.sized(control_training.control_config("pendulum_swingup", "rad", "none"), TINY)
    assert (run.batch, run.replay.capacity, run.task.size, run.agent.layout.crop) == (4, 1200, 24, 20)
    assert run.agent.layout.precision == "bfloat16" and run.seed_steps == 5
    assert update_time.FEATURES == 50
