"""Never Give Up: novelty within an episode times life-long novelty."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from made.bonuses.embedding import InverseDynamicsEmbedding
from made.bonuses.rnd import RND
from made.core import Bonus, EpisodeMemory, EpisodeNote, NoMemory, running_stats
from made.core.config import ABOVE_ZERO, AT_LEAST_ZERO, COUNT, COUNT_OR_NONE, POSITIVE, Configuration, setting
from made.nets.fit import FitState

SAME = 1e-10  # squared distances below this share of the squared length are rounding: the same observation again


class Kernel(Configuration):
    """The constants of the episodic similarity, with the names and values of the paper's Table of parameters."""

    k: int = setting(10, COUNT, static=True)  # neighbors
    epsilon: float = setting(1e-4, POSITIVE)
    cluster: float = setting(0.008, AT_LEAST_ZERO)  # relative squared distances below this are zero
    offset: float = setting(0.001, POSITIVE)  # c, the pseudo-count's constant
    most: float = setting(8.0, ABOVE_ZERO)  # s_m: beyond this similarity nothing is paid

    def similarity(self, squares: Float[Array, " k"], usual: Float[Array, ""]) -> Float[Array, ""]:
        """sqrt(sum_i K(f, f_i)) + c, with K = epsilon / (max(d_i^2 / d_m^2 - cluster, 0) + epsilon); inf is nobody."""
        relative = jnp.maximum(squares / jnp.maximum(usual, 1e-12) - self.cluster, 0.0)
        return jnp.sqrt(jnp.sum(self.epsilon / (relative + self.epsilon))) + self.offset


class Met(NamedTuple):
    """The embeddings of an episode so far, in order."""

    points: Float[Array, "capacity d"]
    n: Int[Array, ""]


class Seen(NamedTuple):
    """What is noted beside an observation: its episodic novelty, and its mean squared distance to its neighbors."""

    novelty: Float[Array, "*b"]
    distance: Float[Array, "*b"]


class Neighbors(EpisodeMemory):
    """The nearest of this episode's earlier embeddings, and the novelty that follows."""

    features: InverseDynamicsEmbedding
    kernel: Kernel
    capacity: int = eqx.field(static=True)

    def blank(self, spec):
        room = self.capacity or (1000 if spec.horizon is None else spec.horizon + 1)
        return Met(jnp.zeros((max(room, self.kernel.k), self.features.size)), jnp.zeros((), jnp.int32))

    def remember(self, state, memory, obs, key):
        point = self.features.embed(state.features, obs)
        slots = jnp.arange(memory.points.shape[0])
        squares = jnp.sum((memory.points - point) ** 2, -1)
        squares = jnp.where(squares > SAME * jnp.sum(point**2), squares, 0.0)
        squares = jnp.where(slots < memory.n, squares, jnp.inf)
        near = -jax.lax.top_k(-squares, self.kernel.k)[0]
        there = jnp.isfinite(near)
        distance = jnp.sum(jnp.where(there, near, 0.0)) / jnp.maximum(there.sum(), 1)
        usual = jnp.where(state.distances.count > 0, state.distances.mean, distance)
        similarity = self.kernel.similarity(near, usual)
        novelty = jnp.where(similarity > self.kernel.most, 0.0, 1.0 / similarity)
        here = (slots == memory.n % slots.size)[:, None]
        return Met(jnp.where(here, point, memory.points), memory.n + 1), EpisodeNote(trace=Seen(novelty, distance))


class NGUState(NamedTuple):
    """The embedding, the life-long novelty, and the moments of its errors and of the distances to neighbors."""

    features: FitState
    lifelong: PyTree
    errors: running_stats.Moments
    distances: running_stats.Moments


class NGU(Bonus):
    """Novelty within the episode, raised by novelty over all of training.

        b(s, a, s') = r_episodic(s') * min(max(1 + (e(s') - mean e) / std e, 1), most)
        r_episodic = 1 / (sqrt(sum over k neighbors K(f(s'), f_i)) + c), or 0 where that sum is too large

    Badia et al., "Never Give Up" (2020), Algorithm 1; f comes from inverse dynamics and e is RND's squared error.
    Differs from the paper: d_m^2, the usual squared distance, and the moments of e are those of all batches so
    far, and change once an update; there every actor keeps its own.
    """

    features: InverseDynamicsEmbedding = InverseDynamicsEmbedding(size=32)
    lifelong: Bonus = RND(squared=True)
    kernel: Kernel = Kernel()
    most: float = setting(5.0, ABOVE_ZERO)  # L, the largest factor
    capacity: int = setting(0, COUNT_OR_NONE, static=True)  # 0: the task's clock, or 1,000 where it has none

    def __check_init__(self):
        if not isinstance(self.lifelong.memory, NoMemory):
            name = type(self.lifelong).__name__
            raise ValueError(f"NGU takes a life-long bonus without episodic memory, not {name}.")

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys((*self.lifelong.reads, "next_note")))

    @property
    def memory(self) -> EpisodeMemory:  # type: ignore[override]
        return Neighbors(self.features, self.kernel, self.capacity)

    def init(self, key, spec):
        k_features, k_lifelong = jax.random.split(key)
        features, lifelong = self.features.init(k_features, spec), self.lifelong.init(k_lifelong, spec)
        return NGUState(features, lifelong, running_stats.empty(), running_stats.empty())

    def reward(self, state, batch, *, value=None):
        error = self.lifelong.reward(state.lifelong, batch, value=value)
        above = (error - state.errors.mean) / running_stats.scale(state.errors)
        return batch.next_note.trace.novelty * jnp.clip(1.0 + above, 1.0, self.most)

    def update(self, state, batch, key):
        k_features, k_lifelong = jax.random.split(key)
        features, of_features = self.features.update(state.features, batch, k_features)
        lifelong, of_lifelong = self.lifelong.update(state.lifelong, batch, k_lifelong)
        errors = running_stats.merge(state.errors, self.lifelong.reward(lifelong, batch))
        distances = running_stats.merge(state.distances, batch.next_note.trace.distance)
        return NGUState(features, lifelong, errors, distances), {**of_features, **of_lifelong}
