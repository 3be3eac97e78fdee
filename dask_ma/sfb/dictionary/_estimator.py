"""SFBDictionaryLearning: atoms whose sparse combinations rows are."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.decomposition import MiniBatchDictionaryLearning
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_array, validate_data

from dask_ma import _config
from dask_ma._callbacks import with_callbacks
from dask_ma._sklearn import Interval, StrOptions, fit_context
from dask_ma.data import CAST_LATER, InputInfo, InputSize
from dask_ma.engine import quickest_of
from dask_ma.sfb.dictionary._agent import train
from dask_ma.sfb.dictionary._codes import ALGORITHMS, SYNONYMS
from dask_ma.sfb.dictionary._cost import seconds_shared
from dask_ma.sfb.dictionary._fitted import FittedDictionary
from dask_ma.sfb.dictionary._params import (
    INACTIVE,
    MOST_OF_BATCH,
    DictionaryParams,
    DictionaryResult,
    check_atoms,
)
from dask_ma.sfb.dictionary._progress import last_fall
from dask_ma.sfb.dictionary._pursuit import OTHER_CODES
from dask_ma.sfb.dictionary._solvers import SOLVERS

_STILL_FALLING = 0.01  # part of the objective, in the last pass
_ABOVE_0 = Interval(Real, 0, None, closed="neither")
_FROM_0 = Interval(Real, 0, None, closed="left")
_COUNT = Interval(Integral, 0, None, closed="left")
_FROM_1 = Interval(Integral, 1, None, closed="left")


class SFBDictionaryLearning(FittedDictionary):
    """Dictionary learning: rows as sums of few atoms, which are learned from them.

    Minimises the mean over rows `x` of ``0.5 |x - c D|^2 + alpha |c|_1`` over the codes
    `c` and the atoms, the rows of `D`, whose lengths are at most 1. Every rank finds
    the codes of its part of a batch; from what the ranks send each other, each updates
    the same atoms. Rows and codes stay on the workers, unless `communication` is
    "factors".

    Read more in the :ref:`User Guide <dictionary_learning>`.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of atoms, at least 1. None takes as many as there are features.
    alpha : float, default=1.0
        Penalty of the codes, above 0. Where it is the length of the longest row or
        more, all codes are 0.
    max_iter : int, default=20
        Most passes over the rows, at least 1.
    batch_size : int or "auto", default="auto"
        Rows of a batch, on all ranks together, or of each rank where `merge_every` is
        above 1; at least 1. "auto" is 256, or a twentieth of the rows where that is
        less, but at least 32; in `partial_fit` it is 256.
    solver : {"online", "sgd"}, default="online"
        "online" gives each atom its best value for the codes of all batches, the latest
        of which weigh most. "sgd" makes a step along the gradient of the newest batch,
        divided for each atom by how much it is used; steps become shorter until
        `max_iter`.
    eta0 : float, default=0.2
        Length of the first steps of "sgd", above 0.
    fit_algorithm : {"greedy_cd", "fista", "cd", "lars"}, default="greedy_cd"
        How codes are found while atoms are learned. "greedy_cd": coordinate descent on
        the coefficient of each row that changes most; best where codes have few
        elements. "fista": accelerated gradient steps, by products of matrices; best
        where they have many. "cd": coordinate descent on one coefficient after the
        other. "lars": scikit-learn's least angle regression, one row after the other;
        exact, and slow. All but "lars" go over many rows at once, and stop where
        changes are small and the duality gap is below 40 % of a row's objective, the
        error far less. Rows that "fista" and "cd" do not bring there in a
        round go on as by "greedy_cd".
    positive_code : bool, default=False
        Whether codes must not be negative.
    positive_dict : bool, default=False
        Whether elements of atoms must not be negative.
    resample_unused : bool, default=True
        Whether an atom that no row uses is replaced by a row of the batch, the one
        whose objective is largest.
    dict_init : array-like of shape (n_components, n_features), default=None
        Atoms to start from; longer ones are divided by their lengths. None takes rows
        at random, or singular vectors of some rows where their objective is less than
        half as large, whatever the weights of rows. These are looked at with up to 256
        features, no more atoms than features, two rows or more for each feature,
        atoms of any sign, and `communication` other than "outputs".
    transform_algorithm : {"greedy_cd", "fista", "cd", "lasso_cd", "lars", \
            "lasso_lars", "omp", "threshold"} or None, default=None
        How :meth:`transform` finds codes; None is as in the fit. All but the last two
        give the same, but for the duality gap that is left; "lasso_cd" and "lasso_lars"
        are scikit-learn's names of "cd" and "lars". "omp": least squares on a few
        atoms, chosen one by one. "threshold": products of rows and atoms, less
        `transform_alpha`.
    transform_alpha : float or None, default=None
        Penalty of :meth:`transform`, above 0; None is `alpha`.
    transform_n_nonzero_coefs : int or None, default=None
        Most atoms of a row by "omp", at least 1; None is a tenth of the features.
    transform_max_iter : int, default=1000
        Most iterations of :meth:`transform`, at least 1; in one of them, as many
        coefficients of a row may change as there are atoms.
    split_sign : bool, default=False
        Whether :meth:`transform` gives positive and negative codes in columns of their
        own, the latter by their sizes.
    communication : {"statistics", "factors", "outputs"}, default="statistics"
        What ranks send each other in a batch. "statistics": sums of products, which
        takes ``n_components * (n_components + n_features)`` numbers whatever the batch.
        "factors": the rows of the batch with their codes, from which every rank finds
        the sums; less where there are many more atoms and features than rows in a
        batch. "outputs", for "sgd": each rank has some of the columns of all atoms, and
        gets those of the rows of a batch; what is added up are products of rows and
        atoms and of atoms with each other. Atoms and their steps are divided by the
        ranks, of which there are at most as many as features. All give the same, but
        for rounding.
    merge_every : int or "auto", default="auto"
        How many batches of its own rows, of `batch_size` rows each, a rank goes over
        until the ranks agree on means of their statistics and atoms. With 1 ranks share
        each batch, and their number changes the order of the rows and little else.
        "auto": 1 with one rank, with "factors" and where a pass has few batches; else
        up to 16, with 4 exchanges in a pass at least, so that exchanges take little
        time.
    staleness : int, default=0
        How many batches the updates of atoms are behind, with "factors" and several
        ranks: as many are under way while codes of the next ones are found. The same on
        all ranks, which catch up at the end of a pass.
    shuffle : bool, default=True
        Whether each pass goes over the rows in another order.
    tol : float, default=1e-3
        The fit ends when atoms move by less in 10 batches in a row, in the Frobenius
        norm divided by `n_components`; 0 does not look at it.
    max_no_improvement : int or None, default=10
        The fit ends when so many batches in a row have not lowered the mean objective
        of batches, in which later ones weigh more; None does not count them. The first
        pass counts for neither, or the first hundred batches of a long one.
    random_state : int, RandomState instance or None, default=None
        Seed of the first atoms and of the order of the rows.
    verbose : int, default=0
        1 shows a progress bar, in a terminal or notebook and with rich installed; a
        higher value, or 1 elsewhere, prints a line per round.
    n_ranks : int or None, default=None
        Number of ranks. None means one per worker thread of the current client, or
        fewer where more would take longer (:ref:`ranks_that_pay`), and one without a
        client. Without a client the ranks are threads of this process.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        The atoms, in the type of the rows.
    inner_stats_ : tuple of ndarray
        What `partial_fit` goes on from, of shapes (n_components, n_components) and
        (n_components, n_features): with "online", weighted means of ``c^T c`` and
        ``c^T x`` over the rows seen.
    n_samples_seen_ : int
        Rows gone over, in all passes.
    n_iter_ : int
        Passes over the rows.
    n_steps_ : int
        Batches that each rank has gone over.
    n_unused_ : int
        Atoms that no row has used lately.
    history_ : list of dict
        One record per batch, or per exchange with `merge_every`: `round`; `n_iter`,
        passes completed; `time`, in seconds since rank 0 started; `objective`, its
        weighted mean over the rows gone over, before the updates, NaN where all are
        under way; `n_replaced`, unused atoms; over all ranks the sums `n_samples` (rows
        gone over), `bytes_sent` and `messages_sent` between processes, and
        `bytes_shared` within processes; and the means over ranks `seconds_computing`
        and `seconds_waiting`. `restarts` counts how often the ranks have had to start
        again until then.
    timeline_ : ndarray of shape (n_spans,)
        What each rank has done when; see
        :class:`~dask_ma.plotting.GanttDisplay`.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X had names that are all strings.

    See Also
    --------
    sklearn.decomposition.MiniBatchDictionaryLearning : The same model on one machine.

    Notes
    -----
    The atoms depend on `random_state`, on the blocks of `X` and on the number of ranks,
    and on nothing else.

    References
    ----------
    P. Xie, J. K. Kim, Y. Zhou, Q. Ho, A. Kumar, Y. Yu, E. Xing. "Lighter-communication
    distributed machine learning via sufficient factor broadcasting." UAI 2016.

    J. Mairal, F. Bach, J. Ponce, G. Sapiro. "Online learning for matrix factorization
    and sparse coding." Journal of Machine Learning Research 11, 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import SFBDictionaryLearning
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 4)) * (rng.random((200, 4)) < 0.3) @ np.eye(4, 8)
    >>> model = SFBDictionaryLearning(4, alpha=0.1, random_state=0).fit(X)
    >>> codes = model.transform(X)
    >>> codes.shape, model.inverse_transform(codes).shape
    ((200, 4), (200, 8))
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [_FROM_1, None],
        "alpha": [_ABOVE_0],
        "max_iter": [_FROM_1],
        "batch_size": [StrOptions({"auto"}), _FROM_1],
        "solver": [StrOptions(set(SOLVERS))],
        "eta0": [_ABOVE_0],
        "fit_algorithm": [StrOptions(set(ALGORITHMS))],
        "positive_code": ["boolean"],
        "positive_dict": ["boolean"],
        "resample_unused": ["boolean"],
        "dict_init": ["array-like", None],
        "transform_algorithm": [
            StrOptions({*ALGORITHMS, *SYNONYMS, *OTHER_CODES}),
            None,
        ],
        "transform_alpha": [_ABOVE_0, None],
        "transform_n_nonzero_coefs": [_FROM_1, None],
        "transform_max_iter": [_FROM_1],
        "split_sign": ["boolean"],
        "communication": [StrOptions({"statistics", "factors", "outputs"})],
        "merge_every": [_FROM_1, StrOptions({"auto"})],
        "staleness": [_COUNT],
        "shuffle": ["boolean"],
        "tol": [_FROM_0],
        "max_no_improvement": [_FROM_1, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "n_ranks": [_FROM_1, None],
    }
    # What ends a fit, and what it has no use for, may change between two of them.
    _free_to_change = FittedDictionary._free_to_change | {
        "max_no_improvement",
        "split_sign",
        "transform_algorithm",
        "transform_alpha",
        "transform_max_iter",
        "transform_n_nonzero_coefs",
    }
    _inactive = INACTIVE

    def __init__(
        self,
        n_components: int | None = None,
        *,
        alpha: float = 1.0,
        max_iter: int = 20,
        batch_size: int | str = "auto",
        solver: str = "online",
        eta0: float = 0.2,
        fit_algorithm: str = "greedy_cd",
        positive_code: bool = False,
        positive_dict: bool = False,
        resample_unused: bool = True,
        dict_init: Any = None,
        transform_algorithm: str | None = None,
        transform_alpha: float | None = None,
        transform_n_nonzero_coefs: int | None = None,
        transform_max_iter: int = 1000,
        split_sign: bool = False,
        communication: str = "statistics",
        merge_every: int | str = "auto",
        staleness: int = 0,
        shuffle: bool = True,
        tol: float = 1e-3,
        max_no_improvement: int | None = 10,
        random_state: Any = None,
        verbose: int = 0,
        n_ranks: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.solver = solver
        self.eta0 = eta0
        self.fit_algorithm = fit_algorithm
        self.positive_code = positive_code
        self.positive_dict = positive_dict
        self.resample_unused = resample_unused
        self.dict_init = dict_init
        self.transform_algorithm = transform_algorithm
        self.transform_alpha = transform_alpha
        self.transform_n_nonzero_coefs = transform_n_nonzero_coefs
        self.transform_max_iter = transform_max_iter
        self.split_sign = split_sign
        self.communication = communication
        self.merge_every = merge_every
        self.staleness = staleness
        self.shuffle = shuffle
        self.tol = tol
        self.max_no_improvement = max_no_improvement
        self.random_state = random_state
        self.verbose = verbose
        self.n_ranks = n_ranks

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn atoms from rows.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Rows. Sparse ones are never made dense.
        y : object
            Not used, there for scikit-learn's conventions.
        sample_weight : array-like or Dask column of shape (n_samples,), default=None
            What the objectives of rows are multiplied by, not negative; the mean is 1
            after all. Rows of weight 0 are no rows.

        Returns
        -------
        self : SFBDictionaryLearning

        Raises
        ------
        ValueError
            For rows that are not finite, or too large to be squared, for no rows, and
            for parameters that do not fit the data or each other.
        FitFailedError
            If a worker is lost or a wait takes longer than configured.

        Warns
        -----
        UserWarning
            If `alpha` is so large that all codes are 0.
        ConvergenceWarning
            If the mean objective still fell by more than 1 % in the last of `max_iter`
            passes, unless neither `tol` nor `max_no_improvement` may end the fit.
        """
        return self._fit(X, None, sample_weight)

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Go over rows once, starting from the atoms so far.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Rows, as many as there are at the time: each counts alike.
        y : object
            Not used, there for scikit-learn's conventions.
        sample_weight : array-like or Dask column of shape (n_samples,), default=None
            What the objectives of rows are multiplied by, not negative; the mean is 1
            after all. Rows of weight 0 are no rows.

        Returns
        -------
        self : SFBDictionaryLearning

        Raises
        ------
        ValueError
            As in :meth:`fit`, and for another number of columns, or of atoms, than
            before.
        """
        return self._fit(X, None, sample_weight, is_partial=True)

    @property
    def _agent(self) -> Any:
        return train

    @property
    def _may_end_early(self) -> bool:
        return self.tol > 0 or self.max_no_improvement is not None

    def _check_combinations(self) -> None:
        if self.transform_algorithm == "omp" and self.positive_code:
            raise ValueError(
                "transform_algorithm='omp' finds codes of both signs, but "
                "positive_code is True; set it to False, or "
                "transform_algorithm='threshold'"
            )
        if self.communication == "outputs" and self.solver != "sgd":
            raise ValueError(
                f"communication='outputs' needs solver='sgd', got {self.solver!r}: "
                "there each atom waits for the length of the one before, which no rank "
                "knows alone; set solver='sgd', or communication='statistics' or "
                "'factors'"
            )

    def _peer_type(self) -> type:
        return MiniBatchDictionaryLearning

    def _validate_memory(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, Any]:
        X = validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype=[*self._row_dtypes, *CAST_LATER],
            order=None if reset else "C",  # ranks copy their part
            ensure_all_finite=not reset,  # ranks refuse what is not finite
            reset=reset,
        )
        return X, None

    def _make_params(self, info: InputInfo, **changes: Any) -> DictionaryParams:
        start = changes.pop("atoms", None)
        if start is None and self.dict_init is not None:
            start = self._first_atoms()
        n_components = self.n_components
        if n_components is None:
            n_components = self.n_features_in_ if start is None else len(start)
        chosen = {"n_components": n_components, "atoms": start}
        return self._params_of(DictionaryParams, **{**chosen, **changes})

    def _first_atoms(self) -> np.ndarray:
        """Atoms that the user wants to start from."""
        atoms: np.ndarray = check_array(
            self.dict_init, dtype=[np.float64, np.float32], input_name="dict_init"
        )
        n_components = self.n_components or len(atoms)
        check_atoms(atoms, (n_components, self.n_features_in_))
        return atoms

    def _partial_changes(self) -> dict[str, Any]:
        """Parameters of the one pass of `partial_fit`."""
        changes: dict[str, Any] = {
            "max_iter": 1,
            "tol": 0.0,
            "max_no_improvement": None,
            "decays": False,
        }
        if self.batch_size == "auto":  # who gives some rows at a time knows how many
            changes["batch_size"] = MOST_OF_BATCH
        if not hasattr(self, "components_"):
            return changes
        n_components = self.n_components
        if n_components not in (None, len(self.components_)):
            raise ValueError(
                f"n_components is {n_components}, but the atoms to go on from are "
                f"{len(self.components_)}; set it back, or call fit"
            )
        return changes | {
            "atoms": self.components_,
            "statistics": self.inner_stats_,
            "n_seen": self.n_samples_seen_,
            "n_steps": self.n_steps_,
        }

    def _warnings(
        self, result: DictionaryResult, *, is_partial: bool
    ) -> Iterator[tuple[str, type[Warning]]]:
        yield from super()._warnings(result, is_partial=is_partial)
        if is_partial or not self._may_end_early or self.n_iter_ < self.max_iter:
            return
        fall = last_fall(result.history)
        if fall > _STILL_FALLING:
            yield (
                f"the objective still fell by {fall:.1%} in the last of "
                f"{self.max_iter} passes; raise max_iter",
                ConvergenceWarning,
            )

    def _worthwhile_ranks(
        self, params: DictionaryParams, size: InputSize, n_threads: int
    ) -> int:
        """As many as gain more by sharing rows out than exchanges take."""
        if params.communication == "outputs":  # for atoms that one may not hold
            return min(n_threads, size.n_features)
        bandwidth = _config.get_bytes("comm.link-bandwidth")
        return quickest_of(
            n_threads, lambda n: seconds_shared(params, size, n, bandwidth)
        )

    def _max_rounds(
        self, params: DictionaryParams, info: InputInfo, n_ranks: int
    ) -> int | None:
        """Most rounds that there can be, if the number of rows is known."""
        if info.n_rows is None:
            return None
        return params.max_iter * -(-info.n_rows // params.batch_of(info.n_rows))

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        return {
            "components_": fitted["components"],
            "inner_stats_": fitted["statistics"],
            "n_samples_seen_": fitted["n_seen"],
            "n_iter_": fitted["n_iter"],
            "n_steps_": fitted["n_steps"],
            "n_unused_": fitted["n_unused"],
        }
