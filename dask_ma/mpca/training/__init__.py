"""Training on a rank: batches, targets, validation, callbacks."""
