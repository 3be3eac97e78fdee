"""Private parts of scikit-learn do what its public ones do."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import SGDClassifier, SGDRegressor

from dask_ma import _sklearn

N, D = 30, 5
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(3, N, D)) * (RNG.random((3, N, D)) < 0.6)
WEIGHTS = RNG.uniform(0.1, 3, (3, N))
CLASSIFIERS = ("hinge", "log_loss", "modified_huber", "perceptron", "squared_error")
REGRESSORS = ("squared_error", "huber", "epsilon_insensitive")


@pytest.fixture
def checks(monkeypatch):
    """How often rows are checked."""
    calls = []
    for kind in (SGDClassifier, SGDRegressor):
        plain = kind._partial_fit

        def counted(self, *args, plain=plain, **kwargs):
            calls.append(1)
            return plain(self, *args, **kwargs)

        monkeypatch.setattr(kind, "_partial_fit", counted)
    return calls


def begun(kind, loss, shuffle, dtype):
    """An estimator that goes on from weights, as the ranks have it."""
    sgd = kind(loss=loss, learning_rate="invscaling", eta0=0.1, shuffle=shuffle)
    shape = (1, D) if kind is SGDClassifier else (D,)
    sgd.coef_, sgd.intercept_ = np.zeros(shape, dtype), np.zeros(1, dtype)
    sgd.t_, sgd.random_state = 1.0, np.random.RandomState(0)
    return sgd


@pytest.mark.pairs
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array, sparse.csr_matrix])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("is_weighted", [True, False])
@pytest.mark.parametrize("class_weight", [None, {0: 1.0, 1: 2.5}], ids=str)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        *((SGDClassifier, loss) for loss in CLASSIFIERS),
        *((SGDRegressor, loss) for loss in REGRESSORS),
    ],
)
def test_passes_without_checks_are_those_of_partial_fit(
    checks, kind, loss, shuffle, class_weight, is_weighted, dtype, make
):
    ours, theirs = (begun(kind, loss, shuffle, dtype) for _ in range(2))
    classes = {"classes": [0, 1]} if kind is SGDClassifier else {}
    for rows, weight in zip(ROWS, WEIGHTS, strict=True):
        X = make(rows.astype(dtype))
        y = rows[:, 0] + 0.1
        if kind is SGDClassifier:
            y = (y > 0).astype(np.intp)
            ours.class_weight = theirs.class_weight = class_weight
        weight = weight if is_weighted else None
        _sklearn.pass_over(ours, X, y, weight)
        n_checks = len(checks)
        theirs.partial_fit(X, y, sample_weight=weight, **classes)
        np.testing.assert_array_equal(ours.coef_, theirs.coef_)
        np.testing.assert_array_equal(ours.intercept_, theirs.intercept_)
        assert ours.coef_.dtype == dtype
        assert ours.t_ == theirs.t_
    assert n_checks == 2  # of theirs
    assert ours.coef_.any()


@pytest.mark.parametrize("kind", [SGDClassifier, SGDRegressor])
def test_a_method_with_other_arguments_is_not_called(checks, kind):
    """Then all rows are checked, and the model is the same."""
    name = "_fit_binary" if kind is SGDClassifier else "_fit_regressor"
    plain = getattr(kind, name)

    def changed(self, X, y, *args, callback=None, **kwargs):
        return plain(self, X, y, *args, **kwargs)

    other = type("Other", (kind,), {name: changed})
    assert _sklearn._arguments(other, name) is None
    assert _sklearn._arguments(object, name) is None
    y = (ROWS[0, :, 0] > 0).astype(np.intp)
    models = [begun(one, "squared_error", True, np.float64) for one in (other, kind)]
    for n_checks, sgd in zip((3, 3), models, strict=True):
        for _ in range(3):
            _sklearn.pass_over(sgd, ROWS[0], y, None)
        assert len(checks) == n_checks
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)


@pytest.mark.parametrize("kind", [SGDClassifier, SGDRegressor])
def test_long_indices_are_refused_as_by_scikit_learn(kind):
    X = sparse.csr_array(ROWS[0])
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    sgd = begun(kind, "squared_error", True, np.float64)
    with pytest.raises(ValueError, match="32-bit integer indices"):
        _sklearn.pass_over(sgd, X, (ROWS[0, :, 0] > 0).astype(np.intp), None)
