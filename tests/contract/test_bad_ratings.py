"""Each kind of bad ratings is refused with words that help, in every container."""

import re
import time

import dask
import dask.array as da
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sparse import COO, GCXS

from dask_ma import SchMPMatrixFactorization

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
N, ROWS = 24, 6
RNG = np.random.default_rng(0)
PAIRS = np.stack(np.unravel_index(RNG.permutation(40)[:N], (8, 5)), axis=1)
RATINGS = RNG.normal(3, 1, N)
CONTAINERS = ("list", "numpy", "pandas", "array", "frame")


def model(**params):
    return SchMPMatrixFactorization(
        **{"n_components": 2, "max_iter": 2, "random_state": 0, "n_ranks": 2, **params}
    )


def boxed(kind, X, y):
    """Pairs and ratings in a container."""
    if kind == "list":
        return X.tolist(), y.tolist()
    if kind == "numpy":
        return X, y
    if kind == "array":
        return da.from_array(X, (ROWS, -1)), da.from_array(y, ROWS)
    names = ["user", "item", "more"][: X.shape[1]]
    frame, column = pd.DataFrame(X, columns=names), pd.Series(y)
    if kind == "pandas":
        return frame, column
    # As they are: texts would become those of Arrow.
    with dask.config.set({"dataframe.convert-string": False}):
        return (
            dd.from_pandas(frame, npartitions=N // ROWS),
            dd.from_pandas(column, npartitions=N // ROWS),
        )


def put(values, row, value):
    values = values.astype(object if isinstance(value, str) else np.float64)
    values[row] = value
    return values


BAD = {
    "NaN": (PAIRS, put(RATINGS, 9, np.nan), "rating . is nan|rating 9 is nan"),
    "infinity": (PAIRS, put(RATINGS, 9, np.inf), "rating . is inf|rating 9 is inf"),
    "words": (PAIRS, put(RATINGS, 9, "good"), "could not convert string to float"),
    "complex": (PAIRS, RATINGS + 1j, "y has the type complex128, expected real"),
    "huge": (PAIRS, RATINGS * 1e30, "and dtype=float32 is for ratings up to"),
    "no item": (PAIRS[:, :1], RATINGS, "two columns, .* got 1"),
    "three columns": (
        PAIRS[:, [0, 1, 1]],
        RATINGS,
        "two columns, .* got 3",
    ),
    "user NaN": (put(PAIRS, (9, 0), np.nan), RATINGS, "users has no id in row"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("kind", CONTAINERS)
def test_refused(name, kind):
    X, y, message = BAD[name]
    start = time.process_time()
    with pytest.raises((ValueError, TypeError), match=message):
        model().fit(*boxed(kind, X, y))
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (-np.ones(N), "Negative values in sample_weight"),
        (np.full(N, np.nan), "NaN|finite"),
        (np.ones(N - 1), "sample_weight"),
        (np.zeros(N), "sample_weight is 0 for all ratings"),
    ],
    ids=["negative", "NaN", "too few", "zeros"],
)
@pytest.mark.parametrize("kind", ["numpy", "array"])
def test_weights_that_are_refused(weights, message, kind):
    X, y = boxed(kind, PAIRS, RATINGS)
    if kind == "array":
        weights = da.from_array(weights, ROWS)
    with pytest.raises(ValueError, match=message):
        model().fit(X, y, weights)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (dask.delayed(PAIRS), RATINGS, "X is a Delayed"),
        (dask.bag.from_sequence([(1, 2)]), RATINGS, "type Bag"),
        (
            da.from_array(PAIRS, (6, 2)),
            da.from_array(RATINGS[1:], 8),
            "numbers of samples",
        ),
        (np.zeros((8, 5)), None, "must be sparse|requires y"),
        (da.zeros((8, 5), chunks=4), None, "must be sparse"),
        (sparse.csr_array([[1.0, np.nan]]), None, "is nan"),
        ([], [], "two columns, .* got 0"),
        (np.empty((0, 2)), np.empty(0), "no ratings"),
        (da.empty((0, 2)), da.empty(0), "no ratings"),
        ([("a", 1), (2, 1)], [1, 2], "mixes ids"),
        ([(1, 2), (pd.NA, 2)], [1, 2], "users has no id in row 1"),
        (pd.Series([1, 2]), [1, 2], "must have two columns"),
    ],
    ids=[
        "Delayed",
        "Bag",
        "chunks",
        "dense",
        "dense blocks",
        "NaN in a matrix",
        "nothing",
        "no rows",
        "no lazy rows",
        "mixed",
        "NA",
        "series",
    ],
)
def test_what_are_no_pairs(X, y, message):
    with pytest.raises((ValueError, TypeError), match=message):
        model().fit(X, y)


@pytest.mark.parametrize(
    "kind",
    [
        sparse.csr_array,
        sparse.csr_matrix,
        sparse.coo_array,
        COO.from_scipy_sparse,
        GCXS.from_scipy_sparse,
    ],
    ids=["csr_array", "csr_matrix", "coo_array", "COO", "GCXS"],
)
def test_a_matrix_is_not_predicted(kind):
    """Its pairs are, as the message says."""
    matrix = sparse.coo_array((RATINGS, PAIRS.T))
    fitted = model().fit(matrix)
    X = kind(matrix)
    with pytest.raises(ValueError, match="sparse matrix .* expected pairs") as error:
        fitted.predict(X)
    advice = re.search(r"np\.column_stack\(.*\)\)", str(error.value))[0]
    expected = fitted.predict(np.column_stack(matrix.tocsr().nonzero()))
    found = fitted.predict(eval(advice, {"np": np, "X": X}))
    np.testing.assert_array_equal(np.sort(found), np.sort(expected))


def test_pairs_with_labels_of_their_axes():
    """As arrays of xarray have: `coords` is no sign of a sparse matrix."""

    class Labelled:
        coords = {"column": ["user", "item"]}
        shape, ndim, dtype = PAIRS.shape, 2, PAIRS.dtype

        def __array__(self, dtype=None, copy=None):
            return np.array(PAIRS, dtype=dtype)

    fitted = model().fit(PAIRS, RATINGS)
    np.testing.assert_array_equal(fitted.predict(Labelled()), fitted.predict(PAIRS))


def test_a_failed_fit_leaves_the_model_of_before():
    found = model().fit(PAIRS, RATINGS)
    before = found.predict(PAIRS)
    with pytest.raises(ValueError, match="is nan"):
        found.fit(PAIRS, put(RATINGS, 9, np.nan))
    np.testing.assert_array_equal(found.predict(PAIRS), before)


def test_integers_beyond_int64_are_told_apart():
    """Where a float would make one of two of them."""
    big, names = 2**63, "abc"
    pairs = [(big, "a"), (big + 1, "b"), (-5, "c"), (7, "a")]
    found = model().fit(pairs, [1.0, 2, 3, 4])
    assert found.user_ids_.tolist() == [-5, 7, big, big + 1]
    unsigned = np.array([2**53, 2**53 + 1, 2**63 + 1], dtype=np.uint64)
    held = model().fit(list(zip(unsigned.tolist()[:2], names, strict=False)), [1.0, 2])
    assert np.isnan(
        held.set_params(cold_start="nan").predict([(big + 1, "a"), (2**53 + 1, "a")])
    ).tolist() == [True, False]
    wide = model(cold_start="nan").fit(np.stack([unsigned, unsigned], 1), [1.0, 2, 3])
    near = np.array([[2**53 + 2, 2**53], [2**53 + 1, 2**53]])
    assert np.isnan(wide.predict(near)).tolist() == [True, False]


def test_a_column_of_ratings_is_a_vector():
    expected = model().fit(PAIRS, RATINGS)
    found = model().fit(PAIRS, RATINGS[:, np.newaxis])
    np.testing.assert_array_equal(found.user_factors_, expected.user_factors_)


def test_ratings_of_least_squares_that_overflow():
    with pytest.raises(ValueError, match="and dtype=float32 is for ratings up to 3e"):
        model().fit(PAIRS, RATINGS * 1e20)
    found = model(dtype="float64").fit(PAIRS, RATINGS * 1e20)
    assert np.isfinite(found.user_bias_).all()
