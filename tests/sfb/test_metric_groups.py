"""Batches made of groups, of which each rank has some, and one rank that has all."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits, load_iris

from dask_ma import SFBMetricLearner
from dask_ma.data import Block, InputSize, Shard
from dask_ma.kernels import MetricLoss, batch_weights, squared_distances
from dask_ma.sfb import Exchange
from dask_ma.sfb.metric import _plan
from dask_ma.sfb.metric._cost import Steps, worthwhile_ranks
from dask_ma.sfb.metric._models import groups_of
from dask_ma.sfb.metric._plan import LabelSource, Plan, count_groups
from dask_ma.sfb.model import _pairs
from dask_ma.sfb.model._pairs import RowTable

X, y = load_digits(return_X_y=True)
X = X / 16
FLOWERS, KINDS = load_iris(return_X_y=True)
RNG = np.random.default_rng(0)
PAIRS = RNG.integers(0, 75, size=(120, 2)) * 2 + [0, 1]
PAIR_LABELS = np.where(KINDS[PAIRS[:, 0]] == KINDS[PAIRS[:, 1]], 1, -1)
TRIPLETS = np.array([[0, 1, 60], [60, 61, 120], [120, 121, 60], [5, 9, 140]] * 5)
TUPLES = {
    "pairs": {"loss": "logistic", "pairs": PAIRS, "pair_labels": PAIR_LABELS},
    "triplets": {"loss": "triplet", "pairs": TRIPLETS},
}


@pytest.fixture
def groups(monkeypatch):
    """Batches of three groups of the rows of digits, of 20 rows each."""
    monkeypatch.setattr("dask_ma.sfb.metric._learner.GROUP_SIZE", 20)
    monkeypatch.setattr(_plan, "count_groups", lambda n_rows: 3)


@pytest.fixture
def alone(monkeypatch):
    """It is always quicker alone."""
    monkeypatch.setattr(Steps, "are_quicker_alone", lambda *_: True)


def fit(X=X, y=y, **params):
    data = {k: params.pop(k) for k in ("pairs", "pair_labels") if k in params}
    weight = params.pop("sample_weight", None)
    given = {"max_iter": 2, "tol": None, "random_state": 0, "n_components": 5}
    if params.get("metric_form") == "diagonal":
        given.pop("n_components")
    learner = SFBMetricLearner(**{**given, **params})
    return learner.fit(X, None if data else y, weight, **data)


def plan_of(codes, **params):
    return Plan(codes, np.arange(len(codes)), 0, 0.0, is_grouped=True, **params)


# Groups -------------------------------------------------------------------------------


@pytest.mark.usefixtures("groups")
def test_groups_have_their_share_of_each_class():
    """Runs of consecutive rows of each class, of which all are in one group."""
    plan = plan_of(y)
    assert plan.n_groups == 3
    np.testing.assert_array_equal(np.sort(np.concatenate(plan.stocks)), np.arange(1797))
    for kind in range(10):
        members = np.flatnonzero(y == kind)
        which = np.array([[k in stock for stock in plan.stocks] for k in members])
        found = which.argmax(axis=1)
        assert (np.diff(found) >= 0).all()
        assert np.ptp(np.bincount(found)) <= 2


@pytest.mark.usefixtures("groups")
def test_groups_of_classes_with_one_row():
    """They are as large as each other all the same."""
    assert {len(stock) for stock in plan_of(np.arange(1800)).stocks} == {600}


@pytest.mark.usefixtures("groups")
def test_each_row_once_in_a_pass():
    plan = plan_of(y)
    n_steps = plan.n_steps(20)
    batches = list(plan.parts(n_steps, 1))
    assert len(batches) == n_steps == 30
    np.testing.assert_array_equal(np.sort(np.concatenate(batches)), np.arange(1797))
    of_group = np.zeros(1797, dtype=int)
    for number, stock in enumerate(plan.stocks):
        of_group[stock] = number
    for batch in batches:  # one group after the other
        assert (np.diff(of_group[batch]) >= 0).all()
        assert (np.bincount(of_group[batch]) >= 19).all()


def test_few_rows_are_one_group():
    expected = {1797: 1, 5000: 2, 10_000: 2, 20_000: 4, 60_000: 8, 10**6: 128}
    assert {n: count_groups(n) for n in expected} == expected
    assert plan_of(y).n_groups == 1


def test_rows_of_groups():
    labels = np.array([2, 0, 3, 4, 4, 9, 11])
    expected = [slice(0, 2), slice(2, 5), slice(5, 7)]
    assert groups_of(labels, 3) == expected
    assert groups_of(labels[:0], 3) == []


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("form", ["low_rank", "diagonal"])
def test_pairs_are_those_within_groups(form, monkeypatch):
    """The objective of one batch, of which each third has pairs of its own."""
    start = np.abs(RNG.normal(size=64 if form == "diagonal" else (5, 64))) / 5
    chosen = np.concatenate([np.flatnonzero(y == kind)[:174] for kind in range(10)])
    total, loss = 0.0, MetricLoss("nca")
    for part in np.array_split(np.arange(174), 3):  # of each class
        rows = chosen.reshape(10, 174)[:, part].ravel()
        Z = X[rows] * start if form == "diagonal" else X[rows] @ start.T
        same = y[rows][:, np.newaxis] == y[rows]
        D = squared_distances(Z, Z)
        total += batch_weights(D, same, np.arange(len(Z)), loss)[1]
    monkeypatch.setattr("dask_ma.sfb.metric._learner.GROUP_SIZE", 580)
    params = {"init": start, "max_iter": 1, "metric_form": form}
    learner = fit(X[chosen], y[chosen], **params)
    assert learner.n_steps_ == 1
    objective = learner.history_[0]["objective"]
    assert objective == pytest.approx(total / 1740, rel=1e-4)


@pytest.mark.each
@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(
    "params",
    [
        {"communication": "factors"},
        {"communication": "outputs"},
        {"metric_form": "diagonal"},
        {"early_stopping": True, "tol": 1e-4},
        {"sample_weight": RNG.exponential(size=len(y)), "loss": "triplet"},
        {"communication": "full_matrix", "X": sparse.csr_array(X)},
    ],
    ids=str,
)
def test_any_number_of_ranks_with_groups(params):
    """Fewer ranks than groups, and more."""
    few = {"X": X, "y": y, **params}
    few |= {name: few[name][:900] for name in {"X", "y", "sample_weight"} & few.keys()}
    one, *others = (fit(**few, n_ranks=n) for n in (1, 2, 4))
    assert one.n_steps_ == 2 * (14 if "early_stopping" in params else 15)
    for other in others:
        np.testing.assert_allclose(one.components_, other.components_, atol=2e-5)
        for a, b in zip(one.history_, other.history_, strict=True):
            assert a["objective"] == pytest.approx(b["objective"], rel=1e-4)
            assert a["n_samples"] == b["n_samples"]


@pytest.mark.filterwarnings("ignore:the objective has not fallen")
@pytest.mark.parametrize(
    ("shape", "n_components", "expected"),
    [((4100, 784), 50, "full_matrix"), ((4100, 20_000), 20, "factors")],
)
def test_content_by_bytes(shape, n_components, expected, monkeypatch):
    """Of factors and whole updates, those that are less."""
    monkeypatch.setattr(Steps, "are_quicker_alone", lambda *_: False)
    rng = np.random.default_rng(0)
    density = 1 if shape[1] < 1000 else 1e-3
    rows = sparse.random_array(shape, density=density, format="csr", rng=rng)
    params = {
        "X": rows if density < 1 else rows.toarray(),
        "n_components": n_components,
    }
    params |= {"y": np.arange(len(y)).repeat(3)[:4100] % 10, "init": "random"}
    sent = {}
    for content in ("auto", "factors", "full_matrix"):
        learner = fit(**params, communication=content, n_ranks=2)
        record = learner.history_[1]  # without what the start takes
        sent[content] = record["bytes_shared"] + record["bytes_sent"]
        if content == "auto":
            assert learner.communication_ == expected
    assert sent["auto"] == sent[expected] == min(sent.values())


@pytest.mark.usefixtures("groups")
def test_a_size_of_batches_means_one_group():
    assert fit(batch_size=20).n_steps_ == 180
    assert fit().n_steps_ == 60


@pytest.mark.usefixtures("groups")
def test_rows_too_many_to_be_moved(configured):
    with configured({"dask-ma.sfb.moved-rows": X.size * 4 - 1}):
        assert fit(n_ranks=2).n_steps_ == 180
    with configured({"dask-ma.sfb.moved-rows": X.size * 4}):
        assert fit(n_ranks=2).n_steps_ == 60


@pytest.mark.usefixtures("groups")
def test_steps_of_groups_are_longer():
    assert fit().eta0_ == pytest.approx(1.7 * 3**0.5 * fit(batch_size=20).eta0_)


# One rank for all ---------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.filterwarnings("ignore:the objective has not fallen")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("n_ranks", [2, 4])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"metric_form": "diagonal", "n_components": None},
        {"early_stopping": True, "tol": 1e-4},
        {"how": "pairs"},
        {"how": "pairs", "early_stopping": True},
        {"how": "triplets"},
        {"optimizer": "sgd", "penalty": "l1", "alpha": 0.01},
        {"sample_weight": RNG.exponential(size=150)},
        {"X": sparse.csr_array(FLOWERS)},
    ],
    ids=str,
)
def test_one_rank_makes_all_steps(params, n_ranks):
    """The model is that of one rank, to the last bit where no start is added up."""
    params = {"X": FLOWERS, "y": KINDS, "n_components": 2, "batch_size": 32, **params}
    how = params.pop("how", "labels")
    params |= TUPLES.get(how, {})
    one, several = fit(**params), fit(**params, n_ranks=n_ranks)
    assert several.communication_ == "alone"
    rtol = 0 if how == "labels" else 1e-4
    np.testing.assert_allclose(several.components_, one.components_, rtol, rtol / 10)
    for a, b in zip(one.history_, several.history_, strict=True):
        assert a["n_samples"] == b["n_samples"]
        assert b["objective"] == pytest.approx(a["objective"], rel=rtol, abs=0)
    if how == "pairs":
        assert several.threshold_ == pytest.approx(one.threshold_, rel=1e-4)


@pytest.mark.usefixtures("alone", "groups")
def test_one_rank_makes_all_steps_of_groups():
    one, several = fit(), fit(n_ranks=2)
    assert several.communication_ == "alone"
    np.testing.assert_array_equal(one.components_, several.components_)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("content", ["factors", "full_matrix"])
def test_what_is_asked_for_is_done(content):
    assert fit(communication=content, n_ranks=2).communication_ == content


def test_short_steps_on_two_processes(process_client, configured):
    """One process makes them; not, if rows must not be gathered."""
    with process_client.as_current():
        learner = fit(n_ranks=2)
        assert learner.communication_ == "alone"
        np.testing.assert_allclose(learner.components_, fit().components_, atol=1e-5)
        values = {"dask-ma.sfb.moved-rows": 0}
        with configured(values, process_client):
            other = fit(n_ranks=2)
    assert other.communication_ != "alone"
    np.testing.assert_allclose(learner.components_, other.components_, atol=1e-5)


@pytest.mark.parametrize(
    ("n_entries", "shape", "n_groups", "expected"),
    [
        (784, (50, 784), 1, True),
        (784, (50, 784), 4, True),
        (784, (50, 784), 8, False),
        (20_000, (200, 20_000), 1, False),
        (20, (10, 22_000), 1, True),
    ],
)
def test_when_one_rank_is_quicker(n_entries, shape, n_groups, expected):
    """With long steps, of which each rank makes a part, it is not."""
    steps = Steps(120, 256 * n_groups, n_groups, n_entries, shape, True, 640e6)
    assert steps.are_quicker_alone(2, 2, 4e6) is expected


def test_components_that_others_get_after_each_pass_count():
    """Unless there are no others, or these are in the same process."""
    steps = Steps(2, 512, 1, 60, (500, 20_000), True, 640e6)
    assert steps.are_quicker_alone(2, 2, 4e5)
    assert not steps._replace(n_passes=1).are_quicker_alone(2, 2, 4e5)
    short = Steps(2, 64, 1, 20, (10, 100), True, 640e6, n_passes=10**6)
    assert short.are_quicker_alone(2, 1, 4e5) and not short.are_quicker_alone(2, 2, 4e5)
    few = Steps(120, 512, 1, 784, (50, 784), True, 640e6, n_passes=3)
    assert few.are_quicker_alone(2, 2, 4e6)


@pytest.mark.parametrize(
    ("params", "n_ranks"),
    [
        ({}, 1),
        ({"loss": "logistic", "pairs": PAIRS, "pair_labels": PAIR_LABELS}, 1),
        ({"communication": "factors"}, 4),
        ({"communication": Exchange(staleness=1), "optimizer": "sgd"}, 4),
        ({"n_ranks": 3}, 3),
    ],
)
def test_few_rows_are_for_one_rank(params, n_ranks, inproc_client, configured):
    with configured({"dask-ma.data.moved-rows": "1 MiB"}), inproc_client.as_current():
        learner = fit(FLOWERS, KINDS, **{"n_components": 2, **params})
    assert set(learner.timeline_["rank"].tolist()) == {*range(n_ranks)}


def test_ranks_for_long_steps():
    """Of many components on long rows, and of many groups of rows that do not move."""

    def found(n_rows, n_features, n_components, held=None, **changes):
        size = InputSize(n_rows, n_features, n_rows * n_features, 4, held or {})
        params = SimpleNamespace(
            settings=SimpleNamespace(exchange=Exchange(), batch_size=256),
            n_components=n_components,
            max_iter="auto",
            tuples=None,
            is_grouped=True,
            most_moved=2**29,
            link_bandwidth=640e6,
        )
        return worthwhile_ranks(params, size, 2)

    assert found(20_000, 784, 50) == 1
    assert found(100_000, 784, 50) == 2
    assert found(5000, 20_000, 200) == 2
    assert found(20_000, 784, 50, {"a": 2**38, "b": 2**38}) == 2


@pytest.mark.parametrize("n_own", [600, 0])
def test_rows_picked_ahead_are_bounded_where_rows_come_from_others(run_ranks, n_own):
    """By the bytes of the rows that there are, not of those that a rank had."""
    cuts = [slice(0, 1000), slice(1000, 1000 + n_own)]
    blocks = [Block(X[cut], y[cut], None, 0, cut.start) for cut in cuts]
    shards = [Shard([b] if len(b.y) else [], X.shape[1], X.dtype) for b in blocks]

    def program(group):
        table = RowTable(shards[group.rank])
        table.fetch(group, np.arange(900))
        return table.rows_together

    wanted = _pairs._TOGETHER // (X.shape[1] * X.itemsize)
    assert run_ranks(program, 2) == [wanted, wanted]


def test_what_rows_need_while_they_move_is_forgotten(groups, monkeypatch):
    """As it is there for each row of all ranks."""
    sources = []
    original = LabelSource.stay
    monkeypatch.setattr(
        LabelSource, "stay", lambda source: sources.append(source) or original(source)
    )
    fit(n_ranks=2, batch_size="auto")
    assert len(sources) == 2
    for source in sources:
        assert source._numbers.size == source._of_all[0].size == 0
        assert source._of_all[1] is None
