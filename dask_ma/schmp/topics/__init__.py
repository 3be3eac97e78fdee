"""Topic models by Gibbs sampling, whose words travel past the documents."""
