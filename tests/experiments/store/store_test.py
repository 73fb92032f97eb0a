"""The store: what is written comes back, whole or not at all, and nothing damaged or hostile gets through."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from made.core import safe_files
from made.experiments.store import Job, RunExists, Scale, Store, _escaped, files

JOB = Job("lock", "vi/made", 3, Scale.SMOKE)
ROWS = {"step": np.arange(4) * 10, "return": np.array([0.1, np.nan, 0.3, 1e-30], np.float32)}
ARRAYS = {"step": np.array([0, 30]), "visits": np.arange(12).reshape(2, 3, 2)}


def write(store: Store, job: Job = JOB, run_id: str = "ab12", **options) -> Path:
    return store.write(job, run_id, {"bonus": {"kind": "MADE"}}, options.pop("rows", ROWS), **options)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "runs")


def test_a_run_comes_back_as_it_was(store):
    folder = write(store, arrays=ARRAYS, provenance={"jax": "0.10", "wall_s": np.float32(1.5)})
    assert folder.relative_to(store.root) == Path("lock/smoke/vi__made/ab12-s3")
    assert sorted(p.name for p in folder.iterdir()) == ["arrays.safetensors", "metrics.csv", "run.json"]
    table = Store(store.root).table("lock", Scale.SMOKE, {"vi/made": "ab12"})
    steps, values = table.curves("vi/made", "return")
    np.testing.assert_array_equal(steps, [0, 20, 30])
    np.testing.assert_array_equal(values[0].astype(np.float32), ROWS["return"][[0, 2, 3]])
    steps, visits = table.arrays("vi/made", "visits")
    np.testing.assert_array_equal(visits[0], ARRAYS["visits"])
    run = table.runs("vi/made")[0]
    assert run["description"] == {"bonus": {"kind": "MADE"}} and run["provenance"]["wall_s"] == 1.5
    assert (run["label"], run["seed"], run["scale"], run["run_id"]) == ("vi/made", 3, "smoke", "ab12")


def test_has_tells_seeds_settings_and_scales_apart(store):
    assert not store.has(JOB, "ab12")
    write(store)
    assert store.has(JOB, "ab12")
    others = JOB._replace(seed=30), JOB._replace(label="vi"), JOB._replace(scale=Scale.PAPER)
    assert not store.has(JOB, "ab1") and not any(store.has(job, "ab12") for job in others)


def test_nothing_is_overwritten(store):
    before = (write(store) / "metrics.csv").read_bytes()
    with pytest.raises(RunExists, match=r"vi__made/ab12-s3 is stored already") as raised:
        write(store, rows={"step": [0], "return": [9.0]})
    assert isinstance(raised.value, ValueError) and isinstance(raised.value, FileExistsError)
    folder = store.root / "lock/smoke/vi__made"
    assert (folder / "ab12-s3/metrics.csv").read_bytes() == before
    assert [p.name for p in folder.iterdir()] == ["ab12-s3"]


def test_settings_do_not_mix(store):
    write(store, run_id="old1")
    write(store, JOB._replace(seed=4), run_id="old1")
    write(store, run_id="new1", rows={"step": [0], "return": [5.0]})
    write(store, JOB._replace(label="vi/none"), run_id="a")
    write(store, JOB._replace(label="vi/none"), run_id="b", rows={"step": [0], "return": [6.0]})
    asked = store.table("lock", Scale.SMOKE, {"vi/made": "old1"})
    assert asked.labels() == ["vi/made"] and asked.seeds("vi/made") == [3, 4]
    newest = store.table("lock", Scale.SMOKE)
    assert newest.final("vi/made", "return").tolist() == [5.0]
    assert newest.final("vi/none", "return").tolist() == [6.0]
    assert newest.labels() == ["vi/made", "vi/none"]
    ordered = store.table("lock", Scale.SMOKE, {"vi/none": "a", "vi/made": "new1", "vi/lost": "x"})
    assert ordered.labels() == ["vi/none", "vi/made"]
    ids = [(run["label"], run["run_id"], run["seed"]) for run in store.runs("lock", Scale.SMOKE)]
    assert ids == sorted(ids) and len(ids) == 5 and store.problems == []


def test_listings(store):
    assert store.experiments() == [] and store.scales("lock") == []
    assert len(store.table("lock", Scale.SMOKE)) == 0 and not store.root.exists()
    write(store)
    write(store, JOB._replace(scale=Scale.GPU))
    assert store.experiments() == ["lock"] and store.scales("lock") == [Scale.SMOKE, Scale.GPU]
    with pytest.raises(ValueError, match=f"'huge': use one of {', '.join(Scale)}"):
        store.runs("lock", "huge")


@given(st.lists(st.text("ab_/._-=é%\\: ", min_size=1, max_size=8), min_size=2, max_size=2, unique=True))
@settings(max_examples=200, deadline=None)
def test_labels_become_distinct_plain_folder_names(labels):
    names = [_escaped(label) for label in labels]
    assert names[0].casefold() != names[1].casefold()
    for name in names:
        assert not set(name) & set("/\\: é") and not name.startswith(".") and Path(name).name == name


@pytest.mark.parametrize("label", ["vi/made/B=100", "a_b/c__d_/_e", ".hidden", "..", "é <b>", "100%25", "a//b"])
def test_any_label_comes_back(store, label):
    folder = write(store, JOB._replace(label=label))
    assert folder.parent.parent == store.root / "lock" / "smoke"
    assert store.table("lock", Scale.SMOKE).labels() == [label] and store.problems == []


@pytest.mark.parametrize(
    ("job", "run_id", "message"),
    [
        (JOB._replace(experiment="../lock"), "ab12", "'../lock' cannot be an experiment"),
        (JOB._replace(experiment=""), "ab12", "'' cannot be an experiment"),
        (JOB, "../../ab", "'../../ab' cannot be a run id"),
        (JOB, ".tmp", "'.tmp' cannot be a run id"),
        (JOB._replace(seed=-1), "ab12", "seed -1"),
        (JOB._replace(label=""), "ab12", "label is empty"),
        (JOB._replace(label="x" * 300), "ab12", "too long a folder name"),
        (JOB._replace(scale="huge"), "ab12", "Unknown scale 'huge'"),
    ],
)
def test_bad_names_are_refused_before_anything_is_written(store, job, run_id, message):
    with pytest.raises(ValueError, match=message):
        write(store, job, run_id)
    with pytest.raises(ValueError, match=message):
        store.has(job, run_id)
    assert not store.root.exists()


def test_bad_data_is_refused_before_anything_is_written(store):
    with pytest.raises(ValueError, match="plain data"):
        store.write(JOB, "ab12", {"bonus": object()}, ROWS)
    with pytest.raises(ValueError, match="'visits' must have shape"):
        write(store, arrays={"step": [0], "visits": np.zeros((2, 3))})
    with pytest.raises(ValueError, match="real numbers"):
        write(store, arrays={"step": [0], "visits": np.array([object()])})
    assert not store.root.exists()


def test_only_a_store_or_an_empty_folder_is_opened(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match=r"holds thesis.tex but no results.*--out"):
        Store(tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        Store(tmp_path / "thesis.tex")
    root = tmp_path / "runs"
    root.mkdir()
    write(Store(root))
    marker = root / "made-store.json"
    assert json.loads(marker.read_text())["format"] == 1
    marker.write_text('{"format": 2}')
    with pytest.raises(ValueError, match="format 2 but this made reads up to 1"):
        Store(root)
    marker.write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        Store(root)


def edit_run(folder: Path, **changes) -> None:
    run = json.loads((folder / "run.json").read_text()) | changes
    (folder / "run.json").write_text(json.dumps(run))


def forge(folder: Path, name: str, content: bytes) -> None:
    """Replace a file and mend its checksum, as somebody who means harm would."""
    (folder / name).write_bytes(content)
    known = json.loads((folder / "run.json").read_text())["files"]
    edit_run(folder, files=known | {name: hashlib.sha256(content).hexdigest()})


def header(text: str, body: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text.encode() + body


DAMAGE = {
    "no run.json": lambda f: (f / "run.json").unlink(),
    "no csv": lambda f: (f / "metrics.csv").unlink(),
    "no arrays": lambda f: (f / "arrays.safetensors").unlink(),
    "bad json": lambda f: (f / "run.json").write_text('{"label": '),
    "json list": lambda f: (f / "run.json").write_text("[1]"),
    "deep json": lambda f: (f / "run.json").write_text("[" * 200_000),
    "binary json": lambda f: (f / "run.json").write_bytes(b"\xff\xfe\x00"),
    "missing key": lambda f: (f / "run.json").write_text('{"label": "vi/made"}'),
    "wrong kind": lambda f: edit_run(f, files=[]),
    "later format": lambda f: edit_run(f, format=2),
    "other seed": lambda f: edit_run(f, seed=7),
    "other label": lambda f: edit_run(f, label="vi/none"),
    "empty csv": lambda f: (f / "metrics.csv").write_text(""),
    "cut csv": lambda f: (f / "metrics.csv").write_bytes((f / "metrics.csv").read_bytes()[:-3]),
    "edited csv": lambda f: (f / "metrics.csv").write_text("step,return\n0,1\n"),
    "forged words": lambda f: forge(f, "metrics.csv", b"step,return\n0,one\n"),
    "forged columns": lambda f: forge(f, "metrics.csv", b"step,loss\n0,1\n"),
    "forged cells": lambda f: forge(f, "metrics.csv", b"step,return\n0,1,2\n"),
    "forged steps": lambda f: forge(f, "metrics.csv", b"step,return\n9,1\n0,1\n"),
    "forged huge": lambda f: forge(f, "metrics.csv", b"step,return\n" + b"9" * 40 + b",1\n"),
    "cut arrays": lambda f: (f / "arrays.safetensors").write_bytes(b"\x08\0\0"),
    "forged pickle": lambda f: forge(f, "arrays.safetensors", b"\x80\x04cos\nsystem\n(S'touch gotcha'\ntR."),
    "forged size": lambda f: forge(f, "arrays.safetensors", (2**63 - 1).to_bytes(8, "little") + b"{}"),
    "forged offsets": lambda f: forge(
        f,
        "arrays.safetensors",
        header('{"step":{"dtype":"I64","shape":[99999999],"data_offsets":[0,799999992]}}'),
    ),
    "forged kind": lambda f: forge(
        f, "arrays.safetensors", header('{"step":{"dtype":"OBJ","shape":[1],"data_offsets":[0,8]}}', bytes(8))
    ),
    "forged lengths": lambda f: forge(
        f, "arrays.safetensors", save({"step": np.arange(3), "visits": np.zeros((2, 3))})
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_run_is_named_and_skipped(store, damage):
    good = JOB._replace(seed=4)
    write(store, good, arrays=ARRAYS)
    folder = write(store, arrays=ARRAYS)
    damage(folder)
    table = store.table("lock", Scale.SMOKE, {"vi/made": "ab12"})
    assert table.seeds("vi/made") == [4] and not Path("gotcha").exists()
    assert len(store.problems) == 1 and store.problems[0].startswith("lock/smoke/vi__made/ab12-s3: ")
    assert "\n" not in store.problems[0]
    assert store.has(good, "ab12") and not store.has(JOB, "ab12")
    store.table("lock", Scale.SMOKE)
    assert len(store.problems) == 1


def test_a_damaged_run_can_be_run_again(store):
    (write(store) / "metrics.csv").write_text("oops")
    assert not store.has(JOB, "ab12")
    folder = write(store)
    assert store.has(JOB, "ab12")
    aside = [p for p in folder.parent.iterdir() if p != folder]
    assert len(aside) == 1 and (aside[0] / "metrics.csv").read_text() == "oops"
    assert Store(store.root).table("lock", Scale.SMOKE).seeds("vi/made") == [3]


def test_only_its_own_two_files_are_opened(store, tmp_path):
    folder = write(store)
    (tmp_path / "secret").write_text("x")
    known = json.loads((folder / "run.json").read_text())["files"]
    edit_run(folder, files=known | {"../../../../../secret": "0" * 64})
    assert store.has(JOB, "ab12") and store.problems == []


def test_what_a_killed_writer_left_is_ignored_and_cleaned(store):
    folder = write(store).parent
    mine, other = folder / ".tmp-ab12-s9-00", folder / ".tmp-ab12-s91-00"
    for left in (mine, other):
        left.mkdir()
        (left / "run.json").write_text("{")
    assert len(store.table("lock", Scale.SMOKE)) == 1 and store.problems == []
    write(store, JOB._replace(seed=9))
    assert not mine.exists() and other.exists()


def test_a_failed_write_leaves_nothing(store, monkeypatch):
    write(store)

    def full(path, content=b""):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safe_files, "create", full)
    with pytest.raises(
        safe_files.DiskFull, match=r"^The disk is full: .*ab12-s8 was not stored; what was stored before"
    ):
        write(store, JOB._replace(seed=8))
    assert [p.name for p in (store.root / "lock/smoke/vi__made").iterdir()] == ["ab12-s3"]


RACE = """
import sys
import numpy as np
from pathlib import Path
from made.experiments.store import Job, RunExists, Scale, Store
mine = float(sys.argv[2])
store, won = Store(Path(sys.argv[1])), 0
print("ready", flush=True)
sys.stdin.readline()
for seed in range(40):
    try:
        rows = {"step": np.arange(50), "return": np.full(50, mine)}
        job, arrays = Job("lock", "vi/made", seed, Scale.SMOKE), {"step": [0], "who": [[mine]]}
        store.write(job, "ab12", {}, rows, arrays)
        won += 1
    except RunExists:
        pass
print(won)
"""


def test_of_several_writers_of_one_job_exactly_one_wins(tmp_path):
    root, pipes = tmp_path / "runs", {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", RACE, str(root)]
    writers = [subprocess.Popen([*command, str(i)], **pipes) for i in (1, 2, 3)]
    assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 3
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    won = [int(writer.communicate()[0]) for writer in writers]
    assert sum(won) == 40
    store = Store(root)
    table = store.table("lock", Scale.SMOKE)
    assert table.seeds("vi/made") == list(range(40)) and store.problems == []
    _, values = table.curves("vi/made", "return")
    _, who = table.arrays("vi/made", "who")
    np.testing.assert_array_equal(values, np.broadcast_to(who[:, 0], values.shape))
    assert [int((who == i).sum()) for i in (1, 2, 3)] == won
    assert not list((root / "lock/smoke/vi__made").glob(".*"))


def test_each_of_a_hundred_runs_is_read_once(store, monkeypatch):
    rows = {"step": np.arange(150)} | {f"m{i}": np.random.default_rng(i).normal(size=150) for i in range(5)}
    labels = [f"vi/b{i}" for i in range(5)]
    read, real = [], files.read_folder
    monkeypatch.setattr(files, "read_folder", lambda folder: read.append(folder) or real(folder))
    for label in labels:
        for seed in range(20):
            store.write(JOB._replace(label=label, seed=seed), "ab12", {"a": 1}, rows)
    assert not read
    table = store.table("lock", Scale.SMOKE, dict.fromkeys(labels, "ab12"))
    assert len(table) == 100 and table.curves("vi/b3", "m3")[1].shape == (20, 150)
    assert len(read) == len(set(read)) == 100
