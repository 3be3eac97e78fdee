"""SendGradient against a slow loop, and the ways to aggregate against each other."""

import dask.array as da
import numpy as np
import pytest
from estimators import build
from scipy import sparse

from dask_ma import MASGDClassifier, MASGDRegressor
from dask_ma.comm import LocalGroup
from dask_ma.kernels import LOSSES, loss_slopes
from dask_ma.ma import Gradients, Models
from dask_ma.ma._paradigm import aggregate

AGGREGATIONS = ["allreduce", "tree", "driver"]
PARADIGMS = [Models(), Gradients()]
REGRESSION_LOSSES = [
    "squared_error",
    "huber",
    "epsilon_insensitive",
    "squared_epsilon_insensitive",
]
# Fits without a penalty, or with other steps, are given the same `alpha` and `eta0`.
pytestmark = pytest.mark.filterwarnings("ignore:(alpha|eta0)=.* has no effect")
GRADIENT = {
    "paradigm": Gradients(),
    "learning_rate": "invscaling",
    "eta0": 0.3,
    "power_t": 0.5,
    "max_iter": 6,
    "tol": None,
    "random_state": 0,
}
ALPHA, L1_RATIO = 0.05, 0.4
PENALTY_WEIGHTS = {
    None: (0, 0),
    "l2": (ALPHA, 0),
    "l1": (0, ALPHA),
    "elasticnet": (ALPHA * (1 - L1_RATIO), ALPHA * L1_RATIO),
}
STEPS = {
    "constant": lambda t: 0.3,
    "invscaling": lambda t: 0.3 / t**0.5,
    # The typical weight is sqrt(1 / sqrt(alpha)); its square over itself is t0 alpha.
    "optimal": lambda t: 1 / (1 / ALPHA**-0.25 + ALPHA * (t - 1)),
}


def descend(X, targets, weight, loss, penalty, rate="invscaling", n_rounds=6):
    """Full gradient steps, row by row: coefficients and intercept of one problem."""
    w, b = np.zeros(X.shape[1]), 0.0
    l2, l1 = PENALTY_WEIGHTS[penalty]
    for t in range(1, n_rounds + 1):
        gw, gb = np.zeros_like(w), 0.0
        for x, target, s in zip(X, targets, weight, strict=True):
            slope = loss_slopes(loss, np.array([target]), np.array([x @ w + b]))[0]
            gw, gb = gw + s * slope * x, gb + s * slope
        step = STEPS[rate](t)
        w = w - step * (gw / weight.sum() + l2 * w)
        w = np.sign(w) * np.maximum(abs(w) - step * l1, 0)
        b = b - step * gb / weight.sum()
    return w, b


def fit(cls, X, y, n_ranks=1, weight=None, **params):
    params = {**GRADIENT, "alpha": ALPHA, **params}
    if params.get("penalty") == "elasticnet":
        params = {"l1_ratio": L1_RATIO, **params}
    model = build(cls, {"n_ranks": n_ranks, **params})
    return model.fit(X, y, sample_weight=weight)


def digest(model):
    """All that must be the same."""
    values = [
        (r["round"], np.nan_to_num(r["objective"]), r["n_samples"])
        for r in model.history_
    ]
    return model.coef_.tobytes(), model.intercept_.tobytes(), model.t_, values


# Against a slow loop ------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 2, 5])
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_classifier_is_gradient_descent(binary, weights, loss, n_ranks):
    X, y = binary
    ours = fit(MASGDClassifier, X, y, n_ranks, weights, loss=loss)
    w, b = descend(X, 2.0 * y - 1, weights, loss, "l2")
    np.testing.assert_allclose(ours.coef_[0], w, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours.intercept_, b, rtol=1e-9, atol=1e-12)
    assert ours.t_ == pytest.approx(7)


@pytest.mark.each
@pytest.mark.parametrize("loss", REGRESSION_LOSSES)
@pytest.mark.parametrize("penalty", sorted(PENALTY_WEIGHTS, key=str))
def test_regressor_is_gradient_descent(regression, weights, loss, penalty):
    X, y = regression
    ours = fit(MASGDRegressor, X, y, 3, weights, loss=loss, penalty=penalty)
    w, b = descend(X, y, weights, loss, penalty)
    np.testing.assert_allclose(ours.coef_, w, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours.intercept_, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rate", sorted(STEPS))
def test_step_sizes(binary, rate):
    X, y = binary
    ours = fit(MASGDClassifier, X, y, 2, learning_rate=rate)
    w, _ = descend(X, 2.0 * y - 1, np.ones(120), "hinge", "l2", rate)
    np.testing.assert_allclose(ours.coef_[0], w, rtol=1e-9)


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_matrix, sparse.csr_array])
def test_each_class_against_the_rest(multi, container):
    X, y = multi
    ours = fit(MASGDClassifier, container(X), y, 3, loss="log_loss")
    for label in range(4):
        targets = np.where(y == label, 1.0, -1.0)
        w, b = descend(X, targets, np.ones(120), "log_loss", "l2")
        np.testing.assert_allclose(ours.coef_[label], w, rtol=1e-9)
        np.testing.assert_allclose(ours.intercept_[label], b, rtol=1e-9)


def test_l1_gives_exact_zeros(binary):
    X, y = binary
    X = np.hstack([X, np.random.default_rng(0).normal(size=(120, 10))])
    ours = fit(MASGDClassifier, X, y, 2, penalty="l1", max_iter=40)
    assert 0 < (ours.coef_ == 0).sum() < 16


def test_no_intercept(binary):
    ours = fit(MASGDClassifier, *binary, 2, fit_intercept=False)
    assert ours.intercept_ == [0]


def test_float32_rows_keep_their_type(binary):
    X, y = binary
    single = fit(MASGDClassifier, X.astype(np.float32), y, 3)
    double = fit(MASGDClassifier, X.astype(np.float32).astype(float), y, 3)
    assert single.coef_.dtype == single.intercept_.dtype == np.float32
    np.testing.assert_allclose(single.coef_, double.coef_, rtol=1e-4)


def test_weights_are_repeated_rows(binary):
    X, y = binary
    counts = np.arange(120) % 4
    rows = np.repeat(np.arange(120), counts)
    weighted = fit(MASGDClassifier, X, y, 2, counts.astype(float), loss="log_loss")
    repeated = fit(MASGDClassifier, X[rows], y[rows], 3, loss="log_loss")
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-9)


def test_class_weights_count(binary):
    X, y = binary
    by_class = fit(MASGDClassifier, X, y, 2, class_weight={0: 3.0, 1: 0.5})
    by_row = fit(MASGDClassifier, X, y, 2, np.where(y == 0, 3.0, 0.5))
    np.testing.assert_allclose(by_class.coef_, by_row.coef_, rtol=1e-9)


# Samples ------------------------------------------------------------------------------


def test_samples_are_drawn_row_by_row(binary):
    """The number of rows varies like a binomial, and no round repeats another."""
    model = fit(MASGDClassifier, *binary, 4, paradigm__batch_fraction=0.3, max_iter=60)
    sizes = np.array([record["n_samples"] for record in model.history_])
    assert len(set(sizes)) > 5
    assert sizes.mean() == pytest.approx(36, abs=4 * np.sqrt(25.2 / 60))
    assert sizes.std() == pytest.approx(np.sqrt(25.2), rel=0.4)


def test_fraction_of_one_needs_no_random_numbers(binary):
    fits = [
        fit(MASGDClassifier, *binary, 3, random_state=seed).coef_.tolist()
        for seed in (0, 1)
    ]
    assert fits[0] == fits[1]
    fits = [
        fit(
            MASGDClassifier, *binary, 3, random_state=seed, paradigm__batch_fraction=0.5
        ).coef_.tolist()
        for seed in (0, 1, 0)
    ]
    assert fits[0] == fits[2] != fits[1]


def test_empty_samples_leave_the_model(binary):
    X, y = binary
    model = fit(
        MASGDClassifier, X[:8], y[:8], 2, paradigm__batch_fraction=1e-9, max_iter=3
    )
    assert [record["n_samples"] for record in model.history_] == [0, 0, 0]
    assert not model.coef_.any()
    assert model.t_ == pytest.approx(4)


def test_samples_find_the_same_optimum(binary, objective):
    X, y = binary
    params = {"loss": "log_loss", "max_iter": 300, "average": True}
    whole = fit(MASGDClassifier, X, y, 2, **params)
    part = fit(MASGDClassifier, X, y, 2, paradigm__batch_fraction=0.4, **params)
    assert objective(part, X, y) == pytest.approx(objective(whole, X, y), rel=0.01)


# Rounds -------------------------------------------------------------------------------


def test_objective_of_the_history(binary, objective):
    X, y = binary
    model = fit(MASGDClassifier, X, y, 3, loss="log_loss")
    last = model.history_[-1]
    assert last["objective"] == pytest.approx(objective(model, X, y), rel=1e-12)
    assert last["n_samples"] == 120
    assert last["local_epochs"] == 1
    assert [record["round"] for record in model.history_] == [1, 2, 3, 4, 5, 6]


def test_adaptive_steps_shrink(binary):
    """Too large a step goes nowhere, until it has been divided by 5 a few times."""
    params = {"eta0": 50.0, "max_iter": 300, "alpha": 1e-3, "n_iter_no_change": 2}
    model = fit(
        MASGDClassifier, *binary, 2, learning_rate="adaptive", tol=1e-3, **params
    )
    objectives = [record["objective"] for record in model.history_]
    assert max(objectives) > 5 * objectives[-1]
    assert objectives[-1] < 0.4


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_warm_start_goes_on(binary, aggregation):
    X, y = binary
    params = {"learning_rate": "constant", "paradigm__aggregation": aggregation}
    model = fit(MASGDClassifier, X, y, 3, warm_start=True, max_iter=3, **params)
    model.fit(X, y)
    whole = fit(MASGDClassifier, X, y, 3, max_iter=6, **params)
    np.testing.assert_array_equal(model.coef_, whole.coef_)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_partial_fit_is_a_round(regression, aggregation):
    X, y = regression
    params = {**GRADIENT, "paradigm__aggregation": aggregation, "n_ranks": 3}
    model = build(MASGDRegressor, params)
    for _ in range(6):
        model.partial_fit(X, y)
    whole = build(MASGDRegressor, params).fit(X, y)
    np.testing.assert_array_equal(model.coef_, whole.coef_)
    assert model.t_ == pytest.approx(7)


def test_early_stopping_looks_at_rows_held_out(binary):
    model = fit(MASGDClassifier, *binary, 3, early_stopping=True)
    assert all(0 <= record["validation_score"] <= 1 for record in model.history_)
    assert model.history_[0]["n_samples"] < 120


@pytest.mark.each
@pytest.mark.parametrize("paradigm", PARADIGMS, ids=repr)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_ranks_without_rows(inproc_client, binary, aggregation, paradigm):
    """Rows of weight 0 are dropped, so that some ranks have none."""
    X, y = binary
    weight = (np.arange(120) >= 90).astype(float)
    params = {**GRADIENT, "paradigm": paradigm, "paradigm__aggregation": aggregation}
    with inproc_client.as_current():
        ours = build(MASGDClassifier, {"n_ranks": 4, **params})
        ours.fit(X, y, sample_weight=weight)
    alone = build(MASGDClassifier, {"n_ranks": 1, **params}).fit(X[90:], y[90:])
    assert ours.history_[0]["n_samples"] == 30
    if isinstance(paradigm, Gradients):
        np.testing.assert_allclose(ours.coef_, alone.coef_, rtol=1e-9)


# Aggregation --------------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("paradigm", PARADIGMS, ids=repr)
@pytest.mark.parametrize("n_ranks", [1, 2, 5])
def test_aggregations_agree_bit_for_bit(multi, paradigm, n_ranks):
    params = {"max_iter": 3, "tol": None, "random_state": 0, "n_ranks": n_ranks}
    params["paradigm"] = paradigm
    fits = [
        digest(
            build(MASGDClassifier, {**params, "paradigm__aggregation": way}).fit(*multi)
        )
        for way in AGGREGATIONS
    ]
    assert fits[0] == fits[1] == fits[2]


def test_clusters_agree_bit_for_bit(inproc_client, process_client, wide_client, binary):
    """Threads here, workers here, processes of one rank and processes of two."""
    cases = [
        paradigm
        for way in AGGREGATIONS
        for paradigm in (Models(way), Gradients(0.5, aggregation=way))
    ]

    def fit_all(cases=cases):
        params = {**GRADIENT, "eta0": 0.1, "max_iter": 3, "n_ranks": 4}
        return [
            digest(MASGDClassifier(**{**params, "paradigm": case}).fit(*binary))
            for case in cases
        ]

    here = fit_all()
    assert here[:2] == here[2:4] == here[4:]
    with wide_client.as_current():
        assert fit_all() == here
    for client in (inproc_client, process_client):
        with client.as_current():
            assert fit_all(cases[:2]) == here[:2]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_all_aggregations_send_the_same(monkeypatch, configured, aggregation):
    """Each model is sent once and received once, whoever adds them up."""
    # Ranks send bytes to each other, as those of processes do.
    create = LocalGroup.create
    monkeypatch.setattr(LocalGroup, "create", lambda n_ranks: create(n_ranks, 1))
    rng = np.random.default_rng(0)
    # Each column has a value: models have none of those that nobody has.
    parts = rng.normal(size=50_000), np.arange(50_000), np.arange(0, 50_001, 1250)
    X = sparse.csr_array(parts, shape=(40, 50_000))
    params = {"n_ranks": 4, "max_iter": 2, "tol": None}
    with configured({"dask-ma.comm.message-overhead": 0}):
        model = MASGDClassifier(**params, paradigm=Models(aggregation))
        model.fit(X, np.arange(40) % 2)
    models = model.history_[1]["bytes_sent"] / (8 * 50_000)
    assert models == pytest.approx(6, rel=0.05)


def test_rank_0_is_spared_by_the_tree_and_by_allreduce(run_ranks, configured):
    """Models that rank 0 of 16 receives: all, those of 3 peers and 3 runs, or parts.

    Of short models it receives one in each of 4 steps.
    """

    def received(aggregation):
        def program(group):
            aggregate(group, [np.ones(16_000)], aggregation)
            return group.counters.bytes_received / 128_000

        return run_ranks(program, 16, 1)[0]

    assert received("driver") == 15
    assert received("tree") == 6
    assert received("allreduce") == 4
    with configured({"dask-ma.comm.message-overhead": 0}):
        assert received("allreduce") == pytest.approx(2 * 15 / 16)


def test_blocks_of_dask_arrays(cluster, binary):
    X, y = binary
    params = {"n_ranks": 4, "paradigm": Gradients(0.5, aggregation="tree")}
    params["shuffle"] = "ranks"  # rows in memory are dealt out, too
    dX, dy = da.from_array(X, chunks=(30, 6)), da.from_array(y, chunks=30)
    assert digest(fit(MASGDClassifier, dX, dy, **params)) == digest(
        fit(MASGDClassifier, X, y, **params)
    )


# Errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"local_epochs": 2}, r"local_epochs=2 has no effect with paradigm=Gradients"),
        ({"learning_rate": "pa1"}, "learning_rate='pa1' does not work with paradigm="),
        ({"paradigm": "sfb"}, "The 'paradigm' parameter of MASGDClassifier"),
        ({"paradigm": Gradients(0.0)}, "The 'batch_fraction' parameter of Gradients"),
        ({"paradigm": Gradients(1.1)}, "The 'batch_fraction' parameter of"),
        ({"paradigm": Models("ring")}, "The 'aggregation' parameter of Models"),
        ({"max_iter": 0}, "The 'max_iter' parameter of MASGDClassifier"),
    ],
)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_what_does_not_go_together(binary, params, message, method):
    model = MASGDClassifier(**{**GRADIENT, **params})
    classes = {"classes": [0, 1]} if method == "partial_fit" else {}
    with pytest.raises(ValueError, match=message):
        getattr(model, method)(*binary, **classes)
    assert not hasattr(model, "coef_")
    assert not hasattr(model, "n_features_in_")


def test_diverging_steps_are_told(regression):
    X, y = regression
    model = MASGDRegressor(**{**GRADIENT, "eta0": 1e6, "max_iter": 200}, n_ranks=2)
    with pytest.raises(ValueError, match="the model is not finite after round"):
        model.fit(X, y)
