"""Messages of a run: factors, matrices, packets, their cost."""
