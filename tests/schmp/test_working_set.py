"""Screening, the cap on working sets, and what their rounds promise."""

import dask
import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

from dask_ma import SchMPLasso, SchMPLogisticRegression
from dask_ma.comm import Group, LocalGroup
from dask_ma.data import Block, Shard
from dask_ma.engine import RankContext, RoundLog
from dask_ma.kernels import SquaredError, log_loss_of
from dask_ma.layouts._column_design import ColumnDesign
from dask_ma.layouts._columns import to_columns
from dask_ma.layouts._row_design import RowDesign
from dask_ma.schmp.l1 import _hessian, _working_set
from dask_ma.schmp.l1._losses import WeightedLoss
from dask_ma.schmp.l1._problem import Objective, Penalty, Sparse
from dask_ma.schmp.l1._working_set import WorkingSets

CASES = [
    ("number", 0.4, 1.0, False),
    ("number", 0.4, 1.0, True),
    ("number", 0.5, 0.7, False),
    ("two", 0.08, 1.0, False),
    ("three", 0.08, 1.0, False),
    ("three", 0.1, 0.7, False),
]
every_case = pytest.mark.parametrize(
    ("target", "alpha", "l1_ratio", "positive"), CASES, ids=str
)
RANKS = [(1, "rows"), (3, "rows"), (2, "columns")]
CAP = "dask-ma.schmp.max-working-set"


@pytest.fixture(scope="module")
def many():
    """40 rows of 400 columns, most of which can be ruled out."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(40, 400)) * (rng.random((40, 400)) < 0.5) + 0.1
    number = X[:, :4] @ [2, -2, 1, 1] + 0.3 * rng.normal(size=40)
    return {
        "X": X,
        "number": number,
        "two": (number > 0).astype(int),
        "three": np.digitize(number, [-1, 1]),
    }


def make_loss(y, weight):
    if y.dtype.kind == "f":
        return WeightedLoss(SquaredError(), y, weight)
    n_outputs = 1 if y.max() == 1 else 3
    return WeightedLoss(log_loss_of(n_outputs), y, weight)


@pytest.fixture
def solve(run_ranks, monkeypatch):
    """``solve(X, y, penalty, ...)``: what the ranks have found, round by round."""
    monkeypatch.setattr(_working_set, "_CHECKS_FIRST", 0)

    def start(X, y, penalty, n_ranks=1, layout="rows", screening_tol=1e-2, n_rounds=30):
        n_rows = len(y)

        def program(group):
            first, last = (n_rows * q // n_ranks for q in (group.rank, group.rank + 1))
            block = Block(X[first:last], y[first:last], None, 0, first)
            shard = Shard([block], X.shape[1], X.dtype)
            own_y, design = y[first:last], None
            if layout == "columns":
                columns = to_columns(group, shard)
                own_y, design = columns.y, ColumnDesign(group, columns)
            design = design or RowDesign(group, shard)
            loss = make_loss(own_y, np.full(len(own_y), 1 / n_rows))
            objective = Objective(design, loss, penalty, fit_intercept=True)
            log = RoundLog(RankContext(group, 0))
            model = Sparse.empty(loss.n_outputs)
            solver = WorkingSets(objective, model, log, screening_tol)
            found = [solver.check()]
            alive = [len(design.alive)]
            while found[-1].gap > 1e-13 * objective.null and len(found) < n_rounds:
                solver.improve()
                found.append(solver.check())
                alive.append(len(design.alive))
                # Of what is left, ranks have other parts, whose means they must know.
                assert alive[-1] == X.shape[1] or not objective.lacks_means
                used = model.coordinates // loss.n_outputs
                assert np.isin(used, design.alive).all()
            return model.state_dict(), found, alive, design.alive

        return run_ranks(program, n_ranks)

    return start


def make_penalty(n, alpha, l1_ratio=1.0, positive=False):
    ones = np.ones(n)
    return Penalty(alpha * l1_ratio * ones, alpha * (1 - l1_ratio) * ones, positive)


def dense(state, n_coordinates):
    coef = np.zeros(n_coordinates)
    coef[state["coordinates"]] = state["coef"]
    return coef


@pytest.fixture(scope="module")
def unscreened():
    """Solutions of all cases without screening; each is sought once."""
    return {}


@pytest.mark.each
@every_case
@pytest.mark.parametrize(("n_ranks", "layout"), RANKS)
def test_screening_changes_nothing(
    many, solve, unscreened, target, alpha, l1_ratio, positive, n_ranks, layout
):
    """No feature of the solution is ruled out, from whatever gap on others are."""
    X, y = many["X"], many[target]
    penalty = make_penalty(400, alpha, l1_ratio, positive)
    found = {}
    cap = 6 if target == "number" else 24
    size = 400 * (3 if target == "three" else 1)
    case = target, alpha, l1_ratio, positive
    with dask.config.set({CAP: cap}):  # there are more rounds
        if case not in unscreened:
            state, _, alive, _ = solve(X, y, penalty, 1, "rows", -1.0, 400)[0]
            assert set(alive) == {400}
            unscreened[case] = dense(state, size)
        for tol in (1e-2, np.inf):
            found[tol] = solve(X, y, penalty, n_ranks, layout, tol, n_rounds=400)
    expected = unscreened[case]
    assert 0 < np.count_nonzero(expected) < 80
    for tol in (1e-2, np.inf):
        for state, certificates, alive, last in found[tol]:
            assert certificates[-1].gap <= 1e-12
            np.testing.assert_allclose(dense(state, size), expected, atol=1e-6)
            features = np.flatnonzero(expected) // (size // 400)
            assert np.isin(features, last).all()
            assert alive == sorted(alive, reverse=True)
    # It does rule out most features in the end.
    assert min(len(result[3]) for result in found[np.inf]) <= 40


def test_the_ball_belongs_to_the_present_point(many):
    """A better dual point of some round before says nothing about it."""
    X, y = many["X"], many["number"]
    penalty = make_penalty(400, 0.4)
    solution = np.flatnonzero(SchMPLasso(0.4, tol=1e-10).fit(X, y).coef_)
    [group] = LocalGroup.create(1)
    design = RowDesign(group, Shard([Block(X, y, None, 0, 0)], 400, X.dtype))
    loss = WeightedLoss(SquaredError(), y, np.full(40, 1 / 40))
    objective = Objective(design, loss, penalty, fit_intercept=True)
    log = RoundLog(RankContext(group, 0))
    solver = WorkingSets(objective, Sparse.empty(1), log)
    first = solver.check()
    assert first.gap == first.gap_of_point > 0
    solver.best_dual = first.objective
    second = solver.check()
    assert second.gap == 0 and second.gap_of_point == first.gap
    assert len(solution) and np.isin(solution, solver._possible()).all()


def test_ranks_do_the_same(many, solve):
    results = solve(many["X"], many["number"], make_penalty(400, 0.1), 3)
    for state, certificates, alive, last in results[1:]:
        assert certificates == results[0][1]
        assert alive == results[0][2]
        np.testing.assert_array_equal(last, results[0][3])
        for name, values in state.items():
            np.testing.assert_array_equal(values, results[0][0][name])


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_collectives_of_a_round(many, monkeypatch, layout):
    """Ranks wait for each other four times in a round, its record included."""
    X, y = many["X"], many["number"]
    counts = []
    next_tag = Group._next_tag

    def count(group):
        counts[-1] += group.rank == 0
        return next_tag(group)

    monkeypatch.setattr(Group, "_next_tag", count)
    rounds = []
    for alpha in (0.4, 0.01):
        counts.append(0)
        model = SchMPLasso(alpha, tol=1e-9, n_ranks=2, layout=layout).fit(X, y)
        rounds.append(model.n_iter_)
    assert rounds[1] - rounds[0] >= 2
    # What is done before the first round cancels.
    assert counts[1] - counts[0] <= 4 * (rounds[1] - rounds[0])


def test_collectives_before_the_first_round(many, monkeypatch):
    """The data, the level of the targets, means, the gap, and the state at the end."""
    names = []
    next_tag = Group._next_tag

    def count(group):
        names.append(group.rank)
        return next_tag(group)

    monkeypatch.setattr(Group, "_next_tag", count)
    X, y = many["X"], many["number"]
    SchMPLasso(100.0, n_ranks=2, layout="rows").fit(X, y)
    alone = names.count(0)
    names.clear()
    SchMPLasso(100.0, n_ranks=2, layout="rows").fit(X, y, np.linspace(1, 2, 40))
    assert alone <= 7
    assert names.count(0) == alone + 1  # weights have to add up, too


@pytest.mark.parametrize("off", [0.0, 1e6])
def test_level_of_targets(many, off):
    """It is taken from them to the last bit, weighted or not, on any ranks."""
    X, y, weight = many["X"], many["number"] + off, np.linspace(1, 2, 40)
    for own in (None, weight):
        peer = Lasso(0.1, tol=1e-12, max_iter=100_000).fit(X, y, own)
        for n_ranks in (1, 3):
            model = SchMPLasso(0.1, tol=1e-12, n_ranks=n_ranks).fit(X, y, own)
            np.testing.assert_allclose(model.intercept_, peer.intercept_, rtol=1e-9)
            np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-7)
    equal = SchMPLasso(0.1, n_ranks=3).fit(X, np.full(40, off + 0.1))
    assert equal.intercept_ == off + 0.1
    assert not equal.coef_.any()


@pytest.mark.parametrize(("n_ranks", "layout"), RANKS)
def test_worst_columns_are_solved_for_while_others_travel(
    many, monkeypatch, n_ranks, layout
):
    X, y = many["X"], many["number"]
    sizes, model = {}, {}
    minimize = _working_set.minimize

    def note(problem, start, gap):
        sizes[bound].append(len(start))
        return minimize(problem, start, gap)

    monkeypatch.setattr(_working_set, "minimize", note)
    for bound in (0, np.inf):
        sizes[bound] = []
        monkeypatch.setattr(_hessian, "_MANY_BYTES", bound)
        model[bound] = SchMPLasso(
            0.01, tol=1e-10, l1_ratio=0.9, n_ranks=n_ranks, layout=layout
        ).fit(X, y)
    np.testing.assert_allclose(model[0].coef_, model[np.inf].coef_, atol=1e-6)
    is_ahead = n_ranks > 1 and layout == "rows"
    assert (sizes[0] != sizes[np.inf]) == is_ahead
    assert (sizes[0][0] < sizes[np.inf][0]) == is_ahead


def test_records_hold_what_all_ranks_have_counted(many):
    """Also where it comes with the gap, before the round is at its end."""
    model = SchMPLasso(0.01, tol=1e-9, n_ranks=3).fit(many["X"], many["number"])
    history = model.history_
    assert len(history) >= 3
    for record in history:
        assert record["n_samples"] == 40
        assert record["bytes_shared"] > 0
        assert record["n_touched"] >= many["X"].size


@pytest.mark.parametrize(("n_ranks", "layout"), RANKS)
def test_means_are_learnt_as_they_are_needed(many, solve, monkeypatch, n_ranks, layout):
    """A model has the same bits as with all means at once, also after screening."""
    X, y, penalty = many["X"] + 3, many["number"], make_penalty(400, 0.4)
    found = []
    for whole in (False, True):
        if whole:
            monkeypatch.setattr(Objective, "learn_own_means", Objective.learn_means)
        with dask.config.set({CAP: 6}):  # so that there are some rounds
            ranks = solve(X, y, penalty, n_ranks, layout, screening_tol=np.inf)
        state, certificates, alive, _ = ranks[0]
        assert alive[-1] < 100
        found.append((certificates, *state.values()))
    for early, late in zip(*found, strict=True):
        np.testing.assert_array_equal(early, late)


@pytest.mark.parametrize(("n_ranks", "layout"), [(3, "rows"), (2, "columns")])
def test_means_of_other_columns_are_not_numbers(many, run_ranks, n_ranks, layout):
    """Nobody can take them for 0 before all ranks have told each other theirs."""
    X, n_rows = many["X"], 40

    def program(group):
        first, last = (n_rows * q // n_ranks for q in (group.rank, group.rank + 1))
        y = many["number"][first:last]
        shard = Shard([Block(X[first:last], y, None, 0, first)], 400, X.dtype)
        design = RowDesign(group, shard)
        if layout == "columns":
            columns = to_columns(group, shard)
            y, design = columns.y, ColumnDesign(group, columns)
        loss = make_loss(y, np.full(len(y), 1 / n_rows))
        objective = Objective(design, loss, make_penalty(400, 0.1), True)
        objective.learn_own_means()
        part, _ = design.products(loss.weight[:, np.newaxis])
        early, lacked = objective.means.copy(), objective.lacks_means
        objective.learn_means()
        assert lacked and not objective.lacks_means
        return part.features, early, objective.means, design.column_sums(loss.weight)

    for own, early, late, expected in run_ranks(program, n_ranks):
        np.testing.assert_array_equal(np.flatnonzero(~np.isnan(early)), own)
        np.testing.assert_array_equal(early[own], expected[own])
        np.testing.assert_array_equal(late, expected)


@pytest.mark.parametrize(
    ("design", "layout"), [(RowDesign, "rows"), (ColumnDesign, "columns")]
)
def test_means_of_all_columns_are_not_sent(many, monkeypatch, design, layout):
    """A fit from no coefficients does without; one that goes on needs some."""
    X, y = many["X"], many["number"]
    model = SchMPLasso(0.1, n_ranks=3, layout=layout, warm_start=True)
    calls = []

    def column_sums(self, weight):
        calls.append(self.group.rank)
        return whole(self, weight)

    whole = design.column_sums
    monkeypatch.setattr(design, "column_sums", column_sums)
    model.fit(X, y)
    assert not calls
    model.fit(X, y)
    assert sorted(calls) == [0, 1, 2]


def test_screening_waits_for_some_checks(many, solve, monkeypatch):
    """Sums of squares take longer than the few checks that most fits make."""
    X, y = many["X"], many["number"]
    penalty, first = make_penalty(400, 0.4), []
    for checks in (0, 4, 100):
        monkeypatch.setattr(_working_set, "_CHECKS_FIRST", checks)
        with dask.config.set({CAP: 6}):
            alive = solve(X, y, penalty, screening_tol=np.inf)[0][2]
        first.append(int(np.argmax(np.array(alive) < 400)))
    at_once, later, never = first
    assert never == 0 and 0 < at_once < 5 <= later


@pytest.mark.parametrize(("n_ranks", "layout"), RANKS)
@pytest.mark.parametrize(("l1_ratio", "positive"), [(1.0, False), (0.7, True)])
def test_columns_or_their_products(
    many, solve, monkeypatch, n_ranks, layout, l1_ratio, positive
):
    """Rank 0 finds the same with the columns of few rows as with their products."""
    X, y = many["X"], many["number"]
    penalty = make_penalty(400, 0.05, l1_ratio, positive)
    found = []
    for few_rows in (40, 39):
        monkeypatch.setattr(_hessian, "_FEW_ROWS", few_rows)
        state, certificates, *_ = solve(X, y, penalty, n_ranks, layout)[0]
        assert certificates[-1].gap <= 1e-13
        found.append(dense(state, 400))
    assert np.count_nonzero(found[0]) > 10
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_columns_are_less_than_their_products(many, monkeypatch):
    """Where rows are few, what ranks send grows with rows and not with columns."""
    X, y = many["X"][:12], many["number"][:12]
    model = SchMPLasso(0.01, tol=1e-10, n_ranks=2, layout="rows")
    sent = []
    for few_rows in (12, 11):
        monkeypatch.setattr(_hessian, "_FEW_ROWS", few_rows)
        model.fit(X, y)
        sent.append(sum(record["bytes_shared"] for record in model.history_))
    assert sent[0] < sent[1]


def test_a_rank_may_hold_all_that_matters(many):
    """What a rank proposes is bounded, whoever has the columns that violate most."""
    X, y = many["X"], many["number"]
    order = np.argsort(-np.abs(X.T @ (y - y.mean())))
    found = [
        SchMPLasso(0.01, tol=1e-10, n_ranks=n, layout="columns").fit(X[:, order], y)
        for n in (1, 5)
    ]
    np.testing.assert_allclose(found[1].coef_, found[0].coef_, atol=1e-6)
    assert found[1].dual_gap_ <= 1e-10 * y.var() / 2


@pytest.mark.parametrize("target", ["number", "two", "three"])
@pytest.mark.parametrize("first_size", [1])
def test_small_working_sets(many, solve, monkeypatch, target, first_size):
    """They grow round by round to the same model; each check is a bound."""
    X, y = many["X"], many[target]
    penalty = make_penalty(400, 0.03)
    expected, certificates, *_ = solve(X, y, penalty)[0]
    best = certificates[-1].objective
    monkeypatch.setattr(_working_set, "_FIRST_SIZE", first_size)
    monkeypatch.setattr(_hessian, "_FEW_ROWS", 0)  # sets are large for few rows
    state, steps, *_ = solve(X, y, penalty, 2, n_rounds=100)[0]
    assert len(steps) > len(certificates)
    for step in steps:
        assert -1e-12 <= step.objective - best <= step.gap + 1e-12
        assert 0 < step.scale <= 1
    gaps = [step.gap for step in steps]
    assert gaps[-1] < 1e-12 < gaps[0]
    size = 1200 if target == "three" else 400
    np.testing.assert_allclose(dense(state, size), dense(expected, size), atol=1e-6)


@pytest.mark.each
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("cap", [20, 10])
def test_a_cap_on_working_sets(many, layout, cap):
    """Fewer coefficients at once than the solution has take more rounds."""
    X, y = many["X"], many["number"]
    params = {"alpha": 0.03, "tol": 1e-3, "layout": layout, "n_ranks": 2}
    free = SchMPLasso(**params).fit(X, y)
    assert np.count_nonzero(free.coef_) > 20
    with dask.config.set({CAP: cap}):
        capped = SchMPLasso(**params, max_iter=20_000).fit(X, y)
    assert capped.n_iter_ > 2 * free.n_iter_
    null = y.var() / 2
    assert capped.dual_gap_ <= 1e-3 * null
    last = capped.history_[-1]["objective"]
    assert last == pytest.approx(free.history_[-1]["objective"], abs=1e-3 * null)


@pytest.mark.parametrize("target", ["two", "three"])
def test_a_cap_on_working_sets_of_classes(many, target):
    X, y = many["X"], many[target]
    params = {"alpha": 0.01, "tol": 1e-3}
    free = SchMPLogisticRegression(**params).fit(X, y)
    assert np.count_nonzero(free.coef_) > 12
    with dask.config.set({CAP: 12}):
        capped = SchMPLogisticRegression(**params).fit(X, y)
    assert capped.n_iter_ > free.n_iter_
    last = capped.history_[-1]["objective"]
    assert last == pytest.approx(free.history_[-1]["objective"], abs=2e-3)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_too_many_coefficients_without_penalty(many, n_ranks):
    X = many["X"]
    weights = np.ones(400)
    weights[:21] = 0
    params = {"alpha": 0.1, "n_ranks": n_ranks}
    with dask.config.set({CAP: 20}):
        lasso = SchMPLasso(**params, feature_weights=weights)
        with pytest.raises(ValueError, match="21 coefficients have no L1 penalty.*20"):
            lasso.fit(X, many["number"])
        weights[0] = 1
        lasso.set_params(feature_weights=weights).fit(X, many["number"])
        with pytest.raises(ValueError, match="60 coefficients have no L1 penalty"):
            SchMPLogisticRegression(**params, feature_weights=weights).fit(
                X, many["three"]
            )
        with pytest.raises(ValueError, match="400 coefficients have no L1 penalty"):
            SchMPLasso(0, n_ranks=n_ranks).fit(X, many["number"])


@pytest.mark.filterwarnings("ignore", category=ConvergenceWarning)
@pytest.mark.parametrize("target", ["number", "two"])
def test_nothing_is_asked_below_rounding(many, target):
    """`tol=0` goes on and on at the optimum without harm, with all ruled out, too."""
    X, y = many["X"], many[target]
    cls = SchMPLasso if target == "number" else SchMPLogisticRegression
    for alpha in (0.05, 100.0):
        for n_ranks in (1, 2):
            model = cls(alpha, tol=0, max_iter=15, n_ranks=n_ranks).fit(X, y)
            assert model.dual_gap_ < 1e-12
            assert model.coef_.any() == (alpha < 1)


def test_newton_steps_are_for_few_more_than_are_needed():
    """Zeros far from their bound leave, as each step makes all of its Hessian anew."""
    X, y = make_blobs(150, 10, centers=30, cluster_std=3.0, random_state=0)
    model = SchMPLogisticRegression(1e-3, n_ranks=1).fit(X, y)
    rounds = model.history_
    assert len(rounds) <= 8
    sizes = [record["working_set"] for record in rounds]
    assert max(sizes) > 1.25 * sizes[-1]
    assert sizes[-1] < 1.1 * rounds[-1]["n_nonzero"]


def test_the_order_of_columns_does_not_matter(many):
    X, y = many["X"], many["number"]
    order = np.random.default_rng(0).permutation(400)
    model = SchMPLasso(0.02, tol=1e-10, n_ranks=2).fit(X[:, order], y)
    expected = Lasso(0.02, tol=1e-13, max_iter=10**6).fit(X, y)
    np.testing.assert_allclose(model.coef_, expected.coef_[order], atol=1e-5)


def test_the_whole_step_is_tried_first(many, monkeypatch):
    """Where a line search goes no shorter, it looks at two lengths, not eight."""
    tried, values_along = [], WorkingSets._values_along

    def noted(self, inside, change, margins, lengths):
        tried.append(lengths.tolist())
        return values_along(self, inside, change, margins, lengths)

    monkeypatch.setattr(WorkingSets, "_values_along", noted)
    SchMPLogisticRegression(0.02, n_ranks=1).fit(many["X"], many["number"] > 0)
    assert len(tried) > 1 and all(lengths == [1, 0.5] for lengths in tried)
