"""The bonuses that RLeXplore (rllte-core) has too, side by side on the same recorded steps.

Like is compared with like. Ours see the image alone, as theirs do. Their networks are four convolutions and one layer,
models of one hidden layer on top, and no deeper copy in RND; ours have no layer more (`hidden=0`, `deeper=0`) and the
width at which they hold at least as many parameters, if with fewer convolutions. Ours make as many gradient steps on as
many samples: 13 on 256. Theirs gives each of Disagreement's four models every fourth of them; ours makes four steps
with all on 200, as many samples a model. PseudoCounts is the episodic half of NGU. RE3 keeps its 10,000 points; their
store of 1,000 for each environment is full.

Compared is what theirs calls `compute`, which also updates, with our reward and update. E3B's ellipse is part of their
`compute`, so there our remembering is added. RIDE and PseudoCounts remember in their `watch`: compared apart.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from benchmarks.common import Measure
from benchmarks.minigrid import stepping
from made.bonuses import E3B, ICM, NGU, RE3, RIDE, RND, Disagreement, NoBonus
from made.bonuses.embedding import InverseDynamicsEmbedding
from made.core import Bonus
from made.nets.fit import Fit, FitState

FIT = Fit(learning_rate=1e-3, steps=13, batch=256)  # all 3,200 samples in batches of 256, the last one whole
SAME: dict[str, Any] = {"view": "image", "hidden": 0}
CURIOUS = ICM(width=232, fit=FIT, **SAME)


class Pair(NamedTuple):
    """One of our bonuses, made as large as theirs."""

    bonus: Bonus
    theirs: str
    at_once: bool = False  # do they remember while they compute?


PAIRS = {
    "rnd": Pair(RND(width=144, deeper=0, normalize=True, fit=FIT, **SAME), "RND"),
    "re3": Pair(RE3(width=144, k=5, log=True, **SAME), "RE3"),
    "icm": Pair(CURIOUS, "ICM"),
    "e3b": Pair(E3B(InverseDynamicsEmbedding(size=128, width=216, fit=FIT, **SAME)), "E3B", at_once=True),
    "ride": Pair(RIDE(CURIOUS), "RIDE"),
    "ngu": Pair(NGU(InverseDynamicsEmbedding(size=32, width=280, fit=FIT, **SAME), lifelong=NoBonus()), "PseudoCounts"),
    "disagreement": Pair(
        Disagreement(models=4, width=248, fit=Fit(learning_rate=1e-3, steps=4, batch=200), **SAME), "Disagreement"
    ),
}


class Taken(NamedTuple):
    """What one bonus took, in seconds, and how many parameters its networks hold."""

    learning: float
    remembering: float
    parameters: int


def beside(names: list[str], where: str) -> Iterator[Measure]:
    """Ours and theirs, theirs by the interpreter that MADE_RLEXPLORE_PYTHON names."""
    theirs = rlexplore() if names else {}
    for name in names:
        pair, ours = PAIRS[name], ours_of(PAIRS[name].bonus)
        yield from rows(name, pair, ours, theirs.get(pair.theirs, "nothing found"), where)


def ours_of(bonus: Bonus) -> Taken:
    """Ours, on the steps of `stepping.walk`."""
    host = stepping.driven(bonus)
    batch = stepping.walk(host)
    count = parameters(host.state)
    return Taken(stepping.learning(host, batch), stepping.remembering(host, batch), count)


def rows(name: str, pair: Pair, ours: Taken, theirs: Taken | str, where: str) -> Iterator[Measure]:
    """One row for what the goal is about, and one for the remembering where both do it step by step."""
    value = 1e3 * (ours.learning + pair.at_once * ours.remembering)
    told = f"{name}, {ours.parameters:,} parameters, against RLeXplore's {pair.theirs}"
    if isinstance(theirs, str):
        why = f" (not measured: {theirs}; MADE_RLEXPLORE_PYTHON names an interpreter that has rllte-core)"
        yield Measure(told + why, value, "ms", None, None, "3x", None, where)
        return
    other = 1e3 * theirs.learning
    yield Measure(f"{told}, {theirs.parameters:,}", value, "ms", other, other / value, "3x", other >= 3 * value, where)
    if ours.remembering and not pair.at_once:
        value, other = 1e3 * ours.remembering, 1e3 * theirs.remembering
        told = f"{name}, remembering those steps one by one, against RLeXplore's {pair.theirs}"
        yield Measure(told, value, "ms", other, other / value, "", None, where)


def parameters(tree: PyTree) -> int:
    """Weights and biases of every network in a state; an optimiser's moments have the same shapes and do not count."""
    whole = lambda x: isinstance(x, FitState | eqx.nn.Linear | eqx.nn.Conv2d)  # noqa: E731
    count = 0
    for x in jax.tree.leaves(tree, is_leaf=whole):
        if isinstance(x, FitState):
            count += parameters(x.params)
        elif whole(x):
            count += x.weight.size + x.bias.size
    return count


def rlexplore() -> dict[str, Taken | str]:
    """Theirs on the same steps; a sentence in the place of what failed, and nothing where it is not installed."""
    batch = stepping.walk(stepping.driven("none"))
    steps = {name: np.asarray(getattr(batch, name)) for name in ("action", "reward", "terminated", "truncated")}
    steps |= {name: np.asarray(getattr(batch, name)["image"]) for name in ("obs", "next_obs")}
    python = os.environ.get("MADE_RLEXPLORE_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/steps.npz", allow_pickle=False, **steps)
        script = str(Path(__file__).with_name("rlexplore_worker.py"))
        done = subprocess.run([python, script, folder, "3"], capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    return {name: x[:120] if isinstance(x, str) else Taken(*x) for name, x in found.items()}
