"""The rounds of MALDA against a slow loop, and lazy updates against dense ones."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from lda_parameters import acting
from scipy import optimize, sparse, special
from slow_documents import infer_document

from dask_ma import MALDA
from dask_ma.data import Block, Shard
from dask_ma.ma.lda._rounds import Rounds
from dask_ma.ma.lda._topics import Topics
from dask_ma.topics import _corpus
from dask_ma.topics._corpus import Corpus, Summary

N, V, K = 23, 15, 3
SEED = 4
BASE = {
    "max_iter": 3,
    "random_state": SEED,
    "dtype": "float64",
    "learning_offset": 2.0,
}


@pytest.fixture(autouse=True)
def exact_digamma(monkeypatch):
    """The function of SciPy, as the slow loops have it."""
    monkeypatch.setattr("dask_ma.topics._fitted.DIGAMMA_THRESHOLD", None)


@pytest.fixture(scope="module")
def X():
    """23 documents, some of them without words."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.5, 2.0, (N, V))).astype(float)
    counts[[2, 11]] = 0
    return counts


@pytest.fixture(scope="module")
def components():
    return np.random.default_rng(1).gamma(1.0, 4.0, (K, V)) + 0.01


# A slow reference ---------------------------------------------------------------------


def documents(X, components, prior, word_weights="mean"):
    """Topics of documents, and how often each topic has drawn each word."""
    totals = components.sum(axis=1, keepdims=True)
    if word_weights == "mean":
        weights = components / totals
    else:
        weights = np.exp(special.psi(components) - special.psi(totals))
    gammas, drawn = [], np.zeros_like(components)
    for counts in X:
        words = np.flatnonzero(counts)
        gamma, theta, norms, _ = infer_document(counts[words], weights.T[words], prior)
        drawn[:, words] += theta[:, None] * weights[:, words] * counts[words] / norms
        gammas.append(gamma)
    return np.array(gammas).reshape(-1, K), drawn


def expected_logs(gammas):
    """Of the documents' shares of the topics."""
    return special.psi(gammas) - special.psi(gammas.sum(axis=1, keepdims=True))


def slope(prior, mean_logs):
    """Of the likelihood that a prior gives such documents."""
    return special.psi(prior.sum()) - special.psi(prior) + mean_logs


class Simulation:
    """Algorithm 6 of the paper for all ranks in turn, with dense topics."""

    def __init__(self, X, components, n_ranks, **params):
        bounds = [len(X) * rank // n_ranks for rank in range(n_ranks + 1)]
        self.X = X
        self.shards = [np.arange(*b) for b in zip(bounds, bounds[1:], strict=False)]
        self.most = max(map(len, self.shards))
        self.components = [components.copy() for _ in self.shards]
        self.prior = np.full(K, 1 / K)
        self.params = {"learning_decay": 0.7, "mixing": "allreduce", **params}
        self.n_updates = self.n_rounds = self.n_learned = 0
        self.logs = []
        seed = np.random.RandomState(SEED).randint(2**31 - 1)
        self.seeds = [
            lambda n, rank=rank: np.random.SeedSequence(seed, spawn_key=(rank, n))
            for rank in range(n_ranks)
        ]

    def run(self, n_passes):
        n_rounds = math.ceil(len(self.X) / self.params["batch_size"])
        n_rounds = min(n_rounds, self.most)
        n_local = math.ceil(
            math.ceil(self.most / n_rounds) / self.params["local_batch_size"]
        )
        for n in range(n_passes):
            orders = [
                shard[np.random.default_rng(seed(n)).permutation(len(shard))]
                for shard, seed in zip(self.shards, self.seeds, strict=True)
            ]
            for i in range(n_rounds):
                own = [np.array_split(order, n_rounds)[i] for order in orders]
                for rank, rows in enumerate(own):
                    self.update(rank, np.array_split(rows, n_local))
                self.n_updates += n_local
                self.mix(own, i == n_rounds - 1)
                self.n_rounds += 1
            if self.params.get("learn_topics"):
                self.learn_topic_prior()
        return self.components

    def update(self, rank, batches):
        for number, rows in enumerate(batches, start=self.n_updates + 1):
            if not len(rows):
                continue
            kind = self.params.get("word_weights", "mean")
            gammas, drawn = documents(
                self.X[rows], self.components[rank], self.prior, kind
            )
            self.logs.extend(expected_logs(gammas))
            rate = (2.0 + number) ** -self.params["learning_decay"]
            shown = self.params["eta"] + len(self.X) / len(rows) * drawn
            self.components[rank] = (1 - rate) * self.components[rank] + rate * shown

    def mix(self, own, is_last):
        size = len(self.shards)
        if self.params["mixing"] == "allreduce" or is_last:
            shares = np.array([len(rows) for rows in own]) / sum(map(len, own))
            mean = sum(s * c for s, c in zip(shares, self.components, strict=True))
            self.components = [mean.copy() for _ in own]
            if self.params.get("learn"):
                self.learn_prior()
            return
        distance = 2 ** (self.n_rounds % max(1, math.ceil(math.log2(size))))
        before = self.components
        self.components = [
            (before[rank] + before[self.partner(rank, distance, size)]) / 2
            for rank in range(size)
        ]

    def learn_prior(self):
        """By the documents since it was learned last."""
        logs, self.logs = np.mean(self.logs, axis=0), []
        found = optimize.root(lambda z: slope(np.exp(z), logs), np.log(self.prior))
        assert found.success
        for number in range(self.n_learned + 1, self.n_updates + 1):
            rate = (2.0 + number) ** -self.params["learning_decay"]
            self.prior = (1 - rate) * self.prior + rate * np.exp(found.x)
        self.n_learned = self.n_updates

    def learn_topic_prior(self):
        """The number under which these topics are most likely; they move with it."""
        before, logs = self.params["eta"], expected_logs(self.components[0])

        def minus_likelihood(log):
            eta = np.exp(log)
            value = special.gammaln(V * eta) - V * special.gammaln(eta)
            return -K * value - (eta - 1) * logs.sum()

        found = optimize.minimize_scalar(
            minus_likelihood, (-3.0, 1.0), options={"xtol": 1e-12}
        )
        self.params["eta"] = np.exp(found.x)
        shift = self.params["eta"] - before
        self.components = [own + shift for own in self.components]

    @staticmethod
    def partner(rank, distance, size):
        is_power_of_2 = size > 1 and not size & (size - 1)
        return rank ^ distance if is_power_of_2 else (rank - distance) % size


@pytest.fixture(params=[0, 1], ids=["all words", "words of the round"])
def averaged(request, monkeypatch):
    """Both ways to average; which one is taken depends on the words otherwise."""
    monkeypatch.setattr("dask_ma.ma.lda._rounds._MOST_WORDS", request.param)


@pytest.mark.each(2)
@pytest.mark.parametrize("mixing", ["allreduce", "butterfly"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("batch_size", "local_batch_size"), [(9, 2), (4096, 3), (1, 1), (7, 100)]
)
@pytest.mark.parametrize("word_weights", ["mean", "variational"])
@pytest.mark.usefixtures("averaged")
def test_models_are_averaged(
    X, components, mixing, n_ranks, batch_size, local_batch_size, word_weights
):
    params = {"batch_size": batch_size, "local_batch_size": local_batch_size}
    params |= {"mixing": mixing, "word_weights": word_weights}
    model = MALDA(K, components_init=components, n_ranks=n_ranks, **BASE, **params).fit(
        X
    )
    simulation = Simulation(X, components, n_ranks, eta=1 / K, **params)
    expected = simulation.run(3)
    np.testing.assert_allclose(model.components_, expected[0], rtol=1e-9)
    assert model.n_batch_iter_ == 1 + simulation.n_updates
    assert len(model.history_) == simulation.n_rounds


ETAS = {
    "4": 4.0,
    "vector": np.geomspace(0.02, 9, V),
    "matrix": np.random.default_rng(7).gamma(0.5, 2.0, (K, V)) + 0.01,
}


@pytest.mark.each(2)
@pytest.mark.parametrize("eta", ETAS.values(), ids=ETAS)
@pytest.mark.parametrize("learning_decay", [0.0, 0.51, 1.0])
@pytest.mark.usefixtures("averaged")
def test_rates_and_priors(X, components, eta, learning_decay):
    """Among them a rate of 1, and parameters below the prior."""
    params = {"learning_decay": learning_decay, "batch_size": 8, "local_batch_size": 2}
    model = MALDA(
        K,
        components_init=components,
        topic_word_prior=eta,
        n_ranks=2,
        **BASE,
        **params,
    ).fit(X)
    expected = Simulation(X, components, 2, eta=eta, **params).run(3)
    np.testing.assert_allclose(model.components_, expected[0], rtol=1e-9)
    assert (components < eta).any()


@pytest.mark.pairs
@pytest.mark.parametrize("mixing", ["allreduce", "butterfly"])
@pytest.mark.parametrize("n_ranks", [1, 4])
@pytest.mark.usefixtures("averaged")
def test_the_prior_is_learned_with_the_topics(X, components, mixing, n_ranks):
    params = {"batch_size": 8, "local_batch_size": 2, "mixing": mixing}
    model = MALDA(
        K,
        components_init=components,
        doc_topic_prior="auto",
        n_ranks=n_ranks,
        **BASE,
        **params,
    ).fit(X)
    simulation = Simulation(X, components, n_ranks, eta=1 / K, learn=True, **params)
    expected = simulation.run(3)
    np.testing.assert_allclose(model.doc_topic_prior_, simulation.prior, rtol=1e-5)
    np.testing.assert_allclose(model.components_, expected[0], rtol=1e-4)


@pytest.mark.parametrize("mixing", ["allreduce", "butterfly"])
@pytest.mark.parametrize("n_ranks", [1, 4])
def test_the_prior_of_the_words_is_learned_with_the_topics(
    X, components, mixing, n_ranks
):
    params = {"batch_size": 8, "local_batch_size": 2, "mixing": mixing}
    model = MALDA(
        K,
        components_init=components,
        topic_word_prior="auto",
        n_ranks=n_ranks,
        **BASE,
        **params,
    ).fit(X)
    simulation = Simulation(
        X, components, n_ranks, eta=1 / K, learn_topics=True, **params
    )
    expected = simulation.run(3)
    assert isinstance(model.topic_word_prior_, float)
    assert model.topic_word_prior_ == pytest.approx(simulation.params["eta"], rel=1e-5)
    assert abs(model.topic_word_prior_ - 1 / K) > 0.01
    np.testing.assert_allclose(model.components_, expected[0], rtol=1e-5)


def test_only_words_of_the_round_travel(monkeypatch):
    """The others are the same on all ranks, but for a number."""
    counts = np.random.default_rng(0).integers(1, 4, (40, 4))
    wide = sparse.csr_array((counts.ravel(), np.arange(160), np.arange(0, 161, 4)))
    wide.resize((40, 5000))
    params = {**BASE, "batch_size": 20, "local_batch_size": 5, "n_ranks": 2}
    model = MALDA(K, **params, learning_method="online", evaluate_every=0).fit(wide)
    for record in model.history_:
        # A flag for each word, and rows of 80 words.
        assert 5000 < record["bytes_shared"] / 2 < 5000 + 80 * K * 8 + 1000
    monkeypatch.setattr("dask_ma.ma.lda._rounds._MOST_WORDS", 0)
    dense = MALDA(K, **params, learning_method="online", evaluate_every=0).fit(wide)
    assert dense.history_[0]["bytes_shared"] > 2 * 5000 * K * 8
    np.testing.assert_allclose(model.components_, dense.components_, rtol=1e-8)


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("paradigm", ["model", "gradient"])
def test_a_matrix_of_equal_rows_is_a_vector(X, n_ranks, paradigm):
    """To the last bit: of topics, bounds and proportions."""
    params = {**BASE, "paradigm": paradigm, "n_ranks": n_ranks}
    row = np.geomspace(0.02, 9, V)
    vector, matrix = (
        MALDA(K, topic_word_prior=prior, **params).fit(X)
        for prior in (row, np.tile(row, (K, 1)))
    )
    np.testing.assert_array_equal(matrix.components_, vector.components_)
    assert matrix.topic_word_prior_.shape == (K, V)
    assert matrix.bound_ == pytest.approx(vector.bound_, rel=1e-13)
    assert matrix.score(X) == pytest.approx(vector.score(X), rel=1e-13)
    assert matrix.bound_ == pytest.approx(matrix.perplexity(X), rel=1e-9)


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("learning_method", ["online", "batch"])
def test_the_learned_prior_is_that_of_highest_likelihood(
    X, components, n_ranks, learning_method
):
    model = MALDA(
        K,
        components_init=components,
        doc_topic_prior="auto",
        n_ranks=n_ranks,
        **acting(
            learning_method=learning_method,
            local_batch_size=N,
            **{**BASE, "max_iter": 1},
        ),
    ).fit(X)
    kind = "variational" if learning_method == "batch" else "mean"
    gammas, _ = documents(X, components, np.full(K, 1 / K), kind)
    logs = expected_logs(gammas)
    rate = 1.0 if learning_method == "batch" else 3**-0.7
    best = (model.doc_topic_prior_ - (1 - rate) / K) / rate
    np.testing.assert_allclose(slope(best, logs.mean(axis=0)), 0, atol=1e-5)
    assert abs(slope(np.full(K, 1 / K), logs.mean(axis=0))).max() > 0.05


def test_first_topics_are_drawn_around_1():
    """Without a pass they are all there is; every start is another."""
    X = np.ones((2, 3000))
    models = [
        MALDA(K, max_iter=0, random_state=seed, dtype=dtype, topic_word_prior=2.5).fit(
            X
        )
        for seed, dtype in ((0, "float32"), (0, "float64"), (1, "float64"))
    ]
    for model in models:
        assert model.components_.dtype == model.dtype
        assert model.components_.mean() == pytest.approx(1, abs=0.01)
        assert model.components_.std() == pytest.approx(0.1, rel=0.05)
        rows = np.corrcoef(model.components_)[np.triu_indices(K, 1)]
        assert abs(rows).max() < 0.1
    assert not np.allclose(models[1].components_, models[2].components_)


def test_all_counts_weigh(X):
    """A document given twice weighs as two."""
    params = acting(**BASE, learning_method="batch")
    start = {"components_init": np.random.default_rng(0).gamma(9.0, 1.0, (K, V))}
    twice = MALDA(K, **params, **start).fit(np.vstack([X, X[:5]]))
    once = MALDA(K, **params, **start).fit(X)
    assert twice.components_.sum() - K * V / K == pytest.approx(X.sum() + X[:5].sum())
    assert once.components_.sum() - K * V / K == pytest.approx(X.sum())


# Lazy updates -------------------------------------------------------------------------


def rates(kind, n):
    if kind == "paper":
        return [(10 + t) ** -0.7 for t in range(1, n + 1)]
    if kind == "some 1":
        return [1.0 if t % 17 == 3 else 0.05 for t in range(n)]
    return [0.9] * n  # the scale is brought back to 1 every six updates


def columns(prior):
    """As topics take it: a row per word, a column per topic."""
    return np.atleast_2d(np.asarray(prior, dtype=np.float64)).T


PRIORS = [0.01, 3.0, np.geomspace(1e-3, 5, V), ETAS["matrix"]]
PRIOR_IDS = ["0.01", "3", "vector", "matrix"]


@pytest.mark.pairs
@pytest.mark.parametrize("prior", PRIORS, ids=PRIOR_IDS)
@pytest.mark.parametrize("kind", ["paper", "some 1", "large"])
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-11), (np.float32, 2e-4)])
def test_lazy_updates_are_dense_updates(prior, kind, dtype, rtol):
    rng = np.random.default_rng(2)
    column = columns(prior)
    dense = rng.gamma(2.0, 1.0, (V, K))
    topics = Topics((dense - column).astype(dtype), column)
    for number, rate in enumerate(rates(kind, 100)):
        words = np.sort(rng.choice(V, rng.integers(1, V + 1), replace=False))
        drawn = rng.gamma(0.5, 2.0, (len(words), K))
        dense = (1 - rate) * dense + rate * column
        dense[words] += rate * 7.5 * drawn
        topics.update(words, drawn.astype(dtype), rate, 7.5)
        np.testing.assert_allclose(topics.parameters(slice(None)), dense, rtol)
        np.testing.assert_allclose(topics.parameters(words), dense[words], rtol)
        np.testing.assert_allclose(topics.totals, dense.sum(axis=0), rtol)
        if number % 90 == 89:
            np.testing.assert_allclose(topics.settle() + column, dense, rtol, rtol)
            topics.reset(topics.excess.copy())
    assert topics.totals.dtype == np.float64


@pytest.mark.parametrize("rate", [0.05, 0.6, 0.97, 1.0])
def test_means_of_topics_that_began_alike(rate):
    """Over 40 rounds of three ranks, one of which leaves out its second update."""
    rng, shares = np.random.default_rng(3), (0.5, 0.3, 0.2)
    start = rng.gamma(2.0, 1.0, (V, K))
    ranks = [Topics(start.copy(), np.full((1, 1), 0.1)) for _ in shares]
    dense = [start.copy() for _ in shares]
    was_alike = []
    for _ in range(40):
        alike = {topics.begin_alike([rate, rate]) for topics in ranks}
        assert len(alike) == 1
        was_alike += alike
        for number, (topics, own) in enumerate(zip(ranks, dense, strict=True)):
            for _ in range(1 + (number < 2)):
                words = np.sort(rng.choice(6, 3, replace=False))
                drawn = rng.gamma(0.5, 2.0, (3, K))
                own *= 1 - rate
                own[words] += rate * 7.5 * drawn
                topics.update(words, drawn, rate, 7.5)
        mean = sum(share * own for share, own in zip(shares, dense, strict=True))
        dense = [mean.copy() for _ in shares]
        if was_alike[-1]:
            parts = [
                topics.share(np.arange(6), share)
                for topics, share in zip(ranks, shares, strict=True)
            ]
            rows, rest = (sum(part) for part in zip(*parts, strict=True))
            for topics in ranks:
                topics.merge(np.arange(6), rows, rest)
        else:
            for topics in ranks:
                topics.reset(mean.copy())
        for topics in ranks:
            np.testing.assert_allclose(topics.parameters(slice(None)), mean + 0.1)
            np.testing.assert_allclose(topics.totals, mean.sum(axis=0) + V * 0.1)
    assert all(was_alike) == (rate < 1)
    ranks[0].add_up()
    np.testing.assert_array_equal(
        ranks[0].totals, ranks[0].excess.sum(axis=0) + V * 0.1
    )


def test_settle_multiplies_what_is_beyond_the_prior():
    topics = Topics(np.full((2, 1), 4.0), np.array([[0.5]]))
    topics.update(np.array([1]), np.ones((1, 1)), 0.5, 2.0)
    excess = topics.settle(0.5)
    assert excess.tolist() == [[1.0], [1.5]]
    assert topics.parameters(slice(None)).tolist() == [[1.5], [2.0]]
    assert topics.totals.tolist() == [3.5]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parameters_are_positive_after_rounding(dtype):
    """What is a bit above 0 must not become 0, of which there is no logarithm."""
    start = np.full((2, 1), 1e-12)
    topics = Topics((start - 0.3).astype(dtype), np.array([[0.3]]))
    for words in (slice(None), np.array([0])):
        assert (topics.parameters(words) > 0).all()
        weights = topics.weights(words, None).weights
        assert np.isfinite(weights).all()


@pytest.mark.parametrize("prior", PRIORS, ids=PRIOR_IDS)
@pytest.mark.parametrize("bounds", [[0, V], [0, 4, 4, 9, V]], ids=str)
def test_bound_of_topics(prior, bounds):
    """The divergence between Dirichlet distributions, topic by topic."""
    parameters = np.random.default_rng(3).gamma(2.0, 2.0, (V, K))
    topics = Topics(parameters - columns(prior), columns(prior))
    value = sum(
        topics.bound(a, b) for a, b in zip(bounds, bounds[1:], strict=False) if b > a
    )
    expected = 0.0
    for own, eta in zip(parameters.T, np.broadcast_to(prior, (K, V)), strict=True):
        expected += special.gammaln(eta.sum()) - special.gammaln(eta).sum()
        expected -= special.gammaln(own.sum()) - special.gammaln(own).sum()
        expected += (eta - own) @ (special.psi(own) - special.psi(own.sum()))
    assert value == pytest.approx(expected, rel=1e-12)


# Documents of a rank ------------------------------------------------------------------


@pytest.mark.parametrize("n_blocks", [1, 4])
def test_batches_hold_their_documents(X, n_blocks):
    blocks = [
        Block(sparse.csr_array(part), None, None, index, None)
        for index, part in enumerate(np.array_split(X, n_blocks))
    ]
    shard = Shard(blocks, V, X.dtype)
    corpus = Corpus(shard, [Summary(N, X.sum())], np.dtype(np.float32))
    for rows in (np.array([5, 0, 22]), np.array([], dtype=int), np.arange(N)[::-1]):
        batch = corpus.batch(rows)
        dense = np.zeros((len(rows), V))
        dense[:, batch.words] = batch.X.toarray()
        np.testing.assert_array_equal(dense, X[np.sort(rows)])
        assert batch.X.dtype == np.float32
        assert (X[rows][:, batch.words].sum(axis=0) > 0).all()


@pytest.fixture
def large_corpus(X, monkeypatch):
    """Eight blocks, of which three and a half take what is shuffled together."""
    parts = np.array_split(sparse.csr_array(X).toarray(), 8)
    blocks = [Block(part, None, None, i, None) for i, part in enumerate(parts)]
    monkeypatch.setattr(_corpus, "_SHUFFLED_BYTES", 7 * parts[0].nbytes // 2)
    dtype = np.dtype(np.float64)
    corpus = Corpus(Shard(blocks, V, X.dtype), [Summary(N, X.sum())], dtype)
    return corpus, np.repeat(np.arange(8), list(map(len, parts)))


def test_documents_of_large_blocks_come_together(large_corpus):
    """So that each is read once from a disk; which ones, changes from pass to pass."""
    corpus, block_of = large_corpus
    context = SimpleNamespace(seed=np.random.SeedSequence(0))
    orders = [corpus.shuffled(context, n_passes) for n_passes in (0, 0, 1)]
    np.testing.assert_array_equal(orders[0], orders[1])
    assert (orders[0] != orders[2]).any()
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(N))
        seen = block_of[order]
        for block in range(8):
            first, last = np.flatnonzero(seen == block)[[0, -1]]
            assert last - first < 9  # documents of three blocks
        assert np.count_nonzero(np.diff(seen)) > 8


def test_blocks_are_handed_back_once_documents_of_others_follow(
    large_corpus, monkeypatch
):
    corpus, block_of = large_corpus
    returned = []
    monkeypatch.setattr(_corpus, "hand_back", returned.append)
    first, second, third = (np.flatnonzero(block_of == i) for i in range(3))
    corpus.batch(first[:1])
    corpus.batch(np.concatenate([first[1:], second[:1]]))
    assert not returned
    corpus.batch(second[1:])
    assert len(returned) == 1 and len(returned[0]) == len(first)
    corpus.batch(third)
    assert len(returned) == 2


@pytest.mark.parametrize("n_rounds", [1, 2, 5, 7])
def test_rounds_share_documents_out_evenly(n_rounds):
    order = np.random.default_rng(0).permutation(23)
    rounds = SimpleNamespace(n_rounds=n_rounds)
    parts = [Rounds.share_out(rounds, order, i) for i in range(n_rounds)]
    for part, expected in zip(parts, np.array_split(order, n_rounds), strict=True):
        np.testing.assert_array_equal(part, expected)
