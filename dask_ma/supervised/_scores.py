"""Scores from sums over all ranks."""

from __future__ import annotations

import numpy as np

N_SCORE_SUMS = 4


def score(sums: np.ndarray, *, is_classifier: bool) -> float:
    """Accuracy, or coefficient of determination, from the sums over all ranks."""
    weight, value, first, second = sums
    if is_classifier:
        return float(value / weight)
    variation = second - first**2 / weight
    return float(1 - value / variation) if variation > 0 else 0.0
