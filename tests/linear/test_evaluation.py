"""What the history says of each round."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma import MASGDClassifier, MASGDRegressor

CLASSIFIER_LOSSES = [
    "hinge",
    "log_loss",
    "modified_huber",
    "squared_hinge",
    "perceptron",
    "squared_error",
    "huber",
    "epsilon_insensitive",
    "squared_epsilon_insensitive",
]
KEYS = {
    "round",
    "time",
    "n_samples",
    "objective",
    "bytes_sent",
    "bytes_shared",
    "messages_sent",
    "seconds_computing",
    "seconds_waiting",
    "restarts",
    "local_epochs",
}
PARAMS = {
    "max_iter": 2,
    "tol": None,
    "random_state": 0,
    "learning_rate": "constant",
    "alpha": 0.03,
}


@pytest.mark.each
@pytest.mark.parametrize("loss", CLASSIFIER_LOSSES)
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_objective_of_two_classes(binary, weights, objective, loss, n_ranks):
    X, y = binary
    model = MASGDClassifier(loss, penalty="elasticnet", n_ranks=n_ranks, **PARAMS)
    for weight in (None, weights):
        model.fit(X, y, sample_weight=weight)
        expected = objective(model, X, y, weight)
        assert model.history_[-1]["objective"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.filterwarnings("ignore:alpha=.* has no effect")
@pytest.mark.parametrize("penalty", ["l1", "l2", "elasticnet", None])
def test_objective_of_penalties(binary, objective, penalty):
    X, y = binary
    share = {"l1_ratio": 0.4} if penalty == "elasticnet" else {}
    model = MASGDClassifier(penalty=penalty, n_ranks=2, **share, **PARAMS)
    model.fit(X, y)
    expected = objective(model, X, y)
    assert model.history_[-1]["objective"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("loss", ["hinge", "modified_huber"])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_objective_of_many_classes_is_their_mean(
    multi, weights, objective, loss, container
):
    X, y = multi
    model = MASGDClassifier(loss, n_ranks=3, **PARAMS)
    model.fit(container(X), y, sample_weight=weights)
    expected = objective(model, X, y, weights)
    assert model.history_[-1]["objective"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("loss", CLASSIFIER_LOSSES[-4:])
def test_objective_of_a_regression(regression, weights, objective, loss):
    X, y = regression
    model = MASGDRegressor(loss, penalty="l1", n_ranks=2, **PARAMS)
    model.fit(X, y, sample_weight=weights)
    expected = objective(model, X, y, weights)
    assert model.history_[-1]["objective"] == pytest.approx(expected, rel=1e-12)


def test_objective_in_single_precision(binary, objective):
    X, y = binary
    model = MASGDClassifier(n_ranks=2, **PARAMS).fit(X.astype(np.float32), y)
    expected = objective(model, X, y)
    assert model.history_[-1]["objective"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("early_stopping", [False, True])
def test_records_have_the_documented_keys(binary, early_stopping):
    model = MASGDClassifier(n_ranks=2, early_stopping=early_stopping, **PARAMS)
    model.fit(*binary)
    extra = {"validation_score"} if early_stopping else set()
    for record in model.history_:
        assert set(record) == KEYS | extra
        assert all(type(value) in (int, float) for value in record.values())


def test_counters_of_a_round(binary):
    params = {**PARAMS, "max_iter": 5, "local_epochs": 1}
    model = MASGDClassifier(n_ranks=3, **params).fit(*binary)
    times = [record["time"] for record in model.history_]
    assert times == sorted(times)
    assert times[0] > 0
    for record in model.history_:
        assert record["n_samples"] == 120
        assert 0 < record["seconds_computing"] < record["time"]
        assert record["seconds_waiting"] >= 0
        # The ranks are threads of this process: nothing is sent.
        assert record["bytes_sent"] == record["messages_sent"] == 0
        assert record["bytes_shared"] > 0


def test_one_rank_shares_nothing(binary):
    model = MASGDClassifier(n_ranks=1, **PARAMS).fit(*binary)
    assert all(record["bytes_shared"] == 0 for record in model.history_)


# -- Rounds shorter than a pass ------------------------------------------------------


@pytest.mark.parametrize(("epochs", "max_iter"), [(0.25, 10), (0.4, 7), (0.1, 25)])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_objective_is_worked_out_once_per_pass(
    binary, objective, epochs, max_iter, early_stopping
):
    """After each pass and in the last round; NaN in between."""
    params = {**PARAMS, "max_iter": max_iter, "local_epochs": epochs}
    model = MASGDClassifier(n_ranks=2, early_stopping=early_stopping, **params)
    model.fit(*binary)
    per_pass = int(np.ceil(1 / epochs))
    due = [n % per_pass == 0 or n == max_iter for n in range(1, max_iter + 1)]
    names = ["objective"] + ["validation_score"] * early_stopping
    for name in names:
        values = [record[name] for record in model.history_]
        assert [np.isfinite(value) for value in values] == due
    assert all(record["n_samples"] > 0 for record in model.history_)
    assert all(record["bytes_shared"] > 0 for record in model.history_)
    if not early_stopping:
        expected = objective(model, *binary)
        assert model.history_[-1]["objective"] == pytest.approx(expected, rel=1e-12)


def test_followed_fits_end_where_others_end(binary, capsys):
    """Looking at each round does not use up the patience of the fit."""
    X, y = binary
    params = {"local_epochs": 0.25, "tol": 1e-3, "max_iter": 1000, "alpha": 0.01}
    models = [
        MASGDClassifier("log_loss", n_ranks=2, random_state=0, verbose=v, **params)
        for v in (0, 1)
    ]
    silent, verbose = (model.fit(X, y) for model in models)
    assert len(capsys.readouterr().out.splitlines()) == verbose.n_iter_
    assert silent.n_iter_ == verbose.n_iter_ < 1000
    np.testing.assert_array_equal(silent.coef_, verbose.coef_)
    assert all(np.isfinite(record["objective"]) for record in verbose.history_)


@pytest.mark.parametrize(("overhead", "models"), [(0, 6), ("256 KiB", 8)])
def test_bytes_of_a_round_are_those_of_an_allreduce(
    processes, configured, overhead, models
):
    """2 (P - 1) / P models per rank, of which there are P; or two, in two messages."""
    rng = np.random.default_rng(0)
    n_features = 100_000
    # Each column has a value: models have none of those that nobody has.
    ends = np.arange(0, n_features + 1, n_features // 400)
    parts = rng.normal(size=n_features), np.arange(n_features), ends
    X = sparse.csr_matrix(parts, shape=(400, n_features))
    params = {**PARAMS, "max_iter": 3, "local_epochs": 1}
    with configured({"dask-ma.comm.message-overhead": overhead}, processes):
        model = MASGDClassifier(**params).fit(X, rng.integers(0, 2, 400))
    expected = models * 8 * (n_features + 1)
    for record in model.history_[1:]:
        assert record["bytes_shared"] == 0
        assert expected <= record["bytes_sent"] < 1.02 * expected
