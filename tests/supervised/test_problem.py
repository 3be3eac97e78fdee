"""Weights of rows and classes, and what all ranks agree on."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import sparse
from sklearn.utils.class_weight import compute_sample_weight

from dask_ma import MASGDClassifier, MASGDRegressor
from dask_ma.comm import LocalGroup
from dask_ma.data._spec import pack_pieces
from dask_ma.supervised import ProblemParams, agree_on_problem

PARAMS = {"max_iter": 3, "tol": None, "random_state": 0, "alpha": 0.01}
# A step too short to leave the model that the fit starts from.
STILL = {"max_iter": 1, "tol": None, "learning_rate": "constant", "eta0": 1e-300}
BOTH = pytest.mark.parametrize("cls", [MASGDClassifier, MASGDRegressor])


def same_model(a, b, rtol=0):
    np.testing.assert_allclose(a.coef_, b.coef_, rtol=rtol)
    np.testing.assert_allclose(a.intercept_, b.intercept_, rtol=rtol)
    values = [[record["objective"] for record in m.history_] for m in (a, b)]
    np.testing.assert_allclose(*values, rtol=1e-12)


@pytest.mark.pairs
@pytest.mark.parametrize("class_weight", ["balanced", {0: 0.3, 1: 5.0}])
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_weights_of_two_classes_are_weights_of_rows(
    binary, weights, class_weight, n_ranks, weighted
):
    X, y = binary[0][10:], binary[1][10:]
    own = weights[10:] if weighted else None
    ours = MASGDClassifier(class_weight=class_weight, n_ranks=n_ranks, **PARAMS)
    ours.fit(X, y, sample_weight=own)
    by_hand = compute_sample_weight(class_weight, y)
    if weighted and class_weight == "balanced":
        # The classes are balanced in weight, not in number.
        sums = np.bincount(y, weights=own)
        by_hand = (sums.sum() / (2 * sums))[y]
    by_hand = by_hand * (1 if own is None else own)
    plain = MASGDClassifier(n_ranks=n_ranks, **PARAMS).fit(X, y, sample_weight=by_hand)
    same_model(ours, plain, rtol=1e-9)


def test_class_weights_by_name(binary):
    X, y = binary
    words = np.array(["no", "yes"])[y]
    params = {"n_ranks": 2, **PARAMS}
    ours = MASGDClassifier(class_weight={"yes": 4.0}, **params).fit(X, words)
    plain = MASGDClassifier(**params).fit(X, words, sample_weight=1 + 3 * y)
    same_model(ours, plain, rtol=1e-9)


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ({0: 1, 7: 2}, r"class_weight names the labels \[7\].*\[0, 1\]"),
        ({0: 0, 1: 0}, "class_weight gives every row the weight 0"),
    ],
)
def test_class_weights_that_cannot_be(binary, class_weight, message):
    model = MASGDClassifier(class_weight=class_weight, n_ranks=2, **PARAMS)
    with pytest.raises(ValueError, match=message):
        model.fit(*binary)


@BOTH
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_weight_zero_is_a_removed_row(binary, cls, container):
    X, y = binary
    weight = (np.arange(120) % 3 > 0).astype(float)
    kept = weight > 0
    ours = cls(n_ranks=1, **PARAMS).fit(container(X), y, sample_weight=weight)
    other = cls(n_ranks=1, **PARAMS)
    other.fit(container(X[kept]), y[kept], sample_weight=np.ones(kept.sum()))
    same_model(ours, other)
    same_model(ours, cls(n_ranks=1, **PARAMS).fit(container(X[kept]), y[kept]))


def test_weight_zero_removes_a_class(multi):
    X, y = multi
    ours = MASGDClassifier(n_ranks=2, **PARAMS)
    ours.fit(X, y, sample_weight=(y != 3).astype(float))
    assert ours.classes_.tolist() == [0, 1, 2]


@BOTH
def test_weight_two_is_the_same_objective_as_two_rows(binary, cls, objective):
    X, y = binary
    twice = 1 + np.arange(120) % 2
    start = {"coef_init": np.linspace(-1, 1, 6), "intercept_init": np.array([0.3])}
    weighted, repeated = cls(n_ranks=3, **STILL), cls(n_ranks=3, **STILL)
    weighted.fit(X, y, sample_weight=twice, **start)
    repeated.fit(np.repeat(X, twice, axis=0), np.repeat(y, twice), **start)
    np.testing.assert_array_equal(
        weighted.coef_, np.reshape(start["coef_init"], weighted.coef_.shape)
    )
    values = [m.history_[0]["objective"] for m in (weighted, repeated)]
    assert values[0] == pytest.approx(values[1], rel=1e-13)
    assert values[0] == pytest.approx(objective(weighted, X, y, twice), rel=1e-13)


@BOTH
def test_weight_two_leads_where_two_rows_lead(binary, cls):
    X, y = binary
    twice = 1 + np.arange(120) % 2
    params = {"max_iter": 60, "tol": None, "alpha": 0.1, "random_state": 0}
    loss = {"loss": "log_loss"} if cls is MASGDClassifier else {}
    weighted = cls(n_ranks=2, **params, **loss).fit(X, y, sample_weight=twice)
    repeated = cls(n_ranks=2, **params, **loss)
    repeated.fit(np.repeat(X, twice, axis=0), np.repeat(y, twice))
    values = [m.history_[-1]["objective"] for m in (weighted, repeated)]
    assert values[0] == pytest.approx(values[1], rel=0.01)


@BOTH
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_scale_of_the_weights_does_not_matter(binary, weights, cls, n_ranks):
    X, y = binary
    models = [
        cls(n_ranks=n_ranks, **PARAMS).fit(X, y, sample_weight=factor * weights)
        for factor in (1, 1024, 7e-5)
    ]
    same_model(models[0], models[1])
    same_model(models[0], models[2], rtol=1e-9)


@BOTH
def test_equal_weights_are_none(binary, cls):
    X, y = binary
    weighted = cls(n_ranks=2, **PARAMS).fit(X, y, sample_weight=np.full(120, 2.5))
    same_model(weighted, cls(n_ranks=2, **PARAMS).fit(X, y))


def test_weights_of_any_type(binary):
    X, y = binary
    weight = 1 + np.arange(120) % 3
    kinds = [weight, weight.astype(np.float32), weight.tolist(), weight.astype(float)]
    models = [
        MASGDClassifier(n_ranks=2, **PARAMS).fit(X, y, sample_weight=kind)
        for kind in kinds
    ]
    for other in models[1:]:
        same_model(models[0], other, rtol=1e-6)


# -- What a method measures ----------------------------------------------------------


def agree(n_ranks, measure):
    """What ranks agree on, each with rows of its own number, and messages sent."""
    X, y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1])
    groups = LocalGroup.create(n_ranks, ranks_per_node=1)
    params = ProblemParams(is_classifier=True)

    def run(group):
        rank, rows = group.rank, (X + group.rank, y, None)
        spec = {
            **pack_pieces([(rows, 0, 6, 6, rank, 6 * rank)]),
            "aligned": None,
            "n_features": 2,
            "dtype": X.dtype,
        }
        return agree_on_problem(group, spec, params, measure=measure)

    with ThreadPoolExecutor(n_ranks) as pool:
        problems = list(pool.map(run, groups))
    return problems, sum(group.counters.messages_sent for group in groups)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_sums_of_what_is_measured_cost_no_message(n_ranks):
    def measure(shard):
        return np.array([shard.n_rows, sum(b.X.sum() for b in shard.blocks)])

    problems, n_messages = agree(n_ranks, measure)
    total = sum(66.0 + 12 * rank for rank in range(n_ranks))
    for problem in problems:
        np.testing.assert_array_equal(problem.measured, [6 * n_ranks, total])
    plain, n_without = agree(n_ranks, None)
    assert n_messages == n_without
    assert [problem.measured for problem in plain] == [None] * n_ranks
