"""Sorted rows of Dask collections: dealt out to the ranks, or noticed."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.array as da
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from dask_ma import MPCAClassifier, MPCARegressor
from dask_ma.comm import LocalGroup
from dask_ma.data import Block, Shard
from dask_ma.mpca import strategies
from dask_ma.mpca.training._targets import agree_on_targets

PARAMS = {"strategy": strategies.Synchronous(5), "n_ranks": 4, "max_iter": 8}
PARAMS |= {"tol": None, "random_state": 0, "learning_rate_init": 0.01}


def blocks_of(X, y, n_rows=45):
    return da.from_array(X, chunks=(n_rows, -1)), da.from_array(y, chunks=n_rows)


def sort(X, y):
    order = np.argsort(y, kind="stable")
    return X[order], y[order]


@pytest.fixture(scope="module")
def images(digits):
    """Rows sorted by class."""
    return sort(*digits.train)


def test_sorted_blocks_are_noticed(images):
    model = MPCAClassifier((20,), **PARAMS)
    with pytest.warns(ConvergenceWarning, match="class .*shuffle='ranks'") as seen:
        model.fit(*blocks_of(*images))
    assert seen[0].filename == __file__


def test_mixed_blocks_are_not_spoken_of(images):
    X, y = images
    mixed = np.random.default_rng(0).permutation(len(y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = MPCAClassifier((20,), **PARAMS)
        model.fit(*blocks_of(X[mixed], y[mixed]))
        model.set_params(n_ranks=1).fit(*blocks_of(X, y))
        # A server makes each step for all ranks.
        model.set_params(n_ranks=2, strategy="parameter_server")
        model.fit(*blocks_of(X, y))


def test_dealt_rows_are_those_of_memory_and_give_the_better_model(images, digits):
    X, y = images
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dealt = MPCAClassifier((20,), shuffle="ranks", **PARAMS).fit(*blocks_of(X, y))
        here = MPCAClassifier((20,), **PARAMS).fit(X, y)
    np.testing.assert_array_equal(dealt.coefs_[0], here.coefs_[0])
    assert dealt.to_sklearn().shuffle is True
    with pytest.warns(ConvergenceWarning, match="shuffle='ranks'"):
        apart = MPCAClassifier((20,), **PARAMS).fit(*blocks_of(X, y))
    assert dealt.score(*digits.test) > apart.score(*digits.test) + 0.05


AUTO = {"batch_size": 5, "n_ranks": 2, "tol": None, "random_state": 0}


def chosen(model, *data, **params):
    """The strategy of a fit without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the maximum", ConvergenceWarning)
        return type(model.set_params(**AUTO | params).fit(*data).strategy_)


def test_rows_that_differ_are_dealt_out_by_default(images, regression, digits):
    data = blocks_of(*images)
    model = MPCAClassifier((20,))
    assert chosen(model, *data, max_iter=15) is strategies.MPCA
    assert model.score(*digits.test) > 0.8
    data = blocks_of(*sort(*regression), 30)
    model = MPCARegressor((5,))
    assert chosen(model, *data, max_iter=5, batch_size=2) is strategies.MPCA


def test_rows_stay_where_that_is_better_or_asked_for(images, regression):
    """Gradients are added up then, or were to be in any case."""
    data = blocks_of(*images)
    model = MPCAClassifier((5,))
    assert chosen(model, *data, max_iter=2) is strategies.Gradients
    model = MPCAClassifier((5,), max_iter=5)
    assert chosen(model, *data, shuffle=False) is strategies.Gradients
    targets = blocks_of(*sort(*regression), 30)
    other = MPCARegressor((5,), max_iter=5, shuffle=False)
    assert chosen(other, *targets, batch_size=2) is strategies.Gradients
    with dask.config.set({"dask-ma.data.join-limit": "1 kiB"}):
        assert chosen(model, *data, shuffle=True) is strategies.Gradients


def test_rows_of_few_steps_go_nowhere(images, monkeypatch):
    """All ranks make each step together in any case."""
    monkeypatch.setattr("dask_ma.mpca.training._mixing.deal_rows", None)
    model = MPCAClassifier((5,), max_iter=5)
    data = blocks_of(*images)
    assert chosen(model, *data, batch_size="auto") is strategies.Gradients


def test_held_out_rows_are_of_ranks_that_differ_as_well(images):
    """The rows that are left are dealt out, and those of the score stay."""
    model = MPCAClassifier((20,), early_stopping=True, max_iter=5)
    assert chosen(model, *blocks_of(*images)) is strategies.MPCA
    assert model.best_validation_score_ > 0.8


def test_sorted_targets_are_noticed(regression):
    X, y = sort(*regression)
    model = MPCARegressor((5,), batch_size=5, **PARAMS)
    with pytest.warns(ConvergenceWarning, match="y has the mean .*shuffle='ranks'"):
        model.fit(*blocks_of(X, y, 30))
    mixed = np.random.default_rng(0).permutation(len(y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(*blocks_of(X[mixed], y[mixed], 30))
        model.set_params(shuffle="ranks").fit(*blocks_of(X, y, 30))


def test_blocks_make_no_difference_to_one_rank(images):
    """A batch has rows from all blocks, as long as these are small."""
    X, y = images
    params = {**PARAMS, "n_ranks": 1, "max_iter": 3}
    whole = MPCAClassifier((20,), **params).fit(X, y)
    cut = MPCAClassifier((20,), **params).fit(*blocks_of(X, y))
    np.testing.assert_array_equal(cut.coefs_[0], whole.coefs_[0])
    with dask.config.set({"dask-ma.data.join-limit": "1 kiB"}):
        apart = MPCAClassifier((20,), **params).fit(*blocks_of(X, y))
    assert abs(apart.coefs_[0] - whole.coefs_[0]).max() > 1e-3


def test_blocks_are_joined_whatever_memory_a_rank_has(images, monkeypatch):
    """Its client has chosen up to what size: the steps are the same everywhere."""
    X, y = images
    params = {**PARAMS, "n_ranks": 1, "max_iter": 3}
    whole = MPCAClassifier((20,), **params).fit(X, y)
    monkeypatch.setattr("dask_ma.data._usage.memory_here", lambda: 10_000)
    cut = MPCAClassifier((20,), **params).fit(*blocks_of(X, y))
    np.testing.assert_array_equal(cut.coefs_[0], whole.coefs_[0])


def test_constant_targets_are_even(regression):
    """What rounding leaves of their variance says nothing."""
    X, _ = regression
    model = MPCARegressor((5,), batch_size=5, **PARAMS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(*blocks_of(X, np.full(len(X), 0.1 + 1e5), 30))
    np.testing.assert_allclose(model.predict(X), 0.1 + 1e5, rtol=1e-3)


@pytest.mark.parametrize("n_targets", [None, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_mean_of_all_ranks(n_targets, weighted):
    """Also with a rank that has no rows, and with weights."""
    rng = np.random.default_rng(0)
    shape = (60,) if n_targets is None else (60, n_targets)
    y, weight = rng.normal(size=shape) + 1e6, rng.uniform(0.5, 2, 60)
    cuts = [slice(0, 40), slice(40, 60), slice(60, 60)]

    def agree(group):
        rows, n_rows = cuts[group.rank], len(y[cuts[group.rank]])
        its_weight = weight[rows] if weighted else None
        block = Block(np.zeros((n_rows, 1)), y[rows], its_weight, 0, 0)
        blocks = [block] if n_rows else []
        shard = Shard(blocks, 1, np.dtype(float))
        return agree_on_targets(group, shard, n_targets)

    expected = np.average(y, axis=0, weights=weight if weighted else None)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(agree, LocalGroup.create(3)))
    for found in results:
        np.testing.assert_allclose(found.mean, np.atleast_1d(expected), rtol=1e-14)
        assert found.uneven is None
