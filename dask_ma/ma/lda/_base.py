"""The way through the fit of a topic model."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.decomposition import LatentDirichletAllocation

from dask_ma.data import InputInfo, InputSize, Kept
from dask_ma.engine import worthwhile_ranks
from dask_ma.ma._paradigm import PARADIGM, is_gradient
from dask_ma.ma.lda._agent import train
from dask_ma.ma.lda._params import INACTIVE, TopicParams, check_combinations
from dask_ma.ma.lda._sizes import gradient_size, is_few, round_size
from dask_ma.topics._fitted import FittedTopics
from dask_ma.topics._priors import (
    check_components,
    check_doc_topic_prior,
    check_topic_word_prior,
    is_auto,
)

# Seconds of a pass for a word of a document and a topic, and the collective operations
# of a round.
_SECONDS_PER_WORD, _EXCHANGES = 7e-9, 5


class TopicEstimator(FittedTopics):
    """Base of MALDA, which adds the parameters and the methods that fit."""

    # What ends a fit, and what `fit` has no use for, may change, too.
    _free_to_change = FittedTopics._free_to_change | {
        "evaluate_every",
        "perp_tol",
        "total_samples",
    }
    _to_object = {"paradigm": PARADIGM.as_object}
    _inactive = INACTIVE

    @property
    def _may_end_early(self) -> bool:
        return bool(self.evaluate_every > 0)

    def _copies(self, params: Any) -> Kept:
        """Documents that are held out are copied, and so are the others."""
        if self.validation_fraction is None:
            return Kept()
        what = "documents that are held out, and the others"
        return Kept(1.0, what, "set validation_fraction=None")

    def _check_combinations(self) -> None:
        check_combinations(self)

    def _peer_type(self) -> type:
        return LatentDirichletAllocation

    def _is_online(self) -> bool:
        return is_gradient(self.paradigm)

    def _first_components(self) -> np.ndarray | None:
        """Topics that the user wants to start from."""
        if self.components_init is None:
            return None
        return check_components(
            self.components_init, self.n_components, self.n_features_in_
        )

    @property
    def _agent(self) -> Any:
        return train

    def _partial_changes(self) -> dict[str, Any]:
        """Parameters of the one pass of `partial_fit`."""
        changes: dict[str, Any] = {
            "max_iter": 1,
            "learning_method": "online",
            "validation_fraction": None,
            "n_updates": getattr(self, "n_batch_iter_", 1) - 1,
            "with_bound": False,
        }
        if hasattr(self, "components_"):
            if len(self.components_) != self.n_components:
                raise ValueError(
                    f"n_components is {self.n_components}, but the topics to go on "
                    f"from are {len(self.components_)}; set it back, or call fit"
                )
            changes["components"] = self.components_
        return changes

    def _make_params(
        self, info: InputInfo, *, with_bound: bool = True, **changes: Any
    ) -> TopicParams:
        # A step of `partial_fit`, without a bound, goes on with what was learned.
        for name, value in self._make_priors(continues=not with_bound).items():
            setattr(self, f"{name}_", value)
        doc_topic_prior = np.broadcast_to(self.doc_topic_prior_, self.n_components)
        chosen = {
            "batch_size": _chosen(self.batch_size),
            "local_batch_size": _chosen(self.local_batch_size),
            "learning_method": self._method(),
            "doc_topic_prior": np.array(doc_topic_prior, dtype=np.float64),
            "learn_prior": is_auto(self.doc_topic_prior),
            "topic_word_prior": np.ascontiguousarray(self._word_prior().T),
            "learn_topic_prior": is_auto(self.topic_word_prior),
            "inference": self._inference(),
            "dtype": np.dtype(self.dtype),
            "with_bound": with_bound,
        }
        if with_bound:  # `total_samples` is about the documents of all steps
            chosen["total_samples"] = None
        if "components" not in changes:
            chosen["components"] = self._first_components()
        return self._params_of(TopicParams, **{**chosen, **changes})

    def _max_rounds(
        self, params: TopicParams, info: InputInfo, n_ranks: int
    ) -> int | None:
        """Most rounds that there can be, if the number of documents is known."""
        if info.n_rows is None and params.learning_method != "batch":
            return None
        return _count_rounds(params, info.n_rows or 0, n_ranks)

    def _worthwhile_ranks(
        self, params: TopicParams, size: InputSize, n_threads: int
    ) -> int:
        """As many as gain more by sharing the documents than averages take."""
        if is_gradient(params.paradigm):
            return n_threads
        n_rounds = _count_rounds(params, size.n_rows, 2)
        n_values = params.n_components * size.n_features
        return worthwhile_ranks(
            size,
            n_threads,
            shared=params.max_iter
            * size.n_stored
            * params.n_components
            * _SECONDS_PER_WORD,
            exchanges=n_rounds * _EXCHANGES,
            nbytes=n_rounds * n_values * params.dtype.itemsize,
        )

    def _make_priors(self, *, continues: bool) -> dict[str, Any]:
        """Priors to begin with, in the shapes of the fitted attributes."""
        priors: dict[str, Any] = {}
        one = 1 / self.n_components
        starts = {
            "doc_topic_prior": np.full(self.n_components, one),
            "topic_word_prior": one,
        }
        for name, start in starts.items():
            value = getattr(self, name)
            if is_auto(value):
                learned = getattr(self, f"{name}_", None) if continues else None
                value = start if learned is None else learned
            priors[name] = one if value is None else value
        given = priors["doc_topic_prior"]
        prior = check_doc_topic_prior(given, self.n_components)
        priors["doc_topic_prior"] = prior if np.ndim(given) else float(prior[0])
        prior = check_topic_word_prior(
            priors["topic_word_prior"],
            self.n_components,
            self.n_features_in_,
            np.dtype(self.dtype),
        )
        priors["topic_word_prior"] = prior if prior.ndim else float(prior)
        return priors

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        """Fitted attributes in scikit-learn's names."""
        attributes = {
            "components_": fitted["components"],
            "n_batch_iter_": fitted["n_updates"] + 1,
            "n_iter_": fitted["n_iter"],
        }
        if is_auto(self.doc_topic_prior):
            attributes["doc_topic_prior_"] = fitted["doc_topic_prior"]
        if is_auto(self.topic_word_prior):
            attributes["topic_word_prior_"] = fitted["topic_word_prior"]
        if fitted["bound"] is not None:
            attributes["bound_"] = fitted["bound"]
        return attributes


def _count_rounds(params: TopicParams, n_documents: int, n_ranks: int) -> int:
    """Most rounds of a fit: one a pass, or one for each batch."""
    method = params.learning_method
    if method == "batch" or (method == "auto" and is_few(n_documents)):
        return params.max_iter
    if is_gradient(params.paradigm):
        size = gradient_size(n_documents)
    else:
        size = round_size(n_documents, n_ranks, params.n_components)
    return params.max_iter * -(-n_documents // (params.batch_size or size))


def _chosen(size: Any) -> int | None:
    """A size that the user has chosen; None for "auto"."""
    return None if is_auto(size) else size
