"""Codes without a penalty: orthogonal matching pursuit, and thresholds."""

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.decomposition import sparse_encode

from dask_ma import SFBDictionaryLearning
from dask_ma.sfb.dictionary import _pursuit
from dask_ma.sfb.dictionary._pursuit import pursued_codes, threshold_codes


def problem(n_rows=40, n_features=20, n_atoms=30, seed=0):
    """Rows, and atoms of length 1."""
    rng = np.random.default_rng(seed)
    atoms = rng.normal(size=(n_atoms, n_features))
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    return rng.normal(size=(n_rows, n_features)), atoms


def slow_pursuit(x, atoms, n_nonzero):
    """One row by least squares on the atoms so far."""
    chosen, rest, code = [], x, np.zeros(len(atoms))
    for _ in range(n_nonzero):
        angles = abs(atoms @ rest) / np.linalg.norm(atoms, axis=1)
        angles[chosen] = 0
        chosen.append(angles.argmax())
        code[chosen] = np.linalg.lstsq(atoms[chosen].T, x)[0]
        rest = x - code @ atoms
    return code


@pytest.mark.parametrize("n_nonzero", [1, 2, 7, 20])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_codes_of_scikit_learn(n_nonzero, kind):
    X, atoms = problem()
    found = pursued_codes(kind(X), atoms, n_nonzero)
    expected = sparse_encode(X, atoms, algorithm="omp", n_nonzero_coefs=n_nonzero)
    np.testing.assert_allclose(found, expected, atol=1e-10)
    assert (np.count_nonzero(found, axis=1) == n_nonzero).all()


def test_a_slow_loop():
    """Atoms of any length, and rows of several blocks."""
    X, atoms = problem()
    atoms *= np.linspace(0.1, 2, len(atoms))[:, np.newaxis]
    found = pursued_codes(X, atoms, 4)
    expected = [slow_pursuit(x, atoms, 4) for x in X]
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("block", [1, 2**9])
def test_rows_do_not_depend_on_others(monkeypatch, block):
    X, atoms = problem(100)
    whole = pursued_codes(X, atoms, 3)
    monkeypatch.setattr(_pursuit, "_BLOCK_BYTES", block)
    monkeypatch.setattr(_pursuit, "_LEAST_ROWS", 7)
    np.testing.assert_allclose(pursued_codes(X, atoms, 3), whole, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_need_fewer_atoms(dtype):
    """Rows of zeros none, sums of two atoms two; equal atoms are no help."""
    _, atoms = problem(n_atoms=12)
    atoms[5] = atoms[4]
    atoms[7] = 0
    atoms[:4] = np.eye(4, 20)
    atoms[4:, :4] = 0
    rows = np.zeros((3, 20))
    rows[1] = 2 * atoms[0] - atoms[3]
    rows[2] = atoms[4]
    codes = pursued_codes(rows.astype(dtype), atoms, 12)
    assert codes.dtype == dtype and np.isfinite(codes).all()
    assert np.count_nonzero(codes, axis=1).tolist() == [0, 2, 1]
    np.testing.assert_allclose(codes @ atoms, rows, atol=1e-6)


def test_more_atoms_than_features():
    X, atoms = problem(5, n_features=4)
    codes = pursued_codes(X, atoms, 30)
    assert (np.count_nonzero(codes, axis=1) <= 4).all()
    np.testing.assert_allclose(codes @ atoms, X, atol=1e-8)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_thresholds_of_scikit_learn(positive, dtype):
    X, atoms = problem()
    found = threshold_codes(X.astype(dtype), atoms, 0.4, positive=positive)
    expected = sparse_encode(
        X, atoms, algorithm="threshold", alpha=0.4, positive=positive
    )
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, atol=1e-6)
    same = threshold_codes(sparse.csr_array(X), atoms, 0.4, positive=positive)
    np.testing.assert_allclose(same, expected, atol=1e-12)


PARAMS = {"alpha": 0.3, "max_iter": 2, "random_state": 0, "n_ranks": 1}


@pytest.mark.parametrize(
    ("params", "peer"),
    [
        (
            {"transform_algorithm": "omp", "transform_n_nonzero_coefs": 3},
            {"algorithm": "omp", "n_nonzero_coefs": 3},
        ),
        ({"transform_algorithm": "omp"}, {"algorithm": "omp"}),
        ({"transform_algorithm": "threshold"}, {"algorithm": "threshold"}),
        (
            {"transform_algorithm": "threshold", "transform_alpha": 0.7},
            {"algorithm": "threshold", "alpha": 0.7},
        ),
    ],
)
def test_transform(params, peer):
    """Of rows in memory, and lazily; the fit is that of the lasso."""
    X, _ = problem(100)
    model = SFBDictionaryLearning(8, **PARAMS, **params).fit(X)
    plain = SFBDictionaryLearning(8, **PARAMS).fit(X)
    np.testing.assert_array_equal(model.components_, plain.components_)
    expected = sparse_encode(X, model.components_, **{"alpha": 0.3, **peer})
    codes = model.transform(X)
    np.testing.assert_allclose(codes, expected, atol=1e-8)
    lazy = model.transform(da.from_array(X, chunks=(30, 20)))
    np.testing.assert_allclose(lazy.compute(), codes, atol=1e-12)
    split = model.set_params(split_sign=True).transform(X)
    np.testing.assert_array_equal(split[:, :8] - split[:, 8:], codes)


def test_codes_of_both_signs():
    model = SFBDictionaryLearning(
        3, **PARAMS, transform_algorithm="omp", positive_code=True
    )
    with pytest.raises(ValueError, match="'omp' finds codes of both signs"):
        model.fit(problem()[0])
