"""What is sent to a worker and what comes back: names, numbers and bytes, as JSON; no object is ever pickled."""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from made.core.config import config_id
from made.experiments import experiment
from made.experiments.scheduler import MOST_LANES, Group, Planned, plan, trials_of
from made.experiments.store.store import Job, RunExists, Scale, Store

State = Literal["made", "had", "elsewhere", "failed"]
STATES: tuple[State, ...] = ("made", "had", "elsewhere", "failed")


class SweepJob(NamedTuple):
    """Jobs that share one compiled program, by name alone, and the store they are for."""

    experiment: str
    scale: str
    settings: tuple[str, ...]
    jobs: tuple[tuple[str, int], ...]  # (label, seed), one a lane
    store: str
    sweep: str  # the name of the sweep, for claims
    token: str = ""  # the content of the file `seal`, by which a worker knows the store when it sees it

    @property
    def labels(self) -> list[str]:
        """Each label once."""
        return list(dict.fromkeys(label for label, _ in self.jobs))

    def __str__(self) -> str:
        shown = ", ".join(self.labels[:2]) + (", ..." if len(self.labels) > 2 else "")
        return f"{self.experiment}: {shown} ({len(self.jobs)} jobs)"


class JobDone(NamedTuple):
    """How one job came out."""

    label: str
    seed: int
    state: State
    why: str = ""


class JobResult(NamedTuple):
    """What became of a task. `parcels` holds a run's files for each job made where the store cannot be seen."""

    done: tuple[JobDone, ...]
    seconds: float = 0.0
    pid: int = 0
    parcels: tuple[dict[str, bytes], ...] = ()


class WorkerLost(NamedTuple):
    """The worker died or vanished; nothing is known of what it did, and the task can be sent again."""

    why: str


def to_text(value: SweepJob | JobResult) -> str:
    """As JSON, without parcels: bytes travel beside it."""
    fields = value._asdict()
    fields.pop("parcels", None)
    return json.dumps(fields)


def task_of(text: str) -> SweepJob:
    """A task as it was sent."""
    told: dict[str, Any] = json.loads(text)
    names = {name: str(told[name]) for name in ("experiment", "scale", "store", "sweep", "token")}
    jobs = tuple((str(label), int(seed)) for label, seed in told["jobs"])
    return SweepJob(jobs=jobs, settings=tuple(map(str, told["settings"])), **names)


def answer_of(text: str, parcels: Sequence[dict[str, bytes]] = ()) -> JobResult:
    """An answer as it came back; a ValueError where it is none."""
    try:
        told: dict[str, Any] = json.loads(text)
        done = tuple(JobDone(str(label), int(seed), state, str(why)) for label, seed, state, why in told["done"])
        answer = JobResult(done, float(told["seconds"]), int(told["pid"]), tuple(parcels))
    except (TypeError, LookupError) as error:
        raise ValueError(f"A worker sent {text[:80]!r}, which is no answer.") from error
    if odd := [one.state for one in done if one.state not in STATES]:
        raise ValueError(f"A worker sent a job as {odd[0]!r}: it is {', '.join(STATES)}.")
    return answer


def tasks(
    name: str,
    scale: Scale,
    store: Store,
    sweep: str,
    seeds: int | None = None,
    settings: Sequence[str] = (),
    lanes: int = MOST_LANES,
    only: Sequence[str] = (),
) -> tuple[list[SweepJob], list[int], int]:
    """(tasks for what the store lacks, largest first; the iterations of each; how many jobs it has already).

    `only` names configurations, or patterns of them, where not all are wanted.
    """
    about = experiment(name)
    chosen = range(seeds) if seeds is not None else about.seeds(scale)
    groups, had = plan(about, scale, chosen, store, settings, lanes, only)
    where = str(store.root.resolve())
    made = []
    for group in groups:
        jobs = tuple((planned.job.label, planned.job.seed) for planned in group.jobs)
        made.append(SweepJob(name, scale.value, tuple(settings), jobs, where, sweep))
    return made, [group.work for group in groups], had


def group_of(task: SweepJob) -> Group:
    """The trials that a task's names stand for, in its order."""
    about, scale = experiment(task.experiment), Scale(task.scale)
    trials = trials_of(about, scale, task.settings)
    if odd := [label for label in task.labels if label not in trials]:
        raise ValueError(f"{task.experiment} has no {odd[0]!r} here: is it another version of made than the driver's?")
    ids = {label: config_id(trials[label]) for label in task.labels}
    jobs = ((Job(about.stored_as, label, seed, scale), label) for label, seed in task.jobs)
    return Group(about, tuple(Planned(job, trials[label], ids[label]) for job, label in jobs))


def seal(root: str | Path, sweep: str) -> Path:
    """The file whose content tells a worker that it sees the same store as the driver. Asking for it makes nothing."""
    return Path(root) / ".unfinished" / "sweeps" / sweep / "seal"


def clear(folder: Path) -> None:
    """Remove a folder under `.unfinished` of a store, and those above it that are empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    for above in (folder.parent, folder.parent.parent):
        with contextlib.suppress(OSError):  # others are at work there
            above.rmdir()


NAMES = ("run.json", "metrics.csv", "arrays.safetensors")


def pack(folder: Path) -> dict[str, bytes]:
    """The files of a run folder."""
    return {name: (folder / name).read_bytes() for name in NAMES if (folder / name).is_file()}


def place(files: Mapping[str, bytes], job: Job, run_id: str, store: Store) -> bool:
    """Put a run that arrived into the store; False where it is there already.

    It is read first as the store would read it, in a folder of its own: what is damaged, or is another run than the
    one that was asked for, never comes near the store.
    """
    if odd := [name for name in files if name not in NAMES or not isinstance(files[name], bytes)]:
        raise ValueError(f"A run of {job.label} seed {job.seed} arrived with {odd[0]!r}, which no run has.")
    with tempfile.TemporaryDirectory(prefix="made-parcel-") as folder:
        looked_at = Store(folder)
        looked_at.put(files, looked_at.folder(job, run_id))
        if not looked_at.has(job, run_id):
            raise ValueError(f"A run of {job.label} seed {job.seed} arrived damaged: {looked_at.problems[-1]}.")
        (run,) = looked_at.runs(job.experiment, job.scale)
        if (run["experiment"], run["scale"]) != (job.experiment, job.scale):
            raise ValueError(f"A run of {run['experiment']} arrived for a job of {job.experiment}.")
    try:
        store.put(files, store.folder(job, run_id))
    except RunExists:
        return False
    return True
