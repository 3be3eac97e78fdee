"""Records that reach the client while a run lasts, and its answers."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dask_ma.engine import _events, launch, place_ranks
from dask_ma.engine._events import (
    LINK_TOPIC,
    TOPIC,
    EventLink,
    RecordLog,
    Subscriptions,
    answer,
    fetch_model,
)
from dask_ma.exceptions import CommTimeoutError, GroupClosedError

N_RANKS = 3


@pytest.fixture(params=["here", "inproc", "process"])
def client(request):
    """No client, and one of each kind of cluster."""
    if request.param == "here":
        return None
    return request.getfixturevalue(f"{request.param}_client")


def follow(client, listener, n_rounds=6, agent=None):
    """Run an agent of some rounds; return how many each rank has made."""

    def rounds(context, shard, params):
        for number in range(1, n_rounds + 1):
            model = {"w": np.full(3, number), "rank": context.group.rank}
            if context.record({"round": number, "loss": 1 / number}, model):
                break
        return number, context.history

    return launch(
        agent or rounds,
        [None] * N_RANKS,
        name="Followed",
        client=client,
        addresses=place_ranks(client, N_RANKS),
        listener=listener,
        collect="all",
    )


def test_records_arrive_in_order_in_the_thread_that_called(client):
    heard = []

    def listener(record, fetch):
        heard.append((record, threading.current_thread()))

    results = follow(client, listener)
    expected = [{"round": n, "loss": 1 / n, "restarts": 0} for n in range(1, 7)]
    assert [record for record, _ in heard] == expected
    assert {thread for _, thread in heard} == {threading.current_thread()}
    assert [number for number, _ in results] == [6] * N_RANKS
    assert [history for _, history in results] == [expected] * N_RANKS


@pytest.mark.parametrize("last", [1, 3])
def test_a_stop_ends_that_very_round_on_all_ranks(client, last):
    heard = []

    def listener(record, fetch):
        heard.append(record["round"])
        return record["round"] == last

    results = follow(client, listener)
    assert [number for number, _ in results] == [last] * N_RANKS
    assert heard == list(range(1, last + 1))


def test_the_model_is_that_of_the_round(client):
    models = []

    def listener(record, fetch):
        if record["round"] in (2, 5):
            models.append(fetch())

    follow(client, listener)
    assert [int(model["w"][0]) for model in models] == [2, 5]
    assert [model["rank"] for model in models] == [0, 0]


def test_the_model_is_fetched_only_when_asked_for(process_client):
    def agent(context, shard, params):
        for number in (1, 2, 3):
            # A lock cannot leave its process.
            model = {"w": number if number == 2 else threading.Lock()}
            context.record({"round": number}, model)

    fetched = []

    def listener(record, fetch):
        if record["round"] == 2:
            fetched.append(fetch()["w"])

    follow(process_client, listener, agent=agent)
    assert fetched == [2]
    with pytest.raises(TypeError, match=r"pickle|serialize"):
        follow(process_client, lambda record, fetch: fetch(), agent=agent)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_a_listener_that_raises_ends_the_run(client, kind):
    heard = []

    def listener(record, fetch):
        heard.append(record["round"])
        if record["round"] == 2:
            raise kind("enough")

    with pytest.raises(kind, match="enough"):
        follow(client, listener, n_rounds=10**6)
    assert heard == [1, 2]
    assert len(follow(client, None, n_rounds=1)) == N_RANKS


def test_a_rank_that_fails_while_somebody_listens(client):
    def agent(context, shard, params):
        for number in range(1, 100):
            context.record({"round": number}, {})
            if number == 3 and context.group.rank == 2:
                raise KeyError("in round 3")

    heard = []
    with pytest.raises(KeyError, match="in round 3"):
        follow(client, lambda r, fetch: heard.append(r["round"]), agent=agent)
    assert heard[:3] == [1, 2, 3]


def test_a_model_is_asked_for_after_the_ranks_have_ended(inproc_client, configured):
    def agent(context, shard, params):
        context.record({"round": 1}, {})

    def listener(record, fetch):
        wait_until(lambda: not _events._links)
        fetch()

    with configured({"dask-ma.comm.timeout": "300 ms"}):
        with pytest.raises(CommTimeoutError):  # no KeyError of a run that is unknown
            follow(inproc_client, listener, agent=agent)


def test_two_runs_are_followed_at_once(any_client):
    def call(last):
        heard = []

        def listener(record, fetch):
            heard.append((record["round"], int(fetch()["w"][0])))
            return record["round"] == last

        return follow(any_client, listener, n_rounds=20), heard

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(call, [4, 7])
    for (results, heard), last in ((first, 4), (second, 7)):
        assert [number for number, _ in results] == [last] * N_RANKS
        assert heard == [(n, n) for n in range(1, last + 1)]


def test_nobody_listens_and_nothing_is_sent(process_client):
    def agent(context, shard, params):
        context.record({"round": 1}, {"w": np.ones(5)})
        return context.group.counters.messages_sent

    assert follow(process_client, None, agent=agent) == [0] * N_RANKS


# The worker's end, without a cluster -------------------------------------------------


class Log:
    """Stands in for a worker: keeps what is logged and lets a client answer."""

    def __init__(self, on_event=lambda: None):
        self.events = []
        self._on_event = on_event

    def log_event(self, topic, message):
        self.events.append((topic, message))
        self._on_event()


def nothing():
    """The ranks are not ended."""


@pytest.mark.parametrize("stop", [False, True])
def test_a_record_waits_for_its_answer(stop):
    log = Log(lambda: answer("run-1", stop))
    with EventLink("run-1", log, nothing) as link:
        assert link({"round": 1}, lambda: {"w": 5}) is stop
        assert fetch_model("run-1") == {"w": 5}
    assert log.events == [(LINK_TOPIC, {"run": "run-1", "record": {"round": 1}})]


def test_an_answer_that_does_not_come(configured):
    with EventLink("run-1", Log(), nothing) as link:
        with configured({"dask-ma.comm.timeout": "20 ms"}):
            with pytest.raises(CommTimeoutError, match=r"client .* within 0\.02 s"):
                link({}, dict)


def test_a_client_that_ends_the_run():
    with EventLink("run-1", Log(lambda: answer("run-1", None)), nothing) as link:
        with pytest.raises(GroupClosedError, match="run-1 was ended by its client"):
            link({}, dict)


def test_ranks_that_are_ended_while_the_client_answers(monkeypatch):
    def ended():
        raise GroupClosedError("the task of a rank was cancelled")

    monkeypatch.setattr(_events, "_LOOK", 0.01)
    with EventLink("run-1", Log(), ended) as link:
        with pytest.raises(GroupClosedError, match="cancelled"):
            link({}, dict)


def test_answers_to_runs_that_are_over():
    with EventLink("run-1", Log(), nothing):
        answer("run-2", True)
    answer("run-1", True)
    assert fetch_model("run-1") is None


# The client's end, without a cluster -------------------------------------------------


class Subscriber:
    """Stands in for a client: keeps its subscriptions."""

    def __init__(self):
        self.status = "running"
        self.calls = []

    def subscribe_topic(self, topic, handler):
        self.calls.append("subscribe")
        self.handler = handler

    def unsubscribe_topic(self, topic):
        self.calls.append("unsubscribe")

    def publish(self, run_id, record):
        self.handler((0.0, {"run": run_id, "record": record}))


def test_one_subscription_serves_all_runs_of_a_client():
    subscriptions, client, heard = Subscriptions(), Subscriber(), []
    subscriptions.add(client, "a", lambda record: heard.append(("a", record)))
    subscriptions.add(client, "b", lambda record: heard.append(("b", record)))
    client.publish("b", 1)
    client.publish("a", 2)
    client.publish("of somebody else", 3)
    subscriptions.remove(client, "a")
    client.publish("a", 4)
    client.publish("b", 5)
    assert client.calls == ["subscribe"]
    subscriptions.remove(client, "b")
    assert client.calls == ["subscribe", "unsubscribe"]
    assert heard == [("b", 1), ("a", 2), ("b", 5)]


def test_clients_subscribe_for_themselves():
    subscriptions, first, second = Subscriptions(), Subscriber(), Subscriber()
    subscriptions.add(first, "a", print)
    subscriptions.add(second, "b", print)
    subscriptions.remove(first, "a")
    assert (first.calls, second.calls) == (["subscribe", "unsubscribe"], ["subscribe"])


def test_a_closed_client_is_left_alone():
    subscriptions, client = Subscriptions(), Subscriber()
    subscriptions.add(client, "a", print)
    client.status = "closed"
    subscriptions.remove(client, "a")
    assert client.calls == ["subscribe"]


# The event log, for everybody --------------------------------------------------------


def test_records_are_logged_whether_or_not_somebody_follows(any_client):
    def agent(context, shard, params):
        context.record({"round": 1, "objective": 0.5}, {})

    for listener in (None, lambda record, fetch: False):
        # The scheduler keeps a limited number of events, so their number may stay.
        last = max((at for at, _ in any_client.get_events(TOPIC)), default=0.0)

        def new(last=last):
            return [event for at, event in any_client.get_events(TOPIC) if at > last]

        follow(any_client, listener, agent=agent)
        wait_until(new)
        event, *others = new()
        assert others == []
        assert event["estimator"] == "Followed"
        assert event["record"] == {"round": 1, "objective": 0.5, "restarts": 0}
        assert len(event["run"]) == 32


def wait_until(condition):
    """Events reach the scheduler some time after the fit has ended."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_user_may_subscribe_while_a_fit_is_followed(process_client):
    heard, seen = [], []
    process_client.subscribe_topic(TOPIC, lambda event: heard.append(event[1]))
    try:
        follow(
            process_client,
            lambda record, fetch: bool(seen.append(record)),
            agent=three_evaluated_rounds(),
        )
        wait_until(lambda: len(heard) == 2)
    finally:
        process_client.unsubscribe_topic(TOPIC)
    assert [record["round"] for record in seen] == [1, 2, 3]
    assert [event["record"]["round"] for event in heard] == [1, 3]


def three_evaluated_rounds():
    """Made here, as the workers cannot import this module."""

    def agent(context, shard, params):
        for number in (1, 2, 3):
            context.record({"round": number, "objective": 1 / number}, {})

    return agent


def rounds_logged(log):
    assert {topic for topic, _ in log.events} <= {TOPIC}
    return [event["record"]["round"] for _, event in log.events]


def test_first_and_last_record_of_many_are_logged(configured):
    log = Log()
    with configured({"dask-ma.trace.event-interval": "1 hour"}):
        with RecordLog("Fit", "run-1", log) as write:
            for number in range(1, 101):
                write({"round": number, "objective": 1.0})
            assert rounds_logged(log) == [1]
    assert rounds_logged(log) == [1, 100]


def test_all_records_without_an_interval(configured):
    log = Log()
    with configured({"dask-ma.trace.event-interval": 0}):
        with RecordLog("Fit", "run-1", log) as write:
            for number in range(1, 6):
                write({"round": number, "objective": 1.0})
    assert rounds_logged(log) == [1, 2, 3, 4, 5]


def test_records_that_were_not_evaluated_are_not_logged(configured):
    log = Log()
    with configured({"dask-ma.trace.event-interval": 0}):
        with RecordLog("Fit", "run-1", log) as write:
            write({"round": 1, "objective": float("nan")})
            write({"round": 2, "loss": 1.0})
            write({"round": 3, "objective": 0.5})
    assert rounds_logged(log) == [3]
    expected = {"estimator": "Fit", "run": "run-1"}
    assert log.events[0][1] == {**expected, "record": {"round": 3, "objective": 0.5}}


def test_last_record_is_logged_after_an_error(configured):
    log = Log()
    with configured({"dask-ma.trace.event-interval": "1 hour"}):
        with pytest.raises(KeyError), RecordLog("Fit", "run-1", log) as write:
            write({"round": 1, "objective": 1.0})
            write({"round": 2, "objective": 1.0})
            raise KeyError
    assert rounds_logged(log) == [1, 2]
