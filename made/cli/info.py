"""The commands `made list`, `made map`, `made doctor` and `made play`."""

import dataclasses
import importlib.metadata
import importlib.util
import inspect
import json
import os
import platform
import re
import shutil
import sys
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import tyro

from made.agents import registry as agents
from made.bonuses import registry as bonuses
from made.cli.train import Flag, shown
from made.core.config import PLUG_INS, suggest
from made.core.plugins import entry_points, install
from made.envs.control import rendering
from made.envs.minigrid import GRIDS
from made.envs.minigrid.play import play
from made.envs.registry import list_envs, make
from made.experiments import experiments

# Kind -> name -> line of `made list`. Other names get the first line of their docstring.
ABOUT = json.loads(Path(__file__).with_name("descriptions.json").read_text("utf-8"))
FAMILIES, VARIANTS = ABOUT.pop("families"), ABOUT.pop("variants")  # of grids, by class and by field


def everything() -> dict[str, dict[str, str]]:
    """Kind -> name -> one line."""
    known = {
        "bonuses": (bonuses.list_bonuses("on_policy", installed=False), bonuses.make_bonus),
        "control-bonuses": (bonuses.list_bonuses("off_policy", installed=False), bonuses.make_bonus),
        "agents": (agents.list_agents(installed=False), agents.make_agent),
        "tasks": (list_envs("tabular"), lambda name: getattr(make(name), "family", make(name))),
        "control": (list_envs("control"), make),
    }
    lines = {
        kind: {name: ABOUT[kind].get(name) or (inspect.getdoc(type(make(name))) or "").split("\n")[0] for name in names}
        for kind, (names, make) in known.items()
    }
    points = [(group.removeprefix("made."), point) for group in PLUG_INS for point in entry_points(group)]
    return {
        "experiments": {name: f"{e.title} ({e.figure})" for name, e in experiments().items()},
        **lines,
        "grids": {name: _grid_line(make()) for name, make in GRIDS.items()},
        "installed": {point.name: f"{group} of another package [{point.value}]" for group, point in points},
        "scales": ABOUT["scales"],
    }


def _grid_line(grid: Any) -> str:
    """The family of a grid task, its variants and its time limit."""
    fields = {field.name: getattr(grid.maker, field.name) for field in dataclasses.fields(grid.maker)}
    parts = [FAMILIES[type(grid.maker).__name__].format(**fields)]
    parts += [words for name, words in VARIANTS.items() if fields.get(name)] + ["noisy TV"] * grid.noisy_tv
    return ", ".join(parts) + f"; {grid.maker.max_steps} steps"


class Row(NamedTuple):
    """One item of the paper: an equation, algorithm, theorem, lemma, figure or setting."""

    item: str
    label: str
    says: str
    code: str
    test: str
    status: str


def path() -> Path:
    """docs/paper.md of the checkout, or the copy that travels with an installed package."""
    here = Path(str(resources.files("made")))
    beside = here.parent / "docs" / "paper.md"
    return beside if beside.exists() else here / "data" / "paper.md"


def rows() -> list[Row]:
    """Every row of every table of the map that has the six columns."""
    found = []
    for line in path().read_text("utf-8").splitlines():
        cells = [cell.strip().replace("`", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == len(Row._fields) and cells[0] != "item" and not set(cells[0]) <= set("-: "):
            found.append(Row(*(cell.replace("\\|", "|") for cell in cells)))
    return found


def row(label: str) -> Row:
    """The row of a label such as eq:bonus_design."""
    by_label = {row.label: row for row in rows()}
    if label not in by_label:
        raise ValueError(f"The paper map has no label {label!r}.{suggest(label, list(by_label), 'made map')}")
    return by_label[label]


EXTRAS = {
    "minigrid": ("grid", "Farama's MiniGrid, to compare with"),
    "dm_control": ("control", "DeepMind Control from pixels"),
    "stable_baselines3": ("sb3", "the Stable-Baselines3 plug-in"),
    "ray": ("ray", "sweeps over many machines"),
    "submitit": ("slurm", "sweeps through SLURM"),
    "tensorboardX": ("tensorboard", "TensorBoard logs"),
    "wandb": ("wandb", "Weights & Biases logs"),
}


class Finding(NamedTuple):
    """One thing looked at."""

    state: Literal["ok", "missing", "wrong"]
    what: str
    fix: str = ""


def version(package: str) -> str | None:
    """The installed version, without importing the package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def examine() -> list[Finding]:
    """Everything there is to say, most basic first."""
    packages = ("made-rl", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "matplotlib", "safetensors")
    needed = [_needed(version(one), f"{one} {version(one) or 'not installed'}", install()) for one in packages]
    extras = [
        _needed(importlib.util.find_spec(module), f"{module}: {purpose}", install(extra))
        for module, (extra, purpose) in EXTRAS.items()
    ]
    return [Finding("ok", f"Python {platform.python_version()}"), *needed, *_devices(), *_graphics(), *extras]


def _needed(here: Any, what: str, fix: str) -> Finding:
    return Finding("ok", what) if here else Finding("missing", what, fix)


def _devices() -> list[Finding]:
    devices = jax.devices()
    kinds = ", ".join(sorted({f"{d.platform} ({d.device_kind})" for d in devices}))
    found = [Finding("ok", f"{len(devices)} JAX device(s): {kinds}; {os.cpu_count()} CPU cores")]
    if devices[0].platform == "cpu" and os.path.exists("/proc/driver/nvidia/version"):
        fix = f"{install('cuda12')} (or cuda13, for a driver of version 580 or later)"
        found.append(Finding("wrong", "an NVIDIA driver is here, but JAX runs on the CPU", fix))
    return found


def _graphics() -> list[Finding]:
    """Whether MuJoCo can render here: each backend is tried, in a process of its own."""
    if not rendering.installed():
        return []  # listed among the extras
    found = rendering.tried(*rendering.candidates())
    working = [backend for backend in found if backend.works]
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if not working:
        fix = rendering.NEEDS[found[0].name]
        return [Finding("missing", f"rendering of control tasks: {rendering.reasons(found)}", fix)]
    if chosen and chosen not in [backend.name for backend in working]:
        fix = f"unset MUJOCO_GL, or set it to {working[0].name}, which works here"
        if chosen in rendering.NEEDS:
            fix += f"; or: {rendering.NEEDS[chosen]}"
        return [Finding("wrong", f"MUJOCO_GL={chosen}, which does not draw here", fix)]
    ways = ", ".join(f"{backend.name} {backend.detail}" for backend in working)
    return [Finding("ok", f"rendering of control tasks: {ways} (MUJOCO_GL={chosen or 'not set'})")]


@dataclasses.dataclass
class List:
    """List experiments, bonuses, agents and tasks, one line each."""

    # list one kind only: experiments, bonuses, control-bonuses, agents, tasks, grids, control, installed or scales
    kind: Annotated[str | None, tyro.conf.Positional, shown("[KIND]")] = None
    json: Flag = False  # print names as JSON

    def main(self) -> int:
        kinds = everything()
        if self.kind is not None:
            if self.kind not in kinds:
                raise ValueError(f"There are no {self.kind!r} to list.{suggest(self.kind, list(kinds))} See: made list")
            kinds = {self.kind: kinds[self.kind]}
        if self.json:
            print(json.dumps({kind: list(entries) for kind, entries in kinds.items()}, indent=1))
            return 0
        room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None  # whole where it is piped on
        for kind, entries in kinds.items():
            print(f"{kind}:")
            width = max(map(len, entries), default=0)
            for name, line in entries.items():
                print(f"  {name:{width}}  {line}"[:room])
        return 0


@dataclasses.dataclass
class Map:
    """Show where an equation, algorithm, theorem, lemma or figure of the paper is in the code."""

    # a label of the paper, such as eq:bonus_design; default: all
    label: Annotated[str | None, tyro.conf.Positional, shown("[LABEL]")] = None

    def main(self) -> int:
        if self.label is None:
            for one in rows():
                print(f"{one.label:32} {one.item:28} {one.code}  [{one.status}]")
            return 0
        for name, text in row(self.label)._asdict().items():
            print(f"{name:7} {text}")
        return 0


@dataclasses.dataclass
class Doctor:
    """Check this installation: versions, extras, devices, rendering. Each problem comes with its fix."""

    def main(self) -> int:
        findings = examine()
        for finding in findings:
            print(f"{finding.state:8} {finding.what}" + (f"\n{'':9}fix: {finding.fix}" if finding.fix else ""))
        return int(any(finding.state == "wrong" for finding in findings))


@dataclasses.dataclass
class Play:
    """Play a grid task in the terminal.

    Keys: a, d turn; w goes forward; p picks up; l drops; t toggles; x is done; r starts a new level; q quits.
    """

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]  # MiniGrid id, such as KeyCorridorS3R3
    seed: int = 0  # seed of the level
    # play these keys instead of reading the keyboard, such as wwdw
    keys: Annotated[str | None, shown("KEYS")] = None

    def main(self) -> int:
        return play(self.task, self.seed, self.keys)
