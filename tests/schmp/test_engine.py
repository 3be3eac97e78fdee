"""What the engine does in which order, and what it refuses."""

import numpy as np
import pytest

from dask_ma.comm import LocalGroup
from dask_ma.data import Shard
from dask_ma.engine import RankContext
from dask_ma.exceptions import GroupClosedError
from dask_ma.schmp import Change, DynamicEngine, Program

N_PARAMETERS = 60


def no_rows():
    return Shard([], 3, np.dtype(np.float64))


class Counting(Program):
    """Each iteration adds 1 to a parameter of its own; all notes what it sees."""

    def __init__(self, **replaced):
        self.replaced = replaced
        self.seen = {"schedule": {}, "update": [], "aggregate": {}, "commit": []}
        self.refreshed = []

    def prepare(self, shard, group):
        self.size = group.size
        return super().prepare(shard, group)

    def initial_model(self, local, group):
        return np.full(N_PARAMETERS, 0.0 if group.rank == 0 else 7.0)

    def schedule(self, model, request):
        self.seen["schedule"][request.iteration] = model.sum()
        if "schedule" in self.replaced:
            return self.replaced["schedule"](request)
        return np.array([request.parameters[request.turn]])

    def update(self, job, local, model):
        self.seen["update"].append(model.sum())
        return job + 0.5

    def aggregate(self, results, jobs, model):
        assert [r.tolist() for r in results] == [[jobs[0] + 0.5]] * self.size
        self.seen["aggregate"][int(jobs[0])] = model[jobs[0]]
        if "aggregate" in self.replaced:
            return self.replaced["aggregate"](jobs)
        return np.ones(1)

    def commit(self, local, index, change, model):
        self.seen["commit"].append((index.tolist(), model.sum()))

    def refresh(self, local, model):
        self.refreshed.append(model.sum())


def run_engine(run_ranks, program, n_ranks, runs=(10,), **options):
    """The engines of all ranks after some runs."""

    def agent(group):
        engine = DynamicEngine(RankContext(group, 0), program, no_rows(), **options)
        for n_iterations in runs:
            engine.counts = engine.run(n_iterations)
        return engine

    return run_ranks(agent, n_ranks)


@pytest.mark.pairs
@pytest.mark.parametrize("n_ranks", [1, 2, 5])
@pytest.mark.parametrize("depth", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("n_schedulers", [1, 2, 3])
def test_an_iteration_reads_the_model_of_a_depth_before(
    run_ranks, n_ranks, depth, n_schedulers
):
    engines = run_engine(
        run_ranks, Counting(), n_ranks, pipeline_depth=depth, n_schedulers=n_schedulers
    )
    seen = [max(0, t - depth + 1) for t in range(10)]
    ahead = min(n_schedulers, n_ranks) - 1
    scheduled = {}
    for engine in engines:
        assert engine.program.seen["update"] == seen
        assert [total for _, total in engine.program.seen["commit"]] == [*range(1, 11)]
        np.testing.assert_array_equal(engine.model, engines[0].model)
        assert engine.model.sum() == 10
        assert engine.iteration == engine.counts.n_updates == 10
        scheduled |= engine.program.seen["schedule"]
        assert not any(engine.program.seen["aggregate"].values())
    assert [scheduled[t] for t in range(10)] == [
        max(0, t - ahead - depth + 1) for t in range(10)
    ]


def test_schedulers_share_the_iterations_and_the_parameters(run_ranks):
    engines = run_engine(run_ranks, Counting(), 5, n_schedulers=2)
    assert engines[0].schedulers.ranks == (0, 2)
    assert [sorted(e.program.seen["schedule"]) for e in engines] == [
        [0, 2, 4, 6, 8],
        [],
        [1, 3, 5, 7, 9],
        [],
        [],
    ]
    changed = np.flatnonzero(engines[4].model)
    assert changed.tolist() == [0, 1, 2, 3, 4, 30, 31, 32, 33, 34]


@pytest.mark.parametrize(
    ("n_ranks", "per_node", "depth"), [(1, 1, 1), (3, 3, 1), (3, 1, 3), (4, 2, 3)]
)
def test_the_default_depth(run_ranks, n_ranks, per_node, depth):
    """It is kept in the state: a restart may bring ranks together."""

    def agent(group):
        engine = DynamicEngine(RankContext(group, 0), Counting(), no_rows())
        engine.run(5)
        kept = {**engine.state_dict(), "pipeline_depth": 7}
        again = DynamicEngine(RankContext(group, 0), Counting(), no_rows(), state=kept)
        given = DynamicEngine(
            RankContext(group, 0), Counting(), no_rows(), pipeline_depth=2, state=kept
        )
        depths = engine.state_dict()["pipeline_depth"], again.pipeline_depth
        return engine.program.seen["update"], *depths, given.pipeline_depth

    for seen, first, kept, given in run_ranks(agent, n_ranks, ranks_per_node=per_node):
        assert seen == [max(0, t - depth + 1) for t in range(5)]
        assert (first, kept, given) == (depth, 7, 2)


@pytest.mark.parametrize("n_schedulers", [1, 2])
def test_runs_end_with_an_empty_pipeline_and_fresh_state(run_ranks, n_schedulers):
    engines = run_engine(
        run_ranks,
        Counting(),
        3,
        runs=(4, 0, 1, 5),
        n_schedulers=n_schedulers,
        pipeline_depth=3,
    )
    for engine in engines:
        assert engine.program.refreshed == [0, 4, 4, 5, 10]
        assert engine.program.seen["update"][:6] == [0, 0, 0, 1, 4, 5]
        assert engine.counts.n_iterations == 5
        assert np.isinf(engine.last_change).sum() == N_PARAMETERS - 10


def test_a_slow_network_changes_nothing(run_ranks, monkeypatch):
    plain = LocalGroup.create
    monkeypatch.setattr(
        LocalGroup, "create", lambda n, per_node: plain(n, per_node, delay=0.002)
    )
    for n_schedulers in (1, 2):
        engines = run_engine(
            run_ranks, Counting(), 3, n_schedulers=n_schedulers, pipeline_depth=3
        )
        for engine in engines:
            seen = [0, 0, 0, 1, 2, 3, 4, 5, 6, 7]
            assert engine.program.seen["update"] == seen


@pytest.mark.parametrize(("n_schedulers", "per_iteration"), [(1, 1), (2, 2)])
def test_messages(run_ranks, n_schedulers, per_iteration):
    """A job and a change travel together; without, each takes a message."""

    def agent(group):
        engine = DynamicEngine(
            RankContext(group, 0), Counting(), no_rows(), n_schedulers=n_schedulers
        )
        before = group.counters.messages_sent
        engine.run(20)
        return group.counters.messages_sent - before

    def count():
        return sum(run_ranks(agent, 3, ranks_per_node=1))

    drained = 3 * 2 if n_schedulers == 1 else 0  # the last changes travel alone
    assert count() == 20 * (2 * per_iteration + 2) + drained


class Own(Counting):
    """Each executor has a job of its own, of a length that changes."""

    def schedule(self, model, request):
        start = request.parameters.start + request.n_jobs * request.turn
        jobs = [[start + r][: (r + request.turn) % 2] for r in range(request.n_jobs)]
        return [np.array(job, dtype=np.int32) for job in jobs]

    def update(self, job, local, model):
        self.seen["update"].append(job.tolist())
        return {"doubled": 2.0 * job}

    def aggregate(self, results, jobs, model):
        assert [r is None for r in results] == [not len(job) for job in jobs]
        return np.concatenate([r["doubled"] for r in results if r is not None])


@pytest.mark.parametrize("n_schedulers", [1, 3])
def test_one_job_for_each_executor(run_ranks, n_schedulers):
    engines = run_engine(run_ranks, Own(), 3, n_schedulers=n_schedulers)
    for engine in engines:
        changed = np.flatnonzero(engine.model)
        np.testing.assert_array_equal(engine.model[changed], 2 * changed)
        jobs = [e.program.seen["update"] for e in engines]
        updated = sorted(p for rank in jobs for job in rank for p in job)
        assert [p for p in updated if p] == changed.tolist()
        np.testing.assert_array_equal(engine.last_change[changed], 2 * changed)


def test_iterations_without_parameters(run_ranks):
    program = Counting(schedule=lambda request: np.array([]))
    [engine, _] = run_engine(run_ranks, program, 2)
    assert engine.model.sum() == engine.counts.n_updates == 0
    assert engine.program.seen["update"] == []


def test_pending_parameters_are_told(run_ranks):
    told = []

    def schedule(request):
        told.append(request.pending.tolist())
        return np.array([request.turn, request.turn + 20])

    class Two(Counting):
        def aggregate(self, results, jobs, model):
            return np.ones(2)

    run_engine(run_ranks, Two(schedule=schedule), 1, runs=(4,), pipeline_depth=3)
    assert told == [[], [0, 20], [0, 20, 1, 21], [1, 21, 2, 22]]


def test_requests(run_ranks):
    requests = []

    def schedule(request):
        requests.append((request, request.last_change.copy()))
        return np.array([request.turn])

    for n_ranks in (1, 2):
        program = Counting(schedule=schedule)
        # Scheduled in this process and noted there: the copy shares the function.
        run_engine(run_ranks, program, n_ranks, runs=(3, 1), pipeline_depth=1)
    first, second = requests[:4], requests[4:]
    for (a, _), (b, _) in zip(first, second, strict=True):
        assert a.rng.random() == b.rng.random()
    assert [r.rng.random() for r, _ in first] != [first[0][0].rng.random()] * 4
    assert [r.n_jobs for r, _ in requests] == [1] * 4 + [2] * 4
    assert [r.iteration for r, _ in first] == [0, 1, 2, 3]
    assert first[0][0].parameters == range(N_PARAMETERS)
    changed = [r.changed if r.changed is None else r.changed.tolist() for r, _ in first]
    assert changed == [None, [0], [1], [2]]
    finite = [np.flatnonzero(np.isfinite(change)).tolist() for _, change in first]
    assert finite == [[], [0], [0, 1], [0, 1, 2]]


def test_models_cannot_be_written_to(run_ranks):
    class Writing(Counting):
        def update(self, job, local, model):
            model[0] = 1

    with pytest.raises(ValueError, match="read-only"):
        run_engine(run_ranks, Writing(), 2)


def test_a_result_may_be_used_again(run_ranks):
    class Reusing(Counting):
        buffer = None

        def update(self, job, local, model):
            if self.buffer is None:
                self.buffer = np.empty(1)
            self.buffer[:] = job + 0.5
            return self.buffer

    engines = run_engine(run_ranks, Reusing(), 3, n_schedulers=2)
    assert engines[0].model.sum() == 10


class Delayed(Counting):
    """Changes with sizes and delays of their own; iteration 1 has none."""

    def aggregate(self, results, jobs, model):
        change = super().aggregate(results, jobs, model)
        if jobs[0] == 1:
            return change
        size = np.full(len(jobs), 3.0)
        return Change(change, size=size, delay=np.full(len(jobs), 5.0))


def test_delays(run_ranks):
    def agent(group):
        context = RankContext(group, 0)
        engine = DynamicEngine(context, Delayed(), no_rows(), pipeline_depth=1)
        assert "due" not in engine.state_dict()
        engine.run(3)
        state = engine.state_dict()
        engine.run(2)
        other = DynamicEngine(context, Delayed(), no_rows(), state=state)
        other.run(2)
        return state, engine.state_dict(), other.state_dict()

    for state, last, other in run_ranks(agent, 2):
        moved = 9 + state["last_change"][1] ** 2
        assert state["last_change"][[0, 2]].tolist() == [3, 3]
        # Counted from the end of the run, after another 9.
        expected = [5 - moved - 9, 9 - moved - 9, 5 - 9]
        np.testing.assert_allclose(state["due"][:3], expected)
        assert np.isinf(state["due"][3:]).all()
        for name, array in last.items():
            np.testing.assert_array_equal(other[name], array)


def test_state_and_restore(run_ranks):
    def agent(group):
        context = RankContext(group, 0)
        engine = DynamicEngine(context, Counting(), no_rows())
        engine.run(5)
        state = engine.state_dict()
        engine.run(5)
        other = DynamicEngine(context, Counting(), no_rows(), state=state)
        other.run(5)
        back = engine.model.copy()
        engine.load_state_dict(state)
        assert engine.iteration == 5
        engine.run(5)
        with pytest.raises(ValueError, match=r"shape \(2,\) .* expected \(60,\)"):
            engine.load_state_dict({**state, "model": np.zeros(2)})
        return back, other.model, engine.model, other.last_change, other.iteration

    for back, other, again, last_change, iteration in run_ranks(agent, 2):
        np.testing.assert_array_equal(other, back)
        np.testing.assert_array_equal(again, back)
        assert np.isfinite(last_change).sum() == iteration == 10


SCHEDULES = [
    (lambda request: [[1], [2], [3]], "returned 3 jobs, expected .* 2 ranks"),
    (lambda request: np.array([[1]]), r"shape \(1, 1\), expected one dimension"),
    (lambda request: np.array([1.0]), "array of float64, expected integers"),
    (lambda request: np.array([60]), "the parameter 60, expected .* 0 to 59"),
    (lambda request: np.array([-1]), "the parameter -1, expected"),
    (lambda request: np.array([4, 1, 4]), "the parameter 4 twice"),
    (lambda request: [[1], [1]], "the parameter 1 twice"),
    (lambda request: [[1], [99]], "job 1 returned the parameter 99"),
]


@pytest.mark.parametrize(("schedule", "message"), SCHEDULES)
def test_jobs_that_cannot_be(run_ranks, schedule, message):
    with pytest.raises(
        ValueError, match=f"schedule of Counting at iteration 0 on rank 0.*{message}"
    ):
        run_engine(run_ranks, Counting(schedule=schedule), 2)


def test_parameters_of_another_scheduler(run_ranks):
    program = Counting(schedule=lambda request: np.array([0]))
    with pytest.raises(ValueError, match="iteration 1 on rank 1 .* 30 to 59"):
        run_engine(run_ranks, program, 2, n_schedulers=2)


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (lambda jobs: np.ones(2), r"changes of shape \(2,\), expected \(1,\)"),
        (lambda jobs: 1.0, r"changes of shape \(\), expected \(1,\)"),
        (
            lambda jobs: np.array([np.nan if jobs[0] == 2 else 1.0]),
            "change nan for parameter 2, expected a finite number",
        ),
        (lambda jobs: [-np.inf], "change -inf for parameter 0"),
    ],
)
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_changes_that_cannot_be(run_ranks, aggregate, message, n_ranks):
    with pytest.raises(
        ValueError, match=f"aggregate of Counting at iteration . on rank 0 .*{message}"
    ):
        run_engine(run_ranks, Counting(aggregate=aggregate), n_ranks)


def test_an_error_on_one_rank_ends_all(run_ranks):
    class Failing(Counting):
        def prepare(self, shard, group):
            self.rank = group.rank
            return super().prepare(shard, group)

        def update(self, job, local, model):
            if self.rank == 1 and model.sum() == 3:
                raise KeyError("out of order")
            return super().update(job, local, model)

    ended = []

    def agent(group):
        try:
            DynamicEngine(RankContext(group, 0), Failing(), no_rows()).run(1000)
        except GroupClosedError:
            ended.append(group.rank)
            raise

    with pytest.raises(KeyError, match="out of order"):
        run_ranks(agent, 3)
    assert sorted(ended) == [0, 2]


@pytest.mark.parametrize(
    "model", [np.zeros(0), np.zeros((2, 2, 2)), np.array([np.nan])]
)
def test_models_that_cannot_be(run_ranks, model):
    class Wrong(Counting):
        def initial_model(self, local, group):
            return model

    with pytest.raises(ValueError, match="initial_model of Wrong returned"):
        run_engine(run_ranks, Wrong(), 1)


@pytest.mark.parametrize("name", ["pipeline_depth", "n_schedulers"])
def test_numbers_that_cannot_be(run_ranks, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        run_engine(run_ranks, Counting(), 1, **{name: 0})
    if name == "pipeline_depth":
        with pytest.raises(ValueError, match="from 1 on or \"auto\", got 'deep'"):
            run_engine(run_ranks, Counting(), 1, pipeline_depth="deep")
