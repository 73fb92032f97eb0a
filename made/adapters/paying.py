"""What every plug-in shares: the bonus of a step, scaled, added to the reward, and learnt from every so many steps."""

from collections.abc import Callable
from os import PathLike
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from made import saving
from made.adapters.share import Share
from made.bonuses.combine import Lanes
from made.core import Transition
from made.host import HostBonus

Mode = Literal["both", "intrinsic", "extrinsic"]


class Paid(NamedTuple):
    """What one step of every environment earned."""

    reward: np.ndarray  # for the agent, by the mode
    extrinsic: np.ndarray
    intrinsic: np.ndarray  # tau times the bonus


class Beside(NamedTuple):
    """What a plug-in saves beside its bonus."""

    rows: PyTree  # arrays [n, ...] of one length, which the file decides
    rest: PyTree
    about: dict[str, Any]  # entries of the manifest, which must be equal


class Waiting:
    """True transitions that wait to be learnt, until every environment has made as many as are asked for.

    Where resets take a step of their own, environments fall behind each other by as many steps as they had resets.
    Once one is far behind, the oldest steps of all are learnt together, and nothing is lost.
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
        true, extras = np.stack(self.true), ()
        if (true.sum(0) >= length).all():
            rows = np.stack([np.flatnonzero(column)[:length] for column in true.T], axis=1)
            columns = np.arange(self.n_envs)
        elif len(self.steps) >= 4 * length and true.sum() >= length * self.n_envs:
            rows, columns = np.argwhere(true)[: length * self.n_envs, :, None].swapaxes(0, 1)
            extras = Lanes(columns[:, 0].astype(np.int32))
        else:
            return None
        batch = jax.tree.map(lambda *x: np.stack(x)[rows, columns], *self.steps)
        batch = batch._replace(extras=extras) if extras else batch
        true[rows, columns] = False
        first = len(true) if not true.any() else int(np.flatnonzero(true.any(1))[0])
        self.steps, self.true = self.steps[first:], list(true[first:])
        return batch


class Payer:
    """A HostBonus that pays the steps of a vector environment and learns from them.

    tau     a number, or a function of the number of the update k = 1, 2, ... such as made.Power(1.0, 0.5)
    mode    what the agent is paid: "both", "intrinsic" alone, or "extrinsic" alone (the bonus is still computed)
    every   the bonus learns from the last `every` steps of all environments at once, then waits as long again
    share   scale the bonus so that an episode earns this share of the prize: see `Share`
    """

    def __init__(
        self,
        host: HostBonus,
        tau: float | Callable[[int], Any] = 1.0,
        mode: Mode = "both",
        every: int = 128,
        share: float | None = None,
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
        self.host, self.tau, self.mode, self.every = host, tau, mode, every
        self.share = None if share is None else Share(share, host.n_envs, host.spec.horizon)
        self.waiting, self.updates = Waiting(host.n_envs), 0
        self.metrics: dict[str, float] = {}

    def coefficient(self) -> float:
        """What the bonus is multiplied by now."""
        tau = float(self.tau(self.updates + 1) if callable(self.tau) else self.tau)
        return tau if self.share is None else tau * self.share.scale()

    def pay(self, step: Transition, extrinsic: np.ndarray, true: np.ndarray | None = None) -> Paid:
        """The reward of a step that `host.observe` returned; `true` marks where it was one, and not a reset."""
        true = np.ones(self.host.n_envs, bool) if true is None else true
        bonus = np.where(true, np.asarray(self.host.reward(step), np.float32), np.float32(0))
        if self.share is not None:
            self.share.see(bonus, extrinsic, np.asarray(step.terminated | step.truncated), true)
        intrinsic = (np.float32(self.coefficient()) * bonus).astype(extrinsic.dtype)
        self.learn(step, true)
        reward = {"both": extrinsic + intrinsic, "intrinsic": intrinsic, "extrinsic": extrinsic}[self.mode]
        return Paid(reward, extrinsic, intrinsic)

    def learn(self, step: Transition, true: np.ndarray) -> None:
        """Put a step aside, and update the bonus where enough have come together."""
        self.waiting.add(step, true)
        batch = self.waiting.take(self.every)
        if batch is not None:
            coefficient = self.coefficient()
            self.metrics = {**self.host.update(batch), "coefficient": coefficient}
            self.updates += 1

    def save(self, path: str | PathLike, overwrite: bool = False, beside: Beside | None = None) -> None:
        """The bonus, and all that is needed to go on as if nothing had happened, in one file."""
        waiting = saving.flat(jax.tree.map(lambda *x: np.stack(x), *self.waiting.steps)) if self.waiting.steps else {}
        arrays = {f"host{name}": x for name, x in saving.flat(self.host.tree()).items()}
        arrays |= {f"own{name}": x for name, x in saving.flat(self._own()).items()}
        arrays |= {f"waiting{name}": x for name, x in waiting.items()}
        if beside is not None:
            arrays |= {f"rows{name}": x for name, x in saving.flat(beside.rows).items()}
            arrays |= {f"rest{name}": x for name, x in saving.flat(beside.rest).items()}
        saving.save(path, arrays, self._manifest(beside), overwrite)

    def load(self, path: str | PathLike, beside: Beside | None = None) -> Beside | None:
        """Go on from a file that `save` wrote for the same bonus, spaces and number of environments.

        Returns what was saved beside the bonus, where `beside` says what it looks like.
        """
        found, manifest = saving.load(path)
        saving.check(manifest, {**self._manifest(beside), "began": manifest.get("began")}, path)
        if beside is not None:
            rows = saving.unflat(_under(found, "rows"), jax.tree.map(lambda x: x[0], beside.rows), free=1)
            beside = beside._replace(rows=rows, rest=saving.unflat(_under(found, "rest"), beside.rest))
        parts = {name: _under(found, name) for name in ("host", "own", "waiting")}
        host = saving.unflat(parts["host"], self.host.template(manifest["began"]))
        own = saving.unflat({k: v for k, v in parts["own"].items() if k != "['true']"}, self._own(with_true=False))
        true, steps = parts["own"]["['true']"], []
        if len(true):
            together = saving.unflat(parts["waiting"], self.host.step_template(), free=1)
            steps = [jax.tree.map(lambda x, t=t: np.asarray(x[t]), together) for t in range(len(true))]
        self.host.restore(host)
        self.updates, self.waiting.steps, self.waiting.true = int(own["updates"]), steps, list(true)
        if self.share is not None:
            self.share.seen = own["share"]
        return beside

    def _own(self, with_true: bool = True) -> dict[str, PyTree]:
        true = np.array(self.waiting.true, bool).reshape(-1, self.host.n_envs)
        whole: dict[str, PyTree] = {"updates": np.int64(self.updates)}
        whole |= {} if self.share is None else {"share": self.share.seen}
        return {**whole, "true": true} if with_true else whole

    def _manifest(self, beside: Beside | None = None) -> dict[str, Any]:
        whole = {**self.host.manifest(), "holds": "plug-in", "share": None if self.share is None else self.share.share}
        return whole if beside is None else {**whole, **beside.about}


def _under(arrays: saving.Arrays, prefix: str) -> saving.Arrays:
    return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}
