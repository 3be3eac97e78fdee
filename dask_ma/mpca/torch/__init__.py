"""Networks given as modules of PyTorch; the only importers of torch."""
