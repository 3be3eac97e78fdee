"""Second derivatives of the multinomial log loss, against finite differences."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.kernels import (
    _gram,
    _hessian,
    softmax,
    softmax_hessian,
    softmax_slopes,
    weighted_gram,
)


@pytest.mark.parametrize("kind", ["dense", "csr", "thin"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_against_differences_of_slopes(n_outputs, weighted, kind, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25, 4)) * (rng.random((25, 4)) < 0.7)
    y = rng.integers(0, max(2, n_outputs), 25)
    weight = rng.uniform(0, 2, 25) if weighted else None
    W, b = rng.normal(size=(4, n_outputs)), rng.normal(size=n_outputs)
    ones = np.c_[X, np.ones(25)]  # the intercept is the feature after the last

    def gradient(values):
        return ones.T @ softmax_slopes(ones @ values, y, weight)

    features = np.array([0, 4, 2, 1, 4, 3, 0])[: 4 + n_outputs]
    outputs = np.array([0, 0, 1, 2, 1, 0, 2])[: 4 + n_outputs] % n_outputs
    expected = np.zeros((len(features), len(features)))
    point, width = np.vstack([W, b]), 1e-5
    for column, place in enumerate(zip(features, outputs, strict=True)):
        step = np.zeros_like(point)
        step[place] = width
        change = gradient(point + step) - gradient(point - step)
        expected[:, column] = change[features, outputs] / (2 * width)
    rows = X if kind == "dense" else sparse.csr_array(X)
    for module in (_hessian, _gram):
        monkeypatch.setattr(module, "_THIN", 1.0 if kind == "thin" else 0.0)
    p = softmax(X @ W + b)
    for chunk in (2**20, 7 * len(features)):  # a few rows at a time
        monkeypatch.setattr(_hessian, "_CHUNK", chunk)
        monkeypatch.setattr(_gram, "_CHUNK", chunk)
        found = softmax_hessian(rows, p, weight, features, outputs)
        np.testing.assert_allclose(found, expected, atol=1e-7)
        np.testing.assert_allclose(found, found.T, atol=1e-12)


def test_columns_are_thin_by_what_they_store(monkeypatch):
    """As often as a variable names them; of one output others look at that."""
    monkeypatch.setattr(_hessian, "_of_thin_columns", lambda *args: "thin")
    X = sparse.eye_array(30, format="csr")
    p, features = np.full((30, 3), 1 / 3), np.arange(31)  # the last is the intercept
    outputs = features % 3
    assert isinstance(softmax_hessian(X, p, None, features, outputs), str)
    full = sparse.csr_array(np.ones((30, 30)))
    assert not isinstance(softmax_hessian(full, p, None, features, outputs), str)
    zeros, shapes = np.zeros_like(outputs), []

    def gram(X, weight):
        shapes.append(X.shape if sparse.issparse(X) else None)
        return weighted_gram(X, weight)

    monkeypatch.setattr(_hessian, "weighted_gram", gram)
    assert not isinstance(softmax_hessian(X, p[:, :1], None, features, zeros), str)
    assert shapes == [(30, 30)]
