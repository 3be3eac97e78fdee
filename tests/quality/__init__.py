"""How good the models of default parameters are, next to the optimum of each objective.

`sets` are the data, `exact` the optima and `bounds` their certificates, `contestants`
the estimators, `cells` all fits to be looked at, and `rule` what each of them has to
keep. ``python -m quality --help``, or ``make quality`` in the root of the repository.
"""
