"""Losses of a row, for coordinate descent: values, slopes, and bounds of the curvature.

A loss of your own derives from :class:`Loss`, or from :class:`MarginLoss` where its
targets are two classes. It needs ``value``, ``slope``, and ``smoothness``, the largest
second derivative::

    class LogCosh(Loss):
        smoothness = 1.0

        def value(self, y, p):
            return np.log(np.cosh(p - y))

        def slope(self, y, p):
            return np.tanh(p - y)
"""

from dask_ma.kernels.losses import (
    Huber,
    LogLoss,
    Loss,
    MarginLoss,
    ModifiedHuber,
    MultinomialLogLoss,
    SquaredEpsilonInsensitive,
    SquaredError,
    SquaredHinge,
)

__all__ = [
    "Huber",
    "LogLoss",
    "Loss",
    "MarginLoss",
    "ModifiedHuber",
    "MultinomialLogLoss",
    "SquaredEpsilonInsensitive",
    "SquaredError",
    "SquaredHinge",
]
