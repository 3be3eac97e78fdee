"""Messages for ranks that have not started: kept for a while, and not too many."""

import asyncio
import threading

import pytest

from dask_ma.comm._held import WaitingRoom
from dask_ma.exceptions import FitFailedError


def run(steps, configured, **limits):
    """Run ``steps(room)`` on an event loop, with limits."""
    values = {"dask-ma.comm.held-messages": 100, "dask-ma.comm.held-bytes": "1 kB"}
    named = {f"dask-ma.comm.held-{name}": value for name, value in limits.items()}
    with configured({**values, **named}):
        asyncio.run(steps(WaitingRoom()))


async def is_given_up(held, match):
    """Whether a message has been given up for a reason."""
    with pytest.raises(FitFailedError, match=match):
        await held.wait(30)
    return True


async def waits(held):
    """Whether a message goes on waiting."""
    await held.wait(0.01)
    return True


def test_who_enters_and_leaves(configured):
    async def steps(room):
        first = room.enter("run", 0, 1, 100)
        second = room.enter("run", 2, 1, 50)
        assert (len(room), room.nbytes) == (2, 150)
        room.leave(first)
        room.leave(first)
        assert (len(room), room.nbytes) == (1, 50)
        room.leave(second)
        assert (len(room), room.nbytes) == (0, 0)

    run(steps, configured)


def test_only_those_of_a_rank_are_woken(configured):
    async def steps(room):
        held = [
            room.enter(*place, 0)
            for place in [("run", 0, 1), ("run", 2, 1), ("run", 0, 3), ("other", 0, 1)]
        ]
        threading.Thread(target=room.wake, args=("run", 1)).start()
        await asyncio.gather(held[0].wait(30), held[1].wait(30))
        tasks = [asyncio.create_task(item.wait(30)) for item in held[2:]]
        await asyncio.sleep(0.02)
        assert not any(task.done() for task in tasks)
        room.wake("run")
        await asyncio.wait_for(tasks[0], 30)
        assert not tasks[1].done()
        tasks[1].cancel()

    run(steps, configured)


def test_one_of_each_source_for_each_rank(configured):
    async def steps(room):
        first = room.enter("run", 0, 1, 100)
        others = room.enter("run", 0, 2, 1), room.enter("run", 1, 1, 1)
        second = room.enter("run", 0, 1, 10)
        assert await is_given_up(first, "rank 0 for rank 1 of run run, .* came after")
        assert all([await waits(held) for held in (*others, second)])
        room.leave(first)  # as it ends
        assert (len(room), room.nbytes) == (3, 12)

    run(steps, configured)


def test_a_rank_withdraws_its_own(configured):
    async def steps(room):
        own = [room.enter("run", 0, dest, 1) for dest in (1, 2)]
        others = room.enter("run", 1, 2, 1), room.enter("other", 0, 1, 1)
        room.withdraw("run", 0)
        for held in own:
            assert await is_given_up(held, "rank 0 .* of run run, .* its rank has end")
        assert all([await waits(held) for held in others])
        assert (len(room), room.nbytes) == (2, 2)

    run(steps, configured)


def test_the_oldest_goes_if_there_are_too_many(configured):
    async def steps(room):
        held = [room.enter("run", source, 0, 0) for source in range(5)]
        for item in held[:2]:
            assert await is_given_up(item, r"more than 3 wait \(dask-ma.comm.held-mess")
        assert all([await waits(item) for item in held[2:]])
        assert len(room) == 3

    run(steps, configured, messages=3)


def test_other_runs_make_room(configured):
    async def steps(room):
        old = room.enter("old", 0, 0, 600)
        own = [room.enter("new", source, 0, 300) for source in range(5)]
        assert await is_given_up(
            old, r"more than 1000 bytes wait \(dask-ma.comm.held-b"
        )
        # What a run sends itself is limited where it is sent.
        assert all([await waits(item) for item in own])
        assert room.nbytes == 1500
        last = room.enter("newest", 0, 0, 500)
        for item in own[:4]:
            assert await is_given_up(item, "bytes")
        assert await waits(own[4]) and await waits(last)

    run(steps, configured)
