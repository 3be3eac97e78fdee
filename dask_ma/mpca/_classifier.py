"""Neural network classifier by MPCA SGD."""

from __future__ import annotations

from typing import Any, ClassVar

from sklearn.utils.validation import check_is_fitted

from dask_ma._callbacks import with_callbacks
from dask_ma._scores import accuracy_of_places
from dask_ma._sklearn import StrOptions, fit_context
from dask_ma.base import DistributedClassifierMixin
from dask_ma.data import weight_per_row
from dask_ma.mpca._estimator import MPCAEstimator
from dask_ma.mpca._probabilities import ProbabilityMixin
from dask_ma.mpca.inputs._rows import flat_rows, n_targets_of, refuse_tuples
from dask_ma.mpca.inputs._sources import refuse_weights, targets_of


class MPCAClassifier(DistributedClassifierMixin, ProbabilityMixin):
    """Neural network classifier whose ranks train without waiting for each other.

    Each rank trains a network of its own on its own rows, by mini-batches, without a
    pause. Meanwhile the networks are brought together in the background: the model is
    cut into shards, which are added up over the ranks in turn, weighted by the steps
    that each rank has made, and sent back; a penalty in each step draws the ranks
    towards the joint model. The network is a multi-layer perceptron like
    scikit-learn's, with the log loss as its loss, or any module of PyTorch.

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
        scikit-learn, the penalty of a batch is divided by its rows.
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
        `max_iter` epochs.
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
        a callable ``scorer(estimator, X, y)``, is that score in place of the accuracy:
        the mean over ranks of the scores on their rows, weighted by these.
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
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes; "balanced" weights them by the inverse of their
        frequency. They multiply the sample weights.
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
        be trained by Adam with CrossEntropyLoss; or :class:`~dask_ma.mpca.Torch` with
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
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; numbers of the columns where y has several, or of the module's
        classes where y holds such a number in each place.
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
    sklearn.neural_network.MLPClassifier : The same network on one machine.

    Notes
    -----
    With "mpca", "easgd" and "parameter_server" and more than one rank, what a rank
    learns when depends on the clock, and so does the result. "gradients", "synchronous"
    and "local" give the same result for the same seed, blocks and ranks.

    Where the mean of a feature is more than five standard deviations from zero, or its
    standard deviation above 10, `fit` centres all features and divides those whose
    standard deviation is above 1 by it. `coefs_` and `intercepts_` are those for the
    rows as they are, and so is the penalty. A `module` gets the rows as they are, and
    so does `partial_fit`.

    Rows whose distance from their mean, the root of the mean square, is below 1 are
    divided by it on the way; `alpha` is for the weights of rows so divided.

    Of sparse rows with 4,096 columns or more, `fit` leaves out those that no training
    row has, if these are half or more, unless `warm_start` goes on with weights of
    them: their weights in `coefs_` are 0.

    References
    ----------
    M. Langer, A. Hall, Z. He, W. Rahayu. "MPCA SGD: a method for distributed training
    of deep learning models on Spark." IEEE Transactions on Parallel and Distributed
    Systems, 2018; section 4.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import MPCAClassifier
    >>> X = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> y = ["even", "odd", "odd", "even"]
    >>> classifier = MPCAClassifier(
    ...     (16,), learning_rate_init=0.1, max_iter=50, tol=None, random_state=0
    ... )
    >>> classifier.fit(X, y).predict(X).tolist()
    ['even', 'odd', 'odd', 'even']
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MPCAEstimator._parameter_constraints,
        "class_weight": [StrOptions({"balanced"}), dict, None],
    }

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
        class_weight: Any = None,
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
        self.class_weight = class_weight
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
    ) -> MPCAClassifier:
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
            Labels: int, bool or str. Several columns hold 1 for the labels that a row
            has, and 0 for the others; a list of tuples is refused. With `module` there
            may be more dimensions, and numbers of classes from 0 on, as of the pixels
            of a segmentation, where the module's output has a dimension more than y,
            the second, as CrossEntropyLoss and NLLLoss take it.
            None where the items of a Dataset or Bag have their labels with them, and
            for an IterableDataset.
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
        self : MPCAClassifier

        Raises
        ------
        ValueError
            For data or parameters that cannot be used; the message names the block.
        FitFailedError
            If a worker is lost for good, or a wait takes longer than configured.
        """
        refuse_tuples(y)
        refuse_weights(X, sample_weight)
        changes: dict[str, Any] = {}
        if any(given is not None for given in (X_val, y_val, sample_weight_val)):
            changes["validation"] = (X_val, y_val, sample_weight_val)
        return self._fit(X, y, sample_weight, **changes)

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, classes: Any = None
    ) -> MPCAClassifier:
        """Make one epoch on some rows, with the optimisers as they were.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.
        classes : array-like of shape (n_classes,), default=None
            All labels that there will be; needed in the first call. Where y has
            several columns, these are the labels, and `classes` has no part in it.

        Returns
        -------
        self : MPCAClassifier

        Raises
        ------
        ValueError
            As in :meth:`fit`, and for labels that are not among the classes.
        """
        refuse_tuples(y)
        refuse_weights(X, sample_weight)
        changes = {}
        if n_targets_of(y) is None:
            changes["classes"] = classes
        return self._fit(X, y, sample_weight, is_partial=True, **changes)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy on the rows given.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows, in the shape that they had in :meth:`fit`.
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, ...)
            True labels; None where the items of a Dataset or Bag have them with them.
        sample_weight : array-like or Dask collection, shape (n_samples,), or float, \
                default=None
            Weights of the rows; a number weights all alike.

        Returns
        -------
        accuracy : float
            Part of the rows of which all labels are right, or of the places of all rows
            where y holds the number of a class in each; those of the criterion's
            ``ignore_index`` do not count. For Dask input it is worked out where the
            rows are.
        """
        check_is_fitted(self)
        y = targets_of(X) if y is None else y
        shape = getattr(self, "target_shape_", None)
        if self.module is None or (self._n_codes is None and shape is None):
            return super().score(X, y, sample_weight)
        predicted, y = (flat_rows(each)[0] for each in (self.predict(X), y))
        no_code = None if self._n_codes is None else self._make_torch_spec().no_code
        return accuracy_of_places(
            predicted, y, weight_per_row(sample_weight), no_code=no_code
        )
