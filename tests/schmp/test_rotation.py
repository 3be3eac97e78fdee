"""Rotations: the bits of one rank, whatever the ranks, the clock and the cluster."""

import copy
import threading
import time

import numpy as np
import pytest
from scipy import sparse

from dask_ma import SchMPLDA, SchMPMatrixFactorization
from dask_ma.comm import LocalGroup
from dask_ma.comm._reduction import tree_combine
from dask_ma.engine import RankContext
from dask_ma.exceptions import CommTimeoutError
from dask_ma.schmp import (
    ParameterBlock,
    RotationEngine,
    RotationProgram,
    Turn,
    run,
    schedules,
)
from dask_ma.schmp.runtime import _rotation

RNG = np.random.default_rng(0)
X = np.where(RNG.random((60, 23)) < 0.4, RNG.normal(size=(60, 23)), 0)
SEED = 5


def make_program(rotation=None, **replaced):
    """Updates that depend on their order; defined here, it is pickled by value."""

    class Ordered(RotationProgram):
        def __init__(self):
            self.rotation = schedules.Rotation(2) if rotation is None else rotation

        def prepare(self, shard, group):
            rows = [np.empty((0, shard.n_features)), *(b.X for b in shard.blocks)]
            return {"X": np.vstack(rows)}

        def weights(self, local):
            return (local["X"] != 0).sum(axis=0)

        def arrange(self, local, blocks, group):
            return {"parts": [local["X"][:, block] for block in blocks], **local}

        def initial_block(self, parameters, local, rng):
            return {
                "w": rng.normal(size=(len(parameters), 3)),
                "visits": np.zeros(len(parameters), dtype=np.int64),
            }

        def initial_shared(self, local, group):
            return {"total": np.zeros(3), "count": np.zeros((), dtype=np.int64)}

        def update(self, block, local, shared, turn):
            part = local["parts"][block.number]
            noise = turn.rng.normal(size=3)
            for row in part:
                step = np.outer(row, 1 + shared["total"]) + noise
                block.values["w"] = np.tanh(block.values["w"] + 0.1 * step)
            block.values["visits"] += 1
            return {"total": block.values["w"].sum(axis=0) / 100, "count": len(block)}

        def measure(self, home, local, shared):
            return np.array([sum(b.values["w"].sum() for b in home)])

        def report(self, sums, shared):
            return {"sum": sums[0], "count": int(shared["count"])}

    for name, function in replaced.items():
        setattr(Ordered, name, function)
    return Ordered()


class FakeShard:
    def __init__(self, rows):
        self.n_rows, self.n_features = rows.shape
        self.blocks = [type("Block", (), {"X": rows})] if len(rows) else []


def shards(n_ranks):
    return [FakeShard(rows) for rows in np.array_split(X, n_ranks)]


def make_engine(group, program, n_ranks):
    context = RankContext(group, SEED)
    return RotationEngine(context, program, shards(n_ranks)[group.rank])


def serial(program, n_ranks, n_rotations):
    """One rank that makes the updates of all in the order (c, rank, block)."""
    locals_ = [copy.deepcopy(program).prepare(shard, None) for shard in shards(n_ranks)]
    work = sum(program.weights(local) for local in locals_).astype(float)
    home = program.blocks(work, n_ranks)
    parameters = [np.sort(block) for own in home for block in own]
    locals_ = [program.arrange(local, parameters, None) for local in locals_]
    numbers, first = [], 0
    for own in home:
        numbers.append(tuple(range(first, first + len(own))))
        first += len(own)

    def rng(*key):
        return np.random.default_rng(np.random.SeedSequence(SEED, spawn_key=key))

    blocks = [
        ParameterBlock(k, p, program.initial_block(p, None, rng(0, 0, 0, k)))
        for k, p in enumerate(parameters)
    ]
    shared = program.initial_shared(None, None)

    def added(changes):
        return {
            name: tree_combine(
                {(r, r + 1): np.atleast_1d(changes[r][name]) for r in range(n_ranks)},
                0,
                n_ranks,
                np.add,
            ).reshape(shared[name].shape)
            for name in shared
        }

    def nothing():
        return [
            {name: np.zeros(value.shape, value.dtype) for name, value in shared.items()}
            for _ in range(n_ranks)
        ]

    for rotation in range(n_rotations):
        changes = nothing()
        laps = program.laps(None, rotation)
        for c in range(laps * n_ranks):
            request = schedules.RotationRequest(
                rotation, c, n_ranks, tuple(numbers), rng(2, rotation, c, 0)
            )
            for rank, own in enumerate(program.schedule(request)):
                for number in own:
                    turn = Turn(rotation, c, rng(1, rotation, c, number), ())
                    found = program.update(blocks[number], locals_[rank], shared, turn)
                    for name, value in found.items():
                        changes[rank][name] = changes[rank][name] + value
            is_lap = (c + 1) % n_ranks == 0 and c + 1 < laps * n_ranks
            if program.rotation.synchronize == "iteration" or is_lap:
                shared = program.aggregate(added(changes), shared)
                changes = nothing()
        shared = program.aggregate(added(changes), shared)
    model = {
        name: np.zeros((len(work), *values.shape[1:]), values.dtype)
        for name, values in blocks[0].values.items()
    }
    for block in blocks:
        for name, values in block.values.items():
            model[name][block.parameters] = values
    return {**model, **shared}


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("synchronize", ["rotation", "iteration"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
def test_ranks_do_what_one_would_do(run_ranks, n_ranks, synchronize):
    program = make_program(schedules.Rotation(2, synchronize=synchronize))

    def agent(group):
        engine = make_engine(group, program, n_ranks)
        counts = engine.run(3)
        return engine.collect(), counts.n_updates

    results = run_ranks(agent, n_ranks, ranks_per_node=2)
    assert_same(results[0][0], serial(program, n_ranks, 3))
    assert (results[0][0]["visits"] == 3 * n_ranks).all()
    assert [n for _, n in results] == [3 * n_ranks * X.shape[1]] * n_ranks


@pytest.mark.parametrize("synchronize", ["rotation", "iteration"])
def test_blocks_go_round_as_often_as_a_program_says(run_ranks, synchronize):
    rotation = schedules.Rotation(2, synchronize=synchronize)
    program = make_program(rotation, laps=lambda self, local, number: 3 - number)

    def agent(group):
        engine = make_engine(group, program, 3)
        engine.run(2)
        return engine.collect()

    model = run_ranks(agent, 3)[0]
    assert_same(model, serial(program, 3, 2))
    assert (model["visits"] == (3 + 2) * 3).all()


def test_synchronizations_differ_in_what_is_known(run_ranks):
    macro, micro = (
        serial(make_program(schedules.Rotation(2, synchronize=kind)), 3, 2)
        for kind in ("rotation", "iteration")
    )
    assert np.abs(macro["w"] - micro["w"]).max() > 1e-6


@pytest.mark.parametrize(
    ("synchronize", "n_collectives"), [("rotation", 5), ("iteration", 25)]
)
def test_all_wait_for_each_other_once_in_a_rotation(
    run_ranks, synchronize, n_collectives
):
    program = make_program(schedules.Rotation(1, synchronize=synchronize))

    def agent(group):
        engine = make_engine(group, program, 4)
        before = group._collectives
        engine.run(5)
        return group._collectives - before

    [n, *others] = run_ranks(agent, 4)
    per_call = n // n_collectives
    assert n == per_call * n_collectives
    assert set(others) == {n}


@pytest.mark.parametrize("slow", [0, 2])
def test_the_clock_changes_nothing_and_no_rank_hoards(run_ranks, slow, monkeypatch):
    monkeypatch.setattr(_rotation, "SMALL", -1)  # else it may
    held = []

    def late(self, block, local, shared, turn):
        if turn.iteration >= 0 and local["rank"] == slow:
            time.sleep(0.003)
        return type(program)._update(self, block, local, shared, turn)

    program = make_program()
    type(program)._update = type(program).update
    type(program).update = late
    prepare = type(program).prepare
    type(program).prepare = lambda self, shard, group: {
        **prepare(self, shard, group),
        "rank": group.rank if group is not None else -1,
    }
    lock = threading.Lock()

    def agent(group):
        engine = make_engine(group, program, 4)
        put = group._mailbox.put

        def counting_put(source, tag, payload, **options):
            put(source, tag, payload, **options)
            waiting = sum(
                len(messages)
                for (_, name), messages in group._mailbox._messages.items()
                if isinstance(name, tuple) and name[0] == "block"
            )
            with lock:
                held.append(waiting)

        group._mailbox.put = counting_put
        engine.run(3)
        return engine.collect(), engine.most_held

    results = run_ranks(agent, 4)
    assert_same(results[0][0], serial(program, 4, 3))
    assert max(most for _, most in results) <= 3  # of 8 blocks
    assert max(held) <= 4


@pytest.mark.parametrize(("small", "n_rotations"), [(-1, 3), (2**20, 1), (50, 3)])
def test_leave_is_asked_for_where_blocks_are_large(
    run_ranks, small, n_rotations, monkeypatch
):
    """In the first rotation, too, of which nobody knows what it sends."""
    monkeypatch.setattr(_rotation, "SMALL", small)
    program = make_program()

    def agent(group):
        tags, push, flushed = [], group.push, []
        group.push = lambda payload, dest, tag, **options: (
            tags.append(tag),
            push(payload, dest, tag, **options),
        )
        group.flush, group.take_back = lambda: flushed.append(1), lambda: None
        engine = make_engine(group, program, 4)
        flushed.clear()
        engine.run(3)
        n_leaves = sum(tag[0] == "room" for tag in tags if isinstance(tag, tuple))
        found = n_leaves, len(flushed)
        return engine.collect(), *found

    results = run_ranks(agent, 4)
    assert_same(results[0][0], serial(program, 4, 3))
    assert {n for _, n, _ in results} == {3 * n_rotations}
    assert not any(n for *_, n in results)  # a wait for answers tells nothing new


@pytest.mark.parametrize(
    ("more", "n_visited", "is_asked"), [(0, 4, False), (-1, 4, True), (0, 2, True)]
)
def test_leave_is_asked_for_where_blocks_that_stay_are_large(
    run_ranks, more, n_visited, is_asked, monkeypatch
):
    """They may travel in the next rotation, as users do after items.

    A block that goes to and fro is sent to one rank more often than once.
    """

    def schedule(self, request):
        turn = request.iteration % n_visited
        return [[0] if rank == turn else [] for rank in range(request.n_ranks)]

    def initial_block(self, parameters, local, rng):
        found = start(self, parameters, local, rng)
        return {**found, "ballast": np.zeros((len(parameters), 1000))}

    program = make_program(schedule=schedule)
    start = type(program).initial_block
    type(program).initial_block = initial_block
    n_all = 8 * 1004 * shards(4)[0].n_features
    monkeypatch.setattr(_rotation, "SMALL", n_all + more)

    def agent(group):
        leaves, push = [], group.push
        group.push = lambda payload, dest, tag, **options: (
            leaves.append(tag[0] == "room"),
            push(payload, dest, tag, **options),
        )
        engine = make_engine(group, program, 4)
        return [(engine.run(1), sum(leaves))[1] for _ in range(3)]

    first, second, third = np.sum(run_ranks(agent, 4), axis=0)
    if is_asked:
        assert 0 < first < second < third
    else:
        assert 0 < first == second == third


def test_a_schedule_of_the_users_own(run_ranks):
    """Blocks jump, rest, and are worked on in the same place twice."""

    def schedule(self, request):
        n = request.n_ranks
        order = request.rng.permutation(sum(map(len, request.home)))
        if request.iteration == 1:
            order = order[: len(order) // 2]
        return [order[rank::n].tolist() for rank in range(n)]

    program = make_program(schedule=schedule)

    def agent(group):
        engine = make_engine(group, program, 3)
        engine.run(4)
        return engine.collect()

    assert_same(run_ranks(agent, 3)[0], serial(program, 3, 4))


def test_a_block_on_two_ranks_is_refused(run_ranks):
    program = make_program(schedule=lambda self, request: [[0], [0]])

    def agent(group):
        make_engine(group, program, 2).run(1)

    with pytest.raises(
        ValueError,
        match="schedule of Ordered, rotation 0, sub-iteration 0, gives block 0",
    ):
        run_ranks(agent, 2)


@pytest.mark.parametrize(
    ("replaced", "match"),
    [
        ({"weights": lambda self, local: [[1.0]]}, "weights of Ordered .* shape"),
        ({"weights": lambda self, local: [np.nan]}, "finite numbers from 0 on"),
        ({"weights": lambda self, local: [-1.0]}, "finite numbers from 0 on"),
        (
            {"blocks": lambda self, work, n_ranks: [[np.arange(3)]]},
            "blocks of Ordered returned 3 parameters for 1 ranks, expected each of 23",
        ),
        (
            {"update": lambda self, block, *rest: block.values.update(w=np.zeros(1))},
            "'w' of shape .*the first axis",
        ),
        (
            {"update": lambda self, *rest: {"totals": 1}},
            "change of 'totals' of shape",
        ),
        ({"laps": lambda self, local, rotation: 0}, "laps of Ordered returned 0"),
        (
            {"aggregate": lambda self, change, shared: {"total": 0}},
            "aggregate of Ordered returned",
        ),
        (
            {
                "initial_shared": lambda self, local, group: {"w": 0.0},
                "update": lambda *_: None,
            },
            "'w' is a name of values of blocks and of what is shared",
        ),
    ],
)
def test_what_does_not_fit(replaced, match):
    program = make_program(**replaced)
    [group] = LocalGroup.create(1)
    with pytest.raises(ValueError, match=match):
        engine = make_engine(group, program, 1)
        engine.run(1)
        engine.collect()


def test_what_is_shared_cannot_be_written_to():
    def update(self, block, local, shared, turn):
        shared["total"] += 1

    [group] = LocalGroup.create(1)
    with pytest.raises(ValueError, match="read-only"):
        make_engine(group, make_program(update=update), 1).run(1)


def test_the_end_of_a_rotation(run_ranks):
    """All blocks are at home then, and may be changed."""

    def end_rotation(self, local, shared, turn):
        for block in turn.home:
            assert turn.iteration == 2
            block.values["visits"] *= 10
        return {"count": len(turn.home)}

    program = make_program(end_rotation=end_rotation)

    def agent(group):
        engine = make_engine(group, program, 2)
        engine.run(2)
        return engine.collect()

    model = run_ranks(agent, 2)[0]
    assert set(model["visits"]) == {220}  # (2 * 10 + 2) * 10
    assert model["count"] == 2 * (2 * 23 + 4)


def test_a_block_goes_on_before_the_next_is_worked_on(run_ranks):
    """So it is on its way meanwhile; at the end it goes home."""
    program = make_program(schedules.Rotation(3), update=lambda *_: None)

    def agent(group):
        events, push = [], group.push
        engine = make_engine(group, program, 2)
        update = engine.program.update

        def noting_update(block, *rest):
            events.append(("update", block.number))
            return update(block, *rest)

        def noting_push(payload, dest, tag=0, **options):
            if isinstance(tag, tuple) and tag[0] == "block":
                events.append(("send", tag[3]))
            push(payload, dest, tag, **options)

        engine.program.update, group.push = noting_update, noting_push
        engine.run(1)
        return events

    for rank, events in enumerate(run_ranks(agent, 2)):
        own, other = [0, 1, 2], [3, 4, 5]
        visits = own + other if rank == 0 else other + own
        assert events == [(what, n) for n in visits for what in ("update", "send")]


# Through run -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_run_gives_the_same_bits_everywhere(any_client, kind):
    def prepare(self, shard, group):
        rows = [b.X.toarray() if sparse.issparse(b.X) else b.X for b in shard.blocks]
        return {"X": np.vstack([np.empty((0, shard.n_features)), *rows])}

    program = make_program(prepare=prepare)
    options = {"n_iterations": 4, "n_ranks": 4, "random_state": 3}
    here = run(program, kind(X), **options)
    with any_client.as_current():
        there = run(program, kind(X), **options)
    assert_same(there.model, here.model)
    assert [r["round"] for r in there.history] == [1, 2, 3, 4]
    for a, b in zip(here.history, there.history, strict=True):
        assert (a["sum"], a["count"], a["imbalance"]) == (
            b["sum"],
            b["count"],
            b["imbalance"],
        )
        assert a["n_updates"] == 4 * X.shape[1]
        assert a["n_touched"] == np.count_nonzero(X)
        assert a["n_samples"] == len(X)
        assert a["imbalance"] >= 1
    assert here.history[-1]["sum"] == pytest.approx(here.model["w"].sum())


@pytest.mark.parametrize(
    "fit",
    [
        lambda: run(make_program(), X, n_iterations=2, n_ranks=3, random_state=0),
        lambda: SchMPLDA(2, max_iter=2, n_ranks=3).fit(np.ceil(np.abs(X))),
        lambda: SchMPMatrixFactorization(2, max_iter=1, n_ranks=3).fit(
            sparse.csr_array(X)
        ),
    ],
    ids=["program", "topics", "factorization"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_no_rank_ever_has_the_whole_model(monkeypatch, fit):
    """Not even when the fit ends: the client puts it together."""

    def gather(*_):
        raise AssertionError("a rank has got the model of all")

    monkeypatch.setattr("dask_ma.schmp.runtime._rotation.gather_model", gather)
    fit()


def test_rounds_of_several_rotations():
    result = run(make_program(), X, n_iterations=5, report_every=2, random_state=0)
    assert [record["iteration"] for record in result.history] == [2, 4, 5]
    assert (result.model["visits"] == 5).all()


def test_a_program_can_end_the_run():
    program = make_program(has_converged=lambda self, records: len(records) == 3)
    result = run(program, X, n_iterations=10, random_state=0)
    assert result.converged
    assert (result.model["visits"] == 3).all()


@pytest.mark.parametrize(
    "options", [{"pipeline_depth": 2}, {"n_schedulers": 2}], ids=lambda o: next(iter(o))
)
def test_what_has_no_effect_is_refused(options):
    with pytest.raises(ValueError, match="has no effect on a RotationProgram"):
        run(make_program(), X, n_iterations=1, **options)


def test_more_ranks_than_parameters():
    result = run(make_program(), X[:, :2], n_iterations=2, n_ranks=5, random_state=0)
    assert (result.model["visits"] == 10).all()


def test_few_counts_travel_sparse(process_client):
    """The bytes that go from rank to rank are those of elements that are not zero."""

    def initial_block(self, parameters, local, rng):
        counts = np.zeros((len(parameters), 2000))
        counts[:, 0] = 1
        return {"counts": counts}

    program = make_program(
        initial_block=initial_block,
        initial_shared=lambda self, local, group: {},
        update=lambda *_: None,
        measure=lambda *_: np.zeros(0),
        report=lambda *_: {},
    )
    with process_client.as_current():
        result = run(program, X, n_iterations=2, n_ranks=4, random_state=0)
    assert (result.model["counts"].sum(axis=1) == 1).all()
    dense = 4 * X.shape[1] * 2000 * 8
    assert all(record["bytes_sent"] < dense / 50 for record in result.history)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_blocks_may_have_sparse_rows(
    n_ranks, tmp_path, configured, interrupted, process_client
):
    """They are sparse at any time, but for those that were saved, and in order."""

    def initial_block(self, parameters, local, rng):
        return {"w": sparse.csr_array((len(parameters), 40))}

    def update(self, block, local, shared, turn):
        assert block.parameters.size == block.values["w"].shape[0]
        w = sparse.csr_array(block.values["w"]).tolil()
        w[:, turn.rotation] = (block.parameters + turn.iteration)[:, np.newaxis]
        block.values["w"] = sparse.csr_array(w)

    def measure(self, home, local, shared):
        return np.array([sum(sparse.issparse(b.values["w"]) for b in home)])

    replaced = {
        "initial_block": initial_block,
        "update": update,
        "measure": measure,
        "report": lambda self, sums, shared: {"sparse": sums[0]},
    }
    expected = np.zeros((23, 40))
    expected[:, :6] = np.arange(23)[:, np.newaxis] + n_ranks - 1

    def fit():
        program = make_program(**replaced)
        return run(program, X, n_iterations=6, n_ranks=n_ranks, random_state=SEED)

    with process_client.as_current():
        result = fit()
    np.testing.assert_array_equal(result.model["w"], expected)
    assert [record["sparse"] for record in result.history] == [2 * n_ranks] * 6
    with configured({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(3):
            fit()
        result = fit()
    np.testing.assert_array_equal(result.model["w"], expected)


def test_a_rank_that_never_sends_is_noticed(configured):
    groups = LocalGroup.create(2)
    program = make_program()
    with configured({"dask-ma.comm.timeout": "0.2s"}):
        engines = []
        threads = [
            threading.Thread(
                target=lambda g=g: engines.append(make_engine(g, program, 2))
            )
            for g in groups
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        with pytest.raises(CommTimeoutError):
            engines[0].run(1)


def test_before_a_rotation_all_blocks_are_at_home():
    """What was learnt is known there, and can be kept with the blocks."""

    def begin(self, home, local, shared):
        for block in home:
            block.values["visits"] = block.values["visits"] + 100

    options = {"n_iterations": 3, "n_ranks": 3, "random_state": 0}
    kept = run(make_program(begin_rotation=begin), X, **options)
    plain = run(make_program(), X, **options)
    added = kept.model["visits"] - plain.model["visits"]
    np.testing.assert_array_equal(added, 300)
    np.testing.assert_array_equal(kept.model["w"], plain.model["w"])
