"""`python -m benchmarks.dreamer`: a replay full of windows, and rows beside their goals."""

import jax
import numpy as np
import pytest
from contracts.settings import quick

from benchmarks import dreamer
from benchmarks.dreamer import Sizes

TINY = dreamer.ON_A_CPU._replace(steps=1200)


def test_a_full_replay_holds_windows_within_episodes():
    learner = dreamer.learner("none", "float32", TINY)
    whole = jax.eval_shape(lambda: dreamer.filled(learner, jax.random.key(0)))
    assert jax.tree.structure(whole) == jax.tree.structure(jax.eval_shape(learner.start, jax.random.key(0)))
    read = lambda replay: (learner.replay.size(replay), learner.replay.take(replay, np.array([0, 5])).next_obs)  # noqa: E731
    size, frames = quick(lambda key: read(dreamer.filled(learner, key).replay))(jax.random.key(0))
    episodes = [500, 500, 200]
    assert abs(int(size) - sum(n - (TINY.length - 1) for n in episodes)) <= 1
    assert np.asarray(frames).any((-3, -2, -1)).all(), "none that was never written"


def test_rows_stand_beside_their_goals(monkeypatch):
    timed = {("made", "float32"): 1 / 40, ("made", "bfloat16"): 1 / 80}
    monkeypatch.setattr(dreamer, "learner", lambda bonus, precision, sizes: (bonus, precision))
    monkeypatch.setattr(dreamer, "update_seconds", lambda learner, n: timed.get(learner, 0.01))
    monkeypatch.setattr(dreamer, "steps_a_second", lambda run, n, seeds: 400.0 * seeds)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    rows = list(dreamer.measures())
    met = {row.name: (row.value, row.met) for row in rows}
    of = lambda *words: next(x for name, x in met.items() if all(word in name for word in words))  # noqa: E731
    assert of("with made in float32", "50 windows of 50") == (pytest.approx(40), None)
    assert of("with made in bfloat16", "windows") == (pytest.approx(80), True)
    assert of("with none in float32") == (pytest.approx(100), None)
    assert of("in bfloat16, one seed: training") == (400.0, False)
    assert of("500,000 steps")[0] == of("3 seeds side by side", "500,000 steps")[0] == pytest.approx(1250 / 60)
    assert of("3 seeds side by side: training") == (1200.0, True)
    assert len(rows) == 14 and len(met) == 14 and all(row.goal for row in (rows[0], rows[1], rows[3]))
    assert not any(row.goal for row in rows[5:]), "what has a goal comes first"


def test_where_nothing_can_be_drawn_the_row_says_so(monkeypatch):
    def refuse():
        raise ValueError("nothing draws here")

    monkeypatch.setattr(dreamer.rendering, "choose", refuse)
    (row,) = dreamer.training("here", "float32", Sizes(), 450.0)
    assert "nothing draws here" in row.name and np.isnan(row.value) and row.met is None
    run = dreamer.sized(dreamer.control_config("pendulum_swingup", "dreamer", "made"), "bfloat16", TINY)
    assert (run.batch, run.replay.length, run.replay.capacity, run.agent.layout.precision) == (4, 10, 1200, "bfloat16")
    assert (run.train_every, run.updates) == (500, 100), "the paper's ratio"
