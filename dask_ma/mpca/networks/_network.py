"""The interface of a network, as strategies use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dask_ma.kernels import Optimizer
from dask_ma.linear import UsedColumns
from dask_ma.mpca.networks._anchors import ProximalTerm
from dask_ma.mpca.networks._few_inputs import FewInputs


class GradientPart(NamedTuple):
    """What the rows of one rank add to the gradient of a batch of all ranks.

    Attributes
    ----------
    loss : float
        As :meth:`Network.gradient` gives it.
    gradient : ndarray of shape (n_parameters,)
        The mean over these rows. It is the network's own, and changes with the next
        call.
    weight : float
        Of these rows among those of all ranks, at least 0.
    """

    loss: float
    gradient: np.ndarray
    weight: float


class Scaling(NamedTuple):
    """What rows become in a network: ``(x / unit - center) / scale``; and its outputs.

    Attributes
    ----------
    center : ndarray of shape (n_features,)
    scale : ndarray of shape (n_features,)
        Above 0.
    outputs : ndarray of shape ()
        What the values of the last layer are multiplied by, above 0.
    unit : ndarray of shape ()
        Above 0. The network's penalty is that of weights for rows in this unit.
    """

    center: np.ndarray
    scale: np.ndarray
    outputs: np.ndarray = np.ones(())
    unit: np.ndarray = np.ones(())


class FitOutlook(NamedTuple):
    """What a network may know of the fit that it is part of.

    Attributes
    ----------
    rank, n_ranks : int
        Whose network it is, and of how many.
    n_epochs : int
        Most epochs of all ranks together.
    n_steps : int
        Steps of a rank in an epoch, where all ranks are alike.
    class_weight : ndarray of shape (n_classes,) or None
        Weights of rows of each class, for networks whose rows bring targets of their
        own; None where all weigh 1.
    seed : int or None
        Where a network may draw random numbers from that belong to all of the process;
        None where other ranks are in it, too.
    """

    rank: int
    n_ranks: int
    n_epochs: int
    n_steps: int
    class_weight: np.ndarray | None = None
    seed: int | None = None


class Network(ABC):
    """A network as one rank trains it: a vector of values, and what to do with them.

    The vector holds all parameters end to end, and after them what else belongs to the
    model and changes in training, such as the running means of a batch normalisation.

    Attributes
    ----------
    n_values : int
        Length of the vector.
    n_parameters : int
        How many of its values, from the first on, are trained by gradients.
    dtype : numpy.dtype
        Of the vector.
    least_rows : int
        Fewer rows make no batch if they can go with another one.
    adds_gradients : bool
        Whether gradients of several ranks can be added up for a step.
    log_loss : str or None
        How the losses of several labels of a row make one, "sum" or "mean", where the
        loss of a classifier is the plain log loss; None where it is not.
    squared_error : float
        What the loss of a regression is times the mean squared error; 0 where it is
        another loss.
    """

    least_rows: ClassVar[int] = 1
    adds_gradients: bool = True
    log_loss: str | None = None
    squared_error: float = 0.0
    n_values: int
    n_parameters: int
    dtype: np.dtype

    @abstractmethod
    def read(self, start: int, stop: int) -> np.ndarray:
        """Copy of the values from `start` to `stop`."""

    @abstractmethod
    def write(self, start: int, values: np.ndarray) -> None:
        """Replace the values from `start` on."""

    @abstractmethod
    def set_anchor(self, start: int, values: np.ndarray) -> None:
        """Set the anchor of the values from `start` on: the joint model.

        The array must not change afterwards.
        """

    @abstractmethod
    def step(
        self,
        X: Any,
        y: np.ndarray,
        sample_weight: np.ndarray | None,
        *,
        learning_rate: float,
        proximal_terms: Sequence[ProximalTerm] = (),
        form: str = "shift",
    ) -> float:
        """Make a step of the optimiser on a batch.

        Parameters
        ----------
        X : ndarray or CSR of shape (n_rows, n_features)
            Rows of the batch, at least one.
        y : ndarray of shape (n_rows,) or (n_rows, n_targets)
            Class codes, or targets.
        sample_weight : ndarray of shape (n_rows,) or None
            Weights of the rows.
        learning_rate : float
            Step size.
        proximal_terms : sequence of ProximalTerm, default=()
            Penalties; values that have no anchor are left alone, as are
            values that are no parameters.
        form : {"shift", "loss"}, default="shift"
            Whether a term moves the parameters before the gradient is computed
            (equation 7) or adds its gradient to that of the loss (equation 6).

        Returns
        -------
        loss : float
            Weighted mean loss of the batch before the step, with what the network's own
            penalty adds, without that of proximal terms. It may be infinite or NaN.
        """

    @abstractmethod
    def gradient(
        self, X: Any, y: np.ndarray, sample_weight: np.ndarray | None
    ) -> tuple[float, np.ndarray]:
        """Loss of a batch as in :meth:`step`, and its gradient.

        Returns
        -------
        loss : float
        gradient : ndarray of shape (n_parameters,)
            The network's own; it changes with the next call.
        """

    @abstractmethod
    def gradient_part(
        self, X: Any, y: np.ndarray, sample_weight: np.ndarray | None, n_ranks: float
    ) -> GradientPart:
        """Gradient of this rank's rows in a batch of several ranks.

        Parameters
        ----------
        X, y, sample_weight
            As for :meth:`step`.
        n_ranks : float
            Number of ranks, between which the network's own penalty is shared out; such
            as count for less are counted as a part of one.

        Returns
        -------
        part : GradientPart
        """

    @abstractmethod
    def descend(self, gradient: np.ndarray, learning_rate: float) -> None:
        """Make a step of the optimiser with the gradient of a batch of all ranks.

        Parameters
        ----------
        gradient : ndarray of shape (n_parameters,)
            Weighted mean of the parts of all ranks; it may be changed.
        learning_rate : float
            Step size.
        """

    @property
    def few_inputs(self) -> FewInputs | None:
        """Steps for the inputs of a batch of sparse rows; None where there are none."""
        return None

    @abstractmethod
    def outputs(self, X: Any) -> np.ndarray:
        """Values of the output units for some rows.

        Parameters
        ----------
        X : ndarray or CSR of shape (n_rows, n_features)
            Rows, at least one.

        Returns
        -------
        outputs : ndarray of shape (n_rows,) or (n_rows, n_outputs)
            For a classifier, larger for the likelier class; a vector, above 0 for the
            second class, where two classes share a unit; above 0 for the labels that a
            row has, where y has several columns, or the number of the likeliest class
            where these hold such numbers. For a regressor, predictions.
        """

    def prepare(self, X: Any) -> Any:
        """Make rows ready for a step, maybe in another thread.

        Parameters
        ----------
        X : ndarray or CSR of shape (n_rows, n_features)

        Returns
        -------
        prepared : object
            What :meth:`step` and :meth:`gradient` take in their place.
        """
        return X

    def begin(self, outlook: FitOutlook, losses: Sequence[float]) -> None:
        """Prepare for a fit, after all values have been set.

        Parameters
        ----------
        outlook : FitOutlook
        losses : sequence of float
            Mean losses of the epochs that have been made before; of a fit that goes on.
        """

    def end_epoch(self, loss: float) -> None:
        """Take note that all ranks together have completed an epoch.

        Parameters
        ----------
        loss : float
            Its mean loss.
        """

    def end(self) -> None:
        """Leave the process as it was before :meth:`begin`."""

    def shift_outputs(self, shift: np.ndarray) -> None:
        """Raise the predictions of a regression, before the first step.

        A network that begins as its author has made it, such as a module of PyTorch,
        stays as it is.

        Parameters
        ----------
        shift : ndarray of float64, shape (n_outputs,)
            What is added to the value of each output unit.
        """

    def set_scaling(self, scaling: Scaling) -> None:
        """Centre and scale each row, and the outputs, without changing the rows.

        The vector belongs to scaled rows and targets from here on, and so do gradients
        and penalties; losses stay those of the targets as they are. Only where the
        spec's `has_scaling` is.

        Parameters
        ----------
        scaling : Scaling
        """
        raise NotImplementedError(f"{type(self).__name__} takes rows as they are")

    def unscaled(self, vector: np.ndarray, sign: int = 1) -> np.ndarray:
        """The vector of the same network without a scaling; back with -1."""
        return vector

    def set_columns(self, columns: UsedColumns) -> None:
        """Take rows of more columns than the network has inputs for.

        What other columns hold does not count. A scaling is one of the columns used.
        Only where the spec's `has_scaling` is, and where these are not all.

        Parameters
        ----------
        columns : UsedColumns
            As many as the network has inputs.
        """
        raise NotImplementedError(f"{type(self).__name__} takes rows as they are")

    def widened(self, vector: np.ndarray) -> np.ndarray:
        """The vector of the same network with inputs for all columns."""
        return vector

    @property
    def n_widened(self) -> int:
        """Values of a vector that is :meth:`widened`."""
        return self.n_values

    def taken(self, vector: np.ndarray) -> np.ndarray:
        """The way back from :meth:`widened`."""
        return vector

    @abstractmethod
    def slice_optimizer(self, n_values: int) -> Optimizer:
        """An optimiser of the same kind, without history, for a part of the vector."""

    @abstractmethod
    def optimizer_state(self) -> dict[str, Any]:
        """Copies of what the optimiser remembers: arrays, and plain numbers."""

    @abstractmethod
    def set_optimizer_state(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`optimizer_state` has given."""


class NetworkSpec(ABC):
    """How to build a network; small enough to travel with the parameters of a fit.

    Attributes
    ----------
    dtypes : tuple of dtypes
        Types that rows may have; any other becomes the first.
    small_targets : bool
        Whether targets may be integers of 8 and 16 bits; they are float64 otherwise.
    prefetch : int
        Batches that a thread makes ready in advance; 0 for no thread.
    n_targets : int or None
        Columns of y; None for a y of one dimension. With `n_classes` they tell which
        labels a row has, of as many as there are columns.
    n_codes : int or None
        Where y has several columns: they hold numbers of so many classes; None if they
        tell which labels a row has.
    no_code : int
        What they hold where no class counts, then.
    target_shape : tuple of int or None
        Shape that users give a row of y; None for that which it has.
    has_scaling : bool
        Whether the networks can centre and scale rows, and scale outputs.
    """

    dtypes: ClassVar[tuple[Any, ...]] = (np.float64, np.float32)
    small_targets: ClassVar[bool] = False
    prefetch: int = 0
    has_scaling: ClassVar[bool] = False
    n_targets: int | None
    n_codes: int | None = None
    no_code: int = -100
    target_shape: tuple[int, ...] | None = None

    @property
    def skips_inputs(self) -> bool:
        """Whether steps on sparse rows leave out inputs that these do not have."""
        return False

    @abstractmethod
    def build(
        self,
        n_features: int,
        n_classes: int | None,
        dtype: np.dtype,
        random_state: np.random.RandomState,
    ) -> Network:
        """A network with random values.

        Parameters
        ----------
        n_features : int
            Columns of X.
        n_classes : int or None
            Number of classes, at least 2; None for regression.
        dtype : numpy.dtype
            Type of the rows, float32 or float64.
        random_state : RandomState
            Where the values come from. The same state gives the same values.

        Returns
        -------
        network : Network
        """

    def placed(
        self, gather: Callable[[Any], list[Any]], rank: int, n_threads: int
    ) -> NetworkSpec:
        """The same for a rank, on the processors and the device that it has.

        Parameters
        ----------
        gather : callable
            Collective call: from something of this rank to that of all.
        rank : int
            This rank.
        n_threads : int
            Threads that it may use.

        Returns
        -------
        spec : NetworkSpec
        """
        return self

    @abstractmethod
    def forward(self, vector: np.ndarray, X: Any, n_classes: int | None) -> np.ndarray:
        """Predictions of a trained network, without its optimiser.

        Parameters
        ----------
        vector : ndarray of shape (n_values,)
            Values of the network.
        X : ndarray or CSR of shape (n_rows, n_features)
            Rows; there may be none.
        n_classes : int or None
            As in :meth:`build`.

        Returns
        -------
        predictions : ndarray of shape (n_rows, n_classes), (n_rows, n_targets) or \
                (n_rows,)
            Probabilities of the classes or of the labels, or predicted values. Where
            `n_codes` is not None, of shape (n_rows, n_codes * n_targets): all places of
            the first class, then those of the next.
        """

    def as_given(self, X: Any) -> Any:
        """Rows of a fit in the form in which users give them.

        Parameters
        ----------
        X : ndarray or CSR of shape (n_rows, n_features)

        Returns
        -------
        X : ndarray, CSR, dict of ndarray or Dataset
        """
        return X

    def taking(self, X: Any) -> tuple[NetworkSpec, Any]:
        """Rows for :meth:`forward`, of what users give, and whose that is.

        Parameters
        ----------
        X : object
            In the form of :meth:`as_given`.

        Returns
        -------
        spec : NetworkSpec
        X : ndarray or CSR of shape (n_rows, n_features)
        """
        return self, X

    @abstractmethod
    def attributes(
        self, vector: np.ndarray, n_features: int, n_classes: int | None
    ) -> dict[str, Any]:
        """What a fitted estimator shows of a trained network.

        Parameters
        ----------
        vector : ndarray of shape (n_values,)
            Values of the network.
        n_features : int
            Columns of X.
        n_classes : int or None
            As in :meth:`build`.

        Returns
        -------
        attributes : dict
            By name.
        """
