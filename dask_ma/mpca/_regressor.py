"""Neural network regressor by MPCA SGD."""

from __future__ import annotations

from typing import Any

from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from dask_ma._callbacks import with_callbacks
from dask_ma._scores import blockwise_r2
from dask_ma._sklearn import fit_context
from dask_ma.base import DistributedRegressorMixin
from dask_ma.data import is_dask_collection, weight_per_row
from dask_ma.mpca._estimator import MPCAEstimator, Predictor
from dask_ma.mpca.inputs._rows import flat_rows
from dask_ma.mpca.inputs._sources import refuse_weights, targets_of


class MPCARegressor(DistributedRegressorMixin, MPCAEstimator):
    """Neural network regressor whose ranks train without waiting for each other.

    Each rank trains a network of its own on its own rows, by mini-batches, without a
    pause. Meanwhile the networks are brought together in the background: the model is
    cut into shards, which are added up over the ranks in turn, weighted by the steps
    that each rank has made, and sent back; a penalty in each step draws the ranks
    towards the joint model. The network is a multi-layer perceptron like
    scikit-learn's, with the halved squared error as its loss, or any module of PyTorch.

    What a fit says of parameters that cannot act beside others is in the
    :ref:`User Guide <parameters>`.

    Parameters
    ----------
    hidden_layer_sizes : array-like of int, default=(100,)
        Units of each hidden layer of the built-in network, each at least 1.
    activation : {"identity", "logistic", "tanh", "relu"}, default="relu"
        What the hidden units compute.
    solver : {"adam", "sgd"}, default="adam"
        Optimiser of each rank: Adam, or steps along the gradient with momentum.
    alpha : float, default=0.0001
        Weight of the L2 penalty on the built-in network's weights, at least 0. As in
        scikit-learn, the penalty of a batch is divided by its rows. Where targets are
        scaled, it is for the weights of scaled outputs, see the notes.
    batch_size : int or "auto", default="auto"
        Rows of a batch on each rank, at least 1; a rank with fewer rows takes them all.
        "auto" is 200 divided by the number of ranks, and at least 16: so an epoch has
        as many steps on each rank as with one. Of "gradients" it is 160, as no shuffle
        is to make it worse than one rank, and all batches have nearly the same size.
        With other strategies and ``solver="sgd"`` it is up to twice as much where
        sparse rows of a batch have fewer elements than the network inputs, as of words.
    learning_rate : {"constant", "invscaling", "adaptive", "cosine"}, \
            default="constant"
        How the step size changes from epoch to epoch: not at all; divided by the rows
        seen to the power of `power_t`; divided by 5 where the fit would end otherwise;
        along half a cosine down to 0 at `max_iter`. The second and third need
        ``solver="sgd"``.
    learning_rate_init : float, default=0.001
        The first step size, above 0.
    power_t : float, default=0.5
        Exponent of "invscaling".
    max_iter : int, default=200
        Most epochs: as many rows as there are, gone over by all ranks together.
    shuffle : bool or "ranks", default=True
        Whether each rank goes over its rows in a new order each time, and rows are
        dealt out to the ranks, so that each gets some from everywhere: those in memory,
        and with ``strategy="auto"`` and a `max_iter` of 5 or more those of Dask
        collections where classes or targets differ between the ranks. Blocks of more
        than ``dask-ma.data.join-limit`` stay, and are gone over one by one. "ranks"
        deals out the rows of any Dask collection: with P ranks all but one part in P of
        them go to another worker once. False keeps their order.
    random_state : int, RandomState instance or None, default=None
        Seed of the first weights and of the shuffles.
    tol : float or None, default=1e-4
        The fit ends when more than `n_iter_no_change` epochs in a row have not lowered
        the loss, or raised the score if `early_stopping`, by this. None makes
        `max_iter` epochs. Where targets are scaled, it is for the loss of scaled ones.
    verbose : int, default=False
        1 shows a progress bar, in a terminal or notebook and with rich installed; a
        higher value, or 1 elsewhere, prints a line per epoch.
    warm_start : bool, default=False
        Whether `fit` starts from the network of the fit before.
    momentum : float, default=0.9
        Of ``solver="sgd"``, from 0 to 1.
    nesterovs_momentum : bool, default=True
        Whether ``solver="sgd"`` looks ahead along the momentum.
    early_stopping : bool, str or callable, default=False
        Whether to hold rows out on each rank, score the joint model on them, and end
        with the model of the best score. A name of a score that scikit-learn knows, or
        a callable ``scorer(estimator, X, y)``, is that score in place of R²: the mean
        over ranks of the scores on their rows, weighted by these.
        A callable gets rows and targets in the form that `X` and `y` have, and of a
        Dataset a Subset; with a name, each row and target has one dimension.
    validation_fraction : float, default=0.1
        Part of the rows held out, above 0 and below 1; if `fit` gets no `X_val`.
    beta_1, beta_2 : float, default=0.9 and 0.999
        Decay of the moments in ``solver="adam"``, from 0 to below 1.
    epsilon : float, default=1e-8
        Keeps ``solver="adam"`` from dividing by 0, above 0.
    n_iter_no_change : int, default=10
        Epochs without improvement before the fit ends.
    strategy : {"auto", "mpca", "gradients", "synchronous", "easgd", \
            "parameter_server", "local"} or object of \
            :mod:`dask_ma.mpca.strategies`, default="auto"
        How ranks share what they learn; a name is the object with its defaults. "auto"
        is "gradients" where an epoch has at most 16 steps, or where classes or targets
        differ between the ranks, and rows are not dealt out, see `shuffle`; and "mpca"
        otherwise. "mpca",
        :class:`~dask_ma.mpca.strategies.MPCA`: models are exchanged in the background
        while the ranks compute. "gradients",
        :class:`~dask_ma.mpca.strategies.Gradients`: all ranks make each step together,
        with the sum of their gradients. "synchronous",
        :class:`~dask_ma.mpca.strategies.Synchronous`: all ranks stop every so many
        steps and go on from their mean. "easgd",
        :class:`~dask_ma.mpca.strategies.ElasticAveraging`: each rank stops every so
        many steps and draws its model and the joint one towards each other.
        "parameter_server", :class:`~dask_ma.mpca.strategies.ParameterServer`: ranks
        send gradients, and get the model after a step made where it lies. "local",
        :class:`~dask_ma.mpca.strategies.Local`: each rank trains alone, and the model
        is the mean after each pass. With one rank all are alike.
    module : torch.nn.Module, class, callable or Torch, default=None
        Network of PyTorch in place of the built-in one: a module, or what makes one, to
        be trained by Adam with MSELoss; or :class:`~dask_ma.mpca.Torch` with
        one of these, arguments, a loss, an optimiser and a device. Needs the extra
        `torch`. The parameters of the built-in network and of `solver` must have their
        defaults then.
    n_ranks : int or None, default=None
        Number of ranks. None means one per worker thread of the current client, or
        fewer where more would take longer (:ref:`ranks_that_pay`), and one without a
        client. Without a client the ranks are threads of this process.

    Attributes
    ----------
    coefs_ : list of ndarray of shape (fan_in, fan_out)
        Weights of each layer after the first. Only without `module`.
    intercepts_ : list of ndarray of shape (fan_out,)
        Intercepts of each layer after the first. Only without `module`.
    vector_ : ndarray of float32 of shape (n_values,)
        All values of the module, end to end. Only with `module`; see
        :meth:`to_module`.
    n_targets_ : int or None
        Columns of y; None for a y of one dimension.
    n_iter_ : int
        Epochs made.
    loss_ : float
        Mean loss of the batches of the last epoch.
    best_loss_ : float
        Least loss of an epoch.
    loss_curve_ : list of float
        Loss of each epoch; of several that end with the same exchange, their mean.
    validation_scores_ : list of float or None
        Scores of the joint model on the rows held out, if there are any.
    best_validation_score_ : float or None
        The highest of them that is of the rows that there are; None if there is none.
    strategy_ : object of :mod:`dask_ma.mpca.strategies`
        How the ranks have shared what they learned: what `strategy` is, or stands for;
        ``Local()`` for one rank.
    n_layers_ : int
        Layers, the first one and the last one counted. Only without `module`.
    n_outputs_ : int
        Output units. Only without `module`.
    out_activation_ : str
        What the output units compute. Only without `module`.
    history_ : list of dict
        Records, in each epoch up to 50, each for the exchanges since the last: `round`,
        their number; `time`, in seconds since rank 0 started; `epoch`, rows gone over
        by all ranks as a multiple of the rows there are; `loss`, the mean over the
        batches; `n_exchanges`; `tau`, steps of a rank between two exchanges of the same
        values, a mean; `validation_score`, if there is one yet; over all ranks the sums
        `n_samples`, `n_steps`, `bytes_sent` and `messages_sent` between processes, and
        `bytes_shared` within processes; and the means over ranks `seconds_computing`,
        `seconds_exchanging`, between steps, and `seconds_waiting`, in exchanges or for
        the others.
        `restarts` counts how often the ranks have had to start again until then.
    timeline_ : ndarray of shape (n_spans,)
        What each rank has done when: a structured array, sorted by start, with the
        fields `rank`; `kind`, one of "compute", "evaluate", "aggregate", "send",
        "wait", and "exchange" for what goes on in the background; `start` and `stop`,
        in seconds on the clock of `history_`; `peer`, the rank at the other end or -1;
        and `nbytes`. See :class:`~dask_ma.plotting.GanttDisplay`.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X had names that are all strings.

    See Also
    --------
    sklearn.neural_network.MLPRegressor : The same network on one machine.

    Notes
    -----
    With "mpca", "easgd" and "parameter_server" and more than one rank, what a rank
    learns when depends on the clock, and so does the result. "gradients", "synchronous"
    and "local" give the same result for the same seed, blocks and ranks.

    `fit` centres features whose mean is more than five standard deviations from zero.
    Where the standard deviation of y is above 3 or below a third, it trains a network
    whose outputs are multiplied by it. Then, and where a feature has a standard
    deviation above 10, it takes features as those of :class:`MPCAClassifier`: so the
    unit of y does not matter. `loss_curve_` has the losses of y as it is. Several
    columns have one standard deviation, the root of their mean variance; where theirs
    are ten times apart, y is taken as it is, and so are large features.
    `coefs_` and `intercepts_` are those for the rows as they are. A `module` gets the
    rows as they are, and so does `partial_fit`. Columns that no row has are left out,
    and rows of a small unit are divided by it, as by :class:`MPCAClassifier`.

    A warning tells of targets of which a few make up the variance, as lognormal ones.

    References
    ----------
    M. Langer, A. Hall, Z. He, W. Rahayu. "MPCA SGD: a method for distributed training
    of deep learning models on Spark." IEEE Transactions on Parallel and Distributed
    Systems, 2018; section 4.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import MPCARegressor
    >>> X = np.linspace(-1, 1, 200).reshape(-1, 1)
    >>> y = abs(X[:, 0])
    >>> regressor = MPCARegressor(
    ...     (16,), learning_rate_init=0.02, max_iter=100, tol=None, random_state=0
    ... )
    >>> regressor.fit(X, y).predict([[-0.5], [0.5]]).round(1).tolist()
    [0.5, 0.5]
    """

    def __init__(
        self,
        hidden_layer_sizes: Any = (100,),
        activation: str = "relu",
        *,
        solver: str = "adam",
        alpha: float = 0.0001,
        batch_size: int | str = "auto",
        learning_rate: str = "constant",
        learning_rate_init: float = 0.001,
        power_t: float = 0.5,
        max_iter: int = 200,
        shuffle: bool | str = True,
        random_state: Any = None,
        tol: float | None = 1e-4,
        verbose: int = False,
        warm_start: bool = False,
        momentum: float = 0.9,
        nesterovs_momentum: bool = True,
        early_stopping: Any = False,
        validation_fraction: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        n_iter_no_change: int = 10,
        strategy: Any = "auto",
        module: Any = None,
        n_ranks: int | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.solver = solver
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.learning_rate_init = learning_rate_init
        self.power_t = power_t
        self.max_iter = max_iter
        self.shuffle = shuffle
        self.random_state = random_state
        self.tol = tol
        self.verbose = verbose
        self.warm_start = warm_start
        self.momentum = momentum
        self.nesterovs_momentum = nesterovs_momentum
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.n_iter_no_change = n_iter_no_change
        self.strategy = strategy
        self.module = module
        self.n_ranks = n_ranks

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        sample_weight_val: Any = None,
    ) -> MPCARegressor:
        """Fit the network.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Training rows. The blocks of a dask.array may be NumPy arrays, SciPy sparse
            matrices or arrays, or COO and GCXS arrays of `sparse`. Blocks already in
            worker memory stay there. With `module`, rows may have any shape, as images
            have, must be dense, and keep integer types; X may also be a dict of arrays,
            for the arguments of ``forward``, a Dataset or IterableDataset of PyTorch,
            or a Bag of Dask, of pairs of an input and its target.
        y : array-like or Dask collection of shape (n_samples,) or \
                (n_samples, n_targets)
            Targets. With `module` rows may have any shape, as images have. None where
            the items of a Dataset or Bag have their targets with them, and for an
            IterableDataset.
        sample_weight : array-like or Dask collection, shape (n_samples,), or float, \
                default=None
            Weights of the rows, not negative; a number weights all alike. A weight
            multiplies the loss of the row; 0 counts like no row.
            An IterableDataset takes no weights of rows.

        X_val, y_val : array-like, Dask collection, Dataset or Bag, default=None
            Rows to score models on in place of rows held out, with `early_stopping`, in
            any form that X and y may have; y_val is None where items have their targets
            with them. Dask collections and items of an IterableDataset are brought to
            the client. All go to every rank along with the parameters, and of P ranks
            each scores every P-th.
        sample_weight_val : array-like or Dask collection of shape (n_val,), \
                default=None
            Weights of these rows.

        Returns
        -------
        self : MPCARegressor

        Raises
        ------
        ValueError
            For data or parameters that cannot be used; the message names the block.
        FitFailedError
            If a worker is lost for good, or a wait takes longer than configured.
        """
        refuse_weights(X, sample_weight)
        changes: dict[str, Any] = {}
        if any(given is not None for given in (X_val, y_val, sample_weight_val)):
            changes["validation"] = (X_val, y_val, sample_weight_val)
        return self._fit(X, y, sample_weight, **changes)

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None
    ) -> MPCARegressor:
        """Make one epoch on some rows, with the optimisers as they were.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.

        Returns
        -------
        self : MPCARegressor

        Raises
        ------
        ValueError
            As in :meth:`fit`.
        """
        refuse_weights(X, sample_weight)
        return self._fit(X, y, sample_weight, is_partial=True)

    def predict(self, X: Any) -> Any:
        """Values of the output units.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows, in the shape that they had in :meth:`fit`.

        Returns
        -------
        predicted : ndarray, dask.array or dask Series, of shape (n_samples,) or \
                (n_samples, n_targets)
            Lazy for Dask input; a Series for a dask.dataframe, if it is a vector.
        """
        check_is_fitted(self)
        return self._forward_rows(
            X,
            Predictor.forward,
            n_outputs=self.n_targets_,
            dtype=self._float_dtype(),
        )

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Coefficient of determination on the rows given.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows, in the shape that they had in :meth:`fit`.
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, ...)
            True values; of several, the mean over them. None where the items of a
            Dataset or Bag have them with them.
        sample_weight : array-like or Dask collection, shape (n_samples,), or float, \
                default=None
            Weights of the rows; a number weights all alike.

        Returns
        -------
        r2 : float
            For Dask input it is worked out where the rows are.
        """
        check_is_fitted(self)
        y = targets_of(X) if y is None else y
        if getattr(self, "target_shape_", None) is None:
            return super().score(X, y, sample_weight)
        values = [flat_rows(each)[0] for each in (y, self.predict(X))]
        if any(is_dask_collection(each) for each in values):
            true, predicted = values
            return blockwise_r2(predicted, true, weight_per_row(sample_weight))
        return float(r2_score(*values, sample_weight=weight_per_row(sample_weight)))
