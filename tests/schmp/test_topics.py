"""SchMPLDA: counts, ranks, priors, samples, and what its users may do with it."""

import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from dask_ma import MALDA, SchMPLDA
from dask_ma.kernels import polya_sum
from dask_ma.schmp import RotationEngine
from dask_ma.schmp.topics._agent import TopicRounds
from dask_ma.schmp.topics._program import GibbsTopics

RNG = np.random.default_rng(0)
K, V, D = 4, 40, 120
PHI = RNG.dirichlet(np.full(V, 0.06), K)
THETA = RNG.dirichlet(np.full(K, 0.2), D)
X = np.array([RNG.multinomial(30, row) for row in THETA @ PHI]).astype(float)
X[7] = 0  # a document without words
X[:, 11] = 0  # a word that never occurs
NEW = np.array([RNG.multinomial(30, row) for row in THETA[:40] @ PHI]).astype(float)
FIT = {
    "doc_topic_prior": 0.2,
    "topic_word_prior": 0.06,
    "max_iter": 20,
    "random_state": 0,
    "n_ranks": 1,
}
SAMPLERS = ["exact", "metropolis"]
pytestmark = pytest.mark.usefixtures("few_tiles")


def make(**params):
    """A model whose documents are all there from the beginning."""
    return SchMPLDA(K, **{**FIT, "init": "random", **params})


@pytest.fixture(scope="module")
def fitted(few_tiles):
    """A fit that keeps its tokens, of each sampler."""
    return {
        name: make(sampler=name, keep_tokens=True, max_iter=25).fit(X)
        for name in SAMPLERS
    }


@pytest.fixture(scope="module")
def halves(few_tiles):
    """Two fits of half of the documents each, with other random numbers."""
    return [make(random_state=3 + s).fit(X[s::2]) for s in (0, 1)]


def dense(counts):
    """A copy of the counts of a block, as an array."""
    return counts.toarray() if sparse.issparse(counts) else counts.copy()


def assert_finds_planted_topics(model, most=0.2):
    """Each topic has a fitted one nearby, in total variation."""
    shares = model.components_ / model.components_.sum(axis=1, keepdims=True)
    distances = np.abs(PHI[:, np.newaxis] - shares).sum(axis=2) / 2
    pairs = linear_sum_assignment(distances)
    assert distances[pairs].max() < most


# Counts -------------------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_counts_are_those_of_the_tokens_after_every_rotation(
    sampler, n_ranks, monkeypatch
):
    original, seen = RotationEngine.measure, []

    def measure(engine):
        words, topics = engine.local.tokens(engine.parameters)
        cells = words.astype(int) * K + topics
        own = np.bincount(cells, minlength=V * K).reshape(V, K)
        blocks = {
            tuple(block.parameters): dense(block.values["counts"])
            for block in engine._at_home()
        }
        seen.append((engine.iteration, own, blocks, engine.shared["totals"]))
        return original(engine)

    monkeypatch.setattr(RotationEngine, "measure", measure)
    make(sampler=sampler, n_ranks=n_ranks, max_iter=4).fit(X)
    assert len(seen) == 5 * n_ranks
    for rotation in range(1, 6):
        own, blocks, totals = zip(
            *(part for number, *part in seen if number == rotation), strict=True
        )
        table = np.zeros((V, K), dtype=int)
        for held in blocks:
            for words, counts in held.items():
                assert (counts >= 0).all()
                table[list(words)] += counts
        np.testing.assert_array_equal(table, sum(own))
        np.testing.assert_array_equal(table.sum(axis=1), X.sum(axis=0))
        for total in totals:
            np.testing.assert_array_equal(total, table.sum(axis=0))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_tokens_documents_and_likelihood_agree(fitted, sampler):
    model = fitted[sampler]
    tokens = model.token_topics_
    table = np.zeros(X.shape)
    np.add.at(table, (tokens.documents, tokens.words), 1)
    np.testing.assert_array_equal(table, X)
    of_words, of_documents = np.zeros((V, K), int), np.zeros((D, K), int)
    np.add.at(of_words, (tokens.words, tokens.topics), 1)
    np.add.at(of_documents, (tokens.documents, tokens.topics), 1)
    np.testing.assert_allclose(model.components_, of_words.T + 0.06, rtol=1e-6)
    shares = (of_documents + 0.2) / (X.sum(axis=1, keepdims=True) + 0.2 * K)
    np.testing.assert_allclose(model.doc_topic_, shares, rtol=1e-5)
    value = polya_sum(of_documents, 0.2) - polya_sum(of_documents.sum(1), 0.2 * K)
    value += polya_sum(of_words, 0.06) - polya_sum(of_words.sum(0), 0.06 * V)
    assert model.log_likelihood_ == pytest.approx(value / X.sum())
    assert model.history_[-1]["objective"] == -model.log_likelihood_
    assert model.n_iter_ == 25
    assert model.n_documents_ == D


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_planted_topics_are_found(fitted, sampler):
    model = fitted[sampler]
    assert_finds_planted_topics(model)
    found = MALDA(
        K, doc_topic_prior=0.2, topic_word_prior=0.06, max_iter=60, random_state=0
    )
    other = found.fit(X).perplexity(NEW, method="completion")
    assert model.perplexity(NEW) < 1.03 * other
    shares = model.transform(X)
    assert np.abs(shares - model.doc_topic_).mean() < 0.05
    changed = [record["changed"] for record in model.history_]
    assert changed[0] == 0
    assert 0 < changed[-1] < changed[1] < 1


# Ranks --------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_quality_is_the_same_on_any_number_of_ranks(fitted, sampler):
    values = [fitted[sampler].log_likelihood_]
    model = make(sampler=sampler, n_ranks=3, max_iter=25).fit(X)
    values.append(model.log_likelihood_)
    assert_finds_planted_topics(model)
    assert max(values) - min(values) < 0.06


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_bits_on_threads_and_processes(
    sampler, inproc_client, process_client, as_workers_do
):
    models = [make(sampler=sampler, n_ranks=3, max_iter=3, n_samples=2, thin=1)]
    models[0].fit(X)
    for client in (inproc_client, process_client):
        with client.as_current():
            models.append(clone(models[0]).fit(sparse.csr_array(X)))
    for model in models[1:]:
        np.testing.assert_array_equal(model.components_, models[0].components_)


def test_totals_are_at_most_a_rotation_old(monkeypatch):
    """At the beginning of a rotation every rank knows all; then its own changes."""
    original, seen = GibbsTopics.update, []

    def update(program, block, local, shared, turn):
        result = original(program, block, local, shared, turn)
        if turn.rotation:
            seen.append((turn.rotation, id(local), shared["totals"], result["totals"]))
            mine = sum(c for r, i, _, c in seen if (r, i) == (turn.rotation, id(local)))
            np.testing.assert_array_equal(local.totals, shared["totals"] + mine)
        return result

    monkeypatch.setattr(GibbsTopics, "update", update)
    make(n_ranks=3, max_iter=4, sampler="exact").fit(X)
    known = {rotation: totals for rotation, _, totals, _ in seen}
    for rotation in range(1, 4):
        changes = sum(change for number, *_, change in seen if number == rotation)
        np.testing.assert_array_equal(known[rotation + 1], known[rotation] + changes)
        for number, _, totals, _ in seen:
            if number == rotation:
                np.testing.assert_array_equal(totals, known[rotation])


@pytest.mark.each
@pytest.mark.parametrize("n_components", [8, 1000])
@pytest.mark.parametrize("n_ranks", [2, 4])
def test_each_rank_sends_the_table_once_in_a_rotation(
    n_components, n_ranks, process_client, configured
):
    """In a byte for each element, or for "metropolis" 3 of those that are not zero."""
    counts = np.random.default_rng(0).poisson(0.5, (100, 2000)).astype(float)
    model = make(n_ranks=n_ranks, max_iter=2)
    sampler = "exact" if n_components == 8 else "metropolis"
    model.set_params(n_components=n_components, sampler=sampler)
    without_copies = configured({"dask-ma.on-worker-loss": "raise"}, process_client)
    with process_client.as_current(), without_copies:
        model.fit(counts)
    n_filled = (model.components_ > 0.5).sum()  # more than the prior
    assert model.components_.max() < 256
    table = 2000 * n_components
    if sampler == "metropolis":
        table = 3 * n_filled + 4 * 2000
    for record in model.history_[2:]:
        # Totals, priors and their slopes, and some numbers of 8 bytes, by doubling.
        shared = 8 * (3 * n_components + 30) * n_ranks * np.log2(n_ranks)
        rest = record["bytes_sent"] - n_ranks * table
        changed = 0.02 * n_ranks * table  # of it, on its way
        assert -changed < rest < shared + changed


@pytest.mark.parametrize(("n_components", "n_blocks"), [(8, 2), (1000, 4)])
def test_few_messages_in_a_rotation(n_components, n_blocks, process_client, configured):
    """However many tokens, a block that is soon drawn is one of two of a rank."""
    counts = np.random.default_rng(0).poisson(8.0, (80, 2000)).astype(float)
    model = make(n_ranks=2, max_iter=2).set_params(n_components=n_components)
    without_copies = configured({"dask-ma.on-worker-loss": "raise"}, process_client)
    with process_client.as_current(), without_copies:
        model.fit(counts)
    of_blocks = 2 * 2 * n_blocks  # each goes there and back
    for record in model.history_[2:]:
        assert 0 <= record["messages_sent"] - of_blocks < 8  # of sums


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_totals_that_are_exchanged_more_often(sampler):
    fits = [
        make(
            sampler=sampler, n_ranks=n, synchronize=when, keep_tokens=True, max_iter=4
        ).fit(X)
        for n in (1, 2)
        for when in ("rotation", "iteration")
    ]
    np.testing.assert_array_equal(fits[0].components_, fits[1].components_)
    assert (fits[2].components_ != fits[3].components_).any()
    for model in fits:
        assert model.components_.sum() == pytest.approx(X.sum() + 0.06 * K * V)


# Priors and first topics --------------------------------------------------------------


def test_learned_priors():
    rng = np.random.default_rng(1)
    alpha = np.array([0.05, 0.1, 0.3, 0.9])
    theta = rng.dirichlet(alpha, 300)
    counts = np.array([rng.multinomial(40, row) for row in theta @ PHI])
    model = make(
        doc_topic_prior="auto",
        topic_word_prior="auto",
        max_iter=40,
        learn_every=1,
        random_state=1,  # from others, two topics share one
    ).fit(counts)
    assert model.doc_topic_prior_.shape == (K,)
    np.testing.assert_allclose(np.sort(model.doc_topic_prior_), alpha, rtol=0.3)
    assert 0.02 < model.topic_word_prior_ < 0.15
    plain = make(max_iter=40, random_state=1).fit(counts)
    assert model.log_likelihood_ > plain.log_likelihood_
    late = clone(model).set_params(burn_in=9, max_iter=10).fit(counts)
    assert np.ptp(late.doc_topic_prior_) < np.ptp(model.doc_topic_prior_)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_priors_of_words_guide_topics(sampler):
    prior = np.full((K, V), 0.06)
    best = np.argsort(-PHI, axis=1)[:, :5]
    np.put_along_axis(prior, best, 2.0, axis=1)
    model = make(topic_word_prior=prior, sampler=sampler, max_iter=15).fit(X)
    shares = model.components_ / model.components_.sum(axis=1, keepdims=True)
    nearest = np.abs(PHI[:, np.newaxis] - shares).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(nearest, np.arange(K))
    np.testing.assert_array_equal(model.topic_word_prior_, prior.astype(np.float32))


def test_an_asymmetric_prior_draws_documents_to_a_topic():
    prior = np.array([5, 0.1, 0.1, 0.1])
    model = make(doc_topic_prior=prior, keep_tokens=True, max_iter=10).fit(X)
    shares = model.doc_topic_
    assert shares.mean(axis=0).argmax() == 0
    np.testing.assert_allclose(shares[7], prior / prior.sum(), rtol=1e-6)


def test_a_prior_for_each_word():
    prior = np.full(V, 0.06)
    same = make(topic_word_prior=prior, max_iter=5).fit(X)
    expected = make(max_iter=5).fit(X)
    np.testing.assert_array_equal(same.components_, expected.components_)
    prior[11] = 50  # the word that never occurs
    likely = make(topic_word_prior=prior, max_iter=5).fit(X).components_
    np.testing.assert_array_equal(likely[:, 11], 50)


def test_first_topics_by_weights_and_by_the_last_fit():
    start = PHI + 1e-6
    begun = make(components_init=start, max_iter=1).fit(X)
    assert begun.log_likelihood_ > make(max_iter=1).fit(X).log_likelihood_ + 0.2
    warm = make(warm_start=True, max_iter=20).fit(X)
    warm.set_params(max_iter=1).fit(X)
    assert warm.log_likelihood_ > make(max_iter=1).fit(X).log_likelihood_ + 0.2
    for other in (X[:, :10], np.hstack([X, X])):  # rows of words, or none, would do
        with pytest.raises(ValueError, match=r"other features.* set warm_start=False"):
            warm.fit(other)
    assert warm.n_features_in_ == X.shape[1]
    assert warm.set_params(warm_start=False).fit(X[:, :10]).n_features_in_ == 10


def test_more_documents_on_top():
    model = make().partial_fit(X[:60])
    first = model.components_.copy()
    model.partial_fit(X[60:])
    added = model.components_ - first
    np.testing.assert_allclose(added.sum(axis=0), X[60:].sum(axis=0), atol=1e-4)
    assert_finds_planted_topics(model, most=0.25)
    assert model.topic_word_prior_ == 0.06
    with pytest.raises(ValueError, match="n_components is 7, but the topics to go on"):
        model.set_params(n_components=7).partial_fit(X)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_mean_of_samples(sampler):
    params = {"sampler": sampler, "max_iter": 6, "n_samples": 3, "thin": 2}
    mean = make(**params).fit(X).components_
    single = [make(sampler=sampler, max_iter=m).fit(X).components_ for m in (2, 4, 6)]
    np.testing.assert_allclose(mean, np.mean(single, axis=0), rtol=1e-5)


def test_the_likelihood_is_evaluated_when_it_is_due():
    model = make(max_iter=5, evaluate_every=2).fit(X)
    known = [np.isfinite(record["log_likelihood"]) for record in model.history_]
    assert known == [False, False, True, False, True, True]


# New documents ------------------------------------------------------------------------


def test_perplexities(fitted):
    model = fitted["exact"]
    completion = model.perplexity(NEW)
    n_words = np.floor(NEW.sum(axis=1) / 2).sum()
    assert model.score(NEW) == pytest.approx(-np.log(completion) * n_words)
    whole = [model.perplexity(NEW, method="left-to-right") for _ in range(2)]
    assert whole[0] == whole[1]
    assert model.perplexity(NEW, method="left-to-right", random_state=1) != whole[0]
    assert whole[0] == pytest.approx(completion, rel=0.2)
    lazy = da.from_array(NEW, chunks=(15, V))
    assert model.perplexity(lazy) == pytest.approx(completion)
    assert model.perplexity(lazy, method="left-to-right") == pytest.approx(
        whole[0], rel=0.05
    )
    for options, message in (
        ({"method": "bound"}, "method should be one of"),
        ({"n_particles": 0}, "n_particles should be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            model.perplexity(NEW, **options)
    for counts in (0 * NEW, np.eye(V)):
        with pytest.raises(ValueError, match="no words to predict: .* every second"):
            model.perplexity(counts)
    with pytest.raises(ValueError, match="whole numbers from 0 on"):
        model.perplexity(NEW / 2, method="left-to-right")


def test_proportions_of_new_documents(fitted):
    model = fitted["exact"]
    shares = model.transform(NEW)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    truth = THETA[:40] @ PHI
    mixed = shares @ (model.components_ / model.components_.sum(axis=1)[:, None])
    assert np.abs(mixed - truth).sum(axis=1).mean() / 2 < 0.2
    lazy = model.transform(da.from_array(NEW, chunks=(15, V)))
    np.testing.assert_allclose(lazy.compute(), shares, rtol=1e-5)
    top = model.top_words(3)
    assert [len(words) for words in top] == [3] * K
    assert (model.coherence(X, top_n=4, measure="npmi") > 0).all()


def test_copies(fitted):
    model = fitted["exact"]
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(NEW), model.transform(NEW))
    np.testing.assert_array_equal(
        again.token_topics_.topics, model.token_topics_.topics
    )
    twin = model.to_sklearn()
    # Variational weights of words in place of their probabilities: 0.01 apart.
    assert np.abs(twin.transform(NEW) - model.transform(NEW)).max() < 1e-3
    before = twin.components_.copy()
    assert np.abs(twin.partial_fit(X).components_ - before).max() > 0
    scores = cross_val_score(make(max_iter=5), X[10:40], cv=2)
    assert np.isfinite(scores).all()
    refit = clone(model).set_params(keep_tokens=False, max_iter=1).fit(X)
    with pytest.raises(AttributeError, match="fit with keep_tokens=True"):
        _ = refit.doc_topic_
    model = clone(refit).set_params(keep_tokens=True).fit(X)
    assert not hasattr(model.set_params(keep_tokens=False).fit(X), "token_topics_")


# Input --------------------------------------------------------------------------------


def kinds():
    frame = pd.DataFrame(X, columns=[f"w{i}" for i in range(V)])
    return {
        "integers": X.astype(int),
        "csr": sparse.csr_array(X),
        "csc": sparse.csc_matrix(X),
        "frame": frame,
        "dask": da.from_array(X, chunks=(60, V)),
        "dask of csr": da.from_array(X, chunks=(60, V)).map_blocks(sparse.csr_matrix),
    }


@pytest.fixture(scope="module")
def of_array(few_tiles):
    """A fit of few rotations, of an array."""
    return make(n_ranks=2, max_iter=2, keep_tokens=True).fit(X)


@pytest.mark.parametrize("kind", kinds())
def test_all_kinds_of_counts_give_the_same(kind, of_array):
    model, expected = clone(of_array).fit(kinds()[kind]), of_array
    np.testing.assert_array_equal(model.components_, expected.components_)
    for own, other in zip(model.token_topics_, expected.token_topics_, strict=True):
        np.testing.assert_array_equal(own, other)


def test_fractions():
    fractional = X + 0.3
    with pytest.raises(ValueError, match="fractions='raise' is set, but row 0"):
        make().fit(fractional)
    with pytest.raises(ValueError, match="row 0 of block 0 has 0.3 in column"):
        make().fit(da.from_array(fractional, chunks=(60, V)))
    rounded = make(fractions="round", max_iter=5).fit(fractional)
    expected = make(max_iter=5).fit(X)
    np.testing.assert_array_equal(rounded.components_, expected.components_)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_counts_that_cannot_be(n_ranks):
    wrong = X.copy()
    wrong[100, 3] = -1
    model = make(n_ranks=n_ranks)
    with pytest.raises(ValueError, match="Negative values in data passed to"):
        model.fit(wrong)
    with pytest.raises(ValueError, match="row 40 of block 1 has -1 in column 3"):
        model.fit(da.from_array(wrong, chunks=(60, V)))
    wrong[100, 3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model.fit(wrong)
    wrong[100, 3] = 3e9
    with pytest.raises(ValueError, match="tokens in block . of which a|each of which"):
        model.fit(wrong)
    with pytest.raises(ValueError, match="X has no words"):
        model.fit(0 * X)
    assert not hasattr(model, "components_")


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_more_topics_and_ranks_than_there_is_to_share(sampler):
    few = np.zeros((3, 2))
    few[0, 0], few[2, 0] = 1, 2
    model = SchMPLDA(
        9, sampler=sampler, max_iter=3, n_ranks=3, random_state=0, keep_tokens=True
    ).fit(few)
    assert model.components_.shape == (9, 2)
    assert model.components_.sum() == pytest.approx(3 + 2)
    np.testing.assert_array_equal(model.token_topics_.documents, [0, 2, 2])
    np.testing.assert_allclose(model.doc_topic_[1], 1 / 9, rtol=1e-6)
    one = SchMPLDA(1, sampler=sampler, doc_topic_prior="auto", max_iter=6).fit(X)
    assert one.doc_topic_prior_ == 1


def test_samples_that_do_not_fit_in():
    for params in (
        {"n_samples": 4, "thin": 10, "max_iter": 30},
        {"n_samples": 2, "thin": 5, "burn_in": 25},
        {"doc_topic_prior": "auto", "burn_in": 30},
    ):
        with pytest.raises(ValueError, match="the first sample is that of rotation"):
            make(**params).fit(X)


# Going on -----------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_fit_that_goes_on_equals_one_that_was_not_interrupted(
    sampler, tmp_path, configured, interrupted
):
    model = make(
        sampler=sampler,
        n_ranks=2,
        max_iter=6,
        n_samples=2,
        thin=3,
        doc_topic_prior="auto",
        learn_every=2,
        keep_tokens=True,
    )
    whole = clone(model).fit(X)
    with configured({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(4):
            clone(model).fit(X)
        again = clone(model).fit(X)
    np.testing.assert_array_equal(again.components_, whole.components_)
    np.testing.assert_array_equal(
        again.token_topics_.topics, whole.token_topics_.topics
    )


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_fit_that_goes_on_with_other_ranks(
    sampler, tmp_path, configured, interrupted
):
    model = make(sampler=sampler, n_ranks=3, max_iter=10, keep_tokens=True)
    with configured({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(7):
            clone(model).fit(X)
        with pytest.warns(UserWarning, match="was written by 3 ranks"):
            again = clone(model).set_params(n_ranks=2).fit(X)
    tokens = again.token_topics_
    table = np.zeros((V, K))
    np.add.at(table, (tokens.words, tokens.topics), 1)
    np.testing.assert_allclose(again.components_, table.T + 0.06, rtol=1e-5)
    assert again.n_iter_ == 10
    assert again.log_likelihood_ > model.fit(X).log_likelihood_ - 0.1


@pytest.mark.each
@pytest.mark.parametrize(("period", "n_kept"), [(0.0, 6), (1e9, 1)])
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_states_are_kept_as_often_as_they_cost_little(
    n_ranks, period, n_kept, monkeypatch
):
    """None after the last rotation, from which nothing goes on, but to be written."""
    original, kept = TopicRounds.state_dict, []

    def state_dict(rounds):
        state = original(rounds)
        if state is not None and rounds.context.group.rank == 0:
            kept.append(rounds.engine.iteration)
        return state

    monkeypatch.setattr(TopicRounds, "state_dict", state_dict)
    monkeypatch.setattr("dask_ma.schmp.topics._agent._PERIOD", period)
    make(n_ranks=n_ranks, max_iter=6).fit(X)
    assert kept == list(range(1, n_kept + 1))


def test_states_that_are_asked_for_are_kept_always(tmp_path, configured, monkeypatch):
    monkeypatch.setattr("dask_ma.schmp.topics._agent._PERIOD", 1e9)
    original, kept = TopicRounds.state_dict, []

    def state_dict(rounds):
        state = original(rounds)
        kept.append(state is not None)
        return state

    monkeypatch.setattr(TopicRounds, "state_dict", state_dict)
    with configured({"dask-ma.checkpoint.path": str(tmp_path)}):
        make(max_iter=3).fit(X)
    assert kept == [True] * 4


# Models of different documents --------------------------------------------------------


def test_merged_models_have_the_counts_of_all_documents(halves):
    """Their tokens are those of both, and their topics those of each, aligned."""
    first, second = halves
    merged = first.merge([second])
    prior = FIT["topic_word_prior"]
    counts = merged.components_ - prior
    np.testing.assert_allclose(counts.sum(axis=0), X.sum(axis=0), atol=1e-3)
    assert merged.n_documents_ == len(X)
    assert merged.get_params() == first.get_params()
    assert_finds_planted_topics(merged, most=0.25)
    assert not hasattr(merged, "history_")
    straight = first.merge([second], align=False)
    expected = first.components_ + second.components_ - prior
    np.testing.assert_allclose(straight.components_, expected, rtol=1e-5)
    alone = [model.perplexity(NEW) for model in (first, second)]
    assert merged.perplexity(NEW) < max(alone)
    with pytest.raises(TypeError, match=r"others\[0\] is a MALDA, expected a SchMPLDA"):
        first.merge([MALDA(K, max_iter=1).fit(X)])


def test_a_merged_model_goes_on(halves):
    first, second = halves
    merged = first.merge([second])
    before = merged.components_.sum()
    merged.partial_fit(NEW)
    assert merged.components_.sum() == pytest.approx(before + NEW.sum(), rel=1e-5)
