"""Parameters shared out over blocks of equal work."""

import numpy as np
import pytest

from dask_ma.schmp import schedules
from dask_ma.schmp.runtime._balance import balanced_parts, even_parts


def zipf(n, exponent=1.1):
    return np.arange(1, n + 1) ** -exponent * 1e8


def loads(blocks, work):
    return np.array([sum(work[block].sum() for block in own) for own in blocks])


def is_partition(parts, n):
    together = np.concatenate(parts)
    return np.array_equal(np.sort(together), np.arange(n)) and all(
        np.all(np.diff(part) > 0) for part in parts
    )


@pytest.mark.parametrize("n_ranks", [2, 4, 7])
def test_skewed_work(n_ranks):
    work = np.random.default_rng(0).permutation(zipf(100_000))
    blocks = schedules.Rotation().blocks(work, n_ranks)
    assert [len(own) for own in blocks] == [4] * n_ranks
    assert is_partition([block for own in blocks for block in own], len(work))
    share = loads(blocks, work)
    assert share.max() / share.mean() <= 1.05
    even = loads(
        schedules.Rotation(balance="even").blocks(zipf(100_000), 4), work=zipf(100_000)
    )
    assert even.max() / even.mean() > 3
    sizes = [sum(map(len, own)) for own in blocks]
    assert max(sizes) / np.mean(sizes) <= 1.5


def test_the_heaviest_block_of_a_rank_is_the_first():
    work = zipf(1000)
    for own in schedules.Rotation(3).blocks(work, 4):
        sums = [work[block].sum() for block in own]
        assert sums == sorted(sums, reverse=True)


def test_a_parameter_heavier_than_a_share_is_nearly_alone():
    work = np.ones(1000)
    work[17] = 1e6
    parts = balanced_parts(work, 4)
    assert [len(part) for part in parts if 17 in part] == [1]
    rest = [len(part) for part in parts if 17 not in part]
    assert max(rest) - min(rest) <= 1


def test_parameters_without_work_are_dealt_out_evenly():
    parts = balanced_parts(np.zeros(1003), 4)
    assert is_partition(parts, 1003)
    assert max(map(len, parts)) - min(map(len, parts)) <= 2


def test_many_light_parameters():
    rng = np.random.default_rng(1)
    work = rng.pareto(1.0, 300_000)
    parts = balanced_parts(work, 16)
    assert is_partition(parts, len(work))
    share = np.array([work[part].sum() for part in parts])
    assert share.max() / share.mean() <= 1.01 * max(1, work.max() / share.mean())


@pytest.mark.parametrize("n", [0, 1, 3])
def test_fewer_parameters_than_parts(n):
    assert is_partition(balanced_parts(np.ones(n), 4), n)
    assert is_partition(even_parts(n, 4), n)


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"blocks_per_rank": 0}, "blocks_per_rank must be at least 1, got 0"),
        ({"balance": "luck"}, "balance must be"),
        ({"synchronize": "never"}, "synchronize must be"),
    ],
)
def test_settings_that_cannot_be(parameters, match):
    with pytest.raises(ValueError, match=match):
        schedules.Rotation(**parameters)
