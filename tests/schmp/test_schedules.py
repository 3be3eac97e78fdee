"""Which parameters the schedules choose."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.data import Block, Shard
from dask_ma.schmp import Program, Request, Schedulers, schedules
from dask_ma.schmp.schedules._dependencies import (
    ColumnSample,
    gather_sample,
    independent_set,
    safe_prefix,
    shrunk,
)
from dask_ma.schmp.schedules._sampling import PrioritySampler, distinct, probabilities

MODEL = np.zeros(1)


def make_request(size=40, seed=0, turn=0, **values):
    known = {
        "iteration": turn,
        "turn": turn,
        "rng": np.random.default_rng(seed),
        "n_jobs": 1,
        "parameters": range(size),
        "pending": np.empty(0, dtype=np.int64),
        "last_change": np.full(size, np.inf),
        "changed": None,
    }
    return Request(**{**known, **values})


def make_shard(X, *bounds):
    blocks = [
        Block(X[a:b], None, None, 0, a)
        for a, b in zip((0, *bounds), (*bounds, X.shape[0]), strict=True)
    ]
    return Shard(blocks, X.shape[1], X.dtype)


ALL = [
    schedules.Random(8),
    schedules.Cyclic(8),
    schedules.Priority(8),
]


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("parameters", [range(40), range(10, 19), range(5, 11)])
def test_jobs_are_among_the_parameters_and_not_pending(schedule, parameters):
    pending = np.array([parameters.start, parameters.start + 3])
    for turn in range(20):
        request = make_request(
            seed=turn, turn=turn, parameters=parameters, pending=pending
        )
        job = schedule(MODEL, request)
        assert job.dtype == np.int64
        assert set(job.tolist()) <= set(parameters) - set(pending.tolist())
        assert len(set(job.tolist())) == len(job) <= 8
        if not isinstance(schedule, schedules.Cyclic):
            assert len(job) == min(8, len(parameters) - 2)


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: type(s).__name__)
def test_no_parameters(schedule):
    assert len(schedule(MODEL, make_request(parameters=range(3, 3)))) == 0


def test_random_draws_all_alike():
    counts = np.zeros(40)
    for seed in range(1000):
        counts[schedules.Random(4)(MODEL, make_request(seed=seed))] += 1
    assert counts.sum() == 4000
    assert 60 < counts.min() <= counts.max() < 140  # 4 standard deviations


def test_cyclic_goes_round():
    schedule = schedules.Cyclic(4)
    request = {"parameters": range(10, 20)}
    jobs = [schedule(MODEL, make_request(turn=t, **request)) for t in range(5)]
    assert np.concatenate(jobs).tolist() == [*range(10, 20)] * 2


def test_priority_prefers_what_has_moved():
    sizes = np.full(4000, 1e-6)
    sizes[[17, 3000]] = 2.0, 1.0
    job = schedules.Priority(8)(MODEL, make_request(4000, last_change=sizes))
    assert job[:2].tolist() == [17, 3000]
    assert len(job) == 8


def test_priority_takes_new_parameters_first():
    sizes = np.full(4000, 0.01)
    sizes[[5, 6]] = np.inf
    sizes[7] = 0.5
    job = schedules.Priority(8)(MODEL, make_request(4000, last_change=sizes))
    assert sorted(job[:2].tolist()) == [5, 6]
    assert job[2] == 7


def test_nothing_starves():
    sizes = np.zeros(100)
    sizes[0] = 1.0
    schedule, seen = schedules.Priority(4), set()
    for seed in range(600):
        seen |= set(
            schedule(MODEL, make_request(100, seed=seed, last_change=sizes)).tolist()
        )
    assert seen == set(range(100))


def test_nothing_is_kept_out_for_ever(run_ranks):
    """Column 0 depends on all others, which move more and are always pending."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    X[:, 0] = X[:, 1:].sum(axis=1)
    sizes = np.array([0.0, 1, 1, 1])
    for floor, is_seen in [(0.2, True), (0.0, False)]:
        schedule = prepared(run_ranks, schedules.Dynamic(4, 0.3, floor), X)
        seen = set()
        for seed in range(60):
            pending = np.array([1 + seed % 3])
            request = make_request(4, seed=seed, last_change=sizes, pending=pending)
            seen |= set(schedule(MODEL, request).tolist())
        assert (0 in seen) is is_seen


def test_the_way_to_the_last_changes_does_not_matter():
    rng = np.random.default_rng(0)
    schedule, sizes, changed = schedules.Priority(8), np.full(5000, np.inf), None
    for step in range(30):
        one = schedule(
            MODEL,
            make_request(5000, seed=step, last_change=sizes, changed=changed),
        )
        fresh = schedules.Priority(8)(
            MODEL, make_request(5000, seed=step, last_change=sizes)
        )
        assert one.tolist() == fresh.tolist()
        changed = rng.choice(5000, 200, replace=False)
        sizes = sizes.copy()
        sizes[changed] = rng.exponential(size=200) * (rng.random(200) < 0.7)


@pytest.mark.parametrize("size", [7, 1003])
def test_draws_follow_the_formula(size):
    rng = np.random.default_rng(1)
    sizes = rng.exponential(size=size)
    sizes[::5] = 0.0
    sizes[::7] = np.inf
    sampler = PrioritySampler(size, 4)
    sampler.update(sizes, None)
    drawn = sampler.draw(sizes, 200_000, rng)
    assert len(drawn) == 200_000
    expected = probabilities(sizes)
    found = np.bincount(drawn, minlength=size) / len(drawn)
    assert not found[expected == 0].any()
    deviation = np.sqrt(expected * (1 - expected) / len(drawn))
    assert (np.abs(found - expected) <= 5 * deviation + 1e-12).all()


def test_probabilities():
    found = probabilities(np.array([1.0, 2.0, 0.0, np.inf]), floor=0.2)
    by_hand = 0.8 * np.array([1, 4, 0, 4]) / 9 + 0.05
    np.testing.assert_allclose(found, by_hand)
    assert probabilities(np.full(4, np.inf)).tolist() == [0.25] * 4
    assert probabilities(np.zeros(4), floor=0.1).tolist() == [0.25] * 4


def test_distinct():
    drawn = np.array([5, 3, 5, 1, 3, 9])
    assert distinct(drawn, np.array([1]), 2).tolist() == [5, 3]
    assert distinct(drawn, np.array([1]), 9).tolist() == [5, 3, 9]


def test_independent_set():
    edges = np.zeros((5, 5), dtype=bool)
    for a, b in [(0, 2), (1, 2), (2, 4), (3, 1)]:
        edges[a, b] = edges[b, a] = True
    assert independent_set(edges).tolist() == [0, 1, 4]
    assert independent_set(np.ones((4, 4), dtype=bool)).tolist() == [0]
    assert independent_set(np.zeros((3, 3), dtype=bool)).tolist() == [0, 1, 2]
    assert independent_set(np.zeros((0, 0), dtype=bool)).tolist() == []


@pytest.fixture(params=[np.asarray, sparse.csr_matrix, sparse.csr_array])
def columns(request):
    """Columns 0 and 1 are the same but for a factor, 2 is the opposite of 3."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 8)) * (rng.random((400, 8)) < 0.5)
    X[:, 1] = 100 * X[:, 0]
    X[:, 3] = -X[:, 2]
    X[:, 5] = 0
    X[:, 6] = np.arange(400)
    return request.param(X)


@pytest.mark.parametrize("centered", [False, True])
def test_correlations(columns, centered):
    sample = ColumnSample([columns[:150], columns[150:]], range(8))
    index = np.array([4, 1, 5, 2])
    found = sample.correlations(index, np.arange(8), centered=centered)
    X = columns.toarray() if sparse.issparse(columns) else columns
    X = X - X.mean(axis=0) * centered
    norms = np.linalg.norm(X, axis=0)
    with np.errstate(invalid="ignore"):
        cosines = X.T @ X / np.outer(norms, norms)
    np.testing.assert_allclose(found, np.nan_to_num(cosines)[index], atol=1e-6)


def test_correlations_of_columns_far_from_zero():
    rng = np.random.default_rng(0)
    X = 1000 + rng.normal(size=(400, 3))
    X[:, 2] = 1000
    sample = ColumnSample([X], range(3))
    index = np.arange(3)
    raw = sample.correlations(index, index, centered=False)
    np.testing.assert_allclose(raw, 1, atol=1e-5)
    found = sample.correlations(index, index, centered=True)
    assert abs(found[0, 1]) < 0.3
    assert found[2].tolist() == [0, 0, 0]


@pytest.mark.parametrize("n_rows", [50, 1000])
def test_the_sample_is_drawn_from_all_ranks(run_ranks, columns, n_rows):
    schedulers = Schedulers((0, 2), (range(0, 5), range(5, 9)), seed=3)

    def agent(group):
        own = columns[[slice(0, 100), slice(0, 0), slice(100, 400)][group.rank]]
        shard = make_shard(own, own.shape[0] // 3)
        return gather_sample(shard, group, schedulers, n_rows)

    first, nothing, last = run_ranks(agent, 3)
    assert nothing is None
    assert (first.columns, last.columns) == (range(0, 5), range(5, 8))
    assert first.n_rows == last.n_rows == min(n_rows, 400)
    X = columns.toarray() if sparse.issparse(columns) else columns
    taken = np.vstack([first.take(np.arange(5)), last.take(np.arange(5, 8))]).T
    rows = {tuple(row) for row in X.astype(np.float32).tolist()}
    found = [tuple(row) for row in taken.tolist()]
    assert set(found) <= rows
    assert len(set(found)) == min(n_rows, 400)
    n_first = sum(
        row in set(map(tuple, X[:100].astype("f4").tolist())) for row in found
    )
    assert n_first > 0


def prepared(run_ranks, schedule, X, **options):
    def agent(group):
        size = X.shape[1]
        schedule.prepare(
            make_shard(X), group, Schedulers((0,), (range(size),), 0), **options
        )

    run_ranks(agent, 1)
    return schedule


def test_dynamic_leaves_out_what_depends_on_others(run_ranks, columns):
    schedule = prepared(run_ranks, schedules.Dynamic(8, 0.5, floor=0.0), columns)
    sizes = np.array([1.0, 2, 3, 4, 5, 6, 7, 8])
    job = schedule(MODEL, make_request(8, last_change=sizes))
    assert job.tolist() == [7, 6, 5, 4, 3, 1]
    sizes[0], sizes[2] = 9, 10
    job = schedule(MODEL, make_request(8, last_change=sizes))
    assert job.tolist() == [2, 0, 7, 6, 5, 4]


def test_dynamic_takes_what_is_due_first(run_ranks):
    X = np.random.default_rng(0).normal(size=(400, 40))
    schedule = prepared(run_ranks, schedules.Dynamic(4, 0.9, floor=0.0), X)
    due, sizes = np.arange(40.0), np.zeros(40)
    known = {"due": due, "last_change": sizes, "moved": 50.0}
    assert schedule(MODEL, make_request(**known)).tolist() == [0, 1, 2, 3]
    pending = np.array([0, 2])
    job = schedule(MODEL, make_request(pending=pending, **known))
    assert job.tolist() == [1, 3, 4, 5]
    sizes[30] = 6.0  # the same as due 36 earlier
    assert schedule(MODEL, make_request(**known)).tolist() == [30, 0, 1, 2]
    seen = set()
    for seed in range(100):  # where few are due, the others are drawn
        job = schedule(MODEL, make_request(seed=seed, **{**known, "moved": 1.0}))
        assert job[:3].tolist() == [30, 0, 1]
        seen.update(job[3:].tolist())
    assert len(seen) > 20


def test_dynamic_by_the_last_change_alone(run_ranks):
    """The rule of the paper, whatever delays the program has."""
    X = np.random.default_rng(0).normal(size=(400, 2000))
    schedule = schedules.Dynamic(16, 1.0, floor=0.0, priority="change")
    prepared(run_ranks, schedule, X)
    sizes, due = np.zeros(2000), np.arange(2000.0)
    sizes[:40] = np.arange(1, 41)
    counts, singles = np.zeros(2000), 0
    for seed in range(300):
        request = make_request(2000, seed, last_change=sizes, due=due, moved=1e9)
        job = schedule(MODEL, request)
        assert sizes[job].tolist() == sorted(sizes[job], reverse=True)
        counts[job] += 1
        singles += len(job)
    assert counts[40:].sum() < 0.02 * singles  # where too few of those were drawn
    shares = probabilities(sizes)[:40]
    assert np.corrcoef(counts[:40], shares)[0, 1] > 0.9
    # The dependencies of those drawn are looked at as ever.
    X[:, 38] = X[:, 39]
    prepared(
        run_ranks, schedule := schedules.Dynamic(16, 0.9, 0.0, priority="change"), X
    )
    for seed in range(30):
        job = schedule(MODEL, make_request(2000, seed, last_change=sizes, due=due))
        assert 39 not in job or 38 not in job


@pytest.mark.parametrize(
    ("n_rows", "threshold"), [(64, 0.5), (400, 0.2), (1600, 0.1), (10_000, 0.1)]
)
def test_the_threshold_is_above_chance(run_ranks, n_rows, threshold):
    """Columns without a correlation are kept, however few rows there are."""
    rng = np.random.default_rng(0)
    common, own = np.linalg.qr(rng.normal(size=(n_rows, 2)))[0].T
    for alike, n_chosen in ((0.99 * threshold, 2), (1.01 * threshold, 1)):
        X = np.column_stack([common, alike * common + np.sqrt(1 - alike**2) * own])
        schedule = schedules.Dynamic(2, floor=0.0, n_rows=n_rows, centered=False)
        prepared(run_ranks, schedule, X)
        assert len(schedule(MODEL, make_request(2))) == n_chosen
    schedule = prepared(
        run_ranks, schedules.Dynamic(64, floor=0.0), rng.normal(size=(n_rows, 400))
    )
    job = schedule(MODEL, make_request(400))
    assert len(job) >= (55 if n_rows < 512 else 15)


def largest_eigenvalue(X):
    return np.linalg.eigvalsh(np.corrcoef(X.T))[-1]


@pytest.mark.parametrize("floor", [0.0, 1.0], ids=["tight", "loose"])
def test_many_small_correlations_add_up(run_ranks, floor):
    """No two of the columns depend on each other, but all of them together do."""
    X = np.random.default_rng(0).normal(size=(70, 300))
    schedule = prepared(run_ranks, schedules.Dynamic(48, 0.8, floor=floor), X)
    job = schedule(MODEL, make_request(300))
    assert len(job) == 48
    assert largest_eigenvalue(X[:, job]) > 2.5
    assert schedule.restrain()
    restrained = schedule(MODEL, make_request(300))
    assert restrained.tolist() == job[: len(restrained)].tolist()
    job = restrained
    assert 8 <= len(job) < 20
    assert largest_eigenvalue(X[:, job]) < 2
    for n_pending in (3, 6, 40):
        pending = np.setdiff1d(np.arange(300), job)[:n_pending]
        beside = schedule(MODEL, make_request(300, pending=pending))
        both = np.append(pending, beside)
        if n_pending == 40:  # more than there should be
            assert not len(beside)
        else:
            assert 0 < len(beside) < len(job)
            assert largest_eigenvalue(X[:, both]) < 2
    assert schedule.restrain()
    assert not schedule.restrain()
    assert schedule(MODEL, make_request(300)).tolist() == job[:1].tolist()
    assert not len(schedule(MODEL, make_request(300, pending=pending[:1])))


def test_correlations_by_chance_add_up_to_nothing(run_ranks):
    """On a sample of so many rows, columns look more alike than they are."""
    X = np.random.default_rng(0).normal(size=(5000, 300))
    schedule = schedules.Dynamic(200, 0.5, floor=0.0, n_rows=256)
    schedule.restrain()
    job = prepared(run_ranks, schedule, X)(MODEL, make_request(300))
    assert len(job) == 200
    X += 0.5 * X[:, :1]  # all correlations are a fifth
    job = prepared(run_ranks, schedule, X)(MODEL, make_request(300))
    assert 1 < len(job) < 20


def test_a_prefix_below_an_eigenvalue():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 30))
    alike = np.corrcoef(X.T)
    largest = [np.linalg.eigvalsh(alike[:k, :k])[-1] for k in range(1, 31)]
    for most in (1.2, 1.5, 1.9, 2.4, 9.0):
        n = np.searchsorted(largest, most)
        assert safe_prefix(alike, 0, most) == n
        assert safe_prefix(alike, 3, most) == max(0, n - 3)
    np.testing.assert_allclose(shrunk(alike, 0.0), alike)
    # The mean square of chance is that of all there is.
    np.testing.assert_allclose(shrunk(alike, 1.0), np.eye(30))
    off = alike[np.triu_indices(30, 1)]
    half = shrunk(alike, (off**2).mean() / 2)
    np.testing.assert_allclose(half[np.triu_indices(30, 1)], off / 2)


@pytest.mark.parametrize(("new", "n_new"), [(0.0, 1), (0.5, 2), (1.0, 4)])
def test_dynamic_takes_new_parameters_besides(run_ranks, new, n_new):
    X = np.random.default_rng(0).normal(size=(400, 40))
    schedule = schedules.Dynamic(4, 0.9, floor=0.0, new=new)
    prepared(run_ranks, schedule, X)
    due, sizes = np.arange(40.0), np.zeros(40)
    due[20:] = sizes[20:] = np.inf
    request = make_request(due=due, last_change=sizes, moved=50.0)
    job = schedule(MODEL, request)
    assert (job[:n_new] >= 20).all()
    assert job[n_new:].tolist() == [*range(4 - n_new)]


def test_dynamic_leaves_out_what_depends_on_pending_ones(run_ranks, columns):
    schedule = prepared(run_ranks, schedules.Dynamic(8, 0.5, floor=0.0), columns)
    request = make_request(8, pending=np.array([0, 3, 4]))
    assert sorted(schedule(MODEL, request).tolist()) == [5, 6, 7]
    schedule.check_pending = False
    assert sorted(schedule(MODEL, request).tolist()) == [1, 2, 5, 6, 7]


def test_threshold(run_ranks, columns):
    everything = prepared(run_ranks, schedules.Dynamic(8, 1.0, n_rows=10), columns)
    assert len(everything(MODEL, make_request(8))) >= 6  # rounding may top 1
    nothing = prepared(run_ranks, schedules.Dynamic(8, 0.0), columns)
    assert len(nothing(MODEL, make_request(8))) <= 2


@pytest.mark.parametrize(
    ("own", "program", "n_chosen"),
    [(None, False, 1), (None, True, 3), (True, False, 3), (False, True, 1)],
)
def test_centered(run_ranks, own, program, n_chosen):
    X = 10 + np.random.default_rng(0).normal(size=(400, 3))
    schedule = schedules.Dynamic(3, 0.5, centered=own)
    prepared(run_ranks, schedule, X, centered=program)
    assert len(schedule(MODEL, make_request(3))) == n_chosen


def test_parameters_without_a_column(run_ranks, columns):
    schedule = prepared(run_ranks, schedules.Dynamic(8, 0.5, floor=0.0), columns)
    request = make_request(9)
    with pytest.raises(ValueError, match=r"up to 7 of X, .* up to 8; use request\.res"):
        schedule(MODEL, request)
    assert len(schedule(MODEL, request.restricted(8)))
    assert request.restricted(20).parameters == range(9)
    late = make_request(9, parameters=range(8, 9))
    assert len(schedule(MODEL, late.restricted(8))) == 0


def test_dynamic_wants_a_sample():
    with pytest.raises(RuntimeError, match="keep it as an attribute of the program"):
        schedules.Dynamic()(MODEL, make_request())


def test_a_program_prepares_its_schedules(run_ranks, columns):
    class Held(Program):
        def __init__(self):
            self.one, self.two = schedules.Dynamic(), schedules.Random()

        initial_model = schedule = update = aggregate = None

    Held.__abstractmethods__ = frozenset()
    program = Held()
    schedulers = Schedulers((0,), (range(8),), 0)
    run_ranks(
        lambda group: program.prepare_schedule(make_shard(columns), group, schedulers),
        1,
    )
    assert program.one._sample.n_rows == 400


@pytest.mark.parametrize(
    ("schedule", "name"),
    [
        (schedules.Random(0), "n_candidates"),
        (schedules.Cyclic(0), "n_candidates"),
        (schedules.Priority(0), "n_candidates"),
        (schedules.Priority(1, 1.5), "floor"),
        (schedules.Dynamic(1, -1), "dependency_threshold"),
        (schedules.Dynamic(1, "high"), "dependency_threshold"),
        (schedules.Dynamic(priority="last"), "priority"),
        (schedules.Dynamic(new=1.5), "new"),
        (schedules.Dynamic(n_rows=1), "n_rows"),
        (schedules.Dynamic(centered="yes"), "centered"),
        (schedules.Dynamic(check_pending="yes"), "check_pending"),
        (schedules.Cyclic(pipeline_depth=0), "pipeline_depth"),
        (schedules.Random(n_schedulers=0), "n_schedulers"),
    ],
    ids=repr,
)
def test_parameters_that_cannot_be(run_ranks, schedule, name):
    message = f"The '{name}' parameter of {type(schedule).__name__} must be"
    with pytest.raises(ValueError, match=message):
        schedule.check()
    with pytest.raises(ValueError, match=message):
        prepared(run_ranks, schedule, np.ones((4, 3)))


@pytest.mark.parametrize(
    ("wanted", "size", "n_parameters", "ranks", "lengths"),
    [
        (1, 4, 10, (0,), [10]),
        (2, 5, 9, (0, 2), [4, 5]),
        (9, 3, 10, (0, 1, 2), [3, 3, 4]),
        (4, 8, 2, (0, 4), [1, 1]),
    ],
)
def test_schedulers(wanted, size, n_parameters, ranks, lengths):
    schedulers = Schedulers.spread(wanted, size, n_parameters, 0)
    assert schedulers.ranks == ranks
    assert [len(p) for p in schedulers.partitions] == lengths
    joined = [j for partition in schedulers.partitions for j in partition]
    assert joined == [*range(n_parameters)]
    assert schedulers.partition_of(size) is None
    assert [schedulers.rank_of(t) for t in range(len(ranks) + 1)] == [*ranks, ranks[0]]
