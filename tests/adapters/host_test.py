"""HostBonus: names and spaces, what it refuses, observations that are no numbers, tensors in and out."""

import gymnasium
import jax
import numpy as np
import pytest
import torch

from made.bonuses import MADE, FirstVisit, HashedCounts, NoBonus
from made.bonuses.rnd import RND
from made.core import Space, Spec, Transition
from made.host import HostBonus
from made.trees import stack
from made.watch import state_action_grid

N = 3
DISCRETE = gymnasium.spaces.Discrete(5), gymnasium.spaces.Discrete(2)
VECTOR = gymnasium.spaces.Box(-1, 1, (4,), np.float32), gymnasium.spaces.Discrete(2)
CONTROL = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32), gymnasium.spaces.Box(-1, 1, (2,), np.float32)
PIXELS = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8), gymnasium.spaces.Discrete(3)
PARTS = gymnasium.spaces.Dict({"image": gymnasium.spaces.Box(0, 255, (7, 7, 3), np.uint8), "way": DISCRETE[0]})
OFF = np.zeros(N, bool)


def small_rnd(**options):
    return RND(embedding=8, width=16, **options)


def walk(host, obs, t=0):
    """One step of made-up experience: (obs, action, reward, next_obs, terminated, truncated)."""
    del t
    return obs, np.zeros((N, *host.spec.action.shape), np.float32), np.zeros(N), obs, OFF, OFF


def vectors(seed=0):
    return np.random.default_rng(seed).normal(size=(N, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "spaces", "reads"),
    [
        ("bernstein", DISCRETE, True),
        ("bernstein", PIXELS, False),
        ("made-geometric", CONTROL, False),
        ("rnd", CONTROL, True),
        ("hashed", PIXELS, True),
        ("first-visit", (PARTS, DISCRETE[1]), True),
    ],
)
def test_a_bonus_reads_a_space_or_refuses_it_with_a_sentence(name, spaces, reads):
    if reads:
        assert HostBonus(name, *spaces, N).n_envs == N
    else:
        with pytest.raises(ValueError, match=r"^\w+ keeps a table over \(s, a\), so it needs single discrete"):
            HostBonus(name, *spaces, N)


def test_an_error_inside_a_bonus_becomes_a_sentence_about_the_spaces():
    class Careless(NoBonus):
        def init(self, key, spec):
            return spec.obs["image"]

    with pytest.raises(
        ValueError, match=r"Careless cannot read observations 4 numbers in \[-1, 1\] with actions one of 2: "
    ):
        HostBonus(Careless(), *VECTOR, N)


def test_a_name_and_spaces_equal_a_bonus_and_a_spec():
    spec = Spec(Space((), np.int32, 5), Space((), np.int32, 2))
    hosts = [
        HostBonus("made-tabular", *DISCRETE, N, 7),
        HostBonus(MADE.tabular(), spec, N, 7),
        HostBonus("made-tabular", *DISCRETE, n_envs=N, seed=7),
        HostBonus(MADE.tabular(), spec, n_envs=N, seed=7),
    ]
    for host in hosts:
        host.reset(np.array([0, 1, 2]))
        step = host.observe(np.array([0, 1, 2]), np.array([0, 1, 0]), np.zeros(N), np.array([1, 1, 1]), OFF, OFF)
        host.update(stack([step]))
        assert host.reward(step).tolist() == [1.0, 1.0, 1.0] and host.n_envs == N
        assert jax.random.key_data(host.key).tolist() == jax.random.key_data(hosts[0].key).tolist()
    grid = state_action_grid(5, 2)
    assert hosts[0].reward(grid).shape == (5, 2)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match=r"no bonus 'made-tabula'\. Did you mean 'made-tabular'"):
        HostBonus("made-tabula", *DISCRETE, N)
    with pytest.raises(ValueError, match="n_envs must be a whole number of at least 1, got 0"):
        HostBonus("none", *DISCRETE, 0)
    with pytest.raises(ValueError, match="n_envs must be a whole number of at least 1, got None"):
        HostBonus("none", *DISCRETE)
    with pytest.raises(ValueError, match="on_bad is 'refuse' or 'report', not 'ignore'"):
        HostBonus("none", *DISCRETE, N, on_bad="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Text spaces are not supported"):
        HostBonus("none", gymnasium.spaces.Text(4), DISCRETE[1], N)
    with pytest.raises(ValueError, match=r"action space .* has parts"):
        HostBonus("none", DISCRETE[0], PARTS, N)
    with pytest.raises(ValueError, match="keeps a table over"):
        HostBonus("made-tabular", *VECTOR, N)


def test_wrong_batches_are_refused():
    host = HostBonus(FirstVisit(HashedCounts(bits=8)), *DISCRETE, N)
    good = (np.zeros(N, int), np.zeros(N, int), np.zeros(N), np.zeros(N, int), OFF, OFF)
    with pytest.raises(ValueError, match="before reset"):
        host.observe(*good)
    with pytest.raises(ValueError, match="those of 2 environments, but this bonus was made for 3"):
        host.reset(np.zeros(2, int))
    host.reset(good[0])
    with pytest.raises(ValueError, match=r"have the shape \(3, 1\)"):
        host.observe(np.zeros((N, 1), int), *good[1:])
    with pytest.raises(ValueError, match="those of 4 environments"):
        host.observe(good[0], np.zeros(4, int), *good[2:])
    with pytest.raises(ValueError, match=r"terminated has the shape \(2,\)"):
        host.observe(*good[:4], np.zeros(2, bool), OFF)
    with pytest.raises(ValueError, match="go from 0 to 5, but the spec allows 0 to 4"):
        host.observe(np.array([0, 5, 1]), *good[1:])
    with pytest.raises(ValueError, match="int32 cannot carry"):
        host.observe(np.array([0, np.nan, 1]), *good[1:])
    with pytest.raises(ValueError, match="reset_obs"):
        host.observe(*good[:4], np.ones(N, bool), OFF)
    with pytest.raises(ValueError, match=r"reads next_obs, next_note, but this batch has no next_note"):
        host.reward(Transition(*good))
    parts = HostBonus("none", PARTS, DISCRETE[1], N)
    with pytest.raises(ValueError, match=r"must have the parts \['image', 'way'\], but this has \['image'\]"):
        parts.reset({"image": np.zeros((N, 7, 7, 3), np.uint8)})


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_a_number_is_refused_and_changes_nothing(bad):
    host = HostBonus(small_rnd(), *VECTOR, N)
    host.reset(vectors())
    step, before = host.observe(*walk(host, vectors())), host.tree()
    spoilt = vectors()
    spoilt[1, 2] = bad
    for call in (
        lambda: host.reset(spoilt),
        lambda: host.observe(spoilt, *walk(host, vectors())[1:]),
        lambda: host.observe(*walk(host, vectors())[:3], spoilt, OFF, OFF),
        lambda: host.reward(step._replace(next_obs=spoilt)),
        lambda: host.update(stack([step._replace(next_obs=spoilt)])),
    ):
        with pytest.raises(ValueError, match="NaN or infinite"):
            call()
    same = jax.tree.map(lambda a, b: bool((a == b).all()), before, host.tree())
    assert all(jax.tree.leaves(same))


def test_reported_rows_earn_nothing_and_are_never_learnt():
    """The learner's state is that of the same batch with a good row in the place of the bad one."""
    hosts = [HostBonus(FirstVisit(small_rnd()), *VECTOR, N, on_bad="report") for _ in range(2)]
    good, spoilt = vectors(1), vectors(1)
    spoilt[1] = np.nan
    metrics = {}
    for host, seen in zip(hosts, (spoilt, good[[0, 0, 2]]), strict=True):
        host.reset(good)
        step = host.observe(good, np.zeros(N, int), np.zeros(N), seen, OFF, OFF)
        paid = host.reward(step)
        assert np.isfinite(paid).all() and (paid[1] == 0) == (seen is spoilt)
        first = step._replace(obs=np.asarray(step.obs)[[0, 0, 2]])  # what stands in for the bad row is the first one
        metrics[seen is spoilt] = host.update(stack([step if seen is spoilt else first]))
        for leaf in jax.tree.leaves((host.state, host.memory)):
            assert np.isfinite(np.asarray(leaf)).all()
    assert [host.bad for host in hosts] == [1, 0]
    assert metrics[True]["bad"] == 1 and metrics[False]["bad"] == 0
    same = jax.tree.map(lambda a, b: np.array_equal(a, b), *(host.state for host in hosts))
    assert all(jax.tree.leaves(same))
    whole = stack([hosts[0].observe(good, np.zeros(N, int), np.zeros(N), np.full((N, 4), np.nan), OFF, OFF)])
    assert hosts[0].update(whole) == {"bad": 3.0}  # nothing good was left, so nothing was learnt


def test_begin_restarts_the_episodes_of_some_environments_alone():
    host = HostBonus("first-visit", *DISCRETE, N)
    obs = np.zeros(N, int)
    host.reset(obs)
    step = lambda: host.observe(obs, obs, np.zeros(N), obs, OFF, OFF)  # noqa: E731
    assert host.reward(step()).tolist() == [0, 0, 0]
    host.begin(obs + 1, np.array([True, False, False]))
    assert host.reward(step()).tolist() == [1, 0, 0]


def test_tensors_in_tensors_out_with_the_numbers_of_numpy():
    hosts = [HostBonus(FirstVisit(small_rnd()), *VECTOR, N) for _ in range(2)]
    paid, updated = [], []
    for host, kind in zip(hosts, (np.asarray, torch.as_tensor), strict=True):
        host.reset(kind(vectors()))
        steps = []
        for t in range(3):
            before, after, ends = vectors(t), vectors(t + 1), np.array([t == 1, False, False])
            fields = (before, np.arange(N) % 2, np.ones(N), after, ends, OFF, after[::-1].copy())
            steps.append(host.observe(*map(kind, fields)))
        batch = stack(steps)
        paid.append(host.reward(batch))
        updated.append(host.update(batch))
    assert isinstance(paid[1], torch.Tensor) and isinstance(paid[0], np.ndarray)
    assert paid[1].dtype == torch.float32 and np.array_equal(paid[0], paid[1].numpy())
    assert updated[0] == updated[1]


def test_a_batch_of_tensors_is_read_in_place_and_learnt_from():
    host = HostBonus(small_rnd(), *VECTOR, N)
    obs = torch.randn(4, N, 4)
    flags = torch.zeros(4, N, dtype=torch.bool)
    batch = Transition(obs, torch.zeros(4, N, dtype=torch.int64), torch.zeros(4, N), obs, flags, flags)
    first = host.reward(batch)
    host.update(batch)
    assert (
        isinstance(first, torch.Tensor) and first.shape == (4, N) and (host.reward(batch) < first).float().mean() > 0.5
    )
    there = jax.dlpack.from_dlpack(obs)
    assert there.unsafe_buffer_pointer() == obs.data_ptr()
    from made.arrays import to_jax

    assert to_jax(obs, np.float32).unsafe_buffer_pointer() == obs.data_ptr()
    assert to_jax(obs[:, ::2]).shape == (4, 2, 4) and to_jax(flags).dtype == bool  # what DLPack cannot carry


def test_observe_keeps_copies():
    host = HostBonus(NoBonus(), *VECTOR, N)
    shared = vectors()
    host.reset(shared)
    step = host.observe(shared, np.zeros(N, int), np.zeros(N), shared, OFF, OFF)
    was = np.array(step.obs)
    shared[:] = 0
    assert np.array_equal(step.obs, was) and was.any()
