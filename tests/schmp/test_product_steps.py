"""Newton's steps for many coefficients of sparse rows, without their Hessian."""

from copy import deepcopy

import numpy as np
import pytest
from scipy import sparse

from dask_ma import SchMPLogisticRegression
from dask_ma.kernels import log_loss_of, softmax, softmax_hessian
from dask_ma.schmp.l1 import _agent, _blocks, _hessian, _product_steps, _search
from dask_ma.schmp.l1._blocks import Blocks
from dask_ma.schmp.l1._curvature import RowCurvature, make_curvature
from dask_ma.schmp.l1._losses import WeightedLoss
from dask_ma.schmp.l1._problem import Objective
from dask_ma.schmp.l1._search import Model, Search


def make_rows(n_rows, n_features, n_classes, density=0.15):
    """Sparse rows, and classes that all features have to do with."""
    rng = np.random.default_rng([n_rows, n_classes])
    X = sparse.random_array((n_rows, n_features), density=density, rng=rng)
    margins = X @ rng.normal(size=(n_features, n_classes)) * 4
    y = (margins + rng.gumbel(size=margins.shape)).argmax(axis=1)
    return sparse.csr_array(3 * X), y


def make_system(n_outputs, m=30, seed=0, share=0.0):
    """Products of some coefficients at a point, with the whole Hessian beside them.

    With a share, the Hessian is that of probabilities nearer to the labels.
    """
    rng = np.random.default_rng(seed)
    K = max(2, n_outputs)
    X = sparse.random_array((50, 20), density=0.2, format="csc", rng=rng)
    coordinates = rng.choice(20 * n_outputs, min(m, 20 * n_outputs), replace=False)
    order = np.lexsort((coordinates // n_outputs, coordinates % n_outputs))
    features, outputs = np.divmod(coordinates[order], n_outputs)
    weight = rng.random(50)
    loss = WeightedLoss(log_loss_of(n_outputs), rng.integers(0, K, 50), weight)
    margins = rng.normal(size=(50, n_outputs))
    rows = slice(5, 45)
    curvature = make_curvature(X[rows], features, outputs, rows, n_outputs)
    curvature.move_to(loss, margins, share)
    p = softmax(margins[rows])
    if share:
        p = (1 - share) * p + share * np.eye(K)[loss.y[rows]]
    own = X[rows].tocsr(), p, weight[rows] / (1 - share)
    hessian = softmax_hessian(
        *own,
        np.append(features, np.full(n_outputs, 20)),
        np.append(outputs, np.arange(n_outputs)),
    )
    slopes = loss.negative_slopes(margins)[rows]
    gradient = np.append((own[0].T @ slopes)[features, outputs], slopes.sum(axis=0))
    return curvature, outputs, hessian, gradient


@pytest.mark.parametrize(("n_outputs", "share"), [(1, 0.0), (4, 0.0), (4, 0.2)])
def test_products_are_those_of_the_hessian(n_outputs, share):
    curvature, outputs, hessian, gradient = make_system(n_outputs, share=share)
    m = len(outputs)
    direction = np.random.default_rng(1).normal(size=m + n_outputs)
    close = {"rtol": 1e-10, "atol": 1e-13}
    np.testing.assert_allclose(
        curvature.product(direction), hessian @ direction, **close
    )
    np.testing.assert_allclose(curvature.gradient(), gradient, **close)
    squares, border, corner = curvature.blocks()
    found = []
    for output in range(n_outputs):
        own = np.flatnonzero(outputs == output)
        found.append(hessian[np.ix_(own, own)].ravel())
        np.testing.assert_allclose(border[own], hessian[own, m + output], **close)
    np.testing.assert_allclose(squares, np.concatenate(found), **close)
    np.testing.assert_allclose(corner, np.diag(hessian)[m:], **close)


@pytest.mark.parametrize("has_shift", [False, True])
@pytest.mark.parametrize("together", [1, 12, 400])
def test_inverse_within_outputs(monkeypatch, together, has_shift):
    """However many classes are done in one call, and with the intercepts."""
    monkeypatch.setattr(_blocks, "_TOGETHER", together)
    curvature, outputs, hessian, _ = make_system(4)
    m = len(outputs)
    blocks = Blocks(*curvature.blocks(), outputs, has_shift)
    of_all = np.append(outputs, np.arange(4))
    whole = np.where(of_all[:, np.newaxis] == of_all, hessian, 0.0)
    free = np.arange(0, m, 2)
    used = np.append(free, np.arange(m, m + 4)) if has_shift else free
    l2 = np.full(m, 0.1)
    vector = np.zeros(m + 4)
    vector[used] = np.random.default_rng(2).normal(size=len(used))
    system = whole + np.diag(np.append(l2, np.zeros(4)))
    expected = np.zeros(m + 4)
    expected[used] = np.linalg.solve(system[np.ix_(used, used)], vector[used])
    found = blocks.inverse(free, l2)(vector)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_blocks_of_other_coefficients():
    """What is not known of two of them is taken for 0."""
    curvature, outputs, hessian, _ = make_system(1, m=20)
    blocks = Blocks(*curvature.blocks(), outputs, True)
    diagonal = curvature.diagonal()
    np.testing.assert_allclose(diagonal, np.diag(hessian)[:-1], rtol=1e-12)
    changed = blocks.with_others(np.array([4, -1, 2]), diagonal[[4, 7, 2]])
    system = np.zeros((4, 4))
    system[np.ix_([0, 2, 3], [0, 2, 3])] = hessian[np.ix_([4, 2, 20], [4, 2, 20])]
    system[1, 1] = diagonal[7]
    vector = np.array([1.0, -2.0, 3.0, 0.5])
    found = changed.inverse(np.arange(3), np.zeros(3))(vector)
    np.testing.assert_allclose(found, np.linalg.solve(system, vector), rtol=1e-6)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_blocks_are_kept_near_the_optimum(monkeypatch, layout):
    monkeypatch.setattr(_product_steps, "_FEWEST", 0)
    X, y = make_rows(200, 150, 2, density=0.05)
    made, blocks = [], RowCurvature.blocks

    def noted(self):
        made.append(self)
        return blocks(self)

    monkeypatch.setattr(RowCurvature, "blocks", noted)
    fit = SchMPLogisticRegression(tol=1e-10, n_ranks=2, layout=layout).fit(X, y)
    assert fit.dual_gap_ < 1e-10
    assert 0 < len(made) / 2 < fit.n_iter_ - 1


@pytest.mark.parametrize("positive", [False, True])
def test_a_search_ends_at_the_optimum_of_the_model(monkeypatch, positive):
    """From a point whose signs are wrong, with weights that are not even."""
    monkeypatch.setattr(_search, "_LEFT", 1e-9)
    monkeypatch.setattr(_search, "_MOST_TURNS", 100)
    curvature, outputs, hessian, gradient = make_system(4, m=60)
    m = len(outputs)
    rng = np.random.default_rng(3)
    coef = np.abs(rng.normal(size=m)) if positive else rng.normal(size=m)
    l1, l2 = rng.uniform(0.05, 0.3, m), np.full(m, 0.02)
    blocks = Blocks(*curvature.blocks(), outputs, True)
    model = Model(blocks, -gradient, coef, np.arange(m), l1, l2, positive, null=1e-6)
    search = Search(model)
    asking = search.turns()
    direction = next(asking)
    try:
        while True:
            direction = asking.send(hessian @ direction)
    except StopIteration:
        pass
    step = np.append(search.coef - coef, search.shift)
    slopes = hessian @ step - gradient
    slopes[:m] += l2 * search.coef
    np.testing.assert_allclose(slopes[m:], 0, atol=1e-5)
    at_zero = search.coef == 0
    assert 0 < np.count_nonzero(at_zero) < m
    pull = -slopes[:m] if positive else np.abs(slopes[:m])
    assert (pull <= l1 + 1e-5)[at_zero].all()
    signed = slopes[:m] + l1 * np.sign(search.coef)
    np.testing.assert_allclose(signed[~at_zero], 0, atol=1e-5)
    assert not positive or search.coef.min() >= 0
    rise = l1 @ (np.abs(search.coef) - np.abs(coef))
    rise += l2 @ (search.coef**2 - coef**2) / 2
    value = step @ hessian @ step / 2 - gradient @ step + rise
    assert search.gain == pytest.approx(-value, rel=1e-6)


@pytest.mark.parametrize(
    ("n_classes", "n_ranks", "layout", "params"),
    [
        (2, 1, "rows", {}),
        (3, 3, "rows", {}),
        (2, 3, "rows", {"l1_ratio": 0.7, "fit_intercept": False}),
        (3, 2, "columns", {"l1_ratio": 0.7, "fit_intercept": False}),
    ],
    ids=str,
)
def test_the_optimum_is_that_of_hessians(
    monkeypatch, n_classes, n_ranks, layout, params
):
    X, y = make_rows(80, 40, n_classes)
    weights = np.linspace(0.5, 2, 40)
    fits = []
    for fewest in (0, 10**9):
        monkeypatch.setattr(_product_steps, "_FEWEST", fewest)
        fit = SchMPLogisticRegression(
            2e-3,
            tol=1e-9,
            n_ranks=n_ranks,
            layout=layout,
            feature_weights=weights,
            **params,
        )
        fits.append(fit.fit(X, y))
    by_products, by_hessians = fits
    assert by_products.coef_.any()
    np.testing.assert_allclose(
        by_products.coef_, by_hessians.coef_, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        by_products.intercept_, by_hessians.intercept_, atol=1e-6
    )
    assert by_products.n_iter_ <= by_hessians.n_iter_ + 2


def test_no_hessian_of_many_coefficients(monkeypatch):
    """Its size is the square of what is at hand."""
    monkeypatch.setattr(_product_steps, "_FEWEST", 150)
    X, y = make_rows(250, 600, 4, density=0.05)
    sizes, own = [], _hessian.HessianCache._own

    def noted(self, coordinates):
        sizes.append(len(coordinates))
        return own(self, coordinates)

    monkeypatch.setattr(_hessian.HessianCache, "_own", noted)
    fit = SchMPLogisticRegression(1e-4, n_ranks=1).fit(X, y)
    assert max(record["working_set"] for record in fit.history_) > 300
    assert fit.dual_gap_ <= fit.tol * np.log(4)
    assert all(size < 150 for size in sizes)


def test_dense_rows_and_many_stored_elements(monkeypatch):
    """A matrix with all elements of each coefficient would be too large."""
    X, y = make_rows(80, 40, 4)
    monkeypatch.setattr(_product_steps, "_FEWEST", 0)
    made = []
    make = _product_steps.make_curvature

    def noted(*args):
        made.append(args)
        return make(*args)

    monkeypatch.setattr(_product_steps, "make_curvature", noted)
    fit = SchMPLogisticRegression(2e-3, tol=1e-8, n_ranks=2)
    expected = fit.fit(X, y).history_[-1]["objective"]
    assert made
    made.clear()
    found = [fit.fit(X.toarray(), y).history_[-1]["objective"]]
    assert not made
    monkeypatch.setattr(_product_steps, "_FEW_STORED", 10)
    monkeypatch.setattr(_product_steps, "_MOST_STORED", 0)
    found.append(fit.fit(X, y).history_[-1]["objective"])
    assert not any(len(args[1]) > 10 for args in made)
    np.testing.assert_allclose(found, expected, atol=2e-8)


def test_features_that_all_classes_have(monkeypatch):
    """To all of their coefficients something can be added, and some become zero."""
    monkeypatch.setattr(_product_steps, "_FEWEST", 0)
    X, y = make_rows(200, 12, 3, density=0.4)
    X = sparse.hstack([X, X[:, :4]], format="csr")  # and columns that are alike
    fit = SchMPLogisticRegression(1e-4, tol=1e-8, n_ranks=1).fit(X, y)
    assert fit.dual_gap_ <= 1e-8 * np.log(3)
    assert (np.sort(fit.coef_, axis=0)[1] == 0).all()
    assert np.count_nonzero(fit.coef_) > 16


def test_second_derivatives_by_many_intercepts_are_used_again(monkeypatch):
    X, y = make_rows(150, 40, 12)
    counts = {True: 0, False: 0}
    slopes = Objective._intercept_slopes

    def noted(self, is_bent):
        counts[is_bent] += 1
        return slopes(self, is_bent)

    monkeypatch.setattr(Objective, "_intercept_slopes", noted)
    fit = SchMPLogisticRegression(n_ranks=1).fit(X, y)
    assert (
        np.abs(fit.predict_proba(X).mean(axis=0) - np.bincount(y) / 150).max() < 1e-12
    )
    assert 0 < counts[True] < counts[False]


def test_hessians_end_what_products_do_not(monkeypatch):
    """Gradients of counts in large units stay too large for a small gap."""
    monkeypatch.setattr(_product_steps, "_FEWEST", 0)
    rng = np.random.default_rng([1, 60, 3])
    X = sparse.random_array((60, 80), density=0.1, rng=rng)
    X = sparse.csr_array(X.multiply(100 ** rng.random(80)))
    y = rng.integers(0, 3, 60)
    fit = SchMPLogisticRegression(1e-4, tol=1e-8, max_iter=40, n_ranks=2)
    assert fit.fit(X, y).dual_gap_ <= 1e-8 * np.log(3)


def test_conjugate_gradients_end_after_some_products():
    """Which signs are right is seen before such a system is solved."""
    m = 60
    bent = np.logspace(0, 8, m)
    blocks = Blocks(np.ones(m), np.zeros(m), np.ones(m), np.arange(m), has_shift=False)
    l1, no = np.ones(m), np.zeros(m)
    slopes = np.append(-l1, no)
    model = Model(blocks, slopes, l1, np.arange(m), l1, no, False, null=1.0)
    is_free = np.append(l1, no) > 0
    asking = Search(model)._conjugate(-slopes, is_free, lambda right: right)
    direction, n_products = next(asking), 1
    with pytest.raises(StopIteration):
        while n_products < 100:
            direction = asking.send(np.append(bent, no) * direction)
            n_products += 1
    assert n_products <= 15


def test_intercepts_of_very_uneven_classes():
    """Second derivatives of the start would lead there too slowly."""
    y = np.repeat(np.arange(5), [3000, 300, 30, 3, 1])
    X = sparse.csr_array(np.ones((len(y), 1)))
    fit = SchMPLogisticRegression(10.0, n_ranks=1)
    fit.fit(X, y)
    np.testing.assert_allclose(fit.predict_proba(X[:1])[0], np.bincount(y) / len(y))


@pytest.mark.parametrize("far", [0.5, 1.0, 3.0])
def test_the_least_point_along_a_direction_through_zeros(far):
    """Beside the model at many points of it; some coefficients pass zero before."""
    rng = np.random.default_rng(3)
    root = rng.normal(size=(5, 5))
    hessian, l1 = root @ root.T, np.full(5, 0.3)
    coef = np.array([0.1, -0.2, 0.4, -1.0, 2.0])
    change = -far * np.sign(coef) * rng.uniform(0.3, 1, 5)
    slopes = -3 * hessian @ change
    none, outputs = np.zeros(5), np.zeros(5, dtype=int)
    blocks = Blocks(hessian.ravel().copy(), none, np.ones(1), outputs, False)
    model = Model(
        blocks, np.append(slopes, 0.0), coef, np.arange(5), l1, none, False, 1.0
    )
    search = Search(model)
    step, bounds = np.append(change, 0.0), np.append(l1 * np.sign(coef), 0.0)
    gain = search._go_through_zeros(step, np.append(hessian @ change, 0.0), bounds)

    def value(point):
        moved = point - coef
        bent = np.einsum("...i,ij,...j", moved, hessian, moved) / 2
        return moved @ slopes + bent + np.abs(point) @ l1

    points = coef + np.linspace(0, 1, 20_001)[:, np.newaxis] * change
    assert value(search.coef) <= value(points).min() + 1e-9
    assert gain == pytest.approx(value(coef) - value(search.coef), rel=1e-9)
    assert (np.sign(search.coef) != np.sign(coef)).any()


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_labels_take_no_second_derivatives_away(share):
    """However near the probabilities are to them: a step is never longer for it."""
    nearer, here = make_system(4, share=share)[0], make_system(4)[0]
    directions = np.eye(len(here.gradient()))
    differences = [nearer.product(own) - here.product(own) for own in directions]
    assert np.linalg.eigvalsh(differences).min() >= -1e-12
    assert np.linalg.eigvalsh(differences).max() > 0
    np.testing.assert_allclose(nearer.gradient(), here.gradient(), rtol=1e-12)


def test_steps_back_from_far_off_are_few(monkeypatch):
    """Where rows are wrong by far, a step is of use only with more curvature there."""
    monkeypatch.setattr(_product_steps, "_FEWEST", 0)
    monkeypatch.setattr(_agent, "without_poor_start", lambda _, params: params)
    X, y = make_rows(120, 40, 5, density=0.1)
    lengths, take_length = [], _product_steps.ProductSteps.take_length

    def noted(self, length):
        lengths.append(length)
        take_length(self, length)

    monkeypatch.setattr(_product_steps.ProductSteps, "take_length", noted)
    start = SchMPLogisticRegression(1e-5, warm_start=True, n_ranks=1)
    start.fit(X, (y + 1) % 5).set_params(alpha=1e-3)
    objectives, counts = [], []
    for most in (0.5, 0.0):
        monkeypatch.setattr(_product_steps, "_MOST_SHARE", most)
        fit = deepcopy(start)
        lengths.clear()
        objectives.append(fit.fit(X, y).history_[-1]["objective"])
        assert min(lengths) < 1e-3  # the first one
        counts.append(len(lengths))
    assert objectives[0] == pytest.approx(objectives[1], abs=2e-4 * np.log(5))
    assert counts[0] < 0.75 * counts[1]


@pytest.mark.parametrize(("fewest", "n_ranks"), [(0, 1), (2000, 2)])
def test_a_start_from_rows_of_another_scale(monkeypatch, fewest, n_ranks):
    """Where all rows are wrong by far, no second derivative is left to step by."""
    monkeypatch.setattr(_product_steps, "_FEWEST", fewest)
    X, y = make_rows(150, 100, 8, density=0.05)
    fit = SchMPLogisticRegression(1e-3, max_iter=20, n_ranks=n_ranks)
    expected = fit.fit(100 * X, y).history_[-1]["objective"]
    fit.fit(X, (y + 1) % 8).set_params(warm_start=True)
    found = fit.fit(100 * X, y).history_[-1]["objective"]
    assert found == pytest.approx(expected, abs=1e-3 * np.log(8))


def test_a_start_that_is_better_than_none_is_taken():
    X, y = make_rows(150, 60, 6, density=0.05)
    fit = SchMPLogisticRegression(1e-3).fit(X, y)
    n_rounds = fit.n_iter_
    assert fit.set_params(warm_start=True).fit(1.01 * X, y).n_iter_ < n_rounds


def test_products_go_on_while_they_lead_on(monkeypatch):
    """Steps that gain hardly anything may still bring the largest gradient down."""
    monkeypatch.setattr(_product_steps, "_FEWEST", 0)
    rng = np.random.default_rng(300)
    X = sparse.random_array((150, 100), density=0.05, rng=rng)
    X = sparse.csr_array(X.multiply(30 ** rng.random(100)))
    margins = X @ rng.normal(size=(100, 4))
    y = (margins + rng.gumbel(size=margins.shape)).argmax(axis=1)
    made, whole = [], _hessian.HessianCache._whole

    def noted(self, *args):
        made.append(args)
        return whole(self, *args)

    monkeypatch.setattr(_hessian.HessianCache, "_whole", noted)
    fit = SchMPLogisticRegression(1e-4, tol=1e-8, n_ranks=1)
    assert fit.fit(X, y).dual_gap_ <= 1e-8 * np.log(4)
    assert not made
    monkeypatch.setattr(_product_steps, "_LEADS_ON", 0.0)
    assert fit.fit(X, y).dual_gap_ <= 1e-8 * np.log(4)
    assert made
