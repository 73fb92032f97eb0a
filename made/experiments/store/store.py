"""Results on disk: one folder a run, written whole or not at all, addressed by what was run.

    <root>/made-store.json
    <root>/<experiment>/<scale>/<label>/<run-id>-s<seed>/{run.json, metrics.csv[, arrays.safetensors]}
    <root>/<experiment>/<scale>{.csv.gz, .json[, .safetensors]}   runs that `made export` packed, see packed.py

The run-id is the hash of the run's description, so a changed setting makes a new folder and an unchanged
job is never run twice. Nothing read from here is executed: JSON, CSV and safetensors, each checked
against a checksum.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.numpy import load, save

from made.core import safe_files
from made.experiments.store import packed
from made.experiments.store.table import Record, Table, checked, read_csv, storable, write_csv
from made.training.paths import FORMAT, MARKER, demand_store, make_dir
from made.training.provenance import alive, machine

_UNFINISHED = ".unfinished"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_ABANDONED_S = 24 * 3600  # how long to leave a temporary folder whose writer, elsewhere, cannot be seen


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


# What reading a damaged folder may raise: unreadable files, bad JSON, CSV, numbers or safetensors.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
UNREADABLE += (SafetensorError,)
_KINDS = {"format": int, "label": str, "seed": int, "run_id": str, "written": str}
_KINDS |= dict.fromkeys(("columns", "files", "description", "provenance"), dict)


class Store:
    """The results under one folder, created by the first write.

    `problems` names every damaged run folder met while reading; such runs are skipped and count as not done.

    >>> import tempfile
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
        self._packs: dict[Path, tuple[Any, dict[Path, Record] | None]] = {}
        demand_store(self.root)

    def has(self, job: Job, run_id: str) -> bool:
        """Whether the run is stored and undamaged."""
        folder = self.folder(job, run_id)
        return self._read(folder) is not None

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
        one wins and the other is told so. A damaged folder in the way is set aside, not deleted.
        """
        target = self.folder(job, run_id)
        files = {"metrics.csv": write_csv(normal := storable(rows)).encode()}
        if arrays:
            files["arrays.safetensors"] = save(storable(arrays, arrays=True))
        run = {
            "format": FORMAT, **job._asdict(), "run_id": run_id,
            "written": datetime.now(UTC).isoformat(timespec="microseconds"),
            "columns": {name: column.dtype.name for name, column in normal.items()},
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
            "description": description, "provenance": provenance or {},
        }  # fmt: skip
        files["run.json"] = (json.dumps(run, indent=1, default=_plain) + "\n").encode()
        return self.put(files, target)

    def put(self, files: Mapping[str, bytes], target: Path) -> Path:
        """The files of a run as its folder, whole or not at all; `RunExists` if it is there already."""
        with safe_files.disk_full_message(
            lambda: f"The disk is full: {target} was not stored; what was stored before is whole."
        ):
            self.mark()
            if target in (self._packed(target.parents[1]) or ()):
                raise RunExists(f"{target.relative_to(self.root)} is packed already and was not stored again.")
            target.parent.mkdir(parents=True, exist_ok=True)
            _clean(target.parent)
            return self._place(files, target)

    def table(self, experiment: str, scale: Scale | str, run_ids: Mapping[str, str] | None = None) -> Table:
        """The recorded values of an experiment.

        With `run_ids` (label to run-id), only those labels and configurations, in that order. Without it
        every label, each with the configuration that was written last, so that old and new settings never
        mix in one curve.
        """
        if run_ids is None:
            newest: dict[str, tuple[str, str]] = {}
            for run in self.runs(experiment, scale):
                stamp = (run["written"], run["run_id"])
                newest[run["label"]] = max(newest.get(run["label"], stamp), stamp)
            run_ids = {label: run_id for label, (_, run_id) in newest.items()}
        at: dict[tuple[str, str], list[Path]] = {}
        for folder in self._folders(experiment, scale):
            at.setdefault((folder.parent.name, folder.name.rpartition("-s")[0]), []).append(folder)
        wanted = [(label, one) for label, id in run_ids.items() for one in at.get((_escaped(label), id), ())]
        read = ((label, self._read(folder)) for label, folder in wanted)
        return Table(record._replace(label=label) for label, record in read if record is not None)

    def runs(self, experiment: str, scale: Scale | str) -> list[dict[str, Any]]:
        """The run.json of every undamaged run, all configurations, sorted by label, run-id and seed."""
        read = [self._read(folder, numbers=False) for folder in self._folders(experiment, scale)]
        runs = [dict(record.run) for record in read if record is not None]
        return sorted(runs, key=lambda run: (run["label"], run["run_id"], run["seed"]))

    def scales(self, experiment: str) -> list[Scale]:
        """The scales at which the experiment has any run."""
        at = {s: self._scale(experiment, s) for s in Scale}
        return [s for s, folder in at.items() if any(map(_visible, _visible(folder))) or packed.there(folder)]

    def records(self, experiment: str, scale: Scale | str) -> list[tuple[Path, Record]]:
        """Every undamaged run with its numbers, all configurations, and the folder where it stands or would."""
        read = [(folder, self._read(folder)) for folder in self._folders(experiment, scale)]
        return [(folder, record) for folder, record in read if record is not None]

    def packed(self, experiment: str, scale: Scale | str) -> dict[Path, Record] | None:
        """The packed runs by the folders where they would stand; None where the packed files are damaged."""
        return self._packed(self._scale(experiment, scale))

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

    def _scale(self, experiment: str, scale: Scale | str) -> Path:
        _demand_name("an experiment", experiment)
        return self.root / experiment / Scale(scale).value

    def folder(self, job: Job, run_id: str) -> Path:
        """Where a run stands, or would."""
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

    def _place(self, files: Mapping[str, bytes], target: Path) -> Path:
        temporary = target.parent / f".tmp-{machine()}-{os.getpid()}-{secrets.token_hex(4)}"
        temporary.mkdir()
        try:
            for name, content in files.items():
                safe_files.create(temporary / name, content).close()
            if target.exists() and self.unpacked(target) is None:
                os.rename(target, target.parent / f".damaged-{target.name}-{secrets.token_hex(4)}")
            try:
                os.rename(temporary, target)
            except OSError as error:
                if not target.exists():
                    raise
                raise RunExists(
                    f"{target.relative_to(self.root)} is stored already and was not overwritten."
                ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return target

    def unpacked(self, folder: Path, *, numbers: bool = True) -> Record | None:
        """The run of a folder; None where there is none, or a damaged one."""
        if not folder.is_dir():
            return None
        try:
            return _read(folder, numbers)
        except UNREADABLE as error:
            return self._damaged(folder, error)

    def _read(self, folder: Path, *, numbers: bool = True) -> Record | None:
        return self.unpacked(folder, numbers=numbers) or (self._packed(folder.parents[1]) or {}).get(folder)

    def _packed(self, base: Path) -> dict[Path, Record] | None:
        stamp = packed.stamp(base)
        if base not in self._packs or self._packs[base][0] != stamp:
            runs: dict[Path, Record] | None = None
            try:
                read = packed.read(base)
                jobs = [Job(base.parent.name, one.label, one.seed, Scale(base.name)) for one in read]
                runs = {self.folder(job, one.run["run_id"]): one for job, one in zip(jobs, read, strict=True)}
            except UNREADABLE as error:
                self._damaged(base, error)
            self._packs[base] = stamp, runs
        return self._packs[base][1]

    def _folders(self, experiment: str, scale: Scale | str) -> list[Path]:
        """Where the runs stand, and where those that are packed would."""
        base = self._scale(experiment, scale)
        return sorted({*(one for label in _visible(base) for one in _visible(label)), *(self._packed(base) or ())})

    def _damaged(self, path: Path, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}".removeprefix("ValueError: ").partition("\n")[0]
        problem = f"{path.relative_to(self.root)}: {reason}"
        if problem not in self.problems:
            self.problems.append(problem)


def _read(folder: Path, numbers: bool) -> Record:
    run = json.loads((folder / "run.json").read_text("utf-8"))
    if wrong := [key for key, kind in _KINDS.items() if not isinstance(run.get(key), kind)]:
        raise ValueError(f"run.json lacks {', '.join(wrong)}")
    if run["format"] > FORMAT:
        raise ValueError(f"run.json has format {run['format']} but this made reads up to {FORMAT}")
    label = unquote(folder.parent.name.replace("__", "/"))
    if (label, folder.name) != (run["label"], f"{run['run_id']}-s{run['seed']}"):
        raise ValueError(f"run.json is of {run['label']!r}, {run['run_id']}-s{run['seed']}, not of this folder")
    content = {"metrics.csv": b""} | {n: b"" for n in run["files"] if n == "arrays.safetensors"}
    for name in content:  # only these two names are ever opened, whatever run.json says
        content[name] = (folder / name).read_bytes()
        if hashlib.sha256(content[name]).hexdigest() != run["files"].get(name):
            raise ValueError(f"{name} does not match its checksum: it was cut short or edited")
    if not numbers:
        return Record(run["label"], run["seed"], {}, run=run)
    rows = checked(read_csv(content["metrics.csv"].decode(), run["columns"]))
    arrays = load(content["arrays.safetensors"]) if "arrays.safetensors" in content else {}
    return Record(run["label"], run["seed"], rows, checked(arrays, arrays=True), run)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise ValueError(f"{value!r} is not plain data: describe runs by numbers, text, lists and dicts.")


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


def _clean(folder: Path) -> None:
    """Remove temporary folders whose writer is dead."""
    for path in folder.glob(".tmp-*"):
        place, pid = [*path.name.split("-"), "", ""][1:3]
        try:
            old = time.time() - path.stat().st_mtime > _ABANDONED_S
        except FileNotFoundError:  # its writer has just finished
            continue
        if old or (place == machine() and pid.isdigit() and not alive(int(pid))):
            shutil.rmtree(path, ignore_errors=True)
