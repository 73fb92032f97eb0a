"""Physics and rendering in parallel with the learner: several environments in worker processes.

    with WorkerPool(make_control("cheetah_run_sparse"), seeds=[0, 1, 2, 3]) as workers:
        workers.send(actions)           # [N, A]; the processes step and render ...
        ...                             # ... while the learner computes
        step = workers.receive()

Environment i is the same to the bit whatever the number of processes and their timing, and `receive` returns all of
them in the order of the seeds. With `parts=2` the first half of the environments and the second are stepped
independently, by `send(actions, 0)` and `send(actions, 1)`, also from different threads.
"""

import math
import multiprocessing
import os
import signal
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from jaxtyping import Bool, Float32, Float64, Shaped

from made.core import Spec
from made.envs.control import rendering
from made.envs.control.gym_env import Arrays, Simulation, check_saved
from made.envs.control.tasks import Control

# A fork of this process would copy JAX's locks in whatever state its threads hold them. So a server process imports
# what the workers need and computes nothing, and the workers are forks of it, which start faster.
_FORKS = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
_CONTEXT: Any = multiprocessing.get_context("forkserver" if _FORKS else "spawn")
if _FORKS:
    _CONTEXT.set_forkserver_preload(["made.envs.control.worker_pool"])

PATIENCE = 300.0  # seconds to wait for a reply before a process is taken for lost


class WorkerError(RuntimeError):
    """A process failed or died; the others were stopped."""


class VectorStep(NamedTuple):
    """One step of every environment. Frames are single ones [N, h, w, 3]; from states, vectors [N, d]."""

    frame: Shaped[np.ndarray, "N ..."]  # the true successor, also where an episode ended
    seen: Shaped[np.ndarray, "N ..."]  # what the policy sees next: the first of a new episode where one ended
    reward: Float32[np.ndarray, " N"]
    terminated: Bool[np.ndarray, " N"]
    truncated: Bool[np.ndarray, " N"]
    total: Float64[np.ndarray, " N"]  # the return of the episode up to this step


class WorkerSpec(NamedTuple):
    """The environments of one process."""

    control: Control
    seeds: list[int]
    place: slice  # among all environments
    memory: Any  # shared bytes of all frames; None from states
    gl: str  # MUJOCO_GL

    def frames(self) -> np.ndarray | None:
        """[2, n, h, w, 3] of this process in the shared memory: of the successors, and of what the policy sees next."""
        if self.memory is None:
            return None
        return np.frombuffer(self.memory, np.uint8).reshape(2, -1, *self.control.frame)[:, self.place]


def serve(pipe: Any, work: WorkerSpec) -> None:
    """Answer commands until the pipe is closed. An error is sent with its traceback and ends the process."""
    for one in (signal.SIGINT, signal.SIGTERM):  # they reach all processes; the learner closes the pipe
        signal.signal(one, signal.SIG_IGN)
    if work.gl:
        os.environ["MUJOCO_GL"] = work.gl
    try:
        try:
            worker = Worker(work)
        except ValueError as error:  # settings that the task does not take
            pipe.send(ValueError(str(error)))
            return
        pipe.send((worker.simulations[0].spec, worker.unshared))
        while True:
            command, argument = pipe.recv()
            pipe.send((getattr(worker, command)(argument), worker.unshared))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the learner's process has ended
    except Exception:
        pipe.send(WorkerError(traceback.format_exc()))


class Worker:
    """The environments of one process, and what it does at each command."""

    def __init__(self, work: WorkerSpec):
        self.simulations = [Simulation(work.control, seed) for seed in work.seeds]
        shared = work.frames()
        self.frames = np.stack([[one.seen for one in self.simulations]] * 2) if shared is None else shared
        self.unshared = self.frames if shared is None else None  # part of each reply
        self._show_all()

    def _show_all(self) -> None:
        for i, simulation in enumerate(self.simulations):
            self.frames[:, i] = simulation.seen

    def step(self, actions: np.ndarray) -> np.ndarray:
        numbers = np.zeros((4, len(self.simulations)))
        for i, (simulation, action) in enumerate(zip(self.simulations, actions, strict=True)):
            numbers[:, i] = *simulation.step(action), simulation.total
            self.frames[0, i] = simulation.seen
            if simulation.over:
                simulation.reset()
            self.frames[1, i] = simulation.seen
        return numbers

    def reset(self, seeds: list[int] | None) -> None:
        for i, simulation in enumerate(self.simulations):
            simulation.reset(None if seeds is None else seeds[i])
        self._show_all()

    def save(self, _: None) -> list[Arrays]:
        return [simulation.save() for simulation in self.simulations]

    def load(self, saved: list[Arrays]) -> None:
        for simulation, arrays in zip(self.simulations, saved, strict=True):
            simulation.load(arrays)
        self._show_all()


class WorkerPool:
    """One environment for each seed, spread over `processes`: by default as many as cores, at least one for each part.

    An episode that ends is followed by the next one in the same step. `obs` is what the policy sees now, stacked
    [N, h, w, 3 stack], or the states [N, d]. Parts are of one size, in the order of the seeds, and share no process.
    The processes end with this object, with its process, or by `close`.
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
        gl = rendering.choose() if control.pixels else os.environ.get("MUJOCO_GL", "")
        # The memory has no name in the system, so nothing is left behind however a run ends.
        memory = _CONTEXT.RawArray("B", 2 * self.n_envs * math.prod(control.frame)) if control.pixels else None
        self._work = [WorkerSpec(control, [int(x) for x in seeds[at]], at, memory, gl) for at in self._places]
        self._frames = WorkerSpec(control, [], slice(None), memory, gl).frames()
        self._failure: WorkerError | None = None  # the first, which every thread raises
        self._failing = threading.Lock()
        self._pipes, self._processes = [], []
        self._finish = weakref.finalize(self, _stop, self._pipes, self._processes)
        for work in self._work:
            ours, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=serve, args=(theirs, work), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process closes the pipe
            self._pipes.append(ours)
            self._processes.append(process)
        self._sent: set[int] = set()  # the processes whose replies to actions were not received yet
        replies = self._replies(range(count))
        self.spec: Spec = replies[0][0]
        self._begin(replies)

    def _begin(self, replies: list[tuple]) -> None:
        self._observe(self.control.first_obs(self._seen(replies, slice(None))[1]))

    def _observe(self, obs: np.ndarray) -> None:
        self._obs = [obs[self.place(part)] for part in range(len(self._of_part))]

    def _seen(self, replies: list[tuple], place: slice) -> np.ndarray:
        """Successors and what the policy sees next, [2, n, ...]: copied out of the shared memory, or from replies."""
        if self._frames is None:
            return np.concatenate([frames for _, frames in replies], 1)
        return self._frames[:, place].copy()

    def place(self, part: int = 0) -> slice:
        """Which environments a part has."""
        n = self.n_envs // len(self._of_part)
        return slice(part * n, (part + 1) * n)

    @property
    def obs(self) -> Shaped[np.ndarray, "N ..."]:
        """What the policy sees now."""
        return self._obs[0] if len(self._obs) == 1 else np.concatenate(self._obs)

    def obs_of(self, part: int) -> Shaped[np.ndarray, "n ..."]:
        """The same of one part."""
        return self._obs[part]

    def newest(self, obs: Shaped[np.ndarray, "n ..."]) -> Shaped[np.ndarray, "n ..."]:
        """The newest part of observations: single frames, which is what a replay stores, or the states."""
        return obs[..., -self.control.frame[-1] :] if self.control.pixels else obs

    def reset(self, seeds: Sequence[int] | None = None) -> np.ndarray:
        """Begin an episode everywhere; seeds restart the random numbers."""
        self._check_idle("reset")
        if seeds is not None and len(seeds) != self.n_envs:
            raise ValueError(f"{self.n_envs} environments take as many seeds, got {len(seeds)}.")
        self._begin(self._ask("reset", None if seeds is None else [int(seed) for seed in seeds]))
        return self.obs

    def send(self, actions: Shaped[np.ndarray, "n A"], part: int = 0) -> None:
        """Let every environment of a part take its action; returns at once."""
        place = self.place(part)
        self._check_idle("send", part)
        actions, wanted = np.asarray(actions), (place.stop - place.start, *self.spec.action.shape)
        if actions.shape != wanted or not np.isfinite(actions).all():
            raise ValueError(
                f"{self.control.task} takes finite actions {list(wanted)}, got {list(actions.shape)}: {actions}."
            )
        for i in self._of_part[part]:
            self._send(i, "step", actions[self._places[i].start - place.start : self._places[i].stop - place.start])
            self._sent.add(i)

    def receive(self, part: int = 0) -> VectorStep:
        """The results of the actions sent to a part; waits until they are done."""
        who = self._of_part[part]
        if not self._sent.issuperset(who):
            raise ValueError("WorkerPool.receive was called before send: send actions once for each receive.")
        replies = self._replies(who)
        self._sent.difference_update(who)
        reward, terminated, truncated, total = np.concatenate([numbers for numbers, _ in replies], axis=1)
        frame, seen = self._seen(replies, self.place(part))
        ended = (terminated + truncated) > 0
        self._obs[part] = self.control.next_obs(self._obs[part], seen)
        self._obs[part][ended] = self.control.first_obs(seen[ended])
        return VectorStep(frame, seen, reward.astype(np.float32), terminated > 0, truncated > 0, total)

    def step(self, actions: Shaped[np.ndarray, "N A"]) -> VectorStep:
        """`send` and `receive` in one."""
        self.send(actions)
        return self.receive()

    def save(self) -> Arrays:
        """All that changes, as arrays whose names and shapes are the same at any moment of a run."""
        self._check_idle("save")
        each = [arrays for saved, _ in self._ask("save") for arrays in saved]
        whole = {f"{i}/{name}": x for i, arrays in enumerate(each) for name, x in arrays.items()}
        return {**whole, "obs": np.array(self.obs)}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Resume from what `save` returned for the same task, settings and number of environments, to the bit."""
        self._check_idle("load")
        check_saved(arrays, self.save(), f"{self.n_envs} environments of {self.control.task}")
        each: list[Arrays] = [{} for _ in range(self.n_envs)]
        for name, x in arrays.items():
            at, _, inner = name.partition("/")
            if inner:
                each[int(at)][inner] = np.asarray(x)
        self._ask("load", each)
        self._observe(np.array(arrays["obs"]))

    def close(self) -> None:
        """End all processes; safe to call again."""
        self._finish()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_idle(self, what: str, part: int | None = None) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._finish.alive:
            raise ValueError(f"WorkerPool.{what} was called after close: make a new one.")
        waiting = self._sent if part is None else self._sent.intersection(self._of_part[part])
        if waiting:
            raise ValueError(f"WorkerPool.{what} was called between send and receive: receive first.")

    def _ask(self, command: str, rows: list | None = None) -> list[tuple]:
        """The replies of all processes to a command, each with the rows of its environments."""
        for i, place in enumerate(self._places):
            self._send(i, command, None if rows is None else rows[place])
        return self._replies(range(len(self._places)))

    def _send(self, i: int, command: str, argument: Any) -> None:
        try:
            self._pipes[i].send((command, argument))
        except OSError:
            self._lost(i)

    def _replies(self, who: Sequence[int]) -> list[tuple]:
        """One reply of each of those processes, in their order, whichever is done first."""
        return [self._reply(i) for i in who]

    def _reply(self, i: int) -> tuple:
        try:
            if not self._pipes[i].poll(PATIENCE):
                self._fail(i, f"it did not answer within {PATIENCE:.0f} s.")
            reply = self._pipes[i].recv()
        except (EOFError, OSError):
            self._lost(i)
        if isinstance(reply, WorkerError):
            self._fail(i, str(reply))
        if isinstance(reply, ValueError):
            self.close()
            raise reply
        return reply

    def _lost(self, i: int) -> NoReturn:
        """A pipe has ended: its process did, or all were ended, after an error in another thread."""
        if self._failure is not None:
            raise self._failure
        if not self._finish.alive:
            raise ValueError("The processes were asked after they had been ended.")
        process = self._processes[i]
        process.join(5)
        why = f"it died with exit code {process.exitcode} and said no more."
        if process.exitcode == 1:  # what Python exits with after an error
            why += " A script that makes Workers must do so under `if __name__ == '__main__':`, for they import it."
        self._fail(i, why)

    def _fail(self, i: int, why: str) -> NoReturn:
        seeds = ", ".join(map(str, self._work[i].seeds))
        with self._failing:
            if self._failure is None:  # known before the pipes are closed, which others notice
                self._failure = WorkerError(f"The process of {self.control.task} with seeds {seeds} failed: {why}")
        self.close()
        raise self._failure


def _stop(pipes: list[Any], processes: list[Any]) -> None:
    """Close the pipes, which ends the processes, and kill those that do not end."""
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join(5)
        process.kill()  # does nothing where it has ended
        process.join(5)
        process.close()
