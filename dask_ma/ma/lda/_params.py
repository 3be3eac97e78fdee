"""Parameters of a topic model's fit: those of a rank, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dask_ma._settings import Inactive, unless
from dask_ma.kernels import InferenceSettings
from dask_ma.ma._paradigm import Gradients, Models, by_gradients, is_gradient


@dataclass(frozen=True, kw_only=True)
class TopicParams:
    """Parameters of the fit of a topic model.

    The names are those of the estimator; the rest is listed here.

    Parameters
    ----------
    doc_topic_prior : ndarray of float64, shape (n_components,)
        Prior of the documents' topics to begin with.
    learn_prior : bool
        Whether it is learned.
    topic_word_prior : ndarray of shape (n_features or 1, n_components or 1)
        Prior of the topics' words to begin with.
    learn_topic_prior : bool
        Whether it is learned; it has one element then.
    learning_method : {"auto", "online", "batch"}
        "auto" is settled by the ranks.
    word_weights : {"auto", "mean", "variational"}
        "auto" is settled by the ranks, too.
    batch_size, local_batch_size : int or None
        None chooses them by the sizes of the corpus.
    total_samples : float or None
        Documents that there will be; None for as many as there are.
    inference : InferenceSettings
        How documents are worked out.
    components : ndarray of shape (n_components, n_features) or None
        Parameters of the topics to begin with; None draws them at random.
    n_updates : int
        Updates of the topics made before this fit.
    validation_fraction : float or None
        Part of each rank's documents that is held out.
    with_bound : bool
        Whether the model is evaluated at the end.
    """

    n_components: int
    doc_topic_prior: np.ndarray
    learn_prior: bool
    topic_word_prior: np.ndarray = field(repr=False)
    learn_topic_prior: bool
    learning_method: str
    word_weights: str
    learning_decay: float
    learning_offset: float
    max_iter: int
    batch_size: int | None
    local_batch_size: int | None
    evaluate_every: int
    total_samples: float | None
    perp_tol: float
    validation_fraction: float | None
    paradigm: Models | Gradients
    mixing: str
    inference: InferenceSettings
    dtype: np.dtype
    components: np.ndarray | None = field(default=None, repr=False)
    n_updates: int = 0
    with_bound: bool = True

    @property
    def bytes_per_document(self) -> int:
        """Bytes of the topics of a document that are there at a time."""
        return 4 * self.n_components * self.dtype.itemsize


class TopicResult(NamedTuple):
    """What rank 0 returns to the client.

    Attributes
    ----------
    fitted : dict
        `components` of shape (n_components, n_features); `doc_topic_prior`;
        `topic_word_prior`, a number if it is learned, else None; `n_updates`
        of the topics by each rank; `n_iter`, passes; `bound`, perplexity of the
        training documents or None.
    history : list of dict
        One record per round.
        `restarts` counts how often the ranks have had to start again until then.
    timeline : ndarray or None
        What all ranks have done when, on rank 0.
    """

    fitted: dict[str, Any]
    history: list[dict[str, Any]]
    timeline: np.ndarray | None = None


def check_combinations(estimator: Any) -> None:
    """Refuse parameters of which one makes no sense with another.

    Parameters
    ----------
    estimator : MALDA
        Each of its parameters is in its range.

    Raises
    ------
    ValueError
        It names the parameters and what they are.
    """
    if estimator.mixing != "butterfly":
        return
    if estimator.learning_method == "batch" or is_gradient(estimator.paradigm):
        raise ValueError(
            "mixing='butterfly' mixes topics that each rank updates for itself; it "
            "needs learning_method='online' or 'auto', and paradigm='model', got "
            f"learning_method={estimator.learning_method!r} and "
            f"paradigm={estimator.paradigm!r}"
        )


def _without_evaluation(estimator: Any) -> tuple[str, ...]:
    """The perplexity is known after the last pass alone."""
    return ("evaluate_every",) if estimator.evaluate_every <= 0 else ()


def _without_gradients(estimator: Any) -> tuple[str, ...]:
    """All documents make one update; who adds up what they show is open."""
    is_asked = is_gradient(estimator.paradigm)
    is_batch = estimator.learning_method == "batch"
    return ("learning_method",) if is_asked and is_batch else ()


#: Those of `partial_fit`, which is "online" whatever `learning_method` is.
INACTIVE_ONLINE = (
    Inactive(("local_batch_size",), by_gradients, "set batch_size"),
    Inactive(
        ("paradigm__batch_fraction",),
        lambda estimator: ("batch_size",),
        "which says how many documents a round looks at",
    ),
    Inactive(
        ("paradigm__evaluate_every",),
        lambda estimator: ("evaluate_every",),
        "which says after how many passes topics are evaluated",
    ),
    Inactive(("perp_tol",), _without_evaluation, "set evaluate_every above 0"),
)
INACTIVE = (
    Inactive(
        (
            "batch_size",
            "learning_decay",
            "learning_offset",
            "local_batch_size",
        ),
        unless("learning_method", "online", "auto"),
        "set learning_method='online' or 'auto'",
    ),
    Inactive(
        ("paradigm",),
        _without_gradients,
        "set learning_method='online' or 'auto'",
    ),
    *INACTIVE_ONLINE,
)
