"""Multinomial logistic regression by sufficient factors."""
