"""MASGDClassifier: labels, several classes, probabilities, a stream of rows."""

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier

from dask_ma import MASGDClassifier

PARAMS = {"max_iter": 3, "tol": None, "random_state": 0}
NAMES = np.array(["cat", "dog", "eel", "fox"])
LABELS = {
    "shifted": lambda codes: codes * 10 - 5,
    "int8": lambda codes: codes.astype(np.int8),
    "float": lambda codes: codes.astype(float),
    "str": lambda codes: NAMES[codes],
    "object": lambda codes: NAMES.astype(object)[codes],
    "list": lambda codes: NAMES[codes].tolist(),
}


@pytest.fixture(scope="module")
def plain_models(multi):
    """Of labels that are numbers, by the number of ranks."""
    return {n: MASGDClassifier(n_ranks=n, **PARAMS).fit(*multi) for n in (1, 3)}


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("kind", sorted(LABELS))
def test_labels_of_any_type(multi, plain_models, kind, n_ranks):
    X, y = multi
    labels, plain = LABELS[kind](y), plain_models[n_ranks]
    ours = MASGDClassifier(n_ranks=n_ranks, **PARAMS).fit(X, labels)
    np.testing.assert_array_equal(ours.coef_, plain.coef_)
    np.testing.assert_array_equal(ours.classes_, np.unique(labels))
    np.testing.assert_array_equal(ours.predict(X), np.unique(labels)[plain.predict(X)])
    assert ours.score(X, labels) == plain.score(X, y)


def test_labels_that_are_true_or_false(binary):
    X, y = binary
    ours = MASGDClassifier(n_ranks=2, **PARAMS).fit(X, y == 1)
    plain = MASGDClassifier(n_ranks=2, **PARAMS).fit(X, y)
    np.testing.assert_array_equal(ours.coef_, plain.coef_)
    assert ours.predict(X).dtype == bool


def test_classes_of_all_ranks_count(multi):
    """Rows sorted by class: no rank sees more than two of the four classes."""
    X, y = multi
    order = np.argsort(y, kind="stable")
    params = {**PARAMS, "max_iter": 10}
    model = MASGDClassifier(n_ranks=4, loss="log_loss", alpha=0.01, **params)
    model.fit(X[order], NAMES[y[order]])
    assert model.classes_.tolist() == NAMES.tolist()
    shuffled = MASGDClassifier(n_ranks=4, loss="log_loss", alpha=0.01, **params)
    shuffled.fit(X, NAMES[y])
    assert model.score(X, NAMES[y]) > shuffled.score(X, NAMES[y]) - 0.1


def test_solves_what_one_machine_solves(multi):
    X, y = multi
    params = {"alpha": 0.01, "max_iter": 30, "tol": None, "random_state": 0}
    ours = MASGDClassifier("log_loss", n_ranks=4, **params).fit(X, y)
    theirs = SGDClassifier("log_loss", **params).fit(X, y)
    assert ours.score(X, y) > theirs.score(X, y) - 0.05


# -- Probabilities -------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["log_loss", "modified_huber"])
@pytest.mark.parametrize("name", ["binary", "multi"])
def test_probabilities_are_scikit_learns(loss, name, request):
    X, y = request.getfixturevalue(name)
    ours = MASGDClassifier(loss, alpha=0.01, n_ranks=2, **PARAMS).fit(X, y)
    theirs = ours.to_sklearn()
    values = ours.predict_proba(X)
    assert values.shape == (120, len(ours.classes_))
    np.testing.assert_array_equal(values, theirs.predict_proba(X))
    np.testing.assert_allclose(values.sum(axis=1), 1)
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(
            ours.predict_log_proba(X), theirs.predict_log_proba(X)
        )


@pytest.mark.parametrize("method", ["predict_proba", "predict_log_proba"])
def test_hinge_has_no_probabilities(binary, method):
    model = MASGDClassifier(n_ranks=2, **PARAMS).fit(*binary)
    assert not hasattr(model, method)
    with pytest.raises(AttributeError) as caught:
        getattr(model, method)
    assert "loss='hinge'" in str(caught.value.__cause__)
    model.loss = "log_loss"
    assert hasattr(model, method)


# -- partial_fit ---------------------------------------------------------------------


def test_partial_fit_needs_the_classes_first(binary):
    X, y = binary
    model = MASGDClassifier(n_ranks=2)
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        model.partial_fit(X, y)
    assert not hasattr(model, "classes_")
    model.partial_fit(X, y, classes=[1, 0])
    assert model.classes_.tolist() == [0, 1]
    model.partial_fit(X, y).partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match=r"classes=\[0, 1, 2\] is not the same"):
        model.partial_fit(X, y, classes=[0, 1, 2])


def test_partial_fit_knows_classes_that_come_later(multi):
    X, y = multi
    names = NAMES[y]
    model = MASGDClassifier(n_ranks=2, random_state=0)
    first = y < 2
    model.partial_fit(X[first], names[first], classes=NAMES)
    assert model.coef_.shape == (4, 6)
    for _ in range(10):
        model.partial_fit(X, names)
    assert set(model.predict(X)) == set(NAMES)


def test_partial_fit_of_rows_of_one_class(binary):
    X, y = binary
    model = MASGDClassifier(n_ranks=2)
    model.partial_fit(X[y == 1], y[y == 1], classes=[0, 1])
    assert (model.predict(X[y == 1]) == 1).mean() > 0.5


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.array([0, 1, 2] * 40), [0, 1]),
        (np.array(["a", "b", "z"] * 40), ["a", "b"]),
        (np.array(["a", "b", "z"] * 40), [0, 1]),
    ],
)
def test_partial_fit_of_unseen_labels(binary, labels, classes):
    model = MASGDClassifier(n_ranks=3)
    with pytest.raises(ValueError, match="y contains labels that are not in classes"):
        model.partial_fit(binary[0], labels, classes=classes)
    assert not hasattr(model, "coef_")


def test_partial_fit_after_fit_refuses_unseen_labels(binary):
    X, y = binary
    model = MASGDClassifier(n_ranks=2, **PARAMS).fit(X, y)
    before = model.coef_.copy()
    with pytest.raises(ValueError, match=r"not in classes: \[5\]"):
        model.partial_fit(X, np.where(y == 1, 5, 0))
    np.testing.assert_array_equal(model.coef_, before)


def test_partial_fit_with_class_weights(binary):
    X, y = binary
    by_class = MASGDClassifier(n_ranks=1, shuffle=False, class_weight={1: 3.0})
    by_row = MASGDClassifier(n_ranks=1, shuffle=False)
    by_class.partial_fit(X, y, classes=[0, 1])
    by_row.partial_fit(X, y, classes=[0, 1], sample_weight=1.0 + 2 * y)
    np.testing.assert_allclose(by_class.coef_, by_row.coef_, rtol=1e-10)
    with pytest.raises(ValueError, match="'balanced' cannot be used with partial_fit"):
        MASGDClassifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1])
