"""Chains of topics against exact posteriors, a joint test, and a plain sampler."""

from bisect import bisect_left
from copy import deepcopy
from functools import cache
from itertools import accumulate, product

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
from dask_ma.schmp.topics import _exact
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


def at_one_place(n_chains, n_documents):
    """Cuts tokens into tiles of one of each chain, of which draws are exact."""

    def cut(documents, words, bounds, size):
        n, nothing = n_chains, np.empty(0, int)
        order = np.arange(len(words), dtype=np.int32).reshape(n, -1).T.ravel()
        parts = [slice(first, first + n) for first in range(0, len(words), n)]
        tiles = [
            Tile(
                0,
                n * n_documents,
                own,
                documents[order[own]],
                words[order[own]],
                nothing,
            )
            for own in parts
        ]
        return tiles, order

    return cut


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "n_chains"), [("exact", 24), ("metropolis", 1)])
def test_the_posterior_of_a_tiny_corpus(sampler, n_chains, monkeypatch):
    """Total variation from the probabilities of all 32 assignments.

    Chains lie side by side, and know nothing of each other: words have no prior of
    topics of other chains. Topics that are offered would mostly be of those.
    """
    if n_chains > 1:
        monkeypatch.setattr(_exact, "cut_tiles", at_one_place(n_chains, len(TINY)))
    n_draws, rng = 8_000, np.random.default_rng(1)
    chains = np.arange(n_chains)
    tokens = [words + 3 * chain for chain in chains for words in TINY]
    moves, counts, totals, priors = chain_of(
        tokens,
        3 * n_chains,
        np.repeat(2 * chains, 5).astype(np.int32),
        np.tile(ALPHA, n_chains),
        np.kron(np.eye(n_chains), BETA),
        sampler,
    )
    found, order = np.zeros(32), np.argsort(moves.places(0)).reshape(n_chains, 5)
    for _ in range(n_draws // n_chains):
        moves.visit(0, counts, priors, totals, rng)
        own = moves.topics[0][order] % 2
        found += np.bincount(own @ POWERS, minlength=32)
    assert np.abs(found / n_draws - posterior(BETA)).sum() / 2 < 0.025


@pytest.mark.slow
def test_the_posterior_of_a_tiny_corpus_in_many_single_moves():
    """Total variation of 25,000 draws, of tokens moved one after the other."""
    n_draws, exact = 25_000, posterior(BETA)
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
    """Total variation of 40,000 draws, of tokens that are moved with many others."""
    n_chains, n_draws, found = 2500, 40_000, np.zeros(32)
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
    """Total variation of 60,000 draws from the probabilities of all assignments."""
    rng, n_chains, n_draws = np.random.default_rng(4), 128, 60_000
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


@pytest.mark.parametrize("others", [0, 2**21 - 8, 2**24 + 1])
def test_counts_are_exact_however_large(others):
    """Tokens of other ranks are among those of a word; floats cannot hold them all."""
    rng = np.random.default_rng(0)
    tokens = [np.sort(rng.integers(0, 5, 30)) for _ in range(8)]
    topics = rng.integers(0, 2, 240).astype(np.int32)
    moves, counts, totals, priors = chain_of(tokens, 5, topics, ALPHA, 0.37)
    counts += np.int32(others)
    totals += 5 * others
    for _ in range(8):
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


class JointChains:
    """Geweke's chains: words drawn given topics, topics given words, and so on.

    They begin with draws from the prior, which they keep if the sampler is right, and
    lie side by side, each with documents, words and topics of its own: words have no
    prior of topics of other chains.
    """

    n_documents, length, n_topics, n_words, n_steps = 16, 3, 4, 12, 20

    def __init__(self, n_chains, sampler):
        self.n_chains, self.sampler = n_chains, sampler
        self.rng = np.random.default_rng(0)
        self.alpha = np.linspace(0.125, 0.375, self.n_topics)
        self.beta = self.rng.uniform(0.2, 0.6, (self.n_words, self.n_topics))
        self.documents = np.repeat(np.arange(self.n_documents), self.length)

    def topics_of_prior(self, n):
        """Topics of the tokens of some chains."""
        theta = self.rng.dirichlet(self.alpha, (n, self.n_documents)).cumsum(axis=2)
        chances = self.rng.random((n, len(self.documents), 1))
        return (theta[:, self.documents, :-1] < chances).sum(axis=2)

    def words_given(self, topics):
        """Words by Polya's urn, phi integrated out; with topics, in order."""
        urns, rows = np.tile(self.beta.T, (len(topics), 1, 1)), np.arange(len(topics))
        words = np.empty_like(topics)
        for place, own in enumerate(topics.T):
            upto = urns[rows, own].cumsum(axis=1)
            chances = self.rng.random((len(topics), 1)) * upto[:, -1:]
            words[:, place] = (upto[:, :-1] < chances).sum(axis=1)
            urns[rows, own, words[:, place]] += 1
        order = np.argsort(self.documents * self.n_words + words, axis=1)
        return (np.take_along_axis(array, order, axis=1) for array in (words, topics))

    def topics_given(self, words, topics, wrong):
        """Topics by the sampler, with priors that are wrong by two factors."""
        n, K = self.n_chains, self.n_topics
        chains = np.arange(n)[:, np.newaxis]
        tokens = (words + self.n_words * chains).reshape(-1, self.length)
        alpha = wrong[0] * np.tile(self.alpha, n)
        beta = wrong[1] * np.kron(np.eye(n), self.beta)
        own = (topics + K * chains).ravel()
        moves, counts, totals, priors = chain_of(
            tokens, n * self.n_words, own, alpha, beta, self.sampler
        )
        moves.visit(0, counts, priors, totals, self.rng)
        # Once in a million draws, by rounding, a topic has no weight: of another chain.
        return topics_of(moves).reshape(n, -1) % K

    def scores(self, words, topics):
        """Slopes of the log prior by the logarithms of alpha and beta.

        They are 0 on average, and notice a factor as nothing else does: of all topics
        together, and, behind how even these are, of each.
        """
        K, rows = self.n_topics, np.arange(len(topics))[:, np.newaxis]
        of_documents = np.zeros((len(topics), self.n_documents, K))
        np.add.at(of_documents, (rows, self.documents, topics), 1)
        of_words = np.zeros((len(topics), self.n_words, K))
        np.add.at(of_words, (rows, words, topics), 1)
        by_alpha = rises(of_documents, self.alpha).sum(axis=1)
        total = self.alpha.sum()
        of_length = special.psi(self.length + total) - special.psi(total)
        by_alpha -= self.n_documents * self.alpha * of_length
        by_beta = rises(of_words, self.beta).sum(axis=1)
        by_beta -= rises(of_words.sum(axis=1), self.beta.sum(axis=0))
        sums = by_alpha.sum(axis=1), by_beta.sum(axis=1), self.evenness(topics)
        return np.column_stack([*sums, by_alpha, by_beta])

    def evenness(self, topics):
        """Whether topics have as many tokens each, which sums of beta decide, too."""
        K, rows = self.n_topics, np.arange(len(topics))[:, np.newaxis]
        totals = np.zeros((len(topics), K))
        np.add.at(totals, (rows, topics), 1)
        return rises(totals, self.beta.sum(axis=0)).sum(axis=1)

    def deviations(self, n_starts, wrong):
        """Means of what chains have, less that of the prior, in standard errors."""
        of_chains = []
        usual = self.evenness(self.topics_of_prior(20_000)).mean()
        for _ in range(n_starts):
            topics, found = self.topics_of_prior(self.n_chains), 0.0
            for _ in range(self.n_steps):
                words, topics = self.words_given(topics)
                # Of words just drawn scores are 0 on average, whatever the topics are:
                # what is left without them is less by chance.
                before = self.scores(words, topics)
                before[:, [0, *range(3, 3 + self.n_topics)]] = 0
                before[:, 2] = usual
                topics = self.topics_given(words, topics, wrong)
                found += self.scores(words, topics) - before
            of_chains.append(found)
        return in_errors(np.concatenate(of_chains))


def rises(counts, prior):
    """Slopes of log Gamma(counts + prior) - log Gamma(prior) by log prior."""
    return prior * (special.psi(counts + prior) - special.psi(prior))


def in_errors(draws):
    """Means of independent draws over their standard errors."""
    return draws.mean(axis=0) / (draws.std(axis=0, ddof=1) / np.sqrt(len(draws)))


def test_scores_of_draws_from_the_prior_are_nothing_on_average():
    """So the chains that begin with such draws are to have such scores."""
    chains = JointChains(4000, "exact")
    words, topics = chains.words_given(chains.topics_of_prior(4000))
    scores = np.delete(chains.scores(words, topics), 2, axis=1)
    assert np.abs(in_errors(scores)).max() < 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "n_chains", "n_starts", "wrong"),
    [
        ("exact", 32, 2, (1, 1)),
        ("metropolis", 5, 13, (1, 1)),
        # What the test itself notices is the same with either sampler.
        ("exact", 32, 2, (1.15, 1.15)),
    ],
)
def test_words_and_topics_of_a_joint_chain_have_their_prior(
    sampler, n_chains, n_starts, wrong, monkeypatch
):
    """Geweke's test, which notices a sampler whose alpha or beta is 15 % too large.

    Chains are independent, so their means have the errors of independent draws,
    however much of its past each has.
    """
    chains = JointChains(n_chains, sampler)
    tiles = at_one_place(n_chains, chains.n_documents)
    monkeypatch.setattr(_exact, "cut_tiles", tiles)
    if wrong == (1, 1):
        assert np.abs(chains.deviations(n_starts, wrong)).max() < 4
    else:  # as many draws are enough to notice each of both
        assert chains.deviations(n_starts, wrong)[:2].min() > 4


@cache
def planted():
    """Documents of three topics, random topics of their tokens, where chains end."""
    rng = np.random.default_rng(3)
    K, n_words, alpha, beta = 3, 12, np.full(3, 0.3), 0.1
    phi, theta = rng.dirichlet(np.full(12, 0.1), K), rng.dirichlet(alpha, 24)
    tokens = [
        np.sort([rng.choice(12, p=phi[k]) for k in rng.choice(K, 25, p=row)])
        for row in theta
    ]
    starts = rng.integers(0, K, 600).astype(np.int32)
    own_rng, rng = rng, np.random.default_rng(4)

    def plain(n_sweeps):
        # Lists: of so few numbers, arrays take ten times as long.
        z, values = starts.tolist(), []
        words, docs = np.concatenate(tokens).tolist(), np.repeat(range(24), 25).tolist()
        tables = [[[0] * K for _ in range(n)] for n in (24, n_words, 1)]
        places = list(zip(docs, words, [0] * 600, strict=True))

        def add(place, topic, number):
            for table, row in zip(tables, place, strict=True):
                table[row][topic] += number

        for place, topic in zip(places, z, strict=True):
            add(place, topic, 1)
        for sweep in range(n_sweeps):
            for i, place in enumerate(places):
                add(place, z[i], -1)
                nd, nw, n = (t[row] for t, row in zip(tables, place, strict=True))
                upto = list(
                    accumulate(
                        (nd[k] + 0.3) * (nw[k] + beta) / (n[k] + 12 * beta)
                        for k in range(K)
                    )
                )
                z[i] = bisect_left(upto, rng.random() * upto[-1])
                add(place, z[i], 1)
            if sweep >= 20:
                values.append(joint(tokens, n_words, np.array(z), alpha, beta))
        return np.mean(values)

    return tokens, starts, (n_words, alpha, beta), own_rng, plain(60)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_moves_together_reach_what_a_plain_sampler_reaches(sampler):
    """The likelihood of the joint, averaged over the end of a chain."""
    tokens, starts, (n_words, alpha, beta), rng, expected = planted()
    moves, counts, totals, priors = chain_of(
        tokens, n_words, starts, alpha, beta, sampler
    )
    values, rng = [], deepcopy(rng)
    for sweep in range(60):
        moves.begin_rotation(priors, totals, rng)
        moves.visit(0, counts, priors, totals, rng)
        if sweep >= 20:
            values.append(joint(tokens, n_words, topics_of(moves), alpha, beta))
    assert np.mean(values) == pytest.approx(expected, abs=0.03 * 600)
