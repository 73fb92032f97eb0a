"""`made bench drawing`: pictures a second, and what each takes from a device."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.bench import BENCHES, drawing


class Drawers:
    """Stands for processes that draw: so many pictures in a step of a millisecond."""

    n_envs = 2
    spec = type("Spec", (), {"action": type("Action", (), {"shape": (1,)})})

    def step(self, actions):
        assert actions.shape == (2, 1)
        time.sleep(1e-3)


def test_a_picture_costs_what_the_work_beside_it_takes_longer(monkeypatch):
    monkeypatch.setattr(drawing, "best_of", lambda work: 0.01)

    def work():
        time.sleep(0.05)
        return jnp.zeros(())

    cost = drawing.seconds_of_a_picture(Drawers(), work)  # type: ignore[arg-type]
    assert 0.04 / 100 <= cost <= 0.2 / 2, "at most a hundred pictures in 50 ms, and two at least"
    assert float(drawing.chain(3)()[0, 0]) == pytest.approx(float(np.tanh(np.tanh(np.tanh(1.0)))))


def test_where_nothing_draws_the_row_says_so(monkeypatch):
    def refuse():
        raise ValueError("nothing draws here")

    monkeypatch.setattr(drawing.rendering, "choose", refuse)
    (row,) = BENCHES["drawing"]()
    assert "nothing draws here" in row.name and np.isnan(row.value)


def test_pictures_are_counted_in_both_ways_of_drawing(drawing):
    del drawing  # a way to draw is there
    from made.bench import drawing as bench

    rows = list(bench.measures(steps=1, sizes=(1,)))
    assert jax.default_backend() == "cpu" and [row.unit for row in rows] == ["pictures/s"] * 2
    assert ["quick" in row.name for row in rows] == [False, True] and all(row.value > 0 for row in rows)
