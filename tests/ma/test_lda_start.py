"""Topics that a fit begins with, and what has become of them at its end."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma import MALDA
from dask_ma.ma.lda import _agent
from dask_ma.ma.lda._start import weight_of_documents

K, V, N_COMMON = 20, 600, 40


@pytest.fixture(scope="module")
def X():
    """Documents of planted topics, whose common words make up six of ten tokens."""
    rng = np.random.default_rng(0)
    topics = np.zeros((K, V))
    topics[:, :N_COMMON] = 0.6 * rng.dirichlet(np.ones(N_COMMON))
    for topic, own in zip(topics, np.array_split(np.arange(N_COMMON, V), K)):
        topic[own] = 0.4 * rng.dirichlet(np.full(len(own), 0.5))
    shares = rng.dirichlet(np.full(K, 0.1), 1200) @ topics
    counts = [rng.multinomial(60, p / p.sum()) for p in shares]
    return sparse.csr_array(np.array(counts, dtype=np.float32))


def begin(X, n_components=K, **params):
    """First topics of a fit by "online"."""
    params = {"learning_method": "online", "dtype": "float64", **params}
    model = MALDA(n_components, max_iter=0, random_state=0, **params)
    return model.fit(X).components_


@pytest.mark.parametrize(("seed", "n_ranks"), [(0, 1), (1, 2)])
def test_no_topic_ends_empty(X, seed, n_ranks):
    """What all documents have in common is left to no topic alone."""
    params = {"random_state": seed, "n_ranks": n_ranks, "max_iter": 6}
    model = MALDA(K, **params).fit(X)
    assert model.transform(X).mean(axis=0).min() > 1e-3
    if n_ranks == 2:
        return
    alike = begin(X[:1000], learning_method="batch")
    params |= {"word_weights": "variational", "components_init": alike}
    other = MALDA(K, **params).fit(X)
    assert other.transform(X).mean(axis=0).min() < 1e-3
    ours, theirs = (m.perplexity(X, method="completion") for m in (model, other))
    assert ours < 0.97 * theirs


def test_first_topics_are_of_documents(X):
    """Each of its own and, as much again, of all of them, beside random numbers."""
    X = sparse.vstack([X, X, X])
    drawn, first = begin(X, learning_method="batch"), begin(X)
    added = first - drawn
    assert added.min() > -1e-12
    np.testing.assert_allclose(added.sum(axis=1), 2 * V)
    common = added.min(axis=0)  # words that some topic has none of in its documents
    seen = common > 0
    assert N_COMMON < seen.sum() < V
    own = added[:, N_COMMON:] - common[N_COMMON:]
    assert np.median((own > 1e-9).sum(axis=1)) < 100


def test_few_words_weigh_no_more_than_there_are(X):
    """A vocabulary may be far larger than what documents say."""
    few, wide = X[:50], sparse.csr_array(X[:50])
    wide.resize((50, 100 * V))
    added = begin(wide) - begin(wide, learning_method="batch")
    np.testing.assert_allclose(added.sum(axis=1), 2 * 0.1 * few.sum() / K)


def test_documents_weigh_what_the_updates_to_come_get_over():
    assert weight_of_documents(0.0) == weight_of_documents(0.01) == 4
    assert weight_of_documents(0.5) == 0.2
    assert weight_of_documents(1.0) == 0.1


@pytest.mark.pairs
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("paradigm", ["model", "gradient"])
@pytest.mark.parametrize("n_passes", [1, 3])
def test_what_the_updates_leave_of_the_first_topics(
    X, monkeypatch, n_passes, paradigm, n_ranks
):
    """It is foreseen from passes, rounds and the updates of a rank in a round."""
    foreseen = []

    def add(*arguments):
        foreseen.append(arguments[-1])

    monkeypatch.setattr(_agent, "add_documents", add)
    sizes = {"batch_size": 300, "paradigm": paradigm, "max_doc_update_iter": 1}
    if paradigm == "model":
        sizes["local_batch_size"] = 70
    model = MALDA(K, max_iter=n_passes, n_ranks=n_ranks, random_state=0, **sizes)
    t = np.arange(1, model.fit(X).n_batch_iter_)
    assert len(t) > 3 * n_passes
    left = np.prod(1 - (model.learning_offset + t) ** -model.learning_decay)
    np.testing.assert_allclose(foreseen, [left] * n_ranks)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_few_updates_get_over_the_first_topics(n_ranks):
    """Documents that are no more alike than others say nothing about topics."""
    rng = np.random.default_rng(5)
    words = 1 / np.arange(5, 5005)
    counts = rng.multinomial(60, words / words.sum(), 1300)
    X, X_test = (sparse.csr_array(part) for part in np.split(counts, [1000]))
    params = {"batch_size": 200, "local_batch_size": 200 // n_ranks, "max_iter": 1}
    params |= {"random_state": 0, "n_ranks": n_ranks}
    alike = begin(X, 30, learning_method="batch")
    ours, theirs = (
        MALDA(30, components_init=start, **params)
        .fit(X)
        .perplexity(X_test, method="completion")
        for start in (None, alike)
    )
    assert ours < 1.05 * theirs


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_documents_come_from_all_ranks_in_proportion(X, n_ranks):
    """Here those of a rank have words of their own."""
    marked = np.eye(30)[np.arange(300) * 30 // 300]
    added = begin(marked, n_ranks=n_ranks) - begin(marked, learning_method="batch")
    common = added.min(axis=0)
    thirds = common.reshape(3, 10).sum(axis=1)
    if n_ranks == 3:
        np.testing.assert_allclose(thirds, common.sum() / 3)
    assert (thirds > 0).all()


def test_fewer_documents_than_topics(X):
    documents = np.vstack([X[:3].toarray(), np.zeros((2, V))])
    added = begin(documents, n_ranks=2) - begin(documents, learning_method="batch")
    sums = added.sum(axis=1)
    assert (sums > 1.9 * sums.min()).sum() == 3
    model = MALDA(K, learning_method="online", random_state=0).fit(documents)
    assert np.isfinite(model.components_).all()


def test_given_topics_stay(X):
    given = np.random.default_rng(0).gamma(2.0, 1.0, (K, V))
    np.testing.assert_allclose(begin(X, components_init=given), given)


def test_a_stream_begins_with_documents_too(X):
    params = {"total_samples": 2500, "random_state": 0, "learning_offset": 1e15}
    model = MALDA(K, **params, learning_decay=1.0).partial_fit(X[:500])
    assert model.components_.max() > 3


def test_weights_by_default(X):
    """The mean where parts of the documents make updates, else variational Bayes."""
    few = X[:200]
    for rows, params, name in (
        (few, {}, "variational"),
        (few, {"learning_method": "batch"}, "variational"),
        (few, {"learning_method": "online"}, "mean"),
        (X, {}, "mean"),
        (X, {"paradigm": "gradient"}, "mean"),
    ):
        params = {"max_iter": 1, "random_state": 0, "n_ranks": 2, **params}
        params["max_doc_update_iter"] = 5
        auto, chosen = (
            MALDA(5, word_weights=weights, **params).fit(rows).components_
            for weights in ("auto", name)
        )
        np.testing.assert_array_equal(auto, chosen)
