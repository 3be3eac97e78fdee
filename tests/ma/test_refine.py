"""Second-order steps after the rounds, or from zero, against scikit-learn's optimum."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import SVC

from dask_ma import MASGDClassifier, MASGDRegressor
from dask_ma.datasets import load_clinc150, make_sparse_classification
from dask_ma.linear.refine import _run
from dask_ma.losses import Hinge
from dask_ma.ma import Models

SMOOTH = ["log_loss", "squared_hinge", "modified_huber"]
SMOOTH_REGRESSION = ["squared_error", "huber", "squared_epsilon_insensitive"]
AGGREGATIONS = ["allreduce", "tree", "driver"]
ALPHA = 0.01
FROM_ZERO = {
    "refine": "lbfgs",
    "max_iter": 0,
    "refine_tol": 1e-11,
    "refine_max_iter": 300,
    "alpha": ALPHA,
    "random_state": 0,
}
HYBRID = {**FROM_ZERO, "max_iter": 1, "local_epochs": 1}


def digest(model):
    """All that must be the same."""
    values = [(r["round"], r["objective"], r["n_samples"]) for r in model.history_]
    return model.coef_.tobytes(), model.intercept_.tobytes(), model.t_, values


def slow_optimum(X, y, objective, model):
    """Lowest objective that a search without derivatives finds near a model."""

    def value(point):
        model.coef_ = point[:-1].reshape(model.coef_.shape)
        model.intercept_ = point[-1:]
        return objective(model, X, y)

    start = np.append(model.coef_.ravel(), model.intercept_)
    result = minimize(value, start, method="Powell", options={"ftol": 1e-12})
    return float(result.fun)


# The optimum --------------------------------------------------------------------------


@pytest.mark.pairs
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("start", [FROM_ZERO, HYBRID], ids=["zero", "hybrid"])
@pytest.mark.parametrize("alpha", [1e-3, 0.1])
def test_logistic_regression(binary, objective, start, alpha, n_ranks):
    X, y = binary
    params = {**start, "alpha": alpha, "loss": "log_loss"}
    ours = MASGDClassifier(**params, n_ranks=n_ranks).fit(X, y)
    theirs = LogisticRegression(
        C=1 / (alpha * len(y)), solver="newton-cholesky", tol=1e-12
    ).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-3, atol=1e-4)
    theirs.loss, theirs.alpha, theirs.penalty = "log_loss", alpha, "l2"
    theirs.epsilon, theirs.l1_ratio = 0.1, 0
    best = objective(theirs, X, y)
    assert ours.history_[-1]["objective"] == pytest.approx(best, rel=1e-9)


def test_ridge(regression):
    X, y = regression
    ours = MASGDRegressor(**FROM_ZERO, n_ranks=3).fit(X, y)
    theirs = Ridge(alpha=ALPHA * len(y), tol=1e-12).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-5)


@pytest.mark.parametrize("loss", SMOOTH)
@pytest.mark.parametrize("penalty", ["l2", None])
def test_no_classifier_is_better(binary, objective, loss, penalty):
    X, y = binary
    y = np.where(np.arange(120) % 9 == 0, 1 - y, y)  # no plane divides the classes
    params = {**FROM_ZERO, "loss": loss, "penalty": penalty}
    params["alpha"] = ALPHA if penalty else 0
    ours = MASGDClassifier(**params, n_ranks=2).fit(X, y)
    found = ours.history_[-1]["objective"]
    assert found == pytest.approx(objective(ours, X, y), rel=1e-12)
    assert slow_optimum(X, y, objective, ours) > found * (1 - 1e-7)


@pytest.mark.parametrize("loss", SMOOTH_REGRESSION)
def test_no_regressor_is_better(regression, objective, loss):
    X, y = regression
    ours = MASGDRegressor(**FROM_ZERO, loss=loss, n_ranks=2).fit(X, y)
    found = ours.history_[-1]["objective"]
    assert found == pytest.approx(objective(ours, X, y), rel=1e-12)
    assert slow_optimum(X, y, objective, ours) > found * (1 - 1e-7)


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_matrix])
def test_each_class_against_the_rest(multi, container):
    X, y = multi
    ours = MASGDClassifier(**FROM_ZERO, loss="log_loss", n_ranks=3)
    ours.fit(container(X), y)
    for label in range(4):
        theirs = LogisticRegression(
            C=1 / (ALPHA * 120), solver="newton-cholesky", tol=1e-12
        ).fit(X, y == label)
        np.testing.assert_allclose(ours.coef_[label], theirs.coef_[0], atol=1e-5)
        np.testing.assert_allclose(
            ours.intercept_[label], theirs.intercept_[0], atol=1e-5
        )


def test_weights_are_repeated_rows(binary):
    X, y = binary
    counts = np.arange(120) % 4
    rows = np.repeat(np.arange(120), counts)
    params = {**FROM_ZERO, "loss": "log_loss"}
    weighted = MASGDClassifier(**params, n_ranks=2)
    weighted.fit(X, y, sample_weight=counts.astype(float))
    repeated = MASGDClassifier(**params, n_ranks=3).fit(X[rows], y[rows])
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-5)


def test_intercept_is_not_penalised(binary):
    X, y = binary
    y = np.where(np.arange(120) < 80, 1, y)
    ours = MASGDClassifier(**{**FROM_ZERO, "alpha": 1e4}, loss="log_loss").fit(X, y)
    assert abs(ours.coef_).max() < 1e-3
    share = y.mean()
    assert ours.intercept_[0] == pytest.approx(np.log(share / (1 - share)), abs=1e-3)


def test_no_intercept_stays_as_it_was(binary):
    X, y = binary
    ours = MASGDClassifier(**FROM_ZERO, loss="log_loss", fit_intercept=False)
    ours.fit(X, y, intercept_init=[0.5])
    assert ours.intercept_ == [0.5]
    # Its derivative, which is not 0, is not looked at.
    assert ours.history_[-1]["excess"] <= 1e-11
    ours.fit(X, y)
    theirs = LogisticRegression(
        C=1 / (ALPHA * 120), solver="newton-cholesky", tol=1e-12, fit_intercept=False
    ).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)


def test_float32_rows_find_the_optimum_of_double_precision(binary):
    X, y = binary
    X = X.astype(np.float32)
    params = {**FROM_ZERO, "loss": "log_loss"}
    single = MASGDClassifier(**params).fit(X, y)
    double = MASGDClassifier(**params).fit(X.astype(np.float64), y)
    assert single.coef_.dtype == single.intercept_.dtype == np.float32
    np.testing.assert_allclose(single.coef_, double.coef_, rtol=1e-6)


# Rounds -------------------------------------------------------------------------------


def test_each_evaluation_is_a_round_and_a_pass(binary):
    X, y = binary
    model = MASGDClassifier(**HYBRID, loss="log_loss", n_ranks=3).fit(X, y)
    assert [r["round"] for r in model.history_] == list(range(1, model.n_iter_ + 1))
    first, second, *others = model.history_
    rest = [second, *others]
    assert "refined" not in first
    assert all(r["refined"] is True for r in rest)
    # The first one needs a pass for the scale of the columns, too.
    assert (second["n_samples"], second["local_epochs"]) == (240, 2.0)
    assert {(r["n_samples"], r["local_epochs"]) for r in others} == {(120, 1.0)}
    # L-BFGS begins where the rounds ended, with the same objective.
    assert rest[0]["objective"] == pytest.approx(first["objective"], rel=1e-12)
    assert rest[-1]["excess"] <= 1e-11 < rest[-2]["excess"]
    values = [r["objective"] for r in rest]
    assert values == sorted(values, reverse=True)  # of the best model so far


def test_refinement_begins_at_the_mean_of_the_rounds(binary):
    X, y = binary
    params = {**HYBRID, "max_iter": 3, "average": True, "loss": "log_loss"}
    # So that none of the three brings too little for another.
    model = MASGDClassifier(**params, n_iter_no_change=5, n_ranks=2).fit(X, y)
    before, after = model.history_[2:4]
    assert after["objective"] == pytest.approx(before["objective"], rel=1e-12)


def test_the_gradient_paradigm_can_be_refined_too(binary):
    params = {
        **FROM_ZERO,
        "max_iter": 3,
        "paradigm": "gradient",
        "loss": "log_loss",
        "n_ranks": 2,
    }
    model = MASGDClassifier(**params).fit(*binary)
    alone = MASGDClassifier(**FROM_ZERO, loss="log_loss").fit(*binary)
    np.testing.assert_allclose(model.coef_, alone.coef_, atol=1e-5)
    assert model.t_ == pytest.approx(4)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_the_first_pass_that_brings_little_is_the_last_one(binary, objective, n_ranks):
    X, y = binary
    y = np.where(np.arange(120) % 9 == 0, 1 - y, y)  # no plane divides the classes
    params = {"loss": "log_loss", "tol": 0.05**3, "local_epochs": 1, "random_state": 0}
    models = [
        MASGDClassifier(**params, n_ranks=n_ranks, refine=refine).fit(X, y)
        for refine in ("auto", None)
    ]
    refined, alone = (
        [r["objective"] for r in model.history_ if "refined" not in r]
        for model in models
    )
    gains = 1 - np.array(refined[1:]) / np.minimum.accumulate(refined)[:-1]
    assert (gains < 0.05).tolist() == [False] * (len(gains) - 1) + [True]
    # Without a refinement, five such passes, as with a number that says so.
    patient = MASGDClassifier(**params, n_ranks=n_ranks, n_iter_no_change=5).fit(X, y)
    assert [r["objective"] for r in patient.history_ if "refined" not in r] == alone
    assert len(alone) >= len(refined) + 4
    assert alone[: len(refined)] == refined
    best = models[0].history_[-1]["objective"]
    assert best == pytest.approx(objective(models[0], X, y))
    assert best < alone[-1] * 1.001


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_rounds_end_late_where_the_refinement_may_be_too_short(binary, loss):
    """It may end far from the optimum, where more of SGD would have been near it."""
    X, y = binary
    y = np.where(np.arange(120) % 9 == 0, 1 - y, y)
    params = {"loss": loss, "refine": "lbfgs", "random_state": 0, "n_ranks": 1}
    histories = []
    for refined, patience in ((63, "auto"), (63, 5), (64, "auto")):
        params |= {"refine_max_iter": refined, "n_iter_no_change": patience}
        histories.append(MASGDClassifier(**params).fit(X, y).history_)
    own, patient, hasty = (
        [r["objective"] for r in history if "refined" not in r] for history in histories
    )
    assert own == patient
    assert len(hasty) < len(own)


def test_steps_of_other_schedules_have_their_patience_before_a_refinement(binary):
    params = {"loss": "log_loss", "learning_rate": "optimal", "tol": 0.05}
    counts = []
    for patience in (1, 3):
        model = MASGDClassifier(
            **params, n_iter_no_change=patience, random_state=0, n_ranks=1
        ).fit(*binary)
        counts.append(sum("refined" not in record for record in model.history_))
    assert counts[1] >= counts[0] + 2


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_rounded_kinks_do_not_lead_away_from_where_sgd_has_come(n_ranks):
    """The optimum of a loss as smooth as targets are spread is further away."""
    X, y, _ = make_sparse_classification(2000, 1000, n_nonzero=10, random_state=0)
    params = {"alpha": 1e-3, "random_state": 0, "n_ranks": n_ranks, "refine": "lbfgs"}
    model = MASGDClassifier(**params).fit(X, y)
    refined = [r["objective"] for r in model.history_ if r.get("refined")]
    assert refined[2] < refined[0]
    # From zero, the smooth loss shows the way.
    cold = MASGDClassifier(**params, max_iter=0).fit(X, y)
    assert cold.history_[-1]["objective"] <= 1.001 * refined[-1]


def test_warm_start_is_at_the_optimum_already(binary):
    model = MASGDClassifier(**FROM_ZERO, loss="log_loss", n_ranks=2, warm_start=True)
    model.fit(*binary)
    coef = model.coef_
    model.set_params(refine_tol=1e-6).fit(*binary)
    assert model.n_iter_ == 1
    np.testing.assert_allclose(model.coef_, coef, rtol=1e-12)


def test_most_rounds(binary, objective):
    X, y = binary
    params = {**HYBRID, "loss": "log_loss", "refine_max_iter": 4, "refine_tol": 0}
    message = "refinement ended after 5 rounds.* raise refine_max_iter or alpha, or sc"
    with pytest.warns(ConvergenceWarning, match=message):
        model = MASGDClassifier(**params, n_ranks=3).fit(X, y)
    assert model.n_iter_ == len(model.history_) == 5
    # The best point counts, which need not be the last one.
    assert model.history_[-1]["objective"] == pytest.approx(objective(model, X, y))


@pytest.mark.each
@pytest.mark.parametrize("method", ["newton", "lbfgs"])
@pytest.mark.parametrize("penalty", ["l2", "l1", "elasticnet"])
def test_excess_is_what_is_left(binary, penalty, method):
    """The estimate that ends the refinement, against the optimum itself."""
    params = {**FROM_ZERO, "refine": method, "penalty": penalty, "loss": "log_loss"}
    best = MASGDClassifier(**params).fit(*binary).history_[-1]["objective"]
    rounds = []
    for tol in (1e-2, 1e-3, 1e-5):
        model = MASGDClassifier(**{**params, "refine_tol": tol}, n_ranks=2).fit(*binary)
        last = model.history_[-1]
        assert last["excess"] <= tol
        assert last["objective"] <= best * (1 + 2 * tol)
        rounds.append(model.n_iter_)
    assert rounds[0] < rounds[-1]


@pytest.mark.each
@pytest.mark.parametrize("penalty", [None, "l2"])
@pytest.mark.parametrize("seed", [1, 6, 21])
def test_rounding_at_the_optimum_is_no_excess(penalty, seed):
    """Where no step brings anything, trials may be above the best by rounding."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(20_000, 6)) + 5
    y = X @ rng.normal(size=6) + 3 * rng.normal(size=20_000)
    y = np.digitize(y, np.quantile(y, [0.2, 0.4, 0.6, 0.8]))
    params = {"penalty": penalty, "max_iter": 2, "random_state": seed, "n_ranks": 1}
    model = MASGDClassifier("squared_hinge", **params, refine="lbfgs", refine_tol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model.fit(X, y)
    assert model.history_[-1]["excess"] <= 1e-12


def test_a_loss_of_a_users_is_always_told_how_cautious_to_be():
    class Own(Hinge):
        def smooth(self, y, p, width, caution):
            found = super().smooth(y, p, width, caution)
            return found._replace(curvatures=found.curvatures + 0 * caution)

    X, y, _ = make_sparse_classification(200, 600, random_state=0)
    params = {"alpha": 0.1, "refine": "lbfgs", "max_iter": 2, "random_state": 0}
    own = MASGDClassifier(Own(), **params).fit(X, y)
    expected = MASGDClassifier("hinge", **params).fit(X, y)
    ends = [model.history_[-1]["objective"] for model in (own, expected)]
    assert ends[0] == pytest.approx(ends[1], rel=2e-3)


def test_a_search_that_is_worse_than_its_start_has_not_ended():
    """Rounds end below what rounder losses lead to, whose minimum says little then."""
    texts, names = load_clinc150("train")
    chosen = np.isin(names, np.unique(names)[:7])
    X = TfidfVectorizer(sublinear_tf=True).fit_transform(np.array(texts)[chosen])
    y = np.array(names)[chosen]
    alpha = 1e-3
    model = MASGDClassifier("hinge", alpha=alpha, tol=1e-4, random_state=0).fit(X, y)
    best = []
    for name in np.unique(y):
        target = np.where(y == name, 1.0, -1.0)
        machine = SVC(kernel="linear", C=1 / (alpha * len(y)), tol=1e-5).fit(X, target)
        losses = np.maximum(0, 1 - target * machine.decision_function(X))
        square = machine.coef_.multiply(machine.coef_).sum()
        best.append(losses.mean() + 0.5 * alpha * square)
    last = model.history_[-1]
    assert last["objective"] <= np.mean(best) * (1 + 1e-3)
    assert last["excess"] <= 1e-3


# Ranks --------------------------------------------------------------------------------


def test_clusters_and_aggregations_agree_bit_for_bit(
    inproc_client, process_client, wide_client, multi
):
    def fit_all(aggregations=AGGREGATIONS):
        return [
            digest(
                MASGDClassifier(
                    **{**HYBRID, "refine_tol": 1e-3},
                    loss="log_loss",
                    paradigm=Models(aggregation),
                    n_ranks=3,
                ).fit(*multi)
            )
            for aggregation in aggregations
        ]

    here = fit_all()
    assert here[0] == here[1] == here[2]
    with wide_client.as_current():
        assert fit_all() == here
    for client in (inproc_client, process_client):
        with client.as_current():
            assert fit_all(AGGREGATIONS[:1]) == here[:1]


def test_ranks_without_rows(cluster, binary):
    X, y = binary
    weight = (np.arange(120) >= 90).astype(float)
    params = {**FROM_ZERO, "loss": "log_loss"}
    ours = MASGDClassifier(**params, n_ranks=4).fit(X, y, sample_weight=weight)
    alone = MASGDClassifier(**params, n_ranks=1).fit(X[90:], y[90:])
    np.testing.assert_allclose(ours.coef_, alone.coef_, atol=1e-5)


@pytest.mark.parametrize("failing", [0, 2])
def test_a_rank_that_fails_ends_the_others(cluster, binary, monkeypatch, failing):
    """Whether it runs SciPy or serves it, and with the error of its own."""
    original = _run.Refinement.round

    def make_round(self):
        if self.context.group.rank == failing and self.n_rounds == 4:
            raise MemoryError("no room for the gradient")
        return original(self)

    monkeypatch.setattr(_run.Refinement, "round", make_round)
    model = MASGDClassifier(**FROM_ZERO, loss="log_loss", n_ranks=4)
    with pytest.raises(MemoryError, match="no room for the gradient"):
        model.fit(*binary)
    assert not hasattr(model, "coef_")


# Errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"loss": "perceptron"}, "which is zero for loss='perceptron'"),
        ({"refine": "auto"}, "must be at least 1 unless refine='newton'"),
        ({"refine": None}, "must be at least 1 unless refine='newton'"),
        ({"early_stopping": True}, "early_stopping must be False with refine="),
        ({"refine": "bfgs"}, "The 'refine' parameter of MASGDClassifier"),
        ({"refine_max_iter": 0}, "The 'refine_max_iter' parameter of"),
        ({"refine_tol": -1.0}, "The 'refine_tol' parameter of"),
        ({"max_iter": -1}, "The 'max_iter' parameter of"),
    ],
)
def test_what_does_not_go_together(binary, params, message):
    model = MASGDClassifier(**{**FROM_ZERO, "loss": "log_loss", **params})
    with pytest.raises(ValueError, match=message):
        model.fit(*binary)
    assert not hasattr(model, "coef_")


def test_partial_fit_is_refused(binary):
    model = MASGDClassifier(**FROM_ZERO, loss="log_loss")
    with pytest.raises(
        ValueError, match="refine should be 'auto' or None with partial_fit"
    ):
        model.partial_fit(*binary, classes=[0, 1])


def test_no_penalty_where_no_step_needs_it(binary):
    """alpha=0 with the step size 1 / (alpha t) is refused, but from zero none is."""
    params = {**FROM_ZERO, "alpha": 0, "loss": "squared_hinge", "refine_tol": 1e-4}
    MASGDClassifier(**params).fit(*binary)
    with pytest.raises(ValueError, match="alpha must be > 0"):
        MASGDClassifier(**{**params, "max_iter": 1, "learning_rate": "optimal"}).fit(
            *binary
        )


def test_verdict_and_next_question_travel_together(process_client):
    """A round of two ranks: what is asked, which came before, and the two sums."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5))
    y = X[:, 0] + rng.normal(size=400) > 0
    with process_client.as_current():
        model = MASGDClassifier(
            "log_loss", max_iter=1, n_ranks=2, refine="lbfgs", refine_tol=1e-4
        )
        model.fit(X, y)
    refined = [r["messages_sent"] for r in model.history_ if r.get("refined")]
    assert len(refined) > 2
    # A record counts to before its sums travel; the first round looks at the rows, too.
    assert set(refined[1:]) == {3}
