"""A trained policy at play: which one a folder holds, and whole episodes of it on fresh levels, in any environment."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import PyTree

from made import trees
from made.adapters.hosts import Hosted
from made.describe import to_dict
from made.grids import Grid
from made.rollout import Reserve, begin, rollout
from made.run import Run, RunState
from made.training import checkpoint, devices, folder, hosted, lanes
from made.training.command import Train
from made.training.plan import Plan

_APART = 0x706C6179  # sets the levels played here apart from those of training, evaluation and films


class Trained(NamedTuple):
    """What a folder of `made train` holds of one seed."""

    asked: Train
    plan: Plan
    seed: int
    state: RunState
    update: int


class Episodes(NamedTuple):
    """What n whole episodes came to."""

    returns: np.ndarray
    lengths: np.ndarray


def trained(out: Path, seed: int) -> Trained:
    """One seed of the newest checkpoint of a folder."""
    if not (out / folder.RUN).is_file():
        raise ValueError(f"{out} holds no run: give the folder that made train wrote, with its {folder.RUN}.")
    asked, found = _asked(out), checkpoint.newest(out / folder.CHECKPOINTS)
    plan = asked.plan()
    if not isinstance(getattr(plan.run, "env", None), Grid | Hosted):
        raise ValueError(f"{asked.env} has one implementation only: policies of grids can be played elsewhere.")
    if found is None:
        raise ValueError(f"{out} holds no checkpoint to take a policy from: train there first.")
    plan = plan._replace(run=as_recorded(plan.run, {"class": "Run", **found.manifest["configuration"]}))
    if seed not in plan.seeds:
        raise ValueError(f"The run in {out} has seeds {plan.seeds[0]} to {plan.seeds[-1]}, and no seed {seed}.")
    folder.demand_same(found.manifest["configuration"], plan.configuration, found.path)
    started = hosted.begin if isinstance(plan.run.env, Hosted) else lanes.begin
    runs, seeds = lanes.repeated(plan.run, len(plan.seeds)), jnp.asarray(plan.seeds, jnp.uint32)
    states = checkpoint.restore(found, jax.eval_shape(started, runs, seeds))
    return Trained(asked, plan, seed, trees.index(states, plan.seeds.index(seed)), found.update)


def _asked(out: Path) -> Train:
    command = json.loads((out / folder.RUN).read_text("utf-8"))["command"]
    try:
        words = shlex.split(command)[2:]  # after: made train
        return tyro.cli(Train, args=words, config=(tyro.conf.FlagCreatePairsOff,), console_outputs=False)
    except SystemExit:
        raise ValueError(f"{out / folder.RUN} has a command that this version does not understand: {command}") from None


def as_recorded(thing: Any, recorded: Any) -> Any:
    """The object with the settings that were recorded of it, where they differ: defaults may have changed since."""
    if to_dict(thing) == recorded:
        return thing
    if dataclasses.is_dataclass(thing) and isinstance(recorded, dict) and recorded["class"] == type(thing).__name__:
        names = [field.name for field in dataclasses.fields(thing) if field.init and field.name in recorded]
        changed = {name: as_recorded(getattr(thing, name), recorded[name]) for name in names}
        return dataclasses.replace(thing, **changed)  # type: ignore[type-var]
    if isinstance(thing, tuple) and isinstance(recorded, list) and not any(isinstance(x, dict) for x in recorded):
        return tuple(recorded)
    plain = (bool, int, float, str, type(None))
    return recorded if isinstance(thing, plain) and isinstance(recorded, plain) else thing


def play(run: Run, agent: PyTree, bonus: PyTree, n: int, numbers: tuple[int, ...], explore: bool) -> Episodes:
    """One whole episode in each of n environments, acting as in training or, without `explore`, greedily.

    The levels follow from the numbers, and are none that training on the same numbers has.
    """
    if isinstance(run.env, Hosted):
        source = hosted.source_of(run, bonus, n)
        return Episodes(*source.play(agent, hosted.seed_for(*numbers, _APART), explore=explore))
    key = jax.random.key(_APART)
    for number in numbers:
        key = jax.random.fold_in(key, number)
    program = jax.jit(_play, static_argnums=(3, 5), compiler_options=devices.options(0))
    return Episodes(*map(np.asarray, program(run, agent, bonus, n, key, explore)))


def _play(run: Run, agent: PyTree, bonus: PyTree, n: int, key, explore: bool) -> tuple[Any, Any]:
    k_start, k_roll = jax.random.split(key)
    parts = (run.env, run.agent, run.bonus)
    streams = begin(*parts, bonus, n, k_start)
    spare = Reserve(streams, jnp.ones(n, bool))  # what comes after the first episode does not count
    steps = int(run.env.spec.horizon or 0)
    ended = rollout(*parts, agent, bonus, streams, steps, k_roll, reserve=spare, explore=explore).ended
    first = ended.done & (jnp.cumsum(ended.done, axis=0) == 1)
    return (first * ended.total).sum(0), (first * ended.length).sum(0)
