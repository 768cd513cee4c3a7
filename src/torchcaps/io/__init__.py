"""Files of every kind: limits, whole writes, tensors, YAML and arrays."""
