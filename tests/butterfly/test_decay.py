"""What the penalty leaves of rows, made good for all of them at once."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma import ButterflySGDClassifier
from dask_ma.butterfly import _lazy_steps, _steps
from dask_ma.butterfly._changes import scale_rows
from dask_ma.butterfly._decay import Decay, decay_range


@pytest.mark.parametrize("n_problems", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("has_preconditioner", [False, True])
@pytest.mark.parametrize("amount", [1e-4, 3.0])
def test_all_rows_are_shrunk_as_some_are(n_problems, dtype, has_preconditioner, amount):
    rng = np.random.default_rng(0)
    n_features = 30_000
    preconditioner = None
    if has_preconditioner:
        preconditioner = np.exp(rng.normal(size=n_features)).astype(dtype)
    bounds, amounts = decay_range(preconditioner), np.full(3, amount)
    decay = Decay(preconditioner, bounds, n_features, np.dtype(dtype), 1e9, amounts)
    for amount in amounts:
        decay.advance(amount)
    weights = rng.normal(size=(n_features + 1, n_problems)).astype(dtype)
    expected, rows = weights.copy(), np.arange(n_features + 1)
    scale_rows(expected, rows, decay.factors(rows))
    decay.shrink(weights)
    np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize("side", [-1, 0, 1])
def test_elements_at_the_ends_of_intervals(side):
    """Of the first and the last one rounding may take them out."""
    ends = 2.0 ** (np.arange(81) / 4)
    if side:
        ends = np.nextafter(ends, np.inf * side)
    amounts = np.array([1.0, 0.5])
    decay = Decay(ends, (1.0, 2.0**20), len(ends), np.dtype(float), 1e9, amounts)
    for amount in amounts:
        decay.advance(amount)
    expected = 1 / np.multiply.reduce(1 + np.outer(amounts, ends))
    found = decay.factors(np.arange(len(ends)))[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.parametrize("n_features", [100, 1000])
@pytest.mark.parametrize("powers", [1, 7])
def test_rows_at_the_ends_of_intervals_begin_anew_with_them(n_features, powers):
    """Also where many are looked up, on shorter parts of the intervals."""
    elements = np.exp2(np.arange(n_features) % powers)
    for total in np.geomspace(0.3, 8, 12):
        amounts = np.full(40, total / 40)
        bounds = 1.0, 2.0 ** (powers - 1)
        decay = Decay(elements, bounds, n_features, np.dtype(float), 2.0, amounts)
        left = np.ones(n_features)
        for amount in amounts:
            decay.advance(amount)
            if (due := decay.due) is not None:
                rows = decay.rows_from(due)
                left[rows] *= decay.factors(rows)[:, 0]
                decay.restart(due)
        left *= decay.factors(np.arange(n_features))[:, 0]
        shrunk = 40 * np.log1p(amounts[0] * elements)
        np.testing.assert_allclose(np.log(left), -shrunk, rtol=1e-11)


@pytest.mark.parametrize("n_features, is_whole", [(1000, True), (20_000, False)])
def test_rows_are_picked_where_few_have_values(monkeypatch, n_features, is_whole):
    """At the end of a pass: no list of most rows is made, nor are they picked by it."""
    rng = np.random.default_rng(1)
    places = rng.integers(0, n_features, (600, 4)).ravel()
    values, ends = rng.normal(size=2400), np.arange(0, 2401, 4)
    X = sparse.csr_matrix((values, places, ends), shape=(600, n_features))
    X.sum_duplicates()
    shrunk, picked = [], []
    shrink = Decay.shrink

    def noted(self, weights):
        shrunk.append(len(weights))
        shrink(self, weights)

    def noted_rows(array, rows, factors):
        picked.append(len(rows))
        scale_rows(array, rows, factors)

    monkeypatch.setattr(Decay, "shrink", noted)
    monkeypatch.setattr(_lazy_steps, "scale_rows", noted_rows)
    model = ButterflySGDClassifier(
        batch_size=5, max_iter=2, tol=None, random_state=0, n_ranks=1, refine=None
    )
    model.fit(X, rng.integers(0, 2, 600))
    assert len(shrunk) == (2 if is_whole else 0)
    # Rows that are shrunk to nothing before the end of the pass are few.
    assert sum(n > 100 for n in picked) == (0 if is_whole else 2)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_batch_makes_no_gradient_where_rows_may_be_named_twice(
    monkeypatch, n_classes
):
    """The non-zeros of a batch are its gradient's entries; they need no other list."""
    rng = np.random.default_rng(1)
    places = rng.integers(0, 5000, (200, 4)).ravel()
    values, ends = rng.normal(size=800), np.arange(0, 801, 4)
    X = sparse.csr_matrix((values, places, ends), shape=(200, 5000))
    X.sum_duplicates()
    calls = []
    descend = _steps.descend

    def noted(*args, **others):
        calls.append(args)
        descend(*args, **others)

    monkeypatch.setattr(_steps, "descend", noted)
    model = ButterflySGDClassifier(
        batch_size=10, max_iter=1, tol=None, random_state=0, n_ranks=1, refine=None
    )
    model.fit(X, rng.integers(0, n_classes, 200))
    assert len(calls) == (0 if n_classes == 2 else 20)


@pytest.mark.parametrize("n_classes, is_made", [(2, False), (3, True)])
def test_a_batch_keeps_its_columns_where_nothing_is_named_once(
    monkeypatch, n_classes, is_made
):
    """To take the others away takes a look at all elements; the bits are the same."""
    rng = np.random.default_rng(1)
    places = rng.integers(0, 5000, (200, 4)).ravel()
    values, ends = rng.normal(size=800), np.arange(0, 801, 4)
    X = sparse.csr_matrix((values, places, ends), shape=(200, 5000))
    X.sum_duplicates()
    y = rng.integers(0, n_classes, 200)
    calls = []
    for kind in (sparse.csr_matrix, sparse.csr_array):

        def noted(self, *shape, resize=kind.resize):
            calls.append(shape)
            resize(self, *shape)

        monkeypatch.setattr(kind, "resize", noted)
    params = {"batch_size": 5, "max_iter": 2, "tol": None, "random_state": 0}
    model = ButterflySGDClassifier(**params, n_ranks=1, refine=None).fit(X, y)
    assert bool(calls) == is_made
    monkeypatch.setattr(_lazy_steps.LazySteps, "_is_wide", lambda self, rows: False)
    other = ButterflySGDClassifier(**params, n_ranks=1, refine=None).fit(X, y)
    assert calls
    np.testing.assert_array_equal(model.coef_, other.coef_)
