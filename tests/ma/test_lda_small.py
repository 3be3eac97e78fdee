"""A corpus of few documents: updates by all of them, from the best of some starts."""

import dask.array as da
import numpy as np
import pytest
from sklearn.decomposition import LatentDirichletAllocation

from dask_ma import MALDA
from dask_ma.ma.lda._sizes import is_few

K, V = 8, 120


@pytest.fixture(scope="module")
def corpus():
    """200 documents to fit, sorted by their main topic, and 80 others."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(V, 0.05), K)
    shares = rng.dirichlet(np.full(K, 0.1), 280)
    counts = np.array([rng.multinomial(60, p) for p in shares @ topics], dtype=float)
    order = np.argsort(shares[:200].argmax(axis=1), kind="stable")
    return counts[:200][order], counts[200:]


def fit(X, **params):
    return MALDA(K, random_state=0, **params).fit(X)


def perplexity(model, documents):
    return model.to_sklearn().perplexity(documents)


def test_neither_ranks_nor_blocks_nor_order_matter(corpus):
    X = corpus[0][::2]
    params = {"dtype": "float64", "max_iter": 1, "max_doc_update_iter": 20}
    expected = fit(X, **params).components_
    mixed = X[np.random.default_rng(1).permutation(len(X))]
    blocks = da.from_array(X, chunks=(20, -1))
    for rows, n_ranks in ((X, 4), (blocks, 1), (mixed, 3)):
        found = fit(rows, n_ranks=n_ranks, **params).components_
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def theirs(corpus):
    """Perplexity of one of scikit-learn's models, as there are several optima."""
    X, others = corpus
    return LatentDirichletAllocation(K, random_state=0).fit(X).perplexity(others)


@pytest.mark.parametrize("seed", [0, 1])
def test_held_out_documents_are_predicted_as_by_scikit_learn(corpus, theirs, seed):
    X, others = corpus
    model = MALDA(K, random_state=seed, n_ranks=2).fit(da.from_array(X, (40, -1)))
    assert perplexity(model, others) < 1.01 * theirs


def test_the_best_start_is_taken(corpus):
    """The plain method goes on from the first of the four, by as many passes here."""
    X, _ = corpus
    gains = []
    for seed in (0, 1):
        best = MALDA(K, random_state=seed, max_iter=1)
        first = MALDA(K, random_state=seed, max_iter=6, learning_method="batch")
        gains.append(first.fit(X).bound_ - best.fit(X).bound_)
    assert min(gains) > -0.5
    assert max(gains) > 1


def test_given_topics_are_where_the_fit_begins(corpus):
    X, _ = corpus
    start = np.random.default_rng(0).gamma(2.0, 1.0, (K, V))
    given = {"components_init": start, "max_iter": 2}
    auto, batch = fit(X, **given), fit(X, learning_method="batch", **given)
    np.testing.assert_array_equal(auto.components_, batch.components_)
    assert fit(X, max_iter=0).n_batch_iter_ == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_decay", 0.8),
        ("learning_offset", 20.0),
        ("batch_size", 50),
        ("local_batch_size", 10),
        ("paradigm", "gradient"),
        ("mixing", "butterfly"),
    ],
)
def test_what_only_online_has_chooses_it(corpus, name, value):
    X = corpus[0][:100, :30]
    given = {name: value, "max_iter": 2, "n_ranks": 2, "max_doc_update_iter": 5}
    auto, online = fit(X, **given), fit(X, learning_method="online", **given)
    np.testing.assert_array_equal(auto.components_, online.components_)
    assert auto.n_batch_iter_ > 3


def test_the_number_of_documents_decides(corpus):
    """After it is known: that of a Dask collection may not be so before the fit."""
    assert is_few(1024)
    assert not is_few(1025)
    X = corpus[0][:, :20]  # some of the words
    once = {"max_iter": 1, "max_doc_update_iter": 5}
    few = np.tile(X, (5, 1))
    many = np.vstack([few, X])
    expected = fit(few, **once)
    assert len(expected.history_) == 1
    assert len(fit(many, **once).history_) > 1
    lazy = da.from_array(many, chunks=(300, -1))
    lazy = lazy[da.from_array(np.arange(len(many)) < 1000, chunks=300)]
    assert np.isnan(lazy.shape[0])
    model = fit(lazy, **once)
    assert len(model.history_) == 1
    np.testing.assert_allclose(model.components_, expected.components_, rtol=1e-3)
