"""Reading and writing files: size limits, atomic writes, tensors, YAML and arrays."""
