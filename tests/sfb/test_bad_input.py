"""What SFBLogisticRegression refuses, and what the messages name."""

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dask_ma import SFBLogisticRegression
from dask_ma.sfb import Exchange
from dask_ma.sfb.topology import Topology

QUICK = {"max_iter": 2, "tol": None, "random_state": 0, "batch_size": 8}


def fit(data, **params):
    return SFBLogisticRegression(**{**QUICK, **params}).fit(*data)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("penalty", ["nuclear", 2]),
        ("alpha", [-1, "small", np.nan]),
        ("solver", ["saga", None]),
        ("fit_intercept", ["yes"]),
        ("max_iter", [0, 2.5]),
        ("tol", [-1, "small"]),
        ("batch_size", [0, 2.5, None]),
        ("eta0", [0, -1, "large", None]),
        ("learning_rate", ["fast", None]),
        ("l1_ratio", [-0.1, 1.1, None]),
        ("refine", ["lbfgs", None]),
        ("power_t", [-1, None]),
        ("communication", ["mail", None, Exchange]),
        ("shuffle", ["no"]),
        ("class_weight", ["auto", 3]),
        ("early_stopping", ["no"]),
        ("validation_fraction", [0, 1]),
        ("n_iter_no_change", [0]),
        ("warm_start", ["no"]),
        ("random_state", ["zero"]),
        ("verbose", [-1]),
        ("n_ranks", [0, 1.5]),
    ],
)
def test_parameters_out_of_range(labelled, name, values):
    for wrong in values:
        with pytest.raises(ValueError, match=f"'{name}' parameter"):
            fit(labelled[3], **{name: wrong})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("content", ["mail", None]),
        ("staleness", [-1, 1.5, None]),
        ("broadcast", [0, "ring", 1.5]),
        ("relay", ["no"]),
        ("compression", [-0.1, 1, "much"]),
        ("wire_dtype", ["float16", np.float32]),
    ],
)
def test_parameters_of_an_exchange_out_of_range(labelled, name, values):
    for wrong in values:
        with pytest.raises(ValueError, match=f"'{name}' parameter of Exchange"):
            fit(labelled[3], communication=Exchange(**{name: wrong}))


@pytest.mark.parametrize("content", ["full_matrix", "server"])
@pytest.mark.parametrize(
    "params", [{"staleness": 1}, {"broadcast": 1}, {"compression": 0.1}], ids=str
)
def test_what_concerns_factors(labelled, content, params):
    [name] = params
    with pytest.raises(ValueError, match=f"{name} concerns factors") as caught:
        fit(labelled[3], communication=Exchange(content, **params))
    assert f"'{content}'" in str(caught.value)


@pytest.mark.parametrize("solver", ["sgd", "sdca"])
def test_topologies(labelled, solver):
    three = np.ones((3, 3)) - np.eye(3)
    apart = np.kron(np.eye(2), np.ones((2, 2))) - np.eye(4)
    for wrong, n_ranks, message in [
        (three, 2, "topology of 3 ranks, but there are 2"),
        (Topology.complete(3), 4, "topology of 3 ranks, but there are 4"),
        (np.ones((2, 3)), 2, r"\(2, 3\)"),
        (np.ones(3), 3, r"\(3,\)"),
        (apart, 4, "reach"),
        (apart.tolist(), 4, "reach"),
    ]:
        with pytest.raises(ValueError, match=message):
            exchange = Exchange(broadcast=wrong)
            fit(labelled[3], solver=solver, communication=exchange, n_ranks=n_ranks)
    exchange = Exchange(broadcast=three.tolist())
    fit(labelled[3], solver=solver, communication=exchange, n_ranks=3)


def test_topologies_on_a_cluster(labelled, cluster):
    with pytest.raises(ValueError, match="topology of 3 ranks, but there are 4"):
        fit(labelled[3], communication=Exchange(broadcast=Topology.complete(3)))


@pytest.mark.parametrize("solver", ["sgd", "sdca"])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_bad_rows(labelled, solver, n_ranks):
    X, y = labelled[3]
    params = {"n_ranks": n_ranks, "solver": solver}
    model = SFBLogisticRegression(**QUICK, **params)
    with pytest.raises(ValueError, match="greater than one; got 1 class"):
        model.fit(X, 0 * y)
    for wrong in (np.nan, np.inf):
        rows = X.copy()
        rows[90, 3] = wrong
        for kind in (np.asarray, sparse.csr_array):
            with pytest.raises(ValueError, match="NaN|infinity"):
                model.fit(kind(rows), y)
    with pytest.raises(ValueError, match="[Nn]egative"):
        model.fit(X, y, sample_weight=-np.ones(120))
    with pytest.raises(ValueError, match="weight zero for all"):
        model.fit(X, y, sample_weight=np.zeros(120))
    with pytest.raises(ValueError, match="class_weight names the labels"):
        fit((X, y), class_weight={7: 1.0}, **params)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, y[:60])
    with pytest.raises(ValueError, match="Unknown label type|continuous"):
        model.fit(X, y + 0.5)
    assert not hasattr(model, "coef_")


def test_bad_rows_on_a_cluster_name_the_block(labelled, cluster):
    X, y = labelled[3]
    X = X.copy()
    X[70, 1] = np.nan
    with pytest.raises(ValueError, match="NaN in block 2"):
        fit((da.from_array(X, chunks=(30, 8)), da.from_array(y, chunks=30)))


@pytest.mark.parametrize("solver", ["sgd", "sdca"])
def test_warm_starts_from_other_shapes(labelled, solver):
    X, y = labelled[3]
    model = SFBLogisticRegression(**QUICK, warm_start=True, solver=solver).fit(X, y)
    before = model.coef_
    with pytest.raises(ValueError, match="shape"):
        model.fit(X[:, :5], y)
    with pytest.raises(ValueError, match="same classes as in the previous call"):
        model.fit(*labelled[10])
    # As if nothing had happened.
    assert model.coef_ is before and model.n_features_in_ == 8
    assert model.classes_.tolist() == [0, 1, 2]
