"""`python -m benchmarks.rendering`: pictures a second, and what each takes from a device."""

import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import rendering


class Drawers:
    """Stands for processes that draw two pictures a step."""

    n_envs = 2
    spec = SimpleNamespace(action=SimpleNamespace(shape=(1,)))

    def __init__(self):
        self.steps, self.allowed, self.drawn = 0, threading.Semaphore(0), threading.Condition()

    def step(self, actions):
        assert actions.shape == (2, 1)
        self.allowed.acquire()
        with self.drawn:
            self.steps += 1
            self.drawn.notify()


def test_a_picture_costs_what_the_work_beside_it_takes_longer(monkeypatch):
    """By a clock that says three seconds, for work that takes one alone, beside which 50 steps are drawn."""
    drawers, clock = Drawers(), iter([10.0, 13.0])

    class Over(threading.Event):
        def set(self):
            super().set()
            drawers.allowed.release()  # the step that waits, so that its thread ends

    def work():
        wanted = drawers.steps + 50
        drawers.allowed.release(50)
        with drawers.drawn:
            drawers.drawn.wait_for(lambda: drawers.steps == wanted)
        return jnp.zeros(())

    monkeypatch.setattr(rendering, "best_of", lambda work: 1.0)
    monkeypatch.setattr(rendering, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(rendering, "threading", SimpleNamespace(Event=Over, Thread=threading.Thread))
    pictures = 2.0 / rendering.seconds_of_a_picture(drawers, work)  # type: ignore[arg-type]
    assert abs(pictures - 2 * 50) <= 2, "two a step; the last of either piece of work may not be counted yet"


def test_a_chain_is_so_many_products_of_each_other():
    assert float(rendering.chain(3)()[0, 0]) == pytest.approx(float(np.tanh(np.tanh(np.tanh(1.0)))))


def test_where_nothing_draws_the_row_says_so(monkeypatch):
    def refuse():
        raise ValueError("nothing draws here")

    monkeypatch.setattr(rendering.rendering, "choose", refuse)
    (row,) = rendering.measures()
    assert "nothing draws here" in row.name and np.isnan(row.value)


def test_pictures_are_counted_in_both_ways_of_drawing(drawing):
    del drawing  # a way to draw is there
    rows = list(rendering.measures(steps=1, sizes=(1,)))
    assert jax.default_backend() == "cpu" and [row.unit for row in rows] == ["pictures/s"] * 2
    assert ["quick" in row.name for row in rows] == [False, True] and all(row.value > 0 for row in rows)
