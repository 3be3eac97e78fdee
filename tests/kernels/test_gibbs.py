"""Draws of topics against their distributions, and likelihoods against sums."""

from itertools import product

import numpy as np
import pytest
from scipy import sparse, special

from dask_ma.kernels import (
    DocumentWeights,
    FilledCells,
    TermWeights,
    TileSampler,
    TokenRun,
    TopicCounts,
    _gibbs_offers,
    accept_topics,
    cut_runs,
    cut_tiles,
    document_groups,
    document_stages,
    draw_by_rows,
    left_to_right,
    offer_of_documents,
    offer_of_words,
    polya_slopes,
    polya_sum,
    tokens_of_tile,
)


def assert_frequencies(drawn, expected, n_sigmas=5):
    """That draws are as frequent as expected, within the noise."""
    n = len(drawn)
    found = np.bincount(drawn, minlength=len(expected)) / n
    assert found.shape == expected.shape
    noise = np.sqrt(expected * (1 - expected) / n) + 1 / n
    assert (np.abs(found - expected) < n_sigmas * noise).all()


def counted(documents, words, topics, n_topics, beta=0.3):
    """Counts of some tokens."""
    sampler = TileSampler(n_topics)
    of = []
    for owners in (documents, words):
        counts = np.zeros((owners.max() + 1, sampler.width), dtype=np.float32)
        np.add.at(counts, (owners, topics), 1)
        of.append(counts)
    of[0][:, :n_topics] += np.linspace(0.1, 1, n_topics)
    of[1][:, :n_topics] += beta
    totals = np.bincount(topics, minlength=n_topics)
    sums = np.full(n_topics, beta * len(of[1]))
    return sampler, TopicCounts(topics, *of, totals, sums)


@pytest.mark.each
@pytest.mark.parametrize("n_topics", [1, 3, 8, 100, 130, 300])
@pytest.mark.parametrize("count", [1, 2])
def test_tokens_are_drawn_from_the_distribution_given_all_others(n_topics, count):
    """Documents that are all alike, each with the same word in the tile."""
    rng = np.random.default_rng(n_topics)
    n = 20_000 // count
    own = np.tile(rng.integers(0, n_topics), n * count).astype(np.int32)
    others = rng.integers(0, n_topics, 12)  # tokens of each document, of other words
    documents = np.r_[np.repeat(np.arange(n), count), np.repeat(np.arange(n), 12)]
    words = np.r_[np.zeros(n * count, int), np.tile(np.arange(1, 13), n)]
    topics = np.r_[own, np.tile(others, n)].astype(np.int32)
    sampler, counts = counted(documents, words, topics, n_topics)
    nd, nw = counts.documents[0].copy(), counts.words[0].copy()
    nk = counts.totals + counts.prior_sums
    for values in (nd, nw, nk):
        values[own[0]] -= 1
    expected = (nd * nw)[:n_topics] / nk
    [tile], order = cut_tiles(
        documents[: n * count], words[: n * count], np.array([0, n]), n * count
    )
    np.testing.assert_array_equal(np.sort(order), np.arange(n * count))
    n_changed = sampler.draw(tile, counts, rng)
    drawn = counts.topics[: n * count]
    assert n_changed == (drawn != own).sum()
    assert_frequencies(drawn, expected / expected.sum())


@pytest.mark.parametrize("size", [1, 7, 100])
def test_tiles_have_every_token_once_and_counts_follow(size):
    rng = np.random.default_rng(0)
    n, n_topics = 900, 11
    documents = np.sort(rng.integers(0, 40, n))
    words = rng.integers(0, 15, n)
    topics = rng.integers(0, n_topics, n).astype(np.int32)
    lengths = np.bincount(documents)
    bounds = document_groups(lengths, size, n_blocks=n)
    assert bounds[0] == 0
    assert bounds[-1] == 40
    order = np.lexsort((words, documents))
    tiles, turned = cut_tiles(documents[order], words[order], bounds, size)
    np.testing.assert_array_equal(np.sort(turned), np.arange(n))
    # Documents come again after all others, and each run of them begins further on.
    n_runs = len(bounds) - 1
    firsts, begins = zip(*((tile.first, tile.words[0]) for tile in tiles), strict=True)
    assert list(firsts[:n_runs]) == bounds[:-1].tolist()
    assert np.corrcoef(begins[:n_runs], np.arange(n_runs))[0, 1] > 0.9
    order = order[turned]  # in which the topics lie from here on
    documents, words, topics = documents[order], words[order], topics[order]
    before, done = topics.copy(), 0
    sampler, counts = counted(documents, words, topics, n_topics)
    for tile in tiles:
        assert tile.tokens.start == done
        done = tile.tokens.stop
        assert 0 < done - tile.tokens.start <= 1.5 * size
        np.testing.assert_array_equal(
            tile.documents[tile.cells] + tile.first, documents[tile.tokens]
        )
        np.testing.assert_array_equal(tile.words[tile.cells], words[tile.tokens])
        assert (documents[tile.tokens] < tile.last).all()
        sampler.draw(tile, counts, rng)
    assert done == n
    _, fresh = counted(documents, words, counts.topics, n_topics)
    assert (topics != before).any()
    np.testing.assert_allclose(counts.documents, fresh.documents, rtol=1e-5)
    np.testing.assert_allclose(counts.words, fresh.words, rtol=1e-5)
    np.testing.assert_array_equal(counts.totals, fresh.totals)


@pytest.mark.parametrize("n_topics", [3, 40, 300])
def test_first_topics_are_drawn_from_the_distribution_given_those_there(n_topics):
    rng = np.random.default_rng(n_topics)
    n, count = 10_000, 2
    others = rng.integers(0, n_topics, 12)  # tokens of each document, of other words
    documents = np.r_[np.repeat(np.arange(n), count), np.repeat(np.arange(n), 12)]
    words = np.r_[np.zeros(n * count, int), np.tile(np.arange(1, 13), n)]
    topics = np.r_[rng.integers(0, n_topics, n * count), np.tile(others, n)]
    new = np.arange(len(words)) < n * count
    _, counts = counted(
        documents[~new], words[~new], topics[~new].astype(np.int32), n_topics
    )
    sampler, whole = counted(documents, words, topics.astype(np.int32), n_topics)
    counts.topics = whole.topics
    expected = counts.documents[0].copy()
    expected = (expected * counts.words[0])[:n_topics]
    expected /= counts.totals + counts.prior_sums
    bounds = np.array([0, n])
    [tile], order = cut_tiles(documents[new], words[new], bounds, n * count)
    documents[new] = documents[new][order]
    sampler.place(tile, counts, rng)
    assert_frequencies(counts.topics[new], expected / expected.sum())
    _, fresh = counted(documents, words, counts.topics, n_topics)
    np.testing.assert_allclose(counts.documents, fresh.documents, rtol=1e-5)
    np.testing.assert_allclose(counts.words, fresh.words, rtol=1e-5)
    np.testing.assert_array_equal(counts.totals, fresh.totals)


@pytest.mark.parametrize("step", [1, 2, 16, 2**32])
def test_stages_double_wherever_documents_lie(step):
    keys = step * np.arange(3200)
    stages = document_stages(keys, 4)
    np.testing.assert_allclose(np.bincount(stages), [200, 200, 400, 800, 1600], atol=16)
    sizes = np.bincount(document_stages(keys[400:800], 4))
    np.testing.assert_allclose(sizes, [25, 25, 50, 100, 200], atol=16)
    np.testing.assert_array_equal(document_stages(keys[::7], 4), stages[::7])
    assert not document_stages(keys, 0).any()


def test_groups_have_documents_of_one_stage():
    rng = np.random.default_rng(0)
    lengths, stages = rng.integers(0, 50, 400), np.repeat([0, 1, 2, 4], 100)
    bounds = document_groups(lengths, 100, stages)
    assert set(range(0, 401, 100)) <= set(bounds.tolist())
    whole = document_groups(lengths, 100)
    assert len(bounds) == pytest.approx(len(whole), abs=3)


def test_small_corpora_are_drawn_one_token_at_a_time():
    assert tokens_of_tile(200, 5) == 1
    assert tokens_of_tile(10_000, 5) < 100
    sizes = [tokens_of_tile(n, 50) for n in (500_000, 1_500_000, 2_500_000, 10**8)]
    assert sizes == [500_000 // 128, 9000, 2_500_000 // 256, 12_000]
    assert 2**20 < tokens_of_tile(10**9, 10_000) * 10_000 <= 2**21


@pytest.mark.parametrize(("n_blocks", "n_runs"), [(1000, 32), (20, 50), (1, 83)])
def test_runs_of_documents_are_short_where_blocks_have_tokens(n_blocks, n_runs):
    lengths, size = np.full(5000, 40), 200  # of a thousand tiles
    bounds = document_groups(lengths, size, n_blocks=n_blocks)
    assert len(bounds) - 1 == n_runs
    owners = np.repeat(np.arange(5000), 40)
    words = np.tile(np.arange(40), 5000)
    n_tokens = []
    for block in range(20):
        own = words % 20 == block
        tiles, _ = cut_tiles(owners[own], words[own], bounds, size)
        n_tokens += [tile.tokens.stop - tile.tokens.start for tile in tiles]
    # A run's tokens of a block are cut into tiles of about as many as there should be.
    assert 0.5 * size < min(n_tokens) <= max(n_tokens) <= 1.5 * size


RUN = TokenRun(
    4,
    7,
    np.repeat([0, 1, 2], [20_000, 10_000, 30_000]).astype(np.int32),
)


def topics_of_run(rng, n_topics):
    """Topics of which some are rare in each owner."""
    weights = rng.dirichlet(np.full(n_topics, 0.5), 3)
    return draw_by_rows(RUN.owners, weights, rng)


def counts_of_run(topics, n_topics):
    cells = RUN.owners * n_topics + topics
    return np.bincount(cells, minlength=3 * n_topics).reshape(3, n_topics)


def test_documents_offer_what_they_have():
    rng = np.random.default_rng(0)
    topics, prior = topics_of_run(rng, 6), 10_000 * rng.uniform(0.1, 1, 6)
    lengths = np.bincount(RUN.owners)
    turned = rng.permutation(60_000)[:50_000]  # of some tokens, in any order
    run = TokenRun(RUN.first, RUN.last, RUN.owners[turned])
    offered = offer_of_documents(run, topics, turned, lengths, prior, 2, rng)
    assert offered.shape == (2, 50_000)
    assert (offered[0] != offered[1]).any()
    expected = counts_of_run(topics, 6) + prior
    for owner in range(3):
        own = offered[:, run.owners == owner].ravel()
        assert_frequencies(own, expected[owner] / expected[owner].sum())


@pytest.mark.pairs
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("by_topic", [False, True])
@pytest.mark.parametrize("laid_out", [0, 2**19])
def test_words_offer_what_they_have_on_all_ranks(
    elsewhere, by_topic, laid_out, monkeypatch
):
    monkeypatch.setattr(_gibbs_offers, "_MOST_LAID_OUT", laid_out)
    rng = np.random.default_rng(1)
    topics = topics_of_run(rng, 6)
    counts = counts_of_run(topics, 6)
    if elsewhere:
        counts += rng.integers(0, 9000, counts.shape) * (rng.random(counts.shape) < 0.6)
    prior = 3000 * rng.uniform(0.1, 1, (3, 6) if by_topic else 3)
    cells = FilledCells.of(counts.astype(np.int32))
    offered = offer_of_words(RUN, topics, cells, 6, prior, 2, rng)
    expected = counts + (prior if by_topic else prior[:, np.newaxis])
    for owner in range(3):
        own = offered[:, RUN.owners == owner].ravel()
        assert_frequencies(own, expected[owner] / expected[owner].sum())


@pytest.mark.parametrize("n_there", [0, 30_000, 60_000])
def test_words_offer_first_topics_by_what_they_have(n_there):
    """Also where just as many tokens are there as those that have no topic yet."""
    rng = np.random.default_rng(1)
    counts = rng.multinomial(n_there, rng.dirichlet(np.ones(18))).reshape(3, 6)
    cells, prior = FilledCells.of(counts.astype(np.int32)), np.full(3, 2000.0)
    [offered] = offer_of_words(RUN, None, cells, 6, prior, 1, rng)
    expected = counts + 2000
    for owner in range(3):
        own = offered[RUN.owners == owner]
        assert_frequencies(own, expected[owner] / expected[owner].sum())


@pytest.mark.parametrize("kind", ["documents", "words", "words by topic"])
def test_what_is_accepted_has_the_product_as_its_distribution(kind):
    """Proposals of one side, accepted by the other, in a long chain."""
    rng = np.random.default_rng(2)
    n_topics, topics = 5, topics_of_run(rng, 5)
    counts, totals = counts_of_run(topics, 5), rng.uniform(60_000, 90_000, 5)
    proposing = rng.dirichlet(np.ones(n_topics))
    offered = rng.choice(n_topics, (60, 60_000), p=proposing).astype(np.int32)
    if kind == "documents":
        prior = rng.uniform(0.1, 1, 5).astype(np.float32)
        weights = DocumentWeights(RUN, counts, prior, totals)
        added = np.tile(prior, (3, 1))
    else:
        shape = (3, 5) if kind == "words by topic" else (3,)
        prior = rng.uniform(0.1, 1, shape).astype(np.float32)
        weights = TermWeights(RUN, counts, prior, totals)
        added = prior.reshape(3, -1)
    moved = accept_topics(topics, offered, weights, rng)
    expected = (counts + added) / totals * proposing  # one token of thousands: own
    for owner in range(3):
        own = moved[RUN.owners == owner]
        assert_frequencies(own, expected[owner] / expected[owner].sum())


def test_the_token_itself_does_not_accept():
    """The only token of its word has no reason but the prior to keep its topic.

    Nor is it among the totals: without it both topics have three tokens.
    """
    rng = np.random.default_rng(3)
    n = 20_000
    run = TokenRun(0, n, np.arange(n, dtype=np.int32))
    topics = np.zeros(n, dtype=np.int32)
    counts = np.zeros((n, 2), dtype=np.int32)
    counts[:, 0] = 1
    prior, totals = np.full(n, 0.1, dtype=np.float32), np.array([4.0, 3.0])
    weights = TermWeights(run, counts, prior, totals)
    offered = rng.integers(0, 2, (20, n)).astype(np.int32)
    moved = accept_topics(topics, offered, weights, rng)
    assert_frequencies(moved, np.full(2, 0.5))


def few_tokens(rng, n_owners):
    """Owners of seven tokens each, of the topics 0, 0, 1, 1, 1, 2, 3, mixed."""
    topics = np.tile(np.array([0, 0, 1, 1, 1, 2, 3]), (n_owners, 1))
    topics = rng.permuted(topics, axis=1).ravel()
    owners = np.repeat(np.arange(n_owners), 7).astype(np.int32)
    return topics, TokenRun(0, n_owners, owners)


@pytest.mark.each
@pytest.mark.parametrize("kind", ["documents", "words", "elsewhere", "by topic"])
@pytest.mark.parametrize("laid_out", [0, 2**19])
def test_the_token_itself_does_not_offer(kind, laid_out, monkeypatch):
    monkeypatch.setattr(_gibbs_offers, "_MOST_LAID_OUT", laid_out)
    rng, n, shares = np.random.default_rng(4), 6000, np.array([2, 3, 1, 1])
    topics, run = few_tokens(rng, n)
    prior = np.full(n, 0.5)
    if kind == "documents":
        lengths, places = np.full(n, 7), np.arange(7 * n)
        offered = offer_of_documents(
            run, topics, places, lengths, np.full(4, 0.5), 3, rng
        )
    else:
        if kind == "elsewhere":  # topic 3 has two more there
            shares = np.array([2, 3, 1, 3])
        elif kind == "by topic":
            prior = np.full((n, 4), 0.5)
        cells = FilledCells.of(np.tile(shares, (n, 1)).astype(np.int32))
        offered = offer_of_words(run, topics, cells, 4, prior, 3, rng)
    for topic in range(4):
        expected = shares + 0.5 - np.eye(4)[topic]
        drawn = offered[:, topics == topic].ravel()
        assert_frequencies(drawn, expected / expected.sum())


def test_runs_are_of_whole_owners():
    owners = np.repeat([0, 2, 3, 9], [30_000, 10, 9000, 5])
    starts = np.searchsorted(owners, np.arange(13))
    runs = cut_runs(starts, 100)
    assert runs == [(0, 1), (1, 12)]
    for first, last in runs:
        run = TokenRun.between(first, last, starts)
        assert (run.first, run.last) == (first, last)
        part = owners[starts[first] : starts[last]]
        np.testing.assert_array_equal(run.owners + first, part)
    assert len(cut_runs(starts, 200_000)) == 4  # two owners at a time
    assert len(cut_runs(starts, 200_000, 800_000)) == 3
    assert cut_runs(0 * starts, 100) == []


def test_columns_are_drawn_by_the_weights_of_the_row():
    rng = np.random.default_rng(4)
    weights = np.array([[0, 2.0, 1], [5, 0, 0], [1, 1, 2]])
    rows = np.repeat([2, 0, 1], 20_000)
    drawn = draw_by_rows(rows, weights, rng)
    for row in range(3):
        assert_frequencies(drawn[rows == row], weights[row] / weights[row].sum())


def test_likelihood_of_counts_and_its_slopes():
    rng = np.random.default_rng(5)
    counts = rng.poisson(1.0, (7, 4))
    prior = rng.uniform(0.1, 2, 4)
    expected = special.gammaln(counts + prior) - special.gammaln(prior)
    assert polya_sum(counts, prior) == pytest.approx(expected.sum())
    for column in range(4):
        step = 1e-5 * (np.arange(4) == column)
        rise = polya_sum(counts, prior + step) - polya_sum(counts, prior - step)
        slope = polya_slopes(counts, prior)[column]
        assert slope == pytest.approx(rise / 2e-5, rel=1e-6)


def test_left_to_right_against_the_sum_over_all_topics():
    rng = np.random.default_rng(6)
    topics = rng.dirichlet(np.ones(5), 3).T
    prior = np.array([0.2, 0.7, 0.4])
    X = sparse.csr_array(np.array([[2, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 3]]))
    expected = []
    for row in X.toarray():
        words = np.repeat(np.arange(5), row)
        total = 0.0
        for z in product(range(3), repeat=len(words)):
            counts = np.bincount(np.array(z, dtype=int), minlength=3)
            log = polya_sum(counts, prior) - polya_sum(np.array(len(z)), prior.sum())
            total += np.exp(log) * topics[words, list(z)].prod()
        expected.append(np.log(total))
    found = left_to_right(X, topics, prior, 5000, rng)
    np.testing.assert_allclose(found, expected, atol=0.06)
    one = [left_to_right(X, topics, prior, 1, rng) for _ in range(1000)]
    np.testing.assert_allclose(np.exp(one).mean(axis=0), np.exp(expected), rtol=0.15)
