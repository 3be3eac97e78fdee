"""Dictionaries of rows with weights."""

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dask_ma import SFBDictionaryLearning

RNG = np.random.default_rng(0)
ATOMS = RNG.normal(size=(4, 7))
X = RNG.laplace(size=(60, 4)) * (RNG.random((60, 4)) < 0.5) @ ATOMS
X += 0.1 * RNG.normal(size=X.shape)
TIMES = RNG.integers(0, 4, 60)
KINDS = pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])


def learnt(rows, weight=None, **params):
    given = {"alpha": 0.3, "max_iter": 4, "batch_size": 1000, "dict_init": ATOMS}
    given |= {"random_state": 0, "tol": 0, "resample_unused": False}
    model = SFBDictionaryLearning(4, **{**given, **params})
    return model.fit(rows, sample_weight=weight)


@pytest.mark.pairs
@KINDS
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("communication", ["statistics", "factors"])
@pytest.mark.parametrize("solver", ["online", "sgd"])
def test_weights_are_repetitions(kind, n_ranks, communication, solver):
    """With all rows in each batch."""
    params = {"communication": communication, "solver": solver, "n_ranks": n_ranks}
    model = learnt(kind(X), TIMES * 0.25, **params)
    repeated = learnt(kind(np.repeat(X, TIMES, axis=0)), **params)
    np.testing.assert_allclose(model.components_, repeated.components_, atol=1e-8)
    ours, theirs = (
        [record["objective"] for record in each.history_] for each in (model, repeated)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    plain = learnt(kind(X[TIMES > 0]), **params)
    assert np.abs(model.components_ - plain.components_).max() > 1e-3


def test_weights_of_batches_apart():
    """Equal weights change nothing, others do; on ranks that learn by themselves."""
    rows = np.tile(X, (40, 1))
    params = {"batch_size": 50, "n_ranks": 2, "merge_every": 3}
    plain = learnt(rows, **params)
    equal = learnt(rows, np.full(len(rows), 7.0), **params)
    np.testing.assert_allclose(equal.components_, plain.components_, atol=1e-9)
    other = learnt(rows, np.tile(TIMES, 40), **params)
    assert np.abs(other.components_ - plain.components_).max() > 1e-3


def test_weights_of_blocks_and_parts():
    lazy, weight = da.from_array(X, chunks=(20, -1)), da.from_array(TIMES, chunks=20)
    model = learnt(lazy, weight, n_ranks=1)
    there = learnt(X, TIMES, n_ranks=1)
    np.testing.assert_allclose(model.components_, there.components_, atol=1e-8)
    parts = [
        SFBDictionaryLearning(
            4, alpha=0.3, dict_init=ATOMS, random_state=0
        ).partial_fit(X, sample_weight=each)
        for each in (TIMES, None)
    ]
    one, other = (part.components_ for part in parts)
    assert np.abs(one - other).max() > 1e-3


@pytest.mark.parametrize("weight", [-np.ones(60), np.zeros(60), np.full(60, np.nan)])
def test_bad_weights(weight):
    with pytest.raises(ValueError, match="weight|no rows"):
        learnt(X, weight)
