"""Fits of topics that are saved and go on from where they were."""

import dask
import numpy as np
import pytest
from lda_parameters import acting

from dask_ma import MALDA
from dask_ma.ma.lda._agent import TopicFit

N, V, K = 40, 8, 3
# A pass has 2 rounds.
PARAMS = {
    "n_components": K,
    "max_iter": 3,
    "batch_size": 20,
    "local_batch_size": 5,
    "max_doc_update_iter": 5,  # most of the time is theirs
    "random_state": 3,
}
SETTINGS = [
    {},
    {"n_ranks": 3, "doc_topic_prior": "auto", "dtype": "float64"},
    {"n_ranks": 3, "mixing": "butterfly"},
    {"n_ranks": 2, "topic_word_prior": "auto"},
    {"n_ranks": 2, "topic_word_prior": np.linspace(0.1, 2, K * V).reshape(K, V)},
    {"n_ranks": 2, "paradigm": "gradient", "doc_topic_prior": "auto"},
    {"n_ranks": 2, "learning_method": "batch"},
    {"n_ranks": 2, "evaluate_every": 2, "perp_tol": 0.0, "validation_fraction": 0.2},
    {"n_ranks": 2, "evaluate_every": 1, "perp_tol": 0.05, "max_iter": 20},
]
RARELY = {"n_ranks": 4, "mixing": "butterfly", "doc_topic_prior": "auto"}


class StopAfterError(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.poisson(rng.gamma(0.5, 2.0, (N, V))).astype(float)


def fit(X, **params):
    return MALDA(**acting(**{**PARAMS, **params})).fit(X)


def saving(path, **more):
    values = {"path": str(path), **more}
    return dask.config.set(
        {f"dask-ma.checkpoint.{key}": value for key, value in values.items()}
    )


def broken_off(monkeypatch, n_rounds):
    """A fit fails after some rounds, before that is kept."""
    original = TopicFit.measure

    def measure(self):
        if self.n_rounds == n_rounds:
            raise StopAfterError
        return original(self)

    monkeypatch.setattr(TopicFit, "measure", measure)


def assert_same(one, other):
    np.testing.assert_array_equal(one.components_, other.components_)
    np.testing.assert_array_equal(one.doc_topic_prior_, other.doc_topic_prior_)
    np.testing.assert_array_equal(one.topic_word_prior_, other.topic_word_prior_)
    assert one.bound_ == other.bound_
    assert (one.n_iter_, one.n_batch_iter_) == (other.n_iter_, other.n_batch_iter_)


@pytest.mark.parametrize(
    ("params", "every"),
    [*((params, 1) for params in SETTINGS), (RARELY, 3)],
    ids=str,
)
def test_a_resumed_fit_is_an_uninterrupted_one(X, tmp_path, monkeypatch, params, every):
    whole = fit(X, **params)
    with saving(tmp_path, every=every):
        with monkeypatch.context() as patch:
            # In the third pass, or at the end of it.
            is_batch = "learning_method" in params  # a pass has one round
            broken_off(patch, 3 if is_batch else 5)
            with pytest.raises(StopAfterError):
                fit(X, **params)
        assert list(tmp_path.iterdir())
        resumed = fit(X, **params)
    assert_same(resumed, whole)
    assert len(resumed.history_) == len(whole.history_)
    for ours, theirs in zip(resumed.history_, whole.history_, strict=True):
        for name in ("round", "n_iter", "n_samples", "objective", "perplexity"):
            np.testing.assert_equal(ours[name], theirs[name])
        held_out = (r.get("validation_perplexity") for r in (ours, theirs))
        np.testing.assert_equal(*held_out)
    times = [record["time"] for record in resumed.history_]
    assert times == sorted(times)


@pytest.mark.parametrize("mixing", ["allreduce", "butterfly"])
def test_a_fit_of_more_passes_goes_on(X, tmp_path, mixing):
    params = {"n_ranks": 4, "mixing": mixing, "doc_topic_prior": "auto"}
    whole = fit(X, **params)
    with saving(tmp_path):
        fit(X, **params, max_iter=2)
        assert_same(fit(X, **params), whole)


def test_a_fit_that_a_callback_has_ended_is_done(X, tmp_path, monkeypatch):
    """In the middle of a pass, which it does not go on with."""
    callback = pytest.importorskip(
        "sklearn.callback", reason="scikit-learn has callbacks from version 1.9 on"
    )
    assert callback

    class Stop:
        n_rounds = 0

        def setup(self, estimator, context): ...

        def on_fit_task_begin(self, estimator, context, **kwargs): ...

        def on_fit_task_end(self, estimator, context, **kwargs):
            self.n_rounds += 1
            return self.n_rounds == 3

        def teardown(self, estimator, context): ...

    model, again = (MALDA(**PARAMS, n_ranks=2).set_callbacks(Stop()) for _ in range(2))
    with saving(tmp_path):
        model.fit(X)
        again.fit(X)
    assert (model.n_iter_, len(model.history_)) == (1, 3)
    assert_same(again, model)
    np.testing.assert_equal(again.history_, model.history_)


def test_on_a_cluster(process_client, X, tmp_path):
    whole = fit(X, n_ranks=4, doc_topic_prior="auto")
    with process_client.as_current(), saving(tmp_path):
        fit(X, max_iter=2, doc_topic_prior="auto")
        assert_same(fit(X, doc_topic_prior="auto"), whole)


@pytest.mark.parametrize(
    ("n_ranks", "mixing"), [(1, "allreduce"), (3, "allreduce"), (2, "butterfly")]
)
def test_another_number_of_ranks_says_so(X, tmp_path, n_ranks, mixing):
    params = {"mixing": mixing, "evaluate_every": 1, "perp_tol": 0.0}
    with saving(tmp_path):
        first = fit(X, n_ranks=4, max_iter=2, **params)
        with pytest.warns(UserWarning, match=f"by 4 ranks and goes on with {n_ranks}"):
            second = fit(X, n_ranks=n_ranks, **params)
    assert second.n_iter_ == 3
    np.testing.assert_equal(second.history_[:4], first.history_)
    assert second.bound_ < first.bound_


@pytest.mark.parametrize(
    ("before", "after", "n_rounds"),
    [(1, 2, 1), (1, 4, 13), (2, 1, 1)],
)
def test_other_ranks_go_over_as_many_documents_as_are_left(
    tmp_path, monkeypatch, before, after, n_rounds
):
    """They go on with the round that holds the first one; rounds have other sizes."""
    large = np.random.default_rng(0).poisson(0.5, (4000, V)).astype(float)
    params = {"max_iter": 1, "batch_size": "auto", "local_batch_size": "auto"}
    with saving(tmp_path):
        with monkeypatch.context() as patch:
            broken_off(patch, n_rounds + 1)
            with pytest.raises(StopAfterError):
                fit(large, n_ranks=before, **params)
        with pytest.warns(UserWarning, match=f"goes on with {after}"):
            model = fit(large, n_ranks=after, **params)
    sizes = [record["n_samples"] for record in model.history_]
    assert len(set(sizes)) > 1
    assert len(large) <= sum(sizes) < len(large) + max(sizes)
    assert model.n_iter_ == 1


def test_a_fit_that_is_done_is_not_done_again(X, tmp_path):
    with saving(tmp_path):
        first = fit(X)
        again = fit(X)
        assert_same(again, first)
        np.testing.assert_equal(again.history_, first.history_)
        with saving(tmp_path, resume=False):
            anew = fit(X, learning_decay=0.9)
    assert anew.n_iter_ == 3


def test_the_last_round_is_saved_whatever_the_interval(X, tmp_path):
    with saving(tmp_path, every=1000):
        fit(X)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == [
        "round-00000006.json",
        "round-00000006.npz",
    ]


@pytest.mark.parametrize(
    "change", [{"learning_decay": 0.6}, {"n_components": 4}, {"mixing": "butterfly"}]
)
def test_other_parameters(X, tmp_path, change):
    plain = fit(X, **change)
    with saving(tmp_path):
        fit(X)
        assert_same(fit(X, **change), plain)


def test_other_words(X, tmp_path):
    plain = fit(X[:, :5])
    with saving(tmp_path):
        model = fit(X)
        assert_same(model.fit(X[:, :5]), plain)


def test_what_ends_a_fit_may_change(X, tmp_path, interrupted):
    """More passes, and other tests for the end."""
    with saving(tmp_path):
        with interrupted(2):
            fit(X, max_iter=1, evaluate_every=1, perp_tol=1.0, total_samples=1e6)
        model = fit(X, evaluate_every=2, perp_tol=0.0, total_samples=1e5)
        assert len(list(tmp_path.iterdir())) == 2
    assert model.n_iter_ == 3
    rounds = [record["round"] for record in model.history_]
    assert rounds == list(range(1, 7))
    plain = fit(X, evaluate_every=2, perp_tol=0.0)
    np.testing.assert_array_equal(model.components_, plain.components_)
