"""Ranks that go over several batches by themselves, and one rank that has all rows."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits

from dask_ma import SFBLogisticRegression
from dask_ma.comm import LocalGroup
from dask_ma.data import Block, Shard
from dask_ma.kernels import product_square, square_sum
from dask_ma.sfb import Exchange, FactorModel
from dask_ma.sfb._apart import StepsApart
from dask_ma.sfb.exchange._full_matrix import is_best_whole, whole_update
from dask_ma.sfb.logistic import _cost
from dask_ma.sfb.logistic._cost import Passes
from dask_ma.sfb.logistic._dual_model import DualModel
from dask_ma.sfb.model._common import CommonStep
from dask_ma.sfb.model._factors import Factors
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import view_of
from dask_ma.sfb.prox import NoPenalty
from dask_ma.supervised import gathered

X, y = load_digits(return_X_y=True)
X = X / 16
ALPHA = 1e-3
CENTRED = sparse.csr_array(X - X.mean(axis=0))


def fit(X=X, y=y, **params):
    weight = params.pop("sample_weight", None)
    given = {"alpha": ALPHA, "random_state": 0, "refine": False}
    return SFBLogisticRegression(**{**given, **params}).fit(X, y, weight)


@pytest.fixture
def apart(monkeypatch):
    """Ranks go over so many batches by themselves."""

    def choose(n_batches):
        monkeypatch.setattr(Passes, "count_apart", lambda self: n_batches)

    return choose


@pytest.fixture
def alone(monkeypatch):
    """One rank makes the steps of "sgd", on threads as well."""
    monkeypatch.setattr(Passes, "are_quicker_alone", lambda *_: True)
    monkeypatch.setattr(_cost, "_LEAST_NODES", 1)


# Several batches from one exchange to the next ----------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("n_batches", [2, 4, 1000])
@pytest.mark.parametrize("content", ["factors", "full_matrix"])
@pytest.mark.parametrize(
    "params",
    [
        {"X": CENTRED},
        {"X": X.astype(np.float32), "fit_intercept": False, "alpha": 5e-3},
        {
            "y": (y > 4).astype(int),
            "sample_weight": np.random.default_rng(0).exponential(size=len(y)),
        },
        {"penalty": "elasticnet", "alpha": 2e-3},
        {"penalty": "elasticnet", "alpha": 2e-3, "X": CENTRED},
    ],
    ids=str,
)
def test_the_optimum(apart, monkeypatch, n_batches, content, params):
    """The gap is as small as asked for, and matrix and dual variables are one."""
    apart(n_batches)
    monkeypatch.setattr(Passes, "smaller_content", lambda *_: content)
    sums, plain = {}, DualModel.dual_objective

    def look(self, matrix):
        found = plain(self, matrix)
        total = np.zeros(matrix.values.shape)
        for rows, block in self._blocks():
            total += block.X.T @ self._residuals(rows, block)
        sums[self._group.rank] = -self.learning_rate * total
        if self._group.rank == 0:
            sums["matrix"] = matrix.stored().copy()
        return found

    monkeypatch.setattr(DualModel, "dual_objective", look)
    few = {"X": X, "y": y, **params}
    few |= {name: few[name][::4] for name in {"X", "y", "sample_weight"} & few.keys()}
    # Five batches of each rank.
    found = fit(**few, n_ranks=3, tol=1e-3, batch_size=32)
    assert found.communication_ == content
    last = found.history_[-1]
    assert found.dual_gap_ <= 1e-3 * last["objective"]
    single = params.get("X", X).dtype == np.float32
    matrix = sums.pop("matrix")
    np.testing.assert_allclose(
        matrix, sum(sums.values()), atol=2e-5 if single else 1e-10
    )


@pytest.fixture
def exchanged(monkeypatch):
    """Numbers of rows of what each rank has found for an exchange."""
    original, found = StepsApart.factors, []

    def factors(steps, *place):
        factors = original(steps, *place)
        found.append(len(factors.u))
        return factors

    monkeypatch.setattr(StepsApart, "factors", factors)
    return found


def test_fewer_exchanges_for_the_same_rows(apart, exchanged):
    counts = {}
    for n_batches in (1, 5):
        apart(n_batches)
        exchanged.clear()
        model = fit(n_ranks=2, batch_size=32, max_iter=3, tol=None)
        counts[n_batches] = len(exchanged)
        assert [record["n_samples"] for record in model.history_] == [1797] * 3
        assert model.t_ == 1 + 3 * 29  # batches of a rank, exchanged or not
    assert counts == {1: 2 * 3 * 29, 5: 2 * 3 * 6}


def test_threads_and_processes_find_the_same(process_client):
    """How often ranks exchange follows from sizes alone."""
    some = {"X": X[::4], "y": y[::4], "n_ranks": 2}
    threads = fit(**some)
    with process_client.as_current():
        processes = fit(**some)
    assert processes.t_ == threads.t_
    np.testing.assert_allclose(processes.coef_, threads.coef_, atol=1e-9)


def test_what_is_asked_for_is_done(exchanged):
    """An exchange after each batch, as in the paper."""
    fit(communication="factors", n_ranks=2, max_iter=2, tol=None)
    assert len(exchanged) == 2 * 2 * 15
    exchanged.clear()
    fit(n_ranks=2, max_iter=2, tol=None)
    assert len(exchanged) < 2 * 2 * 15


class Entropies(CommonStep):
    """Steps of a concave function along products of factors."""

    def __init__(self):
        self.shares = []

    def curvature(self, square, slopes):
        return 0.3 * square + float(slopes @ slopes)

    def take(self, share):
        self.shares.append(share)


def half(sums):
    """A dual operator."""
    return sums / 2


@pytest.mark.parametrize("operator", [None, half])
def test_the_linear_part_of_steps_that_follow_each_other(operator):
    """It is that at the place from which the first of them starts."""
    rng = np.random.default_rng(0)
    scale, kappa2 = 0.3, 1 / 0.3
    parts = [Factors(rng.normal(size=(6, 3)), rng.normal(size=(6, 8))) for _ in "abc"]
    common, left = Entropies(), iter(parts)

    class Model(FactorModel):
        common_step, intercept_scale = common, kappa2
        initial_matrix = factors = None

    if operator is not None:
        Model.dual_operator = staticmethod(operator)
    model = Model()
    start = ParameterMatrix(
        rng.normal(size=(3, 8)), np.zeros(3), NoPenalty(), view_of(model)
    )

    def find(matrix, batch):
        factors = next(left)
        products = float((factors.u * matrix.product(factors.v)).sum())
        common.gain += products
        common.products += products
        square = product_square(*factors)
        common.own_curvature += common.curvature(square, factors.u.sum(axis=0))
        return factors

    found = StepsApart(model, 3).factors(start, iter("abc"), scale, find)
    np.testing.assert_array_equal(found.u, np.concatenate([p.u for p in parts]))
    direct = sum(float((p.u * start.product(p.v)).sum()) for p in parts)
    assert common.gain == pytest.approx(direct)
    common.agree(1.0, 0.0, np.zeros(3))
    assert common.gain == common.products == common.own_curvature == 0


def test_one_rank_needs_no_length(monkeypatch):
    """Its steps are safe by themselves: nothing is worked out for a length."""
    monkeypatch.setattr(CommonStep, "agree", None)
    some = {"X": X[::4], "y": y[::4]}
    for content in ("auto", "full_matrix"):
        last = fit(**some, communication=content).history_[-1]
        assert last["dual_gap"] < 1e-2


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_an_update_as_a_whole(kind):
    rng = np.random.default_rng(0)
    v = rng.normal(size=(9, 7)) * (rng.random((9, 7)) < 0.5)
    factors = Factors(rng.normal(size=(9, 2)), kind(v))
    matrix = ParameterMatrix(np.zeros((2, 7)), None, NoPenalty())
    assert is_best_whole([factors], matrix)
    total = whole_update(factors, matrix)
    np.testing.assert_allclose(total.values, v.T @ factors.u)
    np.testing.assert_allclose(total.slopes, factors.u.sum(axis=0))
    assert total.square == pytest.approx(product_square(*factors))
    few = Factors(factors.u[:1], sparse.csr_array(v[:1]))
    assert not is_best_whole([few], matrix)


def test_the_square_of_a_difference():
    a, b = np.random.default_rng(0).normal(size=(2, 3000, 200))
    assert square_sum(a) == pytest.approx((a**2).sum())
    assert square_sum(a, b) == pytest.approx(((a - b) ** 2).sum())


# What is chosen -----------------------------------------------------------------------


def passes(n_rows, shape, n_entries, *, n_ranks=2, is_sparse=True, batch_size=64):
    nbytes = n_rows * n_entries * 8 * (1.5 if is_sparse else 1)
    most = -(-n_rows // n_ranks)
    sizes = n_entries, is_sparse, shape, 8, n_ranks, batch_size
    return Passes(n_rows, most, nbytes, *sizes)


def test_exchanges_are_few_where_batches_are_short():
    words = passes(11_314, (20, 32_000), 87)
    n_exchanges = -(-words.n_steps // words.count_apart())
    assert 4 <= n_exchanges <= 16
    long = passes(11_314, (500, 3000), 3000, is_sparse=False)
    assert long.count_apart() < words.count_apart()
    # Of a large matrix there are no copies, and of factors no more than fit.
    assert passes(10**6, (1000, 50_000), 30).count_apart() == 1
    many = passes(10**7, (20, 32_000), 87)
    assert many.factor_bytes(many.count_apart()) <= 2**26
    assert passes(50, (3, 10), 10).count_apart() == 1


@pytest.mark.parametrize("n_ranks", [2, 8])
def test_factors_until_an_exchange_take_little_memory(n_ranks):
    """Workers that stream their rows may have little; joined, they are there twice."""
    many = passes(10**7, (2, 5000), 75, n_ranks=n_ranks)
    n_apart = many.count_apart()
    assert 1 < n_apart < many.n_steps / n_ranks
    assert many.factor_bytes(n_apart) <= 2**23 < many.factor_bytes(n_apart + 1)


def test_content_by_bytes():
    assert passes(11_314, (20, 32_000), 87).smaller_content(10) == "factors"
    dense = passes(60_000, (10, 784), 784, is_sparse=False)
    assert dense.smaller_content(40) == "full_matrix"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((11_314, (20, 32_000), 87), True),
        ((200_000, (1000, 50_000), 30), False),
        ((1_000, (3, 50_000), 20_000), False),
    ],
)
def test_when_gradient_steps_are_quicker_alone(sizes, expected):
    assert passes(*sizes).are_quicker_alone(640e6) is expected


# One rank for all ---------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize(
    "params",
    [
        {"penalty": None, "alpha": 1e-4},
        {"penalty": "l1", "alpha": 1e-4},
        {"solver": "sgd", "X": sparse.csr_array(X)},
        {"solver": "sgd", "sample_weight": np.arange(len(y)) % 3 + 1.0},
        {"solver": "sgd", "early_stopping": True, "tol": 0.1, "max_iter": 40},
        {"solver": "sgd", "refine": True, "max_iter": 15},
    ],
    ids=str,
)
def test_one_rank_makes_all_gradient_steps(params, n_ranks):
    """The model is that of one rank; what is found of all rows is shared out."""
    params = {"max_iter": 4, **params}
    if "early_stopping" not in params and not params.get("refine"):
        params["tol"] = None
    few = {"X": X, "y": y, **params}
    few |= {name: few[name][::3] for name in {"X", "y", "sample_weight"} & few.keys()}
    one, several = fit(**few), fit(**few, n_ranks=n_ranks)
    assert several.communication_ == "alone"
    if "early_stopping" in params:  # each rank holds out some of its own rows
        assert several.score(X, y) == pytest.approx(one.score(X, y), abs=0.02)
        return
    last = [model.history_[-1]["objective"] for model in (one, several)]
    assert last[1] == pytest.approx(last[0], rel=1e-3)
    if not params.get("refine"):
        np.testing.assert_allclose(one.coef_, several.coef_, atol=1e-7)
        for a, b in zip(one.history_, several.history_, strict=True):
            assert a["n_samples"] == b["n_samples"]


@pytest.mark.usefixtures("alone")
def test_ways_that_are_asked_for():
    for content in ("factors", "full_matrix", "outputs"):
        model = fit(
            solver="sgd", communication=content, n_ranks=2, max_iter=2, tol=None
        )
        assert model.communication_ == content
    late = fit(communication=Exchange(staleness=1), n_ranks=2, max_iter=2, tol=None)
    assert late.communication_ == "factors"
    wide = Exchange(wire_dtype="float64")  # nothing would be sent by one rank alone
    params = {"solver": "sgd", "communication": wide}
    model = fit(n_ranks=2, max_iter=2, tol=None, **params)
    assert model.communication_ != "alone"


@pytest.mark.usefixtures("alone")
def test_rows_too_many_to_be_moved(configured):
    with configured({"dask-ma.sfb.moved-rows": 1000}):
        model = fit(solver="sgd", n_ranks=2, max_iter=2, tol=None)
    assert model.communication_ != "alone"


def test_short_steps_on_two_processes(process_client):
    """One process makes them, unless rows are gone over once, as in partial fits."""
    with process_client.as_current():
        model = fit(solver="sgd", n_ranks=2, max_iter=5, tol=None)
        part = SFBLogisticRegression(alpha=ALPHA, n_ranks=2)
        part.partial_fit(X, y, classes=np.unique(y))
    assert model.communication_ == "alone"
    assert part.communication_ != "alone"
    one = fit(solver="sgd", max_iter=5, tol=None)
    np.testing.assert_allclose(model.coef_, one.coef_, atol=1e-6)


def test_ranks_of_a_process_do_not_look_while_one_makes_steps(wide_client):
    params = {"solver": "sgd", "penalty": "l1", "max_iter": 6, "tol": None}
    with wide_client.as_current():
        models = [fit(n_ranks=8, **params) for _ in range(3)]
    for model in models:
        assert model.communication_ == "alone"
        np.testing.assert_array_equal(model.coef_, models[0].coef_)
        found = [record["objective"] for record in model.history_]
        assert found == [record["objective"] for record in models[0].history_]


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_all_ranks_on_one(run_ranks, kind, weighted):
    """In the order of ranks, as one block."""
    rng = np.random.default_rng(0)
    cuts = [slice(0, 4), slice(4, 4), slice(4, 9), slice(9, 20)]
    rows, labels, weight = rng.normal(size=(20, 3)), np.arange(20), rng.random(20)

    def agent(group: LocalGroup):
        part = cuts[group.rank]
        halves = np.array_split(np.arange(20)[part], 2)
        blocks = [
            Block(kind(rows[h]), labels[h], weight[h] if weighted else None, 0, None)
            for h in halves
            if len(h)
        ]
        return gathered(Shard(blocks, 3, rows.dtype), group)

    first, *others = run_ranks(agent, 4, 1)
    assert [shard.n_rows for shard in others] == [0, 0, 0]
    (block,) = first.blocks
    found = block.X.toarray() if sparse.issparse(block.X) else block.X
    np.testing.assert_array_equal(found, rows)
    np.testing.assert_array_equal(block.y, labels)
    if weighted:
        np.testing.assert_array_equal(block.sample_weight, weight)
