"""Distances learnt from labels, or from pairs and triplets of rows."""
