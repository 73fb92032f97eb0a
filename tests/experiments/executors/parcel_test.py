"""Runs that travel as bytes: what arrives whole is stored, what does not never comes near the store."""

import json

import numpy as np
import pytest

from made.experiments.executors import job_format
from made.experiments.store.store import Job, Scale, Store

JOB, ID = Job("lock", "vi/made", 3, Scale.SMOKE), "ab12"


@pytest.fixture
def packed(tmp_path):
    rows = {"step": np.arange(3), "return": np.array([0.0, np.nan, 1.0])}
    arrays = {"step": np.arange(3), "q": np.ones((3, 2), np.float32)}
    return job_format.pack(Store(tmp_path / "there").write(JOB, ID, {"bonus": "MADE"}, rows, arrays))


def test_a_run_arrives_as_it_was_packed_and_once(packed, tmp_path):
    store = Store(tmp_path / "here")
    assert job_format.place(packed, JOB, ID, store)
    assert store.has(JOB, ID) and job_format.pack(store.folder(JOB, ID)) == packed
    assert not job_format.place(packed, JOB, ID, store), "the second is not stored"


def of_another_experiment(files):
    run = {**json.loads(files["run.json"]), "experiment": "chain"}
    return {**files, "run.json": json.dumps(run).encode()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: {**files, "metrics.csv": files["metrics.csv"][:-1]}, "arrived damaged.*checksum"),
        (lambda files: {**files, "run.json": b"{"}, "arrived damaged"),
        (lambda files: {name: x for name, x in files.items() if name != "metrics.csv"}, "arrived damaged"),
        (lambda files: {**files, "../../evil.py": b""}, "evil.py"),
        (lambda files: {**files, "run.json": "text"}, "which no run has"),
        (lambda files: {**files, "run.json": files["run.json"].replace(b'"seed": 3', b'"seed": 4')}, "damaged"),
        (of_another_experiment, "of chain arrived for a job of lock"),
    ],
)
def test_what_is_damaged_or_foreign_is_refused(packed, tmp_path, change, message):
    store = Store(tmp_path / "here")
    with pytest.raises(ValueError, match=message):
        job_format.place(change(packed), JOB, ID, store)
    assert not (tmp_path / "here").exists()
