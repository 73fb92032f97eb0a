"""How much memory a run needs, and how much there is: asked before the first update."""

import math
from pathlib import Path

import jax
from jaxtyping import PyTree


def size_of(tree: PyTree) -> int:
    """Bytes of a tree of arrays, or of their shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def needed(compiled: jax.stages.Compiled) -> int | None:
    """Bytes of the arguments, results and temporaries of a compiled program on each device; None where unknown."""
    found = compiled.memory_analysis()
    if found is None:
        return None
    parts = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")
    return sum(getattr(found, part) for part in parts) - found.alias_size_in_bytes


def free(devices: int = 1) -> int | None:
    """Bytes free on each of so many devices, which share the memory if they are one CPU's; None where unknown."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    on_host = free_on_host()
    return None if on_host is None else on_host // devices


def free_on_host() -> int | None:
    """Bytes free in main memory, within the limit of a container; None where unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min((x for x in (*available, left_in_cgroup()) if x is not None), default=None)


def left_in_cgroup(root: Path = Path("/sys/fs/cgroup"), table: Path = Path("/proc/self/cgroup")) -> int | None:
    """Bytes left of what a container or a batch system grants this process; None without a limit.

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
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                cached = int(stat.get("inactive_file", 0))  # pages of files, which the kernel can drop
            except (OSError, ValueError):  # not there, or "max"
                continue
            left.append(max(limit - used + cached, 0))
    return min(left, default=None)


def demand(bytes_needed: int | None, bytes_free: int | None, seeds: int, *, exact: bool = True) -> None:
    """Raise an error for a run that does not fit; it names the size and how many seeds would fit."""
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
