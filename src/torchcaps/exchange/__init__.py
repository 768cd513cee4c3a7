"""Export models to other runtimes, and convert the weights of other repositories."""
