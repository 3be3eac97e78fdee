"""Units of outputs that change together, and what they are found from."""

import dask
import numpy as np
import pytest
from scipy import sparse
from traced import traced

from dask_ma import SFBLogisticRegression
from dask_ma.kernels import softmax
from dask_ma.sfb.logistic import (
    _coupled_units,
    _coupling,
    _curvature,
    _refine,
    _truncated,
)
from dask_ma.sfb.logistic._coupled_units import CoupledUnits
from dask_ma.sfb.logistic._coupling import Coupling, FeaturesInDoubt, Lens
from dask_ma.sfb.logistic._curvature import (
    Curvature,
    add_product,
    near_centre,
    values_of,
)
from dask_ma.sfb.logistic._fit import Fit
from dask_ma.sfb.logistic._memory_state import agreed
from dask_ma.sfb.logistic._objective import Objective
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._totals import add_up
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.supervised import Problem

RNG = np.random.default_rng(0)
N_FEATURES, N_OUTPUTS, L2 = 6, 4, 0.02
SCALES = RNG.uniform(0.1, 10, N_FEATURES)
ROWS = RNG.normal(size=(40, N_FEATURES)) @ RNG.normal(size=(N_FEATURES, N_FEATURES))
# Two pairs of classes, which change against each other far more than otherwise.
PULLS = np.array([[0, 9, 1, 0], [9, 0, 0, 1], [1, 0, 0, 4], [0, 1, 4, 0]]) / 5
COUPLINGS = np.diag(PULLS.sum(axis=0)) - PULLS
FOUND = FeaturesInDoubt(ROWS.T @ ROWS / 40, RNG.normal(size=N_FEATURES), 0.05)


def make_units(*, has_intercept, knows=True):
    place = SCALES, N_OUTPUTS, L2
    moments = np.eye(N_FEATURES)
    units = CoupledUnits(
        *place, has_intercept=has_intercept, moments=moments, n_rows=40
    )
    if knows:
        assert units.meet(0.01, (FOUND, COUPLINGS))
    return units


@pytest.mark.parametrize("has_intercept", [False, True])
def test_there_and_back(has_intercept, check_there_and_back):
    units = make_units(has_intercept=has_intercept)
    check_there_and_back(units, (N_FEATURES, N_OUTPUTS), has_intercept)


def test_gradient_by_differences(check_gradient):
    units = make_units(has_intercept=True)
    check_gradient(units, (N_FEATURES, N_OUTPUTS), L2, tol=1e-5)


@pytest.mark.parametrize("curvature", [0.01, 1e-4])
def test_second_derivatives_are_the_identity(curvature):
    """Those of all outputs, with the penalty; and when they are a part of what they
    were. Where all outputs change alike, nothing but the penalty is left."""
    units = make_units(has_intercept=True)
    assert units.meet(curvature) == (curvature != 0.01)
    share = curvature / 0.01
    points = RNG.normal(size=(len(units.scales), 2))
    pairs = []
    for point in points.T:
        values, intercept = units.values_of(point)
        values -= values.mean(axis=1, keepdims=True)
        intercept -= intercept.mean()
        pairs.append((values, intercept + FOUND.mean @ values))
    (first, one), (second, other) = pairs
    product = share * np.einsum(
        "ik,ij,jl,kl->", first, FOUND.moments, second, COUPLINGS
    )
    product += share * FOUND.weight * (one @ COUPLINGS @ other)
    product += L2 * (first * second).sum()
    there = [units.point_of(v, i - FOUND.mean @ v) for v, i in pairs]
    assert product == pytest.approx(there[0] @ there[1], rel=1e-2)


def test_others_become_the_same():
    units, other = (make_units(has_intercept=True, knows=k) for k in (True, False))
    units.note(1000)
    other.load_state_dict(units.state_dict())
    point = RNG.normal(size=len(units.scales))
    for found, same in zip(units.values_of(point), other.values_of(point), strict=True):
        np.testing.assert_array_equal(found, same)
    assert other.is_due
    other.note(0)
    assert not other.is_due
    # Somewhere else, outputs do not change together as they did.
    units.renew()
    assert units.is_due
    assert not units.state_dict()["is_long"]


def test_many_outputs_take_long():
    """To make units of 400 outputs takes as long as some 20 products."""
    place = {"has_intercept": True, "moments": None, "n_rows": 1000}
    units = CoupledUnits(np.ones(20), 400, L2, **place)
    units.note(10)
    assert not units.state_dict()["is_long"]
    units.note(50)
    assert units.state_dict()["is_long"]


def test_memory_of_units():
    """Moments, their factor, directions, and two more to find these from."""
    moments = np.eye(200)
    place = {"has_intercept": True, "moments": moments, "n_rows": 1000}
    found = FeaturesInDoubt(moments, np.zeros(200), 0.1)
    with traced() as memory:
        units = CoupledUnits(np.ones(200), N_OUTPUTS, L2, **place)
        for _ in range(2):
            units.meet(0.1, (found, COUPLINGS))
    # One more would be 6.4 of them; other threads of the process take some.
    assert memory.peak < 6.3 * moments.nbytes


def test_no_row_is_in_doubt():
    units = make_units(has_intercept=True, knows=False)
    found = FeaturesInDoubt(0 * FOUND.moments, FOUND.mean, 0.0)
    assert units.meet(0.0, (found, 0 * COUPLINGS))
    point = units.point_of(np.ones((N_FEATURES, N_OUTPUTS)), np.arange(4.0))
    np.testing.assert_allclose(units.values_of(point)[1], np.arange(4.0), atol=1e-12)


def test_a_step_leaves_the_mean_intercept():
    for knows in (True, False):
        units = make_units(has_intercept=True, knows=knows)
        step = units.without_drift(RNG.normal(size=len(units.scales)))
        values, intercept = units.values_of(step)
        drift = intercept + (FOUND.mean @ values if knows else 0)
        assert drift.mean() == pytest.approx(0, abs=1e-12)
        assert np.abs(drift).max() > 0.1


@pytest.fixture
def on_ranks(run_ranks, make_shards, rows):
    """``on_ranks(function)``: what two ranks find at a point of weighted rows."""
    weight = rows.weight / rows.weight.mean()
    W = np.random.default_rng(1).normal(size=(3, rows.X.shape[1]))

    def run(function, shift=0.0, intercept=None, W=W, dtype=np.float64, kind=np.array):
        X = kind((rows.X + shift).astype(dtype))
        shards = make_shards(2, X, rows.y, weight)

        def agent(group):
            problem = Problem(
                shard=shards[group.rank],
                classes=np.arange(3),
                n_problems=3,
                weight=1.0,
                total_weight=float(len(rows.y)),
                total_rows=len(rows.y),
                total_stored=rows.X.size,
                dtype=rows.X.dtype,
            )
            totals = add_up(problem, group, is_centred=True)
            matrix = ParameterMatrix(W.copy(), intercept, Penalty(0.0, 0.1).prox)
            return function(group, (problem, totals, group, matrix))

        return run_ranks(agent, 2)

    X = rows.X - weight @ rows.X / weight.sum()
    return run, X, softmax(X @ W.T), weight / len(weight)


@pytest.mark.parametrize("has_intercept", [False, True])
def test_sums_over_rows(on_ranks, has_intercept):
    """What a row says of features, by outputs, and of outputs, by features."""
    run, X, p, weight = on_ranks
    inverse = RNG.normal(size=(3, 3))
    inverse = inverse @ inverse.T + np.eye(3)
    factor = np.linalg.cholesky(X.T @ X / 9 + np.eye(X.shape[1]))
    mean, scales = RNG.normal(size=(2, X.shape[1]))

    def sums(group, place):
        is_root = group.rank == 0
        coupling = Coupling(*place, inverse if is_root else None)
        lens = Lens(factor, mean, scales, 0.5) if is_root else None
        return coupling.features(), coupling.outputs(lens)

    intercept = np.zeros(3) if has_intercept else None
    (features, outputs), others = run(sums, intercept=intercept)
    assert others == (None, None)
    blocks = p[:, :, np.newaxis] * np.eye(3) - p[:, :, np.newaxis] * p[:, np.newaxis]
    own = weight * np.einsum("ikl,kl->i", blocks, inverse) / 3
    centre = has_intercept * (own @ X / own.sum())
    expected = ((X - centre) * own[:, np.newaxis]).T @ (X - centre)
    np.testing.assert_allclose(features.moments, expected, atol=1e-12)
    np.testing.assert_allclose(features.mean, centre)
    assert features.weight == pytest.approx(own.sum())
    seen = 0.5 + (np.linalg.solve(factor, ((X - mean) / scales).T) ** 2).sum(axis=0)
    expected = np.einsum("ikl,i->kl", blocks, weight * seen) / (own @ seen)
    np.testing.assert_allclose(outputs, expected, atol=1e-12)


@pytest.mark.parametrize("is_few", [False, True])
def test_sums_over_sparse_rows(on_ranks, rows, is_few, monkeypatch):
    """As of dense ones that are not centred; few become dense at a time."""
    run, X, _, weight = on_ranks
    seen, original = [], _coupling.rows_at_a_time

    def rows_at_a_time(n_numbers):
        seen.append(n_numbers)
        return 7 if is_few else original(n_numbers)

    monkeypatch.setattr(_coupling, "rows_at_a_time", rows_at_a_time)

    def sums(group, place):
        is_root, size = group.rank == 0, X.shape[1]
        coupling = Coupling(*place, np.eye(3) if is_root else None)
        lens = Lens(np.eye(size), np.ones(size), np.ones(size), 0.5)
        features = coupling.features()
        assert place[1].centre is None  # of sparse rows
        return features, coupling.outputs(lens if is_root else None)

    (features, outputs), _ = run(sums, intercept=np.zeros(3), kind=sparse.csr_array)
    assert seen and set(seen) == {X.shape[1]}
    W = np.random.default_rng(1).normal(size=(3, X.shape[1]))
    p = softmax(rows.X @ W.T)
    blocks = p[:, :, np.newaxis] * np.eye(3) - p[:, :, np.newaxis] * p[:, np.newaxis]
    own = weight * np.einsum("ikk->i", blocks) / 3
    away = rows.X - own @ rows.X / own.sum()
    expected = (away * own[:, np.newaxis]).T @ away
    np.testing.assert_allclose(features.moments, expected, atol=1e-12)
    part = 0.5 + ((rows.X - 1) ** 2).sum(axis=1)
    expected = np.einsum("ikl,i->kl", blocks, weight * part) / (own @ part)
    np.testing.assert_allclose(outputs, expected, atol=1e-12)


def test_rows_hardly_in_doubt(on_ranks):
    """Rounding leaves nothing of ``1 - p`` where another class has 1e-40."""
    run, X, p, weight = on_ranks
    margins = 100.0 * np.arange(3)
    n_features = X.shape[1]

    def sums(group, place):
        is_root = group.rank == 0
        coupling = Coupling(*place, np.eye(3) if is_root else None)
        lens = Lens(np.eye(n_features), np.zeros(n_features), np.ones(n_features), 1.0)
        return coupling.features(), coupling.outputs(lens if is_root else None)

    W = np.zeros((3, n_features))
    (features, outputs), _ = run(sums, intercept=margins, W=W)
    p = softmax(margins[np.newaxis])[0]
    expected = (p[0] * p[1] + p[0] * p[2] + p[1] * p[2]) * 2 / 3 * weight.sum()
    assert 0 < expected < 1e-40
    assert features.weight == pytest.approx(expected, rel=1e-9, abs=0)
    pulls = np.outer(p, p)
    np.fill_diagonal(pulls, 0)
    expected = np.diag(pulls.sum(axis=0)) - pulls
    # By the mean over outputs of what they are given for.
    np.testing.assert_allclose(outputs, expected * 3 / np.trace(expected), rtol=1e-9)


@pytest.mark.parametrize("shift", [0.0, 5.0, 1e6])
def test_products_of_rows_as_they_are(on_ranks, shift):
    """Centred ones give the same; far from zero no others are taken."""
    run, X, p, weight = on_ranks
    values, intercept = RNG.normal(size=(X.shape[1], 3)), RNG.normal(size=3)

    def product(group, place):
        problem, totals, _, matrix = place
        centre = near_centre(totals, np.float64)
        assert (centre is None) == (shift > 1e5)
        params = {"fit_intercept": True, "totals": totals, "group": group}
        curvature = Objective(problem, Penalty(0.0, 0.1), **params).curvature(matrix)
        if centre is not None:
            curvature._totals = None  # which would centre rows
        return curvature.product(values, intercept)

    (total, slopes), _ = run(product, shift)
    change = X @ values + intercept
    change = p * (change - (p * change).sum(axis=1, keepdims=True))
    change *= weight[:, np.newaxis]
    np.testing.assert_allclose(total, X.T @ change, atol=1e-8)
    np.testing.assert_allclose(slopes, change.sum(axis=0), atol=1e-8)


def test_rows_in_single_precision_are_converted_once(on_ranks, monkeypatch):
    """For both products, where steps are in double precision."""
    run, X, p, weight = on_ranks
    values, dtypes = RNG.normal(size=(X.shape[1], 3)), []

    def add(total, rows, change):
        dtypes.append(rows.dtype)
        add_product(total, rows, change)

    monkeypatch.setattr(_curvature, "add_product", add)

    def product(group, place):
        centre = place[1].centre  # rows are as they are
        return Curvature(*place, centre).product(values, np.zeros(3))

    (total, _), _ = run(product, dtype=np.float32)
    assert set(dtypes) == {np.dtype(np.float64)}
    change = X @ values
    change = p * (change - (p * change).sum(axis=1, keepdims=True))
    expected = X.T @ (change * weight[:, np.newaxis])
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_lie_as_blas_is_quick_with(dtype):
    """One after the other in double precision, row by row in single."""
    X, values = RNG.normal(size=(8, 5)).astype(dtype), np.ones((5, 3), dtype=dtype)
    found = values_of(X, values)
    np.testing.assert_allclose(found, X @ values, rtol=1e-5)
    assert found.flags.f_contiguous == (dtype == np.float64)
    total = np.zeros((5, 3))
    add_product(total, X, found)
    np.testing.assert_allclose(total, X.T @ found, rtol=1e-5)


@pytest.fixture(scope="module")
def alike():
    """Ten classes in pairs, which differ by little, and 125 features."""
    rng = np.random.default_rng(0)
    y = rng.integers(10, size=400)
    X = rng.normal(size=(400, 20)) @ rng.normal(size=(20, 125)) / 3
    X += 0.1 * rng.normal(size=X.shape)
    X += 3 * rng.normal(size=(5, 125))[y // 2] + 0.3 * rng.normal(size=(10, 125))[y]
    return 100 * X, y


def fit(alike, **params):
    return SFBLogisticRegression(random_state=0, **params).fit(*alike)


@pytest.fixture
def products(monkeypatch):
    """Products of each step."""
    counts, original = [], _refine.Refinement._solve

    def solve(self, solver, face=None):
        found = original(self, solver, face)
        if self._group.rank == 0:
            counts.append(self._n_products)
        return found

    monkeypatch.setattr(_refine.Refinement, "_solve", solve)
    return counts


def test_pairs_of_classes(alike, monkeypatch, products):
    """Fewer products, as sums of outputs have units of their own."""
    found = fit(alike, n_ranks=2)
    last = found.history_[-1]
    assert found.dual_gap_ <= 1e-3 * last["objective"]
    n_now = sum(products)
    monkeypatch.setattr(_coupled_units, "_SUMS", np.inf)
    other = fit(alike, n_ranks=2).history_[-1]
    assert last["objective"] == pytest.approx(other["objective"], rel=1e-3)
    assert 0 < n_now < 0.7 * (sum(products) - n_now)


def test_single_precision_is_left(alike, monkeypatch):
    """Where steps take many products, what rounding leaves of them is too little."""
    steps, original = [], _refine.Refinement._solve

    def solve(self, solver, face=None):
        if self._group.rank == 0:
            steps.append((self._units.wants_double, self._trial.dtype))
        return original(self, solver, face)

    monkeypatch.setattr(_refine.Refinement, "_solve", solve)
    monkeypatch.setattr(_coupled_units, "_SUMS", 0.0)  # soon, while steps are large
    monkeypatch.setattr(_coupled_units, "_FACTORS", 0.0)
    monkeypatch.setattr(_refine, "_SHORT", 0.0)  # else some begin anew, by rounding
    model = fit((alike[0].astype(np.float32), alike[1]), tol=0.1)
    assert model.coef_.dtype == np.float32
    assert steps.count((True, np.float32)) == 1  # the step in which they are found
    assert steps.count((True, np.float64)) > 1


def test_rows_stay_as_they_are(alike, monkeypatch):
    """Without an intercept they are not centred, and sums are of copies."""
    found, original = [], Coupling.outputs

    def outputs(self, lens):
        found.append(original(self, lens))
        return found[-1]

    monkeypatch.setattr(Coupling, "outputs", outputs)
    before = alike[0].copy()
    fit(alike, fit_intercept=False, tol=0.1)
    assert found
    np.testing.assert_array_equal(alike[0], before)


def test_a_step_from_where_passes_have_led_is_not_long(alike, monkeypatch, products):
    monkeypatch.setattr(_truncated, "_MOST_AT_FIRST", 3)
    fit(alike)
    assert products[0] == 3 < max(products)


@pytest.fixture(scope="module")
def whole(alike):
    """A fit whose first step is short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_truncated, "_MOST_AT_FIRST", 4)
        return fit(alike, n_ranks=2)


@pytest.mark.parametrize("n_left", [1, 4])
def test_a_resumed_fit(alike, whole, interrupted, tmp_path, monkeypatch, n_left):
    """It has the same units, and its first step is as long as ever.

    Also where a rank has lost its state.
    """
    monkeypatch.setattr(_truncated, "_MOST_AT_FIRST", 4)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(whole.n_iter_ - n_left):
            fit(alike, n_ranks=2)
        known, original = [], CoupledUnits.load_state_dict

        def load(self, kept):
            original(self, kept)
            known.append(self._knows)

        def go_on(self, state):
            is_lost = n_left == 4 and self.context.group.rank == 1
            resume(self, state._replace(own=None) if is_lost else state)

        resume = Fit.load_state_dict
        monkeypatch.setattr(Fit, "load_state_dict", go_on)
        monkeypatch.setattr(CoupledUnits, "load_state_dict", load)
        resumed = fit(alike, n_ranks=2)
    assert known == [True, True]
    assert resumed.n_iter_ == whole.n_iter_
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


def test_a_rank_that_has_lost_its_state_does_as_the_others(run_ranks):
    units = make_units(has_intercept=True)
    units.note(1000)
    kept = units.state_dict()

    def flags(group, of_root, of_others):
        found = agreed(group, of_root if group.rank == 0 else of_others)
        return None if found is None else (found.get("is_due"), found.get("knows"))

    assert run_ranks(lambda group: flags(group, kept, {}), 2) == [(True, False)] * 2
    assert run_ranks(lambda group: flags(group, {}, kept), 2) == [(None, None)] * 2
    assert run_ranks(lambda group: flags(group, None, None), 2) == [None] * 2
