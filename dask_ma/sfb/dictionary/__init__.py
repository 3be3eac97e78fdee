"""Dictionaries learned from rows: codes, atoms, what travels, the estimator."""
