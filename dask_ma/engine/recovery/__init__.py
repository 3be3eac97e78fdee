"""Saved and restored states: replicas, checkpoints, identity of a fit."""
