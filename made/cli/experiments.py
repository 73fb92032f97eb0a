"""Commands about experiments: run them, draw them, judge them, report them."""

import dataclasses
import json
import os
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Annotated

import tyro

from made.cli.train import Flag, Several, shown
from made.core.safe_files import write_atomic
from made.experiments import experiment, experiments, runner, types
from made.experiments.executors import Options
from made.experiments.report import SAID, SEVERAL, collect, kind_of, page
from made.experiments.store import Scale, Store, locking
from made.training.paths import require_dir, require_file

OBSERVED_WIDTH = 320  # characters of a verdict in the table of the terminal
INDENT = {"initial_indent": "  ", "subsequent_indent": "  ", "break_long_words": False, "break_on_hyphens": False}

Name = Annotated[str, tyro.conf.Positional]
Names = Annotated[tuple[str, ...], tyro.conf.Positional]


@dataclasses.dataclass
class Demo:
    """The tabular half of the paper in two minutes: run it, plot Figures 3 to 6, check claims 1 to 17."""

    scale: str = "demo"  # smoke, demo, small, gpu or paper
    out: Path = Path("runs")  # where runs are stored; what is there already is not run again
    report: Path = Path("report")  # where figures and the HTML report go

    def main(self) -> int:
        store, scale = Store(self.out), Scale(self.scale)
        require_dir(self.report, "--report")  # before two minutes of work
        studies = [runner.Study(experiment, scale) for experiment in experiments().values() if experiment.in_demo]
        runner.run(studies, store, wait=True)
        return _print_paths(collect.publish(studies, store, self.report))


@dataclasses.dataclass
class Run:
    """Run an experiment, here or on a cluster. Stored runs are not run again; an interrupted run resumes."""

    experiment: Name
    scale: str = "small"  # smoke, demo, small, gpu or paper
    seeds: Annotated[int | None, shown("N", "those of the scale")] = None  # seeds 0 to N-1
    only: Several = ()  # a configuration, or a pattern such as 'pendulum*/made'; may be given several times
    set: Several = ()  # path=value, such as bonus.recent.window=500; may be given several times
    out: Path = Path("runs")  # the store of runs
    on: str = "threads"  # threads, processes, ray or slurm
    # programs that run in parallel
    workers: Annotated[int | None, shown("N", "a core each, at most 4 threads; 100 on slurm")] = None
    max_batch: Annotated[int, tyro.conf.arg(metavar="N")] = 512  # the most runs of one program; it may change last bits
    # stop after this time; control runs save a checkpoint. On slurm it is the time limit of each job
    minutes: Annotated[float | None, shown("X", "none; 240 on slurm")] = None
    # how often a program is started again whose worker died; an error is not retried
    retries: Annotated[int, tyro.conf.arg(metavar="N")] = 3
    wait: Flag = False  # wait for runs that another process makes, and make them if it dies
    cpus: Annotated[float, tyro.conf.arg(metavar="X")] = 1.0  # CPUs of a worker, on ray and slurm
    gpus: Annotated[float, tyro.conf.arg(metavar="X")] = 0.0  # GPUs of a worker, on ray and slurm
    # Ray cluster to use, such as auto or 10.0.0.1:6379
    address: Annotated[str | None, shown("HOST:PORT", "start a local one")] = None
    cluster: str = "slurm"  # slurm, or local to try --on slurm without SLURM
    partition: Annotated[str | None, shown("NAME")] = None  # SLURM partition

    def main(self) -> int:
        for name in ("seeds", "max_batch"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}.")
        options = Options(*(getattr(self, name) for name in Options._fields))
        options.validate()
        if self.on != "threads":  # the driver looks at the device and leaves its memory to the workers
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        store = Store(self.out)
        one = _study(self.experiment, self.scale, self.set, store)
        runner.run([one], store, self.seeds, self.only, self.max_batch, options, self.wait)
        _tell(runner.check(one, store))
        _tell_lack([one], store)
        return 0


@dataclasses.dataclass
class Figure:
    """Draw the figures of an experiment from its recorded runs."""

    experiment: Name
    scale: str | None = None  # the largest recorded scale unless given
    set: Several = ()  # path=value, as the runs were made with; may be given several times
    out: Path = Path("runs")  # the store of runs
    to: Path = Path("report")  # the folder for PNG and SVG

    def main(self) -> int:
        store = _store(self.out)
        for _, path in runner.draw(_study(self.experiment, self.scale, self.set, store), store, self.to):
            print(path)
        return 0


@dataclasses.dataclass
class Check:
    """Each claim of the paper with its verdict, computed from the recorded runs."""

    experiment: Annotated[str | None, tyro.conf.Positional] = None  # all unless named
    scale: str | None = None  # the largest recorded scale unless given
    json: Flag = False  # in a stable form for programs
    set: Several = ()  # path=value, as the runs were made with; may be given several times
    out: Path = Path("runs")  # the store of runs
    strict: Flag = False  # exit with 1 if a claim does not hold

    def main(self) -> int:
        store = _store(self.out)
        names = [self.experiment] if self.experiment else list(experiments())
        chosen = [_study(name, self.scale, self.set, store) for name in names]
        judged = [row for one in chosen for row in runner.check(one, store)]
        judged.sort(key=lambda row: row.claim)
        if self.json:
            print(json.dumps([row._asdict() for row in judged], indent=1))
        else:
            _tell(judged)
            _tell_lack(chosen, store)
            if not judged:
                print(f"{', '.join(names)} judges no claim of the paper.")
        _warn(store)
        return int(self.strict and any(row.holds is False for row in judged))


@dataclasses.dataclass
class Evidence:
    """What the undecided claims still need: runs, estimated minutes and the command, most verdicts per minute first."""

    out: tuple[Path, ...] = (Path("runs"),)  # stores, or folders that hold stores

    def main(self) -> int:
        _demand_there(*self.out)
        found = runner.missing_evidence([*experiments().values()], collect.find(self.out).stores)
        for one in found:
            runs, name = sum(one.missing.values()), one.study.experiment.name
            time = f", about {one.minutes:.0f} minutes at the recorded speed" if one.minutes > 0 else ""
            print(f"{name} at scale {one.study.scale.value}: {len(one.claims)} undecided, {runs} runs missing{time}.")
            for row in one.claims:
                print(f"  claim {row.claim} {row.name}: {'; '.join(row.missing) or 'the intervals are too wide'}")
            if runs:
                missing = ", ".join(f"{label} ({n})" for label, n in one.missing.items())
                print(f"  {one.command}\n{textwrap.fill(missing, 100, **INDENT)}")
            else:
                print("  All runs of this scale are recorded: add seeds (--seeds N) or run a larger scale.")
        if not found:
            print(f"No claim recorded in {', '.join(map(str, self.out))} is undecided.")
        return 0


@dataclasses.dataclass
class Choose:
    """Take over what a search found: the experiment it was for then runs each method at its best setting."""

    experiment: Name  # a search, such as dmc_search
    scale: str | None = None  # the largest recorded scale unless given
    set: Several = ()  # path=value, as the runs were made with; may be given several times
    out: Path = Path("runs")  # the store of runs
    replace: Flag = False  # write over settings that were taken over before

    def main(self) -> int:
        searches = [name for name, one in experiments().items() if one.search is not None]
        store = _store(self.out)
        one = _study(self.experiment, self.scale, self.set, store)
        if one.experiment.search is None:
            raise ValueError(f"{self.experiment} is no search: give {' or '.join(searches)}.")
        table, why = runner.load(one, store)
        if not table.labels():
            raise ValueError(f"There is nothing to choose from in {self.out}: {why}.")
        taken = types.take_settings(one.experiment.search, table, one.scale, self.replace)
        for task, of in taken.items():
            print(f"{task}: {', '.join(f'{method} {setting}' for method, setting in of.items())}")
        if lack := runner.not_run(one, table):
            print(f"made: chosen without {', '.join(lack)}, which was not run.", file=sys.stderr)
        return 0


@dataclasses.dataclass
class Report:
    """Gather what is recorded into one page: every claim with its verdict, figures, curves, maps and videos."""

    experiments: Names = ()  # all unless named
    scale: str | None = None  # of each experiment the largest recorded unless given
    out: tuple[Path, ...] = (Path("runs"),)  # stores, or folders that hold stores, trained agents and earlier reports
    to: Path = Path("report")
    markdown: Path | None = None  # also write the results as a Markdown page

    def main(self) -> int:
        _demand_there(*self.out)
        if self.markdown is not None:
            require_file(self.markdown, "--markdown")  # before figures are drawn
        return _print_paths(collect.reproduce(self.out, self.to, self.experiments, self.scale), self.markdown)


@dataclasses.dataclass
class Export:
    """Pack stored runs into few files for each experiment and scale; new runs join those that are packed already.

    <store>/<experiment>/<scale>.csv.gz has the columns label, seed, step and one for each metric
    (pandas.read_csv reads it), .json the settings and provenance, .safetensors the arrays, if there are any. The other
    commands read packed runs like run folders, and `made run` does not make them again.
    """

    experiments: Names = ()  # all that the store holds unless named
    out: Path = Path("runs")  # the store of runs
    to: Path | None = None  # another store for the packed files; the same one unless given
    remove: Flag = False  # delete the run folders that were packed, after the files were read again and compared

    def main(self) -> int:
        store = _store(self.out)
        if self.remove and self.to is not None:
            raise ValueError("--remove works within one store: leave out --to, or --remove.")
        there = store.experiments()
        if unknown := [name for name in self.experiments if name not in there]:
            raise ValueError(f"{self.out} holds no runs of {unknown[0]}: it has {', '.join(there) or 'none at all'}.")
        done = [one for name in self.experiments or there for one in locking.export(store, name, self.to, self.remove)]
        if not done:
            raise ValueError(f"{self.out} holds no runs to pack: run `made run EXPERIMENT --out {self.out}` first.")
        for one in done:
            print(f"{one.table}: {one.runs} runs" + f", {one.removed} run folders removed" * (one.removed > 0))
        _warn(store)
        return int(bool(store.problems))


def _study(name: str, scale: str | None, settings: tuple[str, ...], store):
    """An experiment with its settings, at the largest recorded scale unless one is given."""
    about = experiment(name)
    return runner.Study(about, Scale(scale) if scale else [Scale.SMALL, *runner.scales(about, store)][-1], settings)


def _store(out: Path):
    """A store to read from."""
    _demand_there(out)
    return Store(out)


def _demand_there(*folders: Path) -> None:
    """Refuse a folder that was named and is not there: a slip of the pen would pass for "nothing recorded"."""
    for folder in folders:
        if folder != Path("runs") and not folder.exists():
            raise ValueError(f"There is no folder {folder}: give one that holds runs with --out.")


def _print_paths(written, to_markdown: Path | None = None) -> int:
    for figure in (figure for section in written.sections for figure in section.figures):
        print(f"drawn: {figure.file}")
    if to_markdown is not None:
        to_markdown.parent.mkdir(parents=True, exist_ok=True)
        recorded = [section for section in written.sections if section.provenance]
        write_atomic(to_markdown, page.markdown(recorded, to_markdown))
    _tell([row for row in written.judged if row.seeds], numbers=False)
    _warn(written)
    print(f"The report, with figures, tables, settings and provenance: {written.page}")
    return 0


def _tell_lack(studies, store) -> None:
    """What was not run of experiments that are judged from what was."""
    for one in (one for one in studies if one.experiment.in_pieces):
        if lack := runner.not_run(one, runner.load(one, store, partial=True)[0]):
            print(f"Not run of {one.experiment.name} at scale {one.scale.value}: {', '.join(lack)}.")


def _tell(judged, numbers: bool = True) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not judged:
        return
    table = Table("claim", "verdict", *["observed"] * numbers, box=None, pad_edge=False)
    for row in judged:
        symbol, words = SAID[kind_of(row._asdict())]
        seen = [Text(textwrap.shorten(row.observed, OBSERVED_WIDTH, placeholder="..."))] * numbers
        table.add_row(Text(f"{row.claim} {row.name}"), Text(f"{symbol} {words}"), *seen)
    console = Console()
    console.print(table, soft_wrap=False)
    counts = Counter(kind_of(row._asdict()) for row in judged)
    told = ", ".join(f"{n} {(SEVERAL[kind] if n > 1 else SAID[kind][1])}" for kind in SEVERAL if (n := counts[kind]))
    console.print(f"{len(judged)} claim{'s' * (len(judged) != 1)}: {told}.")


def _warn(store) -> None:
    for problem in store.problems:
        print(f"made: skipped a damaged run: {problem}", file=sys.stderr)
