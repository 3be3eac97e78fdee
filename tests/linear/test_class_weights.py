"""Weights of classes that are set one against the rest, against SciPy's optimum."""

import numpy as np
import pytest
from scipy import optimize, sparse, special
from sklearn.linear_model import SGDClassifier
from sklearn.utils.class_weight import compute_class_weight

from dask_ma import ButterflySGDClassifier, MASGDClassifier

ALPHA, N_CLASSES = 0.01, 4
DICT = {0: 0.3, 2: 5.0, 3: 40.0}
BOTH = pytest.mark.parametrize("cls", [MASGDClassifier, ButterflySGDClassifier])
LOSSES = {
    "log_loss": (lambda m: -special.log_expit(m), lambda m: -special.expit(-m)),
    "squared_hinge": (
        lambda m: np.maximum(0, 1 - m) ** 2,
        lambda m: -2 * np.maximum(0, 1 - m),
    ),
}


@pytest.fixture(scope="module")
def rows():
    """300 rows of 5 features in four classes of unequal size, and weights of them."""
    rng = np.random.default_rng(5)
    y = rng.choice(N_CLASSES, 300, p=[0.5, 0.3, 0.15, 0.05])
    X = rng.normal(size=(300, 5)) + rng.normal(size=(N_CLASSES, 5))[y]
    return X, y, rng.uniform(0.2, 3, 300)


class Problems:
    """The problems that SGDClassifier solves: ``mean_i(s_ik loss(y_ik f_k(x_i)))``.

    With weights of the rows, whose mean is 1, "balanced" goes by these.
    """

    def __init__(self, X, y, s, class_weight, loss):
        self.X = X
        s = np.ones(len(y)) if s is None else s / s.mean()
        factors = compute_class_weight(
            class_weight, classes=np.arange(N_CLASSES), y=y, sample_weight=s
        )
        self.targets = np.where(y == np.arange(N_CLASSES)[:, None], 1.0, -1.0)
        self.s = np.where(self.targets > 0, factors[:, None], 1.0) * s
        self.value, self.slope = LOSSES[loss]

    def objective(self, point, k):
        """Value and gradient of problem k at coefficients and, last, intercept."""
        w, y, n = point[:-1], self.targets[k], len(self.X)
        margins = y * (self.X @ w + point[-1])
        r = self.s[k] * self.slope(margins) * y / n
        value = self.s[k] @ self.value(margins) / n + ALPHA * w @ w / 2
        return value, np.append(self.X.T @ r + ALPHA * w, r.sum())

    def values(self, model):
        """Objectives of a fitted model."""
        points = np.column_stack([model.coef_, model.intercept_])
        return np.array([self.objective(p, k)[0] for k, p in enumerate(points)])

    def optima(self):
        """Least objectives."""
        start = np.zeros(self.X.shape[1] + 1)
        return np.array(
            [
                optimize.minimize(self.objective, start, args=(k,), jac=True).fun
                for k in range(N_CLASSES)
            ]
        )


@pytest.mark.pairs
@pytest.mark.parametrize(
    ("n_ranks", "container"), [(1, np.asarray), (3, sparse.csr_array)]
)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("class_weight", ["balanced", DICT], ids=["balanced", "dict"])
@pytest.mark.parametrize("loss", sorted(LOSSES))
@BOTH
def test_each_problem_comes_to_its_optimum(
    rows, cls, loss, class_weight, weighted, n_ranks, container
):
    X, y, weight = rows
    weight = weight if weighted else None
    model = cls(
        loss,
        alpha=ALPHA,
        class_weight=class_weight,
        n_ranks=n_ranks,
        refine_tol=1e-4,
        random_state=0,
    ).fit(container(X), y, sample_weight=weight)
    problems = Problems(X, y, weight, class_weight, loss)
    values = problems.values(model)
    np.testing.assert_allclose(values, problems.optima(), rtol=1e-3)
    assert model.history_[-1]["objective"] == pytest.approx(values.mean(), rel=1e-9)


@pytest.mark.parametrize(
    "params",
    [
        {"refine": "lbfgs"},
        {"refine": "newton", "penalty": "elasticnet", "l1_ratio": 0.0},
        {"refine": "lbfgs", "penalty": "elasticnet", "l1_ratio": 0.0},
        {"paradigm": "gradient", "refine": "newton"},
    ],
    ids=lambda params: "-".join(map(str, params.values())),
)
def test_every_way_to_the_optimum(rows, params):
    X, y, _ = rows
    model = MASGDClassifier(
        "log_loss",
        alpha=ALPHA,
        class_weight=DICT,
        n_ranks=2,
        refine_tol=1e-4,
        random_state=0,
        **params,
    ).fit(X, y)
    problems = Problems(X, y, None, DICT, "log_loss")
    np.testing.assert_allclose(problems.values(model), problems.optima(), rtol=1e-3)


def test_kinks_and_absolute_values(rows):
    """Hinge and L1, whose optimum a weighted problem of two classes has, too."""
    X, y, _ = rows
    params = {"alpha": 0.02, "penalty": "l1", "refine_tol": 1e-5, "random_state": 0}
    ours = MASGDClassifier("hinge", class_weight=DICT, **params).fit(X, y)
    values = []
    for k in range(N_CLASSES):
        own = y == k
        factor = np.where(own, DICT.get(k, 1.0), 1.0)
        # Weights of two classes are relative: the penalty is set against their mean.
        alone = MASGDClassifier(
            "hinge", **{**params, "alpha": params["alpha"] / factor.mean()}
        ).fit(X, own, sample_weight=factor)
        values.append(alone.history_[-1]["objective"] * factor.mean())
    assert ours.history_[-1]["objective"] == pytest.approx(np.mean(values), rel=1e-4)


@pytest.fixture(scope="module")
def theirs(rows):
    """The model of SGDClassifier after a thousand passes."""
    params = {"loss": "log_loss", "alpha": ALPHA, "class_weight": DICT}
    long = {"max_iter": 1000, "tol": None, "average": 100_000, "random_state": 0}
    return SGDClassifier(**params, **long).fit(*rows[:2])


@BOTH
def test_sgd_classifier_comes_to_the_same(rows, theirs, cls):
    X, y, _ = rows
    params = {"loss": "log_loss", "alpha": ALPHA, "class_weight": DICT}
    ours = cls(n_ranks=2, refine_tol=1e-6, random_state=0, **params).fit(X, y)
    problems = Problems(X, y, None, DICT, "log_loss")
    np.testing.assert_allclose(
        problems.values(ours), problems.values(theirs), rtol=1e-3
    )
    scale = np.abs(theirs.coef_).max()
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=0.02 * scale)
    # A row on the boundary of two classes may be of either.
    assert np.mean(ours.predict(X) == theirs.predict(X)) >= 0.99


@BOTH
def test_start_and_rounds_have_this_objective(rows, cls):
    """Also of models far from the optimum."""
    X, y, weight = rows
    start = {"coef_init": np.linspace(-1, 1, 20).reshape(4, 5), "intercept_init": y[:4]}
    model = cls(
        "squared_hinge",
        alpha=ALPHA,
        class_weight=DICT,
        n_ranks=3,
        max_iter=1,
        tol=None,
        eta0=1e-300,
        learning_rate="constant" if cls is MASGDClassifier else "invscaling",
    ).fit(X, y, sample_weight=weight, **start)
    values = Problems(X, y, weight, DICT, "squared_hinge").values(model)
    assert model.history_[0]["objective"] == pytest.approx(values.mean(), rel=1e-12)


@BOTH
def test_weight_zero_leaves_a_class_to_the_others(rows, cls):
    """Its rows count as the rest of the other problems."""
    X, y, _ = rows
    params = {"alpha": ALPHA, "refine_tol": 1e-5, "random_state": 0}
    model = cls("log_loss", class_weight={1: 0.0}, **params).fit(X, y)
    plain = cls("log_loss", **params).fit(X, y)
    assert 1 not in model.predict(X)
    others = [0, 2, 3]
    np.testing.assert_allclose(model.coef_[others], plain.coef_[others], atol=0.01)


@BOTH
def test_a_class_of_weight_zero_may_be_all_that_is_left(cls):
    """As with SGDClassifier; rows of weight 0 leave it out."""
    y = np.arange(90) % 3
    X = np.eye(3)[y] + np.random.default_rng(0).normal(scale=0.1, size=(90, 3))
    params = {"random_state": 0, "refine_tol": 1e-4}
    model = cls("hinge", class_weight={1: 0.0}, **params).fit(X, y)
    assert model.predict([[0, 10, 0]]) == 1
    model.set_params(class_weight=None).fit(X, y, sample_weight=y != 1)
    assert model.classes_.tolist() == [0, 2]


@BOTH
def test_validation_counts_rows_alike(rows, cls):
    """As SGDClassifier's score does, which knows no weights of classes."""
    X, y, _ = rows
    model = cls(
        "log_loss",
        class_weight=DICT,
        early_stopping=True,
        validation_fraction=0.2,
        max_iter=3,
        tol=None,
        random_state=0,
    ).fit(X, y)
    hits = 60 * np.array([record["validation_score"] for record in model.history_])
    np.testing.assert_allclose(hits, np.round(hits), atol=1e-9)


@pytest.mark.each
@pytest.mark.parametrize("class_weight", ["balanced", DICT], ids=["balanced", "dict"])
@BOTH
def test_scale_of_the_rows_weights_does_not_matter(rows, cls, class_weight):
    X, y, weight = rows
    models = [
        cls(
            class_weight=class_weight,
            n_ranks=2,
            max_iter=2,
            tol=None,
            random_state=0,
        ).fit(X, y, sample_weight=factor * weight)
        for factor in (1, 1024)
    ]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)


def test_all_classes_with_weight_zero_are_refused(rows):
    X, y, _ = rows
    none = dict.fromkeys(range(N_CLASSES), 0)
    with pytest.raises(ValueError, match="class_weight gives every row the weight 0"):
        MASGDClassifier(class_weight=none, n_ranks=2).fit(X, y)
