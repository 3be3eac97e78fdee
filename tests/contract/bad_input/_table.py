"""All kinds of bad input."""

from bad_input import (
    _parameters,
    _partial,
    _predictions,
    _shapes,
    _sparse,
    _targets,
    _values,
    _weights,
)

CASES = [
    *_values.CASES,
    *_shapes.CASES,
    *_sparse.CASES,
    *_targets.CASES,
    *_weights.CASES,
    *_parameters.CASES,
    *_predictions.CASES,
    *_partial.CASES,
]
