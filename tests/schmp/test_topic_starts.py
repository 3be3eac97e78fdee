"""SchMPLDA that begins with a part of the documents."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from dask_ma import SchMPLDA
from dask_ma.kernels import polya_sum
from dask_ma.schmp import RotationEngine
from dask_ma.schmp.topics._metropolis import MetropolisMoves
from dask_ma.schmp.topics._program import GibbsTopics

RNG = np.random.default_rng(0)
K, V, D = 4, 60, 200
PHI = RNG.dirichlet(np.full(V, 0.1), K)
THETA = RNG.dirichlet(np.full(K, 0.3), D)
X = np.array([RNG.multinomial(80, row) for row in THETA @ PHI]).astype(float)
X[7] = 0  # a document without words
pytestmark = pytest.mark.usefixtures("few_tiles")
N_STAGES = {"exact": 2, "metropolis": 3}  # for 16,000 tokens, 200 documents
FIT = {
    "doc_topic_prior": 0.2,
    "topic_word_prior": 0.06,
    "max_iter": 6,
    "random_state": 0,
    "n_ranks": 1,
}


def make(**params):
    return SchMPLDA(K, **{**FIT, **params})


@pytest.fixture
def seen(monkeypatch):
    """After each rotation of each rank: its number, tokens of the table, and totals."""
    original, found = RotationEngine.measure, []

    def measure(engine):
        table = np.zeros((V, K), dtype=int)
        for block in engine._at_home():
            counts = block.values["counts"]
            is_sparse = sparse.issparse(counts)
            table[block.parameters] = counts.toarray() if is_sparse else counts
        documents = np.concatenate(list(engine.local.moves.document_counts()))
        found.append((engine.iteration, table, documents, engine.shared["totals"]))
        return original(engine)

    monkeypatch.setattr(RotationEngine, "measure", measure)
    return found


def of_rotation(seen, rotation):
    """The table, rows of documents, and totals of all ranks after a rotation."""
    parts = [part for number, *part in seen if number == rotation]
    tables, documents, totals = zip(*parts, strict=True)
    return sum(tables), np.concatenate(documents), totals


@pytest.fixture
def stages(monkeypatch):
    """Of each fit on one rank, how many there are."""
    original, found = GibbsTopics.prepare, []

    def prepare(program, shard, group):
        local = original(program, shard, group)
        found.append(local.moves.n_stages)
        return local

    monkeypatch.setattr(GibbsTopics, "prepare", prepare)
    return found


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize(
    ("sampler", "most_counted"),
    [("exact", 2**21), ("exact", 0), ("metropolis", 0)],
)
def test_documents_come_in_by_stages(n_ranks, sampler, most_counted, seen, monkeypatch):
    monkeypatch.setattr("dask_ma.schmp.topics._exact._MOST_COUNTED", most_counted)
    make(n_ranks=n_ranks, sampler=sampler).fit(X)
    n_stages = N_STAGES[sampler]
    for rotation in range(1, 8):
        table, documents, totals = of_rotation(seen, rotation)
        assert (table >= 0).all()
        np.testing.assert_array_equal(table.sum(axis=0), documents.sum(axis=0))
        for total in totals:
            np.testing.assert_array_equal(total, table.sum(axis=0))
        part = (documents.sum(axis=1) > 0).mean()
        expected = 0.5 ** max(0, n_stages + 1 - rotation)
        assert part == pytest.approx(expected, abs=0.04)
        if rotation > n_stages:
            np.testing.assert_array_equal(table.sum(axis=1), X.sum(axis=0))
            lengths = np.sort(documents.sum(axis=1))
            np.testing.assert_array_equal(lengths, np.sort(X.sum(axis=1)))


def test_no_stage_waits_for_a_block_without_words(monkeypatch):
    original, n_blocks = MetropolisMoves._turn_of_documents, []

    def noted(moves, runs, blocks, *others):
        n_blocks.append(len(blocks))
        original(moves, runs, blocks, *others)

    monkeypatch.setattr(MetropolisMoves, "_turn_of_documents", noted)
    few = X[: D // 2].reshape(D // 2, 3, -1).sum(axis=2)
    model = make(n_ranks=4, sampler="metropolis", max_iter=8)
    model.set_params(n_components=2).fit(few)
    # The first rotations are of single blocks; then all take turns on each rank.
    assert n_blocks.count(4) >= 4 * 4
    assert model.components_.sum() - 0.06 * 6 == pytest.approx(few.sum())


@pytest.mark.parametrize("sampler", N_STAGES)
def test_the_same_documents_come_first_on_any_number_of_ranks(sampler, seen):
    for n_ranks in (1, 3):
        seen.clear()
        make(n_ranks=n_ranks, sampler=sampler).fit(X)
        table, _, _ = of_rotation(seen, 1)
        if n_ranks == 1:
            first = table.sum(axis=1)
        np.testing.assert_array_equal(table.sum(axis=1), first)


@pytest.mark.parametrize("sampler", N_STAGES)
def test_all_tokens_have_topics_in_the_end(sampler):
    model = make(n_ranks=2, sampler=sampler, keep_tokens=True).fit(X)
    tokens = model.token_topics_
    counts = np.zeros(X.shape)
    np.add.at(counts, (tokens.documents, tokens.words), 1)
    np.testing.assert_array_equal(counts, X)
    of_words, of_documents = np.zeros((V, K), int), np.zeros((D, K), int)
    np.add.at(of_words, (tokens.words, tokens.topics), 1)
    np.add.at(of_documents, (tokens.documents, tokens.topics), 1)
    np.testing.assert_allclose(model.components_, of_words.T + 0.06, rtol=1e-5)
    value = polya_sum(of_documents, 0.2) - polya_sum(of_documents.sum(1), 0.2 * K)
    value += polya_sum(of_words, 0.06) - polya_sum(of_words.sum(0), 0.06 * V)
    assert model.log_likelihood_ == pytest.approx(value / X.sum())


def planted(n_documents):
    """Documents of 60 words of 20 topics."""
    rng = np.random.default_rng(1)
    topics = rng.dirichlet(np.full(300, 0.05), 20)
    shares = rng.dirichlet(np.full(20, 0.1), n_documents)
    return np.array([rng.multinomial(60, row) for row in shares @ topics])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "n_documents"), [("exact", 600), ("metropolis", 300)]
)
def test_ranks_get_as_far_in_the_same_rotations(sampler, n_documents):
    """Also in the first ones, where each rank has tokens of a few words at a time."""
    counts, after = planted(n_documents), {}
    for n_ranks in (1, 5):
        model = make(sampler=sampler, n_ranks=n_ranks, max_iter=8)
        model.set_params(n_components=20).fit(counts)
        after[n_ranks] = model.log_likelihood_
        assert after[n_ranks] > after[1] - 0.15


def test_blocks_go_round_where_documents_come_in():
    """As often as one rank goes through their tokens, and once more at first."""
    model = make(n_ranks=2, sampler="metropolis").fit(X)
    visits = [record["n_updates"] // (2 * V) for record in model.history_]
    assert visits[:5] == [9, 8, 4, 1, 1]


@pytest.mark.each
@pytest.mark.parametrize(("n_empty", "first"), [(0, 0), (D // 2, 1)])
@pytest.mark.parametrize("sampler", N_STAGES)
def test_topics_begin_on_the_first_rank_with_tokens(
    sampler, n_empty, first, monkeypatch
):
    """Others wait for blocks that have been there, a lap at most."""
    original, seen = GibbsTopics.update, {}

    def update(program, block, local, shared, turn):
        before = int(block.values["counts"].sum())
        found = original(program, block, local, shared, turn)
        if turn.rotation == 0 and turn.iteration < 6:
            lap, number = divmod(turn.iteration, 3)
            came = int(block.values["counts"].sum()) - before
            seen.setdefault(lap, {})[block.number, number] = came
        return found

    monkeypatch.setattr(GibbsTopics, "update", update)
    counts = X.copy()
    counts[:n_empty] = 0
    make(n_ranks=3, sampler=sampler).fit(counts)
    for number in range(3):  # home of the block, which goes on to the next rank
        ranks = [(number + c) % 3 for c in range(3)]
        came = [[seen[lap][number, c] > 0 for c in range(3)] for lap in range(2)]
        at = ranks.index(first)
        expected = [r >= first for r in ranks]  # those before it have no tokens
        assert came[0] == [c >= at and expected[c] for c in range(3)]
        assert came[1] == [c < at and expected[c] for c in range(3)]


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 4])
@pytest.mark.parametrize("sampler", N_STAGES)
def test_a_start_by_stages_is_there_in_fewer_rotations(sampler, n_ranks):
    """It is a start alone: in the end, both have come to the same likelihood."""
    counts, after = planted(600 if sampler == "exact" else 300), {}
    lengths = (6, 18) if n_ranks == 1 else (6,)
    for init in ("progressive", "random"):
        for n_rotations in lengths:
            model = make(max_iter=n_rotations, n_ranks=n_ranks, init=init)
            model.set_params(n_components=20, sampler=sampler).fit(counts)
            after[init, n_rotations] = model.log_likelihood_
    assert after["progressive", 6] > after["random", 6] + 0.1
    if n_ranks == 1:
        assert after["progressive", 18] > after["random", 18] - 0.06


@pytest.mark.parametrize("sampler", N_STAGES)
def test_the_same_bits_on_threads_and_processes(
    sampler, inproc_client, process_client, as_workers_do
):
    few = sparse.csr_array(X[: D // 2])
    models = [make(n_ranks=3, sampler=sampler, max_iter=4).fit(few)]
    for client in (inproc_client, process_client):
        with client.as_current():
            models.append(clone(models[0]).fit(few))
    for model in models[1:]:
        np.testing.assert_array_equal(model.components_, models[0].components_)


@pytest.mark.each
@pytest.mark.parametrize("stop", [2, 5])
@pytest.mark.parametrize("sampler", N_STAGES)
def test_a_fit_that_goes_on_begins_anew_or_after_the_stages(
    sampler, stop, tmp_path, configured, interrupted
):
    model = make(n_ranks=2, sampler=sampler, keep_tokens=True)
    whole = clone(model).fit(X)
    with configured({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(stop):
            clone(model).fit(X)
        again = clone(model).fit(X)
    np.testing.assert_array_equal(again.components_, whole.components_)
    np.testing.assert_array_equal(
        again.token_topics_.topics, whole.token_topics_.topics
    )


@pytest.mark.parametrize(
    ("n_stages", "params"),
    [
        (2, {}),
        (0, {"init": "random"}),
        (3, {"sampler": "metropolis"}),
        (2, {"sampler": "metropolis", "n_components": 13}),
        (0, {"components_init": PHI + 0.01}),
        (1, {"max_iter": 1}),
        (1, {"n_samples": 2, "thin": 5}),
        (1, {"n_components": 8}),
        (0, {"n_components": 9}),
    ],
)
def test_stages_there_are(n_stages, params, stages):
    """As many as leave enough tokens of a topic, and before there are samples."""
    model = make().set_params(**params).fit(X)
    assert stages == [n_stages]
    total = model.components_.sum() - 0.06 * V * model.n_components
    assert total == pytest.approx(X.sum())


@pytest.mark.parametrize(("n_stages", "sampler"), [(0, "exact"), (2, "metropolis")])
def test_long_documents_of_the_first_stage(n_stages, sampler, stages):
    """There are five for each topic, or one if topics are proposed."""
    make(sampler=sampler).set_params(n_components=45, max_iter=2).fit(10 * X)
    assert stages == [n_stages]
