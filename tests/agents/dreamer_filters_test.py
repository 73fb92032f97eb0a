"""The forms of Dreamer's convolutions that a GPU is given, against those of a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.agents.dreamer_filters import Filters, filters
from made.bonuses.likelihood import outline
from made.bonuses.released import RandomEncoder
from made.core import Space, Spec


def both(monkeypatch, call, *args):
    """What is computed, and its slope by the first argument, on a CPU and as on a GPU."""
    found = []
    for backend in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda name=backend: name)
        weighed = lambda *x: (call(*x) * jnp.arange(call(*x).size).reshape(call(*x).shape)).mean()  # noqa: E731
        found.append((call(*args), jax.grad(weighed)(*args)))
    return found


@pytest.mark.parametrize(
    ("way", "kernel", "side"), [("up", 5, 1), ("up", 5, 5), ("up", 6, 4), ("down", 4, 9), ("down", 4, 8)]
)
def test_both_forms_give_the_same_numbers_and_slopes(way, kernel, side, monkeypatch):
    (layer,) = filters(((kernel, 2),), 3, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2, side, side, 3))
    plain, quick = both(monkeypatch, lambda layer, x: getattr(layer, way)(x), layer, x)
    sides = 2 * side - 2 + kernel if way == "up" else (side - kernel) // 2 + 1
    assert plain[0].shape == quick[0].shape == (2, sides, sides, 2)
    np.testing.assert_allclose(quick[0], plain[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(quick[1].weight, plain[1].weight, rtol=1e-4, atol=1e-3)


def test_many_channels_are_convolved_as_they_are(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr("made.agents.dreamer_filters.from_cells", None)
    layer = Filters(jnp.ones((4, 4, 8, 1)), jnp.zeros(1))
    assert float(layer.down(jnp.ones((1, 4, 4, 8)))[0, 0, 0, 0]) == 128


def test_the_random_encoder_sees_the_same_in_blocks(monkeypatch):
    spec = Spec(Space((18, 15, 9), jnp.uint8), Space((1,), jnp.float32, None, -1.0, 1.0))
    encoder = RandomEncoder(outline(spec, "", ()), 6, jax.random.key(0))
    image = jax.random.bits(jax.random.key(1), (18, 15, 9), jnp.uint8)
    plain = encoder(image)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(type(encoder.convolutions), "__call__", None)
    np.testing.assert_allclose(encoder(image), plain, rtol=1e-4, atol=1e-5)
