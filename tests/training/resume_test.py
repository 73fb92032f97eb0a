"""A run that was stopped goes on to the bits of one that never was, and its rows are neither lost nor doubled."""

import copy
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training import tiny

from made import load_run
from made.core import Space, trees
from made.core.config import to_dict
from made.training import checkpoint, checkpoint_file, run_dir, sharding, train_loop
from made.training.backends.compiled_envs import CompiledBackend
from made.training.loggers import JSONL


@pytest.fixture(scope="module")
def programs():
    """One compilation for all that differs in numbers only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "options", lambda level: {"xla_backend_optimization_level": 0})
        yield CompiledBackend(tiny.plan())


class Stops:
    """A writer that takes so many rows and then fails, before or after the row has reached the file."""

    def __init__(self, rows: int, error: type[BaseException]):
        self.rows, self.error = rows, error

    def write(self, lines):
        self.rows -= 1
        if self.rows < 0:
            raise self.error("stopped by the test")

    def sync(self): ...

    def close(self): ...


def go(plan, programs, out, *, stops=None, first=False):
    """Train in a folder as the command does; `stops` is told of a row after the file, or before it."""
    out.mkdir(exist_ok=True)
    stand = train_loop.restore_or_init(plan, programs, out)
    writer = JSONL(out / run_dir.METRICS)
    writers = [writer, *([stops] if stops else [])]
    try:
        return train_loop.train(plan, programs, stand, out, writers[::-1] if first else writers, lambda lines: None)
    finally:
        writer.close()


def rows(out):
    """The rows without what a clock measured."""
    lines = [json.loads(line) for line in (out / run_dir.METRICS).read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "frames_per_second")} for line in lines]


def assert_equal(one, other):
    a, b = checkpoint_file.flat(one), checkpoint_file.flat(other)
    assert a.keys() == b.keys()
    for name, x in a.items():
        np.testing.assert_array_equal(b[name], x, err_msg=name)


def load_all(plan, out, to, at):
    """Every seed of a copy of the folder, loaded as it was after that many updates."""
    shutil.copytree(out, to)
    for path in checkpoint.files(to / run_dir.CHECKPOINTS):
        if int(path.stem) > at:
            path.unlink()
    if not (to / run_dir.RUN).exists():
        run_dir.record_session(plan, to, None, "made train", 0, {})
    return [load_run(to, seed) for seed in plan.seeds]


def assert_acts_as(policy, agent, state, spec):
    """The policy chooses what the agent chooses, through several steps of an episode."""
    before, carry, rng = agent.carry(spec), None, np.random.default_rng(0)
    sample = lambda space: jnp.asarray(rng.integers(0, space.n or 5, space.shape), space.dtype)  # noqa: E731
    for i in range(12):
        obs = jax.tree.map(sample, spec.obs, is_leaf=lambda x: isinstance(x, Space))
        key, explore = jax.random.key(i), bool(i % 2)
        action, carry = policy.act(obs, key, carry, explore=explore)
        before, wanted, _ = agent.act(agent.acting_params(state), before, obs, (), key, explore=explore)
        np.testing.assert_array_equal(action, wanted)


def assert_resumes(plan, programs, runs, end):
    """Training the loaded states to the end gives the state of the run that nothing stopped."""
    state, at = programs.put(trees.stack([run.state for run in runs])), runs[0].update
    while at < plan.run.iterations:
        n = min(plan.run.every, plan.run.iterations - at)
        state, at = programs.advance(state, n)[0], at + n
    assert_equal(end, state)


@pytest.fixture(scope="module")
def whole(programs, tmp_path_factory):
    """A run of seven updates that nothing stopped: its folder and where it ended."""
    out = tmp_path_factory.mktemp("whole")
    return out, go(tiny.plan(), programs, out)


def test_the_rows_are_one_a_seed_with_every_scalar(whole):
    found = rows(whole[0])
    assert [(line["update"], line["seed"]) for line in found] == [(k, s) for k in (2, 4, 6, 7) for s in (0, 1)]
    assert found[-1]["frames"] == 7 * 4 * 8
    scalars = {"return", "length", "episodes", "bonus", "intrinsic_return", "coverage", "loss", "rnd/loss"}
    assert all(scalars <= set(line) for line in found)
    assert [("eval_return" in line) for line in found[::2]] == [False, True, False, True]
    last = found[-1]
    assert last["intrinsic_return"] == pytest.approx(0.1 * last["bonus"] * last["length"])
    assert last["episodes"] == 4 and found[0]["episodes"] == 8, "episodes are counted, not averaged"
    assert [path.stem for path in checkpoint.files(whole[0] / run_dir.CHECKPOINTS)] == ["000000004", "000000007"]


@pytest.mark.parametrize("first", [False, True], ids=["after-the-row", "before-the-row"])
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_run_stopped_after_any_row_goes_on_bit_for_bit(programs, whole, tmp_path, after, first):
    plan = tiny.plan()
    with pytest.raises(RuntimeError):
        go(plan, programs, tmp_path, stops=Stops(after, RuntimeError), first=first)
    stand = go(plan, programs, tmp_path)
    assert_equal(whole[1].state, stand.state)
    assert rows(tmp_path) == rows(whole[0])


def test_an_interrupted_run_keeps_every_row_it_has_written(programs, whole, tmp_path):
    plan = tiny.plan()
    with pytest.raises(KeyboardInterrupt):
        go(plan, programs, tmp_path, stops=Stops(3, KeyboardInterrupt), first=True)
    assert train_loop.restore_or_init(plan, programs, tmp_path).update == 6, "the last row is not measured again"
    stand = go(plan, programs, tmp_path)
    assert_equal(whole[1].state, stand.state)
    assert rows(tmp_path) == rows(whole[0])


def test_a_line_cut_short_and_leftovers_of_a_kill_are_cleared_away(programs, whole, tmp_path):
    plan = tiny.plan()
    with pytest.raises(RuntimeError):
        go(plan, programs, tmp_path, stops=Stops(2, RuntimeError))
    with open(tmp_path / run_dir.METRICS, "a") as file:
        file.write('{"seed": 0, "upd')
    leftover = tmp_path / run_dir.CHECKPOINTS / ".000000006.safetensors.x7f3"
    leftover.write_bytes(b"half")
    go(plan, programs, tmp_path)
    assert rows(tmp_path) == rows(whole[0]) and not leftover.exists()


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(programs, whole, tmp_path):
    plan = tiny.plan()
    go(plan, programs, tmp_path)
    newest = checkpoint.files(tmp_path / run_dir.CHECKPOINTS)[-1]
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match=r"000000007.safetensors.* damaged.*before it"):
        stand = train_loop.restore_or_init(plan, programs, tmp_path)
    assert stand.update == 4 and rows(tmp_path) == rows(whole[0])[:4]
    assert newest.with_name(f"{newest.name}.damaged").read_bytes() == content and not newest.exists()
    assert_equal(whole[1].state, go(plan, programs, tmp_path).state)


def test_damaged_checkpoints_do_not_crowd_out_whole_ones(programs, whole, tmp_path):
    plan = tiny.plan()._replace(checkpoint_every=2, keep=2)
    go(plan, programs, tmp_path)
    kept = tmp_path / run_dir.CHECKPOINTS
    for path in checkpoint.files(kept):
        path.write_bytes(b"damaged")
    with pytest.warns(UserWarning) as heard:
        stand = train_loop.restore_or_init(plan, programs, tmp_path)
    assert stand.update == 0 and len(heard) == 2 and str(heard[-1].message).endswith("There is none before it.")
    before = [json.loads(line) for line in (tmp_path / f"{run_dir.METRICS}.damaged").read_text().splitlines()]
    assert len(before) == len(rows(whole[0])), "the rows are kept until they are measured again"
    short = tiny.plan(iterations=2)._replace(checkpoint_every=2, keep=2)
    go(short, programs, tmp_path)
    assert [path.stem for path in checkpoint.files(kept)] == ["000000002"], "a new one outlives older damaged ones"
    assert_equal(whole[1].state, go(plan, programs, tmp_path).state)


@pytest.mark.parametrize("left", [None, 0, 2])
def test_rows_that_are_missing_before_the_checkpoint_are_reported(programs, whole, tmp_path, left):
    """The file is gone, empty, or shorter than the checkpoint."""
    plan = tiny.plan(iterations=4)
    go(plan, programs, tmp_path)
    metrics = tmp_path / run_dir.METRICS
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.unlink() if left is None else metrics.write_text("".join(lines[:left]))
    what = {None: "is missing", 0: "is empty", 2: "ends at update 2"}[left]
    with pytest.warns(UserWarning, match=rf"metrics\.jsonl {what}, but .*000000004\.safetensors.* update 4") as heard:
        stand = train_loop.restore_or_init(plan, programs, tmp_path)
    assert stand.update == 4 and len(heard) == 1
    with pytest.warns(UserWarning, match=what):
        assert_equal(whole[1].state, go(tiny.plan(), programs, tmp_path).state)


def test_a_longer_run_goes_on_from_a_shorter_one(programs, whole, tmp_path):
    go(tiny.plan(iterations=4), programs, tmp_path)
    assert_equal(whole[1].state, go(tiny.plan(), programs, tmp_path).state)
    assert rows(tmp_path) == rows(whole[0])


def test_looking_more_often_changes_nothing(programs, whole, tmp_path):
    stand = go(tiny.plan()._replace(evaluate_every=1, checkpoint_every=1), programs, tmp_path)
    assert_equal(whole[1].state, stand.state)
    assert len(checkpoint.files(tmp_path / run_dir.CHECKPOINTS)) == checkpoint.KEEP


def test_a_checkpoint_of_another_configuration_is_refused(programs, whole, tmp_path):
    plan = tiny.plan()
    go(plan, programs, tmp_path)
    other = plan._replace(run=tiny.run(unroll=9))
    with pytest.raises(ValueError, match=r"was saved with unroll = 8, but here it is 9: .* --out"):
        train_loop.restore_or_init(other, programs, tmp_path)
    with pytest.raises(ValueError, match=r"was saved with seeds = \[0, 1\]"):
        train_loop.restore_or_init(plan._replace(seeds=(0,)), programs, tmp_path)


def test_a_loss_that_is_no_number_stops_the_run_before_it_is_stored(programs, tmp_path):
    plan = tiny.plan(breaks_at=4.0)
    broken = copy.copy(programs)
    broken.runs = trees.stack([tiny.run(), plan.run])
    last = r"its last checkpoint, \S+/000000004\.safetensors, from before that, is kept"
    with pytest.raises(ValueError, match=rf"Seed 1 has a loss \(loss\) .* at update 5 \(160 frames\).*{last}"):
        go(plan, broken, tmp_path)
    assert [path.stem for path in checkpoint.files(tmp_path / run_dir.CHECKPOINTS)] == ["000000004"]
    assert [line["update"] for line in rows(tmp_path)] == [2, 2, 4, 4]
    assert all(
        np.isfinite(x).all() for x in jax.tree.leaves(train_loop.restore_or_init(plan, broken, tmp_path).state.agent)
    )


def test_seeds_start_and_end_apart(whole):
    a, b = (trees.index(whole[1].state, i) for i in (0, 1))
    assert not np.array_equal(a.agent[0].weights, b.agent[0].weights)


def test_a_loaded_run_acts_and_trains_as_the_one_that_was_trained(programs, whole, tmp_path):
    plan = tiny.plan()
    runs = load_all(plan, whole[0], tmp_path / "half", at=4)
    assert [(run.seed, run.update, int(run.state.k)) for run in runs] == [(0, 4, 4), (1, 4, 4)]
    assert to_dict(runs[0].config) == to_dict(plan.run)
    assert_resumes(plan, programs, runs, whole[1].state)
    for lane, run in enumerate(load_all(plan, whole[0], tmp_path / "end", at=7)):
        state = trees.index(whole[1].state, lane)
        assert_equal(run.state, state)
        assert_acts_as(run.policy, plan.run.agent, state.agent, plan.run.env.spec)


def rewritten(run, **changes):
    """run.json with other entries; None removes one."""
    path = run / run_dir.RUN
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: x for name, x in data.items() if x is not None}))


def of(path, value):
    """Changes one field of the configuration, named by its path."""

    def change(run):
        data = json.loads((run / run_dir.RUN).read_text())["configuration"]
        at = data
        *parts, last = path.split(".")
        for part in parts:
            at = at[part]
        at.pop(last) if value is None else at.update({last: value})
        rewritten(run, configuration=data)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: (run / run_dir.RUN).unlink(), "holds no run: give the folder that made train wrote"),
        (lambda run: (run / run_dir.RUN).write_text("{"), "run.json is damaged"),
        (lambda run: rewritten(run, format=1, sessions=[{"commit": "ab12"}]), "layout 1 .*train again .*commit ab12"),
        (lambda run: rewritten(run, configuration=3), "run.json is damaged"),
        (lambda run: rewritten(run, configuration={"class": "Count"}), "lacks the field 'power'"),
        (lambda run: shutil.rmtree(run / run_dir.CHECKPOINTS), "holds no checkpoint"),
        (of("seeds", None), "damaged: its configuration is no run with a list of seeds"),
        (of("seeds", [7]), "seeds = "),
        (of("agent.class", "Agnt"), "run.json: agent: there is no class 'Agnt'"),
        (of("agent.class", "theirs:Agent"), r"agent is a theirs:Agent, .*allow=\['theirs'\]"),
        (of("agent.color", 3), "agent, a ActorCritic, has an unknown field, 'color'"),
        (of("env.maker.max_steps", None), "env.maker, a Empty, lacks the field 'max_steps'"),
        (of("unroll", 9), "unroll = 8, but here it is 9"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_loaded_is_refused_with_what_to_do(whole, tmp_path, change, message):
    load_all(tiny.plan(seeds=2), whole[0], tmp_path / "run", at=7)
    change(tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        load_run(tmp_path / "run")


def test_a_seed_that_was_not_trained_is_refused(whole, tmp_path):
    load_all(tiny.plan(), whole[0], tmp_path / "run", at=7)
    with pytest.raises(ValueError, match="has seeds 0 to 1, and no seed 2"):
        load_run(tmp_path / "run", seed=2)


def test_resuming_says_which_field_differs_and_a_longer_run_resumes(whole, tmp_path):
    load_all(tiny.plan(), whole[0], tmp_path / "run", at=7)
    assert run_dir.read_run(tmp_path / "run", tiny.plan(iterations=70).configuration)
    with pytest.raises(ValueError, match=r"n_envs = 4, but here it is 2; unroll = 8, but here it is 16: they must"):
        run_dir.read_run(tmp_path / "run", tiny.plan(n_envs=2, unroll=16).configuration)
    rewritten(tmp_path / "run", format=1)
    with pytest.raises(ValueError, match="layout 1 and this version of made reads layout 2: train again"):
        run_dir.read_run(tmp_path / "run", tiny.plan().configuration)
