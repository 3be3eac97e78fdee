"""Fits that are saved and go on from where they were."""

import dask
import numpy as np
import pytest
from scipy import sparse

from dask_ma import MASGDClassifier, MASGDRegressor
from dask_ma.engine import RankContext
from dask_ma.exceptions import CheckpointError
from dask_ma.ma import Models

# At a learning rate without trials, which take as long as the rounds.
PARAMS = {"max_iter": 7, "tol": None, "random_state": 3, "local_epochs": 1.0}
PARAMS["learning_rate"] = "optimal"
SETTINGS = [
    {},
    {"average": True},
    {"local_epochs": 0.3},
    {
        "learning_rate": "adaptive",
        "eta0": 0.5,
        "tol": 1e-2,
        "n_iter_no_change": 1,
        "max_iter": 90,
    },
    {"early_stopping": True},
    {"paradigm": Models(evaluate_every=3)},
    {"learning_rate": "auto"},
    {"n_ranks": 3},
    {"n_ranks": 2, "local_epochs": 0.3, "average": 50},
    {"n_ranks": 2, "shuffle": False, "loss": "log_loss"},
]


class StopAfterError(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def interrupt(monkeypatch):
    """``interrupt(n)``: the next fit fails in the merge of round n."""
    original = RankContext.save_state

    def arm(number):
        def save_state(self, n_rounds, *args, **kwargs):
            if n_rounds == number:
                raise StopAfterError
            return original(self, n_rounds, *args, **kwargs)

        monkeypatch.setattr(RankContext, "save_state", save_state)

    yield arm


def fit(cls, X, y, **params):
    return cls(**{**PARAMS, **params}).fit(X, y)


def saving(path, **more):
    values = {"path": str(path), **more}
    return dask.config.set(
        {f"dask-ma.checkpoint.{key}": value for key, value in values.items()}
    )


@pytest.mark.each
@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("every", [1, 2])
def test_a_resumed_fit_is_an_uninterrupted_one(
    multi, tmp_path, interrupt, monkeypatch, params, every
):
    whole = fit(MASGDClassifier, *multi, **params)
    with saving(tmp_path, every=every):
        interrupt(5 if every == 1 else 6)
        with pytest.raises(StopAfterError):
            fit(MASGDClassifier, *multi, **params)
        monkeypatch.undo()
        resumed = fit(MASGDClassifier, *multi, **params)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    np.testing.assert_array_equal(resumed.intercept_, whole.intercept_)
    assert resumed.n_iter_ == whole.n_iter_
    assert resumed.t_ == whole.t_
    rounds = [record["round"] for record in resumed.history_]
    assert rounds == list(range(1, whole.n_iter_ + 1))
    for ours, theirs in zip(resumed.history_, whole.history_, strict=True):
        np.testing.assert_equal(ours["objective"], theirs["objective"])
        assert ours["n_samples"] == theirs["n_samples"]
    times = [record["time"] for record in resumed.history_]
    assert times == sorted(times)


@pytest.mark.parametrize("n_ranks", [3, 2])
def test_gradients_go_on_whatever_the_ranks(
    multi, tmp_path, interrupt, monkeypatch, n_ranks
):
    """Their sum is the same, and steps get shorter with the rows of all rounds."""
    params = {"paradigm": "gradient", "learning_rate": "invscaling", "eta0": 0.5}
    params |= {"max_iter": 9, "tol": None, "random_state": 3}
    whole = MASGDClassifier(**params, n_ranks=3).fit(*multi)
    with saving(tmp_path):
        interrupt(6)
        with pytest.raises(StopAfterError):
            MASGDClassifier(**params, n_ranks=3).fit(*multi)
        monkeypatch.undo()
        resumed = MASGDClassifier(**params, n_ranks=n_ranks)
        if n_ranks == 3:
            resumed.fit(*multi)
        else:
            with pytest.warns(UserWarning, match="was written by 3 ranks"):
                resumed.fit(*multi)
    np.testing.assert_allclose(resumed.coef_, whole.coef_, rtol=1e-9)
    np.testing.assert_allclose(resumed.intercept_, whole.intercept_, rtol=1e-9)
    assert len(resumed.history_) == 9


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_matrix])
def test_a_regression(regression, tmp_path, container):
    X, y = regression
    whole = fit(MASGDRegressor, container(X), y)
    with saving(tmp_path):
        fit(MASGDRegressor, container(X), y, max_iter=4)
        resumed = fit(MASGDRegressor, container(X), y)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


def test_on_a_cluster(any_client, multi, tmp_path):
    whole = fit(MASGDClassifier, *multi, n_ranks=4)
    with any_client.as_current(), saving(tmp_path):
        fit(MASGDClassifier, *multi, max_iter=5)
        resumed = fit(MASGDClassifier, *multi)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


def test_another_number_of_ranks_says_so(multi, tmp_path):
    with saving(tmp_path):
        params = {"learning_rate": "auto"}
        first = fit(MASGDClassifier, *multi, n_ranks=4, max_iter=5, **params)
        with pytest.warns(UserWarning, match="written by 4 ranks and goes on with 2"):
            second = fit(MASGDClassifier, *multi, n_ranks=2, **params)
    assert second.n_iter_ == 7
    assert second.history_[:5] == first.history_
    assert second.history_[-1]["objective"] < first.history_[0]["objective"]


def test_string_labels(multi, tmp_path):
    X, y = multi
    for labels in (np.array(["d", "b", "c", "a"]), np.array(list("dbca"), object)):
        path = tmp_path / str(labels.dtype)
        whole = fit(MASGDClassifier, X, labels[y])
        with saving(path):
            fit(MASGDClassifier, X, labels[y], max_iter=5)
            resumed = fit(MASGDClassifier, X, labels[y])
        np.testing.assert_array_equal(resumed.coef_, whole.coef_)
        assert resumed.classes_.tolist() == list("abcd")


def test_a_fit_that_is_done_is_not_done_again(multi, tmp_path):
    with saving(tmp_path):
        first = fit(MASGDClassifier, *multi)
        again = fit(MASGDClassifier, *multi)
        np.testing.assert_array_equal(again.coef_, first.coef_)
        assert again.history_ == first.history_
        with saving(tmp_path, resume=False):
            anew = fit(MASGDClassifier, *multi, alpha=0.5)
    assert anew.n_iter_ == 7


def test_the_last_round_is_saved_whatever_the_interval(multi, tmp_path):
    with saving(tmp_path, every=100):
        fit(MASGDClassifier, *multi)
    assert sorted(p.name for p in tmp_path.glob("*/*")) == [
        "round-00000007.json",
        "round-00000007.npz",
    ]


def test_other_parameters_estimators_and_data(multi, regression, tmp_path):
    """Each fit has a series of its own, and is what it is without checkpoints."""
    X, y = multi
    fits = [
        lambda: fit(MASGDClassifier, X, y),
        lambda: fit(MASGDClassifier, X, y, alpha=0.5),
        lambda: fit(MASGDRegressor, X, y),
        lambda: fit(MASGDClassifier, X[:, :5], y),
    ]
    plain = [make() for make in fits]
    with saving(tmp_path):
        for _ in range(2):
            for make, expected in zip(fits, plain, strict=True):
                np.testing.assert_array_equal(make().coef_, expected.coef_)
    assert len(list(tmp_path.iterdir())) == len(fits)


def test_a_directory_that_cannot_be_written(multi, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with (
        saving(tmp_path / "file"),
        pytest.raises(CheckpointError, match="cannot write"),
    ):
        fit(MASGDClassifier, *multi)


def test_small_integers_with_a_wide_range(regression, tmp_path):
    X, y = regression
    y = np.where(y > 0, 100, -100).astype(np.int8)
    with saving(tmp_path):
        fit(MASGDRegressor, X, y)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_fit_that_cannot_be_saved_says_so(multi, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "dask_ma.engine.recovery._states.digest_shard", lambda arguments: None
    )
    with (
        saving(tmp_path),
        pytest.warns(
            UserWarning, match="the fit of MASGDClassifier is not saved: its data"
        ),
    ):
        fit(MASGDClassifier, *multi)
