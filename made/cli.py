"""The command `made`: each command is a dataclass whose fields are its options and whose `main` does it."""

import contextlib
import dataclasses
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Union

import tyro

from made.training.command import Settings, Train
from made.training.transfer import Transfer

Name = Annotated[str, tyro.conf.Positional]
Names = Annotated[tuple[str, ...], tyro.conf.Positional]


@dataclasses.dataclass
class Demo:
    """The tabular half of the paper in two minutes: run it, draw Figures 3 to 6, judge claims 1 to 17."""

    scale: str = "demo"  # smoke, demo, small or paper
    out: Path = Path("runs")  # where runs are stored; what is there already is not run again
    report: Path = Path("report")  # where figures and the HTML report go

    def main(self) -> int:
        from made import study
        from made.experiments import experiments
        from made.results.store import Scale, Store

        store, scale = Store(self.out), Scale(self.scale)
        studies = [study.Study(experiment, scale) for experiment in experiments().values() if experiment.in_demo]
        study.run(studies, store)
        return _publish(studies, store, self.report)


@dataclasses.dataclass
class List:
    """What there is: experiments, bonuses, agents, tasks, benchmarks, one line each."""

    json: bool = False

    def main(self) -> int:
        from made import listing

        kinds = listing.everything()
        if self.json:
            print(json.dumps({kind: list(entries) for kind, entries in kinds.items()}, indent=1))
            return 0
        for kind, entries in kinds.items():
            print(f"{kind}:")
            width = max(map(len, entries), default=0)
            for name, line in entries.items():
                print(f"  {name:{width}}  {line}")
        return 0


@dataclasses.dataclass
class Run:
    """Run an experiment. What is stored already is not run again; an interrupted run goes on."""

    experiment: Name
    scale: str = "small"  # smoke, demo, small or paper
    seeds: int | None = None  # seeds 0 to N-1 instead of the scale's own number
    set: Settings = ()  # path=value, such as bonus.recent.window=500; may be given several times
    out: Path = Path("runs")

    def main(self) -> int:
        from made import study
        from made.results.store import Store

        if self.seeds is not None and self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, got {self.seeds}.")
        one, store = _study(self.experiment, self.scale, self.set), Store(self.out)
        study.run([one], store, self.seeds)
        _tell(study.check(one, store))
        return 0


@dataclasses.dataclass
class Figure:
    """Draw the figures of an experiment from its recorded runs."""

    experiment: Name
    scale: str | None = None  # the largest recorded scale unless given
    set: Settings = ()
    out: Path = Path("runs")
    to: Path = Path("report")  # the folder for PNG and SVG

    def main(self) -> int:
        from made import study
        from made.results.store import Store

        store = Store(self.out)
        for _, path in study.draw(_recorded(self.experiment, self.scale, self.set, store), store, self.to):
            print(path)
        return 0


@dataclasses.dataclass
class Check:
    """Each claim of the paper with its verdict, computed from the recorded runs."""

    experiment: Annotated[str | None, tyro.conf.Positional] = None
    scale: str | None = None  # the largest recorded scale unless given
    json: bool = False
    set: Settings = ()
    out: Path = Path("runs")
    strict: bool = False  # exit with 1 if a claim does not hold

    def main(self) -> int:
        from made import study
        from made.experiments import experiments
        from made.results.store import Store

        store = Store(self.out)
        names = [self.experiment] if self.experiment else list(experiments())
        judged = [row for name in names for row in study.check(_recorded(name, self.scale, self.set, store), store)]
        judged.sort(key=lambda row: row.claim)
        if self.json:
            print(json.dumps([row._asdict() for row in judged], indent=1))
        else:
            _tell(judged)
        _warn(store)
        return int(self.strict and any(row.holds is False for row in judged))


@dataclasses.dataclass
class Report:
    """Draw every figure and write the HTML report from what is recorded."""

    experiments: Names = ()  # all that are recorded unless named
    scale: str | None = None
    out: Path = Path("runs")
    to: Path = Path("report")
    markdown: Path | None = None  # also write the results as a Markdown page

    def main(self) -> int:
        from made import study
        from made.experiments import experiments
        from made.results.store import Store

        store = Store(self.out)
        names = self.experiments or [n for n, e in experiments().items() if study.largest_scale(e, store)]
        if not names:
            raise ValueError(f"Nothing is recorded in {self.out}: run `made demo` or `made run EXPERIMENT` first.")
        studies = [_recorded(name, self.scale, (), store) for name in names]
        return _publish(studies, store, self.to, self.markdown)


@dataclasses.dataclass
class Map:
    """Where an equation, algorithm, theorem, lemma or figure of the paper is in the code."""

    label: Annotated[str | None, tyro.conf.Positional] = None  # such as eq:bonus_design; every row unless given

    def main(self) -> int:
        from made import papermap

        if self.label is None:
            for row in papermap.rows():
                print(f"{row.label:32} {row.item:28} {row.code}  [{row.status}]")
            return 0
        for name, text in papermap.row(self.label)._asdict().items():
            print(f"{name:7} {text}")
        return 0


@dataclasses.dataclass
class Bench:
    """Measure speed and memory, side by side with the alternatives, as ratios."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    json: bool = False

    def main(self) -> int:
        from made import bench

        measured = bench.run(self.name)
        print(json.dumps([row._asdict() for row in measured], indent=1) if self.json else bench.as_text(measured))
        return 0


@dataclasses.dataclass
class Doctor:
    """What is installed, what is missing, which known clashes there are, each with its fix."""

    def main(self) -> int:
        from made import doctor

        findings = doctor.examine()
        for finding in findings:
            print(f"{finding.state:8} {finding.what}" + (f"\n{'':9}fix: {finding.fix}" if finding.fix else ""))
        return int(any(finding.state == "wrong" for finding in findings))


@dataclasses.dataclass
class Play:
    """Walk a grid in the terminal: a, d turn; w goes; p picks up; t toggles; q quits."""

    task: Name  # a MiniGrid id, such as MiniGrid-KeyCorridorS3R3-v0
    seed: int = 0
    keys: str | None = None  # these keys instead of the keyboard's

    def main(self) -> int:
        from made.grids.play import play

        return play(self.task, self.seed, self.keys)


COMMANDS = (Demo, List, Run, Train, Transfer, Figure, Check, Report, Map, Bench, Doctor, Play)


def _study(name: str, scale: str, settings: tuple[str, ...]):
    from made import study
    from made.experiments import experiment
    from made.results.store import Scale

    return study.Study(experiment(name), Scale(scale), settings)


def _recorded(name: str, scale: str | None, settings: tuple[str, ...], store):
    from made import study
    from made.experiments import experiment

    return _study(name, scale or study.largest_scale(experiment(name), store) or "small", settings)


def _publish(studies, store, folder: Path, to_markdown: Path | None = None) -> int:
    from made import report, study

    published = [study.publish(one, store, folder) for one in studies]
    for image in (image for one in published for image in one.images):
        print(f"drawn: {image}")
    judged = sorted((row for one in published for row in one.judged), key=lambda row: row.claim)
    sections = [one.section for one in published]
    page = report.write(folder / "index.html", sections)
    if to_markdown is not None:
        from made import markdown

        to_markdown.parent.mkdir(parents=True, exist_ok=True)
        to_markdown.write_text(markdown.render(sections, [one.images for one in published], to_markdown), "utf-8")
    _tell(judged)
    _warn(store)
    print(f"The report, with figures, tables, settings and provenance: {page}")
    return 0


def _tell(judged) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from made.report import verdict

    table = Table("claim", "verdict", "observed", box=None, pad_edge=False)
    for row in judged:
        _, symbol, words = verdict(row.holds)
        seen = row.observed if len(row.observed) <= 320 else row.observed[:317] + "..."
        table.add_row(Text(f"{row.claim} {row.name}"), Text(f"{symbol} {words}"), Text(seen))
    console = Console()
    console.print(table, soft_wrap=False)
    kinds = {"hold": True, "do not hold": False, "cannot be told": None}
    counts = {words: sum(row.holds is kind for row in judged) for words, kind in kinds.items()}
    console.print(f"{len(judged)} claims: " + ", ".join(f"{n} {words}" for words, n in counts.items() if n) + ".")


def _warn(store) -> None:
    for problem in store.problems:
        print(f"made: skipped a damaged run: {problem}", file=sys.stderr)


def use_compilation_cache() -> None:
    """Compiled programs outlive the process. MADE_CACHE names another folder, or switches it off when empty."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "made"
    folder = os.environ.get("MADE_CACHE", str(default))
    if not folder:
        return
    import jax

    jax.config.update("jax_compilation_cache_dir", str(Path(folder) / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def parse(words: list[str]):
    """The command that the words ask for; a mistake is told in one line and ends with exit code 2."""
    names = [command.__name__.lower() for command in COMMANDS]
    if words and not words[0].startswith("-") and words[0] not in names:
        from made.describe import suggest

        raise ValueError(f"There is no command {words[0]!r}.{suggest(words[0], names)}")
    union = Union[tuple(Annotated[c, tyro.conf.subcommand(c.__name__.lower())] for c in COMMANDS)]  # noqa: UP007
    heard = io.StringIO()
    try:
        with contextlib.redirect_stderr(heard):
            return tyro.cli(union, prog="made", args=words, config=(tyro.conf.FlagCreatePairsOff,))  # type: ignore[arg-type]
    except SystemExit as stop:
        if stop.code:
            raise ValueError(f"{_in_one_line(heard.getvalue())} See: made {words[0] if words else ''} --help") from None
        raise


def _in_one_line(box: str) -> str:
    """The gist of tyro's boxed message: its first sentences, and the nearest option where it names one."""
    lines = [" ".join(re.sub(r"[^\x20-\x7e]", " ", line).split()) for line in box.splitlines()]
    lines = [line for line in lines if line]
    if wrong := re.search(r"Error parsing (\S+):.*?from \['(.*?)'\]", " ".join(lines)):
        return f"{wrong[1]} cannot be {wrong[2]!r}."
    gist = " ".join(lines[1:3] if lines[0].startswith(("Required", "Parsing")) else lines[1:2])
    near = re.search(r"meant: (--[a-z-]+)", " ".join(lines))
    return f"{gist}." + (f" Did you mean {near[1]}?" if near else "")


OVERVIEW = """made: exploration by maximising deviation from explored regions.

  made demo                      two minutes: Figures 3 to 6, Algorithm 1, verdicts on claims 1 to 17
  made list                      what there is
  made run lock --scale small    one experiment, larger; then: made check lock, made figure lock
  made train --env DoorKey-5x5   an agent with a bonus; the same command goes on after an interruption
  made doctor                    what is missing on this machine, and the fix

Every command explains itself with --help."""


def main(words: list[str] | None = None) -> int:
    """Entry point of the command line."""
    words = sys.argv[1:] if words is None else words
    if not words:
        print(OVERVIEW)
        return 0
    try:
        command = parse(words)
        use_compilation_cache()
        return command.main()
    except ValueError as error:
        print(f"made: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("made: interrupted; what is stored stays, and the same command goes on from there.", file=sys.stderr)
        os._exit(130)  # threads may still be inside compiled code
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
