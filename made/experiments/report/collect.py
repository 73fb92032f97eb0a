"""`made report`: whatever is recorded, gathered from several folders into one page.

A folder may be a store, or hold stores, runs of `made train` and earlier reports somewhere below it. For each
experiment the largest recorded scale counts; where no store has it complete, the earlier report that does, marked so.
Of what is judged from a part of its runs, figures and tables of a smaller scale that is complete stand below.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from made.core import safe_files
from made.experiments import experiment, experiments, runner
from made.experiments.report import agents, curves, heatmaps, model
from made.experiments.report.agents import Agent
from made.experiments.report.model import Section, numbered, verdict
from made.experiments.report.page import render, write
from made.experiments.runner import Study
from made.experiments.store.store import MARKER, Scale, Store
from made.experiments.store.table import Table
from made.experiments.types import ClaimResult, Experiment
from made.training.paths import make_dir

__all__ = ["Found", "Report", "Section", "find", "publish", "render", "reproduce", "verdict", "write"]

_DEEPEST = 3  # folders below a given one that are looked into
_ORDER = (Scale.PAPER, Scale.GPU, Scale.SMALL, Scale.DEMO, Scale.SMOKE)
_DRAWN = {"lock_heatmap": ("maps", heatmaps.of, "vi/bernstein"), "minigrid": ("curves", curves.of, "")}

Earlier = Mapping[str, tuple[Section, list[Path]]]


class Found(NamedTuple):
    """What some folders hold: stores, runs of `made train`, and sections of earlier reports by name."""

    stores: list[Store]
    agents: list[Agent]
    earlier: dict[str, tuple[Section, list[Path]]]


class Report(NamedTuple):
    """A written page, and what is in it: sections with the files of their figures, and all verdicts."""

    page: Path
    sections: list[Section]
    images: list[list[Path]]
    problems: list[str]

    @property
    def judged(self) -> list[ClaimResult]:
        """Every claim as a row of `made check`, in the order of their numbers."""
        rows = []
        for claim in (claim for section in self.sections for claim in section.claims):
            kept = {name: claim[name] for name in ClaimResult._fields[1:] if name in claim}  # older ones lack some
            rows.append(ClaimResult(numbered(claim)[0] or 0, **kept))
        return sorted(rows, key=lambda row: row.claim)


def reproduce(roots: Sequence[Path], to: Path, names: Sequence[str] = (), scale: str | None = None) -> Report:
    """Gather what the folders hold, draw it, judge it, and write the page to `to`/index.html.

    Without names every experiment is in it, the claims of those that are not recorded too.
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
    """The page of these studies alone, from one store, into the folder that `made demo` calls --report."""
    make_dir(to, "--report")
    return _written([[(one, store)] for one in studies], to, {}, ())


def find(roots: Sequence[Path]) -> Found:
    """Look through the folders; one that does not exist holds nothing."""
    stores, runs, earlier = [], {}, {}
    for root in roots:
        if root.exists() and not root.is_dir():
            raise ValueError(f"{root} is a file, not a folder of results: give a folder with --out.")
        for folder in _below(root, _DEEPEST):
            if (folder / MARKER).exists():
                stores.append(Store(folder))
            for section, files in model.read(folder):
                earlier.setdefault(section.name, (section, files))
            if (run := agents.read(folder)) is not None:
                runs.setdefault(folder.resolve(), run)
            for at, run in agents.packed_in(folder).items():
                runs.setdefault(at.resolve(), run)
    return Found(stores, sorted(runs.values(), key=lambda run: (not run.videos, run.task, run.name)), earlier)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """The folder and those below it, but not what is inside a store."""
    if not folder.is_dir():
        return
    yield folder
    if depth and not (folder / MARKER).exists():
        for one in sorted(folder.iterdir()):
            if not one.name.startswith("."):
                yield from _below(one, depth - 1)


def _studies(one: Experiment, stores: Sequence[Store], scale: Scale | None) -> Iterator[tuple[Study, Store | None]]:
    """The experiment in every store that has it, the largest scale first; last, that nobody has it."""
    have = [(store, runner.scales(one, store)) for store in stores]
    for size in (scale,) if scale else _ORDER:
        for store, scales in have:
            if size in scales:
                yield Study(one, size), store
    yield Study(one, scale or Scale.SMALL), None


def _written(
    options: Sequence[Sequence[tuple[Study, Store | None]]], to: Path, earlier: Earlier, runs: Sequence[Agent]
) -> Report:
    pairs = [_chosen(each, to, earlier) for each in options]
    pairs = [(section, files) for section, files in pairs if section.provenance or section.claims]
    sections, images = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    page = write(to / "index.html", sections, agents=runs)
    kept = [i for i, section in enumerate(sections) if section.provenance]
    model.write(to, [sections[i] for i in kept], [images[i] for i in kept])
    stores = dict.fromkeys(store for each in options for _, store in each if store is not None)
    report = Report(page, sections, images, [problem for store in stores for problem in store.problems])
    rows = [row._asdict() for row in report.judged if row.seeds]
    safe_files.write_atomic(to / "claims.json", json.dumps(rows, indent=1) + "\n")
    return report


def _chosen(each: Sequence[tuple[Study, Store | None]], to: Path, earlier: Earlier) -> tuple[Section, list[Path]]:
    """The first study that is complete, else what an earlier report has of it, else why there is nothing."""
    told: list[tuple[Section, list[Path]]] = []
    for one, store in each:
        if store is None:
            claims = runner.unchecked_claims(one, f"nothing recorded; run: {one.command}")
            texts = {claim.number: claim.text for claim in one.experiment.claims}
            rows = [{**row._asdict(), "claim": f"Claim {row.claim}: {texts[row.claim]}."} for row in claims]
            told.append((Section(one.experiment.name, one.experiment.title, one.experiment.about, claims=rows), []))
            continue
        published, table = runner.publish(one, store, to), runner.load(one, store)[0]
        section = _with_data(published.section, table)
        shown = section, published.images
        if section.provenance and table.labels():
            return _above(*shown, one, each, to) if runner.not_run(one, table) else shown
        told.append(shown)  # perhaps with what is begun, which stands back for what is whole
    name = each[0][0].experiment.name
    return _brought(*earlier[name], to) if name in earlier else told[0]


def _above(
    section: Section, images: list[Path], one: Study, each: Sequence[tuple[Study, Store | None]], to: Path
) -> tuple[Section, list[Path]]:
    """A section of which runs are missing, above figures and tables of the largest smaller scale that lacks none."""
    for other, store in each:
        smaller = other.scale != Scale.SMOKE and _ORDER.index(other.scale) > _ORDER.index(one.scale)
        if store is None or not smaller or runner.not_run(other, runner.load(other, store)[0]):
            continue
        published = runner.publish(other, store, to, f"_{other.scale.value}")
        more, at = published.section, f"at scale {other.scale.value}"
        if not more.provenance:
            continue
        figures = [(f"{at.capitalize()}: {caption}", png, text) for caption, png, text in more.figures]
        both = section._replace(
            figures=[*section.figures, *figures],
            tables=[*section.tables, *((f"{title}, {at}", *rest) for title, *rest in more.tables)],
            settings={**section.settings, **{f"{label}, {at}": x for label, x in more.settings.items()}},
            provenance={**section.provenance, **{f"{at}: {name}": x for name, x in more.provenance.items()}},
        )
        return both, [*images, *published.images]
    return section, images


def _with_data(section: Section, table: Table) -> Section:
    """The section with what the page's scripts draw of it."""
    if section.name not in _DRAWN or not table.labels():
        return section
    field, of, needed = _DRAWN[section.name]
    return section._replace(**{field: of(table)}) if not needed or needed in table.labels() else section


def _brought(section: Section, files: Sequence[Path], to: Path) -> tuple[Section, list[Path]]:
    """An earlier section, its figures copied to where the new page goes."""
    for file in files:
        if file.resolve() != (to / file.name).resolve():
            safe_files.write_atomic(to / file.name, file.read_bytes())
    return section, [to / file.name for file in files]
