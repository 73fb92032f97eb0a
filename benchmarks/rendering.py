"""`python -m benchmarks.rendering`: frames per second of a control task, and their cost to a device that learns.

Where a GPU both draws and learns the two take turns. What a picture costs is found from a chain of small products, as
recurrent models are made of: how much longer it takes while processes draw as fast as they can, for each picture.
"""

import dataclasses
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import Measure, best_of, device, main
from made.envs.control import rendering
from made.envs.control.tasks import make_control
from made.envs.control.worker_pool import WorkerPool

TASK, SIDE = "pendulum_swingup", 64
STEPS, PRODUCTS, WIDTH = 300, 4000, 256


def measures(steps: int = STEPS, products: int = PRODUCTS, sizes: Sequence[int] = (1, 3)) -> Iterator[Measure]:
    """Pictures in so many processes each, as the suite draws them and with `quick=True`."""
    where = device()
    try:
        rendering.choose()
    except ValueError as error:
        yield Measure(f"{TASK}, not drawn. {error}", float("nan"), "pictures/s", None, None, "", None, where)
        return
    shared = jax.default_backend() != "cpu"
    for quick in (False, True):
        for processes in sizes:
            task = dataclasses.replace(make_control(TASK, size=SIDE, stack=1), low_res_shadows=quick)
            several = "es" * (processes > 1)
            told = f"{TASK}, pictures of {SIDE} x {SIDE}{', quick' * quick}, {processes} process{several}"
            with WorkerPool(task, range(processes), processes) as workers:
                found = processes / steps_seconds(workers, steps)
                yield Measure(told, found, "pictures/s", None, None, "", None, where)
                if shared:
                    cost = 1e3 * seconds_of_a_picture(workers, chain(products))
                    yield Measure(f"{told}: of the device's time", cost, "ms/picture", None, None, "", None, where)


def steps_seconds(workers: WorkerPool, steps: int) -> float:
    """Seconds of a step of all environments, each with its picture."""
    actions = resting(workers)
    workers.step(actions)  # the first picture takes longer
    began = time.perf_counter()
    for _ in range(steps):
        workers.step(actions)
    return (time.perf_counter() - began) / steps


def resting(workers: WorkerPool) -> np.ndarray:
    """Actions of all environments that do nothing."""
    return np.zeros((workers.n_envs, *workers.spec.action.shape), np.float32)


def chain(products: int) -> Callable[[], jax.Array]:
    """So many small products, each of what the one before gave."""
    weight = jnp.eye(WIDTH)
    run = jax.jit(lambda x: jax.lax.fori_loop(0, products, lambda _, x: jnp.tanh(x @ weight), x))
    return functools.partial(run, jnp.ones((WIDTH, WIDTH)))


def seconds_of_a_picture(workers: WorkerPool, work: Callable[[], jax.Array]) -> float:
    """How much longer some work on the device takes while they draw, over the pictures that were drawn meanwhile."""
    alone, over, drawn, actions = best_of(work), threading.Event(), 0, resting(workers)

    def draw() -> None:
        nonlocal drawn
        while not over.is_set():
            workers.step(actions)
            drawn += workers.n_envs

    beside = threading.Thread(target=draw)
    beside.start()
    try:
        jax.block_until_ready(work())  # while they come into their stride
        before, began = drawn, time.perf_counter()
        jax.block_until_ready(work())
        taken, pictures = time.perf_counter() - began, drawn - before
    finally:
        over.set()
        beside.join()
    return (taken - alone) / max(pictures, 1)


if __name__ == "__main__":
    sys.exit(main("rendering"))
