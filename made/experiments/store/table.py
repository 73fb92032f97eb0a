"""The long table of recorded values: label, seed, metric, step, value.

A `Table` is built from one `Record` a run and answers in NumPy arrays with the seeds on the first axis.
It knows labels and numbers, neither experiments nor files.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from made.core.config import nearest

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Label(str):
    """The name of a configuration, made of its tags; `Table.select` finds labels by them.

    Strings are joined by "/", numbers stand as name=value, and a truth value is a tag alone.

    >>> label = Label(task="hopper_hop", method="made", tau=0.5, tuned=True)
    >>> label, label.tags["tau"], label.without("tau")
    ('hopper_hop/made/tau=0.5', 0.5, 'hopper_hop/made')
    """

    tags: dict[str, Any]

    def __new__(cls, text: str = "", /, **tags: Any) -> "Label":
        parts = [(name, x) for name, x in tags.items() if not isinstance(x, bool)]
        text = text or "/".join(f"{name}={x:g}" if isinstance(x, int | float) else str(x) for name, x in parts)
        label = super().__new__(cls, text)
        label.tags = tags
        return label

    def without(self, *names: str) -> "Label":
        """The label of the other tags: what several configurations share."""
        return Label(**{name: x for name, x in self.tags.items() if name not in names})


class Record(NamedTuple):
    """What one run left behind.

    `rows` maps 'step' and each metric to a column [T], NaN where nothing was recorded; `arrays` maps
    'step' and each name to snapshots [T', ...]; `run` is the run's description and provenance as plain
    data.
    """

    label: str
    seed: int
    rows: Mapping[str, np.ndarray]
    arrays: Mapping[str, np.ndarray] = _NOTHING
    run: Mapping[str, Any] = _NOTHING


class Table:
    """The recorded values of many runs.

    >>> rows = {"step": np.array([0, 10]), "return": np.array([0.0, 1.0])}
    >>> table = Table([Record("vi/made", seed, rows) for seed in range(3)])
    >>> table.labels(), table.seeds("vi/made"), table.metrics()
    (['vi/made'], [0, 1, 2], ['return'])
    >>> steps, values = table.curves("vi/made", "return")
    >>> steps.tolist(), values.shape
    ([0, 10], (3, 2))
    """

    def __init__(self, records: Iterable[Record] = ()):
        self._by_label: dict[str, list[Record]] = {}
        for record in records:
            runs = self._by_label.setdefault(record.label, [])
            if any(one.seed == record.seed for one in runs):
                what = f"{record.label!r} have seed {record.seed}"
                raise ValueError(f"Two runs of {what}: a table holds one run for each seed.")
            runs.append(record._replace(rows=checked(record.rows), arrays=checked(record.arrays, arrays=True)))
            runs.sort(key=lambda one: one.seed)

    def __len__(self) -> int:
        """The number of runs."""
        return sum(map(len, self._by_label.values()))

    def labels(self) -> list[str]:
        """The labels in the order in which they were first given; empty for an empty table."""
        return list(self._by_label)

    def select(self, **tags: Any) -> list[Label]:
        """The labels whose tags have these values."""
        found = [label for label in self._by_label if isinstance(label, Label)]
        return [label for label in found if all(label.tags.get(name) == x for name, x in tags.items())]

    def tags(self, label: str) -> dict[str, Any]:
        """The tags of a label, which may be given as text."""
        return next((one.tags for one in self.select() if one == label), {})

    def tag(self, name: str, **tags: Any) -> list[Any]:
        """The values of a tag, of the labels that `select` finds, each once."""
        return list(dict.fromkeys(label.tags[name] for label in self.select(**tags) if name in label.tags))

    def seeds(self, label: str) -> list[int]:
        """The seeds of a label, in increasing order: the order of the first axis of every array below."""
        return [record.seed for record in self._records(label)]

    def seed_counts(self) -> list[int]:
        """How many seeds each label has."""
        return [len(runs) for runs in self._by_label.values()]

    def metrics(self, label: str | None = None) -> list[str]:
        """The names of the recorded metrics, of one label or of all, in the order of recording."""
        return self._names("rows", label)

    def array_names(self, label: str | None = None) -> list[str]:
        """The names of the array-valued snapshots, of one label or of all."""
        return self._names("arrays", label)

    def runs(self, label: str) -> list[dict[str, Any]]:
        """What is known of each run besides its numbers (description, provenance), in order of the seeds."""
        return [dict(record.run) for record in self._records(label)]

    def curves(self, label: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """The curves of one metric: steps [T] and values [n_seeds, T].

        Steps at which no seed recorded the metric are left out; a value that only some seeds lack stays
        NaN. Seeds that recorded at different steps are refused.
        """
        steps, values = self._stacked("rows", label, metric)
        values = values.astype(np.float64)
        recorded = ~np.isnan(values).all(axis=0)
        if not recorded.any():
            raise ValueError(f"No seed of {label!r} recorded a value of {metric!r}: every entry is empty.")
        return steps[recorded], values[:, recorded]

    def final(self, label: str, metric: str) -> np.ndarray:
        """The values [n_seeds] at the last step at which any seed recorded the metric."""
        return self.curves(label, metric)[1][:, -1]

    def arrays(self, label: str, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Array-valued snapshots: steps [T'] and values [n_seeds, T', ...]."""
        return self._stacked("arrays", label, name)

    def snapshots(self, label: str, name: str) -> list[np.ndarray]:
        """The snapshots [T', ...] of each seed that has some: maybe of none."""
        return [record.arrays[name] for record in self._records(label) if name in record.arrays]

    def common(self, *labels: str) -> "Table":
        """The runs of these labels on the seeds that all of them have."""
        seeds, part = set.intersection(*(set(self.seeds(label)) for label in labels)), Table()
        chosen = {label: runs for label, runs in self._by_label.items() if label in labels}
        part._by_label = {label: [run for run in runs if run.seed in seeds] for label, runs in chosen.items()}
        return part

    def joined(self, other: "Table", order: Iterable[str] = ()) -> "Table":
        """With the labels of another table that this one lacks; those that `order` names come first, in that order."""
        both, joined = other._by_label | self._by_label, Table()
        place = {label: i for i, label in enumerate(order)}
        joined._by_label = dict(sorted(both.items(), key=lambda item: place.get(item[0], len(place))))
        return joined

    def _records(self, label: str) -> list[Record]:
        if not self._by_label:
            raise ValueError(f"The table is empty, so it has no label {label!r}: run the experiment first.")
        if label not in self._by_label:
            raise ValueError(_unknown(label, "a label of this table", self._by_label))
        return self._by_label[label]

    def _names(self, kind: str, label: str | None) -> list[str]:
        chosen = [one for runs in self._by_label.values() for one in runs] if label is None else self._records(label)
        return [name for name in dict.fromkeys(n for r in chosen for n in getattr(r, kind)) if name != "step"]

    def _stacked(self, kind: str, label: str, name: str) -> tuple[np.ndarray, np.ndarray]:
        records, known = self._records(label), self._names(kind, label)
        if name not in known:
            what = "a metric" if kind == "rows" else "an array"
            raise ValueError(_unknown(name, f"{what} of {label!r}", known))
        lacking = [r.seed for r in records if name not in getattr(r, kind)]
        if lacking:
            raise ValueError(f"{name!r} of {label!r} was not recorded by seeds {lacking}: run them again.")
        columns = [getattr(r, kind) for r in records]
        first = columns[0]
        for record, column in zip(records, columns, strict=True):
            if not np.array_equal(column["step"], first["step"]) or column[name].shape != first[name].shape:
                two = [f"shape {c[name].shape} up to step {max(c['step'], default='none')}" for c in (first, column)]
                raise ValueError(
                    f"Seeds {records[0].seed} and {record.seed} of {label!r} recorded {name!r} differently "
                    f"({' against '.join(two)}): run one of them again."
                )
        return first["step"], np.stack([column[name] for column in columns])


def checked(columns: Mapping[str, ArrayLike], *, arrays: bool = False) -> dict[str, np.ndarray]:
    """The columns of one run as NumPy arrays, refused unless 'step' increases and all have its length.

    Metrics are [T]; with `arrays`, snapshots [T', ...], and none at all is accepted.
    """
    out = {name: np.asarray(column) for name, column in columns.items()}
    if arrays and not out:
        return out
    if "step" not in out:
        raise ValueError(f"The columns {sorted(out)} lack 'step': give the step of each recorded row.")
    step = out["step"]
    column_of_numbers = step.ndim == 1 and step.dtype.kind in "iuf"
    if not column_of_numbers or np.any(~np.isfinite(step) | (step % 1 != 0)) or np.any(step[1:] <= step[:-1]):
        given = f"{step.dtype} of shape {step.shape}"
        raise ValueError(f"'step' must hold increasing whole numbers [T], but does not (it is {given}).")
    out["step"] = step.astype(np.int64)
    for name, column in out.items():
        if column.ndim < 1 or len(column) != len(step) or (column.ndim > 1 and not arrays):
            wanted = f"[{len(step)}, ...]" if arrays else f"[{len(step)}]"
            raise ValueError(f"{name!r} must have shape {wanted} to match 'step', but has {column.shape}.")
        if column.dtype.kind not in "biuf" and column.dtype.name != "bfloat16":
            raise ValueError(f"{name!r} must hold real numbers, but its type is {column.dtype}.")
    return out


def _unknown(given: str, what: str, known: Iterable[str]) -> str:
    names = list(known)
    return f"{given!r} is not {what}.{nearest(given, names)} There are: {', '.join(names) or 'none'}."
