"""Outputs shared out over ranks against the slow loop and the other ways."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits

from dask_ma import SFBLogisticRegression, SFBMetricLearner
from dask_ma.sfb import Exchange, run
from dask_ma.sfb.exchange import _choice
from dask_ma.sfb.exchange._outputs import packed, unpacked
from dask_ma.sfb.model._model import Batch
from dask_ma.sfb.prox import L1, L2, NoPenalty

X, y = load_digits(return_X_y=True)
X, y = X[:300] / 16, y[:300]
TABLE = np.array([[1.0, -1.0, 0.0], [0.0, 2.0, 1.0], [-1.0, 0.5, 3.0]])


def slopes(self, values, sums, batch, outputs):
    """Those of least squares, which need nothing of other ranks."""
    assert len(sums) == 1
    u = values - TABLE[batch.y][:, outputs]
    if batch.sample_weight is not None:
        u *= batch.sample_weight[:, np.newaxis]
    return u


SHARING = {"shares_outputs": True, "share_slopes": slopes}


@pytest.mark.parametrize("prox", [NoPenalty(), L1(0.1), L2(0.3)], ids=repr)
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_against_the_slow_loop(
    run_engines, slow_loop, make_model, make_shards, rows, prox, kind, n_ranks
):
    model = make_model(prox=prox, fit_intercept=True, intercept_scale=0.5, **SHARING)
    shards = make_shards(n_ranks, kind(rows.X), rows.y, rows.weight)
    engines = run_engines(model, shards, content="outputs")
    expected = slow_loop(model, shards)
    for engine in engines:
        assert engine.communication == "outputs"
        np.testing.assert_allclose(engine.matrix, expected.W, 1e-10, 1e-10)
        np.testing.assert_allclose(engine.matrix.intercept, expected.b, 1e-10, 1e-10)
        np.testing.assert_array_equal(engine.matrix, engines[0].matrix)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("penalty", ["l2", "l1", "elasticnet"])
@pytest.mark.parametrize("n_ranks", [2, 4])
def test_softmax(kind, penalty, n_ranks):
    """The same models, but for rounding, in every pass."""
    params = {"penalty": penalty, "solver": "sgd", "alpha": 1e-3, "max_iter": 4}
    params |= {"tol": None, "random_state": 0, "n_ranks": n_ranks, "batch_size": 16}
    weights = {"class_weight": {0: 2.0}}
    factors, outputs = (
        SFBLogisticRegression(communication=c, **params, **weights).fit(kind(X), y)
        for c in ("factors", "outputs")
    )
    assert outputs.communication_ == "outputs"
    np.testing.assert_allclose(outputs.coef_, factors.coef_, atol=1e-9)
    np.testing.assert_allclose(outputs.intercept_, factors.intercept_, atol=1e-9)
    for one, other in zip(outputs.history_, factors.history_, strict=True):
        assert one["objective"] == pytest.approx(other["objective"], rel=1e-9)


def test_on_a_cluster(inproc_client):
    params = {"communication": "outputs", "solver": "sgd", "max_iter": 3, "tol": None}
    params |= {"random_state": 0, "n_ranks": 2}
    here = SFBLogisticRegression(**params).fit(X, y)
    with inproc_client.as_current():
        there = SFBLogisticRegression(**params).fit(X, y)
    np.testing.assert_array_equal(here.coef_, there.coef_)


def test_no_factor_is_sent():
    """Rows, two sums for each row and rank, and the matrix at the end of a pass."""
    labels = np.arange(256) % 128
    rows = sparse.random_array((256, 10), density=0.3, format="csr", rng=0)
    params = {"solver": "sgd", "max_iter": 1, "tol": None, "batch_size": 8}
    params |= {"n_ranks": 2, "random_state": 0, "refine": False}
    found = {}
    for way in ("factors", "outputs"):
        model = SFBLogisticRegression(communication=way, **params).fit(rows, labels)
        [record] = model.history_
        found[way] = record["bytes_sent"] + record["bytes_shared"]
    assert found["factors"] > 256 * 128 * 8
    assert found["outputs"] < found["factors"] / 3


@pytest.mark.parametrize("fastest", ["factors", "full_matrix", "outputs"])
def test_the_fastest_way_is_taken(monkeypatch, fastest):
    """Where outputs can be shared out, that is tried, too."""
    tried = []

    def seconds(group, way, n_probes=1):
        tried.append(way.__name__)
        way()
        names = ["send_factors", "add_matrices", "share_outputs"]
        contents = ["factors", "full_matrix", "outputs"]
        return 0.0 if contents[names.index(way.__name__)] == fastest else 1.0

    monkeypatch.setattr(_choice, "fastest", seconds)
    params = {"solver": "sgd", "max_iter": 1, "tol": None, "n_ranks": 2}
    model = SFBLogisticRegression(penalty="l1", **params).fit(X, y)
    assert model.communication_ == fastest
    assert len(tried) == 6
    if fastest != "outputs":
        tried.clear()
        SFBLogisticRegression(penalty="trace", **params).fit(X, y)
        assert "share_outputs" not in tried


def test_batches_as_messages():
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(4, 3))
    for rows in (dense, sparse.csr_array(dense)):
        for targets in (None, rng.normal(size=(4, 2)), np.arange(4)):
            for weight in (None, rng.random(4)):
                batch = Batch(rows, targets, weight, np.arange(4))
                again = unpacked(packed(batch))
                assert sparse.issparse(again.X) == sparse.issparse(rows)
                for name in ("X", "y", "sample_weight", "rows"):
                    one, other = getattr(batch, name), getattr(again, name)
                    if one is None:
                        assert other is None
                        continue
                    if sparse.issparse(one):
                        one, other = one.toarray(), other.toarray()
                    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"penalty": "trace"}, "content='outputs' needs a model that shares outputs"),
        ({"n_ranks": 11}, "at least one for each rank"),
        ({"solver": "sdca"}, "solver='sdca' needs factors on all ranks"),
        ({"communication__staleness": 1}, "staleness concerns factors"),
    ],
)
def test_what_cannot_be_shared_out(params, message):
    model = SFBLogisticRegression(
        **{"solver": "sgd", "n_ranks": 2, "max_iter": 1, "tol": None},
        communication=Exchange("outputs"),
    ).set_params(**params)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)


def test_models_that_do_not_share(make_model, rows):
    with pytest.raises(ValueError, match="LeastSquares has 3 outputs"):
        run(make_model(), rows.X, rows.y, n_passes=1, communication="outputs")
    with pytest.raises(ValueError, match="components cannot be shared out"):
        SFBMetricLearner(communication="outputs").fit(X, y)
    with pytest.raises(ValueError, match="2 outputs|1 outputs"):
        SFBLogisticRegression(solver="sgd", communication="outputs").fit(X, y > 4)


def test_auto_takes_steps_for_outputs():
    model = SFBLogisticRegression(communication="outputs", max_iter=1, tol=None)
    assert model.fit(X, y).solver_ == "sgd"
