"""Compile the programs of one checkout, then time the one named on each line of stdin. See `benchmarks.compare`.

It imports the `made` and the `benchmarks` of the folder it is started in, so both checkouts run the same work.
"""

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax

from benchmarks import dreamer
from benchmarks.control import update_time
from benchmarks.impala import training_speed

ON_CPU = jax.default_backend() == "cpu"
Program = Callable[[], float]  # seconds of one update


def rad(bonus: str) -> Program:
    """An update of RAD in bfloat16 with a full replay; small on a CPU."""
    sizes = update_time.Sizes(batch=16, steps=1000, updates=2) if ON_CPU else update_time.Sizes()
    learner = update_time.pixel_learner(bonus, "float32" if ON_CPU else "bfloat16", sizes)
    return _updates(learner, sizes.updates)


def sac(bonus: str) -> Program:
    """An update of SAC from states, batch 512."""
    return _updates(update_time.state_learner(bonus), 40)


def _updates(learner: object, updates: int) -> Program:
    begin, update = update_time.compiled(learner)  # type: ignore[arg-type]
    step = update_time.came(learner)  # type: ignore[arg-type]
    return lambda: update_time.timed(update, begin(), step, updates, 1)


def dreams(bonus: str) -> Program:
    """An update of Dreamer in bfloat16; small on a CPU."""
    sizes = dreamer.ON_A_CPU if ON_CPU else dreamer.Sizes()
    learner = dreamer.learner(bonus, "float32" if ON_CPU else "bfloat16", sizes)
    fill = jax.jit(lambda: dreamer.filled(learner, jax.random.key(0)))
    call = lambda state: learner.study(state, sizes.updates)  # noqa: E731
    if ON_CPU:  # where convolutions in a loop are slow; older checkouts have no `update` of sequences
        call = getattr(learner, "update", None) or (lambda state: learner.study_one(state, 0, 2))  # type: ignore[attr-defined]
    options = {"xla_backend_optimization_level": 1} if ON_CPU else None
    study = jax.jit(call, donate_argnums=0, compiler_options=options).lower(jax.eval_shape(fill)).compile()

    def run() -> float:
        state, _ = jax.block_until_ready(study(jax.block_until_ready(fill())))
        began = time.perf_counter()
        jax.block_until_ready(study(state))
        return (time.perf_counter() - began) / (1 if ON_CPU else sizes.updates)

    return run


def impala(lanes: int) -> Program:
    """An update of IMPALA with MADE in so many runs of one program."""
    case = training_speed.Case("", training_speed.LAYOUTS["small" if ON_CPU else "mid"], lanes, None)
    task = training_speed.TASK["cpu" if ON_CPU else "gpu"]
    built = training_speed.built(training_speed.lanes_of(case, training_speed.made(), task))
    return lambda: training_speed.seconds([built], 1)[0]


PROGRAMS: dict[str, Callable[[], Program]] = {
    "rad/none": lambda: rad("none"),
    "rad/re3": lambda: rad("re3"),
    "rad/made": lambda: rad("made"),
    "sac/made": lambda: sac("made"),
    "dreamer/none": lambda: dreams("none"),
    "dreamer/made": lambda: dreams("made"),
    f"impala/made, {1 if ON_CPU else 72} runs": lambda: impala(1 if ON_CPU else 72),
}


def main(only: list[str]) -> None:
    """Answer on stdout: the names of the programs once they are compiled, then seconds."""
    chosen = {name: build for name, build in PROGRAMS.items() if not only or name in only}
    with ThreadPoolExecutor(1 if ON_CPU else len(chosen)) as pool:
        ready = dict(zip(chosen, pool.map(lambda build: build(), chosen.values()), strict=True))
    print(json.dumps(list(ready)), flush=True)
    for line in sys.stdin:
        print(json.dumps(ready[line.strip()]()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
