"""One run over two processes with two virtual devices each: what one process with four gives, killed in between."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from made.cli import main
from made.cli.train import Train
from made.training import checkpoint, run_dir, sharding

LOCK = ["train", "--env", "lock-H5", "--agent", "q-learning", "--bonus", "made-tabular", "--seeds", "4", "--no-video"]
WORDS = [*LOCK, "--set", "n_envs=4", "--set", "unroll=8", "--every", "320", "--checkpoint-every", "960"]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def start(words: list[str], devices: int, cache: Path, *how: str) -> subprocess.Popen[str]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "MADE_CACHE": str(cache)}
    pipe, asked = subprocess.PIPE, [sys.executable, *(how or ("-m", "made.cli.main")), *words]
    return subprocess.Popen(asked, env=env, stdout=pipe, stderr=pipe, text=True)


# The first kills itself after two checkpoints and a row more.
KILLED = """
import os, sys
from made.cli.main import main
from made.training import checkpoint
from made.training import train_loop
from made.training import loggers
kept, save, write = [0], checkpoint.save, loggers.JSONL.write
def saved(*given, **more):
    kept[0] += 1
    return save(*given, **more)
def written(self, lines):
    write(self, lines)
    if kept[0] == 2:
        os.kill(os.getpid(), 9)
checkpoint.save, loggers.JSONL.write = saved, written
sys.exit(main(sys.argv[1:]))
"""


def pair(words: list[str], out: Path, cache: Path, *how: str) -> list[subprocess.Popen[str]]:
    """The same command twice, each with its number. They meet at an address of this machine alone."""
    joined = [*words, "--out", str(out), "--hosts", "2", "--coordinator", f"127.0.0.1:{free_port()}"]
    return [start([*joined, "--host", str(host)], 2, cache, *how) for host in range(2)]


def rows(out: Path):
    lines = [json.loads(line) for line in (out / run_dir.METRICS).read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "frames_per_second")} for line in lines]


def test_two_processes_killed_and_started_again_give_what_one_gives(tmp_path):
    words, cache, out = [*WORDS, "--steps", "9600"], tmp_path / "cache", tmp_path / "two"
    both = pair(words, out, cache, "-c", KILLED)
    assert both[0].wait() == -signal.SIGKILL, both[0].communicate()[1][-2000:]
    assert len(checkpoint.files(out / run_dir.CHECKPOINTS)) == 2
    both[1].kill()
    for process in both:
        process.communicate()
    alone = start([*words, "--devices", "4", "--out", str(tmp_path / "one")], 4, cache)
    for process, said in zip([*pair(words, out, cache), alone], ("going on with", "host 1 of 2", ""), strict=True):
        told, err = process.communicate()
        assert process.returncode == 0 and said in err, err[-2000:]
        assert ("frames per seed, saved in" in told) == (said != "host 1 of 2"), "one of them speaks"
    assert len(found := rows(out)) == 4 * 30 and found == rows(tmp_path / "one")
    ends = [checkpoint.files(tmp_path / name / run_dir.CHECKPOINTS) for name in ("two", "one")]
    assert [path.name for path in ends[0]] == [path.name for path in ends[1]]
    one, other = (load_file(paths[-1]) for paths in ends)
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    run = json.loads((out / run_dir.RUN).read_text())
    assert len(run["sessions"]) == 2 and "host" not in run["command"] and "127.0.0.1" not in run["command"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--hosts", "2", "--host", "2"], "lies between 0 and --hosts less 1; got --hosts 2."),
        (["--host", "3"], "--host 3 needs --hosts of 2 or more, and lies between 0 and --hosts less 1; got --hosts 1."),
        (["--host", "-1"], "--host -1 needs --hosts of 2 or more"),
        (["--hosts", "0"], "--hosts must be at least 1, got 0."),
        (["--hosts", "2", "--coordinator", "9911"], "--coordinator takes ADDRESS:PORT"),
    ],
)
def test_hosts_that_make_no_sense_are_refused(more, message, tmp_path, capsys):
    assert main.main([*WORDS, *more, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_what_the_first_refuses_all_refuse(monkeypatch):
    def refuses():
        raise ValueError("no")

    told = []
    monkeypatch.setattr(sharding.jax, "process_count", lambda: 2)
    monkeypatch.setattr(sharding, "broadcast", lambda value: told.append(int(value)) or value)
    with pytest.raises(ValueError, match=r"^no$"):
        sharding.on_first_process(refuses)
    assert told == [0], "the others must hear of it, or they wait for ever"
    monkeypatch.setattr(sharding.jax, "process_index", lambda: 1)
    monkeypatch.setattr(sharding, "broadcast", lambda value: np.int32(0))
    with pytest.raises(ValueError, match="The first host rejected this run"):
        sharding.on_first_process(refuses)


def test_the_command_that_is_recorded_is_without_hosts():
    asked = Train("lock-H5", hosts=2, host=0, coordinator="10.0.0.7:1", devices=4)
    assert asked.words() == "made train --env lock-H5 --devices 4"
