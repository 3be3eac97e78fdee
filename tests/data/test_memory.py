"""Data of this process that scikit-learn's own checks let through."""

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import sparse as pydata_sparse
from scipy import sparse

from dask_ma import ButterflySGDClassifier
from dask_ma.data import (
    check_memory_labels,
    checked_rows,
    checked_vector,
    refuse_unfinished,
    weight_per_row,
)
from dask_ma.data._checks import check_sparse, without_duplicates


@pytest.mark.parametrize(
    "X",
    [
        [[1.0, 2.0]],
        np.ones((2, 2), dtype=np.int8),
        np.array([["1", "2.5"]]),
        np.array([[1, 2.5]], dtype=object),
        pd.DataFrame({"a": [1, 2], "b": [True, False]}),
        pd.DataFrame({"a": pd.Categorical([1, 2])}),
        sparse.csr_array(np.eye(2)),
    ],
    ids=lambda X: type(X).__name__,
)
def test_rows_that_are_good_stay_as_they_are(X):
    assert checked_rows(X) is X


def test_rows_of_the_package_sparse_become_csr():
    X = checked_rows(pydata_sparse.COO.from_numpy(np.eye(3)))
    assert X.format == "csr"
    np.testing.assert_array_equal(X.toarray(), np.eye(3))


def test_a_frame_names_its_columns():
    X = pd.DataFrame({"a": [1.0], "b": ["x"], "c": [pd.Timestamp(0)], "d": [None]})
    with pytest.raises(ValueError, match=r"numbers: 'b' \(str\), 'c' \(datetime64"):
        checked_rows(X)


def test_a_future_is_named(cluster):
    future = cluster.submit(np.ones, (3, 2), pure=False)
    for value in (future, [future]):
        with pytest.raises(TypeError, match=r"X is a Future.*pass X.result\(\)"):
            refuse_unfinished(value, "X")
    with pytest.raises(TypeError, match="y is a Future"):
        checked_vector(future, "y")
    with pytest.raises(TypeError, match="X is a Future"):
        ButterflySGDClassifier().fit(future, [0, 1, 1])


@pytest.mark.parametrize("value", [1, 2.5, True, np.float32(3), np.int64(2)])
def test_a_number_stands_for_equal_weights(value):
    assert weight_per_row(value) is None


def test_weights_stay_as_they_are():
    for weights in (np.ones(3), [1, 2, 3], da.ones(3), pd.Series([1.0, 2.0])):
        assert weight_per_row(weights) is weights
    assert weight_per_row(None) is None


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf, 1j, "balanced"])
def test_a_number_that_is_no_weight(value):
    with pytest.raises(ValueError, match="sample_weight is .*expected a"):
        weight_per_row(value)


def test_labels_that_scikit_learn_checks_itself():
    for y in ([0, 1], ["a", "b"], np.array([0.5, 1]), pd.Series([True, False])):
        check_memory_labels(y)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT], ids=str)
@pytest.mark.parametrize(
    "convert", [list, pd.Series, pd.Index], ids=lambda c: c.__name__
)
def test_labels_that_are_missing(missing, convert):
    y = convert(["a", "b", missing, "a", missing])
    with pytest.raises(ValueError, match="a label is missing in row 2 and 1 more"):
        check_memory_labels(y)


def halves(X):
    """Each entry stored as two halves."""
    data, indices = np.repeat(X.data / 2, 2), np.repeat(X.indices, 2)
    return type(X)((data, indices, X.indptr * 2), shape=X.shape)


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csr_array])
def test_duplicates_are_added_up_in_a_copy(kind):
    X = kind(np.arange(6.0).reshape(2, 3))
    assert without_duplicates(X) is X
    doubled = halves(X)
    doubled.has_canonical_format = True  # which is not so
    before = doubled.data.copy(), doubled.indices.copy(), doubled.indptr.copy()
    single = without_duplicates(doubled)
    assert isinstance(single, kind)
    assert single.nnz == X.nnz
    np.testing.assert_array_equal(single.toarray(), X.toarray())
    for old, new in zip(
        before, (doubled.data, doubled.indices, doubled.indptr), strict=True
    ):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_sums_of_duplicates_are_not_cut_off(dtype):
    large = np.iinfo(dtype).max
    X = sparse.csr_array(
        (np.full(3, large), np.array([1, 1, 2]), np.array([0, 3])), dtype=dtype
    )
    single = without_duplicates(X)
    assert single.toarray().tolist() == [[0, 2 * int(large), int(large)]]


def test_a_fit_leaves_the_users_matrix_alone():
    rng = np.random.default_rng(0)
    X = halves(sparse.csr_matrix((rng.random((40, 5)) < 0.5).astype(float)))
    before = X.data.copy(), X.indices.copy(), X.indptr.copy()
    y = np.arange(40) % 2
    for rows in (X, da.from_array(X, chunks=(10, 5), asarray=False)):
        ButterflySGDClassifier(max_iter=1, tol=None, n_ranks=2).fit(rows, y)
        for old, new in zip(before, (X.data, X.indices, X.indptr), strict=True):
            np.testing.assert_array_equal(old, new)


def test_negative_indices_beside_more_columns_than_their_type_has_numbers():
    X = sparse.csr_array((2, 3 * 2**30))
    X.indices, X.data = np.array([1, -(2**31)], dtype=np.int32), np.ones(2)
    X.indptr = np.array([0, 1, 2])
    with pytest.raises(ValueError, match="indices must be >= 0"):
        check_sparse(X, "X")


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo"])
def test_indices_beyond_the_matrix(form):
    X = sparse.eye_array(4, format=form)
    check_sparse(X, "X")
    indices = X.coords[0] if form == "coo" else X.indices
    indices[2] = 9
    with pytest.raises(ValueError, match="X is not a valid sparse matrix: "):
        check_sparse(X, "X")


def test_a_delayed_is_not_computed():
    def fail():
        raise AssertionError("it has been computed")

    with pytest.raises(TypeError, match=r"X is a Delayed.*pass X.compute\(\)"):
        checked_rows(dask.delayed(fail)())
