"""Fitted topic models, corpora and priors, whatever system trains them."""
