"""All runs of one experiment at one scale in two or three files, instead of a folder for each run.

    <store>/<experiment>/<scale>.csv.gz       label, seed, step, then a column for each metric; empty: not recorded
    <store>/<experiment>/<scale>.json         configurations and provenance by label and seed, types, checksums
    <store>/<experiment>/<scale>.safetensors  arrays, if any run has some, as label/run-id/s<seed>/name

The rows of a run are contiguous, in the order of the JSON file. Only where one label and seed was run under several
configurations does the table have a last column `run_id`. The same runs always give the same bytes.
"""

import contextlib
import csv
import gzip
import hashlib
import io
import itertools
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from made.core import safe_files
from made.experiments.store.table import Record, cells, checked, parsed

if TYPE_CHECKING:
    from made.experiments.store.store import Store

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FORMAT = 1
TABLE, ABOUT, ARRAYS = ".csv.gz", ".json", ".safetensors"
_KEYS = ("label", "seed", "step", "run_id")  # columns that are no metrics


class Packed(NamedTuple):
    """What `export` did at one scale: the table, how many runs it holds, and how many folders were removed."""

    table: Path
    runs: int
    removed: int


def export(store: "Store", experiment: str, to: Path | None = None, remove: bool = False) -> Iterator[Packed]:
    """Merge the run folders of an experiment into packed files, of this store or of the one at `to`, by scale.

    A run that is packed already is not replaced. With `remove`, a run folder is deleted once the packed files were
    read again and hold the same run, to the bit. Damaged packed files are never written over: ValueError.
    """
    from made.experiments.store.store import Store

    target = Store(store.root if to is None else to)
    target.mark()
    for scale in store.scales(experiment):
        base = target.root / experiment / scale.value
        base.parent.mkdir(parents=True, exist_ok=True)
        with _alone(base.parent):
            for one in (store, target):
                if one.packed(experiment, scale) is None:
                    raise ValueError(f"Packed files are damaged: {one.problems[-1]}. Restore them, or move them away.")
            ours = {folder.relative_to(store.root): record for folder, record in store.records(experiment, scale)}
            before = {path.relative_to(target.root): r for path, r in (target.packed(experiment, scale) or {}).items()}
            whole = ours | before
            if len(whole) > len(before) or _new(_file(base, ABOUT)).exists():  # or a kill came between the files
                write(base, whole.values())
            removed = _remove(store, ours, read(base)) if remove else 0
        if whole:
            yield Packed(_file(base, TABLE), len(whole), removed)


def _remove(store: "Store", ours: Mapping[Path, Record], back: Iterable[Record]) -> int:
    """Delete the run folders whose run came back the same."""
    found = {(r.label, r.run["run_id"], r.seed): r for r in back}
    removed = 0
    for path, record in ours.items():
        folder = store.root / path
        if not folder.is_dir() or (record := store.unpacked(folder)) is None:
            continue
        if not same(record, found[record.label, record.run["run_id"], record.seed]):
            store.problems.append(f"{path}: differs from the packed run of the same name, so it was not removed")
            continue
        shutil.rmtree(folder)
        removed += 1
        with contextlib.suppress(OSError):  # these are not empty
            folder.parent.rmdir()
            folder.parents[1].rmdir()
    return removed


def same(a: Record, b: Record) -> bool:
    """Whether two records hold the same run, to the bit."""
    told = [{name: x for name, x in one.run.items() if name != "files"} for one in (a, b)]
    pairs = [(getattr(a, kind), getattr(b, kind)) for kind in ("rows", "arrays")]
    alike = all(set(x) == set(y) and all(_equal(x[name], y[name]) for name in x) for x, y in pairs)
    return (a.label, a.seed) == (b.label, b.seed) and told[0] == told[1] and alike


def _equal(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def write(base: Path, records: Iterable[Record]) -> None:
    """Pack runs into the files that begin with `base`, in place of those that are there.

    A kill leaves the old ones or the new ones: all are written under other names first, which `read` knows too.
    """
    ordered = sorted(records, key=lambda r: (r.label, r.run["run_id"], r.seed))
    runs = [(r.label, r.run["run_id"], r.seed) for r in ordered]
    if twice := [run for run, after in itertools.pairwise(runs) if run == after]:
        raise ValueError(f"Two runs of {twice[0][0]!r} have id {twice[0][1]} and seed {twice[0][2]}: pack one of them.")
    held = {f"{r.label}/{r.run['run_id']}/s{r.seed}/{name}": x for r in ordered for name, x in r.arrays.items()}
    files = {_file(base, TABLE): gzip.compress(_table(ordered).encode(), 9, mtime=0)}
    files |= {_file(base, ARRAYS): save(held)} if held else {}
    sums = {path.name: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    files[_file(base, ABOUT)] = _about(base, ordered, sums).encode()
    with safe_files.disk_full_message(
        lambda: f"The disk is full: {base} was not packed; what was stored before is whole."
    ):
        base.parent.mkdir(parents=True, exist_ok=True)
        try:
            for path, content in files.items():
                _new(path).unlink(missing_ok=True)  # of an export that was killed
                with safe_files.create(_new(path), content) as file:
                    os.fsync(file.fileno())
        except BaseException:
            for path in files:
                _new(path).unlink(missing_ok=True)
            raise
        for path in files:  # the JSON file last
            os.replace(_new(path), path)


def _table(records: Iterable[Record]) -> str:
    runs = list(records)
    metrics = list(dict.fromkeys(name for r in runs for name in r.rows if name != "step"))
    if taken := [name for name in metrics if name in _KEYS]:
        raise ValueError(f"A metric is called {taken[0]!r}, which is another column of the packed table.")
    several = len({(r.label, r.seed) for r in runs}) < len(runs)
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow([*_KEYS[:3], *metrics, *_KEYS[3:]][: None if several else -1])
    for r in runs:
        empty, last = [""] * len(r.rows["step"]), [r.run["run_id"]] * several
        columns = [cells(r.rows[name]) if name in r.rows else empty for name in ("step", *metrics)]
        out.writerows([r.label, r.seed, *row, *last] for row in zip(*columns, strict=True))
    return text.getvalue()


def _about(base: Path, records: Iterable[Record], sums: Mapping[str, str]) -> str:
    """The JSON file. What many runs share is there once, and referred to by its place in a list."""
    layouts, origins, labels = {}, {}, {}
    at = lambda value, seen: seen.setdefault(json.dumps(value), len(seen))  # noqa: E731
    for r in records:
        layout = {"columns": {name: x.dtype.name for name, x in r.rows.items()}, "arrays": sorted(r.arrays)}
        ids = labels.setdefault(r.label, {})
        one = ids.setdefault(r.run["run_id"], {"description": r.run["description"], "seeds": {}})
        if one["description"] != r.run["description"]:
            raise ValueError(f"Runs of {r.label!r} have one id, {r.run['run_id']}, and two descriptions.")
        told = {"rows": len(r.rows["step"]), "layout": at(layout, layouts), "written": r.run["written"]}
        one["seeds"][str(r.seed)] = {**told, "provenance": at(r.run["provenance"], origins)}
    head = {"format": FORMAT, "experiment": base.parent.name, "scale": base.name, "files": sums}
    parts = [f"{json.dumps(name)}: {json.dumps(x)}" for name, x in head.items()]
    parts += [f'"{name}": [\n' + ",\n".join(x) + "\n]" for name, x in (("layouts", layouts), ("provenance", origins))]
    lines = [f"{json.dumps(label)}: {json.dumps(x, separators=(',', ':'))}" for label, x in labels.items()]
    return "{\n" + ",\n".join([*parts, '"labels": {\n' + ",\n".join(lines) + "\n}"]) + "\n}\n"


def read(base: Path) -> list[Record]:
    """The runs that are packed in the files that begin with `base`; none without them; ValueError for damaged ones."""
    if not there(base):
        return []
    about, files = _read_verified(base)
    try:
        text = gzip.decompress(files[_file(base, TABLE).name]).decode()
    except (zlib.error, EOFError) as error:
        raise ValueError(f"The table cannot be unpacked: {error}") from None
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    place, start, records = {name: i for i, name in enumerate(header)}, 0, []
    arrays = load(files[_file(base, ARRAYS).name]) if _file(base, ARRAYS).name in files else {}
    for label, id, description, seed, told in _runs(about):
        layout, part = about["layouts"][told["layout"]], rows[start : start + told["rows"]]
        start += told["rows"]
        if any(row[:2] != [label, str(seed)] or len(row) != len(header) for row in part):
            raise ValueError(f"The rows of {label!r}, seed {seed}, are not where the JSON file has them")
        columns = list(zip(*part, strict=True)) if part else [()] * len(header)
        values = {name: parsed(columns[place[name]], kind) for name, kind in layout["columns"].items()}
        held = {name: arrays[f"{label}/{id}/s{seed}/{name}"] for name in layout["arrays"]}
        run = {
            **{"format": about["format"], "experiment": about["experiment"], "label": label, "seed": seed},
            **{"scale": about["scale"], "run_id": id, "written": told["written"], "columns": layout["columns"]},
            **{"description": description, "provenance": about["provenance"][told["provenance"]]},
        }
        records.append(Record(label, seed, checked(values), checked(held, arrays=True), run))
    if start != len(rows):
        raise ValueError(f"The table has {len(rows)} rows, but the JSON file {start}")
    return records


def _runs(about: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, int, Any]]:
    """(label, run-id, description, seed, the rest) in the order of the rows."""
    for label, ids in about["labels"].items():
        for id, one in ids.items():
            for seed, told in one["seeds"].items():
                yield label, id, one["description"], int(seed), told


def _read_verified(base: Path) -> tuple[Any, dict[str, bytes]]:
    """The JSON file, and the files that it names, each as its checksum says.

    Where a kill, or another process at work, has replaced only some of them, the rest is found under its other name.
    """
    path, known = _file(base, ABOUT), [_file(base, end).name for end in (TABLE, ARRAYS)]
    wrong: Exception | None = None
    for at in (path, _new(path), path):
        try:
            about = json.loads(at.read_text("utf-8"))
            if about["format"] > FORMAT:
                raise ValueError(f"{path.name} has format {about['format']}, this made reads up to {FORMAT}")
            if (about["experiment"], about["scale"]) != (base.parent.name, base.name):
                raise ValueError(f"{path.name} is of {about['experiment']} at scale {about['scale']}")
            sums = [(name, about["files"][name]) for name in known if name in about["files"]]
            return about, {name: _content(base.parent / name, sum) for name, sum in sums}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            wrong = wrong or error
    raise ValueError(f"{wrong if isinstance(wrong, ValueError) else repr(wrong)}")


def _content(path: Path, sum: str) -> bytes:
    for at in (path, _new(path)):
        if at.exists() and hashlib.sha256(content := at.read_bytes()).hexdigest() == sum:
            return content
    raise ValueError(f"{path.name} does not match its checksum: it was cut short or edited, or is missing")


def there(base: Path) -> bool:
    """Whether there are packed files, whole or damaged."""
    return any(stamp(base))


def stamp(base: Path) -> list[tuple[int, ...] | None]:
    """What changes whenever a packed file does."""
    found = [_file(base, end) for end in (TABLE, ABOUT, ARRAYS)]
    return [(at.st_mtime_ns, at.st_size, at.st_ino) if (at := _stat(path)) else None for path in found]


def _stat(path: Path) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return path.stat()


def _file(base: Path, end: str) -> Path:
    return base.with_name(base.name + end)


def _new(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One export at a time; the lock goes with the process, and leaves no file."""
    if fcntl is None:
        yield
        return
    at = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(at, fcntl.LOCK_EX)
        yield
    finally:
        os.close(at)
