"""`made report`: everything recorded in several folders, in one page.

A folder may be a store, or contain stores, runs of `made train` and earlier reports. Each experiment is shown at its
largest recorded scale. If no store has it complete, its section is copied from an earlier report. Partial runs of a
large scale are followed by the figures and tables of a smaller scale that is complete.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from made.core import safe_files
from made.experiments import experiment, experiments, plots, runner
from made.experiments.report import Figure, Section, charts, read_json, write_json
from made.experiments.report.page import write
from made.experiments.runner import Study
from made.experiments.store import MARKER, Scale, Store
from made.experiments.types import ClaimResult, Experiment
from made.training.paths import make_dir
from made.training.provenance import merged

_DEEPEST = 3  # levels of folders to search
_SIZES = list(Scale)  # smallest first


class Found(NamedTuple):
    """What some folders hold: stores, runs of `made train`, and sections of earlier reports by name."""

    stores: list[Store]
    agents: list[charts.Agent]
    earlier: dict[str, Section]


class Report(NamedTuple):
    """A written page, its sections, and damaged runs."""

    page: Path
    sections: list[Section]
    problems: list[str]

    @property
    def judged(self) -> list[ClaimResult]:
        """Every claim as a row of `made check`, sorted by number."""
        claims = [claim for section in self.sections for claim in section.claims]
        rows = [ClaimResult(*(claim[name] for name in ClaimResult._fields)) for claim in claims]
        return sorted(rows, key=lambda row: row.claim)


def reproduce(roots: Sequence[Path], to: Path, names: Sequence[str] = (), scale: str | None = None) -> Report:
    """Plot and check everything in the folders, and write the page to `to`/index.html.

    Without names it has every experiment, recorded or not.
    """
    found = find(roots)
    earlier = found.earlier if scale is None else {}  # which may be of another scale
    chosen = [experiment(name) for name in names] or list(experiments().values())
    options = [list(_studies(one, found.stores, Scale(scale) if scale else None)) for one in chosen]
    if not found.agents and not any(store for each in options for _, store in each) and not earlier:
        where = ", ".join(map(str, roots))
        raise ValueError(f"Nothing is recorded in {where}: run `made demo` or `made run EXPERIMENT` first.")
    make_dir(to, "--to")
    return _written(options, to, earlier, () if names else found.agents)


def publish(studies: Sequence[Study], store: Store, to: Path) -> Report:
    """The page of these studies, from one store, into the folder that `made demo` calls --report."""
    make_dir(to, "--report")
    return _written([[(one, store)] for one in studies], to, {}, ())


def find(roots: Sequence[Path]) -> Found:
    """Everything in the folders; a folder that does not exist is empty."""
    stores, runs, earlier = [], {}, {}
    for root in roots:
        if root.exists() and not root.is_dir():
            raise ValueError(f"{root} is a file, not a folder of results: give a folder with --out.")
        for folder in _below(root, _DEEPEST):
            if (folder / MARKER).exists():
                stores.append(Store(folder))
            for section in read_json(folder):
                earlier.setdefault(section.name, section)
            for at, run in {folder: charts.read_agent(folder), **charts.packed_agents(folder)}.items():
                if run is not None:
                    runs.setdefault(at.resolve(), run)
    return Found(stores, sorted(runs.values(), key=lambda run: (not run.videos, run.task, run.name)), earlier)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """The folder and those below it, without the inside of stores."""
    if not folder.is_dir():
        return
    yield folder
    if depth and not (folder / MARKER).exists():
        for one in sorted(folder.iterdir()):
            if not one.name.startswith("."):
                yield from _below(one, depth - 1)


def _studies(one: Experiment, stores: Sequence[Store], scale: Scale | None) -> Iterator[tuple[Study, Store | None]]:
    """The experiment in every store that has it, the largest scale first; last, without a store."""
    have = [(store, runner.scales(one, store)) for store in stores]
    for size in (scale,) if scale else reversed(_SIZES):
        for store, scales in have:
            if size in scales:
                yield Study(one, size), store
    yield Study(one, scale or Scale.SMALL), None


def _written(
    options: Sequence[Sequence[tuple[Study, Store | None]]],
    to: Path,
    earlier: Mapping[str, Section],
    agents: Sequence[charts.Agent],
) -> Report:
    found = [_chosen(each, to, earlier) for each in options]
    sections = [section for section in found if section.provenance or section.claims]
    page = write(to / "index.html", sections, agents)
    write_json(to, [section for section in sections if section.provenance])
    stores = dict.fromkeys(store for each in options for _, store in each if store is not None)
    report = Report(page, sections, [problem for store in stores for problem in store.problems])
    rows = [row._asdict() for row in report.judged if row.seeds]
    safe_files.write_atomic(to / "claims.json", json.dumps(rows, indent=1) + "\n")
    return report


def _chosen(each: Sequence[tuple[Study, Store | None]], to: Path, earlier: Mapping[str, Section]) -> Section:
    """The first study that is complete, else what an earlier report has of it, else its claims and what is missing."""
    partial = []
    for one, store in each:
        section, table = publish_study(one, store, to), runner.load(one, store)[0]
        if section.provenance and table.labels():
            return _above(section, one, each, to) if runner.not_run(one, table) else section
        partial.append(section)
    name = partial[0].name
    return _copied(earlier[name], to) if name in earlier else partial[0]


def _copied(section: Section, to: Path) -> Section:
    """A section of an earlier report, with its figures copied to the folder of the new page."""
    figures = [figure._replace(file=to / figure.file.name) for figure in section.figures]
    for old, new in zip(section.figures, figures, strict=True):
        if old.file.resolve() != new.file.resolve():
            safe_files.write_atomic(new.file, old.png)
    return section._replace(figures=figures)


def _above(section: Section, one: Study, each: Sequence[tuple[Study, Store | None]], to: Path) -> Section:
    """A section of partial runs, followed by figures and tables of the largest smaller scale that is complete."""
    for other, store in each:
        smaller = other.scale != Scale.SMOKE and _SIZES.index(other.scale) < _SIZES.index(one.scale)
        if store is None or not smaller or runner.not_run(other, runner.load(other, store)[0]):
            continue
        more, at = publish_study(other, store, to, f"_{other.scale.value}"), f"at scale {other.scale.value}"
        figures = [one._replace(caption=f"{at.capitalize()}: {one.caption}") for one in more.figures]
        return section._replace(
            figures=[*section.figures, *figures],
            tables=[*section.tables, *((f"{title}, {at}", *rest) for title, *rest in more.tables)],
            settings={**section.settings, **{f"{label}, {at}": x for label, x in more.settings.items()}},
            provenance={**section.provenance, **{f"{at}: {name}": x for name, x in more.provenance.items()}},
        )
    return section


def publish_study(study: Study, store: Store | None, folder: Path, mark: str = "") -> Section:
    """A study as a section of the report; its claims alone where nothing of it can be plotted.

    Its figures go to `folder` as PNG and SVG. Their names end with `mark`.
    """
    one, claims = study.experiment, []
    for claim, row in zip(study.experiment.claims, runner.check(study, store), strict=True):
        claims.append({**row._asdict(), "text": f"{claim.text}."})
    section = Section(one.name, one.title, one.about, claims=claims)
    table, problem = runner.load(study, store, partial=True)
    if problem:
        return section
    figures = []
    for drawn in one.draw(table):
        file = plots.save(drawn.figure, folder / f"{drawn.name}{mark}")[0]
        figures.append(Figure(file, drawn.caption, f"Figure {drawn.name}: {drawn.caption}"))
    runs = {label: table.runs(label) for label in table.labels()}
    tables = one.tables(table)
    if absent := runner.not_run(study, table):
        tables = [*tables, ("Not run at this scale", ["configuration"], [[label] for label in absent])]
    return section._replace(
        figures=figures,
        tables=tables,
        settings={label: ones[0]["description"] for label, ones in runs.items()},
        provenance=merged(run["provenance"] for ones in runs.values() for run in ones),
        maps=charts.visit_maps(table) if one.name == "lock_heatmap" else {},
        curves=charts.learning_curves(table) if one.name == "minigrid" else {},
    )
