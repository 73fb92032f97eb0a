"""`made bench drawing`: pictures a second, and what each takes from a device."""

import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.common import BENCHES
from benchmarks.control import rendering_speed


class Drawers:
    """Stands for processes that draw two pictures a step."""

    n_envs = 2
    spec = SimpleNamespace(action=SimpleNamespace(shape=(1,)))
    steps = 0

    def step(self, actions):
        assert actions.shape == (2, 1)
        self.steps += 1
        time.sleep(1e-4)  # others want to run too


def test_a_picture_costs_what_the_work_beside_it_takes_longer(monkeypatch):
    """By a clock that says three seconds, for work that takes one alone, whenever who runs."""
    drawers, clock, seen = Drawers(), iter([10.0, 13.0]), []

    def now():
        seen.append(drawers.steps)
        return next(clock)

    def work():
        wanted = drawers.steps + 50
        while drawers.steps < wanted:
            time.sleep(1e-4)
        return jnp.zeros(())

    monkeypatch.setattr(rendering_speed, "best_of", lambda work: 1.0)
    monkeypatch.setattr(rendering_speed, "time", SimpleNamespace(perf_counter=now))
    pictures = 2.0 / rendering_speed.seconds_of_a_picture(drawers, work)  # type: ignore[arg-type]
    assert abs(pictures - 2 * (seen[1] - seen[0])) <= 2 * 2, "two a step; one may be under way at either end"


def test_a_chain_is_so_many_products_of_each_other():
    assert float(rendering_speed.chain(3)()[0, 0]) == pytest.approx(float(np.tanh(np.tanh(np.tanh(1.0)))))


def test_where_nothing_draws_the_row_says_so(monkeypatch):
    def refuse():
        raise ValueError("nothing draws here")

    monkeypatch.setattr(rendering_speed.rendering, "choose", refuse)
    (row,) = BENCHES["drawing"]()
    assert "nothing draws here" in row.name and np.isnan(row.value)


def test_pictures_are_counted_in_both_ways_of_drawing(drawing):
    del drawing  # a way to draw is there
    from benchmarks.control import rendering_speed as bench

    rows = list(bench.measures(steps=1, sizes=(1,)))
    assert jax.default_backend() == "cpu" and [row.unit for row in rows] == ["pictures/s"] * 2
    assert ["quick" in row.name for row in rows] == [False, True] and all(row.value > 0 for row in rows)
