"""Models in 8 or 16 bits: what is sent is how far they are from the joint model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dask_ma.comm import Group, allgather, alltoall
from dask_ma.mpca.strategies._joint import Cut

BLOCK = 4096  # values that have a scale in common
_LARGEST = 127


class Codec(ABC):
    """A way to write floating-point numbers in fewer bits."""

    @abstractmethod
    def encode(self, values: np.ndarray) -> tuple[np.ndarray, ...]:
        """Write numbers down.

        Parameters
        ----------
        values : ndarray of float32 or float64, shape (n_values,)

        Returns
        -------
        codes : tuple of ndarray
        """

    @abstractmethod
    def decode(self, codes: tuple[np.ndarray, ...], dtype: np.dtype) -> np.ndarray:
        """Read what :meth:`encode` has written.

        Parameters
        ----------
        codes : tuple of ndarray
        dtype : numpy.dtype
            Of the result. The same codes give the same bits everywhere.

        Returns
        -------
        values : ndarray of shape (n_values,)
        """


class BFloat16(Codec):
    """The upper halves of float32: 8 bits for the size, and 8 digits."""

    def encode(self, values: np.ndarray) -> tuple[np.ndarray, ...]:
        """Round to the nearest, of two to the even one."""
        bits = values.astype(np.float32).view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
        return (rounded.astype(np.uint16),)

    def decode(self, codes: tuple[np.ndarray, ...], dtype: np.dtype) -> np.ndarray:
        """Fill up with zeros."""
        bits = codes[0].astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).astype(dtype, copy=False)


class Int8(Codec):
    """Whole numbers from -127 to 127, times a scale for each block of values."""

    def encode(self, values: np.ndarray) -> tuple[np.ndarray, ...]:
        """Round to multiples of the largest size in a block by 127."""
        n_blocks = -(-len(values) // BLOCK)
        starts = np.arange(n_blocks) * BLOCK
        largest = np.maximum.reduceat(np.abs(values), starts) if n_blocks else starts
        scales = (largest / _LARGEST).astype(np.float32)
        # A block of zeros stays one, and so does what float32 takes for one.
        steps = np.where(scales > 0, scales, 1).astype(values.dtype)
        codes = np.rint(values / self._spread(steps, len(values)))
        return np.clip(codes, -_LARGEST, _LARGEST).astype(np.int8), scales

    def decode(self, codes: tuple[np.ndarray, ...], dtype: np.dtype) -> np.ndarray:
        """Multiply by the scales."""
        numbers, scales = codes
        spread = self._spread(scales.astype(dtype), len(numbers))
        return numbers.astype(dtype) * spread

    @staticmethod
    def _spread(scales: np.ndarray, n_values: int) -> np.ndarray:
        """The scale of each value."""
        return np.repeat(scales, BLOCK)[:n_values]


CODECS: dict[str, Codec] = {"bf16": BFloat16(), "int8": Int8()}


class Difference(NamedTuple):
    """Part of a model as it is sent.

    Attributes
    ----------
    codes : tuple of ndarray
        How far the parameters are from the reference.
    others : ndarray
        Values that are no parameters, as they are.
    """

    codes: tuple[np.ndarray, ...]
    others: np.ndarray


class DifferenceCoder:
    """Sends parts of a model as differences to what both ends know.

    What rounding takes from a difference is added to the next one of the same values,
    so that small changes come through in the mean over time.

    Parameters
    ----------
    name : str
        Of the codec, in `CODECS`.
    n_values : int
        Length of the model.
    n_parameters : int
        How many of its values, from the first on, are sent as differences. The others,
        such as running variances, are sent as they are.
    dtype : numpy.dtype
        Of the model.
    feedback : bool, default=True
        Whether the rest of a rounding is kept for the next difference. Where the model
        itself is kept in full precision it is in the next difference anyway.
    """

    def __init__(
        self,
        name: str,
        n_values: int,
        n_parameters: int,
        dtype: np.dtype,
        *,
        feedback: bool = True,
    ) -> None:
        self._codec = CODECS[name]
        self._n_parameters = n_parameters
        self._rest = np.zeros(n_parameters if feedback else 0, dtype)

    def encode(
        self, start: int, values: np.ndarray, reference: np.ndarray
    ) -> Difference:
        """Write down part of a model.

        Parameters
        ----------
        start : int
            Position of its first value.
        values, reference : ndarray of shape (n_part,)
            The part, and what the other end knows of it.

        Returns
        -------
        difference : Difference
            It shares no memory with the part.
        """
        middle = self._n_trained(start, len(values))
        wanted = values[:middle] - reference[:middle]
        if not len(self._rest):
            return Difference(self._codec.encode(wanted), values[middle:].copy())
        rest = self._rest[start : start + middle]
        wanted += rest
        codes = self._codec.encode(wanted)
        rest[...] = wanted - self._codec.decode(codes, wanted.dtype)
        return Difference(codes, values[middle:].copy())

    def decode(
        self, start: int, difference: Difference, reference: np.ndarray
    ) -> np.ndarray:
        """Read what :meth:`encode` has written, with the same reference.

        Returns
        -------
        values : ndarray of shape (n_part,)
            A new array; the same bits on every rank.
        """
        codes, others = difference
        middle = self._n_trained(start, len(reference))
        change = self._codec.decode(tuple(codes), reference.dtype)
        return np.concatenate([reference[:middle] + change, others])

    def _n_trained(self, start: int, length: int) -> int:
        """How many values of a part are parameters."""
        return min(max(self._n_parameters - start, 0), length)


class CompressedMean:
    """The mean of models of all ranks, in fewer bits.

    Parameters
    ----------
    group : Group
        The rank.
    name : str
        Of the codec.
    n_parameters : int
        Values that are sent as differences.
    joint : ndarray of shape (n_values,)
        The joint model at the start, the same on all ranks.
    """

    def __init__(
        self, group: Group, name: str, n_parameters: int, joint: np.ndarray
    ) -> None:
        self._group = group
        self._cut = Cut(len(joint), 1, group.size)
        size = (name, len(joint), n_parameters, joint.dtype)
        self._models, self._joints = DifferenceCoder(*size), DifferenceCoder(*size)

    def update(self, model: np.ndarray, weight: float, joint: np.ndarray) -> np.ndarray:
        """The weighted mean; a collective call.

        Parameters
        ----------
        model : ndarray of shape (n_values,)
            This rank's; it may hold anything if the weight is 0.
        weight : float
            Of this rank, not negative.
        joint : ndarray of shape (n_values,)
            The mean of the last call, the same on all ranks.

        Returns
        -------
        mean : ndarray of shape (n_values,)
            The same bits on all ranks; `joint` if no rank has a weight.
        """
        parts = [slice(*self._cut.part(0, rank)) for rank in range(self._group.size)]
        own = parts[self._group.rank]
        sent = [self._part_of(model, weight, part, joint[part]) for part in parts]
        mean = self._mean_of(alltoall(self._group, sent), own.start, joint[own])
        found = allgather(self._group, self._joints.encode(own.start, mean, joint[own]))
        return np.concatenate(
            [
                self._joints.decode(part.start, Difference(*each), joint[part])
                for part, each in zip(parts, found, strict=True)
            ]
        )

    def _part_of(
        self, model: np.ndarray, weight: float, part: slice, known: np.ndarray
    ) -> tuple[Difference | None, float]:
        """What another rank gets for its part; nothing of a model without weight."""
        if weight == 0:
            return None, 0.0
        return self._models.encode(part.start, model[part], known), weight

    def _mean_of(
        self,
        received: Sequence[tuple[Difference | None, float]],
        start: int,
        known: np.ndarray,
    ) -> np.ndarray:
        """Mean of a part of all models."""
        total = sum(weight for _, weight in received)
        if not total > 0:
            return known.copy()
        mean = np.zeros_like(known)
        for difference, weight in received:
            if difference is not None:
                model = self._models.decode(start, Difference(*difference), known)
                mean += (weight / total) * model
        return mean
