"""Functions of a fitted model and a block of rows; they run on the workers."""

from __future__ import annotations

from typing import Any

import numpy as np


def decision_function(model: Any, block: Any) -> np.ndarray:
    """Values of the linear functions."""
    return model.decision_function(block)


def predict(model: Any, block: Any) -> np.ndarray:
    """Labels or values."""
    return model.predict(block)


def predict_proba(model: Any, block: Any) -> np.ndarray:
    """Probabilities of the classes."""
    return model.predict_proba(block)


def predict_log_proba(model: Any, block: Any) -> np.ndarray:
    """Logarithms of the probabilities of the classes."""
    return model.predict_log_proba(block)
