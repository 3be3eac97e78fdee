"""What rows were worth that a fit has lost for good counts no more.

No worker is killed here: a fit ends by an error once it has kept a round, and another
one, of the first of its rows alone, goes on from what that has kept.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from dask_ma import (
    MALDA,
    ButterflySGDClassifier,
    MASGDClassifier,
    MPCAClassifier,
    SchMPLassoCV,
    SchMPLDA,
    SchMPMatrixFactorization,
    SFBDictionaryLearning,
    SFBMetricLearner,
)
from dask_ma.comm import barrier
from dask_ma.engine import RankContext, State
from dask_ma.exceptions import FitFailedError
from dask_ma.schmp import RotationProgram
from dask_ma.schmp import run as run_rotations
from dask_ma.sfb import FactorModel
from dask_ma.sfb import run as run_factors


@pytest.fixture
def without(monkeypatch):
    """``without(n_left, model, at_round, *data)`` is fitted, loses rows, and goes on.

    Rows that are left are the first `n_left`.
    """
    kept = SimpleNamespace(shared=None, own={}, history=[], at_round=0)
    kept.strikes = kept.is_struck = False

    def save_state(context, n_rounds, shared, own=None, **options):
        if not kept.strikes or n_rounds != kept.at_round:
            return
        kept.shared, kept.own[context.group.rank] = shared, own or {}
        kept.history = list(context.history)
        barrier(context.group)  # all have kept what they have
        raise FitFailedError("struck")

    def restore_state(context, replica_of=None, *, whole=False):
        if not kept.is_struck:
            return None
        context.history[:] = kept.history
        return State(
            kept.at_round, kept.shared, None, lambda _: iter(kept.own.values())
        )

    monkeypatch.setattr(RankContext, "save_state", save_state)
    monkeypatch.setattr(RankContext, "restore_state", restore_state)
    monkeypatch.setattr(RankContext, "keeps_states", True)

    def fit(n_left, model, at_round, *data):
        kept.at_round, kept.strikes = at_round, True
        with pytest.raises(FitFailedError, match="struck"):
            model.fit(*data)
        kept.strikes, kept.is_struck = False, True
        fitted = model.fit(*(rows[:n_left] for rows in data))
        kept.is_struck = False  # other fits begin from their beginnings
        return fitted

    fit.kept = kept
    return fit


@pytest.fixture
def noisy_rows():
    """Two classes; labels of the first half of the rows say little, others all."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 600)
    X = rng.normal(size=(600, 10))
    X[:, 0] += 4 * y
    is_noise = (np.arange(600) < 300) & (rng.random(600) < 0.9)
    return X, np.where(is_noise, rng.integers(0, 2, 600), y)


PATIENCE = {"n_iter_no_change": 5, "max_iter": 60, "random_state": 0}
LINEAR = [MASGDClassifier("log_loss"), ButterflySGDClassifier("log_loss")]


@pytest.mark.parametrize(
    ("model", "at_round"),
    [
        (MPCAClassifier((8,), learning_rate_init=0.03), 8),
        (MASGDClassifier("log_loss"), 3),
        (ButterflySGDClassifier("log_loss"), 4),
        (SFBMetricLearner(2), 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_scores_of_other_rows_do_not_end_a_fit(without, noisy_rows, model, at_round):
    """Scores of what is left, which are lower, are compared with each other."""
    model.set_params(**PATIENCE, early_stopping=True)
    model = without(300, model, at_round, *noisy_rows)
    scores = getattr(model, "validation_scores_", None)
    if scores is None:
        scores = [record["validation_score"] for record in model.history_]
    before, after = max(scores[:at_round]), scores[at_round:]
    assert max(after) < before
    assert len(after) > PATIENCE["n_iter_no_change"]


def test_the_best_network_is_one_of_the_rows_that_are_left(without, noisy_rows):
    model = MPCAClassifier((8,), learning_rate_init=0.03, early_stopping=True)
    model = without(300, model.set_params(**PATIENCE), 8, *noisy_rows)
    scores = model.validation_scores_
    assert model.best_validation_score_ == max(scores[8:]) < max(scores[:8])
    alone = MPCAClassifier((8,), learning_rate_init=0.03, early_stopping=True)
    alone.set_params(random_state=0, max_iter=8, tol=None).fit(*noisy_rows)
    assert any(
        (now != then).any()
        for now, then in zip(model.coefs_, alone.coefs_, strict=True)
    )


def test_rows_for_validation_that_are_given_are_still_there(without, noisy_rows):
    X, y = noisy_rows
    model = MPCAClassifier((8,), early_stopping=True, **PATIENCE)
    fit = partial(model.fit, X_val=X[300:], y_val=y[300:])
    model = without(300, SimpleNamespace(fit=fit), 8, X, y)
    assert model.best_validation_score_ == max(model.validation_scores_)


def test_the_best_metric_is_one_of_the_rows_that_are_left(without, noisy_rows):
    """It has passed the test of the rows that were lost, and none of the others."""
    model = SFBMetricLearner(2, **PATIENCE, early_stopping=True)
    without(300, model, 3, *noisy_rows)
    scores = [record["validation_score"] for record in model.history_]
    assert max(scores[3:]) < max(scores[:3])
    kept = without.kept.shared
    prefix = "" if kept["best_is_newest"] else "best_"
    best = kept[f"{prefix}values"].T
    assert np.abs(model.components_ - best).max() > 0.01 * np.abs(best).max()


def test_an_objective_of_other_rows_does_not_end_the_search_for_a_metric(
    without, noisy_rows
):
    model = without(300, SFBMetricLearner(2, **PATIENCE), 3, *noisy_rows)
    objectives = [record["objective"] for record in model.history_]
    assert min(objectives[3:8]) > min(objectives[:3])
    assert len(objectives) > 8
    assert min(objectives[8:]) < min(objectives[3:8])


@pytest.mark.parametrize("communication", ["statistics", "outputs"])
def test_batches_of_other_rows_do_not_end_a_dictionary(without, communication):
    """Nor do statistics of what is gone count more than a pass over the others."""
    rng = np.random.default_rng(0)
    codes = rng.normal(size=(600, 5)) * (rng.random((600, 5)) < 0.4)
    X = codes @ rng.normal(size=(5, 20))
    X[:300] += 2 * rng.normal(size=(300, 20))
    solver = {"solver": "sgd"} if communication == "outputs" else {}
    params = {"alpha": 0.5, "batch_size": 50, "random_state": 0, "max_iter": 30}
    model = SFBDictionaryLearning(5, **params, communication=communication, **solver)
    model = without(300, model, 14, X)
    # As many batches as say nothing of a fit's end, and as many as may be worse.
    assert len(model.history_) > 14 + 6 + model.max_no_improvement
    assert model.n_samples_seen_ == 300 + 50 * (len(model.history_) - 14)


@pytest.mark.parametrize("early_stopping", [False, True])
def test_factors_of_other_ratings(without, early_stopping):
    """Mean, spread and best factors are those of the ratings that are left."""
    rng = np.random.default_rng(0)
    pairs = np.argwhere(np.ones((30, 20)))
    rng.shuffle(pairs)
    pairs = pairs[np.argsort(pairs[:, 0] == 9, kind="stable")]  # a user who is lost
    users, items = rng.normal(size=(30, 3)), rng.normal(size=(20, 3))
    values = (users[pairs[:, 0]] * items[pairs[:, 1]]).sum(axis=1)
    values[300:] += 3 + rng.normal(size=len(values) - 300)
    params = {"alpha": 0.1, "random_state": 0, "early_stopping": early_stopping}
    model = SchMPMatrixFactorization(3, **params)
    model = without(300, model.set_params(n_ranks=2), 6, pairs, values)
    alone = SchMPMatrixFactorization(3, **params)
    alone.fit(pairs[:300], values[:300])
    end, expected = (each.history_[-1]["objective"] for each in (model, alone))
    assert end < 1.05 * expected
    errors = [each.predict(pairs[:300]) - values[:300] for each in (model, alone)]
    found, of_alone = (np.sqrt((each**2).mean()) for each in errors)
    assert found < 1.1 * of_alone
    lost = np.array([[9, item] for item in range(20)])
    np.testing.assert_allclose(model.predict(lost), alone.predict(lost), atol=0.2)


@pytest.fixture(scope="module", params=["exact", "metropolis"])
def documents(request):
    """Documents, a model that is to lose the second half, and one without those."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(40, 0.1), 4)
    shares = np.r_[
        rng.dirichlet(np.full(4, 0.3), 40) @ topics, np.full((40, 40), 0.025)
    ]
    X = np.array([rng.multinomial(60, each / each.sum()) for each in shares])
    params = {"max_iter": 14, "random_state": 0, "n_ranks": 2}
    model, alone = (SchMPLDA(4, sampler=request.param, **params) for _ in range(2))
    return X, model, alone.fit(X[:40])


@pytest.mark.parametrize("at_round", [5, 12])
def test_words_of_documents_that_are_gone_do_not_count(
    documents, without, monkeypatch, at_round
):
    """Neither as tokens of topics, nor in samples that have been taken."""
    # Otherwise the clock tells when to keep a state.
    monkeypatch.setattr(RankContext, "is_checkpointed", True)
    X, model, alone = documents
    model = without(40, model, at_round, X)
    counts = model.components_ - model.topic_word_prior_
    assert counts.min() > -1e-5
    np.testing.assert_allclose(counts.sum(axis=0), X[:40].sum(axis=0), rtol=1e-5)
    assert model.perplexity(X[:40]) < 1.2 * alone.perplexity(X[:40])


def test_a_perplexity_of_other_documents_does_not_end_a_fit(without):
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(40, 0.1), 4)
    shares = rng.dirichlet(np.full(4, 0.3), 160) @ topics
    shares[:80] = 0.025
    X = np.array([rng.multinomial(60, each / each.sum()) for each in shares])
    params = {"learning_method": "online", "batch_size": 40, "random_state": 0}
    params |= {"validation_fraction": 0.2, "evaluate_every": 1, "max_iter": 40}
    model = without(80, MALDA(4, perp_tol=0.1, **params), 8, X)
    found = np.array([each["validation_perplexity"] for each in model.history_])
    after = found[8:][np.isfinite(found[8:])]
    assert after[0] > np.nanmax(found[:8])
    assert len(after) > 1


def ranks_of(model, *numbers):
    """A model whose fits have these numbers of ranks, one after the other."""
    left = list(numbers)

    def fit(*data):
        return model.set_params(n_ranks=left.pop(0)).fit(*data)

    return SimpleNamespace(fit=fit)


@pytest.mark.parametrize("model", [MPCAClassifier((4,)), *LINEAR])
def test_other_ranks_that_hold_out_more_rows_have_lost_none(without, noisy_rows, model):
    """Of 95 rows one rank holds out 19, and two of them 18: the end is the same."""
    X, y = (rows[:95] for rows in noisy_rows)
    never = {"tol": 1.0, "early_stopping": True, "validation_fraction": 0.2}
    model.set_params(**PATIENCE | never)
    expected = model.set_params(n_ranks=1).fit(X, y).history_[-1]["round"]
    assert expected < PATIENCE["max_iter"]
    model = without(95, ranks_of(model, 1, 2), 3, X, y)
    assert model.history_[-1]["round"] == expected


def test_other_ranks_that_hold_out_more_documents_have_lost_none(without):
    X = np.random.default_rng(0).poisson(1.0, size=(95, 20))
    params = {"learning_method": "online", "batch_size": 200, "random_state": 0}
    params |= {"validation_fraction": 0.2, "evaluate_every": 1, "perp_tol": 1e9}
    model = without(95, ranks_of(MALDA(4, **params), 1, 2), 1, X)
    assert len(model.history_) == 2


def test_a_fit_that_has_ended_when_rows_are_lost_has_no_best_score(without, noisy_rows):
    """Those that are known are of other rows."""
    params = {"max_iter": 4, "tol": None, "early_stopping": True, "random_state": 0}
    model = without(300, MPCAClassifier((4,), **params), 4, *noisy_rows)
    assert len(model.validation_scores_) == 4
    assert model.best_validation_score_ is None


def test_errors_of_folds_stay_those_of_their_penalties(without, noisy_rows):
    """Fewer rows would make other penalties than those that errors are known of."""
    X, y = noisy_rows
    params = {"alphas": 8, "cv": 3, "eps": 0.01}
    model = without(300, SchMPLassoCV(**params), 1, X, y)
    alone = SchMPLassoCV(**params).fit(X, y)
    np.testing.assert_array_equal(model.alphas_, alone.alphas_)
    np.testing.assert_array_equal(model.mse_path_[:, 0], alone.mse_path_[:, 0])


class Means(FactorModel):
    """Means of targets, found by steps."""

    def initial_matrix(self, n_features):
        return np.zeros((1, n_features))

    def factors(self, matrix, batch):
        return matrix.product(batch.X) - batch.y[:, None], batch.X

    def loss(self, matrix, batch):
        return ((matrix.product(batch.X)[:, 0] - batch.y) ** 2).sum() / 2


def test_an_objective_of_other_rows_does_not_end_a_run_of_factors(without):
    X = np.ones((60, 1))
    y = np.r_[[-1.0, 1.0] * 15, np.full(30, 0.1)]
    fit = partial(
        run_factors, Means(), n_passes=40, tol=1e-3, batch_size=30, random_state=0
    )
    result = without(30, SimpleNamespace(fit=fit), 1, X, y)
    before, after, *others = (part["objective"] for part in result.history)
    assert after > 1.5 * before
    assert len(others) > 1


class Counts(RotationProgram):
    """Sums of columns, which end once a round has brought nothing."""

    def weights(self, local):
        return np.full(local.n_features, local.n_rows)

    def initial_block(self, parameters, local, rng):
        return {"sums": np.zeros(len(parameters))}

    def initial_shared(self, local, group):
        return {"n_rows": np.array(local.n_rows)}

    def lose_rows(self, home, local, shared, group):
        for block in home:
            block.values["sums"][:] = 0
        return self.initial_shared(local, group)

    def update(self, block, local, shared, turn):
        for each in local.blocks:
            block.values["sums"] += each.X[:, block.parameters].sum(axis=0)

    def report(self, sums, shared):
        return {"objective": float(shared["n_rows"])}

    def has_converged(self, records):
        return len(records) > 2


def test_a_program_is_told_that_rows_are_gone(without):
    """And sees no record of them when it is asked whether it has converged."""
    X = np.ones((8, 3))
    fit = partial(run_rotations, Counts(), n_iterations=9, report_every=1)
    result = without(3, SimpleNamespace(fit=fit), 2, X)
    np.testing.assert_array_equal(result.model["sums"], 9)
    assert [each["objective"] for each in result.history] == [8, 8, 3, 3, 3]
