"""HostBonus: names and spaces, what it refuses, observations that are no numbers, tensors in and out."""

import gymnasium
import jax
import numpy as np
import pytest
import torch
from contracts.settings import CASES, Drift, experience

from made.bonuses import MADE, FirstVisit, HashedCount, NoBonus, Normalized
from made.bonuses.rnd import RND
from made.core import Space, Spec, Transition, state_action_grid
from made.core.trees import digest, stack
from made.training.host.bonus import HostBonus

N = 3
TABLES = ("hoeffding", "inverse", "bernstein", "made-tabular", "made-geometric")  # over states that are never NaN
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
    host = HostBonus(FirstVisit(HashedCount(bits=8)), *DISCRETE, N)
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


def equal(a, b):
    return all(jax.tree.leaves(jax.tree.map(lambda x, y: np.allclose(x, y, rtol=1e-5, atol=1e-6), a, b)))


@pytest.mark.parametrize("name", [name for name in CASES if name not in (*TABLES, "made-counts")])
def test_reported_transitions_are_left_out_of_the_update_of_every_bonus(name):
    """An update with a step spoilt everywhere leaves the state of one that was never given this step."""
    bonus = CASES[name]()
    env, state, batch, _ = experience(bonus, Drift())
    spoilt = batch._replace(next_obs=batch.next_obs.at[2, :, 0].set(np.nan))
    rest = jax.tree.map(lambda x: np.delete(np.asarray(x), 2, axis=0), batch)
    hosts = [HostBonus(bonus, env.spec, n_envs=batch.reward.shape[1], on_bad="report", state=state) for _ in range(2)]
    told = [host.update(given) for host, given in zip(hosts, (spoilt, rest), strict=True)]
    assert told[0].pop("bad") == batch.reward.shape[1] and told[1].pop("bad") == 0
    assert equal(hosts[0].state, hosts[1].state) and equal(*told)


def test_reported_transitions_here_and_there_are_not_counted():
    """Every environment sees states of its own, each once; four of them are spoilt."""
    seen = np.arange(4 * N * 4, dtype=np.float32).reshape(4, N, 4)
    good = np.ones((4, N), bool)
    good[[0, 1, 1, 3], [0, 1, 2, 1]] = False
    spoilt = np.where(good[..., None], seen, np.nan).astype(np.float32)
    off = np.zeros((4, N), bool)
    batch = Transition(seen, np.zeros((4, N), int), np.zeros((4, N)), spoilt, off, off)
    host = HostBonus(HashedCount(), *CONTROL[:1], DISCRETE[1], N, on_bad="report")
    assert host.update(batch)["bad"] == 4
    assert float(host.state.counts.sum()) == good.sum() and float(host.state.counts.max()) == 1
    assert host.reward(batch).tolist() == good.astype(float).tolist()


def test_reported_transitions_do_not_enter_the_window_of_recent_counts():
    rows = np.arange(4 * N * 4, dtype=np.float32).reshape(4, N, 4) % 24
    spoilt = rows.copy()
    spoilt[2, :, 3] = np.inf
    off = np.zeros((4, N), bool)
    batch = Transition(spoilt, np.zeros((4, N), int), np.zeros((4, N)), rows, off, off)
    rest = jax.tree.map(lambda x: x[[0, 1, 3]], batch)
    hosts = [HostBonus(CASES["made-counts"](), *VECTOR, N, on_bad="report") for _ in range(2)]
    told = [host.update(given) for host, given in zip(hosts, (batch, rest), strict=True)]
    assert [one.pop("bad") for one in told] == [N, 0]
    assert equal(hosts[0].state, hosts[1].state) and equal(*told)


def test_the_returns_of_each_environment_go_on_past_its_reported_transitions():
    bonus = Normalized(HashedCount(power=0.0), of="return", gamma=0.5, n_envs=N)  # which pays 1 for everything
    seen = np.zeros((3, N, 4), np.float32)
    seen[[0, 1, 1], [0, 0, 2], 0] = np.nan
    off = np.zeros((3, N), bool)
    host = HostBonus(bonus, *VECTOR, N, on_bad="report")
    host.update(Transition(np.zeros_like(seen), np.zeros((3, N), int), np.zeros((3, N)), seen, off, off))
    assert host.state.sums.tolist() == [1.0, 1.75, 1.5]
    returns = [1, 1, 1.5, 1.75, 1, 1.5]
    assert np.isclose(float(host.state.paid.count), 6) and np.isclose(float(host.state.paid.mean), np.mean(returns))


def test_where_nothing_good_is_left_nothing_is_learnt():
    host = HostBonus(small_rnd(), *VECTOR, N, on_bad="report")
    host.reset(vectors())
    before = host.state
    nothing = host.observe(vectors(), np.zeros(N, int), np.zeros(N), np.full((N, 4), np.nan), OFF, OFF)
    assert host.reward(nothing).tolist() == [0, 0, 0] and host.bad == 3
    assert host.update(stack([nothing])) == {"bad": 3.0} and equal(before, host.state)


def test_a_reported_observation_does_not_enter_the_memory_of_the_episode():
    """Zeros are seen first after the observation that is NaN, and are new then."""
    host = HostBonus("first-visit", *VECTOR, N, on_bad="report")
    host.reset(np.ones((N, 4)))
    paid, obs = [], np.ones((N, 4))
    for after in (np.full((N, 4), np.nan), np.zeros((N, 4)), np.ones((N, 4)), np.zeros((N, 4))):
        paid.append(host.reward(host.observe(np.ones((N, 4)), *walk(host, obs)[1:3], after, OFF, OFF)).tolist())
    assert paid == [[0] * N, [1] * N, [0] * N, [0] * N]


HUGE = gymnasium.spaces.Box(-(2**60), 2**60, (2,), np.int64)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_whole_numbers_of_64_bits_are_refused_where_they_would_be_cut_off(kind):
    host, hashed = (HostBonus(name, HUGE, DISCRETE[1], N) for name in ("first-visit", "hashed"))
    small, cut = (np.full((N, 2), x) for x in (1, 1 + 2**32))
    rest = np.zeros(N, int), np.zeros(N)
    host.reset(small)
    told = r"go from 4294967297 to 4294967297, but int32 holds only -2147483648 to 2147483647\. .*obs\.view"
    for call in (
        lambda: host.reset(kind(cut)),
        lambda: host.observe(small, *rest, kind(cut), OFF, OFF),
        lambda: host.begin(kind(cut), ~OFF),
        lambda: hashed.update(Transition(*(x[None] for x in (kind(small), *rest, kind(cut), OFF, OFF)))),
    ):
        with pytest.raises(ValueError, match=told):
            call()
    whole = HostBonus("hashed", gymnasium.spaces.Discrete(2**40), DISCRETE[1], N)
    with pytest.raises(ValueError, match="but int32 holds only"):
        whole.reset(np.full(N, 1 + 2**32))
    narrow = HostBonus("hashed", gymnasium.spaces.Box(0, 255, (2,), np.uint8), DISCRETE[1], N)
    with pytest.raises(ValueError, match=r"go from 256 to 256, but uint8 holds only 0 to 255\. Give the space a wider"):
        narrow.reset(np.full((N, 2), 256))


@pytest.mark.parametrize("name", ["first-visit", "hashed", "rnd", "re3"])
def test_small_numbers_of_64_bits_are_those_of_32(name):
    paid = []
    for dtype in (np.int64, np.int32):
        host = HostBonus(name, gymnasium.spaces.Box(-9, 9, (2,), dtype), DISCRETE[1], N)
        first, after = (np.array(x, dtype) for x in ([[-5, 1]] * N, [[-5, 1], [2, 3], [-9, 9]]))
        host.reset(first)
        step = host.observe(first, np.zeros(N, dtype), np.zeros(N), after, OFF, OFF)
        host.update(stack([step]))
        paid.append(host.reward(step))
    assert np.array_equal(*paid)


def test_64_bits_are_hashed_where_jax_carries_them():
    with jax.enable_x64(True):
        whole = np.array([1, 1 + 2**32, 1 << 40, 1])
        fine = np.array([0.0, 1e-300, 1.0, -0.0])
        for numbers in (whole, whole.astype(np.uint64), fine):
            one, other, third, same = (digest(jax.numpy.asarray(x)).tolist() for x in numbers)
            assert one == same and one not in (other, third) and other != third


def test_errors_that_say_the_fix():
    with pytest.raises(ValueError, match=r"The bonus is the class RND, but an object is needed: pass RND\(\)"):
        HostBonus(RND, *VECTOR, N)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"The bonus is the function MADE\.\w+, .* pass MADE\.\w+\(\)"):
        HostBonus(MADE.hashed, *VECTOR, N)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be a Bonus or a name such as 'rnd', not a int"):
        HostBonus(3, *VECTOR, N)  # type: ignore[arg-type]
    host = HostBonus(small_rnd(), *VECTOR, N)
    host.reset(vectors())
    step = host.observe(*walk(host, vectors()))
    for call in (host.update, host.reward):
        with pytest.raises(
            ValueError, match=r"takes a Transition, not a list: join the steps with made.core.trees.stack"
        ):
            call([step, step])
        with pytest.raises(ValueError, match="takes a Transition, not a dict: build one"):
            call(step._asdict())
    with pytest.raises(ValueError, match=r"rewards have the shape \(3,\): pass made.core.trees.stack\(\[step\]\)"):
        host.update(step)


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
    from made.training.host.calls import to_jax

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
