"""Chains of topics against exact posteriors, a joint test, and a plain sampler."""

import random
from itertools import product

import numpy as np
import pytest
from scipy import special

from dask_ma.data import Room
from dask_ma.kernels import (
    DocumentWeights,
    FilledCells,
    TermWeights,
    Tile,
    TileSampler,
    TokenRun,
    TokenTables,
    TopicCounts,
    accept_topics,
    move_singly,
    offer_of_documents,
    offer_of_words,
    polya_sum,
)
from dask_ma.schmp.topics._documents import Documents
from dask_ma.schmp.topics._exact import ExactMoves
from dask_ma.schmp.topics._layout import tokens_of_blocks
from dask_ma.schmp.topics._metropolis import MetropolisMoves
from dask_ma.schmp.topics._moves import Priors

SAMPLERS = "exact", "metropolis"


def chain_of(tokens, n_words, topics, alpha, beta, sampler="exact"):
    """A sampler whose tokens have these topics, with counts of the words."""
    lengths = [len(words) for words in tokens]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    words = np.concatenate(tokens).astype(np.int32)
    keys = np.arange(len(tokens))
    documents = Documents(keys, starts, words, len(tokens), len(words))
    if sampler == "exact":
        moves = ExactMoves(documents, len(alpha), Room())
    else:
        moves = MetropolisMoves(documents, len(alpha), Room(), 2)
    [block] = tokens_of_blocks(documents, [np.arange(n_words)], n_words)
    moves.add_block(0, block)
    moves.topics[0][:] = topics[moves.places(0)]
    if sampler == "metropolis":  # offers that change nothing, as in a fit
        moves._offered[0][:] = moves.topics[0][:, np.newaxis]
    counts = np.zeros((n_words, len(alpha)), dtype=np.int32)
    np.add.at(counts, (words, topics), 1)
    totals, counts = counts.sum(axis=0).astype(np.int64), moves.as_counts(counts)
    full = np.broadcast_to(beta, (n_words, len(alpha))).astype(np.float32)
    priors = Priors(alpha, full, full.sum(axis=0, dtype=np.float64))
    moves.begin_rotation(priors, totals, np.random.default_rng(0))
    return moves, counts, totals, priors


def topics_of(moves):
    """Topics of the tokens, in the order of the documents."""
    topics = np.empty(len(moves.topics[0]), dtype=np.int32)
    topics[moves.places(0)] = moves.topics[0]
    return topics


def joint(tokens, n_words, topics, alpha, beta):
    """Log probability of words and topics."""
    K = len(alpha)
    full = np.broadcast_to(beta, (n_words, K))
    of_words, value, first = np.zeros((n_words, K), int), 0.0, 0
    for words in tokens:
        own = topics[first : first + len(words)]
        first += len(words)
        counts = np.bincount(own, minlength=K)
        value += polya_sum(counts, alpha) - polya_sum(counts.sum(), alpha.sum())
        np.add.at(of_words, (words, own), 1)
    value += polya_sum(of_words, full)
    return value - polya_sum(of_words.sum(axis=0), full.sum(axis=0))


TINY = [np.array([0, 1]), np.array([0, 0, 2])]
ALPHA = np.array([0.3, 0.8])
BETA = np.array([[0.5, 0.2], [0.3, 0.9], [0.4, 0.4]])


STATES = np.array(list(product(range(2), repeat=5)), dtype=np.int32)


def posterior(beta):
    """Probabilities of all 32 assignments of topics to the tokens of the corpus."""
    logs = np.array([joint(TINY, 3, state, ALPHA, beta) for state in STATES])
    return np.exp(logs - special.logsumexp(logs))


POWERS = 2 ** np.arange(4, -1, -1)  # by which an assignment is a number


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_posterior_of_a_tiny_corpus(sampler):
    """Total variation from the probabilities of all 32 assignments."""
    n_draws, exact = 24_000, posterior(BETA)
    rng, start = np.random.default_rng(1), np.zeros(5, dtype=np.int32)
    moves, counts, totals, priors = chain_of(TINY, 3, start, ALPHA, BETA, sampler)
    found, powers = np.zeros(32), POWERS[moves.places(0)]
    for _ in range(n_draws):
        moves.visit(0, counts, priors, totals, rng)
        found[moves.topics[0] @ powers] += 1
    assert np.abs(found / n_draws - exact).sum() / 2 < 0.02


@pytest.mark.slow
def test_the_posterior_of_a_tiny_corpus_in_many_single_moves():
    """Total variation of 100,000 draws, of tokens moved one after the other."""
    n_draws, exact = 100_000, posterior(BETA)
    rng, topics = np.random.default_rng(7), np.zeros(5, dtype=np.int64)
    documents = np.repeat(np.arange(2), [len(words) for words in TINY])
    words, found = np.concatenate(TINY), np.zeros(32)
    for _ in range(n_draws):
        tables = TokenTables(
            *(
                np.bincount(2 * owners + topics, minlength=2 * n).reshape(n, 2)
                for owners, n in ((documents, 2), (words, 3))
            ),
            np.bincount(topics, minlength=2),
            ALPHA,
            BETA,
            BETA.sum(axis=0),
        )
        topics = move_singly(documents, words, topics, tables, 2, rng)
        found[topics @ POWERS] += 1
    assert np.abs(found / n_draws - exact).sum() / 2 < 0.02


class Together:
    """Chains of the tiny corpus, whose tokens at one place are moved together.

    The prior is mostly that of words that do not occur, so chains know nothing of each
    other by the totals.
    """

    far = 1e9

    def __init__(self, n_chains, beta, rng):
        self.chains, self.rng = np.arange(n_chains), rng
        owners = np.repeat([0, 1], [2, 3]), np.concatenate(TINY)
        self.documents, self.words = (
            (n * self.chains[:, np.newaxis] + own).astype(np.int32)
            for n, own in zip((2, 3), owners, strict=True)
        )
        self.topics = rng.integers(0, 2, (n_chains, 5), dtype=np.int32)
        shape = (-1, 2) if beta.ndim == 2 else (-1,)
        prior = np.tile(beta.ravel(), n_chains).reshape(shape)
        self.prior, self.totals = prior.astype(np.float32), np.full(2, self.far)
        self.lengths = np.tile([2, 3], n_chains)

    def counts(self, owners):
        """Tokens of each owner and topic."""
        cells = (2 * owners + self.topics).ravel()
        return np.bincount(cells, minlength=2 * owners.max() + 2).reshape(-1, 2)

    def move(self, place):
        """Words offer and documents accept, and the other way round."""
        of_documents, of_words = (
            TokenRun(0, int(owners.max()) + 1, owners[:, place])
            for owners in (self.documents, self.words)
        )
        own, rng = self.topics[:, place].copy(), self.rng
        cells = FilledCells.of(self.counts(self.words))
        offered = offer_of_words(of_words, own, cells, 2, self.prior, 2, rng)
        counts, alpha = self.counts(self.documents), ALPHA.astype(np.float32)
        weights = DocumentWeights(of_documents, counts, alpha, self.totals)
        own = self.topics[:, place] = accept_topics(own, offered, weights, rng)
        at, urn = 5 * self.chains + place, self.topics.ravel()
        offered = offer_of_documents(of_documents, urn, at, self.lengths, ALPHA, 2, rng)
        counts = self.counts(self.words)
        weights = TermWeights(of_words, counts, self.prior, self.totals)
        self.topics[:, place] = accept_topics(own, offered, weights, rng)


@pytest.mark.parametrize("by_topic", [False, True])
def test_the_posterior_of_a_tiny_corpus_in_many_moves_together(by_topic):
    """Total variation of 100,000 draws, of tokens that are moved with many others."""
    n_chains, n_draws, found = 2500, 100_000, np.zeros(32)
    beta = BETA if by_topic else BETA[:, [0, 0]]
    logs = [joint(TINY, 3, state, ALPHA, beta) for state in STATES]
    for n, state in enumerate(STATES):  # totals do not matter here
        logs[n] += polya_sum(np.bincount(state, minlength=2), beta.sum(axis=0))
    exact = np.exp(logs - special.logsumexp(logs))
    given = beta if by_topic else beta[:, 0]
    chains = Together(n_chains, given, np.random.default_rng(5))
    for sweep in range(-20, n_draws // n_chains):
        for place in range(5):
            chains.move(place)
        if sweep >= 0:
            found += np.bincount(chains.topics @ POWERS, minlength=32)
    assert found.sum() >= n_draws
    assert np.abs(found / found.sum() - exact).sum() / 2 < 0.02


def many_chains(n_chains, alpha, beta, rng):
    """Chains of the tiny corpus side by side, each with words and topics of its own.

    A word has no prior of topics that are not its chain's, so chains know nothing of
    each other, whatever is drawn in one tile: the tokens at one place of all of them.
    """
    n_topics, n_words = len(alpha), len(beta)
    documents = np.repeat(np.arange(len(TINY)), [len(words) for words in TINY])
    documents, words = (
        (np.arange(n_chains) * step + own[:, np.newaxis]).ravel()
        for own, step in (
            (documents, len(TINY)),
            (np.concatenate(TINY), n_words),
        )
    )
    chains = np.tile(np.arange(n_chains), 5)
    topics = rng.integers(0, n_topics, 5 * n_chains) + n_topics * chains
    sampler = TileSampler(n_topics * n_chains)
    assert sampler.width == n_topics * n_chains
    of_documents = np.tile(alpha, (len(TINY) * n_chains, n_chains)).astype(np.float32)
    np.add.at(of_documents, (documents, topics), 1)
    of_words = np.kron(np.eye(n_chains), beta).astype(np.float32)
    np.add.at(of_words, (words, topics), 1)
    counts = TopicCounts(
        topics.astype(np.int32),
        of_documents,
        of_words,
        np.bincount(topics, minlength=sampler.width),
        np.tile(beta.sum(axis=0), n_chains),
    )
    nothing = np.empty(0, dtype=np.int32)
    tiles = [
        Tile(0, len(of_documents), part, documents[part], words[part], nothing)
        for part in (slice(n, n + n_chains) for n in range(0, len(topics), n_chains))
    ]
    return sampler, tiles, counts


def test_the_posterior_of_a_tiny_corpus_in_many_draws():
    """Total variation of 100,000 draws from the probabilities of all assignments."""
    rng, n_chains, n_draws = np.random.default_rng(4), 64, 100_000
    exact = posterior(BETA)
    sampler, tiles, counts = many_chains(n_chains, ALPHA, BETA, rng)
    found, n_sweeps = np.zeros(32), -(-n_draws // n_chains)
    for sweep in range(-20, n_sweeps):
        for tile in tiles:
            sampler.draw(tile, counts, rng)
        if sweep >= 0:
            own = counts.topics.reshape(5, n_chains) % 2
            found += np.bincount(POWERS @ own, minlength=32)
    assert found.sum() >= n_draws
    assert np.abs(found / found.sum() - exact).sum() / 2 < 0.01


@pytest.mark.parametrize("others", [0, 2**20, 2**21 - 8, 2**24 + 1])
def test_counts_are_exact_however_large(others):
    """Tokens of other ranks are among those of a word; floats cannot hold them all."""
    rng = np.random.default_rng(0)
    tokens = [np.sort(rng.integers(0, 5, 30)) for _ in range(8)]
    topics = rng.integers(0, 2, 240).astype(np.int32)
    moves, counts, totals, priors = chain_of(tokens, 5, topics, ALPHA, 0.37)
    counts += np.int32(others)
    totals += 5 * others
    for _ in range(20):
        before, last = totals.copy(), topics_of(moves)
        change, n_changed = moves.visit(0, counts, priors, totals, rng)
        topics = topics_of(moves)
        own = np.zeros((5, 2), dtype=int)
        np.add.at(own, (np.concatenate(tokens), topics), 1)
        np.testing.assert_array_equal(counts, own + others)
        np.testing.assert_array_equal(totals, counts.sum(axis=0))
        np.testing.assert_array_equal(change, totals - before)
        assert n_changed == (topics != last).sum()


def test_documents_are_counted_beside_a_prior_that_changes():
    rng = np.random.default_rng(0)
    tokens = [np.sort(rng.integers(0, 5, 30)) for _ in range(8)]
    topics = rng.integers(0, 2, 240).astype(np.int32)
    moves, counts, totals, priors = chain_of(tokens, 5, topics, ALPHA, 0.37)
    owners = np.repeat(np.arange(8), 30)
    large = [(1e9, 1e9), (3e9, 1e7), (0.1, 0.1)]  # floats hold no counts beside these
    for alpha in [(0.1, 0.1), (0.1, 0.1), (0.37, 5.3), *large, (1e6, 1e-6)]:
        own = priors._replace(document=np.array(alpha))
        moves.begin_rotation(own, totals, rng)
        moves.visit(0, counts, own, totals, rng)
        topics = topics_of(moves)
        expected = np.zeros((8, 2), dtype=int)
        np.add.at(expected, (owners, topics), 1)
        [found] = moves.document_counts()
        np.testing.assert_array_equal(found, expected)
    assert topics.mean() < 0.02  # by the last prior


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_words_and_topics_of_a_joint_chain_have_their_prior(sampler):
    """Geweke's test: words drawn given topics, topics given words, and so on."""
    rng, draws = np.random.default_rng(2), random.Random(2)
    n_words, beta = 4, 0.6
    lengths, K = (5, 3), len(ALPHA)

    def words_given(topics):
        weights = [[beta] * n_words for _ in range(K)]
        words = []
        for topic in topics.tolist():  # Polya's urn: phi integrated out
            urn = weights[topic]
            [word] = draws.choices(range(n_words), urn)
            urn[word] += 1
            words.append(word)
        return np.array(words)

    def topics_of_prior():
        theta = rng.dirichlet(ALPHA, len(lengths))
        found = [
            draws.choices(range(K), row, k=n)
            for n, row in zip(lengths, theta.tolist(), strict=True)
        ]
        return np.concatenate(found).astype(np.int32)

    def statistics(words, topics):
        table = np.zeros((n_words, K))
        np.add.at(table, (words, topics), 1)
        first = np.bincount(topics[: lengths[0]], minlength=K)
        return [first[0], first[0] ** 2, (table**2).sum(), table[0, 0], topics.sum()]

    forward = []
    for _ in range(5000):
        topics = topics_of_prior()
        forward.append(statistics(words_given(topics), topics))
    chain, topics = [], topics_of_prior()
    for _ in range(5000):
        words = words_given(topics)
        parts = np.split(words, np.cumsum(lengths)[:-1])
        order = np.concatenate(
            [
                np.argsort(part, kind="stable") + start
                for part, start in zip(parts, (0, lengths[0]), strict=True)
            ]
        )
        topics, words = topics[order].copy(), words[order]
        parts = np.split(words, np.cumsum(lengths)[:-1])
        moves, counts, totals, priors = chain_of(
            parts, n_words, topics, ALPHA, beta, sampler
        )
        moves.visit(0, counts, priors, totals, rng)
        topics = topics_of(moves)
        chain.append(statistics(words, topics))
    forward, chain = np.array(forward, float), np.array(chain, float)
    batches = chain.reshape(40, -1, chain.shape[1]).mean(axis=1)
    error = np.sqrt(
        batches.var(axis=0, ddof=1) / 40 + forward.var(axis=0) / len(forward)
    )
    assert (np.abs(chain.mean(axis=0) - forward.mean(axis=0)) < 4 * error).all()


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_moves_together_reach_what_a_plain_sampler_reaches(sampler):
    """The likelihood of the joint, averaged over the end of a chain."""
    rng = np.random.default_rng(3)
    K, n_words, alpha, beta = 3, 12, np.full(3, 0.3), 0.1
    phi, theta = rng.dirichlet(np.full(12, 0.1), K), rng.dirichlet(alpha, 24)
    tokens = [
        np.sort([rng.choice(12, p=phi[k]) for k in rng.choice(K, 25, p=row)])
        for row in theta
    ]
    starts = rng.integers(0, K, 600).astype(np.int32)

    def plain(n_sweeps):
        z, values = starts.copy(), []
        words, docs = np.concatenate(tokens), np.repeat(np.arange(24), 25)
        nd, nw = np.zeros((24, K)), np.zeros((n_words, K))
        np.add.at(nd, (docs, z), 1)
        np.add.at(nw, (words, z), 1)
        for sweep in range(n_sweeps):
            for i, (d, w) in enumerate(zip(docs, words, strict=True)):
                nd[d, z[i]] -= 1
                nw[w, z[i]] -= 1
                p = (nd[d] + alpha) * (nw[w] + beta) / (nw.sum(axis=0) + 12 * beta)
                z[i] = np.searchsorted(np.cumsum(p), rng.random() * p.sum())
                nd[d, z[i]] += 1
                nw[w, z[i]] += 1
            if sweep >= 20:
                values.append(joint(tokens, n_words, z, alpha, beta))
        return np.mean(values)

    moves, counts, totals, priors = chain_of(
        tokens, n_words, starts, alpha, beta, sampler
    )
    values = []
    for sweep in range(120):
        moves.begin_rotation(priors, totals, rng)
        moves.visit(0, counts, priors, totals, rng)
        if sweep >= 20:
            values.append(joint(tokens, n_words, topics_of(moves), alpha, beta))
    assert np.mean(values) == pytest.approx(plain(60), abs=0.03 * 600)
