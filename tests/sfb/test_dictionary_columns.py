"""Atoms of which each rank has some columns: what all ranks with whole ones learn."""

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dask_ma import SFBDictionaryLearning
from dask_ma.sfb.dictionary import _columns
from dask_ma.sfb.dictionary._columns import Columns

KINDS = {"dense": np.asarray, "sparse": sparse.csr_array}
WEIGHT = np.random.default_rng(2).uniform(0.5, 2, size=120)
SETTINGS = {
    "plain": {},
    "float32": {"dtype": np.float32},
    "positive": {"positive_dict": True, "positive_code": True},
    "unused": {"n_components": 20, "alpha": 3.0},  # more than there is a use for
    "few rows": {"batch_size": 5, "max_iter": 1},
    "fista": {"fit_algorithm": "fista"},
}


def signals(n_rows=120):
    """Sums of a few of eight directions."""
    rng = np.random.default_rng(1)
    codes = rng.normal(size=(n_rows, 8)) * (rng.random((n_rows, 8)) < 0.3)
    X = codes @ rng.normal(size=(8, 13)) + 0.05 * rng.normal(size=(n_rows, 13))
    X[abs(X) < 0.3] = 0
    return X


def fit(X, weight=None, **params):
    fixed = {"n_components": 10, "alpha": 0.3, "batch_size": 60, "max_iter": 4}
    ends = {"tol": 0, "max_no_improvement": None, "random_state": 0}
    learner = SFBDictionaryLearning(**{**fixed, **ends, "solver": "sgd", **params})
    return learner.fit(X, sample_weight=weight)


@pytest.mark.each
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_ranks", [1, 2, 4])
def test_like_whole_atoms(kind, setting, n_ranks):
    params = dict(SETTINGS[setting])
    dtype = params.pop("dtype", np.float64)
    X = KINDS[kind](signals().astype(dtype))
    whole = fit(X, n_ranks=n_ranks, communication="factors", **params)
    found = fit(X, n_ranks=n_ranks, communication="outputs", **params)
    tolerance = 1e-4 if dtype == np.float32 else 1e-10
    assert found.components_.dtype == dtype
    np.testing.assert_allclose(found.components_, whole.components_, atol=tolerance)
    for ours, theirs in zip(found.inner_stats_, whole.inner_stats_, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=tolerance)
    for ours, theirs in zip(found.history_, whole.history_, strict=True):
        assert ours["objective"] == pytest.approx(
            theirs["objective"], rel=1e-4, nan_ok=True
        )
        assert ours["n_replaced"] == theirs["n_replaced"]
        assert ours["n_samples"] == theirs["n_samples"]
    if setting == "unused":
        assert sum(record["n_replaced"] for record in found.history_) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_first_atoms(kind):
    X = KINDS[kind](signals())
    atoms = np.random.default_rng(3).normal(size=(10, 13))
    params = {"n_ranks": 3, "dict_init": atoms}
    whole = fit(X, WEIGHT, communication="factors", **params)
    found = fit(X, WEIGHT, communication="outputs", **params)
    np.testing.assert_allclose(found.components_, whole.components_, atol=1e-10)


def test_partial_fits():
    X, learners = signals(), []
    for communication in ("factors", "outputs"):
        learner = SFBDictionaryLearning(
            10, alpha=0.3, solver="sgd", communication=communication,
            random_state=0, n_ranks=3, batch_size=40,
        )  # fmt: skip
        for part in range(3):
            learner.partial_fit(X[part::3])
        learners.append(learner)
    components = [learner.components_ for learner in learners]
    np.testing.assert_allclose(*components, atol=1e-10)
    assert learners[0].n_steps_ == learners[1].n_steps_


def test_ends_by_change():
    """The movement of atoms is that of all columns."""
    X = signals()
    ends = {"tol": 0.03, "max_iter": 60, "n_ranks": 2}
    whole = fit(X, communication="factors", **ends)
    found = fit(X, communication="outputs", **ends)
    assert found.n_steps_ == whole.n_steps_ < 120


def test_clusters(process_client):
    """Rows of Dask collections on processes of their own."""
    X = signals(240)
    rows = da.from_array(X, chunks=(60, 13))
    params = {"communication": "outputs", "n_ranks": 2}
    with process_client.as_current():
        found = fit(rows, **params)
    expected = fit(X, communication="factors", n_ranks=1, shuffle=False)
    objectives = [model.history_[-1]["objective"] for model in (found, expected)]
    assert objectives[0] == pytest.approx(objectives[1], rel=0.1)
    assert found.components_.shape == (10, 13)


def test_nobody_has_whole_atoms(monkeypatch):
    """Until the end, no array of a rank has all columns."""
    widths = []
    original = _columns.codes_from_products

    def spied(products, squares, gram, *args, **kwargs):
        widths.append((products.shape[1], gram.shape))
        return original(products, squares, gram, *args, **kwargs)

    def refused(self):
        raise AssertionError("atoms are put together")

    monkeypatch.setattr(_columns, "codes_from_products", spied)
    monkeypatch.setattr(_columns.OutputShares, "gather", refused)
    shapes = []
    step = _columns.ColumnsFit._go_over_one

    def watched(self):
        found = step(self)
        arrays = self._atoms, found.X, self._solver.statistics[1]
        shapes.append([array.shape[1] for array in arrays])
        return found

    monkeypatch.setattr(_columns.ColumnsFit, "_go_over_one", watched)
    fit(signals(), communication="outputs", n_ranks=2)
    assert set(widths) == {(10, (10, 10))}
    assert {width for each in shapes for width in each} == {6, 7}


def test_bytes(run_ranks):
    """Those of the guide, of a batch: pieces of rows, products, codes, lengths."""
    n, p, k = 40, 30, 6
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(n, p)) for _ in range(2)]
    codes = rng.normal(size=(n, k)) * (rng.random((n, k)) < 0.3)

    def program(group):
        table, sizes = Columns(group, p), []

        def count(call):
            before = group.counters.bytes_sent
            result = call()
            sizes.append(group.counters.bytes_sent - before)
            return result

        dealt = count(lambda: table.deal(rows[group.rank], None))
        partial = [np.zeros((2 * n, k)), np.zeros(2 * n)]
        count(lambda: table.rows_of(partial, dealt.ends))
        count(lambda: table.add_up(np.zeros((k, k))))
        count(lambda: table.all_codes(codes, np.zeros(n)))
        count(lambda: table.add_up(np.zeros(k)))
        return sizes

    found = np.sum(run_ranks(program, 2, 1), axis=0)
    nnz = np.count_nonzero(codes)
    expected = [
        2 * n * (p / 2) * 8 + 2 * n * 8,
        2 * n * (k + 1) * 8,
        2 * k * k * 8,
        2 * (nnz * 12 + 4 * n + 8 * n),
        2 * k * 8,
    ]
    np.testing.assert_allclose(found, expected, atol=600)


@pytest.mark.filterwarnings("ignore:the checkpoint in .* was written by 2 ranks")
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_a_resumed_fit(tmp_path, interrupted, n_ranks):
    """On as many ranks, the same; on more, the same but for rounding and order."""
    X, params = signals(), {"communication": "outputs", "solver": "sgd"}
    whole = fit(X, n_ranks=2, **params)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(6):
            fit(X, n_ranks=2, **params)
        assert list(tmp_path.iterdir())
        resumed = fit(X, n_ranks=n_ranks, **params)
    assert resumed.n_steps_ == whole.n_steps_
    if n_ranks == 2:
        np.testing.assert_array_equal(resumed.components_, whole.components_)
    else:
        last = [
            np.mean([record["objective"] for record in model.history_[-4:]])
            for model in (resumed, whole)
        ]
        assert last[0] == pytest.approx(last[1], rel=0.1)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"solver": "online"}, "communication='outputs' needs solver='sgd', got 'onl"),
        ({"n_ranks": 14}, "shares out columns of X, of which there are 13 for 14 rank"),
        ({"merge_every": 2}, "merge_every=2 has no effect with communication='outputs"),
        ({"dict_init": np.ones((10, 4))}, r"dict_init has the shape \(10, 4\)"),
    ],
)
def test_what_is_refused(params, message):
    with pytest.raises(ValueError, match=message):
        fit(signals(), communication="outputs", **params)


def test_ranks_that_start_again(inproc_client, regrouped):
    """They keep their columns then, whether or not it was time to."""
    params = {"n_components": 6, "alpha": 0.3, "batch_size": 60, "max_iter": 2}
    params |= {"tol": 0, "max_no_improvement": None, "random_state": 0}
    params |= {"solver": "sgd", "communication": "outputs", "n_ranks": 3}
    with inproc_client.as_current():
        whole = SFBDictionaryLearning(**params).fit(signals())
        model = regrouped(SFBDictionaryLearning(**params), 3, signals())
    restarts = [record["restarts"] for record in model.history_]
    assert restarts == [0] * 3 + [1] * (len(whole.history_) - 3)
    np.testing.assert_allclose(model.components_, whole.components_, atol=1e-10)
