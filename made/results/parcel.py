"""A stored run as bytes, for a worker that does not see the store: packed there, checked and placed here.

Nothing but the three files of a run travels, and none of them is executed or unpickled.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from made.results.store import Job, RunExists, Store

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
