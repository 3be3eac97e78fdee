"""A matrix whose updates are sufficient factors, and models of it."""
