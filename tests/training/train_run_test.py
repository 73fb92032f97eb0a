"""`made.train`: the same run as that of the command, with or without a folder, resumed, and its errors."""

import json

import jax
import numpy as np
import pytest

import made
from made.cli.train import Train
from made.core.config import to_dict
from made.training import checkpoint, run_dir
from made.training.control_config import control_config
from made.training.train_run import plan_of

ASKED = Train(
    "lock-H5", "q-learning", "made-tabular", "3200", 2, set=("n_envs=4", "unroll=8"), every="320", video=False
)


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The folder of the command."""
    out = tmp_path_factory.mktemp("command") / "run"
    ASKED.out = out
    assert ASKED.main() == 0
    return out


def rows(out):
    """metrics.jsonl without times."""
    lines = [json.loads(line) for line in (out / run_dir.METRICS).read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "frames_per_second")} for line in lines]


def same(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    data = lambda x: np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)  # noqa: E731
    return all(np.array_equal(data(a), data(b), equal_nan=data(a).dtype.kind == "f") for a, b in pairs)


class Rows:
    """A writer that keeps what it is given."""

    def __init__(self):
        self.lines, self.closed = [], False

    def write(self, lines):
        self.lines += lines

    def sync(self): ...

    def close(self):
        self.closed = True


def test_a_run_is_that_of_the_command_bit_for_bit_with_and_without_a_folder(command, tmp_path):
    config, writer = ASKED.plan().run, Rows()
    result = made.train(config, seeds=2, out=tmp_path / "run", loggers=[writer])
    assert result.update == 100 and rows(tmp_path / "run") == rows(command)
    assert writer.closed and [line["update"] for line in writer.lines] == [row["update"] for row in rows(command)]
    written = json.loads((tmp_path / "run" / run_dir.RUN).read_text())
    assert written["configuration"] == json.loads((command / run_dir.RUN).read_text())["configuration"]
    for seed in (0, 1):
        loaded = made.load_run(tmp_path / "run", seed)
        assert same(loaded.state, made.load_run(command, seed).state)
        assert same(loaded.state, jax.tree.map(lambda x, seed=seed: x[seed], result.state))
    assert same(made.train(config, seeds=(0, 1)).state, result.state), "a folder changes nothing"


def test_a_longer_run_resumes_and_a_finished_one_returns_its_state(command, tmp_path):
    config, out = ASKED.plan().run, tmp_path / "run"
    assert made.train(config, seeds=2, steps=1500, out=out).update == 47
    result = made.train(config, seeds=2, steps="3200", out=str(out))
    assert rows(out)[-1] == rows(command)[-1], "the same end"
    again = made.train(config, seeds=2, out=out)
    assert (again.update, result.update) == (100, 100) and same(again.state, result.state)
    assert len(json.loads((out / run_dir.RUN).read_text())["sessions"]) == 2
    assert not [*tmp_path.glob("*.jsonl")] and checkpoint.newest(out / run_dir.CHECKPOINTS).update == 100


def test_defaults_follow_the_kind_of_run():
    config = ASKED.plan().run
    plan = plan_of(config, steps="1k", eval_every=320)
    assert (plan.run.iterations, plan.evaluate_every, plan.checkpoint_every, plan.seeds) == (32, 10, 15_625, (0,))
    control = plan_of(control_config("pendulum_swingup", "sac", "rnd"), (3, 5), 20_000)
    assert (control.run.iterations, control.evaluate_every, control.keep, control.seeds) == (10_000, 5000, 2, (3, 5))
    assert control.episodes == control.run.episodes
    assert to_dict(plan.run) | {"iterations": 0} == to_dict(config) | {"iterations": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"seeds": (1, 1)}, "seeds must differ"),
        ({"seeds": (-1,)}, "lie between 0 and"),
        ({"seeds": "two"}, "seeds takes a number of seeds or a sequence of integers, got 'two'"),
        ({"steps": 0}, "steps takes a number of frames"),
        ({"steps": "many"}, "steps takes a number of frames such as 40M, 500k or 1e6, not 'many'"),
        ({"eval_every": -1}, "eval_every takes a number of frames"),
        ({"checkpoint_every": 0}, "checkpoint_every takes a number of frames"),
        ({"devices": 99}, "99"),
        ({"config": "lock-H5"}, "train takes a RunConfig, ReplayRun or ControlConfig, got str"),
    ],
)
def test_bad_arguments_raise(change, message, tmp_path):
    given = {"config": ASKED.plan().run, "out": tmp_path / "run", **change}
    with pytest.raises(ValueError, match=message):
        made.train(given.pop("config"), **given)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_run_is_an_error(command):
    config = ASKED.plan().run
    with pytest.raises(ValueError, match="seeds"):
        made.train(config, seeds=1, out=command)
