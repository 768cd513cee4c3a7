"""Tasks: what is learned, and how it is measured and reported."""
