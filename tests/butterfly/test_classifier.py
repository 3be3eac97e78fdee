"""The estimator: parameters that act, predictions, input that is refused."""

import pickle

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import SGDClassifier

from dask_ma import ButterflySGDClassifier

QUICK = {"max_iter": 3, "tol": None, "random_state": 0, "n_ranks": 4, "batch_size": 8}


def fit(data, **params):
    return ButterflySGDClassifier(**{**QUICK, **params}).fit(*data)


@pytest.fixture(scope="module")
def skewed(binary):
    """Rows of classes of unequal size with a rare feature, and a model of them."""
    X, y = binary
    # Rare features are the ones that "bounded" bounds.
    rows = X[20:] * np.array([1, 1, 1, 1, 1, 0.0]) + (np.arange(100) == 7)[:, None]
    data = rows, np.where(np.arange(100) < 60, 0, y[20:])
    return data, fit(data).coef_


@pytest.mark.parametrize(
    "change",
    [
        {"loss": "hinge"},
        {"loss": "squared_hinge"},
        {"alpha": 0.1},
        {"fit_intercept": False},
        {"max_iter": 4},
        {"shuffle": False},
        {"batch_size": 4},
        {"mixing": "allreduce"},
        {"mixing": "periodic"},
        {"mixing": "none"},
        {"eta0": 0.2},
        {"learning_rate": "invscaling"},
        {"preconditioner": None},
        {"preconditioner": "jacobi"},
        {"preconditioner": "frequency"},
        {"average": True},
        {"average": 250},
        {"early_stopping": True},
        {"random_state": 1},
        {"class_weight": "balanced"},
        {"n_ranks": 2},
    ],
    ids=str,
)
def test_every_parameter_acts(skewed, change):
    data, coef = skewed
    assert not np.array_equal(coef, fit(data, **change).coef_)


def test_epsilon_and_the_rows_held_out_act(binary):
    for base, change in (
        ({"loss": "huber"}, {"epsilon": 0.3}),
        ({"early_stopping": True}, {"validation_fraction": 0.3}),
    ):
        model, changed = fit(binary, **base), fit(binary, **base, **change)
        assert not np.array_equal(model.coef_, changed.coef_)


def test_early_stopping_goes_by_the_score_on_rows_held_out(binary):
    X, y = binary
    params = {"early_stopping": True, "tol": 1e-3, "max_iter": 300, "n_ranks": 2}
    model = fit((X, y), **params, n_iter_no_change=4)
    assert model.n_iter_ < 300
    scores = [record["validation_score"] for record in model.history_]
    assert all(0 <= score <= 1 for score in scores)
    best = np.maximum.accumulate(scores)
    assert all(score <= best[-5] + 1e-3 for score in scores[-4:])
    assert model.history_[0]["n_samples"] == 120 - 2 * 6
    # Without noise in the labels all rows held out are told apart.
    assert scores[-1] > 0.8


def test_a_refinement_with_too_few_rounds_warns(binary):
    with pytest.warns(ConvergenceWarning, match="the refinement ended after 6 rounds"):
        model = fit(binary, max_iter=4, tol=1e-3, refine_max_iter=2, refine_tol=1e-15)
    assert ["refined" in r for r in model.history_] == [False] * 4 + [True] * 2
    assert model.n_iter_ == 6


@pytest.mark.parametrize(
    ("params", "is_refined"),
    [
        ({}, True),
        ({"refine": None}, False),
        ({"tol": None, "max_iter": 9}, False),
        ({"early_stopping": True}, False),
        ({"mixing": "none"}, False),
        ({"tol": None, "max_iter": 9, "refine": "lbfgs"}, True),
        ({"mixing": "none", "refine": "newton"}, True),
        ({"loss": "hinge"}, True),
    ],
    ids=str,
)
def test_what_is_refined(binary, params, is_refined):
    params = {"tol": 1e-3, "max_iter": 100, **params}
    model = fit(binary, **params)
    marked = [record for record in model.history_ if record.get("refined")]
    assert bool(marked) == is_refined
    passes = model.history_[: len(model.history_) - len(marked)]
    assert all("eta" in record for record in passes)
    assert model.eta_ > 0
    assert model.moments_.total == pytest.approx(120 - 12 * ("early" in str(params)))
    if is_refined:
        assert marked[-1]["excess"] <= model.refine_tol
        assert marked[-1]["objective"] <= passes[-1]["objective"]


def test_a_model_worse_than_the_start_is_not_refined(binary):
    """The refinement begins where the fit has begun."""
    params = {"learning_rate": "invscaling", "tol": 1e-3, "max_iter": 2, "alpha": 0.01}
    risen = pytest.warns(UserWarning, match="the objective has risen from 0.693")
    with pytest.warns(ConvergenceWarning, match="maximum of 2 rounds"), risen:
        bad = fit(binary, **params, eta0=1e4, refine=None)
    model = fit(binary, **params, eta0=1e4, refine_max_iter=30)
    assert bad.history_[-1]["objective"] > 1
    long = fit(binary, **{**params, "max_iter": 500}, eta0=1e4)
    assert sum("eta" in record for record in long.history_) == 5  # and no more in vain
    assert [r for r in model.history_ if r.get("refined")][0]["objective"] <= np.log(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": "timed", "mixing": "none"}, "batch_size='timed'"),
        ({"early_stopping": True, "refine": "newton"}, "early_stopping must be False"),
    ],
    ids=str,
)
def test_parameters_that_do_not_go_together(binary, change, message):
    with pytest.raises(ValueError, match=message):
        fit(binary, **change)


@pytest.mark.parametrize("name", ["early_stopping", "average"])
def test_what_partial_fit_cannot_do(binary, name):
    model = ButterflySGDClassifier(**{**QUICK, name: True})
    with pytest.raises(ValueError, match=f"{name} should be False with partial_fit"):
        model.partial_fit(*binary, classes=[0, 1])


def test_partial_fit_is_not_refined(binary):
    model = ButterflySGDClassifier(n_ranks=2).partial_fit(*binary, classes=[0, 1])
    assert len(model.history_) == 1
    model.set_params(refine="newton")
    with pytest.raises(ValueError, match="refine should be 'auto' or None"):
        model.partial_fit(*binary)


def test_no_intercept(binary):
    np.testing.assert_array_equal(fit(binary, fit_intercept=False).intercept_, [0])


def test_verbose_prints_the_passes(binary, capsys):
    fit(binary, verbose=1)
    assert len(capsys.readouterr().out.strip().splitlines()) == 3


def test_too_few_passes_warn(binary):
    with pytest.warns(ConvergenceWarning, match="maximum of 1 "):
        fit(binary, max_iter=1, tol=1e-9, refine=None)


@pytest.mark.parametrize("labels", [np.array(["no", "yes"]), np.array([False, True])])
def test_labels(binary, labels):
    X, y = binary
    model = fit((X, labels[y]))
    np.testing.assert_array_equal(model.classes_, labels)
    np.testing.assert_array_equal(model.coef_, fit(binary).coef_)
    assert set(model.predict(X)) == set(labels)


@pytest.mark.parametrize("data", ["binary", "multi"])
def test_twin_predicts_the_same(request, data):
    X, y = request.getfixturevalue(data)
    model = fit((X, y))
    twin = model.to_sklearn()
    assert isinstance(twin, SGDClassifier)
    np.testing.assert_array_equal(twin.predict(X), model.predict(X))
    np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    np.testing.assert_array_equal(twin.decision_function(X), model.decision_function(X))


def test_probabilities_need_the_log_loss(binary):
    model = fit(binary, loss="hinge")
    assert not hasattr(model, "predict_proba")
    assert fit(binary, loss="modified_huber").predict_proba(binary[0]).shape == (120, 2)


def test_clone_and_pickle(binary):
    model = fit(binary)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(binary[0]), model.predict(binary[0]))
    assert not hasattr(clone(model), "coef_")


def test_predictions_of_a_collection_are_lazy(cluster, binary):
    X, y = binary
    model = fit(binary)
    lazy = model.predict(da.from_array(X, chunks=(40, 6)))
    assert isinstance(lazy, da.Array)
    np.testing.assert_array_equal(lazy.compute(), model.predict(X))


def sparse_blocks(X, y):
    parts = [
        da.from_delayed(
            dask.delayed(sparse.csr_array)(X[a : a + 30]),
            (30, X.shape[1]),
            meta=sparse.csr_array((0, X.shape[1])),
        )
        for a in range(0, 120, 30)
    ]
    return da.concatenate(parts), da.from_array(y, chunks=30)


def test_collections_of_sparse_blocks(processes, multi):
    X, y = multi
    np.testing.assert_allclose(
        fit(sparse_blocks(X, y)).coef_, fit((X, y)).coef_, rtol=1e-9
    )


def test_partial_fit_of_parts_with_missing_classes(multi):
    X, y = multi
    model = ButterflySGDClassifier(**QUICK)
    for label in range(4):
        model.partial_fit(X[y == label], y[y == label], classes=range(4))
    assert model.coef_.shape == (4, 6)
    with pytest.raises(ValueError, match="not the same as on last call"):
        model.partial_fit(X, y, classes=range(5))


def test_partial_fit_wants_classes_first(binary):
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        ButterflySGDClassifier().partial_fit(*binary)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "perceptron"}, "'loss' parameter"),
        ({"alpha": -1}, "'alpha' parameter"),
        ({"batch_size": 0}, "'batch_size' parameter"),
        ({"batch_size": 2.5}, "'batch_size' parameter"),
        ({"batch_size": "large"}, "'batch_size' parameter"),
        ({"mixing": "ring"}, "'mixing' parameter"),
        ({"eta0": 0}, "'eta0' parameter"),
        ({"learning_rate": "optimal"}, "'learning_rate' parameter"),
        ({"average": -1}, "'average' parameter"),
        ({"validation_fraction": 1}, "'validation_fraction' parameter"),
        ({"preconditioner": "diagonal"}, "'preconditioner' parameter"),
        ({"n_ranks": 0}, "'n_ranks' parameter"),
        ({"tol": -1}, "'tol' parameter"),
    ],
)
def test_parameters_out_of_range(binary, change, message):
    with pytest.raises(ValueError, match=message):
        fit(binary, **change)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_bad_rows(binary, n_ranks):
    X, y = binary
    with pytest.raises(ValueError, match="greater than one; got 1 class"):
        fit((X, np.zeros(120, dtype=int)), n_ranks=n_ranks)
    with pytest.raises(ValueError, match="NaN"):
        fit((np.where(X > 2, np.nan, X), y), n_ranks=n_ranks)
    with pytest.raises(ValueError, match="[Nn]egative"):
        ButterflySGDClassifier(n_ranks=n_ranks).fit(X, y, sample_weight=-np.ones(120))
    with pytest.raises(ValueError, match="weight zero for all"):
        ButterflySGDClassifier(n_ranks=n_ranks).fit(X, y, sample_weight=np.zeros(120))
    with pytest.raises(ValueError, match="coef_init must have shape"):
        ButterflySGDClassifier(n_ranks=n_ranks).fit(X, y, coef_init=np.ones((2, 6)))
    with pytest.raises(ValueError, match="class_weight names the labels"):
        fit((X, y), class_weight={7: 1.0}, n_ranks=n_ranks)


def test_bad_rows_on_a_cluster_name_the_block(cluster, binary):
    X, y = binary
    X = X.copy()
    X[100, 1] = np.nan
    with pytest.raises(ValueError, match="NaN in block 3"):
        fit((da.from_array(X, chunks=(30, 6)), da.from_array(y, chunks=30)))


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_bytes_of_a_butterfly_are_a_part_of_those_of_an_allreduce(
    configured, monkeypatch, n_ranks, binary
):
    """By the counters, with the ranks as processes of one rank each."""
    from dask_ma.comm import LocalGroup

    create = LocalGroup.create
    monkeypatch.setattr(LocalGroup, "create", lambda n_ranks: create(n_ranks, 1))

    def bytes_of(mixing):
        often = {} if mixing == "none" else {"mixing_period": 1}
        # What a pass sends besides its steps is what two passes do not send twice.
        counts = [
            sum(
                r["bytes_sent"]
                for r in fit(
                    binary,
                    mixing=mixing,
                    n_ranks=n_ranks,
                    batch_size=b,
                    **often,
                ).history_
            )
            for b in (1, 10**6)
        ]
        return counts[0] - counts[1]

    n_exchanges = int(np.log2(n_ranks))
    assert bytes_of("butterfly") * n_exchanges == bytes_of("allreduce")
    n_steps = 3 * (120 // n_ranks - 1)
    assert bytes_of("butterfly") == n_steps * n_ranks * 7 * 8
    assert bytes_of("none") == 0
