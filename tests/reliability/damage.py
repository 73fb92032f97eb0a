"""Are damaged files told from whole ones? Each kind of damage is done to a copy of a run, which is then gone on with.

The run that goes on must say the right sentence, and either touch nothing or end, to the bit, where the undamaged one
ends. It all happens in this process, through the calls that `made train` makes, so that one compiled program will do.
"""

import dataclasses
import functools
import re
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from made.cli.train import Train
from made.training import run_dir, train_loop
from made.training.backends import TrainPlan
from made.training.backends.compiled_envs import CompiledBackend
from made.training.loggers import JSONL
from tests.reliability import damaged_files, processes

SENTENCE = re.compile(r"[A-Z/.\w].*\.", re.S)  # it ends as one, and is not the name of an exception
SETTINGS = ("n_envs=2", "unroll=4")


class Found(NamedTuple):
    """What came of one damage."""

    name: str
    then: str
    said: str
    wrong: str  # empty where all is as it must be


def plan(updates: int = 12) -> TrainPlan:
    """A tabular run of a few updates, with a row and a checkpoint for every second one."""
    every = str(2 * 8)
    asked = Train(env="lock-H5", agent="q-learning", bonus="made-tabular", set=SETTINGS, steps=str(8 * updates))
    return dataclasses.replace(asked, every=every, checkpoint_every=every, eval_every=every).plan()


@functools.cache
def programs() -> CompiledBackend:
    """What runs it, compiled once."""
    return CompiledBackend(plan())


def go_on(asked: TrainPlan, out: Path) -> train_loop.TrainState:
    """What `made train` does with a folder."""
    with run_dir.lock_run_dir(out):
        held = run_dir.read_run(out, asked.configuration)
        stand = train_loop.restore_or_init(asked, programs(), out)
        run_dir.record_session(asked, out, held, "pytest", stand.update)
        writer = JSONL(out / run_dir.METRICS)
        try:
            return train_loop.train(asked, programs(), stand, out, [writer], lambda lines: None)
        finally:
            writer.close()


def tried(one: damaged_files.Damage, half: Path, whole: Path, out: Path) -> Found:
    """Do a damage to a copy of the half-finished run, go on with it, and judge."""
    shutil.copytree(half, out)
    one.do(out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            go_on(plan(), out)
            then, said = ("skipped", " ".join(str(w.message) for w in heard)) if heard else ("mended", "")
        except ValueError as error:
            then, said = "refused", str(error)
    return Found(one.name, then, said, _judged(one, then, said, before, out, whole))


def _judged(one: damaged_files.Damage, then: str, said: str, before: dict[Path, bytes], out: Path, whole: Path) -> str:
    if then != one.then:
        return f"{then}, not {one.then}: {said}"
    if then != "mended" and not (one.says in said and SENTENCE.fullmatch(said) and str(out) in said):
        return f"the sentence is wrong: {said}"
    if then == "refused":
        changed = [path for path, content in before.items() if not path.is_file() or path.read_bytes() != content]
        return f"{changed[0].name} was touched" if changed else ""
    damaged = len(list((out / run_dir.CHECKPOINTS).glob("*.damaged")))
    if damaged != (0 if then == "mended" else said.count("before it.")):
        return "what was damaged was not set aside"
    return processes.same(whole, out)


def begun(here: Path) -> None:
    """A run that stopped half-way, and one that did not."""
    for name, updates in (("half", 8), ("whole", 12)):
        go_on(plan(updates), here / name)


def damage(here: Path) -> dict[str, Any]:
    """Do every damage of `tests.reliability.damaged_files`, one after the other."""
    begun(here)
    found = [
        tried(one, here / "half", here / "whole", here / f"{i:03d}") for i, one in enumerate(damaged_files.damages())
    ]
    wrong = [f"{one.name}: {one.wrong}".replace(str(here), "OUT") for one in found if one.wrong]
    return {
        "passed": not wrong,
        "what": "damaged and hostile files in a run's folder",
        "damages": len(found),
        "by_outcome": Counter(one.then for one in found),
        "wrong": wrong,
        "columns": ["damage", "outcome", "sentence"],
        "each": [[one.name, one.then, one.said.replace(str(here), "OUT")[:300]] for one in found],
    }
