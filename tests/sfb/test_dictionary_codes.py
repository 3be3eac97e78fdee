"""Codes by the greedy lasso, against slow loops and scikit-learn."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.decomposition import sparse_encode

from dask_ma.sfb.dictionary import _codes
from dask_ma.sfb.dictionary._block import Accuracy, UnitAtoms
from dask_ma.sfb.dictionary._codes import ALGORITHMS, ROUGH, lasso_codes
from dask_ma.sfb.dictionary._supports import solve_supports

TIGHT = Accuracy(step=1e-3, gap=1e-10, max_sweeps=2000)


def problem(n_rows=12, n_features=12, n_atoms=16, seed=0):
    """Rows, and atoms of length 1."""
    rng = np.random.default_rng(seed)
    atoms = rng.normal(size=(n_atoms, n_features))
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    return rng.normal(size=(n_rows, n_features)), atoms


def slow_codes(X, atoms, alpha, positive=False):
    """One coefficient after the other, until none changes."""
    codes = np.zeros((len(X), len(atoms)))
    squares = (atoms**2).sum(axis=1)
    for _ in range(20000):
        before = codes.copy()
        for j in np.flatnonzero(squares):
            slopes = (X - codes @ atoms) @ atoms[j] + squares[j] * codes[:, j]
            sizes = np.maximum((slopes if positive else abs(slopes)) - alpha, 0)
            codes[:, j] = np.copysign(sizes, slopes) / squares[j]
        if abs(codes - before).max() < 1e-9:
            return codes
    raise AssertionError("the slow loop does not converge")


def objectives(X, atoms, codes, alpha):
    rest = X - codes @ atoms
    return 0.5 * (rest**2).sum(axis=1) + alpha * abs(codes).sum(axis=1)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("alpha", [0.05, 0.5])
def test_codes_of_a_slow_loop(alpha, positive):
    X, atoms = problem()
    found = lasso_codes(X, atoms, alpha, TIGHT, positive=positive)
    expected = slow_codes(X, atoms, alpha, positive)
    np.testing.assert_allclose(found.values, expected, atol=1e-4)
    values = objectives(X, atoms, expected, alpha)
    np.testing.assert_allclose(found.objectives, values, rtol=1e-8)
    assert found.n_unsettled == 0


def test_codes_of_scikit_learn():
    X, atoms = problem()
    found = lasso_codes(X, atoms, 0.3, TIGHT).values
    expected = sparse_encode(X, atoms, algorithm="lasso_lars", alpha=0.3)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_atoms_of_other_lengths():
    """Also one of zeros, which no row uses."""
    X, atoms = problem()
    atoms *= np.linspace(0.5, 2, len(atoms))[:, None]
    atoms[4] = 0
    found = lasso_codes(X, atoms, 0.3, TIGHT)
    np.testing.assert_allclose(found.values, slow_codes(X, atoms, 0.3), atol=1e-4)
    values = objectives(X, atoms, found.values, 0.3)
    np.testing.assert_allclose(found.objectives, values, rtol=1e-8)
    assert not found.values[:, 4].any()


@pytest.mark.parametrize("accuracy", [ROUGH, TIGHT])
def test_a_row_of_zeros(accuracy):
    X, atoms = problem()
    X[3] = 0
    found = lasso_codes(X, atoms, 0.3, accuracy)
    assert not found.values[3].any()
    assert found.objectives[3] == 0
    assert found.n_unsettled == 0


def test_atoms_that_are_alike():
    """Of equal atoms one is enough; the best objective is the same."""
    X, atoms = problem()
    twice = np.vstack([atoms, atoms[:5], -atoms[:5]])
    found = lasso_codes(X, twice, 0.3, TIGHT)
    one = lasso_codes(X, atoms, 0.3, TIGHT)
    np.testing.assert_allclose(found.objectives, one.objectives, rtol=1e-9)
    assert found.n_unsettled == 0


def test_sparse_rows_are_like_dense_ones(monkeypatch):
    X, atoms = problem()
    X[abs(X) < 0.8] = 0
    X[5] = 0
    rows = sparse.csr_array(X)
    monkeypatch.setattr(sparse.csr_array, "toarray", None)
    found = lasso_codes(rows, atoms, 0.3, TIGHT)
    expected = lasso_codes(X, atoms, 0.3, TIGHT)
    np.testing.assert_allclose(found.values, expected.values, atol=1e-4)
    np.testing.assert_allclose(found.objectives, expected.objectives, rtol=1e-9)


@pytest.mark.parametrize("layout", ["F", "strided"])
def test_order_of_memory(layout):
    X, atoms = problem()
    other = np.asfortranarray(atoms)
    if layout == "strided":
        other = np.repeat(atoms, 2, axis=0)[::2]
    expected = lasso_codes(X, atoms, 0.3, ROUGH).values
    np.testing.assert_array_equal(lasso_codes(X, other, 0.3, ROUGH).values, expected)


def test_float32():
    X, atoms = problem()
    rows = X.astype(np.float32)
    found = lasso_codes(rows, atoms, 0.3, Accuracy(1e-3, 1e-4, 1000))
    assert found.values.dtype == found.objectives.dtype == np.float32
    assert found.n_unsettled == 0
    np.testing.assert_allclose(found.values, slow_codes(X, atoms, 0.3), atol=2e-2)


def test_rows_of_several_blocks(monkeypatch):
    X, atoms = problem(n_rows=70)
    whole = lasso_codes(X, atoms, 0.3, TIGHT)
    monkeypatch.setattr(_codes, "_BLOCK_BYTES", 1)
    parts = lasso_codes(X, atoms, 0.3, TIGHT)
    np.testing.assert_allclose(parts.values, whole.values, atol=1e-4)
    np.testing.assert_allclose(parts.objectives, whole.objectives, rtol=1e-9)


@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("positive", [False, True])
def test_the_gap_bounds_what_is_left(gap, positive):
    X, atoms = problem()
    best = lasso_codes(X, atoms, 0.3, TIGHT, positive=positive).objectives
    found = lasso_codes(X, atoms, 0.3, Accuracy(1e-1, gap, 5000), positive=positive)
    left = found.objectives - best
    assert (left <= gap * found.objectives).all()
    assert left.min() > -1e-8
    # A block knows the gaps themselves; they are above what is left.
    block = ALGORITHMS["greedy_cd"](
        X @ atoms.T,
        (X**2).sum(axis=1),
        unit=UnitAtoms.of(atoms @ atoms.T, 0.3, 12),
        positive=positive,
        codes=np.zeros((len(X), len(atoms))),
    )
    assert block.solve(Accuracy(1e-1, gap, 5000)) == 0
    gaps = block.gaps()
    assert (gaps <= gap * block.objectives()).all()
    assert (gaps >= block.objectives() - best - 1e-8).all()


def test_a_large_penalty_leaves_nothing():
    X, atoms = problem()
    alpha = abs(X @ atoms.T).max()
    assert not lasso_codes(X, atoms, alpha, TIGHT).values.any()
    assert lasso_codes(X, atoms, 0.99 * alpha, TIGHT).values.any()


def test_rows_that_have_not_settled_are_counted():
    X, atoms = problem()
    few = Accuracy(1e-12, None, 1)
    assert lasso_codes(X, atoms, 1e-3, few).n_unsettled == len(X)
    few = Accuracy(1e-3, 1e-12, 1)
    assert 0 < lasso_codes(X, atoms, 1e-3, few).n_unsettled <= len(X)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_of_rows_and_penalty_makes_no_difference(scale):
    X, atoms = problem()
    found = lasso_codes(scale * X, atoms, scale * 0.3, TIGHT).values
    expected = lasso_codes(X, atoms, 0.3, TIGHT).values
    np.testing.assert_allclose(found / scale, expected, atol=1e-4)


def test_no_rows():
    _, atoms = problem()
    found = lasso_codes(np.zeros((0, 12)), atoms, 0.3, TIGHT)
    assert found.values.shape == (0, 16)
    assert found.objectives.shape == (0,)


def alike(n_groups, n_each, spread, n_rows=40, n_features=30):
    """Rows, and groups of atoms that are nearly equal."""
    rng = np.random.default_rng(0)
    centres = np.repeat(rng.normal(size=(n_groups, n_features)), n_each, axis=0)
    atoms = centres + spread * rng.normal(size=centres.shape)
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    return rng.normal(size=(n_rows, n_groups)) @ centres[::n_each], atoms


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("positive", [False, True])
def test_atoms_that_are_much_alike(dtype, positive):
    """Steps alone, thousands of them, do not reach this gap."""
    X, atoms = alike(5, 4, 1e-3)
    options = {"positive": positive}
    found = lasso_codes(
        X.astype(dtype), atoms, 0.05, Accuracy(1e-2, 1e-6, 20), **options
    )
    assert found.n_unsettled == 0
    values = objectives(X, atoms, found.values.astype(np.float64), 0.05)
    best = lasso_codes(X, atoms, 0.05, Accuracy(1e-2, 1e-9, 20), **options)
    assert best.n_unsettled == 0
    squares = np.einsum("ij,ij->i", X, X)
    assert (values - best.objectives <= 2e-6 * squares).all()


def test_equal_atoms():
    X, atoms = alike(5, 3, 0.0)
    found = lasso_codes(X, atoms, 0.05, Accuracy(1e-2, 1e-8, 100))
    single = lasso_codes(X, atoms[::3], 0.05, Accuracy(1e-2, 1e-8, 100))
    assert found.n_unsettled == 0
    np.testing.assert_allclose(found.objectives, single.objectives, 1e-5)


def test_the_objective_falls_on_supports_and_signs_stay():
    X, atoms = alike(6, 3, 0.1)
    X = X + 0.3 * np.random.default_rng(1).normal(size=X.shape)
    unit = UnitAtoms.of(atoms @ atoms.T, 0.3, X.shape[1])
    before = lasso_codes(X, atoms, 0.3, Accuracy(1e-1, None, 1)).values
    after = before.copy()
    rows = np.arange(0, len(X), 2)
    solve_supports(after, rows, X @ (atoms / unit.lengths[:, None]).T, unit)
    np.testing.assert_array_equal(after[1::2], before[1::2])
    assert (after * before >= 0).all()
    assert ((before != 0) | (after == 0)).all()
    first, last = (objectives(X, atoms, codes, 0.3)[rows] for codes in (before, after))
    assert (last <= first + 1e-12).all()
    assert (last < first - 1e-6).sum() > len(rows) / 2
    # The slopes vanish where atoms are left.
    slopes = (X - after @ atoms) @ atoms.T - 0.3 * np.sign(after)
    assert np.abs(slopes[rows][after[rows] != 0]).max() < 1e-6


def test_supports_larger_than_the_rows():
    """No system has one solution: codes stay as they are."""
    rng = np.random.default_rng(0)
    X, atoms = rng.normal(size=(3, 4)), rng.normal(size=(9, 4))
    unit = UnitAtoms.of(atoms @ atoms.T, 0.1, 4)
    codes = rng.normal(size=(3, 9))
    codes[2] = 0
    before = codes.copy()
    solve_supports(codes, np.arange(3), X @ atoms.T, unit)
    np.testing.assert_array_equal(codes, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("gap", [None, 1e-5])
def test_zeros_are_exact(dtype, gap):
    """Steps there and back leave no rounding, and positive codes no signs."""
    X, atoms = problem(n_rows=40, n_features=20, n_atoms=24)
    X, alpha = X.astype(dtype), 0.3
    accuracy = Accuracy(1e-2, gap, 1000)
    lengths = np.linalg.norm(X, axis=1)[:, np.newaxis]
    for positive in (False, True):
        codes = lasso_codes(X, atoms, alpha, accuracy, positive=positive).values
        scaled = np.abs(codes) * np.linalg.norm(atoms, axis=1) / lengths
        assert not ((scaled > 0) & (scaled < 8 * np.finfo(dtype).eps)).any()
        assert (codes >= 0).all() == positive
