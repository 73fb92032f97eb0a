"""Commands about training runs: `made train`, `made plot` and `made transfer`."""

import contextlib
import dataclasses
import importlib.metadata
import json
import math
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro

from made.cli.build import build, environment
from made.core.config import suggest, to_dict
from made.core.safe_files import write_atomic
from made.envs.host_env import Hosted
from made.envs.minigrid import GRIDS, Grid
from made.experiments import plots
from made.experiments.statistics import interval, interval_ends, resampled_means
from made.training import evaluation, loggers, sharding, train_run, video
from made.training.paths import require_file
from made.training.provenance import provenance

Several = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]  # an option that may be given several times
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]  # --no-x (default: True) would read as if x were off

_PLACES = ("out", "hosts", "host", "coordinator")  # where a run is, not what it is
METRICS = "metrics.jsonl"
POSITIONS = ("seed", "update", "frames", "seconds")  # columns that say where a record belongs
MOST_RUNS = len(plots.CYCLE)
KINDS = {"made": "the compiled grids", "gym": "the minigrid package", "envpool": "EnvPool"}
LIBRARIES = {"gym": "minigrid", "envpool": "envpool"}
MODES = {"sampled": True, "greedy": False}  # whether actions are drawn, as in training
SAME, DIFFERS = "same within the interval", "differs"
NOTHING = "nothing to compare: no episode was paid in either"


def shown(metavar: str, default: str = "") -> Any:
    """How an optional value appears in --help."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})" if default else "")


@dataclasses.dataclass
class Train:
    """Train an agent with an exploration bonus. Run the same command again to resume an unfinished run."""

    # MiniGrid id (long or short, such as DoorKey-5x5), tabular task, control task, gym:ID, envpool:ID or module:Class
    env: Annotated[str, tyro.conf.arg(metavar="ID")]
    # agent name or module:Class; for control tasks sac (states), rad (pixels) or dreamer
    agent: Annotated[str, tyro.conf.arg(metavar="NAME")] = "impala"
    bonus: Annotated[str, tyro.conf.arg(metavar="NAME")] = "made"  # bonus name (see `made list`) or module:Class
    # environment frames per seed, such as 4M
    steps: Annotated[str | None, shown("FRAMES", "10M; control tasks: 500k")] = None
    seeds: Annotated[int, tyro.conf.arg(metavar="N")] = 1  # number of seeds, trained in parallel
    # bonus coefficient
    bonus_coef: Annotated[float | None, shown("X", "0.01; 1.0 with --strength; the paper's on control tasks")] = None
    first_visit: Flag = False  # reward only the first visit of a state in each episode
    # scale the bonus so that a full-length episode gets X in total, in units of the largest return; --bonus-coef
    # multiplies it; 0.4 is a good start on grids
    strength: Annotated[float | None, shown("X")] = None
    # override a setting, such as agent.learning_rate=3e-4 or n_envs=64
    set: Annotated[Several, tyro.conf.arg(metavar="PATH=VALUE")] = ()
    out: Annotated[Path | None, shown("DIR", "training/<env>-<agent>-<bonus>")] = None  # run directory
    every: Annotated[str | None, shown("FRAMES", "50k; control tasks: 2k")] = None  # frames between log records
    # frames between evaluations on unseen levels
    eval_every: Annotated[str | None, shown("FRAMES", "500k; control tasks: 10k")] = None
    # frames between checkpoints
    checkpoint_every: Annotated[str | None, shown("FRAMES", "500k; control tasks: 50k")] = None
    devices: Annotated[int | None, shown("N", "1; all with --hosts")] = None  # number of devices
    # processes of a distributed run; start each with the same command and its own --host
    hosts: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    host: Annotated[int, tyro.conf.arg(metavar="I")] = 0  # index of this process; process 0 writes the files
    coordinator: Annotated[str, tyro.conf.arg(metavar="HOST:PORT")] = "127.0.0.1:9911"  # address of process 0
    tensorboard: Flag = False  # write TensorBoard logs
    wandb: Annotated[str | None, shown("PROJECT")] = None  # log to this Weights & Biases project
    video: Flag = True  # skip the video and the map of visits at the end

    def main(self) -> int:
        for name in ("tensorboard", "wandb"):
            if getattr(self, name):
                loggers.extra(name)
        name = f"{self.env}-{self.agent}-{self.bonus}{'-gated' * self.first_visit}"
        out = self.out or Path("training") / re.sub("[:/]", "-", name)
        alone = self.hosts == 1 and not self.host
        others = contextlib.nullcontext() if alone else sharding.join_processes(self.hosts, self.host, self.coordinator)
        with others:  # they are joined before anything is computed
            plan = self.plan()
            train_state = train_run.run_plan(plan, out, self.devices, self._session(plan, out))
            if jax.process_index() == 0:
                try:
                    print(f"drawn: {draw_curves((out,), 'return', out / 'curves.png')[0]}")
                except (ImportError, ValueError) as error:  # no matplotlib, or no episode has ended
                    _say(f"no learning curves were drawn: {error}")
                for path in video.record_videos(plan, train_state.state, out) if self.video else ():
                    print(f"drawn: {path}")
                print(f"{train_state.update * plan.frames_per_update:,} frames per seed, saved in {out}.")
        return 0

    def _session(self, plan, out: Path) -> train_run.Session:
        def more(frames: int) -> Iterator[loggers.Writer]:
            if self.tensorboard:
                yield loggers.TensorBoard(out / "tensorboard", plan.seeds, frames)
            if self.wandb:
                yield loggers.WandB(self.wandb, out.name, out, plan.configuration)

        frames = train_run.default_frames(plan.run)["steps"] if self.steps is None else self.steps
        steps = train_run.parse_frames(frames, "--steps")
        return train_run.Session(self.words(), self.options, more, report=_say, steps=steps)

    def plan(self):
        """The validated options."""
        if self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, got {self.seeds}.")
        run = build(self.env, self.agent, self.bonus, self.first_visit, self.bonus_coef, self.strength, self.set)
        default = train_run.default_frames(run)
        steps, every = (default[x] if (y := getattr(self, x)) is None else y for x in ("steps", "every"))
        updates = train_run.updates_for(run, every, "--every")
        flag = lambda name: f"--{name.replace('_', '-')}"  # noqa: E731
        run = dataclasses.replace(run, every=updates)
        return train_run.plan_of(run, self.seeds, steps, self.eval_every, self.checkpoint_every, flag)

    @property
    def options(self) -> dict[str, Any]:
        """The options as data, without the folder and the other hosts, which may differ when a run is resumed."""
        return {name: x for name, x in dataclasses.asdict(self).items() if name not in _PLACES}

    def words(self) -> str:
        """The command that asks for this run, without what is at its default, the folder and the other hosts."""
        said = ["made train"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in _PLACES or value == field.default:
                continue
            flag = f"--{field.name.replace('_', '-')}"
            if isinstance(value, bool):
                said.append(flag if value else f"--no-{field.name}")
            else:
                said += [f"{flag} {one}" for one in (value if isinstance(value, tuple) else (value,))]
        return " ".join(said)


def _say(text: str) -> None:
    print(f"made: {text}", file=sys.stderr, flush=True)


@dataclasses.dataclass
class Plot:
    """Draw the learning curves of training runs, one line a run: the mean over seeds, shaded to the extremes."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]  # run directories of `made train`
    metric: str = "return"  # a column of metrics.jsonl, such as return, eval_return, coverage or entropy
    out: Path = Path("curves.png")  # the figure; an SVG of the same name is written next to it

    def main(self) -> int:
        written = draw_curves(self.runs, self.metric, self.out)
        print(f"drawn: {written[0]}, {written[1]}")
        return 0


def draw_curves(runs: Sequence[Path], metric: str, out: Path) -> tuple[Path, Path]:
    """Draw a metric of runs over frames; returns the paths of the PNG and the SVG.

    Raises ValueError if a folder has no records, or none has the metric.
    """
    if not runs or len(runs) > MOST_RUNS:
        raise ValueError(f"made plot takes 1 to {MOST_RUNS} run directories, got {len(runs)}.")
    if out.suffix not in ("", ".png", ".svg"):
        raise ValueError(f"--out takes a name that ends in .png or .svg, not {out.name!r}.")
    read = {run: _columns(run, metric) for run in runs}
    fig, axes = plots.figure(width=plots.COLUMN if len(runs) == 1 else plots.PAGE * 0.75, height=2.6)
    short = [run.resolve().name for run in runs]
    names = {run: name if short.count(name) == 1 else str(run) for run, name in zip(runs, short, strict=True)}
    with plots.style():
        for color, (run, (frames, values)) in zip(plots.CYCLE, read.items(), strict=False):
            seeds = values.shape[0]
            look = plots.Style(f"{names[run]} ({seeds} seed{'s' * (seeds > 1)})", color)
            middle = np.nanmean(values, 0)
            plots.band(axes[0, 0], frames, middle, np.nanmin(values, 0), np.nanmax(values, 0), look)
        axes[0, 0].margins(x=0.01)
    plots.title(axes[0, 0], x="environment frames of each seed", y=metric.replace("_", " "))
    plots.step_axis(axes[0, 0])
    plots.legend(fig, columns=1)
    return plots.save(fig, out.with_suffix(""))


def _columns(run: Path, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """(frames [T], values [seeds, T]) of the records of a run that have the metric."""
    path, names = run / METRICS, set()
    if not path.is_file():
        raise ValueError(f"{run} has no {METRICS}: name a folder that `made train` wrote, with --out or not.")
    by_frame: dict[int, dict[int, float]] = defaultdict(dict)
    for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
        try:
            record = json.loads(line)
            frames, seed, value = int(record["frames"]), int(record["seed"]), record.get(metric)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
            raise ValueError(f"{path}, line {number}, is no log record: the file is damaged.") from None
        names |= record.keys()
        if isinstance(value, int | float) and math.isfinite(value):
            by_frame[frames][seed] = float(value)
    if not names:
        raise ValueError(f"{path} has no log records yet.")
    if not by_frame and metric in names:
        raise ValueError(f"{run} has no finite value of {metric} yet: no episode has ended.")
    if not by_frame:
        raise ValueError(f"{run} has no metric {metric!r}.{suggest(metric, sorted(names - {*POSITIONS}))}")
    at, seeds = sorted(by_frame), sorted({seed for found in by_frame.values() for seed in found})
    return np.array(at), np.array([[by_frame[frames].get(seed, np.nan) for frames in at] for seed in seeds])


@dataclasses.dataclass
class Transfer:
    """Compare a trained policy on its own task and in another implementation of it, on unseen levels."""

    # run directory of `made train`; its newest checkpoint is used
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    # implementation to compare with: made (compiled grids), gym (the minigrid package) or envpool
    to: Annotated[str | None, shown("NAME", "gym for compiled grids, else made")] = None
    episodes: Annotated[int, tyro.conf.arg(metavar="N")] = 500  # episodes in each, with sampled and with greedy actions
    seed: int = 0  # seed of the run
    out: Annotated[Path | None, shown("FILE", "transfer.json in DIR")] = None  # where the results are written
    # module of your own that may be imported for its classes
    allow: Annotated[Several, tyro.conf.arg(metavar="MODULE")] = ()

    def main(self) -> int:
        record, out = self.record(), self.place
        print(as_text(record))
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, json.dumps(record, indent=1) + "\n")
        print(f"The record is {out}.")
        return 0

    @property
    def place(self) -> Path:
        """The file of the record."""
        return self.out or self.folder / "transfer.json"

    def record(self) -> dict[str, Any]:
        """What was played, how it came out, and by which code and machine."""
        if self.episodes < 2:
            raise ValueError(f"--episodes must be at least 2 to have an interval, got {self.episodes}.")
        started, found = time.time(), evaluation.load_run(self.folder, self.seed, self.allow)
        home, away, other = self._places(found)
        require_file(self.place, "--out")  # before episodes are played for it
        run = getattr(found.config, "run", found.config)  # Dreamer's has one within
        runs, states = (run, dataclasses.replace(run, env=other)), (found.state.agent, found.state.bonus)
        numbers = (self.seed, found.update)
        played = {
            mode: compared(*(evaluation.play(one, *states, self.episodes, numbers, explore) for one in runs))
            for mode, explore in MODES.items()
        }
        about = {
            "format": 1,
            "command": found.command,
            "seed": self.seed,
            "frames": found.update * found.config.n_envs * found.config.unroll,
            "episodes": self.episodes,
            "home": home,
            "away": away,
            "versions": {name: importlib.metadata.version(name) for name in map(LIBRARIES.get, (home, away)) if name},
        }
        return {**about, **played, "provenance": provenance(started, time.time() - started)}

    def _places(self, found) -> tuple[str, str, Any]:
        """(where it was trained, where it is to go, the environment there)."""
        env = found.config.env
        if not isinstance(env, Grid | Hosted):
            name = getattr(env, "task", type(env).__name__)
            raise ValueError(f"{name} has one implementation only: policies of grids can be played elsewhere.")
        if isinstance(env, Hosted):
            home, task = env.source, env.task
        else:
            same = (id for id, make in GRIDS.items() if to_dict(make(shows=env.shows)) == to_dict(env))
            home, task = "made", next(same, "")
            if not task:
                raise ValueError("This grid has settings of its own; only those of `made list tasks` exist elsewhere.")
        away = self.to or ("gym" if home == "made" else "made")
        if away not in KINDS or away == home:
            others = ", ".join(kind for kind in KINDS if kind != home)
            raise ValueError(f"This policy was trained in {KINDS[home]}; --to takes {others}, not {away!r}.")
        return home, away, environment(task if away == "made" else f"{away}:{task}")


def compared(home, away) -> dict[str, Any]:
    """Means with 95% bootstrap intervals over episodes, the difference away - home, and what the return's says."""
    rng, found = np.random.default_rng(0), {}
    each = [{"return": x.returns, "length": x.lengths, "success": (x.returns > 0).astype(float)} for x in (home, away)]
    for name in each[0]:
        one, other = (x[name] for x in each)
        means = {"home": interval(one, "mean", rng)[:3], "away": interval(other, "mean", rng)[:3]}
        gaps = resampled_means(other, rng) - resampled_means(one, rng)
        means["difference"] = (other.mean() - one.mean(), *interval_ends(gaps))
        found[name] = {who: [round(float(x), 4) for x in numbers] for who, numbers in means.items()}
    _, low, high = found["return"]["difference"]
    paid = any(x["return"].any() for x in each)
    return {**found, "verdict": (SAME if low <= 0 <= high else DIFFERS) if paid else NOTHING}


def as_text(record: dict[str, Any]) -> str:
    """The record for people: estimate [ends of the 95% interval]."""
    home, away = (KINDS[record[place]] for place in ("home", "away"))
    lines = [f"{record['episodes']} episodes on fresh levels in {home} (home) and in {away} (away)"]
    for mode in MODES:
        for name in ("return", "length", "success"):
            said = ", ".join(
                f"{who} {x:.4g} [{low:.4g}, {high:.4g}]" for who, (x, low, high) in record[mode][name].items()
            )
            lines.append(f"  {mode:8} {name:8} {said}")
        lines.append(f"  {mode:8} {'verdict':8} {record[mode]['verdict']}")
    return "\n".join(lines)
