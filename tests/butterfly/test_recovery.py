"""Fits by butterfly mixing that go on from a checkpoint, or without a rank's state."""

import dask
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from dask_ma import ButterflySGDClassifier
from dask_ma.butterfly._plan import replica_of
from dask_ma.comm import butterfly_partners
from dask_ma.engine import RankContext
from dask_ma.engine.recovery._identity import FitInfo
from dask_ma.engine.recovery._memory import state_memory

PARAMS = {"max_iter": 5, "tol": None, "random_state": 3, "batch_size": 8}


def fit(X, y, **params):
    return ButterflySGDClassifier(**{**PARAMS, **params}).fit(X, y)


@pytest.mark.each(2)
@pytest.mark.parametrize("mixing", ["butterfly", "allreduce", "periodic", "none"])
@pytest.mark.parametrize("mixing_period", ["auto", 2])
@pytest.mark.parametrize("n_ranks", [1, 3, 4])
def test_a_resumed_fit_is_an_uninterrupted_one(
    multi, tmp_path, mixing, mixing_period, n_ranks
):
    params = {"mixing": mixing, "n_ranks": n_ranks}
    if mixing != "none":
        params["mixing_period"] = mixing_period
    whole = fit(*multi, **params)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(*multi, **params, max_iter=3)
        resumed = fit(*multi, **params)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    np.testing.assert_array_equal(resumed.intercept_, whole.intercept_)
    assert [record["round"] for record in resumed.history_] == list(range(1, 6))
    assert resumed.t_ == whole.t_


@pytest.mark.each
@pytest.mark.parametrize(
    "params",
    [
        {"eta0": 1000.0},  # the first passes are taken back
        {"average": True, "eta0": 30.0},
        {"average": 300},
        {"early_stopping": True, "preconditioner": "jacobi"},
    ],
    ids=str,
)
@pytest.mark.parametrize("first", [2, 3])
def test_a_resumed_fit_knows_its_steps(multi, tmp_path, params, first):
    whole = fit(*multi, n_ranks=4, **params)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(*multi, n_ranks=4, **params, max_iter=first)
        resumed = fit(*multi, n_ranks=4, **params)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    assert [r["objective"] for r in resumed.history_] == [
        r["objective"] for r in whole.history_
    ]
    assert resumed.eta_ == whole.eta_
    np.testing.assert_array_equal(resumed.moments_.sums, whole.moments_.sums)
    assert resumed.moments_.total == whole.moments_.total


def test_the_stop_rule_goes_on(binary, tmp_path):
    params = {"tol": 1e-2, "n_iter_no_change": 3, "n_ranks": 2, "max_iter": 100}
    params["refine"] = None
    whole = fit(*binary, **params)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with pytest.warns(ConvergenceWarning):
            fit(*binary, **{**params, "max_iter": whole.n_iter_ - 1})
        resumed = fit(*binary, **params)
    assert resumed.n_iter_ == whole.n_iter_
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


@pytest.mark.parametrize("n_after", [-1, 1, 2])
def test_a_refinement_goes_on(multi, tmp_path, interrupted, n_after):
    """It begins anew from its best model, with the rounds that it has left."""
    params = {"tol": 1e-2, "n_ranks": 2, "max_iter": 100, "refine_tol": 1e-12}
    whole = fit(*multi, **params)
    n_passes = sum("refined" not in record for record in whole.history_)
    assert whole.n_iter_ > n_passes + 3
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(n_passes + n_after):
            fit(*multi, **params)
        resumed = fit(*multi, **params)
    assert [r["round"] for r in resumed.history_] == list(range(1, resumed.n_iter_ + 1))
    assert sum("refined" not in record for record in resumed.history_) == n_passes
    np.testing.assert_allclose(resumed.coef_, whole.coef_, rtol=1e-5)
    assert resumed.t_ == whole.t_


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("average", [False, True])
def test_a_refined_fit_that_is_done_is_the_same(multi, tmp_path, n_ranks, average):
    """Its checkpoint has the model of the refinement, not that of the last pass."""
    params = {"n_ranks": n_ranks, "average": average, "refine": "newton"}
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        first, again = (fit(*multi, **params) for _ in range(2))
    assert first.history_[-1]["refined"]
    np.testing.assert_array_equal(again.coef_, first.coef_)
    np.testing.assert_array_equal(again.intercept_, first.intercept_)
    assert again.history_ == first.history_
    assert (again.t_, again.eta_) == (first.t_, first.eta_)


def test_another_number_of_ranks(multi, tmp_path):
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        first = fit(*multi, n_ranks=4, max_iter=3)
        with pytest.warns(UserWarning, match="by 4 ranks and goes on with 2"):
            second = fit(*multi, n_ranks=2)
    assert second.history_[:3] == first.history_
    assert second.history_[-1]["objective"] < first.history_[0]["objective"]


def test_other_data(multi, tmp_path):
    X, y = multi
    plain = fit(X[:, :5], y)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(X, y)
        np.testing.assert_array_equal(fit(X[:, :5], y).coef_, plain.coef_)


@pytest.mark.parametrize("n_ranks", [2, 4, 8])
@pytest.mark.parametrize("n_exchanges", [1, 2, 3, 8])
def test_the_partner_of_the_last_exchange_stands_in(n_ranks, n_exchanges):
    shared = {"n_ranks": n_ranks, "n_exchanges": n_exchanges}
    for rank in range(n_ranks):
        partner = butterfly_partners(rank, n_exchanges - 1, n_ranks).dest
        assert replica_of(rank, shared) == partner


def test_nobody_stands_in_among_three():
    shared = {"n_ranks": 3, "n_exchanges": 4}
    assert [replica_of(rank, shared) for rank in range(3)] == [0, 1, 2]


@pytest.fixture
def lose(run_ranks):
    """``lose(ranks, size)``: own states that ranks go on with after a loss."""

    def run(lost, size, behind=()):
        fit_id = "lose"
        shared = {"n_ranks": size, "n_exchanges": 1}

        def keep(group):
            fit_info = FitInfo("Fit", fit_id, keeps=True)
            context = RankContext(group, 0, fit_info=fit_info)
            n_rounds = 1 if group.rank in behind else 2
            context.save_state(n_rounds, shared, {"weights": np.array([group.rank])})

        def go_on(group):
            fit_info = FitInfo("Fit", fit_id, attempt=1)
            state = RankContext(group, 0, fit_info=fit_info).restore_state(replica_of)
            return None if state.own is None else int(state.own["weights"][0])

        try:
            run_ranks(keep, size)
            for rank in lost:
                state_memory.drop(fit_id, rank, state_memory.get(fit_id, rank))
            return run_ranks(go_on, size)
        finally:
            state_memory.forget(fit_id)

    return run


def test_a_lost_rank_goes_on_as_its_sibling(lose):
    # Step 0 of four ranks pairs 0 with 1, and 2 with 3.
    assert lose([1], 4) == [0, 0, 2, 3]
    assert lose([2, 0], 4) == [1, 1, 3, 3]


def test_a_rank_that_is_behind_goes_on_as_its_sibling(lose):
    assert lose([], 4, behind=[3]) == [0, 1, 2, 2]


def test_a_pair_that_is_lost_begins_with_the_mean(lose):
    assert lose([2, 3], 4) == [0, 1, None, None]
