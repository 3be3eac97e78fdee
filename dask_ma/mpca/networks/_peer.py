"""The estimator of scikit-learn that has the same network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_ma.mpca.networks._mlp import MLPSpec

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier, MLPRegressor


def fitted_sklearn(
    parameters: Mapping[str, Any],
    vector: np.ndarray,
    classes: np.ndarray | None,
    n_features: int,
    n_targets: int | None = None,
) -> MLPClassifier | MLPRegressor:
    """A fitted scikit-learn estimator with the same network.

    Parameters
    ----------
    parameters : mapping
        Constructor parameters of the peer, with at least those of the network.
    vector : ndarray of shape (n_values,)
        Values of the network; they are copied.
    classes : ndarray of shape (n_classes,) or None
        Sorted labels, at least two; None for regression.
    n_features : int
        Columns of X.
    n_targets : int or None, default=None
        Columns of y; None for a y of one dimension.

    Returns
    -------
    peer : MLPClassifier or MLPRegressor
        It predicts, and trains on with ``partial_fit`` or ``warm_start``, with a new
        optimiser.
    """
    # No rank needs them.
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.preprocessing import LabelBinarizer

    n_classes = None if classes is None else len(classes)
    peer = (MLPRegressor if classes is None else MLPClassifier)(**parameters)
    sizes = np.atleast_1d(peer.hidden_layer_sizes)
    hidden = tuple(int(size) for size in sizes)
    spec = MLPSpec(hidden, peer.activation, n_targets=n_targets)
    attributes = spec.attributes(vector, n_features, n_classes)
    for name, value in {**attributes, "n_features_in_": n_features}.items():
        setattr(peer, name, value)
    if classes is not None:
        labels = classes
        if n_targets is not None:  # a row with none of the labels, and one with all
            labels = np.repeat([[0], [1]], n_targets, axis=1)
        peer._label_binarizer = LabelBinarizer().fit(labels)
        peer.classes_ = peer._label_binarizer.classes_
    _without_history(peer)
    return peer


def _without_history(peer: MLPClassifier | MLPRegressor) -> None:
    """Set what scikit-learn's networks look for when they train on."""
    # Nothing public makes one of given weights, hence the names with an underscore here
    # and above.
    peer.n_iter_ = peer.t_ = peer._no_improvement_count = 0
    peer.loss_curve_ = []
    peer.loss_ = peer.best_loss_ = None if peer.early_stopping else np.inf
    peer.validation_scores_ = [] if peer.early_stopping else None
    peer.best_validation_score_ = -np.inf if peer.early_stopping else None
