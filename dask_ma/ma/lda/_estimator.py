"""MALDA: latent Dirichlet allocation by variational inference on all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, ClassVar

from dask_ma._callbacks import N_WRAPPERS, with_callbacks
from dask_ma._settings import Inactive
from dask_ma._sklearn import Interval, StrOptions, fit_context
from dask_ma.data import describe
from dask_ma.ma._paradigm import PARADIGM, Gradients, Models
from dask_ma.ma.lda._base import TopicEstimator
from dask_ma.ma.lda._params import INACTIVE_ONLINE

_ANY_NUMBER = 1e6  # default of scikit-learn's total_samples, which is nobody's choice
_AUTO = StrOptions({"auto"})
_FEW = 0.01  # of the documents that there are to be, in one call


class MALDA(TopicEstimator):
    """Topic model by stochastic variational inference with model averaging.

    Latent Dirichlet allocation: each document is a mixture of topics, each topic a
    distribution over words. Every rank goes over documents of its own in small batches
    and updates topics of its own by each of them; in longer intervals the ranks'
    topics are averaged. Documents and topics stay on the workers.

    Read more in the :ref:`User Guide <topic_models>`, and :ref:`there <parameters>` of
    parameters that cannot act beside others.

    Parameters
    ----------
    n_components : int, default=10
        Number of topics.
    doc_topic_prior : float, array-like of shape (n_components,), "auto" or None, \
            default=None
        Prior of the documents' topics, above 0; in the literature, this is `alpha`.
        None is ``1 / n_components``. "auto" starts from there and learns a value for
        each topic from the documents.
    topic_word_prior : float, array-like of shape (n_features,) or (n_components, \
            n_features), "auto" or None, default=None
        Prior of the topics' words, above 0; in the literature, this is `eta`. None is
        ``1 / n_components``. With a matrix each topic has its own, which guides it
        to words from the first topics on. "auto" starts from ``1 / n_components`` and
        learns one number, after each pass that which fits the topics best.
    learning_method : {"auto", "online", "batch"}, default="auto"
        "online" updates the topics by batches of documents; "batch" once in a pass, by
        all documents: the variational Bayes of scikit-learn, on all ranks. "auto" is
        "batch" for up to 1024 documents, where it begins with the best of four
        attempts, of five passes each, from other random topics; then the blocks and
        the number of ranks make no difference. For more documents, and where a
        parameter of "online" is not its default, it is "online". Those are
        `learning_decay`, `learning_offset`, `batch_size`, `local_batch_size`,
        `paradigm` and `mixing`.
    word_weights : {"auto", "mean", "variational"}, default="auto"
        Weights of words in topics by which a fit works out the topics of documents:
        the expected probabilities of the words, or, as in variational Bayes, ``exp`` of
        the expected logarithms. By these a topic with few words loses them to others,
        and many end empty. "auto" is "mean", but "variational" where the topics are
        updated by all documents at once. What a fitted model says of documents always
        goes by "variational".
    learning_decay : float, default=0.7
        How fast the updates get smaller: update `t` moves the topics by
        ``(learning_offset + t) ** -learning_decay``. From 0.5, not included, to 1 the
        updates converge; in the literature, this is `kappa`.
    learning_offset : float, default=10.0
        Makes the first updates smaller, at least 1; in the literature, this is `tau_0`.
    max_iter : int, default=10
        Most passes over the documents.
    batch_size : int or "auto", default="auto"
        Documents of a round, on all ranks together: after so many the ranks' topics
        are merged. "auto" chooses by the number of documents: an eighth of them, from
        32 to 256; a thirty-second of more than 8,192, and 16 times the root of more
        than 262,144. From 2,041 documents on several ranks have larger rounds: 16
        updates of each of two ranks, 8 of four, and 4 of eight or more, but at least
        two rounds in a pass, and fewer updates above 1,000 topics. With
        ``paradigm="gradient"`` it is not above 256, or a 256th of the documents. Not
        used by ``learning_method="batch"``.
    local_batch_size : int or "auto", default="auto"
        Documents by which a rank updates its own topics at once. "auto" lets every rank
        make one update for each 384 of its own in a round, and for a `batch_size` above
        what "auto" is there at least one for so many documents of all ranks, but of 16
        for each; so with one rank it is what scikit-learn calls `batch_size`. Used by
        ``paradigm="model"``.
    evaluate_every : int, default=-1
        Passes from one evaluation of the perplexity to the next; 0 or less evaluates
        after the last pass only. It is that of the training documents, or, with a
        `validation_fraction`, that of the held-out ones, which takes less time.
    total_samples : float, default=1e6
        Documents of the whole corpus, which `partial_fit` sees a part of, and
        `perplexity` if asked for. `fit` takes what it sees for the whole corpus. The
        first call of `partial_fit` warns if it is left as it is, and its documents are
        less than a hundredth of so many.
    perp_tol : float, default=0.1
        The fit ends when the perplexity changes by less from one evaluation to the
        next; with a `validation_fraction`, when that of the held-out documents falls by
        less. Used where `evaluate_every` is above 0.
    validation_fraction : float or None, default=None
        Part of each rank's documents, above 0 and below 1, that `fit` holds out. Their
        perplexity by completion is evaluated every `evaluate_every` passes, and after
        the last one. None holds out none. Not used by `partial_fit`.
    mean_change_tol : float, default=1e-3
        The inference of a document ends when the expected numbers of its words from
        each topic change by less, on average over the topics.
    max_doc_update_iter : int, default=100
        Most iterations of the inference of a document.
    paradigm : {"model", "gradient"}, Models or Gradients, default="model"
        "model" averages topics that each rank has updated many times. "gradient" adds
        up what the ranks' documents show for one update in a round, as Spark's MLlib
        does; it is there to compare with. ``learning_method="batch"`` has one way only.
        An object of :class:`~dask_ma.ma.Models` or :class:`~dask_ma.ma.Gradients` also
        says who adds up what is sent.
    mixing : {"allreduce", "butterfly"}, default="allreduce"
        "allreduce" averages over all ranks in every round. "butterfly" averages over
        two ranks, with other partners in each round, and over all after each pass: a
        round then costs the same however many ranks there are.
    dtype : {"float32", "float64"}, default="float32"
        Type of the topics and of the documents' proportions. Sums are kept in float64
        in both.
    components_init : array-like of shape (n_components, n_features), default=None
        Parameters of the topics to start from, above 0. None draws them at random;
        where the topics are updated by parts of the documents, each gets the words of
        three documents besides, and as many again of all these documents; the fewer
        updates are to come, the fewer words.
    verbose : int, default=0
        1 shows a progress bar, in a terminal or notebook and with rich installed; a
        higher value, or 1 elsewhere, prints a line per round.
    random_state : int, RandomState instance or None, default=None
        Seed of the first topics and of the order of the documents.
    n_ranks : int or None, default=None
        Number of ranks. None means one per worker thread of the current client, or
        fewer where more would take longer (:ref:`ranks_that_pay`), and one without a
        client. Without a client the ranks are threads of this process.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Parameters of the topics' Dirichlet distributions over words: divided by the sum
        of its row, an element is the probability of a word in a topic.
    exp_dirichlet_component_ : ndarray of shape (n_components, n_features)
        ``exp(E[log beta])`` of the topics.
    doc_topic_prior_ : float or ndarray of shape (n_components,)
        Prior of the documents' topics: given, or learned.
    topic_word_prior_ : float or ndarray of shape (n_features,) or (n_components, \
            n_features)
        Prior of the topics' words: given, or learned.
    bound_ : float
        Perplexity of the training documents after the last pass of `fit`.
    n_batch_iter_ : int
        1 plus the updates that each rank has made.
    n_iter_ : int
        Passes over the documents.
    history_ : list of dict
        One record per round: `round`; `n_iter`, passes completed; `time`, in seconds
        since rank 0 started; where the topics were evaluated `perplexity` of the
        training documents and `objective`, its logarithm, else NaN; with a
        `validation_fraction` also `validation_perplexity`; over all ranks the
        sums `n_samples` (documents gone over), `bytes_sent` and `messages_sent`
        between processes, and `bytes_shared` within processes; and the means over ranks
        `seconds_computing` and `seconds_waiting`.
        `restarts` counts how often the ranks have had to start again until then.
    timeline_ : ndarray of shape (n_spans,)
        What each rank has done when; see
        :class:`~dask_ma.plotting.GanttDisplay`.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X had names that are all strings.

    See Also
    --------
    sklearn.decomposition.LatentDirichletAllocation : The same model on one machine.

    Notes
    -----
    `transform` gives the same for a document whatever else is in `X`, up to rounding:
    the inference of each document starts from equal shares of all topics. The
    components depend on `random_state`, on the blocks of `X` and on the number of
    ranks, and on nothing else.

    References
    ----------
    Y. Guo et al. "Model averaging in distributed machine learning: a case study with
    Apache Spark." The VLDB Journal, 2021; section 4.

    M. Hoffman, D. Blei, F. Bach. "Online learning for latent Dirichlet allocation."
    Advances in Neural Information Processing Systems 23, 2010.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from dask_ma import MALDA
    >>> texts = ["red apple", "green apple", "fast car", "red car", "fast green car"]
    >>> vectorizer = CountVectorizer()
    >>> X = vectorizer.fit_transform(texts)
    >>> lda = MALDA(n_components=2, max_iter=20, random_state=0).fit(X)
    >>> lda.transform(X).shape
    (5, 2)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
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
        "learning_method": [StrOptions({"auto", "online", "batch"})],
        "word_weights": [StrOptions({"auto", "mean", "variational"})],
        "learning_decay": [Interval(Real, 0, 1, closed="both")],
        "learning_offset": [Interval(Real, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left"), _AUTO],
        "local_batch_size": [Interval(Integral, 1, None, closed="left"), _AUTO],
        "evaluate_every": [Interval(Integral, None, None, closed="neither")],
        "total_samples": [Interval(Real, 0, None, closed="neither")],
        "perp_tol": [Interval(Real, 0, None, closed="left")],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
        "mean_change_tol": [Interval(Real, 0, None, closed="left")],
        "max_doc_update_iter": [Interval(Integral, 1, None, closed="left")],
        "paradigm": [PARADIGM.to_sklearn()],
        "mixing": [StrOptions({"allreduce", "butterfly"})],
        "dtype": [StrOptions({"float32", "float64"})],
        "components_init": ["array-like", None],
        "verbose": ["verbose"],
        "random_state": ["random_state"],
        "n_ranks": [Interval(Integral, 1, None, closed="left"), None],
    }

    def __init__(
        self,
        n_components: int = 10,
        *,
        doc_topic_prior: Any = None,
        topic_word_prior: Any = None,
        learning_method: str = "auto",
        word_weights: str = "auto",
        learning_decay: float = 0.7,
        learning_offset: float = 10.0,
        max_iter: int = 10,
        batch_size: int | str = "auto",
        local_batch_size: int | str = "auto",
        evaluate_every: int = -1,
        total_samples: float = 1e6,
        perp_tol: float = 0.1,
        validation_fraction: float | None = None,
        mean_change_tol: float = 1e-3,
        max_doc_update_iter: int = 100,
        paradigm: str | Models | Gradients = "model",
        mixing: str = "allreduce",
        dtype: str = "float32",
        components_init: Any = None,
        verbose: int = 0,
        random_state: Any = None,
        n_ranks: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.learning_method = learning_method
        self.word_weights = word_weights
        self.learning_decay = learning_decay
        self.learning_offset = learning_offset
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.local_batch_size = local_batch_size
        self.evaluate_every = evaluate_every
        self.total_samples = total_samples
        self.perp_tol = perp_tol
        self.validation_fraction = validation_fraction
        self.mean_change_tol = mean_change_tol
        self.max_doc_update_iter = max_doc_update_iter
        self.paradigm = paradigm
        self.mixing = mixing
        self.dtype = dtype
        self.components_init = components_init
        self.verbose = verbose
        self.random_state = random_state
        self.n_ranks = n_ranks

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> MALDA:
        """Fit the topics to documents.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Counts of words, one row per document. They need not be whole numbers. A
            document without words is allowed, and gets the prior.
        y : object
            Not used, there for scikit-learn's conventions.

        Returns
        -------
        self : MALDA

        Raises
        ------
        ValueError
            For negative or infinite counts, for no documents or no words, and for
            parameters that do not fit the data or each other.
        FitFailedError
            If a worker is lost or a wait takes longer than configured.
        """
        return self._fit(X)

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None) -> MALDA:
        """Go over documents once, starting from the topics so far.

        Whatever `learning_method` is, the updates are those of "online".

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Counts of words, one row per document.
        y : object
            Not used, there for scikit-learn's conventions.

        Returns
        -------
        self : MALDA

        Raises
        ------
        ValueError
            As in :meth:`fit`, and for another number of columns than before.
        """
        first = not hasattr(self, "components_")
        self._fit(X, is_partial=True)
        if first and self.total_samples == _ANY_NUMBER:
            self._warn_of_total_samples(X)
        return self

    def _rules(self, *, is_partial: bool) -> tuple[Inactive, ...]:
        return INACTIVE_ONLINE if is_partial else super()._rules(is_partial=False)

    def _warn_of_total_samples(self, X: Any) -> None:
        """Warn of a number of documents that is likely to be far from the truth."""
        n_rows = describe(X).n_rows
        if n_rows is not None and n_rows < _FEW * self.total_samples:
            warnings.warn(
                f"partial_fit has taken {n_rows} documents for a sample of "
                f"total_samples={self.total_samples:g}, the default, and weighs each "
                "accordingly; set total_samples to the number of documents that there "
                "will be",
                UserWarning,
                stacklevel=3 + N_WRAPPERS,
            )

    def _count_merged(self, models: Sequence[MALDA]) -> dict[str, Any]:
        n_updates = sum(model.n_batch_iter_ - 1 for model in models)
        return {"n_batch_iter_": n_updates + 1, "n_iter_": self.n_iter_}
