"""Ranks that work alone on their parameters, and changes that tell more."""

import threading

import numpy as np
import pytest

from dask_ma.comm import LocalGroup
from dask_ma.data import Shard
from dask_ma.engine import RankContext
from dask_ma.schmp import DynamicEngine, Program
from dask_ma.schmp.runtime._program import Change

N_OWNED = (25, 0, 15, 20)  # parameters of each rank
N_PARAMETERS = sum(N_OWNED)


class Owning(Program):
    """Each iteration adds 1 to a parameter of its rank, and tells all which rank."""

    def __init__(self, schedule=None):
        self.chosen = schedule
        self.seen = {"schedule": {}, "update": []}
        self.told = []

    def prepare(self, shard, group):
        self.rank = group.rank

    def initial_model(self, local, group):
        return np.zeros(N_PARAMETERS)

    def own_parameters(self, local, n_parameters):
        start = sum(N_OWNED[: self.rank])
        return range(start, start + N_OWNED[self.rank])

    def schedule(self, model, request):
        assert request.n_jobs == 1
        self.seen["schedule"][request.iteration] = model.sum()
        if self.chosen is not None:
            return self.chosen(request)
        return np.array([request.parameters[request.turn]])

    def update(self, job, local, model):
        self.seen["update"].append(model.sum())
        return job + 0.5

    def aggregate(self, results, jobs, model):
        assert [r.tolist() for r in results] == [[jobs[0] + 0.5]]
        return Change(np.ones(1), {"rank": self.rank, "job": jobs})

    def commit(self, local, index, change, model, extra):
        assert extra["job"].tolist() == index.tolist()
        self.told.append(extra["rank"])


def run_engine(run_ranks, program, n_ranks=4, runs=(12,), **options):
    """The engines of all ranks after some runs."""

    def agent(group):
        shard = Shard([], 3, np.dtype(np.float64))
        engine = DynamicEngine(RankContext(group, 0), program, shard, **options)
        before = group.counters.messages_sent
        for n_iterations in runs:
            engine.run(n_iterations)
        engine.n_messages = group.counters.messages_sent - before
        return engine

    return run_ranks(agent, n_ranks, ranks_per_node=1)


@pytest.mark.parametrize("depth", [1, 2, 3, 7, 12])
def test_an_iteration_is_the_business_of_one_rank(run_ranks, depth):
    engines = run_engine(
        run_ranks, Owning(), runs=(10, 2), pipeline_depth=depth, n_schedulers=2
    )
    # Nobody schedules ahead.
    seen = [max(0, t - depth + 1) for t in range(10)] + [10, 10 + (depth == 1)]
    turns = [[0, 3, 6, 9], [], [1, 4, 7, 10], [2, 5, 8, 11]]
    for engine, turn in zip(engines, turns, strict=True):
        assert engine.schedulers.alone
        assert engine.schedulers.ranks == (0, 2, 3)
        assert engine.program.seen["update"] == [seen[t] for t in turn]
        assert engine.program.seen["schedule"] == {t: seen[t] for t in turn}
        assert engine.program.told == [0, 2, 3] * 4
        changed = np.flatnonzero(engine.model).tolist()
        assert changed == [*range(4), *range(25, 29), *range(40, 44)]


def test_only_changes_travel(run_ranks):
    engines = run_engine(run_ranks, Owning())
    assert [engine.n_messages for engine in engines] == [12, 0, 12, 12]


def test_a_slow_network_changes_nothing(run_ranks, monkeypatch):
    plain = LocalGroup.create
    monkeypatch.setattr(
        LocalGroup, "create", lambda n, per_node: plain(n, per_node, delay=0.002)
    )
    engines = run_engine(run_ranks, Owning())
    assert engines[3].program.seen["update"] == [0, 3, 6, 9]


def test_empty_jobs(run_ranks):
    def schedule(request):
        job = [request.parameters[request.turn]] if request.iteration % 2 else []
        return np.array(job, dtype=int)

    for engine in run_engine(run_ranks, Owning(schedule)):
        assert engine.model.sum() == 6
        assert engine.program.told == [2, 0, 3] * 2


@pytest.mark.parametrize(
    "owned",
    [
        [range(0, 30), range(31, 60)],
        [range(0, 31), range(30, 60)],
        [range(0, 30), range(30, 61)],
        [range(0, 30), None],
        [range(0, 60, 2), range(60, 60)],
        [range(0), range(0)],
    ],
)
def test_ranges_that_cannot_be(run_ranks, owned):
    class Wrong(Owning):
        def own_parameters(self, local, n_parameters):
            return owned[self.rank]

    with pytest.raises(
        ValueError, match=r"own_parameters of Wrong returned .*range\(0, 60\), without"
    ):
        run_engine(run_ranks, Wrong(), 2)


class Announcing(Owning):
    """Tells what it chooses, and notes what it hears."""

    def announces(self):
        return True

    def announce(self, job):
        return {"job": job, "rank": np.array([self.rank])}

    def schedule(self, model, request):
        heard = [(int(a["rank"][0]), a["job"].tolist()) for a in request.elsewhere]
        self.seen["heard"] = {**self.seen.get("heard", {}), request.iteration: heard}
        return super().schedule(model, request)


@pytest.mark.parametrize("depth", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("delay", [0.0, 0.002])
def test_ranks_hear_what_is_under_way_elsewhere(run_ranks, monkeypatch, depth, delay):
    plain = LocalGroup.create
    monkeypatch.setattr(
        LocalGroup, "create", lambda n, per_node: plain(n, per_node, delay=delay)
    )
    engines = run_engine(run_ranks, Announcing(), runs=(10, 2), pipeline_depth=depth)
    jobs = [([0, 2, 3][t % 3], [[0, 25, 40][t % 3] + t // 3]) for t in range(12)]
    for t, (rank, _) in enumerate(jobs):
        first = max(0 if t < 10 else 10, t - depth + 1)  # each run ends with all done
        others = [job for job in jobs[first:t] if job[0] != rank]
        assert engines[rank].program.seen["heard"][t] == others
    # What is read is the same as without.
    plainly = run_engine(run_ranks, Owning(), runs=(10, 2), pipeline_depth=depth)
    for engine, other in zip(engines, plainly, strict=True):
        assert engine.program.seen["update"] == other.program.seen["update"]


def test_announcements_go_to_those_who_schedule_before_the_change_is_there(run_ranks):
    engines = run_engine(run_ranks, Announcing(), pipeline_depth=2)
    # Four changes to three ranks each, and four announcements to the next rank; nobody
    # schedules after the last.
    assert [engine.n_messages for engine in engines] == [16, 0, 16, 15]


@pytest.mark.parametrize("n_ranks", [2, 5])
def test_all_ranks_work_at_a_time(run_ranks, n_ranks):
    """By default; each waits in its update for all others to be in theirs."""
    met = threading.Barrier(n_ranks, timeout=20)

    class Meeting(Announcing):
        def own_parameters(self, local, n_parameters):
            return range(self.rank * 60 // n_ranks, (self.rank + 1) * 60 // n_ranks)

        def update(self, job, local, model):
            self.barrier.wait()
            return super().update(job, local, model)

        def __deepcopy__(self, memo):
            copied = Meeting()
            copied.barrier = met
            return copied

    engines = run_engine(run_ranks, Meeting(), n_ranks, runs=(4 * n_ranks,))
    assert [engine.pipeline_depth for engine in engines] == [max(3, n_ranks)] * n_ranks


@pytest.mark.parametrize("n_schedulers", [1, 2])
def test_a_change_of_all_ranks_may_tell_more(run_ranks, n_schedulers):
    class Telling(Owning):
        def own_parameters(self, local, n_parameters):
            return None

        def schedule(self, model, request):
            return np.array([request.parameters[request.turn]])

        def aggregate(self, results, jobs, model):
            assert len(results) == 3
            return super().aggregate(results[:1], jobs, model)

    engines = run_engine(run_ranks, Telling(), 3, n_schedulers=n_schedulers)
    for engine in engines:
        assert engine.program.told == [0, 1][:n_schedulers] * (12 // n_schedulers)
