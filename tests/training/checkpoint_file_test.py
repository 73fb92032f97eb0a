"""A bonus on disk: what is saved comes back to the bit and goes on the same; anything else is refused in a sentence."""

import json

import gymnasium
import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save as to_bytes
from safetensors.numpy import save_file

from made.bonuses import MADE, FirstVisit, NoBonus, RecentCounts
from made.bonuses.rnd import RND
from made.core.trees import stack
from made.training import checkpoint_file
from made.training.host.bonus import HostBonus

N = 2
SPACES = gymnasium.spaces.Box(-1, 1, (4,), np.float32), gymnasium.spaces.Discrete(2)
OFF = np.zeros(N, bool)


def bonus():
    return FirstVisit(RND(embedding=8, width=16))


def live(host, seed, steps=3):
    """Some steps, learnt from; returns all that was paid."""
    rng, paid = np.random.default_rng(seed), []
    for _ in range(steps):
        obs, after = rng.normal(size=(2, N, 4)).astype(np.float32)
        step = host.observe(obs, np.zeros(N, int), np.zeros(N), after, OFF, OFF)
        paid.append(host.reward(step))
        host.update(stack([step]))
    return np.stack(paid)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    host = HostBonus(bonus(), *SPACES, N, seed=3)
    host.reset(np.zeros((N, 4)))
    live(host, 0)
    path = tmp_path_factory.mktemp("bonus") / "bonus.safetensors"
    host.save(path)
    return host, path


def equal(a, b):
    return all(np.array_equal(x, b[name]) and x.dtype == b[name].dtype for name, x in a.items()) and set(a) == set(b)


def test_a_round_trip_is_equal_to_the_bit_and_training_goes_on_the_same(saved, tmp_path):
    host, path = saved
    other = HostBonus(bonus(), *SPACES, N, seed=99)
    other.load(path)
    assert equal(checkpoint_file.flat(host.tree()), checkpoint_file.flat(other.tree()))
    other.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    third = HostBonus(bonus(), *SPACES, N)
    third.load(path)
    assert np.array_equal(live(third, 1), live(other, 1))
    assert equal(checkpoint_file.flat(third.tree()), checkpoint_file.flat(other.tree()))


def test_a_bonus_can_be_saved_before_its_first_reset(tmp_path):
    host, other = (HostBonus(bonus(), *SPACES, N, seed=s) for s in (1, 2))
    host.save(tmp_path / "b")
    other.load(tmp_path / "b")
    assert other.note is None and equal(checkpoint_file.flat(host.tree()), checkpoint_file.flat(other.tree()))


def test_the_header_says_what_the_file_is(saved):
    arrays, manifest = checkpoint_file.load(saved[1])
    assert manifest["format"] == "made-bonus" and manifest["version"] == 1 and manifest["n_envs"] == N
    assert manifest["bonus"]["class"] == "FirstVisit" and manifest["bonus"]["bonus"]["width"] == 16
    assert manifest["spec"]["obs"]["shape"] == [4] and all(isinstance(x, np.ndarray) for x in arrays.values())


def test_nothing_is_overwritten_unless_asked_and_nothing_is_left_behind(saved, tmp_path):
    host, _ = saved
    path = tmp_path / "folder" / "b"
    host.save(path)
    with pytest.raises(ValueError, match="is there already: pass overwrite=True"):
        host.save(path)
    host.save(path, overwrite=True)
    assert [x.name for x in path.parent.iterdir()] == ["b"]


def test_a_write_that_fails_leaves_the_old_file_whole(saved, tmp_path, monkeypatch):
    host, _ = saved
    path = tmp_path / "b"
    host.save(path)
    before = path.read_bytes()

    def full(*args):
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint_file.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        host.save(path, overwrite=True)
    assert path.read_bytes() == before and [x.name for x in tmp_path.iterdir()] == ["b"]


def test_a_file_of_another_bonus_spec_or_number_is_refused(saved):
    _, path = saved
    wider = FirstVisit(RND(embedding=8, width=32))
    with pytest.raises(ValueError, match=r"bonus\.bonus\.width = 16, but here it is 32"):
        HostBonus(wider, *SPACES, N).load(path)
    with pytest.raises(ValueError, match="bonus = 'FirstVisit', but here it is 'NoBonus'"):
        HostBonus(NoBonus(), *SPACES, N).load(path)
    longer = gymnasium.spaces.Box(-1, 1, (5,), np.float32)
    with pytest.raises(ValueError, match=r"spec\.obs\.shape = \[4\], but here it is \[5\]"):
        HostBonus(bonus(), longer, SPACES[1], N).load(path)
    with pytest.raises(ValueError, match="n_envs = 2, but here it is 3"):
        HostBonus(bonus(), *SPACES, 3).load(path)


def rewritten(path, to, **changes):
    """The same file with other entries in its manifest."""
    arrays, manifest = checkpoint_file.load(path)
    header = {**manifest, "sha256": checkpoint_file._digest(arrays), **changes}
    save_file(arrays, to, metadata={"made": json.dumps(header)})
    return to


def test_a_damaged_truncated_foreign_or_later_file_is_refused(saved, tmp_path):
    host, path = saved
    content = path.read_bytes()
    cases = {
        "cut": (content[: len(content) // 2], "damaged, cut short or foreign"),
        "empty": (b"", "damaged, cut short or foreign"),
        "pickle": (b"\x80\x04N.", "damaged, cut short or foreign"),
        "flipped": (content[:-3] + bytes([content[-3] ^ 1]) + content[-2:], "are not those that were written"),
    }
    for name, (written, sentence) in cases.items():
        (tmp_path / name).write_bytes(written)
        with pytest.raises(ValueError, match=sentence):
            host.load(tmp_path / name)
    save_file({"x": np.zeros(2)}, tmp_path / "foreign")
    with pytest.raises(ValueError, match="was not written by made"):
        host.load(tmp_path / "foreign")
    with pytest.raises(ValueError, match="has version 2 of the format"):
        host.load(rewritten(path, tmp_path / "later", version=2))
    with pytest.raises(ValueError, match="There is no file"):
        host.load(tmp_path / "nowhere")


def test_arrays_that_do_not_fit_are_named(saved, tmp_path):
    host, path = saved
    arrays, manifest = checkpoint_file.load(path)
    name = next(iter(arrays))
    for changed, sentence in (
        ({k: v for k, v in arrays.items() if k != name}, "is only in one of them"),
        ({**arrays, name: np.zeros((1, 2, 3), np.float32)}, "was saved by another bonus or another environment"),
    ):
        checkpoint_file.save(tmp_path / "b", changed, manifest, overwrite=True)
        with pytest.raises(ValueError, match=sentence):
            host.load(tmp_path / "b")


def test_tables_rings_and_keys_survive(tmp_path):
    spaces = gymnasium.spaces.Discrete(6), gymnasium.spaces.Discrete(2)
    tabular = MADE(MADE.tabular().cover, RecentCounts(8, 8))
    hosts = [HostBonus(tabular, *spaces, N, seed=s) for s in (0, 1)]
    hosts[0].reset(np.zeros(N, int))
    for t in range(7):
        seen = np.full(N, t % 6)
        hosts[0].update(stack([hosts[0].observe(seen, seen % 2, np.zeros(N), seen, OFF, OFF)]))
    hosts[0].save(tmp_path / "b")
    hosts[1].load(tmp_path / "b")
    assert equal(*(checkpoint_file.flat(host.tree()) for host in hosts))
    assert jax.random.key_impl(hosts[1].key) == jax.random.key_impl(hosts[0].key)


def test_the_file_is_the_one_that_safetensors_writes_whatever_the_arrays_are(tmp_path, monkeypatch):
    """In pieces of a few bytes, from NumPy or from a device, with all kinds of numbers and an empty array."""
    monkeypatch.setattr(checkpoint_file, "_PIECE", 10)
    kinds = ("bool", "uint8", "int8", "float16", "int32", "uint32", "float32", "float64", "int64")
    given = {f"{kind}é": np.arange(24).reshape(1, 2, 12).astype(kind) for kind in kinds}
    given |= {
        "empty": np.zeros((0, 3), np.float32),
        "one": np.float32(3).reshape(()),
        "turned": np.arange(6.0).reshape(2, 3).T,
    }
    checkpoint_file.save(tmp_path / "one", given, {"format": "x", "version": checkpoint_file.VERSION})
    arrays, header = checkpoint_file.load(tmp_path / "one", "x")
    assert equal(arrays, given) and header["format"] == "x"
    text = safe_open(tmp_path / "one", "numpy").metadata()
    dense = {name: np.ascontiguousarray(x).reshape(x.shape) for name, x in given.items()}
    assert (tmp_path / "one").read_bytes() == to_bytes(dense, metadata=text)
    on_device = {name: jax.numpy.asarray(x) if x.itemsize < 8 else x for name, x in given.items()}
    checkpoint_file.save(tmp_path / "two", on_device, {"format": "x", "version": checkpoint_file.VERSION})
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    with pytest.raises(ValueError, match="array of complex64"):
        checkpoint_file.save(tmp_path / "three", {"a": np.zeros(2, np.complex64)}, {})


def test_nothing_is_copied_to_name_what_is_on_a_device():
    tree = {"key": jax.random.key(3), "x": jax.numpy.arange(3), "host": np.arange(2)}
    named, copied = checkpoint_file.leaves_in_place(tree), checkpoint_file.flat(tree)
    assert named["['x']"] is tree["x"] and named["['host']"] is tree["host"] and equal(copied, named)
