"""What a rank knows while it runs."""

import numpy as np
import pytest

from dask_ma.comm import LocalGroup
from dask_ma.engine import RankContext, launch, place_ranks


def seeds(seed, size):
    groups = LocalGroup.create(size)
    contexts = [RankContext(group, seed) for group in groups]
    return [tuple(context.seed.generate_state(4)) for context in contexts]


def test_seed_depends_on_seed_and_rank_alone():
    assert seeds(3, 5)[:2] == seeds(3, 2)
    assert len(set(seeds(3, 5) + seeds(4, 5))) == 10


def test_seeds_are_the_same_on_a_cluster(any_client):
    def agent(context, shard, params):
        return tuple(context.seed.generate_state(4))

    results = launch(
        agent,
        [None] * 4,
        name="Seeds",
        client=any_client,
        addresses=place_ranks(any_client, 4),
        seed=3,
        collect="all",
    )
    assert results == seeds(3, 4)


def test_elapsed_time_grows():
    context = RankContext(LocalGroup.create(1)[0], 0)
    first = context.elapsed()
    assert 0 <= first <= context.elapsed()


def test_all_ranks_keep_the_records(run_ranks):
    def program(group):
        context = RankContext(group, 0)
        stops = [context.record({"round": number}, {}) for number in range(3)]
        return context.history, stops, group.counters.bytes_shared

    records = [{"round": number, "restarts": 0} for number in range(3)]
    no_stop = [False] * 3
    assert run_ranks(program, 3) == [(records, no_stop, 0)] * 3


@pytest.mark.parametrize("last", [0, 2])
def test_all_ranks_stop_at_the_listeners_word(run_ranks, last):
    heard = []

    def listener(record, fetch):
        heard.append((record["round"], int(fetch()["w"][0])))
        return np.bool_(record["round"] == last)

    def program(group):
        root = group.rank == 0
        context = RankContext(
            group, 0, listening=True, listener=listener if root else None
        )
        number = 0
        while not context.record({"round": number}, {"w": np.array([10 * number])}):
            number += 1
        return number

    assert run_ranks(program, 4) == [last] * 4
    assert heard == [(number, 10 * number) for number in range(last + 1)]
