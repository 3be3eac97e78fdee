"""Orthonormal bases against the vectors that they are of."""

import numpy as np
import pytest

from dask_ma.kernels import orthonormal_basis


def check(vectors, rank):
    """Orthonormal, as many as there have to be, and nothing of the vectors is lost."""
    basis = orthonormal_basis(vectors)
    assert basis.shape == (len(vectors), rank)
    np.testing.assert_allclose(basis.T @ basis, np.eye(rank), atol=1e-8)
    left = vectors - basis @ (basis.T @ vectors)
    lengths = np.linalg.norm(vectors, axis=0)
    assert (np.linalg.norm(left, axis=0) <= 1e-12 * lengths.max()).all()


@pytest.mark.parametrize("power", [0, 2, 4, 6, 9])
@pytest.mark.parametrize("size", [1e-100, 1.0, 1e100])
def test_lengths_that_are_far_apart(power, size):
    rng = np.random.default_rng(power)
    vectors = rng.normal(size=(200, 12)) * np.logspace(0, power, 12)
    # Some of them in the direction of the longest one, as far from the origin.
    vectors += vectors[:, -1:]
    check(size * vectors, 12)


def test_vectors_that_depend_on_each_other():
    vectors = np.random.default_rng(0).normal(size=(50, 6))
    vectors = np.column_stack([vectors, vectors[:, :2], vectors.sum(axis=1)])
    check(vectors, 6)


def test_one_vector_and_none():
    check(np.arange(5.0)[:, np.newaxis], 1)
    np.testing.assert_array_equal(orthonormal_basis(np.zeros((4, 3))), np.eye(4, 1))
    assert orthonormal_basis(np.zeros((0, 3))).shape == (0, 1)
