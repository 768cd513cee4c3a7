"""report.html of each task."""
