"""Sums for second-order steps against loops over rows."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.kernels import (
    Standardization,
    _descent,
    descent_sums,
    moment_sums,
    one_vs_rest_targets,
    smooth_loss,
)

CONTAINERS = [np.asarray, sparse.csr_matrix, sparse.csr_array]
WIDTHS, CAUTION = np.array([0.3, 0.1]), np.array([0.0, 0.4])


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((70, 5)) * (rng.random((70, 5)) < 0.5) + 0.0
    return X, rng.integers(0, 3, 70), rng.random(70)


def by_hand(X, targets, s, w, b, loss, width, caution, columns):
    """All sums of one problem, row by row."""
    sums = {"losses": 0.0, "smooth": 0.0, "gaps": 0.0, "intercept": 0.0}
    coef, hessian = np.zeros(X.shape[1]), np.zeros((columns.shape[1],) * 2)
    for x, z, y, weight in zip(X, columns, targets, s, strict=True):
        p = np.array([x @ w + b])
        found = smooth_loss(loss, np.array([y]), p, 0.1, width, caution)
        sums["losses"] += weight * found.values[0]
        sums["smooth"] += weight * found.smooth[0]
        sums["gaps"] += weight * found.gaps[0]
        sums["intercept"] += weight * found.slopes[0]
        coef += weight * found.slopes[0] * x
        hessian += weight * found.curvatures[0] * np.outer(z, z)
    return {**sums, "coef": coef, "hessian": hessian}


@pytest.mark.pairs
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("loss", ["hinge", "log_loss", "squared_hinge"])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("factors", [None, np.array([3.0, 0.5, 0.2])])
@pytest.mark.parametrize("numbers", [[2, 0], [1]])
@pytest.mark.parametrize("chunk", [None, 20])
@pytest.mark.parametrize("chosen", [None, np.array([[0, 3], [2, 4]])])
def test_some_problems(
    rows, container, loss, is_weighted, factors, numbers, chunk, chosen, monkeypatch
):
    if chunk is not None:
        monkeypatch.setattr(_descent, "_DENSE_ELEMENTS", chunk)
    X, codes, weight = rows
    s = weight if is_weighted else None
    rng = np.random.default_rng(1)
    problems = np.array(numbers)
    n_asked = len(problems)
    coef, intercept = rng.standard_normal((n_asked, 5)), rng.standard_normal(n_asked)
    scaling = Standardization(X.mean(axis=0), 1 + rng.random(5))
    found = descent_sums(
        container(X),
        codes,
        s,
        coef,
        intercept,
        loss=loss,
        epsilon=0.1,
        widths=WIDTHS[:n_asked],
        caution=CAUTION[:n_asked],
        problems=problems,
        n_problems=3,
        positive_weight=factors,
        standardization=scaling,
        columns=None if chosen is None else chosen[:n_asked],
    )
    columns = np.column_stack([(X - scaling.centre) / scaling.scale, np.ones(70)])
    targets = one_vs_rest_targets(codes, 3)
    for k, number in enumerate(problems):
        own = weight if is_weighted else np.ones(70)
        if factors is not None:
            own = own * np.where(codes == number, factors[number], 1)
        expected = by_hand(
            X,
            targets[:, number],
            own,
            coef[k],
            intercept[k],
            loss,
            WIDTHS[k],
            CAUTION[k],
            columns,
        )
        if chosen is not None:
            own = np.append(chosen[k], -1)  # the intercept is last
            expected["hessian"] = expected["hessian"][np.ix_(own, own)]
        for name, value in expected.items():
            np.testing.assert_allclose(
                getattr(found, name)[k], value, rtol=1e-10, atol=1e-10
            )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_problem_without_second_derivatives(rows, dtype):
    X, y, weight = rows[0].astype(dtype), rows[1] + 0.5, rows[2].astype(dtype)
    coef, intercept = np.full((1, 5), 0.3), np.array([0.1])
    found = descent_sums(
        X,
        y,
        weight,
        coef,
        intercept,
        loss="huber",
        epsilon=0.1,
        widths=WIDTHS[:1],
        caution=CAUTION[:1],
    )
    expected = by_hand(
        X.astype(float), y, weight, coef[0], 0.1, "huber", 0.3, 0.0, np.ones((70, 1))
    )
    assert found.hessian.shape == (0, 6, 6)
    assert all(array.dtype == np.float64 for array in found)
    for name in ("losses", "smooth", "gaps", "coef", "intercept"):
        np.testing.assert_allclose(getattr(found, name)[0], expected[name], rtol=1e-6)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments(rows, container, dtype):
    X, _, weight = rows
    X = X.astype(dtype)
    expected = [np.zeros(5), np.zeros(5)]
    for x, s in zip(X.astype(float), weight, strict=True):
        expected[0] += s * x
        expected[1] += s * x**2
    np.testing.assert_allclose(moment_sums(container(X), weight), expected, rtol=1e-12)
    once = moment_sums(container(X), None)
    np.testing.assert_allclose(once, moment_sums(container(X), np.ones(70)), rtol=1e-12)


def test_rows_far_from_a_kink_have_no_second_derivatives(monkeypatch):
    """Few rows lie at a narrow one, and the others are as flat as rounding tells."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1000, 4)), np.ones(1000)
    coef = np.array([[1.0, 0.0, 0.0, 0.0]])
    n_rows = []
    original = np.flatnonzero

    def noted(values):
        found = original(values)
        n_rows.append(len(found))
        return found

    monkeypatch.setattr(_descent.np, "flatnonzero", noted)
    found = descent_sums(
        X,
        y,
        None,
        coef,
        np.zeros(1),
        loss="hinge",
        epsilon=0.0,
        widths=np.array([1e-3]),
        caution=np.zeros(1),
        standardization=Standardization(np.zeros(4), np.ones(4)),
    )
    assert 0 < sum(n_rows) < 100
    assert found.hessian[0, 0, 0] > 0
