"""A pass has every row of a rank once, in as many steps as asked for."""

import numpy as np
import pytest
from scipy import sparse
from traced import traced

from dask_ma.data import Block, Shard
from dask_ma.supervised import _batches, pass_batches


def shard(sizes, *, is_sparse=False, weighted=True):
    """Blocks of the given sizes; column 0 numbers the rows."""
    blocks, start = [], 0
    for index, size in enumerate(sizes):
        numbers = np.arange(start, start + size, dtype=float)
        X = np.column_stack([numbers, numbers % 3])
        X = sparse.csr_array(X) if is_sparse else X
        blocks.append(
            Block(
                X, numbers.astype(int) % 2, numbers if weighted else None, index, start
            )
        )
        start += size
    return Shard(blocks, 2, np.dtype(np.float64))


def numbers(piece):
    X = piece.X.toarray() if sparse.issparse(piece.X) else piece.X
    return X[:, 0].astype(int).tolist()


@pytest.fixture(params=[10**9, 240, 1], ids=["whole", "ten rows", "one row"])
def chunks(request, monkeypatch):
    """Rows are picked some at a time."""
    monkeypatch.setattr(_batches, "_CHUNK_BYTES", request.param)


@pytest.mark.pairs
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("sizes", [(23,), (7, 1, 12, 3), (), (1,)])
@pytest.mark.parametrize("n_steps", [1, 2, 5, 23, 40])
def test_every_row_once(chunks, sizes, n_steps, is_sparse, shuffle):
    rng = np.random.default_rng(0) if shuffle else None
    rows = shard(sizes, is_sparse=is_sparse)
    batches = list(pass_batches(rows, n_steps, rng, n_problems=1))
    assert len(batches) == n_steps
    counts = [sum(piece.n_rows for piece in batch) for batch in batches]
    assert max(counts) - min(counts) <= 1
    order = [i for batch in batches for piece in batch for i in numbers(piece)]
    assert sorted(order) == list(range(sum(sizes)))
    if not shuffle:
        assert order == list(range(sum(sizes)))
    for batch in batches:
        for piece in batch:
            found = np.array(numbers(piece))
            assert piece.n_rows > 0
            np.testing.assert_array_equal(piece.sample_weight, found)
            np.testing.assert_array_equal(piece.rows, found)
            np.testing.assert_array_equal(piece.y[:, 0], 2 * (found % 2) - 1)


def test_an_order_does_not_depend_on_how_rows_are_picked(monkeypatch):
    orders = []
    for size in (10**9, 240):
        monkeypatch.setattr(_batches, "_CHUNK_BYTES", size)
        batches = pass_batches(shard((40, 30)), 7, np.random.default_rng(3))
        orders.append([i for b in batches for piece in b for i in numbers(piece)])
    assert orders[0] == orders[1]


@pytest.mark.parametrize("sizes", [(60,), (25, 3, 32)])
@pytest.mark.parametrize("nbytes, period, every", [(1, 4, 4), (240, 7, 7), (240, 1, 2)])
def test_rows_are_picked_while_the_caller_waits(
    monkeypatch, sizes, nbytes, period, every
):
    """None before the first batch of a period, unless these are many short ones."""
    picked = []
    pick = _batches._chunk

    def noted(*args):
        picked.append(args[2] - args[1])
        return pick(*args)

    monkeypatch.setattr(_batches, "_CHUNK_BYTES", nbytes)
    monkeypatch.setattr(_batches, "_chunk", noted)
    rng, given = np.random.default_rng(0), 0
    batches = pass_batches(shard(sizes), 20, rng, period=period)
    for number, batch in enumerate(batches):
        if number % every == 0:
            assert sum(picked) > given
        given += sum(piece.n_rows for piece in batch)
        if (number + 1) % every == 0:
            assert sum(picked) == given
    assert given == 60


def test_blocks_are_shuffled_too():
    first = set()
    for seed in range(20):
        batches = pass_batches(shard((5, 5, 5)), 3, np.random.default_rng(seed))
        first.add(numbers(next(batches)[0])[0] // 5)
    assert first == {0, 1, 2}


def test_rows_without_weights_and_many_classes():
    (batch,) = pass_batches(shard((6,), weighted=False), 1, None, n_problems=3)
    assert batch[0].sample_weight is None
    assert batch[0].y.shape == (6, 3)
    np.testing.assert_array_equal(batch[0].y.argmax(axis=1), [0, 1] * 3)


def test_rows_in_order_are_not_copied():
    rows = shard((40,), is_sparse=True)
    batches = list(pass_batches(rows, 5, None))
    assert all(np.shares_memory(b[0].X.data, rows.blocks[0].X.data) for b in batches)


def test_fewer_rows_at_a_time():
    """The batches are the same, and little else is there; no fewer than a batch."""
    X = np.random.default_rng(0).normal(size=(2000, 1000))
    rows = Shard([Block(X, None, None, 0, 0)], 1000, X.dtype)

    def go_over(n_steps, **options):
        total = []
        with traced() as memory:
            for pieces in pass_batches(
                rows, n_steps, np.random.default_rng(1), **options
            ):
                total.append(sum(float(piece.X[:, 0].sum()) for piece in pieces))
                n_pieces.append(len(pieces))
                del pieces
        return total, memory.peak

    n_pieces = []
    expected, most = go_over(100)
    found, peak = go_over(100, chunk_bytes=2**20)
    np.testing.assert_allclose(found, expected)
    assert peak < 2.5 * 2**20 < 4 * 2**20 < most
    n_pieces.clear()
    go_over(10, chunk_bytes=2**10)
    assert n_pieces == [1] * 10
