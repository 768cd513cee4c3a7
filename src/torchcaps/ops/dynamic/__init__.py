"""Dynamic routing: `reference` reads like the paper, `chunked` is fast anywhere; README.md derives the second."""
