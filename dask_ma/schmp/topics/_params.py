"""Parameters of a topic model by Gibbs sampling, as sent to every rank."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dask_ma.data import RoomSettings

# Tokens and documents of the first stage, for each topic: with fewer, topics are those
# of single documents. Proposals move less at a time, so they settle later.
_FEWEST = {"exact": (900, 5), "metropolis": (300, 1)}
_MOST_STAGES = 4


@dataclass(frozen=True, kw_only=True)
class GibbsParams:
    """Parameters of a fit, mostly under the names of the estimator.

    Parameters
    ----------
    n_features : int
        Size of the vocabulary.
    sampler : {"exact", "metropolis"}
        How topics are drawn.
    doc_topic_prior : ndarray of float64 of shape (n_components,)
        Prior to begin with.
    learn_doc_prior, learn_word_prior : bool
        Whether the priors are learned.
    topic_word_prior : ndarray of shape (), (n_features,) or (n_features, n_components)
        Prior to begin with.
    room : RoomSettings
        Whether tokens are in memory or on disks.
    init : {"progressive", "random"}
        Whether documents come in by stages, if there are enough of them.
    start : ndarray of shape (n_features, n_components) or None
        Weights by which the first topics of tokens are drawn; None stands for the
        prior of the words.
    """

    n_components: int
    n_features: int
    sampler: str
    n_proposals: int
    max_iter: int
    burn_in: int
    n_samples: int
    thin: int
    learn_every: int
    evaluate_every: int
    doc_topic_prior: np.ndarray
    learn_doc_prior: bool
    topic_word_prior: np.ndarray = field(repr=False)
    learn_word_prior: bool
    init: str
    start: np.ndarray | None = field(default=None, repr=False)
    fractions: str
    synchronize: str
    keep_tokens: bool
    room: RoomSettings

    @property
    def n_rotations(self) -> int:
        """Rotations of a fit: in the first one, tokens get their first topics."""
        return self.max_iter + 1

    def n_stages(self, n_documents: int, n_tokens: int) -> int:
        """Rotations after which some documents have yet to come in.

        Parameters
        ----------
        n_documents, n_tokens : int
            Of all ranks.

        Returns
        -------
        n_stages : int
        """
        if self.init == "random" or self.start is not None:
            return 0
        of_tokens, of_documents = _FEWEST[self.sampler]
        n_parts = min(n_tokens // of_tokens, n_documents // of_documents)
        n_parts //= self.n_components
        first_sample = self.max_iter - (self.n_samples - 1) * self.thin
        return min(max(0, n_parts.bit_length() - 1), _MOST_STAGES, first_sample)

    def is_evaluated(self, rotation: int) -> bool:
        """Whether the likelihood is worked out after a rotation."""
        every = self.evaluate_every
        is_due = every > 0 and rotation > 0 and rotation % every == 0
        return is_due or rotation == self.max_iter

    def learns(self, rotation: int) -> bool:
        """Whether priors are learned after a rotation."""
        since = rotation - self.burn_in
        return since > 0 and since % self.learn_every == 0

    def samples(self, rotation: int) -> bool:
        """Whether a rotation ends with one of several samples."""
        left = self.max_iter - rotation
        is_due = left % self.thin == 0 and left // self.thin < self.n_samples
        return self.n_samples > 1 and is_due

    def word_prior(self, words: np.ndarray, scalar: float) -> np.ndarray:
        """Prior of some words.

        Parameters
        ----------
        words : ndarray of int
        scalar : float
            The prior as it is now, where all words have the same.

        Returns
        -------
        prior : ndarray of float32 of shape (n,) or (n, n_components)
        """
        prior = self.topic_word_prior
        if not prior.ndim:
            return np.full(len(words), scalar, dtype=np.float32)
        return prior[words].astype(np.float32)

    @staticmethod
    def as_table(prior: np.ndarray) -> np.ndarray:
        """A prior of words as an array of two dimensions, to be broadcast."""
        return prior if prior.ndim == 2 else prior[:, np.newaxis]

    def prior_sums(self, scalar: float) -> np.ndarray:
        """Sums of the words' prior, float64 of shape (n_components,)."""
        prior = self.topic_word_prior
        if prior.ndim == 2:
            return np.asarray(prior.sum(axis=0, dtype=np.float64))
        total = scalar * self.n_features if not prior.ndim else prior.sum()
        return np.full(self.n_components, total, dtype=np.float64)
