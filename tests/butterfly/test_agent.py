"""Fits against a simulation of Algorithm 2, rank by rank and row by row."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from dask_ma import ButterflySGDClassifier, ButterflySGDRegressor

PARAMS = {
    "loss": "log_loss",
    "alpha": 0.01,
    "fit_intercept": True,
    "batch_size": 7,
    "mixing": "butterfly",
    "learning_rate": "invscaling",
    "eta0": 0.3,
    "preconditioner": "bounded",
    "refine": None,
}
MARGIN_LOSSES = ["log_loss", "hinge", "squared_hinge", "modified_huber"]
REGRESSION_LOSSES = [
    "squared_error",
    "huber",
    "epsilon_insensitive",
    "squared_epsilon_insensitive",
]
CONTAINERS = {
    "dense": np.asarray,
    "csr_matrix": sparse.csr_matrix,
    "csr_array": sparse.csr_array,
}
MIXINGS = ["butterfly", "allreduce", "periodic", "none"]


def fit(X, y, n_ranks, n_passes=2, weight=None, **params):
    cls = ButterflySGDRegressor if y.dtype.kind == "f" else ButterflySGDClassifier
    model = cls(
        max_iter=n_passes,
        tol=None,
        shuffle=False,
        n_ranks=n_ranks,
        **{**PARAMS, **params},
    )
    return model.fit(X, y, sample_weight=weight)


def check(simulation, X, y, n_ranks, n_passes=2, weight=None, rtol=1e-9, **params):
    ours = fit(X, y, n_ranks, n_passes, weight, **params)
    theirs = simulation(X, y, n_ranks, weight, **{**PARAMS, **params})
    coef, intercept = theirs.run(n_passes)
    coef = coef if np.ndim(ours.coef_) == 2 else coef[0]
    np.testing.assert_allclose(ours.coef_, coef, rtol=rtol, atol=rtol * 1e-2)
    np.testing.assert_allclose(ours.intercept_, intercept, rtol=rtol, atol=rtol * 1e-2)
    assert ours.t_ == theirs.t
    assert ours.history_[-1]["n_steps"] == theirs.n_steps
    assert ours.eta_ == pytest.approx(theirs.eta, rel=1e-12)
    return ours, theirs


@pytest.mark.each(2)
@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 5, 7, 8])
def test_ranks_and_mixings(binary, simulation, n_ranks, mixing):
    check(simulation, *binary, n_ranks, mixing=mixing)


@pytest.mark.each(2)
@pytest.mark.parametrize("mixing_period", [2, 3, 7, 100])
@pytest.mark.parametrize("mixing", ["butterfly", "allreduce", "periodic"])
@pytest.mark.parametrize("n_ranks", [2, 3, 4])
def test_ranks_go_on_alone_between_exchanges(
    binary, simulation, n_ranks, mixing, mixing_period
):
    params = {"mixing": mixing, "mixing_period": mixing_period, "batch_size": 4}
    ours, theirs = check(simulation, *binary, n_ranks, average=150, **params)
    params["mixing_period"] = 1
    every_step = fit(*binary, n_ranks, average=150, **params)
    assert not np.allclose(ours.coef_, every_step.coef_, rtol=1e-6)
    assert theirs.n_exchanges == 2 * -(-theirs.n_steps // mixing_period)


@pytest.mark.parametrize(
    ("n_ranks", "batch_size", "period"),
    [(2, 1, 60), (2, 7, 9), (2, 13, 5), (5, 1, 8), (8, 4, 1)],
)
def test_ranks_hear_of_each_other_once_in_a_pass(binary, n_ranks, batch_size, period):
    """By default, or more often where a pass has few steps."""
    other = period - 1 if period > 1 else 2
    default, named, others = (
        fit(*binary, n_ranks, n_passes=1, batch_size=batch_size, **params)
        for params in ({}, {"mixing_period": period}, {"mixing_period": other})
    )
    np.testing.assert_array_equal(default.coef_, named.coef_)
    assert default.history_[0]["mixing_period"] == period
    assert not np.array_equal(default.coef_, others.coef_)


def test_ranks_with_rows_of_different_classes_hear_of_each_other_more_often(binary):
    """Nothing is known of targets that are no classes."""
    X, y = binary
    order = np.argsort(y, kind="stable")
    params = {"n_passes": 1, "batch_size": 1}
    sorted_by_class = fit(X[order], y[order], 2, **params)
    regression = fit(X, y.astype(float), 2, loss="squared_error", **params)
    for model in (sorted_by_class, regression):
        assert model.history_[0]["mixing_period"] == 15


def test_bytes_follow_the_exchanges(binary):
    sent = [
        fit(*binary, 4, batch_size=1, mixing_period=period).history_[1]["bytes_shared"]
        for period in (1, 10)
    ]
    # 30 steps; the rest is what a pass sends at its end.
    assert sent[0] - sent[1] == (30 - 3) * 4 * 7 * 8


@pytest.mark.each(2)
@pytest.mark.parametrize("preconditioner", ["bounded", "jacobi", "frequency", None])
@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
@pytest.mark.parametrize("n_ranks", [1, 4, 5])
def test_preconditioners(multi, simulation, n_ranks, loss, preconditioner):
    X, y = multi
    X = X * (X > 0.5)
    check(simulation, X, y, n_ranks, loss=loss, preconditioner=preconditioner)


@pytest.mark.each
@pytest.mark.parametrize("loss", MARGIN_LOSSES + REGRESSION_LOSSES)
@pytest.mark.parametrize("n_ranks", [1, 4])
@pytest.mark.parametrize("data", ["binary", "multi"])
def test_losses(request, simulation, data, n_ranks, loss):
    X, y = request.getfixturevalue(data)
    check(simulation, X, y, n_ranks, loss=loss)


@pytest.mark.each
@pytest.mark.parametrize("loss", REGRESSION_LOSSES)
@pytest.mark.parametrize("n_ranks", [1, 3, 4])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_regression(binary, weights, simulation, n_ranks, loss, container):
    X, _ = binary
    y = X @ np.arange(6.0) + 2 + np.sin(9 * X[:, 0])
    theirs = simulation(X, y, n_ranks, weights, **{**PARAMS, "loss": loss})
    coef, intercept = theirs.run(2)
    ours = fit(container(X), y, n_ranks, weight=weights, loss=loss)
    np.testing.assert_allclose(ours.coef_, coef[0], rtol=1e-9)
    np.testing.assert_allclose(ours.intercept_, intercept, rtol=1e-9)


@pytest.mark.pairs
@pytest.mark.parametrize("average", [False, True, 200])
@pytest.mark.parametrize("eta0", [0.3, 300.0])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_adapted_steps(binary, simulation, n_ranks, eta0, average):
    """The long steps fail at first: the passes are taken back."""
    adaptive = {"learning_rate": "adaptive", "eta0": eta0, "average": average}
    ours, theirs = check(simulation, *binary, n_ranks, 12, rtol=1e-7, **adaptive)
    objectives = [record["objective"] for record in ours.history_]
    np.testing.assert_allclose(objectives, theirs.objectives, rtol=1e-9)
    assert (np.diff(objectives) <= 0).all()
    assert objectives[-1] < objectives[0]
    assert ours.history_[0]["eta"] == eta0
    if eta0 > 1:
        assert ours.eta_ < eta0 / 8


@pytest.mark.each
@pytest.mark.parametrize("average", [True, 50, 100_000])
@pytest.mark.parametrize("mixing", MIXINGS)
def test_mean_over_steps(binary, simulation, mixing, average):
    ours, _ = check(simulation, *binary, 4, mixing=mixing, average=average)
    last = fit(*binary, 4, mixing=mixing)
    assert np.allclose(ours.coef_, last.coef_, rtol=1e-6) == (average == 100_000)


def test_squares_that_overflow_are_taken_back(binary):
    X, y = binary
    target = 1e4 * X @ np.arange(6.0)
    model = fit(
        X,
        target,
        2,
        n_passes=60,
        loss="squared_error",
        learning_rate="adaptive",
        eta0=1e30,
        alpha=0,
    )
    objectives = [record["objective"] for record in model.history_]
    assert objectives[0] == pytest.approx((target**2).mean() / 2)
    assert objectives[-1] < 0.1 * objectives[0]
    assert np.isfinite(model.coef_).all()


def test_a_start_at_the_optimum_ends_the_fit(binary):
    X, y = binary
    best = LogisticRegression(C=1 / (0.01 * 120), tol=1e-12, max_iter=500).fit(X, y)
    params = {**PARAMS, "learning_rate": "adaptive"}
    model = ButterflySGDClassifier(**params, tol=5e-5, n_ranks=2, random_state=0)
    model.fit(X, y, best.coef_, best.intercept_)
    assert model.n_iter_ < 30
    np.testing.assert_allclose(model.coef_, best.coef_, atol=1e-4)


@pytest.mark.each
@pytest.mark.parametrize(
    "params",
    [
        {"alpha": 0},
        {"alpha": 0, "loss": "hinge"},
        {"alpha": 3.0, "loss": "hinge"},  # the ball is small
        {"fit_intercept": False},
        {"batch_size": 1},
        {"batch_size": 1000},
        {"eta0": 3.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("n_ranks", [1, 3, 4])
def test_other_parameters(binary, simulation, n_ranks, params):
    check(simulation, *binary, n_ranks, **params)


@pytest.mark.each(2)
@pytest.mark.parametrize("n_rows", [9, 10, 119])
@pytest.mark.parametrize("n_ranks", [3, 8])
@pytest.mark.parametrize("mixing", MIXINGS)
def test_shards_of_unequal_size(binary, simulation, n_rows, n_ranks, mixing):
    X, y = binary[0][:n_rows], binary[1][:n_rows]
    check(simulation, X, y, n_ranks, mixing=mixing, batch_size=1)


@pytest.mark.parametrize("mixing", ["butterfly", "none"])
def test_weights_of_rows(binary, weights, simulation, mixing):
    heavy = np.where(np.arange(120) < 40, 5 * weights, weights)
    check(simulation, *binary, 3, weight=heavy, mixing=mixing)


def test_weights_of_classes(binary):
    X, y = binary
    factors = {0: 0.5, 1: 3.0}
    by_class = fit(X, y, 4, class_weight=factors)
    by_row = fit(X, y, 4, weight=np.where(y == 1, 3.0, 0.5))
    np.testing.assert_allclose(by_class.coef_, by_row.coef_, rtol=1e-10)
    balanced = fit(X, y, 4, class_weight="balanced")
    frequency = np.bincount(y)[y]
    by_frequency = fit(X, y, 4, weight=1 / frequency)
    np.testing.assert_allclose(balanced.coef_, by_frequency.coef_, rtol=1e-10)
    assert not np.allclose(by_class.coef_, balanced.coef_)


@pytest.mark.pairs
@pytest.mark.parametrize("mixing", ["butterfly", "none"])
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_weights_of_classes_against_the_rest(
    multi, weights, simulation, weighted, n_ranks, mixing
):
    """They count in the problem of their own class only, also when steps adapt."""
    ours, theirs = check(
        simulation,
        *multi,
        n_ranks,
        weight=weights if weighted else None,
        class_weight={0: 0.3, 2: 5.0},
        mixing=mixing,
        learning_rate="invscaling" if mixing == "none" else "adaptive",
        rtol=1e-8,
    )
    if mixing == "butterfly":
        objectives = [record["objective"] for record in ours.history_]
        np.testing.assert_allclose(objectives, theirs.objectives, rtol=1e-9)


def test_a_weight_of_zero_is_no_row(binary):
    X, y = binary
    kept = np.ones(120)
    kept[30:60] = 0  # all the rows of the second rank
    ours = fit(X, y, 4, weight=kept)
    assert ours.history_[0]["n_samples"] == 90


@pytest.mark.parametrize("mixing", MIXINGS)
def test_ranks_without_rows(binary, simulation, mixing):
    """The simulation has the same shards, one of them empty."""
    X, y = binary
    kept = np.ones(120)
    kept[30:60] = 0
    ours = fit(X, y, 4, weight=kept, mixing=mixing)
    theirs = simulation(X, y, 4, **{**PARAMS, "mixing": mixing})
    theirs.shards[1] = (X[:0], y[:0], np.zeros(0))
    theirs.n_rows = 90
    coef, intercept = theirs.run(2)
    np.testing.assert_allclose(ours.coef_, coef, rtol=1e-9)
    np.testing.assert_allclose(ours.intercept_, intercept, rtol=1e-9)


@pytest.mark.each(2)
@pytest.mark.parametrize("container", sorted(CONTAINERS))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_ranks", [1, 3, 4])
@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
def test_containers_and_types(multi, simulation, loss, n_ranks, dtype, container):
    X, y = multi
    X = (X * (X > 0)).astype(dtype)
    ours = fit(CONTAINERS[container](X), y, n_ranks, loss=loss)
    coef, _ = simulation(X, y, n_ranks, **{**PARAMS, "loss": loss}).run(2)
    assert ours.coef_.dtype == ours.intercept_.dtype == dtype
    close = {"rtol": 1e-3, "atol": 1e-4} if dtype == np.float32 else {"rtol": 1e-9}
    np.testing.assert_allclose(ours.coef_, coef, **close)


# The loop ---------------------------------------------------------------------------


def test_two_ranks_make_the_steps_of_one_with_their_rows_together(binary):
    """Two ranks average completely in each step; so do all with an allreduce."""
    X, y = binary
    one = fit(X, y, 1, n_passes=2, batch_size=20)
    for n_ranks, mixing in [(2, "butterfly"), (4, "allreduce"), (5, "allreduce")]:
        order = np.concatenate(
            [
                np.arange(120).reshape(6, n_ranks, -1)[:, rank].ravel()
                for rank in range(n_ranks)
            ]
        )
        several = fit(
            X[order],
            y[order],
            n_ranks,
            n_passes=2,
            batch_size=20 // n_ranks,
            mixing=mixing,
            mixing_period=1,
            preconditioner=None,
        )
        one = fit(X, y, 1, n_passes=2, batch_size=20, preconditioner=None)
        np.testing.assert_allclose(several.coef_, one.coef_, rtol=1e-9)


def test_objective_of_the_history_is_that_of_the_mean_model(binary, weights):
    X, y = binary
    model = fit(X, y, 4, weight=weights)
    z = np.where(y == 1, 1, -1) * (X @ model.coef_[0] + model.intercept_[0])
    loss = np.average(np.log1p(np.exp(-z)), weights=weights)
    expected = loss + 0.01 * (model.coef_**2).sum() / 2
    assert model.history_[-1]["objective"] == pytest.approx(expected, rel=1e-12)


def test_history_has_a_record_of_each_pass(binary):
    model = fit(*binary, 4, n_passes=5)
    assert model.n_iter_ == 5
    assert [record["round"] for record in model.history_] == [1, 2, 3, 4, 5]
    for record in model.history_:
        assert record["n_samples"] == 120
        assert (record["batch_size"], record["n_steps"]) == (7, 5)
        assert "local_epochs" not in record
        assert record["bytes_shared"] >= 4 * 5 * 8 * 7
        assert record["bytes_sent"] == 0
    assert model.t_ == 1 + 5 * 5


def test_the_model_comes_closer_to_the_optimum_with_every_pass(binary):
    X, y = binary
    model = fit(X, y, 4, n_passes=100, eta0=3)
    values = [record["objective"] for record in model.history_]
    best = LogisticRegression(C=1 / (0.01 * 120), tol=1e-10).fit(X, y)
    z = np.where(y == 1, 1, -1) * best.decision_function(X)
    optimum = np.log1p(np.exp(-z)).mean() + 0.01 * (best.coef_**2).sum() / 2
    assert values[0] > values[5] > values[-1] > optimum
    assert values[-1] == pytest.approx(optimum, rel=1e-3)
    np.testing.assert_allclose(model.coef_, best.coef_, atol=0.1)


def test_tol_and_patience_end_the_fit(binary):
    """A pass has to bring a part of the objective."""
    model = fit(*binary, 2, n_passes=1)
    model.set_params(max_iter=200, tol=2e-2, n_iter_no_change=3).fit(*binary)
    values = [record["objective"] for record in model.history_]
    best = np.minimum.accumulate(values)
    assert model.n_iter_ < 200
    gains = 1 - np.array(values[1:]) / best[:-1]
    runs = "".join("." if gain < 2e-2 else "x" for gain in gains)
    assert runs.find("...") == len(runs) - 3


def test_initial_model_is_where_the_fit_starts(multi):
    X, y = multi
    rng = np.random.default_rng(0)
    start = {"coef_init": rng.normal(size=(4, 6)), "intercept_init": rng.normal(size=4)}
    model = ButterflySGDClassifier(eta0=1e-9, max_iter=1, tol=None, n_ranks=3)
    model.fit(X, y, **start)
    np.testing.assert_allclose(model.coef_, start["coef_init"], atol=1e-6)
    np.testing.assert_allclose(model.intercept_, start["intercept_init"], atol=1e-6)


def test_partial_fit_goes_on_with_the_steps(binary):
    """Without shuffling and with complete mixing: what passes of `fit` do."""
    X, y = binary
    params = {**PARAMS, "mixing": "allreduce", "shuffle": False, "n_ranks": 4}
    streamed = ButterflySGDClassifier(**params)
    for _ in range(3):
        streamed.partial_fit(X, y, classes=[0, 1])
    fitted = fit(X, y, 4, n_passes=3, mixing="allreduce")
    np.testing.assert_allclose(streamed.coef_, fitted.coef_, rtol=1e-10)
    assert streamed.t_ == fitted.t_ == 16


def test_partial_fit_goes_on_with_the_length_of_the_steps(binary):
    model = fit(*binary, 2, n_passes=4, learning_rate="adaptive")
    eta = model.eta_
    assert eta == pytest.approx(0.3 * 1.2**4)
    model.partial_fit(*binary)
    assert model.eta_ == model.history_[0]["eta"] == eta


@pytest.mark.parametrize("preconditioner", ["bounded", "jacobi", "frequency"])
def test_partial_fit_counts_the_rows_of_all_calls(binary, preconditioner):
    """A call with all rows weighs features as the calls with their parts do."""
    X, y = binary
    X = X * (np.arange(120)[:, None] % 7 >= np.arange(6))
    parts = ButterflySGDClassifier(preconditioner=preconditioner, n_ranks=2)
    for rows in (slice(0, 50), slice(50, 120)):
        parts.partial_fit(X[rows], y[rows], classes=[0, 1])
    counts = (X != 0).sum(axis=0), (X**2).sum(axis=0), X.sum(axis=0)
    np.testing.assert_allclose(parts.moments_.sums, counts)
    assert parts.moments_.total == 120
    # With all moments known, rows that tell nothing new are weighed by all of them.
    again = ButterflySGDClassifier(preconditioner=preconditioner, n_ranks=1, alpha=0)
    again.set_params(batch_size=1000, shuffle=False).partial_fit(X, y, classes=[0, 1])
    before = again.coef_.copy(), again.intercept_.copy()
    again.partial_fit(X[:1], y[:1])
    frequency, square = (
        (X != 0).sum(axis=0) + (X[0] != 0),
        (X**2).sum(axis=0) + X[0] ** 2,
    )
    total = 121
    H = {
        "frequency": total / frequency,
        "jacobi": total / square,
        # The batch of the second call has one row.
        "bounded": frequency / square,
    }[preconditioner]
    sign = 1 if y[0] == 1 else -1
    margin = sign * (X[0] @ before[0][0] + before[1][0])
    step = H * X[0] * sign / (1 + np.exp(margin)) / np.sqrt(2)
    np.testing.assert_allclose(again.coef_[0] - before[0][0], step, rtol=1e-9)


def test_warm_start_begins_with_the_model_before(binary):
    X, y = binary
    model = fit(X, y, 4).set_params(warm_start=True, max_iter=1, eta0=1e-9)
    before = model.coef_.copy()
    np.testing.assert_allclose(model.fit(X, y).coef_, before, atol=1e-6)
    model.set_params(warm_start=False)
    np.testing.assert_allclose(model.fit(X, y).coef_, 0, atol=1e-6)


def test_diverged_model_is_refused(binary):
    X, y = binary
    model = ButterflySGDClassifier(
        learning_rate="invscaling",
        eta0=1e300,
        preconditioner=None,
        max_iter=2,
        tol=None,
        n_ranks=2,
    )
    with pytest.raises(ValueError, match="not finite after round 1.*lower eta0"):
        model.fit(1e10 * X, y)
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_the_preconditioner_undoes_the_scale_of_the_features(binary, scale):
    X, y = binary
    plain, scaled = fit(X, y, 4, alpha=0), fit(scale * X, y, 4, alpha=0)
    np.testing.assert_allclose(scaled.coef_ * scale, plain.coef_, rtol=1e-6)


def test_a_feature_that_no_row_has(binary):
    X, y = binary
    wide = np.hstack([X, np.zeros((120, 1))])
    model = fit(wide, y, 4)
    assert model.coef_[0, 6] == 0
    np.testing.assert_allclose(model.coef_[:, :6], fit(X, y, 4).coef_, rtol=1e-12)


@pytest.mark.parametrize("preconditioner", ["bounded", "frequency"])
def test_entries_named_twice_are_added_up(multi, preconditioner):
    """Halves of an element at the same place are the element."""
    X, y = multi
    whole = sparse.csr_array(X * (X > 0))
    halves = sparse.csr_array(
        (
            np.repeat(whole.data / 2, 2),
            np.repeat(whole.indices, 2),
            2 * whole.indptr,
        ),
        shape=whole.shape,
    )
    one, two = (
        fit(rows, y, 3, preconditioner=preconditioner) for rows in (whole, halves)
    )
    np.testing.assert_array_equal(two.coef_, one.coef_)
