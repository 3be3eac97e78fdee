"""Rotations that lose workers: neighbours have copies, else a checkpoint goes on."""

import os
import signal
import threading
import time
from contextlib import ExitStack
from importlib import import_module

import dask
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from dask_ma.schmp import (
    RotationProgram,
    SchMPLDA,
    SchMPMatrixFactorization,
    run,
    schedules,
)

N_WORKERS = 4
RNG = np.random.default_rng(0)
X = np.where(RNG.random((80, 30)) < 0.4, RNG.normal(size=(80, 30)), 0)
OPTIONS = {"n_iterations": 6, "n_ranks": N_WORKERS, "random_state": 0}


@pytest.fixture
def client(crew):
    """The current client, of four workers some of which the test kills."""
    client = crew(N_WORKERS)
    with client.as_current(), dask.config.set({"dask-ma.recovery.wait": "100 ms"}):
        yield client


def make_program(doomed=(), phase=None, folder=None):
    """A program of which some ranks die in the fourth rotation, once."""

    class Doomed(RotationProgram):
        rotation = schedules.Rotation(2)

        def prepare(self, shard, group):
            self.rank = group.rank
            push = group.push

            def striking_push(payload, dest, tag=0, **options):
                if isinstance(tag, tuple) and tag[:3] == ("block", 3, 2):
                    self.strike("push")
                push(payload, dest, tag, **options)
                if tag == ("replica", 4):
                    self.strike("copy")

            group.push = striking_push
            rows = [np.empty((0, shard.n_features)), *(b.X for b in shard.blocks)]
            return np.vstack(rows)

        def strike(self, where):
            if where != phase or self.rank not in doomed:
                return
            mark = folder / f"struck-{self.rank}"
            if mark.exists():
                return
            mark.touch()
            deadline = time.monotonic() + 2
            while len(list(folder.glob("struck-*"))) < len(doomed):
                if time.monotonic() > deadline:  # a neighbour waits for this rank
                    break
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)

        def weights(self, local):
            return np.count_nonzero(local, axis=0)

        def initial_block(self, parameters, local, rng):
            return {"w": rng.normal(size=(len(parameters), 3))}

        def initial_shared(self, local, group):
            return {"total": np.zeros(3)}

        def update(self, block, local, shared, turn):
            if turn.rotation == 3 and turn.iteration == 1:
                self.strike("update")
            step = local[:, block.parameters].sum(axis=0)[:, np.newaxis]
            noise = 0.1 * turn.rng.normal(size=3) + shared["total"]
            block.values["w"] = np.tanh(block.values["w"] + step + noise)
            return {"total": block.values["w"].sum(axis=0) / 1000}

        def end_rotation(self, local, shared, turn):
            if turn.rotation == 3:
                self.strike("end")

        def report(self, sums, shared):
            return {"total": float(shared["total"].sum())}

    return Doomed()


@pytest.fixture(scope="module")
def undisturbed():
    return run(make_program(), X, **OPTIONS)


def check(result, undisturbed):
    """The same bits, and every rotation counted once."""
    for name, value in undisturbed.model.items():
        np.testing.assert_array_equal(result.model[name], value)
    assert [r["round"] for r in result.history] == [1, 2, 3, 4, 5, 6]
    totals = [r["total"] for r in undisturbed.history]
    assert [r["total"] for r in result.history] == totals


def check_restarts(result):
    """No more was made twice than the rotation in which a rank has gone, the fourth.

    And the one before, if the copy that the rank has sent after it had not arrived.
    """
    assert [r["restarts"] for r in result.history][:2] == [0, 0]


@pytest.mark.each
@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("phase", ["update", "push", "end", "copy"])
def test_one_of_four(client, undisturbed, tmp_path, phase, rank):
    program = make_program([rank], phase, tmp_path)
    result = run(program, X, **OPTIONS)
    assert len(list(tmp_path.iterdir())) == 1
    check(result, undisturbed)
    check_restarts(result)
    assert result.history[-1]["restarts"] == 1


@pytest.mark.slow
def test_two_that_are_no_neighbours(client, undisturbed, tmp_path):
    result = run(make_program([0, 2], "update", tmp_path), X, **OPTIONS)
    check(result, undisturbed)
    check_restarts(result)


@pytest.mark.slow
def test_two_neighbours_without_a_checkpoint(client, undisturbed, tmp_path):
    with pytest.warns(UserWarning, match="only copies of a part .* begins anew"):
        result = run(make_program([1, 2], "update", tmp_path), X, **OPTIONS)
    check(result, undisturbed)
    assert result.history[0]["restarts"] >= 1


@pytest.mark.slow
def test_two_neighbours_go_back_to_the_checkpoint(client, undisturbed, tmp_path):
    (tmp_path / "marks").mkdir()
    saved = {
        "dask-ma.checkpoint.path": str(tmp_path / "fits"),
        "dask-ma.checkpoint.every": 2,
    }
    program = make_program([1, 2], "end", tmp_path / "marks")
    with (
        dask.config.set(saved),
        pytest.warns(UserWarning, match="only copies .* goes on from the last check"),
    ):
        result = run(program, X, **OPTIONS)
    check(result, undisturbed)
    assert [r["restarts"] for r in result.history][:2] == [0, 0]
    assert result.history[2]["restarts"] >= 1


@pytest.mark.slow
def test_one_after_the_other(client, undisturbed, tmp_path):
    """The second goes in the next rotation, when copies have been made again."""

    class Twice(type(make_program([2], "update", tmp_path))):
        def update(self, block, local, shared, turn):
            if turn.rotation == 4 and self.rank == 1:
                mark = tmp_path / "second"
                if not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().update(block, local, shared, turn)

    result = run(Twice(), X, **OPTIONS)
    assert (tmp_path / "second").exists()
    check(result, undisturbed)
    # Rank 0 may have yet to note the third when the first worker is lost.
    assert [r["restarts"] for r in result.history][:2] == [0, 0]
    assert result.history[-1]["restarts"] == 2


def doomed_agent(mark, folder="factorization"):
    """The agent of a method, whose rank 2 dies as it sends a block of the fifth."""

    def agent(context, arguments, params):
        _agent = import_module(f"dask_ma.schmp.{folder}._agent")
        push = context.group.push

        def striking_push(payload, dest, tag=0, **options):
            push(payload, dest, tag, **options)
            is_due = isinstance(tag, tuple) and tag[:3] == ("block", 4, 2)
            if is_due and context.group.rank == 2 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        context.group.push = striking_push
        return _agent.train(context, arguments, params)

    return agent


@pytest.mark.slow
@pytest.mark.parametrize(
    "solver",
    [
        {"als_solver": "cholesky"},
        {
            "als_solver": "cg",
            "cg_steps": 1,
            "early_stopping": True,
            "n_iter_no_change": 9,
        },
        {"solver": "sgd"},
    ],
    ids=["cholesky", "cg", "sgd"],
)
def test_a_factorization(client, here, monkeypatch, tmp_path, solver):
    users, items = np.nonzero(X)
    pairs, ratings = np.column_stack([users, items]), X[users, items]
    model = SchMPMatrixFactorization(
        4, **solver, max_iter=6, tol=0, n_ranks=4, random_state=0
    )
    with pytest.warns(ConvergenceWarning):
        undisturbed = here(clone(model).fit, pairs, ratings)
        mark = tmp_path / "struck"
        monkeypatch.setattr(
            "dask_ma.schmp.factorization._estimator.train", doomed_agent(mark)
        )
        model.fit(pairs, ratings)
    assert mark.exists()
    np.testing.assert_array_equal(model.item_factors_, undisturbed.item_factors_)
    np.testing.assert_array_equal(model.user_bias_, undisturbed.user_bias_)
    assert model.history_[-1]["restarts"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["exact", "metropolis"])
def test_topics_of_tokens(client, here, monkeypatch, tmp_path, sampler):
    """The neighbour of a rank has the topics of its tokens."""
    counts = np.rint(np.abs(3 * X[:40]))
    model = SchMPLDA(
        4, sampler=sampler, max_iter=6, keep_tokens=True, n_ranks=4, random_state=0
    )
    undisturbed = here(clone(model).fit, counts)
    mark = tmp_path / "struck"
    monkeypatch.setattr(
        "dask_ma.schmp.topics._estimator.train", doomed_agent(mark, "topics")
    )
    model.fit(counts)
    assert mark.exists()
    np.testing.assert_array_equal(model.components_, undisturbed.components_)
    np.testing.assert_array_equal(model.doc_topic_, undisturbed.doc_topic_)
    assert model.history_[-1]["restarts"] == 1


@pytest.mark.slow
def test_topics_of_tokens_on_disks(client, here, monkeypatch, tmp_path, configured):
    """Nobody has copies of them: the fit begins anew, and ends as it would have."""
    counts = np.rint(np.abs(3 * X[:40]))
    model = SchMPLDA(4, max_iter=6, keep_tokens=True, n_ranks=4, random_state=0)
    undisturbed = here(clone(model).fit, counts)
    mark, disk = tmp_path / "struck", tmp_path / "disk"
    monkeypatch.setattr(
        "dask_ma.schmp.topics._estimator.train", doomed_agent(mark, "topics")
    )
    values = {"dask-ma.data.persist": False, "dask-ma.data.cache": str(disk)}
    with configured(values):
        model.fit(counts)
    assert mark.exists()
    assert not list(disk.iterdir())
    np.testing.assert_array_equal(model.components_, undisturbed.components_)
    np.testing.assert_array_equal(model.doc_topic_, undisturbed.doc_topic_)
    assert model.history_[-1]["restarts"] == 1


@pytest.mark.slow
def test_workers_join(cluster_client, bare_workers, tmp_path):
    """Blocks are cut anew for more ranks, and keep their values."""

    class Counting(RotationProgram):
        rotation = schedules.Rotation(2)

        def prepare(self, shard, group):
            self.n_ranks, self.rank = group.size, group.rank
            rows = [np.empty((0, shard.n_features)), *(b.X for b in shard.blocks)]
            return np.vstack(rows)

        def weights(self, local):
            return np.count_nonzero(local, axis=0)

        def initial_block(self, parameters, local, rng):
            return {"rotations": np.zeros(len(parameters)), "own": parameters * 1.0}

        def initial_shared(self, local, group):
            return {"rotations_of_all": np.zeros(())}

        def update(self, block, local, shared, turn):
            block.values["rotations"] += 1 / self.n_ranks
            if self.rank == 0 and turn.iteration == 0:
                (tmp_path / "begun").touch()
                time.sleep(0.05)

        def aggregate(self, change, shared):
            return {"rotations_of_all": shared["rotations_of_all"] + 1}

        def report(self, sums, shared):
            return {"n_ranks": self.n_ranks}

        def has_converged(self, records):
            return records[-1]["n_ranks"] == 3 and len(records) > 5

    def add_worker():
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        stack.enter_context(bare_workers(cluster_client, 1))

    with ExitStack() as stack, cluster_client.as_current():
        stack.enter_context(bare_workers(cluster_client, 2))
        stack.enter_context(dask.config.set({"dask-ma.elastic": True}))
        adding = threading.Thread(target=add_worker)
        adding.start()
        result = run(Counting(), X, n_iterations=2000, random_state=0)
        adding.join()
    n_rotations = len(result.history)
    assert result.converged
    assert result.model["rotations_of_all"] == n_rotations
    np.testing.assert_allclose(result.model["rotations"], n_rotations)
    np.testing.assert_array_equal(result.model["own"], np.arange(X.shape[1]))
    assert [r["round"] for r in result.history] == [*range(1, n_rotations + 1)]
    assert {r["n_ranks"] for r in result.history} == {2, 3}
