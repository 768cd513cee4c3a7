"""Several runs: results over seeds, runs repeated, generators judged."""
