"""Which part of an observation is read, by its name, so that it can be set from a command line.

A policy sees 7 x 7 cells while RIDE and NovelD count full states: each reader names the part it reads.
`""` is the whole observation.
"""

from jaxtyping import PyTree

from made.core import trees

HASH = "hash"  # the part that tells the full state, where an environment has one


def part(obs: PyTree, name: str) -> PyTree:
    """One part of an observation, or of a tree of Spaces; the whole for ""."""
    if name == "":
        return obs
    if not isinstance(obs, dict) or name not in obs:
        has = f"parts {', '.join(map(repr, obs))}" if isinstance(obs, dict) else "no named parts"
        raise ValueError(f"There is no part {name!r} to read: this observation has {has}. Use one of them, or ''.")
    return obs[name]


def looked_at(obs: PyTree, name: str) -> PyTree:
    """The named part for a network: "" is everything but the hash, which is for counting alone."""
    if name == "" and isinstance(obs, dict) and HASH in obs and len(obs) > 1:
        return {key: x for key, x in obs.items() if key != HASH}
    return part(obs, name)


def key_of(obs: PyTree, name: str) -> trees.Digest:
    """64 bits to count one observation by: of the named part, or for "" of the hash where there is one, else of all."""
    if name == "" and isinstance(obs, dict) and HASH in obs:
        name = HASH
    return trees.digest(part(obs, name))
