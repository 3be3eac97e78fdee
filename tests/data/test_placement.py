"""Plans, driven by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dask_ma.data._placement import (
    Segment,
    cut_at,
    fill_lowest,
    main_ranks,
    plan_contiguous,
    plan_dealt,
    plan_in_place,
)


def rows_of(plan):
    """Rows of each rank as (block, row) pairs."""
    return [
        [(b, i) for b, start, stop in part for i in range(start, stop)] for part in plan
    ]


def rows_by_rank(plan):
    """Number of rows of each rank."""
    return [sum(s.stop - s.start for s in part) for part in plan]


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 7, 40])
@pytest.mark.parametrize("lengths", [[10], [5, 5], [1, 0, 13, 2], [0, 7, 0], [3] * 9])
def test_contiguous_gives_each_rank_its_exact_range(lengths, n_ranks):
    plan = plan_contiguous(lengths, n_ranks)
    everything = [(b, i) for b, rows in enumerate(lengths) for i in range(rows)]
    n = len(everything)
    expected = [
        everything[r * n // n_ranks : (r + 1) * n // n_ranks] for r in range(n_ranks)
    ]
    assert rows_of(plan) == expected


def test_contiguous_makes_whole_segments():
    assert plan_contiguous([4, 4, 4], 2) == [
        [Segment(0, 0, 4), Segment(1, 0, 2)],
        [Segment(1, 2, 4), Segment(2, 0, 4)],
    ]


def test_contiguous_of_no_rows():
    assert plan_contiguous([0, 0], 3) == [[], [], []]


def test_cut_at_skips_empty_parts():
    assert cut_at([Segment(0, 0, 3)], [0, 1, 1, 3]) == [
        [],
        [Segment(0, 0, 1)],
        [],
        [Segment(0, 1, 3)],
    ]


def test_main_rank_owns_most_rows():
    assert main_ranks([10, 10, 10], 2) == [0, 0, 1]
    assert main_ranks([1, 9, 9, 1], 2) == [0, 0, 1, 1]


def test_balanced_round_robin_moves_nothing():
    holders = [["a"], ["b"], ["c"], ["d"]] * 5
    plan = plan_in_place([7] * 20, holders, ["a", "b", "c", "d"], 0.1)
    for rank, worker in enumerate("abcd"):
        assert plan[rank] == [
            Segment(b, 0, 7) for b in range(20) if holders[b] == [worker]
        ]


def test_small_imbalance_stays():
    plan = plan_in_place([105, 95], [["a"], ["b"]], ["a", "b"], 0.1)
    assert plan == [[Segment(0, 0, 105)], [Segment(1, 0, 95)]]


def test_large_imbalance_moves_only_the_excess():
    lengths = [10] * 40
    holders = [["a"]] * 30 + [["b"]] * 10
    plan = plan_in_place(lengths, holders, ["a", "b"], 0.1)
    assert rows_by_rank(plan) == [220, 180]
    assert plan[1][:8] == [Segment(b, 0, 10) for b in range(22, 30)]


def test_excess_is_cut_within_a_block():
    plan = plan_in_place([100], [["a"]], ["a", "b"], 0.0)
    assert plan == [[Segment(0, 0, 50)], [Segment(0, 50, 100)]]


def test_ranks_of_one_worker_share_its_rows_evenly():
    plan = plan_in_place([9, 9], [["a"], ["b"]], ["a", "a", "b", "b"], 0.1)
    assert rows_of(plan) == [
        [(0, i) for i in range(4)],
        [(0, i) for i in range(4, 9)],
        [(1, i) for i in range(4)],
        [(1, i) for i in range(4, 9)],
    ]


def test_share_is_by_ranks_not_by_workers():
    plan = plan_in_place([30, 10], [["a"], ["b"]], ["a", "a", "a", "b"], 0.0)
    assert rows_by_rank(plan) == [10, 10, 10, 10]
    assert all(s.block == 0 for part in plan[:3] for s in part)


def test_blocks_on_a_worker_without_rank_go_where_there_is_least():
    plan = plan_in_place([10, 4, 6], [["a"], ["b"], ["x"]], ["a", "b"], 0.1)
    assert plan == [[Segment(0, 0, 10)], [Segment(1, 0, 4), Segment(2, 0, 6)]]


def test_copies_count_where_there_is_least_to_do():
    plan = plan_in_place([5, 5], [["a"], ["a", "b"]], ["a", "b"], 0.1)
    assert plan == [[Segment(0, 0, 5)], [Segment(1, 0, 5)]]


def test_ranks_in_any_order_of_workers():
    plan = plan_in_place([4, 4], [["a"], ["b"]], ["b", "a", "b", "a"], 0.1)
    assert [part[0].block for part in plan] == [1, 0, 1, 0]


def test_any_plan_keeps_every_row_once_and_within_capacity():
    generator = np.random.default_rng(0)
    for _ in range(200):
        lengths = generator.integers(0, 30, size=generator.integers(1, 20)).tolist()
        holders = [[w] for w in generator.choice(list("abcdx"), size=len(lengths))]
        addresses = sorted(generator.choice(list("abcd"), size=6).tolist())
        plan = plan_in_place(lengths, holders, addresses, 0.2)
        seen = sorted(row for part in rows_of(plan) for row in part)
        assert seen == [(b, i) for b, n in enumerate(lengths) for i in range(n)]
        assert all(part == sorted(part) for part in plan)
        n_rows, counts = sum(lengths), rows_by_rank(plan)
        assert max(counts) <= max(1.2 * n_rows / 6, -(-n_rows // 6)) + 1


def test_fewest_rows_move():
    generator = np.random.default_rng(1)
    for _ in range(100):
        lengths = generator.integers(1, 30, size=12).tolist()
        holders = [[w] for w in generator.choice(list("abc"), size=12)]
        plan = plan_in_place(lengths, holders, ["a", "b", "c"], 0.1)
        n = sum(lengths)
        cap = max(int(n / 3 * 1.1), -(-n // 3))
        held = {w: sum(m for m, h in zip(lengths, holders) if h == [w]) for w in "abc"}
        needed = sum(max(rows - cap, 0) for rows in held.values())
        moved = sum(
            stop - start
            for worker, part in zip("abc", plan)
            for block, start, stop in part
            if holders[block] != [worker]
        )
        assert moved == needed


@pytest.mark.parametrize(
    ("loads", "weights", "amount", "expected"),
    [
        ([0, 0], [1, 1], 10, [5, 5]),
        ([4, 0], [1, 1], 10, [3, 7]),
        ([9, 0], [1, 1], 4, [0, 4]),
        ([0, 0], [3, 1], 8, [6, 2]),
        ([5, 5, 5], [1, 1, 1], 0, [0, 0, 0]),
        ([0, 0, 0], [1, 1, 1], 10, [3, 4, 3]),
    ],
)
def test_fill_lowest(loads, weights, amount, expected):
    assert fill_lowest(loads, weights, amount) == expected


# -- Dealt ---------------------------------------------------------------------------


def numbers_by_rank(plan, lengths):
    firsts = np.concatenate([[0], np.cumsum(lengths)])
    return [
        [row for b, a, z in segments for row in range(firsts[b] + a, firsts[b] + z)]
        for segments in plan
    ]


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "lengths", [[], [0], [1], [2], [150], [40, 0, 41, 3], [1000] * 5]
)
def test_dealt_rows_are_all_there_in_equal_shares(lengths, n_ranks):
    rows = numbers_by_rank(plan_dealt(lengths, n_ranks), lengths)
    assert sorted(sum(rows, [])) == list(range(sum(lengths)))
    assert all(own == sorted(own) for own in rows)
    counts = [len(own) for own in rows]
    assert max(counts) - min(counts) <= 1
    assert plan_dealt(lengths, n_ranks) == plan_dealt(lengths, n_ranks)


@pytest.mark.parametrize("n_ranks", [2, 4, 8])
@pytest.mark.parametrize(
    "labels",
    [
        np.repeat(np.arange(3), 50),  # iris
        np.repeat(np.arange(10), 5000),
        np.arange(20_000) % 2,
        np.arange(20_000) % 8,
    ],
    ids=["iris", "sorted", "alternating", "periodic"],
)
def test_dealt_ranks_have_the_classes_of_all(labels, n_ranks):
    common = np.bincount(labels) / len(labels)
    for own in numbers_by_rank(plan_dealt([len(labels)], n_ranks), [len(labels)]):
        share = np.bincount(labels[own], minlength=len(common)) / len(own)
        assert np.abs(share - common).max() < 0.12


def test_dealt_runs_are_few():
    """However many rows there are: each run is a block to check and to join."""
    for segments in plan_dealt([3_000_000, 2_000_000], 5):
        assert len(segments) < 70
