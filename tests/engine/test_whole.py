"""Models of which each rank has a part: put together again after losses."""

import numpy as np
import pytest

from dask_ma.engine import RankContext
from dask_ma.engine._run import Outcome
from dask_ma.engine.recovery._identity import FitInfo
from dask_ma.engine.recovery._memory import StateCopy, StateMemory, state_memory
from dask_ma.engine.recovery._whole import exchange_copies, find_whole


def part_of(rank, number):
    return {"w": np.array([rank, number])}


def kept(rank, number, n_ranks, attempt=0):
    """State of a rank after a round, with the copy of its left neighbour."""
    return StateCopy(
        round=number,
        n_ranks=n_ranks,
        rows=[],
        shared={"after": number},
        own=part_of(rank, number),
        history=[{"round": i + 1} for i in range(9)],
        n_records=number,
        elapsed=float(number),
        attempt=attempt,
        is_whole=True,
        replica=part_of((rank - 1) % n_ranks, number) if n_ranks > 1 else None,
    )


def memory_of(rank, rounds, n_ranks=4):
    memory = StateMemory()
    for number in rounds:
        memory.put("fit", rank, kept(rank, number, n_ranks))
    return memory.parts("fit")


def find(run_ranks, memories, n_ranks=None):
    """What the ranks find, whose processes have kept this."""

    def program(group):
        state, any_left = find_whole(group, memories[group.rank])
        if state is None:
            return None, any_left
        pieces = [piece["w"].tolist() for piece in state.pieces(group)]
        own = None if state.own is None else state.own["w"].tolist()
        return state.round, own, pieces, state.shared, len(state.history)

    return run_ranks(program, n_ranks or len(memories))


def check(results, number, n_parts=4):
    for rank, (found, own, pieces, shared, n_records) in enumerate(results):
        assert found == number
        if n_parts == len(results):
            assert own == [rank, number]
        else:
            assert own is None
        assert pieces == [[part, number] for part in range(n_parts)]
        assert shared == {"after": number}
        assert n_records == number


@pytest.mark.parametrize("lost", [[], [0], [2], [0, 2], [3, 1]])
def test_neighbours_have_copies(run_ranks, lost):
    memories = [{} if r in lost else memory_of(r, [1, 2]) for r in range(4)]
    check(find(run_ranks, memories), 2)


@pytest.mark.parametrize("lost", [[0, 1], [3, 0], [0, 1, 2]])
def test_two_neighbours_had_the_only_copies(run_ranks, lost):
    memories = [{} if r in lost else memory_of(r, [1, 2]) for r in range(4)]
    assert find(run_ranks, memories) == [(None, True)] * 4


def test_nothing_is_left(run_ranks):
    assert find(run_ranks, [{}] * 3) == [(None, False)] * 3


def test_only_some_have_kept_the_newest_round(run_ranks):
    """Rank 2 is lost; ranks 0 and 1 are a round behind rank 3."""
    memories = [
        memory_of(0, [1, 2]),
        memory_of(1, [1, 2]),
        {},
        memory_of(3, [1, 2, 3]),
    ]
    check(find(run_ranks, memories), 2)


def test_the_newest_round_counts_if_it_is_whole(run_ranks):
    """Rank 1 is a round behind, but its right neighbour has the copy."""
    memories = [
        memory_of(0, [1, 2, 3]),
        memory_of(1, [1, 2]),
        memory_of(2, [1, 2, 3]),
        {},
    ]
    memories[3] = memory_of(3, [2, 3])
    check(find(run_ranks, memories), 3)


@pytest.mark.parametrize("n_ranks", [2, 5])
def test_another_number_of_ranks(run_ranks, n_ranks):
    """One process may have the memory of several ranks, others none."""
    first = {**memory_of(0, [1, 2]), **memory_of(1, [1, 2]), **memory_of(3, [1, 2])}
    check(find(run_ranks, [first] + [{}] * (n_ranks - 1)), 2)


def test_states_of_other_launches_are_not_mixed(run_ranks):
    memories = []
    for rank in range(2):
        memory = StateMemory()
        memory.put("fit", rank, kept(rank, 4, 2, attempt=rank)._replace(replica=None))
        memories.append(memory.parts("fit"))
    assert find(run_ranks, memories) == [(None, True)] * 2


def test_the_copy_goes_to_the_right(run_ranks):
    def program(group):
        found = exchange_copies(group, part_of(group.rank, 7), 7)
        return None if found is None else found["w"].tolist()

    assert run_ranks(program, 3, 1) == [[2, 7], [0, 7], [1, 7]]
    assert run_ranks(program, 1) == [None]


@pytest.mark.parametrize("lost", [None, 0, 2])
def test_parts_of_the_last_round_are_not_copied(run_ranks, lost):
    """The client is about to get them; until then the round before can be had."""
    fit_id = f"last-{lost}"
    fit_info = FitInfo("Estimator", fit_id, keeps=True)

    def program(group):
        context = RankContext(group, 0, fit_info=fit_info)
        for number in (1, 2):
            part, is_last = part_of(group.rank, number), number == 2
            context.add_record({"round": number})
            context.save_state(
                number, {"after": number}, part, whole=True, done=is_last
            )
        kept = state_memory.get(fit_id, group.rank)
        return kept.replica, kept.before.replica["w"].tolist(), kept

    results = run_ranks(program, 3)
    assert [found[:2] for found in results] == [
        (None, [(rank - 1) % 3, 1]) for rank in range(3)
    ]
    memories = []
    for rank, (*_, kept) in enumerate(results):
        memory = StateMemory()
        if rank != lost:
            memory.put(fit_id, rank, kept.before)
            memory.put(fit_id, rank, kept)
        memories.append(memory.parts(fit_id))
    found = find(run_ranks, memories)
    assert {each[0] for each in found} == {2 if lost is None else 1}
    state_memory.forget(fit_id, 0)


def test_rows_that_are_shared_out_anew_take_no_part_away():
    memory = StateMemory()
    memory.put("fit", 0, kept(0, 1, 2))
    memory.forget_own("fit")
    assert len(memory.parts("fit")) == 2


def test_other_states_have_no_parts():
    memory = StateMemory()
    memory.put("fit", 0, kept(0, 1, 2)._replace(is_whole=False, replica=None))
    memory.put("fit", 0, kept(0, 2, 2)._replace(is_whole=False, replica=None))
    assert memory.parts("fit") == {}
    assert memory.get("fit", 0).before is None


def test_states_of_later_launches_stay():
    memory = StateMemory()
    for rank, attempt in enumerate([0, 1, 2]):
        memory.put("fit", rank, kept(rank, 5, 3, attempt))
    memory.forget("fit", 1)
    assert [memory.get("fit", rank) is None for rank in range(3)] == [True, True, False]
    memory.forget("fit", 2)
    assert memory.fits() == []


def test_a_late_state_takes_the_place_of_none_of_a_later_launch():
    memory = StateMemory()
    newer = kept(0, 3, 2, attempt=1)
    memory.put("fit", 0, newer)
    memory.put("fit", 0, kept(0, 9, 2, attempt=0))
    assert memory.get("fit", 0) is newer


def test_a_late_rank_drops_no_state_of_a_later_launch():
    newer = kept(0, 3, 2, attempt=1)
    try:
        for attempt in (0, 1):
            state_memory.put("late", 0, newer)
            outcome = Outcome()
            outcome.bind("late", 0, attempt)
            del outcome
            assert (state_memory.get("late", 0) is newer) == (attempt == 0)
    finally:
        state_memory.forget("late")
