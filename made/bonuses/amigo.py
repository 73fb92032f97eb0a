"""Adversarially motivated intrinsic goals: a teacher sets goals that the policy can just about reach."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from made import nets
from made.bonuses.embedding import he_scaled
from made.core import Bonus, EpisodeMemory, EpisodeNote, Space, Spec, Transition, dict_obs, trees
from made.core.config import ABOVE_ZERO, AT_LEAST_ZERO, COUNT, setting
from made.nets.fit import Fit, FitState, with_prefix

BLOCK = 128  # outcomes that the teacher learns from at a time
CONV_3X3 = functools.partial(eqx.nn.Conv2d, kernel_size=3, padding=1)


class GoalSpace(NamedTuple):
    """What goals there are in one part of an observation. `kind` says what reaching goal g means:

    cells    an image [w, h, c]: cell g, at `[g // h][g % h]`, differs from what it was when the goal was set
    values   one discrete number: the observation is g
    regions  any other array: it lies in region g of 2^bits, told by the signs of random planes
    """

    kind: str
    n: int
    space: Space

    @property
    def inputs(self) -> int:
        """The length of the part as a vector."""
        return math.prod(self.space.shape) * (self.space.n or 1)


def goal_space(obs: PyTree, view: str, bits: int) -> GoalSpace:
    """The goals in an observation of these spaces."""
    parts = jax.tree.leaves(dict_obs.looked_at(obs, view), is_leaf=lambda x: isinstance(x, Space))
    if len(parts) != 1:
        raise ValueError(
            f"AMIGo sets goals in one part of an observation, and view={view!r} leaves {len(parts)}: "
            f"name one of {', '.join(map(repr, obs))}."
        )
    space: Space = parts[0]
    if space.n is None and len(space.shape) == 3:
        return GoalSpace("cells", math.prod(space.shape[:2]), space)
    return GoalSpace("values", space.n, space) if space.n and not space.shape else GoalSpace("regions", 2**bits, space)


class Teacher(eqx.Module):
    """pi(g | o) over goals, and a value v(o) as its baseline.

    Over cells it is four 3 x 3 convolutions, as in the authors' code; bytes come in as log(1 + x), which is of
    order one both for the small numbers of a grid and for pixels. Over other goals it is an MLP.
    """

    layers: tuple[eqx.nn.Conv2d | eqx.nn.Linear, ...]
    worth: eqx.nn.Linear
    goals: GoalSpace = eqx.field(static=True)

    def __init__(self, goals: GoalSpace, width: int, *, key: Key[Array, ""]):
        keys = jax.random.split(key, 5)
        if goals.kind == "cells":
            sizes, layer = (goals.space.shape[-1], 16, 16, 16, 1), CONV_3X3
        else:
            sizes, layer = (goals.inputs, width, width, goals.n), eqx.nn.Linear
        layers = [layer(i, o, key=k) for (i, o), k in zip(itertools.pairwise(sizes), keys, strict=False)]
        # The last layer is small, so that goals start nearly even.
        self.layers, self.goals = (*he_scaled(tuple(layers[:-1])), layers[-1]), goals
        self.worth = eqx.nn.Linear(sizes[-2], 1, key=keys[-1])

    def __call__(self, part: Array) -> tuple[Float[Array, " goals"], Float[Array, ""]]:
        """Logits of the goals, and the value."""
        x = part if self.goals.kind == "cells" else nets.as_vector(part, self.goals.space)
        if self.goals.kind == "cells" and part.dtype == jnp.uint8:
            x = jnp.log1p(part.astype(float))

        def apply(layer, x):  # convolutions as products, since vectorized runs would make grouped convolutions
            return nets.convolve(layer, x, products=True) if self.goals.kind == "cells" else layer(x)

        for layer in self.layers[:-1]:
            x = jax.nn.elu(apply(layer, x))
        return apply(self.layers[-1], x).reshape(-1), self.worth(x.reshape(-1, x.shape[-1]).mean(0))[0]


class Pursuit(NamedTuple):
    """The goal at hand: since how many steps, and what was observed when it was set."""

    goal: Int[Array, "*b"]
    seen: Array
    steps: Int[Array, "*b"]
    flag: Bool[Array, "*b"]  # in memory: a goal has been set; in a note's trace: it has been reached


class Goals(EpisodeMemory):
    """Keeps a goal until it is reached, then asks the teacher for another. The trace says how the last one went."""

    view: str = eqx.field(static=True)
    bits: int = eqx.field(static=True)

    def goal(self, spec):
        return Space((), jnp.int32, goal_space(spec.obs, self.view, self.bits).n)

    def blank(self, spec):
        space, zero = goal_space(spec.obs, self.view, self.bits).space, jnp.zeros((), jnp.int32)
        return Pursuit(zero, jnp.zeros(space.shape, space.dtype), zero, jnp.zeros((), bool))

    def remember(self, state, memory, obs, key):
        teacher: Teacher = state.teacher.params
        (part,) = jax.tree.leaves(dict_obs.looked_at(obs, self.view))
        reached = memory.flag & is_reached(teacher.goals, state.planes, memory, part)
        told = memory._replace(steps=memory.steps + 1, flag=reached)
        drawn = jax.random.categorical(key, teacher(part)[0]).astype(jnp.int32)
        fresh = Pursuit(drawn, part, jnp.zeros((), jnp.int32), jnp.ones((), bool))
        after = trees.select(reached | ~memory.flag, fresh, told._replace(flag=memory.flag))
        return after, EpisodeNote(after.goal, told)


def is_reached(goals: GoalSpace, planes: Float[Array, "bits i"], set_: Pursuit, part: Array) -> Bool[Array, ""]:
    """Whether an observation fulfils the goal."""
    if goals.kind == "cells":
        changed = (part != set_.seen).any(-1).reshape(-1)
        return jnp.any(changed & (jnp.arange(goals.n) == set_.goal))
    if goals.kind == "values":
        return part == set_.goal
    # A region has one bit for the side of each plane. The last column is the planes' offset.
    sides = planes[:, :-1] @ nets.as_vector(part, goals.space) + planes[:, -1] > 0
    return jnp.sum(sides * 2 ** jnp.arange(planes.shape[0])).astype(jnp.int32) == set_.goal


class AMIGoState(NamedTuple):
    """The teacher, the planes between regions, t* with the successes in a row that raise it, and the task's clock."""

    teacher: FitState
    planes: Float[Array, "bits i"]
    target: Float[Array, ""]
    streak: Float[Array, ""]
    clock: Float[Array, ""]


class AMIGo(Bonus):
    """Reward for reaching the goal of a teacher; the teacher is rewarded for goals that take some time to reach.

        b = 1[goal reached] (1 - 0.9 t / T),   t steps since the goal was set, T the task's clock
        teacher: alpha if reached in t >= t* steps, -beta if sooner or never, 1 where the environment gives a reward

    Campero et al., "Learning with AMIGo" (2021). What goals are follows from the observed part, see `GoalSpace`; on
    grids use view="full". The policy sees the goal, a number, with its observation. t* rises by 1 after
    `patience` goals in a row reached in t >= t*, once an update at most. Differs from the authors' code: there t* rises
    after ten batches whose mean is above -0.5, which is always so.
    """

    alpha: float = setting(0.7, AT_LEAST_ZERO)
    beta: float = setting(0.3, AT_LEAST_ZERO)
    target: float = setting(7.0, ABOVE_ZERO)  # t* at the start
    furthest: float = setting(100.0, ABOVE_ZERO)  # t* at most
    patience: float = setting(10.0, ABOVE_ZERO)
    entropy: float = setting(0.01, AT_LEAST_ZERO)
    width: int = setting(256, COUNT, static=True)
    bits: int = setting(6, range(1, 17), static=True)  # for 2^bits regions
    view: str = eqx.field(static=True, default="")
    fit: Fit = Fit(learning_rate=1e-3)
    reads: ClassVar[tuple[str, ...]] = ("next_note",)

    @property
    def memory(self) -> EpisodeMemory:  # type: ignore[override]
        return Goals(self.view, self.bits)

    def init(self, key, spec: Spec):
        k_teacher, k_planes = jax.random.split(key)
        goals = goal_space(spec.obs, self.view, self.bits)
        planes = jax.random.normal(k_planes, (self.bits, goals.inputs + 1) if goals.kind == "regions" else (0, 0))
        teacher = self.fit.init(Teacher(goals, self.width, key=k_teacher))
        clock = jnp.asarray(1000 if spec.horizon is None else spec.horizon, float)
        return AMIGoState(teacher, planes, jnp.asarray(self.target, float), jnp.zeros(()), clock)

    def reward(self, state, batch, *, value=None):
        told: Pursuit = batch.next_note.trace
        return jnp.where(told.flag, 1.0 - 0.9 * told.steps / state.clock, 0.0)

    def update(self, state, batch, key):
        told, over, good, earned = self._outcomes(state, batch)
        weight = over / jnp.maximum(over.sum(), 1.0)

        def loss(teacher: Teacher, items):
            seen, goal, weight, earned = items
            logits, worth = jax.vmap(teacher)(seen)
            logs = jax.nn.log_softmax(logits)
            said = jnp.take_along_axis(logs, goal[:, None], -1)[:, 0]
            gained = -jnp.sum(weight * jax.lax.stop_gradient(earned - worth) * said)
            fitted = 0.5 * jnp.sum(weight * (earned - worth) ** 2)
            spread = -jnp.sum(weight * jnp.sum(jnp.exp(logs) * logs, -1))
            return gained + fitted - self.entropy * spread, {"entropy": spread}

        items = (*trees.flatten_leading((told.seen, told.goal), 2), weight, earned)
        summed = lambda teacher, items, key: _sum_over_outcomes(loss, teacher, items, items[2] > 0)  # noqa: E731
        teacher, metrics = self.fit.fit(summed, state.teacher, items, key)
        teacher = trees.select(over.any(), teacher, state.teacher)  # without an outcome there is nothing to learn

        # The goals in a row reached in due time, in the order of outcomes.
        wins = state.streak + jnp.cumsum(over * good)
        row = wins - jax.lax.cummax(jnp.where((over > 0) & ~good, wins, 0.0))
        rise = (row.max() >= self.patience) & (state.target < self.furthest)
        target, streak = jnp.where(rise, state.target + 1.0, state.target), jnp.where(rise, 0.0, row[-1])
        metrics |= {"target": target, "reached": jnp.mean(told.flag), "paid": jnp.sum(weight * earned)}
        return state._replace(teacher=teacher, target=target, streak=streak), with_prefix(metrics, "amigo")

    def _outcomes(self, state: AMIGoState, batch: Transition):
        """(what was pursued, [M] whether that is decided here, whether in due time, what the teacher earned by it)."""
        told: Pursuit = batch.next_note.trace
        over = told.flag | batch.terminated | batch.truncated
        good = told.flag & (told.steps >= state.target)
        earned = jnp.where(batch.reward > 0, 1.0, jnp.where(good, self.alpha, -self.beta))
        return told, over.reshape(-1).astype(float), good.reshape(-1), earned.reshape(-1)


def _sum_over_outcomes(loss: Callable, teacher: Teacher, items: PyTree, decided: Bool[Array, " m"]) -> tuple:
    """A loss that is a sum over items, and its metrics, computed on the decided items alone, `BLOCK` at a time.

    Few steps of a batch decide a goal. A while loop has no reverse mode: it also sums the gradient, and the result is
    the value plus a term that is zero and has this gradient.
    """
    size, params = min(BLOCK, decided.size), jax.lax.stop_gradient(teacher)
    order = jnp.nonzero(decided, size=-(-decided.size // size) * size, fill_value=decided.size)[0]

    def block(i):
        at = jax.lax.dynamic_slice_in_dim(order, i * size, size)
        part = jax.tree.map(lambda x: x.at[at].get(mode="fill", fill_value=0), items)
        return jax.value_and_grad(loss, has_aux=True)(params, part)

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(block, 0))
    more = lambda carry: carry[0] * size < decided.sum()  # noqa: E731
    step = lambda carry: (carry[0] + 1, jax.tree.map(jnp.add, carry[1], block(carry[0])))  # noqa: E731
    _, ((value, metrics), gradient) = jax.lax.while_loop(more, step, (0, zeros))
    linear = jax.tree.reduce(jnp.add, jax.tree.map(jnp.vdot, gradient, teacher))
    return value + linear - jax.lax.stop_gradient(linear), metrics
