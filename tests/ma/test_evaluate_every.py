"""After how many passes rounds are evaluated, and what looks at it."""

import numpy as np
import pytest

import dask_ma.linear._model as evaluation
from dask_ma import MASGDClassifier, MASGDRegressor
from dask_ma.datasets import make_sparse_classification
from dask_ma.ma import Gradients, Models

FREE = {
    "learning_rate": "constant",
    "tol": None,
    "local_epochs": 1,
    "max_iter": 7,
    "random_state": 0,
}


@pytest.fixture(scope="module")
def rows():
    X, y, _ = make_sparse_classification(600, 40, n_nonzero=8, random_state=0)
    return X, y


def evaluated(model):
    """Numbers of the rounds with an objective."""
    return [r["round"] for r in model.history_ if not np.isnan(r["objective"])]


@pytest.fixture
def count_passes(monkeypatch):
    """How many passes over blocks evaluations make."""
    counted = []
    sums = evaluation.loss_sums

    def count(*args, **kwargs):
        counted.append(None)
        return sums(*args, **kwargs)

    monkeypatch.setattr(evaluation, "loss_sums", count)
    return counted


@pytest.mark.parametrize(
    ("every", "expected"),
    [(1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6, 7]), (100, [7]), (0, [7]), (-1, [7])],
)
@pytest.mark.parametrize("kind", [Models, Gradients])
def test_rounds_that_are_evaluated(rows, count_passes, every, expected, kind):
    params = {**FREE, "local_epochs": "auto"} if kind is Gradients else FREE
    model = MASGDClassifier(paradigm=kind(evaluate_every=every), **params).fit(*rows)
    assert evaluated(model) == expected
    assert len(count_passes) == 1 + len(expected)  # the model it starts from, too
    assert [record["n_samples"] for record in model.history_] == [600] * 7


def test_fractions_of_passes(rows):
    params = {**FREE, "local_epochs": 0.5, "max_iter": 9}
    model = MASGDClassifier(paradigm=Models(evaluate_every=2), **params).fit(*rows)
    assert evaluated(model) == [4, 8, 9]


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_the_model_is_the_same(rows, n_ranks):
    fits = [
        MASGDClassifier(paradigm=Models(evaluate_every=every), n_ranks=n_ranks, **FREE)
        for every in (1, 3, 0)
    ]
    coefs = [model.fit(*rows).coef_ for model in fits]
    for model, coef in zip(fits, coefs, strict=True):
        np.testing.assert_array_equal(coef, coefs[0])
        last = fits[0].history_[-1]["objective"]
        assert model.history_[-1]["objective"] == last


def test_to_be_followed_evaluates_no_more(rows, capsys):
    model = MASGDClassifier(paradigm=Models(evaluate_every=3), verbose=2, **FREE)
    model.fit(*rows)
    assert capsys.readouterr().out.count("-- Round ") == 7
    assert evaluated(model) == [3, 6, 7]


@pytest.mark.parametrize(("every", "n_rounds"), [(1, 5), (2, 6), (3, 9), (4, 8)])
def test_patience_is_in_passes(rows, every, n_rounds):
    """The first evaluation is progress; four passes without any end the rounds."""
    X, y = rows
    params = {**FREE, "tol": 0.99, "max_iter": 50, "n_iter_no_change": 4}
    model = MASGDClassifier(
        paradigm=Models(evaluate_every=every), refine=None, **params
    ).fit(X, y)
    assert model.n_iter_ == n_rounds


def test_held_out_rows_are_scored_as_often(rows):
    model = MASGDClassifier(
        paradigm=Models(evaluate_every=3), early_stopping=True, **FREE
    ).fit(*rows)
    scored = [not np.isnan(r["validation_score"]) for r in model.history_]
    assert scored == [False, False, True, False, False, True, True]


def test_steps_shrink_as_often_as_there_is_an_evaluation():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = X @ rng.normal(size=5) + rng.normal(size=200)
    params = {**FREE, "learning_rate": "auto", "max_iter": 12}
    eta = [
        MASGDRegressor(paradigm=Models(evaluate_every=every), **params).fit(X, y).eta_
        for every in (1, 2, 100)
    ]
    assert eta[0] < eta[2] and eta[1] < eta[2]


def test_a_refinement_follows(rows):
    model = MASGDClassifier(
        "log_loss",
        paradigm=Models(evaluate_every=2),
        local_epochs=1,
        max_iter=5,
        n_iter_no_change=50,
        random_state=0,
    ).fit(*rows)
    assert evaluated(model)[:3] == [2, 4, 5]
    assert model.history_[-1]["refined"]
    assert model.history_[-1]["excess"] <= 1e-3


@pytest.mark.parametrize(
    ("others", "name"),
    [
        ({"tol": 1e-3}, "tol"),
        ({"early_stopping": True}, "early_stopping"),
        ({"learning_rate": "auto"}, "learning_rate"),
        ({"learning_rate": "adaptive"}, "learning_rate"),
    ],
)
def test_what_looks_at_evaluations_needs_some(rows, others, name):
    model = MASGDClassifier(paradigm=Models(evaluate_every=0), **{**FREE, **others})
    with pytest.raises(ValueError, match=f"^{name}=.*paradigm__evaluate_every=0"):
        model.fit(*rows)


def test_a_wrong_number_is_refused(rows):
    with pytest.raises(ValueError, match="evaluate_every"):
        MASGDClassifier(paradigm=Models(evaluate_every=0.5)).fit(*rows)
