"""Ways of blocks through a rotation."""

import numpy as np
import pytest

from dask_ma.schmp import schedules
from dask_ma.schmp.runtime._route import Move, Route

HOME = ((0, 1), (2, 3), (4, 5))


def jobs_of(schedule, home):
    n = len(home)
    return [
        schedule(schedules.RotationRequest(0, c, n, home, np.random.default_rng(0)))
        for c in range(n)
    ]


def test_the_ring():
    jobs = jobs_of(schedules.Rotation(2), HOME)
    assert jobs == [
        [[0, 1], [2, 3], [4, 5]],
        [[4, 5], [0, 1], [2, 3]],
        [[2, 3], [4, 5], [0, 1]],
    ]
    route = Route.of(jobs, HOME, "here")
    assert route.moves[0] == []
    for moves in route.moves[1:]:
        assert len(moves) == 6
        assert all(move.dest == (move.source + 1) % 3 for move in moves)
    assert route.arrivals(1, 0) == {4: 2, 5: 2}
    assert route.departures(3, 0) == {2: 1, 3: 1}


def test_blocks_that_rest_stay_where_they_are():
    jobs = [[[2], [0]], [[], [0]], [[0], []]]
    route = Route.of(jobs, ((0, 1), (2,)), "here")
    assert route.moves == [
        [Move(2, 1, 0), Move(0, 0, 1)],
        [],
        [Move(0, 1, 0)],
        [Move(2, 0, 1)],
    ]


@pytest.mark.parametrize(
    ("jobs", "match"),
    [
        (
            [[[0], [0], []]],
            "here, sub-iteration 0, gives block 0 to rank 0 and to rank 1",
        ),
        ([[[0, 0], [], []]], "gives block 0 to rank 0 and to rank 0"),
        ([[[6], [], []]], "names block 6, expected numbers from 0 to 5"),
        ([[[0], []]], "has jobs for 2 ranks, expected 3"),
    ],
)
def test_what_cannot_be_carried_out(jobs, match):
    with pytest.raises(ValueError, match=match):
        Route.of(jobs, HOME, "here")
