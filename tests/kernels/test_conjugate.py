import numpy as np
import pytest

from dask_ma.kernels import ConjugateGradients


def solve(H, b, **params):
    solver, n_products = ConjugateGradients(b, **params), 0
    while solver.direction is not None:
        solver.take(H @ solver.direction)
        n_products += 1
    return solver.solution, n_products


def make(n=12):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(n, n))
    return A @ A.T + np.eye(n), rng.normal(size=n)


def test_the_solution():
    H, b = make()
    x, n_products = solve(H, b, tol=1e-10, most=100)
    np.testing.assert_allclose(x, np.linalg.solve(H, b), rtol=1e-7)
    assert n_products <= 16


@pytest.mark.parametrize("tol", [0.5, 1e-2])
def test_what_is_left(tol):
    H, b = make()
    x, n_products = solve(H, b, tol=tol, most=100)
    assert np.linalg.norm(b - H @ x) <= tol * np.linalg.norm(b)
    assert n_products < 12
    assert solve(H, b, tol=0.0, most=3)[1] == 3


def test_nothing_to_do():
    assert solve(np.eye(3), np.zeros(3), tol=0.1, most=5)[1] == 0
    x, n_products = solve(np.zeros((3, 3)), np.ones(3), tol=0.1, most=5)
    assert n_products == 1 and not x.any()


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_what_is_about_the_inverse_saves_products(share):
    """The inverse itself all but one, whatever it is multiplied by."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(30, 20))
    H, b = root.T @ root + np.diag(10.0 ** np.arange(-3, 2).repeat(4)), np.ones(20)

    inverse = share * np.linalg.inv(H)
    near = np.linalg.inv(H + np.diag(rng.random(20)))
    found = [
        solve(H, b, tol=1e-6, most=500, precondition=precondition)
        for precondition in (inverse.dot, near.dot, None)
    ]
    for x, _ in found:
        np.testing.assert_allclose(H @ x, b, atol=1e-3)
    counts = [n_products for _, n_products in found]
    assert counts[0] == 1 < counts[1] < counts[2]
