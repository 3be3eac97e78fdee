"""The rule itself, and the cells that it is applied to."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from quality.cells import LAYOUTS, RANKS, Cell, arrange, every_cell, spread
from quality.contestants import CONTESTANTS
from quality.objectives import make_objective
from quality.rule import Reference, Result, classify, judge, says_what_to_change
from quality.runs import judge_task, tasks_of, with_names
from quality.sets import SETS, load
from quality.table import HEADS, Row, summarise, write

NAMES = ["max_iter", "tol"]
HELP = "the maximum of 9 rounds was reached; raise max_iter"


@pytest.mark.parametrize(
    ("excess", "peer", "said", "verdict"),
    [
        (0.01, 0.0, [], "within"),
        (0.01, -0.5, [HELP], "within"),
        (0.011, 0.5, [], "silent"),
        (0.011, 0.5, ["it did not converge"], "silent"),
        (0.3, 0.5, ["it did not converge", HELP], "warned"),
        (0.52, 0.5, [HELP], "behind"),
        (np.inf, 0.5, [HELP], "behind"),
        (np.nan, 0.5, [], "silent"),
    ],
)
def test_verdicts(excess, peer, said, verdict):
    assert classify(excess, peer, said, NAMES) == verdict


@pytest.mark.parametrize(
    ("text", "helps"),
    [
        (HELP, True),
        ("standardise the features", True),
        ("scale the columns of X", True),
        ("no convergence", False),
        ("the maximal number of rounds", False),
    ],
)
def test_help(text, helps):
    assert says_what_to_change(text, NAMES) == helps


def test_an_optimum_of_zero_is_reached_but_for_rounding():
    X = np.random.default_rng(0).normal(size=(50, 3))
    objective = make_objective(X, np.full(50, 2.0), None, "squared_error", 0.1, 1.0)
    reference = Reference(objective, 0.0, np.inf)
    assert reference.excess(objective.value(np.zeros(3), 2.0 + 1e-9)) == 0
    assert reference.excess(objective.value(np.zeros(3), 2.001)) == np.inf
    assert replace(reference, optimum=2.0).excess(3.0) == 0.5


def test_there_is_enough_to_judge():
    assert min(len(sets) for sets in SETS.values()) >= 12
    for task, sets in SETS.items():
        assert len(every_cell(task)) == len(sets) * len(LAYOUTS) * len(RANKS)
        assert any(len(load(task, name).y) < max(RANKS) for name in sets)
    assert sparse.issparse(load("classification", "text").X)
    units = load("classification", "columns in all units").X.std(axis=0)
    assert units.min() == pytest.approx(1e-4)
    assert units.max() == pytest.approx(1e4)


@pytest.mark.parametrize("size", [5, 20, 40])
def test_samples_are_balanced(size):
    cells = spread(every_cell("classification"), size, "MASGDClassifier l2")
    assert len(cells) == size
    assert cells == spread(every_cell("classification"), size, "MASGDClassifier l2")
    for field in ("rows", "layout", "n_ranks"):
        counts = Counter(getattr(cell, field) for cell in cells).values()
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["iris", "text", "six rows"])
def test_layouts_hold_the_same_rows(name, layout):
    rows = load("classification", name)
    X, y, weight = (
        part.compute() if hasattr(part, "compute") else part
        for part in arrange(rows, layout)
    )
    X = X.toarray() if sparse.issparse(X) else X
    wanted = rows.X.toarray() if sparse.issparse(rows.X) else rows.X
    wanted, given = np.column_stack([wanted, rows.y]), np.column_stack([X, y])
    assert sorted(given.tolist()) == sorted(wanted.tolist())
    assert (np.diff(y) >= 0).all() == layout.startswith("sorted")
    assert (weight is not None) == (layout == "weighted")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("contestant", CONTESTANTS, ids=str)
def test_objectives_are_those_that_are_minimised(contestant):
    """What the estimators write down is what they are judged by."""
    name = "iris" if contestant.task == "classification" else "linnerud standardised"
    rows = load(contestant.task, name)
    weight = rows.sample_weight
    model = contestant.make(max_iter=3)
    model.fit(rows.X, rows.y, sample_weight=weight)
    alpha, ratio = contestant.alpha(weight.sum()), contestant.l1_ratio
    objective = make_objective(rows.X, rows.y, weight, contestant.loss, alpha, ratio)
    value = objective.value(model.coef_, model.intercept_)
    # The best pass is returned. SFB sums float32 factors; the others are exact.
    written = min(record["objective"] for record in model.history_)
    assert written == pytest.approx(value, rel=1e-5)


def test_a_bad_model_is_found():
    """A fit that does nothing is silent, and the table says how bad it is."""
    [lasso] = [one for one in CONTESTANTS if str(one) == "SchMPLasso l1"]

    class Idle:
        def __init__(self, **params):
            self.coef_, self.intercept_, self.alpha = np.zeros(20), 0.0, 1.0

        def get_params(self):
            return {"tol": 1.0}

        def fit(self, X, y, sample_weight=None):
            return self

    idle = replace(lasso, make=Idle)
    results = [
        judge(one, Cell("linear", "20 blocks", n_ranks))
        for one in (lasso, idle)
        for n_ranks in (1, 2)
    ]
    assert [result.verdict for result in results] == ["within"] * 2 + ["silent"] * 2
    [row] = summarise(results)
    assert row[2:8] == (4, "50 %", 0, 2, 0, 0)
    assert isinstance(results[0], Result)


def test_a_table_keeps_the_rows_of_others(tmp_path):
    path = tmp_path / "table.csv"
    a, b = Row("A", "l2", 8, "100 %", 0, 0, 0, 0, "0 %"), Row("A", "l1", *"1234567")
    write([a, b], path)
    write([a._replace(cells=9), Row("B", "-", *"1234567")], path)
    lines = path.read_text().splitlines()
    assert lines[0] == ",".join(HEADS)
    assert lines[1] == "A,l2,9,100 %,0,0,0,0,0 %"
    assert lines[2:] == ["A,l1,1,2,3,4,5,6,7", "B,-,1,2,3,4,5,6,7"]


def test_all_cells_are_asked_for_once():
    """In groups that have their rows, and so their optimum, in common."""
    tasks = list(tasks_of("SchMPLasso ", None))
    assert sum(len(cells) for _, cells in tasks) == 2 * len(every_cell("regression"))
    assert all(len({cell.rows for cell in cells}) == 1 for _, cells in tasks)
    few = list(tasks_of("SchMPLasso l1", 2))
    results = list(with_names(few, map(judge_task, few)))
    assert [str(result.contestant) for result in results] == ["SchMPLasso l1"] * 2
    assert all(result.keeps for result in results)
