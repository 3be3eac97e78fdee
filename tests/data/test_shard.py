"""Shards built from pieces that are in this process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sparse

import dask_ma
from dask_ma.data import _shard, build_shard, partition
from dask_ma.data._spec import pack_pieces


def arguments(*blocks, n_features=None, dtype=float):
    """Arguments of a shard that owns whole blocks, each an (X, y, weights) tuple."""
    pieces, first = [], 0
    for index, block in enumerate(blocks):
        source = tuple(block) + (None,) * (3 - len(block))
        rows = source[0].shape[0]
        pieces.append((source, 0, rows, rows, index, first))
        first += rows
    width = blocks[0][0].shape[1] if n_features is None else n_features
    return {
        **pack_pieces(pieces),
        "aligned": None,
        "n_features": width,
        "dtype": np.dtype(dtype),
    }


def random_block(rows, columns=3, dtype=float, seed=0):
    """A dense block and its labels."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(rows, columns)).astype(dtype)
    return X, generator.integers(0, 2, size=rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_right_blocks_are_not_copied(dtype):
    blocks = [random_block(4, dtype=dtype), random_block(5, dtype=dtype)]
    shard = build_shard(arguments(*blocks))
    assert shard.dtype == dtype
    assert (shard.n_rows, shard.n_features, shard.is_sparse) == (9, 3, False)
    for block, (X, y) in zip(shard.blocks, blocks, strict=True):
        assert block.X is X
        assert np.shares_memory(block.y, y)
    assert [block.start for block in shard.blocks] == [0, 4]
    assert shard.nbytes == 9 * 3 * np.dtype(dtype).itemsize + 9 * 8


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csr_matrix])
def test_right_sparse_blocks_are_not_copied(kind):
    X, y = random_block(4)
    X = kind(X)
    shard = build_shard(arguments((X, y)))
    assert shard.is_sparse
    assert np.shares_memory(shard.blocks[0].X.data, X.data)
    assert isinstance(shard.blocks[0].X, kind)


def at_odd_bytes(array):
    """The same values in memory where a message could have put them."""
    buffer = np.empty(array.nbytes + 64, dtype=np.uint8)
    start = 1 + -buffer.ctypes.data % 64
    moved = buffer[start : start + array.nbytes].view(array.dtype)
    moved = moved.reshape(array.shape)
    moved[...] = array
    assert not moved.flags.aligned
    return moved


def test_blocks_at_odd_bytes_are_copied():
    X, y = random_block(20)
    found = build_shard(arguments((at_odd_bytes(X), y))).blocks[0].X
    assert found.flags.aligned
    np.testing.assert_array_equal(found, X)


def test_sparse_blocks_at_odd_bytes_are_copied():
    X, y = random_block(20)
    X = sp.csr_array(X)
    moved = sp.csr_array(X.shape)
    moved.data, moved.indices, moved.indptr = map(
        at_odd_bytes, (X.data, X.indices, X.indptr)
    )
    found = build_shard(arguments((moved, y))).blocks[0].X
    assert all(p.flags.aligned for p in (found.data, found.indices, found.indptr))
    np.testing.assert_array_equal(found.toarray(), X.toarray())


def test_slices_are_views():
    X, y = random_block(10)
    spec = arguments((X, y))
    spec.update(pack_pieces([(spec["sources"][0], 3, 7, 10, 0, 3)]))
    [block] = build_shard(spec).blocks
    assert np.shares_memory(block.X, X)
    np.testing.assert_array_equal(block.X, X[3:7])
    np.testing.assert_array_equal(block.y, y[3:7])
    assert block.start == 3


def dealt(X, y, sample_weight=None):
    """Arguments of a shard whose rows have come from three places of the input."""
    spec = arguments((X, y, sample_weight))
    source, n_rows = spec["sources"][0], X.shape[0]
    pieces = [
        (source, 0, 2, n_rows, 5, 40),
        (source, 2, 7, n_rows, 5, 10),
        (source, 7, 10, n_rows, 5, 15),
    ]
    return {**spec, **pack_pieces(pieces)}


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("dtype", [np.float64, np.int8])
def test_rows_that_were_dealt_are_looked_at_once(convert, dtype, monkeypatch):
    X, y = random_block(10)
    X, weights = convert((10 * X).astype(dtype)), np.arange(1.0, 11.0)
    looks = []
    check = _shard.check_finite
    monkeypatch.setattr(_shard, "check_finite", lambda *a: looks.append(a) or check(*a))
    apart = build_shard(dealt(X, y, weights)).blocks
    assert len(looks) == 2  # at X and y
    assert [(b.start, b.index, b.X.shape[0]) for b in apart] == [
        (40, 5, 2),
        (10, 5, 5),
        (15, 5, 3),
    ]
    [whole] = build_shard(dealt(X, y, weights), join_limit=10_000).blocks
    assert build_shard(dealt(X, y, weights), join_limit=10).blocks[1].start == 10
    for blocks in (apart, [whole]):
        dense = [b.X.toarray() if sp.issparse(b.X) else b.X for b in blocks]
        expected = X.toarray() if sp.issparse(X) else X
        np.testing.assert_array_equal(np.concatenate(dense), expected)
        np.testing.assert_array_equal(np.concatenate([b.y for b in blocks]), y)
        kept = np.concatenate([b.sample_weight for b in blocks])
        np.testing.assert_array_equal(kept, weights)


@pytest.mark.parametrize("join_limit", [0, 10_000])
def test_rows_that_were_dealt_are_named_by_their_place_in_the_input(join_limit):
    X, y = random_block(10)
    X[4] = np.nan
    with pytest.raises(ValueError, match="block 5, row 12 of the whole input"):
        build_shard(dealt(X, y), join_limit=join_limit)


def test_rows_without_weight_among_those_that_were_dealt():
    X, y = random_block(10)
    weights = np.ones(10)
    weights[[0, 1, 5]] = 0
    shard = build_shard(dealt(X, y, weights))
    assert [(b.start, b.X.shape[0]) for b in shard.blocks] == [(10, 4), (15, 3)]
    joined = build_shard(dealt(X, y, weights), join_limit=10_000)
    assert [b.X.shape[0] for b in joined.blocks] == [7]
    assert shard.n_weightless == joined.n_weightless == 3


@pytest.mark.parametrize(
    "convert",
    [
        sp.csc_array,
        sp.coo_matrix,
        sp.lil_array,
        pytest.param(sparse.COO, id="sparse.COO"),
        pytest.param(sparse.GCXS.from_numpy, id="sparse.GCXS"),
    ],
)
def test_any_sparse_format_becomes_csr(convert):
    X, y = random_block(6)
    X[X < 0] = 0
    [block] = build_shard(arguments((convert(X), y))).blocks
    assert block.X.format == "csr"
    assert block.X.indices.dtype == np.int32
    np.testing.assert_array_equal(block.X.toarray(), X)


def test_wide_indices_become_narrow():
    X, y = random_block(6)
    X = sp.csr_array(X)
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    [block] = build_shard(arguments((X, y))).blocks
    assert block.X.indices.dtype == block.X.indptr.dtype == np.int32
    assert np.shares_memory(block.X.data, X.data)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["i4"], "f8"),
        (["?"], "f8"),
        (["f2"], "f8"),
        (["f4", "f4"], "f4"),
        (["f4", "f8"], "f8"),
        (["f4", "i8"], "f8"),
    ],
)
def test_one_dtype_for_the_whole_shard(dtypes, expected):
    shard = build_shard(arguments(*[random_block(4, dtype=d) for d in dtypes]))
    assert shard.dtype == expected
    assert all(block.X.dtype == expected for block in shard.blocks)


def test_dtype_may_be_restricted():
    X, y = random_block(4, dtype=np.float32)
    assert build_shard(arguments((X, y)), dtype=(np.float64,)).dtype == np.float64


def test_fortran_order_becomes_c_order():
    X, y = random_block(4)
    [block] = build_shard(arguments((np.asfortranarray(X), y))).blocks
    assert block.X.flags.c_contiguous
    np.testing.assert_array_equal(block.X, X)


def test_frames_become_arrays():
    frame = pd.DataFrame(
        {"a": [1, 2], "b": pd.array([3, None], dtype="Int64"), "c": [0.5, 1.5]}
    )
    frame["b"] = frame["b"].fillna(4)
    y = pd.Series(["no", "yes"])
    [block] = build_shard(arguments((frame, y))).blocks
    np.testing.assert_array_equal(block.X, [[1, 3, 0.5], [2, 4, 1.5]])
    assert block.X.flags.c_contiguous
    assert block.y.tolist() == ["no", "yes"]


def test_missing_value_of_a_frame_is_found():
    frame = pd.DataFrame({"a": [1, 2], "b": pd.array([3, None], dtype="Int64")})
    with pytest.raises(ValueError, match="NaN in block 0, row 1 of the whole input"):
        build_shard(arguments((frame, np.zeros(2))))


def test_empty_blocks_are_dropped():
    shard = build_shard(arguments(random_block(0), random_block(3), random_block(0)))
    assert [block.index for block in shard.blocks] == [1]


def test_shard_without_rows_has_the_declared_shape():
    shard = build_shard(arguments(n_features=7, dtype=np.float32))
    assert (shard.n_rows, shard.n_features, shard.nbytes) == (0, 7, 0)
    assert shard.dtype == np.float32
    assert not shard.is_sparse


def test_column_of_labels_is_flattened():
    X, y = random_block(4)
    [block] = build_shard(arguments((X, y[:, None]))).blocks
    np.testing.assert_array_equal(block.y, y)


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_rows_of_weight_zero_are_removed(convert):
    X, y = random_block(4)
    weights = np.array([1.0, 0.0, 2.0, 0.0])
    [block] = build_shard(arguments((convert(X), y, weights))).blocks
    kept = block.X.toarray() if sp.issparse(block.X) else block.X
    np.testing.assert_array_equal(kept, X[[0, 2]])
    np.testing.assert_array_equal(block.y, y[[0, 2]])
    np.testing.assert_array_equal(block.sample_weight, [1.0, 2.0])


def test_block_of_weight_zero_disappears():
    X, y = random_block(4)
    shard = build_shard(arguments((X, y, np.zeros(4)), (X, y, np.ones(4))))
    assert [block.index for block in shard.blocks] == [1]
    assert shard.n_rows == 4


def test_aligned_columns_replace_missing_ones():
    X, y = random_block(4)
    spec = arguments((X,))
    spec["aligned"] = [(y, np.full(4, 2.0))]
    [block] = build_shard(spec).blocks
    assert block.y is y
    assert block.sample_weight.tolist() == [2.0] * 4


# -- Bad blocks ----------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array, pd.DataFrame])
def test_values_that_are_not_finite(convert, value):
    first, second = random_block(5), random_block(5, seed=1)
    second[0][2, 1] = second[0][4, 0] = value
    kind = "NaN" if np.isnan(value) else "infinity"
    message = f"Input X contains {kind} in block 1, rows 7, 9 of the whole input"
    with pytest.raises(ValueError, match=message):
        build_shard(arguments(*[(convert(X), y) for X, y in (first, second)]))


def test_many_bad_rows_are_counted():
    X, y = random_block(20)
    X[:] = np.nan
    with pytest.raises(ValueError, match="rows 0, 1, 2, 3, 4 and 15 more"):
        build_shard(arguments((X, y)))


def test_huge_finite_values_pass():
    X = np.full((4, 2), np.finfo(np.float32).max, dtype=np.float32)
    assert build_shard(arguments((X, np.zeros(4)))).n_rows == 4


def test_target_that_is_not_finite():
    X, _ = random_block(3)
    with pytest.raises(ValueError, match="Input y contains NaN in block 0, row 1"):
        build_shard(arguments((X, np.array([0.0, np.nan, 1.0]))))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -1.0, 1.0], "Negative values in sample_weight, in block 0, row 1"),
        ([1.0, np.nan, 1.0], "Input sample_weight contains NaN in block 0, row 1"),
        ([1.0, np.inf, 1.0], "Input sample_weight contains infinity in block 0, row 1"),
        (["a", "b", "c"], "sample_weight has dtype"),
    ],
)
def test_bad_weights(weights, message):
    X, y = random_block(3)
    with pytest.raises(ValueError, match=message):
        build_shard(arguments((X, y, np.array(weights))))


def test_blocks_of_different_widths():
    with pytest.raises(ValueError, match="Block 1 of X has 4 columns, expected 3"):
        build_shard(arguments(random_block(3), random_block(3, columns=4)))


def test_blocks_of_different_kinds():
    X, y = random_block(3)
    with pytest.raises(TypeError, match="block 0 is dense and block 1 is sparse"):
        build_shard(arguments((X, y), (sp.csr_array(X), y)))


def test_sparse_blocks_refused():
    X, y = random_block(3)
    with pytest.raises(TypeError, match="dense data is required: block 0"):
        build_shard(arguments((sp.csr_array(X), y)), accept_sparse=False)


@pytest.mark.parametrize(("name", "position"), [("y", 1), ("sample_weight", 2)])
def test_columns_of_another_length(name, position):
    X, y = random_block(3)
    source = [X, y, np.ones(3)]
    source[position] = source[position][:2]
    message = f"Block 0 of X has 3 rows and block 0 of {name} has 2"
    with pytest.raises(ValueError, match=message):
        build_shard(arguments(source))


def test_metadata_that_lie_about_rows():
    X, y = random_block(3)
    spec = arguments((X, y))
    spec.update(pack_pieces([((X, y, None), 0, 4, 4, 0, 0)]))
    with pytest.raises(ValueError, match="has 3 rows where the metadata of X say 4"):
        build_shard(spec)


def test_other_refused_blocks():
    X, y = random_block(3)
    with pytest.raises(ValueError, match="block 0 of X has shape"):
        build_shard(
            {**arguments((X, y)), **pack_pieces([((X[0], y, None), 0, 3, 3, 0, 0)])}
        )
    with pytest.raises(ValueError, match="dtype object"):
        build_shard(arguments((X.astype(object), y)))
    with pytest.raises(ValueError, match="no numbers: 'b' "):
        build_shard(arguments((pd.DataFrame({"a": [1], "b": ["x"]}), y[:1])))
    with pytest.raises(TypeError, match="masked"):
        build_shard(arguments((np.ma.masked_array(X), y)))
    with pytest.raises(ValueError, match="y should be a 1d array"):
        build_shard(arguments((X, X)))


def test_labels_are_required_unless_said():
    X, _ = random_block(3)
    with pytest.raises(ValueError, match="requires y"):
        build_shard(arguments((X,)))
    assert build_shard(arguments((X,)), require_labels=False).blocks[0].y is None


def test_sparse_package_is_not_imported():
    # The layer alone: the package's own door would import the layers above it.
    code = (
        "import sys, types; package = types.ModuleType('dask_ma'); "
        f"package.__path__ = {list(dask_ma.__path__)!r}; "
        "sys.modules['dask_ma'] = package; import dask_ma.data; "
        "sys.exit(1 if 'sparse' in sys.modules else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- From memory, without a client ---------------------------------------------------


@pytest.mark.parametrize("n_ranks", [1, 3, 20])
@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        sp.csr_matrix,
        sp.csc_array,
        sp.coo_array,
        pd.DataFrame,
        np.ndarray.tolist,
    ],
)
def test_memory_is_shared_out_in_order(convert, n_ranks, stack):
    X, y = random_block(11)
    result = partition(
        convert(X), list(y), np.ones(11), n_ranks=n_ranks, addresses=None
    )
    shards = [build_shard(spec.arguments) for spec in result.shards]
    assert [s.n_rows for s in shards] == [
        (r + 1) * 11 // n_ranks - r * 11 // n_ranks for r in range(n_ranks)
    ]
    rows, labels = stack(shards)
    np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(labels, y)
    assert (result.n_rows, result.n_features) == (11, 3)
    assert result.bytes_moved == result.bytes_scattered == 0


def test_memory_is_not_copied():
    X, y = random_block(10)
    result = partition(X, y, n_ranks=2, addresses=None)
    for spec in result.shards:
        [block] = build_shard(spec.arguments).blocks
        assert np.shares_memory(block.X, X)
        assert np.shares_memory(block.y, y)


def test_feature_names_are_kept():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    result = partition(frame, [0, 1], n_ranks=1, addresses=None)
    assert result.feature_names.tolist() == ["a", "b"]


def test_bad_memory_input():
    X, y = random_block(4)
    with pytest.raises(ValueError, match="requires y"):
        partition(X, n_ranks=1, addresses=None)
    with pytest.raises(ValueError, match=r"inconsistent.*\[4, 3\]"):
        partition(X, y[:3], n_ranks=1, addresses=None)
    with pytest.raises(ValueError, match=r"inconsistent.*\[4, 3\].*sample_weight"):
        partition(X, y, np.ones(3), n_ranks=1, addresses=None)
    with pytest.raises(ValueError, match="X has no rows"):
        partition(X[:0], y[:0], n_ranks=1, addresses=None)
    with pytest.raises(ValueError, match="1D array or scalar"):
        partition(X, y, np.ones((4, 2)), n_ranks=1, addresses=None)
    with pytest.raises(ValueError, match="addresses go together"):
        partition(X, y, n_ranks=1, addresses=["a"])


def test_unlabelled_memory():
    X, _ = random_block(4)
    result = partition(X, n_ranks=2, addresses=None, allow_unlabelled=True)
    shard = build_shard(result.shards[1].arguments, require_labels=False)
    np.testing.assert_array_equal(shard.blocks[0].X, X[2:])
