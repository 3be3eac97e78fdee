"""Random faults from outside, against fits of every estimator on every kind of input.

``python -m chaos --help``, or ``make chaos`` in the root of the repository.
"""
