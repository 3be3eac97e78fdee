"""Callbacks of scikit-learn's kind that look at the model of each epoch."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np

_VALUES = (".pt", ".pth")


class EpochScoring:
    """Scores the joint model of each epoch in the client, on rows of the user's choice.

    For ``set_callbacks`` of an estimator, which needs scikit-learn 1.9. The ranks wait
    for it at the end of an epoch; ``early_stopping`` has them score by themselves.

    Parameters
    ----------
    X : array-like or Dask collection of shape (n_samples, n_features)
        Rows to predict.
    y : array-like or Dask collection of shape (n_samples,)
        What is true of them.
    scoring : str, callable or None, default=None
        Name of a score that scikit-learn knows, or ``scorer(estimator, X, y)``; None is
        the estimator's own ``score``.
    patience : int or None, default=None
        The fit stops after so many scores in a row without a better one; with None it
        does not.

    Attributes
    ----------
    scores_ : list of float
        Score of each epoch of the last fit; of several that end with the same exchange,
        one.
    best_score_ : float
        The highest of them.
    best_epoch_ : int
        Epochs made by then; 0 before there is one.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import MPCAClassifier
    >>> from dask_ma.mpca import EpochScoring
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> recall = EpochScoring(X[40:], y[40:], "recall")
    >>> classifier = MPCAClassifier((8,), max_iter=3, tol=None, random_state=0)
    >>> _ = classifier.set_callbacks(recall).fit(X[:40], y[:40])
    >>> len(recall.scores_), recall.best_score_ == max(recall.scores_)
    (3, True)
    """

    def __init__(
        self, X: Any, y: Any, scoring: Any = None, *, patience: int | None = None
    ) -> None:
        if patience is not None and patience < 1:
            raise ValueError(f"patience must be at least 1 or None, got {patience!r}")
        self.X = X
        self.y = y
        self.scoring = scoring
        self.patience = patience
        self.scores_: list[float] = []
        self.best_score_ = -np.inf
        self.best_epoch_ = self._n_without = 0

    def setup(self, estimator: Any, context: Any) -> None:
        """Forget the fit before; scikit-learn calls it.

        Parameters
        ----------
        estimator : estimator
            That is fitted.
        context : CallbackContext
            Of scikit-learn.
        """
        from sklearn.metrics import check_scoring  # no rank needs it

        check_scoring(estimator, self.scoring)
        self.scores_, self.best_score_ = [], -np.inf
        self.best_epoch_ = self._n_without = 0

    def on_fit_task_begin(
        self, estimator: Any, context: Any, *, X: Any = None, y: Any = None
    ) -> None:
        """Nothing is to be done; scikit-learn calls it.

        Parameters
        ----------
        estimator : estimator
            That is fitted.
        context : CallbackContext
            Of scikit-learn.
        X, y : object
            What the estimator is fitted to.
        """

    def on_fit_task_end(
        self, estimator: Any, context: Any, *, fitted_estimator: Any = None
    ) -> bool:
        """Score the model of an epoch; scikit-learn calls it.

        Parameters
        ----------
        estimator : estimator
            That is fitted.
        context : CallbackContext
            Of scikit-learn.
        fitted_estimator : estimator or None
            With the joint model of the epoch; None at the end of the fit.

        Returns
        -------
        stop : bool
            Whether the fit is to end.
        """
        if fitted_estimator is None:
            return False
        from sklearn.metrics import check_scoring  # no rank needs it

        score = check_scoring(fitted_estimator, self.scoring)
        self.scores_.append(float(score(fitted_estimator, self.X, self.y)))
        self._n_without += 1
        if self.scores_[-1] > self.best_score_:
            self.best_score_ = self.scores_[-1]
            self.best_epoch_ = fitted_estimator.n_iter_
            self._n_without = 0
            self._keep(fitted_estimator)
        return self.patience is not None and self._n_without >= self.patience

    def teardown(self, estimator: Any, context: Any) -> None:
        """Nothing is to be done; scikit-learn calls it.

        Parameters
        ----------
        estimator : estimator
            That is fitted.
        context : CallbackContext
            Of scikit-learn.
        """

    def _keep(self, fitted_estimator: Any) -> None:
        """A model is the best so far."""


class Checkpoint(EpochScoring):
    """Keeps the model of the epoch with the best score, in memory or in a file.

    For ``set_callbacks`` of an estimator, which needs scikit-learn 1.9. A fit that ends
    early or fails leaves the best model until then. To go on with a fit that was cut
    off, set ``dask-ma.checkpoint.path``.

    Parameters
    ----------
    X, y, scoring, patience
        As for :class:`EpochScoring`.
    path : str, path-like or None, default=None
        File to replace whenever a model is better than all before. The values of a
        module go into those that end with ``.safetensors``, ``.pt`` or ``.pth``, and
        the whole estimator, pickled, into others. None writes none.

    Attributes
    ----------
    best_estimator_ : estimator
        The model of the best epoch, fitted.
    scores_, best_score_, best_epoch_
        As of :class:`EpochScoring`.
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        scoring: Any = None,
        *,
        path: str | os.PathLike[str] | None = None,
        patience: int | None = None,
    ) -> None:
        super().__init__(X, y, scoring, patience=patience)
        self.path = path

    def _keep(self, fitted_estimator: Any) -> None:
        """Keep a model, and write it beside the file before it takes its place."""
        self.best_estimator_ = fitted_estimator
        if self.path is None:
            return
        path = Path(self.path)
        beside = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
        _write(fitted_estimator, beside)
        beside.replace(path)


def _write(estimator: Any, path: Path) -> None:
    """Write a fitted estimator, or its values, as the name of the file says."""
    if path.suffix == ".safetensors":
        estimator.save_safetensors(path)
    elif path.suffix in _VALUES:
        import torch

        torch.save(estimator.state_dict(), path)
    else:
        with path.open("wb") as file:
            pickle.dump(estimator, file)
