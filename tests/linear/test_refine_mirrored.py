"""A search that every rank makes, against the one that rank 0 makes for all."""

from itertools import combinations

import numpy as np
import pytest

from dask_ma import ButterflySGDClassifier, MASGDClassifier
from dask_ma.linear.refine import _run
from dask_ma.linear.refine._evaluation import Request
from dask_ma.ma import Models

PARAMS = {
    "loss": "log_loss",
    "alpha": 0.01,
    "refine": "lbfgs",
    "max_iter": 0,
    "refine_tol": 1e-6,
    "random_state": 0,
    "n_ranks": 3,
}


@pytest.fixture
def mirrored(monkeypatch):
    """Ranks of one process make the search, too."""
    monkeypatch.setattr(_run, "_is_mirrored", lambda rounds, add_up: True)


def digest(model):
    """All that must be the same."""
    names = "objective", "excess"
    values = [tuple(record.get(name) for name in names) for record in model.history_]
    return model.coef_.tobytes(), model.intercept_.tobytes(), values


# Marks --------------------------------------------------------------------------------


def request(**changes):
    found = Request(
        problems=np.array([0, 2]),
        points=np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
        widths=np.array([1.0, 0.5]),
        caution=np.zeros(2),
        columns=np.zeros((2, 0), dtype=np.intp),
    )
    return found._replace(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"problems": np.array([1, 2])},
        {"points": np.array([[2.0, 1.0, 3.0], [4.0, 5.0, 6.0]])},
        {"points": np.array([[np.nextafter(1.0, 2.0), 2.0, 3.0], [4.0, 5.0, 6.0]])},
        {"widths": np.array([0.5, 1.0])},
        {"caution": np.array([0.0, 0.01])},
        {"columns": np.array([[0, 1], [0, 2]])},
    ],
    ids=str,
)
def test_other_requests_have_other_marks(changes):
    assert request().mark() == request().mark()
    assert request(**changes).mark() != request().mark()


def test_steps_up_here_and_down_there_do_not_cancel():
    """Rounding leads to such differences."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(1, 1000))
    bits = points.view(np.int64)
    marks = set()
    for _ in range(2000):
        changed = bits.copy()
        places = rng.choice(1000, 4, replace=False)
        changed[0, places] += rng.permutation([1, -1, 1, -1])
        marks.add(request(points=changed.view(np.float64)).mark())
    assert len(marks) == 2000


def test_marks_tell_signs_halves_and_columns_apart():
    points = np.random.default_rng(0).normal(size=(2, 20))
    marks = set()
    for first, second in combinations(range(40), 2):
        changed = points.copy()
        changed.ravel()[[first, second]] *= -1
        marks.add(request(points=changed).mark())
        changed.ravel()[[first, second]] /= -2
        marks.add(request(points=changed).mark())
    assert len(marks) == 2 * 40 * 39 // 2
    columns = [np.array([each] * 2) for each in combinations(range(20), 3)]
    assert len({request(columns=each).mark() for each in columns}) == len(columns)


def test_a_mark_tells_the_shape_of_the_sums():
    assert request().mark()[1:] == (2, 0)
    assert request(columns=np.array([[0, 1, 2], [0, 1, 3]])).mark()[1:] == (2, 3)


# Fits ---------------------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"refine": "newton"},
        {"penalty": "l1", "alpha": 1e-3},
        {"loss": "hinge", "refine_tol": 1e-3},
        {"max_iter": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("data", ["binary", "multi"])
def test_it_is_the_search_of_rank_0(request, monkeypatch, data, params):
    X, y = request.getfixturevalue(data)
    params = {**PARAMS, **params}
    led = MASGDClassifier(**params).fit(X, y)
    monkeypatch.setattr(_run, "_is_mirrored", lambda rounds, add_up: True)
    ours = MASGDClassifier(**params).fit(X, y)
    assert digest(ours) == digest(led)
    rows = [record["n_samples"] for record in ours.history_]
    assert rows == [record["n_samples"] for record in led.history_]


def test_butterfly_mixing_has_it_too(binary, monkeypatch):
    params = {key: value for key, value in PARAMS.items() if key != "max_iter"}
    params["max_iter"] = 1
    led = ButterflySGDClassifier(**params).fit(*binary)
    monkeypatch.setattr(_run, "_is_mirrored", lambda rounds, add_up: True)
    assert digest(ButterflySGDClassifier(**params).fit(*binary)) == digest(led)


@pytest.mark.filterwarnings("ignore:the refinement ended")
def test_processes_send_nothing_but_sums(process_client, binary):
    """Where rank 0 makes the search alone, it sends each point as well."""
    X = np.random.default_rng(0).normal(size=(40, 5000))
    y = (X[:, 0] > 0).astype(int)
    params = {**PARAMS, "n_ranks": 2, "refine_max_iter": 8}
    with process_client.as_current():
        model = MASGDClassifier(**params).fit(X, y)
        trees = MASGDClassifier(**params, paradigm=Models("tree")).fit(X, y)
    sent = [record["bytes_sent"] for record in model.history_[2:]]
    # A vector of each rank, and little else.
    assert 2 * 8 * 5000 <= min(sent) <= max(sent) <= 2.2 * 8 * 5000
    assert min(record["bytes_sent"] for record in trees.history_[2:]) > max(sent)
    assert trees.coef_.tobytes() == model.coef_.tobytes()


@pytest.mark.parametrize(
    ("n_nodes", "n_weights", "add_up", "expected"),
    [
        (2, 2**18, None, True),
        (2, 2**18 + 1, None, False),
        (1, 10, None, False),
        (2, 10, sum, False),
    ],
)
def test_where_it_pays(n_nodes, n_weights, add_up, expected):
    class Anything:
        def __init__(self, **values):
            vars(self).update(values)

    rounds = Anything(
        problem=Anything(n_problems=n_weights, shard=Anything(n_features=1)),
        context=Anything(
            group=Anything(layout=Anything(n_nodes=n_nodes, size=2), rank=0)
        ),
    )
    assert _run._is_mirrored(rounds, add_up) is expected


# Ranks that find something else -------------------------------------------------------


def nudge(search):
    """Another point, by as much as rounding makes out."""
    for track in search._tracks:
        track.trial = np.nextafter(track.trial, np.inf)


def forget(search):
    """One problem the less."""
    search._tracks[-1].is_stuck = True


def end(search):
    """All problems are at their end."""
    for track in search._tracks:
        track.is_stuck = True


@pytest.mark.pairs
@pytest.mark.parametrize("change", [nudge, forget, end])
@pytest.mark.parametrize("n_round", [1, 4])
@pytest.mark.parametrize("refine", ["lbfgs", "newton"])
def test_rank_0_has_the_last_word(
    mirrored, multi, monkeypatch, change, n_round, refine
):
    """As on processors that round in another way."""
    params = {**PARAMS, "refine": refine, "refine_tol": 1e-9}
    same = MASGDClassifier(**params).fit(*multi)
    assert len(same.history_) > 5
    original = _run.MirroredRefinement.record

    def record(self, record, sums):
        tell = self._search.tell if self._search is not None else None

        def told(found):
            verdict = tell(found)
            if self.n_rounds == n_round and self.context.group.rank == 2:
                change(self._search)
                if change is end:
                    verdict = verdict._replace(is_done=True, is_converged=True)
            return verdict

        if tell is not None:
            self._search.tell = told
        original(self, record, sums)
        if tell is not None and self._search is not None:
            del self._search.tell

    monkeypatch.setattr(_run.MirroredRefinement, "record", record)
    assert digest(MASGDClassifier(**params).fit(*multi)) == digest(same)


def test_a_rank_that_would_go_on_ends_with_rank_0(mirrored, binary, monkeypatch):
    same = MASGDClassifier(**PARAMS).fit(*binary)
    original = _run.MirroredRefinement._agree
    went_on = []

    def agree(self, verdict):
        if self.context.group.rank == 1 and verdict.is_done:
            went_on.append(self.n_rounds)
            for track in self._search._tracks:
                track.is_stuck, track.excess = False, np.inf
            verdict = verdict._replace(is_done=False, is_converged=False)
        return original(self, verdict)

    monkeypatch.setattr(_run.MirroredRefinement, "_agree", agree)
    assert digest(MASGDClassifier(**PARAMS).fit(*binary)) == digest(same)
    assert went_on == [len(same.history_)]


def test_a_rank_that_fails_ends_the_others(mirrored, binary, monkeypatch):
    original = _run.MirroredRefinement._agree

    def agree(self, verdict):
        if self.context.group.rank == 1 and self.n_rounds == 3:
            raise MemoryError("no room for the gradient")
        return original(self, verdict)

    monkeypatch.setattr(_run.MirroredRefinement, "_agree", agree)
    with pytest.raises(MemoryError, match="no room for the gradient"):
        MASGDClassifier(**PARAMS).fit(*binary)
