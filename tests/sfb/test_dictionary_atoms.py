"""Updates of atoms, against slow loops and finite differences."""

import numpy as np
import pytest
from scipy import optimize

from dask_ma.sfb.dictionary import _atoms
from dask_ma.sfb.dictionary._atoms import (
    Statistics,
    descend_on_atoms,
    mean_usage,
    step_along_gradient,
    unused,
    within_ball,
)
from dask_ma.sfb.dictionary._sums import BatchSums

N_ATOMS, N_FEATURES = 40, 7  # atoms of more than one block


def batch(n_rows=60, seed=0):
    """Rows, codes, and their sums."""
    rng = np.random.default_rng(seed)
    codes = rng.normal(size=(n_rows, N_ATOMS)) * (rng.random((n_rows, N_ATOMS)) < 0.3)
    X = rng.normal(size=(n_rows, N_FEATURES))
    return X, codes, BatchSums(codes.T @ codes, codes.T @ X, n_rows, 0.0)


def some_atoms(seed=1):
    atoms = np.random.default_rng(seed).normal(size=(N_ATOMS, N_FEATURES))
    return within_ball(atoms / np.linalg.norm(atoms, axis=1, keepdims=True))


def statistics_of(sums):
    empty = Statistics.empty(N_ATOMS, N_FEATURES, np.dtype(np.float64))
    return empty.added(sums)


def loss(X, codes, atoms):
    return 0.5 * ((X - codes @ atoms) ** 2).sum()


@pytest.mark.parametrize("positive", [False, True])
def test_each_atom_takes_its_best_value(positive):
    """A slow loop: least squares for one atom, then the nearest one in the ball."""
    X, codes, sums = batch()
    atoms = some_atoms()
    found = descend_on_atoms(atoms, statistics_of(sums), positive=positive)
    expected = atoms.copy()
    for j in range(N_ATOMS):
        others = np.delete(np.arange(N_ATOMS), j)
        rest = X - codes[:, others] @ expected[others]
        atom = codes[:, j] @ rest / (codes[:, j] @ codes[:, j])
        atom = np.maximum(atom, 0) if positive else atom
        expected[j] = atom / max(1, np.linalg.norm(atom))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert loss(X, codes, found) < loss(X, codes, atoms) or positive


def test_passes_over_atoms_lead_to_the_minimum():
    X, codes, sums = batch()
    known, atoms = statistics_of(sums), some_atoms()
    for _ in range(300):
        atoms = descend_on_atoms(atoms, known)
    lengths = np.linalg.norm(atoms, axis=1)
    assert lengths.max() <= 1 + 1e-12
    slopes = codes.T @ (codes @ atoms - X)
    # At the minimum a slope is 0, or it points inwards at the edge of the ball.
    is_inside = lengths < 1 - 1e-9
    assert is_inside.any() and not is_inside.all()
    np.testing.assert_allclose(slopes[is_inside], 0, atol=1e-6)
    edge = ~is_inside
    along = (slopes[edge] * atoms[edge]).sum(axis=1, keepdims=True)
    assert (along <= 1e-9).all()
    np.testing.assert_allclose(slopes[edge], along * atoms[edge], atol=1e-6)


def test_atoms_without_a_use_stay():
    _, _, sums = batch()
    sums.codes[3] = sums.codes[:, 3] = sums.rows[3] = 0
    atoms = some_atoms()
    found = descend_on_atoms(atoms, statistics_of(sums))
    np.testing.assert_array_equal(found[3], atoms[3])
    assert (found[4] != atoms[4]).any()
    zeros = BatchSums(0 * sums.codes, 0 * sums.rows, 60, 0.0)
    found = descend_on_atoms(atoms, statistics_of(zeros))
    np.testing.assert_array_equal(found, atoms)
    assert found is not atoms


def test_a_step_goes_along_the_gradient():
    X, codes, sums = batch()
    atoms = 0.5 * some_atoms()
    usage = np.linspace(1, 2, N_ATOMS)
    step = 1e-3
    found = step_along_gradient(atoms, sums, usage, step)
    slopes = optimize.approx_fprime(
        atoms.ravel(), lambda flat: loss(X, codes, flat.reshape(atoms.shape)), 1e-7
    )
    expected = -step * slopes.reshape(atoms.shape) / 60 / usage[:, None]
    np.testing.assert_allclose(found - atoms, expected, atol=1e-6)
    # Atoms at the edge come back into the ball; those that are hardly used go on.
    usage[0] = 0
    far = step_along_gradient(some_atoms(), sums, usage, 10.0, positive=True)
    assert np.isfinite(far).all()
    assert far.min() == 0
    assert np.linalg.norm(far, axis=1).max() <= 1 + 1e-12


def test_a_step_without_codes_leaves_all_as_it_is():
    _, _, sums = batch()
    atoms = some_atoms()
    found = step_along_gradient(atoms, sums, np.zeros(N_ATOMS), 0.1)
    np.testing.assert_array_equal(found, atoms)


def test_within_the_ball():
    atoms = np.array([[3.0, 4.0], [0.3, -0.4], [0.0, 0.0], [-3.0, 4.0]])
    expected = [[0.6, 0.8], [0.3, -0.4], [0, 0], [-0.6, 0.8]]
    np.testing.assert_allclose(within_ball(atoms), expected)
    expected = [[0.6, 0.8], [0.3, 0], [0, 0], [0, 1]]
    np.testing.assert_allclose(within_ball(atoms, positive=True), expected)
    assert atoms[0, 0] == 3  # not changed


def test_statistics_are_weighted_means():
    """Weights follow from the rows that were seen before and after a batch."""
    known = Statistics.empty(N_ATOMS, N_FEATURES, np.dtype(np.float64))
    sizes = [60, 20, 100]
    batches = [batch(n, seed) for seed, n in enumerate(sizes)]
    for _, _, sums in batches:
        known = known.added(sums)
    seen = np.cumsum([0, *sizes])
    weights = np.diff((seen / seen[-1]) ** _atoms._FORGETTING)
    assert known.n_seen == 180
    expected = sum(
        w * codes.T @ codes / len(X)
        for w, (X, codes, _) in zip(weights, batches, strict=True)
    )
    np.testing.assert_allclose(known.codes, expected)
    expected = sum(
        w * codes.T @ X / len(X)
        for w, (X, codes, _) in zip(weights, batches, strict=True)
    )
    np.testing.assert_allclose(known.rows, expected)
    np.testing.assert_allclose(known.usage, known.codes.diagonal())


def test_statistics_without_some_atoms():
    known = statistics_of(batch()[2])
    less = known.without(np.array([2, 5]))
    assert not less.codes[[2, 5]].any() and not less.codes[:, [2, 5]].any()
    assert not less.rows[[2, 5]].any()
    others = np.delete(np.arange(N_ATOMS), [2, 5])
    np.testing.assert_array_equal(less.rows[others], known.rows[others])
    assert known.codes[2].any()  # not changed


def test_unused_atoms():
    usage = np.array([1.0, 0.0, 1e-7, 0.5, 1e-5])
    np.testing.assert_array_equal(unused(usage), [1, 2])
    assert len(unused(np.zeros(3))) == 0


def test_mean_usage():
    usage = np.zeros(N_ATOMS)
    means = []
    seen = 0
    for seed in range(40):
        _, codes, sums = batch(60, seed)
        usage = mean_usage(usage, sums, seen, sums.n_rows)
        seen += 60
        means.append((codes**2).mean(axis=0))
        if seed == 9:
            np.testing.assert_allclose(usage, np.mean(means, axis=0))
    # Later on, the newest has a twentieth of the weight.
    before = usage
    usage = mean_usage(usage, sums, seen, sums.n_rows)
    np.testing.assert_allclose(usage, 0.95 * before + 0.05 * means[-1])
