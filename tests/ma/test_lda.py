"""MALDA against scikit-learn's steps and evaluations, and on planted topics."""

import warnings
from functools import cache

import numpy as np
import pytest
from lda_parameters import acting
from scipy import sparse, special
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import LatentDirichletAllocation

from dask_ma import MALDA

# Most corpora here are small, and nothing depends on their size.
pytestmark = pytest.mark.filterwarnings("ignore:partial_fit has taken")

K = 4
# Priors beside which the epsilon that scikit-learn divides by does not matter.
PRIORS = {"doc_topic_prior": 0.5, "topic_word_prior": 0.4}
LONG = {"mean_change_tol": 1e-9, "max_doc_update_iter": 5000}
# For `fit` to make one update in a pass, as `partial_fit` of scikit-learn does.
ONE_ROUND = {"batch_size": 40, "local_batch_size": 40}
EXACT = {"dtype": "float64"}


@pytest.fixture(autouse=True)
def exact_digamma(monkeypatch):
    """The function of SciPy, as scikit-learn has it."""
    monkeypatch.setattr("dask_ma.topics._fitted.DIGAMMA_THRESHOLD", None)


def planted(n_documents, alpha=0.15, length=40, seed=0):
    """Documents of words from four topics that share some of 24 words."""
    rng = np.random.default_rng(seed)
    topics = np.zeros((K, 24))
    for k in range(K):
        topics[k, (np.arange(9) + 6 * k) % 24] = rng.dirichlet(np.full(9, 2.0))
    shares = rng.dirichlet(np.broadcast_to(alpha, K), n_documents) @ topics
    counts = [rng.multinomial(length, p / p.sum()) for p in shares]
    return np.array(counts, dtype=float), topics


@pytest.fixture(scope="module")
def X():
    """40 documents of different lengths, two of them empty."""
    counts, _ = planted(40)
    counts[::3] *= np.random.default_rng(1).random(counts[::3].shape) < 0.3
    counts[[0, 33]] = 0
    return counts


@pytest.fixture(scope="module")
def components():
    return np.random.default_rng(2).gamma(2.0, 3.0, (K, 24)) + 0.1


def scikit_learn(X, components, **params):
    """A scikit-learn estimator that has these topics, and has seen nothing."""
    twin = LatentDirichletAllocation(K, max_iter=0, **PRIORS, **params).fit(X)
    twin.components_ = components.copy()
    totals = components.sum(axis=1, keepdims=True)
    twin.exp_dirichlet_component_ = np.exp(
        special.psi(components) - special.psi(totals)
    )
    return twin


def malda(components, **params):
    params = {**PRIORS, **EXACT, "random_state": 0, **params}
    return MALDA(K, components_init=components, **acting(**params))


# Steps --------------------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("n_passes", [1, 3])
def test_batch_steps_are_those_of_scikit_learn(X, components, n_ranks, n_passes):
    # A rate of 1 for all documents makes an online step a batch step.
    rate_of_1 = {"learning_decay": 0.0, "total_samples": len(X)}
    twin = scikit_learn(X, components, **rate_of_1, **LONG)
    for _ in range(n_passes):
        twin.partial_fit(X)
    model = malda(
        components, learning_method="batch", max_iter=n_passes, n_ranks=n_ranks, **LONG
    ).fit(X)
    np.testing.assert_allclose(model.components_, twin.components_, rtol=1e-6)


@pytest.mark.parametrize("paradigm", ["model", "gradient"])
def test_online_steps_are_those_of_scikit_learn(X, components, paradigm):
    rates = {"learning_decay": 0.6, "learning_offset": 3.0}
    ours = {**ONE_ROUND, "paradigm": paradigm, "word_weights": "variational"}
    twin = scikit_learn(X, components, total_samples=len(X), **rates, **LONG)
    for _ in range(3):
        twin.partial_fit(X)
    model = malda(components, max_iter=3, **ours, **rates, **LONG).fit(X)
    np.testing.assert_allclose(model.components_, twin.components_, rtol=1e-6)
    assert model.n_batch_iter_ == twin.n_batch_iter_ == 4


@pytest.mark.parametrize("paradigm", ["model", "gradient"])
def test_partial_fit_is_that_of_scikit_learn(X, components, paradigm):
    twin = scikit_learn(X, components, total_samples=500, **LONG)
    ours = {"paradigm": paradigm, "word_weights": "variational"}
    model = malda(components, total_samples=500, **ours, **LONG)
    for part in (X[:20], X[20:25], X[25:]):
        twin.partial_fit(part)
        model.partial_fit(part)
        np.testing.assert_allclose(model.components_, twin.components_, rtol=1e-6)
        assert model.n_batch_iter_ == twin.n_batch_iter_


@pytest.mark.parametrize("n_ranks", [2, 5])
@pytest.mark.parametrize(
    "params",
    [{"paradigm": "gradient"}, {"learning_method": "batch"}],
    ids=["gradient", "batch"],
)
def test_sums_do_not_depend_on_the_number_of_ranks(X, components, params, n_ranks):
    params = {"max_iter": 4, "batch_size": 40, "doc_topic_prior": "auto", **params}
    one = malda(components, **params).fit(X)
    several = malda(components, n_ranks=n_ranks, **params).fit(X)
    np.testing.assert_allclose(several.components_, one.components_, rtol=1e-10)
    np.testing.assert_allclose(several.doc_topic_prior_, one.doc_topic_prior_, 1e-10)
    assert several.bound_ == pytest.approx(one.bound_, rel=1e-12)


# Evaluation ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(X):
    # scikit-learn takes other ways to the same optima of the documents.
    params = {**PRIORS, **EXACT, **LONG, "random_state": 0}
    return MALDA(K, max_iter=4, n_ranks=2, **params).fit(X)


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_evaluations_are_those_of_scikit_learn(fitted, X, container):
    twin, rows = fitted.to_sklearn(), container(X)
    assert fitted.score(rows) == pytest.approx(twin.score(X), rel=1e-9)
    assert fitted.perplexity(rows) == pytest.approx(twin.perplexity(X), rel=1e-9)
    np.testing.assert_allclose(fitted.transform(rows), twin.transform(X), rtol=1e-6)
    gamma = fitted.transform(rows, normalize=False)
    np.testing.assert_allclose(gamma, twin._unnormalized_transform(X), rtol=1e-6)
    # Every word has been drawn from some topic.
    words = gamma.sum(axis=1) - K * PRIORS["doc_topic_prior"]
    np.testing.assert_allclose(words, X.sum(axis=1), atol=1e-9)
    assert fitted.bound_ == pytest.approx(twin.perplexity(X), rel=1e-9)
    np.testing.assert_allclose(
        fitted.exp_dirichlet_component_, twin.exp_dirichlet_component_, rtol=1e-12
    )


@pytest.mark.parametrize("total_samples", [10, 1e4])
def test_perplexity_of_a_sample(X, total_samples):
    params = {**PRIORS, **EXACT, **LONG, "total_samples": total_samples}
    model = MALDA(K, max_iter=2, **params).fit(X)
    twin = model.to_sklearn()
    value = model.perplexity(X[:30], sub_sampling=True)
    assert value == pytest.approx(twin.perplexity(X[:30], sub_sampling=True), rel=1e-9)
    assert abs(value - model.perplexity(X[:30])) > 0.1


def test_single_precision_is_near(X, components, monkeypatch):
    params = {"max_iter": 4, "n_ranks": 2, "batch_size": 40, "local_batch_size": 10}
    fitted = malda(components, **params).fit(X)
    monkeypatch.setattr("dask_ma.topics._fitted.DIGAMMA_THRESHOLD", 9)
    model = malda(components, **params, dtype="float32").fit(X)
    assert model.components_.dtype == model.transform(X).dtype == np.float32
    np.testing.assert_allclose(model.components_, fitted.components_, rtol=1e-3)
    np.testing.assert_allclose(model.transform(X), fitted.transform(X), atol=1e-3)
    for method in ("bound", "completion"):
        expected = fitted.perplexity(X, method=method)
        assert model.perplexity(X, method=method) == pytest.approx(expected, rel=1e-4)


def expectations(model, X):
    """Shares of the topics in documents, by scikit-learn, and of words in topics."""
    components = model.components_
    return model.to_sklearn().transform(X), components / components.sum(1)[:, None]


def test_log_likelihood_word_by_word(fitted, X):
    theta, beta = expectations(fitted, X)
    value = sum(
        X[d, w] * np.log(theta[d] @ beta[:, w])
        for d, w in zip(*X.nonzero(), strict=True)
    )
    assert fitted.log_likelihood(X) == pytest.approx(value, rel=1e-6)
    assert fitted.log_likelihood(sparse.csr_array(X)) == pytest.approx(value, rel=1e-6)


def slow_completion(model, X):
    """Every other word of a document is known, and the rest is to be predicted."""
    halves = np.zeros((2, *X.shape))
    for d, counts in enumerate(X.astype(int)):
        for i, word in enumerate(np.repeat(np.arange(len(counts)), counts)):
            halves[i % 2, d, word] += 1
    return halves_perplexity(model, *halves)


def halves_perplexity(model, known, rest):
    theta, beta = expectations(model, known)
    logs = [
        rest[d, w] * np.log(theta[d] @ beta[:, w])
        for d, w in zip(*rest.nonzero(), strict=True)
    ]
    return np.exp(-sum(logs) / rest.sum())


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_matrix])
def test_completion_word_by_word(fitted, X, container):
    value = fitted.perplexity(container(X), method="completion")
    assert value == pytest.approx(slow_completion(fitted, X), rel=1e-6)


def test_completion_of_real_counts(fitted, X):
    value = fitted.perplexity(0.3 * X, method="completion")
    expected = halves_perplexity(fitted, 0.15 * X, 0.15 * X)
    assert value == pytest.approx(expected, rel=1e-6)


def test_completion_does_not_depend_on_how_counts_are_stored(fitted, X):
    """Columns in another order, and zeros that are stored."""
    rows = sparse.csr_array(X)
    stored = sparse.csr_array(X + 1)
    stored.data -= 1
    turned = np.concatenate(
        [
            np.arange(a, b)[::-1]
            for a, b in zip(rows.indptr, rows.indptr[1:], strict=False)
        ]
    )
    parts = rows.data[turned], rows.indices[turned], rows.indptr
    backwards = sparse.csr_array(parts, shape=rows.shape)
    np.testing.assert_array_equal(backwards.toarray(), X)
    expected = fitted.perplexity(rows, method="completion")
    for other in (stored, backwards):
        value = fitted.perplexity(other, method="completion")
        assert value == pytest.approx(expected, rel=1e-9)


def test_good_topics_predict_better_than_poor_ones(X):
    params = {**PRIORS, "random_state": 0}
    held_out, _ = planted(40, seed=0)
    good = MALDA(K, max_iter=10, learning_method="batch", **params).fit(X)
    poor = MALDA(K, max_iter=0, **params).fit(X)
    for method in ("bound", "completion"):
        gain = poor.perplexity(held_out, method=method)
        assert good.perplexity(held_out, method=method) < 0.8 * gain


# Course -------------------------------------------------------------------------------


@pytest.mark.pairs
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("doc_topic_prior", [0.3, "auto"])
@pytest.mark.parametrize("topic_word_prior", [None, "auto"])
def test_the_bound_never_falls_in_batch_mode(
    X, seed, doc_topic_prior, topic_word_prior
):
    params = {"max_iter": 10, "evaluate_every": 1, "perp_tol": 0.0, **EXACT}
    more = {"mean_change_tol": 1e-8, "max_doc_update_iter": 2000, "n_ranks": 2}
    model = MALDA(
        K,
        learning_method="batch",
        doc_topic_prior=doc_topic_prior,
        topic_word_prior=topic_word_prior,
        random_state=seed,
        **params,
        **more,
    ).fit(X)
    values = np.array([record["perplexity"] for record in model.history_])
    assert len(values) == 10
    assert (np.diff(values) < 1e-9 * values[0]).all()
    assert values[-1] < values[0] - 0.1


def affinity(model, topics):
    """Hellinger affinity of the pair of topics that agree least."""
    own = model.components_ / model.components_.sum(axis=1, keepdims=True)
    affinities = np.sqrt(own) @ np.sqrt(topics).T
    return affinities[linear_sum_assignment(affinities, maximize=True)].min()


@pytest.mark.each
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"learning_method": "online"},
        {"paradigm": "gradient"},
        {"learning_method": "batch"},
    ],
    ids=["default", "model", "gradient", "batch"],
)
@pytest.mark.parametrize("n_ranks", [1, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_planted_topics_are_found(params, n_ranks, seed):
    """From every start, by the defaults, whatever the number of ranks."""
    X, topics = planted(150)
    priors = {"doc_topic_prior": 0.2, "topic_word_prior": 0.1}
    model = MALDA(K, n_ranks=n_ranks, random_state=seed, **priors, **params).fit(X)
    # At a local optimum it is below 0.7.
    assert affinity(model, topics) > 0.9


def test_planted_topics_are_found_by_butterfly_mixing():
    X, topics = planted(400)
    priors = {"doc_topic_prior": 0.2, "topic_word_prior": 0.1}
    model = MALDA(K, mixing="butterfly", n_ranks=4, random_state=0, **priors).fit(X)
    assert affinity(model, topics) > 0.98


# Defaults -----------------------------------------------------------------------------


def articles(n_documents, n_words=200, n_topics=5, seed=0):
    """Documents of different lengths, from topics that share many of their words."""
    rng = np.random.default_rng(seed)
    common = 1 / np.arange(1.0, n_words + 1)
    topics = np.array([rng.dirichlet(20 * common) for _ in range(n_topics)])
    shares = rng.dirichlet(np.full(n_topics, 0.15), n_documents) @ topics
    lengths = rng.integers(20, 150, n_documents)
    counts = [
        rng.multinomial(n, p / p.sum()) for n, p in zip(lengths, shares, strict=True)
    ]
    return sparse.csr_array(np.array(counts, dtype=float))


@pytest.fixture(scope="module")
def corpus():
    """Training and held-out documents, and what scikit-learn makes of them."""
    X = articles(450)
    X, held_out = X[:300], X[300:]
    twin = LatentDirichletAllocation(5, random_state=0).fit(X)
    given = MALDA(5, components_init=twin.components_, max_iter=0, dtype="float64")
    return X, held_out, measures(given.fit(X), X, held_out)


def measures(model, X, held_out):
    """Perplexities: of held-out documents, by bound and completion, and of the others.

    Lower is better for all of them.
    """
    return np.array(
        [
            model.perplexity(held_out),
            model.perplexity(held_out, method="completion"),
            model.perplexity(X),
        ]
    )


@pytest.fixture(scope="module")
def measured(corpus):
    """``measured(n_ranks, **params)``: what a fit makes of the corpus, fitted once."""

    @cache
    def measure(n_ranks, **params):
        X, held_out, _ = corpus
        model = MALDA(5, n_ranks=n_ranks, random_state=0, **params)
        return measures(model.fit(X), X, held_out)

    return measure


@pytest.mark.parametrize(
    ("params", "n_ranks"), [({}, 3), ({"learning_method": "online"}, 8)], ids=str
)
def test_defaults_are_as_good_with_many_ranks(corpus, measured, params, n_ranks):
    """And at least as good as those of scikit-learn, after as many passes."""
    theirs = corpus[-1]
    found = {n: measured(n, **params) for n in (1, n_ranks)}
    for ours in found.values():
        # Which differ by as much from seed to seed.
        assert (ours < 1.05 * found[1]).all()
        assert (ours < 1.03 * theirs).all()


def test_large_batches_are_what_makes_many_ranks_worse(measured):
    """One round in a pass, of updates by all documents of a rank."""
    auto = measured(8, learning_method="online")
    fixed = measured(8, batch_size=4096, local_batch_size=256)
    assert fixed[0] > 1.015 * auto[0]
    assert fixed[2] > 1.01 * auto[2]


@pytest.mark.parametrize("learning_method", ["batch", "online"])
def test_the_prior_of_the_documents_is_learned(learning_method):
    alpha = np.array([0.1, 0.3, 0.6, 1.2])
    X, topics = planted(400, alpha=alpha, length=80)
    fits = [
        MALDA(
            K,
            components_init=1e4 * topics + 0.01,
            topic_word_prior=0.01,
            doc_topic_prior=prior,
            n_ranks=2,
            random_state=0,
            **acting(
                learning_method=learning_method,
                learning_offset=1.0,
                batch_size=80,
                local_batch_size=40,
            ),
        ).fit(X)
        for prior in ("auto", None)
    ]
    np.testing.assert_allclose(fits[0].doc_topic_prior_, alpha, rtol=0.3)
    assert fits[0].bound_ < fits[1].bound_
    assert fits[1].doc_topic_prior_ == 0.25


@pytest.mark.each
@pytest.mark.parametrize("learning_method", ["batch", "online"])
@pytest.mark.parametrize("eta", [0.05, 0.5])
def test_the_prior_of_the_words_is_learned(learning_method, eta):
    """That which the topics have been drawn from."""
    rng = np.random.default_rng(3)
    topics = rng.dirichlet(np.full(150, eta), K)
    shares = rng.dirichlet(np.full(K, 0.1), 200) @ topics
    X = np.array([rng.multinomial(100, p / p.sum()) for p in shares])
    params = {
        "components_init": 1e4 * topics + 0.01,
        "learning_method": learning_method,
        "word_weights": "variational",
    }
    fits = [
        MALDA(K, topic_word_prior=prior, n_ranks=2, random_state=0, **params).fit(X)
        for prior in ("auto", None)
    ]
    assert fits[0].topic_word_prior_ == pytest.approx(eta, rel=0.35)
    assert fits[0].bound_ < fits[1].bound_
    assert fits[1].topic_word_prior_ == 0.25


def test_a_matrix_guides_topics_to_words():
    """The words of each planted topic, told to a topic of that number."""
    X, topics = planted(200)
    prior = np.where(topics > 0.1, 20.0, 0.1)
    for seed in range(2):
        params = {"doc_topic_prior": 0.2, "random_state": seed, "n_ranks": 2}
        guided = MALDA(K, topic_word_prior=prior, **params).fit(X).components_
        shares = guided / guided.sum(axis=1, keepdims=True)
        affinities = np.sqrt(shares) @ np.sqrt(topics).T
        assert (affinities.argmax(axis=1) == range(K)).all()
        assert affinities.diagonal().min() > 0.97


@pytest.mark.filterwarnings("default:partial_fit has taken")
def test_a_stream_of_unknown_length_is_told_of():
    """Once, and only where the number of documents is nobody's choice."""
    X = np.random.default_rng(0).poisson(1.0, (30, 5))
    model = MALDA(n_components=2, random_state=0)
    with pytest.warns(UserWarning, match="30 documents .* set total_samples") as caught:
        model.partial_fit(X).partial_fit(X)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MALDA(n_components=2, total_samples=60, random_state=0).partial_fit(X)
