"""Control runs that are stopped in the midst of a row: the processes of their environments fail to answer."""

import contextlib
from collections.abc import Iterator

import pytest

from made.envs.control.worker_pool import WorkerPool


@contextlib.contextmanager
def stopped(
    after: int, error: type[BaseException] = RuntimeError, n_envs: int | None = None, once: bool = False
) -> Iterator[None]:
    """While the block runs, answers fail after so many steps, the next alone with `once`, else all.

    With `n_envs` those of so many environments count.
    """
    left, receive = [after], WorkerPool.receive

    def fails(self, part=0):
        left[0] -= n_envs in (None, self.n_envs) and not part  # the first part of a step stands for all
        if left[0] == -1 or (left[0] < 0 and not once):
            raise error("stopped by the test\nand where that was")
        return receive(self, part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerPool, "receive", fails)
        yield
