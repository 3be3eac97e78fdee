"""The time model, its estimates, and the choice of a batch size."""

import numpy as np
import pytest
from scipy import optimize, sparse

from dask_ma import ButterflySGDClassifier
from dask_ma.butterfly._batch_size import (
    Sizes,
    TimeModel,
    Timing,
    rounded,
    signal_and_noise,
    split_times,
    usual_batch_size,
)
from dask_ma.butterfly._lazy_steps import cost_of_entry

MEASURED = {"seconds_per_row", "seconds_per_exchange", "noise_scale"}


def fit(X, y, **params):
    return ButterflySGDClassifier(
        max_iter=2, tol=None, random_state=0, batch_size="timed", **params
    ).fit(X, y)


@pytest.mark.parametrize("n_ranks", [1, 4, 64])
@pytest.mark.parametrize(
    "times", [TimeModel(1e-6, 1e-3, 500), TimeModel(1e-4, 1e-5, 9)]
)
def test_best_size_is_where_the_time_of_the_paper_is_least(times, n_ranks):
    alpha, beta, noise = times

    def seconds(log_rows):
        rows = np.exp(log_rows)  # of all ranks
        needed = 1 + rows / noise
        return alpha * needed / n_ranks + beta * needed / rows

    found = optimize.minimize_scalar(seconds, bounds=(-10, 30), method="bounded")
    best = times.best_batch_size(n_ranks)
    assert best * n_ranks == pytest.approx(np.exp(found.x), rel=1e-3)


def test_best_size_at_the_edges():
    assert TimeModel(0, 1, 10).best_batch_size(4) == np.inf
    assert TimeModel(1, 0, 10).best_batch_size(4) == 0
    assert TimeModel(1, 1, np.inf).best_batch_size(4) == np.inf


@pytest.mark.parametrize(
    ("wanted", "most_rows", "expected"),
    [
        (100, 10_000, 128),
        (90, 10_000, 64),
        (0, 10_000, 8),
        (np.inf, 1 << 13, 1 << 10),
        (1000, 64, 8),
        (1000, 5, 5),
        (3, 1, 1),
    ],
)
def test_rounding(wanted, most_rows, expected):
    assert rounded(wanted, most_rows) == expected


def test_times_are_split_into_those_of_rows_and_of_steps():
    timings = [Timing(0.5 + 0.1 * n, 2.0 + 0.1 * n) for n in (16, 256)]
    per_row, per_step = split_times([16, 256], timings)
    assert per_row == pytest.approx(0.1)
    assert per_step == pytest.approx(2.0)


@pytest.mark.parametrize("sizes", [[16, 256], [9, 9]])
def test_times_that_the_clock_cannot_split(sizes):
    per_row, per_step = split_times(sizes, [Timing(1.0, 4.0), Timing(1.0, 4.0)])
    assert per_row == pytest.approx(1 / sizes[1])
    assert per_step == pytest.approx(3.0)


def test_estimates_of_signal_and_noise_have_no_bias():
    """Parts of 10 rows whose gradients have mean (3, 4) and variances 1 and 4."""
    rng = np.random.default_rng(0)
    rows = rng.normal([3, 4], [1, 2], size=(4000, 5, 10, 2))
    parts = rows.mean(axis=2)
    estimates = [
        signal_and_noise(
            (part**2).sum(axis=1).mean(), (part.mean(axis=0) ** 2).sum(), 10, 5
        )
        for part in parts
    ]
    trace, square = np.mean(estimates, axis=0)
    assert trace == pytest.approx(5, rel=0.03)
    assert square == pytest.approx(25, rel=0.01)


@pytest.mark.each(2)
@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
@pytest.mark.parametrize("data", ["binary", "multi"])
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_history_tells_of_the_choice(request, data, loss, n_ranks):
    X, y = request.getfixturevalue(data)
    model = fit(X, y, loss=loss, n_ranks=n_ranks)
    for record in model.history_:
        assert set(record) >= MEASURED
        assert {type(record[name]) for name in MEASURED} == {float}
        assert record["seconds_per_row"] > 0
        assert record["seconds_per_exchange"] >= 0
        assert record["noise_scale"] > 0
        assert 1 <= record["batch_size"] <= 120 // n_ranks
    times = TimeModel(*(record[name] for name in TimeModel._fields))
    best = times.best_batch_size(n_ranks)
    assert record["batch_size"] == rounded(best, -(-120 // n_ranks))


def test_the_fit_is_that_with_the_size_chosen(binary):
    """What was measured leaves no other trace."""
    X, y = binary
    auto = fit(X, y, n_ranks=4)
    again = ButterflySGDClassifier(
        max_iter=2,
        tol=None,
        random_state=0,
        n_ranks=4,
        batch_size=auto.history_[0]["batch_size"],
        mixing_period=1,
    ).fit(X, y)
    np.testing.assert_array_equal(auto.coef_, again.coef_)
    assert auto.t_ == again.t_


def test_with_one_rank_the_clock_plays_no_part(binary):
    X, y = np.tile(binary[0], (9, 1)), np.tile(binary[1], 9)
    model = fit(X, y, n_ranks=1)
    assert not MEASURED & set(model.history_[0])
    assert model.history_[0]["batch_size"] == 64
    np.testing.assert_array_equal(model.coef_, fit(X, y, n_ranks=1).coef_)


def sizes_of(most_rows, stored_per_row=np.inf, n_ranks=1, n_features=40_000, n=1):
    """Sizes of rows, dense unless it is said what they store."""
    stored = most_rows * stored_per_row
    cost = cost_of_entry(n_ranks, "butterfly", np.dtype(np.float64))
    return Sizes(n_ranks, most_rows, stored, n_features, n, cost)


@pytest.mark.parametrize(
    ("most_rows", "expected"),
    [(1, 1), (15, 1), (16, 1), (40, 2), (1023, 63), (1024, 64), (10**6, 64)],
)
def test_usual_size_of_dense_rows(most_rows, expected):
    assert usual_batch_size(sizes_of(most_rows)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 256),  # as reviews of films
        ({"n_ranks": 2}, 256),
        ({"n_ranks": 8}, 128),  # there are more rows in the batches of all
        ({"n_ranks": 64}, 64),
        ({"most_rows": 2048}, 128),
        ({"most_rows": 16}, 1),
        ({"stored_per_row": 40_000}, 64),  # a step costs little beside such rows
        ({"n": 20}, 256),
        # Steps that follow the elements, as these of short queries, end with 64.
        ({"n": 150, "stored_per_row": 9, "n_features": 30_000}, 64),
    ],
)
def test_usual_size_of_sparse_rows(changes, expected):
    given = {"most_rows": 25_000, "stored_per_row": 138, **changes}
    assert usual_batch_size(sizes_of(**given)) == expected


def test_sparse_rows_come_in_larger_batches():
    """And end as near the optimum as in those of a size that is asked for."""
    rng = np.random.default_rng(0)
    X = sparse.random(6000, 3000, 0.01, "csr", random_state=rng)
    y = X @ rng.normal(size=3000) + 0.3 * rng.normal(size=6000) > 0
    steady = ButterflySGDClassifier(learning_rate="invscaling", max_iter=1, n_ranks=1)
    assert steady.fit(X, y).history_[0]["batch_size"] == 64
    assert steady.partial_fit(X, y).history_[0]["batch_size"] == 64
    ends = []
    for batch_size in ("auto", 64):
        model = ButterflySGDClassifier(batch_size=batch_size, random_state=0, n_ranks=1)
        ends.append(model.fit(X, y).history_[-1]["objective"])
        expected = 256 if batch_size == "auto" else 64
        assert model.history_[0]["batch_size"] == expected
    assert ends[0] <= 1.001 * ends[1]


@pytest.mark.parametrize(("n_ranks", "expected"), [(1, 7), (4, 1)])
def test_auto_leaves_a_pass_some_steps(binary, n_ranks, expected):
    model = ButterflySGDClassifier(max_iter=1, tol=None, n_ranks=n_ranks).fit(*binary)
    record = model.history_[0]
    assert record["batch_size"] == expected
    assert record["n_steps"] == -(-120 // n_ranks // expected)


def test_nothing_is_timed_without_an_exchange(binary):
    with pytest.raises(ValueError, match="batch_size='timed'.*mixing='none'"):
        fit(*binary, mixing="none")


def test_ranks_without_rows(binary):
    X, y = binary
    kept = np.repeat([1.0, 0.0, 1.0, 0.0], 30)
    model = ButterflySGDClassifier(batch_size="timed", max_iter=2, tol=None, n_ranks=4)
    model.fit(X, y, sample_weight=kept)
    assert model.history_[0]["n_samples"] == 60
    # One rank alone has nobody to compare its gradients with.
    model.fit(X, y, sample_weight=np.repeat([1.0, 0.0, 0.0, 0.0], 30))
    assert model.history_[0]["noise_scale"] == np.inf


def test_on_a_cluster(cluster, binary):
    assert set(fit(*binary, n_ranks=4).history_[0]) >= MEASURED
