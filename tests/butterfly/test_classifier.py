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


@pytest.mark.parametrize(
    "change",
    [
        {"loss": "hinge"},
        {"alpha": 0.1},
        {"fit_intercept": False},
        {"max_iter": 4},
        {"shuffle": False},
        {"batch_size": 4},
        {"mixing": "allreduce"},
        {"mixing": "periodic"},
        {"mixing": "none"},
        {"eta0": 0.2},
        {"preconditioner": None},
        {"random_state": 1},
        {"class_weight": "balanced"},
        {"n_ranks": 2},
    ],
    ids=str,
)
def test_every_parameter_acts(binary, change):
    X, y = binary
    skewed = X[20:], np.where(np.arange(100) < 60, 0, y[20:])
    assert not np.array_equal(fit(skewed).coef_, fit(skewed, **change).coef_)


def test_no_intercept(binary):
    np.testing.assert_array_equal(fit(binary, fit_intercept=False).intercept_, [0])


def test_verbose_prints_the_passes(binary, capsys):
    fit(binary, verbose=1)
    assert len(capsys.readouterr().out.strip().splitlines()) == 3


def test_too_few_passes_warn(binary):
    with pytest.warns(ConvergenceWarning, match="maximum of 1 "):
        fit(binary, max_iter=1, tol=1e-9)


@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
@pytest.mark.parametrize("data", ["binary", "multi"])
def test_it_learns_as_scikit_learn_does(request, data, loss):
    X, y = request.getfixturevalue(data)
    ours = fit((X, y), loss=loss, max_iter=50)
    theirs = SGDClassifier(loss=loss, max_iter=50, tol=None, random_state=0).fit(X, y)
    assert ours.score(X, y) > theirs.score(X, y) - 0.03
    assert ours.score(X, y) > 0.65


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
        ({"loss": "squared_hinge"}, "'loss' parameter"),
        ({"alpha": -1}, "'alpha' parameter"),
        ({"batch_size": 0}, "'batch_size' parameter"),
        ({"batch_size": 2.5}, "'batch_size' parameter"),
        ({"batch_size": "large"}, "'batch_size' parameter"),
        ({"mixing": "ring"}, "'mixing' parameter"),
        ({"eta0": 0}, "'eta0' parameter"),
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


@pytest.mark.parametrize("n_ranks", [2, 4, 8])
def test_bytes_of_a_butterfly_are_a_part_of_those_of_an_allreduce(
    configured, monkeypatch, n_ranks, binary
):
    """By the counters, with the ranks as processes of one rank each."""
    from dask_ma.comm import LocalGroup

    create = LocalGroup.create
    monkeypatch.setattr(LocalGroup, "create", lambda n_ranks: create(n_ranks, 1))

    def bytes_of(mixing):
        # What a pass sends besides its steps is what two passes do not send twice.
        counts = [
            sum(
                r["bytes_sent"]
                for r in fit(
                    binary, mixing=mixing, n_ranks=n_ranks, batch_size=b
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
