"""Numbers of agents that learn from rollouts, and of what bonuses learn by, out of range: refused as they are set."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.agents import IMPALA, ModelPPO, QLearning, ValueIteration
from made.agents.policy_net import Layout
from made.cli import main
from made.core import trees
from made.nets.fit import Fit
from made.training.backends import compiled_envs

INF, NAN = float("inf"), float("nan")
OUT_OF_RANGE = {
    IMPALA: {
        "learning_rate": (-1.0, 0.0, INF, NAN),
        "decay": (-1.0, INF),
        "epsilon": (-1e-5, 0.0),
        "smoothing": (-0.1, 1.0),
        "entropy": (-1e-3,),
        "baseline": (-0.5,),
        "discount": (-0.1, 2.0, NAN),
        "discount_intrinsic": (-0.1, 1.5),
        "clip": (0.0, -1.0),
        "clip_gradient": (0.0, -40.0),
    },
    ModelPPO: {"alpha": (-0.1, 0.0), "gamma": (-3.0, 1.1), "v_max": (-1.0,), "initial": (NAN,), "sweeps": (0, -1)},
    QLearning: {"horizon": (-1.0,), "gamma": (-3.0, 1.1), "epsilon": (-0.1, 1.1), "v_max": (-1.0,), "initial": (INF,)},
    ValueIteration: {"gamma": (-3.0, 1.1), "epsilon": (2.0,), "monotone": (-1.0,), "sweeps": (0,), "v_max": (-1.0,)},
    Fit: {"learning_rate": (-1.0, 0.0), "clip": (0.0,), "epsilon": (-1.0, 0.0)},
    Layout: {"width": (0,), "layers": (-1,)},
}
EDGES = {
    IMPALA: ({"discount": 1, "smoothing": 0.0, "clip": INF, "clip_gradient": INF}, {"discount": 0.0, "entropy": 0}),
    ModelPPO: ({"gamma": 1.0, "v_max": 0.0, "initial": -1.0, "sweeps": 1},),
    QLearning: ({"horizon": 0, "gamma": 0.0, "epsilon": 1.0},),
    ValueIteration: ({"gamma": 1.0, "monotone": 0.0, "epsilon": 1},),
    Fit: ({"clip": INF},),
    Layout: ({"width": 1, "layers": 1},),
}


@pytest.mark.parametrize("kind", OUT_OF_RANGE)
def test_numbers_out_of_range_are_refused_and_the_edges_are_not(kind):
    for name, numbers in OUT_OF_RANGE[kind].items():
        for x in numbers:
            with pytest.raises(ValueError, match=rf"^{kind.__name__} takes a .* as {name}, got {x}: .* is usual\.$"):
                kind(**{name: x})
            with pytest.raises(ValueError, match=f"as {name}, got"):
                kind(**{name: np.float32(x) if isinstance(x, float) else x})
    for numbers in EDGES[kind]:
        kind(**numbers)


def test_numbers_that_are_traced_or_stacked_are_left_alone():
    """A search runs learning rates as lanes of one program, and differentiates through none of them."""
    lanes = trees.stack([IMPALA(), IMPALA(learning_rate=6e-4)])
    assert np.allclose(dataclasses.replace(lanes, learning_rate=-lanes.learning_rate).learning_rate, [-1e-4, -6e-4])
    assert jax.jit(lambda x: dataclasses.replace(IMPALA(), discount=x).discount)(1.5) == 1.5
    assert jax.vmap(lambda one: dataclasses.replace(one, discount=one.discount + 1).discount)(lanes).shape == (2,)
    assert IMPALA(discount=jnp.float32(1.5)).discount == 1.5
    assert Fit(learning_rate=jnp.float32(-1)).learning_rate == -1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--bonus made --set agent.learning_rate=-1", "IMPALA takes a finite number above 0 as learning_rate, got -1"),
        ("--set agent.discount=2", "IMPALA takes a number from 0 to 1 as discount, got 2.0: 0.99 is usual."),
        ("--set agent.layout.dense=(0,)", "Layout takes sizes of at least 1"),
        ("--bonus rnd --set bonus.fit.learning_rate=-1", "Fit takes a finite number above 0 as learning_rate, got -1"),
        ("--strength 0.4 --set bonus.strength=-2", "Calibrated takes a number of at least 0 as strength, got -2.0"),
        (
            "--set resets_per_update=0",
            "RunConfig.resets_per_update must be a whole number of at least 1, or None for one at every step; got 0",
        ),
        ("--set env.maker.max_steps=0", "max_steps"),
    ],
)
def test_made_train_refuses_them_in_one_line_before_anything_is_compiled(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled_envs, "CompiledBackend", lambda *given: pytest.fail("it was begun"))
    asked = ["train", "--env", "DoorKey-5x5", "--steps", "10k", *words.split(), "--out", str(tmp_path / "run")]
    assert main.main(asked) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lock agent.gamma=-3", "takes a number from 0 to 1 as gamma, got -3.0: "),
        ("lock agent.epsilon=1.5", "takes a number from 0 to 1 as epsilon, got 1.5"),
        ("lock env.family.gamma=2", "gamma is 2.0, but a discount must lie in [0, 1)"),
        ("objective lam=-1", "Identities takes a finite number above 0 as lam, got -1.0: 0.1 is usual."),
        ("chain first=1.5", "Ascent takes a number from 0 to 1 as first, got 1.5: 0.25 is usual."),
        ("density unroll=0", "Estimates takes a whole number of at least 1 as unroll, got 0: 64 is usual."),
    ],
)
def test_made_run_refuses_them_and_stores_nothing(words, message, capsys, tmp_path):
    name, setting = words.split()
    assert main.main(["run", name, "--scale", "smoke", "--set", setting, "--out", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and not list(tmp_path.iterdir())
