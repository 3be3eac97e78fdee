"""Exchange in phases: by hand with ranks in turn, and on threads."""

from time import sleep

import numpy as np
import pytest

from dask_ma.comm import LocalGroup
from dask_ma.mpca.networks._network import Network
from dask_ma.mpca.strategies import _coordinated
from dask_ma.mpca.strategies._base import Batch, Trainee
from dask_ma.mpca.strategies._coordinated import Coordinated
from dask_ma.mpca.strategies._joint import Cut
from dask_ma.mpca.strategies._messages import CoalescedMessages
from dask_ma.mpca.strategies._progress import FitProgress, RankCounters
from dask_ma.mpca.strategies._schedules import CycleSchedule, LearningRate
from dask_ma.supervised import StopRule

SCHEDULE = CycleSchedule(extrapolation=0.7, smoothing=0.8, penalty=0.05, blending=0.9)
N_VALUES, N_PARAMETERS = 23, 19

every_number_of_phases = pytest.mark.parametrize("n_phases", [1, 2, 3])
every_weighting = pytest.mark.parametrize("weighting", ["steps", "uniform"])


class Values(Network):
    """A vector that remembers how it has been read, and its anchors."""

    dtype = np.dtype(float)

    def __init__(self, n_values=N_VALUES, n_parameters=N_PARAMETERS):
        self.n_values, self.n_parameters = n_values, n_parameters
        self.values = np.arange(float(n_values))
        self.n_steps = 0
        self.reads, self.anchors = [], []

    def read(self, start, stop):
        self.reads.append((start, stop, self.n_steps, self.values[start:stop].copy()))
        return self.values[start:stop].copy()

    def write(self, start, values):
        raise AssertionError("the exchange writes into no network")

    def set_anchor(self, start, values):
        self.anchors.append((start, values))

    def change(self, change):
        """What a step does."""
        self.n_steps += 1
        self.values += change

    def step(
        self, X, y, sample_weight, *, learning_rate, proximal_terms=(), form="shift"
    ):
        raise NotImplementedError

    gradient = outputs = slice_optimizer = None
    optimizer_state = set_optimizer_state = None


# An abstract class cannot be told that a test needs few of its methods.
Values.__abstractmethods__ = frozenset()


class Rank:
    """A rank that makes steps of a given size."""

    def __init__(self, group, n_phases, weighting="steps", **changes):
        self.group = group
        self.network = Values(**changes.pop("network", {}))
        self.counters = RankCounters(group)
        self.progress = FitProgress(
            changes.pop("total_rows", 10**9),
            group.size,
            StopRule(None, 1, maximize=False),
            LearningRate("constant", 0.1, 0.5),
            max_iter=changes.pop("max_iter", 10**9),
            by_score=False,
            is_mean=True,
        )
        self.strategy = Coordinated(
            Trainee(
                group, self.network, self.counters, self.progress, elapsed=lambda: 0.0
            ),
            n_phases,
            changes.pop("schedule", SCHEDULE),
            weighting,
            changes.pop("cycles", None),
            changes.pop("most_steps", 0),
            most_lead=changes.pop("most_lead", 0),
            compression=changes.pop("compression", None),
            pulls_at_once=changes.pop("pulls_at_once", False),
        )
        # What follows is sent.
        self.network.reads.clear()
        self.updates = []
        self.rng = np.random.default_rng(group.rank)

    def step(self, loss=1.0):
        self.network.change(self.rng.normal(size=self.network.n_values))
        self.counters.note_step(1, loss)

    def exchange(self, idle=False):
        updates = self.strategy.exchange(ends_pass=False, idle=idle)
        self.updates += updates
        return updates

    @property
    def n_under_way(self):
        """Exchanges that this rank has begun and not seen the end of."""
        return len(self.network.reads) - len(self.network.anchors)


def make_ranks(n_ranks, n_phases, weighting="steps", **changes):
    per_node, delay = changes.pop("ranks_per_node", None), changes.pop("delay", 0.0)
    groups = LocalGroup.create(n_ranks, per_node, delay=delay)
    return [Rank(group, n_phases, weighting, **changes) for group in groups]


def in_turn(ranks, n_rounds, n_steps=lambda rank, n: 1, check=lambda: None):
    """Let ranks make steps and exchange, one after the other."""
    for number in range(n_rounds):
        for rank, actor in enumerate(ranks):
            for _ in range(n_steps(rank, number)):
                actor.step()
                actor.exchange()
                check()


def unequal(rank, number):
    """Steps of a rank in a round; now and then there are none."""
    return (1 + 2 * rank + number * (rank + 1)) % (3 + rank)


class SlowJoint:
    """The joint model from the equations, with the models that ranks have sent."""

    def __init__(self, ranks, n_phases, schedule, by_steps):
        self.networks = [rank.network for rank in ranks]
        self.n_phases, self.schedule, self.by_steps = n_phases, schedule, by_steps
        self.x = np.arange(float(self.networks[0].n_values))
        self.v = np.zeros_like(self.x)

    def exchange(self, k):
        """Where the shard of exchange `k` is projected to."""
        start, stop, *_ = self.networks[0].reads[k]
        sent = [network.reads[k] for network in self.networks]
        assert {s[:2] for s in sent} == {(start, stop)}
        models = [s[3] for s in sent]
        before = [
            net.reads[k - self.n_phases][2] if k >= self.n_phases else 0
            for net in self.networks
        ]
        taus = [s[2] - b for s, b in zip(sent, before, strict=True)]
        weights = taus if self.by_steps else [float(tau > 0) for tau in taus]
        pairs = list(zip(weights, models, strict=True))
        pairs = [(w, m) for w, m in pairs if np.isfinite(m).all()]
        mean = sum(w * m for w, m in pairs) / sum(w for w, _ in pairs)
        cycle = k // self.n_phases
        beta = self.schedule.blending ** (min(cycle, 5) / 5)
        gamma = self.schedule.extrapolation * min(cycle, 5) / 5
        delta = self.schedule.smoothing
        shard = slice(start, stop)
        new = (1 - beta) * self.x[shard] + beta * mean
        self.v[shard] = delta * self.v[shard] + (1 - delta) * (new - self.x[shard])
        self.x[shard] = new
        projected = new + gamma * self.v[shard]
        n_parameters = self.networks[0].n_parameters
        return start, np.where(np.arange(start, stop) < n_parameters, projected, new)


# In turn ------------------------------------------------------------------------------


@pytest.mark.pairs
@every_weighting
@every_number_of_phases
@pytest.mark.parametrize("n_ranks", [1, 2, 4])
def test_the_joint_model_is_that_of_the_equations(n_ranks, n_phases, weighting):
    ranks = make_ranks(n_ranks, n_phases, weighting)
    in_turn(ranks, 120, unequal)
    slow = SlowJoint(ranks, n_phases, SCHEDULE, weighting == "steps")
    n_exchanges = min(len(rank.network.anchors) for rank in ranks)
    assert n_exchanges > 22 * n_phases
    for k in range(n_exchanges):
        expected_start, expected = slow.exchange(k)
        for rank in ranks:
            start, projected = rank.network.anchors[k]
            assert start == expected_start
            np.testing.assert_allclose(projected, expected, rtol=1e-11, atol=1e-12)
    # Later exchanges may have been seen by some ranks already.
    for rank in ranks:
        if len(rank.network.anchors) == n_exchanges:
            joint, trajectory = rank.strategy.joint(), rank.strategy.trajectory()
            np.testing.assert_allclose(joint, slow.x, rtol=1e-11, atol=1e-12)
            expected = slow.v[:N_PARAMETERS]
            np.testing.assert_allclose(trajectory, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.each
@every_number_of_phases
@pytest.mark.parametrize("compression", ["bf16", "int8"])
def test_compressed_joint_models_follow_the_equations(n_phases, compression):
    """All ranks have the same bits, near those of exchanges in full precision."""
    ranks = make_ranks(3, n_phases, compression=compression)
    joints = [[] for _ in ranks]
    for number in range(60):
        for rank, actor in enumerate(ranks):
            for _ in range(unequal(rank, number)):
                actor.step()
                if actor.exchange():
                    joints[rank].append(actor.strategy.joint().copy())
    slow = SlowJoint(ranks, n_phases, SCHEDULE, by_steps=True)
    n_exchanges = min(len(each) for each in joints)
    assert n_exchanges > 8 * n_phases
    size = max(abs(rank.network.values - np.arange(N_VALUES)).max() for rank in ranks)
    for k in range(n_exchanges):
        slow.exchange(k)
        for each in joints:
            np.testing.assert_array_equal(each[k], joints[0][k])
        np.testing.assert_allclose(joints[0][k], slow.x, atol=3 * size / 127)
        exact = slice(N_PARAMETERS, None)
        np.testing.assert_allclose(joints[0][k][exact], slow.x[exact], rtol=1e-10)
    assert np.abs(joints[0][-1] - slow.x).max() > 1e-6


@pytest.mark.each
@every_number_of_phases
@pytest.mark.parametrize(
    ("compression", "n_bytes"), [(None, 8), ("bf16", 2), ("int8", 1 + 4 / 4096)]
)
def test_an_exchange_takes_the_bytes_of_the_formula(n_phases, compression, n_bytes):
    """A rank sends 2 (K - 1) / K of a shard, in so many bits."""
    sizes = {"n_values": 240_000, "n_parameters": 240_000}
    ranks = make_ranks(
        3, n_phases, network=sizes, compression=compression, ranks_per_node=1
    )
    in_turn(ranks, 7)
    for rank in ranks * 20:  # all that has been begun is to be added up
        rank.exchange()
    shard = 240_000 / n_phases
    for rank in ranks:
        n_sent, n_reduced = len(rank.network.reads), rank.strategy._n_reduced
        assert min(n_sent, n_reduced) > 3
        expected = (n_sent + n_reduced) * 2 / 3 * shard * n_bytes
        assert rank.group.counters.bytes_sent == pytest.approx(expected, rel=0.01)


@every_number_of_phases
def test_shards_take_turns_and_have_nearly_equal_sizes(n_phases):
    ranks = make_ranks(2, n_phases)
    in_turn(ranks, 30)
    cut = Cut(N_VALUES, n_phases, 2)
    for rank in ranks:
        shards = [read[:2] for read in rank.network.reads]
        assert len(shards) > 10
        for k, shard in enumerate(shards):
            assert shard == cut.shard(k % n_phases)


@every_number_of_phases
@pytest.mark.parametrize("delay", [0.0, 0.004])
def test_no_more_exchanges_than_phases_are_under_way(n_phases, delay):
    """While one shard is on its way to be added up another one comes back."""
    ranks = make_ranks(2, n_phases, delay=delay)
    most = 0

    def check():
        nonlocal most
        most = max(most, *(rank.n_under_way for rank in ranks))
        assert most <= n_phases
        if delay:
            sleep(0.0005)

    in_turn(ranks, 40, unequal, check)
    assert most >= min(n_phases, 2)


def test_the_next_shard_leaves_before_the_last_one_is_back():
    """With one phase a rank waits for its return."""
    begun = {}
    for n_phases in (1, 2, 3):
        first, second = make_ranks(2, n_phases)
        for rank in (first, second):
            rank.step()
            rank.exchange()
        # The second one has added up its part, the first one has not.
        begun[n_phases] = len(second.network.reads)
        assert len(second.network.anchors) == 0
    assert begun == {1: 1, 2: 2, 3: 3}


@pytest.mark.pairs
@every_weighting
@every_number_of_phases
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_all_ranks_get_the_same_in_the_same_order(n_ranks, n_phases, weighting):
    ranks = make_ranks(n_ranks, n_phases, weighting, total_rows=50)
    joints = [[] for _ in ranks]
    for number in range(60):
        for rank, actor in enumerate(ranks):
            for _ in range(unequal(rank, number)):
                actor.step(loss=1.0 + rank)
                if actor.exchange():
                    joints[rank].append(actor.strategy.joint().copy())
    n_updates = min(len(actor.updates) for actor in ranks)
    assert n_updates > 15
    for rank, actor in enumerate(ranks):
        for k in range(n_updates):
            got, expected = actor.updates[k], ranks[0].updates[k]
            np.testing.assert_equal(got._asdict(), expected._asdict())
            np.testing.assert_array_equal(joints[rank][k], joints[0][k])
    assert ranks[0].updates[n_updates - 1].epoch > 0


def test_one_update_at_a_time():
    """What an update asks for may concern the joint model of that time."""
    first, second = make_ranks(2, 3)
    for _ in range(30):
        for rank in (first, second):
            rank.step()
            assert len(rank.exchange()) <= 1
    assert len(first.updates) > 10


def test_all_steps_are_counted_once():
    ranks = make_ranks(3, 2, total_rows=1)
    in_turn(ranks, 40, unequal)
    # All that has been sent is to arrive.
    for _ in range(20):
        for rank in ranks:
            rank.exchange()
    n_steps = sum(rank.network.n_steps for rank in ranks)
    for rank in ranks:
        records = [update.record for update in rank.updates if update.record]
        not_sent = sum(r.network.n_steps - r.network.reads[-1][2] for r in ranks)
        assert sum(record["n_steps"] for record in records) == n_steps - not_sent
        assert rank.progress.n_samples == n_steps - not_sent


def test_an_exchange_waits_until_it_can_be_afforded(monkeypatch):
    """But not for more steps than it may."""
    [rank] = make_ranks(1, 1, most_steps=4)
    monkeypatch.setattr(rank.strategy._share, "is_due", lambda computed: False)
    for number in range(1, 13):
        rank.step()
        rank.exchange()
        assert len(rank.network.reads) == number // 4
    monkeypatch.setattr(rank.strategy._share, "is_due", lambda computed: True)
    rank.step()
    rank.exchange()
    assert len(rank.network.reads) == 4


@pytest.mark.parametrize("most_lead", [0, 4])
def test_who_is_far_ahead_lets_others_run(monkeypatch, most_lead):
    """After short steps, until the exchange that is under way has ended."""
    pauses = []
    monkeypatch.setattr(_coordinated, "sleep", pauses.append)
    monkeypatch.setattr(_coordinated, "_SHORT_STEP", np.inf)
    first, second = make_ranks(2, 1, most_lead=most_lead)
    for n_steps in range(1, 9):
        first.step()
        first.exchange()
        # The first step is sent.
        assert len(pauses) == (max(0, n_steps - most_lead) if most_lead else 0)
    second.step()
    second.exchange()
    n_pauses = len(pauses)
    for _ in range(3):  # the first brings the exchange to an end, and begins another
        first.step()
        first.exchange()
    assert first.network.anchors
    assert len(pauses) == n_pauses


def test_nothing_is_sent_without_a_step():
    ranks = make_ranks(2, 3)
    for rank in ranks * 3:
        rank.exchange()
    assert not any(rank.network.reads for rank in ranks)
    in_turn(ranks, 10)
    n_sent = [len(rank.network.reads) for rank in ranks]
    for rank in ranks * 20:
        rank.exchange()
    # A shard may still be sent that was not before; there is no step for a second time.
    for rank, before in zip(ranks, n_sent, strict=True):
        assert len(rank.network.reads) - before <= 3


@every_number_of_phases
def test_pulls_follow_the_cycles_of_each_shard(n_phases):
    ranks = make_ranks(2, n_phases)
    cut, strengths = Cut(N_VALUES, n_phases, 2), []
    for _ in range(80):
        for rank in ranks:
            rank.step()
            rank.exchange()
            n_done = len(rank.network.anchors)
            cycles = [(n_done - n + n_phases - 1) // n_phases for n in range(n_phases)]
            assert rank.strategy.cycles() == cycles
            expected = []
            for number, cycle in enumerate(cycles):
                start, stop = cut.shard(number)
                if SCHEDULE.penalty_at(cycle):
                    stop = min(stop, N_PARAMETERS)
                    expected.append((start, stop, SCHEDULE.penalty_at(cycle)))
            assert [tuple(term) for term in rank.strategy.proximal_terms] == expected
            strengths += [term.strength for term in rank.strategy.proximal_terms]
    assert max(strengths) == 0.5
    assert min(strengths) == pytest.approx(0.05)


@pytest.mark.parametrize("n_parameters", [0, 1, 8, 15, 16, N_VALUES])
def test_values_after_the_parameters_are_exchanged_but_not_pulled(n_parameters):
    network = {"n_parameters": n_parameters}
    ranks = make_ranks(2, 3, network=network)
    in_turn(ranks, 60)
    for rank in ranks:
        covered = [
            range(term.start, term.stop) for term in rank.strategy.proximal_terms
        ]
        assert sum(map(list, covered), []) == list(range(n_parameters))
        assert all(len(values) for values in covered)
        joint = rank.strategy.joint()
        assert (joint != np.arange(float(N_VALUES))).all()


def test_pulls_follow_the_length_of_a_rank_s_own_cycles():
    """All steps of a cycle draw as far, on a fast rank and on a slow one."""
    ranks = make_ranks(2, 1, schedule=SCHEDULE._replace(penalty=None, pull=0.4))
    lengths = {0: [], 1: []}
    for number in range(40):
        for rank, actor in enumerate(ranks):
            for _ in range(1 + 5 * rank):
                actor.step()
            actor.exchange()
            if number > 25:
                (term,) = actor.strategy.proximal_terms
                lengths[rank].append(np.log(0.6) / np.log(1 - term.strength))
    taus = [np.mean(lengths[rank]) for rank in (0, 1)]
    for rank, tau in enumerate(taus):
        steps = [read[2] for read in ranks[rank].network.reads[-10:]]
        assert tau == pytest.approx(np.diff(steps).mean(), rel=0.1)
    assert taus[1] > 4 * taus[0]


@every_number_of_phases
def test_pulls_at_once_are_those_of_the_next_step_alone(n_phases, monkeypatch):
    drawn = []

    def step(self, *rows, proximal_terms=(), **options):
        self.change(0.0)
        drawn.append(list(proximal_terms))
        return 1.0

    monkeypatch.setattr(Values, "step", step)
    schedule = SCHEDULE._replace(penalty=None, pull=0.4)
    (rank,) = make_ranks(1, n_phases, schedule=schedule, pulls_at_once=True)
    cut, batch = Cut(N_VALUES, n_phases, 1), Batch(None, np.zeros(1), None, False)
    for number in range(9):
        for _ in range(3):
            rank.counters.note_step(1, rank.strategy.step(batch, 0.1))
        start, stop = cut.shard((number - 1) % n_phases)
        pulls = [(start, min(stop, N_PARAMETERS), pytest.approx(0.4))] if number else []
        assert drawn == [pulls, [], []]
        drawn.clear()
        rank.exchange()


def test_a_penalty_that_is_given_acts_in_each_step(monkeypatch):
    monkeypatch.setattr(Values, "step", lambda self, *rows, **options: 1.0)
    (rank,) = make_ranks(
        1, 1, schedule=SCHEDULE._replace(penalty=0.6), cycles=[5], pulls_at_once=True
    )
    rank.step()
    rank.exchange()
    for _ in range(2):
        rank.strategy.step(Batch(None, np.zeros(1), None, False), 0.1)
        assert [term.strength for term in rank.strategy.proximal_terms] == [0.6]


def test_no_pulls_without_a_penalty():
    ranks = make_ranks(2, 2, schedule=SCHEDULE._replace(penalty=0.0))
    in_turn(ranks, 30)
    assert len(ranks[0].network.anchors) > 10
    assert ranks[0].strategy.proximal_terms == []


def test_aims_do_not_change_afterwards():
    ranks = make_ranks(2, 2)
    in_turn(ranks, 10)
    network = ranks[0].network
    kept = [values.copy() for _, values in network.anchors]
    in_turn(ranks, 10)
    for (_, values), before in zip(network.anchors, kept, strict=False):
        np.testing.assert_array_equal(values, before)


def test_cycles_are_gone_on_from():
    """All that changes from cycle to cycle has its last value at once."""
    (rank,) = make_ranks(1, 2, cycles=[20, 30])
    before = rank.network.values.copy()
    rank.step()
    rank.exchange()
    assert rank.strategy.cycles() == [21, 30]
    assert [term.strength for term in rank.strategy.proximal_terms] == [0.05, 0.05]
    change = (0.9 * (rank.network.values - before))[: N_VALUES // 2]
    projected = before[: N_VALUES // 2] + (1 + 0.7 * 0.2) * change
    np.testing.assert_allclose(rank.network.anchors[0][1], projected, rtol=1e-12)


@pytest.mark.parametrize("n_values", [1, 2, 4])
def test_fewer_values_than_parts(n_values):
    network = {"n_values": n_values, "n_parameters": n_values}
    ranks = make_ranks(4, 3, network=network)
    in_turn(ranks, 100, unequal)
    slow = SlowJoint(ranks, 3, SCHEDULE, True)
    n_exchanges = min(len(rank.network.anchors) for rank in ranks)
    assert n_exchanges > 20
    expected = {}
    for k in range(n_exchanges):
        expected = slow.exchange(k)
        for rank in ranks:
            np.testing.assert_allclose(
                rank.network.anchors[k][1], expected[1], rtol=1e-11
            )


@every_weighting
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_model_of_a_rank_that_diverges_is_ignored(weighting, bad):
    ranks = make_ranks(3, 2, weighting)
    in_turn(ranks, 10)
    n_before = [len(rank.updates) for rank in ranks]
    ranks[1].network.values[:] = bad
    ranks[1].counters.note_step(1, bad)
    for _ in range(20):
        for rank in (ranks[0], ranks[2]):
            rank.step()
            rank.exchange()
        ranks[1].network.change(bad)
        ranks[1].counters.note_step(1, 1.0)  # what it says later does not count
        ranks[1].exchange()
    slow = SlowJoint(ranks, 2, SCHEDULE, weighting == "steps")
    for k in range(min(len(rank.network.anchors) for rank in ranks)):
        _, expected = slow.exchange(k)
        for rank in ranks:
            np.testing.assert_allclose(rank.network.anchors[k][1], expected, rtol=1e-11)
    for rank, before in zip(ranks, n_before, strict=True):
        assert sum(update.diverged for update in rank.updates) == 1
        ends = [update.stop for update in rank.updates]
        assert before <= ends.index(True) < len(ends) - 3


def test_bytes_of_an_exchange():
    """All but a rank's own part goes out, and its part to all others comes back."""
    ranks = make_ranks(2, 1, ranks_per_node=1, network={"n_values": 1000})
    in_turn(ranks, 20)
    for rank in ranks:
        n_models, n_joints = len(rank.network.reads), len(rank.network.anchors)
        least = 500 * 8 * (n_models + n_joints)
        assert (
            least <= rank.group.counters.bytes_sent <= least + 400 * (2 + 2 * n_models)
        )
        spans = rank.group.trace.spans()
        exchanges = spans[spans["kind"] == "exchange"]
        assert len(exchanges) == n_joints
        assert (exchanges["nbytes"] == 8000).all()


# On threads ---------------------------------------------------------------------------


def run_to_the_end(rank, pause=0.0, idle=False):
    """What a trainer does, for the length of a fit."""
    while not any(update.stop for update in rank.updates):
        if not idle:
            rank.step()
            if pause:
                sleep(pause)
        rank.exchange(idle)
    return rank


@pytest.fixture
def run_fit(run_ranks):
    """``run_fit(n_ranks, n_phases, pauses, idle_ranks, **changes)``."""

    def run(n_ranks, n_phases, pauses=None, idle_ranks=(), **changes):
        def program(group):
            rank = Rank(group, n_phases, max_iter=1, **changes)
            pause = pauses[group.rank] if pauses else 0.0
            run_to_the_end(rank, pause, group.rank in idle_ranks)
            rank.waited = group.counters.seconds_waiting
            rank.collected = rank.strategy.collect()
            return rank

        return run_ranks(program, n_ranks)

    return run


@pytest.mark.each
@every_number_of_phases
@pytest.mark.parametrize("n_ranks", [1, 2, 4])
def test_threads_end_with_the_same_joint_model(run_fit, n_ranks, n_phases):
    ranks = run_fit(n_ranks, n_phases, total_rows=500)
    slow = SlowJoint(ranks, n_phases, SCHEDULE, True)
    n_updates = {len(rank.updates) for rank in ranks}
    assert len(n_updates) == 1
    for k in range(n_updates.pop()):
        start, expected = slow.exchange(k)
        for rank in ranks:
            np.testing.assert_allclose(rank.network.anchors[k][1], expected, rtol=1e-10)
            np.testing.assert_equal(rank.updates[k], ranks[0].updates[k])
    for rank in ranks:
        np.testing.assert_array_equal(rank.strategy.joint(), ranks[0].strategy.joint())
        np.testing.assert_array_equal(rank.collected, ranks[0].collected)
        assert rank.updates[-1].epoch == 1


@every_number_of_phases
def test_what_is_collected_is_the_joint_model_of_the_last_update(run_fit, n_phases):
    """And not what some ranks have added up since."""
    ranks = run_fit(3, n_phases, total_rows=300)
    slow = SlowJoint(ranks, n_phases, SCHEDULE, True)
    for k in range(len(ranks[0].updates)):
        slow.exchange(k)
    for rank in ranks:
        np.testing.assert_allclose(rank.collected, slow.x, rtol=1e-10)
        np.testing.assert_array_equal(rank.collected, ranks[0].collected)


@every_weighting
def test_nobody_waits_for_a_slow_rank(run_fit, weighting):
    pauses = [0.001, 0.001, 0.02]
    ranks = run_fit(3, 3, pauses, total_rows=300, weighting=weighting)
    assert [rank.waited for rank in ranks] == [0.0] * 3
    steps = [rank.network.n_steps for rank in ranks]
    assert min(steps[:2]) > 2 * steps[2]
    slow = SlowJoint(ranks, 3, SCHEDULE, weighting == "steps")
    for k in range(len(ranks[0].updates)):
        _, expected = slow.exchange(k)
        np.testing.assert_allclose(ranks[0].network.anchors[k][1], expected, rtol=1e-10)


@pytest.mark.each
@every_weighting
@every_number_of_phases
def test_a_rank_without_rows_takes_part_and_has_no_say(run_fit, n_phases, weighting):
    ranks = run_fit(
        3, n_phases, [0.0005, 0, 0.0005], (1,), total_rows=200, weighting=weighting
    )
    assert ranks[1].network.n_steps == 0
    assert ranks[1].waited > 0 == ranks[0].waited == ranks[2].waited
    slow = SlowJoint(ranks, n_phases, SCHEDULE, weighting == "steps")
    for k in range(len(ranks[0].updates)):
        _, expected = slow.exchange(k)
        for rank in ranks:
            np.testing.assert_allclose(rank.network.anchors[k][1], expected, rtol=1e-10)
    np.testing.assert_array_equal(ranks[1].collected, ranks[0].collected)


def test_an_idle_rank_does_not_keep_a_processor_busy(run_fit, monkeypatch):
    """It looks for messages when there is one, or when it has sent what is its own."""
    n_looks, n_arrived = [0, 0], [0, 0]
    look, poll = CoalescedMessages.look, LocalGroup.poll

    def counted_look(self):
        n_looks[self._group.rank] += 1
        look(self)

    def counted_poll(self, *args):
        found = poll(self, *args)
        n_arrived[self.rank] += found[0]
        return found

    monkeypatch.setattr(CoalescedMessages, "look", counted_look)
    monkeypatch.setattr(LocalGroup, "poll", counted_poll)
    run_fit(2, 1, [0.005, 0], (1,), total_rows=10)
    assert 0 < n_arrived[1]
    assert n_looks[1] <= 3 * n_arrived[1] + 3


def test_exchanges_lie_beside_the_computation(run_fit):
    ranks = run_fit(2, 3, [0.002, 0.005], total_rows=60)
    for rank in ranks:
        spans = rank.group.trace.spans()
        exchanges = spans[spans["kind"] == "exchange"]
        assert len(exchanges) == len(rank.updates)
        assert (exchanges["stop"] > exchanges["start"]).all()
        assert "wait" not in set(spans["kind"][: len(spans) // 2])
