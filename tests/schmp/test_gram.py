"""Gram matrices by their columns, against those that are there."""

import numpy as np
import pytest

from dask_ma.schmp.l1._gram import ColumnGram, ReducedGram, ScaledGram, WholeGram
from dask_ma.schmp.l1._quadratic import Quadratic, minimize


def make_columns(n, n_rows=12, seed=0):
    return np.random.default_rng([n, n_rows, seed]).normal(size=(n, n_rows))


def of_columns(columns):
    gram = ColumnGram()
    gram.exchange(np.zeros(0, dtype=bool), columns)
    return gram


def test_columns_come_and_go():
    """Products that are known move with their columns; the others are worked out."""
    rng = np.random.default_rng(0)
    gram, columns = ColumnGram(), np.zeros((0, 12))
    for step in range(30):
        kept = rng.random(len(columns)) < (0.0 if step == 20 else 0.7)
        if step % 5 == 1:
            kept[:] = True
        new = make_columns(int(rng.integers(1, 20)), seed=step)
        gram.exchange(kept, None if step % 7 == 3 else new)
        columns = columns[kept]
        if step % 7 != 3:
            columns = np.concatenate([columns, new])
        np.testing.assert_array_equal(gram.columns, columns)
        for _ in range(2):
            index = rng.permutation(len(columns))[: rng.integers(len(columns) + 1)]
            expected = columns[index] @ columns[index].T
            np.testing.assert_allclose(gram.block(index), expected, atol=1e-12)
        coef = rng.normal(size=len(columns))
        expected = columns @ columns.T @ coef
        np.testing.assert_allclose(gram.dot(coef), expected, atol=1e-11)


def test_a_block_is_a_copy():
    columns = make_columns(6)
    index = np.array([4, 1])
    for gram in (of_columns(columns), WholeGram(columns @ columns.T)):
        gram.block(index)[:] = 0
        expected = columns[index] @ columns[index].T
        np.testing.assert_allclose(gram.block(index), expected, atol=1e-12)


@pytest.mark.parametrize("scaled", [False, True])
def test_ridge_and_units(scaled):
    columns, rng = make_columns(9), np.random.default_rng(1)
    ridge, coef = rng.random(9), rng.normal(size=9)
    scale = rng.random(9) + 0.5 if scaled else None
    units = np.ones(9) if scale is None else scale
    whole = columns @ columns.T
    expected = units[:, np.newaxis] * (whole + np.diag(ridge)) * units
    index = np.array([8, 0, 3])
    for gram in (of_columns(columns), WholeGram(whole)):
        adjusted = ScaledGram(gram, ridge, scale)
        np.testing.assert_allclose(adjusted.dot(coef), expected @ coef, atol=1e-11)
        block = expected[np.ix_(index, index)]
        np.testing.assert_allclose(adjusted.block(index), block, atol=1e-12)
        np.testing.assert_allclose(adjusted.rows(index), expected[index], atol=1e-12)


def test_coefficients_that_are_always_at_their_best():
    """What is left is the Schur complement, without the whole of it."""
    columns, rng = make_columns(9), np.random.default_rng(2)
    whole = columns @ columns.T
    free, index = np.array([2, 7]), np.array([0, 1, 3, 4, 5, 6, 8])
    cross = whole[np.ix_(free, index)]
    solved = np.linalg.solve(whole[np.ix_(free, free)], cross)
    expected = whole[np.ix_(index, index)] - cross.T @ solved
    some, coef = np.array([6, 0, 3]), rng.normal(size=7)
    for gram in (of_columns(columns), WholeGram(whole)):
        reduced = ReducedGram(gram, index, cross, solved)
        np.testing.assert_allclose(reduced.dot(coef), expected @ coef, atol=1e-11)
        block = expected[np.ix_(some, some)]
        np.testing.assert_allclose(reduced.block(some), block, atol=1e-11)
        np.testing.assert_allclose(reduced.rows(some), expected[some], atol=1e-11)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("weights", ["even", "uneven", "some free", "all free"])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_the_same_minimum(weights, positive, ridge):
    """More coefficients than come into one turn, and more than there are rows."""
    n, n_rows = 400, 40
    rng = np.random.default_rng(3)
    columns = make_columns(n, n_rows) / np.sqrt(n_rows)
    y = rng.normal(size=n_rows) / np.sqrt(n_rows)
    if weights == "all free":
        columns, n = columns[:10], 10
    l1 = np.full(n, 0.05)
    if weights == "uneven":
        l1 *= rng.random(n) + 0.5
    elif weights != "even":
        l1[: n if weights == "all free" else 5] = 0.0
    found = []
    for gram in (of_columns(columns), WholeGram(columns @ columns.T)):
        adjusted = ScaledGram(gram, np.full(n, ridge))
        problem = Quadratic(adjusted, columns @ y, l1, float(y @ y), positive)
        found.append(minimize(problem, np.zeros(n), 1e-15))
    by_columns, expected = found
    assert np.count_nonzero(expected) >= 10
    np.testing.assert_allclose(by_columns, expected, atol=1e-9)
    slope = columns @ (by_columns @ columns - y) + ridge * by_columns
    pull = -slope if positive else np.abs(slope)
    pull = np.where(l1 == 0, np.abs(slope), pull)
    assert (pull <= l1 + 1e-7).all()
