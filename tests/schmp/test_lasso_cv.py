"""SchMPLassoCV against scikit-learn's cross-validated models."""

import warnings

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, ElasticNetCV, Lasso, LassoCV
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit
from sklearn.preprocessing import StandardScaler

from dask_ma import SchMPLasso, SchMPLassoCV

PARAMS = {"tol": 1e-9, "alphas": 5, "eps": 0.02}
EXACT = {"tol": 1e-11, "max_iter": 10**6}
LAYOUTS = [(1, "rows"), (3, "rows"), (2, "columns")]
every_layout = pytest.mark.parametrize(("n_ranks", "layout"), LAYOUTS)


def assert_same_choice(model, expected):
    assert model.alpha_ == pytest.approx(expected.alpha_, rel=1e-9)
    np.testing.assert_allclose(model.alphas_, expected.alphas_, rtol=1e-9)
    np.testing.assert_allclose(model.mse_path_, expected.mse_path_, rtol=2e-4)
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-4)
    assert model.intercept_ == pytest.approx(expected.intercept_, abs=1e-3)


@pytest.mark.each
@every_layout
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["dense", "csr_array"])
def test_lasso(wide, n_ranks, layout, weighted, kind):
    X, y = wide["X"], wide["number"]
    weight = wide["weight"] * (np.arange(60) % 9 > 0) if weighted else None
    expected = LassoCV(cv=4, **{**PARAMS, **EXACT}).fit(X, y, sample_weight=weight)
    rows = sparse.csr_array(X) if kind == "csr_array" else X
    model = SchMPLassoCV(cv=4, **PARAMS, n_ranks=n_ranks, layout=layout)
    assert_same_choice(model.fit(rows, y, sample_weight=weight), expected)
    assert model.l1_ratio_ == 1.0
    assert model.mse_path_.shape == (5, 4)


@pytest.mark.parametrize(
    "params", [{"positive": True}, {"fit_intercept": False}], ids=str
)
def test_settings(wide, params):
    X, y = wide["X"], wide["number"]
    expected = LassoCV(cv=3, **{**PARAMS, **EXACT}, **params).fit(X, y)
    model = SchMPLassoCV(cv=3, **PARAMS, **params, n_ranks=2).fit(X, y)
    assert_same_choice(model, expected)


FOLDS, RATIOS = KFold(3, shuffle=True, random_state=0), [0.5, 1.0]


@pytest.fixture(scope="module")
def of_several_ratios(wide):
    """What scikit-learn chooses from two ratios."""
    model = ElasticNetCV(cv=FOLDS, l1_ratio=RATIOS, **{**PARAMS, **EXACT})
    return model.fit(wide["X"], wide["number"])


@every_layout
def test_several_ratios_and_a_generator(wide, of_several_ratios, n_ranks, layout):
    X, y, expected = wide["X"], wide["number"], of_several_ratios
    model = SchMPLassoCV(
        cv=FOLDS, l1_ratio=RATIOS, **PARAMS, n_ranks=n_ranks, layout=layout
    ).fit(X, y)
    assert_same_choice(model, expected)
    assert model.l1_ratio_ == expected.l1_ratio_
    assert model.alphas_.shape == (2, 5) and model.mse_path_.shape == (2, 5, 3)
    kinds = [(r["l1_ratio"], r["fold"]) for r in model.history_]
    assert kinds == [(ratio, fold) for ratio in RATIOS for fold in range(3)]
    assert [r["round"] for r in model.history_] == [1, 2, 3, 4, 5, 6]
    least = model.mse_path_.min(axis=1).ravel()
    found = [record["mean_squared_error"] for record in model.history_]
    np.testing.assert_allclose(found, least)


def test_folds_may_overlap_and_leave_rows_out(wide):
    X, y = wide["X"], wide["number"]
    folds = ShuffleSplit(3, train_size=0.5, test_size=0.3, random_state=0)
    expected = LassoCV(cv=folds, **{**PARAMS, **EXACT}).fit(X, y)
    pairs = list(folds.split(X))
    for cv in (folds, pairs, iter(pairs)):
        model = SchMPLassoCV(cv=cv, **PARAMS, n_ranks=2).fit(X, y)
        assert_same_choice(model, expected)


def test_given_alphas(wide):
    X, y = wide["X"], wide["number"]
    alphas = [0.05, 3.0, 0.4]
    expected = LassoCV(cv=3, alphas=alphas, **EXACT).fit(X, y)
    model = SchMPLassoCV(cv=3, alphas=alphas, tol=1e-9).fit(X, y)
    assert model.alphas_.tolist() == [3.0, 0.4, 0.05]
    assert_same_choice(model, expected)


def test_weights_of_features(wide):
    """They divide the columns."""
    X, y = wide["X"], wide["number"]
    factors = np.random.default_rng(1).uniform(0.3, 3, 90)
    expected = LassoCV(cv=3, **{**PARAMS, **EXACT}).fit(X / factors, y)
    model = SchMPLassoCV(cv=3, feature_weights=factors, **PARAMS, n_ranks=2).fit(X, y)
    assert model.alpha_ == pytest.approx(expected.alpha_)
    np.testing.assert_allclose(model.mse_path_, expected.mse_path_, rtol=2e-4)
    np.testing.assert_allclose(model.coef_ * factors, expected.coef_, atol=1e-4)


def test_the_default_is_five_folds(wide):
    X, y = wide["X"], wide["number"]
    params = {"alphas": 2, "eps": 0.1}
    model = SchMPLassoCV(**params).fit(X, y)
    other = SchMPLassoCV(**params, cv=5).fit(X, y)
    assert model.mse_path_.shape == (2, 5)
    np.testing.assert_array_equal(model.mse_path_, other.mse_path_)


def test_the_final_model_is_that_of_the_chosen_alpha(wide):
    X, y = wide["X"], wide["number"]
    model = SchMPLassoCV(cv=3, **PARAMS, n_ranks=2).fit(X, y, wide["weight"])
    final = SchMPLasso(model.alpha_, tol=1e-9).fit(X, y, wide["weight"])
    np.testing.assert_allclose(model.coef_, final.coef_, atol=1e-6)
    assert model.dual_gap_ <= 1e-9 * final.history_[0]["objective"] * 10
    twin = model.to_sklearn()
    assert type(twin) is Lasso and twin.alpha == model.alpha_
    np.testing.assert_array_equal(twin.predict(X), model.predict(X))
    np.testing.assert_array_equal(model.sparsify().predict(X), twin.predict(X))
    mixed = SchMPLassoCV(cv=3, alphas=3, l1_ratio=0.5).fit(X, y).to_sklearn()
    assert type(mixed) is ElasticNet and mixed.l1_ratio == 0.5


def test_chunks_of_unknown_sizes(wide, cluster):
    """Folds of consecutive rows need no lengths from the client."""
    X, y = wide["X"], wide["number"]
    params = {**PARAMS, "cv": 4, "alphas": 3}
    expected = SchMPLassoCV(**params).fit(X, y)

    def unknown(a):
        rows = da.from_array(a, chunks=(17, *a.shape[1:]))
        parts = [
            da.from_delayed(key, (np.nan, *a.shape[1:]), a.dtype)
            for key in rows.to_delayed().ravel()
        ]
        return da.concatenate(parts, allow_unknown_chunksizes=True)

    def known(a):
        return da.from_array(a, chunks=(13, *a.shape[1:]))

    for make, layout in ((unknown, "rows"), (known, "columns")):
        model = SchMPLassoCV(**params, layout=layout).fit(make(X), make(y))
        assert_same_choice(model, expected)
    with pytest.raises(ValueError, match="unknown number of rows.*cv must be an int"):
        SchMPLassoCV(cv=KFold(3)).fit(unknown(X), unknown(y))


def test_blocks_that_lie_anywhere(wide, cluster):
    """Which rank has a block does not decide to which fold its rows belong."""
    X, y = wide["X"], wide["number"]
    lazy = da.from_array(X, chunks=(15, -1))
    addresses = list(cluster.scheduler_info()["workers"])[::-1]
    parts = [
        cluster.persist(part, workers=[address])
        for part, address in zip(lazy.blocks, addresses, strict=True)
    ]
    moved = da.concatenate(parts)
    folds = KFold(3, shuffle=True, random_state=1)
    for cv in (folds, 3):
        params = {**PARAMS, "cv": cv, "alphas": 3}
        expected = SchMPLassoCV(**params).fit(X, y)
        model = SchMPLassoCV(**params).fit(moved, y)
        assert_same_choice(model, expected)


def test_threads_and_clusters_agree_to_the_bit(wide, inproc_client):
    def fit():
        model = SchMPLassoCV(cv=3, alphas=5, n_ranks=3)
        model.fit(wide["X"], wide["number"])
        return model.coef_.tobytes(), model.alpha_, model.mse_path_.tobytes()

    here = fit()
    with inproc_client.as_current():
        assert fit() == here


IN_STAGES = {"cv": 3, "l1_ratio": RATIOS, "n_ranks": 2, **PARAMS}


@pytest.fixture(scope="module")
def uninterrupted(wide):
    return SchMPLassoCV(**IN_STAGES).fit(wide["X"], wide["number"])


@pytest.mark.parametrize("n_before", [1, 4])
def test_a_resumed_fit_is_an_uninterrupted_one(
    wide, uninterrupted, tmp_path, monkeypatch, n_before
):
    from dask_ma.schmp.l1 import _path

    class StopAfterError(Exception):
        """Stands for the end of the process."""

    X, y = wide["X"], wide["number"]
    whole = uninterrupted
    original = _path.Folds.measure

    def stop(self):
        if self.n_rounds > n_before:
            raise StopAfterError
        return original(self)

    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        monkeypatch.setattr(_path.Folds, "measure", stop)
        with pytest.raises(StopAfterError):
            SchMPLassoCV(**IN_STAGES).fit(X, y)
        monkeypatch.undo()
        resumed = SchMPLassoCV(**IN_STAGES).fit(X, y)
    assert [r["round"] for r in resumed.history_] == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(resumed.mse_path_, whole.mse_path_, rtol=1e-10)
    np.testing.assert_allclose(resumed.coef_, whole.coef_, atol=1e-10)
    assert resumed.alpha_ == whole.alpha_


def test_few_rounds_warn(wide):
    """Of the final model, and of those of the folds."""
    model = SchMPLassoCV(cv=3, alphas=[1e-3], tol=1e-12, max_iter=1)
    with (
        pytest.warns(ConvergenceWarning, match="3 of 3 models of the path"),
        pytest.warns(ConvergenceWarning, match="maximum of 1 rounds"),
    ):
        model.fit(wide["X"], wide["number"])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"cv": 1}, "The 'cv' parameter of SchMPLassoCV"),
        (
            {"cv": 61},
            "cv must be at least 2 and at most the number of rows, n_samples=60",
        ),
        ({"alphas": [0.0, 1.0]}, "numbers above 0"),
        ({"alphas": []}, "numbers above 0"),
        ({"alphas": [[1.0]]}, "numbers above 0"),
        ({"l1_ratio": []}, "l1_ratio must be a number from 0 to 1"),
        ({"l1_ratio": [0.5, 1.5]}, "l1_ratio must be a number from 0 to 1"),
        ({"l1_ratio": 0.0}, "alphas cannot be chosen for l1_ratio=0"),
        ({"feature_weights": np.ones(3)}, r"feature_weights must have shape \(90,\)"),
    ],
    ids=str,
)
def test_errors(wide, params, message):
    model = SchMPLassoCV(**params, n_ranks=2)
    with pytest.raises(ValueError, match=message):
        model.fit(wide["X"], wide["number"])
    assert not hasattr(model, "coef_") and not hasattr(model, "alpha_")


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_fold_without_weight(wide, n_ranks):
    weight = np.r_[np.zeros(40), np.ones(20)]
    model = SchMPLassoCV(cv=3, alphas=3, n_ranks=n_ranks)
    folds = [(np.arange(40), np.arange(40, 60))]
    with pytest.raises(ValueError, match="a fold has no row with a positive weight"):
        model.set_params(cv=folds).fit(wide["X"], wide["number"], weight)


@pytest.mark.parametrize("seed", range(2))
def test_folds_of_unequal_sizes_count_alike(seed):
    """As in scikit-learn: 13 rows make folds of 4, 3, 3 and 3."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(13, 6))
    y = X[:, 0] + 2 * rng.normal(size=13)
    params = {"cv": 4, "alphas": 30, "eps": 0.01}
    model = SchMPLassoCV(**params, tol=1e-8, n_ranks=2).fit(X, y)
    expected = LassoCV(**params, tol=1e-10, max_iter=10**6).fit(X, y)
    np.testing.assert_allclose(model.mse_path_, expected.mse_path_, rtol=1e-3)
    assert model.alpha_ == pytest.approx(expected.alpha_, rel=1e-3)


def test_folds_that_do_not_converge_are_told(wide):
    X, y = wide["X"], wide["number"]
    params = {"cv": 3, "alphas": 4, "eps": 1e-3, "tol": 1e-9}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SchMPLassoCV(**params, max_iter=1).fit(X, y)
    messages = [str(warning.message) for warning in caught]
    assert any(" of 12 models of the path had not converged" in m for m in messages)
    assert {warning.filename for warning in caught} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SchMPLassoCV(**params).fit(X, y)


def test_too_few_rows_for_the_default_folds(wide):
    with pytest.raises(ValueError, match="n_samples=3, got cv=None, which means 5$"):
        SchMPLassoCV().fit(wide["X"][:3], wide["number"][:3])
    with pytest.raises(ValueError, match="n_samples=3, got cv=4$"):
        SchMPLassoCV(cv=4).fit(wide["X"][:3], wide["number"][:3])


def test_groups(wide):
    """They go to the splitter, as with scikit-learn's LassoCV."""
    X, y = wide["X"], wide["number"]
    groups = np.random.default_rng(0).integers(6, size=len(y))
    params = {"alphas": 10, "eps": 0.1, "cv": GroupKFold(3)}
    with pytest.raises(ValueError, match="enable_metadata_routing"):
        SchMPLassoCV(**params).fit(X, y, groups=groups)
    with config_context(enable_metadata_routing=True):
        model = SchMPLassoCV(**params).fit(X, y, groups=groups)
        weighted = SchMPLassoCV(**params).fit(X, y, np.ones(len(y)), groups=groups)
        with pytest.raises(TypeError, match="groups"):
            SchMPLassoCV(cv=3).fit(X, y, groups=groups)
        once = SchMPLassoCV(alphas=4, cv=KFold(3).split(X)).fit(X, y)
        searched = LassoCV(**params, **EXACT).fit(X, y, groups=groups)
    assert once.mse_path_.shape == (4, 3)
    np.testing.assert_array_equal(model.mse_path_, weighted.mse_path_)
    np.testing.assert_allclose(model.mse_path_, searched.mse_path_, rtol=1e-3)
    folds = list(GroupKFold(3).split(X, y, groups))
    expected = SchMPLassoCV(alphas=10, eps=0.1, cv=folds).fit(X, y)
    np.testing.assert_array_equal(model.mse_path_, expected.mse_path_)


@pytest.mark.parametrize(
    ("n_ranks", "layout"), [(1, "rows"), (2, "rows"), (2, "columns")]
)
@pytest.mark.parametrize("l1_ratio", [1.0, [0.5, 0.9]])
def test_alphas_by_a_feature_of_large_values_are_told_of(l1_ratio, n_ranks, layout):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 6))
    y = X[:, 2] + 0.1 * rng.standard_normal(200)
    X[:, 4] = rng.integers(10**11, 10**12, 200)  # ids
    params = {"alphas": 15, "cv": 3, "n_ranks": n_ranks, "layout": layout}
    model = SchMPLassoCV(l1_ratio=l1_ratio, **params)
    with pytest.warns(UserWarning, match="all alphas are too large") as record:
        model.fit(X, y)
    (note,) = (str(one.message) for one in record if "alphas" in str(one.message))
    assert "feature 2," in note and "feature 4," in note and "StandardScaler" in note
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        X = StandardScaler().fit_transform(X)
        assert model.fit(X, y).score(X, y) > 0.9
        X *= [1, 1, 1, 1e-5, 1e-5, 1]  # what is left out is of no use
        assert model.fit(X, y).score(X, y) > 0.9


@every_layout
@pytest.mark.parametrize("kind", ["dense", "csr_array", "float32"])
@pytest.mark.parametrize("value", [0.0, 0.1, 1.0, 1e6 + 0.3])
def test_columns_without_spread_tell_nothing(value, kind, n_ranks, layout):
    """Rounding leaves something of their covariances, which no alpha goes by."""
    y = np.random.default_rng(0).normal(150, 77, size=442)
    X = np.full((442, 3), value)
    rows = {"csr_array": sparse.csr_array, "float32": np.float32, "dense": np.asarray}
    model = SchMPLassoCV(n_ranks=n_ranks, layout=layout).fit(rows[kind](X), y)
    np.testing.assert_array_equal(model.coef_, 0)
    assert model.intercept_ == pytest.approx(y.mean())
    assert (model.alphas_ > 0).all()


def test_columns_of_little_spread_tell_what_they_tell():
    """A millionth of a millionth of their size is more than rounding."""
    rng = np.random.default_rng(0)
    X = rng.integers(-9, 10, size=(200, 2)) * 2.0**-40
    y = X[:, 0] * 2.0**40
    plain = SchMPLassoCV(alphas=10).fit(X, y)
    model = SchMPLassoCV(alphas=10).fit(1 + X, y)
    np.testing.assert_allclose(model.alphas_, plain.alphas_, rtol=1e-3)
    np.testing.assert_allclose(model.coef_, plain.coef_, rtol=1e-3)


@pytest.mark.parametrize("max_iter", [2, 1000])
def test_callbacks_see_the_last_model_of_each_path(max_iter):
    """There is one call for each, of more folds than iterations of a model, too."""
    pytest.importorskip(
        "sklearn.callback", reason="scikit-learn has callbacks from version 1.9 on"
    )
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8))
    y = X[:, 0] + 0.1 * rng.normal(size=60)
    seen = []

    class Watch:
        def setup(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context, **data):
            if context.task_name == "fit":
                seen.append(context.max_subtasks)

        def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
            if fitted_estimator is not None:
                one = fitted_estimator.alpha_, fitted_estimator.l1_ratio_
                seen.append((*one, fitted_estimator.score(X, y)))

        def teardown(self, estimator, context):
            pass

    settings = {"l1_ratio": [0.5, 1.0], "alphas": [0.3, 0.01], "cv": 3}
    model = SchMPLassoCV(**settings, max_iter=max_iter, n_ranks=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.set_callbacks(Watch()).fit(X, y)
    n_rounds, *rounds = seen
    assert n_rounds == len(rounds) == 6
    assert [r[:2] for r in rounds] == [(0.01, 0.5)] * 3 + [(0.01, 1.0)] * 3
    assert min(r[2] for r in rounds) > 0.9
