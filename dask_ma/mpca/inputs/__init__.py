"""Rows of networks, from all that users give to train on."""
