"""scikit-learn's common tests, in this process and on a cluster."""

import re

import pytest
from pairs import each
from sklearn.base import clone
from sklearn.utils.estimator_checks import (
    estimator_checks_generator,
    parametrize_with_checks,
)

from dask_ma import (
    MALDA,
    ButterflySGDClassifier,
    ButterflySGDRegressor,
    MASGDClassifier,
    MASGDRegressor,
    MPCAClassifier,
    MPCARegressor,
    SchMPLasso,
    SchMPLassoCV,
    SchMPLDA,
    SchMPLogisticRegression,
    SFBDictionaryLearning,
    SFBLogisticRegression,
    SFBMetricLearner,
)

# The other ways to exchange models do not give the same result twice.
MPCA_ON_TWO_RANKS = {
    "hidden_layer_sizes": (10,),
    "max_iter": 20,
    "learning_rate_init": 0.03,
    "strategy": "synchronous",
    "n_ranks": 2,
}
# All rows of a check in one batch: then a weight of 2 is two rows.
ONE_STEP = {"batch_size": 1000, "learning_rate": "invscaling", "refine": None}
# Longer ones lead away without a bound, where nothing could be told from rounding.
ONE_STEP["eta0"] = 0.05
# One rank has the rounds that it needs to converge. Several ranks have fewer, enough
# for the checks, because they take most of the time of these tests.
ESTIMATORS = [
    ButterflySGDClassifier(max_iter=40),
    ButterflySGDRegressor(max_iter=40),
    MALDA(n_components=3, max_iter=3, learning_method="batch"),
    MASGDClassifier(max_iter=10),
    MASGDRegressor(max_iter=200),
    MPCAClassifier((10,), alpha=0, max_iter=40, learning_rate_init=0.03),
    MPCARegressor((10,), alpha=0, max_iter=40, learning_rate_init=0.03),
    SchMPLDA(n_components=3, max_iter=2, fractions="round", init="random"),
    SchMPLasso(alpha=0.01),
    SchMPLassoCV(cv=3, alphas=5),
    SchMPLogisticRegression(),
    SFBDictionaryLearning(3, alpha=0.05, max_iter=3),
    SFBLogisticRegression(max_iter=20),
    SFBMetricLearner(max_iter=20),
]
# The same classes with other solvers, and on two ranks.
OTHER_WAYS = [
    ButterflySGDClassifier(max_iter=60, **ONE_STEP),
    ButterflySGDRegressor(max_iter=60, **ONE_STEP),
    MALDA(n_components=3, max_iter=3, n_ranks=2),
    MASGDClassifier(max_iter=5, n_ranks=2, refine_tol=1e-2),
    MASGDRegressor(max_iter=5, n_ranks=2),
    MPCAClassifier(**MPCA_ON_TWO_RANKS),
    MPCARegressor(**MPCA_ON_TWO_RANKS),
    SchMPLDA(3, max_iter=3, n_ranks=2, sampler="metropolis", fractions="round"),
    SchMPLasso(alpha=0.01, n_ranks=2, layout="columns"),
    SFBDictionaryLearning(3, alpha=0.05, max_iter=3, n_ranks=2, solver="sgd"),
    SFBLogisticRegression(max_iter=20, solver="sgd", refine=False),
    SFBLogisticRegression(max_iter=20, solver="sdca", alpha=0.05, n_ranks=2),
    SFBLogisticRegression(
        "elasticnet", max_iter=20, solver="sdca", alpha=0.05, n_ranks=2
    ),
    SFBMetricLearner(loss="hinge", max_iter=5, n_ranks=2, communication="factors"),
]
# With a client: one rank per worker, or two ranks on some of them.
ON_CLUSTER = [
    ButterflySGDClassifier(max_iter=10, n_ranks=2),
    ButterflySGDRegressor(max_iter=10, n_ranks=2),
    MALDA(n_components=3, max_iter=3, learning_method="online"),
    # Steps found by trial shrink before weights of 1000 and 0.0001 have had their way;
    # only the refinement goes on from there.
    MASGDClassifier(max_iter=5, refine=None, learning_rate="optimal", n_ranks=2),
    MASGDRegressor(max_iter=5, n_ranks=5, learning_rate="optimal"),
    MPCAClassifier(**MPCA_ON_TWO_RANKS),
    SchMPLogisticRegression(n_ranks=2),
    SFBDictionaryLearning(3, alpha=0.05, max_iter=3, communication="factors"),
    SFBLogisticRegression(max_iter=5, n_ranks=2, communication="factors"),
    SFBMetricLearner(max_iter=5, n_ranks=2, communication="factors"),
]
_STOCHASTIC = (
    "a weight multiplies the gradient of one step, a repeated row makes two steps: "
    "equal in the limit only"
)
_REFUSED = "the check sets n_iter_no_change, which dual ascent does not have"
# What the class, the checks of its input and a fitted model do, which no rank takes
# part in.
_SAME_ANYWHERE = re.compile(
    "clone|repr|tag|init|mixin|set_params|get_params|unfitted|is_fitted|returns_self"
    "|pickle|subset_invariance|order_invariance|weights_shape|in_after_fitting|sparsify"
    "|estimator_sparse_(array|matrix)|class_weight_classifiers|array_api|complex|object"
    "|(list|pandas_series|not_an_array)$|takes_y|requires_y|y_2d|fit1d|predict1d|empty"
    "|n_features_in$|dict_unchanged|overwrite_params|overwrite_parameters|pipeline"
)
# What a model is like.
_BY_RESULT = (
    "check_sample_weight",
    "check_classifiers_train",
    "check_classifiers_classes",
    "check_regressors_train",
    "check_class_weight",
    "check_transformer_general",
)
# Of these, what depends on how it is reached.
_BY_SOLVER = (
    "check_sample_weight_equivalence",
    "check_classifiers_train",
    "check_regressors_train",
    "check_transformer_general",
)
# The other checks say nothing of how good a model is: one round is as good as many.
_ONE_ROUND = {
    ButterflySGDClassifier: {"max_iter": 1, "refine": None},
    ButterflySGDRegressor: {"max_iter": 1, "refine": None},
    MALDA: {"max_iter": 1},
    MASGDClassifier: {"max_iter": 1, "refine": None, "refine_tol": 1e-3},
    MASGDRegressor: {"max_iter": 1, "refine": None},
    MPCAClassifier: {"max_iter": 2},
    MPCARegressor: {"max_iter": 2},
    SchMPLDA: {"max_iter": 1},
    SchMPLassoCV: {"cv": 2, "alphas": 2},
    SFBDictionaryLearning: {"max_iter": 1},
    SFBLogisticRegression: {"max_iter": 1},
    SFBMetricLearner: {"max_iter": 1},
}
_TO_A_GAP = "both fits are as near the optimum as `tol` asks, and not nearer"
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:partial_fit has taken"),
    # Ten rows of a check are too few for what the default penalty asks for.
    pytest.mark.filterwarnings("ignore:all coefficients are zero"),
    # Rows of a check are as they are, and so are the steps of partial_fit.
    pytest.mark.filterwarnings("ignore:the objective has risen"),
]


def expected_failed_checks(estimator):
    """Checks that stochastic solvers cannot pass, as in scikit-learn itself.

    The rows of these checks make a single batch of a single rank. Least squares are
    refined to the optimum in two passes.
    """
    # Some of these have no weights.
    exact = (
        MALDA,
        SchMPLasso,
        SchMPLassoCV,
        SchMPLDA,
        SchMPLogisticRegression,
    )
    if isinstance(estimator, SFBMetricLearner):
        return _unequal("a row that is there twice is its own neighbour")
    if isinstance(estimator, SFBDictionaryLearning):
        return _unequal("which rows are the first atoms does not go by weights")
    refined = (ButterflySGDRegressor, MASGDRegressor)
    if isinstance(estimator, exact + refined):
        return {}
    if getattr(estimator, "batch_size", None) == ONE_STEP["batch_size"]:
        return {}
    solver = getattr(estimator, "solver", None)
    if solver == "sgd" and estimator.n_ranks is None:
        return {}
    if isinstance(estimator, (MPCAClassifier, MPCARegressor)):
        return _unequal(_STOCHASTIC) if estimator.n_ranks else {}
    # "auto" takes dual ascent, but for a check that sets a parameter of steps.
    failed = _unequal(_TO_A_GAP if solver in ("auto", "sdca") else _STOCHASTIC)
    refused = {"check_class_weight_classifiers": _REFUSED} if solver == "sdca" else {}
    return failed | refused


def _unequal(reason):
    """Checks that a row of weight 2 is like two rows."""
    return {
        "check_sample_weight_equivalence_on_dense_data": reason,
        "check_sample_weight_equivalence_on_sparse_data": reason,
    }


def for_check(estimator, check):
    """A copy, as other checks have the same; of one round if more say nothing more."""
    copy = clone(estimator)
    if check.func.__name__.startswith(_BY_RESULT):
        return copy
    return copy.set_params(**_ONE_ROUND.get(type(estimator), {}))


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failed_checks)
def test_contract_without_client(estimator, check):
    check(for_check(estimator, check))


def _checks_that_fit(estimators):
    """Checks of what ranks do, other than fits of rows in one container after another.

    The others are made with the first estimator of each class.
    """
    for estimator in estimators:
        failing = expected_failed_checks(estimator)
        for checked, check in estimator_checks_generator(estimator):
            name = check.func.__name__
            # The same once more, with other types of numbers or rows in a file.
            is_again = bool(check.keywords)
            if not (is_again or name in failing or _SAME_ANYWHERE.search(name)):
                yield pytest.param(checked, check, id=f"{estimator!r}-{name}")


def test_each_class_has_all_checks():
    classes = {type(estimator) for estimator in ESTIMATORS}
    assert classes >= {type(other) for other in (*OTHER_WAYS, *ON_CLUSTER)}


# How ranks come to workers has nothing to do with who is fitted, nor have solvers with
# most of what is asked: each check is made by one of the estimators, and each of these
# is asked something. What one of them alone is asked is asked without a client.
def _shared_out(cases, always=()):
    """Each check once, and each estimator; some checks with all estimators."""
    cases = list(cases)

    def values(case):
        estimator, check = case.values
        return repr(estimator), check.func.__name__

    chosen = {id(case) for case in each(cases, values)}
    return [c for c in cases if id(c) in chosen or values(c)[1].startswith(always)]


@pytest.mark.parametrize(
    ("estimator", "check"), _shared_out(_checks_that_fit(OTHER_WAYS), _BY_SOLVER)
)
def test_contract_in_other_ways(estimator, check):
    check(for_check(estimator, check))


@pytest.mark.parametrize(
    ("estimator", "check"), _shared_out(_checks_that_fit(ON_CLUSTER))
)
def test_contract_with_client(estimator, check, inproc_client):
    with inproc_client.as_current():
        check(for_check(estimator, check))
