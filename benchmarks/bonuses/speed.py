"""`python -m benchmarks.bonuses`: what a bonus costs, reward and update of one batch, beside RND and beside RLeXplore.

The batch is 100 steps of 32 MiniGrid environments. Each bonus of the registry runs with its own settings; what is set
otherwise beside RLeXplore is said in `benchmarks.bonuses.rlexplore`.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from benchmarks.bonuses import rlexplore
from benchmarks.common import Measure, device
from benchmarks.minigrid.stepping import N, T, in_turn, learning, seconds
from made.bonuses import MADE, list_bonuses, make_bonus
from made.core import Space, Spec, Transition
from made.training.host.bonus import HostBonus

IMAGES = 512, (84, 84, 9)  # a batch of the pixel agents


def measures(names: tuple[str, ...] | None = None) -> Iterator[Measure]:
    """Every bonus of the registry that reads grids, MADE against RND, RLeXplore's side by side, and pixels."""
    where, taken = device(), {}
    for name in names or list_bonuses("on_policy"):
        found = seconds(make_bonus(name))
        if found is not None:
            taken[name] = found
            told = f"{name}, reward and update of {N} x {T} steps"
            yield Measure(told, 1e3 * found, "ms", None, None, "", None, where)
    if {"made", "rnd"} <= set(taken):
        ours, theirs = in_turn(make_bonus("made"), make_bonus("rnd"))
        goal, met = "at most twice RND", ours <= 2 * theirs
        yield Measure("made, against rnd, in turn", 1e3 * ours, "ms", 1e3 * theirs, theirs / ours, goal, met, where)
    yield from rlexplore.beside([name for name in rlexplore.PAIRS if name in taken], where)
    yield from pixels([name for name in ("rnd", "made") if name in taken], where)


def pixels(names: list[str], where: str) -> Iterator[Measure]:
    """512 images of 84 x 84 x 9, as the pixel agents draw from replay. On a CPU a call takes minutes: left out."""
    if jax.default_backend() == "cpu":
        return
    size, shape = IMAGES
    spec = Spec(Space(shape, jnp.uint8), Space((6,), jnp.float32, None, -1.0, 1.0))
    k_now, k_next, k_act = jax.random.split(jax.random.key(0), 3)
    images = [jax.random.randint(k, (1, size, *shape), 0, 256, jnp.uint8) for k in (k_now, k_next)]
    off, action = jnp.zeros((1, size), bool), jax.random.uniform(k_act, (1, size, 6), minval=-1.0)
    batch = Transition(images[0], action, jnp.zeros((1, size)), images[1], off, off)
    for name in names:
        bonus = MADE.deep(window=2 * size) if name == "made" else make_bonus(name)
        taken = 1e3 * learning(HostBonus(bonus, spec, size), batch)
        told = f"{name}, reward and update of {size} images of {' x '.join(map(str, shape))}"
        yield Measure(told, taken, "ms", None, None, "", None, where)
