"""Ranks that work alone on their parameters, and changes that tell more."""

import numpy as np
import pytest

from dask_ma.comm import LocalGroup
from dask_ma.data import Shard
from dask_ma.engine import RankContext
from dask_ma.schmp import DynamicEngine, Program
from dask_ma.schmp._program import Change

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
        shard = Shard([], 0, 3, np.dtype(np.float64), False, 0)
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
