"""What a rank does in a fit: batches, targets, validation, callbacks."""
