"""SFBDictionaryLearning: what it learns, and that ranks make no difference to it."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import MiniBatchDictionaryLearning, sparse_encode
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SFBDictionaryLearning

N, P, K = 240, 8, 6
PARAMS = {
    "n_components": K,
    "alpha": 0.1,
    "max_iter": 3,
    "batch_size": 40,
    "tol": 0,
    "max_no_improvement": None,
    "random_state": 0,
}
CASES = [
    {"n_ranks": 1},
    {"n_ranks": 3},
    {"n_ranks": 3, "solver": "sgd"},
    {"n_ranks": 4, "communication": "factors"},
]


@pytest.fixture(scope="module")
def planted():
    """Rows of two of six atoms each, with some noise, and the atoms."""
    rng = np.random.default_rng(0)
    atoms = np.linalg.qr(rng.normal(size=(P, K)))[0].T
    codes = np.zeros((N, K))
    for code in codes:
        code[rng.choice(K, rng.integers(1, 3), replace=False)] = 1
    codes *= rng.uniform(0.5, 1.5, codes.shape) * rng.choice([-1, 1], codes.shape)
    return codes @ atoms + 0.01 * rng.normal(size=(N, P)), atoms


@pytest.fixture(scope="module")
def X(planted):
    return planted[0]


def fit(X, **params):
    return SFBDictionaryLearning(**{**PARAMS, **params}).fit(X)


def objective(atoms, X, alpha=0.1):
    codes = sparse_encode(X, atoms, algorithm="lasso_lars", alpha=alpha)
    rest = X - codes @ atoms
    return (0.5 * (rest**2).sum(axis=1) + alpha * abs(codes).sum(axis=1)).mean()


def digest(model):
    """All that must be the same."""
    records = [
        (r["round"], r["n_iter"], r["n_samples"], repr(r["objective"]))
        for r in model.history_
    ]
    stats = [each.tobytes() for each in model.inner_stats_]
    return model.components_.tobytes(), stats, records


@pytest.mark.each
@pytest.mark.parametrize("solver", ["online", "sgd"])
@pytest.mark.parametrize("communication", ["statistics", "factors"])
def test_planted_atoms_are_found(planted, solver, communication):
    X, atoms = planted
    steps = {"max_iter": 40, "eta0": 0.5} if solver == "sgd" else {"max_iter": 30}
    model = fit(X, solver=solver, communication=communication, n_ranks=2, **steps)
    likeness = abs(model.components_ @ atoms.T).max(axis=0)
    assert likeness.min() > 0.98
    assert model.n_unused_ == 0
    assert np.linalg.norm(model.components_, axis=1).max() <= 1 + 1e-12


@pytest.fixture(scope="module")
def peer(X):
    """What scikit-learn learns from rows as the first atoms."""
    start = X[:K] / np.linalg.norm(X[:K], axis=1, keepdims=True)
    return MiniBatchDictionaryLearning(
        K,
        alpha=0.1,
        max_iter=10,
        batch_size=40,
        dict_init=start,
        fit_algorithm="cd",
        tol=0,
        max_no_improvement=None,
        random_state=0,
    ).fit(X)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", ["online", "sgd"])
def test_the_objective_is_not_above_that_of_scikit_learn(X, peer, solver):
    # Steps need more passes over so few rows.
    n_passes = 60 if solver == "sgd" else 10
    model = fit(X, max_iter=n_passes, dict_init=peer.dict_init, solver=solver)
    ours = objective(model.components_, X)
    assert ours <= 1.01 * objective(peer.components_, X)
    # The history tells of the same objective, of the batches of the last pass.
    last = np.mean([record["objective"] for record in model.history_[-6:]])
    assert last == pytest.approx(ours, rel=0.02)


def test_ways_to_send_give_the_same(X):
    sums = fit(X, n_ranks=3)
    factors = fit(X, n_ranks=3, communication="factors")
    np.testing.assert_allclose(factors.components_, sums.components_, atol=1e-9)
    np.testing.assert_allclose(factors.inner_stats_[1], sums.inner_stats_[1])


@pytest.mark.each
@pytest.mark.parametrize("solver", ["online", "sgd"])
@pytest.mark.parametrize(("staleness", "most"), [(1, 1.2), (100, 1.4)])
def test_updates_that_are_behind(X, solver, staleness, most):
    """They end nearly as low, catch up in each pass, and are the same anew."""
    params = {"n_ranks": 3, "communication": "factors", "solver": solver}
    params |= {"batch_size": 30, "max_iter": 4}
    prompt, late, again = (
        fit(X, **params, staleness=s) for s in (0, staleness, staleness)
    )
    np.testing.assert_array_equal(late.components_, again.components_)
    assert not np.array_equal(late.components_, prompt.components_)
    ours, theirs = (objective(model.components_, X) for model in (late, prompt))
    assert ours < most * theirs
    n_batches = N // 30
    objectives = np.array([record["objective"] for record in late.history_])
    is_known = np.isfinite(objectives).reshape(-1, n_batches)
    n_late = min(staleness, n_batches - 1)
    assert not is_known[:, :n_late].any() and is_known[:, n_late:].all()
    assert sum(record["n_samples"] for record in late.history_) == 4 * N
    assert late.n_samples_seen_ == prompt.n_samples_seen_ == 4 * N


@pytest.mark.parametrize("solver", ["online", "sgd"])
def test_nothing_is_behind_where_nobody_waits(X, solver):
    """One batch in a pass, or one rank."""
    params = {"communication": "factors", "solver": solver}
    for more in ({"n_ranks": 2, "batch_size": N}, {"n_ranks": 1}):
        one, other = (fit(X, **params, **more, staleness=s) for s in (0, 3))
        np.testing.assert_array_equal(one.components_, other.components_)


@pytest.mark.parametrize("solver", ["online", "sgd"])
def test_one_rank_and_three_learn_the_same_from_whole_passes(X, solver):
    """All rows make a batch; they are added up in another order."""
    params = {"batch_size": N, "solver": solver, "dict_init": X[:K]}
    one, three = (fit(X, n_ranks=n, **params) for n in (1, 3))
    np.testing.assert_allclose(one.components_, three.components_, atol=1e-8)


def test_threads_and_clusters_agree(inproc_client, process_client, X):
    X = X[:120]
    here = [digest(fit(X, **case)) for case in CASES]
    assert [digest(fit(X, **case)) for case in CASES] == here
    for client in (inproc_client, process_client):
        with client.as_current():
            assert [digest(fit(X, **case)) for case in CASES] == here


def test_sparse_rows_are_like_dense_ones(X, monkeypatch):
    rows = np.where(abs(X) > 0.3, X, 0)
    dense = fit(rows, n_ranks=2)
    for communication in ("statistics", "factors"):
        found = fit(sparse.csr_matrix(rows), n_ranks=2, communication=communication)
        np.testing.assert_allclose(found.components_, dense.components_, atol=1e-8)
        codes = found.transform(sparse.csr_matrix(rows))
        np.testing.assert_allclose(codes, dense.transform(rows), atol=1e-3)


@pytest.fixture(scope="module")
def memory(X):
    """What four ranks learn from rows in memory."""
    return fit(X[:80], n_ranks=4)


@pytest.mark.parametrize("kind", ["array", "sparse array", "frame"])
def test_dask_collections(cluster, X, memory, kind):
    X = X[:80]
    rows = da.from_array(X, chunks=(20, P))
    if kind == "sparse array":
        rows = rows.map_blocks(sparse.csr_matrix)
    if kind == "frame":
        names = [f"x{i}" for i in range(P)]
        rows = dd.from_pandas(pd.DataFrame(X, columns=names), npartitions=4)
    model = fit(rows, n_ranks=4)
    np.testing.assert_allclose(model.components_, memory.components_, atol=1e-9)
    codes = model.transform(rows)
    assert isinstance(codes, da.Array)
    assert codes.dtype == np.float64
    np.testing.assert_allclose(codes.compute(), memory.transform(X), atol=1e-9)
    back = model.inverse_transform(codes)
    assert isinstance(back, da.Array)
    np.testing.assert_allclose(back.compute(), memory.inverse_transform(codes))
    if kind == "frame":
        np.testing.assert_array_equal(model.feature_names_in_, names)


def test_codes_are_those_of_the_lasso(X):
    model = fit(X)
    codes = model.transform(X)
    expected = sparse_encode(X, model.components_, algorithm="lasso_lars", alpha=0.1)
    np.testing.assert_allclose(codes, expected, atol=2e-2)
    rest = [X - each @ model.components_ for each in (codes, expected)]
    ours, best = (
        0.5 * (r**2).sum(axis=1) + 0.1 * abs(c).sum(axis=1)
        for r, c in zip(rest, (codes, expected), strict=True)
    )
    assert (ours - best <= 1e-4 * (X**2).sum(axis=1)).all()
    np.testing.assert_allclose(model.inverse_transform(codes), X - rest[0])


def test_penalty_of_transform(X):
    model = fit(X)
    few = clone(model).set_params(transform_alpha=0.8).fit(X).transform(X)
    expected = sparse_encode(X, model.components_, algorithm="lasso_lars", alpha=0.8)
    np.testing.assert_allclose(few, expected, atol=2e-2)
    assert np.count_nonzero(few) < np.count_nonzero(model.transform(X))


def test_too_few_iterations_warn(X):
    model = fit(X, transform_max_iter=1, transform_alpha=1e-6)
    with pytest.warns(ConvergenceWarning, match="raise transform_max_iter"):
        model.transform(X)


def test_split_signs(X):
    model = fit(X)
    both = model.transform(X)
    model.set_params(split_sign=True)
    halves = model.transform(X)
    assert halves.min() == 0
    np.testing.assert_array_equal(halves[:, :K] - halves[:, K:], both)
    np.testing.assert_allclose(
        model.inverse_transform(halves), both @ model.components_
    )
    np.testing.assert_allclose(
        model.inverse_transform(sparse.csr_matrix(halves)), both @ model.components_
    )
    assert len(model.get_feature_names_out()) == 2 * K
    with pytest.raises(ValueError, match="X has 6 columns, but codes of .* have 12"):
        model.inverse_transform(both)


def test_positive_codes_and_atoms(X):
    model = fit(abs(X), positive_code=True, positive_dict=True, n_ranks=2)
    assert model.components_.min() == 0
    assert model.transform(abs(X)).min() == 0
    assert fit(abs(X)).components_.min() < 0


@pytest.mark.parametrize("solver", ["online", "sgd"])
def test_unused_atoms_are_replaced(X, solver):
    """Atoms at right angles to all rows are never used, unless they are replaced."""
    rows = X.copy()
    rows[:, -2:] = 0
    start = np.zeros((K, P))
    start[:4] = rows[:4]
    start[4:, -2:] = np.eye(2)
    params = {"dict_init": start, "solver": solver, "n_ranks": 2}
    kept = fit(rows, resample_unused=False, **params)
    assert kept.n_unused_ == 2
    np.testing.assert_array_equal(kept.components_[4:], start[4:])
    assert all(record["n_replaced"] == 0 for record in kept.history_)
    model = fit(rows, **params)
    assert model.n_unused_ == 0
    assert not model.components_[:, -2:].any()
    assert model.history_[0]["n_replaced"] == 2
    assert objective(model.components_, rows) < objective(kept.components_, rows)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_penalty_that_leaves_no_codes(X, n_ranks):
    alpha = 1.1 * np.linalg.norm(X, axis=1).max()
    with pytest.warns(UserWarning) as warned:
        model = fit(X, alpha=alpha, n_ranks=n_ranks)
    (warning,) = warned
    assert "all codes are 0, so nothing was learned" in str(warning.message)
    assert not model.transform(X).any()
    assert model.n_unused_ == K
    assert np.isfinite(model.components_).all()


@pytest.mark.parametrize("n_ranks", [1, 4])
@pytest.mark.parametrize("batch_size", [1, 2, 1000])
def test_few_rows(X, n_ranks, batch_size):
    """Fewer than batches, or than atoms."""
    params = {"n_ranks": n_ranks, "batch_size": batch_size, "alpha": 1e-3}
    # Of few rows, some atoms become much alike on some processors.
    model = fit(X[:4], **params, transform_max_iter=100_000)
    assert np.isfinite(model.components_).all()
    assert sum(record["n_samples"] for record in model.history_) == 3 * 4
    assert model.n_samples_seen_ == 12
    codes = model.transform(X[:4])
    np.testing.assert_allclose(model.inverse_transform(codes), X[:4], atol=0.05)


def test_types(X):
    for dtype in (np.float32, np.float64):
        model = fit(X.astype(dtype))
        assert model.components_.dtype == dtype
        assert model.transform(X.astype(dtype)).dtype == dtype
    single, double = fit(X.astype(np.float32)), fit(X)
    np.testing.assert_allclose(single.components_, double.components_, atol=1e-2)


def test_partial_fit_goes_on(X):
    """All at once, or in parts of any size: the same atoms, since rows count alike."""
    params = {**PARAMS, "shuffle": False, "dict_init": X[:K], "n_ranks": 1}
    whole = SFBDictionaryLearning(**params).partial_fit(X)
    parts = SFBDictionaryLearning(**params)
    for start, stop in ((0, 40), (40, 160), (160, N)):
        parts.partial_fit(X[start:stop])
    np.testing.assert_allclose(parts.components_, whole.components_, atol=1e-10)
    assert parts.n_samples_seen_ == whole.n_samples_seen_ == N
    assert parts.n_steps_ == whole.n_steps_ == 6
    uneven = SFBDictionaryLearning(**params)
    for start, stop in ((0, 40), (40, 45), (45, 120), (120, N)):
        uneven.partial_fit(X[start:stop])
    ours, theirs = (objective(each.components_, X) for each in (uneven, whole))
    assert ours == pytest.approx(theirs, rel=0.05)
    with pytest.raises(ValueError, match="n_components is 3, but the atoms to go on"):
        parts.set_params(n_components=3).partial_fit(X)


def test_a_fit_ends_when_nothing_gets_better(X):
    calm = {"max_iter": 200, "n_ranks": 2}
    by_change = fit(X, tol=1e-2, **calm)
    by_patience = fit(X, max_no_improvement=3, **calm)
    for model in (by_change, by_patience):
        assert model.n_iter_ < 200
        assert len(model.history_) == model.n_steps_
    assert fit(X, tol=1e-3, **calm).n_steps_ > by_change.n_steps_
    assert fit(X, max_no_improvement=6, **calm).n_steps_ > by_patience.n_steps_


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"dict_init": np.ones((K, P + 1))}, r"dict_init has the shape \(6, 9\)"),
        ({"dict_init": np.ones((K + 1, P))}, r"expected \(6, 8\)"),
        ({"dict_init": np.full((K, P), np.nan)}, "Input dict_init contains NaN"),
        ({"dict_init": np.zeros((K, P))}, "dict_init has zeros alone"),
        ({"alpha": 0}, "'alpha' parameter of SFBDictionaryLearning must be"),
        ({"communication": "server"}, "'communication' parameter"),
    ],
)
def test_parameters_that_are_refused(X, params, message):
    with pytest.raises(ValueError, match=message):
        fit(X, **params)


def test_rows_that_are_refused(X):
    with pytest.raises(ValueError, match="Input X holds values up to .* scale the fea"):
        fit(1e200 * X)
    mixed = da.concatenate(
        [da.from_array(X), da.from_array(X).map_blocks(sparse.csr_matrix)]
    )
    with pytest.raises(TypeError, match="X has sparse and dense blocks|all blocks|mix"):
        fit(mixed, n_ranks=2)


def test_rows_of_zeros():
    with pytest.warns(UserWarning, match="all codes are 0"):
        model = fit(np.zeros((10, P)))
    assert not model.transform(np.zeros((3, P))).any()
