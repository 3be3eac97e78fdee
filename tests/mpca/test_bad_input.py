"""What the networks by MPCA SGD refuse, and what they say then."""

import re
import sys

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dask_ma import MPCAClassifier, MPCARegressor
from dask_ma.mpca import Torch, strategies

QUICK = {"hidden_layer_sizes": (4,), "max_iter": 1, "tol": None, "random_state": 0}


def fit(data, **params):
    return MPCAClassifier(**{**QUICK, **params}).fit(*data)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("hidden_layer_sizes", [0, "ten", None]),
        ("activation", ["sigmoid", None]),
        ("solver", ["lbfgs", None]),
        ("alpha", [-1, "a"]),
        ("batch_size", [0, 1.5, "all"]),
        ("learning_rate", ["optimal"]),
        ("learning_rate_init", [0, -1]),
        ("power_t", [-1]),
        ("max_iter", [0, 1.5]),
        ("shuffle", ["no"]),
        ("random_state", ["zero"]),
        ("tol", [-1]),
        ("verbose", [-1]),
        ("warm_start", ["no"]),
        ("momentum", [-0.1, 1.1]),
        ("nesterovs_momentum", ["no"]),
        ("early_stopping", ["no"]),
        ("validation_fraction", [0, 1]),
        ("beta_1", [-0.1, 1]),
        ("beta_2", [-0.1, 1]),
        ("epsilon", [0]),
        ("n_iter_no_change", [0]),
        ("class_weight", ["auto", 3]),
        ("strategy", ["none", None, 3, strategies.MPCA]),
        ("n_ranks", [0, 1.5]),
    ],
)
def test_parameters_out_of_range(multi, name, values):
    for wrong in values:
        with pytest.raises(ValueError, match=f"'{name}' parameter"):
            fit(multi, **{name: wrong})


@pytest.mark.parametrize("sizes", [(3, 0), (-1,), (2.5,), [[3, 4]], ("a",)], ids=str)
def test_layers_that_cannot_be(multi, sizes):
    with pytest.raises(ValueError, match="hidden_layer_sizes must be > 0, one int for"):
        fit(multi, hidden_layer_sizes=sizes)


@pytest.mark.parametrize("schedule", ["invscaling", "adaptive"])
def test_schedules_of_one_optimiser(multi, schedule):
    with pytest.raises(ValueError, match=f"'{schedule}' needs solver='sgd'"):
        fit(multi, learning_rate=schedule)


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        (strategies.MPCA, "n_phases", [0, 4, 1.5]),
        (strategies.MPCA, "extrapolation", [-0.1]),
        (strategies.MPCA, "smoothing", [-0.1, 1]),
        (strategies.MPCA, "penalty", [-0.1, 1.1, "none"]),
        (strategies.MPCA, "penalty_form", ["l2"]),
        (strategies.MPCA, "blending", [0, 1.1]),
        (strategies.MPCA, "weighting", ["rows"]),
        (strategies.Synchronous, "period", [0, 1.5]),
        (strategies.ElasticAveraging, "period", [0, 1.5]),
        (strategies.ElasticAveraging, "elasticity", [0, 1.1]),
    ],
)
def test_parameters_of_strategies_out_of_range(multi, kind, name, values):
    for wrong in values:
        message = f"'{name}' parameter of {kind.__name__} must be .*Got {wrong!r} inst"
        with pytest.raises(ValueError, match=message):
            fit(multi, strategy=kind(**{name: wrong}))
        model = MPCAClassifier(**QUICK, strategy=kind(**{name: wrong}))
        with pytest.raises(ValueError, match=message):
            model.partial_fit(*multi, classes=range(4))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("module_params", [3]),
        ("criterion", 3),
        ("criterion_params", "sum"),
        ("optimizer", None),
        ("optimizer_params", 0.1),
    ],
)
def test_parameters_of_modules_of_wrong_types(multi, name, wrong):
    """Torch is not needed to see that."""
    message = f"'{name}' parameter of Torch must be .*Got {re.escape(repr(wrong))} inst"
    model = MPCAClassifier(module=Torch(len, **{name: wrong}))
    with pytest.raises(ValueError, match=message):
        model.fit(*multi)
    with pytest.raises(ValueError, match=message):
        model.partial_fit(*multi, classes=range(4))


@pytest.mark.parametrize("cls", [MPCAClassifier, MPCARegressor])
def test_a_module_without_torch(multi, monkeypatch, cls):
    """The error says how to install it, and nothing has happened."""
    for name in [name for name in sys.modules if name.startswith("dask_ma.mpca.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    params = {**QUICK, "hidden_layer_sizes": (100,)}  # which is the default
    model = cls(**params, module=Torch("Linear", module_params={"out_features": 4}))
    with pytest.raises(ModuleNotFoundError, match=r'pip install "\.\[torch\]"'):
        model.fit(*multi)
    assert not hasattr(model, "n_iter_")


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_bad_rows(multi, n_ranks):
    X, y = multi
    model = MPCAClassifier(**QUICK, n_ranks=n_ranks)
    with pytest.raises(ValueError, match="greater than one; got 1 class"):
        model.fit(X, 0 * y)
    for wrong in (np.nan, np.inf):
        rows = X.copy()
        rows[100, 3] = wrong
        for kind in (np.asarray, sparse.csr_array):
            with pytest.raises(ValueError, match="NaN|infinity"):
                model.fit(kind(rows), y)
    with pytest.raises(ValueError, match="[Nn]egative"):
        model.fit(X, y, sample_weight=-np.ones(120))
    with pytest.raises(ValueError, match="weight zero for all"):
        model.fit(X, y, sample_weight=np.zeros(120))
    with pytest.raises(ValueError, match="class_weight names the labels"):
        fit((X, y), class_weight={7: 1.0}, n_ranks=n_ranks)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, y[:100])
    with pytest.raises(ValueError, match="Unknown label type|continuous"):
        model.fit(X, y + 0.5)
    with pytest.raises(ValueError, match="several columns, which must hold 0 and 1"):
        model.fit(X, np.c_[y, y])
    with pytest.raises(ValueError, match="early_stopping holds out"):
        fit((X[:2], [0, 1]), early_stopping=True, n_ranks=2)
    assert not hasattr(model, "coefs_")


def test_rows_of_more_dimensions_need_a_module(multi, cluster):
    X, y = multi
    images = X.reshape(120, 2, 3)
    lazy = da.from_array(images, chunks=(30, 2, 3)), da.from_array(y, chunks=30)
    with pytest.raises(ValueError, match="array with dim 3|3D array"):
        fit((images, y))
    with pytest.raises(ValueError, match=r"3D array.*\(n_samples, n_features\)"):
        fit(lazy)
    model = fit(multi)
    for rows in (images, lazy[0]):
        with pytest.raises(ValueError, match="dim 3|3D array"):
            model.predict(rows)


def test_bad_rows_on_a_cluster_name_the_block(multi, cluster, strategy):
    X, y = multi
    X = X.copy()
    X[70, 1] = np.nan
    rows = da.from_array(X, chunks=(30, 6)), da.from_array(y, chunks=30)
    with pytest.raises(ValueError, match="NaN in block 2"):
        fit(rows, strategy=strategy)


def test_other_columns_than_in_the_fit(multi, cluster):
    X, y = multi
    model = fit(multi)
    rows = da.from_array(X[:, :4], chunks=(50, 4))
    for method in ("predict", "predict_proba"):
        for wrong in (X[:, :4], rows):
            with pytest.raises(ValueError, match="4 features.*expecting 6"):
                getattr(model, method)(wrong)
    with pytest.raises(ValueError, match="sample"):
        model.predict(X[:0])


def test_an_error_on_one_rank_ends_the_others(multi, cluster, monkeypatch, strategy):
    """And leaves the model of before as it was, and no thread behind."""
    from dask_ma.mpca.networks import _mlp

    model = MPCAClassifier(**{**QUICK, "max_iter": 1}, n_ranks=3, strategy=strategy)
    model.fit(*multi).set_params(max_iter=50)
    before = model.coefs_
    names = {"parameter_server": "gradient", "gradients": "gradient_part"}
    name = names.get(strategy, "step")
    network = _mlp.MLPNetwork
    method, calls = getattr(network, name), []

    def failing(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 20:
            raise MemoryError("no space for this batch")
        return method(self, *args, **kwargs)

    monkeypatch.setattr(network, name, failing)
    with pytest.raises(Exception, match="no space for this batch"):
        model.fit(*multi)
    assert model.coefs_ is before


def rows_with(value):
    """Good rows, but one."""
    X = np.random.default_rng(0).normal(size=(30, 6))
    X[25, 2] = value
    return X


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("built_in", [True, False], ids=["built-in", "module"])
def test_lazy_rows_that_are_not_finite_are_not_predicted(value, built_in):
    """Neither are they by the built-in network nor by a module of torch."""
    params = QUICK
    if not built_in:
        torch = pytest.importorskip("torch", reason="modules need dask_ma[torch]")
        params = {"max_iter": 1, "tol": None, "random_state": 0}
        params["module"] = Torch(torch.nn.Linear(6, 2), device="cpu")
    good, y = rows_with(0.0), np.arange(30) % 2
    model = MPCAClassifier(**params).fit(good, y)
    lazy = da.from_array(rows_with(value), chunks=(10, 6))
    kind = "NaN" if np.isnan(value) else "infinity"
    for method in (model.predict, model.predict_proba, model.predict_log_proba):
        with pytest.raises(ValueError, match=f"X contains {kind} in block 2, row 5 of"):
            method(lazy).compute()
        with pytest.raises(ValueError, match=f"X contains {kind}"):
            method(rows_with(value))
    with pytest.raises(ValueError, match=f"X contains {kind} in block 2, row 5 of the"):
        model.score(lazy, y)


@pytest.mark.parametrize("lazy", [False, True], ids=["memory", "lazy"])
def test_predictions_that_overflow_are_refused(lazy):
    """Nothing is returned that only looks like a value."""
    X, y = rows_with(0.0), np.arange(30.0)
    model = MPCARegressor((4,), max_iter=1, tol=None, activation="identity").fit(X, y)
    model.coefs_[0][:] = 2.0
    X[25] = 1.7e308
    rows = da.from_array(X, chunks=(10, 6)) if lazy else X
    row, n_rows = (5, 10) if lazy else (25, 30)
    with pytest.raises(ValueError, match=f"NaN or infinity for row {row} of {n_rows}"):
        with np.errstate(over="ignore", invalid="ignore"):
            np.asarray(model.predict(rows))
