"""Users' losses by dual ascent: optima, what is called when, and losses of ranks."""

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import ElasticNet
from sklearn.svm import LinearSVC

from dask_ma.comm import allreduce
from dask_ma.exceptions import CheckpointError
from dask_ma.sfb import Exchange, FactorModel, prox, run
from dask_ma.sfb.model._dual import DualView
from dask_ma.sfb.model._matrix import ParameterMatrix

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 7))
X[RNG.random(X.shape) < 0.4] = 0
Y = X @ RNG.normal(size=(7, 3)) + RNG.normal(size=(60, 3))
L1, L2 = 0.3, 0.5
every_size = pytest.mark.parametrize("n_ranks", [1, 3])


def make_regression(l1=L1, l2=L2, *, is_columnwise=True, **replaced):
    """Least squares with an elastic net; a batch solves its part of the dual."""

    class Regression(FactorModel):
        dual_is_columnwise = is_columnwise

        def __init__(self):
            self.prox = prox.ElasticNet(l1, l2)

        def prepare(self, shard, group):
            self.n_ranks = group.size
            self.n_rows = int(allreduce(group, np.array(shard.n_rows)))
            self.dual = np.zeros((shard.n_rows, 3))

        def initial_matrix(self, n_features):
            return np.zeros((3, n_features))

        def dual_operator(self, sums):
            return prox.L1(l1)(sums / l2, 1 / l2)

        def factors(self, matrix, batch):
            gram = batch.X @ batch.X.T
            gram = gram.toarray() if sparse.issparse(gram) else gram
            system = np.eye(batch.n_rows) + gram * self.n_ranks / (l2 * self.n_rows)
            slopes = matrix.product(batch.X) - batch.y
            changes = np.linalg.solve(system, self.dual[batch.rows] + slopes)
            self.dual[batch.rows] -= changes
            return changes, batch.X

        def rebuild(self, matrix, batch):
            if matrix is not None:
                self.dual[batch.rows] = batch.y - matrix.product(batch.X)
            return self.dual[batch.rows], batch.X

        def state_dict(self):
            return {"dual": self.dual.copy()}

        def load_state_dict(self, state):
            if state is not None:
                self.dual[...] = state["dual"]

        def loss(self, matrix, batch):
            return ((matrix.product(batch.X) - batch.y) ** 2).sum() / 2

        def dual_loss(self, batch):
            dual = self.dual[batch.rows]
            return (dual * batch.y).sum() - (dual**2).sum() / 2

    for name, value in replaced.items():
        setattr(Regression, name, value)
    return Regression()


def test_sums_are_in_double_precision_by_default():
    """Else gaps are reached that are not there."""
    single = make_regression(
        initial_matrix=lambda self, n: np.zeros((Y.shape[1], n), dtype=np.float32)
    )
    for dtype in ("float32", "float64"):
        assert run_regression(single, dtype=dtype, n_passes=1).matrix.dtype == dtype
    assert run_regression(single, dtype="auto", n_passes=1).matrix.dtype == "float64"


def run_regression(model=None, rows=X, n_ranks=2, **params):
    chosen = {"batch_size": 8, "random_state": 0, "communication": "factors"}
    # The more ranks move at once, the shorter their steps are.
    chosen |= {"n_ranks": n_ranks, "n_passes": 12 + 8 * n_ranks, "dtype": None}
    model = make_regression() if model is None else model
    return run(model, rows, Y, **{**chosen, **params})


@pytest.fixture(scope="module")
def expected():
    """scikit-learn's coefficients, of all targets one by one."""
    params = {"alpha": L1 + L2, "l1_ratio": L1 / (L1 + L2), "fit_intercept": False}
    model = ElasticNet(tol=1e-12, max_iter=10**5, **params)
    return np.array([model.fit(X, y).coef_ for y in Y.T])


def objective(W, l1=L1, l2=L2):
    value = ((X @ W.T - Y) ** 2).sum() / 2 / len(X)
    return value + l1 * np.abs(W).sum() + l2 / 2 * (W**2).sum()


# Optima -------------------------------------------------------------------------------


@pytest.mark.each
@every_size
@pytest.mark.parametrize("is_columnwise", [True, False])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, sparse.csr_matrix])
def test_elastic_net(expected, kind, is_columnwise, n_ranks):
    model = make_regression(is_columnwise=is_columnwise)
    result = run_regression(model, kind(X), n_ranks=n_ranks)
    np.testing.assert_allclose(result.matrix, expected, atol=1e-7)
    assert (result.matrix == 0).any()
    np.testing.assert_array_equal(result.matrix == 0, expected == 0)
    assert result.history[-1]["objective"] == pytest.approx(objective(expected))


@every_size
def test_ridge_has_a_closed_form(n_ranks):
    model = make_regression(0.0, L2)
    result = run_regression(model, n_ranks=n_ranks)
    system = X.T @ X / len(X) + L2 * np.eye(7)
    expected = np.linalg.solve(system, X.T @ Y / len(X)).T
    np.testing.assert_allclose(result.matrix, expected, atol=1e-8)


@every_size
def test_a_penalty_on_the_whole_matrix(n_ranks):
    """Singular values: the operator looks at all columns together."""
    trace, l2 = 0.6, 0.5

    class Trace(prox.Prox):
        def __call__(self, matrix, step):
            return matrix

        def value(self, matrix):
            square = l2 / 2 * (matrix**2).sum()
            return trace * np.linalg.norm(matrix, "nuc") + square

    def operator(self, sums):
        return prox.TraceNorm(trace)(sums / l2, 1 / l2)

    model = make_regression(0.0, l2, is_columnwise=False, dual_operator=operator)
    model.prox = Trace()
    result = run_regression(model, n_ranks=n_ranks, n_passes=30)
    W, step = np.zeros((3, 7)), 1 / (np.linalg.norm(X, 2) ** 2 / len(X) + l2)
    for _ in range(500):
        gradient = (X @ W.T - Y).T @ X / len(X) + l2 * W
        W = prox.TraceNorm(trace)(W - step * gradient, step)
    np.testing.assert_allclose(result.matrix, W, atol=1e-6)
    assert np.linalg.matrix_rank(W, 1e-8) < 3
    assert result.history[-1]["objective"] < result.history[0]["objective"]


@every_size
def test_a_loss_without_slope(n_ranks):
    """The hinge loss of a support vector machine, row by row and clipped."""
    l2, y = 0.2, np.where(Y[:, 0] > 0, 1.0, -1.0)

    class Machine(FactorModel):
        prox = prox.L2(l2)

        def prepare(self, shard, group):
            self.n_ranks = group.size
            self.n_rows = int(allreduce(group, np.array(shard.n_rows)))
            self.dual = np.zeros(shard.n_rows)

        def initial_matrix(self, n_features):
            return np.zeros((1, n_features))

        def dual_operator(self, sums):
            return sums / l2

        def factors(self, matrix, batch):
            # Rows move at once: their products are counted as often as there are rows.
            together = self.n_ranks * batch.n_rows
            c = together * (batch.X**2).sum(axis=1) / (l2 * self.n_rows)
            before = self.dual[batch.rows]
            margins = batch.y * matrix.product(batch.X)[:, 0]
            after = np.clip(before * batch.y + (1 - margins) / c, 0, 1) * batch.y
            self.dual[batch.rows] = after
            return (before - after)[:, np.newaxis], batch.X

        def loss(self, matrix, batch):
            margins = batch.y * matrix.product(batch.X)[:, 0]
            return np.maximum(0, 1 - margins).sum()

        def dual_loss(self, batch):
            return self.dual[batch.rows] @ batch.y

    used = X[(X**2).sum(axis=1) > 0], y[(X**2).sum(axis=1) > 0]
    params = {
        "n_passes": 40 + 20 * n_ranks,
        "batch_size": 4,
        "random_state": 0,
        "dtype": None,
    }
    result = run(Machine(), *used, n_ranks=n_ranks, communication="factors", **params)
    svc = LinearSVC(
        loss="hinge", C=1 / (l2 * len(used[0])), fit_intercept=False, tol=1e-9
    )
    svc.set_params(max_iter=10**6, random_state=0).fit(*used)

    def value(w):
        losses = np.maximum(0, 1 - used[1] * (used[0] @ w))
        return losses.mean() + l2 / 2 * (w**2).sum()

    found, least = value(result.matrix[0]), value(svc.coef_[0])
    assert -1e-6 < found - least < 1e-3 * least
    last = result.history[-1]
    assert last["objective"] == pytest.approx(found)
    assert found - least - 1e-6 <= last["dual_gap"] < 2e-3 * least


@pytest.mark.each
@pytest.mark.parametrize("communication", ["factors", Exchange("factors", staleness=1)])
@pytest.mark.parametrize("is_columnwise", [True, False])
@every_size
def test_the_gap_bounds_the_distance(expected, is_columnwise, n_ranks, communication):
    model = make_regression(is_columnwise=is_columnwise)
    params = {"n_ranks": n_ranks, "communication": communication}
    result = run_regression(model, tol=1e-9, **params)
    gaps, objectives = (
        np.array([record[name] for record in result.history])
        for name in ("dual_gap", "objective")
    )
    distances = objectives - objective(expected)
    assert (gaps >= distances - 1e-10).all() and (distances > -1e-9).all()
    # The run ends by it.
    assert result.converged and gaps[-1] <= 1e-9 < gaps[:-1].min()
    assert 5 < len(gaps) < 60


def test_the_gap_is_that_of_the_formula():
    """After one step from zero, of all rows together."""
    result = run_regression(n_passes=1, n_ranks=1, batch_size=60, shuffle=False)
    U = np.linalg.solve(np.eye(60) + X @ X.T / (L2 * 60), Y)
    Z, W = U.T @ X / 60, result.matrix
    conjugate = (np.maximum(np.abs(Z) - L1, 0) ** 2).sum() / (2 * L2)
    bound = ((U * Y).sum() - (U**2).sum() / 2) / 60 - conjugate
    record = result.history[0]
    assert record["objective"] == pytest.approx(objective(W), rel=1e-12)
    assert record["dual_gap"] == pytest.approx(objective(W) - bound, rel=1e-10)


def test_without_a_dual_loss_there_is_no_gap():
    model = make_regression(dual_loss=FactorModel.dual_loss)
    result = run_regression(model, tol=1e-6)
    assert result.converged and "dual_gap" not in result.history[-1]


# Ranks --------------------------------------------------------------------------------


@every_size
def test_the_same_as_a_plain_loop(n_ranks):
    """Batches of all rows of a rank, in order, as the paper has it."""
    result = run_regression(
        n_ranks=n_ranks, n_passes=4, batch_size=60, shuffle=False, rows=X
    )
    parts = np.array_split(np.arange(60), n_ranks)
    U, Z = np.zeros((60, 3)), np.zeros((3, 7))
    for _ in range(4):
        scaled = Z / L2
        W = np.sign(scaled) * np.maximum(np.abs(scaled) - L1 / L2, 0)
        changes = np.zeros_like(U)
        for part in parts:
            gram = X[part] @ X[part].T * n_ranks / (L2 * 60)
            slopes = U[part] + X[part] @ W.T - Y[part]
            changes[part] = np.linalg.inv(np.eye(len(part)) + gram) @ slopes
        U -= changes
        Z -= changes.T @ X / 60
    np.testing.assert_allclose(Z, U.T @ X / 60, atol=1e-12)
    W = np.sign(Z) * np.maximum(np.abs(Z) - L1, 0) / L2
    np.testing.assert_allclose(result.matrix, W, atol=1e-12)


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_ranks_are_as_one_where_steps_are(n_ranks):
    """Steps that do not look at what is in a batch, of all rows at once."""

    def factors(self, matrix, batch):
        slopes = self.dual[batch.rows] + matrix.product(batch.X) - batch.y
        changes = slopes / (1 + np.linalg.norm(X, 2) ** 2 / (L2 * len(X)))
        self.dual[batch.rows] -= changes
        return changes, batch.X

    one, several = (
        run_regression(
            make_regression(factors=factors), n_ranks=n, n_passes=50, batch_size=60
        )
        for n in (1, n_ranks)
    )
    np.testing.assert_allclose(several.matrix, one.matrix, atol=1e-12)


@pytest.mark.each
@pytest.mark.parametrize(
    "params",
    [
        {"communication": "full_matrix"},
        {"communication": "server"},
        {"communication": "auto"},
        {"communication": Exchange("factors", staleness=2)},
        {"communication": Exchange("factors", broadcast=1, averaging=False)},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_columnwise", [True, False])
def test_every_way_leads_to_the_optimum(expected, is_columnwise, params):
    model = make_regression(is_columnwise=is_columnwise)
    result = run_regression(model, n_ranks=3, **params)
    np.testing.assert_allclose(result.matrix, expected, atol=1e-6)


def test_float32(expected):
    def initial_matrix(self, n_features):
        return np.zeros((3, n_features), dtype=np.float32)

    result = run_regression(make_regression(initial_matrix=initial_matrix))
    assert result.matrix.dtype == np.float32
    np.testing.assert_allclose(result.matrix, expected, atol=1e-4)


# The view -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_columns_in_use_are_asked_for(kind):
    asked = []

    def operator(sums):
        asked.append(sums.shape)
        assert not sums.flags.writeable
        return 2 * sums

    Z, rows = RNG.normal(size=(3, 50)), np.zeros((4, 50))
    rows[:, [3, 20]] = RNG.normal(size=(4, 2))
    view = DualView(operator, "operator", is_columnwise=True)
    matrix = ParameterMatrix(Z, None, prox.L2(3.0), view)
    product = matrix.product(kind(rows))
    np.testing.assert_allclose(product, rows @ (2 * Z).T, atol=1e-14)
    assert asked == [(3, 50) if kind is np.asarray else (3, 2)]
    matrix.penalise(1.0)  # not on dual sums
    np.testing.assert_array_equal(np.asarray(matrix), 2 * Z)
    np.testing.assert_array_equal(matrix.stored(), Z.T)
    assert matrix.penalty() == pytest.approx(1.5 * (4 * Z**2).sum())


def test_a_whole_matrix_is_found_once_for_each_change():
    calls = []

    def operator(sums):
        calls.append(1)
        return sums + 1

    view = DualView(operator, "operator", is_columnwise=False)
    matrix = ParameterMatrix(np.zeros((2, 3)), None, prox.NoPenalty(), view)
    other = matrix.share(None)
    for _ in range(3):
        matrix.product(np.ones((1, 3)))
        other.product(np.ones((1, 3)))
    assert len(calls) == 1
    matrix.replace(np.ones((3, 2)), None)
    np.testing.assert_array_equal(other.product(np.ones((1, 3))), [[6, 6]])
    assert len(calls) == 2


# Losses of ranks, and checkpoints -----------------------------------------------------


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_resumed_run_is_an_uninterrupted_one(tmp_path, n_ranks):
    whole = run_regression(n_passes=6, n_ranks=n_ranks)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        run_regression(n_passes=2, n_ranks=n_ranks)
        resumed = run_regression(n_passes=6, n_ranks=n_ranks)
    np.testing.assert_array_equal(resumed.matrix, whole.matrix)
    assert len(resumed.history) == 6


def test_other_ranks_rebuild_the_dual_sums(tmp_path, expected):
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        first = run_regression(n_passes=12, n_ranks=3)
        with pytest.warns(UserWarning, match="by 3 ranks and goes on with 2"):
            model = run_regression(n_passes=40, n_ranks=2)
    np.testing.assert_allclose(model.matrix, expected, atol=1e-7)
    assert model.history[:12] == first.history
    # What the matrix says of the dual variables is nearly what they were.
    values = [record["objective"] for record in model.history]
    assert values[12] < values[1]


def test_dual_variables_that_are_not_kept_are_found_again(tmp_path, expected):
    model = make_regression(state_dict=lambda self: None)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        run_regression(model, n_passes=10)
        result = run_regression(model, n_passes=40)
    np.testing.assert_allclose(result.matrix, expected, atol=1e-7)


def test_what_cannot_be_rebuilt(tmp_path):
    model = make_regression(rebuild=FactorModel.rebuild)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        run_regression(model, n_passes=2, n_ranks=3)
        with pytest.raises(CheckpointError, match="Regression.rebuild is not defined"):
            run_regression(model, n_passes=4, n_ranks=2)


# Refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        (
            {"dual_operator": lambda self, sums: sums[:2]},
            r"Regression.dual_operator returned shape \(2, 7\) for dual sums of shape "
            r"\(3, 7\), expected the same shape",
        ),
        (
            {"dual_operator": lambda self, sums: np.sign(sums).astype(int)},
            "Regression.dual_operator returned int64, expected real numbers",
        ),
        ({"fit_intercept": True}, "Regression.fit_intercept is True, but .* column of"),
        ({"averages": False}, "Regression.averages is False, but"),
    ],
    ids=["shape", "type", "intercept", "averages"],
)
def test_models_that_cannot_be(replaced, message):
    with pytest.raises(ValueError, match=message):
        run_regression(make_regression(**replaced), n_passes=1)


@pytest.mark.parametrize(
    ("communication", "message"),
    [
        ("outputs", "dual_operator needs factors on all ranks, but .*'outputs'"),
        (Exchange("factors", broadcast=1, relay=False), "exact factors .* relay is"),
        (Exchange("factors", compression=0.1), "exact factors .* compression is 0.1"),
        (Exchange("factors", wire_dtype="float32"), "exact factors .* wire_dtype is"),
    ],
    ids=["outputs", "relay", "compression", "wire_dtype"],
)
def test_exchanges_that_change_updates(communication, message):
    with pytest.raises(ValueError, match=message):
        run_regression(n_passes=1, communication=communication)
