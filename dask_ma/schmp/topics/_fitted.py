"""Questions to topics that were found by Gibbs sampling."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dask_ma.kernels import left_to_right
from dask_ma.schmp.topics._documents import TokenTopics
from dask_ma.topics._fitted import FittedTopics, some_to_predict
from dask_ma.topics._model import TopicModel, completion_columns

if TYPE_CHECKING:
    from sklearn.decomposition import LatentDirichletAllocation

_MAX_SEED = np.iinfo(np.int32).max
_METHODS = ("completion", "left-to-right")


class _Particles(NamedTuple):
    """What is needed to estimate likelihoods."""

    model: TopicModel
    n_particles: int
    seed: int


class FittedGibbs(FittedTopics):
    """Base of SchMPLDA: likelihoods, and proportions in documents of the fit."""

    token_topics_: TokenTopics
    n_documents_: int

    @property
    def doc_topic_(self) -> np.ndarray:
        """Proportions of the topics in the documents of the fit, from their tokens.

        An array of float32 of shape (n_samples, n_components), made anew each time;
        with ``keep_tokens=True`` alone.
        """
        check_is_fitted(self)
        if not hasattr(self, "token_topics_"):
            raise AttributeError(
                "doc_topic_ needs the topics of all tokens; fit with keep_tokens=True, "
                "or use transform, which works them out from the words"
            )
        tokens, n_topics = self.token_topics_, len(self.components_)
        cells = tokens.documents * np.int64(n_topics) + tokens.topics
        counts = np.bincount(cells, minlength=self.n_documents_ * n_topics)
        parameters = counts.reshape(-1, n_topics) + np.asarray(self.doc_topic_prior_)
        parameters /= parameters.sum(axis=1, keepdims=True)
        return parameters.astype(self.components_.dtype)

    def perplexity(  # type: ignore[override]
        self,
        X: Any,
        *,
        method: str = "completion",
        n_particles: int = 20,
        random_state: Any = 0,
    ) -> float:
        """How surprising documents are: lower is better.

        Parameters
        ----------
        X : array-like, sparse, DataFrame or Dask collection, shape (n_samples, \
                n_features)
            Counts of words, one row per document, which the fit should not have seen.
        method : {"completion", "left-to-right"}, default="completion"
            "completion" works out the topics of each document from every other word,
            and takes the likelihood of the rest of the words at the expected
            proportions. "left-to-right" estimates the likelihood of whole documents
            by particles [1]_, which takes longer: some milliseconds for 100 words.
        n_particles : int, default=20
            For "left-to-right", at least 1. With more, the estimate is closer.
        random_state : int, RandomState instance or None, default=0
            Seed of the particles.

        Returns
        -------
        perplexity : float
            ``exp(-log likelihood / words)``, of the words whose likelihood is taken.

        Raises
        ------
        ValueError
            If the documents have no words, or for "left-to-right" counts that are not
            whole.

        References
        ----------
        .. [1] H. Wallach, I. Murray, R. Salakhutdinov, D. Mimno, "Evaluation methods
           for topic models", ICML 2009.
        """
        check_is_fitted(self)
        if method not in _METHODS:
            raise ValueError(f"method should be one of {_METHODS}, got {method!r}")
        if not isinstance(n_particles, Integral) or n_particles < 1:
            raise ValueError(f"n_particles should be at least 1, got {n_particles!r}")
        if method == "completion":
            value, n_words = self._sum(X, completion_columns)
            some_to_predict(n_words)
        else:
            seed = int(check_random_state(random_state).randint(_MAX_SEED))
            model = _Particles(self._predictor(), int(n_particles), seed)
            value, n_words = self._sum(X, _particle_columns, model=model)
        if not n_words:
            raise ValueError("X has no words: the perplexity of nothing is not defined")
        with np.errstate(over="ignore"):
            return float(np.exp(-value / n_words))

    def score(self, X: Any, y: Any = None) -> float:
        """Log likelihood of every other word of documents, given the words between.

        Parameters
        ----------
        X : array-like, sparse, DataFrame or Dask collection, shape (n_samples, \
                n_features)
            Counts of words, one row per document.
        y : object
            Not used, there for scikit-learn's conventions.

        Returns
        -------
        log_likelihood : float
            Higher is better; what ``perplexity(X)`` is made of.
        """
        check_is_fitted(self)
        return float(self._sum(X, completion_columns)[0])

    def _predictor(self) -> TopicModel:
        return super()._predictor()._replace(is_known=True)

    def to_sklearn(self) -> LatentDirichletAllocation:
        """A fitted scikit-learn estimator with the same topics.

        Its ``transform`` finds the same proportions as :meth:`transform`, but for where
        the iterations over a document end: about 0.0002 on average, up to 0.1 in a few
        documents. For that, its `exp_dirichlet_component_` has the probabilities of the
        words in the topics, which are known here, and not what variational Bayes takes
        in their place. Its ``score`` and ``perplexity`` are of the variational bound,
        and no likelihoods of words, as those here are. Its ``partial_fit`` goes on by
        variational Bayes, and puts that in the place of the probabilities.

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
        peer = super().to_sklearn()
        totals = peer.components_.sum(axis=1, keepdims=True, dtype=np.float64)
        peer.exp_dirichlet_component_ = peer.components_ / totals.astype(
            peer.components_.dtype
        )
        # As scikit-learn's passes over all documents leave it, one update each.
        peer.n_batch_iter_ = self.n_iter_ + 1
        return peer

    def _adapt_to_sklearn(self, params: dict[str, Any]) -> None:
        params.pop("evaluate_every", None)  # of something else


def _particle_columns(particles: _Particles, X: Any) -> np.ndarray:
    """Estimated log likelihood of each document, and its number of words."""
    model = particles.model
    X = sparse.csr_array(X)
    if len(X.data) and not (X.data.min() >= 0 and (X.data % 1 == 0).all()):
        raise ValueError(
            "method='left-to-right' goes from word to word: counts in X should be "
            "whole numbers from 0 on"
        )
    totals = model.components.sum(axis=1, dtype=np.float64)
    words, columns = np.unique(X.indices, return_inverse=True)
    topics = model.components[:, words].T / totals
    narrow = sparse.csr_array(
        (X.data, columns, X.indptr), shape=(X.shape[0], len(words))
    )
    rng = np.random.default_rng(particles.seed)
    values = left_to_right(
        narrow, topics, model.doc_topic_prior, particles.n_particles, rng
    )
    return np.column_stack([values, np.asarray(X.sum(axis=1)).ravel()])
