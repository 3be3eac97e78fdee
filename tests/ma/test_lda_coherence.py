"""Coherence of topics against a loop over documents and pairs of words."""

from itertools import combinations
from math import log

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse as sp
from sklearn.exceptions import NotFittedError

from dask_ma import MALDA

N, V, K = 60, 12, 3


@pytest.fixture(scope="module")
def X():
    """60 documents, some of them without words; the last word is in none of them."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.3, 1.5, (N, V))).astype(float)
    counts[[0, 7, 59]] = 0
    counts[20:30] = 0
    counts[:, -1] = 0
    return counts


@pytest.fixture(scope="module")
def model(X):
    return MALDA(K, max_iter=3, random_state=0).fit(X)


def slow(model, X, top_n, measure):
    """Word by word, from sets of the documents that have them."""
    holders = [set(np.flatnonzero(column)) for column in X.T]
    total = len(set.union(*holders))
    values = []
    for topic in model.top_words(top_n):
        pairs = []
        for (v, _), (w, _) in combinations(topic, 2):  # v is the more probable
            both = len(holders[v] & holders[w])
            one, other = len(holders[v]), len(holders[w])
            if not one or not other:
                continue
            if measure == "u_mass":
                pairs.append(log((both + 1) / one))
            elif not both:
                pairs.append(-1.0)
            else:
                share = both / total
                information = log(share / (one / total * other / total))
                pairs.append(information / -log(share))
        values.append(sum(pairs) / len(pairs))
    return values


MEASURES = ["u_mass", "npmi"]
KINDS = {
    "ndarray": np.asarray,
    "csr": sp.csr_array,
    "frame": pd.DataFrame,
    "lazy": lambda X: da.from_array(X, chunks=((10, 10, 0, 10, 30), -1)),
    "lazy csr": lambda X: da.from_array(X, chunks=(10, -1)).map_blocks(sp.csr_array),
    "lazy frame": lambda X: dd.from_pandas(pd.DataFrame(X), npartitions=4),
    "unknown": lambda X: (lambda rows: rows[rows.sum(axis=1) >= 0])(
        da.from_array(X, chunks=(10, -1))
    ),
}


@pytest.mark.pairs
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("top_n", [2, 5, V])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_pair_by_pair(model, X, measure, top_n, kind):
    value = model.coherence(KINDS[kind](X), top_n=top_n, measure=measure)
    assert value.shape == (K,)
    np.testing.assert_allclose(value, slow(model, X, top_n, measure), rtol=1e-12)


def test_defaults(model, X):
    expected = model.coherence(X, top_n=10, measure="u_mass")
    np.testing.assert_array_equal(model.coherence(X), expected)


def test_on_a_cluster(model, X, inproc_client):
    with inproc_client.as_current():
        value = model.coherence(KINDS["lazy csr"](X), top_n=5, measure="npmi")
    np.testing.assert_allclose(value, slow(model, X, 5, "npmi"), rtol=1e-12)


def test_the_blocks_are_reduced_where_they_are(model, X, monkeypatch):
    """What comes back is as large as the words are many, not the documents."""
    computed, compute = [], dask.compute

    def note(*args, **kwargs):
        results = compute(*args, **kwargs)
        computed.extend(np.shape(result) for result in results)
        return results

    monkeypatch.setattr(dask, "compute", note)
    model.coherence(KINDS["lazy"](X), top_n=2)
    assert set(computed) <= {(n + 1, n + 1) for n in range(2, 2 * K + 1)}


def given(words):
    """A topic whose most probable words are these, in this order."""
    start = np.full((1, 6), 0.1)
    start[0, words] = np.arange(len(words), 0, -1.0)
    return MALDA(1, components_init=start, max_iter=0).fit(np.ones((1, 6)))


def test_limits():
    """Words that are always, never or only together, and words of no document."""
    X = np.array([[1, 1, 0, 2, 1, 0], [3, 1, 0, 1, 0, 0], [0, 0, 5, 1, 0, 0]])
    for words, u_mass, npmi in (
        ([0, 1], log(3 / 2), 1.0),
        ([0, 2], log(1 / 2), -1.0),
        ([3, 0], log(3 / 3), 0.0),
        ([4, 0], log(2 / 1), log(3 / 2) / log(3)),
    ):
        model = given(words)
        assert model.coherence(X, top_n=2) == pytest.approx(u_mass)
        value = model.coherence(X, top_n=2, measure="npmi")
        assert value == pytest.approx(npmi, abs=1e-12)
    both = given([3, 0]).coherence(X[:2], top_n=2, measure="npmi")
    assert both == pytest.approx(1.0)
    for measure in MEASURES:
        assert np.isnan(given([5, 0]).coherence(X, top_n=2, measure=measure)).all()


def test_planted_topics_are_more_coherent_than_mixed_ones():
    rng = np.random.default_rng(1)
    topics = np.kron(np.eye(K), np.full(5, 0.2))
    X = np.array([rng.multinomial(6, topics[i % K]) for i in range(200)])
    starts = topics + 1e-3, np.roll(topics, 2, axis=1) + 1e-3
    good, poor = (
        MALDA(K, components_init=start, max_iter=0).fit(X) for start in starts
    )
    for measure in MEASURES:
        values = [m.coherence(X, top_n=5, measure=measure) for m in (good, poor)]
        assert values[0].min() > values[1].max() + 0.1


def test_wrong_arguments(model, X):
    with pytest.raises(ValueError, match="measure should be one of .*got 'c_v'"):
        model.coherence(X, measure="c_v")
    for top_n in (1, V + 1, 2.5, None):
        with pytest.raises(ValueError, match="top_n should be a whole number from 2"):
            model.coherence(X, top_n=top_n)
    for counts in (0 * X, da.from_array(0 * X, chunks=(10, -1))):
        with pytest.raises(ValueError, match="X has no words: the coherence"):
            model.coherence(counts)
    with pytest.raises(ValueError, match="Negative values in data passed to a topic"):
        model.coherence(-X)
    with pytest.raises(ValueError, match="X has 5 features, but MALDA is expecting 12"):
        model.coherence(X[:, :5])
    with pytest.raises(NotFittedError):
        MALDA(K).coherence(X)
