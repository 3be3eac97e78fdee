"""Who takes over the ranks of workers that have gone."""

import pytest

from dask_ma.engine._lost_workers import reassign


@pytest.mark.parametrize(
    ("before", "threads", "after"),
    [
        ("abc", {"a": 1, "b": 1, "c": 1}, "abc"),
        ("abc", {"a": 1, "b": 1, "d": 1}, "abd"),  # a new worker has a free thread
        ("abc", {"a": 1, "c": 1}, "aac"),
        ("aabb", {"a": 2, "c": 4}, "aacc"),
        ("aabb", {"a": 4, "c": 2}, "aaca"),  # in turn, by free threads
        ("abcd", {"e": 1}, "eeee"),
    ],
)
def test_ranks_stay_where_they_can(before, threads, after):
    assert reassign(list(before), threads) == list(after)
