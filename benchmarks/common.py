"""What all benchmarks share. To add one, write a module with `measures()` and add it to `BENCHMARKS`."""

import argparse
import importlib
import json
import sys
import textwrap
import time
from collections.abc import Callable
from typing import NamedTuple

import jax

from made.training import train_loop
from made.training.provenance import provenance
from made.training.sharding import use_compilation_cache


class Measure(NamedTuple):
    """One measured number beside what it is compared with and what it should be."""

    name: str
    value: float
    unit: str
    baseline: float | None  # the same work done by the alternative, in the same unit, in the same run
    ratio: float | None  # how many times better than the baseline
    goal: str
    met: bool | None  # None: nothing was asked for, or it could not be measured
    device: str


class Benchmark(NamedTuple):
    """Where a benchmark is: a module with a function `measures()` that yields rows."""

    module: str
    summary: str


BENCHMARKS = {
    "tabular": Benchmark("benchmarks.tabular.lock_speed", "time and memory of `made demo`, the lock, Algorithm 1"),
    "minigrid": Benchmark("benchmarks.minigrid.grid_speed", "steps and levels per second of compiled MiniGrid"),
    "bonuses": Benchmark("benchmarks.bonuses.speed", "reward and update of each bonus, compared with RLeXplore"),
    "impala": Benchmark(
        "benchmarks.impala.training_speed", "frames per second of IMPALA with MADE, and where time goes"
    ),
    "control": Benchmark("benchmarks.control.control_training", "RAD: updates, replay memory and minutes of a run"),
    "dreamer": Benchmark("benchmarks.dreamer", "Dreamer: updates and environment steps per second"),
    "rendering": Benchmark("benchmarks.rendering", "frames per second of a control task, and their cost to a GPU"),
}


def main(name: str, argv: list[str] | None = None) -> int:
    """Run one benchmark: print a Markdown table, or with --json each row as soon as it is measured."""
    benchmark = BENCHMARKS[name]
    parser = argparse.ArgumentParser(f"python -m benchmarks.{name}", description=f"Measure {benchmark.summary}.")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args(argv)
    use_compilation_cache()
    rows: list[Measure] = []
    try:
        with train_loop.raise_on_sigterm():
            for row in importlib.import_module(benchmark.module).measures():
                print(f"{row.name}: {row.value:,.4g} {row.unit}", file=sys.stderr, flush=True)
                if options.json:  # printed at once, so that an interrupted benchmark keeps its rows
                    item = textwrap.indent(json.dumps(row._asdict(), indent=1), " ")
                    print(f"{',' if rows else '['}\n{item}", end="", flush=True)
                rows.append(row)
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except train_loop.Terminated:
        return train_loop.SIGTERM_CODE
    finally:
        if options.json and rows:
            print("\n]", flush=True)
    if not options.json:
        print(as_text(rows))
    elif not rows:
        print("[]")
    return 0


def as_text(measured: list[Measure]) -> str:
    """The measures as a Markdown table."""
    lines = ["| what | measured | beside | ratio | goal | met |", "|---|---|---|---|---|---|"]
    for row in measured:
        beside = "" if row.baseline is None else f"{row.baseline:,.4g} {row.unit}"
        ratio = "" if row.ratio is None else f"{row.ratio:.1f}x"
        met = {True: "yes", False: "no", None: ""}[row.met]
        lines.append(f"| {row.name} | {row.value:,.4g} {row.unit} | {beside} | {ratio} | {row.goal} | {met} |")
    devices = ", ".join(dict.fromkeys(row.device for row in measured))
    return "\n".join([*lines, "", f"Measured on: {devices}."])


def device() -> str:
    """The machine, in words."""
    made_by = provenance(time.time(), 0.0)
    where = f"jax {made_by['jax']} on {made_by['device_platform']}"
    if made_by["device_platform"] != "cpu":
        return f"{made_by['device']}, {where}"
    return f"{made_by['cpu']}, {made_by['cpu_cores']} cores, {where}"


def best_of(call: Callable, repeats: int = 3) -> float:
    """Seconds of a call, all it computes included: the best of several after a first one."""
    jax.block_until_ready(call())
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(call())
        best = min(best, time.perf_counter() - began)
    return best
