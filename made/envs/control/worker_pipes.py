"""The processes beside the learner and the lines to them: who is asked what, who answers, and who has died."""

import multiprocessing
import threading
import weakref
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NoReturn

from made.envs.control.worker_process import Reply, WorkerSpec, serve

# A fork of this process would copy JAX's locks in whatever state its threads hold them. So one is started that has
# imported what the others need and computed nothing (its only threads are those of NumPy's products, which know of
# forks), and they are forks of it, which begin sooner.
_FORKS = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
CONTEXT: Any = multiprocessing.get_context("forkserver" if _FORKS else "spawn")
if _FORKS:
    CONTEXT.set_forkserver_preload(["made.envs.control.worker_process"])


class WorkerError(RuntimeError):
    """A process failed or died; the others were stopped."""


class WorkerPipes:
    """One process and one line to it for each share. They end with this object, with its process, or by `close`."""

    def __init__(self, shares: Sequence[WorkerSpec], patience: float):
        self.patience = patience
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
            if not self._lines[i].poll(self.patience):
                self._fail(i, f"it did not answer within {self.patience:.0f} s.")
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
