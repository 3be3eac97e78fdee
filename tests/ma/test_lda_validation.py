"""Documents that MALDA holds out, and what it sees of them while it fits."""

import dask.array as da
import numpy as np
import pytest
from scipy import sparse as sp

from dask_ma import MALDA
from dask_ma.ma.lda._agent import TopicFit

N, V, K = 80, 10, 3
PARAMS = {
    "n_components": K,
    "max_iter": 4,
    "batch_size": 20,
    "local_batch_size": 10,
    "max_doc_update_iter": 5,  # most of the time is theirs
    "validation_fraction": 0.25,
    "evaluate_every": 2,
    "perp_tol": 0.0,
    "random_state": 0,
    "dtype": "float64",
}


@pytest.fixture(scope="module")
def X():
    """80 documents that no two of are alike: the first word counts them."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.4, 3.0, (N, V))).astype(float)
    counts[:, 0] = np.arange(N)
    return counts


def fit(X, **params):
    return MALDA(**{**PARAMS, **params}).fit(X)


def seen(monkeypatch, X, **params):
    """A fit; the documents that it has held out, and those that it was made with."""
    parts, original = [], TopicFit.__init__

    def init(self, context, corpus, params, **kwargs):
        own = corpus.batch(np.arange(corpus.n_documents))
        rows = np.zeros((corpus.n_documents, V))
        rows[:, own.words] = own.X.toarray()
        held_out = [part.toarray() for part in corpus.held_out]
        parts.append((rows, np.concatenate([np.zeros((0, V)), *held_out])))
        original(self, context, corpus, params, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(TopicFit, "__init__", init)
        model = fit(X, **params)
    trained, held_out = (np.concatenate(own) for own in zip(*parts, strict=True))
    return model, trained, held_out


def column(model, name):
    return np.array([record[name] for record in model.history_])


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_history_has_the_completion_of_held_out_documents(
    X, monkeypatch, n_ranks, convert
):
    model, trained, held_out = seen(monkeypatch, convert(X), n_ranks=n_ranks)
    assert len(held_out) == pytest.approx(N / 4, abs=n_ranks)
    ids = np.concatenate([trained, held_out])[:, 0]
    np.testing.assert_array_equal(np.sort(ids), np.arange(N))
    values, passes = column(model, "validation_perplexity"), column(model, "n_iter")
    ends = np.flatnonzero(np.diff(passes, prepend=0) > 0)
    due = [end for end in ends if passes[end] % 2 == 0]
    np.testing.assert_array_equal(np.flatnonzero(np.isfinite(values)), due)
    last = model.perplexity(held_out, method="completion")
    assert values[-1] == pytest.approx(last, rel=1e-9)
    # The documents that it was made with are evaluated at the end only.
    assert np.isnan(column(model, "perplexity")[:-1]).all()
    assert model.bound_ == pytest.approx(model.perplexity(trained), rel=1e-9)


def test_values_are_those_of_shorter_fits(X, monkeypatch):
    """The model at the time is evaluated, and nothing is changed by that."""
    whole = fit(X, n_ranks=2)
    values = column(whole, "validation_perplexity")
    for n_passes in (2, 4):
        short, _, held_out = seen(monkeypatch, X, n_ranks=2, max_iter=n_passes)
        expected = short.perplexity(held_out, method="completion")
        found = values[column(whole, "n_iter") == n_passes]
        assert found[np.isfinite(found)] == pytest.approx([expected], rel=1e-9)
    seldom = fit(X, n_ranks=2, evaluate_every=-1, perp_tol=0.1)
    np.testing.assert_array_equal(seldom.components_, whole.components_)
    seldom = column(seldom, "validation_perplexity")
    assert np.isnan(seldom[:-1]).all()
    assert seldom[-1] == values[-1]


def test_held_out_documents_are_not_learned(X, monkeypatch):
    """Whatever they are, the topics are the same."""
    model, _, held_out = seen(monkeypatch, X)
    other = X.copy()
    other[held_out[:, 0].astype(int), 1:] = 40.0
    changed = fit(other)
    np.testing.assert_array_equal(changed.components_, model.components_)
    before, after = (column(m, "validation_perplexity")[-1] for m in (model, changed))
    assert abs(after - before) > 0.1


def test_the_fit_ends_when_they_are_not_predicted_better(X):
    params = {"evaluate_every": 1, "max_iter": 15, "n_ranks": 2}
    whole = fit(X, **params, perp_tol=0.0)
    values = column(whole, "validation_perplexity")
    falls = -np.diff(values[np.isfinite(values)])
    for perp_tol in (0.0, 0.05, 1e9):
        settled = np.flatnonzero(falls < perp_tol)
        expected = settled[0] + 2 if len(settled) else len(falls) + 1
        model = fit(X, **params, perp_tol=perp_tol) if perp_tol else whole
        assert model.n_iter_ == expected
        assert np.isfinite(model.bound_)
    assert expected == 2


def test_nothing_is_held_out_by_default(X, monkeypatch):
    model, trained, held_out = seen(monkeypatch, X, validation_fraction=None)
    assert (len(trained), len(held_out)) == (N, 0)
    assert all("validation_perplexity" not in record for record in model.history_)


def test_a_stream_holds_nothing_out(X):
    params = {**PARAMS, "total_samples": N}
    models = [
        MALDA(**{**params, "validation_fraction": fraction}).partial_fit(X)
        for fraction in (None, 0.5)
    ]
    np.testing.assert_array_equal(models[0].components_, models[1].components_)


def test_the_same_on_a_cluster(X, inproc_client):
    lazy = da.from_array(X, chunks=(20, -1)).map_blocks(sp.csr_array)
    here = fit(lazy, n_ranks=4)
    with inproc_client.as_current():
        there = fit(lazy, n_ranks=4)
    np.testing.assert_array_equal(there.components_, here.components_)
    np.testing.assert_array_equal(
        column(there, "validation_perplexity"), column(here, "validation_perplexity")
    )


def test_callbacks_see_it(X):
    pytest.importorskip("sklearn.callback", reason="scikit-learn 1.9 has callbacks")
    values = []

    class Stop:
        def setup(self, estimator, context): ...

        def teardown(self, estimator, context): ...

        def on_fit_task_begin(self, estimator, context, **kwargs): ...

        def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
            if fitted_estimator is None:
                return False
            values.append(fitted_estimator.history_[-1]["validation_perplexity"])
            return np.isfinite(values).sum() == 2

    model = MALDA(**PARAMS).set_callbacks(Stop()).fit(X)
    assert model.n_iter_ == 4
    np.testing.assert_array_equal(values, column(model, "validation_perplexity"))


def one_word_each():
    counts = np.zeros((N, V))
    counts[:, 1] = 1
    return counts


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (np.ones((1, V)), "holds out 0 of 1 documents"),
        (np.ones((3, V)), None),
        (one_word_each(), "of which none is left to predict"),
    ],
    ids=["one document", "three documents", "single words"],
)
def test_too_little_to_hold_out(counts, message):
    if message is None:
        assert np.isfinite(column(fit(counts), "validation_perplexity")[-1])
        return
    with pytest.raises(ValueError, match=f"validation_fraction=0.25.*{message}"):
        fit(counts)
