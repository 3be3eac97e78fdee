"""Rows of the next batch, which are put together while an update is under way."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits
from traced import traced

from dask_ma import SFBMetricLearner
from dask_ma.comm import LocalGroup
from dask_ma.data import Block, Shard
from dask_ma.engine import RankContext
from dask_ma.sfb.exchange import _full_matrix
from dask_ma.sfb.exchange._full_matrix import MatrixExchange
from dask_ma.sfb.metric import _plan
from dask_ma.sfb.metric._plan import LabelSource
from dask_ma.sfb.model import _pairs, _source
from dask_ma.sfb.model._factors import Factors
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._pairs import RowTable
from dask_ma.sfb.model._source import RowSource
from dask_ma.sfb.prox import NoPenalty

X, y = load_digits(return_X_y=True)
X = (X[:600] / 16).astype(np.float32)
y = y[:600]


@pytest.fixture
def grouped(monkeypatch):
    """Batches of two groups of 20 rows each, which ranks share out: 15 in a pass."""
    monkeypatch.setattr("dask_ma.sfb.metric._learner.GROUP_SIZE", 20)
    monkeypatch.setattr(_plan, "count_groups", lambda n_rows: 2)
    monkeypatch.setattr("dask_ma.sfb.metric._cost.Steps.are_quicker_alone", is_slower)
    content = lambda steps, n_ranks: "full_matrix"  # noqa: E731
    monkeypatch.setattr("dask_ma.sfb.metric._cost.Steps.smaller_content", content)


def is_slower(*_):
    """It is never quicker alone."""
    return False


def fit(**params):
    given = {"max_iter": 2, "tol": None, "random_state": 0, "n_ranks": 2}
    return SFBMetricLearner(5, **{**given, **params}).fit(X, y)


@pytest.mark.usefixtures("grouped")
def test_rows_are_picked_before_the_update_is_waited_for(monkeypatch):
    """Of each batch but the first of a pass, by both ranks."""
    seen = {0: "", 1: ""}
    take, push, recv = LabelSource.take, LocalGroup.push, LocalGroup.recv

    def noted_take(self, places):
        # Those of the sample, and of scores, are not batches.
        seen[self.rank] += "t"
        return take(self, places)

    def noted_push(self, payload, dest, tag=0, **options):
        if tag == _full_matrix._TAG:
            seen[self.rank] += "p"
        push(self, payload, dest, tag, **options)

    def noted_recv(self, source, tag=0, **options):
        if tag == _full_matrix._TAG:
            seen[self.rank] += "r"
        return recv(self, source, tag, **options)

    original = LabelSource.__init__

    def init(self, context, *args, **params):
        self.rank = context.group.rank
        original(self, context, *args, **params)

    monkeypatch.setattr(LabelSource, "__init__", init)
    monkeypatch.setattr(LabelSource, "take", noted_take)
    monkeypatch.setattr(LocalGroup, "push", noted_push)
    monkeypatch.setattr(LocalGroup, "recv", noted_recv)
    model = fit()
    assert model.communication_ == "full_matrix"
    of_a_pass = "t" + 14 * "ptr" + "pr"
    assert seen == {0: 2 * of_a_pass, 1: 2 * of_a_pass}


@pytest.mark.usefixtures("grouped")
def test_fits_are_those_with_an_allreduce(monkeypatch):
    ahead = fit()
    monkeypatch.setattr(_full_matrix, "_SHORT_BYTES", 0)
    plain = fit()
    np.testing.assert_array_equal(ahead.components_, plain.components_)
    for one, other in zip(ahead.history_, plain.history_, strict=True):
        assert one["objective"] == other["objective"]


@pytest.mark.parametrize("shape", [(5, 64), (50, 784)])
def test_updates_are_those_of_an_allreduce(monkeypatch, shape):
    """To the bit, with as many messages and bytes from process to process."""
    rng = np.random.default_rng(0)
    factors = [
        Factors(*(rng.normal(size=(20, n)).astype(np.float32) for n in shape))
        for _ in range(2)
    ]

    def program(group):
        calls = []
        matrix = ParameterMatrix(np.zeros(shape, np.float32), None, NoPenalty())
        exchange = MatrixExchange(group, by_server=False)
        update = exchange.total(factors[group.rank], matrix, lambda: calls.append(1))
        sent = group.counters.messages_sent, group.counters.bytes_sent
        return update.values, sent, len(calls)

    found = []
    for most in (_full_matrix._SHORT_BYTES, 0):
        monkeypatch.setattr(_full_matrix, "_SHORT_BYTES", most)
        with ThreadPoolExecutor(2) as pool:
            groups = LocalGroup.create(2, ranks_per_node=1)
            found.append(list(pool.map(program, groups)))
    for ahead, plain in zip(*found, strict=True):
        np.testing.assert_array_equal(ahead[0], plain[0])
        assert ahead[1] == plain[1] and ahead[1][0] > 0
        assert (ahead[2], plain[2]) == (1, 0)


def table_of(kind, sizes):
    """Rows in blocks of some sizes."""
    ends = np.cumsum([0, *sizes])
    blocks = [
        Block(kind(X[start:stop]), y[start:stop], None, number, start)
        for number, (start, stop) in enumerate(zip(ends, ends[1:], strict=False))
    ]
    return RowTable(Shard(blocks, X.shape[1], X.dtype))


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("sizes", [(300,), (250, 50), (50, 250), (100, 100, 100)])
def test_rows_of_some_blocks(kind, sizes):
    places = np.random.default_rng(0).permutation(300)[:120]
    found = table_of(kind, sizes).take(places)
    found = found.toarray() if sparse.issparse(found) else found
    np.testing.assert_array_equal(found, X[places])
    assert found.dtype == X.dtype


@pytest.mark.parametrize("larger", [0, 1])
def test_rows_of_blocks_of_other_types(larger):
    """All rows are of the type of the shard, whichever block has most of them."""
    sizes, types = [(250, 50), (50, 250)][larger], (np.float64, np.float32)
    ends = np.cumsum([0, *sizes])
    blocks = [
        Block((X[start:stop] / 3).astype(dtype), None, None, number, start)
        for number, (start, stop, dtype) in enumerate(
            zip(ends, ends[1:], types, strict=False)
        )
    ]
    table = RowTable(Shard(blocks, X.shape[1], np.dtype(np.float64)))
    found = table.take(np.arange(300))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, np.vstack([block.X for block in blocks]))


@pytest.mark.parametrize("sizes", [(250, 50), (50, 250), (100, 100, 100)])
def test_rows_that_are_mostly_of_one_block_are_copied_once(monkeypatch, sizes):
    """From there to where they are to be; those of others take another copy."""
    picked, original = [], RowTable._picked

    def noted(table, block, places):
        picked.append(len(places))
        return original(table, block, places)

    monkeypatch.setattr(RowTable, "_picked", noted)
    table_of(np.asarray, sizes).take(np.arange(300))
    assert sorted(picked) == ([50, 300] if len(sizes) == 2 else [100, 100, 100])


@pytest.mark.parametrize(
    ("kind", "sizes", "is_at_hand"),
    [
        (np.asarray, (300,), True),
        (np.asarray, (200, 100), True),
        (np.asarray, (100, 100, 100), False),
        (sparse.csr_array, (300,), False),
    ],
)
def test_rows_at_hand_are_picked_batch_by_batch(monkeypatch, kind, sizes, is_at_hand):
    """Looks at many blocks are saved, and those at a disk."""
    assert table_of(kind, sizes).is_at_hand == is_at_hand
    monkeypatch.setattr(_pairs, "is_on_disk", lambda block: True)
    assert not table_of(kind, sizes).is_at_hand


def test_ranks_pick_few_rows_at_a_time():
    """There may be many of them in a process."""
    wide = np.random.default_rng(0).normal(size=(2000, 1000))
    source = RowSource(
        RankContext(LocalGroup.create(1)[0], 0),
        Shard([Block(wide, None, None, 0, 0)], 1000, wide.dtype),
        shuffle=True,
    )
    with traced() as memory:
        n_rows = sum(batch.n_rows for batch in source.batches(100, 0))
    assert n_rows == 2000
    assert memory.peak < 2.5 * 2**20


def test_nobody_but_the_caller_keeps_a_batch(monkeypatch):
    """Nor is one put together of two chunks, in a copy."""
    monkeypatch.setattr(_source, "_CHUNK_BYTES", 1)
    wide = np.random.default_rng(0).normal(size=(203, 1000))
    source = RowSource(
        RankContext(LocalGroup.create(1)[0], 0),
        Shard([Block(wide, None, None, 0, 0)], 1000, wide.dtype),
        shuffle=True,
    )
    batches = source.batches(10, 0)
    with traced() as memory:
        first = next(batches)
        n_rows = first.n_rows
        del first
    assert memory.left < wide[:n_rows].nbytes / 2
    assert memory.peak < 1.5 * wide[:n_rows].nbytes
