"""SchMPLDA: latent Dirichlet allocation by Gibbs sampling, with words in rotation."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.decomposition import LatentDirichletAllocation

from dask_ma._callbacks import with_callbacks
from dask_ma._settings import Inactive, unless
from dask_ma._sklearn import Interval, StrOptions, fit_context
from dask_ma.data import InputInfo, Kept, RoomSettings
from dask_ma.schmp.topics._agent import join_results, train
from dask_ma.schmp.topics._cost import ranks_for_topics
from dask_ma.schmp.topics._documents import as_small_counts
from dask_ma.schmp.topics._fitted import FittedGibbs
from dask_ma.schmp.topics._moves import topic_dtype
from dask_ma.schmp.topics._needs import MOST_COPIES, bytes_per_token
from dask_ma.schmp.topics._params import GibbsParams
from dask_ma.schmp.topics._room import foresight
from dask_ma.topics._priors import (
    check_components,
    check_doc_topic_prior,
    check_topic_word_prior,
    is_auto,
)

_MOST_EXACT = 200  # topics up to which exact draws reach a likelihood sooner
_AUTO = StrOptions({"auto"})
_AT_LEAST_ONE = Interval(Integral, 1, None, closed="left")


class SchMPLDA(FittedGibbs):
    """Latent Dirichlet allocation by Gibbs sampling, with words in rotation [1]_.

    Every token, an occurrence of a word in a document, has a topic, which is drawn anew
    in each rotation given the topics of all others [2]_. Documents stay on their ranks;
    the counts of the words travel past them in blocks. No two ranks ever have the same
    word, so no count of a word is ever out of date, and no rank has all of them.

    Parameters
    ----------
    n_components : int, default=10
        Number of topics.
    doc_topic_prior : float, array-like of shape (n_components,) or "auto", default=None
        Prior of the documents' topics, above 0; in the literature, this is `alpha`.
        "auto" learns one for each topic. None stands for ``1 / n_components``.
    topic_word_prior : float, array-like of shape (n_features,) or (n_components, \
            n_features), or "auto", default=None
        Prior of the topics' words, above 0; `beta` or `eta`. Numbers for each word, or
        for each topic and word, lead topics to words. "auto" learns one number. None
        stands for ``1 / n_components``; 0.01 is usual, too.
    sampler : {"auto", "exact", "metropolis"}, default="auto"
        "exact" draws from the distribution given all other tokens, at a cost that grows
        with `n_components`. "metropolis" draws from proposals that it accepts or not
        (Metropolis and Hastings [3]_), at a cost that does not; it takes more
        rotations. "auto" is "exact" for up to 200 topics.
    n_proposals : int, default=4
        Proposals by the documents, and by the words, for each token and rotation of
        "metropolis".
    max_iter : int, default=100
        Rotations, in each of which all tokens are drawn once.
    burn_in : int, default=0
        Rotations before priors are learned, or samples averaged.
    n_samples : int, default=1
        How many rotations, up to the last one, `components_` is the mean of.
    thin : int, default=10
        Rotations from one of these samples to the next.
    learn_every : int, default=5
        Rotations from one step of learning priors to the next, with "auto" priors.
    evaluate_every : int, default=-1
        Rotations from one evaluation of the likelihood to the next. With 0 or less it
        is evaluated after the last one alone.
    fractions : {"raise", "round"}, default="raise"
        What becomes of counts that are no whole numbers.
    synchronize : {"rotation", "iteration"}, default="rotation"
        When ranks tell each other how many tokens each topic has: after each rotation,
        or whenever blocks have moved on, which costs a wait for each rank.
    keep_tokens : bool, default=False
        Whether the topics of all tokens are returned, as `token_topics_`.
    mean_change_tol : float, default=1e-3
        The topics of a new document have been worked out when they change by less, on
        average.
    max_doc_update_iter : int, default=100
        Most iterations for that.
    init : {"progressive", "random"}, default="progressive"
        How tokens get their first topics. "random" draws them all at once, by chance.
        "progressive" begins with down to a 16th of the documents, doubles them in each
        of up to four rotations, and draws first topics given those that are there,
        which gets as far in fewer rotations; several ranks pass blocks on several times
        in these. With less than 900 tokens or five documents for each topic in the
        first part ("metropolis": 300 or two), it begins with more documents. It is not
        used where weights of first topics are given.
    components_init : array-like of shape (n_components, n_features), default=None
        Weights above 0; a token's first topic is drawn in proportion to those of its
        word. None draws by `topic_word_prior`.
    warm_start : bool, default=False
        Whether another `fit` draws first topics by the `components_` of the last one.
    verbose : int, default=0
        1 shows a progress bar, a higher value a line per rotation.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws.
    n_ranks : int or None, default=None
        Number of ranks. None means one per worker thread of the current client, or
        fewer where more would take longer (:ref:`ranks_that_pay`), and one without a
        client.

    Attributes
    ----------
    components_ : ndarray of float32 of shape (n_components, n_features)
        Tokens of each topic and word, plus the prior: divided by the sum of its row, an
        element is the probability of a word in a topic.
    exp_dirichlet_component_ : ndarray of shape (n_components, n_features)
        ``exp(E[log beta])`` of the topics.
    doc_topic_prior_ : float or ndarray of shape (n_components,)
        Prior of the documents' topics: given, or learned.
    topic_word_prior_ : float or ndarray
        Prior of the topics' words: given, or learned.
    log_likelihood_ : float
        Logarithm of the joint probability of words and topics after the last rotation,
        per token: that of the words given the topics [2]_ plus that of the topics.
    token_topics_ : TokenTopics
        Arrays `documents`, `words` and `topics` of all tokens, with
        ``keep_tokens=True``; a count of 2 is two tokens.
    doc_topic_ : ndarray of shape (n_samples, n_components)
        Proportions of topics in the documents of the fit, from those.
    n_documents_ : int
        Documents of the fit.
    n_iter_ : int
        Rotations made.
    history_ : list of dict
        One record for each rotation, after one for the first topics: `log_likelihood`
        per token and `objective`, its negative, NaN where they were not evaluated;
        `changed`, the part of tokens that have another topic than before; bytes, times
        and `imbalance`.
    timeline_ : ndarray
        What each rank has done when.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X had names that are all strings.

    See Also
    --------
    MALDA : The same model by variational inference, for a few passes over documents.
    dask_ma.schmp.RotationProgram : Programs of this kind.

    Notes
    -----
    The result depends on `random_state`, on the blocks of `X` and on the number of
    ranks, and on nothing else. Totals of topics are up to a rotation old as far as
    other ranks have changed them.

    References
    ----------
    .. [1] J. K. Kim, Q. Ho, S. Lee, X. Zheng, W. Dai, G. A. Gibson, E. P. Xing,
       "STRADS: A distributed framework for scheduled model parallel machine learning",
       EuroSys 2016.
    .. [2] T. Griffiths, M. Steyvers, "Finding scientific topics", PNAS 2004.
    .. [3] J. Chen, K. Li, J. Zhu, W. Chen, "WarpLDA: a cache efficient O(1) algorithm
       for latent Dirichlet allocation", VLDB 2016.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from dask_ma import SchMPLDA
    >>> texts = ["red apple", "green apple", "fast car", "red car", "fast green car"]
    >>> X = CountVectorizer().fit_transform(texts)
    >>> lda = SchMPLDA(n_components=2, random_state=0).fit(X)
    >>> lda.transform(X).shape
    (5, 2)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [_AT_LEAST_ONE],
        "doc_topic_prior": [
            Interval(Real, 0, None, closed="neither"),
            _AUTO,
            "array-like",
            None,
        ],
        "topic_word_prior": [
            Interval(Real, 0, None, closed="neither"),
            _AUTO,
            "array-like",
            None,
        ],
        "sampler": [StrOptions({"auto", "exact", "metropolis"})],
        "n_proposals": [_AT_LEAST_ONE],
        "max_iter": [_AT_LEAST_ONE],
        "burn_in": [Interval(Integral, 0, None, closed="left")],
        "n_samples": [_AT_LEAST_ONE],
        "thin": [_AT_LEAST_ONE],
        "learn_every": [_AT_LEAST_ONE],
        "evaluate_every": [Interval(Integral, None, None, closed="neither")],
        "fractions": [StrOptions({"raise", "round"})],
        "synchronize": [StrOptions({"rotation", "iteration"})],
        "keep_tokens": ["boolean"],
        "mean_change_tol": [Interval(Real, 0, None, closed="left")],
        "max_doc_update_iter": [_AT_LEAST_ONE],
        "init": [StrOptions({"progressive", "random"})],
        "components_init": ["array-like", None],
        "warm_start": ["boolean"],
        "verbose": ["verbose"],
        "random_state": ["random_state"],
        "n_ranks": [_AT_LEAST_ONE, None],
    }
    _free_to_change = FittedGibbs._free_to_change | {"evaluate_every"}
    _inactive: ClassVar[tuple[Inactive, ...]] = (
        Inactive(
            ("n_proposals",),
            unless("sampler", "auto", "metropolis"),
            "set sampler='metropolis'",
        ),
        Inactive(
            ("burn_in",),
            lambda estimator: (
                () if _learns(estimator) or estimator.n_samples > 1 else ("n_samples",)
            ),
            "set n_samples above 1, or a prior to 'auto'",
        ),
        Inactive(
            ("thin",),
            lambda estimator: () if estimator.n_samples > 1 else ("n_samples",),
            "set n_samples above 1",
        ),
        Inactive(
            ("learn_every",),
            lambda estimator: (
                () if _learns(estimator) else ("doc_topic_prior", "topic_word_prior")
            ),
            "set a prior to 'auto'",
        ),
    )

    def __init__(
        self,
        n_components: int = 10,
        *,
        doc_topic_prior: Any = None,
        topic_word_prior: Any = None,
        sampler: str = "auto",
        n_proposals: int = 4,
        max_iter: int = 100,
        burn_in: int = 0,
        n_samples: int = 1,
        thin: int = 10,
        learn_every: int = 5,
        evaluate_every: int = -1,
        fractions: str = "raise",
        synchronize: str = "rotation",
        keep_tokens: bool = False,
        mean_change_tol: float = 1e-3,
        max_doc_update_iter: int = 100,
        init: str = "progressive",
        components_init: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: Any = None,
        n_ranks: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.sampler = sampler
        self.n_proposals = n_proposals
        self.max_iter = max_iter
        self.burn_in = burn_in
        self.n_samples = n_samples
        self.thin = thin
        self.learn_every = learn_every
        self.evaluate_every = evaluate_every
        self.fractions = fractions
        self.synchronize = synchronize
        self.keep_tokens = keep_tokens
        self.mean_change_tol = mean_change_tol
        self.max_doc_update_iter = max_doc_update_iter
        self.init = init
        self.components_init = components_init
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state
        self.n_ranks = n_ranks

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the topics to documents.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Counts of words, one row per document; whole numbers, unless `fractions`
            says otherwise. A document without words is allowed, and gets the prior. So
            is a word that never occurs.
        y : object
            Not used, there for scikit-learn's conventions.

        Returns
        -------
        self : SchMPLDA

        Raises
        ------
        ValueError
            For counts that are negative, infinite or not whole, for no documents or no
            words, and for parameters that do not fit the data or each other.
        FitFailedError
            If a worker is lost or a wait takes longer than configured.
        """
        return self._fit(X)

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Fit to more documents, on top of what the topics were until now.

        The tokens of earlier documents keep their topics: `components_` are the prior
        of the words. This makes `max_iter` rotations of the new documents alone.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Counts of words, one row per document.
        y : object
            Not used, there for scikit-learn's conventions.

        Returns
        -------
        self : SchMPLDA

        Raises
        ------
        ValueError
            As in :meth:`fit`, and for another number of columns or topics than before.
        """
        return self._fit(X, is_partial=True)

    _join = staticmethod(join_results)
    _sent_as = staticmethod(as_small_counts)

    _worthwhile_ranks = staticmethod(ranks_for_topics)

    @property
    def _agent(self) -> Any:
        return train

    def _copies(self, params: GibbsParams) -> Kept:
        """Bytes for each token over 12 of a count, which is one token or more."""
        size = topic_dtype(params.n_components).itemsize
        laid_out, kept = bytes_per_token(params.sampler, size, params.n_proposals)
        times = (laid_out + MOST_COPIES * kept) / 12
        return Kept(times, "tokens", spills=True, foresight=foresight(params))

    @property
    def _is_planned(self) -> bool:
        return self.n_samples > 1  # the last rotations are those of the samples

    @property
    def _may_end_early(self) -> bool:
        return False

    def _peer_type(self) -> type:
        return LatentDirichletAllocation

    def _check_combinations(self) -> None:
        before = self.max_iter - (self.n_samples - 1) * self.thin
        if before <= self.burn_in and (self.n_samples > 1 or _learns(self)):
            raise ValueError(
                f"with max_iter={self.max_iter}, n_samples={self.n_samples} and "
                f"thin={self.thin} the first sample is that of rotation {before}; it "
                f"should come after burn_in={self.burn_in}; raise max_iter"
            )

    def _max_rounds(self, params: GibbsParams, info: InputInfo, n_ranks: int) -> int:
        return params.n_rotations

    def _warm_changes(self) -> dict[str, Any]:
        if not self.warm_start or not hasattr(self, "components_"):
            return {}
        return {"start": self._last_topics()}

    def _partial_changes(self) -> dict[str, Any]:
        if not hasattr(self, "components_"):
            return {}
        learned = {"doc_topic_prior": np.atleast_1d(self.doc_topic_prior_)}
        return {
            **(learned if is_auto(self.doc_topic_prior) else {}),
            "topic_word_prior": self._last_topics(),
            "learn_word_prior": False,
        }

    def _last_topics(self) -> np.ndarray:
        """Topics so far, (n_features, n_components)."""
        if len(self.components_) != self.n_components:
            raise ValueError(
                f"n_components is {self.n_components}, but the topics to go on from "
                f"are {len(self.components_)}; set it back, or call fit with "
                "warm_start=False"
            )
        return np.ascontiguousarray(self.components_.T)

    def _make_params(self, info: InputInfo, **changes: Any) -> GibbsParams:
        n_topics, n_features = self.n_components, self.n_features_in_
        if "start" in changes and len(changes["start"]) != n_features:
            raise ValueError(
                "the topics to start from have other features than the data: "
                f"{len(changes['start'])}, not {n_features}; set warm_start=False"
            )
        of_documents = check_doc_topic_prior(
            self._first_value("doc_topic_prior"), n_topics
        )
        of_words = check_topic_word_prior(
            self._first_value("topic_word_prior"),
            n_topics,
            n_features,
            np.dtype(np.float32),
        )
        chosen = {
            "n_features": n_features,
            "sampler": self._sampler(),
            "doc_topic_prior": of_documents,
            "learn_doc_prior": is_auto(self.doc_topic_prior) and n_topics > 1,
            "topic_word_prior": of_words.T,
            "learn_word_prior": is_auto(self.topic_word_prior),
            "start": self._first_topics(),
            "room": RoomSettings.configured(),
            **changes,
        }
        is_number = len(of_documents) == 1
        self.doc_topic_prior_ = float(of_documents[0]) if is_number else of_documents
        if "topic_word_prior" not in changes:
            self.topic_word_prior_ = of_words if of_words.ndim else float(of_words)
        prior = np.broadcast_to(chosen["doc_topic_prior"], n_topics)
        chosen["doc_topic_prior"] = np.array(prior, dtype=np.float64)
        return self._params_of(GibbsParams, **chosen)

    def _first_value(self, name: str) -> Any:
        """A prior to begin with."""
        value = getattr(self, name)
        return 1 / self.n_components if value is None or is_auto(value) else value

    def _sampler(self) -> str:
        """How topics are drawn."""
        if self.sampler != "auto":
            return str(self.sampler)
        return "exact" if self.n_components <= _MOST_EXACT else "metropolis"

    def _first_topics(self) -> np.ndarray | None:
        """Weights of first topics that the user has given."""
        if self.components_init is None:
            return None
        given = check_components(
            self.components_init, self.n_components, self.n_features_in_
        )
        return np.ascontiguousarray(given.T, dtype=np.float32)

    def _take_over(self, result: Any, params: GibbsParams) -> None:
        if hasattr(self, "token_topics_"):
            del self.token_topics_
        super()._take_over(result, params)
        self.log_likelihood_ = result.history[-1]["log_likelihood"]

    def _count_merged(self, models: Sequence[SchMPLDA]) -> dict[str, Any]:
        n_documents = sum(model.n_documents_ for model in models)
        return {"n_documents_": n_documents, "n_iter_": self.n_iter_}

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        """Fitted attributes of a model of the ranks."""
        attributes = {
            "components_": fitted["components"],
            "n_documents_": fitted["n_documents"],
            "n_iter_": fitted["n_iter"],
        }
        if is_auto(self.doc_topic_prior):
            attributes["doc_topic_prior_"] = fitted["doc_topic_prior"]
        if fitted["topic_word_prior"] is not None:
            attributes["topic_word_prior_"] = fitted["topic_word_prior"]
        if "tokens" in fitted:
            attributes["token_topics_"] = fitted["tokens"]
        return attributes


def _learns(estimator: Any) -> bool:
    """Whether some prior is learned."""
    return is_auto(estimator.doc_topic_prior) or is_auto(estimator.topic_word_prior)
