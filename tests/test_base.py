"""What the estimators share: lazy predictions, scores, the way through a fit."""

from dataclasses import dataclass
from decimal import Decimal

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from dask_ma import (
    MALDA,
    MASGDClassifier,
    MASGDRegressor,
    SchMPLDA,
    SFBDictionaryLearning,
    SFBMetricLearner,
)
from dask_ma._scores import accuracy_of_places, blockwise_accuracy
from dask_ma.base import DistributedEstimator
from dask_ma.comm import allreduce
from dask_ma.data import build_shard, describe
from dask_ma.engine import _fit
from dask_ma.supervised import FitResult

PARAMS = {"max_iter": 3, "tol": None, "random_state": 0}
NAMES = np.array(["eel", "fox", "gnu"])
CHUNKS = (20, 0, 35, 5)


@pytest.fixture(scope="module")
def data():
    """60 rows of 4 features, three classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    return rng.normal(size=(60, 4)) + 2 * np.eye(3, 4)[y], y


@pytest.mark.parametrize(
    "model", [MASGDClassifier(), MASGDRegressor(), SFBDictionaryLearning(2)]
)
@pytest.mark.parametrize("columns_first", [False, True])
def test_rows_are_not_copied_before_they_are_cut(
    monkeypatch, data, model, columns_first
):
    X, y = data
    X = np.asfortranarray(X) if columns_first else X
    given = []
    run = DistributedEstimator._run

    def noted(self, agent, params, found, *args, **kwargs):
        given.append(found[0])
        return run(self, agent, params, found, *args, **kwargs)

    monkeypatch.setattr(DistributedEstimator, "_run", noted)
    clone(model).set_params(max_iter=2, n_ranks=2).fit(X, y)
    assert len(given) == 1 and np.shares_memory(given[0], X)


@pytest.fixture(scope="module", params=["two", "three"])
def classifier(request, data):
    """Fitted with two or three classes, on names of animals."""
    return fit_classifier(data, request.param)


@pytest.fixture(scope="module")
def regressor(data):
    return fit_regressor(data)


def fit_classifier(data, n_classes):
    X, y = data
    y = np.minimum(y, 1) if n_classes == "two" else y
    return MASGDClassifier("log_loss", alpha=0.01, **PARAMS).fit(X, NAMES[y])


def fit_regressor(data):
    X, y = data
    return MASGDRegressor(**PARAMS).fit(X, y + X[:, 0])


def lazy(X, chunks=CHUNKS):
    return da.from_array(X, chunks=(chunks, *X.shape[1:]))


def unknown(values, chunks=20):
    keys = da.from_array(values, chunks=(chunks, *values.shape[1:])).to_delayed()
    shape = (np.nan, *values.shape[1:])
    parts = [da.from_delayed(key, shape, values.dtype) for key in keys.ravel()]
    return da.concatenate(parts, allow_unknown_chunksizes=True)


METHODS = ["predict", "decision_function", "predict_proba", "predict_log_proba"]


# -- Predictions ---------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_lazy_predictions(classifier, data, method):
    X, _ = data
    eager = getattr(classifier, method)(X)
    result = getattr(classifier, method)(lazy(X))
    assert isinstance(result, da.Array)
    assert result.shape == eager.shape
    assert result.dtype == eager.dtype
    assert result.chunks[0] == CHUNKS
    assert len(result.chunks) == eager.ndim
    assert isinstance(result._meta, np.ndarray)
    assert (result._meta.ndim, result._meta.dtype) == (eager.ndim, eager.dtype)
    da.utils.assert_eq(result, eager)


def test_lazy_values_of_a_regressor(regressor, data):
    X, _ = data
    result = regressor.predict(lazy(X))
    assert result.chunks == (CHUNKS,)
    da.utils.assert_eq(result, regressor.predict(X))


@pytest.mark.parametrize("method", METHODS)
def test_predictions_of_unknown_length(classifier, data, method):
    X, _ = data
    result = getattr(classifier, method)(unknown(X))
    assert np.isnan(result.shape[0])
    assert result.shape[1:] == getattr(classifier, method)(X[:1]).shape[1:]
    np.testing.assert_array_equal(result.compute(), getattr(classifier, method)(X))


@pytest.mark.parametrize("convert", [sparse.csr_matrix, sparse.csr_array])
def test_predictions_of_sparse_blocks(classifier, data, convert):
    X, _ = data
    result = classifier.decision_function(lazy(X).map_blocks(convert))
    np.testing.assert_allclose(result.compute(), classifier.decision_function(X))


def test_predictions_of_a_frame(data):
    frame = pd.DataFrame(data[0], columns=list("abcd"))
    model = MASGDClassifier(**PARAMS).fit(frame, data[1])
    result = model.predict(dd.from_pandas(frame, npartitions=3))
    np.testing.assert_array_equal(result.compute(), model.predict(frame))


@pytest.mark.parametrize("method", METHODS)
def test_predictions_of_no_rows(classifier, method):
    n_columns = getattr(classifier, method)(np.zeros((1, 4))).shape[1:]
    result = getattr(classifier, method)(da.zeros((0, 4), chunks=(1, 4)))
    assert result.compute().shape == (0, *n_columns)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_types_of_lazy_values(data, dtype):
    X = (10 * data[0]).astype(dtype)
    for fit_dtype in (np.float32, np.float64):
        model = MASGDClassifier(**PARAMS).fit(data[0].astype(fit_dtype), data[1])
        result = model.decision_function(lazy(X))
        assert result.dtype == result.compute().dtype
        eager = model.decision_function(X)
        np.testing.assert_allclose(result.compute(), eager, rtol=1e-5)
        assert result.dtype == eager.dtype


def test_predictions_are_those_of_the_time_of_the_call(data):
    """A later fit does not change what an earlier call is going to compute."""
    X, y = data
    model = MASGDClassifier(**PARAMS).fit(X, y)
    eager = model.decision_function(X)
    result = model.decision_function(lazy(X))
    model.partial_fit(X, y)
    np.testing.assert_array_equal(result.compute(), eager)
    assert not np.array_equal(model.decision_function(X), eager)


def test_predictions_are_lazy(classifier):
    def fail(block):
        raise AssertionError("computed")

    X = da.zeros((10, 4), chunks=(5, 4)).map_blocks(fail, meta=np.zeros((0, 4)))
    result = classifier.predict(X)
    with pytest.raises(AssertionError, match="computed"):
        result.compute()


def test_column_chunks_are_joined(classifier, data):
    X, _ = data
    with pytest.warns(UserWarning, match="X has 2 chunks of columns"):
        result = classifier.predict(da.from_array(X, chunks=(20, 2)))
    np.testing.assert_array_equal(result.compute(), classifier.predict(X))


def test_predictions_on_a_cluster(classifier, data, any_client):
    X, _ = data
    eager = classifier.predict_proba(X)
    with any_client.as_current():
        result = classifier.predict_proba(lazy(X))
        np.testing.assert_array_equal(result.compute(), eager)


def test_large_models_are_sent_to_workers(data, inproc_client, configured):
    X, _ = data
    model = MASGDClassifier(**PARAMS).fit(*data)
    with inproc_client.as_current(), configured({"dask-ma.data.embed-limit": "1 B"}):
        result = model.decision_function(lazy(X))
        futures = [
            value
            for value in result.__dask_graph__().values()
            if type(value).__name__ == "Future"
        ]
        np.testing.assert_array_equal(result.compute(), model.decision_function(X))
    assert futures


# -- Scores --------------------------------------------------------------------------


@pytest.fixture(params=["two", "three", "regression"])
def scored(request, data):
    """A fitted estimator and the true y."""
    X, y = data
    if request.param == "regression":
        return fit_regressor(data), y + X[:, 0] ** 2
    model = fit_classifier(data, request.param)
    return model, NAMES[np.minimum(y, len(model.classes_) - 1)[::-1]]


@pytest.mark.parametrize("weighted", [False, True])
def test_score_of_dask_data(scored, data, weighted):
    model, y = scored
    X, _ = data
    weight = np.linspace(0, 2, 60) if weighted else None
    expected = model.score(X, y, weight)
    weights = [weight, lazy(weight, 30)] if weighted else [None]
    for column in (y, lazy(y), lazy(y, 7), y.tolist()):
        for given in weights:
            assert model.score(lazy(X), column, given) == pytest.approx(expected)


def test_score_of_a_frame(regressor, data):
    X, y = data
    frame = pd.DataFrame(X, columns=list("abcd"))
    target = pd.Series(y + X[:, 0])
    model = MASGDRegressor(**PARAMS).fit(frame, target)
    score = model.score(
        dd.from_pandas(frame, npartitions=3), dd.from_pandas(target, npartitions=3)
    )
    assert score == pytest.approx(model.score(frame, target))


@pytest.mark.parametrize("kind", ["memory", "same blocks", "unknown"])
def test_score_where_lengths_are_unknown(scored, data, kind):
    model, y = scored
    X, _ = data
    column = {"memory": y, "same blocks": lazy(y, 20), "unknown": unknown(y)}[kind]
    expected = model.score(X, y)
    assert model.score(unknown(X), column) == pytest.approx(expected)


@pytest.mark.parametrize("convert", [False, True])
@pytest.mark.parametrize("kind", ["objects", "Arrow", "array", "memory"])
def test_score_of_decimals(data, kind, convert):
    X, y = data
    texts = [f"{value:.3f}" for value in y + X[:, 0]]
    column = pd.Series(list(map(Decimal, texts)))
    model = MASGDRegressor(**PARAMS).fit(X, column)
    with dask.config.set({"dataframe.convert-string": convert}):
        rows = dd.from_pandas(pd.DataFrame(X), npartitions=3)
        if kind == "Arrow":
            column = column.astype(pd.ArrowDtype(pa.decimal128(6, 3)))
        target = dd.from_pandas(column, npartitions=3)
        if kind == "array":
            rows, target = lazy(X), lazy(column.to_numpy())
        elif kind == "memory":
            target = column
        expected = model.score(X, np.array(texts, dtype=float))
        assert model.score(rows, target) == pytest.approx(expected)
        np.testing.assert_allclose(
            clone(model).fit(rows, target).coef_, model.coef_, rtol=1e-6
        )


@pytest.mark.parametrize("y", [np.zeros(60, "M8[s]"), np.array(["eel"] * 60, object)])
def test_score_of_targets_that_are_no_numbers(regressor, data, y):
    X, _ = data
    for method in (clone(regressor).fit, regressor.score):
        with pytest.raises(
            ValueError, match=r"y (has dtype .* expected real|must hold)"
        ):
            method(lazy(X), lazy(y))


@pytest.mark.parametrize("is_text", [False, True])
def test_score_of_indicators_that_are_objects(is_text):
    right = pd.DataFrame([[0, 1], [1, 1], [1, 0], [0, 0]] * 3)
    y = dd.from_pandas(right.astype(str if is_text else object), npartitions=2)
    predicted = lazy(right.to_numpy(), 5)
    assert blockwise_accuracy(predicted, y, None) == 1.0
    assert accuracy_of_places(predicted, y, None, no_code=0) == 1.0


@pytest.mark.parametrize("convert", [False, True])
@pytest.mark.parametrize("model", [MASGDClassifier(**PARAMS), MASGDRegressor(**PARAMS)])
def test_score_with_a_partition_of_objects_without_rows(data, model, convert):
    X, y = data
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame = frame.assign(y=y, weight=np.linspace(0, 2, 60))

    def load(number):
        if number == 1:
            return pd.DataFrame(columns=frame.columns)
        return frame[:20] if number == 0 else frame[20:]

    def fit_and_score(rows):
        rows, *columns = rows[list("abcd")], rows["y"], rows["weight"]
        fitted = clone(model).fit(rows, columns[0], sample_weight=columns[1])
        return fitted.coef_, fitted.score(rows, *columns)

    expected = fit_and_score(frame)
    with dask.config.set({"dataframe.convert-string": convert}):
        found = fit_and_score(dd.from_map(load, range(3), meta=frame[:0]))
    np.testing.assert_allclose(found[0], expected[0])
    assert found[1] == pytest.approx(expected[1])


def test_score_of_a_constant_target(regressor, data):
    X, _ = data
    ones = np.ones(60)
    assert regressor.score(lazy(X), ones) == regressor.score(X, ones) == 0.0
    still = MASGDRegressor(**PARAMS).fit(X, ones)
    still.coef_[:] = 0
    still.intercept_[:] = 1
    assert still.score(lazy(X), ones) == still.score(X, ones) == 1.0


def test_score_computes_where_the_rows_are(classifier, data, inproc_client):
    """The client gets two numbers, not the predictions."""
    X, y = data
    labels = NAMES[np.minimum(y, len(classifier.classes_) - 1)]
    seen = []

    def spy(dsk, keys, **kwargs):
        seen.append(keys)
        return inproc_client.get(dsk, keys, **kwargs)

    with inproc_client.as_current(), dask.config.set(scheduler=spy):
        classifier.score(lazy(X), lazy(labels))
    [[numbers]] = [seen]
    assert len(numbers) == 2


# -- Fits ----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_earlier_fit_is_kept(data, monkeypatch, error):
    X, y = data
    model = MASGDClassifier(**PARAMS).fit(X, y)
    before = dict(vars(model))

    def fail(*args, **kwargs):
        raise error("in the middle")

    monkeypatch.setattr("dask_ma.base.run_fit", fail)
    with pytest.raises(error, match="in the middle"):
        model.fit(np.column_stack([X, X]), y)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())


def test_first_fit_that_fails_leaves_nothing(data, monkeypatch):
    def fail(*args, **kwargs):
        raise ValueError("in the middle")

    monkeypatch.setattr("dask_ma.base.run_fit", fail)
    model = MASGDClassifier(**PARAMS)
    with pytest.raises(ValueError, match="in the middle"):
        model.fit(pd.DataFrame(data[0], columns=list("abcd")), data[1])
    assert not [name for name in vars(model) if name.endswith("_")]


def test_workers_are_found_while_the_client_looks_around(data, inproc_client):
    """The client's own periodic update forgets for a moment which workers there are."""
    busy = True

    async def update():
        while busy:
            await inproc_client._update_scheduler_info()

    inproc_client.loop.add_callback(update)
    try:
        with inproc_client.as_current():
            for _ in range(5):
                MASGDClassifier(**PARAMS).fit(*data)
    finally:
        busy = False


@pytest.mark.parametrize("convert", [np.asarray, lazy, lambda X: X.tolist()])
def test_an_input_is_looked_at_once(data, monkeypatch, convert):
    """What it is goes with it, from its check to the place where it is shared out."""
    looked = []

    def spy(X):
        looked.append(X)
        return describe(X)

    for module in ("base", "data._partition", "engine._programs"):
        monkeypatch.setattr(f"dask_ma.{module}.describe", spy)
    X, y = data
    MASGDRegressor(**PARAMS).fit(convert(X), lazy(y) if convert is lazy else y)
    assert len(looked) == 1


class Told(DistributedEstimator):
    """The least that an estimator needs: its ranks add up the rows."""

    _may_end_early = False

    def __init__(self, *, fails=False, verbose=0, n_ranks=None):
        self.fails = fails
        self.verbose = verbose
        self.n_ranks = n_ranks

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags

    def _peer_type(self):
        return Told

    def _validate_memory(self, X, y, *, reset):
        return validate_data(self, X, reset=reset), None

    @property
    def _agent(self):
        return count_rows

    def _make_params(self, info, **changes):
        assert info.n_rows == 60
        return self._params_of(ToldParams, **changes)

    def _max_rounds(self, params, info, n_ranks):
        return None

    def _partial_changes(self):
        return {"before": getattr(self, "n_rows_", 0)}

    def _to_attributes(self, fitted):
        if self.fails:
            raise RuntimeError("not like this")
        return {"n_rows_": fitted["n_rows"], "fails_": fitted["fails"]}

    def _warnings(self, result, *, is_partial):
        yield f"{self.n_rows_} rows, {is_partial}", UserWarning

    def fit(self, X, **changes):
        return self._fit(X, **changes)


@dataclass
class ToldParams:
    fails: bool
    before: int = 0


def count_rows(context, arguments, params):
    n_rows = int(
        allreduce(
            context.group, np.array(build_shard(arguments, require_labels=False).n_rows)
        )
    )
    fitted = {"n_rows": params.before + n_rows, "fails": params.fails}
    return FitResult(fitted, True, context.history)


def test_the_way_through_a_fit(data):
    """Parameters by name, changes, the result, warnings, and back if it fails."""
    X, _ = data
    model = Told(n_ranks=2)
    with pytest.warns(UserWarning, match="^60 rows, False$"):
        model.fit(X)
    assert (model.n_rows_, model.fails_, model.n_features_in_) == (60, False, 4)
    with pytest.warns(UserWarning, match="^120 rows, True$"):
        model.fit(X, is_partial=True)
    with pytest.warns(UserWarning, match="^67 rows"):
        model.fit(X, before=7)
    model.fails = True
    with pytest.raises(RuntimeError, match="not like this"):
        model.fit(X[:, :3])
    assert (model.n_rows_, model.n_features_in_) == (67, 4)
    with pytest.raises(ValueError, match="has 3 features, but Told is expecting 4"):
        model.fit(X[:, :3], is_partial=True)


def test_large_arrays_among_the_parameters_are_told_apart():
    class Estimator(DistributedEstimator):
        def __init__(self, start=None):
            self.start = start

    first = np.zeros((100, 100))
    second = first.copy()
    second[50, 50] = 1
    assert repr(first) == repr(second)
    wanted, same, other = (
        Estimator(start)._identity(None, 0) for start in (first, first.copy(), second)
    )
    assert wanted == same != other


CASTING = [
    MASGDRegressor(n_ranks=2, **PARAMS),
    MALDA(2, max_iter=2, random_state=0),
    SchMPLDA(2, max_iter=2, random_state=0),
    SFBDictionaryLearning(3, alpha=0.1, max_iter=1, random_state=0),
    SFBMetricLearner(2, max_iter=2, random_state=0),
]


@pytest.mark.each(2)
@pytest.mark.parametrize("estimator", CASTING, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize(
    ("dtype", "convert"),
    [
        (bool, sparse.csr_array),
        (np.int8, np.asarray),
        (np.uint16, sparse.csr_array),
        (np.int64, np.asarray),
        (np.float16, np.asarray),  # SciPy has no sparse matrices of such numbers
    ],
)
def test_small_numbers_are_cast_by_the_ranks(
    data, monkeypatch, estimator, convert, dtype
):
    """An array of bytes would take eight times its size as floating numbers."""
    rows = np.abs(np.round(data[0])).astype(dtype)
    found = []
    partition = _fit.partition

    def noting(X, *args, **kwargs):
        found.append(X.dtype)
        return partition(X, *args, **kwargs)

    monkeypatch.setattr(_fit, "partition", noting)
    small = clone(estimator).fit(convert(rows), data[1])
    assert found == [dtype]
    large = clone(estimator).fit(convert(rows.astype(float)), data[1])
    names = [name for name in ("coef_", "components_") if hasattr(small, name)]
    assert names
    for name in names:
        np.testing.assert_array_equal(getattr(small, name), getattr(large, name))
