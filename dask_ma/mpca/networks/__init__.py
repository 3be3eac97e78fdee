"""Neural networks on NumPy: the interface, the perceptron, evaluation."""
