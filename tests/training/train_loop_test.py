"""What stops a run: numbers that are not finite, a full disk, another process, and too little memory."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from made.core import safe_files
from made.training import checkpoint, checkpoint_file, loggers, memory, run_dir, train_loop
from made.training.backends import compiled_envs
from tests.reliability import damage, processes


class State(NamedTuple):
    agent: Any
    bonus: Any = ()
    streams: Any = ()


class Asked(NamedTuple):
    seeds: tuple[int, ...] = (4, 7)
    frames_per_update: int = 32


GOOD = np.full(2, int(compiled_envs.NO_FAILURE))
ROW = {"return": np.array([np.nan, 1.0]), "episodes": np.array([0.0, 3.0]), "loss": np.zeros(2), "bonus": np.ones(2)}


def looked(tmp_path, state, bad=GOOD, began=None, **scalars):
    began = State({"w": jnp.ones(3)}) if began is None else began
    return train_loop.NaNCheck(Asked(), began, tmp_path).check(bad, {**ROW, **scalars}, state, 6)  # type: ignore[arg-type]


def test_what_is_finite_passes_and_so_does_a_row_without_an_episode(tmp_path):
    assert looked(tmp_path, State({"w": jnp.ones(3), "k": jnp.arange(3)}, streams=jnp.array(jnp.nan))) is None


@pytest.mark.parametrize("wrong", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_parameter_that_is_not_finite_stops_the_run_and_is_named(tmp_path, wrong):
    state = State({"w": jnp.array([1.0, wrong])}, bonus=(np.array([wrong]), jnp.ones(2)))
    with pytest.raises(
        ValueError, match=r"parameters \(agent\.w, bonus\.0\) .* update 6 \(192 frames\).*no checkpoint"
    ):
        looked(tmp_path, state)


def test_what_was_not_finite_from_the_start_may_stay_so(tmp_path):
    best = State({"best": jnp.array(-jnp.inf)})
    assert looked(tmp_path, best, began=best) is None


def test_a_reward_that_is_not_finite_stops_the_run(tmp_path):
    (tmp_path / run_dir.CHECKPOINTS).mkdir()
    kept = tmp_path / run_dir.CHECKPOINTS / "000000004.safetensors"
    kept.write_bytes(b"")
    with pytest.raises(ValueError, match=rf"Seed 7 has a reward \(return\) .* update 6 .*{kept}, from before that"):
        looked(tmp_path, State({}), **{"return": np.array([np.nan, np.nan])})


def test_a_loss_is_named_with_its_update_and_so_is_the_bonus_behind_it(tmp_path):
    bad, nan = np.array([int(compiled_envs.NO_FAILURE), 5]), np.array([1.0, np.nan])
    with pytest.raises(ValueError, match=r"Seed 7 has a bonus \(bonus\) and a loss \(loss\) .* at update 5 \(160"):
        looked(tmp_path, State({}), bad, loss=nan, bonus=nan)


# The disk


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    damage.go_on(damage.plan(), out)
    return out


@pytest.mark.parametrize("where", ["metrics", "checkpoint", "run.json"])
def test_a_full_disk_stops_the_run_and_with_room_it_goes_on(whole, tmp_path, monkeypatch, where):
    left = [0 if where == "run.json" else 3]

    def full(real):
        def called(*given):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*given)

        return called

    with monkeypatch.context() as patch:
        if where == "metrics":
            patch.setattr(loggers.JSONL, "write", full(loggers.JSONL.write))
        elif where == "checkpoint":
            patch.setattr(checkpoint_file, "_write", full(checkpoint_file._write))
        else:
            patch.setattr(run_dir, "write_run", full(run_dir.write_run))
        last = "no checkpoint yet" if where == "run.json" else r"000000006\.safetensors, is whole"
        with pytest.raises(safe_files.DiskFull, match=rf"^The disk is full: the run in .*{last}.* same command"):
            damage.go_on(damage.plan(), tmp_path)
    assert [checkpoint.read(path).update for path in checkpoint.files(tmp_path / run_dir.CHECKPOINTS)] == (
        [] if where == "run.json" else [2, 4, 6]
    )
    damage.go_on(damage.plan(), tmp_path)
    assert processes.same(whole, tmp_path) == ""


def test_other_trouble_with_files_is_not_called_a_full_disk(tmp_path):
    with pytest.raises(PermissionError), run_dir.lock_run_dir(tmp_path):
        raise PermissionError(errno.EACCES, "no")


def test_a_row_is_written_whole_or_not_at_all(tmp_path):
    """Against the operating system itself, which lets files grow to 100 bytes only."""
    rows, before = loggers.JSONL(tmp_path / "metrics.jsonl"), resource.getrlimit(resource.RLIMIT_FSIZE)
    rows.write([{"seed": 0, "update": 1}])
    kept = (tmp_path / "metrics.jsonl").read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            rows.write([{"seed": 0, "update": 2, "text": "x" * 200}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "metrics.jsonl").read_bytes() == kept
    rows.write([{"seed": 0, "update": 2}])
    rows.close()
    assert [json.loads(line)["update"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]


# The folder

HOLDER = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True)"


def test_a_lock_goes_with_the_process_that_is_killed(tmp_path):
    words = [sys.executable, "-c", f"{HOLDER}; sys.stdin.read()", str(tmp_path / run_dir.LOCK)]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"1\n"
    with pytest.raises(ValueError, match="Another process is training"), run_dir.lock_run_dir(tmp_path):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    with run_dir.lock_run_dir(tmp_path):
        assert (tmp_path / run_dir.LOCK).exists()


def test_every_setting_that_differs_is_listed(tmp_path):
    here = {
        "n_envs": 4,
        "bonus_coef": {"class": "Constant", "value": 0.1},
        "agent": {"class": "A", "rate": 1.0, "size": 2},
    }
    there = {
        "n_envs": 8,
        "bonus_coef": {"class": "Linear", "first": 0.1},
        "agent": {"class": "A", "rate": 0.5, "size": 2},
    }
    run_dir.write_run(tmp_path, {"configuration": there, "sessions": []})
    told = (
        r"n_envs = 8, but here it is 4; bonus_coef = 'Linear', but here it is 'Constant'; "
        r"agent\.rate = 0\.5, but here it is"
    )
    with pytest.raises(ValueError, match=rf"run\.json was saved with {told} 1\.0: they must be equal\. Give another"):
        run_dir.read_run(tmp_path, here)
    with pytest.raises(ValueError, match=r"a11 = None.*|; 4 more: they must"):
        checkpoint_file.check({}, {f"a{i}": i for i in range(12)}, "x")


def test_a_kill_while_the_first_run_json_is_written_blocks_nobody(tmp_path):
    (tmp_path / f".{run_dir.RUN}.new").write_text('{"conf')
    assert run_dir.read_run(tmp_path, {}) is None
    run_dir.remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_memory_that_a_container_grants_counts(tmp_path):
    table, root = tmp_path / "cgroup", tmp_path / "root"
    table.write_text("4:memory:/box\n3:cpu:/\n0::/slice\n")
    (root / "memory" / "box").mkdir(parents=True)
    (root / "slice").mkdir()
    assert memory.left_in_cgroup(root, table) is None
    for name, x in {"limit_in_bytes": "5000", "usage_in_bytes": "2000", "stat": "cache 9\ninactive_file 500"}.items():
        (root / "memory" / "box" / f"memory.{name}").write_text(x)
    assert memory.left_in_cgroup(root, table) == 3500
    for name, x in {"max": "1000", "current": "900", "stat": "inactive_file 0"}.items():
        (root / "slice" / f"memory.{name}").write_text(x)
    assert memory.left_in_cgroup(root, table) == 100
    (root / "slice" / "memory.max").write_text("max")
    assert memory.left_in_cgroup(root, table) == 3500
