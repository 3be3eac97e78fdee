"""Algorithms for codes: one against the other, what they share, and fits by each."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import sparse_encode
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SFBDictionaryLearning
from dask_ma.sfb.dictionary import _codes
from dask_ma.sfb.dictionary._block import Accuracy, UnitAtoms
from dask_ma.sfb.dictionary._codes import ALGORITHMS, ROUGH, lasso_codes
from dask_ma.sfb.dictionary._descent import CyclicDescent

TIGHT = Accuracy(step=1e-3, gap=1e-10, max_sweeps=5000)
RNG = np.random.default_rng(0)
OTHERS = [name for name in ALGORITHMS if name != "greedy_cd"]


def problem(n_rows=12, n_features=12, n_atoms=40, seed=0):
    """Rows, and atoms of several lengths, one of which is zero."""
    rng = np.random.default_rng(seed)
    atoms = rng.normal(size=(n_atoms, n_features))
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    atoms *= np.linspace(0.5, 1, n_atoms)[:, None]
    atoms[4] = 0
    return rng.normal(size=(n_rows, n_features)), atoms


def objectives(X, atoms, codes, alpha):
    rest = X - codes @ atoms
    return 0.5 * (rest**2).sum(axis=1) + alpha * abs(codes).sum(axis=1)


def gaps(X, atoms, codes, alpha, positive):
    """Duality gaps, one row after the other."""
    found = []
    for x, c in zip(X, codes, strict=True):
        rest = x - c @ atoms
        products = atoms @ rest
        most = products.max() if positive else abs(products).max()
        point = rest * min(1, alpha / most)
        dual = 0.5 * (x @ x - (x - point) @ (x - point))
        found.append(0.5 * rest @ rest + alpha * abs(c).sum() - dual)
    return np.array(found)


# One against the other ----------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("alpha", [0.05, 0.4])
@pytest.mark.parametrize("algorithm", OTHERS)
def test_the_same_codes(algorithm, alpha, positive):
    X, atoms = problem()
    options = {"positive": positive}
    found = lasso_codes(X, atoms, alpha, TIGHT, algorithm=algorithm, **options)
    expected = lasso_codes(X, atoms, alpha, TIGHT, **options)
    assert found.n_unsettled == expected.n_unsettled == 0
    np.testing.assert_allclose(found.values, expected.values, atol=1e-3)
    np.testing.assert_allclose(found.objectives, expected.objectives, rtol=1e-8)
    values = objectives(X, atoms, found.values, alpha)
    np.testing.assert_allclose(found.objectives, values, rtol=1e-8)
    assert not positive or (found.values >= 0).all()
    assert not found.values[:, 4].any()


@pytest.mark.each
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-7])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_gap_that_was_asked_for(algorithm, gap, positive):
    X, atoms = problem(n_rows=40)
    accuracy = Accuracy(1e-1, gap, 5000)
    options = {"positive": positive, "algorithm": algorithm}
    found = lasso_codes(X, atoms, 0.1, accuracy, **options)
    left = gaps(X, atoms, found.values, 0.1, positive)
    assert found.n_unsettled == 0
    assert (left <= 1.001 * gap * found.objectives).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_codes_of_scikit_learn(algorithm):
    X, atoms = problem(n_atoms=16)
    found = lasso_codes(X, atoms, 0.3, TIGHT, algorithm=algorithm).values
    expected = sparse_encode(X, atoms, algorithm="lasso_cd", alpha=0.3, max_iter=10000)
    values = [objectives(X, atoms, codes, 0.3) for codes in (found, expected)]
    assert (values[0] <= values[1] + 1e-9).all()
    np.testing.assert_allclose(*values, rtol=1e-3)


def test_steps_of_one_coefficient_after_the_other():
    """A sweep by blocks of atoms is that of a plain loop."""
    X, atoms = problem()
    unit, codes = UnitAtoms.of(atoms @ atoms.T, 0.2, 12), np.zeros((12, 40))
    known = X @ atoms.T, (X**2).sum(axis=1)
    block = CyclicDescent(*known, unit=unit, positive=False, codes=codes)
    block.solve(Accuracy(0.0, None, 3))
    expected = np.zeros((12, 40))
    for _ in range(3):
        for j in np.flatnonzero(np.isfinite(unit.penalties)):
            unit_atoms = atoms / unit.lengths[:, None]
            best = (X - expected @ unit_atoms) @ unit_atoms[j] + expected[:, j]
            sizes = np.maximum(abs(best) - unit.penalties[j], 0)
            expected[:, j] = np.sign(best) * sizes
    np.testing.assert_allclose(codes, expected, atol=1e-12)


@pytest.mark.parametrize("n_atoms", [1, 30, 150])
def test_the_largest_eigenvalue(n_atoms):
    """The steps of FISTA must not be longer than it says; atoms may be pairs."""
    atoms = RNG.normal(size=(n_atoms, 20))
    for given in (atoms, np.vstack([atoms, -atoms])):
        unit = UnitAtoms.of(given @ given.T, 0.1, 20)
        largest = np.linalg.eigvalsh(unit.gram)[-1]
        assert largest * (1 - 1e-9) <= unit.curvature <= 1.05 * largest


# What they share ----------------------------------------------------------------------


@pytest.mark.parametrize("accuracy", [ROUGH, TIGHT], ids=["rough", "tight"])
@pytest.mark.parametrize("algorithm", OTHERS)
def test_rows_of_zeros_and_no_rows(algorithm, accuracy):
    X, atoms = problem()
    X[3] = 0
    found = lasso_codes(X, atoms, 0.3, accuracy, algorithm=algorithm)
    assert not found.values[3].any()
    assert found.objectives[3] == 0
    none = lasso_codes(X[:0], atoms, 0.3, accuracy, algorithm=algorithm)
    assert none.values.shape == (0, 40)
    nothing = lasso_codes(X, 0 * atoms, 0.3, accuracy, algorithm=algorithm)
    assert not nothing.values.any()


@pytest.mark.parametrize("algorithm", OTHERS)
def test_sparse_rows_are_never_made_dense(algorithm, monkeypatch):
    X, atoms = problem()
    X[abs(X) < 0.8] = 0
    rows = sparse.csr_array(X)
    monkeypatch.setattr(sparse.csr_array, "toarray", None)
    found = lasso_codes(rows, atoms, 0.3, TIGHT, algorithm=algorithm)
    expected = lasso_codes(X, atoms, 0.3, TIGHT, algorithm=algorithm)
    np.testing.assert_allclose(found.objectives, expected.objectives, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("algorithm", OTHERS)
def test_the_scale_makes_no_difference(algorithm, scale):
    X, atoms = problem(n_atoms=16)
    found = lasso_codes(scale * X, atoms, scale * 0.3, TIGHT, algorithm=algorithm)
    expected = lasso_codes(X, atoms, 0.3, TIGHT, algorithm=algorithm).values
    np.testing.assert_allclose(found.values / scale, expected, atol=1e-4)


@pytest.mark.parametrize("algorithm", OTHERS)
def test_a_row_does_not_depend_on_others(algorithm, monkeypatch):
    X, atoms = problem(n_rows=90)
    accuracy = Accuracy(1e-3, 1e-6, 5000)
    whole = lasso_codes(X, atoms, 0.3, accuracy, algorithm=algorithm)
    monkeypatch.setattr(_codes, "_BLOCK_BYTES", 1)
    parts = lasso_codes(X, atoms, 0.3, accuracy, algorithm=algorithm)
    np.testing.assert_allclose(parts.values, whole.values, atol=1e-6)


@pytest.mark.parametrize("algorithm", OTHERS)
def test_float32(algorithm):
    X, atoms = problem()
    accuracy = Accuracy(1e-3, 1e-4, 1000)
    rows = X.astype(np.float32)
    found = lasso_codes(rows, atoms, 0.3, accuracy, algorithm=algorithm)
    best = lasso_codes(X, atoms, 0.3, TIGHT).objectives
    assert found.values.dtype == found.objectives.dtype == np.float32
    assert found.n_unsettled == 0
    assert (found.objectives - best <= 1.1e-4 * (X**2).sum(axis=1)).all()


@pytest.mark.parametrize("algorithm", ["fista", "cd"])
def test_rows_that_have_not_settled_are_counted(algorithm):
    X, atoms = problem()
    few = Accuracy(1e-12, None, 1)
    assert lasso_codes(X, atoms, 1e-3, few, algorithm=algorithm).n_unsettled == len(X)
    few = Accuracy(1e-3, 1e-12, 1)
    assert lasso_codes(X, atoms, 1e-3, few, algorithm=algorithm).n_unsettled > 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rough_codes_are_near_the_best(algorithm):
    X, atoms = problem(n_rows=60, n_atoms=16)
    found = lasso_codes(X, atoms, 0.3, ROUGH, algorithm=algorithm)
    best = lasso_codes(X, atoms, 0.3, TIGHT).objectives
    assert found.n_unsettled == 0
    assert (found.objectives <= 1.02 * best).all()


def test_equal_atoms_say_nothing_to_the_user():
    """Least angle regression drops some, which is of no interest."""
    X, atoms = problem(n_atoms=16)
    twice = np.vstack([atoms, atoms])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lasso_codes(X, twice, 0.3, TIGHT, algorithm="lars")
    one = lasso_codes(X, atoms, 0.3, TIGHT)
    np.testing.assert_allclose(found.objectives, one.objectives, rtol=1e-7)


# Fits ---------------------------------------------------------------------------------


def signals(n_rows=120):
    """Sums of a few of eight directions."""
    rng = np.random.default_rng(1)
    codes = rng.normal(size=(n_rows, 8)) * (rng.random((n_rows, 8)) < 0.3)
    return codes @ rng.normal(size=(8, 12)) + 0.05 * rng.normal(size=(n_rows, 12))


def model(**params):
    fixed = {"n_components": 10, "alpha": 0.3, "batch_size": 60, "max_iter": 4}
    ends = {"tol": 0, "max_no_improvement": None, "random_state": 0}
    return SFBDictionaryLearning(**{**fixed, **ends, **params})


@pytest.mark.each
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("algorithm", OTHERS)
@pytest.mark.parametrize("solver", ["online", "sgd"])
def test_fits_end_alike(solver, algorithm, positive):
    X = signals()
    found = [
        model(solver=solver, fit_algorithm=name, positive_code=positive).fit(X)
        for name in ("greedy_cd", algorithm)
    ]
    last = [np.mean([r["objective"] for r in m.history_[-4:]]) for m in found]
    # Errors of codes, which are rough, may lead to other atoms.
    assert last[1] == pytest.approx(last[0], rel=0.12)
    codes = found[1].transform(X)
    assert not positive or (codes >= 0).all()


@pytest.mark.parametrize("algorithm", OTHERS)
def test_any_number_of_ranks(algorithm):
    X = signals()
    one, four = (
        model(fit_algorithm=algorithm, n_ranks=n, shuffle=False, batch_size=120).fit(X)
        for n in (1, 4)
    )
    np.testing.assert_allclose(one.components_, four.components_, atol=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_transform_as_in_the_fit(algorithm):
    X = signals()
    learner = model(fit_algorithm=algorithm).fit(X)
    expected = learner.transform(X)
    same = learner.set_params(transform_algorithm=algorithm).transform(X)
    np.testing.assert_array_equal(same, expected)
    values = []
    for name in {"greedy_cd", algorithm}:
        codes = learner.set_params(transform_algorithm=name).transform(X)
        values.append(objectives(X, learner.components_, codes, 0.3))
    for each in values[1:]:
        assert (abs(each - values[0]) <= 1.1e-4 * (X**2).sum(axis=1)).all()


@pytest.mark.parametrize(
    ("theirs", "ours"), [("lasso_cd", "cd"), ("lasso_lars", "lars")]
)
def test_transform_by_the_names_of_scikit_learn(theirs, ours):
    X = signals()
    learner = model(transform_max_iter=200).fit(X)
    codes = learner.set_params(transform_algorithm=ours).transform(X)
    learner = clone(learner).set_params(transform_algorithm=theirs).fit(X)
    np.testing.assert_array_equal(learner.transform(X), codes)


def test_too_few_sweeps_are_told():
    X = signals()
    learner = model(fit_algorithm="fista", transform_max_iter=2, alpha=1e-3).fit(X)
    with pytest.warns(ConvergenceWarning, match="raise transform_max_iter"):
        learner.transform(X)


@pytest.mark.parametrize("name", ["fit_algorithm", "transform_algorithm"])
def test_names_that_there_are_not(name):
    with pytest.raises(ValueError, match=f"'{name}' parameter"):
        model(**{name: "greedy"}).fit(signals())
