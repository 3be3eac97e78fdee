"""Latent Dirichlet allocation by averaged online variational Bayes."""
