"""Runs with numbers beyond the type of the matrix, and types that are no use."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.sfb import Exchange, FactorModel, run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4))
Y = RNG.normal(size=(12, 3))
WAYS = [
    "factors",
    "full_matrix",
    "server",
    "outputs",
    Exchange("factors", broadcast=1),
    Exchange("factors", broadcast=1, relay=False),
    Exchange("factors", staleness=2),
    Exchange("factors", compression=0.5, wire_dtype="float32"),
]
CURE = 'dtype="float64"'


class Far(FactorModel):
    """Factors within the range of a type, whose products are beyond it."""

    shares_outputs = True

    def __init__(self, far, learning_rate=1.0):
        self.far = far
        self.learning_rate = learning_rate

    def initial_matrix(self, n_features):
        return np.zeros((3, n_features))

    def factors(self, matrix, batch):
        return np.full((batch.n_rows, 3), self.far), batch.X * self.far

    def share_rows(self, batch):
        return batch.X * self.far

    def share_slopes(self, values, sums, batch, outputs):
        return np.full(values.shape, self.far)


class Regression(FactorModel):
    first = None

    def initial_matrix(self, n_features):
        return np.zeros((3, n_features)) if self.first is None else self.first

    def factors(self, matrix, batch):
        return matrix.product(batch.X) - batch.y, batch.X


class WithLoss(Regression):
    def loss(self, matrix, batch):
        return float((matrix.product(batch.X) ** 2).sum())


@pytest.mark.pairs
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_last_step_is_checked(kind, n_ranks, way):
    options = {"n_passes": 1, "batch_size": 100, "n_ranks": n_ranks}
    options["communication"] = way
    rows = kind(np.abs(X) + 0.1)
    with pytest.raises(ValueError, match=f"not finite.*lower the step .*{CURE}"):
        run(Far(1e30), rows, **options)
    with pytest.raises(ValueError, match="not finite.*lower the step") as caught:
        run(Far(1e200), rows, **options, dtype="float64")
    assert "dtype=" not in str(caught.value)
    if not isinstance(way, Exchange) or way.wire_dtype is None:
        found = run(Far(1e30), rows, **options, dtype="float64").matrix
        assert np.isfinite(found).all() and (found < -1e55).all()


def test_intercepts_are_checked():
    class Shifted(Far):
        fit_intercept = True

        def factors(self, matrix, batch):
            u = np.full((batch.n_rows, 3), self.far)
            return u, np.zeros((batch.n_rows, X.shape[1]))

    with pytest.raises(ValueError, match=f"not finite.*{CURE}"):
        run(Shifted(1e30, learning_rate=1e20), X, n_passes=1)


@pytest.mark.pairs
@pytest.mark.parametrize("way", ["factors", "full_matrix", "outputs"])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("change", [(1e40, 1.0), (1e200, 1.0), (1.0, 1e39)])
def test_rows_and_targets_beyond_single_precision(change, kind, way):
    class Sharing(Regression):
        shares_outputs = True

        def share_slopes(self, values, sums, batch, outputs):
            return values - batch.y[:, outputs]

    rows, y = kind(X * change[0]), Y * change[1]
    options = {"n_passes": 1, "batch_size": 100, "communication": way}
    where = "on rank 0.* returned [uv] with NaN or infinite"
    with pytest.raises(ValueError, match=f"{where}.*{CURE}"):
        run(Sharing(), rows, y, **options)
    found = run(Sharing(), rows, y, **options, dtype="float64").matrix
    assert np.isfinite(found).all()


def test_objectives_beyond_single_precision():
    with pytest.raises(ValueError, match=f"grows without bound.*{CURE}"):
        run(WithLoss(), X, Y * 1e30, n_passes=1)
    found = run(WithLoss(), X, Y * 1e30, n_passes=1, dtype="float64")
    assert np.isfinite(found.history[0]["objective"])


def test_a_tolerance_is_not_blamed():
    class Blind(Far):
        def loss(self, matrix, batch):
            return float(matrix.product(batch.X).sum() * 0)

    with pytest.raises(ValueError, match=f"not finite.*{CURE}"):
        run(Blind(1e30), X, n_passes=2, batch_size=100, tol=0.1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "kind",
    [
        np.ndarray.tolist,
        np.asarray,
        lambda rows: rows > 0,
        lambda rows: rows.astype(np.uint64),
        lambda rows: sparse.csr_array(rows),
        lambda rows: sparse.csr_array(rows > 0),
        lambda rows: sparse.csc_array(rows.astype(float)),
    ],
)
def test_products_of_other_rows(kind, dtype):
    """They have the type of the matrix: no wider copy of it has been made."""
    whole = RNG.integers(0, 3, size=X.shape)
    rows = kind(whole)
    plain = np.asarray(rows.toarray() if sparse.issparse(rows) else rows, float)

    class Model(Regression):
        def factors(self, matrix, batch):
            values = matrix.product(rows)
            assert type(values) is np.ndarray and values.dtype == dtype
            np.testing.assert_allclose(
                values, plain @ np.asarray(matrix).T, rtol=1e-5, atol=1e-5
            )
            return values - batch.y, batch.X

    model = Model()
    model.first = RNG.normal(size=(3, 4))
    run(model, X, Y, n_passes=2, batch_size=100, dtype=dtype)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.float16, "float32"),
        (">f2", "float32"),
        (">f4", "float32"),
        (">f8", "float64"),
        ("<f8", "float64"),
        (np.longdouble, "float64"),
    ],
)
def test_a_matrix_keeps_a_type_that_learns(given, kept):
    model = Regression()
    options = {"n_passes": 3, "random_state": 0}
    expected = run(model, X, Y, **options, dtype=kept).matrix
    model.first = np.zeros((3, 4), dtype=given)
    found = run(model, X, Y, **options, dtype=None).matrix
    assert found.dtype == kept and found.dtype.isnative and found.any()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [",", {"names": ["a"]}, [], ">f4"])
def test_types_that_cannot_be(dtype):
    with pytest.raises(ValueError, match="dtype must be 'auto', 'float32'"):
        run(Regression(), X, Y, n_passes=1, dtype=dtype)
