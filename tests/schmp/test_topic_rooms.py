"""SchMPLDA whose tokens are on disks: the same bits, in less memory."""

import gc
import logging
import re
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from traced import traced

from dask_ma import SchMPLDA
from dask_ma.data import _from_dask, _stream, memory_taken
from dask_ma.data import _room as rooms
from dask_ma.exceptions import InsufficientMemoryError
from dask_ma.kernels import TileSampler, _gibbs_proposals
from dask_ma.schmp.topics import _cells, _documents, _layout, _needs
from dask_ma.schmp.topics import _room as topic_rooms
from dask_ma.schmp.topics._documents import Documents
from dask_ma.schmp.topics._exact import ExactMoves
from dask_ma.schmp.topics._layout import tokens_of_blocks
from dask_ma.schmp.topics._metropolis import MetropolisMoves
from dask_ma.schmp.topics._moves import Priors
from dask_ma.schmp.topics._program import GibbsTopics

RNG = np.random.default_rng(0)
X = sparse.csr_array(RNG.poisson(0.4, size=(90, 60)).astype(float))
N_TOKENS = int(X.sum())
SAMPLERS = ["exact", "metropolis"]
pytestmark = pytest.mark.usefixtures("few_tiles")


def make(**params):
    options = {"max_iter": 4, "keep_tokens": True, "random_state": 0, **params}
    return SchMPLDA(5, **options)


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks of each rank."""
    monkeypatch.setattr(_needs, "_PER_BLOCK", 100)


@pytest.fixture
def on_disks(configured, tmp_path):
    values = {"dask-ma.data.persist": False, "dask-ma.data.cache": str(tmp_path)}
    with configured(values):
        yield tmp_path


@pytest.fixture
def mapped(monkeypatch):
    """Bytes of each array that has gone to a disk."""
    seen, original = [], rooms.mapped_room

    def noted(folder, size):
        seen.append(size)
        return original(folder, size)

    monkeypatch.setattr(rooms, "mapped_room", noted)
    return seen


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_bits_as_in_memory(
    sampler, n_ranks, small_blocks, on_disks, mapped, configured
):
    model = make(sampler=sampler, n_ranks=n_ranks).fit(X)
    assert sum(mapped) > 12 * N_TOKENS
    assert not list(on_disks.iterdir())
    written = len(mapped)
    with configured({"dask-ma.data.persist": True}):
        expected = clone(model).fit(X)
    assert len(mapped) == written
    np.testing.assert_array_equal(model.components_, expected.components_)
    np.testing.assert_array_equal(
        model.token_topics_.topics, expected.token_topics_.topics
    )
    assert model.history_[-1]["changed"] == expected.history_[-1]["changed"]


def peaks_of_fits(sampler, counts, n_fits):
    """Bytes traced in each of some fits: what else the process does only adds."""
    for _ in range(n_fits):
        gc.collect()  # what is garbage now is not to go within a fit, or to stay
        # Stages, of which there are few here, go over tokens again and again.
        model = SchMPLDA(3, sampler=sampler, max_iter=1, n_ranks=1, init="random")
        with traced() as memory:
            model.fit(counts)
        yield memory.peak


def bytes_per_token(sampler, few, many, most):
    """What a token of `many` adds to the peak, of fits until one is below `most`.

    One is enough, as other fits could only be lower, but not of `few`, whose least peak
    is what the others are set against: they have a quarter of the tokens.
    """
    n_more = int(many.sum() - few.sum())
    least = min(peaks_of_fits(sampler, few, 2))
    slopes = []
    for peak in peaks_of_fits(sampler, many, 4):
        slopes.append((peak - least) / n_more)
        if slopes[-1] < most:
            break
    return min(slopes)


@pytest.mark.parametrize(
    ("sampler", "most"), [("exact", (12, 10)), ("metropolis", (31, 8))]
)
def test_memory_of_a_token(
    sampler, most, configured, tmp_path, monkeypatch, record_property, as_workers_do
):
    """What a further token adds to the peak; blocks are small beside the whole.

    A fit has some 500 kB for anything else, whatever the number of tokens. Of the bytes
    with disks some are arrays of a tile, which has a 128th of so few tokens. Alone they
    are 9 and 5 with "exact"; after some thousand other tests 8.6 was seen for the 5.
    """
    monkeypatch.setattr(_needs, "_MOST_TOKENS", 4_000)
    monkeypatch.setattr(_documents, "_PART", 1_000)
    monkeypatch.setattr(_layout, "_CHUNK", 1_000)
    monkeypatch.setattr(_cells, "_CHUNK", 1_000)
    monkeypatch.setattr(_gibbs_proposals, "_RUN_TOKENS", 1_000)
    rng = np.random.default_rng(1)
    many = sparse.csr_array(rng.poisson(1.5, size=(400, 120)).astype(float))
    slopes = []
    for persists, below in zip((True, False), most, strict=True):
        values = {"dask-ma.data.persist": persists, "dask-ma.data.cache": str(tmp_path)}
        with configured(values):
            slopes.append(bytes_per_token(sampler, many[:100], many, below))
    record_property("bytes_per_token", [round(slope, 1) for slope in slopes])
    assert slopes[0] < most[0]
    assert slopes[1] < most[1]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_fit_on_disks_goes_on_from_its_checkpoint(
    sampler, small_blocks, on_disks, configured, interrupted, tmp_path_factory
):
    model = make(sampler=sampler, n_ranks=2, max_iter=4)
    whole = clone(model).fit(X)
    folder = tmp_path_factory.mktemp("checkpoints")
    with configured({"dask-ma.checkpoint.path": str(folder)}):
        with interrupted(3):
            clone(model).fit(X)
        again = clone(model).fit(X)
    np.testing.assert_array_equal(again.components_, whole.components_)
    assert not list(on_disks.iterdir())


@pytest.fixture
def limited(monkeypatch):
    """``limited(n, taken=0)``: processes that may take so many bytes, and have some."""

    def limit(n_bytes, taken=0):
        monkeypatch.setattr(topic_rooms, "memory_here", lambda: n_bytes)
        monkeypatch.setattr(topic_rooms, "memory_taken", lambda: taken)

    return limit


def test_where_tokens_lie_follows_from_what_they_take(
    limited, mapped, configured, caplog, tmp_path, small_blocks
):
    with configured({"dask-ma.data.cache": str(tmp_path)}):
        with caplog.at_level(logging.INFO, "dask_ma.schmp"):
            limited(2**30)
            expected = make(n_ranks=2).fit(X)
            assert not mapped
            assert "tokens stay in memory" in caplog.text
            limited(100_000)
            model = make(n_ranks=2).fit(X)
            assert mapped
            assert "of 97.66 kiB of memory: tokens go to local disks" in caplog.text
    np.testing.assert_array_equal(model.components_, expected.components_)


def test_what_cannot_be_done_is_refused_before_it_begins(
    limited, configured, monkeypatch
):
    def update(*_):
        raise AssertionError("a topic has been drawn")

    monkeypatch.setattr(GibbsTopics, "update", update)
    limited(20_000)
    text = (
        rf"X has 90 documents with {N_TOKENS} tokens.*19.53 kiB,.*take more or larger"
    )
    with pytest.raises(InsufficientMemoryError, match=text + ".*'metropolis'"):
        make(n_ranks=2).fit(X)
    with configured({"dask-ma.data.persist": True}):
        with pytest.raises(InsufficientMemoryError, match=r"data\.persist 'auto'"):
            make(n_ranks=2).fit(X)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_refusal_names_what_would_be_enough(sampler, limited):
    limited(20_000)
    model = make(n_ranks=1, sampler=sampler)
    with pytest.raises(InsufficientMemoryError, match="may take 75%") as refusal:
        model.fit(X)
    text = str(refusal.value)
    # What is set already does not help.
    assert ("sampler='metropolis'" in text) == (sampler == "exact")
    assert "fewer topics" in text
    [enough] = re.findall(r"larger workers, with (\S+) kiB each", text)
    limited(int((float(enough) - 0.1) * 1024))
    with pytest.raises(InsufficientMemoryError):
        model.fit(X)
    limited(int((float(enough) + 0.1) * 1024))
    model.fit(X)


@pytest.mark.pairs
@pytest.mark.parametrize("n_components", [5, 1000])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_what_is_foreseen_is_what_is_found(
    sampler, n_ranks, n_components, small_blocks, on_disks, cluster, monkeypatch
):
    """By the first blocks and by all of them, but for which documents they are."""
    monkeypatch.setattr(_stream, "_LITTLE", 0)
    monkeypatch.setattr(topic_rooms, "_DOCUMENT", 0)
    monkeypatch.setattr(topic_rooms, "memory_here", lambda: 10**12)
    seen = []

    def refuse(processes, shape, sampler, *, on_disk):
        [process] = processes
        seen.append((process.needs.others, process.needs.rows, shape, on_disk))

    monkeypatch.setattr(topic_rooms, "_refuse", refuse)
    # Alike, as any of them may be there first, and as many as there is time for.
    ours = sparse.vstack([X[:45]] * 4, format="csr")
    lazy = da.concatenate([da.from_array(X[:45].toarray(), chunks=(45, 60))] * 4)
    model = make(sampler=sampler, n_ranks=n_ranks, max_iter=1, init="random")
    model.set_params(n_components=n_components).fit(lazy)
    (early, *rest), *late = seen
    assert rest == [0, ours.shape[:1] + (int(ours.sum()),), True]
    for others, *same in late:
        assert same == rest
        assert others == pytest.approx(early, rel=0.02)
    assert len(late) == n_ranks


@pytest.mark.parametrize("persist", [False, "auto"])
@pytest.mark.parametrize("knows_rows", [False, True])
def test_what_disks_cannot_do_is_refused_by_the_first_blocks(
    persist, knows_rows, cluster, configured, monkeypatch, tmp_path
):
    """Nothing is written, whether or not metadata tell the number of documents."""
    stored, n = [], 30 if knows_rows else np.nan
    monkeypatch.setattr(_stream, "_LITTLE", 0)
    monkeypatch.setattr(topic_rooms, "_MOST", 1e-9)
    monkeypatch.setattr(_from_dask, "_to_disks", lambda *_: stored.append(1))
    part = dask.delayed(X[:30])
    meta = sparse.csr_array((0, 60))
    blocks = [da.from_delayed(part, (n, 60), float, meta=meta) for _ in range(12)]
    values = {
        "dask-ma.data.persist": persist,
        "dask-ma.data.cache": str(tmp_path),
        "dask-ma.data.memory-fraction": 1e-9,
    }
    text = f"X has 360 documents with {12 * int(X[:30].sum())} tokens.*'metropolis'"
    with configured(values), pytest.raises(InsufficientMemoryError, match=text):
        make().fit(da.concatenate(blocks, allow_unknown_chunksizes=True))
    assert not stored and not list(tmp_path.iterdir())


def test_blocks_that_are_none_are_named_by_the_fit(cluster, on_disks, monkeypatch):
    """What counts their tokens says nothing of them."""
    monkeypatch.setattr(_stream, "_LITTLE", 0)
    for wrong in (np.full((30, 60), np.nan), np.full((30, 60), "word", dtype=object)):
        blocks = [da.from_delayed(dask.delayed(wrong), (30, 60), float)] * 2
        with pytest.raises(ValueError, match="[Bb]lock [01]"):
            make().fit(da.concatenate(blocks))


def test_the_process_that_lacks_most_is_named(monkeypatch):
    """Others may need more, and have more memory, too."""
    known = [
        (("a", 1), 2**20, 0, (0, 0, 0, 830_000)),
        (("b", 2), 2**16, 0, (0, 0, 0, 2**17)),
    ]
    monkeypatch.setattr(topic_rooms, "allgather", lambda *_: known)
    settings = rooms.RoomSettings(None, 0.4, None)
    text = "64.00 kiB.*with 170.67 kiB each"
    with pytest.raises(InsufficientMemoryError, match=text):
        needs = _needs.Needs(0, 0, 0, 0)
        topic_rooms.open_room(needs, settings, None, (90, 1000), "exact")


def test_an_open_block_takes_what_is_counted():
    """Traced, with sparse rows that are made dense while their tokens are drawn."""
    rng = np.random.default_rng(3)
    n_words, n_topics, n_documents, length = 2000, 1000, 100, 50
    words = np.sort(rng.integers(0, n_words, (n_documents, length)), axis=1)
    n = words.size
    starts = np.arange(n_documents + 1) * length
    keys = np.arange(n_documents)
    documents = Documents(keys, starts, words.ravel(), n_documents, n)
    moves = ExactMoves(documents, n_topics, rooms.Room())
    [block] = tokens_of_blocks(documents, [np.arange(n_words)], n_words)
    moves.add_block(0, block)
    counts = moves.empty_counts(n_words)
    totals = moves.place(0, counts, None, rng)
    list(moves.document_counts())  # whose table is counted by itself
    prior = np.full(n_words, 0.01, dtype=np.float32)
    priors = Priors(np.full(n_topics, 0.1), prior, np.full(n_topics, 0.01 * n_words))
    with traced() as memory:
        moves.visit(0, counts, priors, totals, rng)
    width = TileSampler(n_topics).width
    counted = _needs.open_block_bytes(n_words, n_topics, width, n)
    # Other threads of the process allocate a little, too.
    assert memory.peak == pytest.approx(counted, rel=0.1)


def test_the_largest_block_is_counted(small_blocks):
    """Blocks have as many tokens each, so those of rare words have more words."""
    n_words, n_topics = 20_000, 1000
    work = np.arange(1, n_words + 1) ** -1.2
    work = np.round(work / work[-1])
    n_tokens = int(work.sum())
    documents = Documents(np.arange(1), np.array([0, n_tokens]), np.empty(0, np.uint8))
    documents.n_total, documents.n_all_tokens = 1, n_tokens
    params = SimpleNamespace(
        n_components=n_topics,
        n_features=n_words,
        sampler="exact",
        n_proposals=4,
        synchronize="rotation",
    )
    program, group = GibbsTopics(params), SimpleNamespace(size=4)
    shard = SimpleNamespace(blocks=[])
    blocks = [block for own in program.blocks(work, 4) for block in own]
    most = max(len(block) for block in blocks)
    assert most > 1.2 * n_words / len(blocks)
    width = TileSampler(n_topics).width
    needs = program._needs(documents, shard, group)
    tables = _needs.TABLES * 8 * n_tokens // 4
    laid_out = _needs.LAYOUT * n_tokens // len(blocks)
    others = 4 * width + int(_needs.TILES * n_tokens) + tables + laid_out
    n_filled = n_tokens // len(blocks)
    block = _needs.open_block_bytes(most, n_topics, width, n_filled)
    assert needs.others - others >= block


def test_what_a_process_has_without_the_tokens_counts(limited, mapped, caplog):
    """Modules and the like, beside rows that are there anyway."""
    rows = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    limited(2**20, 2**19 + rows)
    make(n_ranks=1).fit(X)
    assert not mapped
    limited(2**20, int(0.65 * 2**20) + rows)
    make(n_ranks=1).fit(X)
    assert mapped
    limited(2**20, 2**20 + rows)
    text = "Beside the 1.00 MiB that it has now.*its memory is 1.00 MiB"
    with pytest.raises(InsufficientMemoryError, match=text):
        make(n_ranks=1).fit(X)


def test_memory_that_is_taken():
    # Larger than what the C library keeps at the end of a heap of a thread, which
    # nothing gives back: the main thread has one after an allocation that failed.
    array = np.ones(2**23)
    taken = memory_taken()
    assert taken > array.nbytes
    del array
    assert memory_taken() < taken - 2**25


@pytest.mark.parametrize("n_blocks", [1, 7])
def test_tokens_on_disks_are_those_in_memory(n_blocks, tmp_path, monkeypatch):
    """Looked at twice, however many blocks of words there are."""
    monkeypatch.setattr(_layout, "_CHUNK", 50)
    looks = []
    original = _layout.chunks
    monkeypatch.setattr(
        _layout, "chunks", lambda words: looks.append(1) or original(words)
    )
    rng = np.random.default_rng(2)
    starts = np.cumsum([0, *rng.integers(0, 30, 40)])
    words = rng.integers(0, 60, starts[-1]).astype(np.int32)
    documents = Documents(np.arange(40), starts, words)
    blocks = [np.arange(i, 60, n_blocks) for i in range(n_blocks)]
    room = rooms.Room(str(tmp_path), on_disk=True)
    found = list(tokens_of_blocks(documents, blocks, 60, room))
    assert len(looks) == 2
    expected = list(tokens_of_blocks(documents, blocks, 60))
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_laying_a_block_out_takes_what_is_counted(sampler, tmp_path, monkeypatch):
    """Traced, beside the words and what goes to the disk."""
    monkeypatch.setattr(_layout, "_CHUNK", 1000)
    rng = np.random.default_rng(3)
    n_documents, length, n_words = 2000, 100, 50
    words = np.sort(rng.integers(0, n_words, (n_documents, length), dtype=np.int32))
    starts = np.arange(n_documents + 1) * length
    n = n_documents * length
    documents = Documents(np.arange(n_documents), starts, words.ravel(), n_documents, n)
    room = rooms.Room(str(tmp_path), on_disk=True)
    made = {
        "exact": lambda: ExactMoves(documents, 4, room),
        "metropolis": lambda: MetropolisMoves(documents, 4, room, 4),
    }
    moves = made[sampler]()
    blocks = tokens_of_blocks(documents, [np.arange(n_words)], n_words, room)
    with traced() as memory:
        moves.add_block(0, next(blocks))
    assert memory.peak < _needs.LAYOUT * n


def test_weights_of_words_take_little(monkeypatch):
    """Beside the words, which may be on a disk."""
    monkeypatch.setattr(_layout, "_CHUNK", 1000)
    words = np.arange(2_000_000, dtype=np.int32) % 60
    local = SimpleNamespace(documents=SimpleNamespace(words=words, rows=None))
    program = GibbsTopics(SimpleNamespace(n_features=60, synchronize="rotation"))
    with traced() as memory:
        weights = program.weights(local)
    np.testing.assert_array_equal(weights, np.bincount(words, minlength=60))
    assert memory.peak < words.nbytes / 10
