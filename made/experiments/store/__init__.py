"""Results on disk: one folder a run, written whole or not at all, addressed by what was run.

    <root>/made-store.json
    <root>/<experiment>/<scale>/<label>/<run-id>-s<seed>/{run.json, metrics.csv[, arrays.safetensors]}
    <root>/<experiment>/<scale>{.csv.gz, .json[, .safetensors]}   runs that `made export` packed

The run-id is the hash of the run's description, so a changed setting makes a new folder and an unchanged
job is never run twice. `files.py` has the formats.
"""

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import ArrayLike

from made.core import safe_files
from made.experiments.store import files
from made.experiments.store.table import Record, Table
from made.training.paths import FORMAT, MARKER, demand_store, make_dir

_UNFINISHED = ".unfinished"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


class Scale(StrEnum):
    """How large an experiment is run.

    >>> Scale("smoke")
    <Scale.SMOKE: 'smoke'>
    """

    SMOKE = "smoke"  # seconds: does it run at all
    DEMO = "demo"  # two minutes on two cores: `small`, cut to fit
    SMALL = "small"  # minutes on two cores
    GPU = "gpu"  # minutes to hours on one accelerator, in pieces that go on
    PAPER = "paper"  # the paper's budget

    @classmethod
    def _missing_(cls, value: object) -> "Scale":
        raise ValueError(f"Unknown scale {value!r}: use one of {', '.join(cls)}.")


class Job(NamedTuple):
    """One run to do, by name alone, so that it can be sent anywhere.

    >>> Job("lock", "vi/made", 3, Scale.SMOKE).label
    'vi/made'
    """

    experiment: str
    label: str
    seed: int
    scale: Scale


class RunExists(FileExistsError, ValueError):
    """The run is in the store already; it was not overwritten."""


class Store:
    """The results under one folder, created by the first write.

    `problems` names every damaged run folder met while reading; such runs are skipped and count as not done.

    >>> import tempfile
    >>> import numpy as np
    >>> store, job = Store(tempfile.mkdtemp()), Job("lock", "vi/made", 0, Scale.SMOKE)
    >>> rows = {"step": np.arange(3), "return": np.array([0.0, np.nan, 1.0])}
    >>> store.write(job, "ab12", {"bonus": "MADE"}, rows).name
    'ab12-s0'
    >>> table = store.table("lock", Scale.SMOKE, {"vi/made": "ab12"})
    >>> store.has(job, "ab12"), table.final("vi/made", "return")
    (True, array([1.]))
    """

    def __init__(self, root: str | os.PathLike[str]):
        self.root = Path(root)
        self.problems: list[str] = []
        self._packed: dict[Path, tuple[Any, dict[Path, Record] | None]] = {}
        demand_store(self.root)

    def has(self, job: Job, run_id: str) -> bool:
        """Whether the run is stored and undamaged."""
        return self._read(self.folder(job, run_id)) is not None

    def write(
        self,
        job: Job,
        run_id: str,
        description: Mapping[str, Any],
        rows: Mapping[str, ArrayLike],
        arrays: Mapping[str, ArrayLike] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> Path:
        """Store one run and return its folder; `RunExists` if it is there already.

        `rows` maps 'step' and each metric to a column [T]; `arrays` maps 'step' and each name to
        snapshots [T', ...]. The folder appears whole, by a rename; of two processes that write one job,
        one wins and the other raises. A damaged folder in the way is set aside, not deleted.
        """
        target = self.folder(job, run_id)
        content = files.run_files(
            {**job._asdict(), "run_id": run_id},
            files.storable(rows),
            files.storable(arrays or {}, arrays=True),
            {"description": description, "provenance": provenance or {}},
        )
        place = target.relative_to(self.root)
        with safe_files.disk_full_message(
            lambda: f"The disk is full: {target} was not stored; what was stored before is whole."
        ):
            self.mark()
            if target in (self.packed(job.experiment, job.scale) or ()):
                raise RunExists(f"{place} is packed already and was not stored again.")
            temporary = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")
            temporary.mkdir(parents=True)
            try:
                for name, part in content.items():
                    safe_files.create(temporary / name, part).close()
                if target.exists() and self.read_folder(target) is None:
                    target.rename(target.with_name(f".damaged-{target.name}-{secrets.token_hex(4)}"))
                temporary.rename(target)
            except OSError as error:
                if not target.exists():
                    raise
                raise RunExists(f"{place} is stored already and was not overwritten.") from error
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        for left in target.parent.glob(f".tmp-{target.name}-*"):  # of a writer that was killed
            shutil.rmtree(left, ignore_errors=True)
        return target

    def table(self, experiment: str, scale: Scale | str, run_ids: Mapping[str, str] | None = None) -> Table:
        """The recorded values of an experiment.

        With `run_ids` (label to run-id), only those labels and configurations, in that order. Without it
        every label, each with the configuration that was written last, so that old and new settings never
        mix in one curve.
        """
        records = [record for _, record in self.records(experiment, scale, run_ids)]
        if run_ids is None:
            written = sorted(records, key=lambda one: (one.run["written"], one.run["run_id"]))
            run_ids = dict(sorted({one.label: one.run["run_id"] for one in written}.items()))
        found: dict[tuple[str, str], list[Record]] = {}
        for record in records:
            found.setdefault((record.label, record.run["run_id"]), []).append(record)
        return Table(one._replace(label=label) for label, id in run_ids.items() for one in found.get((label, id), ()))

    def runs(self, experiment: str, scale: Scale | str) -> list[dict[str, Any]]:
        """The run.json of every undamaged run, all configurations, sorted by label, run-id and seed."""
        runs = [dict(record.run) for _, record in self.records(experiment, scale)]
        return sorted(runs, key=lambda run: (run["label"], run["run_id"], run["seed"]))

    def records(
        self, experiment: str, scale: Scale | str, run_ids: Mapping[str, str] | None = None
    ) -> list[tuple[Path, Record]]:
        """Every undamaged run with its numbers, and the folder where it is or would be. `run_ids` as in `table`."""
        base = self._scale(experiment, scale)
        folders = {one for label in _visible(base) for one in _visible(label)}
        folders |= (self.packed(experiment, scale) or {}).keys()
        if run_ids is not None:
            wanted = {(_escaped(label), run_id) for label, run_id in run_ids.items()}
            folders = {one for one in folders if (one.parent.name, one.name.rpartition("-s")[0]) in wanted}
        return [(folder, record) for folder in sorted(folders) if (record := self._read(folder)) is not None]

    def scales(self, experiment: str) -> list[Scale]:
        """The scales at which the experiment has any run."""
        at = {s: self._scale(experiment, s) for s in Scale}
        return [s for s, base in at.items() if any(map(_visible, _visible(base))) or any(files.packed_stamp(base))]

    def unfinished(self, experiment: str, name: str) -> Path:
        """A folder for what a long run leaves until it is stored: hidden, and made by whoever writes there.

        >>> import tempfile
        >>> Store(tempfile.mkdtemp()).unfinished("dmc", "ab12-s0").parts[-3:]
        ('.unfinished', 'dmc', 'ab12-s0')
        """
        _demand_name("an experiment", experiment)
        _demand_name("name", name)
        self.mark()  # or the next command would take this for a folder of something else
        return self.root / _UNFINISHED / experiment / name

    def partial_runs(self, experiment: str, run_id: str = "*") -> list[Path]:
        """The folders of runs that are not whole, of one configuration or of all; on whichever seeds."""
        return sorted((self.root / _UNFINISHED / experiment).glob(f"{run_id}-s[0-9]*"))

    def experiments(self) -> list[str]:
        """The experiments that have a folder here."""
        return [folder.name for folder in _visible(self.root)]

    def folder(self, job: Job, run_id: str) -> Path:
        """Where a run is, or would be."""
        _demand_name("a run id", run_id)
        if job.seed < 0:
            raise ValueError(f"Seeds are whole numbers from 0 on, but the job has seed {job.seed!r}.")
        return self._scale(job.experiment, job.scale) / _escaped(job.label) / f"{run_id}-s{job.seed}"

    def mark(self) -> None:
        """Make the folder, if it is not there, and mark it as a store."""
        if not (self.root / MARKER).exists():
            make_dir(self.root, "--out")
            safe_files.write_atomic(
                self.root / MARKER, json.dumps({"what": "results of made", "format": FORMAT}) + "\n"
            )

    def packed(self, experiment: str, scale: Scale | str) -> dict[Path, Record] | None:
        """The packed runs by the folders where they would be; None where the packed files are damaged."""
        base = self._scale(experiment, scale)
        stamp = files.packed_stamp(base)
        if self._packed.get(base, (None,))[0] != stamp:
            runs: dict[Path, Record] | None = None
            try:
                read = files.read_packed(base)
                runs = {self.folder(Job(experiment, x.label, x.seed, Scale(scale)), x.run["run_id"]): x for x in read}
            except files.UNREADABLE as error:
                self._damaged(base, error)
            self._packed[base] = stamp, runs
        return self._packed[base][1]

    def read_folder(self, folder: Path) -> Record | None:
        """The run of a folder; None where there is none, or a damaged one."""
        try:
            return files.read_folder(folder) if folder.is_dir() else None
        except files.UNREADABLE as error:
            return self._damaged(folder, error)

    def _read(self, folder: Path) -> Record | None:
        experiment, scale = folder.relative_to(self.root).parts[:2]
        return self.read_folder(folder) or (self.packed(experiment, scale) or {}).get(folder)

    def _scale(self, experiment: str, scale: Scale | str) -> Path:
        _demand_name("an experiment", experiment)
        return self.root / experiment / Scale(scale).value

    def _damaged(self, path: Path, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}".removeprefix("ValueError: ").partition("\n")[0]
        problem = f"{path.relative_to(self.root)}: {reason}"
        if problem not in self.problems:
            self.problems.append(problem)


def _escaped(label: str) -> str:
    """The label as a folder name: '/' as '__', and '%XX' for what is unsafe or could be mistaken for it."""
    if not label:
        raise ValueError("A label is empty: give every run a name, such as 'vi/made'.")
    unsafe = r"(?<=[_/])_|_(?=[_/])|^\.|[^A-Za-z0-9._=+/-]"
    name = re.sub(unsafe, lambda found: "".join(f"%{b:02X}" for b in found[0].encode()), label)
    name = name.replace("/", "__")
    if len(name) > 200:
        raise ValueError(f"The label {label[:40]!r}... makes too long a folder name: shorten it.")
    return name


def _demand_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be {what}: use letters, digits, '.', '_', '+' and '-' only.")


def _visible(folder: Path) -> list[Path]:
    entries = os.scandir(folder) if folder.is_dir() else ()
    return sorted(Path(e.path) for e in entries if e.is_dir() and not e.name.startswith("."))
