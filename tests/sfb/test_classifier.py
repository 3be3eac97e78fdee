"""What both solvers of SFBLogisticRegression share: parameters, predictions, seeds."""

import pickle
import warnings

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from dask_ma import SFBLogisticRegression
from dask_ma.comm import LocalGroup
from dask_ma.sfb import Exchange
from dask_ma.sfb.topology import Topology

QUICK = {"alpha": 0.02, "max_iter": 3, "tol": None, "random_state": 0, "n_ranks": 2}
QUICK |= {"batch_size": 8, "communication": Exchange("factors")}
SOLVERS = ["sgd", "sdca"]
both = pytest.mark.parametrize("solver", SOLVERS)


def fit(data, weight=None, **params):
    model = clone(SFBLogisticRegression(**QUICK)).set_params(**params)
    return model.fit(*data, sample_weight=weight)


def check_same(model, other, rtol=0.0):
    """Same bits, or the same but for rounding."""
    for name in ("coef_", "intercept_"):
        parts = getattr(model, name), getattr(other, name)
        np.testing.assert_allclose(*parts, rtol=rtol, atol=rtol)


def some_rows(labelled):
    """Few, as it is enough for fits to differ."""
    X, y = labelled[3]
    return X[:60], y[:60]


@pytest.fixture(scope="module")
def defaults(labelled):
    """Without any change, by each solver."""
    return {solver: fit(some_rows(labelled), solver=solver) for solver in SOLVERS}


@pytest.mark.filterwarnings("ignore:alpha=.* has no effect")  # without a penalty
@pytest.mark.parametrize(
    ("change", "solvers"),
    [
        ({"penalty": "l1"}, ["sgd"]),
        ({"penalty": "trace"}, ["sgd"]),
        ({"penalty": None}, ["sgd"]),
        ({"penalty": "elasticnet"}, ["sgd"]),
        ({"penalty": "elasticnet", "l1_ratio": 0.6}, ["sgd"]),
        ({"alpha": 0.1}, SOLVERS),
        ({"fit_intercept": False}, SOLVERS),
        ({"max_iter": 15, "tol": 1e-3}, SOLVERS),
        ({"batch_size": 4}, SOLVERS),
        ({"eta0": 0.5}, ["sgd"]),
        ({"learning_rate": "invscaling"}, ["sgd"]),
        ({"learning_rate": "invscaling", "power_t": 0.3}, ["sgd"]),
        ({"learning_rate": "optimal"}, ["sgd"]),
        ({"n_ranks": 3, "communication__broadcast": 1}, SOLVERS),
        (
            {
                "n_ranks": 3,
                "communication__broadcast": 1,
                "communication__relay": False,
            },
            ["sgd"],
        ),
        ({"communication__compression": 0.5}, ["sgd"]),
        ({"communication__wire_dtype": "float32"}, ["sgd"]),
        ({"shuffle": False}, SOLVERS),
        ({"class_weight": "balanced"}, SOLVERS),
        ({"early_stopping": True}, SOLVERS),
        ({"early_stopping": True, "validation_fraction": 0.3}, SOLVERS),
        ({"random_state": 1}, SOLVERS),
        ({"n_ranks": 3}, SOLVERS),
    ],
    ids=str,
)
def test_every_parameter_acts(labelled, defaults, change, solvers):
    """None of the fits is the same as another one."""
    for solver in solvers:
        models = [defaults[solver]]
        for count in range(1, len(change) + 1):
            some = dict(list(change.items())[:count])
            models.append(fit(some_rows(labelled), solver=solver, **some))
        for i, model in enumerate(models):
            for other in models[:i]:
                assert not np.array_equal(model.coef_, other.coef_)


def test_verbose_prints_the_passes(labelled, capsys):
    fit(labelled[3], verbose=1)
    assert len(capsys.readouterr().out.strip().splitlines()) == 3


# Seeds, ranks, clusters ---------------------------------------------------------------


def digest(model):
    """All that must be the same."""
    names = ("objective", "dual_gap", "n_samples")
    history = [[record.get(name) for name in names] for record in model.history_]
    return model.coef_.tobytes(), model.intercept_.tobytes(), model.t_, history


def fit_all(labelled):
    X, y = some_rows(labelled)
    cases = [
        (X, {"solver": "sgd"}),
        (sparse.csr_array(X), {"solver": "sgd", "communication__broadcast": 2}),
        (sparse.csr_array(X), {"solver": "sdca", "max_iter": 2}),
        (X, {"solver": "sdca", "max_iter": 2, "communication": "full_matrix"}),
        (X, {"penalty": "l1", "solver": "auto", "tol": 1e-3, "max_iter": 10}),
    ]
    return [digest(fit((rows, y), n_ranks=4, **params)) for rows, params in cases]


def test_threads_and_clusters_agree(
    labelled, inproc_client, process_client, wide_client, monkeypatch
):
    """Bits: 4 threads as one, two, four processes, and on clusters of 4, 4 and 2."""
    here = fit_all(labelled)
    create = LocalGroup.create
    for per_node in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(LocalGroup, "create", lambda n, k=per_node: create(n, k))
            assert fit_all(labelled) == here
    for client in (inproc_client, process_client, wide_client):
        with client.as_current():
            assert fit_all(labelled) == here


@both
def test_seeds(labelled, solver):
    fits = [
        digest(fit(labelled[3], solver=solver, random_state=seed))
        for seed in (0, 0, 1, None, None)
    ]
    assert fits[0] == fits[1]
    assert len({coef for coef, *_ in fits}) == 4


@pytest.mark.each
@both
@pytest.mark.parametrize("n_classes", [2, 10])
def test_what_is_sent_does_not_matter(labelled, solver, n_classes):
    models = [
        fit(labelled[n_classes], solver=solver, n_ranks=3, communication=communication)
        for communication in ("factors", "full_matrix", "server", "auto")
    ]
    for model in models[1:]:
        check_same(model, models[0], 1e-9)
    names = [model.communication_ for model in models]
    assert names[:3] == ["factors", "full_matrix", "server"]
    assert names[3] in names[:2]


@both
def test_the_traffic_of_factors_and_matrices(labelled, monkeypatch, solver):
    """By the counters; pairs of dense factors, or a matrix, from each process."""
    create = LocalGroup.create
    monkeypatch.setattr(LocalGroup, "create", lambda n_ranks: create(n_ranks, 1))
    X, y = labelled[10]

    def bytes_of(communication):
        model = fit((X, y), solver=solver, communication=communication, max_iter=1)
        return model.history_[0]["bytes_sent"]

    factors = bytes_of("factors")
    assert factors >= 120 * (10 + 8) * 8
    assert factors < 120 * (10 + 8) * 8 * 2
    assert bytes_of("full_matrix") > 8 * 2 * 9 * 10 * 8


# Rows ---------------------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_weights_are_repeated_rows(labelled, value, n_classes, n_ranks):
    """By the optimum of the dual ascent; 0 is no row."""
    X, y = (part[:90] for part in labelled[n_classes])
    weight = np.arange(90) % 3
    twice = np.repeat(np.arange(90), weight)
    params = {"solver": "sdca", "tol": 1e-5, "max_iter": 400, "n_ranks": n_ranks}
    expected = fit((X[twice], y[twice]), **params)
    model = fit((X, y), weight, **params)
    found = [value(m, X, y, weight) for m in (model, expected)]
    assert found[0] == pytest.approx(found[1], abs=2e-5)
    np.testing.assert_allclose(
        model.predict_proba(X), expected.predict_proba(X), atol=1e-2
    )


@both
def test_weight_zero_is_no_row(labelled, solver):
    """The same bits as without the row, and labels of such rows alone are unknown."""
    X, y = labelled[3]
    weight = (np.arange(120) % 4 > 0).astype(float)
    kept = weight > 0
    params = {"solver": solver, "n_ranks": 1}
    check_same(fit((X, y), weight, **params), fit((X[kept], y[kept]), **params), 1e-12)


def test_weights_are_repeated_rows_in_one_step(labelled):
    """For gradients in a single batch, but for rounding."""
    X, y = labelled[3]
    weight = np.arange(120) % 3
    twice = np.repeat(np.arange(120), weight)
    params = {"batch_size": 1000, "n_ranks": 1, "eta0": 1.0}
    params |= {"fit_intercept": False}  # whose steps depend on the sizes of rows
    check_same(
        fit((X, y), weight, **params), fit((X[twice], y[twice]), **params), 1e-12
    )


@pytest.mark.each
@both
@pytest.mark.parametrize("labels", [["c", "a", "b"], [30, -1, 7]], ids=str)
def test_labels(labelled, solver, labels):
    X, y = labelled[3]
    names = np.array(labels)
    ordered = np.sort(names)
    model = fit((X, ordered[y]), solver=solver)
    np.testing.assert_array_equal(model.classes_, ordered)
    check_same(model, fit(labelled[3], solver=solver))
    np.testing.assert_array_equal(
        model.predict(X), ordered[model.decision_function(X).argmax(axis=1)]
    )


@both
def test_a_class_on_one_rank_and_ranks_with_few_rows(labelled, solver, value, best):
    """Blocks sorted by class, one of a single row; more ranks than rows of a batch."""
    X, y = labelled[3]
    order = np.argsort(-y, kind="stable")
    X, y = X[order], y[order]
    sizes = (1, 9, 30, 80)
    dX, dy = da.from_array(X, chunks=(sizes, 8)), da.from_array(y, chunks=(sizes,))
    params = {"solver": solver, "n_ranks": 4, "max_iter": 40, "batch_size": 64}
    model = fit((dX, dy), **params)
    assert -1e-8 < value(model, X, y) - best(X, y, 0.02) < 1e-2 * best(X, y, 0.02)
    few = fit((X[-2:], [0, 1]), **params)
    assert set(few.predict(X)) <= {0, 1}


@both
def test_a_rank_without_rows(labelled, cluster, solver):
    """One block, or rows of weight 0, leave other ranks without any."""
    X, y = labelled[3]
    dX, dy = da.from_array(X, chunks=(120, 8)), da.from_array(y, chunks=120)
    # The common batch is as long for one rank as for three.
    expected = fit((X, y), solver=solver, n_ranks=1, batch_size=24)
    model = fit((dX, dy), solver=solver, n_ranks=3)
    assert model.history_[-1]["objective"] == pytest.approx(
        expected.history_[-1]["objective"], rel=0.2
    )
    weight = (np.arange(120) < 60).astype(float)
    lost = fit((X, y), weight, solver=solver, n_ranks=4)
    assert lost.history_[0]["n_samples"] == 60
    assert np.isfinite(lost.coef_).all()


def test_collections(labelled, cluster):
    """dask.array of dense and of sparse blocks, and frames, are as arrays in memory."""
    (X, y), solver = labelled[3], "sdca"
    expected = fit((X, y), solver=solver, n_ranks=4)
    dy = da.from_array(y, chunks=30)
    blocks = [
        da.from_delayed(
            dask.delayed(sparse.csr_array)(X[a : a + 30]),
            (30, 8),
            meta=sparse.csr_array((0, 8)),
        )
        for a in range(0, 120, 30)
    ]
    check_same(fit((da.from_array(X, (30, 8)), dy), solver=solver, n_ranks=4), expected)
    model = fit((da.concatenate(blocks), dy), solver=solver, n_ranks=4)
    rows = sparse.csr_array(X)  # not centred, as dense ones are
    check_same(model, fit((rows, y), solver=solver, n_ranks=4), 1e-9)
    frame = pd.DataFrame(X, columns=list("abcdefgh"))
    model = fit((frame, y), solver=solver, n_ranks=4)
    check_same(model, expected)
    assert model.feature_names_in_.tolist() == list("abcdefgh")


# Predictions, copies ------------------------------------------------------------------


@both
@pytest.mark.parametrize("n_classes", [2, 3])
def test_twin(labelled, solver, n_classes):
    X, y = labelled[n_classes]
    model = fit((X, y), solver=solver, class_weight="balanced")
    twin = model.to_sklearn()
    assert isinstance(twin, LogisticRegression)
    for method in ("predict", "predict_proba", "predict_log_proba"):
        theirs, ours = (getattr(m, method)(X) for m in (twin, model))
        np.testing.assert_array_equal(theirs, ours)
    np.testing.assert_array_equal(twin.decision_function(X), model.decision_function(X))
    margins = X @ model.coef_.T + model.intercept_
    margins = np.hstack([0 * margins, margins]) if n_classes == 2 else margins
    p = np.exp(margins)
    p /= p.sum(axis=1, keepdims=True)  # over all classes at once
    np.testing.assert_allclose(model.predict_proba(X), p, rtol=1e-9)
    twin.coef_[:] = 0
    assert model.coef_.any()
    assert model.score(X, y) == np.mean(model.predict(X) == y)


@both
def test_copies(labelled, solver):
    model = fit(
        labelled[3], solver=solver, communication__broadcast=Topology.optimal(2, 1)
    )
    again = pickle.loads(pickle.dumps(model))
    X = labelled[3][0]
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.get_params()["communication__broadcast"].n_ranks == 2
    fresh = clone(model)
    assert not hasattr(fresh, "coef_")
    check_same(fresh.fit(*labelled[3]), model)


def test_predictions_of_a_collection_are_lazy(labelled, cluster):
    X, y = labelled[3]
    model = fit((X, y))
    rows = da.from_array(X, chunks=(40, 8))
    for method, width in [("predict", ()), ("predict_proba", (3,))]:
        lazy = getattr(model, method)(rows)
        assert isinstance(lazy, da.Array)
        assert lazy.shape == (120, *width)
        np.testing.assert_array_equal(lazy.compute(), getattr(model, method)(X))
    assert model.score(rows, da.from_array(y, chunks=40)) == model.score(X, y)


def test_a_sparse_model(labelled):
    X, y = labelled[3]
    model = fit((X, y), penalty="l1", warm_start=True)
    expected = model.predict_proba(X)
    model.sparsify()
    assert sparse.issparse(model.coef_)
    np.testing.assert_allclose(model.predict_proba(X), expected)
    model.fit(X, y)  # goes on from it
    assert not sparse.issparse(model.coef_)


# History ------------------------------------------------------------------------------


@both
def test_history(labelled, solver):
    model = fit(labelled[3], solver=solver)
    keys = {"round", "time", "objective", "n_samples", "bytes_sent", "messages_sent"}
    keys |= {"bytes_shared", "seconds_computing", "seconds_waiting", "restarts"}
    keys |= {"dual_gap"} if solver == "sdca" else set()
    for number, record in enumerate(model.history_, start=1):
        assert set(record) == keys
        assert record["round"] == number
        assert record["n_samples"] == 120
    times = [record["time"] for record in model.history_]
    assert times == sorted(times) and times[0] > 0
    assert model.n_iter_ == 3 and model.t_ == 1 + 3 * 8
    assert {"compute", "evaluate"} <= set(model.timeline_["kind"].astype(str))


class Recorder:
    """Notes the models of the passes, and says stop in one of them."""

    def __init__(self, stop_at=None):
        self.models = []
        self._stop_at = stop_at

    def setup(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context, *, X=None, y=None, metadata=None):
        pass

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if fitted_estimator is None:
            return False
        self.models.append(fitted_estimator)
        return len(self.models) == self._stop_at

    def teardown(self, estimator, context):
        pass


@pytest.mark.each
@both
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_callbacks(labelled, value, solver, n_ranks):
    """They get the model of each pass with its history, and may end the fit."""
    pytest.importorskip(
        "sklearn.callback", reason="scikit-learn has callbacks from version 1.9 on"
    )
    X, y = labelled[3]
    params = {**QUICK, "solver": solver, "n_ranks": n_ranks}
    if solver == "sgd":
        params["eta0"] = 0.3  # each pass is better than the one before
    recorder = Recorder()
    model = SFBLogisticRegression(**params).set_callbacks(recorder).fit(X, y)
    assert len(recorder.models) == 3
    for number, seen in enumerate(recorder.models, start=1):
        check_same(seen, fit((X, y), **{**params, "max_iter": number}))
        assert seen.n_iter_ == number
        objective = model.history_[number - 1]["objective"]
        assert value(seen, X, y) == pytest.approx(objective, rel=1e-10)
        if solver == "sdca":
            assert seen.dual_gap_ == model.history_[number - 1]["dual_gap"]
    stopped = SFBLogisticRegression(**params).set_callbacks(Recorder(2)).fit(X, y)
    assert stopped.n_iter_ == 2
    check_same(stopped, recorder.models[1])


@pytest.mark.each
@both
def test_stop_is_no_lack_of_convergence(labelled, solver):
    """Who ends a fit is not told how far it is from its optimum."""
    pytest.importorskip(
        "sklearn.callback", reason="scikit-learn has callbacks from version 1.9 on"
    )
    X, y = labelled[3]
    model = SFBLogisticRegression(solver=solver, refine=False, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model.set_callbacks(Recorder(1)).fit(X, y)
    assert model.n_iter_ == 1
    with pytest.warns(ConvergenceWarning):
        model.set_callbacks().set_params(max_iter=1).fit(X, y)


def test_output_of_pandas(labelled):
    """Nothing here transforms; `set_output` must leave fits and pipelines alone."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = labelled[3]
    scaler = StandardScaler().set_output(transform="pandas")
    model = make_pipeline(scaler, SFBLogisticRegression(**QUICK)).fit(X, y)
    assert model[-1].feature_names_in_.tolist() == [f"x{i}" for i in range(8)]
    plain = make_pipeline(StandardScaler(), SFBLogisticRegression(**QUICK)).fit(X, y)
    check_same(model[-1], plain[-1])
