"""Parts that take turns, in one thread or in several: each in its order, and none goes on after one has failed."""

import threading
import time

import pytest

from made.training.backends.control_tasks import in_threads


@pytest.mark.parametrize("threads", [False, True])
def test_every_part_has_its_turns_in_order(threads):
    had = []
    in_threads(lambda part, i: had.append((part, i, threading.get_ident())), 3, 20, threads)
    assert len(had) == 60
    for part in range(3):
        assert [i for who, i, _ in had if who == part] == list(range(20))
    # A part stays in its thread, apart from the caller's, or all are in the caller's.
    homes = {who: thread for who, _, thread in had}
    assert all(homes[who] == thread for who, _, thread in had)
    assert (threading.get_ident() in homes.values()) != threads


def test_parts_do_not_wait_for_each_other():
    """The second has all its turns while the first is in the midst of one."""
    done = threading.Event()

    def turn(part, i):
        if part == 0:
            assert done.wait(3600), "the other part waits for this one"
        elif i == 9:
            done.set()

    in_threads(turn, 2, 10, threads=True)


@pytest.mark.parametrize("threads", [False, True])
def test_where_one_fails_the_others_end_and_its_error_is_raised(threads):
    had = [0, 0]

    def turn(part, i):
        had[part] += 1
        time.sleep(0.001)
        if part == 0 and i == 3:
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        in_threads(turn, 2, 100_000, threads)
    assert had[0] == 4 and had[1] < 100_000
