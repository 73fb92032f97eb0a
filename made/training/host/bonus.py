"""A bonus outside compiled code, driven step by step from NumPy or PyTorch, and experience from Gymnasium.

`HostBonus` is the only stateful bonus object. It runs the same `remember`, `reward` and `update` that the compiled
loop runs, so a bonus computes the same numbers in somebody else's training loop.
"""

from os import PathLike
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from made.bonuses import make_bonus
from made.core import Agent, Bonus, EpisodeNote, Space, Spec, Transition, require_fields, trees
from made.core.config import to_dict
from made.envs.host_env import HostEnvironment as HostEnvironment
from made.envs.host_env import space_of as space_of
from made.envs.host_env import spec_of
from made.envs.host_env import true_successor as true_successor
from made.training import checkpoint_file
from made.training.host import calls


class HostBonus:
    """A bonus with its state, its episodic memories and its key.

        HostBonus("made", obs_space, action_space, n_envs, seed=0)     the spaces of one environment
        HostBonus(MADE.tabular(), spec, n_envs, seed=0)                a Spec in the place of the two spaces

    `on_bad` says what happens to observations that are NaN or infinite: "refuse" raises; "report" gives no bonus for
    their transitions, leaves those out of every update and counts them in `bad` and in the metrics. An update with
    transitions left out has a size of its own and is compiled for it. `horizon` is the longest episode,
    where it is known: episodic memories make room for it. `state` is a state to resume from.
    Where tensors of PyTorch come in, tensors go out.
    """

    def __init__(
        self,
        bonus: Bonus | str,
        obs_space: Any,
        action_space: Any = None,
        n_envs: int | None = None,
        seed: int | None = None,
        *,
        on_bad: Literal["refuse", "report"] = "refuse",
        horizon: int | None = None,
        state: PyTree = None,
    ):
        if isinstance(obs_space, Spec):  # it holds both spaces, so whatever was given by place stands one to the left
            n_envs, seed, *_ = [x for x in (action_space, n_envs, seed) if x is not None] + [None, None]
            spec = obs_space
        else:
            spec = spec_of(obs_space, action_space)
        if not isinstance(n_envs, int | np.integer) or n_envs < 1:
            raise ValueError(f"n_envs must be a whole number of at least 1, got {n_envs!r}.")
        if on_bad not in ("refuse", "report"):
            raise ValueError(f"on_bad is 'refuse' or 'report', not {on_bad!r}.")
        self.bonus = bonus_of(bonus)
        # JAX carries 32 bits for 64, unless it is configured to carry more.
        carried = lambda space: space._replace(dtype=jax.dtypes.canonicalize_dtype(space.dtype))  # noqa: E731
        obs = jax.tree.map(carried, spec.obs, is_leaf=calls.is_space)
        spec = spec._replace(obs=obs, action=carried(spec.action), horizon=spec.horizon if horizon is None else horizon)
        self.spec, self.n_envs, self.on_bad, self.bad = spec, int(n_envs), on_bad, 0
        self.key, k_init = jax.random.split(jax.random.key(seed or 0))
        name, memory = type(self.bonus).__name__, self.bonus.memory
        try:
            self.state = self.bonus.init(k_init, spec._replace(goal=memory.goal(spec))) if state is None else state
            self._blank = calls.repeated(memory.blank(spec), self.n_envs)
        except (TypeError, AttributeError, IndexError) as error:
            what = f"observations {spec.obs} with actions {spec.action}"
            raise ValueError(f"{name} cannot read {what}: {error}") from error
        self.memory, self.note, self._like = self._blank, None, None
        self._calls = calls.calls(self.bonus, self.spec, self.n_envs)

    def reset(self, obs: PyTree) -> None:
        """Begin an episode in every environment."""
        taken = self._kept(obs, self.spec.obs, "observations")
        self.memory, self.note, self.key = self._calls.reset(self.state, self.key, taken)

    def begin(self, obs: PyTree, where: Any) -> None:
        """Begin an episode in those environments alone, for loops that see it only one step after the end."""
        taken, where = self._kept(obs, self.spec.obs, "observations"), calls.flags(where, self.n_envs, "where")
        changed = self._calls.begin(self.state, self.memory, self._noted(), self.key, taken, where)
        self.memory, self.note, self.key = changed

    def observe(self, obs, action, reward, next_obs, terminated, truncated, reset_obs=None) -> Transition:
        """Take in one step of every environment and return it as a Transition with the bonus's notes.

        `next_obs` is the true successor; `reset_obs` what the policy sees next, which differs where an episode ended.
        All is copied, since many environments write the next step into the same arrays.
        """
        note, seen = self._noted(), self.spec.obs
        ends = (calls.flags(terminated, self.n_envs, "terminated"), calls.flags(truncated, self.n_envs, "truncated"))
        if reset_obs is None and (ends[0] | ends[1]).any():
            raise ValueError("An episode ended, so HostBonus.step needs reset_obs, the first observation after it.")
        step = Transition(
            self._kept(obs, seen, "observations"),
            self._kept(action, self.spec.action, "actions"),
            calls.copy_checked(reward, Space((), np.float32), self.n_envs, "rewards"),
            self._kept(next_obs, seen, "successors"),
            *ends,  # type: ignore[arg-type]
        )
        began = step.next_obs if reset_obs is None else self._kept(reset_obs, seen, "first observations")
        changed = self._calls.observe(self.state, self.memory, note, self.key, step, began)
        transition, self.memory, self.note, self.key = changed
        return transition

    step = observe  # the name an environment has for it

    def reward(self, batch: Transition, value: Any = None) -> Any:
        """The bonus of each transition, as NumPy, or as a tensor where tensors came in."""
        calls.check_batch(batch, "reward")
        require_fields(self.bonus, batch, value)
        like = calls.tensor_in(batch)
        value = None if value is None else calls.to_jax(value)
        paid, bad = self._calls.reward(self.state, calls.batch_of(batch, self.spec), value)
        if int(bad):
            self._refuse_bad()
            self.bad += int(bad)
        return calls.as_kind(paid, self._like if like is None else like)

    def update(self, batch: Transition) -> dict[str, float]:
        """Learn from a batch [T, N, ...]; returns the bonus's metrics."""
        calls.check_batch(batch, "update", axes=2)
        require_fields(self.bonus, batch, jnp.zeros(()))  # values are asked for by `reward` alone
        batch = calls.batch_of(batch, self.spec)
        bad = np.asarray(self._calls.non_finite(batch))
        counted = {"bad": float(bad.sum())} if self.on_bad == "report" else {}
        if bad.any():
            self._refuse_bad()
            if bad.all():
                return counted
            batch = calls.without(bad, batch)  # of another size, so this update compiles anew
        self.state, metrics, self.key = self._calls.update(self.state, batch, self.key)
        jax.block_until_ready(self.state)  # arrays that were read in place may be written to once this returns
        return {**{name: float(x) for name, x in metrics.items()}, **counted}

    def save(self, path: str | PathLike, overwrite: bool = False) -> None:
        """Write state, memories and key to one safetensors file; nothing is overwritten unless asked."""
        checkpoint_file.save(path, checkpoint_file.flat(self.tree()), self.manifest(), overwrite)

    def load(self, path: str | PathLike) -> None:
        """Go on from a file that `save` wrote for the same bonus, spaces and number of environments."""
        found, manifest = checkpoint_file.load(path)
        checkpoint_file.check(manifest, self.manifest(), path)
        self.restore(checkpoint_file.unflat(found, self.template(manifest["began"])))

    def tree(self) -> dict[str, PyTree]:
        """All that changes."""
        episode = {} if self.note is None else {"memory": self.memory, "note": self.note}
        return {"state": self.state, "key": self.key, "bad": np.int64(self.bad), **episode}

    def template(self, began: bool) -> dict[str, PyTree]:
        """The shape of `tree`, before or after the first reset."""
        memory, note, _ = jax.eval_shape(self._calls.reset, self.state, self.key, self._zeros(self.spec.obs))
        episode = {"memory": memory, "note": note} if began else {}
        return {"state": self.state, "key": self.key, "bad": np.int64(0), **episode}

    def step_template(self) -> Transition:
        """The shape of what `observe` returns."""
        obs, action = self._zeros(self.spec.obs), self._zeros(self.spec.action)
        off, note = jnp.zeros(self.n_envs, bool), self.template(True)["note"]
        step = Transition(obs, action, jnp.zeros(self.n_envs), obs, off, off)
        return jax.eval_shape(self._calls.observe, self.state, self._blank, note, self.key, step, obs)[0]

    def _zeros(self, spaces: PyTree) -> PyTree:
        return jax.tree.map(lambda x: np.zeros((self.n_envs, *x.shape), x.dtype), spaces, is_leaf=calls.is_space)

    def restore(self, tree: dict[str, PyTree]) -> None:
        """Take over what `tree` gave."""
        self.state, self.key, self.bad = tree["state"], tree["key"], int(tree["bad"])
        self.memory, self.note = tree.get("memory", self._blank), tree.get("note")

    def manifest(self) -> dict[str, Any]:
        """What the saved state belongs to, as plain data."""

        def plain(x: Any) -> Any:
            if isinstance(x, Space):
                return {**x._asdict(), "shape": list(x.shape), "dtype": np.dtype(x.dtype).name}
            return {name: plain(inner) for name, inner in x.items()} if isinstance(x, dict) else x

        return {
            "format": checkpoint_file.FORMAT,
            "version": checkpoint_file.VERSION,
            "made": checkpoint_file.made_version(),
            "bonus": to_dict(self.bonus),
            "spec": plain(self.spec._asdict()),
            "n_envs": self.n_envs,
            "holds": "bonus",
            "began": self.note is not None,
        }

    def _noted(self) -> EpisodeNote:
        if self.note is None:
            raise ValueError("HostBonus.step was called before reset: call reset(first observations) once.")
        return self.note

    def _refuse_bad(self) -> None:
        if self.on_bad == "refuse":
            raise ValueError(
                "An observation or action is NaN or infinite, and learning from it would spoil the bonus for good: fix "
                "the environment, or pass on_bad='report' to give no bonus for such steps and count them."
            )

    def _kept(self, given: PyTree, space: PyTree, what: str) -> PyTree:
        tensor = calls.tensor_in(given)
        self._like = self._like if tensor is None else tensor.new_empty(0)
        taken = calls.copy_checked(given, space, self.n_envs, what)
        floats = (x for x in jax.tree.leaves(taken) if np.issubdtype(x.dtype, np.floating))
        if not all(np.isfinite(x).all() for x in floats):
            self._refuse_bad()
        return taken


def bonus_of(given: Any) -> Bonus:
    """A bonus, or the one of that name; a clear error for a class or a function that makes one."""
    if isinstance(given, Bonus):
        return given
    if isinstance(given, str):
        return make_bonus(given)
    if callable(given):
        name, what = getattr(given, "__qualname__", "it"), "class" if isinstance(given, type) else "function"
        raise ValueError(f"The bonus is the {what} {name}, but an object is needed: pass {name}().")
    raise ValueError(f"The bonus must be a Bonus or a name such as 'rnd', not a {type(given).__name__}.")


_join = jax.jit(trees.stack)  # as one program: a rollout is hundreds of arrays


class HostRollout:
    """Experience from a Gymnasium vector environment, in the same Transition as the compiled rollout's.

    `returns` and `lengths` are those of the episodes that have ended. Without a seed nothing begins until `begin`.
    """

    def __init__(self, env: HostEnvironment, agent: Agent, bonus: HostBonus, seed: int | None = 0):
        self.env, self.agent, self.bonus = env, agent, bonus
        self._act = calls.decisions(agent, env.spec, env.n_envs)
        if seed is not None:
            self.begin(seed)

    def begin(self, seed: int) -> None:
        """Begin an episode everywhere; those in flight are left and counted nowhere."""
        n, self.key = self.env.n_envs, jax.random.key(seed)
        self.carry = calls.repeated(self.agent.carry(self.env.spec), n)
        self.obs, _ = self.env.venv.reset(seed=seed)
        self.total, self.length, self.ended = np.zeros(n), np.zeros(n, int), np.ones(n, bool)
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.bonus.reset(self.obs)

    def collect(self, agent_state: PyTree, length: int, *, explore: bool = True) -> Transition:
        """`length` steps of every environment, leaves [T, N, ...]."""
        return _join([self._step(agent_state, explore) for _ in range(length)])

    def play(self, agent_state: PyTree, seed: int, *, explore: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """(returns, lengths) of one whole episode in each environment, begun from that seed; nothing is learned."""
        self.begin(seed)
        returns, lengths, over = np.zeros(self.env.n_envs), np.zeros(self.env.n_envs, int), np.zeros_like(self.ended)
        while not over.all():
            step = self._step(agent_state, explore)
            lengths += ~over
            returns += np.where(over, 0.0, step.reward)
            over |= self.ended
        return returns, lengths

    def _step(self, agent_state: PyTree, explore: bool) -> Transition:
        obs = calls.copy_checked(self.obs, self.env.spec.obs, self.env.n_envs, "observations")
        goal = self.bonus.note.goal  # type: ignore[union-attr]
        decided = self._act(agent_state, self.key, self.carry, self.ended, obs, goal, explore=explore)
        self.key, self.carry, action, extras = decided
        action = self.env.within_bounds(np.asarray(action))
        after, reward, terminated, truncated, info = self.env.venv.step(action)
        self.ended = terminated | truncated
        successor = true_successor(after, info, self.ended)
        transition = self.bonus.step(obs, action, reward, successor, terminated, truncated, after)
        self.total, self.length, self.obs = self.total + reward, self.length + 1, after
        self.returns.extend(self.total[self.ended].tolist())
        self.lengths.extend(self.length[self.ended].tolist())
        self.total[self.ended], self.length[self.ended] = 0.0, 0
        return transition._replace(extras=extras)
