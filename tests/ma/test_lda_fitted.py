"""The life of a fitted MALDA: streams, merging, words of topics, scikit-learn."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from lda_parameters import acting
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from dask_ma import MALDA

# Most corpora here are small, and nothing depends on their size.
pytestmark = pytest.mark.filterwarnings("ignore:partial_fit has taken")

N, V, K = 40, 8, 3
PARAMS = {
    "n_components": K,
    "max_iter": 2,
    "batch_size": N,  # a pass has one round
    "local_batch_size": N,
    "random_state": 0,
    "dtype": "float64",
}
WORDS = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen"]


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.poisson(rng.gamma(0.5, 2.0, (N, V))).astype(float)


def fit(X, **params):
    return MALDA(**acting(**{**PARAMS, **params})).fit(X)


# Streams ------------------------------------------------------------------------------


def test_a_stream(X):
    params = {"n_ranks": 2, "batch_size": 10, "local_batch_size": 5}
    model = MALDA(**{**PARAMS, **params})
    # Each rank has 10 of 20 documents, in 2 rounds of 1 batch of 5.
    for n_calls in (1, 2, 3):
        assert model.partial_fit(X[:20]) is model
        assert model.n_batch_iter_ == 1 + 2 * n_calls
        assert model.n_iter_ == 1
        assert [record["round"] for record in model.history_] == [1, 2]
    assert not hasattr(model, "bound_")
    assert model.n_features_in_ == V


@pytest.mark.parametrize("params", [{}, {"mixing": "butterfly"}], ids=["model", "fly"])
def test_a_stream_learns(X, params):
    model = MALDA(**PARAMS, n_ranks=2, total_samples=N, learning_offset=1.0, **params)
    values = []
    for _ in range(5):
        for part in (X[:13], X[13:30], da.from_array(X[30:], chunks=(3, V))):
            model.partial_fit(part)
        values.append(model.perplexity(X))
    assert values[-1] < values[0] - 0.1


def test_a_stream_does_not_go_over_the_data_in_batch_mode(X):
    """Documents that have gone by cannot be summed up again."""
    batch = MALDA(**PARAMS, learning_method="batch").partial_fit(X)
    online = MALDA(**PARAMS, learning_method="online").partial_fit(X)
    np.testing.assert_array_equal(batch.components_, online.components_)


def test_a_stream_goes_on_after_a_fit(X):
    model = fit(X)
    before = model.components_.copy()
    model.partial_fit(X[:10])
    assert model.n_batch_iter_ == 4
    moved = abs(model.components_ - before).sum() / before.sum()
    assert 0 < moved
    again = fit(X).set_params(components_init=np.ones((K, V))).partial_fit(X[:10])
    np.testing.assert_array_equal(again.components_, model.components_)
    fresh = model.fit(X)
    np.testing.assert_array_equal(fresh.components_, before)
    assert fresh.n_batch_iter_ == 3


def test_a_stream_goes_on_with_the_learned_prior(X):
    """Steps of no length leave it as it is."""
    model = MALDA(**PARAMS, doc_topic_prior="auto").partial_fit(X)
    learned = model.doc_topic_prior_
    assert abs(learned - 1 / K).max() > 0.01
    model.set_params(learning_offset=1e15).partial_fit(X)
    np.testing.assert_allclose(model.doc_topic_prior_, learned, rtol=1e-6)
    # A fit begins anew.
    model.fit(X)
    np.testing.assert_allclose(model.doc_topic_prior_, 1 / K, rtol=1e-6)


def test_total_samples_weigh_what_is_shown(X):
    sums = [
        MALDA(**PARAMS, total_samples=total).partial_fit(X).components_.sum()
        for total in (N, 10 * N)
    ]
    rate = 11**-0.7
    assert sums[1] - sums[0] == pytest.approx(rate * 9 * X.sum(), rel=1e-9)


@pytest.mark.parametrize("lazy", [False, True])
def test_other_columns_in_a_stream(X, lazy):
    model = MALDA(**PARAMS).partial_fit(X)
    before = model.components_
    part = X[:, :5]
    part = da.from_array(part, chunks=(10, -1)) if lazy else part
    with pytest.raises(ValueError, match="X has 5 features, but MALDA is expecting 8"):
        model.partial_fit(part)
    assert model.components_ is before


def test_another_number_of_topics_in_a_stream(X):
    model = fit(X).set_params(n_components=5)
    with pytest.raises(ValueError, match="n_components"):
        model.partial_fit(X)


def test_another_number_of_topics_counts_from_the_next_fit_on(X):
    model = fit(X)
    before = model.transform(X), model.perplexity(X)
    model.set_params(n_components=5)
    np.testing.assert_array_equal(model.transform(X), before[0])
    assert model.perplexity(X) == before[1]
    assert model.fit(X).transform(X).shape == (N, 5)


# The start ----------------------------------------------------------------------------


@pytest.mark.parametrize("container", [np.asarray, np.ndarray.tolist, pd.DataFrame])
def test_given_topics(X, container):
    start = np.random.default_rng(1).gamma(2.0, 1.0, (K, V))
    model = fit(X, max_iter=0, components_init=container(start))
    np.testing.assert_allclose(model.components_, start, rtol=1e-14)
    assert model.n_iter_ == 0
    assert model.n_batch_iter_ == 1
    assert model.history_ == []
    assert model.bound_ == pytest.approx(model.perplexity(X), rel=1e-9)
    moved = fit(X, components_init=container(start))
    assert not np.allclose(moved.components_, start)
    whole = fit(X, components_init=np.full((K, V), 2), max_iter=0)
    np.testing.assert_allclose(whole.components_, 2)


def test_given_topics_are_not_changed(X):
    start = np.random.default_rng(1).gamma(2.0, 1.0, (K, V))
    copy = start.copy()
    for paradigm in ("model", "gradient"):
        fit(X, components_init=start, paradigm=paradigm)
        params = acting(**PARAMS, paradigm=paradigm)
        MALDA(**params, components_init=start).partial_fit(X)
    np.testing.assert_array_equal(start, copy)


# Merging ------------------------------------------------------------------------------


def permuted(model, order):
    other = clone(model)
    vars(other).update({k: v for k, v in vars(model).items() if k.endswith("_")})
    other.components_ = model.components_[order].copy()
    return other


@pytest.mark.parametrize(
    "prior",
    [0.2, np.linspace(0.1, 2, V), "auto"],
    ids=["0.2", "vector", "auto"],
)
def test_merging_aligns_topics(X, prior):
    model = fit(X, learning_method="batch", max_iter=20, topic_word_prior=prior)
    others = [permuted(model, order) for order in ([2, 0, 1], [1, 0, 2])]
    prior = model.topic_word_prior_
    merged = model.merge(others)
    # What lies beyond the prior is added up.
    expected = prior + 3 * (model.components_ - prior)
    np.testing.assert_allclose(merged.components_, expected, rtol=1e-12)
    straight = model.merge(others, align=False)
    expected = model.components_ + sum(o.components_ - prior for o in others)
    np.testing.assert_allclose(straight.components_, expected, rtol=1e-12)
    assert not np.allclose(straight.components_, merged.components_)


def test_merging_models_with_a_prior_for_each_topic(X):
    """Words of a topic of one model that go with other words in the other."""
    prior = np.linspace(0.1, 2, K * V).reshape(K, V)
    params = {"learning_method": "batch", "max_iter": 20, "topic_word_prior": prior}
    one, other = fit(X, **params), fit(X, **params, random_state=1)
    merged = one.merge([other], align=False)
    expected = one.components_ + other.components_ - prior
    np.testing.assert_allclose(merged.components_, expected, rtol=1e-12)
    np.testing.assert_array_equal(merged.topic_word_prior_, prior)
    # Each topic of the other is taken with its own prior.
    aligned = one.merge([other]).components_ - one.components_
    rows = {tuple(row.round(6)) for row in other.components_ - prior}
    assert {tuple(row.round(6)) for row in aligned} == rows


def test_merging_models_that_have_learned_priors(X):
    one, other = (fit(part, topic_word_prior="auto") for part in (X[:15], X[15:]))
    assert one.topic_word_prior_ != other.topic_word_prior_
    merged = one.merge([other], align=False)
    expected = one.components_ + other.components_ - other.topic_word_prior_
    np.testing.assert_allclose(merged.components_, expected, rtol=1e-12)
    assert merged.topic_word_prior_ == one.topic_word_prior_


def test_merged_batches_are_one_batch(X):
    """Batch steps from the same topics add up to the step of all documents."""
    start = np.random.default_rng(1).gamma(2.0, 1.0, (K, V))
    params = {"learning_method": "batch", "max_iter": 1, "components_init": start}
    parts = [fit(part, **params) for part in (X[:11], X[11:12], X[12:])]
    merged = parts[0].merge(parts[1:], align=False)
    whole = fit(X, **params)
    np.testing.assert_allclose(merged.components_, whole.components_, rtol=1e-9)
    assert merged.perplexity(X) == pytest.approx(whole.perplexity(X), rel=1e-9)


def test_a_merged_model(X):
    model = fit(pd.DataFrame(X, columns=WORDS), dtype="float32", doc_topic_prior="auto")
    before = model.components_.copy()
    merged = model.merge([fit(X, dtype="float32"), fit(X[:9], dtype="float32")])
    assert isinstance(merged, MALDA)
    assert merged is not model
    check_is_fitted(merged)
    assert merged.get_params() == model.get_params()
    assert merged.feature_names_in_.tolist() == WORDS
    assert merged.n_batch_iter_ == 1 + 3 * 2
    assert merged.components_.dtype == np.float32
    assert not hasattr(merged, "bound_")
    assert not hasattr(merged, "history_")
    np.testing.assert_array_equal(merged.doc_topic_prior_, model.doc_topic_prior_)
    np.testing.assert_array_equal(model.components_, before)
    assert merged.transform(pd.DataFrame(X, columns=WORDS)).shape == (N, K)
    merged.partial_fit(pd.DataFrame(X, columns=WORDS))
    alone = model.merge([])
    np.testing.assert_allclose(alone.components_, before, rtol=1e-6)


def test_what_does_not_merge(X):
    model = fit(pd.DataFrame(X, columns=WORDS))
    same, cases = (
        fit(X),
        {
            r"others\[1\] has components_ of shape \(4, 8\), expected \(3, 8\)": fit(
                X, n_components=4
            ),
            r"others\[1\] has components_ of shape \(3, 5\)": fit(X[:, :5]),
            r"others\[1\] has other feature names": fit(
                pd.DataFrame(X, columns=WORDS[::-1])
            ),
            r"others\[1\] has another topic_word_prior_": fit(X, topic_word_prior=0.5),
        },
    )
    for message, other in cases.items():
        with pytest.raises(ValueError, match=message):
            model.merge([same, other])
    with pytest.raises(NotFittedError):
        model.merge([MALDA(**PARAMS)])
    with pytest.raises(NotFittedError):
        MALDA(**PARAMS).merge([model])


# Words of topics ----------------------------------------------------------------------


def test_top_words(X):
    model = fit(X)
    shares = model.components_ / model.components_.sum(axis=1, keepdims=True)
    topics = model.top_words(4)
    assert len(topics) == K
    for words, row in zip(topics, shares, strict=True):
        assert [word for word, _ in words] == np.argsort(-row)[:4].tolist()
        np.testing.assert_allclose([share for _, share in words], np.sort(row)[:3:-1])
    assert all(len(words) == V for words in model.top_words(100))
    assert model.top_words(1)[0] == topics[0][:1]


@pytest.mark.parametrize("given", [list, np.array, lambda w: np.array(w, dtype=object)])
def test_top_words_by_name(X, given):
    numbers = fit(X).top_words(3)
    expected = [[(WORDS[i], share) for i, share in words] for words in numbers]
    assert fit(X).top_words(3, given(WORDS)) == expected
    assert fit(pd.DataFrame(X, columns=WORDS)).top_words(3) == expected


def test_words_in_the_place_of_their_number(X):
    with pytest.raises(TypeError, match="n should be an int, got list; the words are"):
        fit(X).top_words(WORDS, 3)


def test_names_that_do_not_fit(X):
    with pytest.raises(ValueError, match="feature_names should have 8 elements"):
        fit(X).top_words(3, WORDS[:5])


def test_names_of_topics(X):
    model = fit(X)
    assert model.get_feature_names_out().tolist() == ["malda0", "malda1", "malda2"]
    frame = model.set_output(transform="pandas").transform(X)
    assert isinstance(frame, pd.DataFrame)
    assert frame.columns.tolist() == ["malda0", "malda1", "malda2"]
    np.testing.assert_array_equal(
        frame.to_numpy(), model.set_output(transform="default").transform(X)
    )


# Beside scikit-learn ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_to_sklearn(X, dtype):
    frame = pd.DataFrame(X, columns=WORDS)
    params = {"local_batch_size": 7, "learning_decay": 0.6}
    ends = {"mean_change_tol": 1e-6, "max_doc_update_iter": 2000}
    model = fit(frame, dtype=dtype, n_ranks=2, **params, **ends)
    twin = model.to_sklearn()
    assert type(twin) is LatentDirichletAllocation
    assert twin.get_feature_names_out().shape == (K,)
    assert twin.feature_names_in_.tolist() == WORDS
    # What scikit-learn calls a batch is what a rank updates its own topics by.
    assert twin.batch_size == 7
    params = twin.get_params()
    # What "auto" is with parameters of "online", and without them.
    assert params["learning_method"] == "online"
    plain = MALDA(K, max_iter=1, random_state=0).fit(X).to_sklearn()
    assert plain.learning_method == "batch"
    for name in ("learning_decay", "max_iter", "n_components"):
        assert params[name] == getattr(model, name)
    assert (params["doc_topic_prior"], params["topic_word_prior"]) == (1 / K, 1 / K)
    for name in ("n_batch_iter_", "n_iter_", "bound_", "n_features_in_"):
        assert getattr(twin, name) == getattr(model, name)
    # Both end where an iteration changes little, and not at the same place.
    np.testing.assert_allclose(twin.transform(frame), model.transform(frame), atol=4e-3)
    twin.partial_fit(frame)
    assert twin.n_batch_iter_ == model.n_batch_iter_ + 6
    assert not np.allclose(twin.components_, model.components_)
    assert twin.fit(frame).n_iter_ == 2


def test_batches_that_are_chosen_are_left_to_scikit_learn(X):
    twin = fit(X, local_batch_size="auto").to_sklearn()
    assert twin.batch_size == LatentDirichletAllocation().batch_size


@pytest.mark.parametrize("name", ["doc_topic_prior", "topic_word_prior"])
def test_priors_that_scikit_learn_has_no_place_for(X, name):
    size = K if name == "doc_topic_prior" else V
    with pytest.raises(ValueError, match=f"one number as {name}, but {name}_ has"):
        fit(X, **{name: np.linspace(0.1, 1, size)}).to_sklearn()
    twin = fit(X, **{name: np.full(size, 0.7)}).to_sklearn()
    assert getattr(twin, name) == getattr(twin, f"{name}_") == 0.7


def test_priors_in_the_shapes_of_scikit_learn(X):
    model = fit(X)
    assert (model.doc_topic_prior_, model.topic_word_prior_) == (1 / K, 1 / K)
    vectors = {"doc_topic_prior": [1, 2, 3], "topic_word_prior": np.linspace(0.1, 1, V)}
    model = fit(X, **vectors)
    for name, value in vectors.items():
        np.testing.assert_array_equal(getattr(model, f"{name}_"), value)
    assert fit(X, doc_topic_prior="auto").doc_topic_prior_.shape == (K,)


def test_fit_transform_and_clone(X):
    model = MALDA(**PARAMS, n_ranks=2)
    assert isinstance(clone(model), MALDA)
    assert clone(model).get_params() == model.get_params()
    proportions = clone(model).fit_transform(sparse.csr_matrix(X))
    np.testing.assert_array_equal(proportions, model.fit(X).transform(X))
    gamma = clone(model).fit_transform(X, normalize=False)
    np.testing.assert_array_equal(gamma, model.transform(X, normalize=False))
    unfitted = clone(model)
    for method in (unfitted.transform, unfitted.score, unfitted.perplexity):
        with pytest.raises(NotFittedError):
            method(X)
    with pytest.raises(NotFittedError):
        unfitted.to_sklearn()
    with pytest.raises(NotFittedError):
        unfitted.top_words()


def test_top_words_need_a_number_of_words(X):
    with pytest.raises(ValueError, match="n should be at least 1, got 0"):
        fit(X).top_words(0)


def test_priors_are_copied(X):
    prior = np.ones(K)
    model = MALDA(**PARAMS, doc_topic_prior=prior).fit(X)
    prior[:] = 7
    np.testing.assert_array_equal(model.doc_topic_prior_, np.ones(K))
