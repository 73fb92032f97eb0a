"""What runs in a worker's process: its environments, stepped one after the other as the learner's side asks."""

import os
import signal
import traceback
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from made.core import Spec
from made.envs.control.simulation import Simulation
from made.envs.control.snapshot import Arrays
from made.envs.control.tasks import Control


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
