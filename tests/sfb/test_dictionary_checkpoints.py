"""Dictionaries that are saved, or whose workers are killed."""

import os
import signal

import dask
import dask.array as da
import numpy as np
import pytest

from dask_ma import SFBDictionaryLearning

PARAMS = {
    "n_components": 5,
    "alpha": 0.1,
    "max_iter": 3,
    "batch_size": 20,
    "tol": 0,
    "max_no_improvement": None,
    "random_state": 3,
}
SETTINGS = [
    {},
    {"n_ranks": 3},
    {"n_ranks": 2, "communication": "factors", "staleness": 2},
    {"n_ranks": 2, "solver": "sgd"},
    {"n_ranks": 3, "solver": "sgd", "communication": "outputs"},
    {"n_ranks": 2, "max_no_improvement": 3, "max_iter": 30},
]


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(80, 5)) @ rng.normal(size=(5, 8))


def fit(X, **params):
    return SFBDictionaryLearning(**{**PARAMS, **params}).fit(X)


def assert_same(one, other):
    np.testing.assert_array_equal(one.components_, other.components_)
    for ours, theirs in zip(one.inner_stats_, other.inner_stats_, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (one.n_iter_, one.n_steps_) == (other.n_iter_, other.n_steps_)
    for ours, theirs in zip(one.history_, other.history_, strict=True):
        for name in ("round", "n_iter", "n_samples", "objective", "n_replaced"):
            np.testing.assert_equal(ours[name], theirs[name])


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_a_resumed_fit_is_an_uninterrupted_one(X, tmp_path, interrupted, params):
    whole = fit(X, **params)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(6):  # within the second pass
            fit(X, **params)
        assert list(tmp_path.iterdir())
        resumed = fit(X, **params)
    assert_same(resumed, whole)


def test_a_fit_of_more_passes_goes_on(X, tmp_path):
    whole = fit(X, n_ranks=2)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(X, n_ranks=2, max_iter=2)
        assert_same(fit(X, n_ranks=2), whole)


def test_data_of_another_shape_begin_anew(X, tmp_path):
    """Rows are looked at, too; what was saved is of others."""
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(X)
        assert fit(X[:, :6]).components_.shape == (5, 6)


@pytest.mark.slow
@pytest.mark.parametrize("communication", ["statistics", "factors", "outputs"])
def test_a_killed_worker_does_not_change_the_atoms(
    X, tmp_path, monkeypatch, assert_clean, killable_client, communication
):
    mark = tmp_path / "struck"

    def agent(context, arguments, params):
        from dask_ma.sfb.dictionary import _agent

        if context.group.rank != 1 or mark.exists():
            return _agent.train(context, arguments, params)
        original = _agent.DictionaryFit.round

        def round_and_die(self):
            if self.n_rounds == 7:
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self)

        # This process dies of it, so nothing needs to be put back.
        _agent.DictionaryFit.round = round_and_die
        return _agent.train(context, arguments, params)

    rows = da.from_array(X, chunks=(20, 8))
    params = {"n_ranks": 2, "communication": communication}
    if communication == "outputs":
        params["solver"] = "sgd"
    undisturbed = fit(rows, **params)
    monkeypatch.setattr("dask_ma.sfb.dictionary._estimator.train", agent)
    with killable_client.as_current(), dask.config.set({"dask-ma.recovery.wait": 20}):
        model = fit(rows, **params)
        killable_client.wait_for_workers(2, timeout=60)
        assert_clean(killable_client)
    assert mark.exists()
    assert max(record["restarts"] for record in model.history_) == 1
    np.testing.assert_array_equal(model.components_, undisturbed.components_)
    assert model.n_steps_ == undisturbed.n_steps_
