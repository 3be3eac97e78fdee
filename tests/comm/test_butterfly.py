"""The butterfly: its schedule as pure functions, its sums on threads against NumPy."""

import numpy as np
import pytest

from dask_ma import run_spmd
from dask_ma.comm import (
    ButterflyAverage,
    butterfly_allreduce,
    butterfly_depth,
    butterfly_partners,
    sibling,
)

SIZES = range(1, 18)
POWERS = [1, 2, 4, 8, 16, 32]
SHAPES = [(), (0,), (0, 3), (31,), (5, 13)]


def vector(rank, shape=(31,), dtype=np.float64):
    """Values of a rank; sums of floats among them depend on the order."""
    rng = np.random.default_rng([rank, *shape])
    scale = 10.0 ** rng.integers(-4, 5, shape)
    return np.asarray(rng.normal(size=shape) * scale, dtype=dtype)


def mixing_matrix(step, size):
    """Row k: with what weights rank k averages the ranks' values."""
    matrix = np.eye(size) / 2
    for rank in range(size):
        matrix[rank, butterfly_partners(rank, step, size).source] += 1 / 2
    return matrix


# The schedule -----------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_depth_is_the_logarithm_rounded_up(size):
    assert butterfly_depth(size) == int(np.ceil(np.log2(size)))


@pytest.mark.parametrize("size", SIZES)
def test_messages_sent_are_those_received(size):
    for step in range(10):
        partners = [butterfly_partners(rank, step, size) for rank in range(size)]
        for rank, (dest, source) in enumerate(partners):
            assert partners[dest].source == rank
            assert partners[source].dest == rank
            assert size == 1 or dest != rank


@pytest.mark.parametrize("size", SIZES)
def test_weights_are_doubly_stochastic(size):
    for step in range(10):
        matrix = mixing_matrix(step, size)
        np.testing.assert_array_equal(matrix.sum(axis=0), 1)
        np.testing.assert_array_equal(matrix.sum(axis=1), 1)


@pytest.mark.parametrize("size", POWERS)
@pytest.mark.parametrize("start", [0, 1, 7])
def test_a_round_of_steps_is_the_mean_over_all_ranks(size, start):
    total = np.eye(size)
    for step in range(start, start + butterfly_depth(size)):
        total = mixing_matrix(step, size) @ total
    np.testing.assert_array_equal(total, 1 / size)


@pytest.mark.parametrize("size", SIZES)
def test_after_a_round_everybody_has_heard_of_everybody(size):
    total = np.eye(size)
    for step in range(butterfly_depth(size)):
        total = mixing_matrix(step, size) @ total
    assert (total > 0).all()
    for step in range(40 * butterfly_depth(size)):
        total = mixing_matrix(step, size) @ total
    np.testing.assert_allclose(total, 1 / size, rtol=1e-6)


def test_partners_as_drawn_in_the_paper():
    """Figure 1c: four nodes, neighbours first."""
    first, second = (
        [butterfly_partners(rank, step, 4).dest for rank in range(4)]
        for step in range(2)
    )
    assert first == [1, 0, 3, 2]
    assert second == [2, 3, 0, 1]
    assert butterfly_partners(3, 2, 4) == butterfly_partners(3, 0, 4)


@pytest.mark.parametrize("size", SIZES)
def test_sibling_is_who_holds_the_same_average(size):
    for step in range(6):
        rows = [row.tobytes() for row in mixing_matrix(step, size)]
        for rank in range(size):
            same = [r for r in range(size) if r != rank and rows[r] == rows[rank]]
            other = sibling(rank, step, size)
            assert same == ([] if other is None else [other])


# One step ---------------------------------------------------------------------------


@pytest.mark.parametrize("per_node", [None, 1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_average_with_the_partner(run_ranks, size, per_node):
    n_steps = 7

    def program(group):
        array, after = vector(group.rank), []
        for step in range(n_steps):
            array = ButterflyAverage(group, array, step).finish()
            after.append(array)
        return after

    results = run_ranks(program, size, per_node)
    values = [vector(rank) for rank in range(size)]
    for step in range(n_steps):
        sources = [butterfly_partners(rank, step, size).source for rank in range(size)]
        values = [(values[r] + values[s]) / 2 for r, s in enumerate(sources)]
        for rank in range(size):
            assert results[rank][step].tobytes() == values[rank].tobytes()
            other = sibling(rank, step, size)
            if other is not None:
                assert values[rank].tobytes() == values[other].tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_average_is_a_new_array_of_the_same_type(run_ranks, dtype):
    def program(group):
        array = vector(group.rank, (5, 13), dtype)
        before = array.copy()
        average = ButterflyAverage(group, array, 0).finish()
        average += 1
        np.testing.assert_array_equal(array, before)
        return average

    for average in run_ranks(program, 4):
        assert (average.dtype, average.shape) == (dtype, (5, 13))


# Allreduce --------------------------------------------------------------------------


def sum_by_pairs(values):
    """The extra ranks first, then neighbours, then neighbouring sums."""
    n_core = 2 ** int(np.log2(len(values)))
    core = [
        values[r] + values[r + n_core] if r + n_core < len(values) else values[r]
        for r in range(n_core)
    ]
    while len(core) > 1:
        core = [a + b for a, b in zip(core[::2], core[1::2], strict=True)]
    return core[0]


@pytest.mark.parametrize("per_node", [None, 1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_allreduce_sums(run_ranks, size, per_node):
    cases = [(shape, dtype) for shape in SHAPES for dtype in (np.float32, np.float64)]

    def program(group):
        return [butterfly_allreduce(group, vector(group.rank, *case)) for case in cases]

    results = run_ranks(program, size, per_node)
    for which, case in enumerate(cases):
        expected = np.asarray(sum_by_pairs([vector(r, *case) for r in range(size)]))
        for result in results:
            assert result[which].dtype == case[1]
            assert result[which].shape == case[0]
            assert result[which].tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [1, 4, 5])
@pytest.mark.parametrize(("op", "reference"), [("max", np.max), ("min", np.min)])
def test_allreduce_of_extremes(run_ranks, size, op, reference):
    expected = reference([vector(rank) for rank in range(size)], axis=0)
    for result in run_ranks(
        lambda group: butterfly_allreduce(group, vector(group.rank), op), size
    ):
        np.testing.assert_array_equal(result, expected)


def test_allreduce_of_several_arrays(run_ranks):
    def program(group):
        return butterfly_allreduce(group, [np.ones(3), np.array(2), np.ones((2, 2))])

    for one, two, three in run_ranks(program, 3):
        np.testing.assert_array_equal(one, [3, 3, 3])
        assert two == 6
        np.testing.assert_array_equal(three, np.full((2, 2), 3))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_arrays_may_change_after_an_allreduce(run_ranks, size):
    """Both what went in and what came out."""

    def program(group):
        array, sums = np.ones(1000), []
        for _ in range(20):
            total = butterfly_allreduce(group, array)
            sums.append(total.copy())
            array += 1
            total[:] = -1
        return sums

    for sums in run_ranks(program, size):
        for number, total in enumerate(sums, start=1):
            np.testing.assert_array_equal(total, size * number)


def test_unknown_operation(run_ranks):
    with pytest.raises(ValueError, match="op must be one of"):
        run_ranks(lambda group: butterfly_allreduce(group, np.ones(2), "mean"), 2)


# Traffic ----------------------------------------------------------------------------


def bytes_sent(run_ranks, size, program):
    def counted(group):
        program(group)
        return group.counters.bytes_sent

    return run_ranks(counted, size, 1)


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_a_step_sends_one_of_log2_parts_of_an_allreduce(run_ranks, size):
    array = np.ones(1000)
    step = bytes_sent(
        run_ranks, size, lambda group: ButterflyAverage(group, array, 5).finish()
    )
    whole = bytes_sent(run_ranks, size, lambda group: butterfly_allreduce(group, array))
    assert step == [array.nbytes] * size
    assert whole == [butterfly_depth(size) * array.nbytes] * size


@pytest.mark.parametrize("size", [3, 5, 6, 7])
def test_ranks_beyond_a_power_of_two_send_one_array_each_way(run_ranks, size):
    array = np.ones(1000)
    whole = bytes_sent(run_ranks, size, lambda group: butterfly_allreduce(group, array))
    n_core = 2 ** (butterfly_depth(size) - 1)
    n_messages = n_core * (butterfly_depth(size) - 1) + 2 * (size - n_core)
    assert sum(whole) == n_messages * array.nbytes


# Clusters ---------------------------------------------------------------------------


def test_clusters_give_the_bits_of_threads(any_client, run_ranks):
    def program(group):
        import numpy as np

        from dask_ma.comm import ButterflyAverage, butterfly_allreduce

        array = np.random.default_rng(group.rank).normal(size=5000)
        for step in range(5):
            array = ButterflyAverage(group, array, step).finish()
        return array.tobytes(), butterfly_allreduce(group, array).tobytes()

    with any_client.as_current():
        for n_ranks in (3, 4, 6):
            there = run_spmd(program, n_ranks=n_ranks)
            assert there == run_ranks(program, n_ranks)
