"""Every parameter of MALDA acts, and every wrong value raises."""

import inspect

import numpy as np
import pytest
from lda_parameters import acting

from dask_ma import MALDA

# Most corpora here are small, and nothing depends on their size.
pytestmark = pytest.mark.filterwarnings("ignore:partial_fit has taken")

N, V, K = 40, 8, 3
BASE = {
    "n_components": K,
    "max_iter": 2,
    "batch_size": 20,
    "local_batch_size": 4,
    "max_doc_update_iter": 5,  # most of the time is theirs
    "random_state": 0,
    "n_ranks": 1,
}
EVALUATED = {"evaluate_every": 1, "max_iter": 12, "perp_tol": 0.0}
# Parameter: (what the others have to be for it to act, another value for it)
FLIPS = {
    "n_components": ({}, 4),
    "doc_topic_prior": ({}, 0.9),
    "topic_word_prior": ({}, 0.9),
    "learning_method": ({}, "batch"),
    "word_weights": ({}, "variational"),
    "learning_decay": ({}, 0.6),
    "learning_offset": ({}, 2.0),
    "max_iter": ({}, 3),
    "batch_size": ({"n_ranks": 2}, 10),
    "local_batch_size": ({}, 20),
    "evaluate_every": ({"perp_tol": 0.0}, 1),
    "total_samples": ({}, 500),
    "perp_tol": (EVALUATED, 0.05),
    "validation_fraction": ({}, 0.2),
    "mean_change_tol": ({}, 0.1),
    "max_doc_update_iter": ({}, 2),
    "paradigm": ({}, "gradient"),
    "mixing": ({"n_ranks": 4}, "butterfly"),
    "dtype": ({}, "float64"),
    "components_init": ({}, np.random.default_rng(0).gamma(2.0, 1.0, (K, V))),
    "verbose": ({}, 2),
    "random_state": ({}, 1),
    "n_ranks": ({}, 3),
}
ALL = {"components_", "bound_", "transform", "partial"}
CHANGES = {
    "max_iter": ALL - {"partial"} | {"n_iter_", "n_rounds"},
    "learning_method": ALL - {"partial"} | {"n_rounds"},
    "batch_size": ALL | {"n_rounds"},
    "evaluate_every": {"perplexities", "partial bound"},
    "total_samples": {"partial", "sample"},
    "perp_tol": ALL - {"partial"} | {"n_iter_", "n_rounds", "perplexities"},
    "validation_fraction": ALL - {"partial"} | {"validation"},
    "mixing": ALL | {"shared"},
    "n_ranks": ALL | {"shared"},
    "verbose": {"output"},
    "n_components": ALL | {"shape"},
    "dtype": ALL | {"dtype"},
    "random_state": ALL,
}
WRONG = {
    "n_components": 0,
    "doc_topic_prior": 0.0,
    "topic_word_prior": -1.0,
    "learning_method": "stream",
    "word_weights": "sampled",
    "learning_decay": 1.1,
    "learning_offset": 0.9,
    "max_iter": -1,
    "batch_size": 0,
    "local_batch_size": 0,
    "evaluate_every": 1.5,
    "total_samples": 0,
    "perp_tol": -0.1,
    "validation_fraction": 1.0,
    "mean_change_tol": -1e-9,
    "max_doc_update_iter": 0,
    "paradigm": "models",
    "mixing": "none",
    "dtype": "float16",
    "components_init": "random",
    "verbose": -1,
    "random_state": "seed",
    "n_ranks": 0,
}
MORE_WRONG = [
    ("n_components", 2.0),
    ("n_components", None),
    ("doc_topic_prior", "learned"),
    ("doc_topic_prior", np.nan),
    ("topic_word_prior", "learned"),
    ("batch_size", "all"),
    ("local_batch_size", "batch_size"),
    ("topic_word_prior", 0),
    ("learning_decay", -0.1),
    ("learning_offset", None),
    ("batch_size", 10.0),
    ("local_batch_size", None),
    ("total_samples", np.nan),
    ("dtype", np.int64),
    ("mixing", "periodic"),
    ("n_ranks", 1.5),
    ("max_iter", None),
]
NAMES = set(inspect.signature(MALDA).parameters)


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.poisson(rng.gamma(0.5, 2.0, (N, V))).astype(float)


def observe(params, X, capsys):
    """All that a user can see of fits with these parameters."""
    params = {**BASE, **params}
    model = MALDA(**acting(**params)).fit(X)
    # Which is online in any case, so that sizes act.
    online = acting(**{**params, "learning_method": "online"})
    method = params.get("learning_method", "online")
    partial = MALDA(**{**online, "learning_method": method}).partial_fit(X)
    return {
        "components_": model.components_.tolist(),
        "shape": model.components_.shape,
        "dtype": model.components_.dtype,
        "bound_": model.bound_,
        "n_iter_": model.n_iter_,
        "n_rounds": len(model.history_),
        "validation": "validation_perplexity" in model.history_[-1],
        "perplexities": [r["perplexity"] for r in model.history_[:-1]],
        "shared": model.history_[0]["bytes_shared"],
        "output": bool(capsys.readouterr().out),
        "transform": model.transform(X).tolist(),
        "sample": model.perplexity(X, sub_sampling=True) / model.perplexity(X),
        "partial": partial.components_.tolist(),
        "partial bound": hasattr(partial, "bound_"),
    }


@pytest.fixture(scope="module")
def seen():
    """What was observed before another value: most parameters have the same fits."""
    return {}


def different(one, other):
    return str(one) != str(other)  # nan is nan


def test_every_parameter_is_here():
    assert set(FLIPS) == set(WRONG) == NAMES


@pytest.mark.parametrize("name", sorted(FLIPS))
def test_parameter_acts(name, X, capsys, seen):
    others, value = FLIPS[name]
    if repr(others) not in seen:
        seen[repr(others)] = observe(others, X, capsys)
    before = seen[repr(others)]
    after = observe({**others, name: value}, X, capsys)
    changed = {key for key in before if different(before[key], after[key])}
    expected = CHANGES.get(name, ALL)
    follows = {"perplexities", "n_rounds", "sample", "shared"}
    assert changed - follows == expected - follows
    assert expected & follows <= changed


def test_the_ends_of_the_rates(X):
    """An offset without end learns nothing; a decay of 0 forgets what was there."""
    start = np.random.default_rng(1).gamma(2.0, 1.0, (K, V))
    params = {**BASE, "components_init": start, "batch_size": N}
    slow = MALDA(**params, learning_offset=1e15, learning_decay=1.0).fit(X)
    np.testing.assert_allclose(slow.components_, start, rtol=1e-6)
    params["local_batch_size"] = N
    fast = MALDA(**params, learning_decay=0.0).fit(X)
    assert fast.components_.sum() == pytest.approx(X.sum() + K * V / K, rel=1e-5)


@pytest.mark.parametrize("threshold", [1, 9, 49])
def test_precision_of_digamma(X, threshold, monkeypatch):
    def fit(threshold):
        monkeypatch.setattr("dask_ma.topics._fitted.DIGAMMA_THRESHOLD", threshold)
        return MALDA(**BASE, dtype="float64").fit(X)

    exact, model = fit(None), fit(threshold)
    error = abs(model.components_ / exact.components_ - 1).max()
    # What is left out of the series is below 1 / (252 threshold^6) in each value.
    bound = 100 / (252 * threshold**6)
    assert error <= bound + 1e-9
    if threshold == 1:
        assert error > 1e-8


def test_integers_are_numbers(X):
    """Priors and sizes in other types of numbers."""
    ints = MALDA(**BASE, doc_topic_prior=1, topic_word_prior=np.int64(2)).fit(X)
    floats = MALDA(**BASE, doc_topic_prior=1.0, topic_word_prior=2.0).fit(X)
    np.testing.assert_array_equal(ints.components_, floats.components_)
    assert isinstance(ints.doc_topic_prior_, float)
    model = MALDA(**{**BASE, "n_components": np.int64(K), "n_ranks": np.int32(2)})
    assert model.fit(X).components_.shape == (K, V)


@pytest.mark.parametrize(("name", "value"), [*WRONG.items(), *MORE_WRONG])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_values_out_of_range(name, value, method, X):
    model = MALDA(**{**BASE, name: value})
    with pytest.raises(ValueError, match=f"The '{name}' parameter of MALDA"):
        getattr(model, method)(X)
    assert not [name for name in vars(model) if name.endswith("_")]


@pytest.fixture(scope="module")
def perplexities(X):
    """Of a fit that nothing ends, after each pass."""
    whole = MALDA(**{**BASE, **EVALUATED, "max_iter": 20}).fit(X)
    assert whole.n_iter_ == 20
    return [r["perplexity"] for r in whole.history_ if np.isfinite(r["perplexity"])]


@pytest.mark.parametrize(
    ("params", "evaluate_every"),
    [({}, 1), ({}, 2), ({"perp_tol": 0.0}, 1)],
    ids=str,
)
def test_the_fit_ends_when_the_perplexity_settles(
    X, perplexities, params, evaluate_every
):
    """By the rule of scikit-learn, applied to the perplexities of a whole fit."""
    values = perplexities
    assert len(values) == 20
    every = evaluate_every
    changes = abs(np.diff(values[every - 1 :: every]))
    tol = params.get("perp_tol", 0.1)
    settled = np.flatnonzero(changes < tol)
    expected = every * (settled[0] + 2) if len(settled) else 20
    model = MALDA(**{**BASE, "max_iter": 20, "evaluate_every": every, **params}).fit(X)
    assert model.n_iter_ == expected
    assert model.bound_ == model.history_[-1]["perplexity"]
    assert (expected == 20) == (tol == 0)


@pytest.mark.parametrize("evaluate_every", [0, -1, -5])
def test_nothing_is_evaluated_on_the_way(X, evaluate_every):
    model = MALDA(**BASE, evaluate_every=evaluate_every).fit(X)
    values = [record["perplexity"] for record in model.history_]
    assert np.isnan(values[:-1]).all()
    assert model.bound_ == values[-1]
    assert model.n_iter_ == 2
