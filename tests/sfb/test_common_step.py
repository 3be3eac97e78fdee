"""The common length of the steps of dual ascent, against sums over all rows."""

import numpy as np
import pytest
from scipy import special

from dask_ma import SFBLogisticRegression
from dask_ma.kernels import dual_steps, row_products
from dask_ma.sfb import Exchange
from dask_ma.sfb.logistic._dual_model import DualModel
from dask_ma.sfb.model._common import CommonStep


class Parabola(CommonStep):
    taken = None

    def curvature(self, square, slopes):
        return square + slopes.sum()

    def take(self, share):
        self.taken = share


@pytest.mark.parametrize(
    ("gain", "square", "share"),
    [(3.0, 1.0, 1.0), (3.0, 2.0, 1.0), (1.5, 2.0, 0.5), (-1e-9, 2.0, 0.0)],
)
def test_the_length_is_that_of_the_highest_point(gain, square, share):
    step = Parabola()
    step.gain = 7.0
    assert step.agree(gain, square, np.ones(1)) == step.taken == share
    assert step.gain == 0  # a rank without rows adds nothing to the next iteration
    t = np.linspace(0, 1, 1001)
    rise = t * gain - t**2 * (square + 1) / 2
    assert t[rise.argmax()] == pytest.approx(share, abs=1e-3)


@pytest.fixture
def shares(monkeypatch):
    """Lengths that ranks take."""
    found, plain = [], CommonStep.agree

    def agree(self, *args):
        found.append(plain(self, *args))
        return found[-1]

    monkeypatch.setattr(CommonStep, "agree", agree)
    return found


def slow_fit(X, y, weight, alpha, n_ranks, n_passes):
    """All rows of a rank in a batch, and dense sums; W, b and the dual."""
    n, J = len(y), y.max() + 1
    weight = weight * n / weight.sum()
    rows = X - np.average(X, axis=0, weights=weight)
    scale, kappa2 = 1 / (alpha * n), 0.03 * (rows**2).sum() / n
    parts = np.array_split(np.arange(n), n_ranks)
    truth = np.eye(J)[y]
    q, W, b = truth.copy(), np.zeros((J, X.shape[1])), np.zeros(J)
    for _ in range(n_passes):
        excess = weight @ (q - truth)
        b = b - scale * kappa2 * excess
        m, new = rows @ W.T + b, q.copy()
        for part in parts:
            gram = row_products(rows[part], kappa2)
            own = new[part]
            dual_steps(m[part], gram, own, y[part], weight[part], scale=scale)
            new[part] = own
        change = weight[:, np.newaxis] * (new - q)

        def rise(t):
            p = q + t * (new - q)
            gain = weight @ (special.entr(p) - special.entr(q)).sum(axis=1)
            update = np.c_[rows, np.full(n, np.sqrt(kappa2))].T @ change
            return gain + t * (change * m).sum() - t**2 * scale / 2 * (update**2).sum()

        update = np.c_[rows, np.full(n, np.sqrt(kappa2))].T @ change
        linear = rise(1.0) + scale / 2 * (update**2).sum()
        t = min(1.0, linear / (scale * (update**2).sum()))
        assert rise(t) >= max(0, rise(1.0) - 1e-12)  # the dual never falls
        q = q + t * (new - q)
        W -= t * scale * change.T @ rows
        b -= t * scale * kappa2 * change.sum(axis=0)
    return W, b - W @ np.average(X, axis=0, weights=weight), q


@pytest.mark.each
@pytest.mark.parametrize("communication", ["factors", "full_matrix", "server"])
@pytest.mark.parametrize("n_ranks", [1, 2, 5])
def test_against_sums_over_all_rows(
    labelled, weights, shares, monkeypatch, n_ranks, communication
):
    X, y = labelled[3]
    duals = {}
    plain = DualModel.dual_objective

    def look(self, matrix):
        duals[self._group.rank] = self.dual.copy()
        return plain(self, matrix)

    monkeypatch.setattr(DualModel, "dual_objective", look)
    model = SFBLogisticRegression(
        solver="sdca",
        alpha=1e-3,
        tol=None,
        max_iter=6,
        batch_size=120,
        shuffle=False,
        n_ranks=n_ranks,
        communication=communication,
    ).fit(X, y, weights)
    W, b, q = slow_fit(X, y, weights, 1e-3, n_ranks, 6)
    found = np.concatenate([duals[rank] for rank in range(n_ranks)])
    np.testing.assert_allclose(found, q, atol=1e-9)
    objective = min(record["objective"] for record in model.history_)
    if objective == model.history_[-1]["objective"]:  # the best pass is given back
        np.testing.assert_allclose(model.coef_, W, atol=1e-8)
        np.testing.assert_allclose(model.intercept_, b, atol=1e-8)
    if n_ranks == 1:  # whose steps are safe by themselves
        assert not shares
    else:
        assert len(shares) == 6 * n_ranks and max(shares) <= 1 and min(shares) < 0.9


@pytest.mark.parametrize(
    "params",
    [{"communication__staleness": 1}, {"communication__broadcast": 1}],
    ids=str,
)
def test_late_steps_stay_short(labelled, shares, params):
    X, y = labelled[3]
    model = SFBLogisticRegression(solver="sdca", max_iter=2, tol=None, n_ranks=3)
    model.set_params(communication=Exchange(), **params).fit(X, y)
    assert not shares


def test_more_ranks_need_hardly_more_passes():
    """Where rows are many, as one rank alone needs."""
    rng = np.random.default_rng(0)
    W, X = rng.normal(size=(6, 30)), rng.normal(size=(600, 30))
    y = (X @ W.T + rng.gumbel(size=(600, 6))).argmax(axis=1)
    passes = [
        SFBLogisticRegression(
            solver="sdca",
            alpha=5e-3,
            refine=False,
            batch_size=16,
            random_state=0,
            n_ranks=n_ranks,
            communication="factors",
        )
        .fit(X, y)
        .n_iter_
        for n_ranks in (1, 4)
    ]
    assert passes[1] <= passes[0] + 2
