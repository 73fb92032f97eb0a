"""Commands that look: what there is, where it is in the paper, what is missing, how a grid feels."""

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

import tyro

from made.cli.train import Flag
from made.core import Bonus, Density
from made.core.config import suggest
from made.core.extras import install
from made.envs.control import rendering

SCALES = {
    "smoke": "seconds: does it run at all",
    "demo": "two minutes on two cores: small, cut to fit",
    "small": "minutes on two cores",
    "gpu": "minutes to hours on one accelerator, in pieces that go on",
    "paper": "the paper's budget",
}


def first_line(thing: Any) -> str:
    """The first line of a class's docstring."""
    return (inspect.getdoc(thing) or "").split("\n")[0]


def made_of(thing: Any) -> str:
    """The class of a bonus or a density, and those of the bonuses and densities within it."""
    parts = (getattr(thing, field.name) for field in dataclasses.fields(thing))
    within = ", ".join(made_of(part) for part in parts if isinstance(part, Bonus | Density))
    return type(thing).__name__ + (f"({within})" if within else "")


def line(thing: Any, maker: Any = None) -> str:
    """What an object is, in the words of its maker where that has some, and what it was made with."""
    fields = {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing)}
    said = [f"{name}={value}" for name, value in fields.items() if isinstance(value, int | float)]
    said += [f"{name}={made_of(value)}" for name, value in fields.items() if isinstance(value, Bonus | Density)]
    named = first_line(maker) if inspect.isfunction(maker) else ""
    return (named or first_line(type(thing))) + (f" [{', '.join(said)}]" if said else "")


def _control(name: str) -> str:
    """What a task of DeepMind Control is, read without the suite."""
    from made.envs.control import make_control
    from made.envs.control.tasks import SPARSE

    task = make_control(name)
    ours = SPARSE.get(name)
    less = f": {ours.domain} {ours.task}, rewards below {ours.least:g} left out" if ours else ""
    return f"DeepMind Control{less} [repeat={task.repeat}, camera={task.camera}]"


def _installed() -> dict[str, str]:
    """What installed packages bring, told without importing them."""
    from made.core import plugins

    return {
        point.name: f"{group.removeprefix('made.')} of another package [{point.value}]"
        for group in ("made.bonuses", "made.agents", "made.envs")
        for point in plugins.entry_points(group)
    }


def everything() -> dict[str, dict[str, str]]:
    """Kind -> name -> one line."""
    from made.agents import registry as agents
    from made.bonuses import registry as bonuses
    from made.envs.minigrid import GRIDS
    from made.envs.registry import list_envs, make
    from made.experiments import experiments

    return {
        "experiments": {name: f"{e.title} ({e.figure})" for name, e in experiments().items()},
        "bonuses": {
            name: line(bonuses.make_bonus(name)) for name in bonuses.list_bonuses("on_policy", installed=False)
        },
        "control-bonuses": {
            name: line(bonuses.make_bonus(name, "off_policy"))
            for name in bonuses.list_bonuses("off_policy", installed=False)
        },
        "agents": {
            name: line(agents.make_agent(name), agents.maker(name)) for name in agents.list_agents(installed=False)
        },
        "tasks": {name: line(getattr(make(name), "family", make(name))) for name in list_envs("tabular")},
        "grids": {name: line(make().maker) for name, make in GRIDS.items()},
        "control": {name: _control(name) for name in list_envs("control")},
        "installed": _installed(),
        "scales": SCALES,
    }


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
    return [*_python(), *_devices(), *_graphics(), *_extras(), *_clashes()]


def _python() -> list[Finding]:
    old = sys.version_info < (3, 11)
    fix = "install Python 3.11, 3.12 or 3.13" if old else ""
    found = [Finding("wrong" if old else "ok", f"Python {platform.python_version()}", fix)]
    for package in ("made-rl", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "matplotlib", "safetensors"):
        installed = version(package)
        state = "ok" if installed else "missing"
        found.append(Finding(state, f"{package} {installed or 'not installed'}", "" if installed else install()))
    return found


def _devices() -> list[Finding]:
    import jax

    devices = jax.devices()
    kinds = ", ".join(sorted({f"{d.platform} ({d.device_kind})" for d in devices}))
    found = [Finding("ok", f"{len(devices)} JAX device(s): {kinds}; {os.cpu_count()} CPU cores")]
    if devices[0].platform == "cpu" and os.path.exists("/proc/driver/nvidia/version"):
        fix = f"{install('cuda12')} (or cuda13, for a driver of version 580 or later)"
        found.append(Finding("wrong", "an NVIDIA driver is here, but JAX runs on the CPU", fix))
    return found


def _graphics() -> list[Finding]:
    """Whether MuJoCo can draw here: each way is tried, in a process of its own."""
    if not rendering.installed():
        return []  # said among the extras
    found = rendering.tried(*rendering.candidates())
    working = [backend for backend in found if backend.works]
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if not working:
        fix = rendering.NEEDS[found[0].name]
        return [Finding("missing", f"pictures of control tasks: {rendering.reasons(found)}", fix)]
    if chosen and chosen not in [backend.name for backend in working]:
        fix = f"unset MUJOCO_GL, or set it to {working[0].name}, which works here"
        if chosen in rendering.NEEDS:
            fix += f"; or: {rendering.NEEDS[chosen]}"
        return [Finding("wrong", f"MUJOCO_GL={chosen}, which does not draw here", fix)]
    ways = ", ".join(f"{backend.name} {backend.detail}" for backend in working)
    return [Finding("ok", f"pictures of control tasks: {ways} (MUJOCO_GL={chosen or 'not set'})")]


def _extras() -> list[Finding]:
    found = []
    for module, (extra, purpose) in EXTRAS.items():
        here = importlib.util.find_spec(module) is not None
        fix = "" if here else install(extra)
        found.append(Finding("ok" if here else "missing", f"{module}: {purpose}", fix))
    return found


def _clashes() -> list[Finding]:
    """Combinations that are known to fail."""
    found = []
    mujoco = version("mujoco")
    if version("dm_control") and mujoco and int(mujoco.split(".")[0]) >= 4:
        found.append(
            Finding("wrong", f"dm_control does not work with mujoco {mujoco}", "pip install 'mujoco>=3.17,<4'")
        )
    if version("tensorflow-probability") and version("jax"):
        text = "tensorflow-probability is installed; its JAX part fails on jax 0.11 (made does not use it)"
        found.append(Finding("wrong", text, "pip uninstall tensorflow-probability, if nothing else needs it"))
    if os.environ.get("JAX_PLATFORMS") not in (None, "", "cpu", "cuda", "gpu", "tpu", "cuda,cpu"):
        found.append(
            Finding("wrong", f"JAX_PLATFORMS={os.environ['JAX_PLATFORMS']}", "unset JAX_PLATFORMS, or set it to cpu")
        )
    return found or [Finding("ok", "no known clash between the installed packages")]


@dataclasses.dataclass
class List:
    """What there is: experiments, bonuses, agents, tasks, one line each."""

    kind: Annotated[str | None, tyro.conf.Positional] = None  # one of these alone, such as bonuses
    json: Flag = False  # in a stable form for programs

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
    """Where an equation, algorithm, theorem, lemma or figure of the paper is in the code."""

    label: Annotated[str | None, tyro.conf.Positional] = None  # such as eq:bonus_design; every row unless given

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
    """What is installed, what is missing, which known clashes there are, each with its fix."""

    def main(self) -> int:
        findings = examine()
        for finding in findings:
            print(f"{finding.state:8} {finding.what}" + (f"\n{'':9}fix: {finding.fix}" if finding.fix else ""))
        return int(any(finding.state == "wrong" for finding in findings))


@dataclasses.dataclass
class Play:
    """Walk a grid in the terminal: a, d turn; w goes; p picks up; t toggles; q quits."""

    task: Annotated[str, tyro.conf.Positional]  # a MiniGrid id, in full or as in KeyCorridorS3R3
    seed: int = 0
    keys: str | None = None  # these keys instead of the keyboard's

    def main(self) -> int:
        from made.envs.minigrid.play import play

        return play(self.task, self.seed, self.keys)
