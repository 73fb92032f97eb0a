"""Packed runs: the same numbers in few files, merged with new run folders, and nothing damaged passes for whole."""

import csv
import gzip
import io
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made.cli import main
from made.experiments.store import Job, RunExists, Scale, Store, files, locking
from made.experiments.store.table import Record

LABELS = ("vi/made", "gated/(o, a), 10k", 'q"1"')
AT = ("lock", Scale.SMOKE)


def rows(random: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """Columns of every type, with what text could lose: bits, signs, infinities, NaN, large integers."""
    any_bits = random.integers(0, 2**32, 40, np.uint64).astype(np.uint32).view(np.float32)
    special = [-0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4028235e38, 0.1]
    any_bits[: len(special)] = special
    any_bits[np.isnan(any_bits)] = np.nan
    out = {
        "step": np.arange(40) * 10 + seed,
        "return": any_bits,
        "loss": np.where(
            random.random(40) < 0.3, np.nan, random.normal(size=40) * 10.0 ** random.integers(-300, 300, 40)
        ),
        "count": random.integers(-(2**62), 2**62, 40),
    }
    return out | ({"empty": np.full(40, np.nan, np.float32)} if seed == 1 else {})


def filled(root: Path, seeds: int = 3) -> Store:
    """A store with two configurations of one label, a run without rows, and arrays in some runs."""
    store, random = Store(root), np.random.default_rng(0)
    for label in LABELS:
        for id in ("ab12", "cd34")[: 1 + (label == LABELS[0])]:
            for seed in range(seeds):
                arrays = {"step": np.array([0, 30]), "visits": random.integers(0, 9, (2, 3, 2)).astype(np.uint8)}
                arrays["map"] = random.normal(size=(2, 4)).astype(np.float32)
                origin = {"commit": "c0ffee", "dirty": None, "wall_s": 1.5, "lanes": seeds}
                told = {"bonus": {"kind": "MADE", "id": id}}
                job = Job("lock", label, seed, Scale.SMOKE)
                store.write(job, id, told, rows(random, seed), arrays if seed < 2 else None, origin)
    nothing = {"step": np.array([], np.int64), "return": np.array([], np.float32)}
    store.write(Job("lock", "nothing", 0, Scale.SMOKE), "ef56", {}, nothing)
    return store


def folders(store: Store) -> list[Path]:
    return sorted(path.parent for path in store.root.rglob("run.json"))


def export(store: Store, **options) -> list[locking.Packed]:
    return list(locking.export(store, "lock", **options))


@pytest.fixture
def store(tmp_path) -> Store:
    return filled(tmp_path / "runs")


def all_same(before: list[tuple[Path, Record]], store: Store) -> bool:
    after = store.records(*AT)
    return [path for path, _ in before] == [path for path, _ in after] and all(
        files.same(a, b) and list(a.rows) == list(b.rows) for (_, a), (_, b) in zip(before, after, strict=True)
    )


def test_packed_runs_are_the_same_to_the_bit(store):
    before, runs, table = store.records(*AT), store.runs(*AT), store.table(*AT)
    (done,) = export(store, remove=True)
    assert (done.table, done.runs, done.removed) == (store.root / "lock/smoke.csv.gz", 13, 13)
    assert sorted(p.name for p in store.root.rglob("*") if p.is_file()) == [
        *("made-store.json", "smoke.csv.gz", "smoke.json", "smoke.safetensors"),
    ]
    again = Store(store.root)
    assert all_same(before, again) and len(before) == 13 and not again.problems
    strip = lambda told: [{name: x for name, x in run.items() if name != "files"} for run in told]  # noqa: E731
    assert json.dumps(again.runs(*AT)) == json.dumps(strip(runs)), "in the same order, of the same keys"
    assert (again.scales("lock"), again.experiments()) == ([Scale.SMOKE], ["lock"])
    newest = again.table(*AT)
    assert newest.labels() == table.labels() and len(newest) == len(table) == 10
    old = again.table(*AT, {"vi/made": "ab12"})
    assert old.labels() == ["vi/made"] and old.runs("vi/made")[0]["description"]["bonus"]["id"] == "ab12"
    np.testing.assert_array_equal(newest.snapshots("vi/made", "map")[1], table.snapshots("vi/made", "map")[1])


def test_the_table_has_a_row_a_step_and_a_column_a_metric(store, tmp_path):
    (done,) = export(store)
    header, *lines = csv.reader(io.StringIO(gzip.decompress(done.table.read_bytes()).decode(), newline=""))
    assert header == ["label", "seed", "step", "return", "loss", "count", "empty", "run_id"], "two ids of one label"
    assert len(lines) == 12 * 40 and all(len(line) == len(header) for line in lines)
    first = lines[0]
    assert first[:3] == [LABELS[1], "0", "0"] and (first[3], first[6], first[7]) == ("-0.0", "", "ab12")
    about = json.loads((store.root / "lock/smoke.json").read_text())
    assert about["labels"]["vi/made"]["ab12"]["description"] == {"bonus": {"kind": "MADE", "id": "ab12"}}
    assert len(about["provenance"]) == 2, "what runs share is there once"
    shutil.rmtree(store.root / "lock/smoke/vi__made")
    one = locking.export(Store(store.root), "lock", tmp_path / "elsewhere")
    assert "run_id" in gzip.decompress(next(one).table.read_bytes()).decode(), "what is packed counts without folders"


def test_without_two_ids_there_is_no_column_for_them(tmp_path):
    store = Store(tmp_path / "runs")
    store.write(
        Job("lock", "vi", 0, Scale.SMOKE), "ab12", {}, {"step": np.arange(2), "return": np.array([0.5, np.nan])}
    )
    (done,) = export(store)
    assert gzip.decompress(done.table.read_bytes()).decode() == "label,seed,step,return\nvi,0,0,0.5\nvi,0,1,\n"
    assert not (store.root / "lock/smoke.safetensors").exists()


def test_the_same_runs_give_the_same_bytes(store, tmp_path):
    (one,) = export(store, remove=True)
    content = {path.name: path.read_bytes() for path in one.table.parent.iterdir()}
    written = one.table.stat().st_mtime_ns
    assert [again.runs for again in export(Store(store.root))] == [13] and one.table.stat().st_mtime_ns == written
    for at in (tmp_path / "copy", tmp_path / "merged"):
        other = Store(at)
        if at.name == "merged":  # in two goes
            list(locking.export(filled(tmp_path / "some", seeds=1), "lock", other.root))
            shutil.rmtree(other.root)
        list(locking.export(Store(store.root), "lock", other.root))
        assert {path.name: path.read_bytes() for path in (at / "lock").iterdir()} == content
    assert json.loads(content["smoke.json"])["files"].keys() == {"smoke.csv.gz", "smoke.safetensors"}


def test_new_run_folders_join_the_packed_ones(store):
    export(store, remove=True)
    before, job = store.records(*AT), Job("lock", "new", 5, Scale.SMOKE)
    store.write(job, "99ff", {"n": 1}, {"step": np.arange(3), "extra": np.arange(3.0)})
    mixed = store.records(*AT)
    assert len(mixed) == len(before) + 1 and store.has(job, "99ff"), "read from both"
    (done,) = export(store)
    assert (done.runs, done.removed) == (14, 0) and store.folder(job, "99ff").is_dir(), "not removed unless asked"
    assert len(store.records(*AT)) == 14 and len(store.runs(*AT)) == 14, "in both, counted once"
    assert export(store, remove=True)[0].removed == 1 and not folders(store)
    assert all_same(mixed, Store(store.root)) and Store(store.root).table(*AT, {"new": "99ff"}).metrics() == ["extra"]


def test_what_is_packed_is_there(store):
    export(store, remove=True)
    job = Job("lock", "vi/made", 0, Scale.SMOKE)
    for one in (store, Store(store.root)):
        assert one.has(job, "ab12") and one.has(job, "cd34") and not one.has(job, "ef56")
        assert not one.has(job._replace(seed=3), "ab12") and not one.has(job._replace(scale=Scale.SMALL), "ab12")
    with pytest.raises(RunExists, match=r"vi__made/ab12-s0 is packed already"):
        store.write(job, "ab12", {}, {"step": np.arange(2), "return": np.zeros(2)})
    assert not folders(store)


def test_a_run_that_differs_from_its_packed_one_is_kept_and_named(store):
    (store.root / "aside").mkdir()
    folder = store.folder(Job("lock", "vi/made", 0, Scale.SMOKE), "ab12")
    kept = store.root / "aside" / folder.name
    shutil.copytree(folder, kept)
    export(store, remove=True)
    before = store.records(*AT)
    other = Store(store.root.parent / "other")
    other.write(Job("lock", "vi/made", 0, Scale.SMOKE), "ab12", {}, {"step": np.arange(2), "return": np.zeros(2)})
    shutil.copytree(other.root / "lock/smoke/vi__made", folder.parent)
    assert export(store, remove=True)[0].removed == 0 and folder.is_dir()
    assert ["differs from the packed run" in problem for problem in store.problems] == [True]
    shutil.rmtree(folder)
    assert all_same(before, store)


@pytest.mark.parametrize("name", ["smoke.csv.gz", "smoke.json", "smoke.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "gone", "flipped"])
def test_damaged_files_are_named_not_trusted_and_not_written_over(store, name, damage):
    export(store, remove=True)
    path = store.root / "lock" / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif name.endswith(".json") and damage == "flipped":
        path.write_bytes(content.replace(b'"rows": 40' if b'"rows": 40' in content else b'"rows":40', b'"rows":41', 1))
    else:
        changed = bytes([content[-20] ^ 1])
        path.write_bytes(content[:-20] + (b"" if damage == "cut" else changed + content[-19:]))
    left = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    damaged, job = Store(store.root), Job("lock", "vi/made", 0, Scale.SMOKE)
    assert not damaged.has(job, "ab12") and damaged.records(*AT) == [] and len(damaged.table(*AT)) == 0
    assert len(damaged.problems) == 1 and damaged.problems[0].startswith("lock/smoke: ")
    damaged.write(job, "ab12", {}, {"step": np.arange(2), "return": np.zeros(2)})  # it counts as not done
    with pytest.raises(ValueError, match=r"damaged: lock/smoke.*move them away"):
        export(Store(store.root), remove=True)
    assert {one.name: one.read_bytes() for one in path.parent.iterdir() if one.is_file()} == left
    assert len(folders(store)) == 1
    path.write_bytes(content)
    assert Store(store.root).has(job, "cd34"), "restored"


@pytest.mark.parametrize("replaced", range(4))
def test_a_kill_while_packing_loses_nothing(store, monkeypatch, replaced):
    export(store, remove=True)
    job = Job("lock", "new", 5, Scale.SMOKE)
    store.write(job, "99ff", {}, {"step": np.arange(3), "extra": np.arange(3.0)}, {"step": [0], "x": [[1.0]]})
    before, left = store.records(*AT), [replaced]
    real = os.replace

    def killed(*names):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        real(*names)

    monkeypatch.setattr(os, "replace", killed)
    if replaced < 3:
        with pytest.raises(KeyboardInterrupt):
            export(store, remove=True)
    else:
        export(store)
    monkeypatch.setattr(os, "replace", real)
    after = Store(store.root)
    assert all_same(before, after) and not after.problems
    export(after, remove=True)
    assert all_same(before, Store(store.root)) and not folders(store)
    names = ["smoke.csv.gz", "smoke.json", "smoke.safetensors"]
    assert sorted(path.name for path in (store.root / "lock").iterdir()) == names


def test_a_full_disk_leaves_the_old_files(store, monkeypatch):
    export(store)
    before = {path.name: path.read_bytes() for path in (store.root / "lock").iterdir() if path.is_file()}
    store.write(Job("lock", "new", 5, Scale.SMOKE), "99ff", {}, {"step": np.arange(3), "extra": np.arange(3.0)})

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"disk is full.*was not packed"):
        export(store, remove=True)
    assert {path.name: path.read_bytes() for path in (store.root / "lock").iterdir() if path.is_file()} == before
    assert len(folders(store)) == 14


@pytest.mark.parametrize("name", ["label", "seed", "run_id"])
def test_a_metric_cannot_have_the_name_of_another_column(tmp_path, name):
    store = Store(tmp_path / "runs")
    store.write(Job("lock", "vi", 0, Scale.SMOKE), "ab12", {}, {"step": np.arange(2), name: np.zeros(2)})
    with pytest.raises(ValueError, match=f"called '{name}'"):
        export(store, remove=True)
    assert len(folders(store)) == 1 and len(list((store.root / "lock").iterdir())) == 1


def test_hostile_files_open_nothing_else(store, tmp_path):
    export(store, remove=True)
    about = store.root / "lock/smoke.json"
    told = json.loads(about.read_text())
    for changed in (
        {**told, "files": {**told["files"], "../../secret": "00"}, "experiment": "chain"},
        {**told, "labels": {"vi/made": {"../../x": next(iter(told["labels"]["vi/made"].values()))}}},
        {**told, "labels": []},
        {**told, "format": 99},
        {},
    ):
        about.write_text(json.dumps(changed))
        one = Store(store.root)
        assert one.records(*AT) == [] and len(one.problems) == 1


def test_the_command_packs_what_is_named_and_tells_what_it_did(store, tmp_path, capsys):
    at = ["export", "--out", str(store.root)]
    before = store.records(*AT)
    assert main.main([*at, "lock", "--to", str(tmp_path / "packs")]) == 0
    assert capsys.readouterr().out.strip() == f"{tmp_path / 'packs/lock/smoke.csv.gz'}: 13 runs"
    assert len(folders(store)) == 13 and all_same(
        [(tmp_path / "packs" / path.relative_to(store.root), record) for path, record in before],
        Store(tmp_path / "packs"),
    )
    assert main.main([*at, "--remove"]) == 0 and not folders(store)
    assert capsys.readouterr().out.strip().endswith("smoke.csv.gz: 13 runs, 13 run folders removed")
    assert main.main([*at, "chain"]) == 2 and "holds no runs of chain: it has lock" in capsys.readouterr().err
    assert main.main([*at, "--remove", "--to", str(tmp_path / "x")]) == 2
    assert "leave out --to, or --remove" in capsys.readouterr().err
    assert main.main(["export", "--out", str(tmp_path / "nowhere")]) == 2
    (store.root / "lock/smoke.csv.gz").write_bytes(b"")
    assert main.main(at) == 2 and "does not match its checksum" in capsys.readouterr().err


def test_a_damaged_run_folder_is_named_and_left(store, capsys):
    folder = folders(store)[0]
    (folder / "metrics.csv").write_bytes(b"")
    assert main.main(["export", "--out", str(store.root), "--remove"]) == 1
    said = capsys.readouterr()
    assert "12 runs, 12 run folders removed" in said.out and "skipped a damaged run" in said.err
    assert folders(store) == [folder]


@pytest.mark.parametrize("name", ["a,b", 'a"b', "a\nb", " a", ""])
def test_names_that_break_a_csv_are_refused(name):
    with pytest.raises(ValueError, match="cannot name a column"):
        files.storable({"step": [0], name: [1.0]})


def through_a_folder(**columns):
    kept = files.storable({"step": np.arange(len(next(iter(columns.values())))), **columns})
    with tempfile.TemporaryDirectory() as at:
        (folder := Path(at) / "vi" / "ab12-s0").mkdir(parents=True)
        head = {"label": "vi", "seed": 0, "run_id": "ab12"}
        for name, content in files.run_files(head, kept, {}, {"description": {}, "provenance": {}}).items():
            (folder / name).write_bytes(content)
        return files.read_folder(folder).rows


@given(st.lists(st.floats(width=64), min_size=1), st.lists(st.floats(width=32), min_size=1))
@settings(max_examples=100, deadline=None)
def test_floats_come_back_bit_by_bit(wide, narrow):
    for column in (np.array(wide, np.float64), np.array(narrow, np.float32)):
        back = through_a_folder(x=column)["x"]
        assert back.dtype == column.dtype
        kept = ~np.isnan(column)
        assert np.isnan(back[~kept]).all() and back[kept].tobytes() == column[kept].tobytes()


def test_a_float32_that_double_rounding_would_move():
    # The shortest text of this number, read as a float64 and then rounded to float32, is its neighbour.
    column = np.nextafter(np.array([7.038531e-26], np.float32), np.float32(0))
    assert np.float32(np.float64(str(column[0]))) != column[0]
    assert through_a_folder(x=column)["x"][0] == column[0]


def test_other_kinds_are_kept_whole():
    back = through_a_folder(
        flag=np.array([True, False]), count=np.array([2**60 + 1, -3]), half=np.array([0.1, 2], np.float16)
    )
    assert back["flag"].tolist() == [1, 0] and back["count"].tolist() == [2**60 + 1, -3]
    assert back["half"].dtype == np.float32 and back["half"][0] == np.float16(0.1)


def test_csv_text_is_plain():
    def text(**columns):
        about = {"description": {}, "provenance": {}}
        return files.run_files({}, files.storable(columns), {}, about)["metrics.csv"]

    columns = {"step": [0, 10], "x": np.array([0.1, np.nan], np.float32), "y": [np.nan, 1e300]}
    assert text(**columns) == b"step,x,y\n0,0.1,\n10,,1e+300\n"
    assert text(step=[0], y=[-np.inf]) == b"step,y\n0,-inf\n"
