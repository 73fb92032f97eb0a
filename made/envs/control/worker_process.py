"""Worker processes that step environments, and the pipes between them and the learner's process."""

import multiprocessing
import os
import signal
import threading
import traceback
import weakref
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple, NoReturn

import numpy as np
from jaxtyping import UInt8

from made.core import Spec
from made.envs.control.simulation import Arrays, Simulation
from made.envs.control.tasks import Control

# A fork of this process would copy JAX's locks in whatever state its threads hold them. So one is started that has
# imported what the others need and computed nothing (its only threads are those of NumPy's products, which know of
# forks), and they are forks of it, which begin sooner.
_FORKS = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
CONTEXT: Any = multiprocessing.get_context("forkserver" if _FORKS else "spawn")
if _FORKS:
    CONTEXT.set_forkserver_preload(["made.envs.control.worker_process"])


class SharedFrames(NamedTuple):
    """Pictures that both sides see, [2, N, h, w, 3]: of the successors, and of what the policy sees next."""

    raw: Any
    shape: tuple[int, ...]

    @classmethod
    def of(cls, context: Any, control: Control, n: int) -> "SharedFrames":
        """Room for n environments. It has no name in the system, so nothing is left behind however a run ends."""
        shape = (2, n, *control.frame)
        return cls(context.RawArray("B", int(np.prod(shape))), shape)

    def array(self) -> UInt8[np.ndarray, "2 N h w 3"]:
        return np.frombuffer(self.raw, np.uint8).reshape(self.shape)


class WorkerSpec(NamedTuple):
    """The environments of one process."""

    control: Control
    seeds: list[int]
    place: slice  # among all
    memory: SharedFrames | None
    drawn_by: str  # MUJOCO_GL


class Reply(NamedTuple):
    """An answer. Pictures are not in it but in the shared memory."""

    error: str = ""  # a traceback
    refused: str = ""  # settings that the task does not take, in a sentence
    spec: Any = None
    frame: Any = None  # [n, d], from states
    seen: Any = None
    numbers: Any = None  # [4, n]: reward, terminated, truncated, return
    saved: tuple[Arrays, ...] = ()


def serve(line: Any, share: WorkerSpec) -> None:
    """Answer until the line is closed. Whatever goes wrong is told, with its traceback, and ends the process."""
    for one in (signal.SIGINT, signal.SIGTERM):  # they reach all; the learner's side closes the line
        signal.signal(one, signal.SIG_IGN)
    if share.drawn_by:
        os.environ["MUJOCO_GL"] = share.drawn_by
    try:
        try:
            desk = WorkerLoop(share)
        except ValueError as error:
            line.send(Reply(refused=str(error)))
            return
        line.send(Reply(spec=desk.spec, seen=desk.shown(1)))
        while True:
            verb, part = line.recv()
            line.send(desk.answers[verb](part))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the learner's side is gone
    except Exception:
        line.send(Reply(error=traceback.format_exc()))


class WorkerLoop:
    """The environments of one process, and an answer to each thing that can be asked."""

    def __init__(self, share: WorkerSpec):
        self.simulations = [Simulation(share.control, seed) for seed in share.seeds]
        self.spec: Spec = self.simulations[0].spec
        self.in_memory = share.memory is not None
        if share.memory is not None:
            self.table = share.memory.array()[:, share.place]
        else:
            self.table = np.stack([[simulation.seen for simulation in self.simulations]] * 2)
        self.answers = {"step": self.step, "reset": self.reset, "save": self.save, "load": self.load}
        self._show_all()

    def shown(self, which: int) -> np.ndarray | None:
        """What a reply carries: nothing where the pictures are in the shared memory."""
        return None if self.in_memory else np.array(self.table[which])

    def _show_all(self) -> None:
        for i, simulation in enumerate(self.simulations):
            self.table[:, i] = simulation.seen

    def step(self, actions: np.ndarray) -> Reply:
        numbers = np.zeros((4, len(self.simulations)))
        for i, (simulation, action) in enumerate(zip(self.simulations, actions, strict=True)):
            outcome = simulation.step(action)
            numbers[:, i] = *outcome, simulation.total
            self.table[0, i] = simulation.seen
            if simulation.over:
                simulation.reset()
            self.table[1, i] = simulation.seen
        return Reply(frame=self.shown(0), seen=self.shown(1), numbers=numbers)

    def reset(self, seeds: list[int] | None) -> Reply:
        for i, simulation in enumerate(self.simulations):
            simulation.reset(None if seeds is None else seeds[i])
        self._show_all()
        return Reply(seen=self.shown(1))

    def save(self, _: None) -> Reply:
        return Reply(saved=tuple(simulation.save() for simulation in self.simulations))

    def load(self, each: list[Arrays]) -> Reply:
        for simulation, arrays in zip(self.simulations, each, strict=True):
            simulation.load(arrays)
        self._show_all()
        return Reply()


PATIENCE = 300.0  # seconds to wait for an answer before a process is taken for lost


class WorkerError(RuntimeError):
    """A process failed or died; the others were stopped."""


class WorkerPipes:
    """One process and one line to it for each share. They end with this object, with its process, or by `close`."""

    def __init__(self, shares: Sequence[WorkerSpec]):
        self.failure: WorkerError | None = None  # the first, for whoever asks after it, from whatever thread
        self._first = threading.Lock()
        self._shares, self._lines, self._processes = shares, [], []
        self._finish = weakref.finalize(self, _stop, self._lines, self._processes)
        for share in shares:
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=serve, args=(theirs, share), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process closes the line
            self._lines.append(ours)
            self._processes.append(process)

    @property
    def open(self) -> bool:
        """Whether they can be asked."""
        return self._finish.alive

    def ask(self, verb: str, parts: Sequence | None = None) -> list[Reply]:
        """Ask all, each with its part, and wait for the answers."""
        self.tell(verb, parts)
        return self.replies()

    def tell(self, verb: str, parts: Sequence | None = None, who: Sequence[int] | None = None) -> None:
        """Ask all, or those who are named, each with its part, and leave the answers for `replies`."""
        for i, part in zip(self._named(who), parts or repeat(None), strict=False):
            try:
                self._lines[i].send((verb, part))
            except OSError:
                self._lost(i)

    def replies(self, who: Sequence[int] | None = None) -> list[Reply]:
        """One answer of each, in their order, whoever is done first."""
        return [self._reply(i) for i in self._named(who)]

    def _named(self, who: Sequence[int] | None) -> Sequence[int]:
        return range(len(self._lines)) if who is None else who

    def _reply(self, i: int) -> Reply:
        try:
            if not self._lines[i].poll(PATIENCE):
                self._fail(i, f"it did not answer within {PATIENCE:.0f} s.")
            reply: Reply = self._lines[i].recv()
        except (EOFError, OSError):
            self._lost(i)
        if reply.refused:
            self.close()
            raise ValueError(reply.refused)
        if reply.error:
            self._fail(i, reply.error)
        return reply

    def _lost(self, i: int) -> NoReturn:
        """A line has ended: its process did, or all were ended, after a failure that another thread met."""
        if self.failure is not None:
            raise self.failure
        if not self.open:
            raise ValueError("The processes were asked after they had been ended.")
        self._fail(i, self._ending(i))

    def _ending(self, i: int) -> str:
        process = self._processes[i]
        process.join(5)
        said = f"it died with exit code {process.exitcode} and said no more."
        if process.exitcode != 1:  # not what Python exits with after an error
            return said
        return f"{said} A script that makes Workers must do so under `if __name__ == '__main__':`, for they import it."

    def _fail(self, i: int, why: str) -> NoReturn:
        share, seeds = self._shares[i], ", ".join(map(str, self._shares[i].seeds))
        with self._first:
            first = self.failure is None
            if self.failure is None:  # known before the lines are closed, which others notice
                self.failure = WorkerError(f"The process of {share.control.task} with seeds {seeds} failed: {why}")
        if first:
            self.close()
        raise self.failure

    def close(self) -> None:
        """End all processes; safe to call again."""
        self._finish()


def _stop(lines: list[Any], processes: list[Any]) -> None:
    """Close the lines, which ends the processes, and end by force what does not listen."""
    for line in lines:
        line.close()
    for process in processes:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join(5)
        process.close()
