"""Losses of a row: values, slopes, curvatures, conjugates.

The SGD estimators and coordinate descent take any of them as an object, and so a loss
of one's own. It derives from :class:`Loss`, or from :class:`MarginLoss` where its
targets are two classes, -1 and 1. It needs ``value`` and ``slope``; for coordinate
descent ``smoothness``, the largest second derivative; for Newton's method
``curvature``::

    class LogCosh(Loss):
        smoothness = 1.0

        def value(self, y, p):
            return np.logaddexp(p - y, y - p) - np.log(2)

        def slope(self, y, p):
            return np.tanh(p - y)

        def curvature(self, y, p):
            return 1 - np.tanh(p - y) ** 2
"""

from dask_ma.kernels.losses import (
    EpsilonInsensitive,
    Hinge,
    Huber,
    LogLoss,
    Loss,
    MarginLoss,
    ModifiedHuber,
    MultinomialLogLoss,
    Perceptron,
    SmoothLoss,
    SquaredEpsilonInsensitive,
    SquaredError,
    SquaredHinge,
)

__all__ = [
    "EpsilonInsensitive",
    "Hinge",
    "Huber",
    "LogLoss",
    "Loss",
    "MarginLoss",
    "ModifiedHuber",
    "MultinomialLogLoss",
    "Perceptron",
    "SmoothLoss",
    "SquaredEpsilonInsensitive",
    "SquaredError",
    "SquaredHinge",
]
