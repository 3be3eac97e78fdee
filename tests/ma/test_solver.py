"""A rank's own SGD: which rows it goes over, with which steps, and what is left due."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import SGDClassifier, SGDRegressor

from dask_ma.data import Block, Shard
from dask_ma.linear import LinearModel
from dask_ma.ma import Models
from dask_ma.ma.sgd._paradigms import update
from dask_ma.ma.sgd._solver import LocalSGD, soft_threshold

FAR = -(2.0**30)  # where steps of 1/2 are exact, and a row of 1 asks for more


def make_params(**changes):
    known = {
        "is_classifier": True,
        "loss": "perceptron",
        "epsilon": 0.1,
        "penalty": None,
        "alpha": 1e-3,
        "l1_ratio": 0.15,
        "fit_intercept": False,
        "shuffle": True,
        "learning_rate": "constant",
        "eta0": 0.5,
        "power_t": 0.5,
        "paradigm": Models(),
        "t": 1.0,
        "join_limit": 0,
    }
    return SimpleNamespace(**{**known, **changes})


def make_shard(X, y, sizes, weight=None):
    """A shard of blocks of so many rows."""
    blocks, first = [], 0
    for n_rows in sizes:
        part = slice(first, first + n_rows)
        own = None if weight is None else weight[part]
        blocks.append(Block(X[part], y[part], own, first, 0))
        first += n_rows
    return Shard(blocks, X.shape[1], X.dtype)


def counter(sizes, container=np.asarray, **changes):
    """SGD of which coefficient i grows by 1/2 whenever it goes over row i."""
    X, y = container(np.eye(sum(sizes))), np.ones(sum(sizes), dtype=int)
    shard = make_shard(X, y, sizes)
    return LocalSGD(shard, 1, make_params(**changes), np.random.SeedSequence(3), 1)


def visits(solver, epochs, n_runs, n_rows):
    """How often each row has been gone over after each run."""
    model, found = LinearModel(np.full((1, n_rows), FAR), np.zeros(1)), []
    for _ in range(n_runs):
        model, _, _ = solver.run(model, epochs)
        found.append((model.coef[0] - FAR) * 2)
    return np.array(found)


SIZES = [[12], [5, 7], [1, 8, 3]]


@pytest.mark.pairs
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("shuffle", [False, True, "ranks"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    ("epochs", "n_runs", "n_ends"),
    [(1 / 12, 36, 3), (0.25, 12, 3), (0.5, 6, 3), (1, 3, 3), (1.5, 4, 2), (3, 2, 2)],
)
def test_each_pass_goes_over_each_row_once(
    sizes, epochs, n_runs, n_ends, shuffle, container
):
    """However passes are cut into runs, and wherever in a block they begin."""
    found = visits(counter(sizes, container, shuffle=shuffle), epochs, n_runs, 12)
    n_rows = found.sum(axis=1)
    np.testing.assert_array_equal(
        n_rows, np.round(12 * epochs) * np.arange(1, n_runs + 1)
    )
    ends = found[n_rows % 12 == 0]
    assert len(ends) == n_ends
    np.testing.assert_array_equal(ends, np.repeat(ends[:, :1], 12, axis=1))


def test_short_runs_begin_anywhere_in_a_block():
    """Rows that are together in a run are not always the same."""
    found = np.diff(visits(counter([12]), 0.5, 20, 12), axis=0, prepend=0)
    together = {tuple(np.flatnonzero(run)) for run in found}
    assert len(together) > 4
    found = visits(counter([12], shuffle=False), 0.5, 2, 12)
    np.testing.assert_array_equal(found[0], np.repeat([1, 0], 6))


@pytest.mark.parametrize("n_before", [1, 5, 13])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_another_one_goes_on_within_a_pass(sizes, n_before):
    """A pass is ended with the rows that are missing from it."""
    first = counter(sizes, shuffle=False)
    before = visits(first, 1 / 12, n_before, 12)[-1]
    second = counter(sizes, shuffle=False)
    second.load_state_dict(first.state_dict())
    assert second.t == first.t == 1 + n_before
    after = before + visits(second, 1 / 12, -n_before % 12, 12)[-1]
    np.testing.assert_array_equal(after, np.full(12, after[0]))


@pytest.mark.parametrize("is_classifier", [True, False])
def test_weights_and_labels_stay_with_their_rows(is_classifier):
    """Blocks and runs that end within them: SGD of scikit-learn over the same rows."""
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(12, 4)), rng.random(12) + 0.5
    y = rng.integers(0, 2, 12) if is_classifier else rng.normal(size=12)
    loss = "log_loss" if is_classifier else "squared_error"
    changes = {"loss": loss, "eta0": 0.1, "fit_intercept": True, "shuffle": False}
    params = make_params(is_classifier=is_classifier, **changes)
    solver = LocalSGD(
        make_shard(X, y, [5, 7], weight), 1, params, np.random.SeedSequence(0), 1
    )
    model = LinearModel(np.zeros((1, 4)), np.zeros(1))
    for _ in range(6):
        model, n_rows, pending = solver.run(model, 0.25)
        assert (n_rows, pending) == (3, 0)
    kind = SGDClassifier if is_classifier else SGDRegressor
    slow = kind(
        loss=loss, penalty=None, learning_rate="constant", eta0=0.1, shuffle=False
    )
    classes = {"classes": [0, 1]} if is_classifier else {}
    for i in [*range(12), *range(6)]:
        slow.partial_fit(X[[i]], y[[i]], sample_weight=weight[[i]], **classes)
    np.testing.assert_allclose(model.coef[0], slow.coef_.ravel(), rtol=1e-12)
    np.testing.assert_allclose(model.intercept, slow.intercept_, rtol=1e-12)


@pytest.mark.parametrize(("penalty", "share"), [("l1", 1.0), ("elasticnet", 0.3)])
def test_threshold_that_is_due_is_that_of_the_steps(penalty, share):
    """Of all blocks of a run, each with the steps that its rows have."""
    params = {"learning_rate": "invscaling", "power_t": 1.0, "l1_ratio": 0.3}
    solver = counter([3, 5, 4], penalty=penalty, alpha=0.01, t=4.0, **params)
    model = LinearModel(np.full((1, 12), FAR), np.zeros(1))
    _, _, pending = solver.run(model, 1)
    by_hand = sum(0.5 / t for t in range(4, 16))
    assert pending == pytest.approx(0.01 * share * by_hand, rel=1e-12)


def test_a_rank_without_rows_gives_the_model_back():
    shard = Shard([], 2, np.dtype(float))
    solver = LocalSGD(shard, 1, make_params(), np.random.SeedSequence(0), 1)
    model = LinearModel(np.ones((1, 2)), np.ones(1))
    assert solver.run(model, 1) == (model, 0, 0.0)


def test_a_soft_threshold_by_hand():
    coef = np.array([[-3.0, -0.5, 0.0, 0.25, 2.0]])
    soft_threshold(coef, 0.5)
    np.testing.assert_array_equal(coef, [[-2.5, 0.0, 0.0, 0.0, 1.5]])


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        # coef - (gradient + l2 coef) / 2, and then towards 0 by l1 / 2.
        (None, [1.5, 0.0, -1.25]),
        ("l2", [1.1, 0.0, -1.05]),
        ("l1", [1.1, 0.0, -0.85]),
        ("elasticnet", [1.1, 0.0, -1.0]),
    ],
)
def test_a_step_by_hand(penalty, expected, fit_intercept):
    params = make_params(
        penalty=penalty, alpha=0.8, l1_ratio=0.25, fit_intercept=fit_intercept
    )
    old = LinearModel(np.array([[1.0, 0.0, -0.5]]), np.array([3.0]))
    gradient = LinearModel(np.array([[-1.0, 0.0, 1.5]]), np.array([2.0]))
    new = update(old, gradient, 0.5, params)
    np.testing.assert_allclose(new.coef, [expected], rtol=1e-12)
    assert new.intercept == (2.0 if fit_intercept else 3.0)
    np.testing.assert_array_equal(old.coef, [[1.0, 0.0, -0.5]])
