"""Sizes of rounds and of updates that MALDA chooses."""

import dask.array as da
import numpy as np
import pytest

from dask_ma import MALDA
from dask_ma.ma.lda._sizes import count_updates, gradient_size, round_size

CORPORA = [1, 31, 32, 300, 2000, 8192, 11_314, 50_000, 262_144, 8_200_000]


def test_rounds_grow_with_the_corpus_and_more_slowly():
    sizes = [round_size(n) for n in CORPORA]
    rounds = [n / size for n, size in zip(CORPORA, sizes, strict=True)]
    assert sizes == sorted(sizes)
    assert (np.diff(rounds) > -0.1).all()  # sizes are whole numbers
    assert sizes[0] == 32
    assert 7 < rounds[CORPORA.index(300)] <= 8
    assert sizes[CORPORA.index(8192)] == 256
    assert rounds[CORPORA.index(50_000)] == pytest.approx(32, abs=0.1)
    # The best that the paper has tried: 16,000 of 270,000, 64,000 of 8 million.
    assert 16_000 / 2 <= round_size(270_000) <= 16_000
    assert 64_000 / 2 <= round_size(8_200_000) <= 64_000


@pytest.mark.parametrize("n_documents", [11_314, 25_000, 262_144, 8_200_000])
@pytest.mark.parametrize("n_ranks", [2, 3, 4, 16])
def test_ranks_make_some_updates_from_one_average_to_the_next(n_documents, n_ranks):
    """The fewer, the more ranks there are, and an update is not smaller for that."""
    alone, size = round_size(n_documents), round_size(n_documents, n_ranks)
    n_between = {2: 16, 3: 10, 4: 8, 16: 4}[n_ranks]
    n_updates = count_updates(size // n_ranks, size, n_documents)
    if size > alone:
        assert n_updates == n_between
        assert size // n_ranks // n_updates >= min(alone // n_ranks, 384) - 1
        assert size <= n_between * alone
    else:
        assert alone // n_ranks // 384 >= n_between


def test_rounds_of_many_topics_do_not_become_longer():
    """A worker that leaves waits for the end of one."""
    sizes = [round_size(25_000, 2, k) for k in (1000, 2000, 4000, 10_000)]
    updates = [count_updates(size // 2, size, 25_000) for size in sizes]
    assert sizes[0] == round_size(25_000, 2)
    assert updates == [16, 8, 4, 4]
    # Documents without words count as documents, and take no time.
    X = np.zeros((2100, 3))
    X[::50] = 1
    params = {"max_iter": 1, "max_doc_update_iter": 1, "n_ranks": 2, "random_state": 0}
    n_rounds = [len(MALDA(k, **params).fit(X).history_) for k in (2, 3500)]
    assert n_rounds == [2, 3]


@pytest.mark.parametrize("n_ranks", [2, 3, 16, 300])
def test_a_pass_of_ranks_has_two_averages_or_more(n_ranks):
    for n_documents in CORPORA[1:]:
        size = round_size(n_documents, n_ranks)
        assert size == round_size(n_documents) or 2 * size <= n_documents + 1


@pytest.mark.parametrize(("n_documents", "n_ranks"), [(300, 2), (2000, 8), (9000, 300)])
def test_rounds_of_few_documents_are_those_of_one_rank(n_documents, n_ranks):
    """Updates of one rank by itself would be by too few, or there would be too few."""
    assert round_size(n_documents, n_ranks) == round_size(n_documents)


def test_rounds_of_gradients_are_smaller():
    """In the paper the best ones are 1,000 of 270,000, and 16,000 of 8 million."""
    assert [gradient_size(n) for n in (300, 2000)] == [38, 250]
    assert gradient_size(50_000) == 256
    assert 1_000 / 2 <= gradient_size(270_000) <= 2_000
    assert 16_000 / 2 <= gradient_size(8_000_000) <= 2 * 16_000


@pytest.mark.parametrize("n_documents", CORPORA)
@pytest.mark.parametrize("n_ranks", [1, 2, 4, 16, 64, 300])
def test_updates_are_by_384_documents_of_a_rank(n_documents, n_ranks):
    """And there is one in each round."""
    n_in_round = min(round_size(n_documents), n_documents)
    n_own = -(-n_in_round // n_ranks)
    n_updates = count_updates(n_own, n_in_round, n_documents)
    assert n_updates == max(1, n_own // 384)


@pytest.mark.parametrize("n_documents", [2000, 25_000, 8_200_000])
@pytest.mark.parametrize("n_ranks", [1, 2, 4, 16, 64, 300])
def test_large_rounds_have_the_updates_of_the_rounds_in_their_place(
    n_documents, n_ranks
):
    """Other topics would be left that are mostly random, as long as it is by 16."""
    n_own = -(-n_documents // n_ranks)
    n_updates = count_updates(n_own, n_documents, n_documents)
    n_rounds = n_documents / max(256, round_size(n_documents))
    assert n_updates >= min(round(n_rounds), n_own // 16)
    assert n_updates >= n_own // 384
    assert n_updates <= max(round(n_rounds), n_own // 384)


def counts(n):
    return np.random.default_rng(0).poisson(0.5, (n, 12)).astype(float)


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3, 5])
@pytest.mark.parametrize("lazy", [False, True])
def test_a_fit_takes_these_sizes(n_ranks, lazy):
    """Also where the number of documents is not known before they are computed."""
    X = counts(600)
    X = da.from_array(X, chunks=(200, -1)) if lazy else X
    X = X[X.sum(axis=1) >= 0]
    params = {"n_components": 2, "max_iter": 2, "n_ranks": n_ranks, "random_state": 0}
    params |= {"learning_method": "online", "max_doc_update_iter": 5}
    model = MALDA(**params).fit(X)
    assert [record["n_samples"] for record in model.history_] == [75] * 16
    assert model.n_batch_iter_ == 1 + 16
    chosen = MALDA(**params, batch_size=75, local_batch_size=75).fit(X)
    np.testing.assert_array_equal(chosen.components_, model.components_)


def test_a_round_of_many_documents_has_several_updates():
    model = MALDA(2, max_iter=1, batch_size=1024, n_ranks=4, random_state=0)
    assert model.fit(counts(1024)).n_batch_iter_ == 1 + 4
    model.set_params(n_ranks=32)
    assert model.fit(counts(1024)).n_batch_iter_ == 1 + 2


def test_gradients_and_streams_take_them_too():
    X = counts(600)
    params = {"n_components": 2, "max_iter": 1, "random_state": 0}
    assert len(MALDA(**params, paradigm="gradient").fit(X).history_) == 8
    stream = MALDA(**params, total_samples=600)
    assert len(stream.partial_fit(X).history_) == 8
    assert len(stream.partial_fit(X[:32]).history_) == 1


def test_long_rounds_learn_the_prior_of_short_ones():
    """Several ranks have two averages in a pass here, and one rank has 9 rounds."""
    rng = np.random.default_rng(3)
    topics = rng.dirichlet(np.full(60, 0.05), 5)
    shares = rng.dirichlet(np.full(5, 0.05), 2100)
    X = np.array([rng.multinomial(30, p) for p in shares @ topics], dtype=float)
    params = {"n_components": 5, "doc_topic_prior": "auto", "max_iter": 2}
    sums, n_rounds = [], []
    for n_ranks in (1, 2, 4):
        model = MALDA(**params, n_ranks=n_ranks, random_state=0).fit(X)
        sums.append(model.doc_topic_prior_.sum())
        n_rounds.append(len(model.history_))
    assert n_rounds == [18, 4, 4]
    np.testing.assert_allclose(sums[1:], sums[0], rtol=0.25)
