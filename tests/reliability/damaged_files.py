"""Damaged and hostile files, made on purpose: what a bad disk, a cut connection or an attacker could leave."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from made.training import checkpoint, checkpoint_file, run_dir

DEEP = "[" * 100_000 + "]" * 100_000


class Damage(NamedTuple):
    """What is done to a run's folder, and what must come of it.

    `then` is "refused" (a sentence, and nothing is touched), "skipped" (a warning, and an older checkpoint is used) or
    "mended" (nothing is said, and nothing is missing at the end). `says` is a part of the sentence.
    """

    name: str
    do: Callable[[Path], object]
    then: str
    says: str = ""


def newest(out: Path) -> Path:
    """The newest checkpoint of a run."""
    return checkpoint.files(out / run_dir.CHECKPOINTS)[-1]


def damages() -> Iterator[Damage]:
    """All of them; each is done to a fresh copy of a run that stopped half-way."""
    yield from _cut()
    yield from _flipped()
    yield from _forged_headers()
    yield from _forged_manifests()
    yield from _foreign()
    yield from _runs()
    yield from _rows()


def _cut() -> Iterator[Damage]:
    for share in (0.0, 0.001, 0.01, 0.2, 0.5, 0.9, 0.999):
        yield Damage(f"checkpoint cut to {share:.1%}", lambda out, share=share: _cut_to(newest(out), share), "skipped")
    yield Damage(
        "checkpoint one byte short", lambda out: newest(out).write_bytes(newest(out).read_bytes()[:-1]), "skipped"
    )
    yield Damage(
        "checkpoint one byte long", lambda out: newest(out).write_bytes(newest(out).read_bytes() + b"x"), "skipped"
    )


def _cut_to(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def _flipped() -> Iterator[Damage]:
    """One bit at places from the first byte to the last: the length, the header, the manifest, the arrays."""
    for share in np.linspace(0, 1, 14):
        yield Damage(f"a bit flipped at {share:.0%}", lambda out, share=share: _flip(newest(out), share), "skipped")
    for i in range(8):  # where the manifest is, which is text: a digit becomes another
        yield Damage(
            f"a digit of the manifest changed, {i + 1}", lambda out, i=i: _other_digit(newest(out), i), "skipped"
        )


def _flip(path: Path, share: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(share * (len(content) - 1))] ^= 4
    path.write_bytes(content)


def _other_digit(path: Path, number: int) -> None:
    content = bytearray(path.read_bytes())
    begins = content.index(b"configuration")
    digits = [at for at in range(begins, begins + 2000) if content[at : at + 1].isdigit()]
    content[digits[number * len(digits) // 8]] ^= 1
    path.write_bytes(content)


def forge(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> None:
    """A file as safetensors lays it out, with whatever header, declared to be of whatever length."""
    told = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(told) if length is None else length).to_bytes(8, "little") + told + data)


def tensor(**more: Any) -> dict[str, Any]:
    """The header of one array of four bytes, with something of it replaced."""
    return {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **more}}


def _forged_headers() -> Iterator[Damage]:
    four = b"\0" * 4
    headers: dict[str, tuple[Any, bytes, int | None]] = {
        "a header of 2^63 bytes": ({}, b"", 2**63),
        "a header longer than the file": ({}, b"", 10_000),
        "an array of 2^60 numbers": (tensor(shape=[2**60], data_offsets=[0, 2**62]), four, None),
        "an array whose size overflows": (tensor(shape=[2**40, 2**40]), four, None),
        "an array of negative size": (tensor(shape=[-1]), four, None),
        "an array before the file": (tensor(data_offsets=[-4, 0]), four, None),
        "an array that ends before it begins": (tensor(data_offsets=[4, 0]), four, None),
        "an unknown type": (tensor(dtype="OBJECT"), four, None),
        "a type that NumPy lacks": (tensor(dtype="F8_E4M3", shape=[4]), four, None),
        "a header nested 100,000 deep": (DEEP.encode(), b"", None),
        "a header that is no JSON": (b"cos\nsystem\n(S'true'\ntR.", b"", None),
        "a header that is a list": ([], b"", None),
        "a header without a manifest": (tensor(), four, None),
    }
    for name, (header, data, length) in headers.items():
        yield Damage(name, lambda out, x=(header, data, length): forge(newest(out), *x), "skipped")


def _with_manifest(out: Path, text: str) -> None:
    forge(newest(out), {"__metadata__": {"made": text}, **tensor()}, b"\0" * 4)


def changed(out: Path, arrays: Callable | None = None, **more: Any) -> None:
    """The newest checkpoint written anew, checksum and all, with other arrays or another manifest."""
    held, manifest = checkpoint_file.load(newest(out), checkpoint.FORMAT)
    checkpoint_file.save(newest(out), arrays(held) if arrays else held, {**manifest, **more}, overwrite=True)


def _forged_manifests() -> Iterator[Damage]:
    texts = {"no JSON": "__import__('os')", "a list": "[]", "a number": "1", "empty": "{}", "nested too deep": DEEP}
    for name, text in texts.items():
        yield Damage(f"a manifest that is {name}", lambda out, text=text: _with_manifest(out, text), "skipped")
    wrong = {"version": 99, "format": "other", "update": 7.5, "seconds": "long", "configuration": []}
    for name, x in wrong.items():
        says = "version 99" if name == "version" else ""
        yield Damage(f"a manifest with {name} = {x!r}", lambda out, of={name: x}: changed(out, **of), "skipped", says)
    yield Damage("a manifest of another update", lambda out: changed(out, update=1), "skipped", "which run and update")
    yield Damage(
        "a checkpoint of other settings",
        lambda out: changed(out, configuration={"bonus_coef": 1}),
        "refused",
        "bonus_coef",
    )
    other = "written by another version of the code"
    first = lambda held: min(held)  # noqa: E731
    arrays: dict[str, Callable[[checkpoint_file.Arrays], checkpoint_file.Arrays]] = {
        "wrong shapes": lambda held: {name: x[..., None] for name, x in held.items()},
        "wrong types": lambda held: {name: np.zeros(x.shape, np.float16) for name, x in held.items()},
        "an array too few": lambda held: {name: x for name, x in held.items() if name != first(held)},
        "an array named as a path": lambda held: {**held, "../../../evil": np.zeros(1)},
    }
    for name, change in arrays.items():
        yield Damage(f"a whole checkpoint of {name}", lambda out, c=change: changed(out, c), "refused", other)


def _foreign() -> Iterator[Damage]:
    def replaced(out: Path, how: Callable[[Path], object]) -> None:
        path = newest(out)
        path.unlink()
        how(path)

    ways: dict[str, Callable[[Path], object]] = {
        "a folder": Path.mkdir,
        "a link that leads nowhere": lambda path: path.symlink_to("nowhere"),
        "a text": lambda path: path.write_text("import os\n" * 99),
        "zeros": lambda path: path.write_bytes(bytes(5000)),
    }
    for name, how in ways.items():
        yield Damage(f"{name} for a checkpoint", lambda out, how=how: replaced(out, how), "skipped")
    yield Damage("the newest checkpoint is missing", lambda out: newest(out).unlink(), "mended")
    yield Damage("all checkpoints are missing", lambda out: shutil.rmtree(out / run_dir.CHECKPOINTS), "mended")
    yield Damage(
        "all checkpoints are damaged",
        lambda out: [_flip(path, 1.0) for path in checkpoint.files(out / run_dir.CHECKPOINTS)],
        "skipped",
        "none before it",
    )


def _runs() -> Iterator[Damage]:
    texts = {"cut short": '{"configuration": {"ta', "empty": "", "a list": "[]", "nested too deep": DEEP}
    texts |= {
        "of other fields": "{}",
        "of wrong kinds": '{"configuration": 3, "sessions": 4}',
        "binary": "\udcff\udcfe",
    }
    for name, text in texts.items():
        content = text.encode("utf-8", "surrogateescape")
        write = lambda out, content=content: (out / run_dir.RUN).write_bytes(content)  # noqa: E731
        yield Damage(f"a run.json that is {name}", write, "refused", "run.json is damaged")
    yield Damage("a run.json of other settings", _other_settings, "refused", "bonus_coef")


def _other_settings(out: Path) -> None:
    run = json.loads((out / run_dir.RUN).read_text())
    run["configuration"] |= {"bonus_coef": {"class": "Constant", "value": 9.0}, "n_envs": 77, "unroll": 5}
    (out / run_dir.RUN).write_text(json.dumps(run))


def _rows() -> Iterator[Damage]:
    """Behind the rows that the checkpoint covers, where a kill or a full disk leaves such things."""
    texts = {"half a row": '{"seed": 0, "upd', "no JSON": "<script>", "an update that is none": '{"update": "9"}x'}
    texts |= {"a row nested too deep": DEEP, "a row of no update": "{}", "bytes that are no text": "\udcff\udcfe\udc80"}
    for name, text in texts.items():
        content = text.encode("utf-8", "surrogateescape")
        yield Damage(f"metrics end with {name}", lambda out, content=content: _append(out, content), "mended")


def _append(out: Path, content: bytes) -> None:
    with open(out / run_dir.METRICS, "ab") as file:
        file.write(content)
