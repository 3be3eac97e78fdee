"""The batches of a rank, pass after pass."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.utils import gen_batches, shuffle

from dask_ma.data import Block, Shard
from dask_ma.mpca.training._batches import Sampler, rows_of_batch


def make_shard(sizes=(23,), *, as_csr=False, weighted=True):
    """Row `r` holds ``r + 1`` and ``-r``, its label is ``10 r``, its weight `r`."""
    blocks, start = [], 0
    for size in sizes:
        rows = np.arange(start, start + size, dtype=float)
        X = np.column_stack([rows + 1, -rows])
        blocks.append(
            Block(
                sparse.csr_matrix(X) if as_csr else X,
                10 * rows,
                rows.copy() if weighted else None,
                len(blocks),
                start,
            )
        )
        start += size
    return Shard(blocks, 2, np.dtype(float))


def rows_of(batch):
    """Numbers of the rows of a batch; all that it holds belongs together."""
    X = batch.X.toarray() if sparse.issparse(batch.X) else batch.X
    rows = X[:, 0] - 1
    np.testing.assert_array_equal(X[:, 1], -rows)
    np.testing.assert_array_equal(batch.y, 10 * rows)
    if batch.sample_weight is not None:
        np.testing.assert_array_equal(batch.sample_weight, rows)
    return rows.astype(int).tolist()


def one_pass(sampler):
    """Rows of each batch of a pass."""
    batches = []
    while True:
        batch = sampler.next()
        batches.append(rows_of(batch))
        if batch.ends_pass:
            return batches


def seeded(seed=0):
    return np.random.RandomState(seed)


every_shuffle = pytest.mark.parametrize("seed", [0, None], ids=["shuffled", "not"])
every_shape = pytest.mark.parametrize("sizes", [(23,), (9, 1, 13), (1,) * 23])


@pytest.mark.pairs
@every_shuffle
@every_shape
@pytest.mark.parametrize("as_csr", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("batch_size", [1, 5, 22, 23, 24, 1000])
def test_a_pass_has_each_row_once(sizes, as_csr, batch_size, seed):
    shard = make_shard(sizes, as_csr=as_csr)
    random_state = None if seed is None else seeded(seed)
    sampler = Sampler(shard, batch_size, random_state)
    for _ in range(3):
        batches = one_pass(sampler)
        assert sorted(sum(batches, [])) == list(range(23))
        lengths = [len(batch) for batch in batches]
        full, rest = divmod(23, batch_size)
        assert lengths == [batch_size] * full + [rest] * (rest > 0)


@pytest.mark.pairs
@every_shuffle
@every_shape
@pytest.mark.parametrize(
    ("batch_size", "least_rows", "lengths"),
    [
        (11, 2, [11, 12]),
        (22, 2, [23]),
        (5, 3, [5, 5, 5, 5, 3]),
        (5, 4, [5, 5, 5, 8]),
        (7, 3, [7, 7, 9]),
        (1, 2, [1] * 21 + [2]),
        (64, 2, [23]),
    ],
)
def test_a_small_rest_goes_with_the_batch_before(
    sizes, seed, batch_size, least_rows, lengths
):
    random_state = None if seed is None else seeded(seed)
    sampler = Sampler(make_shard(sizes), batch_size, random_state, least_rows)
    for _ in range(3):
        batches = one_pass(sampler)
        assert sorted(sum(batches, [])) == list(range(23))
        assert [len(batch) for batch in batches] == lengths
    # One that goes on in the middle of a pass knows what is left.
    sampler.next()
    random_state = None if seed is None else seeded(9)
    other = Sampler(make_shard(sizes), batch_size, random_state, least_rows)
    other.load_state_dict(sampler.state_dict())
    assert one_pass(other) == one_pass(sampler)


def test_a_single_row_is_a_batch():
    sampler = Sampler(make_shard((1,)), 5, None, 2)
    assert one_pass(sampler) == one_pass(sampler) == [[0]]


@pytest.mark.parametrize("n_rows", [20, 23])
@pytest.mark.parametrize("seed", [0, 7])
def test_one_block_comes_in_the_order_of_sklearn(n_rows, seed):
    sampler = Sampler(make_shard((n_rows,)), 5, seeded(seed))
    random_state, order = seeded(seed), np.arange(n_rows)
    for _ in range(4):
        order = shuffle(order, random_state=random_state)
        expected = [order[rows].tolist() for rows in gen_batches(n_rows, 5)]
        assert one_pass(sampler) == expected


@pytest.mark.parametrize("sizes", [(23,), (9, 1, 13)])
def test_the_order_is_kept_without_shuffling(sizes):
    sampler = Sampler(make_shard(sizes), 10, None)
    for _ in range(2):
        assert sum(one_pass(sampler), []) == list(range(23))


def test_rows_in_order_are_not_copied():
    shard = make_shard((23,))
    batch = Sampler(shard, 10, None).next()
    assert np.shares_memory(batch.X, shard.blocks[0].X)


def test_blocks_and_their_rows_are_shuffled():
    sizes, orders, inside = (6, 6, 6), set(), set()
    sampler = Sampler(make_shard(sizes), 6, seeded())
    for _ in range(20):
        batches = one_pass(sampler)
        for batch in batches:  # here a block each
            assert len({row // 6 for row in batch}) == 1
            inside.add(tuple(row % 6 for row in batch))
        orders.add(tuple(batch[0] // 6 for batch in batches))
    assert len(orders) > 3
    assert len(inside) > 50


def test_passes_and_seeds_differ():
    first, second = (
        Sampler(make_shard(), 23, seeded(0)),
        Sampler(make_shard(), 23, seeded(1)),
    )
    passes = [tuple(one_pass(s)[0]) for s in (first, second) for _ in range(2)]
    assert len(set(passes)) == 4


@pytest.mark.parametrize("as_csr", [False, True], ids=["dense", "csr"])
def test_without_weights(as_csr):
    sampler = Sampler(make_shard((9, 14), as_csr=as_csr, weighted=False), 10, seeded())
    for _ in range(6):
        batch = sampler.next()
        rows_of(batch)
        assert batch.sample_weight is None
        assert sparse.issparse(batch.X) == as_csr


@pytest.mark.pairs
@every_shuffle
@pytest.mark.parametrize("sizes", [(23,), (9, 1, 13)])
@pytest.mark.parametrize("n_before", [0, 2, 5, 11])
def test_another_sampler_goes_on(sizes, n_before, seed):
    """Also in the middle of a pass, and after numbers of another kind."""

    def make(seed):
        return None if seed is None else seeded(seed)

    random_state = make(seed)
    sampler = Sampler(make_shard(sizes), 5, random_state)
    for _ in range(n_before):
        sampler.next()
    if random_state is not None:
        random_state.normal()  # leaves a second one behind
    state = sampler.state_dict()
    other_state = make(None if seed is None else 99)
    other = Sampler(make_shard(sizes), 5, other_state)
    other.next()
    other.load_state_dict(state)
    for _ in range(12):
        one, two = sampler.next(), other.next()
        assert rows_of(one) == rows_of(two)
        assert one.ends_pass == two.ends_pass
    if random_state is not None:
        assert random_state.normal() == other_state.normal()


@every_shuffle
def test_a_state_stays_as_it_was(seed):
    """It is kept while both samplers go on."""
    random_state = None if seed is None else seeded(seed)
    sampler = Sampler(make_shard((9, 14)), 5, random_state)
    sampler.next()
    state = sampler.state_dict()
    assert all(isinstance(value, np.ndarray) for value in state.values())
    kept = {name: value.copy() for name, value in state.items()}
    for _ in range(12):
        sampler.next()
    sampler.load_state_dict(state)
    for _ in range(12):
        sampler.next()
    np.testing.assert_equal(state, kept)


@pytest.mark.parametrize(
    ("sizes", "n_batches"), [((4, 6), 3), ((7,), 7), ((9,), 1), ((23,), 6)]
)
def test_passes_in_batches_of_nearly_equal_size(sizes, n_batches):
    sampler = Sampler(make_shard(sizes), 2, seeded(), n_batches=n_batches)
    for _ in range(2):
        batches = one_pass(sampler)
        lengths = [len(rows) for rows in batches]
        assert len(batches) == n_batches and max(lengths) - min(lengths) <= 1
        assert sorted(sum(batches, [])) == list(range(sum(sizes)))
    sampler.next()
    other = Sampler(make_shard(sizes), 2, seeded(1), n_batches=n_batches)
    other.load_state_dict(sampler.state_dict())
    assert one_pass(other) == one_pass(sampler)


def test_rows_of_a_batch_by_default():
    assert rows_of_batch("auto", 4) == 50
    assert rows_of_batch("auto", 4, together=True) == 40
    assert rows_of_batch("auto", 99, together=True) == 16
    assert rows_of_batch(7, 4, together=True) == 7


@pytest.mark.parametrize(
    ("n_ranks", "filling", "n_rows", "expected"),
    [
        (4, 80.7, 10**6, 80),
        (4, 999.0, 10**6, 100),
        (3, 999.0, 10**6, 132),
        (4, 30.0, 10**6, 50),
        (2, 999.0, 4_000, 125),  # an epoch has 16 steps on each rank
        (4, 999.0, 1_000, 50),
        (1, 999.0, 1_000, 200),
    ],
)
def test_rows_that_use_few_weights_have_twice_their_share(
    n_ranks, filling, n_rows, expected
):
    sizes = {"filling": filling, "n_rows": n_rows}
    assert rows_of_batch("auto", n_ranks, **sizes) == expected
    assert rows_of_batch(7, n_ranks, **sizes) == 7
    together = rows_of_batch("auto", n_ranks, together=True, **sizes)
    assert together == 160 // n_ranks
