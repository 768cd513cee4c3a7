"""Models to and from other programs: exported to other runtimes, converted from the weights of other repositories."""
