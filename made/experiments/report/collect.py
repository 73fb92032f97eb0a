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
from made.experiments import experiment, experiments, runner
from made.experiments.report import agents, charts, model
from made.experiments.report.agents import Agent
from made.experiments.report.model import Section
from made.experiments.report.page import write
from made.experiments.runner import Study
from made.experiments.store.store import MARKER, Scale, Store
from made.experiments.types import ClaimResult, Experiment
from made.training.paths import make_dir

_DEEPEST = 3  # levels of folders to search
_ORDER = (Scale.PAPER, Scale.GPU, Scale.SMALL, Scale.DEMO, Scale.SMOKE)


class Found(NamedTuple):
    """What some folders hold: stores, runs of `made train`, and sections of earlier reports by name."""

    stores: list[Store]
    agents: list[Agent]
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
    wanted = None if scale is None else Scale(scale)
    options = {one.name: list(_studies(one, found.stores, wanted)) for one in chosen}
    if not found.agents and not any(s for each in options.values() for _, s in each) and not earlier:
        where = ", ".join(map(str, roots))
        raise ValueError(f"Nothing is recorded in {where}: run `made demo` or `made run EXPERIMENT` first.")
    make_dir(to, "--to")
    return _written(list(options.values()), to, earlier, () if names else found.agents)


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
            for section in model.read(folder):
                earlier.setdefault(section.name, section)
            if (run := agents.read(folder)) is not None:
                runs.setdefault(folder.resolve(), run)
            for at, run in agents.packed_in(folder).items():
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
    for size in (scale,) if scale else _ORDER:
        for store, scales in have:
            if size in scales:
                yield Study(one, size), store
    yield Study(one, scale or Scale.SMALL), None


def _written(
    options: Sequence[Sequence[tuple[Study, Store | None]]],
    to: Path,
    earlier: Mapping[str, Section],
    runs: Sequence[Agent],
) -> Report:
    found = [_chosen(each, to, earlier) for each in options]
    sections = [section for section in found if section.provenance or section.claims]
    page = write(to / "index.html", sections, runs)
    model.write(to, [section for section in sections if section.provenance])
    stores = dict.fromkeys(store for each in options for _, store in each if store is not None)
    report = Report(page, sections, [problem for store in stores for problem in store.problems])
    rows = [row._asdict() for row in report.judged if row.seeds]
    safe_files.write_atomic(to / "claims.json", json.dumps(rows, indent=1) + "\n")
    return report


def _chosen(each: Sequence[tuple[Study, Store | None]], to: Path, earlier: Mapping[str, Section]) -> Section:
    """The first study that is complete, else what an earlier report has of it, else its claims and what is missing."""
    name, partial = each[0][0].experiment.name, []
    for one, store in each:
        if store is None:
            partial.append(runner.section(one, runner.unchecked_claims(one, f"nothing recorded; run: {one.command}")))
            continue
        section, table = runner.publish(one, store, to), runner.load(one, store)[0]
        if name == "lock_heatmap" and "vi/bernstein" in table.labels():
            section = section._replace(maps=charts.visit_maps(table))
        if name == "minigrid" and table.labels():
            section = section._replace(curves=charts.learning_curves(table))
        if section.provenance and table.labels():
            return _above(section, one, each, to) if runner.not_run(one, table) else section
        partial.append(section)
    return _copied(earlier[name], to) if name in earlier else partial[0]


def _above(section: Section, one: Study, each: Sequence[tuple[Study, Store | None]], to: Path) -> Section:
    """A section of partial runs, followed by figures and tables of the largest smaller scale that is complete."""
    for other, store in each:
        smaller = other.scale != Scale.SMOKE and _ORDER.index(other.scale) > _ORDER.index(one.scale)
        if store is None or not smaller or runner.not_run(other, runner.load(other, store)[0]):
            continue
        more, at = runner.publish(other, store, to, f"_{other.scale.value}"), f"at scale {other.scale.value}"
        figures = [one._replace(caption=f"{at.capitalize()}: {one.caption}") for one in more.figures]
        return section._replace(
            figures=[*section.figures, *figures],
            tables=[*section.tables, *((f"{title}, {at}", *rest) for title, *rest in more.tables)],
            settings={**section.settings, **{f"{label}, {at}": x for label, x in more.settings.items()}},
            provenance={**section.provenance, **{f"{at}: {name}": x for name, x in more.provenance.items()}},
        )
    return section


def _copied(section: Section, to: Path) -> Section:
    """A section of an earlier report, with its figures copied to the folder of the new page."""
    for figure in section.figures:
        if figure.file.resolve() != (to / figure.file.name).resolve():
            safe_files.write_atomic(to / figure.file.name, figure.png)
    return section._replace(figures=[figure._replace(file=to / figure.file.name) for figure in section.figures])
