"""What the ranks have done when: kept while they run, gathered at the end."""

import pickle
from time import perf_counter, sleep, time

import numpy as np
import pytest
from sklearn.base import clone

from dask_ma import MASGDClassifier, run_spmd
from dask_ma.comm import (
    KINDS,
    TIMELINE_DTYPE,
    LocalGroup,
    Trace,
    allreduce,
    gather_timeline,
    reduce,
)
from dask_ma.engine import _launch
from dask_ma.ma import Models

COMPUTE, EVALUATE, AGGREGATE, SEND, WAIT, EXCHANGE = range(len(KINDS))
# Times of day are doubles of 1e9 s, which have steps of 2.4e-7 s.
ROUNDING = 1e-6


def kinds(spans):
    return spans["kind"].tolist()


def seconds(spans, *names):
    chosen = np.isin(spans["kind"], names)
    return float((spans["stop"] - spans["start"])[chosen].sum())


def assert_in_turn(timeline):
    """The spans of each rank follow one another."""
    for rank in np.unique(timeline["rank"]):
        own = timeline[timeline["rank"] == rank]
        assert (own["start"] < own["stop"]).all()
        assert (own["stop"][:-1] <= own["start"][1:] + ROUNDING).all()


# One rank ----------------------------------------------------------------------------


def test_spans_are_in_the_time_of_day():
    trace = Trace()
    before = time()
    with trace.span("compute"):
        sleep(0.02)
    after = time()
    (span,) = trace.spans()
    assert span["kind"] == "compute"
    assert span["peer"] == -1
    assert before - 1e-3 <= span["start"] < span["stop"] <= after + 1e-3
    assert span["stop"] - span["start"] >= 0.02 - ROUNDING


def test_an_inner_activity_cuts_the_outer_one_in_two():
    trace = Trace()
    with trace.span("evaluate"):
        sleep(0.002)
        with trace.span("aggregate"):
            sleep(0.002)
        sleep(0.002)
    spans = trace.spans()
    assert kinds(spans) == ["evaluate", "aggregate", "evaluate"]
    np.testing.assert_array_equal(spans["stop"][:-1], spans["start"][1:])


def test_a_past_activity_is_cut_out_of_the_present_one():
    trace = Trace()
    with trace.span("aggregate"):
        sleep(0.002)
        start = perf_counter()
        sleep(0.002)
        stop = perf_counter()
        sleep(0.002)
        trace.add(WAIT, start, stop, 3, 80)
    spans = trace.spans()
    assert kinds(spans) == ["aggregate", "wait", "aggregate"]
    assert spans["peer"].tolist() == [-1, 3, -1]
    assert spans["nbytes"].tolist() == [0, 80, 0]
    np.testing.assert_array_equal(spans["stop"][:-1], spans["start"][1:])


def test_what_is_too_short_to_be_seen_between_messages_is_left_out():
    trace = Trace()
    trace.begin(AGGREGATE)
    now = perf_counter() + 1
    trace.add(WAIT, now, now + 1, 1)
    trace.add(WAIT, now + 1 + 1e-6, now + 2, 2)
    trace.add(WAIT, now + 2 + 1e-3, now + 3, 3)
    expected = ["aggregate", "wait", "wait", "aggregate", "wait"]
    assert kinds(trace.spans()) == expected


def test_a_span_ends_with_an_error():
    trace = Trace()
    with pytest.raises(KeyError), trace.span("compute"):
        raise KeyError
    with trace.span("evaluate"):
        pass
    assert kinds(trace.spans()) == ["compute", "evaluate"]


@pytest.mark.parametrize("n_spans", [4, 5, 6, 13, 15])
def test_the_latest_spans_stay(n_spans):
    trace = Trace(max_spans=5)
    for number in range(n_spans):
        trace.add(SEND, number, number + 0.5, peer=number)
    kept = list(range(max(0, n_spans - 5), n_spans))
    assert trace.spans()["peer"].tolist() == kept
    assert trace.n_dropped == n_spans - len(kept)
    assert len(pickle.dumps(trace.packed())) < 5 * 32 + 300


def test_no_spans_at_all():
    trace = Trace(max_spans=0)
    with trace.span("compute"):
        trace.add(WAIT, 1.0, 2.0, 0)
    assert len(trace.spans()) == 0


def test_the_number_of_spans_is_configured(configured):
    with configured({"dask-ma.trace.max-spans": 2}):
        (group,) = LocalGroup.create(1)
    for _ in range(5):
        with group.trace.span("compute"):
            pass
    assert len(group.trace.spans()) == 2


def test_bad_number_of_spans(configured):
    with configured({"dask-ma.trace.max-spans": -1}):
        with pytest.raises(ValueError, match=r"trace\.max-spans should be a whole num"):
            Trace()
    with pytest.raises(ValueError, match=r"at least 0, got -1 \(dask-ma\.trace"):
        Trace(-1)


@pytest.mark.parametrize("kind", ["sleep", "exchange"])
def test_bad_kind(kind):
    expected = f"must be one of compute, .*, wait, got '{kind}'"
    with pytest.raises(ValueError, match=expected):
        Trace().span(kind)


def test_an_exchange_in_the_background_cuts_nothing():
    trace = Trace()
    assert KINDS[EXCHANGE] == "exchange"
    with trace.span("evaluate"):
        start = perf_counter()
        with trace.span("compute"):
            sleep(0.002)
            trace.add_beside(start, perf_counter(), 80)
            sleep(0.002)
    spans = trace.spans()
    assert sorted(kinds(spans)) == ["compute", "evaluate", "exchange"]
    (exchange,), (compute,) = (
        spans[spans["kind"] == k] for k in ("exchange", "compute")
    )
    assert (exchange["nbytes"], exchange["peer"]) == (80, -1)
    assert compute["stop"] - compute["start"] >= 0.004 - ROUNDING
    assert exchange["start"] <= compute["start"] < exchange["stop"] < compute["stop"]
    assert trace.to_time_of_day(start) == pytest.approx(exchange["start"], abs=ROUNDING)


def test_exchanges_beside_others_are_in_the_timeline(run_ranks):
    def program(group):
        with group.trace.span("compute"):
            start = perf_counter()
            sleep(0.002)
            group.trace.add_beside(start, perf_counter(), 8 + group.rank)
        return gather_timeline(group)

    timeline = run_ranks(program, 3)[0]
    assert (np.diff(timeline["start"]) >= 0).all()
    found = timeline[timeline["kind"] == "exchange"]
    assert dict(zip(found["rank"].tolist(), found["nbytes"].tolist(), strict=True)) == {
        0: 8,
        1: 9,
        2: 10,
    }
    assert_in_turn(timeline[timeline["kind"] != "exchange"])


# Ranks -------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks_per_node", [1, 2, 5])
def test_waits_are_those_of_the_counters(run_ranks, ranks_per_node):
    def program(group):
        start = time()
        for n_elements in (10, 200_000):
            allreduce(group, np.full(n_elements, group.rank))
            reduce(group, np.ones(n_elements), algorithm="tree")
        stop = time()
        return group.trace.spans(), group.counters, start, stop

    for spans, counters, start, stop in run_ranks(program, 5, ranks_per_node):
        assert set(kinds(spans)) == {"send", "wait", "aggregate"}
        assert seconds(spans, "wait") == pytest.approx(
            counters.seconds_waiting, abs=len(spans) * ROUNDING
        )
        moved = counters.bytes_sent + counters.bytes_shared
        assert spans["nbytes"][spans["kind"] == "send"].sum() == moved
        # Clocks that are set meanwhile, by a little, are no reason to fail.
        assert spans["start"].min() >= start - 1e-2
        assert spans["stop"].max() <= stop + 1e-2


def test_timeline_of_a_program(any_client):
    """Between processes a rank also waits until what it sends has been taken."""

    def program(group):
        with group.trace.span("compute"):
            own = np.ones(200_000).cumsum()
        allreduce(group, own)
        waited = group.counters.seconds_waiting
        return gather_timeline(group, origin=5.0, root=2), waited

    with any_client.as_current():
        results = run_spmd(program, n_ranks=4)
    timelines = [timeline for timeline, _ in results]
    timeline = timelines.pop(2)
    assert timelines == [None] * 3
    assert timeline.dtype == TIMELINE_DTYPE
    assert (np.diff(timeline["start"]) >= 0).all()
    assert abs(timeline["start"] + 5.0 - time()).max() < 60
    assert_in_turn(timeline)
    for rank, (_, waited) in enumerate(results):
        own = timeline[timeline["rank"] == rank]
        assert kinds(own).count("compute") == 1
        assert rank not in own["peer"]
        shortest, longest = seconds(own, "wait"), seconds(own, "wait", "send")
        slack = len(own) * ROUNDING
        assert shortest - slack <= waited <= longest + slack


def test_ranks_without_spans(run_ranks, configured):
    with configured({"dask-ma.trace.max-spans": 0}):
        timeline, *_ = run_ranks(gather_timeline, 3)
    assert timeline.shape == (0,)
    assert timeline.dtype == TIMELINE_DTYPE


# Fits --------------------------------------------------------------------------------


def fit(X, y, **changes):
    params = {"max_iter": 4, "tol": None, "random_state": 0, "n_ranks": 4, **changes}
    return MASGDClassifier(**params).fit(X, y)


@pytest.mark.each
@pytest.mark.parametrize(
    ("chosen", "is_there"), [("auto", False), (True, True), (False, False)]
)
def test_timelines_of_many_ranks_are_to_be_asked_for(
    chosen, is_there, place, configured, monkeypatch
):
    monkeypatch.setattr(_launch, "_MOST_TIMED", 3)
    X = np.random.default_rng(0).normal(size=(80, 3))
    y = (X[:, 0] > 0).astype(int)
    with configured({"dask-ma.trace.timeline": chosen}):
        timelines = [fit(X, y, n_ranks=n).timeline_ for n in (3, 4)]
    assert [bool(len(timeline)) for timeline in timelines] == [
        chosen is not False,
        is_there,
    ]
    assert all(timeline.dtype == TIMELINE_DTYPE for timeline in timelines)


def test_other_words_for_timelines_are_refused(configured):
    with (
        configured({"dask-ma.trace.timeline": "perhaps"}),
        pytest.raises(ValueError, match="trace.timeline is 'perhaps', expected true"),
    ):
        fit(np.eye(8), np.arange(8) % 2)


@pytest.fixture(params=["here", "inproc", "process"])
def place(request):
    """No client, in-process workers, worker processes."""
    if request.param == "here":
        yield
        return
    with request.getfixturevalue(f"{request.param}_client").as_current():
        yield


def test_timeline_of_a_fit(place, binary):
    model = fit(*binary)
    timeline = model.timeline_
    assert timeline.dtype == TIMELINE_DTYPE
    assert set(timeline["rank"]) == set(range(4))
    assert set(kinds(timeline)) >= {"compute", "evaluate", "send", "wait"}
    assert_in_turn(timeline)
    last = model.history_[-1]["time"]
    assert timeline["stop"].max() < last + 5
    for rank in range(4):
        own = timeline[timeline["rank"] == rank]
        assert kinds(own).count("compute") >= 4
        assert own["stop"][own["kind"] == "compute"].max() < last
    waited = sum(record["seconds_waiting"] for record in model.history_)
    assert seconds(timeline, "wait", "send") / 4 > waited - 1e-3


def test_times_are_those_of_the_history(binary):
    """Between the ends of two rounds rank 0 has computed once and evaluated."""
    model = fit(*binary, n_ranks=2, local_epochs=1)
    own = model.timeline_[model.timeline_["rank"] == 0]
    ends = [record["time"] for record in model.history_]
    computed = np.sort(own["stop"][own["kind"] == "compute"])
    assert len(computed) == 4
    np.testing.assert_array_equal(np.searchsorted(ends, computed), range(4))


def test_one_rank_neither_sends_nor_waits(binary):
    timeline = fit(*binary, n_ranks=1).timeline_
    assert set(kinds(timeline)) == {"compute", "evaluate"}
    assert set(timeline["rank"]) == {0}


def test_ranks_without_rows_wait(inproc_client):
    import dask.array as da

    X = da.from_array(np.random.default_rng(0).normal(size=(8, 3)), chunks=(8, 3))
    y = da.from_array(np.arange(8) % 2, chunks=8)
    few = X[:, 0] > np.sort(X[:, 0].compute())[-3]
    with inproc_client.as_current():
        model = fit(X[few], y[few])
    assert [record["n_samples"] for record in model.history_] == [2] * 4
    assert set(model.timeline_["rank"]) == set(range(4))
    assert_in_turn(model.timeline_)


def test_driver_aggregates(binary):
    timeline = fit(*binary, paradigm=Models("driver")).timeline_
    own = timeline[timeline["rank"] == 0]
    assert "aggregate" in kinds(own)
    assert set(own["peer"][own["kind"] == "send"]) == {1, 2, 3}


def test_timeline_without_spans(binary, configured):
    with configured({"dask-ma.trace.max-spans": 0}):
        assert len(fit(*binary).timeline_) == 0


def test_spans_do_not_change_the_fit(binary, configured):
    with configured({"dask-ma.trace.max-spans": 0}):
        without = fit(*binary)
    np.testing.assert_array_equal(fit(*binary).coef_, without.coef_)


def test_each_fit_has_its_own_timeline(binary):
    model = fit(*binary)
    first = model.timeline_
    assert model.fit(*binary).timeline_ is not first
    assert model.timeline_["start"].min() < model.history_[0]["time"]
    model.partial_fit(*binary)
    assert 0 < len(model.timeline_) < len(first)


def test_clone_and_pickle(binary):
    model = fit(*binary)
    assert not hasattr(clone(model), "timeline_")
    assert "timeline_" not in model.get_params()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.timeline_, model.timeline_)


def test_timeline_as_a_table(binary):
    pd = pytest.importorskip("pandas", reason="the table is one of pandas")
    model = fit(*binary)
    table = pd.DataFrame(model.timeline_)
    assert list(table.columns) == list(TIMELINE_DTYPE.names)
    table["seconds"] = table["stop"] - table["start"]
    sums = table.pivot_table(index="rank", columns="kind", values="seconds")
    assert sums.shape[0] == 4
