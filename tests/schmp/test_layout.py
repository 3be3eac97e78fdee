"""Rows into columns: against vstack and slices, whoever holds which rows."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma import SchMPLasso, run_spmd
from dask_ma.data import Block, Shard
from dask_ma.layouts import _columns
from dask_ma.layouts._columns import Extent, choose_layout, to_columns
from dask_ma.schmp.l1 import _agent

# Rows of the blocks of each rank; some ranks have none.
CASES = {
    "one rank": [[4, 3]],
    "one block each": [[5], [2]],
    "a rank without rows": [[3, 1], []],
    "unequal": [[3], [], [2, 4, 1], [1], [6, 2]],
}
every_case = pytest.mark.parametrize("sizes", CASES.values(), ids=CASES)
every_kind = pytest.mark.parametrize("kind", ["dense", "csr_matrix", "csr_array"])


def make_rows(n_rows, n_features, kind, dtype=np.float64):
    """Rows of which about a third is not 0."""
    rng = np.random.default_rng([n_rows, n_features])
    X = rng.normal(size=(n_rows, n_features)) * (rng.random((n_rows, n_features)) < 0.3)
    X = X.astype(dtype)
    return X if kind == "dense" else getattr(sparse, kind)(X)


def make_shards(sizes, X, y=None, weights=None):
    """Shards of consecutive rows of X, in blocks of the given sizes."""
    shards, start = [], 0
    for rank_sizes in sizes:
        blocks = []
        for size in rank_sizes:
            rows = slice(start, start + size)
            parts = [None if a is None else a[rows] for a in (X, y, weights)]
            blocks.append(Block(*parts, len(blocks), start))
            start += size
        shards.append(make_shard(blocks, X))
    return shards


def make_shard(blocks, like):
    """A shard of blocks; without any it does not know that the others are sparse."""
    return Shard(blocks, like.shape[1], like.dtype)


def exchange(run_ranks, shards, per_node=None):
    """Column shards of all ranks."""
    return run_ranks(lambda g: to_columns(g, shards[g.rank]), len(shards), per_node)


def check(columns, X):
    """The columns of all ranks are those of X, in the promised form."""
    n_features = X.shape[1]
    for rank, shard in enumerate(columns):
        bounds = [n_features * q // len(columns) for q in (rank, rank + 1)]
        assert [shard.start, shard.stop] == bounds
        assert shard.n_features == n_features
        expected = X[:, slice(*bounds)]
        assert (shard.X.dtype, shard.X.shape) == (X.dtype, expected.shape)
        if not sparse.issparse(X):
            assert shard.X.flags.f_contiguous and shard.X.flags.writeable
            np.testing.assert_array_equal(shard.X, expected)
            continue
        reference = expected.tocsc()
        reference.sort_indices()
        assert isinstance(shard.X, sparse.csc_array)
        assert shard.X.has_canonical_format
        for name in ("data", "indices", "indptr"):
            got = getattr(shard.X, name)
            assert got.dtype == (X.dtype if name == "data" else np.int32)
            np.testing.assert_array_equal(got, getattr(reference, name))


@pytest.mark.pairs
@every_case
@every_kind
@pytest.mark.parametrize("n_features", [0, 3, 23])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_columns_of_all_rows(run_ranks, sizes, kind, n_features, dtype):
    X = make_rows(sum(map(sum, sizes)), n_features, kind, dtype)
    columns = exchange(run_ranks, make_shards(sizes, X), per_node=2)
    check(columns, X)
    assert all(c.y is None and c.sample_weight is None for c in columns)


@every_case
@pytest.mark.parametrize("kind", ["dense", "csr_array"])
@pytest.mark.parametrize("dtype", [np.float64, np.intp])
def test_labels_and_weights_of_all_rows(run_ranks, sizes, kind, dtype):
    n_rows = sum(map(sum, sizes))
    X, y = make_rows(n_rows, 7, kind), np.arange(n_rows).astype(dtype)
    weights = np.linspace(0.5, 2, n_rows, dtype=np.float32)
    columns = exchange(run_ranks, make_shards(sizes, X, y, weights))
    check(columns, X)
    for shard in columns:
        assert (shard.y.dtype, shard.sample_weight.dtype) == (dtype, np.float32)
        np.testing.assert_array_equal(shard.y, y)
        np.testing.assert_array_equal(shard.sample_weight, weights)


def test_rows_without_weights_have_weight_one(run_ranks):
    X = make_rows(6, 4, "dense")
    shards = make_shards([[1, 1], [2], [2]], X, weights=np.full(6, 3.0))
    shards[0].blocks[1] = shards[0].blocks[1]._replace(sample_weight=None)
    shards[2].blocks[0] = shards[2].blocks[0]._replace(sample_weight=None)
    for shard in exchange(run_ranks, shards):
        np.testing.assert_array_equal(shard.sample_weight, [3, 1, 3, 3, 1, 1])


@pytest.mark.parametrize("limit", [0, 500, 1200])
@every_kind
def test_large_blocks_go_in_parts(run_ranks, configured, monkeypatch, kind, limit):
    sizes = [[40, 2], [], [9]]
    X = make_rows(51, 23, kind)
    shards = make_shards(sizes, X)
    travelled = []

    def split(chunk, bounds):
        travelled.append(_columns._n_bytes(chunk.X[chunk.start : chunk.stop]))
        return _split(chunk, bounds)

    _split = _columns._split
    monkeypatch.setattr(_columns, "_split", split)
    check(exchange(run_ranks, shards), X)
    whole, n_whole = max(travelled), len(travelled)
    travelled.clear()
    with configured({"dask-ma.comm.push-buffer": limit}):
        check(exchange(run_ranks, shards), X)
    if kind == "dense":  # whole blocks, of which a rank gets views
        assert n_whole == 3
    else:  # half of them, as they are there twice
        assert whole < 0.7 * _columns._n_bytes(X[:40])
    if limit:
        # Sparse rows differ in size, so that a chunk is about as large as it may be.
        assert max(travelled) < (1.5 * limit if kind != "dense" else limit + 1) < whole
    else:
        assert len(travelled) == 51


def test_long_blocks_are_written_in_tiles(run_ranks, monkeypatch):
    monkeypatch.setattr(_columns, "_TILE", 4)
    X = make_rows(21, 5, "dense")
    check(exchange(run_ranks, make_shards([[9], [8, 4]], X)), X)


@every_kind
def test_shards_are_left_alone_and_results_are_new(run_ranks, kind):
    X = make_rows(8, 6, kind)
    shards, before = make_shards([[3, 2], [3]], X), X.copy()
    for shard in exchange(run_ranks, shards):
        values = shard.X.data if sparse.issparse(shard.X) else shard.X
        values[...] = np.nan
    blocks = [block.X for shard in shards for block in shard.blocks]
    stack = sparse.vstack if kind != "dense" else np.vstack
    assert abs(stack(blocks) - before).max() == 0


def test_sparse_rows_in_any_form(run_ranks):
    """Columns in any order, named twice, stored zeros, 64-bit indices."""
    parts = [1.0, 2.0, 3.0, 0.0, 4.0], np.int64([4, 1, 4, 0, 4]), np.int64([0, 3, 3, 5])
    X = sparse.csr_matrix((3, 5))
    X.data, X.indices, X.indptr = map(np.asarray, parts)
    plain = make_rows(3, 5, "csr_matrix")
    shards = [make_shard([Block(b, None, None, 0, 0)], b) for b in (X, plain)]
    columns = exchange(run_ranks, shards)
    assert all(c.X.has_canonical_format for c in columns)
    got = np.hstack([c.X.toarray() for c in columns])
    first = [[0, 2, 0, 0, 4], [0, 0, 0, 0, 0], [0, 0, 0, 0, 4]]
    np.testing.assert_array_equal(got, np.vstack([first, plain.toarray()]))
    assert sum(c.X.nnz for c in columns) == 4 + plain.nnz  # the stored zero stays
    assert all(c.X.indices.dtype == np.int32 for c in columns)
    assert X.nnz == 5  # and the rows are as they were


def test_shards_of_several_dtypes(run_ranks):
    X = make_rows(4, 5, "dense", np.float32)
    single, double, empty = make_shards([[2], [2], []], X)
    double = make_shard([double.blocks[0]._replace(X=X[2:].astype(np.float64))], X)
    double.dtype, empty.dtype = np.dtype(np.float64), np.dtype(np.longdouble)
    check(exchange(run_ranks, [single, double, empty]), X.astype(np.float64))


def test_no_rows_at_all(run_ranks):
    shards = make_shards([[], [], []], make_rows(0, 5, "dense", np.float32))
    check(exchange(run_ranks, shards), np.empty((0, 5), dtype=np.float32))


@pytest.mark.parametrize("cluster", ["process", "wide"])
@pytest.mark.parametrize("kind", ["dense", "csr_matrix"])
def test_on_a_cluster(request, configured, cluster, kind):
    sizes = CASES["unequal"]
    X = make_rows(19, 23, kind)
    shards = make_shards(sizes, X, np.arange(19), np.ones(19))

    def program(group, shards):
        from dask_ma.layouts._columns import to_columns

        columns = to_columns(group, shards[group.rank])
        return tuple(columns), group.counters.bytes_received

    client = request.getfixturevalue(f"{cluster}_client")
    with configured({"dask-ma.comm.push-buffer": 1000}, client):
        results = run_spmd(program, shards, client=client, n_ranks=5)
    check([_columns.ColumnShard(*columns) for columns, _ in results], X)
    for (_, y, weights, *_), n_received in results:
        np.testing.assert_array_equal(y, np.arange(19))
        np.testing.assert_array_equal(weights, np.ones(19))
        # Rather less than all of X, and the labels and weights.
        assert 0 < n_received < 19 * 23 * 8


# Errors -----------------------------------------------------------------------------


def test_dense_and_sparse_ranks(run_ranks):
    shards = [
        make_shards([[4]], make_rows(4, 3, kind))[0] for kind in ("dense", "csr_array")
    ]
    empty = make_shards([[]], make_rows(0, 3, "dense"))
    with pytest.raises(TypeError, match="dense on rank 1 and sparse on rank 2"):
        exchange(run_ranks, empty + shards)


def test_different_columns(run_ranks):
    shards = [make_shards([[4]], make_rows(4, n, "dense"))[0] for n in (3, 5)]
    with pytest.raises(ValueError, match=r"numbers are \[3, 5\]"):
        exchange(run_ranks, shards)


@pytest.mark.parametrize("sizes", [[[2], [3]], [[2, 3]]])
def test_labels_of_some_rows(run_ranks, sizes):
    shards = make_shards(sizes, make_rows(5, 3, "dense"), np.arange(5))
    shards[-1].blocks[-1] = shards[-1].blocks[-1]._replace(y=None)
    with pytest.raises(ValueError, match="2 of 5 rows have labels"):
        exchange(run_ranks, shards)


# Choices ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_rows", "n_stored", "expected"),
    [
        (100, 100, np.int32),
        (2**31 - 1, 2**31 - 1, np.int32),
        (100, 2**31, np.int64),
        (2**31, 100, np.int64),
    ],
)
def test_indices_are_as_small_as_they_may_be(n_rows, n_stored, expected):
    assert _columns._index_dtype(n_rows, n_stored) is expected


@pytest.mark.parametrize(
    ("extent", "n_ranks", "n_rounds", "bandwidth", "expected"),
    [
        (Extent(30, 5000, 150_000), 4, 10, 640e6, "columns"),
        (Extent(30, 5000, 150_000), 1, 10, 640e6, "rows"),  # nobody to share with
        (Extent(500, 5000, 2_500_000), 4, 10, 640e6, "rows"),  # sending X costs more
        # but not than many rounds
        (Extent(500, 5000, 2_500_000), 4, 200, 640e6, "columns"),
        (Extent(30, 20, 600), 4, 100, 640e6, "rows"),  # more rows than columns
        # hardly anything to send
        (Extent(500, 5000, 9000, 8, True), 4, 10, 640e6, "columns"),
        (Extent(30, 5000, 150_000), 4, 0, 640e6, "rows"),  # no gradients
        # On a fast network many sparse rows cost more to lay out than to send.
        (Extent(10**5, 10**6, 3 * 10**7, 8, True), 4, 10, 640e6, "rows"),
        (Extent(10**5, 10**6, 3 * 10**7, 8, True), 4, 20, 12e6, "columns"),
        # Few are laid out by columns in any case.
        (Extent(10**5, 10**6, 2 * 10**7, 8, True), 4, 10, 640e6, "columns"),
        # In float32 X is half of the bytes; gradients are not.
        (Extent(60, 5000, 300_000, 4), 4, 10, 12e6, "columns"),
        (Extent(60, 5000, 300_000, 8), 4, 10, 12e6, "rows"),
    ],
)
def test_choice_of_the_layout(extent, n_ranks, n_rounds, bandwidth, expected):
    assert choose_layout(extent, n_ranks, n_rounds, bandwidth) == expected


def test_the_choice_knows_the_bandwidth_of_the_configuration(configured, monkeypatch):
    """Read by the client, and the same on all ranks, also on one without rows."""
    X = sparse.random_array((60, 5000), density=0.3, random_state=0, format="csr")
    y = np.asarray(X[:, :1].sum(axis=1)).ravel()
    chosen = []

    def choose(*args):
        chosen.append(choose_layout(*args))
        return chosen[-1]

    monkeypatch.setattr(_agent, "choose_layout", choose)
    for bandwidth, layout in [("64 GB", "columns"), ("1 MB", "rows")]:
        with configured({"dask-ma.comm.link-bandwidth": bandwidth}):
            SchMPLasso(0.1, n_ranks=4).fit(X, y)
            SchMPLasso(0.1).path(X, y, alphas=[0.1])
        assert chosen[:4] == [layout] * 4
        chosen.clear()
