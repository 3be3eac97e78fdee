"""Distributed machine learning on Dask with the scikit-learn API."""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
