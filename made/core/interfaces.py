"""The nouns of the package: what flows (`Transition`) and who handles it (`Environment`, `Bonus`, `Agent`).

Algorithm 1 of the paper says: estimate densities, form the reward r_k, hand it to any planner. So the one seam
of the code is a function `reward_fn = r_k`. A `Bonus` makes it, an `Agent` consumes it, and neither knows the other.

Objects are frozen and hold configuration only; what changes lives in separate pytrees whose every leaf is an array.
"""

import abc
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from made.core.config import Configuration

if TYPE_CHECKING:  # to a type checker a declared variable must not look like a dataclass field with a place of its own
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar

Metrics = dict[str, Array]
RewardFn = Callable[..., Array]  # r_k(batch, *, value=None), Eq. (5)


class Space(NamedTuple):
    """One leaf of an observation or an action."""

    shape: tuple[int, ...]
    dtype: Any
    n: int | None = None  # how many values a discrete entry takes; None when continuous
    low: float | None = None  # bounds of a continuous entry, where it has them
    high: float | None = None

    def __str__(self) -> str:
        """In the words of an error.

        >>> print(Space((1,), float, low=-2.0, high=2.0)), print(Space((), int, 7)), print(Space((7, 7, 3), int, 11))
        1 number in [-2, 2]
        one of 7
        7 x 7 x 3 entries, each one of 11
        (None, None, None)
        """
        many = " x ".join(map(str, self.shape))
        if self.n is not None:
            return f"{many} entries, each one of {self.n}" if many else f"one of {self.n}"
        within = "" if self.low is None else f" in [{self.low:g}, {self.high:g}]"
        kind = "" if jnp.issubdtype(self.dtype, jnp.floating) else f" of type {jnp.dtype(self.dtype).name}"
        return f"{many or '1'} number{'s' * (many not in ('', '1'))}{kind}{within}"


class ImageSpace(Space):
    """A space of bytes that are pixels, however few: a small one would pass for a grid of symbols."""

    __slots__ = ()


class Spec(NamedTuple):
    """All that an agent or a bonus may know of an environment before it acts."""

    obs: PyTree  # of Space
    action: Space
    goal: Space | None = None  # set when a bonus shows goals to the policy
    horizon: int | None = None  # the clock that truncates an episode, where there is one


class EpisodeNote(NamedTuple):
    """What a bonus writes beside an observation."""

    goal: PyTree = ()  # shown to the policy
    trace: PyTree = ()  # kept for the bonus alone


class Transition(NamedTuple):
    """One step of experience, or many: leaves lead with [], [N], [T, N], [B] or, for a planner, [S, A]."""

    obs: PyTree
    action: Array
    reward: Float[Array, "*b"]
    next_obs: PyTree  # the true successor, never the observation after a reset
    terminated: Bool[Array, "*b"]  # the task ended here: nothing to bootstrap from
    truncated: Bool[Array, "*b"]  # the clock ended it: bootstrap from next_obs
    note: EpisodeNote = EpisodeNote()
    next_note: EpisodeNote = EpisodeNote()
    extras: PyTree = ()  # what the policy wrote down when it acted (logits, ...)


class ReplayContext(NamedTuple):
    """The `extras` of a batch that was sampled from a replay buffer: other steps that a bonus may learn from."""

    new: Transition  # [T, N] every step since the last update, in order
    recent: Transition  # [1, n] drawn uniformly from the last `window` steps
    at: Int[Array, "1 B"] | None = None  # indices of the sampled steps in the replay buffer, where they are known
    new_at: Int[Array, "T N"] | None = None  # indices of the new steps


class Step(NamedTuple):
    """What an environment returns for one action."""

    obs: PyTree
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


class Environment(eqx.Module):
    """A pure environment. It neither resets itself nor keeps a key; `made.training.rollout` does both."""

    spec: AbstractVar[Spec]

    def sample_task(self, key: Key[Array, ""]) -> "Environment":
        """Draw what stays fixed for a whole run (the lock's combination). Most have nothing to draw."""
        del key
        return self

    @abc.abstractmethod
    def reset(self, key: Key[Array, ""]) -> tuple[PyTree, PyTree]:
        """A fresh episode: (state, first observation)."""

    def reset_many(self, key: Key[Array, ""], n: int) -> tuple[PyTree, PyTree]:
        """n fresh episodes, leaves [n, ...]. Environments that find levels by trial override this to share the work."""
        return jax.vmap(self.reset)(jax.random.split(key, n))

    @abc.abstractmethod
    def step(self, state: PyTree, action: Array, key: Key[Array, ""]) -> tuple[PyTree, Step]:
        """One action: (next state, what came of it)."""


class EpisodeMemory(Configuration):
    """What a bonus keeps within one episode of one environment: visit counts, a goal."""

    def goal(self, spec: Spec) -> Space | None:
        """The space of goals it shows to the policy. Most show none."""
        del spec
        return None

    @abc.abstractmethod
    def blank(self, spec: Spec) -> PyTree:
        """The memory before the first observation of an episode."""

    @abc.abstractmethod
    def remember(self, state: PyTree, memory: PyTree, obs: PyTree, key: Key[Array, ""]) -> tuple[PyTree, EpisodeNote]:
        """Take in an observation; return the new memory and the note to store with that observation."""


class NoMemory(EpisodeMemory):
    """Keeps nothing: the choice of every bonus that is not episodic."""

    def blank(self, spec: Spec) -> PyTree:
        return ()

    def remember(self, state: PyTree, memory: PyTree, obs: PyTree, key: Key[Array, ""]) -> tuple[PyTree, EpisodeNote]:
        return memory, EpisodeNote()


LearnsFrom = Literal["batch", "new", "recent"]


def learning_data(batch: Transition, source: LearnsFrom) -> Transition:
    """The part of a batch that an estimator learns from. An on-policy batch is all three."""
    replayed = source != "batch" and isinstance(batch.extras, ReplayContext)
    return getattr(batch.extras, source) if replayed else batch


class Estimator(Configuration):
    """What bonuses and densities have in common: `update`, and the part of a replay that it is called with.

    On-policy, `update` gets the rollout. Off-policy, it gets what `learns_from` names:

        "batch"    the batch sampled from the replay buffer, which the agent learns from too: networks
        "new"      each step once, in order, since the last update: counts, memories
        "recent"   512 steps drawn from the last `window` steps, where `window` is a field of the class:
                   densities of recent experience. The learner draws them, so under replay it sets `window`, and
                   `capacity` where there is such a field, to 512: no step is stored twice

    Each part of a nested bonus gets the data that its own class asks for. What is inside a part that learns from
    "new" or "recent" gets the same data as that part.
    """

    learns_from: ClassVar[LearnsFrom] = "batch"

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        source = cls.__dict__.get("learns_from", "batch")
        if isinstance(source, str) and source not in ("batch", "new", "recent"):
            raise ValueError(f"{cls.__name__}.learns_from is 'batch', 'new' or 'recent', not {source!r}.")
        update = cls.__dict__.get("update")
        if update is None or getattr(update, "__isabstractmethod__", False):
            return

        @functools.wraps(update)
        def selected(self: Estimator, state: PyTree, batch: Transition, key: Key[Array, ""]) -> tuple[PyTree, Metrics]:
            return update(self, state, learning_data(batch, self.learns_from), key)

        cls.update = selected

    @abc.abstractmethod
    def init(self, key: Key[Array, ""], spec: Spec) -> PyTree:
        """The state before any experience."""

    @abc.abstractmethod
    def update(self, state: PyTree, batch: Transition, key: Key[Array, ""]) -> tuple[PyTree, Metrics]:
        """Learn from experience, leaves [T, N, ...]: which under replay, `learns_from` says."""


class Bonus(Estimator):
    """An intrinsic reward: its state, a pure read of it, and how experience changes it."""

    reads: AbstractVar[tuple[str, ...]]  # the fields of a Transition that `reward` looks at, and "value"
    memory: AbstractVar[EpisodeMemory]

    @abc.abstractmethod
    def reward(
        self, state: PyTree, batch: Transition, *, value: Float[Array, " S"] | None = None
    ) -> Float[Array, "*b"]:
        """The bonus of each transition. A pure read that accepts any leading axes."""


class Density(Estimator):
    """An estimate of d^{pi_mix,k}(s, a), the density of recent experience, up to a constant that tau absorbs."""

    @abc.abstractmethod
    def log_density(self, state: PyTree, batch: Transition) -> Float[Array, "*b"]:
        """log d(s, a) + constant. A pure read that accepts any leading axes."""


class Agent(eqx.Module):
    """Whatever acts and plans: a tabular planner, IMPALA, RAD, Dreamer."""

    @abc.abstractmethod
    def init(self, key: Key[Array, ""], spec: Spec) -> PyTree:
        """Parameters, models and optimizer state before any experience."""

    def carry(self, spec: Spec) -> PyTree:
        """Recurrent or latent state at the start of an episode; () when there is none."""
        del spec
        return ()

    def acting_params(self, state: PyTree) -> PyTree:
        """What `act` takes as `state`, prepared once for many steps: the parameters it reads, cast to its precision.

        Agents of control tasks select parts of the state and compute nothing, because programs take its arrays by
        position.
        """
        return state

    @abc.abstractmethod
    def act(
        self, state: PyTree, carry: PyTree, obs: PyTree, goal: PyTree, key: Key[Array, ""], *, explore: bool = True
    ) -> tuple[PyTree, Array, PyTree]:
        """One decision for one environment: (carry, action, extras). `explore=False` is for evaluation."""

    @abc.abstractmethod
    def update(
        self, state: PyTree, batch: Transition, reward_fn: RewardFn, key: Key[Array, ""]
    ) -> tuple[PyTree, Metrics]:
        """Line 6 of Algorithm 1: improve the policy for the reward r_k that `reward_fn` computes."""

    @property
    def kinds(self) -> int:
        """How many kinds of update it makes in turn, such as with and without a step of the actor."""
        return 1

    def at_phase(self, k: int) -> "Agent":
        """The same agent for its k-th update alone, with no choice between the kinds left in the program.

        A GPU that meets a choice has its host wait for all before it, which took a third of an update of RAD.
        """
        del k
        return self


def table_sizes(spec: Spec, who: str) -> tuple[int, int]:
    """(S, A) of an environment with single discrete observations and actions; a clear refusal of any other."""
    obs, action = spec.obs, spec.action
    if not isinstance(obs, Space) or obs.n is None or obs.shape or action.n is None or action.shape:
        raise ValueError(
            f"{who} keeps a table over (s, a), so it needs single discrete observations and actions; this environment "
            f"has observations {obs} and actions {action}. Use one that is built on a network or a hash."
        )
    return obs.n, action.n


def require_fields(bonus: Bonus, batch: Transition, value: Array | None) -> None:
    """Refuse, at trace time, a batch that lacks a field the bonus reads.

    Without this an episodic bonus asked for its value on a grid of all (s, a) would return zeros without a word.
    """
    given = {field: bool(jax.tree.leaves(getattr(batch, field))) for field in batch._fields}
    given["value"] = value is not None
    missing = [field for field in bonus.reads if not given[field]]
    if missing:
        raise ValueError(
            f"{type(bonus).__name__} reads {', '.join(bonus.reads)}, but this batch has no {', '.join(missing)}. "
            "A planner over all (s, a) passes obs, action and value; only a rollout passes next_obs, note and "
            "next_note. Pick a bonus that reads less, or an agent that provides it."
        )


def state_action_grid(n_states: int, n_actions: int, reward: Array | None = None) -> Transition:
    """All pairs (s, a) as a batch [S, A]: how a planner asks `reward_fn` for its whole table."""
    s, a = jnp.meshgrid(jnp.arange(n_states, dtype=jnp.int32), jnp.arange(n_actions, dtype=jnp.int32), indexing="ij")
    never = jnp.zeros(s.shape, bool)
    return Transition(s, a, jnp.zeros(s.shape) if reward is None else reward, (), never, never)
