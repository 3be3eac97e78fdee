"""The life of a fitted estimator."""

import pickle

import numpy as np
import pandas as pd
import pytest
from distributed.utils import get_mp_context
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dask_ma import MASGDClassifier, MASGDRegressor

PARAMS = {"max_iter": 3, "tol": None, "random_state": 0, "n_ranks": 2}
BOTH = pytest.mark.parametrize("cls", [MASGDClassifier, MASGDRegressor])


@pytest.fixture
def fitted(binary):
    return MASGDClassifier(**PARAMS).fit(*binary)


# -- Copies --------------------------------------------------------------------------


@BOTH
def test_clone_has_the_parameters_and_nothing_else(cls, binary):
    model = cls(alpha=0.3, n_ranks=2, max_iter=2, tol=None).fit(*binary)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "coef_")


@BOTH
def test_pickle_keeps_the_model(cls, binary):
    model = cls(**PARAMS).fit(*binary)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(binary[0]), model.predict(binary[0]))
    assert copy.history_ == model.history_


def test_model_fitted_on_a_cluster_predicts_without_one(cluster, binary, tmp_path):
    X, y = binary
    model = MASGDClassifier("log_loss", **PARAMS).fit(X, np.array(["no", "yes"])[y])
    (tmp_path / "model").write_bytes(pickle.dumps(model))
    np.save(tmp_path / "X.npy", X)
    program = (
        "import os, pickle, numpy as np\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "model = pickle.load(open('model', 'rb'))\n"
        "np.save('p.npy', model.predict_proba(np.load('X.npy')))\n"
    )
    # Of a server that has no cluster, but has imported what takes seconds.
    process = get_mp_context().Process(target=exec, args=(program, {}))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    np.testing.assert_array_equal(np.load(tmp_path / "p.npy"), model.predict_proba(X))


def test_fitted_attributes_are_plain(cluster, binary):
    model = MASGDClassifier(**PARAMS).fit(*binary)
    for name, value in vars(model).items():
        if name.endswith("_"):
            assert type(value) in (np.ndarray, int, float, list), name


# -- scikit-learn's estimator --------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "twin", "name"),
    [
        (MASGDClassifier, SGDClassifier, "binary"),
        (MASGDClassifier, SGDClassifier, "multi"),
        (MASGDRegressor, SGDRegressor, "regression"),
    ],
)
def test_to_sklearn_predicts_the_same(cls, twin, name, request):
    X, y = request.getfixturevalue(name)
    steps = {"learning_rate": "invscaling"}
    ours = cls(alpha=0.02, penalty="l1", **steps, **PARAMS).fit(X, y)
    theirs = ours.to_sklearn()
    assert type(theirs) is twin
    np.testing.assert_array_equal(theirs.predict(X), ours.predict(X))
    shared = set(theirs.get_params()) & set(ours.get_params())
    assert len(shared) >= 18
    expected = ours.get_params() | {"n_iter_no_change": 5}  # for "auto"
    for parameter in shared:
        assert theirs.get_params()[parameter] == expected[parameter]
    assert theirs.n_features_in_ == 6
    assert theirs.n_iter_ == 3


@BOTH
def test_to_sklearn_shares_no_memory_and_goes_on(cls, binary):
    X, y = binary
    params = {"shuffle": False, "tol": None, "learning_rate": "invscaling"}
    ours = cls(n_ranks=1, max_iter=2, local_epochs=1, **params)
    ours.fit(X, y)
    before = ours.coef_.copy()
    theirs = ours.to_sklearn().partial_fit(X, y)
    np.testing.assert_array_equal(ours.coef_, before)
    assert theirs.t_ == ours.t_ + 120
    # The schedule of the learning rate goes on as well: a third pass is a third pass.
    third = cls(n_ranks=1, max_iter=3, local_epochs=1, **params)
    np.testing.assert_allclose(theirs.coef_, third.fit(X, y).coef_, rtol=1e-12)


def test_to_sklearn_keeps_feature_names(binary):
    frame = pd.DataFrame(binary[0], columns=list("abcdef"))
    theirs = MASGDClassifier(**PARAMS).fit(frame, binary[1]).to_sklearn()
    assert theirs.feature_names_in_.tolist() == list("abcdef")
    theirs.predict(frame)
    with pytest.raises(ValueError, match="feature names"):
        theirs.predict(frame.rename(columns={"a": "z"}))


def test_to_sklearn_of_a_sparse_model(fitted, binary):
    expected = fitted.decision_function(binary[0])
    theirs = fitted.sparsify().to_sklearn()
    np.testing.assert_allclose(theirs.decision_function(binary[0]), expected)


@pytest.mark.parametrize("method", ["to_sklearn", "sparsify", "densify"])
@BOTH
def test_before_fit(cls, method):
    with pytest.raises(NotFittedError):
        getattr(cls(), method)()


# -- Sparse coefficients -------------------------------------------------------------


@pytest.mark.parametrize("name", ["binary", "multi"])
def test_sparsify_and_densify(name, request):
    X, y = request.getfixturevalue(name)
    model = MASGDClassifier(penalty="l1", alpha=0.05, **PARAMS).fit(X, y)
    dense, predicted = model.coef_, model.decision_function(X)
    assert model.sparsify() is model
    assert sparse.issparse(model.coef_)
    np.testing.assert_allclose(model.decision_function(X), predicted)
    assert model.densify() is model
    np.testing.assert_array_equal(model.coef_, dense)


def test_sparsify_a_regressor(regression):
    X, y = regression
    model = MASGDRegressor(penalty="l1", alpha=0.05, **PARAMS).fit(X, y)
    predicted = model.predict(X)
    np.testing.assert_allclose(model.sparsify().predict(X), predicted)
    assert model.densify().coef_.shape == (6,)
    np.testing.assert_allclose(model.predict(X), predicted)


def test_sparse_model_can_be_trained_on(binary):
    X, y = binary
    models = [MASGDClassifier(n_ranks=2, random_state=0) for _ in range(2)]
    for model in models:
        model.partial_fit(X, y, classes=[0, 1])
    models[0].sparsify()
    for model in models:
        model.partial_fit(X, y)
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)


# -- Going on ------------------------------------------------------------------------


@BOTH
def test_warm_start_goes_on_from_the_model(cls, binary):
    X, y = binary
    model = cls(**{**PARAMS, "warm_start": True}).fit(X, y)
    start = {"coef_init": model.coef_, "intercept_init": model.intercept_}
    given = cls(**PARAMS).fit(X, y, **start)
    model.fit(X, y)
    np.testing.assert_array_equal(model.coef_, given.coef_)
    assert len(model.history_) == model.n_iter_ == 3


def test_warm_start_with_other_shapes(binary, multi):
    model = MASGDClassifier(warm_start=True, **PARAMS).fit(*binary)
    before = model.coef_.copy()
    with pytest.raises(ValueError, match="same classes as in the previous call"):
        model.fit(*multi)
    np.testing.assert_array_equal(model.coef_, before)
    assert model.classes_.tolist() == [0, 1]


@BOTH
def test_without_warm_start_a_fit_starts_anew(cls, binary):
    model = cls(**PARAMS).fit(*binary)
    first = model.coef_.copy()
    np.testing.assert_array_equal(model.fit(*binary).coef_, first)


@BOTH
def test_partial_fit_of_a_stream_is_scikit_learns(cls, binary):
    X, y = binary
    twin = {MASGDClassifier: SGDClassifier, MASGDRegressor: SGDRegressor}[cls]
    params = {"shuffle": False, "learning_rate": "invscaling"}
    ours, theirs = cls(n_ranks=1, **params), twin(**params)
    classes = {"classes": [0, 1]} if cls is MASGDClassifier else {}
    cuts = [0, 50, 51, 90, 120]
    for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
        rows = slice(start, stop)
        ours.partial_fit(X[rows], y[rows], **classes)
        theirs.partial_fit(X[rows], y[rows], **classes)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-12)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-12)
        assert ours.t_ == theirs.t_
        assert ours.n_iter_ == len(ours.history_) == 1


@BOTH
def test_partial_fit_goes_on_from_fit(cls, binary):
    X, y = binary
    model = cls(**PARAMS).fit(X, y)
    t, objective = model.t_, model.history_[-1]["objective"]
    model.partial_fit(X, y)
    assert model.t_ > t
    assert model.history_[0]["objective"] < 1.5 * objective


@BOTH
@pytest.mark.parametrize("params", [{"early_stopping": True}])
def test_partial_fit_refuses_what_needs_many_rounds(cls, binary, params):
    classes = {"classes": [0, 1]} if cls is MASGDClassifier else {}
    [name] = params
    with pytest.raises(ValueError, match=f"{name} should be False with partial_fit"):
        cls(**params).partial_fit(*binary, **classes)


# -- What the user is told -----------------------------------------------------------


@BOTH
def test_convergence_warning(cls, binary):
    model = cls(**{**PARAMS, "tol": 1e-9, "refine": None})
    with pytest.warns(ConvergenceWarning, match="maximum of 3 rounds"):
        model.fit(*binary)
    assert model.n_iter_ == 3


@BOTH
def test_no_convergence_warning_without_tol_or_when_settled(cls, binary):
    cls(**PARAMS).fit(*binary)
    model = cls(max_iter=1000, n_ranks=2, tol=0.1).fit(*binary)
    assert model.n_iter_ < 1000


@BOTH
def test_html_and_text(cls, binary):
    model = cls(alpha=0.25, n_ranks=2)
    assert "alpha" in model._repr_html_()
    assert cls.__name__ in model._repr_html_()
    assert repr(model) == f"{cls.__name__}(alpha=0.25, n_ranks=2)"


def test_set_output_is_harmless(binary):
    frame = pd.DataFrame(binary[0], columns=list("abcdef"))
    pipeline = make_pipeline(StandardScaler(), MASGDClassifier(**PARAMS))
    pipeline.set_output(transform="pandas").fit(frame, binary[1])
    assert isinstance(pipeline.predict(frame), np.ndarray)
    assert pipeline[-1].feature_names_in_.tolist() == list("abcdef")


# -- Metadata routing ----------------------------------------------------------------


@BOTH
def test_weights_are_routed_through_a_pipeline(cls, binary, weights):
    X, y = binary
    with config_context(enable_metadata_routing=True):
        routed = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=False),
            cls(**PARAMS).set_fit_request(sample_weight=True),
        ).fit(X, y, sample_weight=weights)
        deaf = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=False),
            cls(**PARAMS).set_fit_request(sample_weight=False),
        )
        direct = cls(**PARAMS)
        direct.fit(StandardScaler().fit_transform(X), y, sample_weight=weights)
        np.testing.assert_array_equal(routed[-1].coef_, direct.coef_)
        with pytest.raises(TypeError, match="sample_weight"):
            deaf.fit(X, y, sample_weight=weights)
