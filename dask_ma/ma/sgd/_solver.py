"""The local pass: scikit-learn's SGD over a rank's own blocks.

SGD itself takes the L2 part of the penalty. scikit-learn forgets at the end of a call
what the L1 penalty still owes to features that no row has shown, and a mean of models
has a zero only where all of them have one. So L1 is a soft threshold by
``alpha * l1_ratio * sum(eta_t)`` after the steps `eta_t` of a pass, at the merged model
(forward-backward splitting: J. Duchi and Y. Singer, "Efficient online and batch
learning using forward backward splitting", JMLR 2009, section 2). More often would be
no better: the threshold grows with the number of steps and their noise with its root,
so only that of many steps puts to 0 what has no part in the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np

from dask_ma.data import Block, Shard, join_groups, read_ahead
from dask_ma.kernels import Loss, row_slice
from dask_ma.linear import LinearModel
from dask_ma.ma.sgd._joint_sgd import JointSGD, goes_jointly
from dask_ma.ma.sgd._loss_sgd import LossSGD
from dask_ma.ma.sgd._params import FitParams, penalty_weights
from dask_ma.ma.sgd._steps import Steps, steps_of

# Ranks drift apart in proportion to their step size, so several ranks go through the
# schedule of the learning rate this much faster than by their own count of rows.
_PACE = 1.5
_MAX_SEED = np.iinfo(np.int32).max
_ORDER, _SGD = 0, 1  # what random numbers are for
# Of rows that the client has sent, the part that is copied at a time where not all are.
_COPIED = 16


class LocalSGD:
    """SGD with batch size 1 and lazy L2 over the rows of one rank.

    scikit-learn's estimator does the work through ``partial_fit``: its loop is
    compiled, costs each row its non-zeros, and releases the GIL. A call costs a look at
    all coefficients besides, so small blocks are joined for it. For a loss that it does
    not have, :class:`LossSGD` takes its place, and for many classes of sparse rows
    :class:`JointSGD`.

    Parameters
    ----------
    shard : Shard
        The rank's rows, y encoded.
    n_problems : int
        Number of linear functions.
    params : FitParams
        Parameters of the fit.
    seed : SeedSequence
        Seed of this rank.
    n_ranks : int
        Number of ranks.
    positive_weight : ndarray of shape (n_problems,) or None, default=None
        Weights of each class in its own problem against the rest.
    """

    def __init__(
        self,
        shard: Shard,
        n_problems: int,
        params: FitParams,
        seed: np.random.SeedSequence,
        n_ranks: int,
        positive_weight: np.ndarray | None = None,
    ) -> None:
        self._shard = shard
        self._seed = seed
        self._shuffle = bool(params.shuffle)
        self._params = params
        self._joint: JointSGD | None = None
        if goes_jointly(shard, n_problems, params):
            self._joint = JointSGD(
                shard.n_features, n_problems, params, positive_weight, shard.dtype
            )
        self._positive_weight = positive_weight
        self._steps = steps_of(params)
        self._l1 = penalty_weights(params)[1]
        model_bytes = n_problems * shard.n_features * np.dtype(np.float64).itemsize
        join_limit = params.join_limit
        if len({block.index for block in shard.blocks}) == 1:
            # Runs of one array have been dealt out: a few of them are a mixture.
            join_limit = min(join_limit, shard.nbytes // _COPIED)
        self._join_limit = max(join_limit, model_bytes)
        self._t = params.t
        # Steps that are found by trial shrink where the objective says so.
        alone = n_ranks == 1 or params.learning_rate == "auto"
        self._pace = 1.0 if alone else _PACE
        self._n_runs = 0
        self._n_rows = 0
        self._is_classifier = params.is_classifier
        self._rotate = False
        self._segments: Iterator[Block] | None = None
        self._rest: Block | None = None

    @cached_property
    def _estimator(self) -> Any:
        """What makes the steps; made for the first of them."""
        return _make_estimator(self._params)

    @property
    def t(self) -> float:
        """Place in the schedule of the learning rate."""
        return self._t

    def state_dict(self) -> dict[str, float]:
        """What another solver of the same shard needs to go on from here.

        The random numbers of a run follow from the seed and its number, so they are no
        part of it.
        """
        return {"t": self._t, "n_runs": self._n_runs, "n_rows": self._n_rows}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take over the state of another solver."""
        self._t = state["t"]
        self._n_runs = int(state.get("n_runs", 0))
        self._n_rows = int(state.get("n_rows", 0))

    def rows_of_run(self, epochs: float) -> int:
        """Rows that a run over so many epochs goes over."""
        return max(1, round(epochs * self._shard.n_rows))

    def t_after(self, t: float, n_runs: int, n_rows: int) -> float:
        """Place in the schedule after runs over so many rows each, begun at `t`."""
        for _ in range(n_runs):  # added up as runs do, rounding included
            t += self._pace * n_rows
        return t

    def set_steps(self, steps: Steps) -> None:
        """Make these steps from now on."""
        self._steps = steps

    def run(self, model: LinearModel, epochs: float) -> tuple[LinearModel, int, float]:
        """Go over the rows, starting from `model`.

        Parameters
        ----------
        model : LinearModel
            The merged model; it is not changed.
        epochs : float
            How often to go over the rank's rows; a fraction stops within them, and the
            next call goes on from there.

        Returns
        -------
        model : LinearModel
            The rank's own model.
        n_rows : int
            Rows gone over.
        pending : float
            Threshold of the L1 penalty that is still due at the merged model.
        """
        if self._shard.n_rows == 0:
            return model, 0, 0.0
        n_rows = self.rows_of_run(epochs)
        if self._segments is None:
            self._rotate = self._shuffle and epochs < 1
            self._segments = self._endless_segments(self._n_rows)
        self._load(model)
        pending = self._go_over(n_rows)
        self._n_runs += 1
        self._n_rows += n_rows
        if self._joint is not None:
            self._coef, self._intercept = self._joint.copy()
        return (
            LinearModel(
                self._coef.astype(model.coef.dtype, copy=False),
                self._intercept.astype(model.intercept.dtype, copy=False),
            ),
            n_rows,
            pending,
        )

    def _load(self, model: LinearModel) -> None:
        """Copy the weights, on which SGD works in place, and seed its shuffles."""
        generator = np.random.MT19937(self._seed_of(_SGD, self._n_runs))
        self._random_state = np.random.RandomState(generator)
        dtype = self._shard.dtype
        if self._joint is not None:
            self._joint.load(model)
            return
        self._coef = np.array(model.coef, dtype=dtype, order="C")
        self._intercept = np.array(model.intercept, dtype=dtype)

    def _take_steps(self, block: Block, t: float) -> None:
        """Go over a block once for each problem; the first step has the number `t`."""
        if self._joint is not None:
            self._joint.go_over(block, self._steps, t, self._random_state)
            return
        n_problems, sgd = len(self._coef), self._estimator
        seeds: Any = [self._random_state]
        if n_problems > 1:
            seeds = self._random_state.randint(_MAX_SEED, size=n_problems)
        # One class at a time, with scikit-learn's random numbers for several: its own
        # loop changes the filters of warnings, which ranks in threads share.
        for k, seed in enumerate(seeds):
            row = self._coef[k : k + 1]
            sgd.coef_ = row if self._is_classifier else row[0]
            sgd.intercept_ = self._intercept[k : k + 1]
            sgd.random_state = seed
            self._steps.set_on(sgd, t)
            if self._positive_weight is not None:
                sgd.class_weight = {0: 1.0, 1: float(self._positive_weight[k])}
            y = (block.y == k).astype(np.intp) if n_problems > 1 else block.y
            sgd.partial_fit(block.X, y, sample_weight=block.sample_weight)
            self._coef[k] = sgd.coef_.ravel()
            self._intercept[k] = sgd.intercept_[0]

    def _go_over(self, n_rows: int) -> float:
        """Take SGD's steps for the next rows; return the threshold that is due."""
        done, due = 0, 0.0
        # Joint steps need no estimator, which would load scikit-learn.
        is_joint = self._joint is not None
        with nullcontext() if is_joint else _unchecked(self._estimator):
            for block in self._take(n_rows):
                self._take_steps(block, self._t + done)
                if self._l1:
                    # Within a run steps shrink by the row, as scikit-learn has it.
                    due += self._l1 * self._steps.sum(self._t + done, len(block.y))
                done += len(block.y)
                del block  # or it would be kept while the next rows are copied
        self._t += self._pace * n_rows
        return due

    def _seed_of(self, purpose: int, number: int) -> np.random.SeedSequence:
        """Seed for the pass or the run with a number."""
        key = (*self._seed.spawn_key, purpose, number)
        return np.random.SeedSequence(self._seed.entropy, spawn_key=key)

    def _take(self, n_rows: int) -> Iterator[Block]:
        """The next `n_rows` rows, as blocks and slices of blocks."""
        if self._segments is None:
            raise RuntimeError("the rows have no order yet")
        done = 0
        while done < n_rows:
            block = self._rest if self._rest is not None else next(self._segments)
            taken = min(n_rows - done, len(block.y))
            self._rest = (
                _rows(block, taken, len(block.y)) if taken < len(block.y) else None
            )
            yield _rows(block, 0, taken)
            done += taken
            del block

    def _endless_segments(self, n_before: int) -> Iterator[Block]:
        """Blocks over and over, in new orders if shuffled, after `n_before` rows."""
        number, skipped = divmod(n_before, self._shard.n_rows)
        while True:
            for segment in self._segments_of_pass(number):
                n_rows = len(segment.y)
                if skipped < n_rows:
                    yield _rows(segment, skipped, n_rows)
                skipped = max(0, skipped - n_rows)
                del segment
            number += 1

    def _segments_of_pass(self, number: int) -> Iterator[Block]:
        """The blocks in the order of a pass."""
        blocks = self._shard.blocks
        order = np.arange(len(blocks))
        rng = np.random.default_rng(self._seed_of(_ORDER, number))
        if self._shuffle:
            rng.shuffle(order)
        limit = self._join_limit
        picked = (blocks[i] for i in order)
        ordered = read_ahead(picked, lambda block: block.X, n_together=limit)
        for group in join_groups(ordered, limit):
            yield from self._cut(group, rng)
            del group

    def _cut(self, block: Block, rng: np.random.Generator) -> Iterator[Block]:
        """A block, from a random row on and round, if rounds end within blocks."""
        # Rounds that always see the same rows together need up to a fifth more passes.
        start = int(rng.integers(len(block.y))) if self._rotate else 0
        yield _rows(block, start, len(block.y))
        if start:
            yield _rows(block, 0, start)


def _make_estimator(params: FitParams) -> Any:
    """SGD for the loss and the L2 part of the penalty: scikit-learn's, if it has it."""
    l2, l1 = penalty_weights(params)
    if isinstance(params.loss, Loss):
        return LossSGD(
            params.loss,
            l2,
            is_classifier=params.is_classifier,
            fit_intercept=params.fit_intercept,
            shuffle=bool(params.shuffle),
        )
    # Ranks that make no such steps, as with sums of gradients, do without its 140 MB.
    from sklearn.linear_model import SGDClassifier, SGDRegressor

    kind = SGDClassifier if params.is_classifier else SGDRegressor
    split = l1 > 0
    sgd = kind(
        loss=params.loss,
        penalty=("l2" if l2 else None) if split else params.penalty,
        alpha=l2 if split and l2 else params.alpha,
        fit_intercept=params.fit_intercept,
        shuffle=bool(params.shuffle),
        epsilon=params.epsilon,
        power_t=params.power_t,
    )
    if params.is_classifier:
        # For scikit-learn to look at the classes takes longer than steps over few rows.
        sgd.classes_ = np.arange(2)
    return sgd


def _unchecked(sgd: Any) -> AbstractContextManager[None]:
    """Have scikit-learn look no more at blocks that have been checked."""
    if isinstance(sgd, LossSGD):
        return nullcontext()
    from sklearn import config_context  # loaded with the estimator

    found: AbstractContextManager[None] = config_context(
        assume_finite=True, skip_parameter_validation=True
    )  # the setting is this thread's own
    return found


def soft_threshold(coef: np.ndarray, threshold: float) -> None:
    """Move coefficients towards 0 by `threshold`, at most to 0; in place."""
    np.subtract(coef, np.clip(coef, -threshold, threshold), out=coef)


def _rows(block: Block, start: int, stop: int) -> Block:
    """Rows of a block, as views."""
    if start == 0 and stop == len(block.y):
        return block
    weight = block.sample_weight
    return block._replace(
        X=row_slice(block.X, start, stop),
        y=block.y[start:stop],
        sample_weight=None if weight is None else weight[start:stop],
    )
