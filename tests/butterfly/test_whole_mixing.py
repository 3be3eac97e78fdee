"""Steps that follow their batches, and exchanges of all weights between them."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma import ButterflySGDClassifier
from dask_ma.butterfly import _lazy_steps, _whole
from dask_ma.comm import LocalGroup

PARAMS = {
    "alpha": 0.01,
    "batch_size": 10,
    "eta0": 0.3,
    "max_iter": 2,
    "tol": None,
    "refine": None,
    "random_state": 0,
}


@pytest.fixture(scope="module")
def rows():
    """400 rows, of which those between two exchanges have a part of the features."""
    rng = np.random.default_rng(3)
    places = rng.integers(0, 4000, (400, 4))
    values, ends = rng.normal(size=1600), np.arange(0, 1601, 4)
    X = sparse.csr_matrix((values, places.ravel(), ends), shape=(400, 4000))
    X.sum_duplicates()
    return X, rng.integers(0, 3, 400)


@pytest.fixture
def made(monkeypatch):
    """The mixers of whole weights that ranks have made."""
    mixers = []
    init = _whole.WholeMixer.__init__

    def noted(self, *args):
        mixers.append(self)
        init(self, *args)

    monkeypatch.setattr(_whole.WholeMixer, "__init__", noted)
    return mixers


@pytest.fixture
def apart(monkeypatch):
    """Ranks send bytes to each other, as those of processes do."""
    create = LocalGroup.create
    monkeypatch.setattr(LocalGroup, "create", lambda n_ranks: create(n_ranks, 1))


@pytest.fixture
def always(monkeypatch):
    """Whole weights are exchanged wherever they can be."""
    monkeypatch.setattr(_lazy_steps, "_COST_OF_ENTRY", 32)
    is_small, is_whole = _lazy_steps.is_small, _lazy_steps.is_whole

    def with_cost(cost, function):
        def patched(*args):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(_lazy_steps, "_COST_SENT", cost)
                patch.setattr(_lazy_steps, "_BYTES_SENT", cost)
                return function(*args)

        return patched

    monkeypatch.setattr(_lazy_steps, "is_small", with_cost(0, is_small))
    monkeypatch.setattr(_lazy_steps, "is_whole", with_cost(10**9, is_whole))


@pytest.mark.each(2)
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("mixing", ["butterfly", "allreduce", "periodic"])
@pytest.mark.parametrize("n_ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("period", ["auto", 1, 3])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_steps_are_those_over_all_features(
    monkeypatch, rows, made, mixing, n_ranks, period, n_classes
):
    X, y = rows
    params = {**PARAMS, "mixing": mixing, "mixing_period": period, "n_ranks": n_ranks}
    model = ButterflySGDClassifier(**params).fit(X, y % n_classes)
    assert len(made) == 2 * n_ranks
    monkeypatch.setattr(_lazy_steps, "is_small", lambda *args: False)
    eager = ButterflySGDClassifier(**params).fit(X, y % n_classes)
    scale = 1e-9 * np.abs(eager.coef_).max()
    np.testing.assert_allclose(model.coef_, eager.coef_, rtol=1e-9, atol=scale)
    objectives = [[r["objective"] for r in fit.history_] for fit in (model, eager)]
    np.testing.assert_allclose(*objectives, rtol=1e-9)


@pytest.mark.parametrize(
    "n_features, params, is_whole",
    [
        (4000, {"mixing_period": 1}, False),
        (4000, {"mixing_period": 20}, False),  # 4 x 20 x 40 entries
        (2000, {"mixing_period": 10}, False),
        (2000, {"mixing_period": 20}, True),
        (2000, {"mixing_period": 20, "average": True}, False),
        (2000, {"mixing_period": 20, "loss": "hinge"}, False),
        (2000, {"mixing_period": 20, "mixing": "allreduce"}, True),
        # Of three times 400 entries, each of 1.5 weights, and of seven times 200.
        (2000, {"mixing_period": 20, "n_ranks": 4, "batch_size": 5}, False),
        (2000, {"mixing_period": 20, "n_ranks": 8, "batch_size": 5}, True),
        (2000, {"mixing": "none"}, False),
        (2000, {"mixing_period": 20, "n_ranks": 1}, False),
    ],
    ids=str,
)
def test_which_exchanges_are_whole(rows, made, n_features, params, is_whole):
    X, y = rows
    X = sparse.csr_matrix((X.data, X.indices % n_features, X.indptr), (400, n_features))
    X.sum_duplicates()
    params = {**PARAMS, "n_ranks": 2, "max_iter": 1, **params}
    ButterflySGDClassifier(**params).fit(X, y % 2)
    assert bool(made) == is_whole


@pytest.mark.each
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("n_ranks", [2, 4])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_threads_and_processes_agree(request, rows, made, n_ranks, n_classes):
    X, y = rows
    params = {**PARAMS, "n_ranks": n_ranks, "mixing_period": 3}
    model = ButterflySGDClassifier(**params).fit(X, y % n_classes)
    request.getfixturevalue("apart")
    other = ButterflySGDClassifier(**params).fit(X, y % n_classes)
    assert len(made) == 4 * n_ranks
    assert model.coef_.tobytes() == other.coef_.tobytes()
    assert model.intercept_.tobytes() == other.intercept_.tobytes()


@pytest.mark.usefixtures("always", "apart")
def test_processes_send_what_differs(monkeypatch, rows):
    X, y = rows

    def bytes_of_passes():
        params = {**PARAMS, "n_ranks": 2, "mixing_period": 5}
        model = ButterflySGDClassifier(**params).fit(X, y % 2)
        return model, [record["bytes_sent"] for record in model.history_]

    model, sent = bytes_of_passes()
    # In 4 exchanges two ranks send 200 entries each, and a bit for each feature.
    assert max(sent[1:]) < 2 * 4 * (8 * 200 + 4001 / 8) + 12_000
    monkeypatch.setattr(_whole, "differences", lambda weights, known: [weights])
    other, whole = bytes_of_passes()
    assert min(whole) > 2 * 4 * 8 * 4001
    assert model.coef_.tobytes() == other.coef_.tobytes()


@pytest.mark.pairs
@pytest.mark.parametrize("n_changed", [0, 1, 30, 99, 100])
@pytest.mark.parametrize("n_problems", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_differs_makes_up_the_whole(n_changed, n_problems, dtype):
    rng = np.random.default_rng(0)
    known = rng.normal(size=(100, n_problems)).astype(dtype)
    known[:10] = 0
    weights, before = known.copy(), known.copy()
    weights[rng.permutation(100)[:n_changed], -1] += 1
    if n_changed:
        weights[3, 0], weights[4, 0], weights[5, 0] = -0.0, np.nan, np.inf
    parts = _whole.differences(weights, known)
    size = sum(part.nbytes for part in parts)
    n_rows = n_changed + 3 * (n_changed > 0)
    assert size <= min(weights.nbytes, 13 + n_rows * weights[0].nbytes)
    found = _whole.with_differences(known, parts)
    assert found.tobytes() == weights.tobytes()
    assert known.tobytes() == before.tobytes()
    assert not np.shares_memory(found, weights)
    assert not np.shares_memory(found, known)
