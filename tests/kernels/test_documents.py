"""Inference for documents against slow loops, scikit-learn and exact likelihoods."""

import numpy as np
import pytest
from scipy import sparse, special
from sklearn.decomposition import LatentDirichletAllocation
from slow_documents import PLAIN, infer_document

from dask_ma.kernels import (
    Inference,
    InferenceSettings,
    WordWeights,
    _documents,
    document_bounds,
    infer_documents,
    word_statistics,
    word_weights,
)

N_WORDS = 40
EXACT = InferenceSettings(threshold=None)
LONG = EXACT._replace(max_iter=3000, tol=1e-10)


# Corpora ----------------------------------------------------------------------------


def rows(*contents):
    """CSR of documents given as lists of (word, count), stored as they are."""
    pairs = [pair for content in contents for pair in content]
    words = np.array([word for word, _ in pairs], dtype=np.int32)
    counts = np.array([count for _, count in pairs], dtype=np.float64)
    ends = np.cumsum([0] + [len(content) for content in contents])
    return sparse.csr_array((counts, words, ends), (len(contents), N_WORDS))


def random_corpus(lengths, real=False, seed=0):
    """Documents with the given numbers of different words."""
    rng = np.random.default_rng(seed)
    contents = []
    for n in lengths:
        words = np.sort(rng.choice(N_WORDS, n, replace=False))
        counts = rng.gamma(0.5, 4, n) + 1e-3 if real else rng.geometric(0.3, n)
        contents.append(list(zip(words, counts, strict=True)))
    return rows(*contents)


CORPORA = {
    "unequal lengths": random_corpus([1, 40, 2, 7, 40, 1, 1, 19, 3, 25, 2]),
    "alike": random_corpus([9] * 12, seed=1),
    "real counts": random_corpus([5, 1, 30, 12], real=True, seed=2),
    "empty first": random_corpus([0, 0, 4, 9], seed=3),
    "empty between": random_corpus([5, 0, 4, 0, 0, 30], seed=4),
    "empty last": random_corpus([5, 20, 0], seed=5),
    "no words": random_corpus([0, 0, 0]),
    "no documents": random_corpus([]),
    "one document": random_corpus([12], seed=6),
    "one word": rows([(3, 1.0)]),
    "one word often": rows([(3, 1e5)], [(3, 2.0)]),
    "stored twice": rows([(3, 1), (3, 2), (0, 1), (3, 4)], [(9, 1), (2, 5), (9, 2)]),
    "zeros stored": rows([(1, 0), (2, 3), (7, 0)], [(4, 0), (5, 0)], [(0, 1), (1, 0)]),
    "only zeros": rows([(1, 0), (2, 0)], [(3, 0)]),
}
PRIORS = {
    "one topic": np.array([0.3]),
    "two topics": np.array([0.5, 0.5]),
    "small": np.full(8, 1e-3),
    "usual": np.full(20, 0.05),
    "large": np.full(6, 5.0),
    "asymmetric": np.geomspace(1e-3, 2, 12),
}
every_corpus = pytest.mark.parametrize("corpus", sorted(CORPORA))
every_prior = pytest.mark.parametrize("prior", sorted(PRIORS))
every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def concentration(n_topics):
    """Parameters of topics, from words that were never seen to frequent ones."""
    rng = np.random.default_rng(n_topics)
    return 0.02 + rng.gamma(0.2, 20, (N_WORDS, n_topics))


def topics(n_topics, dtype=np.float64):
    parameters = concentration(n_topics)
    totals = parameters.sum(axis=0)
    return word_weights(parameters.astype(dtype), totals, None)


def mixed():
    """A corpus, the weights of its words, and a prior with which topics die out."""
    X = random_corpus([3, 0, 40, 17, 1, 8, 8, 30, 2, 5, 40, 6, 11, 4, 9, 13], seed=7)
    return X, topics(15), np.full(15, 0.05)


def everything(X, weights, prior, settings=EXACT):
    """What is found, and the statistics and bounds that follow from it."""
    found = infer_documents(X, weights.weights, prior, settings)
    sums = word_statistics(X, found, weights.weights)
    bounds = document_bounds(X, found, weights, prior)
    return {**found._asdict(), "sums": sums, "bounds": bounds}


def assert_all_close(got, expected, rtol, skip=()):
    """Compare results of `everything`, but for some of them."""
    for name in got.keys() - skip:
        np.testing.assert_allclose(got[name], expected[name], rtol, 1e-3 * rtol)


# A slow reference ---------------------------------------------------------------------


def slow_inference(X, weights, prior, settings, **options):
    """One document at a time."""
    n, k = X.shape[0], len(prior)
    found = Inference(
        np.tile(prior, (n, 1)), np.zeros((n, k)), np.zeros(len(X.data)), np.zeros(n), 0
    )
    for i, (start, stop) in enumerate(zip(X.indptr, X.indptr[1:], strict=False)):
        if start < stop:
            counts = X.data[start:stop]
            gamma, theta, norms, n_iter = infer_document(
                counts,
                weights[X.indices[start:stop]].astype(np.float64),
                prior,
                settings.tol,
                settings.max_iter,
                **options,
            )
            found.gamma[i], found.theta[i] = gamma, theta
            found.ratios[start:stop] = counts / norms
            found.log_norms[i] = sum(counts * np.log(norms))
            found = found._replace(n_iter=max(found.n_iter, n_iter))
    return found


def assert_same(got, expected, prior, rtol=1e-7):
    """Equal, but for the theta of topics that have died out."""
    np.testing.assert_allclose(got.gamma, expected.gamma, rtol=rtol)
    dead = got.theta == 0
    # What was drawn from these topics is not seen beside the prior.
    assert (np.abs(expected.gamma - prior) <= rtol * prior)[dead].all()
    np.testing.assert_allclose(
        got.theta[~dead], expected.theta[~dead], rtol=100 * rtol, atol=1e-25
    )
    np.testing.assert_allclose(got.ratios, expected.ratios, rtol=rtol)
    np.testing.assert_allclose(got.log_norms, expected.log_norms, rtol=rtol, atol=rtol)
    assert got.n_iter == expected.n_iter


@pytest.mark.each(2)
@every_corpus
@every_prior
def test_slow_reference(prior, corpus):
    X, prior = CORPORA[corpus], PRIORS[prior]
    weights = topics(len(prior)).weights
    got = infer_documents(X, weights, prior, EXACT)
    expected = slow_inference(X, weights, prior, EXACT)
    # What is left to go multiplies the rounding errors of the last changes.
    assert_same(got, expected, prior, rtol=1e-6)
    of_document = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    slow_sums = np.zeros((N_WORDS, len(prior)))
    for i, j, ratio in zip(of_document, X.indices, expected.ratios, strict=True):
        slow_sums[j] += ratio * expected.theta[i] * weights[j]
    sums = word_statistics(X, got, weights)
    np.testing.assert_allclose(sums, slow_sums, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(sums.sum(axis=1), X.sum(axis=0), atol=1e-9, rtol=1e-12)


@pytest.mark.parametrize("settings", [(1, 0.0), (2, 1e-9), (25, 0.0), (100, 1e9)])
def test_limits_of_iterations(settings):
    X, (weights, _), prior = mixed()
    settings = EXACT._replace(max_iter=settings[0], tol=settings[1])
    got = infer_documents(X, weights, prior, settings)
    assert got.n_iter == (1 if settings.tol > 1 else settings.max_iter)
    assert_same(got, slow_inference(X, weights, prior, settings), prior)
    # Here, the second iteration changes nothing at all.
    zeros = infer_documents(CORPORA["only zeros"], weights, prior, settings)
    assert zeros.n_iter == got.n_iter


@every_prior
def test_going_farther_ends_at_the_same_place_and_earlier(prior):
    X, prior = CORPORA["unequal lengths"], PRIORS[prior]
    weights = topics(len(prior)).weights
    got = infer_documents(X, weights, prior, LONG)
    plain = slow_inference(X, weights, prior, LONG, cycle=PLAIN)
    np.testing.assert_allclose(got.gamma, plain.gamma, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(got.log_norms, plain.log_norms, rtol=1e-7, atol=1e-8)
    assert got.n_iter < 0.7 * plain.n_iter or plain.n_iter < 10


def test_iterations_of_each_document():
    X, weights, prior = mixed()
    singles = [X[i : i + 1] for i in range(X.shape[0])]
    slow = [slow_inference(x, weights.weights, prior, EXACT).n_iter for x in singles]
    assert [everything(x, weights, prior)["n_iter"] for x in singles] == slow
    assert len(set(slow)) > 4
    assert everything(X, weights, prior)["n_iter"] == max(slow)


def test_defaults():
    X, weights, prior = mixed()
    got = infer_documents(X, weights.weights, prior)
    same = everything(X, weights, prior, InferenceSettings(100, 1e-3, 9.0, 2**23))
    exact = everything(X, weights, prior)
    np.testing.assert_array_equal(got.gamma, same["gamma"])
    np.testing.assert_allclose(got.gamma, exact["gamma"], rtol=1e-5)
    assert (got.gamma != exact["gamma"]).any()  # the threshold has an effect


@pytest.mark.each
@every_corpus
@pytest.mark.parametrize("prior", ["usual", "small", "large"])
def test_single_precision(prior, corpus):
    X, prior = CORPORA[corpus], PRIORS[prior]
    weights = topics(len(prior), np.float32).weights
    settings = InferenceSettings(max_iter=20, tol=0.0)
    got = infer_documents(X.astype(np.float32), weights, prior, settings)
    expected = slow_inference(X, weights, prior, settings)
    dtypes = {a.dtype for a in (weights, got.gamma, got.theta, got.ratios)}
    assert dtypes == {np.dtype(np.float32)}
    assert got.log_norms.dtype == np.float64
    # A share is off by what its exponent is rounded by, times the number of steps.
    atol = 1e-4 * max(1.0, X.data.max(initial=0))
    np.testing.assert_allclose(got.gamma, expected.gamma, rtol=1e-3, atol=atol)
    sums = word_statistics(X.astype(np.float32), got, weights)
    assert sums.dtype == np.float32
    np.testing.assert_allclose(sums.sum(axis=1), X.sum(axis=0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("container", [sparse.csr_matrix, sparse.csr_array])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.float32])
def test_kinds_of_counts(dtype, container):
    X, weights, prior = mixed()
    got = everything(container(X.astype(dtype)), weights, prior)
    assert_all_close(got, everything(X, weights, prior), 1e-12)


def test_nothing_is_changed_and_runs_repeat():
    X, weights, prior = mixed()
    given = X.data, X.indices, X.indptr, weights.weights, weights.shift, prior
    before = [a.copy() for a in given]
    for a in given:
        a.flags.writeable = False
    results = [everything(X, weights, prior) for _ in range(2)]
    first, second = (list(result.values()) for result in results)
    for a, b in zip([*given, *first], [*before, *second], strict=True):
        np.testing.assert_array_equal(a, b)


def test_divisors_of_weights_cancel_out():
    X, weights, prior = mixed()
    factors = np.random.default_rng(0).uniform(0.1, 10, N_WORDS)
    scaled = weights.weights * factors[:, np.newaxis]
    got = everything(X, WordWeights(scaled, weights.shift - np.log(factors)), prior)
    assert_all_close(got, everything(X, weights, prior), 1e-9, {"ratios", "log_norms"})


@every_dtype
def test_words_that_no_topic_likes(dtype):
    """They belong to no topic, and the other words go on as without them."""
    weights = topics(4, dtype).weights.copy()
    weights[[5, 6]] = 0
    prior = np.full(4, 0.1)
    X = rows([(5, 3.0), (6, 1.0)], [(1, 2.0), (2, 1.0), (5, 4.0)])
    got = infer_documents(X, weights, prior)
    alone = infer_documents(rows([(1, 2.0), (2, 1.0)]), weights, prior)
    np.testing.assert_allclose(got.gamma[0], prior, rtol=1e-6)
    np.testing.assert_allclose(got.gamma[1], alone.gamma[0], rtol=1e-5)
    assert np.isfinite(got.log_norms).all()
    sums = word_statistics(X, got, weights)
    np.testing.assert_array_equal(sums[[5, 6]], 0)
    np.testing.assert_allclose(sums.sum(), 3, rtol=1e-5)


# Blocks and packing -----------------------------------------------------------------


@pytest.mark.parametrize("block_bytes", [1, 500, 2000, 2**40])
@pytest.mark.parametrize("most_padding", [0, 20, 4000])
def test_size_of_blocks(most_padding, block_bytes, monkeypatch):
    X, (weights, _), prior = mixed()
    expected = infer_documents(X, weights, prior, EXACT)
    monkeypatch.setattr(_documents, "_MOST_PADDING", most_padding)
    got = infer_documents(X, weights, prior, EXACT._replace(block_bytes=block_bytes))
    assert_same(got, expected, prior, rtol=1e-10)
    blocks = list(_documents._blocks(X, 15 * 8, block_bytes))
    lengths = np.diff(X.indptr)
    assert sorted(np.concatenate(blocks)) == list(np.flatnonzero(lengths))
    for block in blocks:
        size = len(block) * lengths[block].max()
        assert len(block) == 1 or size * 15 * 8 <= block_bytes
        assert size - lengths[block].sum() <= most_padding
    if block_bytes >= 2000:
        assert len(blocks) < 15
    if block_bytes > 10_000 and most_padding == 4000:
        assert len(blocks) == 1


def test_neighbours_do_not_matter():
    X, weights, prior = mixed()
    expected = everything(X, weights, prior)
    order = np.random.default_rng(0).permutation(X.shape[0])
    for chosen in (order, order[:5], np.repeat(order, 3), np.array([2])):
        got = everything(X[chosen], weights, prior)
        for name in ("gamma", "log_norms", "bounds"):
            np.testing.assert_allclose(got[name], expected[name][chosen], 1e-10, 1e-12)


@every_prior
@every_dtype
def test_packing_changes_nothing(dtype, prior, monkeypatch):
    X, prior = mixed()[0], PRIORS[prior]
    weights, pack = topics(len(prior), dtype), _documents._pack
    calls, results = [], {}
    monkeypatch.setattr(_documents, "_pack", lambda *a: calls.append(1) or pack(*a))
    for worth in (0.0, 0.4, 1.0):
        monkeypatch.setattr(_documents, "_WORTH_PACKING", worth)
        results[worth] = everything(X, weights, prior), len(calls)
        calls.clear()
    assert results[0.0][1] == 0
    assert results[0.4][1] > 0 or len(prior) == 1
    assert results[1.0][1] >= results[0.4][1]
    rtol = 1e-10 if dtype == np.float64 else 1e-3
    for worth in (0.4, 1.0):
        # Topics that have died out keep their theta where nothing is packed.
        assert_all_close(results[worth][0], results[0.0][0], rtol, {"theta", "n_iter"})


def test_a_topic_with_a_large_prior_comes_back():
    """The first iteration shares a word among many topics; then it leaves them all."""
    weights = np.full((N_WORDS, 261), 1e-40)
    weights[0, :100], weights[0, 260] = 1, 1e-18
    prior = np.full(261, 0.01)
    prior[260] = 1
    X = rows([(0, 1.0)])
    got = infer_documents(X, weights, prior, EXACT)
    assert_same(got, slow_inference(X, weights, prior, EXACT), prior)


# Bounds -----------------------------------------------------------------------------


def slow_bounds(X, gammas, expected_logs, prior):
    """Words' and topics' parts, one document at a time."""
    bounds = np.zeros(X.shape[0])
    for i, gamma in enumerate(gammas.astype(np.float64)):
        logs = special.psi(gamma) - special.psi(gamma.sum())
        part = slice(X.indptr[i], X.indptr[i + 1])
        for word, count in zip(X.indices[part], X.data[part], strict=True):
            bounds[i] += count * special.logsumexp(logs + expected_logs[word])
        bounds[i] += (prior - gamma) @ logs
        bounds[i] += (special.gammaln(gamma) - special.gammaln(prior)).sum()
        bounds[i] += special.gammaln(prior.sum()) - special.gammaln(gamma.sum())
    return bounds


@pytest.mark.each
@every_corpus
@every_prior
def test_bounds_by_hand(prior, corpus):
    X, prior = CORPORA[corpus], PRIORS[prior]
    parameters = concentration(len(prior))
    logs = special.psi(parameters) - special.psi(parameters.sum(axis=0))
    for dtype, rtol in ((np.float64, 1e-9), (np.float32, 1e-4)):
        got = everything(X, topics(len(prior), dtype), prior)
        bounds, expected = got["bounds"], slow_bounds(X, got["gamma"], logs, prior)
        assert bounds.dtype == np.float64
        np.testing.assert_allclose(bounds, expected, rtol=rtol, atol=10 * rtol)
        np.testing.assert_allclose(bounds[np.diff(X.indptr) == 0], 0, atol=1e-12)


@pytest.mark.parametrize("threshold", [None, 9.0])
def test_bounds_rise_with_iterations(threshold):
    X, weights, prior = mixed()
    steps = [InferenceSettings(n, 0.0, threshold) for n in (1, 2, 3, 5, 10, 30, 100)]
    rises = np.diff([everything(X, weights, prior, s)["bounds"] for s in steps], axis=0)
    assert (rises > -1e-6).all()
    assert (rises[:3].max(axis=1) > 1e-2).all()


@pytest.mark.parametrize("prior", [0.05, 0.7])
@pytest.mark.parametrize("corpus", ["unequal lengths", "real counts", "empty between"])
def test_scikit_learn(corpus, prior):
    X, k, eta = sparse.csr_matrix(CORPORA[corpus]), 6, 0.1
    theirs = LatentDirichletAllocation(
        k, doc_topic_prior=prior, topic_word_prior=eta, max_iter=1, random_state=0
    )
    theirs.set_params(max_doc_update_iter=LONG.max_iter, mean_change_tol=LONG.tol)
    theirs.fit(X)
    lambda_ = concentration(k).T
    totals = lambda_.sum(axis=1)
    logs = special.psi(lambda_) - special.psi(totals)[:, np.newaxis]
    theirs.components_, theirs.exp_dirichlet_component_ = lambda_, np.exp(logs)
    weights, alpha = topics(k), np.full(k, prior)
    got = infer_documents(X, weights.weights, alpha, LONG)
    shares = got.gamma / got.gamma.sum(axis=1, keepdims=True)
    alike = np.isclose(theirs.transform(X), shares, atol=1e-7, rtol=0).all(axis=1)
    # With a small prior there are several optima; whoever goes farther may leave a
    # low one behind.
    assert np.count_nonzero(~alike) <= (prior < 0.1)
    bounds = document_bounds(X, got, weights, alpha)
    rest = ((eta - lambda_) * logs).sum()
    rest += (special.gammaln(lambda_) - special.gammaln(eta)).sum()
    rest += (special.gammaln(eta * N_WORDS) - special.gammaln(totals)).sum()
    expected = bounds[alike].sum() + rest
    assert theirs.score(X[alike]) == pytest.approx(expected, rel=1e-9)
    assert theirs.score(X) <= bounds.sum() + rest + 1e-6
    perplexity = np.exp(-expected / X[alike].sum())
    assert theirs.perplexity(X[alike]) == pytest.approx(perplexity, rel=1e-7)


def test_documents_that_end_late_do_not_carry_the_others(monkeypatch):
    """Whether the others have ended with an even iteration or an odd one."""
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.full(10, 0.3), N_WORDS) + 1e-6
    prior = np.full(10, 0.1)
    corpus = random_corpus([12] * 60, seed=5)
    alone = np.array(
        [infer_documents(corpus[[i]], weights, prior, LONG).n_iter for i in range(60)]
    )
    last = int(alone.argmax())
    widths = []
    norms_of = _documents._norms

    def noted(block, theta):
        widths.append(len(theta))
        return norms_of(block, theta)

    monkeypatch.setattr(_documents, "_norms", noted)
    for remainder in (0, 1):
        candidates = np.flatnonzero((alone % 2 == remainder) & (alone > 20))
        many = candidates[alone[candidates].argmin()]
        assert alone[many] + 4 < alone[last]
        X = corpus[[many] * 30 + [last]]
        widths.clear()
        infer_documents(X, weights, prior, LONG)
        assert widths[0] == 31
        assert widths[alone[many] + 4 :] == [1] * len(widths[alone[many] + 4 :])
