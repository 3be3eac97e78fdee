"""What travels between ranks: factors, matrices, packets, their cost."""
