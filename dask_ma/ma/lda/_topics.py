"""The topics of a rank: parameters of Dirichlet distributions over words."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from dask_ma.kernels import (
    WordWeights,
    mean_word_weights,
    sum_of_expected_logs,
    sums_of_prior,
    topics_bound,
    topics_bound_of_totals,
    word_weights,
)

_SMALLEST_SCALE = 1e-6  # of the excess, before it is brought back to 1
_SMALLEST_PARAMETER = 1e-30


class Topics:
    """Parameters of the topics, ``lambda = prior + scale * excess``.

    An update moves all parameters towards the prior and those of a batch's words
    towards what the batch shows. Towards the prior they move together, by the scale, so
    that an update touches the words of the batch alone (the lazy update of section
    4.2); the sums over words are kept up with it.

    Parameters
    ----------
    excess : ndarray of shape (n_features, n_components)
        Parameters without the prior; :meth:`update` changes it in place.
    prior : ndarray of shape (n_features or 1, n_components or 1)
        Prior of the topics' words; in the literature, this is `eta`.
    """

    def __init__(self, excess: np.ndarray, prior: np.ndarray) -> None:
        self.reset(excess)
        self.set_prior(prior)
        # Neither updates nor averages take below 0 what has not been there before.
        self._has_negative = bool(excess.min(initial=0) < 0)

    def set_prior(self, prior: np.ndarray) -> None:
        """Take over another prior; the parameters move with it."""
        self._prior = prior.astype(self.excess.dtype, copy=False)
        self._prior_sums = sums_of_prior(prior, len(self.excess))

    def reset(self, excess: np.ndarray) -> None:
        """Take over other parameters."""
        self.excess = excess
        self._scale = 1.0
        self._sums = excess.sum(axis=0, dtype=np.float64)

    def detach(self) -> None:
        """Leave the array to whom keeps it, and go on with a copy."""
        self.excess = self.excess.copy()

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` goes on from with the same bits."""
        return {"excess": self.excess, "scale": self._scale, "sums": self._sums.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of topics that began as these have begun."""
        self.excess, self._scale = state["excess"], float(state["scale"])
        self._sums = np.array(state["sums"])

    @property
    def totals(self) -> np.ndarray:
        """Sums of the parameters over all words, float64 of shape (n_components,)."""
        return self._prior_sums + self._scale * self._sums

    def parameters(self, words: np.ndarray | slice) -> np.ndarray:
        """Parameters of some words, a new array of shape (n_words, n_components)."""
        found = self.excess[words] * self.excess.dtype.type(self._scale)
        found += self._prior_of(words)
        if self._has_negative:  # parameters below the prior can round to 0
            np.maximum(found, _SMALLEST_PARAMETER, out=found)
        return found

    def weights(self, words: np.ndarray, threshold: float | None) -> WordWeights:
        """Weights of some words, for the inference of documents."""
        return word_weights(self.parameters(words), self.totals, threshold)

    def mean_weights(self, words: np.ndarray) -> WordWeights:
        """The same, from the means of the topics."""
        return mean_word_weights(self.parameters(words), self.totals)

    def update(
        self,
        words: np.ndarray,
        statistics: np.ndarray,
        rate: float,
        factor: float,
    ) -> None:
        """Move towards what a batch shows of the whole corpus.

        Parameters
        ----------
        words : ndarray of int, shape (n_words,)
            Words of the batch.
        statistics : ndarray of shape (n_words, n_components)
            Expected number of times that each was drawn from each topic. Overwritten.
        rate : float
            How far to move, from 0 to 1; in the literature, this is `rho`.
        factor : float
            Documents of the corpus for each document of the batch.
        """
        if rate == 1:
            self.excess[:] = 0
            self._scale, self._sums = 1.0, np.zeros_like(self._sums)
        else:
            self._scale *= 1 - rate
        if self._scale < _SMALLEST_SCALE:
            self.settle()
        statistics *= statistics.dtype.type(rate * factor / self._scale)
        self.excess[words] += statistics
        self._sums += statistics.sum(axis=0, dtype=np.float64)

    def settle(self, factor: float = 1.0) -> np.ndarray:
        """Multiply the scale, and `factor`, into the excess; return it."""
        scale = self._scale * factor
        if scale != 1:
            self.excess *= self.excess.dtype.type(scale)
            self._sums *= scale
        self._scale = 1.0
        return self.excess

    # Means over ranks -----------------------------------------------------------------

    def begin_alike(self, rates: Sequence[float]) -> bool:
        """Prepare for updates of ranks that have the same topics now.

        Parameters
        ----------
        rates : sequence of float
            Those of the updates; a rank may leave some out.

        Returns
        -------
        alike : bool
            Whether the ranks have the same excess of all words that none of them has
            updated then, however different their scales, so that :meth:`merge` will do.
        """
        left = prod(1 - rate for rate in rates)
        if left < 2 * _SMALLEST_SCALE:  # an update would settle, or begin anew
            return False
        if self._scale * left < 2 * _SMALLEST_SCALE:
            self.settle()
        return True

    def share(self, words: np.ndarray, factor: float) -> tuple[np.ndarray, np.ndarray]:
        """This rank's part of a mean over ranks.

        Parameters
        ----------
        words : ndarray of int, shape (n_words,)
            All words that some rank has updated.
        factor : float
            The weight of this rank.

        Returns
        -------
        rows : ndarray of shape (n_words, n_components)
            To be summed over ranks.
        rest : ndarray of float64, shape (n_components + 1,)
            The same: sums over all words, and the scale.
        """
        scale = self._scale * factor
        rows = self.excess[words]
        rows *= rows.dtype.type(scale)
        return rows, np.append(self._sums, 1.0) * scale

    def merge(self, words: np.ndarray, rows: np.ndarray, rest: np.ndarray) -> None:
        """Take over a mean over ranks, the sums of what :meth:`share` has given."""
        self._scale = float(rest[-1])
        self._sums = rest[:-1] / self._scale
        self.excess[words] = rows * rows.dtype.type(1 / self._scale)

    def add_up(self) -> None:
        """Compute the sums over words from the parameters."""
        self.reset(self.settle())

    # Evaluation -----------------------------------------------------------------------

    def bound(self, start: int, stop: int) -> float:
        """Part of the words `start` to `stop` in the evidence lower bound.

        The parts of all words add up to ``E[log p(beta) - log q(beta)]``; that of word
        0 has what belongs to no word.
        """
        words = slice(start, stop)
        prior = self._prior_of(words)
        value = topics_bound(self.parameters(words), prior, self.totals)
        if start == 0:
            value += topics_bound_of_totals(self._prior_sums, self.totals)
        return value

    def expected_logs(self, start: int, stop: int) -> float:
        """Sum of ``E[log beta]`` over the words `start` to `stop` and all topics."""
        return sum_of_expected_logs(self.parameters(slice(start, stop)), self.totals)

    def _prior_of(self, words: np.ndarray | slice) -> np.ndarray:
        """Prior of some words, to be broadcast to them and the topics."""
        return self._prior if len(self._prior) == 1 else self._prior[words]
