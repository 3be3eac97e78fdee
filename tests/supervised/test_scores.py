"""Scores from sums over all ranks."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, r2_score

from dask_ma.comm import LocalGroup
from dask_ma.data import Block, Shard
from dask_ma.supervised import score, score_sums, spread_of

N = 60


@pytest.fixture(params=[False, True], ids=["plain", "weighted"])
def weight(request):
    return np.random.default_rng(1).uniform(0.5, 2, N) if request.param else None


def shards(X, y, weight):
    """The rows of two ranks, of which the first has two blocks."""
    cuts = [slice(0, 10), slice(10, 35), slice(35, N)]
    blocks = [
        Block(X[rows], y[rows], None if weight is None else weight[rows], i, rows.start)
        for i, rows in enumerate(cuts)
    ]
    return [Shard(own, X.shape[1], X.dtype) for own in (blocks[:2], blocks[2:])]


def in_chunks(function, size):
    def predict(X):
        for start in range(0, len(X), size):
            rows = slice(start, start + size)
            yield rows, function(X[rows])

    return predict


@pytest.mark.parametrize("size", [1, 7, 100])
def test_accuracy(weight, size):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3))
    outputs = {
        "two classes": (lambda X: X[:, 0], rng.integers(0, 2, N)),
        "three classes": (lambda X: X, rng.integers(0, 3, N)),
        "labels": (lambda X: X[:, :2], (X[:, :2] + rng.normal(size=(N, 2)) > 0) * 1),
    }
    for name, (function, y) in outputs.items():
        predict = in_chunks(function, size)
        own = [
            score_sums(shard, predict, is_classifier=True)
            for shard in shards(X, y, weight)
        ]
        found = function(X)
        codes = found > 0 if name != "three classes" else found.argmax(axis=1)
        expected = accuracy_score(y, codes, sample_weight=weight)
        assert score(sum(own), is_classifier=True) == pytest.approx(expected), name


@pytest.mark.parametrize("size", [1, 7, 100])
def test_coefficient_of_determination(weight, size):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3))
    y = X[:, 0] + rng.normal(size=N)
    predict = in_chunks(lambda X: X[:, 0], size)
    own = [
        score_sums(shard, predict, is_classifier=False)
        for shard in shards(X, y, weight)
    ]
    expected = r2_score(y, X[:, 0], sample_weight=weight)
    assert score(sum(own), is_classifier=False) == pytest.approx(expected)


def test_the_mean_over_several_targets(weight):
    """Each in its own variation, whatever their units."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3))
    y = X + rng.normal(size=(N, 3)) * [0.1, 1.0, 2.0]
    scales = np.array([1.0, 100.0, 0.01])
    [group] = LocalGroup.create(1)
    cuts = [slice(0, 35), slice(35, N)]
    parts = [None if weight is None else weight[rows] for rows in cuts]
    blocks = [
        Block(X[rows], y[rows] * scales, part, i, rows.start)
        for i, (rows, part) in enumerate(zip(cuts, parts, strict=True))
    ]
    whole = Shard(blocks, 3, X.dtype)
    spread = spread_of(group, whole, 3)
    predict = in_chunks(lambda X: X * scales, 9)
    sums = score_sums(whole, predict, is_classifier=False, spread=spread)
    expected = r2_score(y, X, sample_weight=weight, multioutput="uniform_average")
    assert score(sums, is_classifier=False) == pytest.approx(expected)
