"""Models applied lazily to blocks."""

from __future__ import annotations

import pickle
import warnings

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sparse
from distributed import Future

from dask_ma.data import apply_blockwise


def product(model, block):
    """A linear map, as a model would apply."""
    assert sp.issparse(block) or type(block) is np.ndarray
    assert block.shape[0] > 0
    return block @ model


@pytest.fixture
def X():
    """Rows in memory."""
    return np.arange(60.0).reshape(20, 3)


@pytest.mark.parametrize("shape", [(3,), (3, 2)])
@pytest.mark.parametrize(
    "convert",
    [
        lambda b: b,
        sp.csr_matrix,
        sp.csr_array,
        lambda b: sparse.COO.from_scipy_sparse(sp.coo_array(b)),
        lambda b: sparse.GCXS(sp.csr_array(b)),
    ],
    ids=["numpy", "csr_matrix", "csr_array", "COO", "GCXS"],
)
def test_blocks_of_every_kind(X, convert, shape):
    model = np.arange(np.prod(shape)).reshape(shape).astype(float)
    lazy = da.from_array(X, chunks=(6, 3)).map_blocks(convert, meta=np.empty((0, 0)))
    n_outputs = None if len(shape) == 1 else shape[1]
    result = apply_blockwise(
        lazy, product, model=model, n_outputs=n_outputs, dtype=np.float64
    )
    assert result.chunks[0] == (6, 6, 6, 2)
    assert result.shape == (20, *shape[1:])
    assert type(result._meta) is np.ndarray
    assert result._meta.shape == (0,) * len(shape) or result._meta.shape == (
        0,
        *shape[1:],
    )
    np.testing.assert_allclose(result.compute(), X @ model)


def test_dtype_is_as_promised(X):
    lazy = da.from_array(X, chunks=(6, 3))
    result = apply_blockwise(
        lazy, product, model=np.ones(3), n_outputs=None, dtype=np.int32
    )
    assert result.dtype == result.compute().dtype == np.int32


def test_nothing_is_computed():
    def fail(block):
        raise RuntimeError("computed")

    lazy = da.ones((4, 3), chunks=2).map_blocks(fail, meta=np.empty((0, 0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = apply_blockwise(
            lazy, product, model=np.ones(3), n_outputs=None, dtype=float
        )
    with pytest.raises(RuntimeError, match="computed"):
        result.compute()


def test_unknown_and_empty_blocks(X):
    lazy = da.from_array(X, chunks=(5, 3))
    result = apply_blockwise(
        lazy[lazy[:, 0] > 40], product, model=np.ones(3), n_outputs=None, dtype=float
    )
    assert np.isnan(result.chunks[0]).all()
    np.testing.assert_allclose(result.compute(), X[X[:, 0] > 40].sum(axis=1))


@pytest.mark.parametrize(("n_outputs", "shape"), [(None, (0,)), (2, (0, 2))])
def test_no_rows(n_outputs, shape):
    model = np.ones((3, *shape[1:]))
    result = apply_blockwise(
        da.ones((0, 3)), product, model=model, n_outputs=n_outputs, dtype=np.float32
    )
    assert result.compute().shape == shape
    assert result.compute().dtype == np.float32


def test_column_chunks_are_joined_with_a_warning(X):
    lazy = da.from_array(X, chunks=(6, 2))
    with pytest.warns(UserWarning, match="2 chunks of columns"):
        result = apply_blockwise(
            lazy, product, model=np.ones(3), n_outputs=None, dtype=float
        )
    np.testing.assert_allclose(result.compute(), X.sum(axis=1))


def test_dataframe(X):
    frame = pd.DataFrame(X, columns=list("abc"), index=np.arange(20) * 2)
    lazy = dd.from_pandas(frame, npartitions=3)
    result = apply_blockwise(
        lazy, product, model=np.ones(3), n_outputs=None, dtype=np.float32
    )
    assert isinstance(result, dd.Series)
    assert result.dtype == np.float32
    assert result.divisions == lazy.divisions
    expected = pd.Series(X.sum(axis=1), index=frame.index, dtype=np.float32)
    pd.testing.assert_series_equal(result.compute(), expected)


def test_several_columns_of_a_dataframe(X):
    lazy = dd.from_pandas(pd.DataFrame(X, columns=list("abc")), npartitions=3)
    result = apply_blockwise(
        lazy, product, model=np.ones((3, 2)), n_outputs=2, dtype=float
    )
    assert isinstance(result, da.Array)
    assert result.numblocks == (3, 1)
    np.testing.assert_allclose(result.compute(), X @ np.ones((3, 2)))


@pytest.mark.parametrize(
    ("shape", "columns"), [((3,), None), ((3, 2), None), ((3, 2), ["d", "e"])]
)
def test_a_partition_of_objects_without_rows(X, shape, columns):
    def load(number):
        rows = None if number == 2 else X[number * 5 :][:5]
        return pd.DataFrame(rows, columns=list("abc"))

    meta = pd.DataFrame(X[:0], columns=list("abc"))
    result = apply_blockwise(
        dd.from_map(load, range(4), meta=meta),
        product,
        model=np.ones(shape),
        n_outputs=None if len(shape) == 1 else shape[1],
        dtype=np.float32,
        columns=columns,
    )
    values = np.asarray(result.compute())
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, np.delete(X, np.s_[10:15], 0) @ np.ones(shape))


def test_words_for_a_dataframe(X):
    def words(model, block):
        return model[(block[:, 0] > 20).astype(int)]

    lazy = dd.from_pandas(pd.DataFrame(X, columns=list("abc")), npartitions=3)
    for labels in (np.array(["low", "high"]), np.array(["low", "high"], dtype=object)):
        result = apply_blockwise(
            lazy, words, model=labels, n_outputs=None, dtype=labels.dtype
        )
        computed = result.compute()
        assert computed.dtype == result.dtype == pd.Series(["text"]).dtype
        assert computed.tolist() == labels[(X[:, 0] > 20).astype(int)].tolist()


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="Expected 2D array"):
        apply_blockwise(
            da.ones(3), product, model=np.ones(3), n_outputs=None, dtype=float
        )


def test_model_is_in_the_graph_once(X):
    lazy = da.from_array(np.ones((200, 3)), chunks=(2, 3))
    model = np.arange(30000.0).reshape(3, 10000)
    result = apply_blockwise(lazy, product, model=model, n_outputs=10000, dtype=float)
    [optimised] = dask.optimize(result)
    size = len(pickle.dumps(dict(optimised.__dask_graph__())))
    assert model.nbytes < size < 2 * model.nbytes


def test_large_model_is_scattered(client, clean):
    lazy = da.ones((40, 300), chunks=(10, 300))
    model = np.ones((300, 6000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = apply_blockwise(
            lazy, product, model=model, n_outputs=6000, dtype=float
        )
        graph = dict(result.__dask_graph__())
        assert len(pickle.dumps([k for k in graph])) < 10**5
        assert any(isinstance(value, Future) for value in graph.values())
        total = result.sum().compute()
    assert total == 40 * 300 * 6000
    del result, graph


def test_large_model_for_a_dataframe(client, clean):
    frame = dd.from_pandas(pd.DataFrame(np.ones((40, 300))), npartitions=4)
    result = apply_blockwise(
        frame,
        lambda model, block: (block @ model)[:, 0],
        model=np.ones((300, 6000)),
        n_outputs=None,
        dtype=float,
    )
    graph = dict(result.__dask_graph__())
    assert any(isinstance(value, Future) for value in graph.values())
    assert result.sum().compute() == 40 * 300
    del result, graph


def test_small_model_stays_in_the_graph(client, clean, X):
    lazy = da.from_array(X, chunks=(5, 3))
    result = apply_blockwise(
        lazy, product, model=np.ones(3), n_outputs=None, dtype=float
    )
    assert not any(isinstance(v, Future) for v in result.__dask_graph__().values())
    np.testing.assert_allclose(result.compute(), X.sum(axis=1))


def test_size_of_a_model_with_attributes(client, clean, X):
    class Model:
        """A model that hides its size from Dask."""

        def __init__(self):
            self.coef = np.ones((3, 10**5))

    lazy = da.from_array(X, chunks=(5, 3))
    result = apply_blockwise(
        lazy,
        lambda model, block: (block @ model.coef)[:, 0],
        model=Model(),
        n_outputs=None,
        dtype=float,
    )
    assert any(isinstance(v, Future) for v in result.__dask_graph__().values())
    np.testing.assert_allclose(result.compute(), X.sum(axis=1))
    del result
