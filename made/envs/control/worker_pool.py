"""Physics and rendering beside the learner: several environments in processes of their own.

    with WorkerPool(make_control("cheetah_run_sparse"), seeds=[0, 1, 2, 3]) as workers:
        workers.send(actions)           # [N, A]; the processes step and draw ...
        ...                             # ... while the learner computes
        step = workers.receive()

Environment i is the same to the bit whatever the number of processes and their timing, and `receive` gives all of them
in the order of the seeds. With `parts=2` the first half of the environments and the second can be stepped each in its
own time, by `send(actions, 0)` and `receive(0)`, also from threads of their own.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Shaped

from made.core import Spec
from made.envs.control import rendering
from made.envs.control.simulation import Arrays, check_saved
from made.envs.control.tasks import Control
from made.envs.control.worker_process import CONTEXT, SharedFrames, WorkerPipes, WorkerSpec
from made.envs.control.worker_process import WorkerError as WorkerError


class VectorStep(NamedTuple):
    """One step of every environment. Pictures are single frames [N, h, w, 3]; from states, vectors [N, d]."""

    frame: Shaped[np.ndarray, "N ..."]  # the true successor, also where an episode ended
    seen: Shaped[np.ndarray, "N ..."]  # what the policy sees next: the first of a new episode where one ended
    reward: Float32[np.ndarray, " N"]
    terminated: Bool[np.ndarray, " N"]
    truncated: Bool[np.ndarray, " N"]
    total: Float64[np.ndarray, " N"]  # the return of the episode up to this step


class WorkerPool:
    """One environment for each seed, spread over `processes` of them: unless given, as many as there are cores, and
    one for each part at least.

    An episode that ends is begun anew in the same step. `obs` is what the policy sees now, stacked [N, h, w, 3 stack],
    or the states [N, d]; `spec` is what an agent may know of one environment. The environments of each of `parts`,
    which are of one size and in the order of the seeds, share no process with others.
    """

    def __init__(self, control: Control, seeds: Sequence[int], processes: int | None = None, *, parts: int = 1):
        most = max(parts, os.cpu_count() or 1)  # a process for each part at least
        count = min(len(seeds), most - most % parts) if processes is None else processes
        if not 1 <= count <= len(seeds) or len(seeds) % parts or count % parts:
            raise ValueError(
                f"{len(seeds)} seeds cannot be divided among {count} processes in {parts} parts: give each process one "
                "seed or more, and each part equally many seeds and processes."
            )
        self.control, self.n_envs = control, len(seeds)
        each = np.array_split(np.arange(self.n_envs // parts), count // parts)
        ends = np.cumsum(parts * [len(part) for part in each]).tolist()
        self._places = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
        self._of_part = [range(i * count // parts, (i + 1) * count // parts) for i in range(parts)]
        rendering.prepare()
        drawn_by = rendering.choose() if control.pixels else os.environ.get("MUJOCO_GL", "")
        memory = SharedFrames.of(CONTEXT, control, self.n_envs) if control.pixels else None
        self._pictures = memory.array() if memory else None
        shared = self._split([int(seed) for seed in seeds])
        shares = [WorkerSpec(control, *one, memory, drawn_by) for one in zip(shared, self._places, strict=True)]
        self._lines = WorkerPipes(shares)
        self._owed: set[int] = set()  # the processes whose replies to actions were not received yet
        first = self._lines.replies()
        self.spec: Spec = first[0].spec
        self._begin(first)

    def _begin(self, replies: list) -> None:
        self._look(self.control.first_obs(self._shown("seen", replies, slice(None))))

    def _look(self, obs: np.ndarray) -> None:
        self._obs = [obs[self.place(part)] for part in range(len(self._of_part))]

    def _shown(self, which: str, replies: list, place: slice) -> np.ndarray:
        """What those environments showed: copied out of the shared memory, or gathered from the replies."""
        if self._pictures is None:
            return np.concatenate([getattr(reply, which) for reply in replies])
        return np.array(self._pictures[("frame", "seen").index(which), place])

    def place(self, part: int | None = None) -> slice:
        """Which environments a part has; without one, all."""
        who = self._who(part)
        return slice(self._places[who[0]].start, self._places[who[-1]].stop)

    def _who(self, part: int | None) -> range:
        return range(len(self._places)) if part is None else self._of_part[part]

    @property
    def obs(self) -> Shaped[np.ndarray, "N ..."]:
        """What the policy sees now."""
        return self._obs[0] if len(self._obs) == 1 else np.concatenate(self._obs)

    def obs_of(self, part: int) -> Shaped[np.ndarray, "n ..."]:
        """The same of one part."""
        return self._obs[part]

    @property
    def seen(self) -> Shaped[np.ndarray, "N ..."]:
        """The newest part of `obs`: single frames, which is what a replay stores, or the states."""
        return self.newest(self.obs)

    def newest(self, obs: Shaped[np.ndarray, "n ..."]) -> Shaped[np.ndarray, "n ..."]:
        """The newest part of what some environments show."""
        return obs[..., -self.control.frame[-1] :] if self.control.pixels else obs

    def reset(self, seeds: Sequence[int] | None = None) -> np.ndarray:
        """Begin an episode everywhere; with seeds, from streams of random numbers begun anew."""
        self._check_idle("reset")
        if seeds is not None and len(seeds) != self.n_envs:
            raise ValueError(f"{self.n_envs} environments take as many seeds, got {len(seeds)}.")
        parts = None if seeds is None else self._split([int(seed) for seed in seeds])
        self._begin(self._lines.ask("reset", parts))
        return self.obs

    def send(self, actions: Shaped[np.ndarray, "n A"], part: int | None = None) -> None:
        """Let every environment, or those of a part, take its action; returns at once."""
        who, place = self._who(part), self.place(part)
        self._check_idle("send", part)
        actions, wanted = np.asarray(actions), (place.stop - place.start, *self.spec.action.shape)
        if actions.shape != wanted or not np.isfinite(actions).all():
            raise ValueError(
                f"{self.control.task} takes finite actions {list(wanted)}, got {list(actions.shape)}: {actions}."
            )
        ends = [self._places[i].stop - place.start for i in who]
        self._lines.tell("step", np.split(actions, ends[:-1]), who)
        self._owed.update(who)

    def receive(self, part: int | None = None) -> VectorStep:
        """What came of the actions sent before, to all or to a part; waits until they are done."""
        who, place = self._who(part), self.place(part)
        if not self._owed.issuperset(who):
            raise ValueError("WorkerPool.receive was called before send: send actions once for each receive.")
        replies = self._lines.replies(who)
        self._owed.difference_update(who)
        reward, terminated, truncated, total = np.concatenate([reply.numbers for reply in replies], axis=1)
        frame, seen = self._shown("frame", replies, place), self._shown("seen", replies, place)
        ended = (terminated + truncated) > 0
        now = self.control.next_obs(self.obs if part is None else self._obs[part], seen)
        now[ended] = self.control.first_obs(seen[ended])
        if part is None:
            self._look(now)
        else:
            self._obs[part] = now
        return VectorStep(frame, seen, reward.astype(np.float32), terminated > 0, truncated > 0, total)

    def step(self, actions: Shaped[np.ndarray, "N A"]) -> VectorStep:
        """`send` and `receive` in one."""
        self.send(actions)
        return self.receive()

    def save(self) -> Arrays:
        """All that changes, as arrays whose names and shapes are the same at any moment of a run."""
        self._check_idle("save")
        each = [arrays for reply in self._lines.ask("save") for arrays in reply.saved]
        whole = {f"{i}/{name}": x for i, arrays in enumerate(each) for name, x in arrays.items()}
        return {**whole, "obs": np.array(self.obs)}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from what `save` gave for the same task, settings and number of environments, to the bit."""
        self._check_idle("load")
        check_saved(arrays, self.save(), f"{self.n_envs} environments of {self.control.task}")
        each: list[Arrays] = [{} for _ in range(self.n_envs)]
        for name, x in arrays.items():
            at, _, inner = name.partition("/")
            if inner:
                each[int(at)][inner] = np.asarray(x)
        self._lines.ask("load", self._split(each))
        self._look(np.array(arrays["obs"]))

    def close(self) -> None:
        """End all processes; safe to call again."""
        self._lines.close()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _split(self, rows: Any) -> list:
        return [rows[place] for place in self._places]

    def _check_idle(self, what: str, part: int | None = None) -> None:
        if self._lines.failure is not None:
            raise self._lines.failure
        if not self._lines.open:
            raise ValueError(f"WorkerPool.{what} was called after close: make a new one.")
        if not self._owed.isdisjoint(self._who(part)):
            raise ValueError(f"WorkerPool.{what} was called between send and receive: receive first.")
