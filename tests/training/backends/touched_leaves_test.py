"""Programs that are handed only what they touch of a long list of arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.training.backends.control_programs import ReadOnlyProgram, UpdatingProgram, touched_leaves


def arrays(n):
    return [jnp.full(3, float(i)) for i in range(n)]


def test_what_is_only_handed_through_is_not_touched():
    assert touched_leaves(lambda x: [x[0] * 2, x[1], x[2]], arrays(3), changes=True) == ([0], [])
    assert touched_leaves(lambda x: x[0] @ x[2], arrays(3)) == ([], [0, 2])


def test_arrays_that_change_places_are_read_and_changed():
    swapped = UpdatingProgram(lambda x: [x[1], x[0], x[2]])
    assert touched_leaves(lambda x: [x[1], x[0], x[2]], arrays(3), changes=True).changed == [0, 1]
    assert [float(x[0]) for x in swapped(arrays(3))] == [1.0, 0.0, 2.0]


def test_a_changing_program_donates_what_it_changes_and_leaves_the_rest_alone():
    program, before = UpdatingProgram(lambda x, by: [x[0], x[1] + by * x[2], x[2]]), arrays(3)
    after = program(before, 10.0)
    assert [float(x[0]) for x in after] == [0.0, 21.0, 2.0]
    assert after[0] is before[0] and after[2] is before[2]
    assert before[1].is_deleted() and not before[2].is_deleted()
    assert [float(x[0]) for x in program(after, 1.0)] == [0.0, 23.0, 2.0]


def test_a_reading_program_never_sees_what_it_does_not_read():
    seen = []

    def call(x, more):
        seen.append([one is None for one in x])
        return x[1] + more, x[0] * 1.0

    program = ReadOnlyProgram(call)
    total, same = program(arrays(4), jnp.ones(3))
    assert seen[-1] == [False, False, True, True]
    np.testing.assert_array_equal(total, 2.0)
    np.testing.assert_array_equal(same, 0.0)
    assert program(arrays(4), jnp.ones((2, 3)))[0].shape == (2, 3)  # other shapes of what else is given


def test_a_program_that_changes_the_number_of_arrays_is_refused():
    with pytest.raises(ValueError):
        UpdatingProgram(lambda x: x[:1])(arrays(2))


def test_a_program_that_comes_to_change_others_says_so():
    program = UpdatingProgram(lambda x, by: [x[0] + by.sum(), by if by.ndim else x[1]])
    first = program(arrays(2), jnp.ones(()))
    with pytest.raises(ValueError, match="changes other arrays than when it was first called"):
        program(first, jnp.ones(3))


def test_keys_are_arrays_too():
    program = UpdatingProgram(lambda x: [x[0], jax.random.fold_in(x[1], 1)])
    after = program([jnp.ones(2), jax.random.key(0)])
    assert jnp.array_equal(jax.random.key_data(after[1]), jax.random.key_data(jax.random.fold_in(jax.random.key(0), 1)))
