"""Models of any shape: dictionaries, several targets, pairs, caches."""

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dask_ma.sfb import Exchange, FactorModel, run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(23, 7))
X[RNG.random(X.shape) < 0.4] = 0
CODES = np.linalg.qr(RNG.normal(size=(7, 4)))[0]
KINDS = {
    "dense": np.asarray,
    "csr": sparse.csr_array,
    "array": lambda X: da.from_array(X, chunks=(5, 7)),
}
PAIRS = np.array([[0, 22], [3, 4], [22, 1], [11, 12], [5, 20], [12, 0], [7, 22]])
LABELS = np.array([1.0, -1.0, 1.0, -1.0, 2.0, 1.0, -1.0])


def dense(rows):
    return rows.toarray() if sparse.issparse(rows) else rows


def make_dictionary():
    """Atoms for codes that are known: the matrix has other columns than X."""

    class Dictionary(FactorModel):
        learning_rate = 0.8

        def initial_matrix(self, n_features):
            return np.ones((n_features, 4), dtype=np.float32)

        def factors(self, matrix, batch):
            codes = batch.X @ CODES
            return matrix.product(codes) - batch.X, codes

        def loss(self, matrix, batch):
            codes = batch.X @ CODES
            return ((matrix.product(codes) - batch.X) ** 2).sum() / 2

    return Dictionary()


@pytest.mark.parametrize("communication", ["factors", "full_matrix", "auto"])
def test_a_matrix_of_another_shape(communication):
    result = run(
        make_dictionary(),
        X,
        n_passes=150,
        batch_size=100,
        n_ranks=2,
        communication=communication,
        tol=None,
    )
    assert result.matrix.shape == (7, 4)
    assert result.matrix.dtype == np.float32
    expected = np.linalg.lstsq(X @ CODES, X, rcond=None)[0].T
    np.testing.assert_allclose(result.matrix, expected, atol=1e-3)
    objective = result.history[-1]["objective"]
    residual = X @ CODES @ expected.T - X
    assert objective == pytest.approx((residual**2).sum() / 2 / 23, rel=1e-4)


def test_a_matrix_without_columns():
    model = make_dictionary()
    model.initial_matrix = lambda n_features: np.zeros((n_features, 0))
    with pytest.raises(ValueError, match=r"shape \(7, 0\), expected two dimensions"):
        run(model, X, n_passes=1)


def test_several_targets():
    class Regression(FactorModel):
        learning_rate = 0.2

        def initial_matrix(self, n_features):
            return np.zeros((2, n_features))

        def factors(self, matrix, batch):
            return matrix.product(batch.X) - batch.y, batch.X

    Y = X @ RNG.normal(size=(7, 2))
    targets = da.from_array(Y, chunks=(5, 2))
    rows = KINDS["array"](X)
    result = run(Regression(), rows, targets, n_passes=200, n_ranks=2, batch_size=8)
    expected = np.linalg.lstsq(X, Y, rcond=None)[0].T
    np.testing.assert_allclose(result.matrix, expected, atol=1e-5)


@pytest.mark.each
@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("communication", ["factors", "outputs"])
def test_a_matrix_of_single_precision_sends_half(kind, communication):
    """Also where rows are in double precision."""

    class Regression(FactorModel):
        shares_outputs = True

        def __init__(self, dtype):
            self.dtype = dtype

        def initial_matrix(self, n_features):
            return np.zeros((2, n_features), dtype=self.dtype)

        def factors(self, matrix, batch):
            return matrix.product(batch.X) - batch.y, batch.X

        def share_slopes(self, values, sums, batch, outputs):
            return values - batch.y[:, outputs]

    def sent(dtype):
        """Bytes of rows or factors; the rest is the same for both types."""
        rows, y = KINDS[kind](X), np.zeros((23, 2))
        given = {"n_passes": 3, "n_ranks": 2, "communication": communication}
        result = run(Regression(dtype), rows, y, batch_size=5, **given, dtype=None)
        assert result.matrix.dtype == dtype
        other = np.float64 if dtype == np.float32 else np.float32
        again = run(Regression(other), rows, y, batch_size=5, **given, dtype=dtype)
        np.testing.assert_array_equal(result.matrix, again.matrix)
        return sum(record["bytes_shared"] for record in result.history)

    numbers = X.size if kind == "dense" else np.count_nonzero(X)
    if communication == "factors":
        numbers += 2 * len(X)
    assert sent(np.float64) - sent(np.float32) == 3 * 4 * numbers


@pytest.mark.each
@pytest.mark.parametrize("communication", ["factors", "full_matrix", "outputs"])
@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_a_run_is_in_single_precision_by_default(kind, communication):
    class Regression(FactorModel):
        shares_outputs = True

        def initial_matrix(self, n_features):
            return np.zeros((2, n_features))

        def factors(self, matrix, batch):
            assert batch.X.dtype == np.float64  # rows are as they were
            values = matrix.product(batch.X)
            assert matrix.dtype == values.dtype == np.float32
            return values - batch.y, batch.X

        def share_slopes(self, values, sums, batch, outputs):
            assert values.dtype == np.float32
            return values - batch.y[:, outputs]

    rows, y = KINDS[kind](X), np.arange(46.0).reshape(23, 2) % 5
    given = {"n_passes": 3, "n_ranks": 2, "communication": communication}
    single = run(Regression(), rows, y, batch_size=5, random_state=0, **given)
    assert single.matrix.dtype == np.float32
    Regression.factors = lambda self, matrix, batch: (
        matrix.product(batch.X) - batch.y,
        batch.X,
    )
    Regression.share_slopes = lambda self, values, sums, batch, outputs: (
        values - batch.y[:, outputs]
    )
    given |= {"batch_size": 5, "random_state": 0, "dtype": "float64"}
    double = run(Regression(), rows, y, **given)
    assert double.matrix.dtype == np.float64
    np.testing.assert_allclose(single.matrix, double.matrix, atol=1e-5)
    assert (single.matrix != double.matrix).any()


def test_a_first_matrix_beyond_single_precision():
    class Far(FactorModel):
        def initial_matrix(self, n_features):
            return np.full((2, n_features), 1e300)

        def factors(self, matrix, batch):
            return np.zeros((batch.n_rows, 2)), batch.X

    with pytest.raises(ValueError, match="beyond the range of float32; pass dtype="):
        run(Far(), X, n_passes=1)
    assert (run(Far(), X, n_passes=1, dtype="float64").matrix == 1e300).all()


def make_pairs(n_others=1):
    """Distances of pairs to be near their labels."""

    class Distances(FactorModel):
        learning_rate = 0.01

        def initial_matrix(self, n_features):
            return np.eye(3, n_features)

        def _differences(self, batch):
            assert len(batch.others) == n_others
            found = [dense(batch.X) - dense(other) for other in batch.others]
            return np.concatenate(found)

        def factors(self, matrix, batch):
            v = self._differences(batch)
            u = matrix.product(v)
            excess = (u**2).sum(axis=1) - np.tile(batch.y, n_others)
            return 4 * excess[:, np.newaxis] * u / n_others, v

        def loss(self, matrix, batch):
            u = matrix.product(self._differences(batch))
            excess = (u**2).sum(axis=1) - np.tile(batch.y, n_others)
            return (excess**2).sum() / n_others

    return Distances()


def slow_pairs(pairs, labels, n_passes, learning_rate=0.01):
    """The same descent on all pairs at once."""
    matrix = np.eye(3, 7)
    for _ in range(n_passes):
        gradient = np.zeros_like(matrix)
        for (first, *others), label in zip(pairs, labels, strict=True):
            for other in others:
                d = X[first] - X[other]
                z = matrix @ d
                gradient += 4 * (z @ z - label) * np.outer(z, d) / len(others)
        matrix -= learning_rate * gradient / len(pairs)
    return matrix


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_pairs_across_ranks(kind, n_ranks):
    result = run(
        make_pairs(),
        KINDS[kind](X),
        pairs=PAIRS,
        pair_labels=LABELS,
        n_passes=6,
        batch_size=100,
        dtype="float64",
        n_ranks=n_ranks,
    )
    np.testing.assert_allclose(result.matrix, slow_pairs(PAIRS, LABELS, 6), rtol=1e-10)
    assert [record["n_samples"] for record in result.history] == [7] * 6
    last = sum(
        (((result.matrix @ (X[i] - X[j])) ** 2).sum() - label) ** 2
        for (i, j), label in zip(PAIRS, LABELS, strict=True)
    )
    assert result.history[-1]["objective"] == pytest.approx(last / 7)


def test_triplets():
    triplets = np.array([[0, 22, 5], [3, 4, 11], [22, 1, 2]])
    result = run(
        make_pairs(2),
        X,
        pairs=triplets,
        pair_labels=LABELS[:3],
        n_passes=4,
        batch_size=100,
        dtype="float64",
        n_ranks=3,
    )
    expected = slow_pairs(triplets, LABELS[:3], 4)
    np.testing.assert_allclose(result.matrix, expected, rtol=1e-10)


def test_pairs_come_in_a_new_order():
    """Each once in a pass, in batches of about the same size."""
    options = {"pairs": PAIRS, "pair_labels": LABELS, "batch_size": 3, "n_passes": 1}
    found = {
        (seed, shuffle): run(
            make_pairs(), X, **options, random_state=seed, shuffle=shuffle
        ).matrix
        for seed in (0, 1)
        for shuffle in (True, False)
    }
    assert (found[0, True] != found[1, True]).any()
    np.testing.assert_array_equal(found[0, False], found[1, False])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"pairs": [[0, 23]]}, ValueError, r"out of range.*\[0, 23\]; X has the rows"),
        ({"pairs": [[0, -1]]}, ValueError, "out of range"),
        ({"pairs": [[0, 1], [4, 4]]}, ValueError, r"with itself, as pair 1: \[4, 4\]"),
        ({"pairs": [[0.0, 1.0]]}, TypeError, "float64, expected row numbers"),
        ({"pairs": [0, 1]}, ValueError, r"shape \(2,\), expected \(n_pairs, 2\)"),
        ({"pairs": np.zeros((0, 2), int)}, ValueError, "at least one"),
        ({"pair_labels": [1.0]}, ValueError, r"shape \(1,\), expected \(7,\)"),
        ({"pairs": None}, ValueError, "^pair_labels are those of pairs"),
        ({"y": X[:, 0]}, ValueError, "^y cannot be used with pairs"),
        ({"sample_weight": X[:, 0]}, ValueError, "^sample_weight cannot be used"),
    ],
)
def test_pairs_that_cannot_be(change, error, message):
    arguments = {"pairs": PAIRS, "pair_labels": LABELS, **change}
    with pytest.raises(error, match=message):
        run(make_pairs(), X, **arguments, n_passes=1)


@pytest.mark.parametrize("rows", [None, 5.0], ids=str)
def test_pairs_of_no_rows(rows):
    with pytest.raises(ValueError, match="Expected 2D array"):
        run(make_pairs(), rows, pairs=PAIRS, pair_labels=LABELS, n_passes=1)


def test_pairs_out_of_an_unknown_range(inproc_client):
    frame = pytest.importorskip("dask.dataframe")
    import pandas as pd

    rows = frame.from_pandas(pd.DataFrame(X, columns=list("abcdefg")), npartitions=3)
    with inproc_client.as_current():
        options = {"pairs": PAIRS, "pair_labels": LABELS, "dtype": "float64"}
        found = run(make_pairs(), rows, **options, n_passes=6).matrix
        np.testing.assert_allclose(found, slow_pairs(PAIRS, LABELS, 6), rtol=1e-10)
        with pytest.raises(ValueError, match="1 of 2 pairs are out of range"):
            run(make_pairs(), rows, pairs=[[0, 1], [2, 40]], n_passes=1)


@pytest.mark.parametrize(
    "communication", ["factors", "full_matrix", Exchange(staleness=1)]
)
def test_a_cache_follows_the_matrix(communication):
    """A Gram matrix of rows, by the factors where they are known."""

    class Cached(FactorModel):
        learning_rate = 0.1
        gram = None
        n_followed = 0

        def initial_matrix(self, n_features):
            return np.eye(3, n_features)

        def factors(self, matrix, batch):
            if self.gram is not None:
                W = np.asarray(matrix)
                np.testing.assert_allclose(self.gram, W @ W.T, atol=1e-10)
            return matrix.product(batch.X), batch.X

        def updated(self, matrix, factors, scale):
            W = np.asarray(matrix)
            if factors is None or self.gram is None:
                self.gram = W @ W.T
                return
            # With D = scale * u.T @ v, (W + D) (W + D).T is what it was before.
            cross = matrix.product(factors.v).T @ (scale * factors.u)
            D = scale * factors.u.T @ factors.v
            self.gram = self.gram - cross - cross.T - D @ D.T
            self.n_followed += 1

        def loss(self, matrix, batch):
            return float(self.n_followed)

    options = {"n_passes": 3, "batch_size": 4, "dtype": "float64"}
    result = run(Cached(), X, n_ranks=2, communication=communication, **options)
    followed = result.history[-1]["objective"] > 0
    assert followed == (communication != "full_matrix")
