"""The pieces of training one by one: coverage, rows, writers, memory, pictures."""

import json
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from training import tiny

from made.core import Transition
from made.envs.minigrid import Empty, Grid
from made.envs.minigrid.tile_codes import GridState
from made.training import loggers, memory, video
from made.training.backends import compiled_envs
from made.training.probes import Coverage
from made.training.train_run import parse_frames


@pytest.mark.parametrize("n", [100, 300_000])
def test_coverage_estimates_the_number_of_distinct_states(n):
    watch, blank = Coverage(), jnp.zeros(n)
    batch = Transition((), blank, blank, jnp.arange(n), blank > 0, blank > 0)
    seen = watch.update(watch.init(jax.random.key(0), None), batch, jnp.int32(1))
    again = watch.update(seen, batch, jnp.int32(2))
    assert float(watch.read(seen, None)["coverage"]) == pytest.approx(n, rel=0.03)
    assert np.array_equal(seen, again), "what was seen before is not counted again"


def test_a_row_weighs_episodes_counts_them_and_marks_the_first_bad_loss():
    names = ("return", "length", "episodes", "loss", "spread")
    sums = compiled_envs.zeros(names)
    updates = [(jnp.nan, 0.0, 1.0, 1.0), (1.0, 1.0, 2.0, jnp.nan), (4.0, 3.0, jnp.nan, 3.0), (1.0, 0.0, jnp.inf, 5.0)]
    for k, (value, episodes, loss, spread) in enumerate(updates, 1):
        given = {"return": value, "length": value, "episodes": episodes, "loss": loss, "spread": spread}
        sums = compiled_envs.accumulate(sums, {n: jnp.float32(x) for n, x in given.items()}, jnp.int32(k))
    assert int(sums.bad) == 3
    assert float(sums.total["return"] / sums.weight["return"]) == (1 * 1 + 3 * 4) / 4
    assert float(sums.total["episodes"]) == 4 and float(sums.total["spread"] / sums.weight["spread"]) == 3
    assert (
        compiled_envs.is_loss("rnd/loss")
        and compiled_envs.is_loss("policy_loss")
        and not compiled_envs.is_loss("loss/scale")
    )


def test_amounts_are_written_as_people_write_them():
    given = {"40M": 40e6, "500k": 5e5, "1e6": 1e6, "1_000": 1000, "2.5M": 2.5e6, "1G": 1e9, "7": 7}
    assert {text: parse_frames(text, "--steps") for text in given} == given
    for wrong in ("", "M", "-5", "0", "1.5", "nan", "inf", "1e99M"):
        with pytest.raises(ValueError, match="--steps takes a number of frames"):
            parse_frames(wrong, "--steps")


LINES = [
    {"seed": 0, "update": 4, "frames": 128, "seconds": 1.0, "return": 0.5, "length": float("nan")},
    {"seed": 1, "update": 4, "frames": 128, "seconds": 1.0, "return": 1.0, "length": 3.0},
]


def test_what_is_not_a_number_is_null_in_the_file_and_left_out_elsewhere(tmp_path):
    file = loggers.JSONL(tmp_path / "metrics.jsonl")
    file.write(LINES)
    file.sync()
    file.close()
    read = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert read == [{**LINES[0], "length": None}, LINES[1]]
    assert loggers.means(LINES) == {"seconds": 1.0, "return": 0.75, "length": 3.0}


def test_tensorboard_has_a_log_for_each_seed(tmp_path, monkeypatch):
    made = {}

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            made[folder] = self
            self.purge_step, self.seen, self.open = purge_step, [], True

        def add_scalar(self, *what):
            self.seen.append(what)

        def flush(self): ...

        def close(self):
            self.open = False

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    board = loggers.TensorBoard(tmp_path, (0, 1), 64)
    board.write(LINES)
    board.sync()
    board.close()
    first, second = made[str(tmp_path / "seed0")], made[str(tmp_path / "seed1")]
    assert first.seen == [("seconds", 1.0, 128), ("return", 0.5, 128)] and ("length", 3.0, 128) in second.seen
    assert first.purge_step == 65 and not first.open


def test_wandb_has_the_means_and_each_seed_and_goes_on_with_its_page(tmp_path, monkeypatch):
    begun, logged = [], []

    def init(**about):
        begun.append(about)
        return types.SimpleNamespace(log=lambda what, step: logged.append((what, step)), finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    for _ in range(2):
        log = loggers.WandB("project", "name", tmp_path, {"bonus_coef": 1})
        log.write(LINES)
        log.sync()
        log.close()
    what, step = logged[0]
    assert step == 128 and what["return"] == 0.75 and what["seed1/return"] == 1.0 and "seed0/length" not in what
    assert begun[0]["id"] == begun[1]["id"] and begun[0]["config"] == {"bonus_coef": 1}


def test_an_extra_that_is_not_installed_is_named_with_its_fix(tmp_path, monkeypatch):
    for name in ("tensorboardX", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r"pip install -e .\.\[tensorboard\]"):
        loggers.TensorBoard(tmp_path, (0,), 0)
    with pytest.raises(ValueError, match=r"pip install -e .\.\[wandb\]"):
        loggers.WandB("project", "name", tmp_path, {})


def test_memory_is_named_in_words_and_only_refused_where_it_is_short():
    assert memory.size_of((jnp.zeros((3, 2)), jax.random.key(0))) == 32
    assert memory.in_words(512) == "0.5 KiB" and memory.in_words(3 * 2**20) == "3.0 MiB"
    memory.demand(10, None, 1)
    memory.demand(None, 10, 1)
    memory.demand(10, 10, 1)
    with pytest.raises(ValueError, match=r"needs 4.0 GiB .* 1.0 GiB are free: about 2 of its 8 seeds would fit"):
        memory.demand(2**32, 2**30, 8)
    with pytest.raises(ValueError, match=r"needs at least 4.0 GiB .* at most 2 of its 8 seeds"):
        memory.demand(2**32, 2**30, 8, exact=False)
    with pytest.raises(ValueError, match="not even one of its seeds would fit"):
        memory.demand(2**32, 2**30, 1)
    needs = memory.needed(jax.jit(lambda x: x @ x).lower(jnp.zeros((64, 64))).compile())
    assert needs is not None and needs >= 2 * 64 * 64 * 4


def test_films_show_the_bonus_and_maps_count_the_visits(tmp_path):
    plan = tiny.plan(1)
    begin = jax.jit(compiled_envs.begin, compiler_options={"xla_backend_optimization_level": 0})
    states = begin(jax.tree.map(lambda x: jnp.asarray(x)[None], plan.run), jnp.zeros(1, jnp.uint32))
    written = video.record_videos(plan, states, tmp_path)
    assert [path.name for path in written] == ["video-seed0.gif", "visits-seed0.png"]
    with Image.open(written[0]) as picture:
        assert picture.size == (5 * video.SIZE, 5 * video.SIZE + 40) and 2 <= picture.n_frames <= 7
    with Image.open(written[1]) as picture:
        assert picture.size == (160, 160)


def test_the_strip_has_a_bar_for_each_step_so_far_as_high_as_its_bonus():
    picture = video.strip(np.array([1.0, 0.5, 0.25, 0.0]), 3, 80)
    heights = [(picture[:, x] != picture[0, 79]).any(-1).sum() for x in (10, 30, 50, 70)]
    assert heights == [36, 18, 9, 0] and tuple(picture[-1, 50]) == video._NOW and tuple(picture[-1, 10]) == video._PAST
    assert video.strip(np.zeros(3), 2, 30).shape == (40, 30, 3)


def test_visits_are_counted_while_an_episode_lasts():
    states = GridState(*[None] * 8)._replace(x=np.array([[1, 2], [3, 3]]), y=np.array([[1, 1], [1, 1]]))
    played = video.RecordedEpisode(states, states, np.zeros((2, 2)), np.array([[True, True], [False, True]]))
    counts = video.visits(Grid(Empty(5)), played)
    assert counts.tolist()[1] == [0, 1, 1, 1, 0] and counts.sum() == 3
