"""What every plug-in shares: the bonus of a step, scaled and added to the reward, and the updates of the bonus."""

from collections.abc import Callable
from os import PathLike
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from made.bonuses.combinators import Lanes, bonus_strength
from made.core import Transition
from made.training import checkpoint_file
from made.training.host.bonus import HostBonus

DECAY = 0.999  # of the mean bonus, a step of all environments: it remembers about a thousand
EPISODES = 0.95  # of the mean length, an ended episode
SHORTEST = 100  # an episode's length, before one has ended and without a horizon


class ReturnRange(NamedTuple):
    """What has been measured so far."""

    bonus: np.ndarray  # the decayed sum of the mean bonus of a step, and of its weights
    weight: np.ndarray
    length: np.ndarray  # the same of the lengths of episodes
    episodes: np.ndarray
    best: np.ndarray  # the largest absolute return of an episode
    returns: np.ndarray  # [N], of the current episodes
    steps: np.ndarray  # [N]


class AutoScale:
    """The factor that gives a bonus its strength, measured while the agent trains.

        factor = strength * largest return / (mean bonus of a step * length of an episode)

    `made.bonuses.combinators.bonus_strength` defines the strength. The largest return is the largest one seen, in
    absolute value, and 1 before any: a sparse task has given no reward when the bonus is needed most. The length is
    `horizon`, or without one the mean length of the episodes so far. The factor follows the mean bonus, so that the
    bonus keeps its strength when it shrinks; use a schedule as `coef` to let it fade.
    """

    def __init__(self, strength: float, n_envs: int, horizon: int | None = None):
        if not 0 < strength < np.inf:
            raise ValueError(f"strength must be a number above 0, for instance 0.3, got {strength}.")
        self.strength, self.horizon = float(strength), horizon
        zero = np.zeros(())
        self.seen = ReturnRange(zero, zero, zero, zero, zero, np.zeros(n_envs), np.zeros(n_envs))

    def see(self, bonus: np.ndarray, extrinsic: np.ndarray, done: np.ndarray, true: np.ndarray) -> None:
        """Take in one step of every environment; only true steps count."""
        seen, ended = self.seen, done & true
        if not true.any():
            return
        returns, steps = seen.returns + np.where(true, extrinsic, 0.0), seen.steps + true
        length, episodes = seen.length, seen.episodes
        for n in steps[ended]:
            length, episodes = EPISODES * length + n, EPISODES * episodes + 1
        best = np.maximum(seen.best, np.abs(returns[ended]).max(initial=0.0))
        means = (DECAY * seen.bonus + float(bonus[true].mean()), DECAY * seen.weight + 1, length, episodes, best)
        self.seen = ReturnRange(*map(np.asarray, means), np.where(done, 0.0, returns), np.where(done, 0.0, steps))

    def scale(self) -> float:
        """The current factor; 0 while the bonus has been 0."""
        seen = self.seen
        if seen.bonus <= 0:
            return 0.0
        mean = seen.length / seen.episodes if seen.episodes > 0 else max(SHORTEST, seen.steps.max())
        length, largest = float(self.horizon or mean), float(seen.best) if seen.best > 0 else 1.0
        return self.strength / float(bonus_strength(1.0, float(seen.bonus / seen.weight), length, largest))


Mode = Literal["both", "intrinsic", "extrinsic"]


class MixedReward(NamedTuple):
    """What one step of every environment earned."""

    reward: np.ndarray  # for the agent, by the mode
    extrinsic: np.ndarray
    intrinsic: np.ndarray  # the coefficient times the bonus


class PluginState(NamedTuple):
    """What a plug-in saves beside its bonus."""

    rows: PyTree  # arrays [n, ...] of one length, which the file decides
    rest: PyTree
    about: dict[str, Any]  # entries of the manifest, which must be equal


class StepBuffer:
    """True transitions that wait to be learned, until every environment has made as many as are asked for.

    Where resets take a step of their own, environments fall behind each other by as many steps as they had resets.
    Once one is far behind, the oldest steps of all are learned together, and nothing is lost.
    """

    def __init__(self, n_envs: int):
        self.steps: list[Transition] = []
        self.true: list[np.ndarray] = []
        self.n_envs = n_envs

    def add(self, step: Transition, true: np.ndarray) -> None:
        """One more step of every environment, of which those marked count."""
        self.steps.append(jax.tree.map(np.asarray, step))
        self.true.append(np.array(true))

    def take(self, length: int) -> Transition | None:
        """The oldest `length` true steps of every environment, leaves [T, N, ...], or None while one lacks them.

        Where one lacks them and four times as many wait, the oldest `length` * N of all, leaves [M, 1, ...] with
        `Lanes` as their extras.
        """
        true, lanes = np.stack(self.true), None
        if (true.sum(0) >= length).all():
            rows = np.stack([np.flatnonzero(column)[:length] for column in true.T], axis=1)
            columns = np.arange(self.n_envs)
        elif len(self.steps) >= 4 * length and true.sum() >= length * self.n_envs:
            rows, columns = np.argwhere(true)[: length * self.n_envs, :, None].swapaxes(0, 1)
            lanes = Lanes(columns[:, 0].astype(np.int32))
        else:
            return None
        batch = jax.tree.map(lambda *x: np.stack(x)[rows, columns], *self.steps)
        batch = batch if lanes is None else batch._replace(extras=lanes)
        true[rows, columns] = False
        first = len(true) if not true.any() else int(np.flatnonzero(true.any(1))[0])
        self.steps, self.true = self.steps[first:], list(true[first:])
        return batch


class RewardMixer:
    """A HostBonus that pays the steps of a vector environment and learns from them.

    coef      a number, or a function of the number of the update k = 1, 2, ... such as made.Power(1.0, 0.5)
    mode      the reward of the agent: "both", "intrinsic" alone, or "extrinsic" alone (the bonus is still computed)
    every     the bonus learns from the last `every` steps of all environments at once, then waits as long again
    strength  what an episode gets from the bonus in total, in units of the largest return: see `AutoScale`
    """

    def __init__(
        self,
        host: HostBonus,
        coef: float | Callable[[int], Any] = 1.0,
        mode: Mode = "both",
        every: int = 128,
        strength: float | None = None,
    ):
        if mode not in ("both", "intrinsic", "extrinsic"):
            raise ValueError(f"mode is 'both', 'intrinsic' or 'extrinsic', not {mode!r}.")
        if every < 1:
            raise ValueError(f"every must be at least 1 step, got {every}.")
        if host.bonus.memory.goal(host.spec) is not None:
            raise ValueError(
                f"{type(host.bonus).__name__} shows goals to the policy, which a plug-in cannot add to its inputs: use "
                "HostBonus in a loop of your own and give note.goal to the policy, or another bonus."
            )
        self.host, self.coef, self.mode, self.every = host, coef, mode, every
        self.auto_scale = None if strength is None else AutoScale(strength, host.n_envs, host.spec.horizon)
        self.waiting, self.updates = StepBuffer(host.n_envs), 0
        self.metrics: dict[str, float] = {}

    def coefficient(self) -> float:
        """What the bonus is multiplied by now."""
        coef = float(self.coef(self.updates + 1) if callable(self.coef) else self.coef)
        return coef if self.auto_scale is None else coef * self.auto_scale.scale()

    def pay(self, step: Transition, extrinsic: np.ndarray, true: np.ndarray | None = None) -> MixedReward:
        """The reward of a step that `host.observe` returned; `true` marks where it was one, and not a reset."""
        true = np.ones(self.host.n_envs, bool) if true is None else true
        bonus = np.where(true, np.asarray(self.host.reward(step), np.float32), np.float32(0))
        if self.auto_scale is not None:
            self.auto_scale.see(bonus, extrinsic, np.asarray(step.terminated | step.truncated), true)
        intrinsic = (np.float32(self.coefficient()) * bonus).astype(extrinsic.dtype)
        self.learn(step, true)
        return MixedReward(self.total(extrinsic, intrinsic), extrinsic, intrinsic)

    def total(self, extrinsic: np.ndarray, intrinsic: np.ndarray) -> np.ndarray:
        """The reward of the agent, by the mode."""
        return {"both": extrinsic + intrinsic, "intrinsic": intrinsic, "extrinsic": extrinsic}[self.mode]

    def learn(self, step: Transition, true: np.ndarray) -> None:
        """Put a step aside, and update the bonus where enough have come together."""
        self.waiting.add(step, true)
        batch = self.waiting.take(self.every)
        if batch is not None:
            coefficient = self.coefficient()
            self.metrics = {**self.host.update(batch), "coefficient": coefficient}
            self.updates += 1

    def save(self, path: str | PathLike, overwrite: bool = False, plugin_state: PluginState | None = None) -> None:
        """Write the bonus and all that is needed to resume to one file."""
        true = np.array(self.waiting.true, bool).reshape(-1, self.host.n_envs)
        parts: dict[str, PyTree] = {"host": self.host.tree(), "own": {**self._own(), "true": true}}
        if self.waiting.steps:
            parts["waiting"] = jax.tree.map(lambda *x: np.stack(x), *self.waiting.steps)
        if plugin_state is not None:
            parts |= {"rows": plugin_state.rows, "rest": plugin_state.rest}
        flat = {part: checkpoint_file.flat(tree) for part, tree in parts.items()}
        arrays = {f"{part}{name}": x for part, named in flat.items() for name, x in named.items()}
        checkpoint_file.save(path, arrays, self._manifest(plugin_state), overwrite)

    def load(self, path: str | PathLike, plugin_state: PluginState | None = None) -> PluginState | None:
        """Resume from a file that `save` wrote for the same bonus, spaces and number of environments.

        Returns what the plug-in saved, where `plugin_state` gives its shapes.
        """
        found, manifest = checkpoint_file.load(path)
        checkpoint_file.check(manifest, self._manifest(plugin_state), path)
        true, steps = found.pop("own['true']"), []

        def part(prefix: str, like: PyTree, free: int = 0) -> PyTree:
            arrays = {name.removeprefix(prefix): x for name, x in found.items() if name.startswith(prefix)}
            return checkpoint_file.unflat(arrays, like, free)

        if plugin_state is not None:
            rows = part("rows", jax.tree.map(lambda x: x[0], plugin_state.rows), free=1)
            plugin_state = plugin_state._replace(rows=rows, rest=part("rest", plugin_state.rest))
        host, own = part("host", self.host.template(manifest["began"])), part("own", self._own())
        if len(true):
            together = part("waiting", self.host.step_template(), free=1)
            steps = [jax.tree.map(lambda x, t=t: np.asarray(x[t]), together) for t in range(len(true))]
        self.host.restore(host)
        self.updates, self.waiting.steps, self.waiting.true = int(own["updates"]), steps, list(true)
        if self.auto_scale is not None:
            self.auto_scale.seen = own["auto_scale"]
        return plugin_state

    def _own(self) -> dict[str, PyTree]:
        scale = {} if self.auto_scale is None else {"auto_scale": self.auto_scale.seen}
        return {"updates": np.int64(self.updates), **scale}

    def _manifest(self, plugin_state: PluginState | None = None) -> dict[str, Any]:
        strength = None if self.auto_scale is None else self.auto_scale.strength
        about = {} if plugin_state is None else plugin_state.about
        return {**self.host.manifest(), "holds": "plug-in", "strength": strength, **about}


class SavesBonus:
    """`save` and `load` of a wrapper that has a `RewardMixer`."""

    payer: RewardMixer

    def save(self, path: str | PathLike, overwrite: bool = False) -> None:
        """Write the state of the bonus, to resume from."""
        self.payer.save(path, overwrite)

    def load(self, path: str | PathLike) -> None:
        """Resume from what `save` wrote."""
        self.payer.load(path)
