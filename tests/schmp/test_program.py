"""Programs of users, on threads and on clusters."""

import pickle
from pathlib import Path

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import nnls

from dask_ma import losses
from dask_ma.schmp import (
    CoordinateDescent,
    DynamicEngine,
    Program,
    run,
    schedules,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 8)) + 0.3
Y = X @ np.maximum(RNG.normal(size=8), 0) + 0.3 * RNG.normal(size=120)
WEIGHT = RNG.integers(0, 3, 120)


def make_program(**replaced):
    """Non-negative least squares; defined here, it is pickled by value."""

    class NonNegative(Program):
        def __init__(self):
            self.schedules = schedules.Dynamic(4, 0.5)

        def prepare(self, shard, group):
            weight = [
                np.ones(len(b.y)) if b.sample_weight is None else b.sample_weight
                for b in shard.blocks
            ]
            n = shard.n_features
            local = {
                "X": np.vstack([np.empty((0, n)), *[b.X for b in shard.blocks]]),
                "y": np.concatenate([np.empty(0), *[b.y for b in shard.blocks]]),
                "weight": np.concatenate([np.empty(0), *weight]),
            }
            return local

        def initial_model(self, local, group):
            return np.zeros(local["X"].shape[1])

        def schedule(self, model, request):
            return self.schedules(model, request)

        def update(self, job, local, model):
            columns = local["X"][:, job] * local["weight"][:, np.newaxis]
            residual = local["y"] - local["X"] @ model
            return columns.T @ residual, (columns * local["X"][:, job]).sum(axis=0)

        def aggregate(self, results, jobs, model):
            products, squares = (sum(part) for part in zip(*results, strict=True))
            return np.maximum(model[jobs] + products / squares, 0) - model[jobs]

        def measure(self, local, model):
            residual = local["y"] - local["X"] @ model
            return np.array([local["weight"] @ residual**2])

        def report(self, sums, model):
            return {"objective": sums[0] / 2}

    for name, function in replaced.items():
        setattr(NonNegative, name, function)
    return NonNegative()


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [None, 3])
@pytest.mark.parametrize("n_schedulers", [1, 2])
def test_without_a_client(n_ranks, n_schedulers):
    result = run(
        make_program(),
        X,
        Y,
        n_iterations=250,
        n_schedulers=n_schedulers,
        n_ranks=n_ranks,
        random_state=0,
    )
    best, norm = nnls(X, Y)
    np.testing.assert_allclose(result.model, best, atol=1e-8)
    assert not result.converged
    assert [r["iteration"] for r in result.history] == [100, 200, 250]
    assert [r["round"] for r in result.history] == [1, 2, 3]
    last = result.history[-1]
    assert last["objective"] == pytest.approx(norm**2 / 2)
    assert last["n_touched"] == last["n_updates"] * len(X)
    # Some jobs are empty, where all depends on what is pending.
    assert 0 < last["n_samples"] <= 50 * len(X)
    assert last["seconds_computing"] > 0
    assert set(result.timeline["kind"]) >= {"compute", "aggregate"}


def test_weights_are_repetitions(cluster):
    once = run(make_program(), X, Y, WEIGHT, n_iterations=200, random_state=0)
    best, _ = nnls(np.repeat(X, WEIGHT, axis=0), np.repeat(Y, WEIGHT))
    np.testing.assert_allclose(once.model, best, atol=1e-8)
    assert set(once.timeline["rank"]) == {0, 1, 2, 3}


@pytest.mark.parametrize("n_schedulers", [1, 2])
def test_the_cluster_does_not_change_a_bit(any_client, n_schedulers):
    options = {
        "n_iterations": 40,
        "report_every": 15,
        "pipeline_depth": 3,  # by default it depends on the cluster
        "n_schedulers": n_schedulers,
        "n_ranks": 4,
        "random_state": 3,
    }
    here = run(make_program(), X, Y, WEIGHT, **options)
    with any_client.as_current():
        there = run(make_program(), X, Y, WEIGHT, **options)
    np.testing.assert_array_equal(there.model, here.model)
    for a, b in zip(here.history, there.history, strict=True):
        assert a["objective"] == b["objective"]
        assert a["n_touched"] == b["n_touched"]


def test_dask_arrays_stay_where_they_are(processes):
    blocks = sparse.csr_matrix(np.where(np.abs(X) < 0.3, 0, X))
    lazy = da.from_array(blocks.toarray(), chunks=(17, 8)).map_blocks(sparse.csr_matrix)
    y = da.from_array(Y, chunks=17)
    program = CoordinateDescent(
        losses.SquaredError(), schedules.Cyclic(2), np.full(8, 0.01), np.zeros(8)
    )
    here = run(program, blocks, Y, n_iterations=30, pipeline_depth=2, random_state=0)
    there = run(program, lazy, y, n_iterations=30, pipeline_depth=2, random_state=0)
    np.testing.assert_allclose(there.model, here.model, atol=1e-8)


def test_without_targets():
    class Means(Program):
        def prepare(self, shard, group):
            return np.vstack([block.X for block in shard.blocks])

        def initial_model(self, local, group):
            return np.zeros((8, 1))

        def schedule(self, model, request):
            return np.arange(8) if not len(request.pending) else []

        def update(self, job, local, model):
            return local[:, job].sum(axis=0), np.array(len(local))

        def aggregate(self, results, jobs, model):
            sums, counts = (sum(part) for part in zip(*results, strict=True))
            return (sums / counts)[:, np.newaxis] - model

    # An empty list is one of jobs, and of the wrong length.
    with pytest.raises(ValueError, match="returned 0 jobs, expected"):
        run(Means(), X, n_iterations=9, pipeline_depth=2, n_ranks=2)
    Means.schedule = lambda self, model, request: np.arange(8 * (request.turn == 4))
    result = run(Means(), X, n_iterations=9, n_ranks=2)
    np.testing.assert_allclose(result.model[:, 0], X.mean(axis=0))
    assert result.history[0]["n_updates"] == 8
    assert "objective" not in result.history[0]


def test_a_run_ends_when_the_program_says_so():
    def has_converged(self, records):
        return len(records) > 1 and records[-1]["iteration"] >= 20

    result = run(
        make_program(has_converged=has_converged),
        X,
        Y,
        n_iterations=1000,
        report_every=10,
        n_ranks=2,
    )
    assert result.converged
    assert len(result.history) == 2


def test_the_same_seed_gives_the_same_run():
    def model(seed):
        program = make_program()
        program.schedules = schedules.Random(2)
        return run(program, X, Y, n_iterations=10, random_state=seed, n_ranks=2).model

    np.testing.assert_array_equal(model(1), model(1))
    assert (model(1) != model(2)).any()


def test_the_program_of_the_caller_stays_as_it_is():
    program = make_program()
    before = set(vars(program))
    run(program, X, Y, n_iterations=2)
    assert set(vars(program)) == before
    assert program.schedules._sample is None


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_run_that_goes_on_equals_an_uninterrupted_one(tmp_path, configured, n_ranks):
    def program(alpha=0.01):
        schedule = schedules.Dynamic(4, 0.5)
        return CoordinateDescent(
            losses.SquaredError(), schedule, np.full(8, alpha), np.zeros(8)
        )

    options = {"report_every": 7, "random_state": 0, "n_ranks": n_ranks}
    whole = run(program(), X, Y, n_iterations=35, **options)
    with configured({"dask-ma.checkpoint.path": str(tmp_path)}):
        run(program(), X, Y, n_iterations=14, **options)
        rest = run(program(), X, Y, n_iterations=35, **options)
        other = run(program(0.02), X, Y, n_iterations=35, **options)
    np.testing.assert_array_equal(rest.model, whole.model)
    plain = run(program(0.02), X, Y, n_iterations=35, **options)
    np.testing.assert_array_equal(other.model, plain.model)
    pairs = zip(rest.history, whole.history, strict=True)
    assert all(a["objective"] == b["objective"] for a, b in pairs)


def test_a_finished_run_is_not_run_again(tmp_path, configured):
    """Unless its program does something else now, under the same name."""
    options = {"n_iterations": 20, "random_state": 0}
    with configured({"dask-ma.checkpoint.path": str(tmp_path)}):
        first = run(make_program(), X, Y, **options)
        again = run(make_program(), X, Y, **options)

        def update(self, job, local, model):
            raise AssertionError("an edited method")

        with pytest.raises(AssertionError, match="an edited method"):
            run(make_program(update=update), X, Y, **options)
    np.testing.assert_array_equal(again.model, first.model)
    assert again.history == first.history  # with all times


def test_all_that_a_program_holds_tells_it_from_others(tmp_path, configured):
    def objective(schedule):
        program = CoordinateDescent(
            losses.SquaredError(), schedule, np.full(8, 0.01), np.zeros(8)
        )
        return run(program, X, Y, n_iterations=20, random_state=0).history[-1]

    made = [schedules.Cyclic(1), schedules.Cyclic(2), schedules.Priority(2)]
    plain = [objective(schedule)["objective"] for schedule in made]
    with configured({"dask-ma.checkpoint.path": str(tmp_path)}):
        for _ in range(2):
            assert [objective(schedule)["objective"] for schedule in made] == plain
    assert len(list(tmp_path.iterdir())) == len(made)


def test_the_schedule_of_a_program_says_how_it_is_carried_out(monkeypatch):
    """Unless `run` is told."""
    seen = []

    class Noting(DynamicEngine):
        def __init__(self, *args, pipeline_depth, n_schedulers, **kwargs):
            seen.append((pipeline_depth, n_schedulers))
            super().__init__(
                *args,
                pipeline_depth=pipeline_depth,
                n_schedulers=n_schedulers,
                **kwargs,
            )

    monkeypatch.setattr("dask_ma.schmp.runtime._run.DynamicEngine", Noting)

    def go(*made, **told):
        program = make_program(schedule=lambda self, model, request: np.arange(2))
        del program.schedules
        for number, schedule in enumerate(made):
            setattr(program, f"schedule_{number}", schedule)
        run(program, X, Y, n_iterations=2, **told)
        return seen.pop()

    shallow = schedules.Random(2)
    deep = schedules.Cyclic(2, pipeline_depth=2, n_schedulers=3)
    assert go() == go(shallow) == ("auto", 1)
    assert go(deep) == (2, 3)
    assert go(deep, pipeline_depth="auto", n_schedulers=1) == ("auto", 1)
    message = "schedules of NonNegative differ in pipeline_depth: 'auto', 2; give pipe"
    with pytest.raises(ValueError, match=message):
        go(deep, shallow)
    assert go(deep, shallow, pipeline_depth=1, n_schedulers=2) == (1, 2)


def test_a_program_that_cannot_be_told_from_others(tmp_path, configured):
    program = make_program()
    program.rates = [0.1]
    for _ in range(60):
        program.rates = [program.rates]
    run(program, X, Y, n_iterations=2)  # nothing is to be saved
    with configured({"dask-ma.checkpoint.path": str(tmp_path)}):
        words = "NonNegative is not saved: its attribute rates .* 50 levels deep"
        with pytest.warns(UserWarning, match=words) as caught:
            run(program, X, Y, n_iterations=2)
    assert caught[0].filename == __file__
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_errors_of_the_program_come_out(n_ranks):
    def update(self, job, local, model):
        if model.any():
            raise KeyError("no such thing")
        return type(self).__mro__[0].update_before(self, job, local, model)

    program = make_program()
    cls = type(program)
    cls.update_before, cls.update = cls.update, update
    with pytest.raises(KeyError, match="no such thing"):
        run(program, X, Y, n_iterations=50, n_ranks=n_ranks)


def test_errors_of_the_program_come_out_of_a_cluster(cluster):
    with pytest.raises(ValueError, match="schedule of NonNegative at iteration 0"):
        run(
            make_program(schedule=lambda self, model, request: np.array([99])),
            X,
            Y,
            n_iterations=50,
        )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n_iterations": 0}, ValueError, "n_iterations must be at least 1, got 0"),
        ({"pipeline_depth": 0}, ValueError, "pipeline_depth must be at least 1"),
        ({"n_schedulers": 1.0}, TypeError, "n_schedulers must be an integer, got 1.0"),
        ({"report_every": -1}, ValueError, "report_every must be at least 1"),
        ({"n_ranks": 0}, ValueError, "n_ranks must be at least 1"),
        ({"program": "nothing"}, TypeError, "program must be an object of a subclass"),
        ({"program": CoordinateDescent}, TypeError, "program must be an object"),
        ({"X": [1.0]}, ValueError, "Expected 2D array"),
        ({"X": X * np.nan}, ValueError, "X contains NaN"),
        ({"y": Y[:-1]}, ValueError, "inconsistent numbers of samples"),
    ],
)
def test_arguments_that_cannot_be(change, error, message):
    known = {"program": make_program(), "X": X, "y": Y, "n_iterations": 3}
    with pytest.raises(error, match=message):
        run(**{**known, **change})


@pytest.mark.parametrize(
    ("report", "error", "message"),
    [
        ({"time": 1.0}, ValueError, "report of NonNegative returned 'time'"),
        ({"objective": "low"}, TypeError, "report returned 'low' for 'objective'"),
    ],
)
def test_reports_that_cannot_be(report, error, message):
    program = make_program(report=lambda self, sums, model: report)
    with pytest.raises(error, match=message):
        run(program, X, Y, n_iterations=3)


def test_reports_hold_plain_numbers():
    report = {"a": np.float64(0.5), "b": np.array(2), "c": True}
    program = make_program(report=lambda self, sums, model: report)
    record = run(program, X, Y, n_iterations=3).history[0]
    assert [type(record[name]) for name in "abc"] == [float, int, bool]


def test_results_can_be_pickled():
    result = run(make_program(), X, Y, n_iterations=2)
    again = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(again.model, result.model)
    assert cloudpickle.loads(cloudpickle.dumps(make_program())) is not None


def test_the_example():
    """Its program against SciPy; the whole of it runs with the gallery."""
    path = Path(__file__).parents[2] / "examples" / "plot_scheduled_program.py"
    text = path.read_text().split("# %%")
    names = {}
    exec(compile(text[0] + text[1], str(path), "exec"), names)
    n_lines = len((text[1].split("class Rows")[1]).splitlines())
    assert n_lines < 60
    program = names["NonNegativeLeastSquares"](schedules.Dynamic(4, 0.5))
    result = run(program, X, Y, n_iterations=200, n_ranks=2, random_state=0)
    best, norm = nnls(X, Y)
    np.testing.assert_allclose(result.model, best, atol=1e-8)
    assert result.history[-1]["objective"] == pytest.approx(norm**2 / 2)


@pytest.mark.parametrize(
    "other",
    [
        lambda: schedules.Cyclic(1),
        lambda: schedules.Dynamic(8, 0.2),
        lambda: schedules.Dynamic(8, 0.1, priority="change"),
    ],
)
def test_a_run_with_another_schedule_is_another_run(tmp_path, other):
    """The schedule is an object among the attributes of the program."""

    def go(schedule, n_iterations):
        program = CoordinateDescent(
            losses.SquaredError(), schedule, np.full(8, 0.01), np.zeros(8)
        )
        options = {"n_iterations": n_iterations, "report_every": 10, "n_ranks": 1}
        return run(program, X, Y, random_state=0, **options)

    fresh = go(other(), 60)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        first = go(schedules.Dynamic(8, 0.1), 20)
        longer = go(schedules.Dynamic(8, 0.1), 40)
        assert longer.history[:2] == first.history  # it goes on, with all records
        found = go(other(), 60)
    objectives = [r["objective"] for r in found.history]
    assert objectives == [r["objective"] for r in fresh.history]
    assert objectives[0] != first.history[0]["objective"]
