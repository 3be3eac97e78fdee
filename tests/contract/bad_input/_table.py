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

#: By what is bad.
TOPICS = {
    "values": _values.CASES,
    "shapes": _shapes.CASES,
    "sparse": _sparse.CASES,
    "targets": _targets.CASES,
    "weights": _weights.CASES,
    "parameters": _parameters.CASES,
    "predictions": _predictions.CASES,
    "partial": _partial.CASES,
}
CASES = [case for cases in TOPICS.values() for case in cases]
