"""Linear models by averaged stochastic gradient descent."""
