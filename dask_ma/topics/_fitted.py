"""Methods of a fitted topic model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Self

import numpy as np
from scipy import special
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.utils.validation import check_is_fitted, validate_data

from dask_ma import _config
from dask_ma._scores import blockwise_sum
from dask_ma._transformers import DistributedTransformerMixin
from dask_ma.base import DistributedEstimator
from dask_ma.data import CAST_LATER
from dask_ma.kernels import InferenceSettings
from dask_ma.topics._coherence import MEASURES, occurrences, topic_coherence
from dask_ma.topics._merging import merge_models
from dask_ma.topics._model import (
    TopicModel,
    bound_columns,
    bound_of_topics,
    completion_columns,
    likelihood_columns,
    topic_parameters,
    topic_proportions,
)

# Parameters without effect in batches of all documents, and their defaults.
_OF_ONLINE = {
    "learning_decay": 0.7,
    "learning_offset": 10.0,
    "batch_size": "auto",
    "local_batch_size": "auto",
    "mixing": "allreduce",
}
# Precision of the digamma function, `c` of the paper: the recurrence is used up to this
# argument, and leaves an error below 8e-9.
DIGAMMA_THRESHOLD: float | None = 9


class FittedTopics(DistributedTransformerMixin, DistributedEstimator):
    """Base of topic models: documents worked out with fitted topics."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def transform(self, X: Any, *, normalize: bool = True) -> Any:
        """Proportions of the topics in documents.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Counts of words, one row per document.
        normalize : bool, default=True
            Whether to divide each row by its sum. False gives the parameters of the
            documents' Dirichlet distributions: `doc_topic_prior_` plus the expected
            number of words from each topic.

        Returns
        -------
        proportions : ndarray or dask.array of shape (n_samples, n_components)
            Expected proportions, which add up to 1 in each row, or the parameters. A
            document without words gets the prior. Lazy for a Dask collection.
        """
        check_is_fitted(self)
        _check_normalize(normalize)
        return self._transformed(
            X,
            topic_proportions if normalize else topic_parameters,
            n_outputs=len(self.components_),
            dtype=self.components_.dtype,
        )

    def fit_transform(  # type: ignore[override]
        self, X: Any, y: Any = None, *, normalize: bool = True
    ) -> Any:
        """Fit to documents, and work out the topics of the same documents.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Counts of words, one row per document.
        y : object
            Not used, there for scikit-learn's conventions.
        normalize : bool, default=True
            As in :meth:`transform`.

        Returns
        -------
        proportions : ndarray or dask.array of shape (n_samples, n_components)
            As from :meth:`transform`.
        """
        _check_normalize(normalize)
        return self.fit(X, y).transform(X, normalize=normalize)

    def score(self, X: Any, y: Any = None) -> float:
        """Evidence lower bound of documents.

        Parameters
        ----------
        X : array-like, sparse, DataFrame or Dask collection, shape (n_samples, \
                n_features)
            Counts of words, one row per document.
        y : object
            Not used, there for scikit-learn's conventions.

        Returns
        -------
        bound : float
            ``E[log p(words, theta, beta) - log q(theta, beta)]``, not above the
            logarithm of the likelihood; higher is better. It includes the part of the
            topics, as in scikit-learn.
        """
        check_is_fitted(self)
        documents, _ = self._sum(X, bound_columns)
        return float(documents + self._bound_of_topics())

    def perplexity(
        self, X: Any, sub_sampling: bool = False, *, method: str = "bound"
    ) -> float:
        """How surprising documents are: lower is better.

        Parameters
        ----------
        X : array-like, sparse, DataFrame or Dask collection, shape (n_samples, \
                n_features)
            Counts of words, one row per document.
        sub_sampling : bool, default=False
            Whether the documents are a sample of `total_samples` documents, so that
            their part of the bound is scaled up beside that of the topics.
        method : {"bound", "completion"}, default="bound"
            "bound" is scikit-learn's: ``exp(-score(X) / words)``. The part of the
            topics in it does not depend on `X`, and weighs more the fewer documents
            there are: values of samples of other sizes cannot be compared.
            "completion" works out the topics of each document from every other word,
            and takes the likelihood of the rest of the words at the expected topics,
            ``exp(-log likelihood / rest of the words)``: a measure of prediction, free
            of the bound, that can be compared between models of any kind.

        Returns
        -------
        perplexity : float
        """
        check_is_fitted(self)
        if method not in ("bound", "completion"):
            raise ValueError(
                f"method should be 'bound' or 'completion', got {method!r}"
            )
        if method == "completion":
            value, n_words = self._sum(X, completion_columns)
            return _exp(-value / some_to_predict(n_words))
        documents, n_words, n_samples = self._sum(X, bound_columns, count=True)
        if sub_sampling:
            factor = self.total_samples / _some(n_samples)
            documents, n_words = documents * factor, n_words * factor
        bound = documents + self._bound_of_topics()
        return _exp(-bound / _some(n_words))

    def log_likelihood(self, X: Any) -> float:
        """Log likelihood of documents at the expected topics.

        Parameters
        ----------
        X : array-like, sparse, DataFrame or Dask collection, shape (n_samples, \
                n_features)
            Counts of words, one row per document.

        Returns
        -------
        log_likelihood : float
            ``sum_dw count_dw log sum_k E[theta_dk] E[beta_kw]``, with the topics of
            each document worked out from the same words; higher is better.
        """
        check_is_fitted(self)
        return float(self._sum(X, likelihood_columns)[0])

    def top_words(
        self, n: int = 10, feature_names: Any = None
    ) -> list[list[tuple[Any, float]]]:
        """The most probable words of each topic.

        Parameters
        ----------
        n : int, default=10
            How many of them, at least 1.
        feature_names : array-like of shape (n_features,), default=None
            The words; None takes the names that `fit` has seen, else the numbers of
            the columns.

        Returns
        -------
        topics : list of list of (word, probability)
            For each topic its words, the most probable first.
        """
        check_is_fitted(self)
        if not isinstance(n, Integral):
            raise TypeError(
                f"n should be an int, got {type(n).__name__}; the words are the second "
                "argument, feature_names"
            )
        if n < 1:
            raise ValueError(f"n should be at least 1, got {n}")
        n_features = self.components_.shape[1]
        if feature_names is None:
            feature_names = getattr(self, "feature_names_in_", np.arange(n_features))
        names = np.asarray(feature_names)
        if names.shape != (n_features,):
            raise ValueError(
                f"feature_names should have {n_features} elements, one per column; got "
                f"an array of shape {names.shape}"
            )
        words = names.tolist()
        totals = self.components_.sum(axis=1, dtype=np.float64)
        topics = []
        for row, total in zip(self.components_, totals, strict=True):
            best = np.argsort(-row, kind="stable")[:n]
            topics.append([(words[i], float(row[i] / total)) for i in best])
        return topics

    def coherence(
        self, X: Any, *, top_n: int = 10, measure: str = "u_mass"
    ) -> np.ndarray:
        """Whether the most probable words of each topic are in the same documents.

        Parameters
        ----------
        X : array-like, sparse, DataFrame or Dask collection, shape (n_samples, \
                n_features)
            Counts of words, one row per document. Documents without words do not count.
        top_n : int, default=10
            How many words of each topic, at least 2.
        measure : {"u_mass", "npmi"}, default="u_mass"
            What a pair of words is given, with `D` the number of documents that have
            them, and `N` of all that have any word. "u_mass":
            ``log((D(w, v) + 1) / D(v))``, `v` being the more probable one, made for
            the documents of the fit. "npmi": ``log(N D(w, v) / (D(w) D(v))) /
            log(N / D(w, v))``, from -1 for words that are never together to 1 for those
            that are only together.

        Returns
        -------
        coherence : ndarray of float64, shape (n_components,)
            For each topic the mean over pairs of words that both occur in `X`, NaN if
            there is none; higher is better. For Dask input the documents are counted
            where they are.

        Raises
        ------
        ValueError
            If no document has a word, or for another `top_n` or `measure`.

        References
        ----------
        D. Mimno et al. "Optimizing semantic coherence in topic models." EMNLP 2011;
        G. Bouma. "Normalized (pointwise) mutual information in collocation
        extraction." GSCL 2009.
        """
        check_is_fitted(self)
        if measure not in MEASURES:
            raise ValueError(f"measure should be one of {MEASURES}, got {measure!r}")
        n_features = self.components_.shape[1]
        if not isinstance(top_n, Integral) or not 2 <= top_n <= n_features:
            raise ValueError(
                f"top_n should be a whole number from 2 to the {n_features} features, "
                f"got {top_n!r}"
            )
        best = [np.argsort(-row, kind="stable")[:top_n] for row in self.components_]
        words = np.unique(best)
        indicators = self._apply(
            X,
            occurrences,
            model=words,
            n_outputs=len(words) + 1,
            dtype=np.float32,
        )
        topics = [np.searchsorted(words, own) for own in best]
        return topic_coherence(indicators, topics, measure)

    def merge(self, others: Sequence[Self], *, align: bool = True) -> Self:
        """Put fitted models together that have seen different documents.

        What each model has learned is added up, as if one had seen all documents.

        Parameters
        ----------
        others : sequence of estimators
            Fitted models of this class with the same numbers of topics and features,
            and the same `topic_word_prior`, or "auto" for all.
        align : bool, default=True
            Whether the topics of each are first put in the order that resembles those
            of this model most. False adds topics of the same number, which is right for
            models that have started from the same topics.

        Returns
        -------
        merged : estimator
            A new one with the parameters of this one. It has the topics, and the
            attributes that go with them, but nothing that belongs to a single fit, such
            as `history_`.

        Raises
        ------
        TypeError
            For a model of another class.
        ValueError
            If the models do not fit together.
        """
        check_is_fitted(self)
        models = list(others)
        merged: Self = merge_models(self, models, align=align)
        for name, value in self._count_merged([self, *models]).items():
            setattr(merged, name, value)
        return merged

    @abstractmethod
    def _count_merged(self, models: Sequence[Self]) -> dict[str, Any]:
        """What merged models have been through, as attributes."""

    @property
    def exp_dirichlet_component_(self) -> np.ndarray:
        """``exp(E[log beta])`` of the topics, worked out anew each time."""
        check_is_fitted(self)
        totals = self.components_.sum(axis=1, keepdims=True, dtype=np.float64)
        logs = special.psi(self.components_) - special.psi(totals)
        return np.exp(logs, dtype=logs.dtype).astype(self.components_.dtype)

    def _method(self) -> str:
        """How to learn; "auto" is left to the ranks, who know the corpus."""
        if self.learning_method != "auto":
            return str(self.learning_method)
        chosen = any(
            getattr(self, name) != default for name, default in _OF_ONLINE.items()
        )
        return "online" if chosen or self._is_online() else "auto"

    def _is_online(self) -> bool:
        """Whether a subclass has another parameter that only "online" looks at."""
        return False

    def to_sklearn(self) -> LatentDirichletAllocation:
        """A fitted scikit-learn estimator with the same topics.

        Returns
        -------
        peer : LatentDirichletAllocation
            It shares no memory with this estimator and does not need Dask.

        Raises
        ------
        ValueError
            If a prior is not the same for all topics, or for all words: scikit-learn
            has no place for that.
        """
        check_is_fitted(self)
        priors = {
            name: np.unique(getattr(self, f"{name}_"))
            for name in ("doc_topic_prior", "topic_word_prior")
        }
        for name, values in priors.items():
            if len(values) > 1:
                raise ValueError(
                    f"scikit-learn's LatentDirichletAllocation takes one number as "
                    f"{name}, but {name}_ has {len(values)} different values"
                )
        known = LatentDirichletAllocation().get_params()
        params = {k: v for k, v in self.get_params().items() if k in known}
        params |= {name: float(values[0]) for name, values in priors.items()}
        self._adapt_to_sklearn(params)
        peer = LatentDirichletAllocation(**params)
        peer.components_ = self.components_.copy()
        peer.exp_dirichlet_component_ = self.exp_dirichlet_component_
        for name, values in priors.items():
            setattr(peer, f"{name}_", float(values[0]))
        for name in ("n_batch_iter_", "n_iter_", "bound_", "n_features_in_"):
            if hasattr(self, name):
                setattr(peer, name, getattr(self, name))
        if hasattr(self, "feature_names_in_"):
            peer.feature_names_in_ = self.feature_names_in_.copy()
        peer.random_state_ = np.random.RandomState(0)
        return peer

    def _adapt_to_sklearn(self, params: dict[str, Any]) -> None:
        """Change parameters that mean something else in scikit-learn."""
        method = self._method()
        params["learning_method"] = "batch" if method == "auto" else method
        # With one rank, this is what scikit-learn's batches are.
        if isinstance(self.local_batch_size, str):
            del params["batch_size"]
        else:
            params["batch_size"] = self.local_batch_size

    def _validate_memory(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, Any]:
        X = validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype=[*self._row_dtypes, *CAST_LATER],
            ensure_non_negative=True,
            reset=reset,
        )
        return X, None

    def _sum(
        self, X: Any, function: Any, *, count: bool = False, model: Any = None
    ) -> list[float]:
        """Sums over documents of what a function gives for each of them."""
        columns = self._apply(X, function, model=model, n_outputs=2, dtype=np.float64)
        sums = blockwise_sum(columns)
        return [*sums.sum[:2], sums.n_rows] if count else list(sums.sum)

    def _predictor(self) -> TopicModel:
        prior = np.asarray(self.doc_topic_prior_, dtype=np.float64)
        prior = np.array(np.broadcast_to(prior, len(self.components_)))
        return TopicModel(self.components_, prior, self._inference())

    def _bound_of_topics(self) -> float:
        """The topics' own part of the bound."""
        return bound_of_topics(self.components_, self._word_prior().T)

    def _word_prior(self) -> np.ndarray:
        """Prior of the topics' words, (n_components or 1, n_features or 1)."""
        return np.atleast_2d(np.asarray(self.topic_word_prior_))

    def _inference(self) -> InferenceSettings:
        return InferenceSettings(
            max_iter=self.max_doc_update_iter,
            tol=self.mean_change_tol,
            threshold=DIGAMMA_THRESHOLD,
            block_bytes=_config.get_bytes("topics.block-size"),
        )


def _check_normalize(normalize: Any) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(normalize, (bool, np.bool_)):
        raise ValueError(f"normalize should be True or False, got {normalize!r}")


def _exp(x: float) -> float:
    """Exponential, infinite where it is too large."""
    with np.errstate(over="ignore"):
        return float(np.exp(x))


def _some(n: float) -> float:
    """A number of words or documents to divide by."""
    if not n:
        raise ValueError("X has no words: the perplexity of nothing is not defined")
    return n


def some_to_predict(n: float) -> float:
    """A number of words that completion predicts, to divide by."""
    if not n:
        raise ValueError(
            "X has no words to predict: method='completion' predicts every second word "
            "of a document, so some document needs two"
        )
    return n
