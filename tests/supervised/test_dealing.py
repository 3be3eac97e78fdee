"""Rows dealt out to ranks, wherever they have been."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.data import Block, Shard, plan_dealt
from dask_ma.supervised import Problem, deal_rows

LENGTHS = (40, 1, 25, 60, 7)


def blocks_of(kind, weighted, n_targets):
    """Blocks of rows that all differ, with numbers of their own."""
    rng = np.random.default_rng(0)
    n_rows = sum(LENGTHS)
    X = np.round(rng.normal(size=(n_rows, 6)), 1) * (rng.random((n_rows, 6)) < 0.5)
    y = np.arange(n_rows * (n_targets or 1), dtype=float)
    y = y if n_targets is None else y.reshape(n_rows, n_targets)
    weight = rng.uniform(0.5, 2, n_rows)
    ends = np.cumsum(LENGTHS)
    return [
        Block(kind(X[a:b]), y[a:b], weight[a:b] if weighted else None, number, int(a))
        for number, (a, b) in enumerate(zip(ends - LENGTHS, ends, strict=True))
    ]


def problem_of(blocks):
    shard = Shard(blocks, 6, np.dtype(float))
    parts = {"classes": None, "n_problems": 1, "dtype": np.dtype(float)}
    totals = dict.fromkeys(("weight", "total_weight", "total_rows", "total_stored"), 1)
    return Problem(shard, **parts, **totals, uneven="they differ", most=(1, 1.0))


def dealt(run_ranks, blocks, owners, n_ranks=3):
    def deal(group):
        own = [
            b for b, owner in zip(blocks, owners, strict=True) if owner == group.rank
        ]
        return deal_rows(group, problem_of(own))

    return run_ranks(deal, n_ranks)


def dense(X):
    return X.toarray() if sparse.issparse(X) else X


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, sparse.csr_matrix])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_targets", [None, 2])
def test_ranks_get_the_rows_of_the_plan(run_ranks, kind, weighted, n_targets):
    blocks = blocks_of(kind, weighted, n_targets)
    plan = plan_dealt(LENGTHS, 3)
    problems = dealt(run_ranks, blocks, [0, 0, 1, 2, 2])
    for problem, segments in zip(problems, plan, strict=True):
        [block] = problem.shard.blocks
        cuts = [
            (blocks[number], slice(start, stop)) for number, start, stop in segments
        ]
        expected = np.concatenate([dense(whole.X)[rows] for whole, rows in cuts])
        np.testing.assert_array_equal(dense(block.X), expected)
        assert sparse.issparse(block.X) == sparse.issparse(blocks[0].X)
        expected = np.concatenate([whole.y[rows] for whole, rows in cuts])
        np.testing.assert_array_equal(block.y, expected)
        if weighted:
            expected = np.concatenate([b.sample_weight[rows] for b, rows in cuts])
            np.testing.assert_array_equal(block.sample_weight, expected)
        else:
            assert block.sample_weight is None
        assert problem.weight == pytest.approx(block.weights().sum())
        assert problem.uneven is None
        assert problem.most is None


@pytest.mark.parametrize("owners", [[2, 2, 1, 0, 0], [1, 0, 1, 0, 1], [2, 2, 2, 2, 2]])
def test_it_is_all_one_where_the_blocks_have_been(run_ranks, owners):
    """Also on one rank alone, the others without any row."""
    blocks = blocks_of(sparse.csr_matrix, True, None)
    in_order = dealt(run_ranks, blocks, [0, 0, 1, 2, 2])
    elsewhere = dealt(run_ranks, blocks, owners)
    for one, other in zip(in_order, elsewhere, strict=True):
        [one], [other] = one.shard.blocks, other.shard.blocks
        np.testing.assert_array_equal(other.X.toarray(), one.X.toarray())
        np.testing.assert_array_equal(other.y, one.y)
        np.testing.assert_array_equal(other.sample_weight, one.sample_weight)


def test_more_ranks_than_rows(run_ranks):
    """Some get none."""
    block = Block(np.eye(2), np.arange(2.0), None, 0, 0)
    problems = dealt(run_ranks, [block], [1])
    rows = [b.y.tolist() for problem in problems for b in problem.shard.blocks]
    assert sorted(rows) == [[0.0], [1.0]]
    assert sorted(problem.weight for problem in problems) == [0, 1, 1]
