"""Strategies of exchange: MPCA SGD, averaging, elastic averaging, a server."""
