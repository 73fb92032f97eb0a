"""Recorded runs as files: a folder for each run, or all runs of one experiment and scale in two or three files.

    <label>/<run-id>-s<seed>/{run.json, metrics.csv[, arrays.safetensors]}

    <scale>.csv.gz       label, seed, step, then a column for each metric; empty: not recorded
    <scale>.json         configurations and provenance by label and seed, types, checksums
    <scale>.safetensors  arrays, if any run has some, as label/run-id/s<seed>/name

In packed files the rows of a run are contiguous, in the order of the JSON file. Only where one label and seed was run
under several configurations does the table have a last column `run_id`. The same runs always give the same bytes.
Nothing that is read is executed, and every file is checked against its checksum.
"""

import csv
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.numpy import load, save

from made.core import safe_files
from made.experiments.store.table import Record, checked

FORMAT = 1
RUN, METRICS, ARRAYS = "run.json", "metrics.csv", "arrays.safetensors"  # of a folder
PACKED_TABLE, PACKED_RUNS, PACKED_ARRAYS = PACKED = (".csv.gz", ".json", ".safetensors")
# What reading damaged files may raise: unreadable files, bad JSON, CSV, numbers or safetensors.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
UNREADABLE += (SafetensorError,)
_KINDS = {"format": int, "label": str, "seed": int, "run_id": str, "written": str}
_KINDS |= dict.fromkeys(("columns", "files", "description", "provenance"), dict)
_KEYS = ("label", "seed", "step", "run_id")  # columns of a packed table that are no metrics


def run_files(
    head: Mapping[str, Any],
    rows: Mapping[str, np.ndarray],
    arrays: Mapping[str, np.ndarray],
    about: Mapping[str, Any],
) -> dict[str, bytes]:
    """The files of a run's folder; run.json has `head` and `about`, and between them what is known of the files."""
    files = {METRICS: _csv(rows, zip(*map(cells, rows.values()), strict=True))}
    if arrays:
        files[ARRAYS] = save(dict(arrays))
    run = {
        **{"format": FORMAT, **head, "written": datetime.now(UTC).isoformat(timespec="microseconds")},
        "columns": {name: column.dtype.name for name, column in rows.items()},
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        **about,
    }
    return files | {RUN: (json.dumps(run, indent=1, default=_plain) + "\n").encode()}


def read_folder(folder: Path) -> Record:
    """The run in a folder; one of `UNREADABLE` is raised where it is damaged."""
    run = json.loads((folder / RUN).read_text("utf-8"))
    if wrong := [key for key, kind in _KINDS.items() if not isinstance(run.get(key), kind)]:
        raise ValueError(f"{RUN} lacks {', '.join(wrong)}")
    if run["format"] > FORMAT:
        raise ValueError(f"{RUN} has format {run['format']} but this made reads up to {FORMAT}")
    label = unquote(folder.parent.name.replace("__", "/"))
    if (label, folder.name) != (run["label"], f"{run['run_id']}-s{run['seed']}"):
        raise ValueError(f"{RUN} is of {run['label']!r}, {run['run_id']}-s{run['seed']}, not of this folder")
    content = {}
    for name in (METRICS, ARRAYS)[: 1 + (ARRAYS in run["files"])]:  # no other is ever opened, whatever run.json says
        content[name] = (folder / name).read_bytes()
        if hashlib.sha256(content[name]).hexdigest() != run["files"].get(name):
            raise ValueError(f"{name} does not match its checksum: it was cut short or edited")
    header, *lines = csv.reader(io.StringIO(content[METRICS].decode(), newline=""))
    if header != list(run["columns"]):
        raise ValueError(f"{METRICS} lacks the columns that were recorded for it")
    arrays = load(content[ARRAYS]) if ARRAYS in content else {}
    return Record(label, run["seed"], _columns(header, lines, run["columns"]), checked(arrays, arrays=True), run)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise ValueError(f"{value!r} is not plain data: describe runs by numbers, text, lists and dicts.")


def same(a: Record, b: Record) -> bool:
    """Whether two records hold the same run, to the bit."""
    return _content(a) == _content(b)


def _content(record: Record) -> tuple[Any, ...]:
    numbers = [(name, x.dtype.name, x.shape, x.tobytes()) for name, x in sorted(record.rows.items())]
    arrays = [(name, x.dtype.name, x.shape, x.tobytes()) for name, x in sorted(record.arrays.items())]
    return record.label, record.seed, {**record.run, "files": None}, numbers, arrays


def write_packed(base: Path, records: Iterable[Record]) -> None:
    """Pack runs into the files that begin with `base`, in place of those that are there.

    A kill leaves the old ones or the new ones: all are written under other names first, which `read_packed` knows too.
    """
    ordered = sorted(records, key=lambda r: (r.label, r.run["run_id"], r.seed))
    arrays = {f"{r.label}/{r.run['run_id']}/s{r.seed}/{name}": x for r in ordered for name, x in r.arrays.items()}
    files = {packed_file(base, PACKED_TABLE): gzip.compress(_packed_table(ordered), 9, mtime=0)}
    files |= {packed_file(base, PACKED_ARRAYS): save(arrays)} if arrays else {}
    sums = {path.name: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    files[packed_file(base, PACKED_RUNS)] = _packed_runs(base, ordered, sums).encode()
    with safe_files.disk_full_message(
        lambda: f"The disk is full: {base} was not packed; what was stored before is whole."
    ):
        try:
            for path, content in files.items():
                new_file(path).unlink(missing_ok=True)  # of an export that was killed
                with safe_files.create(new_file(path), content) as file:
                    os.fsync(file.fileno())
        except BaseException:
            for path in files:
                new_file(path).unlink(missing_ok=True)
            raise
        for path in files:  # the JSON file last
            os.replace(new_file(path), path)


def _packed_table(records: Sequence[Record]) -> bytes:
    metrics = list(dict.fromkeys(name for r in records for name in r.rows if name != "step"))
    if taken := [name for name in metrics if name in _KEYS]:
        raise ValueError(f"A metric is called {taken[0]!r}, which is another column of the packed table.")
    several = len({(r.label, r.seed) for r in records}) < len(records)  # ids of one label and seed
    lines = []
    for r in records:
        empty, last = [""] * len(r.rows["step"]), [r.run["run_id"]] * several
        columns = [cells(r.rows[name]) if name in r.rows else empty for name in ("step", *metrics)]
        lines += [[r.label, r.seed, *row, *last] for row in zip(*columns, strict=True)]
    return _csv([*_KEYS[:3], *metrics, *_KEYS[3:] * several], lines)


def _packed_runs(base: Path, records: Iterable[Record], sums: Mapping[str, str]) -> str:
    """The JSON file. What many runs share is there once, and referred to by its place in a list."""
    layouts, origins, labels = {}, {}, {}
    at = lambda value, seen: seen.setdefault(json.dumps(value), len(seen))  # noqa: E731
    for r in records:
        layout = {"columns": {name: x.dtype.name for name, x in r.rows.items()}, "arrays": sorted(r.arrays)}
        ids = labels.setdefault(r.label, {})
        one = ids.setdefault(r.run["run_id"], {"description": r.run["description"], "seeds": {}})
        if one["description"] != r.run["description"]:
            raise ValueError(f"Runs of {r.label!r} have one id, {r.run['run_id']}, and two descriptions.")
        about = {"rows": len(r.rows["step"]), "layout": at(layout, layouts), "written": r.run["written"]}
        one["seeds"][str(r.seed)] = {**about, "provenance": at(r.run["provenance"], origins)}
    head = {"format": FORMAT, "experiment": base.parent.name, "scale": base.name, "files": sums}
    parts = [f"{json.dumps(name)}: {json.dumps(x)}" for name, x in head.items()]
    parts += [f'"{name}": [\n' + ",\n".join(x) + "\n]" for name, x in (("layouts", layouts), ("provenance", origins))]
    lines = [f"{json.dumps(label)}: {json.dumps(x, separators=(',', ':'))}" for label, x in labels.items()]
    return "{\n" + ",\n".join([*parts, '"labels": {\n' + ",\n".join(lines) + "\n}"]) + "\n}\n"


def read_packed(base: Path) -> list[Record]:
    """The runs that are packed in the files that begin with `base`; none without them.

    One of `UNREADABLE` is raised where they are damaged.
    """
    if not any(packed_stamp(base)):
        return []
    about, files = _verified(base)
    try:
        text = gzip.decompress(files[PACKED_TABLE]).decode()
    except (zlib.error, EOFError) as error:
        raise ValueError(f"The table cannot be unpacked: {error}") from None
    header, *lines = csv.reader(io.StringIO(text, newline=""))
    arrays = load(files[PACKED_ARRAYS]) if PACKED_ARRAYS in files else {}
    start, records = 0, []
    for label, id, description, seed, stored in _seeds(about):
        layout, part = about["layouts"][stored["layout"]], lines[start : start + stored["rows"]]
        start += stored["rows"]
        if any(row[:2] != [label, str(seed)] for row in part):
            raise ValueError(f"The rows of {label!r}, seed {seed}, are not where the JSON file has them")
        run = {
            **{"format": about["format"], "experiment": about["experiment"], "label": label, "seed": seed},
            **{"scale": about["scale"], "run_id": id, "written": stored["written"], "columns": layout["columns"]},
            **{"description": description, "provenance": about["provenance"][stored["provenance"]]},
        }
        own = {name: arrays[f"{label}/{id}/s{seed}/{name}"] for name in layout["arrays"]}
        rows = _columns(header, part, layout["columns"])
        records.append(Record(label, seed, rows, checked(own, arrays=True), run))
    if start != len(lines):
        raise ValueError(f"The table has {len(lines)} rows, but the JSON file {start}")
    return records


def _seeds(about: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, int, Any]]:
    """(label, run-id, description, seed, the rest) in the order of the rows."""
    for label, ids in about["labels"].items():
        for id, one in ids.items():
            for seed, stored in one["seeds"].items():
                yield label, id, one["description"], int(seed), stored


def _verified(base: Path) -> tuple[Any, dict[str, bytes]]:
    """The JSON file, and the content of the files that it names, by their endings.

    Where a kill, or another process at work, has replaced only some of them, the rest is found under its other name.
    """
    path, wrong = packed_file(base, PACKED_RUNS), None
    for at in (path, new_file(path), path):
        try:
            about = json.loads(at.read_text("utf-8"))
            if about["format"] > FORMAT:
                raise ValueError(f"{path.name} has format {about['format']}, this made reads up to {FORMAT}")
            if (about["experiment"], about["scale"]) != (base.parent.name, base.name):
                raise ValueError(f"{path.name} is of {about['experiment']} at scale {about['scale']}")
            files = {end: packed_file(base, end) for end in (PACKED_TABLE, PACKED_ARRAYS)}
            sums = {end: about["files"][file.name] for end, file in files.items() if file.name in about["files"]}
            return about, {end: _with_checksum(files[end], sum) for end, sum in sums.items()}
        except UNREADABLE as error:
            wrong = wrong or error
    raise ValueError(f"{wrong if isinstance(wrong, ValueError) else repr(wrong)}")


def _with_checksum(path: Path, sum: str) -> bytes:
    for at in (path, new_file(path)):
        if at.exists() and hashlib.sha256(content := at.read_bytes()).hexdigest() == sum:
            return content
    raise ValueError(f"{path.name} does not match its checksum: it was cut short or edited, or is missing")


def packed_stamp(base: Path) -> list[tuple[int, ...] | None]:
    """What changes whenever a packed file does; None for each that is not there."""
    found = [at.stat() if (at := packed_file(base, end)).is_file() else None for end in PACKED]
    return [(at.st_mtime_ns, at.st_size, at.st_ino) if at else None for at in found]


def packed_file(base: Path, end: str) -> Path:
    """The packed file with that ending."""
    return base.with_name(base.name + end)


def new_file(path: Path) -> Path:
    """Where a packed file is written before it replaces the old one."""
    return path.with_name(f".{path.name}.new")


def storable(columns: Mapping[str, ArrayLike], *, arrays: bool = False) -> dict[str, np.ndarray]:
    """Checked columns in the few number types that a file holds; nothing is rounded."""
    out = {}
    for name, column in checked(columns, arrays=arrays).items():
        if set(name) & set(',"\n\r') or name != name.strip() or not name:
            raise ValueError(f"{name!r} cannot name a column: use no comma, quote or blank at the ends.")
        if column.dtype.kind in "biu":
            out[name] = np.ascontiguousarray(column, column.dtype.newbyteorder("=") if arrays else np.int64)
        else:
            out[name] = np.ascontiguousarray(column, np.float64 if column.dtype.itemsize > 4 else np.float32)
    return out


def _csv(header: Iterable[str], lines: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(header)
    out.writerows(lines)
    return text.getvalue().encode()


def _columns(header: Sequence[str], lines: Sequence[Sequence[str]], kinds: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Columns of CSV lines as numbers of the types that were recorded."""
    if any(len(line) != len(header) for line in lines):
        raise ValueError(f"A row of the table does not have {len(header)} cells.")
    texts = dict(zip(header, zip(*lines, strict=True) if lines else [()] * len(header), strict=True))
    return checked({name: parsed(texts[name], kind) for name, kind in kinds.items()})


def parsed(column: Iterable[str], kind: str) -> np.ndarray:
    """A column of `cells` as numbers of a type."""
    if kind == "int64":
        return np.array([int(cell) for cell in column], np.int64)
    if kind not in ("float32", "float64"):
        raise ValueError(f"A column of text cannot hold numbers of type {kind!r}: use int64, float32 or float64.")
    with np.errstate(over="ignore"):
        return np.array([float(cell) if cell else np.nan for cell in column], np.float64).astype(kind)


def cells(column: np.ndarray) -> list[str]:
    """Each number of a column as the shortest text that `parsed` turns back into the same bits; NaN as none."""
    if column.dtype != np.float32:
        return ["" if number != number else repr(number) for number in column.tolist()]
    # The shortest text of a float32 is read through a float64, and these two roundings can miss by one bit.
    text = column.astype(str).tolist()
    exact = np.array(text, np.float64).astype(np.float32) == column
    numbers = zip(text, exact.tolist(), column.tolist(), strict=True)
    return ["" if x != x else short if same else repr(x) for short, same, x in numbers]
