"""The strategies to compare with, against slow loops, and their servers."""

import threading

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from waiting import until

from dask_ma import MPCAClassifier
from dask_ma.comm import LocalGroup, barrier
from dask_ma.exceptions import CommTimeoutError, GroupClosedError
from dask_ma.mpca.networks._mlp import MLPSpec
from dask_ma.mpca.strategies import ElasticAveraging, ParameterServer, _server
from dask_ma.mpca.strategies._base import (
    Alone,
    Averaging,
    Batch,
    Trainee,
    mean_of_models,
)
from dask_ma.mpca.strategies._progress import FitProgress, RankCounters
from dask_ma.mpca.strategies._schedules import LearningRate
from dask_ma.mpca.strategies._server import Central, Elastic
from dask_ma.supervised import StopRule

RATE = 0.05
every_solver = pytest.mark.parametrize("solver", ["sgd", "adam"])
every_server = pytest.mark.parametrize("kind", [Elastic, Central])


def batches_of(rank, n_batches, n_rows=8):
    """Batches of a rank; four make a pass."""
    rng = np.random.default_rng(100 + rank)
    W = np.random.default_rng(5).normal(size=(4, 3))
    batches = []
    for number in range(n_batches):
        X = rng.normal(size=(n_rows, 4))
        weight = rng.uniform(0.5, 2, n_rows)
        y = (X @ W).argmax(axis=1)
        batches.append(Batch(X, y, weight, number % 4 == 3))
    return batches


def build(solver="sgd", rank=0):
    """A network; each rank's is another one."""
    random_state = np.random.RandomState(rank)
    return MLPSpec((5,), solver=solver).build(4, 3, np.dtype(float), random_state)


def vector_of(network):
    return network.read(0, network.n_values)


def plain_step(network, batch):
    return network.step(*batch[:3], learning_rate=RATE)


class Rank:
    """A rank, its network and its strategy."""

    def __init__(self, group, kind, solver="sgd", *, total_rows=8, own=False, **named):
        self.group = group
        self.network = build(solver, group.rank if own else 0)
        is_served = issubclass(kind, _server.ServerStrategy)
        second = group.for_thread() if is_served else None
        self.counters = RankCounters(group, second)
        self.progress = FitProgress(
            total_rows,
            group.size,
            StopRule(None, 1, maximize=False),
            LearningRate("constant", RATE, 0.5),
            max_iter=named.pop("max_iter", 10**6),
            by_score=False,
            is_mean=True,
        )
        if is_served:
            named["second"] = second
        self.strategy = kind(
            Trainee(
                group, self.network, self.counters, self.progress, elapsed=lambda: 0.0
            ),
            **named,
        )

    def step(self, batch):
        """What a trainer does."""
        loss = self.strategy.step(batch, RATE)
        self.counters.note_step(len(batch.y), loss)
        return self.strategy.exchange(ends_pass=batch.ends_pass, idle=False)

    def idle(self):
        return self.strategy.exchange(ends_pass=False, idle=True)


def server_threads():
    return [t for t in threading.enumerate() if "dask_ma-server" in t.name]


@pytest.fixture(autouse=True)
def _no_server_is_left():
    """Threads end a moment after their ranks."""
    yield
    assert until(lambda: not server_threads())


# Each rank by itself ------------------------------------------------------------------


@every_solver
def test_one_rank_alone_makes_the_steps_of_its_optimiser(solver):
    (group,) = LocalGroup.create(1)
    rank, second = Rank(group, Alone, solver), build(solver)
    for number, batch in enumerate(batches_of(0, 8)):
        before = group.counters.as_dict()
        updates = rank.step(batch)
        plain_step(second, batch)
        np.testing.assert_array_equal(vector_of(rank.network), vector_of(second))
        assert len(updates) == (number % 4 == 3)
        assert group.counters.as_dict() == before
    np.testing.assert_array_equal(rank.strategy.joint(), vector_of(second))
    assert updates[0].record["n_samples"] == 32
    assert rank.strategy.cycles() == []
    assert rank.strategy.proximal_terms == []


def test_ranks_alone_give_the_mean_by_steps_after_each_pass(run_ranks):
    """Rank 1 makes half the steps; rank 2 has no rows."""
    sizes = [4, 2, 0]

    def program(group):
        rank = Rank(group, Alone, own=True)
        joints, batches = [], batches_of(group.rank, 8)
        for n_pass in range(2):
            for number in range(sizes[group.rank]):
                batch = batches[4 * n_pass + number]
                ends = number == sizes[group.rank] - 1
                updates = rank.step(batch._replace(ends_pass=ends))
            if not sizes[group.rank]:
                updates = rank.idle()
            assert len(updates) == 1
            joints.append(rank.strategy.joint().copy())
        return joints, vector_of(rank.network), updates[0].record

    results = run_ranks(program, 3)
    twins = [build(rank=rank) for rank in range(3)]
    for n_pass in range(2):
        for rank, second in enumerate(twins):
            for batch in batches_of(rank, 8)[4 * n_pass :][: sizes[rank]]:
                plain_step(second, batch)
        expected = np.average([vector_of(t) for t in twins], axis=0, weights=sizes)
        for joints, _, record in results:
            np.testing.assert_allclose(joints[n_pass], expected, rtol=1e-12)
    assert record["n_samples"] == 48
    for second, (_, own, _) in zip(twins, results, strict=True):
        np.testing.assert_array_equal(own, vector_of(second))


# All at once --------------------------------------------------------------------------


@every_solver
@pytest.mark.parametrize("period", [1, 3])
def test_synchronous_steps_are_those_of_a_slow_loop(run_ranks, solver, period):
    def program(group):
        rank, vectors = Rank(group, Averaging, solver, period=period, own=True), []
        for number, batch in enumerate(batches_of(group.rank, 12), 1):
            updates = rank.step(batch)
            assert len(updates) == (number % period == 0)
            vectors.append(vector_of(rank.network))
        return vectors, rank.strategy.joint(), updates[0].record

    results = run_ranks(program, 3)
    twins = [build(solver, rank) for rank in range(3)]
    batches = [batches_of(rank, 12) for rank in range(3)]
    for number in range(12):
        for rank, second in enumerate(twins):
            plain_step(second, batches[rank][number])
        if (number + 1) % period == 0:
            mean = np.mean([vector_of(second) for second in twins], axis=0)
            for second in twins:
                second.write(0, mean)
        for second, (vectors, _, _) in zip(twins, results, strict=True):
            expected = vector_of(second)
            np.testing.assert_allclose(vectors[number], expected, atol=1e-13)
    for _, joint, record in results:
        np.testing.assert_array_equal(joint, results[0][1])
        np.testing.assert_allclose(joint, mean, atol=1e-13)
        assert (record["tau"], record["n_steps"]) == (period, 3 * period)


def test_synchronous_ranks_that_have_diverged_or_have_no_rows_do_not_count(run_ranks):
    def program(group):
        rank = Rank(group, Averaging, period=2, own=True)
        batches = batches_of(group.rank, 4)
        if group.rank == 1:
            for _ in range(2):
                (update,) = rank.idle()
            return vector_of(rank.network), [update]
        for number, batch in enumerate(batches):
            if group.rank == 2 and number == 2:
                rank.network.write(0, np.full(rank.network.n_values, np.nan))
            updates = rank.step(batch)
        return vector_of(rank.network), updates

    results = run_ranks(program, 4)
    twins = {rank: build(rank=rank) for rank in (0, 2, 3)}
    for number in range(4):
        if number == 2:
            del twins[2]
        for rank, second in twins.items():
            plain_step(second, batches_of(rank, 4)[number])
        if number % 2:
            mean = np.mean([vector_of(second) for second in twins.values()], axis=0)
            for second in twins.values():
                second.write(0, mean)
    for vector, updates in results:
        np.testing.assert_allclose(vector, mean, atol=1e-13)
        assert [update.diverged for update in updates] == [True]


def test_mean_of_models(run_ranks):
    model = np.arange(3.0)

    def program(group):
        bad = np.full(3, np.nan)
        own = model + group.rank
        return (
            mean_of_models(group, own, 1.0 + group.rank),
            mean_of_models(group, bad if group.rank else own, float(not group.rank)),
            mean_of_models(group, own, 0.0),
            mean_of_models(group, bad, 0.0, otherwise=model),
        )

    for rank, (by_weight, one, own, other) in enumerate(run_ranks(program, 3)):
        np.testing.assert_allclose(by_weight, model + (0 + 2 + 6) / 6, rtol=1e-14)
        np.testing.assert_array_equal(one, model)
        np.testing.assert_array_equal(own, model + rank)
        np.testing.assert_array_equal(other, model)


# Elastic averaging --------------------------------------------------------------------


def close(ranks):
    """The joint model that the servers have when all ranks are done."""
    found = [None] * len(ranks)

    def collect(number):
        found[number] = ranks[number].strategy.collect()

    threads = [threading.Thread(target=collect, args=(n,)) for n in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for joint in found:
        np.testing.assert_array_equal(joint, found[0])
    return found[0]


def settled(ranks, expected):
    """Wait until the servers have added what the ranks sent."""

    def is_settled():
        values = np.concatenate([rank.strategy._server.values for rank in ranks])
        return np.allclose(values, expected, rtol=1e-12, atol=1e-13)

    assert until(is_settled)


@pytest.mark.pairs
@pytest.mark.parametrize("elasticity", [0.3, 1.0])
@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_elastic_averaging_follows_equations_2_and_3(n_ranks, period, elasticity):
    """Ranks take turns, so that the order is known."""
    groups = LocalGroup.create(n_ranks)
    options = {"period": period, "elasticity": elasticity, "total_rows": 10**6}
    ranks = [Rank(group, Elastic, **options) for group in groups]
    twins, center = [build() for _ in ranks], vector_of(build())
    batches = [batches_of(rank, 9) for rank in range(n_ranks)]
    for number in range(9):
        for rank, (actor, second) in enumerate(zip(ranks, twins, strict=True)):
            actor.step(batches[rank][number])
            plain_step(second, batches[rank][number])
            if (number + 1) % period == 0:
                x = vector_of(second)
                np.testing.assert_allclose(actor.strategy.joint(), center, atol=1e-13)
                second.write(0, x - elasticity * (x - center))
                center = center + elasticity * (x - center)
                settled(ranks, center)
            np.testing.assert_allclose(
                vector_of(actor.network), vector_of(second), rtol=1e-11, atol=1e-13
            )
    np.testing.assert_allclose(close(ranks), center, rtol=1e-11, atol=1e-13)


# Steps where the model lies -----------------------------------------------------------


@every_solver
def test_one_rank_with_a_server_makes_the_steps_of_its_optimiser(solver):
    (group,) = LocalGroup.create(1)
    rank, second = Rank(group, Central, solver), build(solver)
    for batch in batches_of(0, 10):
        rank.step(batch)
        plain_step(second, batch)
        np.testing.assert_allclose(
            vector_of(rank.network), vector_of(second), rtol=1e-12, atol=1e-14
        )
        np.testing.assert_array_equal(rank.strategy.joint(), vector_of(rank.network))
    np.testing.assert_array_equal(close([rank]), vector_of(rank.network))


@every_solver
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_gradients_are_taken_where_a_rank_was(solver, n_ranks):
    """Ranks take turns; what the others did is seen after the next step."""
    ranks = [Rank(g, Central, solver) for g in LocalGroup.create(n_ranks)]
    center, probe = vector_of(build()), build(solver)
    known = [center.copy() for _ in ranks]
    optimizer = probe.slice_optimizer(probe.n_parameters)
    batches = [batches_of(rank, 6) for rank in range(n_ranks)]
    for number in range(6):
        for rank, actor in enumerate(ranks):
            batch = batches[rank][number]
            probe.write(0, known[rank])
            optimizer.step(center, probe.gradient(*batch[:3])[1].copy(), RATE)
            known[rank] = center.copy()
            actor.step(batch)
            np.testing.assert_allclose(vector_of(actor.network), center, atol=1e-12)
    np.testing.assert_allclose(close(ranks), center, atol=1e-12)


# Counts and the end -------------------------------------------------------------------

OPTIONS = {Elastic: {"period": 2, "elasticity": 0.4}, Central: {}}


@every_server
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_all_ranks_get_the_same_updates_and_end(run_ranks, kind, n_ranks):
    def program(group):
        options = {"total_rows": 8 * 12, "max_iter": 2, **OPTIONS[kind]}
        rank, updates = Rank(group, kind, **options), []
        batches = batches_of(group.rank, 24)
        while not any(update.stop for update in updates):
            updates += rank.step(batches[len(updates) % 24])
        return updates, rank.strategy.collect()

    results = run_ranks(program, n_ranks)
    for updates, joint in results:
        np.testing.assert_equal(updates, results[0][0])
        np.testing.assert_array_equal(joint, results[0][1])
        assert updates[-1].epoch == 2
        assert all(update.has_news for update in updates)
    assert not server_threads()


@every_server
def test_a_rank_without_rows_waits_and_serves(run_ranks, kind):
    def program(group):
        options = {"total_rows": 8 * 12, "max_iter": 1, **OPTIONS[kind]}
        rank, updates = Rank(group, kind, **options), []
        batches = batches_of(group.rank, 100)
        barrier(group)
        before = group.counters.seconds_waiting
        for batch in batches:
            updates += rank.idle() if group.rank == 1 else rank.step(batch)
            if any(update.stop for update in updates):
                break
        waited = group.counters.seconds_waiting - before
        return len(updates), rank.counters.n_steps, waited, rank.strategy.collect()

    (n_0, steps_0, _, joint_0), (n_1, steps_1, waited, joint_1) = run_ranks(program, 2)
    assert n_0 == n_1 > 0
    assert steps_1 == 0 < steps_0
    assert waited > 0
    np.testing.assert_array_equal(joint_0, joint_1)
    assert np.abs(joint_1 - vector_of(build())).max() > 0


@every_server
def test_a_rank_that_diverges_spoils_nothing_and_ends_the_fit(run_ranks, kind):
    def program(group):
        options = {"total_rows": 10**6, **OPTIONS[kind]}
        rank, updates = Rank(group, kind, **options), []
        batches = batches_of(group.rank, 8)
        number = 0
        while not any(update.stop for update in updates):
            number += 1
            if group.rank == 1 and number == 4:
                rank.network.write(0, np.full(rank.network.n_values, np.inf))
            if rank.counters.has_diverged:
                updates += rank.idle()
            else:
                with np.errstate(all="ignore"):
                    updates += rank.step(batches[number % 8])
        return updates[-1].diverged, rank.strategy.collect()

    for diverged, joint in run_ranks(program, 3):
        assert diverged
        assert np.isfinite(joint).all()


def strategy_of(kind):
    """With exchanges in each step."""
    return ElasticAveraging(period=1) if kind is Elastic else ParameterServer()


@every_server
def test_no_thread_is_left_after_a_fit(kind, multi):
    model = MPCAClassifier(
        (5,), strategy=strategy_of(kind), n_ranks=3, max_iter=2, tol=None, batch_size=10
    )
    model.fit(*multi)
    assert not server_threads()
    assert model.n_iter_ == 2


@every_server
def test_no_thread_is_left_after_an_error_in_a_rank(kind, multi, monkeypatch):
    plain = kind._share

    def share(self):
        if self._group.rank == 1 and self._counters.n_steps == 3:
            raise ZeroDivisionError("rank 1 fails")
        plain(self)

    monkeypatch.setattr(kind, "_share", share)
    model = MPCAClassifier((5,), strategy=strategy_of(kind), n_ranks=3, batch_size=10)
    with pytest.raises(Exception, match="rank 1 fails"):
        model.fit(*multi)
    assert until(lambda: not server_threads())


@every_server
def test_an_error_in_a_server_ends_the_wait_for_its_reply(
    kind, multi, monkeypatch, configured
):
    # After a pull, or a gradient, there are two requests or one without a reply.
    plain, numbers = _server.Server._answer, iter(range(10**6))

    def answer(self, rank, what, payload):
        if rank == self._group.rank == 0 and next(numbers) == 6:
            raise ZeroDivisionError("the server fails")
        plain(self, rank, what, payload)

    monkeypatch.setattr(_server.Server, "_answer", answer)
    model = MPCAClassifier((5,), strategy=strategy_of(kind), n_ranks=2, batch_size=10)
    with configured({"dask-ma.comm.timeout": 1}):
        with pytest.raises(ZeroDivisionError, match="the server fails"):
            model.fit(*multi)


@every_server
def test_ranks_do_not_train_on_long_after_the_last_epoch(kind, multi, monkeypatch):
    """Small batches give updates as fast as steps."""
    plain, n_steps = RankCounters.note_step, []

    def note_step(self, n_rows, loss):
        n_steps.append(n_rows)
        plain(self, n_rows, loss)

    monkeypatch.setattr(RankCounters, "note_step", note_step)
    model = MPCAClassifier(
        (5,), strategy=strategy_of(kind), n_ranks=4, batch_size=5, max_iter=10, tol=None
    )
    model.fit(*multi)
    assert 240 <= len(n_steps) < 320


@every_server
def test_a_server_that_hears_nothing_ends(kind, configured):
    (group,) = LocalGroup.create(1)
    with configured({"dask-ma.comm.timeout": 0.05}):
        rank = Rank(group, kind, **OPTIONS[kind])
        assert until(lambda: not server_threads())
    with pytest.raises(CommTimeoutError, match="none of the messages"):
        rank.step(batches_of(0, 1)[0])


@every_server
def test_a_server_ends_with_its_group(kind):
    groups = LocalGroup.create(2)
    ranks = [Rank(group, kind, **OPTIONS[kind]) for group in groups]
    assert len(server_threads()) == 2
    groups[0].abort(GroupClosedError("over"))
    assert until(lambda: not server_threads())
    with pytest.raises(GroupClosedError, match="over"):
        ranks[0].idle()


@pytest.mark.parametrize("strategy", ["easgd", "parameter_server"])
def test_waits_of_a_server_are_not_those_of_the_rank(strategy, multi):
    model = MPCAClassifier(
        (5,), strategy=strategy, n_ranks=2, max_iter=3, tol=1e-9, batch_size=10
    )
    with pytest.warns(ConvergenceWarning):
        model.fit(*multi)
    records = model.history_
    waited = sum(record["seconds_waiting"] for record in records)
    assert 0 <= waited <= records[-1]["time"]
    assert sum(record["bytes_shared"] for record in records) > 0
