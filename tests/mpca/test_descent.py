"""Steps that all ranks make together, with the gradient of all their rows."""

from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from dask_ma import MPCAClassifier, MPCARegressor
from dask_ma.comm import LocalGroup
from dask_ma.mpca import strategies
from dask_ma.mpca.networks._mlp import MLPSpec
from dask_ma.mpca.strategies._descent import share_optimizer
from dask_ma.mpca.training import _choice

PARAMS = {"hidden_layer_sizes": (8,), "tol": None, "random_state": 0}
PARAMS |= {"max_iter": 5, "learning_rate_init": 0.01, "strategy": "gradients"}


def fit(data, weight=None, kind=MPCAClassifier, **params):
    return kind(**{**PARAMS, **params}).fit(*data, sample_weight=weight)


def blocks_of(X, y, cuts):
    sizes = tuple(np.diff(cuts).tolist())
    chunks = (sizes, (X.shape[1],))
    return da.from_array(X, chunks=chunks), da.from_array(y, chunks=sizes)


def by_class(X, y):
    order = np.argsort(y, kind="stable")
    return X[order], y[order]


@pytest.mark.each
@pytest.mark.parametrize("solver", ["adam", "sgd"])
@pytest.mark.parametrize("n_ranks", [2, 3, 7])
def test_batches_of_all_rows_are_those_of_one_rank(multi, check_same, n_ranks, solver):
    """Where each rank's part is all that it has, the model cannot depend on ranks."""
    one = fit(multi, n_ranks=1, batch_size=120, solver=solver, alpha=0.5)
    many = fit(multi, n_ranks=n_ranks, batch_size=120, solver=solver, alpha=0.5)
    check_same(many, one, 1e-9)
    np.testing.assert_allclose(many.loss_curve_, one.loss_curve_, rtol=1e-9)


def test_rows_sorted_by_class_make_no_difference(multi, check_same):
    X, y = by_class(*multi)
    one = fit((X, y), n_ranks=1, batch_size=120)
    uneven = fit(blocks_of(X, y, [0, 10, 50, 120]), n_ranks=3, batch_size=120)
    check_same(uneven, one, 1e-9)
    # In several steps, too, all ranks have a part in each.
    steps = fit(blocks_of(X, y, [0, 10, 50, 120]), n_ranks=3, batch_size=8)
    assert steps.history_[-1]["n_steps"] == 3 * 5
    assert steps.history_[-1]["n_samples"] == 120
    assert steps.history_[-1]["n_exchanges"] == 5


def test_weights_count_over_all_ranks(multi, weights, check_same):
    """Also such as differ between ranks, and batches of which some weigh nothing."""
    one = fit(multi, weights, n_ranks=1, batch_size=120)
    X, y = multi
    rows = blocks_of(X, y, [0, 10, 50, 120])
    many = fit(rows, da.from_array(weights, chunks=rows[1].chunks), n_ranks=3)
    check_same(fit(rows, np.asarray(weights), n_ranks=3), many, 1e-12)
    check_same(many, one, 1e-9)
    np.testing.assert_allclose(many.loss_curve_, one.loss_curve_, rtol=1e-9)


def test_the_penalty_is_whole_where_rows_of_a_rank_weigh_nothing(multi, check_same):
    X, y = multi
    weight = np.where(np.arange(120) < 50, 1.0, 0.0)
    params = {"batch_size": 120, "alpha": 5.0, "solver": "sgd"}
    one = fit(multi, weight, n_ranks=1, **params)
    many = fit(blocks_of(X, y, [0, 10, 50, 120]), weight, n_ranks=3, **params)
    check_same(many, one, 1e-9)


def test_a_regression_of_one_batch(regression, check_same):
    X, y = regression
    params = {"kind": MPCARegressor, "batch_size": len(y)}
    check_same(fit((X, y), n_ranks=4, **params), fit((X, y), n_ranks=1, **params), 1e-9)


def test_the_same_bits_each_time(multi, check_same):
    check_same(fit(multi, n_ranks=4, batch_size=5), fit(multi, n_ranks=4, batch_size=5))


def test_ranks_without_rows(multi, check_same):
    X, y = multi[0][:3], np.array([0, 1, 2])
    one = fit((X, y), n_ranks=1)
    check_same(fit((X, y), n_ranks=5), one, 1e-9)


def test_few_rows_on_a_rank_come_again_and_count_for_less(multi):
    """With steps so short that they add up, an epoch is one of all rows alike."""
    X, y = multi
    params = {"solver": "sgd", "momentum": 0.0, "max_iter": 1}
    start = fit(multi, n_ranks=1, learning_rate_init=1e-30, **params).coefs_[0]
    params["learning_rate_init"] = 1e-6
    one = fit(multi, n_ranks=1, batch_size=12, **params)
    model = fit(blocks_of(X, y, [0, 2, 120]), n_ranks=2, batch_size=6, **params)
    assert model.history_[-1]["n_steps"] == 2 * 10  # rank 0 has a row in each
    change, expected = (each.coefs_[0] - start for each in (model, one))
    assert np.linalg.norm(change - expected) < 0.02 * np.linalg.norm(expected)


def test_early_stopping_scores_the_model(multi):
    params = {"n_ranks": 3, "early_stopping": True, "max_iter": 60}
    model = fit(multi, **params, batch_size=8, tol=1e-4, n_iter_no_change=5)
    assert len(model.validation_scores_) == model.n_iter_ < 60
    assert model.score(*multi) > model.validation_scores_[0]


def test_a_loss_that_is_not_finite(regression):
    with pytest.warns(UserWarning, match="rank 0 in its step 4, rank 1 in"):
        model = fit(
            regression,
            kind=MPCARegressor,
            n_ranks=2,
            solver="sgd",
            learning_rate_init=1e6,
            max_iter=100,
        )
    assert np.isfinite(model.coefs_[0]).all() and model.n_iter_ < 100


def test_partial_fit_keeps_the_optimisers(multi, check_same):
    models = []
    for n_ranks in (1, 3):
        model = MPCAClassifier(**{**PARAMS, "batch_size": 120, "n_ranks": n_ranks})
        for _ in range(4):
            model.partial_fit(*multi, classes=range(4))
        models.append(model)
    check_same(*models, 1e-9)


@pytest.mark.parametrize("knowing", [(1,), (0, 1, 2)])
def test_ranks_that_go_on_have_the_optimiser_of_one(knowing):
    """Or models that begin alike would part; ranks of "mpca" have their own."""

    def make(group):
        network = MLPSpec((3,)).build(2, 2, np.dtype(float), np.random.RandomState(0))
        has_history = group.rank in knowing
        if has_history:
            X = np.full((2, 2), 1.0 + group.rank)
            network.step(X, np.array([0, 1]), None, learning_rate=0.1)
        share_optimizer(group, network, has_history)
        return network.optimizer_state()

    with ThreadPoolExecutor(3) as pool:
        states = list(pool.map(make, LocalGroup.create(3)))
    for state in states:
        assert state.keys() == states[1].keys()
        for name, value in states[1].items():
            np.testing.assert_array_equal(state[name], value)


# What "auto" stands for ---------------------------------------------------------------


def chosen(data, **params):
    model = MPCAClassifier(**{**PARAMS, "strategy": "auto", "max_iter": 2, **params})
    return model.fit(*data).strategy_


def test_small_fits_are_by_gradients(multi, monkeypatch):
    assert MPCAClassifier().strategy == MPCARegressor().strategy == "auto"
    assert isinstance(chosen(multi, n_ranks=3), strategies.Gradients)
    assert isinstance(chosen(multi, n_ranks=1), strategies.Local)
    assert isinstance(chosen(multi, n_ranks=3, batch_size=2), strategies.MPCA)
    monkeypatch.setattr(_choice, "FEW_STEPS", 20)
    assert isinstance(chosen(multi, n_ranks=3, batch_size=2), strategies.Gradients)
    given = strategies.Synchronous(3)
    assert chosen(multi, n_ranks=3, strategy=given, batch_size=8).period == 3


def test_large_fits_on_ranks_that_differ_are_by_gradients(multi, monkeypatch):
    monkeypatch.setattr(_choice, "FEW_STEPS", 0)
    X, y = by_class(*multi)
    rows = blocks_of(X, y, [0, 60, 120])
    assert isinstance(chosen(rows, n_ranks=2), strategies.Gradients)
    with pytest.warns(ConvergenceWarning, match="strategy='gradients'"):
        chosen(rows, n_ranks=2, strategy="mpca")
