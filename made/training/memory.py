"""How much memory a run needs, and how much there is: asked before the first update."""

import math
from pathlib import Path

import jax
from jaxtyping import PyTree


def size_of(tree: PyTree) -> int:
    """Bytes of a tree of arrays, or of their shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def needed(compiled: jax.stages.Compiled) -> int | None:
    """Bytes that one call of a compiled program takes on each device: what goes in, what comes out, what is between.

    None where the backend does not say.
    """
    found = compiled.memory_analysis()
    if found is None:
        return None
    parts = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")
    return sum(getattr(found, part) for part in parts) - found.alias_size_in_bytes


def free(devices: int = 1) -> int | None:
    """Bytes free on each of so many devices; None where that cannot be asked.

    Virtual devices of one CPU share its memory.
    """
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    on_host = free_on_host()
    return None if on_host is None else on_host // devices


def free_on_host() -> int | None:
    """Bytes free in main memory, within the limit of a container; None where that cannot be asked."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    if not kib:
        return None
    allowed = left_of_share()
    return kib[0] * 1024 if allowed is None else min(kib[0] * 1024, allowed)


def left_of_share(root: Path = Path("/sys/fs/cgroup"), table: Path = Path("/proc/self/cgroup")) -> int | None:
    """Bytes left of what a container or a batch system grants this process; None where nothing is set.

    Linux keeps that in files, whose names differ between its two versions of control groups.
    """
    try:
        groups = [line.split(":", 2) for line in table.read_text().splitlines()]
    except OSError:
        return None
    left = []
    for _, kinds, path in (group for group in groups if len(group) == 3):
        if kinds not in ("", "memory"):
            continue
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if kinds else ("memory.max", "memory.current")
        for folder in {root / kinds / path.strip("/"), root / kinds}:  # inside a container its own group is the root
            try:
                limit, used = (int((folder / name).read_text()) for name in names)
                told = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                cached = int(told.get("inactive_file", 0))  # files that were read: given up as soon as need be
            except (OSError, ValueError):  # not there, or "max"
                continue
            left.append(max(limit - used + cached, 0))
    return min(left, default=None)


def demand(bytes_needed: int | None, bytes_free: int | None, seeds: int, *, exact: bool = True) -> None:
    """Refuse a run that does not fit; the sentence names the size and how many seeds would fit."""
    if bytes_needed is None or bytes_free is None or bytes_needed <= bytes_free:
        return
    size, fit = ("" if exact else "at least ") + in_words(bytes_needed), seeds * bytes_free // bytes_needed
    some = f"{'about' if exact else 'at most'} {fit} of its {seeds} seeds would fit"
    raise ValueError(
        f"This run needs {size} of memory on each device and {in_words(bytes_free)} are free: "
        f"{some if fit else 'not even one of its seeds would fit'}; take fewer with --seeds, fewer environments with "
        "--set n_envs=..., or more --devices."
    )


def in_words(size: int) -> str:
    """A number of bytes for people.

    >>> in_words(3 * 2**29)
    '1.5 GiB'
    """
    for unit, at in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= at:
            return f"{size / at:,.1f} {unit}"
    return f"{size / 1024:,.1f} KiB"
